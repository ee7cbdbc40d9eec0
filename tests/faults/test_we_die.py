"""tfdock itself is stopped or killed at any point of a build, and its container is taken away."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from .rig import MARKS, Case, Rig

pytestmark = MARKS

POINTS = 10
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


def test_whenever_it_is_stopped_or_killed_the_next_build_makes_the_same_wheel(rig: Rig) -> None:
    chance = random.Random(8)
    points = sorted(chance.random() for _ in range(POINTS))
    plan = [(point, SIGNALS[place % len(SIGNALS)]) for place, point in enumerate(points)]
    with ThreadPoolExecutor(2) as pool:
        hit = list(pool.map(lambda one: stopped(rig, *one), plan))
    assert sum(hit) >= POINTS - 2, "they had ended before the signal came"


def stopped(rig: Rig, point: float, number: signal.Signals) -> bool:
    """Whether a build was still running at that part of the time that one takes; then it ended as it should."""
    case = rig.case()
    running = case.start()
    time.sleep(point * rig.seconds)
    running.signal(number)
    outcome = running.finish(60)
    if outcome.code == 0:
        case.ended_well(outcome)
        return False
    told = f"{number.name} at {point:.0%}: {outcome.told}"
    assert outcome.code == CODES[number], told
    assert case.tfdock.visible == [], told
    if number == signal.SIGKILL:
        case.mend()
    else:
        if outcome.stdout:  # else it had not begun
            problem = outcome.problem
            assert problem["code"] == "interrupted", told
            assert outcome.stderr.count("error:") == 1, told
        assert "Traceback" not in outcome.stderr, told
        case.assert_tidy()
    case.goes_on()
    return True


def test_a_kill_in_a_running_step_of_the_image_leaves_nothing_that_cannot_be_found(rig: Rig) -> None:
    case = rig.case("killed")
    running = case.until("image", case.start())
    running.signal(signal.SIGKILL)
    running.finish(60)
    case.mend()
    with rig.door.opened():
        case.goes_on()


def test_a_container_that_somebody_removes_is_told_as_such(case: Case) -> None:
    case.hold("compile")
    running = case.until("compile", case.start())
    (container,) = case.own_containers()
    with contextlib.closing(case.rig.sdk) as sdk:
        sdk.remove_container(container["Id"], force=True)
    case.failed_in("compile", running.finish(60), 6, "container-gone")
    case.goes_on()
