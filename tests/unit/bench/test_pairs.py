"""Pairs of processes that take turns, with a program in the place of TensorFlow's."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdock.bench import pairs
from tfdock.bench.comparison import TimedSide, compare
from tfdock.bench.pairs import Timing, TimingPlace, on_this_machine
from tfdock.errors import VerificationFailed
from tfdock.knowledge import loader
from tfdock.knowledge.wheel_rows import BenchOperation
from tfdock.verify.trial import MarkedLines

OPERATIONS = [
    BenchOperation(operation=name, program="matmul", sizes=(2,), source=("here",)) for name in ("one", "two", "three")
]
PROGRAM = """
import json, os, sys
request = json.loads(sys.argv[1])
print("tfdock:" + json.dumps({"tensorflow": "9.9"}), flush=True)
for line in sys.stdin:
    with open(os.environ["LOG"], "a") as log:
        log.write(os.environ["SIDE"] + " " + line)
    print("tfdock:" + json.dumps({"seconds": float(os.environ["SECONDS"])}), flush=True)
"""


def processes_of(folder: Path) -> list[str]:
    """The processes with a variable that names a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


def side(log: Path, name: str, seconds: float = 0.002) -> TimedSide:
    variables = {"LOG": str(log), "SIDE": name, "SECONDS": str(seconds)}
    return TimedSide(python=sys.executable, version="", variables=variables)


def timing(log: Path, worker: str = PROGRAM, second: float = 0.003) -> Timing:
    programs = {**loader.templates(), "bench/worker.py": worker}
    return Timing(sides=(side(log, "A"), side(log, "B", second)), operations=OPERATIONS, programs=programs)


HERE = on_this_machine((Path(sys.executable), Path(sys.executable)), lambda: None)


def test_both_sides_get_the_same_turns_and_neither_is_always_first(tmp_path: Path) -> None:
    log, counted = tmp_path / "log", list[int]()
    found = timing(log)
    found.finished = counted.append
    found.run(4, HERE)
    assert sorted(counted) == [1, 2, 3, 4]
    assert [one.tensorflow for one in found.sides] == ["9.9", "9.9"]
    turns = Counter(log.read_text().split("\n")[:-1])
    assert set(turns.values()) == {4 * 32}, "each operation, on each side"
    assert {round(one.ratio, 6) for one in compare(found.figures)} == {1.5}


def test_the_order_within_a_turn_is_drawn_and_reversed_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_AT_ONCE", 1)
    timing(tmp_path / "log").run(2, HERE)
    asked = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    both = [(asked[at], asked[at + 1]) for at in range(0, len(asked), 2)]
    assert all(one[1] == other[1] and one[0] != other[0] for one, other in both), "one operation, then the other side"
    rounds = [both[at : at + 3] for at in range(0, len(both), 3)]
    firsts = ["".join(sorted({one[0] for one, _ in turn})) for turn in rounds]
    assert [first for even, first in zip(firsts[::2], firsts[1::2], strict=True) if even == first] == []
    assert set(firsts[::2]) == {"A", "B"}
    assert len({tuple(one[1] for one, _ in turn) for turn in rounds}) == math.factorial(3), "operations in any order"


def test_first_calls_are_asked_for_once_in_the_order_of_rows_and_each_side_is_first_in_every_other_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_AT_ONCE", 1)
    found = timing(tmp_path / "log")
    found.operations = [row.model_copy(update={"once": True}) for row in OPERATIONS]
    found.run(2, HERE)
    asked = (tmp_path / "log").read_text().splitlines()
    assert asked == ["B 0", "A 0", "B 1", "A 1", "B 2", "A 2", "A 0", "B 0", "A 1", "B 1", "A 2", "B 2"]
    assert {round(one.ratio, 6) for one in compare(found.figures)} == {1.5}


def test_a_side_starts_when_the_other_one_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_AT_ONCE", 1)
    write = 'open(os.environ["LOG"], "a").write(os.environ["SIDE"] + " {}\\n")\n'
    worker = PROGRAM.replace(
        "request =", f"{write.format('begins')}import time; time.sleep(0.2)\n{write.format('ready')}request ="
    )
    timing(tmp_path / "log", worker).run(1, HERE)
    assert (tmp_path / "log").read_text().splitlines()[:4] == ["B begins", "B ready", "A begins", "A ready"]


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        ("import sys; sys.exit('no such\\nlibrary libx.so')", "ends with exit status 1: library libx.so"),
        ("import os; os.kill(os.getpid(), 4)", "ends with SIGILL"),
        ("import os; os.kill(os.getpid(), 40)", "ends with signal 40"),
        (PROGRAM.replace("float(os", "-float(os"), "gives an invalid answer"),
        (
            PROGRAM.replace(
                'print("tfdock:" + json.dumps({"seconds', "print('x' * 99999) or print(json.dumps({\"seconds"
            ),
            "gives an invalid answer",
        ),
        (
            PROGRAM.replace("for line", "1/0\nfor line"),
            "ends with exit status 1: ZeroDivisionError: division by zero",
        ),
        (PROGRAM.replace("for line", "import time; time.sleep(60)\nfor line"), "does not answer"),
        ("import time; time.sleep(60)", "does not answer"),
    ],
    ids=["no start", "signal", "nameless signal", "nonsense", "endless", "later", "silent later", "silent"],
)
def test_a_process_that_ends_or_says_nothing_is_named_with_its_last_words(
    worker: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_START_SECONDS", 3.0)
    monkeypatch.setattr(pairs, "_BLOCK_SECONDS", 0.5)
    with pytest.raises(VerificationFailed) as caught:
        timing(tmp_path / "log", worker).run(4, HERE)
    (problem,) = caught.value.problems
    assert problem.code == "tensorflow-trial"
    assert f"{sys.executable} {says}" in problem.message
    assert problem.fix.startswith(f"ask why: `env LOG={tmp_path}/log SIDE=")
    assert problem.fix.endswith(f" tfdock doctor --python {sys.executable} --try`")
    assert processes_of(tmp_path) == []


def test_what_an_environment_prints_at_its_start_is_no_answer(tmp_path: Path) -> None:
    noisy = "print('hello'); print('and more', end='')\n" + PROGRAM.replace('print("tfdock:', 'print("\\ntfdock:')
    found = timing(tmp_path / "log", noisy)
    found.run(2, HERE)
    assert {round(one.ratio, 6) for one in compare(found.figures)} == {1.5}


def test_each_pair_has_a_core_and_one_thread(tmp_path: Path) -> None:
    worker = PROGRAM.replace(
        "request = json.loads(sys.argv[1])",
        'request = json.loads(sys.argv[1]); open(os.environ["LOG"] + str(os.getpid()), "w").write('
        'str(request["core"]) + os.environ["OMP_NUM_THREADS"] + os.environ["CUDA_VISIBLE_DEVICES"])',
    )
    timing(tmp_path / "log", worker).run(2, HERE)
    cores = sorted(os.sched_getaffinity(0))[:2]
    said = {path.read_text() for path in tmp_path.glob("log?*")}
    assert said <= {f"{core}1-1" for core in cores}


BLOCKS = [[[0.001, 0.002]]] * 3


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([{"versions": ["1", "2"], "blocks": BLOCKS[:2]}], "gives an invalid answer"),
        ([{"versions": ["1", "2"], "blocks": [[], *BLOCKS[:2]]}], "gives an invalid answer"),
        ([{"versions": ["1", "2"], "blocks": [[[0.001, -1]]] * 3}], "gives an invalid answer"),
        ([{"versions": ["\x1b[31m", "2"], "blocks": BLOCKS}], "gives an invalid answer"),
        (["nonsense"], "gives an invalid answer"),
        ([{"versions": ["1", "2"], "blocks": BLOCKS}], "ends"),
        ([{"side": 1, "why": "ends", "status": -4, "said": "a\n\x1b[31mred\n"}], "ends with SIGILL: \ufffd[31mred"),
    ],
)
def test_what_a_wheel_in_a_container_answers_is_read_with_care(answers: list[object], says: str) -> None:
    def lie(_program: str, _request: str, marked: MarkedLines) -> None:
        marked.feed("".join(f"{marked.mark} {json.dumps(answer)}\n" for answer in answers).encode())

    first, second = (TimedSide(python=name, version="3.11") for name in ("a.whl", "b.whl"))
    found = Timing(sides=(first, second), operations=OPERATIONS, programs=loader.templates())
    with pytest.raises(VerificationFailed) as caught:
        found.run(2, TimingPlace(run=lie, variables={}, pythons=(Path("/a"), Path("/a"))))
    (problem,) = caught.value.problems
    of = "b.whl" if "SIGILL" in says else "a.whl"
    assert (problem.message, problem.fix) == (f"TensorFlow of {of} {says}", f"ask why: `tfdock verify {of}`")


def test_variables_stand_behind_those_of_the_place_and_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--of-this-machine=1")
    asked: list[Any] = []

    def keep(_program: str, request: str, marked: MarkedLines) -> None:
        asked.extend(json.loads(request)["sides"])
        marked.feed(f"{marked.mark} {json.dumps({'versions': ['1', '2'], 'blocks': BLOCKS})}\n".encode())

    first = TimedSide(python="a.whl", version="3.11")
    sides, place = (
        (first, replace(first, variables={"XLA_FLAGS": "--more=1"})),
        {"XLA_FLAGS": "--own=1", "OTHER": "x"},
    )
    found = Timing(sides=sides, operations=OPERATIONS, programs=loader.templates())
    found.run(1, TimingPlace(run=keep, variables=place, pythons=(Path("/a"), Path("/b"))))
    assert asked == [["/a", {}], ["/b", {"XLA_FLAGS": "--own=1 --more=1"}]]
