"""The program: the commands together, and what becomes of an error that nobody expected."""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import Annotated

import typer

from tfdock import __version__
from tfdock.errors import ExitCode, Problem
from tfdock.talk import console
from tfdock.talk.app import app
from tfdock.talk.commands import advise, build, check, doctor, init, know, lock

# Importing a module registers its commands; `--help` lists them in the order in which one meets them.
COMMANDS = (advise, build, check, doctor, init, know, lock)
_ORDER = (
    "advise", "init", "check", "plan", "render", "lock", "build", "shell", "doctor", "gpus", "releases", "explain",
    "schema",
)  # fmt: skip
app.registered_commands.sort(key=lambda command: _ORDER.index(getattr(command.callback, "__name__", "")))


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
