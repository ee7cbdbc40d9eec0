"""The commands `status` and `logs`, and the options of `build` for long builds, without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result
from wheelhouses import made

from tfdock.host.background import notify

from ..command_line import at_terminal
from ..command_line import run as command_line

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`tfdock` in a folder of its own, with its own settings and no engine."""
    monkeypatch.chdir(tmp_path)
    folders = {
        "HOME": "",
        "TFDOCK_STATE_DIR": "state",
        "TFDOCK_WHEELHOUSE": "wheelhouse",
        "TFDOCK_CACHE_DIR": "cache",
    }
    variables = {name: str(tmp_path / folder) for name, folder in folders.items()}
    return lambda *words: command_line(*words, DOCKER_HOST=f"unix://{tmp_path}/none.sock", **variables)


def test_status_lists_the_newest_builds_first_and_why_one_failed(run: Run) -> None:
    built = made(Path("wheelhouse"), finished="2026-01-02T03:04:05+00:00")
    folder = built.record.parent
    document = {
        "schema": "tfdock.run/1",
        "build_id": built.build_id,
        "started": "2026-02-01T09:00:00+00:00",
        "ended": "2026-02-01T10:00:00+00:00",
        "problems": [{"code": "compile-failed", "message": "phase compile failed\nmore"}],
        "profile": {"file": "my.yaml"},
    }
    (folder / "20260201-090000-aaaaaa.run.json").write_text(json.dumps(document))
    (folder / "20260201-090000-aaaaaa.log").write_text("it broke\n")
    first, second = run("status").stdout.splitlines()
    assert first.split()[0] == "failed"
    assert first.endswith(f"{built.build_id}: phase compile failed")
    assert second.split()[0] == "built"
    assert run("logs").stdout == "it broke\n"
    assert run("logs", "my").stdout == "it broke\n"
    # The newest of the build id is the failed one; its run names it alone.
    assert run("logs", "20260201-090000-aaaaaa").stdout == "it broke\n"


def test_a_run_that_nobody_knows_is_refused_with_the_wheelhouse_that_was_searched(run: Run) -> None:
    assert "no build runs" in run("status").stderr
    for words in (["logs"], ["logs", "rtx9090"]):
        refused = run(*words)
        assert refused.exit_code == 2
        assert "[run-not-found]" in refused.stderr
        assert "wheelhouse" in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--detach", "--json"], "`--detach` prints no document"),
        (["--notify", "no-such-program-here x"], "this program is not found"),
        (["--notify", "echo 'x"], "quotes that do not match"),
        (["--notify", ""], "this program is not found"),
    ],
)
def test_options_that_cannot_work_are_refused_before_the_build(run: Run, words: list[str], says: str) -> None:
    refused = run("build", "cpu-native", *words)
    assert refused.exit_code == 2
    assert says in refused.stderr


def test_a_detached_build_without_an_engine_fails_before_it_detaches(tmp_path: Path) -> None:
    code, printed = at_terminal(
        tmp_path, "build", "rtx3080-tf2.4-cuda11.1", "--detach", DOCKER_HOST=f"unix://{tmp_path}/none.sock"
    )
    assert code == 6
    assert "[engine-unavailable]" in printed
    assert "background" not in printed
    assert not (tmp_path / "wheelhouse").exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [("true", ""), ("sh -c 'exit 3'", "ended with exit status 3"), ("/no/such/program", "cannot be run")],
)
def test_a_failed_notification_is_a_warning(command: str, why: str) -> None:
    problem = notify(command, "built", "tf2.18.0")
    assert (problem is None) is (not why)
    if problem:
        assert (problem.code, problem.severity) == ("notify-failed", "warning")
        assert why in problem.message
