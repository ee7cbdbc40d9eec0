"""Read text files, write files whole or not at all, and turn their errors into problems."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tfdock.errors import BuildFailed, DiskFull, Fix, Problem, ProfileError, TfdockError
from tfdock.host.hardware import free_disk


def read_text(path: Path, *, code: str = "file-unreadable") -> str:
    """A file's text, its line ends as they are; raises ProfileError for one that cannot be read or is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        message, fix = f"not UTF-8 text (byte {error.start})", "save it as UTF-8; is it a YAML file at all?"
    except OSError as error:
        message, fix = f"cannot be read: {error.strerror}", "check the file's owner and mode"
    raise ProfileError(Problem(code=code, message=message, fix=fix, file=str(path)))


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all; raises ProfileError. Through a link, if it is one, to what it names."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes, *, private: bool = False, follow: bool = True) -> None:
    """The same for what is no text, and may be `private`: for nobody else to read. Where nobody chose the name, what
    has it already is replaced and not followed."""
    try:
        if follow and path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(data)  # a pipe or a device takes it: nothing is put in the place of `/dev/null`
        else:
            write_atomically(path.resolve() if follow else path, data, private=private)
    except OSError as error:
        message, fix = f"cannot write {path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError(Problem(code="file-error", message=message, fix=fix)) from error


def file_sha256(path: Path) -> str:
    """sha256 of a file: 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(
    path: Path, data: bytes | Iterable[bytes], *, durable: bool = True, private: bool = False
) -> None:
    """Write a file that is either the old one or the new one, whatever happens; raises OSError.

    One that is not `durable` may be lost or spoilt when the machine goes down, and takes a thousandth of the time.
    One that is `private` is never anybody else's to read.
    """
    with written_atomically(path, data, durable=durable, private=private):
        pass


@contextmanager
def written_atomically(
    path: Path, data: bytes | Iterable[bytes], *, durable: bool = True, private: bool = False
) -> Iterator[None]:
    """As `write_atomically`: all is on the disk before what is done meanwhile, and has its name after it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        if durable:
            sync_path(temporary)
        yield
        temporary.replace(path)
    finally:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
    if durable:
        with suppress(OSError):  # some file systems sync no folders
            sync_path(path.parent)


def make_private(path: Path) -> None:
    """Make a folder that no other user can look into. A folder that exists keeps its mode. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def sync_path(path: Path) -> None:
    """Write what the system still holds of a file or a folder to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where there is no room, on the disk or for the user."""


def file_error(error: OSError, folders: Mapping[str, Path]) -> TfdockError:
    """The error for a file of ours that could not be written or read."""
    if error.errno in FULL:
        return full_disk(folders)
    return BuildFailed(Problem(code="file-error", message=str(error), fix="check the folder's owner and mode"))


def full_disk(folders: Mapping[str, Path]) -> DiskFull:
    free = {name: free_disk(path) for name, path in folders.items()}
    known = [(size, name) for name, size in free.items() if size is not None]
    told = [f"; {fullest} ({folders[fullest]}) has {gib(left)} left" for left, fullest in sorted(known)[:1]]
    return DiskFull(
        Problem(
            code="disk-full",
            message=f"a disk ran full{''.join(told)}",
            fix="make room there or in the engine's data root (`docker system prune`), then run again",
        )
    )


def check_space(folder: Path, needed: int, message: Callable[[int], str], fix: Fix) -> None:
    """Raise DiskFull if a folder's disk has fewer free bytes than are needed; `message` is given the free bytes."""
    free = free_disk(folder)
    if free is not None and free < needed:
        raise DiskFull(Problem(code="disk-full", message=message(free), fix=fix))


def make_folder(path: Path) -> None:
    """Make a folder that can be written to, or say in one sentence why it cannot be used."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Without a name: nothing in the folder can lead it elsewhere.
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        if error.errno in FULL:
            problem = Problem(code="disk-full", message=f"no room in {path}: {error.strerror}", fix="make room there")
            raise DiskFull(problem) from error
        raise BuildFailed(
            Problem(
                code="folder-not-writable",
                message=f"cannot write to {path}: {error.strerror}",
                fix="give another folder (`--wheelhouse`, `--cache-dir`, `--report`), or correct its owner",
            )
        ) from error


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / (1 << 30):.1f} GiB"
