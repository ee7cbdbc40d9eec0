"""The `plan`, `render` and `schema` commands. They need neither an engine nor a network.

`check` is in another module because it must start quickly: a plan reads build records, which loads the lock package.
"""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tfdock.cli import completion, console
from tfdock.cli.app import (
    AllowUntested,
    AsJson,
    ProfileWords,
    SomeProfile,
    app,
    command,
    preparer_for,
    print_json,
    print_result,
    profile_names,
)
from tfdock.documents.schemas import NAMES, schema_of
from tfdock.host.files import gib
from tfdock.host.settings import Settings
from tfdock.knowledge import loader
from tfdock.matrix import matrix_file
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.build_plan import as_json as plan_json
from tfdock.plan.context_folder import write
from tfdock.plan.estimate import PhaseEstimate, expectation
from tfdock.plan.notes import notes_of
from tfdock.plan.prepare import PreparedBuild
from tfdock.plan.resources import BuildResources
from tfdock.plan.wish import Wish
from tfdock.profile import profile
from tfdock.types import Machine
from tfdock.wheelhouse.store import Wheelhouse


@app.command(epilog="Example: `tfdock plan rtx3080 --why` shows the source and the reason of each value.")
@command("tfdock.plan/1", "knowledge", "allow_paths", "allow_endpoints")
def plan(
    settings: Settings,
    wish: Wish,
    profile: ProfileWords = None,
    why: Annotated[
        bool, typer.Option("--why", help="Show every value, its source and its reason, and every command.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Show every value, and every command with all its flags.")
    ] = False,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """No engine and no network is needed."""
    preparer = preparer_for(settings, allow_untested=allow_untested, wish=wish)
    prepared = preparer.prepare(profile_names([" ".join(profile)] if profile else [], wish)[0])
    resolution = prepared.plan.resolution
    notes = notes_of(preparer, prepared.written, resolution)
    records = Wheelhouse(settings.wheelhouse).records()
    expected = expectation(resolution, prepared.plan.resources, preparer.machine, records, preparer.knowledge)
    if as_json:
        more = {"estimate": expected and expected.document, "unverified": resolution.unverified, "notes": notes}
        print_json("tfdock.plan/1", True, plan_json(prepared.plan) | more)
        return
    for note in notes:
        console.tell(f"note: {note}")
    long = why or commands
    lines = _plan_lines(prepared, expected, why=why) if long else _short_lines(prepared, expected)
    console.result(*lines, strange=True)


def _short_lines(prepared: PreparedBuild, expected: PhaseEstimate | None) -> Iterator[str]:
    """Yield the facts to know before a build: its result, its inputs, and its cost."""
    style = console.Style(sys.stdout)
    plan, resolution = prepared.plan, prepared.plan.resolution
    titles = resolution.accelerator.titles
    toolkit = [f"{titles.get(name, name)} {version}" for name, version in resolution.components.items()]
    version = f"{resolution.version}{f'+{resolution.local_version}' if resolution.local_version else ''}"
    code = [*resolution.targets, *([f"by {resolution.gpu_compiler}"] if resolution.gpu_compiler else [])]
    doubts = [*resolution.unverified, *(problem.message for problem in resolution.untested)]
    own = plan.trust.name != "release"
    rows = [
        ("wheel", f"{resolution.wheel_name} {version} for Python {resolution.python}"),
        ("GPU code", ", ".join([" ".join(code), *toolkit]) if code else "none"),
        ("built with", f"{resolution.host_compiler}, Bazel {resolution.bazel}"),
        ("source", next(choice.value for choice in resolution.choices if choice.field == "source")),
        ("image", str(resolution.base)),
        ("tried in", str(resolution.runtime or "no image")),
        *_cost_rows(plan, expected),
        *([("trust domain", f"{plan.trust.name}: shares its cache with no other source")] if own else []),
        ("evidence", f"{resolution.grade.value}: {resolution.grade.reason}"),
        *([("unverified", "; ".join(doubts))] if doubts else []),
    ]
    yield f"{style.strong(plan.build_id)}  {style.faint(plan.fingerprint[:12])}"
    yield from console.table(rows)
    yield style.faint("`--commands` shows every command, `--why` shows why each value was chosen")


def _plan_lines(prepared: PreparedBuild, expected: PhaseEstimate | None, *, why: bool) -> Iterator[str]:
    """Yield the values, environment, commands and cost of a plan. Commands are not wrapped: users paste them."""
    style = console.Style(sys.stdout)
    plan, resolution = prepared.plan, prepared.plan.resolution
    yield f"{style.strong(plan.build_id)}  {style.faint(plan.fingerprint[:12])}"
    yield ""
    reasons = "; ".join(plan.trust.reasons) or "an unchanged release on a known base image"
    rows = [(choice.field, choice.value, f"{choice.reason} ({choice.source})") for choice in resolution.choices]
    rows.append(("trust domain", plan.trust.name, reasons))
    yield from console.table([(*row, style.faint(reason)) if why else row for *row, reason in rows])
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
    yield ""
    yield from console.table(_cost_rows(plan, expected))


def _cost_rows(plan: BuildPlan, expected: PhaseEstimate | None) -> list[tuple[str, str]]:
    """Return the memory, CPU and time that a build needs. No engine is contacted."""
    limits, machine = plan.resources, plan.machine
    rows = [
        ("jobs", f"{limits.jobs} at once, on {_cores(limits, machine)}; fewer on a smaller engine"),
        ("memory", _memory(limits, machine)),
        ("disk", gib(limits.disk)),
    ]
    if expected:
        rows.append(("time", f"about {console.rough_duration(expected.total)}, by {expected.source}"))
    return rows


def _cores(limits: BuildResources, machine: Machine) -> str:
    if limits.cpus <= machine.cpus:
        return f"{limits.cpus} of {machine.cpus} cores"
    return f"{limits.cpus} cores; this machine has only {machine.cpus}, so a build here takes longer"


def _memory(limits: BuildResources, machine: Machine) -> str:
    """Return the container's memory; a build never gets more than its machine has."""
    bazel = f"{gib(limits.heap)} of it for Bazel"
    if limits.memory <= machine.memory:
        return f"{gib(limits.memory)} of {gib(machine.memory)}, {bazel}"
    return f"{gib(limits.memory)}, {bazel}; this machine has {gib(machine.memory)}, and a build here gets no more"


def _command_lines(words: tuple[str, ...]) -> Iterator[str]:
    """Yield a command with one option on a line, ready to read and to paste."""
    line: list[str] = []
    for word in words:
        if word.startswith("-") and line:
            yield f"{' '.join(line)} \\"
            line = ["   "]
        line.append(shlex.quote(word))
    yield " ".join(line)


@app.command(epilog="Example: `tfdock render rtx3080 -o context && docker build context`.")
@command("tfdock.render/1", "knowledge", "allow_paths", "allow_endpoints")
def render(
    settings: Settings,
    wish: Wish,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="The folder to write: a new one, or one that an earlier `tfdock render` wrote.",
            metavar="DIR",
        ),
    ],
    profile: SomeProfile = None,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    preparer = preparer_for(settings, allow_untested=allow_untested, wish=wish)
    prepared = preparer.prepare(profile_names([profile] if profile else [], wish)[0])
    files = write(prepared.plan.context, prepared.tree, output)
    document = {"build_id": prepared.plan.build_id, "files": files}
    print_result("tfdock.render/1", document, [str(output / "Dockerfile")], as_json=as_json)


@app.command(
    epilog="Examples: `tfdock schema > tfdock.schema.json`, then name it in a profile's first line; `tfdock schema "
    "record` prints the schema of a build's record."
)
def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The document, such as `check`, `build` or `record`. The default is the schema of profiles.",
            metavar="NAME",
        ),
    ] = None,
) -> None:
    if name is None or name in ("profile", "matrix"):
        names = completion.of_fields(loader.knowledge())
        document = matrix_file.json_schema(names) if name == "matrix" else profile.json_schema(names)
        # Printed without an envelope: editors read the plain schema.
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    if name not in NAMES:
        known = sorted(["profile", "matrix", *NAMES])
        hint = "".join(f"Did you mean `{near}`? " for near in difflib.get_close_matches(name, known, n=1))
        raise typer.BadParameter(f"{hint}There is no document `{console.clean(name)}`. Documents: {', '.join(known)}")
    sys.stdout.write(json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n")
