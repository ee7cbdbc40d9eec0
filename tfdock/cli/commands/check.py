"""The `check` command. It needs no engine, but reports what an engine cannot do. Only `--online` needs a network."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfdock.builder.doctor import build_places, engine_findings
from tfdock.cli import console
from tfdock.cli.app import (
    AllowUntested,
    AsJson,
    SomeProfiles,
    app,
    command,
    preparer_for,
    print_json,
    profile_names,
    stoppable,
)
from tfdock.engine.engine_facts import quick_facts
from tfdock.errors import ExitCode, Problem, ProfileError, Suggestion, TfdockError, combined_exit_code
from tfdock.host import hardware
from tfdock.host.files import write_bytes
from tfdock.host.settings import Settings
from tfdock.knowledge import loader
from tfdock.plan.estimate import PhaseEstimate, Record, expectation
from tfdock.plan.notes import notes_of
from tfdock.plan.preflight import PreflightCheck, machine_findings
from tfdock.plan.prepare import STDIN, Preparer, WrittenProfile, placed
from tfdock.plan.wish import DEVICES, Wish
from tfdock.profile import profile as profiles
from tfdock.profile.profile_edit import edited
from tfdock.resolve.profile_changes import Change, as_yaml, changed
from tfdock.resolve.resolution import Resolution
from tfdock.types import WritableFolder
from tfdock.wheelhouse.store import Wheelhouse

if TYPE_CHECKING:
    # Imported on use: `check` alone needs no network.
    from tfdock.offline.availability import Availability


@app.command(
    epilog="Example: `tfdock check rtx3080 rocm`. Exit status: 0 fine, 2 malformed, 3 cannot work; with `--online` "
    "also 3 if a download is gone or changed, and 7 if a server does not answer."
)
@command("tfdock.check/1", "knowledge", "allow_paths", "allow_endpoints")
def check(
    settings: Settings,
    wish: Wish,
    profiles: SomeProfiles = None,
    allow_untested: AllowUntested = False,
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            help="Ask the servers whether base image, source, Bazel and archives are still there and unchanged.",
        ),
    ] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Fix a refused profile: write a change into it. If several are possible, ask."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix, ask nothing and make the first change.")] = False,
    as_json: AsJson = False,
) -> None:
    """Also say what this machine lacks. No engine and no network is needed."""
    if yes and not fix:
        raise typer.BadParameter("`--yes` answers the question of `--fix`, but `--fix` is missing")
    if wish and fix:
        raise typer.BadParameter(f"`--fix` changes files: leave `{wish.words}` out")
    preparer, places = preparer_for(settings, allow_untested=allow_untested, wish=wish), build_places(settings)
    records = [*Wheelhouse(settings.wheelhouse).records()]
    asking = not (yes or as_json) and sys.stdin.isatty() and sys.stderr.isatty()
    results = []
    for name in profile_names(profiles, wish):
        again = partial(_check_profile, preparer, places, records, name)
        result = again()
        fixable = fix and any(problem.ways for problem in result.problems)
        results.append(_fix(preparer, result, again, yes=yes, asking=asking) if fixable else result)
    # A refused profile needs no engine and may be untrusted, so no program of this machine is called.
    facts = quick_facts() if any(result.resolution for result in results) else None
    engine = engine_findings(facts, settings) if facts else []
    results = [replace(result, engine=engine) if result.resolution else result for result in results]
    if online:
        results = _ask_online(results, preparer, settings)
    codes = [result.exit_code for result in results]
    if as_json:
        print_json("tfdock.check/1", not any(codes), {"profiles": [result.document for result in results]})
    else:
        for result in results:
            _show(result)
        # Print it once: the problem does not concern a single profile.
        console.show_problems(_lacking(engine))
    raise typer.Exit(combined_exit_code(codes))


@dataclass(frozen=True, kw_only=True)
class _CheckResult:
    """The result of one profile: `file` as the user named it, `path` where it is.

    `machine` holds the checks of this machine, and `engine` those of its engine, if one answers. They are empty for a
    refused profile, even if this machine's GPUs are the reason. `fixed` is the change that `--fix` wrote. `told` is
    the number of problems that were printed before the question.
    """

    file: str
    path: str | None = None
    exit_code: int = 0
    problems: Sequence[Problem] = ()
    machine: Sequence[PreflightCheck] = ()
    engine: Sequence[PreflightCheck] = ()
    online: Sequence[Availability] = ()
    resolution: Resolution | None = None
    notes: Sequence[str] = ()
    expected: PhaseEstimate | None = None
    fixed: Mapping[str, object] | None = None
    told: int = 0

    @property
    def document(self) -> dict[str, object]:
        """The row of `tfdock.check/1`."""
        resolution = self.resolution
        skipped = [check for check in self.machine if check.status == "skipped"]
        warnings = [*(resolution.warnings if resolution else ()), *_lacking((*self.machine, *self.engine))]
        return {
            "file": self.file,
            "ok": not self.exit_code,
            "build_id": resolution.build_id if resolution else None,
            "evidence": resolution.grade if resolution else None,
            "problems": self.problems,
            "untested": resolution.untested if resolution else (),
            "warnings": warnings,
            "skipped": [{"rule": check.name, "reason": check.found} for check in skipped],
            "online": self.online,
            "estimate": self.expected and self.expected.document,
            "unverified": resolution.unverified if resolution else (),
            "notes": self.notes,
            "fixed": self.fixed,
        }


def _lacking(checks: Iterable[PreflightCheck]) -> list[Problem]:
    """Return as warnings what this machine or its engine lacks.

    They concern a build on this machine, not the profile.
    """
    lacking = [check.problem for check in checks if check.status in ("warning", "failed")]
    # The build may run on another machine that lacks nothing.
    return [replace(problem, message=f"this machine: {problem.message}", severity="warning") for problem in lacking]


def _check_profile(
    preparer: Preparer, places: Sequence[WritableFolder], records: Iterable[Record], name: str
) -> _CheckResult:
    try:
        wanted = preparer.resolve(name)
    except TfdockError as error:
        return _CheckResult(file=name, exit_code=int(error.exit_code), problems=error.problems)
    # The drivers' tools can take seconds, so a CPU build does not call them.
    host = hardware.local_host() if wanted.resolution.accelerator.toolkit else None
    machine = machine_findings(wanted, preparer.knowledge, host=host, machine=preparer.machine, places=places)
    # `gpus: local` means this machine, so a driver that is too old is an error. Memory and disk may be another
    # machine's.
    against = [check for check in machine if check.status == "failed" and check.exit_code is ExitCode.INCOMPATIBLE]
    if against:
        problems = [placed(replace(check.problem, field="gpus"), wanted.written.document, name) for check in against]
        return _CheckResult(file=name, exit_code=int(ExitCode.INCOMPATIBLE), problems=problems)
    return _CheckResult(
        file=name,
        path=wanted.written.file,
        machine=machine,
        resolution=wanted.resolution,
        notes=notes_of(preparer, wanted.written, wanted.resolution),
        expected=expectation(wanted.resolution, wanted.resources, preparer.machine, records, preparer.knowledge),
    )


# --- write a fix ------------------------------------------------------------------------------------------------


def _fix(
    preparer: Preparer, result: _CheckResult, again: Callable[[], _CheckResult], *, yes: bool, asking: bool
) -> _CheckResult:
    """Write a fix into a refused profile and return the new result, or else the old result and the reason."""
    if asking:
        console.show_problems(result.problems)
        result = replace(result, told=len(result.problems))
    try:
        change = _write_way_out(preparer, result.file, result.problems, yes=yes, asking=asking)
    except ProfileError as error:
        return replace(result, problems=(*result.problems, *error.problems))
    return result if change is None else replace(again(), fixed=change)


def _write_way_out(
    preparer: Preparer, name: str, problems: Sequence[Problem], *, yes: bool, asking: bool
) -> Change | None:
    """Write a fix for the problems into a profile, show it, and return its change; None if the user declines.

    Raise ProfileError (`fix-not-taken`) if no fix may be chosen, or the file cannot be changed.
    """
    ways = [*{way.text: way for problem in problems for way in problem.ways}.values()]
    written = preparer.read(name)
    path, style = Path(written.file), console.Style(sys.stderr)
    if name == STDIN or path.parent == loader.profiles() or not os.access(path, os.W_OK):
        raise _not_taken(name, "you may not write to this profile", "save the profile as your own file: `NAME.yaml`")
    # An automatic fix must not change the GPUs, allow untested combinations, or override a parent profile.
    harmless = [way for way in ways if not (written.extended or way.question or {*way.change} & {*DEVICES})]
    if not (yes or asking):
        raise _not_taken(
            name, "there is no terminal to ask which change to make", "`--fix --yes` makes the first change"
        )
    if yes and not harmless:
        why = "the profile extends another, or every possible change alters the GPUs or allows untested combinations"
        raise _not_taken(name, why, "choose on a terminal: `tfdock check --fix PROFILE`")
    way = harmless[0] if yes or ways == harmless[:1] else _asked_way(ways, default=int(ways[0] in harmless))
    if way is None:
        return None
    text = _changed_text(written, way.change)
    # The user may have taken long to answer.
    if preparer.read(name).text != written.text:
        raise _not_taken(name, "the file has changed since it was read", "run it again")
    write_bytes(path, text.encode(), keep=True, follow=True)
    before, after = written.text.splitlines(), text.splitlines()
    for line in difflib.unified_diff(before, after, written.file, written.file, n=1, lineterm=""):
        console.say({"+": style.good, "-": style.bad}.get(line[0], str)(console.clean(line.expandtabs())))
    return way.change


def _asked_way(ways: Sequence[Suggestion], default: int) -> Suggestion | None:
    for number, way in enumerate(ways, 1):
        console.tell(
            f"  {number}  {f'{way.question}? ' * bool(way.question)}{console.clean(way.text)}", indent=" " * 5
        )
    console.tell("  0  change nothing")
    answer = ""
    while answer not in map(str, range(len(ways) + 1)):
        console.release()
        answer = typer.prompt(f"Which way, 0 to {len(ways)}", default=str(default), err=True).strip()
    return ways[int(answer) - 1] if int(answer) else None


def _changed_text(written: WrittenProfile, change: Change) -> str:
    """Return the text with this change and no other effect. Raises ProfileError."""
    text = edited(written.text, *as_yaml(change, written.profile))
    with suppress(ProfileError):
        if profiles.read(text, written.file, written.extended)[0] == changed(written.profile, change):
            return text
    raise _not_taken(
        written.file,
        "tfdock cannot change a file with this layout",
        "make the change by hand, or write each field on its own line",
    )


def _not_taken(file: str, why: str, fix: str) -> ProfileError:
    return ProfileError.of("fix-not-taken", f"nothing was written: {why}", fix, file=file)


# --- ask servers, and show -----------------------------------------------------------------------------------------


def _ask_online(results: Sequence[_CheckResult], preparer: Preparer, settings: Settings) -> list[_CheckResult]:
    """Return the results with what the builds download, of the profiles that can be built."""
    from tfdock.builder.locking import read_lock
    from tfdock.offline import availability

    wanted = []
    for result in results:
        if result.resolution:
            path = None if result.file == STDIN else preparer.lock_path(result.file)
            wanted.append((result.resolution, read_lock(path).lock if path and path.exists() else None))
    with stoppable("nothing was changed") as stop:
        answers = iter(availability.ask(wanted, preparer.knowledge, settings, stop.check))
    asked = []
    for result in results:
        if result.resolution:
            rows = next(answers)
            problems = [row.problem for row in rows if row.exit_code]
            code = combined_exit_code(int(row.exit_code) for row in rows)
            asked.append(replace(result, online=rows, problems=problems, exit_code=code))
        else:
            asked.append(result)
    return asked


def _show(result: _CheckResult) -> None:
    """Print the build id on standard output, and problems on standard error."""
    resolution = result.resolution
    if resolution is None:
        console.show_problems(result.problems[result.told :])
        return
    style, unverified = console.Style(sys.stdout), resolution.unverified
    # With `--online`, a valid profile may still need downloads that no longer exist.
    told = [style.bad("not ok") if result.exit_code else style.good("ok")]
    told += [f"about {console.rough_duration(result.expected.total)}"] if result.expected else []
    told += ["image unverified"] if unverified else []
    console.result(f"{result.file}: {', '.join(told)}: {resolution.build_id}")
    console.result(f"  {resolution.grade.value}: {resolution.grade.reason}")
    console.result(*(f"  unverified: {doubt}" for doubt in unverified))
    for note in result.notes:
        console.tell(f"note: {note}")
    for row in result.online:
        # The error of a row with a problem has the finding already.
        console.result(
            f"  {row.status:<11}  {row.kind:<7}  {row.name}  {'' if row.exit_code else row.found}".rstrip()
        )
    console.show_problems(result.problems)
    warnings = (*map(_as_warning, resolution.untested), *resolution.warnings)
    console.show_problems(_with_given_name(problem, result) for problem in warnings)
    console.show_problems(_lacking(result.machine))


def _as_warning(problem: Problem) -> Problem:
    """Return an untested combination that the profile or `--allow-untested` accepts, as a warning."""
    message = f"untested, as is allowed: {problem.message}"
    return replace(problem, severity="warning", message=message, fixes=(), ways=())


def _with_given_name(problem: Problem, result: _CheckResult) -> Problem:
    """Return a problem that names a shipped profile as the user named it, not by its path."""
    asked = result.file if problem.file == result.path else problem.file
    return replace(problem, file=asked)
