"""The commands `status` and `logs`, and the options of `build` for long builds, without an engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result
from waits import first_line
from wheelhouses import made

from tfdock.errors import Problem
from tfdock.host import background
from tfdock.host.background import notify
from tfdock.run.journal import RunEntry, running, staging_folder
from tfdock.types import BuildId
from tfdock.wheelhouse.run_states import BuildNotes

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
        (["--detach", "--json"], "`--detach` prints no JSON"),
        (["--notify", "no-such-program-here x"], "was not found"),
        (["--notify", "echo 'x"], "quotes that do not match"),
        (["--notify", ""], "was not found"),
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
    [
        ("true", ""),
        ("sh -c 'exit 3'", "ended with exit status 3"),
        ("/no/such/program", "cannot be run"),
    ],
)
def test_a_failed_notification_is_a_warning(command: str, why: str) -> None:
    problem = notify(command, "built", "tf2.18.0")
    assert (problem is None) is (not why)
    if problem:
        assert (problem.code, problem.severity) == ("notify-failed", "warning")
        assert why in problem.message


def test_a_notification_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_PATIENCE", 0.1)
    problem = notify("sh -c 'exec sleep 900'", "built", "tf2.18.0")
    assert problem
    assert problem.message == "`sh -c 'exec sleep 900'` did not end within 0.1 s, and was killed"


OWN = "tf2.18.0-mine"
LIVING = "20260301-090000-bbbbbb"


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Path]:
    """A run of this process that goes on; its log."""
    folder = tmp_path / "wheelhouse/.tfdock" / OWN / "0123456789ab"
    folder.mkdir(parents=True)
    document = {"schema": "tfdock.run/1", "build_id": OWN, "started": "2026-03-01T09:00:00+00:00", "profile": {}}
    (folder / f"{LIVING}.run.json").write_text(json.dumps(document))
    log = folder / f"{LIVING}.log"
    log.write_text("=== tfdock: compile of it\n")
    staging = staging_folder(tmp_path / "wheelhouse", LIVING)
    with running(tmp_path / "state", RunEntry(run=LIVING, build_id=OWN, staging=str(staging), output="")):
        yield log


@pytest.fixture
def follower(run: Run, living: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`tfdock logs -f` of that run, which has printed the first line."""
    assert run("logs").stdout == living.read_text()
    environment = {"PATH": os.environ["PATH"], "TFDOCK_STATE_DIR": str(tmp_path / "state")}
    with subprocess.Popen(
        [sys.executable, "-m", "tfdock", "logs", "-f"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert first_line(process) == "=== tfdock: compile of it\n"
        yield process
        process.kill()


def test_ctrl_c_ends_the_follower_and_says_that_the_build_continues(follower: subprocess.Popen[str]) -> None:
    follower.send_signal(signal.SIGINT)
    _, said = follower.communicate(timeout=30)
    assert (follower.returncode, said) == (130, "\nthe build continues; `tfdock status` shows it\n")


def test_a_reader_that_leaves_ends_the_follower(living: Path, follower: subprocess.Popen[str]) -> None:
    assert follower.stdout
    follower.stdout.close()
    with living.open("a") as log:
        log.write("more\n")
    assert follower.wait(30) == 0


def test_a_letter_that_comes_in_two_pieces_is_one_letter(living: Path, follower: subprocess.Popen[str]) -> None:
    assert follower.stdout
    with living.open("ab", buffering=0) as log:
        log.write("first\nÜbers".encode()[:7])
        assert first_line(follower) == "first\n"
        log.write("Übersetzt\n".encode()[1:])
    assert first_line(follower) == "Übersetzt\n"


def test_a_run_whose_log_was_deleted_is_shown_while_it_runs(run: Run, living: Path) -> None:
    living.unlink()
    assert run("status").stdout.splitlines()[0] == f"running  {OWN}"
    gone = run("logs")
    assert gone.exit_code == 2
    assert "is gone [run-not-found]" in gone.stderr


def note_command(name: str, **ends: dict[str, Any] | None) -> None:
    """Leave the files of a background command that has ended: its builds, and how they ended if they did."""
    output = Path(f"state/detached/{name}.txt")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("its output\n")
    notes = BuildNotes(output, {BuildId(build_id): "p/my.yaml" for build_id in ends})
    for build_id, end in ends.items():
        if end:
            notes.end({"build_id": build_id, "log": None, "problems": [Problem("x", "no room\nmore")], **end})


def test_a_background_build_that_had_no_run_is_shown_with_its_end_and_output(run: Run) -> None:
    note_command(
        "20260301-080000-cccccc",
        tf1=None,
        tf2={"status": "refused"},
        tf3={"status": "interrupted"},
        tf4={"status": "up-to-date", "problems": []},
        tf5={"status": "failed", "log": "a log"},
    )
    rows = [line.split(maxsplit=4) for line in run("status").stdout.splitlines()]
    shown = {row[4]: row[0] for row in rows}
    assert shown == {"tf2: no room": "failed", "tf3: no room": "stopped", "tf1": "killed"}
    assert run("logs", "my").stdout == "its output\n"


@pytest.mark.usefixtures("living")
def test_a_background_build_that_has_a_run_is_shown_once(run: Run) -> None:
    note_command("20260301-085959-cccccc", **{OWN: None})
    note_command("20260301-090001-cccccc", **{OWN: {"status": "failed"}})
    shown = json.loads(run("status", "--json").stdout)["runs"]
    assert [(row["state"], row["run"]) for row in shown] == [
        ("running", LIVING),
        ("failed", "20260301-090001-cccccc"),
    ]


def test_status_needs_no_state_folder(run: Run, tmp_path: Path) -> None:
    built = made(Path("wheelhouse"))
    (tmp_path / "state").write_text("a file")
    assert built.build_id in run("status").stdout


def test_a_strange_wheelhouse_names_no_file_elsewhere_and_steers_no_terminal(run: Run) -> None:
    strange = made(Path("wheelhouse"))
    record = json.loads(strange.record.read_text())
    strange.record.write_text(json.dumps({**record, "log": "../../../../secret"}))
    name = "20260201-090000-aaaaaa"
    document = {"schema": "tfdock.run/1", "build_id": "\x1b]0;x\x07", "started": "\x1b[2J", "profile": {}}
    (strange.record.parent / f"{name}.run.json").write_text(json.dumps(document))
    (line,) = run("status").stdout.splitlines()
    assert line.isprintable()
    assert name in line


def test_a_profile_finds_a_build_that_ended_well(run: Run, tmp_path: Path) -> None:
    profile = "schema: 1\ntensorflow: '2.18.0'\npython: '3.11'\naccelerator: cpu\n"
    (tmp_path / "mine.yaml").write_text(profile)
    build_id = json.loads(run("check", "--json", "mine.yaml").stdout)["profiles"][0]["build_id"]
    built = made(Path("wheelhouse"), words="cpu")
    assert built.build_id == build_id
    log = built.record.parent / json.loads(built.record.read_text())["log"]
    log.write_text("it went well\n")
    assert run("logs", "mine.yaml").stdout == "it went well\n"
    assert run("logs", "rtx3080").exit_code == 2


def test_a_matrix_without_a_missing_wheel_is_no_failure(run: Run) -> None:
    profile = "schema: 1\nprofile: {tensorflow: '2.18.0', accelerator: cpu}\naxes: {python: ['3.11']}\n"
    Path("matrix.yaml").write_text(profile)
    done = run("build", "--matrix", "matrix.yaml", "--only", "none-*", "--notify", "touch")
    assert done.exit_code == 0
    assert Path("nothing built").is_file()
