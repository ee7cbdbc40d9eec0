"""An engine, a cache that all builds share, and the law that no container of ours outlives a test."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import docker
import pytest
from bed import engine_host, missing, needs_root
from waits import wait_until

from tfdock.engine.docker_engine import DockerEngine
from tfdock.engine.protocol import IMAGE_LABEL, RUN_LABEL, ContainerSpec
from tfdock.host.settings import load
from tfdock.types import ImageRef

from . import harness
from .harness import (
    PLAYED_BUILD,
    TREES,
    Outcome,
    Tfdock,
    copy_cache,
    copy_tree,
    write_profile,
)
from .registries import OwnRegistry, Proxy, own_registry, proxy

USER = 1234  #: An ordinary user, whom nobody has heard of.
SECRET = "dGZkb2NrLXRlc3Qtc2VjcmV0"  #: A token in the environment of the cold build.


class Workshop:
    """An engine and a folder that every user may enter, with what many builds share."""

    def __init__(self, host: str, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.cache = folder / "cache"
        self.sdk: Any = docker.APIClient(host, version="auto", timeout=60)
        self._mark = secrets.token_hex(8)
        self._homes = 0

    def tree(self, road: str = "hermetic") -> Path:
        """One of `TREES`, with a mark: its image is not one of an earlier session or of
        somebody else."""
        target = self.folder / "trees" / road
        if not target.exists():
            TREES[road](target)
            (target / "MARK").write_text(self._mark)
        return target

    def tfdock(self, *prefix: str) -> Tfdock:
        """A command with an empty wheelhouse."""
        self._homes += 1
        home = self.folder / f"home-{self._homes}"
        home.mkdir()
        return Tfdock(home=home, cache=self.cache, engine=self.host, prefix=prefix)

    def build_image(self, name: str, recipe: str, **options: str) -> None:
        """Make an image by a Dockerfile that needs no other files."""
        file = io.BytesIO(recipe.encode())
        output = list(self.sdk.build(fileobj=file, tag=name, rm=True, forcerm=True, decode=True, **options))
        assert not [chunk["error"] for chunk in output if "error" in chunk]

    def said(self, image: str, *command: str, **spec: Any) -> str:
        """What a command prints in a container of an image, without a network."""
        engine, name = DockerEngine(self.host), f"tfdock-tests-{os.getpid()}-says"
        labels = {RUN_LABEL: "says"}
        container = engine.create(
            ContainerSpec(name=name, image=image, command=command, labels=labels, network="none", **spec)
        )
        engine.start(container)
        output = b"".join(engine.follow(container)).decode()
        engine.remove(container)
        return output

    @contextlib.contextmanager
    def base_image(self, name: str, tag: str, *steps: str) -> Iterator[str]:
        """The name, for profiles, of a base image of the bed with some steps more."""
        base = load({}, os.environ).mirrored(ImageRef.parse(f"tensorflow/build:{tag}"))
        reference = ImageRef.parse(f"tfdock-test/{name}:{os.getpid()}")
        mirrored = str(load({}, os.environ).mirrored(reference))
        self.build_image(mirrored, "\n".join([f"FROM {base}", *(f"RUN {step}" for step in steps)]))
        yield str(reference)
        self.sdk.remove_image(mirrored, force=True)

    def containers(self) -> dict[str, tuple[str, bool]]:
        """Containers of runs and image steps, running or not: id -> name, and whether it is surely of these tests."""
        return {
            one["Id"]: (one["Names"][0], any(self._is_here(mount) for mount in one["Mounts"]))
            for label in (RUN_LABEL, IMAGE_LABEL)
            for one in self.sdk.containers(all=True, filters={"label": label})
        }

    def _is_here(self, mount: dict[str, str]) -> bool:
        return Path(mount.get("Source", "/")).is_relative_to(self.folder)

    def created_since(self, moment: float) -> list[str]:
        """Names of the containers that the engine has created since then."""
        now = self.sdk.info()["SystemTime"]
        wanted = {"type": "container", "event": "create", "label": RUN_LABEL}
        events = self.sdk.events(f"{moment:.6f}", now, wanted, decode=True)
        return [event["Actor"]["Attributes"]["name"] for event in events]

    def remove_images(self) -> None:
        harness.remove_built_images(self.sdk, self.folder)


@pytest.fixture(scope="session")
def workshop(request: pytest.FixtureRequest) -> Iterator[Workshop]:
    host = engine_host()
    if not DockerEngine(host).ping():
        pytest.fail(f"no engine answers at DOCKER_HOST={host}")
    # Not tmp_path: that one no other user may enter, and builds run as another user too.
    folder = Path(tempfile.mkdtemp(prefix="tfdock-tests-"))
    folder.chmod(0o755)
    workshop = Workshop(host, folder)
    failed = request.session.testsfailed
    yield workshop
    workshop.remove_images()
    if request.session.testsfailed == failed:
        shutil.rmtree(folder)
    workshop.sdk.close()


@pytest.fixture(autouse=True)
def no_container_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does to a build: none of its containers is there afterwards."""
    if request.node.get_closest_marker("engine") is None:
        yield
        return
    workshop: Workshop = request.getfixturevalue("workshop")
    with no_container_left(workshop):
        yield


@contextlib.contextmanager
def no_container_left(workshop: Workshop) -> Iterator[None]:
    before = workshop.containers().keys()
    yield
    new = {key: container for key, container in workshop.containers().items() if key not in before}
    left = [name for name, is_ours in new.values() if is_ours]
    # Image steps do not say whose they are. Those of others end; one of ours would stay.
    wait_until(lambda: not new.keys() & workshop.containers().keys())
    assert not left


@pytest.fixture
def tfdock(workshop: Workshop) -> Iterator[Tfdock]:
    """The command on the engine, with an empty wheelhouse; nothing half done may be left at the end."""
    command = workshop.tfdock()
    yield command
    assert command.leftovers == []


@pytest.fixture
def alone(tmp_path: Path) -> Tfdock:
    """The command on a machine without an engine."""
    return Tfdock(home=tmp_path / "home", cache=tmp_path / "cache")


@pytest.fixture
def profile(workshop: Workshop, tmp_path: Path) -> Path:
    """The hermetic miniature for one GPU."""
    return write_profile(tmp_path / "profile.yaml", workshop.tree())


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The miniature's wheel in a wheelhouse, built once: for tests that read it, by the command that has it."""

    tfdock: Tfdock
    outcome: Outcome  #: Of the cold build: also in a copy, with the paths of what was copied.

    @property
    def profile(self) -> Path:
        return self.tfdock.home / "profile.yaml"

    @property
    def wheel(self) -> Path:
        (wheel,) = self.tfdock.wheelhouse.glob("*.whl")
        return wheel

    @property
    def record(self) -> Path:
        return self.tfdock.home / Path(self.outcome.build["record"]).relative_to(self._built_in)

    @property
    def _built_in(self) -> Path:
        return Path(self.outcome.build["wheels"][0]["path"]).parents[1]

    def copy(self, workshop: Workshop) -> Finished:
        """The same with a wheelhouse and a cache that a test may change."""
        command = workshop.tfdock()
        shutil.copytree(self.tfdock.home, command.home, symlinks=True, dirs_exist_ok=True)
        return replace(self, tfdock=replace(command, cache=command.home / "cache"))


@pytest.fixture(scope="session")
def finished(workshop: Workshop) -> Iterator[Finished]:
    """The cold build: the hermetic miniature for one GPU, in an empty cache, of which the shared one gets a copy."""
    command = workshop.tfdock()
    command = replace(command, cache=command.home / "cache")
    profile = write_profile(command.home / "profile.yaml", workshop.tree())
    outcome = command.with_variables(GITHUB_TOKEN=SECRET).build(profile, code=0)
    shutil.copytree(command.cache, workshop.cache, dirs_exist_ok=True)
    yield Finished(tfdock=command, outcome=outcome)
    assert command.leftovers == []


@pytest.fixture
def own(finished: Finished, workshop: Workshop) -> Iterator[Finished]:
    """The same for a test that changes it."""
    copy = finished.copy(workshop)
    yield copy
    assert copy.tfdock.leftovers == []


EditedTree = Callable[..., Path]


@pytest.fixture
def edited(workshop: Workshop, tmp_path: Path) -> EditedTree:
    """Makes a profile of a hermetic miniature with some files changed: `edited({path: edit}, field=value…)`."""
    return partial(_edited, workshop.tree(), tmp_path, name="edited")


@pytest.fixture
def played(workshop: Workshop, tmp_path: Path) -> EditedTree:
    """As `edited`, for a base image whose Bazel plays back what the real one did."""
    fields: Any = PLAYED_BUILD
    return partial(_edited, workshop.tree("played"), tmp_path, name="played", **fields)


def _edited(
    tree: Path, folder: Path, edits: Mapping[str, Callable[[str], str]], *, name: str, **fields: object
) -> Path:
    return write_profile(folder / f"{name}.yaml", copy_tree(tree, folder / name, edits), **fields)


AsUser = Callable[..., Tfdock]


@pytest.fixture
def as_user(workshop: Workshop) -> Iterator[AsUser]:
    """Makes a command that an ordinary user runs, in the engine's group or, with `engine=False`, not."""
    needs_root("running as another user")
    socket = Path(workshop.host.removeprefix("unix://"))
    if not socket.is_socket() or not socket.stat().st_mode & 0o060 or not socket.stat().st_gid:
        missing(f"no group may talk to {workshop.host}")
    commands: list[Tfdock] = []

    def make(*, engine: bool = True) -> Tfdock:
        groups = f"--groups={socket.stat().st_gid}" if engine else "--clear-groups"
        command = workshop.tfdock(*harness.as_user(USER, groups))
        command = replace(command, cache=command.home / "cache")
        copy_cache(workshop.cache, command.cache)  # Bazel takes from a cache only what it may write to
        harness.give_to(USER, command.home)
        commands.append(command)
        return command

    yield make
    for command in commands:
        assert command.leftovers == []


# --- a registry of the tests' own ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRegistry]:
    """Debian's registry with nothing in it."""
    with own_registry(tmp_path_factory.mktemp("registry") / "files") as registry:
        yield registry


@pytest.fixture
def before(registry: OwnRegistry) -> Iterator[Proxy]:
    """A proxy before the registry."""
    with proxy(registry.address) as state:
        yield state


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, nobody waits long after a broken connection."""
    monkeypatch.setattr("tfdock.oci.http.random.uniform", lambda *_: 0.005)
