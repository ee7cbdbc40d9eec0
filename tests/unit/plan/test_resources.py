"""How much of a machine a build takes, alone and beside others, and what it tries after it had too little memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.knowledge.release_rows import Cost
from tfdock.plan.resources import (
    GIB,
    LEAST_HEAP,
    MIB,
    BuildResources,
    MachineShare,
    after_memory,
    at_once,
    heap_in,
    jobs_in,
    least_free,
    least_memory,
    next_share,
    share,
    usable,
)
from tfdock.profile.profile import Resources
from tfdock.types import Machine

from ..desk import Desk

COST = Cost(memory_per_job_mib=2048, disk_gib=1, memory_per_link_mib=4096)
CPU = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\naccelerator: cpu\n'
LIMITS = BuildResources(jobs=8, cpus=8, memory=16 * GIB, disk=GIB, pids=100, time_limit=None, heap=2 * GIB)


# --- Bazel's own memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "heap"),
    [
        (64 * GIB, 4 * GIB),
        (24 * GIB, 4 * GIB),
        (23 * GIB, 2 * GIB),
        (9 * GIB, 3 * GIB // 2),
        (4 * GIB, GIB),
        (1536 * MIB, 768 * MIB),
    ],
)
def test_bazels_heap_is_a_sixth_and_no_more_than_it_needs(memory: int, heap: int) -> None:
    assert heap_in(memory) == heap


def test_the_heap_is_told_before_the_profiles_own_options_which_win(desk: Desk) -> None:
    plan = desk.plan(CPU + "bazel: {startup: [--host_jvm_args=-Xmx5g]}\n")
    startup = [word for word in plan.compile.command if word.startswith("--host_jvm_args")]
    assert startup == ["--host_jvm_args=-Xmx4096m", "--host_jvm_args=-Xmx5g"]
    assert plan.local_startup_options == ("--host_jvm_args=-Xmx4096m",)


def test_what_a_machine_has_changes_nothing_that_is_built(desk: Desk) -> None:
    small, large = (desk.plan(CPU, machine=Machine(cpus=n, memory=n * 4 * GIB)) for n in (1, 64))
    assert small.local_startup_options != large.local_startup_options
    assert small.local_flags != large.local_flags
    assert (small.fingerprint, small.context, small.image_name) == (
        large.fingerprint,
        large.context,
        large.image_name,
    )
    assert (small.startup_options, small.bazel_flags) == (large.startup_options, large.bazel_flags)


# --- links --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "cpus", "jobs"),
    [
        pytest.param(64 * GIB, 8, 8, id="cores decide"),
        pytest.param(8 * GIB, 8, 3, id="a link and two compilers"),
        pytest.param(4 * GIB, 8, 1, id="a link alone"),
        pytest.param(1 * GIB, 8, 1, id="not even that"),
    ],
)
def test_beside_the_compilers_one_large_link_has_room(memory: int, cpus: int, jobs: int) -> None:
    assert jobs_in(memory, COST, cpus) == jobs


def test_where_links_take_less_than_compilers_those_decide() -> None:
    assert jobs_in(8 * GIB, Cost(memory_per_job_mib=2048, disk_gib=1), 8) == 4


# --- after something was killed for memory ------------------------------------------------------------------------


@pytest.mark.parametrize(("jobs", "again"), [(8, 4), (5, 2), (2, 1), (1, None)])
def test_the_next_try_has_half_the_jobs_as_long_as_that_is_fewer(jobs: int, again: int | None) -> None:
    less = after_memory(replace(LIMITS, jobs=jobs), of_bazel=False)
    assert (less.jobs if less else None) == again
    assert less is None or less == replace(LIMITS, jobs=less.jobs)


def test_where_bazels_heap_was_too_small_it_gets_more_of_the_same_memory() -> None:
    less = after_memory(LIMITS, of_bazel=True)
    assert less == replace(LIMITS, jobs=4, heap=4 * GIB)
    tight = replace(LIMITS, jobs=1, memory=4 * GIB)
    assert after_memory(tight, of_bazel=True) is None


# --- disks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "free"),
    [
        pytest.param(2 * MIB, 2 * MIB // 20, id="a tiny one: a twentieth"),
        pytest.param(30 * GIB, GIB, id="a small one: 1 GiB"),
        pytest.param(100 * GIB, 2 * GIB, id="a usual one: a fiftieth"),
        pytest.param(8192 * GIB, 4 * GIB, id="a large one: 4 GiB are enough"),
    ],
)
def test_what_must_stay_free_goes_with_the_disk(total: int, free: int) -> None:
    assert least_free(total) == free


# --- several builds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "memory", "asked", "count"),
    [
        pytest.param(2, 64, None, 2, id="two cores, two builds: one has work while the other has none"),
        pytest.param(1, 64, None, 1, id="one core"),
        pytest.param(16, 256, None, 4, id="four cores a build"),
        pytest.param(64, 256, None, 4, id="no more than there are"),
        pytest.param(16, 12, None, 3, id="memory for three"),
        pytest.param(2, 64, 4, 4, id="as many as asked for"),
        pytest.param(2, 64, 3, 3, id="as few as asked for"),
        pytest.param(2, 12, 4, 3, id="asked for more than fit"),
        pytest.param(2, 2, 4, 1, id="one always"),
    ],
)
def test_as_many_builds_at_once_as_are_worth_it_and_fit(
    desk: Desk, cpus: int, memory: int, asked: int | None, count: int
) -> None:
    costs = [desk.resolve(CPU).release.cost] * 4
    assert at_once(costs, Machine(cpus=cpus, memory=memory * GIB), asked) == count


@given(st.integers(1, 128), st.integers(1, 512), st.integers(1, 8), st.lists(st.booleans(), min_size=1, max_size=24))
def test_all_shares_together_never_exceed_the_machine(cpus: int, memory: int, count: int, events: list[bool]) -> None:
    machine = Machine(cpus=cpus, memory=memory * GIB)
    taken: list[MachineShare] = []
    for ends in events:
        if ends and taken:
            taken.pop(0)
        if len(taken) < count:
            taken.append(next_share(machine, taken, count - len(taken)))
        assert sum(part.memory for part in taken) <= usable(machine.memory)
        assert sum(part.jobs for part in taken) <= max(cpus, len(taken))
        assert all(part.jobs >= 1 for part in taken)


def test_the_last_build_gets_what_the_others_have_left() -> None:
    machine = Machine(cpus=8, memory=33 * GIB)
    half = next_share(machine, [], 2)
    assert half == MachineShare(4, 16 * GIB)
    assert next_share(machine, [half], 1) == MachineShare(4, 16 * GIB)
    assert next_share(machine, [], 1) == MachineShare(8, 32 * GIB)


def test_a_share_limits_what_a_profile_asks_for(desk: Desk) -> None:
    machine = Machine(cpus=8, memory=33 * GIB)
    cost, part = desk.resolve(CPU).release.cost, MachineShare(4, 16 * GIB)
    limits = share(Resources(jobs=16, memory="24GiB"), cost, machine, part)
    assert (limits.jobs, limits.memory, limits.cpus) == (4, 16 * GIB, 8)
    limits = share(Resources(jobs=1, memory="6GiB"), cost, machine, part)
    assert (limits.jobs, limits.memory) == (1, 6 * GIB)


def test_the_least_memory_is_what_a_profile_may_ask_for(desk: Desk) -> None:
    cost = desk.resolve(CPU).release.cost
    assert least_memory(cost) == LEAST_HEAP + cost.memory_per_job_mib * MIB
