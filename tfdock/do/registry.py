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
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from tfdock.decide.lock import COMMIT
from tfdock.do.watch import watched
from tfdock.errors import NetworkError, Problem
from tfdock.model import ImageRef

_TIMEOUT = 30.0
"""Seconds of silence."""
_WHOLE = 120.0
"""Seconds for a whole question: a server that sends a byte now and then is never silent."""
_TRIES = 3
_LONGEST_PAUSE = 60.0
"""Seconds between tries; a server that wants more of them is not asked again."""
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
_LENGTH = re.compile(rb"0000|(?!000[0-3])[0-9a-fA-F]{4}")
"""Of a packet, its own four bytes counted."""

_T = TypeVar("_T")


class _Strange(Exception):
    """An answer that cannot be used, in words for people."""


_TROUBLE = (_Strange, OSError, http.client.HTTPException, ValueError)


def _nobody() -> None:
    """Nobody wants to stop."""


def _asked(question: Callable[[], _T], check: Callable[[], None]) -> _T:
    """The answer to a question, within its time; `check` is called meanwhile and raises to give up.

    The question runs in a thread of its own: a name server that is silent cannot be interrupted otherwise.
    """
    end = time.monotonic() + _WHOLE

    def tick(_: float) -> None:
        check()
        if time.monotonic() > end:
            raise _Strange(f"there was no whole answer in {_WHOLE:.0f} s")

    return watched(lambda _: question(), lambda _: None, tick, None)


# --- registries -----------------------------------------------------------------------------------------------------


def digest(image: ImageRef, check: Callable[[], None] = _nobody) -> str:
    """The manifest digest (`sha256:…`) that a tag stands for now; a list of platforms counts as one manifest.

    Plain HTTP is spoken with registries on this machine only. `check` is called now and then and raises to give up.
    Raises NetworkError: `image-not-found`, `registry-denied`, `registry-rate-limited`, `registry-unreachable`.
    """
    host, repository = _endpoint(image)
    url = f"{_scheme(host)}://{host}/v2/{repository}/manifests/{image.tag or 'latest'}"
    try:
        return _asked(lambda: _digest(url, repository), check)
    except urllib.error.HTTPError as error:
        raise _refused(image, error) from error
    except _TROUBLE as error:
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
        challenge = error.headers.get("WWW-Authenticate", "")
        token = _token(challenge, url, repository) if error.code == 401 else None
        if token is None:
            raise
    try:
        return _manifest_digest(url, headers | {"Authorization": f"Bearer {token}"})
    except urllib.error.HTTPError as error:
        if error.code == 401:  # so Docker Hub speaks of what it has not
            error.code = 404
        raise


def _manifest_digest(url: str, headers: dict[str, str]) -> str:
    with _open(urllib.request.Request(url, headers=headers, method="HEAD")) as response:
        said = response.headers.get("Docker-Content-Digest", "")
        if _DIGEST.fullmatch(said) and _is_manifest(response):
            return str(said)
    # Registries need not say it: the digest is that of the manifest's bytes.
    with _open(urllib.request.Request(url, headers=headers)) as response:
        if not _is_manifest(response):
            raise _Strange("it answers with no image manifest")
        return f"sha256:{hashlib.sha256(_all(response)).hexdigest()}"


def _is_manifest(response: Any) -> bool:
    """Whether the answer claims to be one: a portal that wants a login answers 200 to everything."""
    return response.headers.get_content_type() in _MANIFESTS


def _token(challenge: str, url: str, repository: str) -> str | None:
    """The token that Docker Hub and others give to anybody who wants to read a public image."""
    asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = asked.get("realm", "")
    if not challenge.lower().startswith("bearer") or not _may_lead_to(url, realm):
        return None
    query = {"scope": asked.get("scope", f"repository:{repository}:pull"), "service": asked.get("service", "")}
    place = urllib.parse.urlsplit(realm).netloc
    try:
        with _open(urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}")) as response:
            answer: Any = json.loads(_all(response))
    except urllib.error.HTTPError as error:
        if error.code == 429:
            raise
        raise _Strange(f"it sends us to {place} for a token, which answers {_reason(error)}") from error
    except ValueError as error:
        raise _Strange(f"it sends us to {place} for a token, which gives none") from error
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
        404: ("image-not-found", f"{where} has no image `{image}`, or it is private", "check name and tag"),
        429: ("registry-rate-limited", f"{where} has had too many requests from here", "wait, or set a mirror"),
    }
    code, message, fix = meanings.get(
        error.code,
        ("registry-unreachable", f"{where} answers {error.code} {error.reason} for `{image}`", "try again later"),
    )
    return NetworkError(Problem(code=code, message=message, fix=fix))


# --- git ------------------------------------------------------------------------------------------------------------


def commit(location: str, ref: str, check: Callable[[], None] = _nobody) -> str | None:
    """The commit that a tag or branch stands for now, as `git ls-remote` would say; None where there is no such ref.

    `check` is called now and then and raises to give up. Raises NetworkError (`source-unreachable`), for addresses
    that only git itself can reach as well (ssh).
    """
    try:
        refs = _asked(lambda: dict(_refs(location)), check)
        # As source.sh looks: for a tag first. `^{}` is what an annotated tag points to.
        wanted = (f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
        names = (name for full in wanted for name in (f"{full}^{{}}", full))
        found = next((refs[name] for name in names if name in refs), None)
        if found is not None and not COMMIT.fullmatch(found):
            raise _Strange("what it lists as its commit is none")
    except _TROUBLE as error:
        raise NetworkError(
            Problem(
                code="source-unreachable",
                message=f"{location} cannot be asked for {ref}: {_reason(error)}",
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
        raise _Strange(f"only http, https and git addresses can be asked, not {address.scheme or 'this one'}")


def _advertised(stream: Any) -> Iterator[tuple[str, str]]:
    """The refs of an advertisement (version 0): `<object> <name>` lines in packets of stated length."""
    lines, read = 0, 0
    while True:
        length = _exactly(stream, 4)
        if not _LENGTH.fullmatch(length):
            raise _Strange("it is no git server")
        size = int(length, 16)
        if size == 0 and lines:
            return
        line = _exactly(stream, size - 4) if size > 4 else b""
        read += max(size, len(length))
        if read > _MOST:
            raise _Strange("it lists more refs than can be meant")
        if line.startswith(b"ERR "):
            raise _Strange(line[4:].decode("utf-8", "replace").strip())
        if not line or line.startswith(b"#"):
            continue  # `# service=git-upload-pack` and the flush behind it come first over HTTP
        lines += 1
        found, _, name = line.partition(b"\0")[0].rstrip(b"\n").decode("utf-8", "replace").partition(" ")
        yield name, found


def _exactly(stream: Any, size: int) -> bytes:
    data = bytes(stream.read(size))
    if len(data) < size:
        raise _Strange("it is no git server, or it broke off")
    return data


# --- HTTP -----------------------------------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows where it may lead, with the same method, and tells secrets to nobody else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not _may_lead_to(req.full_url, newurl):
            fp.close()
            raise _Strange(f"it sends us to {newurl}, which is no address that it may send us to")
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None:
            new.method = req.get_method()  # HEAD would have become GET
            if new.host != req.host:
                new.remove_header("Authorization")
        return new


def _may_lead_to(url: str, other: str) -> bool:
    """Whether one address may send us to another: not out of HTTPS, and to this machine only from itself."""
    before, after = urllib.parse.urlsplit(url), urllib.parse.urlsplit(other)
    here = _is_here(after.hostname or "")
    if here and not _is_here(before.hostname or ""):
        return False
    return after.scheme == "https" or (
        after.scheme == before.scheme == "http" and (here or after.netloc == before.netloc)
    )


def _open(request: urllib.request.Request) -> Any:
    """Send a request, again where the server asks for patience, past the proxies where it goes to this machine."""
    tries = Retrying(
        retry=retry_if_exception(lambda error: _pause(error, 1) is not None),
        wait=_wait,
        stop=stop_after_attempt(_TRIES),
        reraise=True,
    )
    return tries(_open_once, request)


def _open_once(request: urllib.request.Request) -> Any:
    here = _is_here(urllib.parse.urlsplit(request.full_url).hostname or "")
    handlers = [urllib.request.ProxyHandler({})] if here else []
    try:
        return urllib.request.build_opener(_Redirects, *handlers).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()  # status and headers are all that is looked at
        raise


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return _pause(error, state.attempt_number) or 0.0


def _pause(error: BaseException | None, tries: int) -> float | None:
    """Seconds to wait before the same is asked again; None where that is of no use."""
    if not isinstance(error, urllib.error.HTTPError) or (error.code != 429 and error.code < 500):
        return None
    said = error.headers.get("Retry-After", "")
    # It may be a date as well, which few servers send.
    pause = float(said) if re.fullmatch(r"\d{1,9}", said) else float(tries)
    return pause if pause <= _LONGEST_PAUSE else None


def _reason(error: BaseException) -> object:
    """Why, in the operating system's words where it has some."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return "it broke off"
    if isinstance(error, ValueError | http.client.HTTPException) and not isinstance(error, OSError):
        return "its answer, or its address, cannot be understood"
    inner = getattr(error, "reason", None) or error
    return getattr(inner, "strerror", None) or inner


def _all(response: Any) -> bytes:
    data = bytes(response.read(_MOST + 1))
    if len(data) > _MOST:
        raise _Strange("the answer is too long")
    if response.length:  # what is missing of the length that was stated
        raise _Strange("it broke off")
    return data
