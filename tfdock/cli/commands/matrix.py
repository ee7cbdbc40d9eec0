"""The `matrix` command: list the wheels of a matrix, which of them exist, and the jobs that build the rest."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tfdock.ci.pipeline import gitlab_jobs
from tfdock.cli import ci_log, console
from tfdock.cli.app import AllowUntested, AsJson, app, command, preparer_for, print_json, stoppable
from tfdock.cli.matrix_run import CellSelection, warn_registry
from tfdock.errors import NetworkError
from tfdock.host.settings import Settings
from tfdock.matrix.matrix_report import earlier_fingerprints, fields_text, matrix_document
from tfdock.matrix.matrix_status import locate_wheels, unanswered
from tfdock.matrix.planned_matrix import Cell, Cells, Status
from tfdock.matrix.shards import GITHUB_JOBS, CellLoad, Job, jobs, split

MATRIX = Path("profiles/matrix.yaml")  #: The default matrix.


Format = Literal["table", "json", "github", "gitlab"]


@app.command(
    epilog="Example: `tfdock matrix --missing --format github --shards 8`. An impossible cell is no failure. If all "
    "cells are impossible, the exit status is 3."
)
@command("tfdock.matrix/1", "registries", "wheelhouse", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def matrix(
    settings: Settings,
    file: Annotated[
        Path,
        typer.Argument(
            help="The file of the matrix. The default is profiles/matrix.yaml.", metavar="FILE", show_default=False
        ),
    ] = MATRIX,
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="`github`: one line of JSON for `fromJSON`: a matrix, or for more than 256 jobs a list of "
            "matrices. `gitlab`: the jobs of a child pipeline.",
        ),
    ] = "table",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Keep only the build ids that match this pattern, such as `*-py3.11-*`. Repeatable.",
            metavar="GLOB",
        ),
    ] = None,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Keep only the wheels that are neither in the wheelhouse nor in a registry."),
    ] = False,
    changed_since: Annotated[
        Path | None,
        typer.Option(
            "--changed-since",
            help="Keep only the wheels whose fingerprint differs from FILE, the output of an earlier `--json`.",
            metavar="FILE",
        ),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Keep only a small set of wheels that covers every value of every axis.")
    ] = False,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            help="Split the wheels into N jobs of about equal time. Wheels of one toolchain stay in one job. "
            "By default each wheel has its own job. Wheels for different runners are never in one job.",
            metavar="N",
            min=1,
            max=10_000,
        ),
    ] = None,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """Print which wheels exist, which are missing, and which are impossible."""
    wanted: Format = "json" if as_json else format_
    preparer = preparer_for(settings, allow_untested=allow_untested)
    choice = CellSelection(file=file, only=only or (), missing=missing)
    earlier = earlier_fingerprints(changed_since) if changed_since else None
    with stoppable("nothing was changed") as stop:
        cells = choice.planned(settings, preparer, stop.check)
        if earlier is not None:
            # Filter before `smoke`, so that `smoke` chooses from the changed cells only.
            cells = cells.where(lambda cell: earlier.get(cell.name) != cell.fingerprint)
        if smoke:
            cells = cells.smoke()
        # Only these formats print where wheels are, so the other formats query no registry.
        if missing or wanted in ("table", "json"):
            cells = _locate(cells, settings, stop.check, missing=missing)
    _print_cells(cells, wanted, shards)


def _locate(cells: Cells, settings: Settings, check: Callable[[], None], *, missing: bool) -> Cells:
    """Return the cells, each with the place of its wheel; with `missing`, only the cells without a wheel."""
    warn_registry(cells, settings)
    cells = locate_wheels(cells, settings, check, failed=unanswered if missing else _warn_unreachable)
    if not missing:
        return cells
    left = cells.where(lambda cell: cell.status == "missing")
    there = len(cells.wanted) - len(left.wanted)
    if there:
        verb = "wheels are" if there > 1 else "wheel is"
        console.say(f"{console.clean(cells.file)}: {there} {verb} in the wheelhouse or in a registry")
    return left


def _warn_unreachable(error: NetworkError) -> None:
    """Warn that a registry could not be queried, with the reason."""
    warning = replace(error.problems[0], severity="warning", why="the wheels in this registry count as missing")
    console.show_problems([warning])


def _print_cells(cells: Cells, wanted: Format, shards: int | None) -> None:
    """Print the cells in the format `wanted`."""
    planned = jobs_of(cells, shards)
    match wanted:
        case "json":
            print_json("tfdock.matrix/1", True, matrix_document(cells, planned))
        case "github":
            console.say(github_line(planned), stream=sys.stdout)
            # GitLab's jobs have no page for a summary.
            ci_log.here().summary(*summary_table(cells))
        case "gitlab":
            console.say(gitlab_line(planned), stream=sys.stdout)
        case "table":
            # A reason may be any text, and a job's log shows both streams.
            console.result(*table_lines(cells, planned, sharded=shards is not None), strange=True)
    if not cells.wanted:
        console.say(f"{console.clean(cells.file)}: nothing to build")


def jobs_of(cells: Cells, count: int | None) -> tuple[Job, ...]:
    """Return the jobs that build all possible cells: at most `count` jobs, or one for each cell."""
    loads = (
        CellLoad(name=cell.name, seconds=cell.seconds, group=cell.group, runner=cell.runner) for cell in cells.wanted
    )
    return jobs(tuple(loads), count)


# --- for CI services ------------------------------------------------------------------------------------------------


def github_line(jobs: Sequence[Job]) -> str:
    """Return a matrix for `fromJSON` on one line; a list of matrices if one would have too many jobs."""
    parts = [{"include": [_github_job(job) for job in some]} for some in split(jobs, GITHUB_JOBS)]
    return json.dumps(parts if len(parts) > 1 else parts[0], ensure_ascii=False)


def _github_job(job: Job) -> dict[str, Any]:
    return {"job": job.name, "cells": job.cells, "runner": list(job.loads[0].runner), "minutes": job.minutes}


def gitlab_line(jobs: Sequence[Job]) -> str:
    """Return the jobs of a child pipeline on one line. The text is JSON, which is valid YAML."""
    return json.dumps(gitlab_jobs(jobs), ensure_ascii=False)


# --- for people -----------------------------------------------------------------------------------------------------

_WORDS: Mapping[Status, str] = {
    "missing": "missing",
    "here": "here",
    "registry": "in a registry",
    "impossible": "impossible",
    "excluded": "excluded",
}


def table_lines(cells: Cells, jobs: Sequence[Job], *, sharded: bool) -> Iterator[str]:
    """Return the lines of a table: the wheels, then the impossible and the excluded cells with their reasons."""
    style = console.Style(sys.stdout)
    statuses = Counter(cell.status for cell in cells.cells)
    counts = ", ".join(f"{statuses[status]} {word}" for status, word in _WORDS.items() if statuses[status])
    # A column with a single value would only make the rows too wide for a narrow terminal.
    runners = {", ".join(cell.runner) for cell in cells.wanted}
    where = f"; on {next(iter(runners))}" if len(runners) == 1 else ""
    yield f"{style.strong(console.clean(cells.file))}  {counts or 'no cells'}{_expected_time(cells)}{where}"
    numbers = {load.name: str(number) for number, job in enumerate(jobs, start=1) for load in job.loads}
    rows = [
        (
            cell.name,
            _WORDS[cell.status],
            _cost(cell),
            *([numbers[cell.name]] if sharded else []),
            *([", ".join(cell.runner)] if not where else []),
        )
        for cell in cells.wanted
    ]
    if rows:
        head = ("wheel", "is", "expected", *(["job"] if sharded else []), *(["on"] if not where else []))
        yield from console.table([tuple(map(style.strong, head)), *rows])
    # Each reason is printed once, with all its cells.
    for alike in _grouped(cell for cell in cells.cells if not cell.wanted):
        first = alike[0]
        where, reason = ":".join(map(str, first.place)), console.clean(first.reason)
        count = f"{len(alike)} times  " if len(alike) > 1 else ""
        yield f"  {style.faint(_WORDS[first.status])}  {count}{console.clean(_fields_of_all(alike))}"
        yield f"    {reason} [{first.code}] {style.faint(console.clean(where))}"


def _grouped(cells: Iterable[Cell]) -> Iterable[list[Cell]]:
    """Group the cells by status, reason and place, in the order of the first cell of each group."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.status, cell.reason, cell.code, cell.place), []).append(cell)
    return groups.values()


def _fields_of_all(cells: Sequence[Cell]) -> str:
    """Return what the cells set, with `|` between the values of a field: `python=3.11|3.12`."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell.fields.items():
            values.setdefault(name, {})[fields_text({name: value}).partition("=")[2]] = None
    return " ".join(f"{name}={'|'.join(held)}" for name, held in values.items()) or "the base"


def summary_table(cells: Cells) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Return the table of jobs for the page of a CI job: heading, columns, rows."""
    # If no wheels were looked up, no wheel is known to be missing.
    rows: list[tuple[str, ...]] = [
        (cell.name, "to build", _cost(cell), ", ".join(cell.runner)) for cell in cells.wanted
    ]
    out = [cell for cell in cells.cells if not cell.wanted]
    rows += [(fields_text(cell.fields), _WORDS[cell.status], "-", f"{cell.reason} [{cell.code}]") for cell in out]
    return f"{cells.file}: {len(cells.wanted)} to build", ("Wheel", "Is", "Expected", "On, or why not"), rows


def _cost(cell: Cell) -> str:
    return "-" if cell.seconds is None else console.duration(cell.seconds)


def _expected_time(cells: Cells) -> str:
    costs = [cell.seconds for cell in cells.wanted if cell.status == "missing"]
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    unknown = f", and {len(costs) - len(known)} of unknown duration" if len(known) < len(costs) else ""
    return f"; about {console.rough_duration(sum(known))} to build one after another{unknown}"
