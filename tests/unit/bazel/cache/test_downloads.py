"""What a fetch left in Bazel's repository cache: entries are what their names say, or they are removed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdock.bazel.cache import downloads
from tfdock.bazel.cache.domain_cache import filesystem_now
from tfdock.bazel.cache.downloads import remove_changed_downloads

GOOD = b"an archive"
NAME = hashlib.sha256(GOOD).hexdigest()
OTHER = "ab" * 32
SHA = "content_addressable/sha256"


def entry(folder: Path, name: str = NAME, data: bytes = GOOD, algorithm: str = "sha256") -> Path:
    path = folder / "content_addressable" / algorithm / name / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_downloads_that_are_what_their_names_say_stay(tmp_path: Path) -> None:
    began = filesystem_now(tmp_path)
    folder = tmp_path / "repository"
    entry(folder).with_name("id-" + "0" * 64).touch()
    entry(folder, hashlib.sha512(GOOD).hexdigest(), algorithm="sha512")
    before = sorted(folder.rglob("*"))
    assert remove_changed_downloads(folder, began) == []
    assert sorted(folder.rglob("*")) == before


def test_a_fetch_that_made_no_repository_cache_leaves_nothing_to_check(tmp_path: Path) -> None:
    assert remove_changed_downloads(tmp_path / "nowhere", 0) == []


def test_a_download_with_holes_is_removed_unread(tmp_path: Path) -> None:
    began = filesystem_now(tmp_path)
    huge = entry(tmp_path / "repository", OTHER)
    os.truncate(huge, 1 << 42)
    assert remove_changed_downloads(tmp_path / "repository", began) == [f"{SHA}/{OTHER}/file"]
    assert not huge.exists()


def test_folders_that_a_fetch_closed_are_opened_again_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    began = filesystem_now(tmp_path)
    bad = entry(folder, OTHER)
    for closed in (bad.parent, bad.parents[1], folder):
        closed.chmod(0)
    assert remove_changed_downloads(folder, began) == [f"{SHA}/{OTHER}/file"]
    assert all(one.stat().st_mode & 0o700 == 0o700 for one in (folder, *folder.rglob("*/")))


SECOND = f"content_addressable/sha512/{hashlib.sha512(GOOD).hexdigest()}/file"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (f"{SHA}/{OTHER}/file", lambda path: path.write_bytes(b"other bytes")),
        (f"{SHA}/{NAME}/more", Path.touch),
        (f"{SHA}/{NAME}/id-{'0' * 64}", lambda path: path.write_bytes(b"not empty")),
        (f"{SHA}/short", Path.mkdir),
        (f"{SHA}/{OTHER}", lambda path: path.symlink_to("/etc")),
        ("content_addressable/md5/x", Path.mkdir),
        ("content_addressable/sha512", lambda path: path.symlink_to("/etc")),
        ("contents/x", Path.touch),
        ("pipe", os.mkfifo),
        # Not even one that leads to the right bytes.
        (SECOND, lambda path: path.symlink_to(f"../../sha256/{NAME}/file")),
        (SECOND, os.mkfifo),
        (SECOND, Path.mkdir),
    ],
)
def test_what_is_not_what_its_name_says_is_removed_and_told(
    tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    folder = tmp_path / "repository"
    good = entry(folder)
    began = filesystem_now(tmp_path)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    make(folder / name)
    assert remove_changed_downloads(folder, began) == [name]
    assert not os.path.lexists(folder / name)
    assert good.read_bytes() == GOOD


def test_an_entry_that_only_got_another_name_is_found_and_a_forged_time_of_change_helps_nobody(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "repository"
    path = entry(folder)
    began = filesystem_now(tmp_path)
    path.parent.rename(folder / SHA / OTHER)
    os.utime(folder / SHA / OTHER, (1, 1))
    assert remove_changed_downloads(folder, began) == [f"{SHA}/{OTHER}/file"]


def test_a_cache_with_more_names_than_fetches_leave_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_MOST", 100)
    folder = tmp_path / "repository"
    began = filesystem_now(tmp_path)
    path = entry(folder)
    for number in range(100):
        path.with_name(f"id-{number:0>64}").touch()
    assert remove_changed_downloads(folder, began) == [downloads.EVERYTHING]
    assert list(folder.iterdir()) == []


def test_what_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    entry(folder, OTHER, b"an older fault")
    assert remove_changed_downloads(folder, filesystem_now(tmp_path) + 1) == []


def test_what_a_killed_bazel_left_half_written_goes_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    began = filesystem_now(tmp_path)
    half = entry(folder).with_name("tmp-0f8fad5b-d9cb-469f-a165-70867728950e")
    half.write_bytes(b"half")
    assert remove_changed_downloads(folder, began) == []
    assert not half.exists()
