"""Print text for people: problems and progress on standard error, results on standard output."""

from __future__ import annotations

import os
import re
import sys
import time
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partialmethod
from typing import TextIO

from tfdock.cli import ci_log
from tfdock.errors import Problem
from tfdock.errors import clean as clean

_PLAIN_WIDTH = 80  #: Columns of a line if the width of the terminal is unknown.
#: Columns of a line in a pipe: no line is wrapped. `grep` needs whole lines, and a CI log wraps the lines itself.
_ENDLESS = 1 << 30
_LEAST_WIDTH = 20  #: The least columns to wrap to. In a narrower terminal, each line would have one word.
_LAST = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# The gap before a word, then the word. A code span in backticks is one word, so text to type is not broken.
# In GNU's quotes, as in `a' and `b', a blank stands before the second backtick.
_SPAN = re.compile(r"`[^`\s](?:[^`\n]*[^`\s])?`")
_WORD = re.compile(rf"(\s*)((?:{_SPAN.pattern}|\S)+)")
_ONE = re.compile(r"\x1b\[[0-9;]*m|.", re.DOTALL)

#: How much goes to standard error: -1 only errors (`-q`), 0 what most readers need, 1 details too (`-v`).
verbosity = 0
# The lines that `-q` holds back. The bound is far above what one command prints.
_held: deque[str] = deque(maxlen=1000)


def colour_wanted(stream: TextIO) -> bool:
    """Return whether to colour: as NO_COLOR or FORCE_COLOR says; if neither is set, only on a capable terminal."""
    # no-color.org: any value except an empty text switches colours off. NO_COLOR also overrides FORCE_COLOR.
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Style:
    """A few colours for one stream; plain text if colours are off."""

    def __init__(self, stream: TextIO) -> None:
        self._on = colour_wanted(stream)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._on else text

    bad = partialmethod(_paint, "1;31")  #: Colours errors.
    warn = partialmethod(_paint, "33")  #: Colours warnings.
    good = partialmethod(_paint, "32")  #: Colours what succeeded.
    strong = partialmethod(_paint, "1")  #: Emphasises headings.
    faint = partialmethod(_paint, "2")  #: Dim text that a reader may skip.


def say(*texts: str, stream: TextIO | None = None) -> None:
    """Print lines, by default to standard error. A CI service never takes a line for a command."""
    stream = stream or sys.stderr
    for text in texts:
        # Results are for programs, and stay as they are.
        line = f"{text if stream is sys.stdout else ci_log.here().harmless(text)}\n"
        if verbosity < 0 and stream is sys.stderr:
            _held.append(line)
        else:
            stream.write(line)
            stream.flush()


def set_verbosity(level: int) -> None:
    """Set how much is printed on standard error from now on."""
    global verbosity
    verbosity = level
    _held.clear()


def release() -> None:
    """Print the lines that `-q` held back. Called before a question, an error, or the end of a failed command."""
    while _held:
        sys.stderr.write(_held.popleft())
    sys.stderr.flush()


def tell(text: str, *, indent: str = "  ") -> None:
    """Print text on standard error, wrapped to the terminal; in a pipe it is not wrapped."""
    say(*wrapped(text, width(sys.stderr), indent))


def result(*texts: str, indent: str = "  ", strange: bool = False) -> None:
    """Print lines of the result: unchanged for programs, wrapped for a screen.

    With `strange`, the text is untrusted and is changed so that a CI service does not read it as a command.
    """
    for line in (line for text in texts for line in wrapped(text, width(sys.stdout), indent)):
        say(ci_log.here().harmless(line) if strange else line, stream=sys.stdout)


def width(stream: TextIO) -> int:
    """Return the columns of a line: COLUMNS, or else the width of the stream's terminal. A pipe has no limit."""
    columns = _asked_columns()
    if not columns:
        if not stream.isatty():
            return _ENDLESS
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):  # no terminal, no descriptor, or closed
            columns = 0
    return max(columns or _PLAIN_WIDTH, _LEAST_WIDTH)


def _asked_columns() -> int:
    """Return COLUMNS; 0 if its value is not a width."""
    asked = os.environ.get("COLUMNS", "")
    # At most six digits: the variable may have any value, and no terminal is wider.
    return int(asked) if re.fullmatch("[0-9]{1,6}", asked) else 0


def columns_of(text: str) -> int:
    """Return the columns that a line takes. Colour codes take no column, East Asian characters take two."""
    text = _ESCAPE.sub("", text)
    if text.isascii():
        return len(text)
    return sum(_character_columns(character) for character in text)


def _character_columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    # Unicode Annex 11: wide and fullwidth characters take two columns.
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class TableRow(str):
    """A line that is never wrapped: a part of a command that the user may paste."""

    __slots__ = ()


def wrapped(text: str, columns: int, indent: str = "  ") -> list[str]:
    """Return lines for a terminal. Continuation lines start with `indent`. Line breaks and indents are kept.

    A word is broken only if it is wider than a line. A `code span` is never broken: a command must be pasted whole,
    and a terminal joins again what it broke itself. A `TableRow` is never broken either.
    """
    if isinstance(text, TableRow):
        return [text]
    return [line for part in text.split("\n") for line in _wrapped_line(part, columns, indent)]


def _wrapped_line(text: str, columns: int, indent: str) -> Iterator[str]:
    if columns_of(text) <= columns:
        yield text
        return
    begin = text[: len(text) - len(text.lstrip(" "))]
    # Some text must fit, however deep the indentation is.
    rest = f"{begin}{indent}"[: columns // 2]
    line, empty = begin[: columns // 2], True
    for gap, word in _words(text, columns - len(rest)):
        if not empty and columns_of(line) + len(gap) + columns_of(word) > columns:
            yield line
            line, empty = rest, True
        line, empty = f"{line}{'' if empty else gap}{word}", False
    if not empty:
        yield line


def _words(text: str, room: int) -> Iterator[tuple[str, str]]:
    """Yield each word with the gap before it; words wider than `room` in pieces, but for code spans."""
    for gap, word in _WORD.findall(text):
        whole = columns_of(word) <= room or _SPAN.search(word)
        first, *others = [word] if whole else _pieces(word, room)
        yield gap, first
        yield from (("", piece) for piece in others)


def _pieces(word: str, room: int) -> Iterator[str]:
    piece, width = "", 0
    for character in _ONE.findall(word):
        columns = columns_of(character)
        if width + columns > room:
            yield piece
            piece, width = "", 0
        piece, width = piece + character, width + columns
    yield piece


def show_problems(problems: Iterable[Problem]) -> None:
    """Print problems on standard error: place, message, reason, then fixes. Annotate them for a CI service."""
    problems = list(problems)
    say(*problem_lines(problems, Style(sys.stderr), width(sys.stderr)))
    if any(problem.severity == "error" for problem in problems):
        release()
    ci_log.here().annotate(problems)


def problem_lines(problems: Sequence[Problem], style: Style, columns: int) -> Iterator[str]:
    """Yield the lines of problems, no wider than `columns`. Fixes that several problems share come last."""
    for index, problem in enumerate(problems):
        label = style.bad("error") if problem.severity == "error" else style.warn(problem.severity)
        where = f"{style.strong(clean(problem.where))}: " if problem.where else ""
        message, *more = clean(problem.message).split("\n")
        yield from wrapped(f"{where}{label}: {message} {style.faint(f'[{problem.code}]')}", columns)
        for line in more:
            yield from wrapped(line, columns)
        if problem.why:
            yield from wrapped(f"  {style.strong('why:')} {clean(problem.why)}", columns, " " * 5)
        later = [other for other in problems[index + 1 :] if problem.ways and other.ways == problem.ways]
        told = {fix for other in later for fix in other.fixes}
        for fix in problem.fixes:
            if fix not in told:
                yield from wrapped(f"  {style.good('fix:')} {clean(fix)}", columns, " " * 5)
        for way in () if later else problem.ways:
            if way.question:
                yield from wrapped(f"  or {way.question}? {clean(way.text)}", columns, " " * 5)


def duration(seconds: float) -> str:
    """Return seconds for people: `42 s`, `3:07`, `2:14:09`."""
    total = int(seconds)
    if total < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{total} s"
    hours, rest = divmod(total, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rough_duration(seconds: float) -> str:
    """Return a rounded duration for people: `40 min`, `9 h`, `5 days`. `seconds` is the duration."""
    if seconds < 3570:
        return f"{max(round(seconds / 60), 1)} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.0f} days"


def ago(moment: float) -> str:
    """Return the day of a time, which is in seconds since 1970, for people: `today`, `3 days ago`."""
    days = (time.time() - moment) / 86400
    return "today" if days < 1 else f"{days:.0f} day{'s' if days >= 1.5 else ''} ago"


def moment(seconds: float) -> str:
    """Return a time, which is in seconds since 1970, for a document: `2026-01-31T09:30:00+00:00`."""
    # Files may have any time. A time after the last possible date counts as this date.
    return datetime.fromtimestamp(max(0.0, min(seconds, _LAST)), UTC).isoformat(timespec="seconds")


def size(count: int) -> str:
    """Return bytes for people: `615.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count = count / 1000  # type: ignore[assignment]
    raise AssertionError


def table(rows: Sequence[Sequence[str]], indent: str = "  ", columns: int | None = None) -> list[str]:
    """Return the lines of a table.

    A wide last cell continues in its own column, or below the row if there is no room.

    `columns` is the width of a line: by default that of standard output, and no limit in a pipe.
    """
    room = (columns or width(sys.stdout)) - len(indent)
    return [(indent + line).rstrip() for lines in _cells(rows, room) for line in lines]


def _cells(rows: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """Return the lines of each row, no wider than `room`."""
    if not rows or len(rows[0]) == 1:
        return [wrapped(row[0], room) for row in rows]
    before = [list(row[:-1]) for row in rows]
    widths = [max(columns_of(row[column]) for row in before) for column in range(len(before[0]))]
    left = sum(widths) + 2 * len(widths)
    if room - left < min(_LEAST_WIDTH, max(columns_of(row[-1]) for row in rows)):
        # The other cells leave no space, so the last cell goes on the next line.
        return [head + _below(row[-1], room) for head, row in zip(_cells(before, room), rows, strict=True)]
    return [
        _beside("  ".join(map(_pad, head, widths)), row[-1], left, room)
        for head, row in zip(before, rows, strict=True)
    ]


def _beside(head: str, cell: str, left: int, room: int) -> list[str]:
    widest = max((columns_of(word) for _, word in _WORD.findall(cell)), default=0)
    if widest > room - left and widest <= room - 4:
        return [head.rstrip(), *_below(cell, room)]  # the cell goes below, so that its words are not broken
    first, *rest = wrapped(cell, room - left, "")
    return [f"{head}  {first}", *(" " * left + line for line in rest)]


def _below(cell: str, room: int) -> list[str]:
    return [f"    {line}" for line in wrapped(cell, room - 4, "")] if cell else []


def _pad(cell: str, width: int) -> str:
    return cell + " " * (width - columns_of(cell))


_REDRAWN, _REPEATED = 0.1, 10.0  #: Seconds between two updates of a count: on a terminal, and elsewhere.


class ReadProgress:
    """Show how much of a file was read: on a terminal in one changing line, on other streams by a line now and then.

    `total` is the size of the file in bytes, None if unknown.
    """

    def __init__(self, stream: TextIO, name: str, verb: str = "unpacked") -> None:
        self.total: int | None = None
        self._stream, self._name, self._verb = stream, clean(name), verb
        self._shown = redraws(stream)
        # Start the clock now, so that a file that is read quickly shows no progress.
        self._count, self._drawn = 0, time.monotonic()

    def __enter__(self) -> ReadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        # Clear the line, so that the next text begins on an empty one.
        self._draw("")

    def __call__(self, count: int) -> None:
        """Add to the count of bytes."""
        self._count += count
        now = time.monotonic()
        if now - self._drawn > (_REDRAWN if self._shown else _REPEATED):
            self._drawn = now
            text = f"{size(self._count)}{f' of {size(self.total)}' if self.total else ''} {self._verb}: {self._name}"
            if self._shown:
                self._draw(f"reading, {text}")
            else:
                say(text, stream=self._stream)

    def _draw(self, text: str) -> None:
        if self._shown:
            # Leave one column free: many terminals wrap after a character in the last column.
            self._stream.write(f"\r\033[K{text[: width(self._stream) - 1]}")
            self._stream.flush()


def redraws(stream: TextIO) -> bool:
    """Return whether to redraw lines: on a capable terminal, without `-q` and `-v`."""
    # CI services may offer a terminal, and keep every redrawn line in the log.
    return not verbosity and stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
