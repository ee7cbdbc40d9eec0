"""GPUs by name, and lists of targets in order."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from tfdock.errors import Problem
from tfdock.gpu import verdict
from tfdock.knowledge.fits import exact_target
from tfdock.knowledge.gpu_rows import Architecture, Gpu, OtherDevice
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Capability, LocalGpu, Version
from tfdock.wheel.facts import Containers, target_order


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMatch:
    """The GPUs that a name can mean: one row, or one row for each target that shares the name, or nothing.

    If nothing matches, `near` are similar short names, the most similar first.
    """

    gpu: Gpu | None = None
    candidates: tuple[Gpu, ...] = ()
    near: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1024)  # every suggestion that is tried asks for the same few names
def matching(knowledge: KnowledgeBase, name: str) -> DeviceMatch:
    """Return the match of a short name (`rtx3080`), a driver's name (`NVIDIA GeForce RTX 3080`), or part of a name.

    Words may be omitted only if the target stays clear: `3080` matches because all GPUs with this name have one
    target. `RTX 6000` stands for three generations, which become the candidates.
    """
    generation = generation_named(knowledge, name)
    if generation:
        found = tuple(row for target in generation.targets if (row := example_gpu(knowledge, generation, target)))
        only = found[0] if len(found) == 1 else None
        # Do not return the example's row: the generation has other GPUs of the same target.
        key, names = gpu_key(generation.architecture), (generation.architecture,)
        row = only and Gpu(gpu=key, accelerator=only.accelerator, target=only.target, names=names, source=())
        return DeviceMatch(gpu=row, candidates=() if row else found)
    # A word such as `rtx` or `super` alone is not a name, though many GPU names contain it.
    generic = re.fullmatch(r"[^\W\d]*", name.strip())
    for texts in dict.fromkeys(_attempts(knowledge, name)):
        for readings in zip(*(_readings(knowledge, text) for text in texts), strict=True):
            rows = [gpu for reading in readings for gpu in reading]
            # Reversed, so that for each target the first and closest reading wins.
            by_target = {gpu.target: gpu for gpu in reversed(rows)}
            if len(by_target) == 1:
                return DeviceMatch(gpu=rows[0])
            # Do not guess between several targets: a wrong guess would compile for the wrong GPU.
            if by_target and not generic:
                return DeviceMatch(candidates=tuple(gpu for gpu in rows if by_target[gpu.target] is gpu))
    # A different number means a different GPU, even if the names are similar.
    alike = [gpu for gpu in knowledge.gpus if _number(gpu) == _number(name)]
    plain = gpu_key(_DECORATION.sub(" ", name))
    return DeviceMatch(near=tuple(difflib.get_close_matches(plain, alike, n=3, cutoff=0.6)))


def generation_named(knowledge: KnowledgeBase, name: str) -> Architecture | None:
    """Return the generation of GPUs with that name (`Blackwell`, `RDNA2`); the vendor's name may precede it."""
    texts = {_squeeze(name).removeprefix(_squeeze(row.vendor)) for row in knowledge.accelerators.values()}
    rows = knowledge.architectures
    return next((row for row in rows if texts & {*map(_squeeze, (row.architecture, *row.also))}), None)


def example_gpu(knowledge: KnowledgeBase, row: Architecture, target: str) -> Gpu | None:
    """Return the example GPU of a target: the example of the row, or else the first GPU with this target."""
    example = knowledge.gpus.get(row.examples.get(target, ""))
    own = (gpu for gpu in knowledge.gpus.values() if (gpu.accelerator, gpu.target) == (row.accelerator, target))
    return example if example and example.target == target else next(own, None)


@functools.lru_cache(maxsize=1024)  # a refused profile is tried with some thousand changes, mostly for the same GPUs
def find_gpu(knowledge: KnowledgeBase, name: str) -> Gpu | None:
    """Return the row of a GPU by its short name or a driver's name; None if unknown or ambiguous."""
    return knowledge.gpus.get(gpu_key(name)) or matching(knowledge, name).gpu


def means_gpu(knowledge: KnowledgeBase, word: str) -> bool:
    """Return whether a word, such as the name of a profile, is the name or the target of one or several GPUs."""
    if _find_by_full_name(knowledge, word) or bare_gpu(knowledge, word):
        return True
    # `v2` is part of a GPU's name by chance; `3080` is not.
    match = matching(knowledge, word)
    return bool(re.search(r"\d{3}", word) and (match.gpu or match.candidates))


def resembles_gpu(knowledge: KnowledgeBase, word: str) -> bool:
    """Return whether a word looks like a GPU's name or target: `rtx4095` does, because `rtx4090` exists.

    A number with fewer than three digits does not count: `v2` may be the second version of a profile.
    """
    shape = re.compile(re.sub(r"\d+", r"\\d+", gpu_key(word)))
    is_alike = bool(re.search(r"\d{3}", word)) and any(map(shape.fullmatch, knowledge.gpus))
    return is_alike or is_target(knowledge, word)


def local_words(knowledge: KnowledgeBase, gpus: Iterable[LocalGpu]) -> tuple[str, ...]:
    """Return the names of this machine's GPUs, each once: tfdock's name, or the target if there is no row.

    The target that the driver reports decides, because GPUs may share a name, and names may be newer than the rows.
    """
    return tuple(dict.fromkeys(_local_word(knowledge, gpu) for gpu in gpus))


def _local_word(knowledge: KnowledgeBase, gpu: LocalGpu) -> str:
    match = matching(knowledge, gpu.name)
    if gpu.target is None:
        return match.gpu.gpu if match.gpu else gpu.name
    named = (row.gpu for row in (match.gpu, *match.candidates) if row and row.target == gpu.target)
    # A GPU that is newer than the rows can still be built for by its target.
    return next(named, exact_target(knowledge.accelerators[gpu.accelerator], gpu.target))


def unknown_gpu(knowledge: KnowledgeBase, name: str, tensorflow: str | None = None) -> Problem:
    """Return the error for a name that no GPU has, or that GPUs with different targets share."""
    match, lists = matching(knowledge, name), "`tfdock gpus` lists all GPUs"
    if bare_gpu(knowledge, name):
        message, fix = f"`{name}` is a target to compile for, not the name of a GPU", "`tfdock gpus` lists the names"
        if is_integrated(knowledge, dotted(name)):
            fix = "leave this GPU out: it is part of the CPU, and a wheel for a card needs no code for it"
    elif is_target(knowledge, name):
        # A text in the form of a target resembles unrelated names, so no name is suggested.
        message, fix = f"no GPU is known with the target `{name}`", f"{lists}, with their targets"
    elif match.candidates:
        which = " or ".join(f"`{gpu.gpu}` ({gpu.target})" for gpu in match.candidates)
        message = f"`{name}` is ambiguous: GPUs with different targets have this name"
        return Problem("gpu-ambiguous", message, f"say which: {which}")
    elif other := other_device(knowledge, name):
        message = f"tfdock builds no wheel for `{name}`"
        other = knowledge.about(other, tensorflow)
        return Problem("gpu-unknown", message, other.instead, why=other.says)
    else:
        # Only a question, not a fix: code for another GPU may not run on this one.
        near = " or ".join(f"`{near_name}`" for near_name in match.near)
        message, fix = f"the GPU `{name}` is not known{f': did you mean {near}?' if near else ''}", lists
    return Problem("gpu-unknown", message, fix)


def other_device(knowledge: KnowledgeBase, name: str) -> OtherDevice | None:
    """Return the device, system or topic of this name for which no wheel is built; None for any other name."""
    if find_gpu(knowledge, name) or is_target(knowledge, name):
        return None
    rows = (*knowledge.other_devices, *knowledge.topics)
    return next((row for row in rows if re.fullmatch(row.words, name.lower())), None)


def gpu_key(name: str) -> str:
    """Return a name as short names are written: `RTX 3080` is `rtx3080`."""
    return re.sub(r"[^a-z0-9-]", "", name.lower())


_MEMORY = re.compile(r"\b\d+ ?gi?b\b", re.IGNORECASE)
_MOBILE = re.compile(r"\b(laptop|mobile|notebook)\b", re.IGNORECASE)
_PLAIN = r"\b(gddr\d\w?|max-?[qp]|with|design|gpus?|graphics|cards?|series|oc|founders|edition)\b"
#: Words that do not distinguish GPUs, unless a row contains them.
_DECORATION = re.compile(rf"{_MEMORY.pattern}|{_MOBILE.pattern}|{_PLAIN}", re.IGNORECASE)


def _attempts(knowledge: KnowledgeBase, name: str) -> Iterator[tuple[str, ...]]:
    """Yield groups of texts that a name may mean, strictest first; all rows of a group's texts are meant."""
    plain = _DECORATION.sub(" ", name)
    yield (_squeeze(name),)
    # Few people and few drivers write the memory size.
    yield (_squeeze(_MEMORY.sub(" ", name)),)
    # A laptop's GTX 1650 may be named as the card is. But GTX 960 and GTX 960M are different generations.
    yield (_squeeze(plain), *([f"{_squeeze(plain)}m"] if _MOBILE.search(name) else []))
    # Vendors and makers of cards write their own name in front: `ASUS TUF RTX 3080`.
    words = plain.split()
    telling = gpu_words(knowledge) - {row.vendor.lower() for row in knowledge.accelerators.values()}
    while words and words[0].isalpha() and words[0].lower() not in telling:
        del words[0]
    # A number alone is not enough: an `Arc 770` is a GPU of another maker.
    yield (_squeeze(" ".join(words)),) if words and not words[0].isdecimal() else ()


@functools.lru_cache(maxsize=4)
def gpu_words(knowledge: KnowledgeBase) -> set[str]:
    names = (name for gpu in knowledge.gpus.values() for name in (gpu.gpu, *gpu.names))
    return {word for name in names for word in re.findall(r"[a-z]+", name.lower())}


def _number(name: str) -> str:
    """Return the number in a GPU's name: `1650`; empty without one."""
    # `O` is often mistyped for 0. A memory size and the `-cc…` suffix of our own names are not the number.
    text = re.sub(r"-cc\d+", "", _DECORATION.sub(" ", name.lower()))
    numbers = re.findall(r"\d+", re.sub(r"(?<=\d)o", "0", text))
    return next((number for number in numbers if len(number) > 2), max(numbers, key=len, default=""))


def _squeeze(text: str) -> str:
    return re.sub(r"(?!(?<=\d)\.\d)[^a-z0-9]", "", text.lower())  # `10.10` is a version, and not 1010


def _readings(knowledge: KnowledgeBase, text: str) -> Iterator[list[Gpu]]:
    """Yield the rows that `text` may mean: as tfdock's name, as a driver's name, then as parts of names."""
    vendors = [_squeeze(row.vendor) for row in knowledge.accelerators.values() if row.vendor]
    yield [gpu for gpu in knowledge.gpus.values() if _squeeze(gpu.gpu) == text]
    # Drivers of some years put the vendor before the name; others do not.
    spellings = {text, *(f"{vendor}{text}" for vendor in vendors)}
    spellings |= {text.removeprefix(vendor) for vendor in vendors if text.startswith(vendor)}
    yield [gpu for gpu in knowledge.gpus.values() if any(_squeeze(name) in spellings for name in gpu.names)]
    ranked = [(left, gpu) for gpu in knowledge.gpus.values() if (left := _words_left(gpu, text)) is not None]
    yield [gpu for _, gpu in sorted(ranked, key=itemgetter(0))]


def _words_left(gpu: Gpu, text: str) -> int | None:
    """Return how many words of the GPU's name remain if `text` is made of its words in order; else None."""
    counts = []
    for name in (gpu.gpu, *gpu.names):
        words = re.findall(r"[a-z0-9]+", name.lower())
        # Number of matched characters of `text` -> number of words for them.
        made = {0: 0}
        for word in words:
            made |= {at + len(word): used + 1 for at, used in made.items() if text.startswith(word, at)}
        # A single character would match far too many names.
        if len(text) > 1 and len(text) in made:
            counts.append(len(words) - made[len(text)])
    return min(counts, default=None)


def joined_words(knowledge: KnowledgeBase, words: Sequence[str]) -> list[str]:
    """Return the names that words make, longest first: in a shell, unquoted `RTX 3080` is two arguments."""
    names = []
    while words:
        end = next((end for end in range(len(words), 1, -1) if _is_a_name(knowledge, words[:end])), 1)
        names.append(" ".join(words[:end]))
        words = words[end:]
    return names


def _is_a_name(knowledge: KnowledgeBase, words: Sequence[str]) -> bool:
    """Return whether words together name a GPU or another device, and no word alone is one of the other kind."""
    if means_gpu(knowledge, " ".join(words)):
        after = () if words[0].lower() in gpu_words(knowledge) else words[1:]  # `foo rtx3080` are two names
        # A short name may begin with a topic: `jetson nano`.
        return gpu_key("-".join(words)) in knowledge.gpus or not any(
            [named(knowledge, after[:1]), *(other_device(knowledge, word) for word in words)]
        )
    return bool(other_device(knowledge, " ".join(words))) and not any(means_gpu(knowledge, word) for word in words)


def named(knowledge: KnowledgeBase, words: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the GPU whose full name the words form, or the GPU of each word; empty if a word names no GPU."""
    each = [_find_by_full_name(knowledge, word) for word in joined_words(knowledge, words)]
    return () if None in each else tuple(dict.fromkeys(gpu for gpu in each if gpu))


def _find_by_full_name(knowledge: KnowledgeBase, name: str) -> Gpu | None:
    """Return the GPU with this short name or driver's name, vendor optional; a part such as `3080` does not match."""
    gpu = find_gpu(knowledge, name)
    if gpu is None or gpu.gpu not in knowledge.gpus:
        return None
    vendor = gpu_key(knowledge.accelerators[gpu.accelerator].vendor)
    names = {_squeeze(known_name) for known_name in (gpu.gpu, *gpu.names)}
    return gpu if {_squeeze(name), f"{vendor}{_squeeze(name)}"} & names else None


def search(knowledge: KnowledgeBase, words: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the GPUs with every word in their name, else the GPU that the words mean; all GPUs without words.

    The name of a generation stands for all its GPUs.
    A target among the words (`8.6`, `sm_86`, `gfx90a`) is not part of a name: the GPU's target must be one of them.
    The order is by vendor, then the newest target first, with embedded GPUs last.
    """
    generation = generation_named(knowledge, " ".join(words)) if words else None
    targets = generation.targets if generation else [dotted(word) for word in words if is_target(knowledge, word)]
    names = [] if generation else [gpu_key(word) for word in words if not is_target(knowledge, word)]
    if not all(names):
        return ()  # a word without a letter or digit is part of no name
    matches = tuple(
        gpu
        for gpu in knowledge.gpus.values()
        if (not targets or gpu.target in targets)
        and all(name in " ".join((gpu.gpu, _squeeze(gpu.gpu), *map(gpu_key, gpu.names))) for name in names)
    )
    meant = None if matches or targets else find_gpu(knowledge, " ".join(words))
    newest = sorted(matches, key=lambda gpu: target_order(gpu.target), reverse=True)
    vendors = [*knowledge.accelerators]
    newest.sort(key=lambda gpu: (vendors.index(gpu.accelerator), is_embedded(knowledge, gpu.accelerator, gpu.target)))
    return (meant,) if meant else tuple(newest)


def title(knowledge: KnowledgeBase, gpu: Gpu) -> str:
    """Return the name that a buyer knows: `GeForce RTX 5080`; `V100` if the driver's name is longer than ours."""
    vendor = knowledge.accelerators[gpu.accelerator].vendor
    if gpu.names:
        return gpu.names[0].removeprefix(f"{vendor} ")
    # Use the spelling in the longer names that drivers print.
    pattern = re.compile(rf"(?<![a-z0-9]){re.escape(gpu.gpu)}(?![a-z0-9])", re.IGNORECASE)
    longer = (name for row in knowledge.gpus.values() if row.target == gpu.target for name in row.names)
    return next((match[0] for name in longer if (match := pattern.search(name))), gpu.gpu)


def is_target(knowledge: KnowledgeBase, word: str) -> bool:
    """Return whether a word is written as targets are (`8.6`, `sm_86`, `gfx90a`), known or not."""
    dots = re.fullmatch(r"\d{1,2}\.\d", word) is not None
    return any(row.matches(spelled(word)) or (row.capabilities and dots) for row in knowledge.accelerators.values())


@functools.lru_cache(maxsize=1024)
def bare_gpu(knowledge: KnowledgeBase, word: str) -> Gpu | None:
    """Return a GPU of which only the target is given (`sm_86`, `8.6`, `gfx1100`); None for a target no GPU has."""
    target = dotted(word)
    own = [gpu for gpu in knowledge.gpus.values() if gpu.target == target]
    families = (row.accelerator for row in knowledge.architectures if target in row.targets)
    accelerator = next((gpu.accelerator for gpu in own), None) or next(families, None)
    if accelerator is None or not is_target(knowledge, word):
        return None
    written = exact_target(knowledge.accelerators[accelerator], target)
    # If all GPUs with this target are sold with one kind of CPU, assume the same here.
    machines = {gpu.machine for gpu in own}
    machine = next(iter(machines)) if len(machines) == 1 else None
    return Gpu(gpu=written, accelerator=accelerator, target=target, machine=machine, source=())


# --- targets --------------------------------------------------------------------------------------------------------


def sorted_targets(targets: Iterable[str]) -> tuple[str, ...]:
    """Return targets without repetition in numerical order; `compute_86` makes `sm_86` superfluous."""
    unique = set(targets)
    try:
        capabilities = {Capability.parse(target) for target in unique}
    except ValueError:
        # gfx targets by length first: gfx90a is older than gfx1030.
        return tuple(sorted(unique, key=lambda target: (len(target), target)))
    needed = (each for each in sorted(capabilities) if each.ptx or replace(each, ptx=True) not in capabilities)
    return tuple(map(str, needed))


def target_number(target: str) -> str:
    """Return `86` for `sm_86` and `compute_86`; a gfx target is its own number."""
    return target.partition("_")[2] or target


def spelled(word: str) -> str:
    """Return `sm_86` for `SM86` and `sm-86`; anything else unchanged in lower case."""
    return re.sub(r"^(sm|compute)[ _-]?(?=\d)", r"\1_", word.lower())


def dotted(target: str) -> str:
    """Return `8.6` for `sm_86`, `compute_86` and `8.6`; anything else in lower case."""
    try:
        return Capability.parse(spelled(target)).dotted
    except ValueError:
        return target.lower()


def architecture_of(knowledge: KnowledgeBase, accelerator: str, gpu: str | None) -> Architecture | None:
    """Return the generation of an accelerator's GPUs with a target (`8.6`); None if unknown."""
    rows = (row for row in knowledge.architectures if row.accelerator == accelerator)
    return next((row for row in rows if gpu in row.targets), None)


def gpu_driver(
    knowledge: KnowledgeBase, accelerator: str, target: str | None, name: str = "", *, wsl: bool = False
) -> Version | None:
    """Return the first driver that knows a GPU with this target and short name (may be empty); None if unknown."""
    row = architecture_of(knowledge, accelerator, target)
    if row is None:
        return None
    later = next((driver for driver, names in row.driver_later.items() if name in names), None)
    text = later or row.driver_min.get(target or "") or row.driver_min.get("")
    # Linux and Windows share the branches of drivers, and number the releases of a branch differently.
    return Version(text.partition(".")[0] if wsl else text) if text else None


def needs_open_modules(knowledge: KnowledgeBase, accelerator: str, target: str | None, name: str = "") -> bool:
    """Return whether a GPU works only with the driver's open kernel modules."""
    row = architecture_of(knowledge, accelerator, target)
    return row is not None and bool({name, target} & {*row.open_modules})


def is_embedded(knowledge: KnowledgeBase, accelerator: str, gpu: str | None) -> bool:
    """Return whether GPUs of this target run only code for exactly this target, and no other GPU runs such code."""
    return gpu in embedded_targets(knowledge, accelerator)


def is_integrated(knowledge: KnowledgeBase, target: str) -> bool:
    """Return whether GPUs of a target are inside a CPU; such a machine may have a graphics card too."""
    return any(target in row.integrated for row in knowledge.architectures)


def embedded_targets(knowledge: KnowledgeBase, accelerator: str) -> frozenset[str]:
    """Return all targets of an accelerator (`8.7`) for which `is_embedded` holds."""
    rows = (row for row in knowledge.architectures if row.accelerator == accelerator)
    return frozenset(target for row in rows for target in row.embedded)


def machine_of(knowledge: KnowledgeBase, gpu: Gpu) -> str | None:
    """Return the kind of machine that a GPU is sold with; None if it is sold for any."""
    row = architecture_of(knowledge, gpu.accelerator, gpu.target)
    return gpu.machine or (row.machine if row and gpu.target in row.embedded else None)


def judge(knowledge: KnowledgeBase, accelerator: Accelerator, gpu: str, targets: Sequence[str]) -> verdict.Verdict:
    """Return how a GPU (`8.6`, `gfx90a`) runs code that is compiled for the targets."""
    if not accelerator.capabilities:
        return verdict.runs_gfx(gpu, targets)
    embedded = embedded_targets(knowledge, accelerator.accelerator)
    return verdict.runs(Capability.of_gpu(gpu), *verdict.code_of(targets), embedded=embedded)


def judge_containers(knowledge: KnowledgeBase, gpu: Gpu, held: Containers) -> verdict.Verdict | None:
    """Return how a GPU runs containers; None if they have no code for its family."""
    capabilities = knowledge.accelerators[gpu.accelerator].capabilities
    embedded = embedded_targets(knowledge, gpu.accelerator)
    return verdict.runs_container(gpu.target, held, capabilities=capabilities, embedded=embedded)
