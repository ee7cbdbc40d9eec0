"""Documents of CI pipelines and of logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tfdock.ci.pipeline import Service
from tfdock.diagnose.diagnosis import GoodEnd
from tfdock.documents.document_parts import LoggedFindingJson
from tfdock.errors import Problem


class WrittenPipelineJson(TypedDict):
    """A file of a pipeline that was rendered."""

    path: str  #: Its path.
    written: bool  #: Whether it has changed.


class CiRenderDocument(TypedDict):
    """`tfdock ci render`: the files of a pipeline."""

    service: Service  #: The service.
    files: Sequence[WrittenPipelineJson]  #: The files.
    warnings: Sequence[Problem]  #: What to know.


class CheckedPipelineJson(TypedDict):
    """A file of a pipeline that was compared."""

    service: Service  #: The service.
    path: str  #: Its path.
    state: str  #: `fresh`: it is as it would be rendered.
    difference: str  #: The difference as a patch; empty without one.


class CiCheckDocument(TypedDict):
    """`tfdock ci check`: whether pipelines are as they would be rendered."""

    problems: Sequence[Problem]  #: What is not.
    warnings: Sequence[Problem]  #: What to know.
    files: Sequence[CheckedPipelineJson]  #: The files.


class ReadLogJson(TypedDict):
    """A log that was read."""

    file: str  #: The log; `-` for standard input.
    lines: int  #: Its lines.
    #: The good end of a log without a known failure, after which no line looks like an error; null without one.
    success: GoodEnd | None


class SuspectLineJson(TypedDict):
    """A line that looks like an error, of a log in which nothing known was found."""

    file: str  #: The log.
    line: int  #: The line, from 1.
    text: str  #: Its text.


class DiagnoseDocument(TypedDict):
    """`tfdock diagnose`: the failures in logs."""

    findings: Sequence[LoggedFindingJson]  #: The findings: the first of each log, then the second.
    logs: Sequence[ReadLogJson]  #: The logs.
    suspects: Sequence[SuspectLineJson]  #: Lines to look at in logs in which nothing known was found.
    warnings: NotRequired[Sequence[LoggedFindingJson]]  #: With `--explain-warnings`: harmless lines that look bad.
    problems: NotRequired[Sequence[Problem]]  #: Logs that could not be read.
