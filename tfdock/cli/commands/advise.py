"""The `advise` command: how an official wheel runs on a GPU, and which profile gives a better wheel."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, knowledge_for, print_json
from tfdock.cli.commands.init import write_profile
from tfdock.cli.gpu_text import ASIDE, answer, gpu_json, local_names, reasons, split_names, topic_lines
from tfdock.documents.knowledge_documents import PublishedBuildJson
from tfdock.errors import ProfileError, quoted_with
from tfdock.gpu.devices import other_device
from tfdock.host.settings import Settings
from tfdock.knowledge.fits import goes_with, releases_with
from tfdock.knowledge.gpu_rows import OtherDevice
from tfdock.knowledge.release_rows import Estimate, Release
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import (
    Advice,
    AdvisedWheel,
    Asked,
    advise_on,
    pip_install,
    read_question,
    releases_words,
)
from tfdock.resolve.gpu_support import python_spans, range_words
from tfdock.types import Version

_NO_GPU = "cpu"
_BUILD_FIELDS = {*PublishedBuildJson.__annotations__}


@app.command(epilog="Examples: `tfdock advise --gpu rtx5080 -o rtx5080.yaml`, `tfdock advise gtx 1060 driver 470`.")
@command("tfdock.advise/1", "knowledge")
def advise(
    settings: Settings,
    more: Annotated[
        list[str] | None,
        typer.Argument(
            help="GPUs, as with `--gpu`, a system (`windows`), part (`driver 470`), topic (`mkl`).", metavar="[NAME]…"
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A GPU's name, or `local` for this machine's GPUs. Repeatable.", metavar="NAME"),
    ] = None,
    tensorflow: Annotated[
        str | None, typer.Option(help="The release. The default is the newest.", metavar="X")
    ] = None,
    python: Annotated[str | None, typer.Option(help="The Python version of the wheel.", metavar="Y")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the profile to this file.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """If a build is better than the official wheel, print a profile for this build."""
    base = knowledge_for(settings)
    names = split_names([*(gpu or []), *(more or [])])
    words = [word for name in names for word in (local_names(base) if name == "local" else [name])]
    _check_python(python)
    # For programs, a question without a GPU is an error.
    if not (words or as_json) and (tensorflow or python):
        words = [_NO_GPU]
    asked = read_question(base, words)
    quote = next((row.quote for row in asked.systems.values()), "'")
    if not as_json and (lines := _about_topics(base, asked, tensorflow)):
        console.result(quoted_with("\n".join(lines), quote))
        return
    advice = advise_on(base, asked, tensorflow=tensorflow, python=python, machine=platform.machine())
    if output is not None and advice.offer is not None:
        write_profile(output, advice.offer.text)
        console.tell(f"wrote {output}")
    elif output is not None:
        console.tell(f"{output} was not written: no profile was found that `tfdock check` accepts")
    if as_json:
        print_json("tfdock.advise/1", True, _document(base, advice, output))
        return
    for line in (*_told_on(asked), *_refused(base, asked.parts, advice.release)):
        console.result(console.Style(sys.stdout).bad(quoted_with(line, quote)))
    for line, indent in _lines(base, advice, output):
        console.result(quoted_with(line, quote), indent=indent)


def _about_topics(base: KnowledgeBase, asked: Asked, tensorflow: str | None) -> list[str]:
    """Return what is known about topics that stand alone, or about a release from before the first known one."""
    release = asked.parts.get("tensorflow", tensorflow)
    parts = {part: number for part, number in asked.parts.items() if part != "tensorflow"}
    rows = [asked.topics[name] for name in asked.subjects]
    version = release if release and release[:1].isdecimal() else None  # not `nightly`
    if version and (early := other_device(base, f"tensorflow-{version}")):
        rows = [*rows, early, *(row for row in asked.systems.values() if not row.windows_driver)]
    elif (told := _told_on(asked)) and not asked.gpus:
        # The wheel for Python is no answer: what the topics are on this system comes first.
        topics = {row.device: row for name, row in asked.topics.items() if name not in asked.systems}
        return [*told, *(line for row in topics.values() for line in topic_lines(base, row, release))]
    elif asked.subjects != asked.names and (asked.gpus or len(asked.systems) < 2):
        rows = []  # two systems are a question about a topic, such as a cross build
    # Only systems are named, or nothing but parts.
    if not {*asked.names} - asked.systems.keys():
        about = [topic for part, number in parts.items() if (topic := _topic_of(base, part, number))]
        rows = [*rows, *(asked.systems.values() if about else ()), *about]
    # `cuda cudnn` is one topic.
    lines = [line for row in {row.device: row for row in rows}.values() for line in topic_lines(base, row, release)]
    wanted = base.release_of(version) if version and rows else None
    refused = _refused(base, parts, wanted) if wanted else []
    fitting, builds = _fitting(base, parts) if rows else ([], [])
    return [*fitting, *refused, *lines, *builds]


def _fitting(base: KnowledgeBase, parts: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return sentences: which releases go with each part, and which commands list builds by others for a part."""
    fitting, builds = list[str](), list[str]()
    for part, number in parts.items():
        pair = f"{part} {number}"
        # Of Pythons, a topic tells itself which it has.
        if part != "python" and (found := releases_with(base, part, number)):
            fitting.append(f"Releases that go with {pair}: {releases_words(base, found, pair)}.")
        elif any(row.is_for(part, number) for row in base.published_builds):
            builds.append(f"`tfdock releases {pair}` lists the builds for {pair}.")
        # Of other parts, a release may ask for nothing, and a compiler is no part of a wheel.
        elif part in base.components or part == "driver":
            fitting.append(f"No official wheel goes with {pair}.")
    return fitting, builds


def _told_on(asked: Asked) -> list[str]:
    """Return what the topics of a question are on its system, if this is known."""
    pairs = [(row, name, system.device) for row in asked.topics.values() for name, system in asked.systems.items()]
    told = (f"{row.device} on {name}: {row.by_system[on]}." for row, name, on in pairs if on in row.by_system)
    return list(dict.fromkeys(told))


def _topic_of(base: KnowledgeBase, part: str, version: str) -> OtherDevice | None:
    """Return the topic that answers for a version of a part without a GPU; None if official wheels answer."""
    topic = other_device(base, part)
    of_a_gpu = part in base.components or any(row.is_for(part, version) for row in base.published_builds)
    # Without a wheel for a Python, the refusal names the nearest Pythons.
    known = part == "python" or any(goes_with(base, row, part, version) for row in base.releases.values())
    return topic if topic and topic.by_release and (of_a_gpu or not known) else None


def _refused(base: KnowledgeBase, parts: Mapping[str, str], row: Release) -> list[str]:
    """Return a sentence for each Python package that a release's requirements refuse."""
    told = list[str]()
    for part in row.requires:
        if part in parts and not goes_with(base, row, part, parts[part]):
            more = f" More: `tfdock advise {part} --tensorflow {row.release}`." if other_device(base, part) else ""
            asks = f"TensorFlow {row.release} asks for {part} {row.requires[part]}"
            told.append(f"{part} {parts[part]} does not fit: {asks}.{more}")
    return told


def _check_python(text: str | None) -> None:
    """Raise ProfileError for a text that is not a version: the text would become part of a profile."""
    if text is not None and not re.fullmatch(r"\d+\.\d+", text, re.ASCII):
        like = Version(text).minor if len(Version(text).parts) > 1 else "3.11"
        message, fix = f"`--python {text}` is not a version of Python", f"write it as `{like}`"
        raise ProfileError.of("profile-bad-value", message, fix, field="python")


# --- for programs ---------------------------------------------------------------------------------------------------


def _document(base: KnowledgeBase, advice: Advice, output: Path | None) -> dict[str, Any]:
    gpus = [gpu_json(service) for service in advice.gpus]
    offer = advice.offer
    return {
        "tensorflow": advice.version,
        "python": advice.python,
        "build_needed": not advice.needs_no_build,
        "gpus": gpus,
        **({"gpu": gpus[0]} if len(gpus) == 1 else {}),
        "wheel": _wheel_json(advice.wheel),
        "native_wheel": _wheel_json(advice.native) if advice.native else None,
        "instead": _wheel_json(advice.instead) if advice.instead else None,
        "published_builds": [row.model_dump(include=_BUILD_FIELDS) for row in advice.published_builds],
        "apart": advice.apart,
        "profile": offer.text if offer else None,
        "profile_tensorflow": str(offer.resolution.version) if offer else None,
        "build_id": offer.resolution.build_id if offer else None,
        "evidence": offer.resolution.grade if offer else None,
        "profile_file": str(output) if output and offer else None,
        "untested_profile": advice.untested.text if advice.untested else None,
        "refused": advice.refused,
        "jit": _figure_json(base, advice.jit) if advice.jit else None,
    }


def _wheel_json(wheel: AdvisedWheel) -> dict[str, Any]:
    return {**asdict(wheel), "install": pip_install(wheel) if wheel.targets else None}


def _figure_json(base: KnowledgeBase, row: Estimate) -> dict[str, Any]:
    return {
        "estimate": row.estimate,
        "value": row.value,
        "unit": row.unit,
        "source": base.cited("estimates", row),
        "unverified": row.unverified,
    }


# --- for people -----------------------------------------------------------------------------------------------------


def _lines(base: KnowledgeBase, advice: Advice, output: Path | None) -> Iterator[tuple[str, str]]:
    """Yield (line, indent of its continuation): the answer, the reasons, the build, and the fixes."""
    style = console.Style(sys.stdout)
    wheel = _no_build(advice)
    yield _verdict(advice, wheel, style), "  "
    for line in (*(_wheel_notes(wheel, advice) if wheel else _quick_ways(advice)), *advice.notes):
        yield f"{style.good('note:')} {line}", ASIDE
    if advice.gpus:
        yield "", ""
    if advice.python and advice.python not in advice.wheel.pythons:
        had = _pythons(advice.wheel.pythons)
        text = f"TensorFlow {advice.version} has no official wheel for Python {advice.python}, only for {had}."
        yield style.bad(text), "  "
    for gpu in advice.gpus:
        yield answer(base, gpu, style, wheel="the official wheel", release=advice.version, jit=advice.jit), "  "
        yield from reasons(gpu, style)
    yield from (
        (f"  {style.strong('reported:')} {line}", ASIDE)
        for line in advice.reported
        if line not in " ".join(advice.apart)
    )
    if advice.offer is not None and not (wheel or advice.instead):
        yield "", ""
        yield from _profile(advice, style)
    if advice.apart or advice.mixed:
        yield "", ""
        yield from _apart(base, advice, style)
    for index, line in enumerate(_fixes(advice, output, wheel)):
        if not index:
            yield "", ""
        text = line if wheel or index else line.removeprefix("or ")
        yield f"{style.good('note:')} {text}", ASIDE


def _wheel_notes(wheel: AdvisedWheel, advice: Advice) -> list[str]:
    """Return how to install an official wheel, and where it runs: first, if this is a condition of a device."""
    lines = [_pip(wheel, advice.python), *([f"it runs on {wheel.system}"] if wheel.system else [])]
    return lines[::-1] if advice.unbuilt else lines


_SHOWN = 6  #: The builds by others to print: a board has some for each of its systems.


def _quick_ways(advice: Advice) -> Iterator[str]:
    """Yield what runs without a build: an official wheel of another release, or else the builds by others."""
    if advice.instead:
        yield _pip(advice.instead, advice.python)
    setting = "".join(f" with `{row.setting}`, as users report" for row in advice.overrides)
    for row in advice.published_builds[:_SHOWN]:
        how = "without a build: " if advice.offer else "in Linux, such as WSL 2: " if advice.unbuilt else ""
        if not advice.instead or _major(row.tensorflow) == _major(advice.version) != _major(advice.instead.version):
            yield f"{how}{row.build}, TensorFlow {row.tensorflow}{setting}: `{row.get}` ({row.parts})"


def _major(version: str) -> str:
    return version.partition(".")[0]


def _no_build(advice: Advice) -> AdvisedWheel | None:
    """Return an official wheel that makes a build unnecessary: of the given release, or of any release by default."""
    return advice.wheel if advice.needs_no_build else advice.instead if advice.asked is None else None


def _verdict(advice: Advice, wheel: AdvisedWheel | None, style: console.Style) -> str:
    """Return the answer in a sentence: whether a build is needed, and whether a better build is known."""
    whom = "all of them" if len(advice.gpus) > 1 else "it"
    if wheel:
        narrow = wheel is advice.wheel and any(service.limits for service in advice.gpus)
        text = (
            f"the official wheel of TensorFlow {wheel.version} runs on {whom}{', within the limits below' * narrow}"
        )
        return style.good(f"No build is needed: {text}.")
    if advice.instead:
        other = f"the official wheel of TensorFlow {advice.instead.version} runs on {whom}"
        return style.warn(f"No build is needed with another release: {other}.")
    if advice.offer:
        text = f"a build of TensorFlow {advice.offer.resolution.version} for exactly {_whom(advice)} is better"
        return style.warn(f"The official wheel is not enough: {text}.")
    if advice.unbuilt:
        return style.bad(f"No official wheel for {advice.unbuilt} is known to use {_whom(advice)}.")
    if advice.published_builds:
        row = advice.published_builds[0]
        other = "" if advice.python in (None, *row.pythons) else " with another Python"
        text = f"No build is needed{other}: {row.build} has TensorFlow {row.tensorflow} for {_whom(advice)}."
        return style.good(text)
    if not (advice.apart or advice.mixed):
        return style.bad(f"No better build is known for {_whom(advice)}.")
    alone, which = len(advice.gpus) == 1, "both" if len(advice.gpus) == 2 else "all of them"
    return style.bad("No wheel is known for this GPU." if alone else f"No single wheel runs on {which}.")


def _pip(wheel: AdvisedWheel, python: str | None) -> str:
    """Return the `pip` command, the Pythons that it works with, and the packages that it does not install."""
    return f"`{pip_install(wheel)}` ({_pythons([python] if python else wheel.installs)}{wheel.beside})"


def _pythons(versions: Sequence[str]) -> str:
    """Return a text such as `Python 2.7, 3.5 to 3.7`."""
    return f"Python {', '.join(range_words(python_spans(versions)))}"


def _profile(advice: Advice, style: console.Style) -> Iterator[tuple[str, str]]:
    """Yield the profile without an indent, ready to paste.

    Long lines are continued without a change of their meaning.
    """
    offer = advice.offer
    assert offer is not None
    version = str(offer.resolution.version)
    yield f"{style.strong('profile')} for TensorFlow {version}: {offer.resolution.build_id}", "  "
    yield f"  {offer.resolution.grade.value}: {offer.resolution.grade.reason}", "  "
    if untested := offer.resolution.untested:
        doubts = "; ".join(dict.fromkeys(problem.message for problem in untested))
        yield f"  {style.warn('untested:')} {doubts}", "  "
    if version != advice.version:
        reasons = "; ".join(dict.fromkeys(problem.message for problem in advice.refused))
        yield f"  not {advice.version}: {reasons}", "  "
    yield "", ""
    for line in offer.text.splitlines():
        yield line, "# " if line.startswith("#") else "  "


def _apart(base: KnowledgeBase, advice: Advice, style: console.Style) -> Iterator[tuple[str, str]]:
    """Yield why one wheel cannot serve all the GPUs: the compiler that each needs."""
    families = [
        f"{one.gpu.gpu}: needs a wheel for {base.accelerators[one.gpu.accelerator].title}" for one in advice.gpus
    ]
    for line in advice.apart or families:
        yield f"  {style.strong('why:')} {line}", ASIDE


# --- what to do -----------------------------------------------------------------------------------------------------


def _fixes(advice: Advice, output: Path | None, head: AdvisedWheel | None) -> Iterator[str]:
    if advice.offer and (head or advice.instead):
        version = advice.offer.resolution.version
        why = f"for exactly {_whom(advice)}" if advice.gpus else "for a CPU without AVX, or for newer instructions"
        yield f"or build TensorFlow {version} {why}: {_build(advice, output)}"
    elif advice.offer:
        yield _build(advice, output)
    elif not (head or advice.unbuilt):
        yield from _fixes_without_profile(advice)
    if head or advice.instead:
        return
    if advice.native and advice.native.release != advice.release.release:
        text = f"or use TensorFlow {advice.native.version}, whose official wheel runs on {_whom(advice)}"
        yield f"{text}: {_pip(advice.native, advice.python)}"
    if advice.python and advice.python not in advice.wheel.pythons and advice.wheel.targets and _starts(advice):
        yield f"or use a Python that has an official wheel: `{_again(advice, python=advice.wheel.installs[-1])}`"
    if advice.untested:
        yield (
            f"or keep {advice.version}, although nobody is known to have tested it: write `allow_untested: true` "
            f'and `tensorflow: "{advice.version}"` into the same profile'
        )


def _whom(advice: Advice) -> str:
    return "these GPUs" if len(advice.gpus) > 1 else "this GPU"


def _build(advice: Advice, output: Path | None) -> str:
    if output:
        return f"`tfdock build {shlex.quote(str(output))}`"
    # The names of many GPUs would make the file name too long.
    name = f"{'-'.join(_names(advice))[:40]}.yaml"
    return f"`{_again(advice, output=name)}`, then `tfdock build {name}`"


def _names(advice: Advice) -> list[str]:
    return [service.gpu.gpu for service in advice.gpus] or [_NO_GPU]


def _again(
    advice: Advice,
    gpus: Sequence[str] = (),
    tensorflow: str | None = None,
    python: str | None = None,
    output: str | None = None,
) -> str:
    """Return the same command line with the given values changed."""
    words = [["--gpu", ",".join(gpus or _names(advice))]]
    words += [["--tensorflow", release] for release in [tensorflow or advice.asked] if release]
    words += [["--python", version] for version in [python or advice.python] if version]
    words += [["-o", output]] if output else []
    return shlex.join(["tfdock", "advise", *(word for pair in words for word in pair)])


def _fixes_without_profile(advice: Advice) -> Iterator[str]:
    """Yield the fixes for a case in which no profile can be offered."""
    names = [service.gpu.gpu for service in advice.gpus]
    if len(names) > 1 and (advice.mixed or advice.apart):
        yield from (f"`{_again(advice, gpus=[name])}`" for name in names)
    elif advice.apart:
        for row in advice.overrides:
            again = _again(advice, gpus=[row.runs_as])
            yield f"reported to work: build for {row.runs_as}, `{again}`, and run the wheel with `{row.setting}`"
        yield f"`tfdock gpus {names[0]}` shows the known facts about this GPU"
        if not advice.overrides and not advice.elsewhere:
            yield "or build for the CPU of that machine: `tfdock init --gpu cpu`"
    elif advice.elsewhere:
        hand = "; no base image is known: build by hand (`tfdock advise jetson`), or add a row to `images.yaml`"
        yield f"build on such a machine, {advice.elsewhere}: `tfdock build` compiles only for its own machine" + (
            "" if advice.buildable else f"{hand} in a `--knowledge` folder"
        )
    elif not (advice.python and advice.python not in advice.wheel.pythons and _starts(advice)):
        yield from _tried_fixes(advice)


def _starts(advice: Advice) -> bool:
    """Return whether the official wheel runs on all the GPUs, with a Python that it supports."""
    return all(service.runs != "no" for service in advice.gpus)


def _tried_fixes(advice: Advice) -> Iterator[str]:
    """Yield tested fixes, as commands if the command line can express them."""
    commands = []
    for problem in advice.refused:
        ways = [way.change for way in problem.ways if {*way.change} <= {"python", "tensorflow"}]
        changes = ({name: str(value) for name, value in change.items() if value} for change in ways)
        commands += [f"`{_again(advice, **change)}`" for change in changes]
    if not commands and advice.python:
        which = f"no release that supports {_whom(advice)} is known to have been built for Python {advice.python}"
        commands = [f"{which}: `{_again(replace(advice, python=None))}` finds a release for another Python"]
    texts = [problem.fix or problem.message for problem in advice.refused]
    yield from dict.fromkeys(commands or texts or ["no known release can be built for these GPUs"])
