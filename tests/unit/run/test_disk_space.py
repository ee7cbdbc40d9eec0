"""Disks watched while a build runs, and what is said where one is nearly full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tfdock.host import files
from tfdock.host.files import file_error
from tfdock.run.disk_space import DiskSpace, folder_sizes

GIB = 1 << 30


def test_a_disk_that_once_was_short_stays_so_and_is_told_with_what_takes_room(tmp_path: Path) -> None:
    for name, size in {"disk": 300_000, "repository": 20_000, "empty": 0}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "entry").write_bytes(b"x" * size)
    free = [3 * GIB, GIB // 2, 3 * GIB]
    room = DiskSpace(places={"the cache": tmp_path}, usage=lambda _: (30 * GIB, 0, free[0]))
    seen = []
    while len(free) > 1:
        seen.append(room.is_short())
        free.pop(0)
    assert seen == [False, True]
    assert room.is_short()
    (problem,) = room.error("compile", " after 5 of 9 actions", "it stays in the cache").problems
    assert problem.message == (
        f"phase compile was stopped after 5 of 9 actions, before the disk of the cache ({tmp_path}) was full: "
        "3.0 GiB of 30.0 GiB left, but 1.0 GiB must stay free; it stays in the cache"
    )
    assert problem.why is not None
    assert problem.why.index("disk 0.3 MiB") < problem.why.index("repository 0.0 MiB")
    assert "empty" not in problem.why


def test_a_place_that_cannot_be_looked_at_is_no_reason_to_stop_nor_to_say_nothing(tmp_path: Path) -> None:
    def usage(path: Path) -> tuple[int, int, int]:
        if path != tmp_path:
            raise PermissionError(errno.EACCES, "no")
        return 30 * GIB, 0, 0

    there = Path("/var/lib/docker")
    assert not DiskSpace(places={"the engine's data": there}, usage=usage).is_short()
    room = DiskSpace(places={"the engine's data": there, "the cache": tmp_path}, usage=usage)
    assert room.is_short()
    (problem,) = room.error("image", "", "it stays in the cache").problems
    assert problem.code == "disk-full"
    assert problem.why is not None
    assert f"the engine's data ({there}) has no measurable free space" in problem.why


def test_a_link_to_nowhere_and_a_folder_that_is_not_there_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "nowhere")
    assert list(folder_sizes(tmp_path)) == ["a"]
    assert folder_sizes(tmp_path / "none") == {}


def test_a_full_disk_is_told_where_nobody_can_say_how_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert f"the cache ({tmp_path}) has " in file_error(full, {"the cache": tmp_path}).problems[0].message
    monkeypatch.setattr(files, "free_disk", lambda _: None)
    assert file_error(full, {"the cache": tmp_path}).problems[0].message == "a disk ran full"


def test_only_what_frees_the_full_disk_is_advised(tmp_path: Path) -> None:
    # A file system of its own, without a mount.
    wheels = Path("/dev/shm") / tmp_path.name
    room = DiskSpace(
        places={"the cache": tmp_path, "the wheelhouse": wheels, "the engine's data": tmp_path},
        usage=lambda path: (30 * GIB, 0, 0 if path == wheels else 29 * GIB),
    )
    assert room.is_short()
    fix = room.error("compile", "", "it stays").problems[0].fix
    assert "tfdock wheelhouse prune" in fix
    assert "cache prune" not in fix
    assert "system prune" not in fix
