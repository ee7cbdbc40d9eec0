"""The pages of a trace and of a comparison: they say what the command says, and a stranger's text stays text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tfdock.bench.comparison import BenchReport, PairFigure, TimedSide, compare
from tfdock.cli.pages.measured_pages import bench_page, trace_page
from tfdock.trace.trace_facts import facts_of
from tfdock.trace.tracing import FoundCause, TraceReport

from ..trace.tables import answers, node, step, timed
from .html_pages import Page

HOSTILE = "</code><script>x=1</script>\"'&amp;\u202e{{ 1 }}"
FACTS = facts_of(
    answers(
        [step(0, 0, 2000), node("dense/MatMul", "MatMul", 1600, 1900), node("relu", "Relu", 1900, 1990)],
        stages=[["Iterator::Root::Map", 20, 30.0]],
        steps=timed(2.0, infeed=1.5),
        peaks={"cpu": [1 << 20]},
    )
)
CAUSE = FoundCause(cause="slow-input", says="it waits", advice="use `cache()`", is_fault=True)
REPORT = TraceReport(profile="a.xplane.pb", timeline="t.json.gz", facts=FACTS, causes=(CAUSE,), notes=("a note",))


def test_the_page_of_a_trace_has_the_cause_first_and_a_bar_for_each_operation() -> None:
    page = Page(trace_page(REPORT, "1 step of 2.0 ms"))
    assert page.text("p", class_="verdict") == "✗ slow-input"
    assert page.text("article", class_="failed") == "it waits [slow-input] fix: use cache()"
    rows = [text for _, text in page.elements("span", class_="name")]
    assert [row for row in rows if "MatMul" in row or "Relu" in row] == [
        "MatMul dense/MatMul (float[8,8])0.3 ms, 1×",
        "Relu relu (float[8,8])0.1 ms, 1×",
    ]
    assert "waits for input75 %" in rows
    assert "1.0 MB at its peak" in page.text("main")


def test_a_strangers_text_is_no_part_of_a_page() -> None:
    hostile = replace(CAUSE, cause=HOSTILE, says=HOSTILE, advice=HOSTILE)
    operations = [replace(one, node=HOSTILE) for one in FACTS.operations]
    plain = replace(REPORT, causes=(replace(CAUSE, advice="a"),))
    report = replace(
        REPORT, causes=(hostile,), facts=replace(FACTS, operations=operations), notes=(HOSTILE,), profile=HOSTILE
    )
    assert Page(trace_page(report, HOSTILE)).tags == Page(trace_page(plain, "")).tags
    pages = [bench_page(timed_report(text), [[text] * 5] * 2) for text in (HOSTILE, "a")]
    assert Page(pages[0]).tags == Page(pages[1]).tags


def timed_report(text: str = "a", logarithms: Mapping[str, float] | None = None) -> BenchReport:
    """A comparison with a text in all of its places."""
    pair = {name: PairFigure(logarithm=one, seconds=(1.0, 1.0)) for name, one in (logarithms or {text: 0.1}).items()}
    *operations, suite = compare([pair] * 3)
    side = TimedSide(python=text, version="3.11", tensorflow=text, variables={text: text})
    return BenchReport(
        sides=(side, side), pairs=3, load=0.0, operations=tuple(operations), suite=suite, notes=(text,)
    )


def test_the_plot_of_a_comparison_is_logarithmic_around_equal() -> None:
    page = Page(bench_page(timed_report(logarithms={"faster": math.log(0.5), "slower": math.log(2)}), []))
    middles = [float(circle["cx"].rstrip("%")) for circle, _ in page.elements("circle")]
    assert middles == [2.0, 98.0, 50.0]
    assert [circle["class"] for circle, _ in page.elements("circle")] == ["kind-3", "kind-1", "kind-other"]
    assert page.text("p", class_="verdict").endswith("no difference found")
