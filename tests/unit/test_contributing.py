"""CONTRIBUTING.md: its examples, carried out in a copy of the repository in the order in which they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: (what is done with the file, the file, the kind of the block, its text) of each block from the first "Add" on.
EXAMPLES = re.findall(
    r"(?:(Append to|New file|After\s+`[^`]+` in)\s+`([^`]+)`:\n\n)?```(\w+)\n(.*?)```",
    (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n## Add")[2],
    re.DOTALL,
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what tfdock runs from."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in ("tfdock", "dockerfiles", "profiles", "ci/templates"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def printed(tree: Path, command: str) -> str:
    """Return what a command prints in that tree; fail where it fails."""
    assert command.startswith("tfdock ")
    words = [sys.executable, "-m", *command.split()]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(tree), "TFDOCK_CACHE_DIR": str(tree / "cache")}
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_each_example_works_as_it_stands(tree: Path) -> None:
    ran = []
    for what, name, kind, text in EXAMPLES:
        if what == "Append to":
            with (tree / name).open("a", encoding="utf-8") as file:
                file.write(text)
        elif what == "New file":
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text, encoding="utf-8")
        elif what:
            line = what.split("`")[1] + "\n"
            old = (tree / name).read_text(encoding="utf-8")
            assert "\n" + line in old
            (tree / name).write_text(old.replace("\n" + line, "\n" + line + text, 1), encoding="utf-8")
        else:
            assert kind == "console", f"nothing says what becomes of this {kind}: {text}"
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                output = printed(tree, command)
                assert output.startswith(expected.partition("…")[0]), command
                ran.append(command.split()[1])
    assert {"gpus", "releases", "diagnose", "check", "render", "hello"} <= set(ran)
