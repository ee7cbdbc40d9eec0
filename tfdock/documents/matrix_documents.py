"""Documents of a matrix: its cells, its jobs, its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict

from tfdock.documents.document_parts import BuildStatus, WheelPathJson
from tfdock.errors import Problem


class IncludedCellJson(TypedDict):
    """A cell that can be built."""

    build_id: str  #: The build id.
    profile: Mapping[str, object]  #: The whole profile.
    fields: Mapping[str, object]  #: The fields that the cell sets, by dotted name.
    runner: Sequence[str]  #: Labels that the machine for this build must have.
    status: Literal["missing", "here", "registry"]  #: Where the wheel is; `missing` also if tfdock did not search.
    fingerprint: str | None  #: The build's fingerprint.
    seconds: float | None  #: The expected seconds of the build; null if unknown.
    group: str  #: Cells with the same group have the same toolchain.
    evidence: Literal["built", "tested", "untested", "known-to-fail"]  #: The grade of such builds.
    shard: int  #: The number of the job that builds the cell, from 1.
    warnings: Sequence[str]  #: Notes.


class ExcludedCellJson(TypedDict):
    """A cell that cannot be built, or that a rule excludes."""

    build_id: None  #: Always null.
    status: Literal["impossible", "excluded"]  #: `excluded`: a rule of the matrix excludes it.
    fields: Mapping[str, object]  #: The fields that the cell sets, by dotted name.
    code: str | None  #: The code of the reason.
    reason: str  #: Why.
    file: str  #: The file with the rule or value.
    line: int | None  #: The line in that file, from 1.
    column: int | None  #: The column in that line, from 1.
    problems: Sequence[Problem]  #: What is wrong.


class MatrixPlanDocument(TypedDict):
    """`tfdock matrix`: the wheels that should exist."""

    matrix: str  #: The matrix's file.
    include: Sequence[IncludedCellJson]  #: The cells that can be built, in the best order.
    excluded: Sequence[ExcludedCellJson]  #: The impossible and excluded cells.


class CellResultJson(TypedDict):
    """The result of a cell."""

    build_id: str | None  #: The build id; null for a cell that cannot be built.
    name: str  #: The build id, or the fields that the cell sets.
    fields: Mapping[str, object]  #: The fields that the cell sets, by dotted name.
    runner: Sequence[str]  #: Labels that the machine for this build must have.
    #: The result of the cell.
    status: Literal[BuildStatus, "missing", "registry", "impossible", "excluded"]
    code: str | None  #: The code of the reason why there is no wheel.
    reason: str | None  #: The reason in words.
    place: str | None  #: `file:line:column` of the value that makes the cell impossible.
    problems: Sequence[Problem]  #: What is wrong.
    origin: str | None  #: The image that the build was pulled from.
    wheels: Sequence[WheelPathJson]  #: The wheels, by their names.
    log: str | None  #: The log's path in the wheelhouse.
    record: str | None  #: The record's path in the wheelhouse.
    seconds: Mapping[str, float]  #: The seconds of each phase of this build.
    cache: Mapping[str, object] | None  #: Bazel's report on this build, in the form of `cache` in `tfdock build`.
    attempts: int  #: How often the build compiled or retried.
    exit_code: int  #: The exit code of the build of the cell.


class MatrixResultJson(TypedDict):
    """The results of a matrix."""

    matrix: str  #: The matrix's file.
    by: str  #: The command, such as `tfdock build`.
    finished: str  #: When the command ended, in UTC, such as `2026-01-31T09:30:00`.
    seconds: float  #: Seconds in all.
    exit_code: int  #: The exit code of the command.
    counts: Mapping[str, int]  #: The number of cells with each status.
    cells: Sequence[CellResultJson]  #: The cells, in the order of the matrix.


class MatrixReportDocument(MatrixResultJson):
    """The results of a matrix, as a file (`report.json` of `--report DIR`)."""

    schema: Literal["tfdock.matrix-report/1"]  #: Which document this is.
    ok: bool  #: Whether the exit code is 0.
