"""`build` and `shell`: what runs on an engine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfdock.errors import Problem, TfdockError, combined_exit_code
from tfdock.talk import console
from tfdock.talk.app import (
    AllowUntested,
    AsJson,
    CacheDir,
    Knowledge,
    OneProfile,
    Profiles,
    Wheelhouse,
    app,
    command,
    local_engine,
    preparer_for,
    print_json,
    settings_for,
)

if TYPE_CHECKING:
    from tfdock.do.build import Builder, BuildResult
    from tfdock.do.prepare import Prepared
    from tfdock.do.settings import Settings
    from tfdock.do.watch import Stop


@app.command(epilog="Example: `tfdock build rtx3080 --wheelhouse ~/wheels`. Prints the wheels' paths.")
@command("tfdock.build/1")
def build(
    profiles: Profiles,
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
    as_json: AsJson = False,
) -> None:
    """Build wheels: check, image, fetch, compile, seal, verify. What is up to date is not built again."""
    settings = settings_for(wheelhouse=wheelhouse, cache_dir=cache_dir, knowledge=knowledge)
    prepared, results = _prepare_all(_planner(settings, locked=locked, allow_untested=allow_untested), profiles)
    for result in results:
        _tell_result(result)
    with stoppable() as stop, shown_progress() as listen:
        builder = builder_for(settings, listen, stop)
        for one in prepared:
            results.append(_build_one(builder, one, force=force))
            _tell_result(results[-1])
    ok = all(result["status"] in ("built", "up-to-date") for result in results)
    if as_json:
        codes = [result.pop("exit_code") for result in results]
        print_json("tfdock.build/1", ok, {"builds": results})
    else:
        codes = [result["exit_code"] for result in results]
        for result in results:
            for wheel in result["wheels"]:
                console.say(wheel["path"], stream=sys.stdout)
    raise typer.Exit(combined_exit_code(codes))


def _planner(settings: Settings, *, locked: bool, allow_untested: bool) -> Callable[[str], Prepared]:
    """Plans a profile, by its lock where that is asked for."""
    preparer = preparer_for(settings, allow_untested=allow_untested)
    if not locked:
        return preparer.prepare
    from tfdock.do.lock import prepare_locked

    return lambda name: prepare_locked(name, preparer, settings)


def _prepare_all(plan: Callable[[str], Prepared], names: list[str]) -> tuple[list[Prepared], list[dict[str, Any]]]:
    """Plan all profiles before anything starts; those refused become results at once."""
    prepared: list[Prepared] = []
    refused: list[dict[str, Any]] = []
    for name in names:
        try:
            prepared.append(plan(name))
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
    return list({one.plan.build_id: one for one in prepared}.values()), refused


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
        return _failed(prepared.file, prepared.plan.build_id, status, error, builder.log)


def _build_result(builder: Builder, prepared: Prepared, *, force: bool) -> BuildResult:
    """Up to date costs neither an engine nor its SDK."""
    done = None if force else builder.up_to_date(prepared.plan, prepared.lock)
    return done or builder.build(prepared.plan, prepared.tree, force=force, lock=prepared.lock)


def _built(prepared: Prepared, result: BuildResult) -> dict[str, Any]:
    record = result.record
    wheels = zip(result.wheels, record["wheels"], strict=True)
    return {
        "build_id": prepared.plan.build_id,
        "profile": prepared.file,
        "status": result.status,
        "problems": [],
        "wheels": [{"path": str(path), "sha256": one["sha256"], "size": one["size"]} for path, one in wheels],
        "record": str(result.record_path),
        "log": str(result.log_path),
        "seconds": record["seconds"],
        "cache": record["bazel"],
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
        "problems": list(error.problems),
        "wheels": [],
        "record": None,
        "log": str(log) if log else None,
        "seconds": {},
        "cache": None,
        "attempts": 0,
        "exit_code": int(error.exit_code),
    }


def _tell_result(result: dict[str, Any]) -> None:
    style = console.Style(sys.stderr)
    name = result["build_id"] or result["profile"]
    if result["problems"]:
        console.say(f"{style.bad(result['status'])}  {name}")
        console.show_problems(result["problems"])
        return
    total = sum(result["seconds"].values())
    took = f" in {console.duration(total)}" if result["status"] == "built" else ""
    cache = result["cache"]
    actions = f", {cache['hits']} actions from the cache, {cache['executed']} executed" if cache and took else ""
    console.say(f"{style.good(result['status'])}  {name}{took}{actions}")
    for wheel in result["wheels"]:
        console.say(f"  wheel    {wheel['path']}  {console.size(wheel['size'])}")
        console.say(f"  install  pip install '{wheel['path']}'")
    console.say(f"  record   {result['record']}")


@contextmanager
def shown_progress() -> Iterator[Any]:
    """Show what is going on, as fits standard error; gives the listener."""
    progress = console.progress_for(sys.stderr)
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
