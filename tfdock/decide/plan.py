"""`Resolution` + machine -> `BuildPlan`: what `tfdock plan` prints and `tfdock build` runs, to the last flag."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tfdock.decide.naming import source_identity
from tfdock.decide.render import BuildContext
from tfdock.decide.resolve import Resolution
from tfdock.errors import Incompatible, Problem, Way, one_of
from tfdock.model import BuildId, Machine, Mount, Version
from tfdock.read.knowledge import KnowledgeBase
from tfdock.read.profile import Profile

FINGERPRINT_SCHEMA = 1
EPOCH = 315532800
"""1980-01-01, the first moment a zip archive can name. A constant: a time of its own per commit would enter every
action key and empty the cache."""

# Paths inside the containers: the same everywhere, because they end up in what is compiled.
SOURCE = "/tf/tensorflow"
OUTPUT = "/tf/output"
STAGING = "/tf/staging"
REPOSITORY_CACHE = "/tf/cache/repository"
DISK_CACHE = "/tf/cache/disk"

MIB = 1 << 20
GIB = 1 << 30
_RESERVE_MEMORY = 1 * GIB
"""Left to the machine beside the build container."""
BAZEL_SERVER_MEMORY = 1 * GIB
"""Bazel's own Java heap for a tree of TensorFlow's size; not to be given to compile jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Limits of the compile container. Memory and disk in bytes, the time limit in seconds."""

    jobs: int
    cpus: int
    memory: int
    disk: int
    pids: int
    time_limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One container: what it runs, what it sees, and whether it has a network.

    Mount sources are written with `{cache}`, `{output}`, `{staging}` and `{toolchain}`: the build fills them in.
    """

    name: str
    command: tuple[str, ...]
    mounts: tuple[Mount, ...]
    network: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """Everything a build will do, decided."""

    build_id: BuildId
    fingerprint: str
    resolution: Resolution
    context: BuildContext
    environment: Mapping[str, str]
    container_environment: Mapping[str, str]
    startup_options: tuple[str, ...]
    bazel_flags: tuple[str, ...]
    local_flags: tuple[str, ...]
    targets: tuple[str, ...]
    package: tuple[str, ...]
    phases: tuple[Phase, ...]
    resources: Resources
    labels: Mapping[str, str]
    for_this_machine: bool = False
    """The profile takes the GPUs of this machine (`gpus: local`): what they cannot run is not worth building."""

    @property
    def image_name(self) -> str:
        """The name the built image gets on the engine."""
        return f"tfdock/{self.build_id.lower()}:{self.fingerprint[:12]}"

    @property
    def source_refs(self) -> tuple[str | None, ...]:
        """The refs to try, in order; one None for a source that has none."""
        return self.resolution.source.refs or (None,)


def make_plan(
    profile: Profile, resolution: Resolution, context: BuildContext, knowledge: KnowledgeBase, machine: Machine
) -> BuildPlan:
    """Decide commands, mounts and limits. Pure: the same arguments give the same plan."""
    resources = size(profile, resolution, machine)
    wheel = resolution.release.wheel
    package = ("run", *resolution.package) if resolution.package else ("collect", wheel.folder or "")
    startup = (
        f"--output_user_root={OUTPUT}/user",
        f"--output_base={OUTPUT}/base",
        "--max_idle_secs=15",
        *resolution.startup,
    )
    local = _local_flags(resolution, knowledge, resources)
    words = (*startup, "--", *resolution.flags, *local)
    targets = (wheel.target,)
    return BuildPlan(
        build_id=resolution.build_id,
        fingerprint=fingerprint(resolution, context),
        resolution=resolution,
        context=context,
        environment=resolution.environment,
        container_environment=_container_environment(),
        startup_options=startup,
        bazel_flags=resolution.flags,
        local_flags=local,
        targets=targets,
        package=package,
        phases=(
            _phase("fetch", (*words, "--", *targets), network=True),
            _phase(
                "compile", (*words, *_events(resolution, knowledge), "--", *targets, "--", *package), network=False
            ),
        ),
        resources=resources,
        labels={"io.tfdock.build-id": resolution.build_id},
        for_this_machine=profile.for_this_machine,
    )


def _container_environment() -> dict[str, str]:
    """What every container gets besides the release's own variables: nothing of the caller's machine."""
    return {
        "HOME": "/tmp",
        "USER": "tfdock",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(EPOCH),
        # docker-init is tini: this makes it pass a signal on to the whole group, Bazel's client included.
        "TINI_KILL_PROCESS_GROUP": "1",
    }


def _phase(name: str, words: tuple[str, ...], *, network: bool) -> Phase:
    mounts = [
        Mount(source="{output}", target=OUTPUT),
        Mount(source="{cache}/repository", target=REPOSITORY_CACHE),
        Mount(source="{cache}/disk/{toolchain}", target=DISK_CACHE),
    ]
    if name == "compile":
        mounts.append(Mount(source="{staging}", target=STAGING))
    command = ("/bin/bash", "/opt/tfdock/phase.sh", name, *words)
    return Phase(name=name, command=command, mounts=tuple(mounts), network=network)


def _local_flags(resolution: Resolution, knowledge: KnowledgeBase, resources: Resources) -> tuple[str, ...]:
    """Flags that depend on this machine, not on what is built: outside the fingerprint."""
    memory = max(resources.memory - BAZEL_SERVER_MEMORY, resources.memory // 2)
    values = {"jobs": resources.jobs, "cpus": resources.cpus, "memory_mib": memory // MIB}
    return (
        *bazel_options(knowledge, resolution.bazel, "output", {}),
        *bazel_options(knowledge, resolution.bazel, "repository_cache", {"path": REPOSITORY_CACHE}),
        *bazel_options(knowledge, resolution.bazel, "disk_cache", {"path": DISK_CACHE}),
        *bazel_options(knowledge, resolution.bazel, "resources", values),
    )


def _events(resolution: Resolution, knowledge: KnowledgeBase) -> tuple[str, ...]:
    return bazel_options(knowledge, resolution.bazel, "events", {"path": f"{STAGING}/events.json"})


def bazel_options(
    knowledge: KnowledgeBase, bazel: str, purpose: str, values: Mapping[str, object]
) -> tuple[str, ...]:
    """The options of one purpose that this Bazel knows; none where it cannot do it."""
    version = Version(bazel)
    return tuple(
        row.option.format_map(values)
        for row in knowledge.bazel_options
        if row.purpose == purpose
        and (row.since is None or version >= Version(row.since))
        and (row.until is None or version.minor <= Version(row.until))
    )


# --- resources ----------------------------------------------------------------------------------------------------


def size(profile: Profile, resolution: Resolution, machine: Machine) -> Resources:
    """Jobs and memory from the machine: a TensorFlow compile job needs RAM, and `nproc` of them swap to death."""
    asked, cost = profile.resources, resolution.release.cost
    cpus = machine.cpus if asked.cpus == "auto" else asked.cpus
    memory = machine.memory - _RESERVE_MEMORY if asked.memory == "auto" else parse_bytes(asked.memory)
    memory = max(memory, machine.memory // 2) if asked.memory == "auto" else memory
    for_jobs = max(memory - BAZEL_SERVER_MEMORY, 0)
    jobs = max(1, min(cpus, for_jobs // (cost.memory_per_job_mib * MIB))) if asked.jobs == "auto" else asked.jobs
    least = BAZEL_SERVER_MEMORY + cost.memory_per_job_mib * MIB
    if asked.memory != "auto" and memory < least:
        way = Way(text="`resources: {memory: auto}`", change={"resources.memory": "auto"})
        raise Incompatible(
            Problem(
                code="memory-too-small",
                message=f"`resources.memory: {asked.memory}` is less than Bazel and one job need",
                why=f"{BAZEL_SERVER_MEMORY // MIB} MiB for Bazel, {cost.memory_per_job_mib} MiB for a job",
                fix=one_of([f"give at least {least // MIB}MiB", way.text]),
                ways=(way,),
                field="resources.memory",
            )
        )
    return Resources(
        jobs=jobs,
        cpus=cpus,
        memory=memory,
        disk=cost.disk_gib * GIB if asked.disk == "auto" else parse_bytes(asked.disk),
        pids=16384,
        time_limit=parse_seconds(asked.time_limit) if asked.time_limit else None,
    )


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """`24GiB`, `24G`, `24 GB` (all binary, as `docker --memory` reads them) -> bytes."""
    number = text.rstrip("KMGTiB ")
    unit = text[len(number) :].strip().rstrip("B").rstrip("i")
    return int(float(number) * _UNITS[unit])


def parse_seconds(text: str) -> int:
    """`5h30m` -> seconds."""
    seconds, number = 0, ""
    for character in text:
        if character.isdigit():
            number += character
        else:
            seconds += int(number) * {"h": 3600, "m": 60, "s": 1}[character]
            number = ""
    return seconds


# --- identity -----------------------------------------------------------------------------------------------------


def fingerprint(resolution: Resolution, context: BuildContext) -> str:
    """A hash of what decides the wheel's bytes, field by field: 64 hexadecimal digits.

    Not in it: resources, caches, verification, paths of this machine, mirrors, and this program's version.
    """
    fields = {
        "schema": FINGERPRINT_SCHEMA,
        "source": hashlib.sha256(source_identity(resolution.source)).hexdigest(),
        "patches": [hashlib.sha256(patch).hexdigest() for patch in resolution.source.patches.values()],
        "base": resolution.base.digest or str(resolution.base),
        "versions": {
            "tensorflow": str(resolution.version),
            "python": resolution.python,
            "bazel": resolution.bazel,
            **resolution.components,
        },
        "targets": list(resolution.targets),
        "environment": dict(resolution.environment),
        "flags": list(resolution.flags),
        "startup": list(resolution.startup),
        "package": [resolution.release.wheel.target, *resolution.package],
        "context": {path: hashlib.sha256(data).hexdigest() for path, data in context.files.items()},
        "wheel": [resolution.wheel_name, resolution.local_version],
        "epoch": EPOCH,
    }
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def toolchain_key(base_digest: str | None, toolchain: bytes) -> str:
    """Name of the disk cache: equal for equal tools on every machine, never an image id.

    `toolchain` is the file the image's toolchain step wrote. Bazel does not track tools outside its workspace, so
    objects of two compilers must not meet in one cache.
    """
    return hashlib.sha256(b"1\n" + (base_digest or "-").encode() + b"\n" + toolchain).hexdigest()[:16]


def as_json(plan: BuildPlan) -> dict[str, object]:
    """The plan as `tfdock plan --json` prints it."""
    resolution = plan.resolution
    return {
        "build_id": plan.build_id,
        "fingerprint": plan.fingerprint,
        "image": {
            "base": str(resolution.base),
            "name": plan.image_name,
            "source": {
                "kind": resolution.source.kind,
                "location": resolution.source.location,
                "refs": list(resolution.source.refs),
                "commit": resolution.source.commit,
                "sha256": resolution.source.sha256,
                "patches": sorted(resolution.source.patches),
            },
        },
        "environment": dict(plan.environment),
        "container_environment": dict(plan.container_environment),
        "startup_options": list(plan.startup_options),
        "bazel_flags": list(plan.bazel_flags),
        "local_flags": list(plan.local_flags),
        "targets": list(plan.targets),
        "package": list(plan.package),
        "mounts": [asdict(mount) for mount in plan.phases[-1].mounts],
        "phases": [
            {"name": phase.name, "network": phase.network, "command": list(phase.command)} for phase in plan.phases
        ],
        "resources": asdict(plan.resources),
        "wheel": {"name": resolution.wheel_name, "local_version": resolution.local_version},
        "runtime": str(resolution.runtime) if resolution.runtime else None,
        "verify": {"run": resolution.verify.run, "gpu_code": resolution.verify.gpu_code},
        "untested": [problem.message for problem in resolution.untested],
        "choices": [asdict(choice) for choice in resolution.choices],
    }
