"""`image pack`: wheel images into a file, streamed, and visible when it is whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tfdock.errors import Problem, ProfileError
from tfdock.images import wheel_layout
from tfdock.images.image_tags import Shipment
from tfdock.images.wheel_image import FINGERPRINT_TAG
from tfdock.oci.manifest import Descriptor
from tfdock.oci.plain_tar import END, file_member, member_header, padding

_PIECE = 1 << 20


def check_target(target: Path) -> None:
    """Refuse early what could not be written, or would replace what is no file of images (`image-file-taken`)."""
    folder = target.absolute().parent
    if target.name in ("", "-"):
        why, fix = "it is no name of a file, and standard output is for the digests", "name a file: `-o wheels.tar`"
    elif not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why, fix = f"{folder} is no folder that can be written to", "make the folder, or give another"
    elif target.exists() and not _is_ours(target):
        why, fix = "something else has that name, and is not replaced", "remove it, or give another name"
    else:
        return
    raise ProfileError(Problem(code="image-file-taken", message=f"{target} cannot be written: {why}", fix=fix))


def _is_ours(target: Path) -> bool:
    begin = wheel_layout.beginning()
    try:
        with target.open("rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def pack(
    shipment: Shipment, stream: Callable[[Descriptor], BinaryIO], target: Path, check: Callable[[], None]
) -> int:
    """Write a file of images; its bytes. `stream` opens a wheel's layer. Raises OSError, and what `check` raises."""
    part = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_native_id()}")
    try:
        with part.open("xb") as file:
            for piece in _pieces(shipment, stream):
                check()
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        part.replace(target)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            part.unlink(missing_ok=True)
        raise
    return size


def _pieces(shipment: Shipment, stream: Callable[[Descriptor], BinaryIO]) -> Iterator[bytes]:
    yield wheel_layout.beginning()
    small = _small_blobs(shipment)
    wheels = {str(wheel.layer.digest): wheel.layer for image in shipment.images for wheel in image.wheels}
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
    # A fingerprint's tag is for whoever looks for a build in a registry.
    tags = {tag: content for tag, content in shipment.tags.items() if not tag.startswith(FINGERPRINT_TAG)}
    for path, data in wheel_layout.documents(shipment.images, tags):
        yield file_member(path, data)
    yield END


def _small_blobs(shipment: Shipment) -> dict[str, tuple[Descriptor, bytes]]:
    """All blobs but the wheels' layers, by digest: papers, configurations, manifests, indexes."""
    found = [pair for image in shipment.images for pair in image.small_blobs]
    contents = (*shipment.images, *shipment.tags.values())
    found += [(Descriptor.of(one.media_type, one.manifest), one.manifest) for one in contents]
    return {blob.digest: (blob, data) for blob, data in found}
