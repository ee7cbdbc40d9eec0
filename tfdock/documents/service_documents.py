"""Documents of CI pipelines and of logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tfdock.ci.pipeline import Service
from tfdock.diagnose.log_search import GoodEnd
from tfdock.documents.document_parts import LoggedFindingJson
from tfdock.errors import Problem


class WrittenPipelineJson(TypedDict):
    """A rendered file of a pipeline."""

    path: str  #: The path of the file.
    written: bool  #: Whether the file has changed.


class CiRenderDocument(TypedDict):
    """`tfdock ci render`: the files of a pipeline."""

    service: Service  #: The service.
    files: Sequence[WrittenPipelineJson]  #: The files.
    warnings: Sequence[Problem]  #: Warnings about the pipeline.


class CheckedPipelineJson(TypedDict):
    """A file of a pipeline, compared with a newly rendered file."""

    service: Service  #: The service.
    path: str  #: The path of the file.
    state: str  #: `fresh`: the file equals a newly rendered file.
    difference: str  #: The difference as a patch; empty without a difference.


class CiCheckDocument(TypedDict):
    """`tfdock ci check`: whether pipelines are up to date."""

    problems: Sequence[Problem]  #: The files that are out of date.
    warnings: Sequence[Problem]  #: Warnings about the pipelines.
    files: Sequence[CheckedPipelineJson]  #: The files.


class ReadLogJson(TypedDict):
    """A log that was read."""

    file: str  #: The log; `-` for standard input.
    lines: int  #: The number of lines.
    #: The last line that reports success, if no error follows and no failure is known; else null.
    success: GoodEnd | None


class SuspectLineJson(TypedDict):
    """A line that looks like an error, in a log without a known failure."""

    file: str  #: The log.
    line: int  #: The line, from 1.
    text: str  #: The text of the line.


class DiagnoseDocument(TypedDict):
    """`tfdock diagnose`: the failures in logs."""

    findings: Sequence[LoggedFindingJson]  #: The first finding of each log, then the second of each, and so on.
    logs: Sequence[ReadLogJson]  #: The logs.
    suspects: Sequence[SuspectLineJson]  #: Lines to look at, in logs without a known failure.
    warnings: NotRequired[Sequence[LoggedFindingJson]]  #: With `-v`: harmless lines that look like errors.
    problems: NotRequired[Sequence[Problem]]  #: Logs that could not be read.
