"""The weight of the program: no figure grows, and one that fell is lowered here.

A feature that needs more lines says in its commit which lines it removed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .cli.test_lazy_commands import GROUPS, loaded
from .program_sources import MODULES, ROOT

TESTS = ROOT.parent / "tests"
SLACK = 60
"""What a figure may be below its budget, so that not each line is a change here."""
PACKAGES = {
    "": 0, "bazel": 0, "builder": 0, "ci": 0, "cli": 0, "diagnose": 0, "documents": 0, "engine": 0, "gpu": 0,
    "host": 0, "images": 0, "knowledge": 0, "matrix": 0, "oci": 0, "offline": 0, "plan": 0, "profile": 0,
    "resolve": 0, "run": 0, "verify": 0, "wheel": 0, "wheelhouse": 0,
}  # fmt: skip
"""Lines of Python in each package."""
REACH = {"builder.build": (0, 0), "cli.commands.build": (0, 0)}
"""Modules of ours that importing a module loads, and their lines."""
MODULE_COUNT, COMMANDS, OPTIONS = 0, 0, 0
TEST_LINES, RECORDED_LINES = 0, 0
RECORDINGS = ("golden*", "played/tree", "unit/data")


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def within(budget: int, figure: int) -> bool:
    return budget - SLACK <= figure <= budget


def test_no_package_grows() -> None:
    found = dict.fromkeys(PACKAGES, 0)
    for module in MODULES:
        found[module.partition("/")[0] if "/" in module else ""] += lines(ROOT / module)
    assert {name: count for name, count in found.items() if not within(PACKAGES[name], count)} == {}
    assert within(MODULE_COUNT, len(MODULES))


@pytest.mark.parametrize("name", REACH)
def test_the_road_of_a_build_grows_no_longer(name: str) -> None:
    program = (
        f"import sys, tfdock.{name}; print([m.__file__ for n, m in sys.modules.items() if n.startswith('tfdock')])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    files = ast.literal_eval(result.stdout)
    modules, size = REACH[name]
    assert within(modules, len(files))
    assert within(size, sum(lines(Path(file)) for file in files))


def commands(group: Any) -> Iterator[Any]:
    for name in group.commands:
        command = loaded(group, name)
        yield from commands(command) if hasattr(command, "commands") else [command]


def test_there_are_no_more_commands_and_options() -> None:
    assert len(GROUPS[""].commands) == COMMANDS
    assert (
        len({option for command in commands(GROUPS[""]) for row in command.params for option in row.opts}) == OPTIONS
    )


def test_tests_and_recordings_do_not_grow() -> None:
    recorded = {
        file
        for pattern in RECORDINGS
        for folder in TESTS.glob(pattern)
        for file in folder.rglob("*")
        if file.is_file()
    }
    code = {file for file in TESTS.rglob("*.py") if "__pycache__" not in file.parts} - recorded
    assert within(RECORDED_LINES, sum(map(lines, recorded)))
    assert within(TEST_LINES, sum(map(lines, code)))
