"""Samples of long lists of parameters: `make unit` takes some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

SLOW, SOAK = pytest.mark.slow, pytest.mark.soak


def sample(values: Iterable[Any], every: int, rest: pytest.MarkDecorator = SLOW) -> list[Any]:
    """Mark all parameters but every n-th one. The unmarked ones are the sample."""
    return [value if index % every == 0 else _marked(value, rest) for index, value in enumerate(values)]


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    if hasattr(value, "marks"):  # a `pytest.param`
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, mark])
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
