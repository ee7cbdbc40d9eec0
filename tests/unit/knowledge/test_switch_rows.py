"""Switches: how people name them, what presets set, and what a release does not read."""

from __future__ import annotations

import re

import pytest

from tfdock.knowledge import loader
from tfdock.knowledge.switch_rows import doubts, laid_over, presets, variables

KNOWN = loader.knowledge().switches


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["A=1", "B="], {"A": "1", "B": ""}),
        (["--xla_dump_to=/d", "--xla_gpu_a=1"], {"XLA_FLAGS": "--xla_dump_to=/d --xla_gpu_a=1"}),
        (["XLA_FLAGS=--a=1", "--xla_dump_to=/d"], {"XLA_FLAGS": "--a=1 --xla_dump_to=/d"}),
        (["--tf_xla_auto_jit=2"], {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"}),
        (["quiet", "A=1"], {"TF_CPP_MIN_LOG_LEVEL": "2", "A": "1"}),
    ],
)  # fmt: skip
def test_switches_and_presets_are_variables(asked: list[str], found: dict[str, str]) -> None:
    assert variables(asked, KNOWN) == found


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["A"], "`A` is neither a switch with a value, like `TF_ENABLE_ONEDNN_OPTS=0`, nor a preset: `deter"),
        (["-x=1"], "`-x=1` is neither"), (["A=\n"], "is neither a switch"), (["A B=1"], "is neither a switch"),
        (["A=1", "A=2"], "`A` is given twice"), (["quiet", "TF_CPP_MIN_LOG_LEVEL=0"], "is given twice"),
        (["XLA_FLAGS=--xla_dump_to=/a", "--xla_dump_to=/b"], "`--xla_dump_to` is given twice"),
        (["--xla_dump_to=/my folder"], "no value with blanks"), (["A=\u2028"], "is neither a switch"),
        (["allow_soft_placement=1"], "is a setting of the program"), (["a.b=1"], "is neither a switch"),
        (["gpu_options.allow_growth=true"], "set_memory_growth("),
    ],
)  # fmt: skip
def test_what_is_no_switch_or_is_given_twice_is_refused(asked: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        variables(asked, KNOWN)


@pytest.mark.parametrize(
    ("name", "release", "says"),
    [
        ("TF_ENABLE_ONEDNN_OPTS", "2.18", []), ("MIOPEN_LOG_LEVEL", "2.18", []), ("TF_CUDNN_USE_FRONTEND", "", []),
        ("TF_ENABLE_ONEDNN", "2.18", ["tfdock knows no `TF_ENABLE_ONEDNN`; did you mean `TF_ENABLE_ONEDNN_OPTS`?"]),
        ("MY_OWN", "2.18", ["tfdock knows no `MY_OWN`"]),
        ("TF_CUDNN_USE_FRONTEND", "2.21",
         ["TensorFlow 2.21 reads no `TF_CUDNN_USE_FRONTEND`: the name is in the official wheels of 2.5 to 2.19"]),
        ("--tf_xla_cpu_global_jit", "1.4",
         ["TensorFlow 1.4 reads no `--tf_xla_cpu_global_jit`: the name is in the official wheels of 1.12 and newer; "
          "TensorFlow exits if it finds an unknown flag"]),
    ],
)  # fmt: skip
def test_a_switch_that_a_release_does_not_read_or_nobody_knows_is_noted(
    name: str, release: str, says: list[str]
) -> None:
    assert list(doubts(variables([f"{name}=1"], KNOWN), KNOWN, release)) == says


def test_a_preset_sets_variables_alone() -> None:
    assert {name for sets in presets(KNOWN).values() for name in sets if not KNOWN[name].variable} == set()
    assert {row.variable for row in KNOWN.values() if row.kind == "flag"} == {"XLA_FLAGS", "TF_XLA_FLAGS"}


def test_flags_of_xla_stand_behind_those_that_are_there() -> None:
    own = {"XLA_FLAGS": "--xla_gpu_cuda_data_dir=/c", "A": "1"}
    assert laid_over(own, {"XLA_FLAGS": "--b=2", "A": "3"}) == {
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir=/c --b=2",
        "A": "3",
    }
