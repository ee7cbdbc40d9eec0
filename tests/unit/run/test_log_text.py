"""What a log file holds: what was printed, and nothing that acts on a terminal."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.run.log_text import LogText


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


@pytest.mark.parametrize(
    "line",
    [
        b"[12,345 / 23,456] Compiling tensorflow/core/kernels/matmul_op.cc; 12s linux-sandbox\n",
        b"\x1b[32m[12,345 / 23,456]\x1b[0m Compiling tensorflow/core/kernels/matmul_op.cc; 12s\n",
        "error: ‘x’ was not declared in this scope; did you mean ‘y’? [-Wsomething]\n".encode(),
    ],
    ids=["plain", "coloured", "not ASCII"],
)
def test_a_log_is_written_quickly(line: bytes) -> None:
    piece = line * (65536 // len(line))
    log, began = LogText(), time.process_time()
    for _ in range(320):
        log.feed(piece)
    assert len(piece) * 320 / (time.process_time() - began) > 50e6, "20 MB in 0.4 s"


@pytest.mark.parametrize(
    "evil", [b"\x1b", b"\x1b]", b"\x1b[", b"\x1b]x", b"\xff", b"\r", b"\x1b]" + b"x" * 4000], ids=repr
)
def test_no_output_takes_long(evil: bytes) -> None:
    piece = evil * (65536 // len(evil))
    log, began = LogText(), time.process_time()
    for _ in range(32):
        log.feed(piece)
    assert time.process_time() - began < 3
