"""The `build` command: from profiles, a bundle or a matrix to wheels."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.builder.session import BuildSession, BundledInputs
from tfdock.cli import console
from tfdock.cli.app import (
    AllowUntested,
    AsJson,
    MatrixFile,
    Only,
    Report,
    SomeProfiles,
    Trust,
    app,
    check_matrix_options,
    command,
    limit_from_now,
    preparer_for,
    print_result,
    profile_names,
    stoppable,
)
from tfdock.cli.build_progress import (
    Building,
    Result,
    ask_engine,
    outcome_of,
    prepare_all,
    session_for,
    show_result,
    show_summary,
    shown_progress,
)
from tfdock.errors import TfdockError, combined_exit_code
from tfdock.host.files import make_private
from tfdock.host.settings import Settings
from tfdock.host.supervise import Limit, Stop
from tfdock.plan.prepare import PreparedBuild, Preparer
from tfdock.plan.wish import Wish
from tfdock.run.journal import new_run_id
from tfdock.wheelhouse.store import Wheelhouse


def _count(text: str) -> str:
    if text != "auto" and not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise typer.BadParameter(f"`{text}` is not a number of builds; write `auto`, or 1 or more")
    return text


def _program(text: str | None) -> str | None:
    """Refuse a command that cannot be run: at the end of a build nobody could correct it."""
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise typer.BadParameter(f"`{text}` has quotes that do not match") from error
    if text is not None and not (words and shutil.which(words[0])):
        raise typer.BadParameter(f"the program `{text}` was not found")
    return text


@app.command(
    epilog="Examples: `tfdock build rtx3080 --wheelhouse ~/wheels`, `tfdock build --matrix profiles/matrix.yaml "
    "--missing -j auto --report report`. Prints the wheels' paths."
)
@command("tfdock.build/1", "registries", "wheelhouse", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def build(
    settings: Settings,
    wish: Wish,
    profiles: SomeProfiles = None,
    force: Annotated[
        bool, typer.Option("--force", help="Build again even if the wheel is up to date, and fetch the source again.")
    ] = False,
    allow_untested: AllowUntested = False,
    trust: Trust = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Build exactly what the lock pins. Stop if a pin has moved.")
    ] = False,
    time_limit: Annotated[
        Limit | None,
        typer.Option(
            "--time-limit",
            help="Stop all builds cleanly after this time, such as `5h30m`, and keep the cache.",
            metavar="TIME",
            # Measured from the start, because planning also takes time.
            parser=limit_from_now,
        ),
    ] = None,
    at_once: Annotated[
        str,
        typer.Option(
            "-j",
            "--at-once",
            help="Build N profiles at the same time. `auto` chooses N for this machine.",
            metavar="N|auto",
            callback=_count,
        ),
    ] = "1",
    keep_output: Annotated[
        bool, typer.Option("--keep-output", help="If a build fails, keep Bazel's output base and print where it is.")
    ] = False,
    no_pull: Annotated[
        bool, typer.Option("--no-pull", help="Build here. Do not look for the wheel in registries.")
    ] = False,
    matrix: MatrixFile = None,
    only: Only = None,
    missing: Annotated[
        bool,
        typer.Option(
            "--missing", help="With --matrix, skip the cells whose wheel is in the wheelhouse or in a registry."
        ),
    ] = False,
    report: Report = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Build in the background. `tfdock status` and `tfdock logs -f` show its progress."
        ),
    ] = False,
    at_end: Annotated[
        str | None,
        typer.Option(
            "--notify",
            help="At the end, run COMMAND, such as `notify-send`, with two arguments: the outcome and the builds.",
            metavar="COMMAND",
            callback=_program,
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Build without a network, from a bundle that `tfdock fetch -o` wrote. Without profiles, build "
            "everything in the bundle.",
            metavar="BUNDLE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A wheel in the wheelhouse or in a registry is not built again."""
    _check_source(profiles, wish, bundle, matrix, locked=locked)
    if detach and as_json:
        raise typer.BadParameter("`--detach` prints no JSON: use `tfdock status --json`")
    check_matrix_options(matrix, only=only, missing=missing, report=report)
    if keep_output:
        settings = replace(settings, keep_output="failed")
    preparer = preparer_for(settings, allow_untested=allow_untested, trusted=trust, wish=wish)
    session_with = partial(session_for, settings, preparer.knowledge, limit=time_limit, pulls=not no_pull)
    building_with = partial(Building, at_once=at_once, force=force)
    note: Callable[[Result], None] | None = None
    if matrix:
        # A plain build must not load the modules of matrices.
        from tfdock.cli.matrix_run import CellSelection, build_matrix, cells_to_do, finish_matrix

        choice = CellSelection(file=matrix, only=only or (), missing=missing, report=report)
        with stoppable() as stop:
            cells = choice.cells(settings, preparer, stop.check)
            todo = cells_to_do(cells, settings, "build")
        if detach and todo:
            note = _detach(session_with(Stop()), [cells.prepared(cell) for cell in todo], force=force)
        with notified(at_end) as ended, stoppable() as stop:
            with shown_progress() as progress:
                building = building_with(session=session_with(stop), progress=progress, note=note)
                done, outcome = build_matrix(cells, todo, building)
            ended += done
            # Also after Ctrl-C: the report has the outcome of each cell until then.
            raise typer.Exit(finish_matrix(outcome, choice, lambda more: _print_results(done, more, as_json=as_json)))
    names = (profiles or []) if bundle else profile_names(profiles, wish)
    planner = _planner(settings, preparer, locked=locked)
    inputs: dict[str, BundledInputs] = {}
    if bundle:
        planner, names, inputs = _plan_bundle(bundle, names, preparer)
    prepared, results, order = prepare_all(planner, names)
    for result in results:
        show_result(result)
    # Skip the offer: the user made the lock or the bundle on purpose.
    asking = not (as_json or force or locked or bundle) and sys.stdin.isatty() and sys.stderr.isatty()
    prepared = _wanted(prepared, preparer, settings, asking=asking)
    if detach and prepared:
        note = _detach(session_with(Stop()), prepared, force=force)
    # Print inside the handler's scope: a signal after the last build must not cut off the output.
    with notified(at_end) as ended, stoppable() as stop:
        with shown_progress() as progress:
            building = building_with(session=session_with(stop), progress=progress, inputs=inputs, note=note)
            results += building.all(prepared)
        ended += results
        results.sort(key=lambda result: order[result["profile"]])
        if len(results) > 1:
            show_summary(results)
        raise typer.Exit(_print_results(results, {}, as_json=as_json))


def _detach(session: BuildSession, prepared: Sequence[PreparedBuild], *, force: bool) -> Callable[[Result], None]:
    """Continue in a child process: the command prints its id and ends. In the child, return the recorder of results.

    Raises EngineUnavailable in the command, before it ends.
    """
    # Imported here: only builds in the background need these modules.
    from tfdock.host.background import go_on_in_background
    from tfdock.wheelhouse.run_states import BuildNotes

    ask_engine(session, prepared, force=force)
    folder = session.settings.state_dir.absolute() / "detached"
    make_private(folder)
    output = folder / f"{new_run_id()}.txt"
    if child := go_on_in_background(output):
        console.say(f"process {child} builds in the background")
        console.say("  look    `tfdock status`, `tfdock logs -f`")
        console.say(f"  stop    `kill {child}`; to resume it from the cache, repeat the build command")
        console.say(f"  output  {output}")
        raise typer.Exit
    return BuildNotes(output, {build.plan.build_id: build.file for build in prepared}).end


@contextmanager
def notified(command: str | None) -> Iterator[list[Result]]:
    """Run the command of `--notify` at the end, also after an error. The caller adds results to the yielded list."""
    results: list[Result] = []
    outcome, error = "failed", ""
    try:
        yield results
    except typer.Exit:
        outcome = "nothing built"
        raise
    except TfdockError as failure:
        error = failure.problems[0].message
        raise
    finally:
        if command:
            from tfdock.host.background import notify

            names = ", ".join(result["build_id"] or result["profile"] for result in results)
            if problem := notify(command, outcome_of(results) or outcome, error or names):
                console.show_problems([problem])


def _wanted(
    prepared: list[PreparedBuild], preparer: Preparer, settings: Settings, *, asking: bool
) -> list[PreparedBuild]:
    """Print notes about each missing build, and return the builds to run.

    If an official wheel is enough, ask once on a terminal, and drop the builds that the user declines.
    """
    house = Wheelhouse(settings.wheelhouse)
    # There is no official wheel for a user's own source.
    new = [build for build in prepared if not build.written.profile.source.is_own]
    # Compare sizes only: each build hashes its wheel itself, and once is enough.
    plans = ((build, build.plan) for build in new)
    new = [build for build, plan in plans if not house.has(plan.build_id, plan.fingerprint, plan.trust.name)]
    if not new:
        return prepared
    # imported on use: the module loads everything that advice needs
    from tfdock.plan.notes import python_note
    from tfdock.resolve.advice import official_note

    needless = []
    for build in new:
        resolution = build.plan.resolution
        official = official_note(preparer.knowledge, build.written.profile, resolution)
        needless += [build] if official else []
        for note in filter(None, (official, python_note(preparer, build.written, resolution))):
            console.tell(f"note: {note}")
    if not (asking and needless):
        return prepared
    which = "them" if len(needless) > 1 else needless[0].file
    console.release()
    wanted = typer.confirm(f"Build {which} anyway?", err=True)
    left = prepared if wanted else [build for build in prepared if build not in needless]
    if not left:
        console.say("nothing was built")
    return left


def _print_results(results: list[Result], more: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the wheels' paths, or the document with `more` in it; return the exit code."""
    code = combined_exit_code(part["exit_code"] for part in (*results, *more.values()))
    document = {"builds": [_result_json(result) for result in results], **more}
    # A program reads the path; a person pastes the command.
    key = "install" if sys.stdout.isatty() else "path"
    lines = (wheel[key] for result in results for wheel in result["wheels"])
    print_result("tfdock.build/1", document, lines, as_json=as_json, ok=code == 0)
    return code


def _result_json(result: Result) -> dict[str, Any]:
    diagnosis = result.get("diagnosis")
    row = {name: value for name, value in result.items() if name != "exit_code"}
    return row | {"diagnosis": diagnosis.findings_json if diagnosis else []}


def _check_source(
    profiles: list[str] | None, wish: Wish, bundle: Path | None, matrix: Path | None, *, locked: bool
) -> None:
    if wish and (matrix or bundle):
        raise typer.BadParameter("a matrix or a bundle contains its profiles: remove `--gpu` and `--set`")
    if matrix and (profiles or bundle or locked):
        raise typer.BadParameter("a matrix contains its profiles: remove the profiles, `--from` and `--locked`")
    if not (profiles or wish or bundle or matrix):
        raise typer.BadParameter(
            "name a profile, or a GPU: `--gpu rtx5090`; or a matrix: `--matrix profiles/matrix.yaml`; or a bundle: "
            "`--from bundle.tar`"
        )
    if bundle and locked:
        raise typer.BadParameter("a bundle contains its locks: remove `--locked`")


def _plan_bundle(
    bundle: Path, names: list[str], preparer: Preparer
) -> tuple[Callable[[str], PreparedBuild], list[str], dict[str, BundledInputs]]:
    """Return a planner for the profiles of a bundle, their names, and the bundle's inputs by build id."""
    from tfdock.offline.bundled_inputs import prepare  # a build with a network needs no bundle

    bundled = prepare(bundle, names, preparer)
    plans = {prepared.file: prepared for prepared, _ in bundled}
    return plans.__getitem__, list(plans), {prepared.plan.build_id: inputs for prepared, inputs in bundled}


def _planner(settings: Settings, preparer: Preparer, *, locked: bool) -> Callable[[str], PreparedBuild]:
    """Return the function that plans a profile; with `locked`, from the lock file."""
    if not locked:
        return preparer.prepare
    from tfdock.builder.locking import prepare_locked  # this import loads the registry client

    return lambda name: prepare_locked(name, preparer, settings, console.show_problems)
