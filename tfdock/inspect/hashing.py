"""Hashing beside unpacking: both give up Python's lock, so a second thread makes one of them free."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO, Protocol, Self

_QUEUED = 8  # blocks of at most 1 MiB that wait to be hashed: what bounds the memory

WORTH_A_THREAD = 1 << 18
"""From this size on, in bytes: handing a block over costs some 50 µs, in which 64 KiB are hashed."""


class Hasher(Protocol):
    """What `hashlib.new` returns, as far as it is used."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Digests:
    """Feeds hashers in order, in a second thread. Their digests are whole after `wait`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hashing")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def update(self, hasher: Hasher, data: bytes) -> None:
        """Add a block."""
        self._pending.append(self._pool.submit(hasher.update, data))
        while self._pending and (len(self._pending) > _QUEUED or self._pending[0].done()):
            self._pending.popleft().result()

    def wait(self) -> None:
        """Return when everything handed over is hashed."""
        while self._pending:
            self._pending.popleft().result()

    def update_from(self, hasher: Hasher, file: BinaryIO, block: int) -> int:
        """Add a whole file, in blocks of `block` bytes; its size in bytes."""
        file.seek(0)
        size = 0
        while data := file.read(block):
            self.update(hasher, data)
            size += len(data)
        return size
