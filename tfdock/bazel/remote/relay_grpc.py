"""Relay gRPC: HTTP/2 frames pass unchanged; requests get the endpoint's name and credentials.

Only header blocks are decoded. Data, settings and windows pass unchanged between the two sides. Headers to the
endpoint use no table, so the two sides need not agree on the table's size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import hpack

from tfdock.bazel.remote import relay_line
from tfdock.bazel.remote.relay_line import Reader, RelayLine, Writer, close_writer

# RFC 9113, section 3.4: each connection begins with it.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# RFC 9113, section 6: types of frames, and their flags.
_DATA, _HEADERS, _PING, _WINDOW, _CONTINUATION = 0, 1, 6, 8, 9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 1, 4, 8, 32
# RFC 9113, section 6.7: exactly eight bytes.
_ARE_YOU_THERE = b"tfdock ?"  #: Content of the relay's own pings.
# RFC 9113, section 4.2.
_LARGEST = 1 << 14  #: The largest frame, in bytes, that every peer accepts.
_PATIENCE = 30.0  #: Seconds within which a frame that has begun must arrive.
_TABLE = 1 << 20  #: A size of the header table: larger than either side needs.

# RFC 9113, section 10.5.1: a block must be held until it ends, and CONTINUATION frames have no limit.
_LONGEST = 1 << 18  #: The most bytes of a header block, in all its frames together.

_API = b"/build.bazel.remote.execution.v2."
_STREAM = b"/google.bytestream.ByteStream/"
_LOOKUP = _API + b"ActionCache/GetActionResult"
_CAPABILITIES = _API + b"Capabilities/GetCapabilities"
#: Calls that are allowed if uploads are off. Unknown calls are not allowed, because they may write.
_READING = {
    _CAPABILITIES,
    _LOOKUP,
    _API + b"ContentAddressableStorage/FindMissingBlobs",
    _API + b"ContentAddressableStorage/BatchReadBlobs",
    _API + b"ContentAddressableStorage/GetTree",
    _STREAM + b"Read",
}
#: Calls that are allowed for an executor, which needs the inputs of its actions. It writes the results itself.
_EXECUTING = _READING | {
    _API + b"ContentAddressableStorage/BatchUpdateBlobs",
    _API + b"Execution/Execute",
    _API + b"Execution/WaitExecution",
    _STREAM + b"Write",
    _STREAM + b"QueryWriteStatus",
}
_NOT_FOUND = "5"
_PERMISSION_DENIED = b"7"
_DENIED = (b"7", b"16")  #: PERMISSION_DENIED and UNAUTHENTICATED.

#: A `ServerCapabilities` message: SHA256, uploads, execution, version 2 of the API.
ABILITIES = bytes.fromhex("0a070a010112020801120408011001220208022a020802")
#: Answers in place of a lost endpoint. Every other call gets NOT_FOUND.
#:
#: FindMissingBlobs: no blob is missing, so Bazel sends none. Bazel 0.26.1 crashes if this request fails.
_WITHOUT = {
    _CAPABILITIES: ABILITIES,
    _API + b"ContentAddressableStorage/FindMissingBlobs": b"",
    _API + b"ContentAddressableStorage/BatchUpdateBlobs": b"",
    _API + b"ActionCache/UpdateActionResult": b"",
}


_Pair = tuple[bytes, bytes]


@dataclass(slots=True)
class Frame:
    """One complete frame of HTTP/2."""

    head: bytes
    body: bytes
    kind: int = field(init=False)  #: The number of the frame's type.
    flags: int = field(init=False)  #: The meaning of the flags depends on the type.
    stream: int = field(init=False)  #: The number of the frame's stream.

    def __post_init__(self) -> None:
        self.kind, self.flags = self.head[3:5]
        # RFC 9113, section 4.1: the first bit is reserved, and ignored.
        self.stream = int.from_bytes(self.head[5:], "big") & 0x7FFFFFFF

    @property
    def block(self) -> bytes:
        """The part of a header block in this frame."""
        if self.kind == _CONTINUATION:
            return self.body
        # RFC 9113, section 6.2: a byte with the length of the padding, then five bytes of priority.
        padding = self.body[0] if self.flags & _PADDED else 0
        start = bool(self.flags & _PADDED) + 5 * bool(self.flags & _PRIORITY)
        return self.body[start : len(self.body) - padding]

    @classmethod
    async def read(cls, reader: Reader, large: asyncio.Semaphore | None = None) -> Frame:
        """Return the next frame; raise EOFError at the end.

        `large` limits how many frames over 16 KiB are read at once. Raises TimeoutError if a frame does not arrive.
        """
        head = await reader.readexactly(9)
        # The peer claims a length of up to 16 MiB before it has sent any byte.
        size = int.from_bytes(head[:3], "big")
        if large is None or size <= _LARGEST:
            return cls(head, await reader.readexactly(size))
        async with large:
            return cls(head, await asyncio.wait_for(reader.readexactly(size), _PATIENCE))


async def serve(line: RelayLine, reader: Reader, writer: Writer) -> None:
    """Serve one client until the client or the endpoint disconnects."""
    try:
        server = None if line.lost else await line.connect()
    except OSError:
        server = None
    if server is None:
        await _serve_offline(reader, writer)
        return
    relayed = _Connection(line, writer)
    tasks = [
        asyncio.ensure_future(relayed.forward_requests(reader, server[1])),
        asyncio.ensure_future(relayed.forward_answers(server[0])),
        asyncio.ensure_future(relayed.watch_silence(server[1])),
    ]
    try:
        # If one direction has closed, the other direction is useless.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await close_writer(server[1])


@dataclass
class _Connection:
    """Both directions of one connection.

    Frames are written whole, so that each direction may add frames of its own.
    """

    line: RelayLine
    client: Writer
    lookups: set[int] = field(default_factory=set)  #: Streams that ask whether an action is cached.
    refused: set[int] = field(default_factory=set)  #: Streams that are not forwarded to the endpoint.
    heard: float = field(default_factory=monotonic)  #: The last time that the endpoint sent something.

    async def forward_requests(self, client: Reader, server: Writer) -> None:
        decoder, encoder = hpack.Decoder(), hpack.Encoder()
        # Client and endpoint agree on the size in settings that pass unread.
        decoder.max_allowed_table_size = _TABLE
        # An encoder without a table never depends on the size that the endpoint allows.
        encoder.header_table_size = 0
        if await client.readexactly(len(PREFACE)) != PREFACE:
            raise ValueError("the client does not speak HTTP/2")
        server.write(PREFACE)
        block, first = b"", None
        while True:
            frame = await Frame.read(client, self.line.large)
            if frame.stream in self.refused:
                self._forget(frame)
                await self.client.drain()
            elif frame.kind not in (_HEADERS, _CONTINUATION):
                server.write(frame.head + frame.body)
                self.line.sent += len(frame.body)
            else:
                first, block = (frame, b"") if frame.kind == _HEADERS else (first, block)
                block = _extend_block(block, frame)
                if frame.flags & _END_HEADERS and first:
                    headers = _decode(decoder, block)
                    if not self._is_allowed(headers):
                        self._refuse(first.stream)
                    else:
                        encoded = encoder.encode(self._forwarded_headers(first.stream, headers), huffman=False)
                        server.write(_frames(first.stream, first.flags & _END_STREAM, encoded))
            await server.drain()

    def _is_allowed(self, headers: list[_Pair]) -> bool:
        """Return whether a call may be made. A stream has one path; no gRPC client sends trailers."""
        if self.line.upload:
            return True
        known = _EXECUTING if self.line.executes else _READING
        # RFC 9113, sections 8.2 and 8.3: small letters, and each pseudo-header once. A server may be less strict.
        paths = [(name, value) for name, value in headers if name.lower() == b":path"]
        return len(paths) == 1 and paths[0][0] == b":path" and paths[0][1] in known

    def _forwarded_headers(self, stream: int, headers: list[_Pair]) -> list[_Pair]:
        """Return the headers of a request for the endpoint."""
        authority = self.line.endpoint.authority.encode()
        own = {
            b":authority": authority,
            b"host": authority,
            b":scheme": b"https" if self.line.endpoint.tls else b"http",
        }
        if any(name == b":path" and value == _LOOKUP for name, value in headers):
            self.lookups.add(stream)
        ours = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.line.headers]
        # No login from the container reaches the endpoint, even if this machine has none.
        replaced = {name for name, _ in ours} | {b"authorization"}
        kept = [(name, own.get(name, value)) for name, value in headers if name.lower() not in replaced]
        # RFC 7541, section 6.2.3: no proxy on the way may keep these in a table.
        return [*kept, *(hpack.NeverIndexedHeaderTuple(*pair) for pair in ours)]

    def _refuse(self, stream: int) -> None:
        """Answer a call in the endpoint's place."""
        self.refused.add(stream)
        # No new header may enter the shared header table. These two would; `:status: 200` is in every table (RFC
        # 7541, appendix A). gRPC reports errors only in `grpc-status`.
        named = (b"content-type", b"application/grpc"), (b"grpc-status", _PERMISSION_DENIED)
        headers = [(b":status", b"200"), *(hpack.NeverIndexedHeaderTuple(*pair) for pair in named)]
        self.client.write(_frames(stream, _END_STREAM, hpack.Encoder().encode(headers, huffman=False)))

    def _forget(self, frame: Frame) -> None:
        """Drop a frame of a refused call, and give back its share of the connection's window."""
        # RFC 9113, section 5.2.1: all streams share the window of the connection.
        if frame.kind == _DATA and frame.body:
            self.client.write(_frame(_WINDOW, 0, 0, len(frame.body).to_bytes(4, "big")))

    async def watch_silence(self, server: Writer) -> None:
        """Ping a silent endpoint: an action may take long, but a ping does not."""
        while True:
            await asyncio.sleep(relay_line.SILENCE / 3)
            silent = monotonic() - self.heard
            if silent > relay_line.SILENCE:
                self.line.lost = relay_line.failure_reason(TimeoutError())
                return
            if silent > relay_line.SILENCE / 3:
                server.write(_frame(_PING, 0, 0, _ARE_YOU_THERE))

    async def forward_answers(self, server: Reader) -> None:
        decoder = hpack.Decoder()
        decoder.max_allowed_table_size = _TABLE
        block, ends = b"", False
        while True:
            # Large frames are not limited here: the settings allow this endpoint.
            frame = await Frame.read(server)
            self.heard = monotonic()
            # The answer to the relay's own ping, which Bazel must not see.
            if frame.kind == _PING and frame.body == _ARE_YOU_THERE:
                continue
            self.client.write(frame.head + frame.body)
            self.line.received += len(frame.body)
            if frame.kind in (_HEADERS, _CONTINUATION):
                if frame.kind == _HEADERS:
                    block, ends = b"", bool(frame.flags & _END_STREAM)
                block = _extend_block(block, frame)
                if frame.flags & _END_HEADERS:
                    self._note_answer(frame.stream, _decode(decoder, block), ends=ends)
            await self.client.drain()
            if self.line.lost:
                return

    def _note_answer(self, stream: int, headers: list[_Pair], *, ends: bool) -> None:
        # gRPC's status stands in the headers that end a stream.
        if not ends or stream not in self.lookups:
            return
        self.lookups.discard(stream)
        status = next((value for name, value in headers if name == b"grpc-status"), b"")
        self.line.hits += status == b"0"
        if status in _DENIED:
            self.line.lost = "the credentials are no longer accepted"


def _extend_block(block: bytes, frame: Frame) -> bytes:
    """Return a header block with its next part; raise ValueError if it grows too long."""
    if len(block) + len(frame.body) > _LONGEST:
        raise ValueError("a header block is too long")
    return block + frame.block


def _decode(decoder: hpack.Decoder, block: bytes) -> list[_Pair]:
    return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]


def _frames(stream: int, end: int, block: bytes) -> bytes:
    """Return a header block in as many frames as it needs."""
    parts = [block[start : start + _LARGEST] for start in range(0, len(block), _LARGEST)]
    # RFC 9113, section 6.10: no other frame may come between these, so they are written at once.
    encoded = b""
    for number, part in enumerate(parts):
        kind, flags = (_CONTINUATION, 0) if number else (_HEADERS, end)
        flags |= _END_HEADERS if number == len(parts) - 1 else 0
        encoded += _frame(kind, flags, stream, part)
    return encoded


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    # RFC 9113, section 4.1: length, type, flags, stream.
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


async def _serve_offline(reader: Reader, writer: Writer) -> None:
    """Answer in place of a lost endpoint: everything is supported, and nothing is cached."""
    # Names stay bytes: a path that is not UTF-8 then counts as an unknown path.
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    try:
        while True:
            writer.write(connection.data_to_send())
            await writer.drain()
            data = await reader.read(1 << 16)
            if not data:
                return
            for event in connection.receive_data(data):
                _answer_offline(connection, event)
    except h2.exceptions.ProtocolError:
        # h2 has prepared the frame that tells the client why (GOAWAY).
        writer.write(connection.data_to_send())


def _answer_offline(connection: h2.connection.H2Connection, event: h2.events.Event) -> None:
    if isinstance(event, h2.events.DataReceived):
        # Otherwise the window would run out, and an upload would wait for ever.
        connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
    if not isinstance(event, h2.events.RequestReceived):
        return
    head = [(":status", "200"), ("content-type", "application/grpc")]
    message = next((_WITHOUT.get(value) for name, value in event.headers or () if name == b":path"), None)
    if message is None:
        connection.send_headers(event.stream_id, [*head, ("grpc-status", _NOT_FOUND)], end_stream=True)
    else:
        connection.send_headers(event.stream_id, head)
        connection.send_data(event.stream_id, _prefixed(message))
        connection.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)


def _prefixed(message: bytes) -> bytes:
    """Return a message in gRPC's framing: not compressed, with its size."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def capabilities(
    line: RelayLine, instance: str, send: Callable[[bytes], None], receive: Callable[[], bytes]
) -> tuple[str, str]:
    """Ask an endpoint for its capabilities, over a separate connection. Return gRPC's status and message.

    Raises OSError if the connection breaks, ValueError if the answer is not HTTP/2.
    """
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    name = instance.encode()
    # Field 1, `instance_name`. Profiles bound the name to 100 characters, so one byte holds the length.
    message = b"\x0a" + bytes((len(name),)) + name if name else b""
    request = [
        (":method", "POST"),
        (":scheme", "https" if line.endpoint.tls else "http"),
        (":path", _CAPABILITIES.decode()),
        (":authority", line.endpoint.authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *((name.lower(), value) for name, value in line.headers),
    ]
    connection.send_headers(1, request)
    connection.send_data(1, _prefixed(message), end_stream=True)
    headers: dict[str, str] = {}
    while True:
        send(connection.data_to_send())
        data = receive()
        if not data:
            raise ConnectionResetError(0, "the connection was closed")
        if data.startswith(b"HTTP/1"):  # h2 would read this as the start of a long frame
            raise ValueError("the answer is not HTTP/2")
        try:
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    headers |= {str(key): str(value) for key, value in event.headers}
                if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset | h2.events.ConnectionTerminated):
                    return _status(headers), headers.get("grpc-message", "")
        except h2.exceptions.ProtocolError:
            raise ValueError("the answer is not HTTP/2") from None


def _status(headers: dict[str, str]) -> str:
    """Return gRPC's status. The HTTP status of a proxy's refusal is mapped as gRPC maps it."""
    # UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED; everything else is UNKNOWN.
    by_http = {"401": "16", "403": "7", "404": "12"}
    return headers.get("grpc-status") or by_http.get(headers.get(":status", ""), "2")
