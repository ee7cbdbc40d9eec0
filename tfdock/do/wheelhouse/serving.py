"""A wheelhouse over HTTP: its index, wheels, constraints and coverage page, to be read and nothing else."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, StaticFileHandler

from tfdock.do.workspace import Wheelhouse
from tfdock.errors import Problem, ProfileError

_NAME = r"[A-Za-z0-9][A-Za-z0-9._+!-]*"
_PROJECT = r"[a-z0-9]+(?:-[a-z0-9]+)*"
SERVED = re.compile(
    rf"(?:index\.html)?|simple(?:/(?:{_PROJECT}(?:/(?:index\.html)?)?|index\.html)?)?"
    rf"|{_NAME}\.whl(?:\.metadata)?|{_NAME}\.constraints\.txt"
)
"""What may be asked for; whatever else lies in the folder, and `.tfdock` before all, is nobody's business."""
_PATIENCE = 60.0
"""Seconds that a client may say nothing; it may come again."""
_TYPES = {".html": "text/html; charset=utf-8", ".txt": "text/plain; charset=utf-8", ".metadata": "text/plain"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server answers: `host` as it was asked for, and the port that it got."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == "localhost" or _is(self.host, "is_loopback")

    @property
    def name(self) -> str:
        """The host for an address that others type: this machine's name, where every interface was asked for."""
        host = socket.gethostname() if _is(self.host, "is_unspecified") else self.host
        return f"[{host}]" if ":" in host else host

    @property
    def url(self) -> str:
        """`http://127.0.0.1:8080/`."""
        return f"http://{self.name}:{self.port}/"


def _is(host: str, what: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host), what))
    except ValueError:
        return False


def serve(
    house: Wheelhouse, host: str, port: int, ready: Callable[[Address], object], seen: Callable[[str], object]
) -> None:
    """Serve until SIGINT or SIGTERM comes. Port 0 is any that is free.

    `ready` is called once the server answers, and `seen` with a line for every request. Raises ProfileError
    (`serve-address`) where it cannot listen there.
    """
    asyncio.run(_serve(house, host, port, ready, seen))


def _listening(host: str, port: int) -> list[socket.socket]:
    try:
        if not host:  # to the system that is every address
            raise OSError("no host is named")
        return bind_sockets(port, host)
    except (OSError, UnicodeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "it is no name of a host"
        raise ProfileError(
            Problem(
                code="serve-address",
                message=f"cannot listen on `{host}`, port {port}: {why}",
                fix="give another `--port` (0 takes any that is free), or a `--host` that this machine has",
            )
        ) from error


async def _serve(
    house: Wheelhouse, host: str, port: int, ready: Callable[[Address], object], seen: Callable[[str], object]
) -> None:
    sockets = _listening(host, port)

    def told(handler: object) -> None:
        if isinstance(handler, _Files):
            seen(f"{handler.get_status()} {handler.request.method} {handler.request.path}")

    handlers = [(r"/(.*)", _Files, {"path": str(house.root), "default_filename": "index.html"})]
    server = HTTPServer(
        Application(handlers, log_function=told),
        max_body_size=1024,  # no request that is answered has a body
        body_timeout=_PATIENCE,
        idle_connection_timeout=_PATIENCE,
    )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server.add_sockets(sockets)
    ready(Address(host, sockets[0].getsockname()[1]))
    await stopped.wait()
    server.stop()
    await server.close_all_connections()


class _Files(StaticFileHandler):
    """Files of a wheelhouse, whole or in ranges. Tornado refuses what leads out of it, by `..` or by a link."""

    def set_default_headers(self) -> None:
        self.set_header("Server", "tfdock")
        self.set_header("X-Content-Type-Options", "nosniff")

    def parse_url_path(self, url_path: str) -> str:
        if not SERVED.fullmatch(url_path):
            raise HTTPError(404)
        return super().parse_url_path(url_path)

    def get_content_type(self) -> str:
        return _TYPES.get(Path(self.absolute_path or "").suffix, "application/octet-stream")

    def compute_etag(self) -> str | None:
        # By the file's time and size: hashing hundreds of megabytes would stop all others.
        found = os.stat(self.absolute_path or "")  # noqa: PTH116
        return f'"{found.st_mtime_ns:x}-{found.st_size:x}"'

    def set_extra_headers(self, path: str) -> None:  # noqa: ARG002
        self.set_header("Cache-Control", "no-cache")  # keep it, and ask whether it still holds
        # Who goes on with a download gets all of a file that has been replaced since, not the rest of another one.
        if self.request.headers.get("If-Range") not in (None, self.compute_etag()):
            self.request.headers.pop("Range", None)

    def write_error(self, status_code: int, **_: object) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code} {self._reason}\n")
