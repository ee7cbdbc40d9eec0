"""The remote cache or executor of a build: checked when the build starts, reached through the relay, and recorded."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdock import events
from tfdock.bazel.cache.action_cache import EMPTY
from tfdock.bazel.remote import relay, relay_grpc, relay_line
from tfdock.errors import EngineError, NetworkError, TfdockError
from tfdock.host.files import make_folder
from tfdock.host.foreign_json import Malformed, parse
from tfdock.host.settings import Settings
from tfdock.knowledge import loader
from tfdock.types import Endpoint, Remote

#: The variable with credentials: lines `Name: value`, only for the endpoints in this machine's settings.
VARIABLE = "TFDOCK_REMOTE_HEADER"
TIMEOUT = 10.0
_LONGEST = 30.0  #: Seconds after which an answer that is still incomplete counts as no answer.
_HELPER_TIMEOUT = 30.0
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_DENIED = (401, 403)

Headers = tuple[tuple[str, str], ...]


# --- credentials --------------------------------------------------------------------------------------------------


def lines_for(remote: Remote, settings: Settings) -> dict[str, relay_line.RelayLine]:
    """Return the line to the endpoint of each role, with credentials; raise TfdockError if these cannot be read."""
    return {
        role: relay_line.RelayLine(
            endpoint,
            _credentials(role, endpoint, settings),
            upload=remote.upload,
            executes=role == "executor",
        )
        for role, endpoint in remote.endpoints
    }


def _credentials(role: str, endpoint: Endpoint, settings: Settings) -> Headers:
    """Return the credentials for an endpoint.

    Credentials from the environment are only for endpoints in this machine's own settings. A profile may come from a
    stranger, and name a server that collects credentials. A helper program is called for every endpoint: the program
    decides.
    """
    headers: dict[str, tuple[str, str]] = {}
    # Compare by value: a profile with the same endpoint may also use the credentials.
    if endpoint in (settings.remote.cache, settings.remote.executor):
        for line in os.environ.get(VARIABLE, "").splitlines():
            name, colon, value = line.partition(":")
            # For a line without a colon, the value is a newline, which is refused below.
            _add_header(headers, name.strip(), value.strip() if colon else "\n", f"the variable {VARIABLE}")
    if settings.remote_credential_helper:
        for name, values in _helper_headers(role, endpoint, settings.remote_credential_helper).items():
            for value in values if isinstance(values, list) else [values]:
                _add_header(headers, name, value, settings.remote_credential_helper)
    return tuple(headers.values())


def _add_header(headers: dict[str, tuple[str, str]], name: object, value: object, where: str) -> None:
    """Add a header that can be sent. An invalid one is not shown in the error: its name and value may be secret."""
    is_valid = isinstance(name, str) and isinstance(value, str) and _HEADER.fullmatch(name)
    if not is_valid or not (str(value).isascii() and str(value).isprintable()):
        raise NetworkError.of(
            "remote-credentials",
            f"{where} does not give valid HTTP headers",
            f"write {VARIABLE} as lines `Name: value`; a helper must follow Bazel's credential helper protocol",
        )
    # Header names ignore case, and the helper's header replaces the variable's.
    headers[str(name).lower()] = (str(name), str(value))


@dataclass(frozen=True, slots=True)
class _HelperAnswer:
    headers: Mapping[str, Any] | None = None


def _helper_headers(role: str, endpoint: Endpoint, helper: str) -> Mapping[str, Any]:
    """Return the answer of a credential helper, by Bazel's protocol:

    `get`, {"uri"} -> {"headers": {name: [value]}}.
    """
    scheme = "https" if endpoint.tls else "http"
    question = json.dumps({"uri": f"{scheme}://{endpoint.authority}{endpoint.path}"})
    program = str(Path(helper).expanduser())
    try:
        process = subprocess.run(
            [program, "get"], input=question.encode(), capture_output=True, timeout=_HELPER_TIMEOUT, check=True
        )
        return parse(_HelperAnswer, process.stdout).headers or {}
    except subprocess.CalledProcessError as error:
        failure = f"ended with exit status {error.returncode}"
    except subprocess.TimeoutExpired:
        failure = f"did not end in {_HELPER_TIMEOUT:.0f} s"
    except OSError as error:
        failure = f"cannot be run: {error.strerror}"
    except Malformed:
        failure = "does not follow the protocol"
    # `from None`: the errors hold what the helper printed, which may be secret.
    raise NetworkError.of(
        "remote-credentials",
        f"the credential helper {helper} for the remote {role} {failure}",
        f'try the helper yourself: run `{helper} get`, with {{"uri": …}} on its standard input',
    ) from None


# --- at the start -------------------------------------------------------------------------------------------------


def check(remote: Remote, settings: Settings) -> None:
    """Raise NetworkError if an endpoint cannot be used. This runs before the build."""
    for role, line in lines_for(remote, settings).items():
        try:
            _ask_http(line) if line.endpoint.http else _ask_grpc(line, remote.instance)
        except _AccessDenied as refused:
            raise NetworkError.of(
                "remote-denied",
                f"the remote {role} {line.endpoint} does not accept the credentials: {refused}"
                if line.headers
                else f"the remote {role} {line.endpoint} requires credentials: {refused}",
                f"give {VARIABLE}='Authorization: …' with {_variable(role)}, or set `remote_credential_helper`",
            ) from None
        except _UnexpectedAnswer as strange:
            raise NetworkError.of(
                "remote-unusable",
                f"the remote {role} {line.endpoint} answers, but not as a remote {role}: {strange}",
                "check the endpoint's address, path and instance name",
            ) from None
        # Handle this before OSError, because it is an OSError too.
        except ssl.SSLCertVerificationError as error:
            raise NetworkError.of(
                "remote-untrusted",
                f"the remote {role} {line.endpoint} cannot be trusted: {relay_line.failure_reason(error)}",
                "give its CA certificates with SSL_CERT_FILE, or add them to this machine's certificates",
            ) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = _reason(line, error)
            raise NetworkError.of(
                "remote-unreachable",
                f"the remote {role} {line.endpoint} cannot be reached: {why}",
                f"start the server, correct the address, or build without it (leave out {_variable(role)}, or "
                "`cache:`)",
            ) from None


def engine_far_error(remote: Remote) -> TfdockError:
    """Return the error for an engine on another machine: its containers cannot use a socket of this process."""
    roles = " and the ".join(f"remote {role}" for role, _ in remote.endpoints)
    return EngineError.of(
        "remote-engine-far",
        f"the engine runs on another machine, from which the {roles} cannot be reached",
        "run tfdock on the engine's machine, or build without a remote endpoint "
        + " and ".join(_variable(role) for role, _ in remote.endpoints),
    )


def _variable(role: str) -> str:
    return f"TFDOCK_REMOTE_{role.upper()}"


class _AccessDenied(Exception):
    """The endpoint requires credentials, or refuses these credentials."""


class _UnexpectedAnswer(Exception):
    """The endpoint is not a server of the expected kind."""


def _reason(line: relay_line.RelayLine, error: Exception) -> str:
    if isinstance(error, UnicodeError):  # an IDNA error, from the lookup of the name
        return "the name cannot be a host name"
    if isinstance(error, OSError):
        return relay_line.failure_reason(error)
    return f"the server does not speak HTTP{'' if line.endpoint.http else '/2'}"


@contextmanager
def _connected(endpoint: Endpoint) -> Iterator[socket.socket]:
    """Connect to an endpoint.

    The connection breaks after `_LONGEST`: a server could send a few bytes at a time, and never be silent.
    """
    with socket.create_connection((endpoint.host.strip("[]"), endpoint.port), TIMEOUT) as plain:
        same = plain.dup()  # `wrap_socket` detaches the original
        timer = threading.Timer(_LONGEST, _break, (same,))
        timer.daemon = True
        timer.start()
        try:
            context = relay_line.tls(endpoint)
            host = endpoint.host.strip("[]")
            with context.wrap_socket(plain, server_hostname=host) if context else plain as connection:
                yield connection
        finally:
            timer.cancel()
            same.close()


def _break(connection: socket.socket) -> None:
    with suppress(OSError):  # the connection has ended meanwhile
        # `shutdown` wakes a read in another thread; `close` does not.
        connection.shutdown(socket.SHUT_RDWR)


def _ask_http(line: relay_line.RelayLine) -> None:
    """Request an unknown action from an HTTP cache."""
    connection = http.client.HTTPConnection(line.endpoint.host, line.endpoint.port, timeout=TIMEOUT)
    with _connected(line.endpoint) as connection.sock, closing(connection):
        headers = {"host": line.endpoint.authority, **dict(line.headers)}
        connection.request("GET", f"{line.endpoint.path}/ac/{EMPTY}", headers=headers)
        answer = connection.getresponse()
    if answer.status in _DENIED:
        raise _AccessDenied(f"HTTP status {answer.status}")
    if answer.status not in (200, 204, 404):
        raise _UnexpectedAnswer(f"HTTP status {answer.status}")


def _ask_grpc(line: relay_line.RelayLine, instance: str) -> None:
    """Ask a gRPC endpoint for its capabilities."""
    with _connected(line.endpoint) as connection:
        # gRPC needs HTTP/2, and over TLS only ALPN shows that a server speaks it.
        if isinstance(connection, ssl.SSLSocket) and connection.selected_alpn_protocol() != "h2":
            raise _UnexpectedAnswer("the server does not offer HTTP/2")
        connection.settimeout(TIMEOUT)
        status, message = relay_grpc.capabilities(
            line, instance, connection.sendall, lambda: connection.recv(1 << 16)
        )
    # PERMISSION_DENIED, UNAUTHENTICATED.
    if status in ("7", "16"):
        raise _AccessDenied(f"gRPC status {status}")
    # UNIMPLEMENTED is accepted: some caches implement only the cache calls.
    if status not in ("0", "12"):
        # A server's answer may repeat the request, so the answer is not shown if the request had a secret.
        raise _UnexpectedAnswer(f"gRPC status {status} {'' if line.headers else message}".strip()[:200])


# --- while it compiles --------------------------------------------------------------------------------------------


@dataclass
class EndpointWatch:
    """Watches the endpoints of the compile phase. When output arrives, each lost endpoint is reported once."""

    lines: dict[str, relay_line.RelayLine]
    listen: events.Listener
    _announced: frozenset[str] = frozenset()

    def feed(self, data: bytes) -> None:  # noqa: ARG002 - only that it comes counts
        """Report lost endpoints when output arrives."""
        self.tell()

    def shown_line(self, line: str) -> str:
        """Return the whole line: nothing is hidden."""
        return line

    def tell(self) -> None:
        """Report the state of each endpoint, once."""
        for role, line in self.lines.items():
            text = self._warning(role, line)
            if text and role not in self._announced:
                self._announced |= {role}
                self.listen(events.Notice(text=text))

    def _warning(self, role: str, line: relay_line.RelayLine) -> str:
        if line.lost:
            return (
                f"warning: the remote {role} {line.endpoint} was lost ({line.lost}); the build continues without it"
            )
        if line.no_uploads:
            return f"warning: the remote {role} {line.endpoint} accepts no uploads; the build only reads from it"
        if line.trouble:
            return f"warning: the remote {role} {line.endpoint} answers {line.trouble}; Bazel does this work locally"
        return ""

    @property
    def facts(self) -> dict[str, object]:
        """The traffic of each line, for the record: without credentials and paths, and only the host is named."""
        return {
            role: {
                "endpoint": str(line.endpoint),
                "hits": line.hits,
                "sent": line.sent,
                "received": line.received,
                "lost": line.lost,
            }
            for role, line in self.lines.items()
        }


@contextmanager
def open_relay(remote: Remote, settings: Settings, folder: Path, listen: events.Listener) -> Iterator[EndpointWatch]:
    """Relay to the endpoints until the context ends. The sockets are in a folder that the container can only read."""
    watch = EndpointWatch(lines_for(remote, settings), listen)
    if not watch.lines:
        yield watch
        return
    make_folder(folder)
    # The script in the container that connects Bazel to the sockets.
    (folder / "forward.py").write_text(loader.templates()["run/forward.py"])
    with relay.running(watch.lines, folder):
        yield watch
    # An endpoint may be lost after the last line of output.
    watch.tell()
