"""The `bench` command: whether one installed TensorFlow is faster than another."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from tfdock.bench.comparison import SUITE, BenchReport, Comparison, TimedSide, compare
from tfdock.bench.pairs import COMMON, PAIRS, Timing, TimingPlace, on_this_machine
from tfdock.bench.published_scores import PACKAGE, PublishedScores, check_packages, score_rows
from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, installed_wheels, is_wheel, knowledge_for, print_result, stoppable
from tfdock.errors import ProfileError, VerificationFailed, as_document
from tfdock.host.files import read_text, write_text
from tfdock.host.foreign_json import Malformed, matching, parse
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.installed.interpreter import ending
from tfdock.installed.packages import tensorflow_python
from tfdock.knowledge import loader
from tfdock.knowledge.switch_rows import Switch, doubts, variables
from tfdock.knowledge.wheel_rows import BenchOperation
from tfdock.trace.script_places import PythonPlace
from tfdock.types import Version
from tfdock.verify.trial import MarkedLines

_UNSURE = 0.05  #: If a run cannot exclude a difference of this size, its result is reported as inconclusive.
_KEPT = "the measured times are lost"
_MOST_SCORES = 1 << 20
_STDERR = 2
_BUSY = 1.5  #: Above this load, a note is printed. Load: processes that want a core, per core of the machine.


def _page_file(output: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before minutes of measuring."""
    if output and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise typer.BadParameter(
            f"{output} is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        )
    return output


@app.command(
    epilog="Examples: `tfdock bench old --vs new`; `tfdock bench old.whl --vs new.whl`; `tfdock bench .venv --switch "
    "TF_ENABLE_ONEDNN_OPTS=0`; `tfdock bench .venv` shows the smallest difference that this machine can measure; "
    "`tfdock bench .venv --suite start`; `tfdock bench --table here.json --table there.json`. Exit status: 0 "
    "measured, whichever side is faster; 2 no Python with a TensorFlow; 4 TensorFlow exited during the measurement; "
    "6 no engine for wheels."
)
@command("tfdock.bench/1", "knowledge")
def bench(
    settings: Settings,
    python: Annotated[
        str | None,
        typer.Argument(
            help="The Python with the first TensorFlow, the folder of its environment, or a wheel (runs in a "
            "container).",
            metavar="[PYTHON|WHEEL]",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--vs",
            help="The Python or wheel with the second TensorFlow. The default is the first Python or wheel again.",
            metavar="PYTHON|WHEEL",
        ),
    ] = None,
    switches: Annotated[
        list[str] | None,
        typer.Option(
            "--switch",
            help="Set this variable, XLA flag or preset on the second side only. Repeatable. `tfdock explain` lists "
            "them.",
            metavar="NAME=VALUE|PRESET",
        ),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            help="What to time: `operations`, `models`, `dispatch`, `start` (import, first calls) or `xla`. "
            "`ai-benchmark` runs the package of this name instead, which can take hours."
        ),
    ] = "operations",
    pairs: Annotated[
        int,
        typer.Option(
            "--pairs", help="How many pairs of processes to run. More pairs find smaller differences.", min=4, max=100
        ),
    ] = PAIRS,
    tables: Annotated[
        list[Path] | None,
        typer.Option(
            "--table",
            help="Measure nothing. Print this result of `--json` in one table with other results. Repeatable.",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Also write a page with a plot: one HTML file.",
            metavar="FILE",
            callback=_page_file,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print how certain the answer is.

    Two processes take turns on one core and time small programs. Each pair uses new processes. No GPU is used. The
    CPU times of the fastest calls are compared, so other programs on the machine have little influence.
    """
    if tables and not (python or against or switches or output or as_json):
        console.say(*_results(tables, console.Style(sys.stdout)), stream=sys.stdout)
        return
    if tables or python is None:
        raise typer.BadParameter("name a Python to measure, or give only results, with `--table`")
    if suite == PACKAGE:
        _publish(python, alone=not (against or switches or output), as_json=as_json)
        return
    knowledge = knowledge_for(settings)
    given = _variables(switches or [], knowledge.switches)
    operations = _operations(suite, knowledge.bench_operations)
    load = os.getloadavg()[0]
    against = python if against is None else against
    with _timed(settings, python, against, given) as (sides, place, notes):
        timing = Timing(
            sides=sides,
            operations=operations,
            programs=loader.templates(),
            finished=lambda done: console.tell(f"pair {done} of {pairs}") if done % 2 == 0 or done == pairs else None,
        )
        console.tell(f"{pairs} pairs of processes, about {pairs * 8 // 60 + 1} min")
        timing.run(pairs, place)
    notes += [*_busy(load), *doubts(given, knowledge.switches, str(Version(timing.sides[1].tensorflow).minor))]
    *compared, together = compare(timing.figures)
    report = BenchReport(
        sides=timing.sides,
        pairs=len(timing.figures),
        load=round(load, 2),
        operations=tuple(compared),
        suite=together,
        notes=tuple(notes),
    )
    if output:
        from tfdock.cli.pages.measured_pages import bench_page  # here: it loads jinja2

        cells = [(one.operation, *_cells(one)) for one in report.comparisons]
        write_text(output, bench_page(report, cells), follow=True)
        console.tell(f"wrote {output}")
    lines = _lines(report, console.Style(sys.stdout))
    print_result("tfdock.bench/1", as_document(report), lines, as_json=as_json)
    if not as_json:
        console.result(*(f"note: {note}" for note in notes))


def _operations(suite: str, rows: Sequence[BenchOperation]) -> list[BenchOperation]:
    found = [row for row in rows if row.suite == suite]
    if not found:
        suites = dict.fromkeys(f"`{row.suite}`" for row in rows)
        raise typer.BadParameter(f"there is no suite `{suite}`; the suites are {', '.join(suites)}, `{PACKAGE}`")
    return found


def _publish(name: str, *, alone: bool, as_json: bool) -> None:
    """Run ai-benchmark with a Python, and print its scores."""
    if not alone or is_wheel(name):
        message = f"`--suite {PACKAGE}` takes one Python and nothing else; `--table` compares results of `--json`"
        raise typer.BadParameter(message)
    python, _ = tensorflow_python(name)
    check_packages(python)
    place = PythonPlace(python=python.program, stoppable=partial(stoppable, kept=_KEPT), stdout=_STDERR)
    with tempfile.TemporaryDirectory(prefix="tfdock-bench-") as folder:
        status = place.run([], loader.templates()["bench/ai_benchmark.py"], {}, Path(folder))
        found: PublishedScores | None = UntrustedPath(Path(folder), "scores.json").load(PublishedScores, _MOST_SCORES)
    if status or found is None:
        message = f"{PACKAGE} with {python.program} wrote no scores: it ended with {ending(status)}"
        raise VerificationFailed.of("tensorflow-trial", message, "the last lines of its output, above, say why")
    found = replace(found, python=str(python.program))
    print_result("tfdock.bench/1", as_document(found), _score_lines({found.python: found}), as_json=as_json)


def _score_lines(results: Mapping[str, PublishedScores]) -> Iterator[str]:
    for name, found in results.items():
        yield console.clean(f"{name}  tensorflow {found.tensorflow}")
    yield from console.table([tuple(map(console.clean, row)) for row in score_rows(results)])
    yield f"times as {PACKAGE} publishes them: whole milliseconds, one process, all threads"


def _variables(asked: Sequence[str], known: Mapping[str, Switch]) -> dict[str, str]:
    try:
        found = variables(asked, known)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for name in found.keys() & COMMON.keys():
        raise typer.BadParameter(f"`{name}` cannot be set: both sides need the value {COMMON[name]}")
    return found


_Sides = tuple[TimedSide, TimedSide]


@contextmanager
def _timed(
    settings: Settings, first: str, second: str, given: dict[str, str]
) -> Iterator[tuple[_Sides, TimingPlace, list[str]]]:
    """Yield both sides, where they run, and what limits the answer."""
    if is_wheel(first) != is_wheel(second):
        raise typer.BadParameter("compare a wheel with a wheel, or a Python with a Python")
    if not is_wheel(first):
        with stoppable(kept=_KEPT) as stop:
            sides, notes = _pythons(first, second, given)
            pythons = Path(sides[0].python), Path(sides[1].python)
            yield sides, on_this_machine(pythons, stop.check), notes
        return
    with installed_wheels(settings, [first, second], "bench", _KEPT, with_gpu=False) as wheels:
        one, other = wheels[0], wheels[-1]

        def run(program: str, request: str, marked: MarkedLines) -> None:
            mounts = [wheel.installed for wheel in wheels[1:]]
            one.run([str(one.python), "-c", program, request], mounts=mounts, variables=COMMON, tap=marked)

        baseline = TimedSide(python=first, version=one.python_version)
        compared = TimedSide(python=second, version=other.python_version, variables=given)
        yield (baseline, compared), TimingPlace(run=run, variables=COMMON, pythons=(one.python, other.python)), []


def _pythons(first: str, second: str, given: dict[str, str]) -> tuple[_Sides, list[str]]:
    """Return two Pythons of this machine, and what limits their comparison."""
    asked = one, one_folder = tensorflow_python(first)
    other, other_folder = tensorflow_python(second) if second != first else asked
    notes = []
    if one.minor != other.minor:
        notes.append(f"the Pythons differ, {one.minor} and {other.minor}: this affects the times of Python calls")
    if one.program != other.program and one_folder == other_folder:
        notes.append(f"both Pythons import the TensorFlow in {one_folder}: see PYTHONPATH")
    baseline = TimedSide(python=str(one.program), version=one.version)
    return (baseline, TimedSide(python=str(other.program), version=other.version, variables=given)), notes


def _busy(load: float) -> Iterator[str]:
    """Yield a note if other programs limit the answer."""
    if load > _BUSY * (os.cpu_count() or 1):
        yield f"the machine was busy before ({load:.1f} processes wanted a core): other programs widen the intervals"


def _lines(report: BenchReport, style: console.Style) -> Iterator[str]:
    for letter, side in zip("AB", report.sides, strict=True):
        yield f"{style.strong(letter)}  {console.clean(side.title)}"
    rows = [(one.operation, *_coloured(one, style)) for one in report.comparisons]
    yield from console.table([tuple(map(style.strong, ("", "A", "B / A", "between", ""))), *rows])
    yield f"one thread, CPU time, {report.pairs} pairs; `between` is the 95 % interval for all operations together,"
    yield "and in the last line for their mean alone"


def _coloured(one: Comparison, style: console.Style) -> tuple[str, ...]:
    *figures, verdict = _cells(one)
    if one.verdict != "none":
        verdict = (style.good if one.verdict == "faster" else style.bad)(verdict)
    return *figures, verdict


def _cells(one: Comparison) -> tuple[str, ...]:
    return (
        "" if one.operation == SUITE else f"{1000 * one.seconds[0]:.2f} ms",
        f"{one.ratio:.3f}",
        f"{one.surely_low:.3f} to {one.surely_high:.3f}",
        _verdict(one),
    )


_Schema = Annotated[str, matching("tfdock.bench/1")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result(BenchReport):
    """The report of a run with `--json`, perhaps on another machine."""

    schema: _Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores(PublishedScores):
    """The scores of a run with `--json`."""

    schema: _Schema


def _results(files: Sequence[Path], style: console.Style) -> Iterator[str]:
    """Yield the lines of one table: each operation with the figures of all files below each other.

    Scores get a table of their own.
    """
    read = {console.clean(str(file)): _result(file) for file in files}
    if scores := {name: one for name, one in read.items() if isinstance(one, PublishedScores)}:
        yield from _score_lines(scores)
    results = {name: one for name, one in read.items() if isinstance(one, BenchReport)}
    if not results:
        return
    found: dict[str, list[tuple[str, ...]]] = {}
    for name, result in results.items():
        yield f"{style.strong(name)}  {result.pairs} pairs, load {result.load:.1f}"
        for letter, side in zip("AB", result.sides, strict=True):
            yield console.clean(f"  {letter}  tensorflow {side.tensorflow} {shlex.join(side.given)}".rstrip())
        for one in result.operations:
            found.setdefault(one.operation, []).append((name, *_coloured(one, style)))
    found[SUITE] = [(name, *_coloured(result.suite, style)) for name, result in results.items()]
    rows = [
        ("" if place else console.clean(operation), *row)
        for operation, rows in found.items()
        for place, row in enumerate(rows)
    ]
    yield from console.table([tuple(map(style.strong, ("", "", "A", "B / A", "between", ""))), *rows])


def _result(file: Path) -> _Result | _Scores:
    text = read_text(file)
    with suppress(Malformed):
        return cast("_Scores", parse(_Scores, text))
    try:
        found: _Result = parse(_Result, text)
    except Malformed as error:
        message, fix = f"not a `tfdock bench --json` result: {error}", "write one: `tfdock bench .venv --json > FILE`"
        raise ProfileError.of("file-unreadable", message, fix, file=str(file)) from error
    return found


def _verdict(one: Comparison) -> str:
    if one.verdict != "none":
        return f"B is {one.verdict}"
    if one.excluded > _UNSURE:
        ends = (
            f"{100 * abs(end - 1):.0f} % {'faster' if end < 1 else 'slower'}"
            for end in (one.surely_low, one.surely_high)
        )
        return f"undecided: {' to '.join(ends)}"
    if not one.surely_low <= 1 <= one.surely_high:
        return f"B is {'faster' if one.ratio < 1 else 'slower'}, by less than 2 %"
    return f"equal within {100 * one.excluded:.1f} %"
