"""How a wheel runs on every known target: what `inspect` lists and the page of a verification draws."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfdock.gpu.compatibility import serve
from tfdock.gpu.devices import example_gpu, title
from tfdock.gpu.gpu_facts import GpuFacts
from tfdock.gpu.verdict import Runs
from tfdock.knowledge.fits import exact_target
from tfdock.knowledge.gpu_rows import Architecture, Gpu
from tfdock.knowledge.tables import KnowledgeBase

#: How code runs, for people; best first.
WORDS: Mapping[Runs, str] = {
    "native": "natively",
    "native-same-major": "natively, by code of the same major version",
    "ptx-jit": "by JIT from PTX",
    "no": "not",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How the GPUs of one target run a wheel."""

    name: str  #: A GPU that people know, or the target where none is known.
    accelerator: str  #: Such as `cuda`.
    target: str  #: The compute capability, such as `8.6`, or gfx target.
    architecture: str  #: The generation.
    embedded: bool  #: Whether these are GPUs of embedded systems, which run their own code only.
    runs: Runs  #: How they run the wheel.
    reason: str  #: Why.
    limits: tuple[str, ...]  #: What does not work, and which driver is needed.


def coverage(knowledge: KnowledgeBase, facts: GpuFacts) -> tuple[Coverage, ...]:
    """Ask for each target of each accelerator whose GPUs can run the wheel at all; nothing where none can."""
    rows = [
        _coverage_of_target(knowledge, facts, row, target)
        for row in knowledge.architectures
        for target in row.targets
    ]
    # A wheel for CUDA has nothing for AMD's GPUs. A row for each of them would hide the answer.
    served = {row_coverage.accelerator for row_coverage in rows if row_coverage.runs != "no"}
    return tuple(row_coverage for row_coverage in rows if row_coverage.accelerator in served)


def _coverage_of_target(knowledge: KnowledgeBase, facts: GpuFacts, row: Architecture, target: str) -> Coverage:
    known = example_gpu(knowledge, row, target)
    written = exact_target(knowledge.accelerators[row.accelerator], target)
    # A target without a product, or without a row, gets the same question.
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
    """Return a short table: the generation, its targets with the same answer, and that answer with its limits."""
    return [
        (architecture, ", ".join(row.target for row in alike), words)
        for architecture, members in itertools.groupby(rows, key=lambda row: row.architecture)
        for words, alike in _group_by_words(members)
    ]


def _group_by_words(members: Iterable[Coverage]) -> Iterator[tuple[str, list[Coverage]]]:
    """Group targets by the words for how they run, in the order of the words' first use."""
    groups: dict[str, list[Coverage]] = {}
    for row in members:
        count = len(row.limits)
        limits = f", {count} limit{'s' if count > 1 else ''}" if count else ""
        groups.setdefault(f"{WORDS[row.runs]}{limits}", []).append(row)
    yield from groups.items()
