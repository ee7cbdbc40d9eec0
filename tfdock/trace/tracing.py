"""Trace a script, or read an existing profile: from the first step to the causes."""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from tfdock.errors import ProfileError, VerificationFailed
from tfdock.host.files import make_folder
from tfdock.host.foreign_json import Malformed
from tfdock.host.supervise import Stop
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.installed.interpreter import ending
from tfdock.knowledge import loader
from tfdock.knowledge.wheel_rows import SlowCause
from tfdock.trace.operation_case import OperationCase, chosen, write_case
from tfdock.trace.recording import SESSION, Captured, profile_in
from tfdock.trace.script_places import Script
from tfdock.trace.trace_facts import TraceFacts, facts_of
from tfdock.trace.xprof_tables import read_tables, sample_server, serve_page, xprof_python

_SECONDS_WITHOUT_STEPS = 30  #: Seconds to record a script without steps.
_MOST_JSON, _MOST_SESSION = 1 << 20, 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCause:
    """A cause that a trace shows."""

    cause: str  #: The name of the cause in the table.
    says: str  #: The observation, with figures.
    advice: str  #: The fix.
    is_fault: bool  #: Whether something is wrong or wasted. If false, the cause only shows how the time is used.


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The result of `tfdock trace`."""

    profile: str  #: The file that TensorFlow's profiler wrote.
    timeline: str  #: The file with the events for chrome://tracing and Perfetto.
    facts: TraceFacts  #: The facts in the profile.
    causes: tuple[FoundCause, ...]  #: Why the program is slow; a cause that hides others is first.
    notes: tuple[str, ...]  #: What limits the answer.
    status: int = 0  #: The script's exit status, or minus the number of the signal that ended it; 0 without a script.
    script: Captured | None = None  #: The recording of the script; null for an existing profile.
    case: OperationCase | None = None  #: An operation as a separate program, if requested.
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: Type -> where the operation is registered.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """Reads profiles. `xprof` names a Python that has xprof, `rows` are the known causes."""

    xprof: str
    rows: Iterable[SlowCause]

    def run(self, script: Script, folder: Path, case: str = "") -> TraceReport:
        """Record a script into a folder, and read the profile. Write the operation `case`, if given, as a program.

        Raises VerificationFailed if nothing was recorded, or the operation cannot be written; Interrupted.
        """
        make_folder(folder)
        request = {"skip": script.skip, "steps": script.steps, "seconds": _SECONDS_WITHOUT_STEPS}
        status = script.place.run(script.words, loader.templates()["trace/capture.py"], request, folder)
        captured: Captured | None = UntrustedPath(folder, "capture.json").load(Captured, _MOST_JSON)
        if captured is None:
            raise _nothing(
                script, f"{shlex.join(script.words)} ends with {ending(status)} before or while it imports TensorFlow"
            )
        if not script.place.python:
            captured = replace(captured, own_profile=None)
        if not captured.steps and captured.left_out >= script.skip and not captured.own_profile:
            raise _nothing(
                script, f"all its {captured.left_out} steps are skipped", "use `--skip 1`, or run more steps"
            )
        # The script's own profile is used only if no other was kept.
        try:
            found = self.read([folder, *([Path(captured.own_profile)] if captured.own_profile else [])], folder)
        except ProfileError as error:  # 1.x reports only the calls of sessions
            raise _nothing(
                script, "it calls no session", "run the step in a session: eager operations of 1.x report nothing"
            ) from error
        if case:
            operation = chosen(found.facts.operations, case)
            found = replace(found, case=write_case(script, operation, folder))
        notes = (*_script_notes(script, captured, status), *found.notes)
        return replace(found, status=status, script=captured, notes=notes)

    def sample(self, server: str, folder: Path, seconds: int) -> TraceReport:
        """Record for some seconds a program that runs a profiler server, and read the profile.

        Raises VerificationFailed if nothing was recorded.
        """
        make_folder(folder)
        sample_server(xprof_python(self.xprof), server, folder, seconds)
        return self.read([folder], folder)

    def show(
        self, found: TraceReport, stoppable: Callable[[], AbstractContextManager[Stop]], ready: Callable[[str], None]
    ) -> None:
        """Serve xprof's page of a profile until a stop is requested. Raises VerificationFailed if xprof cannot."""
        profile = profile_in(Path(found.profile))
        if profile.name == SESSION:
            message, fix = "xprof shows no session of TensorFlow 1.x", f"open {found.timeline} in chrome://tracing"
            raise ProfileError.of("trace-unreadable", message, fix)
        serve_page(xprof_python(self.xprof), profile, stoppable, ready)

    def read(self, places: Sequence[Path], folder: Path) -> TraceReport:
        """Read the newest profile of the first place that has one; write its timeline into `folder`.

        Raises ProfileError if there is no profile, VerificationFailed for a broken profile.
        """
        profile = profile_in(*places)
        if profile.name == SESSION:  # a session has only events
            events = profile.read(_MOST_SESSION)
            tables = {"trace_viewer": events, "timeline": gzip.compress(events, mtime=0)}
        else:
            tables = read_tables(xprof_python(self.xprof), profile)
        try:
            facts = facts_of(tables)
        except Malformed as error:
            message, fix = f"{profile}: {error}", "record it again"
            raise VerificationFailed.of("trace-unreadable", message, fix) from error
        timeline = UntrustedPath(folder, "trace.json.gz")
        timeline.write(tables["timeline"])
        return TraceReport(
            profile=str(profile),
            timeline=str(timeline),
            facts=facts,
            causes=tuple(causes_of(facts, self.rows)),
            notes=tuple(_notes(facts, profile.name)),
        )


def _nothing(script: Script, why: str, fix: str = "") -> VerificationFailed:
    alone = "its output says why"
    if script.place.python:
        alone += f"; run the script alone: `{shlex.join([str(script.place.python), *script.words])}`"
    return VerificationFailed.of("trace-missing", f"nothing was recorded: {why}", fix or alone)


def _script_notes(script: Script, captured: Captured, status: int) -> Iterator[str]:
    if status:
        yield f"the script ends with {ending(status)}"
    if captured.own_profile:
        yield f"the script profiles itself too, into {captured.own_profile}: `tfdock trace {captured.own_profile}`"
    if captured.steps and captured.steps < script.steps:
        yield f"only {captured.steps} steps were recorded: the script has no more, or all steps take over 5 s"


def _notes(facts: TraceFacts, profile: str) -> Iterator[str]:
    if not facts.steps:
        yield "no step is marked: the numbers are for the whole recording, at most half a minute of a script"
    if facts.compile_share is None:
        yield "XLA compiles a function, but reports nothing here: it is unknown whether it compiles in each step"
    if not facts.has_shapes:
        yield "the operations list no inputs: it is unknown whether they compute in float64"
    elif facts.double_share is None and facts.eager_calls:
        yield "the types of operations that Python calls one by one are not known: look for float64 there yourself"
    # Measured with 1.15 on a CPU: calls of 0.14 to 0.24 ms took 0.32 to 0.43 ms.
    if profile == SESSION and (facts.step_seconds or 1) < 0.002:
        yield "recording adds about 0.2 ms to each call of a session: such short steps are faster without recording"


def causes_of(facts: TraceFacts, rows: Iterable[SlowCause]) -> Iterator[FoundCause]:
    """Yield the causes, in the order of the table: a cause that hides others comes first."""
    figures = {one.name: getattr(facts, one.name) for one in fields(facts)}
    known = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    texts = {name: _text(name, value) for name, value in figures.items() if isinstance(value, int | float | str)}
    found = set[str]()
    for row in rows:
        enough = all(name in known and known[name] >= least for name, least in row.at_least.items())
        little = all(name in known and known[name] <= most for name, most in row.at_most.items())
        if enough and little and row.unless.isdisjoint(found):
            found.add(row.cause)
            says, advice = row.says.format(**texts), row.advice.format(**texts)
            yield FoundCause(cause=row.cause, says=says, advice=advice, is_fault=row.is_fault)


def _text(name: str, value: float | str) -> str:
    if name.endswith("_share") and not isinstance(value, str):
        return f"{100 * value:.0f} %"
    return f"{value:.0f}" if isinstance(value, float) else str(value)
