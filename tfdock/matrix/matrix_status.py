"""Find the wheels of a matrix that exist already: in the wheelhouse, else in a registry."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from tfdock.errors import Interrupted, NetworkError, TfdockError
from tfdock.host.settings import Settings
from tfdock.images import lookup
from tfdock.matrix.planned_matrix import Cell, Cells
from tfdock.types import ImageRef
from tfdock.wheelhouse.store import Wheelhouse

_AT_ONCE = 8  #: The most parallel requests to registries.


def unanswered(error: NetworkError) -> None:
    """Raise the error: an unknown wheel is not a missing one, and hours of building would follow."""
    raise error


def locate_wheels(
    cells: Cells,
    settings: Settings,
    check: Callable[[], None],
    *,
    repositories: Sequence[ImageRef] | None = None,
    failed: Callable[[NetworkError], object] = unanswered,
) -> Cells:
    """Return the same cells, each with the place of its wheel: `here`, `registry` or `missing`.

    The wheelhouse is searched by names and sizes: a build hashes the wheel that it finds. By default all repositories
    of the settings are asked. A repository that cannot be asked is passed to `failed`, once, and asked no more. An
    image whose contents do not match its name is ignored: the cell gets a warning. `check` is called now and then,
    from several threads, and raises to stop.
    """
    house = Wheelhouse(settings.wheelhouse.absolute())
    asked = settings.repositories if repositories is None else repositories
    missing = [cell for cell in cells.wanted if not house.has(cell.name, cell.fingerprint or "", cell.domain)]
    # Shared by all threads: what one found unreachable, the others do not wait for.
    down: dict[ImageRef, NetworkError] = {}
    if asked:
        # A matrix may have thousands of cells, and each question takes a round trip.
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            missing = list(threads.map(lambda cell: _ask(cells, cell, asked, down, check), missing))
    # After all questions, so that an error leaves no threads behind, and each registry is told once.
    for error in down.values():
        failed(error)
    located = {cell.name: replace(cell, status="here") for cell in cells.wanted}
    located |= {cell.name: cell for cell in missing}
    return replace(cells, cells=tuple(located[cell.name] if cell.wanted else cell for cell in cells.cells))


def _ask(
    cells: Cells,
    cell: Cell,
    repositories: Sequence[ImageRef],
    down: MutableMapping[ImageRef, NetworkError],
    check: Callable[[], None],
) -> Cell:
    """Return the cell with what registries have for it; a repository that cannot be asked is added to `down`."""
    plan = cells.prepared(cell).plan
    if lookup.native_refusal(plan):
        return cell  # for one machine's CPU alone: nobody else's wheel will do
    for repository in repositories:
        if repository in down:
            continue
        images = lookup.ImageLookup(repositories=(repository,), check=check)
        try:
            if next(images.images(plan, None, partial(down.setdefault, repository)), None):
                return replace(cell, status="registry")
        # A stop is no answer of the registry.
        except Interrupted:
            raise
        except TfdockError as error:
            warnings = (replace(problem, severity="warning") for problem in error.problems)
            cell = replace(cell, warnings=(*cell.warnings, *warnings))
    return cell
