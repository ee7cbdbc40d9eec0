"""The cache folder: whose it is, who uses it, what was used when, whether it is sound, and what may go."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine

from tfdock.bazel.cache import maintenance
from tfdock.bazel.cache.action_cache import Digest, MalformedEntry, action_result, command_of, tree_files
from tfdock.bazel.cache.cache_folder import TAG, CacheEntry, CacheFolder, DiskCache
from tfdock.bazel.cache.cache_pull import CachePull
from tfdock.bazel.cache.cache_push import inventory
from tfdock.bazel.cache.domain_cache import take_over
from tfdock.bazel.cache.downloads import remove_changed_downloads
from tfdock.bazel.cache.maintenance import Listing, alone, listing, verify_cache
from tfdock.bazel.cache.registry_cache import StoredCache
from tfdock.cli.commands import cache as command
from tfdock.engine.protocol import IMAGE_LABEL, ImageInfo
from tfdock.errors import EngineError, Interrupted, Locked, Problem
from tfdock.host import files
from tfdock.host.files import held
from tfdock.host.untrusted_folders import folder_size
from tfdock.run import journal
from tfdock.run.journal import RunEntry
from tfdock.types import ImageRef

from ... import command_line
from ...desk import problem_of

KEY = "0123456789abcdef"
DAY = 86400.0


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- what Bazel writes ----------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def part(field: int, value: bytes | int) -> bytes:
    """One field of a protocol buffer."""
    if isinstance(value, int):
        return varint(field << 3) + varint(value)
    return varint(field << 3 | 2) + varint(len(value)) + value


def digest(data: bytes) -> bytes:
    return part(1, sha256(data).encode()) + part(2, len(data))


def file(data: bytes) -> bytes:
    return part(2, part(1, b"bazel-out/x.o") + part(2, digest(data)) + part(4, 1))


class Disk:
    """A disk cache, filled as Bazel fills it; `old` as its early versions did."""

    def __init__(self, folder: Path, *, old: bool = False) -> None:
        self.cache, self.old = CacheFolder.opened(folder), old
        self.disk = self.cache.disk(KEY)

    def path(self, kind: str, name: str) -> Path:
        if self.old:
            return self.disk.folder / (f"ac_{name}" if kind == "ac" else name)
        return self.disk.folder / kind / name[:2] / name

    def write(self, kind: str, name: str, data: bytes) -> str:
        path = self.path(kind, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return name

    def blob(self, data: bytes) -> str:
        return self.write("cas", sha256(data), data)

    def action(self, *outputs: bytes, more: bytes = b"", used: float | None = None, option: bytes = b"-O2") -> str:
        """An action with these outputs, its own message, and its command; the key."""
        command = part(1, b"gcc") + part(1, option) + part(1, sha256(b"+".join(outputs)).encode())
        message = part(1, digest(command)) + part(2, digest(b""))
        for data in (*outputs, command, message):
            self.blob(data)
        key = self.write("ac", sha256(message), b"".join(map(file, outputs)) + part(6, digest(b"")) + more)
        if used is not None:
            os.utime(self.path("ac", key), (used, used))
        return key

    @property
    def files(self) -> set[Path]:
        return {path for path in self.disk.folder.rglob("*") if path.is_file() and not path.is_symlink()}

    def paths(self, *entries: CacheEntry) -> set[Path]:
        return {self.disk.folder / entry.name for entry in entries}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "cache")


def test_an_action_result_names_what_it_needs() -> None:
    tree = part(1, part(1, part(1, b"a") + part(2, digest(b"leaf")))) + part(2, part(1, part(2, digest(b"deep"))))
    data = file(b"one") + part(3, part(1, b"folder") + part(3, digest(tree))) + part(4, 7) + part(5, b"said")
    data += (
        part(8, digest(b"error")) + part(10, part(1, b"link")) + bytes([0x79]) + bytes(8) + bytes([0x7D]) + bytes(4)
    )
    found = action_result(data)
    assert found.files == (Digest(sha256(b"one"), 3), Digest(sha256(b"error"), 5))
    assert found.trees == (Digest(sha256(tree), len(tree)),)
    assert found.symlinks == 1
    assert tree_files(tree) == (Digest(sha256(b"leaf"), 4), Digest(sha256(b"deep"), 4))
    assert command_of(part(1, digest(b"gcc"))) == Digest(sha256(b"gcc"), 3)
    assert command_of(b"") is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(file(b"one")[:-3], id="cut"),
        pytest.param(b"\x12", id="no length"),
        pytest.param(b"\x12" + b"\xff" * 11, id="endless number"),
        pytest.param(b"\x02\x00", id="field 0"),
        pytest.param(b"\x13\x00", id="group"),
        pytest.param(part(2, part(2, part(1, b"../../etc/passwd"))), id="a path"),
        pytest.param(part(2, part(2, part(1, b"A" * 64))), id="not hexadecimal"),
    ],
)
def test_what_is_no_action_result_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedEntry):
        action_result(data)


# --- whose folder it is ---------------------------------------------------------------------------------------------


def test_a_new_folder_is_marked_as_backup_programs_expect_it(tmp_path: Path) -> None:
    CacheFolder.opened(tmp_path / "a/b")
    tag = (tmp_path / "a/b" / TAG).read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    assert b"tfdock" in tag
    CacheFolder.opened(tmp_path / "a/b")
    assert (tmp_path / "a/b" / TAG).read_bytes() == tag


def test_tables_that_were_kept_before_there_was_a_cache_do_not_keep_it_from_being_made(tmp_path: Path) -> None:
    (tmp_path / "knowledge").mkdir()
    (tmp_path / f"knowledge/{'a' * 64}.json").touch()
    assert CacheFolder.existing(tmp_path) is None
    assert not (tmp_path / TAG).exists()
    assert CacheFolder.opened(tmp_path) == CacheFolder.existing(tmp_path)


def refused(folder: Path) -> str:
    """What is said of a folder that is not ours."""
    for way in (CacheFolder.opened, CacheFolder.existing):
        problem = problem_of(partial(way, folder))
        assert (problem.code, "--cache-dir" in problem.fix) == ("cache-foreign", True)
    return problem.message


def mark(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / TAG).write_text(text)


@pytest.mark.parametrize(
    ("fill", "named"),
    [
        pytest.param(lambda folder: (folder / "thesis.tex").touch(), "thesis.tex", id="a file"),
        pytest.param(lambda folder: (folder / ".bashrc").touch(), ".bashrc", id="a hidden file"),
        pytest.param(lambda folder: (folder / "disk" / KEY).mkdir(parents=True), "disk", id="names of ours alone"),
        pytest.param(mark("Signature: 8a477f597d28d172789f06886806bc55\n# cargo's\n"), TAG, id="another's tag"),
        pytest.param(mark(""), TAG, id="an empty tag"),
        pytest.param(lambda folder: (folder / TAG).symlink_to("/etc/hostname"), TAG, id="a link for a tag"),
    ],
)
def test_a_folder_that_is_not_ours_is_refused_and_stays_as_it_is(
    tmp_path: Path, fill: Callable[[Path], object], named: str
) -> None:
    fill(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert f"it has `{named}`" in refused(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_not_there_is_neither_made_nor_refused_and_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert CacheFolder.existing(tmp_path / "empty") is CacheFolder.existing(tmp_path / "absent") is None
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        CacheFolder.existing(tmp_path / "file")


def test_a_file_system_of_its_own_may_be_a_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    cache = CacheFolder.opened(tmp_path)
    maintenance.clean(cache)
    assert sorted(path.name for path in tmp_path.iterdir()) == [TAG, "lost+found"]


# --- who else can write to it ---------------------------------------------------------------------------------------

OTHER = 4711
PARTS = ("disk", "knowledge", "locks", "output", "repository")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache folder with all its parts, which others can reach."""
    folder = tmp_path / "cache"
    CacheFolder.opened(folder)
    for name in PARTS:
        (folder / name).mkdir()
        (folder / name).chmod(0o755)
    folder.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", [".", *PARTS])
@pytest.mark.parametrize("mode", [0o757, 0o1777, 0o775])
def test_a_folder_that_others_can_write_to_is_refused(
    filled: Path, name: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_own_group", lambda _: False)
    (filled / name).chmod(mode)
    assert f"{filled / name} can be written to by other users" in refused(filled)


@pytest.mark.parametrize("name", [".", *PARTS])
def test_a_folder_of_another_user_is_refused(filled: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(filled / name, OTHER, 0)
    else:  # then the folders of this user are another's
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert "belongs to another user" in refused(filled)


def test_a_link_of_another_user_to_a_folder_of_ones_own_is_refused(filled: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("this test needs two users: run it as root")
    (filled / "disk").rmdir()
    (filled / "disk").symlink_to(filled / "output")
    assert CacheFolder.opened(filled)
    os.chown(filled / "disk", OTHER, 0, follow_symlinks=False)
    assert f"{filled / 'disk'} belongs to another user" in refused(filled)


def test_what_containers_open_to_others_behind_a_closed_folder_harms_nobody(filled: Path) -> None:
    (filled / "repository").chmod(0o777)
    filled.chmod(0o700)
    assert CacheFolder.opened(filled) == CacheFolder.existing(filled) == CacheFolder(filled)
    (filled / "disk").rmdir()
    elsewhere = filled.with_name("larger")
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    (filled / "disk").symlink_to(elsewhere)
    refused(filled)


@pytest.mark.parametrize(
    ("group", "members", "own"),
    [("me", (), True), ("me", ("me",), True), ("me", ("me", "you"), False), ("users", (), False)],
)
def test_the_group_that_each_user_has_is_nobody_else(
    filled: Path, group: str, members: tuple[str, ...], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gid = filled.stat().st_gid
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=gid))
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=group, gr_mem=[*members]))
    filled.chmod(0o775)
    if own:
        assert CacheFolder.opened(filled)
    else:
        refused(filled)


def test_a_lock_is_not_taken_through_a_link(filled: Path, tmp_path: Path) -> None:
    (filled / "locks/runs").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="a link, but a file or a folder is expected"), CacheFolder(filled).in_use():
        pass
    assert not (tmp_path / "victim").exists()


# --- who uses it ----------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from tfdock.host.files import held
with held(Path(sys.argv[1]), "it", alone=sys.argv[2] == "alone"):
    print("held", flush=True)
    time.sleep(60)
"""


Holder = Callable[[Path, str], subprocess.Popen[str]]


@pytest.fixture
def holder(tmp_path: Path) -> Iterable[Holder]:
    """Starts another process that holds a lock; it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, how: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLD, str(path), how]
        started.append(process := subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_many_hold_a_lock_together_and_one_alone_and_the_holder_is_named(tmp_path: Path, holder: Holder) -> None:
    path = tmp_path / "locks/x"
    other = holder(path, "shared")
    with held(path, "it", alone=False):
        pass
    with pytest.raises(Locked) as caught, held(path, "the thing", alone=True):
        pass
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_code) == ("cache-locked", 9)
    assert "the thing is in use by " in problem.message
    assert f"process {other.pid} (" in problem.message
    other.kill()
    other.wait()
    with held(path, "it", alone=True):
        pass


def test_who_waits_is_told_for_whom_and_goes_on_when_the_lock_is_free(tmp_path: Path, holder: Holder) -> None:
    path, told = tmp_path / "x", list[str]()
    other = holder(path, "alone")

    def waiting(who: str) -> None:
        told.append(who)
        other.kill()

    with held(path, "it", alone=False, waiting=waiting):
        assert f"process {other.pid}" in told[0]


def test_a_lock_whose_file_goes_while_it_is_asked_for_is_still_somebodys(
    tmp_path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    other = holder(path, "alone")
    taken = files._taken

    def gone(descriptor: int, *, alone: bool) -> bool:
        path.unlink()  # as the folder of a push that has ended goes with its lock
        return taken(descriptor, alone=alone)

    monkeypatch.setattr(files, "_taken", gone)
    with pytest.raises(Locked, match=f"process {other.pid}"), held(path, "it", alone=True):
        pass


def test_two_of_one_process_keep_each_other_out_as_well(disk: Disk) -> None:
    told = pytest.raises(Locked, match="another build of this command")
    with disk.disk.held(alone=False), told, disk.disk.held(alone=True):
        pass


def test_a_copy_of_a_cache_has_its_entries_and_nothing_else(disk: Disk, tmp_path: Path) -> None:
    disk.action(b"one", b"two")
    secret, hollow = tmp_path / "secret", "0" * 64
    secret.write_bytes(b"mine")
    disk.path("cas", "f" * 64).parent.mkdir(exist_ok=True)
    disk.path("cas", "f" * 64).symlink_to(secret)
    disk.write("cas", "e" * 63 + "x", b"not a digest")
    disk.write("cas", hollow, b"")
    os.truncate(disk.path("cas", hollow), 1 << 40)
    other = disk.cache.disk("1" * 16)
    other.folder.mkdir()
    expected = {
        path.relative_to(disk.disk.folder): path.read_bytes() for path in disk.files if path.stat().st_size < 1 << 20
    }
    expected = {path: data for path, data in expected.items() if data != b"not a digest"}
    assert take_over(other, disk.disk, lambda: None) == sum(map(len, expected.values()))
    copied = {path.relative_to(other.folder): path for path in other.folder.rglob("*") if path.is_file()}
    assert {path: file.read_bytes() for path, file in copied.items()} == expected
    # A container that writes to a copy changes nothing of what was copied.
    assert all(file.stat().st_nlink == 1 for file in copied.values())


def test_a_copy_of_a_cache_that_is_cut_off_leaves_nothing_and_an_entry_that_cannot_be_read_is_left_out(
    disk: Disk,
) -> None:
    disk.action(b"one", b"two")
    other, stops = disk.cache.disk("1" * 16), iter([None, Interrupted.of("interrupted", "stopped")])

    def check() -> None:
        if error := next(stops, None):
            raise error

    with pytest.raises(Interrupted):
        take_over(other, disk.disk, check)
    assert other.is_empty()
    assert not other.work.exists()
    gone = next(path for path in disk.files if path.parent.parent.name == "cas")
    gone.unlink()
    gone.mkdir()
    take_over(other, disk.disk, check)
    assert len(list(other.entries())) == len(disk.files)


def test_pruning_needs_the_folder_and_every_disk_cache_alone(disk: Disk) -> None:
    disk.action(b"x")
    for lock in (disk.cache.in_use(), disk.disk.held(alone=False)):
        with lock, pytest.raises(Locked), alone(disk.cache, disk.cache.disks()):
            pass
    with alone(disk.cache, disk.cache.disks()):
        pass


# --- what is in it --------------------------------------------------------------------------------------------------


def times(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "name",
    [
        *(f"disk/{KEY}/{part}" for part in ("ac", "cas/ab", "tmp")),
        *(f"repository/content_addressable{part}" for part in ("", "/sha256", f"/sha256/{'ab' * 32}")),
    ],
)
def test_no_link_that_a_container_left_leads_the_host_out_of_the_cache(disk: Disk, tmp_path: Path, name: str) -> None:
    disk.blob(b"x")
    outside, old = tmp_path / "outside", time.time() - 99 * DAY
    for inside in ("ab" * 32, "cd/" + "cd" * 32, "sha256/" + "ef" * 32 + "/file", "file"):
        (outside / inside).parent.mkdir(parents=True, exist_ok=True)
        (outside / inside).write_bytes(b"secret")
        os.utime(outside / inside, (old + DAY, old))
    before = times(outside)
    link = disk.cache.root / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    verify_cache(disk.disk, repair=True)
    maintenance.prune(disk.cache, max_size=0, before=time.time() + DAY)
    assert remove_changed_downloads(disk.cache.repository, 0) in ([], [name.removeprefix("repository/")])
    maintenance.clean(disk.cache)
    assert times(outside) == before
    assert not os.path.lexists(link)


def test_a_cache_without_a_file_is_empty(disk: Disk) -> None:
    assert disk.disk.is_empty()
    (disk.disk.folder / "cas/ab").mkdir(parents=True)
    assert disk.disk.is_empty()
    disk.blob(b"x")
    assert not disk.disk.is_empty()


@pytest.mark.parametrize("old", [False, True])
def test_both_of_bazels_layouts_are_read(tmp_path: Path, old: bool) -> None:
    disk = Disk(tmp_path, old=old)
    key = disk.action(b"object")
    found = listing(disk.disk)
    assert set(found.actions) == {key}
    assert disk.paths(*found.blobs.values(), *found.actions.values()) == disk.files
    assert found.needs(key) == (sha256(b"object"),)
    assert not found.half
    assert not found.foreign
    assert len(found.contents().actions[key].blobs) == 3


def test_what_is_nothing_of_bazels_is_foreign_and_no_link_is_followed(disk: Disk, tmp_path: Path) -> None:
    disk.action(b"x")
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / sha256(b"secret")
    secret.write_bytes(b"secret")
    name = "ab" * 32
    strange: dict[Path, Callable[[Path], object]] = {
        disk.path("cas", name): lambda path: path.symlink_to(secret),
        disk.disk.folder / "cas/zz": lambda path: path.symlink_to(outside),
        disk.disk.folder / "notes.txt": lambda path: path.touch(),
        disk.disk.folder / "cas/00" / name: lambda path: path.touch(),
        disk.disk.folder / "cas/ab" / f"{name}.part": lambda path: path.touch(),
        disk.disk.folder / "cas/ab" / ("AB" * 32): lambda path: path.touch(),
        disk.disk.folder / "a/b/c/d": lambda path: path.mkdir(),
        disk.disk.folder / "fifo": os.mkfifo,
    }
    for path, make in strange.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    half = [disk.disk.folder / place / "0f8fad5b-d9cb-469f-a165-70867728950e" for place in ("", "tmp", "cas/0f")]
    for path in half:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    found = listing(disk.disk)
    assert disk.paths(*found.foreign) == set(strange)
    assert disk.paths(*found.half) == set(half)
    sound = disk.paths(*found.blobs.values(), *found.actions.values())
    assert sound == disk.files - {*strange, *half}
    result = verify_cache(disk.disk, repair=True)
    assert {finding.kind for finding in result.findings} == {"foreign"}
    maintenance.prune(disk.cache, max_size=0)
    assert all(os.path.lexists(path) for path in strange), "what is not Bazel's is not ours to remove"
    assert secret.read_bytes() == b"secret"
    assert not any(path.exists() for path in half)


def test_a_link_in_place_of_a_part_is_not_followed(tmp_path: Path) -> None:
    elsewhere = Disk(tmp_path / "elsewhere")
    elsewhere.action(b"x")
    cache = CacheFolder.opened(tmp_path / "cache")
    (cache.root / "disk").symlink_to(elsewhere.cache.root / "disk")
    (cache.root / "output").symlink_to(tmp_path)
    assert cache.disks() == []
    assert cache.parts() == {}
    assert maintenance.outputs(cache) == []
    maintenance.prune(cache, max_size=0, before=time.time() + DAY)
    maintenance.clean(cache)
    assert verify_cache(elsewhere.disk).actions == 1


def test_files_that_disappear_meanwhile_are_no_error(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    key = disk.action(b"x")
    disk.action(b"y")
    real = DiskCache.entries

    def racing(self: DiskCache) -> Iterable[object]:
        entries = list(real(self))
        disk.path("ac", key).unlink(missing_ok=True)
        disk.path("cas", sha256(b"x")).unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(DiskCache, "entries", racing)
    assert not verify_cache(disk.disk).findings
    maintenance.prune(disk.cache, max_size=0)


def test_what_cannot_be_read_is_not_said_to_be_sound_or_unused(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.action(b"x")
    closed, scandir = os.fspath(disk.disk.folder / "cas"), os.scandir

    def denied(folder: Any) -> Any:
        where = Path(f"/proc/self/fd/{folder}").readlink() if isinstance(folder, int) else folder
        if os.fspath(where).startswith(closed):  # root may read everything
            raise PermissionError(errno.EACCES, "Permission denied", closed)
        return scandir(folder)

    before = disk.files
    monkeypatch.setattr(os, "scandir", denied)
    for look in (lambda: verify_cache(disk.disk, repair=True), lambda: maintenance.prune(disk.cache, max_size=0)):
        with pytest.raises(PermissionError):
            look()
    assert folder_size(disk.disk.folder) > 0, "a size is of what can be seen"
    monkeypatch.undo()
    assert disk.files == before


def test_what_is_too_large_for_a_message_is_not_read_into_memory(disk: Disk, tmp_path: Path) -> None:
    huge, tree = 512 << 20, "ab" * 32
    hollow(disk.path("ac", "cd" * 32), huge)
    hollow(disk.path("cas", tree), huge)
    named = part(3, part(1, b"folder") + part(3, part(1, tree.encode()) + part(2, huge)))
    (tmp_path / "action").write_bytes(named)
    stored = StoredCache(ImageRef("ci/cache", "127.0.0.1:1"), lambda: None)  # nobody asks it
    taking = CachePull(stored, print, disk.disk, tmp_path, blobs={tree: f"cas/ab/{tree}"})
    tracemalloc.start()
    assert inventory(disk.disk).actions == []
    assert not taking._is_complete(tmp_path / "action")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


# --- what was used when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["size", "age"])
def test_the_entries_whose_later_time_is_the_oldest_go(disk: Disk, limit: str) -> None:
    now = time.time()
    keys = []
    for read, written in ((1, 9), (9, 1), (5, 6)):  # days ago
        keys.append(disk.action(b"%d" % read * 5000))
        os.utime(disk.path("ac", keys[-1]), (now - read * DAY, now - written * DAY))
    if limit == "size":
        maintenance.prune(disk.cache, max_size=folder_size(disk.cache.root) - 1)
    else:
        maintenance.prune(disk.cache, before=now - 3 * DAY)
    assert set(listing(disk.disk).actions) == set(keys[:2])
    assert listing(disk.disk).used == pytest.approx(now - DAY, abs=1)
    assert not verify_cache(disk.disk).findings


def test_a_build_is_noted_by_its_build_id_alone_and_notes_of_older_versions_count(disk: Disk) -> None:
    assert disk.disk.last_build("tf") is None
    disk.disk.note_build("tf")
    note = disk.disk.about / "builds/tf"
    note.write_bytes(b'{"build_id": "tf", "run": "", "when": 1, "seen": true}\n' + bytes(64))
    os.utime(note, (DAY, DAY))
    assert disk.disk.last_build("tf") == DAY
    disk.disk.note_build("tf")
    assert disk.disk.last_build("tf") == pytest.approx(time.time(), abs=60)
    assert note.read_bytes() == b""


# --- is it sound? ---------------------------------------------------------------------------------------------------


def test_a_sound_cache_has_nothing_amiss(disk: Disk) -> None:
    disk.action(b"x", b"y")
    disk.blob(b"nobody's")
    result = verify_cache(disk.disk)
    assert (result.actions, result.blobs, result.findings) == (1, 5, ())


def spoil(name: str, disk: Disk, key: str) -> set[Path]:
    """Damage a cache in one way; what is to go."""
    blob, entry = disk.path("cas", sha256(b"object")), disk.path("ac", key)
    if name == "missing":
        blob.unlink()
    elif name.startswith("action"):
        entry.write_bytes(entry.read_bytes()[:-9] if name == "action cut" else b"")
        return {entry}
    else:
        blob.write_bytes(b"objekt" if name == "damaged" else b"obj")
    return {entry, blob}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("damaged", ["damaged", "incomplete"]), ("truncated", ["truncated", "incomplete"]),
        ("missing", ["incomplete"]), ("action cut", ["unreadable"]), ("action empty", ["truncated"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("old", [False, True])
def test_what_is_wrong_is_named_and_repaired_with_what_needs_it(
    tmp_path: Path, name: str, kinds: list[str], old: bool
) -> None:
    disk = Disk(tmp_path, old=old)
    key, _ = disk.action(b"object"), disk.action(b"sound")
    before = disk.files
    doomed = spoil(name, disk, key)
    result = verify_cache(disk.disk)
    assert [finding.kind for finding in result.findings] == kinds
    assert result.findings[0].harms is (name != "missing")
    assert disk.files >= before - doomed, "looking changes nothing"
    assert verify_cache(disk.disk, repair=True).findings == result.findings
    assert disk.files == before - doomed
    assert not verify_cache(disk.disk).findings


def hollow(path: Path, size: int = 8 << 40) -> Path:
    """A file that says so many bytes and holds next to none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"x")
        file.truncate(size)
    return path


def test_entries_of_holes_are_amiss_and_are_not_read(disk: Disk) -> None:
    """To hash eight tebibytes of nothing takes hours."""
    key = disk.action(b"object")
    blob, action = hollow(disk.path("cas", sha256(b"object"))), hollow(disk.path("ac", "ab" * 32), 60 << 20)
    found = verify_cache(disk.disk, repair=True).findings
    kinds = {blob: "damaged", action: "unreadable", disk.path("ac", key): "incomplete"}
    assert {one.path: one.kind for one in found} == kinds
    assert not blob.exists()


def test_a_stop_is_heard_while_a_large_blob_is_hashed(disk: Disk) -> None:
    disk.blob(os.urandom(1 << 20) * 64)
    asked: list[None] = []
    assert not verify_cache(disk.disk, check=lambda: asked.append(None)).findings
    assert len(asked) > 16


def test_a_file_with_some_holes_is_what_its_bytes_are(disk: Disk) -> None:
    """Linkers leave holes, and a copy may keep them."""
    data = os.urandom(1 << 20) + bytes(4 << 20) + os.urandom(1 << 20)
    disk.action(data)
    with disk.path("cas", sha256(data)).open("wb") as file:
        file.write(data[: 1 << 20])
        file.seek(5 << 20)
        file.write(data[5 << 20 :])
    assert not verify_cache(disk.disk).findings
    assert len(inventory(disk.disk).actions) == 1


def test_a_folder_among_the_outputs_needs_its_files_too(disk: Disk) -> None:
    tree = part(1, part(1, part(1, b"a") + part(2, digest(b"leaf"))))
    key = disk.action(b"x", more=part(3, part(1, b"folder") + part(3, digest(tree))))
    disk.blob(tree)
    disk.blob(b"leaf")
    assert not verify_cache(disk.disk).findings
    assert maintenance.prune(disk.cache).size == 0
    disk.path("cas", sha256(b"leaf")).unlink()
    (finding,) = verify_cache(disk.disk).findings
    assert (finding.kind, finding.path) == ("incomplete", disk.path("ac", key))


# --- smaller --------------------------------------------------------------------------------------------------------


def test_what_no_action_needs_goes_and_the_rest_stays(disk: Disk) -> None:
    disk.action(b"x")
    disk.write("ac", "cd" * 32, file(b"x"))
    before = disk.files
    disk.blob(b"left by a build that was killed")
    found = maintenance.prune(disk.cache)
    assert found.size == len(b"left by a build that was killed")
    assert disk.files == before


def test_the_least_recently_used_go_first_and_what_they_share_with_others_stays(disk: Disk) -> None:
    now = time.time()
    keys = [disk.action(b"shared", b"%d" % number * 5000, used=now - number * DAY) for number in (1, 2, 3)]
    size = listing(disk.disk).size
    others = folder_size(disk.cache.root) - size
    verify_cache(disk.disk)  # looking is no use
    dry = maintenance.prune(disk.cache, max_size=others + size - 6000, dry_run=True)
    assert len(listing(disk.disk).actions) == 3
    found = maintenance.prune(disk.cache, max_size=others + size - 6000)
    assert (dry.size, dry.left) == (found.size, found.left)
    assert set(listing(disk.disk).actions) == {keys[0]}
    assert found.reached
    assert found.left == folder_size(disk.cache.root) <= others + size - 6000
    assert disk.path("cas", sha256(b"shared")) in disk.files
    assert not verify_cache(disk.disk).findings


def test_a_disk_cache_of_which_nothing_stays_goes_with_what_is_known_of_it(disk: Disk) -> None:
    disk.action(b"x", used=1)
    disk.disk.describe({"bazel": "1"})
    maintenance.prune(disk.cache, before=time.time())
    assert sorted(path.name for path in disk.cache.root.rglob("*") if path.is_file()) == [TAG]


def test_output_bases_of_runs_that_are_over_and_old_downloads_go(disk: Disk) -> None:
    base = disk.cache.run_folder("20261121-104600-3fa9c1") / "base"
    base.mkdir(parents=True)
    (base / "object").write_bytes(b"x" * 4096)
    base.chmod(0o500)  # as Bazel leaves folders
    downloads = {disk.cache.root / "dependencies": 16, disk.cache.root / "repository/content_addressable/sha256": 64}
    now = time.time()
    for name, fetched, read in (("0", 9, 8), ("1", 9, 1), ("2", 1, 1)):
        for folder, length in downloads.items():
            path = folder / (name * length)
            path.mkdir(parents=True)
            (path / "file").write_bytes(b"w" * 1000)
            os.utime(path / "file", (now - read * DAY, now - fetched * DAY))
            os.utime(path, (now, now - fetched * DAY))
    found = maintenance.prune(disk.cache, before=now - 5 * DAY)
    assert (found.size, found.downloads) == (6096, 2000)
    assert [output.run for output in found.outputs] == ["20261121-104600-3fa9c1"]
    assert not base.exists()
    assert [sorted(path.name[:1] for path in folder.iterdir()) for folder in downloads] == [["1", "2"]] * 2


# --- what a push takes along ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [b"-march=native", b"-Wp,-mtune=native", b"-mcpu=native"])
def test_what_was_compiled_for_this_cpu_alone_stays_here(disk: Disk, option: bytes) -> None:
    """The key does not name the CPU: another machine would take it for its own."""
    portable = disk.action(b"portable", option=b"-march=x86-64-v3")
    disk.action(b"native", option=option)
    unsaid = disk.action(b"of a Bazel that keeps no commands")
    disk.path("cas", unsaid).unlink()
    found = inventory(disk.disk)
    assert (found.native, found.incomplete) == (1, 0)
    assert {action.entry.name[-64:] for action in found.actions} == {portable, unsaid}


@pytest.mark.parametrize("kind", ["of holes", "too large"])
def test_what_cannot_be_sent_is_left_out_with_the_actions_that_need_it(
    disk: Disk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "too large":
        monkeypatch.setattr("tfdock.bazel.cache.cache_push.LARGEST", 1000)
    data = os.urandom(1001)
    disk.action(data)
    sound = disk.action(b"sound")
    if kind == "of holes":
        hollow(disk.path("cas", sha256(data)), 2 << 20)
    found = inventory(disk.disk)
    assert [action.entry.name[-64:] for action in found.actions] == [sound]
    assert (found.incomplete, sha256(data) in found.blobs) == (1, False)


# --- the command ----------------------------------------------------------------------------------------------------


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TFDOCK_CACHE_DIR", str(disk.cache.root))
    monkeypatch.setenv("TFDOCK_STATE_DIR", str(tmp_path / "state"))

    def go(*words: str) -> tuple[int, str, str]:
        result = command_line.run("cache", *words, COLUMNS="1000")
        return result.exit_code, result.stdout, result.stderr

    return go


def test_list_says_what_takes_how_much_and_when_it_was_used(run: Run, disk: Disk, tmp_path: Path) -> None:
    for data in (b"a" * 3000, b"b" * 500):
        disk.action(data, used=time.time() - 3 * DAY)
    disk.disk.describe({"bazel": "6.5.0", "base": "tensorflow/build:2.18-python3.11"})
    (disk.cache.run_folder("20261121-104600-3fa9c1")).mkdir(parents=True)
    code, text, _ = run("list")
    assert code == 0
    assert f"{KEY}  " in text
    assert "Bazel 6.5.0 in tensorflow/build:2.18-python3.11" in text
    assert "3 days ago" in text
    assert "20261121-104600-3fa9c1" in text
    document = json.loads(run("list", "--json")[1])
    assert document["schema"] == "tfdock.cache-list/1"
    (row,) = document["toolchains"]
    assert (row["key"], row["actions"], row["size"]) == (KEY, 2, listing(disk.disk).size)
    assert row["builds"] == []
    assert document["outputs"][0]["in_use"] is False
    assert document["size"] == sum(document["parts"].values())
    entry = RunEntry(run="20261121-104600-3fa9c1", build_id="tf", staging="", output="")
    with journal.running(tmp_path / "state", entry):
        assert json.loads(run("list", "--json")[1])["outputs"][0]["in_use"] is True
        assert "in use" in run("list")[1]
    # An output base that outlives its run has a lock and no entry.
    with held(disk.cache.output_lock("20261121-104600-3fa9c1"), "the output base", alone=True):
        assert json.loads(run("list", "--json")[1])["outputs"][0]["in_use"] is True
    assert json.loads(run("list", "--json")[1])["outputs"][0]["in_use"] is False


def test_a_time_that_no_calendar_has_is_no_reason_to_fail(
    run: Run, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.action(b"x")
    monkeypatch.setattr(Listing, "used", 1e18)  # not every file system keeps it
    (row,) = json.loads(run("list", "--json")[1])["toolchains"]
    assert row["used"] == "9999-12-31T23:59:59+00:00"
    assert run("list")[0] == 0


def test_list_of_what_is_not_there_is_empty(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFDOCK_CACHE_DIR", str(tmp_path / "absent"))
    assert json.loads(run("list", "--json")[1])["toolchains"] == []
    assert run("prune", "--max-size", "1G")[0] == 0
    code, _, told = run("verify")
    assert (code, "has no disk cache yet" in told) == (0, True)
    assert run("clean", "--yes")[0] == 0
    assert not (tmp_path / "absent").exists()


def test_verify_names_a_damaged_entry_and_repairs_it(run: Run, disk: Disk) -> None:
    spoil("damaged", disk, disk.action(b"object"))
    code, text, told = run("verify")
    assert code == 4
    assert f"damaged: {disk.path('cas', sha256(b'object'))}" in text
    assert "--repair" in told
    code, text, _ = run("verify", "--json", "--toolchain", KEY)
    document = json.loads(text)
    assert (code, document["ok"]) == (4, False)
    assert [finding["kind"] for finding in document["toolchains"][0]["findings"]] == ["damaged", "incomplete"]
    assert run("verify", "--repair")[0] == 0
    assert run("verify")[0] == 0


def test_what_takes_things_away_is_refused_while_somebody_uses_the_cache(run: Run, disk: Disk) -> None:
    disk.action(b"x")
    with disk.disk.held(alone=False):
        for words in (["prune"], ["clean", "--yes"], ["clean", "--toolchain", KEY, "--yes"], ["verify", "--repair"]):
            code, _, told = run(*words)
            assert code == 9, words
            assert "[cache-locked]" in told
        assert run("verify")[0] == 0
        assert run("list")[0] == 0
    assert run("prune")[0] == 0


@pytest.mark.slow
def test_prune_enters_folders_that_a_build_shut(disk: Disk) -> None:
    key = disk.action(b"x" * 5000, used=1.0)
    for folder in (disk.path("ac", key).parent, disk.disk.folder / "cas"):
        folder.chmod(0)
    # Root enters every folder, unless it gives that right up.
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*without, sys.executable, "-m", "tfdock", "cache", "prune", "--max-size", "1KiB", "--cache-dir"]
    done = subprocess.run([*command, disk.cache.root], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert disk.files == set()


def test_prune_says_what_went_and_when_it_could_not_be_enough(run: Run, disk: Disk) -> None:
    disk.action(b"x" * 2000)
    size = folder_size(disk.disk.folder)
    download = disk.cache.repository / "content_addressable/sha256" / ("ab" * 32) / "file"
    download.parent.mkdir(parents=True)
    download.write_bytes(b"y" * 2000)
    code, text, told = run("prune", "--max-size", "1K", "--dry-run")
    assert code == 0
    assert "would remove 1 actions and 3 blobs, 2." in text
    assert "[cache-size-not-reached]" in told
    document = json.loads(run("prune", "--max-size", "1KiB", "--json")[1])
    assert (document["reached"], document["size"], document["downloads"]) == (False, size, 0)
    assert (document["toolchains"][0]["blobs"], document["toolchains"][0]["builds"]) == (3, [])
    assert not disk.disk.folder.exists()
    assert run("prune", "--older-than", "0m")[0] == 0
    assert not download.exists()


@pytest.mark.parametrize(
    "words",
    [
        "--max-size much",
        "--max-size 10parsecs",
        "--max-size 10",
        "--max-size=",
        "--older-than 30",
        "--older-than=-1d",
    ],
)
def test_a_limit_that_cannot_be_read_removes_nothing(run: Run, disk: Disk, words: str) -> None:
    disk.blob(b"x")
    code, _, told = run("prune", *words.split())
    assert (code, "[limit-unreadable]" in told) == (2, True)
    assert disk.files


def test_images_without_a_name_go_and_one_that_is_used_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    for number in (1, 2):
        engine.images[f"{number}"] = ImageInfo(id=f"sha256:{number}", labels={IMAGE_LABEL: "1"}, size=5)
    engine.images["tfdock/x:1"] = ImageInfo(id="sha256:3", tags=("tfdock/x:1",), labels={IMAGE_LABEL: "1"})
    engine.images["other"] = ImageInfo(id="sha256:4")
    monkeypatch.setattr(command, "local_engine", lambda: engine)
    assert "2 images" in run("prune", "--images", "--dry-run")[1]
    assert len(engine.images) == 4
    engine.fail_next("remove_image", EngineError(Problem(code="engine-refused", message="a container uses it")))
    code, text, told = run("prune", "--images")
    assert code == 0
    assert "removed 1 images" in text
    assert "a container uses it" in told
    assert {info.id for info in engine.images.values()} == {"sha256:1", "sha256:3", "sha256:4"}


def test_clean_takes_one_toolchain_or_everything_but_the_mark(run: Run, disk: Disk) -> None:
    disk.action(b"x")
    disk.disk.note_build("tf")
    (disk.cache.root / "repository/x").mkdir(parents=True)
    assert run("clean")[0] == 2, "no terminal to ask for confirmation"
    with disk.cache.in_use():  # it asks first: no build waits for an answer
        assert "[cache-clean-unasked]" in run("clean")[2]
    code, _, told = run("clean", "--toolchain", "f" * 16, "--yes")
    assert (code, "[cache-toolchain-unknown]" in told) == (2, True)
    assert run("clean", "--toolchain", KEY, "--yes")[0] == 0
    assert disk.cache.disks() == []
    assert not disk.disk.about.exists()
    assert (disk.cache.root / "repository/x").exists()
    assert run("clean", "--yes")[0] == 0
    assert sorted(path.name for path in disk.cache.root.iterdir()) == [TAG, "locks"]


def test_a_folder_of_somebody_elses_is_never_cleaned(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home/output").mkdir(parents=True)
    (tmp_path / "home/thesis").touch()
    monkeypatch.setenv("TFDOCK_CACHE_DIR", str(tmp_path / "home"))
    for words in (["clean", "--yes"], ["prune"], ["list"], ["verify"]):
        code, _, told = run(*words)
        assert (code, "[cache-foreign]" in told) == (2, True), words
    assert (tmp_path / "home/output").is_dir()
