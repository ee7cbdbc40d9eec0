"""GPUs by the names that people and drivers give them, and what a name that means several is answered with."""

from __future__ import annotations

import re

import pytest

from tfdock.gpu.devices import find_gpu, joined_words, matching, means_gpu, resembles_gpu, title
from tfdock.knowledge.loader import knowledge as shipped
from tfdock.knowledge.tables import KnowledgeBase

from ..desk import knowledge_of


@pytest.fixture(scope="module")
def knowledge() -> KnowledgeBase:
    return shipped()


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("rtx3080", "rtx3080"),
        ("RTX 3080", "rtx3080"),
        ("rtx 3080", "rtx3080"),
        ("rtx-3080", "rtx3080"),
        ("3080", "rtx3080"),
        ("GeForce RTX 3080", "rtx3080"),
        ("NVIDIA GeForce RTX 3080", "rtx3080"),
        ("nvidia rtx 3080", "rtx3080"),
        ("RTX 3080 10GB", "rtx3080"),
        ("rtx 4060 laptop", "rtx4060-laptop"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "rtx4060-laptop"),
        ("1080ti", "gtx1080ti"),
        ("RTX 6000 Ada", "rtx6000-ada"),
        ("RTX A6000", "rtxa6000"),
        ("Quadro RTX 6000", "quadro-rtx6000"),
        ("gtx titan", "gtx-titan"),
        ("v100", "v100"),
        ("a100", "a100"),
        ("h100", "h100"),
        ("H100 SXM", "h100-sxm"),
        ("Tesla K80", "k80"),
        ("k80", "k80"),
        ("t4", "t4"),
        ("dgx spark", "dgx-spark"),
        ("jetson orin", "jetson-orin"),
        ("orin nano", "jetson-orin-nano"),
        ("Jetson AGX Orin 64GB", "jetson-agx-orin"),
        ("rx7900xtx", "rx7900xtx"),
        ("AMD Radeon RX 7900 XTX", "rx7900xtx"),
        ("Radeon RX 7900 XTX", "rx7900xtx"),
        ("mi300x", "mi300x"),
        ("MI300", "mi300"),
        ("GTX 1650 laptop", "gtx1650"),
        ("GTX 1650 laptop 4GB", "gtx1650"),
        ("RX 580 8GB", "rx580"),
        ("Sapphire Nitro RX 580", "rx580"),
        ("ASUS TUF Gaming GeForce RTX 3080 OC", "rtx3080"),
        ("nvidia tesla v100", "v100-dgxs-32gb"),
        ("RTX 5090 Founders Edition", "rtx5090"),
        ("RTX 40 series", "rtx40"),
        ("Navi 31", "rx7900xtx"),
        ("Strix Halo", "radeon-8060s"),
    ],
)
def test_a_gpu_is_found_by_what_people_type(knowledge: KnowledgeBase, name: str, gpu: str) -> None:
    found = matching(knowledge, name)
    assert found.gpu
    assert (found.gpu.gpu, found.candidates, found.near) == (gpu, (), ())
    assert find_gpu(knowledge, name) is found.gpu


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("NVIDIA GeForce GT 730", {"3.0", "3.5"}),
        ("gt730", {"3.0", "3.5"}),
        ("GeForce GTX 750", {"5.0", "5.2"}),
        ("GTX 860M", {"3.0", "5.0"}),
        ("RTX 6000", {"7.5", "8.9", "12.0"}),
        ("titan x", {"5.2", "6.1"}),
        ("3050", {"8.6", "8.9"}),
        ("GTX 960 laptop", {"5.2", "5.0"}),
        ("Blackwell", {"10.0", "10.3", "11.0", "12.0", "12.1"}),
        ("Pascal", {"6.0", "6.1", "6.2"}),
        ("NVIDIA Ampere", {"8.0", "8.6", "8.7"}),
        ("volta", {"7.0", "7.2"}),
        ("RDNA2", {"gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"}),
    ],
)
def test_a_name_of_several_targets_is_answered_with_one_gpu_of_each(
    knowledge: KnowledgeBase, name: str, targets: set[str]
) -> None:
    found = matching(knowledge, name)
    assert found.gpu is None
    assert {gpu.target for gpu in found.candidates} == targets
    assert len(found.candidates) == len(targets)
    assert find_gpu(knowledge, name) is None
    # Each candidate's own name is the way out.
    assert all(find_gpu(knowledge, gpu.gpu) is gpu for gpu in found.candidates)


@pytest.mark.parametrize(("name", "target"), [("Hopper", "9.0"), ("Turing", "7.5"), ("Ada Lovelace", "8.9")])
def test_a_generation_of_one_target_is_taken(knowledge: KnowledgeBase, name: str, target: str) -> None:
    found = find_gpu(knowledge, name)
    assert found
    assert (found.target, found.gpu in knowledge.gpus, title(knowledge, found)) == (target, False, name.split()[0])
    assert find_gpu(knowledge, found.gpu) == found, "a profile may name it so"


@pytest.mark.parametrize(
    "name", ["", "x", "rtx", "ti", "gpu", "laptop", "NVIDIA", "rtx9999", "Radeon 3080", "308", "Arc 770", "Foo 3080"]
)
def test_a_word_or_a_name_of_nobody_is_not_guessed(knowledge: KnowledgeBase, name: str) -> None:
    found = matching(knowledge, name)
    assert (found.gpu, found.candidates) == (None, ())


def test_a_slip_of_the_pen_is_answered_with_names_that_exist(knowledge: KnowledgeBase) -> None:
    assert matching(knowledge, "GTX 3080").near == ("rtx3080", "rtx3080ti")
    assert matching(knowledge, "rtx308O").near[0] == "rtx3080"


@pytest.mark.parametrize("name", ["rtx3088", "RX 5090", "GTX 1660 8000MB", "RX 6850M XT", "tesla k81"])
def test_another_number_is_another_gpu(knowledge: KnowledgeBase, name: str) -> None:
    numbers = {re.findall(r"\d+", near)[0] for near in matching(knowledge, name).near}
    assert numbers <= {re.findall(r"\d+", name)[0]}


def test_rows_of_an_overlay_are_matched_like_shipped_ones() -> None:
    rows = """
sources: {s: here}
rows:
  - {gpu: slab-one, accelerator: stone, target: "8.6", names: ["Quarry Slab One"], source: s}
  - {gpu: slab-two-cc86, accelerator: stone, target: "8.6", names: ["Quarry Slab Two"], source: s}
  - {gpu: slab-two-cc90, accelerator: stone, target: "9.0", names: ["Quarry Slab Two"], source: s}
"""
    stone = "rows:\n  - {accelerator: stone, target_pattern: '[0-9.]+', vendor: Quarry, source: s}\n"
    made_up = knowledge_of({"gpus": rows, "accelerators": stone})
    assert [find_gpu(made_up, name) for name in ("slab one", "Slab One", "quarry one")] == [
        made_up.gpus["slab-one"]
    ] * 3
    assert [gpu.gpu for gpu in matching(made_up, "Slab Two").candidates] == ["slab-two-cc86", "slab-two-cc90"]


@pytest.mark.parametrize("word", ["rtx4090", "RTX 3090", "h100", "t4", "3080", "rtx6000", "sm_86", "8.6", "gfx1100"])
def test_a_word_that_names_a_gpu_or_several_is_known_as_such(knowledge: KnowledgeBase, word: str) -> None:
    assert means_gpu(knowledge, word)


@pytest.mark.parametrize("word", ["profile", "my", "my-3080", "cpu", "debug", "super", "tf2.18", "v2", "demo1", ""])
def test_the_name_of_a_profile_is_not_taken_for_a_gpu(knowledge: KnowledgeBase, word: str) -> None:
    assert not means_gpu(knowledge, word)
    assert not resembles_gpu(knowledge, word)


@pytest.mark.parametrize("word", ["rtx4095", "RTX 7090", "gtx9999ti", "h555", "rx9999xt", "sm_99", "99.9"])
def test_a_word_that_is_written_as_gpus_are_is_known_as_such(knowledge: KnowledgeBase, word: str) -> None:
    assert not means_gpu(knowledge, word)
    assert resembles_gpu(knowledge, word)


@pytest.mark.parametrize(
    "names",
    [
        ["RTX 4090 laptop", "windows 10"], ["jetson nano"], ["asus tuf rtx 3080", "h100"], ["foo", "rtx3080"],
        ["intel", "i5", "rtx 3060"], ["iris xe", "windows"], ["tesla v100", "gtx 1080 ti 11gb"],
    ],
)  # fmt: skip
def test_words_make_the_longest_names(knowledge: KnowledgeBase, names: list[str]) -> None:
    assert joined_words(knowledge, " ".join(names).split()) == names
