"""One range for all attacks: an engine, an attacker's base image, a benign wheel that it hands out, and victims."""

from __future__ import annotations

import dataclasses
import gc
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest
from bed import engine_host
from build.harness import Outcome, Tfdock, write_profile

from tfdock.engine.protocol import RUN_LABEL

from .plants import orders
from .rig import FIELDS, Range, Victims, with_probe

PROBE = """
def _look():
    import os, socket
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if not (folder == "/" and name in ("proc", "sys", "dev"))]
        for name in [*files, *folders]:
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    if b"CANARY-" in file.read(200) and "site-packages" not in path:
                        print("TRIAL SEES A VICTIM", path, flush=True)
            except OSError:
                pass
            if path.endswith(".sock"):
                print("TRIAL SEES A SOCKET", path, flush=True)
    print("TRIAL LOOKED as", os.getuid(), flush=True)


_look()
"""


@dataclass(frozen=True)
class Benign:
    """The miniature, built with the real Bazel before any attack."""

    command: Tfdock
    profile: Path
    outcome: Outcome

    @property
    def wheel(self) -> Path:
        return Path(self.outcome.build["wheels"][0]["path"])


@pytest.fixture(scope="session")
def bare_range(request: pytest.FixtureRequest) -> Iterator[Range]:
    """The range without the attacker's base."""
    host = engine_host()
    # Not tmp_path: builds of another user come here too.
    folder = Path(tempfile.mkdtemp(prefix="tfdock-attacks-"))
    folder.chmod(0o755)
    (folder / "victims").mkdir()
    sdk = docker.APIClient(host, version="auto", timeout=60)
    there = Range(host=host, folder=folder, sdk=sdk, victims=Victims(folder / "victims"))
    failed = request.session.testsfailed
    yield there
    there.remove_images()
    if request.session.testsfailed == failed:
        shutil.rmtree(folder)
    sdk.close()
    gc.collect()


@pytest.fixture(scope="session")
def benign(bare_range: Range) -> Benign:
    """The miniature's wheel, and the cache that its build left: the one of `release`, which others may read."""
    command = dataclasses.replace(bare_range.home(), trusted=True)
    profile = write_profile(command.home / "benign.yaml", bare_range.tree("benign"), **FIELDS)
    outcome = command.build(profile, code=0)
    return Benign(command, profile, outcome)


@pytest.fixture(scope="session")
def ground(bare_range: Range, benign: Benign) -> Range:
    """The range with the attacker's base image; the wheel that it hands out looks around when it is tried."""
    bare_range.wheel = bare_range.folder / benign.wheel.name
    with_probe(benign.wheel, bare_range.wheel, PROBE)
    bare_range.make_base(orders(bare_range))
    return bare_range


@pytest.fixture(autouse=True)
def no_container_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever an attack does: none of its containers is there afterwards."""
    if request.node.get_closest_marker("engine") is None:
        yield
        return
    there: Range = request.getfixturevalue("bare_range")

    yield
    mounts = [
        mount.get("Source", "/")
        for container in there.sdk.containers(all=True, filters={"label": RUN_LABEL})
        for mount in container["Mounts"]
    ]
    assert [source for source in mounts if source.startswith(str(there.folder))] == []
