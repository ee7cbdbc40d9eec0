"""Write wheel images into a file (`image pack`). The file is streamed, and becomes visible when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tfdock.errors import ProfileError
from tfdock.host.files import check_target, write_atomically
from tfdock.images import wheel_layout
from tfdock.images.image_tags import FINGERPRINT_TAG, Shipment
from tfdock.oci.manifest import Descriptor
from tfdock.oci.plain_tar import END, file_member, member_header, padding

_PIECE = 1 << 20


def check_pack_target(target: Path) -> None:
    """Raise ProfileError (`image-file-taken`) early if the target cannot be written, or is another kind of file."""
    if target.name in ("", "-"):
        why = "not a file name, and standard output is for the digests"
        message = f"{target} cannot be written: {why}"
        raise ProfileError.of("image-file-taken", message, "name a file: `-o wheels.tar`")
    # A file is replaced only if it begins like such a file.
    begin = wheel_layout.beginning()
    check_target(target, "image-file-taken", lambda file: file.read(len(begin)) == begin)


def pack(
    shipment: Shipment, stream: Callable[[Descriptor], BinaryIO], target: Path, check: Callable[[], None]
) -> int:
    """Write a file of images; return the file's size in bytes. `stream` opens a wheel's layer.

    Raises OSError, and the errors of `check`.
    """

    def pieces() -> Iterator[bytes]:
        for piece in _pieces(shipment, stream):
            check()
            yield piece

    write_atomically(target, pieces())
    return target.stat().st_size


def _pieces(shipment: Shipment, stream: Callable[[Descriptor], BinaryIO]) -> Iterator[bytes]:
    yield wheel_layout.beginning()
    small = _small_blobs(shipment)
    wheels = {str(wheel.layer.digest): wheel.layer for image in shipment.images for wheel in image.wheels}
    # Sort by digest: then the bytes of the file depend only on its images.
    for digest in sorted({*small, *wheels}):
        if digest in wheels:
            yield member_header(wheel_layout.blob_path(wheels[digest]), wheels[digest].size)
            with stream(wheels[digest]) as layer:
                while piece := layer.read(_PIECE):
                    yield piece
            yield padding(wheels[digest].size)
        else:
            blob, data = small[digest]
            yield file_member(wheel_layout.blob_path(blob), data)
    # Leave out fingerprint tags: they only serve to find a build in a registry.
    tags = {tag: content for tag, content in shipment.tags.items() if not tag.startswith(FINGERPRINT_TAG)}
    for path, data in wheel_layout.documents(shipment.images, tags):
        yield file_member(path, data)
    yield END


def _small_blobs(shipment: Shipment) -> dict[str, tuple[Descriptor, bytes]]:
    """Return all blobs except the wheels' layers, by digest: records, configurations, manifests, indexes."""
    blobs = [pair for image in shipment.images for pair in image.small_blobs]
    contents = (*shipment.images, *shipment.tags.values())
    blobs += [(Descriptor.of(content.media_type, content.manifest), content.manifest) for content in contents]
    return {blob.digest: (blob, data) for blob, data in blobs}
