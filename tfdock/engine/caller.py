"""Let a container act as the user who runs tfdock: its user, its user namespace, its label, its limits.

Sources: Docker's manual on rootless mode and on `userns-remap`; podman-run(1), `--user` and `--security-opt`.
"""

from __future__ import annotations

from typing import Any

from tfdock.engine.protocol import ContainerSpec
from tfdock.types import EngineInfo


def caller_user(info: EngineInfo, uid: int, gid: int) -> str:
    """Return the user of a container (`uid:gid`) that owns the caller's folders in it."""
    # A rootless engine, Docker's or podman's, maps the user who runs it to 0. Any other number is a stranger outside.
    return "0:0" if info.rootless else f"{uid}:{gid}"


def host_options(spec: ContainerSpec, info: EngineInfo) -> dict[str, Any]:
    """Return the arguments of the SDK that depend on the engine: limits, and what opens the caller's folders."""
    options: dict[str, Any] = {}
    # An engine without the control group drops a limit silently, or refuses the container.
    if spec.memory is not None and info.limits_memory:
        # Without an equal memswap the engine grants as much swap again.
        options |= {"mem_limit": spec.memory, "memswap_limit": spec.memory}
    if spec.cpus is not None and info.limits_cpus:
        # The engine counts CPU time in billionths of a core.
        options["nano_cpus"] = int(spec.cpus * 1e9)
    # Compilers and Bazel need no capability, and what they run is a stranger's source.
    options["cap_drop"] = ["ALL"]
    security = ["no-new-privileges"]
    # An engine elsewhere mounts only volumes, which it labels and maps itself.
    if info.local and info.selinux:
        # Not a new label for the folders (`z`): they are the caller's own, and other programs read them too.
        security.append("label=disable")
    if info.local and info.remaps_users:
        options["userns_mode"] = "host"
    return options | {"security_opt": security}
