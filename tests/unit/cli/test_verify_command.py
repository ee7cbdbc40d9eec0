"""`tfdock verify` without an engine: its documents where little or nothing could be found out."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import Result

from .. import command_line
from ..small_wheels import NAME, wheel_of


def run(wheel: bytes, folder: Path, *words: str | Path) -> Result:
    path = folder / NAME
    path.write_bytes(wheel)
    nobody = "tcp://127.0.0.1:1"
    return command_line.run("verify", path, "--cache-dir", folder / "cache", *words, DOCKER_HOST=nobody)


def test_of_a_wheel_that_cannot_be_read_no_gpu_code_is_told(tmp_path: Path) -> None:
    result = run(b"PK\3\4 and no more", tmp_path, "--no-run", "--json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["gpu_code"] is None


def test_the_document_says_that_no_engine_answers(tmp_path: Path) -> None:
    result = run(wheel_of({}), tmp_path, "--json")
    assert result.exit_code == 6
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["code"] == "engine-unavailable"
    assert "no container engine answers at tcp://127.0.0.1:1" in problem["message"]


def test_the_last_line_counts_and_a_reason_is_told_once(tmp_path: Path) -> None:
    result = run(wheel_of({}), tmp_path, "--no-run")
    *rows, last = result.stdout.splitlines()
    skipped = [row for row in rows if " skipped " in row]
    assert last.endswith(f", {len(skipped)} skipped: {NAME}")
    asked = "`--no-run` was given"
    first = next(at for at, row in enumerate(skipped) if asked in row)
    assert len(skipped) - first > 10
    assert all(row.endswith(" as above") for row in skipped[first + 1 :])
