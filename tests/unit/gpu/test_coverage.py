"""How a wheel runs on every known target, and the short table of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfdock.gpu.compatibility import WORDS, Coverage, coverage, coverage_rows, serve
from tfdock.gpu.devices import find_gpu
from tfdock.gpu.gpu_facts import GpuFacts, facts_of_release
from tfdock.knowledge.tables import KnowledgeBase

from ..desk import MADE_UP_TABLES, Desk, knowledge_of


def official(knowledge: KnowledgeBase, release: str, accelerator: str) -> GpuFacts:
    return facts_of_release(knowledge, knowledge.releases[release], knowledge.accelerators[accelerator])


@pytest.fixture(scope="module")
def found(desk: Desk) -> dict[str, Coverage]:
    """The official wheel of 2.18: SASS for 6.0, 7.0, 8.0, 8.9 and 9.0, PTX for 9.0."""
    rows = coverage(desk.knowledge, official(desk.knowledge, "2.18", "cuda"))
    return {one.target: one for one in rows}


def test_every_target_of_the_accelerator_is_asked_for_once_in_order(desk: Desk, found: dict[str, Coverage]) -> None:
    rows = [row for row in desk.knowledge.architectures if row.accelerator == "cuda"]
    assert list(found) == [target for row in rows for target in row.targets]
    assert {one.target for one in found.values() if one.embedded} == {one for row in rows for one in row.embedded}
    assert {one.architecture for one in found.values()} == {row.architecture for row in rows}


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("3.5", "no"),
        ("6.0", "native"),
        ("6.1", "native-same-major"),
        ("8.0", "native"),
        ("8.6", "native-same-major"),
        ("8.7", "no"),
        ("8.9", "native"),
        ("9.0", "native"),
        ("12.0", "ptx-jit"),
    ],
)
def test_the_answer_is_that_of_the_gpu_question(
    desk: Desk, found: dict[str, Coverage], target: str, runs: str
) -> None:
    one = found[target]
    assert one.runs == runs
    gpu = find_gpu(desk.knowledge, one.name)
    assert gpu is not None
    answer = serve(desk.knowledge, gpu, official(desk.knowledge, "2.18", "cuda"))
    assert (one.runs, one.reason, one.limits) == (answer.runs, answer.reason, answer.limits)


def test_a_target_is_named_by_a_gpu_that_people_know(found: dict[str, Coverage]) -> None:
    assert found["8.6"].name == "GeForce RTX 3080"
    assert found["9.0"].name == "H100"
    # Nobody sells one.
    assert found["8.8"].name == "8.8"
    assert found["10.7"].name == "10.7"


def test_the_examples_are_gpus_of_their_targets(desk: Desk) -> None:
    named = [
        (row.accelerator, target, name)
        for row in desk.knowledge.architectures
        for target, name in row.examples.items()
    ]
    assert len(named) > 30
    for accelerator, target, name in named:
        gpu = desk.knowledge.gpus[name]
        assert (gpu.accelerator, gpu.target) == (accelerator, target), name


def with_examples(examples: str) -> KnowledgeBase:
    rows = f"""
rows:
  - {{architecture: Zeta, accelerator: cuda, targets: ["8.6", "12.0"], examples: {examples}, source: x}}
"""
    return knowledge_of({**MADE_UP_TABLES, "architectures": rows})


@pytest.mark.parametrize(
    ("examples", "name"),
    [
        pytest.param("{}", "Zeta One", id="the first that has it"),
        pytest.param("{'8.6': one}", "Zeta One", id="the one that is named"),
        pytest.param("{'8.6': nobody}", "Zeta One", id="not one that is not known"),
        pytest.param("{'8.6': twelve}", "Zeta One", id="not one of another target"),
    ],
)
def test_an_example_that_is_none_is_passed_over(desk: Desk, examples: str, name: str) -> None:
    knowledge = with_examples(examples)
    rows = coverage(knowledge, official(desk.knowledge, "2.18", "cuda"))
    assert {one.target: one.name.removeprefix("NVIDIA ") for one in rows}["8.6"] == name


def test_accelerators_that_the_wheel_is_not_for_are_left_out(desk: Desk) -> None:
    knowledge = desk.knowledge
    cuda = official(knowledge, "2.18", "cuda")
    assert {one.accelerator for one in coverage(knowledge, cuda)} == {"cuda"}
    assert coverage(knowledge, replace(cuda, own=())) == ()


def one(target: str, runs: str, *limits: str, architecture: str = "Zeta") -> Coverage:
    return Coverage(
        name=target,
        accelerator="cuda",
        target=target,
        architecture=architecture,
        embedded=False,
        runs=runs,  # type: ignore[arg-type]
        reason="",
        limits=limits,
    )


def test_the_table_has_a_row_for_those_of_a_generation_that_run_it_alike() -> None:
    rows = coverage_rows(
        [
            one("6.0", "native"),
            one("6.1", "native-same-major", "a", "b"),
            one("6.2", "native"),
            one("7.0", "ptx-jit", "a", architecture="Eta"),
            one("7.2", "no", architecture="Eta"),
        ]
    )
    assert rows == [
        ("Zeta", "6.0, 6.2", "natively"),
        ("Zeta", "6.1", "natively, by code of the same major version, 2 limits"),
        ("Eta", "7.0", "by JIT from PTX, 1 limit"),
        ("Eta", "7.2", "not"),
    ]
    assert coverage_rows([]) == []


def test_no_target_is_lost_in_the_table(found: dict[str, Coverage]) -> None:
    rows = coverage_rows(list(found.values()))
    assert sorted(target for _, targets, _ in rows for target in targets.split(", ")) == sorted(found)
    assert all(any(words.startswith(known) for known in WORDS.values()) for _, _, words in rows)
