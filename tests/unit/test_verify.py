"""What keeps a wheel from being tried, and what its metadata may ask for; on an engine in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement

from tfdock.do import assets, events
from tfdock.do.engine import ImageInfo
from tfdock.do.fake_engine import FakeEngine, FakeRun
from tfdock.do.settings import Settings
from tfdock.do.verify import Bench, MarkedLines, Verification, Wanted, bench_for, requirements, verified
from tfdock.do.watch import Stop
from tfdock.do.wheels import inspected
from tfdock.errors import TfdockError
from tfdock.inspect.facts import Library
from tfdock.inspect.inspection import Inspection
from tfdock.read.knowledge import KnowledgeBase

from .small_wheels import NAME, wheel_of

KNOWLEDGE = assets.knowledge()
IMAGE = "python:3.11-slim-bookworm"


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.registry[IMAGE] = ImageInfo(id="sha256:" + "a" * 64)
    return engine


@pytest.fixture
def heard() -> list[events.Event]:
    return []


@pytest.fixture
def bench(engine: FakeEngine, heard: list[events.Event], tmp_path: Path) -> Iterator[Bench]:
    settings = Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    log = tmp_path / "cache/verify/log"
    with bench_for(engine, settings, lambda event: heard.append(event), Stop(), log, NAME) as bench:
        yield bench
    assert engine.containers("io.tfdock.run") == []
    assert [*tmp_path.glob("cache/output/*"), *tmp_path.glob("state/runs/*")] == []


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(wheel_of({"tensorflow/__init__.py": b""}))
    return path


def found(bench: Bench, wheel: Path, inspection: Inspection | None = None, **changes: object) -> Verification:
    """The verification of a wheel that requires nothing, by the shipped knowledge but for some tables."""
    texts: dict[str, list[tuple[str, str]]] = {
        file.stem: [(file.name, file.read_text())]
        for file in (Path(assets.__file__).parents[1] / "knowledge").glob("*.yaml")
    }
    texts |= {table: [(f"{table}.yaml", str(text))] for table, text in changes.items()}
    inspection = inspection or inspected(wheel)
    inspection = replace(inspection, metadata=replace(inspection.metadata, requires_dist=()))
    return verified(bench, KnowledgeBase(texts), wheel, inspection, Wanted())


def is_impossible(result: Verification, code: str, kind: type[TfdockError] = TfdockError) -> str:
    """Nothing was run, for that reason, which every check gives; returns it."""
    assert isinstance(result.impossible, kind)
    (problem,) = result.impossible.problems
    assert problem.code == code
    reasons = {check.reason for check in result.checks if check.name in ("install", "op", "gpu-driver")}
    assert reasons == {problem.message}
    assert result.ok, "what was not run has not failed"
    return problem.message


def test_a_wheel_for_a_python_without_an_image_is_not_tried(bench: Bench, engine: FakeEngine, wheel: Path) -> None:
    only = "rows:\n- {python: '2.7', image: 'python:2.7', source: x}\n"
    message = is_impossible(found(bench, wheel, runtimes=only), "runtime-unknown")
    assert "cp311" in message
    assert engine.called("create") == []


def test_a_wheel_that_links_what_the_image_lacks_is_not_tried(bench: Bench, wheel: Path) -> None:
    library = Library(
        path="tensorflow/a.so", size=1, machine="x86_64", versions={}, needed=("libamdhip64.so.6", "libc.so.6")
    )
    inspection = replace(inspected(wheel), libraries=(library,), build_info={"is_rocm_build": True})
    message = is_impossible(found(bench, wheel, inspection), "runtime-lacks-libraries")
    assert message == f"the wheel links libamdhip64.so.6, which {IMAGE} does not have"


def test_an_image_in_which_no_check_has_a_result_is_unfit(bench: Bench, engine: FakeEngine, wheel: Path) -> None:
    engine.on_run = lambda _: FakeRun(output=[b"sh: 1: exec: : not found\n"], exit_code=127)
    message = is_impossible(found(bench, wheel), "runtime-unfit")
    assert message.endswith("the container ended with exit status 127: sh: 1: exec: : not found")


def test_requirements_that_cannot_be_had_are_told_with_pips_own_words(
    bench: Bench, engine: FakeEngine, wheel: Path
) -> None:
    engine.on_run = lambda _: FakeRun(output=[b"noise\nERROR: no numpy\n"], exit_code=1)
    result = verified(bench, KNOWLEDGE, wheel, inspected(wheel), Wanted())
    assert is_impossible(result, "dependencies-unavailable").endswith("ERROR: no numpy")


def test_a_folder_of_wheels_is_used_as_it_is(bench: Bench, engine: FakeEngine, wheel: Path, tmp_path: Path) -> None:
    engine.on_run = lambda _: FakeRun(exit_code=127)
    verified(bench, KNOWLEDGE, wheel, inspected(wheel), Wanted(dependencies=tmp_path))
    (spec,) = [spec for (spec,) in engine.called("create")]
    assert tmp_path in [Path(mount.source) for mount in spec.mounts if mount.read_only]  # type: ignore[attr-defined]


def test_a_trial_is_a_phase_of_its_own_that_is_announced_and_ends(bench: Bench, heard: list[events.Event]) -> None:
    assert isinstance(heard[0], events.PhaseStarted)
    assert (heard[0].phase, heard[0].build_id) == ("verify", NAME)
    assert bench.folder.parent.name == "output"


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
    assert requirements(lines) == plain
    assert requirements(lines, ["and-cuda"]) == [*plain, "nvidia-cudnn-cu12==9.3.0.75"]


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
    ],
)
def test_a_wheel_cannot_give_pip_options_or_addresses(line: str) -> None:
    with pytest.raises(InvalidRequirement):
        requirements(["numpy", line])


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
    assert MarkedLines("M").told(line) == shown


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    lines = MarkedLines("M")
    for _ in range(50):
        lines.feed(b"x" * (1 << 17))
    assert len(lines._rest) <= 1 << 20
    lines.feed(b'\nM {"a": 1}\nM [\nM {"b": 2}\n')
    documents: list[Mapping[str, int]] = lines.documents  # type: ignore[assignment]
    assert documents == [{"a": 1}, {"b": 2}]
