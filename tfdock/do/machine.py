"""Facts about this machine: cores and memory as its control group allows them, free disk, GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tfdock.do.engine import EngineInfo
from tfdock.model import Machine

_CGROUP = Path("/sys/fs/cgroup")


def local_machine() -> Machine:
    """This machine, as far as this process may use it."""
    return Machine(cpus=_cpus(), memory=_memory())


def engine_machine(info: EngineInfo) -> Machine:
    """The machine that compiles: the engine's, and not more than this process's own limits if it is the same one."""
    if not info.local:
        return Machine(cpus=info.cpus, memory=info.memory)
    local = local_machine()
    return Machine(cpus=min(info.cpus, local.cpus), memory=min(info.memory, local.memory))


def _cpus() -> int:
    cpus = len(os.sched_getaffinity(0))
    quota = _first_number([_CGROUP / "cpu.max", _CGROUP / "cpu/cpu.cfs_quota_us"])
    period = _first_number([_CGROUP / "cpu/cpu.cfs_period_us"]) or 100_000
    return max(1, min(cpus, quota // period)) if quota else cpus


def _memory() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _first_number([_CGROUP / "memory.max", _CGROUP / "memory/memory.limit_in_bytes"])
    return min(physical, limit) if limit else physical


def _first_number(files: Iterable[Path]) -> int | None:
    """The first number of the first file that has one; `max` and -1 mean no limit."""
    for file in files:
        try:
            word = file.read_text("ascii").split()[0]
        except (OSError, IndexError):
            continue
        if word.isdigit():
            return int(word)
    return None


def free_disk(path: Path) -> int | None:
    """Free bytes for this user where `path` lies or will lie; None if that cannot be told."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def local_gpus() -> tuple[str, ...]:
    """Names of this machine's NVIDIA GPUs as the driver prints them; empty where there is none."""
    try:
        result = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in result.stdout.splitlines() if line.strip())
