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
    """One of the slowest actions."""

    name: str  #: What the action makes.
    mnemonic: str  #: The kind of action, such as `CppCompile`.
    how: str  #: Whether the action was executed or came from a cache.
    seconds: float  #: How long it took.


class CriticalPathJson(TypedDict):
    """The longest chain of actions that wait for each other."""

    seconds: float  #: How long it took.
    actions: Sequence[Step]  #: The actions, in order; empty if unknown.


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReasonsJson(CacheMissReport):
    """Why actions were executed again."""

    #: Always null. Earlier versions counted actions here, by kind and reason.
    misses: Mapping[str, Mapping[str, int]] | None


class ActionCountsJson(TypedDict):
    """Bazel's numbers about a failed build."""

    hits: int  #: Actions that came from a cache.
    executed: int  #: Actions that were executed.


class BazelFiguresJson(ActionCountsJson):
    """Bazel's report on a build."""

    #: The number of hits from each source: `disk`, `remote`, or `cache` if Bazel does not say which cache.
    sources: Mapping[str, int]
    runners: Mapping[str, int]  #: The number of actions of each executor; the keys are Bazel's names.
    actions: int | None  #: All actions, also Bazel's internal actions.
    #: The number of executed actions of each kind, largest first; null if Bazel wrote no profile.
    executed_by_mnemonic: Mapping[str, int] | None
    critical_path: CriticalPathJson | None  #: The critical path.
    slowest: Sequence[SlowActionJson]  #: The slowest actions.
    wall_seconds: float | None  #: Seconds that Bazel took.
    bazel_cpu_seconds: float | None  #: CPU seconds of Bazel's own process.
    output_bytes: int | None  #: Bytes of the built files.
    why: ColdReasonsJson  #: Why actions were executed again.


class ToolchainJson(TypedDict):
    """The tools in the image, as readable text."""

    bazel: str | None  #: Bazel's version.
    tools: Sequence[str]  #: The compilers' paths.
    packages: int  #: How many packages the image holds.
    cachebusters: Sequence[str]  #: Variables that each build of the base image changes; they were removed.


class TakenSourceJson(TypedDict):
    """The source that was built."""

    ref: str | None  #: The tag or branch that was built.
    found: str | None  #: The commit or sha256 at the time of the build.


class AttemptJson(TypedDict):
    """The limits of one compilation, and how it ended."""

    jobs: int  #: Bazel's jobs.
    cpus: int  #: Cores.
    memory: int  #: Bytes of memory.
    heap: int  #: Bytes of Bazel's Java heap.
    ended: str  #: `well` for a success, else the kind of failure.


class EstimateJson(TypedDict):
    """The expected duration of the build at its start."""

    seconds: Mapping[str, float] | None  #: The seconds of each phase; null if unknown.
    source: str | None  #: The source of the estimate, as text.
    weight: float  #: The amount of code to compile; 1 for a build for the CPU.


class RemoteLineJson(TypedDict):
    """The traffic with a remote cache or executor."""

    endpoint: str  #: Scheme and host.
    hits: int  #: Actions whose results came from the endpoint.
    sent: int  #: Bytes sent.
    received: int  #: Bytes received.
    lost: str | None  #: Why the build stopped using the endpoint; null if the build did not stop.


class EngineJson(TypedDict):
    """The container engine."""

    name: str  #: The engine's name.
    version: str  #: The engine's version.
    local: bool  #: Whether the engine runs on this machine.


class VerificationJson(TypedDict):
    """The checks of the wheels, and their GPU code."""

    checks: Sequence[Check]  #: The checks, in order; the checks of several wheels one after another.
    gpu_code: TargetsJson  #: GPU code of TensorFlow's own libraries.
    runtime: str | None  #: The image in which the wheel was tried.


class RecordDocument(TypedDict):
    """The record of a build (`record.json`). It contains no secrets and no paths of the machine."""

    schema: Literal["tfdock.record/1"]  #: Which document this is.
    build_id: str  #: The build id.
    fingerprint: str  #: A hash (64 hexadecimal digits) of all that decides the wheel's bytes.
    tfdock: str  #: The version of tfdock that made the build.
    log: str  #: The name of the log beside the record.
    wheels: Sequence[WheelFile]  #: The wheels.
    plan: BuildPlanJson  #: The plan of the build.
    toolchain_key: str  #: A hash (16 hexadecimal digits) of the tools in the image; part of the disk cache's name.
    toolchain: ToolchainJson  #: The tools in the image.
    base_digest: str | None  #: The digest of the base image.
    source: TakenSourceJson  #: The source that was built.
    lock: str | None  #: The sha256 of the lock for the build; null without a lock.
    seconds: Mapping[str, float]  #: The seconds of each phase.
    attempts: int  #: How often the build compiled or retried.
    resources: Sequence[AttemptJson]  #: The limits of each compilation.
    at_once: int  #: How many builds ran side by side.
    estimate: EstimateJson  #: The expected duration.
    #: The traffic of `cache` and of `executor`; null if the build used neither.
    remote: Mapping[str, RemoteLineJson] | None
    machine: MachineJson  #: The engine's machine.
    engine: EngineJson  #: The container engine.
    untested: Sequence[str]  #: Combinations without a known test, in words.
    deflate: str  #: The deflate implementation that compressed the wheel.
    verification: VerificationJson  #: The checks of the wheels, and their GPU code.
    started: str  #: When the build began, such as `2026-01-31T09:30:00+00:00`.
    finished: str  #: When it ended.
    bazel: BazelFiguresJson | None  #: Bazel's report on the build; null if there is none.
    #: The names of the files beside the record, by kind (`inputs`, `profile`; in earlier versions `spawns`).
    kept: Mapping[str, str]


class StatusDocument(TypedDict):
    """`tfdock status`: running builds, and builds that have ended."""

    runs: Sequence[RunState]  #: The current runs, then the ended builds, newest first.


class WrittenLockJson(TypedDict):
    """The lock of a profile at the start of the build."""

    file: str  #: The name of the lock file.
    text: str  #: The text of the lock.
    used: bool  #: Whether the build used the lock.


class WrittenProfileJson(TypedDict):
    """A profile at the start of its build."""

    file: str  #: The name of the profile's file.
    path: str  #: The path of the file on this machine.
    text: str  #: The text of the profile.
    extends: Mapping[str, str]  #: The text of each extended profile, by name.
    lock: WrittenLockJson | None  #: The lock of the profile; null without a readable lock.


class NothingJson(TypedDict):
    """An empty document."""


class BuiltProfileJson(TypedDict):
    """The result of one build."""

    build_id: str | None  #: The build id; null if the profile is refused.
    profile: str  #: The profile.
    #: `refused`: the profile cannot be built, or the wheel does not fit the profile.
    status: BuildStatus
    origin: str | None  #: The image from which the build was pulled; null for a build of this machine.
    problems: Sequence[Problem]  #: Why there is no wheel.
    wheels: Sequence[InstallableWheelJson]  #: The wheels.
    record: str | None  #: The path of the record.
    log: str | None  #: The path of the log.
    seconds: Mapping[str, float]  #: The seconds of each phase.
    #: Bazel's report on the build; for a failed build only its actions.
    cache: BazelFiguresJson | ActionCountsJson | None
    attempts: int  #: How often the build compiled or retried.
    diagnosis: Sequence[Finding]  #: The diagnosis of a failed build's log.


class BuildDocument(TypedDict):
    """`tfdock build`: the results of builds."""

    builds: Sequence[BuiltProfileJson]  #: The builds, in the order of the request.
    matrix: NotRequired[MatrixResultJson]  #: With `--matrix`: the result of each cell.


class PulledBuildJson(TypedDict):
    """A build that was pulled."""

    build_id: str  #: The build id.
    fingerprint: str  #: The build's fingerprint.
    status: Literal["pulled", "up-to-date"]  #: `up-to-date`: the build was already on this machine.
    reference: str  #: The image.
    digest: str  #: The digest of the image's manifest, `sha256:` and 64 hexadecimal digits.
    platform: str  #: The platform, such as `linux/amd64`.
    wheels: Sequence[InstallableWheelJson]  #: The wheels.
    record: str  #: The path of the record.
    received: int  #: Bytes that this pull downloaded.
    kept: int  #: Bytes that an earlier, interrupted pull had downloaded.
    gpus: Sequence[GpuAnswerJson]  #: How the GPUs of this machine run the wheels.


class PulledNameJson(TypedDict):
    """The result of pulling one name."""

    name: str  #: The image's name, the profile's name or the build id.
    problems: Sequence[Problem]  #: Why nothing was pulled.
    builds: Sequence[PulledBuildJson]  #: The pulled builds.


class PullDocument(TypedDict):
    """`tfdock pull`: the pulled builds."""

    pulls: Sequence[PulledNameJson]  #: The names, in the order of the command line.
    matrix: NotRequired[MatrixResultJson]  #: With `--matrix`: the result of each cell.


class PulledDocument(TypedDict):
    """The origin of a pulled build (`pulled.json` beside its record)."""

    reference: str  #: The image.
    digest: str  #: The digest of the image's manifest.


class RunDocument(TypedDict):
    """The document that a run keeps beside its log until the run succeeds (`RUN.run.json`)."""

    schema: Literal["tfdock.run/1"]  #: Which document this is.
    tfdock: str  #: The version of tfdock that ran.
    run: str  #: The run.
    build_id: str  #: The build id.
    fingerprint: str  #: The build's fingerprint.
    knowledge: str  #: The digest of the knowledge base.
    profile: WrittenProfileJson | NothingJson  #: The profile; empty without a profile.
    plan: BuildPlanJson  #: The plan of the run.
    machine: MachineJson  #: The engine's machine.
    engine: EngineJson  #: The container engine.
    at_once: int  #: How many builds ran side by side.
    started: str  #: When the run began, such as `2026-01-31T09:30:00+00:00`.
    ended: NotRequired[str]  #: When the run ended; absent while it runs, and if it was killed.
    problems: NotRequired[Sequence[Problem]]  #: How the run ended.
    error: NotRequired[str]  #: The Python error, if a bug in tfdock caused the failure.


class ReportFileJson(TypedDict):
    """A file of a report bundle."""

    name: str  #: The name of the file.
    size: int  #: Bytes.


class ReportBundleDocument(TypedDict):
    """`tfdock report --bundle`: the contents of a bundle to attach to an issue."""

    bundle: str  #: The path of the file.
    files: Sequence[ReportFileJson]  #: The files in the bundle.
    removed: Mapping[str, int]  #: How many secrets and names of each kind were removed from the files.
    notes: Sequence[str]  #: Notes.


class ReportDocument(TypedDict):
    """`tfdock report`: the record of a build, without its verification.

    Records of earlier versions and records of pulled wheels may lack keys or have other keys.
    """

    record: str  #: The path of the record.
    build_id: str  #: The build id.
    fingerprint: NotRequired[str]  #: A hash (64 hexadecimal digits) of all that decides the wheel's bytes.
    tfdock: NotRequired[str]  #: The version of tfdock that made the build.
    wheels: NotRequired[Sequence[WheelFile]]  #: The wheels.
    plan: NotRequired[Mapping[str, object]]  #: The commands, as in `record`.
    source: NotRequired[TakenSourceJson | None]  #: The source that was built.
    seconds: NotRequired[Mapping[str, float]]  #: The seconds of each phase.
    attempts: NotRequired[int]  #: How often the build compiled or retried.
    machine: NotRequired[MachineJson]  #: The engine's machine.
    started: NotRequired[str]  #: When the build began, such as `2026-01-31T09:30:00+00:00`.
    finished: NotRequired[str]  #: When it ended.
    bazel: NotRequired[Mapping[str, object] | None]  #: Bazel's report on the build, as in `record`.
