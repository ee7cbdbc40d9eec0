"""The proof that an expression costs little tells good ones from bad ones."""

from __future__ import annotations

import pytest

from .backtracking import ExponentialError, most_ways

LENGTH = 1000


@pytest.mark.parametrize(
    "expression",
    ["(a+)+$", "(a|aa)*b", "(?:a|a)*b", "(a*)*b", "(?:a?){30}a", "(?:\\w+ ?)*$", "^(\\w+\\s*,?)+$", "(ab|a|ba)*c",
     "(?=(?:a+)+b)c"],
)  # fmt: skip
def test_a_loop_that_reads_one_text_in_two_ways_is_refused(expression: str) -> None:
    with pytest.raises(ExponentialError):
        most_ways(expression, LENGTH)


@pytest.mark.parametrize(
    ("expression", "ways"),
    [
        (".*x.*y.*z.*w", LENGTH**4),
        ("^.*x.*y.*z.*w", LENGTH**3),
        ("^a*a*a*b", LENGTH**2),
        ("(?=.*x.*y)z", LENGTH**2),
        ("\\s+$", LENGTH),
        ("x.*y", LENGTH),
        ("x.{0,80}y", 80),
        ("x.{0,80}y.{0,80}z", 80 * 80),
        ("(?:ab){0,7}a", 14),
        ("^(?:.{0,8}x)?.{0,300}y.{0,200}z", 8 * 200),
        ("^a*b*x.*y.*z", LENGTH),  # each text is divided by its x
    ],
)
def test_loops_that_share_a_text_multiply_the_ways(expression: str, ways: int) -> None:
    assert most_ways(expression, LENGTH) == ways


@pytest.mark.parametrize(
    "expression",
    ["", "foo", "a|b", "^.*x", 'error: "([^"]+)" foo', "^(?:\\w+ )*x", "(?:^|: )x", "x.*", "x(?:y.*)?", "x \\d{2,9}y",
     "^(?:\\.\\d+)*$"],
)  # fmt: skip
def test_an_expression_that_never_goes_back_has_one_way(expression: str) -> None:
    assert most_ways(expression, LENGTH) == 1


def test_what_is_not_understood_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        most_ways("(a)?(?(1)b|c)", LENGTH)


@pytest.mark.parametrize(
    ("expression", "ways"),
    [
        ("a+A+b", LENGTH),
        ("(?i)a+A+b", LENGTH**2),
        ("(?i:a+)A+b", LENGTH**2),
        ("A+(?i:a+)b", LENGTH**2),
        ("^.*x", 1),
        ("(?m)^.*x", LENGTH),
        ("(?m)^(?s:.*)x", LENGTH),
        ("^(a{1,9})b\\1c", 1),
        ("^(a{1,9})\\1c", 9),
    ],
)
def test_flags_and_groups_are_heeded(expression: str, ways: int) -> None:
    assert most_ways(expression, LENGTH) == ways
