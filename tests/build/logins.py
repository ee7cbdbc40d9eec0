"""A registry that wants a login, and the ways in which Docker keeps one."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import Handler, serving

from .registries import OwnRegistry, forwarded


class Guard(Handler):
    """Stands before a registry and asks for a login: for a token, or for name and password."""

    upstream: str
    kind: str
    told: list[tuple[str, str]]

    def respond(self) -> None:
        shown = self.headers.get("Authorization", "")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.told.append((self.path.partition("?")[0], shown))
        if self.path.startswith("/token"):
            known = shown == basic() or (b"grant_type=refresh_token" in body and PASSWORD.encode() in body)
            self.answer(200, b'{"access_token": "t0k3n"}' if known else b'{"token": "for anybody"}')
            return
        wanted = basic() if self.kind == "basic" else "Bearer t0k3n"
        if shown != wanted:
            realm = 'Basic realm="here"'
            if self.kind == "token":
                realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="here",scope="all"'
            self.answer(401, headers=[("WWW-Authenticate", realm)])
            return
        status, headers, data, length = forwarded(self, self.upstream, body)
        self.answer(status, data, headers, length)


PASSWORD = "canary-8d1f-password"


def basic() -> str:
    return f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"


@contextmanager
def guarded(registry: OwnRegistry, kind: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    told: list[tuple[str, str]] = []
    handler = type("Handler", (Guard,), {"upstream": registry.address, "kind": kind, "told": told})
    with serving(handler) as address:
        yield address, told


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
