"""Implement the engine protocol with the Docker SDK.

This code follows the observed behaviour of the SDK and of engines, not their documentation:

- Only the low-level client is used. `images.build` returns nothing before the end, and `images.push` and `pull` never
  raise (docker/docker-py#3277): errors are messages in a stream with HTTP status 200.
- The SDK supports only the classic builder (docker/docker-py#2230).
- If the engine dies, the SDK's `logs`, `attach` and `events` end without an error, because `CancellableStream` treats
  every transport error as the end. So this module reads the streams itself, from the response.
- If the engine dies, one of four exceptions of `requests` and `urllib3` is raised, never an exception of the SDK.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import requests
import urllib3.exceptions
from docker import APIClient
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.utils import parse_repository_tag
from docker.utils.config import load_general_config
from docker.utils.proxy import ProxyConfig
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from tfdock.engine import terminal
from tfdock.engine.address import EngineAddress, cannot_connect, causes, find_address
from tfdock.engine.engine_archives import only_file, unreadable_error
from tfdock.engine.engine_documents import (
    container_state,
    host_config_of,
    image_info,
    open_files_allowed,
    timestamp,
)
from tfdock.engine.engine_errors import archive_refusal, own_words, push_refusal, refusal, registry_refusal
from tfdock.engine.engine_facts import engine_info
from tfdock.engine.protocol import (
    IMAGE_LABEL,
    LARGEST_FILE,
    RUN_LABEL,
    Cancel,
    ContainerSpec,
    ContainerState,
    ImageBuild,
    ImageInfo,
)
from tfdock.engine.streams import (
    EngineUpload,
    ImageProgress,
    StreamWatch,
    body_chunks,
    break_off,
    build_refusal,
    exit_code,
    frames,
    messages,
    skip_bytes,
    step_failed,
    step_killed,
    stopped_error,
    wait_forever,
)
from tfdock.errors import (
    EngineError,
    EngineHung,
    EngineLost,
    EngineUnavailable,
    Interrupted,
    NetworkError,
    TfdockError,
)
from tfdock.host.supervise import Output
from tfdock.types import Digest, EngineInfo

T = TypeVar("T")

_LOGIN = re.compile(r"^(\w+://)?[^/]*@")  #: The beginning of a proxy's address, with its login.

_QUERY = re.compile(r"\?\S+=\S*")  #: The query of a URL in a text. A query is percent-encoded, so it has no spaces.

Sdk = Any  #: An APIClient. The published types are wrong for calls of this module, so `Any` is used.

OLDEST_API = "1.41"  #: The API version of Docker 20.10. podman 4 reports the same version.

#: Errors that mean a lost engine. `APIError` is a RequestException too, so `APIError` must be caught first.
_TRANSPORT = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)

_CONNECT_TIMEOUT = 15.0
_LATE_END = 10.0  #: Seconds between two checks whether a container has ended, while its log is being followed.
_QUERY_TIMEOUT = 60.0
# A shell's status for SIGKILL: 128 + 9.
_KILLED = 137


def _message_of(error: APIError) -> str:
    return str(error.explanation or _without_query(error))


def _without_query(error: BaseException) -> str:
    """Return an error's text without the query of its address, which has the build arguments: proxies with logins."""
    return _QUERY.sub("", str(error))


def _is_too_old(version: str) -> bool:
    # Compare numbers: as text, 1.9 would be above 1.41.
    return [int(part) for part in version.split(".")] < [int(part) for part in OLDEST_API.split(".")]


def _pull_name(reference: str) -> tuple[str, str]:
    """Return repository and tag or digest. If a name has both, only the digest decides what is fetched."""
    name, at, digest = reference.partition("@")
    repository, tag = parse_repository_tag(name)
    return repository, digest if at else tag or "latest"


# The engine itself tries broken blobs five times over 75 seconds, so one more round is enough; the engine never
# retries after a rate limit.
_PULL_TRIES = {"registry-rate-limited": 5, "registry-unreachable": 2}


def _pulls_exhausted(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    tries = _PULL_TRIES.get(error.problems[0].code, 1) if isinstance(error, NetworkError) else 1
    return state.attempt_number >= tries


class DockerEngine:
    """A Docker engine of version 20.10 or newer, or an engine that speaks its API (podman 4).

    The connection is made at the first use. After `silence` seconds without data on a stream, the engine is pinged.
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
        self._version: str | None = None
        self._info: EngineInfo | None = None
        self._clients: dict[float, Sdk] = {}
        # Builds side by side share one engine. Only one of them queries the version.
        self._connecting = threading.Lock()

    # Connection ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def address(self) -> EngineAddress:
        return find_address(self._base_url)

    @property
    def _program(self) -> str:
        """The engine's own program, for messages: `podman`, or `docker` while the engine is still unknown."""
        return self._info.name if self._info else "docker"

    def _own_words(self, text: str) -> str:
        return own_words(text, self._program)

    def _open(self, timeout: float, version: str) -> Sdk:
        seconds: Any = timeout  # the SDK passes it unchanged to requests
        # Like the docker command, use this machine's own ssh program, with its keys, agent and configuration.
        return APIClient(
            self.address.url, version=version, timeout=seconds, tls=self.address.tls, use_ssh_client=True
        )

    def _client(self, timeout: float) -> Sdk:
        """Return the client of a timeout: the SDK has one timeout per client."""
        with self._connecting:
            if self._version is None:
                self._version = self._negotiate()
            if timeout not in self._clients:
                self._clients[timeout] = self._open(timeout, self._version)
            return self._clients[timeout]

    def _negotiate(self) -> str:
        """Return the engine's API version. The timeout is short, because a frozen engine accepts connections."""
        try:
            with self._open(_CONNECT_TIMEOUT, "auto") as client:
                version: str = client.api_version
        # ValueError: something else than an engine may answer at this address.
        except (DockerException, *_TRANSPORT, ValueError) as error:
            raise cannot_connect(self.address, error) from error
        if _is_too_old(version):
            raise EngineUnavailable.of(
                "engine-too-old",
                f"the engine at {self.address} has API version {version}; at least {OLDEST_API} is needed",
                "update to Docker 20.10 or newer",
            )
        return version

    def _call(self, action: str, request: Callable[[Sdk], T], timeout: float | None = None) -> T:
        """Send one request, and translate its failures."""
        client = self._client(timeout or self._timeout)
        try:
            return request(client)
        except APIError as error:
            raise refusal(action, _message_of(error), self._program) from error
        except _TRANSPORT as error:
            raise self._lost(action, error) from error
        except DockerException as error:
            raise refusal(action, str(error), self._program) from error

    def _query(self, action: str, request: Callable[[Sdk], T]) -> T:
        """Send a request that may be sent again if the connection breaks.

        A frozen engine (EngineHung) stays frozen.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(EngineLost),
            stop=stop_after_attempt(3),
            wait=wait_random_exponential(multiplier=0.2, max=2),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(lambda: self._call(action, request, min(_QUERY_TIMEOUT, self._timeout)))

    def _lost(self, action: str, error: BaseException) -> EngineError:
        """Return the error for a broken connection: the engine is gone, frozen, or back already."""
        answer = self._probe(min(5.0, self._timeout))
        if answer == "silence":
            return self._hung(action)
        now = "it answers again" if answer == "pong" else "it no longer answers"
        why = _without_query(error)
        return EngineLost.of(
            "engine-lost",
            f"the engine at {self.address} was lost while trying to {action}; {now} ({why})",
            self._own_words("check the engine (`systemctl status docker`), then run the same command to continue"),
        )

    def _hung(self, action: str) -> EngineHung:
        return EngineHung.of(
            "engine-hung",
            f"the engine at {self.address} stopped answering, even to a ping (while trying to {action})",
            self._own_words(
                "restart the engine (`sudo systemctl restart docker`), then run the same command to continue"
            ),
        )

    def _probe(self, timeout: float) -> str:
        """Return `pong`, `silence` or `gone`. Uses a separate client, because the main client waits ten minutes."""
        try:
            with self._open(timeout, OLDEST_API) as client:
                # Ping without an API version: engines refuse versions below their minimum (1.44 in Docker 29.0).
                client.get(f"{client.base_url}/_ping", timeout=timeout).raise_for_status()
        except Exception as error:  # SSH raises many exception types of its own
            silent = any(isinstance(cause, TimeoutError | requests.Timeout) for cause in causes(error))
            return "silence" if silent else "gone"
        return "pong"

    @contextlib.contextmanager
    def _stream(
        self, action: str, request: Callable[[Sdk], object], cancel: Cancel | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Yield the body of a response. A lost engine raises an error instead of ending the body.

        The separate client exposes the response, which the SDK's generators hide. So another thread or a
        signal handler can cancel the request.
        """
        # Negotiate the API version first: the stream's client uses the negotiated version.
        self._client(self._timeout)
        with self._open(self._timeout, self._version or OLDEST_API) as client:
            responses: list[requests.Response] = []
            client.hooks["response"] = [lambda response, **_: responses.append(response)]
            self._call(action, lambda _: request(client))
            with contextlib.closing(responses[-1]) as response:
                self._call(action, lambda _: _check(response))
                wait_forever(response)
                # The watch pings three times. All three together may take as long as the pause between two checks.
                watch = StreamWatch(response, lambda: self.ping(self._silence / 6), self._silence)
                forget = cancel.on_set(lambda: break_off(response)) if cancel is not None else None
                try:
                    yield self._read_body(action, response, watch, cancel)
                finally:
                    watch.stop()
                    if forget:
                        forget()

    def _read_body(
        self, action: str, response: requests.Response, watch: StreamWatch, cancel: Cancel | None
    ) -> Iterator[bytes]:
        try:
            for chunk in body_chunks(response):
                watch.heard()
                yield chunk
        except _TRANSPORT as error:
            # A stream that we broke off raises the same errors as a lost engine.
            if cancel:
                raise stopped_error() from None
            raise (self._hung(action) if watch.hung else self._lost(action, error)) from error

    # The engine itself --------------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        info: Mapping[str, Any] = self._query("describe itself", lambda client: client.info())
        version: Mapping[str, Any] = self._query("tell its version", lambda client: client.version())
        self._info = engine_info(info, version, self.address)
        return self._info

    def ping(self, timeout: float = 5.0) -> bool:
        return self._probe(timeout) == "pong"

    # Images -------------------------------------------------------------------------------------------------

    def image(self, reference: str) -> ImageInfo | None:
        inspected = self._query(
            f"inspect the image {reference}", _none_for(_ABSENT, lambda client: client.inspect_image(reference))
        )
        return image_info(inspected) if inspected is not None else None

    def pull(self, reference: str, output: Output | None = None) -> ImageInfo:
        retrying = Retrying(
            retry=retry_if_exception_type(NetworkError),
            stop=_pulls_exhausted,
            wait=wait_random_exponential(multiplier=2, max=60),
            sleep=self._sleep,
            reraise=True,
        )
        retrying(self._pull, reference, output or (lambda _: None))
        image = self.image(reference)
        if image is None:
            raise refusal(f"fetch `{reference}`", "the pull ended without the image", self._program)
        return image

    def _pull(self, reference: str, output: Output) -> None:
        repository, tag = _pull_name(reference)

        def refused(words: str) -> TfdockError:
            return registry_refusal(reference, words, self._program)

        def request(client: Sdk) -> object:
            return client.pull(repository, tag, stream=True)

        with _refusals(refused), self._stream(f"fetch {reference}", request) as chunks:
            for message in messages(chunks):
                _report(message, output, refused)

    def build(self, request: ImageBuild, output: Output, cancel: Cancel) -> str:
        progress = ImageProgress(request.build_args)
        try:
            self._build(request, progress, output, cancel)
        except BaseException:
            # The classic builder may leave the container of the step that was running.
            self._clear_step(progress.container)
            raise
        if cancel:
            raise stopped_error()
        if not progress.image:
            raise self._lost("build an image", RuntimeError("the output ended without an image"))
        return progress.image

    def _build(self, request: ImageBuild, progress: ImageProgress, output: Output, cancel: Cancel) -> None:
        if cancel:
            raise stopped_error()
        upload = EngineUpload(request.context(), cancel)
        with _own_errors(upload), self._stream("build an image", _build_request(request, upload), cancel) as chunks:
            for message in messages(chunks):
                progress.take(message)
                if (words := _error_text(message)) is not None:
                    self._build_error(progress, words, exit_code(message))
                if "stream" in message:
                    output(message["stream"].encode())

    def _build_error(self, progress: ImageProgress, text: str, code: int | None) -> NoReturn:
        # A command that failed has an exit code. Without an exit code, the engine itself refused something.
        if code is None and (refused := build_refusal(progress, text, self._program)):
            raise refused
        self._raise_hidden_cause(progress, code)
        raise step_failed(progress.step, text, code)

    def _raise_hidden_cause(self, progress: ImageProgress, code: int | None) -> None:
        """Raise the cause that an exit code may hide.

        137 alone is a memory kill, `docker kill`, or an engine going down.
        """
        if code == _KILLED and progress.container and self.memory_killed(progress.container):
            raise step_killed(progress.step)
        # A program reports a full disk in its output, with any exit code.
        if progress.full:
            raise refusal(f"run `{progress.step}`", "no space left on device, according to its output", self._program)
        if not self.ping():
            raise self._lost(f"run `{progress.step}`", RuntimeError("the step ended because the engine stopped"))

    def _clear_step(self, container: str) -> None:
        """Wait until the engine has removed the step's container. After a crash we remove it, if it is ours."""
        if not container or not self.ping():
            return
        # Another error is being raised. Errors of this cleanup must not replace that error.
        with contextlib.suppress(TfdockError):
            if not self._is_gone(container, 10) and IMAGE_LABEL in self._labels(container):
                self.remove(container)

    def _labels(self, container: str) -> Mapping[str, str]:
        state = self.state(container)
        return state.labels if state else {}

    def _is_gone(self, container: str, seconds: float) -> bool:
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
        # Push once: the engine itself tries each layer five times in 75 seconds, whatever the registry answers.
        repository, tag = parse_repository_tag(name)
        digest = ""

        def refused(words: str) -> TfdockError:
            return push_refusal(name, words, self._program)

        def request(client: Sdk) -> object:
            return client.push(repository, tag or "latest", stream=True)

        with _refusals(refused), self._stream(f"send {name}", request) as chunks:
            for message in messages(chunks):
                _report(message, output, refused)
                # Only the message after the last layer has the digest.
                digest = (message.get("aux") or {}).get("Digest") or digest
        if not digest:
            raise refused("the push ended without a digest")
        return Digest(digest)

    def remove_image(self, reference: str) -> None:
        self._query(
            f"remove the image {reference}", _none_for(_ABSENT, lambda client: client.remove_image(reference))
        )

    def dangling(self, label: str) -> list[ImageInfo]:
        filters = {"dangling": True, "label": label}
        images: list[dict[str, Any]] = self._query("list images", lambda client: client.images(filters=filters))
        return [ImageInfo(id=image["Id"], labels=image["Labels"] or {}, size=image["Size"]) for image in images]

    def save(self, images: Sequence[str], cancel: Cancel) -> Iterator[bytes]:
        def request(client: Sdk) -> object:  # the SDK's own `get_image` takes one image only
            return _get(client, "images/get", {"names": list(images)})

        if cancel:
            raise stopped_error()
        with self._stream(f"save {' and '.join(images)}", request, cancel) as chunks:
            yield from chunks

    def load(self, archive: Iterable[bytes], cancel: Cancel) -> None:
        upload = EngineUpload(iter(archive), cancel)

        def refused(words: str) -> TfdockError:
            return archive_refusal(words, self._program)

        def request(client: Sdk) -> object:
            # Request progress messages, so that a silent engine can be detected.
            parameters = {"quiet": 0}
            url = _url(client, "images/load")
            return client.post(url, data=upload, params=parameters, stream=True, timeout=client.timeout)

        with _own_errors(upload), _refusals(refused), self._stream("load images", request, cancel) as chunks:
            for message in messages(chunks):
                if (words := _error_text(message)) is not None:
                    raise refused(words)

    # Containers ---------------------------------------------------------------------------------------------

    def create(self, spec: ContainerSpec) -> str:
        try:
            return self._create(spec)
        except EngineError as error:
            if not _is_name_taken(error):
                raise
        # The engine continues a create request that timed out (docker/docker-py#2461), so this container may be ours.
        if RUN_LABEL not in self._labels(spec.name):
            raise EngineError.of(
                "container-name-taken",
                f"a container named {spec.name} exists, but tfdock did not create it",
                self._own_words(f"rename or remove that container (`docker rm {spec.name}`)"),
            )
        self.remove(spec.name)
        return self._create(spec)

    def _create(self, spec: ContainerSpec) -> str:
        host_config = host_config_of(spec, open_files_allowed(self.address), self._info or self.info())

        def request(client: Sdk) -> str:
            created: Mapping[str, Any] = client.create_container(
                spec.image,
                list(spec.command),
                name=spec.name,
                # An image's own entry point would run before, or instead of, our command. For `[]`, podman keeps it.
                entrypoint=[""],
                environment=_proxies(client, spec) | dict(spec.environment),
                use_config_proxy=False,  # the SDK would add the proxies with their passwords
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

    def follow(self, container: str) -> Iterator[bytes]:
        skip, pause = 0, 0.02
        while True:
            over = Cancel()
            # Setting `over` raises Interrupted here. The rest of the log is read below.
            with self._watching_end(container, over), contextlib.suppress(Interrupted):
                for piece in self._logs(container, skip, live=True, over=over):
                    skip += len(piece)
                    yield piece
            state = self.state(container)
            if state is None:
                return
            if not state.running:
                break
            # A live log ends a moment before its container ends. A live log that broke is followed again.
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        # When a container ends, Docker 20.10 drops the last lines of a live log, although they were written. Of 100
        # short containers 11 lost lines, with Docker 28 none (like moby/moby#43860). So read the rest from the log.
        yield from self._logs(container, skip, live=False)

    @contextlib.contextmanager
    def _watching_end(self, container: str, over: Cancel) -> Iterator[None]:
        """Set `over` if a container has ended and its live log has not: podman 4 may not end a short log."""
        done = threading.Event()

        def watch() -> None:
            ended = False
            while not done.wait(_LATE_END):
                # Check twice, so that the log has time to end by itself between the checks.
                if ended:
                    over.set()
                    return
                with contextlib.suppress(TfdockError):
                    state = self.state(container)
                    ended = state is None or state.exit_code is not None

        thread = threading.Thread(target=watch, name="container-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def _logs(self, container: str, skip: int, *, live: bool, over: Cancel | None = None) -> Iterator[bytes]:
        def request(client: Sdk) -> object:
            return _get(client, f"containers/{container}/logs", {"follow": int(live), "stdout": 1, "stderr": 1})

        with self._stream(f"read the output of the container {container}", request, over) as chunks:
            yield from skip_bytes(skip, frames(chunks))

    def state(self, container: str) -> ContainerState | None:
        inspected = self._query(
            f"inspect the container {container}",
            _none_for(_ABSENT, lambda client: client.inspect_container(container)),
        )
        return container_state(inspected) if inspected is not None else None

    def signal(self, container: str, name: str) -> None:
        # Do not repeat this on a broken connection: to Bazel, a second SIGINT means more than the first.
        self._call(
            f"signal the container {container}",
            _none_for(_ABSENT | _BUSY, lambda client: client.kill(container, name), _NOT_RUNNING),
        )

    def remove(self, container: str) -> None:
        action = f"remove the container {container}"
        self._query(
            action,
            # `v` removes anonymous volumes too: a VOLUME in an image makes one for each container.
            _none_for(_ABSENT | _BUSY, lambda client: client.remove_container(container, force=True, v=True)),
        )
        # 409 may mean that an earlier removal is still running, so wait for its end.
        if not self._is_gone(container, 30):
            raise refusal(action, "the container still exists after 30 seconds", self._program)

    def containers(self, label: str, value: str | None = None) -> list[ContainerState]:
        filter_value = label if value is None else f"{label}={value}"
        listed: list[dict[str, Any]] = self._query(
            "list containers", lambda client: client.containers(all=True, filters={"label": filter_value})
        )
        # The list has no exit codes, and a container may vanish before its state is read.
        states = (self.state(container["Id"]) for container in listed)
        return [state for state in states if state is not None]

    def read_file(self, container: str, path: str) -> bytes | None:
        action = f"read {path} out of the container {container}"

        def request(client: Sdk) -> bytes:
            archive, stat = client.get_archive(container, path)
            with contextlib.closing(archive):
                # podman follows links and returns the final file; Docker returns the link's target.
                if stat.get("linkTarget") not in (None, "", path):
                    raise unreadable_error(path, "not a regular file")
                # Check this before reading the content: a program in the container chose the size.
                if stat["size"] > LARGEST_FILE:
                    raise unreadable_error(path, f"its {stat['size']} bytes exceed the limit of {LARGEST_FILE}")
                try:
                    return only_file(archive, path)
                except tarfile.ReadError as error:
                    # podman 4.3 has sent an empty archive, without an error, for a container that had just ended.
                    raise requests.exceptions.ChunkedEncodingError(f"its archive: {error}") from error

        return self._query(action, _none_for(_ABSENT, request))

    def put(self, container: str, folder: str, archive: Iterable[bytes]) -> None:
        upload = EngineUpload(iter(archive), Cancel())

        def request(client: Sdk) -> None:
            url = _url(client, f"containers/{container}/archive")
            _check(client.put(url, params={"path": folder}, data=upload, timeout=client.timeout))

        with _own_errors(upload):
            self._call(f"put files into {folder} of the container {container}", request)

    def get(self, container: str, path: str) -> Iterator[bytes]:
        def request(client: Sdk) -> object:
            return _get(client, f"containers/{container}/archive", {"path": path})

        with self._stream(f"read {path} out of the container {container}", request) as chunks:
            yield from chunks

    def create_volume(self, name: str, labels: Mapping[str, str], options: Mapping[str, str] | None = None) -> None:
        def request(client: Sdk) -> object:
            return client.create_volume(name, driver="local", driver_opts=dict(options or {}), labels=dict(labels))

        self._query(f"create the volume {name}", request)

    def volumes(self, label: str, value: str | None = None) -> list[str]:
        filter_value = label if value is None else f"{label}={value}"
        answer = self._query("list volumes", lambda client: client.volumes(filters={"label": filter_value}))
        # The engine writes null for an empty list.
        return sorted(volume["Name"] for volume in answer["Volumes"] or ())

    def remove_volume(self, name: str) -> None:
        self._query(f"remove the volume {name}", _none_for(_ABSENT, lambda client: client.remove_volume(name)))

    def memory_killed(self, container: str) -> bool:
        # Query past events only: a live event stream may stop without an error (moby/moby#12023). Query from the
        # beginning of time: clocks are changed and machines sleep, so no start time of the container is reliable.
        info: Mapping[str, Any] = self._query("tell the time", lambda client: client.info())
        # Keep the fraction: a whole second would leave out the newest events.
        until = f"{timestamp(info['SystemTime']):.6f}"
        filters = {"event": "oom", "container": container}

        def request(client: Sdk) -> list[dict[str, Any]]:
            return list(client.events("1", until, filters, decode=True))

        return bool(self._query("list its events", request))

    # The terminal -------------------------------------------------------------------------------------------

    def attach(self, container: str) -> int:
        def request(client: Sdk) -> Any:
            return client.attach_socket(container, params=_ATTACH)

        # Attach before the container starts, so that no output is lost.
        with contextlib.closing(self._call(f"attach to the container {container}", request)) as attached:
            self.start(container)
            # Over a Unix socket the SDK returns a `SocketIO`, over TLS the socket itself.
            terminal.converse(getattr(attached, "_sock", attached), lambda *size: self._resize(container, *size))
        return self._exit_code(container)

    def _resize(self, container: str, rows: int, columns: int) -> None:
        with contextlib.suppress(EngineError):  # the container may have ended meanwhile
            self._call("resize the terminal", lambda client: client.resize(container, rows, columns))

    def _exit_code(self, container: str) -> int:
        # The connection ends a moment before the state changes. Wait up to ten seconds for the new state.
        for _ in range(200):
            state = self.state(container)
            if state is None or state.exit_code is not None:
                break
            time.sleep(0.05)
        if state is None or state.exit_code is None:
            raise self._lost(f"wait for the container {container}", RuntimeError("the terminal was closed"))
        return state.exit_code


# The default detach keys start with Ctrl-P, which every shell user presses. Nobody types the keys set here.
_ATTACH = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": "ctrl-@,ctrl-_,ctrl-@"}


_ABSENT = frozenset({requests.codes.not_found})
_BUSY = frozenset({requests.codes.conflict})  #: The container no longer runs, or its removal has begun.


_NOT_RUNNING = "can only kill running containers"  #: podman's message; the status is that of an internal error.


def _none_for(
    statuses: frozenset[int], request: Callable[[Sdk], T], words: str | None = None
) -> Callable[[Sdk], T | None]:
    """Wrap the request: return None for an answer with one of these statuses or texts."""

    def tolerant(client: Sdk) -> T | None:
        try:
            return request(client)
        except APIError as error:
            if error.status_code in statuses or (words and words in _message_of(error)):
                return None
            raise

    return tolerant


def _check(response: requests.Response) -> None:
    """Raise for an HTTP status that is a refusal.

    The SDK's `build` sends the request only when its generator is read.
    """
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


def _url(client: Sdk, path: str) -> str:
    return f"{client.base_url}/v{client.api_version}/{path}"


def _get(client: Sdk, path: str, parameters: Mapping[str, object]) -> object:
    """Send a request whose answer the SDK would not stream."""
    return client.get(_url(client, path), params=parameters, stream=True, timeout=client.timeout)


@contextlib.contextmanager
def _own_errors(upload: EngineUpload) -> Iterator[None]:
    """Raise the error of an upload's source instead of the engine's: the engine only saw that its input ended."""
    try:
        yield
    except TfdockError:
        if upload.error is not None:
            raise upload.error from None
        raise


@contextlib.contextmanager
def _refusals(refused: Callable[[str], TfdockError]) -> Iterator[None]:
    """Treat an error that arrives before the stream like an error in the stream."""
    try:
        yield
    except TfdockError as error:
        if isinstance(error.__cause__, APIError):
            raise refused(_message_of(error.__cause__)) from error.__cause__
        raise


def _proxies(client: Sdk, spec: ContainerSpec) -> dict[str, str]:
    """Return the proxies of Docker's configuration as variables of a container that has a network.

    Their logins are left out: the container may run programs of a stranger.
    """
    if spec.network == "none":
        return {}
    # Like the docker command, look the proxies up by the engine's address, else under `default`.
    proxies = load_general_config().get("proxies", {})
    variables = ProxyConfig.from_dict(proxies.get(client.base_url, proxies.get("default", {}))).get_environment()
    return {name: _LOGIN.sub(r"\1", str(address)) for name, address in variables.items()}


def _build_request(request: ImageBuild, upload: EngineUpload) -> Callable[[Sdk], object]:
    limits = {"memory": request.memory, "memswap": request.memory} if request.memory else {}
    return lambda client: client.build(
        fileobj=upload,
        custom_context=True,
        dockerfile="Dockerfile",
        target=request.target,
        buildargs=dict(request.build_args),
        container_limits=limits,
        network_mode=request.network,
        pull=False,
        # Without both options, the container of each step remains, even of a failed step.
        rm=True,
        forcerm=True,
        # The default would put the proxies of ~/.docker/config.json, with their passwords, among the build args.
        use_config_proxy=False,
        # `build` does not take the client's timeout by itself, and would wait for the headers forever.
        timeout=int(client.timeout),
    )


def _error_text(message: Mapping[str, Any]) -> str | None:
    """Return the words of an error inside a stream; None if the message is no error."""
    if "error" not in message and "errorDetail" not in message:
        return None
    return (message.get("errorDetail") or {}).get("message") or message.get("error") or ""


def _report(message: Mapping[str, Any], output: Output, refused: Callable[[str], TfdockError]) -> None:
    if (words := _error_text(message)) is not None:
        raise refused(words)
    # A message with `progressDetail` belongs to a progress bar: only changes of a layer are shown.
    if "status" in message and not message.get("progressDetail"):
        layer = f"{message['id']}: " if message.get("id") else ""
        output(f"{layer}{message['status']}\n".encode())


def _is_name_taken(error: EngineError) -> bool:
    cause = error.__cause__
    if not isinstance(cause, APIError):
        return False
    # podman reports a name conflict as a text, with the status of an internal error.
    return cause.status_code == requests.codes.conflict or "is already in use by" in _message_of(cause)
