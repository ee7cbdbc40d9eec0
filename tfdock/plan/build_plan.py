"""A `BuildPlan`: everything that a build runs, down to each flag. Functions change its limits or trust domain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tfdock.knowledge.contract import bazel_options
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan import remote_flags as remotes
from tfdock.plan.resources import MIB, BuildResources
from tfdock.plan.trust_domain import IN_RELEASE, Domain
from tfdock.plan.trust_domain import as_json as trust_json
from tfdock.types import NOWHERE, BuildId, ExpectedFiles, Machine, Mount, Remote

if TYPE_CHECKING:  # plans contain these types; code that runs a plan imports them from here
    from tfdock.plan.render import BuildContext
    from tfdock.profile.profile import Resources as Requested
    from tfdock.resolve.resolution import Resolution

#: 1980-01-01, the earliest time in a zip archive. It is constant, because the time is in every action key: with a new
#: time for each commit, no cache entry would be found.
EPOCH = 315532800

#: Variables of every container, in addition to the release's variables. No value comes from the caller's machine.
CONTAINER_ENVIRONMENT = {
    # The caller's uid has no home and no name in the image. Both variables are set: Bazel reads one, Python the
    # other.
    "HOME": "/tmp",
    "USER": "tfdock",
    # Otherwise a machine's language and time zone would change output and file times.
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    # Equal inputs must give equal bytes, so the order of sets and the time are fixed.
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": str(EPOCH),
}

# Paths inside the containers. They are the same on every machine, because compiled files contain them.
SOURCE = "/tf/tensorflow"
OUTPUT = "/tf/output"
STAGING = "/tf/staging"
GIVEN = "/tf/given"
REPOSITORY_CACHE = "/tf/cache/repository"
DISK_CACHE = "/tf/cache/disk"

#: Reports that Bazel writes into the staging folder.
TOLD = {"events": "events.json", "profile": "profile.gz"}


#: Bazel's files in a repository cache.
DOWNLOADS = ExpectedFiles(pattern="content_addressable/sha256/*/*", most=100_000, size=1 << 38)

#: Files that repository rules download with other tools, such as pip. Bazel caches none of them.
EXTERNAL = ExpectedFiles(pattern="external.tar", size=1 << 38)

# The bounds are far above what builds leave. They stop a hostile build from filling the disk.
#: Results of the compile phase in the staging folder.
RESULTS = (
    ExpectedFiles(pattern="done", size=1 << 10),
    ExpectedFiles(pattern="SHA256SUMS", size=1 << 16),
    ExpectedFiles(pattern="raw/*.whl", most=16, size=1 << 33),
    # Optional: Bazel's log is for reports only; a wheel without it is complete.
    ExpectedFiles(pattern=TOLD["events"], size=1 << 32, optional=True),
    ExpectedFiles(pattern=TOLD["profile"], size=1 << 28, optional=True),
)


def packing() -> tuple[str, ...]:
    """Return the command that packs the downloads of repository rules into the staging folder."""
    return ("tar", "--create", f"--file={STAGING}/{EXTERNAL.pattern}", f"--directory={OUTPUT}/base", "external")


def unpacking() -> tuple[str, ...]:
    """Return the command that unpacks these downloads, from a folder in the container."""
    unpack = f"mkdir -p {OUTPUT}/base && tar --extract --file={GIVEN}/{EXTERNAL.pattern} --directory={OUTPUT}/base"
    return ("/bin/sh", "-c", unpack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One container: its command, its mounts, and whether it has a network.

    Mounts may have the placeholders `{cache}`, `{output}`, `{staging}`, `{results}`, `{remote}` and `{toolchain}`,
    commands only `{toolchain}`. The build fills them in.
    """

    name: str
    command: tuple[str, ...]
    mounts: tuple[Mount, ...]
    network: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """All decisions about a build."""

    build_id: BuildId
    fingerprint: str
    resolution: Resolution
    context: BuildContext
    environment: Mapping[str, str]
    startup_options: tuple[str, ...]
    local_startup_options: tuple[str, ...]
    bazel_flags: tuple[str, ...]
    local_flags: tuple[str, ...]
    targets: tuple[str, ...]
    package: tuple[str, ...]
    phases: tuple[Phase, ...]
    resources: BuildResources
    requested: Requested
    machine: Machine  #: The machine for which the limits were computed.
    remote: Remote = NOWHERE
    #: Whether the profile has `gpus: local`: then the build makes only code that this machine's GPUs run.
    for_this_machine: bool = False
    trust: Domain = IN_RELEASE  #: The trust domain: its builds share a disk cache.

    @property
    def fetch(self) -> Phase:
        """The container that downloads and analyses the build."""
        return self.phases[0]

    @property
    def compile(self) -> Phase:
        """The container that compiles."""
        return self.phases[1]

    @property
    def image_name(self) -> str:
        """The name of the built image on the engine."""
        # A repository's name has no capitals (OCI distribution specification).
        return f"tfdock/{self.build_id.lower()}:{self.fingerprint[:12]}"

    @property
    def source_refs(self) -> tuple[str | None, ...]:
        """The refs to try, in order; a single None for a source without refs."""
        return self.resolution.source.refs or (None,)


def with_resources(plan: BuildPlan, resources: BuildResources, knowledge: KnowledgeBase) -> BuildPlan:
    """Return the same plan with other limits: the commands change, but the built wheel does not."""
    bazel = plan.resolution.bazel
    # These options come first, so that a profile's own startup options override them.
    startup = bazel_options(knowledge, bazel, "heap", {"heap_mib": resources.heap // MIB})
    local = _local_flags(plan.resolution, knowledge, resources)
    starting, flags = (*startup, *plan.startup_options, "--"), (*plan.bazel_flags, *local)
    # The fetch phase has a network, so it gets no disk cache: it could write foreign results into the cache.
    disk_cache = bazel_options(knowledge, bazel, "disk_cache", {"path": DISK_CACHE})
    # The fetch options come before the profile's own flags, so that the profile's flags override them.
    fetching = (*starting, *bazel_options(knowledge, bazel, "fetch", {}), *flags, "--", *plan.targets)
    remote = remotes.flags(plan.remote, partial(bazel_options, knowledge, bazel))
    # phase.sh splits the words at each `--`.
    flags = (*flags, *disk_cache, *_told(plan, knowledge), *remote)
    compiling = (*starting, *flags, "--", *plan.targets, "--", *plan.package)
    return replace(
        plan,
        resources=resources,
        local_startup_options=startup,
        local_flags=local,
        phases=(
            _phase("fetch", fetching, plan),
            _phase("compile", compiling, plan),
        ),
    )


def through_mirror(phase: Phase, mirror: str, bazel: str, knowledge: KnowledgeBase) -> Phase:
    """Return the phase with an archive mirror that Bazel tries first; unchanged if this Bazel supports no mirror."""
    config = "/tmp/tfdock-mirror"
    options = bazel_options(knowledge, bazel, "archive_mirror", {"path": config})
    if not options:
        return phase
    # Write the file in the container: a remote engine has no file of this host. Each line adds an address to try.
    write = f'printf \'rewrite (.*) %s/$1\\nrewrite (.*) $1\\n\' "$0" >{config}; exec "$@"'
    place = phase.command.index("--") + 1
    command = (*phase.command[:place], *options, *phase.command[place:])
    return replace(phase, command=("/bin/sh", "-c", write, mirror, *command))


def _phase(name: str, words: tuple[str, ...], plan: BuildPlan) -> Phase:
    disk, compiles = plan.trust.cache_key("{toolchain}"), name == "compile"
    before = remotes.command(plan.remote) if compiles else ()
    mounts = [
        Mount(source="{output}", target=OUTPUT),
        # Read-only while compiling: all downloads happen in the fetch phase.
        Mount(source="{cache}/repository", target=REPOSITORY_CACHE, volume="repository", read_only=compiles),
    ]
    if compiles:
        # Builds that do not trust each other must not share a disk cache: no entry can be verified.
        mounts.append(Mount(source=f"{{cache}}/disk/{disk}", target=DISK_CACHE, volume=f"disk-{disk}"))
        mounts.append(
            Mount(source="{staging}", target=STAGING, given=True, results=RESULTS, results_folder="{results}")
        )
    if before:
        # Read-only: the container must not change the program that reaches the endpoint.
        mounts.append(Mount(source="{remote}", target=remotes.FOLDER, read_only=True))
    command = (*before, "/bin/bash", "/opt/tfdock/phase.sh", name, *words)
    return Phase(name=name, command=command, mounts=tuple(mounts), network=not compiles)


def _local_flags(resolution: Resolution, knowledge: KnowledgeBase, resources: BuildResources) -> tuple[str, ...]:
    """Return the flags that depend on this machine only. The fingerprint leaves them out."""
    values = {"jobs": resources.jobs, "cpus": resources.cpus, "memory_mib": resources.for_actions // MIB}
    return (
        *bazel_options(knowledge, resolution.bazel, "output", {}),
        *bazel_options(knowledge, resolution.bazel, "repository_cache", {"path": REPOSITORY_CACHE}),
        *bazel_options(knowledge, resolution.bazel, "resources", values),
        *bazel_options(knowledge, resolution.bazel, "toolchain", {"toolchain": "{toolchain}"}),
    )


def in_domain(plan: BuildPlan, domain: Domain, knowledge: KnowledgeBase) -> BuildPlan:
    """Return the same plan in another trust domain."""
    # The domain decides the cache mount and the uploads, so the phases are computed again.
    moved = replace(plan, trust=domain, remote=within(plan.remote, domain))
    return with_resources(moved, plan.resources, knowledge)


def within(remote: Remote, domain: Domain) -> Remote:
    """Return the remote caches that a domain may use, and how. Every domain may read what `release` uploaded."""
    # Another domain uploads nothing: its results must not reach builds of releases.
    return remote if domain.is_release else replace(remote, upload=False)


def _told(plan: BuildPlan, knowledge: KnowledgeBase) -> tuple[str, ...]:
    """Return the options that make Bazel write its logs and profiles."""
    return tuple(
        option
        for purpose, file in TOLD.items()
        for option in bazel_options(knowledge, plan.resolution.bazel, purpose, {"path": f"{STAGING}/{file}"})
    )


# --- identity -----------------------------------------------------------------------------------------------------


def toolchain_key(toolchain: bytes) -> str:
    """Return the name of the disk cache: the same for the same tools on every machine, never an image id.

    `toolchain` is the file that the image's toolchain step wrote: packages with versions, and hashes of everything
    else. Bazel does not track tools outside its workspace, so two compilers must not share a cache. The digest of the
    base image is not part of the key: a rebuilt image with the same content has another digest.
    """
    # The 2 is the version of the key. With another number, no old cache is used any more.
    return hashlib.sha256(b"2\n" + toolchain).hexdigest()[:16]


def described_toolchain(toolchain: bytes) -> dict[str, object]:
    """Return the toolchain file's contents as readable text:

    Bazel's version, compilers, number of packages, fixed cachebusters.
    """
    lines = [line.split() for line in toolchain.decode("utf-8", "replace").splitlines()]
    rows: dict[str, list[str]] = {}
    for kind, *words in filter(None, lines):
        rows.setdefault(kind, []).append(words[0] if words else "")
    return {
        "bazel": next(iter(rows.get("bazel", ())), None),
        "tools": sorted(rows.get("tool", ())),
        "packages": len(rows.get("package", ())),
        "cachebusters": rows.get("cachebuster", []),
    }


def as_json(plan: BuildPlan) -> dict[str, object]:
    """Return the plan as `tfdock plan --json` prints it."""
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
        "container_environment": CONTAINER_ENVIRONMENT,
        "startup_options": list(plan.startup_options),
        "local_startup_options": list(plan.local_startup_options),
        "bazel_flags": list(plan.bazel_flags),
        "local_flags": list(plan.local_flags),
        "targets": list(plan.targets),
        "package": list(plan.package),
        "mounts": [
            {"source": mount.source, "target": mount.target, "read_only": mount.read_only, "kind": mount.kind}
            for mount in plan.phases[-1].mounts
        ],
        "phases": [
            {"name": phase.name, "network": phase.network, "command": list(phase.command)} for phase in plan.phases
        ],
        "resources": asdict(plan.resources),
        "trust": trust_json(plan.trust),
        "remote": remotes.as_json(plan.remote),
        "machine": {"cpus": plan.machine.cpus, "memory": plan.machine.memory},
        "wheel": {
            "name": resolution.wheel_name,
            "local_version": resolution.local_version,
            "platform": resolution.platform,
        },
        "runtime": str(resolution.runtime) if resolution.runtime else None,
        "verify": {"run": resolution.verify.run, "gpu_code": resolution.verify.gpu_code},
        "untested": [problem.message for problem in resolution.untested],
        "choices": [asdict(choice) for choice in resolution.choices],
    }
