"""Two threads share work: what order, whose error, and what becomes of the rest."""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Iterator

import pytest

from tfdock.host.thread_jobs import ThreadJob, run_both

LONG = 10  # seconds until a wait is given up: nothing that passes takes as long


class Held:
    """What a job has in memory."""


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

    run_both([ThreadJob(1, alone("small")), ThreadJob(3, meeting("large")), ThreadJob(2, meeting("middle"))])
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
        run_both([ThreadJob(1, first()), ThreadJob(1, second())])


def test_jobs_behind_one_that_failed_are_not_waited_for_and_those_before_it_are() -> None:
    begun: list[str] = []
    running = threading.Event()

    def job(name: str, *, fails: bool = False, endless: bool = False) -> Iterator[None]:
        begun.append(name)
        if fails:
            assert running.wait(LONG)
            raise ValueError(name)
        running.set()
        yield
        while endless:
            yield

    with pytest.raises(ValueError, match="damaged"):
        run_both(
            [
                ThreadJob(1, job("before")),
                ThreadJob(4, job("damaged", fails=True)),
                ThreadJob(3, job("behind", endless=True)),
                ThreadJob(2, job("never")),
            ]
        )
    assert sorted(begun[:2]) == ["behind", "damaged"]
    assert begun[2:] == ["before"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pair")]


def test_of_several_errors_one_alone_is_kept_with_all_that_its_job_held() -> None:
    held: list[weakref.ref[Held]] = []

    def failing(name: str) -> Iterator[None]:
        mine = Held()
        held.append(weakref.ref(mine))
        raise ValueError(name)
        yield

    with pytest.raises(ValueError, match="first"):
        run_both([ThreadJob(size, failing("first" if size == 1 else "later")) for size in range(1, 9)])
    assert len([one for one in held if one()]) <= 1


def test_an_abandoned_job_keeps_nothing_of_what_it_held() -> None:
    running = threading.Event()
    held: list[weakref.ref[Held]] = []

    def failing() -> Iterator[None]:
        assert running.wait(LONG)
        raise ValueError("damaged")
        yield

    def endless() -> Iterator[None]:
        mine = Held()
        held.append(weakref.ref(mine))
        running.set()
        while True:
            yield

    with pytest.raises(ValueError, match="damaged"):
        run_both(iter([ThreadJob(1, failing()), ThreadJob(2, endless())]))
    assert [one() for one in held] == [None]


def test_an_interruption_abandons_all_of_it() -> None:
    steps = 0

    def endless() -> Iterator[None]:
        nonlocal steps
        while True:
            steps += 1
            if steps == 10:
                _thread.interrupt_main()
            yield

    with pytest.raises(KeyboardInterrupt):
        run_both([ThreadJob(2, endless()), ThreadJob(1, endless())])
    for thread in threading.enumerate():
        if thread.name.startswith("pair"):  # it may have been started just then
            thread.join(LONG)
            assert not thread.is_alive()


def test_nothing_to_do_is_done() -> None:
    run_both([])
