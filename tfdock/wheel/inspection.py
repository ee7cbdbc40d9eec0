"""Inspect a wheel without installing it: all facts, from one pass over its contents."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

import stringzilla

from tfdock.host.thread_jobs import Lock
from tfdock.wheel import build_info, elf
from tfdock.wheel.facts import Library, fail
from tfdock.wheel.library import LibraryScan
from tfdock.wheel.requirements import wanted
from tfdock.wheel.wheel import WheelFacts, WheelMetadata, facts_of, metadata_of
from tfdock.wheel.zip_archive import Archive, Member, open_archive, pieces

#: The first bytes of libraries for other systems (PE; Mach-O for one CPU and for several CPUs).
_OTHERS = {b"MZ\x90\0": "Windows", b"\xcf\xfa\xed\xfe": "macOS", b"\xca\xfe\xba\xbe": "macOS"}
_MOST_FACTS = 300_000  # containers and their targets; a library counts as a hundred. TensorFlow has 30,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The contents of a wheel.

    `libraries` are all ELF files, by path. `build_info` is TensorFlow's own record of its build, or None. `traces`
    maps each searched byte string to the files that contain it. `header_versions` are the toolkit versions that the
    wheel's headers state (`cuda`: `12.5.1`). `unread` maps the paths of libraries of other systems to the system
    (`Windows`).
    """

    wheel: WheelFacts
    metadata: WheelMetadata
    libraries: tuple[Library, ...]
    build_info: Mapping[str, object] | None
    traces: Mapping[str, tuple[str, ...]]
    header_versions: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


def inspect_wheel(
    file: BinaryIO,
    filename: str,
    *,
    traces: Sequence[bytes] = (),
    progress: Callable[[int], object] | None = None,
) -> Inspection:
    """Inspect an open wheel.

    `filename` is the wheel's name without a folder; `traces` are byte strings to search for in its files. `progress`
    is called repeatedly, with the number of bytes that were unpacked since its last call. Members are unpacked once,
    libraries with an unusual layout several times. Nothing is written. Raises `WheelError` if the file is not a valid
    wheel with this name.
    """
    gathering = _Gathering(tuple(traces), progress)
    archive = open_archive(file)
    # `renamed`: people rename wheels to other tags. An inspection reports this, and does not fail.
    facts = facts_of(archive, filename, partial(_Look, gathering), renamed=True)
    return Inspection(
        wheel=facts,
        metadata=metadata_of(archive),
        # Two threads add libraries, so their order is chance.
        libraries=tuple(sorted(gathering.libraries, key=lambda library: library.path)),
        build_info=build_info_of(archive),
        traces={trace.decode(): tuple(sorted(places)) for trace, places in gathering.traces.items()},
        header_versions=_header_versions(archive),
        unread=dict(sorted(gathering.unread.items())),
    )


def build_info_of(archive: Archive) -> Mapping[str, object] | None:
    """Return TensorFlow's own record of its build in an open wheel; None if there is none."""
    for member in filter(None, map(archive.member, build_info.PATHS)):
        if member.size <= build_info.MOST_BYTES:
            return build_info.build_info(b"".join(pieces(archive.source, member)))
    return None


def toolkit_extra(file: BinaryIO) -> str:
    """Return the extra (`and-cuda`) that installs the CUDA libraries a wheel was built with; empty if there is none.

    An extra names packages such as `nvidia-cudnn-cu12`. A wheel built with another CUDA major version has this extra
    too, but there the extra installs wrong libraries. Raises `WheelError` as `metadata_of` does.
    """
    archive = open_archive(file)
    facts = metadata_of(archive)
    built = str((build_info_of(archive) or {}).get("cuda_version") or _header_versions(archive).get("cuda", ""))
    for extra in facts.provides_extra:
        added = {one.package for one in wanted(facts.requires_dist, [extra])} - {
            one.package for one in wanted(facts.requires_dist)
        }
        majors = {match[1] for package in added if (match := re.search(r"^nvidia-.*-cu(\d+)$", package))}
        if majors == {built.partition(".")[0]}:
            return extra
    return ""


def _header_versions(archive: Archive) -> dict[str, str]:
    for member in filter(None, map(archive.member, build_info.HEADERS)):
        if member.size <= build_info.MOST_HEADER_BYTES:
            version = build_info.cuda_version(b"".join(pieces(archive.source, member)))
            if version:
                return {"cuda": version}
    return {}


class _Gathering:
    """The facts found in all members."""

    def __init__(self, traces: tuple[bytes, ...], progress: Callable[[int], object] | None) -> None:
        self.libraries: list[Library] = []
        self.traces: dict[bytes, set[str]] = {trace: set() for trace in traces}
        self.unread: dict[str, str] = {}
        self._progress = progress
        self._facts = 0
        self._lock = Lock()  # two threads inspect members

    def report_progress(self, count: int) -> None:
        """Call `progress` with the number of bytes just read."""
        if self._progress:
            with self._lock:
                self._progress(count)

    def add(self, library: Library, read: int) -> None:
        """Add a library; `read` is the number of containers, and of targets in them, that were examined for it."""
        with self._lock:
            # One limit applies to all libraries of a wheel; a library counts as a hundred facts.
            self._facts += 100 + read
            if self._facts > _MOST_FACTS:
                fail("wheel-too-large", "The wheel has too many libraries, or too much GPU code in them, to list.")
            self.libraries.append(library)


class _Look:
    """Inspects a member and stores its facts."""

    def __init__(self, gathering: _Gathering, member: Member) -> None:
        self._all, self._member = gathering, member
        self._head = b""
        self._scan: LibraryScan | None = None
        self._trace = _Traces(member.name, gathering.traces) if gathering.traces else None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the member. Contents that begin like an ELF file count as ELF, whatever the name."""
        if self._scan:
            self._scan.feed(data)
        # The first pieces of a member may be shorter than the magic.
        elif len(self._head) < len(elf.MAGIC):
            self._head += data
            if self._head.startswith(elf.MAGIC):
                self._scan = LibraryScan(self._member.name, self._member.size)
                self._scan.feed(self._head)
            # A Java class file begins like a Mach-O file for several CPUs.
            elif (other := _OTHERS.get(self._head[: len(elf.MAGIC)])) and not self._member.name.endswith(".class"):
                self._all.unread[self._member.name] = other
        if self._trace:
            self._trace.feed(data)
        self._all.report_progress(len(data))

    def again(self) -> bool:
        """Return whether an unusual layout needs a second scan."""
        if self._scan is None:
            return False
        library = self._scan.library()
        if library:
            self._all.add(library, self._scan.read)
        return library is None


@dataclass(slots=True)
class _Traces:
    """Looks for byte strings in a member."""

    path: str
    places: Mapping[bytes, set[str]]
    _before: bytes = b""

    def feed(self, piece: bytes) -> None:
        longest = max(map(len, self.places))
        # A text may begin in one piece and end in the next.
        seam = self._before + piece[:longest]
        for trace, paths in self.places.items():
            if self.path not in paths and (stringzilla.find(piece, trace) >= 0 or trace in seam):
                paths.add(self.path)
        # After several tiny pieces, the beginning of a text may be more than one piece back.
        self._before = seam[-longest:] if len(piece) < longest else piece[-longest:]
