"""Problems that need a broken file, machine or program to be seen: each is provoked once, by its code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from tfdock.cli import console, main
from tfdock.errors import ExitCode, Incompatible, TfdockError
from tfdock.host.files import file_error
from tfdock.knowledge import loader
from tfdock.knowledge.release_rows import Cost
from tfdock.plan.resources import BuildResources
from tfdock.run.phase_errors import PhaseErrors

from ..command_line import run
from ..desk import MADE_UP_TABLES, Desk, knowledge_of

CPU = 'schema: 1\ntensorflow: "2.18.0"\n'


def check(*words: str | Path) -> str:
    """What `check` says on standard error."""
    result = run("check", *words)
    assert result.exit_code == ExitCode.USAGE, result.stderr
    return result.stderr


def test_a_profile_that_is_not_text_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "wheel.whl"
    path.write_bytes(b"PK\x03\x04\xff\xfe")
    assert "[profile-unreadable]" in check(path)


def test_a_patch_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text('schema: 1\ntensorflow: {release: "2.18.0", patches: [lost.patch]}\n')
    said = check(path)
    assert "[source-missing]" in said
    assert "`lost.patch`" in said


def test_patches_of_more_bytes_than_any_source_needs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdock.plan.prepare._MOST_PATCHES", 100)
    (tmp_path / "a.patch").write_text("diff --git a/x b/x\n" + "x" * 60)
    # The same file by two names is two patches.
    profile = tmp_path / "p.yaml"
    profile.write_text('schema: 1\ntensorflow: {release: "2.18.0", patches: [a.patch, ./a.patch]}\n')
    assert "the patches have more than 100 bytes together" in check(profile)


@pytest.mark.slow
def test_a_patch_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path, patch = tmp_path / "x.yaml", tmp_path / "mine.patch"
    path.write_text('schema: 1\ntensorflow: {release: "2.18.0", patches: [mine.patch]}\n')
    patch.touch(mode=0)
    # Root reads everything, unless that capability is taken away.
    as_others = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*as_others, sys.executable, "-m", "tfdock", "check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.USAGE
    assert "mine.patch: error: cannot be read: Permission denied [file-unreadable]" in " ".join(done.stderr.split())


def test_whatever_cannot_be_read_on_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "some/file")

    monkeypatch.setattr("tfdock.plan.prepare.read_local", unreadable)
    path = tmp_path / "x.yaml"
    path.write_text(CPU)
    said = check(path)
    assert "some/file: error: cannot be read: Permission denied [file-unreadable]" in said


def test_a_knowledge_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "todo.yaml").write_text("- much\n")
    for folder in (tmp_path, tmp_path / "todo.yaml", tmp_path / "nowhere"):
        with pytest.raises(TfdockError) as caught:
            loader.knowledge([folder])
        assert caught.value.problems[0].code == "knowledge-folder"


def test_a_machine_for_which_no_image_is_known_is_told_which_are(desk: Desk) -> None:
    with pytest.raises(Incompatible) as caught:
        desk.resolve(CPU, machine="riscv64")
    (problem,) = caught.value.problems
    assert problem.code == "machine-unsupported"
    assert "x86_64" in problem.why


def test_a_gpu_compiler_that_nobody_has_tried_is_not_trusted() -> None:
    row = MADE_UP_TABLES["compilers"].replace("source: x", 'source: x, unverified: "nobody tried"')
    desk = Desk(knowledge=knowledge_of(MADE_UP_TABLES | {"compilers": row}), templates={})
    text = 'schema: 1\ntensorflow: "9.9.1"\npython: "3.11"\ngpus: [one]\ncompiler: clang\n'
    (problem,) = desk.problems(text)
    assert (problem.code, problem.why) == ("compiler-untested", "nobody tried")


def failures(phase: str, *tail: str) -> PhaseErrors:
    resources = BuildResources(jobs=4, cpus=4, memory=8 << 30, pids=4096, disk=1 << 30, time_limit=None)
    cost = Cost(memory_per_job_mib=2560, disk_gib=1)
    return PhaseErrors(phase=phase, resources=resources, cost=cost, log=None, tail=tail, errors=(), folders={})


@pytest.mark.parametrize(("phase", "code"), [("fetch", "fetch-failed"), ("compile", "compile-failed")])
def test_a_bazel_that_stops_for_reasons_of_its_own_names_the_phase(phase: str, code: str) -> None:
    error = failures(phase, "ERROR: no such target '//:x'").container_error(1, memory=False)
    assert (error.exit_code, error.problems[0].code) == (ExitCode.BUILD_FAILED, code)
    assert "no such target '//:x'" in error.problems[0].message


def test_a_file_of_ours_that_cannot_be_written_is_named() -> None:
    error = file_error(PermissionError(errno.EACCES, "Permission denied", "/srv/x"), {})
    assert error.problems[0].code == "file-error"
    assert "/srv/x" in error.problems[0].message


def test_what_nobody_expected_is_a_mistake_of_ours_and_ends_with_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise KeyError("ghost")

    monkeypatch.setattr(main, "app", broken)
    # The program ends after `main`, and ignores signals from there on; this process goes on.
    monkeypatch.setattr(main, "signal", mock.Mock())
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == ExitCode.INTERNAL
    said = capsys.readouterr().err
    assert "KeyError: 'ghost'" in said
    assert "[internal-error]" in said


@pytest.mark.parametrize(("status", "shown"), [(0, ""), (1, "note: four jobs\n")])
def test_the_notes_of_a_quiet_command_follow_if_it_fails(
    status: int, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noting() -> None:
        console.say("note: four jobs")
        sys.exit(status)

    monkeypatch.setattr(main, "app", noting)
    monkeypatch.setattr(main, "signal", mock.Mock())
    console.set_verbosity(-1)
    with pytest.raises(SystemExit):
        main.main()
    console.set_verbosity(0)
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_after_the_answer_changes_nothing(number: signal.Signals) -> None:
    # Python runs these when it ends, after `main`.
    late = f"import atexit, os; atexit.register(os.kill, os.getpid(), {number}); "
    command = [sys.executable, "-c", late + "from tfdock.cli.main import main; main()", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tfdock ")


@pytest.mark.parametrize(("name", "code"), [("rtx3080", 0), ("nowhere.yaml", 2)])
def test_messages_that_fit_on_no_disk_do_not_end_a_command(name: str, code: int) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "tfdock", "check", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert done.stdout.startswith("rtx3080: ok, ") is (code == 0)
