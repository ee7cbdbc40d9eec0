"""Connect this process's terminal to a container's: raw mode and window size. Always restore it at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from types import FrameType

from tfdock.errors import Interrupted

Resize = Callable[[int, int], None]  #: Called with rows and columns.

_END_OF_INPUT = b"\x04"


def converse(connection: socket.socket, resize: Resize) -> None:
    """Send standard input to the container, and its output to standard output, until the container ends."""
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    with _unwind_when_killed(), _raw_mode(source), _window_size(sink, resize) as resized:
        _forward(connection, source, sink, resized)


def _forward(connection: socket.socket, source: int, sink: int, resized: int) -> None:
    waiting: list[int] = [connection.fileno(), source, resized]
    line_begun = False
    while True:
        # The engine does not pass the end of piped input to a terminal, so Ctrl-D is sent, and repeated: a program
        # that is not reading at the moment may drop it.
        ready, _, _ = select.select(waiting, [], [], None if source in waiting else 1)
        if connection.fileno() in ready and not _forward_output(connection, sink):
            return
        if source in ready:
            data = os.read(source, 1 << 12)
            # Within a line, Ctrl-D only sends the typed text (termios(3), VEOF). So a line break is sent before
            # Ctrl-D.
            _send_input(connection, data or (b"\n" if line_begun else b"") + _END_OF_INPUT)
            line_begun = not data.endswith((b"\n", b"\r"))
            if not data:
                waiting.remove(source)
        elif not ready:
            _send_input(connection, _END_OF_INPUT)
        if resized in ready:
            os.read(resized, 4096)


def _forward_output(connection: socket.socket, sink: int) -> bool:
    """Write one piece of output; return False at its end."""
    try:
        data = connection.recv(1 << 16)
    except ConnectionError:  # the engine died: reading the exit code will report this
        return False
    rest = memoryview(data)
    # A pipe may accept only a part.
    while rest:
        rest = rest[os.write(sink, rest) :]
    return bool(data)


def _send_input(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # the container has just ended
        connection.sendall(data)


@contextlib.contextmanager
def _raw_mode(source: int) -> Iterator[None]:
    """Send every key to the container, Ctrl-C too. Do nothing if the input is a pipe or a file."""
    if not os.isatty(source):
        yield
        return
    before = termios.tcgetattr(source)
    try:
        tty.setraw(source)
        yield
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _window_size(sink: int, resize: Resize) -> Iterator[int]:
    """Set the container's window size now and at each change; yield a descriptor that is readable after a change."""
    inward, outward = os.pipe()

    def changed(_signal: int = 0, _frame: FrameType | None = None) -> None:
        # The handler may send a request: the main thread waits in select, not in another request.
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(sink)
            resize(rows, columns)
        os.write(outward, b".")

    try:
        with _with_handler(signal.SIGWINCH, changed):
            changed()
            yield inward
    finally:
        os.close(inward)
        os.close(outward)


@contextlib.contextmanager
def _unwind_when_killed() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into Interrupted.

    They would end Python without its `finally`s, and leave the terminal raw.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted(terminated=True)

    with _with_handler(signal.SIGTERM, stop), _with_handler(signal.SIGHUP, stop):
        yield


@contextlib.contextmanager
def _with_handler(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python sets handlers only there
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
