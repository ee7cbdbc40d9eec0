"""Archives that an engine sends, read as they come and never unpacked."""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfdock.errors import EngineError, Problem


class Body(io.RawIOBase):
    """Chunks as a file, for tarfile."""

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
    """The names that an engine would give the images of such an archive, in whichever form it says them."""
    with tarfile.open(fileobj=io.BufferedReader(Body(archive)), mode="r|") as tar:
        for member in tar:
            path = posixpath.normpath(member.name)
            if path in _NAMING:
                content = tar.extractfile(member) if member.isreg() and member.size <= _LONGEST else None
                if content is None:
                    raise ValueError(f"{path} is not a regular file of a reasonable size")
                yield from _NAMING[path](json.loads(content.read()))


def _of_manifest(images: Any) -> Iterator[str]:
    for image in images:
        yield from image["RepoTags"] or ()


def _of_repositories(repositories: Any) -> Iterator[str]:
    for name, tags in repositories.items():
        yield from (f"{name}:{tag}" for tag in tags)


def _of_index(index: Any) -> Iterator[str]:
    for image in index["manifests"]:
        name = (image.get("annotations") or {}).get("io.containerd.image.name")
        if name:
            yield name.removeprefix("docker.io/")


_LONGEST = 16 << 20
_NAMING: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "manifest.json": _of_manifest,
    "repositories": _of_repositories,
    "index.json": _of_index,
}


def only_file(archive: Iterator[bytes], path: str) -> bytes:
    """The one regular file of an archive, never unpacked."""
    with tarfile.open(fileobj=io.BufferedReader(Body(archive)), mode="r|") as tar:
        member = tar.next()
        content = tar.extractfile(member) if member and member.isreg() else None
        if content is None:
            raise unreadable(path, "it is not a regular file")
        return content.read()


def unreadable(path: str, reason: str) -> EngineError:
    return EngineError(
        Problem(code="container-file-refused", message=f"{path} is not read out of the container: {reason}")
    )
