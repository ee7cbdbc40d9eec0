"""A wheel's members unpacked and hashed while the wheel arrives, so that little is left to do when it is here.

Before the archive's directory has come, local headers lead from member to member. Nothing that is found that way is
believed: who reads the whole wheel, as strictly as any, asks for the sha256 of a member, and is told it if the very
bytes that the directory gives to that member were read, by the method, size and CRC that it gives.
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
    """Reads a wheel of `size` bytes behind whoever writes `file`, until it is left as a context manager.

    The file is open for reading too, and what has arrived of it is never changed. Held in memory are a block for each
    thread, and some 100 bytes for each member.
    """

    def __init__(self, file: FileIO, size: int, threads: int = 2) -> None:
        self._source = _Arriving(file, size)
        self._changed = self._source.changed
        self._members: Iterator[Member] = members_ahead(self._source)
        self._next = Lock()
        self._found: dict[_Place, bytes] = {}
        self._asked = set[_Place]()
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
        """So many bytes of the file are there, from its first one on."""
        self._source.arrived(count)

    def sha256(self, member: Member) -> bytes | None:
        """The digest of a member's contents; None where nobody has read them. The whole wheel has arrived.

        Waits for those that are being read.
        """
        place = _place(member)
        with self._changed:
            self._asked.add(place)
            self._changed.wait_for(lambda: place in self._found or not self._working)
            return self._found.get(place)

    def _work(self) -> None:
        try:
            while (member := self._taken()) is not None:
                digest = hashlib.sha256()
                for piece in pieces(self._source, member):
                    digest.update(piece)
                place = _place(member)
                with self._changed:
                    self._found[place] = digest.digest()
                    if place in self._asked:  # there are thousands: nobody is woken for nothing
                        self._changed.notify_all()
        except (WheelError, OSError):
            pass  # who reads the whole wheel meets it too, and says so
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _taken(self) -> Member | None:
        with self._next:
            return next(self._members, None)


def _place(member: Member) -> _Place:
    """All that what `pieces` yields depends on, besides the file's bytes."""
    return member.data, member.packed, member.method, member.size, member.crc


class _Arriving(ByteSource):
    """A file that is being written, and will have `size` bytes: reading waits for what has not arrived."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._descriptor, self.size = file.fileno(), size
        self._count, self._stopped = 0, False
        self._wanted = size  # the least that somebody waits for
        self.changed = Condition()

    def arrived(self, count: int) -> None:
        """So many bytes are there."""
        with self.changed:
            self._count = count
            if count >= self._wanted:
                self._wanted = self.size
                self.changed.notify_all()

    def stop(self) -> None:
        """Let nobody read any more."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()

    def read(self, start: int, length: int) -> bytes:
        """The bytes there. Raises `WheelError` where none will be, and where nobody is to read any more."""
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
