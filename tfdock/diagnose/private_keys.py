"""Find private keys in a text, whole or cut off. Pure; the time grows with the length of the text alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tfdock.diagnose.log_lines import merge_spans

_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_CODE = re.compile(r"[A-Za-z0-9+/=]{16,}[ \t\r]*$")
"""The end of a line of a key. A builder may have put a prefix before the line."""
_FULL = re.compile(r"[ \t]*[A-Za-z0-9+/]{60,76}[ \t\r]*")
"""A full line of base64: part of a key whose first and last lines are elsewhere."""
_LONGEST = 20_000
"""Characters between the first and the last line; a key of 16,384 bits has 13,000."""
_REST = re.compile(r"(?:(?:\\{1,4}[nr]|\s){0,8}[A-Za-z0-9+/=]{16,20000}){0,400}")
"""The rest of a key whose end was cut off, also in one line."""


def private_keys(text: str) -> list[tuple[int, int]]:
    """Return where keys begin and end, in order; none overlaps another."""
    return merge_spans(_places(text))


def _places(text: str) -> Iterator[tuple[int, int]]:
    ends = [match.end() for match in _END.finditer(text)]
    place = 0
    begins = list(_BEGIN.finditer(text))
    for match in begins:
        while place < len(ends) and ends[place] <= match.end():
            place += 1
        near = place < len(ends) and ends[place] - match.end() <= _LONGEST
        rest = _REST.match(text, match.end())
        assert rest
        yield match.start(), ends[place] if near else rest.end()
    begins.reverse()
    begin, run, last = 0, 0, -_LONGEST
    for line in text.splitlines(keepends=True):
        end = begin + len(line)
        while begins and begins[-1].end() <= begin:
            last = begins.pop().start()
        # Begin at the first of the lines that may be of a key: only a line after them may show that they are.
        is_code = _CODE.search(line.rstrip("\n")[-200:]) is not None
        if _END.search(line):
            yield begin - run, end - line.endswith("\n")
        elif _FULL.fullmatch(line.rstrip("\n")) and _is_mixed(line):
            yield begin, end - line.endswith("\n")
        elif is_code and last >= begin - run - 200:
            yield begin - run, end - line.endswith("\n")
        run = run + len(line) if is_code else 0
        begin = end


def _is_mixed(line: str) -> bool:
    """Return whether a line has small and capital letters and digits. A hash or a name has not."""
    return all(any(map(has, line)) for has in (str.islower, str.isupper, str.isdigit))
