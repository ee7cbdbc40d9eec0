"""The weight of the program: no figure grows, and one that fell is lowered here.

A feature that needs more lines says in its commit which lines it removed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from .cli.test_lazy_commands import GROUPS, loaded
from .program_sources import MODULES, ROOT

TESTS = ROOT.parent / "tests"
SLACK = 60  #: What a figure may be below its budget, so that not each line is a change here.
#: Lines of Python in each package.
PACKAGES = {
    "": 755, "api": 125, "bazel": 4695, "bench": 385, "builder": 3130, "ci": 775, "cli": 9570, "diagnose": 1615,
    "documents": 1540, "engine": 2505, "gpu": 1800, "host": 2755, "images": 2865, "installed": 1505,
    "knowledge": 3245, "matrix": 1470, "oci": 1320, "offline": 1480, "plan": 3575, "profile": 1490,
    "report": 1005, "resolve": 4620, "run": 1460, "trace": 1152, "verify": 2030, "wheel": 3240,
    "wheelhouse": 2055,
}  # fmt: skip
#: What importing a module loads of ours.
ROAD = {
    "builder.build": {"modules": 109, "lines": 22095},
    "cli.commands.build": {"modules": 84, "lines": 17565},
}
WHOLE = {"modules": 303, "commands": 28, "options": 78, "lines of tests": 67235, "lines of recordings": 14725}
RECORDINGS = ("golden*", "played/tree", "unit/data")


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def outside(budgets: Mapping[str, int], figures: Mapping[str, int]) -> dict[str, int]:
    """Return the figures that are above their budgets, or so far below that the budgets should be lowered."""
    return {name: figure for name, figure in figures.items() if not budgets[name] - SLACK <= figure <= budgets[name]}


def commands(group: Any) -> Iterator[Any]:
    for name in group.commands:
        command = loaded(group, name)
        yield from commands(command) if hasattr(command, "commands") else [command]


def test_no_package_grows() -> None:
    found = dict.fromkeys(PACKAGES, 0)
    for module in MODULES:
        found[module.partition("/")[0] if "/" in module else ""] += lines(ROOT / module)
    assert outside(PACKAGES, found) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROAD)
def test_the_road_of_a_build_grows_no_longer(name: str) -> None:
    program = f"import sys, tfdock.{name}; print([one.__file__ for it, one in sys.modules.items() if 'tfdock' in it])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    files = ast.literal_eval(result.stdout)
    assert outside(ROAD[name], {"modules": len(files), "lines": sum(lines(Path(file)) for file in files)}) == {}


def test_the_whole_grows_no_more() -> None:
    recorded = {
        file
        for pattern in RECORDINGS
        for folder in TESTS.glob(pattern)
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    tests = {file for file in TESTS.rglob("*.py") if "__pycache__" not in file.parts} - recorded
    options = {option for command in commands(GROUPS[""]) for row in command.params for option in row.opts}
    figures = {
        "modules": len(MODULES),
        "commands": len(GROUPS[""].commands),
        "options": len([option for option in options if option.startswith("--")]),
        "lines of tests": sum(map(lines, tests)),
        "lines of recordings": sum(map(lines, recorded)),
    }
    assert {name: figure for name, figure in figures.items() if figure > WHOLE[name]} == {}
