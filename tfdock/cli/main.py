"""Start the program, and turn unexpected errors into messages and exit codes."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tfdock import __version__
from tfdock.cli import console
from tfdock.cli.lazy_commands import app
from tfdock.errors import ExitCode, Problem


def main() -> None:
    """Run the command line; the only place where an unexpected error becomes an exit code."""
    # Planning makes many small objects that live to the end. Garbage collection would take a tenth of the time.
    gc.set_threshold(100_000)
    # Plugins of pydantic would be code of other packages in each check. The search for them takes as long again.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    open_streams()
    # As in git and uv, `help` is the same as `--help`.
    if sys.argv[1:2] == ["help"]:
        sys.argv[1:] = [*sys.argv[2:], "--help"]
    try:
        app()
    except SystemExit as ended:
        if ended.code:
            console.release()
        raise
    except KeyboardInterrupt:
        console.say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        if console.verbosity > 0:
            raise
        problem, code = _unexpected(error)
        console.show_problems([problem])
        sys.exit(code)
    finally:
        # The result is printed. A signal while Python exits would only change the exit code.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


class _Output(io.FileIO):
    """A standard stream whose reader may close it (`| head`): the rest is dropped, and the command goes on.

    The command line's library would turn a broken pipe into exit status 1, which means "a build failed". A build must
    not fail because its log has no reader or the disk is full.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # 2 is standard error. A lost result is an error, and `main` reports it.
            if not isinstance(error, BrokenPipeError) and self.fileno() != 2:
                raise
            _abandon(self.fileno())
            # The descriptor now leads to the null device, so this write succeeds.
            return super().write(data)


def open_streams() -> None:
    """Open the standard streams that the caller closed. Allow a reader of the output to exit early."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # `open` returns the lowest free descriptor, which is the stream's. Child processes inherit it.
            stream = io.TextIOWrapper(io.FileIO(os.devnull, mode), encoding="utf-8")
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # otherwise the stream was replaced, for example by a test
            setattr(sys, name, _forgiving(stream))


def _forgiving(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return the same stream through `_Output`."""
    return io.TextIOWrapper(
        # Python's original stream still has the descriptor and closes it.
        io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        # A file name may have characters that this encoding lacks.
        errors="backslashreplace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.line_buffering,
    )


def _abandon(descriptor: int) -> None:
    """Redirect a broken stream to the null device, so that Python reports no error when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _unexpected(error: Exception) -> tuple[Problem, ExitCode]:
    """Return the problem and exit code of an unexpected error, such as standard output on a full disk."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        # Otherwise Python fails again when it flushes the stream at exit.
        _abandon(sys.stdout.fileno())
        problem = Problem(
            "disk-full",
            f"cannot write to {error.filename or 'standard output'}: {error.strerror}",
            "free disk space, or write to another disk; finished work is kept",
        )
        return problem, ExitCode.RESOURCES
    if isinstance(error, FileNotFoundError) and not _has_working_folder():
        message, fix = "the current folder was deleted", "go to another folder: `cd`"
        return Problem("file-error", message, fix), ExitCode.USAGE
    if isinstance(error, OSError) and error.filename:
        message, fix = f"{error.filename}: {error.strerror}", "check the path, its owner and its permissions"
        return Problem("file-error", message, fix), ExitCode.USAGE
    problem = Problem(
        "internal-error",
        f"internal error, a bug in tfdock: {type(error).__name__}: {error}",
        "run the command again with `-v` and report its output",
    )
    return problem, ExitCode.INTERNAL


def _has_working_folder() -> bool:
    try:
        return Path.cwd().is_dir()
    except FileNotFoundError:
        return False


def _version(wanted: bool) -> None:
    if wanted:
        console.say(f"tfdock {__version__}", stream=sys.stdout)
        raise typer.Exit


def _colour(when: str | None) -> None:
    if when in ("always", "never"):
        os.environ.pop("NO_COLOR", None)  # NO_COLOR overrides FORCE_COLOR
        os.environ["NO_COLOR" if when == "never" else "FORCE_COLOR"] = "1"


def _verbosity(context: typer.Context, option: typer.CallbackParam, wanted: bool) -> None:
    level = {"quiet": -1, "verbose": 1}[str(option.name)]
    if wanted:
        console.set_verbosity(level)
    # Options before a command also reset the level: several commands may run in one process.
    elif context.parent is None and console.verbosity == level:
        console.set_verbosity(0)


@app.callback()
def _global(
    _: Annotated[
        bool, typer.Option("-V", "--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    color: Annotated[
        Literal["auto", "always", "never"] | None,
        typer.Option(metavar="WHEN", help="Colour: `auto`, `always`, `never`.", callback=_colour, expose_value=False),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "-q",
            "--quiet",
            help="Print results and errors only. If a command fails, its notes are printed too.",
            callback=_verbosity,
            expose_value=False,
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "-v",
            "--verbose",
            help="Print details: each line of a build's output, harmless warnings of a log, a bug's stack trace.",
            callback=_verbosity,
            expose_value=False,
        ),
    ] = False,
) -> None:
    """Build TensorFlow wheels that fit your GPU, in containers, from a short YAML profile."""
