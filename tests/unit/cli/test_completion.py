"""What a shell completes: profiles, GPUs, releases, Pythons, codes, builds; and help without dashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdock.bazel.cache.cache_folder import CacheFolder


def tfdock(folder: Path, *words: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "COLUMNS": "80", **variables}
    # By the name of the script, after which the shell's variable is named.
    start = "import sys; from tfdock.cli.main import main; sys.argv[0] = 'tfdock'; main()"
    command = [sys.executable, "-c", start, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False
    )


def completed(folder: Path, line: str) -> list[str]:
    """Ask as bash does, for the last word of a line."""
    words = line.split(" ")
    variables = {"_TFDOCK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return tfdock(folder, **variables).stdout.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("tfdock che", ["check"]),
        ("tfdock check rtx", ["rtx3080", "rtx3080-tf2.4-cuda11.1", "rtx5090"]),
        ("tfdock plan m", ["my.yaml"]),
        ("tfdock build --gpu rtx508", ["rtx5080", "rtx5080-laptop"]),
        ("tfdock build --gpu rtx3080,h10", ["rtx3080,h100"]),
        ("tfdock build --gpu rtx3080 --js", ["--json"]),
        ("tfdock build --json my.yaml rtx508", []),
        ("tfdock init --gpu cp", ["cpu"]),
        ("tfdock check --tensorflow 2.1", ["2.1", "2.10", "2.18"]),
        ("tfdock check --python 3.1", ["3.10", "3.11", "3.12", "3.13"]),
        ("tfdock explain target-not", ["target-not-in-toolkit"]),
        ("tfdock explain MIOPEN_LOG", ["MIOPEN_LOG_LEVEL"]),
        ("tfdock report tf9", ["tf9.9.9-py3.11-cpu-x86_64"]),
        ("tfdock releases 2.20", ["2.20"]),
        ("tfdock advise --tensorflow 2.20", ["2.20"]),
        ("tfdock cache clean --toolchain 0", ["0123456789abcdef"]),
        ("tfdock cache cl", ["clean"]),
        ("tfdock cache pull my", []),
        ("tfdock diagnose --profile my", ["my.yaml"]),
    ],
)
def test_names_are_completed(tmp_path: Path, line: str, some: list[str]) -> None:
    for name in ("my.yaml", ".of-a-tool.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "wheelhouse/.tfdock/tf9.9.9-py3.11-cpu-x86_64").mkdir(parents=True)
    disk = CacheFolder.opened(tmp_path / ".cache/tfdock").root / "disk"
    (disk / "0123456789abcdef").mkdir(parents=True)
    found = completed(tmp_path, line)
    assert set(some) <= set(found)
    assert ".of-a-tool.yaml" not in found
    assert all(name.startswith(line.rpartition(" ")[2]) for name in found)


def test_values_are_completed_without_the_module_of_the_command(tmp_path: Path) -> None:
    variables = {"_TFDOCK_COMPLETE": "complete_bash", "COMP_WORDS": "tfdock build --gpu rtx", "COMP_CWORD": "3"}
    program = (
        "import atexit, sys; from tfdock.cli.main import main; sys.argv = ['tfdock'];"
        "atexit.register(lambda: print(*(name for name in sys.modules if 'tfdock.cli.commands' in name))); main()"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "rtx3080" in found.stdout.split()
    assert "tfdock.cli.commands" not in found.stdout


def test_settings_that_cannot_be_read_complete_nothing_and_print_nothing(tmp_path: Path) -> None:
    (tmp_path / ".config/tfdock").mkdir(parents=True)
    (tmp_path / ".config/tfdock/config.yaml").write_text("no: [such")
    assert completed(tmp_path, "tfdock check --gpu rtx") == []


@pytest.mark.parametrize("words", [["help"], ["help", "check"], ["help", "cache", "prune"]])
def test_help_is_a_command_too(tmp_path: Path, words: list[str]) -> None:
    assert tfdock(tmp_path, *words).stdout == tfdock(tmp_path, *words[1:], "--help").stdout


def test_the_version_has_a_short_option(tmp_path: Path) -> None:
    assert tfdock(tmp_path, "-V").stdout == tfdock(tmp_path, "--version").stdout != ""


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'\n", 1),
        ("ERROR: /x/BUILD:3:4: something that nobody knows failed: (Exit 1)\n", 1),
        ("INFO: Build completed successfully, 3 total actions\n", 0),
        ("nothing of interest\n", 0),
    ],
)
def test_diagnose_tells_a_script_whether_a_log_failed(tmp_path: Path, log: str, code: int) -> None:
    assert tfdock(tmp_path, "diagnose", "--exit-code", text=log).returncode == code
    assert tfdock(tmp_path, "diagnose", text=log).returncode == 0
