"""What the knowledge rows together say of a GPU: who compiles for it, which releases take it, which driver it needs.

Nothing here is written down anywhere: it is computed from the rows each time, so that a new toolkit or release is
there as soon as its row is.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfdock.decide.archives import archives_of
from tfdock.decide.contract import applies
from tfdock.decide.devices import find_gpu, gpu_key
from tfdock.decide.rules import judge, libraries
from tfdock.errors import Problem, ProfileError
from tfdock.inspect.verdict import Runs
from tfdock.model import Capability, Version
from tfdock.read.knowledge import (
    Accelerator,
    Architecture,
    Gpu,
    KnowledgeBase,
    Library,
    Release,
    Support,
    Toolkit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFor:
    """A release that can be told to compile for a GPU's target, and the toolkit versions it takes that can do it.

    `tested`: the toolkit the release was tested with is among them. `official`: so is the target in its own wheel;
    `wheel_runs` is how that wheel's code runs on the GPU, `wheel_by` which of it does. `xla`: XLA uses the GPU too.
    """

    release: str
    toolkits: tuple[str, ...]
    tested: bool
    official: bool
    wheel_runs: Runs
    wheel_by: str
    xla: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """One target (`8.6`, `gfx90a`), the toolkit versions (minor) that compile for it, and what follows from that.

    `driver` is the oldest branch that knows the GPU, `toolkit_driver` the oldest one that runs what its first
    toolkit compiled, `needs_driver` the newer of both, which is the one that counts; None is not known.
    """

    accelerator: str
    toolkit: str
    target: str
    written: str
    architecture: str | None
    embedded: bool
    toolkits: tuple[str, ...]
    last_toolkit: bool
    releases: tuple[ReleaseFor, ...]
    driver: str | None
    driver_max: str | None
    toolkit_driver: str | None
    toolkit_driver_windows: str | None
    needs_driver: str | None
    needs_driver_windows: str | None


def release_named(knowledge: KnowledgeBase, asked: str) -> tuple[Release, str]:
    """The row of a release (`2.19`, `2.19.1`), and its version in full: the newest patch release where none is asked.

    Raises ProfileError for what is no version, and for what was never released.
    """
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", asked, re.ASCII):
        fix = "write it as `2.19` or `2.19.1`; `tfdock releases` lists all"
        message = f"`{asked}` is no version of TensorFlow"
        raise ProfileError(Problem(code="profile-bad-value", message=message, fix=fix, field="tensorflow"))
    known = sorted(knowledge.releases, key=Version)
    row = knowledge.releases.get(str(Version(asked).minor))
    if row is None:
        place = bisect(known, Version(asked), key=Version)
        beside = " or ".join(f"`{one}`" for one in known[max(place - 1, 0) : place + 1])
        message = f"TensorFlow {asked} is not known; known are {known[0]} to {known[-1]}"
        fix = f"take the nearest, {beside}; `tfdock releases` lists all"
        raise ProfileError(Problem(code="release-unknown", message=message, fix=fix, field="tensorflow"))
    newest = row.patches[-1] if row.patches else row.release
    exact = len(Version(asked).parts) > len(Version(row.release).parts)
    if exact and row.patches and asked not in row.patches:
        message = f"TensorFlow {asked} does not exist; of {row.release} there are {', '.join(row.patches)}"
        fix = f"take `{newest}`, or `{row.release}` for the newest of them"
        raise ProfileError(Problem(code="release-unknown", message=message, fix=fix, field="tensorflow"))
    return row, asked if exact else newest


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
    names = {_plain(one) for one in (gpu.gpu, *gpu.names)}
    return gpu if {_plain(name), f"{vendor}{_plain(name)}"} & names else None


def _plain(name: str) -> str:
    return gpu_key(name).replace("-", "")


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
    row = _architecture(knowledge, accelerator, gpu.target)
    embedded = row is not None and gpu.target in row.embedded
    # `12.0` is major and minor; `gfx90a` is a number with two hexadecimal digits at its end.
    digits = re.findall(r"\d+", gpu.target)
    number = tuple(map(int, digits)) if accelerator.capabilities else _of_gfx(gpu.target)
    return [*knowledge.accelerators].index(gpu.accelerator), embedded, tuple(-part for part in number)


def _of_gfx(target: str) -> tuple[int, ...]:
    match = re.fullmatch(r"[a-z]+(\d+)([0-9a-f])([0-9a-f])", target)
    return (int(match[1]), int(match[2], 16), int(match[3], 16)) if match else (0,)


def is_target(knowledge: KnowledgeBase, word: str) -> bool:
    """Whether a word is written as targets are (`8.6`, `sm_86`, `gfx90a`), known or not."""
    rows = knowledge.accelerators.values()
    if any(row.target_pattern and re.fullmatch(row.target_pattern, spelled(word)) for row in rows):
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


def title(knowledge: KnowledgeBase, gpu: Gpu) -> str:
    """The name on the box: `GeForce RTX 5080`, `Tesla K80`; `V100` where the driver's name says more than ours."""
    vendor = knowledge.accelerators[gpu.accelerator].vendor
    if gpu.names:
        return gpu.names[0].removeprefix(f"{vendor} ")
    # As the driver writes it in the names of those with more words to them.
    pattern = re.compile(rf"(?<![a-z0-9]){re.escape(gpu.gpu)}(?![a-z0-9])", re.IGNORECASE)
    longer = (name for row in knowledge.gpus.values() if row.target == gpu.target for name in row.names)
    return next((match[0] for name in longer if (match := pattern.search(name))), gpu.gpu)


def spelled(word: str) -> str:
    """`SM86` and `sm-86` are `sm_86`; anything else stays as it is, in small letters."""
    return re.sub(r"^(sm|compute)[ _-]?(?=\d)", r"\1_", word.lower())


def dotted(target: str) -> str:
    """`sm_86`, `compute_86` and `8.6` are the GPU's `8.6`; anything else stays as it is."""
    try:
        return Capability.parse(spelled(target)).dotted
    except ValueError:
        return target.lower()


def _searched(gpu: Gpu) -> str:
    return " ".join((gpu.gpu, _plain(gpu.gpu), *map(gpu_key, gpu.names)))


def target_facts(knowledge: KnowledgeBase, accelerator: Accelerator, target: str) -> TargetFacts:
    """What is known of a GPU's target (`8.6`, `gfx90a`)."""
    number = Capability.of_gpu(target).number if accelerator.capabilities else target
    rows = sorted(
        (row for row in knowledge.toolkits.values() if row.toolkit == accelerator.toolkit),
        key=lambda row: Version(row.version),
    )
    able = [row for row in rows if number in row.targets]
    architecture = _architecture(knowledge, accelerator, target)
    first = able[0] if able else None
    knows = architecture.driver_min if architecture else None
    linux, windows = _driver(knowledge, first, "linux"), _driver(knowledge, first, "windows")
    return TargetFacts(
        accelerator=accelerator.accelerator,
        toolkit=accelerator.toolkit or "",
        target=target,
        written=str(Capability.of_gpu(target)) if accelerator.capabilities else target,
        architecture=architecture.architecture if architecture else None,
        embedded=architecture is not None and target in architecture.embedded,
        toolkits=tuple(row.version for row in able),
        last_toolkit=bool(able) and able[-1] is rows[-1],
        releases=tuple(_releases(knowledge, accelerator, target, able)),
        driver=knows,
        driver_max=architecture.driver_max if architecture else None,
        toolkit_driver=linux,
        toolkit_driver_windows=windows,
        needs_driver=_newer(knows, linux),
        needs_driver_windows=_newer(knows, windows),  # both systems share the branches
    )


def _newer(*drivers: str | None) -> str | None:
    return max((one for one in drivers if one), key=Version, default=None)


def _architecture(knowledge: KnowledgeBase, accelerator: Accelerator, target: str) -> Architecture | None:
    return next(
        (
            row
            for row in knowledge.architectures
            if row.accelerator == accelerator.accelerator and target in row.targets
        ),
        None,
    )


def _driver(knowledge: KnowledgeBase, toolkit: Toolkit | None, system: str) -> str | None:
    """The oldest driver for a toolkit: that of its major version where minor versions share one, else its own."""
    if toolkit is None:
        return None
    shared = knowledge.drivers.get((toolkit.toolkit, str(Version(toolkit.version).parts[0])))
    own: str | None = getattr(toolkit, f"driver_{system}")
    return getattr(shared, system) or own if shared else own


def _releases(
    knowledge: KnowledgeBase, accelerator: Accelerator, target: str, able: Iterable[Toolkit]
) -> Iterator[ReleaseFor]:
    """The releases that take the target, a toolkit that compiles it, and libraries and an image for both; oldest
    first."""
    minors = {row.version for row in able}
    for release in sorted(knowledge.releases.values(), key=lambda row: Version(row.release)):
        support = release.components.get(accelerator.toolkit or "", Support())
        toolkits = tuple(
            version
            for version in taken_versions(support)
            if _minor(version, minors)
            and _has_libraries(knowledge, accelerator, release, version, target)
            and _has_image(knowledge, accelerator, release, version)
        )
        if toolkits and takes_target(release, accelerator, target) and uses_target(release, accelerator, target):
            official = release.official_targets.get(accelerator.accelerator, ())
            found = judge(knowledge, accelerator, target, official)
            yield ReleaseFor(
                release=release.release,
                toolkits=toolkits,
                tested=support.tested in toolkits,
                official=any(dotted(one) == target for one in official),
                wheel_runs=found.runs,
                wheel_by=found.by,
                xla=xla_uses(release, accelerator, target),
            )


def _has_image(knowledge: KnowledgeBase, accelerator: Accelerator, release: Release, toolkit: str) -> bool:
    """Whether a base image is known for the release and that toolkit, whatever kind of machine it is for."""
    name = accelerator.accelerator
    rows = [
        row
        for row in knowledge.images
        if applies(release, row.releases) and (not row.accelerators or name in row.accelerators)
    ]
    others = [one for one in accelerator.components if one != accelerator.toolkit and one in release.components]
    versions = (taken_versions(release.components[one]) for one in others)
    for taken in itertools.product(*versions):
        components = {accelerator.toolkit or "": toolkit, **dict(zip(others, taken, strict=True))}
        for row in rows:
            fits = all(
                Version(components.get(part, "")).matches(Version(want)) for part, want in row.components.items()
            )
            if fits and archives_of(knowledge, row, components) is not None:
                return True
    return False


def _has_libraries(
    knowledge: KnowledgeBase, accelerator: Accelerator, release: Release, toolkit: str, target: str
) -> bool:
    """Whether each library the release wants has a version for the toolkit and the target, as far as is known."""
    supports = [
        (name, release.components.get(name)) for name in accelerator.components if name != accelerator.toolkit
    ]
    return all(
        any(_has_one(knowledge, name, version, toolkit, target) for version in taken_versions(support))
        for name, support in supports
        if support is not None
    )


def _has_one(knowledge: KnowledgeBase, name: str, version: str, toolkit: str, target: str) -> bool:
    rows = libraries(knowledge, name, version)
    return not rows or any(_fits(row, toolkit, target) for row in rows)


def _fits(row: Library, toolkit: str, target: str) -> bool:
    held = Version(toolkit)
    made = not row.toolkits or any(held.matches(Version(one)) or Version(one).matches(held) for one in row.toolkits)
    lowest, highest = Version(row.lowest or target), Version(row.highest or target)
    return made and lowest <= Version(target) <= highest


def taken_versions(support: Support) -> list[str]:
    """The versions of a component that a release takes, in order."""
    known = {*support.accepted, *((support.tested,) if support.tested else ())} - {*support.disputed}
    return sorted(known, key=Version)


def _minor(version: str, minors: Iterable[str]) -> bool:
    """Whether a version is one of some minor versions; `11` is known to be `11.2` as much as any of them."""
    return any(Version(minor).matches(Version(version).minor) for minor in minors)


def takes_target(release: Release, accelerator: Accelerator, target: str) -> bool:
    """Whether the release can be told of a GPU's target; where its syntax is not known, it is not."""
    if not accelerator.capabilities:
        return True
    written = target if release.capability_format == "dotted" else str(Capability.of_gpu(target))
    return release.capability_pattern is not None and bool(re.fullmatch(release.capability_pattern, written))


def uses_target(release: Release, accelerator: Accelerator, target: str) -> bool:
    """Whether the release uses a GPU of that target at run time at all, as far as is known."""
    name = accelerator.accelerator
    floor = release.floor.get(name)
    if floor is not None and Version(target) < Version(floor):
        return False
    used = release.runtime_targets.get(name)
    return used is None or target in used


def xla_uses(release: Release, accelerator: Accelerator, target: str) -> bool:
    """Whether the release's XLA uses a GPU of that target, as far as is known."""
    floor = release.xla_floor.get(accelerator.accelerator)
    return floor is None or not accelerator.capabilities or Version(target) >= Version(floor)


def apart(knowledge: KnowledgeBase, accelerator: Accelerator, devices: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Why no release serves devices (name, target) with one toolkit, a line each; empty if one does."""
    facts = {target: target_facts(knowledge, accelerator, target) for _, target in devices}
    taking = [{(one.release, version) for one in row.releases for version in one.toolkits} for row in facts.values()]
    if not taking or set.intersection(*taking):
        return ()
    return tuple(
        f"{name}{'' if name in (target, facts[target].written) else f' ({target})'}: "
        f"{toolkit_words(knowledge, facts[target])}; {release_words(knowledge, facts[target])}"
        for name, target in devices
    )


def toolkit_words(knowledge: KnowledgeBase, facts: TargetFacts) -> str:
    """`CUDA 12.8 or newer`: which versions compile for a target."""
    titles = knowledge.accelerators[facts.accelerator].titles
    name = titles.get(facts.toolkit, facts.toolkit or facts.accelerator)
    known = [row.version for row in knowledge.toolkits.values() if row.toolkit == facts.toolkit]
    if not facts.toolkits:
        return f"no known {name} compiles for it"
    return f"{name} {_words_of(spans(facts.toolkits, known), facts.last_toolkit)}"


def release_words(knowledge: KnowledgeBase, facts: TargetFacts) -> str:
    """`TensorFlow 2.5 or newer`: which releases take a target."""
    taken = [one.release for one in facts.releases]
    if not taken:
        return "no TensorFlow is known to take it"
    newest = max(knowledge.releases, key=Version)
    return f"TensorFlow {_words_of(spans(taken, knowledge.releases), taken[-1] == newest)}"


def _words_of(found: Sequence[tuple[str, str]], is_open: bool) -> str:
    words = [first if first == last else f"{first} to {last}" for first, last in found]
    if is_open:
        words[-1] = f"{found[-1][0]} or newer"
    return ", ".join(words)


def spans(versions: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """First and last of each run of versions that stand side by side among those known."""
    order = sorted(set(known), key=Version)
    wanted, found = set(versions), list[tuple[str, str]]()
    for version, before in zip(order, [None, *order], strict=False):
        if version not in wanted:
            continue
        if before in wanted and found:
            found[-1] = (found[-1][0], version)
        else:
            found.append((version, version))
    return found
