"""Read a stream of blocks, only forwards. The reader says which offset it needs next.

A program is a generator. It yields `TakeRequest` and `SeekRequest`, at offsets that never decrease. The answer is the
requested bytes or offset. So code for gigabytes looks like code for bytes in memory, but stores only the requested
bytes.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

#: (data, offset of the data in the stream, index to start from) -> the index of the next match, or -1.
Find = Callable[[bytes, int, int], int]


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """Requests the bytes [start, start + length). The answer has fewer bytes if the stream ends earlier."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class SeekRequest:
    """Requests the offset of the first match in [start, stop). The answer is None if there is no match.

    `find` needs at most the first `reach` bytes of a match.
    """

    start: int
    stop: int
    find: Find
    reach: int


# `Any`: the answer's type depends on the request, which a type hint cannot express.
Program = Generator[TakeRequest | SeekRequest, Any, T]


class Reader(Generic[T]):
    """Runs a program over the blocks given to `feed`. `result` is the program's result; None while it runs."""

    def __init__(self, program: Program[T]) -> None:
        self._program = program
        self._offset = 0  # of the next block in the stream
        self._held = bytearray()  # bytes up to `_offset` that the program may still ask for
        self.result: T | None = None
        self._request: TakeRequest | SeekRequest | None = None
        self._advance(lambda: next(program))

    @property
    def running(self) -> bool:
        """Whether the program still waits for data."""
        return self._request is not None

    def feed(self, block: bytes) -> None:
        """Take the next block of the stream."""
        base = self._offset - len(self._held)
        data = bytes(self._held) + block if self._held else block
        self._offset += len(block)
        self._held.clear()
        while self._request is not None:
            if isinstance(self._request, TakeRequest):
                at = self._request.start - base
                if at + self._request.length > len(data):
                    self._held += data[max(at, 0) :]
                    return
                self._send(data[at : at + self._request.length])
            elif not self._sought(self._request, data, base):
                return

    def close(self) -> T:
        """Return the program's result at the end of the stream."""
        while self._request is not None:
            if isinstance(self._request, TakeRequest):
                at = self._request.start - (self._offset - len(self._held))
                self._send(bytes(self._held[at : at + self._request.length]))
            else:
                self._send(None)
        return cast("T", self.result)

    def _sought(self, seek: SeekRequest, data: bytes, base: int) -> bool:
        """Answer a search if the answer is known; otherwise store the bytes that may start a match."""
        start = max(seek.start - base, 0)  # searched bytes without a match are no longer kept
        at = seek.find(data, base, start) if start < len(data) else -1
        if at >= 0 and base + at < seek.stop:
            self._send(base + at)
            return True
        # A match may begin before `stop` and end after it.
        if at >= 0 or base + len(data) >= seek.stop + seek.reach:
            self._send(None)
            return True
        # Fewer bytes than `reach` may be the beginning of a match that the next block completes.
        self._held += data[max(start, len(data) - seek.reach + 1, 0) :]
        return False

    def _send(self, answer: object) -> None:
        self._advance(lambda: self._program.send(answer))

    def _advance(self, step: Callable[[], TakeRequest | SeekRequest]) -> None:
        try:
            self._request = step()
        except StopIteration as stop:
            self._request, self.result = None, stop.value
