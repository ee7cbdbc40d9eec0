"""Decide how code runs on a GPU: natively, by SASS of the same major version, by JIT from PTX, or not at all.

The rules are NVIDIA's (CUDA C++ Programming Guide, binary and PTX compatibility; family-specific code from CUDA 12.9)
and AMD's (a code object is for one gfx target). Versions are compared as pairs of numbers: 12.0 is above 9.0.

A container runs as well as its best image. `combine` judges a library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from tfdock.types import Capability
from tfdock.wheel.facts import Containers, Library

Runs = Literal["native", "native-same-major", "ptx-jit", "no"]  #: Best first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How code runs on a GPU. `by` is the image that is used (`sm_80`, `compute_90`, `gfx90a`), or empty."""

    runs: Runs
    by: str
    reason: str

    @property
    def level(self) -> int:
        """The place of `runs` in `Runs`: 0 is best."""
        return get_args(Runs).index(self.runs)

    @property
    def starts_at_once(self) -> bool:
        """Whether nothing has to be compiled at the first start."""
        return self.runs in ("native", "native-same-major")


def code_of(targets: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two lists, SASS and PTX, that TensorFlow makes from a list of targets, each in numerical order.

    `sm_86` is SASS, `compute_86` is SASS and PTX. Raises ValueError for a text that is not a capability.
    """
    wanted = sorted({Capability.parse(target) for target in targets})
    sass = dict.fromkeys(f"sm_{capability.number}" for capability in wanted)
    return tuple(sass), tuple(f"compute_{capability.number}" for capability in wanted if capability.ptx)


def runs(
    gpu: Capability, sass: Collection[str], ptx: Collection[str] = (), *, embedded: Collection[str] = ()
) -> Verdict:
    """Judge the images `sm_…` and `compute_…` for a GPU of that capability; ValueError for any other image.

    `embedded` are the capabilities (`8.7`) of embedded GPUs: their SASS runs on no other GPU, and they run no other
    SASS.
    """
    images = sorted(Capability.parse(image) for image in sass)
    texts = sorted(Capability.parse(image) for image in ptx)
    exact = [image for image in images if (image.major, image.minor) == (gpu.major, gpu.minor)]
    if exact:
        by = f"sm_{exact[0].number}"
        return Verdict(runs="native", by=by, reason=f"it has {by}: code for exactly this GPU")
    akin = [image for image in images if _binary_compatible(image, gpu, embedded)]
    if akin:
        by = f"sm_{akin[-1].number}"
        reason = f"it has {by}: code for {akin[-1].dotted} runs on {gpu.dotted}, of the same major version"
        return Verdict(runs="native-same-major", by=by, reason=reason)
    # PTX comes last: the driver compiles it only where no machine code fits.
    usable = [text for text in texts if _can_be_compiled_for(text, gpu, embedded)]
    if usable:
        by = f"compute_{usable[-1].number}"
        reason = f"it has no machine code that runs on {gpu.dotted}; the driver compiles {by} at the first start"
        return Verdict(runs="ptx-jit", by=by, reason=reason)
    return Verdict(runs="no", by="", reason=_why_not(gpu, images, texts, embedded))


def runs_target(target: str, code: Collection[str]) -> bool:
    """Return whether GPUs of a target run code for these targets; True if a target cannot be parsed."""
    if target.startswith("gfx"):
        return runs_gfx(target.partition(":")[0], code).runs != "no"
    try:
        return runs(Capability.parse(target), *code_of(code)).runs != "no"
    except ValueError:
        return True


def runs_gfx(gpu: str, code: Collection[str]) -> Verdict:
    """Judge code objects (`gfx90a`, `gfx90a:xnack+`) for a GPU of a gfx target."""
    # Code without features comes first: it runs in every mode of the GPU.
    for target in sorted(code, key=len):
        name, *features = target.split(":")
        if name == gpu:
            condition = f", where the GPU runs with {', '.join(features)}" if features else ""
            return Verdict(runs="native", by=target, reason=f"it has {target}: code for exactly this GPU{condition}")
    have = f"it has code for {', '.join(sorted(code))} only" if code else "it has no GPU code"
    return Verdict(runs="no", by="", reason=f"{have}, and such code runs only on the target that it was compiled for")


def _binary_compatible(image: Capability, gpu: Capability, embedded: Collection[str]) -> bool:
    """Return whether SASS of another minor version runs: upwards within a major, but not to or from embedded GPUs.

    The same holds for code with the letter `f`.
    """
    # `a` is for one capability alone, and SASS goes neither to nor from embedded GPUs (CUDA C++ Programming Guide).
    if image.suffix == "a" or image.dotted in embedded or gpu.dotted in embedded:
        return False
    return image.major == gpu.major and image.minor <= gpu.minor


def _can_be_compiled_for(text: Capability, gpu: Capability, embedded: Collection[str]) -> bool:
    """Return whether the driver can compile PTX for a GPU.

    It compiles PTX for the same or any newer GPU; with `a`, for its own capability only; with `f`, within its family.
    """
    if (text.major, text.minor) == (gpu.major, gpu.minor):
        return True
    # Family-specific PTX stays within its family as SASS does (CUDA 12.9).
    if text.suffix:
        return _binary_compatible(text, gpu, embedded)
    return (text.major, text.minor) < (gpu.major, gpu.minor)


def _why_not(gpu: Capability, images: list[Capability], texts: list[Capability], embedded: Collection[str]) -> str:
    versions = sorted({(image.major, image.minor) for image in (*images, *texts)})
    if not versions:
        return "it has no GPU code"
    lowest = "{}.{}".format(*versions[0])
    if (gpu.major, gpu.minor) < versions[0]:
        return f"its oldest code is for {lowest}, and neither machine code nor PTX runs on an older GPU"
    if gpu.dotted in embedded:
        return f"{gpu.dotted} is an embedded GPU: it runs only code for exactly {gpu.dotted}, and the wheel has none"
    names = ", ".join(str(image) for image in (*images, *texts))
    return f"it has {names}; none of these runs on {gpu.dotted}, and there is no PTX to compile for it"


# --- containers -----------------------------------------------------------------------------------------------------

_FEW = 10  #: If fewer than one in this many containers run badly, only the limits change, not the verdict.


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePart:
    """Containers of one library (`path` in the wheel) with the same contents, and a GPU's verdict on them.

    `linked`: the device linker made them; its output contains machine code only.
    """

    path: str
    held: Containers
    verdict: Verdict
    linked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedVerdict:
    """How a GPU runs many containers: `verdict` for all of them, and the `weaker` parts, worst first.

    `parts` are all containers, including the device linker's.
    """

    verdict: Verdict
    weaker: tuple[CodePart, ...]
    parts: tuple[CodePart, ...]


def runs_container(
    gpu: str, held: Containers, *, capabilities: bool, embedded: Collection[str] = ()
) -> Verdict | None:
    """Judge a container for a compute capability (`8.6`) or a gfx target; None if it has no code of that family."""
    if not capabilities:
        return runs_gfx(gpu, held.amdgpu) if held.amdgpu else None
    if not held.sass and not held.ptx:
        return None
    return runs(Capability.of_gpu(gpu), held.sass, held.ptx, embedded=embedded)


def parts_of(library: Library, judge: Callable[[Containers], Verdict | None]) -> Iterator[CodePart]:
    """Yield the loadable containers of a library, each with its verdict; stubs have no kernel and are left out.

    `judge` returns None for containers without code for that family of GPUs. A container is output of the device
    linker if the library has relocatable code, and this container has no PTX but others of the library have.
    """
    real = [held for held in library.loadable.containers if not held.stub]
    # If no container has PTX, missing PTX says nothing about the linker.
    some_linked = bool(library.relocatable.containers) and any(held.ptx for held in real)
    for held in real:
        if container_verdict := judge(held):
            linked = some_linked and bool(held.sass) and not held.ptx
            yield CodePart(path=library.path, held=held, verdict=container_verdict, linked=linked)


def combine(parts: Iterable[CodePart]) -> CombinedVerdict | None:
    """Return the verdict on all containers; None without containers.

    The runtime chooses code from each container alone, so a union of all targets would hide a container without the
    code. A container holds the kernels of one source file; TensorFlow has about 280. If a tenth of the containers or
    more run badly or not at all, the verdict is this worse result. If fewer do, the verdict gets a limit. Containers
    of the device linker are ignored if there are others: they are NCCL, which a single GPU never calls.
    """
    all_parts = tuple(parts)
    counted = [part for part in all_parts if not part.linked] or all_parts
    if not counted:
        return None
    total = sum(part.held.count for part in counted)
    levels = sorted({part.verdict.level for part in counted}, reverse=True)
    held = {level: sum(part.held.count for part in counted if part.verdict.level >= level) for level in levels}
    worst = next(level for level in levels if _FEW * held[level] >= total)
    # Of the groups at this level, the largest gives the verdict.
    chosen = max((part for part in counted if part.verdict.level == worst), key=lambda part: part.held.count)
    weaker = [part for part in all_parts if part.verdict.level > worst]
    weaker.sort(key=lambda part: part.verdict.level, reverse=True)
    return CombinedVerdict(verdict=chosen.verdict, weaker=tuple(weaker), parts=all_parts)
