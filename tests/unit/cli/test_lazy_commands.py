"""Commands are imported when they are called; the help of all comes from the table alone.

`make golden` writes tests/golden-help anew; the diff is then read line by line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import tfdock.cli.commands
import tfdock.cli.main
from tfdock.cli.app import app
from tfdock.cli.completion import ARGUMENTS
from tfdock.cli.lazy_commands import COMMANDS, LazyGroup

from ..command_line import run

GOLDEN = Path(__file__).parents[2] / "golden-help"
RECORDED = ("tfdock", "build", "cache")
SENTENCE = re.compile(r"[A-Z0-9`][^\n]*\.")
LONG = 1000  #: Columns in which every summary fits uncut.


def groups() -> dict[str, Any]:
    """Return the groups by name, the application itself without one, each with its commands imported."""
    for module, _ in COMMANDS.values():
        import_module(f"{tfdock.cli.commands.__name__}.{module}")  # before the first tree, which is made once then
    root = typer.main.get_group(app)
    assert isinstance(root, LazyGroup)
    commands = {name: root.load_command(name) for name in COMMANDS}
    return {"": root, **{name: group for name, group in commands.items() if hasattr(group, "commands")}}


GROUPS = groups()
LAZY_GROUPS = [group for group in GROUPS.values() if isinstance(group, LazyGroup)]
COMMAND_LINES = {
    " ".join([*group.split(), name]): [*group.split(), name] for group in GROUPS for name in GROUPS[group].commands
} | {"tfdock": []}


def loaded(group: Any, name: str) -> Any:
    return group.load_command(name) if isinstance(group, LazyGroup) else group.commands[name]


@pytest.mark.parametrize("group", LAZY_GROUPS, ids=lambda group: group.name or "tfdock")
def test_the_table_has_every_command_that_is_registered(group: LazyGroup) -> None:
    modules = {module for module, _ in group.table.values()}
    for module in modules:
        import_module(f"tfdock.cli.commands.{module}")
    registered = typer.main.get_group(group.application)
    assert isinstance(registered, LazyGroup)
    assert [command.name for command in registered.registered.values()] == [*registered.registered]
    assert set(registered.registered) == set(group.table)


def test_every_module_of_commands_is_in_a_table() -> None:
    modules = {module for group in LAZY_GROUPS for module, _ in group.table.values()}
    assert modules == {name for _, name, _ in iter_modules(tfdock.cli.commands.__path__)}


def test_completion_knows_the_commands_whose_first_argument_may_be_a_profile() -> None:
    wanted = set()
    for name, words in COMMAND_LINES.items():
        *above, word = words or ["advise"]
        arguments = [row for row in loaded(GROUPS[" ".join(above)], word).params if row.param_type_name == "argument"]
        wanted |= {name for row in arguments[:1] if "PROFILE" in (row.metavar or "")}
    assert wanted == {name for name, complete in ARGUMENTS.items() if complete is ARGUMENTS["build"]}
    assert set(ARGUMENTS) <= set(COMMAND_LINES)


@pytest.mark.parametrize("name", RECORDED)
def test_the_help_is_the_recorded_one(name: str, refresh_golden: bool) -> None:
    file = GOLDEN / f"{name.replace(' ', '-')}.txt"
    result = CliRunner().invoke(app, [*COMMAND_LINES[name], "--help"], env={"COLUMNS": "80"}, prog_name="tfdock")
    if refresh_golden:
        file.write_text(result.stdout)
    assert result.stdout == file.read_text(), (
        f"if it is meant, or typer {typer.__version__} writes help otherwise: make golden, and read the diff"
    )


@pytest.mark.parametrize("name", GROUPS)
def test_no_summary_is_cut_on_80_columns(name: str) -> None:
    told = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).stdout
    rows = [line for line in told.splitlines() if re.match(r" {2}[a-z]+ +[A-Z]", line)]
    assert [line.split()[0] for line in rows] == [*GROUPS[name].commands]
    assert [line for line in rows if not line.endswith(".")] == []


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_command_and_each_of_its_options_has_one_sentence_of_help_and_an_example(name: str) -> None:
    command: Any = GROUPS[""]
    for word in COMMAND_LINES[name]:
        command = loaded(command, word)
    assert SENTENCE.fullmatch(command.get_short_help_str(LONG))
    options = [row for row in command.params if row.name != "help"]
    assert [row.name for row in options if not SENTENCE.fullmatch(row.help or "")] == []
    assert "`tfdock " in (command.epilog or "") or hasattr(command, "commands")


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["chekc"], "Did you mean 'check', 'cache'?"),
        (["cache", "psh"], "Did you mean 'push'?"),
        (["schema", "profil"], "Did you mean `profile`?"),
    ],
    ids=["command", "command of a group", "document"],
)
def test_a_mistyped_command_is_answered_with_those_that_are_like_it(words: list[str], suggestion: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert suggestion in result.stderr


@pytest.mark.slow
def test_a_command_imports_its_own_module_and_no_other() -> None:
    program = (
        "import json, sys\n"
        "from tfdock.cli.main import app\n"
        "app(['explain', '--help'], standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    prefix = "tfdock.cli.commands."
    modules = {name.removeprefix(prefix) for name in json.loads(result.stdout.splitlines()[-1]) if prefix in name}
    assert modules == {"know"}


@pytest.mark.parametrize(
    "words", [["{}", "check", "nowhere"], ["check", "nowhere", "{}"], ["cache", "push", "{}", "-"]]
)
def test_colours_are_asked_for_before_or_behind_a_command(words: list[str]) -> None:
    for when, variables in (("always", {"NO_COLOR": "1"}), ("never", {"FORCE_COLOR": "1"})):
        # Both are named, so that the runner sets them back.
        result = run(
            *(word.format(f"--color={when}") for word in words), **{"NO_COLOR": "", "FORCE_COLOR": "", **variables}
        )
        assert ("\x1b[" in result.stderr) is (when == "always")


@pytest.mark.parametrize("words", [["{}", "check", "rtx3080"], ["check", "rtx3080", "{}"]])
def test_a_quiet_command_prints_its_result_without_notes(words: list[str]) -> None:
    usual, quiet = run("check", "rtx3080"), run(*(word.format("-q") for word in words))
    assert usual.stderr.startswith("note: ")
    assert (quiet.stdout, quiet.stderr) == (usual.stdout, "")


@pytest.mark.parametrize("words", [["check", "nowhere", "-q"], ["-q", "check", "nowhere"]])
def test_a_quiet_command_prints_its_errors(words: list[str]) -> None:
    assert run(*words).stderr == run("check", "nowhere").stderr != ""
