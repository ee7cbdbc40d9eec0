"""No build starts that cannot end well: impossible profiles are refused with ways that lead out; neighbours pass.

The cases stand in impossible.yaml, each with its reason. They take the road of `tfdock check`: a file, read, resolved
and planned; every way out is made in the file as a user would make it, and checked again.
"""

from __future__ import annotations

import json
import platform
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfdock.errors import Problem, TfdockError
from tfdock.host.settings import Settings
from tfdock.plan import prepare
from tfdock.plan.prepare import Preparer

from ..desk import MACHINE
from ..samples import SOAK, sample

Case = Mapping[str, Any]
FILE = "profile.yaml"
SHUFFLES = 120  #: How many profiles are made of words drawn at random, always the same ones.
THIS_MACHINE = platform.machine()
ROOT = Path(__file__).resolve().parents[3]
CASES: Mapping[str, Sequence[Case]] = yaml.safe_load(
    (Path(__file__).parents[1] / "data/impossible.yaml").read_text("utf-8")
)


def parameters(kind: str) -> list[Any]:
    """The cases of one kind."""
    names = ((case, case["name"].replace("`", "").replace("[", "(").replace("]", ")")) for case in CASES[kind])
    return [pytest.param(case, id=name) for case, name in names]


@pytest.fixture(scope="module")
def preparer() -> Preparer:
    return Preparer(Settings(), MACHINE)


@pytest.fixture(autouse=True)
def _one_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests run: the case's machine, x86_64 if it names none, without a GPU."""
    case = getattr(request.node, "callspec", None)
    machine = case.params.get("case", {}).get("machine", "x86_64") if case else "x86_64"
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(prepare, "local_gpus", lambda: ())


def written(folder: Path, case: Case) -> Path:
    """The case's files on disk; its profile's path."""
    folder.mkdir(exist_ok=True)
    for name, text in {FILE: case["profile"], **case.get("others", {})}.items():
        (folder / name).write_text(text + "\n", "utf-8")
    return folder / FILE


def refusal(preparer: Preparer, file: Path) -> TfdockError:
    with pytest.raises(TfdockError) as caught:
        preparer.prepare(str(file))
    return caught.value


# --- impossible -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sample(parameters("impossible"), every=4, rest=SOAK))
def test_what_cannot_end_well_is_refused_at_its_field_with_ways_that_lead_out(
    preparer: Preparer, case: Case, tmp_path: Path
) -> None:
    file = written(tmp_path, case)
    error = refusal(preparer, file)
    assert error.exit_code == case["exit"], error.problems
    for code, field in [(case["code"], case["field"]), *case.get("also", ())]:
        problem = found(error.problems, code, field)
        assert problem.message
        assert problem.fix or problem.ways
        assert_stands_at_its_field(problem, case)
    assert all(problem.severity == "error" for problem in error.problems)
    if case["exit"] == 3:
        assert_ways_lead_out(preparer, file, error.problems, case)


def found(problems: Sequence[Problem], code: str, field: str) -> Problem:
    """The problem of that code at that field."""
    told = [(problem.code, problem.field) for problem in problems]
    assert (code, field) in told
    return problems[told.index((code, field))]


def assert_stands_at_its_field(problem: Problem, case: Case) -> None:
    """The line is that of the field's last name, in the file where it stands."""
    texts = {FILE: case["profile"], **case.get("others", {})}
    name = case.get("file", FILE)
    assert Path(problem.file or "").name == name
    assert problem.line, "every refusal has a line"
    assert problem.column
    if case.get("absent"):
        return
    lines = texts[name].splitlines()
    words = re.findall(r"[a-z_]+", problem.field or "")
    # A missing field is told at the one that lacks it.
    wanted = words[-2] if case["code"] == "profile-missing-key" else words[-1]
    assert re.search(rf"\b{wanted}\b", lines[problem.line - 1]), (problem.field, lines[problem.line - 1])


def assert_ways_lead_out(preparer: Preparer, file: Path, problems: Sequence[Problem], case: Case) -> None:
    """There are ways, all different; each is accepted once it is made in the file."""
    ways = problems[0].ways
    changes = [dict(way.change) for way in ways]
    assert bool(changes) is ("no_way" not in case), changes
    assert all(problem.ways == ways for problem in problems), "every problem shows the same ways"
    assert all(changes), "a way that changes nothing is none"
    assert len({repr(sorted(change.items(), key=str)) for change in changes}) == len(changes), changes
    assert "way" not in case or case["way"] in changes, changes
    assert "never" not in case or case["never"] not in changes, changes
    for way in ways:
        assert way.text
        text = changed(case["profile"], way.change)
        mended = file.with_name("mended.yaml")
        mended.write_text(text, "utf-8")
        resolution = preparer.prepare(str(mended)).plan.resolution
        assert resolution.targets or not case.get("wants_devices"), text
        assert way.untested == bool(way.change.get("allow_untested"))


def changed(profile: str, change: Mapping[str, Any]) -> str:
    """A profile's text with a way's fields set. What is removed is null where it stands in an extended profile."""
    document = yaml.safe_load(profile)
    for path, value in change.items():
        *outer, last = path.split(".")
        holder = document
        for name in outer:
            holder = holder.setdefault(name, {})
        if value is None and last in holder:
            del holder[last]
        else:
            holder[last] = value
    return yaml.safe_dump(document, sort_keys=False)


def test_a_way_is_made_in_the_file_by_setting_adding_and_removing_fields() -> None:
    text = "a: '1'\nb: {c: x, d: y}\n"
    change = {"a": "2", "b.c": None, "e": [1], "f.g": "3", "h": None}
    expected = {"a": "2", "b": {"d": "y"}, "e": [1], "f": {"g": "3"}, "h": None}
    assert yaml.safe_load(changed(text, change)) == expected


# --- possible -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", parameters("possible"))
def test_what_can_end_well_is_accepted(preparer: Preparer, case: Case, tmp_path: Path) -> None:
    resolution = preparer.prepare(str(written(tmp_path, case))).plan.resolution
    assert [problem.code for problem in resolution.untested] == case.get("untested", [])
    assert [problem.code for problem in resolution.warnings] == case.get("warnings", [])


# --- whatever else --------------------------------------------------------------------------------------------------

WORDS: Mapping[str, Sequence[object]] = {
    "tensorflow": [
        "1.4.1",
        "1.12.0",
        "1.15.5",
        "2.2.0",
        "2.4.1",
        "2.9.0",
        "2.14.0",
        "2.16.1",
        "2.18.0",
        "2.20.0",
        "3.0",
    ],
    "python": ["2.7", "3.6", "3.8", "3.11", "3.13", "3.14"],
    "gpus": [["k80"], ["gtx770"], ["rtx3080", "v100"], ["h100"], ["rtx5090"], ["mi250"], ["gh200"], ["k80", "mi250"]],
    "compute_capabilities": [["sm_35"], ["sm_70", "compute_80"], ["sm_90a"], ["sm_120"], ["sm86"], ["gfx90a"]],
    "amdgpu_targets": [["gfx90a"], ["gfx1102", "gfx1030"], ["sm_80"]],
    "cuda": ["8.0", "10.1", "11", "11.8", "12.3.1", "12.7", "12.8.1", "13.0.0"],
    "cudnn": ["6", "7.6.5", "8.6", "9.3.0", "9.11.0"],
    "rocm": ["5.0", "6.4", "8.0"],
    "accelerator": ["cuda", "rocm", "cpu", "gpu"],
    "compiler": ["nvcc", "clang", "hipcc"],
    "host_compiler": ["gcc", "clang", "icc", {"name": "gcc", "version": "13"}, {"name": "clang", "version": "21"}],
    "xla": [True, False],
    "optimize": ["native", ["avx2"], ["avx22"]],
    "bazel": [{"version": "0.26.1"}, {"configs": ["v1", "monolithc"]}, {"flags": ["--config=cuda"]}],
    "allow_untested": [True],
    "base": ["ubuntu:22.04"],
}


@pytest.mark.parametrize("seed", sample(range(SHUFFLES), every=4, rest=SOAK))
def test_any_profile_is_accepted_or_refused_with_ways_that_lead_out(
    preparer: Preparer, seed: int, tmp_path: Path
) -> None:
    """Anything but the program's own refusals would be raised, and fail."""
    shuffle = random.Random(seed)
    rest = [name for name in WORDS if name != "tensorflow"]
    names = ["tensorflow", *shuffle.sample(rest, shuffle.randint(1, 4))]
    document = {"schema": 1, **{name: shuffle.choice(WORDS[name]) for name in names}}
    case = {"profile": yaml.safe_dump(document, sort_keys=False), "code": "", "field": ""}
    file = written(tmp_path, case)
    try:
        preparer.prepare(str(file))
    except TfdockError as error:
        refused = error
    else:
        return
    assert refused.exit_code in (2, 3), refused.problems
    assert all(problem.fix or problem.ways for problem in refused.problems)
    if refused.exit_code == 3:
        assert_ways_lead_out(preparer, file, refused.problems, case)


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(THIS_MACHINE != "x86_64", reason="the cases are about building on x86_64")
def test_check_says_the_same_of_all_of_them_in_one_call(tmp_path: Path) -> None:
    cases = [*ordinary("possible"), *ordinary("impossible")]
    files = [written(tmp_path / str(index), case) for index, case in enumerate(cases)]
    status, document = checked(files)
    assert status == 2, "a malformed profile weighs more than an impossible one"
    assert document["ok"] is False
    for case, file, answer in zip(cases, files, document["profiles"], strict=True):
        told = [(problem["code"], problem["field"]) for problem in answer["problems"]]
        assert answer["file"] == str(file)
        assert answer["ok"] is ("exit" not in case), case["name"]
        assert bool(answer["build_id"]) is answer["ok"]
        assert "exit" not in case or (case["code"], case["field"]) in told, case["name"]


@pytest.mark.slow
@pytest.mark.skipif(THIS_MACHINE != "x86_64", reason="the cases are about building on x86_64")
@pytest.mark.parametrize("status", [0, 3], ids=["possible", "impossible"])
def test_the_exit_status_is_that_of_the_worst_profile(status: int, tmp_path: Path) -> None:
    worst = [case for case in ordinary("impossible") if case["exit"] == 3][: 2 if status else 0]
    cases = [*ordinary("possible")[:2], *worst]
    answer, document = checked([written(tmp_path / str(index), case) for index, case in enumerate(cases)])
    assert (answer, document["ok"]) == (status, not status)


def ordinary(kind: str) -> list[Case]:
    """The cases on a machine like this one."""
    return [case for case in CASES[kind] if "machine" not in case]


def checked(files: Sequence[Path]) -> tuple[int, Any]:
    """Exit status and document of `tfdock check --json`, in one process."""
    folder = files[0].parent
    # Without a PATH no tool of a driver is found: this machine has no GPU then either.
    environment = {"PATH": str(folder), "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tfdock", "check", "--json", *map(str, files)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


# --- the cases themselves -------------------------------------------------------------------------------------------


# What no profile for this machine provokes, with the shipped rows.
BEYOND_PROFILES = {
    "knowledge-placeholder": "a fault of the rows, and of no profile",
    "component-missing": "every release names what it was tested with",
    "native-in-lock": "`tfdock lock` says it",
}


def test_every_code_of_the_rules_is_provoked(preparer: Preparer) -> None:
    rules = {row.code for row in preparer.knowledge.codes.values() if {"deciding", "rules"} & set(row.source)}
    provoked = {"component-disputed", "gpu-jit"}  # warnings, among the possible
    for case in ordinary("impossible") + [case for case in CASES["impossible"] if "machine" in case]:
        provoked |= {case["code"], *(code for code, _ in case.get("also", ()))}
    assert rules - provoked == set(BEYOND_PROFILES) & rules


def test_there_are_enough_cases_and_each_has_its_own_name() -> None:
    names = [case["name"] for cases in CASES.values() for case in cases]
    assert len(set(names)) == len(names)
    assert len(CASES["impossible"]) >= 80
    assert len(CASES["possible"]) >= 40
    assert all(case["why"] for case in CASES["impossible"])
