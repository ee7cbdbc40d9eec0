"""Steps tell work in proportion to the input from more."""

from __future__ import annotations

import sys

import pytest

from .steps import steps


def pairs(count: int) -> list[tuple[int, int]]:
    return [(one, two) for one in range(count) for two in range(count)]


def test_steps_are_the_same_each_time_and_grow_as_the_work_does() -> None:
    assert steps(lambda: pairs(100)) == steps(lambda: pairs(100))
    assert steps(lambda: pairs(200)) > 3.9 * steps(lambda: pairs(100))
    assert steps(lambda: list(map(str, range(100)))) < 20


def test_a_call_that_fails_leaves_no_trace_function() -> None:
    before, divisors = sys.gettrace(), iter([1, 0])
    with pytest.raises(ZeroDivisionError):
        steps(lambda: 1 / next(divisors))
    assert sys.gettrace() is before
