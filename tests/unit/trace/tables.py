"""xprof's answers in its own shapes, as small as a test needs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


def event(name: str, begin: float, end: float, *, tid: int = 1, pid: int = 7, **args: str) -> Event:
    """An event of the timeline, in microseconds."""
    return {"ph": "X", "name": name, "ts": begin, "dur": end - begin, "pid": pid, "tid": tid, "args": args}


def step(number: int, begin: float, end: float, name: str = "tfdock_step") -> Event:
    return event(f"{name} {number}", begin, end, step_num=str(number), step_name=f"{name} {number}", group_id="0")


def node(name: str, kind: str, begin: float, end: float, shape: str = "(float[8,8])", **more: Any) -> Event:
    return event(kind, begin, end, long_name=f"{name}:{kind}", shape=shape, **more)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]] = (), **figures: str) -> dict[str, Any]:
    """A table as Google's charts take it."""
    return {
        "cols": [{"id": column} for column in columns],
        "rows": [{"c": [{"v": cell} for cell in row]} for row in rows],
        "p": figures,
    }


OPERATIONS = ("host_or_device", "type", "operation", "occurrences", "total_self_time")
STAGES = ("opName", "count", "selfTimeInMs")
KERNELS = (
    "kernel_name", "registers_per_thread", "shmem_bytes", "occupancy_pct", "is_kernel_using_tensor_core", "op_name",
    "occurrences", "total_duration_us",
)  # fmt: skip


def answers(
    events: Sequence[Event],
    *,
    operations: Sequence[Sequence[Any]] = (),
    stages: Sequence[Sequence[Any]] = (),
    kernels: Sequence[Sequence[Any]] = (),
    steps: Mapping[str, str] | None = None,
    peaks: Mapping[str, Sequence[int]] | None = None,
    device: int | None = None,
) -> dict[str, bytes]:
    """The answers of all tools. `steps` are xprof's figures, `device` is the process of a GPU in the timeline."""
    names = {7: "/host:CPU", **({device: "/device:GPU:0"} if device else {})}
    processes = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in names.items()
    ]
    allocators = {
        name: {"memoryProfileSnapshots": [{"aggregationStats": {"peakBytesInUse": str(peak)}} for peak in values]}
        for name, values in (peaks or {}).items()
    }
    documents = {
        "trace_viewer": {"traceEvents": [*processes, *events, {}]},
        "framework_op_stats": [table(OPERATIONS), table(OPERATIONS, operations)],
        "input_pipeline_analyzer": [table(()), table(()), table(STAGES, stages)],
        "overview_page": [table(()), table((), **(steps or {"steptime_ms_average": "0.0"}))],
        "kernel_stats": table(KERNELS, kernels),
        "memory_profile": {"memoryProfilePerAllocator": allocators},
    }
    return {name: json.dumps(document).encode() for name, document in documents.items()} | {"timeline": b"all of it"}


def timed(average: float, infeed: float = 0.0) -> dict[str, str]:
    """xprof's figures of steps, in milliseconds."""
    figures = {"average": average, "minimum": average / 2, "maximum": average * 2}
    return {f"steptime_ms_{name}": str(value) for name, value in figures.items()} | {
        "infeed_time_ms_avg": str(infeed)
    }
