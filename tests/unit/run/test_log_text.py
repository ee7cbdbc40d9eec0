"""What a log file holds: what was printed, and nothing that acts on a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.run import log_text
from tfdock.run.log_text import LogText

from ..backtracking import most_ways
from ..steps import steps


def written(*pieces: bytes) -> bytes:
    log = LogText()
    return b"".join([*map(log.feed, pieces), log.close()])


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"plain\n\ttext\n", "plain\n\ttext\n"),
        (b"\x1b[31m\x1b[1mERROR: \x1b[0mit failed\n", "ERROR: it failed\n"),
        (b"\r\x1b[1A\x1b[K[1 / 2] a\n\r\x1b[1A\x1b[K[2 / 2] b\n", "\n[1 / 2] a\n\n[2 / 2] b\n"),
        (b"\x1b]0;title\x07a\x1b]52;c;cm0gLXJm\x1b\\b\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "ablink\n"),
        (b"\x1bPq#0\x1b\\a\x1b_x\x1b\\b\x1b(Bc\x1b7d\x1bce\n", "abcde\n"),
        (b"\x1b]0;never ends\nnext\n", "]0;never ends\nnext\n"),
        (b"a\x1b[31\nb", "a[31\nb"),
        (b"10 %\r20 %\r30 %\r\ndone\r\n", "10 %\n20 %\n30 %\ndone\n"),
        (b"hidden\rshown\n", "hidden\nshown\n"),
        (b"a\x00\x07\x08\x0b\x0c\x7fb\n", "ab\n"),
        ("a\x9b31mb\x85\u202ec\u2028\n".encode(), "a31mbc\n"),
        ("‘Füße’ 日本\n".encode(), "‘Füße’ 日本\n"),
        (b"caf\xe9 \x9b31m \xff\n", "caf\udce9 31m \udcff\n"),
        (b"\xe4 \x9b \xad", "\udce4  \udcad"),
        (b"\xc2\x1b[m\x9b\xe2\x00\x80\xae", "\udcc2\udce2\udcae"),
        (b"cut \xe2\x80", "cut \udce2"),
        (b"\x1b", ""),
        (b"a\x1b[3", "a[3"),
        (b"a\r", "a\n"),
        (b"", ""),
    ],
)
def test_a_log_holds_the_text_and_no_control(printed: bytes, shown: str) -> None:
    assert written(printed) == shown.encode("utf-8", "surrogateescape")
    assert written(*(printed[at : at + 1] for at in range(len(printed)))) == written(printed)


PIECES = st.sampled_from(
    [b"text ", b"\n", b"\r", b"\r\n", b"\x1b", b"[", b"3", b"1;2", b"m", b"]", b"0;x", b"\x07", b"\\", b"P", b"(",
     b"\x9b", b"\xc2", b"\xe2\x80", b"\xae", b"\x00", "é".encode(), b"\x7f"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60))
def test_nothing_that_acts_on_a_terminal_is_left_however_it_is_cut(pieces: list[bytes]) -> None:
    text = written(*pieces).decode("utf-8", "surrogateescape")
    assert all(one in "\t\n" or one.isprintable() or "\udca0" <= one <= "\udcff" for one in text)
    assert text.count("text ") == pieces.count(b"text ") or b"\x1b" in pieces


@pytest.mark.parametrize("expression", [log_text._SEQUENCE, log_text._HIDING], ids=repr)
def test_an_expression_has_one_way_alone_to_search_output(expression: re.Pattern[str]) -> None:
    assert most_ways(expression, 10**6) == 1


@pytest.mark.parametrize(
    "evil", [b"\x1b", b"\x1b]", b"\x1b[", b"\x1b]x", b"\xff", b"\r", b"\x1b]" + b"x" * 4000], ids=repr
)
def test_little_output_is_held_back_and_each_piece_takes_the_same_few_steps(evil: bytes) -> None:
    log, piece = LogText(), evil * (65536 // len(evil))
    for _ in range(32):
        assert steps(lambda: log.feed(piece)) < 1000
        assert len(log._held) <= log_text._LONGEST
