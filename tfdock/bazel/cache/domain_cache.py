"""Fill and clean up the disk cache of a trust domain. This cache lies above the cache of `release`."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from tfdock.bazel.cache.action_cache import LARGEST
from tfdock.bazel.cache.cache_folder import CacheEntry, DiskCache, is_whiteout, opened
from tfdock.host.files import make_folder
from tfdock.host.untrusted_folders import FoundFile, UntrustedFolder, is_hollow, remove_folder

_PIECE = 1 << 20


def filesystem_now(folder: Path) -> int:
    """Return the time of the file system's clock, in nanoseconds.

    The kernel's clock for file times moves in steps, so it is behind the other clocks.
    """
    stamp = folder / f"stamp.{os.getpid()}-{threading.get_native_id()}"
    try:
        stamp.touch()
        return stamp.stat().st_mtime_ns
    finally:
        stamp.unlink(missing_ok=True)


def take_over(disk: DiskCache, other: DiskCache, check: Callable[[], None]) -> int:
    """Copy all entries of another domain's cache into an empty cache, or none; return the bytes of the entries.

    The caller holds the empty cache exclusively. The other cache may change meanwhile. No file is a hard link: a
    container could then change both caches. `check` is called before each entry, and raises to stop. Raises OSError.
    """
    clear_work(disk)
    make_folder(disk.work)
    try:
        with opened(disk.work) as own, other.opened() as theirs:
            copied = 0
            for entry in other.entries():
                check()
                copied += _copy(entry, theirs, own) if entry.kind in ("action", "blob") else 0
        remove_folder(disk.folder)
        disk.work.rename(disk.folder)
    finally:
        clear_work(disk)
    return copied


def _copy(entry: CacheEntry, theirs: UntrustedFolder, own: UntrustedFolder) -> int:
    """Copy an entry up to its size when it was listed. Return the bytes copied, 0 for an unreadable entry."""
    try:
        file = theirs.open(entry.name, unnoticed=True)
    except OSError:
        return 0
    with file:
        if is_hollow(file.fileno()):
            return 0
        own.write(entry.name, islice(iter(partial(file.read, _PIECE), b""), math.ceil(entry.size / _PIECE)))
    return entry.size


def drop_copies(disk: DiskCache, release: DiskCache, since: int) -> int:
    """Remove entries of a domain's cache that the cache of `release` below has too; return how many.

    Newer Bazels change the times of the entries that they use; the overlay copies the file before this change. Only
    entries that changed at `since` (nanoseconds) or later are read. The caller holds the domain's cache exclusively,
    and no container uses the cache.
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
    """Remove the overlay's work folder beside a domain's cache, as far as this user has permission.

    No container may be using the folder.
    """
    with suppress(OSError):
        # The work folder belongs to root. An ordinary user can remove it while it is empty.
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
