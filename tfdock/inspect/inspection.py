"""All that can be known of a wheel without installing it, from one pass over its contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tfdock.inspect import build_info, elf
from tfdock.inspect.archive import Member, pieces
from tfdock.inspect.defects import fail
from tfdock.inspect.facts import GpuCode, Library
from tfdock.inspect.library import LibraryScan
from tfdock.inspect.wheel import WheelFacts, WheelMetadata, metadata, read_wheel

_MOST_FACTS = 300_000  # rows of facts, a library counting as a hundred: TensorFlow's wheels have 8,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is in a wheel.

    `libraries` are all ELF files, by path. `build_info` is TensorFlow's own account of its build, None where there is
    none. `traces` maps each byte string that was looked for to the files that hold it.
    """

    wheel: WheelFacts
    metadata: WheelMetadata
    libraries: tuple[Library, ...]
    build_info: Mapping[str, object] | None
    traces: Mapping[str, tuple[str, ...]]


def inspect_wheel(
    file: BinaryIO,
    filename: str,
    *,
    traces: Sequence[bytes] = (),
    progress: Callable[[int], object] | None = None,
) -> Inspection:
    """Inspect an open wheel. `filename` is its name without a folder; `traces` are to be looked for in its files.

    `progress` is called with the number of bytes, again and again, that were unpacked since the last time.
    Every member is unpacked once, in blocks, and nothing is written anywhere. Raises `WheelError` when the file is
    not a sound wheel of that name.
    """
    gathering = _Gathering(file, tuple(traces), progress)
    facts = read_wheel(file, filename, gathering.watch, renamed=True)
    gathering.finish_library()
    return Inspection(
        wheel=facts,
        metadata=metadata(file),
        libraries=tuple(sorted(gathering.libraries, key=lambda library: library.path)),
        build_info=build_info.build_info(bytes(gathering.build_info)) if gathering.build_info else None,
        traces={trace.decode(): tuple(sorted(found)) for trace, found in gathering.traces.items()},
    )


class _Gathering:
    """Looks on while a wheel is read, and keeps what members tell of themselves."""

    def __init__(self, file: BinaryIO, traces: tuple[bytes, ...], progress: Callable[[int], object] | None) -> None:
        self.libraries: list[Library] = []
        self.build_info = bytearray()
        self.traces: dict[bytes, set[str]] = {trace: set() for trace in traces}
        self._file, self._progress = file, progress
        self._last: _Elf | None = None
        self._facts = 0

    def watch(self, member: Member) -> Callable[[bytes], object]:
        """Who looks at a member. The one before it has ended."""
        self.finish_library()
        self._last = _Elf(member)
        looks: list[Callable[[bytes], object]] = [self._last.feed]
        if member.name == build_info.PATH and member.size <= build_info.MOST_BYTES:
            looks.append(self.build_info.extend)
        if self.traces:
            looks.append(_Traces(member.name, self.traces).feed)
        if progress := self._progress:
            looks.append(lambda piece: progress(len(piece)))
        return looks[0] if len(looks) == 1 else lambda piece: [look(piece) for look in looks]

    def finish_library(self) -> None:
        """Take what the last member's scan found; one of an unusual layout is read again first."""
        last, self._last = self._last, None
        if last is None or last.scan is None:
            return
        while (library := last.scan.library()) is None:
            for piece in pieces(self._file, last.member):
                last.scan.feed(piece)
        self.libraries.append(library)
        codes = (library.loadable, library.relocatable, library.embedded or GpuCode())
        self._facts += 100 + sum(len(code.images) + len(code.containers) for code in codes)
        if self._facts > _MOST_FACTS:
            fail("wheel-too-large", f"The wheel has {len(self.libraries)} libraries and more, too many to list.")


@dataclass(slots=True)
class _Elf:
    """Finds out whether a member is an ELF file; scans it if so."""

    member: Member
    scan: LibraryScan | None = None
    _head: bytes | None = b""

    def feed(self, piece: bytes) -> None:
        if self.scan:
            self.scan.feed(piece)
        elif self._head is not None:
            self._head += piece
            if len(self._head) >= len(elf.MAGIC):
                if self._head.startswith(elf.MAGIC):
                    self.scan = LibraryScan(self.member.name, self.member.size)
                    self.scan.feed(self._head)
                self._head = None


@dataclass(slots=True)
class _Traces:
    """Looks for byte strings in a member."""

    path: str
    found: Mapping[bytes, set[str]]
    _before: bytes = b""

    def feed(self, piece: bytes) -> None:
        longest = max(map(len, self.found))
        seam = self._before + piece[:longest]
        for trace, paths in self.found.items():
            if self.path not in paths and (trace in piece or trace in seam):
                paths.add(self.path)
        self._before = seam[-longest:] if len(piece) < longest else piece[-longest:]
