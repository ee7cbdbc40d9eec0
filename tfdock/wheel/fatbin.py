"""Read CUDA's fat binaries: the architectures of their SASS and PTX, without decompressing them.

NVIDIA does not document the format. The layout was derived from the output of cuobjdump 12.4 and 13.5, and from
objects made by nvcc 13.0 and the fatbinary tools of CUDA 9.1 to 12.4. Only the length of the entry's header varies.

A section is a sequence of containers, each at a multiple of 8 bytes: a header of 16 bytes (magic `0xBA55ED50`, u16
version 1, u16 size of the header, u64 size of all entries), then its entries. An entry's header of at least 64 bytes
has at 0 the u16 kind (1 PTX, 2 cubin), at 4 its u32 length, at 8 the u64 length of the payload with padding, at
16 the u32 compressed length, at 24 and 26 the u16 minor and major version (for PTX: the ISA), at 28 the u32
architecture (`90`), at 40 the u64 flags, at 56 the u64 uncompressed length.
"""

from __future__ import annotations

import re
import struct
from array import array

# lz4 and zstandard unpack the small cubins, to distinguish nvcc's stubs from kernels.
import lz4.block
import stringzilla
import zstandard

from tfdock.host.block_stream import Program, TakeRequest
from tfdock.types import Capability
from tfdock.wheel import elf
from tfdock.wheel.facts import FoundCode, Images, Kind, Packing

#: Includes version and length, which are the same in every known header: a longer pattern seldom matches by chance.
MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)

_HEADER = 16
# An entry's shortest header. Headers of up to 120 bytes occur, so the length field decides where the payload starts.
_ENTRY = 64
ALIGNMENT = 8
_MOST_ENTRIES = 1 << 16  # of one container; TensorFlow's have up to a dozen
_MOST_TARGETS = 256  # of one container
# A cubin without a kernel is about a kilobyte. A larger image counts as having a kernel.
_SMALL = 4096
_MOST_UNPACKED = 1 << 16
# In a real library, magic bytes outside a container are rare. This many mean a file designed to be slow.
_MOST_ASKEW = 64
_PTX_HEAD = 512  # bytes

_LZ4, _ZSTD = 0x2000, 0x8000
# Only the flags have the letters of `sm_90a` and `sm_100f`; the architecture field is 90 or 100.
_SPECIFIC, _FAMILY = 1 << 20, 1 << 21
_PTX, _CUBIN = 1, 2


def find(data: bytes, base: int, start: int) -> int:
    """Return the next offset where a container may start: its magic, at a multiple of 8."""
    for _ in range(_MOST_ASKEW):
        start = int(stringzilla.find(data, MAGIC, start))
        if start < 0 or (base + start) % ALIGNMENT == 0:
            return start
        start += 1
    # A hostile file may be full of magic bytes: then search it word by word.
    first = start + -(base + start) % ALIGNMENT
    words = array("Q", data[first : len(data) - (len(data) - first) % ALIGNMENT])
    try:
        return first + ALIGNMENT * words.index(array("Q", MAGIC)[0])
    except ValueError:
        return -1


def container(start: int, stop: int) -> Program[FoundCode]:
    """Read the container at `start`; it must end before `stop`."""
    header = yield TakeRequest(start, _HEADER)
    parsed = FoundCode(family="cuda", start=start, end=start + _HEADER)
    if len(header) < _HEADER or not header.startswith(MAGIC):
        parsed.problem = "it has no header"
        return parsed
    (size,) = struct.unpack_from("<Q", header, 8)
    end = start + _HEADER + size
    # The size may be false. Without a check, a false size would skip the containers after this one.
    if end > stop:
        parsed.problem = f"it claims to have {size} bytes, more than exist"
        return parsed
    parsed.end = end
    at = start + _HEADER
    for _ in range(_MOST_ENTRIES):
        if at >= end or parsed.problem:
            break
        at = yield from _entry(parsed, at, end)
    else:
        parsed.problem = f"it has more than {_MOST_ENTRIES} entries"
    return parsed


def _entry(parsed: FoundCode, at: int, end: int) -> Program[int]:
    """Read the entry at this offset; return the offset of the next entry."""
    if at + _ENTRY > end:
        parsed.problem = "an entry is cut off"
        return end
    header = yield TakeRequest(at, _ENTRY)
    if len(header) < _ENTRY:
        parsed.problem = "an entry is cut off"
        return end
    kind, _, length, payload, packed, _, minor, major, number = struct.unpack_from("<HHIQIIHHI", header, 0)
    (flags,) = struct.unpack_from("<Q", header, 40)
    (unpacked,) = struct.unpack_from("<Q", header, 56)
    after = at + length + payload
    # With a length of 0, the next entry would be this one again.
    if length < _ENTRY or after > end or packed > payload:
        parsed.problem = "the lengths in an entry are impossible"
        return end
    letter = "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""
    if kind == _PTX and not letter:
        text = yield TakeRequest(at + length, min(payload, _PTX_HEAD))
        letter = _letter(text, number)
    key = name, target = _kind_and_target(kind, f"{number}{letter}")
    if key not in parsed.images and len(parsed.images) >= _MOST_TARGETS:
        parsed.problem = f"it has more than {_MOST_TARGETS} targets"
        return end
    packing: Packing = "lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else "raw"
    isa = f"{major}.{minor}" if name == "ptx" else ""
    image = Images(kind=name, target=target, count=1, size=payload, packing=(packing,), isa=isa)
    parsed.images[key] = parsed.images[key].plus(image) if key in parsed.images else image
    # One kernel shows that the container is no stub, so the other cubins are not unpacked.
    if kind == _CUBIN and payload <= _SMALL and not parsed.kernels:
        content = yield TakeRequest(at + length, payload)
        parsed.kernels = _has_kernel(content[:packed] if packed else content, packing, unpacked)
    else:
        parsed.kernels = True
    return int(after)


def _letter(text: bytes, number: int) -> str:
    """Return the letter that the flags of a PTX entry lack. The PTX names it, and LZ4 leaves its start uncompressed.

    Kernels generated by MLIR are stored this way (TensorFlow 2.16 to 2.20: PTX for sm_90a in an entry for 90).
    """
    match = re.search(rb"\.target sm_%d([af])\b" % number, text)
    return match[1].decode() if match else ""


def _kind_and_target(kind: int, number: str) -> tuple[Kind, str]:
    """Return the kind and target of an entry, whose architecture is a text such as `90a`."""
    # Kinds 0x10 and 0x40 exist, but no public tool names them. An invalid capability counts as unknown too.
    name: Kind = "ptx" if kind == _PTX else "sass" if kind == _CUBIN else "unknown"
    target = f"{'compute' if kind == _PTX else 'sm'}_{number}"
    try:
        Capability.parse(target)
    except ValueError:
        name = "unknown"
    return name, f"kind {kind:#x}, architecture {number}" if name == "unknown" else target


def _has_kernel(content: bytes, packing: Packing, unpacked: int) -> bool:
    """Return whether a small cubin has a kernel; True if the cubin cannot be read."""
    # LZ4 allocates the size that the header claims before it reads a byte.
    if unpacked > _MOST_UNPACKED:
        return True
    try:
        if packing == "lz4":
            content = lz4.block.decompress(content, uncompressed_size=unpacked)
        elif packing == "zstd":
            # A frame with a size unpacks to this size, even above the given maximum.
            size = zstandard.get_frame_parameters(content).content_size
            if size not in (unpacked, zstandard.CONTENTSIZE_UNKNOWN):
                return True
            content = zstandard.ZstdDecompressor().decompress(content, max_output_size=_MOST_UNPACKED)
        return elf.has_kernel(content)
    # A stub mistaken for a kernel only makes the verdict stricter. The opposite mistake would hide missing code.
    except (elf.ElfError, lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError):
        return True
