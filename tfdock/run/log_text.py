"""Turn program output into text for a log file, and find the program that ran out of memory. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass

#: The most characters of a control sequence. Of a longer sequence, only the first two characters are removed.
_LONGEST = 4096
# ECMA-48: CSI with its parameters, control strings (OSC, DCS, SOS, PM, APC), and escapes with a final character.
_CSI, _STRING, _ESCAPE = r"\[[0-?]{0,64}[ -/]{0,8}", rf"[\]PX^_][^\x07\x1b\r\n]{{0,{_LONGEST}}}", r"[ -/]{0,4}"
_SEQUENCE = re.compile(rf"\x1b(?:{_CSI}[@-~]|{_STRING}(?:\x07|\x1b\\)|{_ESCAPE}[0-OQ-WYZ\\`-~])")
_BEGUN = re.compile(rf"\x1b(?:{_CSI}|{_STRING}\x1b?|{_ESCAPE})\Z")
# C1 controls, in UTF-8 and as single bytes, and characters that reorder a line or show it as several lines.
_HIDING = re.compile("[\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udc9f]+")
# The same characters as UTF-8, for a quick search: most output then skips the slow replacement.
_MAY_HIDE = re.compile(rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2(?:\x80[\x8e\x8f\xa8-\xae]|\x81[\xa6-\xa9])")
_ASCII = bytes(range(0x80))
# All C0 controls and DEL, except tab and line feed.
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\t\n"))


class LogText:
    """Reads output in pieces and returns it without control sequences and characters, even those cut in two.

    A CR ends a line, so no line can overwrite another line. Other bytes that are not UTF-8 are kept.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""

    def feed(self, data: bytes) -> bytes:
        """Read some bytes; return the text that no later byte can change."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        # A line feed may follow in the next piece.
        if text.endswith("\r"):
            text, self._held = text[:-1], "\r"
        oldest = max(len(text) - _LONGEST, 0)
        last = text.rfind("\x1b", oldest)
        before = text.rfind("\x1b", oldest, last) if last > 0 else -1  # a control string also ends with an escape
        for at in (before, last):
            if at >= 0 and _BEGUN.match(text, at):
                text, self._held = text[:at], text[at:] + self._held
                break
        return _clean(text)

    def close(self) -> bytes:
        """Return the rest of the text."""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return _clean(text)


def clean_text(data: bytes) -> bytes:
    """Return a whole output as text for a log."""
    log = LogText()
    return log.feed(data) + log.close()


def _clean(text: str) -> bytes:
    if "\x1b" in text:
        text = _SEQUENCE.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        data = text.encode()
        # Even long output has few bytes besides ASCII.
        hides = not text.isascii() and _MAY_HIDE.search(data.translate(None, _ASCII)) is not None
    except UnicodeEncodeError:  # bytes that are not UTF-8
        hides = True
    if hides:
        # Replace in the text, not in the bytes: inside other characters, the bytes of a C1 control are harmless.
        data = _HIDING.sub("", text).encode("utf-8", "surrogateescape")
    return data.translate(None, _CONTROLS)


HEAP, SERVER, LINKER, COMPILER = "Bazel's own Java heap", "Bazel's server", "the linker", "a compiler"

# The first match counts: later lines after a killed server do not name the server.
_WORDS = (
    (HEAP, re.compile(r"java\.lang\.OutOfMemoryError|Bazel (?:ran out of memory|caught OutOfMemoryError)")),
    (SERVER, re.compile(r"Server terminated abruptly \(error code: 14\b")),
    (LINKER, re.compile(r"\b(?:ld|lld|gold|mold)\b.*terminated with signal 9|Killed.*\bprogram (?:collect2|ld)\b")),
    (
        COMPILER,
        re.compile(
            r"[Kk]illed signal terminated program|internal compiler error: Killed|unable to execute command: Killed|"
            r"died due to signal 9 \(Kill signal\)|^(?:\S+: )?(?:line \d+: +)?\d+ Killed\b"
        ),
    ),
)
_SPEAKER = re.compile(r"^.*?\berror *: *", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """A program that was killed, or ended itself, for lack of memory; and the line that reports it."""

    program: str
    line: str

    @property
    def message(self) -> str:
        """The line without the name of the program that printed it and the word `error`."""
        return _SPEAKER.sub("", self.line)


def find_memory_kill(lines: Iterable[str]) -> MemoryKill | None:
    """Return the first memory kill in the lines of a build's output; None if there is none."""
    lines = list(lines)
    kills = (MemoryKill(program, line.strip()) for program, words in _WORDS for line in lines if words.search(line))
    return next(kills, None)
