"""The build on an engine in memory: branches that a real engine takes once in a year, taken at will."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeBuild, FakeEngine, FakeRun
from refusals import refusal
from wheelhouses import with_record, write_wheel

from tfdock import events
from tfdock.builder.build import build
from tfdock.builder.session import BuildRequest, BuildResult, BuildSession
from tfdock.engine.protocol import IMAGE_LABEL, TOOLCHAIN_LABEL, ContainerSpec, ImageBuild, ImageInfo
from tfdock.errors import (
    BuildFailed,
    DiskFull,
    EngineError,
    EngineHung,
    EngineLost,
    EngineUnavailable,
    Incompatible,
    Interrupted,
    NetworkError,
    OutOfMemory,
    Problem,
    TfdockError,
    TimeLimit,
    VerificationFailed,
    WheelRefused,
)
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop
from tfdock.knowledge import loader
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.prepare import PreparedBuild, Preparer
from tfdock.run import journal
from tfdock.run.results import copy_from_archive
from tfdock.types import EngineInfo, ExpectedFiles, Machine

from .harness import KNOWLEDGE, write_profile

BASE = "tensorflow/build:99.18-python3.11"
RUNTIME = "python:3.11-slim-bookworm"
BUILD_INFO = {"is_cuda_build": False}
DIGEST = f"sha256:{'d' * 64}"
COMMIT = "c0ffee" + "0" * 34
SOURCE = {"release": "99.18.0", "git": "https://example.org/tensorflow.git", "ref": "first", "fallback": ["second"]}


def wheel(
    python: str = "cp311",
    *,
    damaged: bool = False,
    requires: str = "",
    build_info: Mapping[str, object] = BUILD_INFO,
    code: bytes = b"",
) -> bytes:
    """A wheel as small as they come; a damaged one is not what its RECORD says."""
    files = {
        "tensorflow/__init__.py": code,
        "tensorflow/python/platform/build_info.py": f"build_info = {dict(build_info)}\n".encode(),
        "tensorflow_miniature-99.18.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tensorflow-miniature\n"
        b"Version: 99.18.0\n" + requires.encode(),
        "tensorflow_miniature-99.18.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\n"
        b"Root-Is-Purelib: false\n" + f"Tag: {python}-{python}-linux_x86_64\n".encode(),
    }
    content = io.BytesIO()
    changes = {"tensorflow/__init__.py": b"#"} if damaged else {}
    write_wheel(content, with_record(files) | changes, zipfile.ZIP_STORED)
    return content.getvalue()


def leaving(content: bytes, python: str = "cp311", *, run: str | None = None) -> Callable[[ContainerSpec], None]:
    """What a compile container does that ends well: wheel, sums, and the marker that names the run."""

    def effect(spec: ContainerSpec) -> None:
        staging = mounts(spec)["/tf/staging"]
        name = f"tensorflow_miniature-99.18.0-{python}-{python}-linux_x86_64.whl"
        (staging / "raw").mkdir()
        (staging / "raw" / name).write_bytes(content)
        (staging / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
        (staging / "done").write_text(f"{run or spec.environment['TFDOCK_RUN']}\n")

    return effect


def mounts(spec: ContainerSpec) -> dict[str, Path]:
    return {mount.target: Path(mount.source) for mount in spec.mounts}


def verifying(spec: ContainerSpec, **changes: Mapping[str, object]) -> FakeRun:
    """What a container does in which a wheel works: a result for every check, between other lines; with changes."""
    request = json.loads((mounts(spec)["/tfdock/verify"] / "request.json").read_bytes())
    found = {
        "import": {"version": "99.18.0", "git": "v99.18.0"},
        "build-info": BUILD_INFO,
        "libraries": {name: {"there": True, "where": "the system"} for name in request["facts"]["linked"]},
    }
    lines = ["some noise", '{"check": "import", "outcome": "failed"}']
    for check in request["checks"]:
        name = check["check"]
        result = {"check": name, "outcome": "passed", "expected": "", "found": found.get(name, "well"), "reason": ""}
        lines.append(f"{request['mark']} {json.dumps(result | dict(changes.get(name.replace('-', '_'), {})))}")
    return FakeRun(output=[f"{line}\n".encode() for line in lines])


class Engine(FakeEngine):
    """Has the base and the runtime image, and images that know their toolchain; phases do what `phases` says."""

    def __init__(self) -> None:
        super().__init__()
        self.registry[BASE] = ImageInfo(
            id="sha256:" + "b" * 64, tags=(BASE,), digests=(f"tensorflow/build@{DIGEST}",)
        )
        self.registry[RUNTIME] = ImageInfo(id="sha256:" + "e" * 64, tags=(RUNTIME,))
        self.phases = {"fetch": FakeRun(output=[b"fetched\n"]), "compile": FakeRun(effect=leaving(wheel()))}
        self.trial: Callable[[ContainerSpec], FakeRun] = verifying
        self.on_run = lambda spec: self.phases.get(spec.name.rpartition("-")[2]) or self.trial(spec)
        self.on_build = lambda request: FakeBuild(labels={TOOLCHAIN_LABEL: request.build_args.get("TOOLCHAIN", "")})

    def read_file(self, container: str, path: str) -> bytes | None:
        super().read_file(container, path)
        return {"/opt/tfdock/toolchain": b"bazel 4.2.3\n", "/opt/tfdock/source": f"{COMMIT}\n".encode()}.get(path)

    @property
    def created(self) -> list[ContainerSpec]:
        return [spec for (spec,) in self.called("create") if isinstance(spec, ContainerSpec)]

    @property
    def specs(self) -> dict[str, ContainerSpec]:
        """The containers created, by phase."""
        return {spec.name.rpartition("-")[2]: spec for spec in self.created}

    @property
    def requests(self) -> list[ImageBuild]:
        """The image builds that were asked for."""
        return [request for (request,) in self.called("build") if isinstance(request, ImageBuild)]

    def lose(self, method: str) -> None:
        self.fail_next(method, EngineLost(Problem(code="engine-lost", message="the engine was lost")))


@dataclass
class Clock:
    """Seconds that pass whenever somebody looks."""

    step: float = 0.0
    now: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> float:
        with self._lock:
            self.now += self.step
            return self.now


def settings_of(folder: Path, wheelhouse: str = "wheelhouse") -> Settings:
    """Settings with all folders in one."""
    return Settings(
        wheelhouse=folder / wheelhouse, cache_dir=folder / "cache", state_dir=folder / "state", knowledge=(KNOWLEDGE,)
    )


class Desk:
    """A builder on that engine, and what became of it."""

    def __init__(self, folder: Path, endpoint: str = "", **fields: object) -> None:
        self.settings = replace(settings_of(folder), allow_endpoints=(endpoint,) if endpoint else ())
        self.engine = Engine()
        self.clock = Clock()
        self.stop = Stop()
        self.heard: list[events.Event] = []
        fields = {"tensorflow": SOURCE, "accelerator": "cpu", "compute_capabilities": None} | fields
        self.profile = write_profile(folder / "profile.yaml", None, **fields)
        self.written = self.preparer(trusted=True).read(str(self.profile))
        self.plan: BuildPlan = self.planned(trusted=True)

    def planned(self, *, trusted: bool) -> BuildPlan:
        return self.preparer(trusted=trusted).prepare(str(self.profile)).plan

    def preparer(self, *, trusted: bool) -> Preparer:
        return Preparer(self.settings, Machine(cpus=4, memory=16 << 30), trusted=trusted)

    @property
    def prepared(self) -> PreparedBuild:
        return PreparedBuild(written=self.written, plan=self.plan)

    @property
    def session(self) -> BuildSession:
        return BuildSession(
            connect=lambda: self.engine,
            settings=self.settings,
            knowledge=loader.knowledge(self.settings.knowledge),
            stop=self.stop,
            clock=self.clock,
        )

    def build(self, *, force: bool = False) -> BuildResult:
        return build(self.session, BuildRequest(prepared=self.prepared, force=force), self.heard.append)

    def fails(self, kind: type[TfdockError], code: str, phase: str) -> Problem:
        """The build fails that way, in that phase, and leaves neither a wheel nor a container."""
        with refusal(kind, code) as caught:
            self.build()
        (problem,) = caught.value.problems
        assert f"phase {phase}" in problem.message
        assert "log: " in problem.message
        assert list(self.settings.wheelhouse.glob("*.whl")) == []
        if self.engine.ping():
            assert self.left_behind == []
        return problem

    @property
    def left_behind(self) -> list[str]:
        folders = [self.settings.state_dir / "runs", self.settings.cache_dir / "output"]
        folders.append(self.settings.wheelhouse / ".tfdock/staging")
        containers = [state.name for state in self.engine.containers("io.tfdock.run")]
        return containers + [str(path) for folder in folders for path in folder.glob("*")]

    @property
    def log(self) -> bytes:
        (log,) = self.settings.wheelhouse.glob(".tfdock/*/*/*.log")
        return log.read_bytes()

    @property
    def notices(self) -> list[str]:
        told = [event.text for event in self.heard if isinstance(event, events.Notice)]
        return [text for text in told if "[trust-shared]" not in text]  # every build here is shared


KILLED = "20261121-104600-3fa9c1"  #: The id of a run that was killed.


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- a build that ends well ---------------------------------------------------------------------------------------


def test_a_build_goes_through_its_phases_and_leaves_a_wheel_a_record_and_a_log(desk: Desk) -> None:
    result = desk.build()
    assert result.status == "built"
    assert [path.name for path in result.wheels] == [path.name for path in desk.settings.wheelhouse.glob("*.whl")]
    constraints = desk.settings.wheelhouse / f"{desk.plan.build_id}.constraints.txt"
    version = result.wheels[0].name.split("-")[1]
    assert constraints.read_text().splitlines()[1:] == [f"tensorflow-miniature=={version}"]
    phases = [event.phase for event in desk.heard if isinstance(event, events.PhaseStarted)]
    assert phases == ["image", "fetch", "compile", "seal", "verify"]
    assert result.record["base_digest"] == DIGEST
    assert result.record["source"] == {"ref": "first", "found": COMMIT}
    assert set(result.record["seconds"]) == set(phases)
    private = (desk.settings.state_dir, desk.settings.wheelhouse / ".tfdock/staging", desk.settings.cache_dir)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in private} == {0o700}
    assert desk.left_behind == []
    assert desk.build().status == "up-to-date"


def test_a_build_of_another_trust_domain_does_not_stand_for_one_in_release(desk: Desk) -> None:
    shared, desk.plan = desk.plan, desk.planned(trusted=False)
    assert desk.build().status == "built"
    assert desk.build().status == "up-to-date"
    assert desk.plan.fingerprint == shared.fingerprint
    assert desk.session.up_to_date(replace(desk.prepared, plan=shared)) is None
    own, desk.plan = desk.plan, shared
    assert desk.build().status == "built"
    assert desk.session.up_to_date(replace(desk.prepared, plan=own)), "what is in release may stand for every domain"


def test_a_build_of_another_trust_domain_is_refused_before_its_work_where_a_release_has_the_build_id(
    desk: Desk,
) -> None:
    (wheel_of_release,) = desk.build().wheels
    before = wheel_of_release.read_bytes()
    desk.plan = desk.planned(trusted=False)
    desk.heard.clear()
    desk.engine.phases["compile"] = FakeRun(effect=leaving(wheel(code=b"evil = True\n")))
    with refusal(WheelRefused, "wheel-name-taken") as caught:
        desk.build(force=True)
    (problem,) = caught.value.problems
    assert "another `--wheelhouse`" in problem.fix
    assert wheel_of_release.read_bytes() == before
    assert desk.heard == []


def test_a_log_holds_no_control_sequences_wherever_they_are_cut(desk: Desk) -> None:
    pieces = [
        b"\x1b[31mred\x1b[", b"0m\n", b"\x1b]52;c;cm0g", b"LXJm\x07clip\n10 %\r", b"20 %\n", b"caf\xe9\n",
        b"\x1b]0;open",
    ]  # fmt: skip
    desk.engine.phases["compile"] = FakeRun(output=pieces, pause=0.02, effect=leaving(wheel()))
    assert desk.build().status == "built"
    data = desk.log

    assert b"\nred\nclip\n10 %\n20 %\ncaf\xe9\n]0;open" in data
    assert not set(data) & set({*range(0x20)} - {0x09, 0x0A})


def test_containers_are_walled_in_and_only_fetch_has_a_network(desk: Desk) -> None:
    desk.build()
    fetch, compile_ = desk.engine.specs["fetch"], desk.engine.specs["compile"]
    assert compile_.network == "none"
    assert fetch.network != "none"
    for spec in (fetch, compile_):
        assert spec.user == f"{os.getuid()}:{os.getgid()}"
        assert (spec.memory, spec.pids) == (desk.plan.resources.memory, desk.plan.resources.pids)
        assert mounts(spec)["/tf/output"].parent.name == spec.labels["io.tfdock.run"]
    assert "/tf/staging" not in mounts(fetch)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(None, "image-incomplete", id="no toolchain"),
        pytest.param(b"chosen\n", "toolchain-changed", id="changed by later steps"),
    ],
)
def test_an_image_that_does_not_know_its_toolchain_is_not_built_with(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, content: bytes | None, code: str
) -> None:
    read = Engine.read_file

    def changed(engine: Engine, container: str, path: str) -> bytes | None:
        state = engine.state(container)
        wrong = content is None or (state is not None and state.name.endswith("-look"))
        return content if wrong and path == "/opt/tfdock/toolchain" else read(engine, container, path)

    monkeypatch.setattr(Engine, "read_file", changed)
    desk.fails(BuildFailed, code, "image")


def test_the_toolchain_is_read_from_a_stage_that_has_no_source_and_configure_has_no_network(desk: Desk) -> None:
    desk.build()
    requests = desk.engine.requests
    assert [request.target for request in requests] == ["toolchain", "source", None]
    assert requests[-1].network == "none"
    assert "none" not in {request.network for request in requests[:-1]}
    assert set(requests[0].build_args) == {"BASE_IMAGE"}


PROXY = "http://somebody:swordfish@proxy.example:3128"


def test_proxies_reach_the_steps_with_a_network_and_no_other_and_their_login_is_not_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"https_proxy": PROXY, "ALL_PROXY": PROXY, "no_proxy": ".example.org"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    printed = f"trying {PROXY}\n".encode()
    desk.engine.on_build = lambda request: FakeBuild(
        output=[b" ---> Running in 0123456789ab\n", printed[:30], printed[30:]],
        labels={TOOLCHAIN_LABEL: request.build_args.get("TOOLCHAIN", "")},
    )
    desk.engine.phases["fetch"] = FakeRun(output=[printed[:25], printed[25:]])
    desk.build()
    requests = desk.engine.requests
    assert [variables.items() <= dict(request.build_args).items() for request in requests] == [True, True, False]
    assert set(requests[-1].build_args) & set(variables) == set()
    environments = {name: set(spec.environment) & set(variables) for name, spec in desk.engine.specs.items()}
    assert environments["fetch"] == set(variables)
    assert environments["compile"] == set()
    told = desk.log + "\n".join(map(str, desk.heard)).encode()
    assert told.count(b"trying http://<login>@proxy.example:3128") >= 4
    written = [path for path in desk.settings.wheelhouse.rglob("*") if path.is_file()]
    assert [path for path in written if b"swordfish" in path.read_bytes()] == []
    assert b"swordfish" not in told


def test_a_proxy_on_the_loopback_is_told_before_anything_starts_and_given_to_nobody(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    desk.build()
    (place,) = [place for place, event in enumerate(desk.heard) if "proxy-on-loopback" in str(event)]
    assert "TFDOCK_NETWORK=host" in str(desk.heard[place])
    assert place < min(place for place, event in enumerate(desk.heard) if isinstance(event, events.PhaseStarted))
    assert "https_proxy" not in desk.engine.specs["fetch"].environment


def test_a_login_is_told_to_be_readable_by_a_source_of_a_domain_of_its_own(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("https_proxy", PROXY)
    (tmp_path / "other").mkdir()
    desk.build()
    assert "proxy-login-readable" not in str(desk.heard)
    other = Desk(tmp_path / "other")
    other.plan = other.planned(trusted=False)
    other.build()
    assert "proxy-login-readable" in str(other.heard)
    assert "swordfish" not in str(other.heard)


# --- streams and engines that break -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "phase"),
    [("pull", "image"), ("build", "image"), ("tag", "image"), ("read_file", "image"), ("start", "fetch"),
     ("follow", "fetch")],
)  # fmt: skip
def test_an_engine_that_is_lost_is_told_with_the_phase_and_the_next_run_builds(
    desk: Desk, method: str, phase: str
) -> None:
    desk.engine.lose(method)
    desk.fails(EngineLost, "engine-lost", phase)
    assert desk.build().status == "built"


def test_the_step_of_an_image_that_an_engine_left_as_it_died_is_cleaned_up_and_no_other(desk: Desk) -> None:
    labels = {IMAGE_LABEL: "1"}
    step, other, run = (
        ContainerSpec(name=name, image="b" * 64, command=("true",), labels=labels | more)
        for name, more in (("step", {}), ("other", {}), ("run", {"io.tfdock.run": "of-another"}))
    )

    def steps() -> Iterator[bytes]:
        ids = {spec.name: desk.engine.create(spec) for spec in (step, other, run)}
        yield f" ---> Running in {ids['run'][:12]}\n".encode()
        yield f" ---> Running in {ids['step'][:12]}\n".encode()
        yield f"a program says: ---> Running in {ids['other'][:12]}\n".encode()
        desk.engine.alive = False

    lost = EngineLost(Problem(code="engine-lost", message="the engine was lost"))
    desk.engine.images["b" * 64] = ImageInfo(id="b" * 64)
    desk.engine.on_build = lambda _: FakeBuild(output=steps(), error=lost)
    desk.fails(EngineLost, "engine-lost", "image")
    desk.engine.alive = True
    desk.engine.on_build = lambda _: FakeBuild()
    assert desk.build().status == "built"
    assert {state.name for state in desk.engine.containers(IMAGE_LABEL)} == {"other", "run"}


def test_a_step_that_cannot_be_noted_and_a_run_that_cannot_be_cleaned_up_end_no_build(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    entry = journal.RunEntry(run=KILLED, build_id="x", staging="/nowhere", output="/nowhere")
    with journal.running(desk.settings.state_dir, entry):
        pass
    noted: list[object] = []

    def stepped(*words: object) -> None:
        noted.append(words[-1])
        denied()

    monkeypatch.setattr(journal, "note_step", stepped)
    step = FakeBuild(output=[b" ---> Running in 0123456789ab\n"])
    desk.engine.on_build = lambda request: step if request.target == "source" else FakeBuild()
    with monkeypatch.context() as broken:
        broken.setattr(journal, "remove_folder", denied)
        assert desk.build().status == "built"
    assert noted == ["0123456789ab"]
    assert any(f"could not clean up after run {KILLED}: [Errno 13]" in notice for notice in desk.notices)
    assert KILLED in {one.run for one in journal.killed_runs(desk.settings.state_dir)}
    desk.build(force=True)
    assert desk.left_behind == []


def test_what_an_engine_that_died_kept_is_cleaned_up_when_it_is_back(desk: Desk) -> None:
    def die(_: ContainerSpec) -> None:
        desk.engine.alive = False

    desk.engine.phases["compile"] = FakeRun(effect=die)
    desk.fails(EngineLost, "engine-lost", "compile")
    with pytest.raises(EngineUnavailable):
        desk.build()
    desk.engine.alive = True
    assert len(desk.left_behind) > 1
    desk.engine.phases["compile"] = FakeRun(effect=leaving(wheel()))
    assert desk.build().status == "built"
    assert any("cleaned up after run" in notice for notice in desk.notices)
    assert desk.left_behind == []


def test_an_engine_that_hangs_is_noticed_and_asked_for_nothing_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.clock.step = 40
    desk.engine.phases["fetch"] = FakeRun(endless=True)
    with monkeypatch.context() as frozen:
        frozen.setattr(desk.engine, "ping", lambda: False)
        problem = desk.fails(EngineHung, "engine-hung", "fetch")
        assert desk.engine.called("containers") == []
    assert "does not answer a ping" in problem.message
    assert len(desk.left_behind) > 1
    desk.engine.phases["fetch"] = FakeRun()
    assert desk.build().status == "built"
    assert desk.left_behind == []


def test_a_build_that_is_silent_on_an_engine_that_answers_goes_on(desk: Desk) -> None:
    desk.engine.phases["compile"] = FakeRun(output=[b"", b""], pause=1.5, effect=leaving(wheel()))
    desk.clock.step = 40
    assert desk.build().status == "built"
    assert desk.engine.called("ping")


REMOTE = EngineInfo(
    name="docker", version="28", api_version="1.50", cpus=4, memory=1 << 34, data_root="/", id="there", local=False
)


def test_an_engine_elsewhere_has_volumes_and_what_it_leaves_comes_back(desk: Desk) -> None:
    desk.engine.engine_info = REMOTE
    result = desk.build()
    assert result.status == "built"
    assert result.record["engine"]["local"] is False
    assert {mount.kind for spec in desk.engine.created for mount in spec.mounts} == {"volume"}
    verify = desk.engine.specs["verify"]
    assert all(mount.read_only for mount in verify.mounts if mount.target != "/tfdock/work")
    assert desk.left_behind == []
    kept = sorted(desk.engine.volume_labels)
    assert kept == [f"tfdock-{os.getuid()}-disk-{result.record['toolchain_key']}", f"tfdock-{os.getuid()}-repository"]
    assert desk.engine.volumes("io.tfdock.run") == []


def test_what_a_killed_run_left_on_an_engine_elsewhere_waits_until_that_engine_is_used(desk: Desk) -> None:
    desk.engine.engine_info = REMOTE
    entry = journal.RunEntry(run=KILLED, build_id="x", staging="/nowhere", output="/nowhere", engine="there")
    desk.engine.create_volume("tfdock-killed-0", {"io.tfdock.run": KILLED})
    with journal.running(desk.settings.state_dir, entry):
        pass
    desk.engine.engine_info = replace(REMOTE, id="another")
    desk.build()
    assert desk.engine.volumes("io.tfdock.run") == ["tfdock-killed-0"]
    desk.engine.engine_info = REMOTE
    desk.build(force=True)
    assert desk.engine.volumes("io.tfdock.run") == []
    assert desk.left_behind == []


LEFT = (ExpectedFiles(pattern="raw/*.whl", most=2), ExpectedFiles(pattern="done"))


@pytest.mark.parametrize("name", ["../escaped.whl", "raw/../../escaped.whl", "/tmp/escaped.whl", "raw/deep/x.whl"])
def test_what_comes_back_has_an_expected_name_or_stays(tmp_path: Path, name: str) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for one in (f"staging/{name}" if not name.startswith("/") else name, "staging/raw/good.whl", "staging/other"):
            entry = tarfile.TarInfo(one)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"text"))
    copy_from_archive([content.getvalue()], LEFT, tmp_path / "a/b")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [tmp_path / "a/b/raw/good.whl"]


def test_an_archive_that_breaks_off_on_its_way_back_is_an_error_of_the_engine(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("staging/done")
    entry.size = 4096
    with refusal(EngineError, "container-file-refused"):
        copy_from_archive([entry.tobuf() + b"half"], LEFT, tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


# --- containers that end in other ways ----------------------------------------------------------------------------


def changed_wheel(spec: ContainerSpec) -> None:
    """Change the wheel after its sum was taken."""
    leaving(wheel())(spec)
    (raw,) = (mounts(spec)["/tf/staging"] / "raw").iterdir()
    raw.write_bytes(wheel() + b"?")


GOOD = leaving(wheel())


ENDS: dict[str, tuple[FakeRun, type[TfdockError], str, str]] = {
    "out of memory, exit code 0": (FakeRun(effect=GOOD, oom_killed=True), OutOfMemory, "out-of-memory", "compile"),
    "out of memory, 1": (FakeRun(effect=GOOD, oom_killed=True, exit_code=1), OutOfMemory, "out-of-memory", "compile"),
    "out of memory, 137": (FakeRun(oom_killed=True, exit_code=137), OutOfMemory, "out-of-memory", "compile"),
    "killed from outside": (FakeRun(exit_code=137), EngineLost, "container-killed", "compile"),
    "full disk": (FakeRun(output=[b"No space left on device\n"], exit_code=1), DiskFull, "disk-full", "compile"),
    "no marker": (FakeRun(), BuildFailed, "build-unfinished", "seal"),
    "another run's": (FakeRun(effect=leaving(wheel(), run="other")), BuildFailed, "build-unfinished", "seal"),
    "another Python": (FakeRun(effect=leaving(wheel("cp312"), "cp312")), WheelRefused, "wheel-wrong-python", "seal"),
    "not as RECORD says": (
        FakeRun(effect=leaving(wheel(damaged=True))),
        WheelRefused,
        "wheel-record-mismatch",
        "seal",
    ),
    "no wheel at all": (FakeRun(effect=leaving(b"PK, but not for long")), WheelRefused, "wheel-not-a-zip", "seal"),
    "half a wheel": (FakeRun(effect=leaving(wheel()[:-30])), WheelRefused, "wheel-not-a-zip", "seal"),
    "changed after its sum was taken": (FakeRun(effect=changed_wheel), WheelRefused, "wheel-changed", "seal"),
}


@pytest.mark.parametrize(("run", "kind", "code", "phase"), ENDS.values(), ids=ENDS)
def test_a_compile_that_ends_so_fails_the_build(
    desk: Desk, run: FakeRun, kind: type[TfdockError], code: str, phase: str
) -> None:
    desk.engine.phases["compile"] = run
    desk.fails(kind, code, phase)


def test_a_container_that_is_gone_is_no_success(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    state = desk.engine.state
    monkeypatch.setattr(desk.engine, "state", lambda container: state(container) and None)
    with refusal(EngineLost, "container-gone"):
        desk.build()


# --- time and stops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signals", [{"INT": 8}, {}], ids=["stops when asked", "must be killed"])
def test_the_time_limit_counts_for_the_whole_build_and_stops_it(tmp_path: Path, signals: dict[str, int]) -> None:
    desk = Desk(tmp_path, resources={"time_limit": "1h"})

    def run(spec: ContainerSpec) -> FakeRun:
        if spec.name.endswith("compile"):
            desk.clock.step = 31  # more than half of the time has gone: two phases of an hour each would be left
            return FakeRun(endless=True, signals=signals)
        desk.clock.now += 3500
        return FakeRun()

    desk.engine.on_run = run
    problem = desk.fails(TimeLimit, "time-limit", "compile")
    assert "3600 s" in problem.message
    assert desk.clock.now < 5400
    sent = [name for _, name in desk.engine.called("signal")]
    assert sent == (["INT"] if signals else ["INT", "KILL"])


def test_the_time_limit_ends_an_image_build_that_hangs(tmp_path: Path) -> None:
    desk = Desk(tmp_path, resources={"time_limit": "1h"})

    def build(_: ImageBuild) -> FakeBuild:
        desk.clock.step = 400
        return FakeBuild(endless=True)

    desk.engine.on_build = build
    assert "3600 s" in desk.fails(TimeLimit, "time-limit", "image").message


def test_the_time_limit_ends_a_pull_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, resources={"time_limit": "1h"})
    ended = threading.Event()

    def pull(*_: object) -> ImageInfo:
        desk.clock.step = 400
        ended.wait(60)
        raise AssertionError

    monkeypatch.setattr(desk.engine, "pull", pull)
    assert "3600 s" in desk.fails(TimeLimit, "time-limit", "image").message
    ended.set()


def test_what_was_looked_into_is_what_compiles_whoever_moves_the_name(desk: Desk) -> None:
    class Moved(Engine):
        """Another run gives the name to its own image as soon as ours has it."""

        def tag(self, image: str, name: str) -> None:
            super().tag(image, name)
            other = ImageInfo(id="sha256:" + "e" * 64)
            self.images[other.id] = other
            super().tag(other.id, name)

    desk.engine = Moved()
    desk.build()
    (built,) = {image for image, _ in desk.engine.called("tag") if image != "sha256:" + "e" * 64}
    of_others = [desk.engine.specs["toolchain"], desk.engine.specs["verify"]]
    assert {spec.image for spec in desk.engine.specs.values() if spec not in of_others} == {built}


@pytest.mark.parametrize("terminated", [False, True])
def test_a_stop_is_passed_on_gently_once_and_then_by_force(desk: Desk, terminated: bool) -> None:
    def run(_: ContainerSpec) -> FakeRun:
        desk.stop.requests, desk.stop.terminated = 1, terminated
        threading.Timer(1.2, lambda: setattr(desk.stop, "requests", 2)).start()
        return FakeRun(endless=True, signals={})

    desk.engine.on_run = run
    with pytest.raises(Interrupted) as caught:
        desk.build()
    assert caught.value.exit_code == (143 if terminated else 130)
    assert "phase fetch" in caught.value.problems[0].message
    assert [name for _, name in desk.engine.called("signal")] == ["INT", "KILL"]
    assert desk.left_behind == []


def test_a_stop_during_an_image_build_cancels_it(desk: Desk) -> None:
    def build(_: ImageBuild) -> FakeBuild:
        desk.stop.requests = 1
        return FakeBuild(endless=True)

    desk.engine.on_build = build
    desk.fails(Interrupted, "interrupted", "image")


# --- verify -------------------------------------------------------------------------------------------------------


def statuses(verification: Mapping[str, Any], status: str) -> list[str]:
    """The names of the checks that ended so."""
    return [check["name"] for check in verification["checks"] if check["status"] == status]


def reasons(verification: Mapping[str, Any]) -> dict[str, str]:
    """Why checks were skipped or failed."""
    return {check["name"]: check["reason"] for check in verification["checks"] if check["status"] != "passed"}


def test_a_wheel_is_tried_in_a_clean_container_before_it_is_published(desk: Desk) -> None:
    published: list[bool] = []

    def trying(spec: ContainerSpec) -> FakeRun:
        published.append(any(desk.settings.wheelhouse.glob("*.whl")))
        return verifying(spec)

    desk.engine.trial = trying
    verification = desk.build().record["verification"]
    assert published == [False]
    assert statuses(verification, "failed") == []
    assert {"install", "import", "op", "gradient", "xla", "libraries"} - set(statuses(verification, "passed")) == {
        "xla"
    }
    assert reasons(verification)["gpu-native"] == "the wheel is for the CPU"
    assert verification["runtime"] == RUNTIME
    assert verification["gpu_code"] == {"sass": [], "ptx": [], "amdgpu": []}


def test_the_container_in_which_a_wheel_is_tried_is_walled_in(desk: Desk) -> None:
    desk.build()
    spec = desk.engine.specs["verify"]
    assert spec.image == desk.engine.registry[RUNTIME].id
    assert (spec.network, spec.read_only, spec.gpus) == ("none", True, False)
    assert spec.user == f"{os.getuid()}:{os.getgid()}"
    assert spec.memory is not None
    writable = [mount.target for mount in spec.mounts if not mount.read_only]
    assert writable == ["/tfdock/work"]
    assert mounts(spec)["/tfdock/work"].is_relative_to(desk.settings.cache_dir)
    assert "dependencies" not in desk.engine.specs, "it requires nothing"


def refused(desk: Desk) -> Path:
    """The build ends with a refusal: nothing is published, and the wheel lies with its checks where it says."""
    problem = desk.fails(VerificationFailed, "wheel-refused", "verify")
    (kept,) = desk.settings.wheelhouse.glob(".tfdock/*/*/refused/*.whl")
    assert str(kept) in problem.why
    assert f"tfdock verify {kept} PROFILE" in problem.fix
    assert list(desk.settings.wheelhouse.glob(".tfdock/*/*/record.json")) == []
    return kept


def test_a_wheel_that_fails_a_check_is_refused_and_kept_and_a_good_one_follows(desk: Desk) -> None:
    failing = {"outcome": "failed", "reason": "killed by SIGILL"}
    desk.engine.trial = lambda spec: verifying(spec, op=failing, gradient=failing)
    kept = refused(desk)
    verification = json.loads((kept.parent / "verification.json").read_bytes())
    assert statuses(verification, "failed") == ["op", "gradient"]
    assert refused(desk) == kept
    desk.engine.trial = verifying
    assert desk.build().status == "built"


def test_a_wheel_that_is_not_what_was_asked_for_is_refused_without_being_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path, accelerator="cuda", compute_capabilities=["sm_86"], verify={"run": False})
    refused(desk)
    assert "verify" not in desk.engine.specs


def test_a_wheel_that_ends_the_container_has_failed_the_check_that_was_due(desk: Desk) -> None:
    def dying(spec: ContainerSpec) -> FakeRun:
        run = verifying(spec)
        return FakeRun(output=[line for line in run.output if b'"op"' not in line][:4], exit_code=1)

    desk.engine.trial = dying
    kept = refused(desk)
    verification = json.loads((kept.parent / "verification.json").read_bytes())
    assert statuses(verification, "failed") == ["import"]
    assert reasons(verification)["import"] == "no result: the container ended with exit status 1"


def published_untried(desk: Desk, reason: str) -> None:
    """The wheel is published, and record and notice say that it was not tried, and why."""
    verification = desk.build().record["verification"]
    assert statuses(verification, "failed") == []
    assert reason in reasons(verification)["install"]
    assert any("not tried in a container" in notice and reason in notice for notice in desk.notices)


def test_a_wheel_whose_runtime_image_cannot_be_had_is_published_with_a_warning(desk: Desk) -> None:
    del desk.engine.registry[RUNTIME]
    published_untried(desk, "has no image")


def test_a_profile_may_leave_the_trial_out(tmp_path: Path) -> None:
    desk = Desk(tmp_path, verify={"run": False})
    verification = desk.build().record["verification"]
    assert reasons(verification)["op"] == "the profile says `verify: {run: false}`"
    assert "verify" not in desk.engine.specs
    assert desk.notices == []


MINE = "example.org/python:mine"


@pytest.fixture
def own_runtime(tmp_path: Path) -> Desk:
    """A build whose profile names its runtime image; the wheel requires something."""
    desk = Desk(tmp_path, runtime=MINE)
    desk.engine.registry[MINE] = ImageInfo(id="sha256:" + "f" * 64)
    desk.engine.phases["compile"] = requiring(REQUIRES)
    return desk


REQUIRES = 'Requires-Dist: numpy<2.1\nRequires-Dist: cudnn==9; extra == "and-cuda"\nProvides-Extra: and-cuda\n'


def requiring(lines: str) -> FakeRun:
    """A compile that leaves a wheel with these lines in its METADATA."""
    return FakeRun(effect=leaving(wheel(requires=lines)))


#: What the container does that fetches what a wheel requires.
FETCHED = FakeRun(effect=lambda spec: (mounts(spec)["/tfdock/made"] / "wheels").mkdir())


def test_what_a_wheel_requires_is_fetched_once_with_the_callers_settings_of_pip(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("PIP_INDEX_URL", "https://somebody:secret@example.org/simple")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    desk.engine.phases |= {"compile": requiring(REQUIRES), "dependencies": FETCHED}
    result = desk.build()
    spec = desk.engine.specs["dependencies"]
    assert spec.environment["PIP_INDEX_URL"] == "https://somebody:secret@example.org/simple"
    assert "--only-binary=:all:" in spec.command, "no code of a source archive runs beside the login"
    assert mounts(spec)[spec.environment["PIP_CERT"]] == tmp_path / "ca.pem"
    assert (spec.network, spec.read_only) == (None, True)
    (folder,) = (desk.settings.cache_dir / "dependencies").iterdir()
    assert mounts(desk.engine.specs["verify"])["/tfdock/dependencies"] == folder
    assert "PIP_INDEX_URL" not in desk.engine.specs["verify"].environment
    written = [result.record_path, result.log_path]
    assert [path for path in written if b"secret" in path.read_bytes()] == []

    before = len(desk.engine.created)
    desk.build(force=True)
    names = [spec.name.rpartition("-")[2] for spec in desk.engine.created[before:]]
    assert names == ["toolchain", "look", "fetch", "compile", "verify"]


LOGINS = {
    "PIP_INDEX_URL": "https://somebody:swordfish@example.org/simple",
    "PIP_EXTRA_INDEX_URL": "https://packages.example/simple https://example.org/HjKKZJn6dY8xYB3h/simple",
    "HTTPS_PROXY": "http://somebody:swordfish@example.org:3128",
}


@pytest.mark.parametrize("name", LOGINS)
def test_a_runtime_image_of_a_profile_is_given_no_login(
    own_runtime: Desk, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, LOGINS[name])
    published_untried(own_runtime, f"{name} may hold a login")
    assert "dependencies" not in own_runtime.engine.specs


def test_a_runtime_image_of_a_profile_reaches_an_index_that_wants_no_login_and_tries_the_wheel(
    own_runtime: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    own_runtime.engine.phases["dependencies"] = FETCHED
    assert own_runtime.build().record["verification"]["runtime"] == MINE
    spec = own_runtime.engine.specs["dependencies"]
    assert spec.environment["PIP_INDEX_URL"] == "https://example.org/simple"
    assert spec.image == own_runtime.engine.specs["verify"].image == "sha256:" + "f" * 64
    assert "--only-binary=:all:" not in spec.command


@pytest.mark.parametrize("name", LOGINS)
def test_no_login_is_in_what_is_told_while_requirements_are_fetched(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, LOGINS[name])
    desk.engine.phases["compile"] = requiring(REQUIRES)
    said = f"ERROR: nothing at {LOGINS[name]}\n".encode()
    desk.engine.phases["dependencies"] = FakeRun(output=[said[:60], said[60:]], exit_code=1)
    published_untried(desk, "nothing at http")
    assert "--only-binary=:all:" in desk.engine.specs["dependencies"].command
    told = desk.log + "\n".join(map(str, desk.heard)).encode()
    assert b"nothing at http" in told
    assert [secret for secret in (b"swordfish", b"HjKKZJn6dY8xYB3h") if secret in told] == []


NO_NUMPY = "ERROR: No matching distribution found for numpy<2.1\n"
NONE_FETCHED = FakeRun(output=[b"WARNING: retrying\n", NO_NUMPY.encode()], exit_code=1)


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        ({"verify": FakeRun(output=[b"sh: no python\n"], exit_code=127)}, "exit status 127: sh: no python"),
        ({"compile": requiring(REQUIRES), "dependencies": NONE_FETCHED}, NO_NUMPY[7:-1]),
        *(({"compile": requiring(f"Requires-Dist: {line}\n")}, "it requires ")
          for line in ("numpy @ https://example.org/numpy.whl", "--index-url x", "x===${PIP_INDEX_URL}")),
    ],
    ids=["the image runs no check", "what it requires cannot be had", *["it says where what it requires is"] * 3],
)  # fmt: skip
def test_a_wheel_that_cannot_be_tried_is_published_with_a_warning(
    desk: Desk, phases: dict[str, FakeRun], reason: str
) -> None:
    desk.engine.phases |= phases
    published_untried(desk, reason)
    assert ("dependencies" in desk.engine.specs) is ("dependencies" in phases)
    assert list(desk.settings.cache_dir.glob("dependencies/*")) == []


def test_a_trial_that_runs_out_of_memory_is_not_the_wheels_fault(desk: Desk) -> None:
    desk.engine.phases["verify"] = FakeRun(exit_code=137, oom_killed=True)
    desk.fails(OutOfMemory, "out-of-memory", "verify")


def test_a_trial_that_fails_on_a_full_disk_is_not_the_wheels_fault(desk: Desk) -> None:
    def full(spec: ContainerSpec) -> FakeRun:
        run = verifying(spec, install={"outcome": "failed", "reason": "pip failed"})
        return FakeRun(output=[b"OSError: [Errno 28] No space left on device\n", *run.output])

    desk.engine.trial = full
    desk.fails(DiskFull, "disk-full", "verify")


def test_a_trial_is_stopped_on_request(desk: Desk) -> None:
    def output() -> Iterator[bytes]:
        yield b"importing\n"
        desk.stop.requests = 1

    desk.engine.phases["verify"] = FakeRun(output=output(), endless=True)
    desk.fails(Interrupted, "interrupted", "verify")


def test_a_stop_ends_the_wait_for_a_remote_cache_that_is_silent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        desk = Desk(tmp_path, address, cache={"remote": address})
        asked = pool.submit(silent.accept)
        asked.add_done_callback(lambda _: setattr(desk.stop, "requests", 1))
        with pytest.raises(Interrupted):
            desk.build()
        asked.result()[0].close()


GPU_INFO = {"is_cuda_build": True}


def on_gpu(desk: Desk, *runtimes: str) -> None:
    """The wheel is for a GPU, and the engine has these runtimes."""
    desk.engine.phases["compile"] = FakeRun(effect=leaving(wheel(build_info=GPU_INFO)))
    desk.engine.engine_info = replace(desk.engine.engine_info, runtimes=runtimes)
    more: dict[str, Mapping[str, object]] = {
        "build_info": {"found": GPU_INFO},
        "gpu_devices": {"found": [{"name": "a GPU", "capability": "8.6"}]},
        "gpu_first_op": {"found": {"seconds": 1.0}},
        "gpu_driver": {"found": {"driver": "550.54"}},
        "libraries": {"outcome": "skipped"},
    }
    desk.engine.trial = lambda spec: verifying(spec, **more)


@pytest.mark.parametrize("runtimes", [("nvidia", "runc"), ("runc",)])
def test_a_wheel_for_gpus_is_tried_on_them_where_the_engine_has_a_gpu_runtime(
    desk: Desk, runtimes: tuple[str, ...]
) -> None:
    on_gpu(desk, *runtimes)
    found = desk.build().record["verification"]
    assert desk.engine.specs["verify"].gpus is ("nvidia" in runtimes)
    if "nvidia" in runtimes:
        assert set(statuses(found, "passed")) > {"gpu-devices", "gpu-first-op", "gpu-native", "gpu-driver"}
    else:
        assert reasons(found)["gpu-devices"].startswith("the engine cannot give containers such a GPU")


def test_where_the_gpu_runtime_has_no_gpu_to_give_the_rest_is_tried_all_the_same(desk: Desk) -> None:
    on_gpu(desk, "nvidia", "runc")
    start = desk.engine.start

    def starting(container: str) -> None:
        state = desk.engine.state(container)
        if state and state.name.endswith("verify") and desk.engine.specs["verify"].gpus:
            raise EngineError(Problem(code="engine-refused", message="nvidia-container-cli: no driver"))
        start(container)

    desk.engine.start = starting  # type: ignore[method-assign]
    verification = desk.build().record["verification"]
    assert not desk.engine.specs["verify"].gpus
    assert reasons(verification)["gpu-devices"] == "nvidia-container-cli: no driver"
    assert "op" in statuses(verification, "passed")


# --- source fallback ----------------------------------------------------------------------------------------------


def refs(desk: Desk) -> list[str]:
    """The source refs that images were built of."""
    return [request.build_args["SOURCE_REF"] for request in desk.engine.requests if request.target == "source"]


def step_failed(status: int) -> FakeBuild:
    problem = Problem(code="image-step-failed", message=f"a step failed with exit code {status}")
    return FakeBuild(error=BuildFailed(problem, status=status))


@pytest.mark.parametrize("status", [1, 68], ids=["configure fails", "cannot be fetched"])
def test_a_ref_whose_image_fails_gives_way_to_the_next(desk: Desk, status: int) -> None:
    desk.engine.on_build = lambda request: (
        step_failed(status) if request.build_args.get("SOURCE_REF") == "first" else FakeBuild()
    )
    result = desk.build()
    assert refs(desk) == ["first", "second"]
    assert (result.record["source"]["ref"], result.record["attempts"]) == ("second", 2)
    assert any("source first does not work" in notice for notice in desk.notices)


def test_a_ref_that_cannot_be_analysed_gives_way_to_the_next(desk: Desk) -> None:
    answers = iter([FakeRun(output=[b"ERROR: no such target\n"], exit_code=1), FakeRun()])
    usual = desk.engine.on_run
    desk.engine.on_run = lambda spec: next(answers) if spec.name.endswith("fetch") else usual(spec)
    assert desk.build().record["source"]["ref"] == "second"


def test_after_compiling_began_no_other_ref_is_tried(desk: Desk) -> None:
    desk.engine.phases["compile"] = FakeRun(output=[b"ERROR: x.cc:1: error: no\n"], exit_code=1)
    problem = desk.fails(BuildFailed, "compile-failed", "compile")
    assert "x.cc:1" in problem.message
    assert refs(desk) == ["first"]


def test_a_ref_that_does_not_compile_gives_way_where_the_profile_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tensorflow={**SOURCE, "fallback_on": "compile"})
    failed, usual = [FakeRun(output=[b"ERROR: x.cc:1: error: no\n"], exit_code=1)], desk.engine.on_run
    desk.engine.on_run = lambda spec: failed.pop() if failed and spec.name.endswith("compile") else usual(spec)
    result = desk.build()
    assert refs(desk) == ["first", "second"]
    assert (result.record["source"]["ref"], result.record["attempts"]) == ("second", 2)
    assert any(
        "source first does not compile (" in notice and "); trying second" in notice for notice in desk.notices
    ), desk.notices


def test_a_registry_that_fails_is_not_the_fault_of_a_ref(desk: Desk) -> None:
    desk.engine.registry.clear()
    desk.fails(NetworkError, "image-not-found", "image")
    assert len(desk.engine.called("pull")) == 1


@pytest.mark.parametrize(
    ("status", "kind", "code", "tried"),
    [
        pytest.param(68, NetworkError, "source-unreachable", ["first", "second"], id="every ref fails"),
        pytest.param(65, Incompatible, "pin-moved", ["first"], id="a pin that moved: no other ref is tried"),
    ],
)
def test_a_source_that_no_ref_gives_is_told(
    desk: Desk, status: int, kind: type[TfdockError], code: str, tried: list[str]
) -> None:
    desk.engine.on_build = lambda request: step_failed(status) if request.target == "source" else FakeBuild()
    desk.fails(kind, code, "image")
    assert refs(desk) == tried
