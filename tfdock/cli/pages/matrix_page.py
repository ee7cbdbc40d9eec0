"""Show the report of a matrix as a table, as JUnit's XML and as a page.

Names, reasons and messages come from untrusted files. They reach a page and XML as text only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from tfdock.cli import console
from tfdock.cli.pages.html_page import render_page
from tfdock.matrix.matrix_report import OUTCOMES, Document, fields_text

#: The mark of each kind of status, for readers who cannot see colours.
MARKS = {"passed": "✓", "failed": "✗", "skipped": "–"}


# --- for people -----------------------------------------------------------------------------------------------------


def counts(report: Document) -> str:
    """Return the number of cells with each outcome: `1 failed, 3 built, 2 impossible`."""
    return ", ".join(f"{count} {OUTCOMES[status].word}" for status, count in report["counts"].items()) or "no cells"


def what(cell: Mapping[str, Any]) -> str:
    """Return the details of a cell on one line."""
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
    """Return the failed cells first, then the others in the order of the matrix."""
    order = list(OUTCOMES)
    return sorted(rows, key=lambda cell: order.index(cell["status"]))


def table(report: Document) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each cell: outcome, name, details."""
    for cell in in_order(report["cells"]):
        yield OUTCOMES[cell["status"]].word, str(cell["name"]), what(cell)


# --- the files ------------------------------------------------------------------------------------------------


def junit(report: Document) -> str:
    """Return the document as JUnit's XML: a test case for each cell."""
    kinds = Counter(OUTCOMES[cell["status"]].kind for cell in report["cells"])
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": _xml(f"{report['by']} {report['matrix']}"),
            "timestamp": report["finished"],
            # The host name is private.
            "hostname": "localhost",
            "tests": str(len(report["cells"])),
            "failures": str(kinds["failed"]),
            "errors": "0",
            "skipped": str(kinds["skipped"]),
            "time": f"{report['seconds']:.3f}",
        },
    )
    # JUnit's schema requires these elements in this order, even if they are empty.
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
    # Tools group test cases by class, so the class is the release.
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
    """Remove the characters that XML does not allow: control characters and lone surrogates."""
    return console.clean(str(text).expandtabs())


def page(report: Document) -> str:
    """Return a page that loads nothing and runs nothing. The same document always gives the same text."""
    status = "passed" if report["ok"] else "failed"
    rows = [_cell_row(number, cell) for number, cell in enumerate(in_order(report["cells"]), start=1)]
    values = {
        "title": Path(report["matrix"]).name,
        "verdict": {"status": status, "mark": MARKS[status], "word": status},
        "lead": f"{len(rows)} cells: {counts(report)}.",
        "took": console.duration(report["seconds"]),
        "finished": str(report["finished"]).replace("T", " "),
        "exit_code": report["exit_code"],
        "by": report["by"],
        "rows": rows,
        "failures": [cell for cell in rows if cell["kind"] == "failed"],
    }
    return render_page("matrix.html.j2", values)


def _cell_row(number: int, cell: Mapping[str, Any]) -> dict[str, object]:
    outcome = OUTCOMES[cell["status"]]
    return {
        **cell,
        "number": number,
        "kind": outcome.kind,
        "mark": MARKS[outcome.kind],
        "word": outcome.word,
        "fields": fields_text(cell["fields"]) if cell["build_id"] else "",
        "what": what(cell),
        "wheels": [(wheel["path"], console.size(wheel["size"])) for wheel in cell["wheels"]],
        "problems": cell["problems"] if outcome.kind == "failed" else [],
    }
