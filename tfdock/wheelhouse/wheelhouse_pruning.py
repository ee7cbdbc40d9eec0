"""Prune a wheelhouse by rules of retention, and remove leftovers of killed runs.

Wheels of other programs are kept; so are all files of a build id that a run is using. A wheel is removed from the
index before its file is removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import Locked
from tfdock.host.untrusted_folders import NotPlain, UntrustedPath
from tfdock.types import BuildId
from tfdock.wheelhouse.catalogue import StoredWheel, list_wheels
from tfdock.wheelhouse.index import WheelIndex, signature
from tfdock.wheelhouse.orphans import Orphan, find_orphans, remove_orphan
from tfdock.wheelhouse.store import Wheelhouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of retention. A wheel is removed if it meets every given rule.

    `before`: the wheel was built before this time. `max_size`: the wheel and all remaining wheels take more bytes
    than this. `keep`: the wheel is not from one of the N newest builds of its build id. None: the rule is not given.
    """

    before: float | None = None
    max_size: int | None = None
    keep: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedWheelhouse:
    """The files that were removed, or that would be removed.

    `left`: the bytes of the remaining wheels. `reached`: whether `left` is within the limit `max_size`, if there is a
    limit. `busy`: the build ids that a run is using; the files of these builds were not touched.
    """

    wheels: tuple[StoredWheel, ...]
    leftovers: tuple[Orphan, ...]
    left: int
    reached: bool
    busy: tuple[str, ...]

    @property
    def size(self) -> int:
        """The size of all removed files, in bytes."""
        return sum(item.size for item in self.wheels) + sum(item.size for item in self.leftovers)


def prune(house: Wheelhouse, state: Path, rules: Rules, *, dry_run: bool = False) -> PrunedWheelhouse:
    """Remove wheels by rule, and leftovers of killed runs and broken pulls. Raises OSError.

    `state` is the folder of the journal of runs.
    """
    build_ids = sorted({BuildId(folder.parent.name) for folder in house.record_folders()})
    busy = {build_id for build_id in build_ids if not _is_free(house, build_id)}
    # `tuple`: no accelerators are needed to judge foreign wheels, which stay in any case.
    wheels = list_wheels(house, tuple)
    gone, left = _choose_sound(wheels, rules, busy)
    leftovers = [orphan for orphan in find_orphans(house, state, busy) if orphan.build_id not in busy]
    removal = _Removal(house, wheels)
    if not dry_run:
        removal.remove(gone, leftovers)
    left += sum(wheel.size for wheel in gone if wheel in removal.kept)
    return PrunedWheelhouse(
        wheels=tuple(wheel for wheel in gone if wheel not in removal.kept),
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


# --- which wheels go ------------------------------------------------------------------------------------------------


def choose(
    wheels: Iterable[StoredWheel], rules: Rules, staying: Collection[str] = ()
) -> tuple[list[StoredWheel], int]:
    """Return the wheels to remove, the oldest first, and the bytes that stay.

    If no rule is given, no wheel is removed. Wheels that tfdock did not build, and the files in `staying`, are never
    removed, but their bytes are counted.
    """
    # Equal times are sorted by name: a dry run and the real run choose the same wheels.
    oldest_first = sorted(wheels, key=lambda wheel: (wheel.finished, wheel.path.name))
    own = [wheel for wheel in oldest_first if wheel.build_id]
    newest: dict[str | None, set[str | None]] = defaultdict(set)
    for wheel in reversed(own):  # so that the latest wheel of a build decides its age
        if len(newest[wheel.build_id]) < (rules.keep or 0):
            newest[wheel.build_id].add(wheel.fingerprint)
    left = sum(wheel.size for wheel in oldest_first)
    gone = []
    for wheel in own if rules != Rules() else ():
        too_large = rules.max_size is None or left > rules.max_size
        old = rules.before is None or wheel.finished < rules.before
        spared = wheel.path.name in staying or wheel.fingerprint in newest[wheel.build_id]
        if too_large and old and not spared:
            gone.append(wheel)
            left -= wheel.size
    return gone, left


def _choose_sound(
    wheels: Sequence[StoredWheel], rules: Rules, busy: Collection[BuildId]
) -> tuple[list[StoredWheel], int]:
    """Choose until every chosen wheel matches its record, byte for byte. Other wheels are not tfdock's."""
    staying = {wheel.path.name for wheel in wheels if wheel.build_id in busy}
    sound: set[str] = set()
    while True:
        gone, left = choose(wheels, rules, staying)
        unsure = [wheel for wheel in gone if wheel.path.name not in sound]
        if not unsure:
            return gone, left
        for wheel in unsure:
            if _is_sound(wheel):
                sound.add(wheel.path.name)
            else:
                # The wheel stays, and its bytes still count for the limit.
                staying.add(wheel.path.name)


def _is_sound(wheel: StoredWheel) -> bool:
    """Return whether a wheel has the bytes that a build published. A link of another program is not removed."""
    with suppress(FileNotFoundError, NotPlain):
        return UntrustedPath(wheel.path.parent, wheel.path.name).sha256() == wheel.sha256
    return False


# --- removing -------------------------------------------------------------------------------------------------------


class _Removal:
    """Remove the chosen files. Files that have changed since, or that a run now needs, are in `kept`."""

    def __init__(self, house: Wheelhouse, stored: Sequence[StoredWheel]) -> None:
        self._house, self._stored = house, stored
        self.kept: list[StoredWheel | Orphan] = []
        self.busy: set[BuildId] = set()

    def remove(self, wheels: Sequence[StoredWheel], leftovers: Sequence[Orphan]) -> None:
        """Remove wheels and orphans."""
        for orphan in leftovers:
            with self._unless_busy(orphan.build_id, [orphan]):
                if not remove_orphan(self._house, orphan):
                    self.kept.append(orphan)
        if wheels:
            self._remove_wheels(wheels)

    @contextmanager
    def _unless_busy(self, build_id: BuildId | None, items: Sequence[StoredWheel | Orphan]) -> Iterator[None]:
        """Keep files that a run has locked since they were chosen: waiting could take hours."""
        try:
            yield
        except Locked:
            self.busy.update([build_id] if build_id else ())
            self.kept.extend(items)

    def _remove_wheels(self, wheels: Sequence[StoredWheel]) -> None:
        index = WheelIndex(self._house)
        for build_id in dict.fromkeys(wheel.build_id for wheel in wheels if wheel.build_id):
            own = [wheel for wheel in wheels if wheel.build_id == build_id]
            with (
                self._unless_busy(build_id, own),
                self._house.locked(build_id, patience=0),
                self._house.changing(),
            ):
                self._remove_build(build_id, own, index)
        with self._house.changing():
            # On a full disk `index.remove` has removed the pages. Now there is space for them.
            index.add({})

    def _remove_build(self, build_id: BuildId, wheels: Sequence[StoredWheel], index: WheelIndex) -> None:
        """Remove wheels of a build id, and its constraints if no wheel of it is left. The caller holds both locks."""
        gone = {wheel.path.name for wheel in wheels if self._is_same(wheel)}
        self.kept.extend(wheel for wheel in wheels if wheel.path.name not in gone)
        # Remove from the index first, so that no installer requests a removed wheel.
        index.remove(gone)
        for file in gone:
            self._house.at(file).remove()
        own = {wheel.path.name for wheel in self._stored if wheel.build_id == build_id}
        # All wheels of the build id share the file, even with other fingerprints.
        if gone and own <= gone:
            self._house.constraints(build_id).remove()

    def _is_same(self, wheel: StoredWheel) -> bool:
        status = self._house.at(wheel.path.name).status()
        return status is not None and signature(status) == wheel.signature
