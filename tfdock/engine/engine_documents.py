"""Translate containers and images between the engine's documents and tfdock's types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from docker.types import DeviceRequest, LogConfig, Ulimit
from docker.types import Mount as DockerMount

from tfdock.engine.address import EngineAddress
from tfdock.engine.engine_facts import engine_process
from tfdock.engine.protocol import ContainerSpec, ContainerState, ImageInfo
from tfdock.types import EngineInfo, Mount

_OPEN_FILES = 65536


def open_files_allowed(address: EngineAddress) -> int | None:
    """Return how many files a container may have open. If the limit is too low, Bazel truncates its cache entries.

    An engine without CAP_SYS_RESOURCE (in a sandbox, or rootless) refuses a container whose limit is higher than the
    engine's own limit. So this limit is looked up for an engine on this machine. An engine on another machine decides
    by itself (None).
    """
    if not address.local:
        return None
    try:
        pid, _ = engine_process(address)
        limit = re.search(r"Max open files +\S+ +(\d+)", Path(f"/proc/{pid}/limits").read_text())
    except (OSError, AttributeError):  # the engine is on another machine, or this machine is not Linux
        return _OPEN_FILES
    return min(_OPEN_FILES, int(limit[1])) if limit else _OPEN_FILES


def host_config_of(spec: ContainerSpec, open_files: int | None, info: EngineInfo) -> dict[str, Any]:
    """Return the SDK's arguments for a container on the engine with these facts."""
    config: dict[str, Any] = {
        # docker-init forwards signals and reaps what Bazel's server leaves behind.
        "init": True,
        "ulimits": [Ulimit(name="nofile", soft=open_files, hard=open_files)] if open_files else [],
        # `follow` reads from byte 0 again, so nothing may be rotated away. Leaving max-size out would take the
        # engine's own default, and the documented -1 is refused ("invalid size").
        "log_config": LogConfig(type="json-file", config={"max-size": "1000g", "max-file": "1"}),
        "mounts": [_mount(mount) for mount in spec.mounts],
        "tmpfs": dict(spec.tmpfs),
        "network_mode": spec.network,
        "pids_limit": spec.pids,
        "read_only": spec.read_only,
        # Read, write and mknod: what `docker run --device` gives.
        "devices": [f"{path}:{path}:rwm" for path in spec.devices],
        "group_add": [str(group) for group in spec.groups],
    }
    if spec.gpus:  # what `docker run --gpus all` asks for
        config["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    if spec.debugger:
        config["cap_add"] = ["SYS_PTRACE"]
    return config | _host_options(spec, info)


def _host_options(spec: ContainerSpec, info: EngineInfo) -> dict[str, Any]:
    """Return the arguments of the SDK that depend on the engine: limits, and access to the caller's folders.

    Sources: Docker's manual on rootless mode and on `userns-remap`; podman-run(1), `--user` and `--security-opt`.
    """
    options: dict[str, Any] = {}
    # An engine without the control group drops a limit silently, or refuses the container.
    if spec.memory is not None and info.limits_memory:
        # Without an equal memswap the engine grants as much swap again.
        options |= {"mem_limit": spec.memory, "memswap_limit": spec.memory}
    if spec.cpus is not None and info.limits_cpus:
        # The engine counts CPU time in billionths of a core.
        options["nano_cpus"] = int(spec.cpus * 1e9)
    # Compilers and Bazel need no capability, and they run a stranger's source.
    options["cap_drop"] = ["ALL"]
    security = ["no-new-privileges"]
    # A remote engine mounts only volumes, and labels and maps them itself.
    if info.local and info.selinux:
        # Do not relabel the folders (`z`): they belong to the caller, and other programs read them too.
        security.append("label=disable")
    if info.local and info.remaps_users:
        options["userns_mode"] = "host"
    return options | {"security_opt": security}


def _mount(mount: Mount) -> dict[str, Any]:
    # Do not use `binds`: for a missing source, the engine would create a folder that belongs to root.
    kind: Any = mount.kind
    return DockerMount(target=mount.target, source=mount.source, type=kind, read_only=mount.read_only)


def container_state(inspected: Mapping[str, Any]) -> ContainerState:
    """Return the state of a container, from the engine's inspection."""
    state = inspected["State"]
    running = bool(state.get("Running"))
    # A container that was never started has exit code 0, which must not count as success.
    ended = not running and (state.get("Status") != "created" or state["ExitCode"] != 0)
    return ContainerState(
        id=inspected["Id"],
        # The engine's names begin with a slash.
        name=inspected["Name"].removeprefix("/"),
        running=running,
        exit_code=state["ExitCode"] if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        labels=inspected["Config"].get("Labels") or {},
    )


def image_info(inspected: Mapping[str, Any]) -> ImageInfo:
    """Return the facts of an image, from the engine's inspection."""
    return ImageInfo(
        id=inspected["Id"],
        # The engine writes null for an empty list or map.
        tags=tuple(map(_short_name, inspected.get("RepoTags") or ())),
        digests=tuple(map(_short_name, inspected.get("RepoDigests") or ())),
        labels=(inspected.get("Config") or {}).get("Labels") or {},
        size=inspected.get("Size") or 0,
    )


def _short_name(name: str) -> str:
    """Return Docker's name `x` for `library/x` of Docker Hub; podman's name includes the registry."""
    return re.sub(r"^docker\.io/(library/)?", "", name)


def timestamp(text: str) -> float:
    """Return Unix seconds for the engine's RFC 3339 time. Python's parser does not accept nine decimals."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).timestamp()
