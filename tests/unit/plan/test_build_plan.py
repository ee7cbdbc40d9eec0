"""What is run, to the last flag; what it may use; and what makes it the same build."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tfdock.errors import Incompatible
from tfdock.knowledge.contract import bazel_options
from tfdock.plan.build_plan import (
    as_json,
    described_toolchain,
    through_mirror,
    toolchain_key,
)
from tfdock.plan.planning import fingerprint
from tfdock.plan.render import BuildContext
from tfdock.profile.profile import Verify
from tfdock.profile.units import parse_bytes, parse_seconds
from tfdock.resolve.resolution import Resolution
from tfdock.types import ImageRef, Machine, Source

from ..desk import GIB, Desk, problem_of

MIB = 1 << 20
HEAD = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\n'
DIGEST = "sha256:" + "ab" * 32


# --- fingerprint ----------------------------------------------------------------------------------------------------


def git(**changes: Any) -> Source:
    return replace(Source(kind="git", location="https://x/y.git", refs=("v1",), commit="c" * 40), **changes)


Change = Callable[[Resolution], Resolution]
CHANGES: dict[str, Change] = {
    "version": lambda one: replace(one, version=replace(one.version, text="2.18.1")),
    "python": lambda one: replace(one, python="3.12"),
    "bazel": lambda one: replace(one, bazel="6.5.1"),
    "component's version": lambda one: replace(one, components={**one.components, "cuda": "12.5.0"}),
    "further component": lambda one: replace(one, components={**one.components, "nccl": "2"}),
    "targets": lambda one: replace(one, targets=("sm_86", "sm_90")),
    "order of targets": lambda one: replace(one, targets=tuple(reversed(one.targets))),
    "base": lambda one: replace(one, base=ImageRef("another/image", tag="1")),
    "base's digest": lambda one: replace(one, base=replace(one.base, digest=DIGEST)),
    "environment's value": lambda one: replace(one, environment={**one.environment, "TF_NEED_CUDA": "0"}),
    "environment's name": lambda one: replace(one, environment={**one.environment, "NEW": ""}),
    "flags": lambda one: replace(one, flags=(*one.flags, "--keep_going")),
    "order of flags": lambda one: replace(one, flags=tuple(reversed(one.flags))),
    "startup options": lambda one: replace(one, startup=("--batch",)),
    "packing command": lambda one: replace(one, package=("pack",)),
    "Bazel target": lambda one: replace(
        one, release=one.release.model_copy(update={"wheel": one.release.wheel.model_copy(update={"target": "//:x"})})
    ),
    "wheel's name": lambda one: replace(one, wheel_name="other"),
    "local version": lambda one: replace(one, local_version="mine"),
    "commit": lambda one: replace(one, source=git(commit="d" * 40)),
    "patches": lambda one: replace(one, source=git(patches={"a": b"x"})),
    "patches' bytes": lambda one: replace(one, source=git(patches={"a": b"y"})),
    "order of patches": lambda one: replace(one, source=git(patches={"a": b"y", "b": b"x"})),
    "other order of patches": lambda one: replace(one, source=git(patches={"b": b"x", "a": b"y"})),
    "unpinned refs": lambda one: replace(one, source=git(commit=None)),
    "other unpinned refs": lambda one: replace(one, source=git(commit=None, refs=("v1", "v2"))),
    "archive": lambda one: replace(one, source=Source(kind="archive", location="https://x", sha256="e" * 64)),
    "another archive": lambda one: replace(one, source=Source(kind="archive", location="https://x", sha256="f" * 64)),
    "a tree": lambda one: replace(one, source=tree("x")),
    "another tree": lambda one: replace(one, source=Source(kind="path", location="x", sha256="f" * 64)),
}


@pytest.fixture
def resolution(desk: Desk) -> Resolution:
    return replace(desk.resolve(GPUS), source=git())


CONTEXT = BuildContext(files={"Dockerfile": b"FROM x\n", "tfdock/environment": b"A=1\n"})


FILES: dict[str, dict[str, bytes]] = {
    "a byte": {"Dockerfile": b"FROM x \n", "tfdock/environment": b"A=1\n"},
    "a file less": {"Dockerfile": b"FROM x\n"},
    "a name": {"Dockerfile": b"FROM x\n", "tfdock/environ": b"A=1\n"},
    "exchanged": {"Dockerfile": b"A=1\n", "tfdock/environment": b"FROM x\n"},
}


def test_what_decides_the_wheels_bytes_gives_a_fingerprint_of_its_own(resolution: Resolution) -> None:
    prints = {"none": fingerprint(resolution, CONTEXT)}
    prints |= {name: fingerprint(change(resolution), CONTEXT) for name, change in CHANGES.items()}
    prints |= {name: fingerprint(resolution, BuildContext(files=files)) for name, files in FILES.items()}
    owners: dict[str, list[str]] = {}
    for name, found in prints.items():
        owners.setdefault(found, []).append(name)
    assert [names for names in owners.values() if len(names) > 1] == []


def tree(place: str) -> Source:
    return Source(kind="path", location=place, sha256="e" * 64)


SAME: dict[str, Change] = {
    "reasons": lambda one: replace(one, choices=(), untested=()),
    "the refs of a known commit": lambda one: replace(one, source=git(refs=("another", "names"), official=True)),
    "order of the environment": lambda one: replace(one, environment=dict(reversed([*one.environment.items()]))),
    "order of components": lambda one: replace(one, components=dict(reversed([*one.components.items()]))),
    "the image to try it in": lambda one: replace(one, runtime=ImageRef("python", tag="3.11"), runtime_asked=True),
    "how it is checked": lambda one: replace(one, verify=Verify(run=False, gpu_code="relaxed")),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_does_not_decide_the_wheels_bytes_is_not_in_the_fingerprint(
    resolution: Resolution, change: Change
) -> None:
    assert fingerprint(change(resolution), CONTEXT) == fingerprint(resolution, CONTEXT)


def test_where_a_hashed_source_lies_is_not_in_the_fingerprint(resolution: Resolution) -> None:
    assert len({fingerprint(replace(resolution, source=tree(place)), CONTEXT) for place in ("../a", "/b")}) == 1


GPUS = HEAD + "gpus: [rtx3080, a100]\n"
OTHER_WORDS = {
    "comments and blank lines": HEAD + "gpus: [rtx3080, a100] # my cards\n\n",
    "order of keys": 'gpus: [rtx3080, a100]\npython: "3.11"\ntensorflow: "2.18.0"\nschema: 1\n',
    "order of GPUs": HEAD + "gpus: [a100, rtx3080, rtx3080]\n",
    "other words for the same": HEAD + "compute_capabilities: [sm_86, sm_80]\n",
    "defaults written out": GPUS + "cuda: '12.5.1'\ncompiler: clang\nxla: true\n",
    "resources": GPUS + "resources: {jobs: 3, memory: 9G, cpus: 2, disk: 1G}\n",
    "time limit": GPUS + "resources: {time_limit: 5h}\n",
    "leave to try the untested": GPUS + "allow_untested: true\n",
}


@pytest.mark.parametrize("text", OTHER_WORDS.values(), ids=OTHER_WORDS)
def test_two_ways_to_say_the_same_are_one_build(desk: Desk, text: str) -> None:
    one, other = desk.plan(GPUS), desk.plan(text)
    assert (other.build_id, other.fingerprint) == (one.build_id, one.fingerprint)


@pytest.mark.parametrize(
    "text",
    [
        "xla: false",
        "optimize: native",
        "debug: true",
        "bazel: {copts: [-O3]}",
        "host_compiler: {name: gcc, path: /x}",
    ],
)
def test_what_a_profile_asks_for_reaches_the_fingerprint(desk: Desk, text: str) -> None:
    assert desk.plan(f"{HEAD}{text}\n").fingerprint != desk.plan(HEAD).fingerprint


def test_a_fingerprint_is_a_sha256_and_names_the_image(desk: Desk) -> None:
    plan = desk.plan(HEAD)
    assert len(plan.fingerprint) == 64
    assert int(plan.fingerprint, 16)
    assert plan.image_name == f"tfdock/tf2.18.0-py3.11-cpu-x86_64:{plan.fingerprint[:12]}"
    assert str(ImageRef.parse(plan.image_name)) == plan.image_name


# --- toolchain key --------------------------------------------------------------------------------------------------


def test_the_toolchain_key_is_short_hexadecimal_always_the_same_and_another_for_other_tools() -> None:
    # Written down: a key that changes by itself throws everybody's disk cache away.
    assert toolchain_key(b"bazel 6.5.0\n") == "465ced34f48cb214"
    others = (b"bazel 6.5.0\n", b"bazel 6.5.1\n", b"", b"bazel 6.5.0\nfiles 12\n")
    assert len({toolchain_key(toolchain) for toolchain in others}) == len(others)


def test_a_toolchain_is_described_for_people() -> None:
    lines = ["bazel 6.5.0", "package gcc 12.2 amd64", "package g++ 12.2 amd64", "tool /usr/bin/gcc 12ab"]
    text = "\n".join([*lines, "cachebuster DOCKER_CACHEBUSTER", "files 34cd", "", "strange"])
    assert described_toolchain(text.encode()) == {
        "bazel": "6.5.0",
        "tools": ["/usr/bin/gcc"],
        "packages": 2,
        "cachebusters": ["DOCKER_CACHEBUSTER"],
    }
    assert described_toolchain(b"\xff")["bazel"] is None


# --- resources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "memory", "asked", "jobs", "container"),
    [
        # 2.18 wants 2560 MiB a job, 3072 MiB a large link; 1 GiB stays with the machine, 1 to 4 GiB are Bazel's own.
        pytest.param(8, 32 * GIB, "", 8, 31 * GIB, id="8 cores and 32 GiB: cores decide"),
        pytest.param(8, 8 * GIB, "", 2, 7 * GIB, id="8 cores and 8 GiB: memory decides"),
        pytest.param(64, 64 * GIB, "", 23, 63 * GIB, id="64 cores and 64 GiB: memory decides"),
        pytest.param(2, 4 * GIB, "", 1, 3 * GIB, id="2 cores and 4 GiB"),
        pytest.param(1, 1 * GIB, "", 1, GIB // 2, id="1 core and 1 GiB: half of it, one job"),
        pytest.param(8, 32 * GIB, "jobs: 3", 3, 31 * GIB, id="jobs asked"),
        pytest.param(8, 32 * GIB, "jobs: 100", 100, 31 * GIB, id="too many jobs asked"),
        pytest.param(8, 32 * GIB, "memory: 6GiB", 1, 6 * GIB, id="memory asked, too little for a link and a job"),
        pytest.param(8, 32 * GIB, "memory: 7GiB", 2, 7 * GIB, id="memory asked"),
        pytest.param(8, 32 * GIB, "cpus: 4", 4, 31 * GIB, id="cores asked"),
        pytest.param(8, 32 * GIB, "memory: 3584M", 1, 3584 * MIB, id="as little memory as may be"),
    ],
)
def test_jobs_follow_from_cores_and_memory(
    desk: Desk, cpus: int, memory: int, asked: str, jobs: int, container: int
) -> None:
    plan = desk.plan(f"{HEAD}resources: {{{asked}}}\n", machine=Machine(cpus=cpus, memory=memory))
    assert (plan.resources.jobs, plan.resources.memory) == (jobs, container)
    assert f"--jobs={jobs}" in plan.local_flags


def test_disk_and_time_come_from_the_release_or_the_profile(desk: Desk) -> None:
    by_default = desk.plan(HEAD).resources
    assert (by_default.disk, by_default.time_limit) == (60 * GIB, None)
    asked = desk.plan(HEAD + "resources: {disk: 90GB, time_limit: 1h30m}\n").resources
    assert (asked.disk, asked.time_limit) == (90 * GIB, 5400)


def test_memory_in_which_bazel_itself_cannot_live_is_refused(desk: Desk) -> None:
    problem = problem_of(lambda: desk.plan(HEAD + "resources: {memory: 3583MiB}\n"), Incompatible)
    assert (problem.code, problem.field) == ("memory-too-small", "resources.memory")
    assert problem.fix == "give at least 3584MiB; or `resources: {memory: auto}`"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("1K", 1024), ("1KiB", 1024), ("512MiB", 512 * MIB), ("512M", 512 * MIB), ("24GiB", 24 * GIB),
     ("24GB", 24 * GIB), ("24 G", 24 * GIB), ("1.5GiB", 3 * GIB // 2), ("2T", 2048 * GIB), ("0.5 TiB", 512 * GIB)],
)  # fmt: skip
def test_amounts_of_memory_are_binary(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("10m", 600), ("5h", 18000), ("5h30m", 19800), ("1h1m1s", 3661), ("0h90m", 5400)]
)
def test_durations_are_hours_minutes_and_seconds(text: str, value: int) -> None:
    assert parse_seconds(text) == value


# --- Bazel by version -----------------------------------------------------------------------------------------------

VALUES = {"path": "/c", "jobs": 4, "cpus": 8, "memory_mib": 100}
OLD_RESOURCES = ("--local_resources=100,8,1.0", "--jobs=4")
NEW_RESOURCES = ("--local_ram_resources=100", "--local_cpu_resources=8", "--jobs=4")
LOCAL_CACHE = ("--experimental_local_disk_cache", "--experimental_local_disk_cache_path=/c")


OLD_REPOSITORY, REPOSITORY = ("--experimental_repository_cache=/c",), ("--repository_cache=/c",)
DISK, EVENTS = ("--disk_cache=/c",), ("--build_event_json_file=/c",)


@pytest.mark.parametrize(
    ("bazel", "expected"),
    [
        ("0.5.4", [(), OLD_REPOSITORY, OLD_RESOURCES, ()]),
        ("0.8.0", [LOCAL_CACHE, OLD_REPOSITORY, OLD_RESOURCES, ()]),
        ("0.13.0", [LOCAL_CACHE, OLD_REPOSITORY, OLD_RESOURCES, ()]),
        ("0.13.1", [LOCAL_CACHE, OLD_REPOSITORY, OLD_RESOURCES, ()]),
        ("0.14.0", [DISK, OLD_REPOSITORY, OLD_RESOURCES, EVENTS]),
        ("0.26.1", [DISK, REPOSITORY, NEW_RESOURCES, EVENTS]),
        ("4.2.3", [DISK, REPOSITORY, NEW_RESOURCES, EVENTS]),
        ("7.4.1", [DISK, REPOSITORY, NEW_RESOURCES, EVENTS]),
    ],
)
def test_each_bazel_is_told_in_words_that_it_knows(desk: Desk, bazel: str, expected: list[tuple[str, ...]]) -> None:
    purposes = ("disk_cache", "repository_cache", "resources", "events", "levitation")
    assert [bazel_options(desk.knowledge, bazel, name, VALUES) for name in purposes] == [*expected, ()]


# --- phases ---------------------------------------------------------------------------------------------------------


def sections(command: tuple[str, ...]) -> list[list[str]]:
    """What phase.sh makes of its arguments behind the phase's name."""
    found: list[list[str]] = [[]]
    for word in command[3:]:
        if word == "--":
            found.append([])
        else:
            found[-1].append(word)
    return found


def test_only_the_fetch_has_a_network_and_only_the_compile_a_staging_folder(desk: Desk) -> None:
    fetch, compile_ = desk.plan(HEAD).phases
    assert (fetch.name, fetch.network, compile_.name, compile_.network) == ("fetch", True, "compile", False)
    assert "{staging}" not in [mount.source for mount in fetch.mounts]
    sources = ["{output}", "{cache}/repository", "{cache}/disk/{toolchain}", "{staging}"]
    assert [mount.source for mount in compile_.mounts] == sources
    assert all(mount.target.startswith("/tf/") for mount in compile_.mounts)
    assert [mount.source for mount in compile_.mounts if mount.read_only] == ["{cache}/repository"]


@pytest.mark.parametrize(
    ("bazel", "options"),
    [
        ("0.24.1", ()),
        ("0.26.1", ("--http_timeout_scaling=4",)),
        ("4.2.1", ("--http_timeout_scaling=4",)),
        ("5.0.0", ("--http_timeout_scaling=4", "--experimental_repository_downloader_retries=5")),
    ],
)
def test_only_a_bazel_that_knows_them_is_told_to_retry_downloads(
    desk: Desk, bazel: str, options: tuple[str, ...]
) -> None:
    assert bazel_options(desk.knowledge, bazel, "fetch", {}) == options


def test_a_bazel_that_can_asks_the_mirror_first_and_an_older_one_is_left_alone(desk: Desk) -> None:
    fetch = desk.plan(HEAD).fetch
    assert through_mirror(fetch, "https://m.example", "3.7.2", desk.knowledge) == fetch
    shell, option, script, mirror, *words = through_mirror(
        fetch, "https://m.example", "4.2.1", desk.knowledge
    ).command
    assert (shell, option, mirror) == ("/bin/sh", "-c", "https://m.example")
    told = [word for word in words if word not in fetch.command]
    assert told == ["--experimental_downloader_config=/tmp/tfdock-mirror"]
    assert sections(tuple(words))[1][0] == told[0], "the profile's own flags win"
    file = script.partition("; exec")[0].replace("/tmp/tfdock-mirror", "/dev/stdout")
    printed = subprocess.run([shell, option, file, mirror], capture_output=True, text=True, check=True).stdout
    assert printed == "rewrite (.*) https://m.example/$1\nrewrite (.*) $1\n"


def test_both_phases_ask_bazel_for_the_same_build(desk: Desk) -> None:
    plan = desk.plan(HEAD + "bazel: {startup: [--host_jvm_args=-Xmx2g], flags: [--keep_going]}\n")
    fetch, compile_ = (sections(phase.command) for phase in plan.phases)
    told = [
        "--disk_cache=/tf/cache/disk",
        "--build_event_json_file=/tf/staging/events.json",
        "--noexperimental_slim_json_profile",
        "--profile=/tf/staging/profile.gz",
    ]
    startup, flags = [*plan.local_startup_options, *plan.startup_options], [*plan.bazel_flags, *plan.local_flags]
    fetching = ["--http_timeout_scaling=4", "--experimental_repository_downloader_retries=5"]
    assert fetch == [startup, fetching + flags, list(plan.targets)]
    assert compile_ == [startup, flags + told, fetch[2], list(plan.package)]
    assert plan.startup_options[-1] == "--host_jvm_args=-Xmx2g"
    assert plan.bazel_flags[-1] == "--keep_going"
    assert [phase.command[:3] for phase in plan.phases] == [
        ("/bin/bash", "/opt/tfdock/phase.sh", "fetch"),
        ("/bin/bash", "/opt/tfdock/phase.sh", "compile"),
    ]


def test_a_bazel_that_cannot_write_a_profile_is_not_asked_to(desk: Desk) -> None:
    plan = desk.plan('schema: 1\ntensorflow: "1.4.1"\naccelerator: cpu\nallow_untested: true\n')
    assert "profile" not in " ".join(plan.compile.command)


def test_containers_get_nothing_of_the_callers_environment(desk: Desk) -> None:
    assert as_json(desk.plan(HEAD))["container_environment"] == {
        "HOME": "/tmp", "USER": "tfdock", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "315532800",
    }  # fmt: skip


def test_a_source_without_refs_is_tried_once(desk: Desk) -> None:
    git_source = 'schema: 1\npython: "3.11"\ntensorflow: {release: "2.18.0", ref: a, fallback: [b]}\n'
    assert desk.plan(git_source).source_refs == ("a", "b")
    assert desk.plan(git_source.replace("ref: a, fallback: [b]", "path: x")).source_refs == (None,)


def test_a_plan_is_the_same_every_time_and_prints_as_json(desk: Desk) -> None:
    plan = desk.plan(HEAD)
    assert desk.plan(HEAD) == plan
    document = as_json(plan)
    assert json.loads(json.dumps(document)) == document
    promised = {
        "build_id", "fingerprint", "image", "environment", "startup_options", "bazel_flags", "targets", "mounts",
        "resources", "choices", "container_environment",
    }  # fmt: skip
    assert promised <= set(document)


def test_what_is_untested_is_told_in_the_plan(desk: Desk) -> None:
    plan = desk.plan(HEAD + "gpus: [rtx3080]\ncuda: '12.6.1'\nallow_untested: true\n")
    assert as_json(plan)["untested"] == [
        "CUDA 12.6.1 was added to the source of TensorFlow 2.18 at about the time of the release"
    ]
