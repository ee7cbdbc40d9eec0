"""Start the command from a process that has loaded it already: half a second of CPU less for each of 1,700 starts.

What runs is the same, with the arguments, variables, folder and streams of the caller, as a child of the tests in a
session of its own; `test_warm.py` compares both. It hides what only a new interpreter shows: another order of sets,
an import that is missing in one command. So `TFDOCK_TESTS_COLD=1` starts each from nothing, as in the soak.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

_REPOSITORY = Path(__file__).parents[2]
_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_")  #: How variables begin that an interpreter reads when it starts.
_LARGEST = 1 << 20  #: Bytes of a request.
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
_LOCK = threading.Lock()


class Started:
    """A process that is a child of this one, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, stdout: IO[str], stderr: IO[str]) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the same, once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("tfdock", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Started | None:
    """Start `tfdock WORDS`; None if these variables or this process ask for an interpreter of its own."""
    told = tuple(sorted(item for item in variables.items() if item[0].startswith(_INTERPRETER)))
    if os.environ.get("TFDOCK_TESTS_COLD") or dict(told).get("PYTHONPATH") != str(_REPOSITORY):
        return None
    (out, theirs), (errors, their_errors) = os.pipe(), os.pipe()
    output, error_output = os.fdopen(out), os.fdopen(errors)
    with Path(os.devnull).open() as nothing, os.fdopen(theirs, "w") as one, os.fdopen(their_errors, "w") as other:
        descriptors = [nothing.fileno(), one.fileno(), other.fileno()]
        try:
            # Tests start several at once: each has to get its own answer.
            with _LOCK:
                pid = _server(told, os.getpid()).ask([words, str(folder), dict(variables)], descriptors)
        except (OSError, ValueError):  # it was killed, or could not fork: from nothing, and the next with a new one
            _server.cache_clear()
            output.close()
            error_output.close()
            return None
    return Started(pid, output, error_output)


@cache
def _server(variables: tuple[tuple[str, str], ...], _: int) -> _Server:
    """The process that has loaded the command, for variables of the interpreter and this process."""
    return _Server(dict(variables))


class _Server:
    def __init__(self, variables: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
        # It ends with this process: then nobody holds the other end of its socket.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env={"PATH": os.environ["PATH"], **variables},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self._close)

    def _close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # another process has the socket too
            self._process.kill()

    def ask(self, request: object, descriptors: Sequence[int]) -> int:
        """Start a command; return the number of its process, a child of this one."""
        prctl = ctypes.CDLL(None).prctl
        # The server's child starts it and ends. The kernel then gives it to this process, which takes orphans.
        prctl(_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return int(self._socket.recv(20))
        finally:
            prctl(_SUBREAPER, 0, 0, 0, 0)


def _serve(requests: socket.socket) -> None:
    """Return in each process that is to be the command; end when nobody asks any more."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 3)
        if not text:
            os._exit(0)
        answer, theirs = os.pipe()
        if between := os.fork():
            os.close(theirs)
            for descriptor in descriptors:
                os.close(descriptor)
            os.waitpid(between, 0)
            requests.send(os.read(answer, 20))
            os.close(answer)
            continue
        if os.fork():
            os._exit(0)
        os.setsid()
        os.write(theirs, str(os.getpid()).encode())  # only now: who gets the number may signal its group
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, max(*descriptors, answer, theirs, requests.fileno()) + 1)
        requests.detach()
        words, folder, variables = json.loads(text)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv[1:] = words
        random.seed()
        return


if __name__ == "__main__":
    import tfdock.cli.commands
    from tfdock.cli.main import main

    for module in pkgutil.iter_modules(tfdock.cli.commands.__path__, "tfdock.cli.commands."):
        importlib.import_module(module.name)
    import tfdock.__main__

    sys.argv[0] = tfdock.__main__.__file__
    sys.modules["__main__"].__package__ = "tfdock"
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
