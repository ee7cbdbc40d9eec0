"""The machine of an engine: cores, memory, data folder, users, GPUs."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdock.host.hardware import local_machine, nearest
from tfdock.knowledge.rows import Accelerator
from tfdock.types import EngineInfo, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccess:
    """How a container gets GPUs. If a container can get no GPU, `missing` is the reason."""

    gpus: bool = False
    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    missing: str = ""


def engine_machine(info: EngineInfo) -> Machine:
    """Return the machine that compiles: the engine's. If it is this machine, this process's limits apply too."""
    if not info.local:
        return Machine(cpus=info.cpus, memory=info.memory)
    local = local_machine()
    # An engine in its own virtual machine (Docker Desktop) does not have this machine's swap.
    swap = local.swap if info.memory >= local.memory else 0
    return Machine(cpus=min(info.cpus, local.cpus), memory=min(info.memory, local.memory), swap=swap)


def engine_data(info: EngineInfo) -> Path | None:
    """Return the folder of an engine's images and containers, if this machine has this folder.

    If the engine is in a virtual machine, or has another root folder, this machine may not have this path.
    """
    root = Path(info.data_root) if info.local and info.data_root else None
    return root if root and nearest(root) == root else None


def caller_user(info: EngineInfo, uid: int, gid: int) -> str:
    """Return the user (`uid:gid`) who owns the caller's folders inside a container."""
    # A rootless engine, Docker's or podman's, maps the user who runs it to 0. Other numbers are other users outside.
    return "0:0" if info.rootless else f"{uid}:{gid}"


def gives_gpus(info: EngineInfo, accelerator: Accelerator) -> bool:
    """Return whether an engine on this machine has a container runtime for this family of GPUs."""
    runtime = accelerator.engine_runtime
    # `--gpus` needs no registered runtime: the engine runs the toolkit's hook if that is installed.
    return runtime is not None and (
        runtime in info.runtimes or any(shutil.which(program) for program in accelerator.engine_programs)
    )


def gpu_access(accelerator: Accelerator | None, info: EngineInfo) -> GpuAccess:
    """Return how containers get GPUs of this family: by the engine's runtime, or by device files."""
    if accelerator is None:
        return GpuAccess(missing="the wheel is for the CPU")
    runtime, devices = accelerator.engine_runtime, accelerator.device_files
    if gives_gpus(info, accelerator):
        return GpuAccess(gpus=True)
    # The device files are on this machine, and a remote engine does not have them.
    if devices and info.local and all(Path(device).exists() for device in devices):
        return GpuAccess(devices=devices, groups=tuple(sorted(_groups(devices))))
    wants = f"the runtime `{runtime}`" if runtime else " and ".join(devices)
    # Docker also lists built-in names such as `io.containerd.runc.v2`, which are not for GPUs.
    have = ", ".join(name for name in info.runtimes if "." not in name) or "none"
    return GpuAccess(missing=f"the engine cannot give containers such a GPU: it needs {wants}, but has {have}")


def _groups(devices: Sequence[str]) -> set[int]:
    """Return the groups that may open the devices."""
    # `/dev/dri` is a folder, and its files may have different groups.
    files = [file for device in devices for file in (Path(device), *Path(device).rglob("*"))]
    return {status.st_gid for file in files if stat.S_ISCHR((status := file.stat()).st_mode)}
