"""A matrix for those who read it: people, programs, and CI services that make jobs of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfdock.cli import console
from tfdock.cli.pages.matrix_page import fields_text

if TYPE_CHECKING:
    from tfdock.matrix.planned_matrix import Cell, Cells, Status
    from tfdock.matrix.shards import Job


def jobs_of(cells: Cells, count: int | None) -> tuple[Job, ...]:
    """The jobs that build what can be built: at most `count`, or one for each cell."""
    from tfdock.matrix.shards import Load, jobs

    loads = (Load(name=one.name, seconds=one.seconds, group=one.group, runner=one.runner) for one in cells.wanted)
    return jobs(tuple(loads), count)


# --- for programs ---------------------------------------------------------------------------------------------------


def document(cells: Cells, jobs: Sequence[Job]) -> dict[str, Any]:
    """What `tfdock.matrix/1` has beside its schema: cells in the order in which they are best built."""
    by_name = {str(cell.name): cell for cell in cells.wanted}
    numbered = ((number, load.name) for number, job in enumerate(jobs, start=1) for load in job.loads)
    return {
        "matrix": cells.file,
        "include": [_included(by_name[name], number) for number, name in numbered],
        "excluded": [_excluded(cell, cells.file) for cell in cells.cells if not cell.wanted],
    }


def _included(cell: Cell, shard: int) -> dict[str, Any]:
    return {
        "build_id": cell.build_id,
        "profile": cell.profile,
        "fields": cell.fields,
        "runner": list(cell.runner),
        "status": cell.status,
        "fingerprint": cell.fingerprint,
        "seconds": cell.seconds,
        "group": cell.group,
        "shard": shard,
        "warnings": [problem.message for problem in cell.warnings],
    }


def place_of(cell: Cell, file: str) -> dict[str, Any]:
    """The file, line and column that keep a cell from being built."""
    rule = cell.combination.excluded
    place = rule.place if rule else cell.combination.place
    first = cell.problems[0] if cell.problems else None
    return {
        "file": (first and first.file) or place.file or file,
        "line": (first and first.line) or place.line,
        "column": (first and first.column) or place.column,
    }


def _excluded(cell: Cell, file: str) -> dict[str, Any]:
    return {
        "build_id": None,
        "status": cell.status,
        "fields": cell.fields,
        "code": cell.code,
        "reason": cell.reason,
        **place_of(cell, file),
        "problems": [asdict(problem) for problem in cell.problems],
    }


# --- for CI services ------------------------------------------------------------------------------------------------


def github(jobs: Sequence[Job]) -> str:
    """A matrix for `fromJSON`, on one line; a list of such where one would have too many jobs."""
    from tfdock.matrix.shards import GITHUB_JOBS, split

    parts = [{"include": [_github_job(job) for job in some]} for some in split(jobs, GITHUB_JOBS)]
    return json.dumps(parts if len(parts) > 1 else parts[0], ensure_ascii=False)


def _github_job(job: Job) -> dict[str, Any]:
    names = " ".join(load.name for load in job.loads)
    return {"job": job.name, "cells": names, "runner": list(job.loads[0].runner), "minutes": job.minutes}


def gitlab(jobs: Sequence[Job]) -> str:
    """The jobs of a child pipeline, on one line: JSON is YAML."""
    from tfdock.ci.pipeline import gitlab_jobs

    return json.dumps(gitlab_jobs(jobs), ensure_ascii=False)


# --- for people -----------------------------------------------------------------------------------------------------

_WORDS: Mapping[Status, str] = {
    "missing": "missing",
    "here": "here",
    "registry": "in a registry",
    "impossible": "impossible",
    "excluded": "excluded",
}


def table(cells: Cells, jobs: Sequence[Job], *, sharded: bool) -> Iterator[str]:
    """The cells in their order, then those that cannot be or are not wanted, each with its reason and its place."""
    style = console.Style(sys.stdout)
    counted = Counter(cell.status for cell in cells.cells)
    counts = ", ".join(f"{counted[status]} {word}" for status, word in _WORDS.items() if counted[status])
    yield f"{style.strong(console.clean(cells.file))}  {counts or 'no cells'}{_expected(cells)}"
    numbers = {load.name: str(number) for number, job in enumerate(jobs, start=1) for load in job.loads}
    rows = [_row(cell, numbers, sharded=sharded) for cell in cells.wanted]
    if rows:
        head = ("wheel", "is", "expected", *(["job"] if sharded else []), "on")
        yield from console.table([tuple(map(style.strong, head)), *rows])
    for cell in cells.cells:
        if not cell.wanted:
            yield from _out(cell, cells.file, style)


def summary(cells: Cells) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """What there are jobs for, for the page of a CI job: heading, columns, rows."""
    # Nobody may have looked where the wheels are: then none is known to be missing.
    rows: list[tuple[str, ...]] = [
        (cell.name, "to build", _cost(cell), ", ".join(cell.runner)) for cell in cells.wanted
    ]
    out = [cell for cell in cells.cells if not cell.wanted]
    rows += [(fields_text(cell.fields), _WORDS[cell.status], "-", f"{cell.reason} [{cell.code}]") for cell in out]
    return f"{cells.file}: {len(cells.wanted)} to build", ("Wheel", "Is", "Expected", "On, or why not"), rows


def _row(cell: Cell, numbers: Mapping[str, str], *, sharded: bool) -> tuple[str, ...]:
    job = [numbers[cell.name]] if sharded else []
    return (cell.name, _WORDS[cell.status], _cost(cell), *job, ", ".join(cell.runner))


def _cost(cell: Cell) -> str:
    return "-" if cell.seconds is None else console.duration(cell.seconds)


def _expected(cells: Cells) -> str:
    costs = [cell.seconds for cell in cells.wanted if cell.status == "missing"]
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    unknown = f", and {len(costs) - len(known)} of which nothing is known" if len(known) < len(costs) else ""
    return f"; about {console.duration(sum(known))} to build one after another{unknown}"


def _out(cell: Cell, file: str, style: console.Style) -> Iterator[str]:
    told = _excluded(cell, file)
    yield f"  {style.faint(_WORDS[cell.status])}  {console.clean(fields_text(cell.fields))}"
    where = f"{told['file']}:{told['line']}:{told['column']}"
    yield f"    {console.clean(told['reason'])} [{told['code']}] {style.faint(console.clean(where))}"
