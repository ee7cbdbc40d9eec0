"""The progress of builds, from their events, and its display for pipes and CI."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import TextIO

from tfdock import events
from tfdock.bazel import output
from tfdock.cli import console
from tfdock.cli.console import Style, clean, duration, say
from tfdock.plan.estimate import remaining

HEARTBEAT_SECONDS = 60.0  #: Seconds without output after which a pipe gets a line. CI systems kill silent jobs.
_SHOWN_LINES = 6
_GROWTH = 0.1  #: The total counts as unknown if it grew by over this share since half the actions were done.
#: If the count of actions does not change for this many seconds, there is no estimate. The last action may take an
#: hour.
_STILL = 30.0


class RunningPhase:
    """The state of a running phase, from its events."""

    def __init__(self) -> None:
        self.phase: events.PhaseStarted | None = None
        self.lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self.waits_for = ""
        self._action = ""
        self._started = self._counted = time.monotonic()
        self._progress = events.Progress(done=0, total=0)
        self._totals: list[tuple[float, int]] = []
        """For each change of the total of actions: the number of actions done, and the new total."""

    def take(self, event: events.Event) -> None:
        """Take one event."""
        # All other events report work.
        self.waits_for = event.waits_for if isinstance(event, events.Tick) else ""
        match event:
            case events.PhaseStarted():
                self.phase, self._action = event, ""
                self._started = self._counted = time.monotonic()
                self._progress = events.Progress(done=0, total=0)
                self._totals.clear()
                self.lines.clear()
            case events.PhaseEnded():
                self.phase = None
            case events.Progress():
                now = time.monotonic()
                if event.done != self._progress.done:
                    self._counted = now
                # Keep a total only if it grew by over 1 %, so that the list stays short.
                if event.total and (not self._totals or event.total > self._totals[-1][1] * 1.01):
                    self._totals.append((event.done, event.total))
                self._progress = event
            case events.Line() if event.text.strip() and not output.is_ceremony(event.text):
                action = output.action(event.text)
                # Bazel repeats the line of a running action.
                if action and self.lines and output.action(self.lines[-1]) == action:
                    self.lines.pop()
                self._action = action or self._action
                # The width of a tab depends on its column, and a redrawn line may start at any column.
                self.lines.append(clean(event.text.expandtabs()))
            case _:
                pass

    @property
    def elapsed(self) -> str:
        """How long the phase has run, in words."""
        return duration(time.monotonic() - self._started)

    @property
    def count(self) -> str:
        """Bazel's count of actions, such as `[5 / 90]`; empty until Bazel prints a count."""
        total = f"{self._progress.total:,}" if self._knows_total else "?"
        return f"[{self._progress.done:,} / {total}]" if self._progress.total else ""

    @property
    def _knows_total(self) -> bool:
        """Whether the total has hardly changed since half as many actions were done.

        Bazel discovers actions during the build. Its older versions know only some hundred actions in advance. The
        actions so far do not predict the time: the last tenth may take half of it.
        """
        if not self._totals:
            return False
        half = self._progress.done / 2
        earlier = next((total for done, total in reversed(self._totals) if done <= half), self._totals[0][1])
        return earlier >= self._progress.total * (1 - _GROWTH)

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds until the build ends; None without an estimate."""
        if self.phase is None:
            return None
        since, progress = time.monotonic() - self._counted, self._progress
        # Use the time of the last count. Otherwise the estimate would grow with each second of a long action.
        total = progress.total if self._knows_total else 0
        seconds = remaining(self.phase.expected, self._counted - self._started, progress.done, total)
        if seconds is None or seconds <= since or self._stands_still:
            return None
        return seconds - since + self.phase.after

    @property
    def _stands_still(self) -> bool:
        return self._progress.done > 0 and time.monotonic() - self._counted >= _STILL

    @property
    def left(self) -> str:
        """The estimated time until the build ends, in words; or the running action, if the count does not change."""
        if self._stands_still and self._action:
            return f"for {duration(time.monotonic() - self._counted)}: {self._action}"
        return _left(self.seconds_left)


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"about {duration(seconds)} left"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the distinguishing part of each name, such as `sm86` and `sm89`. A single name stays whole.

    Names are compared by their parts between `-`.
    """
    parts = {name: name.split("-") for name in names}
    if len(parts) < 2:
        return {name: name for name in parts}
    columns = list(zip(*parts.values(), strict=False))
    if len({len(each) for each in parts.values()}) == 1:
        differing = [place for place, column in enumerate(columns) if len(set(column)) > 1]
        return {name: "-".join(each[place] for place in differing) for name, each in parts.items()}
    first = next((place for place, column in enumerate(columns) if len(set(column)) > 1), len(columns))
    return {name: "-".join(each[first:]) or name for name, each in parts.items()}


class Tally:
    """The progress of all builds of a matrix together."""

    def __init__(self, builds: Mapping[str, float | None], at_once: int) -> None:
        self.waiting = dict(builds)
        self._total, self._at_once = len(builds), at_once
        self._ended: Counter[str] = Counter()

    def over(self, name: str, status: str) -> None:
        """Count a build that has ended, even if its first phase never began."""
        self.waiting.pop(name, None)
        self._ended[status] += 1

    def summary(self, running: Mapping[str, RunningPhase]) -> str:
        """Return a line such as `3 of 12 done: 2 built, 1 failed; about 2:40:00 left`."""
        statuses = ", ".join(f"{count} {status}" for status, count in self._ended.items())
        done = f"{self._ended.total()} of {self._total} done{f': {statuses}' if statuses else ''}"
        return "; ".join(filter(None, (done, _left(self._seconds_left(running)))))

    def _seconds_left(self, running: Mapping[str, RunningPhase]) -> float | None:
        """Return the estimated seconds for all builds; None if a build has no estimate.

        The sum is divided by the number of builds that run at the same time.
        """
        each = [going.seconds_left for going in running.values()]
        waiting = list(self.waiting.values())
        known = [seconds for seconds in (*each, *waiting) if seconds is not None]
        if not known or len(known) < len(each) + len(waiting):
            return None
        # The total cannot be shorter than its longest build.
        return max(sum(known) / self._at_once, *known)


class PlainProgress:
    """The display for pipes and CI: a line for each phase, and a heartbeat once a minute.

    With several builds, each line names its build.
    """

    def __init__(self, stream: TextIO, name: str = "") -> None:
        self._stream, self._name = stream, name
        self._style = Style(stream)
        self._going = RunningPhase()
        self._spoken = time.monotonic()
        self._tally: Tally | None = None
        self._several: dict[str, PlainProgress] = {}

    def of(self, name: str) -> PlainProgress:
        """Return the display of one of several builds."""
        progress = self._several[name] = PlainProgress(self._stream, name)
        if self._tally:
            self._tally.waiting.pop(name, None)
        return progress

    def expect(self, builds: Mapping[str, float | None], at_once: int) -> None:
        """Announce builds with their expected seconds, None if unknown. From now on, print their totals."""
        self._tally = Tally(builds, at_once)

    def over(self, name: str, status: str) -> None:
        """Print the totals after a build has ended."""
        self._several.pop(name, None)
        if self._tally:
            self._tally.over(name, status)
            # Iterate over a copy: other threads remove builds meanwhile.
            self._say(self._tally.summary({name: progress._going for name, progress in list(self._several.items())}))

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        self._going.take(event)
        match event:
            case events.PhaseStarted():
                self._say(f"{event.build_id}: {event.phase} …")
            case events.Line() if console.verbosity > 0:
                self._say(f"{self._name}: {clean(event.text)}" if self._name else clean(event.text))
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
        """Do nothing: every line is printed already."""
