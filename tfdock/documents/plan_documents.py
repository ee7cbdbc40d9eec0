"""The documents of the commands before a build: `check`, `plan`, `render`, `doctor`, locks and bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from tfdock.documents.document_parts import MachineJson, TrustJson
from tfdock.errors import Problem
from tfdock.offline.availability import Availability
from tfdock.plan.lock_file import LockDifference
from tfdock.plan.preflight import PreflightCheck
from tfdock.plan.resources import BuildResources
from tfdock.types import Choice


class SkippedRuleJson(TypedDict):
    """A check of this machine that could not be made."""

    rule: str  #: The check.
    reason: str  #: Why the check was not made.


class CheckedProfileJson(TypedDict):
    """The result for one profile."""

    file: str  #: The profile as named on the command line.
    ok: bool  #: Whether the profile can be built.
    build_id: str | None  #: The build id; null if the profile is refused.
    #: The grade of such builds: `built`, `tested`, `untested` or `known-to-fail`, and by whom.
    evidence: Choice | None
    problems: Sequence[Problem]  #: Why the profile is refused.
    untested: Sequence[Problem]  #: Allowed combinations without a known test.
    warnings: Sequence[Problem]  #: Other notes, and requirements that this machine lacks.
    skipped: Sequence[SkippedRuleJson]  #: Checks of this machine that could not be made.
    online: Sequence[Availability]  #: With `--online`, the state of the build's downloads; else empty.
    estimate: ExpectedJson | None  #: The expected time of the build here; null if unknown.
    unverified: Sequence[str]  #: Facts about the base image that nobody has checked.
    notes: Sequence[str]  #: Notes before a build, such as an official wheel that makes the build unnecessary.
    fixed: Mapping[str, object] | None  #: The change that `--fix` wrote into the profile; null without a change.


class CheckDocument(TypedDict):
    """`tfdock check`: whether profiles can be built."""

    profiles: Sequence[CheckedProfileJson]  #: The profiles, in the order of the command line.


class SourceJson(TypedDict):
    """Where TensorFlow's source comes from."""

    kind: Literal["git", "archive", "path"]  #: A repository, an archive, or a folder of this machine.
    location: str  #: The URL or folder of the source; a record has `local checkout` in place of a folder.
    refs: Sequence[str]  #: Tags or branches to try, in order; empty if it is not a repository.
    commit: str | None  #: The commit; null if unknown.
    sha256: str | None  #: The sha256 of the archive, or the tree hash of the folder: 64 hexadecimal digits.
    patches: Sequence[str]  #: Names of the patches that are applied.


class PlannedImageJson(TypedDict):
    """The image that builds."""

    base: str  #: The base image.
    name: str  #: The name of the built image.
    source: SourceJson  #: The origin of the source in the image.


class MountJson(TypedDict):
    """A folder that a container sees."""

    source: str  #: The folder outside the container, with placeholders such as `{cache}`.
    target: str  #: The folder inside.
    read_only: bool  #: Whether the container can only read the folder.
    kind: str  #: The kind of mount, such as `bind`.


class PhaseJson(TypedDict):
    """A phase of a build that runs in a container."""

    name: str  #: The phase.
    network: bool  #: Whether the container has a network.
    command: Sequence[str]  #: The words of the command that it runs.


class RemoteJson(TypedDict):
    """Remote cache and executor: scheme and host, no credentials."""

    cache: str | None  #: The remote cache.
    executor: str | None  #: The remote executor.
    upload: bool  #: Whether results are sent to the remote cache.


class WheelNameJson(TypedDict):
    """The parts of the wheel's file name."""

    name: str  #: The project's name.
    local_version: str | None  #: The local version, such as `cuda12.5.sm86`.
    platform: str | None  #: The platform tag that the profile asks for, such as `manylinux_2_28_x86_64`.


class VerifyOptionsJson(TypedDict):
    """How the wheel is verified."""

    run: bool  #: Whether the wheel is tried in a container.
    gpu_code: str  #: `strict`: exactly the requested targets; `relaxed`: at least these targets.


class BuildPlanJson(TypedDict):
    """Everything that a build does."""

    build_id: str  #: The build id: the name of the combination.
    fingerprint: str  #: A hash (64 hexadecimal digits) of all that decides the wheel's bytes.
    image: PlannedImageJson  #: The image that builds.
    environment: Mapping[str, str]  #: Environment variables of ./configure and Bazel.
    container_environment: Mapping[str, str]  #: Environment variables of every container.
    startup_options: Sequence[str]  #: Bazel's startup options that are the same on every machine.
    local_startup_options: Sequence[str]  #: Bazel's startup options that depend on this machine.
    bazel_flags: Sequence[str]  #: Bazel's flags that decide the wheel.
    local_flags: Sequence[str]  #: Bazel's flags that depend on this machine.
    targets: Sequence[str]  #: Bazel's targets.
    package: Sequence[str]  #: The command that makes the wheel from the built files.
    mounts: Sequence[MountJson]  #: Folders that the compile container sees.
    phases: Sequence[PhaseJson]  #: The phases that run in containers, in order.
    resources: BuildResources  #: The limits of the compile container.
    trust: TrustJson  #: The trust domain.
    remote: RemoteJson | None  #: Remote cache and executor; null if neither is used.
    machine: MachineJson  #: The machine for which the limits were computed.
    wheel: WheelNameJson  #: The names in the wheel's file name.
    runtime: str | None  #: The image in which the wheel is tried.
    verify: VerifyOptionsJson  #: How the wheel is verified.
    untested: Sequence[str]  #: Combinations without a known test, in words.
    choices: Sequence[Choice]  #: Every value with its source and reason.


class ExpectedJson(TypedDict):
    """How long a build is expected to take."""

    seconds: int  #: Seconds in all.
    source: str  #: The source of this estimate, as text.


class PlanDocument(BuildPlanJson):
    """`tfdock plan`: the plan of a build."""

    estimate: ExpectedJson | None  #: The expected time of the build; null if unknown.
    unverified: Sequence[str]  #: Facts about the base image that nobody has checked.
    notes: Sequence[str]  #: Notes before a build, such as an official wheel that makes the build unnecessary.


class RenderDocument(TypedDict):
    """`tfdock render`: the files of the image's build context."""

    build_id: str  #: The build id.
    files: Sequence[str]  #: Paths of the files, relative to the folder, sorted.


class DoctorDocument(TypedDict):
    """`tfdock doctor`: what this machine lacks for a build, or what an environment lacks to run TensorFlow."""

    checks: Sequence[PreflightCheck]  #: The checks, in order.


# Not a class: `from` is a keyword in Python.
PinJson = TypedDict(
    "PinJson",
    {
        "pin": Annotated[str, Field(description="The kind of input, such as `base`, `source` or `package`.")],
        "name": Annotated[str, Field(description="The input's name.")],
        "value": Annotated[str, Field(description="The input's version, digest or commit.")],
        "from": Annotated[str, Field(description="Where the value comes from.")],
    },
)
PinJson.__doc__ = """A pinned input of a build."""


class LockedProfileJson(TypedDict):
    """The result of locking one profile."""

    profile: str  #: The profile as named on the command line.
    file: str | None  #: The lock file; null if no lock file was written.
    ok: bool  #: Whether the lock file was written.
    build_id: str | None  #: The build id; null if locking failed.
    fingerprint: str | None  #: The build's fingerprint; null if locking failed.
    knowledge: str | None  #: The digest of the knowledge base; null if locking failed.
    pins: Sequence[PinJson]  #: Everything that is pinned.
    moved: Sequence[LockDifference]  #: The changes since the last lock.
    problems: Sequence[Problem]  #: Why this failed.


class LockDocument(TypedDict):
    """`tfdock lock`: the locks of profiles."""

    locks: Sequence[LockedProfileJson]  #: The profiles, in the order of the command line.


class LockFileDocument(TypedDict):
    """The lock file of a profile (YAML): the pins of its downloads."""

    schema: Literal[1]  #: The version of the format.
    profile: str  #: The profile's file.
    build_id: str  #: The build id.
    fingerprint: str  #: The build's fingerprint.
    knowledge: str  #: The digest of the knowledge base.
    choices: Mapping[str, str]  #: The chosen value of each field.
    pins: Sequence[PinJson]  #: Everything that is pinned, sorted.


class FetchedJson(TypedDict):
    """The result of one profile's downloads."""

    build_id: str | None  #: The build id; null if fetching failed.
    profile: str  #: The profile.
    status: Literal["fetched", "failed"]  #: Whether all downloads succeeded.
    problems: Sequence[Problem]  #: Why this failed.


class BundleFileJson(TypedDict):
    """The file of a bundle."""

    path: str  #: The path of the bundle.
    size: int  #: Bytes.
    sha256: str  #: 64 hexadecimal digits.


class FetchDocument(TypedDict):
    """`tfdock fetch`: the downloads."""

    builds: Sequence[FetchedJson]  #: The builds.
    bundle: BundleFileJson | None  #: The bundle; null if the downloads went into the caches.
