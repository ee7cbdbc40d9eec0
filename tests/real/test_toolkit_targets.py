"""What the rows of a toolkit and of a compiler say they compile for, against the real programs.

The stand-in base images of the test bed carry NVIDIA's own compilers of CUDA 11.8 and 13.0, and Debian's clang 16.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re

import docker
import pytest
from bed import bed, missing
from waits import FETCH

from tfdock.knowledge.loader import knowledge
from tfdock.knowledge.toolkit_rows import Toolkit

IMAGES = {"11.8": "tensorflow/build:2.14-python3.11", "13.0": "tensorflow/build:99.18-python3.11"}
CLANG = "/usr/lib/llvm-16/bin/clang -x cuda -nocudainc -nocudalib --cuda-device-only -fsyntax-only"

pytestmark = [pytest.mark.engine, pytest.mark.limit(FETCH)]


@pytest.fixture(params=IMAGES)
def row(request: pytest.FixtureRequest) -> Toolkit:
    return knowledge().toolkits["cuda", request.param]


@functools.cache
def image_of(version: str) -> str:
    """The image that holds that CUDA, made and pulled once; skips where there is no test bed, and only there."""
    bed("up", IMAGES[version])
    image = f"{os.environ['TFDOCK_REGISTRY_MIRROR'].removeprefix('docker.io=')}/{IMAGES[version]}"
    with contextlib.closing(docker.DockerClient(os.environ["DOCKER_HOST"], version="auto")) as client:
        client.images.pull(image)
    return image


def run(version: str, script: str) -> str:
    """What a shell prints in the image that holds that CUDA."""
    host = os.environ.get("DOCKER_HOST")
    if not host:
        missing("no engine: run through `make test`")
    image = image_of(version)
    with contextlib.closing(docker.DockerClient(host, version="auto")) as client:
        command = ["sh", "-c", f'PATH="$PATH:/usr/local/cuda/bin"; {script}']
        output: bytes = client.containers.run(image, command, remove=True, network_mode="none", stderr=True)
    return output.decode()


def test_the_row_lists_the_targets_that_ptxas_takes(row: Toolkit) -> None:
    told = run(row.version, "ptxas --help")
    option = told[told.index("--gpu-name") :]
    allowed = option[: option.index("Default value")]
    assert set(re.findall(r"'sm_(\w+)'", allowed)) == set(row.targets)


def test_the_row_names_the_newest_ptx_that_ptxas_reads(row: Toolkit) -> None:
    told = run(row.version, "echo .version 99.0 > /tmp/x.ptx; ptxas /tmp/x.ptx -o /dev/null; true")
    assert re.findall(r"current version is '([\d.]+)'", told) == [row.ptx]


def test_the_row_names_the_newest_gcc_that_nvcc_takes(row: Toolkit) -> None:
    told = run(row.version, "grep -E 'if .*__GNUC__ > ' $(find -L /usr/local/cuda -path '*crt/host_config.h')")
    assert set(re.findall(r"__GNUC__ > (\d+)", told)) == {str(row.host_compilers_max["gcc"])}


def test_nvcc_takes_the_same_targets_but_for_their_letters(row: Toolkit) -> None:
    told = run(row.version, "nvcc --list-gpu-code")
    assert set(told.split()) == {f"sm_{target}" for target in row.targets if target.isdigit()}


def test_clang_takes_the_targets_of_its_row_and_no_other() -> None:
    base = knowledge()
    every = sorted({target for row in base.compilers.values() for target in row.targets})
    script = f"""echo > /tmp/x.cu; for one in {" ".join(every)}; do
        {CLANG} --cuda-gpu-arch=sm_$one /tmp/x.cu 2>&1 | grep -q 'unsupported CUDA gpu' || echo $one
    done"""
    assert set(run("11.8", script).split()) == set(base.compilers["clang", "16"].targets)
