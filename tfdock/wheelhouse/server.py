"""Serve a wheelhouse over HTTP, read only: index, wheels, constraints."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, StaticFileHandler

from tfdock.errors import ProfileError
from tfdock.wheelhouse.store import Wheelhouse

_NAME = r"[A-Za-z0-9][A-Za-z0-9._+!-]*"
_PROJECT = r"[a-z0-9]+(?:-[a-z0-9]+)*"
#: Paths that are served. All other files, such as `.tfdock`, are private.
SERVED = re.compile(
    rf"(?:index\.html)?|simple(?:/(?:{_PROJECT}(?:/(?:index\.html)?)?|index\.html)?)?"
    rf"|{_NAME}\.whl(?:\.metadata)?|{_NAME}\.constraints\.txt"
)
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/?#]+)(?P<path>/.*)?", re.IGNORECASE)
_PATIENCE = 5.0  #: Seconds that a client has for a request, and for the pause between two requests.
_STALLED = 60.0  #: Seconds that a client has to read a piece of a file.
_CLIENTS, _RESERVED = 1000, 56  #: The maximum of connections, and of other open files.
_TYPES = {".html": "text/html; charset=utf-8", ".txt": "text/plain; charset=utf-8", ".metadata": "text/plain"}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of the server: `host` as the user gave it, and the port that is used."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host == "localhost" or _has_property(self.host, "is_loopback")

    @property
    def name(self) -> str:
        """The host name for other machines: this machine's name if the server listens on every interface."""
        host = socket.gethostname() if _has_property(self.host, "is_unspecified") else self.host
        return f"[{host}]" if ":" in host else host

    def answers_to(self, host: str) -> bool:
        """Return whether requests for this host are answered.

        A stranger can point the host name of a web page to this address. A script of the page can then read the
        served files (DNS rebinding). But such a page cannot have an IP address or `localhost` as its host name. A
        server that other machines can reach answers requests for every name.
        """
        if not self.loopback:
            return True
        name = host.lower().removesuffix(".")
        own = {"localhost", self.host.lower(), self.name.lower()}
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        # RFC 6761, section 6.3: names below `localhost` are this machine.
        return name in own or name.endswith(".localhost") or _has_property(bare, "packed")

    @property
    def url(self) -> str:
        """`http://127.0.0.1:8080/`."""
        return f"http://{self.name}:{self.port}/"


def _has_property(host: str, name: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host), name))
    except ValueError:
        return False


def _listen(host: str, port: int) -> list[socket.socket]:
    try:
        if not host:  # the system takes an empty host as every address
            raise OSError("no host given")
        return bind_sockets(port, host)
    # UnicodeError: IDNA refuses empty and overlong parts of a name.
    except (OSError, UnicodeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "it is not a valid host name"
        raise ProfileError.of(
            "serve-address",
            f"cannot listen on `{host}`, port {port}: {why}",
            "give another `--port` (0 takes any free port), or a `--host` of this machine",
        ) from error


async def serve(
    house: Wheelhouse,
    host: str,
    port: int,
    ready: Callable[[ServerAddress], object],
    seen: Callable[[str], object],
) -> None:
    """Serve until SIGINT or SIGTERM comes. Port 0 takes any free port.

    `ready` is called once the server answers, and `seen` with a line for every request. Raises ProfileError
    (`serve-address`) if the server cannot listen on this address.
    """
    sockets = _listen(host, port)
    address = ServerAddress(host, sockets[0].getsockname()[1])

    def log(handler: object) -> None:
        if isinstance(handler, _Files):
            seen(f"{handler.get_status()} {handler.request.method} {handler.request.path}")

    handlers = [(r"/(.*)", _Files, {"path": str(house.root), "default_filename": "index.html"})]
    server = _Server(
        Application(handlers, log_function=log, answers_to=address.answers_to),
        max_body_size=1024,  # no request that is answered has a body
        # Without limits, an incomplete request would hold its connection forever.
        body_timeout=_PATIENCE,
        idle_connection_timeout=_PATIENCE,
    )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server.add_sockets(sockets)
    ready(address)
    await stopped.wait()
    server.stop()
    await server.close_all_connections()


def _most_connections() -> int:
    """Return how many connections there may be. Each one may have a file open besides its socket."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # A server without free file descriptors can neither accept nor serve clients.
    return _CLIENTS if files == resource.RLIM_INFINITY else max(4, min(_CLIENTS, (files - _RESERVED) // 2))


class _Server(HTTPServer):
    """A server that limits connections. At the limit, it closes the one that has longest sent no whole request."""

    def initialize(self, *words: Any, **options: Any) -> None:
        super().initialize(*words, **options)
        self._most = _most_connections()
        self._waiting: dict[IOStream, None] = {}
        self._busy: set[IOStream] = set()

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if len(self._waiting) + len(self._busy) >= self._most:
            if not self._waiting:
                # All connections are busy. None of them is closed for a new client.
                _refuse_connection(stream)
                return
            # A dict is ordered, so the first connection has waited longest.
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.close()
        self._waiting[stream] = None
        super().handle_stream(stream, address)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        stream: IOStream = server_conn.stream  # type: ignore[attr-defined]
        if stream in self._busy:  # the previous request is answered
            self._busy.discard(stream)
            self._waiting[stream] = None
        return _RequestTracker(super().start_request(server_conn, request_conn), lambda: self._begin(stream))

    def _begin(self, stream: IOStream) -> None:
        if stream in self._waiting:
            del self._waiting[stream]
            self._busy.add(stream)

    def on_close(self, server_conn: object) -> None:
        stream: IOStream = server_conn.stream  # type: ignore[attr-defined]
        self._waiting.pop(stream, None)
        self._busy.discard(stream)
        super().on_close(server_conn)


def _refuse_connection(stream: IOStream) -> None:
    body = b"503 too many connections\n"
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    sent = stream.write(head.encode() + b"Retry-After: 10\r\nConnection: close\r\n\r\n" + body)
    sent.add_done_callback(lambda done: done.exception())  # a disconnected client needs no answer
    # The client sees the end of the answer, even if it is still sending.
    stream.socket.shutdown(socket.SHUT_WR)
    stream.close()


class _RequestTracker(HTTPMessageDelegate):
    """Call `whole` when a request has been received completely."""

    def __init__(self, inner: HTTPMessageDelegate, whole: Callable[[], None]) -> None:
        self._inner, self._whole = inner, whole

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        if isinstance(start_line, RequestStartLine) and (match := _ABSOLUTE.fullmatch(start_line.path)):
            # RFC 9112, section 3.2.2: a server accepts a full address, as proxies get it, and uses its host.
            headers["Host"] = match["host"]
            start_line = RequestStartLine(start_line.method, match["path"] or "/", start_line.version)
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        self._whole()
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()


class _Files(StaticFileHandler):
    """Serve the files of a wheelhouse, whole or in ranges.

    Tornado refuses paths that leave the wheelhouse by `..` or by a link.
    """

    def prepare(self) -> None:
        name = self.request.host_name
        if not self.settings["answers_to"](name):
            # RFC 9110, section 15.5.20: Misdirected Request.
            self.set_status(421)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(
                f"421 This server does not answer requests for the name `{name}`.\n"
                "Ask for it by `localhost` or by its address. A proxy in front of it sends `Host: localhost`.\n"
            )

    def flush(self, include_footers: bool = False) -> asyncio.Future[None]:
        """Send a piece of the answer. A client that reads too slowly is disconnected."""
        sent = super().flush(include_footers)
        stream = self.request.connection.stream  # type: ignore[union-attr]
        timer = asyncio.get_running_loop().call_later(_STALLED, stream.close)
        sent.add_done_callback(lambda _: timer.cancel())
        return sent

    def set_default_headers(self) -> None:
        self.set_header("Server", "tfdock")
        # No browser should guess that a wheel is a page, and run it.
        self.set_header("X-Content-Type-Options", "nosniff")

    def parse_url_path(self, url_path: str) -> str:
        # Check before Tornado looks at the disk. A 404 does not reveal whether a private file exists.
        if not SERVED.fullmatch(url_path):
            raise HTTPError(404)
        return super().parse_url_path(url_path)

    def get_content_type(self) -> str:
        return _TYPES.get(Path(self.absolute_path or "").suffix, "application/octet-stream")

    def compute_etag(self) -> str | None:
        # From the file's time and size: hashing hundreds of megabytes would block all other clients.
        status = os.stat(self.absolute_path or "")  # noqa: PTH116
        return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'

    def set_extra_headers(self, path: str) -> None:  # noqa: ARG002
        self.set_header("Cache-Control", "no-cache")  # clients may cache, and must ask if the file is still valid
        # If the file was replaced meanwhile, a client that resumes its download gets the whole new file.
        if self.request.headers.get("If-Range") not in (None, self.compute_etag()):
            self.request.headers.pop("Range", None)

    def write_error(self, status_code: int, **_: object) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code} {self._reason}\n")
