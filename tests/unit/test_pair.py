"""Two threads share work: what order, whose error, and what becomes of the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tfdock.inspect.pair import Job, run_both

LONG = 10  # seconds until a wait is given up: nothing that passes takes as long


def test_the_largest_is_begun_first_and_two_run_at_once() -> None:
    begun: list[str] = []
    both = threading.Barrier(2, timeout=LONG)

    def meeting(name: str) -> Iterator[None]:
        begun.append(name)
        both.wait()
        yield

    def alone(name: str) -> Iterator[None]:
        begun.append(name)
        yield

    run_both([Job(1, alone("small")), Job(3, meeting("large")), Job(2, meeting("middle"))])
    assert set(begun[:2]) == {"large", "middle"}
    assert begun[2:] == ["small"]


def test_the_first_error_in_the_order_given_is_raised_whichever_came_first() -> None:
    second_failed = threading.Event()

    def first() -> Iterator[None]:
        assert second_failed.wait(LONG)
        yield
        raise ValueError("first")

    def second() -> Iterator[None]:
        yield
        second_failed.set()
        raise ValueError("second")

    with pytest.raises(ValueError, match="first"):
        run_both([Job(1, first()), Job(1, second())])


def test_after_an_error_the_others_stop_at_their_next_step_or_never_begin() -> None:
    running, steps = threading.Event(), 0

    def failing() -> Iterator[None]:
        assert running.wait(LONG)
        yield
        raise ValueError("damaged")

    def endless() -> Iterator[None]:
        nonlocal steps
        while True:
            steps += 1
            running.set()
            yield

    def never() -> Iterator[None]:
        raise AssertionError
        yield

    with pytest.raises(ValueError, match="damaged"):
        run_both([Job(3, failing()), Job(2, endless()), Job(1, never())])
    assert steps
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pair")]


def test_nothing_to_do_is_done() -> None:
    run_both([])
