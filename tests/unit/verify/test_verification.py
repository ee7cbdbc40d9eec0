"""What keeps a wheel from being tried, and what its metadata may ask for; on an engine in memory."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine, FakeRun
from packaging.requirements import InvalidRequirement

from tfdock import events
from tfdock.engine.engine_machine import gpu_access
from tfdock.engine.protocol import ContainerSpec, ImageInfo
from tfdock.errors import DiskFull, EngineError, EngineHung, EngineLost, Problem, TfdockError
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.verify.trial import MarkedLines
from tfdock.verify.trial_container import (
    TrialEnvironment,
    TrialRequest,
    pip_requirements,
    python_command,
    trial_environment,
)
from tfdock.verify.trial_plan import GPU, RUN
from tfdock.verify.verification import Verification, verify_wheel
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected

from ..desk import problem_of
from ..small_wheels import NAME, wheel_of
from .test_checks import library

KNOWLEDGE = loader.knowledge()
IMAGE = "python:3.11-slim-bookworm"


@dataclass(kw_only=True)
class Bench:
    """A wheel, an engine in memory that has its image, and an environment for its trial."""

    engine: FakeEngine
    wheel: Path
    heard: list[events.Event]
    environment: TrialEnvironment

    @property
    def inspection(self) -> Inspection:
        return inspected(self.wheel)

    def verified(self, inspection: Inspection | None = None, request: TrialRequest | None = None) -> Verification:
        return verify_wheel(
            self.environment, KNOWLEDGE, self.wheel, inspection or self.inspection, request or TrialRequest()
        )

    def found(self, inspection: Inspection | None = None, built_in: str = "", **changes: object) -> Verification:
        """The verification of a wheel that requires nothing, by the shipped knowledge but for some tables."""
        tables = {table: [(f"{table}.yaml", str(text))] for table, text in changes.items()}
        inspection = inspection or self.inspection
        inspection = replace(inspection, metadata=replace(inspection.metadata, requires_dist=()))
        request = TrialRequest(built_in=built_in)
        return verify_wheel(
            self.environment, KnowledgeBase({**KNOWLEDGE._texts, **tables}), self.wheel, inspection, request
        )

    @property
    def created(self) -> list[ContainerSpec]:
        """The containers that were created."""
        return [spec for (spec,) in self.engine.called("create")]  # type: ignore[misc]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    engine, heard = FakeEngine(), list[events.Event]()
    engine.registry[IMAGE] = ImageInfo(id="sha256:" + "a" * 64)
    wheel = tmp_path / NAME
    wheel.write_bytes(wheel_of({"tensorflow/__init__.py": b""}))
    settings = Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    log = tmp_path / "cache/verify/log"
    with trial_environment(engine, settings, lambda event: heard.append(event), Stop(), log, NAME) as environment:
        yield Bench(engine=engine, wheel=wheel, heard=heard, environment=environment)
    assert engine.containers("io.tfdock.run") == []
    assert [*tmp_path.glob("cache/output/*"), *tmp_path.glob("state/runs/*")] == []


def is_impossible(result: Verification, code: str, kind: type[TfdockError] = TfdockError) -> str:
    """Nothing was run, for that reason, which every check gives; returns it."""
    assert isinstance(result.impossible, kind)
    (problem,) = result.impossible.problems
    assert problem.code == code
    reasons = {check.reason for check in result.checks if check.name in ("install", "op", "gpu-driver")}
    assert reasons == {problem.message}
    assert result.ok, "what was not run has not failed"
    return problem.message


def test_a_wheel_for_a_python_without_an_image_is_not_tried(bench: Bench) -> None:
    only = "rows:\n- {python: '2.7', image: 'python:2.7', source: x}\n"
    message = is_impossible(bench.found(runtimes=only), "runtime-unknown")
    assert "cp311" in message
    assert bench.created == []


def test_a_wheel_that_links_what_the_image_lacks_is_not_tried(bench: Bench) -> None:
    linking = library("tensorflow/a.so", needed=("libamdhip64.so.6", "libc.so.6"))
    inspection = replace(bench.inspection, libraries=(linking,), build_info={"is_rocm_build": True})
    message = is_impossible(bench.found(inspection), "runtime-lacks-libraries")
    assert message == f"the wheel links libamdhip64.so.6, which {IMAGE} does not have"
    # A bundle has what the wheel requires for the image of the profile alone.
    bench.engine.images["built-in"] = bench.engine.registry[IMAGE]
    bench.environment = replace(bench.environment, given={IMAGE: IMAGE})
    assert is_impossible(bench.found(inspection, "built-in"), "runtime-lacks-libraries") == message


def test_an_image_in_which_no_check_has_a_result_is_unfit(bench: Bench) -> None:
    bench.engine.on_run = lambda _: FakeRun(output=[b"sh: 1: exec: : not found\n"], exit_code=127)
    message = is_impossible(bench.found(), "runtime-unfit")
    assert message.endswith("the container ended with exit status 127: sh: 1: exec: : not found")


def reporting(*results: Mapping[str, object], status: int = 137) -> Callable[[ContainerSpec], FakeRun]:
    """A container that prints these results, and is killed then."""

    def run(spec: ContainerSpec) -> FakeRun:
        (folder,) = [mount.source for mount in spec.mounts if mount.target == "/tfdock/verify"]
        mark = json.loads((Path(folder) / "request.json").read_bytes())["mark"]
        return FakeRun(output=[f"{mark} {json.dumps(one)}\n".encode() for one in results], exit_code=status)

    return run


def test_an_image_whose_python_has_no_pip_is_unfit_and_nothing_has_passed(bench: Bench) -> None:
    reasons = [{"check": name, "outcome": "skipped", "reason": "no pip"} for name in RUN if name not in GPU]
    bench.engine.on_run = reporting(*reasons)
    assert is_impossible(bench.found(), "runtime-unfit").endswith(": no pip")


@pytest.mark.parametrize("status", [137, 143])
def test_a_container_that_is_killed_from_outside_says_nothing_of_the_wheel(bench: Bench, status: int) -> None:
    bench.engine.on_run = reporting({"check": "install", "outcome": "passed"}, status=status)
    assert problem_of(bench.found, EngineLost).code == "container-killed"


def test_a_disk_that_is_full_before_the_first_result_is_told_as_that(bench: Bench) -> None:
    bench.engine.on_run = lambda _: FakeRun(
        output=[b"OSError: [Errno 28] No space left on device: '/x'\n"], exit_code=1
    )
    with pytest.raises(DiskFull):
        bench.found()


def test_a_disk_that_is_full_when_the_environment_is_made_is_told_as_that_and_the_image_is_not_blamed(
    bench: Bench,
) -> None:
    why = "the image's Python makes no environment: Error: [Errno 28] No space left on device: '/tfdock/work/x'"
    bench.engine.on_run = reporting({"check": "install", "outcome": "skipped", "reason": why}, status=0)
    with pytest.raises(DiskFull):
        bench.found()


@pytest.mark.parametrize(
    ("line", "status"), [(b"there is no python3.11\n", 127), (b"/usr/bin/python: No module named pip\n", 1)]
)
def test_an_image_in_which_pip_cannot_run_is_unfit_and_the_network_is_not_blamed(
    bench: Bench, line: bytes, status: int
) -> None:
    bench.engine.on_run = lambda _: FakeRun(output=[line], exit_code=status)
    result = bench.verified()
    assert is_impossible(result, "runtime-unfit").endswith(line.decode().strip())


def test_what_one_wheel_could_not_fetch_whole_is_not_left_for_the_next(bench: Bench) -> None:
    codes = iter((1, 0, 0))

    def some(spec: ContainerSpec) -> FakeRun:
        code = next(codes)
        for mount in spec.mounts:
            if mount.target == "/tfdock/made":
                (Path(mount.source) / "wheels").mkdir(exist_ok=True)
                (Path(mount.source) / f"wheels/{code}.whl").touch()
        return FakeRun(exit_code=code)

    bench.engine.on_run = some
    for _ in range(2):
        bench.verified()
    (folder,) = bench.environment.settings.cache_dir.glob("dependencies/*")
    assert [path.name for path in folder.iterdir()] == ["0.whl"]


def test_what_was_fetched_for_another_python_of_the_same_image_is_not_used(bench: Bench) -> None:
    bench.engine.registry["python:3.12-slim-bookworm"] = bench.engine.registry[IMAGE]
    for tag in ("cp311", "cp312"):
        inspection = bench.inspection
        other = replace(inspection.wheel, python_tag=tag, abi_tag=tag)
        bench.verified(replace(inspection, wheel=other))
    assert len([*bench.environment.settings.cache_dir.glob("dependencies/*")]) == 2


def test_certificates_of_pip_may_be_named_from_the_current_folder(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_CERT", "ca.pem")
    bench.verified()
    spec = bench.created[0]
    assert str(tmp_path / "ca.pem") in [mount.source for mount in spec.mounts]


# --- with a GPU runtime ---------------------------------------------------------------------------------------------


@pytest.fixture
def for_gpus(bench: Bench) -> Inspection:
    """A wheel for GPUs, on an engine that says it gives containers some."""
    bench.engine.engine_info = replace(bench.engine.engine_info, runtimes=("nvidia", "runc"))
    bench.environment = replace(bench.environment, info=bench.engine.info())
    return replace(bench.inspection, build_info={"is_cuda_build": True})


def test_an_engine_that_has_no_gpu_to_give_tries_the_wheel_without(bench: Bench, for_gpus: Inspection) -> None:
    bench.engine.fail_next("start", EngineError(Problem(code="engine-refused", message="no device")))
    bench.engine.on_run = lambda _: FakeRun(exit_code=127)
    is_impossible(bench.found(for_gpus), "runtime-unfit")
    assert [spec.gpus for spec in bench.created] == [True, False]


def test_an_engine_that_hangs_is_not_taken_for_one_without_gpus(bench: Bench, for_gpus: Inspection) -> None:
    bench.engine.fail_next("start", EngineHung(Problem(code="engine-hung", message="it answers nothing")))
    with pytest.raises(EngineHung):
        bench.found(for_gpus)


def test_gpus_by_device_files_want_all_of_them(tmp_path: Path) -> None:
    files = str(tmp_path / "kfd"), str(tmp_path / "dri")
    rocm = KNOWLEDGE.accelerators["rocm"].model_copy(update={"device_files": files})
    Path(files[0]).touch()
    assert f"{files[0]} and {files[1]}" in gpu_access(rocm, FakeEngine().info()).missing
    Path(files[1]).mkdir()
    access = gpu_access(rocm, FakeEngine().info())
    assert (access.missing, access.devices) == ("", files)


def test_requirements_that_cannot_be_had_are_told_with_pips_own_words(bench: Bench) -> None:
    bench.engine.on_run = lambda _: FakeRun(output=[b"noise\nERROR: no numpy\n"], exit_code=1)
    result = bench.verified()
    assert is_impossible(result, "dependencies-unavailable").endswith("ERROR: no numpy")


def test_a_folder_of_wheels_is_used_as_it_is(bench: Bench, tmp_path: Path) -> None:
    bench.engine.on_run = lambda _: FakeRun(exit_code=127)
    bench.verified(request=TrialRequest(dependencies=tmp_path))
    (spec,) = bench.created
    assert tmp_path in [Path(mount.source) for mount in spec.mounts if mount.read_only]


def test_a_disk_that_is_full_under_our_own_files_is_told_like_any_other(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    place = FakeEngine(), settings, lambda _: None, Stop(), tmp_path / "log", NAME
    with pytest.raises(DiskFull), trial_environment(*place):
        raise OSError(errno.ENOSPC, "no room")


def test_a_trial_is_a_phase_of_its_own_that_is_announced_and_ends(bench: Bench) -> None:
    first = bench.heard[0]
    assert isinstance(first, events.PhaseStarted)
    assert (first.phase, first.build_id) == ("verify", NAME)
    assert bench.environment.folder.parent.name == "output"


# --- requirements ---------------------------------------------------------------------------------------------------


def test_requirements_are_those_without_extras_in_words_that_pip_reads() -> None:
    lines = (
        "numpy (<2.0,>=1.16.0)",
        "wrapt>=1.11.0",
        "scipy==1.4.1 ; python_version >= '3'",
        'nvidia-cudnn-cu12==9.3.0.75 ; extra == "and-cuda"',
        "tensorflow-io-gcs-filesystem>=0.23.1; sys_platform != 'win32' and extra == 'gcs'",
    )
    plain = ["numpy<2.0,>=1.16.0", "wrapt>=1.11.0", 'scipy==1.4.1; python_version >= "3"']
    assert pip_requirements(lines) == plain
    assert pip_requirements(lines, ["and-cuda"]) == [*plain, "nvidia-cudnn-cu12==9.3.0.75"]


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://example.org",
        "-r /etc/passwd",
        "x @ https://example.org/x.whl",
        "x @ file:///etc/passwd",
        "numpy\n--pre",
        "../x",
        "",
        "x===${PIP_INDEX_URL}",
        'x; platform_release == "${PIP_INDEX_URL}"',
    ],
)
def test_a_wheel_cannot_give_pip_options_or_addresses(line: str) -> None:
    with pytest.raises(InvalidRequirement):
        pip_requirements(["numpy", line])


# --- the Python -----------------------------------------------------------------------------------------------------


OWN = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("python_tag", "abi_tag", "ok"),
    [
        (OWN, OWN, True),
        ("cp38", "cp38", False),
        ("cp38", "abi3", True),
        ("py3", "none", True),
    ],
)
def test_a_wheel_is_tried_with_its_own_python_and_no_other(
    tmp_path: Path, python_tag: str, abi_tag: str, ok: bool
) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    command = python_command((python_tag, abi_tag), "-c", "import sys; print('ran', *sys.argv[1:])", "a b")
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.stdout == ("ran a b\n" if ok else "there is no python3.8\n")
    assert done.returncode == (0 if ok else 127)


# --- lines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("just a line", "just a line"),
        ('M {"check": "op", "outcome": "passed"}', "op: passed"),
        ('M {"check": "op", "outco', ""),
        ("M 5", ""),
    ],
)
def test_a_result_is_shown_in_short(line: str, shown: str) -> None:
    assert MarkedLines("M").shown_line(line) == shown


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    lines = MarkedLines("M")
    for _ in range(50):
        lines.feed(b"x" * (1 << 17))
    assert len(lines._rest) <= 1 << 20
    lines.feed(b'\nM {"a": 1}\nM [\nM {"b": 2}\n')
    documents: list[Mapping[str, int]] = lines.documents  # type: ignore[assignment]
    assert documents == [{"a": 1}, {"b": 2}]
