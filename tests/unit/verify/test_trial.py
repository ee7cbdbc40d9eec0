"""What is tried of a wheel, and what results of scripts mean: each passes for what is right, fails for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.engine.protocol import ImageInfo
from tfdock.gpu.opened_libraries import opened_libraries
from tfdock.host.settings import Settings
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.verify.checks import Check
from tfdock.verify.trial import MarkedLines
from tfdock.verify.trial_container import dependencies_folder
from tfdock.verify.trial_plan import (
    GPU,
    RUN,
    Result,
    Trial,
    answered_by_wheel,
    judge_results,
    limits_of,
    linked_libraries,
    linked_to_accelerator,
    plan_trial,
    read_results,
    skip_all,
)
from tfdock.wheel.facts import Library
from tfdock.wheel.inspection import Inspection

from ..small_wheels import inspection_of
from .test_checks import container, library

KNOWLEDGE = loader.knowledge()
NO_GPU = "the engine gives containers none"
CUDA_INFO = {"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": True, "is_rocm_build": False}
CPU_INFO = {"is_cuda_build": False, "is_rocm_build": False}


OWN = (
    library(
        "tensorflow/libtensorflow_cc.so.2",
        container("sm_80", "sm_86"),
        needed=("libtensorflow_framework.so.2", "libc.so.6"),
    ),
    library("tensorflow/libtensorflow_framework.so.2", needed=("libstdc++.so.6", "libc.so.6")),
)


def wheel(
    version: str = "2.18.0+cuda12.5.sm86",
    info: Mapping[str, object] | None = CUDA_INFO,
    libraries: Sequence[Library] = OWN,
) -> Inspection:
    return inspection_of(version, libraries, info)


def tried(inspection: Inspection, *, xla: bool | None = None, without_gpu: str = NO_GPU) -> Trial:
    return plan_trial(KNOWLEDGE, inspection, xla=xla, without_gpu=without_gpu)


# --- what is tried --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("info", [CPU_INFO, {**CUDA_INFO, "cuda_version": "12.5"}], ids=["CPU", "CUDA"])
def test_every_release_has_a_script_for_every_check_that_its_wheels_can_have(info: Mapping[str, object]) -> None:
    skipped = dict.fromkeys(GPU, "the wheel is for the CPU") if info is CPU_INFO else {}
    for release in KNOWLEDGE.releases.values():
        found = tried(wheel(release.newest, info), without_gpu=NO_GPU if skipped else "")
        assert [task.check for task in found.tasks] == [name for name in RUN if name not in skipped], release.release
        assert found.skipped == skipped


def test_scripts_of_the_rows_are_there_and_no_script_is_without_a_row() -> None:
    shipped = {name.removeprefix("verify/") for name in loader.templates() if name.startswith("verify/")}
    named = {row.script for row in KNOWLEDGE.probes if row.script}
    assert shipped - named == {"run.py", "probe.py"}
    assert named <= shipped


@pytest.mark.parametrize(
    ("version", "scripts"),
    [
        ("1.4.0", ("tf1/op.py", "tf1/xla.py", "tf1/build_info.py")),
        ("1.15.5", ("tf1/op.py", "tf1/xla.py", "tf1/build_info.py")),
        ("2.0.0", ("tf2/op.py", "tf1/xla.py", "tf1/build_info.py")),
        ("2.3.0", ("tf2/op.py", "tf1/xla.py", "tf2/build_info.py")),
        ("2.4.0", ("tf2/op.py", "tf2/xla_experimental.py", "tf2/build_info.py")),
        ("2.5.0", ("tf2/op.py", "tf2/xla.py", "tf2/build_info.py")),
        ("2.18.0+cuda12.5.sm86", ("tf2/op.py", "tf2/xla.py", "tf2/build_info.py")),
        ("2.99.0.dev20261121", ("tf2/op.py", "tf2/xla.py", "tf2/build_info.py")),
    ],
)
def test_scripts_are_those_of_the_release(version: str, scripts: tuple[str, ...]) -> None:
    by_check = {task.check: task.script for task in tried(wheel(version, CPU_INFO)).tasks}
    assert (by_check["op"], by_check["xla"], by_check["build-info"]) == scripts


def test_what_nobody_knows_how_to_try_is_skipped_and_not_failed() -> None:
    found = tried(wheel("0.12.0", CPU_INFO))
    assert [task.check for task in found.tasks] == ["install", "dependencies"]
    assert found.skipped["op"] == "tfdock does not know how to make this check"


def test_xla_is_left_out_where_the_profile_leaves_it_out() -> None:
    assert "xla" not in tried(wheel()).skipped
    assert tried(wheel(), xla=True).facts["xla"] is True
    assert tried(wheel(), xla=False).skipped["xla"] == "the profile has `xla: false`"


def test_a_row_may_say_that_a_release_has_no_such_thing() -> None:
    row = "rows:\n- {check: xla, releases: '2.18', absent: it has none, source: x}\n"
    probes = [*KNOWLEDGE._texts["probes"], ("mine.yaml", row)]
    mine = KnowledgeBase({**KNOWLEDGE._texts, "probes": probes})
    found = plan_trial(mine, wheel(), xla=None, without_gpu=NO_GPU)
    assert found.skipped["xla"] == "it has none"


def test_an_accelerator_without_a_script_for_a_check_has_no_such_check() -> None:
    info = {"is_cuda_build": False, "is_rocm_build": True}
    found = tried(wheel("2.18.0", info), without_gpu="")
    assert set(found.skipped) == {"gpu-native", "gpu-driver"}


# --- libraries ------------------------------------------------------------------------------------------------------


def test_what_the_wheel_brings_itself_is_not_linked_from_elsewhere() -> None:
    assert linked_libraries(wheel()) == ("libc.so.6", "libstdc++.so.6")


@pytest.mark.parametrize(
    ("version", "info", "some"),
    [
        ("2.18.0", CUDA_INFO, {"libcudart.so.12", "libcudnn.so.9", "libnccl.so.2", "libcusolver.so.11"}),
        (
            "2.14.0",
            {**CUDA_INFO, "cuda_version": "11.8", "cudnn_version": "8"},
            {"libcupti.so.11.8", "libcudnn.so.8"},
        ),
        (
            "2.4.0",
            {**CUDA_INFO, "cuda_version": "11.0", "cudnn_version": "8"},
            {"libcusolver.so.10", "libcurand.so.10"},
        ),
        ("2.4.0", {**CUDA_INFO, "cuda_version": "11.1", "cudnn_version": "8"}, {"libcusolver.so.11"}),
        (
            "2.3.0",
            {**CUDA_INFO, "cuda_version": "10.1", "cudnn_version": "7"},
            {"libcudart.so.10.1", "libcublas.so.10"},
        ),
        ("2.0.0", {"is_cuda_build": True, "cuda_version_number": "10.0"}, {"libcudart.so.10.0", "libcublas.so.10.0"}),
        ("2.18.0", {"is_rocm_build": True}, {"libamdhip64.so"}),
    ],
)
def test_opened_libraries_are_those_of_the_versions_built_with(
    version: str, info: Mapping[str, object], some: set[str]
) -> None:
    rows = opened_libraries(KNOWLEDGE, wheel(version, info))
    names = {row.library for row in rows}
    assert some <= names
    assert len(names) == len({row.name for row in rows}), "one for each name"


def test_a_cpu_wheel_opens_none_and_the_drivers_own_count_where_there_is_a_driver() -> None:
    assert opened_libraries(KNOWLEDGE, wheel(info=CPU_INFO)) == ()
    assert opened_libraries(KNOWLEDGE, wheel(info=None)) == ()
    driver = {"libcuda.so.1"}
    assert driver <= {row.library for row in opened_libraries(KNOWLEDGE, wheel())}
    assert not driver & {row.library for row in opened_libraries(KNOWLEDGE, wheel(), with_driver=False)}


def test_a_wheel_that_links_its_accelerators_libraries_is_known() -> None:
    linking = (library("tensorflow/a.so", needed=("libcublas.so.8.0", "libcuda.so.1", "libm.so.6")),)
    assert linked_to_accelerator(KNOWLEDGE, wheel("1.4.0", {"is_cuda_build": True}, linking)) == (
        "libcublas.so.8.0",
        "libcuda.so.1",
    )
    assert linked_to_accelerator(KNOWLEDGE, wheel("1.4.0", CPU_INFO, linking)) == ()
    assert linked_to_accelerator(KNOWLEDGE, wheel()) == ()


def test_what_breaks_with_todays_packages_is_held_back_and_that_is_told() -> None:
    assert limits_of(KNOWLEDGE, wheel("2.4.0")) == ("protobuf<3.21", "numpy<1.24")
    assert limits_of(KNOWLEDGE, wheel("2.10.0")) == ("numpy<2",)
    assert limits_of(KNOWLEDGE, wheel("2.18.0")) == ()
    planned = plan_trial(KNOWLEDGE, wheel(), xla=None, without_gpu=NO_GPU, limits=["numpy<2"])
    results = {"install": Result(outcome="passed", expected="", found="9 distributions", reason="")}
    install = judge_results(KNOWLEDGE, wheel(), planned, results, "")[0]
    assert install.found == "9 distributions; held to numpy<2"


# --- what results mean ----------------------------------------------------------------------------------------------

THERE = {"there": True, "where": "the system"}
MISSING = {"there": False, "where": "cannot open shared object file"}


def good(inspection: Inspection, task: str) -> Result:
    """What the script of a check reports of a wheel that works."""
    opened = {row.library: THERE for row in opened_libraries(KNOWLEDGE, inspection)}
    linked = dict.fromkeys(linked_libraries(inspection), THERE)
    found: dict[str, object] = {
        "import": {"version": "2.18.0", "git": "v2.18.0"},
        "build-info": dict(inspection.build_info or {}),
        "libraries": linked | opened,
        "gpu-devices": [{"name": "NVIDIA GeForce RTX 3080", "capability": "8.6"}],
        "gpu-first-op": {"seconds": 1.5, "value": 1.0, "device": "GPU:0"},
        "gpu-native": {"seconds": 1.5, "value": 1.0, "device": "GPU:0"},
        "gpu-driver": {"driver": "550.54.15", "libcudart.so.12": "12.5"},
    }
    return Result(outcome="passed", expected="", found=found.get(task, "all is well"), reason="")


def checks(
    changes: Mapping[str, object] | None = None,
    inspection: Inspection | None = None,
    *,
    gpu: bool = False,
    xla: bool | None = None,
) -> dict[str, Check]:
    """The checks where all scripts report what is good, but for the changes: a whole result, or its `found`."""
    inspection = inspection or wheel()
    planned = tried(inspection, xla=xla, without_gpu="" if gpu else NO_GPU)
    results = {task.check: good(inspection, task.check) for task in planned.tasks}
    for name, change in (changes or {}).items():
        results[name] = change if isinstance(change, Result) else replace(results[name], found=change)
    found = judge_results(KNOWLEDGE, inspection, planned, results, "exit status 0")
    assert [check.name for check in found] == list(RUN)
    return {check.name: check for check in found}


def bad(reason: str = "it does not work", found: object = "") -> Result:
    return Result(outcome="failed", expected="something", found=found, reason=reason)


def statuses(found: Mapping[str, Check], status: str) -> list[str]:
    return [name for name, check in found.items() if check.status == status]


def test_all_that_is_good_passes() -> None:
    assert statuses(checks(gpu=True), "passed") == list(RUN)
    assert statuses(checks(), "skipped") == list(GPU)
    assert statuses(checks(), "failed") == []


@pytest.mark.parametrize("name", RUN)
def test_what_a_script_calls_a_failure_is_one_with_its_reason(name: str) -> None:
    found = checks({name: bad("it does not work")}, gpu=True)
    assert statuses(found, "failed") == [name]
    assert found[name].reason == "it does not work"


@pytest.mark.parametrize(
    ("metadata", "said", "ok"),
    [
        ("2.18.0", "2.18.0", True),
        ("2.18.0+cuda12.5.sm86", "2.18.0", True),
        ("2.18.0rc1+mine", "2.18.0-rc1", True),
        ("2.15.0.post1", "2.15.0", True),
        ("2.14.0.600", "2.14.0", True),
        ("2.19.0.dev20241010", "2.19.0-dev20241010", True),
        ("2.18.1", "2.18.0", False),
        ("2.18.0", "2.18.0-rc1", False),
        ("2.18.0rc1", "2.18.0", False),
        ("2.18.0", "2.1", False),
        ("2.18.0", "2", False),
        ("2.18.10", "2.18.1", False),
    ],
)
def test_the_package_says_the_version_of_its_metadata(metadata: str, said: str, ok: bool) -> None:
    check = checks({"import": {"version": said, "git": "g"}}, wheel(metadata))["import"]
    assert (check.status == "passed") is ok
    assert check.found == f"{said} (g)"


def test_build_info_differs_in_named_entries() -> None:
    found = checks({"build-info": {**CUDA_INFO, "cuda_version": "12.3", "more": 1}})["build-info"]
    assert found.status == "failed"
    assert (found.expected, found.found) == ("cuda_version: 12.5.1, more: None", "cuda_version: 12.3, more: 1")
    assert "`cuda_version`, `more`" in found.reason
    nothing = checks({"build-info": {"is_cuda_build": False}}, wheel(info=None))["build-info"]
    assert nothing.status == "skipped"


def test_a_missing_library_that_is_linked_fails_and_is_named() -> None:
    found = checks({"libraries": {"libc.so.6": THERE, "libstdc++.so.6": MISSING}})["libraries"]
    assert found.status == "failed"
    assert "`libstdc++.so.6`: cannot open shared object file" in found.reason
    assert "libc.so.6" not in found.reason


def test_libraries_for_a_gpu_are_missed_only_where_there_is_one() -> None:
    there = dict.fromkeys(linked_libraries(wheel()), THERE)
    on_cpu = checks({"libraries": there})["libraries"]
    assert on_cpu.status == "passed"
    assert "libcudart.so.12 (nvidia-cuda-runtime-cu12)" in on_cpu.found
    assert "libcudnn.so.9 (nvidia-cudnn-cu12)" in on_cpu.found
    assert "libcuda.so.1" not in on_cpu.found
    on_gpu = checks({"libraries": there}, gpu=True)["libraries"]
    assert on_gpu.status == "failed"
    assert "libcudart.so.12 (nvidia-cuda-runtime-cu12)" in on_gpu.reason
    assert "libcupti.so.12" not in on_gpu.reason, "only the profiler wants it"
    assert "libcupti.so.12 (nvidia-cuda-cupti-cu12, for the profiler)" in on_gpu.found


@pytest.mark.parametrize(
    ("capabilities", "status", "reason"),
    [
        (["8.6"], "failed", "no kernel image"),
        (["8.9"], "failed", "no kernel image"),
        (["9.0"], "skipped", "the wheel has no machine code for 9.0"),
        (["7.5"], "skipped", "the wheel has no machine code for 7.5"),
        (["8.6", "9.0"], "failed", "no kernel image"),  # the first GPU ran, the other is beside it
    ],
)
def test_machine_code_is_expected_only_of_a_wheel_that_has_it_for_the_gpu_that_ran(
    capabilities: list[str], status: str, reason: str
) -> None:
    devices = [{"name": "some GPU", "capability": capability} for capability in capabilities]
    found = checks({"gpu-devices": devices, "gpu-native": bad("no kernel image")}, gpu=True)["gpu-native"]
    assert (found.status, found.reason) == (status, reason)


def test_what_was_not_tried_because_no_gpu_is_used_has_not_failed_too() -> None:
    skipped = Result(outcome="skipped", expected="", found="", reason="`gpu-devices` has not passed")
    changes = {"gpu-devices": bad("none", found=[]), "gpu-first-op": skipped, "gpu-native": skipped}
    found = checks(changes, gpu=True)
    assert statuses(found, "failed") == ["gpu-devices"]
    assert found["gpu-native"].reason == skipped.reason


def test_of_a_wheel_that_does_not_say_what_it_is_for_nobody_says_that_it_is_for_the_cpu() -> None:
    reasons = {tried(wheel(info=None), without_gpu="").skipped[name] for name in GPU}
    (reason,) = reasons
    assert reason.endswith("it is unknown whether it is for GPUs")


def test_a_number_beyond_all_bounds_is_a_failed_check() -> None:
    assert checks({"gpu-first-op": {"seconds": 10**400}}, gpu=True)["gpu-first-op"].status == "failed"


def test_a_driver_older_than_the_toolkits_floor_fails() -> None:
    found = checks({"gpu-driver": {"driver": "470.82.01", "libcudart.so.12": "12.5"}}, gpu=True)["gpu-driver"]
    assert (found.status, found.expected) == ("failed", "driver 525.60.13 or newer")
    assert found.found == "driver 470.82.01, libcudart.so.12 12.5"


def test_the_first_result_that_never_came_has_failed_and_the_others_were_not_reached() -> None:
    planned = tried(wheel())
    results = {name: good(wheel(), name) for name in ("install", "dependencies")}
    found = {one.name: one for one in judge_results(KNOWLEDGE, wheel(), planned, results, "exit status 137")}
    assert statuses(found, "failed") == ["import"]
    assert found["import"].reason == "no result: exit status 137"
    assert found["op"].reason == "the container had ended before"
    assert statuses(found, "passed") == ["install", "dependencies"]


def test_nothing_of_it_is_every_check_skipped_for_one_reason() -> None:
    assert [(one.name, one.status, one.reason) for one in skip_all("no engine")] == [
        (name, "skipped", "no engine") for name in RUN
    ]


# --- whatever a container reports -----------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.fixed_dictionaries(dict.fromkeys(RUN, ANYTHING)), st.sampled_from(["passed", "failed", "skipped"]))
def test_nothing_that_a_wheel_reports_is_more_than_a_failed_check(found: dict[str, object], outcome: Any) -> None:
    planned = tried(wheel(), without_gpu="")
    documents = [{"check": name, "outcome": outcome, "found": found[name], "expected": found[name]} for name in RUN]
    results = read_results(planned.tasks, documents)
    checks = judge_results(KNOWLEDGE, wheel(), planned, results, "")
    assert [check.name for check in checks] == list(RUN)
    assert all(text.isprintable() and len(text) < 5000 for check in checks for text in (check.found, check.reason))


@given(st.lists(ANYTHING | st.fixed_dictionaries({"check": ANYTHING, "outcome": ANYTHING}), max_size=5))
def test_what_is_no_result_of_a_task_is_left_out(documents: list[object]) -> None:
    assert read_results(tried(wheel()).tasks, documents) == {}


def test_a_result_of_a_check_that_nobody_asked_for_is_left_out() -> None:
    document = {"check": "gpu-native", "outcome": "passed"}
    assert read_results(tried(wheel()).tasks, [document]) == {}
    assert set(read_results(tried(wheel(), without_gpu="").tasks, [document])) == {"gpu-native"}


def test_nothing_of_a_forged_result_reaches_the_terminal() -> None:
    lines = MarkedLines("mark")
    for check in ("op\n::error::x", "\x1b]0;x\x07", "\u202eop", "gpu-code", ["op"], {"op": 1}, 10**4000, None):
        told = lines.shown_line(f"mark {json.dumps({'check': check, 'outcome': 'passed'})}")
        assert told == ""
        assert lines.shown_line(f"mark {json.dumps({'check': 'op', 'outcome': check})}") == ""
    assert lines.shown_line('mark {"check": "op", "outcome": "passed", "found": "\\u001b"}') == "op: passed"


def test_no_more_than_a_thousand_results_are_kept() -> None:
    lines = MarkedLines("mark")
    lines.feed(b'mark {"check": "op"}\n' * 5000)
    assert len(lines.documents) == 1000


def test_a_result_of_more_than_64_kib_is_no_result() -> None:
    lines = MarkedLines("mark")
    lines.feed(b'mark {"x": "' + b"a" * (1 << 17) + b'"}\nmark {"y": 1}\n')
    assert lines.documents == [{"y": 1}]


def test_what_a_bundle_brings_for_a_trial_serves_no_other_trial(tmp_path: Path) -> None:
    settings, image = Settings(cache_dir=tmp_path), ImageInfo(id="sha256:" + "0" * 64)
    folders = {dependencies_folder(settings, image, "cp311", ["numpy"], [], of=of) for of in ("", "a" * 64, "b" * 64)}
    assert len(folders) == 3


def test_the_checks_that_a_wheel_answers_itself_are_named() -> None:
    checks = (Check(name="gpu-code", status="passed"), Check(name="op", status="failed"))
    assert answered_by_wheel((*checks, Check(name="gradient", status="skipped"))) == ("op",)
