"""`tfdock matrix`: what it prints for people, programs and CI services, and what it leaves out.

`make golden` writes tests/golden-matrix anew; the diff is then read line by line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tfdock.cli import ci_log
from tfdock.cli.commands import matrix as matrix_command
from tfdock.errors import Incompatible, Problem
from tfdock.host import hardware
from tfdock.host.settings import load
from tfdock.knowledge import loader
from tfdock.matrix.matrix_report import matrix_document
from tfdock.matrix.planned_matrix import Cells, cells
from tfdock.plan.prepare import Preparer
from tfdock.profile.profile import Profile
from tfdock.types import BuildId
from tfdock.wheelhouse import publication
from tfdock.wheelhouse.store import WheelFile, Wheelhouse

from .. import command_line, houses
from ..desk import MACHINE, problems_of

GOLDEN = Path(__file__).parents[2] / "golden-matrix"
BASE = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ngpus: [rtx3080]\n'
MATRIX = """\
schema: 1
base: base.yaml
axes:
  python: ["3.11", "3.12"]
  gpus: [[rtx3080], [rtx2080], [rtx5090]]
exclude:
  - when: {python: "3.12", gpus: [rtx2080]}
    reason: "nobody asked"
overrides:
  - when: {gpus: [rtx2080]}
    runner: [self-hosted, gpu]
"""
FIRST = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64"
OTHER = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm75-x86_64"
THIRD = "tf2.18.0-py3.12-cuda12.5.1-cudnn9.3.0-sm86-x86_64"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "local_machine", lambda: MACHINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "m.yaml").write_text(MATRIX)
    return tmp_path


PATCH = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


def run(folder: Path, *words: str, code: int = 0, **variables: str) -> Result:
    variables = {"TFDOCK_REGISTRIES": "", "TFDOCK_WHEELHOUSE": str(folder / "wheels"), **variables}
    result = command_line.run("matrix", folder / "m.yaml", *words, **variables)
    assert result.exit_code == code, result.output
    return result


def matrix(folder: Path, text: str) -> None:
    """Write a matrix over the base."""
    (folder / "m.yaml").write_text(f"schema: 1\nbase: base.yaml\n{text}")


def document(folder: Path, *words: str) -> dict[str, Any]:
    found = command_line.document(run(folder, *words, "--format", "json"), "tfdock.matrix/1")
    assert found["ok"] is True
    return found


def names(told: Mapping[str, Any]) -> list[str]:
    return [cell["build_id"] for cell in told["include"]]


def refused(folder: Path) -> list[Problem]:
    return problems_of(lambda: planned(folder))


def planned(folder: Path) -> Cells:
    return cells(folder / "m.yaml", Preparer(load({}, {}), MACHINE))


# --- what there is to be had ----------------------------------------------------------------------------------------


def test_each_cell_is_planned_as_the_profile_alone_would_be(folder: Path) -> None:
    found = planned(folder)
    preparer = Preparer(load({}, {}), MACHINE)
    statuses = "missing missing impossible missing excluded impossible"
    assert [cell.status for cell in found.cells] == statuses.split()
    for cell in found.wanted:
        (folder / "alone.yaml").write_text(json.dumps(cell.profile))
        alone = preparer.prepare(str(folder / "alone.yaml")).plan
        again = found.prepared(cell).plan
        assert (cell.build_id, cell.fingerprint) == (alone.build_id, alone.fingerprint)
        assert again == alone
    for cell in found.cells:
        if cell.status == "impossible":
            (folder / "alone.yaml").write_text(json.dumps(cell.profile))
            with pytest.raises(Incompatible) as caught:
                preparer.resolve(str(folder / "alone.yaml"))
            assert [one.code for one in cell.problems] == [one.code for one in caught.value.problems]


def test_what_cannot_be_is_told_with_the_knowledge_bases_own_code_at_its_line_and_fails_nothing(folder: Path) -> None:
    impossible, _, excluded = sorted(document(folder)["excluded"], key=lambda one: one["status"], reverse=True)
    assert excluded["fields"] == {"python": "3.12", "gpus": ["rtx2080"]}
    assert (excluded["code"], excluded["reason"]) == ("matrix-excluded", "nobody asked")
    assert (excluded["line"], excluded["column"], excluded["problems"]) == (7, 5, [])
    assert (impossible["code"], impossible["line"], impossible["column"]) == ("capability-syntax", 5, 33)
    assert impossible["file"] == str(folder / "m.yaml")
    assert impossible["reason"] == "TensorFlow 2.18 does not accept the capability `sm_120`"
    assert impossible["problems"][0]["why"]
    shown = run(folder).stdout
    assert f"nobody asked [matrix-excluded] {folder}/m.yaml:7:5\n" in shown
    assert f"`sm_120` [capability-syntax] {folder}/m.yaml:5:33\n" in shown


def test_two_cells_that_are_one_wheel_are_refused_with_both_lines(folder: Path) -> None:
    matrix(folder, "axes:\n  gpus:\n    - [rtx3080]\n    - [rtx3090]\n")
    (problem,) = refused(folder)
    assert (problem.code, problem.line, problem.column) == ("build-id-twice", 6, 7)
    assert problem.message == f"two cells make the same wheel, {FIRST}: this cell and the cell of line 5, column 7"
    told = json.loads(run(folder, "--format", "json", code=2).stdout)
    assert (told["ok"], told["problems"][0]["code"]) == (False, "build-id-twice")


def test_two_cells_that_differ_in_the_name_of_the_wheel_alone_are_two_builds(folder: Path) -> None:
    matrix(folder, "axes:\n  wheel.name: [tensorflow, my-tensorflow]\n")
    cells = document(folder)["include"]
    assert [one["build_id"] for one in cells] == [FIRST, FIRST.replace("-x86_64", "-my_tensorflow-x86_64")]


def test_two_cells_whose_wheels_are_files_of_one_name_are_refused(folder: Path) -> None:
    text = 'schema: 1\nbase: base.yaml\nprofile: {cudnn: "9.3.0"}\naxes:\n  cuda: ["12.5.0", "12.5.1"]\n'
    (folder / "m.yaml").write_text(text)
    (problem,) = refused(folder)
    assert (problem.code, problem.line, problem.column) == ("wheel-name-twice", 5, 20)
    assert problem.message.startswith(f"{FIRST.replace('12.5.1', '12.5.0')} and {FIRST} have the same file name: ")
    own = "  - {when: {cuda: '12.5.0'}, set: {wheel.local_version: cuda12.5.0.sm86}}\n"
    (folder / "m.yaml").write_text(f"{text}overrides:\n{own}")
    assert len(planned(folder).wanted) == 2


def test_what_is_wrong_with_a_value_is_told_once_however_many_cells_have_it(folder: Path) -> None:
    axes = 'axes: {python: ["3.11", "3.12"], tensorflow: ["2.18.0", 2.17], gpus: [[rtx3080], [rtx2080]]}\n'
    matrix(folder, axes)
    (problem,) = refused(folder)
    assert (problem.code, problem.line, problem.column) == ("version-not-text", 3, 57)


@pytest.mark.parametrize(
    ("rule", "code", "place"),
    [
        ("when: {python: 3.11}", "version-not-text", "4:27"),
        ("when: {pyhton: '3.11'}", "profile-unknown-key", "4:19"),
        ("when: {bazel.versoin: '3.11'}", "profile-unknown-key", "4:19"),
    ],
)
def test_a_rule_that_is_misspelt_is_refused(folder: Path, rule: str, code: str, place: str) -> None:
    text = f"schema: 1\nbase: base.yaml\naxes: {{xla: [true]}}\nexclude: [{{{rule}, reason: x}}]\n"
    (folder / "m.yaml").write_text(text)
    (problem,) = refused(folder)
    assert (problem.code, problem.where) == (code, f"{folder}/m.yaml:{place}")


def test_what_a_cell_names_is_relative_to_the_matrix_and_must_be_there(folder: Path) -> None:
    source = "tensorflow: [{release: '2.18.0', patches: [a.patch]}]"
    matrix(folder, f"axes: {{{source}}}\n")
    (problem,) = refused(folder)
    assert (problem.code, problem.line, problem.column) == ("source-missing", 3, 51)
    (folder / "a.patch").write_text(PATCH)
    (cell,) = planned(folder).wanted
    assert cell.name.startswith("tf2.18.0-")
    assert "-p" in cell.name
    (folder / "a.patch").chmod(0)
    if not os.access(folder / "a.patch", os.R_OK):  # root reads everything
        assert refused(folder)[0].code == "file-unreadable"


def test_what_the_base_names_is_relative_to_the_base(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "own/source").mkdir(parents=True)
    base = 'schema: 1\ntensorflow: {release: "2.18.0", path: source, patches: [a.patch]}\n'
    (folder / "own/base.yaml").write_text(base)
    (folder / "m.yaml").write_text('schema: 1\nbase: own/base.yaml\naxes: {python: ["3.11"]}\n')
    (problem,) = refused(folder)
    assert problem.where == f"{folder}/own/base.yaml:2:39"
    assert (problem.code, problem.fix) == ("source-missing", SOURCE_FIX)
    (folder / "own/source/configure").write_text("")
    (folder / "own/a.patch").write_text(PATCH)
    (cell,) = planned(folder).wanted
    alone = Preparer(load({}, {}), MACHINE).prepare(str(folder / "own/base.yaml"))
    assert planned(folder).prepared(cell).tree == alone.tree == folder / "own/source"
    # A value of the matrix itself is relative to the matrix.
    (folder / "m.yaml").write_text(
        "schema: 1\nbase: own/base.yaml\naxes: {tensorflow.patches: [[], [a.patch], [own/a.patch]]}\n"
    )
    assert [problem.column for problem in refused(folder)] == [34]


SOURCE_FIX = "give the root of a TensorFlow checkout, relative to the file that names it"


def test_a_rule_by_which_nobody_is_meant_is_a_warning(folder: Path) -> None:
    (folder / "m.yaml").write_text(MATRIX.replace("[rtx2080]}\n    reason", "[rtx9999]}\n    reason"))
    assert "m.yaml:7:5: warning: no cell matches this rule [matrix-rule-idle]" in run(folder).stderr


def test_a_matrix_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "m.yaml"):
        where.mkdir(exist_ok=True)
        assert "[matrix-not-found]" in run(tmp_path, code=2).stderr


def test_a_matrix_is_not_a_profile_of_that_name() -> None:
    result = command_line.run("check", "matrix")
    assert result.exit_code == 2
    assert "[profile-not-found]" in result.stderr


@pytest.mark.parametrize("name", ["rtx4090", "rtx3090", "h100", "rtx5070ti", "rtx2080", "sm_89", "rtx4090.yaml"])
def test_a_gpu_is_not_corrected_to_the_profile_of_another(name: str) -> None:
    result = command_line.run("check", name)
    assert result.exit_code == 2
    gpu = name.removesuffix(".yaml")
    assert f"`{gpu}` is a GPU, not a profile [profile-not-found]" in result.stderr
    assert f"`tfdock init {gpu} --yes` writes {gpu}.yaml" in result.stderr
    assert f"`tfdock advise --gpu {gpu}`" in result.stderr
    assert "did you mean" not in result.stderr


@pytest.mark.parametrize(
    ("name", "near"),
    [("rtx4095", None), ("rtx", None), ("rtx3080-tf2.4", "rtx3080-tf2.4-cuda11.1"), ("cpu_native", "cpu-native")],
)
def test_a_correction_changes_no_number(name: str, near: str | None) -> None:
    result = command_line.run("check", name, COLUMNS="1000")
    assert ("did you mean" in result.stderr) == (near is not None)
    assert near is None or f"did you mean `{near}`?" in result.stderr


# --- which of them --------------------------------------------------------------------------------------------------


def test_build_ids_are_chosen_by_patterns(folder: Path) -> None:
    told = document(folder, "--only", "*-py3.12-*", "--only", OTHER)
    assert names(told) == [OTHER, THIRD]
    assert told["excluded"] == [], "nobody asked for those"


def test_nothing_left_is_fine_and_said(folder: Path) -> None:
    result = run(folder, "--only", "x*", "--format", "github")
    assert json.loads(result.stdout) == {"include": []}
    assert "nothing to build" in result.stderr


def test_an_unknown_name_is_an_error_of_its_place_and_no_impossible_cell(folder: Path) -> None:
    for axis, place, code in (
        ('tensorflow: ["2.18.0", "2.99.0"]', "m.yaml:4:26", "release-unknown"),
        ("gpus: [[rtx3080], [rtx3O80]]", "m.yaml:4:22", "gpu-unknown"),
    ):
        matrix(folder, f"axes:\n  {axis}\n")
        result = run(folder, "--missing", "--format", "github", code=2)
        assert (result.stdout, result.stderr.count("error: ")) == ("", 1)
        assert re.search(rf"{place}: error: .*\[{code}\]", result.stderr)


@pytest.mark.parametrize("words", [("--missing", "--format", "github"), ("--format", "gitlab"), ("--only", "x*"), ()])
def test_a_matrix_without_a_possible_cell_is_refused_with_the_reasons(folder: Path, words: tuple[str, ...]) -> None:
    matrix(
        folder,
        "axes:\n  python: ['3.11', '3.12']\n  gpus: [[rtx5090], [rtx2080]]\n"
        "exclude: [{when: {gpus: [rtx2080]}, reason: none here}]\n",
    )
    result = run(folder, *words, code=3)
    assert result.stdout == ""
    assert "no cell can be built: 2 impossible, 2 excluded [matrix-impossible]" in result.stderr
    assert result.stderr.count("m.yaml:5:11: error: TensorFlow 2.18 does not accept the capability `sm_120`") == 1


def test_a_matrix_without_a_possible_cell_is_not_built(folder: Path) -> None:
    matrix(folder, "axes:\n  gpus: [[rtx5090]]\n")
    result = command_line.run("build", "--matrix", folder / "m.yaml", "--wheelhouse", folder / "w")
    assert (result.exit_code, "[matrix-impossible]" in result.stderr) == (3, True), result.output


def test_without_an_engine_a_matrix_says_so_once_and_builds_no_cell(folder: Path) -> None:
    words = ("build", "--matrix", folder / "m.yaml", "--wheelhouse", folder / "wheels")
    for more in ([], ["-j", "auto"]):
        result = command_line.run(*words, *more, DOCKER_HOST="tcp://127.0.0.1:1")
        assert (result.exit_code, result.stdout) == (6, "")
        assert len(result.stderr.splitlines()) == 3, result.stderr
        assert "3 of 6 cells to build" in result.stderr
        assert result.stderr.count("[engine-unavailable]") == 1


def test_where_every_wheel_exists_nothing_is_left_and_the_reason_is_said(folder: Path) -> None:
    matrix(folder, "axes:\n  gpus: [[rtx3080], [rtx5090]]\n")
    publish(houses.house(folder / "wheels"), document(folder)["include"][0])
    result = run(folder, "--missing", "--format", "github")
    assert json.loads(result.stdout) == {"include": []}
    assert "m.yaml: 1 wheel is in the wheelhouse or in a registry" in result.stderr
    assert "m.yaml: nothing to build" in result.stderr


def test_a_pattern_that_means_nobody_is_a_warning(folder: Path) -> None:
    result = run(folder, "--only", "*-py3.12-*", "--only", "*-py312-*", "--only", "\x1b[", "--only", "*-sm120-*")
    assert result.stderr.count("[matrix-only-idle]") == 3
    for pattern in ("*-py312-*", "\\x1b[", "*-sm120-*"):
        assert f"no cell that can be built matches `{pattern}` [matrix-only-idle]" in result.stderr
    assert "py3.12" in result.stdout


def test_a_table_gives_github_no_commands_whatever_a_reason_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ci_log, "here", lambda: ci_log.GitHub({"GITHUB_ACTIONS": "true"}))
    (folder / "m.yaml").write_text(MATRIX.replace("nobody asked", "::set-output name=plan::x ##[add-mask]x"))
    for columns in ("400", "40"):
        result = run(folder, COLUMNS=columns)
        assert "name=plan" in result.stdout
        assert not re.search(r"^\s*::|##\[", result.stdout, re.MULTILINE)


def test_a_jobs_page_does_not_call_missing_what_nobody_has_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = folder / "summary.md"
    monkeypatch.setattr(ci_log, "here", lambda: ci_log.GitHub({"GITHUB_STEP_SUMMARY": str(page)}))
    publish(houses.house(folder / "wheels"), document(folder)["include"][0])
    run(folder, "--format", "github", "--only", FIRST)
    assert f"| {FIRST} | to build | " in page.read_text()


def test_a_few_cells_touch_every_value_that_can_be_built(folder: Path) -> None:
    assert names(document(folder, "--smoke")) == [OTHER, THIRD]


def publish(house: Wheelhouse, cell: Mapping[str, Any], domain: str = "release") -> Path:
    """A wheel, as if the build of that cell had made it."""
    name = BuildId(cell["build_id"])
    file, data = houses.wheel(salt=name)
    (house.root / "new").write_bytes(data)
    sealed = {house.root / "new": WheelFile(file=file, sha256=hashlib.sha256(data).hexdigest(), size=len(data))}
    publication.publish(house, name, houses.record(name, cell["fingerprint"], file, data, 1.7e9, domain), sealed)
    return house.root / file


def test_what_lies_in_the_wheelhouse_is_not_missing_until_its_wheel_goes(folder: Path) -> None:
    house = houses.house(folder / "wheels")
    wheel = publish(house, document(folder)["include"][0])
    told = document(folder)
    assert [(cell["build_id"], cell["status"]) for cell in told["include"]] == [
        (FIRST, "here"), (OTHER, "missing"), (THIRD, "missing"),
    ]  # fmt: skip
    assert names(document(folder, "--missing")) == [OTHER, THIRD]
    (folder / "base.yaml").write_text(BASE + "bazel: {copts: [-O3]}\n")
    assert names(document(folder, "--missing")) == [FIRST, OTHER, THIRD], "that is another build"
    (folder / "base.yaml").write_text(BASE)
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert names(document(folder, "--missing")) == [FIRST, OTHER, THIRD]


def test_a_build_of_another_trust_domain_counts_as_missing(folder: Path) -> None:
    publish(houses.house(folder / "wheels"), document(folder)["include"][0], domain="f" * 16)
    assert names(document(folder, "--missing")) == [FIRST, OTHER, THIRD]


def test_a_registry_that_does_not_answer_is_a_warning_but_not_where_it_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdock.oci.http.random.uniform", lambda *_: 0.005)  # nobody waits to try again
    nobody = "127.0.0.1:1/wheels"
    result = run(folder, TFDOCK_REGISTRIES=nobody)
    assert result.stderr.count("[registry-unreachable]") == 1
    assert "the wheels in this registry count as missing" in result.stderr
    result = run(folder, "--missing", "--format", "github", code=7, TFDOCK_REGISTRIES=nobody)
    assert result.stdout == "", "hours of building would follow"


def test_costs_are_told_from_the_records_of_builds(folder: Path) -> None:
    cell = document(folder)["include"][0]
    house = houses.house(folder / "wheels")
    publish(house, cell)
    file = house.record_folder(BuildId(FIRST), cell["fingerprint"]).path / "record.json"
    record = json.loads(file.read_text())
    record |= {
        "seconds": {"compile": 1000.0, "verify": 20.0},
        "machine": {"cpus": MACHINE.cpus, "memory": MACHINE.memory},
    }
    file.write_text(json.dumps(record))
    first, other, _ = document(folder)["include"]
    assert (first["seconds"], other["seconds"]) == (1020.0, 1020.0)


# --- what has changed since an earlier listing ----------------------------------------------------------------------


def earlier(folder: Path, *words: str) -> str:
    """Return a file with what `tfdock matrix --json` prints of the folder as it is, copied to another place."""
    place = Path(tempfile.mkdtemp(dir=folder.parent))
    shutil.copytree(folder, place / "copy", symlinks=True)
    copied = [word.replace(str(folder), str(place / "copy")) for word in words]
    (place / "then.json").write_text(run(place / "copy", *copied, "--json").stdout)
    return str(place / "then.json")


@pytest.fixture
def project(folder: Path) -> Path:
    """The matrix in a repository, in a folder of its own."""
    project = folder / "project"
    (project / ".git").mkdir(parents=True)
    for name in ("base.yaml", "m.yaml"):
        (folder / name).rename(project / name)
    return project


def test_nothing_has_changed_since_the_same_files_lay_in_another_folder(project: Path) -> None:
    (project / "tensorflow/a").mkdir(parents=True)
    (project / "tensorflow/configure").write_text("")
    (project / "tensorflow/a/link").symlink_to("/nowhere/at all")
    (project / "a.patch").write_text(PATCH)
    text = '{release: "2.18.0", path: tensorflow, patches: [a.patch]}'
    (project / "base.yaml").write_text(BASE.replace('"2.18.0"', text))
    then = earlier(project)
    assert names(document(project, "--changed-since", then)) == []
    (project / "tensorflow/configure").chmod(0o755)
    assert len(names(document(project, "--changed-since", then))) == 3
    (project / "tensorflow/configure").chmod(0o644)
    (project / "a.patch").write_text(PATCH.replace("+b", "+c"))
    assert len(names(document(project, "--changed-since", then))) == 3


def test_a_cell_that_is_new_or_is_built_otherwise_has_changed(project: Path) -> None:
    then = earlier(project)
    text = MATRIX.replace('"3.12"]', '"3.12", "3.10"]') + "    set: {bazel.copts: [-O3]}\n"
    (project / "m.yaml").write_text(text)
    expected = [OTHER, THIRD.replace("py3.12", "py3.10"), OTHER.replace("py3.11", "py3.10")]
    assert names(document(project, "--changed-since", then)) == expected
    assert names(document(project, "--changed-since", earlier(project))) == []


@pytest.mark.slow
def test_what_the_knowledge_beside_it_changes_is_seen(project: Path) -> None:
    rows = project / "knowledge"
    rows.mkdir()
    text = 'rows:\n  - {flag: "--copt=-DA", releases: "2.0..", source: x, checked: "2026-11-21"}\n'
    (rows / "flags.yaml").write_text(text)
    words = ("--knowledge", str(rows))
    then = earlier(project, *words)
    assert names(document(project, *words, "--changed-since", then)) == []
    (rows / "flags.yaml").write_text(text.replace("-DA", "-DB"))
    assert len(names(document(project, *words, "--changed-since", then))) == 3


@pytest.mark.parametrize("text", ["schema: 1\n", "schema: 1\nbase: base.yaml\naxes: {gpus: [[rtx5090]]}\n", None])
def test_a_matrix_that_was_not_there_or_had_no_cells_has_all_its_cells_changed(
    project: Path, text: str | None
) -> None:
    then = project / "then.json"
    (project / "m.yaml").unlink()
    if text:
        (project / "m.yaml").write_text(text)
    then.write_text(run(project, "--json", code=3 if text and "axes" in text else 2).stdout)
    (project / "m.yaml").write_text(MATRIX)
    (project / "link").symlink_to(then)
    assert len(names(document(project, "--changed-since", str(project / "link")))) == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "a list is invalid"),
        ('{"schema": "tfdock.plan/1"}', "`schema`: 'tfdock.plan/1' is invalid"),
        ('{"schema": "tfdock.matrix/1", "include": [{"build_id": 1}]}', "`include.0.build_id`: '1' is invalid"),
    ],
)
def test_an_earlier_listing_that_cannot_be_read_is_refused(folder: Path, text: str | None, why: str) -> None:
    then = folder / "then.json"
    if text is not None:
        then.write_text(text)
    told = " ".join(run(folder, "--changed-since", str(then), code=2).stderr.split())
    assert f"{then}: error: cannot read the earlier listing of the matrix: {why} [matrix-then]" in told


def test_an_earlier_listing_is_a_plain_file_of_some_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("nowhere")
    for name in ("pipe", "link", "", ".."):
        assert "[matrix-then]" in run(folder, "--changed-since", str(folder / name), code=2).stderr
    monkeypatch.setattr("tfdock.matrix.matrix_report._MOST_READ", 10)
    assert "more than 10 bytes" in run(folder, "--changed-since", str(folder / "m.yaml"), code=2).stderr


# --- formats --------------------------------------------------------------------------------------------------------


def test_github_gets_one_line_and_each_job_its_cells_labels_and_minutes(folder: Path) -> None:
    result = run(folder, "--format", "github", "--shards", "1")
    assert result.stdout.count("\n") == 1
    both, gpu = json.loads(result.stdout)["include"]
    minutes = gpu["minutes"]
    assert minutes > 60
    assert gpu == {"job": OTHER, "cells": OTHER, "runner": ["self-hosted", "gpu"], "minutes": minutes}
    assert both["job"] == f"{FIRST}+1"
    assert both["cells"] == f"{FIRST} {THIRD}"


@pytest.mark.slow
def test_more_jobs_than_a_service_takes_are_split(folder: Path) -> None:
    axes = {
        "bazel.copts": [["-O2"]],
        "compute_capabilities": [[f"compute_{n}", *m] for n in (60, 70, 75) for m in extra()],
    }
    (folder / "m.yaml").write_text(json.dumps({"schema": 1, "base": "base.yaml", "axes": axes}))
    count = len(planned(folder).wanted)
    assert count > 256
    parts = json.loads(run(folder, "--format", "github").stdout)
    assert [len(part["include"]) for part in parts] == [256, count - 256]
    told = json.loads(run(folder, "--format", "gitlab").stdout)
    assert len(told) == count
    whole = json.loads(run(folder, "--format", "github", "--shards", "256").stdout)
    assert len(whole["include"]) == 256
    assert sum(len(job["cells"].split()) for job in whole["include"]) == count


def extra() -> Iterator[list[str]]:
    """Further capabilities: seven of them, in every combination."""
    known = ["sm_50", "sm_52", "sm_61", "sm_80", "sm_86", "sm_89", "sm_90"]
    yield from ([one for bit, one in enumerate(known) if chosen & 1 << bit] for chosen in range(100))


def test_the_shipped_matrix_is_told_in_every_format_as_it_was_read_last(refresh_golden: bool) -> None:
    found = cells(loader.profiles() / loader.MATRIX, Preparer(load({}, {}), MACHINE))
    here = f"{loader.profiles()}/"
    jobs, shards = matrix_command.jobs_of(found, None), matrix_command.jobs_of(found, 3)
    files = {
        "matrix.json": json.dumps(matrix_document(found, jobs), indent=2, ensure_ascii=False) + "\n",
        "github.json": matrix_command.github_line(jobs) + "\n",
        "github-3.json": matrix_command.github_line(shards) + "\n",
        "gitlab.json": matrix_command.gitlab_line(jobs) + "\n",
        "table.txt": "\n".join(matrix_command.table_lines(found, shards, sharded=True)) + "\n",
        "smoke.txt": "\n".join(cell.name for cell in found.smoke().wanted) + "\n",
    }
    files = {name: text.replace(here, "profiles/") for name, text in files.items()}
    if refresh_golden:
        shutil.rmtree(GOLDEN, ignore_errors=True)
        GOLDEN.mkdir()
        for name, text in files.items():
            (GOLDEN / name).write_text(text, "utf-8")
    assert {path.name for path in GOLDEN.iterdir()} == set(files)
    for name, text in files.items():
        assert text == (GOLDEN / name).read_text("utf-8"), "if it is meant: make golden, and read the diff"


def test_the_shipped_matrix_is_true() -> None:
    """Every cell can be built, but for those that docs/matrix.md says cannot; and none is untested."""
    found = cells(loader.profiles() / loader.MATRIX, Preparer(load({}, {}), MACHINE))
    assert found.warnings == ()
    assert len(found.wanted) == 13
    assert {cell.code for cell in found.cells} == {None, "matrix-excluded", "capability-syntax"}
    assert all(Profile.model_validate(cell.profile) for cell in found.wanted)
    assert [problem.message for cell in found.wanted for problem in cell.warnings] == []
