"""What is said of an environment: the first cause, its fix, and the rest below it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdock.cli.commands.doctor import _environment_answer
from tfdock.cli.console import Style
from tfdock.gpu.opened_libraries import opened_by
from tfdock.installed.environment import Environment, OpenedLibrary
from tfdock.installed.interpreter import AskedPython
from tfdock.installed.loader_search import FoundLibrary
from tfdock.installed.nvidia_driver import NvidiaDriver
from tfdock.installed.packages import InstalledTensorflow, InstalledWheel
from tfdock.installed.verdicts import judge_environment
from tfdock.knowledge import loader
from tfdock.plan.preflight import PreflightCheck
from tfdock.types import Host, LocalGpu

KNOWLEDGE = loader.knowledge()
CUDA = KNOWLEDGE.accelerators["cuda"]
SITE = Path("/env/lib/python3.11/site-packages")
PYTHON = AskedPython(
    program=Path("/env/bin/python"), version="3.11.7", bits=64, platform="linux-x86_64", path=(str(SITE),),
    suffix=".cpython-311-x86_64-linux-gnu.so", prefix="/env",
)  # fmt: skip
WHEEL = InstalledWheel(
    name="tensorflow", version="2.18.0", pythons=("cp311",), missing=(0, ""), changed=(0, ""), extras=("and-cuda",),
    requires=("protobuf (<6.0.0dev,>=3.20.3)", 'nvidia-cudnn-cu12==9.3.0.75; extra == "and-cuda"'),
)  # fmt: skip
INFO = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}
TENSORFLOW = InstalledTensorflow(
    origin=f"{SITE}/tensorflow/__init__.py", folder=SITE / "tensorflow", wheels=(WHEEL,), build_info=INFO, loader=None
)
DRIVER = NvidiaDriver(module="550.54.14", cards=1, nodes=("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"))


def opened(name: str, **more: Any) -> OpenedLibrary:
    """One of the libraries that 2.18 opens: found in its folder below pip's packages, unless told otherwise."""
    row = next(
        one
        for one in opened_by(KNOWLEDGE, CUDA, "2.18", lambda part: str(INFO[f"{part}_version"]))
        if one.name == name
    )
    path = Path("/usr/lib/libcuda.so.1") if name == "cuda" else SITE / "nvidia" / name / "lib" / row.library
    return OpenedLibrary(row=row, **{"found": FoundLibrary(name=row.library, path=path, by="its DT_RUNPATH"), **more})


NAMES = ("cuda", "cudart", "cublas", "cublasLt", "cufft", "cusolver", "cusparse", "cudnn")
SOUND = Environment(
    interpreter=PYTHON, tensorflow=TENSORFLOW, accelerator=CUDA, driver=DRIVER, cpu_flags=frozenset({"avx"}),
    versions={"numpy": "2.0.2", "protobuf": "5.28.3", "pip": "24.0"}, opened=tuple(map(opened, NAMES)),
)  # fmt: skip


def with_library(name: str, **more: Any) -> Environment:
    return replace(SOUND, opened=tuple(opened(one, **(more if one == name else {})) for one in NAMES))


def with_wheels(*wheels: InstalledWheel, **more: Any) -> Environment:
    return replace(SOUND, tensorflow=replace(TENSORFLOW, wheels=wheels, **more))


def nowhere(name: str, **more: Any) -> Environment:
    return with_library(name, found=FoundLibrary(name=opened(name).row.library), **more)


FOR_CPU = replace(with_wheels(replace(WHEEL, name="tensorflow-cpu", extras=())), accelerator=None)
LOST = SITE / "nvidia/cusolver/lib/libcusolver.so.11"
CASES: dict[str, tuple[Environment, str, str, str]] = {
    "a Python that does not start": (
        Environment(interpreter=AskedPython(program=Path("/env/bin/python"), trouble="No module named 'encodings'")),
        "python-unusable", "No module named 'encodings'", "-I -S -c pass",
    ),
    "32 bits": (replace(SOUND, interpreter=replace(PYTHON, bits=32)), "python-unusable", "32-bit", "64-bit"),
    "Windows": (
        replace(SOUND, interpreter=replace(PYTHON, program=Path("/mnt/c/Python/python.exe"))),
        "python-unusable", "Windows", "WSL2",
    ),
    "musl": (
        Environment(interpreter=replace(PYTHON, suffix=".cpython-311-x86_64-linux-musl.so")),
        "python-unusable", "musl", "Debian",
    ),
    "a Python that no release serves": (
        Environment(interpreter=replace(PYTHON, version="3.99.0")),
        "python-unusable", "no known release", "-m venv tf && tf/bin/pip install tensorflow==",
    ),
    "no TensorFlow": (
        Environment(interpreter=PYTHON, driver=DRIVER, versions={"pip": "24.0"}),
        "tensorflow-missing", "there is no TensorFlow", '`/env/bin/python -m pip install "tensorflow[and-cuda]==2.',
    ),
    "no pip": (
        Environment(interpreter=PYTHON, driver=DRIVER), "tensorflow-missing", "there is no TensorFlow",
        "`/env/bin/python -m ensurepip && /env/bin/python -m pip install",
    ),
    "an interrupted pip": (
        Environment(
            interpreter=PYTHON, leftovers=(SITE / "~ensorflow", SITE / "~ensorflow-2.17.1.dist-info"),
            versions={"pip": "24.0"},
        ),
        "tensorflow-missing", f"pip was interrupted and left {SITE}/~ensorflow", 'pip install "tensorflow==2.17.1"',
    ),
    "a file of one's own": (
        with_wheels(origin="/work/tensorflow.py", folder=Path("/work")),
        "tensorflow-shadowed", "/work/tensorflow.py", "rename or move /work/tensorflow.py",
    ),
    "a folder that was left": (with_wheels(origin=""), "tensorflow-shadowed", "no __init__.py", "rm -r"),
    "another Python's": (
        with_wheels(replace(WHEEL, pythons=("cp310",))), "tensorflow-damaged", "for cp310", "--force-reinstall",
    ),
    "two in one folder": (
        with_wheels(WHEEL, replace(WHEEL, name="tensorflow-cpu", changed=(4, "tensorflow/x.so"))),
        "tensorflow-damaged", "the files are those of tensorflow",
        '`/env/bin/python -m pip uninstall -y tensorflow tensorflow-cpu`, then `/env/bin/python -m pip install '
        '--no-cache-dir "tensorflow[and-cuda]==2.18.0"`',
    ),
    "files are gone": (
        with_wheels(replace(WHEEL, missing=(1200, "tensorflow/libtensorflow_cc.so.2"))),
        "tensorflow-damaged", "1,200 files are missing (tensorflow/libtensorflow_cc.so.2)", "--force-reinstall",
    ),
    "another user's files": (
        with_wheels(replace(WHEEL, shut="tensorflow/__init__.py")),
        "tensorflow-damaged", "may not read tensorflow/__init__.py", f"`chmod -R a+rX {SITE}/tensorflow`",
    ),
    "no AVX": (replace(SOUND, cpu_flags=frozenset({"sse4_2"})), "cpu-lacks-feature", "no avx", "optimize: native"),
    "an old libstdc++": (
        replace(SOUND, old_stdcxx=("/old/libstdc++.so.6", "GLIBCXX_3.4.30"), variables={"LD_LIBRARY_PATH": "/old"}),
        "cpp-library-old", "lacks GLIBCXX_3.4.30", "take /old out of LD_LIBRARY_PATH",
    ),
    "numpy 2 with an older release": (
        replace(with_wheels(replace(WHEEL, version="2.17.0", requires=("numpy (<2.0.0,>=1.23.5)",)))),
        "requirement-breaks", "numpy 2.0.2 breaks TensorFlow 2.17.0", '-m pip install "numpy<2.0.0,>=1.23.5"',
    ),
    "numpy 2 where METADATA names no bound": (
        with_wheels(replace(WHEEL, version="2.11.0", requires=("numpy>=1.20",))),
        "requirement-breaks", "umath failed to import", '-m pip install "numpy<2"',
    ),
    "numpy 1.24 with a release that takes an older one": (
        replace(
            with_wheels(replace(WHEEL, version="2.6.0", requires=("numpy (~=1.19.2)",))),
            versions={**SOUND.versions, "protobuf": "3.20.3", "numpy": "1.24.4"},
        ),
        "requirement-breaks", "has no attribute 'object'", '-m pip install "numpy~=1.19.2"',
    ),
    "packages are not there": (
        replace(
            with_wheels(replace(WHEEL, requires=("numpy<3", "absl-py", "ml_dtypes", "libclang"))),
            versions={"ml-dtypes": "0.4"},
        ),
        "requirement-breaks", "numpy and absl-py, which tensorflow requires, are not installed",
        '"tensorflow==2.18.0"',
    ),
    "an older ml_dtypes": (
        replace(
            with_wheels(replace(WHEEL, version="2.21.0", requires=("ml_dtypes<1.0.0,>=0.5.1",))),
            versions={"ml-dtypes": "0.4.1"},
        ),
        "requirement-breaks", "ml-dtypes 0.4.1 breaks TensorFlow 2.21.0", '"ml-dtypes<1.0.0,>=0.5.1"',
    ),
    "numpy 2 of PYTHONPATH": (
        replace(
            with_wheels(replace(WHEEL, version="2.17.0")), variables={"PYTHONPATH": "/mine:/their/site"},
            folders={"numpy": Path("/their/site")},
        ),
        "requirement-breaks", "numpy 2.0.2 (which is on PYTHONPATH", "take /their/site out of PYTHONPATH",
    ),
    "numpy 2 of the user": (
        replace(
            with_wheels(replace(WHEEL, version="2.17.0")), folders={"numpy": Path("/home/me/.local/lib")},
            interpreter=replace(PYTHON, user_site="/home/me/.local/lib"),
        ),
        "requirement-breaks", "numpy 2.0.2 (the user's own packages", "export PYTHONNOUSERSITE=1",
    ),
    "numpy 2 beside TensorFlow": (
        replace(
            with_wheels(replace(WHEEL, version="2.17.0")), variables={"PYTHONPATH": str(SITE)},
            folders={"numpy": SITE},
        ),
        "requirement-breaks", "numpy 2.0.2 breaks", 'pip install "numpy<2"',
    ),
    "another Python's numpy": (
        replace(SOUND, foreign_numpy=SITE / "numpy/_core/_multiarray_umath.cpython-310-x86_64-linux-gnu.so"),
        "requirement-breaks", "cpython-310-x86_64-linux-gnu.so is for another Python than 3.11.7",
        '--force-reinstall --no-deps "numpy==2.0.2"',
    ),
    "a version that is a command": (
        with_wheels(replace(WHEEL, version='2.18.0"$(id)', missing=(1, "x"))),
        "tensorflow-damaged", "1 files are missing", """'tensorflow==2.18.0"$(id)'""",
    ),
    "built for the CPU": (FOR_CPU, "tensorflow-for-cpu", "tensorflow-cpu 2.18.0", "uninstall -y tensorflow-cpu"),
    "on ARM": (
        replace(FOR_CPU, interpreter=replace(PYTHON, platform="linux-aarch64")),
        "tensorflow-for-cpu", "for the CPU only", "NVIDIA's container",
    ),
    "hidden": (replace(SOUND, variables={"CUDA_VISIBLE_DEVICES": ""}), "gpu-hidden", "(empty)", "unset"),
    "a GPU that is not there": (
        replace(SOUND, variables={"CUDA_VISIBLE_DEVICES": "1,0"}), "gpu-hidden", "CUDA_VISIBLE_DEVICES=1,0", "unset",
    ),
    "WSL 1": (
        replace(SOUND, driver=NvidiaDriver(wsl=True, cards=1)), "driver-unusable", "no /dev/dxg", "wsl --set-version",
    ),
    "a driver inside WSL2": (
        replace(SOUND, driver=NvidiaDriver(wsl=True, paravirtual=True)),
        "driver-unusable", "found before Windows' own", "apt purge",
    ),
    "a container without its GPU": (
        replace(SOUND, driver=NvidiaDriver(container=True, module="550.54.14")),
        "container-without-gpu", "no /dev/nvidia0", "docker run --gpus all",
    ),
    "a container with the device files of no GPU": (
        replace(SOUND, driver=replace(DRIVER, container=True, nodes=("/dev/nvidia-uvm", "/dev/nvidiactl"))),
        "container-without-gpu", "no /dev/nvidia0", "docker run --gpus all",
    ),
    "no device file of a GPU": (
        replace(SOUND, driver=replace(DRIVER, nodes=("/dev/nvidia-uvm", "/dev/nvidiactl"))),
        "driver-unusable", "no /dev/nvidia0: CUDA cannot start (`CUDA_ERROR_NO_DEVICE`)", "modprobe -u",
    ),
    "nouveau": (
        replace(SOUND, driver=NvidiaDriver(cards=1, nouveau=True)),
        "driver-unusable", "`nouveau` is", "Secure Boot needs a signed module",
    ),
    "shut device files": (
        replace(SOUND, driver=replace(DRIVER, shut=("/dev/nvidia0",))), "driver-unusable", "may not use", "usermod",
    ),
    "no uvm": (
        replace(SOUND, driver=replace(DRIVER, nodes=("/dev/nvidia0",))), "driver-unusable", "uvm", "modprobe -u",
    ),
    "no libcuda": (nowhere("cuda"), "driver-unusable", "libcuda.so.1 was not found", "install the libraries"),
    "the toolkit's stub": (
        with_library("cuda", found=FoundLibrary(name="libcuda.so.1", path=Path("/cuda/lib64/stubs/libcuda.so.1"))),
        "driver-unusable", "the toolkit's stub", "take /cuda/lib64/stubs out of LD_LIBRARY_PATH",
    ),
    "another version's libcuda": (
        with_library("cuda", found=FoundLibrary(name="libcuda.so.1", path=Path("/x/libcuda.so.535.54.03"))),
        "driver-unusable", "of driver 535.54.03, but the kernel module is of 550.54.14", "restart",
    ),
    "cuda-compat": (
        with_library("cuda", found=FoundLibrary(name="libcuda.so.1", path=Path("/x/compat/libcuda.so.535.54.03"))),
        "driver-unusable", "535.54.03", "cuda-compat",
    ),
    "an old driver": (
        replace(SOUND, driver=replace(DRIVER, module="450.80.02")), "driver-too-old", "CUDA 12.5.1", "525.60.13",
    ),
    "a library that a folder that is not searched": (
        nowhere("cusolver", unsearched=(LOST,)), "gpu-library-unsearched", "libcusolver.so.11 lies in a folder",
        f'`export LD_LIBRARY_PATH={LOST.parent}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"`',
    ),
    "a folder that is a command": (
        nowhere("cusolver", unsearched=(Path('/a"$(id)/libcusolver.so.11'),)),
        "gpu-library-unsearched", "that is not searched", """export LD_LIBRARY_PATH='/a"$(id)'"${LD_LIBRARY""",
    ),
    "no library in its place": (
        with_library(
            "cusolver", owner="nvidia-cusolver-cu12", version="11.6",
            found=FoundLibrary(name="libcusolver.so.11", path=LOST, by="LD_LIBRARY_PATH", damaged=True),
        ),
        "gpu-library-missing", "by LD_LIBRARY_PATH, but is not a library",
        '-m pip install --force-reinstall --no-deps "nvidia-cusolver-cu12==11.6"',
    ),
    "no library in the driver's place": (
        with_library("cuda", found=FoundLibrary(name="libcuda.so.1", path=LOST, by="LD_LIBRARY_PATH", damaged=True)),
        "driver-unusable", "is not a library", "take its folder out of the search",
    ),
    "a library whose package is installed": (
        replace(nowhere("cufft"), versions={**SOUND.versions, "nvidia-cufft-cu12": "11.2.3.61"}),
        "gpu-library-missing", "was not found", '--force-reinstall --no-deps "nvidia-cufft-cu12==11.2.3.61"',
    ),
    "a library of another number": (
        nowhere("cudnn", others=(SITE / "nvidia/cudnn/lib/libcudnn.so.8",)),
        "gpu-library-missing", "there is libcudnn.so.8, but of", '-m pip install "tensorflow[and-cuda]==2.18.0"',
    ),
    "a library without an extra": (
        replace(nowhere("cufft"), tensorflow=replace(TENSORFLOW, wheels=(replace(WHEEL, extras=()),))),
        "gpu-library-missing", "libcufft.so.11 was not found", "install cuda 12, as in the build of this wheel",
    ),
    "what a library needs": (
        with_library(
            "cusolver", found=replace(opened("cusolver").found, lacks=(("libnvJitLink.so.12", "libcusparse"),))
        ),
        "gpu-library-missing", "libnvJitLink.so.12, which libcusparse needs, was not", "pip install",
    ),
    "an older cuDNN of pip": (
        with_library("cudnn", owner="nvidia-cudnn-cu12", version="9.1.0.70"),
        "cudnn-too-old", "is cuDNN 9.1.0.70, but the build had 9.3", '-m pip install "nvidia-cudnn-cu12>=9.3,<10"',
    ),
    "an older cuDNN of the system": (
        with_library("cudnn", version="9.1.0"), "cudnn-too-old", "9.1.0", "out of LD_LIBRARY_PATH",
    ),
    "a GPU without code": (
        replace(SOUND, host=Host(gpus=(LocalGpu(name="Tesla K80", accelerator="cuda", target="3.7"),))),
        "gpu-not-served", "Tesla K80", "tfdock advise k80",
    ),
}  # fmt: skip


def failed(environment: Environment) -> list[PreflightCheck]:
    return [check for check in judge_environment(environment, KNOWLEDGE) if check.status == "failed"]


@pytest.mark.parametrize("name", CASES)
def test_the_first_cause_is_the_verdict_and_alone_has_a_fix(name: str) -> None:
    environment, code, says, fix = CASES[name]
    (found,) = failed(environment)
    assert (found.code, found.exit_code) == (code, 4)
    assert says in found.found
    assert fix in found.fix
    others = [check for check in judge_environment(environment, KNOWLEDGE) if check is not found]
    assert not any(check.fixes for check in others if check.code != code)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (SOUND, "all 7 that TensorFlow loads were found"),
        (replace(SOUND, variables={"CUDA_VISIBLE_DEVICES": "0"}), "all 7 that TensorFlow loads were found"),
        (replace(SOUND, variables={"CUDA_VISIBLE_DEVICES": "GPU-8f6a"}), "all 7 that TensorFlow loads were found"),
        (replace(SOUND, driver=NvidiaDriver(), opened=()), "no NVIDIA GPU was found"),
        (replace(FOR_CPU, driver=NvidiaDriver()), "built for the CPU, and there is no NVIDIA GPU here"),
        (replace(SOUND, driver=NvidiaDriver(wsl=True, paravirtual=True), opened=()), "through /dev/dxg"),
        (with_library("cudnn", owner="nvidia-cudnn-cu12", version="9.5.1.17"), "9.5.1.17, of nvidia-cudnn-cu12"),
        (with_wheels(), "it is a checkout or a copy"),
        (replace(SOUND, opened=()), "tfdock does not know the libraries that 2.18.0 loads"),
        (replace(FOR_CPU, tensorflow=replace(TENSORFLOW, build_info=None)), "no readable build_info.py"),
        (
            replace(FOR_CPU, driver=NvidiaDriver(), tensorflow=replace(TENSORFLOW, build_info=None)),
            "no readable build_info.py",
        ),
        (replace(SOUND, accelerator=KNOWLEDGE.accelerators["rocm"]), "only NVIDIA's driver"),
    ],
)  # fmt: skip
def test_what_is_sound_or_not_known_is_no_failure(environment: Environment, says: str) -> None:
    checks = judge_environment(environment, KNOWLEDGE)
    assert failed(environment) == []
    assert says in "\n".join(check.found for check in checks)


def test_a_package_from_elsewhere_is_a_warning() -> None:
    named = replace(SOUND, variables={"PYTHONPATH": str(SITE)})
    own = replace(SOUND, interpreter=replace(PYTHON, user_site=str(SITE)))
    for environment in (named, own):
        (warned,) = (check for check in judge_environment(environment, KNOWLEDGE) if check.status == "warning")
        assert warned.code == "tensorflow-shadowed"


def test_a_requirement_that_an_import_may_do_without_is_a_warning() -> None:
    checks = judge_environment(with_wheels(replace(WHEEL, requires=("libclang>=13", "numpy"))), KNOWLEDGE)
    assert [check.found for check in checks if check.status == "warning"] == [
        "not installed, though required: libclang"
    ]


def with_gpus(environment: Environment, *gpus: tuple[str, str], accelerator: str = "cuda") -> Environment:
    found = tuple(LocalGpu(name=name, accelerator=accelerator, target=target) for name, target in gpus)
    return replace(environment, host=Host(gpus=(*environment.host.gpus, *found)))


RTX_5090, H100 = ("NVIDIA GeForce RTX 5090", "12.0"), ("NVIDIA H100 80GB HBM3", "9.0")
#: It has PTX for an H100, and no machine code.
OLDER = replace(
    with_gpus(with_wheels(replace(WHEEL, version="2.13.1")), H100), versions={**SOUND.versions, "numpy": "1.24.3"}
)


def of_gpu_code(environment: Environment) -> list[tuple[str, str | None, str]]:
    checks = judge_environment(environment, KNOWLEDGE)
    return [(check.status, check.code, check.found) for check in checks if check.name == "gpu code"]


def answer(environment: Environment) -> str:
    return _environment_answer(environment, judge_environment(environment, KNOWLEDGE), Style(sys.stdout))


def test_a_gpu_that_compiles_at_its_first_start_is_a_warning_in_the_first_line() -> None:
    said = [found for status, code, found in of_gpu_code(OLDER) if (status, code) == ("warning", "gpu-jit")]
    assert "at the first start, for half an hour or longer" in said[0]
    assert answer(OLDER).endswith(f"should see the GPU, but {said[0]}")
    uncached = replace(OLDER, uncached="CUDA_CACHE_DISABLE=1")
    assert "and again at every start (CUDA_CACHE_DISABLE=1)" in answer(uncached)


def test_a_gpu_that_is_seen_and_fails_at_its_first_sum_is_no_gpu_that_works() -> None:
    environment = with_gpus(SOUND, RTX_5090)
    (found,) = failed(environment)
    assert (found.code, "Add, Mul, Cast" in found.found) == ("gpu-not-served", True)
    assert "CUDA_ERROR_INVALID_PTX" in found.found
    assert answer(environment).startswith("no: ")
    assert "tfdock advise rtx5090" in found.fix


def test_a_wheel_is_judged_by_the_targets_that_it_says_it_was_built_for() -> None:
    own = with_wheels(WHEEL, build_info={**INFO, "cuda_compute_capabilities": ["sm_120"]})
    ((status, _, says),) = of_gpu_code(with_gpus(own, RTX_5090))
    assert (status, "sm_120: code for exactly this GPU" in says) == ("ok", True)
    assert [status for status, _, _ in of_gpu_code(with_gpus(own, H100))] == ["failed"]
    official = KNOWLEDGE.releases["2.18"].official_targets["cuda"]
    same = with_wheels(WHEEL, build_info={**INFO, "cuda_compute_capabilities": [*official]})
    assert of_gpu_code(with_gpus(same, RTX_5090)) == of_gpu_code(with_gpus(SOUND, RTX_5090))


def test_a_limit_is_of_the_packages_that_are_installed() -> None:
    asks = replace(WHEEL, version="2.15.1", requires=('nvidia-cudnn-cu12==8.9.4.25; extra == "and-cuda"',))
    for version in ("8.9.4.25", "8.9.7.29"):
        installed = replace(with_wheels(asks), versions={**SOUND.versions, "nvidia-cudnn-cu12": version})
        told = "\n".join(found for _, _, found in of_gpu_code(with_gpus(installed, RTX_5090)))
        assert re.findall(r"cuDNN (8\S+), which the wheel uses", told) == [version]


def test_a_second_gpu_that_the_wheel_does_not_serve_is_a_warning() -> None:
    both = with_gpus(SOUND, ("NVIDIA GeForce RTX 3080", "8.6"), ("NVIDIA GeForce GT 710", "3.5"))
    assert [(status, code) for status, code, _ in of_gpu_code(both)] == [("ok", ""), ("warning", "gpu-not-served")]
    amd = with_gpus(with_gpus(SOUND, H100), ("AMD Radeon Graphics", "gfx1036"), accelerator="rocm")
    assert of_gpu_code(amd) == of_gpu_code(with_gpus(SOUND, H100))


def test_a_gpu_that_no_row_names_is_judged_by_its_target() -> None:
    assert [status for status, _, _ in of_gpu_code(with_gpus(SOUND, ("NVIDIA Novel", "8.6")))] == ["ok"]
    assert [status for status, _, _ in of_gpu_code(with_gpus(SOUND, ("NVIDIA Novel", "3.5")))] == ["failed"]


def test_where_the_driver_does_not_compile_a_gpu_without_machine_code_runs_nothing() -> None:
    for environment in (OLDER, with_gpus(SOUND, H100)):
        barred = replace(environment, uncompiled="CUDA_DISABLE_PTX_JIT=1")
        (only, *_) = of_gpu_code(barred)
        wanted = ("failed", "gpu-not-served") if environment is OLDER else ("ok", "")
        assert (only[:2], "CUDA_DISABLE_PTX_JIT=1" in only[2]) == (wanted, environment is OLDER)


def test_what_does_not_keep_tensorflow_from_the_gpu_is_a_warning() -> None:
    kernel, compiler = Path("/env/share/jupyter/kernels/python3/kernel.json"), KNOWLEDGE.runtime_compilers[0]
    environment = replace(SOUND, foreign_kernel=(kernel, "/other/python"), without_bitcode=compiler)
    warned = [check.found for check in judge_environment(environment, KNOWLEDGE) if check.status == "warning"]
    assert warned == [
        f"notebooks run /other/python, not this Python: {kernel}",
        "nvvm/libdevice/libdevice.10.bc was not found: what XLA must compile fails, such as some optimizers",
    ]


def test_what_fails_after_the_cause_is_told_without_a_fix() -> None:
    checks = judge_environment(replace(nowhere("cudnn"), variables={"CUDA_VISIBLE_DEVICES": "-1"}), KNOWLEDGE)
    told = [(check.status, check.code, bool(check.fix)) for check in checks if check.code]
    assert told == [("failed", "gpu-hidden", True), ("warning", "gpu-library-missing", False)]
