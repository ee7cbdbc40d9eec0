"""GPUs by name, and lists of targets in order."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfdock.errors import Problem
from tfdock.knowledge.gpu_rows import Architecture, Gpu
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Capability, LocalGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMatch:
    """What a GPU's name means: one row; or rows of several targets that all bear it, one a target; or nothing.

    `near` are short names that look like it, the most alike first, where nothing was found.
    """

    gpu: Gpu | None = None
    candidates: tuple[Gpu, ...] = ()
    near: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1024)  # the same few names, for every way out that is tried
def matching(knowledge: KnowledgeBase, name: str) -> DeviceMatch:
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
                return DeviceMatch(gpu=rows[0])
            if by_target and not generic:
                return DeviceMatch(candidates=tuple(gpu for gpu in rows if by_target[gpu.target] is gpu))
    near = difflib.get_close_matches(gpu_key(name), knowledge.gpus, n=3, cutoff=0.6)
    return DeviceMatch(near=tuple(near))


def find_gpu(knowledge: KnowledgeBase, name: str) -> Gpu | None:
    """The row of a GPU by whatever people or drivers call it; None where that is unknown, or means several."""
    return knowledge.gpus.get(gpu_key(name)) or matching(knowledge, name).gpu


def local_words(knowledge: KnowledgeBase, gpus: Iterable[LocalGpu]) -> tuple[str, ...]:
    """How to name this machine's GPUs, each once: by our name where the driver's is known, else by their target.

    What the driver says of the target counts: a name may be that of several GPUs, or newer than the rows.
    """
    return tuple(dict.fromkeys(_local_word(knowledge, gpu) for gpu in gpus))


def _local_word(knowledge: KnowledgeBase, gpu: LocalGpu) -> str:
    match = matching(knowledge, gpu.name)
    if gpu.target is None:
        return match.gpu.gpu if match.gpu else gpu.name
    named = next((row.gpu for row in (match.gpu, *match.candidates) if row and row.target == gpu.target), None)
    if named:
        return named
    return str(Capability.of_gpu(gpu.target)) if knowledge.accelerators[gpu.accelerator].capabilities else gpu.target


def unknown_gpu(knowledge: KnowledgeBase, name: str) -> Problem:
    """What to say of a name that is no GPU's, or that of several with different targets."""
    match = matching(knowledge, name)
    names = " or ".join(f"`{one}`" for one in match.near)
    if bare_gpu(knowledge, name):
        message, fix = f"`{name}` is what code is compiled for, and no GPU's name", "`tfdock gpus` lists the names"
    elif is_target(knowledge, name):
        # What is written as a target looks like names that it has nothing to do with.
        message, fix = f"no GPU is known to have the target `{name}`", "`tfdock gpus` lists all, with theirs"
    elif match.candidates:
        which = " or ".join(f"`{gpu.gpu}` ({gpu.target})" for gpu in match.candidates)
        message = f"`{name}` is the name of GPUs with different targets"
        return Problem(code="gpu-ambiguous", message=message, fix=f"say which: {which}")
    else:
        message = f"the GPU `{name}` is not known"
        fix = f"did you mean {names}?" if names else "`tfdock gpus` lists all"
    return Problem(code="gpu-unknown", message=message, fix=fix)


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


def named(knowledge: KnowledgeBase, words: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPU that words together name in full, or those that each of them names; empty where one names none."""
    together = _in_full(knowledge, " ".join(words)) if words else None
    each = [together] if together else [_in_full(knowledge, word) for word in words]
    return () if None in each else tuple(dict.fromkeys(gpu for gpu in each if gpu))


def _in_full(knowledge: KnowledgeBase, name: str) -> Gpu | None:
    """The GPU of that short name, or that driver's name with or without its vendor; `3080` is but a part of one."""
    gpu = find_gpu(knowledge, name)
    if gpu is None:
        return None
    vendor = gpu_key(knowledge.accelerators[gpu.accelerator].vendor)
    names = {_squeezed(one) for one in (gpu.gpu, *gpu.names)}
    return gpu if {_squeezed(name), f"{vendor}{_squeezed(name)}"} & names else None


def search(knowledge: KnowledgeBase, words: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs that have every word in their name, else the one that is meant; all of them where there is no word.

    A target among the words (`8.6`, `sm_86`, `gfx90a`) is not part of a name: the GPU's own must be one of them.
    """
    rows = knowledge.gpus.values()
    targets = [dotted(word) for word in words if is_target(knowledge, word)]
    names = [gpu_key(word) for word in words if not is_target(knowledge, word)]
    if not all(names):
        return ()  # a word without a letter or digit is part of no name
    found = tuple(
        gpu
        for gpu in rows
        if (not targets or gpu.target in targets) and all(name in _searched(gpu) for name in names)
    )
    meant = None if found or targets else find_gpu(knowledge, " ".join(words))
    return (meant,) if meant else tuple(sorted(found, key=lambda gpu: _newest_first(knowledge, gpu)))


def _newest_first(knowledge: KnowledgeBase, gpu: Gpu) -> tuple[int, bool, tuple[int, ...]]:
    """Vendor by vendor, within one the newest target first, and what is embedded last."""
    accelerator = knowledge.accelerators[gpu.accelerator]
    embedded = is_embedded(knowledge, gpu.accelerator, gpu.target)
    # `12.0` is major and minor; `gfx90a` is a number with two hexadecimal digits at its end.
    digits = re.findall(r"\d+", gpu.target)
    number = tuple(map(int, digits)) if accelerator.capabilities else _of_gfx(gpu.target)
    return [*knowledge.accelerators].index(gpu.accelerator), embedded, tuple(-part for part in number)


def _of_gfx(target: str) -> tuple[int, ...]:
    match = re.fullmatch(r"[a-z]+(\d+)([0-9a-f])([0-9a-f])", target)
    return (int(match[1]), int(match[2], 16), int(match[3], 16)) if match else (0,)


def _searched(gpu: Gpu) -> str:
    return " ".join((gpu.gpu, _squeezed(gpu.gpu), *map(gpu_key, gpu.names)))


def title(knowledge: KnowledgeBase, gpu: Gpu) -> str:
    """The name on the box: `GeForce RTX 5080`, `Tesla K80`; `V100` where the driver's name says more than ours."""
    vendor = knowledge.accelerators[gpu.accelerator].vendor
    if gpu.names:
        return gpu.names[0].removeprefix(f"{vendor} ")
    # As the driver writes it in the names of those with more words to them.
    pattern = re.compile(rf"(?<![a-z0-9]){re.escape(gpu.gpu)}(?![a-z0-9])", re.IGNORECASE)
    longer = (name for row in knowledge.gpus.values() if row.target == gpu.target for name in row.names)
    return next((match[0] for name in longer if (match := pattern.search(name))), gpu.gpu)


def is_target(knowledge: KnowledgeBase, word: str) -> bool:
    """Whether a word is written as targets are (`8.6`, `sm_86`, `gfx90a`), known or not."""
    rows = knowledge.accelerators.values()
    if any(row.matches(spelled(word)) for row in rows):
        return True
    capabilities = any(row.capabilities for row in rows)
    return bool(capabilities and re.fullmatch(r"\d{1,2}\.\d", word)) or word.lower() in _all_targets(knowledge)


def _all_targets(knowledge: KnowledgeBase) -> set[str]:
    return {gpu.target for gpu in knowledge.gpus.values()} | {
        one for row in knowledge.architectures for one in row.targets
    }


def bare_gpu(knowledge: KnowledgeBase, word: str) -> Gpu | None:
    """A GPU of which only the target is said (`sm_86`, `8.6`, `gfx1100`); None for what no GPU is known to have."""
    target = dotted(word)
    if not is_target(knowledge, word) or target not in _all_targets(knowledge):
        return None
    own = [gpu for gpu in knowledge.gpus.values() if gpu.target == target]
    families = [row for row in knowledge.architectures if target in row.targets]
    accelerator = own[0].accelerator if own else families[0].accelerator
    written = str(Capability.of_gpu(target)) if knowledge.accelerators[accelerator].capabilities else target
    # Where all of that target stand beside a CPU of one kind, so does this one.
    machines = {gpu.machine for gpu in own}
    machine = next(iter(machines)) if len(machines) == 1 else None
    return Gpu(gpu=written, accelerator=accelerator, target=target, machine=machine, source=())


# --- targets --------------------------------------------------------------------------------------------------------


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


def spelled(word: str) -> str:
    """`SM86` and `sm-86` are `sm_86`; anything else stays as it is, in small letters."""
    return re.sub(r"^(sm|compute)[ _-]?(?=\d)", r"\1_", word.lower())


def dotted(target: str) -> str:
    """`sm_86`, `compute_86` and `8.6` are the GPU's `8.6`; anything else stays as it is."""
    try:
        return Capability.parse(spelled(target)).dotted
    except ValueError:
        return target.lower()


def architecture_of(knowledge: KnowledgeBase, accelerator: str, gpu: str | None) -> Architecture | None:
    """The generation of an accelerator's GPUs of one target (`8.6`); None where that is not known."""
    rows = (row for row in knowledge.architectures if row.accelerator == accelerator)
    return next((row for row in rows if gpu in row.targets), None)


def is_embedded(knowledge: KnowledgeBase, accelerator: str, gpu: str | None) -> bool:
    """Whether GPUs of that target run their own code alone, which no other runs."""
    row = architecture_of(knowledge, accelerator, gpu)
    return row is not None and gpu in row.embedded


def embedded_targets(knowledge: KnowledgeBase, accelerator: str) -> frozenset[str]:
    """All of an accelerator's targets (`8.7`) for which `is_embedded` holds."""
    rows = (row for row in knowledge.architectures if row.accelerator == accelerator)
    return frozenset(target for row in rows for target in row.embedded)


def machine_of(knowledge: KnowledgeBase, gpu: Gpu) -> str | None:
    """The kind of machine that a GPU is sold with; None where it is sold for any."""
    row = architecture_of(knowledge, gpu.accelerator, gpu.target)
    return gpu.machine or (row.machine if row and gpu.target in row.embedded else None)
