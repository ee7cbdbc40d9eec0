"""What a run leaves for `tfdock report --bundle`: papers, which go when it ends well."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from fake_engine import FakeRun

from tfdock.builder.build import build
from tfdock.builder.run_document import load_document
from tfdock.builder.session import BuildRequest
from tfdock.errors import BuildFailed, TfdockError
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.report.reported_fields import FIELDS, keep_fields
from tfdock.wheelhouse.run_states import failed_runs

from .conftest import EditedTree
from .harness import Tfdock, before
from .test_orchestration import Desk, desk  # noqa: F401 - a fixture

CANARY = "hunter2c4nary"
KERNEL = "tensorflow/core/kernels/relu_op.cc"


def papers(desk: Desk) -> list[UntrustedPath]:  # noqa: F811
    return failed_runs(desk.session.wheelhouse, desk.settings.state_dir)


def test_a_build_that_ends_well_leaves_no_papers(desk: Desk) -> None:  # noqa: F811
    desk.build()
    assert papers(desk) == []
    assert list(desk.settings.wheelhouse.rglob("*.run.json")) == []
    (record,) = desk.session.wheelhouse.records()
    assert keep_fields(dict(record), FIELDS["record.json"]) == (record, 0)


def test_a_build_that_fails_leaves_what_it_was_to_build_and_how_it_failed(desk: Desk) -> None:  # noqa: F811
    desk.engine.phases["compile"] = FakeRun(output=[b"ERROR: no\n"], exit_code=1)
    session, request = desk.session, BuildRequest(prepared=desk.prepared)
    with pytest.raises(BuildFailed):
        build(session, request, desk.heard.append)
    (path,) = papers(desk)
    document = load_document(path)
    assert document is not None
    assert path.parent / f"{document['run']}.log" == session.log_path(request)
    assert (document["build_id"], document["fingerprint"]) == (desk.plan.build_id, desk.plan.fingerprint)
    assert document["profile"]["file"] == "profile.yaml"
    assert document["plan"]["targets"] == list(desk.plan.targets)
    assert [problem["code"] for problem in document["problems"]] == ["compile-failed"]
    assert document["engine"]["name"]
    run = {name: value for name, value in document.items() if name not in ("plan", "profile")}
    assert keep_fields(run, FIELDS["run.json"]) == (run, 0)
    assert keep_fields(document["plan"], FIELDS["plan.json"]) == (document["plan"], 0)
    assert document["ended"] >= document["started"]
    # A run that ends well leaves those of the one before: it may be reported still.
    desk.engine.phases = type(desk.engine)().phases
    desk.build()
    assert papers(desk) == [path]


def test_the_papers_hold_the_text_that_was_planned_though_the_file_was_saved_again(desk: Desk) -> None:  # noqa: F811
    prepared = desk.preparer(trusted=True).prepare(str(desk.profile))
    text = desk.profile.read_text()
    desk.profile.write_text(f"{text}# saved while another build ran\n")
    desk.engine.phases["compile"] = FakeRun(output=[b"ERROR: no\n"], exit_code=1)
    with pytest.raises(BuildFailed):
        build(desk.session, BuildRequest(prepared=prepared), desk.heard.append)
    document = load_document(papers(desk)[0])
    assert document is not None
    assert (document["profile"]["text"], document["fingerprint"]) == (text, prepared.plan.fingerprint)


def test_papers_that_cannot_be_written_change_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UntrustedPath, "write", full)
    desk.engine.phases["compile"] = FakeRun(output=[b"ERROR: no\n"], exit_code=1)
    desk.fails(BuildFailed, "compile-failed", "compile")
    assert papers(desk) == []


def test_a_run_that_ends_by_our_own_mistake_has_papers_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("tfdock.builder.build.fetch_downloads", broken)
    with pytest.raises((RuntimeError, TfdockError)):
        desk.build()
    (path,) = papers(desk)
    assert "a mistake" in path.path.read_text()


@pytest.mark.engine
def test_a_real_failure_is_packed_without_what_is_secret(tfdock: Tfdock, edited: EditedTree, tmp_path: Path) -> None:
    told = f'#include <frobnicate/{CANARY}.h>\n#pragma message "MY_TOKEN={CANARY}"\n'
    profile = edited({KERNEL: before(told)}, accelerator="cpu", compute_capabilities=None)
    tfdock = tfdock.with_variables(SOME_API_TOKEN=CANARY)
    assert tfdock.build(profile).code == 1
    outcome = tfdock.run("report", "--bundle", "-o", tmp_path / "report.zip", "--json", code=0)
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        files = {name.partition("/")[2]: archive.read(name).decode() for name in archive.namelist()}
    assert [one["name"] for one in outcome.document["files"]] == list(files)
    assert CANARY not in "".join(files.values())
    assert str(tmp_path) not in "".join(files.values())
    assert json.loads(files["diagnosis.json"])["findings"][0]["id"] == "header_not_found"
    assert "=== tfdock: compile of " in files["log.txt"]
    assert json.loads(files["plan.json"])["targets"]
    assert json.loads(files["run.json"])["problems"][0]["code"] == "compile-failed"
    assert files[f"profile/{profile.name}"]
    # What was built since is nothing to report.
    mended = edited({}, name="mended", accelerator="cpu", compute_capabilities=None)
    assert tfdock.build(mended).code == 0
    assert tfdock.run("report", "--bundle", "-o", tmp_path / "again.zip", mended).code == 0
