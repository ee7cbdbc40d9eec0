"""What is drawn from xprof's answers, and which causes the figures show."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from tfdock.host.foreign_json import Malformed
from tfdock.knowledge import loader
from tfdock.knowledge.wheel_rows import SlowCause
from tfdock.trace.operation_case import chosen
from tfdock.trace.trace_facts import TracedOperation, TraceFacts, facts_of
from tfdock.trace.tracing import causes_of

from .tables import OPERATIONS, Event, answers, event, node, step, table, timed


def facts(*events: Event, **tables: object) -> TraceFacts:
    return facts_of(answers(events, **tables))  # type: ignore[arg-type]


def test_figures_are_those_between_the_first_and_the_last_step() -> None:
    found = facts(
        node("before", "MatMul", 0, 90),
        step(0, 100, 200),
        step(1, 200, 300),
        node("a", "MatMul", 110, 160),
        node("b", "MatMul", 140, 180),  # at once with `a`
        node("c", "MatMul", 210, 220),
        node("after", "MatMul", 310, 900),
        steps=timed(0.1),
    )
    assert found.steps == 2
    assert found.operation_share == pytest.approx(0.4)
    assert (found.step_seconds, found.shortest_seconds, found.longest_seconds) == pytest.approx((1e-4, 5e-5, 2e-4))


def test_of_a_program_without_steps_the_figures_begin_with_its_first_operation() -> None:
    found = facts(
        event("import", 0, 500),
        event("EagerLocalExecute: AddV2", 600, 650),
        event("EagerLocalExecute: Mul", 750, 800),
    )
    assert (found.steps, found.step_seconds) == (0, None)
    assert found.operation_share == pytest.approx(0.5)
    assert (found.eager_calls, found.eager_per_step, found.eager_share) == (2, 2, 0.5)


def test_the_scripts_own_steps_count_and_ours_do_not() -> None:
    found = facts(step(0, 0, 100), step(1, 100, 200), step(7, 10, 90, "train"))
    assert found.steps == 1


def test_what_waits_or_hands_on_computes_nothing() -> None:
    found = facts(
        step(0, 0, 100),
        node("next", "IteratorGetNext", 0, 80),
        event("Iterator::Root::Map", 0, 80, long_name="Iterator::Root::Map"),
        event("EagerLocalExecute: __inference_step_7", 0, 100),
        node("a", "Relu", 80, 90),
    )
    assert found.operation_share == pytest.approx(0.1)
    assert found.eager_calls == 0


def test_kernels_on_a_gpu_and_what_xla_made_compute() -> None:
    found = facts(step(0, 0, 100), event("volta_sgemm", 50, 100, pid=9), device=9)
    assert found.operation_share == pytest.approx(0.5)
    found = facts(
        step(0, 0, 100), node("__inference_step_7", "__inference_step_7", 0, 40), event("a", 40, 60, hlo_op="a")
    )
    assert found.operation_share == pytest.approx(0.6)


def test_whether_xla_compiles_is_not_known_where_it_tells_nothing() -> None:
    call = event("train", 0, 90, tf_function_call="notTraced-xla")
    assert facts(step(0, 0, 100), call).compile_share is None
    assert facts(step(0, 0, 100), call, event("a", 40, 60, hlo_op="a")).compile_share == 0


def test_python_inside_of_a_graph_is_no_input_without_a_pipeline() -> None:
    found = facts(step(0, 0, 100), node("f", "EagerPyFunc", 10, 90))
    assert (found.python_share, found.python_input, found.operation_share) == (0.8, False, 0)


def test_the_wait_for_input_is_xprofs_and_the_stage_is_the_slowest() -> None:
    rounds = [[f"Iterator::Root::Prefetch::FlatMap[{one}]::Generator", 10, 15.0] for one in (0, 52)]
    stages = [["Iterator::Root::Prefetch", 20, 20.0], *rounds]
    found = facts(step(0, 0, 100), stages=[["Device:x", 1, 99.0], *stages], steps=timed(2.0, infeed=1.5))
    assert found.input_share == pytest.approx(0.75)
    assert found.input_stage == "Prefetch::FlatMap::Generator"
    assert found.python_input
    assert [(stage.calls, stage.seconds) for stage in found.stages] == [(20, 0.03), (20, 0.02)]


def test_without_steps_the_wait_is_none_without_a_pipeline_and_not_known_with_one() -> None:
    assert facts(event("EagerLocalExecute: Mul", 0, 9)).input_share == 0
    assert facts(event("Iterator::Root::Map", 0, 9)).input_share is None


def test_a_session_of_1x_is_told_by_its_events_alone() -> None:
    events = [
        *(step(number, 100 * number, 100 * number + 60 + 40 * number) for number in range(2)),
        node("next", "IteratorGetNext", 0, 50, ""),
        node("cluster_0/run", "_XlaRun", 100, 140, ""),
        node("cluster_1/run", "_XlaRun", 150, 160, ""),
        node("cluster_0/run", "_XlaRun", 170, 180, ""),
    ]
    found = facts_of({"trace_viewer": answers(events)["trace_viewer"]})
    assert (found.step_seconds, found.longest_seconds) == pytest.approx((80e-6, 100e-6))
    assert found.input_share == pytest.approx(0.25)
    assert found.input_stage == "IteratorGetNext"
    assert (found.clusters, found.operation_share) == pytest.approx((2, 0.3))


def test_calls_that_trace_and_steps_that_compile_are_counted() -> None:
    found = facts(
        *(step(number, 100 * number, 100 * number + 100) for number in range(4)),
        event("train", 0, 90, tf_function_call="traced-nonXla"),
        event("train", 100, 190, tf_function_call="traced-xla"),
        event("evaluate", 200, 290, tf_function_call="notTraced-nonXla"),
        event("tf.function-graph_building", 10, 50),
        event("CpuCompiler::Compile", 110, 130),
        event("RunBackend", 115, 125),
        event("GpuCompiler::CompileGpuExecutable", 310, 330),
    )
    assert (found.traced_calls, found.traced_functions, found.compilations) == (2, "train", 2)
    shares = (found.traced_share, found.building_share, found.compile_share)
    assert shares == pytest.approx((2 / 3, 0.1, 0.1))


def test_float64_is_a_share_of_the_time_of_operations_whose_inputs_are_known() -> None:
    found = facts(step(0, 0, 100), node("a", "MatMul", 0, 30, "(double[8];float[])"), node("b", "Relu", 30, 90))
    assert found.double_share == pytest.approx(1 / 3)
    assert found.has_shapes
    blind = facts(step(0, 0, 100), event("Relu", 0, 50, long_name="b:Relu"))
    assert (blind.double_share, blind.has_shapes) == (None, False)


def test_operations_of_the_host_are_events_and_those_of_a_gpu_are_xprofs() -> None:
    operations = [["Host", "MatMul", "dense/MatMul", 2, 300.0], ["Device", "Relu", "relu", 20, 5.0]]
    found = facts(
        step(0, 0, 200),
        node("dense/MatMul", "MatMul", 0, 75, "(float[2,3])"),
        event("EagerLocalExecute: AddV2", 100, 125),
        operations=operations,
    )
    told = [(one.on, one.type, one.node, one.calls, round(one.share, 2), one.inputs) for one in found.operations]
    assert told == [
        ("Device", "Relu", "relu", 20, 1.0, ""),
        ("Host", "MatMul", "dense/MatMul", 1, 0.75, "(float[2,3])"),
        ("Host", "AddV2", "", 1, 0.25, ""),
    ]
    assert (found.node, found.node_share) == ("relu (Relu)", 1.0)


def test_an_operation_has_the_time_that_those_inside_of_it_on_its_thread_have_not() -> None:
    found = facts(
        step(0, 0, 1000),
        node("loop", "While", 0, 100),
        node("body", "MatMul", 10, 40),
        node("inner", "Relu", 20, 30),
        node("after", "Mul", 50, 60),
        node("other", "Add", 0, 100, tid=2),
    )
    times = {one.node: round(one.seconds * 1e6) for one in found.operations}
    assert times == {"loop": 60, "body": 20, "inner": 10, "after": 10, "other": 100}


def test_kernels_and_memory_are_xprofs() -> None:
    kernels = [
        ["sgemm", 96, 49152, 12.5, True, "dense/MatMul", 20, 500.0],
        ["copy", 16, 0, 100.0, False, "", 40, 700.0],
    ]
    found = facts(step(0, 0, 100), kernels=kernels, peaks={"GPU_0_bfc": [10, 300, 200], "cpu": []})
    assert [(one.name, one.seconds, one.tensor_cores) for one in found.kernels] == [
        ("copy", 7e-4, False),
        ("sgemm", 5e-4, True),
    ]
    assert (found.kernels[1].registers, found.kernels[1].shared_bytes, found.kernels[1].occupancy) == (
        96,
        49152,
        0.125,
    )
    assert found.memory == {"GPU_0_bfc": 300}


def test_a_tool_that_gave_no_answer_takes_only_its_own_figures_away() -> None:
    tables = answers([step(0, 0, 100), node("a", "Relu", 0, 50)], steps=timed(2.0, infeed=1.0))
    found = facts_of({"trace_viewer": tables["trace_viewer"], "overview_page": tables["overview_page"]})
    assert (found.steps, found.input_share, found.kernels, found.memory) == (1, 0.5, [], {})
    assert [one.node for one in found.operations] == ["a"]


@pytest.mark.parametrize(
    "changed",
    [
        {"trace_viewer": b"\x00"},
        {"trace_viewer": b'{"traceEvents": [{"name": 7}]}'},
        {"trace_viewer": b'{"traceEvents": [{"name": "a", "ph": "X", "ts": "later"}]}'},
        {"framework_op_stats": json.dumps([{}, table(OPERATIONS, [["Device", "Relu", "a", "x", 1]])]).encode()},
        {"overview_page": b'{"p": {}}'},
        {"memory_profile": b"[]"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_is_no_answer_of_xprof_is_malformed(changed: dict[str, bytes]) -> None:
    with pytest.raises(Malformed):
        facts_of(answers([step(0, 0, 100)]) | changed)


def test_a_trace_of_nothing_has_no_figures() -> None:
    found = facts()
    assert (found.steps, found.operation_share, found.operations) == (0, None, [])


# --- causes ---------------------------------------------------------------------------------------------------------

SOUND = facts(step(0, 0, 100), node("a", "MatMul", 0, 50), node("b", "MatMul", 50, 90), steps=timed(2.0))
ROWS = loader.knowledge().slow_causes


def causes(**changed: object) -> list[str]:
    return [one.cause for one in causes_of(replace(SOUND, **changed), ROWS)]  # type: ignore[arg-type]


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
    (found,) = causes_of(changed, ROWS)
    assert found.says == "88 % of a step waits for input, and the input pipeline runs Python: Prefetch::Generator"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.cause)
def test_a_row_names_figures_that_there_are_and_rows_before_it(row: SlowCause) -> None:
    figures = {field.name for field in fields(TraceFacts)}
    assert {*row.at_least, *row.at_most} <= figures
    before = [one.cause for one in ROWS]
    assert row.unless <= set(before[: before.index(row.cause)])
    (found,) = causes_of(SOUND, [row.model_copy(update={"at_least": {}, "at_most": {}, "unless": frozenset()})])
    assert "{" not in found.says + found.advice


@pytest.mark.parametrize(
    ("name", "expected"),
    [("longest", "_FusedMatMul"), ("b", "_FusedMatMul"), ("_UnaryOpsComposition", "_UnaryOpsComposition")],
)
def test_the_longest_operation_is_one_that_a_script_can_make(name: str, expected: str) -> None:
    types = {"a": "_UnaryOpsComposition", "b": "_FusedMatMul", "c": "MatMul"}
    operations = [
        TracedOperation(type=one, node=node, on="Host", calls=1, seconds=1.0, share=0.3, inputs="")
        for node, one in types.items()
    ]
    assert chosen(operations, name).type == expected
