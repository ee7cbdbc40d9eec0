"""Shared libraries, fat binaries and offload bundles, written by the description of the formats alone.

Nothing here is shared with the readers: where both agree, it is on the format.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import lz4.block
import zstandard

PT_LOAD, PT_DYNAMIC = 1, 2
NEEDED, STRTAB, STRSZ, SONAME, RPATH, RUNPATH = 1, 5, 10, 14, 15, 29
VERNEED, VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
X86_64, CUDA, AMDGPU = 62, 190, 224


# --- ELF ------------------------------------------------------------------------------------------------------------


def header(
    *,
    machine: int = X86_64,
    segments: tuple[int, int, int] = (0, 0, 0),
    sections: tuple[int, int, int] = (0, 0, 0),
    names: int = 0,
    flags: int = 0,
) -> bytes:
    """The ELF header; a table is its offset, the size of an entry and the number of entries."""
    start = struct.pack("<4s5B7xHHI", b"\x7fELF", 2, 1, 1, 0, 0, 3, machine, 1)
    offsets = struct.pack("<QQQI", 0, segments[0], sections[0], flags)
    return start + offsets + struct.pack("<6H", 64, *segments[1:], *sections[1:], names)


def segment(kind: int, offset: int, size: int, flags: int = 4) -> bytes:
    """A program header, with the file's offset as address."""
    return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, 1)


def section(name: int, offset: int, size: int, kind: int = 1) -> bytes:
    """A section header; `name` is an offset in the table of names."""
    return struct.pack("<IIQQQQIIQQ", name, kind, 0, offset, offset, size, 0, 0, 1, 0)


def library(
    *sections: tuple[str, bytes],
    dynamic: Sequence[tuple[int, int | str]] | None = None,
    machine: int = X86_64,
    alignment: int = 4096,
) -> bytes:
    """A shared library: header, segments, sections, their names, the table of sections.

    A text as the value of an entry of `dynamic` is the section whose address it has.
    """
    tables = 1 if dynamic is None else 2
    body = bytearray(64 + 56 * tables)
    places = dict[str, int]()
    placed = [("", 0, 0)]
    for name, data in sections:
        body += bytes(-len(body) % alignment)
        places[name] = len(body)
        placed.append((name, len(body), len(data)))
        body += data
    if dynamic is not None:
        pairs = [(tag, places[value] if isinstance(value, str) else value) for tag, value in [*dynamic, (0, 0)]]
        placed.append((".dynamic", len(body), 16 * len(pairs)))
        body += b"".join(struct.pack("<QQ", *pair) for pair in pairs)
    names = b"".join(f"{name}\0".encode() for name, _, _ in [*placed, (".shstrtab", 0, 0)])
    placed.append((".shstrtab", len(body), len(names)))
    body += names
    end = len(body)
    for name, offset, size in placed:
        kind = 0 if not name else 3 if name.endswith("str") else 1
        body += section(f"\0{names.decode()}".index(f"\0{name}\0"), offset, size, kind)
    head = header(machine=machine, segments=(64, 56, tables), sections=(end, 64, len(placed)), names=len(placed) - 1)
    load = segment(PT_LOAD, 0, end)
    body[: 64 + 56] = head + load
    if dynamic is not None:
        body[120:176] = segment(PT_DYNAMIC, *placed[-2][1:])
    return bytes(body)


def version_needs(*libraries: tuple[int, Sequence[int]]) -> bytes:
    """The table of wanted versions: of a library and of its versions, where their names lie."""
    table = b""
    for at, (name, versions) in enumerate(libraries):
        step = 16 * (1 + len(versions))
        table += struct.pack("<HHIII", 1, len(versions), name, 16, step if at + 1 < len(libraries) else 0)
        for number, version in enumerate(versions):
            table += struct.pack("<IHHII", 0, 0, 2, version, 16 if number + 1 < len(versions) else 0)
    return table


def cubin(kernels: int, size: int = 0) -> bytes:
    """A cubin with so many kernels, and `size` bytes of something else."""
    texts = [(f".text.kernel{number}", b"\x4f" * 64) for number in range(kernels)]
    return library((".nv.info", bytes(48 + size)), *texts, machine=CUDA, alignment=8)


# --- CUDA -----------------------------------------------------------------------------------------------------------

Packing = Literal["raw", "lz4", "zstd"]


@dataclass(frozen=True, kw_only=True)
class Image:
    """An entry of a container: PTX is kind 1, a cubin 2."""

    kind: int
    number: int
    letter: str = ""
    packing: Packing = "raw"
    contents: bytes = b""
    isa: tuple[int, int] = (8, 3)
    head: int = 64

    @property
    def target(self) -> str:
        return f"{'compute' if self.kind == 1 else 'sm'}_{self.number}{self.letter}"

    @property
    def payload(self) -> bytes:
        """As it lies in the file, padded to 8."""
        packed = self._packed()
        return packed + bytes(-len(packed) % 8)

    def _packed(self) -> bytes:
        if self.packing == "lz4":
            return bytes(lz4.block.compress(self.contents, store_size=False))
        if self.packing == "zstd":
            return zstandard.compress(self.contents)
        return self.contents

    def entry(self) -> bytes:
        """Header and payload."""
        flags = 0x11 | {"": 0, "a": 1 << 20, "f": 1 << 21}[self.letter]
        flags |= {"raw": 0, "lz4": 0x2000, "zstd": 0x8000}[self.packing]
        compressed = self.packing != "raw"
        fields = struct.pack(
            "<HHIQIIHHIIIQQQ",
            *(self.kind, 0x101, self.head, len(self.payload), len(self._packed()) if compressed else 0, 0),
            *(self.isa[1], self.isa[0], self.number, 0, 0, flags, 0, len(self.contents) if compressed else 0),
        )
        return fields.ljust(self.head, b"\0") + self.payload


def container(*images: Image) -> bytes:
    """A fat binary, padded to 8."""
    return packed_container(b"".join(image.entry() for image in images))


def packed_container(entries: bytes) -> bytes:
    """A fat binary around entries."""
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries + bytes(-len(entries) % 8)


# --- AMD ------------------------------------------------------------------------------------------------------------

BUNDLE_ALIGNMENT = 4096


def bundle(codes: Mapping[str, bytes], alignment: int = 4096) -> bytes:
    """An offload bundle: id (`hipv4-amdgcn-amd-amdhsa--gfx90a`) -> code object."""
    start = 32 + sum(24 + len(name) for name in codes)
    table, body = struct.pack("<24sQ", b"__CLANG_OFFLOAD_BUNDLE__", len(codes)), b""
    for name, code in codes.items():
        body += bytes(-(start + len(body)) % alignment)
        table += struct.pack("<QQQ", start + len(body), len(code), len(name)) + name.encode()
        body += code
    return table + body


def compressed(plain: bytes, version: int, method: int = 1) -> bytes:
    """A compressed bundle, with zstd (1) or zlib (0)."""
    data = zstandard.compress(plain) if method else zlib.compress(plain)
    sizes = {
        1: struct.pack("<I", len(plain)),
        2: struct.pack("<II", 24 + len(data), len(plain)),
        3: struct.pack("<QQ", 32 + len(data), len(plain)),
    }
    return b"CCOB" + struct.pack("<HH", version, method) + sizes[version] + bytes(8) + data


def hip_section(*bundles: bytes) -> bytes:
    """Bundles as they follow each other in `.hip_fatbin`."""
    section = b""
    for one in bundles:
        section += bytes(-len(section) % BUNDLE_ALIGNMENT) + one
    return section
