"""Documents of the knowledge base: GPUs, releases, codes, advice, and a first profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired

from typing_extensions import TypedDict

from tfdock.documents.document_parts import GpuAnswerJson
from tfdock.errors import Problem
from tfdock.knowledge.program_rows import ExplainedCode
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.switch_rows import SwitchFacts
from tfdock.resolve.advice import AdvisedWheel
from tfdock.resolve.gpu_support import TargetFacts
from tfdock.types import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedWheelJson(AdvisedWheel):
    """An official wheel."""

    install: str | None  #: The whole pip command; null if the wheel has no GPU code.


class FigureJson(TypedDict):
    """A number on which estimates are based."""

    estimate: str  #: The name of the number.
    value: float  #: The number.
    unit: str  #: The unit of the number.
    source: str  #: The source of the number.
    unverified: bool | str  #: The part of the row that nobody has checked; false if all is checked.


class PublishedBuildJson(TypedDict):
    """A wheel or an image of TensorFlow by others, such as a vendor of GPUs."""

    build: str  #: Its name.
    tensorflow: str  #: Its version of TensorFlow.
    pythons: Sequence[str]  #: Its Pythons.
    components: Mapping[str, str]  #: Its versions of CUDA and other parts, if known.
    get: str  #: The command that installs it.


class AdviseDocument(TypedDict):
    """`tfdock advise`: how an official wheel runs on GPUs, and a profile for a wheel that runs better."""

    tensorflow: str  #: The release.
    python: str | None  #: The requested Python.
    build_needed: bool  #: Whether no official wheel of that release serves the GPUs.
    gpus: Sequence[GpuAnswerJson]  #: How each GPU runs the official wheel.
    gpu: NotRequired[GpuAnswerJson]  #: The answer for the GPU, if there is only one.
    wheel: AdvisedWheelJson  #: The official wheel.
    native_wheel: AdvisedWheelJson | None  #: The nearest official wheel that runs natively.
    instead: AdvisedWheelJson | None  #: An official wheel that makes a build of the profile unnecessary.
    published_builds: Sequence[PublishedBuildJson]  #: Wheels and images by others for the GPUs, the newest first.
    apart: Sequence[str]  #: Why one wheel cannot serve all GPUs.
    profile: str | None  #: The text of the profile to build; null without a profile.
    profile_tensorflow: str | None  #: The release in that profile.
    build_id: str | None  #: The build id of that profile.
    #: The grade of such builds: `built`, `tested`, `untested` or `known-to-fail`, and by whom.
    evidence: Choice | None
    profile_file: str | None  #: The file with the written profile.
    #: The text of an untested profile for the requested release.
    untested_profile: str | None
    refused: Sequence[Problem]  #: Why the requested release does not work.
    jit: FigureJson | None  #: The duration of a first start that compiles PTX.


class InitDocument(TypedDict):
    """`tfdock init`: the profile that was written."""

    profile: str  #: The file.
    build_id: str  #: The build id of the profile.
    text: str  #: The text of the profile.


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpuJson(TargetFacts):
    """A GPU, and the facts about its target."""

    gpu: str  #: The name in profiles, such as `rtx3080`.
    names: Sequence[str]  #: Names as the driver prints them.
    memory_gib: float | None  #: Gibibytes of memory.
    machine: str | None  #: The processor that the GPU is sold with; null for any.
    toolkit_max: str | None  #: The newest toolkit of the board's last system; null if newer ones work too.
    source: Sequence[str] | str  #: The source of the row: short names from `sources`, or text.
    checked: str  #: The day on which the row was compared with its source, such as `2026-01-31`.
    note: str | None  #: A note about the GPU.
    unverified: bool | str  #: The part of the row that nobody has checked; false if all is checked.


class GpusDocument(TypedDict):
    """`tfdock gpus`: facts about GPUs."""

    gpus: Sequence[KnownGpuJson]  #: The GPUs.


class ReleasesDocument(TypedDict):
    """`tfdock releases`: facts about TensorFlow's releases."""

    releases: Sequence[Release]  #: The releases, the oldest first.
    sources: Mapping[str, str]  #: The meaning of the short names in `source`.


class ExplainDocument(ExplainedCode):
    """`tfdock explain CODE`: the meaning of a code."""

    problems: Sequence[Problem]  #: The error that the example profile causes.


class SwitchJson(SwitchFacts):
    """A switch of TensorFlow, or of a library that TensorFlow uses."""

    variable: str  #: The environment variable for the switch; empty for a setting.
    sources: Sequence[str]  #: The sources of these facts.


class SwitchDocument(SwitchJson):
    """`tfdock explain SWITCH`: the effect of a switch."""


class PresetJson(TypedDict):
    """Several switches with one name."""

    preset: str  #: The name of the preset.
    sets: Mapping[str, str]  #: The switches, and their values.


class PresetDocument(PresetJson):
    """`tfdock explain PRESET`: the switches of a preset."""


class TopicDocument(TypedDict):
    """`tfdock explain TOPIC`: what TensorFlow has for a subject of questions, such as `docker`."""

    topic: str  #: The name of the topic.
    says: str  #: The facts.
    instead: str  #: What to do.


class CodesDocument(TypedDict):
    """`tfdock explain`: all codes and switches."""

    codes: Sequence[ExplainedCode]  #: The codes, sorted.
    switches: Sequence[SwitchJson]  #: The switches.
    presets: Sequence[PresetJson]  #: The presets, sorted.
