"""HTTP servers on this machine's loopback, each for as long as a test wants it."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterable, Iterator
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    """A handler that prints nothing. `respond` is called for every request."""

    def respond(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.respond()

    do_HEAD = do_POST = do_PATCH = do_PUT = do_GET  # noqa: N815

    def answer(
        self, status: int, body: bytes = b"", headers: Iterable[tuple[str, str]] = (), length: int | None = None
    ) -> None:
        """Answer with a body. `length` is what the answer says of it: its own without."""
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body) if length is None else length))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextlib.contextmanager
def serving(handler: Any, host: str = "127.0.0.1") -> Iterator[str]:
    """`host:port` of a server whose requests the handler answers."""
    with http.server.ThreadingHTTPServer((host, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"{host}:{server.server_port}"
        finally:
            server.shutdown()
