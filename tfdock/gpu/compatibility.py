"""Find out how a GPU runs a wheel (natively, by JIT from PTX, or not at all), and the wheel's limits on this GPU.

The official wheel (known from rows) and inspected wheels are judged the same way. The verdict is about TensorFlow's
own kernels. Bundled libraries get their own verdict. `coverage` asks for all known targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tfdock.gpu.devices import example_gpu, judge_containers, title
from tfdock.gpu.gpu_facts import GpuFacts
from tfdock.gpu.limits import Limits
from tfdock.gpu.opened_libraries import is_own
from tfdock.gpu.verdict import CombinedVerdict, Runs, Verdict, combine, parts_of
from tfdock.knowledge.fits import exact_target
from tfdock.knowledge.gpu_rows import Architecture, Gpu
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Host
from tfdock.wheel.facts import Containers, Library

if TYPE_CHECKING:
    from tfdock.wheel.inspection import Inspection

#: How code runs, for people; best first.
WORDS: Mapping[Runs, str] = {
    "native": "natively",
    "native-same-major": "natively, by code of the same major version",
    "ptx-jit": "by JIT from PTX",
    "no": "not",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility(Verdict):
    """How a GPU runs a wheel.

    `limits` are sentences about things that work less well. `driver` says which drivers run the wheel. `pins` are pip
    requirements that remove some of the limits.
    """

    gpu: Gpu
    limits: tuple[str, ...] = ()
    driver: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    refused: bool = False  #: Something is missing that is not GPU code.
    #: Limits with which TensorFlow uses the GPU, but fails at the first operations.
    fails: tuple[str, ...] = ()
    unjudged: str = ""  #: Why the verdict on the GPU is unknown: `has no GPU code of its own`.

    @property
    def all_limits(self) -> tuple[str, ...]:
        """The limits, then the sentences about drivers: every GPU needs a driver."""
        return (*self.limits, *self.driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryService:
    """How a GPU runs one library of a wheel."""

    path: str  #: The library in the wheel.
    own: bool  #: Whether it is TensorFlow's own.
    runs: Runs  #: How the GPU runs it.
    by: str  #: The code that runs; empty if none does.
    reason: str  #: Why.
    containers: int  #: The number of containers of GPU code that have kernels.
    lacking: tuple[Containers, ...] = ()  #: The libraries without code for the GPU.


def serve(knowledge: KnowledgeBase, gpu: Gpu, facts: GpuFacts, host: Host | None = None) -> Compatibility:
    """Judge a wheel for a GPU. With `host`, the driver and CPU of this machine are checked too.

    If the wheel loads only one of several libraries, the library that is best for the GPU decides.
    """
    if not facts.choices:
        return _serve(knowledge, gpu, facts, host)
    # Libraries for another vendor's GPUs are not among the choices.
    choices = {choice: own for choice, own in facts.choices.items() if _combined_verdict(knowledge, gpu, own).parts}
    choices = choices or dict(facts.choices)
    answers = {choice: _serve(knowledge, gpu, replace(facts, own=own), host) for choice, own in choices.items()}
    best = min(answers.values(), key=lambda answer: answer.level)
    able = [choice for choice, answer in answers.items() if answer.runs == best.runs]
    loaded = f"it loads only one of its libraries, for {', '.join(answers)}"
    if best.runs == "no":
        return replace(best, reason=f"{loaded}: none of these has code for this GPU")
    which = f"this code is in those for {', '.join(able)}"
    return replace(best, reason=f"{best.reason}; {loaded}: {which}")


def _serve(knowledge: KnowledgeBase, gpu: Gpu, facts: GpuFacts, host: Host | None) -> Compatibility:
    combined = _combined_verdict(knowledge, gpu, facts.own)
    limits = Limits(knowledge=knowledge, gpu=gpu, facts=facts, combined=combined, host=host or Host())
    machine, ignored = limits.machine(), limits.ignored()
    against = refusal = machine or ignored or limits.driver()
    if not machine and combined.verdict.runs == "no":
        against = _why_not(knowledge, gpu, facts, combined, ignored)
    unjudged = facts.unjudged
    against = f"it {unjudged}" if unjudged else against
    if against:
        return Compatibility(gpu=gpu, runs="no", by="", reason=against, refused=bool(refusal), unjudged=unjudged)
    sentences, pins = limits.of()
    return Compatibility(
        gpu=gpu,
        runs=combined.verdict.runs,
        by=combined.verdict.by,
        reason=_reason(combined),
        limits=sentences,
        fails=tuple(limits.failing_kernels()),
        # Apart from the limits: every GPU needs a driver, so this need is not a limit.
        driver=tuple(limits.of_driver()),
        pins=pins,
    )


def library_verdicts(knowledge: KnowledgeBase, gpu: Gpu, inspection: Inspection) -> tuple[LibraryService, ...]:
    """Return a verdict for each library of a wheel that has GPU code. The verdict depends on this code alone."""
    # Relocatable code alone counts as well, to say why it never runs.
    libraries = (library for library in inspection.libraries if library.loadable.images or library.relocatable.images)
    judged = ((library.path, _combined_verdict(knowledge, gpu, [library])) for library in libraries)
    return tuple(
        LibraryService(
            path=path,
            own=is_own(knowledge, path),
            runs=combined.verdict.runs,
            by=combined.verdict.by,
            reason=_reason(combined),
            containers=sum(part.held.count for part in combined.parts),
            lacking=tuple(part.held for part in combined.parts if part.verdict.runs == "no"),
        )
        for path, combined in judged
    )


def _combined_verdict(knowledge: KnowledgeBase, gpu: Gpu, libraries: Sequence[Library]) -> CombinedVerdict:
    """Return the verdict on all kernels; without `parts` if there is none that any GPU of this family could run."""
    parts = (part for library in libraries for part in parts_of(library, partial(judge_containers, knowledge, gpu)))
    if combined := combine(parts):
        return combined
    none = Verdict(runs="no", by="", reason=_no_kernels(knowledge, libraries))
    return CombinedVerdict(verdict=none, weaker=(), parts=())


def _reason(combined: CombinedVerdict) -> str:
    """Return the verdict's reason, with the number of affected containers if others run better."""
    # Count the same containers as `combine` does, so that the numbers fit the verdict.
    counted = [part for part in combined.parts if not part.linked] or combined.parts
    better = [part for part in counted if part.verdict.level < combined.verdict.level]
    if not better or combined.verdict.starts_at_once:
        return combined.verdict.reason
    total, others = (sum(part.held.count for part in parts) for parts in (counted, better))
    return f"in {total - others} of {total} containers of its kernels, {combined.verdict.reason}"


def _why_not(knowledge: KnowledgeBase, gpu: Gpu, facts: GpuFacts, combined: CombinedVerdict, ignored: str) -> str:
    if combined.parts:
        return f"{_reason(combined)}; {ignored}" if ignored else _reason(combined)
    accelerator, wanted = facts.accelerator, knowledge.accelerators[gpu.accelerator]
    # A wheel for ROCm does have GPU code, so "no GPU code" would be wrong for an NVIDIA GPU.
    if accelerator is not None and accelerator is not wanted:
        return f"its GPU code is for {accelerator.title}, and this GPU needs a wheel for {wanted.title}"
    return combined.verdict.reason


def _no_kernels(knowledge: KnowledgeBase, libraries: Sequence[Library]) -> str:
    """Return why libraries have no code that any GPU of this family could run."""
    with_code = [library for library in libraries if library.loadable.images or library.relocatable.images]
    if not with_code:
        return "it has no GPU code"
    if not any(library.loadable.images for library in with_code):
        return "its GPU code is relocatable: it is input for the device linker, and no driver can load it"
    known = (image for library in with_code for image in library.loadable.images if image.kind != "unknown")
    images = {image.target.partition(":")[0] for image in known}
    families = [row for row in knowledge.accelerators.values() if any(row.matches(image) for image in images)]
    # A library with only stubs has targets but no kernels.
    real = any(not image.stub for library in with_code for image in library.loadable.containers)
    if families and real:
        return f"its GPU code is for {' and '.join(row.title for row in families)}"
    return "its GPU code has no kernels" if images else "its GPU code has an unknown format"


# --- every target ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How the GPUs of one target run a wheel."""

    name: str  #: A well-known GPU, or the target if no GPU is known.
    accelerator: str  #: Such as `cuda`.
    target: str  #: The compute capability, such as `8.6`, or gfx target.
    architecture: str  #: The generation.
    embedded: bool  #: Whether these GPUs are in embedded systems: such GPUs run only code for exactly their target.
    runs: Runs  #: How they run the wheel.
    reason: str  #: Why.
    limits: tuple[str, ...]  #: The limits, and the required driver.


def coverage(knowledge: KnowledgeBase, facts: GpuFacts) -> tuple[Coverage, ...]:
    """Judge each target of each accelerator whose GPUs can run the wheel at all; empty if no GPU can."""
    pairs = ((row, target) for row in knowledge.architectures for target in row.targets)
    rows = [_coverage_of_target(knowledge, facts, row, target) for row, target in pairs]
    # A wheel for CUDA has no code for AMD's GPUs. A row for each AMD target would hide the useful rows.
    served = {row_coverage.accelerator for row_coverage in rows if row_coverage.runs != "no"}
    return tuple(row_coverage for row_coverage in rows if row_coverage.accelerator in served)


def _coverage_of_target(knowledge: KnowledgeBase, facts: GpuFacts, row: Architecture, target: str) -> Coverage:
    known = example_gpu(knowledge, row, target)
    written = exact_target(knowledge.accelerators[row.accelerator], target)
    # A target without a known GPU is judged in the same way.
    gpu = known or Gpu(gpu=written, accelerator=row.accelerator, target=target, source=())
    answer = serve(knowledge, gpu, facts)
    return Coverage(
        name=title(knowledge, known) if known else target,
        accelerator=row.accelerator,
        target=target,
        architecture=row.architecture,
        embedded=target in row.embedded,
        runs=answer.runs,
        reason=answer.reason,
        limits=answer.limits,
    )


def coverage_rows(rows: Sequence[Coverage]) -> list[tuple[str, str, str]]:
    """Return a short table. Each row has a generation, its targets with the same verdict, and this verdict."""
    targets: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        count = len(row.limits)
        limits = f", {count} limit{'s' if count > 1 else ''}" if count else ""
        targets.setdefault((row.architecture, f"{WORDS[row.runs]}{limits}"), []).append(row.target)
    return [(architecture, ", ".join(alike), words) for (architecture, words), alike in targets.items()]
