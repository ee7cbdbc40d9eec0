"""Resolve profiles with releases and devices that do not exist: no code can have such releases or devices."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from packaging.version import Version as PackagingVersion

import tfdock
from tfdock.errors import Problem
from tfdock.gpu.devices import find_gpu, sorted_targets
from tfdock.knowledge import loader
from tfdock.knowledge.fits import source_archives_of
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.profile_changes import changed
from tfdock.resolve.question import LocalSource
from tfdock.resolve.resolution import Resolution
from tfdock.resolve.resolve import read_text

from ..desk import FILE, MADE_UP_TABLES, Desk, knowledge_of

KNOWLEDGE = Path(tfdock.__file__).parent / "knowledge"
HEAD = 'schema: 1\ntensorflow: "9.9.1"\npython: "3.10"\n'
OLD = 'schema: 1\ntensorflow: "1.9.0"\n'
OPEN = 'schema: 1\ntensorflow: "9.8.0"\ncudnn: "8.9"\n'


# --- archives of the source that are gone ---------------------------------------------------------------------------

LOST = """
rows:
  - {sha256: "%s", archive: x 1.0 (@x), releases: "9.9", original: "http://gone.example/x", gone: "2020", source: s}
""" % ("a" * 64)


def test_a_release_with_an_archive_that_no_server_has_is_refused_and_an_address_in_an_overlay_mends_that() -> None:
    desk = Desk(knowledge=knowledge_of(MADE_UP_TABLES | {"source_archives": LOST}), templates={})
    (problem,) = desk.problems(HEAD + "gpus: [slab]\n")
    assert (problem.code, problem.field) == ("source-archive-lost", "tensorflow")
    assert "downloads x 1.0 (@x), and no server is known to have it" in problem.message
    assert problem.why == f"http://gone.example/x has not worked since 2020; the archive's sha256 is {'a' * 64}"
    assert [one.code for one in desk.resolve(HEAD + "gpus: [slab]\nallow_untested: true\n").untested] == [
        problem.code
    ]
    assert source_archives_of(desk.knowledge, desk.knowledge.releases["9.8"]) == ()
    shipped, mine = LOST, LOST.replace("source: s", "source: s, urls: ['https://else.example/x.tgz']")
    texts = {name: [(f"{name}.yaml", text)] for name, text in MADE_UP_TABLES.items()}
    texts["source_archives"] = [("source_archives.yaml", shipped), ("mine.yaml", mine)]
    desk = Desk(knowledge=KnowledgeBase(texts), templates={})
    resolution = desk.resolve(HEAD + "gpus: [slab]\n")
    (row,) = source_archives_of(desk.knowledge, resolution.release)
    assert row.urls == ("https://else.example/x.tgz",)


def test_the_shipped_rows_are_those_of_the_releases_whose_archives_are_known_to_be_gone() -> None:
    desk = Desk(knowledge=loader.knowledge(), templates={})
    releases = desk.knowledge.releases
    archives = {
        name: [row.archive for row in source_archives_of(desk.knowledge, release)]
        for name, release in releases.items()
    }
    icu, eigen = ["ICU 62-1 (@icu)"], ["Eigen 429aa5254200 (@eigen_archive)"]
    assert {name: rows for name, rows in archives.items() if rows} == {"1.4": eigen, "1.12": icu, "1.13": icu}


# --- what nobody has heard of ---------------------------------------------------------------------------------------


def test_a_made_up_accelerator_goes_from_profile_to_plan_without_a_change_of_code(made_up: Desk) -> None:
    text = HEAD + "gpus: [slab]\ncomponents: {xpu: '5.1.0'}\n"
    plan = made_up.plan(text)
    assert plan.build_id == "tf9.9.1-py3.10-xpu5.1.0-xdnn2-xe2-x86_64"
    assert dict(plan.environment) == {"PYTHON_BIN_PATH": "/usr/bin/python3.10", "XPU_VERSION": "5.1"}
    assert plan.bazel_flags == ("--config=opt", "--config=xpu", "--repo_env=XPU_TARGETS=xe2")
    assert plan.targets == ("//:wheel",)
    assert plan.package == ("collect", "bazel-bin/wheels")
    dockerfile = plan.context.files["Dockerfile"].decode()
    assert "ARG BASE_IMAGE=registry.example/xpu/build:9.9-python3.10-xpu5.1\n" in dockerfile
    assert "RUN install curl zlib1g-dev\n" in dockerfile
    assert "# XPU\nRUN test -d /opt/xpu-5.1\n" in dockerfile
    # Tools outside the image are no tools; of the versions that the plan says, Python's alone can be read.
    assert '"7.4.1", "", "1", "Python=3.10=/usr/bin/python3.10 -c ' in dockerfile
    assert '"/opt/xpu-5.1/bin/xcc", "/usr/bin/python3.10"]' in dockerfile


def test_everything_that_may_be_left_out_is_chosen(made_up: Desk) -> None:
    resolution = made_up.resolve('schema: 1\ntensorflow: "9.9"\naccelerator: xpu\n')
    assert str(resolution.version) == "9.9.1"
    assert resolution.python == "3.11"
    assert dict(resolution.components) == {"xpu": "5.0.2", "xdnn": "2"}
    assert resolution.targets == ("xe1", "xe2")
    assert resolution.bazel == "7.4.1"
    assert resolution.gpu_compiler == ""
    assert resolution.host_compiler == "clang"
    assert resolution.source.commit == "a" * 40
    assert (resolution.wheel_name, resolution.xla, resolution.debug, resolution.optimize) == (
        "tensorflow",
        True,
        None,
        (),
    )


def test_a_profile_that_asks_for_no_device_builds_for_the_cpu(made_up: Desk) -> None:
    resolution = made_up.resolve(HEAD)
    assert resolution.accelerator.accelerator == "cpu"
    assert (resolution.targets, dict(resolution.components), resolution.local_version) == ((), {}, None)
    assert resolution.build_id == "tf9.9.1-py3.10-cpu-x86_64"


# --- every choice is explained --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        HEAD,
        HEAD + "gpus: [one]\n",
        HEAD + "gpus: [twelve]\ncuda: '20.1.3'\n",
        HEAD + "accelerator: xpu\n",
        HEAD
        + "debug: true\noptimize: [avx2]\nwheel: {name: x, local_version: y}\nbase: a:b\nbazel: {version: '1.0'}\n"
        + "allow_untested: true\n",
        'schema: 1\ntensorflow: {release: "9.9", ref: main}\nhost_compiler: gcc\n',
        'schema: 1\ntensorflow: {release: "9.9.0", path: x}\nxla: false\n',
    ],
    ids=["cpu", "gpu", "other compiler", "accelerator", "all asked", "ref", "path"],
)
def test_every_choice_has_a_value_a_source_and_a_reason(made_up: Desk, text: str) -> None:
    choices = made_up.resolve(text).choices
    for choice in choices:
        assert all(asdict(choice).values()), choice
        assert re.fullmatch(r"profile|command line|default|\w+\.yaml( .*)?", choice.source), choice
    names = [choice.field for choice in choices]
    assert len(names) == len(set(names)), "nothing is chosen twice"
    common = {"tensorflow", "python", "accelerator", "host_compiler", "base", "bazel", "source", "xla", "debug"}
    assert common | {"optimize", "wheel.name", "wheel.local_version", "runtime"} <= set(names)


@pytest.mark.parametrize(
    ("text", "field", "value", "source", "reason"),
    [
        (HEAD, "python", "3.10", "profile", "as asked"),
        ('schema: 1\ntensorflow: "9.9"', "tensorflow", "9.9.1", "releases.yaml 9.9",
         "newest patch release of the minor"),
        ('schema: 1\ntensorflow: "9.9"', "python", "3.11", "releases.yaml 9.9",
         "newest Python the release is built for"),
        (HEAD, "accelerator", "cpu", "default", "no GPU is requested"),
        (HEAD + "gpus: [one]", "accelerator", "cuda", "profile", "`gpus[0]` asks for it"),
        (HEAD + "gpus: [one]", "cuda", "20.1.0", "releases.yaml 9.9", "the version the release was tested with"),
        (HEAD + "gpus: [one]", "targets", "sm_86", "profile", "what one runs natively"),
        (HEAD + "gpus: [one, twelve]\nallow_untested: true", "targets", "sm_86, sm_120", "profile",
         "what one, twelve run natively"),
        (HEAD + "accelerator: cuda", "targets", "sm_86, compute_90", "releases.yaml 9.9",
         "the official wheel's list"),
        (HEAD + "gpus: [one]", "compiler", "clang", "releases.yaml 9.9", "the release's own GPU compiler"),
        (HEAD + "gpus: [twelve]", "compiler", "nvcc", "compilers.yaml", "clang 30 cannot emit sm_120"),
        (HEAD + "gpus: [one]\ncompiler: nvcc", "compiler", "nvcc", "profile", "as asked"),
        (OPEN + "cuda: '20.0'\ngpus: [one]", "cuda", "20.0.1", "profile", "newest known version of 20.0"),
        (OPEN + "cuda: '20'\ngpus: [one]", "cuda", "20.0.1", "profile", "newest known version of 20"),
        (HEAD, "source", "https://github.com/tensorflow/tensorflow.git v9.9.1", "releases.yaml 9.9",
         f"commit {'a' * 12}"),
        (HEAD, "base", "build/cpu:9.9.1", "images.yaml",
         "the known image for this release and Python; its existence was not checked"),
        (HEAD, "xla", "true", "default", "TensorFlow's own default"),
        (HEAD + "xla: false", "xla", "false", "profile", "as asked"),
        (HEAD, "debug", "off", "default", "optimised, no symbols"),
        (HEAD + "debug: {mode: fastbuild}", "debug", "fastbuild", "profile", "as asked"),
        (HEAD, "wheel.name", "tensorflow", "default", "the requirement of `pip install`"),
        (HEAD + "wheel: {name: mine}", "wheel.name", "mine", "profile", "as asked"),
        (HEAD, "wheel.local_version", "none", "default", "distinguishes the wheel from the official wheel"),
    ],
)  # fmt: skip
def test_a_choice_says_who_made_it_and_why(
    made_up: Desk, text: str, field: str, value: str, source: str, reason: str
) -> None:
    (choice,) = [choice for choice in made_up.resolve(text).choices if choice.field == field]
    assert (choice.value, choice.source, choice.reason) == (value, source, reason)


# --- refusals -------------------------------------------------------------------------------------------------------

REFUSALS = {
    "unknown release": ('schema: 1\ntensorflow: "9.6.0"\n', "release-unknown", "tensorflow", 2),
    "never released": ('schema: 1\ntensorflow:\n  release: "9.9.7"\n', "release-unknown", "tensorflow.release", 3),
    "another Python": ('schema: 1\ntensorflow: "9.9.1"\npython: "3.8"\n', "python-unsupported", "python", 3),
    "typo": (HEAD + "accelerator: xpo\n", "accelerator-unknown", "accelerator", 4),
    "nonsense": (HEAD + "accelerator: abacus\n", "accelerator-unknown", "accelerator", 4),
    "a GPU and no accelerator": (HEAD + "accelerator: cpu\n\ngpus: [one]\n", "accelerator-conflict", "gpus[0]", 6),
    "two accelerators": (HEAD + "components: {xpu: '5.0'}\ngpus: [one]\n", "accelerator-conflict", "components.xpu",
        4),
    "a component of nothing": (HEAD + "components:\n  magic: '1'\n", "component-unused", "components.magic", 5),
    "a component of something else": (HEAD + "accelerator: xpu\ncomponents: {other: '1'}\n", "component-unused",
        "components.other", 5),
    "an accelerator nobody tried": ('schema: 1\ntensorflow: "9.8.0"\naccelerator: xpu\n', "accelerator-untested",
        "accelerator", 3),
    "no tested version": ('schema: 1\ntensorflow: "9.8.0"\ngpus: [one]\n', "component-missing", "cudnn", 1),
    "inexact key": (HEAD + "gpus: [one]\ncuda: '20.0'\n", "component-not-accepted", "cuda", 5),
    "inexact key of the tested": (HEAD + "gpus: [one]\ncuda: '20.1'\n", "component-not-accepted", "cuda", 5),
    "far key": (HEAD + "gpus: [one]\ncuda: '7.5.18'\n", "component-not-accepted", "cuda", 5),
    "uncertain key": (HEAD + "gpus: [one]\ncuda: '20.2.0'\n", "component-untested", "cuda", 5),
    "another toolkit": (OPEN + "gpus: [one]\ncuda: '20.1'\n", "component-untested", "cuda", 5),
    "no GPU here": (HEAD + "gpus: local\n", "gpu-local-none", "gpus", 4),
    "GPU typo": (HEAD + "gpus: [one, twelwe]\n", "gpu-unknown", "gpus[1]", 4),
    "unknown GPU alone": (HEAD + "gpus: [zzz]\n", "gpu-unknown", "gpus[0]", 4),
    "unknown GPU of a CPU": (HEAD + "accelerator: cpu\ngpus: [zzz]\n", "gpu-unknown", "gpus[0]", 5),
    "a target of nothing": (HEAD + "compute_capabilities: [sm86]\n", "target-syntax", "compute_capabilities[0]", 4),
    "another target": (HEAD + "accelerator: xpu\ntargets: [xe1, xd2]\n", "target-syntax", "targets[1]", 5),
    "a target of a CPU": (HEAD + "accelerator: cpu\ntargets: [zz1]\n", "target-syntax", "targets[0]", 5),
    "no official list": ('schema: 1\ntensorflow: "9.8.0"\naccelerator: cuda\ncudnn: "8.9"\n', "targets-missing",
        "accelerator", 3),
    "SASS of an old release": (OLD + "compute_capabilities: [sm_86]\n", "capability-needs-ptx",
        "compute_capabilities[0]", 3),
    "a letter nobody knows": (HEAD + "compute_capabilities: [sm_90f]\n", "capability-syntax",
        "compute_capabilities[0]", 4),
    "new letter": (OPEN + "compute_capabilities: [sm_90a]\ncuda: '20.1'\nallow_untested: false\n",
        "capability-syntax", "compute_capabilities[0]", 4),
    "unknown toolkit": (OPEN + "gpus: [one]\ncuda: '21.0'\n", "component-untested", "cuda", 5),
    "too old a GPU": (HEAD + "compute_capabilities: [sm_90, sm_35]\n", "target-not-in-toolkit",
        "compute_capabilities[1]", 4),
    "too new a GPU": (OPEN + "gpus: [twelve]\n", "target-not-in-toolkit", "gpus[0]", 4),
    "nobody's GPU": (HEAD + "compute_capabilities: [sm_99]\n", "target-not-in-toolkit", "compute_capabilities[0]", 4),
    "clang for a new GPU": (HEAD + "gpus: [twelve]\ncompiler: clang\n", "compiler-cannot-emit", "compiler", 5),
    "a GPU compiler of a CPU": (HEAD + "compiler: nvcc\n", "compiler-unused", "compiler", 4),
    "no image": ('schema: 1\ntensorflow: "9.9.1"\npython: "3.9"\n', "image-unknown", "base", 1),
    "no image at all": (
        'schema: 1\ntensorflow: "9.9.1"\ncomponents: {xpu: "6.0"}\nallow_untested: true\ntargets: [xe1]\n',
        "image-unknown", "base", 1),
    "a hole in a row": ('schema: 1\ntensorflow: "9.7.0"\nxla: false\n', "knowledge-placeholder", "tensorflow", 2),
    "a tool that is not in the image": ('schema: 1\ntensorflow: "9.7.0"\n', "image-without-tool", "base", 1),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "field", "line"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_work_is_refused_at_its_line_with_a_way_out(
    made_up: Desk, text: str, code: str, field: str, line: int
) -> None:
    (problem,) = [problem for problem in made_up.problems(text) if (problem.code, problem.field) == (code, field)]
    assert (problem.file, problem.line) == (FILE, line)
    assert problem.column
    assert problem.fix


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ("build/cuda:{version}", "build/cuda:{foo}"), ("build/cuda:{version}", "build/cuda:{xpu}"),
        ("/cuda-{", "/x-{x_"),
    ],
    ids=["a name of nothing", "a component of another accelerator", "a path"],
)  # fmt: skip
def test_an_image_that_asks_for_what_the_build_has_not_is_refused(made_up: Desk, known: str, said: str) -> None:
    tables = MADE_UP_TABLES | {"images": MADE_UP_TABLES["images"].replace(known, said)}
    desk = Desk(knowledge=knowledge_of(tables), templates=made_up.templates)
    (problem,) = desk.problems(HEAD + "gpus: [one]\n")
    assert (problem.code, problem.line) == ("knowledge-placeholder", 2)
    assert said in problem.message


@pytest.mark.parametrize("text", [row[0] for row in REFUSALS.values()], ids=REFUSALS)
def test_nothing_is_said_twice(made_up: Desk, text: str) -> None:
    problems = made_up.problems(text)
    assert len(problems) == len({(problem.code, problem.field, problem.message) for problem in problems})
    for problem in problems:
        for sentence in (problem.message, problem.why or "x", problem.fix):
            assert sentence.isprintable()
            assert sentence[-1] not in ".!:"


# What nothing in the profile mends; its fix says what else to do.
NO_WAY = {"gpu-local-none", "gpu-unknown"}


@pytest.mark.parametrize("text", [row[0] for row in REFUSALS.values()], ids=REFUSALS)
def test_every_way_out_leads_out(made_up: Desk, text: str) -> None:
    problems = made_up.problems(text)
    profile, resolver = read_text(text, made_up.knowledge, file=FILE)
    for problem in problems:
        assert problem.ways or problem.code in NO_WAY
        for way in problem.ways:
            resolution = resolver.resolve(changed(profile, way.change))
            assert bool(resolution.untested) <= way.untested, way.text


def test_an_official_list_is_taken_as_far_as_the_toolkit_that_is_asked_for_compiles_it(made_up: Desk) -> None:
    resolution = made_up.resolve(HEAD + "accelerator: cuda\ncuda: '20.0.1'\n")
    assert resolution.targets == ("sm_86",)
    (choice,) = [choice for choice in resolution.choices if choice.field == "targets"]
    assert choice.reason == "the official wheel's list, without targets that this build cannot compile"


def test_a_way_out_reads_as_it_stands_in_a_profile(made_up: Desk) -> None:
    text = HEAD + "gpus: [one]\ncuda: '20.0'\n"
    (problem,) = made_up.problems(text)
    snippet = re.search(r"`(cuda: [^`]+)`", problem.fixes[0])
    assert snippet
    assert made_up.resolve(HEAD + f"gpus: [one]\n{snippet[1]}\n").components["cuda"] == "20.1.0"


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        (HEAD + "accelerator: xpo\n", ["keep TensorFlow 9.9.1: `accelerator: xpu`"]),
        (HEAD + "gpus: [twelve]\ncompiler: clang\n", ["keep TensorFlow 9.9.1, twelve: remove `compiler`"]),
        (HEAD + "gpus: [one]\ncuda: '20.2.0'\n",
         ['keep TensorFlow 9.9.1, one: `cuda: "20.1.0"`',
         "keep TensorFlow 9.9.1, cuda 20.2.0, one: `allow_untested: true`"]),
        (OLD + "compute_capabilities: [sm_86]\n", ["keep TensorFlow 1.9.0: `compute_capabilities: [compute_86]`"]),
        (HEAD + "gpus: [one]\ncompute_capabilities: [sm_90]\n",
         ["keep TensorFlow 9.9.1, one: remove `compute_capabilities`"]),
    ],
)  # fmt: skip
def test_the_nearest_way_comes_first_and_the_untested_last(made_up: Desk, text: str, ways: list[str]) -> None:
    found = [way.text for way in made_up.problems(text)[0].ways]
    assert [found[0], *found[len(found) - len(ways) + 1 :]] == ways


@pytest.mark.parametrize(
    ("asked", "way"), [("", {"allow_untested": True}), ("cuda: '12.3'\nallow_untested: true", {})]
)
def test_a_gpu_older_than_the_toolkit_gets_a_toolkit_and_its_compiler_with_the_release_kept(
    desk: Desk, asked: str, way: dict[str, bool]
) -> None:
    problems = desk.problems(f'schema: 1\ntensorflow: "2.15"\ngpus: [k80]\n{asked}\n')
    assert {"cuda": "11.8", "compiler": "nvcc", **way} in [dict(one.change) for one in problems[0].ways]


def test_a_near_name_of_a_gpu_is_a_question_and_no_way_out(made_up: Desk) -> None:
    (problem,) = made_up.problems(HEAD + "gpus: [one, twelwe]\n")
    assert problem.message == "the GPU `twelwe` is not known: did you mean `twelve`?"
    assert (problem.fix, problem.ways) == ("`tfdock gpus` lists all GPUs", ())


def test_a_release_that_is_too_old_is_left_with_as_few_changes_as_it_takes(made_up: Desk) -> None:
    text = OPEN + "gpus: [twelve]\n"
    changes = [dict(way.change) for way in made_up.problems(text)[0].ways]
    assert {"tensorflow": "9.9.1", "cudnn": "9.0.0"} in changes


def test_several_refusals_come_at_once_from_top_to_bottom(made_up: Desk) -> None:
    text = 'schema: 1\npython: "3.8"\ngpus: [zzz]\naccelerator: cpu\ntensorflow: "9.9.7"\n'
    assert [(problem.line, problem.code) for problem in made_up.problems(text)] == [
        (2, "python-unsupported"),
        (3, "gpu-unknown"),
        (5, "release-unknown"),
    ]


# --- untested -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ('schema: 1\ntensorflow: "9.9.1"\npython: "3.10"\n', []),
        (HEAD + "gpus: [one]\ncuda: '20.2.0'\n", ["component-untested"]),
        (OPEN + "gpus: [one]\ncuda: '20.1'\n", ["component-untested"]),
        (OPEN + "cuda: '20.1'\ncompute_capabilities: [sm_90a]\n", ["component-untested", "capability-syntax"]),
        (HEAD.replace("3.10", "3.8") + "base: my/image:1\n", ["python-unsupported"]),
    ],
    ids=["tested", "uncertain key", "other toolkit", "other capability", "a Python in a base of one's own"],
)
def test_what_is_untested_is_built_only_when_the_profile_says_so(made_up: Desk, text: str, codes: list[str]) -> None:
    resolution = made_up.resolve(text + "allow_untested: true\n")
    assert [problem.code for problem in resolution.untested] == codes
    if codes:
        assert [problem.code for problem in made_up.problems(text)] == codes
        assert all(problem.line for problem in resolution.untested)


def test_cudnn_follows_a_cuda_that_the_tested_version_is_not_made_for(desk: Desk) -> None:
    text = 'schema: 1\ntensorflow: "2.21.0"\ngpus: [h100]\ncuda: "13.0.0"\n'
    (headers, problem) = desk.problems(text + "compiler: clang\n")
    assert (headers.code, problem.code, problem.field) == ("compiler-toolkit", "component-untested", "cuda")
    assert "cuDNN 9.12.0 was added" in problem.message
    resolution = desk.resolve(text + "allow_failing: the source has the commit for CCCL 3\n")
    assert resolution.components == {"cuda": "13.0.0", "cudnn": "9.12.0"}


def test_what_cannot_work_is_refused_also_when_the_untested_is_allowed(made_up: Desk) -> None:
    (problem,) = made_up.problems(HEAD + "gpus: [old]\ncuda: '20.1.0'\nallow_untested: true\n")
    assert problem.code == "target-not-in-toolkit"


def test_an_unknown_toolkit_is_a_doubt_and_said_once(made_up: Desk) -> None:
    text = (
        'schema: 1\ntensorflow: "9.8.0"\naccelerator: xpu\ncomponents: {xpu: "9.0", xdnn: "1"}\ntargets: [xe1, xe2]\n'
    )
    found: list[Problem] = made_up.problems(text)
    assert [problem.code for problem in found if problem.field == "components.xpu"] == [
        "accelerator-untested",
        "toolkit-unknown",
    ]


@pytest.mark.parametrize(("host", "compiler"), [("gcc", "nvcc"), ("clang", "clang")])
def test_gcc_for_the_cpp_code_brings_nvcc_where_the_release_has_them_side_by_side(
    desk: Desk, host: str, compiler: str
) -> None:
    resolution = desk.resolve(f'schema: 1\ntensorflow: "2.15.0"\ngpus: [rtx3080]\nhost_compiler: {host}\n')
    assert resolution.gpu_compiler == compiler


def test_a_clang_that_nobody_compiled_with_is_a_doubt_of_its_own(desk: Desk) -> None:
    clang = 'compiler: clang\nhost_compiler: {name: clang, version: "20"}\n'
    found = desk.problems('schema: 1\ntensorflow: "2.20.0"\ngpus: [rtx3080]\n' + clang)
    assert [problem.code for problem in found] == ["compiler-untested", "host-compiler-untested"]


# --- GPUs and targets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("one", "one"), ("ONE", "one"), ("NVIDIA Zeta One", "one"), ("Zeta One", "one"), ("zeta one", "one"),
        ("Zeta Twelve Pro", "twelve"), ("NVIDIA Zeta Twelve Pro", "twelve"), ("Slab (big)", "slab"), ("One", "one"),
        ("NVIDIA One", "one"), ("Zeta", None), ("", None),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_our_name_and_by_the_drivers_with_or_without_vendor(
    made_up: Desk, name: str, gpu: str | None
) -> None:
    row = find_gpu(made_up.knowledge, name)
    assert (row.gpu if row else None) == gpu


@pytest.mark.slow
def test_every_shipped_gpu_is_found_by_each_of_its_names(desk: Desk) -> None:
    wrong = {
        name: row.gpu
        for row in desk.knowledge.gpus.values()
        for name in (row.gpu, *row.names)
        # What is sold with two targets under one name is found by the short name only.
        if not (name in row.names and re.search(r"-cc\d+$", row.gpu))
        and ((found := find_gpu(desk.knowledge, name)) is None or found.target != row.target)
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("gpus", "targets"),
    [
        (["NVIDIA Zeta One"], ("sm_86",)),
        (["NVIDIA Zeta Twelve", "NVIDIA Zeta One", "NVIDIA Zeta One"], ("sm_86", "sm_120")),
    ],
    ids=["one", "three of two kinds"],
)
def test_local_means_the_gpus_of_this_machine(made_up: Desk, gpus: list[str], targets: tuple[str, ...]) -> None:
    assert made_up.resolve(HEAD + "gpus: local\n", local_gpus=gpus).targets == targets


def test_a_local_gpu_that_nobody_knows_is_refused_by_name(made_up: Desk) -> None:
    (problem,) = made_up.problems(HEAD + "gpus: local\n", local_gpus=["NVIDIA Omega"])
    assert (problem.code, problem.field, problem.line) == ("gpu-unknown", "gpus", 4)
    assert "`NVIDIA Omega`" in problem.message


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["sm_120", "sm_86", "sm_90"], ["sm_86", "sm_90", "sm_120"]),
        (["sm_86", "sm_86"], ["sm_86"]),
        (["sm_86", "compute_86"], ["compute_86"]),
        (["compute_86", "sm_90", "sm_86"], ["compute_86", "sm_90"]),
        (["sm_90", "compute_90a", "sm_90a"], ["sm_90", "compute_90a"]),
        (["gfx1030", "gfx90a", "gfx906", "gfx90a"], ["gfx906", "gfx90a", "gfx1030"]),
        (["xe10", "xe2"], ["xe2", "xe10"]),
        ([], []),
    ],
)
def test_targets_are_sorted_as_numbers_without_repetition(targets: list[str], expected: list[str]) -> None:
    assert list(sorted_targets(targets)) == expected
    assert list(sorted_targets(reversed(targets))) == expected


def test_an_old_release_is_told_capabilities_as_numbers_with_a_point(made_up: Desk) -> None:
    resolution = made_up.resolve(OLD + "gpus: [one, old]\n")
    assert resolution.targets == ("compute_35", "compute_86"), "SASS alone cannot be asked of it"
    assert resolution.environment["CAPABILITIES"] == "3.5,8.6"
    assert resolution.build_id == "tf1.9.0-py3.10-cuda20.0.1-cudnn6-sm35-ptx35-sm86-ptx86-x86_64"


def test_a_new_release_is_told_capabilities_by_name(made_up: Desk) -> None:
    resolution = made_up.resolve(HEAD + "compute_capabilities: [compute_90, sm_86]\n")
    assert resolution.environment["CAPABILITIES"] == "sm_86,compute_90"


# --- names ----------------------------------------------------------------------------------------------------------

GPU = HEAD + "gpus: [one]\n"
MANY = "[avx, avx2, avx512f, avx512cd, avx512bw, avx512dq, avx512vl, avx512vnni, fma]"
GIT = 'schema: 1\npython: "3.10"\ntensorflow: {release: "9.9.1", '


@pytest.mark.parametrize(
    ("text", "build_id", "local_version"),
    [
        pytest.param(HEAD, "tf9.9.1-py3.10-cpu-x86_64", None, id="cpu"),
        pytest.param(GPU, "tf9.9.1-py3.10-cuda20.1.0-cudnn9.0.0-sm86-x86_64", "cuda20.1.sm86", id="gpu"),
        pytest.param(HEAD + "compute_capabilities: [sm_86, compute_90]\n",
                     "tf9.9.1-py3.10-cuda20.1.0-cudnn9.0.0-sm86-sm90-ptx90-x86_64", "cuda20.1.sm86.sm90.ptx90",
                     id="ptx"),
        pytest.param(HEAD + "gpus: [slab]\n", "tf9.9.1-py3.10-xpu5.0.2-xdnn2-xe2-x86_64", "xpu5.0.xe2",
                     id="accelerator"),
        pytest.param(HEAD + "optimize: native\n", "tf9.9.1-py3.10-cpu-native-x86_64", "native", id="native"),
        pytest.param(HEAD + "optimize: [avx2, sse4.2]\n", "tf9.9.1-py3.10-cpu-avx2-sse42-x86_64", "avx2.sse42",
                     id="cpu features"),
        pytest.param(HEAD + "debug: true\n", "tf9.9.1-py3.10-cpu-dbg-x86_64", "dbg", id="debug"),
        pytest.param(HEAD + "xla: false\n", "tf9.9.1-py3.10-cpu-noxla-x86_64", "noxla", id="no XLA"),
        pytest.param(GPU + "compiler: nvcc\n", "tf9.9.1-py3.10-cuda20.1.0-cudnn9.0.0-sm86-nvcc-x86_64",
                     "cuda20.1.sm86.nvcc", id="nvcc asked"),
        pytest.param(HEAD + "gpus: [twelve]\n", "tf9.9.1-py3.10-cuda20.1.0-cudnn9.0.0-sm120-nvcc-x86_64",
                     "cuda20.1.sm120.nvcc", id="nvcc of itself"),
        pytest.param(OLD + "gpus: [one]\ncompiler: nvcc\n", "tf1.9.0-py3.10-cuda20.0.1-cudnn6-sm86-ptx86-x86_64",
                     "cuda20.0.sm86.ptx86", id="nvcc as ever"),
        pytest.param(GPU + "optimize: native\ndebug: true\ncompiler: nvcc\nxla: false\n",
                     "tf9.9.1-py3.10-cuda20.1.0-cudnn9.0.0-sm86-native-dbg-nvcc-noxla-x86_64",
                     "cuda20.1.sm86.native.dbg.nvcc.noxla", id="all together"),
        pytest.param(GIT + "ref: main}\n", "tf9.9.1.src55c8be45-py3.10-cpu-x86_64", "src55c8be45", id="another ref"),
        pytest.param(GIT + "ref: v9.9.1}\n", "tf9.9.1-py3.10-cpu-x86_64", None, id="the release's own tag"),
        pytest.param(GIT + "patches: [a.patch]}\n", "tf9.9.1-py3.10-cpu-p2d711642-x86_64", "p2d711642", id="a patch"),
        pytest.param(HEAD + "wheel: {local_version: mine}\n", "tf9.9.1-py3.10-cpu-x86_64", "mine", id="asked"),
        pytest.param(HEAD + "wheel: {name: tensorflow}\n", "tf9.9.1-py3.10-cpu-x86_64", None, id="the own name"),
        pytest.param(HEAD + "wheel: {name: Tensor.Flow}\n", "tf9.9.1-py3.10-cpu-tensor_flow-x86_64", None,
                     id="a name"),
        pytest.param(GPU + f"wheel: {{name: {'long' * 20}}}\n",
                     "tf9.9.1-py3.10-cuda20.1.0-cudnn9.0.0-x1-ba95d159-5aa1dce7-x86_64", "cuda20.1.sm86",
                     id="a long name"),
    ],
)  # fmt: skip
def test_a_build_is_named_after_what_makes_it_different(
    made_up: Desk, text: str, build_id: str, local_version: str | None
) -> None:
    patches = {"a.patch": b"x"} if "patches" in text else {}
    resolution = made_up.resolve(text, local=LocalSource(patches=patches))
    assert resolution.build_id == build_id
    assert resolution.local_version == local_version


def test_the_machine_is_the_last_word_of_the_name(made_up: Desk) -> None:
    assert made_up.resolve(HEAD, machine="aarch64").build_id.endswith("-cpu-aarch64")


@pytest.mark.parametrize(
    "source",
    [
        "ref: main", "fallback: [main]", "git: https://example.org/tf.git", "path: x",
        f"archive: https://x/y.zip, sha256: {'ab' * 32}",
    ],
)  # fmt: skip
def test_any_source_but_the_releases_own_tag_is_named_by_its_hash(made_up: Desk, source: str) -> None:
    resolution = made_up.resolve(GIT + source + "}\n", local=LocalSource(tree="1" * 64))
    assert not resolution.source.official
    assert re.fullmatch(r"tf9\.9\.1\.src[0-9a-f]{8}-py3\.10-cpu-x86_64", resolution.build_id)
    assert resolution.local_version
    assert resolution.local_version in resolution.build_id


def test_two_trees_of_one_path_have_two_names(made_up: Desk) -> None:
    names = {made_up.resolve(GIT + "path: x}\n", local=LocalSource(tree=tree * 64)).build_id for tree in "012"}
    assert len(names) == 3
    assert made_up.resolve(GIT + "path: y}\n", local=LocalSource(tree="0" * 64)).build_id in names, (
        "the place is nothing"
    )


def test_long_lists_are_hashed_and_short_ones_are_not(made_up: Desk) -> None:
    eight = HEAD + f"targets: [{', '.join(f'xe{number}' for number in range(10, 18))}]\n"
    nine = HEAD + f"targets: [{', '.join(f'xe{number}' for number in range(10, 19))}]\n"
    xes = f"[{', '.join(f'xe{one}' for one in range(30))}]"
    tables = MADE_UP_TABLES | {"toolkits": MADE_UP_TABLES["toolkits"].replace("[xe1, xe2]", xes)}
    wide = Desk(knowledge=knowledge_of(tables), templates=made_up.templates)
    assert wide.resolve(eight).build_id.endswith("-xe10-xe11-xe12-xe13-xe14-xe15-xe16-xe17-x86_64")
    assert re.search(r"-x9-[0-9a-f]{8}-x86_64$", wide.resolve(nine).build_id)
    assert wide.resolve(nine.replace("xe18", "xe19")).build_id != wide.resolve(nine).build_id


def test_cpu_features_are_hashed_as_well_when_they_are_many(made_up: Desk) -> None:
    resolution = made_up.resolve(HEAD + f"optimize: {MANY}\n")
    assert re.fullmatch(r"tf9\.9\.1-py3\.10-cpu-x9-[0-9a-f]{8}-x86_64", resolution.build_id)
    assert len(resolution.optimize) == 9, "the flags themselves are all there"


def test_the_longest_name_fits_into_an_image_tag(made_up: Desk) -> None:
    features = ", ".join(f"avx512vp2intersect{number}" for number in range(8))
    text = GIT + "ref: main, patches: [a.patch]}\ngpus: [one]\ncompiler: nvcc\ndebug: true\nxla: false\n"
    resolution = made_up.resolve(text + f"optimize: [{features}]\n", local=LocalSource(patches={"a.patch": b"x"}))
    assert len(resolution.build_id) <= 128
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", resolution.build_id)


@pytest.mark.parametrize(
    "text",
    [
        GPU + "optimize: native\ndebug: true\nxla: false\n",
        HEAD + f"optimize: {MANY}\n",
        HEAD + "optimize: [amx-tile, sse4.2, avx10.1-256]\n",
        HEAD + "compute_capabilities: [sm_90a, compute_90]\ncompiler: nvcc\n",
        GIT + "ref: main, patches: [a.patch]}\n",
        HEAD + "gpus: [slab]\n",
    ],
)
def test_local_versions_are_valid_and_in_their_normal_form(made_up: Desk, text: str) -> None:
    resolution = made_up.resolve(text, local=LocalSource(patches={"a.patch": b"x"}))
    version = f"{resolution.version}+{resolution.local_version}"
    assert str(PackagingVersion(version)) == version


# --- flags ----------------------------------------------------------------------------------------------------------


def test_the_users_flags_come_last_and_stay_as_they_stand(made_up: Desk) -> None:
    text = (
        HEAD + "bazel:\n  configs: [mkl]\n  copts: [-Xclang, -a, -Xclang, -b]\n  flags: [--config=opt, --copt=-b]\n"
    )
    assert made_up.resolve(text).flags == (
        "--config=opt",
        "--config=mkl",
        "--copt=-Xclang",
        "--copt=-a",
        "--copt=-Xclang",
        "--copt=-b",
        "--copt=-b",
    )


def test_a_config_of_the_user_cannot_take_back_what_the_contract_says(made_up: Desk) -> None:
    configs = "bazel: {configs: [list], flags: [--config=other, --copt=-b]}\n"
    flags = made_up.resolve(HEAD + "gpus: [slab]\n" + configs).flags
    assert flags[-4:] == ("--config=list", "--config=other", "--repo_env=XPU_TARGETS=xe2", "--copt=-b")


@pytest.mark.parametrize("config", ["cuda_clang_official", "rocm_clang_official", "opt"])
@pytest.mark.parametrize("wants", ["accelerator: cpu\n", "gpus: [a100]\n", "gpus: [mi250]\nrocm: '6.4'\n"])
def test_a_config_that_turns_another_accelerator_on_is_refused(desk: Desk, config: str, wants: str) -> None:
    text = f'schema: 1\ntensorflow: "2.19.0"\nallow_untested: true\n{wants}bazel: {{configs: [{config}]}}\n'
    turned_on = {"cuda_clang_official": "gpus: [a100]\n", "rocm_clang_official": "gpus: [mi250]\nrocm: '6.4'\n"}
    if turned_on.get(config, wants) == wants:
        assert f"--config={config}" in desk.resolve(text).flags
    else:
        (problem,) = desk.problems(text)
        assert (problem.code, problem.field) == ("accelerator-conflict", "bazel.configs[0]")


GCC_12 = 'base: {image: "mine:1", provides: {python: "3.11", gcc: "12.3", bazel: "6.5.0"}}\nhost_compiler: gcc\n'
SYMBOLS = "--per_file_copt=+tensorflow/.*,-tensorflow/core/kernels/.*@-g"


@pytest.mark.parametrize(
    ("release", "debug", "flags"),
    [
        ("2.18.0", "true", ["--config=dbg", "--strip=never"]),
        ("1.15.5", "true", ["--compilation_mode=dbg", "--strip=never"]),
        ("2.18.0", "{mode: opt}", ["--compilation_mode=opt", SYMBOLS, "--strip=never"]),
        ("2.18.0", "{mode: fastbuild, symbols: false}", ["--compilation_mode=fastbuild"]),
        ("2.18.0", "{per_file: [{files: +a/.*, copts: [-g1, -O0]}]}",
         ["--config=dbg", "--strip=never", "--per_file_copt=+a/.*@-g1,-O0"]),
    ],
)  # fmt: skip
def test_debugging_is_flags_of_the_release(desk: Desk, release: str, debug: str, flags: list[str]) -> None:
    head = f'schema: 1\ntensorflow: "{release}"\naccelerator: cpu\n'
    without = desk.resolve(head).flags
    assert [flag for flag in desk.resolve(f"{head}debug: {debug}\n").flags if flag not in without] == flags


@pytest.mark.parametrize(
    ("asked", "ref"),
    [("2.99.0rc0", "v2.99.0-rc0"), ("2.99.0", "v2.99.0"), ("2.99", "r2.99"), ("2.21.0rc1", "v2.21.0-rc1")],
)
def test_a_newer_release_can_be_built_by_the_rules_of_the_newest(desk: Desk, asked: str, ref: str) -> None:
    (problem,) = desk.problems(f'schema: 1\ntensorflow: "{asked}"\naccelerator: cpu\n')
    assert problem.code == "release-unknown"
    assert f'`tensorflow: {{release: "2.21.0", ref: {ref}}}`' in problem.fixes[0]
    written = f'schema: 1\ntensorflow: {{release: "2.21.0", ref: {ref}}}\naccelerator: cpu\n'
    assert desk.resolve(written).source.refs == (ref,)


def test_cloud_file_systems_are_left_out_as_the_release_allows(desk: Desk) -> None:
    def planned(release: str) -> Resolution:
        return desk.resolve(f'schema: 1\ntensorflow: "{release}"\naccelerator: cpu\ncloud: false\n')

    old = planned("1.8.0")
    needs = {name for name, value in old.environment.items() if value == "0"}
    assert {"TF_NEED_GCP", "TF_NEED_HDFS", "TF_NEED_S3"} <= needs
    assert "TF_NEED_KAFKA" not in needs, "it is no file system"
    assert old.local_version == "nocloud"
    assert {"--config=nogcp", "--config=noaws", "--config=nohdfs"} <= {*planned("2.4.0").flags}
    assert "--config=nogcp" in planned("2.21.0").flags
    (problem,) = desk.problems('schema: 1\ntensorflow: "1.12.0"\naccelerator: cpu\ncloud: false\n')
    assert (problem.code, problem.field) == ("config-unknown", "cloud")


@pytest.mark.parametrize(
    ("profile", "sysroot", "told"),
    [
        ('tensorflow: "2.13.1"\ngpus: [rtx3080]\n', "/dt9", "built against glibc 2.17"),
        ('tensorflow: "2.13.1"\naccelerator: cpu\nhost_compiler: gcc\n', None, "built against glibc 2.17"),
        ('tensorflow: "2.18.0"\naccelerator: cpu\n', None, "the glibc that the code is built against is not known"),
    ],
)
def test_a_platform_takes_the_images_older_c_library_where_the_release_can(
    desk: Desk, profile: str, sysroot: str | None, told: str
) -> None:
    resolution = desk.resolve(f"schema: 1\n{profile}wheel: {{platform: manylinux_2_17}}\n")
    assert resolution.environment.get("TF_SYSROOT") == sysroot
    assert resolution.platform == "manylinux_2_17_x86_64"
    (choice,) = [choice for choice in resolution.choices if choice.field == "wheel.platform"]
    assert (choice.value, choice.reason) == ("manylinux_2_17", told)
    without = desk.resolve(f"schema: 1\n{profile}")
    assert (without.platform, "TF_SYSROOT" in without.environment) == (None, False)


@pytest.mark.parametrize(
    ("profile", "flags"),
    [
        ('tensorflow: "2.15.1"\ngpus: [rtx3080]\n',
         {"--copt=-Wno-error=unused-command-line-argument", "--host_copt=-Wno-error=unused-command-line-argument",
          "--linkopt=-Wl,--undefined-version"}),
        ('tensorflow: "2.18.0"\naccelerator: cpu\n', {"--linkopt=-Wl,--undefined-version"}),
        ('tensorflow: "2.18.0"\naccelerator: cpu\noptimize: native\n',
         {"--copt=-mno-avx512fp16", "--linkopt=-Wl,--undefined-version"}),
        ('tensorflow: "2.14.1"\naccelerator: cpu\noptimize: native\nhost_compiler: gcc\n', set()),
        (f'tensorflow: "2.17.1"\naccelerator: cpu\n{GCC_12}', {"--define=xnn_enable_avxvnniint8=false"}),
        (f'tensorflow: "2.17.1"\naccelerator: cpu\n{GCC_12}'.replace("12.3", "13.2"), set()),
        (f'tensorflow: "2.14.1"\naccelerator: cpu\noptimize: native\n{GCC_12}'.replace("6.5.0", "6.1.0"),
         {"--copt=-mno-avx512fp16"}),
    ],
)  # fmt: skip
def test_flags_follow_the_compiler_that_compiles(desk: Desk, profile: str, flags: set[str]) -> None:
    found = desk.resolve(f"schema: 1\nallow_untested: true\n{profile}").flags
    about = ("unused-command-line", "undefined-version", "avx512fp16", "xnn_enable")
    assert {flag for flag in found if any(word in flag for word in about)} == flags


@pytest.mark.parametrize(
    ("optimize", "flags"), [("portable", ()), ("native", ("-march=native",)), ("[avx2, fma]", ("-mavx2", "-mfma"))]
)
def test_optimisation_is_compiler_options(made_up: Desk, optimize: str, flags: tuple[str, ...]) -> None:
    assert made_up.resolve(HEAD + f"optimize: {optimize}\n").optimize == flags


@pytest.mark.parametrize("flag", ["-march=native", "-mcpu=native", "-mtune=native"])
@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("bazel: {{copts: [-O2, {0}]}}", "bazel.copts[1]"),
        ("bazel: {{flags: ['--host_copt={0}']}}", "bazel.flags[0]"),
        ("debug: {{per_file: [{{files: x.cc, copts: [-g, {0}]}}]}}", "debug.per_file[0].copts[1]"),
    ],
)
def test_what_depends_on_the_machine_that_builds_is_asked_for_by_name(
    made_up: Desk, line: str, path: str, flag: str
) -> None:
    text = f"{HEAD}{line.format(flag)}\n"
    (problem,) = made_up.problems(text)
    assert (problem.code, problem.field) == ("flag-is-a-choice", path)
    assert problem.fix.startswith("remove the option, or write `optimize: native`")
    assert "-native-" in made_up.resolve(text + "optimize: native\n").build_id
    assert "native" not in made_up.resolve(text.replace("native", "x86-64")).build_id


def test_an_option_at_fault_is_left_out_and_the_others_stay(made_up: Desk) -> None:
    (problem,) = made_up.problems(HEAD + "bazel: {copts: [-O2, -mtune=native]}\n")
    assert problem.ways[0].change == {"bazel.copts": ["-O2"]}


FACTS = (
    "{release} {version} {version_minor} {python} {python_major} {accelerator} {gpu_compiler} {host_compiler} {xla} "
    "{xla_digit} {optimize} {optimize_flags} {debug} {wheel_name} {targets} {cuda_minor} {cudnn_major} {cuda_path}"
)


def test_rows_may_speak_of_every_fact_of_a_build(made_up: Desk) -> None:
    row = f'  - {{variable: ALL, releases: "9.9", value: "{FACTS}", source: x}}\n'
    tables = MADE_UP_TABLES | {"variables": MADE_UP_TABLES["variables"] + row}
    desk = Desk(knowledge=knowledge_of(tables), templates=made_up.templates)
    text = HEAD + "compute_capabilities: [compute_90, sm_86]\nxla: false\noptimize: [avx2, fma]\ndebug: true\n"
    assert desk.resolve(text + "wheel: {name: mine}\n").environment["ALL"] == (
        "9.9 9.9.1 9.9 3.10 3 cuda clang clang false 0 custom -mavx2 -mfma dbg mine sm_86,compute_90 20.1 9 "
        "/usr/local/cuda-20.1"
    )
    assert desk.resolve(HEAD + "gpus: [one]\noptimize: native\n").environment["ALL"] == (
        "9.9 9.9.1 9.9 3.10 3 cuda clang clang true 1 native -march=native off tensorflow sm_86 20.1 9 "
        "/usr/local/cuda-20.1"
    )


# --- images and sources ---------------------------------------------------------------------------------------------


def test_the_base_in_the_profile_replaces_the_known_one(made_up: Desk) -> None:
    resolution = made_up.resolve(HEAD + "base: host:5000/mine:1\n")
    assert str(resolution.base) == "host:5000/mine:1"


def test_a_host_compiler_of_the_profile_stands_where_the_profile_says(made_up: Desk) -> None:
    resolution = made_up.resolve(HEAD + "host_compiler: {name: gcc, path: /opt/gcc}\n")
    assert resolution.host_compiler == "gcc"
    assert resolution.paths["gcc"] == "/opt/gcc"


@pytest.mark.parametrize(
    ("source", "kind", "location", "refs", "commit"),
    [
        ("", "git", "https://github.com/tensorflow/tensorflow.git", ("v9.9.1",), "a" * 40),
        (", ref: v9.9.1", "git", "https://github.com/tensorflow/tensorflow.git", ("v9.9.1",), "a" * 40),
        (", fallback: [main]", "git", "https://github.com/tensorflow/tensorflow.git", ("v9.9.1", "main"), None),
        (", ref: x, fallback: [y, x, y]", "git", "https://github.com/tensorflow/tensorflow.git", ("x", "y"), None),
        (", git: https://example.org/tf.git", "git", "https://example.org/tf.git", ("v9.9.1",), None),
        (f", archive: https://x/y.zip, sha256: {'ab' * 32}", "archive", "https://x/y.zip", (), None),
        (", path: ../tf", "path", "../tf", (), None),
    ],
)
def test_a_source_is_what_the_profile_names_and_pinned_where_the_commit_is_known(
    made_up: Desk, source: str, kind: str, location: str, refs: tuple[str, ...], commit: str | None
) -> None:
    found = made_up.resolve(f'schema: 1\ntensorflow: {{release: "9.9.1"{source}}}\n').source
    assert (found.kind, found.location, found.refs, found.commit) == (kind, location, refs, commit)


def test_a_script_that_packs_the_wheel_is_told_its_name_and_place(made_up: Desk) -> None:
    knowledge = made_up.knowledge
    release = knowledge.releases["9.7"]
    assert release.wheel.command == ("bazel-bin/script", "{output}", "--name", "{wheel_name}")
    plan = made_up.plan(OLD)
    assert plan.package == ("run", "bazel-bin/script", "/tf/staging/raw")


# --- host compilers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "path"),
    [
        ("1", "/opt/acc-1.0/acc"), ("4.9.2", "/opt/acc-4.9/acc"), ("5", "/opt/acc-5/acc"),
        ("11.3", "/opt/acc-11/acc"),
    ],
)  # fmt: skip
def test_a_host_compiler_by_version_stands_where_its_row_for_that_version_says(
    made_up: Desk, version: str, path: str
) -> None:
    resolution = made_up.resolve(GPU + f"host_compiler: {{name: acc, version: '{version}'}}\nallow_untested: true\n")
    assert (resolution.host_compiler, resolution.paths["acc"]) == ("acc", path)


@pytest.mark.parametrize(
    ("name", "version", "path"),
    [
        ("gcc", "4.9.2", "/usr/bin/gcc-4.9"), ("gcc", "5.4", "/usr/bin/gcc-5"), ("gcc", "11", "/usr/bin/gcc-11"),
        ("clang", "6.0", "/usr/lib/llvm-6.0/bin/clang"), ("clang", "6", "/usr/lib/llvm-6.0/bin/clang"),
        ("clang", "7.0", "/usr/lib/llvm-7/bin/clang"), ("clang", "17", "/usr/lib/llvm-17/bin/clang"),
    ],
)  # fmt: skip
def test_a_host_compiler_by_version_stands_where_debian_and_ubuntu_put_it(
    made_up: Desk, name: str, version: str, path: str
) -> None:
    tables = MADE_UP_TABLES | {"host_compilers": (KNOWLEDGE / "host_compilers.yaml").read_text("utf-8")}
    shipped = Desk(knowledge=knowledge_of(tables), templates=made_up.templates)
    text = GPU + f"host_compiler: {{name: {name}, version: '{version}'}}\nallow_untested: true\n"
    assert shipped.resolve(text).paths[name] == path


def test_a_version_that_no_row_places_and_no_image_has_is_refused(made_up: Desk) -> None:
    text = GPU + "host_compiler: {name: clang, version: '17'}\nallow_untested: true\n"
    (problem,) = made_up.problems(text)
    assert (problem.code, problem.field, problem.why) == ("image-without-tool", "host_compiler", "")
    assert made_up.resolve(text.replace("'17'", "'17', path: /opt/clang")).paths["clang"] == "/opt/clang"


def test_a_release_whose_row_names_no_compiler_is_compiled_by_the_first_that_is_known(made_up: Desk) -> None:
    resolution = made_up.resolve(OLD + "gpus: [one]\n")
    (choice,) = [choice for choice in resolution.choices if choice.field == "host_compiler"]
    assert (choice.value, choice.source) == ("acc", "host_compilers.yaml")
    own = [choice for choice in made_up.resolve(GPU).choices if choice.field == "host_compiler"]
    assert [(choice.value, choice.source) for choice in own] == [("clang", "releases.yaml 9.9")]


# An accelerator that says nothing of itself but that it has two compilers: names must do.
BARE = {
    "accelerators": """
rows:
  - accelerator: npu
    toolkit: npu
    components: [npu]
    target_pattern: "npu[0-9]+"
    compilers: [nicc, noldcc]
    source: x
""",
    "gpus": "rows: [{gpu: card, accelerator: npu, target: npu1, source: x}]",
    "toolkits": """
rows: [{toolkit: npu, version: "3.1", targets: [npu1], host_compilers_max: {acc: 9}, source: x}]
""",
    "compilers": 'rows: [{compiler: nicc, version: "5", targets: [npu1], source: x}]',
    "releases": """
rows:
  - release: "9.9"
    patches: ["9.9.0"]
    pythons: ["3.10"]
    bazel: "7.0.0"
    gpu_compiler: noldcc
    compilers: {gcc: "13", nicc: "5"}
    host_compilers_min: {acc: "6", gcc: "7"}
    components: {npu: {tested: "3.1", accepted: ["3.1"]}}
    wheel: {target: "//x:wheel", folder: out}
    cost: {memory_per_job_mib: 2560, disk_gib: 60}
    source: x
""",
    "images": """
rows: [{image: "my/build:{version}", releases: "9.9", template: ubuntu-devel, paths: {python: /p}, source: x}]
""",
    "host_compilers": MADE_UP_TABLES["host_compilers"],
}
CARD = 'schema: 1\ntensorflow: "9.9.0"\ngpus: [card]\n'


@pytest.fixture(scope="module")
def bare(made_up: Desk) -> Desk:
    """Knowledge without titles and symptoms."""
    return Desk(knowledge=knowledge_of(BARE), templates=made_up.templates)


@pytest.mark.parametrize(("compiler", "version"), [("nicc", "5"), ("noldcc", "")])
def test_a_gpu_compiler_is_whatever_the_rows_name(bare: Desk, compiler: str, version: str) -> None:
    resolution = bare.resolve(CARD + f"compiler: {compiler}\n")
    assert (resolution.gpu_compiler, resolution.gpu_compiler_version) == (compiler, version)


@pytest.mark.parametrize(
    ("line", "field", "why", "way"),
    [
        ("compiler: nolcc", "compiler", "known for npu: nicc, noldcc", {"compiler": "noldcc"}),
        ("host_compiler: ac", "host_compiler", "known: acc, gcc, nicc", {"host_compiler": "acc"}),
        ("host_compiler: {name: ac}", "host_compiler.name", "known: acc, gcc, nicc", {"host_compiler": "acc"}),
        ("host_compiler: zzz", "host_compiler", "known: acc, gcc, nicc", {"host_compiler": None}),
    ],
)
def test_a_compiler_that_nobody_knows_is_refused_with_those_that_are_known(
    bare: Desk, line: str, field: str, why: str, way: dict[str, str | None]
) -> None:
    (problem,) = bare.problems(f"{CARD}{line}\n")
    assert (problem.code, problem.field, problem.line, problem.why) == ("compiler-unknown", field, 4, why)
    assert problem.ways[0].change == way


@pytest.mark.parametrize(
    ("compiler", "code", "message", "why"),
    [
        pytest.param("{name: acc, version: '10'}", "host-compiler-too-new", "npu 3.1 accepts no acc newer than 9",
                     "`host_compiler` says acc 10", id="too new"),
        pytest.param("{name: acc, version: '4'}", "host-compiler-too-old",
                     "TensorFlow 9.9 cannot be compiled by acc 4",
                     "acc 6 is the first that knows its C++ standard; without this refusal: `acc: what?`",
                     id="too old"),
        pytest.param("{name: gcc, version: '6'}", "host-compiler-too-old",
                     "TensorFlow 9.9 cannot be compiled by gcc 6", "gcc 7 is the first that knows its C++ standard",
                     id="too old, without a symptom"),
    ],
)  # fmt: skip
def test_a_host_compiler_is_refused_in_words_of_the_rows_alone(
    bare: Desk, compiler: str, code: str, message: str, why: str
) -> None:
    (problem,) = bare.problems(f"{CARD}host_compiler: {compiler}\n")
    assert (problem.code, problem.message, problem.why) == (code, message, why)


def test_only_the_toolkits_own_compiler_minds_how_new_the_host_compiler_is(bare: Desk) -> None:
    text = CARD + "compiler: nicc\nhost_compiler: {name: acc, version: '10'}\n"
    assert [problem.code for problem in bare.problems(text)] == ["host-compiler-untested"]
