"""Command trees that Typer makes once for all tests.

A program makes its tree once. A test that calls `CliRunner.invoke` makes it anew, from the annotations of every
command that any test has imported so far: that took longer than most of the commands.
"""

from __future__ import annotations

from typing import Any

import pytest
import typer.main
import typer.testing
from typer.core import TyperGroup

_get_group = typer.main.get_group
_get_command = typer.main.get_command
_Kept = dict[tuple[Any, ...], Any]


def share_trees(patch: pytest.MonkeyPatch) -> None:
    """Let Typer keep the tree of an application until another command is registered there."""
    groups: _Kept = {}
    commands: _Kept = {}

    def shared_group(application: typer.Typer) -> TyperGroup:
        key = _contents(application)
        if key not in groups:
            groups[key] = _get_group(application)
        return groups[key]  # type: ignore[no-any-return]

    def shared_command(application: typer.Typer) -> Any:
        key = _contents(application)
        if key not in commands:
            with pytest.MonkeyPatch.context() as own:  # it adds options to its group
                own.setattr(typer.main, "get_group", _get_group)
                commands[key] = _get_command(application)
        return commands[key]

    patch.setattr(typer.main, "get_group", shared_group)
    patch.setattr(typer.testing, "_get_command", shared_command)


def _contents(application: typer.Typer) -> tuple[Any, ...]:
    """Return the application and everything that is registered in it."""
    groups = [group.typer_instance for group in application.registered_groups if group.typer_instance]
    return (application, *application.registered_commands, *map(_contents, groups))
