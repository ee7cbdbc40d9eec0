"""The `verify` command: check a wheel against a profile, and try it in a clean container."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.cli import console
from tfdock.cli.app import (
    AllowUntested,
    AsJson,
    app,
    command,
    knowledge_for,
    local_engine,
    preparer_for,
    print_json,
    stoppable,
)
from tfdock.cli.build_progress import shown_progress
from tfdock.cli.commands.inspect import Wheel, libraries_json
from tfdock.cli.diagnosis_text import show
from tfdock.diagnose.diagnose_logs import diagnose_run_log
from tfdock.errors import EngineError, ExitCode, WheelRefused, combined_exit_code
from tfdock.gpu.compatibility import coverage
from tfdock.gpu.gpu_facts import facts_of_wheel
from tfdock.gpu.opened_libraries import unsearched_limit
from tfdock.host.settings import Settings
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.prepare import ResolvedProfile
from tfdock.verify.checks import Check, build_traces, compiler_options
from tfdock.verify.trial_container import TrialRequest, trial_environment
from tfdock.verify.trial_plan import answered_by_wheel
from tfdock.verify.verification import Verification, unsound_wheel, verify_wheel
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected
from tfdock.wheelhouse.store import Wheelhouse

_NO_RUN = "`--no-run` was given"


@app.command(
    epilog="Examples: `tfdock verify WHEEL`, `tfdock verify WHEEL rtx3080 --json`. Exit status: 0 no check failed, "
    "4 a check failed, 6 no engine for the trial (`--no-run` skips the trial), 7 no network to install the wheel."
)
@command("tfdock.verify/1", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def verify(
    settings: Settings,
    wheel: Wheel,
    profile: Annotated[
        str | None,
        typer.Argument(
            help="The profile that the wheel should fit: a file, or the name of a shipped profile.", metavar="PROFILE"
        ),
    ] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Check the file only. No engine is needed.")] = False,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Allow GPU code that the profile does not ask for.")
    ] = False,
    dependencies: Annotated[
        Path | None,
        typer.Option(
            "--dependencies",
            help="Take the required packages from this folder of wheels. Download nothing.",
            metavar="DIR",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    allow_untested: AllowUntested = False,
    as_json: AsJson = False,
) -> None:
    """The checks of name, RECORD, tags, GPU code and glibc read the file only.

    The trial runs the wheel's own code in a clean container without a network, and trusts the answers of this code. A
    dishonest wheel passes: a trial shows that a wheel works, not that it is harmless.
    """
    base = knowledge_for(settings)
    asked = preparer_for(settings, allow_untested=allow_untested).resolve(profile) if profile else None
    wanted = TrialRequest(
        resolution=asked.resolution if asked else None,
        strict=not relaxed and (asked is None or asked.resolution.verify.gpu_code == "strict"),
        run=_NO_RUN if no_run else "",
        dependencies=dependencies,
    )
    inspection = None
    try:
        with console.ReadProgress(sys.stderr, wheel.name) as reading:
            inspection = inspected(wheel, traces=build_traces(), progress=reading)
    except WheelRefused as error:
        verification = unsound_wheel(base, error)
    else:
        wanted = replace(wanted, options=_options(base, wheel, inspection.wheel.sha256))
        verification = _verify_wheel(settings, base, wheel, inspection, wanted)
    document = _document(base, wheel, profile, asked, inspection, verification)
    shown = None
    # Without a trial there is no log.
    if verification.failed and inspection and not wanted.run:
        context = preparer_for(settings, allow_untested=allow_untested).context(asked.written) if asked else None
        shown = diagnose_run_log(_log(settings, inspection), base, context)
    document["diagnosis"] = shown.findings_json if shown else []
    _show(document, verification, as_json=as_json)
    if inspection:
        show(shown, str(_log(settings, inspection)))
    codes = [] if verification.ok else [ExitCode.VERIFICATION]
    codes += [verification.impossible.exit_code] if verification.impossible else []
    raise typer.Exit(combined_exit_code(codes))


def _options(base: KnowledgeBase, wheel: Path, sha256: str) -> tuple[str, ...] | None:
    """Return the compiler's options, from the record beside the wheel; None without a record."""
    for record in Wheelhouse(wheel.absolute().parent).records():
        if any(entry.get("sha256") == sha256 for entry in record.get("wheels", ())):
            plan = record["plan"]
            return compiler_options(base, plan["environment"], plan["bazel_flags"])
    return None


def _verify_wheel(
    settings: Settings, base: KnowledgeBase, wheel: Path, inspection: Inspection, wanted: TrialRequest
) -> Verification:
    """Run all checks; without an engine, only the checks of the file."""
    if wanted.run:
        return verify_wheel(None, base, wheel, inspection, wanted)
    log = _log(settings, inspection)
    try:
        with stoppable(kept="the wheel is unchanged") as stop, shown_progress() as listen:
            engine = local_engine()
            with trial_environment(engine, settings, listen, stop, log, wheel.name) as environment:
                return verify_wheel(environment, base, wheel, inspection, wanted)
    except EngineError as error:
        verification = verify_wheel(None, base, wheel, inspection, replace(wanted, run=error.problems[0].message))
        return replace(verification, impossible=error)


def _log(settings: Settings, inspection: Inspection) -> Path:
    """Return the path of the log of a wheel's trial."""
    # Compare the content: another wheel may have the same name.
    return settings.cache_dir.absolute() / "verify" / f"{inspection.wheel.sha256[:16]}.log"


# --- output ---------------------------------------------------------------------------------------------------


def _document(
    base: KnowledgeBase,
    wheel: Path,
    profile: str | None,
    asked: ResolvedProfile | None,
    inspection: Inspection | None,
    verification: Verification,
) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if inspection:
        names = ("name", "version", "python_tag", "abi_tag", "platform_tag", "size")
        facts = {name: getattr(inspection.wheel, name) for name in names}
        facts["coverage"] = coverage(base, facts_of_wheel(base, inspection))
        facts["libraries"] = libraries_json(base, inspection)
    return {
        "wheel": wheel.name,
        "sha256": inspection.wheel.sha256 if inspection else None,
        "profile": profile,
        "build_id": asked.resolution.build_id if asked else None,
        "checks": verification.checks,
        "told_by_wheel": answered_by_wheel(verification.checks),
        "runtime": verification.runtime,
        "problems": verification.impossible.problems if verification.impossible else (),
        **facts,
        "unsearched": verification.unsearched,
        "gpu_code": verification.document["gpu_code"] if inspection else None,
    }


def _show(document: dict[str, Any], verification: Verification, *, as_json: bool) -> None:
    if as_json:
        print_json("tfdock.verify/1", verification.ok and not document["problems"], document)
    else:
        console.say(*_lines(verification), stream=sys.stdout)
        if names := document["told_by_wheel"]:
            console.tell(f"note: the results of {names[0]} to {names[-1]} come from the wheel's own code")
        if verification.unsearched:
            console.tell(f"note: {unsearched_limit(verification.unsearched)}")
        console.say(_ending(document), stream=sys.stdout)
    for check in verification.failed:
        account = console.clean(f"{check.name}: {check.account}")
        console.tell(f"{console.Style(sys.stderr).bad('failed:')} {account}")
    if verification.impossible:
        console.show_problems(verification.impossible.problems)


def _lines(verification: Verification) -> Iterator[str]:
    style = console.Style(sys.stdout)
    paint = {"passed": style.good, "failed": style.bad, "skipped": style.faint}
    rows, above = [], ""
    for check in verification.checks:
        shown = _found_text(check)
        found = "as above" if shown and shown == above else shown
        rows.append((check.name, paint[check.status](check.status), found))
        above = shown
    yield from console.table([tuple(map(style.strong, ("check", "status", "found"))), *rows])


def _ending(document: Mapping[str, Any]) -> str:
    """Return text such as `17 passed, 7 skipped: tensorflow_cpu-2.18.0-….whl, tried in python:3.11-slim-bookworm`."""
    counted = Counter(check.status for check in document["checks"])
    counts = ", ".join(f"{counted[status]} {status}" for status in ("passed", "failed", "skipped") if counted[status])
    against = f", against {document['profile']}" if document["profile"] else ""
    installed = any(check.name == "install" and check.status != "skipped" for check in document["checks"])
    tried = f", tried in {document['runtime']}" if installed else ""
    return f"{counts}: {console.clean(document['wheel'])}{against}{tried}"


def _found_text(check: Check) -> str:
    """Return what a check found, and the reason if it has not passed."""
    reason = check.reason if check.status != "passed" else ""
    return "; ".join(console.clean(part) for part in (check.found, reason) if part)
