"""Open folders that others could write to: a container, or somebody who filled a wheelhouse or a checkout.

Each access begins at an open descriptor of the folder, and opens the parts of the name one by one. No link is
followed. So a name never leads out of the folder, even if another process meanwhile replaces a part by a link.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tfdock.host.foreign_json import Malformed, parse

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO would wait for a writer. O_NOCTTY: a terminal would become this process's own.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a socket fails with ENXIO; opening a link with O_NOFOLLOW fails with ELOOP (open(2)).
#: The kernel's error codes for a file of another kind than expected.
_OTHER_KIND = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFREG: "a file",
}
_SMALL = 1 << 20  #: Files up to this size are read even if they are sparse.
_AT_ONCE = 10_000  #: The most names of a folder that are kept in memory while the folder is removed.
_WALKED = 100  #: The most nested levels of folders that are searched.
_DEEPEST = 32  #: The most levels of folders that are open at the same time during a removal.


class NotPlain(OSError):
    """A name stands for a link, a FIFO, a socket or a device, but a file or a folder is needed. `kind` says which."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(errno.ELOOP, f"{kind}, but a file or a folder is expected", name)
        self.name, self.kind = name, kind


class TooManyNames(OSError):
    """A folder contains more names than the caller accepts."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(errno.E2BIG, f"the folder has more than {most:,} names", name)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A name within a folder, with `/` between its parts, and its status (for a link, the link's own status)."""

    name: str
    status: os.stat_result

    @property
    def is_plain(self) -> bool:
        """Return whether the name stands for a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_folder(self) -> bool:
        """Return whether the name stands for a folder."""
        return stat.S_ISDIR(self.status.st_mode)


def has_holes(descriptor: int) -> bool:
    """Return whether an open file is sparse. A copy of such a file needs the full size."""
    size = os.fstat(descriptor).st_size
    with suppress(OSError):  # the file system does not support SEEK_HOLE
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE) if size else size
        # Go back to the start of the file, where the next reader expects to begin.
        os.lseek(descriptor, 0, os.SEEK_SET)
        return hole < size
    return False


def is_hollow(descriptor: int) -> bool:
    """Return whether an open file is sparse: larger than 1 MiB, and data in at most a sixteenth of the file.

    Small holes do not count: the outputs of a compiler may have them.
    """
    status = os.fstat(descriptor)
    # A block of `stat` always has 512 bytes, regardless of the file system (inode(7)).
    room = 512 * status.st_blocks
    return status.st_size > _SMALL and status.st_size > 16 * room and has_holes(descriptor)


def kind_of(status: os.stat_result) -> str:
    """Return the kind of file that a status belongs to, in words: "a link", "a FIFO"."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something unknown")


class UntrustedFolder:
    """A folder that a container could write to, held by its descriptor. As a context manager, it closes the folder.

    Every method takes names within the folder, with `/` between their parts. Every method raises OSError; NotPlain if
    a part of the name is a link, or the file is of another kind; ValueError for a name such as `../x`.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        """Take over an open descriptor. `path` is used in messages only."""
        self._descriptor = descriptor
        self.path = path

    @classmethod
    def opened(cls, path: Path, *, follow: bool = False) -> Self:
        """Open a folder. Only with `follow` it may be a link. The caller must trust the folders above it."""
        try:
            return cls(os.open(path, _FOLDER & ~(os.O_NOFOLLOW if follow else 0)), path)
        except OSError as error:
            raise _error_of(error, os.fspath(path), None) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor, for calls about the folder itself."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- reading ---

    def folder(self, name: str, *, make: bool = False, mode: int = 0o777) -> UntrustedFolder:
        """Open a folder within this folder. With `make`, create missing folders with this mode."""
        # A copy, since the loop closes each folder when the next one is open.
        descriptor = os.dup(self._descriptor)
        for part in _parts(name) if name else ():
            try:
                below = _open_folder(descriptor, part, mode if make else None)
            finally:
                os.close(descriptor)
            descriptor = below
        return UntrustedFolder(descriptor, self.path / name)

    def open(self, name: str, *, unnoticed: bool = False) -> BufferedReader:
        """Open a regular file to read. With `unnoticed`, keep the access time unchanged, if possible."""
        with self._parent(name) as (at, last):
            return os.fdopen(_open_file(at, last, os.O_NOATIME if unnoticed else 0), "rb")

    def status(self, name: str) -> os.stat_result:
        """Return the status of a name. No link is followed."""
        with self._parent(name) as (at, last):
            return os.stat(last, dir_fd=at, follow_symlinks=False)

    def exists(self, name: str) -> bool:
        """Return whether the name exists, even as a broken link."""
        try:
            return bool(self.status(name))
        except FileNotFoundError:
            return False

    def link(self, name: str) -> str:
        """Return the target text of a link."""
        with self._parent(name) as (at, last):
            return os.readlink(last, dir_fd=at)

    def entries(self, depth: int = 0, *, most: int | None = None) -> Iterator[FoundFile]:
        """Yield the entries of this folder and its subfolders, `depth` levels down, sorted by name in each folder.

        Folders are yielded only at the last level. Entries that disappear during the call are left out. Raises
        TooManyNames as soon as there are more than `most` names in all, and OSError for a folder that cannot be read.
        """
        yield from self._entries("", depth, itertools.count(1), most)

    def _entries(self, inside: str, depth: int, count: Iterator[int], most: int | None) -> Iterator[FoundFile]:
        names = []
        with os.scandir(self._descriptor) as listed:
            for entry in listed:
                # Counted while listing, so that a million names are not collected first.
                if most is not None and next(count) > most:
                    raise TooManyNames(most, str(self.path))
                names.append(entry.name)
        for name in sorted(names):
            try:
                status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
                below = self.folder(name) if depth and stat.S_ISDIR(status.st_mode) else None
            # A process in the container may still remove or replace names.
            except (FileNotFoundError, NotPlain):
                continue
            if below is None:
                yield FoundFile(inside + name, status)
                continue
            with below:
                yield from below._entries(f"{inside}{name}/", depth - 1, count, most)

    def walk(self, depth: int = _WALKED) -> Iterator[FoundFile]:
        """Yield all files and folders, `depth` levels down, in any order. Skip entries that are gone or unreadable.

        The names of a folder are not kept in memory, because there may be too many.
        """
        with suppress(OSError), os.scandir(self._descriptor) as listed:
            for entry in listed:
                with suppress(OSError):
                    file = FoundFile(entry.name, os.stat(entry.name, dir_fd=self._descriptor, follow_symlinks=False))
                    yield file
                    if depth and file.is_folder:
                        with self.folder(entry.name) as below:
                            for inside in below.walk(depth - 1):
                                yield FoundFile(f"{entry.name}/{inside.name}", inside.status)

    # --- writing ---

    def write(
        self,
        name: str,
        chunks: Iterable[bytes],
        *,
        durable: bool = False,
        mode: int | None = None,
        keep: bool = False,
    ) -> None:
        """Write a file atomically: readers see either the old file or the new file. Create missing folders.

        The file is always new: nothing is written through a link, or to a file with a second name. Without `durable`,
        the write takes a thousandth of the time, but the file may be lost or damaged if the machine crashes. The file
        gets exactly `mode`; without a mode, 0666 reduced by the umask. With `keep`, the new file gets the old file's
        permissions, and (as far as this process can set them) its owner and group.
        """
        with self.written(name, chunks, durable=durable, mode=mode, keep=keep):
            pass

    @contextmanager
    def written(
        self,
        name: str,
        chunks: Iterable[bytes],
        *,
        durable: bool = False,
        mode: int | None = None,
        keep: bool = False,
    ) -> Iterator[None]:
        """Write a file like `write`, around the body of a `with` statement: the data is written before the body, and
        the file gets its name after the body.
        """
        with self._parent(name, make=True) as (at, last):
            # Nobody can guess the name and take it first. A name has at most 255 bytes.
            temporary = f".{last[:200]}.{os.getpid()}-{secrets.randbelow(1 << 64)}"
            old = os.stat(last, dir_fd=at, follow_symlinks=False) if keep else None
            if old and not stat.S_ISREG(old.st_mode):
                raise NotPlain(last, "another kind of file")
            try:
                # The mode is set at creation: before a later chmod, others could open the file.
                descriptor = os.open(
                    temporary, _NEW_FILE, 0o600 if keep else 0o666 if mode is None else mode, dir_fd=at
                )
                with os.fdopen(descriptor, "wb") as file:
                    if old:
                        mode = _given_to_owner(descriptor, old)
                    if mode is not None:
                        os.fchmod(descriptor, mode)
                    file.writelines(chunks)
                    file.flush()
                    # Synced before the rename: else, after a power cut, the new name may lead to an empty file.
                    if durable:
                        os.fsync(descriptor)
                yield
                os.replace(temporary, last, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                with suppress(OSError):  # report the first error
                    os.unlink(temporary, dir_fd=at)
                raise
            if durable:
                with suppress(OSError):  # some file systems cannot sync folders
                    os.fsync(at)

    def create(self, name: str) -> FileIO:
        """Make a new file to write, without a buffer. Raises FileExistsError."""
        with self._parent(name) as (at, last):
            return FileIO(os.open(last, _NEW_FILE, 0o666, dir_fd=at), "wb")

    def update(self, name: str) -> FileIO:
        """Open a regular file to read and write, without a buffer.

        Create the folder and its parents if they do not exist.
        """
        with self._parent(name, make=True) as (at, last):
            return FileIO(_open_file(at, last, os.O_RDWR | os.O_CREAT), "r+b")

    def make_link(self, name: str, target: str) -> None:
        """Create a link with this target (it need not exist). Create missing folders. Raises FileExistsError."""
        with self._parent(name, make=True) as (at, last):
            os.symlink(target, last, dir_fd=at)

    def receive(self, file: Path, name: str) -> None:
        """Move one of the caller's files to this name. Create missing folders."""
        with self._parent(name, make=True) as (at, last):
            os.replace(file, last, dst_dir_fd=at)

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself; do nothing if it is missing."""
        with suppress(FileNotFoundError), self._parent(name) as (at, last):
            # By descriptor: a link that replaces a folder above cannot redirect the removal.
            os.unlink(last, dir_fd=at)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with its contents; do nothing if it is missing."""
        with suppress(FileNotFoundError), self._parent(name) as (at, last):
            with _open_with_access(at, last, (self.path / name).parent) as below:
                below.empty()
            os.rmdir(last, dir_fd=at)

    def empty(self) -> None:
        """Remove everything in the folder, whatever modes its subfolders have.

        Files that another process removes at the same time are ignored.
        """
        # Move deep folders to the top: a million levels must not need a million descriptors.
        deep: deque[str] = deque()
        self._empty(self, deep, 0)
        while deep:
            name = deep.popleft()
            with suppress(FileNotFoundError):
                with _open_with_access(self._descriptor, name, self.path) as below:
                    below._empty(self, deep, 0)
                os.rmdir(name, dir_fd=self._descriptor)

    def _empty(self, top: UntrustedFolder, deep: deque[str], depth: int) -> None:
        waiting = set(deep) if depth == 0 and top is self else set[str]()
        # List again until nothing is left: another process may add names meanwhile.
        while names := self._list_some(waiting):
            for name, is_folder in names:
                with suppress(FileNotFoundError):  # another run cleans up the same leftover
                    if not is_folder:
                        os.unlink(name, dir_fd=self._descriptor)
                    elif depth == _DEEPEST:
                        self._move_up(name, top, deep)
                    else:
                        with _open_with_access(self._descriptor, name, self.path) as below:
                            below._empty(top, deep, depth + 1)
                        os.rmdir(name, dir_fd=self._descriptor)
            # Folders that were moved up meanwhile are emptied afterwards, in the order of `deep`.
            if depth == 0 and top is self:
                waiting = set(deep)

    def _list_some(self, but: set[str]) -> list[tuple[str, bool]]:
        """Return names in the folder and whether each is a folder: all names, or as many as memory allows."""
        with os.scandir(self._descriptor) as listed:
            entries = ((entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed if entry.name not in but)
            return list(itertools.islice(entries, _AT_ONCE))

    def _move_up(self, name: str, top: UntrustedFolder, deep: deque[str]) -> None:
        moved = f".deep-{secrets.token_hex(8)}"
        _open_with_access(self._descriptor, name, self.path).close()  # moving a folder needs write access to it
        os.rename(name, moved, src_dir_fd=self._descriptor, dst_dir_fd=top._descriptor)
        deep.append(moved)

    @contextmanager
    def _parent(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the parent folder of a name; yield its descriptor and the last part of the name."""
        *above, last = _parts(name)
        with self.folder("/".join(above), make=make) as folder:
            yield folder._descriptor, last


class TooLarge(OSError):
    """A file has more bytes than the caller accepts."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(errno.EFBIG, f"the file has more than {most:,} bytes", name)


@dataclass(frozen=True, slots=True, order=True)
class UntrustedPath:
    """A path below a folder that others may have filled, such as a wheelhouse in a stranger's checkout.

    Each access opens `root` and follows no link below `root`. `root` itself may be a link, because the user named it.
    Methods that write create a missing `root`. The class is not `os.PathLike`, so that no other code opens the path.
    Every method raises OSError, or NotPlain if a part of the path is a link or another kind of file.
    """

    root: Path
    inside: str = ""  #: With `/` between its parts.

    def __truediv__(self, name: str) -> UntrustedPath:
        return UntrustedPath(self.root, f"{self.inside}/{name}" if self.inside else name)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The path, for messages and for programs that need a path as an argument."""
        return self.root / self.inside

    @property
    def name(self) -> str:
        """The last part."""
        return self.inside.rpartition("/")[2]

    @property
    def parent(self) -> UntrustedPath:
        """The parent folder."""
        return UntrustedPath(self.root, self.inside.rpartition("/")[0])

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[tuple[UntrustedFolder, str]]:
        try:
            if make:
                self.root.mkdir(parents=True, exist_ok=True)
            with UntrustedFolder.opened(self.root, follow=True) as root:
                yield root, self.inside
        except OSError as error:
            # The error names one part of the path; users know the whole path.
            error.filename = str(self)
            raise

    def status(self) -> os.stat_result | None:
        """Return the status of the name itself (for a link, of the link); None if it is missing."""
        with suppress(FileNotFoundError, NotPlain), self._opened() as (root, name):
            return root.status(name)
        return None

    def is_file(self) -> bool:
        """Return whether the name is a regular file."""
        status = self.status()
        return status is not None and stat.S_ISREG(status.st_mode)

    @property
    def size(self) -> int:
        """The size of a regular file in bytes; 0 if there is none."""
        status = self.status()
        return status.st_size if status and stat.S_ISREG(status.st_mode) else 0

    def is_folder(self) -> bool:
        """Return whether the name is a folder."""
        status = self.status()
        return status is not None and stat.S_ISDIR(status.st_mode)

    def entries(self) -> list[UntrustedPath]:
        """Return the folder's entries by name; empty if there is no folder."""
        with suppress(FileNotFoundError, NotPlain), self._opened() as (root, name), root.folder(name) as folder:
            return [self / entry for entry in sorted(os.listdir(folder.fileno()))]  # noqa: PTH208 - a descriptor
        return []

    def walk(self) -> Iterator[FoundFile]:
        """Yield this path (with an empty name) and everything below it, with status; nothing if it is missing."""
        if status := self.status():
            yield FoundFile("", status)
            with suppress(OSError), self._opened() as (root, name), root.folder(name) as folder:
                yield from folder.walk()

    def open(self) -> BufferedReader:
        """Open a regular file to read."""
        with self._opened() as (root, name):
            return root.open(name)

    def read(self, most: int) -> bytes:
        """Return the bytes of a regular file; raises TooLarge if it has more than `most` bytes."""
        with self.open() as file:
            # Read one byte more: it shows that the file is too large, whatever its reported size.
            data = file.read(most + 1)
        if len(data) > most:
            raise TooLarge(most, str(self))
        return data

    def load(self, kind: Any, most: int) -> Any:
        """Return the JSON in a file of at most `most` bytes (see `parse`); None if it is missing or malformed."""
        with suppress(OSError, Malformed):
            return parse(kind, self.read(most))
        return None

    def sha256(self) -> str:
        """Return the sha256 of a regular file: 64 hexadecimal digits."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def write(self, data: bytes, *, durable: bool = True) -> None:
        """Write a file completely or not at all; see `UntrustedFolder.write`."""
        with self.written(data, durable=durable):
            pass

    @contextmanager
    def written(self, data: bytes, *, durable: bool = True) -> Iterator[None]:
        """Write a file as `write` does, around the body of a `with` statement."""
        with self._opened(make=True) as (root, name), root.written(name, [data], durable=durable):
            yield

    def create(self) -> FileIO:
        """Make a new file to write, without a buffer; raises FileExistsError."""
        with self._opened() as (root, name):
            return root.create(name)

    def make(self, *, private: bool = False) -> None:
        """Create the folder and its missing parents. With `private`, only this user can enter it."""
        with self._opened(make=True) as (root, name):
            root.folder(name, make=True, mode=0o700 if private else 0o777).close()

    def receive(self, file: Path) -> None:
        """Move one of the caller's files to this path, on the same file system."""
        with self._opened(make=True) as (root, name):
            root.receive(file, name)

    def remove(self) -> None:
        """Remove a file, or a link itself; do nothing if it is missing."""
        with suppress(FileNotFoundError, NotPlain), self._opened() as (root, name):
            root.remove(name)

    def remove_folder(self) -> None:
        """Remove a folder with its contents; do nothing if it is missing."""
        with suppress(FileNotFoundError), self._opened() as (root, name):
            root.remove_folder(name)

    def remove_empty(self) -> None:
        """Remove an empty folder; raises OSError if it is not empty."""
        with self._opened() as (root, name), root._parent(name) as (at, last):
            os.rmdir(last, dir_fd=at)

    def update(self) -> FileIO:
        """Open a regular file to read and write, without a buffer; see `UntrustedFolder.update`."""
        with self._opened(make=True) as (root, name):
            return root.update(name)


@contextmanager
def open_plain_file(path: Path | UntrustedPath) -> Iterator[BufferedReader | None]:
    """Open a file that others may have written; None if it is a link, or not a regular file."""
    place = path if isinstance(path, UntrustedPath) else UntrustedPath(path.parent, path.name)
    try:
        file = place.open()
    except OSError:
        yield None
        return
    with file:
        yield file


def remove_folder(path: Path) -> None:
    """Remove a folder with everything in it, whatever modes its subfolders have. Do nothing if it does not exist.

    The folder above must belong to the caller: no container could write to it. Raises OSError; NotPlain for a link.
    """
    with suppress(FileNotFoundError), UntrustedFolder.opened(path.parent, follow=True) as above:
        above.remove_folder(path.name)


def open_up(path: Path, depth: int) -> None:
    """Restore this user's access to a folder and its subfolders (`depth` levels down), if a container took it away.

    Folders of other users stay as they are. Do nothing if the folder does not exist. Raises OSError.
    """
    with UntrustedFolder.opened(path.parent, follow=True) as above:
        _open_up(above, path.name, depth)


def _open_up(above: UntrustedFolder, name: str, depth: int) -> None:
    with (
        suppress(FileNotFoundError, PermissionError, NotPlain),
        _open_with_access(above._descriptor, name, above.path) as folder,
    ):
        for inner, is_folder in folder._list_some(set()) if depth else ():
            if is_folder:
                _open_up(folder, inner, depth - 1)


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"not a name within a folder: {name!a}")
    return parts


def _open_folder(at: int, name: str, mode: int | None) -> int:
    try:
        if mode is not None:
            # Two runs may make the same folder. The opening below checks whether it is a folder.
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=at)
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        raise _error_of(error, name, at) from error


def _given_to_owner(descriptor: int, old: os.stat_result) -> int:
    """Give a file the owner and group of an old file, as far as possible; return the mode that is safe then."""
    mode = old.st_mode & 0o777
    for owner in (old.st_uid, -1):
        # Only root may change an owner; in a user namespace, root may not choose every owner.
        with suppress(OSError):
            os.fchown(descriptor, owner, old.st_gid)
            return mode
    return mode & ~0o070  # the permissions were for another group


def _open_file(at: int, name: str, flags: int = 0) -> int:
    try:
        try:
            descriptor = os.open(name, _FILE | flags, 0o666, dir_fd=at)
        except PermissionError:  # only the owner of a file may open it with O_NOATIME
            if not flags & os.O_NOATIME:
                raise
            descriptor = os.open(name, _FILE, dir_fd=at)
    except OSError as error:
        raise _error_of(error, name, at) from error
    # Use the descriptor: the name may mean another file by now.
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotPlain(name, kind_of(status))
    return descriptor


def _open_with_access(at: int, name: str, path: Path) -> UntrustedFolder:
    """Open a folder even if its mode forbids this, and give this user access to it."""
    try:
        # O_PATH needs no right to read. The kernel reopens exactly the folder of this descriptor.
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        raise _error_of(error, name, at) from error
    try:
        if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            # fchmod refuses a descriptor of O_PATH, and chmod by name could follow a link.
            Path(f"/proc/self/fd/{handle}").chmod(stat.S_IRWXU)
        return UntrustedFolder(os.open(".", _FOLDER, dir_fd=handle), path / name)
    finally:
        os.close(handle)


def _error_of(error: OSError, name: str, at: int | None) -> OSError:
    """Return the error to raise: NotPlain if the name is another kind of file."""
    if error.errno not in _OTHER_KIND:
        return error
    try:
        return NotPlain(name, kind_of(os.stat(name, dir_fd=at, follow_symlinks=False)))
    except OSError:  # another process may have removed the name meanwhile
        return NotPlain(name, "another kind of file")


def folder_size(path: Path) -> int:
    """Return the bytes of all files in a folder.

    No link is followed. Files that disappear or cannot be read are not counted.
    """
    with suppress(OSError), UntrustedFolder.opened(path) as folder:
        return size_of(folder)
    return 0


def size_of(folder: UntrustedFolder) -> int:
    """Return the bytes of all files in an open folder; see `folder_size`."""
    return sum(file.status.st_size for file in folder.walk() if not file.is_folder)
