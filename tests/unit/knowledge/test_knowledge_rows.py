"""Laws of the shipped knowledge rows: what must hold of the data, whoever adds a row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

import tfdock
from tfdock.knowledge.contract import holds
from tfdock.knowledge.fits import distribution_of, libraries, serves
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.image_rows import ImageRow
from tfdock.knowledge.release_rows import Flag, Release, Variable
from tfdock.knowledge.rows import in_range, placeholders
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import LibraryRow, Toolkit
from tfdock.profile.yaml_nodes import MAX_BYTES
from tfdock.resolve.tools import packaged
from tfdock.types import Capability, ImageRef, Version

from ..desk import problem_of
from .test_failure_rows import document_of

FOLDER = Path(tfdock.__file__).parent / "knowledge"
FILES = sorted(FOLDER.glob("*.yaml"))
ALIGNMENT = "--action_env=NVCC_APPEND_FLAGS=-diag-warn=1886"
TABLES = ["bazel_options" if file.stem == "bazel" else file.stem for file in FILES]

COMPONENT_FACTS = {f"{name}{part}" for name in ("cuda", "cudnn", "rocm") for part in ("", "_minor", "_major")}
PATH_FACTS = {f"{name}_path" for name in ("python", "clang", "gcc", "cuda", "rocm")}
UNUSED = [f"--{option}=-Wno-unused-command-line-argument" for option in ("copt", "host_copt")]
CONDITIONS = {
    "accelerator": {"cuda", "rocm", "cpu"}, "gpu_compiler": {"clang", "nvcc", ""}, "host_compiler": {"clang", "gcc"},
    "optimize": {"portable", "native", "custom"}, "xla": {"true", "false"}, "cloud": {"true", "false"},
    "debug": {"off", "dbg", "opt", "fastbuild"}, "symbols": {"true", "false"},
    "gcc_major": set(map(str, range(7, 16))), "clang_major": set(map(str, range(14, 22))),
    "sysroot": {"none", "/dt9"}, "rocm_minor": {"6.4", "7.0", "7.1", "7.2"},
}  # fmt: skip
FACTS = (
    {*CONDITIONS, *COMPONENT_FACTS, *PATH_FACTS}
    | {"xla_digit", "optimize_flags", "python", "python_minor", "python_major", "version", "version_minor"}
    | {"version_major", "release", "capabilities", "amdgpu_targets", "targets", "wheel_name", "output"}
)


@pytest.fixture(scope="module")
def knowledge() -> KnowledgeBase:
    return KnowledgeBase({file.stem: [(file.name, file.read_text())] for file in FILES})


_Contract = TypeVar("_Contract", Variable, Flag)


def _applying(rows: Iterable[_Contract], release: str, **facts: str) -> list[_Contract]:
    return [row for row in rows if in_range(release, row.releases) and holds(row.when, facts)]


def _combinations(release: Release) -> list[dict[str, str]]:
    """The accelerators and compilers a build of the release can have."""
    hosts = tuple(dict.fromkeys([*release.compilers, "gcc"]))
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


def test_files_are_small_enough_to_read_and_name_no_package_host() -> None:
    for file in FILES:
        text = file.read_text()
        assert len(text.encode()) < MAX_BYTES - 6 * 1024, file
        assert not re.search(r"pypi\.org|pythonhosted|registry\.npmjs", text), file
        assert text.startswith("# "), f"{file.name} begins by saying what it is"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_cites_a_source_of_its_file(file: Path) -> None:
    document = document_of(file)
    cited = set()
    for row in document["rows"]:
        keys = [row["source"]] if isinstance(row["source"], str) else row["source"]
        assert keys, row
        assert set(keys) <= set(document["sources"]), row
        cited |= set(keys)
    assert cited == set(document["sources"]), "a source nobody cites is a leftover"


@pytest.mark.parametrize("table", TABLES)
def test_every_row_says_when_it_was_checked_or_that_nobody_has(knowledge: KnowledgeBase, table: str) -> None:
    rows = getattr(knowledge, table)
    assert rows
    for row in rows.values() if isinstance(rows, dict) else rows:
        if row.source in ("memory", ("memory",)):
            assert row.unverified, row
            assert not row.checked, row
        else:
            assert date.fromisoformat(row.checked) >= date(2026, 1, 1), row


@pytest.mark.parametrize(
    ("source", "checked"), [("s", "2026-11-21"), ("[s, memory]", "2026-11-21"), ("memory", ""), ("[memory]", "")]
)
def test_what_is_from_memory_alone_was_compared_with_nothing(source: str, checked: str) -> None:
    text = f"checked: '2026-11-21'\nrows:\n  - {{toolkit: cuda, version: '12.5', targets: [], source: {source}}}\n"
    base = KnowledgeBase({"toolkits": [("mine.yaml", text)]})
    assert base.toolkits["cuda", "12.5"].checked == checked


GOOD = 'sources: {{s: here}}\nrows:\n  - {{toolkit: cuda, version: "12.5", targets: [], source: s}}\n{}'


@pytest.mark.parametrize(
    ("table", "text", "place", "says"),
    [
        ("toolkits", GOOD.format('  - {toolkit: cuda, version: "12.5", targets: [], source: s}\n'), (4, 5),
         "cuda 12.5 already has a row, in line 3"),
        ("toolkits", GOOD.format("  - {toolkit: cuda, version: '12.6', targets: [], source: [s, t]}\n"), (4, 59),
         "source `t` is not explained in `sources:`"),
        ("toolkits", GOOD.format("  - {toolkit: cuda, version: 12.6, targets: [], source: s}\n"), (4, 30),
         "version: "),
        ("toolkits", GOOD.format("  - {toolkit: cuda, version: '12.6', targets: [], drivers: [], source: s}\n"),
         (4, 60), "drivers: "),
        (
            "releases",
            "rows:\n  - release: '9.9'\n    pythons: ['3.10']\n    bazel: '1.0'\n    wheel: {target: t}\n"
            "    cost: {memory_per_job_mib: 1, disk_gib: 1}\n    source: s\n"
            "    components:\n      cuda: {tested: '12.5', accepted: ['12.4', '12.50']}\n",
            (9, 13),
            "tested 12.5 is none of accepted (12.4, 12.50)",
        ),
        ("libraries", "rows:\n" + "  - {component: cudnn, since: '9.0', toolkits: ['11', '12'], source: s}\n" * 2,
         (3, 5), "cudnn 9.0 11 12 already has a row, in line 2"),
        ("toolkits", "targets: []\n", (1, 1), "needs a list `rows:`"),
    ],
    ids=["twice", "unknown source", "number", "unknown field", "tested, not accepted", "twice, by a list", "no rows"],
)  # fmt: skip
def test_a_row_that_cannot_be_right_is_refused_where_it_stands(
    table: str, text: str, place: tuple[int, int], says: str
) -> None:
    problem = problem_of(lambda: getattr(KnowledgeBase({table: [("mine.yaml", text)]}), table))
    assert (problem.file, problem.line, problem.column) == ("mine.yaml", *place)
    assert problem.code == ("knowledge-table" if says.startswith("needs") else "knowledge-row")
    assert says in problem.message
    assert problem.fix


COST = "{memory_per_job_mib: 1, disk_gib: 1}"
LEAST_RELEASE = f"release: '9.9', pythons: ['3.11'], bazel: '7.0.0', wheel: {{target: t}}, cost: {COST}"


@pytest.mark.parametrize(
    ("table", "row", "at", "says"),
    [
        ("gpus", "gpu: g, accelerator: cuda, target: '86'", "'86'", "its targets look like `8.6`"),
        ("gpus", "gpu: g, accelerator: rocm, target: '8.6'", "'8.6'", "its targets look like `gfx[0-9a-f]{3,5}`"),
        ("gpus", "gpu: g, accelerator: npu, target: '86'", "npu", "no known accelerator of this"),
        ("gpus", "gpu: g, accelerator: cpu, target: '86'", "cpu", "no known accelerator of this"),
        ("architectures", "architecture: a, accelerator: npu, targets: []", "npu", "no known accelerator of this"),
        ("architectures", "architecture: a, accelerator: cuda, targets: ['8.6', '86']", "['8.6'", "`86` is not"),
        ("architectures", "architecture: a, accelerator: cuda, targets: [], embedded: ['87']", "['87'",
         "`87` is not"),
        ("architectures", "architecture: a, accelerator: cuda, targets: [], driver_max: '570.1'", "'570.1'",
         "'570.1' is not a driver branch"),
        ("architectures", "architecture: a, accelerator: cuda, targets: [], driver_min: {'8.6': r570}", "r570",
         "'r570' is not a driver version"),
        ("toolkits", "toolkit: cuda, version: '12.5', targets: ['86', sm_90]", "['86'", "`sm_90` is not"),
        ("libraries", "component: cudnn, since: '9', lowest: '50'", "'50'", "not a dotted compute capability: '50'"),
        ("companions", "component: c, accelerator: rocm, releases: '2.14', ignores: ['90a'], limit: x", "['90a'",
         "`90a` is not the target"),
        ("companions", "component: c, accelerator: rocm, releases: '2.14', ignores: [gfx90a]", "[gfx90a]",
         "`limit` must give the reason"),
        ("companions", "component: c, accelerator: rocm, releases: '2.14', wheels: [tensorflow-rocm]",
         "tensorflow-rocm", "is not a requirement pinned"),
        ("generated_kernels", "accelerator: cuda, releases: '2.18', targets: [gfx90a], count: 1", "[gfx90a]",
         "`gfx90a` is not a target of cuda"),
        ("runtime_compilers", "compiler: XLA, accelerator: cuda, releases: '2.18', failing: x, targets: {'90': 9a}",
         "9a", "not a dotted compute capability"),
        ("wheel_libraries", "paths: '(a', what: x", "'(a'", "is not a regular expression"),
        ("accelerators", "accelerator: npu, packages: {x: '(a'}", "'(a'", "is not a regular expression"),
        ("releases", f"{LEAST_RELEASE}, tag: 'v{{foo}}'", "'v{foo}'", "{foo} is unknown here; known: version"),
        ("releases", f"{LEAST_RELEASE}, capability_pattern: '(sm'", "'(sm'", "is not a regular expression"),
        ("releases", f"{LEAST_RELEASE}, capability_doubt: '(sm'", "'(sm'", "is not a regular expression"),
        ("releases", f"{LEAST_RELEASE}, floor: {{cuda: '35'}}", "'35'", "not a dotted compute capability"),
        ("releases", f"{LEAST_RELEASE}, xla_floor: {{cuda: '35'}}", "'35'", "not a dotted compute capability"),
        ("releases", f"{LEAST_RELEASE}, official_targets: {{cuda: ['86']}}", "{cuda: ['86']}", "a target of cuda"),
        ("releases", f"{LEAST_RELEASE}, default_targets: {{cuda: [gfx90a]}}", "{cuda: [gfx90a", "a target of cuda"),
        ("releases", f"{LEAST_RELEASE}, runtime_targets: {{rocm: ['90a']}}", "{rocm: ['90a']", "a target of rocm"),
        ("releases", f"{LEAST_RELEASE}, runtime_doubt: {{rocm: ['90a']}}", "{rocm: ['90a']", "a target of rocm"),
        ("configs", "configs: '(rbe', why: x", "'(rbe'", "is not a regular expression"),
        ("host_compilers", "compiler: gcc, since: '1', path: '/bin/{name}'", "'/bin", "known: major, minor"),
        ("accelerators", "accelerator: npu, config_pattern: '(npu'", "'(npu'", "is not a regular expression"),
        ("accelerators", "accelerator: npu, target_pattern: '(npu'", "'(npu'", "is not a regular expression"),
        ("accelerators", "accelerator: npu, target_field: npus", "npus", "such fields are compute_capabilities, amd"),
        ("accelerators", "accelerator: npu, symptoms: {x: '{foo}'}", "'{foo}'", "known: target, number"),
        ("images", "image: 'My Build', releases: '2.18', template: t", "'My Build'", "not an image reference"),
        ("images", "image: 'a/b:{x.y}', releases: '2.18', template: t", "'a/b", "{x.y} is not a plain name"),
        ("images", "image: a, releases: '2.18', template: t, packages: ['b c']", "'b c'", "is not a package"),
        ("images", "image: a, releases: '2.18', template: t, pip: [numpy]", "numpy", "is not a requirement pinned"),
        ("archives", "component: c, version: '1', url: u, sha256: s, arguments: ['{foo}']", "'{foo}'",
         "known: prefix"),
        ("source_archives", f"sha256: {'a' * 63}, archive: x, releases: '1.4', original: 'https://x', gone: '2020'",
         "a" * 63, "not a sha256 of 64"),
        ("source_archives",
         f"sha256: {'a' * 64}, archive: x, releases: '1.4', original: 'https://x', gone: '2020', urls: ['http://y']",
         "'http://y'", "not a web address (`https"),
        ("bazel_options", "purpose: output, option: '-x={path}'", "{purpose", "{path} is unknown here; known: none"),
        ("bazel_options", "purpose: outputs, option: '-x'", "{purpose", "purpose outputs is none of disk_cache, "),
        ("variables", "variable: V, releases: '2.18', value: '1', channel: repo_env, repository_rules: true",
         "{variable", "repo_env does not reach actions"),
    ],
)  # fmt: skip
def test_a_value_that_nothing_could_use_is_refused_where_it_stands(table: str, row: str, at: str, says: str) -> None:
    name = "bazel" if table == "bazel_options" else table
    text = f"rows:\n- {{{row}, source: s}}\n"
    families = ("accelerators.yaml", (FOLDER / "accelerators.yaml").read_text())
    texts = {"accelerators": [families], name: [("mine.yaml", text)]}
    problem = problem_of(lambda: getattr(KnowledgeBase(texts), table))
    assert (problem.where, problem.code) == (f"mine.yaml:2:{text.splitlines()[1].index(at) + 1}", "knowledge-row")
    assert says in problem.message
    assert problem.fix


FIRST_FITS = ["archives", "estimates", "images", "probes", "wheel_libraries"]
LATER_WINS = ["bazel_options", "flags", "variables"]


@pytest.mark.parametrize("table", TABLES)
def test_a_row_of_an_overlay_takes_the_place_of_the_one_with_its_key_or_is_read_where_it_wins(table: str) -> None:
    texts = {file.stem: [(file.name, file.read_text())] for file in FILES}
    name = "bazel" if table == "bazel_options" else table
    document = document_of(FOLDER / f"{name}.yaml")
    copy = {"checked": document["checked"], "rows": [document["rows"][1] | {"note": "mine"}]}
    beside = texts | {name: [*texts[name], ("mine.yaml", yaml.safe_dump(copy))]}
    before, after = (getattr(KnowledgeBase(one), table) for one in (texts, beside))
    before, after = (list(rows.values()) if isinstance(rows, dict) else list(rows) for rows in (before, after))
    mine = before[1].model_copy(update={"note": "mine"})
    if table in (*FIRST_FITS, *LATER_WINS):
        assert after == ([mine, *before] if table in FIRST_FITS else [*before, mine])
    else:
        assert after == [before[0], mine, *before[2:]]


# --- releases -------------------------------------------------------------------------------------------------------


def test_releases_are_gap_free_and_sorted(knowledge: KnowledgeBase) -> None:
    wanted = [f"1.{minor}" for minor in range(4, 16)] + [f"2.{minor}" for minor in range(22)]
    assert list(knowledge.releases) == wanted


def test_versions_of_a_release_are_its_own_and_ascend(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        assert release.patches
        assert all(Version(patch).matches(Version(release.release)) for patch in release.patches)
        lists = [release.patches, release.pythons]
        lists += [
            values for one in release.components.values() for values in (one.accepted, one.uncertain, one.disputed)
        ]
        for values in lists:
            assert list(values) == sorted(set(values), key=Version), (release.release, values)


def test_commits_are_whole_and_belong_to_a_patch_release(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        assert set(release.commits) <= set(release.patches)
        assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in release.commits.values())
    commits = [commit for release in knowledge.releases.values() for commit in release.commits.values()]
    assert len(commits) == len(set(commits))


def test_a_moved_tag_is_seen_because_every_patch_release_has_its_commit_or_a_word_on_why_not(
    knowledge: KnowledgeBase,
) -> None:
    for release in knowledge.releases.values():
        for patch in set(release.patches) - set(release.commits):
            assert f"commit of {patch}" in f"{release.unverified} {release.note}", patch


def test_what_is_tested_is_accepted(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        for name, support in release.components.items():
            assert support.tested in support.accepted, (release.release, name)
            kinds = [*support.accepted, *support.uncertain, *support.disputed]
            assert len(kinds) == len(set(kinds)), (release.release, name)


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
        for version in (*support.accepted, *support.uncertain, *support.disputed)
        if len(Version(version).parts) < 3
    }
    assert short == {"11.8", "8.6"}


def test_the_default_compiler_is_the_official_wheels(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        clang = Version(release.release) >= Version("2.13")
        assert release.gpu_compiler == ("clang" if clang else "nvcc")
        assert next(iter(release.compilers)) == ("clang" if clang else "gcc"), "the first one compiles C++"
        if clang:
            assert ("clang", release.compilers["clang"]) in knowledge.compilers


def test_every_official_target_fits_the_release_and_its_toolkit(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        toolkit = knowledge.toolkits["cuda", str(Version(release.components["cuda"].tested or "").minor)]
        for target in release.official_targets["cuda"]:
            dotted = release.capability_format == "dotted"
            # Only `x.y`, which means both, can be written there: no official wheel of such a release has SASS alone.
            assert re.fullmatch(
                release.capability_pattern or "", Capability.parse(target).dotted if dotted else target
            )
            assert Capability.parse(target).ptx or not dotted
            assert Capability.parse(target).number in toolkit.targets
            if release.gpu_compiler == "clang":
                compiler = knowledge.compilers["clang", release.compilers["clang"]]
                assert Capability.parse(target).number in compiler.targets


def test_a_bazel_documented_besides_is_another_one(knowledge: KnowledgeBase) -> None:
    besides = {name: release.tested_bazel for name, release in knowledge.releases.items() if release.tested_bazel}
    # 0.9.0 is in the GPU table alone, and older than ./configure of 1.7 takes.
    assert besides == {"1.7": ("0.9.0",), "2.1": ("0.27.1",)}
    assert all(knowledge.releases[name].bazel not in versions for name, versions in besides.items())


def test_official_wheels_have_the_project_that_has_gpu_code(knowledge: KnowledgeBase) -> None:
    for name, release in knowledge.releases.items():
        project = release.official_project
        assert project.get("cuda") == ("tensorflow-gpu" if in_range(name, "1.4..2.0") else None)
        assert project.get("rocm") == ("tensorflow-rocm" if "rocm" in release.components else None)


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


# --- what single rows say -------------------------------------------------------------------------------------------

# Table and field, then row or range of releases -> value.
SAID: dict[tuple[str, str], dict[str, Any]] = {
    # The range of Bazels that ./configure takes.
    ("releases", "bazel_min"): {
        "1.4..1.6": "0.5.4", "1.7..1.9": "0.10.0", "1.10..1.12": "0.15.0", "1.13": "0.19.0", "1.14": "0.24.1",
        "1.15": "0.24.1", "2.0": "0.24.1", "2.1": "0.27.1", "2.2": "2.0.0", "2.3..2.4": "3.1.0", "2.5..2.6": "3.7.2",
        "2.7": "3.7.2", "2.8": "4.2.1", "2.9": "4.2.2", "2.10..": None,
    },
    ("releases", "bazel_max"): {
        "1.4..1.12": None, "1.13": "0.21.0", "1.14": "0.25.2", "1.15": "0.26.1", "2.0": "0.26.1", "2.1": "0.29.1",
        "2.2": "2.0.0", "2.3..2.4": "3.99.0", "2.5..2.6": "3.99.0", "2.7": "4.99.0", "2.8": "4.99.0", "2.9": "5.99.0",
        "2.10..": None,
    },
    # What is built when ./configure is told nothing. `3.5,7.0` has PTX for the last only.
    ("releases", "default_targets"): {
        "1.4..1.9": {"cuda": ("compute_35", "compute_52")}, "1.10..2.9": {"cuda": ("compute_35", "compute_70")},
        "2.10..": {"cuda": ("sm_35", "compute_70")},
    },
    # Of the run time, and not only of ./configure.
    ("releases", "floor"): {"1.4..2.2": {"cuda": "3.0"}, "2.3..": {"cuda": "3.5"}},
    ("releases", "xla_floor"): {"1.4..": {"cuda": "3.5"}},
    # Before CUDA 11 of the newest patch release. NVIDIA's table names 8.0.61 (GA2), 9.2.148 (Update 1) and
    # `10.1.105 general release, and updates`.
    ("toolkits", "driver_linux"): {
        "cuda 7.5": "352.31", "cuda 8.0": "375.26", "cuda 9.0": "384.81", "cuda 9.1": "390.46", "cuda 9.2": "396.37",
        "cuda 10.0": "410.48", "cuda 10.1": "418.39", "cuda 10.2": "440.33",
    },
    ("toolkits", "driver_windows"): {
        "cuda 7.5": "353.66", "cuda 8.0": "376.51", "cuda 9.0": "385.54", "cuda 9.1": "391.29", "cuda 9.2": "398.26",
        "cuda 10.0": "411.31", "cuda 10.1": "418.96", "cuda 10.2": "441.22",
    },
    ("gpus", "target"): {
        "rtx3080": "8.6", "rtx2050": "8.6", "rtx4090": "8.9", "rtx5090": "12.0", "a100": "8.0", "h100": "9.0",
        "b200": "10.0", "b300": "10.3", "gb10": "12.1", "k80": "3.7", "v100": "7.0", "gtx1650": "7.5", "mx130": "5.0",
        "quadro-rtx6000": "7.5", "rtxa6000": "8.6", "rtx6000-ada": "8.9", "jetson-orin": "8.7", "jetson-thor": "11.0",
        "mi250x": "gfx90a", "mi300x": "gfx942", "rx7900xtx": "gfx1100",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "field", "key", "value"),
    [
        pytest.param(table, field, key, value, id=f"{table} {key} {field} {value}")
        for (table, field), rows in SAID.items()
        for key, value in rows.items()
    ],
)
def test_a_row_says_what_was_looked_up(
    knowledge: KnowledgeBase, table: str, field: str, key: str, value: object
) -> None:
    rows = getattr(knowledge, table)
    chosen = [name for name in rows if in_range(name, key)] if table == "releases" else [key, tuple(key.split())]
    found = [getattr(rows[name], field) for name in chosen if name in rows]
    assert found
    assert all(one == value for one in found)


def test_the_bazel_of_a_release_is_one_that_configure_takes(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        assert Version(release.bazel_min or "0") <= Version(release.bazel) <= Version(release.bazel_max or "99")


# --- variables and flags --------------------------------------------------------------------------------------------


def test_cuda_is_never_searched_for(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases:
        rows = _applying(knowledge.variables, release, accelerator="cuda", gpu_compiler="clang", host_compiler="gcc")
        assert ("CUDA_TOOLKIT_PATH" in {row.variable for row in rows}) is in_range(release, "1.4..2.17")


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
            assert ({want} if isinstance(want, str) else {*want}) <= CONDITIONS[name], when
    assert {row.channel for row in knowledge.variables} == {"environment", "repo_env"}
    for text in [row.value for row in knowledge.variables] + [row.flag for row in knowledge.flags]:
        assert {*placeholders(text)} <= FACTS, text


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


def test_a_config_that_turns_an_accelerator_on_is_known_by_its_name(knowledge: KnowledgeBase) -> None:
    names = {name for release in knowledge.releases.values() for name in release.configs}
    patterns = {row.accelerator: row.config_pattern for row in knowledge.accelerators.values() if row.config_pattern}
    owned = {name: [one for one, text in patterns.items() if re.fullmatch(text, name)] for name in names}
    assert all(len(owners) < 2 for owners in owned.values())
    refused = {name for name in names for row in knowledge.configs if re.fullmatch(row.configs, name)}
    gpu = {name for name in names if re.search("cuda|gpu|rocm", name)}
    assert {name for name, owners in owned.items() if owners} | refused >= gpu - {"experimental_tfrt_gpu"}
    assert all("cuda" in name or "rocm" in name for name, owners in owned.items() if owners)
    for row in knowledge.flags:
        config, wanted = row.flag.removeprefix("--config="), row.when.get("accelerator")
        assert not owned.get(config) or owned[config] == [wanted], row.flag


@pytest.mark.parametrize(
    ("release", "compiler", "flags"),
    [
        ("1.4", "nvcc", ["--config=opt", "--config=cuda"]),
        ("2.14", "nvcc", ["--config=opt", "--config=cuda"]),
        ("2.14", "clang", ["--config=opt", "--config=cuda_clang", "--linkopt=-fuse-ld=lld", "--linkopt=-lm"]),
        ("2.18", "nvcc", ["--config=opt", "--config=nvcc_clang", ALIGNMENT, "--config=cuda_wheel", *UNUSED]),
        ("2.20", "nvcc", ["--config=opt", "--config=cuda_nvcc", ALIGNMENT, "--config=cuda_wheel"]),
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
    "75": "10.0", "80": "11.0", "86": "11.1", "87": "11.4", "89": "11.8", "90": "11.8", "90a": "12.0", "100": "12.8",
    "101": "12.8", "120": "12.8", "103": "12.9", "121": "12.9", "100f": "12.9", "120f": "12.9", "110": "13.0",
    "88": "13.0", "107": "13.4",
}  # fmt: skip
LAST = {
    "20": "8.0", "30": "10.2", "32": "10.2", "35": "11.8", "37": "11.8", "50": "12.9", "61": "12.9", "70": "12.9",
    "72": "12.9", "101": "12.9",
}  # fmt: skip


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
        assert older.host_compilers_max["gcc"] <= newer.host_compilers_max["gcc"]
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


BEFORE_MINOR_COMPATIBILITY = ("11.0",)  #: Came with a driver older than the floor of all of its major version.


def test_drivers_grow_with_the_toolkit(knowledge: KnowledgeBase) -> None:
    rows = [row for row in knowledge.toolkits.values() if row.toolkit == "cuda" and row.driver_linux]
    for older, newer in pairwise(rows):
        assert Version(older.driver_linux or "") < Version(newer.driver_linux or ""), newer.version
        assert Version(older.driver_windows or "") < Version(newer.driver_windows or ""), newer.version
    floors = list(knowledge.drivers.values())
    assert [(row.toolkit, row.version) for row in floors] == [("cuda", "11"), ("cuda", "12"), ("cuda", "13")]
    for one, next_one in pairwise(floors):
        assert Version(one.linux) < Version(next_one.linux)
        assert Version(one.windows or "") < Version(next_one.windows or "")


def test_a_majors_driver_is_no_newer_than_its_first_toolkits(knowledge: KnowledgeBase) -> None:
    for row in knowledge.toolkits.values():
        floor = knowledge.drivers.get((row.toolkit, row.version.partition(".")[0]))
        if floor and row.driver_linux and row.version not in BEFORE_MINOR_COMPATIBILITY:
            assert Version(floor.linux) <= Version(row.driver_linux), row.version
            assert Version(floor.windows or "") <= Version(row.driver_windows or ""), row.version


# NVIDIA's PTX ISA release history: below that branch loading it fails with CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
PTX_DRIVERS = {
    "7.5": 495, "7.8": 520, "8.0": 525, "8.1": 530, "8.2": 535, "8.3": 545, "8.4": 550, "8.5": 555,
    "8.7": 570, "8.8": 575, "9.0": 580, "9.1": 590, "9.2": 595, "9.3": 610, "9.4": 615,
}  # fmt: skip


@pytest.mark.parametrize(("ptx", "branch"), PTX_DRIVERS.items())
def test_the_driver_that_knows_a_ptx_is_its_first_toolkits(knowledge: KnowledgeBase, ptx: str, branch: int) -> None:
    first = next(row for row in knowledge.toolkits.values() if row.ptx == ptx)
    assert Version(first.driver_linux or "").parts[0] == branch


# --- architectures --------------------------------------------------------------------------------------------------


def test_every_target_of_a_gpu_or_toolkit_has_one_architecture(knowledge: KnowledgeBase) -> None:
    targets = [(row.accelerator, target) for row in knowledge.architectures for target in row.targets]
    assert len(targets) == len(set(targets))
    assert {(gpu.accelerator, gpu.target) for gpu in knowledge.gpus.values()} <= set(targets)
    for row in knowledge.toolkits.values():
        for number in row.targets:
            target = f"{number.rstrip('af')[:-1]}.{number.rstrip('af')[-1]}" if row.toolkit == "cuda" else number
            assert (row.toolkit, target) in targets, (row.version, number)


def test_an_embedded_gpu_is_one_with_a_cpu_of_its_own(knowledge: KnowledgeBase) -> None:
    machines: dict[str, str | None] = {}
    for row in knowledge.architectures:
        assert set(row.embedded) <= set(row.targets)
        assert bool(row.machine) is bool(row.embedded), row.architecture
        machines |= dict.fromkeys(row.embedded, row.machine)
        assert set(row.driver_min) <= {*row.targets} - {*row.embedded}
        later = {name: Version(driver) for driver, names in row.driver_later.items() for name in names}
        for name, driver in later.items():
            assert Version(row.driver_min[knowledge.gpus[name].target]) < driver, name
        drivers = {*later.values(), *map(Version, row.driver_min.values())}
        assert not row.driver_max or max(drivers, default=Version("0")).parts[0] <= int(row.driver_max)
        assert {*row.open_modules} <= {*row.targets, *knowledge.gpus}
    assert set(machines) == {"3.2", "5.3", "6.2", "7.2", "8.7", "8.8", "10.1", "11.0"}
    for gpu in knowledge.gpus.values():
        assert gpu.gpu.startswith("jetson-") is (gpu.target in machines), gpu.gpu
        assert gpu.machine == machines.get(gpu.target, gpu.machine), gpu.gpu


def test_kepler_runs_nothing_of_cuda_12_and_blackwell_nothing_of_old_drivers(knowledge: KnowledgeBase) -> None:
    limits = {row.architecture: (row.driver_min, row.driver_max) for row in knowledge.architectures}
    floor = {major: Version(knowledge.drivers["cuda", major].linux).parts[0] for major in ("11", "12", "13")}
    assert floor["11"] <= int(limits["Kepler"][1] or 0) < floor["12"]
    for name in ("Maxwell", "Pascal", "Volta"):
        assert int(limits[name][1] or 0) == floor["13"]
    assert limits["Blackwell"][1] is None
    assert min(map(Version, limits["Blackwell"][0].values())).parts[0] == 570


def test_a_name_says_one_distribution(knowledge: KnowledgeBase) -> None:
    for row in knowledge.distributions.values():
        for image in row.images:
            assert distribution_of(knowledge, image.rstrip("*")) == (row, True)


# --- libraries, redistributables, instruction sets ------------------------------------------------------------------


def _range(row: LibraryRow) -> tuple[Version, Version]:
    return Version(row.since), Version(row.until or "99.99")


def test_ranges_of_a_library_follow_each_other_without_gap(knowledge: KnowledgeBase) -> None:
    assert {row.component for row in knowledge.libraries} == {"cudnn"}
    for older, newer in pairwise(knowledge.libraries):
        last, first = _range(older)[1].parts, _range(newer)[0].parts
        if _range(older) == _range(newer):  # one range, with other GPUs by toolkit
            assert not set(older.toolkits) & set(newer.toolkits)
            continue
        follow = [(*last[:-1], last[-1] + 1), (last[0], last[1] + 1), (last[0] + 1, 0)]
        assert first in [*follow, *((*minor, 0) for minor in follow[1:])], newer.since
        assert Version(older.lowest or "") <= Version(newer.lowest or "")


def test_a_librarys_versions_and_toolkits_are_known_ones(knowledge: KnowledgeBase) -> None:
    toolkits = [Version(row.version) for row in knowledge.toolkits.values() if row.toolkit == "cuda"]
    for row in knowledge.libraries:
        first, last = _range(row)
        assert len(first.parts) == len(last.parts) in (2, 3)
        assert row.patches
        assert list(row.patches) == sorted(set(row.patches), key=Version)
        cut = {Version(patch).parts[: len(first.parts)] for patch in row.patches}
        assert (min(cut), max(cut)) == (first.parts, last.parts)
        assert all(any(one.matches(Version(wanted)) for one in toolkits) for wanted in row.toolkits)
        assert Version(row.lowest or "") < Version(row.highest or "")


def test_what_a_release_was_tested_with_fits_together(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        cuda, cudnn = (Version(release.components[name].tested or "") for name in ("cuda", "cudnn"))
        rows = libraries(knowledge, "cudnn", str(cudnn))
        assert any(cuda.matches(Version(one)) for row in rows for one in row.toolkits), release.release


@pytest.mark.parametrize(
    ("cudnn", "gpu", "native"),
    [
        ("8.5.0", "9.0", False), ("8.6.0", "9.0", True), ("8.7.0", "3.7", True), ("8.8.0", "3.7", False),
        ("9.6.0", "9.0", True), ("9.6.0", "12.0", False), ("9.7.0", "12.0", True), ("9.10.2", "7.0", True),
        ("9.11.0", "7.0", False), ("9.11.0", "7.5", True),
    ],
)  # fmt: skip
def test_cudnn_has_code_for_these_gpus(knowledge: KnowledgeBase, cudnn: str, gpu: str, native: bool) -> None:
    rows = libraries(knowledge, "cudnn", cudnn)
    assert any(Version(row.lowest or "") <= Version(gpu) <= Version(row.highest or "") for row in rows) is native


@pytest.mark.parametrize(
    ("cudnn", "cuda", "made"),
    [
        ("8.0.3", "11.1", False), ("8.0.3.33", "11.0", True), ("8.0.4", "11.1", True), ("8.0", "11.1", True),
        ("7.6.4", "10.2", False), ("7.6.5.32", "10.2", True), ("7.6", "10.2", True), ("7", "10.2", True),
        ("8", "12.0", True),
    ],
)  # fmt: skip
def test_cudnn_is_made_for_these_toolkits(knowledge: KnowledgeBase, cudnn: str, cuda: str, made: bool) -> None:
    wanted = [one for row in libraries(knowledge, "cudnn", cudnn) for one in row.toolkits]
    assert any(Version(cuda).matches(Version(one)) for one in wanted) is made


@pytest.mark.parametrize(("cuda", "native"), [("12.6", False), ("12.8", True), ("12.9", True)])
def test_cudnn_has_code_for_blackwell_beside_the_libraries_of_cuda_12_8(
    knowledge: KnowledgeBase, cuda: str, native: bool
) -> None:
    rows = [row for row in libraries(knowledge, "cudnn", "9.8.0") if cuda in row.toolkits]
    assert [Version("12.0") <= Version(row.highest or "") for row in rows] == [native]


def test_every_closed_version_has_its_redistributable(knowledge: KnowledgeBase) -> None:
    wanted = {
        (name, version)
        for release in knowledge.releases.values()
        for name, one in release.components.items()
        if one.closed
        for version in (*one.accepted, *one.uncertain, *one.disputed)
    }
    assert wanted <= set(knowledge.redistributables)
    hashes = [row.sha256 for row in knowledge.redistributables.values()]
    assert len(hashes) == len(set(hashes))
    for (name, version), row in knowledge.redistributables.items():
        full = version if len(Version(version).parts) > 2 else f"{version}.0"
        assert row.url == f"https://developer.download.nvidia.com/compute/{name}/redist/redistrib_{full}.json"
        assert re.fullmatch(r"[0-9a-f]{64}", row.sha256)


def test_instruction_sets_are_what_compilers_know(knowledge: KnowledgeBase) -> None:
    names = set(knowledge.cpu_features)
    assert {"avx2", "fma", "sse4.2", "bmi2", "f16c", "avx512f", "avx512vnni"} <= names
    assert not {"avx9000", "native", "avx512er", "AVX2"} & names
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in names)


# --- GPUs -----------------------------------------------------------------------------------------------------------


def test_every_nvidia_gpu_is_compilable_by_some_toolkit(knowledge: KnowledgeBase) -> None:
    able = {target for row in knowledge.toolkits.values() if row.toolkit == "cuda" for target in row.targets}
    rows = [gpu for gpu in knowledge.gpus.values() if gpu.accelerator == "cuda"]
    assert [gpu.gpu for gpu in rows if Capability.of_gpu(gpu.target).number not in able] == []


def test_a_setting_and_a_fork_lead_to_a_known_target(knowledge: KnowledgeBase) -> None:
    targets = {target for row in knowledge.architectures for target in row.targets}
    assert {row.runs_as or row.target for row in knowledge.target_reports} <= targets
    assert {target for row in knowledge.forks for target in row.targets} <= targets


def test_gpu_names_are_as_people_type_them(knowledge: KnowledgeBase) -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in knowledge.gpus)


def test_a_drivers_name_means_one_target_or_rows_that_say_so(knowledge: KnowledgeBase) -> None:
    rows: dict[str, list[Gpu]] = {}
    for gpu in knowledge.gpus.values():
        for name in gpu.names:
            rows.setdefault(name.removeprefix("NVIDIA ").lower(), []).append(gpu)
    several = [gpu.gpu for found in rows.values() if len({one.target for one in found}) > 1 for gpu in found]
    assert sorted(several) == sorted(name for name in knowledge.gpus if re.search(r"-cc\d+$", name))


@pytest.mark.parametrize(
    ("word", "members"),
    [
        ("gtx10", r"gtx10.0.*"), ("gtx16", r"gtx16.0.*"), ("rtx20", r"rtx20.0.*"), ("rtx30", r"rtx30.0.*"),
        ("rtx40", r"rtx40[5-9]0.*"), ("rtx50", r"rtx50[5-9]0.*"), ("rtx-pro-blackwell", r"rtxpro.*-blackwell.*"),
        ("mi300", r"mi300."), ("mi350", r"mi35.x"),
    ],
)  # fmt: skip
def test_a_word_for_a_series_is_a_row_only_where_all_of_it_agrees(
    knowledge: KnowledgeBase, word: str, members: str
) -> None:
    targets = [gpu.target for gpu in knowledge.gpus.values() if re.fullmatch(members, gpu.gpu)]
    assert len(targets) > 1
    row = knowledge.gpus.get(word)
    assert (row.target if row else None) == (targets[0] if len(set(targets)) == 1 else None)


@pytest.mark.parametrize("name", ["gtx750", "gtx860m", "gt630", "gt640", "gt730", "gt730m", "gt740m", "710a"])
def test_a_name_sold_with_two_capabilities_is_no_row(knowledge: KnowledgeBase, name: str) -> None:
    precise = [gpu for gpu in knowledge.gpus.values() if gpu.gpu.startswith(f"{name}-cc")]
    assert name not in knowledge.gpus
    assert len({gpu.target for gpu in precise}) == len(precise) == 2
    assert all(gpu.note and gpu.unverified and gpu.names == precise[0].names for gpu in precise)


# --- images ---------------------------------------------------------------------------------------------------------


def _images(knowledge: KnowledgeBase, release: Release, accelerator: str) -> list[ImageRow]:
    """Return the images for what the release was tested with, whatever the host compiler."""
    tested = {name: support.tested or "" for name, support in release.components.items()}
    family = knowledge.accelerators[accelerator]
    rows = (row for row in knowledge.images if not row.compilers)
    return [row for row in rows if serves(knowledge, row, release, family, tested)]


def test_every_release_and_accelerator_has_an_image(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        for accelerator in ("cuda", "cpu", "rocm"):
            # No image of AMD's for releases before 2.9 is known.
            has_rocm = "rocm" in release.components and Version(release.release) >= Version("2.9")
            if accelerator == "rocm" and not has_rocm:
                continue
            rows = _images(knowledge, release, accelerator)
            pythons = {python for row in rows for python in row.pythons or release.pythons}
            assert pythons & set(release.pythons), (release.release, accelerator)
            # Where TensorFlow's own images exist they hold every Python, or nearly.
            if Version(release.release) >= Version("2.12") and accelerator != "rocm":
                assert set(release.pythons) <= pythons, (release.release, accelerator)


def test_an_image_has_the_tools_its_builds_need(knowledge: KnowledgeBase) -> None:
    for release in knowledge.releases.values():
        host = next(iter(release.compilers))
        for accelerator in ("cuda", "cpu", "rocm"):
            rows = _images(knowledge, release, accelerator)
            if not rows:
                continue
            facts = {"accelerator": accelerator, "host_compiler": host}
            if accelerator == "cuda":
                facts["gpu_compiler"] = release.gpu_compiler or ""
            for variable in _applying(knowledge.variables, release.release, **facts):
                needed = {name.removesuffix("_path") for name in {*placeholders(variable.value)} & PATH_FACTS}
                assert needed <= set(rows[0].paths), (release.release, accelerator, variable.variable, rows[0].image)


def test_images_are_named_as_registries_name_them(knowledge: KnowledgeBase) -> None:
    facts = dict.fromkeys(COMPONENT_FACTS, "1.2.3")
    facts |= {"python": "3.11", "version": "2.18.0", "version_minor": "2.18"}
    for row in knowledge.images:
        reference = ImageRef.parse(row.image.format_map(facts))
        assert reference.tag
        assert row.template in ("sig-build", "ubuntu-devel", "rocm")
        assert set(row.accelerators) <= set(knowledge.accelerators)
        assert all(path.startswith("/") for path in row.paths.values())
        assert "python" in row.paths
        assert row.unverified, "nobody has pulled it: the day somebody does, this row says so"


def compilers_in(knowledge: KnowledgeBase, image: ImageRow) -> set[str]:
    """The compilers that an image has by version, and those of its distribution's archive."""
    like, exact = distribution_of(knowledge, image.image)
    offered = like.compilers if like and exact else {}
    return {key for key in image.paths if "-" in key} | {f"{name}-{one}" for name in offered for one in offered[name]}


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
                and all(row.compilers.get(name) == want for name, want in earlier.compilers.items())
                and compilers_in(knowledge, row) <= compilers_in(knowledge, earlier)
            )
            assert not hidden, (earlier.image, row.image)


#: A distribution in an image's name -> the gcc that its build-essential brings.
DISTRIBUTIONS = {
    "ubuntu:?16.04": "5", "ubuntu:?18.04": "7", "ubuntu:?20.04": "9", "ubuntu:?22.04": "11", "debian:12": "12",
}  # fmt: skip


def test_a_compiler_in_an_image_stands_there_by_its_version(knowledge: KnowledgeBase) -> None:
    for row in knowledge.images:
        if "rocm" in row.accelerators:
            continue  # nobody has looked into AMD's images
        for name in {"gcc", "clang"} & set(row.paths):
            assert any(key.startswith(f"{name}-") for key in row.paths), (row.image, name)
        for key, path in row.paths.items():
            name, _, version = key.partition("-")
            assert name in row.paths, "the one without a version is what a build gets that asks for none"
            if path.startswith("/usr/lib/llvm-"):
                assert version in ("", re.findall(r"llvm-(\d+)", path)[0]), row.image


def test_a_compiler_that_is_installed_stands_where_its_package_puts_it(knowledge: KnowledgeBase) -> None:
    for compiler in knowledge.host_compilers.values():
        assert {*placeholders(compiler.path)} <= {"major", "minor"}, compiler
    installed = [
        (*key.split("-"), path)
        for row in knowledge.images
        for key, path in row.paths.items()
        if "-" in key and not path.startswith("/dt9/")
    ]
    assert {"4.8", "5", "17"} <= {version for _, version, _ in installed}
    for name, version, path in installed:
        package = packaged(knowledge, name, version)
        major, _, minor = version.partition(".")
        assert package
        assert package.path.format(major=major, minor=minor) == path


def test_an_image_of_a_distribution_has_its_gcc_and_those_that_are_installed(knowledge: KnowledgeBase) -> None:
    for row in knowledge.images:
        own = [version for name, version in DISTRIBUTIONS.items() if re.search(name, row.image)]
        installed = [package[4:] for package in row.packages if package.startswith("g++-")]
        if own and row.template == "ubuntu-devel":
            assert "build-essential" in row.packages
            has = {key.removeprefix("gcc-") for key in row.paths if key.startswith("gcc-")}
            assert has == {*own, *installed}, row.image
            assert ("clang" in row.paths) is any(package.startswith("clang-") for package in row.packages)


def test_what_an_image_holds_is_a_full_version_that_exists_and_that_its_row_asks_for(
    knowledge: KnowledgeBase,
) -> None:
    assert any(row.holds for row in knowledge.images)
    for row in knowledge.images:
        for name, version in row.holds.items():
            rows: list[Toolkit | LibraryRow] = [one for one in knowledge.toolkits.values() if one.toolkit == name]
            rows += [one for one in libraries(knowledge, name, version) if name != "cuda"]
            assert version in [patch for one in rows for patch in one.patches], (row.image, name)
            assert Version(version).matches(Version(row.components.get(name, version)))
            # A tag that names the component's version holds just that.
            assert f"{{{name}}}" not in row.image or row.components[name] == version


def test_an_archives_sum_stands_in_two_recipes_or_the_row_says_that_it_does_not(knowledge: KnowledgeBase) -> None:
    for row in knowledge.archives:
        recipes = {row.source} if isinstance(row.source, str) else set(row.source) - {"dockerfiles"}
        assert (len(recipes) > 1) is ("one recipe only" not in str(row.unverified)), row.url


# --- accelerators ---------------------------------------------------------------------------------------------------


def test_the_accelerators_are_these_and_know_their_components(knowledge: KnowledgeBase) -> None:
    assert list(knowledge.accelerators) == ["cuda", "rocm", "cpu"]
    assert knowledge.accelerators["cuda"].components == ("cuda", "cudnn")
    assert knowledge.accelerators["rocm"].components == ("rocm",)
    assert knowledge.accelerators["cpu"].components == ()
    for row in knowledge.accelerators.values():
        assert not row.toolkit or row.toolkit in row.components


@pytest.mark.parametrize("target", ["sm_86", "compute_90", "sm_90a", "sm_120", "sm_120f", "gfx90a", "gfx1100"])
def test_a_target_belongs_to_one_accelerator(knowledge: KnowledgeBase, target: str) -> None:
    patterns = [row.target_pattern for row in knowledge.accelerators.values() if row.target_pattern]
    assert sum(bool(re.fullmatch(pattern, target)) for pattern in patterns) == 1


def test_what_a_library_a_driver_or_a_list_means_agrees_with_the_other_tables(knowledge: KnowledgeBase) -> None:
    for row in knowledge.meanings:
        if made := re.search(r"; TensorFlow (\S+)(?: to (\S+))? (?:was|were) made with CUDA (\S+) ", row.means):
            first, last = Version(made[1]), Version(made[2] or made[1])
            ours = [one for name, one in knowledge.own_releases.items() if first <= Version(name) <= last]
            assert {one.components["cuda"].tested for one in ours} == {made[3]}, row.says
        if driver := re.search(r"For CUDA (\S+) that is driver (\S+) or newer", row.means):
            assert knowledge.toolkits[("cuda", driver[1])].driver_linux == driver[2], row.says
        if listed := re.search(r"begins with (\S+): this Python is ([\d.]+),", row.means):
            assert next(name for name, one in knowledge.own_releases.items() if listed[2] in one.pythons) == listed[1]
