"""Results leave a container by one function: expected plain files, bounded, into a folder no container has seen."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_engine import FakeEngine

from tfdock.engine.protocol import ContainerSpec
from tfdock.errors import EngineError, TfdockError
from tfdock.host.supervise import Stop
from tfdock.run import results
from tfdock.run.containers import copy_in
from tfdock.run.results import copy_from_archive, copy_from_folder
from tfdock.run.supervisor import Supervisor
from tfdock.types import ExpectedFiles, Mount

SECRET = b"a file of the user\n"
EXPECTED = (
    ExpectedFiles(pattern="done", size=100),
    ExpectedFiles(pattern="raw/*.whl", most=2, size=1000),
    ExpectedFiles(pattern="events.json", size=1000, optional=True),
)
NAMES = ("done", "raw/a.whl", "raw", "events.json")  #: Every name in the folder that the host looks at.

Collect = Callable[[], list[str]]


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder of the user that no container may reach."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    (folder / "a.whl").write_bytes(SECRET)
    return folder


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """Return a folder in which a container left what is expected, and more."""
    folder = tmp_path / "staging"
    (folder / "raw").mkdir(parents=True)
    for name, text in (
        ("done", "run"),
        ("raw/a.whl", "wheel"),
        ("events.json", "{}"),
        ("sealed", "no"),
        ("raw/x", "no"),
    ):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture(params=["folder", "archive"])
def collect(request: pytest.FixtureRequest, staging: Path, kept: Path) -> Collect:
    """Return the function that collects the results, here or from an engine elsewhere."""
    if request.param == "folder":
        return lambda: copy_from_folder(staging, EXPECTED, kept)
    return lambda: copy_from_archive(archive(staging), EXPECTED, kept)


def archive(folder: Path) -> Iterator[bytes]:
    """Yield the archive that an engine makes of a folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, "staging")
    packed.seek(0)
    yield from iter(lambda: packed.read(1000), b"")


def copies(kept: Path) -> dict[str, bytes]:
    """Return the files that were copied."""
    return {path.relative_to(kept).as_posix(): path.read_bytes() for path in kept.rglob("*") if not path.is_dir()}


def refusal(collect: Collect, kept: Path) -> str:
    """Return what the refusal says; nothing is left of the copies."""
    with pytest.raises(TfdockError) as caught:
        collect()
    problem = caught.value.problems[0]
    assert problem.code == "container-file-refused"
    assert problem.why
    assert problem.fix
    assert not kept.exists()
    return problem.message


def clear(path: Path) -> None:
    if path.is_dir():
        for one in path.iterdir():
            one.unlink()
        path.rmdir()
    else:
        path.unlink()


def test_expected_files_are_copied_for_their_owner_alone_and_nothing_else(collect: Collect, kept: Path) -> None:
    assert collect() == []
    assert copies(kept) == {"done": b"run", "raw/a.whl": b"wheel", "events.json": b"{}"}
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (kept, *kept.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_what_an_earlier_container_left_is_not_among_the_copies(collect: Collect, staging: Path, kept: Path) -> None:
    collect()
    (staging / "raw/a.whl").rename(staging / "raw/b.whl")
    collect()
    assert sorted(copies(kept)) == ["done", "events.json", "raw/b.whl"]


def test_no_copy_fills_the_disk(collect: Collect, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 1,000 bytes 50 stay free, and the wheel has 5.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(1000, 946, 54))
    with pytest.raises(OSError, match="No space left") as caught:
        collect()
    assert caught.value.filename == str(kept)
    assert not kept.exists()


def test_a_container_that_left_nothing_has_no_results(collect: Collect, staging: Path, kept: Path) -> None:
    for name in ("done", "raw", "events.json"):
        clear(staging / name)
    assert collect() == []
    assert copies(kept) == {}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "target",
    ["{outside}/secret", "../home/secret", "{outside}", "../home", "/dev/zero", "/proc/self/environ", "loop"],
)
def test_a_link_in_the_place_of_a_result_is_refused(
    name: str, target: str, collect: Collect, staging: Path, kept: Path, outside: Path
) -> None:
    clear(staging / name)
    (staging / "loop").symlink_to("loop")
    (staging / name).symlink_to(target.format(outside=outside))
    if name == "events.json":  # a build counts without it
        (told,) = collect()
        assert name not in copies(kept)
    else:
        told = refusal(collect, kept)
    assert f"`{name}`" in told
    assert {path.read_bytes() for path in outside.iterdir()} == {SECRET}
    assert all(SECRET not in data for data in (copies(kept) if kept.exists() else {}).values())


@pytest.mark.parametrize("name", NAMES)
def test_a_fifo_in_the_place_of_a_result_is_refused_at_once(
    name: str, collect: Collect, staging: Path, kept: Path
) -> None:
    clear(staging / name)
    os.mkfifo(staging / name)
    if name == "events.json":
        assert len(collect()) == 1
    else:
        assert f"`{name}`" in refusal(collect, kept)


def test_a_socket_in_the_place_of_a_result_is_refused(staging: Path, kept: Path) -> None:
    clear(staging / "done")
    os.mknod(staging / "done", stat.S_IFSOCK | 0o600)
    assert "a socket is there" in refusal(lambda: copy_from_folder(staging, EXPECTED, kept), kept)


def test_a_folder_in_the_place_of_a_result_does_not_leave(collect: Collect, staging: Path, kept: Path) -> None:
    clear(staging / "events.json")
    (staging / "events.json").mkdir()
    collect()
    assert sorted(copies(kept)) == ["done", "raw/a.whl"]


def test_a_file_with_a_second_name_is_refused(staging: Path, kept: Path) -> None:
    (staging / "done").unlink()
    (staging / "done").hardlink_to(staging / "raw/x")
    assert "second name" in refusal(lambda: copy_from_folder(staging, EXPECTED, kept), kept)


def test_a_sparse_file_that_nobody_could_read_to_its_end_is_refused(staging: Path, kept: Path) -> None:
    os.truncate(staging / "raw/a.whl", 4 << 40)
    told = refusal(lambda: copy_from_folder(staging, EXPECTED, kept), kept)
    assert "`raw/a.whl`" in told
    assert "4,398,046,511,104 bytes, but only 1,000 are allowed" in told


def test_a_file_with_holes_within_the_bounds_is_refused_and_one_without_is_taken(staging: Path, kept: Path) -> None:
    expected = [ExpectedFiles(pattern="raw/*.whl", most=2, size=1 << 30)]
    (staging / "raw/a.whl").write_bytes(bytes(1 << 20))
    assert copy_from_folder(staging, expected, kept) == []
    assert copies(kept)["raw/a.whl"] == bytes(1 << 20), "zeros are no hole"
    os.truncate(staging / "raw/a.whl", 1 << 30)
    assert "it is a sparse file" in refusal(lambda: copy_from_folder(staging, expected, kept), kept)
    optional = [replace(expected[0], optional=True)]
    (told,) = copy_from_folder(staging, optional, kept)
    assert "it is a sparse file" in told
    assert copies(kept) == {}


def test_the_bound_is_for_all_files_of_a_pattern_together(collect: Collect, staging: Path, kept: Path) -> None:
    (staging / "raw/a.whl").write_bytes(bytes(600))
    (staging / "raw/b.whl").write_bytes(bytes(400))
    collect()
    assert len(copies(kept)["raw/b.whl"]) == 400
    (staging / "raw/b.whl").write_bytes(bytes(401))
    assert ".whl`" in refusal(collect, kept)


def test_one_file_too_many_is_refused(collect: Collect, staging: Path, kept: Path) -> None:
    for name in ("b", "c"):
        (staging / f"raw/{name}.whl").touch()
    assert "there are more than 2 such files" in refusal(collect, kept)


def test_a_folder_with_too_many_names_is_refused_soon(
    collect: Collect, staging: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_MOST", 500)
    for number in range(600):
        os.mknod(staging / f"raw/{number}")
    refusal(collect, kept)


@pytest.mark.parametrize("name", ["raw/a\nb.whl", "raw/\x1b]0;title\x07.whl", "raw/\udcff.whl"])
def test_a_name_that_would_disturb_a_line_is_refused_and_told_safely(
    name: str, collect: Collect, staging: Path, kept: Path
) -> None:
    (staging / name).touch()
    told = refusal(collect, kept)
    assert told.isascii()
    assert told.isprintable()


@pytest.mark.parametrize(
    "name", ["staging/../done", "/etc/done", "staging/raw/../../a.whl", "../done", "staging//done"]
)
def test_a_name_in_an_archive_that_leads_elsewhere_is_passed_over(name: str, kept: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 3
        tar.addfile(info, io.BytesIO(b"bad"))
    copy_from_archive([packed.getvalue()], EXPECTED, kept)
    assert set(copies(kept)) <= {"done"}
    assert not (kept.parent / "done").exists()


def test_a_broken_archive_is_one_clear_error(staging: Path, kept: Path) -> None:
    whole = b"".join(archive(staging))
    for broken in (b"no archive at all", whole[:700], b"\xff" * 4096):
        with pytest.raises(EngineError) as caught:
            copy_from_archive([broken], EXPECTED, kept)
        assert caught.value.problems[0].code == "container-file-refused"


@pytest.mark.slow
def test_a_process_that_swaps_a_result_for_a_link_all_the_time_gets_nothing(
    staging: Path, kept: Path, outside: Path
) -> None:
    over = threading.Event()
    folder, link = staging.parent / "own", staging.parent / "link"
    (staging / "raw").rename(folder)

    def swap() -> None:
        while not over.is_set():
            link.symlink_to(outside)
            folder.rename(staging / "raw")
            (staging / "raw").rename(folder)
            link.rename(staging / "raw")
            (staging / "raw").unlink()

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            try:
                copy_from_folder(staging, EXPECTED, kept)
                seen |= set(copies(kept).values())
            except TfdockError as error:
                seen.add(error.problems[0].code.encode())
            except FileNotFoundError:
                continue
    finally:
        over.set()
        thread.join()
    assert SECRET not in seen
    assert {path.read_bytes() for path in outside.iterdir()} == {SECRET}


def test_the_folder_itself_may_not_be_a_link(tmp_path: Path, kept: Path, outside: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError, match="a link"):
        copy_from_folder(tmp_path / "link", (ExpectedFiles(pattern="*", most=10),), kept)
    assert not kept.exists()


# --- mounts ---------------------------------------------------------------------------------------------------------


def mounted(supervisor: Supervisor, *mounts: tuple[Path, bool]) -> None:
    """Check the mounts of a container: folders, each with whether it is read-only."""
    rows = tuple(Mount(source=str(path), target=f"/{n}", read_only=only) for n, (path, only) in enumerate(mounts))
    copy_in(supervisor, spec(*rows))


def spec(*mounts: Mount) -> ContainerSpec:
    return ContainerSpec(name="x", image="i", command=("true",), mounts=mounts)


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor(engine=FakeEngine(), run_id="r", local=True, log=BytesIO(), listen=lambda _: None, stop=Stop())


def refused_mount(supervisor: Supervisor, *mounts: tuple[Path, bool]) -> str:
    with pytest.raises(EngineError) as caught:
        mounted(supervisor, *mounts)
    assert caught.value.problems[0].code == "mount-refused"
    return caught.value.problems[0].message


@pytest.mark.parametrize("part", ["verify", "verify/nothing"])
def test_a_folder_that_is_reached_through_a_link_is_not_mounted(
    part: str, supervisor: Supervisor, staging: Path, outside: Path
) -> None:
    (staging / part).parent.mkdir(exist_ok=True)
    (staging / part).symlink_to(outside)
    told = refused_mount(supervisor, (staging / "verify/nothing", True))
    assert str(outside) in told


def test_nothing_below_a_folder_that_a_container_could_write_is_mounted_again(
    supervisor: Supervisor, staging: Path
) -> None:
    mounted(supervisor, (staging, False))
    mounted(supervisor, (staging, False))  # the same folder goes to the next phase
    for read_only in (True, False):
        assert "a container could write" in refused_mount(supervisor, (staging / "raw", read_only))
        assert "a container could write" in refused_mount(supervisor, (staging / "raw/a.whl", read_only))


def test_two_mounts_of_one_container_may_not_lie_in_each_other(supervisor: Supervisor, staging: Path) -> None:
    refused_mount(supervisor, (staging / "raw", True), (staging, False))
    refused_mount(supervisor, (staging, False), (staging / "raw", True))


def test_a_folder_that_containers_only_read_may_be_mounted_in_parts(supervisor: Supervisor, staging: Path) -> None:
    mounted(supervisor, (staging, True))
    mounted(supervisor, (staging / "raw", True))


@pytest.mark.parametrize("source", ["relative/folder", "/tmp/../etc", ""])
def test_a_source_that_is_no_real_path_is_not_mounted(source: str, supervisor: Supervisor) -> None:
    with pytest.raises(EngineError) as caught:
        copy_in(supervisor, spec(Mount(source=source, target="/x")))
    assert caught.value.problems[0].code == "mount-refused"
