"""Cells shared out among jobs: all of them, once, balanced, and groups together."""

from __future__ import annotations

import itertools
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tfdock.matrix.shards import CellLoad, Job, grouped, jobs, split


def load(name: object, seconds: float | None = 1.0, group: str = "g", runner: str = "r") -> CellLoad:
    return CellLoad(name=str(name), seconds=seconds, group=group, runner=(runner,))


seconds = st.one_of(st.none(), st.floats(0, 1e5))
loads = st.lists(st.tuples(seconds, st.sampled_from("ghi"), st.sampled_from("rs")), max_size=25).map(
    lambda some: [load(number, cost, group, runner) for number, (cost, group, runner) in enumerate(some)]
)


def cost(job: Job) -> float:
    return sum(one.seconds or 0 for one in job.loads)


@given(loads, st.one_of(st.none(), st.integers(1, 12)))
def test_every_cell_is_in_one_job_of_its_own_kind_of_machine(some: list[CellLoad], count: int | None) -> None:
    found = jobs(some, count)
    assert sorted(one.name for job in found for one in job.loads) == sorted(one.name for one in some)
    assert all(job.loads and len({one.runner for one in job.loads}) == 1 for job in found)
    machines = len({one.runner for one in some})
    assert len(found) <= (len(some) if count is None else max(count, machines))
    assert len({job.name for job in found}) == len(found), "a job's name is its own"
    assert jobs(some, count) == found, "the same cells give the same jobs"
    for job in found:
        groups = [one.group for one in job.loads]
        assert sum(1 for a, b in itertools.pairwise(groups) if a != b) == len(set(groups)) - 1


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=30), st.integers(1, 8), st.integers(1, 5))
def test_no_job_takes_much_more_than_its_share(costs: list[float], count: int, groups: int) -> None:
    some = [load(number, one, str(number % groups)) for number, one in enumerate(costs)]
    fair = max(sum(costs) / count, max(costs))
    # What cannot be divided is one cell: a job is never worse off than its share and one such.
    assert max(map(cost, jobs(some, count))) <= 1.25 * fair + max(costs)


def test_groups_stay_together_where_that_is_balanced() -> None:
    some = [load(f"{group}{number}", 10.0, group) for number in range(4) for group in "abcd"]
    found = jobs(some, 4)
    assert [Counter(one.group for one in job.loads) for job in found] == [{group: 4} for group in "abcd"]


def test_a_group_is_torn_apart_where_others_would_idle() -> None:
    found = jobs([load(number, 60.0) for number in range(8)], 4)
    assert [[one.name for one in job.loads] for job in found] == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
    assert [job.minutes for job in found] == [2, 2, 2, 2]


def test_the_costliest_goes_first_to_whoever_has_least() -> None:
    some = [load(name, cost, name) for name, cost in {"c": 20.0, "d": 20.0, "b": 20.0, "a": 60.0}.items()]
    assert [[one.name for one in job.loads] for job in jobs(some, 2)] == [["c", "d", "b"], ["a"]]


def test_a_machine_with_more_to_do_gets_more_jobs() -> None:
    some = [load(number, 60.0, runner="big") for number in range(9)] + [load("x", 60.0, runner="gpu")]
    found = jobs(some, 4)
    assert Counter(job.loads[0].runner[0] for job in found) == {"big": 3, "gpu": 1}
    assert [len(job.loads) for job in found] == [3, 3, 3, 1]


def test_names_and_minutes() -> None:
    one, both, unknown = jobs([load("x", 61.0)])[0], jobs([load("x"), load("y")], 1)[0], jobs([load("z", None)])[0]
    assert (one.name, one.minutes) == ("x", 2)
    assert both.name == "x+1"
    assert unknown.minutes is None


def test_ten_thousand_cells_are_shared_out_in_the_time_of_a_keystroke() -> None:
    dice = random.Random(7)
    some = [load(number, dice.uniform(600, 40_000), f"g{number % 97}") for number in range(10_000)]
    found = jobs(some, 300)
    total = sum(map(cost, found))
    assert len(found) == 300
    assert max(map(cost, found)) < 1.3 * total / 300


def test_grouped_keeps_the_order_otherwise() -> None:
    some = [load("a", group="g"), load("b", group="h"), load("c", group="g")]
    assert [one.name for one in grouped(some)] == ["a", "c", "b"]


def test_what_is_too_much_at_once_is_split_in_order() -> None:
    assert split("abcde", 2) == (("a", "b"), ("c", "d"), ("e",))
    assert split("", 2) == ((),)
