"""Read AMD's offload bundles: the gfx targets of the code objects in a `.hip_fatbin` section.

The layout is clang's (docs/ClangOffloadBundler.rst) and was measured on the bundlers of clang 18 to 23. A section is
a sequence of bundles, each at a multiple of 4096 bytes. An uncompressed bundle has the magic
`__CLANG_OFFLOAD_BUNDLE__`, the u64 number of entries, and for each entry u64 offset, u64 size, u64 length of the id,
and the id (`hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+`). A compressed bundle has the magic `CCOB`, u16 version, u16
method (0 zlib, 1 zstd), sizes that depend on the version, and then the same bundle compressed as a whole.
"""

from __future__ import annotations

import re
import struct
import zlib

import stringzilla
import zstandard

from tfdock.host.block_stream import Program, Reader, TakeRequest
from tfdock.wheel.facts import FoundCode, Images, Kind, Packing

MAGIC, COMPRESSED_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
ALIGNMENT = 4096

_MOST_ENTRIES = 1024
_MOST_ID = 512
_NAME = re.compile(rb"[!-~]+")
# Enough of a compressed bundle for its table of entries, which is in zstd's first block.
_BLOCK = 128 << 10  # the most that a block unpacks to, and takes packed, without its header
_HEAD = _BLOCK + 64
# Versions 1 to 3 exist. Later versions are found too, and reported as unknown.
_COMPRESSED = tuple(
    COMPRESSED_MAGIC + struct.pack("<HH", version, method) for version in range(1, 9) for method in (0, 1)
)
#: Version of `CCOB` -> the formats of the total size and of the unpacked size, and the offset of the data.
_LAYOUTS = {1: ("", "<I", 20), 2: ("<I", "<I", 24), 3: ("<Q", "<Q", 32)}


def find(data: bytes, base: int, start: int) -> int:
    """Return the next offset where a bundle may start.

    The long magic counts anywhere: a program that loads bundles itself has them among its constants. The short magic
    can occur by chance: it counts only with a valid version and method, at a multiple of 4096.
    """
    plain = int(stringzilla.find(data, MAGIC, start))
    stop = plain if plain >= 0 else len(data)
    for at in range(start + -(base + start) % ALIGNMENT, stop, ALIGNMENT):
        if data.startswith(_COMPRESSED, at):
            return at
    return plain


def bundle(start: int, stop: int) -> Program[FoundCode]:
    """Read the bundle at `start`; it must end before `stop`.

    In a section the next bundle starts at the multiple of 4096 after the end of this bundle. Version 1 of the
    compressed form has no length: `end` is then the end of the first page. For a compressed bundle, the sizes are
    those of the unpacked code, because the bundle is packed as a whole.
    """
    parsed = FoundCode(family="hip", start=start, end=start + len(MAGIC), kernels=True)
    magic = yield TakeRequest(start, len(MAGIC))
    if magic == MAGIC:
        yield from _plain(parsed, stop)
    elif magic.startswith(COMPRESSED_MAGIC):
        yield from _compressed(parsed, stop)
    else:
        parsed.problem = "it has no header"
    return parsed


def _plain(parsed: FoundCode, stop: int) -> Program[None]:
    table = _Table(start=parsed.start)
    yield from table.read()
    if not table.problem and table.end > stop:
        table.problem = "a code object reaches beyond its section"
    if not table.problem:
        parsed.end = table.end
    elif table.entries:
        parsed.end = table.at
    parsed.images, parsed.problem = table.images("raw"), table.problem


class _Damaged(Exception):
    """A phrase that names the damage in a table."""


class _Table:
    """The entries of a bundle that begins at `start`, read field by field. `at` is where the next field lies."""

    def __init__(self, start: int) -> None:
        self.at = start + len(MAGIC)
        self.end = start  # of the table and of its code objects
        self.entries = 0
        self.problem = ""
        self._start = start
        self._targets: dict[str, int] = {}

    def images(self, packing: Packing) -> dict[tuple[Kind, str], Images]:
        """Return the code objects of the entries that were read."""
        images: dict[tuple[Kind, str], Images] = {}
        for target, size in self._targets.items():
            kind: Kind = "amdgpu" if target.startswith("gfx") else "unknown"
            images[kind, target] = Images(kind=kind, target=target, count=1, size=size, packing=(packing,))
        return images

    def read(self) -> Program[None]:
        """Read all entries, up to the first damage."""
        try:
            (count,) = struct.unpack("<Q", (yield from self._field(8)))
            if count > _MOST_ENTRIES:
                raise _Damaged(f"it claims {count} entries")
            for _ in range(count):
                yield from self._entry()
        except _Damaged as damage:
            self.problem = str(damage)

    def _entry(self) -> Program[None]:
        offset, size, length = struct.unpack("<QQQ", (yield from self._field(24)))
        if not 0 < length <= _MOST_ID:
            raise _Damaged(f"an entry's name has {length} bytes")
        name = yield from self._field(length)
        if not _NAME.fullmatch(name):
            raise _Damaged(f"an entry's name is not valid text: {name[:40]!r}")
        self.entries += 1
        self.end = max(self.end, self._start + offset + size)
        # Older ids have one hyphen before the target (`hip-amdgcn-amd-amdhsa-gfx906`), newer ones two.
        kind, mark, target = name.decode().partition("-gfx")
        # The first entry is the host's. It has no code, and its spelling changed from ROCm 5.6 to 5.7.
        if size and kind.partition("-")[0] != "host":
            code = f"gfx{target}" if mark else name.decode()  # SPIR-V, for example, is for no target yet
            self._targets[code] = self._targets.get(code, 0) + size

    def _field(self, length: int) -> Program[bytes]:
        # If no entry follows, the magic is a constant of a program. GPU code may follow at once, so these bytes are
        # kept for the next search.
        kept = self.at if self.entries else self._start
        data = yield TakeRequest(kept, self.at + length - kept)
        field: bytes = data[self.at - kept :]
        self.at += length
        self.end = max(self.end, self.at)
        if len(field) < length:
            raise _Damaged("its table is cut off")
        return field


def _compressed(parsed: FoundCode, stop: int) -> Program[None]:
    head = yield TakeRequest(parsed.start, 32)
    version, method = struct.unpack_from("<HH", head, 4) if len(head) >= 20 else (0, 0)
    layout = _LAYOUTS.get(version)
    if layout is None or method > 1 or len(head) < layout[2]:
        parsed.problem = f"it is compressed in an unknown form (version {version}, method {method})"
        return
    total, _, data_at = layout
    packing: Packing = "zstd" if method else "zlib"
    end = parsed.start + struct.unpack_from(total, head, 8)[0] if total else stop
    if end > stop or end < parsed.start + data_at:
        parsed.problem = "it claims to have more bytes than exist"
        return
    parsed.exact = bool(total)
    # The first page is part of the bundle: packed data start with the long magic, which is not another bundle.
    parsed.end = end if parsed.exact else parsed.start + ALIGNMENT
    data = yield TakeRequest(parsed.start + data_at, min(end - parsed.start - data_at, _HEAD))
    # Offsets in a packed bundle count from its unpacked start, so they say nothing about the file.
    table, unpacked = _Table(start=0), _unpacked(data, packing)
    if unpacked.startswith(MAGIC):
        reader = Reader(table.read())
        reader.feed(unpacked)
        reader.close()
    else:
        table.problem = "it does not unpack to a bundle"
    parsed.images, parsed.problem = table.images(packing), table.problem


def _unpacked(data: bytes, packing: Packing) -> bytes:
    """Return the beginning of the unpacked data, up to 128 KiB; empty for invalid data."""
    try:
        if packing == "zlib":
            return zlib.decompressobj().decompress(data, _BLOCK)
        return zstandard.ZstdDecompressor().decompress(_first_block(data), max_output_size=_BLOCK)
    except (zlib.error, zstandard.ZstdError, IndexError):
        return b""


def _first_block(data: bytes) -> bytes:
    """Return a zstd frame of the first block alone (RFC 8878, 3.1.1).

    clang's frames may refer back 128 MiB, and a plain decoder would need this much memory at once.
    """
    descriptor = data[4]
    single = bool(descriptor & 0x20)
    content_size = (int(single), 2, 4, 8)[descriptor >> 6]
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    at = 5 + (not single) + dictionary + content_size
    # Bit 0 marks the last block, bits 1 and 2 the type (1 is RLE), the rest the size.
    header = int.from_bytes(data[at : at + 3], "little")
    length = 1 if header >> 1 & 3 == 1 else header >> 3  # in bytes: an RLE block has one byte
    plain = bytes([0, 7 << 3])  # no size, no checksum, a window of 128 KiB
    # The first block is marked as the last, so that the decoder does not ask for more.
    return data[:4] + plain + (header | 1).to_bytes(3, "little") + data[at + 3 : at + 3 + length]
