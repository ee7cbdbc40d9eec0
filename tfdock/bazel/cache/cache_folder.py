"""The cache folder: its layout, and the locks that say who may change it when.

<cache>/CACHEDIR.TAG                    says what it is, and that tfdock made it
<cache>/repository/                     Bazel's downloads, shared by all builds
<cache>/disk/<toolchain key>/           Bazel's disk cache: its own files and nothing else
<cache>/disk/<toolchain key>-<domain>/  the same of a trust domain other than `release`
<cache>/disk/….about/                   which toolchain and domain that is, and what the builds with it used
<cache>/disk/….work/                    the kernel's own, where a domain's cache lies over the one of `release`
<cache>/output/<run id>/                a run's output base, as long as it lives or is kept
<cache>/dependencies/, knowledge/, verify/    what trials of wheels fetched, tables as read, logs of trials
<cache>/locks/                          kernel locks

Code in containers writes to `repository`, to the disk caches and to the output bases. So no path in them is ever used
by name: `tfdock.host.untrusted_folders` opens each part of it without following a link.
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
from tfdock.host.untrusted_folders import FoundFile, UntrustedFolder, folder_size, is_hollow
from tfdock.plan.trust_domain import RELEASE, split_key

TAG = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
_OURS = "# This folder is a cache that tfdock made: `tfdock cache` looks after it."
_TAG_TEXT = f"{_SIGNATURE}\n{_OURS}\n# What such files are for: https://bford.info/cachedir/\n"

_PARTS = ("repository", "disk", "output", "downloads", "dependencies", "knowledge", "verify")
"""Folders that hold something; beside them only the tag and the locks."""
_KNOWN = frozenset({*_PARTS, "locks", TAG, "lost+found"})
"""What a cache folder may hold; the last one is the file system's, where the folder is one of its own."""
_BEING_MADE = f".{TAG}."
"""What another run that opens the folder at the same moment has there for a moment."""
_KEY = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{16})?")
_HASH = re.compile(r"[0-9a-f]{64}")
_HALF_WRITTEN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""Bazel writes an entry under such a name, and renames it when it is whole."""
_OLD_ACTION = "ac_"
_DEPTH = 3

Waiting = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A file of a disk cache. `size` in bytes; `written` and `read` are its times in nanoseconds.

    `kind` is `action`, `blob`, `half` (left half written) or `foreign` (nothing of Bazel's); `digest` is the name of
    the first two, 64 hexadecimal digits.
    """

    kind: str
    digest: str
    name: str
    """Within the disk cache."""
    size: int
    written: int
    read: int

    @property
    def used(self) -> int:
        """When it was read or written last, in nanoseconds."""
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
        """The disk cache that lies below this one; None for that one itself."""
        return None if self.domain == RELEASE else DiskCache(self.cache, self.toolchain)

    @property
    def folder(self) -> Path:
        """What Bazel sees, or writes to where it sees another cache below."""
        return self.cache / "disk" / self.key

    @property
    def work(self) -> Path:
        """What the kernel needs beside it, where it lies over another cache."""
        return self.cache / "disk" / f"{self.key}.work"

    @property
    def about(self) -> Path:
        """What tfdock notes beside it."""
        return self.cache / "disk" / f"{self.key}.about"

    def held(self, *, alone: bool, waiting: Waiting | None = None) -> AbstractContextManager[None]:
        """Hold its lock: with others who let it grow, or alone to take things away; raises `cache-locked`."""
        path = self.cache / "locks" / f"disk-{self.key}"
        return held(path, f"the disk cache {self.key}", alone=alone, waiting=waiting)

    def opened(self) -> UntrustedFolder:
        """Open its folder; raises OSError."""
        return opened(self.folder)

    def entries(self) -> Iterator[CacheEntry]:
        """Its files, in both layouts that Bazel has had; links are foreign, what disappears meanwhile is left out.

        Raises OSError for a folder that cannot be read: what is in it is not known, which is not nothing.
        """
        try:
            folder = self.opened()
        except FileNotFoundError:
            return
        with folder:
            # `ac` before `cas`: a build writes an action last, so what a listed one needs is there when looked for.
            for found in folder.entries(_DEPTH):
                if not is_whiteout(found):
                    yield _entry(found)

    def is_empty(self) -> bool:
        """Return whether there is nothing in it; raises OSError."""
        return next(self.entries(), None) is None

    def open(self, name: str) -> BufferedReader:
        """Open an entry without counting this as a use; raises OSError, for a link too."""
        with self.opened() as folder:
            return folder.open(name, unnoticed=True)

    def message(self, name: str) -> bytes:
        """Read what should be a message of the action cache; raises Malformed for one too large, and OSError."""
        with self.open(name) as file:
            if is_hollow(file.fileno()):
                raise MalformedEntry("it consists of holes")
            return checked_message(file.read(LARGEST + 1))

    def is_hollow(self, entry: CacheEntry) -> bool:
        """Return whether an entry consists of holes; False for one that cannot be opened."""
        with suppress(OSError), self.open(entry.name) as file:
            return is_hollow(file.fileno())
        return False

    def describe(self, toolchain: Mapping[str, Any]) -> None:
        """Note which toolchain it is for."""
        text = json.dumps({"schema": "tfdock.toolchain/1", "key": self.key, **toolchain}, indent=1)
        make_folder(self.about)
        write_atomically(self.about / "toolchain.json", text.encode() + b"\n")

    def description(self) -> Mapping[str, Any]:
        """What `describe` noted last; empty where nothing is."""
        return read_json(self.about / "toolchain.json")


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """A cache folder that is tfdock's own. Use `opened` to get one."""

    root: Path

    @classmethod
    def opened(cls, path: Path) -> CacheFolder:
        """The cache folder there, made if it is not; one that an earlier version made is marked as such.

        Raises ProfileError (`cache-foreign`) for a folder that holds anything else, or that others can write to: it
        is not touched.
        """
        root = path.absolute()
        with suppress(OSError):  # told by what comes next
            make_private(root)
        make_folder(root)
        folder = cls(root)
        folder._check_private()
        if not folder.is_ours:
            folder._adopt()
        return folder

    @classmethod
    def existing(cls, path: Path) -> CacheFolder | None:
        """The same, or None where there is no folder or an empty one; makes nothing but the mark."""
        folder = cls(path.absolute())
        if folder.root.is_dir() and folder.is_ours:
            folder._check_private()
            return folder
        return cls.opened(path) if _listed(folder.root) else None

    @property
    def is_ours(self) -> bool:
        """Whether it carries the tag that tfdock writes."""
        tag = self.root / TAG
        if tag.is_symlink() or not tag.is_file():
            return False
        with tag.open("rb") as file:
            return file.read(len(_TAG_TEXT.encode())).startswith(f"{_SIGNATURE}\n{_OURS}\n".encode())

    def _check_private(self) -> None:
        """Raise ProfileError where another user could have put something into the cache, or a link in its place."""
        others = self.root.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
        for path in (self.root, *(self.root / name for name in (*_PARTS, "locks"))):
            with suppress(FileNotFoundError):
                # A container may give its folders any mode. Behind a closed folder that lets nobody in.
                if who := other_writers(path, reachable=path == self.root or bool(others)):
                    raise ProfileError(
                        Problem(
                            code="cache-foreign",
                            message=f"the cache folder {path} {who}",
                            why="builds believe what they find in the cache",
                            fix=(f"if it is yours, run `chmod go-w {path}`", "give another folder (`--cache-dir`)"),
                        )
                    )

    def _adopt(self) -> None:
        names = {one.name for one in self.root.iterdir() if not one.name.startswith(_BEING_MADE)}
        if self.is_ours:  # another run was quicker
            return
        strange = sorted(names - _KNOWN) or sorted(names & {TAG})
        if strange:
            held_there = ", ".join(f"`{one[:40]}`" for one in strange[:3]) + (", …" if len(strange) > 3 else "")
            raise ProfileError(
                Problem(
                    code="cache-foreign",
                    message=f"{self.root} is not a cache folder of tfdock's: it holds {held_there}",
                    fix="give another folder (`--cache-dir`), or one that is empty or does not exist",
                )
            )
        write_atomically(self.root / TAG, _TAG_TEXT.encode())

    @property
    def repository(self) -> Path:
        """Bazel's repository cache."""
        return self.root / "repository"

    @property
    def outputs(self) -> Path:
        """The folder of the runs' output bases."""
        return self.root / "output"

    def output(self, run: str) -> Path:
        """The folder of a run's output base."""
        return self.outputs / run

    def disk(self, key: str) -> DiskCache:
        """The disk cache of a toolchain key, which need not exist."""
        return DiskCache(self.root, key)

    def disks(self) -> list[DiskCache]:
        """The disk caches that are there."""
        return [self.disk(path.name) for path in folders(self.root / "disk") if _KEY.fullmatch(path.name)]

    def parts(self) -> dict[str, int]:
        """Bytes of each part of the cache that is there."""
        return {path.name: folder_size(path) for path in folders(self.root) if path.name in _PARTS}

    def in_use(self, *, alone: bool = False, waiting: Waiting | None = None) -> AbstractContextManager[None]:
        """Hold the whole folder: every run does, with others; alone to remove what runs may be using."""
        return held(self.root / "locks" / "runs", f"the cache {self.root}", alone=alone, waiting=waiting)


def folders(folder: Path) -> list[Path]:
    """The folders in a folder, by name; none where it is a link, or not there. Links are not followed."""
    found = [] if folder.is_symlink() else _listed(folder)
    return [Path(one.path) for one in found if one.is_dir(follow_symlinks=False)]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON map in a file of ours; empty where there is none, or nothing that can be read."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def opened(path: Path) -> UntrustedFolder:
    """Open a part of a cache that containers write to; the part itself may be a link to a larger disk."""
    return UntrustedFolder.opened(path.resolve())


def checked_message(data: bytes) -> bytes:
    """Return a message of the action cache; raises Malformed for one that is larger than any."""
    if len(data) > LARGEST:
        raise MalformedEntry(f"it has more than the {LARGEST} bytes that such an entry may have")
    return data


def is_whiteout(found: FoundFile) -> bool:
    """Return whether this is how the kernel notes that an entry of the cache below was removed."""
    return stat.S_ISCHR(found.status.st_mode) and found.status.st_rdev == 0


def check_writable(path: Path, depth: int) -> None:
    """Raise BuildFailed for a folder there, so many levels down, in which this user cannot write.

    Bazel runs as this user: on such a one it fails, or keeps nothing and compiles all of it the next time too.
    """
    with suppress(FileNotFoundError), opened(path) as folder:
        _check_writable(folder, depth)


def _check_writable(folder: UntrustedFolder, depth: int) -> None:
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fileno()):
        raise BuildFailed(_not_writable(folder))
    for found in folder.entries() if depth else ():
        if stat.S_ISDIR(found.status.st_mode):
            try:
                below = folder.folder(found.name)
            except FileNotFoundError:
                continue
            except PermissionError:
                raise BuildFailed(_not_writable(folder, found)) from None
            with below:
                _check_writable(below, depth - 1)


def _not_writable(folder: UntrustedFolder, within: FoundFile | None = None) -> Problem:
    about, here = within.status if within else os.fstat(folder.fileno()), os.geteuid()
    path = folder.path / within.name if within else folder.path
    why, way = f"it belongs to user {about.st_uid}", f"`sudo chown -R {here}:{os.getegid()}` the cache"
    if os.fstatvfs(folder.fileno()).f_flag & os.ST_RDONLY:
        why, way = "its file system is read-only", "have it mounted so that it can be written to"
    elif about.st_uid == here:
        why, way = f"its mode is {stat.filemode(about.st_mode)}", "`chmod -R u+rwX` the cache"
    else:
        way = f"was a build run as another user? {way}"
    return Problem(
        code="folder-not-writable",
        message=f"cannot write to {path}: {why}",
        fix=f"{way}, or give another (`--cache-dir`)",
    )


# --- files --------------------------------------------------------------------------------------------------------


def _listed(folder: os.PathLike[str] | str) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; nothing if there is none. Raises OSError for one that may not be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda one: one.name)
    except FileNotFoundError:
        return []


def _entry(found: FoundFile) -> CacheEntry:
    inside, slash, last = found.name.rpartition("/")
    kind, digest = _named(inside + slash, last) if found.is_plain else ("foreign", "")
    return CacheEntry(
        kind=kind,
        digest=digest,
        name=found.name,
        size=found.status.st_size,
        written=found.status.st_mtime_ns,
        read=found.status.st_atime_ns,
    )


def _named(inside: str, name: str) -> tuple[str, str]:
    """Kind and digest by the place: `ac/12/12…` and `cas/12/12…`, of older Bazels `ac_12…` and `12…`."""
    old = name.removeprefix(_OLD_ACTION)
    if not inside and _HASH.fullmatch(old):
        return ("action" if name != old else "blob"), old
    places = {f"ac/{name[:2]}/": "action", f"cas/{name[:2]}/": "blob"}
    if inside in places and _HASH.fullmatch(name):
        return places[inside], name
    return ("half" if inside in ("", "tmp/", *places) and _HALF_WRITTEN.fullmatch(name) else "foreign"), ""
