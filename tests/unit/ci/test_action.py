"""The GitHub Action in ci/action: its file, and its steps in a shell as GitHub runs them."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from official import store

from .test_pipeline import EXAMPLE, said, shell

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "ci/action/action.yml"
INSTALL, PROFILES, PIPELINES = yaml.safe_load(ACTION.read_text("utf-8"))["runs"]["steps"]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a runner on which the first step has installed tfdock, without a network."""
    folder = tmp_path_factory.mktemp("runner")
    lock = hashlib.sha256((ROOT / "ci/requirements.txt").read_bytes()).hexdigest()[:16]
    wheels = store() / f"python-{lock}-{sys.implementation.cache_tag}-{platform.machine()}"
    variables = {
        "GITHUB_ACTION_PATH": str(ACTION.parent),
        "GITHUB_ACTIONS": "true",
        "HOME": str(folder),
        "RUNNER_TEMP": str(folder),
    }
    offline = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = shell(folder, INSTALL["run"], **variables, **offline)
    assert done.returncode == 0, done.stderr
    return variables


def checked(folder: Path, runner: dict[str, str], profiles: str) -> subprocess.CompletedProcess[str]:
    return shell(folder, PROFILES["run"], **runner, PROFILES=profiles)


def test_the_file_is_as_github_wants_it_and_zizmor_finds_nothing() -> None:
    assert not said("check-jsonschema", "--builtin-schema", "vendor.github-actions", ACTION)
    assert not said("zizmor", "--offline", "--no-progress", "--persona", "pedantic", ACTION)


def test_an_input_is_no_part_of_a_script() -> None:
    steps: list[dict[str, Any]] = [INSTALL, PROFILES, PIPELINES]
    assert ["${{" in step["run"] for step in steps] == [False, False, False]


@pytest.mark.slow
def test_profiles_are_checked_by_name_and_by_pattern(tmp_path: Path, runner: dict[str, str]) -> None:
    for name in ("one two.yaml", "three.yaml"):
        shutil.copy(ROOT / "profiles/rtx3080.yaml", tmp_path / name)
    done = checked(tmp_path, runner, "one two.yaml\nthr*.yaml\n")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(.+): ok, ", done.stdout, re.MULTILINE) == ["one two.yaml", "three.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profiles", "code", "word"),
    [
        pytest.param("bad.yaml", 3, "::error file=bad.yaml,line=4", id="a profile that cannot be built"),
        pytest.param("gone*.yaml", 1, "no match: gone*.yaml", id="a pattern without a file"),
        pytest.param("--help", 2, "--help", id="an option for a profile"),
        pytest.param("$(touch pwned)", 2, "touch pwned", id="a command for a profile"),
    ],
)
def test_a_wrong_profile_fails_the_step(
    tmp_path: Path, runner: dict[str, str], profiles: str, code: int, word: str
) -> None:
    bad = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ngpus: [rtx5090]\ncuda: "11.8"\n'
    (tmp_path / "bad.yaml").write_text(bad, "utf-8")
    done = checked(tmp_path, runner, profiles)
    assert done.returncode == code
    assert word in done.stdout + done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["bad.yaml"]


@pytest.mark.slow
def test_pipelines_are_compared_with_their_matrix(tmp_path: Path, runner: dict[str, str]) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(EXAMPLE, repository)
    assert shell(repository, PIPELINES["run"], **runner).returncode == 0
    (file, *_) = (repository / ".github/workflows").iterdir()
    file.write_text(file.read_text("utf-8") + "# edited\n", "utf-8")
    done = shell(repository, PIPELINES["run"], **runner)
    assert done.returncode != 0
    assert file.name in done.stdout + done.stderr
