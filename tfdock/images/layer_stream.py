"""Stream the layer of a wheel: the wheel's file between the bytes before and behind it."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from tfdock.images.wheel_layer import LAYER_TYPE, ImageWheel, frame
from tfdock.oci.manifest import Descriptor
from tfdock.types import Digest
from tfdock.wheelhouse import simple_index

_BLOCK = 1 << 20


class WheelLayer:
    """A wheel that is held open, so that its bytes stay the same when its name is given to another file.

    It is read once for the hash, and streamed after that. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        # Of the open file: the name may stand for another one by now.
        self.size = os.fstat(self._file.fileno()).st_size
        self._head, self._tail = frame(path.name, self.size)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def hashed(self, check: Callable[[], None]) -> ImageWheel:
        """Return the wheel as an image has it; raise `WheelError` if it is no wheel. `check` raises to stop."""
        wheel, layer = hashlib.sha256(), hashlib.sha256(self._head)
        self._file.seek(0)
        # Both at once: hashing gives up Python's lock.
        with ThreadPoolExecutor(1, "tfdock-layer") as executor:
            while block := self._file.read(_BLOCK):
                check()
                layer_job = executor.submit(layer.update, block)
                wheel.update(block)
                layer_job.result()
        layer.update(self._tail)
        listed, metadata = simple_index.read_indexed_wheel(self._file, self.path.name, wheel.hexdigest())
        descriptor = Descriptor(
            media_type=LAYER_TYPE,
            digest=Digest(f"sha256:{layer.hexdigest()}"),
            size=len(self._head) + self.size + len(self._tail),
        )
        return ImageWheel(listed=listed, metadata=metadata, size=self.size, layer=descriptor)

    def stream(self) -> BinaryIO:
        """Return the bytes of the layer, seekable. Only one such stream may be read at a time."""
        return io.BufferedReader(_Joined(self._head, self._file, self.size, self._tail), _BLOCK)


class _Joined(io.RawIOBase):
    """Bytes, a file of a known size, and bytes, as one file."""

    def __init__(self, head: bytes, file: BinaryIO, size: int, tail: bytes) -> None:
        self._head, self._file, self._tail = head, file, tail
        self._begin, self._end = len(head), len(head) + size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end + len(self._tail)}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        space = memoryview(buffer).cast("B")
        if self._begin <= self._at < self._end:
            # Sought each time, because `hashed` and other streams move the same position.
            self._file.seek(self._at - self._begin)
            data = self._file.read(min(len(space), self._end - self._at))
        elif self._at < self._begin:
            data = self._head[self._at : self._at + len(space)]
        else:
            data = self._tail[self._at - self._end :][: len(space)]
        space[: len(data)] = data
        self._at += len(data)
        return len(data)
