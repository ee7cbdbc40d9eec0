"""Rows about logs: known failures, the parts that a log shows, and names that versions added or removed.

A failure has patterns for a log, a cause and a fix; each row is checked by its own examples. Their files are
`failures/*.yaml` of a knowledge folder, one table in several files: a row of an overlay replaces the shipped one of
the same `id`.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from tfdock.errors import joined
from tfdock.knowledge.evidence_rows import Edit, ReportedBuild, spoken
from tfdock.knowledge.rows import (
    AcceleratorTable,
    Expression,
    ReleaseRange,
    Row,
    RowPart,
    Template,
    Versions,
    check_placeholders,
    is_shipped,
    placeholders,
    template_with,
)

Stage = Literal["configure", "bazel", "fetch", "compile", "link", "wheel", "runtime", "docker"]
# Logs are searched for this text first. A short text would match many lines, and each match costs a closer look.
Has = Annotated[str, StringConstraints(min_length=6, max_length=120, pattern=r"^[ -~]+$")]
# Also quotes of UTF-8 that were read as Latin-1 or Windows-1252, or were lost (U+FFFD).
_QUOTES = re.compile("\u00e2\u0080[\u0098\u0099\u009c\u009d]|â€[˜™œ\u009d]|\ufffd{1,3}|[\"'`´‘’‛“”„]")
_PLAIN = str.maketrans("'`\t", '"" ')
_WINDOW = " " * 40
_WRAPPED = re.compile(r"(?<=\S) {40,}(?=\S)")
# One tool prints different quotes, depending on its version and the language.
_QUOTE_IN_LITERAL = re.compile("[\"'`]")
# Text that compilers, shells and builders only repeat: source lines, commands, test names, commit titles, probes.
# Errors follow "> " too: Gradle's (a capital letter or a number), and quoted errors of Python (`a.b.SomeError: `).
_REPEATED = re.compile(
    r"\s*[\d+]* *\||\++ |[$#] |> (?![A-Z\d]|\w+(?:\.\w+)+Error: )|echo |SUBCOMMAND: |"
    r"\s*#(?:error|warning|include)\b|(?:>>> |--> )?RUN |"
    r"(?:(?:Step|STEP) \d+/\d+ ?:|\[[^\]]{0,40}\d+/\d+\] )(?:RUN|COPY|ADD|FROM|ENV) |"
    r"\[ *(?:RUN|OK|PASSED|-+) *\]|//\S+ +(?:\(cached\) )?PASSED|"
    r"/[/*] |[*-] \"|(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40} |(?:\S{1,80}: (?:line \d+: )?)?type: |"
    r"\S+\.py::|ok \d+ |conftest\.\w+:\d+|\S*/CMakeFiles/(?:CMakeTmp|CMakeScratch)/|"
    r"(?:/\S{1,200}/)?(?:gcc|g\+\+|clang|clang\+\+|nvcc|hipcc|cc|c\+\+)(?:-[\d.]+)? -"
)
# After a warning the tool continues, so a warning is not the failure.
_WARNED = re.compile(
    r"(?:configure: )?(?:WARNING|INFO|DEBUG|NOTE|Note|note|warning|Warning|hint|HINT)\b ?:|"
    r".{0,400}?\b(?:warning|note) ?: "
)


# Text about another time: in a commit, a comment, or a script that retries.
_TOLD = re.compile(
    r"\b(?:previous(?:ly)?|earlier|last (?:night|week|run|build|time|attempt)|yesterday|[Rr]etrying|for example|"
    r"e\.g\.|(?:if|when) you (?:see|get)|known issue|[Ww]ork ?around|[Ee]xpected (?:error|failure|exception))\b"
)


class PatternRow(RowPart):
    """Output of a tool: `has` is an exact part of the line, without quotes; `line` is an expression for the line.

    Before matching, every kind of quote becomes ". `survivable`: the tool continues after the line, so a failure that
    stops something is the more likely cause. `in_warnings`: the pattern also matches lines marked as warnings;
    `in_tracebacks`: also source lines in a traceback. `below`: the expression also sees the lines below.
    """

    has: Has
    line: Expression | None = None
    survivable: bool = False
    in_warnings: bool = False
    in_tracebacks: bool = False
    below: bool = False

    @field_validator("has")
    @classmethod
    def _without_quotes(cls, text: str) -> str:
        if _QUOTE_IN_LITERAL.search(text):
            raise ValueError("a literal must not contain quotes: tools write quotes in several ways")
        return text

    def match(self, line: str, *, harmless: bool = False) -> Mapping[str, str] | None:
        """Return the groups of a `comparable` line that this pattern matches; None if it does not match."""
        # Check this before any expression: it rules out nearly all lines.
        if self.has not in line or (_is_repeated(line) and not self.below):
            return None
        if not (self.in_warnings or harmless) and (_is_warning(line) or _TOLD.search(line[: line.index(self.has)])):
            return None
        return self.found(line)

    def found(self, line: str) -> Mapping[str, str] | None:
        """Return the named groups of the expression, None if it does not match."""
        if self.line is None:
            return {}
        match = compiled(self.line).search(line)
        # A group of an alternative that did not match is None, and is left out.
        return {name: text for name, text in match.groupdict().items() if text} if match else None


class Examples(RowPart):
    """Texts on which a row fires, at least one for each pattern; and near misses, which show patterns too wide."""

    fires: tuple[str, ...] = Field(min_length=1)
    near: tuple[str, ...] = Field(min_length=1)


class Grave(RowPart):
    """The id of the failure that a harmless line can show, and the accelerator or part that decides this."""

    row: str
    accelerator: str
    beside: str


class Remedied(Row):
    """The choices of a profile that matter for a failure (`asks`), and changes that may fix the failure, best first.

    A change is a field with its new value. The value null removes the field. {without: …} and {with: …} change a
    list; the other forms are {half: jobs}, {for: target} and {nearest: version}.
    """

    asks: tuple[str, ...] = ()
    changes: tuple[dict[str, str | bool | Mapping[str, str] | None], ...] = ()


class Variant(RowPart):
    """The cause and the fix of a failure in a log that also shows certain parts; an empty text keeps the row's own.

    `beside` maps a part to its versions (`>=1.4,<2`), or to an empty text for a part of any version.
    """

    beside: dict[str, Versions | Literal[""]] = Field(min_length=1)
    cause: Template = ""
    fix: Template = ""


class Failure(Remedied):
    """One cause of failure, and what a log shows.

    `cause` and `fix` are templates of `values`. A value is a group of that name in `patterns` or `facts` (facts alone
    find no failure), else the default in `values`. `instead_of` are rows that say less about the same line.
    `cascade`: an earlier failure causes this failure, which is left out beside a failure of its stage. `unsure`: the
    row is for a whole class of lines, which may have other causes. `only_with` are parts that the log must show too,
    `never_with` parts that the log must not show. `tells` are parts for which the cause adds the versions that the
    log's release was made with. `each` is the group whose values are reported one by one. `installed` is the fix for
    a user who built nothing. The first of `variants` that suits the log replaces cause and fix. `keeps_fix`: the fix
    of a value's meaning does not replace the row's.

    `fits` maps a group to what it is in a log of the same profile: one of the `targets`, or a component's version.

    `harmless`: the line is not a failure, and reported only on request. `grave` is the failure that the line shows if
    the profile asks for such a GPU, or if that failure was found too. `passes` are the stages that this line shows as
    successful: earlier failures of these stages no longer count. `spoils` are stages for which the next success line
    proves nothing, because the tool continues after a failure. `ends_well`: the tool did all that was requested.
    """

    KEY = ("id",)

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")]
    stage: Stage
    patterns: tuple[PatternRow, ...] = Field(min_length=1)
    facts: tuple[PatternRow, ...] = ()
    values: dict[str, str] = Field(default_factory=dict)
    instead_of: tuple[str, ...] = ()
    cascade: bool = False
    unsure: bool = False
    keeps_fix: bool = False
    only_with: tuple[str, ...] = ()
    never_with: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()
    each: str = ""
    fits: dict[str, str] = Field(default_factory=dict)
    cause: Template
    fix: Template = "There is nothing to do."
    installed: Template = ""
    variants: tuple[Variant, ...] = ()
    confirmed: Literal["yes", "maintainer", "no"] = "no"
    harmless: bool = False
    grave: Grave | None = None
    passes: tuple[Stage, ...] = ()
    ends_well: bool = False
    spoils: tuple[Stage, ...] = ()
    examples: Examples

    @property
    def is_failure(self) -> bool:
        """Whether the row is a failure, not a harmless line."""
        return not (self.harmless or self.passes or self.spoils)

    @model_validator(mode="after")
    def _is_whole(self, info: ValidationInfo) -> Self:
        if is_shipped(info):
            return self
        lines = (pattern.line for pattern in (*self.patterns, *self.facts) if pattern.line)
        groups = {name for line in lines for name in compiled(line).groupindex}
        # A log may lack the group. Then the sentence contains the default from `values`.
        if unused := (groups | set(self.fits) | {self.each}) - {*self.values, ""}:
            raise ValueError(f"group `{min(unused)}` of a pattern is not in `values`")
        own = (text for one in self.variants for text in (one.cause, one.fix))
        texts = [self.cause, self.fix, self.installed, *own, *_texts_of(self.changes)]
        if unknown := {name for text in texts for name in placeholders(text)} - set(self.values):
            raise ValueError(f"placeholder {{{min(unknown)}}} is not in `values`")
        if self.is_failure and "fix" not in self.model_fields_set:
            raise ValueError("a failure needs a fix")
        return self

    @model_validator(mode="after")
    # Checked when rows are read, so that rows of an overlay are checked too.
    def _fires_as_it_says(self, info: ValidationInfo) -> Self:
        if is_shipped(info):
            return self
        lines = [line for text in self.examples.fires for line in (text, *text.split("\n"))]
        for index in range(len(self.patterns)):
            if not any(self.reads(index, line) is not None for line in lines):
                raise ValueError(f"patterns[{index}] fires on none of `examples.fires`")
        for text in self.examples.fires:
            if not any(self.fires(line) for line in (text, *text.split("\n"))):
                raise ValueError(f"no pattern fires on the example {text!r}")
        for text in self.examples.near:
            if any(self.fires(line) for line in (text, *text.split("\n"))):
                raise ValueError(f"a pattern fires on the near miss {text!r}")
        return self

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if a part that the log must show has no row."""
        variants = [part for variant in self.variants for part in variant.beside]
        asked = {"only_with": self.only_with + self.never_with, "tells": self.tells, "variants": variants}
        unknown = ((field, part) for field, parts in asked.items() for part in parts if part not in known.log_parts)
        return next(((field, f"no part `{part}` has a row in `log_parts.yaml`") for field, part in unknown), None)

    def reads(self, place: int, line: str) -> Mapping[str, str] | None:
        """Return the groups of a log line; `place` counts the patterns, then the facts; None without a match."""
        line = comparable(line)
        if place >= len(self.patterns):
            return self.facts[place - len(self.patterns)].found(line)
        return self.patterns[place].match(line, harmless=not self.is_failure)

    def fires(self, line: str) -> bool:
        """Return whether a pattern matches a log line."""
        return any(self.reads(place, line) is not None for place in range(len(self.patterns)))


_THREAD = re.compile(r"([\w.-]+/[\w.-]+)(?:#| pulls? )(\d+)")  # An issue's address leads to a pull request too.
_TOOLS = {"compiler": "", "host_compiler": "", "bazel": "Bazel"}  # A reported compiler begins with its name.


def failures_of(reports: Iterable[ReportedBuild], titles: Mapping[str, str], edits: Iterable[Edit]) -> list[Failure]:
    """Return a failure for each text in `shows` of reported failures; `titles` are the names of components."""
    made = {edit.mends: edit for edit in edits}
    alike: dict[str, list[ReportedBuild]] = {}
    for row in reports:
        if row.shows:
            alike.setdefault(row.shows, []).append(row)
    return [_failure_of(text, rows, titles, made) for text, rows in alike.items()]


def _failure_of(
    text: str, rows: Sequence[ReportedBuild], titles: Mapping[str, str], edits: Mapping[str, Edit]
) -> Failure:
    builds: dict[str, None] = {}
    for row in rows:
        parts = [f"{_TOOLS.get(name, titles.get(name, name))} {spoken(said)}" for name, said in row.parts.items()]
        beside = [*map(str.strip, parts), *row.options]
        builds[f"TensorFlow {spoken(row.tensorflow)}{f' with {joined(beside)}' if beside else ''}"] = None
    needs = dict.fromkeys(need for row in rows for need in row.needs)
    notes = dict.fromkeys(f": {row.note}" for row in rows if row.note)
    edit = next((edits[row.id] for row in rows if row.id in edits), None)
    cause = f"Builds of {', and of '.join(builds)} are known to fail like this{''.join(notes)}."
    fix = f"What helped others: {'; or '.join(needs)}."
    if edit:
        fix += f" For TensorFlow {spoken(edit.tensorflow)} tfdock changes {edit.file} itself (edit `{edit.edit}`)."
    return Failure(
        id=re.sub(r"[^a-z0-9]+", "_", rows[0].id),
        stage="compile",
        # Tools write quotes in several ways, so the literal is the longest text between quotes.
        patterns=(PatternRow(has=max(text.split('"'), key=len), line=re.escape(text) if '"' in text else None),),
        cause=_literal(cause),
        fix=_literal(fix),
        source=_THREAD.sub(r"https://github.com/\1/issues/\2", "; ".join(dict.fromkeys(row.at for row in rows))),
        confirmed="yes",
        examples=Examples(fires=(text,), near=("",)),
    )


def _literal(text: str) -> str:
    """Return a template without placeholders for a text."""
    return text.replace("{", "{{").replace("}", "}}")


class ShownPart(PatternRow):
    """A line that shows a part. `among` is the range (`>=1.4,<2`) of the versions that print such a line."""

    among: Versions | Literal[""] = ""


class LogPart(Remedied):
    """A part of a build (such as a compiler), or a system: how a log shows its version, and errors about the part.

    `shows` are patterns whose groups `version` and `minor` give its version, the most reliable pattern first. `owns`
    are expressions for the line of an error about the part, `about` is the usual cause of such errors. Only the first
    `digits` numbers of a version are compared. `too_new` and `too_old` are templates of `wanted` and `limit`
    (`<1.19`). `remark` is added to every error of unsure cause if the log shows the part. `libc` is the C library of
    a system without glibc, `phrases` maps Debian's commands to the commands of this system, and `quote` is the quote
    of its shell. `made_with` gives the part's versions by release, if `releases.yaml` has none. `leave_out` says how
    to build without it.
    """

    KEY = ("part",)

    part: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")]
    title: str
    shows: tuple[ShownPart, ...] = ()
    owns: tuple[Expression, ...] = ()
    about: str = "Most such errors come from a version that is newer or older than the source was written for."
    digits: int = 2
    too_new: Annotated[str, template_with("wanted", "limit")] = ""
    too_old: Annotated[str, template_with("wanted", "limit")] = ""
    remark: str = ""
    leave_out: str = ""
    made_with: dict[ReleaseRange, tuple[str, ...]] = Field(default_factory=dict)
    libc: str = ""
    phrases: dict[str, str] = Field(default_factory=dict)
    quote: str = "'"

    def version_in(self, place: int, line: str) -> str | None:
        """Return the version that a line shows by the pattern at `place`; empty without one, None without a match."""
        found = self.shows[place].found(comparable(line))
        return None if found is None else ".".join(found[name] for name in ("version", "minor") if name in found)

    def is_about(self, text: str) -> bool:
        """Return whether the text of an error is about this part; `text` is `comparable`."""
        return any(compiled(expression).search(text) for expression in self.owns)


class ErrorKind(Row):
    """A kind of error: an expression for the error's `comparable` line, and the next step if no failure is known.

    Without an error, the last lines of a log are tried. `vague`: not for such lines, because harmless lines have such
    words too.
    """

    KEY = ("kind",)

    kind: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_]*$")]
    says: Expression
    step: str
    vague: bool = False


_VALUE = re.compile(r"\^(\w+) ")  #: The value's name at the beginning of what a meaning says.


class Meaning(Row):
    """What a value of a failure means. `says` is an expression for the value's name, a blank and the value.

    `fix` replaces the failure's own fix, which is for all values. It is a template of the groups in `says`, and of
    `python`, the newest Python of the release.
    """

    KEY = ("says",)

    says: Expression
    means: str
    fix: Template = ""

    @model_validator(mode="after")
    def _names_its_groups(self, info: ValidationInfo) -> Self:
        if not is_shipped(info):
            check_placeholders(self.fix, ("python", *compiled(self.says).groupindex))
        return self

    def found(self, values: Iterable[tuple[str, str]]) -> Mapping[str, str] | None:
        """Return the groups of the first value (its name and text) with this meaning; None without such a value."""
        # Most expressions begin with a value's name. To compile one takes longer than to search with it.
        own = _VALUE.match(self.says)
        able = (f"{name} {text}" for name, text in values if not own or own[1] == name)
        matches = (compiled(self.says).search(said) for said in able)
        return next((match.groupdict() for match in matches if match), None)


class CameAndWent(Row):
    """A name in an error, and the versions of its part that have this name: from `since` to `until`, both included.

    `beside` (`with`) is a second text of that error. If the error's words do not show whether the part is too new or
    too old, `means` says it. `instead` replaced the name; `releases` are the TensorFlow releases that had the error.
    """

    KEY = ("part", "name", "beside")

    part: str
    name: Annotated[str, StringConstraints(min_length=5, max_length=120, pattern=r"^[ -&(-_a-~]+$")]
    beside: str = Field(default="", alias="with")
    means: Literal["newer", "older", "either", "other"]
    since: str | None = None
    until: str | None = None
    instead: str = ""
    releases: str = ""

    def stands_in(self, text: str) -> bool:
        """Return whether a `comparable` text contains the name, as whole words.

        The name does not count if it is the name of the file in which the error occurred.
        """
        begin, end = ("(?<!\\w)" * self.name[0].isidentifier(), "(?!\\w)" * self.name[-1].isalnum())
        return compiled(f"{begin}{re.escape(self.name)}{end}(?![:(]\\d)").search(text) is not None

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if the part has no row."""
        if self.part in known.log_parts:
            return None
        return "part", f"no part `{self.part}` has a row in `log_parts.yaml`"


def _texts_of(changes: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    for change in changes:
        for value in change.values():
            yield from value.values() if isinstance(value, Mapping) else [value] if isinstance(value, str) else []


@cache
def compiled(expression: str) -> re.Pattern[str]:
    """Return an expression of a row, compiled once."""
    return re.compile(expression)


_of_line = lru_cache(maxsize=16)  #: One line is compared with several rows.


@_of_line
def comparable(line: str) -> str:
    """Return a line for matching: every quote character, garbled ones too, is a double quote, and tabs are spaces."""
    # Most lines are ASCII, and a faster translation is enough for these lines.
    line = line.translate(_PLAIN) if line.isascii() else _QUOTES.sub('"', line).replace("\t", " ")
    # Some terminals copy a wrapped line with the blanks that filled the rest of the window.
    return _WRAPPED.sub("", line) if _WINDOW in line else line


def is_said(line: str) -> bool:
    """Return whether a `comparable` line is an error of this run: no warning, no repeated or explanatory text."""
    return not (_is_repeated(line) or _is_warning(line) or _TOLD.search(line))


@_of_line
def _is_repeated(line: str) -> bool:
    return line.endswith(" ... ok") or _REPEATED.match(line) is not None


@_of_line
def _is_warning(line: str) -> bool:
    return _WARNED.match(line) is not None
