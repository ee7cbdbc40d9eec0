"""Which wheels of a matrix there are already: in the wheelhouse, else in a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tfdock.errors import Interrupted, NetworkError, Problem, TfdockError
from tfdock.images import lookup
from tfdock.matrix.planned_matrix import Cell, Cells
from tfdock.types import ImageRef
from tfdock.wheelhouse.store import Wheelhouse

_AT_ONCE = 8
"""Questions to registries under way at a time."""


def looked_for(
    cells: Cells,
    house: Wheelhouse,
    repositories: Sequence[ImageRef] = (),
    *,
    check: Callable[[], None] = lambda: None,
    failed: Callable[[NetworkError], object],
) -> Cells:
    """The same cells, each with where its wheel is: `here`, `registry` or `missing`.

    A wheelhouse is looked in by names and sizes: a build hashes what it finds. A repository that cannot be asked is
    told to `failed`, once, and asked no more. An image that is not what it says counts for nothing: the cell gets a
    warning. `check` is called now and then, from several threads, and raises to stop.
    """
    asking = _Asking(cells, repositories, check)
    missing = [cell for cell in cells.wanted if not house.has(cell.name, cell.fingerprint or "", cell.domain)]
    if not repositories:
        found: Iterable[Cell] = missing
    else:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = list(threads.map(asking.look, missing))
    for error in asking.down.values():
        failed(error)
    changed = {cell.build_id: cell for cell in found}
    here = (
        cell if not cell.wanted else changed.get(cell.build_id) or replace(cell, status="here")
        for cell in cells.cells
    )
    return replace(cells, cells=tuple(here))


@dataclass
class _Asking:
    """Asks the registries; those that could not be asked are `down`."""

    cells: Cells
    repositories: Sequence[ImageRef]
    check: Callable[[], None]
    down: dict[ImageRef, NetworkError] = field(default_factory=dict)

    def look(self, cell: Cell) -> Cell:
        """The cell with what registries have for it."""
        plan = self.cells.prepared(cell).plan
        if lookup.refusal(plan):
            return cell  # for one machine's CPU alone: nobody else's wheel will do
        for repository in self.repositories:
            if repository in self.down:
                continue

            def unreachable(error: NetworkError, repository: ImageRef = repository) -> None:
                self.down.setdefault(repository, error)

            asked = lookup.ImageLookup(repositories=(repository,), check=self.check)
            try:
                if next(asked.images(plan, None, unreachable), None):
                    return replace(cell, status="registry")
            except Interrupted:
                raise
            except TfdockError as error:
                cell = replace(cell, warnings=(*cell.warnings, *map(_warning, error.problems)))
        return cell


def _warning(problem: Problem) -> Problem:
    return replace(problem, severity="warning")
