"""Logs, out of files, pipes and failed builds, into a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tfdock.diagnose.log_lines import PIECE, NotText, unpacked
from tfdock.errors import Problem, ProfileError, TfdockError

if TYPE_CHECKING:
    from tfdock.diagnose.diagnosis import Diagnosis
    from tfdock.knowledge.tables import KnowledgeBase
    from tfdock.plan.prepare import Preparer
    from tfdock.plan.profile_fixes import Context

Progress = Callable[[int], None]
Told = Callable[[str], None]


def diagnosed(
    log: BinaryIO,
    knowledge: KnowledgeBase,
    context: Context | None = None,
    *,
    name: str,
    progress: Progress,
    told: Told,
) -> Diagnosis:
    """What went wrong in a log that is read to its end. `progress` is given bytes, `told` what to know of the log.

    Raises ProfileError for what is not text; `name` is what it says then.
    """
    from tfdock.diagnose.diagnosis import diagnosis
    from tfdock.diagnose.log_search import Diagnostician

    reader = Diagnostician(list(knowledge.failures.values()))
    try:
        for chunk in unpacked(_chunks(log, progress)):
            reader.feed(chunk)
    except NotText as error:
        raise _not_text(error, name) from error
    except ValueError as error:
        told(f"{error}: only what comes before it is read")
    return diagnosis(reader.close(), knowledge, context)


def _not_text(found: NotText, name: str) -> ProfileError:
    fix = "name the text that a build or a program printed"
    if found.program:
        fix = f"unpack it (`{found.program}`), then name the log that was in it"
    message = f"this is {found.kind}, not the text of a log"
    return ProfileError(Problem(code="log-not-text", message=message, fix=fix, file=name))


def _chunks(log: BinaryIO, progress: Progress) -> Iterator[bytes]:
    read = getattr(log, "read1", log.read)  # a pipe gives what it has
    while chunk := read(PIECE):
        progress(len(chunk))
        yield chunk


def of_file(
    file: str, knowledge: KnowledgeBase, context: Context | None = None, *, progress: Progress, told: Told
) -> Diagnosis:
    """What went wrong in a log; raises ProfileError for a file that cannot be read, or is not text."""
    try:
        with Path(file).open("rb") as log:
            return diagnosed(log, knowledge, context, name=file, progress=progress, told=told)
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: OSError) -> ProfileError:
    fix = "check the name, the owner and the mode"
    if isinstance(error, IsADirectoryError):
        fix = "name the logs in it"
    elif "://" in file:
        fix = "download it first, then name the file"
    message = f"cannot be read: {error.strerror}"
    return ProfileError(Problem(code="file-unreadable", message=message, fix=fix, file=file))


def of_run(log: Path | None, knowledge: KnowledgeBase, context: Context | None = None) -> Diagnosis | None:
    """What went wrong in a run of ours, by its log; None where there is none, or it cannot be read any more.

    It must not hide the failure itself, so that nothing about it is one.
    """
    if log is None:
        return None
    try:
        return of_file(str(log), knowledge, context, progress=lambda _: None, told=lambda _: None)
    except (TfdockError, OSError):
        return None


def context_of(name: str, preparer: Preparer) -> Context | None:
    """A profile as the context of a diagnosis; None where it is not a file any more."""
    try:
        return preparer.context(name)
    except (TfdockError, OSError):
        return None
