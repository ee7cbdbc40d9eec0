"""Read the requirements of libraries from ELF files: 64-bit, little endian (x86-64 and ARM).

Names and layout follow the System V ABI, chapters 4 and 5, and the Linux Standard Base (symbol versions). Every
function takes bytes and raises `ElfError` for invalid bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

MAGIC = b"\x7fELF"
HEADER_SIZE = 64
PROGRAM_HEADER_SIZE = 56
SECTION_HEADER_SIZE = 64

# PT_GNU_STACK and the version tags are from the Linux Standard Base; the System V ABI has none of them.
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
PF_X, PF_W = 1, 2
SHT_NOBITS = 8
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_TEXTREL, DT_RUNPATH, DT_FLAGS = 1, 5, 10, 14, 15, 22, 29, 30
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
DF_TEXTREL = 4
EM_X86_64, EM_AARCH64, EM_CUDA = 62, 183, 190

#: e_machine -> the name in platform tags.
MACHINES = {
    3: "i686",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    EM_X86_64: "x86_64",
    EM_AARCH64: "aarch64",
    243: "riscv64",
}

_MOST_ENTRIES = 1 << 17  # of a table: real tables have a few dozen, an assembler's output up to 100,000 sections
# Tables may overlap: 65,535 libraries that share one list of 65,535 versions would be 4,000 million versions.
_MOST_VERSIONS = 1 << 12


class ElfError(Exception):
    """An invalid ELF structure; the text is a phrase that names the damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfHeader:
    """The used fields of the ELF header; offsets are in bytes from the start of the file."""

    machine: int
    program_headers: int
    program_count: int
    section_headers: int
    section_count: int
    names_index: int

    @property
    def program_bytes(self) -> int:
        """The size of all program headers."""
        return self.program_count * PROGRAM_HEADER_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section header."""

    name: str
    kind: int
    offset: int
    size: int


def machine(data: bytes) -> str:
    """Return the processor of a file, from its first 20 bytes: `x86_64`; `machine-<number>` without a known name."""
    # Byte 5 states the byte order. A file for s390x must be recognised, but nothing else in the file is read.
    number = int.from_bytes(data[18:20], "big" if data[5:6] == b"\2" else "little")
    return MACHINES.get(number, f"machine-{number}")


def is_read(data: bytes) -> bool:
    """Return whether this module can read the file: it must be 64-bit and little-endian."""
    return data[4:6] == b"\2\1"


def header(data: bytes) -> ElfHeader:
    """Read the header from the first 64 bytes of a file that `is_read` accepts."""
    if not data.startswith(MAGIC) or len(data) < HEADER_SIZE or not is_read(data):
        raise ElfError("its ELF header is incomplete")
    values = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
    _, number, _, _, program_headers, section_headers, _, _, *counts = values
    program_size, program_count, section_size, section_count, names_index = counts
    # The ABI lets a file state the size of its headers. For 64-bit files only one size exists.
    if program_count and program_size != PROGRAM_HEADER_SIZE:
        raise ElfError(f"its program headers have {program_size} bytes each")
    if section_headers and section_size != SECTION_HEADER_SIZE:
        raise ElfError(f"its section headers have {section_size} bytes each")
    return ElfHeader(
        machine=number,
        program_headers=program_headers,
        program_count=program_count,
        section_headers=section_headers,
        section_count=section_count,
        names_index=names_index,
    )


def segments(data: bytes, head: ElfHeader) -> tuple[Segment, ...]:
    """Read the program headers from their bytes."""
    headers = []
    for at in range(0, head.program_bytes, PROGRAM_HEADER_SIZE):
        kind, flags, offset, address, _, size = _unpack("<IIQQQQ16x", data, at, "its program headers are cut off")
        headers.append(Segment(kind=kind, flags=flags, offset=offset, address=address, size=size))
    return tuple(headers)


_SectionRow = tuple[int, int, int, int]  #: The offset of the section's name in its table, kind, offset, size.


def section_headers(read: Callable[[int, int], bytes], head: ElfHeader) -> tuple[list[_SectionRow], _SectionRow]:
    """Return the rows of all sections, and the row of their names. `read(offset, length)` reads from the file."""
    # A count of 0 means `sh_size` of section 0, an index of 0xFFFF means its `sh_link` (ABI, chapter 4).
    first = read(head.section_headers, SECTION_HEADER_SIZE)
    size, link = _unpack("<QI", first, 32, "its section headers are cut off")
    # From 65,280 sections on (SHN_LORESERVE) the header's count is 0; -ffunction-sections can make this many.
    count = head.section_count or size
    index = link if head.names_index == 0xFFFF else head.names_index
    if count > _MOST_ENTRIES:
        raise ElfError(f"it claims to have {count} sections")
    data = read(head.section_headers, count * SECTION_HEADER_SIZE)
    if len(data) < count * SECTION_HEADER_SIZE:
        raise ElfError("its section headers are cut off")
    unpacked = struct.iter_unpack("<IIQQQQ24x", data)
    rows = [(name, kind, offset, size) for name, kind, _, _, offset, size in unpacked]
    if not 0 <= index < len(rows):
        raise ElfError("its sections have no names")
    return rows, rows[index]


def named_sections(rows: list[_SectionRow], names: bytes, wanted: Iterable[str]) -> list[Section]:
    """Return the sections with these names.

    Linkers may store a name as the end of another name, so a name may start anywhere.
    """
    places = {}
    for name in wanted:
        text = name.encode() + b"\0"
        at = names.find(text)
        while at >= 0:
            places[at] = name
            at = names.find(text, at + 1)
    return [
        Section(name=places[name], kind=kind, offset=offset, size=size)
        for name, kind, offset, size in rows
        if name in places
    ]


# Without a limit, a table of one endless name costs a copy of the table for each entry.
def text_at(table: bytes, at: int, longest: int) -> str:
    """Return the NUL-terminated text at an offset of a string table, of at most `longest` bytes."""
    end = table.find(b"\0", at, at + longest + 1)
    if not 0 <= at < len(table) or end < 0:
        raise ElfError("a name reaches beyond its string table, or is too long")
    return table[at:end].decode("utf-8", "replace")


MOST_DYNAMIC = 16 * _MOST_ENTRIES  #: The maximum of bytes read from a dynamic segment.


def dynamic(data: bytes) -> list[tuple[int, int]]:
    """Return the (tag, value) pairs of a dynamic segment, up to its end mark."""
    entries: list[tuple[int, int]] = []
    for at in range(0, len(data) - 15, 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        # DT_NULL is the end mark. Linkers leave room for more entries after it.
        if tag == 0:
            return entries
        entries.append((tag, value))
    raise ElfError("its dynamic segment has no end")


def offset_of(loads: tuple[Segment, ...], address: int) -> int:
    """Return the offset in the file of a virtual address."""
    for segment in loads:
        # The dynamic segment holds addresses in memory, and not offsets in the file.
        if segment.kind == PT_LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    raise ElfError(f"the address {address:#x} is in no part of the file")


def version_needs(read: Callable[[int, int], bytes], count: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (offset of the library's name, offsets of its versions' names) in the string table.

    `read(offset, length)` reads relative to the table's start.
    """
    at, left = 0, _MOST_VERSIONS
    for _ in range(count):
        _, names, file, aux, step = _unpack("<HHIII", read(at, 16), 0, "its table of required versions is cut off")
        versions, place = [], at + aux
        for _ in range(names):
            _, _, _, name, onward = _unpack("<IHHII", read(place, 16), 0, "its table of required versions is cut off")
            versions.append(name)
            left -= 1
            if left < 0:
                raise ElfError(f"it requires more than {_MOST_VERSIONS} versions")
            # A step of 0 ends a list, whatever the count says.
            if not onward:
                break
            place += onward
        yield file, versions
        left -= 1
        if not step or left < 0:
            return
        at += step


def has_kernel(cubin: bytes) -> bool:
    """Return whether a whole cubin has code: a section `.text.<kernel>` that is not empty."""
    head = header(cubin)
    if head.machine != EM_CUDA:
        # The payload of a cubin entry can be any file. Sections of other files say nothing about kernels.
        raise ElfError("a cubin is for another machine")
    rows, (_, _, offset, size) = section_headers(lambda start, length: cubin[start : start + length], head)
    names = cubin[offset : offset + size]
    return any(length and names.startswith(b".text.", name) for name, _, _, length in rows)


def _unpack(layout: str, data: bytes, at: int, part: str) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, data, at)
    except struct.error:
        raise ElfError(part) from None
