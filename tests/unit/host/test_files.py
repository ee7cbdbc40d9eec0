"""Files that people write and that cannot be read, and files of ours that cannot be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdock.host import files, settings
from tfdock.host.files import read_text, write_text
from tfdock.knowledge import loader

from ..desk import problem_of

LATIN = "# Müller\n".encode("latin-1")


def told(do: Callable[[], object]) -> tuple[str, str | None, str]:
    problem = problem_of(do)
    return problem.code, problem.file, problem.message


def test_text_is_read_with_the_line_ends_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\r\nb\n")
    assert read_text(tmp_path / "x") == "a\r\nb\n"


def test_settings_that_are_no_text_are_named_and_none_need_not_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    monkeypatch.setattr(settings, "configuration_file", lambda: file)
    assert settings.load({}, {}).mirrors == {}
    file.write_bytes(LATIN)
    assert told(lambda: settings.load({}, {})) == ("file-unreadable", str(file), "not UTF-8 text (byte 3)")
    file.unlink()
    file.mkdir()
    assert told(lambda: settings.load({}, {})) == ("file-unreadable", str(file), "cannot be read: Is a directory")


def test_what_is_a_pipe_or_a_device_stays_one_and_takes_what_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        write_text(pipe, "page", follow=True)
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"page"
    finally:
        os.close(reader)


def test_knowledge_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_bytes(LATIN)
    assert told(lambda: loader.knowledge([tmp_path]).gpus)[:2] == ("file-unreadable", str(tmp_path / "gpus.yaml"))


def test_a_knowledge_folder_that_one_may_not_look_into_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may look into everything
    assert told(lambda: loader.knowledge([tmp_path]))[:2] == ("knowledge-folder", str(tmp_path))


@pytest.mark.parametrize(("place", "step"), [(os, "fsync"), (os, "replace")])
def test_a_file_that_cannot_be_written_is_the_old_one_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, step: str
) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(place, step, full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomically(file, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"old"}
