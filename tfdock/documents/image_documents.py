"""Documents of images: images of wheels, and images to run wheels in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict

from tfdock.documents.document_parts import WheelFileJson


class PackedFileJson(TypedDict):
    """A file of images."""

    path: str  #: Where it is.
    size: int  #: Bytes.


class WheelImageJson(TypedDict):
    """An image of wheels, or an index of such images."""

    digest: str  #: The digest of its manifest, `sha256:` and 64 hexadecimal digits.
    tags: Sequence[str]  #: Its tags; the first names it.
    platforms: Sequence[str]  #: Such as `linux/amd64`.
    builds: Sequence[str]  #: Build ids.
    wheels: Sequence[WheelFileJson]  #: The wheels.


class ImagePackDocument(TypedDict):
    """`tfdock image pack`: images of wheels in a file."""

    file: PackedFileJson  #: The file.
    images: Sequence[WheelImageJson]  #: The images.


class ImagePushDocument(TypedDict):
    """`tfdock image push`: images of wheels in a registry."""

    repository: str  #: Where they are.
    images: Sequence[WheelImageJson]  #: The images.
    sent: int  #: Bytes that were sent.
    there: int  #: Bytes that the registry had.


class RuntimeImageJson(TypedDict):
    """An image to run a wheel in."""

    status: Literal["built", "up-to-date"]  #: `up-to-date`: it was there.
    name: str  #: Its name.
    id: str  #: Its id on the engine.
    size: int  #: Bytes.
    base: str  #: The image it begins with.
    base_size: int  #: Bytes of that one.
    labels: Mapping[str, str]  #: Its labels.
    variables: Mapping[str, str]  #: Environment variables that ask for GPUs.
    distributions: Sequence[str]  #: Python packages in it.
    lacking: Sequence[str]  #: What it does not have, in words.
    pushed: Mapping[str, str] | None  #: `reference` and `digest` in the registry; null without `--push`.


class ImageRuntimeDocument(TypedDict):
    """`tfdock image runtime`: an image to run a wheel in."""

    image: RuntimeImageJson  #: The image.
