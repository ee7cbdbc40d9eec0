"""The `trace` command: why a TensorFlow program is slow."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, installed_wheels, is_wheel, knowledge_for, print_json, stoppable
from tfdock.errors import as_document
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.installed.packages import tensorflow_python
from tfdock.trace.recording import SESSION, check_script
from tfdock.trace.registrations import registrations, source_files
from tfdock.trace.script_places import ContainerPlace, PythonPlace, Script, script_folder
from tfdock.trace.trace_facts import TracedKernel, TracedOperation, TraceFacts
from tfdock.trace.tracing import Tracer, TraceReport
from tfdock.trace.xprof_tables import xprof_python

_STDERR = 2
_PAGE = "report.html"  #: The same report as a page, beside the timeline.
_KEPT = "the recording is lost"
_SERVER = re.compile(r"[\w.-]+:\d{1,5}|\[[\da-f:]+\]:\d{1,5}")
_SHOWN = 8  #: The most operations, kernels and stages in a report for people.


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Examples: `tfdock trace .venv train.py --epochs 1`, `tfdock trace --steps 5 .venv -m mine.train`, "
    "`tfdock trace tensorflow-2.18.0-….whl train.py`, "
    "`tfdock trace logs/` reads a recorded profile, `tfdock trace localhost:6009` records a running program. "
    "Exit status: the script's; 2 no TensorFlow or no xprof, 4 nothing was recorded, 6 no engine for a wheel.",
)
@command("tfdock.trace/1", "knowledge")
def trace(
    settings: Settings,
    place: Annotated[
        str,
        typer.Argument(
            help="The Python that runs the script, the folder of its environment, or a wheel (the script then runs "
            "in a container). Without a script: the folder of a recorded profile, or the host and port of a "
            "program's profiler.",
            metavar="PYTHON|WHEEL|PROFILE|HOST:PORT",
        ),
    ],
    script: Annotated[
        list[str] | None,
        typer.Argument(
            help="The script and its arguments, or `-m MODULE` and its arguments.", metavar="[SCRIPT ARGUMENT…]"
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option("--steps", help="How many steps to record at most; fewer if steps are long.", min=1, max=1000),
    ] = 20,
    skip: Annotated[
        int, typer.Option("--skip", help="How many steps to skip before recording. The first steps are slow.", min=1)
    ] = 3,
    seconds: Annotated[
        int, typer.Option("--seconds", help="How long to record a running program.", min=1, max=60)
    ] = 2,
    xprof: Annotated[
        str,
        typer.Option(
            "--xprof",
            help="A Python that has xprof. The default is the Python that runs tfdock.",
            metavar="PYTHON",
            show_default=False,
        ),
    ] = sys.executable,
    case: Annotated[
        str,
        typer.Option(
            "--case",
            help="Write a program that runs only this operation (a node, a type, or `longest`), and time the "
            "program. The script runs twice.",
            metavar="OPERATION",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        Path,
        typer.Option("-o", "--output", help="Where to write the profiles, each into its own folder.", metavar="DIR"),
    ] = Path("trace"),
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            help="The folder of TensorFlow's sources: print where the longest operations and their kernels are "
            "registered.",
            metavar="DIR",
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Serve xprof's page of the profile on this machine, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the causes that the profile of a script shows, and their fixes.

    The script runs unchanged. TensorFlow's profiler records some of the script's steps: calls of a `tf.function`, or
    of `Session.run`.
    """
    if case and not script:
        raise typer.BadParameter("`--case` runs the script again: give it with the Python and the script")
    if is_wheel(place) and not script:
        raise typer.BadParameter(f"name the script that runs with the wheel: `tfdock trace {place} train.py`")
    tracer = Tracer(xprof=xprof, rows=knowledge_for(settings).slow_causes)
    sources = source_files(source) if source else []
    # Add the process id: two traces may start in the same second.
    folder = out / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    try:
        if script:
            script = script[script[0] == "--" :]  # click keeps the `--` before a script
            check_script(script)
            with _script_place(settings, place, script, xprof, as_json=as_json) as runs_in:
                run = Script(place=runs_in, words=script, skip=skip, steps=steps)
                found = tracer.run(run, folder, case)
        elif _SERVER.fullmatch(place) and not Path(place).exists():
            found = tracer.sample(place, folder, seconds)
        else:
            found = tracer.read([Path(place)], folder)
    finally:
        with suppress(OSError):
            folder.rmdir()  # it is empty if nothing was recorded
    if sources and (types := list(dict.fromkeys(one.type for one in found.facts.operations[:_SHOWN]))):
        found = replace(found, sources=registrations(sources, types))
    from tfdock.cli.pages.measured_pages import trace_page  # here: it loads jinja2

    UntrustedPath(folder, _PAGE).write(trace_page(found, _steps(found.facts)).encode())
    if as_json:
        print_json("tfdock.trace/1", found.status == 0, as_document(found))
    else:
        console.result(*_lines(found, tracer.xprof))
    if show:
        tracer.show(found, partial(stoppable, kept=_KEPT), lambda address: console.tell(f"{address}  Ctrl-C ends it"))
    # As in a shell: if a signal ended the script, the status is 128 plus the number of the signal.
    raise typer.Exit(found.status if found.status >= 0 else 128 - found.status)


@contextmanager
def _script_place(
    settings: Settings, place: str, words: Sequence[str], xprof: str, *, as_json: bool
) -> Iterator[PythonPlace | ContainerPlace]:
    """Yield where a script runs: a Python of this machine, or a wheel in a container."""
    if not is_wheel(place):
        python, tensorflow = tensorflow_python(place)
        # Check this before the script runs for long. The reports of TensorFlow 1.x need no xprof.
        if (tensorflow / "python/profiler/trace.py").is_file():
            xprof_python(xprof)
        stopping = partial(stoppable, kept=_KEPT)
        yield PythonPlace(python=python.program, stoppable=stopping, stdout=_STDERR if as_json else None)
        return
    xprof_python(xprof)
    folder = script_folder(words)
    show = partial(console.say, stream=sys.stderr if as_json else sys.stdout)
    with installed_wheels(settings, [place], "trace", _KEPT, with_gpu=True) as (wheel,):
        yield ContainerPlace(wheel=wheel, folder=folder, show=show)


def _lines(found: TraceReport, xprof: str) -> Iterator[str]:
    style, facts = console.Style(sys.stdout), found.facts
    named = f"TensorFlow {found.script.tensorflow}" if found.script else found.profile
    yield f"{style.strong(console.clean(named))}: {_steps(facts)}"
    for cause in found.causes:
        word = style.bad("slow") if cause.is_fault else style.warn("most")
        yield f"{word}  {console.clean(cause.says)} [{cause.cause}]"
        yield f"      {style.good('fix:')} {cause.advice}"
    if not found.causes:
        yield f"{style.good('ok')}    no known cause; the longest operations are listed below"
    yield from _table("operations", style, (_operation(one) for one in facts.operations[:_SHOWN]))
    yield from _table("sources", style, ((kind, console.clean(" ".join(at))) for kind, at in found.sources.items()))
    yield from _table("kernels", style, (_kernel(one) for one in facts.kernels[:_SHOWN]))
    stages = ((_milliseconds(one.seconds), f"{one.calls}×", console.clean(one.stage)) for one in facts.stages)
    yield from _table("input", style, islice(stages, _SHOWN))
    if facts.clusters:
        clusters = "cluster" if facts.clusters == 1 else "clusters"
        yield f"XLA       {facts.clusters} {clusters} of the graph ran compiled"
    for allocator, peak in facts.memory.items():
        yield f"memory    {console.clean(allocator)} {console.size(peak)} at its peak"
    if case := found.case:
        took, traced = _milliseconds(case.seconds), _milliseconds(case.traced_seconds)
        yield f"case      {case.program}: {console.clean(case.type)} takes {took} alone, {traced} in the trace"
    for note in found.notes:
        yield f"note: {console.clean(note)}"
    yield f"report    {Path(found.timeline).with_name(_PAGE)}"
    yield f"timeline  {found.timeline}: open it in chrome://tracing or ui.perfetto.dev"
    if found.profile.endswith(SESSION):
        return
    reader = [] if xprof == sys.executable else ["--xprof", xprof]
    yield f"page      `{shlex.join(['tfdock', 'trace', *reader, '--open', found.profile])}`"


def _steps(facts: TraceFacts) -> str:
    if facts.step_seconds is None:
        return "no step time"
    shortest, longest = (_milliseconds(one or 0) for one in (facts.shortest_seconds, facts.longest_seconds))
    steps = "step" if facts.steps == 1 else "steps"
    shares = ", ".join(f"{100 * share:.0f} % {name}" for name, share in facts.parts.items() if share >= 0.005)
    return f"{facts.steps} {steps} of {_milliseconds(facts.step_seconds)} ({shortest} to {longest}): {shares}"


def _table(title: str, style: console.Style, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    found = list(rows)
    if found:
        yield style.strong(title)
        yield from console.table(found)


def _operation(one: TracedOperation) -> tuple[str, ...]:
    # The name of a function's call precedes the names of the operations in the function.
    node = one.node.removeprefix("StatefulPartitionedCall/") or "called by Python"
    told = console.clean(f"{one.type}  {node} {one.inputs}".strip())
    return f"{100 * one.share:.0f} %", _milliseconds(one.seconds), f"{one.calls}×", told


def _kernel(one: TracedKernel) -> tuple[str, ...]:
    cores = ", tensor cores" if one.tensor_cores else ""
    shape = (
        f"{one.registers} registers, {console.size(one.shared_bytes)} shared, {100 * one.occupancy:.0f} % occupied"
    )
    return _milliseconds(one.seconds), f"{one.calls}×", shape + cores, console.clean(f"{one.name} of {one.operation}")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
