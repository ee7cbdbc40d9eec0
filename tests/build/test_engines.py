"""The main job on each engine that the bed can start: a build, one that is interrupted, and the check of its wheel.

The bed's own engine, Docker 20.10, has the other tests of this folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from bed import VARIANTS, engine_variant
from waits import FETCH

from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.protocol import RUN_LABEL

from .conftest import Workshop
from .harness import CPU, MINIATURE, PLAYED_BUILD, TREES, Tfdock, after_first_line, as_user, give_to, write_profile
from .test_failures import SLOW_COMPILE, compiling

pytestmark = [pytest.mark.engine, pytest.mark.limit(FETCH)]

USER = 4242  #: Whom the bed's rootless engine belongs to.
#: sha256 of what the miniature downloads.
ARCHIVE = "8d52b00df9cdb1d17834f8983cc088697f90dc022608e5f085119d5e2ae3d798"
#: Seconds for which an image step prints nothing, so that the engine is asked whether it lives.
SILENCE = {"docker28-containerd": 6}


@dataclass(frozen=True)
class Place:
    """An engine, and the command of the user who builds on it."""

    name: str
    workshop: Workshop
    tfdock: Tfdock


@pytest.fixture(scope="module", params=VARIANTS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    name: str = request.param
    with engine_variant(name) as environment:
        folder = Path(tempfile.mkdtemp(prefix="tfdock-tests-"))
        folder.chmod(0o755)
        workshop = Workshop(environment["DOCKER_HOST"], folder)
        prefix = as_user(USER) if name == "rootless" else ()  # with this engine nobody is root
        command = workshop.tfdock(*prefix).with_variables(TFDOCK_NETWORK=environment["TFDOCK_NETWORK"])
        command = replace(command, cache=command.home / "cache")
        # A container of another user namespace does not reach this machine's 127.0.0.1, where the archive is served.
        known = CacheFolder.opened(command.cache).repository / "content_addressable/sha256" / ARCHIVE
        known.mkdir(parents=True)
        shutil.copy(MINIATURE / "downloads/minimath-1.0.tar.gz", known / "file")
        if command.prefix:
            give_to(USER, command.home)
        yield Place(name, workshop, command)
        workshop.remove_images()
        workshop.sdk.close()
        shutil.rmtree(folder)


@pytest.fixture
def workshop(place: Place) -> Workshop:
    """In place of the bed's own engine: no container may stay on this one."""
    return place.workshop


def test_check_and_doctor_say_alike_what_the_engine_cannot_do(place: Place) -> None:
    command = place.tfdock.with_variables(TFDOCK_NETWORK="host")
    (profile,) = command.run("check", "--json", "rtx3080").document["profiles"]
    checks = command.run("doctor", "--json").document["checks"]
    said = {warning["code"] for warning in profile["warnings"] if warning["code"].startswith("engine-")}
    assert said == {
        check["code"] for check in checks if check["code"].startswith("engine-") and check["status"] != "ok"
    }
    assert ("engine-network-impossible" in said) is (place.name == "docker28-userns")


def containers_of(workshop: Workshop, run: str) -> list[str]:
    """The containers of a run. podman does not list what they mount."""
    return [one["Id"] for one in workshop.sdk.containers(all=True, filters={"label": f"{RUN_LABEL}={run}"})]


@pytest.mark.parametrize("bazel", ["played", "real"])
def test_a_build_is_interrupted_is_killed_goes_on_and_ends_with_a_wheel(place: Place, bazel: str) -> None:
    command, folder = place.tfdock, place.workshop.folder / bazel
    make = TREES["played" if bazel == "played" else "hermetic"]
    fields = PLAYED_BUILD if bazel == "played" else CPU
    folder.mkdir()
    running = compiling(command, write_profile(folder / "slow.yaml", make(folder / "slow", SLOW_COMPILE), **fields))
    running.end_by(signal.SIGINT, 60, code=130)
    assert command.leftovers == []

    # The log of the run before says already that it compiles.
    shutil.rmtree(command.wheelhouse)
    killed = compiling(command, folder / "slow.yaml")
    assert killed.end_by(signal.SIGKILL, 10).code == -signal.SIGKILL
    (run,) = (path.stem for path in (command.state / "runs").iterdir())
    assert containers_of(place.workshop, run)
    command.run("doctor", "--fix", code=0)
    assert containers_of(place.workshop, run) == []
    assert command.leftovers == []

    silence = SILENCE.get(place.name, 0)
    tree = make(folder / "tree", {"configure": after_first_line(f"sleep {silence}")})
    outcome = command.impatient(2).build(write_profile(folder / "profile.yaml", tree, **fields), code=0)
    (wheel,) = outcome.build["wheels"]
    assert Path(wheel["path"]).stat().st_uid == (USER if command.prefix else os.geteuid())
    assert outcome.build["seconds"]["image"] > silence
    command.run("verify", "--json", wheel["path"], code=0)
    assert command.leftovers == []
