"""`doctor`: what this machine lacks."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tfdock.errors import TfdockError, combined_exit_code
from tfdock.talk import console
from tfdock.talk.app import (
    AsJson,
    CacheDir,
    Knowledge,
    Wheelhouse,
    app,
    command,
    knowledge_for,
    local_engine,
    preparer_for,
    print_json,
    settings_for,
)

if TYPE_CHECKING:
    from tfdock.decide.plan import BuildPlan
    from tfdock.decide.preflight import Check
    from tfdock.do.settings import Settings

_INDENT = " " * 9
"""As wide as a status and what follows it."""


@app.command(
    epilog="Example: `tfdock doctor rtx3080`. Exit status: 0 nothing lacks, 1 a folder that cannot be written to, "
    "2 or 3 the profile is refused, 6 no engine, 8 too little memory or disk."
)
@command("tfdock.doctor/1")
def doctor(
    profiles: Annotated[
        list[str] | None,
        typer.Argument(
            help="Profiles to check this machine for: driver, memory and disk.",
            metavar="[PROFILE…]",
            show_default=False,
        ),
    ] = None,
    wheelhouse: Wheelhouse = None,
    cache_dir: CacheDir = None,
    knowledge: Knowledge = None,
    as_json: AsJson = False,
) -> None:
    """Say what this machine lacks for building, and how to get it."""
    from tfdock.do.doctor import examine

    settings = settings_for(wheelhouse=wheelhouse, cache_dir=cache_dir, knowledge=knowledge)
    plans, checks = _planned(settings, profiles or [])
    # What is refused for itself can be built on no machine: there is nothing to compare with this one.
    if plans or not profiles:
        checks = [*examine(settings, local_engine(), plans, knowledge_for(settings)), *checks]
    failed = [check for check in checks if check.status == "failed"]
    if as_json:
        print_json("tfdock.doctor/1", not failed, {"checks": [asdict(check) for check in checks]})
    else:
        _show(checks, profiles or [])
    raise typer.Exit(combined_exit_code(check.exit_code for check in failed))


def _planned(settings: Settings, names: list[str]) -> tuple[list[tuple[str, BuildPlan]], list[Check]]:
    """The profiles' plans, and a failed check for each profile that has none."""
    from tfdock.decide.preflight import FAILED, Check

    plans, refused = [], []
    preparer = preparer_for(settings) if names else None
    for name in names:
        assert preparer is not None
        try:
            prepared = preparer.prepare(name)
        except TfdockError as error:
            console.show_problems(error.problems)
            refused += [
                Check(
                    name="profile",
                    code=problem.code,
                    status=FAILED,
                    found=problem.message,
                    fix=problem.fix,
                    exit_code=error.exit_code,
                    profile=name,
                )
                for problem in error.problems
            ]
        else:
            plans.append((name, prepared.plan))
    return plans, refused


def _show(checks: list[Check], profiles: list[str]) -> None:
    """The answer, then a check a line with its fix below; what several profiles share is said once."""
    style = console.Style(sys.stdout)
    console.tell(_answer(checks, profiles, style), stream=sys.stdout)
    several = len(profiles) > 1
    for check in dict.fromkeys(checks if several else (replace(check, profile=None) for check in checks)):
        paint = {"ok": style.good, "warning": style.warn, "failed": style.bad}.get(check.status, style.faint)
        of = f"{check.profile}: " if check.profile else ""
        lacks = check.status in ("warning", "failed")
        needed = f"; needed: {check.needed}" if check.needed and check.status != "ok" else ""
        text = console.clean(f"{of}{check.name}: {check.found}{needed}")
        console.tell(f"{paint(f'{check.status:<7}')}  {text}", stream=sys.stdout, indent=_INDENT)
        if lacks and check.fix:
            fix = f"{_INDENT}{style.good('fix:')} {console.clean(check.fix)}"
            console.tell(fix, stream=sys.stdout, indent="     ")


def _answer(checks: list[Check], profiles: list[str], style: console.Style) -> str:
    failed = [check for check in checks if check.status == "failed"]
    warnings = sum(check.status == "warning" for check in checks)
    # What no profile is named for stands in the way of all of them.
    concerned = {check.profile for check in failed}
    what = ", ".join(name for name in profiles if None in concerned or not failed or name in concerned)
    if failed:
        return f"{style.bad('no')}: {what or 'TensorFlow'} cannot be built on this machine as it is"
    amiss = f", but see {'the warning' if warnings == 1 else f'{warnings} warnings'}" if warnings else ""
    return f"{style.good('yes')}: {what or 'TensorFlow'} can be built on this machine{amiss}"
