"""Read one shared library in a single pass: the libraries it needs, and the GPU code in it.

The section table, which has all positions, is at the end of a file that may have a gigabyte. So the
first pass stores the part that is likely to be needed: the beginning, where linkers put the names of needed
libraries. It also collects GPU containers in all segments that may have them. Later, each section is compared with
the collected containers. If this fails, as in files from unusual linkers, a second pass reads the contents at known
positions. The result is the same either way.
"""

from __future__ import annotations

import bisect
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

# stringzilla searches with SIMD. `bytes.find` keeps Python's lock while it looks through a gigabyte.
import stringzilla

from tfdock.host.block_stream import Find, Program, Reader, SeekRequest, T, TakeRequest
from tfdock.wheel import elf, fatbin, offload
from tfdock.wheel.facts import Containers, FoundCode, GpuCode, Library, merged, target_order

_LOADABLE = {".nv_fatbin": "cuda", ".hip_fatbin": "hip"}
_RELOCATABLE = {"__nv_relfatbin": "cuda"}
# `.zdebug_` is GNU's older name for a compressed section.
_DEBUG = (".debug_info", ".zdebug_info")

# The kept beginning: in TensorFlow 2.21's libtensorflow_cc (1045 MiB) the names end at 99 MiB, in smaller libraries
# within 20 MiB, or within the first eighth. Two libraries may be read at a time.
_KEPT = 112 << 20
_KEPT_OF_SMALL = 24 << 20
_KEPT_PART = 8
_WINDOW = 64 << 10
_NAMES = b".shstrtab\0"  # the name of the section that holds the section names
# A limit on memory: 65,533 sections can share 16 MiB of names.
_MOST_NAMES = 16 << 20
_MOST_TEXT = 64 << 10  # of all names together
_MOST_PLACES = 16  # sections with GPU code
_MOST_TARGETS = 512
_SLACK = 256  # bytes between containers: the linker aligns the parts from several files, by 256 from CUDA 12.6 on
# Each pass unpacks the library again. A chain of tables that point far apart must end.
_MOST_PASSES = 6
_MOST_IMAGES = 50_000  # of a library: TensorFlow's have up to 13,000
_MOST_PROBLEMS = 10


class LibraryScan:
    """Reads an ELF file of `size` bytes: `feed` its contents in blocks, then ask for the `library`.

    `library` returns None if the contents are needed from the start: before the first pass, and again for an unusual
    layout. Damage raises no error: `Library.problems` lists it.
    """

    def __init__(self, path: str, size: int) -> None:
        self._path, self._size = path, size
        self._kept = _Kept(size)
        self._kept.want(0, min(max(_KEPT_OF_SMALL, size // _KEPT_PART), _KEPT))
        self._codes: dict[int, FoundCode] = {}
        self._walks: list[_Place] = []  # sections to walk from their start in the next pass
        self._walked: dict[_Place, list[FoundCode]] = {}
        self._passes = 0
        self.read = 0
        """How many containers, and targets in them, were examined."""
        self._begin()

    def _begin(self) -> None:
        self._reader = Reader(self._walk() if self._passes else self._hunt())
        self._offset = 0
        self._before = b""

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the file."""
        if self._reader.running:
            self._reader.feed(block)
        if self._kept.changed:
            # The reader wants bytes around this place. `_before` has the bytes before this block.
            self._kept.feed(self._offset - len(self._before), self._before)
            self._kept.changed = False
        self._kept.feed(self._offset, block)
        self._offset += len(block)
        # The needed part may have started before the headers are known.
        self._before = block[-_WINDOW:] if len(block) >= _WINDOW else (self._before + block)[-_WINDOW:]

    def library(self) -> Library | None:
        """Return the facts, or None if the contents must be fed again from the start."""
        if self._size and not self._offset:
            return None
        self._reader.close()
        self._passes += 1
        library = _Assembly(self._path, self._size, self._kept, self._placed, self._codes.values()).library()
        if not self._kept.lacking and not self._walks:
            return library
        if self._passes == _MOST_PASSES:
            return replace(library, problems=(*library.problems, "its parts are too far apart to be read"))
        self._kept.want_lacking()
        self._begin()
        return None

    # --- the first pass: where things usually are ---------------------------------------------------------------

    def _hunt(self) -> Program[None]:
        """Read the layout, and collect GPU code from the segments that may hold it."""
        data = yield TakeRequest(0, elf.HEADER_SIZE)
        try:
            head = elf.header(data)
            # At least one: with too many sections to count, the first header holds the number.
            self._kept.want(head.section_headers, max(head.section_count, 1) * elf.SECTION_HEADER_SIZE)
            if head.program_headers > _WINDOW:  # too late to know the segments, so search the whole file
                yield from self._collect(elf.HEADER_SIZE, self._size, self._codes)
                return
            table = yield TakeRequest(head.program_headers, head.program_bytes)
            segments = elf.segments(table, head)
        except elf.ElfError:
            return  # `_Assembly` reports the damage
        if place := _dynamic_segment(segments):
            self._kept.want(place.offset, min(place.size, elf.MOST_DYNAMIC))
        loads = [segment for segment in segments if segment.kind == elf.PT_LOAD]
        # Older linkers make one segment for code and constants.
        plain = any(not segment.flags & (elf.PF_X | elf.PF_W) for segment in loads)
        areas = [
            (segment.offset, segment.offset + segment.size)
            for segment in loads
            if not (plain and segment.flags & elf.PF_X)
        ]
        at = max(elf.HEADER_SIZE, head.program_headers + head.program_bytes)
        # Object files (`.o`) have sections and no segments.
        for start, stop in sorted(areas) or [(0, self._size)]:
            at = yield from self._collect(max(at, start), min(stop, self._size), self._codes)
        # The table of section names is in no segment.
        yield from self._find_names(max([at, *(segment.offset + segment.size for segment in loads)]))

    def _collect(self, start: int, stop: int, codes: dict[int, FoundCode]) -> Program[int]:
        """Read every container and bundle in [start, stop); return where the reading ended."""
        at, images, targets, find = start, 0, set[str](), _FindAny()
        while at < stop:
            place = yield SeekRequest(at, stop, find, len(offload.MAGIC))
            if place is None:
                return stop
            code = yield from _code_at(place, stop)
            codes[place] = code
            at = code.end
            images += 1 + sum(image.count for image in code.images.values())
            self.read += 1 + len(code.images)
            targets.update(target for _, target in code.images)
            # A container without entries has 16 bytes: a mebibyte of them would become 65,536 objects.
            if images > _MOST_IMAGES or len(targets) > _MOST_TARGETS:
                code.problem, code.end = f"more than the limit: {images} images, {len(targets)} targets", stop
                return stop
        return at

    def _find_names(self, at: int) -> Program[None]:
        """Keep the bytes around the section names, wherever these are: some linkers put much data after them."""
        # The name may also occur in data. At most 16 places are kept: a file may be full of such bytes.
        for _ in range(16):
            at = yield SeekRequest(
                at, self._size, lambda data, _, start: int(stringzilla.find(data, _NAMES, start)), len(_NAMES)
            )
            if at is None:
                return
            self._kept.want(at - _WINDOW, 2 * _WINDOW)
            at += len(_NAMES)

    # --- the second pass: at the positions in the section table
    # -------------------------------------------------------------

    def _walk(self) -> Program[None]:
        """Walk each wanted section from its start; bytes between containers are reported as damage."""
        places, self._walks = self._walks, []
        at = 0
        for place in places:
            # A reader only moves forwards.
            if place.start < at:  # of overlapping sections only the first is walked
                self._walked.setdefault(place, [])
                continue
            codes = dict[int, FoundCode]()
            at = yield from self._collect(place.start, place.stop, codes)
            # A section holds the code of one family. The other family's magic occurs there by chance.
            self._walked[place] = [code for code in codes.values() if code.family == place.family]

    def _placed(self, places: list[_Place]) -> dict[_Place, list[FoundCode]]:
        """Return the code of each section; empty for sections that must be walked first."""
        placed = {}
        for place in sorted(places, key=lambda section: section.start):
            # A section that was walked exactly needs no chain of the containers that the first pass collected.
            chain = self._walked.get(place)
            if chain is None:
                chain = _chain(self._codes, place)
            if chain is None:
                self._walks.append(place)
            placed[place] = chain or []
        return placed


def _dynamic_segment(segments: Iterable[elf.Segment]) -> elf.Segment | None:
    return next((segment for segment in segments if segment.kind == elf.PT_DYNAMIC), None)


# --- code -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A section with GPU code; `family` is `cuda` or `hip`."""

    name: str
    family: str
    start: int
    stop: int
    loadable: bool


class _FindAny:
    """Finds the next container or bundle, whichever comes first."""

    def __init__(self) -> None:
        self._stretch = (0, 0)
        self._answers: dict[Find, tuple[int, int]] = {}  # in this part: the start of a search, and its result

    def __call__(self, data: bytes, base: int, start: int) -> int:
        if self._stretch != (base, len(data)):
            self._stretch, self._answers = (base, len(data)), {}
        hits = []
        for find in (fatbin.find, offload.find):
            began, at = self._answers.get(find, (len(data) + 1, -1))
            # Without this memory, each match of one kind would repeat the search for the other kind: quadratic time.
            if began > start or -1 < at < start:
                at = find(data, base, start)
                self._answers[find] = (start, at)
            if at >= 0:
                hits.append(at)
        return min(hits, default=-1)


def _code_at(start: int, stop: int) -> Program[FoundCode]:
    magic = yield TakeRequest(start, len(fatbin.MAGIC))
    read = fatbin.container if magic == fatbin.MAGIC else offload.bundle
    return (yield from read(start, stop))


def _chain(codes: Mapping[int, FoundCode], place: _Place) -> list[FoundCode] | None:
    """Return the collected containers of a section; None if they do not fill it without gaps."""
    inside = sorted(start for start in codes if place.start <= start < place.stop)
    chain, at = list[FoundCode](), place.start
    for start in inside:
        code = codes[start]
        # Unusual cases go to the exact walk, which distinguishes a gap from a damaged container.
        if not 0 <= start - at < _SLACK or code.problem or code.family != place.family:
            return None
        chain.append(code)
        at = _aligned(code)
        # Version 1 of `CCOB` has no length, so a bundle ends where the next one starts.
        if not code.exact:
            at = inside[len(chain)] if len(chain) < len(inside) else place.stop
    return chain if place.stop - _SLACK < at < place.stop + _ALIGNMENTS[place.family] else None


_ALIGNMENTS = {"cuda": fatbin.ALIGNMENT, "hip": offload.ALIGNMENT}


def _aligned(code: FoundCode) -> int:
    """Return where the next container of a section starts."""
    return code.end + -code.end % _ALIGNMENTS[code.family]


def _gpu_code(codes: Iterable[FoundCode]) -> GpuCode:
    return merged(GpuCode(images=tuple(code.images.values()), containers=(_containers_of(code),)) for code in codes)


def _containers_of(code: FoundCode) -> Containers:
    def of(kind: str) -> tuple[str, ...]:
        return tuple(sorted((target for own, target in code.images if own == kind), key=target_order))

    return Containers(
        sass=of("sass"),
        ptx=of("ptx"),
        amdgpu=of("amdgpu"),
        size=code.end - code.start,
        # A container without images is damaged or empty, but it is not a stub.
        stub=bool(code.images) and not code.kernels,
    )


# --- what is kept of the contents -----------------------------------------------------------------------------------


class _Lacking(Exception):
    """Bytes that were not kept."""


@dataclass(slots=True)
class _Kept:
    """The stored parts of a file of `size` bytes.

    `want` selects the parts; `lacking` are the requested parts that are missing.
    """

    size: int
    changed: bool = False
    lacking: list[tuple[int, int]] = field(default_factory=list)
    _wanted: list[tuple[int, int]] = field(default_factory=list)
    _parts: dict[int, bytes] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)

    def want(self, start: int, length: int) -> None:
        start, stop = max(start, 0), min(start + length, self.size)
        if start < stop:
            self._wanted.append((start, stop))
            self.changed = True

    def want_lacking(self) -> None:
        """Prepare for another pass."""
        for start, stop in self.lacking:  # the next wanted bytes may be before or after it
            self.want(start - _WINDOW, stop - start + 2 * _WINDOW)
        self.lacking = []

    def feed(self, offset: int, block: bytes) -> None:
        for start, stop in self._wanted:
            first, last = max(start, offset), min(stop, offset + len(block))
            # Wanted ranges overlap. If two parts start together, the longer one is enough for both.
            if first < last and len(self._parts.get(first, b"")) < last - first:
                self._parts[first] = block[first - offset : last - offset]

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file, fewer at its end. Raises `_Lacking` if they were not stored."""
        stop = min(start + length, self.size)
        pieces = []
        at = start
        while at < stop:
            part_start, part = self._part(at)
            if part is None:
                self.lacking.append((at, stop))
                raise _Lacking
            piece = part[at - part_start : stop - part_start]
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def _part(self, at: int) -> tuple[int, bytes | None]:
        if len(self._starts) != len(self._parts):
            self._starts = sorted(self._parts)
        # Parts overlap: the part with the nearest start may be short, and an earlier part may be longer.
        for index in reversed(range(bisect.bisect_right(self._starts, at))):
            start = self._starts[index]
            part = self._parts[start]
            if at < start + len(part):
                return start, part
        return 0, None


# --- putting it together --------------------------------------------------------------------------------------------


class _Assembly:
    """Computes the facts from the stored parts. Damaged or missing parts give no facts."""

    def __init__(
        self,
        path: str,
        size: int,
        kept: _Kept,
        placed: Callable[[list[_Place]], dict[_Place, list[FoundCode]]],
        codes: Iterable[FoundCode],
    ) -> None:
        self._path, self._size, self._kept, self._placed, self._codes = path, size, kept, placed, codes
        self._problems: list[str] = []

    def library(self) -> Library:
        """Return all readable facts."""
        data = self._kept.read(0, elf.HEADER_SIZE)
        machine = elf.machine(data)
        # A 32-bit or big-endian library is not damaged: its machine is reported, and nothing else is read.
        if len(data) == elf.HEADER_SIZE and not elf.is_read(data):
            return Library(path=self._path, size=self._size, machine=machine, versions={})
        try:
            head = elf.header(data)
        except elf.ElfError as error:
            return Library(path=self._path, size=self._size, machine=machine, versions={}, problems=(f"{error}",))
        needs = self._try_part(lambda: self._needs(head)) or _Needs()
        sections = self._try_part(lambda: self._sections(head)) or []
        loadable, relocatable, embedded = self._gpu_code(sections)
        return Library(
            path=self._path,
            size=self._size,
            machine=machine,
            soname=needs.soname,
            needed=tuple(needs.needed),
            runpath=tuple(needs.runpath),
            rpath=tuple(needs.rpath),
            versions={name: tuple(names) for name, names in needs.versions.items()},
            glibc=_newest(needs.versions, "GLIBC_"),
            libstdcxx=_newest(needs.versions, "GLIBCXX_"),
            debug_info=any(section.name in _DEBUG and section.size for section in sections),
            executable_stack=needs.executable_stack,
            text_relocations=needs.text_relocations,
            loadable=loadable,
            relocatable=relocatable,
            embedded=embedded,
            problems=self._listed_problems(),
        )

    def _try_part(self, part: Callable[[], T]) -> T | None:
        """Return a part of the facts; None if the data is damaged, or another pass must read it first."""
        with contextlib.suppress(_Lacking):
            try:
                return part()
            except elf.ElfError as error:
                self._problems.append(str(error))
        return None

    def _listed_problems(self) -> tuple[str, ...]:
        more = len(self._problems) - _MOST_PROBLEMS
        listed = self._problems[:_MOST_PROBLEMS]
        return (*listed, f"and {more} more") if more > 0 else tuple(listed)

    # --- needs ------------------------------------------------------------------------------------------------------

    def _needs(self, head: elf.ElfHeader) -> _Needs:
        needs = _Needs()
        table = self._kept.read(head.program_headers, head.program_bytes)
        segments = elf.segments(table, head)
        needs.executable_stack = any(
            segment.kind == elf.PT_GNU_STACK and bool(segment.flags & elf.PF_X) for segment in segments
        )
        place = _dynamic_segment(segments)
        if place is None:
            return needs
        entries = elf.dynamic(self._kept.read(place.offset, min(place.size, elf.MOST_DYNAMIC)))
        values = dict(entries)
        # DF_TEXTREL superseded DT_TEXTREL (ABI, chapter 5), but files may have either.
        needs.text_relocations = elf.DT_TEXTREL in values or bool(values.get(elf.DT_FLAGS, 0) & elf.DF_TEXTREL)
        if elf.DT_STRTAB not in values:
            if elf.DT_NEEDED in values:
                raise elf.ElfError("its dynamic segment names libraries but has no table of their names")
            return needs
        strings = _Strings(self._kept, elf.offset_of(segments, values[elf.DT_STRTAB]), values.get(elf.DT_STRSZ, 0))
        for tag, value in entries:
            if tag == elf.DT_NEEDED:
                needs.needed.append(strings.at(value))
            elif tag == elf.DT_SONAME:
                needs.soname = strings.at(value)
            elif tag == elf.DT_RUNPATH:
                needs.runpath += strings.at(value).split(":")
            elif tag == elf.DT_RPATH:
                needs.rpath += strings.at(value).split(":")
        if elf.DT_VERNEED in values:
            start = elf.offset_of(segments, values[elf.DT_VERNEED])
            needs.versions = self._versions(start, values.get(elf.DT_VERNEEDNUM, 0), strings)
        return needs

    def _versions(self, start: int, count: int, strings: _Strings) -> dict[str, list[str]]:
        """Return the symbol versions that are required of each library."""
        versions: dict[str, list[str]] = {}
        for name, offsets in elf.version_needs(lambda at, length: self._kept.read(start + at, length), count):
            versions.setdefault(strings.at(name), []).extend(strings.at(offset) for offset in offsets)
        return versions

    # --- sections ---------------------------------------------------------------------------------------------------

    def _sections(self, head: elf.ElfHeader) -> list[elf.Section]:
        if not head.section_headers:
            if not self._codes:
                return []
            # Section headers can be stripped. Then relocatable and loadable code look the same.
            raise elf.ElfError("it has no section headers, so the purpose of its GPU code is unknown")
        rows, (_, _, offset, size) = elf.section_headers(self._kept.read, head)
        if size > _MOST_NAMES:
            raise elf.ElfError(f"its section names have {size} bytes")
        names = self._kept.read(offset, size)
        if len(names) < size:
            raise elf.ElfError("its section names are cut off")
        return elf.named_sections(rows, names, (*_LOADABLE, *_RELOCATABLE, *_DEBUG))

    def _gpu_code(self, sections: Iterable[elf.Section]) -> tuple[GpuCode, GpuCode, GpuCode]:
        """Return (loadable, relocatable, embedded)."""
        places = list(self._places(sections))
        placed = self._placed(places)
        for place in places:
            self._check(place, placed[place])
        inside = [(place.start, place.stop) for place in places]
        apart = [code for code in self._codes if not any(start <= code.start < stop for start, stop in inside)]
        return (
            _gpu_code(code for place in places if place.loadable for code in placed[place]),
            _gpu_code(code for place in places if not place.loadable for code in placed[place]),
            # Data outside of these sections that looks damaged is probably not GPU code.
            _gpu_code(code for code in apart if code.images and not code.problem),
        )

    def _places(self, sections: Iterable[elf.Section]) -> Iterator[_Place]:
        families, places = _LOADABLE | _RELOCATABLE, 0
        for section in sections:
            # NOBITS sections have no bytes: separate files of debug information keep only their headers.
            if section.name not in families or not section.size or section.kind == elf.SHT_NOBITS:
                continue
            if section.offset + section.size > self._size:
                self._problems.append(f"`{section.name}` reaches beyond the end of the file")
                continue
            places += 1
            # Overlapping sections could make the same code be counted 65,533 times.
            if places > _MOST_PLACES:
                self._problems.append(f"it has more than {_MOST_PLACES} sections with GPU code")
                return
            yield _Place(
                name=section.name,
                family=families[section.name],
                start=section.offset,
                stop=section.offset + section.size,
                loadable=section.name in _LOADABLE,
            )

    def _check(self, place: _Place, codes: list[FoundCode]) -> None:
        """Report the faults of a section."""
        noun = "container" if place.family == "cuda" else "bundle"
        at, exact = place.start, True
        for code in codes:
            if exact and code.start - at >= _SLACK:
                self._problems.append(f"{code.start - at} bytes at {at:#x} in `{place.name}` are not a {noun}")
            if code.problem:
                self._problems.append(f"the {noun} at {code.start:#x} in `{place.name}`: {code.problem}")
            at, exact = _aligned(code), code.exact
        if exact and place.stop - at >= _SLACK:
            self._problems.append(f"{place.stop - at} bytes at {at:#x} in `{place.name}` are not a {noun}")


@dataclass(slots=True)
class _Needs:
    """The facts in the dynamic segment."""

    soname: str = ""
    needed: list[str] = field(default_factory=list)
    runpath: list[str] = field(default_factory=list)
    rpath: list[str] = field(default_factory=list)
    versions: dict[str, list[str]] = field(default_factory=dict)
    executable_stack: bool = False
    text_relocations: bool = False


@dataclass(slots=True)
class _Strings:
    """The dynamic string table: its position, its size, and how many bytes may still be read."""

    kept: _Kept
    start: int
    size: int
    _left: int = _MOST_TEXT

    def at(self, offset: int) -> str:
        if not 0 <= offset < self.size:
            raise elf.ElfError("a name lies outside its string table")
        # Many entries may name one long text: 4,000 texts of 1 MB each would be 4 GB.
        if self._left <= 0:
            raise elf.ElfError(f"the names of its requirements take more than {_MOST_TEXT} bytes")
        data = self.kept.read(self.start + offset, min(self._left + 1, self.size - offset))
        text = elf.text_at(data, 0, self._left)
        self._left -= len(text)
        return text


#: Version names of a feature -> the first version with this feature (glibc 2.36, NEWS).
_IMPLIED = {"GLIBC_ABI_DT_RELR": "GLIBC_2.36"}


def _newest(versions: Mapping[str, Iterable[str]], prefix: str) -> str:
    """Return the highest of the versions with this prefix, compared by numbers: `2.17`."""
    every = (_IMPLIED.get(name, name) for names in versions.values() for name in names)
    texts = (name.removeprefix(prefix) for name in every if name.startswith(prefix))
    # Names like `GLIBC_PRIVATE` are no versions. The limit of digits keeps `int` fast.
    numbers = [tuple(map(int, text.split("."))) for text in texts if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})*", text)]
    return ".".join(map(str, max(numbers, default=())))
