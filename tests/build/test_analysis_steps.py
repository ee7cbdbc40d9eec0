"""`matrix --dry-analyse` on an engine in memory: what becomes of cells when something else than upstream is amiss."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeRun

from tfdock.builder.session import BuildSession
from tfdock.engine.protocol import ContainerSpec, ImageBuild
from tfdock.errors import EngineError, EngineUnavailable, NetworkError, Problem, TfdockError
from tfdock.host.supervise import Limit
from tfdock.matrix import planned_matrix
from tfdock.matrix.analysis import Analysis, analysed
from tfdock.plan.prepare import Preparer
from tfdock.types import Machine
from tfdock.wheelhouse.store import Wheelhouse

from .harness import Tfdock
from .test_orchestration import COMMIT, DIGEST, SOURCE, Desk

SAID = b"ERROR: An error occurred during the fetch of repository 'x':\n   Traceback (most recent call last):\n"


class Analysing:
    """Three cells of one source, and an engine that does with each what it is told."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        profile = {"tensorflow": SOURCE, "accelerator": "cpu", "wheel": {"name": "tensorflow_miniature"}}
        axes = {"optimize": ["portable", ["avx"], ["avx2"]]}
        self.file = folder / "matrix.yaml"
        self.file.write_text(json.dumps({"schema": 1, "profile": {**profile, "python": "3.11"}, "axes": axes}))
        self.fetches: list[ContainerSpec] = []
        self.told: list[str] = []
        self.cells = planned_matrix.cells(self.file, Preparer(self.desk.settings, Machine(cpus=4, memory=16 << 30)))

    def run(
        self, fetch: Callable[[int], FakeRun] = lambda _: FakeRun(), session: BuildSession | None = None
    ) -> list[Analysis]:
        """Analyse; `fetch` says what the container of each fetch phase does, by its number."""

        def on_run(spec: ContainerSpec) -> FakeRun:
            assert spec.name.endswith("-fetch"), "nothing else is run"
            self.fetches.append(spec)
            return fetch(len(self.fetches))

        self.desk.engine.on_run = on_run
        found = analysed(self.cells, session or self.desk.session, lambda one: self.told.append(one.outcome))
        assert self.desk.left_behind == []
        assert not self.desk.settings.wheelhouse.exists()
        return list(found)


@pytest.fixture
def analysing(tmp_path: Path) -> Analysing:
    return Analysing(tmp_path)


def outcomes(found: list[Analysis]) -> list[tuple[str, str]]:
    return [(one.outcome, one.problems[0].code if one.problems else "") for one in found]


def sources(analysing: Analysing) -> list[ImageBuild]:
    """The requests for stages that fetch a source."""
    requests = [one for (one, *_) in analysing.desk.engine.called("build") if isinstance(one, ImageBuild)]
    return [request for request in requests if request.target == "source"]


def test_cells_of_one_source_share_their_downloads_and_their_source_but_nothing_of_before(
    analysing: Analysing,
) -> None:
    assert outcomes(analysing.run()) == [("ok", "")] * 3
    assert analysing.told == ["ok"] * 3
    downloads = {mount.source for spec in analysing.fetches for mount in spec.mounts if "repository" in mount.target}
    assert len(downloads) == 1
    requests = sources(analysing)
    assert len(requests) == 3
    (fresh,) = {request.build_args["SOURCE_FRESH"] for request in requests}
    analysing.run()
    again = sources(analysing)[3:]
    assert {request.build_args["SOURCE_FRESH"] for request in again} & {fresh} == set()
    assert len(again) == 3, "an image that is there is not taken as it is"
    later = {mount.source for spec in analysing.fetches for mount in spec.mounts if "repository" in mount.target}
    assert len(later) == 2
    assert not any(Path(folder).exists() for folder in later)


def test_one_log_of_each_cell_stays(analysing: Analysing) -> None:
    analysing.run()
    found = analysing.run()
    logs = sorted(analysing.desk.settings.state_dir.rglob("*.log"))
    assert logs == sorted(one.log for one in found if one.log)
    assert len(logs) == 3


def test_a_cell_that_fails_stops_no_other_and_bazels_line_is_told(analysing: Analysing) -> None:
    said = FakeRun(output=[SAID, b"Error in download: java.io.IOException: GET returned 404\n"], exit_code=1)
    found = analysing.run(lambda number: said if number == 2 else FakeRun())
    # A source that cannot be analysed gives way to the next one.
    assert outcomes(found) == [("ok", "")] * 3
    assert found[1].source["ref"] == "second"
    assert found[1].notes == ("the source first does not work: second was taken",)
    found = analysing.run(lambda number: said if number in (5, 6) else FakeRun())
    assert outcomes(found) == [("drifted", "download-failed"), ("ok", ""), ("ok", "")]
    assert found[0].error.startswith(
        "ERROR: An error occurred during the fetch of repository 'x': Error in download:"
    )
    assert found[0].exit_code == 7
    assert found[0].error in found[0].problems[0].message


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (EngineError(Problem(code="engine-refused", message="no")), "failed", 6),
        (NetworkError(Problem(code="registry-unreachable", message="no")), "failed", 7),
        (NetworkError(Problem(code="image-not-found", message="no")), "drifted", 7),
    ],
)
def test_what_is_no_change_upstream_is_told_apart(
    analysing: Analysing, error: TfdockError, outcome: str, status: int
) -> None:
    analysing.desk.engine.fail_next("pull", error)
    first, *others = analysing.run()
    assert (first.outcome, first.exit_code) == (outcome, status)
    assert [one.outcome for one in others] == ["ok", "ok"]


def test_without_an_engine_there_is_one_error(analysing: Analysing) -> None:
    analysing.desk.engine.alive = False
    with pytest.raises(EngineUnavailable):
        analysing.run()


def test_when_the_time_is_up_the_rest_says_so_and_nothing_is_kept(analysing: Analysing) -> None:
    clock = analysing.desk.clock

    def fetch(number: int) -> FakeRun:
        clock.now += 3000 * number
        return FakeRun()

    session = replace(analysing.desk.session, limit=Limit(3600, 3600.0))
    found = analysing.run(fetch, session)
    assert outcomes(found) == [("ok", ""), ("ok", ""), ("failed", "time-limit")]
    assert found[2].exit_code == 8
    assert "--only" in found[2].problems[0].fix
    assert len(analysing.fetches) == 2


def test_a_stop_ends_it_and_every_cell_is_told(analysing: Analysing) -> None:
    def fetch(number: int) -> FakeRun:
        if number == 2:
            analysing.desk.stop.requests = 1
        return FakeRun(endless=number == 2, signals={"INT": 8})

    found = analysing.run(fetch)
    assert outcomes(found) == [("ok", ""), ("interrupted", "interrupted"), ("interrupted", "interrupted")]
    assert {one.exit_code for one in found[1:]} == {130}
    assert len(analysing.fetches) == 2


def test_a_cell_that_another_analysis_is_at_is_left_to_it(analysing: Analysing) -> None:
    house = Wheelhouse(analysing.desk.settings.state_dir / "analysis")
    with house.locked(analysing.cells.wanted[1].name):
        found = analysing.run()
    assert outcomes(found) == [("ok", ""), ("failed", "build-locked"), ("ok", "")]
    assert found[1].exit_code == 9
    assert found[1].log is None


def test_what_was_another_when_the_wheel_was_built_is_a_note(
    analysing: Analysing, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"source": {"ref": "first", "found": "d00d"}, "base_digest": "sha256:old", "finished": "2026"}
    older = {"source": {"ref": "first", "found": "0000"}, "base_digest": DIGEST, "finished": "2025"}
    monkeypatch.setattr(Wheelhouse, "record_files", lambda *_: [Path("older"), Path("newer")])
    monkeypatch.setattr("tfdock.matrix.analysis.load_record", lambda path: older if path.name == "older" else record)
    source, base = analysing.run()[0].notes
    assert source == f"first is {COMMIT}, and was d00d when the wheel was built"
    assert base.endswith(f"is {DIGEST}, and was sha256:old when the wheel was built")


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--time-limit", "5m"), "of an analysis alone"),
        (("--dry-analyse", "--time-limit", "soon"), "write it like `5h30m`"),
        (("--dry-analyse", "--format", "github"), "makes no jobs"),
        (("--dry-analyse", "--shards", "2"), "makes no jobs"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    outcome = Tfdock(home=tmp_path / "home", cache=tmp_path / "cache").run("matrix", "x.yaml", *words)
    assert outcome.code == 2, outcome.told
    assert said in outcome.stderr


def test_errors_of_the_command_have_its_document(analysing: Analysing, tmp_path: Path) -> None:
    command = Tfdock(home=tmp_path / "home", cache=tmp_path / "other")
    outcome = command.run("matrix", analysing.file, "--dry-analyse", "--json")
    assert outcome.code == 6, outcome.told
    assert (outcome.document["schema"], outcome.document["ok"]) == ("tfdock.matrix-analysis/1", False)
    assert [problem["code"] for problem in outcome.document["problems"]] == ["engine-unavailable"]
    none = command.run("matrix", analysing.file, "--dry-analyse", "--json", "--only", "nothing")
    assert none.code == 0, "no cell needs no engine"
    assert none.document["cells"] == []
