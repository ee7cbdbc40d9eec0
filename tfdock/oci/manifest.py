"""Read and write descriptors and manifests, with canonical bytes and digests (OCI image specification 1.1). Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdock.host.foreign_json import Malformed, parse
from tfdock.types import Digest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (INDEX, DOCKER_LIST, MANIFEST, DOCKER_MANIFEST)  #: Media types that a tag may stand for.
MOST = 4 << 20  #: The most bytes of a manifest; registries accept no larger manifests.

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
# Type and subtype have at most 127 characters each (RFC 6838, 4.2).
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}\Z")
_LARGEST = 1 << 53  #: Bytes; numbers in JSON are exact up to here.


def digest(data: bytes) -> Digest:
    """Return the digest of some bytes: `sha256:…`."""
    return Digest(f"sha256:{hashlib.sha256(data).hexdigest()}")


def is_digest(text: object) -> bool:
    """Return whether a value is a sha256 digest, the only kind that is used here."""
    return isinstance(text, str) and _DIGEST.match(text) is not None


def canonical_json(document: object) -> bytes:
    """Return the canonical bytes of a document: keys sorted, no spaces, UTF-8."""
    # Another order or another space would give another digest.
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """The descriptor of a blob: media type, digest, size in bytes, annotations."""

    media_type: str
    digest: Digest
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, media_type: str, data: bytes, annotations: Mapping[str, str] | None = None) -> Descriptor:
        """Return the descriptor of some bytes."""
        return cls(media_type=media_type, digest=digest(data), size=len(data), annotations=annotations or {})

    @classmethod
    def read(cls, node: object) -> Descriptor:
        """Return a descriptor from a manifest; raise Malformed."""
        if not isinstance(node, dict):
            raise Malformed("a descriptor is not a map")
        media_type, digest_text, size = node.get("mediaType"), node.get("digest"), node.get("size")
        if not isinstance(media_type, str) or not _MEDIA_TYPE.match(media_type):
            raise Malformed("a descriptor has no media type")
        if not isinstance(digest_text, str) or not is_digest(digest_text):
            raise Malformed("a descriptor has no sha256 digest")
        # `type`, because `True` is an int for isinstance.
        if type(size) is not int or not 0 <= size < _LARGEST:
            raise Malformed(f"the descriptor of {digest_text} has no size")
        return cls(media_type=media_type, digest=Digest(digest_text), size=size, annotations=_annotations(node))

    def document(self) -> dict[str, Any]:
        """Return the descriptor as it is written in a manifest."""
        node: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return node | ({"annotations": dict(self.annotations)} if self.annotations else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An image manifest. If it has an `artifact_type`, the manifest describes another kind of artifact."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, data: bytes) -> Manifest:
        """Return a manifest from its bytes; raise Malformed."""
        node = parse(Any, data)
        # Some readers would take a document with `manifests` for an index.
        if not isinstance(node, dict) or node.get("schemaVersion") != 2 or "manifests" in node:
            raise Malformed("it is not an image manifest")
        layers, artifact_type = node.get("layers"), node.get("artifactType")
        # An OCI manifest may leave its own media type out.
        if node.get("mediaType", MANIFEST) not in (MANIFEST, DOCKER_MANIFEST) or not isinstance(layers, list):
            raise Malformed("it is not an image manifest")
        return cls(
            config=Descriptor.read(node.get("config")),
            layers=tuple(Descriptor.read(layer) for layer in layers),
            artifact_type=artifact_type if isinstance(artifact_type, str) else None,
            annotations=_annotations(node),
        )

    def encoded(self) -> bytes:
        """Return the canonical bytes of the manifest. Their digest is the digest of the image."""
        node: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.config.document(),
            "layers": [layer.document() for layer in self.layers],
        }
        node |= {"artifactType": self.artifact_type} if self.artifact_type else {}
        return canonical_json(node | ({"annotations": dict(self.annotations)} if self.annotations else {}))


def _annotations(node: Mapping[str, object]) -> dict[str, str]:
    annotations = node.get("annotations") or {}
    if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
        raise Malformed("annotations are not a map of texts")
    return annotations
