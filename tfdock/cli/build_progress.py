"""Build several profiles: plan them all, then build in turn or in parallel, and print each result."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdock.builder.session import BuildRequest, BuildResult, BuildSession, BundledInputs
from tfdock.cli import ci_log, console, diagnosis_text, summary_text
from tfdock.cli.app import local_engine
from tfdock.cli.progress import PlainProgress
from tfdock.errors import Incompatible, Interrupted, Problem, ProfileError, TfdockError, VerificationFailed
from tfdock.events import Listener
from tfdock.host import hardware
from tfdock.host.settings import Settings
from tfdock.host.supervise import Limit, Stop
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.prepare import PreparedBuild, Preparer

# Imported on use: a successful build needs no diagnosis, and only terminals need rich.
if TYPE_CHECKING:
    from tfdock.cli.terminal_progress import TerminalProgress
    from tfdock.diagnose.diagnosis import Diagnosis

    ProgressDisplay = PlainProgress | TerminalProgress

Result = dict[str, Any]  #: The result of a build: a row of `tfdock.build/1`, with an `exit_code`.


def session_for(
    settings: Settings, knowledge: KnowledgeBase, stop: Stop, *, limit: Limit | None = None, pulls: bool = True
) -> BuildSession:
    """Return a session on this machine's engine. The session connects to the engine at its first use.

    `limit` is the time limit of the command. With `pulls`, wheels are looked up in registries before a build.
    """
    return BuildSession(
        connect=local_engine, settings=settings, knowledge=knowledge, stop=stop, limit=limit, pulls=pulls
    )


@contextmanager
def shown_progress() -> Iterator[ProgressDisplay]:
    """Show the progress of builds on standard error; yield the listener of their events."""
    progress: ProgressDisplay
    if console.redraws(sys.stderr):
        from tfdock.cli.terminal_progress import TerminalProgress

        progress = TerminalProgress(sys.stderr)
    else:
        progress = PlainProgress(sys.stderr)
    try:
        yield progress
    finally:
        progress.close()


def prepare_all(
    plan: Callable[[str], PreparedBuild], names: list[str]
) -> tuple[list[PreparedBuild], list[Result], dict[str, int]]:
    """Plan all profiles before the first build starts. Return plans, results of refused profiles, and an order.

    The order maps the profile of each result (its file, or the name that was refused) to its position in `names`.
    """
    prepared: list[PreparedBuild] = []
    refused: list[Result] = []
    order: dict[str, int] = {}
    for place, name in enumerate(names):
        order.setdefault(name, place)
        try:
            prepared.append(plan(name))
            order.setdefault(prepared[-1].file, place)
        except TfdockError as error:
            refused.append(failed(name, None, "refused", error))
    # Two builds of one id would replace each other's wheel.
    ids: dict[str, str] = {}
    for build in prepared:
        other = ids.setdefault(build.plan.build_id, build.file)
        if other != build.file:
            raise ProfileError.of(
                "build-id-twice",
                f"{other} and {build.file} have the same build id, {build.plan.build_id}",
                "build only one of them, or build the second into another `--wheelhouse`",
                file=build.file,
            )
    # A profile may be named twice.
    return list({build.plan.build_id: build for build in prepared}.values()), refused, order


def ask_engine(session: BuildSession, prepared: Sequence[PreparedBuild], *, force: bool) -> None:
    """Raise EngineUnavailable if a build needs an engine and no engine answers."""
    # A wheel from a registry needs no engine, so each build looks for the engine itself.
    if session.pulls and session.settings.registries:
        return
    house, plans = session.wheelhouse, [build.plan for build in prepared]
    if force or any(not house.has(plan.build_id, plan.fingerprint, plan.trust.name) for plan in plans):
        session.engine.info()


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """How builds run. `at_once` is the number of parallel builds, or `auto`; `progress` receives the builds' events.

    `inputs` maps build ids to the inputs in a bundle. `expected` maps the builds of a matrix to their expected
    seconds. If it is set, the progress is a table of all builds.
    """

    session: BuildSession
    progress: ProgressDisplay
    at_once: str
    force: bool
    inputs: Mapping[str, BundledInputs] = field(default_factory=dict)
    expected: Mapping[str, float | None] | None = None
    note: Callable[[Result], None] | None = None  #: Called at the end of each build.
    #: The problems already printed about the engine: without an engine, every build fails with the same message.
    _told: list[Sequence[Problem]] = field(default_factory=list, init=False)

    def all(self, prepared: Sequence[PreparedBuild]) -> list[Result]:
        """Build all profiles; return their results in the same order.

        Raises EngineUnavailable before the first of several builds if a build needs an engine and none answers.
        """
        if self.expected is not None or len(prepared) > 1:
            ask_engine(self.session, prepared, force=self.force)
        if self.at_once == "1" or len(prepared) < 2:
            return self._in_turn(prepared)
        return self._side_by_side(prepared)

    def _in_turn(self, prepared: Sequence[PreparedBuild]) -> list[Result]:
        """Build one after another. Each build uses the whole machine and gets its own section of the CI log."""
        if self.expected is not None:
            self.progress.expect(self.expected, 1)
        session = self.session
        own, results = session, []
        listen: Listener = self.progress
        for profile in prepared:
            build_id = profile.plan.build_id
            if self.expected is not None:
                # All builds share one engine. Each row of the table gets the events of its own build.
                own, listen = replace(session, connect=lambda: session.engine), self.progress.of(build_id)
            with ci_log.here().fold(build_id):
                result = self._build(own, profile, listen)
            results.append(self._report_end(result))
        return results

    def _side_by_side(self, prepared: Sequence[PreparedBuild]) -> list[Result]:
        # Usually builds run one at a time, and no schedule is needed.
        from tfdock.builder.parallel import Ledger, build_side_by_side
        from tfdock.plan.resources import at_once

        plans = [build.plan for build in prepared]
        machine = plans[0].machine
        with suppress(TfdockError):  # if there is no engine, each build reports the error itself
            machine = self.session.machine(plans[0])
        costs = [plan.resolution.release.cost for plan in plans]
        count = at_once(costs, machine, None if self.at_once == "auto" else int(self.at_once))
        ledger = Ledger(count, {plan.build_id for plan in plans})

        def build_one(place: int) -> Result:
            profile = prepared[place]
            listen = self.progress.of(profile.plan.build_id)
            # Each thread has its own session: two threads must not share a connection to the engine.
            session = replace(self.session, allotted=ledger.allot, at_once=count)
            return self._report_end(self._build(session, profile, listen))

        console.say(f"{len(plans)} builds, {count} at a time")
        self.progress.expect(self.expected or {plan.build_id: None for plan in plans}, count)
        return build_side_by_side(plans, ledger, build_one)

    def _build(self, session: BuildSession, prepared: PreparedBuild, listen: Listener) -> Result:
        inputs = self.inputs.get(prepared.plan.build_id)
        request = BuildRequest(prepared=prepared, force=self.force, inputs=inputs)
        try:
            # After Ctrl-C, builds that have not begun end here.
            session.stop.check()
            done = None if self.force else session.up_to_date(prepared)
            if done is None:
                # A build that is up to date loads neither an engine's SDK nor the build modules.
                from tfdock.builder.build import build

                done = build(session, request, listen)
            return _success_row(prepared, done)
        except TfdockError as error:
            refused = "refused" if isinstance(error, Incompatible | VerificationFailed) else "failed"
            status = "interrupted" if isinstance(error, Interrupted) else refused
            log = session.log_path(request).path
            begun = log if log.is_file() else None
            result = failed(prepared.file, prepared.plan.build_id, status, error, begun)
            if status != "interrupted" and not _says_all(error.problems):
                result["diagnosis"] = _diagnosis(session, prepared, begun, is_cell=self.expected is not None)
            return result

    def _report_end(self, result: Result) -> Result:
        with _output_lock:
            problems = result["problems"]
            again = problems in self._told
            if any(problem.code.startswith("engine-") for problem in problems):
                self._told.append(problems)
            show_result(result, brief=self.expected is not None, again=again)
            self.progress.over(result["build_id"], result["status"])
            if self.note:
                self.note(result)
        return result


def _says_all(problems: Sequence[Problem]) -> bool:
    """Return whether a full disk or a registry caused a failure: a diagnosis of the log would repeat the error."""
    return any(problem.code == "disk-full" or problem.code.startswith("registry-") for problem in problems)


def _diagnosis(
    session: BuildSession, prepared: PreparedBuild, log: Path | None, *, is_cell: bool
) -> Diagnosis | None:
    """Return the diagnosis of the log of a failed build; None without a readable log."""
    # A build that succeeds needs neither the known failures nor their search.
    from tfdock.diagnose.diagnose_logs import diagnose_run_log
    from tfdock.plan.profile_fixes import Context

    if log is None:
        return None
    known = Context(knowledge=session.knowledge)
    # Changes are offered only for profile files on this machine, not for cells of a matrix or profiles in a bundle.
    if not is_cell and Path(prepared.file).is_file():
        preparer = Preparer(session.settings, hardware.local_machine(), knowledge=session.knowledge)
        # The profile may have been deleted meanwhile. The diagnosis then runs without a profile.
        with suppress(TfdockError, OSError):
            known = preparer.context(prepared.written)
    context = replace(known, resolution=prepared.plan.resolution, resources=prepared.plan.resources)
    return diagnose_run_log(log, session.knowledge, context)


def _success_row(prepared: PreparedBuild, result: BuildResult) -> Result:
    # Imported here: the module reads the wheel, and a failed build has no wheel.
    from tfdock.wheel.wheel_file import install_command

    record = result.record
    wheels = zip(result.wheels, record["wheels"], strict=True)
    return {
        "build_id": prepared.plan.build_id,
        "profile": prepared.file,
        "status": result.status,
        "origin": result.origin or None,
        "problems": [],
        "wheels": [
            {"path": str(path), "sha256": wheel["sha256"], "size": wheel["size"], "install": install_command(path)}
            for path, wheel in wheels
        ],
        "record": str(result.record_path),
        "log": str(result.log_path) if result.log_path.is_file() else None,  # a pulled build may have no log
        "seconds": record["seconds"],
        "cache": record.get("bazel"),
        "attempts": record["attempts"],
        "exit_code": 0,
    }


def outcome_of(results: Sequence[Result]) -> str:
    """Return the status of a build, such as `built`. For several builds, return counts: `2 built, 1 failed`."""
    counts = Counter(result["status"] for result in results)
    return ", ".join(f"{count} {status}" if len(results) > 1 else status for status, count in counts.items())


def show_summary(results: Sequence[Result]) -> None:
    """Print the outcome of each build on standard error, then how many builds had each outcome."""
    style = console.Style(sys.stderr)
    rows = [(result["status"], console.clean(result["profile"]), _first_code(result)) for result in results]
    colour = style.bad if any(result["exit_code"] for result in results) else style.good
    console.say("", *console.table(rows, columns=console.width(sys.stderr)), colour(outcome_of(results)))


def _first_code(result: Result) -> str:
    return next((f"({problem.code})" for problem in result["problems"]), "")


def failed(file: str, build_id: str | None, status: str, error: TfdockError, log: Path | None = None) -> Result:
    """Return the result of a build that failed, or of a profile that was refused."""
    # Imported here: a build that succeeds or is up to date does not need this module.
    from tfdock.builder.build_summary import figures_of

    figures = figures_of(log, build_id) if build_id and log else None
    return {
        "build_id": build_id,
        "profile": file,
        "status": status,
        "origin": None,
        "problems": list(error.problems),
        "wheels": [],
        "record": None,
        "log": str(log) if log else None,
        "seconds": {},
        # Only for a build that compiled.
        "cache": asdict(figures) if figures else None,
        "attempts": 0,
        "exit_code": int(error.exit_code),
    }


_output_lock = threading.Lock()  #: Keeps the lines of a result together if several builds end at once.


def show_result(result: Result, *, brief: bool = False, again: bool = False) -> None:
    """Print the result of a build. With `brief`, a build that is up to date takes a single line.

    With `again`, an earlier build already printed these problems.
    """
    style = console.Style(sys.stderr)
    name = result["build_id"] or result["profile"]
    if result["problems"]:
        if again:
            console.say(f"{style.bad(result['status'])}  {name}  {_first_code(result)}, as above")
            return
        console.say(f"{style.bad(result['status'])}  {name}")
        console.show_problems(result["problems"])
        diagnosis_text.show(result.get("diagnosis"), result["log"])
        # A failure whose cause is known needs no report.
        known = _says_all(result["problems"]) or diagnosis_text.shows_cause(result.get("diagnosis"))
        if result["status"] == "failed" and result["log"] and not known:
            console.tell("  to report this: `tfdock report --bundle` packs a file for an issue, and sends nothing")
        return
    total = sum(result["seconds"].values())
    took = f" in {console.duration(total)}" if result["status"] == "built" else ""
    cache = result["cache"]
    came = f" from {result['origin']}" if result["origin"] else ""
    console.say(f"{style.good(result['status'])}  {name}{took}{came}")
    if brief and result["status"] == "up-to-date":
        return
    for title, text in summary_text.lines(cache) if cache and took else ():
        console.tell(f"  {title:<7}  {text}", indent=" " * 9)
    for wheel in result["wheels"]:
        # The command prints the path of the bundle last.
        console.say(f"  wheel    {console.size(wheel['size'])}")
    console.say(f"  record   {result['record']}")
