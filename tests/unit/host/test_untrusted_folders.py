"""Folders that a container could write to: nothing in them leads out of them, and all of it can be removed."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from waits import over_and_over

from tfdock.host import untrusted_folders
from tfdock.host.untrusted_folders import (
    NotPlain,
    TooManyNames,
    UntrustedFolder,
    UntrustedPath,
    kind_of,
    remove_folder,
)

SECRET = b"a file of the user\n"
OWN = b"of the container"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder of the user that no container may reach."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return the folder that a container could write to."""
    folder = tmp_path / "container"
    folder.mkdir()
    return folder


@pytest.fixture
def opened(hostile: Path) -> Iterator[UntrustedFolder]:
    with UntrustedFolder.opened(hostile) as folder:
        yield folder


def untouched(outside: Path) -> bool:
    """Return whether the user's folder is as it was."""
    return [path.name for path in outside.iterdir()] == ["secret"] and (outside / "secret").read_bytes() == SECRET


def plant(kind: str, path: Path, outside: Path) -> None:
    """Put one of the shapes that an attacker has in the place of a file."""
    if kind == "absolute link":
        path.symlink_to(outside / "secret")
    elif kind == "relative link":
        path.symlink_to(Path("..", outside.name, "secret"))
    elif kind == "link to a folder":
        path.symlink_to(outside)
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "link to a process's file":
        path.symlink_to("/proc/self/environ")
    elif kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)


KINDS = (
    "absolute link", "relative link", "link to a folder", "link to itself", "link to a process's file", "folder",
    "FIFO", "socket",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_regular_file_is_opened(kind: str, hostile: Path, opened: UntrustedFolder, outside: Path) -> None:
    plant(kind, hostile / "done", outside)
    with pytest.raises(NotPlain) as caught:
        opened.open("done")
    assert caught.value.kind == next(
        word for word in ("a link", "a folder", "a FIFO", "a socket") if word[2:] in kind
    )
    (hostile / "done-too").write_text("said")
    with opened.open("done-too") as file:
        assert file.read() == b"said"


def test_a_device_is_not_opened(outside: Path) -> None:
    with UntrustedFolder.opened(Path("/dev")) as devices, pytest.raises(NotPlain, match="a device"):
        devices.open("zero")
    assert untouched(outside)


@pytest.mark.parametrize("part", range(2))
def test_no_part_of_a_name_may_be_a_link(part: int, hostile: Path, opened: UntrustedFolder, outside: Path) -> None:
    (outside / "b").mkdir()
    names = ["a", "b"][: part + 1]
    hostile.joinpath(*names[:-1]).mkdir(exist_ok=True)
    hostile.joinpath(*names).symlink_to(outside if part == 0 else outside / "b")
    for use in (
        lambda: opened.open("a/b/secret"),
        lambda: opened.write("a/b/new", [b"x"]),
        lambda: opened.remove("a/b/secret"),
        lambda: opened.status("a/b/secret"),
        lambda: opened.folder("a/b", make=True).close(),
    ):
        with pytest.raises(NotPlain):
            use()
    (outside / "b").rmdir()
    assert untouched(outside)


@pytest.mark.parametrize("name", ["../home/secret", "a/../../home/secret", "/etc/passwd", "a//b", ".", "", "a\0b"])
def test_a_name_that_leads_out_is_refused(name: str, opened: UntrustedFolder, outside: Path) -> None:
    for use in (opened.open, opened.remove, opened.status):
        with pytest.raises(ValueError, match="not a name within a folder"):
            use(name)
    assert untouched(outside)


def test_a_folder_that_is_a_link_itself_is_not_opened(hostile: Path, outside: Path) -> None:
    (hostile / "output").symlink_to(outside)
    with pytest.raises(NotPlain, match="a link"):
        UntrustedFolder.opened(hostile / "output")
    with pytest.raises(NotPlain, match="a link"):
        remove_folder(hostile / "output")
    assert untouched(outside)


def test_writing_replaces_a_link_or_a_second_name_and_never_writes_through_it(
    hostile: Path, opened: UntrustedFolder, outside: Path
) -> None:
    (hostile / "link").symlink_to(outside / "secret")
    (hostile / "nowhere").symlink_to(outside / "new")
    (hostile / "same").hardlink_to(outside / "secret")
    for name in ("link", "nowhere", "same", "new/folder/file"):
        opened.write(name, [b"of ", b"the host"])
        assert not (hostile / name).is_symlink()
        assert (hostile / name).read_bytes() == b"of the host"
    assert untouched(outside)
    assert sorted(one.name for one in opened.entries(2)) == ["link", "new/folder/file", "nowhere", "same"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(hostile: Path, opened: UntrustedFolder) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    (hostile / "file").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        opened.write("file", chunks())
    assert [path.name for path in hostile.iterdir()] == ["file"]
    assert (hostile / "file").read_text() == "old"


def test_links_are_listed_and_removed_as_links(hostile: Path, opened: UntrustedFolder, outside: Path) -> None:
    plant("absolute link", hostile / "file", outside)
    plant("link to a folder", hostile / "folder", outside)
    (hostile / "line\nbreak").write_text("x")
    assert {one.name: kind_of(one.status) for one in opened.entries(3)} == {
        "file": "a link", "folder": "a link", "line\nbreak": "a file"
    }  # fmt: skip
    opened.remove("file")
    opened.remove("folder")
    opened.remove("gone")
    assert untouched(outside)


def test_reading_unnoticed_leaves_the_time_of_access(hostile: Path, opened: UntrustedFolder) -> None:
    (hostile / "blob").write_text("x")
    os.utime(hostile / "blob", ns=(1, 2))
    with opened.open("blob", unnoticed=True) as file:
        assert file.read() == b"x"
    assert opened.status("blob").st_atime_ns == 1


def test_listing_ends_at_the_bound(hostile: Path, opened: UntrustedFolder) -> None:
    for number in range(300):
        (hostile / f"{number}").touch()
    with pytest.raises(TooManyNames, match="more than 299 names"):
        list(opened.entries(most=299))
    assert len(list(opened.entries(most=300))) == 300


def test_a_walk_names_all_there_is_and_neither_follows_a_link_nor_fails(
    hostile: Path, opened: UntrustedFolder, outside: Path
) -> None:
    (hostile / "a/b/c").mkdir(parents=True)
    (hostile / "a/b/c/file").touch()
    (hostile / "a/link").symlink_to(outside)
    names = {one.name for one in opened.walk()}
    assert names == {"a", "a/b", "a/b/c", "a/b/c/file", "a/link"}
    assert {one.name for one in opened.walk(1)} == {"a", "a/b", "a/link"}
    for _ in opened.walk():  # what goes meanwhile is left out
        shutil.rmtree(hostile / "a", ignore_errors=True)
    assert list(opened.walk()) == []


@pytest.mark.slow
def test_a_walk_holds_no_more_than_it_has_come_to(hostile: Path, opened: UntrustedFolder) -> None:
    for number in range(20_000):
        (hostile / f"{number:0>100}").touch()
    tracemalloc.start()
    assert sum(1 for _ in opened.walk()) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 18


def test_folders_below_the_depth_are_named_and_not_entered(hostile: Path, opened: UntrustedFolder) -> None:
    (hostile / "a/b/c").mkdir(parents=True)
    (hostile / "a/file").touch()
    assert [one.name for one in opened.entries()] == ["a"]
    assert [one.name for one in opened.entries(1)] == ["a/b", "a/file"]


@pytest.mark.parametrize("shape", ["file", "folder"])
def test_a_name_that_is_swapped_for_a_link_all_the_time_never_leads_out(
    shape: str, hostile: Path, opened: UntrustedFolder, outside: Path
) -> None:
    (hostile / "own").mkdir()
    (hostile / "own/secret").write_bytes(OWN)
    swapped = "secret" if shape == "file" else "folder"
    honest, link = hostile / "honest", hostile / "link"

    def swap() -> None:
        if shape == "file":
            honest.write_bytes(OWN)
            link.symlink_to(outside / "secret")
            honest.replace(hostile / swapped)
            link.replace(hostile / swapped)
        else:
            link.symlink_to(outside)
            (hostile / "own").rename(hostile / swapped)
            (hostile / swapped).rename(hostile / "own")
            link.replace(hostile / swapped)
            (hostile / swapped).unlink()

    seen: set[object] = set()
    name = "secret" if shape == "file" else "folder/secret"
    with over_and_over(swap):
        for number in range(1_000_000):
            # Until the race has been met in both of its states, however seldom another process leaves time for that.
            if number >= 2000 and seen >= {NotPlain, OWN}:
                break
            try:
                with opened.open(name) as file:
                    seen.add(file.read())
            except (NotPlain, FileNotFoundError) as error:
                seen.add(type(error))
    assert SECRET not in seen
    assert seen >= {NotPlain, OWN}
    assert untouched(outside)


# --- removing -------------------------------------------------------------------------------------------------------


def test_everything_is_removed_and_nothing_that_a_link_leads_to(hostile: Path, outside: Path) -> None:
    for kind in KINDS:
        plant(kind, hostile / kind, outside)
    (hostile / "same").hardlink_to(outside / "secret")
    (hostile / "line\nbreak").mkdir(mode=0o000)
    mode = (outside / "secret").stat().st_mode
    remove_folder(hostile)
    remove_folder(hostile)
    assert not hostile.exists()
    assert untouched(outside)
    assert (outside / "secret").stat().st_mode == mode


@pytest.mark.slow
def test_a_tree_that_is_deeper_than_there_are_descriptors_is_removed(hostile: Path) -> None:
    at = os.open(hostile, os.O_RDONLY)
    for number in range(400):
        for name in ("down", f"beside{number % 3}"):
            os.mkdir(name, dir_fd=at)
        below = os.open("down", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 100, hard))
    try:
        remove_folder(hostile)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not hostile.exists()


def test_a_folder_with_more_names_than_are_held_at_once_is_removed(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted_folders, "_AT_ONCE", 100)
    for number in range(250):
        os.mknod(hostile / f"{number}")
    remove_folder(hostile)
    assert not hostile.exists()


@pytest.mark.slow
def test_a_folder_that_is_swapped_for_a_link_while_it_is_removed_leads_nowhere(hostile: Path, outside: Path) -> None:
    def swap() -> None:
        try:
            (hostile / "swapped").mkdir()
            (hostile / "swapped/secret").touch()
            (hostile / "swapped").rename(hostile.parent / "aside")
            (hostile / "swapped").symlink_to(outside)
            (hostile / "swapped").unlink()
            (hostile.parent / "aside").rename(hostile / "swapped")
        except OSError:
            time.sleep(0)

    with over_and_over(swap), UntrustedFolder.opened(hostile) as folder:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            with suppress(OSError):  # a rival that still writes keeps the folder from being empty
                folder.empty()
    assert untouched(outside)


# --- a name below a folder that the user named ----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["make", "write", "receive", "update"])
def test_what_writes_makes_the_folder_that_the_user_named(tmp_path: Path, way: str) -> None:
    path = UntrustedPath(tmp_path / "not/yet", "inside/name")
    (tmp_path / "own").write_bytes(OWN)
    calls: dict[str, Callable[[], object]] = {
        "make": path.make,
        "write": lambda: path.write(OWN),
        "receive": lambda: path.receive(tmp_path / "own"),
        "update": lambda: path.update().close(),
    }
    calls[way]()
    assert (path.is_folder(), path.is_file()) == (way == "make", way != "make")


def test_where_the_folder_that_the_user_named_is_missing_nothing_is_found_or_removed(tmp_path: Path) -> None:
    path = UntrustedPath(tmp_path / "missing", "name")
    assert (path.status(), path.entries(), [*path.walk()], path.load(object, 99)) == (None, [], [], None)
    path.remove()
    path.remove_folder()
    assert not (tmp_path / "missing").exists()
