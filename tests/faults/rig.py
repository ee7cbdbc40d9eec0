"""What the fault tests work with: an engine to kill, trees with gates in every phase, disks to fill, the verdict."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import docker
import pytest
import requests
from bed import missing
from build.harness import (
    CPU,
    PLAYED_BUILD,
    TREES,
    WHOLE,
    Json,
    Outcome,
    Running,
    Tfdock,
    copy_cache,
    published,
    write_profile,
)
from engine.bench import PrivateEngine, loop_disk, private_engine

from tfdock.engine.protocol import IMAGE_LABEL, RUN_LABEL

MARKS = [
    pytest.mark.engine,
    pytest.mark.limit(300),
    # docker-py leaves a socket to the garbage collector when nobody listens, as with an engine that is dead.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
PHASES = ("image", "fetch", "compile", "verify")  #: Those with a container of the engine.
ALL_PHASES = ("image", "fetch", "compile", "seal", "verify")
PACKER = "tensorflow/tools/pip_package/build_pip_package.py"
CONFIGURE = "configure"
REPOSITORY_RULE = "third_party/py/python_repository.bzl"
AT_IMAGE = "the gate of the image"
OPEN = "/dev/shm/open"  #: In the container of an image step, and in no layer.
GATES = "/tf/cache/repository"  #: Mounted where Bazel downloads and where it compiles: the host closes gates there.
REACHED = "/tf/output"  #: Where a build writes in both phases: it says there which gate it has reached.
DISK = "8G"
MIB = 1 << 20

Edits = Mapping[str, Callable[[str], str]]
T = TypeVar("T")


def gate(phase: str) -> str:
    """Python that says where it is, and waits there as long as it is held."""
    return (
        f"import os, time; open('{REACHED}/at-{phase}', 'w').close()\n"
        f"while os.path.exists('{GATES}/hold-{phase}'): time.sleep(0.05)\n"
    )


def gates(*, played: bool) -> Edits:
    """A gate in `./configure` that the door opens, one in a repository rule, one in the last action. A Bazel that is
    played back has the last two."""
    wait = f"echo {AT_IMAGE}; until [ -e {OPEN} ]; do sleep 0.2; done"
    packing = "".join(f"    {line}\n" for line in gate("compile").splitlines())
    configure: Edits = {CONFIGURE: lambda text: text.replace("\n", f"\n{wait}\n", 1)}
    if played:
        return configure
    return {
        **configure,
        REPOSITORY_RULE: lambda text: text.replace('_QUESTION = "', f'_QUESTION = {json.dumps(gate("fetch"))} + "'),
        PACKER: lambda text: text.replace("def main():\n", f"def main():\n{packing}"),
    }


class Door:
    """The gate of the image: while it is open, an image step finds a file. The step has no network and no mount."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def open(self) -> None:
        if self._keeper is None:
            self._closed.clear()
            self._keeper = threading.Thread(target=self._keep_open, daemon=True)
            self._keeper.start()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open for so long."""
        self.open()
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        if self._keeper is not None:
            self._closed.set()
            self._keeper.join()
            self._keeper = None

    def _keep_open(self) -> None:
        done: set[str] = set()
        while not self._closed.wait(0.2):
            # The engine may be dead, or the step over.
            with contextlib.suppress(docker.errors.DockerException, requests.exceptions.RequestException):
                self._let_in(done)

    def _let_in(self, done: set[str]) -> None:
        client: Any = docker.APIClient(self._host, version="1.41", timeout=3)
        with contextlib.closing(client) as sdk:
            for step in sdk.containers(filters={"label": IMAGE_LABEL, "status": "running"}):
                if step["Id"] not in done and RUN_LABEL not in step["Labels"]:
                    sdk.exec_start(sdk.exec_create(step["Id"], ["touch", OPEN]))
                    done.add(step["Id"])


@dataclass
class Rig:
    """The private engine and what all tests share: `seed` is a cache in which all but the last action is done."""

    private: PrivateEngine
    data: Path  #: The disk that has the engine's data alone.
    folder: Path
    door: Door
    seed: Path
    played: bool = False  #: Whether Bazel is played back.
    wheel: str = ""  #: sha256 of the wheel that a build ends with whom nothing happens.
    #: How long each phase took in the last build that went on, if there was one.
    seconds: Mapping[str, float] = field(default_factory=dict)
    beside: Running | None = None  #: A build that goes on while more than one test does.
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    @property
    def sdk(self) -> Any:
        return docker.APIClient(self.private.host, version="auto", timeout=60)

    def containers(self) -> list[str]:
        """Names of all containers of runs and of image steps, running or not."""
        with contextlib.closing(self.sdk) as sdk:
            found = [
                one
                for label in (RUN_LABEL, IMAGE_LABEL)
                for one in sdk.containers(all=True, filters={"label": label})
            ]
        return sorted({one["Names"][0] for one in found})

    @property
    def quiet(self) -> bool:
        """Whether no build goes on beside the tests."""
        return self.beside is None or self.beside.process.poll() is not None

    def tree(self, mark: str, edits: Edits | None = None) -> Path:
        """The miniature with gates; another mark is another image, and the same wheel."""
        target = self.folder / "trees" / mark
        if not target.exists():
            make = TREES["played" if self.played else "hermetic"]
            make(target, gates(played=self.played))
            (target / "MARK").write_text(mark + secrets.token_hex(8))
            for name, edit in (edits or {}).items():
                before = (target / name).read_text()
                assert edit(before) != before, f"{name} is no longer what this test edits"
                (target / name).write_text(edit(before))
        return target

    def case(
        self,
        mark: str = "plain",
        *,
        edits: Edits | None = None,
        cache: Path | None = None,
        home: Path | None = None,
        pace: float = 0,
        **fields: object,
    ) -> Case:
        number = next(self.numbers)
        home = home or self.folder / f"home-{number}"
        home.mkdir(exist_ok=True)
        command = Tfdock(home=home, cache=cache or home / "cache", engine=self.private.host)
        copy_cache(self.seed, command.cache)
        (command.cache / "repository").mkdir(exist_ok=True)
        if pace:
            (command.cache / "repository/pace").write_text(str(pace))
        defaults: dict[str, object] = {
            **(PLAYED_BUILD if self.played else CPU),
            "wheel": {"name": "tensorflow_miniature", "local_version": "faults"},
            "resources": {"disk": "1M", "jobs": 2, "memory": "2GiB"},
        }
        profile = write_profile(home / f"{mark}.yaml", self.tree(mark, edits), **(defaults | fields))
        return Case(rig=self, tfdock=command, profile=profile)


@dataclass
class Case:
    """A build to which something happens."""

    rig: Rig
    tfdock: Tfdock
    profile: Path

    # --- on its way ---

    @property
    def _gates(self) -> Path:
        return self.tfdock.cache / "repository"

    def _marks(self, phase: str) -> list[Path]:
        return list(self.tfdock.cache.glob(f"output/*/output/at-{phase}"))

    def hold(self, *phases: str) -> None:
        """Let it come to these gates, and no further. That of the image is the rig's door."""
        for phase in phases:
            for mark in self._marks(phase):  # of a run that was killed
                mark.unlink(missing_ok=True)
            (self._gates / f"hold-{phase}").touch()

    def release(self, *phases: str) -> None:
        for phase in phases or ("fetch", "compile"):
            (self._gates / f"hold-{phase}").unlink(missing_ok=True)

    def start(self) -> Running:
        return self.tfdock.start("build", "--json", self.profile)

    def until(self, phase: str, running: Running) -> Running:
        """Return when it is in that phase, at its gate if that has one."""
        running.wait_for(f"{phase} …", WHOLE)
        here = {"image": self._at_image, "verify": self._is_tried}
        running.until(here.get(phase, lambda: bool(self._marks(phase))), 120)
        return running

    def log(self) -> str:
        """What the last run's log says so far."""
        logs = sorted(self.tfdock.wheelhouse.glob(".tfdock/*/*/*.log"), key=lambda path: path.stat().st_mtime)
        return logs[-1].read_text(errors="replace") if logs else ""

    def _at_image(self) -> bool:
        return f"\n{AT_IMAGE}" in self.log()

    def _is_tried(self) -> bool:
        # Compile's container is gone by then: what runs is the wheel's trial.
        return any(one["State"] == "running" for one in self.own_containers())

    def own_containers(self) -> list[Json]:
        """The containers of runs that have a folder of this command."""
        with contextlib.closing(self.rig.sdk) as sdk:
            found: list[Json] = sdk.containers(all=True, filters={"label": RUN_LABEL})
        home, cache = str(self.tfdock.home), str(self.tfdock.cache)
        return [one for one in found if any(m.get("Source", "/").startswith((home, cache)) for m in one["Mounts"])]

    # --- what became of it ---

    def failed(self, outcome: Outcome, code: int, *codes: str) -> Json:
        """It ended with that exit code and one message of one of these codes, and no wheel is to be seen."""
        assert outcome.code == code, outcome.told
        problem = outcome.problem
        assert problem["code"] in codes, outcome.told
        assert problem["fix"], outcome.told
        assert outcome.stderr.count("error:") == 1, outcome.told
        assert "Traceback" not in outcome.stderr, outcome.told
        assert outcome.build["wheels"] == []
        assert self.tfdock.visible == []
        return problem

    def failed_in(self, phase: str, outcome: Outcome, code: int, *codes: str) -> Json:
        """As `failed`, with the phase and a log that is there."""
        problem = self.failed(outcome, code, *codes)
        assert f"phase {phase}" in problem["message"], outcome.told
        assert Path(outcome.build["log"]).is_file()
        return problem

    def leftovers_of_doctor(self, *words: str) -> list[Json]:
        document = self.tfdock.run("doctor", "--json", *words).document
        return [check for check in document["checks"] if check["name"] == "leftovers"]

    def mend(self) -> None:
        """`doctor` tells of all that is left, if anything is, and `doctor --fix` removes it."""
        left = bool(self.tfdock.leftovers or self.own_containers())
        (check,) = self.leftovers_of_doctor()
        assert (check["status"] == "warning") == left, (check, self.tfdock.leftovers, self.own_containers())
        if left:
            checks = self.leftovers_of_doctor("--fix")
            assert {one["status"] for one in checks} == {"ok"}, checks
        self.assert_tidy()

    def assert_tidy(self) -> None:
        assert self.tfdock.leftovers == []
        assert [one["Names"] for one in self.own_containers()] == []
        outputs = self.tfdock.cache / "output"
        assert not outputs.exists() or list(outputs.iterdir()) == []

    def goes_on(self, wheel: str | None = None) -> Outcome:
        """The same command, undisturbed: what was compiled comes from the cache, and it is the same wheel."""
        self.release()
        outcome = self.ended_well(self.tfdock.build(self.profile), wheel)
        self.rig.seconds = {phase: outcome.build["seconds"][phase] for phase in ALL_PHASES}
        return outcome

    def ended_well(self, outcome: Outcome, wheel: str | None = None) -> Outcome:
        assert outcome.code == 0, outcome.told
        assert outcome.build["status"] == "built"
        (found,) = outcome.build["wheels"]
        assert found["sha256"] == (wheel or self.rig.wheel)
        assert self.tfdock.visible == published(outcome.build)
        assert outcome.build["cache"]["executed"] <= 1, "the rest is in the cache"
        assert outcome.build["cache"]["hits"] > 0
        self.assert_tidy()
        return outcome


# --- the rig ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(*, played: bool) -> Iterator[Rig]:
    """The engine on a disk of its own, with the base image; the cache of a build that came to its last action."""
    if not os.environ.get("TFDOCK_REGISTRY_MIRROR"):
        missing("base images come from the test bed (`ci/bed/bed run -- …`)")
    # Not tmp_path: builds of another user come here too.
    folder = Path(tempfile.mkdtemp(prefix="tfdock-faults-"))
    folder.chmod(0o755)
    try:
        with loop_disk(folder / "engine", DISK) as data, private_engine(data=data / "data") as private:
            private.folder.chmod(0o755)
            rig = Rig(private, data, folder, Door(private.host), folder / "seed", played)
            prepare(rig)
            yield rig
            rig.door.close()
    finally:
        shutil.rmtree(folder)


def prepare(rig: Rig) -> None:
    """Make the image, the seed, and the wheel to compare with."""
    first = rig.case()
    first.hold("compile")
    with rig.door.opened():
        running = first.until("compile", first.start())
    copy_cache(first.tfdock.cache, rig.seed)
    for mark in rig.seed.glob("repository/*-compile"):
        mark.unlink()
    first.release()
    outcome = running.finish(code=0)
    rig.wheel = outcome.build["wheels"][0]["sha256"]


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No room at all on that folder's disk, as if somebody else had taken it."""
    ballast = folder / "ballast"
    subprocess.run(["fallocate", "-l", str(shutil.disk_usage(folder).free), ballast], capture_output=True)
    with contextlib.suppress(OSError), ballast.open("ab") as file:
        while file.write(bytes(4096)):
            file.flush()
    try:
        yield
    finally:
        ballast.unlink()


def side_by_side(*ways: Callable[[], T]) -> list[T]:
    """What they return, two at a time; raises what the first of them raised."""
    with ThreadPoolExecutor(2) as pool:
        return [one.result() for one in [pool.submit(way) for way in ways]]


def with_variables(case: Case, **variables: str) -> Case:
    """The same, with variables of its environment."""
    return replace(case, tfdock=case.tfdock.with_variables(**variables))


def impatient(case: Case, seconds: float) -> Case:
    """The same, with a command that soon asks an engine whether it is still there."""
    return replace(case, tfdock=case.tfdock.impatient(seconds))
