"""The `doctor` command: check this machine for building, or an environment for running TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, NoReturn

import typer

from tfdock.builder.doctor import examine
from tfdock.cli import console
from tfdock.cli.app import AllowUntested, AsJson, app, command, knowledge_for, local_engine, preparer_for, print_json
from tfdock.errors import Problem, TfdockError, combined_exit_code
from tfdock.host.settings import Settings
from tfdock.installed.environment import Environment, read_environment
from tfdock.installed.tryout import try_tensorflow
from tfdock.installed.verdicts import judge_environment
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.preflight import PreflightCheck, failed_by

_INDENT = " " * 9  #: As wide as the column of the statuses and the spaces after it.
#: The name of the check that fails if a profile is refused on every machine.
_REFUSED = "profile"


@app.command(
    epilog="Examples: `tfdock doctor rtx3080`, `tfdock doctor --python .venv/bin/python`. Exit status: 0 nothing is "
    "missing, 1 a folder cannot be written to, 2 or 3 the profile is refused, 4 TensorFlow does not start or sees "
    "no GPU in that environment, 6 no engine, 8 too little memory or disk."
)
@command("tfdock.doctor/1", "wheelhouse", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def doctor(
    settings: Settings,
    profiles: Annotated[
        list[str] | None,
        typer.Argument(help="Check driver, memory and disk for these profiles.", metavar="[PROFILE…]"),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", help="Print why the TensorFlow of this Python does not start, or sees no GPU.", metavar="PATH"
        ),
    ] = None,
    attempt: Annotated[
        bool,
        typer.Option(
            "--try", help="With --python, also import TensorFlow, list its GPUs, and run two small operations."
        ),
    ] = False,
    allow_untested: AllowUntested = False,
    fix: Annotated[bool, typer.Option("--fix", help="Remove the leftovers of killed runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print how to install missing parts.

    With `--python`, print why the TensorFlow of that Python does not start, starts slowly or sees no GPU.
    """
    if python is not None:
        if profiles or fix or allow_untested:
            raise typer.BadParameter("`--python` checks an environment: remove the profiles and `--fix`")
        _examine_environment(settings, python, attempt=attempt, as_json=as_json)
    if attempt:
        raise typer.BadParameter("`--try` needs `--python`: `tfdock doctor --python .venv --try`")
    plans, refused, problems = _plan_all(settings, profiles or [], allow_untested=allow_untested)
    # An invalid profile cannot be built on any machine, so this machine is not compared with it.
    compare = plans or not profiles or fix
    checks = examine(settings, local_engine(), plans, knowledge_for(settings), fix=fix) if compare else []
    checks = [*checks, *refused]
    _end(checks, _answer(checks, profiles or [], console.Style(sys.stdout)), problems, as_json=as_json)


def _examine_environment(settings: Settings, python: str, *, attempt: bool, as_json: bool) -> NoReturn:
    """Print the verdict on an environment, and end with its exit status."""
    knowledge = knowledge_for(settings)
    environment = read_environment(python, knowledge)
    its = environment.interpreter
    tried = (
        try_tensorflow(its, knowledge, expects_gpu=environment.expects_gpu)
        if attempt and environment.tensorflow
        else ()
    )
    checks = judge_environment(environment, knowledge, tried)
    _end(checks, _environment_answer(environment, checks, console.Style(sys.stdout)), as_json=as_json)


def _environment_answer(environment: Environment, checks: list[PreflightCheck], style: console.Style) -> str:
    program = environment.interpreter.program
    if cause := next((check for check in checks if check.status == "failed"), None):
        return f"{style.bad('no')}: {console.clean(cause.found)}"
    named = f"TensorFlow {environment.version}" if environment.version else "the TensorFlow"
    if devices := next((check for check in checks if check.name == "devices"), None):
        return f"{style.good('yes')}: {console.clean(f'{named} of {program} works, with {devices.found}')}"
    sees = any(check.name == "libraries" and check.status == "ok" for check in checks)
    doubt = "may or may not see the GPU" if environment.driver.has_gpu and not sees else ""
    if not environment.wheels:
        doubt = "may work, but its files and packages cannot be checked without a RECORD"
    if doubt:
        return f"{style.warn('not known')}: {console.clean(f'{named} of {program} {doubt}')}"
    what = "should see the GPU" if sees else "should work, on the CPU"
    jit = next((check for check in checks if check.code == "gpu-jit"), None)
    if jit and sees:
        what += f", but {jit.found}"
    elif any(check.status == "warning" for check in checks):
        what += "; see the warnings"
    return f"{style.good('yes')}: {console.clean(f'judging by the installed files, {named} of {program} {what}')}"


def _plan_all(
    settings: Settings, names: list[str], *, allow_untested: bool
) -> tuple[list[tuple[str, BuildPlan]], list[PreflightCheck], list[Problem]]:
    """Return the plans, a failed check for each problem of the refused profiles, and those problems."""
    plans: list[tuple[str, BuildPlan]] = []
    refused: list[PreflightCheck] = []
    problems: list[Problem] = []
    if not names:
        return plans, refused, problems
    preparer = preparer_for(settings, allow_untested=allow_untested)
    for name in names:
        try:
            prepared = preparer.prepare(name)
        except TfdockError as error:
            problems += error.problems
            refused += [failed_by(problem, _REFUSED, error.exit_code, profile=name) for problem in error.problems]
        else:
            plans.append((name, prepared.plan))
    return plans, refused, problems


def _end(checks: list[PreflightCheck], answer: str, problems: Sequence[Problem] = (), *, as_json: bool) -> NoReturn:
    """Print the answer and the checks, then the problems of refused profiles; end with the exit status of all."""
    failed = [check for check in checks if check.status == "failed"]
    if as_json:
        print_json("tfdock.doctor/1", not failed, {"checks": checks})
    else:
        console.result(answer)
        _show(checks, console.Style(sys.stdout))
    console.show_problems(problems)
    raise typer.Exit(combined_exit_code(check.exit_code for check in failed))


def _show(checks: list[PreflightCheck], style: console.Style) -> None:
    """Print one line for each check with its fix below. Checks that profiles share are printed once.

    Checks of refused profiles are left out: their problems say more.
    """
    several = len({check.profile for check in checks} - {None}) > 1
    shown = [check for check in checks if check.name != _REFUSED]
    for check in dict.fromkeys(shown if several else (replace(check, profile=None) for check in shown)):
        paint = {"ok": style.good, "warning": style.warn, "failed": style.bad}.get(check.status, style.faint)
        of = f"{check.profile}: " if check.profile else ""
        needed = f"; needed: {check.needed}" if check.needed and check.status != "ok" else ""
        text = console.clean(f"{of}{check.name}: {check.found}{needed}")
        console.result(f"{paint(f'{check.status:<7}')}  {text}", indent=_INDENT)
        if check.fix:
            console.result(f"{_INDENT}{style.good('fix:')} {console.clean(check.fix)}", indent="     ")


def _answer(checks: list[PreflightCheck], profiles: list[str], style: console.Style) -> str:
    failed = [check for check in checks if check.status == "failed"]
    warnings = sum(check.status == "warning" for check in checks)
    # A check without a profile's name affects all profiles.
    concerned = {check.profile for check in failed}
    names = ", ".join(name for name in profiles if None in concerned or not failed or name in concerned)
    if failed and all(check.name == _REFUSED for check in failed):
        return f"{style.bad('no')}: {names} {'is' if len(concerned) == 1 else 'are'} refused"
    if failed:
        return f"{style.bad('no')}: {names or 'TensorFlow'} cannot be built on this machine as it is"
    hint = f", but see {'the warning' if warnings == 1 else f'{warnings} warnings'}" if warnings else ""
    return f"{style.good('yes')}: {names or 'TensorFlow'} can be built on this machine{hint}"
