"""Write the static index of a wheelhouse: `simple/` for pip and uv, and METADATA beside each wheel.

    simple/index.html, simple/<project>/index.html      the pages of `wheelhouse/simple_index`
    <wheel>.metadata                                    the METADATA that these pages name
    .tfdock/index.json                                  the facts of each file, so that none is read twice

The index holds complete wheels: tfdock published the wheel, or every file in it matches RECORD. Writers hold the lock
of the wheelhouse (`Wheelhouse.changing`). Each file is replaced in one step, in an order that never lets a page name
a missing file. Once an index exists, publishing and pruning update it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

from tfdock.errors import Problem, ProfileError
from tfdock.host.files import FULL
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.wheel.facts import FIXES, WheelError
from tfdock.wheel.wheel import facts_of
from tfdock.wheel.zip_archive import open_archive
from tfdock.wheelhouse.simple_index import METADATA_SUFFIX, IndexedWheel, is_ours, pages, read_indexed_wheel
from tfdock.wheelhouse.store import Wheelhouse

SCHEMA = "tfdock.index/1"
Progress = Callable[[str], object]  #: Called with the name of a wheel before it is read.

# The third value is decisive: a program can set the second back, but not the third.
#: Size, time of the last change of contents, time of the last change of anything, inode.
#:
#: If all four values are equal, the file is unchanged.
Signature = tuple[int, int, int, int]
_FEW = 100  #: At most this many files are synced one by one; thousands take minutes.
_MOST_STATE = 16 << 20  #: The most bytes of a page, and of `index.json`: each wheel needs several hundred.


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A wheel that was read: its row in the index, its signature, and the size of its METADATA in bytes."""

    listed: IndexedWheel
    signature: Signature
    metadata_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The last update, as stored in `index.json`."""

    schema: Annotated[str, SCHEMA.__eq__]
    wheels: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUpdate:
    """The result of updating the index."""

    wheels: tuple[str, ...]  #: The wheels in the index.
    added: tuple[str, ...]  #: The wheels that are new in the index.
    removed: tuple[str, ...]  #: The wheels that are no longer in the index.
    left_out: tuple[Problem, ...] = ()  #: Files that are not in the index, and why.


@dataclass
class _Scan:
    """The wheels that were found. `documents` holds the METADATA of the wheels that this update has read."""

    entries: dict[str, IndexEntry] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, tuple[Signature, Problem]] = field(default_factory=dict)


class WheelIndex:
    """The index of a wheelhouse, whether it exists yet or not."""

    def __init__(self, house: Wheelhouse) -> None:
        self._house = house
        self._pages = house.at("simple")
        self._root_page = self._pages / "index.html"
        self._state = house.private / "index.json"

    @property
    def exists(self) -> bool:
        """Whether the index exists. Another program's index does not count."""
        return is_ours(_contents(self._root_page))

    def update(self, progress: Progress = lambda _: None) -> IndexUpdate:
        """Update the index to the wheels that are in the folder now. Only new or changed wheels are read.

        Raises OSError, and ProfileError (`file-error`) if another program's index is in this place.
        """
        # Check before reading: to read many wheels takes minutes.
        self._check_no_foreign_index()
        known = self._load_entries()
        scan = _Scan(entries=known)
        # Read first without the lock, because reading takes long; then again with the lock, for changes meanwhile.
        self._scan(scan, progress)
        with self._house.changing():
            self._scan(scan, progress)
            self._write(scan.entries, scan.documents, gone=known.keys() - scan.entries.keys())
        return IndexUpdate(
            wheels=tuple(sorted(scan.entries)),
            added=tuple(sorted(scan.documents.keys() & scan.entries.keys())),
            removed=tuple(sorted(known.keys() - scan.entries.keys())),
            left_out=tuple(problem for _, (_, problem) in sorted(scan.left_out.items())) + self._links_left_out(),
        )

    def remove(self, files: Iterable[str]) -> None:
        """Remove wheels from the index. The caller holds the lock, and will change or remove these wheels.

        On a full disk not even a shorter page can be written. Then all pages are removed, until `add` has enough disk
        space.
        """
        if not self.exists:
            return
        known, removed = self._load_entries(), set(files)
        entries = self._unchanged(known, without=removed)
        try:
            # Write even if the state has no such wheel: a killed process may have written a page but not the state.
            self._write(entries, {}, gone=known.keys() - entries.keys())
        except OSError as error:
            if error.errno not in FULL:
                raise
            for page in [folder / "index.html" for folder in self._pages.entries()]:
                if is_ours(_contents(page), page.parent.name):
                    page.remove()

    def add(self, files: Mapping[str, str]) -> None:
        """Add wheels to the index, given with their sha256. The caller holds the lock, and has just published
        them.

        Without wheels, write the existing pages again.
        """
        if not self.exists:
            return
        known = self._load_entries()
        entries, documents = self._unchanged(known, without=set(files)), {}
        for file, sha256 in files.items():
            with suppress(WheelError):  # the publisher has checked it; a file that is not a wheel is not in the index
                entries[file], documents[file] = _read_wheel(self._house.at(file), sha256)
        self._write(entries, documents, gone=known.keys() - entries.keys())

    def hashes(self) -> dict[str, str]:
        """Return the sha256 of every indexed wheel that has not changed since it was read."""
        return {file: entry.listed.sha256 for file, entry in self._unchanged(self._load_entries()).items()}

    def _unchanged(self, known: Mapping[str, IndexEntry], without: Collection[str] = ()) -> dict[str, IndexEntry]:
        """Return the wheels that have not changed; `update` reads the others later."""
        present = dict(self._files())
        return {
            file: entry
            for file, entry in known.items()
            if file not in without and present.get(file) == entry.signature
        }

    # --- looking ----------------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[tuple[str, Signature]]:
        """Yield every wheel in the folder. Links are left out: they may lead anywhere."""
        for path, status in self._house.wheels():
            if stat.S_ISREG(status.st_mode):
                yield path.name, signature(status)

    def _links_left_out(self) -> tuple[Problem, ...]:
        files = (path for path, status in self._house.wheels() if stat.S_ISLNK(status.st_mode))
        why, fix = "it is a link; links are not followed", "copy the wheel itself here"
        return tuple(_left_out_problem(file.name, "file-error", why, fix) for file in files)

    def _scan(self, scan: _Scan, progress: Progress) -> None:
        """Read new and changed wheels, and drop missing ones."""
        present = dict(self._files())
        scan.entries = {file: entry for file, entry in scan.entries.items() if present.get(file) == entry.signature}
        scan.left_out = {file: entry for file, entry in scan.left_out.items() if present.get(file) == entry[0]}
        for file, identity in sorted(present.items()):
            if file in scan.entries or file in scan.left_out:
                continue
            progress(file)
            try:
                if (beside := self._document(file).status()) and stat.S_ISDIR(beside.st_mode):
                    raise WheelError("file-error", f"{file}{METADATA_SUFFIX} is a folder.", "move it away")
                entry, scan.documents[file] = _read_wheel(self._house.at(file))
            # The next scan or update finds the file that replaced it.
            except FileNotFoundError:
                continue
            # One bad wheel must not keep all others out of the index.
            except WheelError as error:
                scan.left_out[file] = identity, _left_out_problem(file, error.code, error.message, error.fix)
            except OSError as error:
                problem = _left_out_problem(
                    file, "file-error", f"cannot be listed: {error.strerror}", "check its name, owner and mode"
                )
                scan.left_out[file] = identity, problem
            else:
                scan.entries[file] = entry

    def _load_entries(self) -> dict[str, IndexEntry]:
        """Return the entries of the last update; empty if they cannot be read."""
        # The file may be invalid. Then all wheels are read again.
        state: _State | None = self._state.load(_State, _MOST_STATE)
        return {entry.listed.file: entry for entry in state.wheels} if state else {}

    def _check_no_foreign_index(self) -> None:
        if self._root_page.status() and not self.exists:
            message = f"{self._root_page} already exists, and tfdock did not write it"
            fix = "move that index away, or make an index in a folder of your own: `--wheelhouse DIR`"
            raise ProfileError.of("file-error", message, fix)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, entries: Mapping[str, IndexEntry], documents: Mapping[str, bytes], gone: Iterable[str]) -> None:
        """Write changed files. A file is written before the page that names it, and removed after that page."""
        # The files of a page are written before the page, so pip never requests a missing file.
        self._write_documents(entries, documents)
        rows = [_entry_row(entries[file]) for file in sorted(entries)]
        state = json.dumps({"schema": SCHEMA, "wheels": rows}, separators=(",", ":"))
        _write(self._state, state.encode())
        for path, page in pages(entry.listed for entry in entries.values()).items():
            _write(self._pages / path, page)
        # The root page has been written and no longer names the other projects.
        self._remove_pages({entry.listed.project for entry in entries.values()})
        for file in gone:
            self._document(file).remove()

    def _remove_pages(self, projects: Collection[str]) -> None:
        """Remove the pages of all other projects. Files of other programs, and the targets of links, stay."""
        for folder in [path for path in self._pages.entries() if path.name not in projects]:
            page = folder / "index.html"
            if is_ours(_contents(page), folder.name):
                page.remove()
                with suppress(OSError):  # the folder has other files
                    folder.remove_empty()

    def _write_documents(self, entries: Mapping[str, IndexEntry], documents: Mapping[str, bytes]) -> None:
        """Write METADATA beside each wheel, also where somebody removed it."""
        for name, entry in entries.items():
            data = documents.get(name)
            # The size shows missing or truncated files. To read the files of thousands of wheels takes long.
            if data is None and self._document(name).size != entry.metadata_size:
                data = _read_wheel(self._house.at(name), entry.listed.sha256)[1]
            if data is not None:
                _write(self._document(name), data, durable=len(documents) <= _FEW)

    def _document(self, file: str) -> UntrustedPath:
        return self._house.at(f"{file}{METADATA_SUFFIX}")


def _read_wheel(path: UntrustedPath, sha256: str = "") -> tuple[IndexEntry, bytes]:
    """Read a wheel: all of it, unless its sha256 is known from an earlier read. Raises WheelError, OSError."""
    with path.open() as file:
        # Use the open file: the name may mean another file by now.
        before = signature(os.fstat(file.fileno()))
        if not sha256:
            facts = facts_of(open_archive(file), path.name, renamed=True)
            if not facts.record_ok:
                first = facts.record_problems[0]
                raise WheelError(first.code, first.message, FIXES[first.code])
            sha256 = facts.sha256
        wheel, data = read_indexed_wheel(file, path.name, sha256)
        if signature(os.fstat(file.fileno())) != before:
            raise WheelError("wheel-changed", "it was written to while it was read.", "make the index again")
    return IndexEntry(listed=wheel, signature=before, metadata_size=len(data)), data


def signature(status: os.stat_result) -> Signature:
    """Return the facts that identify an unchanged file."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _left_out_problem(file: str, code: str, message: str, fix: str) -> Problem:
    return Problem(code, f"not in the index: {message}", fix, file=file, severity="warning")


def _entry_row(entry: IndexEntry) -> dict[str, object]:
    """Return an entry in its stored form. For thousands of entries, `asdict` takes longer than all the rest."""
    wheel = entry.listed
    return {
        "listed": {
            "file": wheel.file,
            "sha256": wheel.sha256,
            "requires_python": wheel.requires_python,
            "metadata_sha256": wheel.metadata_sha256,
        },
        "signature": entry.signature,
        "metadata_size": entry.metadata_size,
    }


def _write(path: UntrustedPath, data: bytes, *, durable: bool = True) -> None:
    """Write a file unless it has these contents already."""
    # An unchanged page keeps its time, so clients can use their cached copy.
    if _contents(path, len(data)) != data:
        path.write(data, durable=durable)


def _contents(path: UntrustedPath, most: int = _MOST_STATE) -> bytes:
    """Return the contents of a file; empty if there is none, or if it has more than `most` bytes."""
    with suppress(OSError):
        return path.read(most)
    return b""
