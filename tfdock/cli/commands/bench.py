"""The `bench` command: whether one installed TensorFlow is faster than another."""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tfdock.bench.comparison import SUITE, Comparison, compare
from tfdock.bench.pairs import COMMON, PAIRS, Side, Timing
from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, knowledge_for, print_json, stoppable
from tfdock.errors import ProfileError
from tfdock.host.files import read_text, write_text
from tfdock.host.foreign_json import Malformed, matching, parse
from tfdock.host.settings import Settings
from tfdock.installed.interpreter import AskedPython
from tfdock.installed.packages import tensorflow_python
from tfdock.knowledge import loader
from tfdock.knowledge.switch_rows import Switch, doubts, variables
from tfdock.types import Version

_UNSURE = 0.05  #: If a run cannot exclude a difference of this size, its result is reported as inconclusive.
_BUSY = 1.5  #: Processes that want a core, divided by the number of cores.


def _page_file(output: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before minutes of measuring."""
    if output and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise typer.BadParameter(
            f"{output} is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        )
    return output


@app.command(
    epilog="Examples: `tfdock bench old --vs new`; `tfdock bench .venv --switch TF_ENABLE_ONEDNN_OPTS=0`; "
    "`tfdock bench .venv` shows the smallest difference that this machine can measure; `tfdock bench .venv --suite "
    "start`; `tfdock bench --table here.json --table there.json`. Exit status: 0 measured, whichever is faster; 2 no "
    "Python with a TensorFlow; 4 TensorFlow exited during the measurement."
)
@command("tfdock.bench/1", "knowledge")
def bench(
    settings: Settings,
    python: Annotated[
        str | None,
        typer.Argument(
            help="The Python with the first TensorFlow, or the folder of its environment.", metavar="[PYTHON]"
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--vs",
            help="The Python with the second TensorFlow. The default is the first one again.",
            metavar="PYTHON",
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
            help="What to time: `operations`, `models`, `dispatch`, `start` (import, first calls) or `xla`."
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
            help="Measure nothing: print this result of `--json` in one table with the other ones. Repeatable.",
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

    Two processes time small programs on one core, in turns. Each pair of processes is started new. No GPU is used.
    The CPU times of the quickest calls are compared, so that other programs disturb little.
    """
    if tables and not (python or against or switches or as_json):
        for line in _results(tables, console.Style(sys.stdout)):
            console.say(line, stream=sys.stdout)
        return
    if tables or python is None:
        raise typer.BadParameter("name a Python to measure, or only results with `--table`")
    knowledge = knowledge_for(settings)
    given = _variables(switches or [], knowledge.switches)
    operations = [row for row in knowledge.bench_operations if row.suite == suite]
    if not operations:
        suites = dict.fromkeys(f"`{row.suite}`" for row in knowledge.bench_operations)
        raise typer.BadParameter(f"no suite `{suite}`; there are {', '.join(suites)}")
    asked = first, first_folder = tensorflow_python(python)
    second, second_folder = tensorflow_python(against) if against is not None else asked
    load = os.getloadavg()[0]
    timing = Timing(
        sides=(Side(python=first.program), Side(python=second.program, variables=given)),
        operations=operations,
        worker=loader.templates()["bench/worker.py"],
        finished=lambda count: console.tell(f"pair {count} of {pairs}") if count % 2 == 0 or count == pairs else None,
    )
    console.tell(f"{pairs} pairs of processes, about {pairs * 8 // 60 + 1} min")
    with stoppable(kept="its figures are lost") as stop:
        timing.check = stop.check
        timing.run(pairs)
    found = list(compare(timing.figures))
    notes = [*_notes(first, second, load), *doubts(given, knowledge.switches, str(Version(timing.versions[1]).minor))]
    if first.program != second.program and first_folder == second_folder:
        notes.append(f"both Pythons import the TensorFlow in {first_folder}: see PYTHONPATH")
    if output:
        _write_page(output, timing, found, notes)
    if as_json:
        print_json("tfdock.bench/1", True, _document(timing, (first, second), found, load, notes))
        return
    for line in _lines(timing, found):
        console.say(line, stream=sys.stdout)
    for note in notes:
        console.result(f"note: {note}")


def _write_page(output: Path, timing: Timing, found: Sequence[Comparison], notes: Sequence[str]) -> None:
    from tfdock.cli.pages.measured_pages import bench_page  # here: it loads jinja2

    sides = zip(timing.versions, timing.sides, strict=True)
    cells = [(one.operation, *_cells(one, console.Style(io.StringIO()))) for one in found]
    page = bench_page([f"tensorflow {version}, {side.name}" for version, side in sides], found, cells, notes)
    write_text(output, page, follow=True)
    console.tell(f"wrote {output}")


def _variables(asked: Sequence[str], known: Mapping[str, Switch]) -> dict[str, str]:
    try:
        found = variables(asked, known)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for name in found.keys() & COMMON.keys():
        raise typer.BadParameter(f"`{name}` is {COMMON[name]} on both sides")
    return found


def _notes(first: AskedPython, second: AskedPython, load: float) -> Iterator[str]:
    """Yield what limits the answer."""
    if first.minor != second.minor:
        yield f"the Pythons differ, {first.minor} and {second.minor}: calls from Python show this too"
    if load > _BUSY * len(os.sched_getaffinity(0)):
        yield f"the machine was busy before ({load:.1f} processes wanted a core): other programs widen the intervals"


def _document(
    timing: Timing,
    pythons: tuple[AskedPython, AskedPython],
    found: Sequence[Comparison],
    load: float,
    notes: Sequence[str],
) -> dict[str, Any]:
    sides = zip(timing.sides, pythons, timing.versions, strict=True)
    return {
        "sides": [
            {
                "python": str(side.python),
                "version": python.version,
                "tensorflow": tensorflow,
                "variables": side.variables,
            }
            for side, python, tensorflow in sides
        ],
        "pairs": len(timing.figures),
        "load": round(load, 2),
        "operations": [one for one in found if one.operation != SUITE],
        "suite": found[-1],
        "notes": notes,
    }


def _lines(timing: Timing, found: Sequence[Comparison]) -> Iterator[str]:
    style = console.Style(sys.stdout)
    for letter, side, version in zip("AB", timing.sides, timing.versions, strict=True):
        yield f"{style.strong(letter)}  tensorflow {console.clean(version)}, {console.clean(side.name)}"
    rows = [(one.operation, *_cells(one, style)) for one in found]
    yield from console.table([tuple(map(style.strong, ("", "A", "B / A", "between", ""))), *rows])
    yield f"one thread, CPU time, {len(timing.figures)} pairs; `between` holds with 95 % for all operations at once,"
    yield "and in the last line for the mean alone"


def _cells(one: Comparison, style: console.Style) -> tuple[str, str, str, str]:
    return (
        "" if one.operation == SUITE else f"{1000 * one.seconds[0]:.2f} ms",
        f"{one.ratio:.3f}",
        f"{one.surely_low:.3f} to {one.surely_high:.3f}",
        _verdict(one, style),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedSide:
    tensorflow: str
    variables: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What a run with `--json` found, perhaps on another machine."""

    schema: Annotated[str, matching("tfdock.bench/1")]
    sides: tuple[_TimedSide, _TimedSide]
    pairs: int
    load: float
    operations: list[Comparison]
    suite: Comparison


def _results(files: Sequence[Path], style: console.Style) -> Iterator[str]:
    """Yield the lines of one table: each operation with the figures of all files below each other."""
    results = {console.clean(str(file)): _result(file) for file in files}
    found: dict[str, list[tuple[str, ...]]] = {}
    for name, result in results.items():
        yield f"{style.strong(name)}  {result.pairs} pairs, load {result.load:.1f}"
        for letter, side in zip("AB", result.sides, strict=True):
            given = [f"{name}={value}" for name, value in side.variables.items()]
            yield console.clean(f"  {letter}  tensorflow {side.tensorflow} {shlex.join(given)}".rstrip())
        for one in result.operations:
            found.setdefault(one.operation, []).append((name, *_cells(one, style)))
    found[SUITE] = [(name, *_cells(result.suite, style)) for name, result in results.items()]
    rows = [
        ("" if place else console.clean(operation), *row)
        for operation, rows in found.items()
        for place, row in enumerate(rows)
    ]
    yield from console.table([tuple(map(style.strong, ("", "", "A", "B / A", "between", ""))), *rows])


def _result(file: Path) -> _Result:
    try:
        found: _Result = parse(_Result, read_text(file))
    except Malformed as error:
        message, fix = f"no result of `tfdock bench --json`: {error}", "write one: `tfdock bench .venv --json > FILE`"
        raise ProfileError.of("file-unreadable", message, fix, file=str(file)) from error
    return found


def _verdict(one: Comparison, style: console.Style) -> str:
    if one.verdict != "none":
        return (style.good if one.verdict == "faster" else style.bad)(f"B is {one.verdict}")
    if one.excluded > _UNSURE:
        ends = (
            f"{100 * abs(end - 1):.0f} % {'faster' if end < 1 else 'slower'}"
            for end in (one.surely_low, one.surely_high)
        )
        return f"undecided: {' to '.join(ends)}"
    if not one.surely_low <= 1 <= one.surely_high:
        return f"B is {'faster' if one.ratio < 1 else 'slower'}, by less than 2 %"
    return f"equal within {100 * one.excluded:.1f} %"
