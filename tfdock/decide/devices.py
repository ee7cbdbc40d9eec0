"""GPUs by name, and lists of targets in order."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tfdock.model import Capability
from tfdock.read.knowledge import Gpu, KnowledgeBase


def find_gpu(knowledge: KnowledgeBase, name: str) -> Gpu | None:
    """The row of a GPU by short name (`rtx3080`) or by the name its driver prints; None if unknown."""
    row = knowledge.gpus.get(gpu_key(name))
    if row is not None:
        return row
    # Drivers of some years put the vendor before the name and others do not.
    vendors = [
        f"{accelerator.vendor.lower()} " for accelerator in knowledge.accelerators.values() if accelerator.vendor
    ]

    def plain(text: str) -> str:
        return next((text[len(one) :] for one in vendors if text.startswith(one)), text)

    wanted = plain(name.lower())
    return next(
        (gpu for gpu in knowledge.gpus.values() if any(plain(one.lower()) == wanted for one in gpu.names)), None
    )


def gpu_key(name: str) -> str:
    """How short names are written: `RTX 3080` is `rtx3080`."""
    return re.sub(r"[^a-z0-9-]", "", name.lower())


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
