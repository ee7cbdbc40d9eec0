"""Wheels made to deceive, to crash, to hang or to fill the memory: each is told for what it is, at little cost.

What a single header or document can get wrong is in test_wheel.py; its wheels are weighed here once more. These are
the archives that need more than one lie, and those that are sound but carry hostile contents.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import zstandard

from tfdock.wheel.facts import WheelError
from tfdock.wheel.inspection import inspect_wheel

from .. import elf_files as elf
from ..samples import SOAK, sample
from .test_wheel import (
    CODE,
    CONTENTS,
    FILENAME,
    INFO,
    METADATA,
    REFUSED,
    STORED,
    WHEEL,
    WRONG_RECORDS,
    File,
    documents,
    make_wheel,
    pack,
    patch,
    piped,
    record_file,
    record_of,
    with_path,
    with_record,
)

Build = Callable[[], bytes]
MIB = 1 << 20
MOST_MIB = 300
HANGS = 120  #: Seconds after which a process is ended: it would never end by itself.


def problems(data: bytes) -> list[str]:
    """What is found in an archive that is none, or in its parts: codes, and problems of libraries."""
    try:
        told = inspect_wheel(io.BytesIO(data), FILENAME)
    except WheelError as error:
        return [error.code]
    return [
        *(problem.code for problem in told.wheel.record_problems),
        *(problem for library in told.libraries for problem in library.problems),
    ]


# --- archives written byte by byte ----------------------------------------------------------------------------------

#: Blocks, each with how often it is repeated: a large file that packs to next to nothing.
Pieces = Sequence[tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class Packed:
    """A member's deflate stream, and what its headers and RECORD say of it.

    With `start`, no such member is written: the directory says that it is there.
    """

    packed: bytes
    crc: int
    size: int
    digest: str = ""
    method: int = 8
    start: int | None = None

    def header(self, name: str) -> bytes:
        """What a local header and a directory entry have in common, without the name."""
        sizes = (self.crc, len(self.packed), self.size, len(name.encode()), 0)
        utf8 = 0 if name.isascii() else 0x800
        return struct.pack("<HHHHHIIIHH", 20, utf8, self.method, 0, 33, *sizes)

    def local(self, name: str) -> bytes:
        return b"PK\3\4" + self.header(name) + name.encode() + self.packed


def deflated_once(pieces: Pieces) -> Packed:
    packed, crc, size, digest = b"", 0, 0, hashlib.sha256()
    for block, times in pieces:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        # A full flush ends at a byte and forgets what came before, so that the piece can follow itself.
        packed += (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * times
        size += len(block) * times
        for _ in range(times):
            crc = zlib.crc32(block, crc)
            digest.update(block)
    return Packed(packed + b"\3\0", crc, size, base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode())


def archive_of(members: Mapping[str, Packed]) -> bytes:
    """An archive of members as they are, whatever their headers say."""
    data, directory = bytearray(), b""
    for name, one in members.items():
        mode = 0o40755 if name.endswith("/") else 0o100644
        start = len(data) if one.start is None else one.start
        directory += b"PK\1\2" + struct.pack("<H", 0x314) + one.header(name)
        directory += struct.pack("<HHHII", 0, 0, 0, mode << 16, start) + name.encode()
        data += one.local(name) if one.start is None else b""
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(data), 0)
    return bytes(data) + directory + end


def sound_with(name: str, odd: Packed) -> bytes:
    """A sound wheel, and a member of which RECORD says nothing."""
    files = [*CONTENTS, *documents()]
    members = {file.name: deflated_once([(file.data, 1)]) for file in [*files, record_file(record_of(files))]}
    return archive_of({**members, name: odd})


# --- archives that lie in more than one place -----------------------------------------------------------------------


def whole_pipe() -> bytes:
    """A sound wheel with data descriptors behind its members."""
    files = [*CONTENTS, *documents()]
    return piped([*files, record_file(record_of(files))])


def descriptor_changed(at: int) -> bytes:
    """A byte of the first member's data descriptor changed; `at` counts from its signature."""
    data = bytearray(whole_pipe())
    data[data.index(b"PK\7\10") + at] ^= 1
    return bytes(data)


def before_directory(junk: bytes) -> bytes:
    """Bytes between the last member and the directory, where the directory's own offset says so."""
    data = make_wheel()
    start = struct.unpack_from("<I", data, len(data) - 6)[0]
    return data[:start] + junk + data[start:-6] + struct.pack("<IH", start + len(junk), 0)


def commented(comment: bytes) -> bytes:
    return make_wheel(comment=comment)


def second_archive() -> bytes:
    """In the comment: another whole archive, with other contents under the same names, its offsets made to fit."""
    files = [File(name=CODE, data=b"evil = True\n"), *documents()]
    other = pack([*files, record_file(record_of(files))])
    members, size, start = struct.unpack("<HII", other[-12:-2])
    before = len(make_wheel())
    moved = bytearray(other)
    with zipfile.ZipFile(io.BytesIO(other)) as archive:
        at = archive.start_dir
        for info in archive.infolist():
            struct.pack_into("<I", moved, at + 42, info.header_offset + before)
            at += 46 + len(info.filename.encode()) + len(info.extra)
    moved[-12:-2] = struct.pack("<HII", members, size, start + before)
    return commented(bytes(moved))


def quoted() -> bytes:
    """The zip bomb without recursion: a member's stored block quotes the next header, so that both own its bytes."""
    inner = Packed(b"b", zlib.crc32(b"b"), 1, method=0, start=30 + len("demo_pkg/a") + 5)
    local = inner.local("demo_pkg/b")
    body = struct.pack("<BHH", 1, len(local), len(local) ^ 0xFFFF) + local
    outer = Packed(body, zlib.crc32(local), len(local))
    return archive_of({"demo_pkg/a": outer, "demo_pkg/b": inner})


def inside_folder() -> bytes:
    """A folder with no bytes of contents, packed into some."""
    return sound_with("demo_pkg/folder/", Packed(b"\3\0a payload that no reader of folders sees", 0, 0))


def zip64_lie(where: str) -> bytes:
    """Sizes that stand in zip64's field, one of them wrong in the local header or in the directory."""
    field = struct.pack("<HHQQ", 1, 16, len(STORED.data), len(STORED.data))
    wrong = struct.pack("<HHQQ", 1, 16, len(STORED.data), len(STORED.data) + 1)
    data = make_wheel(File(name="demo_pkg/wide", data=STORED.data, method=zipfile.ZIP_STORED, extra=field))
    wide = b"\xff" * 8
    data = patch(data, "demo_pkg/wide", local={18: wide}, central={20: wide})
    assert problems(data) == []
    at = data.index(field) if where == "local" else data.rindex(field)
    return data[:at] + wrong + data[at + len(wrong) :]


def wrong_crc() -> bytes:
    """Right contents, and a wrong CRC in both places."""
    crc = struct.pack("<I", zlib.crc32(CONTENTS[0].data) ^ 1)
    return patch(make_wheel(), CODE, local={14: crc}, central={16: crc})


def deflated(stream: bytes) -> bytes:
    """A member whose packed bytes are this stream, with size and CRC of `STORED`."""
    return sound_with("demo_pkg/odd", Packed(stream, zlib.crc32(STORED.data), len(STORED.data)))


def stream(*, last: bool = True) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(STORED.data) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def damaged_elf() -> bytes:
    return make_wheel(File(name="demo_pkg/damaged.so", data=b"\x7fELF\2\1\1" + bytes(30)))


def other_method(number: int) -> bytes:
    method = struct.pack("<H", number)
    return patch(make_wheel(STORED), STORED.name, local={8: method}, central={10: method})


def with_kind(kind: int) -> bytes:
    return make_wheel(File(name="demo_pkg/special", kind=kind))


def unlisted_folder_file() -> bytes:
    """METADATA is a folder."""
    return make_wheel(File(name=f"{INFO}/METADATA/", kind=stat.S_IFDIR, mode=0o755), metadata=None)


def flagged(local: int, central: int) -> bytes:
    """General purpose flags of a member, in its two headers."""
    return patch(make_wheel(), CODE, local={6: struct.pack("<H", local)}, central={8: struct.pack("<H", central)})


LIES: dict[str, tuple[Build, str]] = {
    "data between the last member and the directory": (lambda: before_directory(b"payload"), "wheel-hidden-data"),
    "a whole archive in the comment": (second_archive, "wheel-leading-data"),
    "an end record in the comment": (lambda: commented(b"PK\5\6" + bytes(18)), "wheel-leading-data"),
    "half an end record in the comment": (lambda: commented(b"..PK\5\6.."), "wheel-not-a-zip"),
    "members that quote each other": (quoted, "wheel-overlapping-members"),
    "data descriptor with another CRC": (lambda: descriptor_changed(4), "wheel-hidden-data"),
    "data descriptor with another packed size": (lambda: descriptor_changed(8), "wheel-hidden-data"),
    "data descriptor with another size": (lambda: descriptor_changed(12), "wheel-hidden-data"),
    "data descriptor announced in the local header alone": (lambda: flagged(8, 0), "wheel-header-mismatch"),
    "data descriptor announced and not there": (lambda: flagged(8, 8), "wheel-hidden-data"),
    "encrypted by the local header alone": (lambda: flagged(1, 0), "wheel-header-mismatch"),
    "strong encryption": (lambda: flagged(0x41, 0x41), "wheel-encrypted"),
    "names encrypted": (lambda: flagged(0x2000, 0x2000), "wheel-encrypted"),
    "name in UTF-8 by one header alone": (lambda: flagged(0x800, 0), "wheel-header-mismatch"),
    "patched data": (lambda: flagged(0x20, 0x20), "wheel-bad-compression"),
    "AES, which is a method of its own": (lambda: other_method(99), "wheel-bad-compression"),
    "deflate64": (lambda: other_method(9), "wheel-bad-compression"),
    "zstd": (lambda: other_method(93), "wheel-bad-compression"),
    "zip64 sizes that lie, in the local header": (lambda: zip64_lie("local"), "wheel-header-mismatch"),
    "zip64 sizes that lie, in the directory": (lambda: zip64_lie("central"), "wheel-header-mismatch"),
    "contents of a folder": (inside_folder, "wheel-corrupt-member"),
    "wrong CRC in both headers": (wrong_crc, "wheel-corrupt-member"),
    "bytes after the deflate stream": (lambda: deflated(stream() + b"more"), "wheel-corrupt-member"),
    "two deflate streams": (lambda: deflated(stream() + stream()), "wheel-corrupt-member"),
    "deflate stream that does not end": (lambda: deflated(stream(last=False)), "wheel-corrupt-member"),
    "deflate stream that breaks off": (lambda: deflated(stream()[:-3]), "wheel-corrupt-member"),
    "no deflate stream": (lambda: deflated(b"\7" * 20), "wheel-corrupt-member"),
    "named pipe": (lambda: with_kind(stat.S_IFIFO), "wheel-special-file"),
    "socket": (lambda: with_kind(stat.S_IFSOCK), "wheel-special-file"),
    "block device": (lambda: with_kind(stat.S_IFBLK), "wheel-special-file"),
    "escape sequence in a path": (lambda: with_path("demo_pkg/\x1b[2J"), "wheel-unsafe-path"),
    "invisible character in a path": (lambda: with_path("demo_pkg/__init__\u200b.py"), "wheel-unsafe-path"),
    "line separator in a path": (lambda: with_path("demo_pkg/a\u2028b"), "wheel-unsafe-path"),
    "share of another machine": (lambda: with_path("//server/x"), "wheel-unsafe-path"),
    "parent at the end of a path": (lambda: with_path("demo_pkg/.."), "wheel-unsafe-path"),
    "NUL in a path": (
        lambda: patch(with_path("demo_pkg/x.pyQy"), "demo_pkg/x.pyQy", central={60: b"\0"}, local={44: b"\0"}),
        "wheel-unsafe-path",
    ),
    "RECORD twice": (lambda: make_wheel(File(name=f"{INFO}/RECORD", record=False)), "wheel-duplicate-member"),
    "METADATA is a folder": (unlisted_folder_file, "wheel-missing-metadata"),
    "RECORD larger than any": (lambda: with_record(bytes(33 * MIB)), "wheel-too-large"),
    "METADATA without text": (lambda: make_wheel(metadata=""), "wheel-bad-metadata"),
    "WHEEL without text": (lambda: make_wheel(tags=""), "wheel-bad-metadata"),
    "RECORD escapes the wheel": (
        lambda: make_wheel(record=lambda rows: [*rows, ["../../etc/passwd", "sha256=x", "1"]]),
        "record-no-such-file",
    ),
    "RECORD has another's hash": (
        lambda: make_wheel(record=lambda rows: [[rows[0][0], rows[1][1], rows[0][2]], *rows[1:]]),
        "record-wrong-hash",
    ),
    "a library that is damaged": (damaged_elf, "its ELF header is incomplete"),
}


@pytest.mark.parametrize(("build", "expected"), LIES.values(), ids=LIES)
def test_each_lie_is_found_for_what_it_is(build: Build, expected: str) -> None:
    assert problems(build()) == [expected]


def test_a_wheel_inside_a_wheel_is_a_file_like_any_other() -> None:
    """Nothing is unpacked twice, so that an archive which holds itself is no trap."""
    again = File(name="demo_pkg/again.whl", data=make_wheel(), method=zipfile.ZIP_STORED)
    assert problems(make_wheel(again)) == []


def boundaries(data: bytes) -> set[int]:
    """Where a part of an archive starts or ends: headers, names, contents, directory entries, the end record."""
    ends = {0, len(data) - 22}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        at = archive.start_dir
        for info in archive.infolist():
            name = len(info.filename.encode())
            start = info.header_offset + 30
            ends |= {info.header_offset, start, start + name, start + name + info.compress_size}
            ends |= {at, at + 46, at + 46 + name}
            at += 46 + name
    return ends


def test_a_wheel_cut_short_at_any_boundary_is_no_archive() -> None:
    data = make_wheel()
    found_at = {at + more: problems(data[: at + more]) for at in boundaries(data) for more in (0, 1)}
    assert [at for at, found in found_at.items() if found != ["wheel-not-a-zip"]] == []


def test_a_wheel_that_lacks_its_first_bytes_is_refused_at_any_boundary() -> None:
    data = make_wheel()
    codes = {code for at in boundaries(data) if at for code in problems(data[at:])}
    assert codes <= {"wheel-not-a-zip", "wheel-leading-data"}


# --- sound archives with hostile contents ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """A wheel with such members, or documents other than the usual. `silent`: nothing about it is wrong."""

    members: Mapping[str, Pieces]
    metadata: bytes = METADATA.encode()
    tags: bytes = WHEEL.encode()
    record: bytes = b""
    silent: bool = False

    def write(self, path: Path) -> None:
        """Pack without unpacking: a repeated block is deflated once."""
        files = {name: deflated_once(pieces) for name, pieces in self._files().items()}
        rows = "".join(f"{name},sha256={one.digest},{one.size}\n" for name, one in files.items())
        record = self.record or f"{rows}{INFO}/RECORD,,\n".encode()
        files[f"{INFO}/RECORD"] = deflated_once([(record, 1)])
        path.write_bytes(archive_of(files))

    def _files(self) -> dict[str, Pieces]:
        info = {f"{INFO}/METADATA": [(self.metadata, 1)], f"{INFO}/WHEEL": [(self.tags, 1)]}
        return {**self.members, **info}


def elf_of(head: bytes, mebibytes: int = 400) -> Hostile:
    """A large file of zeros behind a header."""
    return Hostile(members={"a.so": [(head.ljust(MIB, b"\0"), 1), (bytes(MIB), mebibytes)]})


def filled(section: str, block: bytes, times: int) -> Hostile:
    """A library with one large section of repeated bytes."""
    size = len(block) * times
    names = f"\0{section}\0.shstrtab\0".encode()
    end = MIB + size
    head = elf.header(segments=(64, 56, 1), sections=(end + len(names), 64, 3), names=2)
    head = (head + elf.segment(elf.PT_LOAD, 0, end)).ljust(MIB, b"\0")
    table = elf.section(0, 0, 0, 0) + elf.section(1, MIB, size) + elf.section(len(section) + 2, end, len(names), 3)
    return Hostile(members={"a.so": [(head, 1), (block, times), (names + table, 1)]})


def repeated(one: bytes, size: int = MIB, alignment: int = 8) -> bytes:
    one += bytes(-len(one) % alignment)
    return one * max(size // len(one), 1)


def sections_over(code: bytes, headers: Iterable[bytes]) -> Hostile:
    """A library of that code and 65533 sections with GPU code, wherever the headers say; the code is at 120."""
    names = b"\0.nv_fatbin\0.shstrtab\0".ljust(24, b"\0")
    end = 120 + len(code)
    head = elf.header(segments=(64, 56, 1), sections=(end + 24, 64, 65535), names=1)
    table = elf.section(0, 0, 0, 0) + elf.section(12, end, 22, 3) + b"".join(headers)
    return Hostile(members={"a.so": [(head + elf.segment(elf.PT_LOAD, 0, end) + code + names + table, 1)]})


def long_names(first: Iterable[int]) -> Hostile:
    """65533 sections, whose names are 16 MiB long."""
    size = (16 * MIB) - 2
    end = 120 + size
    head = elf.header(segments=(64, 56, 1), sections=(end, 64, 65535), names=1)
    table = elf.section(0, 0, 0, 0) + elf.section(0, 120, size, 3) + b"".join(elf.section(at, 0, 0) for at in first)
    names = b"A" * (size - 1) + b"\0"
    return Hostile(members={"a.so": [(head + elf.segment(elf.PT_LOAD, 0, end) + names + table, 1)]}, silent=True)


def versions(needs: bytes, count: int, names: bytes = b"\0lib\0GLIBC_2.17\0") -> bytes:
    """A library with that table of version needs; the library's name is at 1 of the names, a version's at 5."""
    dynamic: list[tuple[int, int | str]] = [
        (elf.STRTAB, ".dynstr"),
        (elf.STRSZ, len(names)),
        (elf.VERNEED, ".gnu.version_r"),
        (elf.VERNEEDNUM, count),
    ]
    return elf.library((".dynstr", names), (".gnu.version_r", needs), dynamic=dynamic)


def versions_of_versions() -> Hostile:
    """65535 libraries, each of which wants the same 65535 versions."""
    count = 65535
    needs = [struct.pack("<HHIII", 1, count, 1, 16 * (count - at), 16) for at in range(count)]
    wants = [struct.pack("<IHHII", 0, 0, 2, 5, 16)] * count
    return Hostile(members={"a.so": [(versions(b"".join(needs + wants), count), 1)]})


def one_version(name: str) -> Hostile:
    needs = struct.pack("<HHIII", 1, 1, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 2, 5, 0)
    data = versions(needs, 1, f"\0lib\0{name}\0".encode())
    return Hostile(members={"a.so": [(data, 1)]}, silent=True)


def dynamic_entries(tag: int, text: bytes, libraries: int) -> Hostile:
    """Libraries with 4000 such entries, all of one long text."""
    names = b"\0" + text + b"\0"
    dynamic: list[tuple[int, int | str]] = [(elf.STRTAB, ".dynstr"), (elf.STRSZ, len(names)), *[(tag, 1)] * 4000]
    data = elf.library((".dynstr", names), dynamic=dynamic)
    return Hostile(members={f"{at}.so": [(data, 1)] for at in range(libraries)}, silent=True)


def endless_dynamic() -> Hostile:
    size = 400 * MIB
    head = elf.header(segments=(64, 56, 2)) + elf.segment(elf.PT_LOAD, 0, size)
    head = (head + elf.segment(elf.PT_DYNAMIC, MIB, size)).ljust(MIB, b"\0")
    return Hostile(members={"a.so": [(head, 1), (struct.pack("<QQ", 1, 1) * (MIB // 16), 400)]})


def small_cubin(packing: elf.Packing) -> bytes:
    """Less than 4 KiB, of which 1 MiB unpacks without a kernel in it."""
    return elf.container(elf.Image(kind=2, number=80, packing=packing, contents=elf.cubin(0, MIB - 2048)))


def broken_containers() -> Hostile:
    """Each claims to be larger than the file."""
    one = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, (1 << 64) - 1)
    data = elf.library((".nv_fatbin", one * 6000), alignment=8)
    return Hostile(members={f"{at}.so": [(data, 1)] for at in range(5000)})


def read_twice() -> Hostile:
    """Libraries whose code does not lie as linkers lay it: they are looked at once more."""
    one = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, (1 << 64) - 1)
    data = elf.library((".rodata", bytes(7 * MIB)), (".nv_fatbin", one), alignment=8)
    return Hostile(members={f"{at}.so": [(data, 1)] for at in range(60)})


def different_containers() -> Hostile:
    """Each of 6000 holds another list of targets."""
    lists = [[elf.Image(kind=2, number=10 + bit) for bit in range(13) if at >> bit & 1] for at in range(1, 6000)]
    data = elf.library((".nv_fatbin", b"".join(elf.container(*one) for one in lists)), alignment=8)
    return Hostile(members={f"{at}.so": [(data, 1)] for at in range(100)}, silent=True)


def full_libraries() -> Hostile:
    """Each holds nearly as much as one may; before them a file whose turn comes last, since it is the smallest."""
    pairs = itertools.islice(itertools.combinations(range(100, 400), 2), 16_000)
    codes = [elf.container(*(elf.Image(kind=2, number=one) for one in pair)) for pair in pairs]
    data = elf.library((".nv_fatbin", b"".join(codes)), alignment=8)
    return Hostile(members={"first.py": [(b"", 1)], **{f"{at}.so": [(data, 1), (bytes(MIB), 8)] for at in range(30)}})


GFX = "hipv4-amdgcn-amd-amdhsa--gfx90a"


def large_window() -> bytes:
    """A bundle that asks for 128 MiB to be unpacked into."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data: bytes = packer.compress(elf.bundle({GFX: b"x"}, 1)) + packer.compress(bytes(300 * MIB)) + packer.flush()
    return b"CCOB" + struct.pack("<HHQQQ", 3, 1, 32 + len(data), 301 * MIB, 0) + data


def many_names() -> bytes:
    return elf.bundle({f"hipv4-amdgcn-amd-amdhsa--gfx{at}{'x' * 450}": b"y" for at in range(1000)}, 1)


def deep_paths() -> Hostile:
    """Paths of 30,000 folders."""
    return Hostile(members={f"{at}/" + "a/" * 30_000 + "b": [(b"", 1)] for at in range(100)}, silent=True)


def tag_product() -> bytes:
    parts = ".".join(f"p{at}" for at in range(3000))
    return f"{WHEEL}Tag: {parts}-{parts}-{parts}\n".encode()


ACCOUNT = "tensorflow/python/platform/build_info.py"


def account(source: bytes) -> Hostile:
    return Hostile(members={ACCOUNT: [(source, 1)]}, silent=True)


HOSTILE: dict[str, Callable[[], Hostile]] = {
    "program headers of 4 GiB": lambda: elf_of(elf.header(segments=(64, 65535, 65535))),
    "section headers of 4 GiB": lambda: elf_of(elf.header(sections=(64, 65535, 65535))),
    "2^40 sections": lambda: elf_of(
        elf.header(sections=(64, 64, 0)) + struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 1 << 40, 0, 0, 0, 0)
    ),
    "an endless dynamic table": endless_dynamic,
    "versions of versions": versions_of_versions,
    "65533 sections of one long name": lambda: long_names([0] * 65533),
    "65533 sections of long names": lambda: long_names(range(65533)),
    "65533 sections with GPU code": lambda: sections_over(
        elf.packed_container(b"") * 65536, [elf.section(1, 120 + 16 * at, 16) for at in range(65533)]
    ),
    "65533 sections at one place": lambda: sections_over(
        elf.packed_container(b"") * 65536, [elf.section(1, 120, 16 * 65536)] * 65533
    ),
    "4000 lists of folders": lambda: dynamic_entries(elf.RUNPATH, b":" * 4094, 1),
    "needs of 4 KiB": lambda: dynamic_entries(elf.NEEDED, b"x" * 4094, 50),
    "a version with two dots": lambda: one_version("GLIBC_2..17"),
    "a version with a digit that is none": lambda: one_version("GLIBC_2.²"),
    "a version of 5000 digits": lambda: one_version("GLIBC_2." + "9" * 5000),
    "300 MiB of empty containers": lambda: filled(".nv_fatbin", repeated(elf.packed_container(b"")), 300),
    "containers in no section": lambda: Hostile(
        members=filled(".rodata", repeated(elf.packed_container(b"")), 300).members, silent=True
    ),
    "containers of a thousand targets": lambda: filled(
        ".nv_fatbin",
        b"".join(elf.container(elf.Image(kind=2, number=at, letter="af"[at % 2])) for at in range(1000)),
        3000,
    ),
    "entries without contents": lambda: filled(
        ".nv_fatbin", elf.packed_container(elf.Image(kind=2, number=80).entry() * 65000), 70
    ),
    "cubins of zstd that unpack to 1 MiB": lambda: filled(".nv_fatbin", repeated(small_cubin("zstd")), 300),
    "cubins of LZ4 that unpack to 1 MiB": lambda: filled(".nv_fatbin", repeated(small_cubin("lz4")), 300),
    "100,000 bundles": lambda: filled(".hip_fatbin", repeated(elf.bundle({GFX: b"x"}, 1), alignment=4096), 400),
    "100,000 compressed bundles": lambda: filled(
        ".hip_fatbin", repeated(elf.compressed(elf.bundle({GFX: b"x"}, 1), 1), alignment=4096), 400
    ),
    "bundles that ask for much memory": lambda: Hostile(
        members=filled(".hip_fatbin", repeated(large_window(), alignment=4096), 30).members, silent=True
    ),
    "bundles with a million targets": lambda: filled(".hip_fatbin", repeated(many_names(), alignment=4096), 300),
    "paths of 30,000 folders": deep_paths,
    "a tag for each of 27 billion": lambda: Hostile(members={}, tags=tag_product()),
    "1.5 million tags": lambda: Hostile(
        members={}, tags=WHEEL.encode() + b"".join(b"Tag: a%d-b-c\n" % at for at in range(1_500_000))
    ),
    "METADATA of 7 million fields": lambda: Hostile(members={}, metadata=METADATA.encode() + b"a:b\n" * (7 * MIB)),
    "METADATA with a text of 30 MiB": lambda: Hostile(members={}, metadata=METADATA.encode() + b"a\n" * (15 * MIB)),
    "METADATA with a field of 30 MiB": lambda: Hostile(members={}, metadata=b"Summary: a\n" + b" \n" * (15 * MIB)),
    "RECORD of 15 million lines": lambda: Hostile(members={}, record=b"a\n" * (15 * MIB)),
    "RECORD of 3 million files": lambda: Hostile(
        members={}, record=b"".join(b"%d,,\n" % at for at in range(3_000_000))
    ),
    "RECORD of one field": lambda: Hostile(members={}, record=b'"' + b"a" * (30 * MIB) + b'",,\n'),
    "RECORD of one line": lambda: Hostile(members={}, record=b"," * (30 * MIB)),
    "an account of 250,000 assignments": lambda: account(b"a=1\n" * (MIB // 4 - 1)),
    "an account of 500,000 entries": lambda: account(b"build_info={'a':[" + b"1," * (MIB // 2 - 20) + b"]}"),
    "an account that is deep": lambda: account(b"a=" + b"-" * (MIB - 5) + b"1"),
    "5000 libraries of broken containers": broken_containers,
    "60 libraries that are read twice": read_twice,
    "100 libraries of containers that differ": different_containers,
    "30 libraries that hold all they may": full_libraries,
    "20,000 libraries": lambda: Hostile(
        members={
            f"{at}.so": [(elf.library((".nv_fatbin", elf.container(elf.Image(kind=2, number=80)))), 1)]
            for at in range(20_000)
        },
        silent=True,
    ),
}

# Inspects one wheel after the other; after each says what was found, and the memory it took.
INSPECTOR = f"""
import json, resource, signal, sys
wall = {MOST_MIB} * 4 << 20
resource.setrlimit(resource.RLIMIT_AS, (wall, wall))
from tfdock.wheel.facts import WheelError
from tfdock.wheel.inspection import inspect_wheel

def late(*_):
    raise TimeoutError

def peak():
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

signal.signal(signal.SIGALRM, late)
for path in sys.stdin.read().splitlines():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew
    signal.alarm({HANGS})
    try:
        with open(path, "rb") as file:
            found = inspect_wheel(file, {FILENAME!r})
        told = [one.code for one in found.wheel.record_problems[:1]]
        told += [found.wheel.tag_problem] if found.wheel.tag_problem else []
        told += [problem for one in found.libraries for problem in one.problems][:3]
    except WheelError as error:
        told = [error.code]
    except BaseException as error:
        told = ["raised " + repr(error)]
    signal.alarm(0)
    print(json.dumps([told, peak()]), flush=True)
"""


def weighed(paths: Sequence[Path]) -> list[list[str]]:
    """What is told of wheels by another process, which ends if it takes far too much memory or hangs."""
    done = subprocess.run(
        [sys.executable, "-c", INSPECTOR],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        timeout=(HANGS + 5) * len(paths),
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(paths), f"{paths[len(results)]}: {done.returncode} {done.stderr[-500:]}"
    for told, mebibytes in results:
        assert not any(one.startswith("raised") for one in told), told
        assert mebibytes < MOST_MIB
    return [told for told, _ in results]


@pytest.mark.slow
@pytest.mark.parametrize("build", sample(HOSTILE.values(), every=4, rest=SOAK), ids=HOSTILE)
def test_hostile_contents_take_little_memory_and_raise_nothing(build: Callable[[], Hostile], tmp_path: Path) -> None:
    hostile = build()
    hostile.write(tmp_path / FILENAME)
    (told,) = weighed([tmp_path / FILENAME])
    assert hostile.silent or told, "nothing was said about it"


@pytest.mark.slow
def test_no_bad_wheel_takes_much_memory(tmp_path: Path) -> None:
    builds = [build for build, _ in LIES.values()]
    builds += [cast("Build", case.values[0]) for case in REFUSED]
    builds += [partial(make_wheel, record=cast("Any", case.values[0])) for case in WRONG_RECORDS]
    paths = [tmp_path / f"{at}.whl" for at in range(len(builds))]
    for path, build in zip(paths, builds, strict=True):
        path.write_bytes(build())
    assert all(weighed(paths)), "nothing was said about one of them"


# --- over the command line ------------------------------------------------------------------------------------------

# Started by a small process: a process that is started counts the memory of the one that starts it.
STARTER = """
import json, resource, subprocess, sys
wall = int(sys.argv[1]) << 20
limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (wall, wall))
done = subprocess.run(sys.argv[2:], capture_output=True, text=True, preexec_fn=limit)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps([done.returncode, done.stdout, done.stderr, peak]))
"""

SAID: dict[str, tuple[Build, str]] = {
    "refused": (lambda: make_wheel() + b"more", "wheel-trailing-data"),
    "wrong RECORD": (LIES["RECORD has another's hash"][0], "record-wrong-hash"),
    "damaged library": (damaged_elf, "its ELF header is incomplete"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("build", "expected"), sample(SAID.values(), every=3, rest=SOAK), ids=SAID)
def test_the_command_refuses_a_bad_wheel(build: Build, expected: str, tmp_path: Path) -> None:
    (tmp_path / FILENAME).write_bytes(build())
    assert expected in refused_by_command(tmp_path / FILENAME)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cubins of LZ4 that unpack to 1 MiB", "METADATA of 7 million fields"])
def test_the_command_takes_no_more_memory_for_hostile_contents(name: str, tmp_path: Path) -> None:
    HOSTILE[name]().write(tmp_path / FILENAME)
    refused_by_command(tmp_path / FILENAME)


def refused_by_command(path: Path) -> str:
    """The output of `tfdock inspect --json`, which refuses a wheel and takes little memory."""
    command = [sys.executable, "-m", "tfdock", "inspect", str(path), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", STARTER, str(4 * MOST_MIB), *command],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env={**os.environ, "TFDOCK_CACHE_DIR": str(path.parent / "cache")},
        check=True,
    )
    status, output, error, mebibytes = json.loads(done.stdout)
    assert status == 4, error
    assert json.loads(output)["ok"] is False
    assert mebibytes < MOST_MIB
    return str(output)
