"""`tfdock verify` without an engine: its documents and pages where little or nothing could be found out."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import tfdock.cli.main  # noqa: F401 - it makes the application whole
from tfdock.cli.app import app
from tfdock.knowledge import loader

from ..desk import Desk
from ..small_wheels import NAME, wheel_of


@pytest.fixture(autouse=True)
def read_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "knowledge", lambda _=(), __=None: desk.knowledge)


def run(wheel: bytes, folder: Path, *words: str | Path) -> Result:
    path = folder / NAME
    path.write_bytes(wheel)
    nobody = {"DOCKER_HOST": "tcp://127.0.0.1:1", "COLUMNS": "400", "NO_COLOR": "1", "TFDOCK_KNOWLEDGE": ""}
    return CliRunner().invoke(app, ["verify", *map(str, (path, "--cache-dir", folder / "cache", *words))], env=nobody)


def test_of_a_wheel_that_cannot_be_read_no_gpu_code_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run(b"PK\3\4 and no more", tmp_path, "--no-run", "--json", "--html", page)
    assert result.exit_code == 4
    assert json.loads(result.stdout)["gpu_code"] is None
    assert "What GPU code the wheel has is not known." in page.read_text("utf-8")


def test_the_page_says_that_no_engine_answers(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run(wheel_of({}), tmp_path, "--json", "--html", page)
    assert result.exit_code == 6
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["code"] == "engine-unavailable"
    top, _, _ = page.read_text("utf-8").partition("<main>")
    assert "no container engine answers at tcp://127.0.0.1:1" in top


def test_a_page_that_cannot_be_written_is_told_before_the_wheel_is_read(tmp_path: Path) -> None:
    result = run(b"no wheel", tmp_path, "--no-run", "--html", tmp_path / "nowhere" / "page.html")
    assert result.exit_code == 2
    assert "[file-error]" in result.stderr
    assert result.stdout == ""
    assert "file-integrity" not in result.stderr


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    page, mine = tmp_path / "page.html", tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")
    for _ in range(2):
        assert run(wheel_of({}), tmp_path, "--no-run", "--html", page).exit_code == 0
    for other in (mine, tmp_path / NAME, Path("/dev/full")):
        result = run(wheel_of({}), tmp_path, "--no-run", "--html", other)
        assert result.exit_code == 2
        assert f"{other} is there already, and no page of tfdock's" in result.stderr
    assert mine.read_text() == "<p>mine</p>"
    assert (tmp_path / NAME).read_bytes() == wheel_of({})


def test_a_page_for_which_there_is_no_room_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "fsync", full)
    wheel = wheel_of({})
    path = tmp_path / NAME
    with path.open("wb") as file:
        file.write(wheel)
    command = ["verify", str(path), "--no-run", "--html", str(tmp_path / "page.html")]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "page.html: File too large [file-error]" in result.stderr
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_the_last_line_counts_and_a_reason_is_told_once(tmp_path: Path) -> None:
    result = run(wheel_of({}), tmp_path, "--no-run")
    *rows, last = result.stdout.splitlines()
    skipped = [row for row in rows if " skipped " in row]
    assert last.endswith(f", {len(skipped)} skipped: {NAME}")
    asked = "it was not asked for (`--no-run`)"
    first = next(at for at, row in enumerate(skipped) if asked in row)
    assert len(skipped) - first > 10
    assert all(row.endswith(" as above") for row in skipped[first + 1 :])
