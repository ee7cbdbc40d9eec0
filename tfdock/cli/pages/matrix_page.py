"""What became of a matrix, told three times over from one document: as JSON, as JUnit's XML, and as a page.

Names, reasons and messages come out of files that anybody may have written. They reach a page and XML as text only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from tfdock.cli import console
from tfdock.cli.pages.html_page import render_page
from tfdock.errors import as_document
from tfdock.matrix.planned_matrix import Cell

SCHEMA = "tfdock.matrix-report/1"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StatusLabel:
    """What a status is called, and whether it is one of those that `passed`, `failed`, or were `skipped`."""

    word: str
    kind: str

    @property
    def mark(self) -> str:
        """For whoever sees no colours."""
        return {"passed": "✓", "failed": "✗", "skipped": "–"}[self.kind]


OUTCOMES = {
    "failed": StatusLabel("failed", "failed"),
    "refused": StatusLabel("refused", "failed"),
    "interrupted": StatusLabel("interrupted", "failed"),
    "built": StatusLabel("built", "passed"),
    "pulled": StatusLabel("pulled", "passed"),
    "up-to-date": StatusLabel("up to date", "passed"),
    "missing": StatusLabel("missing", "skipped"),
    "registry": StatusLabel("in a registry", "skipped"),
    "impossible": StatusLabel("impossible", "skipped"),
    "excluded": StatusLabel("excluded", "skipped"),
}
"""Every status that a cell can end with, those to be told first at the top."""


# --- the document ---------------------------------------------------------------------------------------------------


def row(cell: Cell, result: Mapping[str, Any] | None, wheelhouse: Path, place: str) -> dict[str, Any]:
    """Return the row of a cell: from its `result` if it was built or pulled, else as the matrix knows it.

    `place` is the place in the file that keeps the cell from being built.
    """
    problems = tuple(result["problems"]) if result else cell.problems
    status = result["status"] if result else "up-to-date" if cell.status == "here" else cell.status
    code = next((problem.code for problem in problems), cell.code)
    reason = next((problem.message for problem in problems), cell.reason)
    build: Mapping[str, Any] = result or {}
    return {
        "build_id": cell.build_id,
        "name": cell.build_id or fields_text(cell.fields),
        "fields": cell.fields,
        "runner": list(cell.runner),
        "status": status,
        "code": code,
        "reason": reason or None,
        "place": None if cell.wanted else place,
        "problems": list(problems),
        "origin": build.get("origin"),
        "wheels": [{**wheel, "path": Path(wheel["path"]).name} for wheel in build.get("wheels") or ()],
        "log": _inside(build.get("log"), wheelhouse),
        "record": _inside(build.get("record"), wheelhouse),
        "seconds": dict(build.get("seconds") or {}) if status == "built" else {},
        "cache": build.get("cache") if status == "built" else None,
        "attempts": build.get("attempts") or 0,
        "exit_code": build.get("exit_code") or 0,
    }


def document(
    file: str, rows: Sequence[Mapping[str, Any]], *, exit_code: int, seconds: float, finished: str, by: str
) -> Document:
    """Return the document of a matrix.

    `seconds` is how long it took, `finished` when it ended, in UTC (`2026-01-31T09:30:00`), `by` the command.
    """
    counted = Counter(str(row["status"]) for row in rows)
    return {
        "schema": SCHEMA,
        "ok": exit_code == 0,
        "matrix": file,
        "by": by,
        "finished": finished,
        "seconds": round(seconds, 3),
        "exit_code": exit_code,
        "counts": {status: counted[status] for status in OUTCOMES if counted[status]},
        "cells": list(rows),
    }


def fields_text(fields: Mapping[str, Any]) -> str:
    """Return what a cell sets, in a line: `tensorflow=2.17.0 gpus=rtx5090`."""
    return " ".join(f"{name}={_value(value)}" for name, value in fields.items()) or "the base"


def _value(value: object) -> str:
    match value:
        case list():
            return ",".join(map(_value, value))
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _inside(path: str | None, wheelhouse: Path) -> str | None:
    """Return a path in the wheelhouse relative to it: the report may be read on another machine."""
    if path is None:
        return None
    return Path(path).relative_to(wheelhouse).as_posix() if Path(path).is_relative_to(wheelhouse) else path


# --- for people -----------------------------------------------------------------------------------------------------


def counts(report: Document) -> str:
    """Return how many cells ended how: `1 failed, 3 built, 2 impossible`."""
    return ", ".join(f"{count} {OUTCOMES[status].word}" for status, count in report["counts"].items()) or "no cells"


def what(cell: Mapping[str, Any]) -> str:
    """Return what there is to say of a cell, in a line."""
    match OUTCOMES[cell["status"]].kind, cell["status"]:
        case _, "built":
            cache = cell["cache"]
            actions = f", {cache['hits']} actions from the cache, {cache['executed']} executed" if cache else ""
            return f"in {console.duration(sum(cell['seconds'].values()))}{actions}"
        case "passed", _:
            return f"from {cell['origin']}" if cell["origin"] else ""
        case _:
            reason = str(cell["reason"] or "").partition("\n")[0]
            place = f" {cell['place']}" if cell["place"] else ""
            return f"{reason} [{cell['code']}]{place}" if cell["code"] else reason


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the cells in the order for people: failures first, else as in the matrix."""
    order = list(OUTCOMES)
    return sorted(rows, key=lambda cell: order.index(cell["status"]))


def table(report: Document) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each cell: outcome, name, what there is to say."""
    for cell in in_order(report["cells"]):
        yield OUTCOMES[cell["status"]].word, str(cell["name"]), what(cell)


# --- the three files ------------------------------------------------------------------------------------------------


def as_json(report: Document) -> str:
    """Return the document as the text of a JSON file."""
    text = json.dumps(report, indent=2, ensure_ascii=False, default=as_document)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"


def junit(report: Document) -> str:
    """Return the document as JUnit's XML: a test case for each cell."""
    kinds = Counter(OUTCOMES[cell["status"]].kind for cell in report["cells"])
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": _xml(f"{report['by']} {report['matrix']}"),
            "timestamp": report["finished"],
            # Which machine it was is nobody's business.
            "hostname": "localhost",
            "tests": str(len(report["cells"])),
            "failures": str(kinds["failed"]),
            "errors": "0",
            "skipped": str(kinds["skipped"]),
            "time": f"{report['seconds']:.3f}",
        },
    )
    ElementTree.SubElement(suite, "properties")
    for cell in report["cells"]:
        _test_case(suite, cell)
    ElementTree.SubElement(suite, "system-out").text = _xml(counts(report))
    ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _test_case(suite: Element, cell: Mapping[str, Any]) -> None:
    outcome = OUTCOMES[cell["status"]]
    took = f"{sum(cell['seconds'].values()):.3f}"
    # Whoever groups test cases does so by the class: the release.
    release = str(cell["build_id"] or cell["status"]).partition("-")[0]
    case = SubElement(suite, "testcase", {"name": _xml(cell["name"]), "classname": _xml(release), "time": took})
    message = _xml(f"{outcome.word}: {what(cell)}")
    if outcome.kind == "skipped":
        SubElement(case, "skipped", {"message": message})
    elif outcome.kind == "failed":
        failure = SubElement(case, "failure", {"message": message, "type": str(cell["code"] or cell["status"])})
        failure.text = _xml("\n".join(_lines(cell)))


def _lines(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a failure: problems, reasons, the log."""
    for problem in cell["problems"]:
        yield str(problem)
        yield from [f"  why: {problem.why}"] if problem.why else []
    yield from [f"log: {cell['log']}"] if cell["log"] else []


def _xml(text: object) -> str:
    """Return text without what XML cannot hold, escaped or not: controls, halves of characters."""
    return console.clean(str(text).expandtabs())


def page(report: Document) -> str:
    """Return the document as a page, the same text every time: one file that loads nothing and runs nothing."""
    return render_page("matrix.html.j2", _values(report))


def _values(report: Document) -> dict[str, object]:
    status, mark = ("passed", "✓") if report["ok"] else ("failed", "✗")
    rows = [_shown(number, cell) for number, cell in enumerate(in_order(report["cells"]), start=1)]
    return {
        "title": Path(report["matrix"]).name,
        "verdict": {"status": status, "mark": mark, "word": status},
        "lead": f"{len(rows)} cells: {counts(report)}.",
        "took": console.duration(report["seconds"]),
        "finished": str(report["finished"]).replace("T", " "),
        "exit_code": report["exit_code"],
        "by": report["by"],
        "rows": rows,
        "failures": [cell for cell in rows if cell["kind"] == "failed"],
    }


def _shown(number: int, cell: Mapping[str, Any]) -> dict[str, object]:
    outcome = OUTCOMES[cell["status"]]
    return {
        "number": number,
        "status": cell["status"],
        "kind": outcome.kind,
        "mark": outcome.mark,
        "word": outcome.word,
        "name": cell["name"],
        "fields": fields_text(cell["fields"]) if cell["build_id"] else "",
        "what": what(cell),
        "wheels": [(wheel["path"], console.size(wheel["size"])) for wheel in cell["wheels"]],
        "problems": cell["problems"] if outcome.kind == "failed" else [],
        "log": cell["log"] or "",
    }
