"""The engine is killed, stopped or frozen in each phase: told as such, nothing left, and the next build goes on."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from build.harness import Running

from .rig import MARKS, PHASES, Case, Rig

pytestmark = MARKS

LOST = ("engine-lost", "container-killed", "container-gone", "engine-unavailable")


def on_their_way(rig: Rig, mark: str) -> dict[str, tuple[Case, Running]]:
    """A build in each phase, side by side: each waits there, but for the one that tries its wheel."""
    found: dict[str, tuple[Case, Running]] = {}
    for phase in PHASES:
        case = rig.case(f"{mark}-{phase}" if phase == "image" else "plain")
        if phase in ("fetch", "compile"):
            case.hold(phase)
        found[phase] = (case, case.start())
        if phase in ("fetch", "compile"):
            case.until(phase, found[phase][1])
    for phase in ("image", "verify"):
        case, running = found[phase]
        case.until(phase, running)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_that_dies_costs_no_more_than_the_phase(rig: Rig, number: signal.Signals) -> None:
    builds = on_their_way(rig, f"dies-{number}")
    rig.private.kill(number)
    for phase, (case, running) in builds.items():
        outcome = running.finish(60)
        case.failed_in(phase, outcome, 6, *LOST)
        assert outcome.build["status"] == "failed"
    for case, _ in builds.values():  # what cannot be cleaned yet is told, and stays
        (check,) = case.leftovers_of_doctor("--fix")
        assert (check["status"], check["code"]) == ("warning", "run-left-behind")
    rig.private.revive()
    cases = [case for case, _ in builds.values()]
    for case in cases[::2]:
        case.mend()  # the others leave it to the next build
    with rig.door.opened(), ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda case: case.goes_on(), cases))
    assert rig.containers() == []


def test_an_engine_that_is_frozen_for_a_while_in_each_phase_delays_the_build_and_no_more(rig: Rig) -> None:
    case = rig.case("frozen")
    case.hold("fetch", "compile")
    running = case.start()
    for phase in PHASES:
        case.until(phase, running)
        rig.private.kill(signal.SIGSTOP)
        try:
            if phase == "image":
                rig.door.open()
            case.release(phase)
            time.sleep(3)
        finally:
            rig.private.kill(signal.SIGCONT)
    rig.door.close()
    case.ended_well(running.finish())


def test_an_engine_that_stays_frozen_is_given_up_in_each_phase(rig: Rig) -> None:
    builds = on_their_way(rig, "hangs")
    rig.private.kill(signal.SIGSTOP)
    try:
        for phase, (case, running) in builds.items():
            case.failed_in(phase, running.finish(180), 6, "engine-hung")
    finally:
        rig.private.kill(signal.SIGCONT)
    for case, _ in builds.values():
        case.mend()
    builds["compile"][0].goes_on()
