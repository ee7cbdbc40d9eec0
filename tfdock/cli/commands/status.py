"""The commands `status` and `logs`: running builds of all terminals, builds that wait, and builds that have ended."""

from __future__ import annotations

import calendar
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tfdock.cli import ci_log, console
from tfdock.cli.app import AsJson, app, command, preparer_for, print_json
from tfdock.cli.summary_text import when
from tfdock.errors import ExitCode, ProfileError, TfdockError
from tfdock.host.settings import Settings
from tfdock.host.supervise import Lines
from tfdock.host.untrusted_folders import open_plain_file
from tfdock.run.journal import living_runs
from tfdock.wheelhouse.run_states import RunState, run_states
from tfdock.wheelhouse.store import Wheelhouse

_SHOWN = 10  #: The most ended builds to list. `tfdock wheelhouse list` has all wheels.
_LOOK = 0.5  #: Seconds between two reads of a log.
_TAIL = 4096  #: Bytes of the log that are printed before following it.


@app.command(epilog="Example: `tfdock status`. `kill PROCESS` stops a build cleanly; the build command resumes it.")
@command("tfdock.status/1", "wheelhouse")
def status(settings: Settings, as_json: AsJson = False) -> None:
    """The runs of this user in all terminals are shown, then the last builds of the wheelhouse. Times are in UTC."""
    runs = _runs(settings)
    if as_json:
        print_json("tfdock.status/1", True, {"runs": runs})
        return
    style = console.Style(sys.stdout)
    living = [run for run in runs if run.state == "running"]
    for run in living:
        console.say(f"{style.good(run.state)}  {console.clean(run.build_id)}", stream=sys.stdout)
        for name, text in _lines(run):
            console.say(f"  {name:<7}  {console.clean(text)}", stream=sys.stdout)
    rows = [
        (run.state, when(run.ended or run.started), run.run, f"{run.build_id}{_reason(run)}")
        for run in runs
        if run.state != "running"
    ]
    waiting = sum(run.state == "waiting" for run in runs)
    shown = [tuple(map(console.clean, row)) for row in rows[: waiting + _SHOWN]]
    console.say(*console.table(shown, indent=""), stream=sys.stdout)
    if living:
        console.tell("`tfdock logs -f RUN` follows a run; `kill PROCESS` stops it and keeps the cache")
    elif not rows:
        console.say(f"no build runs, and {settings.wheelhouse.absolute()} has no ended build")


@app.command(
    epilog="Examples: `tfdock logs -f`, `tfdock logs rtx3080 | less`. Ctrl-C ends `-f`, but not the build. Exit "
    "status: 0, or 2 if there is no such build."
)
@command("tfdock.logs/1", "wheelhouse")
def logs(
    settings: Settings,
    build: Annotated[
        str | None, typer.Argument(help="A run, a build id or a profile. The default is the newest.", metavar="BUILD")
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print the last lines, then new ones until the build ends.")
    ] = False,
) -> None:
    """For a build id or a profile, the newest log is printed."""
    run = _find(build, settings)
    try:
        if follow and run.state == "waiting":
            console.tell(f"waiting  {console.clean(run.build_id)}")
        while follow and run.state == "waiting":
            time.sleep(_LOOK)
            run = _find(run.build_id, settings)
        _print_log(run, settings, follow=follow)
    except KeyboardInterrupt as error:
        if run.process:
            console.say("\nthe build continues; `tfdock status` shows it")
        raise typer.Exit(ExitCode.INTERRUPTED) from error


def _print_log(run: RunState, settings: Settings, *, follow: bool) -> None:
    lines = Lines(lambda line: console.say(ci_log.here().harmless(console.clean(line)), stream=sys.stdout))
    reader, goes_on = os.fstat(1), run.state == "running"
    with open_plain_file(Path(run.log)) as log:
        if log is None:
            raise ProfileError.of(
                "run-not-found", f"the log {run.log} is gone", "`tfdock status` lists the other runs"
            )
        if follow and (size := log.seek(0, 2)) > _TAIL:
            log.seek(size - _TAIL)
            log.readline()
        else:
            log.seek(0)
        # A reader that stops early, such as `grep -m1`, ends the command; its output has been redirected by then.
        while follow and goes_on and os.path.samestat(os.fstat(1), reader):
            # Check for the end before reading, so that all output before the end is still read.
            goes_on = run.run in living_runs(settings.state_dir)
            lines.feed(log.read())
            time.sleep(_LOOK if goes_on else 0)
        while data := log.read(1 << 20):
            lines.feed(data)
        lines.close()
    if follow and not goes_on:
        ended = next((other for other in _runs(settings) if other.run == run.run), run)
        console.tell(console.clean(f"{ended.state}  {ended.build_id}{_reason(ended)}"))


def _runs(settings: Settings) -> list[RunState]:
    return list(run_states(Wheelhouse(settings.wheelhouse.absolute()), settings.state_dir))


def _find(name: str | None, settings: Settings) -> RunState:
    """Return the run of this name: the newest running run, or else the last run that ended."""
    runs, names = _runs(settings), {name}
    if name and not any(name in (run.run, run.build_id) for run in runs):
        with suppress(TfdockError):  # for a profile, also find builds whose documents do not name the profile
            names.add(preparer_for(settings).prepare(name).plan.build_id)
    if name:
        runs = [run for run in runs if names & {run.run, run.build_id, run.profile, Path(run.profile).stem}]
    if runs:
        return next((run for run in reversed(runs) if run.state == "running"), runs[0])
    raise ProfileError.of(
        "run-not-found",
        f"there is no run{f' of `{name}`' if name else ''}, neither now nor in {settings.wheelhouse.absolute()}",
        "`tfdock status` lists the runs; `--wheelhouse` names another wheelhouse",
    )


def _reason(run: RunState) -> str:
    return f": {run.reason}" if run.reason else ""


def _lines(run: RunState) -> list[tuple[str, str]]:
    began = calendar.timegm(time.strptime(run.run[:15], "%Y%m%d-%H%M%S"))  # as `new_run_id` writes it
    count = f" [{run.done:,} / {run.total:,}]" if run.done is not None else ""
    return [
        ("run", run.run),
        ("profile", run.profile),
        ("since", f"{when(run.started)}, {console.duration(time.time() - began)} ago"),
        ("phase", f"{run.phase}{count}  {run.action}".rstrip()),
        ("process", run.process.removeprefix("process ")),
        ("log", run.log),
    ]
