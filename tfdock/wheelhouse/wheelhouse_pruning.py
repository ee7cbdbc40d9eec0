"""Prune a wheelhouse by the rules of `wheelhouse/retention`, and remove what killed runs left.

Wheels from elsewhere stay, and so does everything of a build id that a run holds. A wheel leaves the index before it
is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.errors import Locked
from tfdock.host.untrusted_folders import NotPlain, UntrustedPath
from tfdock.types import BuildId
from tfdock.wheelhouse.catalogue import StoredRecord, StoredWheel, list_wheels
from tfdock.wheelhouse.index import WheelIndex, signature
from tfdock.wheelhouse.orphans import Orphan, build_ids, find_orphans, remove_orphan
from tfdock.wheelhouse.retention import RetainableWheel, RetentionChoice, Rules, choose
from tfdock.wheelhouse.store import Wheelhouse


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedWheelhouse:
    """What went, or would go. `left` are the bytes of wheels that stay; `reached` is False if they are too many.

    `busy` are build ids that a run holds: nothing of theirs was touched.
    """

    wheels: tuple[RetainableWheel, ...]
    leftovers: tuple[Orphan, ...]
    left: int
    reached: bool
    busy: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes that went."""
        return sum(item.size for item in self.wheels) + sum(item.size for item in self.leftovers)


def prune(house: Wheelhouse, state: Path, rules: Rules, *, dry_run: bool = False) -> PrunedWheelhouse:
    """Remove wheels by rule, and what killed runs and broken pulls left. Raises OSError.

    `state` is the folder of the journal of runs.
    """
    busy = {build_id for build_id in sorted(build_ids(house)) if not _is_free(house, build_id)}
    # `tuple`: no accelerators are needed to judge foreign wheels, which stay in any case.
    wheels = list_wheels(house, tuple)
    chosen = _choose_sound(wheels, rules, busy)
    leftovers = [orphan for orphan in find_orphans(house, state, busy) if orphan.build_id not in busy]
    removal = _Removal(house, wheels)
    if not dry_run:
        removal.remove(chosen.gone, leftovers)
    left = chosen.left + sum(wheel.size for wheel in chosen.gone if wheel in removal.kept)
    return PrunedWheelhouse(
        wheels=tuple(wheel for wheel in chosen.gone if wheel not in removal.kept),
        leftovers=tuple(orphan for orphan in leftovers if orphan not in removal.kept),
        left=left,
        reached=rules.max_size is None or left <= rules.max_size,
        busy=tuple(sorted(busy | removal.busy)),
    )


def _is_free(house: Wheelhouse, build_id: BuildId) -> bool:
    try:
        with house.locked(build_id, patience=0):
            return True
    except Locked:
        return False


# --- wheels ---------------------------------------------------------------------------------------------------------


def _choose_sound(wheels: Sequence[StoredWheel], rules: Rules, busy: Collection[str]) -> RetentionChoice:
    """Choose until every chosen wheel matches its record, byte for byte. A wheel that does not match is not ours."""
    own = {wheel.path.name: wheel for wheel in wheels if wheel.recorded}
    others = sum(wheel.size for wheel in wheels if not wheel.recorded)
    stock = {file: _retainable(wheel, wheel.recorded, busy) for file, wheel in own.items() if wheel.recorded}
    sound: set[str] = set()
    while True:
        chosen = choose(stock.values(), rules, others=others)
        unsure = [wheel.file for wheel in chosen.gone if wheel.file not in sound]
        if not unsure:
            return chosen
        for file in unsure:
            if _is_sound(own[file]):
                sound.add(file)
            else:
                # It stays, and its bytes still count for the limit.
                stock[file] = replace(stock[file], busy=True)


def _is_sound(wheel: StoredWheel) -> bool:
    """Return whether a wheel is what a build published. A link that somebody put there is not, wherever it leads."""
    with suppress(FileNotFoundError, NotPlain):
        return UntrustedPath(wheel.path.parent, wheel.path.name).sha256() == wheel.sha256
    return False


def _retainable(wheel: StoredWheel, recorded: StoredRecord, busy: Collection[str]) -> RetainableWheel:
    return RetainableWheel(
        file=wheel.path.name,
        size=wheel.size,
        build_id=recorded.build_id,
        fingerprint=recorded.fingerprint,
        finished=wheel.finished,
        busy=recorded.build_id in busy,
    )


# --- removing -------------------------------------------------------------------------------------------------------


class _Removal:
    """Remove what was chosen. What has changed since, or what a run has come to need, is `kept`."""

    def __init__(self, house: Wheelhouse, stored: Sequence[StoredWheel]) -> None:
        self._house = house
        self._found = {wheel.path.name: wheel for wheel in stored}
        self.kept: list[RetainableWheel | Orphan] = []
        self.busy: set[BuildId] = set()

    def remove(self, wheels: Sequence[RetainableWheel], leftovers: Sequence[Orphan]) -> None:
        """Remove wheels and orphans."""
        for orphan in leftovers:
            with self._unless_busy(orphan.build_id, [orphan]):
                if not remove_orphan(self._house, orphan):
                    self.kept.append(orphan)
        if wheels:
            self._remove_wheels(wheels)

    @contextmanager
    def _unless_busy(self, build_id: BuildId | None, items: Sequence[RetainableWheel | Orphan]) -> Iterator[None]:
        """Keep what a run has come to hold since the choice: nobody waits for hours for it."""
        try:
            yield
        except Locked:
            self.busy.update([build_id] if build_id else ())
            self.kept.extend(items)

    def _remove_wheels(self, wheels: Sequence[RetainableWheel]) -> None:
        index = WheelIndex(self._house)
        of_build: dict[BuildId, list[RetainableWheel]] = {}
        for wheel in wheels:
            of_build.setdefault(BuildId(wheel.build_id), []).append(wheel)
        for build_id, own in of_build.items():
            with (
                self._unless_busy(build_id, own),
                self._house.locked(build_id, patience=0),
                self._house.changing(),
            ):
                self._remove_build(build_id, own, index)
        with self._house.changing():
            # On a full disk the pages went, and now there is room for them.
            index.add({})

    def _remove_build(self, build_id: BuildId, wheels: Sequence[RetainableWheel], index: WheelIndex) -> None:
        """Remove wheels of a build id, and its constraints if no wheel of it is left. The caller holds both locks."""
        gone = {wheel.file for wheel in wheels if self._is_same(wheel.file)}
        self.kept.extend(wheel for wheel in wheels if wheel.file not in gone)
        # First out of the index, so that no installer is sent to a wheel that goes.
        index.remove(gone)
        for file in gone:
            self._house.at(file).remove()
        own = {
            item.path.name for item in self._found.values() if item.recorded and item.recorded.build_id == build_id
        }
        # All wheels of the build id, those of other fingerprints too: they share the file.
        if gone and own <= gone:
            self._house.constraints(build_id).remove()

    def _is_same(self, file: str) -> bool:
        status = self._house.at(file).status()
        return status is not None and signature(status) == self._found[file].signature
