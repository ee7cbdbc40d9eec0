"""The journal of runs: the next run finds and removes the containers and folders of a killed run.

    <state>/runs/<run id>/{run.json, lock}

A run holds its lock while it runs; the kernel releases the lock when the process ends, even if it is killed.

Folders are removed because of an entry. So only this user may write to the journal, and no entry is trusted: the
settings and the run id decide which folders are removed. Other folders are reported, not removed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.protocol import IMAGE_LABEL, RUN_LABEL, Engine
from tfdock.errors import Locked, ProfileError
from tfdock.host.files import held, lock_holders, make_private, write_atomically
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import UntrustedPath, remove_folder

# Only names of this form count as runs: they become parts of paths and values of labels.
_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
_LARGEST_ENTRY = 1 << 20
_CONTAINER = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run and the folders it owns; its containers and volumes carry the run id as a label."""

    run: str
    build_id: str
    staging: str
    output: str
    engine: str = ""  #: The engine with the run's containers and volumes.
    #: The container of the run's last image step: the builder does not label such containers with the run.
    step: str = ""

    @classmethod
    def read(cls, folder: Path) -> RunEntry | None:
        """Return the entry in a folder of the journal, or None if the entry was not completely written.

        Fields of a later version of tfdock are left out, so that runs of that version are found too.
        """
        entry: RunEntry | None = UntrustedPath(folder, "run.json").load(cls, _LARGEST_ENTRY)
        return entry


@dataclass(frozen=True, slots=True)
class StrangePath:
    """A path in the journal that is not from this user's runs, or a folder that was not removed, with the reason."""

    path: Path
    why: str


def is_run_id(text: str) -> bool:
    """Return whether `new_run_id` could have made this name."""
    return _RUN.fullmatch(text) is not None


def new_run_id() -> str:
    """Return a name for a run that sorts by time: `20261121-104600-3fa9c1`."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


@contextmanager
def running(state: Path, entry: RunEntry) -> Iterator[None]:
    """Write the entry and hold its lock. `clean_own_run` removes the entry, or if it fails, a later run."""
    folder = entry_folder(state, entry.run)
    with ExitStack() as stack:
        with _scan_lock(state):
            # This fails if the entry exists: each run id is used once.
            folder.mkdir(mode=0o700)
            stack.enter_context(held(folder / "lock", f"the run {entry.run}", alone=True))
            # Write the entry while the scan lock is held, and before the run makes anything else.
            write_atomically(folder / "run.json", json.dumps(asdict(entry)).encode())
        yield


def staging_folder(wheelhouse: Path, run: str) -> Path:
    """Return the folder of a run's results: `Wheelhouse.staging`, which is in a package behind this one."""
    return wheelhouse / ".tfdock" / "staging" / run


def entry_folder(state: Path, run: str) -> Path:
    """Return the folder of a run's entry."""
    return state / "runs" / run


def note_step(state: Path, run: str, container: str) -> None:
    """Record the container of an image step, because a crashed engine does not remove it. Raises OSError."""
    folder = entry_folder(state, run)
    entry = RunEntry.read(folder)
    if entry is not None:
        write_atomically(folder / "run.json", json.dumps(asdict(replace(entry, step=container))).encode())


def killed_runs(state: Path) -> list[RunEntry]:
    """Return the runs that ended without cleanup: killed, or their machine stopped.

    Raises OSError, and ProfileError (`state-not-private`) if others can write to the journal.
    """
    return [run for run in _ended_runs(state) if isinstance(run, RunEntry)]


def strange_paths(state: Path) -> list[StrangePath]:
    """Return the paths in the journal that are not from this user's runs. Raises the errors of `killed_runs`."""
    return [path for path in _ended_runs(state) if isinstance(path, StrangePath)]


def _ended_runs(state: Path) -> list[RunEntry | StrangePath]:
    with _scan_lock(state):
        folders = sorted((state / "runs").iterdir())
        return [run for folder in folders if (run := _read_ended(folder)) is not None]


def _refusal(path: Path) -> str:
    """Return why a folder is not used: it is a link or another user's. Empty for a folder of this user."""
    # Do not use `stat`, which would show the folder that a link leads to.
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    return "it belongs to another user" if status.st_uid != os.geteuid() else ""


def _is_locked(folder: Path) -> bool:
    # The kernel frees the lock of a dead process, so a lock that can be taken has no owner.
    try:
        with held(folder / "lock", "the run", alone=True):
            return False
    except Locked:
        return True


def _read_ended(folder: Path) -> RunEntry | StrangePath | None:
    try:
        why = _refusal(folder)
    except FileNotFoundError:  # a run has ended meanwhile
        return None
    if not (why or _RUN.fullmatch(folder.name)):
        why = "its name is not a run id"
    if why:
        return StrangePath(folder, why)
    if _is_locked(folder):
        return None
    file = folder / "run.json"
    if os.path.lexists(file) and not _is_own_file(file):
        return StrangePath(file, "it is not a file of this user")
    entry = RunEntry.read(folder)
    if entry is None:
        # The run was killed before its entry was complete, so it created nothing else.
        remove_folder(folder)
        return None
    return entry if entry.run == folder.name else StrangePath(file, "its entry has the id of another run")


def _is_own_file(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


@contextmanager
def _scan_lock(state: Path) -> Iterator[None]:
    """Hold the lock for making and listing entries: a half-written entry must not look like a killed run."""
    make_private(state)
    make_private(state / "runs")
    _check_private(state)
    # Wait without a limit: every holder releases this lock after a moment.
    with held(state / "runs.lock", "the journal", alone=True, waiting=lambda _: None):
        yield


def _check_private(state: Path) -> None:
    """Raise ProfileError if another user could write an entry: entries lead to removals by this user."""
    # A group counts as others: its members could write an entry.
    for folder in (state, state / "runs"):
        status = folder.stat()
        writers = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not writers and status.st_uid == os.geteuid():
            continue
        who, fix = "can be written to by other users", f"run `chmod go-w {folder}`"
        if status.st_uid != os.geteuid():
            who, fix = "belongs to another user", "set TFDOCK_STATE_DIR to a folder of your own"
        raise ProfileError.of(
            "state-not-private",
            f"the state folder {folder} {who}",
            fix,
            why="the journal in this folder decides which files are removed after a killed run",
        )


def living_runs(state: Path) -> set[str]:
    """Return the ids of the runs that have not ended."""
    with _scan_lock(state):
        return {
            folder.name for folder in (state / "runs").iterdir() if _RUN.fullmatch(folder.name) and _is_alive(folder)
        }


def living_entries(state: Path) -> Iterator[tuple[RunEntry, str]]:
    """Yield the entry of each run that has not ended, oldest first, and the process that runs it."""
    for run in sorted(living_runs(state)):
        folder = entry_folder(state, run)
        if entry := RunEntry.read(folder):
            with suppress(OSError):  # it has ended meanwhile
                yield entry, lock_holders(folder / "lock")


def _is_alive(folder: Path) -> bool:
    try:
        return not _refusal(folder) and _is_locked(folder)
    except FileNotFoundError:
        return False


def clean_own_run(state: Path, entry: RunEntry, engine: Engine, *, keep_output: bool = False) -> None:
    """Remove the leftovers of this process's run: containers, staging folder, entry; the output base unless kept."""
    # Containers first: one that runs could still write to the folders.
    _clean_engine(state, entry, engine)
    if not keep_output:
        remove_folder(Path(entry.output))
    remove_folder(Path(entry.staging))
    # The entry last: if anything above fails, the next run tries again.
    _remove_entry(state, entry)


def clean_killed_run(settings: Settings, entry: RunEntry, engine: Engine) -> list[StrangePath]:
    """Remove the leftovers of a killed run: its containers, the folders that follow from the settings, and its entry.

    Return the folders that are not removed: they do not follow from the settings, or do not belong to this user. If
    there are such folders, the entry is kept. Raises OSError and TfdockError.
    """
    state = settings.state_dir
    _clean_engine(state, entry, engine)
    left = []
    # Do not use the paths of the entry: they could name any folder.
    for folder in _implied_folders(settings, entry):
        if os.path.lexists(folder):
            if why := _refusal(folder):
                left.append(StrangePath(folder, why))
            else:
                remove_folder(folder)
    noted = {Path(name) for name in (entry.output, entry.staging) if name} - {stays.path for stays in left}
    left += [StrangePath(path, "the settings do not name it") for path in sorted(noted) if os.path.lexists(path)]
    if not left:
        _remove_entry(state, entry)
    return left


def _implied_folders(settings: Settings, entry: RunEntry) -> Iterator[Path]:
    """Yield the folders of a run with these settings, and a bundle's folder, whose name has the run id."""
    yield CacheFolder(settings.cache_dir.absolute()).run_folder(entry.run)
    yield staging_folder(settings.wheelhouse.absolute(), entry.run)
    staging = Path(entry.staging)
    # A bundle may be written anywhere, so its folder is known by the run id in its name.
    if staging.is_absolute() and re.fullmatch(rf"\..+\.{re.escape(entry.run)}", staging.name, re.DOTALL):
        yield staging


def _clean_engine(state: Path, entry: RunEntry, engine: Engine) -> None:
    for container in engine.containers(RUN_LABEL, entry.run):
        if container.labels.get(RUN_LABEL) == entry.run:
            engine.remove(container.id)
    # Read the entry again: `note_step` may have changed the file meanwhile.
    _clean_step(engine, (RunEntry.read(entry_folder(state, entry.run)) or entry).step)
    # Remove volumes after containers: the engine keeps a volume that a container uses.
    for volume in engine.volumes(RUN_LABEL, entry.run):
        engine.remove_volume(volume)


def _remove_entry(state: Path, entry: RunEntry) -> None:
    with _scan_lock(state):  # a process that tests the lock creates the lock file again
        remove_folder(entry_folder(state, entry.run))


def _clean_step(engine: Engine, container: str) -> None:
    """Remove the container of an image step that an engine left behind as it died. Running containers stay."""
    step = engine.state(container) if _CONTAINER.fullmatch(container) else None
    if step and not step.running and IMAGE_LABEL in step.labels and RUN_LABEL not in step.labels:
        engine.remove(step.id)
