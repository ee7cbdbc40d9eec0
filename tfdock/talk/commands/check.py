"""`check`, `plan`, `render`, `schema`: what needs neither an engine nor a network."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfdock.errors import TfdockError, combined_exit_code
from tfdock.talk import console
from tfdock.talk.app import (
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

if TYPE_CHECKING:
    from tfdock.do.prepare import Prepared


@app.command(epilog="Example: `tfdock check rtx3080 rocm`. Exit status: 0 fine, 2 malformed, 3 cannot work.")
@command("tfdock.check/1")
def check(profiles: Profiles, knowledge: Knowledge = None, as_json: AsJson = False) -> None:
    """Say whether profiles can be built. Needs no engine and no network."""
    preparer = preparer_for(settings_for(knowledge=knowledge))
    results, codes = [], []
    for name in profiles:
        try:
            prepared = preparer.prepare(name)
        except TfdockError as error:
            codes.append(int(error.exit_code))
            console.show_problems(error.problems)
            problems = [asdict(problem) for problem in error.problems]
            results.append({"file": name, "ok": False, "build_id": None, "problems": problems})
            continue
        plan = prepared.plan
        for problem in plan.resolution.untested:
            console.say(f"{problem.where}: untested, as the profile allows: {problem.message}")
        results.append({"file": name, "ok": True, "build_id": plan.build_id, "problems": []})
        if not as_json:
            console.say(f"{name}: {plan.build_id}", stream=sys.stdout)
    if as_json:
        print_json("tfdock.check/1", not codes, {"profiles": results})
    raise typer.Exit(combined_exit_code(codes))


@app.command(epilog="Example: `tfdock plan rtx3080 --why` shows who chose each value, and why.")
@command("tfdock.plan/1")
def plan(
    profile: OneProfile,
    why: Annotated[bool, typer.Option("--why", help="Show the source of and the reason for each value.")] = False,
    knowledge: Knowledge = None,
    as_json: AsJson = False,
) -> None:
    """Print exactly what `build` would run. Needs no engine and no network."""
    from tfdock.decide.plan import as_json as plan_json

    prepared = preparer_for(settings_for(knowledge=knowledge)).prepare(profile)
    if as_json:
        print_json("tfdock.plan/1", True, plan_json(prepared.plan))
        return
    for line in _plan_lines(prepared, why=why):
        console.say(line, stream=sys.stdout)


def _plan_lines(prepared: Prepared, *, why: bool) -> Iterator[str]:
    style = console.Style(sys.stdout)
    plan, resolution = prepared.plan, prepared.plan.resolution
    yield f"{style.strong(plan.build_id)}  {style.faint(plan.fingerprint[:12])}"
    yield ""
    rows = [
        (choice.field, choice.value, f"{choice.reason} ({choice.source})") if why else (choice.field, choice.value)
        for choice in resolution.choices
    ]
    yield from console.table(rows)
    resources = plan.resources
    yield ""
    yield style.strong("environment of ./configure and Bazel")
    yield from console.table(sorted(plan.environment.items()))
    for phase in plan.phases:
        yield ""
        network = "with network" if phase.network else "no network"
        yield style.strong(f"{phase.name} ({network})")
        yield from (f"  {line}" for line in _command_lines(phase.command))
    yield ""
    memory = resources.memory / (1 << 30)
    yield f"{style.strong('limits')}  {resources.jobs} jobs, {resources.cpus} cores, {memory:.1f} GiB memory"
    for problem in resolution.untested:
        yield f"{style.warn('untested')}  {problem.message}"


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
    knowledge: Knowledge = None,
    as_json: AsJson = False,
) -> None:
    """Write the build context: the Dockerfile and the files it copies."""
    from tfdock.do.context_folder import write

    prepared = preparer_for(settings_for(knowledge=knowledge)).prepare(profile)
    files = write(prepared.plan.context, prepared.tree, output)
    if as_json:
        print_json("tfdock.render/1", True, {"build_id": prepared.plan.build_id, "files": files})
        return
    console.say(str(output / "Dockerfile"), stream=sys.stdout)


@app.command(epilog="Example: `tfdock schema > tfdock.schema.json`, then name it in a profile's first line.")
def schema() -> None:
    """Print the JSON Schema of profiles, for editors."""
    from tfdock.read.profile import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
