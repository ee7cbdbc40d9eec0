"""Watch the work of phases on an engine, log it, and stop it on request."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from tfdock import events
from tfdock.bazel import output as bazel
from tfdock.bazel.build_events import read_output
from tfdock.engine.protocol import Cancel, Engine, ImageInfo
from tfdock.errors import Interrupted, TfdockError, TimeLimit
from tfdock.host.logins import LoginFilter
from tfdock.host.settings import Settings
from tfdock.host.supervise import Limit, Lines, Output, Stop, Stopper, watched
from tfdock.run import journal
from tfdock.run.disk_space import DiskSpace
from tfdock.run.log_text import LogText, clean_text
from tfdock.types import EngineInfo

STEP = "=== tfdock: "  #: The beginning of a log line where a step begins.
_TAIL = 200
_ERRORS = 50

_T = TypeVar("_T")


class OutputTap(Protocol):
    """A second reader of a step's output."""

    def feed(self, data: bytes) -> None:
        """Read some bytes of the output."""

    def shown_line(self, line: str) -> str:
        """Return the part of a line that is shown."""


@dataclass
class PhaseOutput:
    """The output of the current phase. One object serves the whole run."""

    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))  #: The last lines.
    errors: list[str] = field(default_factory=list)  #: The first lines that look like errors.
    progress: tuple[int, int] | None = None  #: The actions that Bazel last reported as done, and all its actions.

    def clear(self) -> None:
        """Drop the output of the last phase, because a new phase begins."""
        self.tail.clear()
        self.errors.clear()
        self.progress = None

    def add(self, line: str) -> tuple[int, int] | None:
        """Keep a line. Return Bazel's progress if the line reports it."""
        self.tail.append(line)
        # The first errors are the causes; later ones often follow from them.
        if bazel.is_error(line) and len(self.errors) < _ERRORS:
            self.errors.append(line)
        progress = bazel.progress(line)
        self.progress = progress or self.progress
        return progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """Watches the containers, image builds and pulls of one run. `output` is the output of the current phase.

    `local`: the engine sees this machine's folders. `disk_space` watches the disks.
    """

    engine: Engine
    run_id: str
    local: bool
    log: BinaryIO
    listen: events.Listener
    stop: Stop
    clock: Callable[[], float] = time.monotonic
    limit: Limit | None = None
    disk_space: DiskSpace = field(default_factory=lambda: DiskSpace(places={}))
    output: PhaseOutput = field(default_factory=PhaseOutput)
    writable: set[Path] = field(default_factory=set)  #: The folders that containers of this run can write to.
    #: Numbers for volumes that serve only one container of this run.
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def log_error(self, error: Exception) -> None:
        """Log an error of the engine, a registry or the system: no program prints it."""
        problems = error.problems if isinstance(error, TfdockError) else ()
        messages = [problem.message for problem in problems] or [str(error)]
        # Control sequences may come from a registry's or a program's words.
        text = "".join(f"tfdock: {line}\n" for text in messages for line in text.split("\n"))
        with suppress(OSError):  # the error reaches the user even if the disk is full
            self.log.write(clean_text(text.encode("utf-8", "surrogateescape")))

    def stopper(self, *, gently: Callable[[], None], by_force: Callable[[], None] = lambda: None) -> Stopper:
        """Return the stopper of a step: for a request, for the run's time limit, and for a nearly full disk."""
        return Stopper(
            self.stop,
            gently=gently,
            by_force=by_force,
            limit=self.limit,
            clock=self.clock,
            short=self.disk_space.is_short,
        )

    def give_up(self, phase: str) -> None:
        """Raise the reason for a stop: a request, a nearly full disk, or the time limit."""
        # A stop by the user has priority over all other causes.
        self.stop.check()
        progress = self.output.progress
        done = f" after {progress[0]:,} of {progress[1]:,} actions" if progress else ""
        if self.disk_space.short:
            raise self.disk_space.error(phase, done, self.stop.kept)
        assert self.limit, "only a time limit is left as the reason"
        raise TimeLimit.of(
            "time-limit",
            f"the time limit of {self.limit.seconds} s was reached in phase {phase}{done}; {self.stop.kept}"
            f"{self._bazel_figures}",
            "run the same command again to continue; on another machine, do so after `tfdock cache push` here and "
            "`tfdock cache pull` there",
        )

    @property
    def _bazel_figures(self) -> str:
        """Bazel's own figures, which it prints when it is stopped. Its progress counts internal steps too."""
        figures = read_output(self.output.tail).figures
        if figures is None:
            return ""
        ran = "1 action was executed" if figures.executed == 1 else f"{figures.executed:,} actions were executed"
        return f" ({ran}, {figures.hits:,} came from the cache)"

    def check(self, phase: str) -> None:
        """Raise if the run must end, between steps."""
        self.stop.check()
        if (self.limit and self.limit.is_over(self.clock())) or self.disk_space.is_short():
            self.give_up(phase)

    def waiting(self, phase: str, reason: str) -> Callable[[str], None]:
        """Return a function to call while a phase waits for another run. It reports once, and raises at a stop."""
        told_once: list[str] = []

        def wait(who: str) -> None:
            if not told_once:
                told_once.append(who)
                self.listen(events.Notice(text=f"waiting for {who}, which {reason}"))
            # The display shows that the build is alive.
            self.listen(events.Tick(silent=0.0, waits_for=who))
            self.check(phase)

        return wait

    def watch(
        self,
        title: str,
        produce: Callable[[Output], _T],
        stopper: Stopper,
        *,
        tap: OutputTap | None = None,
        hidden: Sequence[str] = (),
        on_engine: bool = True,
    ) -> _T:
        """Watch work to its end: its output goes to the log as text and, line by line, to the listener.

        The texts in `hidden` are removed from both; `tap` gets all. `on_engine`: the engine does the work, and is
        asked whether it is alive when there is no output.
        """
        self.log.write(f"{step_heading(title)}\n".encode())
        lines, text = Lines(lambda text: self._line(tap.shown_line(text) if tap else text)), LogText()

        def show(data: bytes) -> None:
            written = text.feed(data)
            self.log.write(written)
            lines.feed(written)

        without_logins = LoginFilter(hidden, show)

        def output(data: bytes) -> None:
            # Pass the original pieces: the filter holds bytes back, and a tap may depend on the pieces.
            if tap:
                tap.feed(data)
            without_logins.feed(data)

        def tick(silent: float) -> None:
            self.listen(events.Tick(silent=silent))
            if stopper.tick():
                self.listen(events.Notice(text=f"stopping; {self.stop.kept}. Ctrl-C again kills"))

        try:
            # Without output the engine itself is asked: a compiler may be silent for an hour.
            return watched(produce, output, tick, self.engine if on_engine else None, self.clock)
        finally:
            with suppress(OSError):  # the first error is the one to report
                without_logins.close()
                rest = text.close()
                lines.feed(rest)
                self.log.write(rest)
            lines.close()

    def watch_until_stopped(
        self, title: str, phase: str, produce: Callable[[Output], _T], *, on_engine: bool = True
    ) -> _T:
        """Watch work that gets no signal at a stop: the stop only ends the waiting."""
        return self.watch(title, produce, self.stopper(gently=lambda: self.give_up(phase)), on_engine=on_engine)

    def watch_cancellable(
        self,
        title: str,
        phase: str,
        produce: Callable[[Output, Cancel], _T],
        *,
        tap: OutputTap | None = None,
        hidden: Sequence[str] = (),
    ) -> _T:
        """Watch work of the engine that is cancelled at the first stop, and abandoned at the second stop."""
        cancel = Cancel()
        stopper = self.stopper(gently=cancel.set, by_force=lambda: self.give_up(phase))
        try:
            return self.watch(title, lambda output: produce(output, cancel), stopper, tap=tap, hidden=hidden)
        except Interrupted:  # the engine's error, which only reports the stop
            self.stop.check()
            if stopper.late:
                self.give_up(phase)
            raise

    def _line(self, text: str) -> None:
        progress = self.output.add(text)
        if progress:
            self.listen(events.Progress(done=progress[0], total=progress[1]))
        self.listen(events.Line(text=text))

    def image(self, reference: str, phase: str, title: str) -> ImageInfo:
        """Return the image; pull it if it is not there. A stopped pull keeps its downloads."""
        # A stop may abandon the pull: the engine keeps the layers.
        return self.engine.image(reference) or self.watch_until_stopped(
            title, phase, lambda output: self.engine.pull(reference, output)
        )


def step_heading(title: str) -> str:
    """Return the line of a log where a step begins."""
    return f"{STEP}{title} ==="


def clean_up_killed_runs(engine: Engine, info: EngineInfo, settings: Settings, listen: events.Listener) -> None:
    """Clean up after killed runs on an engine. Runs on another engine are cleaned up when that engine is used.

    Folders that do not follow from these settings are kept: `tfdock doctor` reports them. Raises ProfileError
    (`state-not-private`) if other users could write to the journal.
    """
    if not info.local:
        listen(
            events.Notice(text=f"the engine is on another machine, {info.address}: files are copied there and back")
        )
    for entry in journal.killed_runs(settings.state_dir):
        if entry.engine not in ("", info.id):
            continue
        try:
            left = journal.clean_killed_run(settings, entry, engine)
        except OSError as error:  # for example files of another user: leftovers of one build must not fail another
            listen(events.Notice(text=f"could not clean up after run {entry.run}: {error}"))
        else:
            if not left:
                listen(events.Notice(text=f"cleaned up after run {entry.run}, which was killed"))
