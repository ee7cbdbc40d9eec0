"""TensorFlow 2.14.1's own source goes through the pipeline's image phase, where its own configure.py runs.

The source is Debian's package of it; the base image is a stand-in made of Debian's packages under the name that the
profile asks for. The compile itself needs downloads that are out of reach, so all ends at `.tf_configure.bazelrc`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import bed, missing
from waits import FETCH

pytestmark = pytest.mark.limit(FETCH)

BASE = "tensorflow/build:2.14-python3.11"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A profile, and what configure.py must write of it: some lines, and its whole list of capabilities."""

    profile: str
    lines: tuple[str, ...]
    capabilities: str = ""
    absent: tuple[str, ...] = ()


CLANG, GCC = "/usr/lib/llvm-16/bin/clang", "/usr/bin/x86_64-linux-gnu-gcc-11"
HOST_GCC = "host_compiler: {name: gcc, path: /usr/bin/gcc-11}\n"
CUDA = 'cuda: "11.8"\ncudnn: "8.6"\n'
TOOLKIT = (
    'build --action_env TF_CUDA_VERSION="11.8"',
    'build --action_env TF_CUDNN_VERSION="8.6"',
    'build --action_env CUDA_TOOLKIT_PATH="/usr/local/cuda-11.8"',
)
BY_CLANG = ("build --config=cuda_clang", f'build --action_env CLANG_CUDA_COMPILER_PATH="{CLANG}"')
BY_NVCC = ("build --config=cuda", f'build --action_env GCC_HOST_COMPILER_PATH="{GCC}"')
PROFILES = {
    "a CPU": Asked(profile="accelerator: cpu\n", lines=(f"build --repo_env=CC={CLANG}",), absent=("cuda",)),
    "a CPU by gcc": Asked(
        profile=f"accelerator: cpu\n{HOST_GCC}", lines=('build --python_path="/usr/bin/python3"',), absent=("clang",)
    ),
    "this CPU alone, without XLA": Asked(
        profile="accelerator: cpu\noptimize: native\nxla: false\n",
        lines=("build:opt --copt=-march=native", "build --define=with_xla_support=false"),
        absent=("cuda",),
    ),
    "a CPU with two features": Asked(
        profile="accelerator: cpu\noptimize: [avx2, fma]\n",
        lines=("build:opt --copt=-mavx2", "build:opt --copt=-mfma"),
    ),
    "one GPU": Asked(profile=f"gpus: [rtx3080]\n{CUDA}", capabilities="sm_86", lines=(*TOOLKIT, *BY_CLANG)),
    "two capabilities, one with PTX, by clang": Asked(
        profile=f"compute_capabilities: [compute_86, sm_80]\n{CUDA}",
        capabilities="sm_80,compute_86",
        lines=(*TOOLKIT, *BY_CLANG),
    ),
    "the same by nvcc": Asked(
        profile=f"compute_capabilities: [compute_86, sm_80]\n{CUDA}compiler: nvcc\n{HOST_GCC}",
        capabilities="sm_80,compute_86",
        lines=(*TOOLKIT, *BY_NVCC),
        absent=("cuda_clang",),
    ),
    "three GPUs of two generations, by nvcc": Asked(
        profile=f"gpus: [h100, rtx4090, v100]\n{CUDA}compiler: nvcc\n{HOST_GCC}",
        capabilities="sm_70,sm_89,sm_90",
        lines=(*TOOLKIT, *BY_NVCC),
    ),
    "the official list, for debugging": Asked(
        profile=f"accelerator: cuda\n{CUDA}debug: true\n",
        capabilities="sm_35,sm_50,sm_60,sm_70,sm_75,compute_80",
        lines=(*TOOLKIT, *BY_CLANG),
    ),
}
ANY = ('build --python_path="/usr/bin/python3"', "build:opt --copt=-Wno-sign-compare")

# In the image of one profile, each profile's environment as `tfdock plan` prints it.
CONFIGURE = """
cp -r .bazelrc .bazelversion configure configure.py tools third_party /tmp && cd /tmp
{environment}
./configure </dev/null 2>&1 | sed 's/^/configure: /'
cat .tf_configure.bazelrc
"""
QUESTIONS = ("[Default is", "[Y/n]", "[y/N]", "Please specify", "Please input", "Do you w", "Would you")


@dataclass(frozen=True)
class Pipeline:
    """The command line with TensorFlow's source, and state of its own."""

    work: Path
    source: Path

    def tfdock(self, command: str, profile: str, *more: str) -> str:
        """Run a command on a profile; returns what it printed."""
        file = self.work / "profile.yaml"
        # No plan's environment is of the tree, whose 30,000 files take ten seconds to hash.
        source = "" if command == "plan" else f", path: {self.source}"
        # The stand-in has Debian's Bazel: configure.py of this release checks no version.
        head = f'schema: 1\ntensorflow: {{release: "2.14.1"{source}}}\npython: "3.11"\n'
        file.write_text(f'{head}bazel: {{version: "4.2.3"}}\nallow_untested: true\n{profile}')
        environment = os.environ | {
            "TFDOCK_ALLOW_PATHS": str(self.source),
            "TFDOCK_CACHE_DIR": str(self.work / "cache"),
            "TFDOCK_STATE_DIR": str(self.work / "state"),
            "TFDOCK_WHEELHOUSE": str(self.work / "wheelhouse"),
        }
        words = [sys.executable, "-m", "tfdock", command, str(file), *more]
        result = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="session")
def pipeline(tensorflow_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The command line, on an engine that has the stand-in base image."""
    if not os.environ.get("DOCKER_HOST"):
        missing("no engine: run through `make test`")
    bed("up", BASE)
    return Pipeline(tmp_path_factory.mktemp("real"), tensorflow_source)


@pytest.fixture(scope="session")
def configured(pipeline: Pipeline) -> dict[str, list[str]]:
    """What ./configure said and wrote for each profile: one image, and each one's environment in it."""
    script = "set -euo pipefail\n"
    for name, asked in PROFILES.items():
        environment = json.loads(pipeline.tfdock("plan", asked.profile, "--json"))["environment"]
        exports = "\n".join(f"export {variable}={shlex.quote(value)}" for variable, value in environment.items())
        script += f"echo {shlex.quote(f'== {name}')}\n({CONFIGURE.format(environment=exports)})\n"
    output = pipeline.tfdock("shell", PROFILES["one GPU"].profile, "bash", "-c", script)
    sections = (section.partition("\n") for section in output.split("== ")[1:])
    return {name: rest.splitlines() for name, _, rest in sections}


@pytest.mark.engine
@pytest.mark.parametrize("name", PROFILES)
def test_configure_writes_exactly_what_the_profile_asks_and_has_no_question(
    configured: dict[str, list[str]], name: str
) -> None:
    asked = PROFILES[name]
    said = [line for line in configured[name] if line.startswith("configure: ")]
    written = [line for line in configured[name] if line not in said]
    assert {*asked.lines, *ANY} <= set(written)
    listed = [line for line in written if "COMPUTE_CAPABILITIES" in line]
    wanted = f'build --action_env TF_CUDA_COMPUTE_CAPABILITIES="{asked.capabilities}"'
    assert listed == ([wanted] if asked.capabilities else [])
    assert not [line for line in written for word in (*asked.absent, "tensorrt", "rocm") if word in line]
    assert said[-1] == "configure: Configuration finished"
    assert not [line for line in said for question in QUESTIONS if question in line]


@pytest.mark.engine
def test_the_image_holds_what_the_plans_environment_leads_to(
    pipeline: Pipeline, configured: dict[str, list[str]]
) -> None:
    image = pipeline.tfdock("shell", PROFILES["one GPU"].profile, "cat", ".tf_configure.bazelrc").splitlines()
    written = [line for line in configured["one GPU"] if not line.startswith("configure: ")]
    before, after = "--action_env TF_CUDA_COMPUTE_CAPABILITIES=", "--repo_env=TF_CUDA_COMPUTE_CAPABILITIES="
    assert image == [line.replace(before, after) for line in written] != written
