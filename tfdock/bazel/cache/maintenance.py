"""List, check and shrink a cache folder. No link is followed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.bazel.cache import action_cache, cache_pruning
from tfdock.bazel.cache.action_cache import EMPTY, ActionResult, MalformedEntry
from tfdock.bazel.cache.cache_folder import CacheEntry, CacheFolder, DiskCache, folders, opened
from tfdock.bazel.cache.cache_usage import clear_work, forget, uses
from tfdock.host.untrusted_folders import folder_size, is_hollow, open_up, remove_folder, size_of
from tfdock.resolve.tools import NATIVE

_DEEP = 2
"""Folders within each other in a disk cache: `ac/00`."""
_THREADS = 2
_BATCH = 256
"""Blobs that are given to the threads at a time."""
_PIECE = 1 << 20
"""Bytes of a blob that are hashed before a stop is heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A run's folder that is still there. `changed` in Unix seconds."""

    run: str
    path: Path
    size: int
    changed: float


@dataclass
class Listing:
    """A disk cache's entries by name, and what their actions need."""

    disk: DiskCache
    actions: dict[str, CacheEntry] = field(default_factory=dict)
    blobs: dict[str, CacheEntry] = field(default_factory=dict)
    half: list[CacheEntry] = field(default_factory=list)
    foreign: list[CacheEntry] = field(default_factory=list)
    results: dict[str, ActionResult] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Actions that are no such message: why."""
    below: dict[str, CacheEntry] = field(default_factory=dict)
    """Blobs of the cache that lies below, which its actions may need too."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        groups = (self.actions.values(), self.blobs.values(), self.half, self.foreign)
        return sum(entry.size for group in groups for entry in group)

    @property
    def used(self) -> float | None:
        """When an action was used last, in Unix seconds."""
        return max((entry.used for entry in self.actions.values()), default=0) / 1e9 or None

    def needs(self, key: str) -> tuple[str, ...]:
        """The blobs that an action's entry needs to be a hit; raises Malformed where a tree is none."""
        result = self.results[key]
        found = [digest.hash for digest in (*result.files, *result.trees)]
        for tree in result.trees:
            if self.has(tree.hash):
                found += [digest.hash for digest in action_cache.tree_files(self._message(tree.hash))]
        return tuple(digest for digest in dict.fromkeys(found) if digest != EMPTY)

    def has(self, digest: str) -> bool:
        """Return whether the blob is here or in the cache below."""
        return digest in self.blobs or digest in self.below

    def _message(self, digest: str) -> bytes:
        """Read a blob, here or below, that should be a message; raises Malformed and OSError."""
        if (entry := self.blobs.get(digest)) is not None:
            return self.disk.message(entry.name)
        assert self.disk.release is not None
        return self.disk.release.message(self.below[digest].name)

    def contents(self) -> cache_pruning.CacheContents:
        """The same, to decide with. What cannot be read needs nothing."""
        return cache_pruning.CacheContents(
            toolchain=self.disk.key,
            actions={
                key: cache_pruning.CachedAction(size=entry.size, used=entry.used / 1e9, blobs=self._kept_with(key))
                for key, entry in self.actions.items()
            },
            blobs={digest: entry.size for digest, entry in self.blobs.items()},
            configurations=tuple(use.configuration for use in uses(self.disk)),
        )

    def _kept_with(self, key: str) -> tuple[str, ...]:
        """What an action needs, and what says what it was: the action under its own name, and its command."""
        if key in self.unreadable:
            return ()
        found: list[str] = []
        with suppress(MalformedEntry, OSError):
            found += self.needs(key)
        if key in self.blobs:
            found += [key, *([command] if (command := self._command(key)) else [])]
        return tuple(found)

    def is_native(self, key: str) -> bool:
        """Whether an action compiled for the CPU of the machine that it ran on, which its key does not name."""
        command = self._command(key)
        if command is None or not self.has(command):
            return False
        with suppress(MalformedEntry, OSError):
            return NATIVE.search(self._message(command).decode("latin-1")) is not None
        return False

    def _command(self, key: str) -> str | None:
        """The blob that says what an action ran, where the cache has the action's own message."""
        if not self.has(key):
            return None
        with suppress(MalformedEntry, OSError):
            command = action_cache.command_of(self._message(key))
            return command.hash if command else None
        return None


def listing(disk: DiskCache) -> Listing:
    """Look through a disk cache; every action is read, no blob but the few that name others."""
    found = Listing(disk)
    below = disk.release.entries() if disk.release else ()
    found.below = {entry.digest: entry for entry in below if entry.kind == "blob"}
    for entry in disk.entries():
        if entry.kind == "action":
            found.actions[entry.digest] = entry
        elif entry.kind == "blob":
            found.blobs[entry.digest] = entry
        else:
            (found.half if entry.kind == "half" else found.foreign).append(entry)
    for key, entry in list(found.actions.items()):
        try:
            found.results[key] = action_cache.action_result(disk.message(entry.name))
        except FileNotFoundError:
            del found.actions[key]
        except (MalformedEntry, OSError) as error:
            found.unreadable[key] = str(error)
    return found


def outputs(cache: CacheFolder) -> list[Output]:
    """The runs' folders that are there, the oldest first."""
    found = []
    for path in folders(cache.outputs):
        with suppress(FileNotFoundError):
            changed = path.stat().st_mtime
            found.append(Output(run=path.name, path=path, size=folder_size(path), changed=changed))
    return found


# --- is it sound? -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFinding:
    """A finding about an entry. `kind`: `damaged` (other bytes than its name says), `truncated`, `unreadable`,
    `incomplete` (an action whose outputs are gone: a miss to Bazel, no harm) or `foreign` (nothing of Bazel's)."""

    toolchain: str
    kind: str
    path: Path
    text: str

    @property
    def harms(self) -> bool:
        """Whether a build could take it for what it is not."""
        return self.kind not in ("incomplete", "foreign")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCache:
    """What looking at every byte of a disk cache found. Bytes, and numbers of entries."""

    toolchain: str
    actions: int
    blobs: int
    size: int
    findings: tuple[CacheFinding, ...]
    removed: int = 0


def verified(disk: DiskCache, *, repair: bool = False, check: Callable[[], None] = lambda: None) -> VerifiedCache:
    """Hash every blob, which is named by its sha256, and see that every action's entry can be read and is complete.

    `repair` removes what is wrong, and the actions that need it; the caller then holds the lock alone. `check` is
    called by several threads, between pieces of blobs, and may raise.
    """
    found = listing(disk)
    bad = dict(_bad_blobs(found, check))
    findings = [_finding(found.blobs[digest], disk, kind, text) for digest, (kind, text) in bad.items()]
    doomed = [found.blobs[digest] for digest in bad]
    for key, entry in found.actions.items():
        if (said := _amiss(found, key, bad)) is not None:
            findings.append(_finding(entry, disk, *said))
            doomed.append(entry)
    findings += [_finding(entry, disk, "foreign", "not a file of Bazel's cache") for entry in found.foreign]
    return VerifiedCache(
        toolchain=disk.key,
        actions=len(found.actions),
        blobs=len(found.blobs),
        size=found.size,
        findings=tuple(sorted(findings, key=lambda one: (not one.harms, one.kind, one.path))),
        removed=_removed(disk, doomed) if repair else 0,
    )


def _finding(entry: CacheEntry, disk: DiskCache, kind: str, text: str) -> CacheFinding:
    return CacheFinding(toolchain=disk.key, kind=kind, path=disk.folder / entry.name, text=text)


def _bad_blobs(found: Listing, check: Callable[[], None]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Digest -> kind and text of each blob that is not what its name says."""
    sizes = {digest.hash: digest.size for result in found.results.values() for digest in result.files}
    blobs = list(found.blobs.values())
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(blobs), _BATCH):
            some = blobs[start : start + _BATCH]
            told = pool.map(lambda one: _amiss_in(found.disk, one, sizes, check), some)
            for entry, amiss in zip(some, told, strict=True):
                if amiss:
                    yield entry.digest, amiss


def _amiss_in(
    disk: DiskCache, entry: CacheEntry, sizes: Mapping[str, int], check: Callable[[], None]
) -> tuple[str, str] | None:
    """Kind and text of what is wrong with a blob; nothing with one that is gone."""
    found = hashlib.sha256()
    try:
        with disk.open(entry.name) as file:
            check()
            if is_hollow(file.fileno()):  # to hash terabytes of nothing would take days
                return "damaged", f"its {entry.size} bytes are holes"
            while piece := file.read(_PIECE):
                found.update(piece)
                check()
    except FileNotFoundError:
        return None
    except OSError as error:
        return "unreadable", str(error.strerror)
    if (value := found.hexdigest()) == entry.digest:
        return None
    if entry.size < sizes.get(entry.digest, 0):
        return "truncated", f"{entry.size} of {sizes[entry.digest]} bytes"
    return "damaged", f"its bytes have the sha256 {value}"


def _amiss(found: Listing, key: str, bad: Mapping[str, object]) -> tuple[str, str] | None:
    """Kind and text of what is wrong with an action's entry."""
    if key in found.unreadable:
        return "unreadable", found.unreadable[key]
    if found.actions[key].size == 0 or found.results[key].is_empty:
        return "truncated", "it names no output"
    try:
        needed = found.needs(key)
    except (MalformedEntry, OSError):
        needed = tuple(digest.hash for digest in (*found.results[key].files, *found.results[key].trees))
    poisoned = [digest for digest in needed if digest in bad]
    missing = [digest for digest in needed if not found.has(digest) and digest != EMPTY]
    if poisoned or missing:
        what = f"{poisoned[0]} is not sound" if poisoned else f"{len(missing)} of its outputs are gone"
        return "incomplete", what
    return None


def _removed(disk: DiskCache, entries: Iterable[CacheEntry]) -> int:
    count = 0
    with suppress(FileNotFoundError), disk.opened() as folder:
        for entry in entries:
            folder.remove(entry.name)
            count += 1
    return count


# --- smaller ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedCache:
    """What pruning took, or would take: bytes by what they were, and bytes that are left."""

    disks: tuple[cache_pruning.PrunePlan, ...]
    half_written: int
    outputs: tuple[Output, ...]
    downloads: int
    left: int
    reached: bool

    @property
    def size(self) -> int:
        """Bytes in all."""
        taken = sum(disk.size for disk in self.disks) + sum(output.size for output in self.outputs)
        return taken + self.half_written + self.downloads


@contextmanager
def alone(cache: CacheFolder, disks: Iterable[DiskCache]) -> Iterator[None]:
    """Hold the folder and disk caches alone; raises Locked (`cache-locked`) at once while somebody uses them.

    A build may have shut its user out of folders of its disk cache: they are opened again.
    """
    with ExitStack() as locks:
        locks.enter_context(cache.in_use(alone=True))
        for disk in disks:
            locks.enter_context(disk.held(alone=True))
            with suppress(FileNotFoundError):
                open_up(disk.folder, _DEEP)
        yield


def prune(
    cache: CacheFolder, *, max_size: int | None = None, before: float | None = None, dry_run: bool = False
) -> PrunedCache:
    """Make a cache smaller: first what nobody needs, then what was used least recently. Under `alone`.

    With `before` (Unix seconds) configurations go that were used last before it, and downloads: of Bazel's repository
    cache, and for trials of wheels; with `max_size` (bytes of the whole folder) actions go, as `decide.pruning` says.
    """
    left_over = outputs(cache)
    found = [listing(disk) for disk in cache.disks()]
    half = [entry for one in found for entry in one.half]
    old = list(_old_downloads(cache, before)) if before is not None else []
    downloads = sum(one.size for one in old)
    gone = sum(entry.size for entry in half) + sum(output.size for output in left_over) + downloads
    others = folder_size(cache.root) - gone
    decided = cache_pruning.prune(
        contents := [one.contents() for one in found],
        others=max(0, others - sum(one.size for one in contents)),
        max_size=max_size,
        before=before,
    )
    if not dry_run:
        for output in left_over:
            remove_folder(output.path)
        for download in old:
            download.remove()
        for listed, disk in zip(found, decided.disks, strict=True):
            _removed(listed.disk, listed.half)
            _carry_out(listed, disk)
    return PrunedCache(
        disks=decided.disks,
        half_written=sum(entry.size for entry in half),
        outputs=tuple(left_over),
        downloads=downloads,
        left=decided.left,
        reached=decided.reached,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Download:
    """A download that is to go: its part of the cache, its name in there, its bytes."""

    part: Path
    name: str
    size: int

    def remove(self) -> None:
        with suppress(FileNotFoundError), opened(self.part) as folder:
            folder.remove_folder(self.name)


def _old_downloads(cache: CacheFolder, before: float) -> Iterator[_Download]:
    """The downloads that were last fetched or read before that moment."""
    for part, inside in ((cache.root / "dependencies", ""), (cache.repository, "content_addressable/sha256")):
        with suppress(OSError), opened(part) as top, top.folder(inside) as parent:
            for found in parent.entries():
                with suppress(OSError), parent.folder(found.name) as folder:
                    # A folder's own time of access tells only that somebody listed it.
                    files = [one.status for one in folder.entries()]
                    times = [found.status.st_mtime, *(max(file.st_mtime, file.st_atime) for file in files)]
                    if max(times) < before:
                        name = f"{inside}/{found.name}" if inside else found.name
                        yield _Download(part=part, name=name, size=size_of(folder))


def _carry_out(found: Listing, decided: cache_pruning.PrunePlan) -> None:
    # Actions first: a blob without its action is waste, an action without its blob is a broken promise.
    _removed(found.disk, (found.actions[key] for key in decided.actions))
    _removed(found.disk, (found.blobs[digest] for digest in decided.blobs))
    for build_id in decided.configurations:
        forget(found.disk, build_id)
    stays = len(found.actions) - len(decided.actions) + len(found.blobs) - len(decided.blobs) + len(found.foreign)
    if not stays:
        remove_disk(found.disk)


def remove_disk(disk: DiskCache) -> None:
    """Remove a disk cache with all that is known of it; the caller holds its lock alone."""
    remove_folder(disk.folder)
    clear_work(disk)
    remove_folder(disk.about)


def clean(cache: CacheFolder) -> None:
    """Remove everything that a cache holds; the tag and the locks stay. Under `alone`."""
    for disk in cache.disks():
        remove_disk(disk)
    for name in cache.parts():
        with suppress(PermissionError) if name == "disk" else nullcontext():  # see `clear_work`
            remove_folder(cache.root / name)
