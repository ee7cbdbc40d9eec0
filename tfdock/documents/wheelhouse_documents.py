"""Documents of a wheelhouse: its wheels, its index, what a prune removed, and images of its wheels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from typing_extensions import TypedDict

from tfdock.errors import Problem
from tfdock.images.runtime.runtime_image import BuiltRuntimeImage
from tfdock.wheelhouse.build_record import Verified
from tfdock.wheelhouse.index import IndexUpdate
from tfdock.wheelhouse.store import WheelFile


class HeldWheelJson(TypedDict):
    """A wheel in the wheelhouse."""

    file: str  #: The file's name.
    size: int  #: Bytes.
    sha256: str | None  #: 64 hexadecimal digits; null if tfdock would have to read the file.
    name: str  #: The project's name.
    version: str  #: The version.
    tags: str  #: The three tags, such as `cp311-cp311-linux_x86_64`.
    tensorflow: str | None  #: TensorFlow's version; null if unknown.
    python: str | None  #: Python's version; null if unknown.
    accelerator: str | None  #: The accelerator, such as `cuda`; null if unknown.
    toolkit: str | None  #: The toolkit's version; null if unknown.
    gpu_code: Sequence[str] | None  #: The targets of the wheel's GPU code; null if unknown.
    #: `tried`: imported in a container; `files`: only its files were checked.
    verified: Verified
    finished: str  #: When the wheel was made, such as `2026-01-31T09:30:00+00:00`.
    origin: Literal["built", "pulled", "foreign"]  #: `foreign`: the wheel has no record here.
    pulled_from: str | None  #: The image that the wheel was pulled from.
    build_id: str | None  #: The build id; null for a foreign wheel.
    fingerprint: str | None  #: The build's fingerprint; null for a foreign wheel.
    problem: str | None  #: What is wrong with the wheel.


class WheelhouseListDocument(TypedDict):
    """`tfdock wheelhouse list`: the wheels."""

    wheelhouse: str  #: The folder.
    size: int  #: Bytes of all wheels.
    problems: Sequence[Problem]  #: Records that cannot be read.
    wheels: Sequence[HeldWheelJson]  #: The wheels.


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelhouseIndexDocument(IndexUpdate):
    """`tfdock wheelhouse index`: the index for pip and uv."""

    index: str  #: The folder of the index.
    page: str | None  #: Always null. Earlier versions wrote an HTML page.


class WheelhouseServeDocument(TypedDict):
    """`tfdock wheelhouse serve`: the address of the index."""

    url: str  #: The index's address.
    commands: Mapping[str, str]  #: The commands for `pip` and `uv` that install a wheel; empty without a wheel.


class PrunedWheelJson(TypedDict):
    """A removed wheel."""

    file: str  #: The file's name.
    size: int  #: Bytes.
    build_id: str | None  #: The build id.
    fingerprint: str | None  #: The build's fingerprint.


class LeftoverJson(TypedDict):
    """Leftovers of a run that were removed."""

    path: str  #: The path of the leftover in the wheelhouse.
    what: str  #: The kind of leftover.
    size: int  #: Bytes.


class WheelhousePruneDocument(TypedDict):
    """`tfdock wheelhouse prune`: the removed files, or the files to remove."""

    dry_run: bool  #: Whether nothing was removed.
    size: int  #: Bytes removed.
    left: int  #: Bytes of the remaining wheels.
    reached: bool  #: Whether the remaining bytes are within `--max-size`.
    wheels: Sequence[PrunedWheelJson]  #: The removed wheels.
    leftovers: Sequence[LeftoverJson]  #: The removed leftovers of runs.
    busy: Sequence[str]  #: Build ids that were skipped, because a run uses them.


class PackedFileJson(TypedDict):
    """A file of images."""

    path: str  #: The path of the file.
    size: int  #: Bytes.


class WheelImageJson(TypedDict):
    """An image of wheels, or an index of such images."""

    digest: str  #: The digest of the image's manifest, `sha256:` and 64 hexadecimal digits.
    tags: Sequence[str]  #: The tags; the first tag names the image.
    platforms: Sequence[str]  #: The platforms, such as `linux/amd64`.
    builds: Sequence[str]  #: Build ids.
    wheels: Sequence[WheelFile]  #: The wheels.


class ImagePackDocument(TypedDict):
    """`tfdock image pack`: images of wheels in a file."""

    file: PackedFileJson  #: The file.
    images: Sequence[WheelImageJson]  #: The images.


class ImagePushDocument(TypedDict):
    """`tfdock image push`: images of wheels in a registry."""

    repository: str  #: The repository of the images.
    images: Sequence[WheelImageJson]  #: The images.
    sent: int  #: Bytes that were sent.
    there: int  #: Bytes that the registry already had.


class ImageRuntimeDocument(TypedDict):
    """`tfdock image runtime`: an image to run a wheel in."""

    image: BuiltRuntimeImage  #: The image.
