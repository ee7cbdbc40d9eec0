"""Describe the machine of the engine: its cores and memory, its data folder, and whether containers get GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path

from tfdock.engine.protocol import EngineInfo
from tfdock.host.hardware import local_machine, nearest
from tfdock.knowledge.rows import Accelerator
from tfdock.types import Machine


def engine_machine(info: EngineInfo) -> Machine:
    """Return the machine that compiles: the engine's, with this process's own limits if it is the same machine."""
    if not info.local:
        return Machine(cpus=info.cpus, memory=info.memory)
    local = local_machine()
    # An engine in a virtual machine of its own (Docker Desktop) has not this machine's swap either.
    swap = local.swap if info.memory >= local.memory else 0
    return Machine(cpus=min(info.cpus, local.cpus), memory=min(info.memory, local.memory), swap=swap)


def engine_data(info: EngineInfo) -> Path | None:
    """Return the folder of an engine's images and containers, if it is visible from here.

    In a virtual machine, or in a root of its own, the engine's path means another place than ours.
    """
    root = Path(info.data_root) if info.local and info.data_root else None
    return root if root and nearest(root) == root else None


def gives_gpus(info: EngineInfo, accelerator: Accelerator) -> bool:
    """Return whether an engine on this machine can give containers the GPUs of a family, by a runtime for them."""
    runtime = accelerator.engine_runtime
    # `--gpus` needs no registered runtime: the engine runs the toolkit's hook if that is installed.
    return runtime is not None and (
        runtime in info.runtimes or any(shutil.which(program) for program in accelerator.engine_programs)
    )
