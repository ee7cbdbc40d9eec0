"""Upstream traps that cost other people days, each a claim about what tfdock writes.

Most hold for every release and kind of build, and are asked of the contract; what depends on the order or form of
whole plans is asked of a plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from tfdock.knowledge.contract import Contract
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.rows import in_range
from tfdock.types import Version

from ..contracts import KNOWLEDGE, RELEASES, Build, Written, each_build, written
from ..desk import Desk

HEAD = "schema: 1\n"
CUDA = HEAD + "allow_untested: true\naccelerator: cuda\n"


def by_repo_env(flags: Sequence[str]) -> dict[str, str]:
    """Variable -> value of `--repo_env`; the last one wins, as it does in Bazel."""
    found = (re.fullmatch(r"--repo_env=(\w+)=(.*)", flag) for flag in flags)
    return {match[1]: match[2] for match in found if match}


def everything(its: Written) -> Mapping[str, str]:
    """All variables, whichever way they go."""
    return {**its.environment, **by_repo_env(its.flags)}


def last_config(flags: Sequence[str]) -> int:
    """Where the last `--config` stands."""
    return max(place for place, flag in enumerate(flags) if flag.startswith("--config="))


# --- capabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", [name for name in RELEASES if in_range(name, "2.3..")])
def test_from_2_3_on_a_capability_is_never_written_as_x_y(desk: Desk, release: str) -> None:
    # Up to 2.9 `x.y` means SASS and PTX of each; from 2.10 the list is sorted as text and only the last gets PTX.
    text = f'{CUDA}tensorflow: "{RELEASES[release].patches[0]}"\ncompute_capabilities: [sm_61, compute_70]\n'
    plan = desk.plan(text)
    values = {**plan.environment, **by_repo_env(plan.bazel_flags)}
    written = [value for name, value in values.items() if name.endswith("COMPUTE_CAPABILITIES")]
    assert set(written) == {"sm_61,compute_70"}


@pytest.mark.parametrize("release", [name for name in RELEASES if in_range(name, "1.4..2.2")])
def test_up_to_2_2_a_capability_is_x_y_and_sass_alone_is_refused(desk: Desk, release: str) -> None:
    # configure replaces a list that it cannot parse by 3.5,7.0, and 1.4 and 1.13 crash on `sm_70`.
    text = f'{CUDA}tensorflow: "{RELEASES[release].patches[0]}"\ncompute_capabilities: [{{0}}_52, compute_61]\n'
    assert desk.plan(text.format("compute")).environment["TF_CUDA_COMPUTE_CAPABILITIES"] == "5.2,6.1"
    assert [problem.code for problem in desk.problems(text.format("sm"))] == ["capability-needs-ptx"]


def test_capabilities_are_sorted_as_numbers_and_ptx_stays_where_it_was_asked(desk: Desk) -> None:
    # As text 12.0 sorts before 8.6, and the PTX that was meant for the newest GPU lands on 8.6.
    plan = desk.plan(
        f'{CUDA}tensorflow: "2.20.0"\ncuda: "12.8.1"\ncompiler: nvcc\n'
        "compute_capabilities: [compute_120, sm_100, sm_86, sm_90]\n"
    )
    assert plan.environment["HERMETIC_CUDA_COMPUTE_CAPABILITIES"] == "sm_86,sm_90,sm_100,compute_120"


@pytest.mark.parametrize(
    ("version", "capability"),
    [
        ("2.2.0", "sm_70"),
        ("2.15.0", "sm_90a"),
        ("2.15.0", "sm_120"),
        ("2.18.0", "sm_120"),
        ("2.18.0", "sm_100a"),
        ("2.20.0", "sm_120f"),
        ("2.21.0", "sm_120f"),
    ],
)
def test_a_capability_that_the_release_cannot_parse_is_refused(desk: Desk, version: str, capability: str) -> None:
    text = f'{HEAD}tensorflow: "{version}"\ncompute_capabilities: [{capability}]\n'
    assert {"capability-syntax", "capability-needs-ptx"} & {problem.code for problem in desk.problems(text)}


@each_build("cuda", "2.18..")
def test_hermetic_capabilities_come_after_every_config_and_under_the_name_that_wins(
    release: Release, build: Build
) -> None:
    # cuda_clang sets a list of its own under this name; what configure writes under build:cuda loses, as does TF_….
    its = written(release.release, build)
    flags = its.flags
    own = f"--repo_env=HERMETIC_CUDA_COMPUTE_CAPABILITIES={its.facts['capabilities']}"
    assert flags.index(own) > last_config(flags)
    assert "TF_CUDA_COMPUTE_CAPABILITIES" not in everything(its)


@each_build("cuda", "2.15..2.17", "clang")
def test_the_list_and_the_tensorrt_of_cuda_clang_are_taken_back_after_it(release: Release, build: Build) -> None:
    its = written(release.release, build)
    flags = its.flags
    for name, value in {"TF_CUDA_COMPUTE_CAPABILITIES": its.facts["capabilities"], "TF_NEED_TENSORRT": "0"}.items():
        assert flags.index(f"--repo_env={name}={value}") > flags.index("--config=cuda_clang")
        assert its.environment[name] == value


@pytest.mark.parametrize(
    ("optimize", "first"), [("portable", "-Wno-sign-compare"), ("native", "-march=native -Wno-sign-compare")]
)
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_only_native_is_native(desk: Desk, release: Release, optimize: str, first: str) -> None:
    # Up to 2.4 the default of CC_OPT_FLAGS, and an empty value, is -march=native.
    text = f'{HEAD}tensorflow: "{release.patches[0]}"\noptimize: {optimize}\n'
    assert desk.plan(text).environment["CC_OPT_FLAGS"] == first


@pytest.mark.parametrize("optimize", ["portable", "native", "[avx2]"])
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_the_tools_of_a_portable_build_are_portable_too(desk: Desk, release: Release, optimize: str) -> None:
    # 1.5 to 2.4: ./configure puts --host_copt=-march=native into `opt`, which only a later flag takes back.
    flags = desk.plan(f'{HEAD}tensorflow: "{release.patches[0]}"\noptimize: {optimize}\n').bazel_flags
    places = [place for place, flag in enumerate(flags) if flag == "--host_copt=-march=x86-64"]
    assert len(places) == int(in_range(release.release, "1.5..2.4") and optimize != "native")
    assert all(place > flags.index("--config=opt") for place in places)


# --- values ---------------------------------------------------------------------------------------------------------


@each_build()
def test_an_empty_value_is_written_only_where_it_means_no(release: Release, build: Build) -> None:
    # Elsewhere empty means "ask me" up to 2.19 and "the default" later. 1.5 takes any text, 0 as well, for yes.
    empty = {name for name, value in everything(written(release.release, build)).items() if not value.strip()}
    assert empty == ({"TF_SET_ANDROID_WORKSPACE"} if release.release == "1.5" else set())


@each_build()
def test_a_boolean_is_a_digit(release: Release, build: Build) -> None:
    # 1.4 and 1.5 do int(value); TF_ENABLE_XLA is compared with "1" in 2.2 to 2.4 and goes through int() later;
    # the ROCm rule compares TF_NEED_ROCM with "1"; USE_DEFAULT_PYTHON_LIB_PATH is compared with "1" everywhere.
    for name, value in everything(written(release.release, build)).items():
        if re.match(r"TF_NEED_|TF_ENABLE_|TF_CUDA_CLANG|TF_DOWNLOAD_|TF_ROCM_CLANG|USE_", name):
            assert value in ("0", "1"), name


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_xla_is_said_in_a_digit_both_ways(desk: Desk, release: Release) -> None:
    text = f'{HEAD}tensorflow: "{release.patches[0]}"\n'
    assert [desk.plan(f"{text}xla: {xla}\n").environment["TF_ENABLE_XLA"] for xla in ("true", "false")] == ["1", "0"]


@each_build()
def test_cuda_and_rocm_are_both_said_and_never_both_wanted(release: Release, build: Build) -> None:
    environment = written(release.release, build).environment
    wanted = [environment.get(f"TF_NEED_{name}", "0") for name in ("CUDA", "ROCM")]
    assert wanted == [str(int(build.accelerator == name)) for name in ("cuda", "rocm")]


@each_build("cuda", "1.4..2.17")
def test_cudnn_is_always_said_and_never_the_default_that_does_not_exist(release: Release, build: Build) -> None:
    # _DEFAULT_CUDNN_VERSION is '2' in 2.9 to 2.17.
    version = written(release.release, build).environment["TF_CUDNN_VERSION"]
    assert Version(release.components["cudnn"].tested or "").matches(Version(version))
    assert Version(version).parts[0] in (6, 7, 8)


@each_build("cuda", "1.4..2.13")
def test_nccl_is_the_one_bazel_downloads_wherever_the_default_is_not(release: Release, build: Build) -> None:
    # 1.10 to 1.12 default to an installed NCCL 2.2, and crash without it.
    version = written(release.release, build).environment.get("TF_NCCL_VERSION")
    assert version == ("1.3" if in_range(release.release, "1.8..1.12") else None)


@each_build("cuda", "2.18..")
def test_hermetic_versions_are_exact_keys_of_the_releases_list(release: Release, build: Build) -> None:
    its = written(release.release, build)
    for name in ("cuda", "cudnn"):
        support, variable = release.components[name], f"HERMETIC_{name.upper()}_VERSION"
        assert its.environment[variable] == by_repo_env(its.flags)[variable] == support.tested
        assert support.tested in support.accepted


@each_build("rocm", "1.12..")
def test_amd_targets_never_come_from_the_machine_that_builds(release: Release, build: Build) -> None:
    # Up to 2.3 the default is gfx803,gfx900, later what rocm_agent_enumerator says: without a GPU, nothing.
    assert written(release.release, build).environment["TF_ROCM_AMDGPU_TARGETS"] == "gfx906,gfx90a"


# --- compilers ------------------------------------------------------------------------------------------------------


@each_build("cuda", "1.4..")
def test_who_compiles_gpu_code_is_always_said(release: Release, build: Build) -> None:
    # Unset is nvcc up to 2.13 and clang from 2.14.
    its = written(release.release, build)
    clang = build.gpu_compiler == "clang"
    assert its.environment["TF_CUDA_CLANG"] == str(int(clang))
    assert ("--config=cuda_clang" in its.flags) is clang


@each_build("cuda", "2.18..", "nvcc")
def test_hermetic_nvcc_is_chosen_by_its_config(release: Release, build: Build) -> None:
    # TF_CUDA_CLANG=0 alone lets clang compile, and --config=cuda alone whoever compiles C++.
    flags = written(release.release, build).flags
    configs = {flag for flag in flags if flag.startswith("--config=")} - {"--config=clang_local"}
    beside_clang = "--config=nvcc_clang" if release.release == "2.18" else "--config=cuda_nvcc"
    nvcc = beside_clang if build.host_compiler == "clang" else "--config=cuda"
    assert configs == {"--config=opt", nvcc, "--config=cuda_wheel"}
    assert ("--repo_env=CUDA_NVCC=1" in flags) is (build.host_compiler == "gcc")


@pytest.mark.parametrize(("compiler", "works"), [("nvcc", True), ("clang", False)])
def test_blackwell_is_compiled_by_nvcc_and_not_by_the_clang_of_the_release(
    desk: Desk, compiler: str, works: bool
) -> None:
    text = f'{HEAD}tensorflow: "2.20.0"\ncuda: "12.8.1"\ncompute_capabilities: [sm_120]\ncompiler: {compiler}\n'
    if works:
        assert "--config=cuda_nvcc" in desk.plan(text).bazel_flags
    else:
        assert desk.problems(text)


@each_build()
def test_a_host_compiler_is_always_said_to_a_release_that_would_take_clang(release: Release, build: Build) -> None:
    # From 2.14 a build without CUDA takes clang unless told not to, and gives up where there is none.
    environment = written(release.release, build).environment
    asked = in_range(release.release, "2.14..") and build.accelerator != "cuda"
    clang = build.host_compiler == "clang" and (build.accelerator == "cpu" or in_range(release.release, "2.19.."))
    assert environment.get("TF_NEED_CLANG") == (str(int(clang)) if asked else None)
    assert ("CLANG_COMPILER_PATH" in environment) is (asked and clang)


@pytest.mark.parametrize("release", [name for name in RELEASES if in_range(name, "2.20..")])
def test_gcc_is_used_only_when_bazels_own_clang_is_sent_away(desk: Desk, release: str) -> None:
    text = f'{CUDA.replace("cuda", "cpu")}tensorflow: "{RELEASES[release].patches[0]}"\nhost_compiler: {{}}\n'
    text += "allow_failing: the checkout has the patch\n"
    text += 'bazel: {{flags: ["--define=xnn_enable_avx512fp16=false"]}}\n'  # with it XNNPACK wants gcc 12
    assert "--config=clang_local" in desk.plan(text.format("gcc")).bazel_flags
    assert "--config=clang_local" not in desk.plan(text.format("clang")).bazel_flags


# --- configs --------------------------------------------------------------------------------------------------------


@each_build()
def test_what_a_config_says_loses_against_what_is_asked(release: Release, build: Build) -> None:
    flags = written(release.release, build).flags
    first = next((place for place, flag in enumerate(flags) if flag.startswith("--repo_env=")), len(flags))
    assert last_config(flags) < first


@each_build()
def test_no_config_of_googles_machines_is_used(release: Release, build: Build) -> None:
    # release_* before 2.20 name compilers and CUDA folders of the official images, in 2.13 and 2.14 even older ones;
    # rbe_* want credentials; tf_public_cache serves no image but the official one.
    configs = [flag for flag in written(release.release, build).flags if flag.startswith("--config=")]
    assert not [flag for flag in configs if re.search(r"release_|rbe|_official|public_cache", flag)]


@pytest.mark.parametrize(
    "wants", ["", "gpus: [a100]\n", 'allow_untested: true\nrocm: "6.1"\namdgpu_targets: [gfx90a]\n']
)
def test_opt_is_given_only_because_configure_defines_it(desk: Desk, wants: str) -> None:
    # No .bazelrc defines `opt`: without ./configure Bazel stops at "Config value 'opt' is not defined".
    text = f'{HEAD}tensorflow: "2.15.0"\n{wants}'
    plan = desk.plan(text)
    assert "--config=opt" in plan.bazel_flags
    files = plan.context.files
    scripts = {name: body.decode() for name, body in files.items() if name.endswith("configure.sh")}
    assert [body for body in scripts.values() if re.search(r"^\./configure </dev/null$", body, re.MULTILINE)]
    assert re.search(r"^RUN .*configure\.sh", files["Dockerfile"].decode(), re.MULTILINE)


@each_build("cuda", "2.18..")
def test_cuda_stays_out_of_a_hermetic_wheel(release: Release, build: Build) -> None:
    # The GPU configs put CUDA's libraries in; cuda_wheel takes them out, if it comes later.
    flags = written(release.release, build).flags
    assert flags.index("--config=cuda_wheel") == last_config(flags)


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_no_flag_makes_every_action_of_the_build_depend_on_it(release: Release) -> None:
    # The official images and .bazelrc carry --action_env=CACHEBUSTER…, so that nobody's cache hits.
    for build in (Build(accelerator="cpu", host_compiler="gcc"), Build(accelerator="cuda", host_compiler="gcc")):
        assert not [flag for flag in written(release.release, build).flags if "action_env" in flag]


@pytest.mark.parametrize(
    ("release", "accelerator", "bazel", "options"),
    [
        ("2.4", "cuda", "3.1.0", ("--repo_env=TF_CUDA_COMPUTE_CAPABILITIES",)),
        ("1.15", "cuda", "0.26.1", ("--repo_env=TF_CUDA_COMPUTE_CAPABILITIES",)),
        ("1.15", "cuda", "0.24.1", ()),
        ("2.4", "cpu", "3.1.0", ()),
        ("2.18", "cuda", "6.5.0", ()),
    ],
)
def test_capabilities_enter_the_keys_of_what_they_change_and_no_other(
    release: str, accelerator: str, bazel: str, options: tuple[str, ...]
) -> None:
    # configure writes --action_env up to 2.17, of which an old Bazel has no other kind, and nothing from 2.18 on.
    contract = Contract(KNOWLEDGE, RELEASES[release], {"accelerator": accelerator})
    assert contract.of_repositories(bazel) == options


# --- Python and the wheel -------------------------------------------------------------------------------------------


@each_build()
def test_the_wheels_python_is_said_where_the_release_reads_it(release: Release, build: Build) -> None:
    # PYTHON_BIN_PATH no longer chooses it from 2.14 on.
    its = written(release.release, build)
    said = by_repo_env(its.flags)
    reads = {"TF_PYTHON_VERSION": "2.14..2.16", "HERMETIC_PYTHON_VERSION": "2.17.."}
    wanted = {name: release.pythons[-1] for name, releases in reads.items() if in_range(release.release, releases)}
    assert {name: value for name, value in said.items() if "PYTHON" in name} == wanted
    assert its.environment["PYTHON_BIN_PATH"] == "/the/python"


@each_build()
def test_the_wheels_name_goes_to_bazel_or_to_the_script_and_never_to_both(release: Release, build: Build) -> None:
    its = written(release.release, build)
    by_flag = by_repo_env(its.flags).get("WHEEL_NAME")
    assert (by_flag == "tensorflow") is in_range(release.release, "2.17..")
    assert "WHEEL_NAME" not in its.environment
    assert ("--project_name" in release.wheel.command) is in_range(release.release, "1.9..2.16")


@pytest.mark.parametrize("release", [name for name in RELEASES if in_range(name, "2.20..")])
def test_the_version_has_no_suffix_of_a_self_built_snapshot(release: str) -> None:
    build = Build(accelerator="cpu", host_compiler="clang")
    assert by_repo_env(written(release, build).flags)["ML_WHEEL_TYPE"] == "release"


# --- floors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "capability", "wants", "code"),
    [
        ("1.4.1", "compute_30", "", "xla-floor"),
        ("1.4.1", "compute_30", "xla: false\n", None),
        ("2.2.0", "compute_30", "xla: false\n", None),
        # From 2.3 the run time ignores what is below 3.5, whatever was compiled.
        ("2.3.0", "sm_30", "xla: false\n", "release-floor"),
        ("2.4.0", "sm_35", "", None),
    ],
)
def test_a_gpu_below_the_floor_of_the_release_or_of_xla_is_refused(
    desk: Desk, version: str, capability: str, wants: str, code: str | None
) -> None:
    text = f'{HEAD}tensorflow: "{version}"\ncompute_capabilities: [{capability}]\n{wants}'
    if code:
        assert code in [problem.code for problem in desk.problems(text)]
    else:
        assert desk.resolve(text).targets == (capability,)


@pytest.mark.parametrize(("xla", "first"), [("true", "compute_35"), ("false", "compute_30")])
def test_of_the_official_list_only_what_is_used_is_built(desk: Desk, xla: str, first: str) -> None:
    # The official wheel of 1.4 was built for 3.0 as well, and without XLA.
    assert desk.resolve(f'{HEAD}tensorflow: "1.4.1"\naccelerator: cuda\nxla: {xla}\n').targets[0] == first
