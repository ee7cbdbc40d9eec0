"""Strangers' logs, recipes and questions, each with the answer that was right.

`field/cases/*.yaml`: the words of a command, expressions that its output must have (`wanted`) and must not have
(`unwanted`), its exit status, the right answer in words, and where it stands. A case with `pending` is not answered
rightly yet: once it is, the test fails until the word goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tfdock.cli.app import app

FIELD = Path(__file__).with_name("field")


def cases() -> Iterator[Any]:
    for file in sorted((FIELD / "cases").glob("*.yaml")):
        for case in yaml.safe_load(file.read_text()):
            marks = [pytest.mark.xfail(strict=True, reason=case["pending"])] if "pending" in case else []
            yield pytest.param(case, id=f"{file.stem}-{case['id']}", marks=marks)


@pytest.mark.parametrize("case", list(cases()))
def test_the_answer_is_right(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIELD)
    result = CliRunner().invoke(app, case["command"], env={"COLUMNS": "160"})
    told = result.output
    assert [pattern for pattern in case["wanted"] if not re.search(pattern, told)] == [], told
    assert [pattern for pattern in case.get("unwanted", ()) if re.search(pattern, told)] == [], told
    assert result.exit_code == case["exit"], told
