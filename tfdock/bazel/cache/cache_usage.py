"""Record when each entry of a disk cache was last used, and which entries the last builds used.

Bazel before 7.4 notes nothing. `relatime`, with which most file systems are mounted, shows only the first of many
reads. So the time of the last read becomes the time of last change before and after every build. Nothing is lost, and
the kernel notes the next read again, because it is not later than the change.

    <toolchain key>.about/builds/<build id>    one line of JSON, then 32 bytes for each action that it used
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tfdock.bazel.cache.action_cache import LARGEST
from tfdock.bazel.cache.cache_folder import DiskCache, is_whiteout
from tfdock.bazel.cache.cache_pruning import Configuration
from tfdock.host.files import make_folder, write_atomically
from tfdock.host.foreign_json import Malformed, parse
from tfdock.host.untrusted_folders import FoundFile, UntrustedFolder, remove_folder

UNSEEN = "what builds take from it cannot be seen, so that `tfdock cache prune` keeps all of it but what is old"
_DIGEST = 32
_LONG_AGO = 1_000_000_000_000_000_000
"""2001, in nanoseconds: before anything a probe could be read at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """The actions of a disk cache that a build used.

    `when` in Unix seconds; `actions` is None if reads leave no trace.
    """

    build_id: str
    run: str
    when: float
    actions: frozenset[str] | None

    @property
    def configuration(self) -> Configuration:
        """The same as a configuration, for `cache_pruning`."""
        return Configuration(build_id=self.build_id, used=self.when, actions=self.actions)


@dataclass
class UsageWatch:
    """The state of a build that uses a disk cache. The caller sets `ok` when the build has succeeded."""

    ok: bool = False
    seen: bool = True
    """Whether the file system records reads."""


@contextmanager
def watch_usage(disk: DiskCache, build_id: str, run: str) -> Iterator[UsageWatch]:
    """Note what a build uses while the context lasts.

    A successful build replaces the note of the build before it; a failed one adds to that note.
    """
    make_folder(disk.about / "builds")
    # Tried beside the cache, on the same file system: `noatime` is an option of each mount.
    watch = UsageWatch(seen=reads_are_seen(disk.about))
    began = filesystem_now(disk.about)
    with suppress(OSError):  # a folder that cannot be read, which is Bazel's to tell
        save_read_times(disk)
    try:
        yield watch
    finally:
        # What could not be noted costs a later `cache prune` its aim, never a build its end.
        with suppress(OSError):
            used = save_read_times(disk, since=began)
            _write_use(
                disk,
                CacheUse(build_id=build_id, run=run, when=time.time(), actions=used if watch.seen else None),
                watch,
            )


def reads_are_seen(folder: Path) -> bool:
    """Return whether reading a file changes its time of access. It does not on a file system mounted `noatime`."""
    # Several builds may try at the same time.
    probe = folder / f"probe.{os.getpid()}-{threading.get_native_id()}"
    try:
        probe.write_bytes(b"?")
        # Both times: `relatime` notes a read only if the last one is not later than the change.
        os.utime(probe, ns=(_LONG_AGO, _LONG_AGO))
        probe.read_bytes()
        return probe.stat().st_atime_ns > _LONG_AGO
    finally:
        probe.unlink(missing_ok=True)


def filesystem_now(folder: Path) -> int:
    """Return the time by the file system's own clock, in nanoseconds.

    The kernel stamps files by ticks, which lag behind.
    """
    stamp = folder / f"stamp.{os.getpid()}-{threading.get_native_id()}"
    try:
        stamp.touch()
        return stamp.stat().st_mtime_ns
    finally:
        stamp.unlink(missing_ok=True)


def save_read_times(disk: DiskCache, since: int | None = None) -> frozenset[str]:
    """Set the time of last change of each entry to its last read.

    Return the actions used since then (nanoseconds).
    """
    used = set()
    with suppress(FileNotFoundError), disk.opened() as folder:
        for entry in disk.entries():
            # With `relatime` the kernel notes a read only if the last noted one is not later than the change.
            if entry.read > entry.written:
                with suppress(OSError):  # gone meanwhile, or another user's
                    folder.touch(entry.name, (entry.read, entry.read))
            if entry.kind == "action" and since is not None and entry.used >= since:
                used.add(entry.digest)
    return frozenset(used)


def drop_copies(disk: DiskCache, release: DiskCache, since: int) -> int:
    """Remove entries of a domain's cache that the cache below has too; return how many.

    Newer Bazels touch the entries that they take, and the kernel copies a file before it is touched. Only entries
    that changed since then (nanoseconds) are looked at. The caller holds the domain's cache alone, and no container
    has it.
    """
    count = 0
    with disk.opened() as own, release.opened() as below:
        for file in own.entries(3):
            # No container can set the time of status change back. A whiteout would hide an entry of `release`.
            if file.status.st_ctime_ns >= since and (is_whiteout(file) or _is_copy(file, own, below)):
                own.remove(file.name)
                count += 1
    return count


def clear_work(disk: DiskCache) -> None:
    """Remove the kernel's own folder beside a domain's cache, as far as this user may; no container has it."""
    with suppress(OSError):
        # It belongs to root. An ordinary user can remove it while it is empty.
        for folder in (disk.work / "work", disk.work):
            with suppress(FileNotFoundError):
                folder.rmdir()
    with suppress(OSError):
        remove_folder(disk.work)


def _is_copy(file: FoundFile, own: UntrustedFolder, below: UntrustedFolder) -> bool:
    """Return whether the cache below has a file: an action with the same bytes, or a blob of the same name."""
    if not file.is_plain:
        return False
    with suppress(OSError):
        # The size rules out nearly all differing files without a read.
        if below.status(file.name).st_size != file.status.st_size:
            return False
        if not file.name.startswith("ac"):
            return True  # its name is the hash of its bytes
        with own.open(file.name, unnoticed=True) as mine, below.open(file.name, unnoticed=True) as theirs:
            return mine.read(LARGEST) == theirs.read(LARGEST)
    return False


def _write_use(disk: DiskCache, use: CacheUse, watch: UsageWatch) -> None:
    before = None if watch.ok else read_use(disk.about / "builds" / use.build_id)
    actions = use.actions
    if before is not None:
        # Known and unknown together are unknown: a list with gaps would let prune remove what is needed.
        actions = None if actions is None or before.actions is None else actions | before.actions
    head = {"build_id": use.build_id, "run": use.run, "when": use.when, "seen": actions is not None}
    data = json.dumps(head).encode() + b"\n" + b"".join(bytes.fromhex(key) for key in sorted(actions or ()))
    write_atomically(disk.about / "builds" / use.build_id, data)


@dataclass(frozen=True, slots=True)
class _Header:
    build_id: str
    run: str
    when: Annotated[float, math.isfinite]
    seen: bool


def read_use(path: Path) -> CacheUse | None:
    """Return what a file says of a build's use; None if there is no file, or it is malformed."""
    try:
        head, _, digests = path.read_bytes().partition(b"\n")
        header: _Header = parse(_Header, head)
    except (OSError, Malformed):
        return None
    # A note under another name was copied, and says nothing of that build.
    if len(digests) % _DIGEST or path.name != header.build_id:
        return None
    text = digests.hex()
    keys = (text[start : start + 2 * _DIGEST] for start in range(0, len(text), 2 * _DIGEST))
    actions = frozenset(keys) if header.seen else None
    return CacheUse(build_id=header.build_id, run=header.run, when=header.when, actions=actions)


def uses(disk: DiskCache) -> list[CacheUse]:
    """Return the uses of a disk cache by builds, the newest first."""
    folder = disk.about / "builds"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    loaded = [use for file in files if file.is_file() and not file.is_symlink() if (use := read_use(file))]
    return sorted(loaded, key=lambda use: -use.when)


def forget(disk: DiskCache, build_id: str) -> None:
    """Remove the note of a configuration's use."""
    # Build ids come from files: a path must not lead to another folder.
    if "/" not in build_id:
        (disk.about / "builds" / build_id).unlink(missing_ok=True)
