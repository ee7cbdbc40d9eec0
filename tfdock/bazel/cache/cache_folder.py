"""The cache folder: its layout, and the locks of its readers and writers.

<cache>/CACHEDIR.TAG                    marks the folder as a cache that tfdock made
<cache>/repository/                     Bazel's downloads, shared by all builds
<cache>/disk/<toolchain key>/           Bazel's disk cache: its own files and nothing else
<cache>/disk/<toolchain key>-<domain>/  the disk cache of a trust domain other than `release`
<cache>/disk/….about/                   notes: the cache's toolchain and domain, and the builds that used the cache
<cache>/disk/….work/                    the overlay's work folder, if a domain's cache lies over the one of `release`
<cache>/output/<run id>/                a run's output base, until the run ends (or longer, if it is kept)
<cache>/output/<disk key>-<plan>/       a plan's output base until its wheel exists, if Bazel has no disk cache
<cache>/dependencies/, knowledge/, verify/    downloads for trials of wheels, parsed tables, logs of trials
<cache>/locks/                          kernel locks

Code in containers writes to `repository`, to the disk caches and to the output bases, and could leave links there. So
`tfdock.host.untrusted_folders` opens each part of a path without following a link.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from tfdock.bazel.cache.action_cache import LARGEST, MalformedEntry
from tfdock.errors import BuildFailed, Problem, ProfileError
from tfdock.host.files import held, make_folder, make_private, other_writers, write_atomically
from tfdock.host.untrusted_folders import FoundFile, UntrustedFolder, UntrustedPath, folder_size, is_hollow
from tfdock.plan.trust_domain import RELEASE, split_key

TAG = "CACHEDIR.TAG"
# Backup programs leave out a folder whose tag begins with exactly these 43 bytes.
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
_OURS = "# This folder is a cache that tfdock made: `tfdock cache` looks after it."
_TAG_TEXT = f"{_SIGNATURE}\n{_OURS}\n# What such files are for: https://bford.info/cachedir/\n"

#: The folders with content. The cache folder has nothing else, except the tag and the locks.
_PARTS = ("repository", "disk", "output", "downloads", "dependencies", "knowledge", "verify")
#: Names allowed in a folder that is not a cache yet. Commands without a cache store tables in
#: `knowledge`. `lost+found` belongs to the file system, if the folder is its root.
_UNUSED = ("knowledge", "lost+found")
#: Prefix of a temporary file for the tag. Another run may be writing such a file.
_BEING_MADE = f".{TAG}."
_KEY = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{16})?")
_HASH = re.compile(r"[0-9a-f]{64}")
#: Bazel writes an entry under a name of this form, and renames it when it is complete.
_HALF_WRITTEN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_OLD_ACTION = "ac_"
_MOST_NOTE = 8 << 20  #: The most bytes of a note about a toolchain. Real notes are far smaller.
# `cas/12/12…`: no entry lies deeper.
_DEPTH = 3

Waiting = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A file of a disk cache. `size` is in bytes. `written` and `read` are the file's times, in nanoseconds.

    `kind` is `action`, `blob`, `half` (half written) or `foreign` (not Bazel's). `digest` is the name of an action or
    a blob, 64 hexadecimal digits.
    """

    kind: str
    digest: str
    name: str  #: Within the disk cache.
    size: int
    written: int
    read: int

    @property
    def used(self) -> int:
        """The last time of a read or write, in nanoseconds, if the file system records it."""
        # With `relatime`, access times change once a day. With `noatime`, only the time of writing counts.
        return max(self.written, self.read)


@dataclass(frozen=True, slots=True)
class DiskCache:
    """Bazel's disk cache of one toolchain and one trust domain. `key` names both."""

    cache: Path
    key: str

    @property
    def toolchain(self) -> str:
        """The toolchain key."""
        return split_key(self.key)[0]

    @property
    def domain(self) -> str:
        """The name of the trust domain."""
        return split_key(self.key)[1]

    @property
    def release(self) -> DiskCache | None:
        """The lower layer: the disk cache of the domain `release`. None if this is `release`."""
        return None if self.domain == RELEASE else DiskCache(self.cache, self.toolchain)

    @property
    def folder(self) -> Path:
        """The folder that Bazel sees. If this cache lies above another cache: the folder that Bazel writes to."""
        return self.cache / "disk" / self.key

    @property
    def work(self) -> Path:
        """The overlay's work folder. The kernel needs this folder if this cache is an upper layer."""
        return self.cache / "disk" / f"{self.key}.work"

    @property
    def about(self) -> Path:
        """The folder of tfdock's notes about the cache."""
        return self.cache / "disk" / f"{self.key}.about"

    def held(self, *, alone: bool, waiting: Waiting | None = None) -> AbstractContextManager[None]:
        """Hold the lock of the cache.

        Runs that add entries share the lock. To remove entries, hold the lock `alone`. Raises `cache-locked`.
        """
        # The lock is not in the disk cache itself: containers write there, and could replace the lock.
        path = self.cache / "locks" / f"disk-{self.key}"
        return held(path, f"the disk cache {self.key}", alone=alone, waiting=waiting)

    def opened(self) -> UntrustedFolder:
        """Open the cache's folder; raises OSError."""
        return opened(self.folder)

    def entries(self) -> Iterator[CacheEntry]:
        """Yield the cache's files, in both layouts of Bazel. Links count as not Bazel's; files that disappear
        meanwhile are left out.

        Raises OSError for a folder that cannot be read: such a folder may have entries.
        """
        try:
            folder = self.opened()
        except FileNotFoundError:
            return
        with folder:
            # `ac` before `cas`: a build writes an action after its blobs, so the blobs of each listed action exist.
            for file in folder.entries(_DEPTH):
                if not is_whiteout(file):
                    yield _entry(file)

    def is_empty(self) -> bool:
        """Return whether the cache is empty; raises OSError."""
        return next(self.entries(), None) is None

    def open(self, name: str) -> BufferedReader:
        """Open an entry without changing its time of last use. Raises OSError, also for a link."""
        with self.opened() as folder:
            return folder.open(name, unnoticed=True)

    def message(self, name: str) -> bytes:
        """Read a message of the action cache. Raises OSError, and MalformedEntry if the message is too large."""
        with self.open(name) as file:
            # A container can create a sparse file of terabytes that uses no disk space.
            if is_hollow(file.fileno()):
                raise MalformedEntry("the file is sparse: nearly all of it has no data")
            # One byte more than allowed shows that a message is too large, and bounds the memory.
            return checked_message(file.read(LARGEST + 1))

    def is_hollow(self, entry: CacheEntry) -> bool:
        """Return whether an entry's file is sparse, with hardly any data; False if the file cannot be opened."""
        with suppress(OSError), self.open(entry.name) as file:
            return is_hollow(file.fileno())
        return False

    def describe(self, toolchain: Mapping[str, Any]) -> None:
        """Write a note about the cache's toolchain."""
        text = json.dumps({"schema": "tfdock.toolchain/1", "key": self.key, **toolchain}, indent=1)
        make_folder(self.about)
        write_atomically(self.about / "toolchain.json", text.encode() + b"\n")

    def description(self) -> Mapping[str, Any]:
        """Return the last note of `describe`; empty if there is none."""
        return UntrustedPath(self.about, "toolchain.json").load(dict[str, Any], _MOST_NOTE) or {}

    def note_build(self, build_id: str) -> None:
        """Note that a build of this build id compiles with the cache. `last_build` reads this note."""
        make_folder(self.about / "builds")
        write_atomically(self.about / "builds" / build_id, b"")

    def last_build(self, build_id: str) -> float | None:
        """Return the Unix time when a build of this build id last compiled with the cache; None if none did."""
        # Only the file's time counts: older versions listed in the file what the build used.
        with suppress(FileNotFoundError):
            return (self.about / "builds" / build_id).lstat().st_mtime
        return None


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """A cache folder that tfdock made. Get it with `opened` or `existing`."""

    root: Path

    @classmethod
    def opened(cls, path: Path) -> CacheFolder:
        """Return the cache folder at a path. An empty or missing folder becomes a cache folder.

        Raises ProfileError (`cache-foreign`) if the folder has other files, or if other users can write to it. Then
        the folder stays unchanged.
        """
        root = path.absolute()
        with suppress(OSError):  # the next step reports it
            make_private(root)
        make_folder(root)
        folder = cls(root)
        folder._check_private()
        folder._check_names()
        if not folder.is_ours:
            write_atomically(root / TAG, _TAG_TEXT.encode())
        return folder

    @classmethod
    def existing(cls, path: Path) -> CacheFolder | None:
        """Return the cache folder; None if the folder is missing or empty. Write nothing.

        Raises ProfileError (`cache-foreign`) as `opened` does.
        """
        folder = cls(path.absolute())
        folder._check_names()
        if not folder.is_ours:
            return None
        folder._check_private()
        return folder

    @property
    def is_ours(self) -> bool:
        """Whether the folder has the tag that tfdock writes."""
        tag = self.root / TAG
        # A link could lead to the tag of another folder, and make a foreign folder ours.
        if tag.is_symlink() or not tag.is_file():
            return False
        with tag.open("rb") as file:
            # Only the first two lines count: the third is for people, and may change.
            return file.read(len(_TAG_TEXT.encode())).startswith(f"{_SIGNATURE}\n{_OURS}\n".encode())

    def _check_private(self) -> None:
        """Raise ProfileError if another user could have added files to the cache, or replaced it by a link."""
        others = self.root.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
        for path in (self.root, *(self.root / name for name in (*_PARTS, "locks"))):
            # The parts of the cache are created when they are first needed.
            with suppress(FileNotFoundError):
                # A container may give its folders any mode. Below a closed folder, nobody else can reach them.
                if who := other_writers(path, reachable=path == self.root or bool(others)):
                    raise ProfileError.of(
                        "cache-foreign",
                        f"the cache folder {path} {who}",
                        (f"if the folder is yours, run `chmod go-w {path}`", "give another folder (`--cache-dir`)"),
                        why="builds trust the content of the cache",
                    )

    def _check_names(self) -> None:
        """Raise ProfileError for a folder that holds something and is not ours."""
        # List before reading the tag: another run may mark the folder and use it at this moment.
        names = [entry.name for entry in _list_entries(self.root) if not entry.name.startswith(_BEING_MADE)]
        foreign = [name for name in names if name not in _UNUSED]
        if foreign and not self.is_ours:
            examples = ", ".join(f"`{entry[:40]}`" for entry in foreign[:3]) + (", …" if len(foreign) > 3 else "")
            raise ProfileError.of(
                "cache-foreign",
                f"{self.root} is not a cache folder of tfdock: it has {examples}, but no `{TAG}` that tfdock wrote",
                "give another folder (`--cache-dir`): a cache of tfdock, or an empty or new folder",
            )

    @property
    def repository(self) -> Path:
        """Bazel's repository cache."""
        return self.root / "repository"

    @property
    def outputs(self) -> Path:
        """The folder of the runs' output bases."""
        return self.root / "output"

    def run_folder(self, run: str) -> Path:
        """Return the folder of a run: Bazel's output base, and the run's own files."""
        return self.outputs / run

    def output_lock(self, name: str) -> Path:
        """Return the lock of an output base that outlives its run."""
        return self.root / "locks" / f"output-{name}"

    def disk(self, key: str) -> DiskCache:
        """Return the disk cache of a toolchain key. The disk cache need not exist."""
        return DiskCache(self.root, key)

    def disks(self) -> list[DiskCache]:
        """Return the disk caches that exist."""
        # `….about` and `….work` lie beside the caches.
        return [self.disk(path.name) for path in folders(self.root / "disk") if _KEY.fullmatch(path.name)]

    def parts(self) -> dict[str, int]:
        """Return the bytes of each part of the cache that exists."""
        return {path.name: folder_size(path) for path in folders(self.root) if path.name in _PARTS}

    def in_use(self, *, alone: bool = False, waiting: Waiting | None = None) -> AbstractContextManager[None]:
        """Lock the whole folder. Runs share the lock. To remove files that runs may use, hold the lock `alone`."""
        return held(self.root / "locks" / "runs", f"the cache {self.root}", alone=alone, waiting=waiting)


def folders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder, by name; none if the folder is a link or missing. Links are not followed."""
    entries = [] if folder.is_symlink() else _list_entries(folder)
    return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def opened(path: Path) -> UntrustedFolder:
    """Open a part of a cache that containers write to; the part itself may be a link to a larger disk."""
    return UntrustedFolder.opened(path.resolve())


def checked_message(data: bytes) -> bytes:
    """Return a message of the action cache; raise MalformedEntry if the message has more than `LARGEST` bytes."""
    if len(data) > LARGEST:
        raise MalformedEntry(f"the message has more than {LARGEST} bytes")
    return data


def is_whiteout(file: FoundFile) -> bool:
    """Return whether the file is an overlay's whiteout: the mark for a removed entry of the lower cache."""
    # overlayfs: a whiteout is a character device with the number 0/0.
    return stat.S_ISCHR(file.status.st_mode) and file.status.st_rdev == 0


def check_writable(path: Path, depth: int) -> None:
    """Raise BuildFailed if this user cannot write to a folder or its subfolders, at most `depth` levels down.

    Bazel runs as this user. If Bazel cannot write there, Bazel fails, or stores nothing and compiles everything again
    next time.
    """
    with suppress(FileNotFoundError), opened(path) as folder:
        _check_writable(folder, depth)


def _check_writable(folder: UntrustedFolder, depth: int) -> None:
    # Ask the kernel instead of reading the mode: access lists and read-only mounts count too.
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fileno()):
        raise BuildFailed(_not_writable(folder))
    for entry in folder.entries() if depth else ():
        if entry.is_folder:
            try:
                subfolder = folder.folder(entry.name)
            except FileNotFoundError:
                continue
            except PermissionError:
                raise BuildFailed(_not_writable(folder, entry)) from None
            with subfolder:
                _check_writable(subfolder, depth - 1)


def _not_writable(folder: UntrustedFolder, within: FoundFile | None = None) -> Problem:
    status, user = within.status if within else os.fstat(folder.fileno()), os.geteuid()
    path = folder.path / within.name if within else folder.path
    why, fix = f"the owner is user {status.st_uid}", f"`sudo chown -R {user}:{os.getegid()}` the cache"
    # Check this first: on a read-only file system, owner and mode are not the reason.
    if os.fstatvfs(folder.fileno()).f_flag & os.ST_RDONLY:
        why, fix = "the file system is read-only", "mount the file system with write access"
    elif status.st_uid == user:
        why, fix = f"the mode is {stat.filemode(status.st_mode)}", "`chmod -R u+rwX` the cache"
    else:
        fix = f"was a build run as another user? {fix}"
    return Problem(
        "folder-not-writable", f"cannot write to {path}: {why}", f"{fix}, or give another folder (`--cache-dir`)"
    )


# --- files --------------------------------------------------------------------------------------------------------


def _list_entries(folder: os.PathLike[str] | str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, by name; none if it is missing. Raise OSError if it may not be read."""
    try:
        with os.scandir(folder) as entries:
            # `scandir` has no order, and output should be the same each time.
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _entry(file: FoundFile) -> CacheEntry:
    inside, slash, last = file.name.rpartition("/")
    # Bazel writes plain files only: a link, a pipe or a device comes from something else.
    kind, digest = _classify(inside + slash, last) if file.is_plain else ("foreign", "")
    return CacheEntry(
        kind=kind,
        digest=digest,
        name=file.name,
        size=file.status.st_size,
        written=file.status.st_mtime_ns,
        read=file.status.st_atime_ns,
    )


def _classify(inside: str, name: str) -> tuple[str, str]:
    """Return kind and digest of a file by its place.

    Places are `ac/12/12…` and `cas/12/12…`, in older Bazels `ac_12…` and `12…`.
    """
    old = name.removeprefix(_OLD_ACTION)
    if not inside and _HASH.fullmatch(old):
        return ("action" if name != old else "blob"), old
    # Bazel looks for an entry below its own first two digits. Bazel would never use an entry in another place.
    places = {f"ac/{name[:2]}/": "action", f"cas/{name[:2]}/": "blob"}
    if inside in places and _HASH.fullmatch(name):
        return places[inside], name
    # Versions of Bazel write the temporary file in different folders.
    return ("half" if inside in ("", "tmp/", *places) and _HALF_WRITTEN.fullmatch(name) else "foreign"), ""
