"""The document that a run keeps beside its log until it succeeds: its plan, its inputs, and how it failed.

    <wheelhouse>/.tfdock/<build id>/<fingerprint 12>/<run id>.run.json

It is written when the run begins, so that it exists however the run ends. The build record replaces it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from tfdock import __version__
from tfdock.bazel import output
from tfdock.errors import TfdockError, as_document
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.plan.prepare import PreparedBuild, lock_path, lock_text
from tfdock.run import journal
from tfdock.run.supervisor import STEP
from tfdock.types import BuildId
from tfdock.wheelhouse.build_record import BUILD_ID
from tfdock.wheelhouse.store import Wheelhouse

SCHEMA = "tfdock.run/1"
SUFFIX = ".run.json"
LARGEST = 16 << 20  #: Maximum of bytes read of a document.


class RunDocumentWriter:
    """Writes the document of one run, beside its log. A failed write never fails the build or hides its error."""

    def __init__(self, log: UntrustedPath, **entries: object) -> None:
        """Write what the run will do."""
        self._path = run_document_path(log)
        run = self._path.name.removesuffix(SUFFIX)
        self._document: dict[str, Any] = {"schema": SCHEMA, "tfdock": __version__, "run": run, **entries}
        self._write(started=_now())

    def failed(self, error: BaseException) -> None:
        """Write how the run failed."""
        problems = [as_document(problem) for problem in error.problems] if isinstance(error, TfdockError) else []
        entries = {"problems": problems} if problems else {"error": f"{type(error).__name__}: {error}"}
        self._write(ended=_now(), **entries)

    def succeeded(self) -> None:
        """Remove the document: the run succeeded."""
        with suppress(OSError):
            self._path.remove()

    def _write(self, **more: object) -> None:
        self._document |= more
        with suppress(OSError):
            self._path.write(json.dumps(self._document, indent=1, default=str).encode() + b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_document_path(log: UntrustedPath) -> UntrustedPath:
    """Return the path of the run document for a log."""
    return log.parent / f"{log.name.removesuffix('.log')}{SUFFIX}"


def profile_document(prepared: PreparedBuild) -> dict[str, Any]:
    """Return a profile's text when it was planned, the profiles that it extends, and its lock if it can be read."""
    profile = Path(prepared.file)
    # The path is for a later diagnosis, which reads the profile again. Reports leave it out.
    document: dict[str, Any] = {
        "file": prepared.written.name,
        "path": str(profile.absolute()),
        "text": prepared.written.text,
        "extends": dict(prepared.written.extended),
        "lock": None,
    }
    # A run without a readable lock is reported too, and its profile may be gone by now.
    with suppress(TfdockError, OSError):
        path = Path(prepared.lock.path) if prepared.lock else lock_path(prepared.file, prepared.written.options)
        document["lock"] = {"file": path.name, "text": lock_text(path), "used": prepared.lock is not None}
    return document


def failed_runs(house: Wheelhouse, state: Path, build_id: str | None = None) -> list[UntrustedPath]:
    """Return the documents of failed runs, of one build id or of all, newest first. Living runs are left out."""
    # The build id becomes part of a path below, and may be any word that somebody typed.
    if build_id is not None and not BUILD_ID.fullmatch(build_id):
        return []
    living: set[str] = set()
    with suppress(OSError):
        living = journal.living_runs(state)
    folders = house.record_folders(None if build_id is None else BuildId(build_id))
    paths = (path for folder in folders for path in folder.entries() if path.name.endswith(SUFFIX))
    over = [path for path in paths if path.name.removesuffix(SUFFIX) not in living and path.is_file()]
    # The run id begins with the time, so that names sort by age.
    return sorted(over, key=lambda path: path.name, reverse=True)


def load_document(path: UntrustedPath, schemas: Collection[str] = (SCHEMA,)) -> dict[str, Any] | None:
    """Return a JSON document of one of these schemas; None if there is none, or it is damaged."""
    document: dict[str, Any] = path.load(dict[str, Any], LARGEST) or {}
    return document if document.get("schema") in schemas else None


# --- runs that go on or have ended ----------------------------------------------------------------------------------

_TAIL = 32 << 20  #: Bytes at the end of a log in which its last step and Bazel's last count are looked for.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run that goes on, whichever command runs it, or a build that has ended."""

    run: str  #: The run.
    build_id: str  #: The build id.
    #: `stopped`: somebody asked for it; `killed`: it ended without a word.
    state: Literal["running", "built", "failed", "stopped", "killed"]
    profile: str  #: The name of the profile's file; empty for a build that ended well.
    started: str  #: When it began, such as `2026-01-31T09:30:00+00:00`.
    ended: str = ""  #: When it ended; empty while it runs.
    process: str = ""  #: The process that runs it, such as `process 4242 (tfdock build rtx3080)`.
    phase: str = ""  #: Of a run that goes on: what it does, such as `compile`.
    done: int | None = None  #: How many actions Bazel has done in that phase; null where it does not count.
    total: int | None = None  #: How many it knows of.
    action: str = ""  #: The action that Bazel named last.
    reason: str = ""  #: Why it failed.
    log: str  #: The path of the log.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reason:
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """What is taken of a run document."""

    schema: Annotated[str, {SCHEMA}.__contains__]
    build_id: str
    started: str
    ended: str = ""
    error: str = ""
    profile: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[_Reason, ...] = ()

    def state(self, log: UntrustedPath, process: str = "") -> RunState:
        """Return the state of the run, which goes on if it has a process."""
        problem = self.problems[0] if self.problems else _Reason(code="", message=self.error)
        stopped = problem.code == "interrupted"
        return RunState(
            run=log.name.removesuffix(".log"),
            build_id=self.build_id,
            state="running" if process else "killed" if not self.ended else "stopped" if stopped else "failed",
            profile=str(self.profile.get("file", "")),
            started=self.started,
            ended=self.ended,
            process=process,
            reason="" if stopped else problem.message.partition("\n")[0],
            log=str(log),
        )


def run_states(house: Wheelhouse, state: Path) -> Iterator[RunState]:
    """Yield this user's runs that go on, into any wheelhouse, then the builds of one that ended, newest first."""
    for entry, process in journal.living_entries(state):
        if log := _living_log(entry):
            noted: _Noted | None = run_document_path(log).load(_Noted, LARGEST)
            if noted:
                yield _with_progress(noted.state(log, process), log)
    ended = [*_failed(house, state), *_built(house)]
    yield from sorted(ended, key=lambda one: one.ended or one.started, reverse=True)


def _living_log(entry: journal.RunEntry) -> UntrustedPath | None:
    """Return the log of a run; None for one that is about to begin it."""
    staging = Path(entry.staging)
    if not BUILD_ID.fullmatch(entry.build_id) or staging.parts[-3:-1] != (".tfdock", "staging"):
        return None
    folders = Wheelhouse(staging.parents[2]).record_folders(BuildId(entry.build_id))
    logs = (folder / f"{entry.run}.log" for folder in folders)
    return next((log for log in logs if log.is_file()), None)


def _failed(house: Wheelhouse, state: Path) -> Iterator[RunState]:
    for path in failed_runs(house, state):
        noted: _Noted | None = path.load(_Noted, LARGEST)
        if noted:
            yield noted.state(path.parent / f"{path.name.removesuffix(SUFFIX)}.log")


def _built(house: Wheelhouse) -> Iterator[RunState]:
    for record in house.records():
        log = house.record_folder(record["build_id"], record["fingerprint"]) / record["log"]
        if log.is_file():  # none came with a wheel that was pulled
            yield RunState(
                run=log.name.removesuffix(".log"),
                build_id=record["build_id"],
                state="built",
                profile="",
                started=str(record.get("started", "")),
                ended=str(record.get("finished", "")),
                log=str(log),
            )


def _with_progress(run: RunState, log: UntrustedPath) -> RunState:
    """Return the state with what the log says: the last step, and Bazel's last count in it."""
    with suppress(OSError), log.open() as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _TAIL, 0))
        _, _, step = f"\n{file.read().decode('utf-8', 'replace')}".rpartition(f"\n{STEP}")
        title, *lines = step.split("\n")
        line = next((line for line in reversed(lines) if output.progress(line)), "")
        done, total = output.progress(line) or (None, None)
        return replace(run, phase=title.split(" ")[0], done=done, total=total, action=output.action(line))
    return run
