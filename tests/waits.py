"""Waiting with a limit: for something to happen, for a process to speak, for a command to end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

FETCH = 600.0  #: Seconds for a command that downloads or compiles, on a slow line and a busy machine.


class Process(Protocol):
    """What may be waited for."""

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""


@contextlib.contextmanager
def over_and_over(step: Callable[[], object]) -> Iterator[None]:
    """Do something in a thread, again and again, while the context lasts."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def wait_until(condition: Callable[[], object], seconds: float = 30, process: Process | None = None) -> None:
    """Return when the condition holds. Fail after that long, or as soon as the process that is to do it has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            # It may have been the last thing that the process did.
            assert condition(), f"the process ended before that, with exit code {process.poll()}"
            return
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.05)


def first_line(process: subprocess.Popen[str], seconds: float = 60) -> str:
    """The first line that a process prints. Fail if none comes in time."""
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, f"it printed nothing within {seconds:g} s"
    return process.stdout.readline()


def run_within(seconds: float, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """The result of a command and its text. One that takes longer is killed, with all that it has started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
