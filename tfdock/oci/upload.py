"""A blob on its way into a registry, in chunks, from where the registry says after a request that broke."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
from dataclasses import dataclass
from typing import Any, BinaryIO

from tfdock.oci import http
from tfdock.oci.http import Broken, StrangeAnswer
from tfdock.oci.manifest import Descriptor
from tfdock.oci.registry_session import Session

TRIES = 5
"""For one chunk."""
CHUNK = 8 << 20
"""Bytes sent at once, and lost where a connection breaks."""
_SLOWEST = 10e6
"""Bytes that a registry reads in a second."""


@dataclass
class BlobUpload:
    """A blob on its way: what the registry calls the upload, and how much of it has arrived for sure."""

    session: Session
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
        elif self.doubt and self.session.holds(self.blob.digest):
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
        headers = self._ask("POST", f"{self.session.url}/blobs/uploads/", data=b"")
        if "Location" not in headers:
            raise StrangeAnswer("it does not say where an upload goes")
        self._moved(headers)

    def _chunk(self) -> None:
        self.data.seek(self.sent)
        data = self.data.read(min(CHUNK, self.blob.size - self.sent))
        if not data:
            raise StrangeAnswer("the file that is sent has become shorter")
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
        self.session.once("PUT", url, data=b"", silence=http.TIMEOUT + self.blob.size / _SLOWEST).close()
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
        with self.session.once(method, url, headers, data) as response:
            return response.headers

    def _moved(self, headers: Any) -> None:
        before = self.place or self.session.url
        place = urllib.parse.urljoin(before, headers.get("Location", before))
        if not http.may_lead_to(before, place):
            raise StrangeAnswer("it sends us to where it may not send us")
        self.place = place
