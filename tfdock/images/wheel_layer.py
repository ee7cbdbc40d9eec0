"""Read and write the layer of a wheel: an uncompressed tar with the folder `wheels/` and the wheel. Pure: no I/O.

The bytes around the wheel follow from the wheel's name and size, so they are compared when read, not interpreted. A
layer that another tool packed with gzip is unpacked, but only up to its expected size.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tfdock.host.foreign_json import Malformed
from tfdock.oci.manifest import Descriptor
from tfdock.oci.plain_tar import BLOCK, END, member_header, padding, read_header
from tfdock.wheelhouse.simple_index import IndexedWheel

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
#: Media types of layers that `docker push` and skopeo write.
PACKED_TYPES = (f"{LAYER_TYPE}+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip")
_UNPACKED = 1 << 20  #: How many bytes are unpacked at once.
WHEELS = "wheels"  #: The folder in an image that contains the wheels.


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWheel:
    """A wheel in an image. `listed` is its row in an index, `metadata` its METADATA, `size` its size in bytes.

    `layer` is the layer with the wheel.
    """

    listed: IndexedWheel
    metadata: bytes
    size: int
    layer: Descriptor

    @property
    def file(self) -> str:
        """The wheel's file name."""
        return self.listed.file

    @property
    def sha256(self) -> str:
        """The sha256 of the wheel's bytes: 64 hexadecimal digits."""
        return self.listed.sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWheel:
    """A wheel of an image: file name, sha256 (64 hexadecimal digits), size in bytes, and the layer with the wheel.

    If the layer is stored packed, `packed` is the stored blob, and `layer` its unpacked content.
    """

    file: str
    sha256: str
    size: int
    layer: Descriptor
    packed: Descriptor | None = None


def frame(file: str, size: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after a wheel in its layer."""
    head = member_header(f"{WHEELS}/", None) + member_header(f"{WHEELS}/{file}", size)
    return head, padding(size) + END


def unpacked(pieces: Iterable[bytes], content: str, most: int) -> Iterator[bytes]:
    """Yield the content of a layer from its gzip pieces as they arrive.

    Raises Malformed for content with another digest, for more than `most` bytes, and for data that is not gzip.
    """
    inflating, sha256, size = zlib.decompressobj(16 + zlib.MAX_WBITS), hashlib.sha256(), 0
    for piece in pieces:
        rest = piece
        while rest:
            try:
                data = inflating.decompress(rest, _UNPACKED)
            except zlib.error as error:
                raise Malformed("a layer cannot be unpacked") from error
            # Some readers would read bytes after the end of the stream as another file.
            if (size := size + len(data)) > most or inflating.unused_data:
                raise Malformed(f"a layer unpacks to more than {most} bytes")
            sha256.update(data)
            yield data
            rest = inflating.unconsumed_tail
    # The rest of the last piece has at most the size of gzip's window.
    data = inflating.flush()
    sha256.update(data)
    yield data
    if not inflating.eof or f"sha256:{sha256.hexdigest()}" != content:
        raise Malformed(f"the unpacked content of a layer does not have the digest {content} of the configuration")


def wheel_bytes(wheel: FoundWheel, pieces: Iterable[bytes], start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a wheel from the bytes of its layer as they arrive; raise Malformed if the layer differs.

    With `start`, the pieces begin after the first `start` bytes of the wheel; the bytes before are not checked again.
    """
    head, tail = frame(wheel.file, wheel.size)
    # A piece may end anywhere: in the head, in the wheel or in the end.
    expected, missing, trailing = b"" if start else head, wheel.size - start, b""
    for piece in pieces:
        rest, begin = piece[len(expected) :], piece[: len(expected)]
        if begin != expected[: len(begin)]:
            raise Malformed(_describe_intruder(head, head[: len(head) - len(expected)] + begin, wheel.file))
        expected = expected[len(begin) :]
        if rest and missing:
            part = rest[:missing]
            missing -= len(part)
            rest = rest[len(part) :]
            yield part
        trailing += rest
        if trailing != tail[: len(trailing)]:
            raise Malformed(f"there is data after {wheel.file}")
    if expected or missing or trailing != tail:
        raise Malformed(f"the layer of {wheel.file} ends too early")


def _describe_intruder(head: bytes, actual: bytes, file: str) -> str:
    """Describe the content found in place of a wheel."""
    start = next(
        position
        for position in range(0, len(head), BLOCK)
        if actual[position : position + BLOCK] != head[position : position + BLOCK]
    )
    block = actual[start : start + BLOCK]
    if len(block) < BLOCK:
        return f"the layer has another member before {file}"
    other = read_header(block)
    return f"the layer has `{other.name[:100]!a}` ({other.size} bytes) instead of {file}"
