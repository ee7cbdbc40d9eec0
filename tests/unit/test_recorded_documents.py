"""What other programs read stays as it was: recorded `--json` documents of a fixed set of commands, byte by byte.

`make golden` writes tests/golden-documents anew; the diff is then read line by line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from document_schemas import faults, name_of
from wheelhouses import made

from tfdock import __version__
from tfdock.host import hardware
from tfdock.knowledge import loader

from .command_line import run
from .desk import MACHINE, Desk

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden-documents"
IMPOSSIBLE = 'schema: 1\ntensorflow: "2.4.4"\npython: "3.12"\ncuda: "11.0"\ngpus: [rtx5090]\nspeed: high\n'
REFUSED = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ngpus: [rtx3080]\ncuda: "11.2"\ncudnn: "7"\n'
MATRIX = """\
schema: 1
base: plain.yaml
axes: {python: ["3.10", "3.11"], gpus: [[rtx3080], [rtx5090]]}
exclude: [{when: {python: "3.10", gpus: [rtx3080]}, reason: nobody asked}]
"""
PLAIN = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ngpus: [rtx3080]\n'
LOG = """\
ERROR: /src/tensorflow/BUILD:1:1: Compiling tensorflow/core/x.cc failed: (Exit 1): gcc failed
gcc: fatal error: Killed signal terminated program cc1plus
nvcc fatal   : Unsupported gpu architecture 'compute_120'
"""
#: 2 TiB free, mounted without restrictions.
ROOMY_DISK = os.statvfs_result((4096, 4096, 1 << 30, 1 << 29, 1 << 29, 1 << 20, 1 << 20, 1 << 20, 0, 255))
LARGE = 50_000  #: Characters above which a document is recorded as its sha256.
BUILT = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64"

COMMANDS = {
    **{f"plan-{file.stem}": ["plan", file.stem] for file in loader.profile_files() if file.stem != "demo"},
    "plan-refused": ["plan", "refused.yaml"],
    "check": ["check", "rtx3080", "cpu-native", "rocm"],
    "check-unreadable": ["check", "impossible.yaml"],
    "check-refused": ["check", "refused.yaml"],
    "check-missing": ["check", "nothing-of-that-name"],
    "advise": ["advise", "--tensorflow", "2.18.0", "--gpu", "rtx5090", "--gpu", "rtx3080"],
    "gpus": ["gpus"],
    "gpu": ["gpus", "rtx3080"],
    "releases": ["releases"],
    "release": ["releases", "2.18"],
    "explain": ["explain", "target-not-in-toolkit"],
    "codes": ["explain"],
    "init": ["init", "first", "--gpu", "rtx3080", "--tensorflow", "2.18"],
    "matrix": ["matrix", "matrix.yaml"],
    "diagnose": ["diagnose", "failed.log"],
    "diagnose-profile": ["diagnose", "failed.log", "--profile", "rtx3080"],
    "inspect": ["inspect", "WHEEL"],
    "inspect-gpu": ["inspect", "WHEEL", "--gpu", "rtx3080"],
    "verify-no-run": ["verify", "WHEEL", "rtx3080", "--no-run"],
    "report": ["report", BUILT],
    "status": ["status"],
    "image-pack": ["image", "pack", BUILT, "-o", "images.tar"],
    "wheelhouse-list": ["wheelhouse", "list"],
    "wheelhouse-index": ["wheelhouse", "index"],
    "wheelhouse-prune": ["wheelhouse", "prune", "--keep-latest", "1", "--dry-run"],
    "cache-list": ["cache", "list"],
    "ci-check": ["ci", "check", "matrix.yaml"],
}


@pytest.fixture(autouse=True)
def fixed_world(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine, without an engine; a folder with profiles, a log and two builds in its wheelhouse."""
    monkeypatch.setattr(hardware, "local_machine", lambda: MACHINE)
    # A machine with little free space would add its own warning to the documents.
    monkeypatch.setattr(os, "statvfs", lambda _: ROOMY_DISK)
    original = loader.knowledge
    monkeypatch.setattr(
        loader, "knowledge", lambda folders=(), cache=None: original(folders, cache) if folders else desk.knowledge
    )
    monkeypatch.chdir(tmp_path)
    texts = {"impossible": IMPOSSIBLE, "refused": REFUSED, "plain": PLAIN, "matrix": MATRIX}
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "failed.log").write_text(LOG)
    made(tmp_path / "wheelhouse", seed="older", finished="2025-06-01T00:00:00+00:00")
    made(tmp_path / "wheelhouse")


def recorded(name: str, folder: Path) -> str:
    """Return what a command of `COMMANDS` prints as JSON, its folder and our version named by a placeholder."""
    wheel = next((folder / "wheelhouse").glob("*.whl"))
    words = [str(wheel) if word == "WHEEL" else word for word in COMMANDS[name]]
    environment = {
        "COLUMNS": "200",
        "DOCKER_HOST": f"unix://{folder}/no-engine.sock",
        "HOME": str(folder),
        "NO_COLOR": "1",
        "TFDOCK_CACHE_DIR": str(folder / "cache"),
        "TFDOCK_KNOWLEDGE": "",
        "TFDOCK_REGISTRIES": "",
        "TFDOCK_STATE_DIR": str(folder / "state"),
        "TFDOCK_WHEELHOUSE": str(folder / "wheelhouse"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    result = run(*words, "--json", **environment)
    assert result.exit_code != 70, result.stderr
    text = result.stdout.replace(str(folder), "{folder}").replace(str(TESTS.parent), "{root}")
    document = json.loads(text)
    assert faults(name_of(document), document) == []
    text = re.sub(r'("tfdock": )"[^"]*"', r'\1"{version}"', text.replace(f"tfdock {__version__}", "tfdock {version}"))
    if len(text) > LARGE:
        text = f"sha256: {hashlib.sha256(text.encode()).hexdigest()}\n"
    return f"exit code: {result.exit_code}\n{text}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "gpus" else name for name in COMMANDS]
)
def test_a_command_prints_the_document_that_was_recorded(name: str, tmp_path: Path, refresh_golden: bool) -> None:
    file = GOLDEN / f"{name}.json"
    text = recorded(name, tmp_path)
    if refresh_golden:
        file.write_text(text)
    assert text == file.read_text(), "if it is meant: make golden, and read the diff"


def test_there_is_a_document_for_each_command_and_no_other() -> None:
    assert sorted(file.stem for file in GOLDEN.iterdir()) == sorted(COMMANDS)


def test_the_same_wheel_and_record_are_the_image_of_the_recorded_digest(tmp_path: Path) -> None:
    first = recorded("image-pack", tmp_path)
    shutil.rmtree(tmp_path / "wheelhouse")
    made(tmp_path / "wheelhouse", seed="older", finished="2025-06-01T00:00:00+00:00")
    made(tmp_path / "wheelhouse")
    (tmp_path / "images.tar").unlink()
    assert recorded("image-pack", tmp_path) == first
