"""`tfdock report --bundle`: what it takes, what is in it, and that no secret and nobody's name is."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import stat
import sys
import urllib.parse
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from document_schemas import faults
from typer.testing import Result

from tfdock.builder.run_document import RunDocumentWriter, profile_document
from tfdock.builder.seal_phase import shareable_plan
from tfdock.errors import BuildFailed, Problem
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.plan.prepare import PreparedBuild, Preparer
from tfdock.run.journal import RunEntry, running
from tfdock.types import Machine

from .. import command_line

RUN = "20261121-104600-3fa9c1"
LOG = b"""=== tfdock: compile of x ===
[1 / 3] Compiling a.cc
ERROR: /tf/tensorflow/core/kernels/BUILD:12:1: Compiling relu_op.cu.cc failed: (Exit 1)
nvcc fatal   : Unsupported gpu architecture 'compute_120'
"""
PROFILE = """schema: 1
tensorflow: "2.18.0"
python: "3.11"
gpus: [rtx3080]
cuda: "12.5.1"
cudnn: "9.3.0"
"""
ORDINARY = [
    "README.txt", "diagnosis.json", "environment.json", "log.txt", "plan.json", "profile/my.yaml", "run.json",
]  # fmt: skip


@dataclass
class Place:
    """Somebody's folder with a profile, and a wheelhouse in which it has failed."""

    root: Path
    variables: dict[str, str]

    @property
    def house(self) -> Path:
        return self.root / "wheelhouse"

    @property
    def preparer(self) -> Preparer:
        return Preparer(Settings(cache_dir=self.root / "cache"), Machine(cpus=4, memory=16 << 30))

    def profile(self, text: str = PROFILE, name: str = "my.yaml") -> Path:
        (self.root / name).write_text(text)
        return self.root / name

    def log(self, prepared: PreparedBuild, run: str = RUN) -> Path:
        folder = self.house / ".tfdock" / prepared.plan.build_id / prepared.plan.fingerprint[:12]
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{run}.log"

    def fail(self, profile: Path, log: bytes = LOG, run: str = RUN, *, killed: bool = False) -> Path:
        """A run of it that failed, as `tfdock build` leaves it; its log."""
        prepared = self.preparer.prepare(str(profile))
        path = self.log(prepared, run)
        path.write_bytes(log)
        plan = prepared.plan
        papers = RunDocumentWriter(
            UntrustedPath(path.parent, path.name),
            build_id=plan.build_id,
            fingerprint=plan.fingerprint,
            profile=profile_document(prepared),
            plan=shareable_plan(plan),
            engine={"name": "Docker", "version": "28.5"},
        )
        if not killed:
            papers.failed(BuildFailed(Problem(code="compile-failed", message=f"it failed\n  log: {path}")))
        return path

    def run(self, *words: str | Path) -> Result:
        return command_line.run("report", *words, TFDOCK_WHEELHOUSE=str(self.house), **self.variables)

    def bundle(self, *words: str | Path) -> dict[str, bytes]:
        """What is in a report, by its path."""
        result = self.run("--bundle", *words, "-o", self.root / "report.zip")
        assert result.exit_code == 0, result.output
        return unpacked((self.root / "report.zip").read_bytes())


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for one in archive.infolist():
            assert stat.S_ISREG(one.external_attr >> 16)
            assert one.filename.startswith("tfdock-report/")
            assert ".." not in one.filename
        return {name.removeprefix("tfdock-report/"): archive.read(name) for name in archive.namelist()}


def text_of(files: Mapping[str, bytes], name: str) -> str:
    return files[name].decode("utf-8")


def document_of(files: Mapping[str, bytes], name: str) -> Any:
    return json.loads(files[name])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    home = tmp_path / "annacanary"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TFDOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(home)
    return Place(root=home, variables={})


# --- what is in it --------------------------------------------------------------------------------------------------


def test_the_newest_run_that_failed_is_packed(place: Place) -> None:
    place.fail(place.profile(PROFILE.replace("rtx3080", "rtx4090"), "other.yaml"), run="20261120-104600-000000")
    place.fail(place.profile())
    result = place.run("--bundle")
    assert (result.exit_code, result.stdout) == (0, f"tfdock-report-{RUN}.zip\n")
    files = unpacked((place.root / f"tfdock-report-{RUN}.zip").read_bytes())
    assert sorted(files) == ORDINARY
    assert text_of(files, "profile/my.yaml") == PROFILE
    assert document_of(files, "plan.json")["environment"]["HERMETIC_CUDA_VERSION"] == "12.5.1"
    ended = document_of(files, "run.json")
    assert ended["problems"][0]["code"] == "compile-failed"
    assert ended["engine"] == {"name": "Docker", "version": "28.5"}
    assert not {"plan", "profile"} & set(ended)
    diagnosis = document_of(files, "diagnosis.json")
    assert faults("diagnose", diagnosis) == []
    (cause,) = diagnosis["findings"]
    assert (cause["id"], cause["line"]) == ("nvcc_unsupported_arch", 4)
    assert cause["asked"] == "your profile asks for sm_86 and CUDA 12.5.1"
    assert text_of(files, "log.txt").split("\n", 1)[1] == LOG.decode()
    found = document_of(files, "environment.json")
    assert {"tfdock", "knowledge", "python", "system", "machine", "settings", "variables"} <= set(found)
    assert set(found["settings"]) == {"cache_dir", *Settings.__dataclass_fields__}


def test_it_says_what_is_in_it_what_was_taken_out_and_to_look_at_it(place: Place) -> None:
    place.variables["MY_TOKEN"] = "hunter2canary"
    place.fail(place.profile(), LOG + b"MY_TOKEN=hunter2canary\n")
    said = place.run("--bundle").stderr
    for name in ORDINARY:
        assert name in said
    assert "secret 2" in said
    assert "wheelhouse " in said.split("taken out", 1)[1]
    assert "nothing was sent. Read the file before you send it" in said
    readme = text_of(place.bundle(), "README.txt")
    assert "  secret: 2\n" in readme
    assert "Look through it before you send it" in readme


def test_it_is_shown_before_it_is_written(place: Place) -> None:
    place.fail(place.profile())
    result = place.run("--bundle", "-o", "nowhere/x.zip")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.index("log.txt") < result.stderr.index("[file-error]")


def test_programs_get_the_same(place: Place) -> None:
    place.variables["MY_TOKEN"] = "hunter2canary"
    place.fail(place.profile(), LOG + b"MY_TOKEN=hunter2canary\n")
    result = place.run("--bundle", "--json", "-o", "x.zip")
    document = command_line.document(result, "tfdock.report/1")
    assert list(document)[2] == "bundle"
    assert (document["ok"], document["bundle"]) == (True, "x.zip")
    assert [one["name"] for one in document["files"]] == ORDINARY
    assert document["removed"]["secret"] == 2
    assert document["notes"] == ["there is no lock beside the profile"]


def test_what_is_reported_is_never_written_over(place: Place) -> None:
    log, profile = place.root / "ci.log", place.profile()
    log.write_bytes(LOG)
    (place.root / "link").symlink_to(log)
    for output in ("ci.log", "link", "my.yaml"):
        result = place.run("--bundle", "ci.log", "--profile", "my.yaml", "-o", output)
        assert (result.exit_code, "is the input" in result.stderr) == (2, True)
    assert (log.read_bytes(), profile.read_text()) == (LOG, PROFILE)


def test_nobody_else_reads_it_before_it_was_looked_through(place: Place) -> None:
    place.fail(place.profile())
    path = place.root / "report.zip"
    path.write_bytes(b"")
    path.chmod(0o644)
    place.bundle()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_that_nobody_chose_leads_nowhere_else(place: Place) -> None:
    place.fail(place.profile())
    name, other = place.root / f"tfdock-report-{RUN}.zip", place.root / "other"
    other.write_text("somebody's")
    for kind in ("link", "pipe"):
        name.unlink(missing_ok=True)
        name.symlink_to(other) if kind == "link" else os.mkfifo(name)
        assert place.run("--bundle").exit_code == 0
        assert (name.is_symlink(), other.read_text()) == (False, "somebody's")
        assert unpacked(name.read_bytes())
    # What was asked for is done: also through a link.
    name.unlink()
    name.symlink_to(other)
    assert place.run("--bundle", "-o", name).exit_code == 0
    assert (name.is_symlink(), unpacked(other.read_bytes()) != {}) == (True, True)


def test_the_same_material_gives_the_same_bytes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdock.report.report_bundle.free_disk", lambda _: 5 << 30)
    place.fail(place.profile())
    first = place.run("--bundle", "-o", "a.zip")
    second = place.run("--bundle", "-o", "b.zip")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert (place.root / "a.zip").read_bytes() == (place.root / "b.zip").read_bytes()


def test_profiles_that_are_extended_and_the_lock_are_in_it(place: Place) -> None:
    place.profile(name="base.yaml")
    profile = place.profile("extends: base.yaml\nxla: false\n")
    place.fail(profile)
    (place.root / "my.lock").write_text("# tfdock lock\n")
    later = place.fail(profile, run="20261122-000000-aaaaaa")
    assert later.is_file()
    files = place.bundle()
    assert text_of(files, "profile/extends-1/base.yaml") == PROFILE
    assert text_of(files, "profile/my.lock") == "# tfdock lock\n"
    assert "the lock lies beside the profile; the run did not use it" in text_of(files, "README.txt")


# --- which one ------------------------------------------------------------------------------------------------------


def test_a_run_is_named_by_profile_build_id_log_folder_or_papers(place: Place) -> None:
    profile = place.profile()
    log = place.fail(profile)
    place.fail(place.profile(PROFILE.replace("rtx3080", "rtx4090"), "other.yaml"), run="20261129-104600-ffffff")
    names: list[str | Path] = [profile, log.parent.parent.name, log, log.parent, log.with_name(f"{RUN}.run.json")]
    found = [place.bundle(name) for name in names]
    assert [document_of(files, "run.json")["run"] for files in found] == [RUN] * len(names)
    assert all(sorted(files) == ORDINARY for files in found)
    files = place.bundle(log, "--profile", "other.yaml")
    assert text_of(files, "profile/my.yaml") == PROFILE
    assert "the profile is the copy beside the log, not the profile of `--profile`" in text_of(files, "README.txt")


def test_a_profile_that_was_changed_since_is_that_of_the_run(place: Place) -> None:
    profile = place.profile()
    place.fail(profile)
    place.profile(PROFILE.replace('"3.11"', '"3.11"\nxla: false'))
    files = place.bundle(profile)
    assert text_of(files, "profile/my.yaml") == PROFILE
    assert "has changed since: the plan in this report is the plan of the run" in text_of(files, "README.txt")
    # What it says now has nothing to do with that log.
    (cause,) = document_of(files, "diagnosis.json")["findings"]
    assert cause["changes"] == []


def test_a_profile_that_is_refused_is_packed_with_the_refusal(place: Place) -> None:
    profile = place.profile(PROFILE.replace("12.5.1", "11.0"))
    files = place.bundle(profile)
    assert sorted(files) == ["README.txt", "environment.json", "profile/my.yaml", "run.json"]
    assert document_of(files, "run.json")["refused_now"][0]["code"]
    assert "the present profile is refused" in text_of(files, "README.txt")


def test_a_strangers_log_is_packed_and_with_a_profile_the_plan_too(place: Place) -> None:
    (place.root / "ci.log").write_bytes(LOG)
    alone = place.bundle("ci.log")
    assert sorted(alone) == ["README.txt", "diagnosis.json", "environment.json", "log.txt"]
    files = place.bundle("ci.log", "--profile", place.profile())
    assert sorted(files) == [name for name in ORDINARY if name != "run.json"]
    assert "the plan was made for this report" in text_of(files, "README.txt")
    assert document_of(files, "diagnosis.json")["findings"][0]["asked"]


def test_what_a_report_has_not_is_said(place: Place) -> None:
    (place.root / "ci.log").write_bytes(b"")
    readme = text_of(place.bundle("ci.log"), "README.txt")
    assert "  the log is empty\n" in readme
    assert "  the log belongs to no build in this wheelhouse, so the plan of the build is unknown\n" in readme
    assert "at the time of this report, not of the run" in readme
    assert "not of a build" not in text_of(place.bundle("ci.log", "--profile", place.profile()), "README.txt")


def test_what_is_not_text_is_no_log(place: Place) -> None:
    program = Path(sys.executable).read_bytes()[: 1 << 16]
    (place.root / "ci.log").write_bytes(program)
    result = place.run("--bundle", "ci.log", "-o", "x.zip")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ci.log: error: this is binary data, not the text of a log [log-not-text]" in result.stderr
    assert not (place.root / "x.zip").exists()
    # A run is reported all the same.
    place.fail(place.profile(), program)
    files = place.bundle()
    assert "  the log is not text\n" in text_of(files, "README.txt")
    assert document_of(files, "run.json")["problems"]


def test_a_folder_is_no_name_of_a_file(place: Place) -> None:
    place.fail(place.profile())
    result = place.run("--bundle", "-o", "folder/")
    assert (result.exit_code, "`folder/` is a folder" in result.stderr) == (2, True)
    assert not (place.root / "folder").exists()


def test_a_build_that_failed_has_no_record_but_a_bundle(place: Place) -> None:
    build_id = place.fail(place.profile()).parent.parent.name
    result = place.run(build_id)
    assert result.exit_code == 2
    assert f"no build of `{build_id}` in {place.house} succeeded" in result.stderr
    assert f"fix: `tfdock report --bundle {build_id}` packs" in result.stderr
    assert "[record-not-found]" in result.stderr


def test_a_record_is_packed_with_its_log(place: Place) -> None:
    prepared = place.preparer.prepare(str(place.profile()))
    log = place.log(prepared)
    log.write_bytes(LOG)
    plan = prepared.plan
    record = {
        "schema": "tfdock.record/1", "build_id": plan.build_id, "fingerprint": plan.fingerprint, "log": log.name,
        "plan": shareable_plan(plan), "wheels": [], "seconds": {}, "attempts": 1,
    }  # fmt: skip
    log.with_name("record.json").write_text(json.dumps(record))
    for name in (log, log.parent, log.with_name("record.json"), plan.build_id):
        files = place.bundle(name)
        assert sorted(files) == [
            "README.txt", "diagnosis.json", "environment.json", "log.txt", "plan.json", "record.json",
        ]  # fmt: skip
        assert "the record is of a successful build" in text_of(files, "README.txt")
    log.with_name("record.json").write_text("{")
    assert "[nothing-to-report]" in place.run("--bundle", plan.build_id).stderr


def test_a_run_that_was_killed_is_found_and_one_that_lives_is_not(place: Place, tmp_path: Path) -> None:
    place.fail(place.profile(), killed=True)
    assert "it was killed" in text_of(place.bundle(), "README.txt")
    entry = RunEntry(run=RUN, build_id="x", staging="x", output="x")
    with running(tmp_path / "state", entry):
        result = place.run("--bundle")
        assert result.exit_code == 2
        assert "has left a log [no-failed-run]" in result.stderr
        assert (
            "fix: name the profile, a log, a record or a build id: `tfdock report --bundle PROFILE`" in result.stderr
        )


def test_what_is_nothing_is_refused_and_nothing_is_written(place: Place) -> None:
    for words, code in ((), "no-failed-run"), (("x",), "nothing-to-report"), ((place.root,), "nothing-to-report"):
        result = place.run("--bundle", *words, "-o", "x.zip", "--json")
        assert result.exit_code == 2
        assert json.loads(result.stdout)["problems"][0]["code"] == code
    place.fail(place.profile())
    (build_id,) = (path.name for path in (place.house / ".tfdock").iterdir())
    assert f"did you mean `{build_id}`?" in place.run("--bundle", build_id[:-1]).stderr
    assert place.run().exit_code == 2
    assert sorted(path.name for path in place.root.glob("*.zip")) == []


# --- canaries -------------------------------------------------------------------------------------------------------


def test_no_canary_leaves_its_cage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    canaries = {name: f"c4nary/{name}+42" for name in (
        "variable", "pat", "header", "docker", "identity", "netrc", "setting", "index",
    )}  # fmt: skip
    login = base64.b64encode(f"somebody:{canaries['docker']}".encode()).decode()
    addresses = {name: urllib.parse.quote(canaries[name], safe="") for name in ("setting", "index")}
    secrets = [*canaries.values(), *addresses.values(), login]
    names = ["annacanary", "canaryhost"]
    monkeypatch.setattr(socket, "gethostname", lambda: "canaryhost.example.org")
    for name, value in {
        "USER": "annacanary",
        "CI_API_TOKEN": canaries["variable"],
        "GH_PAT": canaries["pat"],
        "TFDOCK_SHORT_TOKEN": "q7q",
        "TFDOCK_REMOTE_HEADER": f"x-anything: {canaries['header']}",
        "DOCKER_HOST": f"tcp://anna:{addresses['setting']}@canaryhost:2376",
        "PIP_INDEX_URL": f"https://anna:{addresses['index']}@pypi.example/simple",
        "TFDOCK_REGISTRIES": "ghcr.io/annacanary/wheels",
    }.items():
        monkeypatch.setenv(name, value)
    (place.root / ".docker").mkdir()
    auths = {"ghcr.io": {"auth": login}, "x.example": {"identitytoken": canaries["identity"]}}
    (place.root / ".docker/config.json").write_text(json.dumps({"auths": auths}))
    (place.root / ".netrc").write_text(f"machine example.org\n  login somebody\n  password {canaries['netrc']}\n")

    told = f"{' '.join(secrets)}, by {' '.join(names)}"
    profile = place.profile(f"# {told}\n{PROFILE}", "annacanary.yaml")
    (place.root / "annacanary.lock").write_text(f"# {told}\n")
    split = f"{canaries['variable'][:8]}\x1b[31m{canaries['variable'][8:]}\x00 {place.root}/x"
    lines = [LOG.decode(), told, "https://other:0ther-c4nary@example.org/x", split]
    log = place.fail(profile, "\n".join([*lines, *(f"later {one}" for one in range(9))]).encode())
    papers = log.with_name(f"{RUN}.run.json")
    document = json.loads(papers.read_text())
    document["problems"][0]["why"] = told
    document["plan"]["bazel_flags"] += [f"--x={told}"]
    document["plan"]["environment"] |= {"X": told, canaries["header"]: "x"}
    papers.write_text(json.dumps(document))
    log.with_name("record.json").write_text(json.dumps({"schema": "tfdock.record/1", "build_id": told}))

    result = place.run("--bundle")
    assert result.exit_code == 0, result.output
    data = (place.root / f"tfdock-report-{RUN}.zip").read_bytes()
    files = unpacked(data)
    assert len(files) == len(ORDINARY) + 2
    everything = "\n".join([*files, *(text.decode() for text in files.values()), data.decode("latin-1")])
    shown = result.output.replace(str(place.root), "")
    for secret in (*secrets, *names, "0ther-c4nary", "q7q"):
        assert secret not in everything, (secret, [name for name in files if secret in files[name].decode()])
        assert secret not in shown
    # And what it is for is still there.
    assert document_of(files, "diagnosis.json")["findings"][0]["id"] == "nvcc_unsupported_arch"
    assert "Unsupported gpu architecture 'compute_120'" in text_of(files, "log.txt")
    assert 'cuda: "12.5.1"' in text_of(files, "profile/_user_.yaml")


def test_what_nobody_knows_to_be_a_secret_stays_and_the_user_is_told_to_look(place: Place) -> None:
    place.fail(place.profile(), LOG + b"OTHER_TOKEN=swordfish\n")
    files = place.bundle()
    assert "OTHER_TOKEN=swordfish" in text_of(files, "log.txt")
    assert "a secret that is in none of your variables and logins was not removed" in text_of(files, "README.txt")


def test_where_the_profile_lies_is_nobodys_business(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "customer-x"
    folder.mkdir()
    (folder / "my.yaml").write_text(f"# {folder}/tree\n{PROFILE}")
    place.fail(folder / "my.yaml", LOG + f"at {folder}/tree/x\n".encode())
    files = place.bundle()
    assert b"customer-x" not in b"".join(files.values())
    assert "at <profile folder>/tree/x" in text_of(files, "log.txt")


def test_a_credential_helper_is_not_asked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = place.root / "helper"
    helper.write_text(f"#!/bin/sh\ntouch {place.root}/asked\n")
    helper.chmod(0o755)
    monkeypatch.setenv("TFDOCK_REMOTE_CREDENTIAL_HELPER", str(helper))
    place.fail(place.profile())
    place.bundle()
    assert not (place.root / "asked").exists()


# --- what is hostile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "gone", "device"])
def test_a_log_that_is_none_is_not_read(place: Place, kind: str) -> None:
    log = place.fail(place.profile())
    (place.root / "private").write_text("hunter2canary")
    log.unlink()
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    elif kind != "gone":
        log.symlink_to(place.root / "private" if kind == "link" else "/dev/zero")
    files = place.bundle()
    assert "log.txt" not in files
    assert "the log is gone, or is not a file" in text_of(files, "README.txt")
    assert b"hunter2canary" not in b"".join(files.values())


@pytest.mark.parametrize(
    "content",
    ["", "{", "[" * 100_000, '{"schema": "tfdock.run/1"}', '{"schema": "tfdock.run/1", "profile": 5, "plan": [1]}',
     '{"schema": "tfdock.run/1", "profile": {"text": 7, "extends": [], "lock": {"text": {}, "file": 1}}}',
     '{"schema": "tfdock.run/1", "profile": {"text": "x", "file": "../../x", "extends": {"../../../y": "z"}}}',
     '{"schema": "tfdock.run/1", "profile": {"text": "x", "path": "/dev/zero"}, "plan": {"build_id": 5}}',
     '{"schema": "tfdock.run/1", "profile": {"text": "x", "path": "/dev/zero/\\u0000"}, "build_id": []}',
     '{"schema": "tfdock.run/1", "plan": ' + '{"a":' * 900 + "1" + "}" * 901],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_papers_of_any_kind_do_no_harm(place: Place, content: str) -> None:
    log = place.fail(place.profile())
    log.with_name(f"{RUN}.run.json").write_text(content)
    files = place.bundle()
    assert {"README.txt", "log.txt", "diagnosis.json", "environment.json"} <= set(files)
    assert all(not name.startswith((".", "/")) and "/." not in name for name in files)


def test_what_was_printed_for_a_terminal_steers_none(place: Place) -> None:
    place.fail(place.profile(), b"\x1b]0;title\x07\x1b[2J\x00\xe2\x80\xae" + LOG + b"::error::x\x1b[31m\n")
    files = place.bundle()
    for text in files.values():
        assert all(one.isprintable() or one in "\n\t" for one in text.decode())


@pytest.mark.parametrize("shift", range(0, 60, 12))
def test_half_a_secret_of_a_long_line_is_no_part_of_its_diagnosis(place: Place, shift: int) -> None:
    """Of a long line the diagnosis has the part around the cause: it is cut where no secret is cut."""
    secret, words = "hunter2" + "canary" * 8, " y" * 480
    place.variables["MY_TOKEN"] = secret
    cause = f" {'z' * (30 - shift // 2)} a.cc:1:1: fatal error: x.h: No such file or directory"
    place.fail(
        place.profile(), f"MY_TOKEN={secret}{words}{cause}{words} {'z' * (shift // 2)} {secret} end\n".encode()
    )
    files = place.bundle()
    assert document_of(files, "diagnosis.json")["findings"][0]["id"] == "header_not_found"
    assert not [name for name, data in files.items() if b"canary" in data or b"hunter" in data]


@pytest.mark.slow
def test_a_huge_log_is_bounded(place: Place) -> None:
    log = place.fail(place.profile())
    with log.open("ab") as file:
        for _ in range(20):
            file.write(b"x" * (1 << 20))
        file.write(b"\n")
        for number in range(200_000):
            file.write(b"[%d / 200,000] Compiling tensorflow/core/x.cc; 5s linux-sandbox\n" % number)
    files = place.bundle()
    assert (place.root / "report.zip").stat().st_size < 1 << 20
    said = text_of(files, "log.txt")
    assert "Unsupported gpu architecture" in said
    assert "[199999 / 200,000]" in said
    assert len(said) < 1 << 20
