"""Prune a wheelhouse by the rules of `wheelhouse/retention`, and remove what failed runs left.

Wheels from elsewhere stay, and so does everything of a build id that a run holds. The index is told before a wheel is
removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from tfdock.errors import Locked
from tfdock.host.files import FULL, file_sha256, make_private
from tfdock.host.untrusted_folders import remove_folder
from tfdock.run import journal
from tfdock.types import BuildId
from tfdock.wheelhouse.catalogue import StoredRecord, StoredWheel, held
from tfdock.wheelhouse.index import WheelIndex, signature
from tfdock.wheelhouse.orphans import Orphan, build_ids, joined, left_behind, of_builds_without_wheel, traces
from tfdock.wheelhouse.retention import RetainableWheel, RetentionChoice, Rules, choose
from tfdock.wheelhouse.store import Wheelhouse


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedWheelhouse:
    """What went, or would go. `left` are the bytes of wheels that stay; `reached` is False where they are too many.

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
        return sum(one.size for one in self.wheels) + sum(one.size for one in self.leftovers)


def prune(
    house: Wheelhouse, state: Path, rules: Rules, *, failed: bool = False, dry_run: bool = False
) -> PrunedWheelhouse:
    """Remove wheels by rule, and what killed runs left; with `failed` also what is left of builds without a wheel.

    Those are logs, records, and wheels that were refused; of them what is younger than `rules.before` stays.
    `state` is where the journal of runs lies. Raises OSError.
    """
    busy = {build_id for build_id in sorted(build_ids(house)) if not _is_free(house, build_id)}
    # Looked at first: what a run writes from here on is no leftover, whatever the wheels are found to be.
    seen = traces(house) if failed else {}
    found = held(house, tuple)
    chosen = _chosen(found, rules, busy)
    leftovers = list(left_behind(house, state, busy))
    if failed:
        doomed = {one.file for one in chosen.gone}
        stays = [one for one in found if one.path.name not in doomed]
        unneeded = of_builds_without_wheel(house, seen, stays)
        leftovers = joined(leftovers, [one for one in unneeded if rules.before is None or one.changed < rules.before])
    leftovers = [one for one in leftovers if one.build_id not in busy]
    work = _Work(house, found)
    if not dry_run:
        work.remove(chosen.gone, leftovers)
    kept = sum(one.size for one in chosen.gone if one in work.kept)
    return PrunedWheelhouse(
        wheels=tuple(one for one in chosen.gone if one not in work.kept),
        leftovers=tuple(one for one in leftovers if one not in work.kept),
        left=chosen.left + kept,
        reached=chosen.reached and (rules.max_size is None or chosen.left + kept <= rules.max_size),
        busy=tuple(sorted(busy | work.busy)),
    )


def _is_free(house: Wheelhouse, build_id: BuildId) -> bool:
    try:
        with house.locked(build_id, patience=0):
            return True
    except Locked:
        return False


# --- wheels ---------------------------------------------------------------------------------------------------------


def _chosen(found: Sequence[StoredWheel], rules: Rules, busy: Collection[str]) -> RetentionChoice:
    """Choose until all that were chosen are what their records say, byte for byte; what is not is not ours."""
    own = {one.path.name: one for one in found if one.recorded}
    others = sum(one.size for one in found if not one.recorded)
    stock = {file: _stock(one, one.recorded, busy) for file, one in own.items() if one.recorded}
    sound: set[str] = set()
    while True:
        chosen = choose(stock.values(), rules, others=others)
        unsure = [one.file for one in chosen.gone if one.file not in sound]
        if not unsure:
            return chosen
        for file in unsure:
            if _is_sound(own[file]):
                sound.add(file)
            else:
                stock[file] = replace(stock[file], busy=True)


def _is_sound(one: StoredWheel) -> bool:
    """Whether it is what a build published; a link that somebody put there is not, wherever it leads."""
    with suppress(FileNotFoundError):
        return not one.path.is_symlink() and file_sha256(one.path) == one.sha256
    return False


def _stock(one: StoredWheel, recorded: StoredRecord, busy: Collection[str]) -> RetainableWheel:
    return RetainableWheel(
        file=one.path.name,
        size=one.size,
        build_id=recorded.build_id,
        fingerprint=recorded.fingerprint,
        finished=one.finished,
        busy=recorded.build_id in busy,
    )


# --- removing -------------------------------------------------------------------------------------------------------


class _Work:
    """Removes what was chosen, unless it has changed since, or a run has come to need it: that is `kept`.

    Everything is moved aside first, which takes no time: nobody waits while hundreds of megabytes are removed. Only
    where the disk has no room for that is it removed at once.
    """

    def __init__(self, house: Wheelhouse, found: Sequence[StoredWheel]) -> None:
        self._house = house
        self._found = {one.path.name: one for one in found}
        self._aside: Path | None = house.staging(f"pruned-{journal.new_run_id()}")
        self._moved = count()
        self.kept: list[RetainableWheel | Orphan] = []
        self.busy: set[str] = set()

    def remove(self, wheels: Sequence[RetainableWheel], leftovers: Sequence[Orphan]) -> None:
        """Remove them, build id by build id, and what is of none at the end."""
        if not (wheels or leftovers):
            return
        self._make_room_aside()
        index = WheelIndex(self._house)
        with self._house.changing():
            index.leave_out(one.file for one in wheels if self._is_same(one.file))
        parts: dict[BuildId | None, list[RetainableWheel | Orphan]] = {}
        everything: list[RetainableWheel | Orphan] = [*wheels, *leftovers]
        for one in everything:
            parts.setdefault(BuildId(one.build_id) if one.build_id else None, []).append(one)
        for build_id, part in parts.items():
            self._part(build_id, part)
        if self._aside:
            remove_folder(self._aside)
        stayed = {
            one.file: self._found[one.file].sha256 or "" for one in self.kept if isinstance(one, RetainableWheel)
        }
        with self._house.changing():
            index.take_in({file: sha256 for file, sha256 in stayed.items() if self._is_same(file)})

    def _make_room_aside(self) -> None:
        try:
            if self._aside:
                make_private(self._aside.parent)
                self._aside.mkdir()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._aside = None

    def _part(self, build_id: BuildId | None, part: Sequence[RetainableWheel | Orphan]) -> None:
        with ExitStack() as locks:
            try:
                if build_id is not None:
                    locks.enter_context(self._house.locked(build_id, patience=0))
            except Locked:
                self.busy.add(str(build_id))
                self.kept.extend(part)
                return
            locks.enter_context(self._house.changing())
            for one in part:
                self._move(one)
            if build_id is not None:
                self._without_constraints(build_id, part)

    def _move(self, one: RetainableWheel | Orphan) -> None:
        path = self._house.root / one.file if isinstance(one, RetainableWheel) else one.path
        same = self._is_same(one.file) if isinstance(one, RetainableWheel) else one.is_still_there()
        if not same:
            self.kept.append(one)
            return
        with suppress(FileNotFoundError):
            if self._aside:
                path.rename(self._aside / str(next(self._moved)))
            elif path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink()

    def _is_same(self, file: str) -> bool:
        with suppress(FileNotFoundError):
            return signature((self._house.root / file).lstat()) == self._found[file].signature
        return False

    def _without_constraints(self, build_id: BuildId, part: Sequence[RetainableWheel | Orphan]) -> None:
        """Where no wheel of a build id is left, nothing is to be held to."""
        gone = {one.file for one in part if isinstance(one, RetainableWheel) and one not in self.kept}
        own = {one.path.name for one in self._found.values() if one.recorded and one.recorded.build_id == build_id}
        if gone and own <= gone:
            self._house.constraints(build_id).unlink(missing_ok=True)
