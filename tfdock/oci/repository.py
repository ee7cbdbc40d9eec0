"""Read and write the manifests and blobs of one repository (OCI distribution specification 1.1).

Every digest is checked, and content that does not match is refused. Uploads go in chunks. Broken transfers resume.
Logins are sent only to the registry and to the registry's token service.
"""

from __future__ import annotations

import hashlib
import io
import re
import urllib.error
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from tfdock.errors import DamagedContent
from tfdock.host.supervise import Output
from tfdock.oci import http
from tfdock.oci import manifest as oci
from tfdock.oci.http import HTTP_ERRORS, StrangeAnswer, TruncatedAnswer
from tfdock.oci.manifest import Descriptor
from tfdock.oci.registry_session import HUB, Session
from tfdock.types import Digest

TRIES = 5  #: Tries for one chunk.
CHUNK = 8 << 20  #: Bytes sent at once, and lost if a connection breaks.
_SLOWEST = 10e6  #: Bytes per second that the slowest registry reads.


@dataclass
class BlobUpload:
    """The upload of a blob: its address at the registry, and how many bytes have certainly arrived."""

    session: Session
    blob: Descriptor
    data: BinaryIO
    sent: int = 0
    place: str = ""
    doubt: bool = False  #: Whether the last request broke. Then the registry must be asked how much has arrived.
    lost: int = 0  #: How often the registry lost the upload, or had received another part of the blob.
    done: bool = False

    def step(self) -> None:
        """Send the next chunk, or complete the upload. After a broken request, continue where the registry says."""
        # Ask before sending again: the broken request may have arrived.
        if self.doubt and self.sent < self.blob.size:
            self._ask_progress()
        elif self.doubt and self.session.holds(self.blob.digest):
            self.done = True  # only the answer was lost
            return
        if not self.place:
            self._begin()
        # Set first: if the request below breaks, it is unknown how much has arrived.
        self.doubt = True
        try:
            self._chunk() if self.sent < self.blob.size else self._close()
        except urllib.error.HTTPError as error:
            # 404: the registry forgot the upload. 416: it has received another part than expected.
            if error.code not in (404, 416) or self.lost == TRIES - 1:
                raise
            self.lost += 1
            if error.code == 404 or self.sent == self.blob.size:
                self._restart()
            raise TruncatedAnswer from error
        self.doubt = False

    def _begin(self) -> None:
        # OCI distribution specification, "Pushing a blob in chunks": POST, a PATCH for each chunk, PUT.
        headers = self._ask("POST", f"{self.session.url}/blobs/uploads/", data=b"")
        if "Location" not in headers:
            raise StrangeAnswer("it sends no address for the upload")
        self._follow_location(headers)

    def _chunk(self) -> None:
        # A retry begins after the bytes that the registry has, not where the last try ended.
        self.data.seek(self.sent)
        data = self.data.read(min(CHUNK, self.blob.size - self.sent))
        if not data:
            raise StrangeAnswer("the file that is sent has become shorter")
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{self.sent}-{self.sent + len(data) - 1}",
        }
        self._follow_location(self._ask("PATCH", self.place, headers, data))
        self.sent += len(data)

    def _close(self) -> None:
        """Complete the upload: the registry checks and stores the blob."""
        parts = urllib.parse.urlsplit(self.place)
        # The address may have a query of its own, with the registry's state of the upload.
        query = [*urllib.parse.parse_qsl(parts.query, keep_blank_values=True), ("digest", self.blob.digest)]
        url = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))
        # The registry may read the whole blob once more.
        self.session.send_once("PUT", url, data=b"", more=self.blob.size / _SLOWEST).close()
        self.done = True

    def _restart(self) -> None:
        """Start the upload from its beginning."""
        self.sent, self.place, self.doubt = 0, "", False

    def _ask_progress(self) -> None:
        """Ask how much has arrived. If the registry cannot say, the upload starts from its beginning."""
        try:
            headers = self._ask("GET", self.place)
        except urllib.error.HTTPError as error:
            # The registry is busy, and may still have the upload.
            if error.code == 429 or error.code >= 500:
                raise
            self._restart()
            return
        # The specification has `0-N`; some registries put `bytes=` before it.
        match = re.fullmatch(r"(?:bytes=)?0-(\d{1,15})", headers.get("Range", ""))
        # `0-0` may be one byte or none.
        if match and 0 < int(match[1]) < self.blob.size:
            self.sent = int(match[1]) + 1
            self._follow_location(headers)
        else:
            self._restart()

    def _ask(self, method: str, url: str, headers: dict[str, str] | None = None, data: bytes | None = None) -> Any:
        with self.session.send_once(method, url, headers, data) as response:
            return response.headers

    def _follow_location(self, headers: Any) -> None:
        before = self.place or self.session.url
        # `Location` may be relative (RFC 9110, 10.2.2).
        place = urllib.parse.urljoin(before, headers.get("Location", before))
        # `may_lead_to` asks a name server, which may not answer.
        if not http.ask(lambda: http.may_lead_to(before, place), self.session.check, http.WHOLE):
            raise StrangeAnswer("it redirects to an address that is not allowed")
        self.place = place


_READ = 1 << 18
_PROGRESS = 1 << 20  #: If a download breaks after this many bytes, it does not count as a failed try.
_DIGEST = "Docker-Content-Digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundManifest:
    """A manifest in a registry: its bytes, their media type and their digest."""

    media_type: str
    data: bytes
    digest: Digest


@dataclass
class Repository(Session):
    """The manifests and blobs of a repository.

    Every method raises NetworkError: `image-not-found`, `registry-denied`, `registry-rate-limited`,
    `registry-refused`, `registry-unreachable`, `credentials-unreadable`; and DamagedContent
    (`registry-damaged-content`).
    """

    def _describe(self, reference: str) -> str:
        name = self.name if self.registry == HUB else f"{self.registry}/{self.name}"
        return f"`{name}{'@' if oci.is_digest(reference) else ':'}{reference}`"

    # --- manifests ----------------------------------------------------------------------------------------------

    def digest(self, reference: str) -> Digest:
        """Return the digest of the manifest that a tag stands for now; a list of platforms counts as one manifest."""
        with self.error_context(self._describe(reference)):
            url = f"{self.url}/manifests/{reference}"
            with self.send("HEAD", url, {"Accept": ", ".join(oci.MANIFESTS)}) as response:
                header = response.headers.get(_DIGEST, "")
                if oci.is_digest(header) and _is_manifest(response):
                    return Digest(header)
            # Registries need not send this header. The digest is that of the manifest's bytes.
            return self._manifest(url).digest

    def manifest(self, reference: str) -> FoundManifest | None:
        """Return the manifest of a tag or digest; None if the manifest or the repository does not exist."""
        with self.error_context(self._describe(reference)):
            try:
                manifest = self._manifest(f"{self.url}/manifests/{reference}")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                raise
        # The digest of the bytes counts, whatever the headers say.
        if oci.is_digest(reference) and reference != manifest.digest:
            raise self._damaged_error(reference, f"its bytes have the digest {manifest.digest}")
        return manifest

    def _manifest(self, url: str) -> FoundManifest:
        def fetch() -> FoundManifest:
            with self.send_once("GET", url, {"Accept": ", ".join(oci.MANIFESTS)}) as response:
                if not _is_manifest(response):
                    raise StrangeAnswer("its answer is not an image manifest")
                data, header = http.read_all(response, oci.MOST), response.headers.get(_DIGEST, "")
                manifest = FoundManifest(
                    media_type=response.headers.get_content_type(), data=data, digest=oci.digest(data)
                )
            # A tag does not identify the bytes, but the registry's header does.
            if oci.is_digest(header) and header != manifest.digest:
                raise self._damaged_error(header, f"its bytes have the digest {manifest.digest}")
            return manifest

        return self.retry(lambda: http.ask(fetch, self.check, http.WHOLE))

    def put_manifest(self, reference: str, media_type: str, data: bytes) -> Digest:
        """Make a tag stand for a manifest whose blobs are there; return its digest."""
        with self.error_context(self._describe(reference), writing=True):
            self.send("PUT", f"{self.url}/manifests/{reference}", {"Content-Type": media_type}, data).close()
        return oci.digest(data)

    # --- blobs --------------------------------------------------------------------------------------------------

    def small_blob(self, blob: Descriptor, most: int) -> bytes:
        """Return a whole blob of at most `most` bytes."""
        # Check before the request: a stranger states the size, and the blob goes into memory.
        if blob.size > most:
            raise self._damaged_error(blob.digest, f"it should have at most {most} bytes, not {blob.size}")
        return b"".join(self.blob(blob))

    def blob(self, blob: Descriptor, begun: Iterable[bytes] = ()) -> Iterator[bytes]:
        """Yield the bytes of a blob as they arrive, and continue after a broken transfer.

        The digest is checked only after the last byte; only then do damaged bytes raise an error. `begun` are the
        first bytes, from an earlier transfer. They are not fetched again, but belong to the digest.
        """
        sha256, received, fruitless = hashlib.sha256(), 0, 0
        for piece in begun:
            self.check()
            received += len(piece)
            sha256.update(piece)
        with self.error_context(f"the blob {blob.digest}"):
            while received < blob.size:
                before = received
                try:
                    for piece in http.receive(partial(self._read_blob, blob, received), self.check):
                        received += len(piece)
                        sha256.update(piece)
                        yield piece
                except HTTP_ERRORS as error:
                    # A connection that breaks often still succeeds, as long as each try brings enough bytes.
                    fruitless = 1 if received - before >= _PROGRESS else fruitless + 1
                    delay = http.retry_delay(error, fruitless, breaks=True)
                    if delay is None or fruitless >= TRIES:
                        raise
                    http.wait(delay, self.check)
        if f"sha256:{sha256.hexdigest()}" != blob.digest:
            raise self._damaged_error(blob.digest, f"its bytes have the digest sha256:{sha256.hexdigest()}")

    def _read_blob(self, blob: Descriptor, start: int, output: Output) -> None:
        """Pass a blob from byte `start` on to `output`, in one request; raise TruncatedAnswer if it ends early."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self.send_once("GET", f"{self.url}/blobs/{blob.digest}", headers) as response:
            left = blob.size - start
            if start and response.status != 206:  # some registries ignore `Range`
                self._skip(response, start)
            # A proxy may answer with another part, which would give a wrong digest after the whole download.
            elif start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise StrangeAnswer("it resumes at another offset than requested")
            while left:
                # `read1` returns what has arrived: on a slow line, each piece is stored and shown at once.
                piece = response.read1(min(_READ, left))
                if not piece:
                    raise TruncatedAnswer
                left -= len(piece)
                output(piece)

    def _skip(self, response: Any, count: int) -> None:
        while count:
            self.check()
            piece = response.read(min(_READ, count))
            if not piece:
                raise TruncatedAnswer
            count -= len(piece)

    def upload(self, blob: Descriptor, data: BinaryIO | bytes) -> bool:
        """Send a blob unless the registry has it; return whether it was sent."""
        # "Checking if content exists in the registry": layers are shared by images and pushes.
        with self.error_context(f"the blob {blob.digest}"):
            if self.holds(blob.digest):
                return False
        with self.error_context(f"the blob {blob.digest}", writing=True):
            upload = BlobUpload(self, blob, io.BytesIO(data) if isinstance(data, bytes) else data)
            while not upload.done:
                self.check()
                self.retry(upload.step, TRIES)
        return True

    def _damaged_error(self, digest: str, why: str) -> DamagedContent:
        return DamagedContent.of(
            "registry-damaged-content",
            f"the registry {self.registry} serves damaged content for `{self.name}`: {digest}",
            "report it to the operator of the registry; a retry would fetch the same bytes",
            why=why,
        )


def _is_manifest(response: Any) -> bool:
    """Return whether the answer claims to be a manifest: a login portal answers 200 to everything."""
    return response.headers.get_content_type() in oci.MANIFESTS
