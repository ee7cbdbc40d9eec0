"""Read the archives that an engine sends, as a stream. Nothing is unpacked."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tfdock.errors import EngineError
from tfdock.host.foreign_json import Malformed
from tfdock.oci.plain_tar import BLOCK, TarHeader, read_header


class ChunkReader(io.RawIOBase):
    """A file object that reads from chunks of bytes, for tarfile."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def image_names(archive: Iterator[bytes]) -> Iterator[str]:
    """Yield the names that an engine would give to the images of an archive, from all documents of the archive.

    Engines use other tar and JSON readers than this module. So Malformed is raised for an archive that two readers
    could read differently. An archive may have only the members that `docker save` writes, each once.
    """
    named = False
    for path, content in _members(io.BufferedReader(ChunkReader(archive), _PIECE)):
        if path in _NAMING:
            named = named or path == _MANIFEST
            yield from _NAMING[path](_json(path, content))
    if not named:  # without this file, engines choose other documents
        raise Malformed(f"{_MANIFEST} is missing")


def _of_manifest(images: Any) -> Iterator[str]:
    for image in images:
        if "Parent" in image:  # a parent would make the image a cached step of another image's build
            raise Malformed("an image has a `Parent`, which is not allowed")
        # `docker save` writes null for an image that has no name.
        yield from _strings(image["RepoTags"] or [])


def _of_repositories(repositories: Any) -> Iterator[str]:
    for name, tags in repositories.items():
        yield from (f"{name}:{tag}" for tag in tags)


def _of_index(index: Any) -> Iterator[str]:
    for image in index["manifests"]:
        notes = image.get("annotations") or {}
        # containerd uses the second annotation if the first is missing.
        name = notes.get("io.containerd.image.name") or notes.get("org.opencontainers.image.ref.name")
        yield from (image_name.removeprefix("docker.io/") for image_name in _strings([name] if name else []))


def _strings(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Malformed("the name of an image is not text")
    return names


def _json(path: str, content: bytes) -> Any:
    """Read JSON that Go reads the same way: Go ignores the case of keys, and the last of equal keys counts."""

    def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = {key.casefold(): key for key, _ in pairs}
        if len(keys) < len(pairs):
            raise Malformed(f"{path} has the same key twice")
        for folded in keys.keys() & _KEYS.keys():
            if keys[folded] != _KEYS[folded]:
                raise Malformed(f"{path} has the key {_KEYS[folded]} in another spelling")
        return dict(pairs)

    return json.loads(content.decode("utf-8"), object_pairs_hook=plain)


_MANIFEST = "manifest.json"
_NAMING: Mapping[str, Callable[[Any], Iterator[str]]] = {
    _MANIFEST: _of_manifest,
    "repositories": _of_repositories,
    "index.json": _of_index,
}
_KEYS = {key.casefold(): key for key in ("RepoTags", "Parent", "manifests", "annotations")}
# The most bytes of one document; real documents have some kilobytes.
_LONGEST = 16 << 20
_PIECE = 1 << 20

# What `docker save` writes: a folder for each layer until Docker 24, the OCI layout since then.
_ID = "[0-9a-f]{64}"
_PLAIN = re.compile(
    rf"manifest\.json|repositories|index\.json|oci-layout|{_ID}\.json|{_ID}/(?:VERSION|json|layer\.tar)"
    rf"|blobs/sha256/{_ID}"
)
_FOLDER = re.compile(rf"(?:{_ID}|blobs|blobs/sha256)/?")
_LAYER_LINK, _LAYER = re.compile(rf"{_ID}/layer\.tar"), re.compile(rf"\.\./{_ID}/layer\.tar")


def _members(archive: io.BufferedReader) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the documents that name images; raise Malformed for members that no engine writes."""
    seen = set[str]()
    for header in _headers(archive):
        _check_member(header)
        path = header.name.removesuffix("/")
        if path in seen:
            raise Malformed(f"the archive has `{path}` twice")
        seen.add(path)
        if path not in _NAMING:
            _skip(archive, header.size + -header.size % BLOCK)
        elif header.size > _LONGEST:
            raise Malformed(f"{path} is too large")
        else:
            yield path, _read_content(archive, header.size)
    # POSIX ends a tar with two blocks of zeros. A reader that continues after them would see other members.
    ending = BLOCK
    while piece := archive.read(_PIECE):
        if any(piece):
            raise Malformed("there is data after the end of the archive")
        ending += len(piece)
    if ending < 2 * BLOCK:
        raise Malformed("it is cut")


def _headers(archive: io.BufferedReader) -> Iterator[TarHeader]:
    """Yield every header up to the first empty block; the caller reads the content before the next header."""
    while any(block := _read_exactly(archive, BLOCK)):
        header = read_header(block, links=True)
        if header.kind == "x":
            if header.size > _LONGEST_EXTENSION or not _EXTENSION.fullmatch(header.name):
                raise Malformed(_EXTENDED)
            size = _extended_size(_read_content(archive, header.size))
            header = read_header(_read_exactly(archive, BLOCK), links=True)
            # Readers differ in what two extended headers in a row mean.
            if header.kind == "x":
                raise Malformed(_EXTENDED)
            header = header if size is None else replace(header, size=size)
        yield header


def _check_member(header: TarHeader) -> None:
    allowed = {
        "0": _PLAIN.fullmatch(header.name) and not header.link,
        # Docker before 25 writes a layer that two images share once, and links to it.
        "2": _LAYER_LINK.fullmatch(header.name) and _LAYER.fullmatch(header.link) and not header.size,
        "5": _FOLDER.fullmatch(header.name) and not header.link and not header.size,
    }
    if not allowed[header.kind]:
        raise Malformed(f"no engine writes a member such as `{header.name[:100]!a}`")


_EXTENDED = "a member has extended headers that no engine writes"
_LONGEST_EXTENSION = 8 * BLOCK
# Check the name: if an archive begins like a compressed one, engines unpack it.
_EXTENSION = re.compile(r"(?:[0-9a-z/]+/)?PaxHeaders\.0/[A-Za-z0-9._-]+")
# `path` and `linkpath` are not allowed: they would give the member another name than its header.
_RECORD = re.compile(rb"([1-9][0-9]{0,3}) (size|mtime|atime|ctime|uid|gid|uname|gname)=([^\n\0]+)\n")


def _extended_size(extension: bytes) -> int | None:
    """Return the size that an extended header gives its member, if any: engines write one for layers above 8 GiB."""
    records, place = dict[bytes, bytes](), 0
    while place < len(extension):
        # A record's length counts its own digits too (POSIX pax).
        match = _RECORD.match(extension, place)
        if not match or int(match[1]) != len(match[0]) or match[2] in records:
            raise Malformed(_EXTENDED)
        records[match[2]], place = match[3], match.end()
    size = records.get(b"size")
    if size is not None and not re.fullmatch(rb"[1-9][0-9]{0,17}", size):
        raise Malformed("a member has no valid size")
    return None if size is None else int(size)


def _read_content(archive: io.BufferedReader, size: int) -> bytes:
    return _read_exactly(archive, size + -size % BLOCK)[:size]


def _skip(archive: io.BufferedReader, size: int) -> None:
    while size:
        size -= len(_read_exactly(archive, min(size, _PIECE)))


def _read_exactly(archive: io.BufferedReader, size: int) -> bytes:
    data = archive.read(size)
    if len(data) < size:
        raise Malformed("it is cut")
    return data


def only_file(archive: Iterator[bytes], path: str) -> bytes:
    """Return the contents of the only regular file of an archive. Nothing is unpacked."""
    # Open it as a stream: otherwise `tarfile` would seek in the archive.
    with tarfile.open(fileobj=io.BufferedReader(ChunkReader(archive)), mode="r|") as tar:
        member = tar.next()
        if member is None:
            raise tarfile.ReadError("the archive is empty")
        content = tar.extractfile(member) if member.isreg() else None
        if content is None:
            raise unreadable_error(path, "not a regular file")
        return content.read()


def unreadable_error(path: str, reason: str) -> EngineError:
    return EngineError.of("container-file-refused", f"{path} in the container is not read: {reason}")
