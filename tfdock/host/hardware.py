"""This machine's hardware: cores and memory (within the control groups), free disk space, GPUs and their driver.

The functions that parse a program's output take it as a text, so tests can use output of other machines.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.types import Host, LocalGpu, Machine, WritableFolder

#: nvidia-smi takes seconds if no persistence daemon keeps the driver loaded, and hangs forever if a GPU is broken.
_ANSWER_SECONDS = 20.0
_DYING_SECONDS = 1.0
_TICK_SECONDS = 0.2
_MIB = 1 << 20
_MOST_TEXT = 16 * _MIB  #: The most bytes of a text that is read: far more than real texts have.
_NUMBER = re.compile("[0-9]{1,19}")

# --- cores and memory ---------------------------------------------------------------------------------------------


def local_machine() -> Machine:
    """Return the part of this machine that this process may use."""
    groups = control_groups(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo"))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Version 1 says "no limit" as a number near 2**63, which is above any memory.
    memory = min([physical, *memory_limits(groups)])
    # A group has a separate limit for swap, which few people set. So swap counts only without a memory limit.
    swap = swap_total(text_of("/proc/meminfo")) if memory == physical else 0
    return Machine(cpus=max(1, min([_cores(), *core_limits(groups)])), memory=memory, swap=swap)


def _cores() -> int:
    # Only Linux reports the cores that a process may use.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def swap_total(meminfo: str) -> int:
    """Return the bytes of swap, from the text of /proc/meminfo."""
    match = re.search(r"^SwapTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def control_groups(cgroup: str, mountinfo: str) -> tuple[Path, ...]:
    """Return the control group folders whose limits apply to a process: its groups and their parents, v1 and v2.

    The arguments are the process's /proc/self/cgroup (cgroups(7)) and /proc/self/mountinfo (proc(5)).
    """
    own = dict(_memberships(cgroup))
    folders: dict[Path, None] = {}
    for root, folder, kind, _, options in _mounts(mountinfo):
        if kind in ("cgroup", "cgroup2"):
            controllers = {""} if kind == "cgroup2" else {"memory", "cpu"} & set(options.split(","))
            for path in (own[controller] for controller in controllers if controller in own):
                below = _below(path, root)
                # The limits of a group hold for all groups below it.
                folders |= dict.fromkeys(Path(folder) / group for group in (below, *below.parents))
    return tuple(folders)


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield root, folder, type, source and options of each mount in the text of /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        # A lone hyphen ends the optional fields, of which there may be any number (proc(5)).
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) > 4 and len(after) > 2:
            # Spaces in names are written `\040`.
            folder = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before[4])
            yield before[3], folder, after[0], after[1], after[2]


def _memberships(cgroup: str) -> Iterator[tuple[str, str]]:
    """Yield (controller, path) for each line `5:cpu,cpuacct:/path`; version 2 has the empty controller."""
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            yield from ((controller, path) for controller in controllers.split(","))


def _below(path: str, root: str) -> Path:
    """Return a group's path below the mount of `root`; the mount itself for a path outside of it."""
    # The kernel shows a group outside of this cgroup namespace with `..` (cgroup_namespaces(7)).
    if ".." in path.split("/"):
        return Path()
    if root == "/":
        return Path(path.lstrip("/"))
    return Path(path[len(root) :].lstrip("/")) if path == root or path.startswith(f"{root}/") else Path()


def memory_limits(groups: Iterable[Path]) -> Iterator[int]:
    """Yield the bytes that each group may use. Above `memory.high`, the kernel slows a group down extremely."""
    for folder in groups:
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            yield from _numbers(folder / name)[:1]


def core_limits(groups: Iterable[Path]) -> Iterator[int]:
    """Yield the number of whole cores that each group may use; at least one."""
    for folder in groups:
        numbers = _numbers(folder / "cpu.max")
        if not numbers:
            # Version 1 of control groups. In version 2, `cpu.max` has both numbers in one line.
            numbers = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
        if len(numbers) == 2 and numbers[1]:
            yield max(1, numbers[0] // numbers[1])


def _numbers(file: Path) -> list[int]:
    """Return the numbers of a one-line file, if it begins with one; `max` and -1 mean no limit."""
    words = text_of(file).split()
    if not words or not _NUMBER.fullmatch(words[0]):
        return []
    return [int(word) for word in words if _NUMBER.fullmatch(word)]


def last_line(text: str) -> str:
    """Return the last line of a program's output, without blanks around it; empty if there is none."""
    return next(filter(None, map(str.strip, reversed(text.splitlines()))), "")


def text_of(path: str | Path) -> str:
    """Return a file's text; empty if the file is unreadable or too long."""
    try:
        if not Path(path).is_file():
            return ""  # a pipe would keep the reader waiting
        with Path(path).open("rb") as file:
            text = file.read(_MOST_TEXT + 1)
    except OSError:
        return ""
    return text.decode("utf-8", "replace") if len(text) <= _MOST_TEXT else ""


# --- disk ---------------------------------------------------------------------------------------------------------


def nearest(path: Path) -> Path:
    """Return the path itself, or the nearest path above it that exists."""
    path = path.absolute()
    # `exists` is false for a dangling link, but the link prevents a new folder of that name.
    return next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), path)


def free_disk(path: Path) -> int | None:
    """Return the free bytes for this user on the disk of `path`; None if unknown. `path` need not exist."""
    try:
        return shutil.disk_usage(nearest(path)).free
    except OSError:
        return None


def place(purpose: str, path: Path, *, share: float, executes: bool = False, option: str = "") -> WritableFolder:
    """Return the facts about a folder that a build will write to. Change nothing.

    `share` is this folder's part of a build's disk space. If `executes` is set, a build runs programs in the folder.
    `option` is the command-line option or variable that chooses another folder.
    """
    there, looked = nearest(path), WritableFolder(what=purpose, path=str(path), share=share, option=option)
    try:
        usage, device = os.statvfs(there), there.stat().st_dev
    except OSError as error:
        return replace(looked, trouble=f"{there} cannot be examined: {error.strerror}")
    return replace(
        looked,
        # `f_bavail` leaves out the blocks that are reserved for root.
        free=usage.f_bavail * usage.f_frsize,
        filesystem=mounted_from(text_of("/proc/self/mountinfo"), there.resolve()) or str(device),
        trouble=_trouble(there, usage.f_flag, executes=executes),
    )


def mounted_from(mountinfo: str, path: Path) -> str | None:
    """Return the device of a path, from the text of /proc/self/mountinfo; None if the device is not in /dev.

    Device numbers do not serve: the subvolumes of a btrfs have different numbers, but share the free space.
    """
    # If two mounts have the same folder, the later mount hides the earlier.
    sources = {folder: source for _, folder, _, source, _ in _mounts(mountinfo)}
    source = next((sources[str(folder)] for folder in (path, *path.parents) if str(folder) in sources), "")
    # `tmpfs` and `overlay` are the source of many mounts that share no disk.
    return source if source.startswith("/dev/") else None


def _trouble(there: Path, flags: int, *, executes: bool) -> str:
    if not there.is_dir():
        return f"{there} is not a folder"
    if flags & os.ST_RDONLY:
        return f"{there} is mounted read-only"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"you have no permission to write to {there}"
    # Only Linux has the constant.
    if executes and flags & getattr(os, "ST_NOEXEC", 0):
        return f"{there} is mounted with `noexec`, but Bazel runs programs that it builds there"
    return ""


# --- GPUs and drivers ---------------------------------------------------------------------------------------------


@functools.cache
def local_host() -> Host:
    """Return this machine's devices, as listed by the drivers' tools; none without a tool. Run once per process."""
    families = {"cuda": _nvidia(), "rocm": _amd()}
    return Host(
        gpus=tuple(gpu for devices in families.values() for gpu in devices.gpus),
        drivers={name: devices.driver for name, devices in families.items() if devices.driver},
        troubles={name: devices.trouble for name, devices in families.items() if devices.trouble},
        wsl=is_wsl(text_of("/proc/sys/kernel/osrelease")),
        architecture=platform.machine(),
    )


def local_gpus() -> tuple[LocalGpu, ...]:
    """Return this machine's GPUs, as listed by their drivers; empty if there is none."""
    return local_host().gpus


def is_wsl(release: str) -> bool:
    """Return whether a kernel release is WSL's, the Linux of Windows (`5.15.153.1-microsoft-standard-WSL2`)."""
    return "microsoft" in release.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDevices:
    """The output of one driver's tool: GPUs, the driver's version, and the tool's error messages."""

    gpus: tuple[LocalGpu, ...] = ()
    driver: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A program's output on both streams, and its exit status (None if the program did not run to its end)."""

    text: str
    status: int | None = 0


def ask(
    program: str,
    *arguments: str,
    folder: str | None = None,
    seconds: float = _ANSWER_SECONDS,
    variables: Mapping[str, str] | None = None,
) -> Answer:
    """Run a program with additional variables and return its output. A timeout kills it and its children."""
    try:
        # A process group of its own, so that its children are killed with it.
        process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # The output is compared with English texts.
            env={**os.environ, "LC_ALL": "C", **(variables or {})},
            start_new_session=True,
            cwd=folder,
        )
    except OSError as error:
        return Answer(f"cannot be run: {error.strerror}", None)
    try:
        text = _output(process, seconds)
        if text is None:
            return Answer(f"more than {_MOST_TEXT // _MIB} MiB of output", None)
    except subprocess.TimeoutExpired:
        return Answer(f"no answer in {seconds:.0f} s", None)
    finally:
        # Kill the process also if Ctrl-C ended the wait.
        if process.returncode is None:
            _kill(process)
    return Answer(text.decode("utf-8", "replace"), process.returncode)


def wait_ticking(process: subprocess.Popen[bytes], tick: Callable[[], object]) -> int:
    """Wait until a process ends, and return its status. `tick` is called several times a second.

    If `tick` raises an error, the process is killed.
    """
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_TICK_SECONDS)
            tick()
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver cannot end
                process.wait(_DYING_SECONDS)


def _output(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """Return all output until the program has ended; None if there is too much. Raises TimeoutExpired."""
    assert process.stdout
    end, text, stdout = time.monotonic() + seconds, bytearray(), process.stdout.fileno()
    with selectors.DefaultSelector() as waiting:
        waiting.register(stdout, selectors.EVENT_READ)
        while waiting.select(max(0.0, end - time.monotonic())):
            part = os.read(stdout, _MIB)
            text += part
            if len(text) > _MOST_TEXT:
                return None
            if not part:
                process.wait(max(0.0, end - time.monotonic()))
                process.stdout.close()
                return bytes(text)
    raise subprocess.TimeoutExpired(process.args, seconds)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and wait only briefly: a process that hangs in a driver cannot end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_DYING_SECONDS)
    # A surviving child keeps the other end of the pipe open; close this end, so that no descriptor leaks.
    if process.stdout:
        process.stdout.close()


# NVIDIA. Newest set of fields first: drivers before about R510 answer that compute_cap is not a valid field.
_FIELDS: tuple[tuple[str, ...], ...] = (
    ("name", "compute_cap", "driver_version", "memory.total"),
    ("name", "driver_version", "memory.total"),
)
_WSL_TOOL = "/usr/lib/wsl/lib/nvidia-smi"  #: The tool of Windows' driver. Its folder is not always in PATH.


def _nvidia() -> HostDevices:
    loaded = loaded_driver(text_of("/proc/driver/nvidia/version"))
    program = shutil.which("nvidia-smi") or shutil.which(_WSL_TOOL)
    if program is None:  # as in slim images
        texts = map(text_of, sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")))
        models = filter(None, (re.search(r"^Model:\s*(\S.*)$", text, re.MULTILINE) for text in texts))
        return HostDevices(gpus=tuple(LocalGpu(name=one[1], accelerator="cuda") for one in models), driver=loaded)
    answer, fields = Answer(""), _FIELDS[0]
    for fields in _FIELDS:
        answer = ask(program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
        if "is not a valid field" not in answer.text:
            break
    devices = nvidia_devices(answer.text, fields, ended_well=answer.status == 0)
    # After an update the driver's library may be newer than the loaded kernel module. The module decides.
    return replace(devices, driver=loaded or devices.driver)


def loaded_driver(text: str) -> str:
    """Return the loaded kernel module's version, from the text of /proc/driver/nvidia/version; "" if none."""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", text, re.MULTILINE)
    return match[1] if match else ""


def nvidia_devices(text: str, fields: Sequence[str], *, ended_well: bool) -> HostDevices:
    """Read `nvidia-smi --query-gpu=<fields> --format=csv,noheader`: a line for each GPU, missing values as `[N/A]`.

    With MIG too, a line is a whole GPU. Lines that do not match the fields are error messages.
    """
    gpus: list[LocalGpu] = []
    versions: list[str] = []
    messages: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        # Split from the right: only a name may hold a comma.
        values = dict(zip(fields, map(str.strip, line.rsplit(",", len(fields) - 1)), strict=False))
        version = values.get("driver_version", "")
        # A lost GPU and warnings have lines among those of the GPUs.
        if len(values) < len(fields) or not re.fullmatch(r"\d+(\.\d+)+|\[.*\]", version):
            messages.append(line)
            continue
        target = re.fullmatch(r"\d{1,2}\.\d", values.get("compute_cap", ""))
        memory = re.fullmatch(r"(\d+) MiB", values["memory.total"])
        gpus.append(
            LocalGpu(
                name=values["name"],
                accelerator="cuda",
                target=target[0] if target else None,
                memory=int(memory[1]) * _MIB if memory else None,
            )
        )
        versions += [] if version.startswith("[") else [version]
    # "No devices were found" can come with status 0.
    trouble = "" if ended_well and gpus else f"nvidia-smi: {_shortened(messages) or 'it failed without output'}"
    return HostDevices(gpus=tuple(gpus), driver=versions[0] if versions else "", trouble=trouble)


# AMD.
_ROCM_TOOL = "/opt/rocm/bin/rocminfo"


def _amd() -> HostDevices:
    program = shutil.which("rocminfo") or shutil.which(_ROCM_TOOL)
    if program is None:
        return HostDevices()
    answer = ask(program)
    return rocm_devices(answer.text, ended_well=answer.status == 0)


def rocm_devices(text: str, *, ended_well: bool) -> HostDevices:
    """Read the output of `rocminfo`: a block for each agent (CPUs are agents too); sizes of memory pools in KB."""
    # Each agent follows a line of asterisks; the text before the first one is about the system.
    system, *agents = re.split(r"^Agent \d+\s*$", text, flags=re.MULTILINE)
    gpus = tuple(_amd_gpu(agent) for agent in agents if _value(agent, "Device Type") == "GPU")
    if ended_well:
        return HostDevices(gpus=gpus)
    messages = [line.strip() for line in system.splitlines() if re.search(r"[a-z]{2}", line)]
    return HostDevices(gpus=gpus, trouble=f"rocminfo: {_shortened(messages) or 'it failed without output'}")


def _amd_gpu(agent: str) -> LocalGpu:
    target = _value(agent, "Name")
    size = re.search(r"Segment:\s+GLOBAL.*\n\s*Size:\s+(\d+)", agent)
    return LocalGpu(
        name=_value(agent, "Marketing Name") or target,
        accelerator="rocm",
        target=target if re.fullmatch(r"gfx[0-9a-f]+", target) else None,
        memory=int(size[1]) * 1024 if size else None,
    )


def _value(agent: str, key: str) -> str:
    match = re.search(rf"^\s*{key}:[ \t]*(.*?)[ \t]*$", agent, re.MULTILINE)
    return match[1] if match else ""


def _shortened(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())[:200]
