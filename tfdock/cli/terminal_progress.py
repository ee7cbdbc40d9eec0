"""Progress on a terminal: finished phases scroll by, running builds are redrawn below them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tfdock import events
from tfdock.bazel import output
from tfdock.cli.console import clean, colour_wanted, duration, wrapped
from tfdock.cli.progress import RunningPhase, Tally, short_names
from tfdock.host.files import OWN_BUILD

_KEPT_LINES = 8  #: Screen lines that a table leaves free, for messages above the table and for its last line.
#: Columns that a row leaves free. A terminal shows Ctrl-C as `^C`, and this text must not wrap into a new row.
_ECHO = 3


class TerminalProgress:
    """The display for terminals: finished phases scroll by, running builds are redrawn below them.

    One build is shown with its last lines of output, several with a row each.
    """

    def __init__(self, stream: TextIO) -> None:
        # Text above the display, such as paths and commands to paste, is also printed through the display, without
        # wrapping.
        self._console = Console(
            file=stream, highlight=False, markup=False, soft_wrap=True, no_color=not colour_wanted(stream)
        )
        self._one = RunningPhase()
        self._heading = ""
        self._several: dict[str, RunningPhase] = {}
        self._names: dict[str, str] = {}
        self._tally: Tally | None = None
        # Each of several builds reports from its own thread, and rich draws in another thread.
        self._lock = threading.Lock()
        self._live = Live(
            console=self._console,
            refresh_per_second=5,
            # The display is erased at the end: finished phases have been printed above it.
            transient=True,
            get_renderable=self._drawn,
            redirect_stdout=sys.stdout.isatty(),  # otherwise the result is for a file or a program
        )
        self._live.start()

    def of(self, name: str) -> events.Listener:
        """Return the listener of one of several builds. Each build has its own row."""
        with self._lock:
            going = self._several.setdefault(name, RunningPhase())
            self._names = short_names({*self._names, name})
            if self._tally:
                self._tally.waiting.pop(name, None)
        return lambda event: self._take(going, event, name)

    def expect(self, builds: Mapping[str, float | None], at_once: int) -> None:
        """Announce builds, and show them as a table."""
        with self._lock:
            self._tally = Tally(builds, at_once)
            self._names = short_names(builds)

    def over(self, name: str, status: str) -> None:
        """Remove the row of a build that has ended."""
        with self._lock:
            self._several.pop(name, None)
            if self._tally:
                self._tally.over(name, status)

    def __call__(self, event: events.Event) -> None:
        """Take one event of the only build."""
        self._take(self._one, event)

    def _take(self, going: RunningPhase, event: events.Event, name: str = "") -> None:
        with self._lock:
            going.take(event)
            short = self._names.get(name, "")
            heading = ""
            if isinstance(event, events.PhaseStarted) and not name and event.build_id != self._heading:
                self._heading = heading = event.build_id
        if heading:
            self._live.console.print(Text(heading, style="bold"))
        # Print without our lock: while rich draws, it holds its own lock, and `_drawn` then takes ours.
        match event:
            case events.PhaseEnded():
                mark, style = ("✓", "green") if event.ok else ("✗", "bold red")
                line = Text.assemble((mark, style), f" {event.phase:<8} {duration(event.seconds):>8}  ", short)
                line.rstrip()
                self._live.console.print(line)
                for last in () if event.ok else _last_lines(going):
                    self._live.console.print(_cut(last, self._console.width))
            case events.Notice():
                whose = f"{short}: " if name else ""
                for part in wrapped(f"  {whose}{clean(event.text)}", self._console.width):
                    self._live.console.print(Text(part, style="yellow"))
            case _:
                pass

    def _drawn(self) -> Group:
        with self._lock:
            rows = self._rows()
        for row in rows:
            _cut(row, self._console.width)
        return Group(*rows)

    def _rows(self) -> list[Text]:
        if self._tally:
            return self._table(self._tally)
        if self._several:
            return self._running()
        if self._one.phase is None:
            return [Text("")]
        return [_head(self._one), *_last_lines(self._one)]

    def _running(self) -> list[Text]:
        return [
            _head(going, self._names[name], self._holder(going))
            for name, going in self._several.items()
            if going.phase
        ]

    def _holder(self, waiting: RunningPhase) -> str:
        """Return the build that others wait for, if exactly one build works in this phase; else an empty text."""
        busy = [
            self._names[name]
            for name, going in self._several.items()
            if going.phase and waiting.phase and going.phase.phase == waiting.phase.phase and not going.waits_for
        ]
        return busy[0] if waiting.waits_for == OWN_BUILD and len(busy) == 1 else ""

    def _table(self, tally: Tally) -> list[Text]:
        """Return a row for each running build, for as many waiting builds as fit, and for the totals."""
        rows = self._running()
        room = max(self._console.height - len(rows) - _KEPT_LINES, 0)
        shown = list(tally.waiting.items())[:room]
        for name, seconds in shown:
            expected = duration(seconds) if seconds is not None else ""
            rows.append(Text(f"○ waiting  {expected:>8}  {self._names[name]}", style="dim", no_wrap=True))
        more = len(tally.waiting) - len(shown)
        if more:
            rows.append(Text(f"  and {more} more", style="dim"))
        rows.append(Text(tally.summary(self._several), style="bold", no_wrap=True))
        return rows

    def close(self) -> None:
        """Stop redrawing, and leave the screen as it is."""
        self._live.stop()


def _last_lines(going: RunningPhase) -> list[Text]:
    return [Text(f"  {line}", style="dim", no_wrap=True) for line in going.lines]


def _cut(row: Text, width: int) -> Text:
    row.truncate(max(width - _ECHO, 1), overflow="ellipsis")
    return row


def _head(going: RunningPhase, name: str = "", holder: str = "") -> Text:
    """Return the row of a build: phase and progress; with a `name`, also the name and the running action."""
    assert going.phase is not None
    head = Text.assemble(
        ("○ ", "dim") if going.waits_for else ("● ", "cyan"),
        (f"{going.phase.phase:<8}", "bold"),
        f" {going.elapsed:>8}  ",
        no_wrap=True,
    )
    # First in the row, so that it is not cut off.
    head.append(f"{name}  " if name else "", style="dim")
    if going.waits_for:
        return head.append(f"waits for {holder or clean(going.waits_for)}", style="dim")
    head.append(f"{going.count}  " if going.count else "")
    head.append(f"{going.left}  " if going.left else "", style="green")
    if name and going.lines:
        head.append(output.action(going.lines[-1]) or going.lines[-1], style="dim")
    return head
