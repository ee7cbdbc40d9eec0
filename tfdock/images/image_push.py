"""`image push`: wheel images into a repository of a registry: what is there is not sent again, and tags come last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeVar

from tfdock.errors import Problem, ProfileError
from tfdock.images.image_tags import Content, Shipment
from tfdock.images.wheel_image_read import says_wheels
from tfdock.images.wheel_layer import ImageWheel
from tfdock.oci.manifest import Descriptor
from tfdock.oci.repository import FoundManifest, Repository
from tfdock.types import Digest

_SAID = 10.0
"""Seconds between two words about one wheel."""

Stream = Callable[[Descriptor], BinaryIO]
"""Opens the layer of a wheel."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedImages:
    """What became of a push: the digest that each tag stands for, bytes that were sent, and bytes that were there."""

    tags: dict[str, Digest]
    sent: int
    there: int


class Push:
    """Sends images to a repository. `say` hears what is going on; `check` raises to stop; `clock` is in seconds."""

    def __init__(
        self,
        repository: Repository,
        stream: Stream,
        say: Callable[[str], None],
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = replace(repository, check=self._tick)
        self._stream, self._say, self._check, self._clock = stream, say, check, clock
        self._sending: _Sending | None = None
        self._sent = self._there = 0

    def push(self, shipment: Shipment) -> PushedImages:
        """Send what is not there. One that is stopped has given no tag that stands for half an image.

        Raises what `Repository` does, and ProfileError (`image-tag-taken`) where a tag stands for something else than
        wheels: before anything is sent.
        """
        before = {tag: self._found(tag) for tag in shipment.tags}
        for wheel in _once((wheel.layer, wheel) for image in shipment.images for wheel in image.wheels):
            self._send_wheel(wheel)
        for blob, data in _once((small[0], small) for image in shipment.images for small in image.small_blobs):
            self._count(blob.size, sent=self._repository.upload(blob, data))
        tagged = {content.digest for content in shipment.tags.values()}
        for image in shipment.images:
            if image.digest not in tagged:  # an index names it
                self._put(image.digest, image, self._repository.manifest(image.digest))
        for tag, content in shipment.tags.items():
            self._put(tag, content, before[tag])
        tags = {tag: content.digest for tag, content in shipment.tags.items()}
        return PushedImages(tags=tags, sent=self._sent, there=self._there)

    def _found(self, tag: str) -> FoundManifest | None:
        """What a tag stands for now."""
        found = self._repository.manifest(tag)
        if found is None or says_wheels(found.data):
            return found
        name = f"{self._repository.registry}/{self._repository.name}:{tag}"
        raise ProfileError(
            Problem(
                code="image-tag-taken",
                message=f"`{name}` stands for something else than wheels, and is not replaced: {found.digest}",
                fix="give wheels a repository of their own, or another tag: `--as TAG`, `--no-moving-tags`",
            )
        )

    def _send_wheel(self, wheel: ImageWheel) -> None:
        with self._stream(wheel.layer) as layer:
            self._sending = _Sending(wheel, layer, self._clock())
            try:
                sent = self._repository.upload(wheel.layer, layer)
            finally:
                self._sending = None
        self._count(wheel.layer.size, sent=sent)
        self._say(f"{wheel.file}: {'sent' if sent else 'is there'}")

    def _put(self, reference: str, content: Content, before: FoundManifest | None) -> None:
        """Make a tag, or a digest, stand for what is there."""
        new = before is None or before.digest != content.digest
        if new:
            self._repository.put_manifest(reference, content.media_type, content.manifest)
        self._count(len(content.manifest), sent=new)

    def _count(self, size: int, *, sent: bool) -> None:
        self._sent += size if sent else 0
        self._there += 0 if sent else size

    def _tick(self) -> None:
        """Stop if that is asked for; else, now and then, a sign of life."""
        self._check()
        sending, now = self._sending, self._clock()
        if sending and now - sending.said >= _SAID:
            sending.said = now
            done, size = sending.layer.tell() / 1e6, sending.wheel.size / 1e6
            self._say(f"{sending.wheel.file}: {done:.0f} of {size:.0f} MB")


@dataclass
class _Sending:
    """A wheel on its way; `said` is when somebody was told last."""

    wheel: ImageWheel
    layer: BinaryIO
    said: float


def _once(blobs: Iterable[tuple[Descriptor, _T]]) -> tuple[_T, ...]:
    """What belongs to each of these blobs, one time where a blob comes twice."""
    return tuple({blob.digest: one for blob, one in blobs}.values())
