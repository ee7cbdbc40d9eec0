"""Run a long task: read its output as it arrives, tick (call a function regularly), and forward requests to stop.

A separate thread reads the output. So even if a read never returns, the main thread can tick, notice an engine that
does not answer, and act on Ctrl-C.

How Ctrl-C works: `cli.app.stoppable` counts the Ctrl-C in a `Stop`. `watched` ticks; `Stopper.tick` sees the count
and calls `gently`, which signals the container. Bazel ends. `Stop.check` raises Interrupted; `BuildRun.phase` adds
the log.
"""

from __future__ import annotations

import codecs
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tfdock.errors import EngineHung, Interrupted, Problem

TICK_SECONDS = 0.5
HANG_AFTER_SECONDS = 60.0  #: Seconds of silence after which the engine is pinged.
STOP_GRACE_SECONDS = 60.0  #: Seconds that a build may take to stop cleanly. Then it is killed.
MAX_LINE = 4096
#: The most bytes of output in the queue. At this limit, the reading thread waits until half of it is taken.
AHEAD = 8 << 20
_EACH = 64  #: Overhead in bytes for each piece of output.

_T = TypeVar("_T")
Output = Callable[[bytes], None]  #: Receives the output of a long task, piece by piece.
_DONE = object()


class Pingable(Protocol):
    """A worker, such as a container engine, that is pinged after a long silence."""

    def ping(self) -> bool:
        """Return whether the worker answers."""


class _Left(Exception):
    """Nobody wants the output any more."""


class _Handover:
    """A queue from one thread to another. It is bounded while the reader lives, and closed afterwards."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[object] = deque()
        self._size = 0
        self._left = False

    def put(self, data: bytes) -> None:
        """Put some output into the queue when there is space; raises _Left if the reader has left."""
        with self._changed:
            if self._size >= AHEAD:  # wait until half is free: switching threads for each piece is slow
                self._changed.wait_for(lambda: self._left or self._size <= AHEAD // 2)
            # Nobody reads the output any more, so end the producer.
            if self._left:
                raise _Left
            self._add(data)

    def end(self, event: object) -> None:
        """Put the end of the work (an error, or `_DONE`) into the queue, without waiting."""
        with self._changed:
            self._add(event)

    def get(self, timeout: float) -> object:
        """Return the next output; no bytes if no output arrives in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._events, timeout):
                return b""
            event = self._events.popleft()
            self._size -= _cost(event)
            if self._size <= AHEAD // 2:
                self._changed.notify_all()
            return event

    def close(self) -> None:
        """Refuse further output, and wake the thread that waits for space."""
        with self._changed:
            self._left = True
            self._events.clear()
            self._changed.notify_all()

    def _add(self, event: object) -> None:
        self._events.append(event)
        self._size += _cost(event)
        self._changed.notify_all()


def _cost(event: object) -> int:
    return len(event) + _EACH if isinstance(event, bytes) else 0


def streamed(produce: Callable[[Output], object]) -> Generator[bytes]:
    """Run `produce(output)` in another thread. Yield its output here, and empty bytes after each tick of silence.

    Raises what `produce` raises. When the iterator is closed, the thread ends at its next output.
    """

    def run() -> None:
        try:
            produce(events.put)
            events.end(_DONE)
        # Every error that ends the thread must reach the caller; otherwise the caller would wait for ever.
        except BaseException as error:
            events.end(error)

    with closing(_Handover()) as events:
        # A daemon: a read that never returns must not keep the process from ending.
        threading.Thread(target=run, name="tfdock-watch", daemon=True).start()
        while (event := events.get(TICK_SECONDS)) is not _DONE:
            if isinstance(event, BaseException):
                raise event
            assert isinstance(event, bytes)
            yield event


def watched(
    produce: Callable[[Output], _T],
    on_output: Output,
    on_tick: Callable[[float], None],
    engine: Pingable | None,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """Run `produce(output)` in another thread; return its result. Forward its output, and tick, in this thread.

    `on_tick` gets the seconds of silence, and may raise to stop. Raises EngineHung without output and without an
    answer to a ping. If this function raises, the other thread ends at its next output.
    """
    result: list[_T] = []
    with closing(streamed(lambda output: result.append(produce(output)))) as pieces:
        last_output = last_ping = clock()
        for piece in pieces:
            now = clock()
            if piece:
                last_output = now
                on_output(piece)
            elif engine and now - last_output > HANG_AFTER_SECONDS and now - last_ping > HANG_AFTER_SECONDS:
                _ping_or_give_up(engine, now - last_output)
                # Read the clock again: the ping itself may have taken long.
                last_ping = clock()
            on_tick(now - last_output)
    return result[0]


def _ping_or_give_up(engine: Pingable, silent: float) -> None:
    if engine.ping():
        return
    raise EngineHung.of(
        "engine-hung",
        f"the engine has sent nothing for {silent:.0f} s and does not answer a ping",
        "restart the engine, then run the same command again: the cache is kept",
    )


@dataclass
class Stop:
    """Requests to stop. A signal handler only counts them. The first request is gentle, the second is not."""

    requests: int = 0
    terminated: bool = False
    kept: str = "finished work stays in the cache"  #: A sentence about the work that was stopped.

    @property
    def interruption(self) -> Interrupted | None:
        """The error to raise, if a stop was requested."""
        if not self.requests:
            return None
        message, fix = f"stopped on request; {self.kept}", "run the same command again"
        return Interrupted(Problem(code="interrupted", message=message, fixes=fix), terminated=self.terminated)

    def check(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if error := self.interruption:
            raise error


@dataclass(frozen=True, slots=True)
class Limit:
    """The time limit of a whole command in `seconds`, and the clock time (`deadline`) at which it ends."""

    seconds: int
    deadline: float

    def is_over(self, now: float) -> bool:
        """Return whether the limit is over at this clock time."""
        return now > self.deadline


@dataclass
class Stopper:
    """Stops the running task: gently at the first request or at the time limit, later by force.

    `short` says whether a disk is nearly full. `late`: the time limit or a nearly full disk ended the command.
    """

    stop: Stop
    gently: Callable[[], None]
    by_force: Callable[[], None] = lambda: None
    limit: Limit | None = None
    clock: Callable[[], float] = time.monotonic
    short: Callable[[], bool] = lambda: False
    late: bool = False
    _since: float | None = None
    _forced: bool = False

    def tick(self) -> bool:
        """Act on a request or the limit. Return True in the call in which the stop begins."""
        now = self.clock()
        self.late = self.late or (self.limit is not None and self.limit.is_over(now)) or self.short()
        if self._since is None:
            if not (self.stop.requests or self.late):
                return False
            self._since = now
            self.gently()
            return True
        if not self._forced and (self.stop.requests > 1 or now - self._since > STOP_GRACE_SECONDS):
            self._forced = True
            self.by_force()
        return False


def until_stopped(do: Callable[[], _T], stop: Stop, on_tick: Callable[[float], object] = lambda _: None) -> _T:
    """Run a function in a thread. The first stop ends it at its next check; the second abandons the thread."""
    stopper = Stopper(stop, gently=lambda: None, by_force=stop.check)

    def tick(silent: float) -> None:
        stopper.tick()
        on_tick(silent)

    return watched(lambda _: do(), lambda _: None, tick, None)


# --- output -------------------------------------------------------------------------------------------------------


class Lines:
    """Turns the arriving bytes of a log into whole lines of text. Very long lines are cut."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """Take some bytes."""
        *lines, rest = (self._rest + self._decode(data)).split("\n")
        for line in lines:
            self._on_line(line[:MAX_LINE])
        # Cut an endless line here instead of collecting it: one of 60 MB was seen.
        self._rest = rest[:MAX_LINE]

    def close(self) -> None:
        """Forward an unfinished last line."""
        if rest := self._rest + self._decode(b"", final=True):
            self._on_line(rest)
            self._rest = ""
