"""What the knowledge rows together say of a GPU: who compiles for it, which releases take it, which driver it needs.

Nothing here is written down anywhere: it is computed from the rows each time, so that a new toolkit or release is
there as soon as its row is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfdock.decide.devices import find_gpu, gpu_key
from tfdock.decide.rules import libraries
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

    `tested`: the toolkit the release was tested with is among them. `official`: so is the target in its own wheel.
    """

    release: str
    toolkits: tuple[str, ...]
    tested: bool
    official: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """One target (`8.6`, `gfx90a`), the toolkit versions (minor) that compile for it, and what follows from that.

    `driver` is the oldest branch that knows the GPU, `toolkit_driver` the oldest one that runs what its first
    toolkit compiled; None is not known.
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
    known = {gpu.target for gpu in rows}
    targets = [target for word in words if (target := dotted(word)) in known]
    names = [gpu_key(word) for word in words if dotted(word) not in known]
    found = tuple(
        gpu
        for gpu in rows
        if (not targets or gpu.target in targets) and all(name in _searched(gpu) for name in names)
    )
    meant = None if found else find_gpu(knowledge, " ".join(words))
    return (meant,) if meant else found


def dotted(target: str) -> str:
    """`sm_86`, `compute_86` and `8.6` are the GPU's `8.6`; anything else stays as it is."""
    try:
        return Capability.parse(target.lower()).dotted
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
        driver=architecture.driver_min if architecture else None,
        driver_max=architecture.driver_max if architecture else None,
        toolkit_driver=_driver(knowledge, first, "linux"),
        toolkit_driver_windows=_driver(knowledge, first, "windows"),
    )


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
    """The releases that take the target, a toolkit that compiles it, and libraries for both; oldest first."""
    minors = {row.version for row in able}
    for release in sorted(knowledge.releases.values(), key=lambda row: Version(row.release)):
        support = release.components.get(accelerator.toolkit or "", Support())
        toolkits = tuple(
            version
            for version in taken_versions(support)
            if _minor(version, minors) and _has_libraries(knowledge, accelerator, release, version, target)
        )
        if toolkits and takes_target(release, accelerator, target) and uses_target(release, accelerator, target):
            official = release.official_targets.get(accelerator.accelerator, ())
            yield ReleaseFor(
                release=release.release,
                toolkits=toolkits,
                tested=support.tested in toolkits,
                official=any(dotted(one) == target for one in official),
            )


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
