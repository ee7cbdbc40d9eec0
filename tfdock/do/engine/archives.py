"""Archives that an engine sends, read as they come and never unpacked."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
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
