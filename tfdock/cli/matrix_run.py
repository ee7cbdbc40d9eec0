"""A matrix on this machine: its cells planned, what became of them told on the screen, to CI and in a report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tfdock.cli import ci_log, console
from tfdock.cli.pages import matrix_page
from tfdock.errors import ExitCode, NetworkError, Problem, TfdockError, combined_exit_code

if TYPE_CHECKING:
    from tfdock.cli.build_progress import Building, Result
    from tfdock.host.settings import Settings
    from tfdock.matrix.planned_matrix import Cell, Cells
    from tfdock.plan.prepare import Prepared, Preparer
    from tfdock.types import ImageRef
    from tfdock.wheelhouse.store import Wheelhouse

FILES = {"report.json": matrix_page.as_json, "report.html": matrix_page.page, "junit.xml": matrix_page.junit}
"""The files of a report, and what writes each."""

_COLUMNS = ("Outcome", "Wheel", "What")
_STATUSES = {
    ExitCode.OK: "missing",
    ExitCode.INCOMPATIBLE: "refused",
    ExitCode.VERIFICATION: "refused",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.TERMINATED: "interrupted",
}
"""What a build is said to have come to that ends so, of a pull that brought nothing; else it has failed."""


@dataclass(frozen=True, kw_only=True)
class CellSelection:
    """What is asked for: a matrix's file, which of its cells, and a folder for the report.

    `missing` leaves out what is in the wheelhouse or in a registry.
    """

    file: Path
    only: Sequence[str] = ()
    missing: bool = False
    report: Path | None = None

    def begin(self) -> None:
        """See that the report can be written, before hours of work."""
        if self.report is not None:
            from tfdock.host.files import make_folder

            make_folder(self.report)

    def cells(self, settings: Settings, preparer: Preparer, check: Callable[[], None]) -> Cells:
        """The cells that are asked for, and where the wheel of each is."""
        found = planned(self.file, self.only, settings, preparer, check)
        return looked_for(found, settings, check) if self.missing else found

    def here(self, settings: Settings, preparer: Preparer, check: Callable[[], None]) -> Cells:
        """The cells that are asked for, and which of them are in the wheelhouse; no registry is asked."""
        return looked_for(self.cells(settings, preparer, check), settings, check, repositories=())


def planned(
    file: Path, only: Sequence[str], settings: Settings, preparer: Preparer, check: Callable[[], None]
) -> Cells:
    """The cells of a matrix whose build ids are like one of `only`; what is odd about either is told."""
    from tfdock.matrix import planned_matrix as matrix
    from tfdock.profile.yaml_nodes import shown

    found = matrix.cells(file, preparer, _house(settings).records(), check=check)
    idle = (
        Problem(
            code="matrix-only-idle",
            message=f"no cell that can be built is called like `{shown(pattern)}`",
            fix="`tfdock matrix FILE` lists the build ids; and quote what has a `*`",
            severity="warning",
            file=str(file),
        )
        for pattern in only
        if not found.like(pattern)
    )
    console.show_problems([*found.warnings, *idle])
    return found.only(only)


def check_matrix_options(matrix: Path | None, **options: object) -> None:
    """Refuse what can be said of a matrix alone, where there is none."""
    given = [f"`--{name}`" for name, value in options.items() if value]
    if given and not matrix:
        raise typer.BadParameter(
            f"{' and '.join(given)} can be said of a matrix alone: `--matrix profiles/matrix.yaml`"
        )


def _house(settings: Settings) -> Wheelhouse:
    from tfdock.wheelhouse.store import Wheelhouse

    return Wheelhouse(settings.wheelhouse.absolute())


def unanswered(error: NetworkError) -> None:
    """What nobody knows is not missing: hours of building would follow."""
    raise error


def looked_for(
    cells: Cells,
    settings: Settings,
    check: Callable[[], None],
    *,
    repositories: Sequence[ImageRef] | None = None,
    failed: Callable[[NetworkError], object] = unanswered,
) -> Cells:
    """The same cells, each with where its wheel is; by default all repositories of the settings are asked."""
    from tfdock.matrix import matrix_status

    where = settings.repositories if repositories is None else repositories
    return matrix_status.looked_for(cells, _house(settings), where, check=check, failed=failed)


def tell_registry(cells: Cells, settings: Settings) -> None:
    """Say that the registry of a matrix is not asked, where no setting names it.

    A matrix may be a stranger's: wheels are taken from registries of the settings alone.
    """
    own = cells.matrix.ci.registry
    if own and own not in settings.registries:
        node = cells.matrix.document.at_field("ci.registry")
        told = Problem(
            code="matrix-registry-not-allowed",
            message=f"the matrix's registry {own} is not asked for wheels: no setting names it",
            why="whoever pushes there would decide what your wheels are",
            fix=f"if you trust it, name it: `--registry {own}`, `TFDOCK_REGISTRIES={own}`, or `registries: [{own}]` "
            "in the configuration file",
            severity="warning",
            file=cells.matrix.file,
            line=node.line,
            column=node.column,
            field="ci.registry",
        )
        console.show_problems([told])


# --- building -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A matrix that was built, or pulled. `results` are of the cells that there was something to do for.

    `seconds` is what all took together, `wheelhouse` the folder of the wheels, `by` the command.
    """

    cells: Cells
    results: Sequence[Result]
    wheelhouse: Path
    seconds: float
    by: str = "tfdock build"

    def document(self) -> matrix_page.Document:
        """What became of each cell."""
        found = {result["build_id"]: result for result in self.results}
        rows = [self._row(cell, found.get(cell.build_id or "")) for cell in self.cells.cells]
        return matrix_page.document(
            self.cells.file,
            rows,
            exit_code=combined_exit_code(result["exit_code"] for result in self.results),
            seconds=self.seconds,
            finished=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
            by=self.by,
        )

    def _row(self, cell: Cell, result: Result | None) -> dict[str, Any]:
        from tfdock.cli.matrix_formats import place_of

        place = ":".join(map(str, place_of(cell, self.cells.file).values()))
        return matrix_page.row(cell, result, self.wheelhouse, place)


def build_matrix(
    choice: CellSelection,
    settings: Settings,
    preparer: Preparer,
    building: Callable[[Settings], Building],
    check: Callable[[], None],
    changed: Callable[[Prepared], Prepared],
) -> Finished:
    """Build the cells that are asked for, all of them whatever becomes of one.

    `building` is asked how, with the settings; `changed` has the last word on each plan; `check` raises to stop.
    """
    started = time.monotonic()
    cells = choice.cells(settings, preparer, check)
    tell_registry(cells, settings)
    todo = [cell for cell in cells.wanted if cell.status == "missing"]
    console.say(f"{console.clean(cells.file)}: {len(todo)} of {len(cells.cells)} cells to build")
    expected = {str(cell.name): cell.seconds for cell in todo}
    results = replace(building(settings), expected=expected).all([changed(cells.prepared(cell)) for cell in todo])
    return Finished(
        cells=cells,
        results=results,
        wheelhouse=settings.wheelhouse.absolute(),
        seconds=time.monotonic() - started,
    )


def as_build(result: Mapping[str, Any]) -> Result:
    """A row of `tfdock.pull/1` as one of `tfdock.build/1`: both are told the same way."""
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


def told_with_matrix(finished: Finished, choice: CellSelection, tell: Callable[[Mapping[str, Any]], int]) -> int:
    """Write the report, say what became of a matrix, and `tell` the results, with what JSON has beside them.

    Returns the exit code of `tell`, which is given the matrix's own: that of a report that cannot be written as well.
    """
    told = finished.document()
    unwritten = _write(told, choice.report) if choice.report else 0
    code = combined_exit_code([told["exit_code"], unwritten])
    told = {**told, "ok": code == 0, "exit_code": code}
    _tell(told)
    if choice.report and not unwritten:
        console.say(f"report  {choice.report / 'report.html'}")
    return tell({"matrix": {name: value for name, value in told.items() if name not in ("schema", "ok")}})


def _tell(told: matrix_page.Document) -> None:
    """Say what became of a matrix: a table on standard error, and what a CI service takes."""
    rows = list(matrix_page.table(told))
    style = console.Style(sys.stderr)
    console.say()
    cleaned = [tuple(map(console.clean, row)) for row in rows]
    for line in console.table(cleaned, columns=console.width(sys.stderr)) if cleaned else ():
        console.say(line)
    word = style.good if told["ok"] else style.bad
    took = console.duration(told["seconds"])
    console.say(f"{word(matrix_page.counts(told))}  {console.clean(told['matrix'])}, {took}")
    service = ci_log.here()
    service.summary(f"{told['matrix']}: {matrix_page.counts(told)}", _COLUMNS, rows)
    service.outputs({"ok": str(told["ok"]).lower(), "exit-code": str(told["exit_code"])})


def _write(told: matrix_page.Document, folder: Path) -> int:
    """Write the report's files, each whole or not at all; an exit code, where one could not be written."""
    from tfdock.host.files import write_text

    code = 0
    for name, text in FILES.items():
        try:
            write_text(folder / name, text(told))
        except TfdockError as error:  # what was built is told all the same
            console.show_problems(error.problems)
            code = int(error.exit_code)
    return code
