"""Read text files; write files completely or not at all; lock files; check who else can write to a folder.

The kernel frees a lock when its process dies. Content that another user could have written is not trusted.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import hashlib
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tfdock.errors import BuildFailed, DiskFull, Fix, Locked, Problem, ProfileError, TfdockError, clean
from tfdock.host.hardware import free_disk, nearest, text_of
from tfdock.host.untrusted_folders import UntrustedFolder, UntrustedPath

_MOST_TEXT = 16 << 20  #: The most bytes of a text file: 50 times as many as the largest knowledge table.


def read_text(path: Path) -> str:
    """Return a file's text, with unchanged line ends. Raises ProfileError if the file is unreadable or not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_TEXT + 1)
        if len(data) <= _MOST_TEXT:
            return data.decode("utf-8")  # keeps the line ends, which `Path.read_text` would translate
    except (UnicodeDecodeError, OSError) as error:
        raise unreadable(path, error) from None
    message, fix = f"larger than {_MOST_TEXT:,} bytes", "check that this is the right file; name a smaller file"
    raise ProfileError.of("file-unreadable", message, fix, file=str(path))


def unreadable(path: Path, error: UnicodeDecodeError | OSError, code: str = "file-unreadable") -> ProfileError:
    """Return the error for a text file that could not be read."""
    if isinstance(error, UnicodeDecodeError):
        message, fix = f"not UTF-8 text (byte {error.start})", "save it as UTF-8, and check that it is a YAML file"
    else:
        message, fix = f"cannot be read: {error.strerror}", "check the file's owner and mode"
    return ProfileError.of(code, message, fix, file=str(path))


def write_text(path: Path, text: str, *, follow: bool = False) -> None:
    """Write a text to a file; see `write_bytes`."""
    write_bytes(path, text.encode(), follow=follow)


def write_bytes(
    path: Path, data: bytes, *, mode: int | None = None, keep: bool = False, follow: bool = False
) -> None:
    """Write a file with this mode, whole or not at all. `keep`: see `UntrustedFolder.write`. Raises ProfileError.

    An existing link is replaced, because a stranger may have put the link there. With `follow` (for a name that the
    user typed), the target of the link is written.
    """
    try:
        if follow and path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(data)  # write into a pipe or a device: a rename would replace `/dev/null`
        else:
            # A rename onto a link would replace the link.
            write_atomically(path.resolve() if follow else path, data, mode=mode, keep=keep)
    except OSError as error:
        message, fix = f"cannot write {path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError.of("file-error", message, fix) from error


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file: 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(
    path: Path, data: bytes | Iterable[bytes], *, durable: bool = True, mode: int | None = None, keep: bool = False
) -> None:
    """Replace a file atomically: the file has either the old or the new content. Raises OSError.

    Without `durable`, the write is a thousand times faster, but the file may be lost or damaged if the machine
    crashes. `mode` and `keep`: see `UntrustedFolder.write`.
    """
    try:
        with UntrustedFolder.opened(path.parent, follow=True) as folder:
            chunks = [data] if isinstance(data, bytes) else data
            folder.write(path.name, chunks, durable=durable, mode=mode, keep=keep)
    except OSError as error:
        error.filename = str(path)  # the error names only one part of the path
        raise


def make_private(path: Path) -> None:
    """Make a folder that no other user can read. An existing folder keeps its mode. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def sync_path(path: Path) -> None:
    """Flush a file or a folder to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FULL = (errno.ENOSPC, errno.EDQUOT)  #: The system's errors for a full disk or a used-up quota.


def file_error(error: OSError, folders: Mapping[str, Path]) -> TfdockError:
    """Return the error for a file of tfdock that could not be written or read."""
    if error.errno in FULL:
        return full_disk(folders)
    return BuildFailed.of("file-error", str(error), "check the folder's owner and mode")


#: How to free space in each folder of a build.
_ROOM = {
    "the cache": "`tfdock cache prune`",
    "the wheelhouse": "`tfdock wheelhouse prune`",
    "the engine's data": "`docker system prune` (or podman's)",
}
_ROOM_LEFT = 1 << 30  #: A disk with at least this many free bytes is not full.


def ways_to_make_room(full: str, folders: Mapping[str, Path]) -> str:
    """Return the commands that free space on the disk of the folder `full`, for all folders on that disk."""
    disk = _disk_of(folders[full])
    ways = [
        _ROOM[name] for name, path in folders.items() if name in _ROOM and (name == full or _disk_of(path) == disk)
    ]
    return " or ".join(ways) or "remove files"


def _disk_of(path: Path) -> int:
    try:
        return nearest(path).stat().st_dev
    except OSError:
        # The disk of an unreadable folder is unknown.
        return -1 - id(path)


def full_disk(folders: Mapping[str, Path]) -> DiskFull:
    """Return the error for a full disk. The full disk may be the disk of one of these folders."""
    free = {name: free_disk(path) for name, path in folders.items()}
    known = sorted((size, name) for name, size in free.items() if size is not None)
    engine = _ROOM["the engine's data"]
    message, fix = "a disk ran full", f"free space in the engine's data root: {engine}"
    if known:
        left, fullest = known[0]
        message += f"; {fullest} ({folders[fullest]}) has {gib(left)} left"
        # With this much free space, another disk must be full.
        if left < _ROOM_LEFT:
            fix = f"free space on that disk: {ways_to_make_room(fullest, folders)}"
    return DiskFull.of("disk-full", message, f"{fix}; then run again")


def check_space(folder: Path, needed: int, message: Callable[[int], str], fix: Fix) -> None:
    """Raise DiskFull if a folder's disk has too few free bytes. `message` turns the free bytes into the message."""
    free = free_disk(folder)
    if free is not None and free < needed:
        raise DiskFull.of("disk-full", message(free), fix)


def check_target(target: Path, code: str, is_ours: Callable[[BinaryIO], bool]) -> None:
    """Raise ProfileError early if a file cannot be written, or if another program wrote the existing file.

    `is_ours` is called with the existing file, and returns whether this program wrote it.
    """
    folder = target.absolute().parent
    # Checked before hours of work. root passes this check, so for root some problems show only at the write.
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why, fix = f"{folder} is not a writable folder", "make the folder, or give another folder"
    elif target.exists() and not _is_replaceable(target, is_ours):
        why, fix = "another file has this name, and is not replaced", "remove that file, or give another name"
    else:
        return
    raise ProfileError.of(code, f"{target} cannot be written: {why}", fix)


def _is_replaceable(target: Path, is_ours: Callable[[BinaryIO], bool]) -> bool:
    try:
        with target.open("rb") as file:
            return is_ours(file)
    # A file that cannot be read may belong to another program.
    except OSError:
        return False


def make_folder(path: Path) -> None:
    """Make a writable folder. Raises DiskFull, or BuildFailed if the folder cannot be made or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        # A file without a name: no link in the folder can redirect the write.
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        if error.errno in FULL:
            problem = Problem("disk-full", f"no space in {path}: {error.strerror}", "free space on that disk")
            raise DiskFull(problem) from error
        raise BuildFailed.of(
            "folder-not-writable",
            f"cannot write to {path}: {error.strerror}",
            "give another folder (`--wheelhouse`, `--cache-dir`, `--report`), or change the folder's owner",
        ) from error


def gib(size: int) -> str:
    """Return bytes for people."""
    return f"{size / (1 << 30):.1f} GiB"


_ROOT = 0


def other_writers(path: Path, *, reachable: bool = True) -> str:
    """Return a text that says who else can write to a folder; "" if only this user and root can. Raises OSError.

    If `reachable` is false, other users cannot reach the folder, so the folder's mode does not matter. For a link,
    both the link and its target folder are checked.
    """
    # The owner of a link can point it elsewhere, so both owners count. Root can write in any case.
    trusted, link, target = (_ROOT, os.geteuid()), path.lstat(), path.stat()
    if link.st_uid not in trusted or target.st_uid not in trusted:
        return "belongs to another user"
    others = stat.S_IWOTH | (0 if _is_own_group(target.st_gid) else stat.S_IWGRP)
    # A link may lead out of the folder that others cannot enter.
    counts = reachable or stat.S_ISLNK(link.st_mode)
    return "can be written to by other users" if counts and target.st_mode & others else ""


def _is_own_group(gid: int) -> bool:
    """Return whether only this user is in a group. The usual umask of systems with such groups lets them write."""
    with suppress(KeyError):  # a container may not know the user's name
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        return (gid, group.gr_name) == (user.pw_gid, user.pw_name) and {*group.gr_mem} <= {user.pw_name}
    return False


OWN_BUILD = "another build of this command"  #: The holder's name, if this process holds the lock.
_PAUSES = (0.01, 0.2)  #: Seconds between two tries to get a lock: the first pause, and the longest pause.


@contextmanager
def held(
    path: Path | UntrustedPath,
    subject: str,
    *,
    alone: bool,
    waiting: Callable[[str], object] | None = None,
) -> Iterator[None]:
    """Hold a lock file. `subject` names the locked thing in messages.

    If another process holds the lock, `waiting` is called at least five times a second with the name of that process,
    and may raise an error. Without `waiting`, Locked (`cache-locked`) is raised at once.
    """
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path = UntrustedPath(path.parent, path.name)
    pause = _PAUSES[0]
    # Open for writing: NFS refuses an exclusive lock on a file that is open for reading only. Never remove the file:
    # another process may have it open, and would then hold a lock that nobody sees.
    with path.update() as file:
        while not _taken(file.fileno(), alone=alone):
            who = lock_holders(file.fileno())
            if waiting is None:
                fix = "wait until the other process ends, then run the same command again"
                raise Locked.of("cache-locked", f"{subject} is in use by {who}", fix)
            waiting(who)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        yield


def _taken(descriptor: int, *, alone: bool) -> bool:
    try:
        # Non-blocking, so that the caller can report the wait and stop it.
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_holders(file: int | Path) -> str:
    """Return who holds a lock file, from the kernel's list of locks: `process 4242 (tfdock build rtx3080)`."""
    inode = (file.stat() if isinstance(file, Path) else os.fstat(file)).st_ino
    processes = dict[int, None]()
    # `5: FLOCK ADVISORY WRITE <process> <major:minor:inode> …`; `5: -> FLOCK …` is a process that waits.
    for words in map(str.split, text_of("/proc/locks").splitlines()):
        # Compare only the inode: on btrfs, `stat` reports another device than the kernel's lock list.
        if len(words) > 5 and words[1] == "FLOCK" and words[4].isdigit() and words[5].endswith(f":{inode}"):
            processes[int(words[4])] = None
    return ", ".join(map(_describe_process, processes)) or "another process"


def _describe_process(pid: int) -> str:
    if pid == os.getpid():
        return OWN_BUILD
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return f"process {pid}"
    # Start at the program's own name, without the interpreter.
    own = next((place for place, word in enumerate(words) if Path(word).name == "tfdock"), None)
    text = " ".join(words if own is None else ["tfdock", *words[own + 1 :]])
    # A process chooses its own command line, so escape sequences in it must not reach this terminal.
    return f"process {pid} ({clean(text, keep='', instead=' ').strip()[:80]})"
