"""Kernel locks on files, shared or exclusive. The kernel frees them when the process dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tfdock.errors import Locked, Problem

_PAUSE = 0.2
"""Seconds between two tries of whoever waits."""


@contextmanager
def held(
    path: Path, what: str, *, alone: bool, waiting: Callable[[str], None] | None = None, fix: str = ""
) -> Iterator[None]:
    """Hold a lock file. `what` names the thing for people, `fix` is what they can do.

    When another process has it, `waiting` is called five times a second with who it is, and may raise; without it
    Locked (`cache-locked`) is raised at once.
    """
    descriptor = _opened(path)
    try:
        while not _taken(descriptor, alone=alone):
            who = _holders(descriptor)
            if waiting is None:
                fix = fix or "wait for it to end, then run the same command again"
                raise Locked(Problem(code="cache-locked", message=f"{what} is in use by {who}", fix=fix))
            waiting(who)
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Writing, because NFS gives nobody a file alone who could only read it.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _taken(descriptor: int, *, alone: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holders(descriptor: int) -> str:
    """Who holds a lock file, by the kernel's own list: `process 4242 (tfdock build rtx3080)`."""
    inode = os.fstat(descriptor).st_ino
    locks = _kernel_locks()
    found = dict.fromkeys(pid for kind, pid, where in locks if kind == "FLOCK" and where.endswith(f":{inode}"))
    return ", ".join(_described(pid) for pid in found) or "another process"


def _kernel_locks() -> Iterator[tuple[str, int, str]]:
    """Kind, process and `major:minor:inode` of every lock that is held; nothing where the kernel does not tell."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        # `5: -> FLOCK …` is one that waits.
        if len(words) > 5 and words[1] != "->" and words[4].isdigit():
            yield words[1], int(words[4]), words[5]


def _described(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return f"process {pid}"
    # From the program's own name on: not through which interpreter it was started.
    own = next((place for place, word in enumerate(words) if Path(word).name == "tfdock"), None)
    text = " ".join(words if own is None else ["tfdock", *words[own + 1 :]])
    text = "".join(one if one.isprintable() else " " for one in text).strip()
    return f"process {pid} ({text[:80]})"
