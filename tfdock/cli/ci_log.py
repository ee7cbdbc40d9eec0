"""Write for the CI service that runs the job: annotations, folded sections, step outputs and a summary.

GitHub's runner reads commands from all output of a step. GitLab folds its log page at marker lines. Outside these
services, nothing is written.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tfdock.errors import Problem, clean

#: GitHub shows at most ten errors of a step. GitHub adds one of them (that the step failed), so nine are left.
ANNOTATIONS = 9
_WARNINGS = 4  #: The most warnings to annotate: errors, which often come later, need room too.
SUMMARY_BYTES = 900_000  #: GitHub drops a step's summary if it is larger than 1 MiB.
_MESSAGE = 4_000  #: The most characters of an annotation. GitHub cuts longer texts at 4,096.
_CELL = 300  #: The most characters of a cell; the log has the whole text.


class CiService:
    """The CI service that runs the job. This base class, for terminals and unknown services, writes nothing."""

    def harmless(self, text: str) -> str:
        """Return the text, changed so that the service does not read it as a command."""
        return text

    @contextmanager
    def fold(self, _title: str, /) -> Iterator[None]:
        """Print the lines of the `with` block as one section that can be folded."""
        yield

    def annotate(self, _problems: Sequence[Problem], /) -> None:
        """Show each problem beside the line of the file that it is about."""

    def outputs(self, _values: Mapping[str, str], /) -> None:
        """Pass values to later steps, by name."""

    def summary(self, _heading: str, _columns: Sequence[str], _rows: Sequence[Sequence[str]], /) -> None:
        """Add a table to the page of the job. A row has one unescaped text for each column."""


@functools.cache
def here() -> CiService:
    """Return the CI service that runs this process, according to the environment variables."""
    return service_of(os.environ)


def service_of(environment: Mapping[str, str]) -> CiService:
    """Return the CI service that sets these environment variables."""
    # Both services document this value for every job.
    if environment.get("GITHUB_ACTIONS") == "true":
        return GitHub(environment)
    return GitLab() if environment.get("GITLAB_CI") == "true" else CiService()


# --- GitHub ---------------------------------------------------------------------------------------------------------

# The runner reads `::` at the start of a line, and the older `##[` anywhere in a line, as a command. The runner also
# ends lines at a carriage return.
_COMMAND = re.compile(r"(^|\r)(\s*):(?=:)", re.MULTILINE)


@dataclass
class GitHub(CiService):
    """A job of GitHub Actions. Its runner sets the variables in `environment`."""

    environment: Mapping[str, str]
    stream: TextIO | None = None  #: The stream of the log; standard error by default.
    _annotated: int = field(default=0, init=False)

    def harmless(self, text: str) -> str:
        """Return text with a space inside each command of GitHub's runner, so that it is not a command."""
        return _COMMAND.sub(r"\1\2: ", text).replace("##[", "## [")

    @contextmanager
    def fold(self, title: str, /) -> Iterator[None]:
        """Open a group. Groups do not nest: inside a group, no further group is opened."""
        self._say(f"::group::{escaped(title)}")
        try:
            yield
        finally:
            self._say("::endgroup::")

    def annotate(self, problems: Sequence[Problem], /) -> None:
        """Annotate the first nine problems of a process, for the page of the commit."""
        for problem in problems:
            if self._annotated < (_WARNINGS if problem.severity == "warning" else ANNOTATIONS):
                self._annotated += 1
                self._say(annotation(problem, self.environment.get("GITHUB_WORKSPACE", "")))

    def outputs(self, values: Mapping[str, str], /) -> None:
        """Add values to the file of the step's outputs, between random marks that no value contains."""
        text = "".join(f"{name}{_between_marks(value)}" for name, value in values.items())
        self._add("GITHUB_OUTPUT", text)

    def summary(self, heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]], /) -> None:
        """Add a table to the step's summary. A last line counts the rows that do not fit."""
        file = self.environment.get("GITHUB_STEP_SUMMARY")
        used = Path(file).stat().st_size if file and Path(file).exists() else 0
        self._add("GITHUB_STEP_SUMMARY", markdown(heading, columns, rows, room=SUMMARY_BYTES - used))

    def _add(self, variable: str, text: str) -> None:
        file = self.environment.get(variable)
        if not (file and text):
            return
        try:
            # Other programs of the same step write to the file as well.
            with Path(file).open("ab") as stream:
                stream.write(text.encode("utf-8", "backslashreplace"))
        except OSError as error:  # the wheels matter more than the report
            self._say(f"::warning::{escaped(f'cannot write to {variable}: {error.strerror}')}")

    def _say(self, text: str) -> None:
        stream = self.stream or sys.stderr
        stream.write(f"{text}\n")
        stream.flush()


def annotation(problem: Problem, workspace: str = "") -> str:
    """Return the command that annotates a problem. Files below `workspace` get their path in the repository."""
    kind = "warning" if problem.severity == "warning" else "error"
    place = {
        "file": _below(problem.file, workspace),
        "line": problem.line,
        "col": problem.column,
        "title": problem.code,
    }
    parts = ",".join(f"{name}={_property(str(value))}" for name, value in place.items() if value)
    why = [f"why: {problem.why}"] if problem.why else []
    text = "\n".join([problem.message, *why, *(f"fix: {fix}" for fix in problem.fixes)])
    return f"::{kind} {parts}::{escaped(text[:_MESSAGE])}"


def escaped(text: str) -> str:
    """Escape text for a command of GitHub's runner."""
    # `%` first: the other two escapes contain one.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


# In a property, `:` and `,` would end the value.
def _property(text: str) -> str:
    return escaped(text).replace(":", "%3A").replace(",", "%2C")


def _below(file: str | None, workspace: str) -> str:
    """Return the path of a file in the repository; an empty text for a file outside."""
    if not file or not workspace:
        return file or ""
    # Not `resolve`: the repository lists a link under the link's own path.
    path = Path(os.path.normpath(Path(file).absolute()))
    return path.relative_to(workspace).as_posix() if path.is_relative_to(workspace) else ""


def _between_marks(value: str) -> str:
    mark = f"tfdock_{os.urandom(16).hex()}"
    return f"<<{mark}\n{value}\n{mark}\n"


# --- Markdown -------------------------------------------------------------------------------------------------------

# Escape every character that could be markup or part of a link. A character reference is always text, never
# markup.
_MARKUP = re.compile(r"[^\w\s.,:/=+()-]|:(?=//)|(?<=[Ww]{3})\.|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def cell(text: str) -> str:
    """Return text as a cell of a table in Markdown: no markup, no line break, at most 300 characters."""
    # A reason may have megabytes, and a cell shows 300 characters.
    line = " ".join(clean(text[: 4 * _CELL], keep="", instead=" ").split())
    line = line if len(line) <= _CELL else f"{line[: _CELL - 1]}…"
    return _MARKUP.sub(lambda markup: f"&#{ord(markup[0])};", line)


def markdown(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> str:
    """Return a table of at most `room` bytes in UTF-8; an empty text if not even its head fits."""
    head = f"### {cell(heading)}\n\n{_row(columns)}|{' --- |' * len(columns)}\n"
    # Space for the line that counts the other rows is reserved first.
    left = room - len(head.encode()) - len(_more(len(rows)).encode())
    kept: list[str] = []
    for row in rows:
        line = _row(row)
        left -= len(line.encode())
        if left < 0:
            break
        kept.append(line)
    if left < 0 and not kept:  # no room for the head
        return ""
    more = len(rows) - len(kept)
    return f"{head}{''.join(kept)}{_more(more) if more else ''}\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(cell, cells))} |\n"


def _more(count: int) -> str:
    return f"\n{count} more rows are in the log and the report.\n"


# --- GitLab ---------------------------------------------------------------------------------------------------------

_ERASE = "\x1b[0K"  #: This sequence hides the marker line on GitLab's log page.


@dataclass
class GitLab(CiService):
    """A job of GitLab CI. Its log can be folded. Its reports are files that the job names; `--report` writes them."""

    stream: TextIO | None = None  #: The stream of the log; standard error by default.
    _folds: int = field(default=0, init=False)

    @contextmanager
    def fold(self, title: str, /) -> Iterator[None]:
        """Open a folded section with a name that is unique in the job."""
        self._folds += 1
        # A job may run several commands, and each section needs a unique name.
        name = f"tfdock_{os.getpid()}_{self._folds}"
        self._mark(f"section_start:{int(time.time())}:{name}[collapsed=true]", clean(title, keep="", instead=" "))
        try:
            yield
        finally:
            self._mark(f"section_end:{int(time.time())}:{name}")

    def _mark(self, mark: str, title: str = "") -> None:
        stream = self.stream or sys.stderr
        # GitLab's form: erase the line, the mark, CR, erase the line again, then the title.
        stream.write(f"{_ERASE}{mark}\r{_ERASE}{title}\n")
        stream.flush()
