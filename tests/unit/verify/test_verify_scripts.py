"""The programs that try a wheel in a container, run here: what becomes of scripts that work, fail, die or hang."""

from __future__ import annotations

import ast
import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdock.verify.trial import MarkedLines

from .. import houses
from ..samples import sample
from ..small_wheels import wheel_of

SCRIPTS = Path(__file__).parents[3] / "dockerfiles/verify"
MARK = "tfdock-0123456789abcdef"
WHEEL = "tensorflow-2.18.0-cp311-cp311-linux_x86_64.whl"
PASSES = "from probe import passed\ndef probe(facts):\n    return passed('1', facts['number'])\n"


@dataclass
class Trial:
    """A folder with the programs and some scripts."""

    folder: Path
    code: int = 0
    output: str = ""

    def run(self, scripts: Mapping[str, str], needs: Mapping[str, list[str]] | None = None, **more: Any) -> list[Any]:
        """The results, in the order in which they were printed."""
        here = self.folder / "verify"
        shutil.copytree(SCRIPTS, here)
        checks = []
        for name, text in scripts.items():
            if text:
                (here / f"{name}.py").write_text(text)
            script = f"{name}.py" if text else None
            wanted = {"check": name, "needs": (needs or {}).get(name, []), "script": script, "seconds": 60}
            checks.append({**wanted, "environment": {}, **more.get(name.replace("-", "_"), {})})
        request = {
            "mark": MARK,
            "wheel": str(self.folder / "wheels" / WHEEL),
            "dependencies": str(self.folder / "wheels"),
            "work": str(self.folder / "work"),
            "facts": {"number": 1},
            "checks": checks,
        }
        (here / "request.json").write_text(json.dumps(request))
        command = [sys.executable, str(here / "run.py"), str(here / "request.json")]
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        self.code, self.output = done.returncode, done.stdout.decode("utf-8", "replace")
        assert done.stderr == b""
        taken = MarkedLines(MARK)
        for piece in (done.stdout[start : start + 7] for start in range(0, len(done.stdout), 7)):
            taken.feed(piece)
        return taken.documents

    def one(self, script: str, **more: Any) -> Any:
        (result,) = self.run({"check": script}, check=more)
        return result


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    (tmp_path / "wheels").mkdir()
    return Trial(tmp_path)


# --- scripts --------------------------------------------------------------------------------------------------------


def test_a_result_is_what_the_script_returns_with_its_time(trial: Trial) -> None:
    result = trial.one(PASSES)
    assert result.pop("seconds") < 60
    assert result == {"check": "check", "outcome": "passed", "expected": "1", "found": 1, "reason": ""}
    assert trial.code == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    sample(
        [
            pytest.param(
                "def probe(facts):\n    raise ValueError('no such thing')\n", "ValueError: no such thing", id="error"
            ),
            pytest.param("import nowhere\n", "No module named 'nowhere'", id="import"),
            pytest.param(
                "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n", "killed by SIGILL: it uses inst", id="ill"
            ),
            pytest.param("import os\nos.abort()\n", "killed by SIGABRT", id="abort"),
            pytest.param("import ctypes\nctypes.string_at(0)\n", "killed by SIGSEGV", id="segmentation fault"),
            pytest.param("import sys\nsys.exit(3)\n", "exit status 3", id="exit"),
            pytest.param(
                "import os\nprint('last words', flush=True)\nos._exit(0)\n", "no result: last words", id="silence"
            ),
            pytest.param("def probe(facts):\n    return {1, 2}\n", "exit status 1: TypeError", id="no JSON"),
            pytest.param("def probe(facts):\n    return 'fine'\n", "no result", id="no result"),
            pytest.param("def probe(facts:\n", "SyntaxError", id="syntax"),
        ],
        every=3,
    ),
)
def test_a_script_that_dies_or_says_nothing_has_failed_for_that_reason(
    trial: Trial, script: str, reason: str
) -> None:
    result = trial.one(script)
    assert result["outcome"] == "failed"
    assert reason in result["reason"]


def test_a_script_that_dies_after_its_result_has_failed(trial: Trial) -> None:
    end = "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGSEGV))\n"
    result = trial.one(end + PASSES)
    assert (result["outcome"], result["found"]) == ("failed", 1)
    assert result["reason"].startswith("the result was right, but then: killed by SIGSEGV")


@pytest.mark.slow
def test_a_script_that_hangs_is_given_up_with_all_that_it_started(trial: Trial) -> None:
    script = "import os, time\nif os.fork():\n    time.sleep(600)\ntime.sleep(600)\n"
    result = trial.one(script, seconds=1)
    assert result["outcome"] == "failed"
    assert result["reason"].startswith("no end within 1 s")
    assert result["seconds"] < 10


def test_a_daemon_that_a_script_leaves_is_not_waited_for(trial: Trial) -> None:
    script = "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(20)\n    os._exit(0)\n"
    result = trial.one(script + PASSES)
    assert result["outcome"] == "passed"
    assert result["seconds"] < 10


@pytest.mark.slow
def test_of_a_script_that_never_stops_printing_only_so_much_is_logged(trial: Trial) -> None:
    result = trial.one("line = 'x' * 99 + '\\n'\nfor _ in range(10):\n    print(line * 10000)\nprint('the end')\n")
    assert result["reason"].endswith("KeyError: 'probe'")
    assert 1 << 20 < len(trial.output) < 5 << 20
    assert "--- more was said than is shown ---\n" + MARK in trial.output


def test_a_check_that_needs_another_is_skipped_where_that_one_has_not_passed(trial: Trial) -> None:
    scripts = {"a": "import os\nos.abort()\n", "b": PASSES, "c": PASSES, "d": PASSES}
    found = trial.run(scripts, {"b": ["a"], "c": ["b"]})
    assert [one["outcome"] for one in found] == ["failed", "skipped", "skipped", "passed"]
    assert [one["reason"] for one in found[1:3]] == ["`a` has not passed", "`b` has not passed"]


def test_whatever_a_script_prints_is_logged_and_is_no_result(trial: Trial) -> None:
    forged = json.dumps({"check": "check", "outcome": "passed"})
    noise = f"print('{forged}')\nprint(' {MARK} {forged}')\nprint('no end of line', end='', flush=True)\n"
    result = trial.one(noise + "import os\nos.write(2, b'\\xff\\x00')\nos.abort()\n")
    assert result["outcome"] == "failed"
    assert trial.output.count(forged) == 2


def test_variables_of_a_check_are_its_own_and_its_scratch_folder_is_empty(trial: Trial) -> None:
    script = (
        "import os\nfrom probe import passed\n"
        "def probe(facts):\n"
        "    folder = os.environ['CACHE']\n"
        "    open(os.path.join(folder, 'file'), 'w').close()\n"
        "    return passed('', [os.environ.get('PIP_INDEX_URL'), os.listdir(folder)])\n"
    )
    same = {"environment": {"CACHE": "{scratch}"}}
    found = trial.run({"a": script, "b": script}, a=same, b=same)
    assert [one["found"] for one in found] == [[None, ["file"]]] * 2


# --- pip ------------------------------------------------------------------------------------------------------------


FOR_3_11 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the wheel is for Python 3.11")


def offer(trial: Trial, numpy: str) -> None:
    """Put the wheel and that version of what it requires where the trial looks."""
    name, data = houses.wheel("numpy", numpy, headers="")
    (trial.folder / "wheels" / WHEEL).write_bytes(wheel_of(FILES))
    (trial.folder / "wheels" / name).write_bytes(data)


FILES = {"tensorflow/__init__.py": b"VERSION = '2.18.0'\n"}
IMPORTS = (
    "from probe import passed\ndef probe(facts):\n    import tensorflow\n    return passed('', tensorflow.__file__)\n"
)
BY_PIP = {"install": "", "dependencies": "", "import": IMPORTS}
NEEDS = {"dependencies": ["install"], "import": ["install"]}


@pytest.mark.slow
@FOR_3_11
def test_a_wheel_is_installed_with_what_it_requires_into_an_environment_of_its_own(trial: Trial) -> None:
    offer(trial, "1.26.4")
    found = trial.run(BY_PIP, NEEDS)
    assert [one["outcome"] for one in found] == ["passed"] * 3
    assert found[0]["found"].startswith("2 distributions, with pip ")
    assert found[2]["found"].startswith(str(trial.folder / "work" / "environment"))


@pytest.mark.slow
@FOR_3_11
def test_another_tensorflow_that_the_image_has_is_not_the_one_that_is_tried(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trial.folder / "image/tensorflow").mkdir(parents=True)
    (trial.folder / "image/tensorflow/__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(trial.folder / "image"))
    offer(trial, "1.26.4")
    found = trial.run(BY_PIP, NEEDS)
    assert found[2]["found"].startswith(str(trial.folder / "work" / "environment"))


@pytest.mark.slow
@FOR_3_11
def test_a_wheel_whose_requirement_is_not_in_the_folder_is_not_installed(trial: Trial) -> None:
    offer(trial, "2.2")
    found = trial.run(BY_PIP, NEEDS)
    assert [one["outcome"] for one in found] == ["failed", "skipped", "skipped"]
    assert "numpy<2.1" in found[0]["reason"]


@pytest.mark.slow
@FOR_3_11
def test_requirements_that_contradict_one_another_are_found_by_pip_check(trial: Trial) -> None:
    offer(trial, "1.26.4")
    # Found by what is installed alone: pip itself would not put these together.
    broken = "import os, sys\nfrom probe import passed\ndef probe(facts):\n"
    broken += "    place = [one for one in sys.path if one.endswith('site-packages')][0]\n"
    broken += "    path = os.path.join(place, 'numpy-1.26.4.dist-info', 'METADATA')\n"
    broken += "    open(path, 'a').write('Requires-Dist: nothing-of-that-name>3\\n')\n    return passed('', '')\n"
    found = trial.run({"install": "", "spoil": broken, "dependencies": ""}, {"spoil": ["install"]})
    assert [one["outcome"] for one in found] == ["passed", "passed", "failed"]
    assert "nothing-of-that-name" in found[2]["reason"]


# --- what is computed -----------------------------------------------------------------------------------------------


class Tensor:
    """Of a tensor of TensorFlow 1 the one thing that counts here: whether it is made of constants alone."""

    def __init__(self, *of: object, constant: bool = True) -> None:
        self.constant: bool = constant and all(one.constant for one in of if isinstance(one, Tensor))

    def __add__(self, other: object) -> Tensor:
        return Tensor(self, other)

    __mul__ = __add__


def test_what_the_gpu_computes_in_a_session_is_fed_since_constants_are_worked_out_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No TensorFlow 1 runs here: of its newest by `compat.v1` the timeline showed a constant, and no op at all."""
    ran: list[Tensor] = []

    class Session(nullcontext[Any]):
        def __enter__(self) -> Session:
            return self

        def run(self, tensor: Tensor, feed: Mapping[Tensor, object]) -> float:
            assert all(not one.constant for one in feed)
            ran.append(tensor)
            return 64.0**3

    ops = dict.fromkeys(("ones", "constant", "matmul", "tanh", "reduce_sum"), Tensor)
    tf = SimpleNamespace(
        **ops,
        placeholder=lambda *_: Tensor(constant=False),
        float32=None,
        device=lambda _: nullcontext(),
        ConfigProto=lambda **_: None,
        Session=lambda **_: Session(),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tf)
    monkeypatch.syspath_prepend(SCRIPTS)
    names = runpy.run_path(str(SCRIPTS / "tf1/gpu_op.py"))
    assert names["probe"]({})["outcome"] == "passed"
    assert [one.constant for one in ran] == [False]


# --- old Pythons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(SCRIPTS.rglob("*.py")), ids=lambda path: path.relative_to(SCRIPTS).as_posix())
def test_programs_are_written_for_the_oldest_python_that_an_image_may_have(path: Path) -> None:
    """Nothing that Python 2.7 cannot read; those of `tf2` run on 3.5 and newer."""
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 4))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef, ast.Match)
    assert [ast.dump(node) for node in ast.walk(tree) if isinstance(node, newer)] == []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [one.name for one in functions if one.args.kwonlyargs or one.returns] == []
    assert path.read_bytes().isascii(), "Python 2 wants the encoding to be named"
