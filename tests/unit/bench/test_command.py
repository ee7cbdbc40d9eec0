"""`tfdock bench` with Pythons in which another program answers in the place of TensorFlow."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import tfdock.cli.main  # noqa: F401 - it makes the application whole
from tfdock.cli.app import app
from tfdock.cli.commands import bench as bench_command
from tfdock.knowledge import loader

from ..installed.test_environment import install, with_module
from .test_comparison import compared
from .test_pairs import processes_of

PROGRAM = """
import json, os, sys
print("tfdock:" + json.dumps({"tensorflow": os.environ.get("VERSION", "2.18.0")}), flush=True)
for line in sys.stdin:
    factor = float(os.environ.get("FACTOR", 1)) if int(line) == 1 else 1.0
    print("tfdock:" + json.dumps({"seconds": 0.001 * factor}), flush=True)
"""


TEMPLATES = loader.templates()


def answer_with(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a program answer in the place of TensorFlow."""
    monkeypatch.setattr(loader, "templates", lambda: {**TEMPLATES, "bench/worker.py": worker})


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    answer_with(PROGRAM, monkeypatch)
    return with_module(tmp_path, "").program


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, words), "--pairs", "4"], env={"COLUMNS": "200"})


def operations_of(suite: str) -> list[str]:
    return [row.operation for row in loader.knowledge().bench_operations if row.suite == suite]


def result(folder: Path, python: Path, name: str, *words: str) -> Path:
    """The file of a result, as another machine may have written it."""
    file = folder / name
    file.write_text(bench(python, "--json", *words).stdout)
    return file


def table(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, words)], env={"COLUMNS": "1000"})


def test_both_sides_each_operation_and_all_together_are_told(python: Path) -> None:
    result = bench(python, "--switch", "FACTOR=2", "--switch", "VERSION=2.19.0")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        f"A  tensorflow 2.18.0, {python}",
        f"B  tensorflow 2.19.0, FACTOR=2 VERSION=2.19.0 {python}",
    ]
    told = {line[2:20].strip(): line for line in lines[3:]}
    assert " ".join(told["convolution"].split()[1:]) == "1.00 ms 2.000 2.000 to 2.000 B is slower"
    assert told["matmul"].endswith("equal within 0.0 %")
    assert told["all together"].split()[2:3] == [f"{2 ** (1 / 8):.3f}"]
    assert "pair 4 of 4" in result.stderr


def test_a_preset_is_given_and_a_switch_that_nobody_knows_noted(python: Path) -> None:
    result = bench(python, "--switch", "deterministic", "--switch", "FACTOR=2")
    assert f"B  tensorflow 2.18.0, TF_DETERMINISTIC_OPS=1 FACTOR=2 {python}" in result.stdout
    assert "note: tfdock knows no `FACTOR`\n" in result.stdout


def test_flags_of_xla_stand_behind_those_of_the_caller(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(PROGRAM.replace('"VERSION"', '"XLA_FLAGS"'), monkeypatch)
    monkeypatch.setenv("XLA_FLAGS", "--own=1")
    lines = bench(python, "--switch", "--xla_dump_to=/x").stdout.splitlines()
    assert lines[0].startswith("A  tensorflow --own=1,")
    assert lines[1].startswith("B  tensorflow --own=1 --xla_dump_to=/x,")


def test_the_document_has_what_the_lines_say(python: Path) -> None:
    found = json.loads(bench(python, "--switch", "FACTOR=0.5", "--json").stdout)
    assert [side["variables"] for side in found["sides"]] == [{}, {"FACTOR": "0.5"}]
    assert {side["python"] for side in found["sides"]} == {str(python)}
    by_name = {one["operation"]: one for one in found["operations"]}
    assert list(by_name) == operations_of("operations")
    assert (by_name["convolution"]["verdict"], by_name["matmul"]["verdict"]) == ("faster", "none")
    assert (found["pairs"], found["suite"]["operation"]) == (4, "all together")


def test_a_page_shows_what_the_lines_say(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    page = tmp_path / "faster.html"
    result = bench(python, "--switch", "FACTOR=2", "-o", page)
    assert (result.exit_code, f"wrote {page}" in result.stderr) == (0, True)
    assert "2.000 to 2.000" in page.read_text()
    assert ">B is slower</td>" in page.read_text()
    for wrong, why in ((tmp_path, "is a folder"), (tmp_path / "none/a.html", "there is no folder")):
        refused = bench(python, "-o", wrong)
        assert (refused.exit_code, why in refused.stderr) == (2, True)


@pytest.mark.parametrize("suite", ["models", "dispatch", "start", "xla"])
def test_a_suite_is_timed_alone(python: Path, suite: str) -> None:
    found = json.loads(bench(python, "--suite", suite, "--json").stdout)
    assert [one["operation"] for one in found["operations"]] == operations_of(suite)
    assert found["operations"]


def test_results_of_several_machines_stand_in_one_table(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.25, 0.0, 0.0))
    here = result(tmp_path, python, "here.json", "--switch", "FACTOR=2")
    there = result(
        tmp_path, python, "there.json", "--suite", "dispatch", "--switch", "FACTOR=2", "--switch", "VERSION=2.19.0"
    )
    lines = table("--table", here, "--table", there, "--table", here).stdout.splitlines()
    assert lines[:3] == [f"{here}  4 pairs, load 0.2", "  A  tensorflow 2.18.0", "  B  tensorflow 2.18.0 FACTOR=2"]
    assert lines[5] == "  B  tensorflow 2.19.0 FACTOR=2 VERSION=2.19.0"
    rows = [" ".join(line.split()) for line in lines[7:]]
    assert f"convolution {here} 1.00 ms 2.000 2.000 to 2.000 B is slower" in rows
    assert rows[-2:] == [
        f"all together {here} 1.091 1.091 to 1.091 B is slower",
        f"{there} 1.260 1.260 to 1.260 B is slower",
    ]
    assert sum(str(there) in row for row in rows) == len(operations_of("dispatch")) + 1
    assert sum(str(here) in row for row in rows) == len(operations_of("operations")) + 1, "a file given twice is one"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (('"tfdock.bench/1"', '"tfdock.plan/1"'), "`schema`: 'tfdock.plan/1' is invalid"),
        (('"slower"', '"best"'), "`operations.1.verdict`: 'best' is invalid"),
        (('"pairs": 4', '"pairs": 4, "x":'), "not valid JSON"),
    ],
)
def test_a_file_that_is_no_result_is_refused(
    python: Path, tmp_path: Path, changed: tuple[str, str], says: str
) -> None:
    file = result(tmp_path, python, "here.json", "--switch", "FACTOR=2")
    file.write_text(file.read_text().replace(*changed))
    refused = table("--table", file)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"not a `tfdock bench --json` result: {says}" in refused.stderr
    assert "[file-unreadable]" in refused.stderr


@pytest.mark.parametrize(
    "words", [[], *(["--table", "a.json", *more] for more in (["PYTHON"], ["--json"], ["-o", "p"]))]
)
def test_a_run_measures_or_prints_results(words: list[str], python: Path) -> None:
    refused = table(*(str(python) if word == "PYTHON" else word for word in words))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "name a Python to measure, or give only results, with" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["PYTHON", "--vs", sys.executable], 2, "has no TensorFlow"),
        (["nowhere"], 2, "there is no Python at nowhere"),
        (["lost-2.18.0-cp311-cp311-linux_x86_64.whl"], 2, "wheel not found: lost-2.18.0-cp311"),
        (["PYTHON", "--vs", "a.whl"], 2, "compare a wheel with a wheel, or a Python with a Python"),
        (["a.whl", "--vs", "PYTHON"], 2, "compare a wheel with a wheel, or a Python with a Python"),
        (["PYTHON", "--switch", "FACTOR"], 2, "`FACTOR` is neither a switch with a value"),
        (["PYTHON", "--switch", "FACTOR=1", "--switch", "FACTOR=2"], 2, "`FACTOR` is given twice"),
        (["PYTHON", "--switch", "CUDA_VISIBLE_DEVICES=0"], 2, "both sides need the value -1"),
        (
            ["PYTHON", "--suite", "all"],
            2,
            "there is no suite `all`; the suites are `operations`, `models`, `dispatch`, `start`, `xla`",
        ),
        (["PYTHON", "--vs", ""], 2, "there is no Python at"),
        (["PYTHON", "--switch", "FACTOR=x y"], 4, "ends with exit status 1: ValueError"),
        (["PYTHON", "--switch", "FACTOR=x y"], 4, "`env 'FACTOR=x y' tfdock doctor --python"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(
    words: list[str], code: int, says: str, python: Path
) -> None:
    result = bench(*(str(python) if word == "PYTHON" else word for word in words))
    assert result.exit_code == code
    assert says in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.parametrize(
    "begun", ["", 'print(\'tfdock:{"tensorflow": "2.18.0"}\', flush=True)\n'], ids=["start", "turn"]
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_ends_it_and_its_processes(
    python: Path, tmp_path: Path, number: signal.Signals, code: int, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = f"os.kill({os.getpid()}, {number.value})"
    first = f"{begun}import os\ntry:\n os.mkdir('{tmp_path}/first')\n {kill}\n"
    silent = f"{first}except FileExistsError:\n pass\nimport time\ntime.sleep(600)"
    answer_with(silent, monkeypatch)
    result = bench(python)
    assert (result.exit_code, "stopped on request; the measured times are lost" in result.stderr) == (code, True)
    assert processes_of(tmp_path) == []


def test_a_small_difference_that_is_sure_and_one_that_may_be_large_are_told_apart(python: Path) -> None:
    assert "B is slower, by less than 2 %" in bench(python, "--switch", "FACTOR=1.008").stdout
    unsure = compared(one=[-0.1, 0.26, -0.22, 0.18])["one"]
    assert bench_command._verdict(unsure).startswith("undecided: ")


def test_two_pythons_with_one_tensorflow_are_noted(python: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(python.read_text())
    other.chmod(0o755)
    assert f"note: both Pythons import the TensorFlow in {tmp_path}/site" in bench(python, "--vs", other).stdout


def test_what_limits_the_answer_is_noted(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    assert "note: the machine was busy before (99.0 processes wanted a core)" in bench(python).stdout


def test_a_system_without_a_choice_of_cores_times_wheels_alone(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity")
    assert "this system cannot pin processes to one core" in bench(python).stderr
    assert list(bench_command._busy(0.0)) == []


def test_the_worker_has_a_program_for_each_operation() -> None:
    worker = loader.templates()["bench/worker.py"]
    programs = re.findall(r'^    "([a-z-]+)": ', worker.partition("PROGRAMS = {")[2], re.MULTILINE)
    assert {row.program for row in loader.knowledge().bench_operations} == set(programs)


#: The package ai-benchmark in miniature: it uses what the package of 2019 uses, and would send its scores.
AI_BENCHMARK = {
    "ai_benchmark/utils.py": """
import numpy as np
from pkg_resources import parse_version
class Test:
    def __init__(self, id, model, inference, training):
        self.id, self.model, self.inference, self.training = id, model, inference, training
class TestConstructor:
    def getTests(self):
        return [Test(1, "MobileNet-V2", [1], [1]), Test(19, "GNMT-Translation", [1], [])]
def update_info(mode, info):
    raise SystemExit("sent")
class Result:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std
""",
    "ai_benchmark/__init__.py": """
import os, sys
from ai_benchmark.utils import *
class AIBenchmark:
    def __init__(self, use_CPU=None, verbose_level=0):
        np.warnings.filterwarnings("ignore")
    def run(self):
        from ai_benchmark import utils
        utils.update_info("scores", self)
        assert parse_version("2.18.0") > parse_version("1.99")
        assert os.environ["TF_USE_LEGACY_KERAS"] == "1"
        if os.environ.get("BROKEN"):
            sys.exit("out of memory")
        print("1.1 - inference | batch=50")
        self.test_results = {"1.1": Result(301.4, 13.2), "1.2": Result(1258, 38), "19.1": Result(7.0, 0.0)}
        self.inference_score, self.training_score, self.ai_score = 120, 80, 200
        return self
""",
}


@pytest.fixture
def with_package(tmp_path: Path) -> Path:
    """A Python with a TensorFlow, NumPy and ai-benchmark in miniature."""
    python = with_module(tmp_path, "__version__ = '2.18.0'").program
    install(tmp_path / "site", "ai-benchmark", "0.1.2", AI_BENCHMARK)
    install(tmp_path / "site", "numpy", "2.0.2", {"numpy/__init__.py": ""})
    return python


def published(python: Path, *words: str) -> Result:
    return table(python, "--suite", "ai-benchmark", *words)


def test_the_scores_of_ai_benchmark_are_shown_as_the_package_publishes_them(
    with_package: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = published(with_package)
    assert shown.exit_code == 0, shown.stderr
    assert "1.1 - inference | batch=50" in capfd.readouterr().err
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == f"{with_package} tensorflow 2.18.0"
    assert "1.1 MobileNet-V2 inference 301 ± 13 ms" in lines
    assert "19.1 GNMT-Translation inference 7 ± 0 ms" in lines
    assert lines[-2:] == [
        "AI score 200",
        "times as ai-benchmark publishes them: whole milliseconds, one process, all threads",
    ]


def test_scores_of_several_machines_stand_in_one_table(with_package: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    here.write_text(published(with_package, "--json").stdout)
    there.write_text(here.read_text().replace("120", "240").replace('"19.1"', '"18.1"'))
    lines = [" ".join(line.split()) for line in table("--table", here, "--table", there).stdout.splitlines()]
    assert f"{here} {there}" in lines
    assert "inference score 120 240" in lines
    assert lines.index("19.1 GNMT-Translation inference 7 ± 0 ms") < lines.index(
        "18.1 GNMT-Translation inference 7 ± 0 ms"
    )


def test_a_run_without_scores_says_so(with_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    broken = published(with_package)
    assert (broken.exit_code, broken.stdout) == (4, "")
    assert "wrote no scores: it ended with exit status 1" in broken.stderr


def test_missing_packages_are_named_with_the_release_that_fits(with_package: Path, tmp_path: Path) -> None:
    install(tmp_path / "site", "keras", "3.5.0", {"keras/__init__.py": ""})
    missing = published(with_package)
    assert (missing.exit_code, "lacks tf-keras==2.18.* [python-unusable]" in missing.stderr) == (2, True)
    assert f'`{with_package} -m pip install "tf-keras==2.18.*"`' in missing.stderr


@pytest.mark.parametrize("words", [["--vs", "other"], ["--switch", "A=1"], ["-o", "page.html"]])
def test_ai_benchmark_takes_a_python_alone(words: list[str], with_package: Path) -> None:
    refused = published(with_package, *words)
    assert (refused.exit_code, "takes one Python and nothing else" in " ".join(refused.stderr.split())) == (2, True)
