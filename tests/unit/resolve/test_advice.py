"""What `advise` answers: the official wheel's verdict, its limits, and a profile that is accepted."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
import typer.testing
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdock.cli.main
from tfdock.cli.app import app
from tfdock.errors import ProfileError
from tfdock.knowledge import loader
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import Advice, advise, cover, gpus_named
from tfdock.resolve.rules import judge

from ..desk import Desk

assert tfdock.cli.main  # importing it registers the commands

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
        ("RTX 5080", "2.19", "ptx-jit", "compute_90"),
        ("rtx3080", "2.18", "native-same-major", "sm_80"),
        ("h100", "2.14", "ptx-jit", "compute_80"),
        ("k80", "2.18", "no", ""),
        ("k80", "2.14", "native-same-major", "sm_35"),
        ("gtx1080", "2.18", "native-same-major", "sm_60"),
        ("rtx4090", "2.18.0", "native", "sm_89"),
        ("jetson-orin", "2.21", "no", ""),
        ("dgx-spark", "2.21", "no", ""),
        ("RX 7900 XTX", "2.18", "no", ""),
        ("mi300x", "2.20", "no", ""),
    ],
)
def test_the_official_wheel_is_judged(gpu: str, tensorflow: str, runs: str, by: str) -> None:
    (one,) = asked(gpu, tensorflow=tensorflow).gpus
    assert (one.runs, one.by) == (runs, by)
    assert one.reason


def test_the_reason_names_what_really_stands_in_the_way() -> None:
    assert "x86_64" in asked("jetson-orin").gpus[0].reason
    assert "ROCm" in asked("mi300x").gpus[0].reason
    assert "6.0" in asked("k80", tensorflow="2.18").gpus[0].reason


def test_code_that_fits_does_not_run_where_no_driver_serves_both_gpu_and_toolkit() -> None:
    table = loader.read_knowledge()
    rows = {
        **table.releases,
        "2.18": table.releases["2.18"].model_copy(update={"official_targets": {"cuda": ("sm_35",)}}),
    }
    table.__dict__["releases"] = rows
    (one,) = advise(table, gpus_named(table, ["k80"]), tensorflow="2.18").gpus
    assert one.runs == "no"
    assert "driver" in one.reason
    assert "470" in one.reason


def test_where_nothing_is_asked_for_the_newest_release_is_judged() -> None:
    advice = asked("rtx5090")
    assert advice.release.release == max(KNOWLEDGE.releases, key=lambda text: tuple(map(int, text.split("."))))
    assert advice.native is None


def test_the_newest_official_wheel_that_runs_at_once_is_named() -> None:
    native = asked("h100", tensorflow="2.14").native
    assert native
    assert native.release == "2.21"
    older = asked("k80", tensorflow="2.18").native
    assert older
    assert older.release == "2.14"
    at_that_python = asked("h100", tensorflow="2.14", python="3.9").native
    assert at_that_python
    assert "3.9" in at_that_python.pythons


# --- limits ----------------------------------------


def limits(gpu: str, tensorflow: str) -> str:
    return "\n".join(asked(gpu, tensorflow=tensorflow).gpus[0].all_limits)


def test_a_library_that_has_dropped_a_gpu_is_held_back() -> None:
    advice = asked("gtx1080", tensorflow="2.20")
    assert advice.wheel.pins == ("nvidia-cudnn-cu12<9.11",)
    assert "nvidia-cudnn-cu12<9.11" in limits("gtx1080", "2.20")
    assert asked("gtx1080", tensorflow="2.18").wheel.pins == ()
    assert asked("rtx3080", tensorflow="2.20").wheel.pins == ()


def test_a_library_that_is_older_than_a_gpu_is_a_limit_and_the_newer_one_is_named() -> None:
    assert "cuDNN 9.7 or newer has it" in limits("rtx5080", "2.19")
    assert "cuDNN" not in limits("rtx5080", "2.21")
    assert "cuDNN" not in limits("rtx4090", "2.19")


def test_nccl_without_ptx_stops_several_gpus_that_live_on_jit_and_no_others() -> None:
    assert "NCCL" in limits("rtx5080", "2.19")
    assert "NCCL" not in limits("rtx3080", "2.19")
    assert "NCCL" not in limits("rtx5080", "2.21")


def test_a_toolkit_older_than_the_gpu_is_a_limit() -> None:
    assert "CUDA 12.5" in limits("rtx5080", "2.19")
    assert "older than this GPU" not in limits("rtx3080", "2.19")


def test_the_driver_is_the_oldest_that_serves_wheel_and_gpu() -> None:
    assert "driver 570 or newer" in limits("rtx5080", "2.19")
    assert "driver 525.60.13 or newer" in limits("rtx3080", "2.18")
    assert "driver 525.60.13 or newer, and 580 is the last" in limits("gtx1080", "2.18")
    # PTX of CUDA 11.8 needs the driver that came with it, not the oldest of its major version.
    assert "driver 520.61.05" in limits("h100", "2.14")


def test_the_kernels_that_mlir_generated_run_otherwise_than_the_rest() -> None:
    assert "1149 kernels that MLIR generated (Add, Mul, Cast and their like) fail with" in limits("rtx5080", "2.19")
    assert "MLIR" not in limits("rtx5080", "2.21"), "its PTX has no letter"
    assert "the driver compiles each at its first use" in limits("h100", "2.20")
    assert "525.60.13 or newer; 555.42.02 or newer for PTX 8.5 of the kernels that MLIR" in limits("h100", "2.20")
    assert "MLIR" not in limits("rtx3080", "2.18")


def test_what_does_not_run_has_no_limits() -> None:
    assert asked("k80", tensorflow="2.18").gpus[0].limits == ()


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
    assert advice.offer.untested == ()
    assert bool(advice.refused) == (advice.offer.release is not advice.release)


def test_an_offer_of_another_release_leaves_the_one_asked_for_at_ones_own_risk() -> None:
    advice = asked("rtx5080", tensorflow="2.19")
    assert advice.untested
    assert "allow_untested: true" in advice.untested.text
    assert advice.untested.release.release == "2.19"
    assert asked("h100", tensorflow="2.14").untested is None


def test_what_only_untested_combinations_serve_is_offered_as_such() -> None:
    advice = asked("rtx5090", tensorflow="2.19")
    assert advice.offer
    assert not advice.offer.untested
    assert advice.untested
    assert advice.untested.untested


def test_where_only_xla_leaves_a_gpu_out_the_profile_does_without_xla() -> None:
    offer = asked("quadro-k600", tensorflow="1.15").offer
    assert offer
    assert not offer.resolution.xla
    assert "xla: false" in offer.text


@pytest.mark.parametrize("names", [["jetson-orin"], ["rtx3080", "mi300x"], ["dgx-spark", "rtx5090"]])
def test_nothing_is_offered_where_one_wheel_cannot_serve_them(names: list[str]) -> None:
    advice = asked(*names)
    assert advice.offer is None
    assert advice.plan is None
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
    assert bool(resolution.untested) == bool(advice.offer.untested)


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


def test_the_plan_says_what_each_entry_serves_and_weighs() -> None:
    advice = asked("a100", "rtx3080", "h100", tensorflow="2.18")
    assert advice.plan
    assert [(entry.target, entry.serves) for entry in advice.plan.entries] == [
        ("sm_80", ("a100", "rtx3080")),
        ("sm_90", ("h100",)),
    ]
    sizes = [entry.wheel_mb for entry in advice.plan.entries]
    base = next(row.value for row in advice.figures if row.estimate == "wheel-base")
    assert advice.plan.wheel_mb == base + sum(size or 0 for size in sizes)
    assert advice.alternative
    assert advice.alternative.targets == ("sm_80", "sm_86", "sm_90")
    assert (advice.alternative.wheel_mb or 0) > advice.plan.wheel_mb


def test_ptx_is_weighed_where_a_release_cannot_do_without() -> None:
    with_ptx, without = asked("k80", tensorflow="1.4").plan, asked("k80", tensorflow="2.14").plan
    assert with_ptx
    assert without
    assert (with_ptx.wheel_mb or 0) > (without.wheel_mb or 0)


@pytest.mark.parametrize(("release", "size"), [("2.14", 489.9), ("2.18", 615.4), ("2.21", 572.4)])
def test_the_figures_add_up_to_the_official_wheels(release: str, size: float) -> None:
    """Sizes of the wheels as published, in MB."""
    row = KNOWLEDGE.releases[release]
    found = advise(KNOWLEDGE, [gpu_of("8.0")], tensorflow=release)
    figures = {one.estimate: one.value for one in found.figures}
    official = row.official_targets["cuda"]
    total = figures["wheel-base"] + len(official) * figures["wheel-per-sass"] + figures["wheel-per-ptx"]
    assert total == pytest.approx(size, rel=0.03)


def test_of_made_up_knowledge_the_answer_needs_no_change_of_code(made_up: Desk) -> None:
    knowledge: KnowledgeBase = made_up.knowledge
    (one,) = advise(knowledge, gpus_named(knowledge, ["one"])).gpus
    assert one.runs == "native"
    twelve = advise(knowledge, gpus_named(knowledge, ["Zeta Twelve"]))
    assert twelve.gpus[0].runs == "ptx-jit"
    assert twelve.offer
    assert twelve.plan
    assert twelve.plan.wheel_mb is None
    slab = advise(knowledge, gpus_named(knowledge, ["slab"]), tensorflow="9.9")
    assert slab.gpus[0].runs == "native"
    assert slab.offer
    assert slab.offer.resolution.targets == ("xe2",)


# --- names ----------------------------------------


def refusal(*names: str, tensorflow: str | None = None) -> str:
    with pytest.raises(ProfileError) as caught:
        asked(*names, tensorflow=tensorflow)
    return str(caught.value)


def test_an_unknown_gpu_is_answered_with_the_nearest_names() -> None:
    assert "rtx3080" in refusal("rtx308O")


def test_a_name_sold_with_two_capabilities_names_both() -> None:
    text = refusal("gtx750")
    assert "gpu-ambiguous" in text
    assert "gtx750-cc50" in text
    assert "gtx750-cc52" in text


@pytest.mark.parametrize("release", ["2.99", "2.18.7"])
def test_a_release_that_does_not_exist_is_refused(release: str) -> None:
    assert "release-unknown" in refusal("rtx3080", tensorflow=release)


# --- the command ----------------------------------------


def command(*words: str, columns: int = 80) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["advise", *words], env={"COLUMNS": str(columns)})


def test_the_document_has_the_keys_that_others_rely_on() -> None:
    result = command("--gpu", "rtx5080", "--tensorflow", "2.19", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert list(document)[:2] == ["schema", "ok"]
    assert document["schema"] == "tfdock.advise/1"
    gpu = document["gpu"]
    assert gpu == document["gpus"][0]
    assert gpu["name"] == "rtx5080"
    assert gpu["compute_capability"] == "12.0"
    assert gpu["runs"] == "ptx-jit"
    assert gpu["limits"]
    assert document["wheel"]["install"] == "pip install 'tensorflow[and-cuda]==2.19.1'"
    assert 'tensorflow: "2.20.0"' in document["profile"]
    assert document["plan"]["wheel_mb"] > 300
    assert all(row["source"] for row in document["figures"])


def test_an_amd_gpu_has_a_gfx_target_and_several_gpus_no_single_one() -> None:
    assert json.loads(command("mi300x", "--json").stdout)["gpu"]["gfx"] == "gfx942"
    document = json.loads(command("--gpu", "rtx3080,rtx5090", "--json").stdout)
    assert "gpu" not in document
    assert [gpu["name"] for gpu in document["gpus"]] == ["rtx3080", "rtx5090"]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("words", [["rtx5080", "--tensorflow", "2.19"], ["k80", "--tensorflow", "2.18", "--all"]])
def test_people_read_the_answer_then_why_then_the_fix_within_their_terminal(columns: int, words: list[str]) -> None:
    lines = command(*words, columns=columns).stdout.splitlines()
    assert "with TensorFlow" in " ".join(lines[:3])
    order = [line.split(":")[0].strip() for line in lines if line.strip().startswith(("why:", "fix:"))]
    assert order == sorted(order, key=["why", "fix"].index)
    sections = [i for i, line in enumerate(lines) if line.startswith(("from ", "fix:"))]
    assert lines[sections[0]].startswith("from "), "the figures say where they come from"
    assert lines[sections[-1]].startswith("fix:"), "and what to do is read last"
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "words", [["k80"], ["a100", "rtx3080", "h100", "--all"], ["k80", "rtx5080"], ["rtx3080", "mi300x"], ["gfx1100"]]
)
def test_no_answer_is_wider_than_the_terminal(columns: int, words: list[str]) -> None:
    assert max(map(len, command(*words, columns=columns).stdout.splitlines())) <= columns


@pytest.mark.parametrize(
    ("words", "version"), [(["rtx3080", "--tensorflow", "2.18"], "2.18.1"), (["k80", "v100", "a100"], "2.14.1")]
)
def test_where_no_build_is_needed_the_first_lines_say_so_and_what_to_install(words: list[str], version: str) -> None:
    text = command(*words, columns=200).stdout
    first, second, *_ = text.splitlines()
    assert first.startswith(f"No build is needed: the official wheel of TensorFlow {version} runs on")
    assert second.startswith(f"fix: `pip install 'tensorflow[and-cuda]=={version}'")
    assert "schema: 1" not in text
    assert "schema: 1" in command(*words, "--all").stdout
    assert "No build is needed" not in command("rtx5080").stdout


def test_the_official_wheel_of_the_release_that_is_offered_comes_before_a_build_of_it() -> None:
    fixes = [
        line for line in command("k80", "--tensorflow", "2.18", columns=300).stdout.splitlines() if "fix:" in line
    ]
    assert fixes[0] == "fix: `pip install 'tensorflow[and-cuda]==2.14.1'` (Python 3.9 to 3.10)"
    assert "`tfdock advise --gpu k80 --tensorflow 2.18 -o k80.yaml`" in fixes[1]


def test_the_pip_line_names_its_pythons_and_what_pip_does_not_bring() -> None:
    assert "(Python 3.9 to 3.10)" in command("k80", columns=200).stdout, "the extra's TensorRT has no file for 3.11"
    with_311 = command("k80", "--python", "3.11", columns=200).stdout
    assert "`pip install tensorflow==2.14.1` (Python 3.11; CUDA 11.8 and cuDNN 8.6 must be installed" in with_311
    older = command("rtx3080", "--tensorflow", "2.8", columns=200).stdout
    assert "(Python 3.7 to 3.10; CUDA 11.2 and cuDNN 8.1 must be installed beside it)" in older


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize(
    "words", [["rtx5080"], ["a100", "rtx3080", "rtx4090", "h100", "--all"], ["sm_120", "rtx3080"]]
)
def test_the_profile_can_be_pasted_from_any_terminal(desk: Desk, columns: int, words: list[str]) -> None:
    printed = command(*words, columns=columns).stdout
    text = "schema: 1" + printed.partition("schema: 1")[2].partition("\n\n")[0]
    written = json.loads(command(*words[: -1 if words[-1] == "--all" else None], "--json").stdout)["profile"]
    assert yaml.safe_load(text) == yaml.safe_load(written)
    comments = [line for line in text.splitlines() if "#" in line]
    assert all(line.startswith("# ") for line in comments)
    assert desk.resolve(text).build_id == desk.resolve(written).build_id


@pytest.mark.parametrize("tensorflow", [[], ["--tensorflow", "2.14"]])
def test_gpus_that_share_no_wheel_are_told_why_and_asked_for_alone(tensorflow: list[str]) -> None:
    text = command("k80", "rtx5080", *tensorflow, columns=200).stdout
    assert "No single wheel serves both." in text
    assert "why: k80 (3.7): CUDA 7.5 to 11.8; TensorFlow 1.4 to 2.14\n" in text
    assert "why: rtx5080 (12.0): CUDA 12.8 or newer; TensorFlow 2.20 or newer\n" in text
    for name in ("k80", "rtx5080"):
        assert f"fix: `{' '.join(['tfdock advise --gpu', name, *tensorflow])}`\n" in text
    assert "remove" not in text


def test_a_gpu_that_nothing_compiles_for_is_told_so() -> None:
    text = command("rx6600", columns=200).stdout
    assert "No wheel can be built for it." in text
    assert "rx6600 (gfx1032): no known ROCm supports it; no TensorFlow is known to take it" in text
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


@pytest.mark.parametrize("word", ["sm_91", "9.1", "gfx9999", "cpu"])
def test_what_no_gpu_has_is_refused_without_a_guess(word: str) -> None:
    result = command(word)
    assert result.exit_code == 2
    assert "[gpu-unknown]" in result.stderr
    assert "did you mean" not in result.stderr


def test_a_python_without_official_wheel_is_the_first_line_and_the_fix_is_a_command() -> None:
    lines = command("rtx5080", "--python", "3.20", columns=200).stdout.splitlines()
    assert lines[0].startswith("There is no official wheel of TensorFlow 2.21.0 for Python 3.20")
    assert lines[-1] == "fix: take a Python that has an official wheel: `tfdock advise --gpu rtx5080 --python 3.13`"


def test_a_release_and_python_that_would_do_are_a_command() -> None:
    last = command("k80", "--python", "3.13", columns=200).stdout.splitlines()[-1]
    assert last == "fix: `tfdock advise --gpu k80 --tensorflow 2.14.1 --python 3.11`"


def test_where_the_python_stands_in_the_way_the_command_leaves_it_out() -> None:
    words = ["gtx860m-cc30", "710a-cc35", "--tensorflow", "2.18", "--python", "3.9"]
    last = command(*words, columns=300).stdout.splitlines()[-1]
    assert "built for Python 3.9: `tfdock advise --gpu gtx860m-cc30,710a-cc35 --tensorflow 2.18`" in last


def test_gpus_of_machines_of_several_kinds_are_asked_for_alone() -> None:
    text = command("dgx-spark", "rtx5090", columns=200).stdout
    assert "No single wheel serves both." in text
    assert "dgx-spark stands beside a CPU of aarch64" in text
    assert text.endswith("fix: `tfdock advise --gpu dgx-spark`\nfix: `tfdock advise --gpu rtx5090`\n")


def test_the_vendors_own_wheel_is_to_be_tried_before_a_build() -> None:
    fixes = [line for line in command("rx7900xtx", columns=200).stdout.splitlines() if line.startswith("fix:")]
    assert "try AMD's own wheel of TensorFlow 2.20 first: `tensorflow-rocm`" in fixes[0]
    assert "tfdock build" in fixes[1]


@pytest.mark.parametrize(
    "words", [["rtx308O"], ["gtx750"], [], ["rtx3080", "--tensorflow", "two"], ["rtx3080", "--python", "3"]]
)
def test_what_cannot_be_understood_exits_with_2(words: list[str]) -> None:
    assert command(*words).exit_code == 2


def test_the_written_profile_is_accepted_by_check(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    assert command("rtx5080", "--tensorflow", "2.19", "-o", str(file)).exit_code == 0
    assert typer.testing.CliRunner().invoke(app, ["check", str(file)]).exit_code == 0


def test_a_file_is_replaced_only_as_advise_left_it(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    words = ["rtx5080", "-o", str(file)]
    assert command(*words).exit_code == 0
    assert command(*words).exit_code == 0
    edited = file.read_text("utf-8") + "xla: false\n"
    file.write_text(edited, "utf-8")
    result = command(*words)
    assert result.exit_code == 2
    assert "advise-file-exists" in result.output
    assert file.read_text("utf-8") == edited
    assert command(*words, "--force").exit_code == 0
    assert "xla" not in file.read_text("utf-8")


def test_what_is_no_file_is_not_replaced_and_a_link_only_when_told_to(tmp_path: Path) -> None:
    ours, link, pipe = (tmp_path / name for name in ("x.yaml", "link.yaml", "pipe"))
    assert command("rtx5080", "-o", str(ours)).exit_code == 0
    link.symlink_to(ours)
    os.mkfifo(pipe)
    assert "advise-file-exists" in command("rtx5080", "-o", str(link)).output
    assert command("rtx5080", "-o", str(link), "--force").exit_code == 0
    assert link.is_symlink()
    result = command("rtx5080", "-o", str(pipe), "--force")
    assert result.exit_code == 2
    assert "file-error" in result.output
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [link, pipe, ours]


def test_where_no_profile_fits_none_is_written(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    result = command("jetson-orin", "-o", str(file))
    assert result.exit_code == 0
    assert not file.exists()
    assert "wrote no" in result.output


# --- the tables ----------------------------------------


@pytest.mark.parametrize("table", ["estimates", "companions"])
def test_every_source_of_the_tables_is_explained(table: str) -> None:
    named = KNOWLEDGE.sources(table)
    rows = KNOWLEDGE.estimates if table == "estimates" else KNOWLEDGE.companions
    used = {name for row in rows for name in ((row.source,) if isinstance(row.source, str) else row.source)}
    assert used == set(named)
    assert all(row.checked for row in rows)
