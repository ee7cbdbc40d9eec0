"""Write and read packs of cache entries, the layers of a cache in a registry. Pure: no I/O.

A pack is a zstd-compressed tar of files, named as in Bazel's disk cache. The table of contents is a separate blob, so
the entries can be listed without the pack. The table determines all bytes of the tar except the files' contents. So
the reader computes and compares the headers: links, or other names, sizes or order, are refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

import zstandard

from tfdock.bazel.cache import action_cache
from tfdock.bazel.cache.action_cache import EMPTY
from tfdock.host.foreign_json import Malformed, parse
from tfdock.oci.manifest import canonical_json
from tfdock.oci.plain_tar import BLOCK, END, LARGEST_PLAIN, padded_size, padding, plain_header

CONTENTS_SCHEMA = "tfdock.cache.contents/1"
CONTENTS_TYPE = "application/vnd.tfdock.cache.contents.v1+json+zstd"
PACK_TYPE = "application/vnd.tfdock.cache.layer.v1.tar+zstd"
PACK_SIZE = 64 << 20  #: The most bytes of all entries in a pack. A larger entry is alone in its pack.
# A table with this number of actions and blobs stays below MOST_CONTENTS.
PACK_ENTRIES = 50_000  #: The most entries in a pack.
LARGEST = LARGEST_PLAIN  #: The most bytes of an entry: the largest size that a tar header can state.
MOST_CONTENTS = 4 << 20  #: The most bytes of a compressed table of contents.
_MOST_UNPACKED = 10 << 20
_WINDOW = 8 << 20  #: The most bytes of memory that unpacking may use.
_READ = 1 << 18
_LEVEL, _THREADS = 3, 2  # any number of threads gives the same bytes; no threads would give other bytes
_CONTENTS_LEVEL = 12

# The folder has to repeat the first two digits. `\Z`, because `$` also matches before a newline at the end.
_NAME = re.compile(r"(?:(?:ac|cas)/([0-9a-f]{2})/(?=\1)|(?:ac_)?)([0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True, order=True)
class PackEntry:
    """A file of a disk cache: its name in the cache (`cas/0f/0fac…`; old Bazels: `0fac…`), size in bytes, sha256."""

    name: str
    size: int
    sha256: str

    @property
    def is_action(self) -> bool:
        """Whether the entry is an action; other entries are outputs, named by their sha256."""
        return self.name.startswith("ac")


def in_order(entries: Iterable[PackEntry]) -> tuple[PackEntry, ...]:
    """Return entries in the order of a pack: actions after the blobs that they need."""
    return tuple(sorted(entries, key=lambda entry: (entry.is_action, entry.name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackContents:
    """The table of contents of a pack: its toolchain, and its entries in order."""

    toolchain: str
    entries: tuple[PackEntry, ...]

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return sum(entry.size for entry in self.entries)

    def encoded(self) -> bytes:
        """Return the table as bytes, the same every time. A blob's sha256 is only in the blob's name."""
        rows = [[entry.name, entry.size, *([entry.sha256] if entry.is_action else [])] for entry in self.entries]
        text = canonical_json({"schema": CONTENTS_SCHEMA, "toolchain": self.toolchain, "entries": rows})
        return zstandard.ZstdCompressor(level=_CONTENTS_LEVEL).compress(text)

    @classmethod
    def read(cls, data: bytes) -> PackContents:
        """Return a table of contents from its bytes; raise Malformed if they are invalid."""
        try:
            # Limit the text and the window: a frame's header may claim any size for both.
            unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data)
            text = unpacker.read(_MOST_UNPACKED + 1)
        except zstandard.ZstdError as error:
            raise Malformed("a table of contents cannot be unpacked") from error
        if len(text) > _MOST_UNPACKED:
            raise Malformed("a table of contents is too long")
        table: _Table = parse(_Table, text)
        entries = tuple(_entry(*row) for row in table.entries)
        # tfdock writes one order, and no name twice. With two equal names, readers could take different files.
        if entries != in_order(entries) or len({entry.name for entry in entries}) < len(entries):
            raise Malformed("a table of contents is out of order")
        return cls(toolchain=table.toolchain, entries=entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table of contents in its JSON. A row is name, size, and an action's sha256."""

    schema: Annotated[str, CONTENTS_SCHEMA.__eq__]
    toolchain: str
    entries: list[list[Any]]


def _entry(name: object = None, size: object = None, *rest: object) -> PackEntry:
    """Return the entry of a row in a table of contents. Raise Malformed for other paths and for impossible sizes."""
    match = _NAME.match(name) if isinstance(name, str) else None
    if not match or not isinstance(name, str):
        raise Malformed(f"`{str(name)[:80]!a}` is not the name of a cache entry")
    is_action = name.startswith("ac")
    # Do not use `isinstance`: in Python, `True` is an int.
    if type(size) is not int or not 0 <= size <= (action_cache.LARGEST if is_action else LARGEST):
        raise Malformed(f"the entry {name} has an impossible size")
    sha256 = rest[0] if is_action and rest else match[2]
    if bool(rest) is not is_action or not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise Malformed(f"the entry {name} has no valid sha256")
    if (sha256 == EMPTY) is not (size == 0):
        raise Malformed(f"the entry {name} cannot have {size} bytes")
    return PackEntry(name, size, sha256)


# --- writing --------------------------------------------------------------------------------------------------------


class PackEntryChanged(Exception):
    """A file to pack no longer has the size or sha256 of its `entry`."""

    def __init__(self, entry: PackEntry) -> None:
        super().__init__(entry.name)
        self.entry = entry


def pack_entries(entries: Iterable[PackEntry], read: Callable[[PackEntry], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the bytes of a pack; `read` yields the bytes of a file.

    Raise PackEntryChanged for a file that has changed.
    """
    entries = tuple(entries)
    # The frame's header states the size, so it must be known before the first byte.
    size = len(END) + sum(BLOCK + padded_size(entry.size) for entry in entries)
    compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=_THREADS).compressobj(size=size)
    for entry in entries:
        yield compressor.compress(plain_header(entry.name, entry.size))
        for piece in _checked_pieces(entry, read(entry)):
            yield compressor.compress(piece)
        yield compressor.compress(padding(entry.size))
    yield compressor.compress(END)
    yield compressor.flush()


def _checked_pieces(entry: PackEntry, pieces: Iterable[bytes]) -> Iterator[bytes]:
    sha256, size = hashlib.sha256(), 0
    for piece in pieces:
        size += len(piece)
        # Check this before the piece is passed on: a file that grows may have no end.
        if size > entry.size:
            break
        sha256.update(piece)
        yield piece
    if size != entry.size or sha256.hexdigest() != entry.sha256:
        raise PackEntryChanged(entry)


def most_packed(contents: PackContents) -> int:
    """Return the largest possible size of a pack. Data that cannot be compressed grows a little."""
    # zstd's own bound is 1/256 more than the contents. Each entry adds a header and padding.
    return contents.size + (contents.size >> 7) + 2 * BLOCK * len(contents.entries) + (1 << 16)


# --- reading --------------------------------------------------------------------------------------------------------


def read_entries(contents: PackContents, pack: BinaryIO) -> Iterator[tuple[PackEntry, bytes, bool]]:
    """Yield the entries of a pack as they arrive: (entry, piece of content, whether the piece is the last).

    Memory use and unpacked size are limited. Raises Malformed if the pack differs from its table, at the latest after
    the last entry. An entry's last piece comes only if the entry's sha256 is right.
    """
    stream = _Stream(pack)
    for entry in contents.entries:
        # A comparison, not a parser: no name in the pack is ever interpreted.
        if stream.exactly(BLOCK) != plain_header(entry.name, entry.size):
            raise Malformed(f"the pack has other data where {entry.name} should be")
        sha256, left = hashlib.sha256(), entry.size
        while left:
            piece = stream.some(left)
            left -= len(piece)
            sha256.update(piece)
            # The last piece waits for the hash, so its receiver can rely on the whole entry.
            if not left:
                break
            yield entry, piece, False
        if sha256.hexdigest() != entry.sha256:
            raise Malformed(f"the entry {entry.name} does not have the sha256 in the table of contents")
        # Padding is zeros. Otherwise a pack could carry bytes that no table names.
        if any(stream.exactly(-entry.size % BLOCK)):
            raise Malformed(f"there is data after the entry {entry.name}")
        yield entry, piece if entry.size else b"", True
    # Bytes after the end would be part of the digest, but no reader would see them.
    if stream.exactly(len(END)) != END or not stream.is_at_end():
        raise Malformed("the pack does not end where it should")


class _Stream:
    """The unpacked bytes, in pieces of the requested sizes."""

    def __init__(self, pack: BinaryIO) -> None:
        self._pack = pack
        self._reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(pack, read_size=_READ)

    def some(self, most: int) -> bytes:
        """Return at least one byte, at most `most`."""
        try:
            data = self._reader.read(min(most, _READ))
        except zstandard.ZstdError as error:
            raise Malformed("the pack cannot be unpacked") from error
        if not data:
            raise Malformed("the pack ends too early")
        return data

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.some(size - len(data))
        return data

    def is_at_end(self) -> bool:
        """Return whether the stream has ended, with no data after the end."""
        try:
            return not self._reader.read(1) and not self._pack.read(1)
        except zstandard.ZstdError as error:
            raise Malformed("the pack cannot be unpacked") from error
