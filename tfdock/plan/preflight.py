"""Check this machine before a build: driver, GPUs, memory, disk and engine.

Pure: the machine comes in as values (`Host`, `Machine`, `WritableFolder`), its requirements from the plan and from
knowledge rows. If its facts are unknown, a check is skipped: it states why, and never stops a build.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from tfdock.errors import OR, ExitCode, Problem, Severity, joined
from tfdock.gpu import verdict
from tfdock.gpu.devices import architecture_of, find_gpu, gpu_driver, is_embedded, judge, needs_open_modules
from tfdock.knowledge.fits import emitted_ptx, own_driver, toolkit_floor, toolkit_of_ptx
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.resources import GIB, LEAST_HEAP, MIB, BuildResources, least_memory
from tfdock.types import Capability, EngineInfo, Host, LocalGpu, Machine, Version, WritableFolder

if TYPE_CHECKING:
    from tfdock.resolve.resolution import Resolution

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"

#: The minimum API version: Docker 20.10 has it. Engine versions are not compared: podman numbers them differently.
OLDEST_API = Version("1.41")

#: A build is refused if less than this fraction of the estimate is free. Below the whole estimate it gets a warning.
_CERTAINLY = 0.6

# Disk space for a machine before any profile is known: for most CUDA builds of TensorFlow, and for the smallest
# build.
_DISK_ADVISED, _DISK_LEAST = 60 * GIB, 5 * GIB
_MEMORY_ADVISED, _MEMORY_LEAST = 16 * GIB, 3 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightCheck:
    """One check of this machine."""

    name: str  #: The check.
    #: `warning`: a build may work; `failed`: it will not; `skipped`: `found` says why.
    status: Literal["ok", "warning", "failed", "skipped"]
    found: str  #: What was found.
    code: str = ""  #: The code of the problem; empty without one.
    needed: str = ""  #: The requirement; may be empty.
    fixes: Sequence[str] = ()  #: Fixes; each fix alone is enough; may be empty.
    exit_code: int = ExitCode.OK  #: The exit code for this result; 0 if the check does not fail the command.
    profile: str | None = None  #: The profile of the check; null for a check of any build.

    @property
    def fix(self) -> str:
        """The fixes as one text, for documents."""
        return OR.join(self.fixes)

    @property
    def problem(self) -> Problem:
        """A failed check or a warning as a problem."""
        message = f"{self.found}; needed: {self.needed}" if self.needed else self.found
        severity: Severity = "error" if self.status == FAILED else "warning"
        return Problem(self.code, message, fixes=self.fixes, severity=severity, file=self.profile)

    def as_warning(self, code: str, *fixes: str) -> PreflightCheck:
        """Return the same facts as a warning."""
        return replace(self, status=WARNING, code=code, fixes=fixes)

    def as_failure(self, code: str, *fixes: str, exit_code: int) -> PreflightCheck:
        """Return the same facts as a failure of the command."""
        return replace(self, status=FAILED, code=code, fixes=fixes, exit_code=exit_code)


def failed_by(problem: Problem, name: str, exit_code: int, *, profile: str | None = None) -> PreflightCheck:
    """Return an error's problem as a failed check with this name."""
    check = PreflightCheck(name=name, status=OK, found=problem.message, profile=profile)
    return check.as_failure(problem.code, *problem.fixes, exit_code=exit_code)


class PreflightRequest(Protocol):
    """What a build requires of a machine: by a plan, or by a profile that is resolved and sized but not planned."""

    @property
    def resolution(self) -> Resolution: ...

    @property
    def resources(self) -> BuildResources: ...

    @property
    def for_this_machine(self) -> bool: ...


def machine_findings(
    plan: PreflightRequest,
    knowledge: KnowledgeBase,
    *,
    host: Host | None,
    machine: Machine | None,
    places: Sequence[WritableFolder],
    profile: str | None = None,
) -> tuple[PreflightCheck, ...]:
    """Return the checks of this machine, without its engine: driver and GPUs, memory, disk.

    If a fact is None, or the list of places is empty, the fact is unknown, and its checks are skipped.
    """
    checks = (
        *device_checks(plan.resolution, knowledge, host, for_this_machine=plan.for_this_machine),
        memory_check(plan, machine),
        *disk_checks(places, plan.resources.disk),
    )
    return tuple(replace(check, profile=profile) for check in checks)


# --- driver and GPUs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFloor:
    """A minimum driver, and its reason."""

    version: Version
    code: str
    why: str


def device_checks(
    resolution: Resolution, knowledge: KnowledgeBase, host: Host | None, *, for_this_machine: bool
) -> Iterator[PreflightCheck]:
    """Yield checks of driver and GPUs against the build; none for a build without an accelerator.

    A failed check stops a build only if it is for this machine's GPUs. Other builds may be for other machines.
    """
    for check in _device_checks(resolution, knowledge, host):
        stops = for_this_machine and check.status == WARNING
        yield replace(check, status=FAILED, exit_code=ExitCode.INCOMPATIBLE) if stops else check


def _device_checks(resolution: Resolution, knowledge: KnowledgeBase, host: Host | None) -> Iterator[PreflightCheck]:
    accelerator = resolution.accelerator
    # A CPU build has no toolkit, and needs no driver.
    if not accelerator.toolkit:
        return
    if host is None:
        yield PreflightCheck(name="driver", status=SKIPPED, found="this machine's driver was not checked")
        return
    if accelerator.accelerator in host.troubles:
        yield trouble_check(host, accelerator.accelerator)
    gpus = [gpu for gpu in host.gpus if gpu.accelerator == accelerator.accelerator]
    # Identical cards are reported once.
    distinct = {(gpu.name, gpu.target): gpu for gpu in gpus}.values()
    checks = [_gpu_check(resolution, knowledge, gpu) for gpu in distinct]
    yield from checks
    driver = _driver_check(resolution, knowledge, host, gpus)
    # Do not advise a newer driver for a GPU that no newer driver knows.
    if driver.status in (OK, SKIPPED) or not any(check.code == "driver-gpu-conflict" for check in checks):
        yield driver


def trouble_check(host: Host, accelerator: str) -> PreflightCheck:
    """Return the check for a failed driver tool: a driver is installed, but GPU programs will not run."""
    fix = "after a driver update, restart the machine; otherwise reinstall the driver. Builds need no driver"
    return PreflightCheck(name="driver", status=OK, found=host.troubles[accelerator]).as_warning("driver-broken", fix)


def _driver_check(
    resolution: Resolution, knowledge: KnowledgeBase, host: Host, gpus: Sequence[LocalGpu]
) -> PreflightCheck:
    accelerator = resolution.accelerator
    floors = driver_floors(resolution, knowledge, gpus, wsl=host.wsl)
    highest = max(floors, key=lambda floor: floor.version.parts, default=None)
    needed = f"driver {highest.version} or newer, {highest.why}" if highest else ""
    here = host.drivers.get(accelerator.accelerator)
    if highest is None:
        return PreflightCheck(name="driver", status=SKIPPED, found="the required driver is not known")
    if here is None:
        vendor = accelerator.vendor or accelerator.accelerator
        found = f"no {vendor} driver here to compare; building needs none"
        return PreflightCheck(name="driver", status=SKIPPED, found=found, needed=needed)
    found = f"driver {here}{' of Windows' if host.wsl else ''}"
    # Jetson boards: their driver is part of the system, with versions of its own.
    if gpus and all(is_embedded(knowledge, gpu.accelerator, gpu.target) for gpu in gpus):
        found += ", which came with the board's system: the tables of drivers do not apply to it"
        return PreflightCheck(name="driver", status=SKIPPED, found=found)
    check = PreflightCheck(name="driver", status=OK, found=found, needed=needed)
    if Version(here) >= highest.version:
        return check
    return check.as_warning(highest.code, _newer_driver(resolution, knowledge, highest, Version(here), wsl=host.wsl))


def driver_floors(
    resolution: Resolution, knowledge: KnowledgeBase, gpus: Sequence[LocalGpu], *, wsl: bool
) -> tuple[DriverFloor, ...]:
    """Return every minimum driver for the build on these GPUs; if there are none, on the GPUs of the profile."""
    name = resolution.accelerator.toolkit
    version = Version(resolution.components.get(name, ""))
    title = resolution.accelerator.title_of(name)
    floors: list[DriverFloor] = []
    floor = toolkit_floor(knowledge, name, version, wsl=wsl)
    if floor:
        floors.append(DriverFloor(version=floor, code="driver-too-old", why=f"for what {title} {version} compiles"))
    ptx = _needed_ptx(resolution, knowledge, gpus)
    writer = toolkit_of_ptx(knowledge, name, ptx) if ptx else None
    if ptx and writer:
        floor = own_driver(writer, wsl=wsl)
        why = f"to compile PTX {ptx}, which came with {title} {writer.version}, for a GPU without its own code"
        floors += [DriverFloor(version=floor, code="driver-too-old-for-ptx", why=why)] if floor else []
    for gpu in gpus:
        row = find_gpu(knowledge, gpu.name)
        device = (gpu.accelerator, gpu.target, row.gpu if row else "")
        floor = gpu_driver(knowledge, *device, wsl=wsl)
        if floor:
            modules = ", with the open kernel modules" if needs_open_modules(knowledge, *device) and not wsl else ""
            why = f"which is the first driver that knows {gpu.name}{modules}"
            floors.append(DriverFloor(version=floor, code="driver-too-old-for-gpu", why=why))
    return (*floors, *(() if gpus else _floors_of_targets(resolution, knowledge, wsl=wsl)))


def _floors_of_targets(resolution: Resolution, knowledge: KnowledgeBase, *, wsl: bool) -> Iterator[DriverFloor]:
    """Yield the lowest minimum driver of the GPUs of the build: the wheel may run on any of them."""
    accelerator, targets = resolution.accelerator, resolution.targets
    gpus = [Capability.parse(target).dotted for target in targets] if accelerator.capabilities else targets
    floors = [(gpu_driver(knowledge, accelerator.accelerator, gpu, wsl=wsl), gpu) for gpu in gpus]
    known = [(floor, gpu) for floor, gpu in floors if floor]
    # If one target works with any driver, there is no minimum driver.
    if known and len(known) == len(floors):
        version, gpu = min(known)
        why = f"which is the first driver that knows GPUs of {gpu}"
        yield DriverFloor(version=version, code="driver-too-old-for-gpu", why=why)


def _needed_ptx(resolution: Resolution, knowledge: KnowledgeBase, gpus: Sequence[LocalGpu]) -> Version | None:
    """Return the PTX ISA that the driver must compile; None without PTX, or if every GPU has machine code."""
    if not resolution.accelerator.capabilities or not verdict.code_of(resolution.targets)[1]:
        return None
    runs = [_judge_gpu(resolution, knowledge, gpu) for gpu in gpus]
    # If the build has machine code for every GPU of this machine, the driver compiles nothing.
    if runs and not any(run is None or run.runs == "ptx-jit" for run in runs):
        return None
    name = resolution.accelerator.toolkit
    toolkit = (name, resolution.components.get(name, ""))
    return emitted_ptx(knowledge, toolkit, (resolution.gpu_compiler, resolution.gpu_compiler_version))


def _newer_driver(
    resolution: Resolution, knowledge: KnowledgeBase, floor: DriverFloor, here: Version, *, wsl: bool
) -> str:
    """Return the fix: another driver, a toolkit that this driver runs, or machine code instead of PTX."""
    where = " of Windows" if wsl else ""
    ways = [f"install driver{where} {floor.version} or newer on the machine that runs the wheel"]
    if floor.code == "driver-too-old-for-ptx":
        ways.append("or name the GPU itself as a target, so that the driver need not compile anything")
    name = resolution.accelerator.toolkit
    if floor.code == "driver-too-old":
        title = resolution.accelerator.title_of(name)
        accepted = map(Version, resolution.release.support(name).accepted)
        floors = ((version, toolkit_floor(knowledge, name, version, wsl=wsl)) for version in accepted)
        fitting = max((version for version, needs in floors if needs and needs <= here), default=None)
        # The rules decide later whether the rest of the profile fits too.
        if fitting:
            ways.append(f"or build with {title} {fitting}, the newest of this release that driver {here} runs")
    return ", ".join(ways)


def _gpu_check(resolution: Resolution, knowledge: KnowledgeBase, gpu: LocalGpu) -> PreflightCheck:
    named = f"{gpu.name} ({gpu.target})" if gpu.target else gpu.name
    row = architecture_of(knowledge, gpu.accelerator, gpu.target)
    name = resolution.accelerator.toolkit
    title = resolution.accelerator.title_of(name)
    floor = toolkit_floor(knowledge, name, Version(resolution.components.get(name, "")))
    # `driver_max` is a branch (`470`): only the first part of a driver's version.
    if row and row.driver_max and floor and floor.parts[:1] > Version(row.driver_max).parts:
        found = f"{named}: the last drivers for the {row.architecture} generation are of branch {row.driver_max}"
        needed = f"driver {floor}, the oldest that {title} {resolution.components[name]} accepts"
        check = PreflightCheck(name="gpu", status=OK, found=found, needed=needed)
        return check.as_warning("driver-gpu-conflict", f"use an older {title}: no driver runs both")
    how = _judge_gpu(resolution, knowledge, gpu)
    if how is None:
        found = f"{named}: the driver does not report which code this GPU runs"
        return PreflightCheck(name="gpu", status=SKIPPED, found=found)
    if how.runs != "no":
        return PreflightCheck(name="gpu", status=OK, found=f"{named}: {how.reason}")
    found = f"{named} cannot run this build: {how.reason}"
    needed = f"if the wheel is for this machine: code for {gpu.target}"
    check = PreflightCheck(name="gpu", status=OK, found=found, needed=needed)
    return check.as_warning("gpu-not-served", "add this GPU to `gpus:`, or set `gpus: local`")


def _judge_gpu(resolution: Resolution, knowledge: KnowledgeBase, gpu: LocalGpu) -> verdict.Verdict | None:
    """Return how a GPU runs the build; None if the GPU's target is not known."""
    return judge(knowledge, resolution.accelerator, gpu.target, resolution.targets) if gpu.target else None


# --- memory -------------------------------------------------------------------------------------------------------


def memory_check(plan: PreflightRequest, machine: Machine | None) -> PreflightCheck:
    """Check that one job fits with swap, and that all jobs at once fit without swap."""
    if machine is None:
        return PreflightCheck(name="memory", status=SKIPPED, found="this machine's memory is not known")
    resources, cost = plan.resources, plan.resolution.release.cost
    per_job, least = cost.memory_per_job_mib * MIB, least_memory(cost)
    memory = min(resources.memory, machine.memory)
    swap = f" and {_format_size(machine.swap)} swap" if machine.swap else ""
    found = f"{_format_size(memory)} for the build{swap}, {_jobs(resources.jobs)} at once"
    wanted = LEAST_HEAP + resources.jobs * per_job
    needed = f"about {_format_size(wanted)}: {_format_size(per_job)} a job, {_format_size(LEAST_HEAP)} for Bazel"
    check = PreflightCheck(name="memory", status=OK, found=found, needed=needed)
    # A single job can use swap, though slowly.
    if memory + machine.swap < least:
        check = replace(check, needed=f"about {_format_size(least)} for a single job")
        fix = "give the engine's machine, or this control group, more memory or swap"
        return check.as_failure("machine-memory-too-small", fix, exit_code=ExitCode.RESOURCES)
    if memory < wanted:
        fitting = max(1, min(resources.cpus, (memory - LEAST_HEAP) // per_job))
        fix = f"`resources: {{jobs: {fitting}}}` fits"
        if resources.jobs == 1:
            fix = "the build will swap and be slow; give the engine's machine more memory"
        return check.as_warning("memory-overcommitted", fix)
    return check


def any_memory_check(machine: Machine) -> PreflightCheck:
    """Check the memory of a machine before anything is planned."""
    swap = f", {_format_size(machine.swap)} swap" if machine.swap else ""
    found = (
        f"{_format_size(machine.memory)}{swap} and {machine.cpus} core{'s' if machine.cpus != 1 else ''} for builds"
    )
    check = PreflightCheck(name="memory", status=OK, found=found)
    fix = "give the engine's machine more memory or swap; fewer jobs run at a time, so builds take longer"
    if machine.memory + machine.swap < _MEMORY_LEAST:
        check = replace(check, needed=f"{_format_size(_MEMORY_LEAST)} at least")
        return check.as_failure("machine-memory-too-small", fix, exit_code=ExitCode.RESOURCES)
    if machine.memory < _MEMORY_ADVISED:
        check = replace(check, needed=f"TensorFlow builds quickly with {_format_size(_MEMORY_ADVISED)}")
        return check.as_warning("memory-short", fix)
    return check


def _jobs(count: int) -> str:
    return f"{count} job{'s' if count != 1 else ''}"


# --- disk ---------------------------------------------------------------------------------------------------------


def disk_checks(places: Sequence[WritableFolder], needed: int) -> Iterator[PreflightCheck]:
    """Yield one check for each file system:

    its folders must fit on it together. `needed` is the disk space of the whole build, in bytes.
    """
    if not places:
        yield PreflightCheck(name="disk", status=SKIPPED, found="the folders of the build are not known")
    for group in file_systems(places):
        yield _disk_check(group, needed, int(needed * _CERTAINLY))


def any_disk_checks(places: Sequence[WritableFolder]) -> Iterator[PreflightCheck]:
    """Yield checks of a machine's disks before anything is planned: a disk too small is only a warning."""
    for group in file_systems(places):
        yield _disk_check(group, _DISK_ADVISED, _DISK_LEAST)


def _disk_check(group: Sequence[WritableFolder], needed: int, least: int) -> PreflightCheck:
    """Compare the free space of one file system with the space that the build needs on it, and the minimum."""
    free = min((place.free for place in group if place.free is not None), default=None)
    names = joined(f"{place.what} ({place.path})" for place in group)
    if free is None:
        return PreflightCheck(name="disk", status=SKIPPED, found=f"cannot find the free space for {names}")
    # Folders on one file system share its space, so their needs add up.
    share = sum(place.share for place in group)
    found, wanted = f"{_format_size(free)} free for {names}", f"about {_format_size(int(needed * share))}"
    check = PreflightCheck(name="disk", status=OK, found=found, needed=wanted)
    if free >= needed * share:
        return check
    folders = " or ".join(f"`{place.option}`" for place in group if place.option)
    fix = f"make room{f', or choose another folder ({folders})' if folders else ''}"
    if free >= least * share:
        return check.as_warning("disk-short", fix)
    # The need is an estimate, so a user may correct it.
    estimated = "set `resources: {disk: …}` if you know the real need"
    return check.as_failure("disk-too-small", fix, estimated, exit_code=ExitCode.RESOURCES)


def file_systems(places: Iterable[WritableFolder]) -> list[list[WritableFolder]]:
    """Return the places that need space, grouped by file system in order.

    A place on an unknown file system is its own group.
    """
    groups: dict[object, list[WritableFolder]] = {}
    for place in (place for place in places if place.share):
        groups.setdefault(place.filesystem or id(place), []).append(place)
    return list(groups.values())


def folder_checks(places: Iterable[WritableFolder]) -> Iterator[PreflightCheck]:
    """Yield a check for each folder that is not writable, regardless of its free space."""
    for place in places:
        if place.trouble:
            found = f"{place.what} ({place.path}) cannot be used: {place.trouble}"
            fix = f"give another folder (`{place.option}`), or correct its owner" if place.option else "look there"
            check = PreflightCheck(name="folder", status=OK, found=found)
            yield check.as_failure("folder-not-writable", fix, exit_code=ExitCode.BUILD_FAILED)


# --- engine -------------------------------------------------------------------------------------------------------


def engine_check(info: EngineInfo) -> PreflightCheck:
    """Check that an engine is new enough."""
    found = f"{info.name} {info.version}, API {info.api_version}" + (f", at {info.address}" if info.address else "")
    if not info.local:
        found += ", on another machine: builds keep their caches on that machine, in volumes"
    check = PreflightCheck(name="engine", status=OK, found=found)
    if Version(info.api_version) >= OLDEST_API:
        return check
    check = replace(check, needed=f"API {OLDEST_API} (Docker 20.10) or newer")
    return check.as_failure("engine-too-old", "update the engine", exit_code=ExitCode.ENGINE)


def engine_ability_checks(info: EngineInfo, *, uid: int, network: str | None) -> Iterator[PreflightCheck]:
    """Yield checks of the engine: its limits for user `uid` and the chosen network, and how containers run."""
    if info.remaps_users and network == "host":
        found = "the engine gives containers user namespaces (`userns-remap`), and so refuses image steps on the "
        check = PreflightCheck(name="engine network", status=OK, found=f"{found}network `host`")
        fix = "name another network of the engine (`TFDOCK_NETWORK`, or `network` in the settings)"
        yield check.as_failure("engine-network-impossible", fix, exit_code=ExitCode.ENGINE)
    if info.local and info.rootless and info.owner not in (None, uid):
        found = f"the rootless engine belongs to user {info.owner}, and may not write to folders of user {uid}"
        check = PreflightCheck(name="engine user", status=OK, found=found)
        fixes = (f"run tfdock as user {info.owner}, without sudo", f"use an engine of root, or of user {uid}")
        yield check.as_failure("engine-of-another-user", *fixes, exit_code=ExitCode.ENGINE)
    modes = [
        *(["rootless: root in a container is your user outside"] if info.rootless else []),
        *(
            ["user namespaces: builds run in the host's namespace (`--userns=host`)"]
            if info.local and info.remaps_users
            else []
        ),
        *(["SELinux: builds run without a label (`label=disable`)"] if info.local and info.selinux else []),
    ]
    if modes:
        yield PreflightCheck(name="engine mode", status=OK, found="; ".join(modes))
    missing = [
        *(["memory"] if not info.limits_memory else []),
        *(["CPU time"] if not info.limits_cpus else []),
    ]
    if missing:
        found = f"the engine cannot limit {' and '.join(missing)} of containers: a build may use all resources"
        fix = "start the engine with write access to the machine's control groups"
        if info.rootless:
            guide = "https://rootlesscontaine.rs/getting-started/common/cgroup2/"
            fix = f"enable delegation of control groups for the user: {guide}"
        yield PreflightCheck(name="engine limits", status=OK, found=found).as_warning("engine-limits-missing", fix)


# --- words --------------------------------------------------------------------------------------------------------


def _format_size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size // MIB} MiB"
