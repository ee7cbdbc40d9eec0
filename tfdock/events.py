"""Events that long work reports to its display: phases, progress, lines, notices. Frozen values without layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tfdock.types import BuildId


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A phase of a build begins.

    The phase takes about `expected` seconds, if known, and the later phases `after` seconds.
    """

    build_id: BuildId
    phase: str
    expected: float | None = None
    after: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded:
    """A phase has ended, successfully or not."""

    build_id: BuildId
    phase: str
    seconds: float
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Bazel's own count of actions, `[done / total]`."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of output, without control characters, cut to a sensible length."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. If the build waits, `waits_for` names the process that it waits for."""

    silent: float
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message for the user that is not an error."""

    text: str


Event = PhaseStarted | PhaseEnded | Progress | Line | Tick | Notice
Listener = Callable[[Event], None]  #: A function that receives events. It must not raise.


@contextmanager
def announced_phase(listen: Listener, clock: Callable[[], float], build_id: BuildId, phase: str) -> Iterator[None]:
    """Report the start of a phase, and its end, successful or not, with its duration in seconds."""
    listen(PhaseStarted(build_id=build_id, phase=phase))
    began, ok = clock(), False
    try:
        yield
        ok = True
    finally:
        listen(PhaseEnded(build_id=build_id, phase=phase, seconds=round(clock() - began, 3), ok=ok))
