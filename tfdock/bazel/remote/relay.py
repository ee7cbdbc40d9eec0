"""The relay: the only way out of a compile container, from a Unix socket to one endpoint.

It runs in this process, so that what it adds never enters the container: TLS with this machine's certificates, and
credentials. When the endpoint is gone it answers every question with "not cached", so that Bazel goes on at once with
what it has, whichever version it is, instead of asking again 25,000 times.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.types import Endpoint

CONNECTIONS = 128
"""At once for each endpoint; Bazel makes 100. More would take this process's open files."""
CONNECT_TIMEOUT = 10.0
SILENCE = 30.0
"""Seconds without a word from an endpoint that owes one, after which it is taken to be gone. Bazel waits for 60."""
_PAUSES = (0.0, 0.3, 1.0, 2.0)
"""Seconds before each try to connect; after the last the endpoint is taken to be gone for the rest of the run."""

_HELD = 1 << 17
"""Bytes of a head, and half of those that wait to be read."""

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
TROUBLE = (OSError, EOFError, asyncio.LimitOverrunError, ValueError)
"""What a connection that breaks, or speaks in riddles, raises."""


_MOST_LARGE = 4
"""Large frames that are in memory at a time."""


@dataclass(eq=False)
class RelayLine:
    """One endpoint and what went over it: hits, and bytes each way. `lost` says why it is no longer used.

    `headers` are credentials: they are in no message and no repr.
    """

    endpoint: Endpoint
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    upload: bool = True
    executes: bool = False
    """It is an executor's: that gets what its actions read, even where there are no uploads."""
    hits: int = 0
    sent: int = 0
    received: int = 0
    lost: str | None = None
    no_uploads: bool = False
    """The endpoint took a question but no upload."""
    trouble: str | None = None
    """What it answered that is neither what was asked for nor that it has none."""
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_LARGE), repr=False)
    """Held while a frame of up to 16 MiB is read: a container may open many connections."""

    async def connect(self) -> tuple[Reader, Writer]:
        """A new connection to the endpoint; raises OSError, and then the endpoint is lost."""
        error: Exception | None = None
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            if self.lost:
                break
            try:
                return await asyncio.wait_for(self._open(), CONNECT_TIMEOUT)
            except ssl.SSLCertVerificationError as cause:
                error = cause
                break
            except OSError as cause:
                error = cause
        self.lost = self.lost or reason(error)
        raise ConnectionError(self.lost)

    async def _open(self) -> tuple[Reader, Writer]:
        context = tls(self.endpoint)
        return await asyncio.open_connection(
            self.endpoint.host.strip("[]"),
            self.endpoint.port,
            ssl=context,
            server_hostname=self.endpoint.host.strip("[]") if context else None,
            limit=_HELD,
        )


def tls(endpoint: Endpoint) -> ssl.SSLContext | None:
    """How this machine checks the endpoint's certificate (`SSL_CERT_FILE`, else the system's); None without TLS."""
    if not endpoint.tls:
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"] if endpoint.http else ["h2"])
    return context


def reason(error: Exception | None) -> str:
    """Why a connection failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS as it should"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number else "the connection broke"


async def closed(writer: Writer) -> None:
    """Close one side, whatever state it is in."""
    writer.close()
    try:
        with suppress(*TROUBLE):
            await asyncio.wait_for(writer.wait_closed(), 1)
    finally:
        writer.transport.abort()


Serve = Callable[[RelayLine, Reader, Writer], Awaitable[None]]


@contextmanager
def running(lines: dict[str, RelayLine], folder: Path) -> Iterator[None]:
    """Relay while the context lasts: `<folder>/<name>` is the socket of each line."""
    from tfdock.bazel.remote import relay_grpc, relay_http

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tfdock-relay", daemon=True)
    thread.start()
    servers: list[asyncio.Server] = []
    try:
        for name, line in lines.items():
            serve: Serve = relay_http.serve if line.endpoint.http else relay_grpc.serve
            servers.append(asyncio.run_coroutine_threadsafe(_listen(line, serve, folder, name), loop).result())
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_end(servers), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        for name in lines:
            (folder / name).unlink(missing_ok=True)


async def _listen(line: RelayLine, serve: Serve, folder: Path, name: str) -> asyncio.Server:
    free = CONNECTIONS

    async def connected(reader: Reader, writer: Writer) -> None:
        nonlocal free
        free -= 1
        try:
            if free >= 0:
                await serve(line, reader, writer)
        except (*TROUBLE, asyncio.CancelledError):
            # The client sees its connection end, and asks again or does without. Of a task that was cancelled
            # asyncio before 3.12 prints a traceback.
            pass
        finally:
            free += 1
            await closed(writer)

    listener = socket.socket(socket.AF_UNIX)
    # A socket's path ends at 107 characters, and a cache folder may lie deeper: by way of its folder it does not.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{descriptor}/{name}"
        listener.bind(path)
        Path(path).chmod(0o600)  # who may connect may use the credentials
    finally:
        os.close(descriptor)
    return await asyncio.start_unix_server(connected, sock=listener, limit=_HELD)


async def _end(servers: list[asyncio.Server]) -> None:
    """Stop listening, and cancel every connection of the loop."""
    for server in servers:
        server.close()
    await _turns()  # a task that is cancelled before it begins closes nothing
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _turns()


async def _turns() -> None:
    """Let the loop do what is due: what was accepted gets its task, and what is being closed closes its socket."""
    for _ in range(5):
        await asyncio.sleep(0)
