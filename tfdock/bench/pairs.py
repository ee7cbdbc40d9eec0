"""Time two TensorFlows in pairs of processes, which take turns on one core operation by operation.

One core, because the speed of a core changes by half for seconds, and another core's at other times: on two cores the
same TensorFlow seems to be faster than itself. Both sides get the same number of turns, and the order changes: who
runs more often finds its data still in the caches.
"""

from __future__ import annotations

import json
import math
import os
import random
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import IO, Annotated, TypeVar

from tfdock.bench.comparison import PairFigure
from tfdock.errors import VerificationFailed
from tfdock.host.foreign_json import Line, Malformed, below, parse
from tfdock.host.hardware import last_line
from tfdock.host.thread_jobs import ThreadJob, run_both
from tfdock.installed.interpreter import ending
from tfdock.knowledge.switch_rows import laid_over
from tfdock.knowledge.wheel_rows import BenchOperation

_T = TypeVar("_T")

PAIRS = 12  #: Twelve pairs detect a difference of 2.5 to 9 %, depending on the operation and the load of the machine.
_ROUNDS = 32
_AT_ONCE = 2  #: Pairs that run at once, each on a core of its own.
_START_SECONDS, _BLOCK_SECONDS, _END_SECONDS, _LOOK_SECONDS = 300.0, 60.0, 20.0, 0.2
_LONGEST = 1 << 16  #: Bytes of an answer, with what is printed before it.
_MARK = b"tfdock:"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")
#: Variables that both sides get.
COMMON = {"CUDA_VISIBLE_DEVICES": "-1", "LC_ALL": "C", "TF_CPP_MIN_LOG_LEVEL": "1", **_ONE_THREAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is timed: a Python that has a TensorFlow, and variables that its process gets."""

    python: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The Python with its variables, as a shell takes them."""
        return shlex.join([*(f"{name}={value}" for name, value in self.variables.items()), str(self.python)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    tensorflow: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    seconds: Annotated[float, below(3600)]


@dataclass(slots=True, kw_only=True)
class Timing:
    """Both sides, what they run, and what was measured: `figures` of each pair, `versions` of both TensorFlows."""

    sides: tuple[Side, Side]
    operations: Sequence[BenchOperation]
    worker: str
    finished: Callable[[int], object] = lambda _: None  #: Gets the number of pairs that have ended, after each.
    check: Callable[[], object] = lambda: None  #: Called several times a second; raises to end the run.
    figures: list[dict[str, PairFigure]] = field(default_factory=list)
    versions: list[str] = field(default_factory=lambda: ["", ""])

    def run(self, pairs: int) -> None:
        """Time this many pairs. Raises VerificationFailed if a TensorFlow does not start, or exits."""
        if not hasattr(os, "sched_getaffinity"):
            message, fix = "this system does not keep processes on one core", "compare on Linux"
            raise VerificationFailed.of("tensorflow-trial", message, fix)
        cores = sorted(os.sched_getaffinity(0))[:_AT_ONCE]
        timed = (self._pair(number, cores) for number in range(pairs))
        if len(cores) > 1:
            run_both(ThreadJob(1, steps) for steps in timed)
        else:
            for _ in chain.from_iterable(timed):
                pass

    def _pair(self, number: int, cores: list[int]) -> Iterator[None]:
        """Time one pair, a round a step. `cores` are those that nobody uses."""
        draw = random.Random(number)
        core = cores.pop()
        # A side that always starts first may get the better memory.
        first, second = (0, 1) if number % 2 else (1, 0)
        with ExitStack() as stack:
            stack.callback(cores.append, core)
            workers: dict[int, _Worker] = {}
            # One after the other: a start may be what is timed.
            for side in (first, second):
                workers[side] = self._started(self.sides[side], core, stack)
                self.versions[side] = workers[side].answer(_Ready, _START_SECONDS).tensorflow
                yield
            blocks: dict[str, list[tuple[float, float]]] = {one.operation: [] for one in self.operations}
            order, indexes = [first, second], list(range(len(self.operations)))
            once = any(one.once for one in self.operations)
            for turn in range(1 if once else _ROUNDS):
                if not once:  # first calls stay in the order of rows: each relies on what is set up before
                    # Drawn, and the other way round in the next: no side is first more often than the other.
                    order = draw.sample(order, 2) if turn % 2 == 0 else order[::-1]
                    draw.shuffle(indexes)
                for index in indexes:
                    seconds = {side: workers[side].ask(index) for side in order}
                    blocks[self.operations[index].operation].append((seconds[0], seconds[1]))
                yield
        self.figures.append({name: _figure(found) for name, found in blocks.items()})
        self.finished(len(self.figures))

    def _started(self, side: Side, core: int, stack: ExitStack) -> _Worker:
        operations = [(one.operation, one.program, one.sizes, one.once) for one in self.operations]
        request = json.dumps({"core": core, "operations": operations})
        said: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        return stack.enter_context(_Worker(side, self.worker, request, said, self.check))


def _figure(blocks: Sequence[tuple[float, float]]) -> PairFigure:
    first, second = zip(*blocks, strict=True)
    logarithm = median(math.log(other / one) for one, other in blocks)
    return PairFigure(logarithm=logarithm, seconds=(median(first), median(second)))


class _Worker:
    """A process that times operations when it is asked to; killed at the end."""

    def __init__(self, side: Side, program: str, request: str, said: IO[bytes], check: Callable[[], object]) -> None:
        self._side, self._said, self._check = side, said, check
        self._read = b""
        self._process = subprocess.Popen(
            [str(side.python), "-c", program, request],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=laid_over({**os.environ, **COMMON}, side.variables),
            start_new_session=True,
            cwd="/",  # a module of the working folder shadows none
        )
        assert self._process.stdout
        self._stdout = self._process.stdout.fileno()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def ask(self, index: int) -> float:
        """Return the seconds of the quickest call in a block of an operation."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # the answer, which does not come, says why
            self._process.stdin.write(b"%d\n" % index)
            self._process.stdin.flush()
        # A clock of 1 ns would make a ratio of nothing by nothing.
        return max(self.answer(_Block, _BLOCK_SECONDS).seconds, 1e-9)

    def answer(self, kind: type[_T], seconds: float) -> _T:
        """Return the next answer. Raises VerificationFailed if none of that kind comes in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread():
            self._check()
            if not self._readable(_LOOK_SECONDS):
                if time.monotonic() < deadline:
                    continue
                raise self._failure("does not answer")
            piece = os.read(self._stdout, _LONGEST)
            self._read += piece
            if not piece:  # it ends, which takes TensorFlow a while
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_SECONDS)
                raise self._failure("ends")
            if len(self._read) > _LONGEST:
                raise self._failure("gives an invalid answer")
        line, _, self._read = self._read.partition(b"\n")
        try:
            found: _T = parse(kind, line.removeprefix(_MARK))
        except Malformed as error:
            raise self._failure("gives an invalid answer") from error
        return found

    def _unread(self) -> bytes:
        """Return what was read and not used, from an answer on: start-up files of an environment may print too."""
        while b"\n" in self._read and not self._read.startswith(_MARK):
            self._read = self._read.partition(b"\n")[2]
        return self._read

    def _readable(self, seconds: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def _failure(self, how: str) -> VerificationFailed:
        status = self._process.poll()
        how = how if status is None else f"ends with {ending(status)}"
        self._said.seek(-min(self._said.seek(0, os.SEEK_END), 4000), os.SEEK_END)
        said = last_line(self._said.read().decode("utf-8", "replace"))
        variables = [f"{name}={value}" for name, value in self._side.variables.items()]
        command = ["tfdock", "doctor", "--python", str(self._side.python), "--try"]
        return VerificationFailed.of(
            "tensorflow-trial",
            f"TensorFlow of {self._side.name} {how}{f': {said[:300]}' if said else ''}",
            f"ask why: `{shlex.join([*(['env', *variables] if variables else []), *command])}`",
        )
