"""Holds the miniature TensorFlow against TensorFlow 2.14.1's own files.

Both configure.py run with the same variables against the same make-believe compilers and CUDA, and what they
write and how they fail is compared. The files of TensorFlow come out of a source package of Debian, which the
test bed fetches.
"""

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from build.harness import MINIATURE, legacy_tree

ALWAYS = {"USE_DEFAULT_PYTHON_LIB_PATH": "1", "TF_NEED_ROCM": "0", "TF_SET_ANDROID_WORKSPACE": "0"}
CPU = {**ALWAYS, "TF_NEED_CUDA": "0", "TF_NEED_CLANG": "0"}
CUDA = {
    **ALWAYS,
    "TF_NEED_CUDA": "1",
    "TF_CUDA_CLANG": "0",
    "TF_NEED_TENSORRT": "0",
    "TF_CUDA_VERSION": "11.8",
    "TF_CUDNN_VERSION": "8",
    "TF_CUDA_PATHS": "{toolchain}/cuda",
    "GCC_HOST_COMPILER_PATH": "{toolchain}/bin/gcc",
}
CLANG = "{toolchain}/bin/clang"

PROFILES: dict[str, dict[str, str]] = {
    "CPU with gcc": CPU,
    "CPU with clang": {**CPU, "TF_NEED_CLANG": "1", "CLANG_COMPILER_PATH": CLANG},
    "CPU with clang 16": {**CPU, "TF_NEED_CLANG": "yes", "CLANG_COMPILER_PATH": CLANG + "-16"},
    "CPU with flags": {**CPU, "CC_OPT_FLAGS": "-march=haswell -mfma"},
    "XLA off": {**CPU, "TF_ENABLE_XLA": "0"},
    "XLA on": {**CPU, "TF_ENABLE_XLA": "1"},
    "system libraries": {**CPU, "TF_SYSTEM_LIBS": "zlib,curl", "PREFIX": "/opt", "LIBDIR": "/opt/lib"},
    "a Python that is not there": {**CPU, "PYTHON_BIN_PATH": "/no/such/python"},
    "a library path of one's own": {**CPU, "PYTHON_LIB_PATH": "/opt/site", "PYTHONPATH": "/opt/site:/usr"},
    "CUDA for one GPU": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "sm_86"},
    "CUDA with PTX": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "sm_80,compute_86"},
    "CUDA with blanks": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": " sm_80, 8.6 "},
    "CUDA without a list": CUDA,
    "CUDA with an unreadable list": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "8"},
    "CUDA with one unreadable entry": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "sm_86,ampere"},
    "CUDA with too old a GPU": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "2.0,8.6"},
    "CUDA with semicolons": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "7.0;8.0"},
    "CUDA with a suffix": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "9.0a,sm_90a"},
    "CUDA by clang": {**CUDA, "TF_CUDA_CLANG": "1", "CLANG_CUDA_COMPILER_PATH": CLANG},
    "CUDA by clang 16": {**CUDA, "TF_CUDA_CLANG": "1", "CLANG_CUDA_COMPILER_PATH": CLANG + "-16"},
    "CUDA with a library path": {**CUDA, "LD_LIBRARY_PATH": "/opt/lib"},
    "CUDA in its own folder": {**CUDA, "CUDA_TOOLKIT_PATH": "{toolchain}/cuda"},
    "CUDA from a repository": {**CUDA, "TF_NEED_CLANG": "0", "TF_CUDA_CONFIG_REPO": "@cuda"},
    "ROCm": {**CPU, "TF_NEED_ROCM": "1", "ROCM_PATH": "/opt/rocm", "HIP_PLATFORM": "amd"},
}

FAILURES: dict[str, dict[str, str]] = {
    "CUDA as maybe": {**CPU, "TF_NEED_CUDA": "maybe"},
    "CUDA as nothing": {**CPU, "TF_NEED_CUDA": ""},
    "clang as on": {**CPU, "TF_NEED_CLANG": "on"},
    "XLA as yes": {**CPU, "TF_ENABLE_XLA": "yes"},
    "CUDA and ROCm": {**CUDA, "TF_NEED_ROCM": "1"},
    "no clang there": {**CPU, "TF_NEED_CLANG": "1", "CLANG_COMPILER_PATH": "/no/such/clang"},
    "no gcc there": {**CUDA, "GCC_HOST_COMPILER_PATH": "/no/such/gcc"},
    "no CUDA there": {**CUDA, "TF_CUDA_PATHS": "{toolchain}/bin"},
    "another CUDA there": {**CUDA, "TF_CUDA_VERSION": "12"},
    "no TensorRT there": {**CUDA, "TF_NEED_TENSORRT": "1"},
    "a list that is no number": {**CUDA, "TF_CUDA_COMPUTE_CAPABILITIES": "7x0y"},
    "no Bazel there": {**CPU, "PATH": "/no/such/folder"},
}

CAPABILITY_LISTS = (
    "8.6",
    "7.5,8.6",
    "8.6,7.5",
    "sm_86",
    "sm_80,compute_86",
    "sm_80,8.6",
    "8.6,8.6,compute_86",
    "sm_86,sm_86",
    "sm_120",
    "12.0,8.6",
    "compute_90a",
    "sm_9",
    "ampere",
    "8",
)


@dataclass(frozen=True)
class Outcome:
    """What a run of configure.py left behind."""

    status: int
    lines: tuple[str, ...]
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The class of the exception that ended the run, or nothing."""
        found = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception))\b", self.stderr, re.MULTILINE)
        return found[-1] if found else ""


Configure = Callable[[Mapping[str, str]], Outcome]


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compilers that only know their version, and CUDA 11.8 and cuDNN 8.6 of headers and empty libraries."""
    root = tmp_path_factory.mktemp("toolchain")
    programs = {
        "bin/bazel": "bazel 6.1.0",
        "bin/gcc": "gcc (made up) 11.4.0",
        "bin/clang": "clang version 14.0.6",
        "bin/clang-16": "clang version 16.0.6",
        "cuda/bin/nvcc": "Cuda compilation tools, release 11.8, V11.8.89",
    }
    headers = {
        "cuda.h": {"CUDA_VERSION": 11080},
        "cudnn_version.h": {"CUDNN_MAJOR": 8, "CUDNN_MINOR": 6, "CUDNN_PATCHLEVEL": 0},
        "cublas_api.h": {"CUBLAS_VER_MAJOR": 11, "CUBLAS_VER_MINOR": 11, "CUBLAS_VER_PATCH": 3},
        "cusolver_common.h": {"CUSOLVER_VER_MAJOR": 11, "CUSOLVER_VER_MINOR": 4, "CUSOLVER_VER_PATCH": 1},
        "curand.h": {"CURAND_VER_MAJOR": 10, "CURAND_VER_MINOR": 3, "CURAND_VER_PATCH": 0},
        "cufft.h": {"CUFFT_VER_MAJOR": 10, "CUFFT_VER_MINOR": 9, "CUFFT_VER_PATCH": 0},
        "cusparse.h": {"CUSPARSE_VER_MAJOR": 11, "CUSPARSE_VER_MINOR": 7, "CUSPARSE_VER_PATCH": 5},
        "cupti.h": {},
    }
    libraries = (
        *("cudart.so.11.0", "cublas.so.11", "cusolver.so.11", "curand.so.10", "cufft.so.10"),
        *("cusparse.so.11", "cupti.so.11.8", "cudnn.so.8"),
    )
    files = {f"cuda/lib64/lib{name}": "" for name in libraries}
    files["cuda/nvvm/libdevice/libdevice.10.bc"] = ""
    for name, values in headers.items():
        files[f"cuda/include/{name}"] = "".join(f"#define {key} {value}\n" for key, value in values.items())
    for name, text in programs.items():
        files[name] = f"#!/bin/sh\necho '{text}'\n"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if name in programs else 0o644)
    return root


def configure_of(tree: Path, toolchain: Path) -> Configure:
    """A function that runs the tree's configure.py without a terminal and with only these variables."""

    def configure(variables: Mapping[str, str]) -> Outcome:
        environment = {"PATH": f"{toolchain}/bin:/usr/bin:/bin", "HOME": str(tree)}
        environment |= {name: value.format(toolchain=toolchain) for name, value in variables.items()}
        written = tree / ".tf_configure.bazelrc"
        written.unlink(missing_ok=True)
        run = subprocess.run(
            [sys.executable, tree / "configure.py"],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = written.read_text().splitlines() if written.exists() else []
        return Outcome(run.returncode, tuple(lines), run.stdout, run.stderr)

    return configure


@pytest.fixture(scope="session")
def real(tensorflow_source: Path, toolchain: Path, tmp_path_factory: pytest.TempPathFactory) -> Configure:
    """TensorFlow's configure.py, in a folder with the two files and the folder that it wants."""
    tree = tmp_path_factory.mktemp("tensorflow")
    (tree / "tools").mkdir()
    (tree / "third_party" / "gpus").mkdir(parents=True)
    for name in ("configure.py", "third_party/gpus/find_cuda_config.py"):
        shutil.copy(tensorflow_source / name, tree / name)
    return configure_of(tree, toolchain)


@pytest.fixture(scope="session")
def miniature(toolchain: Path, tmp_path_factory: pytest.TempPathFactory) -> Configure:
    """The configure.py of the miniature's legacy road, in a copy of its tree."""
    tree = legacy_tree(tmp_path_factory.mktemp("miniature") / "legacy")
    return configure_of(tree, toolchain)


@pytest.mark.parametrize("variables", PROFILES.values(), ids=PROFILES.keys())
def test_configure_writes_the_lines_that_tensorflow_writes(
    variables: dict[str, str], real: Configure, miniature: Configure
) -> None:
    expected = real(variables)
    found = miniature(variables)

    assert (expected.status, expected.error) == (0, "")
    assert (found.status, found.error) == (0, "")
    assert found.lines == expected.lines


@pytest.mark.parametrize("variables", FAILURES.values(), ids=FAILURES.keys())
def test_configure_fails_where_and_as_tensorflow_fails(
    variables: dict[str, str], real: Configure, miniature: Configure
) -> None:
    expected = real(variables)
    found = miniature(variables)

    assert expected.status == 1
    assert (found.status, found.error) == (expected.status, expected.error)
    assert found.lines == expected.lines


@pytest.mark.parametrize("name", ["CUDA with an unreadable list", "CUDA with one unreadable entry"])
def test_an_unreadable_list_of_capabilities_is_replaced_and_no_error(
    name: str, real: Configure, miniature: Configure
) -> None:
    for configure in (real, miniature):
        outcome = configure(PROFILES[name])
        assert outcome.status == 0
        assert 'build --action_env TF_CUDA_COMPUTE_CAPABILITIES="3.5,7.0"' in outcome.lines
        assert "Invalid compute capability" in outcome.stdout


@pytest.mark.parametrize("name", ["CUDA as maybe", "CUDA as nothing", "no clang there", "no CUDA there"])
def test_the_errors_of_configure_begin_as_those_of_tensorflow(
    name: str, real: Configure, miniature: Configure
) -> None:
    first_words = [
        re.findall(r"UserInputError: ((?:\S+ ){3})", configure(FAILURES[name]).stderr)
        for configure in (real, miniature)
    ]

    assert first_words[0] == first_words[1] != []


def capabilities_by_tensorflow(source: Path, text: str) -> list[str]:
    """Runs the one function of cuda_configure.bzl that reads the list: Starlark that is also Python."""
    rule = (source / "third_party" / "gpus" / "cuda_configure.bzl").read_text()
    function = re.search(r"^def compute_capabilities\(.*?(?=^\S)", rule, re.MULTILINE | re.DOTALL)
    assert function is not None

    def fail(message: str) -> None:
        raise ValueError(message)

    scope: dict[str, Any] = {
        "_TF_CUDA_COMPUTE_CAPABILITIES": "TF_CUDA_COMPUTE_CAPABILITIES",
        "auto_configure_fail": fail,
        "get_host_environ": lambda _context, _name, _default: text,
    }
    exec(function.group(), scope)
    return list(scope["compute_capabilities"](None))


def capabilities_by_miniature(text: str) -> list[str]:
    """The same by the miniature, with the digits and suffixes that its legacy road knows."""

    def fail(message: str) -> None:
        raise ValueError(message)

    scope: dict[str, Any] = {"fail": fail}
    exec((MINIATURE / "hermetic" / "third_party" / "gpus" / "capabilities.bzl").read_text(), scope)
    return list(scope["parse_capabilities"](text, digits=[2], letters=[]))


@pytest.mark.parametrize("text", CAPABILITY_LISTS)
def test_a_list_of_capabilities_means_what_it_means_to_tensorflow(text: str, tensorflow_source: Path) -> None:
    try:
        expected = capabilities_by_tensorflow(tensorflow_source, text)
    except ValueError as refused:
        with pytest.raises(ValueError, match=f"^{re.escape(str(refused).strip())}$"):
            capabilities_by_miniature(text)
    else:
        assert capabilities_by_miniature(text) == expected


def options_by_configuration(bazelrc: Path) -> dict[str, list[str]]:
    """The options of a .bazelrc under the name of their configuration; those of all builds under ""."""
    found: dict[str, list[str]] = {}
    for line in bazelrc.read_text().splitlines():
        command, *options = shlex.split(line, comments=True) or [""]
        if command == "build" or command.startswith("build:"):
            name = command.removeprefix("build").removeprefix(":")
            joined = re.sub(r"(--repo_env|--action_env|-c) ", r"\1=", " ".join(options))
            found.setdefault(name, []).extend(joined.split(" "))
    return found


@pytest.fixture(scope="session")
def real_options(tensorflow_source: Path) -> dict[str, list[str]]:
    return options_by_configuration(tensorflow_source / ".bazelrc")


@pytest.fixture(scope="session")
def miniature_options() -> dict[str, list[str]]:
    return options_by_configuration(MINIATURE / "legacy" / ".bazelrc")


def test_every_configuration_of_the_miniature_is_one_of_tensorflow(
    miniature_options: dict[str, list[str]], real_options: dict[str, list[str]]
) -> None:
    assert set(miniature_options) <= set(real_options)


@pytest.mark.parametrize("name", ["cuda", "cuda_clang", "tensorrt", "rocm", "v2", "xla", "mkl", "dbg"])
def test_a_configuration_tells_the_build_what_it_tells_tensorflow(
    name: str, miniature_options: dict[str, list[str]], real_options: dict[str, list[str]]
) -> None:
    def telling(options: list[str]) -> list[str]:
        kinds = ("--env=", "--config=cuda", "-c=", "--define=with_", "--define=tf_")
        # By which of the two a variable is handed over depends on the age of Bazel.
        options = [re.sub("^--(repo|action)_env=", "--env=", option) for option in options]
        return [option for option in options if option.startswith(kinds)]

    assert telling(miniature_options[name]) == telling(real_options[name])


def test_only_configure_defines_the_configuration_opt(
    miniature_options: dict[str, list[str]],
    real_options: dict[str, list[str]],
    real: Configure,
    miniature: Configure,
) -> None:
    assert "opt" not in miniature_options
    assert "opt" not in real_options
    for configure in (real, miniature):
        assert any(line.startswith("build:opt ") for line in configure(CPU).lines)


def test_what_configure_wrote_comes_after_the_configurations_and_before_those_of_releases(
    tensorflow_source: Path,
) -> None:
    for bazelrc in (tensorflow_source / ".bazelrc", MINIATURE / "legacy" / ".bazelrc"):
        written = "try-import %workspace%/.tf_configure.bazelrc"
        starts = ["build:cuda ", "build:cuda_clang ", written, "build:release_"]
        lines = bazelrc.read_text().splitlines()
        firsts = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in starts]
        assert firsts == sorted(firsts), bazelrc


def files_of(tree: Path) -> set[str]:
    """The files of a tree, without what a build or a run of configure leaves in it."""
    left = re.compile(r"^(bazel-.*|\.tf_configure\.bazelrc|tools/python_bin_path\.sh)$|(^|/)__pycache__/")
    names = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    return {name for name in names if not left.search(name) and not name.startswith("bazel-")}


def test_the_download_of_the_miniature_is_its_source_text_under_the_pinned_sum() -> None:
    downloads = MINIATURE / "downloads"
    archive = downloads / "minimath-1.0.tar.gz"
    with tarfile.open(archive) as tar:
        packed = {item.name: tar.extractfile(item) for item in tar if item.isfile()}
        content = {name: file.read() for name, file in packed.items() if file is not None}

    source = downloads / "minimath-1.0"
    assert content == {f"minimath-1.0/{name}": (source / name).read_bytes() for name in files_of(source)}
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert all(sha256 in (MINIATURE / tree / "WORKSPACE").read_text() for tree in ("hermetic", "legacy"))
