"""Relay HTTP/1.1: Bazel's requests to a cache get the endpoint's host, path and credentials.

Any program in the container may send requests, so the head of a request is parsed and rewritten. Only the body is
forwarded unchanged. Bazel sends one request at a time on a connection.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from tfdock.bazel.remote import relay_line
from tfdock.bazel.remote.relay_line import CONNECTION_ERRORS, Reader, RelayLine, Writer, close_writer

_PIECE = 1 << 18
_IDLE = 4.0  #: Seconds after which an idle connection is not used again. Some servers close it after five seconds.
# MD5 has 32 digits, SHA-512 has 128.
_TARGET = re.compile(r"/(?:ac|cas)/[0-9a-f]{32,128}")  #: All targets that Bazel requests from an HTTP cache.
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
# RFC 9110, sections 5.6.2 and 5.5: a name is a token, and a value has no control character but tab.
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
# Fifteen digits stay below 2**53: every program reads the same number.
_NUMBER = re.compile(r"[0-9]{1,15}")
# RFC 9112, section 7.1.1: unknown extensions are ignored.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\r\n")
# A list of allowed headers: others could choose a host or carry credentials.
#: Request headers that are forwarded, besides the headers with the length of the body.
_FORWARDED = {"accept", "accept-encoding", "content-type", "user-agent"}
# 405: a server that only reads does not know PUT.
_REFUSED = (401, 403, 405)
# 204 has no content by definition, so it holds no result.
_ABSENT = (204, 404)
#: The answers in place of a lost endpoint. True: an upload, which is dropped. False: a lookup, which finds nothing.
_NOTHING = {False: "404 Not Found", True: "200 OK"}

Give = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Head:
    """First line and headers (names in lower case) of a request or an answer."""

    line: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> set[str]:
        """Return the different values of a header, in lower case. A header may occur several times."""
        return {value.lower() for key, value in self.headers if key == name}

    @property
    def chunked(self) -> bool:
        """Whether the body is chunked."""
        return bool(self.values("transfer-encoding"))

    @property
    def length(self) -> int | None:
        """The size of the body in bytes; None if the head does not state it."""
        return next(map(int, self.values("content-length")), None)

    @property
    def certain(self) -> bool:
        """Whether all readers agree where the body ends."""
        codings, lengths = self.values("transfer-encoding"), self.values("content-length")
        # RFC 9112, section 6.3: both headers together may be an attempt at request smuggling.
        if codings:
            # Another coding would hide the end of the body from the relay.
            return codings == {"chunked"} and not lengths
        return len(lengths) <= 1 and all(_NUMBER.fullmatch(length) for length in lengths)

    @property
    def status(self) -> int:
        """The status of an answer. Raises ValueError if this is not the head of an answer."""
        match = _STATUS.fullmatch(self.line)
        if not match:
            raise ValueError("not an HTTP/1 answer")
        return int(match[1])

    def encoded(self) -> bytes:
        """Return the head in bytes, as sent over the connection."""
        lines = [self.line, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


async def serve(line: RelayLine, reader: Reader, writer: Writer) -> None:
    """Serve one client until it disconnects."""
    server: tuple[Reader, Writer] | None = None
    used = 0.0
    try:
        while True:
            head = await _head(reader)
            # A line with fewer words raises ValueError, which ends the connection.
            method, target, _ = head.line.split(" ", 2)
            upload = method == "PUT"
            if not _is_allowed(line, method, target, head):
                await _forward_body(head, reader, _discard)  # otherwise a sending client would miss the answer
                await _answer(writer, "403 Forbidden")
                return
            # A request would fail if the server closed the idle connection at that moment.
            if server and (monotonic() - used > _IDLE or server[0].at_eof()):
                await close_writer(server[1])
                server = None
            server = server or await _connect(line, upload=upload)
            if server is None:
                await _forward_body(head, reader, _discard)
                await _answer(writer, _NOTHING[upload])
                continue
            body = _Upload(line, server[1])
            await body.give(_forwarded_head(head, method, target, line).encoded())
            line.sent += await _forward_body(head, reader, body.give)
            if not await _forward_answer(line, server, writer, target, upload=upload):
                await close_writer(server[1])
                server = None
            used = monotonic()
    finally:
        if server:
            await close_writer(server[1])


def _is_allowed(line: RelayLine, method: str, target: str, head: Head) -> bool:
    """Return whether a request is a lookup, or an upload if uploads are on. Bazel makes no other requests."""
    if not _TARGET.fullmatch(target):
        return False
    # RFC 9110, section 9.3.1: content of a GET has no meaning, and may be an attempt at request smuggling.
    return line.upload if method == "PUT" else method == "GET" and not (head.chunked or head.length)


async def _connect(line: RelayLine, *, upload: bool) -> tuple[Reader, Writer] | None:
    """Return a connection to the endpoint; None if the relay must answer the request itself."""
    if line.lost or (upload and line.no_uploads):
        return None
    try:
        return await line.connect()
    except OSError:
        return None


def _forwarded_head(head: Head, method: str, target: str, line: RelayLine) -> Head:
    # A program in the container cannot replace a header that carries credentials.
    own = {name.lower() for name, _ in line.headers}
    kept = tuple((name, value) for name, value in head.headers if name in _FORWARDED - own)
    # RFC 9110, section 8.6: a PUT without content says `content-length: 0`.
    body = ("transfer-encoding", "chunked") if head.chunked else ("content-length", str(head.length or 0))
    added = (("host", line.endpoint.authority), ("connection", "keep-alive"), *line.headers)
    return Head(f"{method} {line.endpoint.path}{target} HTTP/1.1", (*added, *kept, *([body] * (method == "PUT"))))


@dataclass
class _Upload:
    """A request that is being sent. The body is dropped after the endpoint stops reading."""

    line: RelayLine
    writer: Writer
    broken: bool = False

    async def give(self, data: bytes) -> None:
        """Send some bytes."""
        # Read and drop the other bytes: Bazel reads the answer only after it has sent everything.
        if self.broken:
            return
        try:
            self.writer.write(data)
            async with asyncio.timeout(relay_line.SILENCE):
                await self.writer.drain()
        except CONNECTION_ERRORS as error:
            self.broken = True
            # A silent server is gone. An endpoint that closes may have refused only this upload.
            if isinstance(error, TimeoutError):
                self.line.lost = relay_line.failure_reason(error)


async def _discard(_: bytes) -> None:
    """Drop some bytes."""


async def _forward_answer(
    line: RelayLine, server: tuple[Reader, Writer], writer: Writer, target: str, *, upload: bool
) -> bool:
    """Forward the answer. Return whether the connection to the endpoint can be used again.

    Malformed answers and refusals are not forwarded: Bazel would warn once for each of thousands of actions.
    """
    head = await _read_answer(line, server[0])
    if head is None or not _is_usable(line, head.status, upload=upload):
        await _answer(writer, _NOTHING[upload])
        return False
    # RFC 9112, section 6.3: without a length, an answer goes on until the connection is closed.
    ends = head.status != 204 and not head.chunked and head.length is None
    if head.status in _ABSENT and not upload:
        if not ends:
            line.received += await _forward_body(head, server[0], _discard)
        await _answer(writer, _NOTHING[upload])
        return not ends and _stays_open(head)
    writer.write(head.encoded())
    line.received += await _forward_body(head, server[0], _writer_to(writer), ends=ends)
    await writer.drain()
    # Only an action counts as a hit, not each of the blobs that follow.
    line.hits += not upload and target.startswith("/ac/")
    # Also close Bazel's connection: only this marks the end of the body.
    if ends:
        raise EOFError("the answer ended with the connection")
    return _stays_open(head)


async def _read_answer(line: RelayLine, server: Reader) -> Head | None:
    """Return the head of the answer; None if no answer arrives."""
    if line.lost:
        return None
    try:
        async with asyncio.timeout(relay_line.SILENCE):
            head = await _head(server)
            # RFC 9110, section 15.2: interim answers come before the final one.
            while head.status < 200:
                head = await _head(server)
            return head
    except CONNECTION_ERRORS as error:
        if isinstance(error, TimeoutError):
            line.lost = relay_line.failure_reason(error)
        return None


def _is_usable(line: RelayLine, status: int, *, upload: bool) -> bool:
    """Return whether Bazel may have an answer of this status; if not, note the reason on the line."""
    if status in _REFUSED and upload:
        line.no_uploads = True
    elif status in _REFUSED:
        line.lost = f"the credentials are no longer accepted ({status})"
    elif status == 200 or status in ((201, 202, 204) if upload else _ABSENT):
        return True
    else:
        line.trouble = f"HTTP status {status}"
    return False


def _stays_open(head: Head) -> bool:
    # RFC 9112, section 9.3: HTTP/1.1 stays open unless one side says `close`.
    return head.line.startswith("HTTP/1.1") and "close" not in head.values("connection")


async def _answer(writer: Writer, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
    await writer.drain()


async def _head(reader: Reader) -> Head:
    """Return the next head. Raise EOFError if the other side has closed, ValueError if the head is ambiguous."""
    # latin-1 keeps every byte, so the parser misses none.
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    pairs = [_HEADER.fullmatch(line) for line in lines]
    head = Head(first, tuple((pair[1].lower(), pair[2]) for pair in pairs if pair))
    if not first.isprintable() or not all(pairs) or not head.certain:
        raise ValueError("not the head of an HTTP/1 message")
    return head


async def _forward_body(head: Head, reader: Reader, give: Give, *, ends: bool = False) -> int:
    """Forward the body after a head; return its size in bytes. `ends`: the body ends when the connection closes."""
    if head.chunked:
        return await _forward_chunks(reader, give)
    total = 0
    async for data in _pieces(reader, math.inf if ends else head.length or 0):
        total += len(data)
        await give(data)
    return total


async def _forward_chunks(reader: Reader, give: Give) -> int:
    """Forward a chunked body. Drop chunk extensions, and headers after the last chunk."""
    total = 0
    while True:
        async with asyncio.timeout(relay_line.SILENCE):
            match = _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))
        if not match:
            raise ValueError("no chunk")
        left = int(match[1], 16)
        if not left:
            break
        total += left
        await give(b"%x\r\n" % left)
        async for data in _pieces(reader, left):
            await give(data)
        # RFC 9112, section 7.1: every chunk ends with CRLF.
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk has a wrong length")
        await give(b"\r\n")
    async with asyncio.timeout(relay_line.SILENCE):
        # RFC 9112, section 7.1.2: trailers may be dropped.
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    await give(b"0\r\n\r\n")
    return total


async def _pieces(reader: Reader, left: float) -> AsyncIterator[bytes]:
    """Yield `left` bytes; if `left` is infinite, all bytes until the connection closes."""
    while left:
        async with asyncio.timeout(relay_line.SILENCE):
            data = await reader.read(int(min(_PIECE, left)))
        if not data and left == math.inf:
            return
        if not data:
            raise EOFError("the body ended early")
        left -= len(data)
        yield data


def _writer_to(writer: Writer) -> Give:
    async def give(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return give
