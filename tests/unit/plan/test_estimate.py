"""How long a build is said to take: which record counts, what it is scaled by, and how it gets better on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.plan.estimate import PhaseEstimate, expectation, remaining, weight
from tfdock.types import Machine

from ..desk import Desk

GIB = 1 << 30
HERE = Machine(cpus=8, memory=32 * GIB)
CPU = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\naccelerator: cpu\n'
GPUS = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ncompute_capabilities: [sm_80, sm_86]\n'
SENSELESS: list[Any] = [-1, float("nan"), float("inf"), 10**400, True]
SECONDS = {"image": 60.0, "fetch": 100.0, "compile": 1000.0, "seal": 5.0, "verify": 20.0}


def record(build_id: str, day: int = 1, **fields: Any) -> Mapping[str, Any]:
    limits = [{"jobs": 16, "ended": "killed"}, {"jobs": fields.pop("jobs", 8), "ended": "well"}]
    return {
        "build_id": build_id,
        "seconds": SECONDS,
        "machine": {"cpus": 8, "memory": 31 * GIB},
        "resources": limits,
        "estimate": {"weight": 1.0},
        "finished": f"2026-11-{day:02}T10:00:00+00:00",
    } | fields


def expected(desk: Desk, text: str, *records: Mapping[str, Any]) -> PhaseEstimate:
    plan = desk.plan(text, machine=HERE)
    found = expectation(plan.resolution, plan.resources, plan.machine, records, desk.knowledge)
    assert found is not None
    return found


# --- which record -------------------------------------------------------------------------------------------------


def test_the_last_build_of_the_same_thing_here_counts_as_it_is(desk: Desk) -> None:
    own = desk.plan(CPU).build_id
    newer = record(own, 3, seconds=SECONDS | {"compile": 700.0})
    found = expected(desk, CPU, record(own, 2), newer, record("tf2.18.0-py3.12-cpu-x86_64", 9))
    assert found.seconds == SECONDS | {"compile": 700.0}
    assert found.source == "its build of 2026-11-03"
    assert found.total == 885


def test_a_build_that_a_cache_made_quick_counts_for_the_same_one_here_alone(desk: Desk) -> None:
    quick: Any = {"seconds": SECONDS | {"compile": 81.0}, "bazel": {"executed": 2, "hits": 3761}}
    own = desk.plan(CPU).build_id
    assert expected(desk, CPU, record(own, **quick)).seconds["compile"] == 81
    elsewhere: Any = {"machine": {"cpus": 2, "memory": 8 * GIB}}
    for other in (record("tf2.18.0-py3.12-cpu-x86_64", 9, **quick), record(own, 9, **quick, **elsewhere)):
        assert expected(desk, CPU, other).source == expected(desk, CPU).source
        assert expected(desk, CPU, other, record("tf2.18.0-py3.10-cpu-x86_64")).seconds["compile"] == 1000


def test_one_from_another_machine_is_scaled_by_its_jobs(desk: Desk) -> None:
    other = record(desk.plan(CPU).build_id, jobs=2, machine={"cpus": 2, "memory": 8 * GIB})
    found = expected(desk, CPU, other)
    assert found.seconds["compile"] == 250
    assert found.source == "its build of 2026-11-01 on 2 cores, compiling times 0.25"


def test_one_of_the_same_release_here_is_scaled_by_what_there_is_to_compile(desk: Desk) -> None:
    plan = desk.plan(GPUS, machine=HERE)
    found = expected(desk, GPUS, record("tf2.18.0-py3.12-cpu-x86_64"))
    assert weight(plan.resolution, desk.knowledge) == pytest.approx(1.3)
    assert found.seconds["compile"] == pytest.approx(1300)
    assert found.source == "the build of tf2.18.0-py3.12-cpu-x86_64 of 2026-11-01, compiling times 1.30"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(record("tf2.17.1-py3.11-cpu-x86_64"), id="another release"),
        pytest.param(record("tf2.18.0-py3.12-cpu-x86_64", machine={"cpus": 4, "memory": 32 * GIB}), id="other cores"),
        pytest.param(record("tf2.18.0-py3.12-cpu-x86_64", machine={"cpus": 8, "memory": 16 * GIB}), id="less memory"),
        pytest.param({"build_id": "tf2.18.0-py3.12-cpu-x86_64"}, id="not whole"),
    ],
)
def test_where_none_is_like_it_a_published_figure_is_named_as_such(desk: Desk, other: Mapping[str, Any]) -> None:
    found = expected(desk, CPU, other)
    assert found.seconds == {"compile": 16 * 3600 / 8}
    assert "a published figure (16 core-hours for a CPU build) and 8 jobs" in found.source


def test_more_jobs_than_cores_take_no_less_time(desk: Desk) -> None:
    many = f"{CPU}resources: {{jobs: 900}}\n"
    for records in ([], [record(desk.plan(CPU).build_id)]):
        assert expected(desk, many, *records).seconds == expected(desk, CPU, *records).seconds


def test_a_record_of_an_older_version_without_limits_counts_too(desk: Desk) -> None:
    own = dict(record(desk.plan(CPU).build_id))
    del own["resources"], own["estimate"]
    assert expected(desk, CPU, own).seconds == SECONDS


@pytest.mark.parametrize(
    "fields",
    [
        {"machine": {"cpus": 10**400, "memory": "x"}},
        {"machine": 5},
        {"seconds": [1]},
        *({"seconds": {**SECONDS, "compile": value}} for value in (*SENSELESS, "1000", None, [], 0)),
    ],
    ids=lambda fields: str(fields)[-30:],
)
def test_a_record_with_senseless_figures_does_not_count(desk: Desk, fields: Mapping[str, Any]) -> None:
    own = desk.plan(CPU, machine=HERE).build_id
    assert "a published figure" in expected(desk, CPU, record(own, **fields)).source
    assert expected(desk, CPU, record(own, 1), record(own, 2, **fields)).source == "its build of 2026-11-01"


@pytest.mark.parametrize("value", ["x", 5, None, [], [5], {}, [{"jobs": True}], [{"jobs": 10**400}], [{"jobs": -1}]])
@pytest.mark.parametrize("key", ["resources", "estimate", "finished"])
def test_what_a_record_says_beside_its_seconds_may_be_junk(desk: Desk, key: str, value: Any) -> None:
    alike = "tf2.18.0-py3.12-cpu-x86_64"
    for build_id in (desk.plan(CPU, machine=HERE).build_id, alike):
        found = expected(desk, CPU, record(build_id, **{key: value}), record(build_id, 2))
        assert found.seconds["compile"] == pytest.approx(1000)
        assert expected(desk, CPU, record(build_id, **{key: value})).seconds["compile"] == pytest.approx(1000)


@pytest.mark.parametrize("weight", [*SENSELESS, "x", 0])
def test_a_senseless_weight_counts_as_none(desk: Desk, weight: Any) -> None:
    found = expected(desk, CPU, record("tf2.18.0-py3.12-cpu-x86_64", estimate={"weight": weight}))
    assert found.seconds["compile"] == 1000


def test_figures_of_phases_that_make_no_sense_are_left_out(desk: Desk) -> None:
    seconds = {"image": "x", "fetch": float("inf"), "compile": 1000, "seal": -5, "verify": 20.0, "other": 7}
    found = expected(desk, CPU, record(desk.plan(CPU, machine=HERE).build_id, seconds=seconds))
    assert found.seconds == {"compile": 1000, "verify": 20}


def test_the_phases_that_follow_are_added(desk: Desk) -> None:
    found = expected(desk, CPU, record(desk.plan(CPU).build_id))
    assert found.after("fetch") == 1025
    assert found.after("verify") == 0


# --- while it runs ------------------------------------------------------------------------------------------------


def test_nothing_is_said_before_anything_is_known() -> None:
    assert remaining(None, 10, 0, 0) is None
    assert remaining(None, 10, 1, 1000) is None
    assert remaining(100, 150, 0, 0) is None


def test_a_count_beyond_the_whole_leaves_nothing_and_not_less() -> None:
    assert remaining(None, 10, 5, 3) == 0
    assert remaining(100, 10, 5, 3) == 0


def test_history_speaks_first_and_bazels_pace_last() -> None:
    assert remaining(100, 10, 0, 0) == 90
    assert remaining(100, 10, 1, 1000) == 90
    assert remaining(100, 50, 500, 1000) == 50
    assert remaining(1000, 50, 500, 1000) == 50, "from the half on the pace alone"
    assert remaining(None, 60, 250, 1000) == 180


@given(st.floats(0.02, 50), st.integers(100, 30000), st.floats(40, 20000))
def test_however_wrong_the_history_the_estimate_gets_better(wrong: float, total: int, seconds: float) -> None:
    """A build of even pace: no quarter leaves the estimate further off than the one before, and the last is right."""
    off = []
    for quarter in range(1, 4):
        done = total * quarter // 4
        left = remaining(seconds * wrong, seconds * done / total, done, total)
        assert left is not None
        ratio = left / (seconds * (1 - done / total))
        off.append(max(ratio, 1 / ratio))
    assert off[0] <= max(wrong, 1 / wrong) ** 0.55 + 0.01
    assert off[1] <= off[0] + 0.01
    assert off[2] == pytest.approx(1)
