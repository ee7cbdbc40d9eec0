"""Trace a script, or read a profile that is there: from the first step to the causes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import VerificationFailed
from tfdock.host.files import make_folder
from tfdock.host.foreign_json import Malformed
from tfdock.installed.interpreter import ending
from tfdock.knowledge.wheel_rows import SlowCause
from tfdock.trace.recording import Captured, Script, captured_in, profile_in, record
from tfdock.trace.slow_causes import FoundCause, causes_of
from tfdock.trace.trace_facts import TraceFacts, facts_of
from tfdock.trace.xprof_tables import read_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """What `tfdock trace` found."""

    profile: str  #: The file that TensorFlow's profiler wrote.
    timeline: str  #: The same for chrome://tracing and Perfetto.
    status: int  #: The script's exit status; below 0 the number of the signal that ended it. 0 without a script.
    script: Captured | None  #: What was recorded of the script; null for a profile that was there.
    facts: TraceFacts  #: What the profile shows.
    causes: tuple[FoundCause, ...]  #: Why the program is slow, what hides the rest first; none where none is known.
    notes: tuple[str, ...]  #: What limits the answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """What reads profiles: a Python that has xprof, the templates, and the causes that are known."""

    xprof: Path
    templates: Mapping[str, str]
    rows: Iterable[SlowCause]

    def run(self, script: Script, folder: Path, *, stdout: int | None, tick: Callable[[], object]) -> TraceReport:
        """Record a script into a folder, and read it. Raises VerificationFailed where nothing was recorded."""
        make_folder(folder)
        status = record(script, self.templates["trace/capture.py"], folder.absolute(), stdout=stdout, tick=tick)
        captured = captured_in(folder)
        if captured is None:
            raise VerificationFailed.of(
                "trace-missing",
                f"nothing was recorded: {script.words[0]} ends with {ending(status)}",
                f"what it printed says why; run it alone: `{script.python} {script.words[0]}`",
            )
        return self.read(Path(captured.own_profile or folder), script, captured, status)

    def read(
        self, place: Path, script: Script | None = None, captured: Captured | None = None, status: int = 0
    ) -> TraceReport:
        """Read the newest profile of a folder, or a file.

        Raises ProfileError where there is none, VerificationFailed for a broken one.
        """
        profile = profile_in(place)
        tables = read_tables(self.xprof, profile, self.templates["trace/read.py"])
        try:
            facts = facts_of(tables)
        except Malformed as error:
            message, fix = f"{profile}: {error}", "record it again"
            raise VerificationFailed.of("trace-unreadable", message, fix) from error
        timeline = profile.parent / "trace.json.gz"
        timeline.write(gzip.compress(tables["trace_viewer"], 6, mtime=0))
        notes = [*(_script_notes(script, captured, status) if script and captured else ()), *_notes(facts)]
        return TraceReport(
            profile=str(profile),
            timeline=str(timeline),
            status=status,
            script=captured,
            facts=facts,
            causes=tuple(causes_of(facts, self.rows)),
            notes=tuple(notes),
        )


def _script_notes(script: Script, captured: Captured, status: int) -> Iterator[str]:
    if status:
        yield f"the script ends with {ending(status)}"
    if captured.own_profile:
        yield f"the script starts the profiler itself: this is its own profile, of {captured.own_profile}"
    elif captured.steps and captured.steps < script.steps:
        yield f"the script had {captured.steps} steps after the first {script.skip}; {script.steps} were wanted"


def _notes(facts: TraceFacts) -> Iterator[str]:
    if not facts.steps:
        yield "no step is marked: these are figures of the whole run, with its start"
    if not facts.has_shapes:
        yield "the operations tell no inputs: whether they compute in float64 is not known"
    elif facts.double_share is None and facts.eager_calls:
        yield "the types of operations that Python calls one by one are not known: look for float64 there yourself"
