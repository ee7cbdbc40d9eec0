"""How a GPU runs a wheel: natively, by JIT from PTX, or not at all; and what is narrower than that.

One judgement for the official wheel, of which knowledge rows tell, and for any other, which was inspected. Its
verdict is that of TensorFlow's own kernels; libraries that are only carried along are judged on their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfdock.gpu.evidence import (
    XLA_TRACE,
    Evidence,
    built_with,
    evidence_of,
    evidence_of_release,
    is_own,
    own_libraries,
)
from tfdock.gpu.limits import Limits, judge
from tfdock.gpu.verdict import CodePart, CombinedVerdict, Runs, parts_of, together
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Host
from tfdock.wheel.facts import Containers, Library
from tfdock.wheel.inspection import Inspection

__all__ = [
    "XLA_TRACE",
    "Compatibility",
    "Evidence",
    "LibraryService",
    "built_with",
    "evidence_of",
    "evidence_of_release",
    "is_own",
    "library_verdicts",
    "own_libraries",
    "serve",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """How a GPU runs a wheel. `by` is the image it uses (`sm_80`, `compute_90`, `gfx90a`), empty where it runs none.

    `limits` are what is narrower than that, a sentence each, and `driver` which drivers do; what pip is told by
    `pins` helps against some.
    """

    gpu: Gpu
    runs: Runs
    by: str
    reason: str
    limits: tuple[str, ...] = ()
    driver: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    refused: bool = False
    """It is not the code that is lacking."""

    @property
    def told(self) -> tuple[str, ...]:
        """The limits, and the driver, which is one on every GPU."""
        return (*self.limits, *self.driver)

    @property
    def starts_at_once(self) -> bool:
        """Whether nothing is compiled at the first start."""
        return self.runs in ("native", "native-same-major")


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryService:
    """How a GPU runs one library of a wheel. `own`: it is TensorFlow's.

    `containers` says how many there are, stubs left out; `lacking` are those that hold nothing for the GPU.
    """

    path: str
    own: bool
    runs: Runs
    by: str
    reason: str
    containers: int
    lacking: tuple[Containers, ...] = ()


def serve(knowledge: KnowledgeBase, gpu: Gpu, evidence: Evidence, host: Host | None = None) -> Compatibility:
    """Judge a wheel for a GPU. `host` is this machine, where the GPU is one of it: its driver and CPU count then."""
    found = _together(knowledge, gpu, evidence.own)
    limits = Limits(knowledge, gpu, evidence, found, host)
    against = limits.machine()
    refused = bool(against or limits.ignored() or limits.driver())
    if not against and (found is None or found.verdict.runs == "no"):
        against = _why_not(knowledge, gpu, evidence, found, limits.ignored())
    against = against or limits.ignored() or limits.driver()
    if against or found is None:
        return Compatibility(gpu=gpu, runs="no", by="", reason=against, refused=refused)
    told = tuple(limits.of())
    return Compatibility(
        gpu=gpu,
        runs=found.verdict.runs,
        by=found.verdict.by,
        reason=_reason(found),
        limits=told,
        driver=tuple(limits.of_driver()),
        pins=tuple(limits.pins),
    )


def library_verdicts(knowledge: KnowledgeBase, gpu: Gpu, inspection: Inspection) -> tuple[LibraryService, ...]:
    """The libraries of a wheel that have GPU code, each judged on its code alone."""
    held = (one for one in inspection.libraries if one.loadable.images or one.relocatable.images)
    return tuple(_of_library(knowledge, gpu, one) for one in held)


def _of_library(knowledge: KnowledgeBase, gpu: Gpu, library: Library) -> LibraryService:
    found = _together(knowledge, gpu, [library])
    parts = found.parts if found else ()
    return LibraryService(
        path=library.path,
        own=is_own(knowledge, library.path),
        runs=found.verdict.runs if found else "no",
        by=found.verdict.by if found else "",
        reason=_reason(found) if found else _no_kernels(knowledge, [library]),
        containers=sum(part.held.count for part in parts),
        lacking=tuple(part.held for part in parts if part.verdict.runs == "no"),
    )


def _together(knowledge: KnowledgeBase, gpu: Gpu, libraries: Iterable[Library]) -> CombinedVerdict | None:
    accelerator = knowledge.accelerators[gpu.accelerator]

    def parts(library: Library) -> Iterable[CodePart]:
        return parts_of(library, lambda held: judge(knowledge, accelerator, gpu.target, held))

    return together(part for library in libraries for part in parts(library))


def _reason(found: CombinedVerdict) -> str:
    """The verdict's own; with how many containers it is about, where others run better."""
    counted = [part for part in found.parts if not part.linked] or found.parts
    better = [part for part in counted if part.verdict.runs != found.verdict.runs and part not in found.weaker]
    if not better or found.verdict.starts_at_once:
        return found.verdict.reason
    total, others = (sum(part.held.count for part in parts) for parts in (counted, better))
    return f"in {total - others} of {total} containers of its kernels, {found.verdict.reason}"


def _why_not(
    knowledge: KnowledgeBase, gpu: Gpu, evidence: Evidence, found: CombinedVerdict | None, ignored: str
) -> str:
    if found is not None:
        return f"{_reason(found)}; {ignored}" if ignored else _reason(found)
    accelerator, wanted = evidence.accelerator, knowledge.accelerators[gpu.accelerator]
    if accelerator is not None and accelerator is not wanted:
        return f"its GPU code is for {_title(accelerator)}, and this GPU needs a wheel for {_title(wanted)}"
    return _no_kernels(knowledge, evidence.own)


def _title(accelerator: Accelerator) -> str:
    return accelerator.titles.get(accelerator.toolkit or "", accelerator.accelerator)


def _no_kernels(knowledge: KnowledgeBase, libraries: Iterable[Library]) -> str:
    """Why libraries have nothing to choose from, for any GPU of the family."""
    held = [library for library in libraries if library.loadable.images or library.relocatable.images]
    if not held:
        return "it has no GPU code"
    if not any(library.loadable.images for library in held):
        return "its GPU code is relocatable: input of the device linker, which no driver loads"
    images = {image.target for library in held for image in library.loadable.images if image.kind != "unknown"}
    families = [row for row in knowledge.accelerators.values() if any(row.matches(_bare(one)) for one in images)]
    real = any(not one.stub for library in held for one in library.loadable.containers)
    if families and real:
        return f"its GPU code is for {' and '.join(_title(row) for row in families)}"
    return "its GPU code has no kernels" if images else "its GPU code is of a kind that is not known"


def _bare(target: str) -> str:
    return target.partition(":")[0]
