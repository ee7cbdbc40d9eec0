"""The engine is killed, stopped or frozen in each phase: told as such, nothing left, and the next build goes on."""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest
from build.harness import Running

from .rig import MARKS, PHASES, Case, Rig, impatient, side_by_side

pytestmark = MARKS

LOST = ("engine-lost", "container-killed", "container-gone", "engine-unavailable")


def on_their_way(rig: Rig, mark: str, patience: float | None = None) -> dict[str, tuple[Case, Running]]:
    """A build in each phase, side by side: each waits there, but for the last, which tries its wheel."""
    gates = dict(zip(PHASES, ("image", "fetch", "compile", "compile"), strict=True))
    found: dict[str, tuple[Case, Running]] = {}
    for phase, gate in gates.items():
        case = rig.case(f"{mark}-{phase}" if phase == "image" else "plain")
        case = impatient(case, patience) if patience else case
        if gate != "image":
            case.hold(gate)
        found[phase] = (case, case.start())
    for phase, (case, running) in found.items():
        case.until(gates[phase], running)
    case, running = found["verify"]
    case.release()
    case.until("verify", running)
    return found


@pytest.mark.parametrize(
    ("number", "mended"),
    [
        pytest.param(signal.SIGKILL, PHASES[::2], id="SIGKILL"),
        pytest.param(signal.SIGTERM, PHASES[1::2], id="SIGTERM"),
    ],
)
def test_an_engine_that_dies_costs_no_more_than_the_phase(
    rig: Rig, number: signal.Signals, mended: tuple[str, ...]
) -> None:
    builds = on_their_way(rig, f"dies-{number}")
    rig.private.kill(number)
    for phase, (case, running) in builds.items():
        outcome = running.finish(60)
        case.failed_in(phase, outcome, 6, *LOST)
        assert outcome.build["status"] == "failed"
    cases = {phase: case for phase, (case, _) in builds.items()}
    for (check,) in side_by_side(*(partial(case.leftovers_of_doctor, "--fix") for case in cases.values())):
        # What cannot be cleaned yet is told, and stays.
        assert (check["status"], check["code"]) == ("warning", "run-left-behind")
    rig.private.revive()
    # Each phase is once for `doctor --fix` and once for the next build, whichever of the two ways the engine died.
    with rig.door.opened():
        side_by_side(*(case.mend if phase in mended else case.goes_on for phase, case in cases.items()))
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
            time.sleep(1)
        finally:
            rig.private.kill(signal.SIGCONT)
    rig.door.close()
    case.ended_well(running.finish())


def test_an_engine_that_stays_frozen_is_given_up_in_each_phase(rig: Rig) -> None:
    builds = on_their_way(rig, "hangs", patience=5)
    rig.private.kill(signal.SIGSTOP)
    try:
        for phase, (case, running) in builds.items():
            case.failed_in(phase, running.finish(120), 6, "engine-hung")
    finally:
        rig.private.kill(signal.SIGCONT)
    side_by_side(*(case.goes_on if phase == "compile" else case.mend for phase, (case, _) in builds.items()))
