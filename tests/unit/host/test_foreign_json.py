"""JSON that anybody may have written becomes the type that was asked for, or one error that says where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest

from tfdock.host.foreign_json import Line, Malformed, Sha256, Size, Text, below, matching, parse


@dataclass(frozen=True, slots=True)
class Blob:
    sha256: Sha256
    size: Size
    note: str = "none"
    from_: Line | None = None

    def __post_init__(self) -> None:
        if self.size == 13:
            raise ValueError("no blob has 13 bytes")


class Record(TypedDict):
    build: Annotated[str, matching("[a-z]+")]
    blobs: list[Blob]


SUM = "0" * 64
BLOB = {"sha256": SUM, "size": 1}


@pytest.mark.parametrize(
    ("kind", "node", "value"),
    [
        (Blob, BLOB | {"later": [1]}, Blob(SUM, 1)),
        (Literal["a", "b"], "b", "b"),
        (Blob, BLOB | {"from_": None, "note": "x"}, Blob(SUM, 1, "x")),
        (tuple[Blob, ...], [BLOB], (Blob(SUM, 1),)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Mapping[Sha256, int], {SUM: 2}, {SUM: 2}),
        (float, 1, 1),
        (Record, {"build": "a", "blobs": [BLOB], "later": 1}, {"build": "a", "blobs": [BLOB], "later": 1}),
        (Any, [None, {"a": 1.5}], [None, {"a": 1.5}]),
        (Any, json.loads("[" * 40 + "]" * 40), json.loads("[" * 40 + "]" * 40)),
    ],
)
def test_json_becomes_the_type_that_was_asked_for(kind: Any, node: object, value: object) -> None:
    assert parse(kind, json.dumps(node).encode()) == value


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (Blob, "[]", "^a list is invalid"),
        (Blob, json.dumps({"size": 1}), "`sha256`: missing"),
        (Blob, json.dumps(BLOB | {"size": True}), "`size`: 'True' is invalid"),
        (Blob, json.dumps(BLOB | {"size": -1}), "`size`"),
        (Blob, json.dumps(BLOB | {"sha256": f"{SUM}\n"}), "`sha256`"),
        (Blob, json.dumps(BLOB | {"from_": "\x1b[2J"}), r"`from_`: '\\x1b\[2J'"),
        (Blob, json.dumps(BLOB | {"size": 13}), "no blob has 13 bytes"),
        (Record, json.dumps({"build": "a", "blobs": [BLOB, BLOB | {"size": "1"}]}), r"`blobs\.1\.size`"),
        (Mapping[Sha256, int], json.dumps({"\x1b": 1}), r"'\\x1b' is invalid"),
        (Mapping[str, int], json.dumps({"\x1b[2J" * 50: "1"}), r"`\\x1b\[2J.{0,80}`: '1' is"),
        (Literal["a", "b"], '"c"', "'c' is invalid"),
        (Literal["a", "b"], "[]", "a list"),
        (tuple[int, str], "[1]", "a list"),
        (tuple[int, ...], "{}", "a map"),
        (dict[str, Any], "[]", "a list"),
        (Text, json.dumps("x" * 65537), "'x{60}'"),
        (Annotated[float, below(9)], "NaN", "'nan'"),
        (Any, "[" * 41 + "]" * 41, "too deeply"),
        (Any, "[" * 99999, "not valid JSON"),
        (Any, "1" * 5000, "not valid JSON"),
        (Any, b"\xff", "not valid JSON"),
        (Any, "", "not valid JSON"),
    ],
)
def test_what_is_something_else_is_one_error_with_its_place(kind: Any, text: str | bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words) as raised:
        parse(kind, text)
    assert str(raised.value).isprintable()


def test_the_first_value_of_another_type_ends_the_reading() -> None:
    asked: list[object] = []

    def never(value: object) -> bool:
        asked.append(value)
        return False

    with pytest.raises(Malformed, match="`0`"):
        parse(list[Annotated[int, never]], f"[{'7,' * 1_000_000}7]")
    assert asked == [7]
