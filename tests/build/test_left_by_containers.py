"""What hostile code leaves in the folders of its containers: the host never follows it, and opens nothing there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_engine import FakeRun

from tfdock.engine.protocol import ContainerSpec
from tfdock.errors import BuildFailed

from .test_orchestration import Desk, leaving, mounts, wheel

SECRET = "a file of the user\n"

#: Names that the host once used in folders of containers: the build ends well without them.
HARMLESS = {
    "folders": (
        "/tf/staging/sealed", "/tf/staging/results", "/tf/staging/events.json", "/tf/staging/profile.gz",
        "/tf/staging/external.tar", "/tf/staging/requirements.json", "/tf/staging/.tfdock-probe",
        "/tf/output/verify", "/tf/output/requirements", "/tf/output/remote", "/tf/output/base", "/tf/output/tried",
        "/tf/output/again", "/tf/output/.tfdock-probe",
    ),
    "files": (
        "/tf/staging/sealed/wheel", "/tf/output/verify/nothing", "/tf/output/verify/request",
        "/tf/output/verify/work", "/tf/output/remote/forward.py",
    ),
}  # fmt: skip
#: Names without which there is no wheel, or one too many.
NEEDED = ("/tf/staging/raw", "/tf/staging/raw/x.whl", "/tf/staging/done", "/tf/staging/SHA256SUMS")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder of the user."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "secret").write_text(SECRET)
    return folder


def in_container(spec: ContainerSpec, place: str) -> Path | None:
    """Return where a path of the container lies on the host; None where it is not in a folder that it can write."""
    for mount in spec.mounts:
        if not mount.read_only and Path(place).is_relative_to(mount.target):
            return Path(mount.source) / Path(place).relative_to(mount.target)
    return None


def plant(spec: ContainerSpec, place: str, target: Path) -> None:
    """Put a link in a place, instead of what is there."""
    path = in_container(spec, place)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(path.with_name("moved"))
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def real_sources(desk: Desk) -> set[str]:
    created = [spec for (spec,) in desk.engine.called("create") if isinstance(spec, ContainerSpec)]
    return {os.path.realpath(mount.source) for spec in created for mount in spec.mounts if mount.kind == "bind"}


TARGETS = ("home/secret", "home", "home/new")


def hostile(desk: Desk, places: tuple[str, ...], target: Path) -> None:
    """Let both containers leave links in some places; the second one builds a wheel too."""

    def fetch(spec: ContainerSpec) -> None:
        for place in places:
            plant(spec, place, target)

    def compile_(spec: ContainerSpec) -> None:
        leaving(wheel())(spec)
        fetch(spec)

    desk.engine.phases = {"fetch": FakeRun(effect=fetch), "compile": FakeRun(effect=compile_)}


def check_nothing_was_reached(desk: Desk, home: Path) -> None:
    assert [path.name for path in home.iterdir()] == ["secret"]
    assert (home / "secret").read_text() == SECRET
    assert not [path for path in desk.settings.wheelhouse.rglob("*") if path.is_symlink()]
    allowed = (desk.settings.cache_dir, desk.settings.wheelhouse)
    assert all(any(Path(source).is_relative_to(root) for root in allowed) for source in real_sources(desk))
    assert desk.left_behind == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("places", HARMLESS.values(), ids=HARMLESS)
def test_links_that_a_container_leaves_lead_the_host_nowhere(
    places: tuple[str, ...], target: str, desk: Desk, home: Path
) -> None:
    hostile(desk, places, home.parent / target)
    assert desk.build().status == "built"
    check_nothing_was_reached(desk, home)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", NEEDED)
def test_a_link_in_the_place_of_a_needed_result_ends_the_build(
    place: str, target: str, desk: Desk, home: Path
) -> None:
    hostile(desk, (place,), home.parent / target)
    problem = desk.fails(BuildFailed, "container-file-refused", "compile")
    assert f"`{place.removeprefix('/tf/staging/')}`" in problem.message
    check_nothing_was_reached(desk, home)


# --- what the host opens --------------------------------------------------------------------------------------------

#: Events of Python about files, and how many of their arguments are paths: one, where they are not listed.
_PATHS = {"open": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2, "shutil.move": 2, "shutil.copyfile": 2}
_heard: list[tuple[str, str, str]] | None = None


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _heard is not None and (event == "open" or event.startswith(("os.", "shutil."))):
        for path in arguments[: _PATHS.get(event, 1)]:
            if isinstance(path, str | bytes | os.PathLike):
                _heard.append((event, os.fsdecode(path), threading.current_thread().name))


sys.addaudithook(_hear)


@contextmanager
def hearing() -> Iterator[list[tuple[str, str, str]]]:
    """Hear which paths the process opens, lists, renames and removes: event, path, name of the thread."""
    global _heard
    _heard = []
    try:
        yield _heard
    finally:
        _heard = None


def test_the_host_uses_no_path_below_a_folder_that_a_container_can_write(desk: Desk) -> None:
    with hearing() as heard:
        desk.build()
    created = [spec for (spec,) in desk.engine.called("create") if isinstance(spec, ContainerSpec)]
    written = {
        Path(one.source) for spec in created for one in spec.mounts if one.kind == "bind" and not one.read_only
    }
    assert len(written) > 3
    # A container of the engine in memory is a thread with the container's name.
    containers = {spec.name for spec in created}
    below = {
        (event, path)
        for event, path, thread in heard
        if thread not in containers and not written.isdisjoint(Path(path).parents)
    }
    assert below == set()


def test_the_ear_hears_who_does(tmp_path: Path) -> None:
    with hearing() as heard:
        (tmp_path / "a").mkdir()
        (tmp_path / "a/b").write_text("x")
        (tmp_path / "a/b").rename(tmp_path / "a/c")
        (tmp_path / "a/c").unlink()
        list(os.walk(tmp_path))
    paths = {(event, path) for event, path, _ in heard}
    assert {
        ("os.mkdir", f"{tmp_path}/a"),
        ("open", f"{tmp_path}/a/b"),
        ("os.rename", f"{tmp_path}/a/b"),
        ("os.rename", f"{tmp_path}/a/c"),
        ("os.remove", f"{tmp_path}/a/c"),
        ("os.scandir", f"{tmp_path}/a"),
    } <= paths


def test_folders_of_a_run_are_for_their_owner_alone_and_mounted_nowhere(desk: Desk) -> None:
    modes: dict[str, int] = {}

    def look(spec: ContainerSpec) -> None:
        leaving(wheel())(spec)
        for source in mounts(spec).values():
            modes[str(source.parent)] = source.parent.stat().st_mode & 0o777

    desk.engine.phases["compile"] = FakeRun(effect=look)
    desk.build()
    roots = (desk.settings.cache_dir / "output", desk.settings.wheelhouse / ".tfdock/staging")
    own = [path for path in modes if Path(path).parent in roots]
    assert len(own) == 2
    assert {modes[path] for path in own} == {0o700}
    assert real_sources(desk).isdisjoint(own)
