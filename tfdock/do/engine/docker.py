"""The engine protocol on the Docker SDK; the only module that imports `docker`.

Everything here rests on how the SDK and real engines behave, not on how they are documented:

- Only the low-level client is used. `images.build` hands nothing over before the end and `images.push` and `pull`
  never raise (docker/docker-py#3277): errors stand inside a stream that came with HTTP status 200.
- The SDK drives the classic builder only (docker/docker-py#2230).
- `logs`, `attach` and `events` of the SDK end as if all were well when the engine dies, because
  `CancellableStream` turns every transport error into the end. So streams are read here from the response itself.
- A dying engine shows itself as one of four exceptions of `requests` and `urllib3`, none of them Docker's.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import socket
import string
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import requests
import urllib3.exceptions
from docker import APIClient
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.tls import TLSConfig
from docker.types import DeviceRequest, LogConfig, Ulimit
from docker.types import Mount as DockerMount
from docker.utils import kwargs_from_env, parse_repository_tag
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from tfdock.do import terminal
from tfdock.do.engine import (
    IMAGE_LABEL,
    RUN_LABEL,
    Cancel,
    ContainerSpec,
    ContainerState,
    EngineInfo,
    ImageBuild,
    ImageInfo,
    Output,
)
from tfdock.do.engine.words import (
    archive_refusal,
    push_refusal,
    refusal,
    registry_refusal,
    speaks_of_full_disk,
    step_refusal,
)
from tfdock.errors import (
    BuildFailed,
    EngineError,
    EngineHung,
    EngineLost,
    EngineUnavailable,
    Interrupted,
    NetworkError,
    OutOfMemory,
    Problem,
    TfdockError,
)
from tfdock.model import Digest, Mount

T = TypeVar("T")

Sdk = Any
"""An APIClient. Its published types are wrong for every other call made here, so they are not used."""

OLDEST_API = "1.41"
"""Docker 20.10, which is also what podman 4 answers with."""

_TRANSPORT = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)
"""What a lost engine looks like. `APIError` is a RequestException too: catch it first."""

_CONNECT_TIMEOUT = 15.0
_QUERY_TIMEOUT = 60.0
_KILLED = 137
_OPEN_FILES = 65536


def _words(error: APIError) -> str:
    return str(error.explanation or error)


def _causes(error: Any) -> Iterator[BaseException]:
    """An exception and all it was made from: the SDK and requests bury the OSError four levels deep, in `args`."""
    seen, waiting = set[int](), [error]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseException) and id(error) not in seen:
            seen.add(id(error))
            waiting += [*error.args, getattr(error, "reason", None), error.__cause__, error.__context__]
            yield error


# Where the engine is ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Address:
    """Where the engine is and who said so."""

    url: str
    said_by: str
    tls: TLSConfig | bool = False

    @property
    def local(self) -> bool:
        return self.url.startswith(("unix://", "http+unix://", "npipe://"))

    def __str__(self) -> str:
        return f"{self.url} ({self.said_by})"


_DEFAULT_SOCKET = "unix:///var/run/docker.sock"


def _find_address(base_url: str | None) -> _Address:
    """As the docker command finds it: an explicit URL, DOCKER_HOST, the chosen context, the default socket."""
    if base_url:
        return _Address(base_url, "as given")
    environment: Any = kwargs_from_env()
    if "base_url" in environment:
        return _Address(environment["base_url"], "from DOCKER_HOST", environment.get("tls", False))
    return _context_address(os.environ.get("DOCKER_CONTEXT"))


def elsewhere() -> str | None:
    """Where the engine is and who said so, if that is not this machine; asks nobody."""
    try:
        address = _find_address(None)
    except EngineUnavailable:  # who needs an engine says so
        return None
    return None if address.local else str(address)


def _context_address(name: str | None) -> _Address:
    """The chosen context's. The SDK's own reader looks into the working folder where there is no config.json."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        name = name or _chosen_context(folder)
        if name == "default":
            return _Address(_DEFAULT_SOCKET, "the default")
        key = hashlib.sha256(name.encode()).hexdigest()
        meta = folder / "contexts/meta" / key / "meta.json"
        if not meta.is_file():
            raise _unavailable(f"there is no docker context `{name}`", "see `docker context ls`")
        endpoint = json.loads(meta.read_bytes())["Endpoints"]["docker"]
        tls = _context_tls(folder / "contexts/tls" / key / "docker", verify=not endpoint.get("SkipTLSVerify"))
        return _Address(endpoint["Host"] or _DEFAULT_SOCKET, f"from the docker context `{name}`", tls)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, DockerException) as error:
        raise _unavailable(f"the docker context cannot be read: {error}", "see `docker context ls`") from error


def _chosen_context(folder: Path) -> str:
    """The one that `docker context use` has written down."""
    file = folder / "config.json"
    chosen = json.loads(file.read_bytes()).get("currentContext") if file.is_file() else None
    return str(chosen or "default")


def _context_tls(folder: Path, *, verify: bool) -> TLSConfig | bool:
    """What a context keeps of certificates."""
    files = {path.stem: str(path) for path in folder.glob("*.pem")}
    if not files:
        return False
    pair = (files["cert"], files["key"]) if "cert" in files else None
    return TLSConfig(client_cert=pair, ca_cert=files.get("ca"), verify=verify)


def _unavailable(message: str, fix: str) -> EngineUnavailable:
    return EngineUnavailable(Problem(code="engine-unavailable", message=message, fix=fix))


def _cannot_connect(address: _Address, error: BaseException) -> EngineUnavailable:
    """Why there is no engine, from the operating system's reason where there is one."""
    causes = list(_causes(error))
    start = "install Docker 20.10 or newer and start it (`sudo systemctl start docker`)"
    if "DOCKER_HOST" in address.said_by:
        start = f"correct or unset DOCKER_HOST, or {start}"
    if any(isinstance(cause, PermissionError) for cause in causes):
        return _unavailable(
            f"you may not talk to the container engine at {address}",
            "join the group `docker` (`sudo usermod -aG docker $USER`, then log in again), or use sudo",
        )
    if any(isinstance(cause, FileNotFoundError) for cause in causes):
        return _unavailable(f"no container engine: {address} does not exist", start)
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return _unavailable(f"no container engine answers at {address}", start)
    if "paramiko" in str(error):
        return _unavailable(f"{address} needs the SDK's support of SSH", "`pip install 'tfdock[ssh]'`")
    return _unavailable(f"no container engine at {address}: {error}", start)


def _too_old(version: str) -> bool:
    return [int(part) for part in version.split(".")] < [int(part) for part in OLDEST_API.split(".")]


# Streams ----------------------------------------------------------------------------------------------------


def _break_off(response: requests.Response) -> None:
    """Wake whoever is blocked reading the response, from any thread. Closing it from outside would not."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # read to its end, or closed, meanwhile
        response.raw.shutdown()


class _Watch:
    """Breaks a silent stream off when the engine answers no ping either.

    A frozen engine keeps its connections: a build on one is silent forever, without an error. And a read timeout
    is no help, as a compiler may be silent for an hour.
    """

    def __init__(self, response: requests.Response, alive: Callable[[], bool], silence: float) -> None:
        self.hung = False
        self._response, self._alive, self._silence = response, alive, silence
        self._heard = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)
        self._thread.start()

    def heard(self) -> None:
        self._heard = time.monotonic()

    def stop(self) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(self._silence / 2):
            if time.monotonic() - self._heard >= self._silence and not self._answers():
                self.hung = True
                _break_off(self._response)
                return

    def _answers(self) -> bool:
        # Three times, because a machine that swaps may miss one.
        return any(self._alive() or self._done.wait(1) for _ in range(3))


def _chunks(response: requests.Response) -> Iterator[bytes]:
    """The body as it comes. Sized reads would wait until the size is full, so they are for unchunked bodies only."""
    chunked = getattr(response.raw, "chunked", False)
    return iter(response.iter_content(None if chunked else 1 << 16))


def _messages(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON messages of a stream.

    Their text is no data: the engine itself replaces characters at the borders of its 32 KiB pieces by U+FFFD.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())
    if rest.strip():
        yield json.loads(rest)


def _frames(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The payload of a multiplexed stream: frames of 1 byte stream number, 3 of padding, 4 of length, and data."""
    buffer, left = bytearray(), 0
    for chunk in chunks:
        buffer += chunk
        while buffer:
            if left == 0:
                if len(buffer) < 8:
                    break
                left = int.from_bytes(buffer[4:8])
                del buffer[:8]
                continue
            piece = bytes(buffer[:left])
            del buffer[:left]
            left -= len(piece)
            yield piece


def _without(skip: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces from byte `skip` on."""
    for piece in pieces:
        if skip < len(piece):
            yield piece[skip:]
        skip = max(0, skip - len(piece))


class _Upload:
    """A build context, images or files on the way to the engine: stops when cancelled, and keeps a source's error.

    urllib3 turns an OSError out of the body into its own "Connection aborted", as if the engine had failed.
    """

    def __init__(self, chunks: Iterator[bytes], cancel: Cancel) -> None:
        self.error: BaseException | None = None
        self._chunks, self._cancel = chunks, cancel

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                if self._cancel:
                    raise _stopped()
                yield chunk
        except Exception as error:
            self.error = error
            raise


class _Body(io.RawIOBase):
    """Chunks as a file, for tarfile."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _stopped() -> Interrupted:
    return Interrupted(Problem(code="interrupted", message="the engine's work was stopped on request"))


# Builds -----------------------------------------------------------------------------------------------------

_STEP = re.compile(r"Step \d+/\d+ : (.*)", re.DOTALL)
_RUNNING = re.compile(r" ---> Running in ([0-9a-f]{12})\s*\Z")


@dataclass(slots=True)
class _Progress:
    """How far a build has come, from the engine's own messages."""

    build_args: Mapping[str, str]
    step: str = ""
    container: str = ""
    image: str = ""
    full: bool = False
    started: float = field(default_factory=time.time)

    def take(self, message: Mapping[str, Any]) -> None:
        # The id comes from `aux`; the SDK's high level takes it from the log text, which any RUN can print.
        self.image = (message.get("aux") or {}).get("ID", self.image)
        text = message.get("stream", "")
        self.full = self.full or speaks_of_full_disk(text)
        if step := _STEP.match(text):
            self.step, self.full = step[1].strip(), False
        elif running := _RUNNING.match(text):
            self.container = running[1]

    @property
    def base(self) -> str | None:
        """The image of a FROM step, its arguments filled in."""
        words = string.Template(self.step).safe_substitute(self.build_args).split()
        return words[1] if len(words) > 1 and words[0].upper() == "FROM" else None


def _step_failed(step: str, words: str, code: int | None) -> BuildFailed:
    ending = f"with exit code {code}" if code is not None else f"({words})"
    return BuildFailed(
        Problem(
            code="image-step-failed",
            message=f"the image step `{step}` failed {ending}",
            fix="its output above says why",
        ),
        status=code,
    )


def _step_killed(step: str) -> OutOfMemory:
    return OutOfMemory(
        Problem(
            code="image-step-out-of-memory",
            message=f"the kernel killed the image step `{step}` for want of memory",
            fix="raise the profile's `resources.memory`, or give the machine more",
        )
    )


# Containers -------------------------------------------------------------------------------------------------


def _open_files(address: _Address) -> int | None:
    """How many open files a container may have: a full file table truncates Bazel's cache entries.

    An engine without CAP_SYS_RESOURCE (in a sandbox, or rootless) refuses to start a container with more than it
    may have itself, so that is looked up where the engine is a process of this machine. Elsewhere it is left to the
    engine (None).
    """
    if not address.local:
        return None
    path = address.url.partition("unix://")[2]
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, _, _ = struct.unpack("3i", credentials)
        limit = re.search(r"Max open files +\S+ +(\d+)", Path(f"/proc/{pid}/limits").read_text())
    except (OSError, AttributeError):  # elsewhere, or not Linux
        return _OPEN_FILES
    return min(_OPEN_FILES, int(limit[1])) if limit else _OPEN_FILES


def _host_config(spec: ContainerSpec, open_files: int | None) -> dict[str, Any]:
    """The record as the SDK's arguments."""
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
        "devices": [f"{path}:{path}:rwm" for path in spec.devices],
        "group_add": [str(group) for group in spec.groups],
    }
    if spec.gpus:  # what `docker run --gpus all` asks for
        config["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    if spec.memory is not None:  # without an equal memswap the engine grants as much swap again
        config |= {"mem_limit": spec.memory, "memswap_limit": spec.memory}
    if spec.cpus is not None:
        config["nano_cpus"] = int(spec.cpus * 1e9)
    if spec.hardened:
        config |= {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
    return config


def _mount(mount: Mount) -> dict[str, Any]:
    # A mount, not `binds`: for a missing source the latter creates a folder that belongs to root.
    kind: Any = mount.kind
    return DockerMount(target=mount.target, source=mount.source, type=kind, read_only=mount.read_only)


def _container_state(inspected: Mapping[str, Any]) -> ContainerState:
    state = inspected["State"]
    running = bool(state.get("Running"))
    # A container that was never started has the exit code 0, which must not be taken for success.
    ended = not running and (state.get("Status") != "created" or state["ExitCode"] != 0)
    return ContainerState(
        id=inspected["Id"],
        name=inspected["Name"].removeprefix("/"),
        running=running,
        exit_code=state["ExitCode"] if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=state.get("Error") or "",
        labels=inspected["Config"].get("Labels") or {},
    )


def _image_info(inspected: Mapping[str, Any]) -> ImageInfo:
    return ImageInfo(
        id=inspected["Id"],
        tags=tuple(inspected.get("RepoTags") or ()),
        digests=tuple(inspected.get("RepoDigests") or ()),
        labels=(inspected.get("Config") or {}).get("Labels") or {},
        size=inspected.get("Size") or 0,
    )


def _only_file(archive: Iterator[bytes], path: str) -> bytes:
    """The one regular file of an archive, never unpacked."""
    with tarfile.open(fileobj=io.BufferedReader(_Body(archive)), mode="r|") as tar:
        member = tar.next()
        content = tar.extractfile(member) if member and member.isreg() else None
        if content is None:
            raise _unreadable(path, "it is not a regular file")
        return content.read()


def _unreadable(path: str, reason: str) -> EngineError:
    return EngineError(
        Problem(code="container-file-refused", message=f"{path} is not read out of the container: {reason}")
    )


def _pull_name(reference: str) -> tuple[str, str]:
    """Repository and tag (or digest): with both a tag and a digest the digest alone says what is fetched."""
    name, at, digest = reference.partition("@")
    repository, tag = parse_repository_tag(name)
    return repository, digest if at else tag or "latest"


def _worth_another_pull(error: BaseException) -> bool:
    return isinstance(error, NetworkError) and error.problems[0].code in _PULL_TRIES


# The engine itself tries broken blobs five times over 75 seconds, so one more round is enough; a rate limit it does
# not try again at all.
_PULL_TRIES = {"registry-rate-limited": 5, "registry-unreachable": 2}


def _enough_pulls(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    tries = _PULL_TRIES.get(error.problems[0].code, 1) if isinstance(error, NetworkError) else 1
    return state.attempt_number >= tries


class DockerEngine:
    """A Docker engine of version 20.10 or newer, or what speaks its API (podman 4).

    It connects on first use. `silence` is how long a stream may be silent before the engine is pinged.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        timeout: float = 600,
        silence: float = 60,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # 600 seconds: under disk load creating a container takes minutes (docker/docker-py#2266).
        self._base_url, self._timeout, self._silence, self._sleep = base_url, timeout, silence, sleep
        self._address: _Address | None = None
        self._version: str | None = None
        self._clients: dict[float, Sdk] = {}
        self._connecting = threading.Lock()

    # Connection ---------------------------------------------------------------------------------------------

    @property
    def address(self) -> _Address:
        if self._address is None:
            self._address = _find_address(self._base_url)
        return self._address

    def _open(self, timeout: float, version: str) -> Sdk:
        seconds: Any = timeout  # the SDK hands it to requests as it is
        # The machine's own ssh, as the docker command takes it: with its keys, its agent and its configuration.
        return APIClient(
            self.address.url, version=version, timeout=seconds, tls=self.address.tls, use_ssh_client=True
        )

    def _connected(self, timeout: float) -> Sdk:
        """The client of that timeout, which the SDK knows only one of."""
        with self._connecting:
            if self._version is None:
                self._version = self._negotiate()
            if timeout not in self._clients:
                self._clients[timeout] = self._open(timeout, self._version)
            return self._clients[timeout]

    def _negotiate(self) -> str:
        """The engine's API version; a short timeout, for a frozen engine accepts connections."""
        try:
            with self._open(_CONNECT_TIMEOUT, "auto") as client:
                version: str = client.api_version
        except (DockerException, *_TRANSPORT, ValueError) as error:
            raise _cannot_connect(self.address, error) from error
        if _too_old(version):
            raise EngineUnavailable(
                Problem(
                    code="engine-too-old",
                    message=f"the engine at {self.address} speaks API {version}, at least {OLDEST_API} is needed",
                    fix="update to Docker 20.10 or newer",
                )
            )
        return version

    def _call(self, what: str, request: Callable[[Sdk], T], timeout: float | None = None) -> T:
        """One request, its failures in our own words."""
        client = self._connected(timeout or self._timeout)
        try:
            return request(client)
        except APIError as error:
            raise refusal(what, _words(error)) from error
        except _TRANSPORT as error:
            raise self._lost(what, error) from error
        except DockerException as error:
            raise refusal(what, str(error)) from error

    def _query(self, what: str, request: Callable[[Sdk], T]) -> T:
        """A question, which may be asked again when the connection breaks. A frozen engine (EngineHung) stays so."""
        retrying = Retrying(
            retry=retry_if_exception_type(EngineLost),
            stop=stop_after_attempt(3),
            wait=wait_random_exponential(multiplier=0.2, max=2),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(lambda: self._call(what, request, min(_QUERY_TIMEOUT, self._timeout)))

    def _lost(self, what: str, error: BaseException) -> EngineError:
        """The error for a broken connection: is the engine gone, frozen, or back already?"""
        answer = self._probe(min(5.0, self._timeout))
        if answer == "silence":
            return self._hung(what)
        now = "it answers again" if answer == "pong" else "it no longer answers"
        return EngineLost(
            Problem(
                code="engine-lost",
                message=f"the engine at {self.address} was lost while trying to {what}; {now} ({error})",
                fix="check the engine (`systemctl status docker`), then run the same command to go on",
            )
        )

    def _hung(self, what: str) -> EngineHung:
        return EngineHung(
            Problem(
                code="engine-hung",
                message=f"the engine at {self.address} stopped answering while trying to {what}, even to a ping",
                fix="restart the engine (`sudo systemctl restart docker`), then run the same command to go on",
            )
        )

    def _probe(self, timeout: float) -> str:
        """`pong`, `silence` or `gone`, by a client of its own: the main one waits ten minutes."""
        try:
            with self._open(timeout, OLDEST_API) as client:
                client.ping()
        except Exception as error:  # SSH has a zoo of its own
            silent = any(isinstance(cause, TimeoutError | requests.Timeout) for cause in _causes(error))
            return "silence" if silent else "gone"
        return "pong"

    @contextlib.contextmanager
    def _stream(
        self, what: str, request: Callable[[Sdk], object], cancel: Cancel | None = None
    ) -> Iterator[Iterator[bytes]]:
        """The body of a response, whose end is an honest one.

        The client of its own makes the response visible, which the SDK's generators hide, so that it can be broken
        off from another thread or a signal handler.
        """
        self._connected(self._timeout)
        with self._open(self._timeout, self._version or OLDEST_API) as client:
            responses: list[requests.Response] = []
            client.hooks["response"] = [lambda response, **_: responses.append(response)]
            self._call(what, lambda _: request(client))
            with contextlib.closing(responses[-1]) as response:
                self._call(what, lambda _: _check(response))
                yield from self._watched(what, response, cancel)

    def _watched(self, what: str, response: requests.Response, cancel: Cancel | None) -> Iterator[Iterator[bytes]]:
        _wait_forever(response)
        watch = _Watch(response, lambda: self.ping(self._silence / 6), self._silence)
        forget = cancel.on_set(lambda: _break_off(response)) if cancel is not None else None
        try:
            yield self._body(what, response, watch, cancel)
        finally:
            watch.stop()
            if forget:
                forget()

    def _body(self, what: str, response: requests.Response, watch: _Watch, cancel: Cancel | None) -> Iterator[bytes]:
        try:
            for chunk in _chunks(response):
                watch.heard()
                yield chunk
        except _TRANSPORT as error:
            if cancel:
                raise _stopped() from None
            raise (self._hung(what) if watch.hung else self._lost(what, error)) from error

    # The engine itself --------------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        info: Mapping[str, Any] = self._query("describe itself", lambda client: client.info())
        version: Mapping[str, Any] = self._query("tell its version", lambda client: client.version())
        components = " ".join(component.get("Name", "") for component in version.get("Components") or ())
        return EngineInfo(
            name="podman" if "podman" in components.lower() else "docker",
            version=version["Version"],
            api_version=version["ApiVersion"],
            cpus=info["NCPU"],
            memory=info["MemTotal"],
            data_root=info.get("DockerRootDir", ""),
            runtimes=tuple(sorted(info.get("Runtimes") or ())),
            local=self.address.local,
            id=info.get("ID") or "",
            address=str(self.address),
        )

    def ping(self, timeout: float = 5.0) -> bool:
        return self._probe(timeout) == "pong"

    # Images -------------------------------------------------------------------------------------------------

    def image(self, reference: str) -> ImageInfo | None:
        found = self._query(
            f"look at the image {reference}", _unless(_ABSENT, lambda client: client.inspect_image(reference))
        )
        return _image_info(found) if found is not None else None

    def pull(self, reference: str, output: Output | None = None) -> ImageInfo:
        retrying = Retrying(
            retry=retry_if_exception(_worth_another_pull),
            stop=_enough_pulls,
            wait=wait_random_exponential(multiplier=2, max=60),
            sleep=self._sleep,
            reraise=True,
        )
        retrying(self._pull, reference, output)
        image = self.image(reference)
        if image is None:
            raise refusal(f"fetch `{reference}`", "the pull ended, but the image is not there")
        return image

    def _pull(self, reference: str, output: Output | None) -> None:
        repository, tag = _pull_name(reference)
        try:
            with self._stream(
                f"fetch {reference}", lambda client: client.pull(repository, tag, stream=True)
            ) as chunks:
                for message in _messages(chunks):
                    _report_pull(reference, message, output)
        except TfdockError as error:
            if isinstance(error.__cause__, APIError):
                raise registry_refusal(reference, _words(error.__cause__)) from error.__cause__
            raise

    def build(self, request: ImageBuild, output: Output, cancel: Cancel) -> str:
        progress = _Progress(request.build_args)
        try:
            self._build(request, progress, output, cancel)
        except BaseException:
            self._clear_step(progress.container)
            raise
        if cancel:
            raise _stopped()
        if not progress.image:
            raise self._lost("build an image", RuntimeError("the output ended without an image"))
        return progress.image

    def _build(self, request: ImageBuild, progress: _Progress, output: Output, cancel: Cancel) -> None:
        if cancel:
            raise _stopped()
        upload = _Upload(request.context(), cancel)
        try:
            with self._stream("build an image", _build_request(request, upload), cancel) as chunks:
                for message in _messages(chunks):
                    self._build_message(progress, message, output)
        except TfdockError:
            if upload.error is not None:
                raise upload.error from None
            raise

    def _build_message(self, progress: _Progress, message: Mapping[str, Any], output: Output) -> None:
        progress.take(message)
        if "error" in message or "errorDetail" in message:
            self._build_error(progress, message)
        if "stream" in message:
            output(message["stream"].encode())

    def _build_error(self, progress: _Progress, message: Mapping[str, Any]) -> NoReturn:
        detail = message.get("errorDetail") or {}
        words, code = detail.get("message") or message.get("error") or "", detail.get("code")
        if code is None and (refused := _build_refusal(progress, words)):
            raise refused
        self._why_stopped(progress, code)
        raise _step_failed(progress.step, words, code)

    def _why_stopped(self, progress: _Progress, code: int | None) -> None:
        """Raise what an exit code may hide: 137 alone is a memory kill, `docker kill`, or an engine going down."""
        if code == _KILLED and self._oom_events({"container": progress.container}, progress.started):
            raise _step_killed(progress.step)
        if progress.full:
            raise refusal(f"run `{progress.step}`", "no space left on device, as its output says")
        if not self.ping():
            raise self._lost(f"run `{progress.step}`", RuntimeError("the step was stopped as the engine went down"))

    def _clear_step(self, container: str) -> None:
        """Wait until the engine has removed the step's container; what crashed is removed by us, if it is ours."""
        if not container or not self.ping():
            return
        with contextlib.suppress(TfdockError):
            if not self._gone(container, 10) and IMAGE_LABEL in self._labels(container):
                self.remove(container)

    def _labels(self, container: str) -> Mapping[str, str]:
        state = self.state(container)
        return state.labels if state else {}

    def _gone(self, container: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.state(container) is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def tag(self, image: str, name: str) -> None:
        repository, tag = parse_repository_tag(name)
        self._query(f"name {image} {name}", lambda client: client.tag(image, repository, tag or "latest", force=True))

    def push(self, name: str, output: Output) -> Digest:
        # Tried once: the engine itself tries each layer five times, over 75 seconds, whatever the registry says.
        repository, tag = parse_repository_tag(name)
        digest = ""
        try:
            with self._stream(
                f"send {name}", lambda client: client.push(repository, tag or "latest", stream=True)
            ) as chunks:
                for message in _messages(chunks):
                    _report_push(name, message, output)
                    digest = (message.get("aux") or {}).get("Digest") or digest
        except TfdockError as error:
            if isinstance(error.__cause__, APIError):
                raise push_refusal(name, _words(error.__cause__)) from error.__cause__
            raise
        if not digest:
            raise push_refusal(name, "the push ended without a digest")
        return Digest(digest)

    def remove_image(self, reference: str) -> None:
        self._query(f"remove the image {reference}", _unless(_ABSENT, lambda client: client.remove_image(reference)))

    def dangling(self, label: str) -> list[ImageInfo]:
        wanted = {"dangling": True, "label": label}
        found: list[dict[str, Any]] = self._query("list images", lambda client: client.images(filters=wanted))
        return [ImageInfo(id=one["Id"], labels=one["Labels"] or {}, size=one["Size"]) for one in found]

    def save(self, images: Sequence[str], cancel: Cancel) -> Iterator[bytes]:
        def request(client: Sdk) -> object:  # the SDK's own `get_image` takes one image only
            url = f"{client.base_url}/v{client.api_version}/images/get"
            return client.get(url, params={"names": list(images)}, stream=True, timeout=client.timeout)

        if cancel:
            raise _stopped()
        with self._stream(f"save {' and '.join(images)}", request, cancel) as chunks:
            yield from chunks

    def load(self, archive: Iterable[bytes], cancel: Cancel) -> None:
        upload = _Upload(iter(archive), cancel)

        def request(client: Sdk) -> object:
            url = f"{client.base_url}/v{client.api_version}/images/load"
            # With its progress, so that its silence means something. An empty piece would end the body.
            pieces = (piece for piece in upload if piece)
            return client.post(url, data=pieces, params={"quiet": 0}, stream=True, timeout=client.timeout)

        try:
            with self._stream("load images", request, cancel) as chunks:
                for message in _messages(chunks):
                    _report_load(message)
        except TfdockError as error:
            if upload.error is not None:
                raise upload.error from None
            if isinstance(error.__cause__, APIError):
                raise archive_refusal(_words(error.__cause__)) from error.__cause__
            raise

    # Containers ---------------------------------------------------------------------------------------------

    def create(self, spec: ContainerSpec) -> str:
        try:
            return self._create(spec)
        except EngineError as error:
            if not _name_taken(error):
                raise
        # A create that timed out here went on in the engine (docker/docker-py#2461), so that the name may be ours.
        if RUN_LABEL not in self._labels(spec.name):
            raise EngineError(
                Problem(
                    code="container-name-taken",
                    message=f"a container named {spec.name} exists and is not one of ours",
                    fix=f"rename or remove it (`docker rm {spec.name}`)",
                )
            )
        self.remove(spec.name)
        return self._create(spec)

    def _create(self, spec: ContainerSpec) -> str:
        host_config = _host_config(spec, _open_files(self.address))

        def request(client: Sdk) -> str:
            created: Mapping[str, Any] = client.create_container(
                spec.image,
                list(spec.command),
                name=spec.name,
                entrypoint=[],  # an image's own entry point would run before, or instead of, our command
                environment=dict(spec.environment),
                labels=dict(spec.labels),
                user=spec.user,
                working_dir=spec.workdir,
                tty=spec.terminal,
                stdin_open=spec.terminal,
                host_config=client.create_host_config(**host_config),
            )
            return str(created["Id"])

        return self._call(f"create the container {spec.name}", request)

    def start(self, container: str) -> None:
        self._call(f"start the container {container}", lambda client: client.start(container))

    def follow(self, container: str, skip: int = 0) -> Iterator[bytes]:
        for piece in self._logs(container, skip, live=True):
            skip += len(piece)
            yield piece
        # When a container ends, 20.10 drops the last lines of a live log (11 of 100 short containers lost some, 28
        # none; like moby/moby#43860), although they were written: so the rest is read from what is written.
        if self.state(container) is not None:
            yield from self._logs(container, skip, live=False)

    def _logs(self, container: str, skip: int, *, live: bool) -> Iterator[bytes]:
        wanted = {"follow": int(live), "stdout": 1, "stderr": 1}

        def request(client: Sdk) -> object:
            url = f"{client.base_url}/v{client.api_version}/containers/{container}/logs"
            return client.get(url, params=wanted, stream=True, timeout=client.timeout)

        with self._stream(f"read the output of the container {container}", request) as chunks:
            yield from _without(skip, _frames(chunks))

    def state(self, container: str) -> ContainerState | None:
        found = self._query(
            f"look at the container {container}",
            _unless(_ABSENT, lambda client: client.inspect_container(container)),
        )
        return _container_state(found) if found is not None else None

    def signal(self, container: str, name: str) -> None:
        # Not asked again on a broken connection: Bazel takes a second SIGINT for more than the first.
        self._call(
            f"signal the container {container}",
            _unless(_ABSENT | _BUSY, lambda client: client.kill(container, name)),
        )

    def remove(self, container: str) -> None:
        what = f"remove the container {container}"
        self._query(
            what,
            _unless(_ABSENT | _BUSY, lambda client: client.remove_container(container, force=True, v=True)),
        )
        if not self._gone(container, 30):
            raise refusal(what, "it is still there after 30 seconds")

    def containers(self, label: str, value: str | None = None) -> list[ContainerState]:
        wanted = label if value is None else f"{label}={value}"
        listed: list[dict[str, Any]] = self._query(
            "list containers", lambda client: client.containers(all=True, filters={"label": wanted})
        )
        states = (self.state(container["Id"]) for container in listed)
        return [state for state in states if state is not None]

    def read_file(self, container: str, path: str, limit: int = 1 << 20) -> bytes | None:
        what = f"read {path} out of the container {container}"

        def request(client: Sdk) -> bytes:
            archive, stat = client.get_archive(container, path)
            with contextlib.closing(archive):
                if stat["size"] > limit:
                    raise _unreadable(path, f"its {stat['size']} bytes are over the limit of {limit}")
                return _only_file(archive, path)

        return self._query(what, _unless(_ABSENT, request))

    def put(self, container: str, folder: str, archive: Iterable[bytes]) -> None:
        what, upload = f"put files into {folder} of the container {container}", _Upload(iter(archive), Cancel())

        def request(client: Sdk) -> None:
            url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
            pieces = (piece for piece in upload if piece)
            response = client.put(url, params={"path": folder}, data=pieces, timeout=client.timeout)
            _check(response)

        try:
            self._call(what, request)
        except TfdockError:
            if upload.error is not None:
                raise upload.error from None
            raise

    def get(self, container: str, path: str) -> Iterator[bytes]:
        def request(client: Sdk) -> object:
            url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
            return client.get(url, params={"path": path}, stream=True, timeout=client.timeout)

        with self._stream(f"read {path} out of the container {container}", request) as chunks:
            yield from chunks

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        self._query(f"make the volume {name}", lambda client: client.create_volume(name, labels=dict(labels)))

    def volumes(self, label: str, value: str | None = None) -> list[str]:
        wanted = label if value is None else f"{label}={value}"
        found = self._query("list volumes", lambda client: client.volumes(filters={"label": wanted}))
        return sorted(volume["Name"] for volume in found["Volumes"] or ())

    def remove_volume(self, name: str) -> None:
        self._query(f"remove the volume {name}", _unless(_ABSENT, lambda client: client.remove_volume(name)))

    def memory_killed(self, label: str, value: str, since: float) -> bool:
        return bool(self._oom_events({"label": f"{label}={value}"}, since))

    def _oom_events(self, filters: Mapping[str, str], since: float) -> list[dict[str, Any]]:
        """A bounded query of what was: a live event stream stops without a word (moby/moby#12023)."""
        info: Mapping[str, Any] = self._query("tell the time", lambda client: client.info())
        now = _timestamp(info["SystemTime"])
        begin = since + now - time.time()  # the engine's clock may go differently
        wanted = {"event": "oom", **filters}

        def request(client: Sdk) -> list[dict[str, Any]]:
            return list(client.events(f"{begin:.6f}", f"{now:.6f}", wanted, decode=True))

        return self._query("list its events", request)

    # The terminal -------------------------------------------------------------------------------------------

    def attach(self, container: str) -> int:
        def request(client: Sdk) -> Any:
            return client.attach_socket(container, params=_ATTACH)

        with contextlib.closing(self._call(f"attach to the container {container}", request)) as attached:
            self.start(container)
            terminal.converse(getattr(attached, "_sock", attached), lambda *size: self._resize(container, *size))
        return self._exit_code(container)

    def _resize(self, container: str, rows: int, columns: int) -> None:
        with contextlib.suppress(EngineError):  # it may have ended meanwhile
            self._call("resize the terminal", lambda client: client.resize(container, rows, columns))

    def _exit_code(self, container: str) -> int:
        for _ in range(200):
            state = self.state(container)
            if state is None or state.exit_code is not None:
                break
            time.sleep(0.05)
        if state is None or state.exit_code is None:
            raise self._lost(f"wait for the container {container}", RuntimeError("the terminal was closed"))
        return state.exit_code


# The default detach keys start with Ctrl-P, which every shell user presses; these nobody types.
_ATTACH = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": "ctrl-@,ctrl-_,ctrl-@"}


_ABSENT = frozenset({requests.codes.not_found})
_BUSY = frozenset({requests.codes.conflict})
"""It no longer runs, or is being removed already."""


def _unless(statuses: frozenset[int], request: Callable[[Sdk], T]) -> Callable[[Sdk], T | None]:
    """The request, with None for an answer of one of these statuses."""

    def tolerant(client: Sdk) -> T | None:
        try:
            return request(client)
        except APIError as error:
            if error.status_code in statuses:
                return None
            raise

    return tolerant


def _check(response: requests.Response) -> None:
    """Raise for an HTTP status that is a refusal; the SDK's `build` would do so only when its generator is read."""
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


def _wait_forever(response: requests.Response) -> None:
    """Lift the read timeout that was good for the headers; from here on a watch looks after the engine."""
    sock = getattr(getattr(response.raw, "connection", None), "sock", None)
    if sock is not None:
        sock.settimeout(None)


def _build_request(request: ImageBuild, upload: _Upload) -> Callable[[Sdk], object]:
    limits = {"memory": request.memory, "memswap": request.memory} if request.memory else {}
    return lambda client: client.build(
        fileobj=upload,
        custom_context=True,
        dockerfile=request.dockerfile,
        buildargs=dict(request.build_args),
        container_limits=limits,
        network_mode=request.network,
        pull=False,
        rm=True,
        forcerm=True,
        # The default would put the proxies of ~/.docker/config.json, with their passwords, among the build args.
        use_config_proxy=False,
        timeout=int(client.timeout),
    )


def _build_refusal(progress: _Progress, words: str) -> TfdockError | None:
    """A failure that is not a command's exit code: of the registry in FROM, of the disk, or of the Dockerfile."""
    if progress.base:
        return registry_refusal(progress.base, words)
    return step_refusal(progress.step, words)


def _report_load(message: Mapping[str, Any]) -> None:
    if "error" in message or "errorDetail" in message:
        raise archive_refusal((message.get("errorDetail") or {}).get("message") or message.get("error") or "")


def _report_pull(reference: str, message: Mapping[str, Any], output: Output | None) -> None:
    if "error" in message or "errorDetail" in message:
        words = (message.get("errorDetail") or {}).get("message") or message.get("error") or ""
        raise registry_refusal(reference, words)
    if output and "status" in message and not message.get("progressDetail"):
        layer = f"{message['id']}: " if message.get("id") else ""
        output(f"{layer}{message['status']}\n".encode())


def _report_push(name: str, message: Mapping[str, Any], output: Output) -> None:
    if "error" in message or "errorDetail" in message:
        raise push_refusal(name, (message.get("errorDetail") or {}).get("message") or message.get("error") or "")
    if "status" in message and not message.get("progressDetail"):
        layer = f"{message['id']}: " if message.get("id") else ""
        output(f"{layer}{message['status']}\n".encode())


def _name_taken(error: EngineError) -> bool:
    cause = error.__cause__
    return isinstance(cause, APIError) and cause.status_code == requests.codes.conflict


def _timestamp(text: str) -> float:
    """Unix seconds of the engine's RFC 3339 time, whose nine decimals Python's parser takes to be three too many."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).timestamp()
