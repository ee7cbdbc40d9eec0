"""Find and remove files in a wheelhouse that no wheel needs: remains of killed runs and broken pulls."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import Locked
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.run import journal
from tfdock.types import BuildId
from tfdock.wheelhouse.simple_index import METADATA_SUFFIX
from tfdock.wheelhouse.store import Wheelhouse

#: Prefix of a folder that earlier versions moved wheels into before they removed them; a run id follows.
_ASIDE = "pruned-"
_ABANDONED = 86400.0  #: Seconds after which a staging folder counts as abandoned, if no known run owns it.
_UNCONTINUED = 7 * 86400.0  #: Seconds after which a broken pull counts as abandoned.
#: Temporary names of `write_atomically`. While the wheelhouse is locked, no process writes them.
_TEMPORARY = re.compile(
    r"\.(?:index\.html|index\.json|[0-9a-f]{64}\.json|.+\.constraints\.txt|.+\.whl\.metadata)\.[0-9]+-[0-9]+"
)

#: Temporary names in the folder of a build, where tfdock writes all files.
#:
#: While the build id is locked, no process writes them.
_HALF_WRITTEN = re.compile(r"\..+\.[0-9]+-[0-9]+")
_HALF_KIND = "half written file"
_STAGING_KIND = "staging folder of a killed run"

#: Path, inode, time and size of a file, or of a folder and all its contents. Every write changes the trace.
Trace = frozenset[tuple[str, int, float, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A path in the wheelhouse that no wheel needs, its kind as text, and a `trace` to detect changes.

    `build_id` is the build id of the path, or None.
    """

    path: UntrustedPath
    kind: str
    trace: Trace
    build_id: BuildId | None = None

    @property
    def size(self) -> int:
        """The size of all files of the orphan, in bytes."""
        return sum(size for *_, size in self.trace)

    @property
    def changed(self) -> float:
        """The time of the last change in the orphan, in seconds since 1970."""
        return max((changed for _, _, changed, _ in self.trace), default=0.0)

    def is_still_there(self) -> bool:
        """Return whether the orphan is unchanged. METADATA must still lack its wheel."""
        return not _has_wheel(self.path) and _trace_of(self.path) == self.trace


def find_orphans(house: Wheelhouse, state: Path, busy: Collection[str]) -> Iterator[Orphan]:
    """Yield leftovers of killed runs and broken pulls, except leftovers that a run may still use.

    `state` is the folder of the journal of runs; `busy` are the build ids that runs are using.
    """
    yield from _abandoned_staging(house, state, busy)
    yield from _stray_files(house)
    yield from _broken_pulls(house)


def find_half_written(house: Wheelhouse) -> Iterator[Orphan]:
    """Yield files whose writing was interrupted, unless a run holds their build or wheelhouse; raise OSError."""
    # Look without the lock first: the lock is taken only if there is something to remove.
    if any(orphan.kind == _HALF_KIND for orphan in _stray_files(house)):
        with house.changing():
            # Look again with the lock: a file that was being written has its final name by now.
            orphans = [orphan for orphan in _stray_files(house) if orphan.kind == _HALF_KIND]
        yield from orphans
    for folder in house.record_folders():
        files = [path for path in folder.entries() if _HALF_WRITTEN.fullmatch(path.name) and path.is_file()]
        build_id = BuildId(folder.parent.name)
        # In a shared wheelhouse, each user cleans up their own folders.
        with suppress(Locked, PermissionError), house.locked(build_id, patience=0) if files else nullcontext():
            orphans = [Orphan(path=path, kind=_HALF_KIND, trace=_trace_of(path), build_id=build_id) for path in files]
            yield from (orphan for orphan in orphans if orphan.trace)


def remove_orphan(house: Wheelhouse, orphan: Orphan) -> bool:
    """Remove an orphan. Return False, and keep it, if it has changed. Raise Locked if a run uses it, or OSError."""
    with _lock_of(house, orphan):
        if not orphan.is_still_there():
            return False
        if orphan.path.is_folder():
            orphan.path.remove_folder()
        else:
            orphan.path.remove()
        return True


def _lock_of(house: Wheelhouse, orphan: Orphan) -> AbstractContextManager[None]:
    # No process uses the folder of a killed run. So no lock: nobody should wait while gigabytes are removed.
    if orphan.kind == _STAGING_KIND:
        return nullcontext()
    return house.locked(orphan.build_id, patience=0) if orphan.build_id else house.changing()


# --- of runs and pulls ----------------------------------------------------------------------------------------------


def _abandoned_staging(house: Wheelhouse, state: Path, busy: Collection[str]) -> Iterator[Orphan]:
    """Yield staging folders of runs that have ended.

    The journal does not list runs of other users or machines. But a run holds the build id whose folder has its log.
    A staging folder without a log must at least be old.
    """
    alive = journal.living_runs(state)
    # A log is named after the run and is in the folder of its build id, which the run holds.
    logs = {path.name: folder.parent.name for folder in house.record_folders() for path in folder.entries()}
    staged = house.staged.entries()
    # Only names that tfdock gives: an untrusted wheelhouse may have any files in `staging`.
    for folder in (path for path in staged if journal.is_run_id(path.name.removeprefix(_ASIDE))):
        orphan = Orphan(path=folder, kind=_STAGING_KIND, trace=_trace_of(folder))
        lives = folder.name in alive or logs.get(f"{folder.name}.log") in busy
        # Wait a day: a run that has just begun has no log yet.
        if not lives and orphan.changed < time.time() - _ABANDONED:
            yield orphan


def _broken_pulls(house: Wheelhouse) -> Iterator[Orphan]:
    """Yield the partial wheels of broken pulls that are so old that nobody will continue them."""
    for folder in house.record_folders():
        # Pulls keep these files beside a record while they run, and after they break off.
        parts = (path for path in folder.entries() if path.name.startswith("pull-") and path.name.endswith(".part"))
        for path in parts:
            status = path.status()
            if status and status.st_mtime < time.time() - _UNCONTINUED:
                build_id = BuildId(folder.parent.name)
                yield Orphan(path=path, kind="of an interrupted pull", trace=_trace_of(path), build_id=build_id)


def _stray_files(house: Wheelhouse) -> Iterator[Orphan]:
    """Yield half-written files of tfdock, and METADATA whose wheel was removed."""
    simple = house.at("simple")
    folders = (house.at(""), simple, *simple.entries(), house.private, house.private / "coverage")
    for path in (path for folder in folders for path in folder.entries()):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            yield Orphan(path=path, kind=_HALF_KIND, trace=_trace_of(path))
        elif path.name.endswith(f".whl{METADATA_SUFFIX}") and not _has_wheel(path):
            yield Orphan(path=path, kind="metadata without its wheel", trace=_trace_of(path))


# --- places of files ------------------------------------------------------------------------------------------------


def _has_wheel(path: UntrustedPath) -> bool:
    """Return whether METADATA has its wheel beside it; False for any other file."""
    return path.name.endswith(METADATA_SUFFIX) and bool(
        (path.parent / path.name.removesuffix(METADATA_SUFFIX)).status()
    )


def _trace_of(path: UntrustedPath) -> Trace:
    """Return the trace of a path and everything below it; entries that disappear meanwhile are left out."""
    traits = set()
    for file in path.walk():
        status = file.status
        # The size of a folder depends on the file system and is not part of the freed space.
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        traits.add((f"{path}/{file.name}", status.st_ino, status.st_mtime, size))
    return frozenset(traits)
