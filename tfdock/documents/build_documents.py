"""Documents of builds and pulls: results, records, and the run document of a run that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from tfdock.bazel.build_events import Step
from tfdock.bazel.cache_misses import CacheMissReport
from tfdock.diagnose.diagnosis import Finding
from tfdock.documents.document_parts import BuildStatus, GpuAnswerJson, InstallableWheelJson, MachineJson, TargetsJson
from tfdock.documents.matrix_documents import MatrixResultJson
from tfdock.documents.plan_documents import BuildPlanJson
from tfdock.errors import Problem
from tfdock.verify.checks import Check
from tfdock.wheelhouse.run_states import RunState
from tfdock.wheelhouse.store import WheelFile


class SlowActionJson(TypedDict):
    """One of the actions that took longest."""

    name: str  #: What it makes.
    mnemonic: str  #: Its kind, such as `CppCompile`.
    how: str  #: Whether it was executed or came from a cache.
    seconds: float  #: How long it took.


class CriticalPathJson(TypedDict):
    """The chain of actions that the build could not be faster than."""

    seconds: float  #: How long it took.
    actions: Sequence[Step]  #: The actions, in order; empty where they are not known.


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReasonsJson(CacheMissReport):
    """Why actions were executed again."""

    #: Null. Earlier versions counted actions here, by kind and reason.
    misses: Mapping[str, Mapping[str, int]] | None


class ActionCountsJson(TypedDict):
    """Bazel's figures of a failed build."""

    hits: int  #: Actions that came from a cache.
    executed: int  #: Actions that were executed.


class BazelFiguresJson(ActionCountsJson):
    """Bazel's report on a build."""

    #: Where hits came from: `disk`, `remote`, or `cache` where Bazel does not say; to their number.
    sources: Mapping[str, int]
    runners: Mapping[str, int]  #: Who executed actions, as Bazel calls them; to their number.
    actions: int | None  #: All actions, Bazel's own among them.
    #: Kind of action to number executed, most first; null without a profile of Bazel's.
    executed_by_mnemonic: Mapping[str, int] | None
    critical_path: CriticalPathJson | None  #: The critical path.
    slowest: Sequence[SlowActionJson]  #: What took longest.
    wall_seconds: float | None  #: Seconds that Bazel took.
    bazel_cpu_seconds: float | None  #: CPU seconds of Bazel's own process.
    output_bytes: int | None  #: Bytes of the built files.
    why: ColdReasonsJson  #: Why actions were executed again.


class ToolchainJson(TypedDict):
    """The tools in the image, for people."""

    bazel: str | None  #: Bazel's version.
    tools: Sequence[str]  #: The compilers' paths.
    packages: int  #: How many packages the image holds.
    cachebusters: Sequence[str]  #: Variables of the base image that change with every build of it, and were removed.


class TakenSourceJson(TypedDict):
    """The source that was built."""

    ref: str | None  #: The tag or branch that was taken.
    found: str | None  #: The commit or sha256 that it was.


class AttemptJson(TypedDict):
    """The limits with which was compiled, and how it ended."""

    jobs: int  #: Jobs of Bazel's.
    cpus: int  #: Cores.
    memory: int  #: Bytes of memory.
    heap: int  #: Bytes of Bazel's Java heap.
    ended: str  #: `well`, or the kind of failure.


class EstimateJson(TypedDict):
    """The expected duration of the build at its start."""

    seconds: Mapping[str, float] | None  #: Phase to seconds; null where nothing was known.
    source: str | None  #: Where that came from, in words.
    weight: float  #: How much there was to compile, beside a build for the CPU (1).


class RemoteLineJson(TypedDict):
    """The traffic with a remote cache or executor."""

    endpoint: str  #: Scheme and host.
    hits: int  #: Actions that it had.
    sent: int  #: Bytes sent.
    received: int  #: Bytes received.
    lost: str | None  #: Why it was no longer used; null where it was used to the end.


class EngineJson(TypedDict):
    """The container engine."""

    name: str  #: Its name.
    version: str  #: Its version.
    local: bool  #: Whether it runs on this machine.


class VerificationJson(TypedDict):
    """What was found of the wheels."""

    checks: Sequence[Check]  #: The checks, in order; those of several wheels one after another.
    gpu_code: TargetsJson  #: GPU code of TensorFlow's own libraries.
    runtime: str | None  #: The image in which the wheel was tried.


class RecordDocument(TypedDict):
    """The record of a build (`record.json`): no secret, no path of the machine."""

    schema: Literal["tfdock.record/1"]  #: Which document this is.
    build_id: str  #: The build id.
    fingerprint: str  #: 64 hexadecimal digits of everything that decides the wheel's bytes.
    tfdock: str  #: The version of tfdock that built.
    log: str  #: The name of the log beside the record.
    wheels: Sequence[WheelFile]  #: The wheels.
    plan: BuildPlanJson  #: What was done.
    toolchain_key: str  #: 16 hexadecimal digits of the tools in the image; names the disk cache.
    toolchain: ToolchainJson  #: The tools in the image.
    base_digest: str | None  #: The digest of the image it began with.
    source: TakenSourceJson  #: The source that was built.
    lock: str | None  #: The sha256 of the lock it was built by; null without one.
    seconds: Mapping[str, float]  #: Phase to seconds.
    attempts: int  #: How often was compiled, or anything was tried again.
    resources: Sequence[AttemptJson]  #: The limits of each time it was compiled.
    at_once: int  #: How many builds ran side by side.
    estimate: EstimateJson  #: The expected duration.
    #: `cache` and `executor` to their traffic; null without either.
    remote: Mapping[str, RemoteLineJson] | None
    machine: MachineJson  #: The engine's machine.
    engine: EngineJson  #: The container engine.
    untested: Sequence[str]  #: Combinations without a known test, in words.
    deflate: str  #: What packed the wheel.
    verification: VerificationJson  #: What was found of the wheels.
    started: str  #: When the build began, such as `2026-01-31T09:30:00+00:00`.
    finished: str  #: When it ended.
    bazel: BazelFiguresJson | None  #: Bazel's report on the build; null if there is none.
    #: Kind of file that is kept beside the record (`inputs`, `profile`, of earlier versions `spawns`) to its name.
    kept: Mapping[str, str]


class StatusDocument(TypedDict):
    """`tfdock status`: what runs, and what has ended."""

    runs: Sequence[RunState]  #: The runs that go on, then the builds that ended, newest first.


class WrittenLockJson(TypedDict):
    """The lock of a profile as it was when its build began."""

    file: str  #: The name of its file.
    text: str  #: Its text.
    used: bool  #: Whether the build was made by it.


class WrittenProfileJson(TypedDict):
    """A profile as it was when its build began."""

    file: str  #: The name of its file.
    path: str  #: Its path on this machine.
    text: str  #: Its text.
    extends: Mapping[str, str]  #: The profiles that it extends, to their texts.
    lock: WrittenLockJson | None  #: Its lock; null without one that can be read.


class NothingJson(TypedDict):
    """An empty document."""


class BuiltProfileJson(TypedDict):
    """The result of one build."""

    build_id: str | None  #: The build id; null where the profile is refused.
    profile: str  #: The profile.
    #: `refused`: it cannot be built, or its wheel does not fit the profile.
    status: BuildStatus
    origin: str | None  #: The image that it was pulled from; null where it was built.
    problems: Sequence[Problem]  #: Why there is no wheel.
    wheels: Sequence[InstallableWheelJson]  #: The wheels.
    record: str | None  #: The path of the record.
    log: str | None  #: The path of the log.
    seconds: Mapping[str, float]  #: Phase to seconds.
    #: Bazel's report on the build; for a failed build only its actions.
    cache: BazelFiguresJson | ActionCountsJson | None
    attempts: int  #: How often was compiled, or anything was tried again.
    diagnosis: Sequence[Finding]  #: The diagnosis of a failed build's log.


class BuildDocument(TypedDict):
    """`tfdock build`: the results of builds."""

    builds: Sequence[BuiltProfileJson]  #: The builds, in the order of the request.
    matrix: NotRequired[MatrixResultJson]  #: With `--matrix`: what became of each cell.


class PulledBuildJson(TypedDict):
    """A build that was pulled."""

    build_id: str  #: The build id.
    fingerprint: str  #: The build's fingerprint.
    status: Literal["pulled", "up-to-date"]  #: `up-to-date`: it was here.
    reference: str  #: The image.
    digest: str  #: The digest of its manifest, `sha256:` and 64 hexadecimal digits.
    platform: str  #: Such as `linux/amd64`.
    wheels: Sequence[InstallableWheelJson]  #: The wheels.
    record: str  #: The path of the record.
    received: int  #: Bytes that came from the registry now.
    kept: int  #: Bytes that were here from a pull that was interrupted.
    gpus: Sequence[GpuAnswerJson]  #: How the GPUs of this machine run the wheels.


class PulledNameJson(TypedDict):
    """The result of pulling one name."""

    name: str  #: The image, profile or build id.
    problems: Sequence[Problem]  #: Why nothing was pulled.
    builds: Sequence[PulledBuildJson]  #: What was pulled.


class PullDocument(TypedDict):
    """`tfdock pull`: the pulled builds."""

    pulls: Sequence[PulledNameJson]  #: The names, in the order in which they were given.
    matrix: NotRequired[MatrixResultJson]  #: With `--matrix`: what became of each cell.


class PulledDocument(TypedDict):
    """Where a build came from that was not built here (`pulled.json` beside its record)."""

    reference: str  #: The image.
    digest: str  #: The digest of its manifest.


class RunDocument(TypedDict):
    """The document that a run keeps beside its log until it succeeds (`RUN.run.json`)."""

    schema: Literal["tfdock.run/1"]  #: Which document this is.
    tfdock: str  #: The version of tfdock that ran.
    run: str  #: The run.
    build_id: str  #: The build id.
    fingerprint: str  #: The build's fingerprint.
    knowledge: str  #: The digest of the knowledge base.
    profile: WrittenProfileJson | NothingJson  #: The profile; empty where there was none.
    plan: BuildPlanJson  #: The plan of the run.
    machine: MachineJson  #: The engine's machine.
    engine: EngineJson  #: The container engine.
    at_once: int  #: How many builds ran side by side.
    started: str  #: When it began, such as `2026-01-31T09:30:00+00:00`.
    ended: NotRequired[str]  #: When it ended; not there while it runs, and where it was killed.
    problems: NotRequired[Sequence[Problem]]  #: How it ended.
    error: NotRequired[str]  #: How it ended, where that is a mistake in tfdock.


class ReportFileJson(TypedDict):
    """A file of a report bundle."""

    name: str  #: Its name.
    size: int  #: Bytes.


class ReportBundleDocument(TypedDict):
    """`tfdock report --bundle`: the contents of a bundle for an issue tracker."""

    bundle: str  #: The path of the file.
    files: Sequence[ReportFileJson]  #: What is in it.
    removed: Mapping[str, int]  #: Kind of secret or name to how many were taken out.
    notes: Sequence[str]  #: Notes about it.


class ReportDocument(TypedDict):
    """`tfdock report`: the record of a build, but for its verification.

    Records of earlier versions, and those that came with pulled wheels, may lack keys or have others.
    """

    record: str  #: The path of the record.
    build_id: str  #: The build id.
    fingerprint: NotRequired[str]  #: 64 hexadecimal digits of everything that decides the wheel's bytes.
    tfdock: NotRequired[str]  #: The version of tfdock that built.
    wheels: NotRequired[Sequence[WheelFile]]  #: The wheels.
    plan: NotRequired[Mapping[str, object]]  #: The commands, as in `record`.
    source: NotRequired[TakenSourceJson | None]  #: The source that was built.
    seconds: NotRequired[Mapping[str, float]]  #: Phase to seconds.
    attempts: NotRequired[int]  #: How often was compiled, or anything was tried again.
    machine: NotRequired[MachineJson]  #: The engine's machine.
    started: NotRequired[str]  #: When the build began, such as `2026-01-31T09:30:00+00:00`.
    finished: NotRequired[str]  #: When it ended.
    bazel: NotRequired[Mapping[str, object] | None]  #: Bazel's report on the build, as in `record`.
