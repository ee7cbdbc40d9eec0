"""GPUs by name, and lists of targets in order."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tfdock.model import Capability
from tfdock.read.knowledge import Gpu, KnowledgeBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a GPU's name means: one row; or rows of several targets that all bear it, one a target; or nothing.

    `near` are short names that look like it, the most alike first, where nothing was found.
    """

    gpu: Gpu | None = None
    candidates: tuple[Gpu, ...] = ()
    near: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1024)  # the same few names, for every way out that is tried
def matching(knowledge: KnowledgeBase, name: str) -> Match:
    """What `name` means: a short name (`rtx3080`), a driver's (`NVIDIA GeForce RTX 3080`), or words out of either.

    Words left out must not matter: `3080` is found because all that bear it have one target; `RTX 6000` stands for
    three generations, and those are the candidates.
    """
    # A word such as `rtx` or `super` alone is no name, though many bear it.
    generic = re.fullmatch(r"[^\W\d]*", name.strip())
    # Few write the memory, and drivers rarely do: a size is left out where it says nothing.
    for text in dict.fromkeys((_squeezed(name), _squeezed(_MEMORY.sub(" ", name)))):
        for rows in _readings(knowledge, text):
            by_target = {gpu.target: gpu for gpu in reversed(rows)}
            if len(by_target) == 1:
                return Match(gpu=rows[0])
            if by_target and not generic:
                return Match(candidates=tuple(gpu for gpu in rows if by_target[gpu.target] is gpu))
    near = difflib.get_close_matches(gpu_key(name), knowledge.gpus, n=3, cutoff=0.6)
    return Match(near=tuple(near))


def find_gpu(knowledge: KnowledgeBase, name: str) -> Gpu | None:
    """The row of a GPU by whatever people or drivers call it; None where that is unknown, or means several."""
    return knowledge.gpus.get(gpu_key(name)) or matching(knowledge, name).gpu


def gpu_key(name: str) -> str:
    """How short names are written: `RTX 3080` is `rtx3080`."""
    return re.sub(r"[^a-z0-9-]", "", name.lower())


_MEMORY = re.compile(r"\b\d+ ?gi?b\b", re.IGNORECASE)


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _readings(knowledge: KnowledgeBase, text: str) -> Iterator[list[Gpu]]:
    """Rows that `text` may mean, the strictest reading first: our name, a driver's name, words out of them."""
    vendors = [_squeezed(row.vendor) for row in knowledge.accelerators.values() if row.vendor]
    yield [gpu for gpu in knowledge.gpus.values() if _squeezed(gpu.gpu) == text]
    # Drivers of some years put the vendor before the name and others do not.
    spellings = {text, *(f"{vendor}{text}" for vendor in vendors)}
    spellings |= {text.removeprefix(vendor) for vendor in vendors if text.startswith(vendor)}
    yield [gpu for gpu in knowledge.gpus.values() if any(_squeezed(name) in spellings for name in gpu.names)]
    ranked = [
        (left, order, gpu)
        for order, gpu in enumerate(knowledge.gpus.values())
        if (left := _words_left(gpu, text)) is not None
    ]
    yield [gpu for _, _, gpu in sorted(ranked, key=lambda one: one[:2])]


def _words_left(gpu: Gpu, text: str) -> int | None:
    """How many words of the GPU's name are over when `text` is made of some of them, in order; None if it is not."""
    counts = []
    for name in (gpu.gpu, *gpu.names):
        words = re.findall(r"[a-z0-9]+", name.lower())
        # Characters of `text` that are made so far -> how many words that took.
        made = {0: 0}
        for word in words:
            made |= {at + len(word): used + 1 for at, used in made.items() if text.startswith(word, at)}
        if len(text) > 1 and len(text) in made:
            counts.append(len(words) - made[len(text)])
    return min(counts, default=None)


def sorted_targets(targets: Iterable[str]) -> tuple[str, ...]:
    """Without repetition, and in numerical order; `compute_86` makes `sm_86` superfluous."""
    unique = set(targets)
    try:
        capabilities = {Capability.parse(target) for target in unique}
    except ValueError:
        return tuple(sorted(unique, key=lambda target: (len(target), target)))
    with_ptx = {(one.major, one.minor, one.suffix) for one in capabilities if one.ptx}
    return tuple(
        str(one) for one in sorted(capabilities) if one.ptx or (one.major, one.minor, one.suffix) not in with_ptx
    )


def target_number(target: str) -> str:
    """`86` of `sm_86` and `compute_86`; a gfx target is its own number."""
    return target.partition("_")[2] or target
