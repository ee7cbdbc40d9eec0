"""Prune a wheelhouse by the rules of `wheelhouse/retention`, and remove what failed runs left.

Wheels from elsewhere stay, and so does everything of a build id that a run holds. A wheel leaves the index before it
is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from tfdock.errors import Locked
from tfdock.host.files import FULL
from tfdock.host.untrusted_folders import NotPlain, UntrustedPath
from tfdock.run import journal
from tfdock.types import BuildId
from tfdock.wheelhouse.catalogue import StoredRecord, StoredWheel, list_wheels
from tfdock.wheelhouse.index import WheelIndex, signature
from tfdock.wheelhouse.orphans import ASIDE, Orphan, build_ids, find_orphans, find_without_wheel, merge, traces
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


def prune(
    house: Wheelhouse, state: Path, rules: Rules, *, failed: bool = False, dry_run: bool = False
) -> PrunedWheelhouse:
    """Remove wheels by rule, and what killed runs left; with `failed` also what is left of builds without a wheel.

    Those are logs, records, and wheels that were refused. What is younger than `rules.before` stays. `state` is the
    folder of the journal of runs. Raises OSError.
    """
    busy = {build_id for build_id in sorted(build_ids(house)) if not _is_free(house, build_id)}
    # Traced first: what a run writes from here on is no orphan, whichever wheels are found afterwards.
    traces_before = traces(house) if failed else {}
    # `tuple`: no accelerators are needed to judge foreign wheels, which stay in any case.
    wheels = list_wheels(house, tuple)
    chosen = _choose_sound(wheels, rules, busy)
    leftovers = list(find_orphans(house, state, busy))
    if failed:
        doomed = {wheel.file for wheel in chosen.gone}
        kept_wheels = [wheel for wheel in wheels if wheel.path.name not in doomed]
        unneeded = find_without_wheel(house, traces_before, kept_wheels)
        old = [orphan for orphan in unneeded if rules.before is None or orphan.changed < rules.before]
        leftovers = merge(leftovers, old)
    leftovers = [orphan for orphan in leftovers if orphan.build_id not in busy]
    removal = _Removal(house, wheels)
    if not dry_run:
        removal.remove(chosen.gone, leftovers)
    kept_size = sum(wheel.size for wheel in chosen.gone if wheel in removal.kept)
    return PrunedWheelhouse(
        wheels=tuple(wheel for wheel in chosen.gone if wheel not in removal.kept),
        leftovers=tuple(orphan for orphan in leftovers if orphan not in removal.kept),
        left=chosen.left + kept_size,
        reached=chosen.reached and (rules.max_size is None or chosen.left + kept_size <= rules.max_size),
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
    """Remove what was chosen. What has changed since, or what a run has come to need, is `kept`.

    Everything is moved aside first, which takes no time: nobody waits while hundreds of megabytes are removed. Only
    on a full disk is it removed at once.
    """

    def __init__(self, house: Wheelhouse, stored: Sequence[StoredWheel]) -> None:
        self._house = house
        self._found = {wheel.path.name: wheel for wheel in stored}
        self._aside: UntrustedPath | None = house.staged / f"{ASIDE}{journal.new_run_id()}"
        self._moved = count()
        self.kept: list[RetainableWheel | Orphan] = []
        self.busy: set[str] = set()

    def remove(self, wheels: Sequence[RetainableWheel], leftovers: Sequence[Orphan]) -> None:
        """Remove wheels and orphans, build id by build id; those without a build id come last."""
        if not (wheels or leftovers):
            return
        self._make_room_aside()
        index = WheelIndex(self._house)
        with self._house.changing():
            # First out of the index, so that no installer is sent to a wheel that goes.
            index.remove(item.file for item in wheels if self._is_same(item.file))
        parts: dict[BuildId | None, list[RetainableWheel | Orphan]] = {}
        everything: list[RetainableWheel | Orphan] = [*wheels, *leftovers]
        for item in everything:
            parts.setdefault(BuildId(item.build_id) if item.build_id else None, []).append(item)
        for build_id, items in parts.items():
            self._remove_build(build_id, items)
        if self._aside:
            self._aside.remove_folder()
        # What stayed after all comes back into the index.
        stayed = {
            item.file: self._found[item.file].sha256 or "" for item in self.kept if isinstance(item, RetainableWheel)
        }
        with self._house.changing():
            index.add({file: sha256 for file, sha256 in stayed.items() if self._is_same(file)})

    def _make_room_aside(self) -> None:
        try:
            if self._aside:
                self._aside.make(private=True)
        except OSError as error:
            # On a full disk not even a folder can be made, and that is when room is needed.
            if error.errno not in FULL:
                raise
            self._aside = None

    def _remove_build(self, build_id: BuildId | None, items: Sequence[RetainableWheel | Orphan]) -> None:
        with ExitStack() as locks:
            try:
                if build_id is not None:
                    # Taken anew: a run may have begun since the choice. Nobody waits for hours for it.
                    locks.enter_context(self._house.locked(build_id, patience=0))
            except Locked:
                self.busy.add(str(build_id))
                self.kept.extend(items)
                return
            locks.enter_context(self._house.changing())
            for item in items:
                self._remove_item(item)
            if build_id is not None:
                self._remove_constraints(build_id, items)

    def _remove_item(self, item: RetainableWheel | Orphan) -> None:
        path = self._house.at(item.file) if isinstance(item, RetainableWheel) else item.path
        same = self._is_same(item.file) if isinstance(item, RetainableWheel) else item.is_still_there()
        if not same:
            self.kept.append(item)
            return
        with suppress(FileNotFoundError):
            if self._aside:
                # A number: files of several folders may have the same name.
                path.move(self._aside / str(next(self._moved)))
            elif path.is_folder():
                path.remove_folder()
            else:
                path.remove()

    def _is_same(self, file: str) -> bool:
        status = self._house.at(file).status()
        return status is not None and signature(status) == self._found[file].signature

    def _remove_constraints(self, build_id: BuildId, items: Sequence[RetainableWheel | Orphan]) -> None:
        """Remove the constraints of a build id that has no wheel left."""
        gone = {item.file for item in items if isinstance(item, RetainableWheel) and item not in self.kept}
        own = {
            item.path.name for item in self._found.values() if item.recorded and item.recorded.build_id == build_id
        }
        # All wheels of the build id, those of other fingerprints too: they share the file.
        if gone and own <= gone:
            self._house.constraints(build_id).remove()
