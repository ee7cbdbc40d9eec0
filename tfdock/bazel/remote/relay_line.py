"""The connections to one remote endpoint, with their credentials and traffic."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field

from tfdock.types import Endpoint

CONNECT_TIMEOUT = 10.0
SILENCE = 30.0  #: Seconds without an answer after which an endpoint counts as lost. Bazel itself waits 60 seconds.
#: Seconds before each try to connect. After the last try, the endpoint counts as lost for the rest of the run.
_PAUSES = (0.0, 0.3, 1.0, 2.0)

BUFFER = 1 << 17  #: The most bytes of a message's headers. Twice as many received bytes may wait to be read.

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
#: Errors of a broken connection, or of a peer that violates the protocol.
CONNECTION_ERRORS = (OSError, EOFError, asyncio.LimitOverrunError, ValueError)
_MOST_LARGE = 4  #: How many large frames may be in memory at once.


@dataclass(eq=False)
class RelayLine:
    """One endpoint and its traffic: hits, and bytes in each direction. `lost` says why the endpoint is not used.

    `headers` are credentials: no message and no repr contains them.
    """

    endpoint: Endpoint
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    upload: bool = True
    #: Whether the endpoint is an executor. An executor gets the inputs of its actions even if uploads are off.
    executes: bool = False
    hits: int = 0
    sent: int = 0
    received: int = 0
    lost: str | None = None
    no_uploads: bool = False  #: Whether the endpoint answers lookups but refused an upload.
    trouble: str | None = None  #: An answer that is neither a result nor "not found".
    #: Limits how many frames of up to 16 MiB are read at once: a container may open many connections.
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_LARGE), repr=False)

    async def connect(self) -> tuple[Reader, Writer]:
        """Return a new connection to the endpoint. If no connection is possible, set `lost` and raise OSError."""
        error: Exception | None = None
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            # Another connection has found the endpoint lost meanwhile.
            if self.lost:
                break
            try:
                return await asyncio.wait_for(self._open(), CONNECT_TIMEOUT)
            # Do not retry: a certificate does not become trusted later.
            except ssl.SSLCertVerificationError as cause:
                error = cause
                break
            # The timeout is an OSError too: since Python 3.11 it is the built-in TimeoutError.
            except OSError as cause:
                error = cause
        self.lost = self.lost or failure_reason(error)
        raise ConnectionError(self.lost)

    async def _open(self) -> tuple[Reader, Writer]:
        context = tls(self.endpoint)
        return await asyncio.open_connection(
            # Brackets belong to an address in text: sockets and certificates know IPv6 without them.
            self.endpoint.host.strip("[]"),
            self.endpoint.port,
            ssl=context,
            server_hostname=self.endpoint.host.strip("[]") if context else None,
            limit=BUFFER,
        )


def tls(endpoint: Endpoint) -> ssl.SSLContext | None:
    """Return the TLS context for the endpoint, or None without TLS.

    Certificates are checked against `SSL_CERT_FILE`, or without this variable against the system's certificates.
    """
    if not endpoint.tls:
        return None
    context = ssl.create_default_context()
    # RFC 9113, section 3.2: over TLS, both sides agree on `h2` by ALPN.
    context.set_alpn_protocols(["http/1.1"] if endpoint.http else ["h2"])
    return context


def failure_reason(error: Exception | None) -> str:
    """Return why a connection failed, in words."""
    # Check the narrowest type first: each of these is an OSError.
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "the server does not use TLS correctly"
    if isinstance(error, socket.gaierror):
        return "the host name is unknown"
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number else "the connection broke"


async def close_writer(writer: Writer) -> None:
    """Close one side of a connection in any state."""
    writer.close()
    try:
        with suppress(*CONNECTION_ERRORS):
            # TLS waits for the peer's closing message, which may never come.
            await asyncio.wait_for(writer.wait_closed(), 1)
    finally:
        writer.transport.abort()
