"""Make the pages of a trace and of a comparison: HTML files that load and run nothing.

Names of operations come from a stranger's program. They reach a page as escaped text only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tfdock.bench.comparison import BenchReport
from tfdock.cli import console
from tfdock.cli.pages.html_page import bar_row, render_page
from tfdock.trace.tracing import TraceReport

_ROWS = 30  #: The most rows of a table. The timeline shows all operations.
_HEIGHT = 34  #: Pixels of a row of the plot.
_LEAST = math.log(1.1)  #: The plot reaches at least from 10 % faster to 10 % slower.


def trace_page(report: TraceReport, lead: str) -> str:
    """Return the page of a report. `lead` is the line below its title. The same report always gives the same text."""
    facts = report.facts
    faults = [cause for cause in report.causes if cause.is_fault]
    parts = {**facts.parts, "runs Python inside a graph": facts.python_share}
    return render_page(
        "trace.html.j2",
        {
            "title": f"TensorFlow {report.script.tensorflow}" if report.script else report.profile,
            "verdict": {
                "status": "failed" if faults else "passed",
                "mark": "✗" if faults else "✓",
                "word": ", ".join(cause.cause for cause in faults) or "no known cause",
            },
            "lead": lead,
            "causes": report.causes,
            "step": [bar_row(name, f"{100 * share:.0f} %", 100 * share) for name, share in parts.items() if share],
            "operations": _bars(
                (f"{one.type}  {one.node or 'called by Python'} {one.inputs}".strip(), one.seconds, one.calls)
                for one in facts.operations
            ),
            "stages": _bars((one.stage, one.seconds, one.calls) for one in facts.stages),
            "kernels": _bars((f"{one.name} of {one.operation}", one.seconds, one.calls) for one in facts.kernels),
            "facts": [
                *((f"memory, {name}", f"{console.size(peak)} at its peak") for name, peak in facts.memory.items()),
                ("profile", report.profile),
                ("timeline", report.timeline),
            ],
            "notes": report.notes,
        },
    )


def _bars(rows: Iterable[tuple[str, float, int]]) -> list[dict[str, object]]:
    """Return the first rows, longest first: name, milliseconds and calls, and the share of the longest."""
    found = list(rows)[:_ROWS]
    longest = max((seconds for _, seconds, _ in found), default=0) or 1
    return [bar_row(name, f"{1000 * took:.1f} ms, {calls}×", 100 * (took / longest)) for name, took, calls in found]


def bench_page(report: BenchReport, cells: Sequence[Sequence[str]]) -> str:
    """Return the page: both sides, a plot of the ratios with their intervals, the table's `cells`, and the notes."""
    found, last = report.comparisons, report.suite
    reach = max(_LEAST, *(abs(math.log(end)) for one in found for end in (one.surely_low, one.surely_high)))
    word = "no difference found" if last.verdict == "none" else f"B is {last.verdict}"

    def place(ratio: float) -> float:
        """The position of a ratio, in percent from the left. The scale is logarithmic, with 1 in the middle."""
        return round(50 + 48 * math.log(ratio) / reach, 2)

    rows = [
        {
            "name": one.operation,
            "y": _HEIGHT * number,
            "low": place(one.surely_low),
            "width": round(place(one.surely_high) - place(one.surely_low), 2),
            "ratio": place(one.ratio),
            "kind": {"faster": "kind-3", "slower": "kind-1", "none": "kind-other"}[one.verdict],
            "title": f"{one.operation}: {one.ratio:.3f}, {one.surely_low:.3f} to {one.surely_high:.3f}",
        }
        for number, one in enumerate(found)
    ]
    return render_page(
        "bench.html.j2",
        {
            "title": "Is it faster?",
            "verdict": {"status": "failed" if last.verdict == "slower" else "passed", "mark": "≈", "word": word},
            "sides": [*zip("AB", (side.title for side in report.sides), strict=True)],
            "rows": rows,
            "height": _HEIGHT * len(rows),
            "ends": (f"{math.exp(-reach):.2f}", f"{math.exp(reach):.2f}"),
            "cells": cells,
            "notes": report.notes,
        },
    )
