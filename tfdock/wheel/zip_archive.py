"""Read zip archives strictly, and write them in one fixed form.

This module does not use `zipfile`, for two reasons. `zipfile` accepts archives that help an attacker: it takes the
last of two equal names, trusts the central directory, and skips unknown bytes. Its headers also differ a little
between Python versions, but a normalised wheel must have the same bytes everywhere.

Contents stream in pieces of at most 1 MiB. An invalid archive raises `WheelError`.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import BinaryIO, NamedTuple

# isal unpacks twice as fast as zlib and, like hashing, does not hold Python's lock.
from isal import isal_zlib

from tfdock.host.thread_jobs import Lock
from tfdock.wheel.facts import fail

EARLIEST_EPOCH = 315532800  # 1980-01-01T00:00:00Z, where zip's calendar starts
LATEST_EPOCH = 4354819198  # 2107-12-31T23:59:58Z, where this calendar ends; zip counts in steps of 2 s
DEFLATE_LEVEL = (
    6  # 196 MB of shared libraries: level 1 72 MB, level 6 64 MB, level 9 63 MB in four times the time of 6
)

MAX_MEMBERS = 100_000
MAX_PATH = 1024  # characters: TensorFlow's longest has 190
# The whole directory is held in memory. This limit has room for 100,000 entries of 250 bytes each.
MAX_DIRECTORY_BYTES = 24 << 20
# Limits of files that are read whole: a RECORD of 100,000 files has some 12 MiB; TensorFlow's METADATA has 5 KiB.
MAX_RECORD_BYTES = 16 << 20
MAX_DOCUMENT_BYTES = 1 << 20
MAX_UNPACKED_BYTES = 16 << 30
RATIO_FREE_BYTES = 1 << 30  # unpacked; a smaller archive is harmless, whatever its ratio
MAX_RATIO = 200  # whole archive; wheels with debug information stay below 20

BLOCK = 1 << 20
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub calls the class an instance
_PACKED_BLOCK = 1 << 18  # per call, in which Python's lock is free; unread input is copied for each MiB
_U16 = 0xFFFF
_U32 = 0xFFFF_FFFF

# --- the archive, read ------------------------------------------------------------------------------------
# Layout and field names follow PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.4.

_END = struct.Struct("<4sHHHHIIH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_END_MAGIC, _END64_LOCATOR_MAGIC, _END64_MAGIC = b"PK\5\6", b"PK\6\7", b"PK\6\6"
_CENTRAL_MAGIC, _LOCAL_MAGIC, _DESCRIPTOR_MAGIC = b"PK\1\2", b"PK\3\4", b"PK\7\10"

# Bits 0, 6 and 13: encryption, strong encryption, masked header values (APPNOTE 4.4.4).
_ENCRYPTED_FLAGS = 1 << 0 | 1 << 6 | 1 << 13
_DESCRIPTOR_FLAG = 1 << 3
# Compressed patched data: the contents would be the difference to a file that is not here.
_PATCH_FLAG = 1 << 5
_UTF8_FLAG = 1 << 11
_COMPARED_FLAGS = _ENCRYPTED_FLAGS | _DESCRIPTOR_FLAG | _PATCH_FLAG | _UTF8_FLAG
_STORED, _DEFLATED = 0, 8
_ZIP64_EXTRA, _UNICODE_PATH_EXTRA = 0x0001, 0x7075


class Member(NamedTuple):  # made 40,000 times for a TensorFlow wheel, in half the time that a dataclass takes
    """A member, as listed in the central directory; sizes and offsets in bytes.

    `header` is the offset of its local header, `data` of its packed bytes (0 until the header was read).
    `unix_mode` is the 16 bits of st_mode, 0 if the archive has none.
    """

    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    header: int
    data: int
    unix_mode: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")

    @property
    def mode(self) -> int:
        """0o755 if anybody may execute the member, 0o644 if nobody may."""
        return 0o755 if self.unix_mode & 0o111 else 0o644


class ByteSource:
    """An open file that any number of threads can read, at any offset; `size` is in bytes."""

    def __init__(self, file: BinaryIO) -> None:
        # Seek and read are two calls: another thread could move the position between them.
        self._file, self._lock = file, Lock()
        self.size = file.seek(0, io.SEEK_END)

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on. Raises `WheelError` if the file ends earlier."""
        with self._lock:
            self._file.seek(start)
            data = self._file.read(length)
        if len(data) != length:
            fail("wheel-not-a-zip", f"The file ends at byte {start + len(data)}, inside a part of the archive.")
        return data

    def blocks(self) -> Iterator[bytes]:
        """Yield the whole file."""
        for start in range(0, self.size, BLOCK):
            yield self.read(start, min(BLOCK, self.size - start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A sound archive with one `.dist-info` folder: `members` are its files, without folders."""

    source: ByteSource
    members: tuple[Member, ...]
    dist_info: str

    @property
    def record(self) -> str:
        return f"{self.dist_info}/RECORD"

    def member(self, path: str) -> Member | None:
        """Return the file with this path; None if there is no such file."""
        return next((member for member in self.members if member.name == path), None)

    @property
    def unhashed(self) -> frozenset[str]:
        """The paths for which RECORD has no hash: RECORD itself and its signatures."""
        return frozenset({self.record, f"{self.record}.jws", f"{self.record}.p7s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directory:
    """The central directory: its offset and size in bytes, and its number of entries."""

    start: int
    size: int
    count: int


def open_archive(file: BinaryIO) -> Archive:
    """Read an archive's directory and local headers; check all that can be checked without unpacking."""
    source = ByteSource(file)
    directory = _find_directory(source)
    members = _central_members(source, directory)
    for member in members:
        _check_member(member)
    _check_names(members)
    _check_sizes(members, source.size)
    files = tuple(member for member in _located(source, members, directory) if not member.is_folder)
    return Archive(source=source, members=files, dist_info=_dist_info(files))


def document(archive: Archive, name: str) -> bytes:
    """Return the contents of a file of `.dist-info`. Raises `WheelError` if the file is missing or too large."""
    path = f"{archive.dist_info}/{name}"
    member = archive.member(path)
    if member is None:
        code = "wheel-missing-record" if name == "RECORD" else "wheel-missing-metadata"
        fail(code, f"`{path}` is not in the wheel.")
    most = MAX_RECORD_BYTES if name == "RECORD" else MAX_DOCUMENT_BYTES
    if member.size > most:
        fail("wheel-too-large", f"`{path}` has {member.size} bytes; the limit is {most}.")
    return b"".join(blocks(archive.source, member))


def _dist_info(members: Iterable[Member]) -> str:
    tops = {member.name.partition("/")[0] for member in members if "/" in member.name}
    folders = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(folders) != 1:
        names = f" ({', '.join(folders)})" if folders else ""
        fail("wheel-missing-dist-info", f"The wheel has {len(folders)} .dist-info folders{names}; it needs one.")
    return folders[0]


def _find_directory(source: ByteSource) -> _Directory:
    """Find the central directory from the records at the end of the archive."""
    # The end record has 22 bytes and a comment of at most 65,535 (APPNOTE 4.3.16).
    tail_start = max(source.size - _U16 - _END.size, 0)
    tail = source.read(tail_start, source.size - tail_start)
    # The last magic counts. If it stands in the comment, the sizes below do not agree, and the file is refused.
    at = tail.rfind(_END_MAGIC)
    if at < 0 or at + _END.size > len(tail):
        fail("wheel-not-a-zip", _other_kind(source.read(0, min(source.size, 16))))
    _, disk, first_disk, count_here, count, length, start, comment = _END.unpack_from(tail, at)
    extra = len(tail) - at - _END.size - comment
    if extra > 0:
        fail("wheel-trailing-data", f"{extra} bytes follow the archive.")
    # 0xFFFF means that the zip64 record has the number.
    if extra < 0 or disk != first_disk or disk not in (0, _U16) or count_here != count:
        fail("wheel-not-a-zip", "The zip end record is damaged or belongs to a split archive.")
    directory = _Directory(start=start, size=length, count=count)
    directory, end = _zip64_directory(source, tail_start + at, directory)
    _check_directory(directory, end)
    return directory


def _other_kind(head: bytes) -> str:
    """Return the likely type of a file without a zip archive's end, by its first bytes."""
    if not head:
        return "The file is empty."
    if head.startswith(_LOCAL_MAGIC):
        return "The file begins like a zip archive but has no directory at its end: it is cut off."
    if head.startswith(b"\x1f\x8b"):
        return "The file is packed with gzip, as an sdist is; a wheel is a zip archive."
    if head.isascii() and (text := head.decode().partition("\n")[0]).isprintable():
        return f"The file begins with the text `{text}`; a wheel is a zip archive."
    return f"The file begins with the bytes {head.hex(' ')}; a wheel is a zip archive."


def _zip64_directory(source: ByteSource, end: int, short: _Directory) -> tuple[_Directory, int]:
    """Return the directory, with zip64's values if there are any, and the offset where the end records start."""
    at = end - _END64_LOCATOR.size
    raw = source.read(at, _END64_LOCATOR.size) if at >= 0 else b""
    if not raw.startswith(_END64_LOCATOR_MAGIC):
        return short, end
    _, disk, record_at, disks = _END64_LOCATOR.unpack(raw)
    # `disks` may be 0 or 1: both mean an archive in one piece.
    if disk or disks > 1 or record_at + _END64.size > at:
        fail("wheel-not-a-zip", "The zip64 end record is damaged or belongs to a split archive.")
    magic, length, _, _, _, _, _, count, size, start = _END64.unpack(source.read(record_at, _END64.size))
    # The record's length does not count its first 12 bytes (APPNOTE 4.3.14.1).
    if magic != _END64_MAGIC or record_at + 12 + length != at:
        fail("wheel-not-a-zip", "The zip64 end record is damaged.")
    # Readers without zip64 take the narrow values. Both kinds of readers must see the same archive, or none.
    pairs = ((short.count, count, _U16), (short.size, size, _U32), (short.start, start, _U32))
    if any(narrow not in (wide, limit) for narrow, wide, limit in pairs):
        fail("wheel-header-mismatch", "The two zip end records disagree.")
    return _Directory(start=start, size=size, count=count), record_at


def _check_directory(directory: _Directory, end: int) -> None:
    if directory.count > MAX_MEMBERS:
        fail("wheel-too-large", f"The archive has {directory.count} members; the limit is {MAX_MEMBERS}.")
    if directory.size > MAX_DIRECTORY_BYTES:
        message = f"The archive's directory has {directory.size} bytes; the limit is {MAX_DIRECTORY_BYTES}."
        fail("wheel-too-large", message)
    # `zipfile` silently corrects such a shift, and so accepts data before an archive.
    shift = end - directory.start - directory.size
    if shift > 0:
        fail("wheel-leading-data", f"{shift} bytes are before the archive, or between its parts.")
    if shift < 0:
        fail("wheel-not-a-zip", "The zip directory reaches beyond its end record.")


def _central_members(source: ByteSource, directory: _Directory) -> list[Member]:
    raw = source.read(directory.start, directory.size)
    members: list[Member] = []
    at = 0
    for _ in range(directory.count):
        if len(raw) - at < _CENTRAL.size or raw[at : at + 4] != _CENTRAL_MAGIC:
            fail("wheel-not-a-zip", f"The zip directory breaks off after {len(members)} members.")
        member, at = _central_member(raw, at)
        members.append(member)
    # Some readers see entries after the counted ones, and others do not.
    if at != len(raw):
        fail("wheel-hidden-data", f"The zip directory has {len(raw) - at} bytes after its last member.")
    return members


def _central_member(raw: bytes, at: int) -> tuple[Member, int]:
    """Return the member whose directory entry starts at `at`, and where the entry ends."""
    fields = _CENTRAL.unpack_from(raw, at)
    flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
    name_length, extra_length, comment_length, disk = fields[10:14]
    attributes, header = fields[15:]
    at += _CENTRAL.size
    name = _decode_name(raw[at : at + name_length], flags)
    extras = _extras(raw[at + name_length : at + name_length + extra_length], name)
    size, packed, header = _widen((size, packed, header), extras, name)
    if disk not in (0, _U16):
        fail("wheel-not-a-zip", f"`{name}` is in another part of a split archive.")
    member = Member(
        name=name,
        flags=flags,
        method=method,
        crc=crc,
        packed=packed,
        size=size,
        header=header,
        data=0,
        unix_mode=attributes >> 16,
    )
    return member, at + name_length + extra_length + comment_length


def _decode_name(raw: bytes, flags: int) -> str:
    try:
        # Without the flag, names are in code page 437 (APPNOTE D.1), but many readers take them as UTF-8.
        return raw.decode("utf-8" if flags & _UTF8_FLAG else "ascii")
    except UnicodeDecodeError:
        fail("wheel-unsafe-path", f"The member name {raw!r} is neither ASCII nor marked as UTF-8.")


def _extras(raw: bytes, name: str) -> dict[int, bytes]:
    """Return a header's extra fields by their number. Fewer than four bytes at the end are padding."""
    extras: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(raw):
        number, length = struct.unpack_from("<HH", raw, at)
        at += 4 + length
        # Some readers prefer the Unicode path field to the name: one member would have two paths.
        if at > len(raw) or number in extras or number == _UNICODE_PATH_EXTRA:
            fail(
                "wheel-header-mismatch",
                f"`{name}` has extra fields that are cut short, repeated, or give it a second name.",
            )
        extras[number] = raw[at - length : at]
    return extras


def _widen(values: tuple[int, ...], extras: Mapping[int, bytes], name: str) -> list[int]:
    """Replace each 32-bit value that is all ones with the next value of the zip64 field."""
    wide = extras.get(_ZIP64_EXTRA)
    if wide is None:
        return list(values)
    result, at = [], 0
    for value in values:
        if value == _U32:
            # The zip64 field holds only the values that did not fit, in a fixed order (APPNOTE 4.5.3).
            if at + 8 > len(wide):
                fail("wheel-header-mismatch", f"`{name}` has a zip64 field that is too short.")
            (value,) = struct.unpack_from("<Q", wide, at)
            at += 8
        result.append(value)
    return result


def _check_member(member: Member) -> None:
    name = member.name
    if member.flags & _ENCRYPTED_FLAGS:
        fail("wheel-encrypted", f"`{name}` is encrypted.")
    if member.method not in (_STORED, _DEFLATED) or member.flags & _PATCH_FLAG:
        fail(
            "wheel-bad-compression",
            f"`{name}` is packed with method {member.method}; only 0 and 8 are allowed.",
        )
    if len(name) > MAX_PATH:
        fail("wheel-unsafe-path", f"The member name {name[:60]!r}… has {len(name)} characters; at most {MAX_PATH}.")
    # Backslashes and drive letters mean another place on Windows, where wheels are unpacked as well.
    parts = name.removesuffix("/").split("/")
    if not name.isprintable() or "\\" in name or re.match(r"[A-Za-z]:", name) or {"", ".", ".."} & set(parts):
        fail("wheel-unsafe-path", f"The member name {name!r} is not a plain relative path.")
    # 0: packers on other systems write no Unix mode. A later member could be written through a link.
    kind = stat.S_IFMT(member.unix_mode)
    if kind not in (0, stat.S_IFDIR if member.is_folder else stat.S_IFREG):
        fail("wheel-special-file", f"`{name}` has mode {member.unix_mode:o}, which is not a regular file's.")
    # Folders are not unpacked and have no line in RECORD: their contents would be hidden.
    if member.is_folder and member.size:
        fail("wheel-special-file", f"`{name}` is a folder with {member.size} bytes of contents.")
    if member.method == _STORED and member.packed != member.size:
        fail(
            "wheel-header-mismatch",
            f"`{name}` is stored without compression, but has two sizes, {member.packed} and {member.size} bytes.",
        )


def _check_names(members: Iterable[Member]) -> None:
    """Check that no two members have the same name and that none is both a file and a folder."""
    seen: set[str] = set()
    for member in members:
        # A file `a` and a folder `a/` cannot both be unpacked.
        name = member.name.removesuffix("/")
        if name in seen:
            fail("wheel-duplicate-member", f"`{name}` is in the wheel more than once.")
        seen.add(name)
    files = {member.name for member in members if not member.is_folder}
    for name in sorted(seen):
        parts = name.split("/")
        for depth in range(1, len(parts)):
            if (parent := "/".join(parts[:depth])) in files:
                fail("wheel-duplicate-member", f"`{parent}` is both a file and the folder of `{name}`.")


def _check_sizes(members: Iterable[Member], archive_size: int) -> None:
    total = sum(member.size for member in members)
    if total > MAX_UNPACKED_BYTES:
        fail("wheel-too-large", f"The wheel unpacks to {total} bytes; the limit is {MAX_UNPACKED_BYTES}.")
    if total > RATIO_FREE_BYTES and total > MAX_RATIO * archive_size:
        fail(
            "wheel-bomb",
            f"The wheel unpacks from {archive_size} to {total} bytes; the limit is {MAX_RATIO} times its size.",
        )


def _located(source: ByteSource, members: Iterable[Member], directory: _Directory) -> list[Member]:
    """Return the members in file order with `data` set. Raises unless they fill the archive without gaps."""
    ordered = sorted(members, key=lambda member: member.header)
    starts = [member.header for member in ordered] + [directory.start]
    if starts[0] != 0:
        fail("wheel-leading-data", f"{starts[0]} bytes are before the first member.")
    located = []
    for member, (_, next_start) in zip(ordered, pairwise(starts), strict=True):
        member = member._replace(data=_check_local_header(source, member))
        _check_gap(source, member, next_start - member.data - member.packed)
        located.append(member)
        if member.is_folder:  # a folder is not unpacked, so check that it is empty
            for _ in pieces(source, member):
                pass
    return located


def _check_local_header(source: ByteSource, member: Member) -> int:
    """Compare a member's local header with its directory entry; return the offset of its packed bytes."""
    header: tuple[bytes, int, int, int, int, int, int, int, int, int, int] = _LOCAL.unpack(
        source.read(member.header, _LOCAL.size)
    )
    magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length = header
    if magic != _LOCAL_MAGIC:
        fail("wheel-header-mismatch", f"`{member.name}` has no local header at the offset in the directory.")
    rest = source.read(member.header + _LOCAL.size, name_length + extra_length)
    name = rest[:name_length]
    size, packed = _widen((size, packed), _extras(rest[name_length:], member.name), member.name)
    # Streaming readers use the local name, others the directory's: both must get the same file.
    if name != member.name.encode():
        fail("wheel-header-mismatch", f"`{member.name}` has another name in its local header: {name!r}.")
    stated = (crc, packed, size)
    expected: tuple[int, ...] = (member.crc, member.packed, member.size)
    if flags & _DESCRIPTOR_FLAG:  # the values follow the contents and may be zero here
        expected = tuple(right if value else 0 for right, value in zip(expected, stated, strict=True))
    same_flags = flags & _COMPARED_FLAGS == member.flags & _COMPARED_FLAGS
    if not same_flags or method != member.method or stated != expected:
        fail(
            "wheel-header-mismatch",
            f"`{member.name}` has sizes, CRC, method or flags in its local header that differ from the directory.",
        )
    return member.header + _LOCAL.size + len(rest)


def _check_gap(source: ByteSource, member: Member, gap: int) -> None:
    """Check the `gap` bytes after a member's contents: none, or the member's data descriptor."""
    # A zip bomb shares bytes between members to reach a ratio that deflate alone cannot.
    if gap < 0:
        fail("wheel-overlapping-members", f"`{member.name}` overlaps the next member or the directory.")
    if not member.flags & _DESCRIPTOR_FLAG:
        if gap:
            fail("wheel-hidden-data", f"{gap} bytes after `{member.name}` belong to no member.")
        return
    # Sizes have 8 bytes with zip64, otherwise 4; the signature is optional (APPNOTE 4.3.9).
    forms = [struct.pack("<IQQ", member.crc, member.packed, member.size)]
    if max(member.packed, member.size) <= _U32:
        forms.append(struct.pack("<III", member.crc, member.packed, member.size))
    forms += [_DESCRIPTOR_MAGIC + form for form in forms]
    if gap > 24 or source.read(member.data + member.packed, gap) not in forms:
        fail("wheel-hidden-data", f"{gap} bytes after `{member.name}` are not its data descriptor.")


def pieces(source: ByteSource, member: Member) -> Iterator[bytes]:
    """Yield a member's contents unpacked, as they come, at most 1 MiB at a time.

    Raises `WheelError` if size, CRC or deflate stream do not match the directory. The yielded bytes are never more
    than declared, but are verified only at the end.
    """
    crc, size = 0, 0
    for piece in _raw_pieces(source, member) if member.method == _STORED else _inflated_pieces(source, member):
        crc, size = isal_zlib.crc32(piece, crc), size + len(piece)
        # Checked while unpacking: a few bytes of deflate can become gigabytes.
        if size > member.size:
            fail("wheel-corrupt-member", f"`{member.name}` unpacks to more than its {member.size} bytes.")
        yield piece
    if size != member.size or crc != member.crc:
        fail("wheel-corrupt-member", f"`{member.name}` has a size or CRC that differs from the directory.")


def blocks(source: ByteSource, member: Member) -> Iterator[bytes]:
    """Yield a member's contents as `pieces` does, but in blocks of exactly 1 MiB; only the last block is shorter.

    The blocks depend only on the contents, not on their packing, so repacking gives the same blocks.
    """
    block = bytearray()
    for piece in pieces(source, member):
        block += piece
        while len(block) >= BLOCK:
            yield bytes(block[:BLOCK])
            del block[:BLOCK]
    if block:
        yield bytes(block)


def _raw_pieces(source: ByteSource, member: Member) -> Iterator[bytes]:
    end = member.data + member.packed
    for start in range(member.data, end, _PACKED_BLOCK):
        yield source.read(start, min(_PACKED_BLOCK, end - start))


def _inflated_pieces(source: ByteSource, member: Member) -> Iterator[bytes]:
    """Yield a deflated member unpacked, at most 1 MiB at a time."""
    # Negative: zip holds deflate streams without zlib's header.
    inflater = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for raw in _raw_pieces(source, member):
            while raw and not inflater.eof:
                yield inflater.decompress(raw, BLOCK)
                # The limit of 1 MiB for a call can leave input unread, which must be fed again.
                raw = inflater.unconsumed_tail
            if raw:
                fail("wheel-corrupt-member", f"`{member.name}` has bytes after its deflate stream.")
        if not inflater.eof:
            yield inflater.flush()
        if inflater.unused_data:
            fail("wheel-corrupt-member", f"`{member.name}` has bytes after its deflate stream.")
    except _ISAL_ERROR as error:
        fail("wheel-corrupt-member", f"`{member.name}` does not unpack: {error}.")
    if not inflater.eof:
        fail("wheel-corrupt-member", f"`{member.name}` has a deflate stream that is cut off.")


# --- the archive, written ---------------------------------------------------------------------------------


class ZipWriter:
    """Writes an archive whose bytes depend only on the added members, their order and one time.

    Empty members are stored and all others deflated. This rule needs only the size. Storing members that deflate does
    not shrink would need two passes, to save 0.03%. For the same reason the unpacked size decides about zip64's
    field: from 8/9 of 4 GiB on, packing could exceed 4 GiB.
    """

    def __init__(self, target: BinaryIO, epoch: int) -> None:
        self._target = target
        self._time, self._date = _dos_time(epoch)
        self._central: list[bytes] = []

    def add_bytes(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Add a file whose contents are in memory."""
        self.add(path, mode, len(data), (data[start : start + BLOCK] for start in range(0, len(data), BLOCK)))

    def add(self, path: str, mode: int, size: int, blocks: Iterable[bytes]) -> None:
        """Add a file of `size` bytes, which `blocks` must yield; its header is filled in afterwards."""
        start = self._target.tell()
        # The packed size is not known yet. Deflate can make contents larger, by far less than an eighth.
        wide = size + size // 8 >= _U32
        self._target.write(self._local_header(path, 0, 0, size, wide))
        crc, packed = self._pack(size, blocks)
        end = self._target.tell()
        self._target.seek(start)
        self._target.write(self._local_header(path, crc, packed, size, wide))
        self._target.seek(end)
        self._central.append(self._central_header(path, mode, crc, packed, size, start, wide))

    def finish(self) -> None:
        """Write the directory and the end records, and cut off old bytes of the target after them."""
        start = self._target.tell()
        for header in self._central:
            self._target.write(header)
        end = self._target.tell()
        count, size = len(self._central), end - start
        # zip64's end records are needed only beyond the limits of the plain ones (APPNOTE 4.3.14, 4.3.15).
        if count >= _U16 or size >= _U32 or start >= _U32:
            needs, made = 45, 3 << 8 | 45
            self._target.write(_END64.pack(_END64_MAGIC, 44, made, needs, 0, 0, count, count, size, start))
            self._target.write(_END64_LOCATOR.pack(_END64_LOCATOR_MAGIC, 0, end, 1))
        short = min(count, _U16)
        self._target.write(_END.pack(_END_MAGIC, 0, 0, short, short, min(size, _U32), min(start, _U32), 0))
        self._target.truncate()

    def _pack(self, size: int, blocks: Iterable[bytes]) -> tuple[int, int]:
        """Write the contents; return their CRC and packed size in bytes."""
        # zlib, not isal: the bytes of a normalised wheel depend on the implementation, which the record names.
        deflater = zlib.compressobj(DEFLATE_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        crc, packed = 0, 0
        for block in blocks:
            crc = zlib.crc32(block, crc)
            packed += self._target.write(deflater.compress(block))
        # For no data `flush` would write an end mark of two bytes. An empty member is stored, and has none.
        if size:
            packed += self._target.write(deflater.flush())
        return crc, packed

    def _local_header(self, path: str, crc: int, packed: int, size: int, wide: bool) -> bytes:
        name = path.encode()
        extra = struct.pack("<HHQQ", _ZIP64_EXTRA, 16, size, packed) if wide else b""
        sizes = (_U32, _U32) if wide else (packed, size)
        common = self._common(path, crc, sizes, wide)
        return _LOCAL.pack(_LOCAL_MAGIC, *common, len(name), len(extra)) + name + extra

    def _central_header(
        self, path: str, mode: int, crc: int, packed: int, size: int, start: int, wide: bool
    ) -> bytes:
        name = path.encode()
        far = start >= _U32
        values = ([size, packed] if wide else []) + ([start] if far else [])
        extra = struct.pack(f"<HH{len(values)}Q", _ZIP64_EXTRA, 8 * len(values), *values) if values else b""
        sizes = (_U32, _U32) if wide else (packed, size)
        common = self._common(path, crc, sizes, wide or far)
        made = 3 << 8 | common[0]  # 3: Unix, so that the mode is read
        attributes = (stat.S_IFREG | mode) << 16
        lengths = (len(name), len(extra), 0)
        return (
            _CENTRAL.pack(_CENTRAL_MAGIC, made, *common, *lengths, 0, 0, attributes, min(start, _U32)) + name + extra
        )

    def _common(self, path: str, crc: int, sizes: tuple[int, int], zip64: bool) -> tuple[int, ...]:
        """Return the fields that both headers have, from "version needed" to `sizes` (packed, unpacked)."""
        flags = 0 if path.isascii() else _UTF8_FLAG
        method = _DEFLATED if sizes[1] else _STORED
        # "Version needed": 2.0 for deflate, 4.5 for zip64 (APPNOTE 4.4.3.2).
        return (45 if zip64 else 20, flags, method, self._time, self._date, crc, *sizes)


def _dos_time(epoch: int) -> tuple[int, int]:
    """Return zip's time and date fields for seconds since 1970 UTC, clamped to the years that zip can express."""
    # In UTC: zip has no time zone, and the machine's own would change the bytes.
    moment = datetime.fromtimestamp(min(max(epoch, EARLIEST_EPOCH), LATEST_EPOCH), UTC)
    time = moment.hour << 11 | moment.minute << 5 | moment.second // 2
    return time, (moment.year - 1980) << 9 | moment.month << 5 | moment.day


def deflate_backend() -> str:
    """Name the deflate implementation, such as `zlib 1.2.13` or `zlib-ng 2.2.5`.

    It belongs in a build's record: two implementations pack the same contents to different bytes.
    """
    # Python has this name from 3.14 on, and only where it is built with zlib-ng.
    zlib_ng: str | None = getattr(zlib, "ZLIBNG_VERSION", None)
    return f"zlib-ng {zlib_ng}" if zlib_ng else f"zlib {zlib.ZLIB_RUNTIME_VERSION}"
