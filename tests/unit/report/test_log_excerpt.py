"""What of a log goes into a report: the right lines, harmless, and never more than is good for anybody."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterable

import pytest

from tfdock.report.log_excerpt import AROUND, Excerpt

MIB = 1 << 20


def excerpt(log: bytes, wanted: Iterable[int] = (), piece: int = MIB, cleaned: str = "") -> str:
    made = Excerpt(wanted)
    for start in range(0, len(log), piece):
        made.feed(log[start : start + piece])
    made.close()
    return made.text(lambda text: text.replace(cleaned, "<x>") if cleaned else text)


def numbered(count: int) -> bytes:
    return b"".join(b"line %d %s\n" % (number, b"." * 50) for number in range(1, count + 1))


def test_a_short_log_is_there_as_a_whole() -> None:
    assert excerpt(b"one\ntwo\nthree") == "=== lines 1 to 3 of 3 ===\none\ntwo\nthree\n"
    assert excerpt(b"one\n") == "=== lines 1 to 1 of 1 ===\none\n"
    assert excerpt(b"") == ""


@pytest.mark.parametrize("piece", [997, 70_001, 4 * MIB])
def test_the_lines_around_those_that_matter_and_the_end_are_there(piece: int) -> None:
    said = excerpt(numbered(60_000), [3, 20_000, 20_100, 40_000], piece)
    heads = re.findall(r"=== lines ([\d,]+) to ([\d,]+) of 60,000 ===\n(?:line (\d+))", said)
    first = int(heads[-1][2])
    assert heads == [
        ("1", str(3 + AROUND), "1"),
        ("19,940", "20,160", "19940"),
        ("39,940", "40,060", "39940"),
        (f"{first:,}", "60,000", str(first)),
    ]
    assert 55_000 < first < 59_000
    assert said.splitlines()[-1].startswith("line 60000 ")
    shown = [int(one) for one in re.findall(r"^line (\d+)", said, re.MULTILINE)]
    assert shown == sorted(set(shown))


def test_what_stands_beside_the_end_is_told_with_it() -> None:
    log = numbered(60_000)
    last = int(excerpt(log).split()[2].replace(",", ""))
    assert excerpt(log, [last - 10]).count("===\n") == 1
    assert excerpt(log, [60_000, 70_000]) == excerpt(log)


def test_it_steers_nothing_and_lines_end() -> None:
    log = b"\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 nul\x00 back\x08 bidi\xe2\x80\xae \xff\xfe\r\n"
    said = excerpt(log + b"bar 1\rbar 2\r\nend\n")
    assert all(one.isprintable() or one in "\n\t" for one in said)
    assert said.startswith("=== lines 1 to 3 of 3 ===\nred  bell nul back bidi \ufffd\ufffd\nbar 1\nbar 2\nend\n")


def test_a_line_without_end_is_cut_after_it_was_cleaned() -> None:
    said = excerpt(b"x" * 1990 + b" secretsecret " + b"y" * 5000 + b"\nend\n", cleaned="secretsecret")
    first = said.split("\n")[1]
    assert first.startswith("x" * 1990 + " <x> yyy")
    assert first.endswith("yyy … (4,996 characters more)") or "characters more)" in first
    assert "secretse" not in said


def test_no_half_word_is_left_where_a_line_was_cut_before() -> None:
    """A secret that stands across the cut cannot be known there."""
    words = b"word " * 3276  # 16,380 bytes: the next word is cut
    said = excerpt(words + b"secretsecret " + b"more " * 1000 + b"\n", [1], cleaned="secretsecret")
    assert "secr" not in said
    cut = excerpt(b"secretsecret" * 100_000 + b"\n" + numbered(3), cleaned="secretsecretsecretsecret")
    assert "secret" not in cut


def test_the_end_begins_with_a_whole_line() -> None:
    log = (b"a" * 1000 + b" MARK " + b"b" * 1000 + b"\n") * 1000
    parts = excerpt(log).split("\n")
    assert parts[1].startswith("a" * 1000)
    assert excerpt(b"c" * (3 * MIB)).count("c") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "log", [b"x" * (60 * MIB), b"\n" * (30 * MIB), b"\x1b[31m" * (4 * MIB)], ids=lambda log: log[:1]
)
def test_memory_and_size_are_bounded(log: bytes) -> None:
    tracemalloc.start()
    try:
        said = excerpt(log, [1, 5, 1000])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * MIB
    assert len(said) < MIB
