"""The static checks of a wheel: each passes on the wheel that was asked for, and fails on exactly what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.resolution import Resolution
from tfdock.verify.checks import (
    Check,
    Manylinux,
    Status,
    build_traces,
    compiler_options,
    passed,
    static_checks,
    static_names,
    unsound_checks,
)
from tfdock.wheel.facts import FIXES, Containers, GpuCode, Images, Kind, Library, WheelError
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel import RecordProblem

from ..desk import Desk
from ..small_wheels import inspection_of

KNOWLEDGE = loader.knowledge()
DESK = Desk(knowledge=KNOWLEDGE, templates=loader.templates())
NAMES = (
    "file-integrity", "name", "version", "python", "gpu-code", "cuda", "cudnn", "rocm", "cpu-baseline", "manylinux",
    "size", "build-paths",
)  # fmt: skip

HEAD = 'schema: 1\ntensorflow: "2.18.0"\n'
CPU = f'{HEAD}python: "3.11"\naccelerator: cpu\n'
CUDA = f'{HEAD}python: "3.11"\ncuda: "12.5.1"\ncudnn: "9.3.0"\ncompute_capabilities: [sm_80, compute_86]\n'
ROCM = f"{HEAD}amdgpu_targets: [gfx90a, gfx942]\nallow_untested: true\n"
MIB = 1 << 20
CC, FRAMEWORK = "tensorflow/libtensorflow_cc.so.2", "tensorflow/libtensorflow_framework.so.2"
INTERNAL = "tensorflow/python/_pywrap_tensorflow_internal.so"
RCCL = "tensorflow/librccl.so.1"
MADE_UP = 'schema: 1\ntensorflow: "9.9.1"\npython: "3.11"\ntargets: [xe1]\naccelerator: xpu\n'
LOCAL = "2.18.0+cuda12.5.sm80.sm86.ptx86"


# --- builders: valid by default, breakable by argument --------------------------------------------------------------


def container(*targets: str, count: int = 1, stub: bool = False) -> Containers:
    sass, ptx, amdgpu = (tuple(one for one in targets if one.startswith(kind)) for kind in ("sm_", "compute_", "gfx"))
    return Containers(sass=sass, ptx=ptx, amdgpu=amdgpu, count=count, stub=stub)


def code(*containers: Containers) -> GpuCode:
    """GPU code in those containers, with an image a target and container."""
    images: dict[tuple[Kind, str], int] = {}
    for one in containers:
        kinds: Mapping[Kind, Sequence[str]] = {"sass": one.sass, "ptx": one.ptx, "amdgpu": one.amdgpu}
        for key in ((kind, target) for kind, targets in kinds.items() for target in targets):
            images[key] = images.get(key, 0) + one.count
    made = (
        Images(kind=kind, target=target, count=count, size=count, packing=("raw",))
        for (kind, target), count in images.items()
    )
    return GpuCode(images=tuple(made), containers=containers)


def library(path: str, *containers: Containers, **more: Any) -> Library:
    return Library(path=path, size=1, machine="x86_64", versions={}, loadable=code(*containers), **more)


ASKED = ("sm_80", "sm_86", "compute_86")
OWN = (
    library(CC, container(*ASKED, count=278), container("sm_80", "sm_86"), container("sm_80", stub=True)),
    library(FRAMEWORK, container(*ASKED, count=2), runpath=("$ORIGIN/../nvidia/nccl/lib", "$ORIGIN")),
    library(INTERNAL, container(*ASKED), needed=("libtensorflow_cc.so.2", "libc.so.6")),
)
LINUX = Manylinux(fits="manylinux_2_17_x86_64", obstacles={})
BUILD_INFO = {"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": True, "is_rocm_build": False}


def inspection(
    *,
    libraries: Sequence[Library] = OWN,
    build_info: Mapping[str, object] | None = BUILD_INFO,
    traces: Mapping[str, tuple[str, ...]] | None = None,
    **changes: Any,
) -> Inspection:
    """The wheel that the profile CUDA asks for."""
    sound = inspection_of(LOCAL, libraries, build_info)
    return replace(sound, traces=traces or {}, wheel=replace(sound.wheel, **{"size": 90 * MIB} | changes))


def checked(
    given: Inspection | None = None, profile: str | None = CUDA, *, knowledge: KnowledgeBase = KNOWLEDGE, **more: Any
) -> dict[str, Check]:
    """The checks by name; the build's options are those of the profile's own plan unless `options` says otherwise."""
    resolution = DESK.resolve(profile) if profile else None
    options = own_options(resolution) if resolution else None
    words = {"manylinux": LINUX, "options": options} | more
    checks = static_checks(knowledge, given or inspection(), resolution, **words)
    assert all(check.reason for check in checks if check.status != "passed")
    return {check.name: check for check in checks}


def own_options(resolution: Resolution) -> tuple[str, ...]:
    return compiler_options(KNOWLEDGE, resolution.environment, resolution.flags)


def statuses(checks: Mapping[str, Check]) -> dict[str, str]:
    return {name: check.status for name, check in checks.items()}


def failed(given: Inspection, profile: str | None = CUDA, **more: Any) -> list[str]:
    return [name for name, check in checked(given, profile, **more).items() if check.status == "failed"]


# --- the whole ------------------------------------------------------------------------------------------------------


def test_the_wheel_that_was_asked_for_passes_every_check_there_is() -> None:
    checks = checked()
    assert tuple(checks) == NAMES == static_names(KNOWLEDGE)
    assert statuses(checks) == dict.fromkeys(NAMES, "passed") | {"rocm": "skipped"}
    assert passed(checks.values())
    assert {check.status for check in checks.values()} <= set(get_args(Status))


def test_without_a_profile_what_needs_one_is_skipped_with_that_reason_and_says_what_was_found() -> None:
    checks = checked(profile=None, options=())
    needing = ("name", "version", "python", "gpu-code", "cuda", "cudnn", "rocm", "cpu-baseline")
    assert statuses(checks) == dict.fromkeys(NAMES, "passed") | dict.fromkeys(needing, "skipped")
    assert {checks[name].reason for name in needing} == {"no profile to compare with"}
    assert checks["gpu-code"].found == "sm_80, sm_86, compute_86"
    assert checks["cuda"].found == "12.5.1"
    assert checks["cpu-baseline"].found == "portable"


def test_a_cpu_wheel_fails_against_a_gpu_profile_on_what_makes_it_another_wheel() -> None:
    official = inspection(
        libraries=[library(CC)],
        name="tensorflow-cpu",
        version="2.18.0",
        build_info={"is_cuda_build": False, "is_rocm_build": False, "is_tensorrt_build": False},
    )
    assert failed(official) == ["name", "version", "gpu-code", "cuda", "cudnn"]
    checks = checked(official)
    assert (checks["gpu-code"].expected, checks["gpu-code"].found) == ("sm_80, sm_86, compute_86", "none")
    assert checks["cudnn"].found == "none"
    assert failed(official, CPU) == ["name"]


def test_a_gpu_wheel_fails_against_a_cpu_profile_on_what_it_has_too_much() -> None:
    assert failed(inspection(), CPU) == ["version", "gpu-code", "cuda", "cudnn"]
    check = checked(profile=CPU)["gpu-code"]
    assert (check.expected, check.found) == ("none", "sm_80, sm_86, compute_86")
    assert CC in check.reason


def test_a_file_that_is_no_sound_wheel_has_failed_its_integrity_and_nothing_else() -> None:
    checks = unsound_checks(KNOWLEDGE, WheelError("wheel-not-a-zip", "It ends at byte 3.", FIXES["wheel-not-a-zip"]))
    assert tuple(check.name for check in checks) == NAMES
    assert [check.status for check in checks] == ["failed", *["skipped"] * (len(NAMES) - 1)]
    assert "It ends at byte 3." in checks[0].found
    assert "wheel-not-a-zip" in checks[0].found
    assert not passed(checks)


# --- the file and its name ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"record_ok": False, "record_problems": (RecordProblem(path="x.py", code="c", message="another sum"),)},
            "x.py", id="a wrong record",
        ),
        pytest.param(
            {"libraries": [library(CC, container(*ASKED), problems=("it ends in a section",))]},
            f"`{CC}`: it ends in a section", id="a damaged library",
        ),
        pytest.param({"tag_problem": "WHEEL has the tags x."}, "WHEEL has the tags x.", id="other tags by renaming"),
    ],
)  # fmt: skip
def test_what_is_not_as_the_wheel_says_of_itself_fails_the_integrity(changes: dict[str, Any], told: str) -> None:
    check = checked(inspection(**changes))["file-integrity"]
    assert check.status == "failed"
    assert told in check.reason


def test_a_thousand_problems_are_told_in_a_line() -> None:
    problems = tuple(
        RecordProblem(path=f"x{number}", code="record-missing", message="is not there") for number in range(1000)
    )
    reason = checked(inspection(record_ok=False, record_problems=problems))["file-integrity"].reason
    assert reason.endswith("and 996 more")
    assert len(reason) < 300


def test_names_are_compared_as_pip_does() -> None:
    profile = CUDA + "wheel: {name: My_TensorFlow}\n"
    assert failed(inspection(name="my-tensorflow"), profile) == []
    assert failed(inspection(), profile) == ["name"]


BRANCH = CUDA.replace('"2.18.0"', '{release: "2.18.0", ref: r2.18}')
ON_BRANCH, OF_FORK = (f"+{DESK.resolve(profile).local_version}" for profile in (BRANCH, ROCM))


@pytest.mark.parametrize(
    ("profile", "version", "ok"),
    [
        (CUDA, LOCAL, True),
        (CUDA, "2.18.0", False),
        (CUDA, LOCAL.replace("18.0", "18.1"), False),
        (CUDA, LOCAL.replace("18.0", "18.0.dev0"), False),
        (CUDA, "2.18.0+cuda12.5.sm80", False),
        # Of another source than the release's tag only the local part is held against the profile.
        (BRANCH, f"2.18.7.dev1{ON_BRANCH}", True),
        (BRANCH, "2.18.0", False),
        (BRANCH, LOCAL, False),
        # The branch of a fork may have gone on to a later patch of the release.
        (ROCM, f"2.18.0{OF_FORK}", True),
        (ROCM, f"2.18.9{OF_FORK}", True),
        (ROCM, "2.18.0", False),
        # A portable wheel for the CPU has no local part.
        (CPU, "2.18.0", True),
        (CPU, "2.18.0+cpu", False),
    ],
)
def test_the_version_is_the_releases_with_the_local_part_of_the_profile(profile: str, version: str, ok: bool) -> None:
    check = checked(inspection(version=version), profile)["version"]
    assert (check.status, check.found) == ("passed" if ok else "failed", version)
    assert check.expected == LOCAL or profile != CUDA


def test_a_portable_cpu_wheel_passes_every_check() -> None:
    wheel = inspection(version="2.18.0", libraries=[library(CC)], build_info={"is_cuda_build": False})
    assert failed(wheel, CPU) == []


@pytest.mark.parametrize(
    ("python_tag", "abi_tag", "ok"),
    [("cp311", "cp311", True), ("cp312", "cp312", False), ("py3", "none", True), ("cp311", "cp311t", False)],
)
def test_the_wheel_is_for_the_python_of_the_profile(python_tag: str, abi_tag: str, ok: bool) -> None:
    check = checked(inspection(python_tag=python_tag, abi_tag=abi_tag))["python"]
    assert check.status == ("passed" if ok else "failed")
    assert (check.expected, check.found) == ("CPython 3.11", f"{python_tag}-{abi_tag}")


# --- GPU code -------------------------------------------------------------------------------------------------------


def gpu_code(*libraries: Library, profile: str = CUDA, strict: bool = True) -> Check:
    return checked(inspection(libraries=libraries), profile, strict=strict)["gpu-code"]


def test_one_library_swapped_for_another_architecture_fails_on_exactly_that() -> None:
    swapped = inspection(libraries=[*OWN[:2], library(INTERNAL, container("sm_75"))])
    assert failed(swapped) == ["gpu-code"]
    check = checked(swapped)["gpu-code"]
    assert (check.expected, check.found) == ("sm_80, sm_86, compute_86", "sm_75, sm_80, sm_86, compute_86")
    assert check.reason == f"`{INTERNAL}`: no sm_80, sm_86, compute_86, but sm_75"


LETTER = CUDA.replace("[sm_80, compute_86]", "[sm_90a]") + "allow_untested: true\n"
ALL, NO_PTX, NO_86 = (
    container(*ASKED, count=200),
    container("sm_80", "sm_86"),
    container("sm_80", "compute_86", count=3),
)
STUB, SM_90 = container("sm_75", stub=True), container("sm_90")
AMD = container("gfx90a", "gfx942", count=9)
BUNDLED = library(RCCL, container("gfx803", "gfx906"))
MORE = library(CC, container(*ASKED, "sm_90", "compute_90"))
ONLY_LINKED = replace(library(CC), relocatable=code(ALL))


@pytest.mark.parametrize(
    ("libraries", "more", "reason"),
    [
        pytest.param([OWN[0], library(FRAMEWORK, NO_86)], {}, f"`{FRAMEWORK}`: no sm_86", id="others have it"),
        pytest.param(
            [library(CC, SM_90), library(FRAMEWORK, SM_90), library(INTERNAL, ALL)], {},
            f"`{CC}`, `{FRAMEWORK}`: no sm_80, sm_86, compute_86, but sm_90", id="two differ in the same way",
        ),
        pytest.param([MORE], {}, f"`{CC}`: sm_90, compute_90 besides", id="more than was asked"),
        pytest.param([MORE], {"strict": False}, "", id="more than was asked, not strict"),
        pytest.param(
            [library(CC, container("sm_86", "compute_86", "sm_90"))], {"strict": False}, f"`{CC}`: no sm_80",
            id="less and more than was asked, not strict",
        ),
        pytest.param([library(CC, ALL, NO_86)], {}, f"`{CC}`: no sm_86 in 3 of the containers", id="some containers"),
        pytest.param(
            [library(CC, ALL, container("sm_80", count=3))], {"strict": False},
            f"`{CC}`: no sm_86 in 3 of the containers", id="some containers, not strict",
        ),
        pytest.param([library(CC, ALL, NO_PTX)], {}, "", id="containers without PTX"),
        pytest.param([library(CC, NO_PTX)], {}, f"`{CC}`: no compute_86", id="no container with PTX"),
        pytest.param([library(CC, ALL, STUB)], {}, "", id="a stub beside them"),
        pytest.param([library(CC, STUB)], {}, "none of TensorFlow's own libraries has GPU code", id="stubs alone"),
        pytest.param(
            [replace(library(CC, ALL), relocatable=code(container("compute_52")))], {}, "", id="linker's input too",
        ),
        pytest.param([ONLY_LINKED], {}, "none of TensorFlow's own libraries has GPU code", id="input of the linker"),
        pytest.param([library(CC, container("sm_90a"))], {"profile": LETTER}, "", id="a letter"),
        pytest.param([library(CC, SM_90)], {"profile": LETTER}, f"`{CC}`: no sm_90a, but sm_90", id="no letter"),
        pytest.param([library(CC, AMD), BUNDLED], {"profile": ROCM}, "", id="AMD, and a bundled library"),
        pytest.param([library(CC, container("gfx90a")), BUNDLED], {"profile": ROCM}, f"`{CC}`: no gfx942", id="less"),
        pytest.param(
            [library(CC, AMD, container("gfx90a"))], {"profile": ROCM}, f"`{CC}`: no gfx942 in 1 of the containers",
            id="AMD, some containers",
        ),
        pytest.param([library(CC, SM_90)], {"profile": ROCM}, f"`{CC}`: no gfx90a, gfx942, but sm_90", id="NVIDIA's"),
    ],
)  # fmt: skip
def test_what_its_gpu_code_lacks_or_has_too_much_is_the_reason(
    libraries: Sequence[Library], more: dict[str, Any], reason: str
) -> None:
    check = gpu_code(*libraries, **more)
    assert (check.status, check.reason) == ("failed" if reason else "passed", reason)
    assert check.expected.startswith("at least ") is (more.get("strict") is False)


def test_of_an_accelerator_whose_code_nobody_reads_nothing_is_claimed(made_up: Desk) -> None:
    resolution = made_up.resolve(MADE_UP)
    checks = static_checks(KNOWLEDGE, inspection(), resolution, manylinux=LINUX)
    check = next(one for one in checks if one.name == "gpu-code")
    assert (check.status, check.expected) == ("skipped", "xe1")
    assert "xpu" in check.reason


targets = st.sampled_from(["sm_75", "sm_80", "sm_86", "sm_90", "compute_86", "compute_90"])
held = st.lists(st.lists(targets, min_size=1, max_size=4, unique=True), min_size=1, max_size=4)


@given(held, st.booleans())
def test_a_library_passes_if_and_only_if_it_holds_what_was_asked(held: list[list[str]], strict: bool) -> None:
    check = gpu_code(library(CC, *(container(*one) for one in held)), strict=strict)
    union = {target for one in held for target in one}
    complete = all({"sm_80", "sm_86"} <= set(one) for one in held)
    right = union == set(ASKED) if strict else union >= set(ASKED)
    assert (check.status == "passed") is (right and complete)


# --- toolkit and libraries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "cuda", "cudnn"),
    [
        ({"cuda_version": "12.5.1", "cudnn_version": "9"}, "passed", "passed"),
        ({"cuda_version": "12.5", "cudnn_version": "9.3.0"}, "passed", "passed"),
        ({"cuda_version": "12.3.2", "cudnn_version": "8"}, "failed", "failed"),
        ({"cuda_version": "12.5.2", "cudnn_version": "9.1"}, "failed", "failed"),
        ({"cuda_version": "twelve", "cudnn_version": "9"}, "failed", "passed"),
        ({"cuda_version": "1", "cudnn_version": "93"}, "failed", "failed"),
        ({"cuda_version_number": "12.5", "cudnn_version_number": "9"}, "passed", "passed"),
        ({"is_cuda_build": True}, "skipped", "skipped"),
        ({"is_cuda_build": False}, "failed", "failed"),
        ({}, "skipped", "skipped"),
        (None, "skipped", "skipped"),
    ],
)
def test_versions_agree_with_build_info_as_far_as_both_are_written(
    info: Mapping[str, object] | None, cuda: str, cudnn: str
) -> None:
    checks = checked(inspection(build_info=info))
    assert (checks["cuda"].status, checks["cudnn"].status) == (cuda, cudnn)
    assert checks["cuda"].expected == "12.5.1"


@pytest.mark.parametrize(
    ("profile", "info", "name", "status", "reason"),
    [
        (CUDA, BUILD_INFO, "cudnn", "passed", "the wheel states only 9"),
        (CUDA, BUILD_INFO, "cuda", "passed", ""),
        (ROCM, {"is_rocm_build": True}, "rocm", "skipped", "its build_info does not state the version of ROCm"),
        (ROCM, BUILD_INFO, "rocm", "failed", "its build_info states a build without ROCm"),
        (ROCM, BUILD_INFO, "cuda", "failed", "its build_info names a CUDA, the profile names none"),
    ],
)
def test_what_the_wheel_says_less_exactly_or_otherwise_than_the_profile_is_told(
    profile: str, info: Mapping[str, object], name: str, status: str, reason: str
) -> None:
    check = checked(inspection(build_info=info), profile)[name]
    assert (check.status, check.reason) == (status, reason)


# --- CPU code -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "options", "expected", "found"),
    [
        ("", ("-Wno-sign-compare", "-O3"), "portable", "portable"),
        ("", ("-march=x86-64", "-mtune=generic"), "portable", "portable"),
        ("", ("-mavx2",), "portable", "-mavx2"),
        ("", ("-mavx10.2",), "portable", "-mavx10.2"),
        ("", ("-march=x86-64-v3",), "portable", "-march=x86-64-v3"),
        ("", ("-march=native",), "portable", "the CPU of the build machine (`-march=native`)"),
        ("", ("-mtune=native",), "portable", "the CPU of the build machine (`-mtune=native`)"),
        ("optimize: [avx2, fma]\n", ("-mfma", "-mavx2"), "-mavx2 -mfma", "-mavx2 -mfma"),
        ("optimize: [avx2, fma]\n", ("-mavx2",), "-mavx2 -mfma", "-mavx2"),
        ("optimize: [avx2]\n", (), "-mavx2", "portable"),
        ("bazel: {copts: [-mavx]}\n", ("-mavx",), "-mavx", "-mavx"),
        ("bazel: {configs: [avx_linux]}\n", (), "-mavx", "portable"),
    ],
)
def test_the_cpus_that_the_build_asked_for_are_those_of_the_profile(
    more: str, options: tuple[str, ...], expected: str, found: str
) -> None:
    check = checked(profile=CUDA + more, options=options)["cpu-baseline"]
    assert (check.expected, check.found) == (expected, found)
    assert check.status == ("passed" if expected == found else "failed")


def test_native_is_what_it_should_be_only_where_the_profile_says_native() -> None:
    native = CPU + "optimize: native\n"
    assert checked(profile=native)["cpu-baseline"].status == "passed"
    assert checked(profile=native, options=())["cpu-baseline"].status == "failed"
    options = own_options(DESK.resolve(native))
    assert checked(profile=CPU, options=options)["cpu-baseline"].status == "failed"


def test_of_a_strangers_wheel_nobody_knows_the_options() -> None:
    check = checked(options=None)["cpu-baseline"]
    assert check.status == "skipped"
    assert "neither the wheel nor a record" in check.reason


def test_a_plan_and_its_record_tell_the_same_options() -> None:
    text = (
        f"{CPU}optimize: [avx2]\nbazel: {{copts: [-mfma], configs: [avx_linux]}}\n"
        "debug: {per_file: [{files: +x, copts: [-g1]}]}\n"
    )
    plan = DESK.plan(text)
    options = compiler_options(KNOWLEDGE, plan.environment, plan.bazel_flags)
    assert {"-mavx2", "-mfma", "-mavx", "-g1"} <= set(options)
    old = DESK.plan(CPU.replace("2.18.0", "2.4.0").replace("3.11", "3.8"))
    assert "--host_copt=-march=x86-64" in old.bazel_flags
    assert not any("march" in one for one in compiler_options(KNOWLEDGE, old.environment, old.bazel_flags))


def test_configurations_that_switch_a_feature_on_are_those_of_releases() -> None:
    named = {config for row in KNOWLEDGE.cpu_features.values() for config in row.configs}
    assert named
    assert named <= {config for row in KNOWLEDGE.releases.values() for config in row.configs}


# --- where it can go ------------------------------------------------------------------------------------------------


TAG = "manylinux_2_17_x86_64.manylinux2014_x86_64"
GLIBC = "`x.so` wants GLIBC_2.34 of libc.so.6"
TOO_NEW = Manylinux(fits="manylinux_2_34_x86_64", obstacles=dict.fromkeys(TAG.split("."), (GLIBC,)))


@pytest.mark.parametrize(
    ("tag", "fact", "status", "found", "reason"),
    [
        ("linux_x86_64", LINUX, "passed", "manylinux_2_17_x86_64", ""),
        (TAG, LINUX, "passed", "manylinux_2_17_x86_64", ""),
        (TAG, TOO_NEW, "failed", "manylinux_2_34_x86_64", GLIBC),
        ("linux_x86_64", "auditwheel is not here", "skipped", "", "auditwheel is not here"),
    ],
)
def test_a_plain_linux_tag_passes_and_another_one_if_its_libraries_satisfy_it(
    tag: str, fact: Manylinux | str, status: str, found: str, reason: str
) -> None:
    check = checked(inspection(platform_tag=tag), manylinux=fact)["manylinux"]
    assert (check.status, check.expected) == (status, tag)
    assert found in check.found
    assert reason in check.reason


@pytest.mark.parametrize(
    ("size", "status", "told"),
    [
        (99 * MIB, "passed", "99.0 MiB"),
        (100 * MIB, "passed", "100.0 MiB"),
        (100 * MIB + 1, "passed", "100.0 MiB, more than PyPI takes before more is asked for (100 MiB)"),
        (587 * MIB, "passed", "TensorFlow allows its own wheels for the CPU (260 MiB)"),
        (2048 * MIB + 1, "failed", "GitHub takes as a file of a release (2048 MiB)"),
    ],
)
def test_limits_that_a_wheel_exceeds_are_named_and_the_largest_is_one_too_many(
    size: int, status: str, told: str
) -> None:
    check = checked(inspection(size=size))["size"]
    assert check.status == status
    assert told in check.found
    assert "2048 MiB" in check.expected


def test_the_limits_are_rows() -> None:
    text = "rows:\n  - {limit: my index, mib: 50, source: x}\n"
    mine = KnowledgeBase({"size_limits": [("size_limits.yaml", text)]})
    checks = static_checks(mine, inspection(), None, manylinux=LINUX)
    assert [one.status for one in checks if one.name == "size"] == ["failed"]
    none = static_checks(KnowledgeBase({"size_limits": []}), inspection(), None, manylinux=LINUX)
    assert [one.status for one in none if one.name == "size"] == ["skipped"]


def test_a_file_that_names_a_folder_of_the_build_fails() -> None:
    assert failed(inspection(traces={trace.decode(): () for trace in build_traces()})) == []
    traces = {"/tf/output": (CC, "tensorflow/x.py"), "/_bazel_": ()}
    assert failed(inspection(traces=traces)) == ["build-paths"]
    reason = checked(inspection(traces=traces))["build-paths"].reason
    assert reason == f"`/tf/output` stands in `{CC}`, `tensorflow/x.py`"


def test_the_folders_of_a_build_are_among_those_that_are_looked_for() -> None:
    plan = DESK.plan(CUDA)
    traces = build_traces()
    for mount in plan.phases[-1].mounts:
        assert any(mount.target.encode().startswith(trace) for trace in traces), mount
    documented = b"https://www.tensorflow.org/api_docs/python/tf/nest"
    assert not any(trace in documented for trace in traces)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"runpath": ("/tf/output/base/lib",)}, "RUNPATH `/tf/output/base/lib`"),
        ({"rpath": ("/home/me/lib",)}, "RPATH `/home/me/lib`"),
        ({"runpath": ("../local_config_rocm/rocm/lib",)}, "RUNPATH `../local_config_rocm/rocm/lib`"),
        ({"runpath": ("$ORIGIN/x", "")}, "RUNPATH ``"),
        ({"runpath": ("$ORIGINAL/x",)}, "RUNPATH `$ORIGINAL/x`"),
        ({"runpath": ("/opt/rocmx/lib",)}, "RUNPATH `/opt/rocmx/lib`"),
        ({"needed": ("/tf/output/libx.so",)}, "DT_NEEDED `/tf/output/libx.so`"),
        ({"needed": ("bazel-out/libx.so",)}, "DT_NEEDED `bazel-out/libx.so`"),
        ({"runpath": ("$ORIGIN/../lib", "${ORIGIN}", "$ORIGIN")}, ""),
        ({"runpath": ("/opt/rocm-6.0.0/lib", "/usr/local/cuda/lib64")}, ""),
        ({"needed": ("libc.so.6",)}, ""),
    ],
)
def test_a_library_that_is_looked_for_where_only_the_build_had_it_fails(fields: dict[str, Any], told: str) -> None:
    check = checked(inspection(libraries=[library(CC, container(*ASKED), **fields)]))["build-paths"]
    assert check.status == ("failed" if told else "passed")
    assert told in check.reason
