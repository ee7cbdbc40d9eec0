"""All that can be known of a wheel without installing it, from one pass over its contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import stringzilla

from tfdock.inspect import build_info, elf
from tfdock.inspect.archive import Member, open_archive, pieces
from tfdock.inspect.defects import fail
from tfdock.inspect.facts import Library
from tfdock.inspect.library import LibraryScan
from tfdock.inspect.wheel import WheelFacts, WheelMetadata, facts_of, metadata_of

_MOST_FACTS = 300_000  # containers and targets in them, a library counting as a hundred: TensorFlow's have 30,000


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

    `progress` is called with the number of bytes, again and again, that were unpacked since the last time. Every
    member is unpacked once, libraries of an unusual layout more often; nothing is written anywhere. Raises
    `WheelError` when the file is not a sound wheel of that name.
    """
    gathering = _Gathering(file, tuple(traces), progress)
    archive = open_archive(file)
    facts = facts_of(archive, filename, gathering, renamed=True)
    return Inspection(
        wheel=facts,
        metadata=metadata_of(archive),
        libraries=tuple(sorted(gathering.libraries, key=lambda library: library.path)),
        build_info=build_info.build_info(bytes(gathering.build_info)) if gathering.build_info else None,
        traces={trace.decode(): tuple(sorted(found)) for trace, found in gathering.traces.items()},
    )


class _Gathering:
    """Watches while a wheel is read, and keeps what members tell of themselves."""

    def __init__(self, file: BinaryIO, traces: tuple[bytes, ...], progress: Callable[[int], object] | None) -> None:
        self.libraries: list[Library] = []
        self.build_info = bytearray()
        self.traces: dict[bytes, set[str]] = {trace: set() for trace in traces}
        self._file, self._progress = file, progress
        self._member: Member | None = None
        self._head = b""
        self._scan: LibraryScan | None = None
        self._trace: _Traces | None = None
        self._again: list[tuple[Member, LibraryScan]] = []
        self._facts = 0

    def begin(self, member: Member) -> None:
        """A member starts."""
        self._member, self._head, self._scan = member, b"", None
        self._trace = _Traces(member.name, self.traces) if self.traces else None

    def feed(self, data: bytes) -> None:
        """More of it. What begins like an ELF file is one, whatever its name."""
        assert self._member is not None
        if self._scan:
            self._scan.feed(data)
        elif len(self._head) < len(elf.MAGIC):
            self._head += data
            if self._head.startswith(elf.MAGIC):
                self._scan = LibraryScan(self._member.name, self._member.size)
                self._scan.feed(self._head)
        if self._member.name in build_info.PATHS and self._member.size <= build_info.MOST_BYTES:
            self.build_info += data
        if self._trace:
            self._trace.feed(data)
        if self._progress:
            self._progress(len(data))

    def end(self) -> None:
        """It has ended: take what was found in it, unless its scan needs to see it again."""
        if self._scan is None:
            return
        assert self._member is not None
        library = self._scan.library()
        if library is None:
            self._again.append((self._member, self._scan))
        else:
            self.libraries.append(library)
        self._facts += 100 + self._scan.read
        if self._facts > _MOST_FACTS:
            fail("wheel-too-large", "The wheel's libraries, or the GPU code in them, are too many to list.")

    @property
    def waiting(self) -> bool:
        """Whether a library is to be read once more: until then it takes memory."""
        return bool(self._again)

    def pause(self) -> None:
        """Read once more, as often as it takes, the libraries of an unusual layout."""
        for member, scan in self._again:
            while (library := scan.library()) is None:
                for piece in pieces(self._file, member):
                    scan.feed(piece)
            self.libraries.append(library)
        self._again = []


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
            if self.path not in paths and (stringzilla.find(piece, trace) >= 0 or trace in seam):
                paths.add(self.path)
        self._before = seam[-longest:] if len(piece) < longest else piece[-longest:]
