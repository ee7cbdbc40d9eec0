"""Push wheel images into a repository of a registry (`image push`). Blobs that the registry has are not sent again.
Tags are set last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeVar

from tfdock.errors import ProfileError
from tfdock.images.image_tags import Content, Shipment
from tfdock.images.wheel_image_read import says_wheels
from tfdock.images.wheel_layer import ImageWheel
from tfdock.oci.manifest import Descriptor
from tfdock.oci.repository import FoundManifest, Repository
from tfdock.types import Digest

_PROGRESS_SECONDS = 10.0  #: Seconds between two messages about one wheel.

Stream = Callable[[Descriptor], BinaryIO]  #: Opens the layer of a wheel.

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedImages:
    """The result of a push: the digest of each tag, bytes that were sent, and bytes that the registry already had."""

    tags: dict[str, Digest]
    sent: int
    there: int


class Push:
    """Sends images to a repository. `say` is called with messages; `check` raises to stop; `clock` is in seconds."""

    def __init__(
        self,
        repository: Repository,
        stream: Stream,
        say: Callable[[str], None],
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The repository calls `check` while it sends, so progress needs no thread.
        self._repository = replace(repository, check=self._tick)
        self._stream, self._say, self._check, self._clock = stream, say, check, clock
        self._sending: _Transfer | None = None
        self._sent = self._there = 0

    def push(self, shipment: Shipment) -> PushedImages:
        """Send what the registry lacks. If a push is stopped, no tag points to an incomplete image.

        Raises the errors of `Repository`, and ProfileError (`image-tag-taken`) if a tag already points to an
        image without wheels. The tags are checked before anything is sent.
        """
        # All tags are checked before anything is sent.
        before = {tag: self._current_manifest(tag) for tag in shipment.tags}
        for wheel in _unique((wheel.layer, wheel) for image in shipment.images for wheel in image.wheels):
            self._send_wheel(wheel)
        for blob, data in _unique((pair[0], pair) for image in shipment.images for pair in image.small_blobs):
            self._count(blob.size, sent=self._repository.upload(blob, data))
        # Manifests after their blobs, tags last: a push that is stopped leaves no tag on half an image.
        tagged = {content.digest for content in shipment.tags.values()}
        for image in shipment.images:
            if image.digest not in tagged:  # an index names this image
                self._put(image.digest, image, self._repository.manifest(image.digest))
        for tag, content in shipment.tags.items():
            self._put(tag, content, before[tag])
        tags = {tag: content.digest for tag, content in shipment.tags.items()}
        return PushedImages(tags=tags, sent=self._sent, there=self._there)

    def _current_manifest(self, tag: str) -> FoundManifest | None:
        """Return the manifest that a tag stands for now."""
        manifest = self._repository.manifest(tag)
        if manifest is None or says_wheels(manifest.data):
            return manifest
        name = f"{self._repository.registry}/{self._repository.name}:{tag}"
        raise ProfileError.of(
            "image-tag-taken",
            f"`{name}` is a tag of another kind of image, and is not replaced: {manifest.digest}",
            "use a separate repository for wheels, or another tag: `--as TAG`, `--no-moving-tags`",
        )

    def _send_wheel(self, wheel: ImageWheel) -> None:
        with self._stream(wheel.layer) as layer:
            self._sending = _Transfer(wheel, layer, self._clock())
            try:
                sent = self._repository.upload(wheel.layer, layer)
            finally:
                self._sending = None
        self._count(wheel.layer.size, sent=sent)
        self._say(f"{wheel.file}: {'sent' if sent else 'already there'}")

    def _put(self, reference: str, content: Content, before: FoundManifest | None) -> None:
        """Point a tag or digest to a manifest whose blobs are in the registry."""
        new = before is None or before.digest != content.digest
        if new:
            self._repository.put_manifest(reference, content.media_type, content.manifest)
        self._count(len(content.manifest), sent=new)

    def _count(self, size: int, *, sent: bool) -> None:
        self._sent += size if sent else 0
        self._there += 0 if sent else size

    def _tick(self) -> None:
        """Raise if a stop was requested; else report progress now and then."""
        self._check()
        transfer, now = self._sending, self._clock()
        if transfer and now - transfer.reported >= _PROGRESS_SECONDS and transfer.layer.tell() > transfer.done:
            transfer.reported, transfer.done = now, transfer.layer.tell()
            self._say(f"{transfer.wheel.file}: {transfer.done / 1e6:.0f} of {transfer.wheel.size / 1e6:.0f} MB")


@dataclass
class _Transfer:
    """A wheel that is being sent; `reported` is the time of the last message, and `done` its bytes."""

    wheel: ImageWheel
    layer: BinaryIO
    reported: float
    done: int = 0


def _unique(blobs: Iterable[tuple[Descriptor, _T]]) -> tuple[_T, ...]:
    """Return the value of each blob, once if a blob comes twice."""
    # Images of several builds share layers: a registry keeps a blob once.
    return tuple({blob.digest: value for blob, value in blobs}.values())
