"""The command line as tests call it: words in, a result out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import tfdock.cli.main  # noqa: F401 - it makes the application whole
from tfdock.cli.app import app


def run(*words: str | Path, **variables: str) -> Result:
    """Run `tfdock` with these words and variables, without colours, and with the shipped knowledge alone."""
    environment = {"COLUMNS": "400", "NO_COLOR": "1", "TFDOCK_KNOWLEDGE": "", **variables}
    return CliRunner().invoke(app, [*map(str, words)], env=environment)


def document(result: Result, schema: str) -> dict[str, Any]:
    """Return the document that `--json` has printed, which begins with its schema."""
    found: dict[str, Any] = json.loads(result.stdout)
    assert list(found)[:2] == ["schema", "ok"]
    assert found["schema"] == schema
    return found
