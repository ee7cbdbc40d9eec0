"""Bundles: everything that builds need, in one file that every tar reads and of which we trust no byte unseen.

    index.json          what is in it, and for which builds; padded with spaces
    blobs/<sha256> …    in the index's order: regular files, each named by its contents
    index.sha256        of the index, its padding included

The index says where every byte lies, so a header is never interpreted: it is what we would have written, or the file
is damaged. Pure: who reads and writes the file is `tfdock.offline.bundle_file`.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from tfdock.oci.plain_tar import BLOCK, END, member_header, padded_size

SCHEMA = "tfdock.bundle/1"
INDEX, SUM = "index.json", "index.sha256"
SUM_SIZE = 65
"""64 hexadecimal digits and a line's end."""
LONGEST_INDEX = 64 << 20
_CACHED = re.compile(r"content_addressable/sha256/([0-9a-f]{64})/(file|id-[0-9a-f]{64})")


class BundleError(Exception):
    """A file that is no bundle, or not one that can be trusted; says what is wrong with it. `code` is a code."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


# --- what may stand in an index -------------------------------------------------------------------------------------


def _matching(expression: re.Pattern[str]) -> Callable[[object], str]:
    def check(text: object) -> str:
        if not isinstance(text, str) or not expression.fullmatch(text):
            raise ValueError(f"{str(text)[:60]!a} is not what should stand there")
        return text

    return check


def _line(text: object) -> str:
    if not isinstance(text, str) or not text.isprintable() or len(text) > 4096:
        raise ValueError(f"{str(text)[:60]!a} is not a line of text")
    return text


def _size(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 50:
        raise ValueError(f"{str(number)[:60]!a} is not a size")
    return number


Sha256 = Annotated[str, _matching(re.compile(r"[0-9a-f]{64}"))]
"""64 hexadecimal digits."""
Line = Annotated[str, _line]
Size = Annotated[int, _size]
"""Bytes."""
CachedPath = Annotated[str, _matching(_CACHED)]
WheelName = Annotated[str, _matching(re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl"))]
SafeBuildId = Annotated[str, _matching(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"))]
ImageName = Annotated[str, _matching(re.compile(r"tfdock/bundle:[0-9a-f]{24}"))]


def _read(kind: Any, node: Any) -> Any:
    """Return the value of a type that stands in JSON; its annotations check texts and numbers.

    Raises KeyError, TypeError, ValueError or AttributeError for anything else.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return kind.__metadata__[0](node)
    if type(None) in arguments:
        return None if node is None else _read(arguments[0], node)
    if origin is tuple:
        return tuple(_read(arguments[0], item) for item in node)
    if origin is Mapping:
        return {_read(arguments[0], key): _read(arguments[1], value) for key, value in node.items()}
    return kind(**{name: _read(hint, node[name]) for name, hint in _type_hints(kind).items()})


@cache
def _type_hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


# --- what is in a bundle --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Some contents, by their sha256."""

    sha256: Sha256
    size: Size

    @property
    def name(self) -> str:
        """What the archive calls it."""
        return f"blobs/{self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledImage:
    """An image of the archive of images: its name in there, its id on the engine that saved it, its size in bytes."""

    name: ImageName
    id: Line
    size: Size

    def __post_init__(self) -> None:
        if self.name != image_name(self.id):
            raise ValueError(f"{self.name} is the name of another image")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledRuntime:
    """The image in which a wheel is tried, and what it is asked for as."""

    reference: Line
    image: BundledImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """What a finished wheel will require of that Python (`cp311`), with the limits that were set, and the wheels:
    file name -> blob."""

    python_tag: Line
    requirements: tuple[Line, ...]
    limits: tuple[Line, ...]
    files: Mapping[WheelName, Sha256]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTexts:
    """A profile as it was read: its file's name, blobs of its text, of those it extends and of its patches, and the
    tree hash of a local checkout."""

    file: Line
    text: Sha256
    extended: Mapping[Line, Sha256]
    patches: Mapping[Line, Sha256]
    tree: Sha256 | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledBuild:
    """One build: who it is, its image, and what it fetched. A sha256, but for the fingerprint, names a blob.

    `external` is what its repository rules fetched past Bazel's own cache; None where that is nothing.
    """

    build_id: SafeBuildId
    fingerprint: Sha256
    profile: ProfileTexts
    lock: Sha256 | None
    image: BundledImage
    base_digest: Line | None
    source_ref: Line | None
    runtime: BundledRuntime | None
    wheels: Wheels | None
    external: Sha256 | None

    @property
    def images(self) -> tuple[BundledImage, ...]:
        """Its images: that which builds, and that in which the wheel is tried."""
        return (self.image, *((self.runtime.image,) if self.runtime else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All of a bundle. `images` is the blob of an archive as `docker save` makes it; `repository` maps paths in
    Bazel's repository cache to blobs."""

    tfdock: Line
    knowledge: Line
    builds: tuple[BundledBuild, ...]
    images: Sha256
    repository: Mapping[CachedPath, Sha256]
    blobs: tuple[Blob, ...] = field(default=())

    @property
    def offsets(self) -> dict[str, int]:
        """Where each blob's bytes begin, counted from the end of the index; `SUM` is among them."""
        found, place = {}, 0
        for blob in self.blobs:
            found[blob.sha256] = place + BLOCK
            place += BLOCK + padded_size(blob.size)
        return found | {SUM: place + BLOCK}

    @property
    def length(self) -> int:
        """Bytes from the end of the index to the end of the file."""
        return self.offsets[SUM] + padded_size(SUM_SIZE) + len(END)

    def blob(self, sha256: str) -> Blob:
        """The blob of that name."""
        return next(blob for blob in self.blobs if blob.sha256 == sha256)


def header(name: str, size: int) -> bytes:
    """Return a member's header: always one block, also for what is larger than a header of ustar can say."""
    return member_header(name, size, gnu=True)


def image_name(image: str) -> str:
    """What a bundle calls an image: by its id, so that no two images share a name."""
    return f"tfdock/bundle:{image.removeprefix('sha256:')[:24]}"


def cached_sha256(path: str) -> str | None:
    """The sum that a file of Bazel's repository cache must have, by its path; None for the marks beside it."""
    found = _CACHED.fullmatch(path)
    return found[1] if found and found[2] == "file" else None


def is_cached(path: str) -> bool:
    """Whether that is the path of something in Bazel's repository cache."""
    return _CACHED.fullmatch(path) is not None


# --- text -----------------------------------------------------------------------------------------------------------


def to_text(index: Index) -> bytes:
    """The index as JSON, the same for the same index."""
    return json.dumps({"schema": SCHEMA, **asdict(index)}, indent=1, sort_keys=False).encode() + b"\n"


def index_size(block: bytes) -> int:
    """The size of the index, by the first block of a file; raises BundleError (`bundle-malformed`)."""
    try:
        size = tarfile.TarInfo.frombuf(block, "utf-8", "strict").size
    except (tarfile.TarError, UnicodeError):
        raise _malformed("it is no tar archive") from None
    if not 0 < size <= LONGEST_INDEX or header(INDEX, size) != block:
        raise _malformed(f"it does not begin with {INDEX}")
    return size


def from_text(text: bytes) -> Index:
    """Read an index; raises BundleError (`bundle-malformed`, `bundle-schema`)."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _malformed("its index is not JSON") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        found = schema if isinstance(schema, str) and schema.isprintable() else "none"
        raise BundleError("bundle-schema", f"its schema is {found[:40]}, and this tfdock reads {SCHEMA}")
    try:
        return _index(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(f"its index does not hold what it should: {error}") from None


def _malformed(message: str) -> BundleError:
    return BundleError("bundle-malformed", message)


def _index(document: Mapping[str, Any]) -> Index:
    index: Index = _read(Index, document)
    known = {blob.sha256 for blob in index.blobs}
    if len(known) != len(index.blobs):
        raise ValueError("a blob stands in it twice")
    missing = [name for name in _named_blobs(index) if name not in known]
    if missing:
        raise ValueError(f"{missing[0][:12]} is no blob of it")
    ids = {build.build_id for build in index.builds}
    if not ids or len(ids) != len(index.builds):
        raise ValueError("it has no build, or one twice")
    for path, blob in index.repository.items():
        if cached_sha256(path) not in (None, blob):
            raise ValueError(f"{path} names other contents")
    return index


def _named_blobs(index: Index) -> Iterator[str]:
    """Every blob that something stands for."""
    yield index.images
    yield from index.repository.values()
    for build in index.builds:
        profile, wheels = build.profile, build.wheels
        yield from (profile.text, *profile.extended.values(), *profile.patches.values())
        yield from (name for name in (build.lock, build.external) if name)
        yield from wheels.files.values() if wheels else ()
