"""Builds that do not end well: the exit code, one clear error, no half wheel, and a next run that works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tfdock.engine.protocol import RUN_LABEL

from .conftest import AsUser, EditedTree, Workshop
from .harness import (
    CPU,
    PLAYED_BUILD,
    REPOSITORY,
    WHOLE,
    Json,
    Outcome,
    Running,
    Tfdock,
    after_first_line,
    before,
    closed_port,
    copy_tree,
    published,
    replaced,
    silent_server,
    small_disk,
    write_profile,
)

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

KERNEL = "tensorflow/core/kernels/relu_op.cc"
SLOW_CONFIGURE = {"configure": after_first_line("echo configure is slow; sleep 300")}
SLOW_COMPILE = {KERNEL: before("#define MINIATURE_SLOW_COMPILE 300\n")}
PACKAGE = "tensorflow/tools/pip_package/BUILD"
PACKER = "tensorflow/tools/pip_package/build_pip_package.py"
#: What is sealed has to be a large wheel.
BIG_WHEEL = {
    "played/bazel.py": replaced(
        "    shutil.copy(wheel, folder)\n",
        """
    import base64, os, zipfile
    big = os.urandom(80 << 20)
    digest = base64.urlsafe_b64encode(hashlib.sha256(big).digest()).rstrip(b"=")
    with zipfile.ZipFile(wheel) as small, zipfile.ZipFile(folder / wheel.name, "w") as packed:
        for name in small.namelist():
            line = b"tensorflow/big.so,sha256=%s,%d\\n" % (digest, len(big)) if name.endswith("/RECORD") else b""
            packed.writestr(name, line + small.read(name))
        packed.writestr("tensorflow/big.so", big)
""",
    )
}


def slow_fetch(address: str) -> dict[str, Any]:
    """The one download, from a server that does not answer, and as something that no cache has."""
    return {
        "WORKSPACE": lambda text: text.replace("127.0.0.1:5552", address).replace('sha256 = "8', 'sha256 = "0'),
    }


def failed(outcome: Outcome, code: int, *words: str) -> Json:
    """The one problem of a build that ended with that exit code; it holds all these words, and says what is next."""
    assert outcome.code == code, outcome.told
    assert outcome.document["ok"] is False
    problem = outcome.problem
    for word in words:
        assert word in f"[{problem['code']}] {problem['message']} {problem['fix']}", outcome.told
    assert problem["fix"]
    assert outcome.build["wheels"] == []
    assert outcome.stderr.count("error:") == 1, outcome.told
    assert "Traceback" not in outcome.stderr
    return problem


def failed_in(phase: str, outcome: Outcome, code: int, *words: str) -> Json:
    """As `failed`, in a phase: then the problem names the phase and a log that is there."""
    problem = failed(outcome, code, f"phase {phase}", *words)
    log = outcome.build["log"]
    assert f"log: {log}" in problem["message"]
    assert f"=== tfdock: {phase} of " in Path(log).read_text()
    return problem


# Where an engine, a network or a disk fails, or a build is stopped, Bazel is played back. `edited` has the real one.
@pytest.fixture
def profile(played: EditedTree) -> Path:
    return played({}, name="profile")


# --- what the build itself does wrong -----------------------------------------------------------------------------


def test_a_compile_error_is_one_error_with_phase_first_line_log_and_next_command_and_stops_no_other_profile(
    tfdock: Tfdock, edited: EditedTree, profile: Path, tmp_path: Path
) -> None:
    broken = edited({KERNEL: before("#define MINIATURE_FAIL_COMPILE\n")}, **CPU)
    refused = write_profile(tmp_path / "refused.yaml", tmp_path, compute_capabilities=["sm_20"])
    outcome = tfdock.build(broken, refused, profile, code=1)
    by_name = {Path(build["profile"]).name: build for build in outcome.builds}
    assert by_name["profile.yaml"]["status"] == "built"
    assert by_name["refused.yaml"]["status"] == "refused"
    assert tfdock.visible == published(by_name["profile.yaml"])
    assert outcome.stderr.replace("error: #error", "").count("error:") == 2

    (problem,) = by_name["edited.yaml"]["problems"]
    assert by_name["edited.yaml"]["status"] == "failed"
    assert problem["code"] == "compile-failed"
    assert "phase compile" in problem["message"]
    (compiler_error,) = problem["compiler_errors"]
    place = r"tensorflow/core/platform/compile_faults.h:\d+:2"
    assert re.fullmatch(rf"{place}: error: #error .*was asked to\"", compiler_error)
    assert f"(exit status 1) in phase compile: {compiler_error}\n" in problem["message"]
    assert "executing command" not in problem["message"]
    assert "compile_faults.h" in outcome.stderr
    assert f"log: {by_name['edited.yaml']['log']}" in problem["message"]
    assert "tfdock shell" in problem["fix"]
    assert "MINIATURE_FAIL_COMPILE is defined" in Path(by_name["edited.yaml"]["log"]).read_text()


def test_a_fetch_names_what_bazel_cannot_analyse_and_goes_on_with_the_next_profile(
    tfdock: Tfdock, edited: EditedTree, profile: Path
) -> None:
    renamed = edited({PACKAGE: replaced('name = "wheel"', 'name = "wheels"')}, **CPU)
    outcome = tfdock.run("fetch", renamed, profile, "--json", code=1)
    broken, sound = outcome.builds
    assert [(row["profile"], row["status"]) for row in (broken, sound)] == [
        (str(renamed), "failed"),
        (str(profile), "fetched"),
    ]
    (problem,) = broken["problems"]
    assert problem["code"] == "fetch-failed"
    assert "no such target '//tensorflow/tools/pip_package:wheel'" in problem["message"]
    assert tfdock.visible == []


def test_a_configure_that_fails_is_named_with_what_it_said(tfdock: Tfdock, played: EditedTree) -> None:
    outcome = tfdock.build(played({"configure": after_first_line("echo 'tfdock: no such compiler'; exit 3")}))
    failed_in("image", outcome, 1, "image-step-failed", "configure.sh", "no such compiler", "tfdock render")


@pytest.mark.parametrize(
    ("find", "told"),
    [("Configuration finished", "it was edited"), ("never", "edit-1 is not for this source: configure")],
)
def test_an_edit_of_the_knowledge_is_made_in_the_image_or_ends_its_build(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path, find: str, told: str
) -> None:
    fails = {"id": "x", "tensorflow": "99.18", "outcome": "fails", "accelerator": "cpu", "at": "here", "source": "me"}
    edit = {"edit": "edit-1", "mends": "x", "tensorflow": "99.18", "file": "configure", "source": "me"}
    change = {"find": find, "put": 'tfdock: it was edited"; false "'}
    for table, row in {"evidence": fails, "edits": edit | change}.items():
        rows = {"checked": "2026-11-27", "sources": {"me": "me"}, "rows": [row]}
        (tmp_path / f"{table}.yaml").write_text(json.dumps(rows))
    folders = os.pathsep.join([tfdock.environment["TFDOCK_KNOWLEDGE"], str(tmp_path)])
    profile = write_profile(
        tfdock.home / "profile.yaml", workshop.tree("played"), **PLAYED_BUILD, edits="all", allow_untested=True
    )
    outcome = tfdock.with_variables(TFDOCK_KNOWLEDGE=folders).build(profile)
    failed_in("image", outcome, 1, "image-step-failed", told)


def test_a_base_image_with_another_bazel_is_named_with_both_versions(
    tfdock: Tfdock, profile: Path, workshop: Workshop
) -> None:
    write_profile(profile, workshop.tree("played"), **PLAYED_BUILD, bazel={"version": "4.2.4"})
    outcome = tfdock.build(profile)
    failed_in("image", outcome, 1, "Bazel 4.2.4 is wanted, the base image has 4.2.3", "`base:`")
    assert [cause["id"] for cause in outcome.build["diagnosis"]] == ["bazel_version_mismatch"]


def test_a_build_that_ends_without_a_wheel_says_so(tfdock: Tfdock, workshop: Workshop, tmp_path: Path) -> None:
    knowledge = copy_tree(Path(tfdock.environment["TFDOCK_KNOWLEDGE"]), tmp_path / "knowledge")
    rows = (knowledge / "releases.yaml").read_text()
    (knowledge / "releases.yaml").write_text(rows.replace("pip_package/wheel_house", "pip_package/elsewhere"))
    path = write_profile(tmp_path / "profile.yaml", workshop.tree("played"), **PLAYED_BUILD)
    outcome = tfdock.with_variables(TFDOCK_KNOWLEDGE=str(knowledge)).build(path)
    failed_in("compile", outcome, 1, "no wheel")
    assert tfdock.visible == []


def test_more_memory_than_allowed_is_named_as_such(tfdock: Tfdock, edited: EditedTree) -> None:
    hungry = edited({KERNEL: before("#define MINIATURE_HUNGRY_COMPILE 18\n")}, resources={"memory": "1536MiB"})
    outcome = tfdock.build(hungry)
    failed_in(
        "compile", outcome, 8, "out-of-memory", "1.5 GiB", "GiB of memory or more: it runs only one job already"
    )
    assert outcome.build["diagnosis"][0]["id"] == "cc1plus_killed"
    assert tfdock.visible == []


# --- what it cannot reach -----------------------------------------------------------------------------------------


def test_a_real_profile_without_a_registry_fails_as_a_network_error_that_names_it(
    tfdock: Tfdock, tmp_path: Path
) -> None:
    port = closed_port()
    nowhere = tfdock.with_variables(TFDOCK_REGISTRY_MIRROR=f"docker.io={port}", TFDOCK_KNOWLEDGE="")
    # Whether this machine's disk would hold the build is another question.
    small = tmp_path / "small.yaml"
    small.write_text(f"schema: 1\nextends: {REPOSITORY / 'profiles/rtx3080.yaml'}\nresources: {{disk: 1GiB}}\n")
    outcome = nowhere.build(small)
    failed_in("image", outcome, 7, "registry-unreachable", port)
    assert tfdock.visible == []


def test_an_image_that_the_registry_does_not_have_is_a_network_error(
    tfdock: Tfdock, profile: Path, workshop: Workshop
) -> None:
    write_profile(profile, workshop.tree(), base="tensorflow/build:no-such-tag")
    outcome = tfdock.build(profile)
    failed_in("image", outcome, 7, "image-not-found", "no-such-tag")
    assert [cause["id"] for cause in outcome.build["diagnosis"]] == ["manifest_unknown"]


def test_a_source_that_cannot_be_reached_is_a_network_error(tfdock: Tfdock, tmp_path: Path) -> None:
    url = f"http://{closed_port()}/tensorflow.git"
    source = {"release": "99.18.0", "git": url, "ref": "main"}
    outcome = tfdock.build(write_profile(tmp_path / "git.yaml", tensorflow=source))
    failed_in("image", outcome, 7, "source-unreachable", url, "path:")


def test_a_download_that_cannot_be_reached_is_a_network_error_of_phase_fetch(
    tfdock: Tfdock, played: EditedTree
) -> None:
    outcome = tfdock.build(played(slow_fetch(closed_port())))
    failed_in("fetch", outcome, 7, "download-failed", "minimath")
    assert outcome.build["diagnosis"][0]["id"] == "fetch_connection"


def test_no_engine_is_an_error_of_its_own(tfdock: Tfdock, profile: Path) -> None:
    absent = replace(tfdock, engine="unix:///nonexistent/docker.sock").build(profile)
    failed(absent, 6, "engine-unavailable", "/nonexistent/docker.sock", "DOCKER_HOST")
    refusing = replace(tfdock, engine=f"tcp://{closed_port()}").build(profile)
    failed(refusing, 6, "engine-unavailable")


def test_an_engine_that_the_user_may_not_talk_to_is_explained(as_user: AsUser, workshop: Workshop) -> None:
    stranger = as_user(engine=False)
    path = write_profile(stranger.home / "profile.yaml", workshop.tree())
    failed(stranger.build(path), 6, "you have no permission to use the container engine", "group `docker`")


# --- a full disk --------------------------------------------------------------------------------------------------


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(tfdock: Tfdock, profile: Path) -> None:
    with small_disk(tfdock.wheelhouse, "1m"):
        failed(tfdock.build(profile), 8, "disk-too-small", "the wheelhouse", str(tfdock.wheelhouse))
        assert tfdock.visible == []


def test_a_wheelhouse_that_runs_full_is_named_and_holds_no_half_wheel(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    path = write_profile(tmp_path / "profile.yaml", workshop.tree("played"), **PLAYED_BUILD, resources={"disk": "1M"})
    with small_disk(tfdock.wheelhouse, "64k"):
        failed_in("compile", tfdock.build(path), 8, "disk-full", str(tfdock.wheelhouse))
        assert tfdock.visible == []
        assert tfdock.leftovers == []
        subprocess.run(["mount", "-o", "remount,size=160k", str(tfdock.wheelhouse)], check=True)
        failed_in("seal", tfdock.build(path), 8, "disk-full", str(tfdock.wheelhouse))
        assert tfdock.visible == []
        assert tfdock.leftovers == []


def test_a_cache_that_runs_full_is_named(tfdock: Tfdock, workshop: Workshop, tmp_path: Path) -> None:
    path = write_profile(tmp_path / "profile.yaml", workshop.tree("played"), **PLAYED_BUILD, resources={"disk": "1M"})
    cache = tmp_path / "cache"
    with small_disk(cache, "2m"):
        outcome = replace(tfdock, cache=cache).build(path)
        failed(outcome, 8, "disk-full", str(cache), "phase ")


# --- other runs and other files -----------------------------------------------------------------------------------


def log_says(tfdock: Tfdock, text: str) -> bool:
    return any(text in log.read_text(errors="replace") for log in tfdock.wheelhouse.glob(".tfdock/*/*/*.log"))


def compiling(tfdock: Tfdock, profile: Path, sign: str = "Compiling tensorflow/core/kernels/relu_op.cc") -> Running:
    """A build that has come to its endless action."""
    running = tfdock.start("build", "--json", profile)
    running.wait_for("compile …", WHOLE)
    running.until(lambda: log_says(tfdock, sign))
    return running


def own_containers(workshop: Workshop, tfdock: Tfdock) -> list[str]:
    """The containers that write into that wheelhouse."""
    return [
        one["Id"]
        for one in workshop.sdk.containers(filters={"label": RUN_LABEL})
        if any(mount.get("Source", "").startswith(str(tfdock.wheelhouse)) for mount in one["Mounts"])
    ]


def test_a_running_build_locks_its_build_id_and_notices_when_its_container_is_removed(
    tfdock: Tfdock, played: EditedTree, workshop: Workshop
) -> None:
    slow = played(SLOW_COMPILE)
    running = compiling(tfdock, slow)
    second = tfdock.build(slow)
    failed(second, 9, "build-locked", "--wheelhouse")
    (container,) = own_containers(workshop, tfdock)
    workshop.sdk.remove_container(container, force=True)
    failed_in("compile", running.finish(30), 6, "container")
    assert tfdock.visible == []


def test_what_a_killed_run_left_is_cleaned_up_by_the_next_which_builds(
    tfdock: Tfdock, played: EditedTree, profile: Path, workshop: Workshop
) -> None:
    running = compiling(tfdock, played(SLOW_COMPILE))
    assert running.end_by(signal.SIGKILL, 10).code == -signal.SIGKILL
    assert len(own_containers(workshop, tfdock)) == 1, "a container outlives the one that watches it"
    assert tfdock.leftovers != []
    assert tfdock.visible == []
    outcome = tfdock.build(profile, code=0)
    assert "cleaned up after run" in outcome.stderr
    assert own_containers(workshop, tfdock) == []
    assert tfdock.visible == published(outcome.build)


def test_a_wheel_of_that_name_from_elsewhere_is_never_replaced(tfdock: Tfdock, profile: Path) -> None:
    local = tfdock.run("plan", "--json", profile).document["wheel"]["local_version"]
    foreign = tfdock.wheelhouse / f"tensorflow_miniature-99.18.0+{local}-cp311-cp311-linux_x86_64.whl"
    tfdock.wheelhouse.mkdir()
    foreign.write_bytes(b"somebody else's")
    outcome = tfdock.build(profile)
    failed_in("seal", outcome, 4, "wheel-name-taken", foreign.name)
    assert tfdock.visible == [foreign.name]
    assert foreign.read_bytes() == b"somebody else's"


# --- signals ------------------------------------------------------------------------------------------------------

SIGNALS = ((signal.SIGINT, 130), (signal.SIGTERM, 143))


@pytest.fixture
def other(workshop: Workshop) -> Iterator[Tfdock]:
    """A second user of the same cache."""
    command = workshop.tfdock()
    yield command
    assert command.leftovers == []


def interrupted(phase: str, running: list[tuple[Tfdock, Running]], sign: str) -> None:
    """Send each its signal once its log shows the sign; all end soon, in that phase, and the wheelhouse is empty."""

    def send(run: tuple[Tfdock, Running], number: signal.Signals) -> None:
        tfdock, one = run
        one.wait_for(f"{phase} …", WHOLE)
        one.until(partial(log_says, tfdock, sign))
        one.signal(number)

    # Each on its own: one may be through the phase before the other has come to it.
    with ThreadPoolExecutor() as pool:
        list(pool.map(send, running, [number for number, _ in SIGNALS]))
    for (tfdock, one), (_, code) in zip(running, SIGNALS, strict=True):
        outcome = one.finish(15)
        failed_in(phase, outcome, code, "interrupted", "run the same command again")
        assert outcome.build["status"] == "interrupted"
        assert tfdock.visible == []


def test_a_signal_during_a_pull_ends_the_build(tfdock: Tfdock, other: Tfdock, profile: Path) -> None:
    with silent_server() as address:
        mirror = f"docker.io={address}"
        runs = [
            (one, one.with_variables(TFDOCK_REGISTRY_MIRROR=mirror).start("build", "--json", profile))
            for one in (tfdock, other)
        ]
        interrupted("image", runs, "=== tfdock: image")


@pytest.mark.parametrize(
    ("phase", "edits", "sign"),
    [
        pytest.param("image", SLOW_CONFIGURE, "configure is slow", id="image"),
        pytest.param("fetch", slow_fetch, "Reading rc options", id="fetch"),
        pytest.param("compile", SLOW_COMPILE, "Compiling tensorflow/core/kernels/relu_op.cc", id="compile"),
        pytest.param("seal", BIG_WHEEL, "=== tfdock: seal", id="seal"),
    ],
)
def test_a_signal_in_a_phase_ends_the_build_with_nothing_left_but_the_cache(
    tfdock: Tfdock, other: Tfdock, played: EditedTree, phase: str, edits: Any, sign: str
) -> None:
    with silent_server() as address:
        slow = played(edits(address) if callable(edits) else edits)
        runs = [(one, one.start("build", "--json", slow)) for one in (tfdock, other)]
        interrupted(phase, runs, sign)


def test_a_second_ctrl_c_kills_what_does_not_stop_and_the_next_run_goes_on_from_the_cache(
    tfdock: Tfdock, edited: EditedTree
) -> None:
    marked = {KERNEL: before("int of_a_second_ctrl_c() { return 1; }\n")}  # no earlier test has compiled it
    sound = edited(marked, name="sound")
    deaf = "    import signal, time\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(300)\n"
    slow = edited({**marked, PACKER: replaced("def main():\n", f"def main():\n{deaf}")})
    running = tfdock.start("build", "--json", slow, sound)
    running.wait_for("compile …", WHOLE)
    running.until(lambda: log_says(tfdock, "Packing tensorflow_miniature"))
    running.signal(signal.SIGINT)
    running.wait_for("Ctrl-C again kills")
    outcome = running.end_by(signal.SIGINT, 10, code=130)
    assert [build["status"] for build in outcome.builds] == ["interrupted", "interrupted"]
    assert tfdock.visible == []
    after = tfdock.build(sound, code=0)
    assert after.build["cache"]["executed"] == 1, "the packing, which was killed"
