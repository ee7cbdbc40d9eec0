"""Find files in a wheelhouse that no wheel needs: remains of killed runs, failed builds and broken pulls."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import Locked
from tfdock.host.untrusted_folders import FoundFile, walk
from tfdock.run import journal
from tfdock.types import BuildId
from tfdock.wheelhouse.catalogue import StoredRecord, StoredWheel, records
from tfdock.wheelhouse.simple_index import METADATA_SUFFIX
from tfdock.wheelhouse.store import PULLED, Wheelhouse, kept_files

_ABANDONED = 86400.0
"""Seconds after which a staging folder is nobody's, if no run that is known here has it."""
_UNCONTINUED = 7 * 86400.0
"""Seconds after which nobody is taken to go on with a pull that broke off."""
_TEMPORARY = re.compile(
    r"\.(?:index\.html|index\.json|[0-9a-f]{64}\.json|.+\.constraints\.txt|.+\.whl\.metadata)\.[0-9]+-[0-9]+"
)
"""What `write_atomically` writes before it renames; who holds the wheelhouse knows that nobody is at it."""

_HALF_WRITTEN = re.compile(r"\..+\.[0-9]+-[0-9]+")
"""The same in the folder of a build, where all is ours; who holds the build id knows that nobody is at it."""
_HALF = "half written file"

Trace = frozenset[tuple[str, int, float, int]]
"""Path, inode, time and size of a file, or of a folder and all that is in it: whatever is written changes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
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

    def is_still_there(self) -> bool:
        """Nobody has written to it since; and METADATA still lacks its wheel."""
        lacking = self.path.suffix != METADATA_SUFFIX or not self.path.with_suffix("").exists()
        return lacking and _trace(self.path) == self.trace


def joined(some: Sequence[Orphan], others: Sequence[Orphan]) -> list[Orphan]:
    """All of them, each once: what lies in a folder goes with that."""
    paths = {one.path for one in others}
    return [*(one for one in some if paths.isdisjoint((one.path, *one.path.parents))), *others]


def build_ids(house: Wheelhouse) -> set[BuildId]:
    """Those that anything is kept of."""
    return {BuildId(folder.parent.name) for folder in _record_folders(house)}


def left_behind(house: Wheelhouse, state: Path, busy: Collection[str]) -> Iterator[Orphan]:
    """What killed runs and pulls that broke off have left, but for what a run may still be at.

    `state` is where the journal of runs lies; `busy` are the build ids that are held.
    """
    yield from _abandoned(house, state, busy)
    yield from _strays(house)
    yield from _broken_off(house)


def half_written(house: Wheelhouse) -> Iterator[Orphan]:
    """Files that were never written to their end, as far as nobody holds what they belong to; raises OSError."""
    if any(one.what == _HALF for one in _strays(house)):
        with house.changing():
            found = [one for one in _strays(house) if one.what == _HALF]
        yield from found
    for folder in _record_folders(house):
        files = [path for path in _entries(folder) if _HALF_WRITTEN.fullmatch(path.name) and path.is_file()]
        build_id = BuildId(folder.parent.name)
        # Another user's folder, in a wheelhouse that several share, is that user's to look after.
        with suppress(Locked, PermissionError), house.locked(build_id, patience=0) if files else nullcontext():
            found = [Orphan(path=path, what=_HALF, trace=_trace(path), build_id=build_id) for path in files]
            yield from (one for one in found if one.trace)


def remove_half_written(house: Wheelhouse, one: Orphan) -> None:
    """Remove what `half_written` found, unless it has changed since; raises Locked where somebody is at it."""
    with house.locked(one.build_id, patience=0) if one.build_id else house.changing():
        if one.is_still_there():
            one.path.unlink()


# --- of builds ------------------------------------------------------------------------------------------------------


def traces(house: Wheelhouse) -> dict[Path, Trace]:
    """By which the records' folders, and what is in each, are known again."""
    folders = _record_folders(house)
    return {path: _trace(path) for folder in folders for path in (folder, *_entries(folder))}


def of_builds_without_wheel(
    house: Wheelhouse, traces: Mapping[Path, Trace], stays: Sequence[StoredWheel]
) -> Iterator[Orphan]:
    """Folders of builds none of whose wheels is here; in the others logs of failed tries and refused wheels."""
    there = {(one.path.name, one.sha256) for one in stays if one.recorded}
    known = {one.folder: one for one in records(house)}
    for folder in _record_folders(house):
        if folder not in known and (folder / "record.json").exists():
            continue  # damaged, or a later version's: nobody can say what it is the record of
        stays_here = folder in known and any((file, sha256) in there for file, sha256, _ in known[folder].wheels)
        begun = {path.name for path in _parts(folder) if not _is_uncontinued(path)}
        whole = not stays_here and not begun
        needed = begun | (_needed(known[folder]) if stays_here else set())
        for path in [folder] if whole else [one for one in _entries(folder) if one.name not in needed]:
            if path in traces:
                what = _called(path, whole=whole)
                yield Orphan(path=path, what=what, trace=traces[path], build_id=BuildId(folder.parent.name))


def _needed(one: StoredRecord) -> set[str]:
    """The files of a build whose wheel is here."""
    return {"record.json", PULLED, str(one.record.get("log")), *kept_files(one.record).values()}


def _called(path: Path, *, whole: bool) -> str:
    if whole:
        return "record and logs of a build without wheel" if (path / "record.json").is_file() else "logs"
    return "refused wheel" if path.name == "refused" else "of a build that did not end well"


# --- of runs and pulls ----------------------------------------------------------------------------------------------


def _abandoned(house: Wheelhouse, state: Path, busy: Collection[str]) -> Iterator[Orphan]:
    """Staging folders of runs that are over.

    A run of another user, or on another machine, is not known here. It holds the build id that its log is kept with;
    what has no log must at least be old.
    """
    alive = journal.living(state)
    logs = {path.name: folder.parent.name for folder in _record_folders(house) for path in _entries(folder)}
    for folder in _entries(house.root / ".tfdock" / "staging"):
        one = Orphan(path=folder, what="staging of a run that was killed", trace=_trace(folder))
        lives = folder.name in alive or logs.get(f"{folder.name}.log") in busy
        if not lives and one.changed < time.time() - _ABANDONED:
            yield one


def _broken_off(house: Wheelhouse) -> Iterator[Orphan]:
    """What has arrived of wheels whose pull broke off, once it is so old that nobody will go on with it."""
    for folder in _record_folders(house):
        build_id = BuildId(folder.parent.name)
        for path in filter(_is_uncontinued, _parts(folder)):
            yield Orphan(path=path, what="of a pull that broke off", trace=_trace(path), build_id=build_id)


def _parts(folder: Path) -> list[Path]:
    """What pulls keep beside a record while they are under way, and when they break off."""
    return [path for path in _entries(folder) if path.match("pull-*.part")]


def _is_uncontinued(part: Path) -> bool:
    with suppress(FileNotFoundError):
        return part.lstat().st_mtime < time.time() - _UNCONTINUED
    return False


def _strays(house: Wheelhouse) -> Iterator[Orphan]:
    """Half written files of ours, and METADATA whose wheel has gone."""
    own = house.root / ".tfdock"
    pages = sorted((house.root / "simple").rglob("*"))
    for path in (*_entries(house.root), *pages, *_entries(own), *_entries(own / "coverage")):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            yield Orphan(path=path, what=_HALF, trace=_trace(path))
        elif path.name.endswith(f".whl{METADATA_SUFFIX}") and not path.with_suffix("").exists():
            yield Orphan(path=path, what="metadata without its wheel", trace=_trace(path))


# --- what lies where ------------------------------------------------------------------------------------------------


def _record_folders(house: Wheelhouse) -> list[Path]:
    builds = (one for one in _entries(house.root / ".tfdock") if one.name.startswith("tf"))
    return [one for build in builds for one in _entries(build) if one.is_dir() and not one.is_symlink()]


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing, where somebody has just removed it."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _trace(path: Path) -> Trace:
    """What is there, and all that is below it: what goes meanwhile is left out. Containers may have written it."""
    with suppress(FileNotFoundError):
        found = [FoundFile("", path.lstat()), *walk(path)]
        return frozenset((f"{path}/{one.name}", *_traits(one.status)) for one in found)
    return frozenset()


def _traits(state: os.stat_result) -> tuple[int, float, int]:
    return state.st_ino, state.st_mtime, 0 if stat.S_ISDIR(state.st_mode) else state.st_size
