"""The format of bundles: a tar file with all inputs of builds. Every byte of a bundle is checked before use.

    index.json          the list of contents, and the builds that need them; padded with spaces
    blobs/<sha256> …    regular files in the order of the index, each named by the sha256 of its contents
    index.sha256        the sha256 of the index and its padding

The index determines the place of every byte. So tar headers are compared, not interpreted: if a header differs from
tfdock's, the file is damaged. Pure: `tfdock.offline.bundle_file` reads and writes the file.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated

from tfdock.host.foreign_json import Line, Malformed, Sha256, Size, matching, parse
from tfdock.oci.plain_tar import BLOCK, END, member_header, padded_size
from tfdock.wheelhouse.build_record import WheelName

SCHEMA = "tfdock.bundle/1"
INDEX, SUM = "index.json", "index.sha256"
SUM_SIZE = 65  #: The size in bytes: 64 hexadecimal digits and a line end.
# Bytes. A header can claim any size, and the index is read before its sum is checked.
LONGEST_INDEX = 64 << 20
# Bazel's names: `file` is the download, and each `id-…` is an empty marker for a name of the download.
_CACHED = r"content_addressable/sha256/([0-9a-f]{64})/(file|id-[0-9a-f]{64})"


class BundleError(Exception):
    """The file is not a bundle, or the bundle cannot be trusted. `code` is the code of the problem."""

    def __init__(self, message: str, code: str = "bundle-malformed") -> None:
        self.code = code
        super().__init__(message)


# --- values of an index ---------------------------------------------------------------------------------------------

CachedPath = Annotated[str, matching(_CACHED)]
SafeBuildId = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")]
# Only names in `tfdock/bundle`: loading a bundle must not take the name of another image.
ImageName = Annotated[str, matching(r"tfdock/bundle:[0-9a-f]{24}")]


# --- contents of a bundle -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob: a file in a bundle."""

    sha256: Sha256  #: 64 hexadecimal digits: the name of the blob.
    size: Size  #: Bytes.

    @property
    def name(self) -> str:
        """The name of the blob's file in the tar archive."""
        return f"blobs/{self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledImage:
    """An image in the archive of images."""

    name: ImageName  #: The name of the image in the bundle.
    id: Line  #: The image's id on the engine that saved the image.
    size: Size  #: Bytes.

    def __post_init__(self) -> None:
        # Otherwise a stranger's bundle could give an image the name under which another image was checked.
        if self.name != image_name(self.id):
            raise ValueError(f"{self.name} is the name of another image")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledRuntime:
    """The image in which the wheel is tried."""

    reference: Line  #: The name under which a build requests the image.
    image: BundledImage  #: The image.


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """The requirements of a finished wheel."""

    python_tag: Line  #: The Python of these requirements, such as `cp311`.
    requirements: tuple[Line, ...]  #: The requirements that the finished wheel will have.
    limits: tuple[Line, ...]  #: Extra limits on versions.
    files: Mapping[WheelName, Sha256]  #: File name of each wheel -> its blob.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTexts:
    """A profile, as tfdock read it when the bundle was made."""

    file: Line  #: The name of the profile's file.
    text: Sha256  #: The blob with the profile's text.
    extended: Mapping[Line, Sha256]  #: Name of each extended profile -> its blob.
    patches: Mapping[Line, Sha256]  #: Name of each patch -> its blob.
    tree: Sha256 | None  #: The tree hash of a local checkout.


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledBuild:
    """One build: its identity, image and downloads. Every sha256 except the fingerprint is the name of a blob."""

    build_id: SafeBuildId  #: The build id.
    fingerprint: Sha256  #: The build's fingerprint.
    profile: ProfileTexts  #: The profile.
    lock: Sha256 | None  #: The blob with the lock.
    image: BundledImage  #: The image that builds.
    base_digest: Line | None  #: The digest of the base image.
    source_ref: Line | None  #: The tag or branch of the source.
    runtime: BundledRuntime | None  #: The image in which the wheel is tried.
    wheels: Wheels | None  #: The requirements of the finished wheel.
    external: Sha256 | None  #: The blob with files of repository rules that are not in Bazel's cache.

    @property
    def images(self) -> tuple[BundledImage, ...]:
        """The images of the build: the image that builds, and (if any) the image for the trial."""
        return (self.image, *((self.runtime.image,) if self.runtime else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The index of a bundle (`index.json`). The name of a blob is its sha256."""

    schema: Annotated[str, SCHEMA.__eq__] = SCHEMA  #: The kind and version of this document.
    tfdock: Line  #: The version of tfdock that wrote the bundle.
    knowledge: Line  #: The digest of the knowledge base.
    builds: tuple[BundledBuild, ...]  #: The builds in the bundle.
    images: Sha256  #: The blob with all images: an archive like those of `docker save`.
    repository: Mapping[CachedPath, Sha256]  #: Each path in Bazel's repository cache -> the blob with the file.
    blobs: tuple[Blob, ...] = field(default=())  #: All blobs, in the order in which they are in the file.

    @property
    def offsets(self) -> dict[str, int]:
        """The offset of each blob's bytes, and of `SUM`, counted from the end of the index."""
        offsets, place = {}, 0
        for blob in self.blobs:
            offsets[blob.sha256] = place + BLOCK
            place += BLOCK + padded_size(blob.size)
        return offsets | {SUM: place + BLOCK}

    @property
    def length(self) -> int:
        """Bytes from the end of the index to the end of the file."""
        return self.offsets[SUM] + padded_size(SUM_SIZE) + len(END)

    def blob(self, sha256: str) -> Blob:
        """Return the blob with this sha256."""
        return next(blob for blob in self.blobs if blob.sha256 == sha256)


def header(name: str, size: int) -> bytes:
    """Return a member's tar header. It is always one block, even for sizes above the limit of ustar."""
    # GNU's binary form holds sizes of 8 GiB and more in the same block; PAX would need two further blocks.
    return member_header(name, size, gnu=True)


def image_name(image: str) -> str:
    """Return the name of an image in a bundle. The name contains the image's id, so no two images share a name."""
    return f"tfdock/bundle:{image.removeprefix('sha256:')[:24]}"


def cached_sha256(path: str) -> str | None:
    """Return the sha256 in a path of Bazel's repository cache. A marker has an empty one, any other path None."""
    match = re.fullmatch(_CACHED, path)
    return match and (match[1] if match[2] == "file" else "")


# --- text -----------------------------------------------------------------------------------------------------------


def to_text(index: Index) -> bytes:
    """Return the index as JSON: equal bytes for equal indexes."""
    # The order of the fields is fixed. It puts `schema` first, for people.
    return json.dumps(asdict(index), indent=1).encode() + b"\n"


def index_size(block: bytes) -> int:
    """Return the size of the index, from the first block of a file; raises BundleError (`bundle-malformed`)."""
    try:
        size = tarfile.TarInfo.frombuf(block, "utf-8", "strict").size
    except (tarfile.TarError, UnicodeError):
        raise BundleError("the file is not a tar archive") from None
    # `tarfile` also reads headers that tfdock never writes, so compare the whole block.
    if not 0 < size <= LONGEST_INDEX or header(INDEX, size) != block:
        raise BundleError(f"the file does not begin with {INDEX}")
    return size


def from_text(text: bytes) -> Index:
    """Read an index; raises BundleError (`bundle-malformed`, `bundle-schema`)."""
    try:
        # A later schema may have other fields.
        schema = parse(_Schema, text).schema
        if schema != SCHEMA:
            raise BundleError(f"the schema is {schema[:40]}, but this tfdock reads only {SCHEMA}", "bundle-schema")
        return _checked(parse(Index, text))
    except Malformed as error:
        raise BundleError(f"the index is invalid: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schema:
    schema: Line


def _checked(index: Index) -> Index:
    digests = {blob.sha256 for blob in index.blobs}
    if len(digests) != len(index.blobs):
        raise Malformed("a blob is listed twice")
    missing = [name for name in named_blobs(index) if name not in digests]
    if missing:
        raise Malformed(f"the blob {missing[0][:12]} is missing")
    ids = {build.build_id for build in index.builds}
    if not ids or len(ids) != len(index.builds):
        raise Malformed("no build is listed, or a build is listed twice")
    for path, blob in index.repository.items():
        # Bazel finds a cached file by its path: under a wrong sha256, it would use the wrong download.
        if cached_sha256(path) not in ("", blob):
            raise Malformed(f"{path} names other contents")
    return index


def named_blobs(index: Index) -> Iterator[str]:
    """Yield every sha256 in the index that must be the name of a blob."""
    yield index.images
    yield from index.repository.values()
    for build in index.builds:
        profile, wheels = build.profile, build.wheels
        yield from (profile.text, *profile.extended.values(), *profile.patches.values())
        yield from (name for name in (build.lock, build.external) if name)
        yield from wheels.files.values() if wheels else ()
