"""What GitHub's runner makes of a step: the commands in its log and its outputs, as the runner reads them.

Written after `ActionCommand.cs` and the file commands of actions/runner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

COMMANDS = {
    "add-mask", "add-matcher", "add-path", "debug", "echo", "endgroup", "error", "group", "notice", "remove-matcher",
    "save-state", "set-env", "set-output", "stop-commands", "warning",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a log."""

    name: str
    data: str
    properties: dict[str, str] = field(default_factory=dict)


def commands(log: str) -> list[Command]:
    """Every command that the runner takes out of a log, in either of its two notations."""
    return [found for line in re.split(r"\r\n|\r|\n", log) for found in _command(line)]


def _command(line: str) -> Iterator[Command]:
    line = line.lstrip()
    new = re.match(r"::(.*?)::(.*)", line, re.DOTALL)
    old = re.search(r"##\[(.*?)\](.*)", line, re.DOTALL)
    for found, between in ((new, ","), (old, ";")):
        if found is None:
            continue
        name, _, told = found[1].partition(" ")
        if name in COMMANDS:
            pairs = (one.partition("=") for one in told.strip().split(between))
            properties = {key: _unescaped(value, ":,") for key, _, value in pairs if key and value}
            yield Command(name, _unescaped(found[2]), properties)
            return


def _unescaped(text: str, more: str = "") -> str:
    # In the runner's order: the percent sign comes last.
    for one in ("\r", "\n", *more, "%"):
        text = text.replace(f"%{ord(one):02X}", one)
    return text


def outputs(text: str) -> dict[str, str]:
    """The values of a file of outputs; raises ValueError for one that the runner refuses."""
    found: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in lines:
        if not line:
            continue
        plain, marked = line.find("="), line.find("<<")
        if marked >= 0 and (plain < 0 or marked < plain):
            name, mark = line[:marked], line[marked + 2 :]
            held: list[str] = []
            for one in lines:
                if one == mark:
                    break
                held.append(one)
            else:
                raise ValueError(f"no {mark}")
            found[name] = "\n".join(held)
        elif plain >= 0:
            found[line[:plain]] = line[plain + 1 :]
        else:
            raise ValueError(f"invalid format: {line}")
    return found
