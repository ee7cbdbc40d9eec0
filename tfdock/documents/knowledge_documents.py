"""Documents of the knowledge base: GPUs, releases, codes, advice, and a first profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tfdock.documents.document_parts import ChoiceJson, GpuAnswerJson, ProblemJson, Runs


class AdvisedWheelJson(TypedDict):
    """An official wheel."""

    project: str  #: The project's name.
    release: str  #: The minor release, such as `2.18`.
    version: str  #: The version.
    pythons: Sequence[str]  #: The Pythons that it is for.
    targets: Sequence[str]  #: The targets of its GPU code.
    requirement: str  #: What to tell pip.
    installs: Sequence[str]  #: The Pythons with which that installs what works.
    needs: Sequence[str]  #: What pip does not bring, such as `CUDA 11.2`.
    pins: Sequence[str]  #: What to tell pip besides.
    install: str | None  #: The whole command; null where the wheel has no GPU code.


class VendorWheelJson(TypedDict):
    """A wheel of the GPU's vendor."""

    vendor: str  #: The vendor.
    project: str  #: The project's name.
    release: str  #: The minor release.


class SizedTargetJson(TypedDict):
    """What one target adds to a wheel."""

    target: str  #: The target, such as `sm_86`.
    serves: Sequence[str]  #: The GPUs that it serves.
    wheel_mb: float | None  #: Megabytes (10**6 bytes) of the wheel; null where no figure is known.
    compile_percent: float | None  #: Percent of the time of a build for the CPU; null where no figure is known.


class SizePlanJson(TypedDict):
    """What to compile for, and what that costs."""

    targets: Sequence[str]  #: The targets.
    entries: Sequence[SizedTargetJson]  #: What each adds.
    wheel_mb: float | None  #: Megabytes (10**6 bytes) of the whole wheel.
    compile_percent: float | None  #: How much longer than a build for the CPU, in percent.


class FigureJson(TypedDict):
    """A figure that an estimate is made with."""

    estimate: str  #: Its name.
    value: float  #: The figure.
    unit: str  #: Its unit.
    source: str  #: Where it comes from.
    unverified: bool | str  #: What nobody has checked; false where nothing is left to check.


class AdviseDocument(TypedDict):
    """`tfdock advise`: how an official wheel runs on GPUs, and which profile would do better."""

    tensorflow: str  #: The release.
    python: str | None  #: The Python that was asked for.
    build_needed: bool  #: Whether no official wheel of that release serves the GPUs.
    gpus: Sequence[GpuAnswerJson]  #: How each GPU runs the official wheel.
    gpu: NotRequired[GpuAnswerJson]  #: The same, where there is one GPU.
    wheel: AdvisedWheelJson  #: The official wheel.
    native_wheel: AdvisedWheelJson | None  #: The nearest that runs natively.
    instead: AdvisedWheelJson | None  #: One that makes a build of another release unnecessary.
    vendor_wheel: VendorWheelJson | None  #: The vendor's own.
    apart: Sequence[str]  #: Why one wheel cannot serve all GPUs.
    profile: str | None  #: The text of the profile to build; null where there is none.
    profile_tensorflow: str | None  #: The release in that profile.
    build_id: str | None  #: Its build id.
    #: What is known of such builds: `built`, `tested`, `untested` or `known-to-fail`, and by whom.
    evidence: ChoiceJson | None
    profile_file: str | None  #: The file that it was written to.
    plan: SizePlanJson | None  #: What that profile compiles for.
    alternative_plan: SizePlanJson | None  #: Each GPU with code of its own.
    #: The text of a profile of the release that was asked for, which nobody is known to have tested.
    untested_profile: str | None
    refused: Sequence[ProblemJson]  #: Why the release that was asked for does not do.
    jit: FigureJson | None  #: How long a first start takes that compiles PTX.
    figures: Sequence[FigureJson]  #: The figures behind the sizes and times.


class InitDocument(TypedDict):
    """`tfdock init`: the profile that was written."""

    profile: str  #: The file.
    build_id: str  #: Its build id.
    text: str  #: Its text.


class KnowledgeRowJson(TypedDict):
    """What every row of the knowledge base has."""

    source: Sequence[str] | str  #: Where it comes from: names of `sources`, or words.
    checked: str  #: The day on which it was compared with its source, such as `2026-01-31`.
    note: str | None  #: What else to know.
    unverified: bool | str  #: What nobody has checked; false where nothing is left to check.


class ReleaseForGpuJson(TypedDict):
    """A release that can compile for a GPU."""

    release: str  #: The minor release.
    toolkits: Sequence[str]  #: Versions of the toolkit that it takes and that compile for the GPU.
    tested: bool  #: Whether the toolkit it was tested with is among them.
    official: bool  #: Whether its official wheel has code for exactly this target.
    wheel_runs: Runs  #: How its official wheel runs on the GPU.
    wheel_by: str  #: Which code of that wheel runs; empty where none does.
    xla: bool  #: Whether XLA uses the GPU.


class KnownGpuJson(KnowledgeRowJson):
    """A GPU, and what is known of its target."""

    gpu: str  #: The name in profiles, such as `rtx3080`.
    accelerator: str  #: Such as `cuda`.
    target: str  #: The compute capability (`8.6`) or gfx target.
    names: Sequence[str]  #: Names as the driver prints them.
    memory_gib: float | None  #: Gibibytes of memory.
    machine: str | None  #: The processor beside it, where it is sold with one only.
    toolkit: str  #: The toolkit that compiles for it, such as `cuda`.
    written: str  #: The target as compilers take it, such as `sm_86`.
    architecture: str | None  #: The generation.
    embedded: bool  #: Whether it is a GPU of an embedded system.
    toolkits: Sequence[str]  #: Versions of the toolkit that compile for it.
    last_toolkit: bool  #: Whether the newest known version is among them.
    releases: Sequence[ReleaseForGpuJson]  #: Releases that can compile for it.
    driver: str | None  #: The oldest driver that knows it; null where that is not known.
    driver_max: str | None  #: The newest driver that knows it; null where none has dropped it.
    toolkit_driver: str | None  #: The oldest driver that runs what its first toolkit compiles.
    toolkit_driver_windows: str | None  #: The same on Windows.
    needs_driver: str | None  #: The newer of both: what it needs.
    needs_driver_windows: str | None  #: The same on Windows.
    reports: Sequence[str]  #: What forks of TensorFlow and users make of such GPUs, a sentence each.
    open_modules: bool  #: Whether the driver's open kernel modules alone drive it.


class GpusDocument(TypedDict):
    """`tfdock gpus`: what is known of GPUs."""

    gpus: Sequence[KnownGpuJson]  #: The GPUs.


class SupportedVersionsJson(TypedDict):
    """Versions of a component that a release takes."""

    tested: str | None  #: The one it was tested with.
    accepted: Sequence[str]  #: Those that it takes.
    uncertain: Sequence[str]  #: Those that appeared about when the release was made.
    disputed: Sequence[str]  #: Those about which the sources disagree.
    closed: bool  #: Whether nothing outside `accepted` can work.


class WheelTargetJson(TypedDict):
    """How a release makes its wheel."""

    target: str  #: Bazel's target.
    folder: str | None  #: The folder in which the target leaves the wheel.
    command: Sequence[str]  #: The words of the script that makes it, where it is one.
    name: str  #: The project's name, where a profile gives no other.


class BuildCostJson(TypedDict):
    """What a build needs."""

    memory_per_job_mib: int  #: Mebibytes of memory for each job.
    disk_gib: int  #: Gibibytes of disk in all.
    memory_per_link_mib: int  #: Mebibytes of memory for the largest links; 0 where a job's are enough.


class KnownReleaseJson(KnowledgeRowJson):
    """A minor release of TensorFlow. Maps go from accelerator or compiler to what is said."""

    release: str  #: Such as `2.18`.
    like: str | None  #: The release whose rows it takes.
    patches: Sequence[str]  #: The patch releases.
    repository: str  #: The URL of the source.
    tag: str  #: The tag, with `{version}`.
    commits: Mapping[str, str]  #: Patch release to commit.
    pythons: Sequence[str]  #: The Pythons that it can be built for.
    pythons_closed: bool  #: Whether no other can work.
    bazel: str  #: Bazel's version.
    tested_bazel: Sequence[str]  #: Further versions of Bazel that it was tested with.
    bazel_min: str | None  #: The oldest Bazel that ./configure takes.
    bazel_max: str | None  #: The newest Bazel that ./configure takes.
    gpu_compiler: str | None  #: Who compiles GPU code.
    host_compilers: Mapping[str, str]  #: Who compiles C++ beside a GPU compiler or accelerator.
    host_compilers_min: Mapping[str, str]  #: The first versions that know its C++ standard.
    gpu_compilers_min: Mapping[str, str]  #: The first toolkit whose compiler reads it.
    compilers: Mapping[str, str]  #: What it is really built with.
    tested_compilers: Mapping[str, Sequence[str]]  #: What it is documented with besides.
    components: Mapping[str, SupportedVersionsJson]  #: Component, such as `cuda`, to the versions that it takes.
    capability_pattern: str | None  #: A regular expression of the capabilities that it takes.
    capability_doubt: str | None  #: A regular expression of those that it is not known to take or to refuse.
    capability_format: str  #: How capabilities are written for it.
    official_targets: Mapping[str, Sequence[str]]  #: The targets of the official wheel.
    official_project: Mapping[str, str]  #: The official wheel's name, where that is not `tensorflow`.
    default_targets: Mapping[str, Sequence[str]]  #: What ./configure takes when nothing is said.
    floor: Mapping[str, str]  #: The oldest GPU that it uses.
    xla_floor: Mapping[str, str]  #: The oldest GPU that XLA uses.
    runtime_targets: Mapping[str, Sequence[str]]  #: All targets that it uses at run time, whatever was compiled.
    runtime_doubt: Mapping[str, Sequence[str]]  #: Those that it is neither known to use nor not to use.
    configs: Sequence[str]  #: Names that `--config=` takes.
    wheel: WheelTargetJson  #: How it makes its wheel.
    cost: BuildCostJson  #: What a build needs.


class ReleasesDocument(TypedDict):
    """`tfdock releases`: what is known of TensorFlow's releases."""

    releases: Sequence[KnownReleaseJson]  #: The releases, the oldest first.
    sources: Mapping[str, str]  #: What the short names in `source` stand for.


class ExplainedCodeJson(TypedDict):
    """What a code means."""

    code: str  #: The code.
    title: str  #: In a few words.
    cause: str  #: What it means.
    ways: Sequence[str]  #: What can be done.
    profile: str | None  #: A profile that provokes it.
    example: str | None  #: What is printed, where no profile provokes it.


class ExplainDocument(ExplainedCodeJson):
    """`tfdock explain CODE`: what a code means."""

    problems: Sequence[ProblemJson]  #: What the profile is answered with.


class SwitchJson(TypedDict):
    """A switch of TensorFlow, or of a library below it."""

    switch: str  #: Its name.
    kind: str  #: `variable` of the environment, `flag` of XLA's in such a variable, or `setting` in a program.
    variable: str  #: The variable that carries it; empty for a setting.
    reads: str  #: What reads it.
    values: str  #: What it may be.
    default: str  #: What it is where nobody sets it.
    does: str  #: What it shows or changes.
    use: str  #: When to use it.
    python: str  #: TensorFlow 2's call for it.
    releases: str | None  #: The releases of TensorFlow whose official wheels hold its name.
    since: str  #: The first version of what reads it.
    until: str  #: The last version of what reads it.
    presets: Mapping[str, str]  #: Presets that set it, and to which value.
    sources: Sequence[str]  #: Where that stands.


class SwitchDocument(SwitchJson):
    """`tfdock explain SWITCH`: what a switch changes or shows."""


class PresetJson(TypedDict):
    """Several switches with one name."""

    preset: str  #: Its name.
    sets: Mapping[str, str]  #: The switches, and their values.


class PresetDocument(PresetJson):
    """`tfdock explain PRESET`: what a preset sets."""


class CodesDocument(TypedDict):
    """`tfdock explain`: what all codes and switches mean."""

    codes: Sequence[ExplainedCodeJson]  #: The codes, sorted.
    switches: Sequence[SwitchJson]  #: The switches.
    presets: Sequence[PresetJson]  #: The presets, sorted.
