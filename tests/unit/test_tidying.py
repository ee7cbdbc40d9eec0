"""What killed runs left, and removing it: never what is somebody else's, and never beside one who is at it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tfdock.do import journal, tidying
from tfdock.do.cache import check_writable
from tfdock.do.engine.fake import FakeEngine
from tfdock.do.settings import Settings
from tfdock.do.wheelhouse.leftovers import half_written
from tfdock.do.workspace import Wheelhouse, remove_folder
from tfdock.errors import BuildFailed, EngineLost, Problem
from tfdock.model import BuildId

USER = 1234


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(wheelhouse=tmp_path / "wheels", cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")


@pytest.fixture
def house(settings: Settings) -> Wheelhouse:
    return Wheelhouse(settings.wheelhouse)


def half(house: Wheelhouse, name: str) -> Path:
    path = house.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("half")
    return path


@pytest.fixture
def ordinary() -> Iterator[Path]:
    """A folder of a user who is not root, as whom the test goes on."""
    folder = Path(tempfile.mkdtemp(prefix="tfdock-tidying-"))
    root = os.geteuid() == 0
    if root:  # the third is kept, to come back
        os.chown(folder, USER, USER)
        os.setresuid(USER, USER, 0)
    try:
        yield folder
    finally:
        if root:
            os.setresuid(0, 0, 0)
        shutil.rmtree(folder, ignore_errors=not root)


# --- folders --------------------------------------------------------------------------------------------------------


def test_a_folder_is_removed_whatever_its_modes_and_nothing_that_its_links_lead_to(ordinary: Path) -> None:
    outside = ordinary / "outside"
    outside.mkdir()
    (outside / "blob").write_text("of the cache")
    (outside / "blob").chmod(0o444)
    left = ordinary / "left"
    for number in range(30):
        deep = left / str(number) / "tree"
        deep.mkdir(parents=True)
        (deep / "nowhere").symlink_to("/tf/output/nowhere")
        (deep / "file").symlink_to(outside / "blob")
        (deep / "folder").symlink_to(outside)
        (deep / "same").hardlink_to(outside / "blob")
        deep.chmod(0o555)
        deep.parent.chmod(0o000 if number % 2 else 0o555)
    outside.chmod(0o555)
    with ThreadPoolExecutor(2) as pool:  # as two `doctor --fix` at once
        list(pool.map(remove_folder, [left, left]))
    assert not left.exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o555
    assert stat.S_IMODE((outside / "blob").stat().st_mode) == 0o444
    outside.chmod(0o755)


def refused(folder: Path, depth: int = 2) -> str:
    with pytest.raises(BuildFailed) as caught:
        check_writable(folder, depth)
    assert caught.value.problems[0].code == "folder-not-writable"
    return str(caught.value)


def test_a_folder_that_cannot_be_written_to_is_named_with_the_reason(
    ordinary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = ordinary / "disk" / "ac" / "00"
    deep.mkdir(parents=True)
    (ordinary / "link").symlink_to(ordinary / "disk")
    check_writable(ordinary / "none", 2)
    check_writable(ordinary / "link", 2)
    deep.chmod(0o555)
    check_writable(ordinary / "disk", 1)  # not so deep
    for folder in ("disk", "link"):
        said = refused(ordinary / folder)
        assert f"cannot write to {deep}: its mode is dr-xr-xr-x" in said
        assert "chmod" in said
    monkeypatch.setattr(os, "geteuid", lambda: USER + 1)
    assert "was a build run as another user? `sudo chown" in refused(ordinary / "disk")
    read_only = os.statvfs_result((*os.statvfs(ordinary)[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    said = refused(ordinary / "disk")
    assert "read-only" in said
    assert "chown" not in said


# --- files half written ---------------------------------------------------------------------------------------------


def test_what_a_kill_while_a_wheel_is_published_leaves_is_found(house: Wheelhouse) -> None:
    names = (
        ".tf1.constraints.txt.12-13",
        ".tensorflow-2.18.0-cp311-cp311-linux_x86_64.whl.metadata.12-13",
        ".tfdock/.index.json.12-13",
        "simple/tensorflow/.index.html.12-13",
        ".tfdock/tf1/0123456789ab/.record.json.12-13",
    )
    paths = {half(house, name) for name in names}
    for name in (".tfdock/tf1/0123456789ab/record.json", "notes.12-13", ".mine", "gone.whl.metadata"):
        half(house, name)
    assert {one.path for one in half_written(house)} == paths


def test_a_file_that_somebody_writes_meanwhile_stays(settings: Settings, house: Wheelhouse) -> None:
    path = half(house, ".tfdock/tf1/0123456789ab/.record.json.12-13")
    engine = FakeEngine()
    (one,) = tidying.found(settings)
    with house.locked(BuildId("tf1")):
        kept = tidying.removed(one, settings, engine, "")
        assert kept is not None
        assert "another run is building" in kept.why
    path.write_text("half again")  # by one with the same process id
    assert tidying.removed(one, settings, engine, "") is None
    assert path.exists()
    (one,) = tidying.found(settings)
    assert tidying.removed(one, settings, engine, "") is None
    assert not path.exists()
    assert tidying.removed(one, settings, engine, "") is None, "as where another one was quicker"


def test_a_folder_of_another_user_hides_nothing(settings: Settings, house: Wheelhouse, ordinary: Path) -> None:
    settings = replace(settings, wheelhouse=ordinary / "wheels", state_dir=ordinary / "state")
    house = Wheelhouse(settings.wheelhouse)
    for name in ("tf1", "tf2"):
        half(house, f".tfdock/{name}/0123456789ab/.record.json.12-13")
    (house.root / ".tfdock/tf1").chmod(0o555)
    assert [one.what.rpartition("/tf")[2][0] for one in tidying.found(settings)] == ["2"]


# --- runs -----------------------------------------------------------------------------------------------------------


def test_why_a_run_cannot_be_cleaned_up_is_said_in_one_sentence(settings: Settings) -> None:
    entry = journal.RunEntry(run="run1", build_id="x", staging="/none", output="/none", engine="one")
    with journal.running(settings.state_dir, entry):
        pass
    engine = FakeEngine()
    (one,) = tidying.found(settings)
    engine.fail_next("containers", EngineLost(Problem(code="engine-lost", message="it was lost", fix="start it")))
    assert tidying.removed(one, settings, engine, "one") == tidying.Kept(why="it was lost")
    elsewhere = tidying.removed(one, settings, engine, "two")
    assert elsewhere is not None
    assert str(journal.folder_of(settings.state_dir, "run1")) in elsewhere.fix
    assert journal.leftovers(settings.state_dir) == [entry]
    assert tidying.removed(one, settings, engine, "one") is None
    assert tidying.removed(one, settings, engine, "one") is None, "as where another one was quicker"
    assert journal.leftovers(settings.state_dir) == []


def test_a_run_of_a_later_version_is_found_too(settings: Settings) -> None:
    entry = journal.RunEntry(run="run1", build_id="x", staging="/none", output="/none")
    with journal.running(settings.state_dir, entry):
        file = journal.folder_of(settings.state_dir, "run1") / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"more": 1}))
    assert journal.leftovers(settings.state_dir) == [entry]
    file.write_text("[]")  # never completely written: nothing to be found by it
    assert journal.leftovers(settings.state_dir) == []
    assert not file.parent.exists()
