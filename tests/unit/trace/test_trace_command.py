"""`tfdock trace` with a Python in which other programs answer in the place of TensorFlow and xprof."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import Result

from tfdock.errors import Interrupted, VerificationFailed
from tfdock.host.supervise import Stop
from tfdock.knowledge import loader
from tfdock.trace import xprof_tables
from tfdock.trace.script_places import PythonPlace
from tfdock.trace.tracing import Tracer, TraceReport

from .. import command_line
from ..installed.test_environment import with_module
from .tables import answers, event, node, step, timed

#: A script's place: it leaves what it is told to, and ends.
CAPTURE = """
import json, os, pathlib, signal, sys
request = json.loads(sys.argv[1])
folder = pathlib.Path(request["folder"])
if "node" in request:
    wanted = (request["node"], request["type"], request["fused"])
    if wanted == ("dense/MatMul", "MatMul", False):
        (folder / "operation.json").write_text(os.environ["COLLECTED"])
    sys.exit()
words = dict(word.split("=") for word in sys.argv[3:])
place = folder / "plugins/profile/2026_11_28_10_00_00"
place.mkdir(parents=True)
(place / "empty.xplane.pb").touch()
if words.get("session") == "yes":
    (folder / "session.trace.json").write_text(os.environ["SESSION"])
elif not words.keys() & {"own", "session"}:
    (place / "host.xplane.pb").write_bytes(b"a profile")
if "signal" in words:
    os.kill(os.getpid(), int(words["signal"]))
found = {"tensorflow": "2.18.0", "steps": int(words.get("steps", 20)), "left_out": 3, "calls": {"train": 20},
         "own_steps": False, "own_profile": words.get("own")}
(folder / "capture.json").write_text(json.dumps(found))
print("what the script prints")
sys.exit(int(words.get("status", 0)))
"""
READ = """
import shutil, sys
assert open(sys.argv[1]).read() == "a profile"
shutil.copytree({!r}, sys.argv[2], dirs_exist_ok=True)
"""
CASE = """
import json
case = json.loads(r'''@CASE@''')
assert case["steps"] == [{"type": "MatMul"}]
print("a warning")
print(json.dumps({"seconds": 0.001 * case["leaves"][0]["shape"][0]}))
"""
SAMPLE = """
import pathlib, sys, time
server, folder, seconds = sys.argv[1:]
if server == "nobody:1":
    sys.exit("UNAVAILABLE: no responses")
if server == "silent:1":
    time.sleep(600)
place = pathlib.Path(folder, "plugins/profile/now")
place.mkdir(parents=True)
(place / f"{server}-{seconds}.xplane.pb").write_bytes(b"a profile")
"""
PAGE = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(profile,) = folder.glob("plugins/profile/*/*.xplane.pb")
if (folder / "plugins/profile/broken").exists():
    sys.exit("no such thing")
(folder / "address").write_text(f"http://127.0.0.1:8/{profile.parent.name}/{profile.read_text()}")
time.sleep(60)
"""
SLOW = answers(
    [
        step(0, 0, 2000),
        node("dense/MatMul", "MatMul", 1600, 1900, "(float[8,4];int32[2])"),
        event("EagerLocalExecute: Mul", 1900, 1950),
    ],
    stages=[["Iterator::Root::Map", 20, 30.0]],
    kernels=[["sgemm", 96, 49152, 12.5, True, "dense/MatMul", 20, 500.0]],
    steps=timed(2.0, infeed=1.5),
    peaks={"cpu": [1 << 20]},
)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that has a TensorFlow and an xprof; the working folder is a new one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nonexistent")
    for name in ("train.py", "a.py"):
        (tmp_path / name).touch()
    (tmp_path / "tables").mkdir()
    for name, data in SLOW.items():
        (tmp_path / "tables" / (f"{name}.json.gz" if name == "timeline" else f"{name}.json")).write_bytes(data)
    programs = {
        "trace/capture.py": CAPTURE,
        "trace/read.py": READ.format(str(tmp_path / "tables")),
        "trace/case.py": CASE,
        "trace/sample.py": SAMPLE,
        "trace/page.py": PAGE,
    }
    monkeypatch.setattr(loader, "templates", lambda: programs)
    program = with_module(tmp_path, "").program
    (tmp_path / "site/xprof").mkdir()
    profiler = tmp_path / "site/tensorflow/python/profiler"
    profiler.mkdir(parents=True)
    (profiler / "trace.py").touch()
    return program


def trace(python: Path, *words: str | Path) -> Result:
    return command_line.run("trace", "--xprof", python, *words, COLUMNS="1000")


def test_the_causes_come_first_and_then_what_takes_long(python: Path) -> None:
    result = trace(python, python, "train.py")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "TensorFlow 2.18.0: 1 step of 2.0 ms (1.0 ms to 4.0 ms): 75 % waits for input, 18 % computes"
    assert lines[1] == "slow  75 % of a step waits for input, most of it for Map [slow-input]"
    assert lines[2].startswith("      fix: use `map(..., num_parallel_calls=tf.data.AUTOTUNE)`")
    told = {line.split()[0]: line for line in lines[3:] if not line.startswith(" ")}
    assert list(told) == ["operations", "kernels", "input", "memory", "report", "timeline", "page"]
    assert "  86 %  0.3 ms  1×  MatMul  dense/MatMul (float[8,4];int32[2])" in lines
    assert "  14 %  0.1 ms  1×  Mul  called by Python" in lines
    assert "  0.5 ms  20×  96 registers, 49.2 kB shared, 12 % occupied, tensor cores  sgemm of dense/MatMul" in lines
    assert told["memory"] == "memory    cpu 1.0 MB at its peak"


def test_the_profile_stays_with_a_timeline_beside_it(python: Path, tmp_path: Path) -> None:
    document = json.loads(trace(python, "--json", python, "train.py").stdout)
    profile, timeline = Path(document["profile"]), Path(document["timeline"])
    assert profile.read_bytes() == b"a profile"
    assert timeline.read_bytes() == b"all of it"
    assert "1 step of 2.0 ms" in timeline.with_name("report.html").read_text("utf-8")
    assert profile.is_relative_to(timeline.absolute().parent)
    assert timeline.absolute().is_relative_to(tmp_path / "trace")
    assert document["script"]["calls"] == {"train": 20}
    assert [cause["cause"] for cause in document["causes"]] == ["slow-input"]
    assert trace(python, "trace").exit_code == 0  # what is there is read again


@pytest.mark.parametrize(
    ("word", "code", "note"),
    [
        ("status=0", 0, ""),
        ("status=3", 3, "the script ends with exit status 3"),
        ("own=logs", 0, "the script profiles itself too, into logs: `tfdock trace logs`"),
        ("steps=7", 0, "only 7 steps were recorded: the script has no more, or all steps take over 5 s"),
    ],
)
def test_the_exit_status_is_the_scripts_and_what_limits_the_answer_is_noted(
    python: Path, tmp_path: Path, word: str, code: int, note: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/mine.xplane.pb").write_bytes(b"a profile")
    result = trace(python, python, "train.py", word)
    assert result.exit_code == code, result.stderr
    assert re.findall("^note: (.*)$", result.stdout, re.MULTILINE) == ([note] if note else [])


def test_a_session_of_1x_needs_no_xprof(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (python.parent / "site/xprof").rmdir()
    (python.parent / "site/tensorflow/python/profiler/trace.py").unlink()
    monkeypatch.setenv(
        "SESSION", answers([step(0, 0, 100), node("c/run", "_XlaRun", 0, 50)])["trace_viewer"].decode()
    )
    result = trace(python, python, "train.py", "session=yes")
    assert (result.exit_code, "1 step of 0.1 ms" in result.stdout) == (0, True), result.output
    assert "XLA       1 cluster of the graph ran compiled" in result.stdout
    assert "page " not in result.stdout
    assert "note: recording adds about 0.2 ms to each call of a session" in result.stdout


def test_a_script_of_1x_without_a_session_is_told(python: Path) -> None:
    none = trace(python, python, "train.py", "session=no")
    assert (none.exit_code, "it calls no session [trace-missing]" in none.stderr) == (4, True)


def test_a_running_program_is_recorded_through_its_port(python: Path, tmp_path: Path) -> None:
    result = trace(python, "--seconds", "3", "localhost:6009")
    assert result.exit_code == 0, result.stderr
    assert re.match(r"/.*/trace/[\d-]+/plugins/profile/now/localhost:6009-3.xplane.pb: 1 step of", result.stdout)
    (tmp_path / "there:1").mkdir()
    assert "there is no profile in" in trace(python, "there:1").stderr
    lost = trace(python, "nobody:1")
    assert lost.exit_code == 4
    assert "nothing was recorded from nobody:1: UNAVAILABLE: no responses [trace-missing]" in lost.stderr


def test_what_records_nothing_leaves_no_folder_and_no_silence(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xprof_tables, "_ANSWER_SECONDS", 0.5)
    lost = trace(python, "--seconds", "1", "silent:1")
    assert lost.exit_code == 4
    assert "nothing was recorded from silent:1: no answer in 2 s [trace-missing]" in lost.stderr
    assert list((tmp_path / "trace").iterdir()) == []


def shown(python: Path, folder: Path) -> tuple[TraceReport, Tracer]:
    tracer = Tracer(xprof=str(python), rows=())
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(b"a profile")
    return tracer.read([folder], folder), tracer


def test_xprofs_page_is_served_until_a_stop_is_asked_for(python: Path, tmp_path: Path) -> None:
    stop, heard = Stop(), []

    def ready(address: str) -> None:
        heard.append(address)
        stop.requests = 1

    report, tracer = shown(python, tmp_path / "logs/plugins/profile/now")
    tracer.show(report, lambda: nullcontext(stop), ready)
    assert heard == ["http://127.0.0.1:8/now/a profile"]
    report, tracer = shown(python, tmp_path / "broken")
    with pytest.raises(VerificationFailed, match=r"xprof cannot show .*/broken/host.xplane.pb: no such thing"):
        tracer.show(report, lambda: nullcontext(Stop()), ready)


def test_the_line_that_opens_the_page_does_open_it(python: Path, tmp_path: Path) -> None:
    line = trace(python, python, "train.py").stdout.splitlines()[-1]
    program, command, *words = shlex.split(line.partition("`")[2].rstrip("`"))
    assert [program, command, words[:2]] == ["tfdock", "trace", ["--xprof", str(python)]]
    (tmp_path / "trace").rename(tmp_path / "broken")  # so that the page ends at once
    words[-1] = str(next((tmp_path / "broken").rglob("host.xplane.pb")).rename(tmp_path / "broken/host.xplane.pb"))
    result = command_line.run(command, *words)
    assert "xprof cannot show" in result.stderr


def test_sources_are_named_that_register_an_operation_and_its_kernels(python: Path, tmp_path: Path) -> None:
    texts = {
        "ops/math_ops.cc": '// "MatMul"\nREGISTER_OP("MatMul")\n;REGISTER_OP("Mull");',
        "ops/math_grad.cc": 'REGISTER_OP_GRADIENT("MatMul", MatMulGrad);',
        "kernels/deep/matmul_op_impl.h": '#define KERNEL \\\n  Name("MatMul").Device() \\\n Name("MatMul")',
        "kernels/cwise.cc": '\nREGISTER2(BinaryOp, CPU, "Mul", functor::mul, float,\n double);',
        "kernels/other.cc": 'Lookup("MatMul"); REGISTER_OP(name); f("Mul");',
    }
    for name, text in texts.items():
        file = tmp_path / "tree/tensorflow/core" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = json.loads(trace(python, "--json", "--source", "tree", python, "train.py").stdout)["sources"]
    core = "tensorflow/core"
    matrix = [f"{core}/ops/math_ops.cc:2", f"{core}/kernels/deep/matmul_op_impl.h:2"]
    assert found == {"MatMul": matrix, "Mul": [f"{core}/kernels/cwise.cc:2"]}
    assert f"\n  MatMul  {' '.join(matrix)}\n" in trace(python, "--source", "tree", python, "train.py").stdout
    lost = trace(python, "--source", "tables", python, "train.py")
    assert lost.exit_code == 2
    assert "tables has no sources of TensorFlow [source-missing]" in lost.stderr


def without_xprof(python: Path) -> None:
    (python.parent / "site/xprof").rmdir()


def with_damage(python: Path) -> None:
    (python.parent / "tables/trace_viewer.json").write_bytes(b"{")


def without_tables(python: Path) -> None:
    (python.parent / "tables/trace_viewer.json").unlink()


def without_tensorflow(python: Path) -> None:
    shutil.rmtree(python.parent / "site/tensorflow")


def with_pipe(_python: Path) -> None:
    Path("below").mkdir()
    os.mkfifo("below/pipe")


def at_home(_python: Path) -> None:
    os.environ["HOME"] = str(Path.cwd())  # the fixture puts it back


@pytest.mark.parametrize(
    ("break_it", "words", "status", "says"),
    [
        (without_xprof, ["{python}", "a.py"], 2, "has no xprof, which reads profiles [xprof-missing]"),
        (without_tensorflow, ["{python}", "a.py"], 2, "has no TensorFlow [tensorflow-missing]"),
        (bool, ["nowhere"], 2, "no file `*.xplane.pb` [trace-missing]"),
        (bool, ["/"], 2, "[trace-missing]"),
        (bool, ["a.py"], 2, "a.py is not a profile, whose name ends with `.xplane.pb`"),
        (bool, ["{python}", "lost.py"], 2, "the script lost.py does not exist [source-missing]"),
        (bool, ["{python}", "-m"], 2, "`-m` names no module [source-missing]"),
        (bool, ["a.whl"], 2, "name the script that runs with the wheel: `tfdock trace a.whl train.py`"),
        (bool, ["a.whl", "lost.py"], 2, "the script lost.py does not exist [source-missing]"),
        (bool, ["a.whl", "--", "a.py"], 2, "wheel not found: a.whl"),
        (with_pipe, ["a.whl", "a.py"], 6, "below/pipe is a socket, pipe or device [mount-refused]"),
        (with_pipe, ["a.whl", "-m", "a"], 6, "below/pipe is a socket, pipe or device [mount-refused]"),
        (at_home, ["a.whl", "a.py"], 6, "it contains your home folder [mount-refused]"),
        (bool, ["--xprof", "nowhere", "{python}", "a.py"], 2, "there is no Python at nowhere [python-not-found]"),
        (bool, ["{python}", "a.py", "steps=0"], 4, "all its 3 steps are skipped"),
        (
            bool,
            ["{python}", "a.py", "signal=9"],
            4,
            "nothing was recorded: a.py signal=9 ends with SIGKILL before or while it imports TensorFlow",
        ),
        (with_damage, ["{python}", "a.py"], 4, "not valid JSON [trace-unreadable]"),
        (without_tables, ["{python}", "a.py"], 4, "xprof cannot read"),
    ],
)
def test_what_cannot_be_traced_is_told(
    python: Path, break_it: Callable[[Path], object], words: list[str], status: int, says: str
) -> None:
    break_it(python)
    result = trace(python, *(word.format(python=python) for word in words))
    assert result.exit_code == status, result.stderr
    assert says in result.stderr


def test_a_folder_with_several_profiles_is_told_by_the_newest(python: Path, tmp_path: Path) -> None:
    for age, name in enumerate(("old", "new")):
        (tmp_path / "logs" / name).mkdir(parents=True)
        file = tmp_path / "logs" / name / "host.xplane.pb"
        file.write_bytes(b"a profile")
        os.utime(file, (age, age))
    assert json.loads(trace(python, "--json", "logs").stdout)["profile"].endswith("logs/new/host.xplane.pb")


BATCH: dict[str, object] = {"dtype": "float32", "shape": [None, 4], "value": None}
AXES: dict[str, object] = {"dtype": "int32", "shape": [2], "value": [0, 1]}


def collected(*leaves: dict[str, object]) -> str:
    return json.dumps({"steps": [{"type": "MatMul"}], "leaves": leaves})


def test_an_operation_becomes_a_program_with_the_shapes_of_the_trace(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLECTED", collected(BATCH, AXES))
    result = trace(python, "--case", "longest", python, "train.py")
    assert result.exit_code == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("case "))
    assert line.endswith("case.py: MatMul takes 8.0 ms alone, 0.3 ms in the trace")
    for name in ("MatMul", "dense/MatMul"):
        document = json.loads(trace(python, "--json", "--case", name, python, "train.py").stdout)
        assert Path(document["case"]["program"]).is_file()
        assert document["case"]["seconds"] == 0.008


@pytest.mark.parametrize(
    ("leaves", "name", "says"),
    [
        ((), "Conv9D", "no operation of the trace is called `Conv9D` [operation-missing]"),
        ((), "Mul", "Mul cannot be written as a program: the script does not create it"),
        (({**BATCH, "dtype": "resource"}, AXES), "longest", "one of its inputs is of the type resource"),
        ((BATCH,), "longest", "do not give the shape of an input"),
        ((BATCH, {**AXES, "value": None}), "longest", "a size, axis or index known only at run time"),
        (({**BATCH, "shape": [], "value": 1}, AXES), "longest", "does not run: IndexError: list index out of range"),
    ],
)
def test_an_operation_that_cannot_be_a_program_is_told(
    python: Path, monkeypatch: pytest.MonkeyPatch, leaves: tuple[dict[str, object], ...], name: str, says: str
) -> None:
    monkeypatch.setenv("COLLECTED", collected(*leaves))
    result = trace(python, "--case", name, python, "train.py")
    assert result.exit_code == (2 if name == "Conv9D" else 4)
    assert says in result.stderr


def test_a_case_needs_the_script(python: Path) -> None:
    result = trace(python, "--case", "longest", "trace")
    assert result.exit_code == 2
    assert "`--case` runs the script again" in result.stderr


def run(folder: Path, stop: Stop) -> int:
    (folder / "a.py").touch()
    place = PythonPlace(python=Path(sys.executable), stoppable=lambda: nullcontext(stop))
    return place.run([str(folder / "a.py")], "import time; time.sleep(60)", {}, folder)


def test_sigterm_reaches_the_script(tmp_path: Path) -> None:
    assert run(tmp_path, Stop(requests=1, terminated=True)) == -signal.SIGTERM


def test_a_script_that_does_not_end_is_killed_at_the_second_request(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the script inherits, before its first line
    try:
        with pytest.raises(Interrupted):
            run(tmp_path, Stop(requests=2, terminated=True))
    finally:
        signal.signal(signal.SIGTERM, previous)
