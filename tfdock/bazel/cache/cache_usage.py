"""Record when each entry of a disk cache was last used, and which entries the last builds used.

Bazel before 7.4 notes nothing, and `relatime`, with which most file systems are mounted, shows only the first of many
reads. So the time of the last read becomes the time of last change before and after every build: nothing is lost,
and the kernel notes the next read again, because it is not later than the change.

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

from tfdock.bazel.cache.action_cache import LARGEST
from tfdock.bazel.cache.cache_folder import DiskCache, is_whiteout
from tfdock.bazel.cache.cache_pruning import Configuration
from tfdock.host.files import make_folder, write_atomically
from tfdock.host.untrusted_folders import FoundFile, UntrustedFolder, remove_folder

UNSEEN = "what builds take from it cannot be seen, so that `tfdock cache prune` keeps all of it but what is old"
_DIGEST = 32
_LONG_AGO = 1_000_000_000_000_000_000
"""2001, in nanoseconds: before anything a probe could be read at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What a build used of a disk cache. `when` in Unix seconds; `actions` is None where reads leave no trace."""

    build_id: str
    run: str
    when: float
    actions: frozenset[str] | None

    @property
    def configuration(self) -> Configuration:
        """The same, to decide with."""
        return Configuration(build_id=self.build_id, used=self.when, actions=self.actions)


@dataclass
class UsageWatch:
    """A build while it uses a disk cache. `ok` is to be set when it has ended well."""

    ok: bool = False
    seen: bool = True
    """Whether the file system tells of reads."""


@contextmanager
def watched(disk: DiskCache, build_id: str, run: str) -> Iterator[UsageWatch]:
    """Note what a build uses while the context lasts.

    A build that ended well is known by what it used; one that did not adds to what is known of the one before it.
    """
    make_folder(disk.about / "builds")
    watch = UsageWatch(seen=reads_are_seen(disk.about))
    began = now(disk.about)
    with suppress(OSError):  # a folder that cannot be read, which is Bazel's to tell
        fold(disk)
    try:
        yield watch
    finally:
        # What could not be noted costs a later `cache prune` its aim, never a build its end.
        with suppress(OSError):
            used = fold(disk, since=began)
            _note(
                disk,
                CacheUse(build_id=build_id, run=run, when=time.time(), actions=used if watch.seen else None),
                watch,
            )


def reads_are_seen(folder: Path) -> bool:
    """Whether reading a file there changes its time of access: not so on a file system mounted `noatime`."""
    probe = folder / f"probe.{os.getpid()}-{threading.get_native_id()}"
    try:
        probe.write_bytes(b"?")
        os.utime(probe, ns=(_LONG_AGO, _LONG_AGO))
        probe.read_bytes()
        return probe.stat().st_atime_ns > _LONG_AGO
    finally:
        probe.unlink(missing_ok=True)


def now(folder: Path) -> int:
    """The time by the file system's own clock, in nanoseconds: the kernel stamps files by ticks, which lag behind."""
    stamp = folder / f"stamp.{os.getpid()}-{threading.get_native_id()}"
    try:
        stamp.touch()
        return stamp.stat().st_mtime_ns
    finally:
        stamp.unlink(missing_ok=True)


def fold(disk: DiskCache, since: int | None = None) -> frozenset[str]:
    """Make the time of each entry's last read its time of last change; the actions used since then (nanoseconds)."""
    used = set()
    with suppress(FileNotFoundError), disk.opened() as folder:
        for entry in disk.entries():
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
        for found in own.entries(3):
            if found.status.st_ctime_ns >= since and (is_whiteout(found) or _is_copy(found, own, below)):
                own.remove(found.name)
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


def _is_copy(found: FoundFile, own: UntrustedFolder, below: UntrustedFolder) -> bool:
    """Return whether the cache below has a file: an action with the same bytes, or a blob of the same name."""
    if not found.is_plain:
        return False
    with suppress(OSError):
        if below.status(found.name).st_size != found.status.st_size:
            return False
        if not found.name.startswith("ac"):
            return True  # its name is the hash of its bytes
        with own.open(found.name, unnoticed=True) as mine, below.open(found.name, unnoticed=True) as theirs:
            return mine.read(LARGEST) == theirs.read(LARGEST)
    return False


def _note(disk: DiskCache, use: CacheUse, watch: UsageWatch) -> None:
    before = None if watch.ok else read_use(disk.about / "builds" / use.build_id)
    actions = use.actions
    if before is not None:
        actions = None if actions is None or before.actions is None else actions | before.actions
    head = {"build_id": use.build_id, "run": use.run, "when": use.when, "seen": actions is not None}
    data = json.dumps(head).encode() + b"\n" + b"".join(bytes.fromhex(key) for key in sorted(actions or ()))
    write_atomically(disk.about / "builds" / use.build_id, data)


def read_use(path: Path) -> CacheUse | None:
    """What a file says that a build left; None where there is none, or it is not whole."""
    try:
        head, _, digests = path.read_bytes().partition(b"\n")
        said = json.loads(head)
        build_id, run, when, seen = said["build_id"], said["run"], float(said["when"]), bool(said["seen"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if len(digests) % _DIGEST or path.name != build_id or not math.isfinite(when):
        return None
    text = digests.hex()
    keys = (text[start : start + 2 * _DIGEST] for start in range(0, len(text), 2 * _DIGEST))
    return CacheUse(build_id=build_id, run=str(run), when=when, actions=frozenset(keys) if seen else None)


def uses(disk: DiskCache) -> list[CacheUse]:
    """What is known of the builds with a toolchain, the newest first."""
    folder = disk.about / "builds"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [use for file in files if file.is_file() and not file.is_symlink() if (use := read_use(file))]
    return sorted(found, key=lambda use: -use.when)


def forget(disk: DiskCache, build_id: str) -> None:
    """Forget what is known of a configuration."""
    if "/" not in build_id:
        (disk.about / "builds" / build_id).unlink(missing_ok=True)
