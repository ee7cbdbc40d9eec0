"""Laws of the shipped knowledge rows: what must hold of the data, whoever adds a row."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

import tfdock
from tfdock.model import Capability, ImageRef, Version
from tfdock.read.knowledge import Flag, Image, KnowledgeBase, Release, Variable, in_range
from tfdock.read.yamldoc import MAX_BYTES

FOLDER = Path(tfdock.__file__).parent / "knowledge"
FILES = sorted(FOLDER.glob("*.yaml"))
TABLES = ("releases", "variables", "flags", "toolkits", "compilers", "gpus", "images", "accelerators")

COMPONENT_FACTS = {f"{name}{part}" for name in ("cuda", "cudnn", "rocm") for part in ("", "_minor", "_major")}
PATH_FACTS = {f"{name}_path" for name in ("python", "clang", "gcc", "cuda", "rocm")}
CONDITIONS = {
    "accelerator": {"cuda", "rocm", "cpu"},
    "gpu_compiler": {"clang", "nvcc", ""},
    "host_compiler": {"clang", "gcc"},
    "optimize": {"portable", "native", "custom"},
    "xla": {"true", "false"},
    "debug": {"true", "false"},
}
FACTS = (
    {*CONDITIONS, *COMPONENT_FACTS, *PATH_FACTS}
    | {"xla_digit", "optimize_flags", "python", "python_minor", "python_major", "version", "version_minor"}
    | {"version_major", "release", "capabilities", "amdgpu_targets", "targets", "wheel_name", "output"}
)


@pytest.fixture(scope="module")
def knowledge() -> KnowledgeBase:
    return KnowledgeBase({file.stem: [(file.name, file.read_text())] for file in FILES})


def _plain(table: str) -> dict[str, Any]:
    loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: dict[str, Any] = yaml.load((FOLDER / f"{table}.yaml").read_text(), loader)
    return document


def _wanted(want: str | tuple[str, ...]) -> tuple[str, ...]:
    return (want,) if isinstance(want, str) else want


_Contract = TypeVar("_Contract", Variable, Flag)


def _applying(rows: Iterable[_Contract], release: str, **facts: str) -> list[_Contract]:
    return [
        row
        for row in rows
        if in_range(release, row.releases)
        and all(facts.get(name, "") in _wanted(want) for name, want in row.when.items())
    ]


def _placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def _combinations(release: Release) -> list[dict[str, str]]:
    """The accelerators and compilers a build of the release can have."""
    hosts = ("clang", "gcc") if release.clang else ("gcc",)
    found = [{"accelerator": "cpu", "host_compiler": host} for host in hosts]
    found += [
        {"accelerator": "cuda", "host_compiler": host, "gpu_compiler": compiler}
        for host in hosts
        for compiler in ("clang", "nvcc")
    ]
    if "rocm" in release.components:
        found += [{"accelerator": "rocm", "host_compiler": host} for host in hosts]
    return found


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_every_table_loads_and_has_rows(knowledge: KnowledgeBase, table: str) -> None:
    assert getattr(knowledge, table)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_are_small_enough_to_read_and_name_no_package_host(file: Path) -> None:
    text = file.read_text()
    assert len(text.encode()) < MAX_BYTES - 6 * 1024
    assert not re.search(r"pypi\.org|pythonhosted|registry\.npmjs", text)
    assert text.startswith("# "), "a table begins by saying what it is"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_cites_a_source_of_its_file(file: Path) -> None:
    document = _plain(file.stem)
    cited = set()
    for row in document["rows"]:
        keys = [row["source"]] if isinstance(row["source"], str) else row["source"]
        assert keys, row
        assert set(keys) <= set(document["sources"]), row
        cited |= set(keys)
    assert cited == set(document["sources"]), "a source nobody cites is a leftover"


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ("releases", ("release",)),
        ("toolkits", ("toolkit", "version")),
        ("compilers", ("compiler", "version")),
        ("gpus", ("gpu",)),
        ("accelerators", ("accelerator",)),
    ],
)
def test_no_key_stands_twice(table: str, keys: tuple[str, ...]) -> None:
    found = [tuple(row[key] for key in keys) for row in _plain(table)["rows"]]
    assert len(found) == len(set(found))


# --- releases -------------------------------------------------------------------------------------------------------


def test_releases_are_gap_free_and_sorted(knowledge: KnowledgeBase) -> None:
    wanted = [f"1.{minor}" for minor in range(4, 16)] + [f"2.{minor}" for minor in range(22)]
    assert list(knowledge.releases) == wanted


def test_versions_of_a_release_are_its_own_and_ascend(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        assert release.patches
        assert all(Version(patch).matches(Version(release.release)) for patch in release.patches)
        lists = [release.patches, release.pythons]
        lists += [values for one in release.components.values() for values in (one.accepted, one.uncertain)]
        for values in lists:
            assert list(values) == sorted(set(values), key=Version), (release.release, values)


def test_commits_are_whole_and_belong_to_a_patch_release(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        assert set(release.commits) <= set(release.patches)
        assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in release.commits.values())
    commits = [commit for release in knowledge.releases.values() for commit in release.commits.values()]
    assert len(commits) == len(set(commits))


def test_what_is_tested_is_accepted(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        for name, support in release.components.items():
            assert support.tested in support.accepted, (release.release, name)
            assert not set(support.accepted) & set(support.uncertain), (release.release, name)


def test_lists_are_closed_where_bazel_downloads_cuda(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        hermetic = Version(release.release) >= Version("2.18")
        for name in ("cuda", "cudnn"):
            assert release.components[name].closed is hermetic
    # Keys are exact: only CUDA 11.8 and, in 2.18 and 2.19, cuDNN 8.6 have two parts.
    short = {
        version
        for release in knowledge.releases.values()
        for support in release.components.values()
        if support.closed
        for version in (*support.accepted, *support.uncertain)
        if len(Version(version).parts) < 3
    }
    assert short == {"11.8", "8.6"}


def test_the_default_compiler_is_the_official_wheels(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        clang = Version(release.release) >= Version("2.13")
        assert release.gpu_compiler == ("clang" if clang else "nvcc")
        assert bool(release.clang) is clang
        if release.clang:
            assert ("clang", release.clang) in knowledge.compilers


def test_every_official_target_fits_the_release_and_its_toolkit(knowledge: KnowledgeBase) -> None:
    official = [release for release in knowledge.releases.values() if "cuda" in release.official_targets]
    assert [release.release for release in official] == [f"2.{minor}" for minor in range(4, 22)]
    for release in official:
        toolkit = knowledge.toolkits["cuda", str(Version(release.components["cuda"].tested or "").minor)]
        for target in release.official_targets["cuda"]:
            assert re.fullmatch(release.capability_pattern or "", target)
            assert Capability.parse(target).number in toolkit.targets
            if release.gpu_compiler == "clang":
                assert Capability.parse(target).number in knowledge.compilers["clang", release.clang or ""].targets


@pytest.mark.parametrize(
    ("release", "takes", "refuses"),
    [
        ("1.4", ("3.7", "6.1"), ("sm_37", "2.1", "8")),
        ("2.2", ("7.0",), ("sm_70", "compute_70")),
        ("2.3", ("sm_70", "compute_80"), ("7.0", "sm_90a", "sm_120")),
        ("2.15", ("sm_86",), ("sm_90a", "sm86")),
        ("2.16", ("sm_90a", "compute_90"), ("sm_120", "sm_86a")),
        ("2.18", ("compute_90",), ("sm_100",)),
        ("2.19", ("sm_90a",), ("sm_120",)),
        ("2.20", ("sm_120", "sm_100a", "compute_90"), ("sm_120f", "12.0")),
        ("2.21", ("sm_120",), ("sm_120f",)),
    ],
)
def test_a_release_takes_capabilities_as_it_writes_them(
    knowledge: KnowledgeBase, release: str, takes: tuple[str, ...], refuses: tuple[str, ...]
) -> None:
    row = knowledge.releases[release]
    assert row.capability_format == ("dotted" if "." in takes[0] else "named")
    assert all(re.fullmatch(row.capability_pattern or "", text) for text in takes)
    assert not any(re.fullmatch(row.capability_pattern or "", text) for text in refuses)


def test_a_wheel_is_a_target_or_made_by_a_script(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        wheel = release.wheel
        if Version(release.release) >= Version("2.17"):
            assert (wheel.target, wheel.command) == ("//tensorflow/tools/pip_package:wheel", ())
            assert wheel.folder
        else:
            assert wheel.target == "//tensorflow/tools/pip_package:build_pip_package"
            assert wheel.command[:2] == ("bazel-bin/tensorflow/tools/pip_package/build_pip_package", "{output}")
            assert wheel.folder is None
        # build_pip_package learned --project_name with 1.9.
        named = Version("1.9") <= Version(release.release) < Version("2.17")
        assert ("--project_name" in wheel.command) is named


# --- variables and flags --------------------------------------------------------------------------------------------

# Spot checks against configure.py and the Bazel rules at the tags: the releases that read a variable.
READ_BY = {
    "PYTHON_BIN_PATH": "1.4..",
    "USE_DEFAULT_PYTHON_LIB_PATH": "1.4..",
    "TF_PYTHON_VERSION": "2.14..2.16",
    "HERMETIC_PYTHON_VERSION": "2.17..",
    "TF_ENABLE_XLA": "1.4..",
    "CC_OPT_FLAGS": "1.4..",
    "TF_NEED_JEMALLOC": "1.4..1.11",
    "TF_NEED_GCP": "1.4..1.11",
    "TF_NEED_HDFS": "1.4..1.11",
    "TF_NEED_S3": "1.4..1.9",
    "TF_NEED_AWS": "1.10..1.11",
    "TF_NEED_KAFKA": "1.6..1.11",
    "TF_NEED_IGNITE": "1.12",
    "TF_NEED_NGRAPH": "1.11",
    "TF_NEED_GDR": "1.4..1.11",
    "TF_NEED_VERBS": "1.4..1.11",
    "TF_NEED_MPI": "1.4..2.0",
    "TF_NEED_OPENCL": "1.4",
    "TF_NEED_OPENCL_SYCL": "1.5..2.3",
    "TF_SET_ANDROID_WORKSPACE": "1.5..",
    "CC": "1.4..",
    "TF_DOWNLOAD_CLANG": "1.6..2.13",
    "TF_NEED_CLANG": "2.14..",
    "CLANG_COMPILER_PATH": "2.14..",
    "TF_NEED_CUDA": "1.4..",
    "TF_CUDA_CLANG": "1.4..",
    "CLANG_CUDA_COMPILER_PATH": "1.4..",
    "GCC_HOST_COMPILER_PATH": "1.4..",
    "CUDA_TOOLKIT_PATH": "1.4..2.17",
    "CUDNN_INSTALL_PATH": "1.4..2.17",
    "TF_CUDA_PATHS": "1.14..2.17",
    "TF_CUDA_VERSION": "1.4..2.17",
    "TF_CUDNN_VERSION": "1.4..2.17",
    "TF_NCCL_VERSION": "1.8..2.17",
    "TF_NEED_TENSORRT": "1.6..2.17",
    "TF_CUDA_COMPUTE_CAPABILITIES": "1.4..2.17",
    "HERMETIC_CUDA_VERSION": "2.18..",
    "HERMETIC_CUDNN_VERSION": "2.18..",
    "HERMETIC_CUDA_COMPUTE_CAPABILITIES": "2.18..",
    "TF_NEED_ROCM": "1.12..",
    "TF_ROCM_AMDGPU_TARGETS": "1.12..",
    "ROCM_TOOLKIT_PATH": "1.12..2.3",
    "ROCM_PATH": "2.3..",
    "TF_ROCM_CLANG": "2.19..",
    "WHEEL_NAME": "2.17..",
    "ML_WHEEL_TYPE": "2.20..",
}

# Without these, configure asks or takes a default that is wrong: (accelerator, variables, releases).
NEEDED = [
    ("", ("PYTHON_BIN_PATH", "USE_DEFAULT_PYTHON_LIB_PATH"), "1.4.."),
    ("", ("TF_ENABLE_XLA", "CC_OPT_FLAGS", "TF_NEED_CUDA"), "1.4.."),
    ("", ("TF_NEED_JEMALLOC", "TF_NEED_GCP", "TF_NEED_HDFS", "TF_NEED_GDR", "TF_NEED_VERBS"), "1.4..1.11"),
    ("", ("TF_NEED_S3",), "1.4..1.9"),
    ("", ("TF_NEED_AWS",), "1.10..1.11"),
    ("", ("TF_NEED_KAFKA",), "1.6..1.11"),
    ("", ("TF_NEED_MPI",), "1.4..2.0"),
    ("", ("TF_NEED_OPENCL",), "1.4"),
    ("", ("TF_NEED_OPENCL_SYCL",), "1.5..2.3"),
    ("", ("TF_SET_ANDROID_WORKSPACE",), "1.5.."),
    ("", ("TF_NEED_ROCM",), "1.12.."),
    ("cpu", ("TF_DOWNLOAD_CLANG",), "1.6..2.13"),
    ("cpu", ("TF_NEED_CLANG",), "2.14.."),
    ("rocm", ("TF_NEED_CLANG",), "2.14.."),
    ("rocm", ("TF_ROCM_AMDGPU_TARGETS",), "1.12.."),
    ("cuda", ("TF_CUDA_CLANG",), "1.4.."),
    ("cuda", ("TF_CUDA_VERSION", "TF_CUDNN_VERSION", "CUDA_TOOLKIT_PATH"), "1.4..2.17"),
    ("cuda", ("TF_CUDA_COMPUTE_CAPABILITIES",), "1.4..2.17"),
    ("cuda", ("TF_NEED_TENSORRT",), "1.6..2.17"),
    ("cuda", ("TF_NCCL_VERSION",), "1.8..1.12"),
    ("cuda", ("HERMETIC_CUDA_VERSION", "HERMETIC_CUDNN_VERSION"), "2.18.."),
    ("cuda", ("HERMETIC_CUDA_COMPUTE_CAPABILITIES",), "2.18.."),
]


def test_every_variable_is_one_the_release_reads(knowledge: KnowledgeBase) -> None:
    assert {row.variable for row in knowledge.variables} == set(READ_BY)
    for row in knowledge.variables:
        for release in knowledge.releases:
            if in_range(release, row.releases):
                assert in_range(release, READ_BY[row.variable]), (row.variable, release)


def test_configure_gets_everything_it_would_ask_for(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        for facts in _combinations(release):
            rows = _applying(knowledge.variables, release.release, **facts)
            given = {row.variable for row in rows if row.channel == "environment"}
            for accelerator, names, span in NEEDED:
                if accelerator in ("", facts["accelerator"]) and in_range(release.release, span):
                    assert set(names) <= given, (release.release, facts, set(names) - given)


def test_a_variable_has_one_value_per_build_and_channel(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        for facts in _combinations(release):
            rows = _applying(knowledge.variables, release.release, **facts)
            names = [(row.variable, row.channel) for row in rows]
            assert len(names) == len(set(names)), (release.release, facts)


def test_rows_use_only_the_facts_and_channels_there_are(knowledge: KnowledgeBase) -> None:
    conditions = [row.when for row in knowledge.variables] + [row.when for row in knowledge.flags]
    for when in conditions:
        for name, want in when.items():
            assert set(_wanted(want)) <= CONDITIONS[name], when
    assert {row.channel for row in knowledge.variables} == {"environment", "repo_env"}
    for text in [row.value for row in knowledge.variables] + [row.flag for row in knowledge.flags]:
        assert _placeholders(text) <= FACTS, text


def test_every_range_holds_a_known_release(knowledge: KnowledgeBase) -> None:
    spans = {row.releases for row in knowledge.variables}
    spans |= {row.releases for row in knowledge.flags} | {row.releases for row in knowledge.images}
    for span in spans:
        assert any(in_range(release, span) for release in knowledge.releases), span


def test_an_empty_value_is_only_given_where_it_does_not_mean_a_question(knowledge: KnowledgeBase) -> None:
    empty = [(row.variable, row.releases) for row in knowledge.variables if not row.value.strip()]
    assert empty == [("TF_SET_ANDROID_WORKSPACE", "1.5")]


def test_capabilities_win_over_the_list_of_cuda_clang(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases:
        rows = _applying(
            knowledge.variables, release, accelerator="cuda", gpu_compiler="clang", host_compiler="clang"
        )
        by_flag = {row.variable for row in rows if row.channel == "repo_env"}
        if in_range(release, "2.15..2.17"):
            assert {"TF_CUDA_COMPUTE_CAPABILITIES", "TF_NEED_TENSORRT"} <= by_flag
        if in_range(release, "2.18.."):
            assert "HERMETIC_CUDA_COMPUTE_CAPABILITIES" in by_flag


@pytest.mark.parametrize(
    ("release", "compiler", "flags"),
    [
        ("1.4", "nvcc", ["--config=opt", "--config=cuda"]),
        ("2.14", "nvcc", ["--config=opt", "--config=cuda"]),
        ("2.14", "clang", ["--config=opt", "--config=cuda_clang", "--linkopt=-fuse-ld=lld", "--linkopt=-lm"]),
        ("2.18", "nvcc", ["--config=opt", "--config=nvcc_clang", "--config=cuda_wheel"]),
        ("2.20", "nvcc", ["--config=opt", "--config=cuda_nvcc", "--config=cuda_wheel"]),
        ("2.21", "nvcc", ["--config=opt", "--config=cuda_nvcc", "--config=cuda_wheel"]),
    ],
)
def test_the_compiler_is_chosen_by_a_config_of_that_release(
    knowledge: KnowledgeBase, release: str, compiler: str, flags: list[str]
) -> None:
    rows = _applying(knowledge.flags, release, accelerator="cuda", gpu_compiler=compiler, host_compiler="clang")
    assert [row.flag for row in rows if "offsetof" not in row.flag] == flags


def test_cuda_wheel_comes_after_the_config_that_puts_cuda_into_the_wheel(knowledge: KnowledgeBase) -> None:
    flags = [row.flag for row in knowledge.flags]
    assert all(flags.index("--config=cuda_wheel") > flags.index(f"--config=cuda{one}") for one in ("_clang", "_nvcc"))


# --- toolkits and compilers -----------------------------------------------------------------------------------------

FIRST = {
    "75": "10.0",
    "80": "11.0",
    "86": "11.1",
    "87": "11.4",
    "89": "11.8",
    "90": "11.8",
    "90a": "12.0",
    "100": "12.8",
    "101": "12.8",
    "120": "12.8",
    "103": "12.9",
    "121": "12.9",
    "100f": "12.9",
    "120f": "12.9",
    "110": "13.0",
    "88": "13.0",
    "107": "13.4",
}
LAST = {
    "20": "8.0",
    "30": "10.2",
    "32": "10.2",
    "35": "11.8",
    "37": "11.8",
    "50": "12.9",
    "61": "12.9",
    "70": "12.9",
    "72": "12.9",
    "101": "12.9",
}


def test_a_target_comes_and_goes_with_its_toolkit(knowledge: KnowledgeBase) -> None:
    cuda = [row for row in knowledge.toolkits.values() if row.toolkit == "cuda"]
    for target, version in FIRST.items():
        assert min(Version(row.version) for row in cuda if target in row.targets) == Version(version), target
    for target, version in LAST.items():
        assert max(Version(row.version) for row in cuda if target in row.targets) == Version(version), target


def test_toolkits_ascend_and_so_does_what_they_emit(knowledge: KnowledgeBase) -> None:
    for name in ("cuda", "rocm"):
        versions = [row.version for row in knowledge.toolkits.values() if row.toolkit == name]
        assert versions == sorted(versions, key=Version)
    for older, newer in pairwise([row for row in knowledge.toolkits.values() if row.toolkit == "cuda"]):
        assert Version(older.ptx or "") <= Version(newer.ptx or "")
        assert (older.host_gcc_max or 0) <= (newer.host_gcc_max or 0)
    assert ("cuda", "12.7") not in knowledge.toolkits


def test_a_patch_release_belongs_to_its_toolkit(knowledge: KnowledgeBase) -> None:
    for row in knowledge.toolkits.values():
        assert all(Version(patch).matches(Version(row.version)) for patch in row.patches)
        assert list(row.patches) == sorted(row.patches, key=Version)


def test_a_newer_clang_knows_every_target_of_an_older_one(knowledge: KnowledgeBase) -> None:
    rows = list(knowledge.compilers.values())
    assert [row.version for row in rows] == [str(major) for major in range(14, 24)]
    for older, newer in pairwise(rows):
        assert set(older.targets) <= set(newer.targets)
        assert Version(older.ptx or "") <= Version(newer.ptx or "")
        assert Version(older.toolkit_max or "") <= Version(newer.toolkit_max or "")
    assert "120" not in knowledge.compilers["clang", "18"].targets


def test_what_a_release_was_tested_with_is_a_known_toolkit(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        for name in ("cuda", "rocm"):
            support = release.components.get(name)
            if support and (name == "cuda" or Version(support.tested or "") >= Version("5.0")):
                assert (name, str(Version(support.tested or "").minor)) in knowledge.toolkits, release.release


# --- GPUs -----------------------------------------------------------------------------------------------------------


def test_every_gpu_is_compilable_by_some_toolkit(knowledge: KnowledgeBase) -> None:
    able = {
        name: {target for row in knowledge.toolkits.values() if row.toolkit == name for target in row.targets}
        for name in ("cuda", "rocm")
    }
    for gpu in knowledge.gpus.values():
        if gpu.accelerator == "cuda":
            assert Capability.of_gpu(gpu.target).number in able["cuda"], gpu.gpu
        else:
            assert gpu.target in able["rocm"] or "no ROCm release" in (gpu.note or ""), gpu.gpu


def test_gpu_names_are_as_people_type_them(knowledge: KnowledgeBase) -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in knowledge.gpus)


def test_a_drivers_name_means_one_target(knowledge: KnowledgeBase) -> None:
    targets: dict[str, set[str]] = {}
    for gpu in knowledge.gpus.values():
        for name in gpu.names:
            targets.setdefault(name.removeprefix("NVIDIA ").lower(), set()).add(gpu.target)
    assert not {name: found for name, found in targets.items() if len(found) > 1}


@pytest.mark.parametrize(
    ("gpu", "target"),
    [
        ("rtx3080", "8.6"),
        ("rtx2050", "8.6"),
        ("rtx4090", "8.9"),
        ("rtx5090", "12.0"),
        ("a100", "8.0"),
        ("h100", "9.0"),
        ("b200", "10.0"),
        ("b300", "10.3"),
        ("gb10", "12.1"),
        ("k80", "3.7"),
        ("v100", "7.0"),
        ("gtx1650", "7.5"),
        ("mx130", "5.0"),
        ("quadro-rtx6000", "7.5"),
        ("rtxa6000", "8.6"),
        ("rtx6000-ada", "8.9"),
        ("jetson-orin", "8.7"),
        ("jetson-thor", "11.0"),
        ("mi250x", "gfx90a"),
        ("mi300x", "gfx942"),
        ("rx7900xtx", "gfx1100"),
    ],
)
def test_well_known_gpus_have_their_target(knowledge: KnowledgeBase, gpu: str, target: str) -> None:
    assert knowledge.gpus[gpu].target == target


@pytest.mark.parametrize("name", ["gtx750", "gtx860m", "gt630", "gt640", "gt730", "gt730m", "gt740m", "710a"])
def test_a_name_sold_with_two_capabilities_is_no_row(knowledge: KnowledgeBase, name: str) -> None:
    precise = [gpu for gpu in knowledge.gpus.values() if gpu.gpu.startswith(f"{name}-cc")]
    assert name not in knowledge.gpus
    assert len({gpu.target for gpu in precise}) == len(precise) == 2
    assert all(gpu.note and gpu.unverified and not gpu.names for gpu in precise)


def test_a_target_fits_its_accelerator(knowledge: KnowledgeBase) -> None:
    for gpu in knowledge.gpus.values():
        row = knowledge.accelerators[gpu.accelerator]
        prefix = "sm_" if row.capabilities else ""
        target = prefix + Capability.of_gpu(gpu.target).number if prefix else gpu.target
        assert re.fullmatch(row.target_pattern or "", target), gpu.gpu


# --- images ---------------------------------------------------------------------------------------------------------


def _image_fits(row: Image, release: str, accelerator: str, components: dict[str, str]) -> bool:
    return (
        in_range(release, row.releases)
        and (not row.accelerators or accelerator in row.accelerators)
        and all(Version(components.get(name, "")).matches(Version(want)) for name, want in row.components.items())
    )


def test_every_release_and_accelerator_has_an_image(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        tested = {name: support.tested or "" for name, support in release.components.items()}
        for accelerator in ("cuda", "cpu", "rocm"):
            # No image of AMD's for releases before 2.9 is known.
            if accelerator == "rocm" and ("rocm" not in tested or Version(release.release) < Version("2.9")):
                continue
            rows = [row for row in knowledge.images if _image_fits(row, release.release, accelerator, tested)]
            pythons = {python for row in rows for python in row.pythons or release.pythons}
            assert pythons & set(release.pythons), (release.release, accelerator)
            # Where TensorFlow's own images exist they hold every Python, or nearly.
            if Version(release.release) >= Version("2.12") and accelerator != "rocm":
                assert set(release.pythons) <= pythons, (release.release, accelerator)


def test_an_image_has_the_tools_its_builds_need(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        tested = {name: support.tested or "" for name, support in release.components.items()}
        host = "clang" if release.clang else "gcc"
        for accelerator in ("cuda", "cpu", "rocm"):
            first = next(
                (row for row in knowledge.images if _image_fits(row, release.release, accelerator, tested)), None
            )
            if first is None:
                continue
            facts = {"accelerator": accelerator, "host_compiler": host}
            if accelerator == "cuda":
                facts["gpu_compiler"] = release.gpu_compiler or ""
            for variable in _applying(knowledge.variables, release.release, **facts):
                needed = {name.removesuffix("_path") for name in _placeholders(variable.value) & PATH_FACTS}
                assert needed <= set(first.paths), (release.release, accelerator, variable.variable, first.image)


def test_images_are_named_as_registries_name_them(knowledge: KnowledgeBase) -> None:
    facts = dict.fromkeys(COMPONENT_FACTS, "1.2.3")
    facts |= {"python": "3.11", "version": "2.18.0", "version_minor": "2.18"}
    for row in knowledge.images:
        reference = ImageRef.parse(row.image.format_map(facts))
        assert reference.tag
        assert row.template in ("sig-build", "ubuntu-devel", "rocm")
        assert row.bazel in ("bazelisk", "installed", "installer")
        assert set(row.accelerators) <= set(knowledge.accelerators)
        assert all(path.startswith("/") for path in row.paths.values())
        assert "python" in row.paths
        assert row.unverified, "nobody has pulled it: the day somebody does, this row says so"


def test_every_image_can_be_reached(knowledge: KnowledgeBase) -> None:
    """A row that an earlier one hides for all its releases, Pythons and accelerators is a leftover."""
    for index, row in enumerate(knowledge.images):
        for earlier in knowledge.images[:index]:
            hidden = (
                all(
                    in_range(release, earlier.releases)
                    for release in knowledge.releases
                    if in_range(release, row.releases)
                )
                and (not earlier.pythons or (row.pythons and set(row.pythons) <= set(earlier.pythons)))
                and (not earlier.accelerators or set(row.accelerators) <= set(earlier.accelerators))
                and all(row.components.get(name) == want for name, want in earlier.components.items())
            )
            assert not hidden, (earlier.image, row.image)


# --- accelerators ---------------------------------------------------------------------------------------------------


def test_the_accelerators_are_these_and_know_their_components(knowledge: KnowledgeBase) -> None:
    assert list(knowledge.accelerators) == ["cuda", "rocm", "cpu"]
    assert knowledge.accelerators["cuda"].components == ("cuda", "cudnn")
    assert knowledge.accelerators["rocm"].components == ("rocm",)
    assert knowledge.accelerators["cpu"].components == ()
    for row in knowledge.accelerators.values():
        assert row.toolkit is None or row.toolkit in row.components


@pytest.mark.parametrize("target", ["sm_86", "compute_90", "sm_90a", "sm_120", "sm_120f", "gfx90a", "gfx1100"])
def test_a_target_belongs_to_one_accelerator(knowledge: KnowledgeBase, target: str) -> None:
    patterns = [row.target_pattern for row in knowledge.accelerators.values() if row.target_pattern]
    assert sum(bool(re.fullmatch(pattern, target)) for pattern in patterns) == 1
