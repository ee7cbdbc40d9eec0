"""`build` and `shell`: what runs on an engine."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfdock.errors import Problem, TfdockError, combined_exit_code
from tfdock.talk import console, happened
from tfdock.talk.app import (
    AllowUntested,
    AsJson,
    CacheDir,
    Knowledge,
    OneProfile,
    Registry,
    SomeProfiles,
    Wheelhouse,
    app,
    command,
    local_engine,
    preparer_for,
    print_json,
    settings_for,
)

if TYPE_CHECKING:
    from tfdock.decide.diagnosis import Diagnosis
    from tfdock.do.build import Builder, BuildResult
    from tfdock.do.events import Listener
    from tfdock.do.prepare import Prepared, Preparer
    from tfdock.do.settings import Settings
    from tfdock.do.watch import Limit, Stop
    from tfdock.talk.progress import Progress


@app.command(epilog="Example: `tfdock build rtx3080 --wheelhouse ~/wheels`. Prints the wheels' paths.")
@command("tfdock.build/1")
def build(
    profiles: SomeProfiles = None,
    wheelhouse: Wheelhouse = None,
    cache_dir: CacheDir = None,
    knowledge: Knowledge = None,
    force: Annotated[
        bool, typer.Option("--force", help="Build even what is up to date; fetch the source anew.")
    ] = False,
    allow_untested: AllowUntested = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Build what `tfdock lock` wrote down, or say which pin moved.")
    ] = False,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time-limit",
            help="Stop cleanly, keeping the cache, after this long (`5h30m`); for all profiles together.",
            metavar="TIME",
            show_default=False,
            callback=_duration,
        ),
    ] = None,
    at_once: Annotated[
        str,
        typer.Option(
            "-j",
            "--at-once",
            help="Build so many profiles side by side; `auto` takes as many as the machine is good for.",
            metavar="N|auto",
            callback=_count,
        ),
    ] = "1",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Find out of every action why it was not in the cache: slower, and takes gigabytes while it runs.",
        ),
    ] = False,
    read_only_cache: Annotated[
        bool,
        typer.Option("--read-only-cache", help="Send nothing to the remote cache, whatever the profiles say."),
    ] = False,
    keep_output: Annotated[
        bool, typer.Option("--keep-output", help="Keep Bazel's output base of a build that fails, and say where.")
    ] = False,
    no_pull: Annotated[
        bool, typer.Option("--no-pull", help="Build here what a registry of the setting `registries` may have.")
    ] = False,
    registry: Registry = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Build out of a bundle of `tfdock fetch -o`, without a network: these profiles of it, or all.",
            metavar="BUNDLE",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build wheels: check, image, fetch, compile, seal, verify. What is here or in a registry is not built again."""
    _check_source(profiles, bundle, locked=locked)
    settings = settings_for(
        wheelhouse=wheelhouse,
        cache_dir=cache_dir,
        knowledge=knowledge,
        remote_upload=False if read_only_cache else None,
        keep_output="failed" if keep_output else None,
        registries=registry,
    )
    limit = _limit(time_limit)
    names = profiles or []
    planner = _planner(settings, locked=locked, allow_untested=allow_untested, explain=explain)
    if bundle:
        planner, names = _bundled(bundle, names, settings, allow_untested=allow_untested, explain=explain)
    prepared, results, order = _prepare_all(planner, names)
    for result in results:
        _tell_result(result)
    with stoppable() as stop, shown_progress() as listen:

        def one_of(hears: Listener) -> Builder:
            return replace(builder_for(settings, hears, stop), limit=limit, pulls=not no_pull)

        if at_once == "1" or len(prepared) < 2:
            builder = one_of(listen)
            results += [_told(_build_one(builder, one, force=force)) for one in prepared]
        else:
            count = None if at_once == "auto" else int(at_once)
            results += _side_by_side(prepared, one_of, listen, count=count, force=force)
    results.sort(key=lambda result: order[result["profile"]])
    ok = all(result["status"] in ("built", "up-to-date", "pulled") for result in results)
    if as_json:
        codes = [result.pop("exit_code") for result in results]
        results = [{**one, "diagnosis": findings_json(one.get("diagnosis"))} for one in results]
        print_json("tfdock.build/1", ok, {"builds": results})
    else:
        codes = [result["exit_code"] for result in results]
        for result in results:
            for wheel in result["wheels"]:
                console.say(wheel["path"], stream=sys.stdout)
    raise typer.Exit(combined_exit_code(codes))


def _check_source(profiles: list[str] | None, bundle: Path | None, *, locked: bool) -> None:
    if not profiles and not bundle:
        raise typer.BadParameter("name a profile, or a bundle: `--from bundle.tar`")
    if bundle and locked:
        raise typer.BadParameter("a bundle has its locks in it: leave `--locked` out")


def _bundled(
    bundle: Path, names: list[str], settings: Settings, *, allow_untested: bool, explain: bool
) -> tuple[Callable[[str], Prepared], list[str]]:
    """Plans the profiles of a bundle, and names them."""
    from tfdock.do.offline import prepare

    preparer = preparer_for(settings, allow_untested=allow_untested)
    found = {one.file: _explained(one, preparer, explain=explain) for one in prepare(bundle, names, preparer)}
    return found.__getitem__, list(found)


def _explained(prepared: Prepared, preparer: Preparer, *, explain: bool) -> Prepared:
    if not explain:
        return prepared
    from tfdock.decide.plan import explained

    return replace(prepared, plan=explained(prepared.plan, preparer.knowledge))


def _duration(text: str | None) -> str | None:
    if text is None:
        return None
    from tfdock.read.amounts import DURATION

    if not re.fullmatch(DURATION, text, re.ASCII):
        raise typer.BadParameter(f"`{text}` is not a duration; write it like `5h30m`")
    return text


def _count(text: str) -> str:
    if text != "auto" and not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise typer.BadParameter(f"`{text}` is no number of builds; write `auto`, or a number from 1 on")
    return text


def _limit(text: str | None) -> Limit | None:
    """The time that a whole command has, counted from now on."""
    if text is None:
        return None
    from tfdock.do.watch import Limit
    from tfdock.read.amounts import parse_seconds

    seconds = parse_seconds(text)
    return Limit(seconds, time.monotonic() + seconds)


def _side_by_side(
    prepared: list[Prepared],
    builder_of: Callable[[Listener], Builder],
    progress: Progress,
    *,
    count: int | None,
    force: bool,
) -> list[dict[str, Any]]:
    """Build several at a time; their results, in the profiles' order. Each is told when it ends."""
    from tfdock.decide.schedule import at_once
    from tfdock.do.several import Ledger, side_by_side

    plans = [one.plan for one in prepared]
    machine = plans[0].machine
    with suppress(TfdockError):  # without an engine each build says so itself
        machine = builder_of(progress).machine(plans[0])
    count = at_once(plans, machine, count)
    ledger = Ledger(count, {plan.build_id for plan in plans})

    def build_one(place: int) -> dict[str, Any]:
        one = prepared[place]
        builder = replace(builder_of(progress.of(one.plan.build_id)), allotted=ledger.allot, at_once=count)
        return _told(_build_one(builder, one, force=force))

    console.say(f"{len(plans)} builds, {count} at a time")
    return side_by_side(plans, ledger, build_one)


def _planner(settings: Settings, *, locked: bool, allow_untested: bool, explain: bool) -> Callable[[str], Prepared]:
    """Plans a profile, by its lock where that is asked for."""
    preparer = preparer_for(settings, allow_untested=allow_untested)

    def plan(name: str) -> Prepared:
        if locked:
            from tfdock.do.lock import prepare_locked

            prepared = prepare_locked(name, preparer, settings)
        else:
            prepared = preparer.prepare(name)
        return _explained(prepared, preparer, explain=explain)

    return plan


def _prepare_all(
    plan: Callable[[str], Prepared], names: list[str]
) -> tuple[list[Prepared], list[dict[str, Any]], dict[str, int]]:
    """Plan all profiles before anything starts; those refused become results at once.

    With them comes the place of each as it was given, by the name in its result: a file's, or what was refused.
    """
    prepared: list[Prepared] = []
    refused: list[dict[str, Any]] = []
    order: dict[str, int] = {}
    for place, name in enumerate(names):
        order.setdefault(name, place)
        try:
            prepared.append(plan(name))
            order.setdefault(prepared[-1].file, place)
        except TfdockError as error:
            refused.append(_failed(name, None, "refused", error))
    ids: dict[str, str] = {}
    for one in prepared:
        other = ids.setdefault(one.plan.build_id, one.file)
        if other != one.file:
            from tfdock.errors import ProfileError

            raise ProfileError(
                Problem(
                    code="build-id-twice",
                    message=f"{other} and {one.file} have the same build id, {one.plan.build_id}",
                    fix="build one of them, or one after the other into another `--wheelhouse`",
                    file=one.file,
                )
            )
    return list({one.plan.build_id: one for one in prepared}.values()), refused, order


def builder_for(settings: Settings, listen: Any, stop: Stop) -> Builder:
    """A builder on this machine's engine, which it asks for only when it needs it."""
    from tfdock.do.build import Builder

    return Builder(connect=local_engine, settings=settings, listen=listen, stop=stop)


def _build_one(builder: Builder, prepared: Prepared, *, force: bool) -> dict[str, Any]:
    builder.log = None
    try:
        builder.stop.check()
        return _built(prepared, _build_result(builder, prepared, force=force))
    except TfdockError as error:
        from tfdock.errors import Incompatible, Interrupted, VerificationFailed

        refused = "refused" if isinstance(error, Incompatible | VerificationFailed) else "failed"
        status = "interrupted" if isinstance(error, Interrupted) else refused
        result = _failed(prepared.file, prepared.plan.build_id, status, error, builder.log)
        return result if status == "interrupted" else {**result, "diagnosis": _diagnosis(builder, prepared)}


def _diagnosis(builder: Builder, prepared: Prepared) -> Diagnosis | None:
    """What the log of a build that failed shows; None where it has none."""
    from tfdock.decide.mending import Context
    from tfdock.do.diagnosing import context_of, of_run

    if builder.log is None:
        return None
    known = context_of(prepared.file, preparer_for(builder.settings)) or Context(knowledge=builder.knowledge)
    context = replace(known, resolution=prepared.plan.resolution, resources=prepared.plan.resources)
    return of_run(builder.log, builder.knowledge, context)


def _build_result(builder: Builder, prepared: Prepared, *, force: bool) -> BuildResult:
    """Up to date costs neither an engine nor its SDK."""
    done = None if force else builder.up_to_date(prepared.plan, prepared.lock)
    return done or builder.build(prepared.plan, prepared.tree, force=force, lock=prepared.lock, given=prepared.given)


def _built(prepared: Prepared, result: BuildResult) -> dict[str, Any]:
    record = result.record
    wheels = zip(result.wheels, record["wheels"], strict=True)
    return {
        "build_id": prepared.plan.build_id,
        "profile": prepared.file,
        "status": result.status,
        "origin": result.origin or None,
        "problems": [],
        "wheels": [{"path": str(path), "sha256": one["sha256"], "size": one["size"]} for path, one in wheels],
        "record": str(result.record_path),
        "log": str(result.log_path) if result.log_path.is_file() else None,  # none came with what was pulled
        "seconds": record["seconds"],
        "cache": record.get("bazel"),
        "attempts": record["attempts"],
        "exit_code": 0,
    }


def _failed(
    file: str, build_id: str | None, status: str, error: TfdockError, log: Path | None = None
) -> dict[str, Any]:
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
        "cache": None,
        "attempts": 0,
        "exit_code": int(error.exit_code),
    }


def _told(result: dict[str, Any]) -> dict[str, Any]:
    with _telling:
        _tell_result(result)
    return result


_telling = threading.Lock()
"""What is said of a result is several lines, and several builds may end at once."""


def _tell_result(result: dict[str, Any]) -> None:
    style = console.Style(sys.stderr)
    name = result["build_id"] or result["profile"]
    if result["problems"]:
        console.say(f"{style.bad(result['status'])}  {name}")
        console.show_problems(result["problems"])
        show_diagnosis(result.get("diagnosis"), result["log"])
        return
    total = sum(result["seconds"].values())
    took = f" in {console.duration(total)}" if result["status"] == "built" else ""
    cache = result["cache"]
    actions = f", {cache['hits']} actions from the cache, {cache['executed']} executed" if cache and took else ""
    came = f" from {result['origin']}" if result["origin"] else ""
    console.say(f"{style.good(result['status'])}  {name}{took}{actions}{came}")
    for title, text in happened.lines(cache) if cache and took else ():
        console.tell(f"  {title:<7}  {text}", indent=" " * 9)
    for wheel in result["wheels"]:
        console.say(f"  wheel    {wheel['path']}  {console.size(wheel['size'])}")
        console.say(f"  install  pip install '{wheel['path']}'")
    console.say(f"  record   {result['record']}")


def findings_json(found: Diagnosis | None) -> list[dict[str, Any]]:
    """What a log showed, for programs: empty where nothing failed, or nothing is known."""
    if found is None:
        return []
    from tfdock.talk.diagnosis import as_json

    return [as_json(one) for one in found.findings]


def show_diagnosis(found: Diagnosis | None, log: str | None) -> None:
    """The cause that a log shows, below the message that something failed; nothing where it shows none."""
    if found is None or log is None:
        return
    from tfdock.talk.diagnosis import lines

    for line in lines(found, Path(log).name, sys.stderr, brief=True):
        console.say(line)


@contextmanager
def shown_progress() -> Iterator[Any]:
    """Show what is going on, as fits standard error; gives the listener."""
    from tfdock.talk.progress import progress_for

    progress = progress_for(sys.stderr)
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def stoppable(kept: str | None = None) -> Iterator[Stop]:
    """Count SIGINT and SIGTERM instead of dying of them; the build looks at the count twice a second.

    `kept` says what becomes of the work, where that is not the build's.
    """
    from tfdock.do.watch import Stop

    stop = Stop(kept=kept) if kept else Stop()

    def request(number: int, _frame: object) -> None:
        stop.requests += 1
        if stop.requests > 2:  # an engine that hangs may keep the second from being heard; the journal knows the rest
            raise KeyboardInterrupt
        stop.terminated = stop.terminated or number == signal.SIGTERM

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@app.command(
    epilog="Example: `tfdock shell debug`, then `bazel build …` or `gdb python3`; or `tfdock shell debug ls -la`.",
    # What follows the profile is the command, its options included.
    context_settings={"allow_interspersed_args": False},
)
@command("tfdock.shell/1")
def shell(
    profile: OneProfile,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A command instead of a shell.", metavar="[COMMAND…]", show_default=False),
    ] = None,
    cache_dir: CacheDir = None,
    knowledge: Knowledge = None,
) -> None:
    """Open the image that builds a profile, with its caches and its network, ready to call bazel or gdb."""
    settings = settings_for(cache_dir=cache_dir, knowledge=knowledge)
    prepared = preparer_for(settings).prepare(profile)
    with shown_progress() as listen:
        builder = builder_for(settings, listen, _no_stop())
        status = builder.shell(prepared.plan, prepared.tree, tuple(command or ("/bin/bash",)), ready=listen.close)
    raise typer.Exit(status)


def _no_stop() -> Stop:
    from tfdock.do.watch import Stop

    return Stop()
