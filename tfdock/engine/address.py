"""Find the container engine as the `docker` command does, and explain why none is found."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.errors import DockerException
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env

from tfdock.errors import EngineUnavailable, Problem


def causes(error: Any) -> Iterator[BaseException]:
    """Yield an exception and all its causes. The SDK and requests bury the OSError four levels deep, in `args`."""
    seen, waiting = set[int](), [error]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseException) and id(error) not in seen:
            # requests and urllib3 hold the same error in `args` and in the chain.
            seen.add(id(error))
            waiting += [*error.args, getattr(error, "reason", None), error.__cause__, error.__context__]
            yield error


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of the engine, and where it comes from."""

    url: str = field(repr=False)
    origin: str
    tls: TLSConfig | bool = False

    @property
    def local(self) -> bool:
        """Whether the engine sees this machine's folders."""
        # The SDK reads both spellings of a Unix socket. npipe is the local engine of Windows.
        return self.url.startswith(("unix://", "http+unix://", "npipe://"))

    def __str__(self) -> str:
        """Return the address without a password: it goes into messages and records."""
        shown = re.sub(r"//([^/@:]*):[^/@]*@", r"//\1@", self.url)
        return f"{shown} ({self.origin})"


_DEFAULT_SOCKET = "unix:///var/run/docker.sock"


def find_address(base_url: str | None) -> EngineAddress:
    """Find the address as the docker command does: an explicit URL, DOCKER_HOST, the chosen context, the default
    socket."""
    if base_url:
        return EngineAddress(base_url, "as given")
    # It reads DOCKER_TLS_VERIFY and DOCKER_CERT_PATH as well. An empty DOCKER_HOST counts as unset.
    environment: Any = kwargs_from_env()
    if "base_url" in environment:
        return EngineAddress(environment["base_url"], "from DOCKER_HOST", environment.get("tls", False))
    # DOCKER_HOST wins over DOCKER_CONTEXT, as for the docker command.
    return _context_address(os.environ.get("DOCKER_CONTEXT"))


def remote_engine_address() -> str | None:
    """Return the address of an engine on another machine, with its origin; None for this machine.

    No engine is asked.
    """
    try:
        address = find_address(None)
    except EngineUnavailable:  # who needs an engine says so
        return None
    return None if address.local else str(address)


def _context_address(name: str | None) -> EngineAddress:
    """Return the address of the chosen context.

    Without config.json, the SDK's own reader looks into the working folder.
    """
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        name = name or _chosen_context(folder)
        if name == "default":
            return EngineAddress(_DEFAULT_SOCKET, "the default")
        # The docker command names the folder of a context by the sha256 of its name.
        key = hashlib.sha256(name.encode()).hexdigest()
        meta = folder / "contexts/meta" / key / "meta.json"
        if not meta.is_file():
            raise unavailable_error(f"there is no docker context `{name}`", "see `docker context ls`")
        endpoint = json.loads(meta.read_bytes())["Endpoints"]["docker"]
        tls = _context_tls(folder / "contexts/tls" / key / "docker", verify=not endpoint.get("SkipTLSVerify"))
        return EngineAddress(endpoint["Host"] or _DEFAULT_SOCKET, f"from the docker context `{name}`", tls)
    # These files belong to another program: each part may be absent or of another type.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, DockerException) as error:
        raise unavailable_error(f"the docker context cannot be read: {error}", "see `docker context ls`") from error


def _chosen_context(folder: Path) -> str:
    """Return the context that `docker context use` has chosen."""
    file = folder / "config.json"
    name = json.loads(file.read_bytes()).get("currentContext") if file.is_file() else None
    return str(name or "default")


def _context_tls(folder: Path, *, verify: bool) -> TLSConfig | bool:
    """Return the certificates of a context."""
    # The docker command keeps `ca.pem`, `cert.pem` and `key.pem` there. A context without TLS has none.
    files = {path.stem: str(path) for path in folder.glob("*.pem")}
    if not files:
        return False
    pair = (files["cert"], files["key"]) if "cert" in files else None
    return TLSConfig(client_cert=pair, ca_cert=files.get("ca"), verify=verify)


def unavailable_error(message: str, fix: str) -> EngineUnavailable:
    return EngineUnavailable(Problem(code="engine-unavailable", message=message, fix=fix))


def cannot_connect(address: EngineAddress, error: BaseException) -> EngineUnavailable:
    """Return the error for an engine that cannot be reached, from the operating system's reason if there is one."""
    reasons = list(causes(error))
    start = "install Docker 20.10 or newer and start it (`sudo systemctl start docker`)"
    if "DOCKER_HOST" in address.origin:
        start = f"correct or unset DOCKER_HOST, or {start}"
    # The SDK's own words only say that a connection was aborted. The system's error says why.
    if any(isinstance(cause, PermissionError) for cause in reasons):
        return unavailable_error(
            f"you may not talk to the container engine at {address}",
            "join the group `docker` (`sudo usermod -aG docker $USER`, then log in again), or use sudo",
        )
    if any(isinstance(cause, FileNotFoundError) for cause in reasons):
        return unavailable_error(f"no container engine: {address} does not exist", start)
    if any(isinstance(cause, ConnectionRefusedError) for cause in reasons):
        return unavailable_error(f"no container engine answers at {address}", start)
    # The SDK imports paramiko for every ssh:// address, even if the machine's own ssh connects.
    if "paramiko" in str(error):
        fix = "`pip install 'docker[ssh]'` into the environment of tfdock"
        return unavailable_error(f"{address} needs the SDK's support of SSH", fix)
    return unavailable_error(f"no container engine at {address}: {error}", start)
