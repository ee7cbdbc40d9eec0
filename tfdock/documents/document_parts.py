"""Parts of several documents: problems, choices, wheels, GPU code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

Runs = Literal["native", "native-same-major", "ptx-jit", "no"]


class SuggestionJson(TypedDict):
    """A change of the profile that was tried: the profile so changed is accepted."""

    text: str  #: The change in words.
    change: Mapping[str, object]  #: Field of the profile, dotted, to its new value; null leaves the field out.
    keep: Sequence[str]  #: What stays as it was.
    untested: bool  #: Whether it works only by allowing what nobody is known to have tested.
    question: str  #: The question that it asks first, since somebody may not want the change. Empty for a fix.


class ProblemJson(TypedDict):
    """One thing that is wrong. Texts that are not known are empty, places that are not known null."""

    code: str  #: A stable code in kebab-case; `tfdock explain CODE` says more.
    message: str  #: What is wrong.
    why: str  #: Who wanted what, and what would happen.
    fix: str  #: What to do; several fixes, any of which is enough, are joined by `; or `.
    ways: Sequence[SuggestionJson]  #: Changes of the profile that were tried.
    severity: Literal["error", "warning"]  #: How bad it is.
    file: str | None  #: The file that it is about.
    line: int | None  #: The line in that file, from 1.
    column: int | None  #: The column in that line, from 1.
    field: str | None  #: The field of the profile, dotted, such as `gpus[1]`.
    #: The first errors of a compiler or linker, three at most, such as `a/b.cc:3:10: error: expected ';'`.
    compiler_errors: Sequence[str]


class RefusedDocument(TypedDict):
    """What any command prints instead of its answer when it ends with an error."""

    problems: Sequence[ProblemJson]  #: Why there is no answer.


class ChoiceJson(TypedDict):
    """One value that was chosen."""

    field: str  #: What was chosen, such as `cuda` or `wheel.name`.
    value: str  #: The value.
    source: str  #: Who said so: `profile`, `default`, `lock`, or a row of the knowledge base.
    reason: str  #: Why this value.


class MachineJson(TypedDict):
    """The machine that a build is sized for."""

    cpus: int  #: Cores.
    memory: int  #: Bytes of memory.


class TrustJson(TypedDict):
    """Whose results a build may use, and who may use its results."""

    domain: str  #: The trust domain: `release`, or one of the source's own.
    reasons: Sequence[str]  #: Why it is not `release`, or what shares `release` on purpose.
    shared: bool  #: Whether `--trust` shares the cache of releases on purpose.


class WheelFileJson(TypedDict):
    """A wheel by its file's name."""

    file: str  #: The file's name.
    sha256: str  #: 64 hexadecimal digits.
    size: int  #: Bytes.


class WheelPathJson(TypedDict):
    """A wheel by its path on this machine."""

    path: str  #: The file's path; in the report of a matrix its name alone.
    sha256: str  #: 64 hexadecimal digits.
    size: int  #: Bytes.


class InstallableWheelJson(WheelPathJson):
    """A wheel on this machine, and how to install it."""

    install: str  #: The command for pip, with the wheel's extra for its own CUDA.


class TargetsJson(TypedDict):
    """The targets of GPU code."""

    sass: Sequence[str]  #: NVIDIA machine code, such as `sm_86`.
    ptx: Sequence[str]  #: NVIDIA PTX, such as `compute_90`.
    amdgpu: Sequence[str]  #: AMD code objects, such as `gfx90a`.


class CodeImagesJson(TypedDict):
    """All code images of one kind and target."""

    kind: Literal["sass", "ptx", "amdgpu", "unknown"]  #: The kind of code; `unknown`: no public tool can name it.
    target: str  #: The target, such as `sm_86`.
    count: int  #: How many images there are.
    size: int  #: Bytes, as they lie in the file.
    packing: Sequence[Literal["raw", "lz4", "zstd", "zlib"]]  #: How they are packed.
    isa: str  #: The newest PTX ISA version among them, such as `8.3`; empty for other kinds.


class CodeContainersJson(TypedDict):
    """Containers that hold code for the same targets; for one kernel the runtime chooses from one container."""

    sass: Sequence[str]  #: NVIDIA machine code in each of them.
    ptx: Sequence[str]  #: NVIDIA PTX in each of them.
    amdgpu: Sequence[str]  #: AMD code objects in each of them.
    count: int  #: How many containers there are.
    size: int  #: Bytes.
    stub: bool  #: Whether none of their images has a kernel.


class GpuCodeJson(TargetsJson):
    """GPU code in detail."""

    images: Sequence[CodeImagesJson]  #: Code images by kind and target.
    containers: Sequence[CodeContainersJson]  #: Containers by what they hold.


class LibraryServiceJson(TypedDict):
    """How a GPU runs one library of a wheel."""

    path: str  #: The library in the wheel.
    own: bool  #: Whether it is TensorFlow's own.
    runs: Runs  #: How the GPU runs it.
    by: str  #: Which code runs; empty where none does.
    reason: str  #: Why.
    containers: int  #: Containers of GPU code that have kernels.
    lacking: Sequence[CodeContainersJson]  #: Those that hold nothing for the GPU.


class GpuAnswerJson(TypedDict):
    """How a GPU runs a wheel."""

    name: str  #: The GPU.
    compute_capability: NotRequired[str]  #: The compute capability of an NVIDIA GPU, such as `8.6`.
    gfx: NotRequired[str]  #: The target of an AMD GPU, such as `gfx90a`.
    target: NotRequired[str]  #: The target of a GPU of another accelerator.
    #: `native`: has code for it; `native-same-major`: older code of its generation; `ptx-jit`: compiles at the first
    #: start; `no`: does not run.
    runs: Runs
    by: str  #: Which code of the wheel runs; empty where none does.
    reason: str  #: Why.
    limits: Sequence[str]  #: What does not work, and which driver is needed.
    libraries: NotRequired[Sequence[LibraryServiceJson]]  #: How it runs each library.


class FindingJson(TypedDict):
    """What went wrong, by a log."""

    id: str  #: The known failure.
    stage: str  #: The part of a build or start in which it happens.
    confidence: str  #: `high`, `medium` or `low`.
    line: int  #: The line of the log, from 1.
    excerpt: str  #: The lines of the log that show it.
    cause: str  #: Why it happened.
    fix: str  #: What to do.
    source: str  #: Where it is known from.
    count: int  #: How often it is in the log.
    values: Mapping[str, str]  #: What was read from the lines, by name.
    asked: str  #: What of the profile has to do with it; empty without a profile.
    misfit: str  #: Where the log and the profile disagree; empty where they agree.
    changes: Sequence[SuggestionJson]  #: Changes of the profile that may help.


class LoggedFindingJson(FindingJson):
    """A finding of one of several logs."""

    file: str  #: The log.
