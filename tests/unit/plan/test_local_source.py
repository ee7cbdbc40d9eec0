"""`gpus: local`: this machine's GPUs, by what their drivers tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tfdock.gpu.devices import local_words
from tfdock.host import hardware
from tfdock.plan import prepare
from tfdock.types import Host, LocalGpu

from ..command_line import run
from ..desk import Desk


def nvidia(name: str, target: str | None) -> LocalGpu:
    return LocalGpu(name=name, accelerator="cuda", target=target)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([nvidia("NVIDIA GeForce RTX 3080", "8.6")], ("rtx3080",)),
        ([nvidia("NVIDIA GeForce RTX 3080", "8.6")] * 2, ("rtx3080",)),
        ([nvidia("NVIDIA GeForce RTX 3080", None)], ("rtx3080",)),
        ([nvidia("NVIDIA GeForce RTX 9999", "12.0")], ("sm_120",)),
        ([nvidia("NVIDIA GeForce RTX 9999", None)], ("NVIDIA GeForce RTX 9999",)),
        ([nvidia("NVIDIA GeForce GTX 860M", "3.0")], ("gtx860m-cc30",)),
        ([LocalGpu(name="AMD Radeon Something", accelerator="rocm", target="gfx1100")], ("gfx1100",)),
    ],
    ids=["known", "twice", "target not told", "newer than the rows", "nothing known", "a name of two", "AMD"],
)
def test_a_name_that_is_not_known_leaves_the_target_to_go_by(
    desk: Desk, gpus: list[LocalGpu], words: tuple[str, ...]
) -> None:
    assert local_words(desk.knowledge, gpus) == words


def checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: LocalGpu, driver: str, *words: str, gpus: str = "local"
) -> Result:
    """`tfdock check` of a profile for this machine's GPU, which is `gpu`."""
    host = Host(gpus=(gpu,), drivers={gpu.accelerator: driver})
    monkeypatch.setattr(prepare, "local_gpus", lambda: host.gpus)
    monkeypatch.setattr(hardware, "local_host", lambda: host)
    profile = folder / "local.yaml"
    profile.write_text(f'schema: 1\ntensorflow: "2.20.0"\ngpus: {gpus}\n')
    return run("check", profile, *words)


def test_a_gpu_newer_than_the_rows_is_built_for_by_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = checked(tmp_path, monkeypatch, nvidia("NVIDIA GeForce RTX 9999", "12.0"), "580.1")
    assert outcome.exit_code == 0, outcome.stderr
    assert "-sm120-" in outcome.stdout


@pytest.mark.parametrize("gpus", ["local", "[local]", "[local, rtx3090]"])
def test_a_build_for_this_machine_that_its_driver_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    outcome = checked(tmp_path, monkeypatch, nvidia("NVIDIA GeForce RTX 3080", "8.6"), "400.57", "--json", gpus=gpus)
    assert outcome.exit_code == 3
    (profile,) = json.loads(outcome.stdout)["profiles"]
    (problem,) = profile["problems"]
    assert (profile["ok"], profile["warnings"]) == (False, [])
    assert (problem["code"], problem["field"], problem["line"]) == ("driver-too-old", "gpus", 3)
    assert "driver 525.60.13 or newer" in problem["fix"]


def test_a_build_for_others_is_only_warned_of_this_machines_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = nvidia("NVIDIA GeForce RTX 3080", "8.6")
    outcome = checked(tmp_path, monkeypatch, gpu, "400.57", "--json", gpus="[rtx3080]")
    assert outcome.exit_code == 0
    (profile,) = json.loads(outcome.stdout)["profiles"]
    told = {problem["code"]: problem for problem in profile["warnings"]}
    assert profile["ok"]
    assert told["driver-too-old"]["severity"] == "warning"
    assert told["driver-too-old"]["message"].startswith("this machine: driver 400.57;")
