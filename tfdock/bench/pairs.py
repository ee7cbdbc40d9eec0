"""Time two TensorFlows in pairs of processes, which take turns on one core operation by operation.

The processes share one core, because the speed of a core can change by half for seconds, and each core changes at
other times. On two cores, a TensorFlow can seem faster than itself. Both sides get the same number of turns, because
a side that runs more often finds its data still in the caches. The order of the sides changes.
`dockerfiles/bench/turns.py` controls the turns. It runs beside the processes: on this machine, or in a container.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import selectors
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated

from tfdock.bench.comparison import PairFigure, TimedSide
from tfdock.errors import VerificationFailed, clean
from tfdock.host.foreign_json import Line, Malformed, below, parse
from tfdock.host.hardware import last_line
from tfdock.installed.interpreter import ending
from tfdock.knowledge.switch_rows import laid_over
from tfdock.knowledge.wheel_rows import BenchOperation
from tfdock.verify.trial import MarkedLines

PAIRS = 12  #: Twelve pairs detect a difference of 2.5 to 9 %, depending on the operation and the load of the machine.
_ROUNDS = 32
_AT_ONCE = 2  #: Pairs that run at once, each pair on its own core.
_START_SECONDS, _BLOCK_SECONDS, _LOOK_SECONDS = 300.0, 60.0, 0.2
_PIECE = 1 << 16
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")
#: Variables that both sides get.
COMMON = {"CUDA_VISIBLE_DEVICES": "-1", "LC_ALL": "C", "TF_CPP_MIN_LOG_LEVEL": "1", **_ONE_THREAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingPlace:
    """The place where the timed processes run.

    `run` runs the text of a program there, with one argument, and passes its output to the `MarkedLines`. `variables`
    are the environment of all processes there, `pythons` the interpreters of both sides.
    """

    run: Callable[[str, str, MarkedLines], object]
    variables: Mapping[str, str]
    pythons: tuple[Path, Path]


_Seconds = Annotated[float, below(3600)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A line of `turns.py`: the times of a pair, or why no pair follows."""

    versions: tuple[Line, Line] = ("", "")
    blocks: tuple[list[tuple[_Seconds, _Seconds]], ...] = ()
    side: Annotated[int, below(2)] = 0
    why: Line = ""
    status: int | None = None
    said: str = ""


@dataclass(slots=True, kw_only=True)
class Timing:
    """Both sides, their suite, and the measurements: `figures` of each pair, and the versions of both TensorFlows."""

    sides: tuple[TimedSide, TimedSide]
    operations: Sequence[BenchOperation]
    programs: Mapping[str, str]  #: The files of `dockerfiles/`, by their paths in this folder.
    finished: Callable[[int], object] = lambda _: None  #: Called after each pair with the number of finished pairs.
    figures: list[dict[str, PairFigure]] = field(default_factory=list)

    def run(self, pairs: int, place: TimingPlace) -> None:
        """Time this many pairs. Raises VerificationFailed if a TensorFlow does not start, or exits early."""

        def heard(count: int) -> None:
            document = marked.documents[-1]
            if isinstance(document, dict) and "blocks" in document:
                self.finished(count)

        marked = MarkedLines(f"tfdock-{secrets.token_hex(8)}", heard)
        sides = []
        for python, side in zip(place.pythons, self.sides, strict=True):
            given = laid_over(place.variables, side.variables)
            sides.append((str(python), {name: given[name] for name in side.variables}))
        request = {
            "mark": marked.mark,
            "worker": self.programs["bench/worker.py"],
            "sides": sides,
            "operations": [(one.operation, one.program, one.sizes, one.once) for one in self.operations],
            "pairs": pairs,
            "at_once": _AT_ONCE,
            "rounds": _ROUNDS,
            "seconds": {"start": _START_SECONDS, "block": _BLOCK_SECONDS},
        }
        place.run(self.programs["bench/turns.py"], json.dumps(request), marked)
        for document in marked.documents:
            self._take(document)
        if len(self.figures) < pairs:
            raise self._failure(_Answer(why="ends"))

    def _take(self, document: object) -> None:
        try:
            found: _Answer = parse(_Answer, json.dumps(document))
        except Malformed as error:
            raise self._failure(_Answer(why="gives an invalid answer")) from error
        if found.why:
            raise self._failure(found)
        names = [one.operation for one in self.operations]
        if len(found.blocks) != len(names) or not all(found.blocks):
            raise self._failure(_Answer(why="gives an invalid answer"))
        first, second = self.sides
        self.sides = replace(first, tensorflow=found.versions[0]), replace(second, tensorflow=found.versions[1])
        self.figures.append({name: _figure(blocks) for name, blocks in zip(names, found.blocks, strict=True)})

    def _failure(self, found: _Answer) -> VerificationFailed:
        side = self.sides[found.side]
        how = found.why if found.status is None else f"ends with {ending(found.status)}"
        said = last_line(found.said)[:300]
        variables = ["env", *side.given] if side.given else []
        command = [*variables, "tfdock", "doctor", "--python", side.python, "--try"]
        if side.python.endswith(".whl"):
            command = ["tfdock", "verify", side.python]
        message = f"TensorFlow of {side.name} {how}{f': {clean(said)}' if said else ''}"
        return VerificationFailed.of("tensorflow-trial", message, f"ask why: `{shlex.join(command)}`")


def _figure(blocks: Sequence[tuple[float, float]]) -> PairFigure:
    # A time can be 0 by the clock, but 0 / 0 is no ratio.
    first, second = ([max(seconds, 1e-9) for seconds in side] for side in zip(*blocks, strict=True))
    logarithm = median(math.log(other / one) for one, other in zip(first, second, strict=True))
    return PairFigure(logarithm=logarithm, seconds=(median(first), median(second)))


def on_this_machine(pythons: tuple[Path, Path], check: Callable[[], object]) -> TimingPlace:
    """Return a place for timing on this machine. The first Python runs `turns.py` there.

    `check` is called several times a second, and raises to end the program and its processes.
    """
    if not hasattr(os, "sched_getaffinity"):
        message, fix = "this system cannot pin processes to one core", "compare on Linux"
        raise VerificationFailed.of("tensorflow-trial", message, fix)
    variables = {**os.environ, **COMMON}

    def run(program: str, request: str, marked: MarkedLines) -> None:
        process = subprocess.Popen(
            [str(pythons[0]), "-c", program, request],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
            cwd="/",  # so that no module of the working folder shadows another
        )
        assert process.stdout
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                piece, ended = b"", False
                while piece or not ended:
                    check()
                    # The output may stay open: its processes hold it too. Poll first, then read: nothing is missed.
                    ended = process.poll() is not None
                    piece = os.read(process.stdout.fileno(), _PIECE) if selector.select(_LOOK_SECONDS) else b""
                    marked.feed(piece)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # waits until all of its processes have ended

    return TimingPlace(run=run, variables=variables, pythons=pythons)
