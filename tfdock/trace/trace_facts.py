"""Compute the figures that show why a program is slow, from xprof's tables and the events of its trace. Pure.

xprof measures steps, the wait for input, GPU work and memory. xprof does not report tracing, compilation on a CPU,
float64, or operations that run one by one. The figures for these four are computed from the events. A share of time
is a number between 0 and 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from tfdock.host.foreign_json import Line, Malformed, matching, parse

#: The name of a step that `dockerfiles/trace/capture.py` marks.
_OWN_MARK = "tfdock_step"
_BUILDING = "tf.function-graph_building"
_EAGER, _FUNCTION, _STAGE = "EagerLocalExecute: ", "__inference", "Iterator::"
#: Parts of the names of events in which XLA compiles: 2.18 and 2.21 on a CPU, and on a GPU. 2.15 has none on a CPU.
_COMPILING = ("_XlaCompile", "CpuCompiler::", "GpuCompiler::", "JitCompiler::Compile", "RunBackend")
#: Types of operations that compute nothing: they pass values or wait.
_IDLE = frozenset({
    "_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv", "IteratorGetNext", "IteratorGetNextSync",
    "OptionalGetValue", "OptionalFromValue", "IteratorGetNextAsOptional", "PyFunc", "EagerPyFunc", "PyFuncStateless",
    "StatefulPartitionedCall", "PartitionedCall", "IDLE", "Dataset", "",
})  # fmt: skip
#: Operations that wait for the input pipeline, or for a queue of TensorFlow 1.x.
_WAITING = frozenset({
    "IteratorGetNext", "IteratorGetNextSync", "QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2",
})  # fmt: skip
#: Operations that run a cluster which XLA has compiled from a graph.
_CLUSTERS = ("_XlaLaunch", "_XlaRun", "XlaLaunch")
#: Operations, and stages of input, that run Python.
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "Generator")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOperation:
    """An operation: a node of a graph, or all eager calls of a type."""

    type: str  #: The operation's type, such as `MatMul`.
    node: str  #: The node's name; empty for eager calls.
    on: str  #: `Host` or `Device`.
    calls: int  #: How often it ran.
    seconds: float  #: Total time without the operations that it calls; for eager calls, with the cost in Python.
    share: float  #: The share in the time of all operations on the host or device.
    inputs: str  #: Types and shapes of the inputs, such as `(float[8,64];int32[2])`; empty if not known.


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKernel:
    """A kernel on a GPU."""

    name: str  #: The name that the driver uses.
    operation: str  #: The operation that launched it.
    calls: int  #: How often it ran.
    seconds: float  #: Total time.
    registers: int  #: Registers for each thread.
    shared_bytes: int  #: Shared memory for each block.
    occupancy: float  #: The share of a multiprocessor's warps that are in use.
    tensor_cores: bool  #: Whether the kernel uses tensor cores.


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStage:
    """A stage of the input pipeline."""

    stage: str  #: The stage's name, without the stages that it feeds: `ParallelMapV2`.
    calls: int  #: How often it ran.
    seconds: float  #: Total time without the stages that feed this stage on the same thread.


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """The facts of a trace. None: not known."""

    steps: int  #: Marked steps; 0 if the program marks no steps.
    step_seconds: float | None  #: The mean duration of a step.
    shortest_seconds: float | None  #: The duration of the shortest step.
    longest_seconds: float | None  #: The duration of the longest step.
    input_share: float | None  #: The part of a step that waits for input.
    input_stage: str  #: The slowest stage of the input pipeline; for a session, the operation that waits for input.
    python_input: bool  #: Whether a stage of the input pipeline runs Python.
    python_share: float  #: The part of the time in which a Python function runs inside a graph.
    operation_share: float | None  #: The part of the time in which at least one operation computes.
    compile_share: float | None  #: The part of the time in which XLA compiles.
    compilations: int  #: Steps in which XLA compiles; without steps, calls in which XLA compiles.
    clusters: int  #: Parts of a graph that XLA has compiled, and that ran.
    building_share: float  #: The part of the time in which graphs are traced.
    traced_calls: int  #: Calls of a `tf.function` that traced it again.
    traced_share: float  #: The share of these calls in all `tf.function` calls.
    traced_functions: str  #: The functions that were traced.
    double_share: float | None  #: The share of operations with float64 inputs in the time of graph operations.
    eager_calls: int  #: Operations that Python called one by one.
    eager_per_step: float  #: Eager calls per step; all eager calls in a program without steps.
    eager_share: float  #: The part of the time in which an eager operation runs.
    node_share: float  #: The share of the longest node in the time of graph operations.
    node: str  #: The longest node, with its type.
    operations: Sequence[TracedOperation]  #: All operations, longest first.
    stages: Sequence[InputStage]  #: The stages of the input pipeline, longest first.
    kernels: Sequence[TracedKernel]  #: Kernels of a GPU, longest first.
    memory: Mapping[str, int]  #: Allocator -> the most bytes that were in use.
    has_shapes: bool  #: Whether graph operations list their inputs; also true without graph operations.

    @property
    def parts(self) -> dict[str, float]:
        """What a step does -> the part of its time; 0 if not known."""
        return {
            "waits for input": self.input_share or 0.0,
            "computes": self.operation_share or 0.0,
            "compiles": self.compile_share or 0.0,
            "traces functions": self.building_share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    name: Line = ""
    ph: Line = ""
    ts: float = 0.0  # microseconds, as `dur` is
    dur: float = 0.0
    pid: int = 0
    tid: int = 0
    args: Mapping[str, Any] | None = None

    def has(self, name: str) -> bool:
        return name in (self.args or {})

    def arg(self, name: str) -> str:
        return str((self.args or {}).get(name, ""))

    @property
    def end(self) -> float:
        return self.ts + self.dur

    @property
    def node(self) -> str:
        return self.arg("long_name").rpartition(":")[0]

    @property
    def type(self) -> str:
        """The type of a graph's operation, or of an eager call; empty for all other events."""
        if self.name.startswith(_STAGE):
            return ""
        kind = self.name.removeprefix(_EAGER) if self.eager else self.arg("long_name").rpartition(":")[2]
        return "" if kind.startswith(_FUNCTION) else kind

    @property
    def is_xla(self) -> bool:
        """Whether the event is the call of a function that XLA has compiled, or compiles during the call."""
        return self.arg("long_name").rpartition(":")[2].startswith(_FUNCTION)

    @property
    def eager(self) -> bool:
        return self.name.startswith(_EAGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    traceEvents: list[_Event]  # noqa: N815 - the format's


def facts_of(tables: Mapping[str, bytes]) -> TraceFacts:
    """Return the facts in xprof's answers. `tables` maps the name of a tool to its answer. Raises Malformed."""
    events, processes = _events(tables["trace_viewer"])
    marks = _marks(events)
    begin, end = _window(events, marks)
    events = [event for event in events if begin <= event.ts and event.end <= end]
    whole = max(end - begin, 1e-9)
    devices = {pid for pid, name in processes.items() if name.startswith("/device:")}
    graph = [event for event in events if event.type and not event.eager]
    eager = [event for event in events if event.type and event.eager]
    computing = [event for event in (*graph, *eager) if event.type not in _IDLE]
    computing += [event for event in events if event.pid in devices or event.has("hlo_op") or event.is_xla]
    calls = [event for event in events if event.has("tf_function_call")]
    traced = [event for event in calls if event.arg("tf_function_call").startswith("traced")]
    compiling = [event for event in events if any(part in event.name for part in _COMPILING)]
    # 2.15 does not report XLA compilation on a CPU: it is part of the call's time.
    blind = any(event.arg("tf_function_call").endswith("-xla") for event in calls) and not (
        compiling or devices or any(event.has("hlo_op") for event in events)
    )
    steps, operations = _steps(tables.get("overview_page"), marks), _operations(tables, graph, eager)
    stages = list(_stages(tables.get("input_pipeline_analyzer")))
    node = next((one for one in operations if one.node), None)
    waiting = next((event.type for event in graph if event.type in _WAITING), "")
    return TraceFacts(
        steps=len(marks),
        step_seconds=steps.get("steptime_ms_average"),
        shortest_seconds=steps.get("steptime_ms_minimum"),
        longest_seconds=steps.get("steptime_ms_maximum"),
        input_share=_input_share(steps, events, graph, whole),
        input_stage=stages[0].stage if stages else waiting,
        python_input=any(name in stage.stage for stage in stages for name in _PYTHON)
        or (bool(stages) and any(event.type in _PYTHON for event in graph)),
        python_share=_covered(event for event in graph if event.type in _PYTHON) / whole,
        operation_share=_covered(computing) / whole if events else None,
        compile_share=None if blind else _covered(compiling) / whole,
        compilations=_steps_with(compiling, marks),
        clusters=len({event.node for event in graph if event.type in _CLUSTERS}),
        building_share=_covered(event for event in events if event.name == _BUILDING) / whole,
        traced_calls=len(traced),
        traced_share=len(traced) / max(len(calls), 1),
        traced_functions=", ".join(name for name, _ in Counter(event.name for event in traced).most_common(3)),
        double_share=_double_share(graph),
        eager_calls=len(eager),
        eager_per_step=len(eager) / max(len(marks), 1),
        eager_share=_covered(eager) / whole,
        node_share=node.share if node else 0.0,
        node=f"{node.node} ({node.type})" if node else "",
        operations=operations,
        stages=stages,
        kernels=list(_kernels(tables.get("kernel_stats"))),
        memory=_memory(tables.get("memory_profile")),
        has_shapes=not graph or any(event.has("shape") for event in graph),
    )


# --- events ---------------------------------------------------------------------------------------------------------


def _events(data: bytes) -> tuple[list[_Event], dict[int, str]]:
    """Return the events with a duration, and the processes' names."""
    found: list[_Event] = parse(_Trace, data).traceEvents
    processes = {event.pid: event.arg("name") for event in found if event.name == "process_name"}
    return [event for event in found if event.ph == "X"], processes


def _marks(events: Sequence[_Event]) -> list[_Event]:
    """Return the marked steps: the script's own marks if there are any, else those of `capture.py`."""
    marks = [event for event in events if event.arg("step_num") and event.arg("step_name")]
    own = [event for event in marks if not event.name.startswith(_OWN_MARK)]
    return own or marks


def _window(events: Sequence[_Event], marks: Sequence[_Event]) -> tuple[float, float]:
    """Return the time from the first step to the last; without steps, from the first operation to the last."""
    # Time after the last step belongs to the program's end, and would count as Python's time.
    inside = marks or [event for event in events if event.type] or events
    return (min(event.ts for event in inside), max(event.end for event in inside)) if inside else (0.0, 0.0)


def _covered(events: Iterable[_Event]) -> float:
    """Return the microseconds in which at least one of the events is running."""
    total = until = 0.0
    for begin, end in sorted((event.ts, event.end) for event in events):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _steps_with(events: Sequence[_Event], marks: Sequence[_Event]) -> int:
    if not marks:
        return len(events)
    return sum(any(mark.ts <= event.ts < mark.end for event in events) for mark in marks)


def _double_share(graph: Sequence[_Event]) -> float | None:
    known = [event for event in graph if event.arg("shape") and event.type not in _IDLE]
    total = sum(event.dur for event in known)
    return sum(event.dur for event in known if "double" in event.arg("shape")) / total if total else None


# --- xprof's tables -------------------------------------------------------------------------------------------------


_Row = TypedDict("_Row", {"c": list[Mapping[str, Any]]})
_Column = TypedDict("_Column", {"id": Line})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    cols: list[_Column] | None = None
    rows: list[_Row] | None = None
    p: Mapping[str, Any] | None = None

    def named(self) -> Iterator[dict[str, Any]]:
        """Yield each row's cells by the names of their columns."""
        names = [column["id"] for column in self.cols or ()]
        for row in self.rows or ():
            yield dict(zip(names, (cell.get("v") for cell in row["c"]), strict=False))


def _table(data: bytes | None, place: int) -> _Table:
    """Return one of a tool's tables; an empty table if the tool did not return it."""
    if data is None:
        return _Table()
    found: list[_Table] = parse(list[_Table], data)
    return found[place] if place < len(found) else _Table()


def _number(row: Mapping[str, Any], name: str) -> float:
    try:
        return float(row.get(name) or 0)
    except (TypeError, ValueError):
        raise Malformed("not a number", name) from None


def _steps(data: bytes | None, marks: Sequence[_Event]) -> dict[str, float]:
    """Return the figures of steps in seconds; empty if xprof saw no step. Without xprof, use the marks of steps."""
    if data is None and marks:
        seconds = [mark.dur / 1e6 for mark in marks]
        figures = {"average": sum(seconds) / len(seconds), "minimum": min(seconds), "maximum": max(seconds)}
        return {f"steptime_ms_{name}": value for name, value in figures.items()}
    found = _table(data, 1).p or {}
    figures = {
        name: _number(found, name) / 1000 for name, value in found.items() if "time_ms" in name and _is_number(value)
    }
    return figures if figures.get("steptime_ms_average") else {}


def _is_number(value: object) -> bool:
    return str(value).replace(".", "", 1).isdigit()


def _input_share(
    steps: Mapping[str, float], events: Sequence[_Event], graph: Sequence[_Event], whole: float
) -> float | None:
    if "infeed_time_ms_avg" in steps:
        return steps["infeed_time_ms_avg"] / steps["steptime_ms_average"]
    if any(event.name.startswith(_STAGE) for event in events):
        return None
    # Without events of an input pipeline, only the operations that wait for input show the wait.
    return _covered(event for event in graph if event.type in _WAITING) / whole


#: Where an operation runs, its type, and its node; empty for an eager call.
_Key = tuple[str, str, str]


def _operations(
    tables: Mapping[str, bytes], graph: Sequence[_Event], eager: Sequence[_Event]
) -> list[TracedOperation]:
    """Return the operations, longest first: the host's from the events, a GPU's from xprof's table."""
    measured: dict[_Key, list[float]] = {}
    for event, seconds in _self_times([*graph, *eager]):
        if event.type not in _IDLE:
            measured.setdefault(("Host", event.type, event.node), []).append(seconds)
    # xprof counts some host operations twice: oneDNN's matrix products have one event a step, but two calls.
    counted = {key: (len(found), sum(found)) for key, found in measured.items()}
    counted.update(_device_rows(tables.get("framework_op_stats")))
    whole = {on: sum(counted[key][1] for key in counted if key[0] == on) or 1.0 for on, *_ in counted}
    inputs = {event.node: event.arg("shape") for event in graph if event.arg("shape")}
    found = [
        TracedOperation(
            type=kind,
            node=node,
            on=on,
            calls=calls,
            seconds=spent,
            share=spent / whole[on],
            inputs=inputs.get(node, ""),
        )
        for (on, kind, node), (calls, spent) in counted.items()
    ]
    # The operations of a GPU come first: the host waits for them.
    return sorted(found, key=lambda one: (one.on == "Host", -one.seconds))


def _self_times(events: Sequence[_Event]) -> Iterator[tuple[_Event, float]]:
    """Yield each event with its seconds, without the seconds of the events that it encloses on its thread."""
    ordered = sorted(events, key=lambda one: (one.pid, one.tid, one.ts, -one.dur))
    own, around = [event.dur for event in ordered], list[int]()
    for place, event in enumerate(ordered):
        while around and not _encloses(ordered[around[-1]], event):
            around.pop()
        if around:
            own[around[-1]] -= event.dur
        around.append(place)
    for event, microseconds in zip(ordered, own, strict=True):
        yield event, max(microseconds, 0.0) / 1e6


def _encloses(outer: _Event, inner: _Event) -> bool:
    return (outer.pid, outer.tid) == (inner.pid, inner.tid) and inner.ts < outer.end


def _device_rows(data: bytes | None) -> Iterator[tuple[_Key, tuple[int, float]]]:
    for row in _table(data, 1).named():
        if row.get("host_or_device") == "Device" and row.get("type") not in _IDLE:
            key = ("Device", str(row["type"]), str(row.get("operation", "")))
            yield key, (int(_number(row, "occurrences")), _number(row, "total_self_time") / 1e6)


def _stages(data: bytes | None) -> Iterator[InputStage]:
    calls, seconds = Counter[str](), dict[str, float]()
    for row in _table(data, 2).named():
        stage = str(row.get("opName", ""))
        if stage.startswith(_STAGE):
            # Each round of a `repeat` and each part of an `interleave` has a row: `Repeat[52]::TensorSlice`.
            name = re.sub(r"\[\d+\]", "", stage.removeprefix(_STAGE).removeprefix("Root::"))
            calls[name] += int(_number(row, "count"))
            seconds[name] = seconds.get(name, 0.0) + _number(row, "selfTimeInMs") / 1000
    for name in sorted(calls, key=lambda name: -seconds[name]):
        yield InputStage(stage=name, calls=calls[name], seconds=seconds[name])


def _kernels(data: bytes | None) -> Iterator[TracedKernel]:
    table = parse(_Table, data) if data is not None else _Table()
    for row in sorted(table.named(), key=lambda row: -_number(row, "total_duration_us")):
        yield TracedKernel(
            name=str(row["kernel_name"]),
            operation=str(row["op_name"]),
            calls=int(_number(row, "occurrences")),
            seconds=_number(row, "total_duration_us") / 1e6,
            registers=int(_number(row, "registers_per_thread")),
            shared_bytes=int(_number(row, "shmem_bytes")),
            occupancy=_number(row, "occupancy_pct") / 100,
            tensor_cores=bool(row["is_kernel_using_tensor_core"]),
        )


_Usage = TypedDict("_Usage", {"peakBytesInUse": Annotated[str, matching(r"\d{1,18}")]})
_Snapshot = TypedDict("_Snapshot", {"aggregationStats": _Usage})
_Allocator = TypedDict("_Allocator", {"memoryProfileSnapshots": list[_Snapshot]})
_Memory = TypedDict("_Memory", {"memoryProfilePerAllocator": Mapping[str, _Allocator]})


def _memory(data: bytes | None) -> dict[str, int]:
    if data is None:
        return {}
    found: _Memory = parse(_Memory, data)
    peaks = {
        name: [snapshot["aggregationStats"]["peakBytesInUse"] for snapshot in allocator["memoryProfileSnapshots"]]
        for name, allocator in found["memoryProfilePerAllocator"].items()
    }
    return {name: max(map(int, values)) for name, values in peaks.items() if values}
