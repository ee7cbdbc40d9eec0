"""What is known of a combination: who built it, who saw it fail, and what a refusal offers instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdock.errors import Problem
from tfdock.knowledge.evidence_rows import ReportedBuild, is_of
from tfdock.knowledge.loader import knowledge
from tfdock.resolve.grades import Reports

from ..desk import Desk

BUILT = 'schema: 1\ntensorflow: "2.4.0"\npython: "3.8"\ncuda: "11.1"\ngpus: [rtx3080]\n'
FAILING = 'schema: 1\ntensorflow: "2.20.0"\npython: "3.12"\ncuda: "12.9.1"\ncudnn: "9.10.2"\ngpus: [rtx4090]\n'
DISPUTED = 'schema: 1\ntensorflow: "2.0.0"\ncuda: "10.2"\ncudnn: "7.6"\ngpus: [rtx2080]\nedits: none\n'
FACTS = {
    "accelerator": "cuda", "toolkit": "cuda", "machine": "x86_64", "python": "3.8", "cuda": "11.1.1", "cudnn": "8.0",
    "compiler": "nvcc", "host_compiler": "gcc 9", "bazel": "", "options": "--config=v2\n-Wno-x\nxla",
    "fork": "",
}  # fmt: skip


def codes(problems: list[Problem]) -> set[str]:
    return {problem.code for problem in problems}


def row(outcome: str = "built", **values: Any) -> ReportedBuild:
    given = {"id": "x", "tensorflow": "2.4.0", "at": "x", "source": "x", "outcome": outcome, **values}
    return ReportedBuild.model_validate(given, strict=False)


@pytest.mark.parametrize(
    ("values", "agrees"),
    [
        pytest.param({}, True, id="nothing is said"),
        pytest.param({"components": {"cuda": "11.1"}}, True, id="a minor version"),
        pytest.param({"components": {"cuda": "11.1.0"}}, True, id="another patch release"),
        pytest.param({"components": {"cuda": "11.2"}}, False, id="another minor version of the toolkit"),
        pytest.param({"components": {"cudnn": "8.4"}}, True, id="another minor version of a library"),
        pytest.param({"components": {"cudnn": "7.6"}}, False, id="another major version of a library"),
        pytest.param({"python": ["3.7", "3.8"]}, True, id="one of its Pythons"),
        pytest.param({"python": ["3.7"]}, False, id="another Python"),
        pytest.param({"host_compiler": "gcc 9.3.0"}, True, id="a minor version of gcc"),
        pytest.param({"host_compiler": "gcc 10.2.0"}, False, id="another gcc"),
        pytest.param({"host_compiler": "clang 9"}, False, id="another compiler"),
        pytest.param({"bazel": "3.7.2"}, True, id="what is not known of the build"),
        pytest.param({"accelerator": "cpu"}, False, id="another accelerator"),
        pytest.param({"options": ["xla off"]}, False, id="a build without a part of this one"),
        pytest.param({"options": ["mpi off"]}, True, id="a build without another part"),
        pytest.param({"machine": "aarch64"}, False, id="another machine"),
        pytest.param({"outcome": "fails", "bazel": "3.7.2"}, False, id="a failure by what is not known"),
        pytest.param({"outcome": "fails", "components": {"cuda": "..11.7"}}, True, id="a failure up to a version"),
        pytest.param({"outcome": "fails", "components": {"cuda": "..11.0"}}, False, id="a failure below it"),
        pytest.param({"outcome": "fails", "components": {"cuda": "11.."}}, True, id="a failure from a version on"),
        pytest.param({"outcome": "fails", "components": {"cuda": "11.1.2.."}}, False, id="a failure above it"),
        pytest.param({"outcome": "fails", "host_compiler": "gcc"}, True, id="a failure of any gcc"),
        pytest.param({"outcome": "fails", "host_compiler": "gcc 9.4"}, False, id="a failure of an exacter gcc"),
        pytest.param({"outcome": "fails", "host_compiler": "gcc 8..10"}, True, id="a failure of a range of gcc"),
        pytest.param({"outcome": "fails", "options": ["--config=v2"]}, True, id="a failure with an option"),
        pytest.param({"outcome": "fails", "options": ["--config=v"]}, False, id="a failure with another option"),
        pytest.param({"outcome": "fails", "unless": "no-x"}, False, id="a failure that an option mends"),
        pytest.param({"outcome": "fails", "unless": "no-y"}, True, id="a failure that another option mends"),
    ],
)
def test_a_report_is_of_a_build_as_far_as_both_are_known(values: dict[str, Any], agrees: bool) -> None:
    assert row(**values).agrees(FACTS) is agrees


@pytest.mark.parametrize(
    ("values", "agrees"),
    [
        pytest.param({}, True, id="a build for GPUs"),
        pytest.param({"host_compiler": "gcc 10.2.0"}, False, id="with another C++ compiler"),
        pytest.param({"outcome": "built-with-edit"}, False, id="with an edit, perhaps of code for GPUs"),
        pytest.param({"outcome": "fails"}, False, id="a failure for GPUs"),
    ],
)
def test_a_build_for_gpus_compiled_the_code_for_the_cpu_too(values: dict[str, Any], agrees: bool) -> None:
    for_gpus = row(accelerator="cuda", components={"cuda": "12.2"}, compiler="clang 17", **values)
    of_cpu = {"accelerator": "cpu", "toolkit": "", "cuda": "", "cudnn": "", "compiler": ""}
    assert for_gpus.agrees({**FACTS, **of_cpu}) is agrees


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        pytest.param('tensorflow: "2.18.0"\npython: "3.9"\nhost_compiler: {name: clang, version: "17"}\n',
                     "for GPUs by tensorflow/tensorflow#", id="C++ compiler"),
        pytest.param('tensorflow: "2.4.1"\npython: "3.8"\nhost_compiler: {name: gcc, version: "10.2"}\n',
                     "by miketheologitis/tensorflow-wheels", id="a build for the CPU, the newest first"),
    ],
)  # fmt: skip
def test_a_build_for_gpus_settles_a_doubt_about_a_build_for_the_cpu(desk: Desk, text: str, grade: str) -> None:
    resolution = desk.resolve(f"schema: 1\n{text}accelerator: cpu\n")
    assert (resolution.untested, resolution.grade.value) == ((), "built")
    assert resolution.grade.reason.startswith(grade)


@pytest.mark.parametrize(
    ("gcc", "asked", "holds"),
    [
        pytest.param("gcc 11.4", "gcc 11.3", True, id="one that fails elsewhere"),
        pytest.param("gcc 11.2", "gcc 11.3", False, id="another one of the same major version"),
        pytest.param("gcc", "gcc 11.3", False, id="one of an unknown version"),
        pytest.param("gcc 11.2", "gcc 11", True, id="one that the profile may mean"),
    ],
)
def test_a_build_outweighs_a_failure_of_the_versions_that_it_had(gcc: str, asked: str, holds: bool) -> None:
    failure = row("fails", host_compiler="gcc 11.3..11.5")
    assert row(host_compiler=gcc).has_parts_of(failure, {"host_compiler": asked}) is holds


@pytest.mark.parametrize(
    ("tensorflow", "release", "holds"),
    [("2.4.1", "2.4", True), ("2.5..2.7", "2.4", False), ("2.5..2.7", "2.7", True), ("2.19..", "2.21", True)],
)
def test_a_report_is_of_its_releases(tensorflow: str, release: str, holds: bool) -> None:
    assert is_of(tensorflow, release) is holds


def test_what_somebody_built_is_no_longer_in_doubt(desk: Desk) -> None:
    resolution = desk.resolve(BUILT)
    assert (resolution.untested, resolution.grade.value) == ((), "built")
    assert "EasyBuild" in resolution.grade.reason
    other = desk.resolve(BUILT.replace("11.1", "11.4") + "allow_untested: true\n")
    assert (codes(list(other.untested)), other.grade.value) == ({"component-untested"}, "untested")
    assert desk.resolve('schema: 1\ntensorflow: "2.18.0"\ncuda: "12.5.1"\n').grade.value == "tested"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param('tensorflow: "2.7.0"\npython: "3.9"\ncuda: "11.4"\ncudnn: "8.2"\n', "", id="somebody built it"),
        pytest.param('tensorflow: "2.8.4"\npython: "3.10"\ncuda: "11.4"\ncudnn: "8.2"\n',
                     "TensorFlow 2.8 with cuDNN 8.2.2.26 (EasyBuild", id="beside another CUDA"),
        pytest.param('tensorflow: "2.6.0"\npython: "3.9"\ncuda: "11.4"\ncudnn: "8.3.3"\n',
                     "TensorFlow 2.6 with cuDNN 8.3.1.22 (JSC", id="another patch release of a library"),
        pytest.param('tensorflow: "2.11.1"\nbazel: {version: "5.4.0"}\n',
                     "TensorFlow 2.11 with Bazel 5.3.0 (tested upstream)", id="a newer Bazel of the same major"),
        pytest.param('tensorflow: "1.7.1"\npython: "3.6"\nbazel: {version: "0.18.1"}\n',
                     None, id="before 1.0 a minor Bazel may break the build"),
        pytest.param('tensorflow: "2.12.0"\nhost_compiler: {name: gcc, version: "8", path: /g}\n',
                     None, id="no newer release with one as old"),
        pytest.param('tensorflow: "2.17.0"\nhost_compiler: {name: gcc, version: "14", path: /g}\n',
                     None, id="no older release with one as new"),
        pytest.param('tensorflow: "2.18.0"\ncuda: "12.6.1"\n', None, id="Bazel's own list has it or not"),
    ],
)  # fmt: skip
def test_a_version_between_what_others_built_is_a_warning(desk: Desk, text: str, told: str | None) -> None:
    text = f"schema: 1\n{text}gpus: [rtx3080]\n"
    if told is None:
        assert [problem.code for problem in desk.problems(text) if problem.code.endswith("-untested")]
        return
    resolution = desk.resolve(text)
    whys = [warning.why for warning in resolution.warnings if warning.code.endswith("-untested")]
    assert resolution.untested == ()
    assert bool(whys) is bool(told)
    assert told in "".join(whys)
    assert resolution.grade.value == ("tested" if told else "built")


def test_a_toolkit_without_a_row_is_no_longer_in_doubt_if_somebody_built_with_it(desk: Desk) -> None:
    source = "{release: '2.3', git: https://github.com/ROCm/tensorflow-upstream, ref: r2.3-rocm-enhanced}"
    text = f'schema: 1\ntensorflow: {source}\npython: "3.8"\nrocm: "3.7"\namdgpu_targets: [gfx906]\n'
    (problem,) = desk.problems(text)
    assert problem.code == "image-unknown"
    # No image of one's own helps where no row tells what to install in it.
    assert problem.fixes[0].startswith("add a row to `images.yaml`")


@pytest.mark.parametrize(
    ("git", "doubted"),
    [
        ("https://github.com/NVIDIA/tensorflow.git", []),
        ("https://github.com/nvidia/tensorflow/", []),
        ("git@github.com:NVIDIA/tensorflow.git", []),
        ("https://github.com/me/tensorflow", ["python-unsupported"]),
    ],
)
def test_builds_of_a_fork_are_evidence_for_the_fork_alone(desk: Desk, git: str, doubted: list[str]) -> None:
    source = f'{{release: "1.15.5", git: "{git}", ref: r1.15.5+nv22.06}}'
    base = "nvidia/cuda:11.7.1-cudnn8-devel-ubuntu20.04"
    text = f'schema: 1\ntensorflow: {source}\npython: "3.8"\ncuda: "11.7"\nbase: {base}\n'
    resolution = desk.resolve(f"{text}compute_capabilities: [compute_80]\nallow_untested: true\n")
    assert [problem.code for problem in resolution.untested if problem.field == "python"] == doubted
    # The fork mends what fails in TensorFlow itself.
    assert ("known-to-fail" in [problem.code for problem in resolution.warnings]) == bool(doubted)


@pytest.mark.parametrize(("xla", "grade"), [("false", "built"), ("true", "tested")])
def test_a_report_without_xla_says_nothing_about_a_build_with_xla(desk: Desk, xla: str, grade: str) -> None:
    parts = 'python: "2.7"\ncuda: "10.0"\ncudnn: "7.4.2"\nbazel: {version: "0.20.0"}\n'
    base = 'base: {image: "me/f29:1", provides: {python: "2.7.15", gcc: "7.3.0", bazel: "0.20.0"}}\n'
    gcc = 'host_compiler: {name: gcc, version: "7.3.0"}\n'
    assert desk.resolve(f'schema: 1\ntensorflow: "1.13.1"\n{parts}{base}{gcc}xla: {xla}\n').grade.value == grade


def test_a_configuration_without_a_report_is_said_with_the_grade(desk: Desk) -> None:
    head = 'schema: 1\ntensorflow: "2.4.1"\npython: "3.8"\naccelerator: cpu\n'
    assert "--config=mkl" in desk.resolve(head + "bazel: {configs: [mkl]}\n").grade.reason
    (problem, *_) = desk.problems(
        head.replace("2.4.1", "2.16.1").replace("3.8", "3.11") + "bazel: {configs: [mkl]}\n"
    )
    assert (problem.code, problem.field) == ("known-to-fail", "bazel.configs[0]")


@pytest.mark.slow
def test_a_way_out_keeps_the_release_and_every_capability_that_can_be_built(desk: Desk) -> None:
    text = 'schema: 1\ntensorflow: "2.17.0"\npython: "3.10"\ncuda: "12.4"\ngpus: [gtx1070]\ncompiler: nvcc\n'
    (problem, *_) = desk.problems(text + 'host_compiler: {name: clang, version: "17"}\n')
    released = ["tensorflow" in way.change for way in problem.ways if not way.untested]
    assert released == sorted(released)
    assert not released[0]
    (problem, *_) = desk.problems('schema: 1\ntensorflow: "2.11"\npython: "3.10"\ncompute_capabilities: [sm_30]\n')
    assert [way.question for way in problem.ways] == ["build for the CPU alone"]
    assert not set(problem.fixes) & {way.text for way in problem.ways}


@pytest.mark.parametrize(
    ("text", "untested"),
    [
        pytest.param('tensorflow: "2.6.0"\npython: "3.6"\ngpus: [a100]\ncuda: "11.4.2"\ncudnn: "8.10"\n',
                     {"cuda": "11.4", "allow_untested": True}, id="the images of a patch release are deleted"),
        pytest.param('tensorflow: "2.12.0"\npython: "3.10"\ngpus: [rtxa5000]\ncuda: "11.5"\ncudnn: "8.3"\n',
                     None, id="the image holds another minor version"),
    ],
)  # fmt: skip
def test_a_way_out_keeps_the_versions_that_it_names(desk: Desk, text: str, untested: object) -> None:
    (problem, *_) = desk.problems(f"schema: 1\n{text}")
    assert problem.ways
    assert [way.text for way in problem.ways if "cuDNN 8." in way.keep and "the base image holds" in way.text] == []
    assert not untested or [dict(way.change) for way in problem.ways if way.untested] == [untested]


def test_a_build_with_an_edit_leaves_the_doubt_and_tells_the_edit(desk: Desk) -> None:
    (problem, *_) = desk.problems('schema: 1\ntensorflow: "2.10.0"\npython: "3.9"\ncuda: "11.0"\ngpus: [a100]\n')
    assert problem.code == "component-untested"
    assert "built with an edit by conda-forge: cublas-fix-backport" in problem.why


@pytest.mark.parametrize("more", ["", "allow_untested: true\n"], ids=["plain", "allow_untested"])
def test_what_somebody_saw_fail_is_refused_with_the_error_the_thread_and_what_mends_it(desk: Desk, more: str) -> None:
    (problem,) = desk.problems(FAILING + more)
    assert (problem.code, problem.field) == ("known-to-fail", "cuda")
    assert problem.message == "TensorFlow 2.20 with CUDA 12.9.1 is known to fail"
    assert "tensorflow/tensorflow#99273" in problem.why
    assert "pull 99364" in problem.why


OWN = 'python: "3.6"\naccelerator: cpu\nbase: {{image: "{}", provides: {{python: "3.6", gcc: "4.8", bazel: "{}"}}}}\n'
CENTOS_6 = OWN.format("centos:6", "0.15.0")
LINKED = 'bazel: {flags: ["--linkopt=-lrt", "--host_linkopt=-lrt"]}\n'


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        pytest.param('tensorflow: "2.1.0"\nhost_compiler: {name: gcc, version: "7.3.0"}\n', True, id="7.3.0"),
        pytest.param('tensorflow: "2.1.0"\nhost_compiler: {name: gcc, version: "7.3.1"}\n', False, id="7.3.1"),
        pytest.param('tensorflow: "2.1.0"\nhost_compiler: {name: gcc, version: "7.3"}\n', False, id="7.3"),
        pytest.param('tensorflow: "1.12.0"\nhost_compiler: {name: gcc, version: "4.4.7"}\n', True, id="4.4"),
        pytest.param('tensorflow: "1.9.0"\nbazel: {version: "0.19.0"}\n', True, id="Bazel without tools/bazel.rc"),
        pytest.param('tensorflow: "1.13.1"\ncuda: "10.1"\n', True, id="cuBLAS outside of the toolkit"),
        pytest.param('tensorflow: "1.9.0"\n' + OWN.format("me/x:1", "0.15.0"), False, id="its Bazel 0.15"),
        pytest.param('tensorflow: "1.9.0"\n' + OWN.format("me/x:1", "0.19.0"), True, id="its Bazel 0.19"),
        pytest.param('tensorflow: "2.1.0"\ncuda: "10.1"\nhost_compiler: clang\n', True, id="clang beside nvcc"),
        pytest.param('tensorflow: "1.12.0"\n' + CENTOS_6, True, id="the clock of CentOS 6"),
        pytest.param('tensorflow: "1.12.0"\n' + CENTOS_6 + LINKED, False, id="CentOS 6 with librt"),
        pytest.param('tensorflow: "1.13.1"\noptimize: [avx512f]\n', True, id="AVX512F without AVX512DQ"),
        pytest.param('tensorflow: "1.13.1"\noptimize: [avx512f, avx512dq]\n', False, id="AVX512F with AVX512DQ"),
    ],
)  # fmt: skip
def test_only_the_versions_that_were_seen_to_fail_are_refused(desk: Desk, text: str, fails: bool) -> None:
    if not fails:
        desk.resolve(f"schema: 1\n{text}")
        return
    assert "known-to-fail" in codes(desk.problems(f"schema: 1\n{text}"))


def test_a_failure_with_instructions_of_the_cpu_is_said_of_the_field_that_asks_for_them(desk: Desk) -> None:
    (problem,) = desk.problems('schema: 1\ntensorflow: "2.16.1"\noptimize: [avx512fp16]\n')
    assert (problem.code, problem.field) == ("known-to-fail", "optimize")


def test_a_reason_lets_it_pass_and_stands_among_the_choices(desk: Desk) -> None:
    resolution = desk.resolve(FAILING + "allow_failing: the base image has a patched CUB\n")
    assert codes(list(resolution.warnings)) == {"known-to-fail"}
    assert resolution.grade.value == "known-to-fail"
    assert [one.value for one in resolution.choices if one.field == "allow_failing"] == [
        "the base image has a patched CUB"
    ]


def test_a_source_of_ones_own_may_be_mended_and_keeps_its_release(desk: Desk) -> None:
    own = FAILING.replace('"2.20.0"', '{release: "2.20.0", git: "https://example.org/tf.git", ref: mended}')
    assert codes(list(desk.resolve(own).warnings)) == {"known-to-fail"}
    (problem, *_) = desk.problems(own.replace('"12.9.1"', '"13.9.9"'))
    assert problem.ways
    assert not [way for way in problem.ways if "tensorflow.release" in way.change]


def test_what_failed_for_some_and_was_built_by_others_is_a_warning(desk: Desk) -> None:
    (warning,) = desk.resolve(DISPUTED).warnings
    assert warning.message == "TensorFlow 2.0 with CUDA 10.2.89 failed for some users and was built by others"
    assert "inoryy" in warning.why


def test_what_nobody_built_is_no_fix_and_what_was_built_comes_first(desk: Desk) -> None:
    (problem,) = desk.problems('schema: 1\ntensorflow: "2.4.0"\npython: "3.8"\ncuda: "11.4"\ngpus: [rtx3080]\n')
    untested = [way for way in problem.ways if way.untested]
    assert untested
    assert not {way.text for way in untested} & set(problem.fixes)
    assert problem.ways[-1] == untested[-1]
    assert "(built by " in problem.fixes[0]


def test_no_way_out_leads_to_what_is_known_to_fail(desk: Desk) -> None:
    changed = [dict(way.change) for way in desk.problems(FAILING.replace("2.20.0", "2.19.1"))[0].ways]
    assert changed
    assert all(change.get("tensorflow") != "2.20.0" for change in changed)


def test_every_report_that_fails_says_what_was_seen_and_what_mends_it() -> None:
    rows = [one for one in knowledge().evidence.values() if one.outcome == "fails"]
    assert [one.id for one in rows if not (one.needs and (one.failed_with or one.note))] == []


# --- edits ----------------------------------------------------------------------------------------------------------

EDITS = """
checked: "2026-11-27"
sources: {me: "me"}
rows:
  - {edit: cub, mends: cub-12.9-in-2.20, tensorflow: 2.20.0, file: a/gpu_prim.h, find: old, put: new, source: me}
"""


BY_ME = """
checked: "2026-11-27"
sources: {me: "me"}
rows:
  - {id: me, tensorflow: 2.20.0, outcome: built-with-edit, accelerator: cuda, source: me, at: here, edits: [cub],
     components: {cuda: 12.9.1, cudnn: 9.10.2}, needs: [names of CUB, my own folders]}
"""


@pytest.fixture(scope="module")
def mending(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder = tmp_path_factory.mktemp("knowledge")
    (folder / "edits.yaml").write_text(EDITS)
    (folder / "evidence.yaml").write_text(BY_ME)
    return Desk(knowledge=knowledge([folder]), templates={})


def test_an_edit_mends_what_is_known_to_fail_and_stands_among_the_choices(mending: Desk) -> None:
    resolution = mending.resolve(FAILING)
    assert [edit.edit for edit in resolution.edits] == ["cub"]
    (choice,) = (one for one in resolution.choices if one.field == "edit cub")
    assert (choice.value, choice.source) == ("a/gpu_prim.h", "edits.yaml")
    assert "tensorflow/tensorflow#99273" in choice.reason
    assert (resolution.grade.value, resolution.grade.reason) == (
        "built",
        "with edits of the source, by me; here: cub",
    )


def test_an_edit_with_which_no_build_is_known_has_to_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "edits.yaml").write_text(EDITS)
    desk = Desk(knowledge=knowledge([tmp_path]), templates={})
    (problem,) = desk.problems(FAILING)
    assert "no build with only the edit cub is known" in problem.message
    resolution = desk.resolve(FAILING + "allow_untested: true\n")
    assert [edit.edit for edit in resolution.edits] == ["cub"]
    assert resolution.grade.value == "untested"


def test_without_the_edit_it_is_known_to_fail_and_to_take_the_edit_is_a_way_out(mending: Desk) -> None:
    (problem, *_) = mending.problems(FAILING + "edits: none\n")
    assert problem.code == "known-to-fail"
    assert {"edits": None} in [dict(way.change) for way in problem.ways]


@pytest.mark.parametrize(("span", "holds"), [("2.20.0", True), ("2.19.1..2.20.1", True), ("2.20.1..", False)])
def test_an_edit_is_for_the_patch_releases_that_it_names(mending: Desk, span: str, holds: bool) -> None:
    edit = mending.knowledge.edits[-1]
    report = mending.knowledge.evidence[edit.mends]
    assert edit.model_copy(update={"tensorflow": span}).is_for(report, "2.20.0") is holds


def test_a_source_of_ones_own_is_edited_only_where_that_is_asked_for(mending: Desk) -> None:
    own = FAILING.replace('"2.20.0"', '{release: "2.20.0", git: "https://example.org/tf.git", ref: mended}')
    assert mending.resolve(own).edits == ()
    assert [edit.edit for edit in mending.resolve(own + "edits: all\n").edits] == ["cub"]


def test_what_the_base_image_alone_has_is_mended_as_well(desk: Desk) -> None:
    facts = {**FACTS, "release": "2.12", "version": "2.12.0", "host_compiler": "gcc"}
    reports = Reports(desk.knowledge, facts, {}, {}, desk.knowledge.edits)
    assert [edit.edit for edit in reports.edits({})] == ["graph-debug-begin", "graph-debug-end"]  # by its CUDA 11.1
    made = [edit.edit for edit in reports.edits({"gcc": "13.2"})]
    assert made[2:] == ["sparse-transpose", "cstdint-cache", "stdint-spectrogram"]
    assert {found.weight for found in reports.failures_of_base("gcc", "13.2")} == {"doubt"}
    of_cpu = {"release": "2.19", "version": "2.19.0", "accelerator": "cpu", "toolkit": "", "compiler": ""}
    reports = Reports(desk.knowledge, {**facts, **of_cpu}, {}, {}, desk.knowledge.edits)
    assert list(reports.failures_of_base("gcc", "13.2")) == []


def test_every_edit_mends_a_report_that_fails_in_its_releases_and_has_two_sources() -> None:
    base = knowledge()
    for edit in base.edits:
        report, releases = base.evidence[edit.mends], [name for name in base.releases if is_of(edit.tensorflow, name)]
        assert report.outcome == "fails"
        assert [name for name in releases if is_of(report.tensorflow, name)] == releases
        assert len(edit.source) > 1


# --- sources --------------------------------------------------------------------------------------------------------

_GCC_10_3 = (
    'python: "3.9"\ngpus: [rtx3080]\ncuda: "11.2"\ncudnn: "8.1"\nhost_compiler: {name: gcc, version: "10.3"}\n'
)


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        pytest.param('{release: "2.5.3", ref: v2.5.0-rc2}', True, id="a tag of TensorFlow's repository"),
        pytest.param(
            '{release: "2.5.3", git: "https://github.com/tensorflow/tensorflow", ref: v2.5.3}', True, id="its address"
        ),
        pytest.param('{release: "2.5.3", ref: r2.5}', False, id="a branch may have the edit"),
        pytest.param('{release: "2.5.3", git: "https://github.com/me/tf", ref: v2.5.3}', False, id="a fork's tag"),
    ],
)
def test_a_known_failure_is_a_warning_if_the_source_may_be_edited(desk: Desk, source: str, refused: bool) -> None:
    written = f"schema: 1\ntensorflow: {source}\n{_GCC_10_3}"
    if refused:
        assert "known-to-fail" in [problem.code for problem in desk.problems(written)]
    else:
        assert "known-to-fail" in [warning.code for warning in desk.resolve(written).warnings]


@pytest.mark.parametrize(("asked", "tag"), [("2.5.0-rc2", "v2.5.0-rc2"), ("2.5.0rc2", "v2.5.0-rc2")])
def test_the_tag_of_a_release_candidate_is_written_as_upstream_does(desk: Desk, asked: str, tag: str) -> None:
    (problem,) = desk.problems(f'schema: 1\ntensorflow: "{asked}"\naccelerator: cpu\n')
    assert f"ref: {tag}}}" in problem.fix


def test_a_major_version_alone_is_told_to_be_incomplete(desk: Desk) -> None:
    problems = desk.problems('schema: 1\ntensorflow: "2.3.0"\ngpus: [v100]\ncuda: "11"\n')
    assert "CUDA 11 has no minor version" in [problem.message for problem in problems]


def test_no_build_without_gpus_replaces_a_source_whose_release_is_not_known(desk: Desk) -> None:
    source = '{release: "1.3.0", git: "https://github.com/me/tf"}'
    (problem,) = desk.problems(f'schema: 1\ntensorflow: {source}\nrocm: "1.7.1"\nbase: rocm/tensorflow:rocm1.7.1\n')
    assert not any("CPU" in way.question for way in problem.ways)
