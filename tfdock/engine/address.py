"""Find the container engine in the same places as the `docker` command, and explain why no engine is found."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdock.errors import EngineUnavailable, Fix

if TYPE_CHECKING:
    # Imported on use: a Unix socket does not need the SDK, and the import takes a quarter of a second.
    from docker.tls import TLSConfig


def causes(error: Any) -> Iterator[BaseException]:
    """Yield an exception and all its causes. The SDK and requests hide the OSError four levels deep, in `args`."""
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
    """The address of the engine, and `origin`: the setting that the address comes from."""

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
    """Find the address as the docker command does: explicit URL, DOCKER_HOST, chosen context, default socket. If the
    default socket does not answer, use the first other engine's socket that answers."""
    if base_url:
        return EngineAddress(base_url, "as given")
    # An empty DOCKER_HOST counts as unset.
    if url := os.environ.get("DOCKER_HOST"):
        return EngineAddress(url, "from DOCKER_HOST", False if url.startswith("unix://") else _environment_tls())
    # DOCKER_HOST wins over DOCKER_CONTEXT, as for the docker command.
    return _context_address(os.environ.get("DOCKER_CONTEXT"))


def _environment_tls() -> TLSConfig | bool:
    """Return the certificates that DOCKER_TLS_VERIFY and DOCKER_CERT_PATH name."""
    from docker.errors import TLSParameterError
    from docker.utils import kwargs_from_env

    try:
        environment: Any = kwargs_from_env()
    except TLSParameterError:
        folder = os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker"
        raise unavailable_error(
            f"DOCKER_HOST needs TLS, but {folder} does not have `cert.pem` and `key.pem`",
            "set DOCKER_CERT_PATH to the folder with the certificates, or unset DOCKER_CERT_PATH and "
            "DOCKER_TLS_VERIFY",
        ) from None
    tls: TLSConfig | bool = environment.get("tls", False)
    return tls


def remote_engine_address() -> str | None:
    """Return the address (with its origin) of an engine on another machine; None if the engine is on this machine.

    No engine is contacted.
    """
    try:
        address = find_address(None)
    except EngineUnavailable:  # the code that needs an engine reports this error
        return None
    return None if address.local else str(address)


def _context_address(name: str | None) -> EngineAddress:
    """Return the address of the chosen context.

    The SDK's own reader is not used: without config.json, that reader looks into the working folder.
    """
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        name = name or _chosen_context(folder)
        if name == "default":
            return _default_address()
        # The docker command names the folder of a context by the sha256 of its name.
        key = hashlib.sha256(name.encode()).hexdigest()
        meta = folder / "contexts/meta" / key / "meta.json"
        if not meta.is_file():
            raise unavailable_error(f"there is no docker context `{name}`", "see `docker context ls`")
        endpoint = json.loads(meta.read_bytes())["Endpoints"]["docker"]
        tls = _context_tls(folder / "contexts/tls" / key / "docker", verify=not endpoint.get("SkipTLSVerify"))
        return EngineAddress(endpoint["Host"] or _DEFAULT_SOCKET, f"from the docker context `{name}`", tls)
    # These files belong to another program: each part may be absent or of another type.
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise unavailable_error(f"the docker context cannot be read: {error}", "see `docker context ls`") from error


def _default_address() -> EngineAddress:
    """Return the default socket, or else the first socket of another engine that answers."""
    if not _answers(_DEFAULT_SOCKET):
        for url, origin in _other_sockets():
            if _answers(url):
                return EngineAddress(url, f"{origin}, because nothing answers at {_DEFAULT_SOCKET}")
    return EngineAddress(_DEFAULT_SOCKET, "the default")


def _other_sockets() -> list[tuple[str, str]]:
    """Return sockets of other engines, with engine names. Sources: Docker's manuals, podman-system-service(1)."""
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return [
        (f"unix://{own}/docker.sock", "rootless Docker"),
        (f"unix://{Path.home()}/.docker/desktop/docker.sock", "Docker Desktop"),
        (f"unix://{own}/podman/podman.sock", "this user's podman"),
        ("unix:///run/podman/podman.sock", "podman of root"),
    ]


def _answers(url: str) -> bool:
    """Return whether a program listens at a Unix socket and lets this user connect."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(url.removeprefix("unix://"))
    except OSError:
        return False
    return True


def _chosen_context(folder: Path) -> str:
    """Return the context that `docker context use` has chosen."""
    file = folder / "config.json"
    name = json.loads(file.read_bytes()).get("currentContext") if file.is_file() else None
    return str(name or "default")


def _context_tls(folder: Path, *, verify: bool) -> TLSConfig | bool:
    """Return the certificates of a context."""
    # The docker command keeps `ca.pem`, `cert.pem` and `key.pem` in this folder. A context without TLS has none.
    files = {path.stem: str(path) for path in folder.glob("*.pem")}
    if not files:
        return False
    from docker.errors import TLSParameterError
    from docker.tls import TLSConfig

    pair = (files["cert"], files["key"]) if "cert" in files else None
    try:
        return TLSConfig(client_cert=pair, ca_cert=files.get("ca"), verify=verify)
    except TLSParameterError as error:
        raise ValueError(str(error)) from error


def unavailable_error(message: str, fix: Fix) -> EngineUnavailable:
    return EngineUnavailable.of("engine-unavailable", message, fix)


#: The command that installs the distribution's engine. The keys are values of ID or ID_LIKE in os-release(5).
_INSTALLED_BY = {
    "debian": "sudo apt install docker.io",
    "fedora": "sudo dnf install podman",
    "rhel": "sudo dnf install podman",
    "suse": "sudo zypper install docker",
    "arch": "sudo pacman -S docker",
    "alpine": "sudo apk add docker",
}


def _install_command() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((f" (`{_INSTALLED_BY[name]}`)" for name in names if name in _INSTALLED_BY), "")


def _ways_to_start(address: EngineAddress) -> tuple[str, ...]:
    """Return the fixes for a missing engine: start the installed engine, or else install one."""
    named = ["correct or unset DOCKER_HOST"] if "DOCKER_HOST" in address.origin else []
    if not address.local:
        return (
            f"start the engine on that machine, or {named[0] if named else 'name another engine with DOCKER_HOST'}",
        )
    user = "" if os.getuid() == 0 else "--user "
    ways = list(named)
    if shutil.which("dockerd"):
        ways.append("start Docker: `sudo systemctl start docker`; rootless Docker: `systemctl --user start docker`")
    if os.access(Path.home() / ".docker/desktop", os.F_OK):  # no error if HOME is another user's closed folder
        ways.append("start Docker Desktop")
    elif "microsoft" in platform.release().lower():
        ways.append("start Docker Desktop, and switch on the WSL integration for this distribution in its settings")
    if shutil.which("podman"):
        ways.append(f"start podman's socket: `systemctl {user}enable --now podman.socket`")
    if ways == named:
        ways.append(f"install Docker 20.10 or newer, or podman 4 or newer{_install_command()}, and start it")
    return tuple(ways)


def cannot_connect(address: EngineAddress, error: BaseException) -> EngineUnavailable:
    """Return the error for an engine that cannot be reached. Use the operating system's reason if there is one."""
    reasons = list(causes(error))
    start = _ways_to_start(address)
    # The SDK's message only says that a connection was aborted. The system's error says why.
    if any(isinstance(cause, PermissionError) for cause in reasons):
        own = "use the podman socket of your own user: `systemctl --user enable --now podman.socket`"
        join = "join the group `docker` (`sudo usermod -aG docker $USER`, then log in again), or use sudo"
        return unavailable_error(
            f"you have no permission to use the container engine at {address}",
            own if "podman" in address.url else join,
        )
    if any(isinstance(cause, FileNotFoundError) for cause in reasons):
        return unavailable_error(f"no container engine: {address} does not exist", start)
    if any(isinstance(cause, ConnectionRefusedError) for cause in reasons):
        return unavailable_error(f"no container engine answers at {address}", start)
    # The SDK imports paramiko for every ssh:// address, even if the machine's own ssh connects.
    if "paramiko" in str(error):
        return unavailable_error(f"{address} needs the SSH support of the SDK", "`pip install 'docker[ssh]'`")
    return unavailable_error(f"no container engine at {address}: {error}", start)
