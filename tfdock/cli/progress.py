"""How builds go on, for people: on a terminal drawn anew, in a pipe a line now and then; one build or several."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Protocol, TextIO

from tfdock import events
from tfdock.cli.console import Style, clean, duration, say
from tfdock.plan.estimate import remaining

HEARTBEAT_SECONDS = 60.0
"""Silence after which a pipe gets a line: CI systems kill jobs that say nothing."""
_SHOWN_LINES = 6


class ProgressDisplay(Protocol):
    """Whoever shows how builds go on."""

    def of(self, name: str) -> events.Listener:
        """Hears of the build of that name, one of several at a time."""

    def __call__(self, event: events.Event) -> None:
        """Hears of the only one."""

    def expect(self, builds: Mapping[str, float | None], at_once: int) -> None:
        """These are to come, so many at a time, each with the seconds that it may take, where that is known."""

    def over(self, name: str, status: str) -> None:
        """One of them has ended."""

    def close(self) -> None:
        """No more comes."""


class RunningPhase:
    """What is known of a phase that runs."""

    def __init__(self) -> None:
        self.phase: events.PhaseStarted | None = None
        self.lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._started = time.monotonic()
        self._progress = events.Progress(done=0, total=0)

    def take(self, event: events.Event) -> None:
        """Take one event."""
        match event:
            case events.PhaseStarted():
                self.phase, self._started = event, time.monotonic()
                self._progress = events.Progress(done=0, total=0)
                self.lines.clear()
            case events.PhaseEnded():
                self.phase = None
            case events.Progress():
                self._progress = event
            case events.Line() if event.text.strip():
                self.lines.append(clean(event.text.expandtabs()))
            case _:
                pass

    @property
    def elapsed(self) -> str:
        """How long it has run."""
        return duration(time.monotonic() - self._started)

    @property
    def count(self) -> str:
        """Bazel's count of actions, once it has one."""
        return f"[{self._progress.done:,} / {self._progress.total:,}]" if self._progress.total else ""

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the time until the build ends, once there is one."""
        if self.phase is None:
            return None
        elapsed, progress = time.monotonic() - self._started, self._progress
        seconds = remaining(self.phase.expected, elapsed, progress.done, progress.total)
        return None if seconds is None else seconds + self.phase.after

    @property
    def left(self) -> str:
        """The same in words."""
        return _left(self.seconds_left)


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"about {duration(seconds)} left"


class Tally:
    """How far the builds of a matrix are, all together."""

    def __init__(self, builds: Mapping[str, float | None], at_once: int) -> None:
        self.waiting = dict(builds)
        self._total, self._at_once = len(builds), at_once
        self._ended: Counter[str] = Counter()

    def over(self, name: str, status: str) -> None:
        """One has ended, perhaps without having begun."""
        self.waiting.pop(name, None)
        self._ended[status] += 1

    def summary(self, running: Mapping[str, RunningPhase]) -> str:
        """Such as `3 of 12 done: 2 built, 1 failed; about 2:40:00 left`."""
        statuses = ", ".join(f"{count} {status}" for status, count in self._ended.items())
        done = f"{self._ended.total()} of {self._total} done{f': {statuses}' if statuses else ''}"
        return "; ".join(filter(None, (done, _left(self._seconds_left(running)))))

    def _seconds_left(self, running: Mapping[str, RunningPhase]) -> float | None:
        """An estimate for all, where there is one for each; those that run are shared out among as many."""
        each = [going.seconds_left for going in running.values()]
        waiting = list(self.waiting.values())
        known = [seconds for seconds in (*each, *waiting) if seconds is not None]
        if not known or len(known) < len(each) + len(waiting):
            return None
        return max(sum(known) / self._at_once, *known)


class PlainProgress:
    """For pipes and CI: a line per phase, a sign of life once a minute. Of several builds, each line says which."""

    def __init__(self, stream: TextIO, name: str = "") -> None:
        self._stream, self._name = stream, name
        self._style = Style(stream)
        self._going = RunningPhase()
        self._spoken = time.monotonic()
        self._tally: Tally | None = None
        self._several: dict[str, PlainProgress] = {}

    def of(self, name: str) -> PlainProgress:
        """Hears of one of several."""
        progress = self._several[name] = PlainProgress(self._stream, name)
        if self._tally:
            self._tally.waiting.pop(name, None)
        return progress

    def expect(self, builds: Mapping[str, float | None], at_once: int) -> None:
        """These are to come."""
        self._tally = Tally(builds, at_once)

    def over(self, name: str, status: str) -> None:
        """One of them has ended: a line says how far all are."""
        self._several.pop(name, None)
        if self._tally:
            self._tally.over(name, status)
            self._say(self._tally.summary({name: progress._going for name, progress in list(self._several.items())}))

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        self._going.take(event)
        match event:
            case events.PhaseStarted():
                self._say(f"{event.build_id}: {event.phase} …")
            case events.PhaseEnded():
                word = self._style.good("done") if event.ok else self._style.bad("failed")
                self._say(f"{event.build_id}: {event.phase} {word} in {duration(event.seconds)}")
            case events.Notice():
                whose = f"{self._name}: " if self._name else ""
                self._say(f"{whose}{self._style.warn('note:')} {clean(event.text)}")
            case events.Tick() if self._going.phase and time.monotonic() - self._spoken >= HEARTBEAT_SECONDS:
                self._say(self._heartbeat(self._going.phase, event.silent))
            case _:
                pass

    def _heartbeat(self, phase: events.PhaseStarted, silent: float) -> str:
        quiet = f"silent for {duration(silent)}" if silent >= HEARTBEAT_SECONDS else ""
        parts = (f"{phase.build_id}: {phase.phase} {self._going.elapsed}", self._going.count, self._going.left, quiet)
        return ", ".join(part for part in parts if part)

    def _say(self, text: str) -> None:
        self._spoken = time.monotonic()
        say(text, stream=self._stream)

    def close(self) -> None:
        """Nothing is left on the screen."""
