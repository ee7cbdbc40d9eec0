"""Reading forwards by programs: the answers are those of the whole bytes, however they are cut into blocks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.host.block_stream import Program, Reader, SeekRequest, TakeRequest

DATA = bytes(range(256)) * 3 + b"needle" + bytes(100) + b"needle" + b"end"


def seek(start: int, stop: int = len(DATA)) -> SeekRequest:
    return SeekRequest(start, stop, lambda data, _, at: data.find(b"needle", at), len(b"needle"))


def run(program: Program[list[object]], cuts: list[int]) -> list[object]:
    reader = Reader(program)
    places = sorted({0, *(cut for cut in cuts if cut < len(DATA)), len(DATA)})
    for start, stop in itertools.pairwise(places):
        reader.feed(DATA[start:stop])
    return reader.close()


def program() -> Program[list[object]]:
    """A bit of everything, the answers in order."""
    answers: list[object] = [(yield TakeRequest(0, 4)), (yield TakeRequest(2, 4)), (yield TakeRequest(300, 10))]
    first = yield seek(310)
    second = yield seek(first + 1)
    answers += [
        first,
        second,
        (yield TakeRequest(second, 6)),
        (yield seek(second + 1)),
        (yield TakeRequest(len(DATA) - 3, 99)),
    ]
    answers.append((yield TakeRequest(len(DATA) + 50, 4)))
    return answers


FIRST = DATA.index(b"needle")
SECOND = DATA.rindex(b"needle")
EXPECTED = [DATA[:4], DATA[2:6], DATA[300:310], FIRST, SECOND, b"needle", None, b"end", b""]


@given(cuts=st.lists(st.integers(1, len(DATA)), max_size=40))
def test_blocks_of_any_size_give_the_same_answers(cuts: list[int]) -> None:
    assert run(program(), cuts) == EXPECTED


def test_single_bytes_give_the_same_answers() -> None:
    assert run(program(), list(range(len(DATA)))) == EXPECTED


@pytest.mark.parametrize("cuts", [[], [FIRST + 3], list(range(len(DATA)))], ids=["whole", "cut", "bytes"])
def test_a_match_that_starts_behind_the_end_of_the_search_is_none(cuts: list[int]) -> None:
    def searching() -> Program[list[object]]:
        return [(yield seek(0, FIRST)), (yield seek(0, FIRST + 1))]

    assert run(searching(), cuts) == [None, FIRST]


def test_a_program_that_has_seen_enough_says_so() -> None:
    def short() -> Program[list[object]]:
        return [(yield TakeRequest(0, 2))]

    reader = Reader(short())
    assert reader.running
    reader.feed(b"abcd")
    assert not reader.running
    reader.feed(b"efgh")
    assert reader.close() == [b"ab"]
