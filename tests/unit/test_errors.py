"""Problems as text, and the exit code of several results."""

from __future__ import annotations

import itertools

import pytest

from tfdock import errors
from tfdock.errors import ExitCode, Interrupted, Problem, TfdockError, combined_exit_code, quoted_with

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TfdockError)]


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(code="a-b", message="it is wrong"), "it is wrong [a-b]"),
        (Problem(code="a-b", message="it is wrong", fixes="mend it"), "it is wrong [a-b]\n  fix: mend it"),
        (Problem(code="a-b", message="wrong", file="p.yaml", line=3, column=9), "p.yaml:3:9: wrong [a-b]"),
        (Problem(code="a-b", message="wrong", file="p.yaml"), "p.yaml: wrong [a-b]"),
        (Problem(code="a-b", message="wrong", file="p.yaml", line=3), "p.yaml:3: wrong [a-b]"),
    ],
    ids=["bare", "with a fix", "with a place", "with a file", "with a line"],
)
def test_a_problem_says_where_what_and_how_to_fix_it(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_an_error_carries_and_prints_all_its_problems() -> None:
    problems = [Problem(code="a", message="one"), Problem(code="b", message="two")]
    error = TfdockError(*problems)
    assert list(error.problems) == problems
    assert str(error) == "one [a]\ntwo [b]"


# The table of docs/failures.md; a script somewhere depends on each of these numbers.
def test_exit_codes_are_the_documented_ones() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "BUILD_FAILED": 1,
        "USAGE": 2,
        "INCOMPATIBLE": 3,
        "VERIFICATION": 4,
        "ENGINE": 6,
        "NETWORK": 7,
        "RESOURCES": 8,
        "LOCKED": 9,
        "INTERNAL": 70,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ProfileError, 2),
        (errors.Incompatible, 3),
        (errors.BuildFailed, 1),
        (errors.WheelRefused, 4),
        (errors.EngineUnavailable, 6),
        (errors.EngineLost, 6),
        (errors.EngineHung, 6),
        (errors.NetworkError, 7),
        (errors.OutOfMemory, 8),
        (errors.DiskFull, 8),
        (errors.TimeLimit, 8),
        (errors.Locked, 9),
    ],
)
def test_every_kind_of_error_has_its_exit_code(kind: type[TfdockError], code: int) -> None:
    assert kind().exit_code == code


def test_no_error_of_ours_counts_as_internal_by_oversight() -> None:
    assert [kind for kind in CLASSES if kind().exit_code is ExitCode.INTERNAL] == [TfdockError]


def test_an_interruption_tells_the_user_from_the_system() -> None:
    assert Interrupted().exit_code == 130
    assert Interrupted(terminated=True).exit_code == 143


ORDER = (130, 143, 70, 6, 9, 8, 7, 1, 4, 2, 3)


def test_nothing_at_all_is_success_and_every_failure_has_its_place() -> None:
    assert combined_exit_code([]) == 0
    assert combined_exit_code([0, 0]) == 0
    assert {*ORDER} == {code for code in ExitCode if code}


@pytest.mark.parametrize(("stronger", "weaker"), list(itertools.combinations(ORDER, 2)))
def test_of_two_results_the_documented_one_decides(stronger: int, weaker: int) -> None:
    assert combined_exit_code([0, weaker, stronger, weaker]) == stronger
    assert combined_exit_code([stronger, weaker]) == stronger


def test_only_commands_get_other_quotes() -> None:
    text = "Run `pip install 'a<2'`, `python -c 'f(\"x\")'` or NVIDIA's `b 'c'`."
    assert quoted_with(text, '"') == 'Run `pip install "a<2"`, `python -c \'f("x")\'` or NVIDIA\'s `b "c"`.'
