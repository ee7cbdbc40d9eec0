"""Query pins over the network: the digest of an image from its OCI registry, the commit of a git ref from its server.

Nothing is downloaded or written. Registries: OCI distribution specification, "Pulling manifests"; `docker pull
NAME@DIGEST` accepts the answer. Git servers: the ref advertisement of gitprotocol-v2 and gitprotocol-pack.
"""

from __future__ import annotations

import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from tfdock.errors import NetworkError
from tfdock.oci import http
from tfdock.oci.http import HTTP_ERRORS, StrangeAnswer
from tfdock.oci.repository import Repository
from tfdock.plan.lock_file import COMMIT
from tfdock.types import ImageRef

_MOST = http.MOST  #: The most bytes in a list of refs. TensorFlow's own repository sends about 10 MB.
_GIT_PORT = 9418
_LENGTH = re.compile(rb"0000|(?!000[0-3])[0-9a-fA-F]{4}")  #: The length of a packet, including its own four bytes.


# --- registries -----------------------------------------------------------------------------------------------------


def digest(image: ImageRef, check: Callable[[], None] = http.no_check) -> str:
    """Return the manifest digest (`sha256:…`) that a tag has now. A list of platforms counts as one manifest.

    Plain HTTP is used only for registries on this machine. `check` is called now and then, and raises to stop. Raises
    NetworkError: `image-not-found`, `registry-denied`, `registry-rate-limited`, `registry-unreachable`.
    """
    return Repository(image.registry, image.repository, check=check).digest(image.tag or "latest")


# --- git ------------------------------------------------------------------------------------------------------------


def commit(location: str, ref: str, check: Callable[[], None] = http.no_check) -> str | None:
    """Return the commit that a tag or branch has now (as in `git ls-remote`); None if there is no such ref.

    `check` is called now and then, and raises to stop. Raises NetworkError (`source-unreachable`), also for addresses
    that only git itself can reach (ssh).
    """
    try:
        refs = http.ask(lambda: dict(_refs(location)), check, http.WHOLE)
        # The order of source.sh: tags first. `^{}` is the commit that an annotated tag points to.
        full_names = (f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
        names = (name for full in full_names for name in (f"{full}^{{}}", full))
        commit_id = next((refs[name] for name in names if name in refs), None)
        if commit_id is not None and not COMMIT.fullmatch(commit_id):
            raise StrangeAnswer("the server lists an invalid commit")
    except HTTP_ERRORS as error:
        raise NetworkError.of(
            "source-unreachable",
            f"{location} cannot be queried for {ref}: {http.failure_reason(error)}",
            "check the network and the proxies, or give the commit itself: `ref: <40 hexadecimal digits>`",
        ) from error
    return commit_id


def _refs(location: str) -> Iterator[tuple[str, str]]:
    """Yield (ref, object) for every ref that a server advertises."""
    address = urllib.parse.urlsplit(location)
    if address.scheme in ("http", "https"):
        # Leave out the user name: a name alone grants no access, and urllib accepts no name in an address.
        host = address.netloc.rpartition("@")[2]
        # gitprotocol-http, smart clients: without a `Git-Protocol` header the server answers in version 0.
        url = f"{address.scheme}://{host}{address.path.rstrip('/')}/info/refs?service=git-upload-pack"
        with http.send(urllib.request.Request(url, headers={"User-Agent": "git/2 (tfdock)"})) as response:
            yield from _read_advertisement(response)
    elif address.scheme == "git":
        place = (address.hostname or "", address.port or _GIT_PORT)
        with socket.create_connection(place, http.TIMEOUT) as connection, connection.makefile("rb") as stream:
            # gitprotocol-pack, "Git Transport": the host stands after a NUL, for servers with several names.
            request = f"git-upload-pack {address.path}\0host={address.netloc}\0".encode()
            connection.sendall(b"%04x" % (len(request) + 4) + request)
            yield from _read_advertisement(stream)
            # A flush packet requests nothing and ends the conversation, so the server logs no broken connection.
            connection.sendall(b"0000")
    else:
        raise StrangeAnswer(f"only http, https and git addresses are supported, not {address.scheme or 'this one'}")


def _read_advertisement(stream: Any) -> Iterator[tuple[str, str]]:
    """Yield the refs of an advertisement (version 0): `<object> <name>` lines in packets of stated length."""
    lines, read = 0, 0
    while True:
        length = _read_exactly(stream, 4)
        if not _LENGTH.fullmatch(length):
            raise StrangeAnswer("the server is not a git server")
        size = int(length, 16)
        if size == 0 and lines:
            return
        line = _read_exactly(stream, size - 4) if size > 4 else b""
        # Empty packets count as well: a server could send them without end.
        read += max(size, len(length))
        if read > _MOST:
            raise StrangeAnswer("the server lists too many refs")
        # gitprotocol-pack: instead of refs, a server may send `ERR` and the reason.
        if line.startswith(b"ERR "):
            raise StrangeAnswer(line[4:].decode("utf-8", "replace").strip())
        if not line or line.startswith(b"#"):
            continue  # `# service=git-upload-pack` and the flush packet after it come first over HTTP
        lines += 1
        # In the first line, the server's capabilities follow after a NUL.
        commit_id, _, name = line.partition(b"\0")[0].rstrip(b"\n").decode("utf-8", "replace").partition(" ")
        yield name, commit_id


def _read_exactly(stream: Any, size: int) -> bytes:
    data = bytes(stream.read(size))
    if len(data) < size:
        raise StrangeAnswer("the server is not a git server, or the connection broke")
    return data
