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
from fake_engine import FakeEngine

from tfdock.bazel.cache.cache_folder import CacheFolder, check_writable
from tfdock.builder import cleanup
from tfdock.engine.protocol import ContainerSpec, ImageInfo
from tfdock.errors import BuildFailed, EngineLost, Problem, ProfileError
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import remove_folder
from tfdock.knowledge import loader
from tfdock.run import journal
from tfdock.run.supervisor import clean_up_killed_runs
from tfdock.types import BuildId
from tfdock.wheelhouse.orphans import find_half_written
from tfdock.wheelhouse.store import Wheelhouse

USER = 1234
RUN = "20261121-104600-3fa9c1"


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
        assert f"cannot write to {deep}: the mode is dr-xr-xr-x" in said
        assert "chmod" in said
    monkeypatch.setattr(os, "geteuid", lambda: USER + 1)
    assert "was a build run as another user? `sudo chown" in refused(ordinary / "disk")
    read_only = os.statvfs_result((*os.statvfs(ordinary)[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: read_only)
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
    assert {one.path.path for one in find_half_written(house)} == paths


def test_a_file_that_somebody_writes_meanwhile_stays(settings: Settings, house: Wheelhouse) -> None:
    path = half(house, ".tfdock/tf1/0123456789ab/.record.json.12-13")
    engine = FakeEngine()
    (one,) = cleanup.find_leftovers(settings)
    with house.locked(BuildId("tf1")):
        kept = cleanup.remove_leftover(one, settings, engine, "")
        assert kept is not None
        assert "another run is building" in kept.why
    path.write_text("half again")  # by one with the same process id
    assert cleanup.remove_leftover(one, settings, engine, "") is None
    assert path.exists()
    (one,) = cleanup.find_leftovers(settings)
    assert cleanup.remove_leftover(one, settings, engine, "") is None
    assert not path.exists()
    assert cleanup.remove_leftover(one, settings, engine, "") is None, "as where another one was quicker"


def test_a_folder_of_another_user_hides_nothing(settings: Settings, house: Wheelhouse, ordinary: Path) -> None:
    settings = replace(settings, wheelhouse=ordinary / "wheels", state_dir=ordinary / "state")
    house = Wheelhouse(settings.wheelhouse)
    for name in ("tf1", "tf2"):
        half(house, f".tfdock/{name}/0123456789ab/.record.json.12-13")
    (house.root / ".tfdock/tf1").chmod(0o555)
    assert [cleanup.leftover_name(one).rpartition("/tf")[2][0] for one in cleanup.find_leftovers(settings)] == ["2"]


# --- runs -----------------------------------------------------------------------------------------------------------


def test_why_a_run_cannot_be_cleaned_up_is_said_in_one_sentence(settings: Settings) -> None:
    entry = journal.RunEntry(run=RUN, build_id="x", staging="/none", output="/none", engine="one")
    with journal.running(settings.state_dir, entry):
        pass
    engine = FakeEngine()
    (one,) = cleanup.find_leftovers(settings)
    engine.fail_next("containers", EngineLost(Problem(code="engine-lost", message="it was lost", fixes="start it")))
    assert cleanup.remove_leftover(one, settings, engine, "one") == cleanup.NotRemoved(why="it was lost")
    elsewhere = cleanup.remove_leftover(one, settings, engine, "two")
    assert elsewhere is not None
    assert str(journal.entry_folder(settings.state_dir, RUN)) in elsewhere.fix
    assert journal.killed_runs(settings.state_dir) == [entry]
    assert cleanup.remove_leftover(one, settings, engine, "one") is None
    assert cleanup.remove_leftover(one, settings, engine, "one") is None, "as where another one was quicker"
    assert journal.killed_runs(settings.state_dir) == []


def test_a_run_of_a_later_version_is_found_too(settings: Settings) -> None:
    entry = journal.RunEntry(run=RUN, build_id="x", staging="/none", output="/none")
    with journal.running(settings.state_dir, entry):
        file = journal.entry_folder(settings.state_dir, RUN) / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"more": 1}))
    assert journal.killed_runs(settings.state_dir) == [entry]
    file.write_text("[]")  # never completely written: nothing to be found by it
    assert journal.killed_runs(settings.state_dir) == []
    assert not file.parent.exists()


# --- entries that are not believed ----------------------------------------------------------------------------------


def noted(settings: Settings, name: str = RUN, /, **changes: object) -> Path:
    """Return the folder of an entry of a run that was killed. `changes` are what somebody wrote into it."""
    entry = journal.RunEntry(run=RUN, build_id="x", staging="", output="", engine="one")
    with journal.running(settings.state_dir, entry):
        folder = journal.entry_folder(settings.state_dir, RUN)
        file = folder / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder if name == RUN else folder.rename(folder.with_name(name))


def tidied(settings: Settings, engine: FakeEngine | None = None) -> list[cleanup.NotRemoved | None]:
    """Clean up as a build does at its start, then as `doctor --fix` does."""
    engine = engine or FakeEngine()
    info = replace(engine.info(), id="one")
    clean_up_killed_runs(engine, info, settings, lambda _: None)
    return [cleanup.remove_leftover(one, settings, engine, "one") for one in cleanup.find_leftovers(settings)]


def left_alone(settings: Settings) -> cleanup.NotRemoved:
    """What is told of the one thing that is not removed."""
    (kept,) = tidied(settings)
    assert kept is not None
    return kept


def precious(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "thesis").write_text("years of work")
    return folder


@pytest.mark.parametrize("field", ["staging", "output"])
def test_a_folder_that_the_settings_do_not_name_is_told_and_left_alone(
    settings: Settings, tmp_path: Path, field: str
) -> None:
    for name in (
        "home",
        f"other/.tfdock/staging/{RUN}",
        f"x/output/{RUN}",
        f"y/.tfdock/staging/{RUN[:-1]}0",
        "wheels",
    ):
        folder = precious(tmp_path / name)
        entry = noted(settings, **{field: str(folder)})
        kept = left_alone(settings)
        assert f"{folder} is left alone" in kept.why
        assert str(folder) in kept.fix
        assert (folder / "thesis").exists()
        shutil.rmtree(entry)


def test_what_another_wheelhouse_and_cache_hold_of_a_run_is_removed_with_them(
    settings: Settings, tmp_path: Path
) -> None:
    other = replace(settings, wheelhouse=tmp_path / "other wheels", cache_dir=tmp_path / "other")
    staging, output = Wheelhouse(other.wheelhouse).staging(RUN), CacheFolder(other.cache_dir).run_folder(RUN)
    entry = noted(settings, staging=str(precious(staging)), output=str(precious(output)))
    fix = left_alone(settings).fix
    assert f"`tfdock doctor --fix --cache-dir {tmp_path}/other --wheelhouse '{tmp_path}/other wheels'`" in fix
    assert entry.exists()
    assert tidied(other) == []
    assert not any(path.exists() for path in (staging, output, entry))


def test_an_entry_that_names_no_folder_of_its_run_removes_nothing(settings: Settings, tmp_path: Path) -> None:
    folder = precious(tmp_path / "home")
    entry = noted(settings, staging=str(tmp_path / "gone"), output=str(tmp_path / "gone"))
    assert tidied(settings) == []
    assert not entry.exists()
    assert (folder / "thesis").exists()


@pytest.mark.parametrize(
    ("run", "changes", "why"),
    [
        (RUN, {"run": "../../home"}, "has the id of another run"),
        (RUN, {"run": "20261121-104600-000000"}, "has the id of another run"),
        (RUN, {"run": f"{RUN}\n"}, "has the id of another run"),
        ("home", {"run": "home"}, "its name is not a run id"),
        (f"{RUN}\n", {"run": f"{RUN}\n"}, "its name is not a run id"),
    ],
)
def test_an_entry_with_another_run_id_is_told_and_left_alone(
    settings: Settings, tmp_path: Path, run: str, changes: dict[str, object], why: str
) -> None:
    folder = precious(tmp_path / "home")
    staging = precious(Wheelhouse(settings.wheelhouse).staging(RUN))
    entry = noted(settings, run, staging=str(staging), **changes)
    assert why in left_alone(settings).why
    assert all(path.exists() for path in (folder / "thesis", staging / "thesis", entry / "run.json"))


def test_links_in_the_journal_and_in_the_place_of_folders_are_told_and_left_alone(
    settings: Settings, tmp_path: Path
) -> None:
    home = precious(tmp_path / "home")
    staging = Wheelhouse(settings.wheelhouse).staging(RUN)
    staging.parent.mkdir(parents=True)
    staging.symlink_to(home)
    entry = noted(settings, staging=str(staging))
    assert "it is a link" in left_alone(settings).why
    file = entry / "run.json"
    file.replace(tmp_path / "run.json")
    file.symlink_to(tmp_path / "run.json")
    assert "it is not a file of this user" in left_alone(settings).why
    shutil.rmtree(entry)
    entry.symlink_to(home)
    assert "it is a link" in left_alone(settings).why
    assert [path.name for path in home.iterdir()] == ["thesis"]


def test_what_belongs_to_another_user_is_told_and_left_alone(settings: Settings, ordinary: Path) -> None:
    if os.getuid() != 0 and os.geteuid() != USER:
        pytest.fail("this test needs two users: run it as root")
    settings = replace(
        settings, state_dir=ordinary / "state", wheelhouse=ordinary / "wheels", cache_dir=ordinary / "cache"
    )
    output = precious(CacheFolder(settings.cache_dir).run_folder(RUN))
    entry = noted(settings, output=str(output))
    for path, why in ((output, "it belongs to another user"), (entry / "run.json", "it is not a file of this user")):
        os.setresuid(0, 0, 0)
        os.chown(path, USER + 1, -1)
        os.setresuid(USER, USER, 0)
        assert why in left_alone(settings).why
    assert output.exists()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("inside", [".", "runs"])
def test_a_state_folder_that_others_can_write_to_is_refused(settings: Settings, mode: int, inside: str) -> None:
    noted(settings)
    (settings.state_dir / inside).chmod(mode)
    for use in (lambda: tidied(settings), lambda: noted(settings), lambda: journal.living_runs(settings.state_dir)):
        with pytest.raises(ProfileError) as caught:
            use()
        (problem,) = caught.value.problems
        assert problem.code == "state-not-private"
        assert "chmod go-w" in problem.fix


def test_an_entry_removes_no_container_of_others(settings: Settings) -> None:
    engine = FakeEngine()
    engine.images["x"] = ImageInfo(id="x")

    def made(name: str, **labels: str) -> str:
        words = {f"io.tfdock.{key}": value for key, value in labels.items()}
        return engine.create(ContainerSpec(name=name, image="x", command=("true",), labels=words))

    ours, theirs = made("ours", run=RUN), made("theirs")
    other, run = made("other", run="20261121-104600-000000"), made("built", run="20261121-104600-000001", image="1")
    for step in ("theirs", theirs, other, run, "../x", f"{theirs}/json", "-f"):
        noted(settings, step=step)
        assert tidied(settings, engine) == []
    assert engine.state(ours) is None
    assert all(engine.state(one) for one in (theirs, other, run))


def test_the_folder_of_a_bundle_is_removed_by_its_exact_name(settings: Settings, tmp_path: Path) -> None:
    bundle = precious(tmp_path / f".bundle.tar.{RUN}")
    noted(settings, staging=str(bundle))
    assert tidied(settings) == []
    assert not bundle.exists()
    for name in (f"bundle.tar.{RUN}", f".{RUN}", f".bundle.tar.{RUN}.d", ".bundle.tar.20261121-104600-000000"):
        other = precious(tmp_path / name)
        entry = noted(settings, staging=str(other))
        left_alone(settings)
        assert (other / "thesis").exists()
        shutil.rmtree(entry)
    home = precious(tmp_path / "home")
    bundle.symlink_to(home)
    noted(settings, staging=str(bundle))
    assert "it is a link" in left_alone(settings).why
    assert (home / "thesis").exists()


def test_state_cache_and_staging_are_private(settings: Settings, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        noted(settings)
        CacheFolder.opened(settings.cache_dir)
        open_one = tmp_path / "open"
        open_one.mkdir(mode=0o755)
        CacheFolder.opened(open_one)
        loader.read_knowledge(cache=tmp_path / "first").releases  # noqa: B018 - reads a table, and keeps it
    finally:
        os.umask(before)
    runs = settings.state_dir / "runs"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (settings.state_dir, runs, runs / RUN)}
    assert set(modes.values()) == {0o700}
    assert stat.S_IMODE(settings.cache_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "first").stat().st_mode) == 0o700
    assert stat.S_IMODE(open_one.stat().st_mode) == 0o755, "a folder that is there keeps its mode"
