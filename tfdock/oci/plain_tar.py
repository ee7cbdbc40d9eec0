"""Write and read tars that hold only files and folders. The same files give the same bytes. Pure.

Headers depend only on a member's name and size. Reading is strict, because strangers may have made the archive:
links, devices, sparse files, and members larger than their layer are refused.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tfdock.host.foreign_json import Malformed
from tfdock.wheel.zip_archive import EARLIEST_EPOCH

BLOCK = 512  #: Bytes of a block; every part of a tar is a multiple of this size.
END = bytes(2 * BLOCK)  #: The end of a tar.
LARGEST_PLAIN = (1 << 33) - 1  #: Bytes: the largest size in a header of POSIX ustar.
MOST_MEMBERS = 2000  #: The most members of a layer; the documents of one wheel are about ten.


# --- writing --------------------------------------------------------------------------------------------------------


def padding(size: int) -> bytes:
    """Return the zero bytes that pad contents of `size` bytes to complete blocks."""
    return bytes(-size % BLOCK)


def padded_size(size: int) -> int:
    """Return the length of contents of `size` bytes with their padding."""
    return size + -size % BLOCK


def member_header(path: str, size: int | None, *, gnu: bool = False) -> bytes:
    """Return the header of a file, or of a folder if `size` is None. Equal paths and sizes give equal headers.

    The format is PAX. With `gnu` the format is GNU, which can state sizes over 8 GiB in one block.
    """
    info = tarfile.TarInfo(path)
    info.type = tarfile.DIRTYPE if size is None else tarfile.REGTYPE
    # Nothing depends on the machine or time: owner 0, fixed modes, the earliest time of zip archives.
    info.mode, info.mtime, info.size = 0o755 if size is None else 0o644, EARLIEST_EPOCH, size or 0
    return info.tobuf(tarfile.GNU_FORMAT if gnu else tarfile.PAX_FORMAT)


def plain_header(name: str, size: int) -> bytes:
    """Return the ustar header of a file with a short ASCII name and the time 0, four times as fast as `tarfile`.

    Bazel's caches have some 100,000 entries, each with a header.
    """
    # POSIX ustar: name, mode, owner, group; then size and time in octal digits.
    before = name.encode().ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0"
    before += b"%011o\0%011o\0" % (size, 0)
    after = b"0".ljust(101, b"\0") + b"ustar\x0000".ljust(255, b"\0")
    # The checksum counts its own field as eight spaces.
    return before + b"%06o\0 " % (sum(before) + 8 * ord(" ") + sum(after)) + after


def file_member(path: str, data: bytes) -> bytes:
    """Return a file as a tar member."""
    return member_header(path, len(data)) + data + padding(len(data))


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of these files, path -> contents, and of their folders, sorted."""
    folders = {path[: index + 1] for path in files for index, letter in enumerate(path) if letter == "/"}
    members = (
        member_header(path, None) if path in folders else file_member(path, files[path])
        for path in sorted({*folders, *files})
    )
    return b"".join((*members, END))


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TarHeader:
    """A member's header. `kind` is `0` for a file, `5` for a folder, `x` for a longer name of the next member.

    `kind` is `2` for a symbolic link; `link` is the target of the link.
    """

    kind: str
    name: str
    size: int
    link: str = ""


def read_header(block: bytes, *, links: bool = False) -> TarHeader:
    """Return a header of POSIX ustar.

    Raises Malformed for every other format, and for members that are neither file nor folder. `links` allows
    symbolic links too.
    """
    # ustar splits a path of over 100 bytes at a slash, into prefix and name.
    name, prefix = (field.rstrip(b"\0") for field in (block[:100], block[345:500]))
    path = (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")
    shown = f"`{path[:100]!a}`"
    summed = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    # POSIX's magic and version. The GNU format has spaces here, and other rules for names and sizes.
    if block[257:265] != b"ustar\x0000" or _octal(block[148:156]) != summed:
        raise Malformed(f"{shown} has a header that tfdock never writes")
    kind = block[156:157].decode("ascii", "replace")
    if kind not in _KINDS and not (links and kind == "2"):
        raise Malformed(f"{shown} is {_OTHER_KINDS.get(kind, 'of a type that tfdock never writes')}")
    link = block[157:257].rstrip(b"\0").decode("utf-8", "replace")
    # Some readers treat a file with a link target as a link.
    if link and kind != "2":
        raise Malformed(f"{shown} is a file with the target of a link")
    return TarHeader(kind=kind, name=path, size=_octal(block[124:136]), link=link)


_KINDS = ("0", "5", "x")
_OTHER_KINDS = {
    "1": "a link",
    "2": "a symbolic link",
    "3": "a device",
    "4": "a device",
    "6": "a pipe",
    "S": "a sparse file",
}


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ")
    if not re.fullmatch(rb"[0-7]{1,12}", digits):
        raise Malformed("a header has an invalid number")
    return int(digits, 8)


def _longer_name(data: bytes) -> str:
    """Return the name that a PAX header gives to the next member. The header may hold nothing else."""
    # Not `size` or `linkpath`: these would change what the next member is.
    match = re.fullmatch(rb"(\d{1,4}) path=([^\n\0]+)\n", data)
    if not match or int(match[1]) != len(data):
        raise Malformed("a member has extended headers that tfdock does not write")
    return match[2].decode("utf-8", "replace")


def members(layer: bytes, is_folder: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and contents of every file of a layer. Folders are skipped; folders that `is_folder` does not
    accept are refused.

    Raises Malformed.
    """
    seen, long_name = set[str](), ""
    for header, data in _headers(layer):
        if header.kind == "x":
            long_name = _longer_name(data)
            continue
        name, long_name = long_name or header.name, ""
        if header.kind == "5":
            name = name.removesuffix("/")
            if data or not is_folder(name):
                raise Malformed(f"it has a folder `{name[:100]!a}`, which tfdock does not put there")
        # Of two members with one name, some readers take the first and some the last.
        if name in seen or len(seen) >= MOST_MEMBERS:
            raise Malformed(f"`{name[:100]!a}` is in it twice" if name in seen else "it has too many members")
        seen.add(name)
        if header.kind == "0":
            yield name, data


def _headers(layer: bytes) -> Iterator[tuple[TarHeader, bytes]]:
    """Yield every header with its contents, up to the end mark. Only zeros may follow the end."""
    place = 0
    while any(block := layer[place : place + BLOCK]):
        if len(block) < BLOCK:
            raise Malformed("a layer ends in a header")
        header = read_header(block)
        # Checked first: a slice beyond the end is silently shorter.
        if place + BLOCK + padded_size(header.size) > len(layer):
            raise Malformed(f"`{header.name[:100]!a}` is larger than its layer")
        yield header, layer[place + BLOCK : place + BLOCK + header.size]
        place += BLOCK + padded_size(header.size)
    # Other readers may continue after the end mark, and find members there.
    if any(layer[place:]) or len(layer) - place < len(END):
        raise Malformed("a layer has no valid end")
