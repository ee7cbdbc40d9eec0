"""List, verify and prune a cache folder. No link is followed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.bazel.cache import action_cache, cache_pruning
from tfdock.bazel.cache.action_cache import EMPTY, ActionResult, MalformedEntry
from tfdock.bazel.cache.cache_folder import CacheEntry, CacheFolder, DiskCache, folders, opened
from tfdock.bazel.cache.domain_cache import clear_work
from tfdock.host.untrusted_folders import UntrustedPath, folder_size, is_hollow, open_up, remove_folder, size_of
from tfdock.types import NATIVE

# Names of folders: of wheels for trials (verify/trial_container.py), of Bazel's downloads.
_DEPENDENCIES, _SHA256 = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{64}")
_DEEP = 2  #: Levels of folders in a disk cache, such as `ac/00`.
# Hashing releases Python's lock, so threads gain from a second core.
_THREADS = 2
_BATCH = 256  #: How many blobs the threads get at a time.
_PIECE = 1 << 20  #: How many bytes are hashed between two checks for a stop.


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A run's folder that still exists. `changed` is in Unix seconds."""

    run: str
    path: Path
    size: int
    changed: float


@dataclass
class Listing:
    """A disk cache's entries by name, and the blobs that their actions need."""

    disk: DiskCache
    actions: dict[str, CacheEntry] = field(default_factory=dict)
    blobs: dict[str, CacheEntry] = field(default_factory=dict)
    half: list[CacheEntry] = field(default_factory=list)
    foreign: list[CacheEntry] = field(default_factory=list)
    results: dict[str, ActionResult] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)  #: For each unreadable action, by key: the reason.
    #: Blobs of the cache below, which the actions may need too.
    below: dict[str, CacheEntry] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        groups = (self.actions.values(), self.blobs.values(), self.half, self.foreign)
        return sum(entry.size for group in groups for entry in group)

    @property
    def used(self) -> float | None:
        """The last use of an action, in Unix seconds."""
        return max((entry.used for entry in self.actions.values()), default=0) / 1e9 or None

    def needs(self, key: str) -> tuple[str, ...]:
        """Return the blobs that an action's entry needs to be a hit; raise MalformedEntry if a tree is malformed."""
        result = self.results[key]
        digests = [digest.hash for digest in (*result.files, *result.trees)]
        for tree in result.trees:
            if self.has(tree.hash):
                digests += [digest.hash for digest in action_cache.tree_files(self._message(tree.hash))]
        return tuple(digest for digest in dict.fromkeys(digests) if digest != EMPTY)

    def has(self, digest: str) -> bool:
        """Return whether the blob is in this cache or in the cache below."""
        return digest in self.blobs or digest in self.below

    def _message(self, digest: str) -> bytes:
        """Read a blob, here or below, that should be a message; raise MalformedEntry and OSError."""
        if (entry := self.blobs.get(digest)) is not None:
            return self.disk.message(entry.name)
        assert self.disk.release is not None
        return self.disk.release.message(self.below[digest].name)

    def contents(self) -> cache_pruning.CacheContents:
        """Return the contents for `cache_pruning`. An unreadable action needs no blob."""
        return cache_pruning.CacheContents(
            toolchain=self.disk.key,
            actions={
                key: cache_pruning.CachedAction(size=entry.size, used=entry.used / 1e9, blobs=self._kept_with(key))
                for key, entry in self.actions.items()
            },
            blobs={digest: entry.size for digest, entry in self.blobs.items()},
        )

    def _kept_with(self, key: str) -> tuple[str, ...]:
        """Return the blobs that an action needs, its own message, and its command."""
        if key in self.unreadable:
            return ()
        digests: list[str] = []
        with suppress(MalformedEntry, OSError):
            digests += self.needs(key)
        if key in self.blobs:
            # `is_native` reads both when the cache is pushed.
            digests += [key, *([command] if (command := self._command(key)) else [])]
        return tuple(digests)

    def is_native(self, key: str) -> bool:
        """Return whether an action compiled for its own machine's CPU. The action's key does not show this."""
        command = self._command(key)
        if command is None or not self.has(command):
            return False
        with suppress(MalformedEntry, OSError):
            # latin-1 decodes any bytes, and the options are ASCII. So nothing of the message has to be parsed.
            return NATIVE.search(self._message(command).decode("latin-1")) is not None
        return False

    def _command(self, key: str) -> str | None:
        """Return the blob with an action's command, if the cache has the action's own message."""
        if not self.has(key):
            return None
        with suppress(MalformedEntry, OSError):
            command = action_cache.command_of(self._message(key))
            return command.hash if command else None
        return None


def listing(disk: DiskCache) -> Listing:
    """List a disk cache. Read every action, but only the blobs that name other blobs."""
    result = Listing(disk)
    below = disk.release.entries() if disk.release else ()
    result.below = {entry.digest: entry for entry in below if entry.kind == "blob"}
    for entry in disk.entries():
        if entry.kind == "action":
            result.actions[entry.digest] = entry
        elif entry.kind == "blob":
            result.blobs[entry.digest] = entry
        else:
            (result.half if entry.kind == "half" else result.foreign).append(entry)
    for key, entry in list(result.actions.items()):
        try:
            result.results[key] = action_cache.action_result(disk.message(entry.name))
        except FileNotFoundError:
            del result.actions[key]
        except (MalformedEntry, OSError) as error:
            result.unreadable[key] = str(error)
    return result


def outputs(cache: CacheFolder) -> list[Output]:
    """Return the runs' folders that exist, the oldest first."""
    folders_found = []
    for path in folders(cache.outputs):
        with suppress(FileNotFoundError):
            changed = path.stat().st_mtime
            folders_found.append(Output(run=path.name, path=path, size=folder_size(path), changed=changed))
    return folders_found


# --- is it sound? -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFinding:
    """A finding about an entry.

    `kind` is `damaged` (the content does not match the name), `truncated`, `unreadable`, `incomplete` (an action
    without its outputs, which Bazel harmlessly treats as a miss) or `foreign` (not Bazel's).
    """

    toolchain: str
    kind: str
    path: Path
    text: str

    @property
    def harms(self) -> bool:
        """Whether a build could use the entry and get wrong content."""
        return self.kind not in ("incomplete", "foreign")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCache:
    """The result of reading every byte of a disk cache. `size` is in bytes; the other numbers count entries."""

    toolchain: str
    actions: int
    blobs: int
    size: int
    findings: tuple[CacheFinding, ...]
    removed: int = 0


def verify_cache(disk: DiskCache, *, repair: bool = False, check: Callable[[], None] = lambda: None) -> VerifiedCache:
    """Check that each blob has the sha256 in its name, and that each action's entry is readable and complete.

    `repair` removes bad entries, and the actions that need them. The caller must then hold the lock exclusively.
    `check` is called by several threads, between pieces of blobs, and may raise.
    """
    listed = listing(disk)
    # Check blobs first: an action is intact only if its blobs are intact.
    bad = dict(_bad_blobs(listed, check))
    findings = [_finding(listed.blobs[digest], disk, kind, text) for digest, (kind, text) in bad.items()]
    doomed = [listed.blobs[digest] for digest in bad]
    for key, entry in listed.actions.items():
        if (problem := _check_action(listed, key, bad)) is not None:
            findings.append(_finding(entry, disk, *problem))
            doomed.append(entry)
    findings += [_finding(entry, disk, "foreign", "not a file of Bazel's cache") for entry in listed.foreign]
    return VerifiedCache(
        toolchain=disk.key,
        actions=len(listed.actions),
        blobs=len(listed.blobs),
        size=listed.size,
        findings=tuple(sorted(findings, key=lambda finding: (not finding.harms, finding.kind, finding.path))),
        removed=_remove_entries(disk, doomed) if repair else 0,
    )


def _finding(entry: CacheEntry, disk: DiskCache, kind: str, text: str) -> CacheFinding:
    return CacheFinding(toolchain=disk.key, kind=kind, path=disk.folder / entry.name, text=text)


def _bad_blobs(listed: Listing, check: Callable[[], None]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield digest, kind and text of each blob that does not match its name."""
    sizes = {digest.hash: digest.size for result in listed.results.values() for digest in result.files}
    blobs = list(listed.blobs.values())
    with ThreadPoolExecutor(_THREADS) as pool:
        # Do not use `map`: it submits all blobs at once, and after a stop all of them would still be hashed.
        for start in range(0, len(blobs), _BATCH):
            batch = blobs[start : start + _BATCH]
            problems = pool.map(lambda entry: _check_blob(listed.disk, entry, sizes, check), batch)
            for entry, problem in zip(batch, problems, strict=True):
                if problem:
                    yield entry.digest, problem


def _check_blob(
    disk: DiskCache, entry: CacheEntry, sizes: Mapping[str, int], check: Callable[[], None]
) -> tuple[str, str] | None:
    """Return kind and text of a problem with a blob; None if it is sound or gone."""
    sha256 = hashlib.sha256()
    try:
        with disk.open(entry.name) as file:
            check()
            if is_hollow(file.fileno()):  # hashing terabytes of holes would take days
                return "damaged", f"the file of {entry.size} bytes is sparse, with hardly any data"
            while piece := file.read(_PIECE):
                sha256.update(piece)
                check()
    except FileNotFoundError:
        return None
    except OSError as error:
        return "unreadable", str(error.strerror)
    if (actual := sha256.hexdigest()) == entry.digest:
        return None
    if entry.size < sizes.get(entry.digest, 0):
        return "truncated", f"{entry.size} of {sizes[entry.digest]} bytes"
    return "damaged", f"the content has the sha256 {actual}"


def _check_action(listed: Listing, key: str, bad: Mapping[str, object]) -> tuple[str, str] | None:
    """Return kind and text of a problem with an action's entry; None if it is sound."""
    if key in listed.unreadable:
        return "unreadable", listed.unreadable[key]
    if listed.actions[key].size == 0 or listed.results[key].is_empty:
        return "truncated", "the entry has no output"
    try:
        needed = listed.needs(key)
    # The files in an unreadable tree are unknown. The tree is a bad blob itself, and is found below.
    except (MalformedEntry, OSError):
        needed = tuple(digest.hash for digest in (*listed.results[key].files, *listed.results[key].trees))
    poisoned = [digest for digest in needed if digest in bad]
    missing = [digest for digest in needed if not listed.has(digest) and digest != EMPTY]
    if poisoned or missing:
        text = f"output {poisoned[0]} is damaged" if poisoned else f"{len(missing)} of the outputs are missing"
        return "incomplete", text
    return None


def _remove_entries(disk: DiskCache, entries: Iterable[CacheEntry]) -> int:
    count = 0
    with suppress(FileNotFoundError), disk.opened() as folder:
        for entry in entries:
            folder.remove(entry.name)
            count += 1
    return count


# --- smaller ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedCache:
    """The result of pruning or of a dry run: removed bytes by kind, and the remaining bytes."""

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
    """Lock the folder and disk caches exclusively, or raise Locked (`cache-locked`) at once if they are in use.

    If a build removed this user's permissions on folders of a disk cache, restore the permissions.
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
    """Make a cache smaller: remove useless entries, then the least recently used ones. The caller holds `alone`.

    With `before` (Unix seconds), actions and downloads that were last used before that time are removed. Downloads
    are in Bazel's repository cache, or for trials of wheels. With `max_size` (bytes of the whole folder),
    `cache_pruning` chooses the actions to remove.
    """
    output_folders = outputs(cache)
    listings = [listing(disk) for disk in cache.disks()]
    half = [entry for listed in listings for entry in listed.half]
    old = list(_old_downloads(cache, before)) if before is not None else []
    downloads = sum(size for _, size in old)
    gone = sum(entry.size for entry in half) + sum(output.size for output in output_folders) + downloads
    others = folder_size(cache.root) - gone
    plans, left = cache_pruning.prune(
        contents := [listed.contents() for listed in listings],
        others=max(0, others - sum(disk.size for disk in contents)),
        max_size=max_size,
        before=before,
    )
    if not dry_run:
        # The caller holds the cache exclusively, so every run with such a folder has ended.
        for output in output_folders:
            remove_folder(output.path)
        for download, _ in old:
            download.remove_folder()
        for listed, plan in zip(listings, plans, strict=True):
            _remove_entries(listed.disk, listed.half)
            _apply(listed, plan)
    return PrunedCache(
        disks=plans,
        half_written=sum(entry.size for entry in half),
        outputs=tuple(output_folders),
        downloads=downloads,
        left=left,
        reached=max_size is None or left <= max_size,
    )


def _old_downloads(cache: CacheFolder, before: float) -> Iterator[tuple[UntrustedPath, int]]:
    """Yield the downloads that were last fetched or read before the time `before`, with their bytes."""
    for part, ours in (
        (UntrustedPath(cache.root / "dependencies"), _DEPENDENCIES),
        (UntrustedPath(cache.repository, "content_addressable/sha256"), _SHA256),
    ):
        # An unreadable folder does not prevent removing the others.
        with suppress(OSError), opened(part.root) as top, top.folder(part.inside) as parent:
            for entry in parent.entries():
                if not ours.fullmatch(entry.name):
                    continue
                with suppress(OSError), parent.folder(entry.name) as folder:
                    # A folder's access time only shows that somebody listed the folder.
                    files = [file.status for file in folder.entries()]
                    times = [entry.status.st_mtime, *(max(file.st_mtime, file.st_atime) for file in files)]
                    if max(times) < before:
                        yield part / entry.name, size_of(folder)


def _apply(listed: Listing, plan: cache_pruning.PrunePlan) -> None:
    # Remove actions first: a blob without its action only wastes space, an action without its blob is broken.
    _remove_entries(listed.disk, (listed.actions[key] for key in plan.actions))
    _remove_entries(listed.disk, (listed.blobs[digest] for digest in plan.blobs))
    remaining = len(listed.actions) - len(plan.actions) + len(listed.blobs) - len(plan.blobs) + len(listed.foreign)
    # Foreign files also count, though their owner is unknown.
    if not remaining:
        remove_disk(listed.disk)


def remove_disk(disk: DiskCache) -> None:
    """Remove a disk cache and all notes about it. The caller holds its lock exclusively."""
    remove_folder(disk.folder)
    clear_work(disk)
    remove_folder(disk.about)


def clean(cache: CacheFolder) -> None:
    """Remove everything in a cache, except the tag and the locks. The caller holds `alone`."""
    for disk in cache.disks():
        remove_disk(disk)
    for name in cache.parts():
        with suppress(PermissionError) if name == "disk" else nullcontext():  # see `clear_work`
            remove_folder(cache.root / name)
