"""YAML text -> nodes: what is refused, where it stands, and what is kept as it was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdock.errors import Problem, ProfileError
from tfdock.profile import yaml_nodes

from ..desk import problems_of

ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
CODES = {
    "yaml-alias", "yaml-duplicate-key", "yaml-empty", "yaml-key", "yaml-several-documents", "yaml-syntax", "yaml-tag",
    "yaml-too-deep", "yaml-too-large",
}  # fmt: skip


def problems(text: str) -> list[Problem]:
    return problems_of(lambda: yaml_nodes.parse(text, "p.yaml"))


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        pytest.param(ALIAS_BOMB, "yaml-alias", "p.yaml:1:4", id="alias bomb"),
        pytest.param("a: &a [*a]", "yaml-alias", "p.yaml:1:4", id="recursion"),
        pytest.param("a: 1\nb: *c\n", "yaml-alias", "p.yaml:2:4", id="alias of nothing"),
        pytest.param("&root {a: 1}", "yaml-alias", "p.yaml:1:1", id="anchored root"),
        pytest.param("&key a: 1", "yaml-alias", "p.yaml:1:1", id="anchored key"),
        pytest.param("[" * 5000, "yaml-too-deep", "p.yaml:1:34", id="5000 nested lists"),
        pytest.param("{a: " * 5000, "yaml-too-deep", "p.yaml:1:130", id="5000 nested maps"),
        pytest.param("{" * 5000, "yaml-too-deep", "p.yaml:1:34", id="5000 nested maps without keys"),
        pytest.param("- " * 5000 + "x", "yaml-too-deep", "p.yaml:1:67", id="5000 nested block lists"),
        pytest.param("a: !!python/object/apply:os.system [x]", "yaml-tag", "p.yaml:1:4", id="python object"),
        pytest.param("!!python/name:os.system ''", "yaml-tag", "p.yaml:1:1", id="python name"),
        pytest.param("a: !local 1", "yaml-tag", "p.yaml:1:4", id="local tag"),
        pytest.param("a: !!set {b}", "yaml-tag", "p.yaml:1:4", id="set"),
        pytest.param("a: !!binary aGk=", "yaml-tag", "p.yaml:1:4", id="binary"),
        pytest.param("a: 1\n---\nb: 2\n", "yaml-several-documents", "p.yaml:2:1", id="two documents"),
        pytest.param("a: 1\n...\n---\nb: 2\n", "yaml-several-documents", "p.yaml:3:1", id="document after the end"),
        pytest.param("a: 1\n...\nb: 2\n", "yaml-syntax", "p.yaml:3:1", id="text after the end"),
        pytest.param("", "yaml-empty", "p.yaml:1:1", id="empty"),
        pytest.param("# nothing\n\n", "yaml-empty", "p.yaml:1:1", id="only a comment"),
        pytest.param("a: 1\n[b]: 2\n", "yaml-key", "p.yaml:2:1", id="list as key"),
        pytest.param("? {a: b}\n: 2\n", "yaml-key", "p.yaml:1:3", id="map as key"),
        pytest.param("a: 1\n<<: {b: 2}\n", "yaml-key", "p.yaml:2:1", id="merge key"),
        pytest.param('"\\e[31m": 1', "yaml-key", "p.yaml:1:1", id="terminal codes as key"),
        pytest.param("? |\n  two\n  lines\n: 1", "yaml-key", "p.yaml:1:3", id="key of two lines"),
        pytest.param("a: 1\nb: x: y\n", "yaml-syntax", "p.yaml:2:5", id="colon in a value"),
        pytest.param("a:\n\tb: 1\n", "yaml-syntax", "p.yaml:2:1", id="tab"),
        pytest.param("a:\n  b: 1\n \tc: 1\n", "yaml-syntax", "p.yaml:3:2", id="tab behind spaces"),
        pytest.param("a: 'b", "yaml-syntax", "p.yaml:1:6", id="open quote"),
        pytest.param("a: 1\nb: x\0y\n", "yaml-syntax", "p.yaml:2:5", id="NUL"),
        pytest.param("é: \x07", "yaml-syntax", "p.yaml:1:4", id="bell behind an umlaut"),
        pytest.param("a: \ud800", "yaml-syntax", "p.yaml:1:4", id="lone surrogate"),
    ],
)
def test_what_people_regret_is_refused_at_its_place(text: str, code: str, place: str) -> None:
    (problem,) = problems(text)
    assert (problem.code, problem.where) == (code, place)
    assert problem.fix


@pytest.mark.parametrize("text", ["a:\n\tb: 1\n", "a: 1\n\tb: 2\n", "a:\r\n  b: 1\r\n \tc: 1\r\n"])
def test_a_tab_is_called_a_tab(text: str) -> None:
    (problem,) = problems(text)
    assert (problem.message, problem.fix) == ("YAML needs spaces, but this line has a tab", "indent with spaces only")
    (other,) = problems("a: 'b\t")
    assert "tab" not in other.message


def test_a_bomb_is_refused_before_anything_of_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made, node = 0, yaml_nodes.Node

    def counting(**values: Any) -> yaml_nodes.Node:
        nonlocal made
        made += 1
        return node(**values)

    monkeypatch.setattr(yaml_nodes, "Node", counting)
    problems(ALIAS_BOMB)
    assert made <= 1, "only the key before the first anchor may exist"


def test_a_file_of_the_largest_size_is_read_and_one_byte_more_is_not() -> None:
    text = "a: " + "x" * (yaml_nodes.MAX_BYTES - 3)
    assert len(yaml_nodes.parse(text, "p.yaml").entries["a"].raw) == yaml_nodes.MAX_BYTES - 3
    (problem,) = problems(text + "x")
    assert (problem.code, problem.where) == ("yaml-too-large", "p.yaml")


def test_the_size_limit_counts_bytes_and_not_characters() -> None:
    assert problems("a: " + "é" * (yaml_nodes.MAX_BYTES // 2))[0].code == "yaml-too-large"


def test_the_number_of_values_is_limited_as_well() -> None:
    assert problems("- 1\n" * (yaml_nodes.MAX_NODES + 1))[0].code == "yaml-too-large"


def test_all_equal_keys_are_reported_at_once_with_both_places() -> None:
    found = problems("a: 1\nb: {c: 1, c: 2}\na: 3\na: 4\n")
    assert [(problem.where, problem.message) for problem in found] == [
        ("p.yaml:2:11", "`c` is written twice, first in line 2"),
        ("p.yaml:3:1", "`a` is written twice, first in line 1"),
        ("p.yaml:4:1", "`a` is written twice, first in line 1"),
    ]


def test_keys_of_different_maps_may_be_equal() -> None:
    assert yaml_nodes.parse("a: {c: 1}\nb: {c: 2}\n", "p").value == {"a": {"c": 1}, "b": {"c": 2}}


@pytest.mark.parametrize(
    ("written", "kind", "value"),
    [
        ("3.10", "number", 3.1),
        ("2.20", "number", 2.2),
        ("12", "number", 12),
        ("-7", "number", -7),
        ("0", "number", 0),
        ("no", "boolean", False),
        ("On", "boolean", True),
        ("true", "boolean", True),
        ("y", "text", "y"),
        ("010", "number", "010"),
        ("0x1f", "number", "0x1f"),
        pytest.param("1" * 5000, "number", "1" * 5000, id="endless"),
        pytest.param("1" * 400 + ".0", "number", "1" * 400 + ".0", id="infinite"),
        ("1_000", "number", "1_000"),
        (".inf", "number", ".inf"),
        ("12:30:45", "number", "12:30:45"),
        ("2020-01-01", "date", "2020-01-01"),
        ("~", "null", None),
        ("2.18.0", "text", "2.18.0"),
        ("12.5.1", "text", "12.5.1"),
        ("sm_86", "text", "sm_86"),
    ],
)
def test_plain_scalars_keep_their_text_beside_what_yaml_makes_of_them(written: str, kind: str, value: object) -> None:
    node = yaml_nodes.parse(f"a: {written}\n", "p").entries["a"]
    assert (node.kind, node.raw, node.value) == (kind, written, value)


@pytest.mark.parametrize("written", ['"3.10"', "'3.10'", "! 3.10", "!!str 3.10", "!<tag:yaml.org,2002:str> 3.10"])
def test_quoted_and_tagged_text_is_text(written: str) -> None:
    node = yaml_nodes.parse(f"a: {written}\n", "p").entries["a"]
    assert (node.kind, node.raw, node.value) == ("text", "3.10", "3.10")


@pytest.mark.parametrize("key", ["no", "3.10", "~"])
def test_keys_are_text_as_they_are_written(key: str) -> None:
    assert list(yaml_nodes.parse(f"{key}: 1\n", "p").entries) == [key]


def test_every_value_knows_its_line_and_column() -> None:
    document = yaml_nodes.parse("a: 1\né: {b: [x,\n    y]}\nc:\n  - z\n", "p.yaml")
    places = {
        path: (document.at(path).line, document.at(path).column)
        for path in [("a",), ("é",), ("é", "b"), ("é", "b", 0), ("é", "b", 1), ("c",), ("c", 0)]
    }
    assert list(places.values()) == [(1, 4), (2, 4), (2, 8), (2, 9), (3, 5), (5, 3), (5, 5)]
    assert document.keys == {"a": (1, 1), "é": (2, 1), "c": (4, 1)}
    assert document.at(("a",)).file == "p.yaml"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("b", "c", 0), 3),
        (("b", "c", 9), 3),
        (("b", "nothing"), 2),
        (("a", "deeper"), 1),
        (("b", "c", "text"), 3),
        ((), 1),
    ],
    ids=str,
)
def test_a_path_that_ends_early_leads_to_the_deepest_node_there_is(path: tuple[str | int, ...], line: int) -> None:
    assert yaml_nodes.parse("a: 1\nb: {x: 1,\n  c: [y]}\n", "p").at(path).line == line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain é ☃ text", "plain é ☃ text"),
        ("two\nlines", r"two\nlines"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("bidi\u202e", r"bidi\u202e"),
        ("x" * 81, "x" * 79 + "…"),
    ],
)
def test_text_in_messages_can_neither_break_a_line_nor_drive_a_terminal(text: str, message: str) -> None:
    assert yaml_nodes.shown(text) == message


# --- anything at all ----------------------------------------------------------------------------------------------

SNIPPETS = st.sampled_from(
    ["a: ", "- ", "? ", "[", "]", "{", "}", ", ", "\n", "  ", "&a ", "*a", "!!int ", "!", "%YAML 1.1\n", "---\n",
     "...", "|\n", ">-\n", "'", "#", "<<: ", "3.10", "~", "\t", "\ufeff", "\x85", "\u2028", "\0", "\\x", '"']
)  # fmt: skip


def found_in(text: str) -> tuple[Problem, ...]:
    """None for a text that parses; any other exception rises."""
    try:
        yaml_nodes.parse(text, "p.yaml")
    except ProfileError as error:
        return error.problems
    return ()


def parses_or_is_refused(text: str) -> None:
    found = found_in(text)
    assert {problem.code for problem in found} <= CODES
    assert all(problem.file == "p.yaml" and problem.message.isprintable() for problem in found)


@settings(max_examples=300)
@given(st.text(st.characters()))
def test_any_text_parses_or_is_refused_with_a_code_of_ours(text: str) -> None:
    parses_or_is_refused(text)


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(SNIPPETS | st.text(max_size=3), max_size=30).map("".join))
def test_any_mixture_of_yaml_parses_or_is_refused_with_a_code_of_ours(text: str) -> None:
    parses_or_is_refused(text)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(st.characters(codec="utf-8")), min_size=1)
)
def test_quoted_text_comes_back_as_it_was(words: dict[str, str]) -> None:
    escaped = {key: "".join(f"\\U{ord(letter):08x}" for letter in text) for key, text in words.items()}
    text = "".join(f'{key}: "{value}"\n' for key, value in escaped.items())
    if len(text) <= yaml_nodes.MAX_BYTES:
        node = yaml_nodes.parse(text, "p")
        assert {key: child.raw for key, child in node.entries.items()} == words
        assert [child.line for child in node.entries.values()] == list(range(1, len(words) + 1))
