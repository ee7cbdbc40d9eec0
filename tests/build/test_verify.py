"""Wheels in real containers: ours, an official one, and such as are not what they should be."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import docker.errors
import pytest
from waits import FETCH
from wheelhouses import with_record, write_wheel

from tfdock.engine.docker_engine import DockerEngine
from tfdock.errors import NetworkError
from tfdock.host.settings import load
from tfdock.types import ImageRef
from tfdock.verify.trial_plan import GPU, RUN

from .conftest import EditedTree, Finished, Workshop
from .harness import (
    UNTRIED,
    Json,
    Outcome,
    Tfdock,
    contents,
    record_of,
    replaced,
    skip_without_pypi,
    small_disk,
    write_profile,
)

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

CC = "tensorflow/libtensorflow_cc.so.2"
INIT = "tensorflow/__init__.py"
PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "http_proxy", "https_proxy", "no_proxy")


def rewritten(wheel: Path, folder: Path, changes: Mapping[str, bytes]) -> Path:
    """The wheel with other bytes in some files, and a RECORD that is right."""
    folder.mkdir(exist_ok=True)
    target = folder / wheel.name
    files = contents(wheel)
    assert set(changes) <= set(files)
    write_wheel(target, with_record({**files, **changes}))
    return target


def with_first_line(wheel: Path, folder: Path, line: str) -> Path:
    """The wheel with a line of Python that runs when it is imported."""
    return rewritten(wheel, folder, {INIT: f"{line}\n".encode() + contents(wheel)[INIT]})


def requiring(wheel: Path, requirement: str) -> dict[str, bytes]:
    """The METADATA of a wheel, by its name, with a requirement more."""
    ((name, data),) = ((name, data) for name, data in contents(wheel).items() if name.endswith("/METADATA"))
    head, _, body = data.partition(b"\n\n")
    return {name: head + f"\nRequires-Dist: {requirement}\n\n".encode() + body}


def statuses(outcome: Outcome) -> dict[str, list[str]]:
    """The checks by how they ended."""
    found: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for check in outcome.document["checks"]:
        found[check["status"]].append(check["name"])
    return found


def check(outcome: Outcome, name: str) -> Json:
    found: Json = next(check for check in outcome.document["checks"] if check["name"] == name)
    return found


# --- wheels that are what they should be ----------------------------------------------------------------------------


def test_the_miniatures_wheel_passes_against_its_profile(finished: Finished, tfdock: Tfdock) -> None:
    outcome = tfdock.run("verify", finished.wheel, finished.profile, "--json", code=0)
    document = outcome.document
    assert (document["schema"], document["ok"], document["wheel"]) == ("tfdock.verify/1", True, finished.wheel.name)
    assert document["build_id"] == finished.outcome.build["build_id"]
    assert document["sha256"] == hashlib.sha256(finished.wheel.read_bytes()).hexdigest()
    assert document["gpu_code"] == {"sass": ["sm_86"], "ptx": [], "amdgpu": []}
    found = statuses(outcome)
    assert found["failed"] == []
    assert set(found["passed"]) & set(RUN) == set(RUN) - set(GPU) - {"xla"}
    assert {"gpu-code", "cuda", "file-integrity", "cpu-baseline"} <= set(found["passed"])
    assert "the miniature has no compiler" in check(outcome, "xla")["reason"]
    assert check(outcome, "gradient")["found"] == "[[7.0, 11.0], [9.0, 13.0]]"


def test_the_record_of_a_build_says_that_its_wheel_was_tried(finished: Finished) -> None:
    record = record_of(finished.outcome.build)
    verification = record["verification"]
    assert verification["runtime"] == "python:3.11-slim-bookworm"
    assert verification["gpu_code"]["sass"] == ["sm_86"]
    by_name = {one["name"]: one["status"] for one in verification["checks"]}
    assert by_name["gradient"] == by_name["gpu-code"] == "passed"
    assert "failed" not in by_name.values()
    assert record["seconds"]["verify"] > 0
    assert finished.outcome.build["seconds"]["verify"] > 0
    assert str(finished.tfdock.home) not in json.dumps(verification)


def test_a_wheel_without_profile_is_tried_and_told_as_a_table(finished: Finished, tfdock: Tfdock) -> None:
    outcome = tfdock.run("verify", finished.wheel, code=0)
    lines = [line.split() for line in outcome.stdout.splitlines()]
    assert lines[0] == ["check", "status", "found"]
    by_name = {words[0]: words[1] for words in lines[1:]}
    assert (by_name["op"], by_name["name"], by_name["cpu-baseline"]) == ("passed", "skipped", "skipped")


def test_what_a_wheel_requires_can_be_given_as_a_folder(finished: Finished, tfdock: Tfdock, tmp_path: Path) -> None:
    needs = rewritten(finished.wheel, tmp_path, requiring(finished.wheel, "brick>=2"))
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "brick-2.1-py3-none-any.whl", "w") as archive:
        archive.writestr("brick-2.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: brick\nVersion: 2.1\n")
        archive.writestr("brick-2.1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("brick-2.1.dist-info/RECORD", "")
    given = tfdock.run("verify", needs, "--dependencies", folder, "--json", code=0)
    assert check(given, "install")["found"].startswith("2 distributions")
    (folder / "brick-2.1-py3-none-any.whl").unlink()
    lacking = tfdock.run("verify", needs, "--dependencies", folder, "--json")
    assert lacking.code == 4
    assert statuses(lacking)["failed"] == ["install"]
    assert "brick>=2" in check(lacking, "install")["reason"]
    assert [cause["id"] for cause in lacking.document["diagnosis"]] == ["pin_of_wheel_without_index"]
    assert "pin_of_wheel_without_index [wheel, sure]" in lacking.stderr


@pytest.fixture
def with_pip(tfdock: Tfdock) -> Tfdock:
    """The command with the settings by which pip reaches PyPI here."""
    return tfdock.with_variables(**{name: os.environ[name] for name in PIP if os.environ.get(name)})


@pytest.mark.limit(FETCH)
def test_the_official_cpu_wheel_passes_with_xla_proven(
    with_pip: Tfdock, official_wheels: Callable[..., Path]
) -> None:
    wheel = official_wheels("tensorflow-cpu==2.18.0", "3.11")
    outcome = with_pip.run("verify", wheel, "--json")
    skip_without_pypi(problem["code"] for problem in outcome.document["problems"])
    assert outcome.code == 0, outcome.told
    found = statuses(outcome)
    assert found["failed"] == []
    assert set(found["passed"]) >= set(RUN) - set(GPU)
    assert "lines of HLO" in check(outcome, "xla")["found"]
    assert check(outcome, "import")["found"].startswith("2.18.0 (v2.18.0-rc2-4-g6550e4bd802)")
    assert "distributions" in check(outcome, "install")["found"]


@pytest.mark.limit(FETCH)
def test_the_official_wheel_of_tensorflow_1_passes_where_its_python_can_be_had(
    with_pip: Tfdock, workshop: Workshop, official_wheels: Callable[..., Path]
) -> None:
    image = str(load({}, os.environ).mirrored(ImageRef.parse("python:3.7-slim-bookworm")))
    engine = DockerEngine(workshop.host)
    try:
        engine.image(image) or engine.pull(image)
    except NetworkError as error:
        pytest.skip(f"no image with Python 3.7: {error.problems[0].message}")
    outcome = with_pip.run("verify", official_wheels("tensorflow==1.15.5", "3.7"), "--json")
    skip_without_pypi(problem["code"] for problem in outcome.document["problems"])
    assert outcome.code == 0, outcome.told
    assert "_XlaRun" in check(outcome, "xla")["found"]


# --- wheels that are not --------------------------------------------------------------------------------------------


@pytest.mark.limit(FETCH)
def test_the_official_cpu_wheel_is_not_what_a_profile_with_cuda_asks_for(
    tfdock: Tfdock, official_wheels: Callable[..., Path]
) -> None:
    wheel = official_wheels("tensorflow-cpu==2.18.0", "3.11")
    outcome = tfdock.run("verify", wheel, "rtx3080", "--no-run", "--json", code=4)
    assert outcome.document["ok"] is False
    found = statuses(outcome)
    assert found["failed"] == ["name", "version", "gpu-code", "cuda", "cudnn"]
    assert check(outcome, "gpu-code")["expected"] == "sm_86"
    assert check(outcome, "cuda")["expected"] == "12.5.1"
    assert set(RUN) <= set(found["skipped"])
    for name in found["failed"]:
        assert f"failed: {name}: expected " in outcome.stderr


def test_a_kernel_library_for_another_architecture_is_found_as_exactly_that(
    finished: Finished, workshop: Workshop, tfdock: Tfdock, tmp_path: Path
) -> None:
    sm_80 = write_profile(tmp_path / "sm_80.yaml", workshop.tree(), compute_capabilities=["sm_80"], verify=UNTRIED)
    tfdock.build(sm_80, code=0)
    (wheel,) = tfdock.wheelhouse.glob("*.whl")
    swapped = rewritten(finished.wheel, tmp_path / "swapped", {CC: contents(wheel)[CC]})
    outcome = tfdock.run("verify", swapped, finished.profile, "--json", code=4)
    assert statuses(outcome)["failed"] == ["gpu-code"]
    assert (check(outcome, "gpu-code")["expected"], check(outcome, "gpu-code")["found"]) == ("sm_86", "sm_80")
    assert CC in check(outcome, "gpu-code")["reason"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "killed by SIGILL"),
        ("import os; os.abort()", "killed by SIGABRT"),
        ("raise ImportError('libcudart.so.11.0: cannot open shared object file')", "libcudart.so.11.0"),
    ],
)
def test_a_wheel_that_dies_when_it_is_imported_fails_that_check_and_nothing_else_dies(
    finished: Finished, tfdock: Tfdock, tmp_path: Path, line: str, reason: str
) -> None:
    outcome = tfdock.run(
        "verify", with_first_line(finished.wheel, tmp_path, line), finished.profile, "--json", code=4
    )
    assert statuses(outcome)["failed"] == ["import"]
    assert reason in check(outcome, "import")["reason"]
    assert check(outcome, "op")["reason"] == "`import` has not passed"
    assert check(outcome, "libraries")["status"] == "passed"


LIAR = """
import json, os, sys
request = json.load(open("/tfdock/verify/request.json"))
names = [one["check"] for one in request["checks"]]
names += ["file-integrity", "name", "python", "gpu-code", "cuda", "x\\n::error::forged", "\\x1b]0;x\\x07"]
for name in names:
    found = {"version": "2.18.0", "git": "\\x1b[31m\\n::error::forged"} if name == "import" else "\\x1b]0;x\\x07"
    result = {"check": name, "outcome": "passed", "expected": "", "found": found, "reason": "\\n::error::forged"}
    out = (request["mark"] + " " + json.dumps(result) + "\\n").encode()
    for fd in (1, 2):
        os.write(fd, out)
    for folder in ("/proc/1/fd/1", "/proc/%d/fd/1" % os.getppid()):
        try:
            open(folder, "wb").write(out)
        except OSError:
            pass
"""


def test_a_wheel_that_lies_changes_no_check_but_its_own(
    finished: Finished, workshop: Workshop, tfdock: Tfdock, tmp_path: Path
) -> None:
    wheel = with_first_line(finished.wheel, tmp_path, f"exec({LIAR!r})")
    other = write_profile(tmp_path / "other.yaml", workshop.tree(), compute_capabilities=["sm_80"])
    honest = tfdock.run("verify", wheel, other, "--json", "--no-run")
    outcome = tfdock.run("verify", wheel, other, "--json", code=4)
    names = [one["name"] for one in honest.document["checks"]]
    assert [one["name"] for one in outcome.document["checks"]] == names
    static = [one for one in outcome.document["checks"] if one["name"] not in RUN]
    assert static == [one for one in honest.document["checks"] if one["name"] not in RUN]
    assert "gpu-code" in statuses(outcome)["failed"]
    told = outcome.document["told_by_wheel"]
    assert told[0] == "install"
    assert set(told) <= set(RUN)
    for text in (outcome.stdout, outcome.stderr):
        assert "\x1b" not in text
        assert "\n::error::" not in text
    assert "come from the wheel's own code" in tfdock.run("verify", wheel, other).stderr


def test_a_file_that_is_no_wheel_is_told_in_the_form_of_every_other(tfdock: Tfdock, tmp_path: Path) -> None:
    path = tmp_path / "tensorflow-2.18.0-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(b"PK\x03\x04 and no more")
    outcome = tfdock.run("verify", path, "--json", code=4)
    assert statuses(outcome)["failed"] == ["file-integrity"]


def test_a_build_whose_wheel_computes_wrongly_is_refused_and_keeps_it(tfdock: Tfdock, edited: EditedTree) -> None:
    wrong = edited({"tensorflow/python/gradients.py": replaced("ops.matmul(gradient, _transposed(b))", "gradient")})
    outcome = tfdock.build(wrong, code=4)
    assert outcome.build["status"] == "refused"
    assert outcome.problem["code"] == "wheel-refused"
    assert "`gradient`: expected [[7.0, 11.0], [9.0, 13.0]]" in outcome.problem["message"]
    assert tfdock.visible == []
    (kept,) = tfdock.wheelhouse.glob(".tfdock/*/*/refused/*.whl")
    assert str(kept) in outcome.problem["why"]
    again = tfdock.run("verify", kept, wrong, "--json")
    assert (again.code, statuses(again)["failed"]) == (4, ["gradient"])


def test_a_wheel_that_links_cuda_is_tried_in_the_image_that_built_it(tfdock: Tfdock, edited: EditedTree) -> None:
    libraries = "/usr/local/cuda-13.0/lib"  # in the build's image, and not in the clean one
    options = f'"-Wl,--no-as-needed", "-L{libraries}", "-l:libcudart.so.13",'
    soname = '"-Wl,-soname,libtensorflow_cc.so.2",'
    outcome = tfdock.build(edited({"tensorflow/BUILD": replaced(soname, f"{soname} {options}")}), code=0)
    verification = record_of(outcome.build)["verification"]
    assert verification["runtime"].startswith("tfdock/")
    by_name = {one["name"]: one["status"] for one in verification["checks"]}
    assert by_name["import"] == by_name["gradient"] == by_name["libraries"] == "passed", verification["checks"]
    # A clean image cannot import it, for which nobody blames the wheel.
    later = tfdock.run("verify", outcome.build["wheels"][0]["path"], "--json")
    assert (later.code, statuses(later)["failed"]) == (2, []), later.told
    assert "links libcudart.so.13" in check(later, "import")["reason"]


def test_a_wheel_gets_the_platform_that_its_libraries_fit_and_no_other(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    def built(platform: str) -> Outcome:
        profile = write_profile(tmp_path / "profile.yaml", workshop.tree(), wheel={"platform": platform})
        return tfdock.build(profile)

    outcome = built("manylinux_2_36")
    assert outcome.code == 0, outcome.told
    (wheel,) = tfdock.wheelhouse.glob("*.whl")
    assert wheel.name.endswith("-manylinux_2_36_x86_64.whl"), "and pip has installed it"
    older = built("manylinux_2_5")
    assert older.code == 4, older.told
    assert "`manylinux`: expected manylinux_2_5_x86_64; found manylinux_2_3" in older.problem["message"]
    assert [*tfdock.wheelhouse.glob("*.whl")] == [wheel]


# --- what can go wrong on the way -----------------------------------------------------------------------------------


def test_without_an_engine_the_file_is_checked_and_the_error_told(finished: Finished, tfdock: Tfdock) -> None:
    nowhere = tfdock.with_variables(DOCKER_HOST="unix:///nonexistent/docker.sock")
    outcome = nowhere.run("verify", finished.wheel, finished.profile, "--json", code=6)
    assert outcome.document["ok"] is False
    assert outcome.problem["code"] == "engine-unavailable"
    assert "gpu-code" in statuses(outcome)["passed"]
    assert statuses(outcome)["failed"] == []
    assert check(outcome, "install")["reason"].startswith("no container engine")
    assert nowhere.run("verify", finished.wheel, finished.profile, "--no-run").code == 0


def test_a_trial_ends_before_the_disk_of_the_cache_is_full(
    finished: Finished, tfdock: Tfdock, tmp_path: Path
) -> None:
    disk, cache = tmp_path / "disk", tmp_path / "disk/cache"
    with small_disk(disk, "64m"):
        (disk / "filling").write_bytes(bytes(63 << 20))
        outcome = replace(tfdock, cache=cache).run("verify", finished.wheel, "--json", code=8)
        (problem,) = outcome.document["problems"]
        assert (problem["code"], str(cache) in problem["message"]) == ("disk-full", True)


@pytest.fixture
def sleeping(finished: Finished, tmp_path: Path) -> Path:
    """A wheel that takes ten minutes to import, and freezes what waits for it: so no Ctrl-C is heard there."""
    frozen = "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)"
    return with_first_line(finished.wheel, tmp_path, frozen)


@pytest.fixture
def trying(workshop: Workshop, tfdock: Tfdock) -> Iterator[Callable[[], list[str]]]:
    """The containers of trials on this command's cache that run."""

    def names() -> list[str]:
        listed = workshop.sdk.containers(filters={"label": "io.tfdock.run"})
        mounted = [(one["Names"][0], {mount.get("Source", "") for mount in one["Mounts"]}) for one in listed]
        return [name for name, sources in mounted if any(source.startswith(str(tfdock.cache)) for source in sources)]

    yield names
    assert names() == []
    assert list((tfdock.cache / "output").glob("*")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_trial_that_is_stopped_leaves_no_container(
    sleeping: Path,
    tfdock: Tfdock,
    workshop: Workshop,
    trying: Callable[[], list[str]],
    number: signal.Signals,
    code: int,
) -> None:
    def frozen() -> bool:
        with contextlib.suppress(docker.errors.APIError):  # the container that fetches what it requires has ended
            states = [row for name in trying() for row in workshop.sdk.top(name, "-o pid,stat")["Processes"]]
            return any(state.startswith("T") for _, state in states)
        return False

    running = tfdock.start("verify", sleeping)
    running.until(frozen)
    outcome = running.end_by(number, 60, code=code)
    assert "the wheel is unchanged" in outcome.stderr


def test_what_a_killed_trial_left_is_removed_by_the_next(
    sleeping: Path, finished: Finished, tfdock: Tfdock, trying: Callable[[], list[str]]
) -> None:
    running = tfdock.start("verify", sleeping)
    running.until(trying)
    running.end_by(signal.SIGKILL, 60)
    assert trying() != [], "nobody was there to remove it"
    outcome = tfdock.run("verify", finished.wheel, code=0)
    assert "cleaned up after run" in outcome.stderr
