"""Builds of TensorFlow that somebody reported: the parts of each build, known failures, and their fixes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from tfdock.knowledge.rows import Row, lies_within, text_like
from tfdock.types import Version, same_minor

_SPAN = r"(?:\d+(?:\.\d+)*(?:-?(?:alpha|beta|rc)\d+)?|\d+(?:\.\d+)*\.\.(?:\d+(?:\.\d+)*)?|\.\.\d+(?:\.\d+)*)"
Span = Annotated[str, text_like(re.compile(rf"{_SPAN}\Z"), "version or range (`12.8`, `11.2..11.7`, `13..`, `..11`)")]
Tool = Annotated[str, text_like(re.compile(rf"[a-z]+(?: {_SPAN})?\Z"), "tool (`nvcc`, `gcc 12.3.0`, `gcc 13..`)")]


class ReportedBuild(Row):
    """A build that somebody reported, or a combination that is known to fail.

    Parts are written as in the report; an unreported part is absent. `outcome` is `built-with-edit` if the build
    needed an edit that tfdock does not make: `needs` describes it. In a row that `fails`, the parts and `options` are
    those that cause the failure, and parts may be ranges. `needs` is then the fix, `unless` a text in an option that
    avoids the failure, and `failed_with` are words of the error. `shows` is a text that only such failures print in a
    log, with `"` for every quote. A part may belong to the base image: `glibc`, `musl`.

    `edits` are the rows of edits.yaml that make all edits in `needs`, except edits for the packager's own purposes.

    `fork` is the source tree if it is not TensorFlow's own; `compiler` compiles GPU code; `at` is the place in the
    report.
    """

    KEY = ("id",)

    id: str
    tensorflow: Span
    fork: str | None = None
    outcome: Literal["built", "built-with-edit", "fails"]
    accelerator: str | None = None
    machine: str | None = None
    python: tuple[str, ...] = ()
    components: dict[str, Span] = Field(default_factory=dict)
    compiler: Tool | None = None
    host_compiler: Tool | None = None
    bazel: Span | None = None
    targets: tuple[str, ...] = ()
    base: str | None = None
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    failed_with: str | None = None
    shows: str | None = None
    unless: str | None = None
    at: str
    date: str | None = None

    @property
    def tools(self) -> tuple[str, ...]:
        """The compilers in the report, such as `gcc 12.3.0`."""
        return tuple(filter(None, (self.compiler, self.host_compiler)))

    @property
    def parts(self) -> dict[str, str]:
        """The versions and tools in the report, by name."""
        tools = {"compiler": self.compiler, "host_compiler": self.host_compiler, "bazel": self.bazel}
        return {**self.components, **{name: text for name, text in tools.items() if text}}

    def agrees(self, facts: Mapping[str, str]) -> bool:
        """Return whether the report applies to a build with these facts.

        The facts are accelerator, toolkit, machine, python, options and `parts`. The report of a successful build may
        have parts that the facts lack; the report of a failure may not. One with `xla off` excludes builds with XLA.
        """
        fails = self.outcome == "fails"
        if not self.agrees_in_kind(facts):
            return False
        if self.python and facts["python"] and facts["python"] not in self.python:
            return False
        options = facts.get("options", "")
        asked = {*options.split()}
        if fails and (not {*self.options} <= asked or (self.unless and self.unless in options)):
            return False
        without = {option.removesuffix(" off") for option in self.options if option.endswith(" off")}
        if not fails and without & asked:
            return False
        for name, said in self.parts.items():
            known = facts.get(name, "")
            if not known and fails:
                return False
            # For a library the major version decides, except for a doubt about this library (`is_exactly`).
            by_major = not fails and name != facts["toolkit"] and name != "bazel"
            if known and not _is_part(said, known, by_major=by_major):
                return False
        return True

    def is_exactly(self, name: str, facts: Mapping[str, str]) -> bool:
        """Return whether the report and these facts have the same version of `name`, which is a part or `python`."""
        if name == "python":
            return facts["python"] in self.python
        said, known = self.parts.get(name, ""), facts[name]
        # A report about `clang` without a version says nothing about clang 20.
        exact = " " in said or " " not in known
        return bool(said) and exact and _is_part(said, known, by_major=name.endswith("compiler"))

    def has_parts_of(self, failure: ReportedBuild, facts: Mapping[str, str]) -> bool:
        """Return whether the report has all parts of a failure, in the versions of the failure or of these facts."""
        # Facts with cuDNN 8 may mean the cuDNN 8.9 that fails, or the 8.6 of this report.
        parts, wanted = self.parts, failure.parts.items()
        return all(
            name in parts
            and any(_is_part(version, parts[name], by_major=False) for version in (said, facts.get(name, "")))
            for name, said in wanted
        )

    def agrees_in_kind(self, facts: Mapping[str, str]) -> bool:
        """Return whether the report is for this accelerator and machine. A report that names none is for all.

        A successful build for GPUs is also a report for the CPU: it compiled all code for the CPU.
        """
        # A report without a machine is about x86_64, which most people have; such a failure is about all machines.
        machine = self.machine or (None if self.outcome == "fails" else "x86_64")
        with_gpus = self.outcome == "built" and self.components and not facts["toolkit"]
        return (with_gpus or self.accelerator in (None, facts["accelerator"])) and machine in (None, facts["machine"])


class Edit(Row):
    """A change of the release's source, without which a build is known to fail.

    `put` replaces the text `find`, which occurs once in `file`. The change is made in the releases of `tensorflow`,
    for builds that the report `mends` describes (the id of a report that `fails`). `file` is relative to the source.
    If a row is `unverified`, nobody is known to have finished a build with it.
    """

    KEY = ("edit",)

    edit: str
    mends: str
    tensorflow: Span
    file: Annotated[str, text_like(re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*\Z"), "file of the source (`a/b.bzl`)")]
    find: Annotated[str, Field(min_length=1)]
    put: str

    def is_for(self, report: ReportedBuild, version: str) -> bool:
        """Return whether this change fixes the failure of a report, in the source of this version."""
        return self.mends == report.id and spans(self.tensorflow, version)


def is_of(tensorflow: object, release: str) -> bool:
    """Return whether a row with this `tensorflow` applies to a minor release; other text applies to all."""
    return not isinstance(tensorflow, str) or not re.match(r"[\d.]", tensorflow) or spans(tensorflow, release)


def _is_part(said: str, known: str, *, by_major: bool) -> bool:
    """Return whether a part as reported (`8.0`, `gcc 12.3.0`, `gcc`) is the known one (`8.0.5`, `gcc 12`)."""
    tool, span = tool_and_version(said)
    name, version = tool_and_version(known)
    if tool != name:
        return False
    if not span or not version:
        # A tool without a version may have any version. A failure of one version is not known for all versions.
        return by_major or not span
    if by_major:
        return Version(span).parts[:1] == Version(version).parts[:1]
    # `gcc 5` may be another version than the gcc 5.5 that fails, and 7.3.1 is another one than 7.3.0.
    exact = not tool or ".." in span or Version(version).matches(Version(span))
    return exact and spans(span, version)


def tool_and_version(text: str) -> tuple[str, str]:
    """Return the tool and the version of `gcc 12.3`; a version alone has an empty tool."""
    return ("", text) if not text[:1].isalpha() else (text.partition(" ")[0], text.partition(" ")[2])


def spoken(part: str) -> str:
    """Return a version or a range in words: `gcc 13 or newer`, `2.30 or newer`, `up to 11`."""
    name, span = tool_and_version(part)
    first, dots, last = span.partition("..")
    words = f"{first} to {last}" if first and last else f"up to {last}" if last else f"{first} or newer"
    return f"{name} {words if dots else span}".strip()


def spans(span: str, version: str) -> bool:
    """Return whether a version lies in `12.8` (a minor version), `11.2..11.7`, `13..` or `..11`."""
    first, dots, last = span.partition("..")
    return lies_within(version, first, last) if dots else same_minor(span, version)
