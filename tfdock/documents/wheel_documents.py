"""Documents of a wheel: its contents, its verification, and the speed of an installed wheel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tfdock.diagnose.diagnosis import Finding
from tfdock.documents.document_parts import GpuAnswerJson, GpuCodeJson, TargetsJson
from tfdock.errors import Problem
from tfdock.gpu.compatibility import Coverage
from tfdock.verify.checks import Check
from tfdock.wheel.wheel import RecordProblem


class LibraryJson(TypedDict):
    """A library in a wheel."""

    own: bool  #: Whether the library is TensorFlow's own, not a bundled third-party library.
    path: str  #: The library's path in the wheel.
    size: int  #: Bytes.
    machine: str  #: The processor, such as `x86_64`.
    soname: str | None  #: The library's SONAME.
    needed: Sequence[str]  #: The libraries that this library needs.
    runpath: Sequence[str]  #: The entries of RUNPATH.
    rpath: Sequence[str]  #: The entries of RPATH.
    glibc: str | None  #: The newest version of glibc that the library needs.
    libstdcxx: str | None  #: The newest GLIBCXX version that the library needs.
    debug_info: bool  #: Whether the library has debug information.
    executable_stack: bool  #: Whether the library requires an executable stack.
    text_relocations: bool  #: Whether the library has relocations in its code.
    gpu_code: GpuCodeJson  #: GPU code that the runtime loads.
    relocatable_code: GpuCodeJson  #: GPU code that only the device linker reads; it is never loaded.
    embedded_code: GpuCodeJson | None  #: GPU code that was found in other data; null if tfdock did not search.
    problems: Sequence[str]  #: The damaged parts of the library.


class WheelRecordJson(TypedDict):
    """The comparison of the wheel's RECORD with its files."""

    ok: bool  #: Whether every file matches its line in RECORD.
    problems: Sequence[RecordProblem]  #: The files that do not match.


class ManylinuxJson(TypedDict):
    """Which systems the libraries fit."""

    fits: str | None  #: The most compatible platform tag; null if unknown.
    reason: NotRequired[str]  #: Why no tag is known.
    #: The platform tags in the wheel's name that the libraries do not fit; for each tag, the reasons.
    obstacles: NotRequired[Mapping[str, Sequence[str]]]


class InspectDocument(TypedDict):
    """`tfdock inspect`: the contents of a wheel."""

    name: str  #: The project's name, normalised.
    version: str  #: The version, normalised.
    build: str  #: The build tag; empty without one.
    python_tag: str  #: The tag, such as `cp311`.
    abi_tag: str  #: The tag, such as `cp311`.
    platform_tag: str  #: The tag, such as `manylinux_2_17_x86_64`.
    size: int  #: Bytes of the file.
    sha256: str  #: 64 hexadecimal digits.
    members: int  #: The number of files in the wheel.
    gpu_code: GpuCodeJson  #: GPU code of TensorFlow's own libraries.
    unread: Mapping[str, str]  #: Libraries of other systems, which are not read: path -> `Windows` or `macOS`.
    libraries: Sequence[LibraryJson]  #: All libraries.
    build_info: Mapping[str, object] | None  #: The build versions that the wheel states; null if it states none.
    record: WheelRecordJson  #: RECORD against the files.
    #: Folders (`nvidia/cusolver/lib`) that pip fills with libraries for GPUs, and that the wheel does not search.
    unsearched: Sequence[str]
    tag_problem: str | None  #: How the tags in WHEEL differ from the file's name.
    requires_python: str | None  #: The Python versions that the wheel allows.
    requires_dist: Sequence[str]  #: The requirements of the wheel.
    extras: Mapping[str, Sequence[str]]  #: The packages that each extra adds.
    manylinux: ManylinuxJson  #: Which systems the libraries fit.
    gpu: NotRequired[GpuAnswerJson]  #: With one `--gpu`: how the GPU runs the wheel.
    gpus: NotRequired[Sequence[GpuAnswerJson]]  #: With `--gpu`: how each GPU runs the wheel.


class VerifyDocument(TypedDict):
    """`tfdock verify`: the checks of a wheel. For a damaged file, the keys `name` to `libraries` are absent."""

    wheel: str  #: The file's name.
    sha256: str | None  #: 64 hexadecimal digits; null for a damaged file.
    profile: str | None  #: The profile that the wheel was compared with; null without a profile.
    build_id: str | None  #: The profile's build id; null without a profile.
    checks: Sequence[Check]  #: The checks, in order.
    told_by_wheel: Sequence[str]  #: Checks whose results come from the wheel's own code.
    runtime: str | None  #: The image in which the wheel was tried.
    problems: Sequence[Problem]  #: Why the wheel could not be tried.
    name: NotRequired[str]  #: The project's name, normalised.
    version: NotRequired[str]  #: The version, normalised.
    python_tag: NotRequired[str]  #: The Python tag, such as `cp311`.
    abi_tag: NotRequired[str]  #: The ABI tag, such as `cp311`.
    platform_tag: NotRequired[str]  #: The platform tag, such as `manylinux_2_17_x86_64`.
    size: NotRequired[int]  #: Bytes of the file.
    coverage: NotRequired[Sequence[Coverage]]  #: How known GPUs run the wheel.
    libraries: NotRequired[Sequence[LibraryJson]]  #: All libraries.
    #: Folders (`nvidia/cusolver/lib`) that pip fills with libraries for GPUs, and that the wheel does not search.
    unsearched: Sequence[str]
    gpu_code: TargetsJson | None  #: GPU code of TensorFlow's own libraries; null for a damaged file.
    diagnosis: Sequence[Finding]  #: The diagnosis of a failed trial's log.
