"""The JSON documents of a matrix: its cells, and the report of their outcomes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tfdock.errors import Problem, ProfileError, as_document
from tfdock.host.foreign_json import matching, parse
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.matrix.planned_matrix import Cell, Cells
from tfdock.matrix.shards import Job

SCHEMA = "tfdock.matrix-report/1"
_MOST_READ = 1 << 28  #: The most bytes of an earlier document. A cell takes one or two kilobytes.

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StatusLabel:
    """The name of a status for people; its kind is `passed`, `failed` or `skipped`."""

    word: str
    kind: str


#: Every status that a cell can end with, in the order of pages and tables.
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


# --- what a matrix asks for -----------------------------------------------------------------------------------------


def matrix_document(cells: Cells, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the keys of `tfdock.matrix/1` except its schema: cells in the best order for building."""
    by_name = {str(cell.name): cell for cell in cells.wanted}
    numbered = ((number, load.name) for number, job in enumerate(jobs, start=1) for load in job.loads)
    return {
        "matrix": cells.file,
        "include": [_included_row(by_name[name], number) for number, name in numbered],
        "excluded": _excluded_rows(cells),
    }


def _included_row(cell: Cell, shard: int) -> dict[str, Any]:
    return {
        "build_id": cell.build_id,
        "profile": cell.profile,
        "fields": cell.fields,
        "runner": list(cell.runner),
        "status": cell.status,
        "fingerprint": cell.fingerprint,
        "seconds": cell.seconds,
        "group": cell.group,
        "evidence": cell.evidence,
        "shard": shard,
        "warnings": [problem.message for problem in cell.warnings],
    }


def _excluded_rows(cells: Cells) -> list[dict[str, Any]]:
    """Return the impossible and the excluded cells, each with the reason and its place."""
    return [
        {
            "build_id": None,
            "status": cell.status,
            "fields": cell.fields,
            "code": cell.code,
            "reason": cell.reason,
            **dict(zip(("file", "line", "column"), cell.place, strict=True)),
            "problems": [as_document(problem) for problem in cell.problems],
        }
        for cell in cells.cells
        if not cell.wanted
    ]


# --- what it asked for earlier --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _EarlierCell:
    build_id: str
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class _EarlierDocument:
    schema: Annotated[str, matching("tfdock[.]matrix/1")]
    include: tuple[_EarlierCell, ...] = ()


def earlier_fingerprints(file: Path) -> Mapping[str, str | None]:
    """Return the fingerprint of each cell, by build id, from a file that `tfdock matrix --json` printed.

    Raises ProfileError, also for the document of a failed command, which lists no cells.
    """
    # The user typed the name, so a link is followed.
    path = file.resolve()
    try:
        document = parse(_EarlierDocument, UntrustedPath(path.parent, path.name).read(_MOST_READ))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        problem = Problem(
            "matrix-then",
            f"cannot read the earlier listing of the matrix: {why}",
            "write it with `tfdock matrix FILE --json`, in a checkout of the earlier commit",
            file=str(file),
        )
        raise ProfileError(problem) from error
    return {cell.build_id: cell.fingerprint for cell in document.include}


# --- what became of it ----------------------------------------------------------------------------------------------


def report_row(cell: Cell, result: Mapping[str, Any] | None, wheelhouse: Path, place: str) -> dict[str, Any]:
    """Return the row of a cell. The row comes from `result`, or else from the plan of the matrix.

    `result` is the result of building or pulling the wheel; None if neither was tried. `place` is the file, line and
    column of the value or rule that prevents the build.
    """
    problems = tuple(result["problems"]) if result else cell.problems
    status = result["status"] if result else "up-to-date" if cell.status == "here" else cell.status
    code = next((problem.code for problem in problems), cell.code)
    reason = next((problem.message for problem in problems), cell.reason)
    build: Mapping[str, Any] = result or {}
    return {
        "build_id": cell.build_id,
        # An impossible or excluded cell has no build id, but people need a name.
        "name": cell.build_id or fields_text(cell.fields),
        "fields": cell.fields,
        "runner": list(cell.runner),
        "status": status,
        "code": code,
        "reason": reason or None,
        "place": None if cell.wanted else place,
        "problems": list(problems),
        "origin": build.get("origin"),
        "wheels": [
            {"path": Path(wheel["path"]).name, "sha256": wheel["sha256"], "size": wheel["size"]}
            for wheel in build.get("wheels") or ()
        ],
        "log": _inside(build.get("log"), wheelhouse),
        "record": _inside(build.get("record"), wheelhouse),
        # Times and cache figures of an earlier build would be counted as work of this run.
        "seconds": dict(build.get("seconds") or {}) if status == "built" else {},
        "cache": build.get("cache") if status == "built" else None,
        "attempts": build.get("attempts") or 0,
        "exit_code": build.get("exit_code") or 0,
    }


def report_document(
    file: str, rows: Sequence[Mapping[str, Any]], *, exit_code: int, seconds: float, finished: str, by: str
) -> Document:
    """Return the document of a matrix.

    `seconds` is how long the command `by` took, `finished` is when it ended, in UTC (`2026-01-31T09:30:00`).
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
    """Return the fields that a cell sets, on one line: `tensorflow=2.17.0 gpus=rtx5090`."""
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
    """Return a path relative to the wheelhouse, if it is inside: the report may be read on another machine."""
    if path is None:
        return None
    return Path(path).relative_to(wheelhouse).as_posix() if Path(path).is_relative_to(wheelhouse) else path
