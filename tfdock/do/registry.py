"""Asking for pins over the network: an image's digest from its OCI registry, a git ref's commit from its server.

Nothing is downloaded and nothing is written. OCI distribution specification, "Pulling manifests"; the answer is what
`docker pull NAME@DIGEST` takes. Git: gitprotocol-v2 and gitprotocol-pack, the ref advertisement.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, BinaryIO

from tfdock.errors import NetworkError, Problem
from tfdock.model import ImageRef

_TIMEOUT = 30.0
_MOST = 64 << 20
"""Bytes of an answer; TensorFlow's own repository advertises some 10 MB of refs."""
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_GIT_PORT = 9418


# --- registries -----------------------------------------------------------------------------------------------------


def digest(image: ImageRef) -> str:
    """The manifest digest (`sha256:…`) that a tag stands for now; a list of platforms counts as one manifest.

    Plain HTTP is spoken with registries on this machine only. Raises NetworkError: `image-not-found`,
    `registry-denied`, `registry-rate-limited`, `registry-unreachable`.
    """
    host, repository = _endpoint(image)
    url = f"{_scheme(host)}://{host}/v2/{repository}/manifests/{image.tag or 'latest'}"
    try:
        return _digest(url, repository)
    except urllib.error.HTTPError as error:
        raise _refused(image, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NetworkError(
            Problem(
                code="registry-unreachable",
                message=f"the registry {image.registry} cannot be asked for `{image}`: {_reason(error)}",
                fix="check the network and proxies, or set a registry mirror; "
                "a registry elsewhere than on this machine must speak HTTPS",
            )
        ) from error


def _digest(url: str, repository: str) -> str:
    headers = {"Accept": ", ".join(_MANIFESTS)}
    try:
        return _manifest_digest(url, headers)
    except urllib.error.HTTPError as error:
        token = _token(error.headers.get("WWW-Authenticate", ""), repository) if error.code == 401 else None
        if token is None:
            raise
    return _manifest_digest(url, headers | {"Authorization": f"Bearer {token}"})


def _manifest_digest(url: str, headers: dict[str, str]) -> str:
    with _open(urllib.request.Request(url, headers=headers, method="HEAD")) as response:
        said = response.headers.get("Docker-Content-Digest", "")
    if _DIGEST.fullmatch(said):
        return str(said)
    # Registries need not say it: the digest is that of the manifest's bytes.
    with _open(urllib.request.Request(url, headers=headers)) as response:
        return f"sha256:{hashlib.sha256(_all(response)).hexdigest()}"


def _token(challenge: str, repository: str) -> str | None:
    """The token that Docker Hub and others give to anybody who wants to read a public image."""
    asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = urllib.parse.urlsplit(asked.get("realm", ""))
    if not challenge.lower().startswith("bearer") or realm.scheme != _scheme(realm.netloc):
        return None
    query = {"scope": asked.get("scope", f"repository:{repository}:pull"), "service": asked.get("service", "")}
    with _open(urllib.request.Request(f"{asked['realm']}?{urllib.parse.urlencode(query)}")) as response:
        answer: Any = json.loads(_all(response))
    token = answer.get("token") or answer.get("access_token") if isinstance(answer, dict) else None
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else None


def _endpoint(image: ImageRef) -> tuple[str, str]:
    """Host and repository as the registry itself knows them: Docker Hub has other names inside."""
    if image.registry != "docker.io":
        return image.registry, image.repository
    return "registry-1.docker.io", image.repository if "/" in image.repository else f"library/{image.repository}"


def _scheme(host: str) -> str:
    return "http" if _is_here(urllib.parse.urlsplit(f"//{host}").hostname or "") else "https"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(image: ImageRef, error: urllib.error.HTTPError) -> NetworkError:
    where = f"the registry {image.registry}"
    meanings = {
        401: ("registry-denied", f"{where} does not show `{image}` to everybody", "take an image that it does show"),
        403: ("registry-denied", f"{where} refuses to show `{image}`", "take an image that it does show"),
        404: ("image-not-found", f"{where} has no image `{image}`", "check name and tag"),
        429: ("registry-rate-limited", f"{where} has had too many requests from here", "wait, or set a mirror"),
    }
    code, message, fix = meanings.get(
        error.code,
        ("registry-unreachable", f"{where} answers {error.code} {error.reason} for `{image}`", "try again later"),
    )
    return NetworkError(Problem(code=code, message=message, fix=fix))


# --- git ------------------------------------------------------------------------------------------------------------


def commit(location: str, ref: str) -> str | None:
    """The commit that a tag or branch stands for now, as `git ls-remote` would say; None where there is no such ref.

    Raises NetworkError (`source-unreachable`), for addresses that only git itself can reach as well (ssh).
    """
    try:
        refs = dict(_refs(location))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NetworkError(
            Problem(
                code="source-unreachable",
                message=f"{location} cannot be asked for {ref}: {_reason(error)}",
                fix="check the network and proxies, or name the commit itself: `ref: <40 hexadecimal digits>`",
            )
        ) from error
    # As source.sh looks: for a tag first. `^{}` is what an annotated tag points to.
    names = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
    return next((refs[name] for name in names if name in refs), None)


def _refs(location: str) -> Iterator[tuple[str, str]]:
    """(ref, object) for everything a server advertises."""
    address = urllib.parse.urlsplit(location)
    if address.scheme in ("http", "https"):
        # Without the user's name: a name alone opens nothing, and is no part of an address to urllib.
        host = address.netloc.rpartition("@")[2]
        url = f"{address.scheme}://{host}{address.path.rstrip('/')}/info/refs?service=git-upload-pack"
        with _open(urllib.request.Request(url, headers={"User-Agent": "git/2 (tfdock)"})) as response:
            yield from _advertised(response)
    elif address.scheme == "git":
        place = (address.hostname or "", address.port or _GIT_PORT)
        with socket.create_connection(place, _TIMEOUT) as connection, connection.makefile("rb") as stream:
            request = f"git-upload-pack {address.path}\0host={address.netloc}\0".encode()
            connection.sendall(b"%04x" % (len(request) + 4) + request)
            yield from _advertised(stream)
            connection.sendall(b"0000")
    else:
        raise ValueError(f"only http, https and git addresses can be asked, not {address.scheme or 'this one'}")


def _advertised(stream: Any) -> Iterator[tuple[str, str]]:
    """The refs of an advertisement (version 0): `<object> <name>` lines in packets of stated length."""
    lines, read = 0, 0
    while True:
        size = int(_exactly(stream, 4), 16)
        if size == 0 and lines:
            return
        line = _exactly(stream, size - 4) if size > 4 else b""
        read += size
        if read > _MOST:
            raise ValueError("it lists more refs than can be meant")
        if line.startswith(b"ERR "):
            raise ValueError(line[4:].decode("utf-8", "replace").strip())
        if not line or line.startswith(b"#"):
            continue  # `# service=git-upload-pack` and the flush behind it come first over HTTP
        lines += 1
        found, _, name = line.partition(b"\0")[0].rstrip(b"\n").decode("utf-8", "replace").partition(" ")
        yield name, found


def _exactly(stream: Any, size: int) -> bytes:
    data = bytes(stream.read(size))
    if len(data) < size:
        raise ValueError("it is no git server, or it broke off")
    return data


# --- HTTP -----------------------------------------------------------------------------------------------------------


def _open(request: urllib.request.Request) -> Any:
    """Send a request, past the proxies where it goes to this machine."""
    here = _is_here(urllib.parse.urlsplit(request.full_url).hostname or "")
    handlers = [urllib.request.ProxyHandler({})] if here else []
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()  # status and headers are all that is looked at
        raise


def _reason(error: BaseException) -> object:
    """Why, in the operating system's words where it has some."""
    inner = getattr(error, "reason", None) or error
    return getattr(inner, "strerror", None) or inner


def _all(response: BinaryIO) -> bytes:
    data = response.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError("the answer is too long")
    return data
