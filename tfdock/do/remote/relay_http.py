"""HTTP/1.1 through the relay: each request with the endpoint's own host, path and credentials; answers as they are.

Bazel puts one request at a time on a connection. Heads are read, bodies are only carried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic

from tfdock.do.remote import relay
from tfdock.do.remote.relay import TROUBLE, Line, Reader, Writer, closed

_PIECE = 1 << 18
_IDLE = 4.0
"""Seconds after which a connection is not used again: servers close idle ones, some after five."""
_REFUSED = (401, 403, 405)
_NOTHING = {False: "404 Not Found", True: "200 OK"}
"""Upload or not -> the answer in place of the endpoint: nothing is there, and what is sent goes nowhere."""
_HOP = {"host", "connection", "expect", "proxy-authorization", "authorization"}
"""Headers of the client that are its own business, or that the relay sets."""


@dataclass(frozen=True, slots=True)
class Head:
    """First line and headers (names in lower case) of a request or an answer."""

    line: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """A header's value, or nothing."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def chunked(self) -> bool:
        """Whether the body says itself where it ends."""
        return self.get("transfer-encoding").lower() == "chunked"

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.line.split(" ")[1])

    def encoded(self) -> bytes:
        """As it goes over the wire."""
        lines = [self.line, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


async def serve(line: Line, reader: Reader, writer: Writer) -> None:
    """Serve one client until it goes."""
    server: tuple[Reader, Writer] | None = None
    used = 0.0
    try:
        while True:
            head = await _head(reader)
            method, target, _ = head.line.split(" ", 2)
            upload = method not in ("GET", "HEAD")
            if upload and not line.upload:
                await _answer(writer, "403 Forbidden")
                return
            if server and (monotonic() - used > _IDLE or server[0].at_eof()):
                await closed(server[1])
                server = None
            server = server or await _connected(line, upload=upload)
            if server is None:
                await _carry(head, reader, None)
                await _answer(writer, _NOTHING[upload])
                continue
            server[1].write(_forwarded(head, method, target, line).encoded())
            line.sent += await _carry(head, reader, server[1])
            if not await _answered(line, server, writer, target, method):
                await closed(server[1])
                server = None
            used = monotonic()
    finally:
        if server:
            await closed(server[1])


async def _connected(line: Line, *, upload: bool) -> tuple[Reader, Writer] | None:
    """A connection to the endpoint, or None where a request is to be answered without it."""
    if line.lost or (upload and line.no_uploads):
        return None
    try:
        return await line.connect()
    except OSError:
        return None


def _forwarded(head: Head, method: str, target: str, line: Line) -> Head:
    own = {name.lower() for name, _ in line.headers} | _HOP
    kept = tuple((name, value) for name, value in head.headers if name not in own)
    added = (("host", line.endpoint.authority), ("connection", "keep-alive"), *line.headers)
    return Head(f"{method} {line.endpoint.path}{target} HTTP/1.1", (*added, *kept))


async def _answered(line: Line, server: tuple[Reader, Writer], writer: Writer, target: str, method: str) -> bool:
    """Carry the answer back; whether the connection to the endpoint can be used again.

    What is no answer, or refuses, is not for Bazel: it would warn once for each of thousands of actions.
    """
    upload = method not in ("GET", "HEAD")
    try:
        async with asyncio.timeout(relay.SILENCE):
            head = await _head(server[0])
            while head.status < 200:
                head = await _head(server[0])
    except TROUBLE as error:
        if isinstance(error, TimeoutError):
            line.lost = relay.reason(error)
        await _answer(writer, _NOTHING[upload])
        return False
    if head.status in _REFUSED:
        if upload:
            line.no_uploads = True
        else:
            line.lost = f"it no longer takes the credentials ({head.status})"
        await _answer(writer, _NOTHING[upload])
        return False
    writer.write(head.encoded())
    empty = method == "HEAD" or head.status in (204, 304)
    ends = not (head.chunked or head.get("content-length") or empty)
    if not empty:
        line.received += await _carry(head, server[0], writer, ends=ends)
    await writer.drain()
    line.hits += head.status == 200 and method == "GET" and "/ac/" in target
    if ends:
        raise EOFError("the end of the connection was the end of the answer")
    return head.get("connection").lower() != "close"


async def _answer(writer: Writer, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
    await writer.drain()


async def _head(reader: Reader) -> Head:
    """The next head; raises EOFError where the other side is done."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    pairs = [one.partition(":") for one in lines]
    return Head(first, tuple((name.strip().lower(), value.strip()) for name, _, value in pairs))


async def _carry(head: Head, reader: Reader, writer: Writer | None, *, ends: bool = False) -> int:
    """Carry the body that follows a head, or read it and forget it; its size on the wire, in bytes.

    `ends`: it goes on until the connection is closed.
    """
    if head.chunked:
        return await _carry_chunks(reader, writer)
    total, left = 0, int(head.get("content-length") or 0)
    while left or ends:
        async with asyncio.timeout(relay.SILENCE):
            data = await reader.read(_PIECE if ends else min(_PIECE, left))
        if not data:
            if ends:
                break
            raise EOFError("a body ended early")
        total += len(data)
        left -= 0 if ends else len(data)
        await _give(writer, data)
    return total


async def _carry_chunks(reader: Reader, writer: Writer | None) -> int:
    total = 0
    while True:
        size = await reader.readuntil(b"\r\n")
        await _give(writer, size)
        left = int(size.split(b";")[0], 16)
        if not left:
            break
        async with asyncio.timeout(relay.SILENCE):
            data = await reader.readexactly(left + 2)
        total += left
        await _give(writer, data)
    while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
        await _give(writer, trailer)
    await _give(writer, b"\r\n")
    return total


async def _give(writer: Writer | None, data: bytes) -> None:
    if writer:
        writer.write(data)
        await writer.drain()
