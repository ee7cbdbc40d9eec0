"""`check`, `plan`, `render`, `schema`: what needs neither an engine nor a network."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfdock.cli import ci_log, console
from tfdock.cli.app import (
    AllowEndpoint,
    AllowPath,
    AllowUntested,
    AsJson,
    Knowledge,
    OneProfile,
    Profiles,
    app,
    command,
    preparer_for,
    print_json,
    settings_for,
)
from tfdock.errors import ExitCode, Problem, TfdockError, as_document, combined_exit_code

if TYPE_CHECKING:
    from tfdock.plan.build_plan import BuildPlan
    from tfdock.plan.estimate import PhaseEstimate
    from tfdock.plan.preflight import PreflightCheck
    from tfdock.plan.prepare import PreparedBuild, Preparer
    from tfdock.types import WritableFolder


@app.command(epilog="Example: `tfdock check rtx3080 rocm`. Exit status: 0 fine, 2 malformed, 3 cannot work.")
@command("tfdock.check/1")
def check(
    profiles: Profiles,
    allow_untested: AllowUntested = False,
    knowledge: Knowledge = None,
    allow_path: AllowPath = None,
    allow_endpoint: AllowEndpoint = None,
    as_json: AsJson = False,
) -> None:
    """Say whether profiles can be built, and what this machine has to say to it. Needs no engine and no network."""
    from tfdock.builder.doctor import build_places

    settings = settings_for(knowledge=knowledge, allow_paths=allow_path, allow_endpoints=allow_endpoint)
    preparer, places = preparer_for(settings, allow_untested=allow_untested), build_places(settings)
    results, codes = [], []
    for name in profiles:
        result = _checked(preparer, places, name)
        codes.append(result.exit_code)
        results.append(result)
        if not as_json:
            _show(result)
    if as_json:
        print_json("tfdock.check/1", not any(codes), {"profiles": [result.document for result in results]})
    raise typer.Exit(combined_exit_code(codes))


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """What became of one profile: `file` as it was asked for, `path` where it lies.

    `machine` are this machine's checks, none where the profile is refused: by itself, or because it is for the GPUs
    of this machine, which cannot run it.
    """

    file: str
    path: str | None = None
    exit_code: int = 0
    build_id: str | None = None
    problems: Sequence[Problem] = ()
    untested: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    machine: Sequence[PreflightCheck] = ()

    @property
    def amiss(self) -> list[Problem]:
        """What this machine lacks: it concerns the build here, not the profile."""
        lacking = [check.problem for check in self.machine if check.status in ("warning", "failed")]
        return [replace(one, message=f"this machine: {one.message}", severity="warning") for one in lacking]

    @property
    def document(self) -> dict[str, object]:
        """As `--json` prints it."""
        skipped = [check for check in self.machine if check.status == "skipped"]
        return {
            "file": self.file,
            "ok": not self.exit_code,
            "build_id": self.build_id,
            "problems": [as_document(problem) for problem in self.problems],
            "untested": [as_document(problem) for problem in self.untested],
            "warnings": [as_document(problem) for problem in (*self.warnings, *self.amiss)],
            "skipped": [{"rule": check.name, "reason": check.found} for check in skipped],
        }


def _checked(preparer: Preparer, places: Sequence[WritableFolder], name: str) -> _Checked:
    from tfdock.host.hardware import local_host
    from tfdock.plan.preflight import machine_findings
    from tfdock.plan.prepare import placed

    try:
        wanted = preparer.resolve(name)
    except TfdockError as error:
        return _Checked(file=name, exit_code=int(error.exit_code), problems=error.problems)
    # Drivers' tools can take seconds: nobody waits for them who builds for the CPU.
    host = local_host() if wanted.resolution.accelerator.toolkit else None
    machine = machine_findings(wanted, preparer.knowledge, host=host, machine=preparer.machine, places=places)
    # `gpus: local` that this machine's driver cannot serve contradicts itself; memory and disk may be another's.
    against = [check for check in machine if check.status == "failed" and check.exit_code is ExitCode.INCOMPATIBLE]
    if against:
        problems = [placed(replace(check.problem, field="gpus"), wanted.document, name) for check in against]
        return _Checked(file=name, exit_code=int(ExitCode.INCOMPATIBLE), problems=problems)
    return _Checked(
        file=name,
        path=wanted.file,
        build_id=wanted.resolution.build_id,
        untested=wanted.resolution.untested,
        warnings=wanted.resolution.warnings,
        machine=machine,
    )


def _show(result: _Checked) -> None:
    """The answer on standard output; what is amiss, and why, on standard error."""
    if result.exit_code:
        console.show_problems(result.problems)
        return
    console.result(f"{result.file}: {result.build_id}")
    console.show_problems(
        _as_asked(problem, result) for problem in (*map(_allowed, result.untested), *result.warnings)
    )
    console.show_problems(result.amiss)


def _allowed(problem: Problem) -> Problem:
    """What nobody is known to have tested and the profile or `--allow-untested` takes all the same: a warning."""
    message = f"untested, as is allowed: {problem.message}"
    return replace(problem, severity="warning", message=message, fixes=(), ways=())


def _as_asked(problem: Problem, result: _Checked) -> Problem:
    """With the name that was given for a shipped profile in place of where that lies."""
    asked = result.file if problem.file == result.path else problem.file
    return replace(problem, file=asked)


@app.command(epilog="Example: `tfdock plan rtx3080 --why` shows who chose each value, and why.")
@command("tfdock.plan/1")
def plan(
    profile: OneProfile,
    why: Annotated[bool, typer.Option("--why", help="Show the source of and the reason for each value.")] = False,
    allow_untested: AllowUntested = False,
    knowledge: Knowledge = None,
    allow_path: AllowPath = None,
    allow_endpoint: AllowEndpoint = None,
    as_json: AsJson = False,
) -> None:
    """Print exactly what `build` would run. Needs no engine and no network."""
    from tfdock.plan.build_plan import as_json as plan_json
    from tfdock.plan.estimate import expectation
    from tfdock.wheelhouse.store import Wheelhouse

    settings = settings_for(knowledge=knowledge, allow_paths=allow_path, allow_endpoints=allow_endpoint)
    preparer = preparer_for(settings, allow_untested=allow_untested)
    prepared = preparer.prepare(profile)
    expected = expectation(prepared.plan, Wheelhouse(settings.wheelhouse).records(), preparer.knowledge)
    if as_json:
        told = {"seconds": round(expected.total), "source": expected.source} if expected else None
        print_json("tfdock.plan/1", True, plan_json(prepared.plan) | {"estimate": told})
        return
    columns = console.width(sys.stdout)
    for line in (*_plan_lines(prepared, why=why), *_sized_lines(prepared.plan, expected)):
        for part in console.wrapped(line, columns):
            console.say(ci_log.here().harmless(part), stream=sys.stdout)


def _plan_lines(prepared: PreparedBuild, *, why: bool) -> Iterator[str]:
    """All but the commands fits the screen; those are there to be pasted."""
    style = console.Style(sys.stdout)
    plan, resolution = prepared.plan, prepared.plan.resolution
    yield f"{style.strong(plan.build_id)}  {style.faint(plan.fingerprint[:12])}"
    yield ""
    rows = [
        (choice.field, choice.value, style.faint(f"{choice.reason} ({choice.source})"))
        if why
        else (choice.field, choice.value)
        for choice in resolution.choices
    ]
    said = "; ".join(plan.trust.reasons) or "an unchanged release on a known base image"
    rows.append(("trust domain", plan.trust.name, style.faint(said)) if why else ("trust domain", plan.trust.name))
    yield from console.table(rows)
    yield ""
    yield style.strong("environment of ./configure and Bazel")
    yield from console.table(sorted(plan.environment.items()))
    for phase in plan.phases:
        yield ""
        network = "with network" if phase.network else "no network"
        yield style.strong(f"{phase.name} ({network})")
        yield from (console.TableRow(f"  {line}") for line in _command_lines(phase.command))
    for problem in resolution.untested:
        yield ""
        yield f"{style.warn('untested')}  {problem.message}"


def _sized_lines(plan: BuildPlan, expected: PhaseEstimate | None) -> Iterator[str]:
    """What a build takes of the machine, and how long; and what that was told from, because no engine is asked."""
    style = console.Style(sys.stdout)
    limits, machine, gib = plan.resources, plan.machine, 1 << 30
    taken = (
        f"{limits.jobs} job{'s' if limits.jobs != 1 else ''}, {limits.cpus} cores, {limits.memory / gib:.1f} GiB of "
        f"memory, {limits.heap / gib:.1f} of them for Bazel; sized for {machine.cpus} cores and "
        f"{machine.memory / gib:.1f} GiB here: no engine was asked, and on one that has less a build takes less"
    )
    rows = [(style.strong("limits"), taken)]
    if expected:
        rows.append((style.strong("estimate"), f"about {console.duration(expected.total)}, by {expected.source}"))
    yield ""
    yield from console.table(rows, indent="", columns=console.width(sys.stdout))


def _command_lines(words: tuple[str, ...]) -> Iterator[str]:
    """A command with one option a line, ready to read and to paste."""
    import shlex

    line: list[str] = []
    for word in words:
        if word.startswith("-") and line:
            yield f"{' '.join(line)} \\"
            line = ["   "]
        line.append(shlex.quote(word))
    yield " ".join(line)


@app.command(epilog="Example: `tfdock render rtx3080 -o context && docker build context`.")
@command("tfdock.render/1")
def render(
    profile: OneProfile,
    output: Annotated[Path, typer.Option("-o", "--output", help="A new or earlier folder of ours.", metavar="DIR")],
    allow_untested: AllowUntested = False,
    knowledge: Knowledge = None,
    allow_path: AllowPath = None,
    allow_endpoint: AllowEndpoint = None,
    as_json: AsJson = False,
) -> None:
    """Write the build context: the Dockerfile and the files it copies."""
    from tfdock.plan.context_folder import write

    prepared = preparer_for(
        settings_for(knowledge=knowledge, allow_paths=allow_path, allow_endpoints=allow_endpoint),
        allow_untested=allow_untested,
    ).prepare(profile)
    files = write(prepared.plan.context, prepared.tree, output)
    if as_json:
        print_json("tfdock.render/1", True, {"build_id": prepared.plan.build_id, "files": files})
        return
    console.say(str(output / "Dockerfile"), stream=sys.stdout)


@app.command(
    epilog="Examples: `tfdock schema > tfdock.schema.json`, then name it in a profile's first line; `tfdock schema "
    "record`, the schema of what a build keeps."
)
def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Of which document, such as `check`, `build` or `record`; of profiles by default.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    of_matrix: Annotated[bool, typer.Option("--matrix", help="That of a matrix of profiles.")] = False,
) -> None:
    """Print the JSON Schema of profiles, or of a document."""
    if name and of_matrix:
        raise typer.BadParameter("`--matrix` is the name `matrix`: leave one of both out")
    if name in (None, "profile", "matrix"):
        from tfdock.matrix import matrix_file
        from tfdock.profile import profile

        found = matrix_file.json_schema() if of_matrix or name == "matrix" else profile.json_schema()
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    names = {file.stem: file for file in (Path(__file__).parents[2] / "schemas").glob("*.json")}
    if name not in names:
        near = difflib.get_close_matches(name or "", names, n=1)
        hint = f"Did you mean `{near[0]}`? " if near else ""
        raise typer.BadParameter(
            f"{hint}There is no document `{console.clean(name or '')}`. Documents: "
            f"{', '.join(sorted(['profile', 'matrix', *names]))}"
        )
    sys.stdout.write(names[name].read_text("utf-8"))
