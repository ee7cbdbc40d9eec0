"""`matrix --dry-analyse`: each cell analysed, and told on the screen, to CI and as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from tfdock.cli import ci_log, console
from tfdock.cli.app import command, print_json
from tfdock.cli.commands.build import builder_for, limit_from_now, shown_progress, stoppable
from tfdock.errors import combined_exit_code

if TYPE_CHECKING:
    from tfdock.host.settings import Settings
    from tfdock.matrix.analysis import Analysis
    from tfdock.matrix.planned_matrix import Cells

_COLUMNS = ("wheel", "is", "what")


@command("tfdock.matrix-analysis/1")
def analyse(
    cells_of: Callable[[Callable[[], None]], Cells], settings: Settings, *, time_limit: str | None, as_json: bool
) -> None:
    """Analyse the cells of a matrix and exit. `cells_of` is given what raises to stop, and chooses them."""
    from dataclasses import replace

    from tfdock.matrix.analysis import analysed

    limit = limit_from_now(time_limit)
    with stoppable("what was found is told") as stop, shown_progress() as listen:
        cells = cells_of(stop.check)
        builder = replace(builder_for(settings, listen, stop), limit=limit)
        found = analysed(cells, builder, _tell) if cells.wanted else ()
    if as_json:
        print_json("tfdock.matrix-analysis/1", all(one.outcome == "ok" for one in found), _document(cells, found))
    else:
        _show(cells, found)
    _summarise(cells, found)
    raise typer.Exit(combined_exit_code(one.exit_code for one in found))


# --- for people -----------------------------------------------------------------------------------------------------


def _tell(one: Analysis) -> None:
    """Say what became of a cell, when it has ended."""
    style = console.Style(sys.stderr)
    word = style.good if one.outcome == "ok" else style.bad
    console.say(f"{word(one.outcome)}  {one.cell.name}")
    console.show_problems(one.problems)
    for note in one.notes:
        console.tell(f"  note: {console.clean(note)}")


def _show(cells: Cells, found: Sequence[Analysis]) -> None:
    style = console.Style(sys.stdout)
    console.result(f"{style.strong(console.clean(cells.file))}  {_counts(cells, found)}")
    rows = [tuple(map(console.clean, row)) for row in _rows(found)]
    for line in console.table([tuple(map(style.strong, _COLUMNS)), *rows]) if rows else ():
        console.say(ci_log.here().harmless(line), stream=sys.stdout)  # it has Bazel's words in it


def _rows(found: Sequence[Analysis]) -> Iterator[tuple[str, str, str]]:
    for one in found:
        said = "; ".join(one.notes)
        if one.problems:
            problem = one.problems[0]
            said = f"[{problem.code}] {one.error or problem.message.partition(chr(10))[0]}"
        yield one.cell.name, one.outcome, said


def _counts(cells: Cells, found: Sequence[Analysis]) -> str:
    """`3 ok, 1 drifted; not analysed: 2 impossible`."""
    counts = _counted(one.outcome for one in found)
    out = _counted(cell.status for cell in cells.cells if not cell.wanted)
    return f"{counts or 'no cells'}{f'; not analysed: {out}' if out else ''}"


def _counted(words: Iterator[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).items())


# --- for programs ---------------------------------------------------------------------------------------------------


def _document(cells: Cells, found: Sequence[Analysis]) -> dict[str, Any]:
    from tfdock.cli.matrix_formats import document, jobs_of

    excluded = document(cells, jobs_of(cells, None))["excluded"]
    return {"matrix": cells.file, "cells": [_row(one) for one in found], "excluded": excluded}


def _row(one: Analysis) -> dict[str, Any]:
    return {
        "build_id": one.cell.name,
        "fields": one.cell.fields,
        "runner": list(one.cell.runner),
        "status": one.outcome,
        "problems": [asdict(problem) for problem in one.problems],
        "error": one.error or None,
        "notes": list(one.notes),
        "source": dict(one.source) or None,
        "seconds": dict(one.seconds),
        "log": str(one.log) if one.log else None,
    }


def _summarise(cells: Cells, found: Sequence[Analysis]) -> None:
    """What a CI service takes."""
    ci_log.here().summary(f"{cells.file}: {_counts(cells, found)}", _COLUMNS, list(_rows(found)))
