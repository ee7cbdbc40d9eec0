"""How a wheel runs on every known target: what `inspect` lists and the page of a verification draws."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfdock.gpu.compatibility import Evidence, serve
from tfdock.gpu.devices import title
from tfdock.gpu.verdict import Runs
from tfdock.knowledge.fits import exact_target
from tfdock.knowledge.gpu_rows import Architecture, Gpu
from tfdock.knowledge.tables import KnowledgeBase

WORDS: Mapping[Runs, str] = {
    "native": "natively",
    "native-same-major": "natively, by code of the same major version",
    "ptx-jit": "by JIT from PTX",
    "no": "not",
}
"""How code runs, for people; best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How the GPUs of one target run a wheel.

    `target` is the compute capability (`8.6`) or gfx target, `architecture` its generation, `name` a GPU that people
    know it by, or the target where none is known. `embedded` GPUs run their own code only.
    """

    name: str
    accelerator: str
    target: str
    architecture: str
    embedded: bool
    runs: Runs
    reason: str
    limits: tuple[str, ...]


def coverage(knowledge: KnowledgeBase, evidence: Evidence) -> tuple[Coverage, ...]:
    """Ask for each target of each accelerator whose GPUs can run the wheel at all; nothing where none can."""
    every = [_answer(knowledge, evidence, row, target) for row in knowledge.architectures for target in row.targets]
    served = {one.accelerator for one in every if one.runs != "no"}
    return tuple(one for one in every if one.accelerator in served)


def _answer(knowledge: KnowledgeBase, evidence: Evidence, row: Architecture, target: str) -> Coverage:
    known = _known_by(knowledge, row, target)
    written = exact_target(knowledge.accelerators[row.accelerator], target)
    # One that nobody sells yet, or that has no row: the question is the same.
    gpu = known or Gpu(gpu=written, accelerator=row.accelerator, target=target, source=())
    answer = serve(knowledge, gpu, evidence)
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


def _known_by(knowledge: KnowledgeBase, row: Architecture, target: str) -> Gpu | None:
    """The GPU that stands for a target: the row's example, else the first that has it."""
    example = knowledge.gpus.get(row.examples.get(target, ""))
    own = (gpu for gpu in knowledge.gpus.values() if (gpu.accelerator, gpu.target) == (row.accelerator, target))
    return example if example and example.target == target else next(own, None)


def coverage_rows(found: Sequence[Coverage]) -> list[tuple[str, str, str]]:
    """A short table: the generation, those of its targets that run it alike, how and with how many limits."""
    return [
        (architecture, ", ".join(one.target for one in alike), words)
        for architecture, members in itertools.groupby(found, key=lambda one: one.architecture)
        for words, alike in _alike(members)
    ]


def _alike(members: Iterable[Coverage]) -> Iterator[tuple[str, list[Coverage]]]:
    """By what is said of them, in the order in which it is first said."""
    found: dict[str, list[Coverage]] = {}
    for one in members:
        count = len(one.limits)
        limits = f", {count} limit{'s' if count > 1 else ''}" if count else ""
        found.setdefault(f"{WORDS[one.runs]}{limits}", []).append(one)
    yield from found.items()
