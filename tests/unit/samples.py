"""Samples of long lists of parameters: `make test` takes all, `make unit` some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sample(values: Iterable[Any], every: int) -> list[Any]:
    """Mark the parameters as slow, but for the first and then one of so many."""
    return [value if index % every == 0 else _slow(value) for index, value in enumerate(values)]


def _slow(value: Any) -> Any:
    if hasattr(value, "marks"):  # a `pytest.param`
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.slow])
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
