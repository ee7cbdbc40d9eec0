"""Read logs from files, pipes and failed builds into a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tfdock.diagnose.diagnosis import CONFIDENCES, Diagnosis, diagnosis
from tfdock.diagnose.log_lines import PIECE, NotText, unpacked, unwrapped
from tfdock.diagnose.log_search import Diagnostician
from tfdock.errors import ProfileError, TfdockError
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.prepare import Preparer
from tfdock.plan.profile_fixes import Context

Progress = Callable[[int], None]
AddNote = Callable[[str], None]

_PASTED = 1 << 18  #: The most bytes of a log that somebody may have copied from a terminal.


def _ignore(_: object) -> None:
    pass


def diagnose_log(
    log: BinaryIO,
    knowledge: KnowledgeBase,
    context: Context | None = None,
    *,
    name: str,
    progress: Progress = _ignore,
    add_note: AddNote = _ignore,
) -> Diagnosis:
    """Read a log to its end and return what went wrong in it.

    `progress` is called with the number of bytes just read, `add_note` with problems of the log itself. Raises
    ProfileError if the log is not text; the error gives `name` as the file.
    """

    def tell(fault: str) -> None:
        # A truncated packed log still has its beginning, which often has the first failure.
        add_note(f"{fault}: only the text before this error is read")

    reader, kept = Diagnostician(knowledge), bytearray()
    # After one large block was freed, glibc keeps the memory of smaller ones (mallopt(3), M_MMAP_THRESHOLD). Else it
    # takes each block of a log from the kernel anew, which is a seventh of the time.
    bytes(8 << 20)
    try:
        for chunk in unpacked(_chunks(log, progress), tell):
            reader.feed(chunk)
            kept += chunk if len(kept) <= _PASTED else b""
    except NotText as error:
        fix = "give a file with the text that a build or a program printed"
        if error.program:
            fix = f"unpack it (`{error.program}`), then give the log that was in it"
        message = f"this is {error.kind}, not the text of a log"
        raise ProfileError.of("log-not-text", message, fix, file=name) from error
    found = diagnosis(reader.close(), knowledge, context)
    text = unwrapped(bytes(kept)) if len(kept) <= _PASTED and _surest(found) else b""
    if not text:
        return found
    again = Diagnostician(knowledge)
    again.feed(text)
    whole = diagnosis(again.close(), knowledge, context)
    return whole if _surest(whole) < _surest(found) or not found.findings else found


def _surest(found: Diagnosis) -> int:
    return min((CONFIDENCES.index(finding.confidence) for finding in found.findings), default=len(CONFIDENCES))


def _chunks(log: BinaryIO, progress: Progress) -> Iterator[bytes]:
    # `read` would wait for a whole piece while a build still prints.
    read = getattr(log, "read1", log.read)  # `read1` returns the available bytes of a pipe.
    while chunk := read(PIECE):
        progress(len(chunk))
        yield chunk


def diagnose_file(
    file: str,
    knowledge: KnowledgeBase,
    context: Context | None = None,
    *,
    progress: Progress = _ignore,
    add_note: AddNote = _ignore,
) -> Diagnosis:
    """Return what went wrong in a log file. Raises ProfileError for a file that cannot be read or is not text."""
    try:
        with Path(file).open("rb") as log:
            return diagnose_log(log, knowledge, context, name=file, progress=progress, add_note=add_note)
    except OSError as error:
        fix = "check the name, the owner and the mode"
        if isinstance(error, IsADirectoryError):
            fix = "name the logs in it"
        elif "://" in file:
            fix = "download the log first, then give the file"
        raise ProfileError.of("file-unreadable", f"cannot be read: {error.strerror}", fix, file=file) from error


def diagnose_run_log(log: Path | None, knowledge: KnowledgeBase, context: Context | None = None) -> Diagnosis | None:
    """Return the diagnosis of a run of tfdock; None if the run's log is missing or unreadable.

    A diagnosis that fails must not hide the failure of the build.
    """
    if log is None:
        return None
    try:
        return diagnose_file(str(log), knowledge, context)
    except (TfdockError, OSError):
        return None


def load_context(name: str, preparer: Preparer) -> Context | None:
    """Return a profile as the context of a diagnosis; None if its file is missing or the profile is refused."""
    try:
        return preparer.context(preparer.read(name))
    except (TfdockError, OSError):
        return None
