"""`tfdock check --fix`: a way out of a refusal is written into the profile, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import Result

from .. import command_line

TEXT = """\
schema: 1
tensorflow: "2.18.0"   # mine
python: "3.11"

# the card
gpus:
  - rtx5090   # in the box
cuda:  "12.5.1"  # as tested
"""
FIXED = TEXT.replace('"2.18.0"', '"2.20.0"').replace('"12.5.1"', '"12.8.0"')
#: Its only way leaves out a GPU.
BY_HAND = 'schema: 1\ntensorflow: "2.18.0"\ngpus: [rtx3080, gtx680]\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(TEXT)
    return tmp_path


def check(*words: str, text: str = "") -> Result:
    return command_line.run("check", *words, stdin=text, COLUMNS="1000", DOCKER_HOST="unix:///nope")


def test_the_first_way_is_written_and_comments_stay() -> None:
    result = check("--fix", "--yes", "my.yaml")
    assert result.exit_code == 0, result.output
    assert Path("my.yaml").read_text() == FIXED
    assert '-cuda:  "12.5.1"  # as tested\n+cuda:  "12.8.0"  # as tested\n' in result.stderr
    assert result.stdout.startswith("my.yaml: ok, ")
    again = check("--fix", "my.yaml")
    assert again.exit_code == 0
    assert "error:" not in again.stderr
    assert Path("my.yaml").read_text() == FIXED


def test_mode_owner_link_and_line_ends_stay(folder: Path) -> None:
    (folder / "real.yaml").write_bytes(TEXT.replace("\n", "\r\n").encode())
    (folder / "real.yaml").chmod(0o640)
    # Only root may give a file away; others may give it to a group of theirs.
    owner = (12345, 54321) if os.geteuid() == 0 else (os.geteuid(), os.getgroups()[-1])
    os.chown(folder / "real.yaml", *owner)
    Path("link.yaml").symlink_to("real.yaml")
    result = check("--fix", "--yes", "link.yaml")
    assert result.exit_code == 0, result.output
    assert "\n+cuda:" in result.stderr
    assert "\ufffd" not in result.stderr
    assert Path("link.yaml").is_symlink()
    assert (folder / "real.yaml").read_bytes() == FIXED.replace("\n", "\r\n").encode()
    assert (folder / "real.yaml").stat().st_mode & 0o777 == 0o640
    written = (folder / "real.yaml").stat()
    assert (written.st_uid, written.st_gid) == owner


def test_a_document_has_the_change() -> None:
    (row,) = json.loads(check("--fix", "--yes", "--json", "my.yaml").stdout)["profiles"]
    assert (row["ok"], row["problems"]) == (True, [])
    assert row["fixed"] == {"tensorflow": "2.20.0", "cuda": "12.8.0"}


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        (TEXT, [], "there is no terminal to ask which change to make"),
        (TEXT, ["--json"], "there is no terminal to ask which change to make"),
        (BY_HAND, ["--yes"], "every possible change alters the GPUs or allows untested"),
        ("extends: base.yaml\n", ["--yes"], "the profile extends another, or every"),
        (
            "{schema: 1, tensorflow: '2.18.0', gpus: [rtx3080], base: 'ubuntu:22.04'}\n",
            ["--yes"],
            "tfdock cannot change a file with this layout",
        ),
    ],
)
def test_what_nobody_chose_is_not_written(text: str, words: list[str], told: str) -> None:
    Path("base.yaml").write_text(TEXT)
    Path("my.yaml").write_text(text)
    result = check("--fix", *words, "my.yaml")
    assert result.exit_code in (2, 3)
    assert told in result.output
    assert "fix-not-taken" in result.output
    assert Path("my.yaml").read_text() == text


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        (TEXT.replace("   #", "\t#"), FIXED.replace("   #", "\t#")),
        ("\ufeff" + TEXT, "\ufeff" + FIXED),
        (
            "{schema: 1, tensorflow: '2.18.0', gpus: [rtx5090], cuda: '12.5.1'}\n",
            '{schema: 1, tensorflow: "2.20.0", gpus: [rtx5090], cuda: "12.8.0"}\n',
        ),
    ],
)
def test_rare_layouts_are_changed_too(text: str, fixed: str) -> None:
    Path("my.yaml").write_text(text)
    result = check("--fix", "--yes", "my.yaml")
    assert (result.exit_code, Path("my.yaml").read_text()) == (0, fixed), result.output
    assert result.stderr.count("\ufffd") == text.count("\ufeff")


def test_where_no_way_is_known_the_errors_are_all() -> None:
    Path("my.yaml").write_text(TEXT + "cdua: x\n")
    assert check("--fix", "--yes", "my.yaml").stderr == check("my.yaml").stderr


@pytest.mark.slow
def test_a_file_that_may_not_be_written_stays() -> None:
    Path("my.yaml").chmod(0o444)
    # Root writes everything, unless that capability is taken away.
    as_others = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    command = [*as_others, sys.executable, "-m", "tfdock", "check", "--fix", "--yes", "my.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "you may not write to this profile" in " ".join(done.stderr.split())
    assert Path("my.yaml").read_text() == TEXT


def test_a_profile_of_somebody_elses_is_not_written() -> None:
    Path("<stdin>").write_text(TEXT)  # the name that errors have for standard input
    assert "you may not write to this profile" in check("--fix", "--yes", "-", text=TEXT).stderr
    assert Path("<stdin>").read_text() == TEXT
    assert "leave `--python 3.12` out" in check("--fix", "my.yaml", "--python", "3.12").stderr
    assert "answers the question of `--fix`" in check("--yes", "my.yaml").stderr


@pytest.mark.parametrize(("answer", "ways"), [(b"0\n", 0), (b"9\nx\n-1\n\xc2\xb2\n0\n", 0), (b"1\n", 1)])
def test_somebody_at_a_terminal_chooses(folder: Path, answer: bytes, ways: int) -> None:
    Path("my.yaml").write_text("extends: base.yaml\n")
    Path("base.yaml").write_text(TEXT)
    code, seen = command_line.at_terminal(folder, "check", "--fix", "my.yaml", typed=answer)
    assert code == (0 if ways else 3), seen
    assert seen.count("[target-not-in-toolkit]") == 1
    written = 'tensorflow: "2.20.0"\ncuda: "12.8.0"\n' if ways else ""
    assert Path("my.yaml").read_text() == f"extends: base.yaml\n{written}"
    assert Path("base.yaml").read_text() == TEXT


def test_the_end_of_the_input_answers_no_question(folder: Path) -> None:
    Path("my.yaml").write_text(BY_HAND)
    code, seen = command_line.at_terminal(folder, "check", "--fix", "my.yaml", typed=b"\x04")
    assert "Which way, 0 to 1 [0]" in seen
    assert (code, Path("my.yaml").read_text()) == (130, BY_HAND)
