"""Print a diagnosis on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tfdock.cli import console

# A build that succeeds needs neither the known failures nor their search.
if TYPE_CHECKING:
    from tfdock.diagnose.diagnosis import Diagnosis, Finding

_SURE = {"high": "sure", "medium": "probably", "low": "perhaps"}
_WIDEST = 300  #: The most characters shown of a log line; the last words often say why.


def shows_cause(diagnosis: Diagnosis | None) -> bool:
    """Return whether a diagnosis has a certain cause. Such a cause is shown below a failed build."""
    return diagnosis is not None and any(finding.confidence != "low" for finding in diagnosis.findings)


def show(diagnosis: Diagnosis | None, log: str | None) -> None:
    """Print the first cause in a log below the message of a failure. Without a cause, print nothing."""
    if diagnosis is not None and log is not None:
        console.say(*lines(diagnosis, Path(log).name, sys.stderr, brief=True))


def lines(
    diagnosis: Diagnosis, name: str, stream: TextIO, *, warnings: bool = False, brief: bool = False
) -> Iterator[str]:
    """Yield the lines of a diagnosis; with `brief` only the first certain cause, for the end of a failed build."""
    style, columns = console.Style(stream), console.width(stream)
    # If the log has only warnings, show them: the user probably asks about them.
    warnings = warnings or bool(diagnosis.warnings and not (brief or diagnosis.failed or diagnosis.success))
    findings = [finding for finding in diagnosis.findings if not (brief and finding.confidence == "low")]
    if findings:
        if diagnosis.first and not brief:
            yield from (*console.wrapped(console.clean(diagnosis.first), columns), "")
        yield from _finding_list(findings, name, style, columns, brief=brief)
        if diagnosis.others and not brief:
            yield from ("", "other errors, without a known cause:")
            yield from console.table([(str(one.line), _short(one.text)) for one in diagnosis.others], columns=columns)
    elif not brief:
        yield from _unknown_lines(diagnosis, name, style, columns)
        yield from [] if warnings else _warning_hint(diagnosis.warnings, style, columns)
    if warnings:
        yield from _warning_lines(diagnosis.warnings, style, columns)


def _finding_list(
    findings: Sequence[Finding], name: str, style: console.Style, columns: int, *, brief: bool
) -> Iterator[str]:
    if len(findings) > 1 and not brief:
        heads = ("", "line", "stage", "", "cause")
        rows = [
            (str(number), str(finding.line), finding.stage, _SURE[finding.confidence], finding.id)
            for number, finding in enumerate(findings, 1)
        ]
        yield from console.table([tuple(map(style.strong, heads)), *rows], columns=columns)
        yield ""
    for index, finding in enumerate(findings[: 1 if brief else None]):
        yield from [""] if index else []
        yield from _finding(finding, name, style, columns, brief=brief)
    if brief and len(findings) > 1:
        after = ", ".join(finding.id for finding in findings[1:])
        yield from console.wrapped(f"  after it: {after}", columns, " " * 4)


def _finding(finding: Finding, name: str, style: console.Style, columns: int, *, brief: bool) -> Iterator[str]:
    head = f"{style.bad(finding.id)} {style.faint(f'[{finding.stage}, {_SURE[finding.confidence]}]')}"
    # The search stops counting a failure at this number.
    times = f", {finding.count}{' times or more' if finding.count >= 100 else ' times'}" if finding.count > 1 else ""
    yield from console.wrapped(f"{head} {console.clean(name)}:{finding.line}{times}", columns)
    for line in () if brief else finding.excerpt.split("\n"):  # the error message above already shows this line
        yield from console.wrapped(f"  | {_short(line)}", columns, "  ")
    asked = f" {finding.asked[0].upper()}{finding.asked[1:]}." if finding.asked and not finding.misfit else ""
    yield from _labelled("cause", f"{finding.cause}{asked}", style.strong, columns)
    if finding.misfit:
        yield from _labelled("profile", f"{finding.misfit[0].upper()}{finding.misfit[1:]}.", style.bad, columns)
    yield from _labelled("fix", finding.fix, style.good, columns)
    for way in finding.changes:
        yield from _labelled("profile", f"{way.text} (`tfdock check` accepts it)", style.good, columns)
    yield from _labelled("source", finding.source, style.faint, columns)


def _labelled(label: str, text: str, paint: Any, columns: int) -> Iterator[str]:
    return iter(console.wrapped(f"  {paint(f'{label}:')} {console.clean(text)}", columns, " " * 4))


def _short(line: str) -> str:
    line = console.clean(line)
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST * 2 // 3]} … {line[-_WIDEST // 3 :]}"


def _unknown_lines(diagnosis: Diagnosis, name: str, style: console.Style, columns: int) -> Iterator[str]:
    much = f"{diagnosis.lines:,} line{'' if diagnosis.lines == 1 else 's'}"
    if end := diagnosis.success:
        yield from console.wrapped(
            f"{console.clean(name)}:{end.line}: {style.good('success')}: {end.cause} No error follows in the log.",
            columns,
        )
    else:
        yield from console.wrapped(f"{console.clean(name)}: no known failure in {much}", columns)
    if diagnosis.first:
        yield from console.wrapped(console.clean(diagnosis.first), columns)
    elif not (diagnosis.success or diagnosis.warnings):
        yield from console.wrapped(
            "tfdock finds no error in these lines. The cause is in the first error of the whole output. Keep the "
            "output with `COMMAND 2>&1 | tee build.log`, and give that file.",
            columns,
        )
    if diagnosis.suspects:
        yield "the most suspicious lines:"
        rows = [(str(suspect.line), _short(suspect.text)) for suspect in diagnosis.suspects]
        yield from console.table(rows, columns=columns)
    when = "To report it" if diagnosis.suspects else "If the build failed nevertheless"
    yield from console.wrapped(
        f"{when}: {style.strong('`tfdock report --bundle LOG --profile PROFILE`')} packs what an issue needs, "
        f"and sends nothing. Once you know the cause, add it as {style.strong('a row')} of `failures/mine.yaml` in a "
        "folder for `--knowledge`.",
        columns,
    )


def _warning_hint(warnings: Sequence[Finding], style: console.Style, columns: int) -> Iterator[str]:
    """Yield a hint that some lines of the log look bad but are harmless."""
    count = sum(warning.count for warning in warnings)
    if count:
        much = "1 line looks bad but is" if count == 1 else f"{count:,} lines look bad but are"
        yield from console.wrapped(f"{much} usually harmless: {style.strong('`-v`')} says why", columns)


def _warning_lines(warnings: Sequence[Finding], style: console.Style, columns: int) -> Iterator[str]:
    yield ""
    yield style.strong("harmless:" if warnings else "harmless: no known line")
    yield from console.table(
        [(str(warning.line), warning.id, warning.cause) for warning in warnings], columns=columns
    )
