"""Errors of ours, by their class and the code of their problem."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tfdock.errors import TfdockError


@contextlib.contextmanager
def refusal(
    kind: type[TfdockError], code: str, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[TfdockError]]:
    """Expect an error of that class, whose text matches, with one problem of that code."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert [problem.code for problem in caught.value.problems] == [code], caught.value
