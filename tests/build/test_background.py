"""Builds in the background, as `tfdock status` and `tfdock logs` show them, and the command at their end."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from waits import wait_until

from .conftest import EditedTree
from .harness import PLAYED_BUILD, Json, Tfdock, write_profile
from .test_failures import SLOW_COMPILE

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]


@pytest.fixture
def detached(tfdock: Tfdock, tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Start builds in the background; return the process, and the file that its end writes."""
    told, program = tmp_path / "told", tmp_path / "tell it"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >'{told}.part' && mv '{told}.part' '{told}'\n")
    program.chmod(0o700)
    # A process of its own: the child of one that runs many commands would inherit their pipes.
    command = replace(tfdock, prefix=("env",))

    def start(*words: str | Path) -> tuple[int, Path]:
        done = command.run("build", "--detach", "--notify", f"'{program}'", *words, code=0)
        assert done.stdout == ""
        (process,) = re.findall(r"process (\d+) builds in the background", done.stderr)
        return int(process), told

    return start


def runs(tfdock: Tfdock) -> list[Json]:
    found: list[Json] = tfdock.run("status", "--json", code=0).document["runs"]
    return found


def test_a_build_goes_on_after_its_command_and_tells_its_end(
    tfdock: Tfdock, played: EditedTree, detached: Callable[..., tuple[int, Path]]
) -> None:
    process, told = detached(played({}))
    wait_until(lambda: runs(tfdock), 60)
    followed = tfdock.run("logs", "-f", code=0)
    wait_until(told.is_file, 60)
    (run,) = runs(tfdock)
    assert (run["state"], run["process"]) == ("built", "")
    assert told.read_text().splitlines() == ["built", run["build_id"]]
    assert f"built  {run['build_id']}" in followed.stderr
    assert "=== tfdock: compile of" in tfdock.run("logs", run["run"], code=0).stdout
    assert [name for name in tfdock.visible if name.endswith(".whl")]
    assert not Path(f"/proc/{process}/cmdline").is_file() or not Path(f"/proc/{process}/cmdline").read_bytes()


def test_status_shows_what_a_build_does_and_a_kill_stops_it_cleanly(
    tfdock: Tfdock, played: EditedTree, detached: Callable[..., tuple[int, Path]]
) -> None:
    process, told = detached(played(SLOW_COMPILE))

    def compiling() -> bool:
        return any(run["phase"] == "compile" and run["done"] is not None for run in runs(tfdock))

    wait_until(compiling, 120)
    (run,) = runs(tfdock)
    assert run["state"] == "running"
    assert f"process {process} " in f"{run['process']} "
    assert 0 < run["done"] <= run["total"]
    assert run["build_id"] in tfdock.run("status", code=0).stdout
    os.kill(process, signal.SIGTERM)
    wait_until(told.is_file, 60)
    assert told.read_text().splitlines() == ["interrupted", run["build_id"]]
    (ended,) = runs(tfdock)
    assert (ended["state"], ended["run"]) == ("stopped", run["run"])
    assert tfdock.leftovers == []


def test_a_build_that_waits_is_shown_and_one_that_ends_before_its_run_says_why(
    tfdock: Tfdock, played: Callable[..., Path], detached: Callable[..., tuple[int, Path]]
) -> None:
    first = played(SLOW_COMPILE)
    second = played({}, name="second")
    process, told = detached(first, second)
    wait_until(lambda: [run["state"] for run in runs(tfdock)] == ["running", "waiting"], 60)
    waiting = runs(tfdock)[1]
    assert (waiting["profile"], f"process {process} " in f"{waiting['process']} ") == ("second.yaml", True)
    assert waiting["build_id"] in tfdock.run("status", code=0).stdout
    # The first build has the lock.
    time.sleep(1)
    detached(first)
    wait_until(told.is_file, 60)
    assert told.read_text().splitlines()[0] == "failed"
    (failed,) = (run for run in runs(tfdock) if run["state"] == "failed")
    assert "another run is building" in failed["reason"]
    assert "[build-locked]" in tfdock.run("logs", failed["run"], code=0).stdout
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: [run["state"] for run in runs(tfdock) if run["state"] != "failed"] == ["killed"] * 2, 60)
    tfdock.run("doctor", "--fix")
    assert tfdock.leftovers == []


def test_a_matrix_is_planned_before_it_is_built_in_the_background(
    tfdock: Tfdock, played: EditedTree, detached: Callable[..., tuple[int, Path]], tmp_path: Path
) -> None:
    played({})
    write_profile(tmp_path / "base.yaml", tmp_path / "played", **PLAYED_BUILD)
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text("schema: 1\nbase: base.yaml\naxes:\n  pythons: ['3.11']\n")
    refused = tfdock.run("build", "--detach", "--matrix", matrix, code=2)
    assert "in the background" not in refused.stderr
    matrix.write_text("schema: 1\nbase: base.yaml\naxes:\n  python: ['3.11']\n")
    _, told = detached("--matrix", matrix)
    wait_until(told.is_file, 60)
    (run,) = runs(tfdock)
    assert told.read_text().splitlines() == ["built", run["build_id"]]
