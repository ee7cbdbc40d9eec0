"""Relay HTTP/1.1: what Bazel asks of a cache, with the endpoint's host, path and credentials.

Whoever is in the container may ask, so nothing of a request is handed on as it came: its head is written anew, of
what was understood. Bodies are only carried. Bazel puts one request at a time on a connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from tfdock.bazel.remote import relay_line
from tfdock.bazel.remote.relay_line import TROUBLE, Reader, RelayLine, Writer, closed

_PIECE = 1 << 18
_IDLE = 4.0
"""Seconds after which a connection is not used again: servers close idle ones, some after five."""
_TARGET = re.compile(r"/(?:ac|cas)/[0-9a-f]{32,128}")
"""All that Bazel asks an HTTP cache for."""
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_NUMBER = re.compile(r"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\r\n")
_KEPT = {"accept", "accept-encoding", "content-type", "user-agent"}
"""Headers of a request that are handed on, beside those that say how long its body is."""
_REFUSED = (401, 403, 405)
_ABSENT = (204, 404)
_NOTHING = {False: "404 Not Found", True: "200 OK"}
"""Upload or not -> the answer in place of the endpoint: nothing is there, and what is sent goes nowhere."""

Give = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Head:
    """First line and headers (names in lower case) of a request or an answer."""

    line: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> set[str]:
        """What a header says, each time that it stands there, in lower case."""
        return {value.lower() for key, value in self.headers if key == name}

    @property
    def chunked(self) -> bool:
        """Whether the body says itself where it ends."""
        return bool(self.values("transfer-encoding"))

    @property
    def length(self) -> int | None:
        """Bytes of the body, where the head says it."""
        return next(map(int, self.values("content-length")), None)

    @property
    def certain(self) -> bool:
        """Whether every reader understands the same end of the body."""
        codings, lengths = self.values("transfer-encoding"), self.values("content-length")
        if codings:
            return codings == {"chunked"} and not lengths
        return len(lengths) <= 1 and all(_NUMBER.fullmatch(length) for length in lengths)

    @property
    def status(self) -> int:
        """Of an answer; raises ValueError for what is none."""
        found = _STATUS.fullmatch(self.line)
        if not found:
            raise ValueError("no answer in HTTP/1")
        return int(found[1])

    def encoded(self) -> bytes:
        """As it goes over the wire."""
        lines = [self.line, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


async def serve(line: RelayLine, reader: Reader, writer: Writer) -> None:
    """Serve one client until it goes."""
    server: tuple[Reader, Writer] | None = None
    used = 0.0
    try:
        while True:
            head = await _head(reader)
            method, target, _ = head.line.split(" ", 2)
            upload = method == "PUT"
            if not _allowed(line, method, target, head):
                await _carry(head, reader, _nowhere)  # who still sends sees a broken pipe, and no answer
                await _answer(writer, "403 Forbidden")
                return
            if server and (monotonic() - used > _IDLE or server[0].at_eof()):
                await closed(server[1])
                server = None
            server = server or await _connected(line, upload=upload)
            if server is None:
                await _carry(head, reader, _nowhere)
                await _answer(writer, _NOTHING[upload])
                continue
            body = _Upload(line, server[1])
            await body.give(_forwarded(head, method, target, line).encoded())
            line.sent += await _carry(head, reader, body.give)
            if not await _answered(line, server, writer, target, upload=upload):
                await closed(server[1])
                server = None
            used = monotonic()
    finally:
        if server:
            await closed(server[1])


def _allowed(line: RelayLine, method: str, target: str, head: Head) -> bool:
    """Whether that is a question to a cache, or an upload where those may be. Any other is not Bazel's."""
    if not _TARGET.fullmatch(target):
        return False
    return line.upload if method == "PUT" else method == "GET" and not (head.chunked or head.length)


async def _connected(line: RelayLine, *, upload: bool) -> tuple[Reader, Writer] | None:
    """A connection to the endpoint, or None where a request is to be answered without it."""
    if line.lost or (upload and line.no_uploads):
        return None
    try:
        return await line.connect()
    except OSError:
        return None


def _forwarded(head: Head, method: str, target: str, line: RelayLine) -> Head:
    own = {name.lower() for name, _ in line.headers}
    kept = tuple((name, value) for name, value in head.headers if name in _KEPT - own)
    body = ("transfer-encoding", "chunked") if head.chunked else ("content-length", str(head.length or 0))
    added = (("host", line.endpoint.authority), ("connection", "keep-alive"), *line.headers)
    return Head(f"{method} {line.endpoint.path}{target} HTTP/1.1", (*added, *kept, *([body] * (method == "PUT"))))


@dataclass
class _Upload:
    """A request on its way: to the endpoint while it takes it, and nowhere once it does not."""

    line: RelayLine
    writer: Writer
    broken: bool = False

    async def give(self, data: bytes) -> None:
        """Send some bytes."""
        if self.broken:
            return
        try:
            self.writer.write(data)
            async with asyncio.timeout(relay_line.SILENCE):
                await self.writer.drain()
        except TROUBLE as error:
            self.broken = True
            if isinstance(error, TimeoutError):
                self.line.lost = relay_line.reason(error)


async def _nowhere(_: bytes) -> None:
    """Forget some bytes."""


async def _answered(
    line: RelayLine, server: tuple[Reader, Writer], writer: Writer, target: str, *, upload: bool
) -> bool:
    """Carry the answer back; whether the connection to the endpoint can be used again.

    What is no answer, or refuses, is not for Bazel: it would warn once for each of thousands of actions.
    """
    head = await _heard(line, server[0])
    if head is None or not _usable(line, head.status, upload=upload):
        await _answer(writer, _NOTHING[upload])
        return False
    ends = head.status != 204 and not head.chunked and head.length is None
    if head.status in _ABSENT and not upload:
        if not ends:
            line.received += await _carry(head, server[0], _nowhere)
        await _answer(writer, _NOTHING[upload])
        return not ends and _kept_open(head)
    writer.write(head.encoded())
    line.received += await _carry(head, server[0], _giver(writer), ends=ends)
    await writer.drain()
    line.hits += not upload and target.startswith("/ac/")
    if ends:
        raise EOFError("the end of the connection was the end of the answer")
    return _kept_open(head)


async def _heard(line: RelayLine, server: Reader) -> Head | None:
    """The head of the answer, or None where none comes."""
    if line.lost:
        return None
    try:
        async with asyncio.timeout(relay_line.SILENCE):
            head = await _head(server)
            while head.status < 200:
                head = await _head(server)
            return head
    except TROUBLE as error:
        if isinstance(error, TimeoutError):
            line.lost = relay_line.reason(error)
        return None


def _usable(line: RelayLine, status: int, *, upload: bool) -> bool:
    """Whether that is an answer that Bazel may have; if not, the line knows why."""
    if status in _REFUSED and upload:
        line.no_uploads = True
    elif status in _REFUSED:
        line.lost = f"it no longer takes the credentials ({status})"
    elif status == 200 or status in ((201, 202, 204) if upload else _ABSENT):
        return True
    else:
        line.trouble = f"HTTP status {status}"
    return False


def _kept_open(head: Head) -> bool:
    return head.line.startswith("HTTP/1.1") and "close" not in head.values("connection")


async def _answer(writer: Writer, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
    await writer.drain()


async def _head(reader: Reader) -> Head:
    """The next head; raises EOFError where the other side is done, ValueError for what is not surely one head."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    pairs = [_HEADER.fullmatch(one) for one in lines]
    head = Head(first, tuple((pair[1].lower(), pair[2]) for pair in pairs if pair))
    if not first.isprintable() or not all(pairs) or not head.certain:
        raise ValueError("no head of HTTP/1")
    return head


async def _carry(head: Head, reader: Reader, give: Give, *, ends: bool = False) -> int:
    """Carry the body that follows a head; its size in bytes.

    `ends`: it goes on until the connection is closed.
    """
    if head.chunked:
        return await _carry_chunks(reader, give)
    total = 0
    async for data in _until_end(reader) if ends else _pieces(reader, head.length or 0):
        total += len(data)
        await give(data)
    return total


async def _carry_chunks(reader: Reader, give: Give) -> int:
    """Carry chunks, without what may stand beside them: extensions, and headers after the last."""
    total = 0
    while True:
        async with asyncio.timeout(relay_line.SILENCE):
            found = _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))
        if not found:
            raise ValueError("no chunk")
        left = int(found[1], 16)
        if not left:
            break
        total += left
        await give(b"%x\r\n" % left)
        async for data in _pieces(reader, left):
            await give(data)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk that does not end where it said")
        await give(b"\r\n")
    async with asyncio.timeout(relay_line.SILENCE):
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    await give(b"0\r\n\r\n")
    return total


async def _pieces(reader: Reader, left: int) -> AsyncIterator[bytes]:
    while left:
        async with asyncio.timeout(relay_line.SILENCE):
            data = await reader.read(min(_PIECE, left))
        if not data:
            raise EOFError("a body ended early")
        left -= len(data)
        yield data


async def _until_end(reader: Reader) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(relay_line.SILENCE):
            data = await reader.read(_PIECE)
        if not data:
            return
        yield data


def _giver(writer: Writer) -> Give:
    async def give(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return give
