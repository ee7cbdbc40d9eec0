"""A registry over HTTP (OCI distribution specification 1.1): manifests and blobs of one repository, read and written.

What is read has the digest it is asked for by, or is refused. Reading and writing both go on where they broke off.
Logins are those of `docker login`, and are shown to nobody but the registry and whom it names for its tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

from tfdock.do.registry import web
from tfdock.do.registry.credentials import Login, login_for, token_request
from tfdock.do.registry.web import TROUBLE, Broken, Strange
from tfdock.errors import NetworkError, Problem, VerificationFailed
from tfdock.inspect import oci
from tfdock.inspect.oci import Descriptor
from tfdock.model import Digest

TRIES = 5
"""For one chunk of a blob, or a stretch of one that is read; other requests have `web.TRIES`."""
CHUNK = 8 << 20
"""Bytes sent at once, and lost where a connection breaks."""
_READ = 1 << 18
_PROGRESS = 1 << 20
"""Bytes that a broken download must have brought to count as more than a failed try."""
_SLOWEST = 10e6
"""Bytes that a registry reads in a second."""
_WHOLE = 120.0
"""Seconds for a manifest: a registry that sends a byte now and then is never silent."""
_MOST_TOKEN = 1 << 20
"""Bytes of the answer that holds a token."""
_HUB = "docker.io"
_DIGEST = "Docker-Content-Digest"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A manifest as a registry keeps it: its bytes, their media type and their digest."""

    media_type: str
    data: bytes
    digest: Digest


@dataclass
class Repository:
    """A repository of a registry. `login` is asked for once the registry wants to know who we are.

    `check` is called now and then, and raises to stop. Every method raises NetworkError: `image-not-found`,
    `registry-denied`, `registry-rate-limited`, `registry-unreachable`, `credentials-unreadable`; and
    VerificationFailed (`registry-damaged-content`).
    """

    registry: str
    name: str
    login: Callable[[str], Login | None] = login_for
    check: Callable[[], None] = web.nobody
    _authorization: str | None = field(default=None, repr=False)

    @property
    def _url(self) -> str:
        """Docker Hub has other names inside."""
        host, name = self.registry, self.name
        if host == _HUB:
            host, name = "registry-1.docker.io", name if "/" in name else f"library/{name}"
        return f"{web.scheme(host)}://{host}/v2/{name}"

    def _named(self, reference: str) -> str:
        name = self.name if self.registry == _HUB else f"{self.registry}/{self.name}"
        return f"`{name}{'@' if oci.is_digest(reference) else ':'}{reference}`"

    @contextmanager
    def told(self, what: str, *, writing: bool = False) -> Iterator[None]:
        """Turn what goes wrong with `what` into words."""
        try:
            yield
        except urllib.error.HTTPError as error:
            raise self._refused(what, error, writing=writing) from error
        except TROUBLE as error:
            verb = "cannot be given" if writing else "cannot be asked for"
            mirror = "" if writing else ", or set a registry mirror"
            raise NetworkError(
                Problem(
                    code="registry-unreachable",
                    message=f"the registry {self.registry} {verb} {what}: {web.reason(error)}",
                    fix=f"check the network and proxies{mirror}; "
                    "a registry elsewhere than on this machine must speak HTTPS",
                )
            ) from error

    def _refused(self, what: str, error: urllib.error.HTTPError, *, writing: bool) -> NetworkError:
        where, login = f"the registry {self.registry}", f"log in: `docker login {self.registry}`"
        verb = "take" if writing else "show"
        meanings = {
            401: ("registry-denied", f"{where} does not {verb} {what} without a login, or not with this one", login),
            403: ("registry-denied", f"{where} refuses to {verb} {what}", f"{login}, as somebody who may"),
            404: ("image-not-found", f"{where} has no {what}, or it is private", f"check name and tag; or {login}"),
            429: ("registry-rate-limited", f"{where} has had too many requests from here", "wait, or set a mirror"),
        }
        if writing:
            no_place = f"{where} has no repository `{self.name}` that takes {what}, or it is private"
            meanings[404] = ("image-not-found", no_place, f"check the name, make the repository there; or {login}")
        again = "try again later" if error.code >= 500 else "ask who runs the registry why it does not take that"
        code, message, fix = meanings.get(
            error.code, ("registry-unreachable", f"{where} answers {error.code} {error.reason} for {what}", again)
        )
        said = web.error_codes(error)
        return NetworkError(Problem(code=code, message=message, why=f"it says {said}" if said else "", fix=fix))

    # --- manifests ----------------------------------------------------------------------------------------------

    def digest(self, reference: str) -> Digest:
        """The digest of the manifest that a tag stands for now; a list of platforms counts as one."""
        with self.told(self._named(reference)):
            url = f"{self._url}/manifests/{reference}"
            with self._send("HEAD", url, {"Accept": ", ".join(oci.MANIFESTS)}) as response:
                said = response.headers.get(_DIGEST, "")
                if oci.is_digest(said) and _is_manifest(response):
                    return Digest(said)
            # Registries need not say it: the digest is that of the manifest's bytes.
            return self._manifest(url).digest

    def manifest(self, reference: str) -> Found | None:
        """The manifest of a tag or digest; None where the repository has none of that name, or no repository is."""
        with self.told(self._named(reference)):
            try:
                found = self._manifest(f"{self._url}/manifests/{reference}")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                raise
        if oci.is_digest(reference) and reference != found.digest:
            raise self._damaged(reference, f"its bytes have {found.digest}")
        return found

    def _manifest(self, url: str) -> Found:
        def take() -> Found:
            with self._once("GET", url, {"Accept": ", ".join(oci.MANIFESTS)}) as response:
                if not _is_manifest(response):
                    raise Strange("it answers with no image manifest")
                data, said = web.whole(response, oci.MOST), response.headers.get(_DIGEST, "")
                found = Found(media_type=response.headers.get_content_type(), data=data, digest=oci.digest(data))
            if oci.is_digest(said) and said != found.digest:
                raise self._damaged(said, f"its bytes have {found.digest}")
            return found

        return self._again(lambda: web.asked(take, self.check, _WHOLE))

    def put_manifest(self, reference: str, media_type: str, data: bytes) -> Digest:
        """Make a tag stand for a manifest whose blobs are there; its digest."""
        with self.told(self._named(reference), writing=True):
            self._send("PUT", f"{self._url}/manifests/{reference}", {"Content-Type": media_type}, data).close()
        return oci.digest(data)

    # --- blobs --------------------------------------------------------------------------------------------------

    def small_blob(self, blob: Descriptor, most: int) -> bytes:
        """A blob of at most so many bytes, whole."""
        if blob.size > most:
            raise self._damaged(blob.digest, f"it should have at most {most} bytes, not {blob.size}")
        return b"".join(self.blob(blob))

    def blob(self, blob: Descriptor) -> Iterator[bytes]:
        """The bytes of a blob as they come, from where they broke off if they did.

        That they are the right ones is known only when the last has been taken: damaged ones raise then.
        """
        sha256, got, fruitless = hashlib.sha256(), 0, 0
        with self.told(f"the blob {blob.digest}"):
            while got < blob.size:
                before = got
                try:
                    for piece in self._pieces(blob, got):
                        self.check()
                        got += len(piece)
                        sha256.update(piece)
                        yield piece
                except TROUBLE as error:
                    fruitless = 1 if got - before >= _PROGRESS else fruitless + 1
                    pause = web.pause(error, fruitless, breaks=True)
                    if pause is None or fruitless >= TRIES:
                        raise
                    web.rest(pause, self.check)
        if f"sha256:{sha256.hexdigest()}" != blob.digest:
            raise self._damaged(blob.digest, f"its bytes have sha256:{sha256.hexdigest()}")

    def _pieces(self, blob: Descriptor, start: int) -> Iterator[bytes]:
        """A blob from its byte `start` on, in one request; raises Broken where it ends early."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._once("GET", f"{self._url}/blobs/{blob.digest}", headers) as response:
            left = blob.size - start
            if start and response.status != 206:  # not every registry goes on in the middle
                self._skipped(response, start)
            elif start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise Strange("it goes on elsewhere than it was asked to")
            while left:
                piece = response.read(min(_READ, left))
                if not piece:
                    raise Broken
                left -= len(piece)
                yield piece

    def _skipped(self, response: Any, count: int) -> None:
        while count:
            self.check()
            piece = response.read(min(_READ, count))
            if not piece:
                raise Broken
            count -= len(piece)

    def has_blob(self, digest: str) -> bool:
        """Whether a blob is there already."""
        with self.told(f"the blob {digest}"):
            try:
                self._send("HEAD", f"{self._url}/blobs/{digest}").close()
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return False
                raise
        return True

    def upload(self, blob: Descriptor, data: BinaryIO) -> bool:
        """Send a blob unless it is there; True if it was sent."""
        if self.has_blob(blob.digest):
            return False
        with self.told(f"the blob {blob.digest}", writing=True):
            upload = _Upload(self, blob, data)
            while not upload.done:
                self.check()
                self._again(upload.step, TRIES)
        return True

    def _damaged(self, digest: str, why: str) -> VerificationFailed:
        return VerificationFailed(
            Problem(
                code="registry-damaged-content",
                message=f"the registry {self.registry} serves damaged content for `{self.name}`: {digest}",
                why=why,
                fix="tell who runs the registry; asking again fetches the same bytes",
            )
        )

    # --- requests -----------------------------------------------------------------------------------------------

    def _send(self, method: str, url: str, headers: dict[str, str] | None = None, data: bytes | None = None) -> Any:
        """A request that may be made twice: again where the connection breaks."""
        return self._again(lambda: self._once(method, url, headers, data))

    def _again(self, do: Callable[[], _T], tries: int = web.TRIES) -> _T:
        return web.again(do, tries=tries, breaks=True, check=self.check)

    def _once(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        data: bytes | None = None,
        silence: float = web.TIMEOUT,
    ) -> Any:
        """One request, and the same once more as whom the registry wants to know."""
        shown = self._authorization
        try:
            return web.send_once(self._request(method, url, headers, data), silence)
        except urllib.error.HTTPError as error:
            # Whom the registry sends us to, as to a store of blobs, gets no login, whatever he asks for.
            if error.code != 401 or not self._is_own(error.url):
                raise
            login = self._authorize(error.headers.get("WWW-Authenticate", ""))
            if self._authorization in (None, shown):
                raise
        try:
            return web.send_once(self._request(method, url, headers, data), silence)
        except urllib.error.HTTPError as error:
            if error.code == 401 and login is None and method in ("GET", "HEAD"):
                error.code = 404  # so Docker Hub speaks of what it has not
            raise

    def _request(
        self, method: str, url: str, headers: dict[str, str] | None, data: bytes | None
    ) -> urllib.request.Request:
        request = urllib.request.Request(url, data, headers or {}, method=method)
        if self._authorization and self._is_own(url):
            request.add_header("Authorization", self._authorization)
        return request

    def _is_own(self, url: str) -> bool:
        """Whether it is the registry itself that answers there."""
        return urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(self._url).netloc

    def _authorize(self, challenge: str) -> Login | None:
        """Do what a challenge asks for, if that can be done; the login that it took."""
        login = self.login(self.registry)
        if challenge.lower().startswith("basic") and login and login.password:
            self._authorization = login.basic
        elif challenge.lower().startswith("bearer"):
            token = self._token(dict(re.findall(r'\b(\w+)="([^"]*)"', challenge)), login)
            self._authorization = f"Bearer {token}" if token else self._authorization
        return login

    def _token(self, asked: dict[str, str], login: Login | None) -> str | None:
        """The token that stands for a login, or that Docker Hub and others give to anybody who wants to read."""
        realm = asked.get("realm", "")
        if not web.may_lead_to(self._url, realm):
            return None
        scope = asked.get("scope", f"repository:{self.name}:pull")
        request = token_request(realm, {"scope": scope, "service": asked.get("service", "")}, login)
        place = urllib.parse.urlsplit(realm).netloc
        try:
            with web.send(request) as response:
                answer: Any = json.loads(web.whole(response, _MOST_TOKEN))
        except urllib.error.HTTPError as error:
            if error.code == 429 or (error.code in (401, 403) and login):
                raise
            raise Strange(f"it sends us to {place} for a token, which answers {web.reason(error)}") from error
        except (ValueError, RecursionError) as error:
            raise Strange(f"it sends us to {place} for a token, which gives none") from error
        token = answer.get("token") or answer.get("access_token") if isinstance(answer, dict) else None
        return token if isinstance(token, str) and token.isascii() and token.isprintable() else None


@dataclass
class _Upload:
    """A blob on its way: what the registry calls the upload, and how much of it has arrived for sure."""

    repository: Repository
    blob: Descriptor
    data: BinaryIO
    sent: int = 0
    place: str | None = None
    doubt: bool = False
    """The last request broke: how much has arrived is to be asked."""
    lost: int = 0
    """Times that the registry knew nothing of the upload any more, or had got another part of it."""
    done: bool = False

    def step(self) -> None:
        """Send the next chunk, or have all of it kept; after a request that broke, from where the registry says."""
        if self.doubt and self.sent < self.blob.size:
            self._find_out()
        elif self.doubt and self.repository.has_blob(self.blob.digest):
            self.done = True  # it was the answer that was lost
            return
        if self.place is None:
            self._begin()
        self.doubt = True
        try:
            self._chunk() if self.sent < self.blob.size else self._close()
        except urllib.error.HTTPError as error:
            if error.code not in (404, 416) or self.lost == TRIES - 1:
                raise
            self.lost += 1
            if error.code == 404 or self.sent == self.blob.size:
                self._forget()
            raise Broken from error
        self.doubt = False

    def _begin(self) -> None:
        headers = self._ask("POST", f"{self.repository._url}/blobs/uploads/", data=b"")
        if "Location" not in headers:
            raise Strange("it does not say where an upload goes")
        self._moved(headers)

    def _chunk(self) -> None:
        self.data.seek(self.sent)
        data = self.data.read(min(CHUNK, self.blob.size - self.sent))
        if not data:
            raise Strange("the file that is sent has become shorter")
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{self.sent}-{self.sent + len(data) - 1}",
        }
        self._moved(self._ask("PATCH", self._place, headers, data))
        self.sent += len(data)

    def _close(self) -> None:
        """Let the registry check what it has got, and keep it."""
        parts = urllib.parse.urlsplit(self._place)
        query = [*urllib.parse.parse_qsl(parts.query, keep_blank_values=True), ("digest", self.blob.digest)]
        url = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))
        # It may want to read all that it has got once more.
        self.repository._once("PUT", url, data=b"", silence=web.TIMEOUT + self.blob.size / _SLOWEST).close()
        self.done = True

    def _forget(self) -> None:
        """Begin anew."""
        self.sent, self.place, self.doubt = 0, None, False

    @property
    def _place(self) -> str:
        assert self.place is not None
        return self.place

    def _find_out(self) -> None:
        """How much has arrived; where the registry cannot say, the upload starts anew."""
        try:
            headers = self._ask("GET", self._place)
        except urllib.error.HTTPError as error:
            if error.code == 429 or error.code >= 500:
                raise
            self._forget()
            return
        arrived = re.fullmatch(r"(?:bytes=)?0-(\d{1,15})", headers.get("Range", ""))
        # `0-0` may be one byte or none.
        if arrived and 0 < int(arrived[1]) < self.blob.size:
            self.sent = int(arrived[1]) + 1
            self._moved(headers)
        else:
            self._forget()

    def _ask(self, method: str, url: str, headers: dict[str, str] | None = None, data: bytes | None = None) -> Any:
        with self.repository._once(method, url, headers, data) as response:
            return response.headers

    def _moved(self, headers: Any) -> None:
        before = self.place or self.repository._url
        place = urllib.parse.urljoin(before, headers.get("Location", before))
        if not web.may_lead_to(before, place):
            raise Strange("it sends us to where it may not send us")
        self.place = place


def _is_manifest(response: Any) -> bool:
    """Whether the answer claims to be one: a portal that wants a login answers 200 to everything."""
    return response.headers.get_content_type() in oci.MANIFESTS
