"""The layer of a wheel: an uncompressed tar with the folder `wheels/` and the wheel, and nothing else. Pure.

What stands around the wheel's own bytes follows from its name and size, so it is compared when read, not interpreted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tfdock.oci.manifest import Descriptor, MalformedManifest
from tfdock.oci.plain_tar import BLOCK, END, member_header, padding, read_header
from tfdock.wheelhouse.simple_index import IndexedWheel

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
WHEELS = "wheels"
"""The folder of an image that holds its wheels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWheel:
    """A wheel in an image: `listed` is what an index says of it, `metadata` its METADATA, `size` its bytes.

    `layer` is the layer that holds it.
    """

    listed: IndexedWheel
    metadata: bytes
    size: int
    layer: Descriptor

    @property
    def file(self) -> str:
        """Its file name."""
        return self.listed.file

    @property
    def sha256(self) -> str:
        """Of its bytes: 64 hexadecimal digits."""
        return self.listed.sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWheel:
    """A wheel of an image: file name, sha256 (64 hexadecimal digits), size in bytes, and the layer that holds it."""

    file: str
    sha256: str
    size: int
    layer: Descriptor


def frame(file: str, size: int) -> tuple[bytes, bytes]:
    """Return what stands before and behind a wheel's bytes in its layer."""
    head = member_header(f"{WHEELS}/", None) + member_header(f"{WHEELS}/{file}", size)
    return head, padding(size) + END


def wheel_bytes(wheel: FoundWheel, pieces: Iterable[bytes], taken: int = 0) -> Iterator[bytes]:
    """The bytes of a wheel among those of its layer as they come; raises Malformed where the layer is another.

    With `taken` bytes of the wheel the pieces begin behind those; what stands before the wheel is not seen again.
    """
    head, tail = frame(wheel.file, wheel.size)
    before, left, behind = b"" if taken else head, wheel.size - taken, b""
    for piece in pieces:
        rest, seen = piece[len(before) :], piece[: len(before)]
        if seen != before[: len(seen)]:
            raise MalformedManifest(_instead(head, head[: len(head) - len(before)] + seen, wheel.file))
        before = before[len(seen) :]
        if rest and left:
            part = rest[:left]
            left -= len(part)
            rest = rest[len(part) :]
            yield part
        behind += rest
        if behind != tail[: len(behind)]:
            raise MalformedManifest(f"there is something behind {wheel.file}")
    if before or left or behind != tail:
        raise MalformedManifest(f"the layer of {wheel.file} ends too early")


def _instead(head: bytes, found: bytes, file: str) -> str:
    """What stands before a wheel that should not, in words."""
    at = next(
        place for place in range(0, len(head), BLOCK) if found[place : place + BLOCK] != head[place : place + BLOCK]
    )
    block = found[at : at + BLOCK]
    if len(block) < BLOCK:
        return f"something else stands before {file}"
    other = read_header(block)
    return f"`{other.name[:100]!a}` with {other.size} bytes stands where {file} should"
