"""Builds side by side: who gets how much of the machine, and how many run at a time."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.builder.parallel import Ledger, build_side_by_side
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.resources import usable
from tfdock.types import BuildId, Machine

from ..desk import GIB, Desk

CPU = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\naccelerator: cpu\n'
MACHINE = Machine(cpus=8, memory=33 * GIB)


@pytest.fixture(scope="module")
def plans(desk: Desk) -> list[BuildPlan]:
    one = desk.plan(CPU, machine=MACHINE)
    return [replace(one, build_id=BuildId(name)) for name in "abcdef"]


def test_a_build_grows_by_what_others_left_once_nobody_waits_for_it(plans: list[BuildPlan]) -> None:
    a, b, c = plans[:3]
    ledger = Ledger(2, {plan.build_id for plan in (a, b, c)})

    def part(plan: BuildPlan) -> tuple[int, int]:
        limits = ledger.allot(plan, MACHINE)
        return limits.jobs, limits.memory // GIB

    assert (part(a), part(b)) == ((4, 16), (4, 16))
    ledger.end(a)
    assert part(b) == (4, 16), "c waits for the other half"
    assert part(c) == (4, 16)
    ledger.end(b)
    assert part(c) == (8, 32)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_shares_never_exceed_the_machine_whoever_asks_again_or_ends(
    plans: list[BuildPlan], count: int, asked: list[tuple[int, bool]]
) -> None:
    ledger = Ledger(count, {plan.build_id for plan in plans})
    running: dict[BuildId, tuple[int, int]] = {}
    over: set[BuildId] = set()
    for index, ends in asked:
        plan = plans[index]
        if plan.build_id in over or (plan.build_id not in running and len(running) == count):
            continue
        limits = ledger.allot(plan, MACHINE)
        before = running.get(plan.build_id, (0, 0))
        running[plan.build_id] = limits.jobs, limits.memory
        assert limits.memory >= before[1], "it may grow, and keeps what it has"
        if ends:
            ledger.end(plan)
            del running[plan.build_id]
            over.add(plan.build_id)
        assert sum(memory for _, memory in running.values()) <= usable(MACHINE.memory)
        assert sum(jobs for jobs, _ in running.values()) <= MACHINE.cpus


def test_as_many_run_as_may_and_no_more(plans: list[BuildPlan]) -> None:
    ledger = Ledger(2, {plan.build_id for plan in plans})
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(2, timeout=60)

    def build(place: int) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1
        return plans[place].build_id

    assert build_side_by_side(plans, ledger, build) == list("abcdef")
    assert most == 2
    assert ledger.unserved == set()


def test_an_interrupt_is_not_waited_out(plans: list[BuildPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    """The third Ctrl-C, which raises, ends the waiting while a build hangs."""
    hangs = threading.Event()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_side_by_side(plans[:1], Ledger(1, {plans[0].build_id}), lambda _: hangs.wait(60))
    hangs.set()
