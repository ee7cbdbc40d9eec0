"""Print a matrix for people and for CI services."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdock.ci.pipeline import gitlab_jobs
from tfdock.cli import console
from tfdock.matrix.matrix_report import fields_text
from tfdock.matrix.planned_matrix import Cell, Cells, Status
from tfdock.matrix.shards import GITHUB_JOBS, CellLoad, Job, jobs, split


def jobs_of(cells: Cells, count: int | None) -> tuple[Job, ...]:
    """Return the jobs that build what can be built: at most `count`, or one for each cell."""
    loads = (
        CellLoad(name=cell.name, seconds=cell.seconds, group=cell.group, runner=cell.runner) for cell in cells.wanted
    )
    return jobs(tuple(loads), count)


# --- for CI services ------------------------------------------------------------------------------------------------


def github(jobs: Sequence[Job]) -> str:
    """Return a matrix for `fromJSON`, on one line; a list of matrices where one would have too many jobs."""
    parts = [{"include": [_github_job(job) for job in some]} for some in split(jobs, GITHUB_JOBS)]
    return json.dumps(parts if len(parts) > 1 else parts[0], ensure_ascii=False)


def _github_job(job: Job) -> dict[str, Any]:
    return {"job": job.name, "cells": job.cells, "runner": list(job.loads[0].runner), "minutes": job.minutes}


def gitlab(jobs: Sequence[Job]) -> str:
    """Return the jobs of a child pipeline, on one line: JSON is YAML."""
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
    """Return the lines of a table: the wheels, then the cells that cannot be built or are not wanted, and why."""
    style = console.Style(sys.stdout)
    statuses = Counter(cell.status for cell in cells.cells)
    counts = ", ".join(f"{statuses[status]} {word}" for status, word in _WORDS.items() if statuses[status])
    yield f"{style.strong(console.clean(cells.file))}  {counts or 'no cells'}{_expected_time(cells)}"
    numbers = {load.name: str(number) for number, job in enumerate(jobs, start=1) for load in job.loads}
    rows = [_row(cell, numbers, sharded=sharded) for cell in cells.wanted]
    if rows:
        head = ("wheel", "is", "expected", *(["job"] if sharded else []), "on")
        yield from console.table([tuple(map(style.strong, head)), *rows])
    for cell in cells.cells:
        if not cell.wanted:
            where, reason = ":".join(map(str, cell.place)), console.clean(cell.reason)
            yield f"  {style.faint(_WORDS[cell.status])}  {console.clean(fields_text(cell.fields))}"
            yield f"    {reason} [{cell.code}] {style.faint(console.clean(where))}"


def summary(cells: Cells) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Return what there are jobs for, for the page of a CI job: heading, columns, rows."""
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


def _expected_time(cells: Cells) -> str:
    costs = [cell.seconds for cell in cells.wanted if cell.status == "missing"]
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    unknown = f", and {len(costs) - len(known)} of which nothing is known" if len(known) < len(costs) else ""
    return f"; about {console.duration(sum(known))} to build one after another{unknown}"
