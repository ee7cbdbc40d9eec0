"""A command from a warm process answers as one from nothing does."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from build import warm
from build.harness import Tfdock, silent_server


@pytest.mark.parametrize(
    "words",
    [
        "--version", "check rtx3080", "check rtx3080 --json", "check nothing.yaml", "build", "no-such-command",
        "explain --help", "gpus rtx3080", "build rtx3080",
    ],
)  # fmt: skip
def test_it_answers_as_one_from_nothing_does(alone: Tfdock, words: str) -> None:
    warmed, cold = (command.run(*words.split()) for command in (alone, replace(alone, prefix=("env",))))
    assert (warmed.code, warmed.stdout, warmed.stderr) == (cold.code, cold.stdout, cold.stderr)


def test_it_is_a_child_of_the_tests_in_a_session_of_its_own(alone: Tfdock) -> None:
    with silent_server() as address:
        running = alone.start("pull", f"{address}/some/wheel:1")
        assert isinstance(running.process, warm.Started)
        pid = running.process.pid
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        assert (int(state[1]), int(state[3]), os.getpgid(pid)) == (os.getpid(), pid, pid)
        assert {Path(f"/proc/{pid}/fd/{name}").exists() for name in (0, 1, 2)} == {True}
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0)
        assert running.end_by(signal.SIGKILL).code == -signal.SIGKILL
    assert not Path(f"/proc/{pid}").exists()


def test_variables_of_the_interpreter_and_words_before_the_command_make_one_from_nothing(alone: Tfdock) -> None:
    alone.home.mkdir()
    for other in (alone.impatient(1), replace(alone, prefix=("env",))):
        running = other.start("--version")
        assert isinstance(running.process, subprocess.Popen)
        assert running.finish().code == 0


def test_several_at_once_are_each_the_child_of_who_started_it(alone: Tfdock) -> None:
    words = [("--version",), ("no-such-command",), ("check", "nothing.yaml")] * 4
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda each: alone.run(*each), words))
    assert [outcome.code for outcome in outcomes] == [0, 2, 2] * 4


def test_where_the_warm_process_is_gone_one_from_nothing_is_started(alone: Tfdock) -> None:
    assert alone.run("--version").code == 0
    told = tuple(sorted(item for item in alone.environment.items() if item[0].startswith(warm._INTERPRETER)))
    warm._server(told, os.getpid())._process.kill()
    warm._server(told, os.getpid())._process.wait()
    assert [alone.run("--version").code for _ in range(2)] == [0, 0]
