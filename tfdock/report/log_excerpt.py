"""Extract the end of a log, and the lines around its relevant lines. Pure, in bounded memory.

The excerpt is harmless text: no escape sequences, no control characters, no endless lines. The excerpt names the
omitted parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tfdock.diagnose.log_lines import Block, Log
from tfdock.errors import clean

AROUND = 60  #: Lines before and after a relevant line.
_TAIL = 256 << 10  #: How many bytes of the end of the log are kept.
_MOST = 2 << 20  #: The most bytes of all lines around the relevant lines.
#: Bytes of a line that are read, and characters that are shown. `redact` gets a line before it is shortened.
_RAW, _SHOWN = 16 << 10, 2000


class Excerpt:
    """Reads a log block by block, and keeps the lines around the `wanted` line numbers, from 1."""

    def __init__(self, wanted: Iterable[int]) -> None:
        self._log = Log()
        self._windows = [range(max(line - AROUND, 1), line + AROUND + 1) for line in wanted]
        self._lines: dict[int, bytearray] = {}
        self._tail = bytearray()
        self._whole = True
        self._room = _MOST

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the log."""
        for block in self._log.feed(data):
            self._take(block)

    def close(self) -> None:
        """Read the rest after the end of the log."""
        for block in self._log.close():
            self._take(block)

    def text(self, redact: Callable[[str], str]) -> str:
        """Return the excerpt with line numbers. Each part goes through `redact` before its lines are shortened."""
        shown = []
        for first, lines in self._parts():
            last = first + len(lines) - 1
            shown.append(f"=== lines {first:,} to {last:,} of {self._log.lines:,} ===")
            shown += map(_shorten, redact("\n".join(map(_harmless, lines))).split("\n"))
        return "\n".join([*shown, ""])

    def _take(self, block: Block) -> None:
        own = block.data[block.since : block.until]
        self._keep(own, block.line + block.data.count(b"\n", 0, block.since))
        self._tail += own
        if len(self._tail) > _TAIL:
            self._whole = False
            del self._tail[: len(self._tail) - _TAIL]

    def _keep(self, own: bytes, first: int) -> None:
        last = first + own.count(b"\n")
        if not any(window.start <= last and first < window.stop for window in self._windows):
            return
        for number, piece in enumerate(own.split(b"\n"), first):
            if self._room > 0 and any(number in window for window in self._windows):
                held = self._lines.setdefault(number, bytearray())
                # Keep one more byte than is shown later, to detect a longer line.
                part = piece[: max(_RAW + 1 - len(held), 0)]
                held += part
                self._room -= len(part)

    def _parts(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (number of the first line, lines) for each run of consecutive lines."""
        tail = bytes(self._tail).removesuffix(b"\n").split(b"\n") if self._tail else []
        if not self._whole:
            tail = tail[1:]  # Drop the first line, which may be incomplete: a secret in it could not be recognized.
        since = self._log.lines - len(tail) + 1
        together: dict[int, bytes] = {}
        for number in sorted(number for number in self._lines if number < since):
            if together and number - 1 not in together:
                yield next(iter(together)), [*together.values()]
                together = {}
            together[number] = bytes(self._lines[number])
        if since - 1 in together:
            tail, since, together = [*together.values(), *tail], next(iter(together)), {}
        if together:
            yield next(iter(together)), [*together.values()]
        if tail:
            yield since, tail


def _harmless(line: bytes) -> str:
    """Return a line as text without control characters. A line that is too long ends with its last whole word."""
    # On a terminal, a lone CR overwrites the line. In a file, each version of the line gets its own line.
    text = line[:_RAW].decode("utf-8", "replace").rstrip("\r").replace("\r", "\n")
    text = clean(text, keep="\t\n", instead="")
    if len(line) <= _RAW:
        return text
    return f"{text.rpartition(' ')[0]} … (a line of more than {_RAW:,} bytes)"


def _shorten(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} … ({len(line) - _SHOWN:,} characters more)"
