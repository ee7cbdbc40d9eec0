"""Private keys in a text, whole or what is left of one, as places of the text. Pure, and as long as the text is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tfdock.diagnose.log_lines import merge_spans

_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_CODE = re.compile(r"[A-Za-z0-9+/=]{16,}[ \t\r]*$")
"""How a line of a key ends; before it may stand what a builder puts before every line."""
_FULL = re.compile(r"[ \t]*[A-Za-z0-9+/]{60,76}[ \t\r]*")
"""A full line of base64, as it stands in a key whose ends are elsewhere."""
_LONGEST = 20_000
"""Characters between both ends; a key of 16,384 bits has 13,000."""
_REST = re.compile(r"(?:(?:\\{1,4}[nr]|\s){0,8}[A-Za-z0-9+/=]{16,20000}){0,400}")
"""What follows the beginning of a key whose end was cut off, also in one line."""


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
        # From the first of lines that may be of a key: what makes them one may come after them.
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
    """Small and capital letters and digits: no hash, no name."""
    return all(any(test(one) for one in line) for test in (str.islower, str.isupper, str.isdigit))
