"""Write and read bundles on disk. Every blob is checked when it is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from tfdock.errors import ProfileError, VerificationFailed
from tfdock.oci.plain_tar import BLOCK, END, padded_size, padding
from tfdock.offline import bundle_format
from tfdock.offline.bundle_format import INDEX, SUM, SUM_SIZE, Blob, BundleError, Index

_PIECE = 1 << 20
# The largest size of a blob. The draft of the index uses it, so that the real index always fits.
_LARGEST = (1 << 50) - 1
# Bytes. Profiles, patches and locks have kilobytes: a larger blob was not packed as one of these.
_MOST_TEXT = 64 << 20


class BundleWriter:
    """Leaves space for the index, and writes blobs after it. The index needs the blobs' sums, so it is last."""

    def __init__(self, file: BinaryIO, draft: Index) -> None:
        """`draft` is the index without blobs, with placeholders of the same length for their names."""
        # At most, each name stands for another blob.
        blobs = tuple(Blob(sha256=name, size=_LARGEST) for name in bundle_format.named_blobs(draft))
        self._file, self._room = file, len(bundle_format.to_text(replace(draft, blobs=blobs)))
        self._blobs: dict[str, Blob] = {}
        file.seek(BLOCK + padded_size(self._room))

    def add(self, chunks: Iterable[bytes]) -> str:
        """Write contents, unless the bundle has the same contents already. Return their sha256."""
        file, begin, total = self._file, self._file.tell(), hashlib.sha256()
        file.write(bytes(BLOCK))  # space for the header
        for chunk in chunks:
            total.update(chunk)
            file.write(chunk)
        size = file.tell() - begin - BLOCK
        blob = Blob(sha256=total.hexdigest(), size=size)
        if blob.sha256 in self._blobs:
            # Equal contents, such as a download of two builds, are stored once.
            file.seek(begin)
            file.truncate()
            return blob.sha256
        file.write(padding(size))
        end = file.tell()
        file.seek(begin)
        file.write(bundle_format.header(blob.name, size))
        file.seek(end)
        self._blobs[blob.sha256] = blob
        return blob.sha256

    def finish(self, index: Index) -> Index:
        """Write the index into its space, and its sum at the end of the file. Return the index with its blobs."""
        index = replace(index, blobs=tuple(self._blobs.values()))
        # Blobs that were added twice make the index shorter than its draft. JSON ignores spaces at its end.
        text = bundle_format.to_text(index).ljust(self._room)
        assert len(text) == self._room, "the draft had as many entries"
        # Sum and end come before the index: while the index is blank, no reader takes the file for a bundle.
        self._file.write(_end(text))
        self._file.seek(0)
        self._file.write(bundle_format.header(INDEX, len(text)) + text)
        # Sync before the bundle gets its name, so that a crash leaves no empty file of this name.
        self._file.flush()
        os.fsync(self._file.fileno())
        return index


@dataclass(frozen=True, slots=True)
class Bundle:
    """An open bundle. The index is checked when the bundle is opened, a blob when it is read."""

    path: Path
    index: Index
    _begin: int  #: The offset in the file at which the index ends.

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """Yield the contents of a blob. The last piece is yielded only after the sum of all pieces was checked.

        Raises VerificationFailed (`bundle-damaged`) if the blob is damaged.
        """
        blob, total = self.index.blob(sha256), hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(self._begin + self.index.offsets[sha256] - BLOCK)
            # The whole header is compared: no field of a stranger's header is interpreted.
            if file.read(BLOCK) != bundle_format.header(blob.name, blob.size):
                raise self._damaged(blob.name)
            left, last_piece = blob.size, b""
            while left:
                piece = file.read(min(_PIECE, left))
                if not piece:
                    raise self._damaged(blob.name)
                total.update(piece)
                left -= len(piece)
                # Hold back the last piece until the sum is known, so that no caller gets complete but wrong contents.
                if last_piece:
                    yield last_piece
                last_piece = piece
            # Check the padding as well, so that no byte of the file is unchecked.
            if total.hexdigest() != sha256 or file.read(-blob.size % BLOCK).strip(b"\0"):
                raise self._damaged(blob.name)
            yield last_piece

    def read(self, sha256: str) -> bytes:
        """Return the contents of a small blob."""
        if self.index.blob(sha256).size > _MOST_TEXT:
            raise self._damaged(f"blobs/{sha256}")
        return b"".join(self.chunks(sha256))

    def _damaged(self, name: str) -> VerificationFailed:
        return damaged_error(self.path, f"{name} is damaged")


def damaged_error(path: Path, why: str) -> VerificationFailed:
    """Return the error for a bundle that changed after it was written."""
    return VerificationFailed.of(
        "bundle-damaged",
        f"{path} is damaged: {why}",
        "copy the bundle again from the original, and compare the `sha256sum` of both files",
    )


def open_bundle(path: Path) -> Bundle:
    """Open a bundle and read its index. Raises ProfileError, or VerificationFailed if the bundle is damaged."""
    try:
        with path.open("rb") as file:
            return _read_bundle(path, file)
    except BundleError as error:
        fix = "give a file that `tfdock fetch -o` made"
        if error.code == "bundle-schema":
            again = "make the bundle again with this tfdock: `tfdock fetch PROFILE -o bundle.tar`"
            fix = f"use the tfdock that made the bundle, or {again}"
        raise ProfileError.of(error.code, f"{path} is not used: {error}", fix) from None
    except OSError as error:
        fix = "check the file's name, owner and mode; `tfdock fetch PROFILE -o bundle.tar` makes a bundle"
        message = f"the bundle {path} cannot be read: {error.strerror}"
        raise ProfileError.of("bundle-unreadable", message, fix) from error


def _read_bundle(path: Path, file: BinaryIO) -> Bundle:
    size = bundle_format.index_size(file.read(BLOCK))
    begin, file_size = BLOCK + padded_size(size), path.stat().st_size
    read = file.read(begin - BLOCK)
    text, end = read[:size], _end(read[:size])
    # `max`: a shorter file is cut off, and to seek a negative offset would raise an error.
    file.seek(max(0, file_size - len(end)))
    is_complete = len(read) == begin - BLOCK and not read[size:].strip(b"\0") and file.read() == end
    try:
        index = bundle_format.from_text(text)
    except BundleError as error:
        # Another schema may have another layout. In all other cases, a changed index counts as damage.
        if is_complete or error.code == "bundle-schema":
            raise
        raise damaged_error(path, "the index changed after it was written") from None
    length = begin + index.length
    if file_size < length:
        raise damaged_error(path, f"the file is incomplete: it has only {file_size:,} of {length:,} bytes")
    if not is_complete or file_size > length:
        raise damaged_error(path, "the index changed after it was written")
    return Bundle(path, index, begin)


def _end(text: bytes) -> bytes:
    """Return the end of a bundle with this index: the index's sum, and the end mark of a tar archive."""
    content = f"{hashlib.sha256(text).hexdigest()}\n".encode().ljust(padded_size(SUM_SIZE), b"\0")
    return bundle_format.header(SUM, SUM_SIZE) + content + END


def file_chunks(path: Path, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield a file's contents in pieces. `check` is called between the pieces, and may raise."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            check()
            yield piece
