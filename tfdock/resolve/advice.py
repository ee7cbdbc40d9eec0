"""Advice for GPUs and a release: how the official wheel runs on the GPUs, and the smallest build that runs better.

Everything is computed from knowledge rows. A profile is offered only after it has been resolved and accepted. The
profile names the requested release, or else the nearest release that accepts the profile.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfdock.errors import Incompatible, Problem, ProfileError, joined
from tfdock.gpu.compatibility import Compatibility, serve
from tfdock.gpu.devices import (
    bare_gpu,
    dotted,
    embedded_targets,
    find_gpu,
    gpu_driver,
    gpu_words,
    is_target,
    joined_words,
    machine_of,
    other_device,
    sorted_targets,
    target_number,
    title,
    unknown_gpu,
)
from tfdock.gpu.gpu_facts import OFFICIAL_MACHINE, companions, facts_of_release
from tfdock.knowledge import fits
from tfdock.knowledge.gpu_rows import Gpu, OtherDevice, PublishedBuild, TargetReport
from tfdock.knowledge.release_rows import Estimate, Release, applies
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile.profile import Profile
from tfdock.resolve.gpu_support import apart, range_words, release_named, spans, taken_versions
from tfdock.resolve.profile_changes import Change, gpu_targets, yaml_text
from tfdock.resolve.resolution import Resolution
from tfdock.resolve.resolve import resolve_text
from tfdock.resolve.starter import AcceptedProfile, StarterDevices, profile_text, starter
from tfdock.types import Capability, Host, Version, same_minor

_OTHER_SYSTEMS = "other systems have wheels too: see `tfdock advise arm`, `macos` and `windows`"
_FILLERS = re.compile(
    "an?|and|are|can|compatib\\w+|does|do|for|gpus?|ha(?:ve|s)|how|in?|install|is|it|latest|my|need|newest|o[fnr]|pip|"
    "should|stable|supports?|tensorflow|tf|the|to|use|versions?|what|which|will|with|works?"
)
_GPU_WHEEL = re.compile(r"\b(?:tensorflow|tf)(?:[-_]gpu|\[and[-_]cuda\])", re.IGNORECASE)
_GPU_TOPIC = "tensorflow-gpu"  #: The topic of the wheel with GPU code.
_PLAIN = "cpu"  #: The word for a machine without GPU.
# Comments, after `# `, must fit a terminal of 80 columns.
_COMMENT_COLUMNS = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedWheel:
    """An official wheel."""

    project: str  #: The project's name.
    release: str  #: The minor release, such as `2.18`.
    version: str  #: The version.
    pythons: tuple[str, ...]  #: The Pythons of the wheel.
    targets: tuple[str, ...]  #: The targets of its GPU code; empty if no code for such GPUs is known.
    requirement: str  #: The arguments for pip.
    installs: tuple[str, ...]  #: The Pythons for which this command installs a working TensorFlow.
    system: str = ""  #: Where the wheel runs: system and CPU features; empty for another project's wheel.
    needs: tuple[str, ...] = ()  #: Requirements that pip does not install, such as `CUDA 11.2`.
    pins: tuple[str, ...] = ()  #: Extra pip requirements, if a newer version would not support a GPU or the wheel.

    @property
    def beside(self) -> str:
        """The parts that pip does not install, as the end of a sentence; empty if there are none."""
        return f"; {' and '.join(self.needs)} must be installed beside it" if self.needs else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The whole answer. `asked` is the requested release, `native` the newest official wheel that runs on all GPUs
    without JIT, `instead` an official wheel that makes a build of the offer unnecessary. `notes` are further facts
    about the wheel.

    `offer` is the profile to build; if no release accepts the GPUs, an untested profile of the requested release.
    `untested` is this untested profile if the offer is of another release; `refused` says why the requested release
    does not fit. `elsewhere` is the kind of machine that a GPU is part of, if no official wheels are for it;
    `buildable`: there are base images for it. `mixed`: the GPUs have several accelerators; `apart` says in lines why
    no wheel serves all GPUs. `reported` are reports about GPUs on which the wheel does not start at once. `overrides`
    are settings with which users run code for another target. `published_builds` are wheels and images by others for
    the GPUs, the newest first. `unbuilt` is a system for which tfdock builds nothing. `jit` is how long a first start
    takes that compiles PTX.
    """

    asked: str | None
    release: Release
    version: str
    python: str | None
    wheel: AdvisedWheel
    gpus: tuple[Compatibility, ...]
    native: AdvisedWheel | None
    instead: AdvisedWheel | None
    notes: tuple[str, ...] = ()
    published_builds: tuple[PublishedBuild, ...] = ()
    unbuilt: str = ""
    offer: AcceptedProfile | None = None
    untested: AcceptedProfile | None = None
    refused: tuple[Problem, ...] = ()
    elsewhere: str = ""
    buildable: bool = True
    mixed: bool = False
    apart: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    overrides: tuple[TargetReport, ...] = ()
    jit: Estimate | None = None

    @property
    def needs_no_build(self) -> bool:
        """Whether the release's official wheel serves every GPU."""
        has_python = self.python is None or self.python in self.wheel.pythons
        return has_python and all(gpu.starts_at_once for gpu in self.gpus)


# --- the whole ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What the words of a question name. `unknown` are words that name nothing, if other words are understood."""

    names: list[str]
    parts: dict[str, str]
    gpus: list[str]
    systems: dict[str, OtherDevice]
    topics: dict[str, OtherDevice]
    unknown: list[str]

    @property
    def subjects(self) -> list[str]:
        """The topics that are no systems."""
        return [name for name, row in self.topics.items() if name not in self.systems and not row.official]

    def on_system(self, knowledge: KnowledgeBase, release: str | None) -> tuple[KnowledgeBase, OtherDevice | None]:
        """Return the knowledge for the system that is named, and the system; a topic may narrow both."""
        if len(self.systems) > 1:
            message = f"{' and '.join(self.systems)} are two systems"
            raise ProfileError.of("wish-malformed", message, "name one of them")
        name, device = next(iter(self.systems.items()), ("", None))
        if device is None:
            return knowledge, None
        base = knowledge.on_system(device, name)
        device = knowledge.about(device, release) if release else device
        for row in (row for name, row in self.topics.items() if row.official and name not in self.systems):
            base = base.on_system(row)
            device = device.model_copy(update={"says": f"{row.says}; {device.says}", "instead": row.instead})
        return base, device.model_copy(update={"device": name})


def read_question(knowledge: KnowledgeBase, words: Sequence[str]) -> Asked:
    """Return what the words of a question name. The whole question may be one word, in quotes."""
    plain = (_GPU_WHEEL.sub(f"{_GPU_TOPIC} tensorflow", word).replace("==", " ") for word in words)
    bare = (one.strip("'\"").rstrip("?!.;:*") for word in plain for one in word.split())
    parts, others = _parts_in(knowledge, [one for one in bare if one])
    names = [name for name in joined_words(knowledge, others) if not _FILLERS.fullmatch(name.lower())]
    rows = {name: row for name in names if (row := other_device(knowledge, name))}
    topics = {name: row for name, row in rows.items() if row in knowledge.topics}
    systems = {name: row for name, row in rows.items() if row.official and (name not in topics or rows == topics)}
    gpus = [name for name in names if name not in {*systems, *topics} and name.lower() != _PLAIN]
    # Without a GPU's name and another subject, the answer is about the wheel with GPU code too.
    topic = other_device(knowledge, _GPU_TOPIC)
    if topic and not (gpus or rows) and "gpu" in (word.lower().rstrip("s") for word in others):
        topics[_GPU_TOPIC] = topic
        names = names if parts else [_GPU_TOPIC]
    machines = _joined_systems(systems)
    names = [*(name for name in names if name not in systems), *machines]
    topics = {name: row for name, row in topics.items() if name not in systems or name in machines}
    # A word without a digit that is not like the name of any GPU.
    strange = {name for name in gpus if not (name in rows or re.search(r"\d", name) or find_gpu(knowledge, name))}
    strange = {name for name in strange if name.lower() not in gpu_words(knowledge)}
    strange = strange if parts or strange < {*names} else set()
    known, unknown = ([name for name in gpus if (name in strange) is odd] for odd in (False, True))
    return Asked(names, parts, known, machines, topics, unknown)


def _joined_systems(systems: dict[str, OtherDevice]) -> dict[str, OtherDevice]:
    """Return systems by name. The names of one machine are joined: each may tell something (`m1 macos 11.6`)."""
    for name, row in systems.items():
        same = [other for other, its in systems.items() if other != name and (its is row or its.device in row.within)]
        if same:
            others = {one: its for one, its in systems.items() if one not in (name, *same)}
            return _joined_systems({**others, " ".join((name, *same)): row})
    return systems


def advise_on(
    knowledge: KnowledgeBase,
    asked: Asked,
    *,
    tensorflow: str | None = None,
    python: str | None = None,
    machine: str = OFFICIAL_MACHINE,
) -> Advice:
    """Return advice for the GPUs and the system of a question; `cpu`, or a system alone, is without GPU.

    For a part and its version (`driver 470`, `ubuntu 18.04`, `numpy 1.26`), the advice is about releases whose
    official wheels run with it. Topics, such as `docker`, add what is known about them. `machine` is the CPU of a
    build for no GPU. Raises ProfileError and Incompatible, as the functions below.
    """
    parts = {name: version for name, version in asked.parts.items() if name not in ("tensorflow", "python")}
    tensorflow, python = tensorflow or asked.parts.get("tensorflow"), python or asked.parts.get("python")
    base, device = asked.on_system(knowledge, tensorflow)
    if asked.subjects and asked.subjects == asked.names:
        raise ProfileError(*(unknown_gpu(knowledge, name, tensorflow) for name in asked.subjects))
    try:
        base, notes = _limited_to(base, parts, tensorflow, python, device is None or device.linux)
        if not asked.gpus and (asked.names or asked.parts):
            _check_needs_no_gpu(knowledge, parts, (*notes, *([device.says] if device else ())))
            wanted = _Wanted(knowledge=base, gpus=(), python=python, device=device)
            advice = _advise_without_gpu(wanted, tensorflow, machine)
        else:
            named = gpus_named(knowledge, asked.gpus)
            _check_driver(knowledge, named, parts.get("driver", ""), wsl=device is not None and device.windows_driver)
            advice = advise(base, named, tensorflow=tensorflow, python=python, device=device, parts=parts)
    except ProfileError as error:
        # What is known about a system or a topic helps also if the rest of the question has no answer.
        more = [*asked.subjects, *(() if any(problem.why for problem in error.problems) else asked.systems)]
        raise ProfileError(*error.problems, *(unknown_gpu(knowledge, name, tensorflow) for name in more)) from None
    release = tensorflow or (advice.instead or advice.wheel).version
    rows = {asked.topics[name].device: asked.topics[name] for name in asked.subjects}
    about = [knowledge.about(row, release) for row in rows.values()]
    lines = [text for row in about for text in (row.says, row.instead)]
    lines += [f"tfdock does not know `{name}`: this answer leaves the word out" for name in asked.unknown]
    return replace(advice, notes=(*lines, *notes, *advice.notes))


def _check_needs_no_gpu(knowledge: KnowledgeBase, parts: Mapping[str, str], notes: Sequence[str]) -> None:
    """Raise ProfileError, with the notes, if a part is for GPUs: no answer fits without the GPU's name."""
    for part, version in parts.items():
        rows = [row for row in knowledge.published_builds if row.is_for(part, version)]
        if part in knowledge.components or rows:
            pair = f"{part} {version}"
            fix = f"name the GPU: `tfdock advise GPU {pair}`; `tfdock releases {pair}` lists releases"
            message = f"`{pair}` is for a GPU, and no GPU is named"
            builds = [f"{row.build} has TensorFlow {row.tensorflow}: `{row.get}`" for row in rows]
            raise ProfileError.of("wish-without-gpu", message, fix, why="; ".join([*notes, *builds]), field="gpu")


def _check_driver(knowledge: KnowledgeBase, gpus: Sequence[Gpu], driver: str, *, wsl: bool) -> None:
    """Raise ProfileError if a driver is too old to find one of the GPUs; `driver` is empty if unknown."""
    for gpu in gpus if driver else ():
        first = gpu_driver(knowledge, gpu.accelerator, gpu.target, gpu.gpu, wsl=wsl)
        if first and fits.is_older(driver, first):
            message = f"driver {driver} does not know {title(knowledge, gpu)}"
            raise ProfileError.of("driver-too-old-for-gpu", message, f"install driver {first} or newer", field="gpu")


def _parts_in(knowledge: KnowledgeBase, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return part -> version for the pairs of a part and its version in words, and the other words."""
    parts: dict[str, str] = {}
    others = list[str]()
    for word in words:
        # A distribution may have two words: `amazon linux 2`.
        sizes = (2, 1) if re.fullmatch(r"\d+(\.\d+)*", word) else ()
        names = {size: " ".join(others[-size:]).lower() for size in sizes if len(others) >= size}
        pairs = {size: fits.renamed(knowledge, name, word) for size, name in names.items()}
        known = (size for size, pair in pairs.items() if "tensorflow" in pair or fits.is_part(knowledge, *pair))
        if size := next(known, 0):
            parts |= [pairs[size]]
            del others[-size:]
        else:
            others.append(word)
    return parts, others


def _limited_to(
    knowledge: KnowledgeBase, parts: Mapping[str, str], tensorflow: str | None, python: str | None, linux: bool
) -> tuple[KnowledgeBase, tuple[str, ...]]:
    """Return the knowledge about the releases whose official wheels run with these parts, and notes on the parts.

    A requested release stays. In Linux a toolkit limits nothing: pip may install another one beside it. The notes say
    which releases go with each part. Raises ProfileError if no release is left.
    """
    notes, left = [], {*knowledge.releases}
    asked = release_named(knowledge, tensorflow)[0] if tensorflow else None
    for part, version in parts.items():
        if any(row.is_for(part, version) for row in knowledge.published_builds):
            continue
        if boards := fits.boards_with(knowledge, part):
            fix = f"wheels are known for {joined(boards)}; to build on the board: `tfdock advise {part}`"
            raise ProfileError.of("release-unknown", f"no wheel is known for {part} {version}", fix)
        fitting = fits.releases_with(knowledge, part, version, python)
        releases = releases_words(knowledge, fitting, f"{part} {version}")
        old = asked and asked.release not in fitting
        made = fits.versions_of(asked).get(part, "") if asked and old else ""
        own = f"{releases}; TensorFlow {asked.release} is made with {part} {made}" if asked and made else releases
        notes.append(f"official wheels that go with {part} {version}: {own}")
        driver = part == "driver"
        if old and (driver or fits.glibc_of(knowledge, part, version)):
            beside = f" and Python {python}" if python and not driver else ""
            message = f"{part} {version} is too old for TensorFlow {tensorflow}{beside}"
            fix = f"update the {'driver' if driver else 'system'}, or use TensorFlow {releases}"
            raise ProfileError.of("driver-too-old" if driver else "release-unknown", message, fix)
        tool = any(part in fits.versions_of(row) for row in knowledge.releases.values())
        left &= {*fitting} if not tool or (fitting and not linux) else left
    if not left:
        raise ProfileError.of("release-unknown", "no release goes with all of these versions", why="; ".join(notes))
    rows = {name: row for name, row in knowledge.releases.items() if name in left or row is asked}
    return knowledge.with_releases(rows), tuple(notes)


def releases_words(knowledge: KnowledgeBase, releases: Sequence[str], pair: str) -> str:
    """Return releases as ranges, with the command that lists them by a part and its version; `none` without any."""
    if not releases:
        return "none"
    return f"{joined(range_words(spans(releases, knowledge.releases)))} (`tfdock releases {pair}`)"


def advise(
    knowledge: KnowledgeBase,
    gpus: Sequence[Gpu],
    *,
    tensorflow: str | None = None,
    python: str | None = None,
    device: OtherDevice | None = None,
    parts: Mapping[str, str] | None = None,
) -> Advice:
    """Return advice for GPUs and a release (`2.19`, `2.19.1`; None is the newest), on a system without builds.

    `parts` are versions of the driver or the board's system (`jetpack`), if known.

    Raises ProfileError for an unknown release.
    """
    # Compare as versions: as text, 2.9 is above 2.21.
    order = sorted(knowledge.releases.values(), key=lambda row: Version(row.release), reverse=True)
    release, version = release_named(knowledge, order[0].release if tensorflow is None else tensorflow)
    wanted = _Wanted(knowledge=knowledge, gpus=gpus, python=python, device=device, parts=parts or {})
    compatibilities = wanted.on_official(release)
    offer, refused = wanted.offer(release, version)
    # If the offer is of the requested release, no untested profile is needed beside it.
    own = offer is not None and offer.release is release
    untested = None if own else wanted.try_release(release, version, allow_untested=True)[0]
    planned = offer or untested
    native = next(filter(None, map(wanted.native_of, order)), None)
    # Without a requested release, an official wheel that runs natively makes a build unnecessary. A wheel for a CUDA
    # that pip does not install is old: if a newer release can be built for the GPUs, the build comes first.
    newer = offer and native and native.needs and Version(offer.release.release) > Version(native.release)
    instead = None if newer else native
    if tensorflow is not None and offer:
        instead = None if own else wanted.native_of(offer.release)
    elif tensorflow is not None:
        instead = next(filter(None, map(wanted.native_of, _by_nearness(knowledge, release))), None)
    return Advice(
        asked=tensorflow,
        release=release,
        version=version,
        python=python,
        wheel=wanted.official_wheel(release, version),
        gpus=compatibilities,
        native=native,
        instead=instead,
        notes=(device.says, device.instead) if device else (),
        # Which driver these builds need is not known.
        published_builds=() if "driver" in wanted.parts else wanted.published_builds(tensorflow and release.release),
        unbuilt=wanted.unbuilt,
        offer=planned,
        untested=untested if offer else None,
        refused=refused,
        elsewhere=wanted.elsewhere,
        buildable=any(row.machine == wanted.elsewhere for row in knowledge.images),
        mixed=wanted.mixed,
        apart=() if wanted.mixed or planned else wanted.reasons_apart(),
        reported=wanted.reported(compatibilities),
        overrides=tuple(row for gpu in gpus for row in fits.overrides(knowledge, wanted.accelerator, gpu.target)),
        jit=knowledge.estimate("jit-first-start", release, wanted.accelerator),
    )


def _advise_without_gpu(wanted: _Wanted, tensorflow: str | None, machine: str) -> Advice:
    """Return the official wheel for a machine without GPU, and a profile for a build if its system has builds.

    Raises ProfileError for an unknown release or without a wheel; Incompatible if a build is needed and refused.
    """
    knowledge, python, device = wanted.knowledge, wanted.python, wanted.device
    having = {name for name, row in knowledge.releases.items() if row.pythons and wanted.native_of(row)}
    newest = max(having or knowledge.releases, key=Version)
    release, version = release_named(knowledge, tensorflow or newest)
    wheel = wanted.official_wheel(release, version)
    near = (wanted.native_of(row) for row in _by_nearness(knowledge, release) if row.release in having)
    native = wheel if release.release in having else next(near, None)
    start = None
    if not wanted.unbuilt and (native is wheel or not device):
        devices = StarterDevices(accelerator=wanted.accelerator)
        try:
            start = starter(knowledge, devices, tensorflow=version, python=python, machine=machine)
        except Incompatible:
            if native is wheel:
                raise
    if not start and native is not wheel:
        where = " and ".join([*([device.device] if device else ()), *([f"Python {python}"] if python else ())])
        which = f"{f'TensorFlow {version} has' if tensorflow or having else 'there is'} no official wheel for {where}"
        fix = [f"take TensorFlow {native.version}: `{pip_install(native)}`"] if native else []
        if python and release.pythons:
            fix.insert(0, f"take Python {' to '.join(dict.fromkeys((release.pythons[0], release.pythons[-1])))}")
        fix += [device.instead] if device else []
        why = device.says if device else "a build for this Python is not possible either"
        raise ProfileError.of("release-unknown", which, fix, why=why, field="tensorflow")
    return Advice(
        asked=tensorflow,
        release=release,
        version=version,
        python=python,
        wheel=wheel,
        gpus=(),
        native=native,
        instead=native,
        notes=(device.says, device.instead) if device else (_OTHER_SYSTEMS,),
        unbuilt=wanted.unbuilt,
        offer=start,
    )


#: Fields of a profile that change the wheel's contents, in addition to release, Python and GPUs.
_ALTERS = ("xla", "cloud", "optimize", "debug", "bazel", "wheel", "base", "compiler", "host_compiler", "edits")


def pip_install(wheel: AdvisedWheel) -> str:
    """Return the `pip` command that installs an official wheel."""
    return shlex.join(["pip", "install", wheel.requirement, *wheel.pins])


def official_note(knowledge: KnowledgeBase, profile: Profile, resolution: Resolution) -> str:
    """Return the note that an official wheel makes a build unnecessary.

    Empty if the wheel needs JIT on a GPU of the profile, or lacks something that the profile requests.
    """
    release, accelerator = resolution.release, resolution.accelerator
    if profile.source.is_own or any(map(profile.is_set, _ALTERS)):
        return ""
    if resolution.image.machine != OFFICIAL_MACHINE or not release.official_targets.get(accelerator.accelerator):
        return ""
    # For listed targets and this machine's GPUs, the profile has targets but no names.
    own = {dotted(target) for target in gpu_targets(profile.named_gpus, knowledge)}
    others = dict.fromkeys(target for target in map(dotted, resolution.targets) if target not in own)
    names = (*profile.named_gpus, *others)
    wanted = _Wanted(knowledge=knowledge, gpus=gpus_named(knowledge, names), python=resolution.python)
    if not wanted.native_of(release):
        return ""
    wheel = wanted.official_wheel(release, str(resolution.version))
    tested = {name: release.support(name).tested for name in resolution.components}
    # A user who builds for another CUDA has this CUDA installed.
    if any(version and not same_minor(resolution.components[name], version) for name, version in tested.items()):
        return ""
    asked = shlex.join(["tfdock", "advise", "--gpu", ",".join(names), "--tensorflow", wheel.version])
    limits = f"; `{asked}` prints the limits of this wheel, and its requirements for the GPU"
    limited = any(one.limits for one in wanted.on_official(release))
    runs = f"the official wheel of TensorFlow {wheel.version} runs on {joined(names)}"
    return f"no build is needed: {runs}: `{pip_install(wheel)}`{wheel.beside}{limits if limited else ''}"


def gpus_named(knowledge: KnowledgeBase, names: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the rows of GPUs without repetition; raises ProfileError with the nearest names for unknown GPUs."""
    gpus, problems = list[Gpu](), list[Problem]()
    for name in names:
        # Try targets first: as a name, `8.6` could match an unrelated GPU.
        row = bare_gpu(knowledge, name) or find_gpu(knowledge, name)
        if row is None or (is_target(knowledge, name) and row.gpu in knowledge.gpus):
            problems.append(replace(unknown_gpu(knowledge, name), field="gpu"))
        elif row not in gpus:
            gpus.append(row)
    if problems or not gpus:
        no_name = Problem("gpu-unknown", "no GPU is named", "give a GPU: `tfdock advise --gpu rtx3080`", field="gpu")
        raise ProfileError(*problems or [no_name])
    return tuple(gpus)


def cover(
    knowledge: KnowledgeBase, gpus: Sequence[Gpu], *, ptx: bool = False, able: Collection[str] | None = None
) -> tuple[str, ...]:
    """Return the fewest targets that serve all GPUs natively; empty if `able` (numbers like `86`) cannot do so.

    SASS serves its own major version upwards. The minimum is one target for each major version: the target of its
    lowest GPU. Embedded GPUs run only their own code. If `able` lacks that number, the next lower number of the major
    version is used.
    """
    accelerator = knowledge.accelerators[gpus[0].accelerator]
    if not accelerator.capabilities:
        return sorted_targets(gpu.target for gpu in gpus)
    embedded = embedded_targets(knowledge, accelerator.accelerator)
    families = (row for row in knowledge.architectures if row.accelerator == accelerator.accelerator)
    # Embedded targets are left out: their code runs on no other GPU.
    every = {target for row in families for target in row.targets} - embedded
    lowest: dict[tuple[int, str], Capability] = {}
    for gpu in gpus:
        capability = Capability.of_gpu(gpu.target)
        # Each embedded target is a separate group, apart from other targets of its major version.
        group = (capability.major, capability.dotted if capability.dotted in embedded else "")
        lowest[group] = min(capability, lowest.get(group, capability))
    chosen = []
    for (major, own), first in lowest.items():
        others = [] if own else [Capability.of_gpu(each) for each in every if each.startswith(f"{major}.")]
        fitting = [each for each in {first, *others} if each <= first and (able is None or each.number in able)]
        if not fitting:
            return ()
        chosen.append(replace(max(fitting), ptx=ptx))
    return sorted_targets(str(capability) for capability in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The purpose of a wheel: GPUs, and a Python if it matters. The first GPU decides the accelerator."""

    knowledge: KnowledgeBase
    gpus: Sequence[Gpu]
    python: str | None
    device: OtherDevice | None = None  #: A system without builds, whose wheels are in `knowledge`.
    parts: Mapping[str, str] = field(default_factory=dict)  #: Versions of the driver or the board's system.

    @property
    def accelerator(self) -> Accelerator:
        return self.knowledge.accelerators[self.gpus[0].accelerator if self.gpus else _PLAIN]

    @property
    def mixed(self) -> bool:
        """Whether the GPUs belong to several accelerators."""
        return len({gpu.accelerator for gpu in self.gpus}) > 1

    @property
    def elsewhere(self) -> str:
        """The kind of machine that a GPU is part of, if no official wheels are for such machines; else empty."""
        machines = (self.machine(gpu) for gpu in self.gpus)
        return next((machine for machine in machines if machine != OFFICIAL_MACHINE), "")

    @property
    def unbuilt(self) -> str:
        """The system, if nothing is built for it; else empty."""
        return self.device.device if self.device and not self.device.linux else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a profile can use; of other GPUs, only the target is known."""
        return tuple(gpu.gpu for gpu in self.gpus if gpu.gpu in self.knowledge.gpus)

    def machine(self, gpu: Gpu) -> str:
        return machine_of(self.knowledge, gpu) or OFFICIAL_MACHINE

    def reasons_apart(self) -> tuple[str, ...]:
        """Return lines that say why no wheel serves all GPUs: their compilers or their machines differ."""
        if len({self.machine(gpu) for gpu in self.gpus}) > 1:
            return tuple(f"{gpu.gpu} needs a wheel for {self.machine(gpu)} machines" for gpu in self.gpus)
        return apart(self.knowledge, self.accelerator, [(gpu.gpu, gpu.target) for gpu in self.gpus])

    def reported(self, gpus: Iterable[Compatibility]) -> tuple[str, ...]:
        """Return reports about the GPUs on which the wheel does not start at once."""
        slow = [one.gpu for one in gpus if not one.starts_at_once]
        lines = (line for gpu in slow for line in fits.reports(self.knowledge, gpu.accelerator, gpu.target))
        return tuple(dict.fromkeys(lines))

    # --- the official wheel ---------------------------------------------------------------------------------------

    def official_wheel(self, release: Release, version: str) -> AdvisedWheel:
        """Return a release's official wheel for these GPUs; of several accelerators, for the first.

        It is an earlier patch release than `version` if only that one has a wheel for the Python.
        """
        accelerator = self.accelerator
        version = release.official_patch(version, self.python or "") or version
        pythons = tuple(minor for minor in release.pythons if release.official_patch(version, minor) == version)
        project = release.official_project.get(accelerator.accelerator, "tensorflow")
        rows = companions(self.knowledge, release, accelerator)
        extra = next((row.extra for row in rows if row.extra), None)
        # The extra installs libraries, which may exist for fewer Pythons than the wheel.
        able = [minor for minor in pythons if all(not row.pythons or minor in row.pythons for row in rows)]
        if self.python is not None and self.python not in able:
            extra = None  # the libraries cannot be installed with that Python; the wheel itself can
        tested = ((name, release.support(name).tested) for name in accelerator.components)
        later = " or a later {}.x" if fits.runs_with_later(self.knowledge, release, accelerator.toolkit) else ""
        numbers = ((name, f"{number}{later.format(number.partition('.')[0])}") for name, number in tested if number)
        needs = tuple(f"{accelerator.title_of(name)} {number}" for name, number in numbers)
        targets = release.official_targets.get(accelerator.accelerator, ())
        served = self.on_official(release) if extra else ()
        # With newer versions of these packages the wheel cannot be imported.
        kept = (row for row in self.knowledge.requirement_limits if row.unstated and applies(release, row.releases))
        limits = tuple(f"{row.package}{row.limit}" for row in kept)
        return AdvisedWheel(
            project=project,
            release=release.release,
            version=version,
            pythons=pythons,
            targets=targets,
            requirement=f"{project}{f'[{extra}]' if extra else ''}=={release.official_version.get(version, version)}",
            installs=tuple(able) if extra else pythons,
            system="" if self.gpus and not targets else self.system(release, version),
            needs=() if extra else needs,
            pins=tuple(dict.fromkeys(pin for gpu in served for pin in gpu.pins)) + limits,
        )

    def system(self, release: Release, version: str) -> str:
        """Return where the wheel of the project `tensorflow` runs with its GPU code; empty if not known."""
        if self.device and self.unbuilt:
            return self.device.condition_of(release.release)
        rows = self.knowledge.cpu_features.values()
        official = (row for row in rows if row.machine == OFFICIAL_MACHINE and row.is_in_official(release, version))
        features = [row.feature.upper() for row in official]
        newer = release.official_glibc_of
        least = newer.get(self.python or "", release.official_glibc)
        others = "" if self.python else "".join(f" ({glibc} for Python {python})" for python, glibc in newer.items())
        glibc = f" with glibc {least} or newer{others}" if least else ""
        cpu = f" and a CPU with {joined(features)}" if features else ""
        return f"Linux (or WSL 2) on {OFFICIAL_MACHINE}{glibc}{cpu}"

    def native_of(self, release: Release) -> AdvisedWheel | None:
        """Return the official wheel of a release if it runs on all GPUs without JIT, else None."""
        if self.mixed or (self.python is not None and not release.official_patch(release.newest, self.python)):
            return None
        # JIT takes half an hour at the first start: a wheel that needs it is no replacement for a build.
        if not all(compatibility.starts_at_once for compatibility in self.on_official(release)):
            return None
        return self.official_wheel(release, release.newest)

    def published_builds(self, asked: str | None) -> tuple[PublishedBuild, ...]:
        """Return the published builds for all GPUs, the newest first: of the release, or else of any."""
        rows = () if self.mixed else self.knowledge.published_builds
        builds = [row for row in rows if all(self._serves(row, gpu) for gpu in self.gpus)]
        # A build for another Python is better than none: an image brings its own.
        builds = [row for row in builds if self.python in (None, *row.pythons)] or builds
        own = [row for row in builds if asked and same_minor(row.tensorflow, asked)]
        named = [row for row in own or builds if any(row.is_for(*part) for part in self.parts.items())]
        order = sorted(
            named or own or builds, key=lambda row: (not row.unverified, Version(row.tensorflow)), reverse=True
        )
        # Of one vendor's images, or wheels for one system, the newest is enough.
        newest = {row.build: row for row in reversed(order)}
        return tuple(row for row in order if newest[row.build] is row)

    def _serves(self, row: PublishedBuild, gpu: Gpu) -> bool:
        """Return whether a build is known to run on a GPU, if need be with a setting that users report."""
        release = self.knowledge.release_of(row.tensorflow)
        targets = {gpu.target, *(one.runs_as for one in fits.overrides(self.knowledge, self.accelerator, gpu.target))}
        used = {target for target in targets if release and fits.is_used(release, self.accelerator, target)}
        machine = self.device.runs.get(gpu.accelerator) if self.device else self.machine(gpu)
        suits = row.accelerator == gpu.accelerator and machine in row.machines
        return suits and bool(targets & {*row.targets} if row.targets else used)

    def on_official(self, release: Release) -> tuple[Compatibility, ...]:
        """Return how the release's official wheel serves each GPU."""
        return tuple(self._on_official(release, gpu) for gpu in self.gpus)

    def _on_official(self, release: Release, gpu: Gpu) -> Compatibility:
        accelerator = self.knowledge.accelerators[gpu.accelerator]
        # A branch alone (`525`) is no driver that a limit can be compared with.
        driver = self.parts.get("driver", "")
        drivers = {gpu.accelerator: driver} if "." in driver else {}
        wsl = self.device is not None and self.device.windows_driver
        host = Host(wsl=wsl, drivers=drivers) if wsl or drivers else None
        compatibility = serve(self.knowledge, gpu, facts_of_release(self.knowledge, release, accelerator), host)
        # For a GPU of another kind of machine, a reason has been given already.
        beside = self.machine(gpu) != OFFICIAL_MACHINE
        if beside or release.official_targets.get(gpu.accelerator):
            return compatibility
        reason = f"TensorFlow's own wheel of {release.release} has no {accelerator.title} code"
        return replace(compatibility, reason=reason)

    # --- what to build --------------------------------------------------------------------------------------------

    def offer(self, release: Release, version: str) -> tuple[AcceptedProfile | None, tuple[Problem, ...]]:
        """Return the profile for the requested release, or for the nearest that accepts it.

        The problems say why the requested release is refused.
        """
        offer, refused = self.try_release(release, version, suggest=True)
        if offer or self.elsewhere or self.mixed or self.unbuilt:
            return offer, refused  # another release would not change this
        near = None
        for other in _by_nearness(self.knowledge, release):
            accepted, _ = self.try_release(other, other.newest)
            # Machine code and libraries for exactly these GPUs justify a more distant release.
            if accepted and self._has_code_for_each(accepted):
                return accepted, refused
            near = near or accepted
        return near, refused

    def _has_code_for_each(self, accepted: AcceptedProfile) -> bool:
        exact = self._exact_targets(accepted.release)
        # Compare only the numbers: a target may be SASS alone, or SASS with PTX.
        return {*map(target_number, exact)} <= {*map(target_number, accepted.resolution.targets)}

    def try_release(
        self, release: Release, version: str, *, allow_untested: bool = False, suggest: bool = False
    ) -> tuple[AcceptedProfile | None, tuple[Problem, ...]]:
        """Return an accepted profile, or the problems of the first attempt, with suggestions if `suggest` is set."""
        if self.unbuilt or (len(self.names) < len(self.gpus) and self.mixed):
            return None, ()  # one profile cannot list targets of several accelerators
        first, listed = tuple[Problem, ...](), self.accelerator.target_field
        comments = {"xla": "XLA uses no GPU of this age.", "allow_untested": "Nobody is known to have tested this."}
        for targets, comment in self._target_lists(release):
            for xla in (None, False):
                head = {"tensorflow": version, "python": self.python, "gpus": self.names, listed: targets}
                last = {"xla": xla, "allow_untested": allow_untested or None}
                comments[listed] = comment
                try:
                    # One search for fixes is enough, because the search is slow.
                    found = self._accepted(release, {**head, **last}, comments, suggest=suggest and not first)
                    # Resolve once more with all choices written out: the offered text itself must be accepted.
                    chosen, reasons = _changed_choices(release, found.resolution)
                    accepted = self._accepted(release, {**head, **chosen, **last}, {**comments, **reasons})
                except Incompatible as error:
                    first = first or error.problems
                    if any(problem.code != "xla-floor" for problem in error.problems):
                        break  # XLA is not the problem, so the attempt without XLA fails as well
                    continue
                if self.elsewhere:
                    return None, ()  # the rules do not refuse a bare target for its machine, so refuse it here
                return accepted, ()
        return None, first

    def _accepted(
        self, release: Release, fields: Change, comments: Mapping[str, str], *, suggest: bool = False
    ) -> AcceptedProfile:
        """Return a profile with the fields that have a value, each after its comment; raises Incompatible."""
        values = {name: yaml_text(value) for name, value in fields.items() if value not in (None, ())}
        wrapped = {name: textwrap.fill(comment, _COMMENT_COLUMNS) for name, comment in comments.items()}
        text = profile_text({"schema": "1", **values}, wrapped)
        found = resolve_text(text, self.knowledge, file="advice.yaml", machine=OFFICIAL_MACHINE, suggest=suggest)
        return AcceptedProfile(text=text, release=release, resolution=found)

    def _target_lists(self, release: Release) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield (list, comment) to try, smallest first; empty if the names of the GPUs suffice."""
        bare = len(self.names) < len(self.gpus)
        if not self.accelerator.capabilities or self.mixed:
            yield sorted_targets(gpu.target for gpu in self.gpus) if bare else (), ""
            return
        exact = self._exact_targets(release)
        # A release with the format `dotted` takes `x.y`, which always means SASS and PTX.
        ptx = release.capability_format == "dotted"
        able = self._compilable_targets(release)
        whom = "all of them" if len(self.gpus) > 1 else "it"
        # First the targets of the lowest GPUs, then lower targets if no toolkit compiles for the first ones.
        fewest = (cover(self.knowledge, self.gpus, ptx=ptx, able=known) for known in (None, able))
        for targets in dict.fromkeys(fewest):
            if targets == exact and not bare:
                yield (), ""
            elif targets:
                yield targets, "" if targets == exact else f"The fewest targets that run on {whom} without JIT."

    def _exact_targets(self, release: Release) -> tuple[str, ...]:
        """Return each GPU's own target, in the release's notation."""
        return sorted_targets(fits.own_target(release, self.accelerator, gpu.target) for gpu in self.gpus)

    def _compilable_targets(self, release: Release) -> set[str]:
        """Return the targets that any toolkit of the release can compile for (`86`, `gfx90a`)."""
        name = self.accelerator.toolkit
        rows = (self.knowledge.toolkit(name, version) for version in taken_versions(release.support(name)))
        return {number for row in rows if row for number in row.targets}


def _by_nearness(knowledge: KnowledgeBase, release: Release) -> list[Release]:
    """Return the other releases: first newer ones in ascending order, then older ones in descending order."""
    order = sorted(knowledge.releases.values(), key=lambda row: Version(row.release))
    place = order.index(release)
    return [*order[place + 1 :], *reversed(order[:place])]


def _changed_choices(release: Release, resolution: Resolution) -> tuple[dict[str, str], dict[str, str]]:
    """Return the choices that differ from the release's defaults because of the GPUs, and reasons for comments."""
    # The row may have a minor version, which any of its patch releases matches.
    chosen = {
        name: version
        for name, version in resolution.components.items()
        if not (tested := release.support(name).tested) or not Version(version).matches(Version(tested))
    }
    if resolution.gpu_compiler and resolution.gpu_compiler != release.gpu_compiler:
        chosen["compiler"] = resolution.gpu_compiler
    reasons = {choice.field: choice.reason for choice in resolution.choices if choice.field in chosen}
    comments = {name: f"{reason[:1].upper()}{reason[1:]}." for name, reason in reasons.items() if reason}
    if resolution.source.location != release.repository:
        comments["tensorflow"] = f"From {resolution.source.location}, {resolution.source.refs[0]}."
    return chosen, comments
