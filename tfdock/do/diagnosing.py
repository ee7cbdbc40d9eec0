"""Logs, out of files, pipes and failed builds, into a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tfdock.errors import Problem, ProfileError, TfdockError
from tfdock.inspect.log_lines import PIECE, unpacked

if TYPE_CHECKING:
    from tfdock.decide.diagnosis import Diagnosis
    from tfdock.decide.mending import Context
    from tfdock.do.prepare import Preparer
    from tfdock.read.knowledge import KnowledgeBase

Progress = Callable[[int], None]
Told = Callable[[str], None]


def diagnosed(
    log: BinaryIO, knowledge: KnowledgeBase, context: Context | None = None, *, progress: Progress, told: Told
) -> Diagnosis:
    """What went wrong in a log that is read to its end. `progress` is given bytes, `told` what to know of the log."""
    from tfdock.decide.diagnosis import diagnosis
    from tfdock.inspect.diagnose import Diagnostician

    reader = Diagnostician(list(knowledge.failures.values()))
    try:
        for chunk in unpacked(_chunks(log, progress)):
            reader.feed(chunk)
    except ValueError as error:
        told(f"{error}: only what comes before it is read")
    return diagnosis(reader.close(), knowledge, context)


def _chunks(log: BinaryIO, progress: Progress) -> Iterator[bytes]:
    read = getattr(log, "read1", log.read)  # a pipe gives what it has
    while chunk := read(PIECE):
        progress(len(chunk))
        yield chunk


def of_file(
    path: Path, knowledge: KnowledgeBase, context: Context | None = None, *, progress: Progress, told: Told
) -> Diagnosis:
    """What went wrong in a log; raises ProfileError for a file that cannot be read."""
    try:
        with path.open("rb") as log:
            return diagnosed(log, knowledge, context, progress=progress, told=told)
    except OSError as error:
        message, fix = f"{path}: {error.strerror}", "check the name, the owner and the mode"
        raise ProfileError(Problem(code="file-unreadable", message=message, fix=fix, file=str(path))) from error


def of_run(log: Path | None, knowledge: KnowledgeBase, context: Context | None = None) -> Diagnosis | None:
    """What went wrong in a run of ours, by its log; None where there is none, or it cannot be read any more.

    It must not hide the failure itself, so that nothing about it is one.
    """
    if log is None:
        return None
    try:
        return of_file(log, knowledge, context, progress=lambda _: None, told=lambda _: None)
    except (TfdockError, OSError):
        return None


def context_of(name: str, preparer: Preparer) -> Context | None:
    """A profile as the context of a diagnosis; None where it is not a file any more."""
    try:
        return preparer.context(name)
    except (TfdockError, OSError):
        return None
