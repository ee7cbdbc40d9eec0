"""A tar in memory, as strictly as tfdock's own are written: files and folders, each once, and nothing else. Pure.

A stranger wrote it: what is a link, a device or sparse is refused, and no member is larger than what holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tfdock.oci.manifest import MalformedManifest

BLOCK = 512
"""Bytes that the parts of a tar are multiples of."""
MOST_MEMBERS = 2000
"""Of a layer; the papers of one wheel are some ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarHeader:
    """A member's header. `kind` is `0` for a file, `5` for a folder, `x` for what gives the next a longer name.

    `kind` is `2` for a symbolic link; `link` is its target.
    """

    kind: str
    name: str
    size: int
    link: str = ""


def header(block: bytes, *, links: bool = False) -> TarHeader:
    """Read a header of POSIX ustar; raises Malformed for every other, and for what is neither file nor folder.

    `links` allows symbolic links too.
    """
    name, prefix = (field.rstrip(b"\0") for field in (block[:100], block[345:500]))
    path = (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")
    shown = f"`{path[:100]!a}`"
    summed = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    if block[257:265] != b"ustar\x0000" or _octal(block[148:156]) != summed:
        raise MalformedManifest(f"{shown} has no header that tfdock writes")
    kind = block[156:157].decode("ascii", "replace")
    if kind not in _KINDS and not (links and kind == "2"):
        raise MalformedManifest(f"{shown} is {_OTHER_KINDS.get(kind, 'of no kind that tfdock writes')}")
    link = block[157:257].rstrip(b"\0").decode("utf-8", "replace")
    if link and kind != "2":
        raise MalformedManifest(f"{shown} is linked to something")
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
        raise MalformedManifest("a header has a number that is none")
    return int(digits, 8)


def _longer_name(data: bytes) -> str:
    """The name that a PAX header gives to the next member, which is all that it may say."""
    match = re.fullmatch(rb"(\d{1,4}) path=([^\n\0]+)\n", data)
    if not match or int(match[1]) != len(data):
        raise MalformedManifest("a member has extended headers that tfdock does not write")
    return match[2].decode("utf-8", "replace")


def _padded(size: int) -> int:
    return size + -size % BLOCK


def members(layer: bytes, is_folder: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Every file of a layer, by its path; folders come to nothing, those that `is_folder` does not know are refused.

    Raises Malformed.
    """
    seen, longer = set[str](), ""
    for found, data in _headers(layer):
        if found.kind == "x":
            longer = _longer_name(data)
            continue
        name, longer = longer or found.name, ""
        if found.kind == "5":
            name = name.removesuffix("/")
            if data or not is_folder(name):
                raise MalformedManifest(f"it has a folder `{name[:100]!a}`, which tfdock does not put there")
        if name in seen or len(seen) >= MOST_MEMBERS:
            raise MalformedManifest(f"`{name[:100]!a}` is in it twice" if name in seen else "it has too many members")
        seen.add(name)
        if found.kind == "0":
            yield name, data


def _headers(layer: bytes) -> Iterator[tuple[TarHeader, bytes]]:
    """Every header with the bytes behind it, up to the end, where nothing but zeros may follow."""
    place = 0
    while any(block := layer[place : place + BLOCK]):
        if len(block) < BLOCK:
            raise MalformedManifest("a layer ends in a header")
        found = header(block)
        if place + BLOCK + _padded(found.size) > len(layer):
            raise MalformedManifest(f"`{found.name[:100]!a}` is larger than its layer")
        yield found, layer[place + BLOCK : place + BLOCK + found.size]
        place += BLOCK + _padded(found.size)
    if any(layer[place:]) or len(layer) - place < 2 * BLOCK:
        raise MalformedManifest("a layer does not end where it should")
