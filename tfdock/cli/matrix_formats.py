"""Print a matrix for people and for CI services; run and print `matrix --dry-analyse`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import typer

from tfdock.ci.pipeline import gitlab_jobs
from tfdock.cli import ci_log, console
from tfdock.cli.app import command, limit_from_now, print_json, stoppable
from tfdock.cli.build_progress import session_for, shown_progress
from tfdock.errors import combined_exit_code
from tfdock.host.settings import Settings
from tfdock.matrix.analysis import Analysis, analysed, analysis_row
from tfdock.matrix.matrix_report import excluded_rows, fields_text
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


_COLUMNS = ("wheel", "is", "what")


@command("tfdock.matrix-analysis/1")
def analyse(
    cells_of: Callable[[Callable[[], None]], Cells], settings: Settings, *, time_limit: str | None, as_json: bool
) -> None:
    """Analyse the cells of a matrix and exit. `cells_of` selects them; its argument raises to stop."""
    limit = limit_from_now(time_limit)
    with stoppable("what was found is told") as stop, shown_progress() as listen:
        cells = cells_of(stop.check)
        session = replace(session_for(settings, cells.knowledge, listen, stop), limit=limit)
        # Where nothing is to be analysed, no engine is needed.
        analyses = analysed(cells, session, _show_analysis) if cells.wanted else ()
    if as_json:
        ok = all(analysis.outcome == "ok" for analysis in analyses)
        rows = [analysis_row(analysis) for analysis in analyses]
        document = {"matrix": cells.file, "cells": rows, "excluded": excluded_rows(cells)}
        print_json("tfdock.matrix-analysis/1", ok, document)
    else:
        _show(cells, analyses)
    ci_log.here().summary(f"{cells.file}: {_counts(cells, analyses)}", _COLUMNS, list(_rows(analyses)))
    raise typer.Exit(combined_exit_code(analysis.exit_code for analysis in analyses))


# --- for people -----------------------------------------------------------------------------------------------------


def _show_analysis(analysis: Analysis) -> None:
    """Print what became of a cell, when it has ended."""
    style = console.Style(sys.stderr)
    colour = style.good if analysis.outcome == "ok" else style.bad
    console.say(f"{colour(analysis.outcome)}  {analysis.cell.name}")
    console.show_problems(analysis.problems)
    for note in analysis.notes:
        console.tell(f"  note: {console.clean(note)}")


def _show(cells: Cells, analyses: Sequence[Analysis]) -> None:
    """Print the counts and a table."""
    style = console.Style(sys.stdout)
    console.result(f"{style.strong(console.clean(cells.file))}  {_counts(cells, analyses)}")
    rows = [tuple(map(console.clean, row)) for row in _rows(analyses)]
    for line in console.table([tuple(map(style.strong, _COLUMNS)), *rows]) if rows else ():
        console.say(ci_log.here().harmless(line), stream=sys.stdout)  # it has Bazel's words in it


def _rows(analyses: Sequence[Analysis]) -> Iterator[tuple[str, str, str]]:
    for analysis in analyses:
        details = "; ".join(analysis.notes)
        if analysis.problems:
            problem = analysis.problems[0]
            details = f"[{problem.code}] {analysis.error or problem.message.partition(chr(10))[0]}"
        yield analysis.cell.name, analysis.outcome, details


def _counts(cells: Cells, analyses: Sequence[Analysis]) -> str:
    """Return such as `3 ok, 1 drifted; not analysed: 2 impossible`."""
    counts = _count_words(analysis.outcome for analysis in analyses)
    others = _count_words(cell.status for cell in cells.cells if not cell.wanted)
    return f"{counts or 'no cells'}{f'; not analysed: {others}' if others else ''}"


def _count_words(words: Iterator[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).items())
