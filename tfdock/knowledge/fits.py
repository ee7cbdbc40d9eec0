"""Check whether two rows are compatible, and select the archives that install what a base image lacks.

`resolve/rules.py` puts the answers into sentences. A GPU is written as its number (`8.6`, `gfx90a`), a target as in a
profile (`sm_86`, `gfx90a`).

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache

from tfdock.knowledge.contract import version_facts
from tfdock.knowledge.gpu_rows import TargetReport
from tfdock.knowledge.image_rows import ArchiveRow, Distribution, ImageRow, ImageTags
from tfdock.knowledge.release_rows import Release, SourceArchive, Support, applies
from tfdock.knowledge.rows import Accelerator, lies_within, placeholders
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import LibraryRow, Toolkit
from tfdock.types import Capability, Version, same_minor


def archives_of(
    knowledge: KnowledgeBase, image: ImageRow, components: Mapping[str, str]
) -> tuple[ArchiveRow, ...] | None:
    """Return one archive for each of the image's `archives`, in order; None if no archive fits one of them."""
    archives = []
    for name in image.archives:
        archive = next((row for row in knowledge.archives if row.component == name and _fits(row, components)), None)
        if archive is None:
            return None
        archives.append(archive)
    return tuple(archives)


def _fits(row: ArchiveRow, components: Mapping[str, str]) -> bool:
    """Return whether an archive's version matches the requested version, and it is made for the other components."""
    asked = components.get(row.component)
    return (
        asked is not None
        and Version(row.version).matches(Version(asked))
        and all(Version(components.get(name, "")).matches(Version(want)) for name, want in row.components.items())
    )


def source_archives_of(knowledge: KnowledgeBase, release: Release) -> tuple[SourceArchive, ...]:
    """Return the archives that a release's source downloads from addresses that no longer work."""
    return tuple(row for row in knowledge.source_archives if applies(release, row.releases))


# --- release x target -----------------------------------------------------------------------------------------------


def exact_target(accelerator: Accelerator, gpu: str) -> str:
    """Return the target that serves exactly one GPU: `sm_86` for 8.6; a gfx target is unchanged."""
    return str(Capability.of_gpu(gpu)) if accelerator.capabilities else gpu


def own_target(release: Release, accelerator: Accelerator, gpu: str) -> str:
    """Return the narrowest target that a release accepts for a GPU: with PTX if the release accepts no other."""
    return taken_target(release, accelerator, exact_target(accelerator, gpu))


def taken_target(release: Release, accelerator: Accelerator, target: str) -> str:
    """Return the target with PTX if the release cannot make SASS without PTX, else the same target."""
    return str(replace(Capability.parse(target), ptx=True)) if needs_ptx(release, accelerator, target) else target


def needs_ptx(release: Release, accelerator: Accelerator, target: str) -> bool:
    """Return whether the target is only SASS, but the release knows only `x.y`, which means SASS and PTX."""
    # Such releases know no `sm_`: each item of their list makes both.
    return accelerator.capabilities and release.capability_format == "dotted" and not Capability.parse(target).ptx


def can_express_target(release: Release, accelerator: Accelerator, target: str) -> bool:
    """Return whether the release is known to accept the target in its list."""
    if not accelerator.capabilities:
        return True
    pattern = release.capability_pattern
    if release.capability_format == "dotted" and Capability.parse(target).suffix:
        return False  # the form `x.y` cannot express a letter
    # Without a pattern, the release is not known to refuse any target.
    return pattern is None or bool(re.fullmatch(pattern, written(release, target)))


def written(release: Release, target: str) -> str:
    """Return a capability as the release wants it written."""
    return Capability.parse(target).dotted if release.capability_format == "dotted" else target


def reaches(accelerator: Accelerator, gpu: str, floors: Mapping[str, str]) -> bool:
    """Return whether a GPU is at or above the accelerator's floor (`release.floor`, `release.xla_floor`), if any."""
    floor = floors.get(accelerator.accelerator)
    # Floors are compute capabilities. gfx targets have no order.
    return floor is None or not accelerator.capabilities or Capability.of_gpu(gpu) >= Capability.of_gpu(floor)


def is_listed(release: Release, accelerator: Accelerator, gpu: str) -> bool:
    """Return whether the release's list of usable GPUs contains the GPU; True if the release has no list."""
    allowed = release.runtime_targets.get(accelerator.accelerator, ())
    return not allowed or gpu in allowed


def is_used(release: Release, accelerator: Accelerator, gpu: str) -> bool:
    """Return False only if the release is known to ignore such GPUs at run time, whatever code was compiled."""
    return reaches(accelerator, gpu, release.floor) and is_listed(release, accelerator, gpu)


def overrides(knowledge: KnowledgeBase, accelerator: Accelerator, gpu: str) -> list[TargetReport]:
    """Return the settings with which such GPUs run code for another target, if somebody reported that it works."""
    rows = _reports(knowledge, accelerator.accelerator, gpu)
    return [row for row in rows if row.setting and row.works and row.runs_as != gpu and not row.unverified]


def _reports(knowledge: KnowledgeBase, name: str, gpu: str) -> list[TargetReport]:
    return [row for row in knowledge.target_reports if (row.accelerator, row.target) == (name, gpu)]


@lru_cache(maxsize=1024)  # each refused trial of a profile calls this
def reports(knowledge: KnowledgeBase, name: str, gpu: str) -> tuple[str, ...]:
    """Return sentences on a target of an accelerator: which forks use it, and what users report."""
    taken: dict[str, list[str]] = {}
    for release in sorted(knowledge.releases.values(), key=lambda row: Version(row.release)):
        fork = knowledge.fork(release, name)
        if fork and gpu in fork.targets:
            taken.setdefault(fork.git, []).append(release.release)
    takes = (f"TensorFlow {', '.join(releases)} of {git} takes {gpu}" for git, releases in taken.items())
    return (*takes, *(row.sentence for row in _reports(knowledge, name, gpu)))


# --- libraries ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def libraries(knowledge: KnowledgeBase, component: str, version: str) -> tuple[LibraryRow, ...]:
    """Return the rows of a component's version; an incomplete version can have several rows."""
    rows = (row for row in knowledge.libraries if row.component == component)
    # `9` lies in every range of 9.x versions.
    return tuple(row for row in rows if lies_within(version, row.since, row.until or ""))


def is_made_for(row: LibraryRow, toolkit: str) -> bool:
    """Return whether a library is made for this version of a toolkit, by the parts that both versions have."""
    return not row.toolkits or any(same_minor(toolkit, made) for made in row.toolkits)


def has_code_for(row: LibraryRow, accelerator: Accelerator, gpu: str) -> bool:
    """Return whether a GPU is in the range of GPUs for which a library has code."""
    if not accelerator.capabilities:
        return True
    capability = Capability.of_gpu(gpu)
    below = row.lowest is not None and capability < Capability.of_gpu(row.lowest)
    return not below and (row.highest is None or capability <= Capability.of_gpu(row.highest))


# --- images ---------------------------------------------------------------------------------------------------------


def serves(
    knowledge: KnowledgeBase,
    image: ImageRow,
    release: Release,
    accelerator: Accelerator,
    components: Mapping[str, str],
) -> bool:
    """Return whether a base image has such components for a release, or can get the missing components."""
    return (
        applies(release, image.releases)
        and (not image.accelerators or accelerator.accelerator in image.accelerators)
        and all(Version(components.get(part, "")).matches(Version(want)) for part, want in image.components.items())
        and archives_of(knowledge, image, components) is not None
    )


def name_with(image: ImageRow, components: Mapping[str, str]) -> str:
    """Return the part of a base image's name that the components decide, which is enough for `missing_tag`."""
    return image.image.format_map(dict.fromkeys(placeholders(image.image), "") | version_facts(components))


@lru_cache(maxsize=4096)
def missing_tag(knowledge: KnowledgeBase, image: str) -> ImageTags | None:
    """Return the row that shows that an image does not exist; None for an image that may exist."""
    tag = re.match(r"[0-9]+(\.[0-9]+)*", image.partition("@")[0].rpartition(":")[2])
    version = Version(tag.group() if tag else "")

    def lacks(row: ImageTags) -> bool:
        since, until = Version(row.since or ""), Version(row.until or "")
        # Compare only the parts that both versions have: 12.3.2 is not above 12.3.
        above = bool(row.until) and version.parts[: len(until.parts)] > until.parts
        return above or version < since or version.text in row.gone

    rows = (row for row in knowledge.image_tags if tag and _is_named(image, row.images))
    return next((row for row in rows if lacks(row)), None)


@lru_cache(maxsize=4096)
def distribution_of(knowledge: KnowledgeBase, image: str) -> tuple[Distribution | None, bool]:
    """Return the distribution in an image's name, and whether its compilers and Pythons are known too."""
    rows = knowledge.distributions.values()
    for row in rows:
        if any(_is_named(image, pattern) for pattern in row.images):
            return row, True
    return next((row for row in rows if any(_is_named(image, pattern) for pattern in row.alike)), None), False


_OFFICIAL = re.compile(r"(?:docker\.io/)?(?:library/)?[a-z]+(?::[\w.]+(?:-(?:slim|backports|\d{8}))*)?")


def lacks_compiler(accelerator: Accelerator, image: str) -> bool:
    """Return whether an image is one of the vendor's images that lack the toolkit's compiler."""
    return any(_is_named(image, pattern) for pattern in accelerator.without_compiler)


def is_plain(image: str) -> bool:
    """Return whether an image is a Docker official image with only a distribution, such as `debian:12-slim`."""
    return _OFFICIAL.fullmatch(image.partition("@")[0]) is not None


def _is_named(image: str, pattern: str) -> bool:
    """Return whether a pattern matches an image's name, whatever registry it comes from."""
    name = re.sub(r"^([^/]*[.:][^/]*|localhost)/", "", image.partition("@")[0]).removeprefix("library/")
    # `fnmatch` compiles an expression for each pattern, so only patterns whose plain characters occur reach it.
    plain = re.split(r"[*?]", pattern.partition("[")[0])
    return all(part in name for part in plain) and fnmatchcase(name, pattern)


# --- drivers --------------------------------------------------------------------------------------------------------


def toolkit_floor(knowledge: KnowledgeBase, toolkit: str, version: Version, *, wsl: bool = False) -> Version | None:
    """Return the oldest driver that runs a toolkit's machine code; None if it is not known.

    A row may name one driver for all minor versions of a major version; otherwise it is the toolkit's own driver.
    """
    # From CUDA 11 on, one driver runs all minor versions of a major one. Before that there is no row.
    shared = knowledge.drivers.get((toolkit, str(version.parts[0]) if version.parts else ""))
    if shared is not None:
        return _version_of_driver(shared.linux, shared.windows, wsl=wsl)
    own = knowledge.toolkit(toolkit, version.text)
    return own_driver(own, wsl=wsl) if own else None


def runs_with_later(knowledge: KnowledgeBase, release: Release, toolkit: str, installed: str = "") -> bool:
    """Return whether a release's wheel runs with later minor versions of its toolkit, or with a later one installed.

    A row of `drivers` means that the vendor keeps a major version compatible, but names of libraries may differ.
    """
    made = Version(release.components.get(toolkit, Support()).tested or "0")
    rows = (row for row in knowledge.runtime_libraries if row.component == toolkit and row.version and not row.use)
    exact = any("." in row.version and made.matches(Version(row.version)) for row in rows)
    others = [installed] if installed else [number for name, number in knowledge.toolkits if name == toolkit]
    later = any(other.parts[:1] == made.parts[:1] and other > made for other in map(Version, others))
    return later and not exact and (toolkit, str(made.parts[0])) in knowledge.drivers


def required(knowledge: KnowledgeBase, release: Release, package: str) -> str:
    """Return the versions of a PyPI package with which a release's wheel works (`>=1.20,<2`); empty if unknown.

    They are the versions that METADATA allows, without those that break the import although METADATA allows them.
    """
    stated = release.requires.get(package, "")
    rows = (row for row in knowledge.requirement_limits if row.package == package and applies(release, row.releases))
    unstated = (row.limit for row in rows if row.limit and not re.search("[<~]|==", stated))
    return ",".join((stated, *unstated)) if stated else ""


def admits(versions: str, version: str) -> bool:
    """Return whether a range of versions, such as `>=1.20,<2`, contains a version."""
    # Imported on use: a `check` without pinned requirements compares no such range.
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(versions).contains(version, prereleases=True)


def versions_of(release: Release) -> dict[str, str]:
    """Return the versions of the parts that a release is made with, by the part's name in small letters."""
    tested = {name: support.tested for name, support in release.components.items() if support.tested}
    made = {"bazel": release.bazel, **release.compilers, **release.built_with, **tested}
    return {name.lower(): version for name, version in made.items()}


def glibc_of(knowledge: KnowledgeBase, part: str, version: str) -> str:
    """Return the glibc of a distribution's version (`ubuntu`, `18.04`), or of `glibc` itself; empty if unknown."""
    rows = (row for row in knowledge.distributions.values() if row.distribution.lower() == f"{part} {version}")
    row, exact = distribution_of(knowledge, f"{part.removesuffix(' linux')}:{version}")
    row = next(rows, row if exact else None)
    return version if part == "glibc" else row.holds.get("glibc", "") if row else ""


def renamed(knowledge: KnowledgeBase, part: str, version: str) -> tuple[str, str]:
    """Return a part and its version by the names of the tables: `l4t 32.7.1` is `jetpack 4.6.1`."""
    rows = ((*key.split(" "), name) for row in knowledge.topics for key, name in row.also.items())
    names = {number: name for known, number, name in rows if known == part and is_among(version, [number])}
    if not names:
        return part, version
    # The longest known beginning of the version; else the first version that begins so.
    number = max(names, key=lambda number: (f"{version}.".startswith(f"{number}."), len(number)))
    name, _, own = names[number].partition(" ")
    return name, own + version[len(number) :]


def is_part(knowledge: KnowledgeBase, part: str, version: str) -> bool:
    """Return whether a word in small letters names a part or a distribution that releases depend on."""
    rows = knowledge.releases.values()
    known = part in ("driver", "python") or any(part in row.requires or part in versions_of(row) for row in rows)
    named = any(row.is_for(part, version) for row in knowledge.published_builds) or boards_with(knowledge, part)
    return known or bool(named or glibc_of(knowledge, part, version))


def goes_with(knowledge: KnowledgeBase, release: Release, part: str, version: str, python: str | None = None) -> bool:
    """Return whether a release's official wheel for Linux, and for a Python, runs with a version of a part.

    This decides for a driver, a glibc, a distribution and a PyPI package. For any other part, return whether the
    release is made with this version.
    """
    if part == "driver":
        made = ((name, support.tested) for name, support in release.components.items() if support.tested)
        floors = (toolkit_floor(knowledge, name, Version(tested)) for name, tested in made)
        return any(floor and not is_older(version, floor) for floor in floors)
    if glibc := glibc_of(knowledge, part, version):
        needed = release.official_glibc_of.get(python or "", release.official_glibc)
        return needed is not None and Version(needed) <= Version(glibc)
    if allowed := required(knowledge, release, part):
        # `3` may be any 3.x: its first version, its last, or a bound of the range.
        bounds = [one for one in re.findall(r"[\d.]+", allowed) if one.startswith(f"{version}.")]
        return any(admits(allowed, one) for one in (version, f"{version}.9999", *bounds))
    if part == "python":
        return is_among(version, release.pythons)
    more = release.tested_bazel if part == "bazel" else release.tested_compilers.get(part, ())
    return is_among(version, [versions_of(release).get(part, ""), *more])


def releases_with(knowledge: KnowledgeBase, part: str, version: str, python: str | None = None) -> list[str]:
    """Return the releases whose official wheel, for a Python, runs with a version of a part or of an older minor."""
    rows = knowledge.releases.items()
    own = {name for name, row in rows if goes_with(knowledge, row, part, version, python)}
    return [name for name, row in rows if name in own or runs_with_later(knowledge, row, part, version)]


def boards_with(knowledge: KnowledgeBase, part: str) -> list[str]:
    """Return the versions of a board's system (`JetPack 4.6` for `jetpack`) for which there are published builds."""
    systems = {row.system for row in knowledge.published_builds if row.system.lower().startswith(f"{part} ")}
    return sorted(systems, key=lambda name: Version(name.rpartition(" ")[2]))


def is_older(driver: str, floor: Version) -> bool:
    """Return whether a driver is older than another one; a branch alone, such as `525`, is its newest driver."""
    return Version(driver).parts < floor.parts[: len(Version(driver).parts)]


def is_among(version: str, versions: Iterable[str]) -> bool:
    """Return whether a version is one of several, where 12.5 is also 12.5.1, and 12."""
    return any(f"{one}.".startswith(f"{version}.") or f"{version}.".startswith(f"{one}.") for one in versions if one)


def own_driver(toolkit: Toolkit, *, wsl: bool) -> Version | None:
    """Return the driver that came with a toolkit; None if it is not known."""
    return _version_of_driver(toolkit.driver_linux, toolkit.driver_windows, wsl=wsl)


def _version_of_driver(linux: str | None, windows: str | None, *, wsl: bool) -> Version | None:
    # If the Windows version is unknown, return the branch: Windows drivers of a branch have higher numbers.
    text = windows or (linux or "").partition(".")[0] if wsl else linux
    return Version(text) if text else None


def emitted_ptx(knowledge: KnowledgeBase, toolkit: tuple[str, str], compiler: tuple[str, str]) -> Version | None:
    """Return the PTX ISA that a compiler writes with a toolkit; each is given as (name, version).

    None if not known.
    """
    row = knowledge.toolkit(*toolkit)
    known = [Version(each.ptx) for each in (row, knowledge.compilers.get(compiler)) if each and each.ptx]
    # clang emits its own newest ISA at most, whatever the toolkit knows: clang 18 with CUDA 12.5 gives 8.3.
    return min(known, default=None) if row and row.ptx else None


def toolkit_of_ptx(knowledge: KnowledgeBase, toolkit: str, ptx: Version) -> Toolkit | None:
    """Return the oldest toolkit that knows that PTX ISA: its driver is the first that does."""
    # A driver knows the PTX of the toolkit that it came with, and all older PTX.
    rows = knowledge.toolkits_of(toolkit)
    return next((row for row in rows if row.ptx and Version(row.ptx) >= ptx), None)
