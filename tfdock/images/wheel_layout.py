"""Lay out a file of wheel images: an OCI image layout in a tar, which `docker load` can read too. Pure: no I/O.

    blobs/sha256/<digest> …    by name: layers, configurations, manifests, indexes
    index.json                 the layout's index: each image once, under its first tag
    manifest.json              the images with all their tags, as Docker's engines read them
    oci-layout                 marks the layout

The bytes of the file depend only on the images. Its members are sorted by name, and no name occurs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfdock.images.wheel_image import ImageIndex, WheelImage
from tfdock.oci.manifest import INDEX, Descriptor, canonical_json
from tfdock.oci.plain_tar import member_header

FOLDER = "blobs/sha256"
REPOSITORY = "tfdock/wheels"  #: The name (before the colon) of images that an engine loads from a file.
# The OCI image layout: by this annotation its index gives a manifest a name. containerd and podman take an image's
# whole name from an annotation of their own.
_NAME = "org.opencontainers.image.ref.name"
_WHOLE_NAME = "io.containerd.image.name"


def beginning() -> bytes:
    """Return the first bytes of every file of wheel images."""
    return b"".join(member_header(f"{folder}/", None) for folder in ("blobs", FOLDER))


def blob_path(blob: Descriptor) -> str:
    """Return the path of a blob."""
    return f"{FOLDER}/{blob.digest.removeprefix('sha256:')}"


def documents(
    images: Iterable[WheelImage], tags: Mapping[str, WheelImage | ImageIndex]
) -> Iterator[tuple[str, bytes]]:
    """Yield the files after the blobs, in order. In `tags`, an image's main name comes before its other names."""
    # One descriptor for each manifest: skopeo and podman take a file without a name only if it has a single one.
    own = {content.digest: tag for tag, content in reversed(list(tags.items()))}
    manifests = [_entry(tag, tags[tag]) for tag in sorted(own.values())]
    yield "index.json", canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    names: dict[str, list[str]] = {image.digest: [] for image in images}
    for tag, content in sorted(tags.items()):
        # An engine cannot load an index of several platforms: it gets their images without this name.
        if isinstance(content, WheelImage):
            names[content.digest].append(f"{REPOSITORY}:{tag}")
    loaded = sorted(images, key=lambda image: image.digest)
    yield "manifest.json", canonical_json([_loaded(image, names[image.digest]) for image in loaded])
    yield "oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"})


def _entry(tag: str, content: WheelImage | ImageIndex) -> dict[str, Any]:
    names = {_NAME: tag, _WHOLE_NAME: f"docker.io/{REPOSITORY}:{tag}"}
    document = Descriptor.of(content.media_type, content.manifest, names).document()
    return document | ({"platform": content.platform.document()} if isinstance(content, WheelImage) else {})


def _loaded(image: WheelImage, names: list[str]) -> dict[str, Any]:
    """Return an image in the form of `docker save`."""
    _, (config, _) = image.small_blobs
    layers = [blob_path(layer) for layer in image.layers]
    # `docker save` writes null for an image without a name.
    return {"Config": blob_path(config), "RepoTags": names or None, "Layers": layers}
