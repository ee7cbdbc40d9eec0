"""A first profile: from flags or answers to a file that `check` accepts, and never over another one."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from tfdock.errors import Incompatible, ProfileError
from tfdock.host import hardware
from tfdock.resolve.gpu_support import target_facts
from tfdock.resolve.starter import AcceptedProfile, devices_of, starter
from tfdock.types import LocalGpu, Version

from .. import command_line
from ..desk import Desk

Init = Callable[..., Result]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Init:
    """The command in an empty folder, on a machine without GPU, with nobody at a terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "local_gpus", lambda: ())
    return partial(command_line.run, "init", COLUMNS="80")


def made(desk: Desk, *words: str, tensorflow: str | None = None, python: str | None = None) -> AcceptedProfile:
    return starter(desk.knowledge, devices_of(desk.knowledge, words), tensorflow=tensorflow, python=python)


# --- the text -----------------------------------------------------------------------------------------------------


def test_the_profile_names_every_version_it_resolves_to(made_up: Desk) -> None:
    found = made(made_up, "twelve")
    fields = yaml.safe_load(found.text)
    assert fields == {
        "schema": 1,
        "tensorflow": "9.9.1",
        "python": "3.11",
        "gpus": ["twelve"],
        "cuda": "20.1.0",
        "cudnn": "9.0.0",
    }
    assert found.resolution.targets == ("sm_120",)
    assert made_up.resolve(found.text).build_id == found.resolution.build_id


def test_a_release_that_refuses_its_own_choices_in_writing_is_not_chosen(desk: Desk) -> None:
    """With CUDA 10.2, 2.6 was built for Python 3.8 alone, and its first image has Python 3.6."""
    devices = devices_of(desk.knowledge, ["gtx1080"])
    found = starter(desk.knowledge, devices, more={"cuda": '"10.2"'})
    assert yaml.safe_load(found.text)["cuda"] == "10.2"
    assert desk.resolve(found.text).build_id == found.resolution.build_id


def test_components_without_a_field_of_their_own_stand_in_components(made_up: Desk) -> None:
    fields = yaml.safe_load(made(made_up, "slab").text)
    assert fields["components"] == {"xpu": "5.0.2", "xdnn": "2"}
    assert fields["gpus"] == ["slab"]


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["one", "Zeta Twelve"], "gpus", ["one", "twelve"]),
        (["one", "one"], "gpus", ["one"]),
        (["8.6"], "compute_capabilities", ["sm_86"]),
        (["SM86"], "compute_capabilities", ["sm_86"]),
        (["sm_86", "compute_90"], "compute_capabilities", ["sm_86", "compute_90"]),
        (["sm_90", "one"], "compute_capabilities", ["sm_86", "sm_90"]),
        (["xe2"], "targets", ["xe2"]),
        (["cpu"], "accelerator", "cpu"),
        (["CPU"], "accelerator", "cpu"),
    ],
)
def test_gpus_are_named_by_name_by_capability_or_not_at_all(
    made_up: Desk, words: list[str], field: str, value: object
) -> None:
    assert yaml.safe_load(made(made_up, *words).text)[field] == value


def test_an_older_release_is_taken_where_the_newest_does_not_serve_the_gpu(desk: Desk) -> None:
    k80 = desk.knowledge.gpus["k80"]
    taking = target_facts(desk.knowledge, desk.knowledge.accelerators[k80.accelerator], k80.target).releases
    found = made(desk, "k80").resolution
    assert found.release.release == taking[-1].release
    assert Version(found.release.release) < max(map(Version, desk.knowledge.releases))


def test_a_release_or_python_asked_for_is_taken_or_refused_with_its_reasons(made_up: Desk) -> None:
    assert made(made_up, "one", python="3.10").resolution.python == "3.10"
    with pytest.raises(Incompatible) as caught:
        made(made_up, "twelve", tensorflow="1.9")
    assert {problem.code for problem in caught.value.problems} >= {"target-not-in-toolkit"}
    assert all(problem.where == "" for problem in caught.value.problems), "the text is in no file yet"
    with pytest.raises(ProfileError):
        made(made_up, "one", python='3.10"\nxla: false')


def test_a_capability_gets_ptx_where_the_release_makes_no_code_without_it(desk: Desk) -> None:
    old, new = made(desk, "3.5", tensorflow="1.15.0"), made(desk, "8.6")
    assert "compute_capabilities: [compute_35]\n" in old.text
    assert "compute_capabilities: [sm_86]\n" in new.text


def test_words_that_mean_nothing_or_too_much_are_refused(desk: Desk) -> None:
    codes = {"rtx3081": "gpu-unknown", "rtx 6000": "gpu-ambiguous", "-": "gpu-unknown"}
    for word, code in codes.items():
        with pytest.raises(ProfileError) as caught:
            devices_of(desk.knowledge, [word])
        assert caught.value.problems[0].code == code, word
    with pytest.raises(ProfileError) as caught:
        devices_of(desk.knowledge, ["rtx3080", "gfx90a"])
    assert caught.value.problems[0].code == "accelerator-conflict"


@pytest.mark.parametrize("gpu", ["k80", "v100", "rtx2080", "rtx3080", "rtx4090", "h100", "rtx5080", "mi300x", "cpu"])
def test_for_every_kind_of_gpu_there_is_a_profile_without_anything_untested(desk: Desk, gpu: str) -> None:
    resolution = made(desk, gpu).resolution
    assert resolution.untested == ()
    assert len(resolution.targets) == (gpu != "cpu")


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rtx4090", "rtx4090.yaml", "RTX 4090"])
def test_the_name_of_a_gpu_stands_for_that_gpu(init: Init, tmp_path: Path, name: str) -> None:
    assert init(name, "--yes").exit_code == 0
    fields = yaml.safe_load((tmp_path / f"{name.removesuffix('.yaml')}.yaml").read_text())
    assert fields["gpus"] == ["rtx4090"]


def test_an_option_counts_more_than_the_name_of_the_profile(init: Init, tmp_path: Path) -> None:
    assert init("rtx4090", "--gpu", "cpu").exit_code == 0
    assert yaml.safe_load((tmp_path / "rtx4090.yaml").read_text())["accelerator"] == "cpu"
    assert init("rtx4095", "--gpu", "rtx4090").exit_code == 0


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("rtx4095", "gpu-unknown", ["the GPU `rtx4095` is not known", "tfdock init rtx4095 --gpu"]),
        ("rtx6000", "gpu-ambiguous", ["`rtx6000-ada`"]),
        ("sm_99", "gpu-unknown", ["`sm_99`"]),
    ],
)
def test_a_name_that_looks_like_a_gpu_is_refused_where_no_single_one_is_known(
    init: Init, tmp_path: Path, name: str, code: str, words: list[str]
) -> None:
    result = init(name, "--yes")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert all(word in said for word in [f"[{code}]", *words])
    assert list(tmp_path.iterdir()) == []


def test_init_writes_a_commented_profile_that_check_accepts_and_says_what_is_next(init: Init, tmp_path: Path) -> None:
    result = init("my", "--gpu", "rtx5080")
    assert (result.exit_code, result.stdout) == (0, "my.yaml\n")
    assert "`tfdock check my.yaml`" in result.stderr
    text = (tmp_path / "my.yaml").read_text()
    assert text.count("# ") >= 4
    assert yaml.safe_load(text)["gpus"] == ["rtx5080"]
    assert command_line.run("check", "my.yaml").exit_code == 0


def test_options_are_written_as_the_build_takes_them(init: Init, tmp_path: Path) -> None:
    options = ("--gpu", "rtx3080", "--cuda", "12.5", "--set", "xla=false", "--set", "resources.memory=20GiB")
    assert init("my", *options).exit_code == 0
    text = (tmp_path / "my.yaml").read_text()
    assert '\ncuda: "12.5.1"\nxla: false\n' in text, "a field that was asked for needs no comment"
    plans = [json.loads(command_line.run("plan", *words, "--json").stdout) for words in (["my.yaml"], options)]
    assert plans[0]["build_id"] == plans[1]["build_id"]


def test_a_source_of_ones_own_is_refused(init: Init, tmp_path: Path) -> None:
    result = init("my", "--gpu", "cpu", "--set", "tensorflow.patches=[a.patch]")
    assert (result.exit_code, [*tmp_path.iterdir()]) == (2, [])
    assert "`init` does not write `tensorflow.patches`" in result.stderr


def test_the_profile_names_the_schema_that_lies_beside_it(init: Init, tmp_path: Path) -> None:
    (tmp_path / "tfdock.schema.json").write_text("{}", "utf-8")
    document = json.loads(init("my", "--gpu", "rtx3080", "--json").stdout)
    text = (tmp_path / "my.yaml").read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=tfdock.schema.json\n# A TensorFlow wheel for rtx3080.")
    assert document["text"] == text


def test_a_profile_that_cannot_be_written_whole_is_not_there(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = init("x", "--gpu", "cpu")
    assert (result.exit_code, "[disk-full]" in result.stderr) == (8, True)
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_it_is_the_gpus_or_profile_yaml_and_a_whole_name_stays(init: Init, tmp_path: Path) -> None:
    init("--gpu", "cpu")
    init("--yes")
    init("other.yml", "--gpu", "cpu", "--tensorflow", "2.18", "--python", "3.11")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cpu.yaml", "other.yml", "profile.yaml"]
    assert yaml.safe_load((tmp_path / "other.yml").read_text())["tensorflow"].startswith("2.18.")


def test_nothing_is_ever_overwritten(init: Init, tmp_path: Path) -> None:
    (tmp_path / "thesis.yaml").write_text("years of work")
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    for name in ("thesis", "thesis.yaml", "dangling"):
        result = init(name, "--gpu", "cpu")
        assert result.exit_code == 2
        assert "[init-file-exists]" in result.stderr
    assert (tmp_path / "thesis.yaml").read_text() == "years of work"
    assert not (tmp_path / "nowhere").exists()


def test_in_a_pipe_it_says_how_to_say_it(init: Init, tmp_path: Path) -> None:
    result = init("--tensorflow", "2.18")
    assert result.exit_code == 2
    for words in ("[init-nobody-to-ask]", "--gpu", "--gpu local", "--yes"):
        assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_yes_takes_this_machines_gpus_or_else_none(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init("without", "--yes")
    gpu = LocalGpu(name="NVIDIA GeForce RTX 3080", accelerator="cuda", target="8.6")
    monkeypatch.setattr(hardware, "local_gpus", lambda: (gpu, gpu))
    init("with", "--yes")
    init("detected", "--gpu", "local")
    fields = {path.stem: yaml.safe_load(path.read_text()) for path in tmp_path.iterdir()}
    assert fields["without"]["accelerator"] == "cpu"
    assert fields["with"]["gpus"] == fields["detected"]["gpus"] == ["rtx3080"]


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["--gpu", "rtx3081"], 2, "gpu-unknown"),
        (["--gpu", "rtx5090", "--tensorflow", "2.10"], 3, "target-not-in-toolkit"),
        (["--gpu", "cpu", "--python", "3"], 2, "profile-bad-value"),
        (["--gpu", "cpu", "--tensorflow", "2.99"], 2, "release-unknown"),
        (["--gpu", ""], 2, "gpu-unknown"),
        (["--gpu", "local"], 2, "gpu-local-none"),
        (["--gpu", "k80", "--gpu", "rtx5080"], 3, "target-not-in-toolkit"),
        (["--gpu", "rx6600"], 3, "target-not-in-toolkit"),
        (["", "--gpu", "cpu"], 2, "file-error"),
        (["-", "--gpu", "cpu"], 2, "file-error"),
        ([".", "--gpu", "cpu"], 2, "file-error"),
        (["no/", "--gpu", "cpu"], 2, "file-error"),
        (["no/such/folder/x", "--gpu", "cpu"], 2, "file-error"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    init: Init, tmp_path: Path, words: list[str], code: int, name: str
) -> None:
    result = init(*words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert f"[{name}]" in result.stderr
    assert "fix:" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_gpus_that_share_no_wheel_are_refused_once_with_a_command_for_each(init: Init) -> None:
    text = " ".join(init("--gpu", "k80", "--gpu", "rtx5080", "--tensorflow", "2.14").stderr.split())
    assert text.count("error:") == 1
    assert "no single wheel serves k80 and rtx5080" in text
    assert "k80 (3.7): CUDA 7.5 to 11.8" in text
    assert "rtx5080 (12.0): CUDA 12.8 or newer" in text
    assert "`tfdock init k80 --gpu k80`" in text
    assert "remove" not in text


def test_a_folder_that_is_not_there_is_named_with_the_command_that_makes_it(init: Init) -> None:
    text = init("no/such folder/x", "--gpu", "cpu").stderr
    assert "the folder no/such folder does not exist" in text
    assert "`mkdir -p 'no/such folder'`" in text


def test_the_next_steps_can_be_pasted_whatever_the_name(init: Init) -> None:
    assert "`tfdock check 'my profile.yaml'`" in init("my profile", "--gpu", "cpu").stderr


def test_json_is_one_document_with_the_text(init: Init, tmp_path: Path) -> None:
    document = command_line.document(init("x", "--gpu", "cpu", "--json"), "tfdock.init/1")
    assert document["ok"] is True
    assert document["text"] == (tmp_path / "x.yaml").read_text()
    refused = json.loads(init("x", "--gpu", "cpu", "--json").stdout)
    assert (refused["ok"], refused["problems"][0]["code"]) == (False, "init-file-exists")


class Somebody:
    """Somebody at a terminal, who answers questions."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "COLUMNS": "100"}
        command = [sys.executable, "-m", "tfdock", "init", *words]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> Somebody:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def wait_for(self, words: str) -> None:
        end = time.monotonic() + 60
        while words not in self.seen:
            assert time.monotonic() < end, self.seen
            try:
                self.seen += os.read(self._ours, 4096).decode()
            except OSError:  # the other side has closed the terminal
                break
        assert words in self.seen, self.seen

    def answer(self, question: str, words: str) -> None:
        self.wait_for(question)
        self.seen = ""
        os.write(self._ours, f"{words}\n".encode())


@pytest.mark.slow
def test_on_a_terminal_it_asks_and_asks_again_after_an_answer_that_cannot_be(tmp_path: Path) -> None:
    with Somebody(tmp_path) as somebody:
        somebody.answer("For which GPU", "rtx3081")
        somebody.wait_for("[gpu-unknown]")
        somebody.answer("For which GPU", "rtx5080")
        somebody.answer("Which TensorFlow", "2.10")
        somebody.wait_for("fix:")
        somebody.answer("Which TensorFlow", "2.20")
        somebody.answer("Which Python", "")
        somebody.wait_for("tfdock check profile.yaml")
        assert somebody.process.wait(30) == 0
    fields = yaml.safe_load((tmp_path / "profile.yaml").read_text())
    assert (fields["tensorflow"], fields["gpus"]) == ("2.20.0", ["rtx5080"])


@pytest.mark.slow
def test_after_a_python_that_cannot_be_only_the_python_is_asked_for_again(tmp_path: Path) -> None:
    with Somebody(tmp_path, "--gpu", "rtx3080") as somebody:
        somebody.answer("Which TensorFlow", "2.18")
        somebody.answer("Which Python", "3.20")
        somebody.answer("Which Python", "3.10")
        somebody.wait_for("tfdock check")
        assert "Which TensorFlow" not in somebody.seen
        assert somebody.process.wait(30) == 0
    fields = yaml.safe_load((tmp_path / "rtx3080.yaml").read_text())
    assert (fields["tensorflow"], fields["python"]) == ("2.18.1", "3.10")


@pytest.mark.slow
def test_no_way_out_is_told_that_no_answer_can_be(tmp_path: Path) -> None:
    with Somebody(tmp_path) as somebody:
        somebody.answer("For which GPU", "k80, rtx5080")
        somebody.wait_for("no single wheel")
        somebody.answer("For which GPU", "rtx5080")
        somebody.answer("Which TensorFlow", "2.19")
        somebody.wait_for("Which TensorFlow")
        assert "fix:" in somebody.seen
        assert "allow_untested" not in somebody.seen


@pytest.mark.slow
def test_flags_are_not_asked_for_again(tmp_path: Path) -> None:
    with Somebody(tmp_path, "--gpu", "rtx3080", "--tensorflow", "2.18") as somebody:
        somebody.answer("Which Python", "3.11")
        somebody.wait_for("tfdock check")
        assert somebody.process.wait(30) == 0
    assert yaml.safe_load((tmp_path / "rtx3080.yaml").read_text())["python"] == "3.11"


@pytest.mark.slow
def test_a_flag_that_is_refused_ends_it_and_is_not_tried_again(tmp_path: Path) -> None:
    refusals = {("--tensorflow", "9.9"): "[release-unknown]", ("--python", "3"): "[profile-bad-value]"}
    for words, code in refusals.items():
        with Somebody(tmp_path, "--gpu", "cpu", *words) as somebody:
            somebody.wait_for(code)
            assert somebody.process.wait(30) in (2, 3)
    assert list(tmp_path.glob("*.yaml")) == []


@pytest.mark.slow
def test_leaving_at_a_question_leaves_no_file(tmp_path: Path) -> None:
    with Somebody(tmp_path) as somebody:
        somebody.answer("For which GPU", "\x04")
        somebody.wait_for("\ninterrupted")
        assert somebody.process.wait(30) == 130
    # The parsed knowledge may be kept in this home.
    assert {path.name for path in tmp_path.iterdir()} <= {".cache"}
