"""Which causes the figures of a trace show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest

from tfdock.knowledge import loader
from tfdock.knowledge.wheel_rows import SlowCause
from tfdock.trace.trace_facts import TraceFacts, facts_of
from tfdock.trace.tracing import causes_of

from .tables import answers, node, step, timed

SOUND = facts_of(
    answers([step(0, 0, 100), node("a", "MatMul", 0, 50), node("b", "MatMul", 50, 90)], steps=timed(2.0))
)


def rows() -> Sequence[SlowCause]:
    return loader.knowledge().slow_causes


def causes(**changed: object) -> list[str]:
    return [one.cause for one in causes_of(replace(SOUND, **changed), rows())]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"input_share": 0.3, "input_stage": "Map"}, ["slow-input"]),
        ({"input_share": 0.3, "python_input": True}, ["python-input"]),
        ({"input_share": None, "python_input": True}, []),
        ({"compile_share": 0.2, "compilations": 2}, []),
        (
            {
                "compile_share": 0.2,
                "compilations": 20,
                "building_share": 0.3,
                "traced_calls": 20,
                "traced_share": 1.0,
            },
            ["recompiled"],
        ),
        ({"building_share": 0.6, "traced_calls": 20, "traced_share": 1.0, "operation_share": 0.1}, ["retraced"]),
        ({"building_share": 0.6, "traced_calls": 20, "traced_share": 0.2}, []),
        ({"double_share": 0.5}, ["float64"]),
        ({"double_share": None}, []),
        ({"operation_share": 0.3, "eager_calls": 900, "eager_per_step": 900.0, "eager_share": 0.2}, ["eager"]),
        ({"operation_share": 0.3, "eager_calls": 900, "eager_per_step": 900.0, "eager_share": 0.02}, ["python"]),
        ({"operation_share": 0.3, "eager_calls": 40, "eager_per_step": 2.0}, ["python"]),
        ({"operation_share": None}, []),
        ({"operation_share": 0.1, "python_share": 0.8}, ["python-operation"]),
        ({"node_share": 0.8, "node": "svd (Svd)"}, ["one-operation"]),
        ({"node_share": 0.8, "operation_share": 0.2}, ["python"]),
    ],
    ids=str,
)
def test_a_cause_is_named_where_its_figures_are_there(changed: dict[str, object], expected: list[str]) -> None:
    assert causes(**changed) == expected


def test_a_sentence_has_the_figures() -> None:
    changed = replace(SOUND, input_share=0.876, input_stage="Prefetch::Generator", python_input=True)
    (found,) = causes_of(changed, rows())
    assert found.says == "88 % of a step waits for input, and the input pipeline runs Python: Prefetch::Generator"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.cause)
def test_a_row_names_figures_that_there_are_and_rows_before_it(row: SlowCause) -> None:
    figures = {field.name for field in fields(TraceFacts)}
    assert {*row.at_least, *row.at_most} <= figures
    before = [one.cause for one in rows()]
    assert row.unless <= set(before[: before.index(row.cause)])
    (found,) = causes_of(SOUND, [row.model_copy(update={"at_least": {}, "at_most": {}, "unless": frozenset()})])
    assert "{" not in found.says + found.advice
