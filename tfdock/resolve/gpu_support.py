"""Combine the facts about a GPU from several knowledge rows: its compilers, releases and drivers.

All facts are computed from the rows each time, so a new row of a toolkit or release has an effect at once.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tfdock.errors import ProfileError
from tfdock.gpu.devices import (
    architecture_of,
    dotted,
    gpu_driver,
    is_embedded,
    judge,
    needs_open_modules,
    target_number,
)
from tfdock.gpu.verdict import Runs
from tfdock.knowledge import fits
from tfdock.knowledge.release_rows import Release, Support
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.grades import sure_builds
from tfdock.types import Version, same_minor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFor:
    """A release that can compile for a GPU."""

    release: str  #: The minor release.
    toolkits: tuple[str, ...]  #: Versions of the toolkit that the release accepts and that compile for the GPU.
    tested: bool  #: Whether these versions include the toolkit that the release was tested with.
    official: bool  #: Whether the release's official wheel has code for exactly this target.
    wheel_runs: Runs  #: How the release's official wheel runs on the GPU.
    wheel_by: str  #: The code in the official wheel that the GPU runs; empty if no code runs.
    xla: bool  #: Whether XLA uses the GPU.


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """A target of GPUs, its compilers, and facts that follow from them."""

    accelerator: str  #: Such as `cuda`.
    toolkit: str  #: The toolkit that compiles for the target, such as `cuda`.
    target: str  #: The compute capability (`8.6`) or gfx target.
    written: str  #: The target in the form for compilers, such as `sm_86`.
    architecture: str | None  #: The generation.
    embedded: bool  #: Whether the GPU is part of an embedded system.
    toolkits: tuple[str, ...]  #: Minor versions of the toolkit that compile for the target.
    last_toolkit: bool  #: Whether `toolkits` include the newest known version.
    releases: tuple[ReleaseFor, ...]  #: Releases that can compile for the target.
    driver: str | None  #: The oldest driver for the GPU; null if unknown.
    driver_max: str | None  #: The newest driver for the GPU; null if the newest drivers still support the GPU.
    toolkit_driver: str | None  #: The oldest driver that runs the code of the GPU's first toolkit.
    toolkit_driver_windows: str | None  #: The same on Windows.
    needs_driver: str | None  #: The required driver: the newer of `driver` and `toolkit_driver`.
    needs_driver_windows: str | None  #: The same on Windows.
    reports: tuple[str, ...]  #: What forks of TensorFlow, and reports of users, say about such GPUs.
    open_modules: bool  #: Whether the GPU needs the driver's open kernel modules.


def release_named(knowledge: KnowledgeBase, asked: str) -> tuple[Release, str]:
    """Return the row of a release (`2.19`, `2.19.1`) and its full version: the newest patch release for a minor one.

    Raises ProfileError for an invalid version, and for a version that was never released.
    """
    # ASCII only: without it, `\d` matches the digits of every script.
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", asked, re.ASCII):
        newest = max(knowledge.releases, key=Version)
        fixes = (
            "write a version such as `2.19`; without a version, tfdock uses the newest release that fits",
            f'a profile builds a branch: `tensorflow: {{release: "{newest}", ref: master}}`',
        )
        message = f"`{asked}` is not a version of TensorFlow"
        raise ProfileError.of("profile-bad-value", message, fixes, field="tensorflow")
    row = knowledge.release_of(asked)
    if row is None:
        known = sorted(knowledge.releases, key=Version)
        place = bisect(known, Version(asked), key=Version)
        beside = " or ".join(f"`{name}`" for name in known[max(place - 1, 0) : place + 1])
        message = f"TensorFlow {asked} is not known; known are {known[0]} to {known[-1]}"
        fix = f"use the nearest release, {beside}; `tfdock releases` lists all"
        builds = [row for row in knowledge.published_builds if same_minor(asked, row.tensorflow)]
        parts = (f"{row.build} is for {', '.join(row.machines)}; {row.parts}: `{row.get}`" for row in builds)
        raise ProfileError.of("release-unknown", message, fix, why="; ".join(parts), field="tensorflow")
    exact = len(Version(asked).parts) > len(Version(row.release).parts)
    if exact and row.patches and asked not in row.patches:
        message = f"TensorFlow {asked} does not exist; of {row.release} there are {', '.join(row.patches)}"
        fix = f"use `{row.newest}`, or write `{row.release}`, which means its newest version"
        raise ProfileError.of("release-unknown", message, fix, field="tensorflow")
    return row, asked if exact else row.newest


def target_facts(knowledge: KnowledgeBase, accelerator: Accelerator, target: str, name: str = "") -> TargetFacts:
    """Return the facts of a target (`8.6`, `gfx90a`), or of one GPU, which may need a newer driver."""
    family = accelerator.accelerator
    written = fits.exact_target(accelerator, target)
    number = target_number(written)
    rows = knowledge.toolkits_of(accelerator.toolkit)
    gpu = knowledge.gpus.get(name)
    newest = Version(gpu.toolkit_max) if gpu and gpu.toolkit_max else Version(rows[-1].version) if rows else None
    able = [row for row in rows if number in row.targets and newest and Version(row.version) <= newest]
    toolkits = tuple(row.version for row in able)
    architecture = architecture_of(knowledge, family, target)
    first = Version(next(iter(toolkits), ""))  # without a toolkit an empty version, for which no driver is known
    driver, windows = (gpu_driver(knowledge, family, target, name, wsl=wsl) for wsl in (False, True))
    floors = (fits.toolkit_floor(knowledge, accelerator.toolkit, first, wsl=wsl) for wsl in (False, True))
    toolkit_driver, toolkit_windows = floors
    return TargetFacts(
        accelerator=family,
        toolkit=accelerator.toolkit,
        target=target,
        written=written,
        architecture=architecture.architecture if architecture else None,
        embedded=is_embedded(knowledge, family, target),
        toolkits=toolkits,
        last_toolkit=bool(able) and able[-1] is rows[-1],
        releases=_releases(knowledge, family, target, toolkits),
        driver=_newest(driver),
        driver_max=architecture.driver_max if architecture else None,
        toolkit_driver=_newest(toolkit_driver),
        toolkit_driver_windows=_newest(toolkit_windows),
        needs_driver=_newest(driver, toolkit_driver),
        needs_driver_windows=_newest(windows, toolkit_windows),
        open_modules=needs_open_modules(knowledge, family, target, name),
        reports=fits.reports(knowledge, family, target),
    )


def _newest(*drivers: Version | None) -> str | None:
    newest = max((driver for driver in drivers if driver), default=None)
    return str(newest) if newest else None


_Libraries = Mapping[str, Sequence[str]]  #: Each library of a release -> the versions that the release accepts.


@lru_cache(maxsize=1024)  # many GPUs in a list have the same target
def _releases(knowledge: KnowledgeBase, family: str, target: str, minors: tuple[str, ...]) -> tuple[ReleaseFor, ...]:
    """Return the releases that take the target, with a toolkit, libraries and an image for it; oldest first."""
    accelerator = knowledge.accelerators[family]
    taking = []
    for release in sorted(knowledge.releases.values(), key=lambda row: Version(row.release)):
        support = release.support(accelerator.toolkit)
        others = [name for name in accelerator.components if name != accelerator.toolkit]
        beside = {name: taken_versions(release.components[name]) for name in others if name in release.components}
        built = sure_builds(knowledge).get((accelerator.toolkit, ""), ())
        reported = {str(version.minor) for of, version, _ in built if str(of) == release.release}
        # Builds by others count if upstream names no version that compiles for the target.
        for versions in (taken_versions(support), sorted(reported, key=Version)):
            toolkits = tuple(
                version
                for version in versions
                # `11` matches `11.2` and all other 11.x.
                if any(Version(minor).matches(Version(version).minor) for minor in minors)
                # A toolkit without a library or an image cannot be used for a build.
                and _has_libraries(knowledge, accelerator, beside, version, target)
                and _has_image(knowledge, accelerator, release, beside, version)
            )
            if toolkits:
                break
        expressible = fits.can_express_target(release, accelerator, fits.exact_target(accelerator, target))
        if toolkits and expressible and fits.is_used(release, accelerator, target):
            official = release.official_targets.get(accelerator.accelerator, ())
            verdict = judge(knowledge, accelerator, target, official)
            found = ReleaseFor(
                release=release.release,
                toolkits=toolkits,
                tested=support.tested in toolkits,
                official=any(dotted(listed) == target for listed in official),
                wheel_runs=verdict.runs,
                wheel_by=verdict.by,
                xla=fits.reaches(accelerator, target, release.xla_floor),
            )
            taking.append(found)
    return tuple(taking)


def _has_image(
    knowledge: KnowledgeBase, accelerator: Accelerator, release: Release, beside: _Libraries, toolkit: str
) -> bool:
    """Return whether a base image for any kind of machine is known for the release and the toolkit."""
    # Which image fits depends also on the versions of the libraries.
    for versions in itertools.product(*beside.values()):
        components = {accelerator.toolkit: toolkit, **dict(zip(beside, versions, strict=True))}
        for row in knowledge.images:
            is_one = fits.serves(knowledge, row, release, accelerator, components)
            if is_one and not fits.missing_tag(knowledge, fits.name_with(row, components)):
                return True
    return False


def _has_libraries(
    knowledge: KnowledgeBase, accelerator: Accelerator, beside: _Libraries, toolkit: str, target: str
) -> bool:
    """Return whether each library of the release has a known version for toolkit and target."""

    def is_usable(name: str, version: str) -> bool:
        rows = fits.libraries(knowledge, name, version)
        # Without a row, the library is assumed to work.
        return not rows or any(
            fits.is_made_for(row, toolkit) and fits.has_code_for(row, accelerator, target) for row in rows
        )

    return all(any(is_usable(name, version) for version in versions) for name, versions in beside.items())


def taken_versions(support: Support) -> list[str]:
    """Return the versions of a component that a release accepts, in order."""
    return sorted(support.known - {*support.disputed}, key=Version)


def apart(knowledge: KnowledgeBase, accelerator: Accelerator, devices: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return lines that say why no release serves all devices (name, target) with one toolkit; may be empty."""
    facts = {target: target_facts(knowledge, accelerator, target) for _, target in devices}
    taking = [
        {(release.release, version) for release in row.releases for version in release.toolkits}
        for row in facts.values()
    ]
    # It is enough if one release with one toolkit takes all devices.
    if not taking or set.intersection(*taking):
        return ()
    lines = (
        f"{name}{'' if name in (target, facts[target].written) else f' ({target})'}: "
        f"{toolkit_words(knowledge, facts[target])}; {release_words(knowledge, facts[target])}"
        for name, target in devices
    )
    return (*lines, *(line for row in facts.values() if not row.releases for line in row.reports))


def toolkit_words(knowledge: KnowledgeBase, facts: TargetFacts) -> str:
    """Return, as text, which toolkit versions compile for a target: `CUDA 12.8 or newer`."""
    name = knowledge.accelerators[facts.accelerator].title
    known = [row.version for row in knowledge.toolkits_of(facts.toolkit)]
    if not facts.toolkits:
        return f"no {name} is known to support it"
    return f"{name} {', '.join(range_words(spans(facts.toolkits, known), is_open=facts.last_toolkit))}"


def release_words(knowledge: KnowledgeBase, facts: TargetFacts) -> str:
    """Return, as text, which releases accept a target: `TensorFlow 2.5 or newer`."""
    releases = [release.release for release in facts.releases]
    if not releases:
        return "no release of TensorFlow itself is known to support it"
    # No newer release is known to refuse the target, so the last range may be open.
    is_open = releases[-1] == max(knowledge.releases, key=Version)
    return f"TensorFlow {', '.join(range_words(spans(releases, knowledge.releases), is_open=is_open))}"


def range_words(ranges: Sequence[tuple[str, str]], *, is_open: bool = False) -> list[str]:
    """Return ranges of versions as texts: `2.5`, `2.7 to 2.9`, and of an open last range `2.12 or newer`."""
    words = [first if first == last else f"{first} to {last}" for first, last in ranges]
    return [*words[:-1], f"{ranges[-1][0]} or newer"] if is_open else words


def spans(versions: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """Return the first and last version of each unbroken run of known versions."""
    order = sorted(set(known), key=Version)
    wanted, ranges = set(versions), list[tuple[str, str]]()
    for version, before in zip(order, [None, *order], strict=False):
        if version not in wanted:
            continue
        if before in wanted and ranges:
            ranges[-1] = (ranges[-1][0], version)
        else:
            ranges.append((version, version))
    return ranges


def python_spans(versions: Sequence[str]) -> list[tuple[str, str]]:
    """Return the unbroken runs of Python versions (minor versions have no gaps)."""
    # Any bound above Python's minor versions will do.
    return spans(versions, [f"{version.partition('.')[0]}.{minor}" for version in versions for minor in range(99)])
