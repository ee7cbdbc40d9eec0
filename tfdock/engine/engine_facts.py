"""Read an engine's facts from its own information.

An engine on this machine can report its facts at once. The SDK is not imported here: that takes longer than all the
rest of `tfdock check`.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tfdock.engine.address import EngineAddress, find_address
from tfdock.errors import EngineUnavailable
from tfdock.types import EngineInfo

_UNIX = "unix://"
_PATIENCE = 1.0  #: Seconds to wait for each answer. `check` does not wait longer for an engine.
#: Errors that occur while reading an answer that is not an engine's.
_NO_FACTS = (ValueError, LookupError, TypeError, AttributeError)


def engine_info(info: Mapping[str, Any], version: Mapping[str, Any], address: EngineAddress) -> EngineInfo:
    """Return the facts of an engine, from its answers to `/info` and `/version`."""
    # podman answers like Docker. Only the names of its components show this.
    components = " ".join(component.get("Name", "") for component in version.get("Components") or ())
    podman = "podman" in components.lower()
    data_root = info.get("DockerRootDir", "")
    # `name=seccomp,profile=builtin`, or the name alone.
    security = {option.partition(",")[0].removeprefix("name=") for option in info.get("SecurityOptions") or ()}
    return EngineInfo(
        name="podman" if podman else "docker",
        version=version["Version"],
        api_version=version["ApiVersion"],
        cpus=info["NCPU"],
        memory=info["MemTotal"],
        data_root=data_root,
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        local=address.local,
        # podman makes up an id for each answer, so use its data root, which holds its images and containers.
        id=f"podman {_digest(address.url, data_root)}" if podman else info.get("ID") or "",
        address=str(address),
        owner=_owner(address) if address.local else None,
        rootless="rootless" in security,
        remaps_users="userns" in security,
        selinux="selinux" in security,
        # The names as Docker and podman write them. An engine that omits a field supports the limit.
        limits_memory=info.get("MemoryLimit", True),
        limits_cpus=info.get("CpuCfsQuota", True),
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def engine_process(address: EngineAddress) -> tuple[int, int]:
    """Return process id and user id of an engine on this machine. Raises OSError; not on Linux, AttributeError."""
    # An address of another kind leaves an empty path, and `connect` fails.
    path = address.url.partition(_UNIX)[2]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        # unix(7): on a Unix socket SO_PEERCRED gives pid, uid and gid of the process that listens.
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def _owner(address: EngineAddress) -> int | None:
    try:
        return engine_process(address)[1]
    except (OSError, AttributeError):
        return None


# --- the quick question ---------------------------------------------------------------------------------------------


def quick_facts() -> EngineInfo | None:
    """Return the facts of this machine's engine; None if the engine does not answer at once, or is remote."""
    with suppress(EngineUnavailable, OSError, *_NO_FACTS):  # `build` and `doctor` report what is wrong with an engine
        address = find_address(None)
        if address.url.startswith(_UNIX):
            return engine_info(_answer(address, "/info"), _answer(address, "/version"), address)
    return None


def _answer(address: EngineAddress, path: str) -> Mapping[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(address.url.removeprefix(_UNIX))
        import http.client  # here: it loads TLS, and a machine that only checks profiles often has no engine

        asked = http.client.HTTPConnection("localhost")
        asked.sock = connection
        try:
            asked.request("GET", path)
            answer: Mapping[str, Any] = json.loads(asked.getresponse().read())
        except http.client.HTTPException as error:
            raise ValueError(f"{address} answers no HTTP") from error
        return answer
