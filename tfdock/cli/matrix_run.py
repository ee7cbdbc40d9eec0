"""Build a matrix on this machine: plan its cells, and report the outcome on the screen, to CI and in files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tfdock.cli import ci_log, console
from tfdock.cli.build_progress import Building, Result
from tfdock.cli.pages import matrix_page
from tfdock.errors import ExitCode, Problem, TfdockError, combined_exit_code, document_text
from tfdock.host.files import make_folder, write_text
from tfdock.host.settings import Settings
from tfdock.matrix import matrix_report, planned_matrix
from tfdock.matrix.matrix_status import locate_wheels
from tfdock.matrix.planned_matrix import Cell, Cells
from tfdock.plan.prepare import Preparer
from tfdock.profile.yaml_nodes import shown
from tfdock.wheelhouse.store import Wheelhouse

#: The files of a report, and the function that writes each.
FILES = {"report.json": document_text, "report.html": matrix_page.page, "junit.xml": matrix_page.junit}

_COLUMNS = ("Outcome", "Wheel", "What")
#: The status of a pull without wheels, by its exit code. Any other code is `failed`.
_STATUSES = {
    ExitCode.OK: "missing",
    ExitCode.INCOMPATIBLE: "refused",
    ExitCode.VERIFICATION: "refused",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.TERMINATED: "interrupted",
}


@dataclass(frozen=True, kw_only=True)
class CellSelection:
    """A matrix's file, the selected cells, and a folder for the report.

    `only` holds patterns of build ids. `missing` leaves out wheels in the wheelhouse or in a registry.
    """

    file: Path
    only: Sequence[str] = ()
    missing: bool = False
    report: Path | None = None

    def cells(self, settings: Settings, preparer: Preparer, check: Callable[[], None]) -> Cells:
        """Return the selected cells. With `missing`, each cell also says where its wheel is."""
        cells = self.planned(settings, preparer, check)
        return locate_wheels(cells, settings, check) if self.missing else cells

    def planned(self, settings: Settings, preparer: Preparer, check: Callable[[], None]) -> Cells:
        """Plan the cells whose build ids match `only`; print warnings about the matrix and the patterns."""
        if self.report is not None:
            make_folder(self.report)  # an error here must come before hours of work
        records = Wheelhouse(settings.wheelhouse.absolute()).records()
        cells = planned_matrix.cells(self.file, preparer, records, check=check)
        idle = (
            Problem(
                "matrix-only-idle",
                f"no cell that can be built matches `{shown(pattern)}`",
                "`tfdock matrix FILE` lists the build ids; quote a pattern with `*`",
                severity="warning",
                file=str(self.file),
            )
            for pattern in self.only
            if not cells.like(pattern)
        )
        console.show_problems([*cells.warnings, *idle])
        return cells.only(self.only)


def warn_registry(cells: Cells, settings: Settings) -> None:
    """Print a warning if no setting names the registry of a matrix. Wheels are not looked up in such a registry. A
    matrix may come from a stranger, so only registries in the settings are used.
    """
    own = cells.matrix.ci.registry
    if own and own not in settings.registries:
        warning = cells.matrix.document.at_field("ci.registry").problem(
            cells.matrix.file,
            "matrix-registry-not-allowed",
            f"wheels are not looked up in the matrix's registry {own}: your settings do not name it",
            f"if you trust this registry, add it: `--registry {own}`, `TFDOCK_REGISTRIES={own}`, or `registries: "
            f"[{own}]` in the configuration file",
            why="everybody who may push to this registry could replace your wheels",
            severity="warning",
            field="ci.registry",
        )
        console.show_problems([warning])


# --- building -------------------------------------------------------------------------------------------------------


def cells_to_do(cells: Cells, settings: Settings, verb: str) -> list[Cell]:
    """Return the cells whose wheels are missing, and print their number. `verb` is `build` or `pull`."""
    warn_registry(cells, settings)
    todo = [cell for cell in cells.wanted if cell.status == "missing"]
    console.say(f"{console.clean(cells.file)}: {len(todo)} of {len(cells.cells)} cells to {verb}")
    return todo


def report_of(
    cells: Cells, results: Sequence[Result], settings: Settings, started: float, by: str
) -> matrix_report.Document:
    """Return the report on a matrix that was built or pulled: the outcome of each cell.

    `results` belong to the cells that were missing. `started` is the monotonic time when the work began. `by` is the
    command.
    """
    by_id = {result["build_id"]: result for result in results}
    wheelhouse = settings.wheelhouse.absolute()
    rows = [
        matrix_report.report_row(cell, by_id.get(cell.build_id or ""), wheelhouse, ":".join(map(str, cell.place)))
        for cell in cells.cells
    ]
    return matrix_report.report_document(
        cells.file,
        rows,
        exit_code=combined_exit_code(result["exit_code"] for result in results),
        seconds=time.monotonic() - started,
        # Without a time zone, because JUnit's schema allows none.
        finished=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        by=by,
    )


def build_matrix(
    cells: Cells, todo: Sequence[Cell], building: Building
) -> tuple[list[Result], matrix_report.Document]:
    """Build all cells of `todo`, also after a failure. Return the results and the report."""
    started = time.monotonic()
    expected = {str(cell.name): cell.seconds for cell in todo}
    results = replace(building, expected=expected).all([cells.prepared(cell) for cell in todo])
    return results, report_of(cells, results, building.session.settings, started, "tfdock build")


def as_build(result: Mapping[str, Any]) -> Result:
    """Return a row of `tfdock.pull/1` as a row of `tfdock.build/1`, because both are reported the same way."""
    build: Mapping[str, Any] = next(iter(result["builds"]), {})
    origin = f"{build['reference']}@{build['digest']}" if build else None
    return {
        "build_id": result["name"],
        "status": build.get("status") or _STATUSES.get(result["exit_code"], "failed"),
        "problems": result["problems"],
        "origin": origin,
        "wheels": build.get("wheels", []),
        "record": build.get("record"),
        "exit_code": result["exit_code"],
    }


# --- telling --------------------------------------------------------------------------------------------------------


def finish_matrix(
    report: matrix_report.Document, choice: CellSelection, tell: Callable[[Mapping[str, Any]], int]
) -> int:
    """Write the report, print the outcome of a matrix, and pass the results and the other JSON keys to `tell`.

    Return the exit code of `tell`. `tell` gets one exit code for the matrix and for writing the report.
    """
    unwritten = _write_report(report, choice.report) if choice.report else 0
    code = combined_exit_code([report["exit_code"], unwritten])
    report = {**report, "ok": code == 0, "exit_code": code}
    _show_outcomes(report)
    if choice.report and not unwritten:
        console.say(f"report  {choice.report / 'report.html'}")
    return tell({"matrix": {name: value for name, value in report.items() if name not in ("schema", "ok")}})


def _show_outcomes(report: matrix_report.Document) -> None:
    """Print the outcomes of a matrix on standard error, and pass a summary and outputs to the CI service."""
    rows = list(matrix_page.table(report))
    style = console.Style(sys.stderr)
    cleaned = [tuple(map(console.clean, row)) for row in rows]
    console.say("", *console.table(cleaned, columns=console.width(sys.stderr)))
    colour = style.good if report["ok"] else style.bad
    counts, took = matrix_page.counts(report), console.duration(report["seconds"])
    console.say(f"{colour(counts)}  {console.clean(report['matrix'])}, {took}")
    service = ci_log.here()
    service.summary(f"{report['matrix']}: {counts}", _COLUMNS, rows)
    service.outputs({"ok": str(report["ok"]).lower(), "exit-code": str(report["exit_code"])})


def _write_report(report: matrix_report.Document, folder: Path) -> int:
    """Write the report's files, each whole or not at all; return an exit code, 0 if all were written."""
    code = 0
    for name, text in FILES.items():
        try:
            write_text(folder / name, text(report))
        except TfdockError as error:  # the results are still printed
            console.show_problems(error.problems)
            code = int(error.exit_code)
    return code
