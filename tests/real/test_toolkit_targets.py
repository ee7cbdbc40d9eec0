"""What a toolkit's row says it compiles for, against the real ptxas of that toolkit.

The stand-in base image of the test bed carries CUDA 13.0's compilers, out of NVIDIA's own package.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

import docker
import pytest

from tfdock.do.assets import knowledge
from tfdock.read.knowledge import Toolkit

BED = Path(__file__).parents[2] / "ci" / "bed" / "bed"
BASE = "tensorflow/build:99.18-python3.11"

pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def row() -> Toolkit:
    return knowledge().toolkits["cuda", "13.0"]


def run(script: str) -> str:
    """What a shell in the image prints."""
    host = os.environ.get("DOCKER_HOST")
    if not host:
        pytest.skip("no engine: run through `make test`")
    up = subprocess.run([BED, "up", BASE], capture_output=True, text=True, check=False)
    if up.returncode:
        pytest.skip(f"the test bed cannot: {up.stderr.strip().splitlines()[-1]}")
    mirror = os.environ["TFDOCK_REGISTRY_MIRROR"].removeprefix("docker.io=")
    with contextlib.closing(docker.DockerClient(host, version="auto")) as client:
        client.images.pull(f"{mirror}/{BASE}")
        output: bytes = client.containers.run(
            f"{mirror}/{BASE}", ["sh", "-c", script], remove=True, network_mode="none", stderr=True
        )
    return output.decode()


def test_the_row_lists_the_targets_that_ptxas_takes(row: Toolkit) -> None:
    told = run("/usr/local/cuda/bin/ptxas --help")
    option = told[told.index("--gpu-name") :]
    allowed = option[: option.index("Default value")]
    assert set(re.findall(r"'sm_(\w+)'", allowed)) == set(row.targets)


def test_the_row_names_the_newest_ptx_that_ptxas_reads(row: Toolkit) -> None:
    told = run("echo .version 99.0 > /tmp/x.ptx; /usr/local/cuda/bin/ptxas /tmp/x.ptx -o /dev/null; true")
    assert re.findall(r"current version is '([\d.]+)'", told) == [row.ptx]


def test_the_row_names_the_newest_gcc_that_nvcc_takes(row: Toolkit) -> None:
    told = run("find -L /usr/local/cuda -path '*crt/host_config.h' -exec grep -E 'if .*__GNUC__ > ' {} +")
    assert set(re.findall(r"__GNUC__ > (\d+)", told)) == {str(row.host_gcc_max)}


def test_nvcc_takes_the_same_targets_but_for_their_letters(row: Toolkit) -> None:
    told = run("/usr/local/cuda/bin/nvcc --list-gpu-code")
    plain = {target for target in row.targets if target.isdigit()}
    assert set(told.split()) == {f"sm_{target}" for target in plain}
