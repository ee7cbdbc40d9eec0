"""Whether a wheel searches where pip puts the libraries that it opens. The folders are those of official wheels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tfdock.gpu.gpu_facts import facts_of_release, facts_of_wheel
from tfdock.gpu.opened_libraries import unsearched_folders, unsearched_limit
from tfdock.knowledge import loader
from tfdock.wheel.facts import Library
from tfdock.wheel.inspection import Inspection

from ..small_wheels import inspection_of

KNOWLEDGE = loader.knowledge()
OPENER = "tensorflow/libtensorflow_framework.so.2"
OPENED = ("cublas", "cuda_runtime", "cudnn", "cufft", "cusolver", "cusparse")
EVERY = (*OPENED, "cuda_cupti", "nccl")
BUT_CUSOLVER = tuple(name for name in EVERY if name != "cusolver")


def wheel(
    *searching: tuple[str, Sequence[str]],
    version: str = "2.21.0",
    brought: Sequence[str] = EVERY,
    extra: str = "cu12",
) -> Inspection:
    """A wheel whose libraries search those folders of `nvidia`, with an extra that brings those packages."""
    libraries = tuple(
        Library(path=path, size=1, machine="x86_64", versions={},
                runpath=tuple(f"$ORIGIN/{'../' * path.count('/')}nvidia/{name}/lib" for name in names))
        for path, names in searching
    )  # fmt: skip
    info = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}
    packages = [f"nvidia-{name.replace('_', '-')}-{extra}>=1" for name in brought]
    return inspection_of(version, libraries, info, requires=packages)


@pytest.mark.parametrize(
    ("searching", "unsearched"),
    [
        pytest.param([(OPENER, EVERY)], (), id="2.20.0"),
        pytest.param([(OPENER, OPENED), ("tensorflow/libtensorflow_cc.so.2", EVERY)], (),
                     id="2.18.0: another library opens what is for the profiler and for several GPUs"),
        pytest.param([(OPENER, BUT_CUSOLVER), ("tensorflow/libtensorflow_cc.so.2", ("cusolver",))],
                     ("nvidia/cusolver/lib",), id="2.21.0: what another library searches is of no use"),
        pytest.param([("tensorflow/python/_pywrap_tensorflow_internal.so", EVERY)], (), id="in one piece"),
        pytest.param([(OPENER, ())], ("nvidia/cuda_runtime/lib", "nvidia/cublas/lib", "nvidia/cufft/lib",
                     "nvidia/cusolver/lib", "nvidia/cusparse/lib", "nvidia/cudnn/lib"), id="none"),
    ],
)  # fmt: skip
def test_folders_that_the_opening_library_does_not_search_are_found(
    searching: Sequence[tuple[str, Sequence[str]]], unsearched: tuple[str, ...]
) -> None:
    assert unsearched_folders(KNOWLEDGE, wheel(*searching)) == unsearched


def test_only_what_pip_brings_for_the_toolkit_of_the_wheel_counts() -> None:
    assert unsearched_folders(KNOWLEDGE, wheel((OPENER, ()), brought=())) == ()
    assert unsearched_folders(KNOWLEDGE, wheel((OPENER, ()), brought=["cufft"])) == ("nvidia/cufft/lib",)
    assert unsearched_folders(KNOWLEDGE, wheel((OPENER, ()), extra="cu11")) == ()


@pytest.mark.parametrize(
    ("runpath", "rpath", "found"),
    [
        (["$ORIGIN/../nvidia/cufft/lib"], [], True),
        (["${ORIGIN}/../nvidia/cufft/lib"], [], True),
        ([], ["$ORIGIN/../nvidia/cufft/lib"], True),
        (["$ORIGIN"], ["$ORIGIN/../nvidia/cufft/lib"], False),
        (["nvidia/cufft/lib"], [], False),
    ],
    ids=["RUNPATH", "braces", "RPATH", "RPATH beside RUNPATH", "below the working folder"],
)
def test_a_folder_is_searched_as_the_loader_does(runpath: list[str], rpath: list[str], found: bool) -> None:
    whole = wheel((OPENER, ()), brought=["cufft"])
    library = replace(whole.libraries[0], runpath=tuple(runpath), rpath=tuple(rpath))
    unsearched = unsearched_folders(KNOWLEDGE, replace(whole, libraries=(library,)))
    assert unsearched == (() if found else ("nvidia/cufft/lib",))


def test_of_a_wheel_whose_words_lead_nowhere_nothing_is_said() -> None:
    assert unsearched_folders(KNOWLEDGE, wheel()) == (), "no library could be read"
    endless = wheel((OPENER, ()))
    assert endless.build_info
    assert (
        unsearched_folders(KNOWLEDGE, replace(endless, build_info={**endless.build_info, "cuda_version": "1" * 5000}))
        == ()
    )


def test_a_wheel_and_the_row_of_its_release_say_the_same() -> None:
    official = facts_of_release(KNOWLEDGE, KNOWLEDGE.releases["2.21"], KNOWLEDGE.accelerators["cuda"])
    assert official.unsearched == facts_of_wheel(KNOWLEDGE, wheel((OPENER, BUT_CUSOLVER))).unsearched


def test_the_line_that_mends_it_puts_each_folder_before_those_that_are_searched_already(tmp_path: Path) -> None:
    packages = [tmp_path / "nvidia" / name for name in ("cusolver", "cu13")]
    for package in packages:
        package.mkdir(parents=True)
    line = unsearched_limit(["nvidia/cusolver/lib", "nvidia/cu13/lib"])
    assert line.endswith("the wheel does not search nvidia/cusolver/lib and nvidia/cu13/lib")
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": "/before"}
    script = f'python() {{ {sys.executable} "$@"; }}; {line.split("`")[1]}; echo $LD_LIBRARY_PATH'
    done = subprocess.run(["sh", "-c", script], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{packages[0]}/lib:{packages[1]}/lib:/before"]
