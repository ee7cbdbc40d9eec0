"""What a stranger's checkout may hold in the place of files that the command writes.

Git keeps links. Nobody needs an engine for these attacks: a clone and one command are enough.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from build.harness import Tfdock

from .rig import Victims

MATRIX = """schema: 1
profile: {tensorflow: "99.18.0", python: "3.11", accelerator: cpu}
axes: {tensorflow: ["99.18.0"]}
exclude: [{when: {tensorflow: "99.18.0"}, reason: "not needed $(id > $HOME/PWNED)"}]
"""


@pytest.fixture
def victims(tmp_path: Path) -> Victims:
    return Victims(tmp_path / "user")


@pytest.fixture
def command(tmp_path: Path) -> Tfdock:
    return Tfdock(home=tmp_path / "checkout", cache=tmp_path / "cache")


def link(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(to, path.parent))


@pytest.mark.parametrize("name", ["report.json", "report.html", "junit.xml"])
def test_the_files_of_a_report_are_written_through_no_link(command: Tfdock, victims: Victims, name: str) -> None:
    link(command.home / "report" / name, victims.file(name))
    (command.home / "m.yaml").write_text(MATRIX)
    before = victims.state()
    outcome = command.run("build", "--matrix", command.home / "m.yaml", "--report", command.home / "report")
    assert outcome.code == 0, outcome.told
    assert victims.state() == before
    assert not (command.home / "report" / name).is_symlink()
    assert json.loads((command.home / "report/report.json").read_text())["ok"]
