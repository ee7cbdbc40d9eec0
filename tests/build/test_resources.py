"""A machine's limits, for real: too little memory, time that is up, a disk that fills, builds side by side."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.docker_engine import DockerEngine
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec
from tfdock.types import Mount

from .conftest import EditedTree, Workshop
from .harness import (
    CPU,
    PLAYED_BUILD,
    WHOLE,
    Json,
    Tfdock,
    copy_cache,
    published,
    record_of,
    replaced,
    small_disk,
    write_profile,
)
from .test_failures import PACKER, SLOW_COMPILE, compiling, failed_in

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

MIB, GIB = 1 << 20, 1 << 30
#: Memory for Bazel and one of the hungry compilers, which take 0.8 GB each, but not for two of them.
TIGHT = 1536 * MIB
HUNGRY = {"copts": ["-DMINIATURE_HUNGRY_KERNELS=17"]}


# --- memory -------------------------------------------------------------------------------------------------------


def plainly(workshop: Workshop, plan: Json, folder: Path) -> tuple[bool, str]:
    """`bazel build` in the image of a plan within the same memory, with any number of jobs: was it killed?"""
    folder.mkdir()
    flags = [
        *plan["bazel_flags"],
        "--repository_cache=/tf/cache/repository",
        "--jobs=200",
        "--local_cpu_resources=200",
    ]
    engine = DockerEngine(workshop.host)
    container = engine.create(
        ContainerSpec(
            name=f"tfdock-tests-{os.getpid()}-plain",
            image=plan["image"]["name"],
            command=(
                "bash",
                "-c",
                'bazel "$@"',
                "bash",
                *plan["startup_options"],
                "build",
                *flags,
                "--",
                *plan["targets"],
            ),
            environment={**plan["container_environment"], **plan["environment"]},
            mounts=(
                Mount(source=str(folder), target="/tf/output"),
                Mount(source=str(workshop.cache / "repository"), target="/tf/cache/repository"),
            ),
            labels={RUN_LABEL: "plain"},
            user=f"{os.getuid()}:{os.getgid()}",
            workdir="/tf/tensorflow",
            network="host",
            memory=TIGHT,
        )
    )
    try:
        engine.start(container)
        said = b"".join(engine.follow(container)).decode(errors="replace")
        state = engine.state(container)
        assert state is not None
        assert state.exit_code != 0, said
        return engine.memory_killed(container), said
    finally:
        engine.remove(container)


def test_where_plain_bazel_dies_of_memory_the_second_try_ends_with_a_wheel(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    limits = {"jobs": 2, "memory": "1536MiB"}
    profile = write_profile(tmp_path / "hungry.yaml", workshop.tree(), bazel=HUNGRY, resources=limits)
    outcome = tfdock.build(profile, code=0)
    assert outcome.build["attempts"] == 2
    assert "compiling again with 1 from the cache" in outcome.stderr
    assert tfdock.visible == published(outcome.build)
    first, second = record_of(outcome.build)["resources"]
    assert (first["jobs"], second["jobs"]) == (2, 1)
    assert first["memory"] == second["memory"] == TIGHT
    assert "the kernel killed a compiler of phase compile because memory ran out: 2 jobs in 1.5 GiB" in first["ended"]
    assert second["ended"] == "well"

    plan = tfdock.run("plan", "--json", profile).document
    was_killed, said = plainly(workshop, plan, tfdock.home / "plain")
    assert was_killed, said
    assert "Killed signal terminated program cc1plus" in said


@pytest.mark.usefixtures("finished")
def test_left_to_itself_it_takes_no_more_jobs_than_fit_and_other_limits_change_no_action(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    outcome = tfdock.build(
        write_profile(tmp_path / "small.yaml", workshop.tree(), resources={"memory": "1600MiB"}), code=0
    )
    assert outcome.build["attempts"] == 1
    (limits,) = record_of(outcome.build)["resources"]
    assert (limits["jobs"], limits["heap"]) == (1, 800 * MIB)
    assert outcome.build["cache"]["executed"] == 0, "another heap, other jobs, and all of it came from the cache"


# --- time ---------------------------------------------------------------------------------------------------------


def waiting_for(file: str) -> dict[str, object]:
    """The last action of the build waits for a file in the repository cache."""
    wait = f"    import time\n    while not os.path.exists('/tf/cache/repository/{file}'):\n        time.sleep(0.1)\n"
    return {PACKER: replaced("def main():\n", f"def main():\n{wait}")}


def test_the_time_limit_stops_a_build_cleanly_and_the_same_command_goes_on(
    tfdock: Tfdock, edited: EditedTree, workshop: Workshop
) -> None:
    door = workshop.cache / "repository" / f"{tfdock.home.name}-go"
    profile = edited(waiting_for(door.name), resources={"time_limit": "100h"})
    # How long it takes to come to the last action: the next time less, because all before it is in the cache.
    first = compiling(tfdock, profile, "Packing tensorflow_miniature")
    first.signal(signal.SIGINT)
    limit = int(first.finish().seconds) + 5
    stopped = tfdock.build("--time-limit", f"{limit}s", profile)
    problem = failed_in(
        "compile", stopped, 8, "time-limit", f"of {limit} s was reached", "run the same command again"
    )
    assert " of 25 actions; finished work stays in the cache" in problem["message"]
    assert tfdock.visible == []
    door.touch()
    try:
        again = tfdock.build("--time-limit", "4m", profile)
    finally:
        door.unlink()
    assert again.code == 0, again.told
    assert again.build["cache"]["hits"] > again.build["cache"]["executed"] > 0


# --- disk ---------------------------------------------------------------------------------------------------------

FILLING = """    import time
    free = lambda: (lambda disk: disk.f_bavail * disk.f_frsize)(os.statvfs("."))
    with open("filling", "wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            time.sleep(0 if free() > 32 << 20 else 0.2)
"""


def test_a_disk_that_fills_stops_the_build_before_it_is_full(
    tfdock: Tfdock, edited: EditedTree, workshop: Workshop, tmp_path: Path
) -> None:
    profile = edited({PACKER: replaced("def main():\n", f"def main():\n{FILLING}")}, resources={"disk": "1M"})
    cache = tmp_path / "cache"
    with small_disk(cache, "256m"):
        copy_cache(workshop.cache, cache, ["repository"])
        least: list[int] = []
        running = replace(tfdock, cache=cache).start("build", "--json", profile)
        while running.process.poll() is None:
            least.append(shutil.disk_usage(cache).free)
            time.sleep(0.05)
        outcome = running.finish()
        problem = failed_in("compile", outcome, 8, "disk-full", f"before the disk of the cache ({cache}) was full")
        assert "tfdock cache prune" in problem["fix"]
        assert "docker system prune" not in problem["fix"], "the engine's data is on another disk"
        assert "of 256.0 MiB left" in problem["message"]
        assert 0 < min(least) < 256 * MIB // 20
        assert "No space left on device" not in Path(outcome.build["log"]).read_text()
        assert tfdock.leftovers == []
        assert shutil.disk_usage(cache).free > 256 * MIB // 20, "what only this run needed is gone"


# --- several builds -----------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What containers of a wheelhouse were allowed and held, added up, and how many there were at a time."""

    allowed: int = 0
    held: int = 0
    count: int = 0
    samples: int = 0
    names: set[str] = field(default_factory=set)


@contextlib.contextmanager
def watching(workshop: Workshop, tfdock: Tfdock) -> Iterator[Seen]:
    """Look at the containers of a command's runs all the time; what is seen are the peaks."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        while not over.is_set():
            ours = [one for one in workshop.sdk.containers(filters={"label": RUN_LABEL}) if is_ours(one)]
            allowed = held = 0
            for one in ours:
                with contextlib.suppress(Exception):  # it has just ended
                    allowed += workshop.sdk.inspect_container(one["Id"])["HostConfig"]["Memory"]
                    held += workshop.sdk.stats(one["Id"], stream=False, one_shot=True)["memory_stats"]["usage"]
            seen.allowed, seen.held = max(seen.allowed, allowed), max(seen.held, held)
            seen.count, seen.samples = max(seen.count, len(ours)), seen.samples + 1
            over.wait(0.05)

    def is_ours(container: Json) -> bool:
        return any(mount.get("Source", "").startswith(str(tfdock.home)) for mount in container["Mounts"])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("bazel", ["played", "real"])
def test_four_profiles_at_once_stay_within_the_memory_that_they_share(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path, bazel: str
) -> None:
    cap = 7 * GIB
    # A cache of its own: else an earlier test has compiled some of it.
    command = replace(tfdock, cache=tfdock.home / "cache").with_variables(TFDOCK_MEMORY="7GiB", TFDOCK_CPUS="2")
    fields: list[dict[str, object]] = [{"compute_capabilities": [name]} for name in ("sm_75", "sm_80", "sm_90")]
    fields.append(CPU)
    if bazel == "played":
        fields = [{**PLAYED_BUILD, "optimize": cpu} for cpu in ("portable", ["avx"], ["avx2"], ["avx2", "fma"])]
    tree = workshop.tree("played" if bazel == "played" else "hermetic")
    profiles = [write_profile(tmp_path / f"{number}.yaml", tree, **one) for number, one in enumerate(fields)]
    # One that is played back is so quick that it would be alone.
    gate = CacheFolder.opened(command.cache).repository / "hold-compile"
    gate.parent.mkdir()
    gate.touch()
    with watching(workshop, command) as seen:
        running = command.start("build", "--json", "-j", "4", *profiles)
        running.until(lambda: seen.count > 1, WHOLE)
        gate.unlink()
        outcome = running.finish()
    assert outcome.code == 0, outcome.told
    assert [build["profile"] for build in outcome.builds] == [str(path) for path in profiles]
    assert sorted(name for build in outcome.builds for name in published(build)) == command.visible
    assert "4 builds, 4 at a time" in outcome.stderr

    assert 0 < seen.held <= seen.allowed <= cap - GIB, f"{seen}"
    records = [record_of(build) for build in outcome.builds]
    first_share = (cap - GIB) // 4
    assert all(one["memory"] >= first_share for record in records for one in record["resources"])
    assert all(one["jobs"] <= 2 for record in records for one in record["resources"])
    # The toolchain's layers were made once, if at all: the others found them.
    logs = [Path(build["log"]).read_text() for build in outcome.builds]
    assert sum(bool(re.search(r"RUN .*/toolchain\.sh.*\n ---> Running in", log)) for log in logs) <= 1
    # What is not for a GPU was compiled by whoever came first, as far as the others had not begun it themselves.
    for line in outcome.stderr.splitlines():
        if " done in " in line or "…" in line:
            assert line.startswith("tf99.18.0"), "each line says whose it is"


def test_ctrl_c_stops_all_builds_that_run_side_by_side(tfdock: Tfdock, edited: EditedTree, tmp_path: Path) -> None:
    slow = edited(SLOW_COMPILE)
    other = write_profile(tmp_path / "other.yaml", tmp_path / "edited", compute_capabilities=["sm_80"])
    third = write_profile(tmp_path / "third.yaml", tmp_path / "edited", compute_capabilities=["sm_90"])
    running = tfdock.start("build", "--json", "-j", "2", slow, other, third)
    running.until(lambda: sum(one.count("relu_op.cc") > 0 for one in logs(tfdock)) == 2, WHOLE)
    outcome = running.end_by(signal.SIGINT, 30, code=130)
    assert [build["status"] for build in outcome.builds] == ["interrupted"] * 3
    assert tfdock.visible == []


def logs(tfdock: Tfdock) -> list[str]:
    """What compile phases have said so far."""
    texts = [log.read_text(errors="replace") for log in tfdock.wheelhouse.glob(".tfdock/*/*/*.log")]
    return [text.partition("=== tfdock: compile")[2] for text in texts]
