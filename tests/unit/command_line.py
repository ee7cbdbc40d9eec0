"""The command line as tests call it: words in, a result out."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import tfdock.cli.main  # noqa: F401 - it makes the application whole
from tfdock.cli.app import app
from tfdock.cli.console import columns_of


def run(*words: str | Path, stdin: str | bytes | None = None, **variables: str) -> Result:
    """Run `tfdock` with these words and variables, without colours, and with the shipped knowledge alone."""
    environment = {"COLUMNS": "400", "NO_COLOR": "1", "TFDOCK_KNOWLEDGE": "", **variables}
    return CliRunner().invoke(app, [*map(str, words)], env=environment, input=stdin)


def document(result: Result, schema: str) -> dict[str, Any]:
    """Return the document that `--json` has printed, which begins with its schema."""
    found: dict[str, Any] = json.loads(result.stdout)
    assert list(found)[:2] == ["schema", "ok"]
    assert found["schema"] == schema
    return found


def too_wide(lines: Iterable[str], columns: int) -> list[str]:
    """Return the lines that are wider than a terminal, but for one word with code spans."""
    one = re.compile(r"\s*\S*`\S(?:[^`]*\S)?`(?:`[^`]*`|\S)*")
    return [line for line in lines if columns_of(line) > columns and not one.fullmatch(line)]


def at_terminal(folder: Path, *words: str, typed: bytes = b"", **variables: str) -> tuple[int, str]:
    """The exit code and the output of `tfdock` in a folder, at a terminal where somebody types this."""
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "COLUMNS": "200", "NO_COLOR": "1", **variables}
    command = [sys.executable, "-m", "tfdock", *words]
    with subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        os.write(ours, typed)
        seen = b""
        # At the end, the other side has closed the terminal.
        with contextlib.suppress(OSError):
            while True:
                seen += os.read(ours, 4096)
    os.close(ours)
    return process.returncode, seen.decode()
