"""Problems and exceptions: the error, its place, its reason, and its fix.

Every message a user sees about something wrong is a `Problem`. Exceptions carry problems upwards; only the command
line turns them into text, JSON and an exit code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal, Self, TypedDict, Unpack

OR = "; or "  #: Joins the fixes of a problem where a document has one text for all of them.


class ExitCode(IntEnum):
    """Exit codes of every command; stable, documented in docs/failures.md."""

    OK = 0
    BUILD_FAILED = 1
    USAGE = 2
    INCOMPATIBLE = 3
    VERIFICATION = 4
    ENGINE = 6
    NETWORK = 7
    RESOURCES = 8
    LOCKED = 9
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143


# If a command has several results, its exit code is the first of these codes that occurred.
_PRECEDENCE = (130, 143, 70, 6, 9, 8, 7, 1, 4, 2, 3)


def combined_exit_code(codes: Iterable[int]) -> int:
    """Return one exit code for several results; 0 if there are none."""
    seen = {int(code) for code in codes}
    return next((code for code in _PRECEDENCE if code in seen), 0)


def clean(text: str, *, keep: str = "\n", instead: str = "�") -> str:
    """Return untrusted text (profiles, logs, engines) with `instead` for control characters not in `keep`."""
    if text.isprintable():  # as nearly every line of a log is
        return text
    return "".join(letter if letter.isprintable() or letter in keep else instead for letter in text)


def joined(words: Iterable[str]) -> str:
    """Join words, at least one, for a sentence: `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def quoted_with(text: str, quote: str) -> str:
    """Return a text whose commands have this quote in place of `'`. A command that has both is kept."""
    return re.sub("`[^`]*`", lambda span: span[0] if quote in span[0] else span[0].replace("'", quote), text)


Severity = Literal["error", "warning"]
Fix = str | Sequence[str]  #: The fix of a problem: one text, or several texts; each fix alone is enough.


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A suggestion after a refusal. tfdock has tried it: the changed profile is accepted."""

    text: str  #: The change in words.
    change: Mapping[str, object]  #: The new value of each dotted field of the profile; null removes the field.
    keep: tuple[str, ...] = ()  #: The settings of the profile that the change does not touch, as text.
    untested: bool = False  #: Whether it needs `allow_untested`.
    question: str = ""  #: The question to ask before a change that may be unwanted. Empty for a fix.


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. Unknown texts are empty, unknown places are null.

    `fixes` also has each of the `ways` that needs no question. `message` includes the compiler's errors.
    """

    code: str  #: A stable code in kebab-case; `tfdock explain CODE` explains it.
    message: str  #: What is wrong.
    #: The conflict, and its effect.
    why: str = field(default="", kw_only=True)  # here, because documents have the fields in this order
    fixes: Sequence[str] = ()  #: What to do; several fixes, any of which is enough, are joined by `; or `.
    _: KW_ONLY
    ways: tuple[Suggestion, ...] = ()  #: Changes of the profile that were tried.
    severity: Severity = "error"  #: How bad it is.
    file: str | None = None  #: The file that has the problem.
    line: int | None = None  #: The line in that file, from 1.
    column: int | None = None  #: The column in that line, from 1.
    field: str | None = None  #: The field of the profile, dotted, such as `gpus[1]`.
    #: The first errors of a compiler or linker, three at most, such as `a/b.cc:3:10: error: expected ';'`.
    compiler_errors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Turn a single fix into a tuple with one fix."""
        single = isinstance(self.fixes, str) and self.fixes
        object.__setattr__(self, "fixes", (self.fixes,) if single else tuple(self.fixes))

    @property
    def fix(self) -> str:
        """The fixes as one text, as in documents."""
        return OR.join(self.fixes)

    @property
    def where(self) -> str:
        """`file:line:column`, as far as known; empty if nothing is known."""
        if self.file and self.file.startswith("--"):
            return self.file  # options of a command, which have no lines
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{place}{self.message} [{self.code}]{fix}"


def as_document(value: Any) -> dict[str, Any]:
    """Return a problem, or a dataclass with problems, in the form that documents use: all fixes in one text."""
    return asdict(value, dict_factory=_members)


def document_text(document: Mapping[str, Any]) -> str:
    """Return a document as the text of a JSON file."""
    text = json.dumps(document, indent=2, ensure_ascii=False, default=as_document)
    # A file name may contain a lone surrogate, which UTF-8 cannot encode. Python's escape for it is valid JSON.
    return text.encode("utf-8", "backslashreplace").decode() + "\n"


def _members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    return {document_key(name): OR.join(value) if name == "fixes" else value for name, value in members}


def document_key(field: str) -> str:
    """Return the key that a field of a dataclass has in documents."""
    return "fix" if field == "fixes" else field


class ProblemFields(TypedDict, total=False):
    """Further fields of a problem."""

    why: str
    severity: Severity
    file: str | None
    line: int | None
    column: int | None
    field: str | None
    compiler_errors: tuple[str, ...]


MOST_PROBLEMS = 100  #: The most problems that are printed: a file may come from a stranger, and nobody reads more.


class TfdockError(Exception):
    """Base of every error that this program raises on purpose. It has at most the first `MOST_PROBLEMS` problems."""

    exit_code = ExitCode.INTERNAL

    def __init__(self, *problems: Problem) -> None:
        if len(problems) > MOST_PROBLEMS:
            message = f"only the first {MOST_PROBLEMS} problems are listed"
            rest = Problem("more-problems", message, "correct these first, then run the command again")
            problems = (*problems[:MOST_PROBLEMS], rest)
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))

    @classmethod
    def of(cls, code: str, message: str, fixes: Fix = (), **more: Unpack[ProblemFields]) -> Self:
        """Return the error for one problem; `more` are its further fields."""
        return cls(Problem(code, message, fixes, **more))


class ProfileError(TfdockError):
    """A profile, settings file or argument that cannot be read."""

    exit_code = ExitCode.USAGE


class Incompatible(TfdockError):
    """A combination that cannot be built, or that has no known build."""

    exit_code = ExitCode.INCOMPATIBLE


class BuildFailed(TfdockError):
    """A step of the build itself failed: an image step, configure, Bazel, the wheel.

    `status` is the exit status of the failed step, if there was one.
    """

    exit_code = ExitCode.BUILD_FAILED

    def __init__(self, *problems: Problem, status: int | None = None) -> None:
        super().__init__(*problems)
        self.status = status


class WheelRefused(TfdockError):
    """The build ended, but its result is not a wheel that may be published."""

    exit_code = ExitCode.VERIFICATION


class VerificationFailed(WheelRefused):
    """A complete wheel failed a check."""


class DamagedContent(VerificationFailed):
    """A registry serves content whose digest is not the requested one. The content is not used."""

    exit_code = ExitCode.NETWORK


class EngineError(TfdockError):
    """The container engine refused a request, or a request failed inside the engine."""

    exit_code = ExitCode.ENGINE


class EngineUnavailable(EngineError):
    """No engine answers, or the caller has no permission to use it."""


class EngineLost(EngineError):
    """The engine stopped answering during a request."""


class EngineHung(EngineError):
    """The engine keeps the connection but answers nothing, not even a ping."""


class NetworkError(TfdockError):
    """A registry or source server could not be reached, or refused."""

    exit_code = ExitCode.NETWORK


class OutOfMemory(TfdockError):
    """A process that tfdock started ran out of memory.

    The kernel killed it or, with `of_bazel`, Bazel's own heap was too small.
    """

    exit_code = ExitCode.RESOURCES

    def __init__(self, *problems: Problem, of_bazel: bool = False) -> None:
        super().__init__(*problems)
        self.of_bazel = of_bazel


class DiskFull(TfdockError):
    """A file system ran out of space, or would run out of it."""

    exit_code = ExitCode.RESOURCES


class TimeLimit(TfdockError):
    """The build reached its time limit."""

    exit_code = ExitCode.RESOURCES


class Locked(TfdockError):
    """Another run holds a lock that this run needs."""

    exit_code = ExitCode.LOCKED


class Interrupted(TfdockError):
    """The user (SIGINT) or the system (SIGTERM) asked to stop."""

    def __init__(self, *problems: Problem, terminated: bool = False) -> None:
        super().__init__(*problems)
        self.exit_code = ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED
