"""Memory, time and disk on an engine in memory: a second try, clean stops, and several builds within a machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeRun
from refusals import refusal

from tfdock import events
from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.builder.build import build
from tfdock.builder.parallel import Ledger, build_side_by_side
from tfdock.builder.session import BuildRequest
from tfdock.engine.protocol import ContainerSpec
from tfdock.errors import BuildFailed, DiskFull, OutOfMemory, TimeLimit
from tfdock.host.supervise import Limit
from tfdock.plan.resources import MachineShare, usable
from tfdock.run.disk_space import DiskSpace
from tfdock.types import Machine

from .harness import Tfdock, write_profile
from .test_orchestration import SOURCE, Desk, leaving, mounts, verifying, wheel

GIB = 1 << 30
KILLED = FakeRun(
    output=[b"gcc: fatal error: Killed signal terminated program cc1plus\n"], exit_code=1, oom_killed=True
)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def compiling(desk: Desk, *runs: FakeRun) -> list[ContainerSpec]:
    """Each compile container does what is next in line; those that were started, as they come."""
    left, started = list(runs), list[ContainerSpec]()

    def run(spec: ContainerSpec) -> FakeRun:
        phase = spec.name.rpartition("-")[2]
        if phase == "compile":
            started.append(spec)
            return left.pop(0)
        return FakeRun() if phase == "fetch" else verifying(spec)

    desk.engine.on_run = run
    return started


def flag(spec: ContainerSpec, name: str) -> str:
    (value,) = [word.partition("=")[2] for word in spec.command if word.startswith(f"{name}=")]
    return value


# --- memory -------------------------------------------------------------------------------------------------------


def test_after_a_kill_for_memory_it_compiles_once_more_with_half_the_jobs(desk: Desk) -> None:
    started = compiling(desk, KILLED, FakeRun(effect=leaving(wheel())))
    result = desk.build()
    assert [flag(spec, "--jobs") for spec in started] == ["4", "2"]
    assert [spec.memory for spec in started] == [desk.plan.resources.memory] * 2
    assert mounts(started[0])["/tf/output"] == mounts(started[1])["/tf/output"], "what was fetched is there"
    (told,) = [text for text in desk.notices if "again" in text]
    assert told.startswith("the kernel killed a compiler of phase compile because memory ran out: 4 jobs in 15.0 GiB")
    assert told.endswith("compiling again with 2 from the cache")
    record = result.record
    assert record["attempts"] == 2
    assert [(one["jobs"], one["ended"] == "well") for one in record["resources"]] == [(4, False), (2, True)]
    assert record["plan"]["resources"]["jobs"] == 4, "the plan is what was planned"
    assert desk.left_behind == []


def test_a_second_kill_is_the_error(desk: Desk) -> None:
    started = compiling(desk, KILLED, KILLED)
    problem = desk.fails(OutOfMemory, "out-of-memory", "compile")
    assert len(started) == 2
    assert "2 jobs in 15.0 GiB" in problem.message
    assert "jobs: 1" in problem.fix


def test_with_one_job_there_is_nothing_to_halve(tmp_path: Path) -> None:
    desk = Desk(tmp_path, resources={"jobs": 1})
    started = compiling(desk, KILLED)
    problem = desk.fails(OutOfMemory, "out-of-memory", "compile")
    assert len(started) == 1
    assert problem.fix is not None
    assert problem.fix.startswith("give the build 23 GiB of memory or more: it runs only one job already")


def test_where_bazels_own_heap_was_too_small_it_gets_a_larger_one(desk: Desk) -> None:
    started = compiling(desk, FakeRun(exit_code=33), FakeRun(effect=leaving(wheel())))
    desk.build()
    assert [flag(spec, "--host_jvm_args") for spec in started] == ["-Xmx2048m", "-Xmx4096m"]


def test_a_fetch_whose_heap_was_too_small_gets_a_larger_one_once(desk: Desk) -> None:
    compiling(desk, FakeRun(effect=leaving(wheel())))
    others, started = desk.engine.on_run, list[ContainerSpec]()
    ends = [FakeRun(exit_code=33), FakeRun(exit_code=33), FakeRun(exit_code=33), FakeRun()]

    def run(spec: ContainerSpec) -> FakeRun:
        if not spec.name.endswith("-fetch"):
            return others(spec)
        started.append(spec)
        return ends.pop(0)

    desk.engine.on_run = run
    desk.fails(OutOfMemory, "out-of-memory", "fetch")
    assert len(started) == 2
    desk.build()
    assert [flag(spec, "--host_jvm_args") for spec in started] == ["-Xmx2048m", "-Xmx4096m"] * 2
    assert desk.notices[-1].endswith("; fetching again with 2 from the cache")


def test_what_a_killed_container_left_in_the_staging_folder_is_not_published(desk: Desk) -> None:
    killed = replace(KILLED, exit_code=0, effect=leaving(wheel(requires="Requires-Dist: left-behind\n"), "cp310"))
    compiling(desk, killed, FakeRun(effect=leaving(wheel())))
    assert len(desk.build().wheels) == 1


def test_an_engine_with_less_than_the_plan_was_made_for_gets_less_to_do(desk: Desk) -> None:
    desk.engine.engine_info = replace(desk.engine.engine_info, cpus=2, memory=3 * GIB)
    started = compiling(desk, FakeRun(effect=leaving(wheel())))
    record = desk.build().record
    assert (flag(started[0], "--jobs"), started[0].memory, started[0].cpus) == ("2", 2 * GIB, 2.0)
    assert record["plan"]["resources"]["memory"] == 2 * GIB
    assert record["fingerprint"] == desk.plan.fingerprint


# --- time ---------------------------------------------------------------------------------------------------------


def test_the_commands_own_time_limit_wins_and_says_how_far_the_build_came(tmp_path: Path) -> None:
    desk = Desk(tmp_path, resources={"time_limit": "100h"})
    running = FakeRun(output=[b"[1,200 / 5,000] Compiling x.cc\n"], endless=True, signals={"INT": 8})
    compiling(desk, running)
    desk.clock.step = 0.05
    session = replace(desk.session, limit=Limit(2, 2.0))
    with refusal(TimeLimit, "time-limit") as caught:
        build(session, BuildRequest(prepared=desk.prepared), desk.heard.append)
    (problem,) = caught.value.problems
    assert "the time limit of 2 s was reached in phase compile after 1,200 of 5,000 actions" in problem.message
    assert "run the same command again" in problem.fix


# --- disk ---------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_nearly_full_stops_the_build_before_it_is(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [50 * GIB]
    monkeypatch.setattr(
        "tfdock.run.disk_space.shutil.disk_usage",
        lambda path: (100 * GIB, 0, free[0] if "cache" in str(path) else 99 * GIB),
    )

    def fill(_: ContainerSpec) -> FakeRun:
        free[0] = 2 * GIB - 1
        return FakeRun(output=[b"[3 / 9] Compiling x.cc\n"], endless=True, signals={"INT": 8})

    entry = CacheFolder.opened(desk.settings.cache_dir).root / "disk/entry"
    entry.parent.mkdir()
    entry.write_bytes(b"x" * (1 << 20))
    desk.engine.on_run = fill
    problem = desk.fails(DiskFull, "disk-full", "fetch")
    assert (
        f"before the disk of the cache ({desk.settings.cache_dir}) was full: 2.0 GiB of 100.0 GiB" in problem.message
    )
    assert "after 3 of 9 actions" in problem.message
    assert "disk 1.0 MiB" in problem.why
    assert "tfdock cache prune" in problem.fix
    assert "docker system prune" not in problem.fix, "the engine's data is not known to be on that disk"
    assert [name for _, name in desk.engine.called("signal")] == ["INT"]


def test_a_disk_that_cannot_be_looked_at_stops_nothing(tmp_path: Path) -> None:
    def gone(_: Path) -> tuple[int, int, int]:
        raise OSError

    room = DiskSpace({"the cache": tmp_path}, usage=gone)
    assert not room.is_short()


# --- several builds -----------------------------------------------------------------------------------------------


def profiles(tmp_path: Path, count: int) -> list[Desk]:
    """Builds of different things, each on an engine of its own that knows the same machine."""
    made = []
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.append(Desk(folder, optimize=["avx2", "fma", "avx", "sse4.2"][: number + 1]))
    return made


def run_all(desks: list[Desk], count: int, effect: Callable[[int], FakeRun]) -> tuple[list[str], list[ContainerSpec]]:
    """Build them side by side: what became of each, and the compile containers."""
    plans = [desk.plan for desk in desks]
    assert len({plan.build_id for plan in plans}) == len(desks)
    ledger = Ledger(count, {plan.build_id for plan in plans})
    started = [compiling(desk, effect(place)) for place, desk in enumerate(desks)]

    def build_one(place: int) -> str:
        desk = desks[place]
        session = replace(desk.session, allotted=ledger.allot)
        try:
            return build(session, BuildRequest(prepared=desk.prepared), desk.heard.append).status
        except BuildFailed as error:
            return error.problems[0].code

    return build_side_by_side(plans, ledger, build_one), [spec for specs in started for spec in specs]


def test_several_builds_share_the_machine_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    desks = profiles(tmp_path, 4)
    lock, running, peak, most = threading.Lock(), 0, 0, 0

    def effect(place: int) -> FakeRun:
        def work(spec: ContainerSpec) -> None:
            nonlocal running, peak, most
            with lock:
                running += spec.memory or 0
                most += 1
                peak = max(peak, running)
            time.sleep(0.3)
            with lock:
                running -= spec.memory or 0
            leaving(wheel())(spec)

        if place == 2:
            return FakeRun(output=[b"x.cc:1: error: no\n"], exit_code=1)
        return FakeRun(effect=work)

    statuses, specs = run_all(desks, 2, effect)
    assert statuses == ["built", "built", "compile-failed", "built"]
    assert most == 3
    assert 0 < peak <= usable(16 * GIB)
    assert {flag(spec, "--jobs") for spec in specs[:2]} == {"2"}


def test_the_share_of_a_build_grows_when_it_compiles_and_nobody_else_wants_it(desk: Desk) -> None:
    machine, other = Machine(cpus=4, memory=17 * GIB), "another"
    ledger = Ledger(2, {desk.plan.build_id, other})  # type: ignore[arg-type]
    assert ledger.allot(desk.plan, machine).memory == 8 * GIB
    assert ledger.allot(desk.plan, machine).memory == 8 * GIB, "the other is still to come"
    ledger.unserved.clear()
    assert ledger.allot(desk.plan, machine).memory == 16 * GIB
    ledger._taken[other] = MachineShare(2, 8 * GIB)  # type: ignore[index]
    ledger.end(desk.plan)
    assert ledger.allot(desk.plan, machine).memory == 8 * GIB


def test_the_results_are_in_the_plans_order_whoever_ends_first(desk: Desk) -> None:
    plans = [desk.plan] * 3
    delays = [0.3, 0.0, 0.1]

    def build(place: int) -> int:
        time.sleep(delays[place])
        return place

    assert build_side_by_side(plans, Ledger(3, set()), build) == [0, 1, 2]


def test_a_mistake_of_ours_in_one_build_is_raised_when_the_others_are_done(desk: Desk) -> None:
    ended: list[int] = []

    def build(place: int) -> None:
        if place == 0:
            raise AssertionError("ours")
        time.sleep(0.1)
        ended.append(place)

    with pytest.raises(AssertionError, match="ours"):
        build_side_by_side([desk.plan] * 2, Ledger(2, set()), build)
    assert ended == [1]


def test_one_waits_for_another_that_fetches_into_the_same_cache_and_says_so(tmp_path: Path) -> None:
    first, second = profiles(tmp_path, 2)
    second.settings = replace(second.settings, cache_dir=first.settings.cache_dir)
    fetching, free = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(_: ContainerSpec) -> None:
        fetching.set()
        free.wait(30)
        order.append("first")

    first.engine.phases["fetch"] = FakeRun(effect=slow)
    second.engine.phases["fetch"] = FakeRun(effect=lambda _: order.append("second"))
    thread = threading.Thread(target=first.build)
    thread.start()
    assert fetching.wait(30)

    def told(event: events.Event) -> None:
        second.heard.append(event)
        if isinstance(event, events.Notice) and "fetches into the same cache" in event.text:
            free.set()

    build(second.session, BuildRequest(prepared=second.prepared), told)
    thread.join(30)
    assert order == ["first", "second"]
    assert json.dumps(second.notices).count("waiting for another build of this command") == 1


# --- what a user says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-j", "0"), "write `auto`, or 1 or more"),
        (("-j", "many"), "write `auto`, or 1 or more"),
        (("--time-limit", "soon"), "write it like `5h30m`"),
        (("--time-limit", ""), "write it like `5h30m`"),
        (("--time-limit", "0h0m"), "write it like `5h30m`"),
    ],
)
def test_what_is_no_number_of_builds_and_no_time_is_refused(alone: Tfdock, words: tuple[str, ...], said: str) -> None:
    assert said in alone.run("build", *words, "rtx3080", code=2).stderr


def test_a_machine_may_be_granted_to_builds_in_part(alone: Tfdock, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "profile.yaml", None, tensorflow=SOURCE)
    plan = alone.with_variables(TFDOCK_MEMORY="2GiB", TFDOCK_CPUS="1").run("plan", "--json", profile).document
    assert plan["machine"] == {"cpus": 1, "memory": 2 * GIB}
    assert (plan["resources"]["jobs"], plan["resources"]["memory"]) == (1, GIB)
    assert plan["estimate"] is None or plan["estimate"]["seconds"] > 0
    much = alone.with_variables(TFDOCK_MEMORY="much")
    wrong = much.run("plan", "--json", profile, code=2, problem="settings-bad-value")
    assert wrong.problem["fix"] == "write it like `24GiB`"


def test_without_an_engine_several_builds_say_so_once_before_the_first(alone: Tfdock, tmp_path: Path) -> None:
    first, *others = (
        write_profile(tmp_path / f"{target}.yaml", None, tensorflow=SOURCE, compute_capabilities=[target])
        for target in ("sm_80", "sm_20", "sm_86", "sm_90")
    )
    outcome = alone.build("-j", "auto", first, *others, code=6, problem="engine-unavailable")
    assert outcome.stderr.count("[engine-unavailable]") == 1
    assert "[target-not-in-toolkit]" in outcome.stderr, "a profile that is refused is told as well"
