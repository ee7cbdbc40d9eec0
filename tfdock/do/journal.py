"""The journal of runs: what a run that was killed left behind, and how the next one cleans it up.

    <state>/runs/<run id>/{run.json, lock}

A run holds its lock while it lives; the kernel frees it when the process dies, however it dies.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import filelock

from tfdock.do.engine import IMAGE_LABEL, RUN_LABEL, Engine
from tfdock.do.workspace import remove_folder, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run and the folders it owns; its containers and volumes carry the run id as a label."""

    run: str
    build_id: str
    staging: str
    output: str
    engine: str = ""
    """The engine that has its containers and volumes."""
    step: str = ""
    """The container of the last step of its image: the builder labels those with no run."""

    @classmethod
    def read(cls, folder: Path) -> RunEntry | None:
        """The entry in a folder of the journal, or None if it was never completely written.

        What a later version has noted besides is left out: what that run left is to be found all the same.
        """
        try:
            noted = json.loads((folder / "run.json").read_bytes())
            return cls(**{one.name: noted[one.name] for one in fields(cls) if one.name in noted})
        except (OSError, ValueError, TypeError):
            return None


def new_run_id() -> str:
    """A name for a run that sorts by time: `20261121-104600-3fa9c1`."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


@contextmanager
def running(state: Path, entry: RunEntry) -> Iterator[None]:
    """Write the entry and hold its lock. `clean` removes it; when that could not be done, a later run does."""
    folder = folder_of(state, entry.run)
    with _scan_lock(state):
        folder.mkdir(parents=True)
        lock = filelock.FileLock(folder / "lock")
        lock.acquire()
        write_atomically(folder / "run.json", json.dumps(asdict(entry)).encode())
    try:
        yield
    finally:
        lock.release()


def folder_of(state: Path, run: str) -> Path:
    """Where the entry of a run lies."""
    return state / "runs" / run


def stepped(state: Path, run: str, container: str) -> None:
    """Note the container of a step of a run's image: an engine that dies leaves it behind; raises OSError."""
    folder = folder_of(state, run)
    entry = RunEntry.read(folder)
    if entry is not None:
        write_atomically(folder / "run.json", json.dumps(asdict(replace(entry, step=container))).encode())


def leftovers(state: Path) -> list[RunEntry]:
    """Runs that are over but did not clean up: killed, or their machine went down."""
    with _scan_lock(state):
        return [entry for folder in sorted((state / "runs").glob("*/")) if (entry := _abandoned(folder))]


def _lives(folder: Path) -> bool:
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    lock.release()
    return False


def _abandoned(folder: Path) -> RunEntry | None:
    if _lives(folder):
        return None
    entry = RunEntry.read(folder)
    if entry is None:
        remove_folder(folder)
    return entry


def _scan_lock(state: Path) -> filelock.BaseFileLock:
    """Held while entries are made or looked through, so that nobody takes a half made one for abandoned."""
    (state / "runs").mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(state / "runs.lock")


def living(state: Path) -> set[str]:
    """The runs that are not over."""
    with _scan_lock(state):
        return {folder.name for folder in (state / "runs").glob("*/") if _lives(folder)}


def clean(state: Path, entry: RunEntry, engine: Engine, *, keep_output: bool = False) -> None:
    """Remove what a run left: its containers, its output base (or not), its staging folder, its entry."""
    for container in engine.containers(RUN_LABEL, entry.run):
        engine.remove(container.id)
    _clean_step(engine, (RunEntry.read(folder_of(state, entry.run)) or entry).step)
    for volume in engine.volumes(RUN_LABEL, entry.run):
        engine.remove_volume(volume)
    if not keep_output:
        remove_folder(Path(entry.output))
    remove_folder(Path(entry.staging))
    with _scan_lock(state):  # whoever looks whether the run lives makes its lock file anew
        remove_folder(folder_of(state, entry.run))


def _clean_step(engine: Engine, container: str) -> None:
    """Remove the step of an image that an engine left behind as it died; one that runs is not that."""
    step = engine.state(container) if container else None
    if step and not step.running and IMAGE_LABEL in step.labels and RUN_LABEL not in step.labels:
        engine.remove(step.id)
