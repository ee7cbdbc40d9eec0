"""A matrix on this machine, for real: one cell fails, one cannot be, one is up to date, one is only in a registry.

Whoever is asked says the same: table, exit status, XML, page, JSON, and what GitHub hears.
"""

from __future__ import annotations

import json
import re
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tfdock.cli.matrix_run import as_build

from .conftest import Finished, Workshop
from .harness import Json, Outcome, Tfdock, after_first_line, closed_port, copy_tree, write_profile
from .registries import OwnRegistry
from .runner import commands, outputs

BROKEN = {"configure": after_first_line("echo 'tfdock: no such compiler'; exit 3")}
FAILED, IMPOSSIBLE, BUILT, UP_TO_DATE, REGISTRY = "failed", "impossible", "built", "up to date", "in a registry"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A matrix that was built twice with `--missing`, and what was told of it each time."""

    tfdock: Tfdock
    matrix: Path
    registry: OwnRegistry
    first: Outcome
    second: Outcome
    reports: Path
    github: Path

    def report(self, which: str) -> Json:
        document: Json = json.loads((self.reports / which / "report.json").read_text())
        return document

    def cells(self, which: str) -> dict[str, Json]:
        """The cells of a report by status."""
        cells = self.report(which)["cells"]
        found = {one["status"]: one for one in cells}
        assert len(found) == len(cells)
        return found


@pytest.fixture(scope="module")
def built(
    workshop: Workshop, finished: Finished, registry: OwnRegistry, tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """The miniature for a GPU, which a registry has; the same under another name; the same of a source that cannot
    be configured; and for a GPU that no CUDA 13 compiles for."""
    folder = tmp_path_factory.mktemp("matrix")
    where = f"{registry.address}/me/wheels"
    finished.tfdock.run("image", "push", finished.profile, where, code=0)
    broken = copy_tree(workshop.tree(), folder / "broken", BROKEN)
    (folder / "base.yaml").write_text(finished.profile.read_text())
    matrix = folder / "matrix.yaml"
    matrix.write_text(
        "schema: 1\n"
        "base: base.yaml\n"
        "axes:\n"
        "  compute_capabilities: [[sm_86], [sm_30], [sm_89]]\n"
        "exclude:\n"
        "  - when: {compute_capabilities: [sm_89]}\n"
        "    reason: nobody | has <one>\n"
        "include:\n"
        f'  - {{tensorflow.path: "{broken}"}}\n'
        "  - {wheel.name: my_tensorflow}\n"
        f"ci: {{registry: {where}}}\n"
    )
    github = folder / "github"
    github.mkdir()
    tfdock = workshop.tfdock()
    told = [
        tfdock.with_variables(**more).run(
            "build", "--matrix", matrix, "--missing", "--registry", where, "--report", folder / name, "-j", jobs
        )
        for name, jobs, more in (("first", "2", {}), ("second", "1", variables(github, folder)))
    ]
    return Built(
        tfdock=tfdock, matrix=matrix, registry=registry, first=told[0], second=told[1], reports=folder, github=github
    )


def variables(folder: Path, workspace: Path) -> dict[str, str]:
    """What GitHub's runner sets for a step."""
    return {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(workspace),
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }


def rows(outcome: Outcome) -> dict[str, str]:
    """The table that was told at the end: the first word of a row's cell, by outcome."""
    table = outcome.stderr.rpartition("\n\n")[2]
    found = re.findall(r"^  (failed|impossible|excluded|built|up to date|in a registry) +(\S+)", table, re.MULTILINE)
    return dict(found)


@pytest.mark.engine
def test_what_can_be_built_is_built_whatever_becomes_of_the_rest(built: Built) -> None:
    assert built.first.code == 1, built.first.told
    cells = built.cells("first")
    assert set(cells) == {"registry", "impossible", "excluded", "failed", "built"}
    assert cells["failed"]["code"] == "image-step-failed"
    wheel = built.tfdock.wheelhouse / cells["built"]["wheels"][0]["path"]
    assert built.first.stdout == f"{wheel}\n"
    assert wheel.is_file()
    assert (built.tfdock.wheelhouse / cells["failed"]["log"]).is_file()
    # The one that comes after the one that failed.
    assert rows(built.first)["built"] == cells["built"]["build_id"]
    assert built.tfdock.leftovers == []


@pytest.mark.engine
def test_a_wheel_of_another_name_has_a_build_id_constraints_and_tags_of_its_own(built: Built) -> None:
    cells = built.cells("first")
    build_id = cells["built"]["build_id"]
    assert build_id == cells["registry"]["build_id"].replace("-x86_64", "-my_tensorflow-x86_64")
    wheel = Path(cells["built"]["wheels"][0]["path"]).name
    assert wheel.startswith("my_tensorflow-99.18.0+")
    constraints = (built.tfdock.wheelhouse / f"{build_id}.constraints.txt").read_text()
    assert "my-tensorflow==99.18.0+" in constraints
    pushed = built.tfdock.run("image", "push", "--json", build_id, f"{built.registry.address}/me/others", code=0)
    (image,) = pushed.document["images"]
    assert build_id in image["tags"]


@pytest.mark.engine
def test_the_same_command_goes_on_where_it_was(built: Built) -> None:
    assert built.second.code == 1, built.second.told
    first, second = built.cells("first"), built.cells("second")
    assert set(second) == {"registry", "impossible", "excluded", "failed", "up-to-date"}
    assert second["up-to-date"]["build_id"] == first["built"]["build_id"]
    assert built.second.stdout == ""


@pytest.mark.engine
@pytest.mark.parametrize("which", ["first", "second"])
def test_table_exit_status_junit_page_and_json_say_the_same(built: Built, which: str) -> None:
    outcome = built.first if which == "first" else built.second
    report = built.report(which)
    assert (report["exit_code"], report["ok"]) == (outcome.code, False)
    words = {"up-to-date": UP_TO_DATE, "registry": REGISTRY}
    names = {words.get(one["status"], one["status"]): one["name"] for one in report["cells"]}
    assert report["counts"] == {one["status"]: 1 for one in report["cells"]}
    # The table, of which a name without a build id is several words.
    assert rows(outcome) == {word: name.split()[0] for word, name in names.items()}
    suite = ElementTree.parse(built.reports / which / "junit.xml").getroot()
    tags = {"failed": "failure", "built": None, UP_TO_DATE: None}
    assert {case.get("name"): case[0].tag if len(case) else None for case in suite.iter("testcase")} == {
        name: tags.get(word, "skipped") for word, name in names.items()
    }
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "3")
    page = (built.reports / which / "report.html").read_text()
    shown = re.findall(r'<td class="status \w+">. ([^<]+)</td>\n<th scope="row">(?:<a [^>]*>)?([^<]+)', page)
    assert dict(shown) == names
    assert f"exit status {outcome.code}" in page
    failed = next(one for one in report["cells"] if one["status"] == "failed")
    for text in (outcome.stderr, page, ElementTree.tostring(suite, encoding="unicode")):
        assert failed["code"] in text
        assert "target-not-in-toolkit" in text
        assert "no such compiler" in text
        for line in ("4:36", "6:5"):  # the value that no toolkit has, and the rule that wants none
            assert f"{built.matrix}:{line}" in text


@pytest.mark.engine
def test_github_hears_it_too(built: Built) -> None:
    found = commands(built.second.stderr)
    assert [one.name for one in found] == ["group", "endgroup", "error"]
    failed = built.cells("second")["failed"]
    assert found[0].data == failed["build_id"]
    assert found[2].properties["title"] == "image-step-failed"
    assert outputs((built.github / "output").read_text()) == {"ok": "false", "exit-code": "1"}
    summary = (built.github / "summary.md").read_text()
    shown = re.findall(r"^\| ([a-z ]+) \| ", summary, re.MULTILINE)
    assert shown == [FAILED, UP_TO_DATE, REGISTRY, IMPOSSIBLE, "excluded"]
    assert "nobody &#124; has &#60;one&#62;" in summary


@pytest.mark.engine
def test_without_missing_what_a_registry_has_is_pulled_and_one_cell_can_be_named(built: Built) -> None:
    name = built.cells("first")["registry"]["build_id"]
    # No engine: what is not built needs none.
    nowhere = Tfdock(home=built.tfdock.home / "other", cache=built.tfdock.cache)
    words = ("--matrix", built.matrix, "--only", name, "--json")
    # The matrix names the registry, and a matrix may be a stranger's: its wheels are not taken.
    for command in ("build", "pull"):
        refused = nowhere.run(command, *words, code=6 if command == "build" else 2)
        assert refused.stderr.count("[matrix-registry-not-allowed]") == 1
        assert f"`--registry {built.registry.address}/me/wheels`" in refused.stderr
        assert nowhere.visible == []
    outcome = nowhere.run("build", *words, "--registry", f"{built.registry.address}/me/wheels", code=0)
    assert (outcome.build["build_id"], outcome.build["status"]) == (name, "pulled")
    matrix = outcome.document["matrix"]
    assert matrix["counts"] == {"pulled": 1}
    assert [one["name"] for one in matrix["cells"]] == [name]


@pytest.mark.engine
def test_pull_takes_what_a_registry_has_and_names_what_it_lacks(built: Built) -> None:
    where = {"TFDOCK_REGISTRIES": f"{built.registry.address}/me/wheels"}
    nowhere = Tfdock(home=built.tfdock.home / "third", cache=built.tfdock.cache, variables=where)
    outcome = nowhere.run("pull", "--matrix", built.matrix, "--json", code=0)
    cells = built.cells("first")
    pulls = {one["name"]: one for one in outcome.document["pulls"]}
    assert set(pulls) == {cells[status]["build_id"] for status in ("registry", "failed", "built")}
    (pulled,) = pulls[cells["registry"]["build_id"]]["builds"]
    assert (nowhere.wheelhouse / Path(pulled["wheels"][0]["path"]).name).is_file()
    for status in ("failed", "built"):
        (problem,) = pulls[cells[status]["build_id"]]["problems"]
        assert (problem["code"], problem["severity"]) == ("image-not-found", "warning")
    matrix = outcome.document["matrix"]
    assert matrix["counts"] == {"pulled": 1, "missing": 2, "impossible": 1, "excluded": 1}
    assert matrix["by"] == "tfdock pull"
    report = nowhere.home / "report"
    again = nowhere.run("pull", "--matrix", built.matrix, "--only", "*-sm86-*", "--report", report)
    assert (again.code, again.stdout) == (0, "")
    counts = json.loads((report / "report.json").read_text())["counts"]
    assert counts == {"up-to-date": 1, "missing": 2}
    assert "1 up to date, 2 missing" in again.stderr


@pytest.mark.engine
def test_an_interrupted_matrix_says_what_it_came_to(workshop: Workshop, tfdock: Tfdock, tmp_path: Path) -> None:
    slow = copy_tree(workshop.tree(), tmp_path / "slow", {"configure": after_first_line("sleep 300")})
    write_profile(tmp_path / "base.yaml", slow)
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text("schema: 1\nbase: base.yaml\naxes:\n  compute_capabilities: [[sm_86], [sm_80]]\n")
    running = tfdock.start("build", "--matrix", matrix, "--report", tmp_path / "report")
    running.wait_for("image …")
    outcome = running.end_by(signal.SIGINT, code=130)
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert (report["exit_code"], report["counts"]) == (130, {"interrupted": 2})
    suite = ElementTree.parse(tmp_path / "report/junit.xml").getroot()
    assert {one.get("type") for one in suite.iter("failure")} == {"interrupted"}
    assert "2 interrupted" in outcome.stderr


# --- without an engine ----------------------------------------------------------------------------------------------


MATRIX = """schema: 1
profile: {tensorflow: "2.18.0", python: "3.11", accelerator: cpu}
axes:
  python: ["3.11", "3.12"]
"""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    file = tmp_path / "m.yaml"
    file.write_text(MATRIX)
    return file


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("build", "--matrix", "m.yaml", "rtx3080"), "remove the profiles"),
        (("build", "--matrix", "m.yaml", "--locked"), "remove the profiles"),
        (("build",), "or a matrix"),
        (("build", "rtx3080", "--missing"), "--missing"),
        (("build", "rtx3080", "--only", "x", "--report", "y"), "`--only` and `--report`"),
        (("pull", "rtx3080", "--only", "x"), "--only"),
        (("pull", "rtx3080", "--matrix", "m.yaml"), "or a matrix"),
        (("pull", "--matrix", "m.yaml", "--platform", "linux/arm64"), "--platform"),
        (("pull",), "or a matrix"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(alone: Tfdock, words: tuple[str, ...], told: str) -> None:
    outcome = alone.run(*words, code=2)
    assert told in outcome.stderr
    assert outcome.stdout == ""


def test_a_matrix_of_which_nothing_is_asked_for_is_done(alone: Tfdock, matrix: Path, tmp_path: Path) -> None:
    outcome = alone.build("--matrix", matrix, "--only", "nothing-*", "--report", tmp_path / "report", code=0)
    assert (outcome.builds, outcome.document["matrix"]["cells"]) == ([], [])
    assert "no cells" in outcome.stderr
    written = {path.name for path in (tmp_path / "report").iterdir()}
    assert written == {"junit.xml", "report.html", "report.json"}


def test_without_an_engine_no_cell_begins_and_the_reason_is_told_once(alone: Tfdock, matrix: Path) -> None:
    for jobs in ("1", "2"):
        outcome = alone.build("--matrix", matrix, "-j", jobs, code=6, problem="engine-unavailable")
        assert outcome.stderr.count("[engine-unavailable]") == 1


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_without_an_engine_the_reason_is_told_once_also_where_a_registry_is_asked_first(
    alone: Tfdock, matrix: Path, jobs: str
) -> None:
    where = f"{closed_port()}/me/wheels"
    outcome = alone.run("build", "--matrix", matrix, "--registry", where, "-j", jobs, code=6)
    assert outcome.stderr.count("error: no container engine") == 1
    assert "(engine-unavailable), as above\n" in outcome.stderr


def test_a_report_that_cannot_be_written_is_told_before_anything_is_built(alone: Tfdock, matrix: Path) -> None:
    alone.build("--matrix", matrix, "--report", matrix, code=1, problem="folder-not-writable")


def test_a_report_of_which_a_file_cannot_be_written_is_told_by_all_that_is(
    alone: Tfdock, matrix: Path, tmp_path: Path
) -> None:
    report, github = tmp_path / "report", tmp_path / "github"
    (report / "junit.xml").mkdir(parents=True)
    github.mkdir()
    command = alone.with_variables(**variables(github, tmp_path))
    outcome = command.build("--matrix", matrix, "--only", "x", "--report", report, code=2)
    assert (outcome.document["ok"], outcome.document["matrix"]["exit_code"]) == (False, 2)
    assert outputs((github / "output").read_text()) == {"ok": "false", "exit-code": "2"}
    assert "[file-error]" in outcome.stderr
    assert "report  " not in outcome.stderr


def test_a_cell_for_the_cpu_of_one_machine_is_pulled_from_nowhere_and_why_is_said(
    alone: Tfdock, matrix: Path
) -> None:
    matrix.write_text(MATRIX.replace("accelerator: cpu", "accelerator: cpu, optimize: native"))
    where = f"{closed_port()}/me/wheels"
    outcome = alone.run("pull", "--matrix", matrix, "--registry", where, "--json", code=0)
    assert outcome.document["matrix"]["counts"] == {"missing": 2}
    assert {one["code"] for one in outcome.document["matrix"]["cells"]} == {"native-pulled"}
    assert "2 missing" in outcome.stderr


@pytest.mark.parametrize(
    ("code", "status"), [(0, "missing"), (1, "failed"), (4, "refused"), (7, "failed"), (130, "interrupted")]
)
def test_a_pull_that_brought_nothing_is_told_as_a_build_that_ends_so(code: int, status: str) -> None:
    assert as_build({"name": "x", "builds": [], "problems": [], "exit_code": code})["status"] == status


def test_a_build_never_asks_the_registry_that_only_the_matrix_names(alone: Tfdock, matrix: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        registry = f"127.0.0.1:{server.getsockname()[1]}/me/wheels"
        matrix.write_text(f"{MATRIX}ci: {{registry: {registry}}}\n")
        outcome = alone.run("build", "--matrix", matrix, "--missing", code=6)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert outcome.stderr.count("[matrix-registry-not-allowed]") == 1


def test_a_registry_that_cannot_be_asked_is_not_one_that_lacks_a_wheel(alone: Tfdock, matrix: Path) -> None:
    registry = f"{closed_port()}/me/wheels"
    matrix.write_text(f"{MATRIX}ci: {{registry: {registry}}}\n")
    words = ("--matrix", matrix, "--missing", "--registry", registry)
    alone.build(*words, code=7, problem="registry-unreachable")


def test_a_mistake_in_a_matrix_is_annotated_where_it_is_whatever_the_file_is_called(
    alone: Tfdock, tmp_path: Path
) -> None:
    folder = tmp_path / "a,b:c%0A::error::x ##[error]"
    folder.mkdir()
    base, matrix = folder / "base|`<b>.yaml", folder / "m.yaml"
    command = alone.with_variables(**variables(tmp_path, tmp_path))
    for wrong, release, python, place in (
        (base, "2.18", "'3.11'", ("2", "13")),
        (matrix, "'2.18.0'", "3.11", ("4", "12")),
    ):
        base.write_text(f"schema: 1\ntensorflow: {release}\naccelerator: cpu\n")
        matrix.write_text(f"schema: 1\nbase: 'base|`<b>.yaml'\naxes:\n  python: [{python}, '3.12']\n")
        outcome = command.run("build", "--matrix", matrix, code=2)
        (found,) = commands(outcome.stderr)
        line, column = place
        assert found.name == "error"
        assert found.properties == {
            "file": f"{folder.name}/{wrong.name}",
            "line": line,
            "col": column,
            "title": "version-not-text",
        }
