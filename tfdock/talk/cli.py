"""The command line: arguments in, results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tfdock import __version__
from tfdock.errors import ExitCode, Problem, TfdockError, combined_exit_code
from tfdock.talk import console

# Everything else is imported where it is used: `tfdock --help` must not wait for an engine's SDK.
if TYPE_CHECKING:
    from tfdock.do.build import Builder, BuildResult
    from tfdock.do.engine import Engine
    from tfdock.do.prepare import Prepared, Preparer
    from tfdock.do.settings import Settings
    from tfdock.do.watch import Stop

_F = TypeVar("_F", bound=Callable[..., Any])

app = typer.Typer(
    name="tfdock",
    help="Build TensorFlow wheels that fit your GPU, in containers, from a short YAML profile.",
    epilog="Start with: `tfdock check rtx3080`, `tfdock plan rtx3080 --why`, `tfdock build rtx3080`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Profiles = Annotated[
    list[str],
    typer.Argument(help="Profile files, or names of shipped profiles.", metavar="PROFILE…", show_default=False),
]
OneProfile = Annotated[
    str,
    typer.Argument(help="A profile file, or the name of a shipped profile.", metavar="PROFILE", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Knowledge = Annotated[
    list[Path] | None,
    typer.Option("--knowledge", help="A folder of further knowledge rows.", metavar="DIR", show_default=False),
]
Wheelhouse = Annotated[
    Path | None,
    typer.Option("--wheelhouse", help="Where wheels go; ./wheelhouse by default.", metavar="DIR", show_default=False),
]
CacheDir = Annotated[
    Path | None, typer.Option("--cache-dir", help="Where Bazel's caches lie.", metavar="DIR", show_default=False)
]


# --- errors and output --------------------------------------------------------------------------------------------


def _command(schema: str) -> Callable[[_F], _F]:
    """Make a command report its errors: as text, or as the JSON document it would have printed."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TfdockError as error:
                console.show_problems(error.problems)
                if kwargs.get("as_json"):
                    _print_json(schema, False, {"problems": [asdict(problem) for problem in error.problems]})
                raise typer.Exit(error.exit_code) from error

        return wrapper  # type: ignore[return-value]

    return decorate


def _print_json(schema: str, ok: bool, document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"schema": schema, "ok": ok, **document}, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    """Run the command line; the only place where an unexpected error becomes an exit code."""
    # Planning makes many small objects that live to the end: looking for garbage among them takes a tenth of it.
    gc.set_threshold(100_000)
    try:
        app()
    except KeyboardInterrupt:
        console.say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has gone (`| head`): nothing is left to say.
        _abandon_output()
        sys.exit(ExitCode.OK)
    except Exception as error:
        if os.environ.get("TFDOCK_DEBUG"):
            raise
        problem, code = _unexpected(error)
        console.show_problems([problem])
        sys.exit(code)


def _abandon_output() -> None:
    """Nothing more can be written: Python shall not try it once more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> tuple[Problem, ExitCode]:
    """What nobody expects where it happens, such as standard output on a full disk."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _abandon_output()
        problem = Problem(
            code="disk-full", message=f"cannot write: {error.strerror}", fix="make room, or write elsewhere"
        )
        return problem, ExitCode.RESOURCES
    if isinstance(error, OSError) and error.filename:
        message, fix = f"{error.filename}: {error.strerror}", "check the path, its owner and its mode"
        return Problem(code="file-error", message=message, fix=fix), ExitCode.USAGE
    problem = Problem(
        code="internal-error",
        message=f"this is a mistake in tfdock: {type(error).__name__}: {error}",
        fix="run it again with TFDOCK_DEBUG=1 and report what it prints",
    )
    return problem, ExitCode.INTERNAL


def _version(wanted: bool) -> None:
    if wanted:
        console.say(f"tfdock {__version__}", stream=sys.stdout)
        raise typer.Exit


@app.callback()
def _global(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Build TensorFlow wheels that fit your GPU, in containers, from a short YAML profile."""


# --- what commands share ------------------------------------------------------------------------------------------


def _settings(**flags: Any) -> Settings:
    from tfdock.do import settings

    return settings.load({name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()})


def _preparer(settings: Settings) -> Preparer:
    from tfdock.do.machine import local_machine
    from tfdock.do.prepare import Preparer

    return Preparer(settings, local_machine())


def _engine() -> Engine:
    from tfdock.do.docker_engine import DockerEngine

    return DockerEngine()


# --- check, plan, render, schema ----------------------------------------------------------------------------------


@app.command(epilog="Example: `tfdock check rtx3080 rocm`. Exit status: 0 fine, 2 malformed, 3 cannot work.")
@_command("tfdock.check/1")
def check(profiles: Profiles, knowledge: Knowledge = None, as_json: AsJson = False) -> None:
    """Say whether profiles can be built. Needs no engine and no network."""
    preparer = _preparer(_settings(knowledge=knowledge))
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
        _print_json("tfdock.check/1", not codes, {"profiles": results})
    raise typer.Exit(combined_exit_code(codes))


@app.command(epilog="Example: `tfdock plan rtx3080 --why` shows who chose each value, and why.")
@_command("tfdock.plan/1")
def plan(
    profile: OneProfile,
    why: Annotated[bool, typer.Option("--why", help="Show the source of and the reason for each value.")] = False,
    knowledge: Knowledge = None,
    as_json: AsJson = False,
) -> None:
    """Print exactly what `build` would run. Needs no engine and no network."""
    from tfdock.decide.plan import as_json as plan_json

    prepared = _preparer(_settings(knowledge=knowledge)).prepare(profile)
    if as_json:
        _print_json("tfdock.plan/1", True, plan_json(prepared.plan))
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
@_command("tfdock.render/1")
def render(
    profile: OneProfile,
    output: Annotated[Path, typer.Option("-o", "--output", help="A new or earlier folder of ours.", metavar="DIR")],
    knowledge: Knowledge = None,
    as_json: AsJson = False,
) -> None:
    """Write the build context: the Dockerfile and the files it copies."""
    from tfdock.do.context_folder import write

    prepared = _preparer(_settings(knowledge=knowledge)).prepare(profile)
    files = write(prepared.plan.context, prepared.tree, output)
    if as_json:
        _print_json("tfdock.render/1", True, {"build_id": prepared.plan.build_id, "files": files})
        return
    console.say(str(output / "Dockerfile"), stream=sys.stdout)


@app.command(epilog="Example: `tfdock schema > tfdock.schema.json`, then name it in a profile's first line.")
def schema() -> None:
    """Print the JSON Schema of profiles, for editors."""
    from tfdock.read.profile import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


# --- build --------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: `tfdock build rtx3080 --wheelhouse ~/wheels`. Prints the wheels' paths.")
@_command("tfdock.build/1")
def build(
    profiles: Profiles,
    wheelhouse: Wheelhouse = None,
    cache_dir: CacheDir = None,
    knowledge: Knowledge = None,
    force: Annotated[
        bool, typer.Option("--force", help="Build even what is up to date; fetch the source anew.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build wheels: check, image, fetch, compile, seal. What is up to date is not built again."""
    settings = _settings(wheelhouse=wheelhouse, cache_dir=cache_dir, knowledge=knowledge)
    prepared, results = _prepare_all(_preparer(settings), profiles)
    for result in results:
        _tell_result(result)
    with _stoppable() as stop, _shown_progress() as listen:
        builder = _builder(settings, listen, stop)
        for one in prepared:
            results.append(_build_one(builder, one, force=force))
            _tell_result(results[-1])
    ok = all(result["status"] in ("built", "up-to-date") for result in results)
    if as_json:
        codes = [result.pop("exit_code") for result in results]
        _print_json("tfdock.build/1", ok, {"builds": results})
    else:
        codes = [result["exit_code"] for result in results]
        for result in results:
            for wheel in result["wheels"]:
                console.say(wheel["path"], stream=sys.stdout)
    raise typer.Exit(combined_exit_code(codes))


def _prepare_all(preparer: Preparer, names: list[str]) -> tuple[list[Prepared], list[dict[str, Any]]]:
    """Plan all profiles before anything starts; those refused become results at once."""
    prepared: list[Prepared] = []
    refused: list[dict[str, Any]] = []
    for name in names:
        try:
            prepared.append(preparer.prepare(name))
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


def _builder(settings: Settings, listen: Any, stop: Stop) -> Builder:
    from tfdock.do.build import Builder

    return Builder(connect=_engine, settings=settings, listen=listen, stop=stop)


def _build_one(builder: Builder, prepared: Prepared, *, force: bool) -> dict[str, Any]:
    builder.log = None
    try:
        builder.stop.check()
        return _built(prepared, _build_result(builder, prepared, force=force))
    except TfdockError as error:
        from tfdock.errors import Interrupted

        status = "interrupted" if isinstance(error, Interrupted) else "failed"
        return _failed(prepared.file, prepared.plan.build_id, status, error, builder.log)


def _build_result(builder: Builder, prepared: Prepared, *, force: bool) -> BuildResult:
    """Up to date costs neither an engine nor its SDK."""
    done = None if force else builder.up_to_date(prepared.plan)
    return done or builder.build(prepared.plan, prepared.tree, force=force)


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
        "problems": [asdict(problem) for problem in error.problems],
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
        console.show_problems(Problem(**problem) for problem in result["problems"])
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
def _shown_progress() -> Iterator[Any]:
    progress = console.progress_for(sys.stderr)
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def _stoppable() -> Iterator[Stop]:
    """Count SIGINT and SIGTERM instead of dying of them; the build looks at the count twice a second."""
    from tfdock.do.watch import Stop

    stop = Stop()

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


# --- shell, doctor ------------------------------------------------------------------------------------------------


@app.command(
    epilog="Example: `tfdock shell debug`, then `bazel build …` or `gdb python3`; or `tfdock shell debug ls -la`.",
    # What follows the profile is the command, its options included.
    context_settings={"allow_interspersed_args": False},
)
@_command("tfdock.shell/1")
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
    settings = _settings(cache_dir=cache_dir, knowledge=knowledge)
    prepared = _preparer(settings).prepare(profile)
    with _shown_progress() as listen:
        builder = _builder(settings, listen, _no_stop())
        status = builder.shell(prepared.plan, prepared.tree, tuple(command or ("/bin/bash",)), ready=listen.close)
    raise typer.Exit(status)


def _no_stop() -> Stop:
    from tfdock.do.watch import Stop

    return Stop()


@app.command(epilog="Exit status: 0 nothing lacks, 6 no engine, 8 too little memory or disk.")
@_command("tfdock.doctor/1")
def doctor(wheelhouse: Wheelhouse = None, cache_dir: CacheDir = None, as_json: AsJson = False) -> None:
    """Say what this machine lacks for building, and how to get it."""
    from tfdock.do.doctor import examine

    checks = list(examine(_settings(wheelhouse=wheelhouse, cache_dir=cache_dir), _engine()))
    failed = [check for check in checks if check.status == "failed"]
    if as_json:
        _print_json("tfdock.doctor/1", not failed, {"checks": [asdict(check) for check in checks]})
    else:
        style = console.Style(sys.stdout)
        paint = {"ok": style.good, "warning": style.warn, "failed": style.bad}
        for one in checks:
            console.say(f"{paint[one.status](f'{one.status:<7}')}  {one.name}: {one.found}", stream=sys.stdout)
            if one.status != "ok":
                console.say(f"         fix: {one.fix}", stream=sys.stdout)
    raise typer.Exit(combined_exit_code(check.exit_code for check in failed))
