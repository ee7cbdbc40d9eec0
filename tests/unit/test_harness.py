"""What waits for a command ends with the command, and says what it printed."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
from build import harness
from build.harness import Running

FOREVER = 3600.0


def started(script: str) -> Running:
    command = ["sh", "-c", script]
    pipe = subprocess.PIPE
    return Running(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True))


def test_a_line_of_a_command_that_has_ended_is_not_waited_for() -> None:
    with pytest.raises(AssertionError, match="ended before that, with exit code 3") as error:
        started("echo refused >&2; echo '{}'; exit 3").wait_for("compile …", FOREVER)
    assert error.value.__notes__ == ["'compile …' was not printed\nthe command ended with 3:\nrefused\n{}\n"]


def test_nothing_that_a_command_should_do_is_waited_for_when_it_has_ended() -> None:
    with pytest.raises(AssertionError, match="ended before that, with exit code 1"):
        started("exit 1").until(lambda: False, FOREVER)


def test_what_a_command_did_last_is_seen(tmp_path: Path) -> None:
    running = started(f"echo on its way >&2; touch {tmp_path}/made; echo last >&2")
    running.wait_for("last", FOREVER)
    running.until((tmp_path / "made").exists, FOREVER)
    assert running.finish(FOREVER).stderr == "on its way\nlast\n"


def test_a_command_that_does_not_end_is_told_to_and_what_it_printed_is_said(tmp_path: Path) -> None:
    running = started(f"trap 'touch {tmp_path}/cleaned; exit' TERM; echo here >&2; while :; do sleep 0.1; done")
    running.wait_for("here", FOREVER)
    with pytest.raises(subprocess.TimeoutExpired) as error:
        running.finish(0)
    assert error.value.__notes__ == ["\nthe command runs:\nhere\n"]
    assert (tmp_path / "cleaned").exists()


def test_a_command_that_cannot_be_told_to_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "STOP", 0.1)
    running = started("trap '' TERM; echo here >&2; while :; do sleep 0.1; done")
    running.wait_for("here", FOREVER)
    with pytest.raises(AssertionError, match="did not happen within 0 s"):
        running.until(lambda: False, 0)
    assert running.process.poll() == -signal.SIGKILL


def test_who_holds_the_output_of_a_command_that_has_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DRAIN", 0.1)
    running = started(f"sleep {FOREVER:.0f} & echo $! >&2")
    with pytest.raises(AssertionError, match=r"still held open by \{\d+: 'sleep 3600'\}") as error:
        running.finish(FOREVER)
    (number,) = re.findall(r"\{(\d+):", str(error.value))
    assert f":\n{number}\n" in error.value.__notes__[0]
    subprocess.run(["kill", number], check=True)
