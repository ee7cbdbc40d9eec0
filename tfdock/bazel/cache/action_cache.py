"""Read the digests in Bazel's action cache entries (Remote Execution API v2, protocol buffers). Pure: no I/O.

The few messages that name digests are read field by field. A generated protobuf reader would need a compiler, a
runtime and thousands of lines for six messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: The sha256 of no bytes. Bazel knows this blob without a file.
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

#: The largest message, in bytes, that is read into memory. Real messages with digests are far smaller.
LARGEST = 64 << 20

_HASH = re.compile(r"[0-9a-f]{64}")
# Wire types of protocol buffers.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# 64 bits in groups of seven take ten bytes at most.
_LONGEST_VARINT = 10

# Field numbers of build.bazel.remote.execution.v2.
_DIGEST_HASH, _DIGEST_SIZE = 1, 2
# 5 and 7 (`stdout_raw`, `stderr_raw`) hold the output itself, so they name no blob.
_RESULT_FILES, _RESULT_FOLDERS, _RESULT_STDOUT, _RESULT_STDERR = 2, 3, 6, 8
# 10 and 11 are deprecated: one list for links to files, one for links to folders. 12 replaces both.
_RESULT_SYMLINKS = (10, 11, 12)
_FILE_DIGEST, _FOLDER_TREE = 2, 3
# `children` lists the folders of all levels, so no code has to descend.
_TREE_ROOT, _TREE_CHILDREN, _DIRECTORY_FILES, _NODE_DIGEST = 1, 2, 1, 2
_ACTION_COMMAND = 1


class MalformedEntry(ValueError):
    """The bytes of an entry are not the expected protobuf message."""


class Digest(NamedTuple):
    """The name of a blob (its sha256 in 64 hexadecimal digits), and the size of the blob in bytes."""

    hash: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """The outputs of an action. `files` include standard output and error. `trees` are the digests of folders."""

    files: tuple[Digest, ...] = ()
    trees: tuple[Digest, ...] = ()
    symlinks: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the entry has no output, for example because the entry's file was emptied."""
        return not (self.files or self.trees or self.symlinks)


def action_result(data: bytes) -> ActionResult:
    """Read an entry of the action cache; raise MalformedEntry if the entry is malformed."""
    files, trees, symlinks = [], [], 0
    for field, value in _messages(data):
        if field == _RESULT_FILES:
            files += _digests(value, _FILE_DIGEST)
        elif field == _RESULT_FOLDERS:
            trees += _digests(value, _FOLDER_TREE)
        elif field in (_RESULT_STDOUT, _RESULT_STDERR):
            files.append(_digest(value))
        # A link names no blob. An action whose only outputs are links is not empty.
        elif field in _RESULT_SYMLINKS:
            symlinks += 1
    return ActionResult(files=tuple(files), trees=tuple(trees), symlinks=symlinks)


def tree_files(data: bytes) -> tuple[Digest, ...]:
    """Return the files of an output folder, from the bytes of its tree; raise MalformedEntry."""
    return tuple(
        digest
        for field, directory in _messages(data)
        if field in (_TREE_ROOT, _TREE_CHILDREN)
        for inner, node in _messages(directory)
        if inner == _DIRECTORY_FILES
        for digest in _digests(node, _NODE_DIGEST)
    )


def command_of(data: bytes) -> Digest | None:
    """Return the command of an action.

    `data` is the action's message: the blob with the same name as the action's result. None if there is no command.
    """
    return next((_digest(value) for field, value in _messages(data) if field == _ACTION_COMMAND), None)


# --- the wire -----------------------------------------------------------------------------------------------------


def _digests(message: bytes, number: int) -> list[Digest]:
    return [_digest(value) for field, value in _messages(message) if field == number]


def _digest(message: bytes) -> Digest:
    name, size = "", 0
    for field, value in _fields(message):
        if field == _DIGEST_HASH and isinstance(value, bytes):
            # Bytes that are not text fail the check below, like other names that are not hashes.
            name = value.decode("ascii", "replace")
        elif field == _DIGEST_SIZE and isinstance(value, int):
            size = value
    if not _HASH.fullmatch(name):
        raise MalformedEntry("the message names an invalid digest")
    return Digest(name, size)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields that hold bytes: messages and texts."""
    for field, value in _fields(data):
        if isinstance(value, bytes):
            yield field, value


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int | None]]:
    """Yield number and value of each field; None for numbers of fixed length, which are never used here."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        field, kind = key >> 3, key & 7
        # Zeros, which a power cut can leave in a file, would otherwise be a valid message.
        if field == 0:
            raise MalformedEntry("a field of the message has the number 0")
        value: bytes | int | None = None
        if kind == _VARINT:
            value, place = _varint(data, place)
        elif kind == _BYTES:
            length, place = _varint(data, place)
            value, place = data[place : place + length], place + length
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        # 3 and 4 open and close groups, which proto3 does not have.
        else:
            raise MalformedEntry(f"a field of the message has the unknown wire type {kind}")
        # A slice beyond the end is shorter, and Python raises no error.
        if place > len(data):
            raise MalformedEntry("the message ends in the middle of a field")
        yield field, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    # Limited: decoding a number of megabytes would take quadratic time.
    for count, byte in enumerate(data[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise MalformedEntry("the message ends in the middle of a number")
