"""What several commands share: options, time limits, stop requests, error reports and JSON output."""

from __future__ import annotations

import functools
import inspect
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tfdock.cli import console
from tfdock.cli.lazy_commands import app as app
from tfdock.errors import ExitCode, ProfileError, TfdockError, document_text
from tfdock.host import hardware, settings
from tfdock.host.settings import Settings
from tfdock.host.supervise import Limit, Stop
from tfdock.profile.units import DURATION, parse_seconds
from tfdock.types import ImageRef

# Imported on use: a command loads no engine SDK, tables or planner that it does not need.
if TYPE_CHECKING:
    from tfdock.engine.protocol import Engine
    from tfdock.knowledge.tables import KnowledgeBase
    from tfdock.plan.prepare import Preparer
    from tfdock.plan.wish import Wish
    from tfdock.verify.wheel_in_container import WheelInContainer

_F = TypeVar("_F", bound=Callable[..., Any])

# --- options --------------------------------------------------------------------------------------------------------

_PROFILES = typer.Argument(help="Profile files, or names of shipped profiles.", metavar="PROFILE…")
_PROFILE = typer.Argument(help="A profile file, or the name of a shipped profile.", metavar="PROFILE")
SomeProfiles = Annotated[list[str] | None, _PROFILES]
OneProfile = Annotated[str, _PROFILE]
SomeProfile = Annotated[str | None, _PROFILE]
ProfileWords = Annotated[list[str] | None, _PROFILE]  #: One profile: unquoted, `RTX 5060` is two arguments.
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
AllowUntested = Annotated[bool, typer.Option("--allow-untested", help="Allow combinations without a known test.")]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Write to the cache of unchanged releases. Later builds of releases may then contain objects compiled "
        "from this source (`tfdock explain trust-shared`).",
    ),
]


def _folder(text: str) -> Path:
    # An unset shell variable gives an empty text. `Path` would read an empty text as the current folder.
    if not text:
        raise typer.BadParameter("the name of the folder is empty; write `.` for the current folder")
    return Path(text)


def _existing(text: str) -> Path:
    path = _folder(text)
    if not path.exists():
        raise typer.BadParameter(f"there is no {text}")
    return path


def _option(kind: Any, name: str, metavar: str, help_: str, parser: Callable[[str], Path] | None = None) -> Any:
    """Return the type of a parameter that is an option, and is None without the option."""
    return Annotated[kind | None, typer.Option(name, metavar=metavar, help=help_, parser=parser)]


MatrixFile = Annotated[
    Path | None, typer.Option("--matrix", help="Build the cells of this matrix instead of profiles.", metavar="FILE")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        help="With --matrix, use only the cells whose build id matches a pattern such as `*-py3.11-*`. Repeatable.",
        metavar="GLOB",
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="With --matrix, write report.html, report.json and junit.xml into this folder.",
        metavar="DIR",
    ),
]

_REGISTRY = "A registry repository with wheel images, such as ghcr.io/me/wheels. Repeatable."
_ALLOW_PATH = "Allow profiles to use files in this folder, outside their project. Repeatable."
_ALLOW_ENDPOINT = "Allow profiles to use this remote cache, executor, registry or git server. Repeatable."
#: Setting -> the command-line option that sets it.
SETTINGS = {
    "registries": _option(list[str], "--registry", "REPOSITORY", _REGISTRY),
    "wheelhouse": _option(
        Path, "--wheelhouse", "DIR", "The folder of finished wheels. The default is ./wheelhouse.", _folder
    ),
    "cache_dir": _option(Path, "--cache-dir", "DIR", "The folder of Bazel's caches.", _folder),
    "knowledge": _option(list[Path], "--knowledge", "DIR", "Also read knowledge tables from this folder."),
    "allow_paths": _option(list[Path], "--allow-path", "DIR", _ALLOW_PATH, _existing),
    "allow_endpoints": _option(list[str], "--allow-endpoint", "URL", _ALLOW_ENDPOINT),
}
_GPU = "Build for this GPU: a name, a compute capability, `cpu` or `local`. Repeatable. Needs no profile."
_SET = "Set a field of the profile, such as `resources.memory=16GiB`. Repeatable."
#: The command-line options that make a wish: a wish changes or replaces a profile.
WISHES = {
    "gpu": _option(list[str], "--gpu", "GPU", _GPU),
    "tensorflow": _option(str, "--tensorflow", "VERSION", "Build this release."),
    "python": _option(str, "--python", "VERSION", "Build for this Python."),
    "cuda": _option(str, "--cuda", "VERSION", "Build with this CUDA."),
    "sets": _option(list[str], "--set", "FIELD=VALUE", _SET),
}


# --- errors and documents -------------------------------------------------------------------------------------------


def command(schema: str, *options: str) -> Callable[[_F], _F]:
    """Make a command report its errors as text, or inside its JSON document.

    `options` names the settings for which the command has an option. The command's function gets the settings as its
    argument `settings`. If it has a parameter `wish`, it also gets the options that change or replace a profile.
    """

    def decorate(function: _F) -> _F:
        wishes = "wish" in inspect.signature(function).parameters

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                if wishes:
                    from tfdock.plan.wish import wish_of

                    kwargs["wish"] = wish_of(**{name: kwargs.pop(name) for name in WISHES})
                if options:
                    kwargs["settings"] = settings_for(**{name: kwargs.pop(name) for name in options})
                return function(*args, **kwargs)
            # Any other error is a bug in tfdock, and `main` reports it.
            except TfdockError as error:
                console.show_problems(error.problems)
                if kwargs.get("as_json") or kwargs.get("format_") == "json":
                    print_json(schema, False, {"problems": error.problems})
                raise typer.Exit(error.exit_code) from error
            except typer.Abort as error:
                # The cursor is still on the line of the question.
                console.say("\ninterrupted")
                raise typer.Exit(ExitCode.INTERRUPTED) from error

        if options:
            wrapper.__signature__ = _with_options(function, options)  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate


def _with_options(function: Callable[..., Any], options: Iterable[str]) -> inspect.Signature:
    """Return the signature from which typer reads the options. Options replace the parameter `settings`."""
    signature = inspect.signature(function, eval_str=True)
    own = {name: parameter for name, parameter in signature.parameters.items() if name not in ("settings", "wish")}
    # `--json` stands last in the help.
    last = [own.pop("as_json")] if "as_json" in own else []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wished = WISHES if "wish" in signature.parameters else {}
    added = {**wished, **{name: SETTINGS[name] for name in options}}
    more = [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in added.items()]
    return signature.replace(parameters=[*own.values(), *more, *last])


def profile_names(profiles: Sequence[str] | None, wish: Wish) -> list[str]:
    """Return the profiles that a command names. If it names none, return the profile that its options describe."""
    if profiles:
        return [*profiles]
    if not wish:
        raise typer.BadParameter("name a profile, or a GPU: `--gpu rtx5090`")
    return [wish.words]


def print_json(schema: str, ok: bool, document: dict[str, Any]) -> None:
    """Print a document of this schema on standard output."""
    sys.stdout.write(document_text({"schema": schema, "ok": ok, **document}))
    sys.stdout.flush()  # flush now: an error on a full disk could not be reported while Python exits


def print_result(
    schema: str, document: dict[str, Any], lines: Iterable[str], *, as_json: bool, ok: bool = True
) -> None:
    """Print the result of a command on standard output: a document of this schema, or else lines for people."""
    if as_json:
        print_json(schema, ok, document)
    else:
        console.say(*lines, stream=sys.stdout)


# --- time limits and stop requests ----------------------------------------------------------------------------------


def limit_from_now(text: str) -> Limit:
    """Return the time limit of a whole command, counted from now. Raise BadParameter for an invalid duration."""
    # Without ASCII, `\d` would also match digits of other scripts.
    if not re.fullmatch(DURATION, text, re.ASCII):
        raise typer.BadParameter(f"`{text}` is not a duration; write it like `5h30m`")
    seconds = parse_seconds(text)
    # A monotonic clock: setting the system clock must not move the deadline.
    return Limit(seconds, time.monotonic() + seconds)


def check_matrix_options(matrix: Path | None, **options: object) -> None:
    """Refuse options that need a matrix if no matrix is given."""
    matrix_options = [f"`--{name}`" for name, value in options.items() if value]
    if matrix_options and not matrix:
        raise typer.BadParameter(
            f"{' and '.join(matrix_options)} only work with a matrix: `--matrix profiles/matrix.yaml`"
        )


@contextmanager
def stoppable(kept: str | None = None) -> Iterator[Stop]:
    """Count SIGINT and SIGTERM instead of exiting. The build reads the count twice a second.

    `kept` tells the user what is kept after the stop. This sentence replaces the usual message about a stopped build.
    """
    stop = Stop(kept=kept) if kept else Stop()

    def request(number: int, _frame: object) -> None:
        # Only count: a signal handler runs between any two instructions, so it must not take a lock.
        stop.requests += 1
        # A hanging engine may delay the second request, so the third ends tfdock. The journal lists leftovers.
        if stop.requests > 2:
            raise KeyboardInterrupt
        # The exit codes of SIGINT and SIGTERM differ, and a service that stops a job may send both.
        stop.terminated = stop.terminated or number == signal.SIGTERM

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        # A command may ask a question afterwards. The first Ctrl-C must end this question.
        for number, handler in previous.items():
            signal.signal(number, handler)


# --- what commands need ---------------------------------------------------------------------------------------------


def settings_for(**flags: Any) -> Settings:
    """Return the settings; the options of a command override them. Warn about misspelt variables."""
    console.show_problems(settings.misspelt(os.environ))
    return settings.load({name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()})


def preparer_for(
    settings: Settings, *, allow_untested: bool = False, trusted: bool = False, wish: Wish | None = None
) -> Preparer:
    """Return the planner for builds on this machine. The planner changes each profile as `wish` says."""
    from tfdock.plan.prepare import Preparer
    from tfdock.plan.wish import NO_WISH

    return Preparer(
        settings, hardware.local_machine(), allow_untested=allow_untested, trusted=trusted, wish=wish or NO_WISH
    )


def parse_reference(text: str, fix: str, option: str = "") -> ImageRef:
    """Return the image or repository that a text names. Raise ProfileError, with this `fix`, for a malformed name.

    `option` is the option that names an image.
    """
    try:
        return ImageRef.parse(text)
    except ValueError as error:
        said = f"`{option} {text}` is not a valid image name" if option else f"`{text}` is not a valid registry name"
        raise ProfileError.of("reference-malformed", said, fix) from error


def knowledge_for(settings: Settings) -> KnowledgeBase:
    """Return the knowledge base, including the rows in the folders that the settings name."""
    from tfdock.knowledge import loader

    return loader.knowledge(settings.knowledge, settings.cache_dir)


def local_engine() -> Engine:
    """Return a connection to the engine. Raise EngineError if no engine is found."""
    from tfdock.engine.docker_engine import DockerEngine

    return DockerEngine()


def is_wheel(place: str) -> bool:
    """Return whether a word of the command line names a wheel."""
    return place.endswith(".whl")


@contextmanager
def installed_wheels(
    settings: Settings, wheels: Sequence[str], phase: str, kept: str, *, with_gpu: bool
) -> Iterator[list[WheelInContainer]]:
    """Install these wheels in one container, and yield them. A wheel that is named twice is installed once.

    `kept` says what is kept after a stop request. Raises EngineError if no engine is found, and the errors of
    `WheelInContainer.install`.
    """
    from tfdock.cli.progress import PlainProgress
    from tfdock.verify.trial_container import TrialRequest, trial_environment
    from tfdock.verify.wheel_in_container import WheelInContainer
    from tfdock.wheel.wheel_file import inspected

    paths = [Path(wheel) for wheel in dict.fromkeys(wheels)]
    inspections = [inspected(path) for path in paths]
    log = settings.cache_dir.absolute() / "verify" / f"{inspections[0].wheel.sha256[:16]}.{phase}.log"
    with stoppable(kept=kept) as stop:
        engine, listen = local_engine(), PlainProgress(sys.stderr)  # no redrawn line: a script also prints lines
        with trial_environment(engine, settings, listen, stop, log, paths[0].name, phase) as environment:
            found = []
            for number, (path, inspection) in enumerate(zip(paths, inspections, strict=True)):
                one = WheelInContainer(environment, knowledge_for(settings), path, inspection, TrialRequest())
                others = [other for other in inspections if other is not inspection]
                one.install(f"wheel-{number}", others, with_gpu=with_gpu)
                found.append(one)
            yield found
