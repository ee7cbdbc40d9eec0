"""Work beside reading: what is unpacked is hashed and looked through in a second thread.

Unpacking and hashing both give up Python's lock, so one of the two costs next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

Work = Callable[[bytes], object]

_BATCH = 1 << 20  # bytes handed over at once: a hand-over costs some 50 µs
_QUEUED = 8  # batches that wait: what bounds the memory


class Beside:
    """Does work on blocks in a second thread, in the order in which they are given. Done after `wait`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside")
        self._pending: deque[Future[None]] = deque()
        self._batch: list[tuple[Work, bytes]] = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def do(self, work: Work, data: bytes) -> None:
        """Have work done on a block. What it raises is raised here, at a later call."""
        self._batch.append((work, data))
        self._size += len(data)
        if self._size >= _BATCH or len(self._batch) >= 1000:
            self._hand_over()

    def wait(self) -> None:
        """Return when everything is done."""
        self._hand_over()
        while self._pending:
            self._pending.popleft().result()

    def _hand_over(self) -> None:
        self._pending.append(self._pool.submit(_done, self._batch))
        self._batch, self._size = [], 0
        while self._pending and (len(self._pending) > _QUEUED or self._pending[0].done()):
            self._pending.popleft().result()


def _done(batch: list[tuple[Work, bytes]]) -> None:
    for work, data in batch:
        work(data)
