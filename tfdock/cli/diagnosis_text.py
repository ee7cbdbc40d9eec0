"""A diagnosis in words, for a terminal and for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tfdock.cli import console

if TYPE_CHECKING:
    from tfdock.diagnose.diagnosis import Diagnosis, Finding

_SURE = {"high": "sure", "medium": "probably", "low": "perhaps"}
_WIDEST = 300
"""Characters of a line of a log that are shown."""


def is_told(found: Diagnosis | None) -> bool:
    """Whether a cause is shown below the message of a failed build: one that is no guess."""
    return found is not None and any(one.confidence != "low" for one in found.findings)


def show(found: Diagnosis | None, log: str | None) -> None:
    """The cause that a log shows, below the message that something failed; nothing where it shows none."""
    if found is not None and log is not None:
        for line in lines(found, Path(log).name, sys.stderr, brief=True):
            console.say(line)


def lines(
    found: Diagnosis, name: str, stream: TextIO, *, warnings: bool = False, brief: bool = False
) -> Iterator[str]:
    """What went wrong, for people. `brief`: below the message of a failed build, the first cause and no guess."""
    style, columns = console.Style(stream), console.width(stream)
    findings = [one for one in found.findings if not (brief and one.confidence == "low")]
    if findings:
        yield from _findings(findings, name, style, columns, brief=brief)
    elif not brief:
        yield from _nothing(found, name, style, columns)
        yield from [] if warnings else _hint(found.warnings, style, columns)
    if warnings:
        yield from _noise(found.warnings, style, columns)


def _findings(
    findings: Sequence[Finding], name: str, style: console.Style, columns: int, *, brief: bool
) -> Iterator[str]:
    if len(findings) > 1 and not brief:
        heads = ("", "line", "stage", "", "cause")
        rows = [
            (str(number), str(one.line), one.stage, _SURE[one.confidence], one.id)
            for number, one in enumerate(findings, 1)
        ]
        yield from console.table([tuple(map(style.strong, heads)), *rows], columns=columns)
        yield ""
    for index, one in enumerate(findings[: 1 if brief else None]):
        yield from [""] if index else []
        yield from _finding(one, name, style, columns, brief=brief)
    if brief and len(findings) > 1:
        others = ", ".join(one.id for one in findings[1:])
        yield from console.wrapped(f"  after it: {others}", columns, " " * 4)


def _finding(one: Finding, name: str, style: console.Style, columns: int, *, brief: bool) -> Iterator[str]:
    head = f"{style.bad(one.id)} {style.faint(f'[{one.stage}, {_SURE[one.confidence]}]')}"
    times = f", {one.count}{' times or more' if one.count >= 100 else ' times'}" if one.count > 1 else ""
    yield from console.wrapped(f"{head} {console.clean(name)}:{one.line}{times}", columns)
    for line in () if brief else one.excerpt.split("\n"):  # the message above has it already
        yield from console.wrapped(f"  | {_short(line)}", columns, "  ")
    asked = f" {one.asked[0].upper()}{one.asked[1:]}." if one.asked and not one.misfit else ""
    yield from _told("cause", f"{one.cause}{asked}", style.strong, columns)
    if one.misfit:
        yield from _told("profile", f"{one.misfit[0].upper()}{one.misfit[1:]}.", style.bad, columns)
    yield from _told("fix", one.fix, style.good, columns)
    for way in one.changes:
        yield from _told("profile", f"{way.text} (`tfdock check` accepts it)", style.good, columns)
    yield from _told("source", one.source, style.faint, columns)


def _told(label: str, text: str, paint: Any, columns: int) -> Iterator[str]:
    return iter(console.wrapped(f"  {paint(f'{label}:')} {console.clean(text)}", columns, " " * 4))


def _short(line: str) -> str:
    line = console.clean(line)
    return line if len(line) <= _WIDEST else f"{line[:_WIDEST]} …"


def _nothing(found: Diagnosis, name: str, style: console.Style, columns: int) -> Iterator[str]:
    much = f"{found.lines:,} line{'' if found.lines == 1 else 's'}"
    yield from console.wrapped(f"{console.clean(name)}: no failure that is known, in {much}", columns)
    if found.suspects:
        yield "the most suspicious lines:"
        rows = [(str(one.line), _short(one.text)) for one in found.suspects]
        yield from console.table(rows, columns=columns)
    when = "To report it" if found.suspects else "If it failed all the same"
    yield from console.wrapped(
        f"{when}: {style.strong('`tfdock report --bundle LOG --profile PROFILE`')} packs what an issue needs, "
        f"and sends nothing. What is found to be its cause can be made {style.strong('a row')} of a folder given by "
        "`--knowledge`: `failures/mine.yaml`.",
        columns,
    )


def _hint(warnings: Sequence[Finding], style: console.Style, columns: int) -> Iterator[str]:
    """That what looks bad was seen, and is none."""
    count = sum(one.count for one in warnings)
    if count:
        much = "1 line looks bad and is" if count == 1 else f"{count:,} lines look bad and are"
        yield from console.wrapped(
            f"{much} harmless as a rule: {style.strong('`--explain-warnings`')} says why", columns
        )


def _noise(warnings: Sequence[Finding], style: console.Style, columns: int) -> Iterator[str]:
    yield ""
    yield style.strong("harmless:" if warnings else "harmless: nothing that is known")
    yield from console.table([(str(one.line), one.id, one.cause) for one in warnings], columns=columns)
