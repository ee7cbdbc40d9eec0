"""Events, problems and results -> text for people. Standard error is the progress, standard output the result."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TextIO

from tfdock.do import events
from tfdock.errors import Problem

HEARTBEAT_SECONDS = 60.0
"""Silence after which a pipe gets a line: CI systems kill jobs that say nothing."""
_SHOWN_LINES = 6


def colour_wanted(stream: TextIO) -> bool:
    """NO_COLOR and FORCE_COLOR as everywhere, else whether the stream is a terminal that can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Style:
    """A few colours for one stream; plain text where none are wanted."""

    def __init__(self, stream: TextIO) -> None:
        self._on = colour_wanted(stream)

    def _wrapped(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._on else text

    def bad(self, text: str) -> str:
        """Errors."""
        return self._wrapped("1;31", text)

    def warn(self, text: str) -> str:
        """Warnings."""
        return self._wrapped("33", text)

    def good(self, text: str) -> str:
        """What went well."""
        return self._wrapped("32", text)

    def strong(self, text: str) -> str:
        """Headings."""
        return self._wrapped("1", text)

    def faint(self, text: str) -> str:
        """What one may skip."""
        return self._wrapped("2", text)


def clean(text: str) -> str:
    """Text from elsewhere (profiles, logs, engines) without what could steer a terminal; line breaks stay."""
    return "".join(one if one.isprintable() or one == "\n" else "�" for one in text)


def say(text: str = "", *, stream: TextIO | None = None) -> None:
    """Print a line, to standard error unless told otherwise."""
    stream = stream or sys.stderr
    stream.write(f"{text}\n")
    stream.flush()


def show_problems(problems: Iterable[Problem]) -> None:
    """Problems on standard error: where, what, and the fix."""
    style = Style(sys.stderr)
    for problem in problems:
        label = style.bad("error") if problem.severity == "error" else style.warn(problem.severity)
        where = f"{style.strong(clean(problem.where))}: " if problem.where else ""
        say(f"{where}{label}: {clean(problem.message)} {style.faint(f'[{problem.code}]')}")
        if problem.fix:
            say(f"  {style.good('fix:')} {clean(problem.fix)}")


def duration(seconds: float) -> str:
    """`42 s`, `3:07`, `2:14:09`."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: int) -> str:
    """Bytes for people: `615.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count = count / 1000  # type: ignore[assignment]
    raise AssertionError


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Columns as wide as they must be, the last one free."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)] if rows else []
    return [
        indent + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


class Remaining:
    """An estimate of the time left: by what it took the last time, else by the actions done so far."""

    def __init__(self, expected: float | None) -> None:
        self._expected = expected

    def seconds(self, elapsed: float, done: int, total: int) -> float | None:
        """Seconds left, or None while nothing is known."""
        if self._expected is not None and self._expected > elapsed:
            return self._expected - elapsed
        # Bazel's first actions say nothing about the rest: wait until a twentieth is done.
        if total and done * 20 >= total and elapsed > 5:
            return elapsed * (total - done) / done
        return None


class PlainProgress:
    """For pipes and CI: a line per phase, a sign of life once a minute."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._style = Style(stream)
        self._phase: events.PhaseStarted | None = None
        self._started = self._spoken = time.monotonic()
        self._progress = events.Progress(done=0, total=0)

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        now = time.monotonic()
        match event:
            case events.PhaseStarted():
                self._phase, self._started, self._progress = event, now, events.Progress(done=0, total=0)
                self._say(f"{event.build_id}: {event.phase} …")
            case events.PhaseEnded():
                word = self._style.good("done") if event.ok else self._style.bad("failed")
                self._say(f"{event.build_id}: {event.phase} {word} in {duration(event.seconds)}")
            case events.Notice():
                self._say(f"{self._style.warn('note:')} {clean(event.text)}")
            case events.Progress():
                self._progress = event
            case events.Tick() if self._phase and now - self._spoken >= HEARTBEAT_SECONDS:
                self._say(self._heartbeat(now - self._started, event.silent))
            case _:
                pass

    def _heartbeat(self, elapsed: float, silent: float) -> str:
        assert self._phase is not None
        progress = self._progress
        parts = [f"{self._phase.build_id}: {self._phase.phase} {duration(elapsed)}"]
        if progress.total:
            parts.append(f"[{progress.done:,} / {progress.total:,}]")
        left = Remaining(self._phase.expected).seconds(elapsed, progress.done, progress.total)
        parts += [f"about {duration(left)} left"] if left is not None else []
        parts += [f"silent for {duration(silent)}"] if silent >= HEARTBEAT_SECONDS else []
        return ", ".join(parts)

    def _say(self, text: str) -> None:
        self._spoken = time.monotonic()
        say(text, stream=self._stream)

    def close(self) -> None:
        """Nothing is left on the screen."""


class TerminalProgress:
    """For a terminal: finished phases scroll by, the running one is redrawn with its last lines."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._style = Style(stream)
        self._console = Console(file=stream, highlight=False, no_color=not colour_wanted(stream))
        self._phase: events.PhaseStarted | None = None
        self._started = time.monotonic()
        self._progress = events.Progress(done=0, total=0)
        self._lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._live = Live(console=self._console, refresh_per_second=5, transient=True, get_renderable=self._drawn)
        self._live.start()

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        from rich.text import Text

        match event:
            case events.PhaseStarted():
                self._phase, self._started = event, time.monotonic()
                self._progress = events.Progress(done=0, total=0)
                self._lines.clear()
            case events.PhaseEnded():
                self._phase = None
                mark, style = ("✓", "green") if event.ok else ("✗", "bold red")
                line = Text.assemble(
                    (mark, style), f" {event.phase:<8} {duration(event.seconds):>8}  ", event.build_id
                )
                self._live.console.print(line)
            case events.Notice():
                self._live.console.print(Text(f"  {clean(event.text)}", style="yellow"))
            case events.Progress():
                self._progress = event
            case events.Line():
                if event.text.strip():
                    self._lines.append(event.text)
            case events.Tick():
                pass

    def _drawn(self):  # type: ignore[no-untyped-def]
        from rich.console import Group
        from rich.text import Text

        if self._phase is None:
            return Text("")
        elapsed = time.monotonic() - self._started
        progress = self._progress
        head = Text.assemble(("● ", "cyan"), (f"{self._phase.phase:<8}", "bold"), f" {duration(elapsed):>8}  ")
        if progress.total:
            head.append(f"[{progress.done:,} / {progress.total:,}]  ")
        left = Remaining(self._phase.expected).seconds(elapsed, progress.done, progress.total)
        if left is not None:
            head.append(f"about {duration(left)} left  ", style="green")
        head.append(self._phase.build_id, style="dim")
        lines = [Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis") for line in self._lines]
        return Group(head, *lines)

    def close(self) -> None:
        """Leave the screen as it is."""
        self._live.stop()


def progress_for(stream: TextIO) -> PlainProgress | TerminalProgress:
    """The way to show progress that fits the stream."""
    if stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI"):
        return TerminalProgress(stream)
    return PlainProgress(stream)
