"""Find the wheels of a matrix that exist already: in the wheelhouse, or else in a registry."""

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
    """Raise the error. The wheel may exist, and counting it as missing would cost hours of building."""
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

    The wheelhouse is searched only by names and sizes: a build hashes the wheel that it finds. By default, all
    repositories in the settings are queried. If a query fails, `failed` gets its error, and the repository is not
    queried again. An image whose contents do not match its name is ignored, and the cell gets a warning. `check` is
    called now and then, from several threads, and raises to stop.
    """
    house = Wheelhouse(settings.wheelhouse.absolute())
    asked = settings.repositories if repositories is None else repositories
    missing = [cell for cell in cells.wanted if not house.has(cell.name, cell.fingerprint or "", cell.domain)]
    # Shared by all threads, so that no thread waits for a repository that another found unreachable.
    down: dict[ImageRef, NetworkError] = {}
    if asked:
        # A matrix may have thousands of cells, and each question takes a round trip.
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            missing = list(threads.map(lambda cell: _ask(cells, cell, asked, down, check), missing))
    # Report after all requests, so that an error leaves no threads running, and each registry is reported once.
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
    """Return the cell with the answer of the registries. Add a repository that cannot be asked to `down`."""
    plan = cells.prepared(cell).plan
    if lookup.native_refusal(plan):
        return cell  # the wheel is for one machine's CPU only, so no registry has it
    for repository in repositories:
        if repository in down:
            continue
        images = lookup.ImageLookup(repositories=(repository,), check=check)
        try:
            if next(images.images(plan, None, partial(down.setdefault, repository)), None):
                return replace(cell, status="registry")
        # A stop request is not an answer of the registry.
        except Interrupted:
            raise
        except TfdockError as error:
            warnings = (replace(problem, severity="warning") for problem in error.problems)
            cell = replace(cell, warnings=(*cell.warnings, *warnings))
    return cell
