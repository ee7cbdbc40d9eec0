"""Unpack and hash a wheel's members while the wheel arrives, so that little is left to do at its end.

Before the archive's directory has come, local headers lead from member to member. These results are not trusted by
themselves. The strict reader of the whole wheel asks for the sha256 of a member. It gets the hash only if the bytes,
method, size and CRC are those that the directory gives for that member.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from io import FileIO
from threading import Condition, Lock, Thread
from types import TracebackType

from tfdock.wheel.facts import WheelError, fail
from tfdock.wheel.zip_archive import ByteSource, Member, members_ahead, pieces

_Place = tuple[int, int, int, int, int]


class Prefetch:
    """Reads a wheel of `size` bytes behind the writer of `file`, until the context ends.

    The file is open for reading too, and bytes that have arrived never change. Memory holds a block for each thread,
    and some 100 bytes for each member.
    """

    def __init__(self, file: FileIO, size: int, threads: int = 2) -> None:
        self._source = _ArrivingFile(file, size)
        self._changed = self._source.changed
        self._members: Iterator[Member] = members_ahead(self._source)
        # Python lets only one thread at a time advance a generator.
        self._next = Lock()
        self._digests: dict[_Place, bytes] = {}
        self._asked = set[_Place]()
        # Daemons: a thread that waits for bytes must not keep the program from ending.
        self._threads = [Thread(target=self._work, name=f"ahead-{number}", daemon=True) for number in range(threads)]
        self._working = len(self._threads)

    def __enter__(self) -> Prefetch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.stop()
        for thread in self._threads:
            thread.join()

    def arrived(self, count: int) -> None:
        """Note that the first `count` bytes of the file are there."""
        self._source.arrived(count)

    def sha256(self, member: Member) -> bytes | None:
        """Return the digest of a member's contents; None if no thread has read them. The whole wheel has arrived.

        Waits for members that are being read.
        """
        place = _place(member)
        with self._changed:
            self._asked.add(place)
            # Without a thread that works nobody would ever add the digest.
            self._changed.wait_for(lambda: place in self._digests or not self._working)
            return self._digests.get(place)

    def _work(self) -> None:
        try:
            while (member := self._next_member()) is not None:
                digest = hashlib.sha256()
                for piece in pieces(self._source, member):
                    digest.update(piece)
                place = _place(member)
                with self._changed:
                    self._digests[place] = digest.digest()
                    if place in self._asked:  # there are thousands: nobody is woken for nothing
                        self._changed.notify_all()
        except (WheelError, OSError):
            pass  # The reader of the whole wheel meets the same error, and reports it.
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _next_member(self) -> Member | None:
        with self._next:
            return next(self._members, None)


def _place(member: Member) -> _Place:
    """Return everything that the output of `pieces` depends on, besides the file's bytes."""
    return member.data, member.packed, member.method, member.size, member.crc


class _ArrivingFile(ByteSource):
    """A file of `size` bytes that is being written: reading waits for bytes that have not arrived."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._descriptor, self.size = file.fileno(), size
        self._count, self._stopped = 0, False
        self._wanted = size  # the least that somebody waits for
        self.changed = Condition()

    def arrived(self, count: int) -> None:
        """Note that so many bytes are there."""
        with self.changed:
            self._count = count
            # Pieces come by the thousand: a waiter is woken only when its own bytes are there.
            if count >= self._wanted:
                self._wanted = self.size
                self.changed.notify_all()

    def stop(self) -> None:
        """End all reads."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file. Raise `WheelError` if they will not arrive, or after `stop`."""
        end = start + length
        with self.changed:
            while self._count < end <= self.size and not self._stopped:
                self._wanted = min(self._wanted, end)
                self.changed.wait()
            stopped = self._stopped
        # At its own place: who writes has the file's.
        data = b"" if stopped or end > self.size else os.pread(self._descriptor, length, start)
        if len(data) != length:
            fail("wheel-not-a-zip", f"The file ends at byte {start + len(data)}, inside a part of the archive.")
        return data
