"""tfdock itself is stopped or killed at any point of a build, and its container is taken away."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from functools import partial

import pytest
from build.harness import WHOLE

from .rig import MARKS, Case, Rig, side_by_side

pytestmark = MARKS

#: Seconds that a Bazel which is played back rests in each of its phases: else they are over before a signal comes.
PACE = 1.5
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


@pytest.mark.parametrize("points", [4, 10], ids=lambda points: f"{points} moments")
def test_whenever_it_is_stopped_or_killed_the_next_build_makes_the_same_wheel(rig: Rig, points: int) -> None:
    """One moment in each part of a build, in turn for each of two that go on each time, and at last to the end."""
    rig.case(pace=PACE).goes_on()
    chance = random.Random(8)
    plan = [((place + chance.random()) / points, SIGNALS[place % len(SIGNALS)]) for place in range(points)]
    hits = side_by_side(*(partial(times_stopped, rig.case(pace=PACE), plan[first::2]) for first in (0, 1)))
    assert sum(hits) >= points - 2, "they had ended before the signal came"


def times_stopped(case: Case, moments: list[tuple[float, signal.Signals]]) -> int:
    """How often a build was still running when the signal came; then it ended as it should, and at last goes on."""
    for hits, moment in enumerate(moments):
        if not stopped(case, *moment):
            return hits
    case.goes_on()
    return len(moments)


def stopped(case: Case, point: float, number: signal.Signals) -> bool:
    """Whether a build was still running at that part of the time that one takes; then it ended as it should."""
    running = case.start()
    phase, seconds = under_way(case.rig, point)
    # On a busy machine builds take longer, and the last phases are to be met as well.
    running.wait_for(f"{phase} …", WHOLE)
    time.sleep(seconds)
    outcome = running.end_by(number, 60)
    if outcome.code == 0:
        case.ended_well(outcome)
        return False
    told = f"{number.name} at {point:.0%}: {outcome.told}"
    assert outcome.code == CODES[number], told
    assert case.tfdock.visible == [], told
    if number == signal.SIGKILL:
        case.mend()
    else:
        assert outcome.problem["code"] == "interrupted", told
        assert outcome.stderr.count("error:") == 1, told
        assert "Traceback" not in outcome.stderr, told
        case.assert_tidy()
    return True


def under_way(rig: Rig, point: float) -> tuple[str, float]:
    """The phase that a build is in at that part of its time, and for how many seconds."""
    when, ended = point * sum(rig.seconds.values()), 0.0
    for phase, seconds in rig.seconds.items():
        if when < ended + seconds:
            return phase, when - ended
        ended += seconds
    raise AssertionError(f"no phase at {point:.0%}")


def test_a_running_step_of_the_image_is_found_after_a_kill_and_a_removed_container_is_told_as_such(rig: Rig) -> None:
    case = rig.case("killed")
    running = case.until("image", case.start())
    running.end_by(signal.SIGKILL, 60)
    case.mend()
    case.hold("compile")
    with rig.door.opened():
        running = case.until("compile", case.start())
    (container,) = case.own_containers()
    with contextlib.closing(case.rig.sdk) as sdk:
        sdk.remove_container(container["Id"], force=True)
    case.failed_in("compile", running.finish(60), 6, "container-gone")
    case.goes_on()
