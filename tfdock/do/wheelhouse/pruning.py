"""Tidying up a wheelhouse: what may go by the rules of `decide/holdings`, and what killed and failed runs left.

Wheels from elsewhere stay, and so does everything of a build id that a run holds. The index is told before a wheel is
removed.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.decide.holdings import Chosen, Rules, Stock, choose
from tfdock.do import journal
from tfdock.do.wheelhouse.catalogue import Held, Recorded, held, records
from tfdock.do.wheelhouse.index import WheelIndex, signature
from tfdock.do.workspace import PULLED, Wheelhouse, file_sha256, kept_files, remove_folder
from tfdock.errors import Locked
from tfdock.inspect.simple_index import METADATA_SUFFIX
from tfdock.model import BuildId

_ABANDONED = 86400.0
"""Seconds after which a staging folder is nobody's, if no run that is known here has it."""
_TEMPORARY = re.compile(r"\..+\.\d+-\d+")
"""What `write_atomically` writes before it renames; who holds the wheelhouse knows that nobody is at it."""


Trace = frozenset[tuple[str, int, float, int]]
"""Path, inode, time and size of a file, or of a folder and all that is in it: whatever is written changes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that no wheel needs: a path in the wheelhouse, what it is, and by which it is known again.

    `build_id` is the one whose it is, None for what belongs to none.
    """

    path: Path
    what: str
    trace: Trace
    build_id: BuildId | None = None

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(size for *_, size in self.trace)

    @property
    def changed(self) -> float:
        """When it, or anything in it, was changed last, in seconds since 1970."""
        return max((changed for _, _, changed, _ in self.trace), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What went, or would go. `left` are the bytes of wheels that stay; `reached` is False where they are too many.

    `busy` are build ids that a run holds: nothing of theirs was touched.
    """

    wheels: tuple[Stock, ...]
    leftovers: tuple[Leftover, ...]
    left: int
    reached: bool
    busy: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes that went."""
        return sum(one.size for one in self.wheels) + sum(one.size for one in self.leftovers)


def prune(house: Wheelhouse, state: Path, rules: Rules, *, failed: bool = False, dry_run: bool = False) -> Pruned:
    """Remove wheels by rule, and what killed runs left; with `failed` also what is left of builds without a wheel.

    Those are logs, records, and wheels that were refused; of them what is younger than `rules.before` stays.
    `state` is where the journal of runs lies. Raises OSError.
    """
    busy = {build_id for build_id in sorted(_build_ids(house)) if not _is_free(house, build_id)}
    # Looked at first: what a run writes from here on is no leftover, whatever the wheels are found to be.
    traces = _traces(house) if failed else {}
    found = held(house, tuple)
    chosen = _chosen(found, rules, busy)
    leftovers = [*_abandoned(house, state), *_strays(house)]
    if failed:
        doomed = {one.file for one in chosen.gone}
        stays = [one for one in found if one.path.name not in doomed]
        unneeded = _of_builds_without_wheel(house, traces, stays)
        old = (one for one in unneeded if rules.before is None or one.changed < rules.before)
        leftovers += [one for one in old if one.build_id not in busy]
    work = _Work(house, found)
    if not dry_run:
        work.remove(chosen.gone, leftovers)
    kept = sum(one.size for one in chosen.gone if one in work.kept)
    return Pruned(
        wheels=tuple(one for one in chosen.gone if one not in work.kept),
        leftovers=tuple(one for one in leftovers if one not in work.kept),
        left=chosen.left + kept,
        reached=chosen.reached and (rules.max_size is None or chosen.left + kept <= rules.max_size),
        busy=tuple(sorted(busy | work.busy)),
    )


def _build_ids(house: Wheelhouse) -> set[BuildId]:
    return {BuildId(folder.parent.name) for folder in _record_folders(house)}


def _is_free(house: Wheelhouse, build_id: BuildId) -> bool:
    try:
        with house.locked(build_id, patience=0):
            return True
    except Locked:
        return False


# --- wheels ---------------------------------------------------------------------------------------------------------


def _chosen(found: Sequence[Held], rules: Rules, busy: Collection[str]) -> Chosen:
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


def _is_sound(one: Held) -> bool:
    with suppress(FileNotFoundError):
        return file_sha256(one.path) == one.sha256
    return False


def _stock(one: Held, recorded: Recorded, busy: Collection[str]) -> Stock:
    return Stock(
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

    Everything is moved aside first, which takes no time: nobody waits while hundreds of megabytes are removed.
    """

    def __init__(self, house: Wheelhouse, found: Sequence[Held]) -> None:
        self._house = house
        self._found = {one.path.name: one for one in found}
        self._aside = house.staging(f"pruned-{journal.new_run_id()}")
        self.kept: list[Stock | Leftover] = []
        self.busy: set[str] = set()

    def remove(self, wheels: Sequence[Stock], leftovers: Sequence[Leftover]) -> None:
        """Remove them, build id by build id, and what is of none at the end."""
        if not (wheels or leftovers):
            return
        self._aside.mkdir(parents=True)
        index = WheelIndex(self._house)
        with self._house.changing():
            index.leave_out(one.file for one in wheels if self._is_same(one.file))
        parts: dict[BuildId | None, list[Stock | Leftover]] = {}
        everything: list[Stock | Leftover] = [*wheels, *leftovers]
        for one in everything:
            parts.setdefault(BuildId(one.build_id) if one.build_id else None, []).append(one)
        for build_id, part in parts.items():
            self._part(build_id, part)
        stayed = {one.file: self._found[one.file].sha256 or "" for one in self.kept if isinstance(one, Stock)}
        if stayed:
            with self._house.changing():
                index.take_in({file: sha256 for file, sha256 in stayed.items() if self._is_same(file)})
        remove_folder(self._aside)

    def _part(self, build_id: BuildId | None, part: Sequence[Stock | Leftover]) -> None:
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

    def _move(self, one: Stock | Leftover) -> None:
        path = self._house.root / one.file if isinstance(one, Stock) else one.path
        same = self._is_same(one.file) if isinstance(one, Stock) else self._is_still_left(one)
        if not same:
            self.kept.append(one)
            return
        with suppress(FileNotFoundError):
            path.rename(self._aside / f"{len(list(self._aside.iterdir()))}-{path.name}")

    def _is_still_left(self, one: Leftover) -> bool:
        """Nobody has written to it since; and METADATA still lacks its wheel."""
        lacking = one.path.suffix != METADATA_SUFFIX or not one.path.with_suffix("").exists()
        return lacking and _trace(one.path) == one.trace

    def _is_same(self, file: str) -> bool:
        with suppress(FileNotFoundError):
            return signature((self._house.root / file).lstat()) == self._found[file].signature
        return False

    def _without_constraints(self, build_id: BuildId, part: Sequence[Stock | Leftover]) -> None:
        """Where no wheel of a build id is left, nothing is to be held to."""
        gone = {one.file for one in part if isinstance(one, Stock) and one not in self.kept}
        own = {one.path.name for one in self._found.values() if one.recorded and one.recorded.build_id == build_id}
        if gone and own <= gone:
            self._house.constraints(build_id).unlink(missing_ok=True)


# --- what is left of builds -----------------------------------------------------------------------------------------


def _record_folders(house: Wheelhouse) -> list[Path]:
    builds = (one for one in _entries(house.root / ".tfdock") if one.name.startswith("tf"))
    return [one for build in builds for one in _entries(build) if one.is_dir() and not one.is_symlink()]


def _traces(house: Wheelhouse) -> dict[Path, Trace]:
    """By which the records' folders, and what is in each, are known again."""
    folders = _record_folders(house)
    return {path: _trace(path) for folder in folders for path in (folder, *_entries(folder))}


def _of_builds_without_wheel(
    house: Wheelhouse, traces: Mapping[Path, Trace], stays: Sequence[Held]
) -> Iterator[Leftover]:
    """Folders of builds none of whose wheels is here; in the others logs of failed tries and refused wheels."""
    there = {(one.path.name, one.sha256) for one in stays if one.recorded}
    kept = {
        one.folder: one for one in records(house) if any((file, sha256) in there for file, sha256, _ in one.wheels)
    }
    for folder in _record_folders(house):
        needed = _needed(kept[folder]) if folder in kept else None
        gone = [folder] if needed is None else [one for one in _entries(folder) if one.name not in needed]
        for path in gone:
            if path in traces:
                what = _called(path, whole=needed is None)
                yield Leftover(path=path, what=what, trace=traces[path], build_id=BuildId(folder.parent.name))


def _needed(one: Recorded) -> set[str]:
    """The files of a build whose wheel is here."""
    return {"record.json", PULLED, str(one.record.get("log")), *kept_files(one.record).values()}


def _called(path: Path, *, whole: bool) -> str:
    if whole:
        return "record and logs of a build without wheel" if (path / "record.json").is_file() else "logs"
    return "refused wheel" if path.name == "refused" else "of a build that did not end well"


def _abandoned(house: Wheelhouse, state: Path) -> Iterator[Leftover]:
    """Staging folders of runs that are over. A run elsewhere may not be known here: they must be old as well."""
    alive = journal.living(state)
    for folder in _entries(house.root / ".tfdock" / "staging"):
        one = Leftover(path=folder, what="staging of a run that was killed", trace=_trace(folder))
        if folder.name not in alive and one.changed < time.time() - _ABANDONED:
            yield one


def _strays(house: Wheelhouse) -> Iterator[Leftover]:
    """Half written files of ours, and METADATA whose wheel has gone."""
    for path in (*_entries(house.root), *_files(house.root / "simple")):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            yield Leftover(path=path, what="half written file", trace=_trace(path))
        elif path.name.endswith(f".whl{METADATA_SUFFIX}") and not path.with_suffix("").exists():
            yield Leftover(path=path, what="metadata without its wheel", trace=_trace(path))


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing, where somebody has just removed it."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files(path: Path) -> list[Path]:
    """A path, and all that is below it: what goes meanwhile is left out."""
    below = [Path(folder) / name for folder, names, files in os.walk(path) for name in (*names, *files)]
    return [path, *below]


def _trace(path: Path) -> Trace:
    found = []
    for one in _files(path):
        with suppress(FileNotFoundError):
            state = one.lstat()
            size = 0 if stat.S_ISDIR(state.st_mode) else state.st_size
            found.append((str(one), state.st_ino, state.st_mtime, size))
    return frozenset(found)
