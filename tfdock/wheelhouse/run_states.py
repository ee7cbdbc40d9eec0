"""Running, waiting and ended builds, for `status`, `logs` and `report`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from tfdock.bazel import output
from tfdock.errors import Locked
from tfdock.host.files import held, lock_holders, write_atomically
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.run import journal
from tfdock.run.supervisor import STEP
from tfdock.types import BuildId
from tfdock.wheelhouse.build_record import BUILD_ID
from tfdock.wheelhouse.store import LARGEST_RUN, RUN_SCHEMA, RUN_SUFFIX, Wheelhouse

#: `waiting`: the run has not begun; `stopped`: the user stopped it; `killed`: the run ended without a result.
State = Literal["running", "waiting", "built", "failed", "stopped", "killed"]
#: Status of a build in `tfdock.build/1` -> its state, if it has no wheel.
_WITHOUT_WHEEL: Mapping[str, State] = {
    "failed": "failed", "refused": "failed", "interrupted": "stopped"
}  # fmt: skip
_TAIL = 32 << 20  #: The last bytes of a log, which are searched for the last step and Bazel's last count.


def failed_runs(house: Wheelhouse, state: Path, build_id: str | None = None) -> list[UntrustedPath]:
    """Return the documents of failed runs of one build id or of all, newest first. Current runs are left out."""
    # The build id becomes part of a path below, and may be any typed word.
    if build_id is not None and not BUILD_ID.fullmatch(build_id):
        return []
    living: set[str] = set()
    with suppress(OSError):
        living = journal.living_runs(state)
    folders = house.record_folders(None if build_id is None else BuildId(build_id))
    paths = (path for folder in folders for path in folder.entries() if path.name.endswith(RUN_SUFFIX))
    over = [path for path in paths if path.name.removesuffix(RUN_SUFFIX) not in living and path.is_file()]
    # The run id begins with the time, so that names sort by age.
    return sorted(over, key=lambda path: path.name, reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A current run of any command, or a build that waits or has ended."""

    run: str  #: The id of the run. Before a run exists: the id of the background command, whose output is the log.
    build_id: str  #: The build id.
    state: State  #: What the build does, or how it ended.
    profile: str  #: The name of the profile's file; empty for a successful build.
    started: str  #: When the run began, such as `2026-01-31T09:30:00+00:00`.
    ended: str = ""  #: When the run ended; empty while it runs.
    process: str = ""  #: The process of the run, such as `process 4242 (tfdock build rtx3080)`.
    phase: str = ""  #: The phase of a running build, such as `compile`.
    done: int | None = None  #: How many actions Bazel has finished in this phase; null if it does not count.
    total: int | None = None  #: How many actions Bazel knows.
    action: str = ""  #: The action that Bazel named last.
    reason: str = ""  #: Why it failed.
    log: str  #: The path of the log.


_Reason = TypedDict("_Reason", {"code": str, "message": str})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """The fields of a run document that are used."""

    schema: Annotated[str, RUN_SCHEMA.__eq__]
    build_id: str
    started: str
    ended: str = ""
    error: str = ""
    profile: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[_Reason, ...] = ()

    def state(self, log: UntrustedPath, process: str = "") -> RunState:
        """Return the state of the run. The run is still running if `process` is given."""
        problem = self.problems[0] if self.problems else _Reason(code="", message=self.error)
        stopped = problem["code"] == "interrupted"
        return RunState(
            run=log.name.removesuffix(".log"),
            build_id=self.build_id,
            state="running" if process else "killed" if not self.ended else "stopped" if stopped else "failed",
            profile=str(self.profile.get("file", "")),
            started=self.started,
            ended=self.ended,
            process=process,
            reason="" if stopped else problem["message"].partition("\n")[0],
            log=str(log),
        )


def run_states(house: Wheelhouse, state: Path) -> Iterator[RunState]:
    """Yield this user's running and waiting builds of any wheelhouse, then ended builds of `house`, newest first."""
    living = list(_living(state))
    failed = (_noted(path.parent, path.name.removesuffix(RUN_SUFFIX)) for path in failed_runs(house, state))
    ended = [*chain.from_iterable(failed), *_built(house)]
    without_run = list(_without_run(UntrustedPath(state, "detached"), [*living, *ended]))
    yield from living
    yield from (run for run in without_run if run.process)
    ended += [run for run in without_run if not run.process]
    yield from sorted(ended, key=lambda run: run.ended or run.started, reverse=True)


def _living(state: Path) -> Iterator[RunState]:
    with suppress(OSError):  # without a writable state folder, nothing runs
        for entry, process in journal.living_entries(state):
            staging = Path(entry.staging)
            if BUILD_ID.fullmatch(entry.build_id) and staging.parts[-3:-1] == (".tfdock", "staging"):
                for folder in Wheelhouse(staging.parents[2]).record_folders(BuildId(entry.build_id)):
                    yield from _noted(folder, entry.run, process)


def _noted(folder: UntrustedPath, run: str, process: str = "") -> Iterator[RunState]:
    """Yield the state of a run whose document is in the folder; nothing if the document is not written yet."""
    noted: _Noted | None = (folder / f"{run}{RUN_SUFFIX}").load(_Noted, LARGEST_RUN)
    if noted:
        log = folder / f"{run}.log"
        yield _with_progress(noted.state(log, process), log) if process else noted.state(log)


def _built(house: Wheelhouse) -> Iterator[RunState]:
    for record in house.records():
        run = record["log"].removesuffix(".log")
        # A stranger's record may name any file as its log. A pulled build has no log here.
        if journal.is_run_id(run) and not house.pulled_from(record):
            yield RunState(
                run=run,
                build_id=record["build_id"],
                state="built",
                profile="",
                started=str(record.get("started", "")),
                ended=str(record.get("finished", "")),
                log=str(house.record_folder(record["build_id"], record["fingerprint"]) / record["log"]),
            )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class BuildNotes:
    """Lists builds of a background command that wait, or ended without a run: in a file beside the command's output.

    A failed write never fails a build.
    """

    def __init__(self, output: Path, profiles: Mapping[BuildId, str]) -> None:
        """Record that the builds of these profiles wait."""
        self._file, waiting = output.with_suffix(".json"), partial(RunState, run=output.stem, log=str(output))
        self._runs = {
            str(name): waiting(build_id=name, state="waiting", profile=Path(profile).name, started=_now())
            for name, profile in profiles.items()
        }
        self._write()

    def end(self, result: Mapping[str, Any]) -> None:
        """Record the end of a build, given as a row of `tfdock.build/1`."""
        run, state = self._runs.pop(result["build_id"]), _WITHOUT_WHEEL.get(result["status"])
        if state and not result["log"]:
            reason = result["problems"][0].message.partition("\n")[0]
            self._runs[run.build_id] = replace(run, state=state, ended=_now(), reason=reason)
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            text = json.dumps([asdict(run) for run in self._runs.values()])
            write_atomically(self._file, text.encode(), durable=False)


def _without_run(folder: UntrustedPath, runs: Sequence[RunState]) -> Iterator[RunState]:
    """Yield the builds of background commands that wait, or ended before they had a run."""
    for file in folder.entries():
        noted: list[RunState] | None = file.load(list[RunState], LARGEST_RUN) if file.name.endswith(".json") else None
        process = _writer(file.path.with_suffix(".txt")) if noted else ""
        for build in noted or ():
            # The names of commands and runs begin with their start time.
            if any(run.build_id == build.build_id and run.run[:15] >= build.run[:15] for run in runs):
                continue
            if build.state == "waiting":
                yield replace(build, state="waiting" if process else "killed", process=process)
            else:
                yield build


def _writer(output: Path) -> str:
    """Return the process that writes the output of a background command; empty if it has ended."""
    with suppress(OSError, Locked), held(output, "the output", alone=False):
        return ""
    return lock_holders(output)


def _with_progress(run: RunState, log: UntrustedPath) -> RunState:
    """Return the state with facts from the log: the last step, and Bazel's last count."""
    with suppress(OSError), log.open() as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _TAIL, 0))
        _, _, step = f"\n{file.read().decode('utf-8', 'replace')}".rpartition(f"\n{STEP}")
        title, *lines = step.split("\n")
        line = next((line for line in reversed(lines) if output.progress(line)), "")
        done, total = output.progress(line) or (None, None)
        return replace(run, phase=title.split(" ")[0], done=done, total=total, action=output.action(line))
    return run
