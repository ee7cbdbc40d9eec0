"""Who ran out of memory, by the words of a build's output. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

HEAP, SERVER, LINKER, COMPILER = "Bazel's own Java heap", "Bazel's server", "the linker", "a compiler"

# The first that is found counts: what a killed server leaves behind says nothing about itself.
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
class Killed:
    """What was killed, or gave up, for want of memory, and the line that says so."""

    what: str
    line: str

    @property
    def said(self) -> str:
        """The line without who says it and that it is an error."""
        return _SPEAKER.sub("", self.line)


def killed(lines: Iterable[str]) -> Killed | None:
    """The first that lines of a build's output tell of; None where they tell of none."""
    lines = list(lines)
    found = (Killed(what, line.strip()) for what, words in _WORDS for line in lines if words.search(line))
    return next(found, None)
