"""A registry that wants a login, and the ways in which Docker keeps one."""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .registries import OwnRegistry


class Guard(http.server.BaseHTTPRequestHandler):
    """Stands before a registry and asks for a login: for a token, or for name and password."""

    upstream: str
    kind: str
    told: list[tuple[str, str]]

    def do_GET(self) -> None:
        shown = self.headers.get("Authorization", "")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.told.append((self.path.partition("?")[0], shown))
        if self.path.startswith("/token"):
            known = shown == basic() or (b"grant_type=refresh_token" in body and PASSWORD.encode() in body)
            self._answer(200, [], b'{"access_token": "t0k3n"}' if known else b'{"token": "for anybody"}')
            return
        wanted = basic() if self.kind == "basic" else "Bearer t0k3n"
        if shown != wanted:
            realm = 'Basic realm="here"'
            if self.kind == "token":
                realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="here",scope="all"'
            self._answer(401, [("WWW-Authenticate", realm)], b"")
            return
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        response = connection.getresponse()
        data = response.read()
        headers = [one for one in response.getheaders() if one[0].lower() not in ("content-length", "connection")]
        self._answer(response.status, headers, data)
        connection.close()

    do_HEAD = do_POST = do_PATCH = do_PUT = do_GET  # noqa: N815

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


PASSWORD = "canary-8d1f-password"


def basic() -> str:
    return f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"


@contextmanager
def guarded(registry: OwnRegistry, kind: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    told: list[tuple[str, str]] = []
    handler = type("Handler", (Guard,), {"upstream": registry.address, "kind": kind, "told": told})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", told
        server.shutdown()


def docker_config(folder: Path, address: str, kept: str) -> dict[str, str]:
    """The variables of a Docker client that keeps a login in this way."""
    folder.mkdir()
    config: dict[str, Any] = {}
    if kept in ("config", "wrong"):
        password = PASSWORD if kept == "config" else f"wrong {PASSWORD}"
        config = {"auths": {address: {"auth": base64.b64encode(f"me:{password}".encode()).decode()}}}
    elif "helper" in kept:
        config = {"credHelpers": {address: "tests"}}
        helper = folder / "docker-credential-tests"
        user = "<token>" if kept.startswith("identity") else "me"
        answer = {"ServerURL": address, "Username": user, "Secret": PASSWORD}
        says = f"echo {PASSWORD}; exit 3" if "broken" in kept else f"cat >/dev/null; echo '{json.dumps(answer)}'"
        helper.write_text(f"#!/bin/sh\n{says}\n")
        helper.chmod(0o755)
    (folder / "config.json").write_text(json.dumps(config))
    return {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
