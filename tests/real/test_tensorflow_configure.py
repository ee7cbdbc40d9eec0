"""TensorFlow 2.14.1's own source goes through the pipeline's image phase, where its own configure.py runs.

The source is Debian's package of it; the base image is a stand-in made of Debian's packages under the name that the
profile asks for. The compile itself needs downloads that are out of reach, so all ends at `.tf_configure.bazelrc`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BED = Path(__file__).parents[2] / "ci" / "bed" / "bed"
BASE = "tensorflow/build:2.14-python3.11"

CPU = """
accelerator: cpu
"""
CUDA = """
cuda: "11.8"
cudnn: "8.6"
compute_capabilities: [compute_86, sm_80]
"""
NVCC = CUDA + "compiler: nvcc\nhost_compiler: {name: gcc, path: /usr/bin/gcc-11}\n"


def bed(*words: str) -> str:
    """Ask the test bed; skip where it cannot be had, since nothing else can stand in for TensorFlow's source."""
    result = subprocess.run([BED, *words], capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"the test bed cannot: {result.stderr.strip().splitlines()[-1]}")
    return result.stdout.strip()


@pytest.fixture(scope="session")
def source() -> Path:
    """TensorFlow 2.14.1's tree."""
    return Path(bed("tensorflow-source"))


@pytest.fixture(scope="session")
def configured(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Build the image for a profile and return the lines that configure.py wrote into it."""
    if not os.environ.get("DOCKER_HOST"):
        pytest.skip("no engine: run through `make test`")
    bed("up", BASE)
    work = tmp_path_factory.mktemp("real")

    def configure(lines: str) -> list[str]:
        profile = work / "profile.yaml"
        # The stand-in has Debian's Bazel: configure.py of this release checks no version.
        head = f'schema: 1\ntensorflow: {{release: "2.14.1", path: {source}}}\npython: "3.11"\n'
        profile.write_text(f'{head}bazel: {{version: "4.2.3"}}\n{lines}')
        environment = os.environ | {
            "TFDOCK_CACHE_DIR": str(work / "cache"),
            "TFDOCK_STATE_DIR": str(work / "state"),
            "TFDOCK_WHEELHOUSE": str(work / "wheelhouse"),
        }
        command = [sys.executable, "-m", "tfdock", "shell", str(profile), "cat", ".tf_configure.bazelrc"]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return configure


@pytest.mark.engine
def test_a_cpu_profile_configures_clang_and_nothing_of_cuda(configured: Callable[[str], list[str]]) -> None:
    lines = configured(CPU)
    assert "build --repo_env=CC=/usr/lib/llvm-16/bin/clang" in lines
    assert 'build --python_path="/usr/bin/python3"' in lines
    assert "build --define=with_xla_support=true" in lines
    assert not [line for line in lines if "cuda" in line.lower()]


@pytest.mark.engine
def test_a_native_cpu_profile_without_xla_says_both(configured: Callable[[str], list[str]]) -> None:
    lines = configured(CPU + "optimize: native\nxla: false\n")
    assert "build:opt --copt=-march=native" in lines
    assert "build --define=with_xla_support=false" in lines


@pytest.mark.engine
@pytest.mark.parametrize(
    ("profile", "compiler"),
    [
        pytest.param(
            CUDA,
            ["build --config=cuda_clang", 'build --action_env CLANG_CUDA_COMPILER_PATH="/usr/lib/llvm-16/bin/clang"'],
            id="clang",
        ),
        pytest.param(
            NVCC,
            ["build --config=cuda", 'build --action_env GCC_HOST_COMPILER_PATH="/usr/bin/x86_64-linux-gnu-gcc-11"'],
            id="nvcc",
        ),
    ],
)
def test_a_cuda_profile_configures_exactly_what_it_asks(
    configured: Callable[[str], list[str]], profile: str, compiler: list[str]
) -> None:
    lines = configured(profile)
    capabilities = [line for line in lines if "COMPUTE_CAPABILITIES" in line]
    assert capabilities == ['build --action_env TF_CUDA_COMPUTE_CAPABILITIES="sm_80,compute_86"']
    assert 'build --action_env TF_CUDA_VERSION="11.8"' in lines
    assert 'build --action_env TF_CUDNN_VERSION="8.6"' in lines
    assert 'build --action_env CUDA_TOOLKIT_PATH="/usr/local/cuda-11.8"' in lines
    assert set(compiler) <= set(lines)
    assert "build --config=tensorrt" not in lines
