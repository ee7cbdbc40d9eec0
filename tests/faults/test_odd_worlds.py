"""A clock that is set back, a network that goes, files of somebody else, much output, and a registry that fails."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import docker
import pytest
from build import harness
from build.harness import Running, file_server
from build.registries import Fault, proxy

from .rig import CONFIGURE, MARKS, MIB, Case, Rig, impatient, with_variables

pytestmark = MARKS

DOWNLOADS = Path(__file__).parents[1] / "miniature/downloads"
USER = 1234
CLOCK = """
import datetime, os, time
_real, _file = time.time, os.environ["TFDOCK_TESTS_CLOCK"]
time.time = lambda: _real() - (86400.0 if os.path.exists(_file) else 0.0)

class _SetBack(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = _SetBack
"""


def test_neither_a_clock_that_is_set_back_nor_a_network_that_is_lost_harms_a_compilation(
    rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    back = tmp_path / "back"
    shutil.copy(DOWNLOADS / "minimath-1.0.tar.gz", tmp_path)
    with file_server(tmp_path) as url:
        case = rig.case("offline", edits={"WORKSPACE": lambda text: text.replace("http://127.0.0.1:5552", url)})
        shutil.rmtree(case.tfdock.cache / "repository/content_addressable")
        case = with_variables(case, PYTHONPATH=str(tmp_path), TFDOCK_TESTS_CLOCK=str(back))
        case.hold("compile")
        with rig.door.opened():
            running = case.until("compile", case.start())
    back.touch()
    time.sleep(1)
    case.release("compile")
    outcome = case.ended_well(running.finish())
    assert 0 < outcome.build["seconds"]["compile"] < 200


# --- files of somebody else -----------------------------------------------------------------------------------------


def as_user(case: Case) -> Case:
    """The same command as an ordinary user who may talk to the engine, with a home of his own."""
    socket = Path(case.rig.private.host.removeprefix("unix://"))
    socket.chmod(0o666)
    harness.give_to(USER, case.tfdock.home)
    return replace(case, tfdock=replace(case.tfdock, prefix=harness.as_user(USER)))


def test_a_cache_of_another_user_is_refused_before_anything_is_compiled(rig: Rig) -> None:
    case = as_user(rig.case())
    for what in (".", "disk/*/ac/*", "repository/content_addressable/sha256/*"):
        foreign = [case.tfdock.cache] if what == "." else list(case.tfdock.cache.glob(what))
        assert foreign
        for path in foreign:
            os.chown(path, 0, 0)
        problem = case.failed(case.tfdock.build(case.profile), 1, "folder-not-writable")
        assert str(foreign[0].parent if what != "." else foreign[0]) in problem["message"]
        for path in foreign:
            os.chown(path, USER, USER)
        case.assert_tidy()
    case.goes_on()


# --- a registry ---------------------------------------------------------------------------------------------------


REGISTRY = (  # no content is damaged here: this engine has it, and asks for its digest alone
    (Fault("status", "/manifests/", times=1000, status=503), "registry-unreachable"),
    (Fault("status", "/manifests/", times=1000, status=401), "registry-denied"),
    (Fault("reset", "/manifests/", times=1000), "registry-unreachable"),
)


def test_a_registry_that_fails_is_named_and_the_next_build_goes_on(rig: Rig, case: Case) -> None:
    mirror = os.environ["TFDOCK_REGISTRY_MIRROR"].rpartition("=")[2]
    with proxy(mirror) as before:
        broken = with_variables(case, TFDOCK_REGISTRY_MIRROR=f"docker.io={before.address}")
        for fault, code in REGISTRY:
            before.faults.append(fault)
            problem = case.failed_in("image", broken.tfdock.build(broken.profile), 7, code)
            assert before.address in problem["message"]
            case.assert_tidy()
            before.forget()
        outcome = broken.tfdock.build(broken.profile)
    case.ended_well(outcome)
    forget_images_of(rig, before.address)


def forget_images_of(rig: Rig, address: str) -> None:
    """Take what came from there its names; the layers stay with the images made on them."""
    with contextlib.closing(rig.sdk) as sdk:
        for image in sdk.images():
            for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())):
                if name.startswith(address):
                    with contextlib.suppress(docker.errors.NotFound):  # some names go with another
                        sdk.remove_image(name, force=True, noprune=True)


# --- output ---------------------------------------------------------------------------------------------------------

LINES, LONG = 100_000_000, 60_000_000
SILENT, PATIENCE = 8, 4  # seconds: long enough for the engine to be asked whether it is still there
NOISE = f"""head -c {LINES} /dev/zero | tr '\\0' x | fold -w 99
head -c {LONG} /dev/zero | tr '\\0' y
sleep {SILENT}"""


@dataclass
class Noise:
    case: Case
    running: Running
    peak: Peak


@pytest.fixture(scope="module", autouse=True)
def noise(rig: Rig) -> Iterator[Noise]:
    """A build that prints much while the other tests of this file have theirs: it is the slowest."""
    case = rig.case("noisy", edits={CONFIGURE: lambda text: text.replace("\n", f"\n{NOISE}\n", 1)})
    case = impatient(case, PATIENCE)
    running = rig.beside = case.start()
    yield Noise(case, running, Peak(running))
    running.signal(signal.SIGTERM)  # where its test was not asked for
    running.finish()


def test_a_build_that_prints_much_one_endless_line_and_then_nothing_stays_small_and_goes_on(
    rig: Rig, noise: Noise
) -> None:
    with rig.door.opened():
        outcome = noise.case.ended_well(noise.running.finish())
    assert noise.peak() < 400 * MIB
    log = Path(outcome.build["log"])
    assert log.stat().st_size > LINES + LONG, "the log has all of it"
    assert len(outcome.stderr) < MIB, "a pipe is not flooded"


class Peak:
    """The most memory that a process was seen to hold, in bytes."""

    def __init__(self, running: Running) -> None:
        self._most = 0
        self._status = Path(f"/proc/{running.process.pid}/status")
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while True:
            try:
                found = re.search(r"VmHWM:\s+(\d+) kB", self._status.read_text())
            except OSError:
                return
            if found is None:  # it has ended
                return
            self._most = max(self._most, int(found[1]) << 10)
            time.sleep(0.1)

    def __call__(self) -> int:
        self._thread.join()
        return self._most
