"""Watching something long: a producer that is faster than its consumer, and a consumer that leaves before it."""

from __future__ import annotations

import threading
import time

import pytest

from tfdock.errors import ExitCode, Interrupted
from tfdock.host import supervise
from tfdock.host.supervise import Output, Stop

MOMENT = 30.0  #: Seconds after which a thread that has not ended never will.


class Enough(Exception):
    """What a consumer leaves with."""


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"x" * 1000, b"\n", b""], ids=["lines", "bytes", "nothing"])
def test_what_waits_for_a_slow_consumer_is_bounded(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "AHEAD", 100_000)
    made, most, taken = 0, 0, 0

    def produce(output: Output) -> int:
        nonlocal made, most
        for _ in range(20_000):
            output(piece)
            made += 1
            most = max(most, made - taken)
        return made

    def tick(_: float) -> None:
        nonlocal taken
        taken += 1
        if taken < 5:
            time.sleep(0.1)  # all of it would be here by now

    total = 0

    def consume(data: bytes) -> None:
        nonlocal total
        total += len(data)

    assert supervise.watched(produce, consume, tick, None) == 20_000
    assert total == 20_000 * len(piece)
    assert most * (len(piece) + supervise._EACH) <= 100_000 + 3 * (len(piece) + supervise._EACH)


def test_the_thread_ends_where_its_consumer_leaves_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "AHEAD", 100_000)
    threads: list[threading.Thread] = []
    closed = threading.Event()

    def produce(output: Output) -> None:
        threads.append(threading.current_thread())
        try:
            while True:  # it waits for room, as nothing is taken
                output(b"x" * 1000)
        finally:
            closed.set()

    def leave(_: bytes) -> None:
        time.sleep(0.2)
        raise Enough

    with pytest.raises(Enough):
        supervise.watched(produce, leave, lambda _: None, None)
    threads[0].join(MOMENT)
    assert closed.is_set()
    assert not threads[0].is_alive()


@pytest.mark.slow
def test_one_that_is_silent_ends_at_its_next_output() -> None:
    threads: list[threading.Thread] = []
    go_on = threading.Event()

    def produce(output: Output) -> None:
        threads.append(threading.current_thread())
        go_on.wait(MOMENT)
        while True:
            output(b"still here")

    def leave(_: float) -> None:
        raise Enough

    with pytest.raises(Enough):
        supervise.watched(produce, lambda _: None, leave, None)
    go_on.set()
    threads[0].join(MOMENT)
    assert not threads[0].is_alive()


def test_what_is_too_much_at_once_is_handed_on_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "AHEAD", 10)
    seen: list[int] = []

    def produce(output: Output) -> None:
        for _ in range(3):
            output(b"x" * 100)
        raise Enough  # told after what was said before it

    with pytest.raises(Enough):
        supervise.watched(produce, lambda data: seen.append(len(data)), lambda _: None, None)
    assert seen == [100] * 3


@pytest.mark.parametrize("terminated", [False, True])
def test_a_stop_that_was_asked_for_is_raised_and_says_by_which_signal(terminated: bool) -> None:
    Stop().check()
    with pytest.raises(Interrupted) as caught:
        Stop(requests=1, terminated=terminated, kept="all is kept").check()
    assert caught.value.exit_code == (ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED)
    assert caught.value.problems[0].message == "stopped on request; all is kept"
