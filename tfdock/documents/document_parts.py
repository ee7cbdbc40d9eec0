"""Parts of several documents: problems, choices, wheels, GPU code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from tfdock.diagnose.diagnosis import Finding
from tfdock.errors import Problem
from tfdock.gpu.compatibility import LibraryService
from tfdock.gpu.verdict import Runs
from tfdock.wheel.facts import Containers, Images

#: The result of a build. `refused`: the profile cannot be built, or the wheel does not fit the profile.
BuildStatus = Literal["built", "pulled", "up-to-date", "refused", "failed", "interrupted"]


class RefusedDocument(TypedDict):
    """The document that any command prints after an error."""

    problems: Sequence[Problem]  #: Why the command could not answer.


class MachineJson(TypedDict):
    """The machine for which the build's limits are computed."""

    cpus: int  #: Cores.
    memory: int  #: Bytes of memory.


class TrustJson(TypedDict):
    """Whose results a build may use, and who may use its results."""

    domain: str  #: The trust domain: `release`, or the name of another domain.
    reasons: Sequence[str]  #: Why the domain is not `release`; with `--trust`, why it would not be.
    shared: bool  #: Whether the user chose to share the cache of releases (`--trust`).


class WheelPathJson(TypedDict):
    """A wheel by its path on this machine."""

    path: str  #: The file's path; in the report of a matrix only its name.
    sha256: str  #: 64 hexadecimal digits.
    size: int  #: Bytes.


class InstallableWheelJson(WheelPathJson):
    """A wheel on this machine, and how to install it."""

    install: str  #: The pip command, with the extra for the wheel's CUDA.


class TargetsJson(TypedDict):
    """The targets of GPU code."""

    sass: Sequence[str]  #: NVIDIA machine code, such as `sm_86`.
    ptx: Sequence[str]  #: NVIDIA PTX, such as `compute_90`.
    amdgpu: Sequence[str]  #: AMD code objects, such as `gfx90a`.


class GpuCodeJson(TargetsJson):
    """GPU code in detail."""

    images: Sequence[Images]  #: The code images: number and size for each kind and target.
    containers: Sequence[Containers]  #: Containers by their contents.


class GpuAnswerJson(TypedDict):
    """How a GPU runs a wheel."""

    name: str  #: The GPU.
    compute_capability: NotRequired[str]  #: The compute capability of an NVIDIA GPU, such as `8.6`.
    gfx: NotRequired[str]  #: The target of an AMD GPU, such as `gfx90a`.
    target: NotRequired[str]  #: The target of a GPU of another accelerator.
    #: `native`: runs code for exactly this GPU; `native-same-major`: runs code for an older GPU of the same major
    #: version; `ptx-jit`: the driver compiles PTX at the first start; `no`: does not run.
    runs: Runs
    by: str  #: The code of the wheel that runs; empty if no code runs.
    reason: str  #: Why.
    limits: Sequence[str]  #: The limits, and the required driver.
    libraries: NotRequired[Sequence[LibraryService]]  #: How the GPU runs each library.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFindingJson(Finding):
    """A finding of one of several logs."""

    file: str  #: The log.
