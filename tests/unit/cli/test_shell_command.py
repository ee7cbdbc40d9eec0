"""`tfdock shell`: which words are options of tfdock, and which are the command's."""

from __future__ import annotations

import pytest

from ..command_line import run

FOLDER = ("--knowledge", "/nonexistent")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*FOLDER, "nobody", "id"), "knowledge-folder"),
        (("nobody", *FOLDER, "id"), "knowledge-folder"),
        (("nobody", "--trust", *FOLDER), "knowledge-folder"),
        (("nobody", "ls", *FOLDER), "profile-not-found"),
        (("nobody", "--trust", "ls", "-la", "--", *FOLDER), "profile-not-found"),
        (("nobody", "--", *FOLDER), "profile-not-found"),
    ],
)
def test_options_before_the_command_are_tfdock_s(words: tuple[str, ...], code: str) -> None:
    result = run("shell", *words)
    assert (result.exit_code, f"[{code}]" in result.stderr) == (2, True), result.output


def test_an_unknown_option_before_the_command_is_refused() -> None:
    result = run("shell", "nobody", "-la")
    assert result.exit_code == 2
    assert "No such option: -l" in result.stderr
