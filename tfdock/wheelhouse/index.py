"""The static index of a wheelhouse: `simple/` for pip and uv, and METADATA beside each wheel.

    simple/index.html, simple/<project>/index.html      what `wheelhouse/simple_index` makes
    <wheel>.metadata                                    where those pages say it is
    .tfdock/index.json                                  what is known of each file, so that none is read twice

A wheel is in it when it is whole: it was published by us, or every file in it is as its RECORD says. Whoever writes
holds the wheelhouse (`Wheelhouse.changing`). Each file is replaced in one step, in an order in which no page names
what is not there. Once an index exists, it follows what is published and what is pruned.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.errors import Problem, ProfileError
from tfdock.host.files import FULL, write_atomically
from tfdock.wheel.facts import FIXES, WheelError
from tfdock.wheel.wheel import facts_of
from tfdock.wheel.zip_archive import open_archive
from tfdock.wheelhouse.build_record import WHEEL
from tfdock.wheelhouse.simple_index import METADATA_SUFFIX, IndexedWheel, is_ours, listed, project_page, root_page
from tfdock.wheelhouse.store import Wheelhouse

SCHEMA = "tfdock.index/1"
Progress = Callable[[str], object]
"""Hears the name of a wheel before it is read."""

Signature = tuple[int, int, int, int]
"""Size, times of the last change of contents and of anything, inode: a file that has them all is the one it was."""
_FEW = 100
"""Files that are synced one by one; of thousands that takes minutes."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A wheel that was read: what the index says of it, by which it is known again, and METADATA's size in bytes."""

    listed: IndexedWheel
    signature: Signature
    metadata_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUpdate:
    """What came of making the index: all its wheels, those that came and went, and what was left out, and why."""

    wheels: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    left_out: tuple[Problem, ...] = ()


@dataclass
class _Looked:
    """Wheels as they were found. `documents` are METADATA's bytes of those that were read just now."""

    entries: dict[str, IndexEntry] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, tuple[Signature, Problem]] = field(default_factory=dict)


class WheelIndex:
    """The index of a wheelhouse, whether it exists yet or not."""

    def __init__(self, house: Wheelhouse) -> None:
        self._house = house
        self._root = house.root
        self._pages = house.root / "simple"
        self._root_page = self._pages / "index.html"
        self._state = house.root / ".tfdock" / "index.json"

    @property
    def exists(self) -> bool:
        """Whether one was made here; another program's does not count."""
        return is_ours(_contents(self._root_page))

    def update(self, progress: Progress = lambda _: None) -> IndexUpdate:
        """Make the index of what is there now; only wheels that it does not know are read.

        Raises OSError, and ProfileError (`file-error`) where another program's index is in its place.
        """
        self._check_place()
        known = self._known()
        looked = _Looked(entries=known)
        # Reading takes long, and nobody shall wait for it; then once more, alone, for what changed meanwhile.
        self._look(looked, progress)
        with self._house.changing():
            self._look(looked, progress)
            self._write(looked.entries, looked.documents, gone=known.keys() - looked.entries.keys())
        return IndexUpdate(
            wheels=tuple(sorted(looked.entries)),
            added=tuple(sorted(looked.documents.keys() & looked.entries.keys())),
            removed=tuple(sorted(known.keys() - looked.entries.keys())),
            left_out=tuple(problem for _, (_, problem) in sorted(looked.left_out.items())),
        )

    def leave_out(self, files: Iterable[str]) -> None:
        """Name these no longer; for who holds the wheelhouse and is about to change or remove them.

        On a full disk no shorter page can be written: then all pages go, until `take_in` has room for them.
        """
        if not self.exists:
            return
        known, left = self._known(), set(files)
        entries = self._unchanged(known, without=left)
        try:
            # Also where none of them is known: who was killed may have written a page, and not yet that it knows.
            self._write(entries, {}, gone=known.keys() - entries.keys())
        except OSError as error:
            if error.errno not in FULL:
                raise
            for page in [one for one in self._pages.glob("*/index.html") if is_ours(_contents(one), one.parent.name)]:
                page.unlink()

    def take_in(self, files: Mapping[str, str]) -> None:
        """Name these as well, given with their sha256; for who holds the wheelhouse and has just published them.

        Without any, it writes what it knows of the others.
        """
        if not self.exists:
            return
        known = self._known()
        entries, documents = self._unchanged(known, without=set(files)), {}
        for file, sha256 in files.items():
            with suppress(WheelError):  # whoever published it was sure of it; what is no wheel is in no index
                entries[file], documents[file] = _read(self._root / file, sha256)
        self._write(entries, documents, gone=known.keys() - entries.keys())

    def hashes(self) -> dict[str, str]:
        """The sha256 of every wheel that it has and that is still what it was."""
        return {file: entry.listed.sha256 for file, entry in self._unchanged(self._known(), without=set()).items()}

    def _unchanged(self, known: Mapping[str, IndexEntry], without: set[str]) -> dict[str, IndexEntry]:
        """The wheels that are still what they were; the others wait for `update`."""
        there = dict(self._files())
        return {
            file: entry for file, entry in known.items() if file not in without and there.get(file) == entry.signature
        }

    # --- looking ----------------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[tuple[str, Signature]]:
        """Every wheel in the folder: files, not links, which may lead anywhere."""
        with os.scandir(self._root) as found:
            for one in found:
                if one.name.endswith(".whl") and not one.name.startswith("."):
                    with suppress(FileNotFoundError):
                        if one.is_file(follow_symlinks=False):
                            yield one.name, signature(one.stat(follow_symlinks=False))

    def _look(self, looked: _Looked, progress: Progress) -> None:
        """Read what is new or has changed since it was looked at, and drop what has gone."""
        there = dict(self._files())
        looked.entries = {file: entry for file, entry in looked.entries.items() if there.get(file) == entry.signature}
        looked.left_out = {file: one for file, one in looked.left_out.items() if there.get(file) == one[0]}
        for file, found in sorted(there.items()):
            if file in looked.entries or file in looked.left_out:
                continue
            progress(file)
            try:
                entry, looked.documents[file] = _read(self._root / file)
            except FileNotFoundError:
                continue
            except WheelError as error:
                looked.left_out[file] = found, _refused(file, error.code, error.message, error.fix)
            except OSError as error:
                problem = _refused(
                    file, "file-error", f"cannot be read: {error.strerror}", "check its owner and mode"
                )
                looked.left_out[file] = found, problem
            else:
                looked.entries[file] = entry

    def _known(self) -> dict[str, IndexEntry]:
        """What is known from before; nothing, where that cannot be read."""
        try:
            document = json.loads(self._state.read_bytes())
            if document["schema"] != SCHEMA:
                return {}
            return {entry.listed.file: entry for entry in map(_entry, document["wheels"])}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return {}

    def _check_place(self) -> None:
        if self._root_page.exists() and not self.exists:
            message = f"{self._root_page} is there already, and no page of tfdock's"
            fix = "move that index away, or make one in a folder of your own: `--wheelhouse DIR`"
            raise ProfileError(Problem(code="file-error", message=message, fix=fix))

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, entries: Mapping[str, IndexEntry], documents: Mapping[str, bytes], gone: Iterable[str]) -> None:
        """Write what differs. What a page names is written before it, and what it named is removed after it."""
        self._pages.mkdir(exist_ok=True)
        self._write_documents(entries, documents)
        rows = [_row(entries[file]) for file in sorted(entries)]
        state = json.dumps({"schema": SCHEMA, "wheels": rows}, separators=(",", ":"))
        _write(self._state, state.encode())
        projects: dict[str, list[IndexedWheel]] = {}
        for entry in entries.values():
            projects.setdefault(entry.listed.project, []).append(entry.listed)
        for project, files in projects.items():
            (self._pages / project).mkdir(exist_ok=True)
            _write(self._pages / project / "index.html", project_page(project, files))
        _write(self._root_page, root_page(projects))
        self._remove_pages(but=projects)
        for file in gone:
            self._document(file).unlink(missing_ok=True)

    def _remove_pages(self, but: Collection[str]) -> None:
        """Remove the pages of other projects, and nothing that somebody else put there or a link leads to."""
        for folder in [one for one in self._pages.iterdir() if one.name not in but and not one.is_symlink()]:
            page = folder / "index.html"
            if is_ours(_contents(page), folder.name):
                page.unlink(missing_ok=True)
                with suppress(OSError):  # something else is kept there
                    folder.rmdir()

    def _write_documents(self, entries: Mapping[str, IndexEntry], documents: Mapping[str, bytes]) -> None:
        """METADATA beside each wheel; also where somebody removed it."""
        there = {one.name: one.stat().st_size for one in os.scandir(self._root) if one.name.endswith(METADATA_SUFFIX)}
        for file, entry in entries.items():
            data = documents.get(file)
            if data is None and there.get(file + METADATA_SUFFIX) != entry.metadata_size:
                data = _read(self._root / file, entry.listed.sha256)[1]
            if data is not None:
                _write(self._document(file), data, durable=len(documents) <= _FEW)

    def _document(self, file: str) -> Path:
        return self._root / f"{file}{METADATA_SUFFIX}"


def _read(path: Path, sha256: str = "") -> tuple[IndexEntry, bytes]:
    """Read a wheel: all of it, unless somebody who has done so gives its sha256. Raises WheelError, OSError."""
    with path.open("rb") as file:
        before = signature(os.fstat(file.fileno()))
        if not sha256:
            facts = facts_of(open_archive(file), path.name, renamed=True)
            if not facts.record_ok:
                first = facts.record_problems[0]
                raise WheelError(first.code, first.message, FIXES[first.code])
            sha256 = facts.sha256
        about, data = listed(file, path.name, sha256)
        if signature(os.fstat(file.fileno())) != before:
            raise WheelError("wheel-changed", "it was written to while it was read.", "make the index again")
    return IndexEntry(listed=about, signature=before, metadata_size=len(data)), data


def signature(found: os.stat_result) -> Signature:
    """By which a file is known again."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _refused(file: str, code: str, message: str, fix: str) -> Problem:
    return Problem(code=code, message=f"not in the index: {message}", fix=fix, file=file, severity="warning")


def _row(entry: IndexEntry) -> dict[str, object]:
    """An entry as it is kept; `asdict` takes longer for thousands than all the rest."""
    about = entry.listed
    return {
        "listed": {
            "file": about.file,
            "sha256": about.sha256,
            "requires_python": about.requires_python,
            "metadata_sha256": about.metadata_sha256,
        },
        "signature": entry.signature,
        "metadata_size": entry.metadata_size,
    }


def _entry(row: Mapping[str, object]) -> IndexEntry:
    """The entry of a row; raises ValueError, TypeError or KeyError for what is none, however it came there."""
    about, known, size = row["listed"], row["signature"], row["metadata_size"]
    if not (isinstance(about, dict) and isinstance(known, list) and isinstance(size, int)):
        raise TypeError("no entry")
    one, two, three, four = known
    listed = IndexedWheel(**about)
    if not (WHEEL.fullmatch(listed.file) and _SHA256.fullmatch(listed.sha256)):
        raise ValueError("no wheel")
    if not all(isinstance(text, str | None) for text in (listed.requires_python, listed.metadata_sha256)):
        raise TypeError("no text")
    return IndexEntry(listed=listed, signature=(one, two, three, four), metadata_size=size)


def _write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file unless it holds that already."""
    if _contents(path) != data:
        write_atomically(path, data, durable=durable)


def _contents(path: Path) -> bytes:
    """What a file holds; nothing, where there is none."""
    with suppress(OSError):
        return path.read_bytes()
    return b""
