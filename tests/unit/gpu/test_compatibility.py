"""How a GPU runs a wheel: facts of a wheel x GPU -> verdict, reason, limits. The official wheels are as measured."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.cli import gpu_text
from tfdock.cli.console import Style
from tfdock.cli.gpu_text import answer, gpu_json, reasons
from tfdock.errors import ProfileError, as_document
from tfdock.gpu.compatibility import Compatibility, LibraryService, library_verdicts, serve
from tfdock.gpu.gpu_facts import XLA_TRACE, brought_by, facts_of_release, facts_of_wheel
from tfdock.gpu.opened_libraries import own_libraries
from tfdock.host import hardware as machine
from tfdock.knowledge import loader
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import gpus_named
from tfdock.types import Host, LocalGpu
from tfdock.wheel.facts import Containers, GpuCode, Library
from tfdock.wheel.inspection import Inspection

from ..desk import Desk
from ..small_wheels import held, inspection_of

KNOWLEDGE = loader.knowledge()
CC, FRAMEWORK = "tensorflow/libtensorflow_cc.so.2", "tensorflow/libtensorflow_framework.so.2"
INTERNAL = "tensorflow/python/_pywrap_tensorflow_internal.so"
LINUX = "manylinux_2_17_x86_64.manylinux2014_x86_64"
NOTHING = GpuCode()


# --- facts as values ------------------------------------------------------------------------------------------------


def library(
    path: str,
    *groups: str,
    isa: str = "8.3",
    machine: str = "x86_64",
    relocatable: GpuCode = NOTHING,
    embedded: GpuCode | None = None,
) -> Library:
    loadable = held(*groups, isa=isa)
    return Library(
        path=path, size=1, machine=machine, versions={}, loadable=loadable,
        relocatable=relocatable, embedded=embedded, runpath=(f"$ORIGIN/{'../' * path.count('/')}nvidia/cudnn/lib",),
    )  # fmt: skip


RELOCATABLE = held("116: compute_90")


def wheel(
    *libraries: Library,
    version: str = "2.18.0",
    info: Mapping[str, object] | None = None,
    platform: str = LINUX,
    **more: Any,
) -> Inspection:
    """A wheel of these libraries; `more` as `inspection_of` takes it."""
    return inspection_of(version, libraries, info or {}, platform=platform, **more)


def built(cuda: str, cudnn: str, *listed: str) -> dict[str, object]:
    """What a CUDA wheel says of its build."""
    kinds = {"is_cuda_build": True, "is_rocm_build": False}
    return kinds | {"cuda_version": cuda, "cudnn_version": cudnn, "cuda_compute_capabilities": list(listed)}


def pins(nvcc: str, cudnn: str, *, cu: str = "cu12") -> tuple[str, ...]:
    return (f"nvidia-cuda-nvcc-{cu}{nvcc}", f"nvidia-cudnn-{cu}{cudnn}", f"nvidia-nccl-{cu}==2.21.5")


KEPLER = "sm_35 sm_50 sm_60 sm_70 sm_75 sm_80"
AMPERE = "sm_50 sm_60 sm_70 sm_75 sm_80"
HOPPER = "sm_60 sm_70 sm_80 sm_89 sm_90"
LISTED = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
RANGE = pins("<13.0,>=12.5.82", "<10.0,>=9.3.0.75")

LISTED_2_4 = ("sm_35", "sm_50", "sm_60", "sm_70", "sm_75", "compute_80")
TF_2_4 = wheel(
    library(
        INTERNAL, f"242: {KEPLER} compute_80", f"1: {KEPLER}", isa="7.0",
        relocatable=held(f"217: {KEPLER} compute_80"), embedded=held(f"8: {KEPLER}"),
    ),
    version="2.4.0", info=built("11.0", "8", *LISTED_2_4), platform="manylinux2010_x86_64",
)  # fmt: skip
TF_2_13 = wheel(
    library(
        CC, f"244: {KEPLER} compute_80", f"1: {KEPLER}", isa="7.8", relocatable=RELOCATABLE,
        embedded=held("1887: sm_35 sm_50 sm_60 sm_70 sm_75 compute_80", isa="7.1"),
    ),
    library(INTERNAL, f"1: {KEPLER} compute_80", isa="7.8", embedded=NOTHING),
    version="2.13.0", info=built("11.8", "8", *LISTED_2_4),
)  # fmt: skip
TF_2_15 = wheel(
    library(
        CC, f"246: {AMPERE} compute_80", f"1: {AMPERE}", isa="8.1", relocatable=RELOCATABLE,
        embedded=held("1149: sm_50 sm_60 sm_70 sm_75 compute_80", isa="7.1"),
    ),
    version="2.15.1", info=built("12.2", "8", *LISTED_2_4[1:]), requires=pins("==12.2.140", "==8.9.4.25"),
)  # fmt: skip
TF_2_18 = wheel(
    library(
        CC, f"278: {HOPPER} compute_90", f"1: {HOPPER}", relocatable=RELOCATABLE,
        embedded=held("1149: sm_60 sm_70 sm_80 sm_89 compute_90a"),
    ),
    library(FRAMEWORK, f"2: {HOPPER} compute_90", f"1: {HOPPER}", relocatable=RELOCATABLE, embedded=NOTHING),
    library(INTERNAL, f"1: {HOPPER} compute_90", embedded=NOTHING),
    info=built("12.5.1", "9", *LISTED), requires=pins("==12.5.82", "==9.3.0.75"),
)  # fmt: skip
TF_2_20 = wheel(
    library(CC, f"248: {HOPPER} compute_90", embedded=held("1149: sm_60 sm_70 sm_80 sm_89 compute_90a", isa="8.5")),
    library(FRAMEWORK, f"35: {HOPPER} compute_90", f"1: {HOPPER}", relocatable=RELOCATABLE, embedded=NOTHING),
    version="2.20.0", info=built("12.5.1", "9", *LISTED), requires=RANGE,
)  # fmt: skip
TF_2_21 = wheel(
    library(CC, f"249: {HOPPER} compute_90", embedded=held("1149: sm_60 sm_70 sm_80 sm_89 compute_90", isa="8.5")),
    library(FRAMEWORK, f"40: {HOPPER} compute_90", embedded=NOTHING),
    version="2.21.0", info=built("12.5.1", "9", *LISTED), requires=RANGE,
)  # fmt: skip
GFX = "gfx900 gfx906 gfx908 gfx90a gfx1030 gfx1100"
ROCM_2_14 = wheel(
    library(CC, f"241: {GFX}"), library(FRAMEWORK, f"1: {GFX}"), name="tensorflow-rocm", version="2.14.0.600",
    info={"is_cuda_build": False, "is_rocm_build": True}, requires=pins("==11.8.89", "==8.7.0.84", cu="cu11"),
)  # fmt: skip
CPU_2_18 = wheel(
    library(CC), name="tensorflow-cpu", info={"is_cuda_build": False, "is_rocm_build": False},
    requires=pins("==12.5.82", "==9.3.0.75"),
)  # fmt: skip


def gpu(name: str) -> Gpu:
    return gpus_named(KNOWLEDGE, [name])[0]


def asked(inspection: Inspection, name: str, host: Host | None = None) -> Compatibility:
    return serve(KNOWLEDGE, gpu(name), facts_of_wheel(KNOWLEDGE, inspection), host)


# --- the table ------------------------------------------------------------------------------------------------------


def of(
    *groups: str, isa: str = "8.3", cuda: str = "12.5.1", version: str = "2.18.0", machine: str = "x86_64"
) -> Inspection:
    """A wheel with such containers, made with that CUDA."""
    info = {"is_cuda_build": True, "cuda_version": cuda}
    return wheel(library(CC, *groups, isa=isa, machine=machine), info=info, version=version)


# Our own, as a profile for these GPUs makes them.
BLACKWELL = wheel(
    library(CC, "280: sm_86 sm_120", relocatable=RELOCATABLE, embedded=held("1149: sm_86 sm_120")),
    version="2.20.0+cuda12.8.sm86.sm120",
    info=built("12.8.0", "9", "sm_86", "sm_120"),
)
ORIN = wheel(
    library(CC, "280: sm_87", machine="aarch64"), info=built("12.5.1", "9", "sm_87"), platform="linux_aarch64"
)
OFFICIAL = {"2.4": TF_2_4, "2.13": TF_2_13, "2.15": TF_2_15, "2.18": TF_2_18, "2.20": TF_2_20, "2.21": TF_2_21}
WHEELS = {
    **OFFICIAL,
    "rocm": ROCM_2_14,
    "cpu": CPU_2_18,
    "blackwell": BLACKWELL,
    "orin": ORIN,
    "arm-80": of("9: sm_80", machine="aarch64"),
    "arm-80+ptx": of("9: sm_80 compute_80", machine="aarch64"),
    "relocatable": wheel(library(CC, relocatable=RELOCATABLE)),
    "stubs": of("3: sm_52 stub"),
    "stub+86": of("1: sm_86 stub", "9: sm_86 compute_86"),
    "unknown": of("9: sm_86", "4: kind-64"),
    "list-80": wheel(library(CC, "9: sm_70 sm_80"), info=built("12.5.1", "9", "sm_80")),
    "5-of-100": of("95: sm_80", "5: sm_70"),
    "10-of-100": of("90: sm_80", "10: sm_70"),
    "5-jit": of("95: sm_80", "5: sm_70 compute_70"),
    "95-jit": of("5: sm_80", "95: sm_70 compute_70"),
    "kepler": of("9: sm_35"),
    "kepler-ptx-7.8": of("9: compute_35", isa="7.8", cuda="11.8"),
    "kepler-ptx-7.4": of("9: compute_35", isa="7.4", cuda="11.4"),
    "cuda-10.1": of("9: sm_70", cuda="10.1"),
    "cuda-11.8": of("9: sm_90", cuda="11.8"),
    "cuda-12.6.2": of("9: sm_90", cuda="12.6.2"),
    "cuda-12.6.3": of("9: sm_90", cuda="12.6.3"),
    "cuda-13": of("9: sm_70 compute_70", isa="9.0", cuda="13.0.0"),
    "2.20-cuda-12.5": wheel(
        library(CC, "9: sm_80 compute_90"), version="2.20.0", info=built("12.5.1", "9", "sm_80", "compute_90")
    ),
    "1.15": wheel(library(CC, "9: sm_30"), version="1.15.5", info={"cuda_version_number": "10.0"}),
    "xnack": wheel(library(CC, "9: gfx90a:xnack+"), version="2.16.1"),
    "gfx1102": wheel(library(CC, "9: gfx1102"), version="2.20.0"),
    "gfx1103": wheel(library(CC, "9: gfx1103"), version="2.20.0"),
    "gfx1100": wheel(library(CC, "9: gfx1100"), version="2.15.0"),
    "nightly": wheel(library(CC, "9: sm_86"), name="tf-nightly", version="2.99.0.dev1"),
}

# A wheel and a GPU: how it runs, and by which image. Below it words of the reason, of limits, and of no limit.
CASES = """
--- 2.4.0: SASS up to 8.0, and PTX for it

2.4 on rtx3080: native-same-major sm_80
    limit: CUDA 11.0, which the wheel is made with, is older than this GPU
    limit: driver 455.23.04 or newer
    never: NCCL
2.4 on h100: ptx-jit compute_80
    limit: 8 kernels that MLIR generated (Add, Mul, Cast and their like) fail with `no kernel image
    limit: the cuDNN 8 that is installed must be 8.6 or newer
    limit: NCCL
2.4 on k80: native-same-major sm_35
    limit: the cuDNN 8 that is installed must be older than 8.8
    limit: 470 is the last driver that knows this GPU
2.4 on rtx5090: ptx-jit compute_80
    limit: driver 570.86.16 or newer with the open kernel modules

--- 2.13: of 8.0 the kernels that MLIR generated have PTX alone

2.13 on a100: native sm_80
    limit: 1887 kernels that MLIR generated
    limit: driver 450.80.02 or newer; 455.23 or newer for PTX 7.1
2.13 on v100: native sm_70
    never: MLIR
    never: NCCL
2.13 on h100: ptx-jit compute_80
    limit: driver 520.61.05 or newer
    limit: 1 of 245 containers of tensorflow/libtensorflow_cc.so.2
    never: MLIR
2.13 on gtx680: no
    reason: its oldest code is for 3.5
    reason: TensorFlow 2.13 ignores GPUs of 3.0

--- 2.15: the wheel says what pip brings

2.15 on h100: ptx-jit compute_80
    limit: driver 530.30.02 or newer
2.15 on rtx5090: ptx-jit compute_80
    limit: CUDA 12.2, which comes with the wheel, is older than this GPU
    limit: cuDNN 8.9.4.25, which the wheel uses, has no code for 12.0
2.15 on k80: no
    reason: its oldest code is for 5.0, and neither machine code nor PTX runs on an older GPU
    reason: TensorFlow ignores GPUs below 5.0

--- 2.18: a container without PTX in each of two libraries, generated kernels for 9.0 alone

2.18 on rtx5090: ptx-jit compute_90
    reason: the driver compiles compute_90 at the first start
    limit: 1149 kernels that MLIR generated (Add, Mul, Cast and their like) fail with `CUDA_ERROR_INVALID_PTX`
    limit: compute_90a is for 9.0 alone, and none of their machine code runs on 12.0
    limit: CUDA 12.5, which comes with the wheel, is older than this GPU: XLA leaves compiling to the driver
    limit: cuDNN 9.3.0.75, which the wheel uses, has no code for 12.0; cuDNN 9.7 or newer has it
    limit: several GPUs together will not work: NCCL in this wheel has no PTX, and fails with `no kernel image`
    limit: 1 of 279 containers of tensorflow/libtensorflow_cc.so.2
    limit: 1 of 3 containers of tensorflow/libtensorflow_framework.so.2
    limit: driver 570.86.16 or newer with the open kernel modules
2.18 on rtx3080: native-same-major sm_80
    limit: driver 525.60.13 or newer
    never: NCCL
    never: MLIR
    never: CUDA
    never: cuDNN
    never: 545
2.18 on rtx4090: native sm_89
    never: MLIR
2.18 on h100: native sm_90
    limit: 1149 kernels that MLIR generated (Add, Mul, Cast and their like) have no machine code for it
    limit: can compile clamping wrongly
    limit: driver 525.60.13 or newer; 545.23.06 or newer for PTX 8.3 of the kernels that MLIR generated
    never: NCCL
2.18 on v100: native sm_70
    limit: driver 525.60.13 or newer, and 580 is the last driver that knows this GPU
    never: cuDNN
2.18 on gb10: no
    reason: it is for x86_64 machines; this GPU's machine is aarch64
2.18 on jetson-agx-orin: no
    reason: this GPU's machine is aarch64
2.18 on mi300x: no
    reason: its GPU code is for CUDA, and this GPU needs a wheel for ROCm

--- 2.20: pip takes the newest cuDNN, which has dropped Volta and older

2.20 on gtx1080: native-same-major sm_60
    limit: pip takes the newest cuDNN, which has no code for 6.1; install `nvidia-cudnn-cu12<9.11` with it
    pin: nvidia-cudnn-cu12<9.11
2.20 on v100: native sm_70
    pin: nvidia-cudnn-cu12<9.11
2.20 on rtx2080: native-same-major sm_70
    never: cuDNN
2.20 on rtx5090: ptx-jit compute_90
    limit: fail with `CUDA_ERROR_INVALID_PTX`
    limit: 1 of 36 containers of tensorflow/libtensorflow_framework.so.2
    never: cuDNN
    limit: compiled with CUDA 12.5.1, which does not know sm_120a, and XLA supports no newer one
2.20 on h100: native sm_90
    limit: 555.42.02 or newer for PTX 8.5
    never: clamping

--- 2.21: PTX everywhere

2.21 on rtx5090: ptx-jit compute_90
    limit: driver 570.86.16 or newer with the open kernel modules
    never: NCCL
    never: MLIR
    limit: compiled with CUDA 12.5.1, which does not know sm_120a, and XLA supports no newer one
    never: cuDNN
2.21 on b200: ptx-jit compute_90

--- AMD's own, which is no CUDA wheel though it requires CUDA's packages; TensorFlow's without GPU code as well

rocm on mi250x: native gfx90a
    never: cuDNN
    never: CUDA
    never: driver
rocm on rx6700xt: no
    reason: such code runs only on the target that it was compiled for
rocm on mi300x: no
    reason: it has code for gfx1030, gfx1100, gfx900, gfx906, gfx908, gfx90a only
rocm on rx6800xt: no
    reason: TensorFlow in this wheel ignores gfx1030: a comma is missing
rocm on rx7900xtx: no
    reason: TensorFlow in this wheel ignores gfx1100: a comma is missing
rocm on rtx3080: no
    reason: its GPU code is for ROCm, and this GPU needs a wheel for CUDA
cpu on rtx3080: no
    reason: it has no GPU code

--- A2: Tegra runs its own code, or PTX, and its code runs nowhere else

orin on jetson-agx-orin: native sm_87
    never: driver
arm-80 on jetson-agx-orin: no
    reason: 8.7 is an embedded GPU: it runs only code for exactly 8.7
arm-80+ptx on jetson-agx-orin: ptx-jit compute_80

--- what is no loadable code

relocatable on rtx5090: no
    reason: its GPU code is relocatable: it is input for the device linker, and no driver can load it
stubs on gtx980: no
    reason: its GPU code has no kernels
stub+86 on rtx5090: ptx-jit compute_86
    never: containers
unknown on rtx3080: native sm_86
    limit: has 4 images of an unknown kind

--- A6: container by container

5-of-100 on a100: native sm_80
    limit: some containers of its kernels have nothing that runs on 8.0: those kernels fail with `no kernel image
    limit: 5 of 100 containers of tensorflow/libtensorflow_cc.so.2
10-of-100 on a100: no
    reason: in 10 of 100 containers of its kernels, it has sm_70; none of these runs on 8.0
5-jit on a100: native sm_80
    limit: some containers of its kernels have no machine code that runs on 8.0: the driver compiles their kernels
95-jit on a100: ptx-jit compute_70
    reason: in 95 of 100 containers of its kernels, it has no machine code that runs on 8.0

--- A7: below the oldest entry of its list, whatever code there is

list-80 on v100: no
    reason: TensorFlow ignores GPUs below 8.0, the lowest target of this build

--- B: drivers

kepler on k80: no
    reason: CUDA 12.5.1, which the wheel is made with, needs driver 525.60.13, and 470 was the last driver for
kepler-ptx-7.8 on k80: no
    reason: PTX 7.8 of its kernels needs driver 520.61.05, and 470 was the last driver for this GPU
kepler-ptx-7.4 on k80: ptx-jit compute_35
    limit: driver 470.42.01 or newer, and 470 is the last driver that knows this GPU
blackwell on rtx5090: native sm_120
    limit: driver 570.86.16 or newer with the open kernel modules
    never: MLIR
    never: NCCL
    never: CUDA
    never: XLA
cuda-10.1 on v100: native sm_70
    limit: driver 418.39 or newer

--- E and F: XLA, the toolkit, and a cuDNN that the wheel tells no more of than `9`

cuda-11.8 on h100: native sm_90
    limit: XLA leaves compiling to the driver: CUDA 11.8, which the wheel is made with, does not know sm_90a
2.20-cuda-12.5 on rtx5090: ptx-jit compute_90
    limit: XLA ends the program where it compiles: `LLVM ERROR: PTX version
    limit: the cuDNN 9 that is installed must be 9.7 or newer, to have code for 12.0
cuda-12.6.2 on h100: native sm_90
    limit: can compile clamping wrongly
cuda-12.6.3 on h100: native sm_90
    never: clamping
cuda-13 on v100: native sm_70
    limit: CUDA 13.0, which the wheel is made with, does not compile for it
1.15 on gtx680: native sm_30
    limit: XLA ignores this GPU: it uses no GPU below 3.5

--- G: features of AMD's targets, and TensorFlow's list of them

xnack on mi250x: native gfx90a:xnack+
    reason: where the GPU runs with xnack+
gfx1102 on rx7600: native gfx1102
    limit: it is not known whether TensorFlow 2.20.0 uses gfx1102 at all
gfx1103 on radeon-780m: no
    reason: TensorFlow 2.20 ignores GPUs of gfx1103
gfx1100 on rx7900xtx: native gfx1100
    limit: it is not known whether TensorFlow 2.15.0 uses gfx1100 at all

--- a release without a row

nightly on rtx3080: native sm_86
    limit: it is not known which GPUs TensorFlow 2.99.0.dev1 ignores
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A line of the table, and the words below it by what they are of."""

    wheel: str
    gpu: str
    runs: str
    by: str
    words: dict[str, list[str]]


def cases(table: str) -> list[Case]:
    found: list[Case] = []
    for line in table.splitlines():
        kind, _, text = line.strip().partition(": ")
        if line.startswith(" "):
            found[-1].words.setdefault(kind, []).append(text)
        elif line and not line.startswith("---"):
            (name, _, card), (runs, _, by) = kind.partition(" on "), text.partition(" ")
            found.append(Case(wheel=name, gpu=card, runs=runs, by=by, words={}))
    return found


@pytest.mark.parametrize("case", cases(CASES), ids=lambda case: f"{case.wheel} on {case.gpu}")
def test_a_gpu_runs_a_wheel_as_the_rules_say(case: Case) -> None:
    found = asked(WHEELS[case.wheel], case.gpu)
    told = "\n".join(found.all_limits)
    assert (found.runs, found.by) == (case.runs, case.by), found.reason
    assert set(case.words) <= {"reason", "limit", "never", "pin"}
    for kind, text in (("reason", found.reason), ("limit", told)):
        assert [word for word in case.words.get(kind, ()) if word not in text] == [], text
    assert [word for word in case.words.get("never", ()) if word in told] == [], told
    assert list(found.pins) == case.words.get("pin", [])
    assert "\n" not in found.reason
    assert found.all_limits == () or found.runs != "no"
    assert len(set(found.all_limits)) == len(found.all_limits)


def test_every_wheel_of_the_table_is_asked_about() -> None:
    assert {case.wheel for case in cases(CASES)} == set(WHEELS)


@pytest.mark.parametrize("release", OFFICIAL)
@pytest.mark.parametrize(
    ("accelerator", "target"), [(row.accelerator, one) for row in KNOWLEDGE.architectures for one in row.targets]
)
def test_the_rows_and_the_wheel_itself_tell_the_same_of_every_gpu(
    release: str, accelerator: str, target: str
) -> None:
    known = (one for one in KNOWLEDGE.gpus.values() if (one.accelerator, one.target) == (accelerator, target))
    card = next(known, Gpu(gpu=target, accelerator=accelerator, target=target, source=()))
    rows = facts_of_release(KNOWLEDGE, KNOWLEDGE.releases[release], KNOWLEDGE.accelerators[accelerator])
    measured = facts_of_wheel(KNOWLEDGE, OFFICIAL[release])
    by_rows, by_wheel = serve(KNOWLEDGE, card, rows), serve(KNOWLEDGE, card, measured)
    assert (by_wheel.runs, by_wheel.by, by_wheel.pins) == (by_rows.runs, by_rows.by, by_rows.pins)
    if by_rows.runs != "no":
        assert by_wheel.driver == by_rows.driver
        for word in ("NCCL", "MLIR", "XLA", "is older than this GPU"):
            assert (word in "".join(by_wheel.all_limits)) == (word in "".join(by_rows.all_limits)), word


# --- libraries ------------------------------------------------------------------------------------------------------


def verdicts(inspection: Inspection, name: str) -> dict[str, LibraryService]:
    return {one.path: one for one in library_verdicts(KNOWLEDGE, gpu(name), inspection)}


def test_each_library_is_judged_and_says_which_containers_lack_the_gpu() -> None:
    found = verdicts(TF_2_18, "rtx5090")
    lacking = Containers(sass=tuple(HOPPER.split()), count=1)
    assert {path: (one.runs, one.containers, one.lacking) for path, one in found.items()} == {
        CC: ("ptx-jit", 279, (lacking,)),
        FRAMEWORK: ("ptx-jit", 3, (lacking,)),
        INTERNAL: ("ptx-jit", 1, ()),
    }
    assert all(one.lacking == () for one in verdicts(TF_2_18, "rtx3080").values())


def test_a_library_for_other_gpus_is_seen_though_the_wheel_as_a_whole_runs() -> None:
    swapped = wheel(library(CC, "278: sm_80"), library(FRAMEWORK, "3: sm_120"), info=built("12.8.0", "9"))
    found = verdicts(swapped, "a100")
    assert (found[CC].runs, found[FRAMEWORK].runs) == ("native", "no")
    assert "3 of 3 containers of tensorflow/libtensorflow_framework.so.2" in "\n".join(
        asked(swapped, "a100").all_limits
    )


def test_libraries_without_gpu_code_are_not_listed_and_relocatable_code_is() -> None:
    found = verdicts(wheel(library(CC), library(INTERNAL, relocatable=RELOCATABLE)), "rtx3080")
    assert {path: (one.runs, one.containers) for path, one in found.items()} == {INTERNAL: ("no", 0)}
    assert "relocatable" in found[INTERNAL].reason


@pytest.mark.parametrize(
    ("path", "own"),
    [
        *((path, True) for path in (
            CC, INTERNAL, "tensorflow/compiler/tf2tensorrt/_pywrap_py_utils.so",
            "tensorflow/python/profiler/internal/_pywrap_profiler_plugin.so", "tensorflow/libcudart_stub.so",
            "ctranslate2.libs/libctranslate2-1b2c3d4e.so.4.4.0",
        )),
        *((path, False) for path in (
            "tensorflow.libs/libcudart-1b2c3d4e.so.12", "nvidia/cudnn/lib/libcudnn_ops.so.9",
            "tensorflow/include/external/local_config_rocm/rocm/rocm/lib/librccl.so",
            "tensorflow/librccl.so.1.0.60000", "tensorflow/libnccl.so.2", "tensorflow/libcufft.so.11",
            "tensorrt_libs/libnvinfer.so.8", "tensorflow/libcublasLt.so.12", "tensorflow/libMIOpen.so.1",
        )),
    ],
)  # fmt: skip
def test_which_libraries_are_tensorflows_own_is_told_by_their_paths(path: str, own: bool) -> None:
    assert bool(own_libraries(KNOWLEDGE, [library(path)])) is own


def test_the_first_row_that_matches_counts_and_an_overlays_come_before() -> None:
    shipped = "rows:\n- {paths: 'a/.*', what: x, source: s}\n"
    mine = "rows:\n- {paths: 'a/mine.*', own: true, what: x, source: s}\n"
    knowledge = KnowledgeBase({"wheel_libraries": [("shipped.yaml", shipped), ("mine.yaml", mine)]})
    found = own_libraries(knowledge, [library("a/mine.so"), library("a/other.so"), library("b/mine.so")])
    assert [one.path for one in found] == ["a/mine.so", "b/mine.so"]


def test_what_is_carried_along_says_nothing_of_the_wheel() -> None:
    carried = library("tensorflow.libs/librccl-1a2b.so.1", "1: gfx90a gfx942")
    nccl = library("nvidia/nccl/lib/libnccl.so.2", "400: sm_50 sm_120 compute_120")
    beside = wheel(library(CC, "280: sm_86"), nccl, info=built("12.5.1", "9", "sm_86"))
    assert asked(beside, "rtx5090").runs == "no"
    assert verdicts(beside, "rtx5090")[nccl.path].own is False
    assert verdicts(beside, "rtx5090")[nccl.path].runs == "native"
    assert asked(wheel(library(CC), carried, name="tensorflow-cpu"), "mi250x").reason == "it has no GPU code"


ONE_OF = {
    "a/libquant_cuda118.so": "9: sm_70 sm_86",
    "a/libquant_cuda128.so": "9: sm_86 sm_120",
    "a/libquant_rocm64.so": "9: gfx1100",
}


def test_of_libraries_of_which_one_is_loaded_the_best_decides() -> None:
    several = wheel(library("a/libquant_cpu.so"), *(library(*one) for one in ONE_OF.items()), name="quant")
    several = replace(several, build_info=None)
    blackwell = asked(several, "rtx5090")
    assert (blackwell.runs, blackwell.by) == ("native", "sm_120")
    assert blackwell.reason.endswith("its libraries, for cuda118, cuda128: this code is in those for cuda128")
    assert asked(several, "rtx3080").reason.endswith("cuda128: this code is in those for cuda118, cuda128")
    assert asked(several, "rx7900xtx").reason.endswith("for rocm64: this code is in those for rocm64")
    old = asked(several, "gtx1080")
    assert old.runs == "no"
    assert old.reason.endswith("one of its libraries, for cuda118, cuda128: none of these has code for this GPU")


def test_one_library_with_a_number_is_no_choice() -> None:
    single = wheel(library("a/libquant_cuda118.so", "9: sm_70"), library("a/b.so", "9: sm_70 sm_120"), name="quant")
    assert facts_of_wheel(KNOWLEDGE, single).choices == {}
    assert asked(single, "rtx5090").runs == "no"


def add_on(*requires: str, needed: str = "libtensorflow_framework.so.2") -> Inspection:
    alone = wheel(replace(library("tensorflow_text/_ops.so"), needed=(needed,)), name="tensorflow-text")
    return replace(alone, build_info=None, metadata=replace(alone.metadata, requires_dist=requires))


def test_an_add_on_without_gpu_code_runs_beside_what_brings_its_libraries() -> None:
    found = add_on("numpy", 'tensorflow-cpu<2.22; extra == "cpu"', 'tensorflow<2.22,>=2.21; python_version > "3.8"')
    assert brought_by(KNOWLEDGE, found) == {"libtensorflow_framework.so.2": "tensorflow<2.22,>=2.21"}
    answered = asked(found, "rtx5090")
    assert answered.unjudged == "has no GPU code of its own, and runs beside tensorflow<2.22,>=2.21"
    text = answer(KNOWLEDGE, answered, Style(io.StringIO()), wheel="tensorflow-text 2.21.1")
    assert "tensorflow-text 2.21.1 has no GPU code of its own" in text
    assert "does not run" not in text


def test_a_library_of_nobody_is_brought_by_nobody() -> None:
    assert brought_by(KNOWLEDGE, add_on("tensorflow", needed="libother.so.1")) == {}
    assert brought_by(KNOWLEDGE, add_on("numpy")) == {}
    assert asked(add_on("numpy"), "rtx5090").unjudged == "has no GPU code of its own"
    assert not asked(CPU_2_18, "rtx5090").unjudged, "TensorFlow itself needs code for a GPU"


# --- what the wheel says of itself ----------------------------------------------------------------------------------


def test_a_release_is_known_by_the_version_without_its_local_part() -> None:
    assert facts_of_wheel(KNOWLEDGE, BLACKWELL).release is KNOWLEDGE.releases["2.20"]
    assert facts_of_wheel(KNOWLEDGE, ROCM_2_14).release is KNOWLEDGE.releases["2.14"]


def test_what_is_no_tensorflow_has_no_release() -> None:
    other = replace(wheel(library("torch/lib/libtorch_cuda.so", "9: sm_86"), name="torch"), build_info=None)
    assert facts_of_wheel(KNOWLEDGE, other).release is None
    assert asked(other, "rtx3080").runs == "native"


@pytest.mark.parametrize(
    ("inspection", "accelerator"),
    [
        (TF_2_18, "cuda"),
        (ROCM_2_14, "rocm"),
        (CPU_2_18, None),
        (wheel(library(CC), info={"is_rocm_build": True}), "rocm"),
        (wheel(library(CC), name="tensorflow-rocm", version="2.14.0"), "rocm"),
        # What it has counts before what it says.
        (wheel(library(CC, "9: gfx90a"), info={"is_cuda_build": True}), "rocm"),
    ],
)
def test_whose_code_a_wheel_has_is_told_by_the_code_else_by_its_words(
    inspection: Inspection, accelerator: str | None
) -> None:
    found = facts_of_wheel(KNOWLEDGE, inspection).accelerator
    assert (found.accelerator if found else None) == accelerator


def told(inspection: Inspection, name: str = "rtx5090") -> str:
    return "".join(asked(inspection, name).all_limits)


def test_the_wheels_own_requirements_count_and_not_those_of_its_release() -> None:
    bare = replace(TF_2_18, metadata=replace(TF_2_18.metadata, requires_dist=()))
    assert facts_of_wheel(KNOWLEDGE, bare).brought == {}
    assert facts_of_wheel(KNOWLEDGE, bare).version_of("cudnn") == "9"
    assert "9.3.0.75" not in told(bare)
    assert "CUDA 12.5, which the wheel is made with" in told(bare)
    newer = replace(TF_2_18, metadata=replace(TF_2_18.metadata, requires_dist=("nvidia-cudnn-cu12==9.8.0.87",)))
    assert "cuDNN" not in told(newer)
    major = replace(TF_2_18, metadata=replace(TF_2_18.metadata, requires_dist=("nvidia-cuda-runtime-cu12>=12.1",)))
    assert "CUDA 13" not in told(major, "gtx1080")


def test_the_toolkit_is_whole_if_the_wheel_names_only_its_major_version() -> None:
    old = wheel(library(CC, "9: sm_70 compute_70"), version="2.2.0", info={"cuda_version_number": "10"})
    assert facts_of_wheel(KNOWLEDGE, old).version_of("cuda") == "10.1"
    assert "CUDA 10.1, which the wheel is made with, is older than this GPU" in told(old, "rtx3090")


def test_generated_kernels_that_nobody_looked_for_are_those_of_the_official_wheel_with_that_list() -> None:
    unread = replace(TF_2_18, libraries=tuple(replace(one, embedded=None) for one in TF_2_18.libraries))
    assert "1149 kernels" in told(unread)
    other = {**(unread.build_info or {}), "cuda_compute_capabilities": ["sm_80", "compute_90"]}
    assert "MLIR" not in told(replace(unread, build_info=other))


def test_a_tensorflow_without_xla_has_no_limits_of_xla() -> None:
    without = told(replace(TF_2_18, traces={XLA_TRACE: ()}))
    assert "CUDA 12.5, which comes with the wheel, is older than this GPU: its libraries may fail" in without
    assert "XLA" not in without
    assert "XLA" in told(replace(TF_2_18, traces={XLA_TRACE: (CC,)}))


def test_a_damaged_library_is_a_limit() -> None:
    damaged = replace(TF_2_18.libraries[0], problems=("its section table is cut off",))
    assert f"{CC} is damaged" in told(replace(TF_2_18, libraries=(damaged,)), "rtx3080")


@pytest.mark.parametrize(
    "words",
    [
        {"cuda_version": "twelve", "cudnn_version": 9, "cuda_compute_capabilities": ["", "sm_9999", None, "8.0"]},
        {"cuda_version": ["12"], "cudnn_version": "\x1b[31m9", "cuda_compute_capabilities": "sm_80"},
        {"cuda_version": "", "cudnn_version": "9" * 400, "cuda_compute_capabilities": {}},
    ],
)
def test_nonsense_in_what_a_wheel_says_of_itself_is_no_version(words: dict[str, object]) -> None:
    found = asked(replace(TF_2_18, build_info=words), "rtx5090")
    assert found.runs == "ptx-jit"
    assert "\x1b" not in "".join(found.all_limits)


SPELLINGS = [f"{number}{letter}" for number in (35, 80, 87, 90, 120) for letter in ("", "a", "f")]
IMAGES = [f"{kind}_{one}" for kind in ("sm", "compute") for one in SPELLINGS]
IMAGES += ["gfx90a", "gfx90a:xnack+", "gfx1100", "kind-64"]
groups = st.lists(st.sampled_from(IMAGES), max_size=4, unique=True).map(lambda words: f"3: {' '.join(words)}")
text = st.text(max_size=12) | st.sampled_from(["12.5.1", "9", "11.8", "==12.5", ">=9,<10", "nvidia-cudnn-cu12"])


@given(
    held=st.lists(groups, max_size=4),
    said=st.dictionaries(
        st.sampled_from(["cuda_version", "cudnn_version", "is_rocm_build", "cuda_compute_capabilities"]),
        text | st.booleans() | st.lists(text, max_size=3),
    ),
    requires=st.lists(
        st.tuples(st.sampled_from(["nvidia-cudnn-cu12", "nvidia-cuda-nvcc-cu12", ""]), text), max_size=3
    ),
    version=st.sampled_from(["2.18.0", "2.99.0", "1.15.5", "0"]),
    name=st.sampled_from(["rtx5090", "k80", "jetson-agx-orin", "mi250x", "h100"]),
    driver=st.sampled_from([None, "470.1", "580.65.06", "weird"]),
)
def test_whatever_a_wheel_holds_and_says_is_answered(
    held: list[str],
    said: dict[str, object],
    requires: list[tuple[str, str]],
    version: str,
    name: str,
    driver: str | None,
) -> None:
    one = library(CC, *held, relocatable=RELOCATABLE)
    strange = wheel(one, info=said, version=version, requires=["".join(parts) for parts in requires])
    machine_of_it = Host(drivers={"cuda": driver}) if driver else None
    found = asked(strange, name, machine_of_it)
    assert found.reason
    assert (found.by == "") == (found.runs == "no")
    assert library_verdicts(KNOWLEDGE, gpu(name), strange) is not None


# --- this machine ---------------------------------------------------------------------------------------------------


def here(driver: str, *, wsl: bool = False, architecture: str = "x86_64") -> Host:
    return Host(drivers={"cuda": driver}, wsl=wsl, architecture=architecture)


@pytest.mark.parametrize(
    ("inspection", "name", "host", "runs", "words"),
    [
        (
            TF_2_18,
            "rtx3080",
            here("550.54.14"),
            "native-same-major",
            "525.60.13 or newer; this machine has 550.54.14",
        ),
        (TF_2_18, "rtx3080", here("470.57.02"), "no", "driver 470.57.02 is too old: CUDA 12.5.82"),
        (TF_2_18, "rtx3080", here("470.57.02"), "no", "525.60.13 or newer (data-centre GPUs"),
        (TF_2_18, "rtx5090", here("565.1"), "no", "a GPU of 12.0 needs 570.86.16 or newer"),
        (TF_2_13, "h100", here("515.43.04"), "no", "PTX 7.8 of its kernels needs 520.61.05"),
        (TF_2_13, "rtx3080", here("515.43.04"), "native-same-major", "this machine has 515.43.04"),
        (TF_2_20, "h100", here("535.54.03"), "native", "too old for PTX 8.5 of the kernels that MLIR generated"),
        (TF_2_20, "h100", here("535.54.03"), "native", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        (TF_2_20, "h100", here("560.28.03"), "native", "this machine has 560.28.03"),
        # On WSL2 the driver is that of Windows, with numbers of its own.
        (TF_2_18, "rtx3080", here("526.0", wsl=True), "no", "needs 527.41 or newer"),
        (TF_2_18, "rtx3080", here("528.1", wsl=True), "native-same-major", "driver 527.41 of Windows or newer"),
        (TF_2_18, "rtx3080", here("550.1", architecture="aarch64"), "no", "this machine is aarch64"),
        # The board's own: no table holds for it.
        (ORIN, "jetson-agx-orin", here("35.4.1", architecture="aarch64"), "native", ""),
        (ROCM_2_14, "mi250x", here("550.1"), "native", ""),
    ],
)
def test_the_driver_of_this_machine_is_judged_where_the_gpu_is_its_own(
    inspection: Inspection, name: str, host: Host, runs: str, words: str
) -> None:
    found = asked(inspection, name, host)
    assert found.runs == runs
    assert words in "\n".join([found.reason, *found.all_limits])


def test_a_driver_that_does_not_answer_is_a_limit() -> None:
    broken = Host(troubles={"cuda": "NVML: driver/library version mismatch"}, architecture="x86_64")
    found = asked(TF_2_18, "rtx3080", broken)
    assert found.starts_at_once
    assert "version mismatch" in "".join(found.all_limits)


# --- made-up knowledge ----------------------------------------------------------------------------------------------


def test_an_accelerator_that_does_not_exist_needs_no_change_of_code(made_up: Desk) -> None:
    knowledge = made_up.knowledge
    one = wheel(library(CC, "9: sm_86"), version="9.9.1", info=built("20.1.0", "9.0.0", "sm_86"))
    facts = facts_of_wheel(knowledge, one)
    gpu, slab = (gpus_named(knowledge, [name])[0] for name in ("one", "slab"))
    assert [serve(knowledge, name, facts).runs for name in (gpu, slab)] == ["native", "no"]
    rows = facts_of_release(knowledge, knowledge.releases["9.9"], knowledge.accelerators["xpu"])
    assert serve(knowledge, slab, rows).runs == "native"


# --- on the command line --------------------------------------------------------------------------------------------


def test_a_document_says_of_a_gpu_how_it_runs_the_wheel_and_each_library() -> None:
    row = gpu_json(asked(TF_2_18, "rtx5090"), library_verdicts(KNOWLEDGE, gpu("rtx5090"), TF_2_18))
    document = json.loads(json.dumps(row, default=as_document))
    names = ["name", "compute_capability", "runs", "by", "reason", "limits", "libraries"]
    assert list(document) == names
    assert (document["name"], document["compute_capability"], document["runs"]) == ("rtx5090", "12.0", "ptx-jit")
    first = document["libraries"][0]
    assert {"path", "own", "runs", "reason", "containers", "lacking"} <= set(first)
    assert [(one["sass"], one["ptx"], one["count"]) for one in first["lacking"]] == [(HOPPER.split(), [], 1)]
    assert gpu_json(asked(ROCM_2_14, "mi250x"))["gfx"] == "gfx90a"
    assert "libraries" not in gpu_json(asked(ROCM_2_14, "mi250x"))


def test_people_read_the_answer_then_why_then_the_limits() -> None:
    style = Style(io.StringIO())
    found = asked(TF_2_18, "rtx3080")
    first = answer(KNOWLEDGE, found, style, wheel="this wheel")
    assert first == "GeForce RTX 3080 (8.6): this wheel runs on it without a build, because of sm_80."
    assert answer(KNOWLEDGE, found, style, wheel="it", release="2.18.0").startswith(
        "GeForce RTX 3080 (8.6) with TensorFlow 2.18.0: it runs"
    )
    assert [line for line, _ in reasons(found, style)] == [
        "  why: it has sm_80: code for 8.0 runs on 8.6, of the same major version",
        "  needs: driver 525.60.13 or newer",
    ]


def test_only_a_gpu_that_is_asked_for_as_this_machines_own_brings_its_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = LocalGpu(name="NVIDIA GeForce RTX 3080", accelerator="cuda", target="8.6")
    mine = Host(gpus=(card,), drivers={"cuda": "470.57.02"}, architecture="x86_64")
    monkeypatch.setattr(machine, "local_host", lambda: mine)
    assert [(one.gpu.gpu, one.host) for one in gpu_text.requested_gpus(KNOWLEDGE, ["local"])] == [("rtx3080", mine)]
    both = gpu_text.requested_gpus(KNOWLEDGE, ["rtx5090,local", "rtx5090"])
    assert [(one.gpu.gpu, one.host) for one in both] == [("rtx5090", None), ("rtx3080", mine)]
    assert [one.host for one in gpu_text.requested_gpus(KNOWLEDGE, ["rtx3080", "local"])] == [None]
    monkeypatch.setattr(machine, "local_host", Host)
    with pytest.raises(ProfileError, match="no GPU on this machine"):
        gpu_text.requested_gpus(KNOWLEDGE, ["local"])
