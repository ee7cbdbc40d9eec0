"""Asking for pins over the network: an image's digest from its OCI registry, a git ref's commit from its server.

Nothing is downloaded and nothing is written. OCI distribution specification, "Pulling manifests"; the answer is what
`docker pull NAME@DIGEST` takes. Git: gitprotocol-v2 and gitprotocol-pack, the ref advertisement.
"""

from __future__ import annotations

import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from tfdock.errors import NetworkError, Problem
from tfdock.oci import http
from tfdock.oci.http import HTTP_ERRORS, StrangeAnswer
from tfdock.oci.repository import Repository
from tfdock.plan.lock_file import COMMIT
from tfdock.types import ImageRef

_WHOLE = 120.0
"""Seconds for a whole question: a server that sends a byte now and then is never silent."""
_MOST = http.MOST
"""Bytes of a list of refs; TensorFlow's own repository advertises some 10 MB of them."""
_GIT_PORT = 9418
_LENGTH = re.compile(rb"0000|(?!000[0-3])[0-9a-fA-F]{4}")
"""Of a packet, its own four bytes counted."""


# --- registries -----------------------------------------------------------------------------------------------------


def digest(image: ImageRef, check: Callable[[], None] = http.no_check) -> str:
    """The manifest digest (`sha256:…`) that a tag stands for now; a list of platforms counts as one manifest.

    Plain HTTP is spoken with registries on this machine only. `check` is called now and then and raises to give up.
    Raises NetworkError: `image-not-found`, `registry-denied`, `registry-rate-limited`, `registry-unreachable`.
    """
    repository = Repository(image.registry, image.repository)
    with repository.error_context(f"`{image}`"):  # that there was no whole answer in time
        return http.ask(lambda: repository.digest(image.tag or "latest"), check, _WHOLE)


# --- git ------------------------------------------------------------------------------------------------------------


def commit(location: str, ref: str, check: Callable[[], None] = http.no_check) -> str | None:
    """The commit that a tag or branch stands for now, as `git ls-remote` would say; None where there is no such ref.

    `check` is called now and then and raises to give up. Raises NetworkError (`source-unreachable`), for addresses
    that only git itself can reach as well (ssh).
    """
    try:
        refs = http.ask(lambda: dict(_refs(location)), check, _WHOLE)
        # As source.sh looks: for a tag first. `^{}` is what an annotated tag points to.
        wanted = (f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
        names = (name for full in wanted for name in (f"{full}^{{}}", full))
        found = next((refs[name] for name in names if name in refs), None)
        if found is not None and not COMMIT.fullmatch(found):
            raise StrangeAnswer("what it lists as its commit is none")
    except HTTP_ERRORS as error:
        raise NetworkError(
            Problem(
                code="source-unreachable",
                message=f"{location} cannot be asked for {ref}: {http.failure_reason(error)}",
                fix="check the network and proxies, or name the commit itself: `ref: <40 hexadecimal digits>`",
            )
        ) from error
    return found


def _refs(location: str) -> Iterator[tuple[str, str]]:
    """(ref, object) for everything a server advertises."""
    address = urllib.parse.urlsplit(location)
    if address.scheme in ("http", "https"):
        # Without the user's name: a name alone opens nothing, and is no part of an address to urllib.
        host = address.netloc.rpartition("@")[2]
        url = f"{address.scheme}://{host}{address.path.rstrip('/')}/info/refs?service=git-upload-pack"
        with http.send(urllib.request.Request(url, headers={"User-Agent": "git/2 (tfdock)"})) as response:
            yield from _advertised(response)
    elif address.scheme == "git":
        place = (address.hostname or "", address.port or _GIT_PORT)
        with socket.create_connection(place, http.TIMEOUT) as connection, connection.makefile("rb") as stream:
            request = f"git-upload-pack {address.path}\0host={address.netloc}\0".encode()
            connection.sendall(b"%04x" % (len(request) + 4) + request)
            yield from _advertised(stream)
            connection.sendall(b"0000")
    else:
        raise StrangeAnswer(f"only http, https and git addresses can be asked, not {address.scheme or 'this one'}")


def _advertised(stream: Any) -> Iterator[tuple[str, str]]:
    """The refs of an advertisement (version 0): `<object> <name>` lines in packets of stated length."""
    lines, read = 0, 0
    while True:
        length = _exactly(stream, 4)
        if not _LENGTH.fullmatch(length):
            raise StrangeAnswer("it is no git server")
        size = int(length, 16)
        if size == 0 and lines:
            return
        line = _exactly(stream, size - 4) if size > 4 else b""
        read += max(size, len(length))
        if read > _MOST:
            raise StrangeAnswer("it lists more refs than can be meant")
        if line.startswith(b"ERR "):
            raise StrangeAnswer(line[4:].decode("utf-8", "replace").strip())
        if not line or line.startswith(b"#"):
            continue  # `# service=git-upload-pack` and the flush behind it come first over HTTP
        lines += 1
        found, _, name = line.partition(b"\0")[0].rstrip(b"\n").decode("utf-8", "replace").partition(" ")
        yield name, found


def _exactly(stream: Any, size: int) -> bytes:
    data = bytes(stream.read(size))
    if len(data) < size:
        raise StrangeAnswer("it is no git server, or it broke off")
    return data
