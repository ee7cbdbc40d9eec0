"""The command line without an engine: results on standard output, errors that help, no silly input unanswered."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tfdock.knowledge import loader

from .harness import MINIATURE, REPOSITORY, Outcome, Tfdock, write_profile

PROFILES = REPOSITORY / "profiles"
RTX3080 = PROFILES / "rtx3080.yaml"
ESCAPE = "\x1b["


@pytest.fixture
def tfdock(tmp_path: Path) -> Tfdock:
    """The command where there is no engine, and no further knowledge."""
    command = Tfdock(home=tmp_path / "home", cache=tmp_path / "cache", variables={"TFDOCK_KNOWLEDGE": ""})
    command.home.mkdir()
    return command


def refused(outcome: Outcome, code: int, *words: str) -> None:
    """Ended with that code, nothing on standard output, and one error that holds the words and a fix."""
    assert outcome.code == code, outcome.told
    assert outcome.stdout == ""
    assert outcome.stderr.count("error:") == 1, outcome.told
    for word in (*words, "fix:"):
        assert word in outcome.stderr, outcome.told
    assert "Traceback" not in outcome.stderr


# --- check --------------------------------------------------------------------------------------------------------


def test_check_prints_the_build_id_of_each_profile_that_can_be_built(tfdock: Tfdock, tmp_path: Path) -> None:
    # Whether this machine's disk would hold the build is another question.
    small = tmp_path / "small.yaml"
    small.write_text(f"schema: 1\nextends: {RTX3080}\nresources: {{disk: 1GiB}}\n")
    outcome = tfdock.run("check", small)
    assert outcome.code == 0
    assert re.fullmatch(r"note: no build is needed: .* runs on rtx3080: `pip install .*`\n", outcome.stderr)
    name, grade, doubt = outcome.stdout.splitlines()
    assert re.fullmatch(
        rf"{re.escape(str(small))}: ok, about \d+ (min|h|days), image unverified: tf2\.18\.0-\S+", name
    )
    assert name.endswith(" tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64")
    assert grade.startswith("  tested: ")
    assert doubt.startswith("  unverified: ")


def test_check_says_all_it_found_as_one_document_and_exits_with_the_worst(tfdock: Tfdock, tmp_path: Path) -> None:
    impossible = write_profile(tmp_path / "impossible.yaml", tensorflow="2.18.0", compute_capabilities=["sm_20"])
    malformed = write_profile(tmp_path / "malformed.yaml", tensorflow="2.18.0", python=3.1, pyton="3.11")
    outcome = tfdock.run("check", RTX3080, impossible, malformed, "--json", code=2)
    document = outcome.document
    assert list(document)[:2] == ["schema", "ok"]
    assert (document["schema"], document["ok"]) == ("tfdock.check/1", False)
    good, cannot, bad = document["profiles"]
    assert (good["ok"], good["problems"]) == (True, [])
    assert (cannot["ok"], cannot["file"]) == (False, str(impossible))
    assert {"code", "severity", "message", "fix", "file", "line", "column"} <= set(cannot["problems"][0])
    assert len(bad["problems"]) == 2, "every problem of a profile at once"
    assert all(problem["line"] and problem["column"] and problem["fix"] for problem in bad["problems"])
    assert tfdock.run("check", impossible).code == 3


@pytest.mark.parametrize("profile", [path.name for path in loader.profile_files()])
def test_every_shipped_profile_can_be_built(tfdock: Tfdock, profile: str) -> None:
    tfdock.with_variables(TFDOCK_KNOWLEDGE=str(MINIATURE / "knowledge")).run("check", PROFILES / profile, code=0)


def test_what_is_allowed_though_untested_is_a_warning_with_a_code(tfdock: Tfdock) -> None:
    outcome = tfdock.run("check", "tf1.4-xla-cuda8", code=0)
    said = " ".join(outcome.stderr.split())
    assert said.startswith("tf1.4-xla-cuda8:"), "as it was asked for, not where it lies"
    assert "warning: untested, as is allowed: TensorFlow 1.4" in said
    code = said.partition("[")[2].partition("]")[0]
    assert tfdock.run("explain", code).code == 0


# --- plan, render, schema -----------------------------------------------------------------------------------------


def test_plan_prints_what_build_would_run_and_why(tfdock: Tfdock) -> None:
    document = tfdock.run("plan", RTX3080, "--json").document
    assert (document["schema"], document["ok"]) == ("tfdock.plan/1", True)
    wanted = {"build_id", "fingerprint", "image", "environment", "startup_options", "bazel_flags", "targets"}
    assert wanted | {"mounts", "resources", "choices"} <= set(document)
    assert "--repo_env=HERMETIC_CUDA_COMPUTE_CAPABILITIES=sm_86" in document["bazel_flags"]
    assert all(set(choice) == {"field", "value", "source", "reason"} for choice in document["choices"])
    text = tfdock.run("plan", RTX3080, "--why").stdout
    for flag in document["bazel_flags"]:
        assert flag in text
    for choice in document["choices"]:
        assert choice["reason"] in text


def test_render_writes_the_same_bytes_every_time_and_replaces_only_its_own_folder(
    tfdock: Tfdock, tmp_path: Path
) -> None:
    folder, again, foreign = tmp_path / "context", tmp_path / "again", tmp_path / "foreign"
    outcome = tfdock.run("render", RTX3080, "-o", folder)
    assert (outcome.code, outcome.stdout) == (0, f"{folder / 'Dockerfile'}\n")
    document = tfdock.run("render", RTX3080, "-o", again, "--json").document
    assert document["schema"] == "tfdock.render/1"
    for name in document["files"]:
        assert (folder / name).read_bytes() == (again / name).read_bytes()
    (folder / "notes.txt").write_text("mine")
    (folder / "stale").touch()
    with (folder / ".tfdock-context").open("a") as written:
        written.write("stale\n")  # as an earlier render of another profile would have
    assert tfdock.run("render", RTX3080, "-o", folder).code == 0
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "stale").exists()

    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    refused(tfdock.run("render", RTX3080, "-o", foreign), 2, "output-not-empty", str(foreign))
    refused(tfdock.run("render", RTX3080, "-o", foreign / "thesis.tex"), 2, "output-not-empty")
    assert (foreign / "thesis.tex").read_text() == "years of work"


def test_schema_accepts_every_shipped_profile(tfdock: Tfdock, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(tfdock.run("schema").stdout)
    profiles = []
    for path in loader.profile_files():
        profiles.append(tmp_path / f"{path.stem}.json")
        profiles[-1].write_text(json.dumps(yaml.safe_load(path.read_text())))
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(schema), *map(str, profiles)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


# --- doctor, build without an engine ------------------------------------------------------------------------------


def test_doctor_without_an_engine_says_so_first_and_exits_with_6(tfdock: Tfdock) -> None:
    outcome = tfdock.run("doctor", "--json", code=6)
    document = outcome.document
    assert (document["schema"], document["ok"]) == ("tfdock.doctor/1", False)
    first = document["checks"][0]
    assert (first["name"], first["status"]) == ("engine", "failed")
    assert "DOCKER_HOST" in first["fix"]
    assert {"memory", "disk"} <= {check["name"] for check in document["checks"]}


def test_two_profiles_of_the_same_build_are_refused(tfdock: Tfdock, tmp_path: Path) -> None:
    twin = tmp_path / "twin.yaml"
    shutil.copy(RTX3080, twin)
    refused(tfdock.run("build", RTX3080, twin), 2, "build-id-twice", str(twin))


def test_a_build_of_refused_profiles_needs_no_engine(tfdock: Tfdock, tmp_path: Path) -> None:
    impossible = write_profile(tmp_path / "impossible.yaml", tensorflow="2.18.0", compute_capabilities=["sm_20"])
    outcome = tfdock.build(impossible, code=3)
    assert outcome.build["status"] == "refused"
    assert not tfdock.wheelhouse.exists()


# --- terminals and pipes ------------------------------------------------------------------------------------------


def shell(tfdock: Tfdock, script: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a script in which `tfdock` is the command."""
    text = f'tfdock() {{ "{sys.executable}" -m tfdock "$@"; }}; {script}'
    command = ["bash", "-c", text]
    return subprocess.run(
        command, env=tfdock.environment, capture_output=True, text=True, check=False, cwd=tfdock.home
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"plan '{RTX3080}' --json", 0),
        (f"plan '{RTX3080}' --why", 0),
        ("gpus", 0),
        ("explain", 0),
        ("releases 2.18", 0),
        ("--help", 0),
        ("check nonexistent rtx3080", 2),
    ],
)
def test_a_reader_that_leaves_early_changes_nothing_in_how_it_ends(tfdock: Tfdock, words: str, code: int) -> None:
    # `true` has ended before anything is written.
    for reader in ("head -c 9", "true"):
        done = shell(tfdock, f'tfdock {words} 2>&1 | ({reader}) >/dev/null; echo "${{PIPESTATUS[0]}}"')
        assert (done.stdout, done.stderr) == (f"{code}\n", "")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("tfdock init q <&-", 2),
        ("tfdock init q --yes <&-", 0),
        ("tfdock gpus rtx5080 >&-", 0),
        ("tfdock check rtx3080 2>&-", 0),
        ("tfdock check nonexistent 2>&-", 2),
        ("tfdock check rtx3080 nonexistent >&- 2>&-", 2),
        ("tfdock check rtx3080 <&- >&- 2>&-", 0),
    ],
)
def test_closed_streams_are_streams_that_lead_nowhere(tfdock: Tfdock, script: str, code: int) -> None:
    done = shell(tfdock, script)
    assert done.returncode == code, done.stderr
    assert "internal-error" not in done.stderr
    assert ("init-nobody-to-ask" in done.stderr) is (script == "tfdock init q <&-")


def test_a_table_in_a_pipe_has_its_rows_on_one_line(tfdock: Tfdock) -> None:
    (row,) = [line for line in tfdock.run("gpus").stdout.splitlines() if line.split()[:1] == ["rtx5080"]]
    assert row.endswith("NVIDIA GeForce RTX 5080")
    assert "NVIDIA GeForce RTX 3080 Ti" in tfdock.run("gpus").stdout


@pytest.mark.parametrize("columns", [40, 60])
def test_only_the_commands_of_a_plan_are_wider_than_the_terminal(tfdock: Tfdock, columns: int) -> None:
    narrow = tfdock.with_variables(COLUMNS=str(columns))
    assert max(map(len, narrow.run("plan", "rtx3080-tf2.4-cuda11.1").stdout.splitlines())) <= columns
    for words in (("--commands",), ("--why",)):
        lines = narrow.run("plan", "rtx3080-tf2.4-cuda11.1", *words).stdout.splitlines()
        wide = [line for line in lines if len(line) > columns]
        assert wide, "a command stays as it is"
        assert all(line.lstrip().startswith(("/bin/bash", "-", "'-")) for line in wide), wide


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colour_in_a_pipe_only_where_it_is_wanted(tfdock: Tfdock, variables: dict[str, str], coloured: bool) -> None:
    coloring = tfdock.with_variables(**variables)
    assert (ESCAPE in coloring.run("plan", RTX3080).stdout) is coloured
    assert (ESCAPE in coloring.run("check", "nonexistent.yaml").stderr) is coloured
    assert ESCAPE not in coloring.run("plan", RTX3080, "--json").stdout


@pytest.mark.parametrize(("term", "coloured"), [("xterm-256color", True), ("dumb", False)])
def test_colour_on_a_terminal_unless_it_is_dumb(tfdock: Tfdock, term: str, coloured: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {**tfdock.environment, "TERM": term}
    command = [sys.executable, "-m", "tfdock", "check", "nonexistent.yaml"]
    subprocess.run(command, env=environment, stderr=theirs, check=False, cwd=tfdock.home)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "error" in said
    assert (ESCAPE in said) is coloured


@pytest.mark.parametrize("words", [("plan", str(RTX3080)), ("diagnose", "-"), ("diagnose", "-", "--json")])
def test_standard_output_on_a_full_disk_is_named(tfdock: Tfdock, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tfdock", *words]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, env=tfdock.environment, input=b"x\n", stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 8
    assert b"[disk-full]" in done.stderr


# --- silly inputs -------------------------------------------------------------------------------------------------


def test_an_unknown_profile_is_answered_with_those_there_are(tfdock: Tfdock) -> None:
    refused(tfdock.run("check", "rtx3090ti"), 2, "profile-not-found", "rtx3090ti", "is a GPU")


def test_a_shipped_profile_needs_only_its_name(tfdock: Tfdock) -> None:
    assert tfdock.run("check", "rtx3080").code == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", ("empty",), id="empty"),
        pytest.param(b"# nothing\n", (), id="only a comment"),
        pytest.param(b"\x89PNG\r\n\x1a\n\x00\xff\xfe", ("UTF-8",), id="a picture"),
        pytest.param(b"just words", ("name: value",), id="a sentence"),
        pytest.param(b"- schema: 1\n", (), id="a list"),
        pytest.param(b"schema: 1\ntensorflow: [2.18.0\n", (), id="an unclosed bracket"),
        pytest.param(b'schema: 2\ntensorflow: "2.18.0"\n', ("schema",), id="a schema of the future"),
        pytest.param(b"a: &a [*a]\n", (), id="a list that holds itself"),
        pytest.param(b"[" * 5000, (), id="five thousand brackets"),
        pytest.param(b'schema: 1\ntensorflow: "2.18.0"\npython: 3.10\n', ("3.10",), id="a version without quotes"),
        pytest.param(b'schema: 1\ntensorflow: "2.18.0"\nextends: self.yaml\n', (), id="extends nothing"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_what_is_wrong_and_what_to_do(
    tfdock: Tfdock, tmp_path: Path, content: bytes, words: tuple[str, ...]
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_bytes(content)
    outcome = tfdock.run("check", path, code=2)
    assert "fix:" in outcome.stderr, outcome.told
    assert str(path) in outcome.stderr
    for word in words:
        assert word in outcome.stderr, outcome.told


@pytest.mark.parametrize("words", [("check",), ("check", "--nonsense"), ("biuld", "x"), ("plan",), ("render", "x")])
def test_a_wrong_command_line_is_a_usage_error(tfdock: Tfdock, words: tuple[str, ...]) -> None:
    outcome = tfdock.run(*words, code=2)
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr


def test_a_folder_nothing_and_a_name_without_end_are_no_profiles(tfdock: Tfdock, tmp_path: Path) -> None:
    refused(tfdock.run("check", tmp_path), 2, "is a folder")
    refused(tfdock.run("check", "/dev/null/x"), 2, "does not exist")
    refused(tfdock.run("check", ""), 2, "is empty")
    refused(tfdock.run("check", "/dev/null"), 2, "is not a file")
    refused(tfdock.run("check", "x" * 5000), 2)


def test_a_deleted_working_folder_is_named_as_such(tfdock: Tfdock, tmp_path: Path) -> None:
    script = f'mkdir x && cd x && rmdir ../x && exec "{sys.executable}" -m tfdock check rtx3080'
    # The variables of a test name folders from the root on, so that no command would need the working folder.
    own = {name: value for name, value in tfdock.environment.items() if not name.startswith("TFDOCK_")}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=own, capture_output=True, text=True)
    assert (done.returncode, "[file-error]" in done.stderr) == (2, True), done.stderr
    assert "was deleted" in done.stderr


def test_a_name_that_the_encoding_of_the_terminal_lacks_is_shown_with_escapes(tfdock: Tfdock, tmp_path: Path) -> None:
    path = tmp_path / "na\xefve.yaml"
    path.write_text('schema: 1\ntensorflow: "2.18.0"\n')
    outcome = tfdock.with_variables(PYTHONIOENCODING="ascii").run("check", path, code=0)
    assert "na\\xefve" in outcome.stdout


def test_a_profile_is_named_without_its_ending_and_another_ending_is_guessed(tfdock: Tfdock) -> None:
    shutil.copy(RTX3080, tfdock.home / "r25.yaml")
    assert tfdock.run("check", "r25", code=0).stdout.startswith("r25: ok, ")
    refused(tfdock.run("check", "r25.yml"), 2, "did you mean `r25.yaml`?")


def test_a_wheelhouse_that_is_a_file_is_named(tfdock: Tfdock) -> None:
    tfdock.wheelhouse.write_text("not a folder")
    outcome = tfdock.build(RTX3080, code=1, problem="folder-not-writable")
    assert str(tfdock.wheelhouse) in outcome.problem["message"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("wheelhose: x\n", ("settings-unknown-key", "wheelhose", "did you mean `wheelhouse`?")),
        ("wheelhouse: [x]\n", ("settings-bad-value",)),
        (": : :", ()),
        ("mirrors: nonsense\n", ("settings-bad-value",)),
        ("plain_http: [registry.lan:5000, 'http://registry.lan']\n", ("settings-bad-value",)),
    ],
)
def test_a_settings_file_with_a_mistake_is_named_with_its_line(
    tfdock: Tfdock, content: str, words: tuple[str, ...]
) -> None:
    folder = tfdock.home / ".config/tfdock"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(content)
    refused(tfdock.run("check", RTX3080), 2, "config.yaml", *words)


def test_help_and_version_answer_at_once(tfdock: Tfdock) -> None:
    assert tfdock.run("--version").stdout.startswith("tfdock ")
    for command in ("check", "plan", "render", "build", "shell", "doctor", "schema"):
        outcome = tfdock.run(command, "--help")
        assert outcome.code == 0
        assert "Usage" in outcome.stdout
