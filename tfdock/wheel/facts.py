"""The facts found in a wheel, as frozen values without judgement, and the defects that make a wheel invalid.

Sizes are in bytes. Targets are spelt as usual: `sm_90a` for SASS, `compute_90` for PTX, `gfx90a:xnack+` for AMD code
objects. Here `compute_90` means only PTX; as a target for a compiler, it means PTX and machine code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

from tfdock.types import Capability

#: The kind of a code image. `unknown`: no public tool can name the kind; the image is still counted.
Kind = Literal["sass", "ptx", "amdgpu", "unknown"]

Packing = Literal["raw", "lz4", "zstd", "zlib"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """All code images of one kind and target."""

    kind: Kind  #: The kind of code; `unknown`: no public tool can name it.
    target: str  #: The target, such as `sm_86`.
    count: int  #: How many images there are.
    size: int  #: Bytes in the file.
    packing: tuple[Packing, ...]  #: How the images are packed.
    isa: str = ""  #: The newest PTX ISA version of the images, such as `8.3`; empty for other kinds.

    def plus(self, other: Images) -> Images:
        """Add the numbers of two groups of GPU code with the same kind and target."""
        return Images(
            kind=self.kind,
            target=self.target,
            count=self.count + other.count,
            size=self.size + other.size,
            # Sorted, because two threads read the libraries: the result must not depend on which was first.
            packing=tuple(sorted({*self.packing, *other.packing})),
            isa=max(self.isa, other.isa, key=isa_order),
        )


@dataclass(slots=True, kw_only=True)
class FoundCode:
    """A container (CUDA) or bundle (HIP): its position in the file, and its images by kind and target.

    `exact`: whether `end` is the container's real end, not only the end of the read part. `kernels`: whether any
    image has, or may have, a kernel. `problem` is a phrase that names the damage.
    """

    family: Literal["cuda", "hip"]
    start: int
    end: int
    exact: bool = True
    images: dict[tuple[Kind, str], Images] = field(default_factory=dict)
    kernels: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """Containers (CUDA: fat binaries, HIP: offload bundles) that hold code for the same targets.

    The runtime chooses a kernel's code from one container. If a container has no code for a GPU, its kernels cannot
    run there, whatever other containers have. A stub, such as nvcc's device-link stubs, holds no kernels.
    """

    sass: tuple[str, ...] = ()  #: NVIDIA machine code in each container.
    ptx: tuple[str, ...] = ()  #: NVIDIA PTX in each container.
    amdgpu: tuple[str, ...] = ()  #: AMD code objects in each container.
    count: int = 1  #: How many containers there are.
    size: int = 0  #: Bytes.
    stub: bool = False  #: Whether no image in the containers has a kernel.

    @property
    def key(self) -> tuple[object, ...]:
        """The facts that all these containers have in common."""
        return (self.sass, self.ptx, self.amdgpu, self.stub)

    def plus(self, other: Containers) -> Containers:
        """Return the sum of two values with the same targets."""
        return replace(self, count=self.count + other.count, size=self.size + other.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCode:
    """The GPU code of a library: its images sorted by kind and target, and its containers by their contents."""

    images: tuple[Images, ...] = ()
    containers: tuple[Containers, ...] = ()

    def targets(self, kind: Kind) -> tuple[str, ...]:
        """Return the targets of a kind, in numerical order."""
        return tuple(image.target for image in self.images if image.kind == kind)

    @property
    def sass(self) -> tuple[str, ...]:
        """`sm_…`, in numerical order."""
        return self.targets("sass")

    @property
    def ptx(self) -> tuple[str, ...]:
        """`compute_…`, in numerical order."""
        return self.targets("ptx")

    @property
    def amdgpu(self) -> tuple[str, ...]:
        """`gfx…`, in order."""
        return self.targets("amdgpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """An ELF file of a wheel.

    `machine` is as in platform tags (`x86_64`, `aarch64`), or `machine-<number>`. `needed` are DT_NEEDED in order,
    `runpath` and `rpath` their entries. `versions` are the symbol versions that it requires of each needed library
    (`libc.so.6` -> `GLIBC_2.17`). `glibc` and `libstdcxx` are the newest of these (`GLIBCXX_3.4.21` -> `3.4.21`),
    empty if there are none.

    `loadable` is the GPU code that the runtime registers (.nv_fatbin, .hip_fatbin); `relocatable` (__nv_relfatbin) is
    input of the device linker and never runs; `embedded` is among other data, and the program itself passes it to the
    driver (None: not searched).

    `problems` describes each damage in a sentence; with damage, the facts are incomplete.
    """

    path: str
    size: int
    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]]
    glibc: str = ""
    libstdcxx: str = ""
    debug_info: bool = False
    executable_stack: bool = False
    text_relocations: bool = False
    loadable: GpuCode = GpuCode()
    relocatable: GpuCode = GpuCode()
    embedded: GpuCode | None = None
    problems: tuple[str, ...] = ()


def merged(codes: Iterable[GpuCode]) -> GpuCode:
    """Return the GPU code of several libraries as one value."""
    images: dict[tuple[Kind, str], Images] = {}
    containers: dict[tuple[object, ...], Containers] = {}
    for code in codes:
        for image in code.images:
            old = images.get((image.kind, image.target))
            images[image.kind, image.target] = image.plus(old) if old else image
        for held in code.containers:
            before = containers.get(held.key)
            containers[held.key] = held.plus(before) if before else held
    return GpuCode(
        images=tuple(sorted(images.values(), key=image_order)),
        containers=tuple(sorted(containers.values(), key=container_order)),
    )


def isa_order(isa: str) -> tuple[int, ...]:
    """Return a sort key: `8.10` comes after `8.9`; an empty version first."""
    return tuple(int(part) for part in isa.split(".")) if isa else ()


_KINDS: tuple[Kind, ...] = ("sass", "ptx", "amdgpu", "unknown")


def image_order(image: Images) -> tuple[object, ...]:
    """Return a sort key: SASS before PTX before AMD, each by number."""
    return (_KINDS.index(image.kind), target_order(image.target))


def container_order(container: Containers) -> tuple[object, ...]:
    """Return a sort key: stubs last, the largest counts first."""
    # Stubs last: they have no kernel, and some libraries have more stubs than other containers.
    return (container.stub, -container.count, container.sass, container.ptx, container.amdgpu)


def target_order(target: str) -> tuple[object, ...]:
    """Return a sort key: capabilities by number, other targets by length and letters: `gfx90a` before `gfx1030`."""
    try:
        return (0, Capability.parse(target))
    except ValueError:
        return (1, len(target.partition(":")[0]), target)


#: Every code of a `WheelError`, with its fix.
FIXES: Mapping[str, str] = {
    "wheel-bad-compression": "Build the wheel again with stored or deflated members only.",
    "wheel-bad-metadata": "Build the wheel again with a current setuptools or wheel package.",
    "wheel-bad-name": "Name the file NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl, as the build did.",
    "wheel-bad-rewrite": "Give a PEP 440 version.",
    "wheel-bomb": "Do not unpack this file. If you made it, find out which member is almost all zeros.",
    "wheel-corrupt-member": "Fetch or build the wheel again: it was damaged.",
    "wheel-duplicate-member": "Build the wheel again in an empty folder, so that each file is packed only once.",
    "wheel-encrypted": "Build the wheel without a password: installers cannot read encrypted members.",
    "wheel-header-mismatch": "Do not install this file: two programs may unpack it differently.",
    "wheel-hidden-data": "Do not install this file; build or fetch the wheel again.",
    "wheel-leading-data": "Remove the bytes before the archive, or download the wheel again.",
    "wheel-missing-dist-info": "Build the wheel again: it needs exactly one NAME-VERSION.dist-info folder.",
    "wheel-missing-metadata": "Build the wheel again: its .dist-info folder needs WHEEL and METADATA.",
    "wheel-missing-record": "Build the wheel again: its .dist-info folder needs RECORD.",
    "wheel-name-mismatch": "Rename the file to its original name, the name that the build gave it.",
    "wheel-not-a-zip": "Name a wheel. If this file was a wheel, fetch or build it again.",
    "wheel-overlapping-members": "Do not unpack this file: its members share bytes, as in a zip bomb.",
    "wheel-record-mismatch": "Find out what changed the wheel after it was built; then build it again.",
    "wheel-special-file": "Build the wheel with regular files: wheels cannot carry links or devices.",
    "wheel-tag-mismatch": "Rename the file to its original name, or change its tags with `wheel tags`.",
    "wheel-too-large": "Strip debug information. If somebody else made the file, do not unpack it.",
    "wheel-trailing-data": "Remove the bytes after the archive, or download the wheel again.",
    "wheel-unsafe-path": "Do not install this file. If you made it, pack members under plain relative paths.",
    "wheel-version-mismatch": "Rename the file to its original name, the name that the build gave it.",
}


class WheelError(Exception):
    """A file that is not a valid wheel.

    `code` is a stable kebab-case word (a key of `FIXES`). `message` is a sentence with the member and the conflicting
    values. `fix` is a sentence with the action to take.
    """

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix


def fail(code: str, message: str) -> NoReturn:
    """Raise the `WheelError` with this code and its fix."""
    raise WheelError(code, message, FIXES[code])
