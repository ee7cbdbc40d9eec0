"""What `advise` answers: the official wheel's verdict, its limits, and a profile that is accepted."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import Result

from tfdock import api
from tfdock.errors import ProfileError
from tfdock.gpu.devices import judge
from tfdock.knowledge import loader
from tfdock.knowledge.fits import toolkit_floor
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import Advice, advise, advise_on, cover, gpus_named, read_question
from tfdock.resolve.gpu_support import target_facts
from tfdock.types import Version

from ..command_line import run, too_wide
from ..desk import Desk

KNOWLEDGE = loader.knowledge()
CARDS = [target for row in KNOWLEDGE.architectures if row.accelerator == "cuda" for target in row.targets]
ON_ANY_MACHINE = [gpu for gpu in KNOWLEDGE.gpus.values() if not gpu.machine]


def asked(*names: str, tensorflow: str | None = None, python: str | None = None) -> Advice:
    return advise(KNOWLEDGE, gpus_named(KNOWLEDGE, names), tensorflow=tensorflow, python=python)


def gpu_of(target: str) -> Gpu:
    return Gpu(gpu=f"card-{target}", accelerator="cuda", target=target, source="x")


# --- the official wheel ----------------------------------------


@pytest.mark.parametrize(
    ("gpu", "tensorflow", "runs", "by"),
    [
        ("RTX 5080", "2.19", "ptx-jit", "compute_90"), ("h100", "2.14", "ptx-jit", "compute_80"),
        ("k80", "2.18", "no", ""), ("k80", "2.14", "native-same-major", "sm_35"),
        ("rtx4090", "2.18.0", "native", "sm_89"), ("jetson-orin", "2.21", "no", ""), ("rx7900xtx", "2.18", "no", ""),
    ],
)  # fmt: skip
def test_the_official_wheel_is_judged(gpu: str, tensorflow: str, runs: str, by: str) -> None:
    (one,) = asked(gpu, tensorflow=tensorflow).gpus
    assert (one.runs, one.by) == (runs, by)
    assert one.reason
    assert one.limits == () or runs != "no"


def test_where_nothing_is_asked_for_the_newest_release_is_judged() -> None:
    advice = asked("rtx5090")
    assert advice.release.release == max(KNOWLEDGE.releases, key=lambda text: tuple(map(int, text.split("."))))
    assert advice.native is None


def test_the_newest_official_wheel_that_runs_at_once_is_named() -> None:
    for gpu, tensorflow, python, release in (
        ("h100", "2.14", None, "2.21"), ("k80", "2.18", None, "2.14"), ("h100", "2.14", "3.9", "2.20"),
    ):  # fmt: skip
        native = asked(gpu, tensorflow=tensorflow, python=python).native
        assert native
        assert (native.release, python is None or python in native.pythons) == (release, True)


# --- limits ----------------------------------------


@pytest.mark.parametrize(
    ("gpu", "tensorflow", "told", "never"),
    [
        ("gtx1080", "2.18", "driver 525.60.13 or newer, and 580 is the last", "cuDNN"),
        ("rtx5080", "2.19", "cuDNN 9.7 or newer has it", ""),
        ("rtx4090", "2.19", "", "cuDNN"),
        ("rtx5080", "2.19", "NCCL", ""),
        ("rtx3080", "2.19", "", "NCCL"),
        ("rtx5080", "2.19", "CUDA 12.5", ""),
        ("rtx3080", "2.19", "", "older than this GPU"),
        ("rtx5080", "2.19", "driver 570.86.16 or newer with the open kernel modules", ""),
        ("rtx5080", "2.19", "1149 kernels that MLIR generated (Add, Mul, Cast and their like) fail with", ""),
        # PTX of CUDA 11.8 needs the driver that came with it, not the oldest of its major version.
        ("h100", "2.14", "driver 520.61.05", ""),
        ("h100", "2.20", "the driver compiles each at its first use", ""),
    ],
)
def test_the_limits_of_releases_without_a_measured_wheel_are_those_of_their_rows(
    gpu: str, tensorflow: str, told: str, never: str
) -> None:
    limits = "\n".join(asked(gpu, tensorflow=tensorflow).gpus[0].all_limits)
    assert told in limits
    assert not never or never not in limits


def test_a_library_that_has_dropped_a_gpu_is_held_back() -> None:
    found = {
        one: asked(*one.split()[:1], tensorflow=one.split()[1]).wheel.pins for one in ("gtx1080 2.20", "rtx3080 2.20")
    }
    assert found == {"gtx1080 2.20": ("nvidia-cudnn-cu12<9.11",), "rtx3080 2.20": ()}


# --- what to build ----------------------------------------


@pytest.mark.parametrize(
    ("names", "tensorflow", "offered", "targets"),
    [
        (["rtx5080"], "2.19", "2.20", ("sm_120",)),
        (["rtx5080"], None, "2.21", ("sm_120",)),
        (["h100"], "2.14", "2.14", ("sm_90",)),
        (["k80"], "2.18", "2.14", ("sm_37",)),
        (["k80"], "1.4", "1.4", ("compute_37",)),
        (["rtx3080", "rtx5090"], "2.20", "2.20", ("sm_86", "sm_120")),
        (["a100", "rtx3080", "rtx4090", "h100"], "2.18", "2.18", ("sm_80", "sm_90")),
        (["rtx4090"], "2.4", "2.4", ("sm_80",)),
        (["mi300x"], "2.18", "2.18", ("gfx942",)),
    ],
)
def test_the_offer_is_the_release_asked_for_or_the_nearest_that_takes_the_gpus(
    names: list[str], tensorflow: str | None, offered: str, targets: tuple[str, ...]
) -> None:
    advice = asked(*names, tensorflow=tensorflow)
    assert advice.offer
    assert advice.offer.release.release == offered
    assert advice.offer.resolution.targets == targets
    assert advice.offer.resolution.untested == ()
    assert bool(advice.refused) == (advice.offer.release is not advice.release)


def test_a_wheel_whose_extra_cannot_be_installed_is_named_by_the_version_whose_extra_can() -> None:
    named = [asked("rtx3080", tensorflow=version).wheel.requirement for version in ("2.15.0", "2.15.1")]
    assert named == ["tensorflow[and-cuda]==2.15.0.post1", "tensorflow[and-cuda]==2.15.1"]


def test_an_offer_of_another_release_leaves_the_one_asked_for_at_ones_own_risk() -> None:
    advice = asked("rx7900gre", tensorflow="2.15")
    assert advice.offer
    assert advice.untested
    assert (bool(advice.offer.resolution.untested), bool(advice.untested.resolution.untested)) == (False, True)
    assert "allow_untested: true" in advice.untested.text
    assert advice.untested.release.release == "2.15"
    assert asked("h100", tensorflow="2.14").untested is None


def test_where_only_xla_leaves_a_gpu_out_the_profile_does_without_xla() -> None:
    offer = asked("quadro-k600", tensorflow="1.15").offer
    assert offer
    assert not offer.resolution.xla
    assert "xla: false" in offer.text


@pytest.mark.parametrize("names", [["jetson-orin"], ["rtx3080", "mi300x"], ["dgx-spark", "rtx5090"]])
def test_nothing_is_offered_where_one_wheel_cannot_serve_them(names: list[str]) -> None:
    advice = asked(*names)
    assert advice.offer is None
    assert advice.mixed or advice.elsewhere


@pytest.mark.parametrize("gpu", {gpu.target: gpu for gpu in ON_ANY_MACHINE}.values(), ids=lambda gpu: gpu.gpu)
def test_every_profile_that_is_offered_is_accepted_and_runs_without_jit(desk: Desk, gpu: Gpu) -> None:
    advice = advise(KNOWLEDGE, [gpu], tensorflow="2.20")
    if advice.offer is None:
        compiled = {target for row in KNOWLEDGE.toolkits.values() for target in row.targets}
        used = [row.runtime_targets.get(gpu.accelerator, ()) for row in KNOWLEDGE.releases.values()]
        ignored = any(used) and not any(gpu.target in targets for targets in used)
        assert advice.elsewhere or ignored or gpu.target not in compiled
        assert not advice.untested
        return
    resolution = desk.resolve(advice.offer.text)
    accelerator = KNOWLEDGE.accelerators[gpu.accelerator]
    assert judge(KNOWLEDGE, accelerator, gpu.target, resolution.targets).starts_at_once
    assert bool(resolution.untested) == bool(advice.offer.resolution.untested)


# --- the smallest list ----------------------------------------


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["8.0", "8.6", "8.9", "9.0"], ("sm_80", "sm_90")),
        (["8.6", "8.9"], ("sm_86",)),
        (["12.0", "8.6", "12.1", "10.0"], ("sm_86", "sm_100", "sm_120")),
        (["8.6", "8.7"], ("sm_86", "sm_87")),
        (["7.0", "7.2", "7.5"], ("sm_70", "sm_72")),
    ],
)
def test_the_smallest_list_takes_the_lowest_gpu_of_each_major_version(
    targets: list[str], expected: tuple[str, ...]
) -> None:
    assert cover(KNOWLEDGE, [gpu_of(target) for target in targets]) == expected


def test_what_the_toolkit_does_not_know_is_served_from_below() -> None:
    gpus = [gpu_of("8.9"), gpu_of("9.0")]
    assert cover(KNOWLEDGE, gpus, able={"70", "80", "86", "90"}) == ("sm_86", "sm_90")
    assert cover(KNOWLEDGE, gpus, able={"70", "80", "86"}) == ()
    assert cover(KNOWLEDGE, [gpu_of("8.7")], able={"80", "86"}) == ()


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.sampled_from(CARDS), min_size=1, max_size=5, unique=True))
def test_the_list_serves_all_and_no_shorter_one_does(targets: list[str]) -> None:
    gpus = [gpu_of(target) for target in targets]
    accelerator = KNOWLEDGE.accelerators["cuda"]

    def serves(images: tuple[str, ...]) -> bool:
        return all(judge(KNOWLEDGE, accelerator, gpu.target, images).starts_at_once for gpu in gpus)

    found = cover(KNOWLEDGE, gpus)
    assert serves(found)
    majors = {target.partition(".")[0] for target in targets}
    every = [f"sm_{one.replace('.', '')}" for one in CARDS if one.partition(".")[0] in majors]
    assert not any(serves(shorter) for shorter in itertools.combinations(every, len(found) - 1))


def test_of_made_up_knowledge_the_answer_needs_no_change_of_code(made_up: Desk) -> None:
    knowledge: KnowledgeBase = made_up.knowledge
    (one,) = advise(knowledge, gpus_named(knowledge, ["one"])).gpus
    assert one.runs == "native"
    twelve = advise(knowledge, gpus_named(knowledge, ["Zeta Twelve"]))
    assert twelve.gpus[0].runs == "ptx-jit"
    assert twelve.offer
    slab = advise(knowledge, gpus_named(knowledge, ["slab"]), tensorflow="9.9")
    assert slab.gpus[0].runs == "native"
    assert slab.offer
    assert slab.offer.resolution.targets == ("xe2",)


# --- names ----------------------------------------


@pytest.mark.parametrize(
    ("gpu", "release", "words"),
    [
        ("rtx308O", None, ["rtx3080"]),
        ("gtx750", None, ["gpu-ambiguous", "gtx750-cc50", "gtx750-cc52"]),
        ("rtx3080", "2.99", ["release-unknown"]),
        ("rtx3080", "2.18.7", ["release-unknown"]),
    ],
)
def test_a_name_that_is_none_or_that_of_several_is_refused(gpu: str, release: str | None, words: list[str]) -> None:
    with pytest.raises(ProfileError) as caught:
        asked(gpu, tensorflow=release)
    assert [word for word in words if word not in str(caught.value)] == []


# --- the command ----------------------------------------


def command(*words: str, columns: int = 80) -> Result:
    return run("advise", *words, COLUMNS=str(columns))


def test_a_wheel_that_does_not_search_where_its_extra_installs_says_what_to_set() -> None:
    said = [command("--gpu", "h100", "--tensorflow", release, columns=400).stdout for release in ("2.20", "2.21")]
    assert ["sees no GPU until you run `export LD_LIBRARY_PATH=" in text for text in said] == [False, True]


def test_the_document_has_the_keys_that_others_rely_on() -> None:
    document = json.loads(command("--gpu", "rtx5080", "--tensorflow", "2.19", "--json").stdout)
    assert list(document)[:2] == ["schema", "ok"]
    assert document["schema"] == "tfdock.advise/1"
    gpu = document["gpu"]
    assert gpu == document["gpus"][0]
    assert (gpu["name"], gpu["compute_capability"], gpu["runs"]) == ("rtx5080", "12.0", "ptx-jit")
    assert gpu["limits"]
    assert document["wheel"]["install"] == "pip install 'tensorflow[and-cuda]==2.19.1'"
    assert 'tensorflow: "2.20.0"' in document["profile"]
    assert document["jit"]["source"]


def test_an_amd_gpu_has_a_gfx_target_and_several_gpus_no_single_one() -> None:
    assert json.loads(command("mi300x", "--json").stdout)["gpu"]["gfx"] == "gfx942"
    document = json.loads(command("--gpu", "rtx3080,rtx5090", "--json").stdout)
    assert "gpu" not in document
    assert [gpu["name"] for gpu in document["gpus"]] == ["rtx3080", "rtx5090"]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("words", [["rtx5080", "--tensorflow", "2.19"]])
def test_people_read_the_answer_then_why_then_the_fix_within_their_terminal(columns: int, words: list[str]) -> None:
    lines = command(*words, columns=columns).stdout.splitlines()
    assert lines[0].startswith(("The official wheel is not enough:", "No build is needed with another release:"))
    assert "with TensorFlow" in " ".join(lines[: lines.index("") + 4])
    after = lines[lines.index("") :]
    order = [line.split(":")[0].strip() for line in after if line.strip().startswith(("why:", "note:"))]
    assert order == sorted(order, key=["why", "note"].index)
    assert [line for line in after if re.match(r"profile |note:", line)][-1].startswith("note:"), "the fix comes last"
    assert too_wide(lines, columns) == []


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "words", [["k80"], ["a100", "rtx3080", "h100"], ["k80", "rtx5080"], ["rtx3080", "mi300x"], ["gfx1100"]]
)
def test_no_answer_is_wider_than_the_terminal(columns: int, words: list[str]) -> None:
    assert too_wide(command(*words, columns=columns).stdout.splitlines(), columns) == []


@pytest.mark.parametrize(
    ("words", "version"), [(["rtx3080", "--tensorflow", "2.18"], "2.18.1"), (["k80", "v100", "a100"], "2.14.1")]
)
def test_where_no_build_is_needed_the_first_lines_say_so_and_what_to_install(words: list[str], version: str) -> None:
    text = command(*words, columns=200).stdout
    first, second, *_ = text.splitlines()
    assert first.startswith(f"No build is needed: the official wheel of TensorFlow {version} runs on")
    assert second.startswith(f"note: `pip install 'tensorflow[and-cuda]=={version}'")
    assert "schema: 1" not in text
    assert "No build is needed" not in command("rtx5080").stdout


def test_the_pip_line_names_its_pythons_and_what_pip_does_not_bring() -> None:
    assert "(Python 3.9 to 3.10)" in command("k80", columns=200).stdout, "the extra's TensorRT has no file for 3.11"
    with_311 = command("k80", "--python", "3.11", columns=200).stdout
    assert (
        "`pip install tensorflow==2.14.1 'numpy<2'` (Python 3.11; CUDA 11.8 and cuDNN 8.6 must be installed"
        in with_311
    )
    older = command("rtx3080", "--tensorflow", "2.8", columns=200).stdout
    assert "; CUDA 11.2 or a later 11.x and cuDNN 8.1 or a later 8.x must be installed beside it)" in older


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("words", [["rtx5080"], ["a100", "rtx3080", "rtx4090", "rtx5080"], ["sm_120", "rtx3080"]])
def test_the_profile_can_be_pasted_from_any_terminal(desk: Desk, columns: int, words: list[str]) -> None:
    printed = command(*words, columns=columns).stdout
    text = "schema: 1" + printed.partition("schema: 1")[2].partition("\n\n")[0]
    written = json.loads(command(*words, "--json").stdout)["profile"]
    assert yaml.safe_load(text) == yaml.safe_load(written)
    comments = [line for line in text.splitlines() if "#" in line]
    assert all(line.startswith("# ") for line in comments)
    assert desk.resolve(text).build_id == desk.resolve(written).build_id


OLD_AND_NEW = [
    "No single wheel runs on both.", "why: k80 (3.7): CUDA 7.5 to 11.8; TensorFlow 1.4 to 2.14\n",
    "why: rtx5080 (12.0): CUDA 12.8 or newer; TensorFlow 2.20 or newer\n",
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told", "fixes"),
    [
        (["k80", "rtx5080"], OLD_AND_NEW, ["--gpu k80", "--gpu rtx5080"]),
        (
            ["k80", "rtx5080", "--tensorflow", "2.14"],
            OLD_AND_NEW,
            ["--gpu k80 --tensorflow 2.14", "--gpu rtx5080 --tensorflow 2.14"],
        ),
        (
            ["dgx-spark", "rtx5090"],
            ["No single wheel runs on both.", "dgx-spark needs a wheel for aarch64 machines"],
            ["--gpu dgx-spark", "--gpu rtx5090"],
        ),
        (
            ["rx6600"],
            [
                "No build is needed: AMD's image has TensorFlow 2.21.0 for this GPU.",
                "TensorFlow 2.21.0 with `HSA_OVERRIDE_GFX_VERSION=10.3.0`, as users report: `docker pull rocm/",
                "rx6600 (gfx1032): no ROCm is known to support it; no release",
                "users report that `HSA_OVERRIDE_GFX_VERSION=10.3.0` makes gfx1032 run code for gfx1030",
                "build for gfx1030, `tfdock advise --gpu gfx1030`, and run the wheel with `HSA_OVERRIDE",
            ],
            [],
        ),
    ],
)
def test_gpus_that_no_wheel_serves_are_told_why_and_asked_for_alone(
    words: list[str], told: list[str], fixes: list[str]
) -> None:
    text = command(*words, columns=200).stdout
    assert [line for line in told if line not in text] == []
    assert text.endswith("".join(f"note: `tfdock advise {one}`\n" for one in fixes))
    assert "remove" not in text


@pytest.mark.parametrize(
    ("word", "target", "field"),
    [
        ("sm_120", "12.0", "compute_capabilities: [sm_120]"),
        ("sm120", "12.0", "compute_capabilities: [sm_120]"),
        ("12.0", "12.0", "compute_capabilities: [sm_120]"),
        ("gfx1100", "gfx1100", "amdgpu_targets: [gfx1100]"),
    ],
)
def test_a_target_alone_is_answered_as_a_gpu_that_has_it(desk: Desk, word: str, target: str, field: str) -> None:
    document = json.loads(command("--gpu", word, "--json").stdout)
    assert target in document["gpu"].values()
    assert field in document["profile"]
    assert "gpus:" not in document["profile"]
    assert desk.resolve(document["profile"]).untested == ()


@pytest.mark.parametrize("gpu", ["rx7600", "gfx1102", "Strix Halo"])
def test_a_gpu_that_a_fork_alone_takes_is_built_for_from_the_fork(desk: Desk, gpu: str) -> None:
    written = json.loads(command("--gpu", gpu, "--json").stdout)["profile"]
    assert "# From https://github.com/ROCm/tensorflow-upstream, r2.20-rocm-enhanced." in written
    resolution = desk.resolve(written)
    assert resolution.untested == ()
    assert resolution.source.refs == ("r2.20-rocm-enhanced",)
    upstream = {"git": "https://github.com/tensorflow/tensorflow.git", "release": "2.20.0"}
    problems = desk.problems(yaml.safe_dump(yaml.safe_load(written) | {"tensorflow": upstream}))
    assert [problem.code for problem in problems] == ["runtime-target", "component-untested"]


@pytest.mark.parametrize(
    ("source", "ok"),
    [
        ("git: https://github.com/rocm/tensorflow-upstream.git/", True),
        ("git: git@github.com:ROCm/tensorflow-upstream.git", True),
        (f"archive: https://github.com/ROCm/tensorflow-upstream/archive/x.zip, sha256: {64 * 'a'}", True),
        (f"archive: https://github.com/tensorflow/tensorflow/archive/x.zip, sha256: {64 * 'a'}", False),
        ("git: https://github.com/ROCm/tensorflow-upstream-of-mine", False),
    ],
)
def test_a_fork_is_known_by_its_address_in_any_spelling(desk: Desk, source: str, ok: bool) -> None:
    written = f'schema: 1\ntensorflow: {{release: "2.18.0", {source}}}\naccelerator: rocm\namdgpu_targets: [gfx90a]\n'
    if ok:
        assert desk.resolve(written).untested == ()
    else:
        assert [problem.code for problem in desk.problems(written)] == ["component-untested"]


@pytest.mark.parametrize("word", ["sm_91", "9.1", "gfx9999"])
def test_what_no_gpu_has_is_refused_without_a_guess(word: str) -> None:
    result = command(word)
    assert result.exit_code == 2
    assert "[gpu-unknown]" in result.stderr
    assert "did you mean" not in result.stderr


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        pytest.param(
            "rtx5080 --python 3.20",
            {
                0: "NVIDIA's image 25.02 (its last), TensorFlow 2.17.0: `docker pull",
                3: "TensorFlow 2.21.0 has no official wheel for Python 3.20",
                -1: "use a Python that has an official wheel: `tfdock advise --gpu rtx5080 --python 3.13`",
            },
            id="a Python without official wheel",
        ),
        pytest.param(
            "k80 --python 3.13",
            {-1: "note: `tfdock advise --gpu k80 --tensorflow 2.14.1 --python 3.11`"},
            id="a release and Python that would do",
        ),
        pytest.param(
            "gtx860m-cc30 710a-cc35 --tensorflow 2.18 --python 3.9",
            {-1: "built for Python 3.9: `tfdock advise --gpu gtx860m-cc30,710a-cc35 --tensorflow 2.18`"},
            id="the Python stands in the way",
        ),
        pytest.param(
            "rx7900xtx",
            {0: "without a build: AMD's image, TensorFlow 2.21.0: `docker pull rocm/tensorflow:", -1: "tfdock build"},
            id="the vendor's own builds before a build",
        ),
        pytest.param(
            "k80 --tensorflow 2.18",
            {
                0: "note: `pip install 'tensorflow[and-cuda]==2.14.1' 'numpy<2'` (Python 3.9 to 3.10)",
                -1: "`tfdock advise --gpu k80 --tensorflow 2.18 -o k80.yaml`",
            },
            id="the official wheel before a build of it",
        ),
    ],
)
def test_what_to_do_is_a_command_and_read_last(words: str, lines: dict[int, str]) -> None:
    found = command(*words.split(), columns=300).stdout.splitlines()
    fixes = [line for line in found if line.startswith("note:")]
    for number, told in lines.items():
        assert told in (found if number > 0 else fixes)[number]


@pytest.mark.parametrize(
    "words", [["rtx308O"], ["gtx750"], [], ["rtx3080", "--tensorflow", "two"], ["rtx3080", "--python", "3"]]
)
def test_what_cannot_be_understood_exits_with_2(words: list[str]) -> None:
    assert command(*words).exit_code == 2
    assert "write it as `2.7`" in command("rtx3080", "--python", "2.7.10").stderr


def test_the_written_profile_is_accepted_by_check(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    assert command("rtx5080", "--tensorflow", "2.19", "-o", str(file)).exit_code == 0
    assert run("check", file).exit_code == 0


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    file, link = tmp_path / "x.yaml", tmp_path / "link.yaml"
    assert command("rtx5080", "-o", str(file)).exit_code == 0
    link.symlink_to(tmp_path / "nowhere")
    for there in (file, link):
        result = command("rtx3080", "--tensorflow", "2.18", "-o", str(there))
        assert result.exit_code == 2
        assert "init-file-exists" in result.output
    assert "rtx5080" in file.read_text("utf-8")
    assert sorted(tmp_path.iterdir()) == [link, file]


def test_where_no_profile_fits_none_is_written(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    result = command("jetson-orin", "-o", str(file), columns=1000)
    assert result.exit_code == 0
    assert not file.exists()
    assert "was not written" in result.output


# --- machines without a GPU that wheels are built for ---------------------------------------------------------------


def test_a_machine_without_gpu_gets_the_official_wheel() -> None:
    result = command("cpu", "--tensorflow", "2.9", columns=1000)
    assert result.stdout.startswith("No build is needed: the official wheel of TensorFlow 2.9.3 runs on it.")
    assert "`pip install tensorflow==2.9.3 'protobuf<3.21' 'numpy<2'` (Python 3.7 to 3.10)" in result.stdout
    assert "with glibc 2.17 or newer and a CPU with AVX" in result.stdout


def test_its_profile_is_the_one_of_init(tmp_path: Path) -> None:
    file = tmp_path / "cpu.yaml"
    document = json.loads(command("--gpu", "cpu", "-o", str(file), "--json").stdout)
    assert document["profile"] == file.read_text()
    assert "accelerator: cpu" in document["profile"]
    assert not document["build_needed"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("arc-a770", "2.15.0.3"),
        ("GeForce 820M", "below 3.0"),
        ("gtx560ti", "`tfdock advise cpu`"),
        ("armv6", "ARMv7"),
        ("odroid xu4", "linux_armv7l.whl"),
        ("raspbian", "piwheels"),
        ("windows arm", "WSL 2"),
        ("Windows 11 on ARM64", "aarch64"),
        ("freebsd 13", "virtual machine with Linux"),
        ("quadro fx 2800m", "capability 1.x"),
        ("geforce 9800 gt", "capability 1.x"),
    ],
)
def test_a_device_without_any_wheel_is_told_what_there_is(word: str, told: str) -> None:
    result = command(word, columns=1000)
    assert result.exit_code == 2
    assert f"tfdock builds no wheel for `{word}` [gpu-unknown]" in result.stderr
    assert told in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tfjs-node-gpu", "CUDA 11.2"),
        ("java", "10.0-7.4-1.4.4"),
        ("c library", "6.0 and newer only"),
        ("tensorrt tensorflow 1.13", "  1.13: the wheel is made with TensorRT 5.0\n"),
        ("directml python 3.8", "Python 3.6 or 3.7"),
        ("build tensorflow 2.3", "Visual Studio 2019, Bazel 3.1.0"),
        ("docker cuda 11.2", "`tfdock releases cuda 11.2` lists"),
        ("gtx 1080 windows tensorflow 1.2", "Windows: Python 3.5 or 3.6"),
        ("numpy 1.21.4 tensorflow 2.4", "does not fit: TensorFlow 2.4 asks for numpy ~=1.19.2."),
        ("--tensorflow 2.12 --python 3.8", "wheel of TensorFlow 2.12.1 runs"),
    ],
)
def test_a_topic_alone_is_answered_without_a_gpu(words: str, told: str) -> None:
    result = command(*words.split(), columns=1000)
    assert result.exit_code == 0
    assert told in result.stdout


def test_the_topic_of_cuda_says_what_the_tables_of_releases_say() -> None:
    topic = next(row for row in KNOWLEDGE.topics if row.device == "cuda")
    for release, row in KNOWLEDGE.releases.items():
        (told,) = KNOWLEDGE.facts(topic, release)
        cuda, cudnn = (row.support(name).tested or "" for name in ("cuda", "cudnn"))
        named = re.search(r"CUDA ([\d.]+), cuDNN ([\d.]+)", told)
        assert named, told
        assert Version(cuda).matches(Version(named[1]))
        assert Version(cudnn).matches(Version(named[2]))
        floors = {toolkit_floor(KNOWLEDGE, "cuda", Version(cuda), wsl=wsl) for wsl in (False, True)}
        assert {str(floor) for floor in floors} <= {*re.findall(r"\d+(?:\.\d+)+", told)}


@pytest.mark.parametrize(
    ("words", "version", "told"),
    [
        ("m2-max", "2.21.0", "tensorflow-metal"), ("windows --python 3.7", "2.11.1", "up to 2.10"),
        ("rpi4 --tensorflow 2.12", "2.12.1", "from 2.10 on"), ("macbook --tensorflow 1.4", "1.4.1", "2.16"),
        ("windows --tensorflow 1.15", "1.15.5", "(Python 3.6 to 3.7)"),
    ],
)  # fmt: skip
def test_another_system_has_wheels_of_releases_and_pythons(words: str, version: str, told: str) -> None:
    result = command(*words.split(), columns=1000)
    assert result.stdout.startswith(f"No build is needed: the official wheel of TensorFlow {version} runs on it.")
    assert told in result.stdout


def test_a_condition_of_a_device_stands_before_the_command() -> None:
    first, second, *_ = command("raspberry", "pi", columns=1000).stdout.splitlines()[1:]
    assert first.startswith("note: it runs on a 64-bit system")
    assert "pip install tensorflow==" in second


@pytest.mark.parametrize(
    ("release", "needs"),
    [
        ("2.4", "CUDA 11.0 and cuDNN 8.0 must"),  # 11.0 alone has `libcusolver.so.10`
        ("2.3", "CUDA 10.1 and cuDNN 7.6 must"),
        ("2.6", "CUDA 11.2 or a later 11.x and cuDNN 8.1 or a later 8.x must"),
        ("2.12", "CUDA 11.8 and cuDNN 8.6 must"),
    ],
)
def test_a_later_minor_version_of_cuda_does_where_its_libraries_keep_their_names(release: str, needs: str) -> None:
    assert needs in command("gtx1080", "--tensorflow", release, columns=1000).stdout


def test_two_systems_are_refused() -> None:
    assert "windows and macos are two systems" in command("windows", "macos", "rtx3080", columns=1000).stderr


def test_a_release_without_a_wheel_for_a_system_names_the_nearest_with_one() -> None:
    result = command("arm", "--tensorflow", "2.9", columns=1000)
    assert result.exit_code == 2
    assert "TensorFlow 2.9.3 has no official wheel for arm" in result.stderr
    assert "take TensorFlow 2.10.1: `pip install tensorflow==2.10.1 'numpy<2'`" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--tensorflow 1.13.1", "glibc 2.17 or newer (2.23 for Python 3.7)"),
        ("--tensorflow 1.14 --python 3.7", "glibc 2.23 or newer"),
        ("--tensorflow 2.4.0", "a CPU with AVX and AVX2"),
        ("--tensorflow 2.4 --python 3.9", "No build is needed with another release"),
    ],
)
def test_what_the_official_wheel_needs_is_said_of_the_version(words: str, told: str) -> None:
    assert told in command("cpu", *words.split(), columns=1000).stdout


@pytest.mark.parametrize(
    ("words", "first", "told"),
    [
        # Which wheels of Windows have which code: tensorflow/tensorflow issues 22594, 23663 and 46537.
        ("windows gtx780ti --tensorflow 1.11", "wheel of TensorFlow 1.13.2 runs", "tensorflow-gpu==1.13.2"),
        ("gtx 650 ti windows 10", "the official wheel of TensorFlow 1.10.0 runs", "CUDA 9.0 and cuDNN 7"),
        ("windows gtx960m --tensorflow 2.3", "wheel of TensorFlow 2.4.4 runs", "none of these runs on 5.0"),
        ("windows gtx 1080 --tensorflow 1.12", "with another release", "driver 385.54 of Windows"),
        ("windows rtx 5060 ti", "No official wheel for windows is known", "in Linux, such as WSL 2: "),
        ("cpu windows --python 3.9", "the official wheel of TensorFlow 2.20.0 runs", "64-bit Python"),
        ("macbook pro gt 750m", "No official wheel for macbook pro is known to use this GPU", "10.13"),
        ("jetson nano --tensorflow 2.3", "JetPack 4.4 has TensorFlow 2.3.1", "==2.3.1+nv20.12` (Python 3.6;"),
        ("rx 470", "AMD's wheel for ROCm 3.5 has TensorFlow 2.2.0", "`pip install tensorflow-rocm==2.2.0`"),
        ("rtx 3060 --tensorflow 1.13.1", "with another release", "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"),
        ("rtx 4090 laptop", "the official wheel of TensorFlow 2.21.0 runs", "RTX 4090 Laptop"),
        ("core i7 920", "the official wheel of TensorFlow 1.5.1 runs", "grep -c avx"),
        ("m2 --tensorflow 2.12", "TensorFlow 2.12.1 has no official wheel for m2", "tensorflow-macos"),
        ("windows --tensorflow 2.10 --python 2.7", "for windows and Python 2.7", "take Python 3.7 to 3.10"),
        ("raspberry pi 2", "tfdock builds no wheel for `raspberry pi 2`", "linux_armv7l.whl"),
        ("s390x", "tfdock builds no wheel for `s390x`", "no official wheels for ppc64le"),
        ("gtx1060 driver 470", "the official wheel of TensorFlow 2.14.1 runs", "go with driver 470: 1.4 to 2.14"),
        ("rtx4090 driver 470", "driver 470 does not know GeForce RTX 4090", "install driver 520.56.06 or newer"),
        ("rtx3060 driver 470 tensorflow 2.18", "is too old for TensorFlow 2.18", "or use TensorFlow 1.4 to 2.14"),
        ("gtx1080 driver 367.57", "no release goes with all", "go with driver 367.57: none"),
        ("centos 7 cpu", "the official wheel of TensorFlow 2.20.0 runs", "go with centos 7: 1.4 to 2.20"),
        ("Amazon Linux 2 Python 3.9", "the official wheel of TensorFlow 2.20.0 runs", "(Python 3.9)"),
        ("gtx 1650 cuda 11.8", "the official wheel of TensorFlow 2.21.0 runs", "go with cuda 11.8: 2.5 to 2.14"),
        ("jetson orin jetpack 6 python 3.10", "NVIDIA's wheel for JetPack 6.0 has TensorFlow 2.16.1", "JetPack 6.1,"),
        ("jetson nano jetpack 4.4", "JetPack 4.4 has TensorFlow 2.3.1", "(Python 3.6;"),
        ("jetson nano jetpack 4.6.2", "JetPack 4.6.1 has TensorFlow 2.7.0", "(Python 3.6;"),
        ("windows gpu python 3.11", "the official wheel of TensorFlow 2.21.0 runs", "from 2.11 on they use the CPU"),
        ("tensorflow-gpu windows", "2.10: `pip install tensorflow==2.10.1 \"numpy<2\"`", "in WSL 2"),
        ("gpu python 3.14", "there is no official wheel for Python 3.14", "take Python 3.10 to 3.13"),
        ("m1 macos big sur", "no official wheel for m1 macos big sur", "`pip install tensorflow-macos==2.9.2"),
        ("macbook air 11", "wheel of TensorFlow 2.21.0 runs", "Apple silicon with macOS 12 or newer"),
        ("tensorflow-gpu==1.15", "tensorflow-gpu: ", "`pip install 'tensorflow-gpu==1.15.*'`"),
        ("cuda 12.4", "Releases that go with cuda 12.4: 2.15 to 2.17 (`tfdock releases cuda 12.4`).", "cuda: "),
        ("jetpack 4.6", "jetson boards: ", "2.7: JetPack 4.6.1"),
        ("windows cuda 11.2", "Releases that go with cuda 11.2: 2.5 to 2.11 (", "2.11 to now: no GPU"),
        ("rocm 5.0", "Releases that go with rocm 5.0: 2.6 to 2.8", "rocm: "),
        ("macos cuda 10.1 --tensorflow 1.13.1", "go with cuda 10.1: 2.1 to 2.3", "1.13: CUDA 10.0, cuDNN 7.4"),
        ("build windows visual studio 2019 --tensorflow 1.14", "build on windows: the tools", "Visual Studio 2017"),
        ("rx580 rocm 2.10", "AMD's wheel for ROCm 2.10 has TensorFlow 1.15.0", "tensorflow-rocm==1.15.0"),
        ("gtx1080 tensorflow 1.15 python 2.7", "wheel of TensorFlow 1.15.0 runs", "tensorflow-gpu==1.15.0"),
        ("cpu python 3.5", "the official wheel of TensorFlow 2.3.1 runs", "tensorflow==2.3.1"),
        ("gtx1080 tensorflow 1.15", "the official wheel of TensorFlow 1.15.5 runs", "(Python 3.6 to 3.7; CUDA 10.0"),
        ("alpine 3.19", "tfdock builds no wheel for `alpine 3.19`", "`python:3.12-slim`"),
        ("gtx 1080 docker --tensorflow 2.1", "wheel of TensorFlow 2.1.4 runs", "tensorflow:2.1.0-gpu-py3`"),
        ("addons --tensorflow 2.6", "(ended) is for TensorFlow 2.x", "tensorflow-addons==0.14.0`"),
        ("tfp --tensorflow 1.4", "tested with one minor release", "1.4: none is known"),
        ("java --tensorflow 2.5", "java: ", "1.1 to 1.15: Maven's `org.tensorflow:tensorflow:X.Y.Z"),
        ("custom op", "custom op", "_GLIBCXX_USE_CXX11_ABI"),
        ("windows no avx --tensorflow 1.4", "wheel of TensorFlow 1.4.0 runs", "grep -c avx"),
        ("rtx 3080 frobnicator", "the official wheel of TensorFlow", "tfdock does not know `frobnicator`"),
        ("libtensorflow arm --tensorflow 2.8", "no official archive for Linux on Arm", "tools/lib_package"),
        ("serving windows", "TensorFlow Serving has no build for Windows: run the image", "serving:2.12.1-gpu"),
        ("rocm wsl2", "only for the RX 7000 series and newer", "tensorflow-rocm==2.18.1"),
        ("rtx 3080 docker windows", "docker on windows: the images for Linux run", "wheel of TensorFlow"),
        ("macos no avx", "a Mac without AVX runs the wheels up to 1.5", "grep -c avx"),
        # Load commands of the wheels: 1.4.1 needs macOS 10.11, 1.11.0 needs 10.12, 1.13.2 needs 10.13.
        ("macos 10.10", "there is no official wheel for macos 10.10", "10.11 (1.4)"),
        ("macos 10.11", "the official wheel of TensorFlow 1.4.1 runs", "10.12 (1.5 to 1.11)"),
        ("mac sierra", "the official wheel of TensorFlow 1.11.0 runs", "pip install tensorflow==1.11.0"),
        ("macos 10.11 python 3.7", "no official wheel for macos 10.11 and Python 3.7", "10.13 (1.12 and 1.13)"),
        ("macos arm64", "the official wheel of TensorFlow 2.21.0 runs", "tensorflow-metal"),
        ("raspberry", "the official wheel of TensorFlow 2.21.0 runs", "piwheels"),
        ("jetson nano l4t 32.7.1", "JetPack 4.6.1 has TensorFlow 2.7.0", "(Python 3.6;"),
        ("jetson tx2 l4t 27.1", "no wheel is known for jetpack 3.0", "wheels are known for JetPack 3.1,"),
        ("rtx 3080 wsl 1", "No official wheel for wsl 1 is known to use this GPU", "WSL 2, `wsl --set-version"),
        ("rtx2070 windows cuda 10.0", "the official wheel of TensorFlow 2.0.4 runs", "CUDA 10.0 and cuDNN 7.4 must"),
        ("rtx3000", "GeForce RTX series: ", "the RTX 30 series 8.6"),
        ("centos 7 python 3.7 tensorflow 1.12", "the official wheel of TensorFlow 1.15.5 runs", "(Python 3.7)"),
        ("centos 7 --tensorflow 1.14 --python 3.7", "is too old for TensorFlow 1.14 and Python 3.7", "1.15 to 2.20"),
        ("macos python 3.13", "wheel of TensorFlow 2.21.0 runs", "an Intel Mac needs 2.16.2 or older"),
        ("macos 11.6", "wheel of TensorFlow 2.16.2 runs", "macOS 12 or newer, and on an Intel Mac"),
        ("macos 11.6 m1", "no official wheel for m1 macos 11.6", "macOS 11 run `pip install tensorflow-macos==2.9.2"),
        ("macos --tensorflow 2.6", "wheel of TensorFlow 2.6.5 runs", "for Apple silicon this release has no wheel"),
        ("raspberry pi aarch64 --tensorflow 2.0", "no official wheel for aarch64 raspberry", "`cp37` for Debian"),
        ("windows --tensorflow 2.10", "TensorFlow 2.10.1 runs", '`pip install tensorflow==2.10.1 "numpy<2"`'),
        ("macos high sierra", "the official wheel of TensorFlow 1.13.2 runs", "wheels for Intel end at 2.16"),
        ("Is tensorflow 2.15 compatible with python 3.12?", "no official wheel for Python 3.12", "3.9 to 3.11"),
        ("does tensorflow 1.15 work with cuda 10.2?", "wheel goes with cuda 10.2.", "1.15: CUDA 10.0, cuDNN 7.4"),
        ("raspberry pi --tensorflow 1.0", "TensorFlow 0.12 to 1.3: ", "lhelontra/tensorflow-on-arm"),
        ("windows --tensorflow 2.5", "wheel of TensorFlow 2.5.3 runs", "2.5: with an NVIDIA GPU, CUDA 11.2"),
        ("decision forests --tensorflow 2.8", "tensorflow-decision-forests: ", "decision-forests==0.2.4`"),
        ("tfx --tensorflow 2.12", "TFX and its libraries: ", "`pip install tfx==1.13.0`"),
        ("tensorboard 2.4", "tensorboard and tensorflow-estimator: ", "any newer tensorboard works"),
        ("rtx3060ti docker --tensorflow 1.15", "wheel of TensorFlow 2.5.3 runs", "with driver 525 or newer"),
        ("docker driver 450 --tensorflow 2.5", "go with driver 450", "2.5: driver 450, or 460 and newer"),
        ("bazel --tensorflow 2.1", "bazel: each release of TensorFlow", "2.1: Bazel 0.29.1 (0.27.1 to 0.29.1)"),
        ("which python version for tensorflow 2.4", "python: ", "2.4: Python 3.6 to 3.8"),
        ("keras-tuner --tensorflow 2.1", "keras-tuner: ", "pip takes the newest one for your Python"),
        ("tensorflow-macos intel mac", "an AMD GPU take Python 3.8 to 3.10", "tensorflow-metal==1.0.0"),
    ],
)  # fmt: skip
def test_all_words_of_a_question_are_answered_together(words: str, first: str, told: str) -> None:
    result = command(*words.split(), columns=1000)
    text = result.stdout or result.stderr
    assert first in text.splitlines()[0]
    assert told in text


def test_a_program_asks_as_the_command_does() -> None:
    asked = read_question(KNOWLEDGE, ["windows", "gtx 780 ti"])
    told = advise_on(KNOWLEDGE, asked, tensorflow="1.11")
    assert api.advise("windows", "gtx780ti", tensorflow="1.11").instead == told.instead
    assert api.advise("cpu").wheel.requirement.startswith("tensorflow==")
    assert api.advise("rtx 3060 driver 470").instead == api.advise("rtx3060", "driver", "470").instead


def test_a_board_has_the_toolkits_of_its_last_system() -> None:
    cuda = KNOWLEDGE.accelerators["cuda"]
    assert target_facts(KNOWLEDGE, cuda, "5.3", "jetson-nano").toolkits[-1] == "10.2"
    assert target_facts(KNOWLEDGE, cuda, "5.3").toolkits[-1] == "12.9"


def test_a_release_that_others_built_for_a_gpu_is_listed_with_their_toolkit() -> None:
    found = {one.release: one for one in target_facts(KNOWLEDGE, KNOWLEDGE.accelerators["cuda"], "8.9").releases}
    assert (found["2.11"].toolkits, found["2.11"].tested) == (("11.8",), False)
    assert (found["2.12"].toolkits, found["2.12"].tested) == (("11.8",), True)
    assert "2.5" not in found
