"""What this machine lacks: each check with what was found, and how to get what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfdock.do.engine import Engine, EngineInfo
from tfdock.do.failures import gib
from tfdock.do.journal import leftovers
from tfdock.do.machine import engine_machine, free_disk, local_gpus
from tfdock.do.settings import Settings
from tfdock.errors import EngineError, ExitCode, Problem

_GIB = 1 << 30
# A CUDA build of TensorFlow 2 was seen with some 40 GB of output base and cache; the miniature needs 1.
_DISK_ADVISED = 60 * _GIB
_DISK_NEEDED = 5 * _GIB
_MEMORY_ADVISED = 16 * _GIB
_MEMORY_NEEDED = 3 * _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. `status` is `ok`, `warning` (builds may work) or `failed` (they will not)."""

    name: str
    status: str
    found: str
    fix: str = ""
    exit_code: ExitCode = ExitCode.OK


def examine(settings: Settings, engine: Engine) -> Iterator[Check]:
    """Look at everything a build needs, most important first."""
    try:
        info = engine.info()
    except EngineError as error:
        problem: Problem = error.problems[0]
        yield Check(name="engine", status="failed", found=problem.message, fix=problem.fix, exit_code=ExitCode.ENGINE)
    else:
        where = "" if info.local else ", on another machine"
        yield Check(name="engine", status="ok", found=f"{info.name} {info.version}, API {info.api_version}{where}")
        yield _memory(info)
        yield _gpu(info)
        if info.local:
            yield _disk("disk of the engine", free_disk_of(info), info.data_root)
    yield _disk("disk of the cache", free_disk(settings.cache_dir.absolute()), str(settings.cache_dir))
    yield _disk("disk of the wheelhouse", free_disk(settings.wheelhouse.absolute()), str(settings.wheelhouse))
    yield _leftovers(settings)


def free_disk_of(info: EngineInfo) -> int | None:
    """Free bytes in the engine's data root, if this user may look."""
    return free_disk(Path(info.data_root))


def _memory(info: EngineInfo) -> Check:
    machine = engine_machine(info)
    found = f"{gib(machine.memory)} and {machine.cpus} cores for builds"
    fix = "give the engine's machine more memory or swap; jobs are limited to what fits, so builds take longer"
    if machine.memory < _MEMORY_NEEDED:
        return Check(name="memory", status="failed", found=found, fix=fix, exit_code=ExitCode.RESOURCES)
    return Check(name="memory", status="ok" if machine.memory >= _MEMORY_ADVISED else "warning", found=found, fix=fix)


def _gpu(info: EngineInfo) -> Check:
    gpus = local_gpus()
    if not gpus:
        return Check(name="gpu", status="ok", found="no GPU here; none is needed to build")
    found = f"{', '.join(gpus)}; container runtimes: {', '.join(info.runtimes)}"
    if "nvidia" in info.runtimes:
        return Check(name="gpu", status="ok", found=found)
    fix = "install the NVIDIA container toolkit to run GPU checks in containers; building works without"
    return Check(name="gpu", status="warning", found=found, fix=fix)


def _disk(name: str, free: int | None, where: str) -> Check:
    if free is None:
        return Check(name=name, status="warning", found=f"cannot see {where}", fix="look there with `df -h`")
    found = f"{gib(free)} free in {where}"
    fix = "make room, or choose another folder; a CUDA build of TensorFlow wants about 60 GiB in all"
    if free < _DISK_NEEDED:
        return Check(name=name, status="failed", found=found, fix=fix, exit_code=ExitCode.RESOURCES)
    return Check(name=name, status="ok" if free >= _DISK_ADVISED else "warning", found=found, fix=fix)


def _leftovers(settings: Settings) -> Check:
    runs = leftovers(settings.state_dir)
    if not runs:
        return Check(name="leftovers", status="ok", found="none")
    found = ", ".join(entry.run for entry in runs)
    return Check(name="leftovers", status="warning", found=found, fix="the next `tfdock build` removes them")
