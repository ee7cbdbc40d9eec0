"""A build without a profile, and a profile changed by options: `--gpu`, `--python`, `--cuda`, `--set`, and `-`."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tfdock import api
from tfdock.builder.run_document import profile_document
from tfdock.host import hardware
from tfdock.host.settings import Settings
from tfdock.plan import prepare
from tfdock.plan.prepare import Preparer, lock_path
from tfdock.plan.wish import Wish, wish_of
from tfdock.profile.profile import MAX_EXTENDS
from tfdock.types import LocalGpu, Machine

from .. import command_line

Run = Callable[..., Result]
BASE = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ngpus: [rtx3080]\ncuda: "12.5.1"\ncudnn: "9.3.0"\n'
ENVIRONMENT = {"COLUMNS": "1000", "NO_COLOR": "1", "TFDOCK_KNOWLEDGE": "", "DOCKER_HOST": "unix:///nope"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command in a folder with a profile `my.yaml`, on a machine without GPU and without engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "local_gpus", lambda: ())
    Path("my.yaml").write_text(BASE)
    return lambda *words, text="": command_line.run(*words, stdin=text, **ENVIRONMENT)


def build_id(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[0].rpartition(" ")[2]


# --- without a profile ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [["--gpu", "rtx5090"], ["--gpu", "cpu"], ["--gpu", "rtx3080,h100", "--tensorflow", "2.18"]]
)
def test_options_alone_build_what_init_writes(run: Run, options: list[str]) -> None:
    written = run("init", "written", *options, "--json")
    assert build_id(run("check", *options)) == json.loads(written.stdout)["build_id"]


def test_every_option_counts(run: Run) -> None:
    options = ["--gpu", "rtx3080", "--tensorflow", "2.18.0", "--python", "3.10", "--cuda", "12.4.1"]
    found = build_id(run("check", *options, "--set", "optimize=[avx2]", "--set", "xla=false"))
    assert found.startswith("tf2.18.0-py3.10-cuda12.4.1-")
    assert "noxla" in found


@pytest.mark.parametrize(
    ("cuda", "release"), [("11.8", "2.14"), ("12.3", "2.17"), ("9.0", "1.12"), ("12.6.3", "2.21")]
)
def test_a_release_that_was_tested_with_the_toolkit_comes_before_one_that_lists_it(
    run: Run, cuda: str, release: str
) -> None:
    found = build_id(run("check", "--gpu", "titan-v", "--cuda", cuda))
    assert found.startswith(f"tf{release}.")


def test_the_options_stand_for_the_name(run: Run) -> None:
    row = json.loads(run("check", "--gpu", "rtx3080", "--set", "resources.jobs=2", "--json").stdout)["profiles"][0]
    assert row["file"] == "--gpu rtx3080 --set resources.jobs=2"
    assert str(lock_path(row["file"])) == "gpu-rtx3080-set-resources.jobs-2.lock"


def test_a_profile_has_a_lock_for_each_set_of_options(run: Run) -> None:
    given = ["", "--python 3.12", "--set optimize=native", "--set 'bazel.flags=[--define=a/b]'"]
    paths = [lock_path("my.yaml", options) for options in given]
    assert [str(path) for path in paths[:3]] == ["my.lock", "my-python-3.12.lock", "my-set-optimize-native.lock"]
    assert len({*paths}) == len(paths)
    assert all(path.parent == Path() for path in paths)
    refusal = run("lock", "--check", "my.yaml", "--python", "3.12").stderr
    assert "there is no my-python-3.12.lock beside the profile" in refusal


@pytest.mark.parametrize(
    ("words", "other"),
    [(["my.yaml", "--python", "3.12"], "my-python-3.12.yaml"), (["--gpu", "rtx3080"], "gpu-rtx3080.yaml")],
)
def test_the_lock_of_another_profile_is_not_replaced(
    run: Run, words: list[str], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    Path(other).write_text(BASE)
    result = run("lock", *words)
    assert result.exit_code == 2, result.stderr
    assert f"belongs to {other} [lock-name-taken]" in result.stderr
    assert run("lock", other).exit_code == 7, "it asks a registry, which has no such image, or is not reached"


def test_the_longest_chain_of_profiles_takes_options(run: Run) -> None:
    for number in range(MAX_EXTENDS):
        Path(f"{number}.yaml").write_text(f"extends: {number - 1}.yaml\n" if number else "extends: my.yaml\n")
    last = f"{MAX_EXTENDS - 1}.yaml"
    assert "py3.10" in build_id(run("check", last, "--python", "3.10"))
    Path("more.yaml").write_text(f"extends: {last}\n")
    told = f"more than {MAX_EXTENDS} profiles deep"
    assert told in run("check", "more.yaml").stderr
    assert told in run("check", "more.yaml", "--python", "3.10").stderr


def test_a_run_document_names_options_in_full() -> None:
    preparer = Preparer(
        Settings(), Machine(cpus=2, memory=8 << 30), wish=wish_of(gpu=["cpu"], sets=["bazel.flags=[--define=a/b]"])
    )
    name = "--gpu cpu --set 'bazel.flags=[--define=a/b]'"
    assert profile_document(preparer.prepare(name))["file"] == name


@pytest.mark.skipif(sys.version_info[:2] == (3, 13), reason="this Python is the chosen one")
def test_a_python_that_nobody_chose_is_named(run: Run) -> None:
    here = "{}.{}".format(*sys.version_info)
    told = run("check", "--gpu", "cpu").stderr
    assert (
        "note: the wheel is for Python 3.13, the newest that TensorFlow 2.21.0 accepts; "
        f"tfdock itself runs with Python {here}: `--python {here}` builds for that Python" in told
    )
    assert "note:" not in run("check", "--gpu", "cpu", "--python", "3.13").stderr


# --- over a profile -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--python", "3.10"], "tf2.18.0-py3.10-cuda12.5.1-cudnn9.3.0-sm86-x86_64"),
        (["--cuda", "12.4.1"], "tf2.18.0-py3.11-cuda12.4.1-cudnn9.3.0-sm86-x86_64"),
        (["--gpu", "h100"], "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm90-x86_64"),
        (["--gpu", "8.9"], "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm89-x86_64"),
        (["--gpu", "cpu"], "tf2.18.0-py3.11-cpu-x86_64"),
        (["--gpu", "mi210"], "tf2.18.0-py3.11-rocm6.4-gfx90a-x86_64"),
        (["--gpu", "cpu", "--set", "xla=false", "--set", "bazel.version=6.5.0"], "tf2.18.0-py3.11-cpu-noxla-x86_64"),
        (["--set", "gpus=[rtx3080, h100]"], "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-sm90-x86_64"),
    ],
)  # fmt: skip
def test_options_change_a_profile(run: Run, options: list[str], found: str) -> None:
    assert build_id(run("check", "my.yaml", *options)) == found
    assert Path("my.yaml").read_text() == BASE


def test_a_capability_follows_the_release_of_the_profile(run: Run) -> None:
    result = run("check", "tf1.4-xla-cuda8", "--gpu", "6.1")
    assert build_id(result) == "tf1.4.0-py3.5-cuda8.0.61-cudnn6.0.21-sm61-ptx61-nocloud-x86_64"


def test_a_changed_profile_is_planned_and_rendered_as_one_that_says_the_same(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(f"{BASE}xla: false\n")
    assert run("plan", "my.yaml", "--set", "xla=false").stdout == run("plan", "other.yaml").stdout
    assert run("render", "my.yaml", "--set", "xla=false", "-o", "one").exit_code == 0
    assert run("render", "other.yaml", "-o", "two").exit_code == 0
    assert (tmp_path / "one/Dockerfile").read_bytes() == (tmp_path / "two/Dockerfile").read_bytes()


def test_patches_of_a_changed_profile_are_its_folders(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "a.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    source = 'tensorflow: {release: "2.18.0", patches: [a.patch]}'
    (folder / "own.yaml").write_text(BASE.replace('tensorflow: "2.18.0"', source))
    assert "-noxla-p" in build_id(run("check", "deep/own.yaml", "--set", "xla=false"))


@pytest.mark.parametrize(
    "words",
    [
        ["my.yaml", "--set", "tensorflow.patches=[a.patch]"],
        ["my.yaml", "--tensorflow", "2.18.1", "--set", "tensorflow.patches=[a.patch]"],
        ["--gpu", "rtx3080", "--tensorflow", "2.18", "--set", "tensorflow.patches=[a.patch]"],
        ["--gpu", "rtx3080", "--set", "tensorflow.patches=[a.patch]", "--set", "tensorflow.release=2.18.0"],
    ],
)
def test_a_patch_is_an_option_too(run: Run, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "a.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    found = build_id(run("check", *words))
    assert found.startswith("tf2.18")
    assert "-p" in found.removeprefix("tf2.18.0-py")


def test_a_refusal_names_the_option_or_the_line(run: Run) -> None:
    told = run("check", "my.yaml", "--gpu", "rtx5090").stderr
    assert "--gpu rtx5090: error: CUDA 12.5 does not support sm_120" in told
    assert "my.yaml:6:8: error: cuDNN 9.3.0 has no code for 12.0" in told


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ("--gpu gtx770 --set xla=true", "`--set xla=false`"),
        ("--gpu rtx5090 --tensorflow 2.18", "`--tensorflow 2.20.0`"),
        ("--gpu 8.6 --tensorflow 2.3", "`--tensorflow 2.5.3`"),
        ("my.yaml --gpu rtx5090", "`--tensorflow 2.20.0 --cuda 12.8.0 --set cudnn=9.7.0`"),
        ("my.yaml --set optimize=[noavx]", "leave out `--set 'optimize=[noavx]'`"),
        ("--gpu cpu --set bazel.configs=[mkl,foo]", "`--set 'bazel.configs=[mkl]'`"),
    ],
)
def test_a_fix_of_options_is_options_that_are_accepted(run: Run, options: str, fix: str) -> None:
    refused = run("check", *options.split())
    assert refused.exit_code == 3
    assert fix in " ".join(refused.stderr.split())
    if not fix.startswith("leave"):
        kept = options.partition(" --set")[0]
        assert run("check", *kept.split(), *shlex.split(fix.strip("`"))).exit_code == 0


def test_xla_is_left_out_for_a_gpu_below_its_floor(run: Run, tmp_path: Path) -> None:
    assert "noxla" in build_id(run("check", "--gpu", "k4200"))
    assert run("init", "k4200").exit_code == 0
    assert "# XLA uses no GPU of this age.\nxla: false\n" in (tmp_path / "k4200.yaml").read_text()


def test_what_the_release_chose_is_not_told_as_asked(run: Run) -> None:
    told = [
        " ".join(line.split()) for line in run("plan", "--gpu", "t4", "--cuda", "12.5", "--why").stdout.splitlines()
    ]
    assert "tensorflow 2.21.0 newest patch release of the minor (releases.yaml 2.21)" in told
    assert "cuda 12.5.1 as asked (profile)" in told


@pytest.mark.parametrize(("asked", "release", "held"), [("12", "2.21", "12.5.1"), ("12.8", "2.21", "12.8.1")])
def test_a_part_of_a_version_is_the_tested_or_newest_of_a_closed_list(
    run: Run, asked: str, release: str, held: str
) -> None:
    assert build_id(run("check", "--gpu", "h100", "--cuda", asked)).startswith(f"tf{release}.0-py3.13-cuda{held}-")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plan --gpu t4 --set tensorflow.patch=fix.patch", "did you mean `patches`?"),
        ("plan --gpu t4 --set optimize=AVX2", "should be `portable` or `native`, or a list"),
        ("plan --gpu t4 --set optimize=AVX2", "write a list: `[avx2]`"),
    ],
)
def test_the_fix_of_a_slip_is_what_was_meant(run: Run, words: str, told: str) -> None:
    assert told in run(*words.split()).stderr


def test_more_cores_than_the_machine_has_are_said(run: Run) -> None:
    assert "cores; this machine has only" in run("plan", "--gpu", "cpu", "--set", "resources.cpus=999").stdout


def test_a_way_out_without_a_gpu_asks_for_one(run: Run) -> None:
    told = run("check", "--gpu", "cpu", "--cuda", "12.5.1").stderr
    assert "CUDA 12.5.1: name a GPU in place of `--gpu cpu`" in told


def test_a_question_about_options_is_options_too(run: Run) -> None:
    asked = run("check", "--gpu", "9.0", "--tensorflow", "2.6").stderr
    assert "keep TensorFlow 2.6: `--cuda 11.8 --allow-untested`" in " ".join(asked.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plan --gpu rtx3090 --memory 24GB", "it is a field of the profile: `--set resources.memory=…`"),
        ("plan --gpu rtx3090 --cudnn 9.3", "it is a field of the profile: `--set cudnn=…`"),
        ("--python 3.12 plan --gpu rtx3090", "write it after the command: `tfdock plan --python …`"),
        ("plan --gpu rtx3090 --set patches=a", "or `--set tensorflow.patches=…`"),
        ("plan --gpu rtx3090 h100", "name it by an option: `--gpu rtx3090,h100`"),
        ("plan --gpu gtx770 --tensorflow 2.x", "without a version, tfdock uses the newest release that fits"),
    ],
)
def test_an_option_that_is_not_there_is_told_where_its_value_goes(run: Run, words: str, told: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert told in result.stderr


def test_an_option_of_no_profile_gets_no_field(run: Run) -> None:
    assert "field" not in run("inspect", "--memory", "2").stderr


def test_more_memory_than_the_machine_has_is_said(run: Run) -> None:
    planned = run("plan", "--gpu", "cpu", "--set", "resources.memory=99999GiB")
    assert "a build here gets no more" in planned.stdout


def test_options_name_files_of_this_folder_whatever_else_they_say(run: Run, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/own.yaml").write_text(BASE)
    (tmp_path / "deep/a.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    patch = ["--set", "tensorflow.patches=[deep/a.patch]"]
    for words in (["--gpu", "rtx3080"], ["deep/own.yaml"], ["rtx3080"]):
        assert "-p" in build_id(run("check", *words, *patch, "--set", "runtime=docker.io/library/python:3.12"))
    outside = run("check", "--gpu", "rtx3080", "--set", "tensorflow.patches=[../a.patch]").stderr
    assert "`../a.patch` leads to" in outside
    assert "path-outside" in outside


def test_a_chain_of_profiles_and_any_text_take_options(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.yaml").write_text(BASE)
    (tmp_path / "sub/m.yaml").write_text("extends: a.yaml\n")
    (tmp_path / "a.yaml").write_text("extends: sub/m.yaml\n")
    (tmp_path / "😀.yaml").write_text(BASE)
    assert "py3.10" in build_id(run("check", "a.yaml", "--python", "3.10"))
    assert "py3.10" in build_id(
        run("check", "😀.yaml", "--python", "3.10", "--set", "allow_failing=because 😀 says so")
    )


def test_a_gpu_of_another_kind_leaves_the_compiler_out(run: Run) -> None:
    assert "-cpu-" in build_id(run("check", "rtx5090", "--gpu", "cpu"))


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "xla=false"], "`--set xla=false` does not name a GPU [wish-without-gpu]"),
        (["--gpu", ","], "`--gpu` names no GPU [gpu-unknown]"),
        (["--gpu", "rtx9999"], "the GPU `rtx9999` is not known [gpu-unknown]"),
        (
            ["my.yaml", "--set", "tensorflow={release: 2.18.0}"],
            "sets the fields of `tensorflow` one by one [wish-malformed]",
        ),
        (["--gpu", "local"], "`--gpu local` found no GPU on this machine [gpu-local-none]"),
        (["my.yaml", "--set", "xla"], "`--set xla` is not `FIELD=VALUE` [wish-malformed]"),
        (["my.yaml", "--set", "xla="], "`--set xla=` is not `FIELD=VALUE` [wish-malformed]"),
        (["my.yaml", "--set", "a b=c"], "`--set a b=c` is not `FIELD=VALUE` [wish-malformed]"),
        (["my.yaml", "--set", "extends=x.yaml"], "`extends` can be set only in a profile [wish-malformed]"),
        (["my.yaml", "--set", "XLA=false"], "unknown key `XLA` [profile-unknown-key]"),
        (["my.yaml", "--set", "compute-capabilities=[sm_86]"], "did you mean `compute_capabilities`?"),
        (["my.yaml", "--set", "gpus=[rtx3080]]"], "--set gpus=[rtx3080]]: error: not valid YAML"),
        (["my.yaml", "--set", "gpus=[rtx3080]\nxla: [0]"], "xla: [0]: error: not valid YAML"),
        (["my.yaml", "--set", "gpus=[rtx3080"], "write a list: `[rtx3080]`"),
        (["my.yaml", "--python", "3.10", "--set", "python=3.11"], "`python` is set by another option"),
        (["my.yaml", "--set", "bazel=1", "--set", "bazel.version=2"], "`bazel.version` is set by another option"),
        (
            ["my.yaml", "--set", "bazel.version=2", "--set", "bazel={version: 2}"],
            "`bazel` is set by another option",
        ),
        (["--gpu", "cpu", "--set", "accelerator=cpu"], "`accelerator` is set by another option"),
        (["--gpu", "cpu", "--python", ""], "`--python` is empty [wish-malformed]"),
        (["my.yaml", "--set", "host_compiler={name: gcc, version: 11}"], "`host_compiler.version` is a number"),
        (["my.yaml", "--set", f"{'a.' * 3000}a=1"], "is not `FIELD=VALUE` [wish-malformed]"),
        (["my.yaml", "--set", "pyhton=3.11"], "--set pyhton=3.11: error: unknown key `pyhton`"),
        (["my.yaml", "--cuda", "twelve"], "--cuda twelve: error: "),
        (["my.yaml", "--set", "gpus=[8.6]"], "--set gpus=[8.6]: error: `gpus[0]` is a number"),
        ([], "name a profile, or a GPU"),
    ],
)
def test_a_wish_that_is_none_is_one_error(run: Run, words: list[str], told: str) -> None:
    result = run("check", *words)
    assert result.exit_code == 2
    assert told in result.stderr.replace("'", "")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["check", "plan", "render", "lock", "fetch", "pull", "build"])
def test_all_commands_of_a_build_take_the_options(run: Run, command: str) -> None:
    more = ["-o", "context"] if command == "render" else []
    result = run(command, *more, "--set", "resources.jobs=2", "--gpu", "rtx9999")
    assert "the GPU `rtx9999` is not known" in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["my.yaml"]


@pytest.mark.parametrize("name", ["ghcr.io/me/wheels:1", "tf2.18.0-py3.11-cpu-x86_64"])
def test_an_image_takes_no_options(run: Run, name: str) -> None:
    assert "options change profiles, not images or build ids" in run("pull", name, "--python", "3.10").stderr


@pytest.mark.parametrize("given", [["--matrix", "m.yaml"], ["--from", "b.tar"]])
def test_a_matrix_and_a_bundle_have_their_own_profiles(run: Run, given: list[str]) -> None:
    assert "contains its profiles: remove `--gpu`" in run("build", *given, "--gpu", "rtx3080").stderr


# --- names ----------------------------------------------------------------------------------------------------------


def test_standard_input_is_a_profile(run: Run) -> None:
    assert build_id(run("check", "-", text=BASE)) == build_id(run("check", "my.yaml"))
    assert "py3.10" in build_id(run("check", "-", "--python", "3.10", text=BASE))
    assert "<stdin>:3:9: error: `python` is a number" in run("check", "-", text=BASE.replace('"3.11"', "3.10")).stderr
    assert "standard input has more than" in run("check", "-", text="#" * 300_000).stderr
    assert "has no lock" in run("lock", "-", text=BASE).stderr


def test_servers_are_asked_for_a_profile_from_standard_input() -> None:
    nowhere = {"https_proxy": "http://127.0.0.1:1", "no_proxy": ""}
    result = command_line.run("check", "--online", "-", stdin=BASE, **ENVIRONMENT, **nowhere)
    assert result.exit_code == 7
    assert "-: not ok, " in result.stdout


def test_bytes_that_are_no_text_are_refused() -> None:
    result = command_line.run("check", "-", stdin=b"schema: \xff\xfe", **ENVIRONMENT)
    assert result.exit_code == 2
    assert "<stdin>: error: not UTF-8 text" in result.stderr


def test_a_name_is_a_file_of_the_folder_before_a_shipped_profile(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rtx3080.yaml").write_text(BASE.replace("3.11", "3.10"))
    assert "py3.10" in build_id(run("check", "rtx3080"))
    assert "py3.11" in build_id(run("check", "my"))


def test_init_writes_the_file_of_the_gpu(run: Run, tmp_path: Path) -> None:
    assert run("init", "--gpu", "rtx5090").stdout == "rtx5090.yaml\n"
    first = (tmp_path / "rtx5090.yaml").read_text()
    (tmp_path / "rtx5090.yaml").unlink()
    assert run("init", "rtx5090").stdout == "rtx5090.yaml\n"
    assert (tmp_path / "rtx5090.yaml").read_text() == first


def test_words_can_be_pasted() -> None:
    wish = wish_of(gpu=["rtx3080, h100"], sets=["gpus=[a b]".replace("gpus", "wheel.name")], python="3.11", cuda=None)
    assert wish == Wish(("rtx3080", "h100"), {"python": "3.11", "wheel.name": "[a b]"})
    assert wish.words == "--gpu rtx3080,h100 --python 3.11 --set 'wheel.name=[a b]'"


# --- what an accepted profile is told ------------------------------------------------------------------------------


def test_the_first_line_of_a_check_says_how_long_and_what_nobody_checked(run: Run) -> None:
    first, *_, doubt = run("check", "my.yaml").stdout.splitlines()
    assert re.fullmatch(r"my\.yaml: ok, about \d+ (h|days), image unverified: tf2\.18\.0-\S+", first)
    assert doubt.startswith("  unverified: tensorflow/build:2.18-python3.11: ")
    # An image of one's own is nobody's to check.
    own = run("check", "my.yaml", "--set", "base=docker.io/me/mine:1", "--allow-untested").stdout
    assert "unverified" not in own


def test_documents_have_the_notes_the_hours_and_the_doubts(run: Run) -> None:
    row = json.loads(run("check", "my.yaml", "--json").stdout)["profiles"][0]
    plan = json.loads(run("plan", "my.yaml", "--json").stdout)
    for name in ("estimate", "unverified", "notes"):
        assert row[name]
        assert row[name] == plan[name]
    assert [f"note: {note}" for note in row["notes"]] == run("check", "my.yaml").stderr.splitlines()
    assert api.notes("my.yaml") == tuple(row["notes"])
    assert api.notes(gpu="rtx5090", python="3.13") == ()


# --- no hours for what pip installs ---------------------------------------------------------------------------------

OFFICIAL = "note: no build is needed: the official wheel of TensorFlow 2.18.0 runs on rtx3080: "


def test_init_names_it_too_and_a_plan_a_domain_of_its_own(run: Run) -> None:
    told = run("init", "--gpu", "rtx3080", "--tensorflow", "2.18", "--python", "3.11").stderr
    assert "note: no build is needed: the official wheel of TensorFlow 2.18.1 runs on rtx3080" in told
    assert "trust domain" in run("plan", "my.yaml", "--set", "tensorflow.ref=master").stdout
    assert "trust domain" not in run("plan", "my.yaml").stdout


@pytest.mark.parametrize("command", ["check", "plan"])
def test_an_official_wheel_that_does_it_is_named_with_its_pip_line(run: Run, command: str) -> None:
    told = run(command, "my.yaml").stderr
    assert f"{OFFICIAL}`pip install 'tensorflow[and-cuda]==2.18.0'`\n" in told


@pytest.mark.parametrize(
    "options",
    [
        ["--gpu", "rtx5090", "--tensorflow", "2.20.0", "--cuda", "12.8.1", "--set", "cudnn=9.8.0"],
        ["--set", "debug=true"],
        ["--set", "optimize=native"],
        ["--set", "xla=false"],
        ["--set", "tensorflow.ref=master"],
        ["--tensorflow", "2.21.0", "--set", "gpus=[rtx3080, rtx5090]", "--cuda", "12.8.0", "--set", "cudnn=9.7.0"],
        ["--cuda", "12.4.1"],
        ["--set", "edits=none"],
    ],
)
def test_what_the_official_wheel_has_not_is_built_without_a_word(run: Run, options: list[str]) -> None:
    result = run("check", "my.yaml", *options)
    assert result.exit_code == 0
    assert "no build is needed" not in result.stderr


def test_this_machines_gpus_count_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    here = LocalGpu(name="NVIDIA GeForce RTX 5090", accelerator="cuda", target="12.0")
    monkeypatch.setattr(prepare, "local_gpus", lambda: (here,))
    options = ["--tensorflow", "2.21.0", "--set", "gpus=[rtx3080, local]", "--cuda", "12.8.0", "--set", "cudnn=9.7.0"]
    result = run("check", "my.yaml", *options)
    assert "sm86-sm120" in build_id(result)
    assert "no build is needed" not in result.stderr


def test_a_cuda_that_pip_does_not_bring_is_a_reason_to_build(run: Run) -> None:
    old = ["--gpu", "v100", "--tensorflow", "2.4.0", "--python", "3.8"]
    assert "CUDA 11.0 and cuDNN 8.0 must be installed beside it" in run("check", *old).stderr
    assert "no build is needed" not in run("check", *old, "--cuda", "11.1").stderr


def test_limits_of_the_official_wheel_are_pointed_to(run: Run) -> None:
    told = run("check", "--gpu", "rtx3080", "--python", "3.11").stderr
    assert "`tfdock advise --gpu rtx3080 --tensorflow 2.21.0` prints the limits" in told


@pytest.mark.parametrize(("answer", "others", "code"), [("n", [], 0), ("n", ["refused.yaml"], 3), ("y", [], 6)])
def test_build_asks_once_on_a_terminal(tmp_path: Path, answer: str, others: list[str], code: int) -> None:
    (tmp_path / "my.yaml").write_text(BASE)
    (tmp_path / "refused.yaml").write_text(BASE.replace("12.5.1", "11.0"))
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb"}
    words = [sys.executable, "-m", "tfdock", "build", "my", "my.yaml", *others]
    with subprocess.Popen(
        words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        seen = b""
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other side has closed the terminal
                break
    os.close(ours)
    assert process.returncode == code, seen
    assert seen.count(OFFICIAL.encode()) == 1
    assert seen.count(b" anyway?") == 1
    assert [
        path.name for path in tmp_path.iterdir() if path.suffix != ".yaml" and not path.name.startswith(".")
    ] == []
