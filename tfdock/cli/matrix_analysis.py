"""`matrix --dry-analyse`: analyse each cell, and report it on the screen, to CI and as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import typer

from tfdock.cli import ci_log, console
from tfdock.cli.app import command, print_json
from tfdock.cli.commands.build import limit_from_now, session_for, shown_progress, stoppable
from tfdock.cli.matrix_formats import excluded
from tfdock.errors import as_document, combined_exit_code
from tfdock.host.settings import Settings
from tfdock.matrix.analysis import Analysis, analysed
from tfdock.matrix.planned_matrix import Cells

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
        analyses = analysed(cells, session, _tell) if cells.wanted else ()
    if as_json:
        ok = all(analysis.outcome == "ok" for analysis in analyses)
        rows = [_json(analysis) for analysis in analyses]
        document = {"matrix": cells.file, "cells": rows, "excluded": excluded(cells)}
        print_json("tfdock.matrix-analysis/1", ok, document)
    else:
        _show(cells, analyses)
    ci_log.here().summary(f"{cells.file}: {_counts(cells, analyses)}", _COLUMNS, list(_rows(analyses)))
    raise typer.Exit(combined_exit_code(analysis.exit_code for analysis in analyses))


# --- for people -----------------------------------------------------------------------------------------------------


def _tell(analysis: Analysis) -> None:
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
        what = "; ".join(analysis.notes)
        if analysis.problems:
            problem = analysis.problems[0]
            what = f"[{problem.code}] {analysis.error or problem.message.partition(chr(10))[0]}"
        yield analysis.cell.name, analysis.outcome, what


def _counts(cells: Cells, analyses: Sequence[Analysis]) -> str:
    """Return such as `3 ok, 1 drifted; not analysed: 2 impossible`."""
    counts = _count_words(analysis.outcome for analysis in analyses)
    others = _count_words(cell.status for cell in cells.cells if not cell.wanted)
    return f"{counts or 'no cells'}{f'; not analysed: {others}' if others else ''}"


def _count_words(words: Iterator[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).items())


# --- for programs ---------------------------------------------------------------------------------------------------


def _json(analysis: Analysis) -> dict[str, Any]:
    return {
        "build_id": analysis.cell.name,
        "fields": analysis.cell.fields,
        "runner": list(analysis.cell.runner),
        "status": analysis.outcome,
        "problems": [as_document(problem) for problem in analysis.problems],
        "error": analysis.error or None,
        "notes": list(analysis.notes),
        "source": dict(analysis.source) or None,
        "seconds": dict(analysis.seconds),
        "log": str(analysis.log) if analysis.log else None,
    }
