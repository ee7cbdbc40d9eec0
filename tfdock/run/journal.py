"""The journal of runs: what a run that was killed left behind, and how the next one cleans it up.

    <state>/runs/<run id>/{run.json, lock}

A run holds its lock while it lives; the kernel frees it when the process dies, however it dies.

An entry decides what is removed from this machine. So only this user may write to the journal, and an entry is not
believed: the folders to remove follow from the settings and the run id. Folders elsewhere are told and left alone.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import filelock

from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.protocol import IMAGE_LABEL, RUN_LABEL, Engine
from tfdock.errors import Problem, ProfileError
from tfdock.host.files import make_private, write_atomically
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import remove_folder

ANALYSIS = "analysis"
"""The folder of the state where the logs of analyses lie, and what their containers write."""
_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
_CONTAINER = re.compile(r"[0-9a-f]{12,64}")


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
            known = {one.name: noted[one.name] for one in fields(cls) if one.name in noted}
            return cls(**known) if all(isinstance(value, str) for value in known.values()) else None
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class StrangePath:
    """A path in the journal that no run of this user can have made, or a folder that is not removed; and why."""

    path: Path
    why: str


def new_run_id() -> str:
    """A name for a run that sorts by time: `20261121-104600-3fa9c1`."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


@contextmanager
def running(state: Path, entry: RunEntry) -> Iterator[None]:
    """Write the entry and hold its lock. `clean` removes it; when that could not be done, a later run does."""
    folder = folder_of(state, entry.run)
    with _scan_lock(state):
        folder.mkdir(mode=0o700)
        lock = filelock.FileLock(folder / "lock")
        lock.acquire()
        write_atomically(folder / "run.json", json.dumps(asdict(entry)).encode())
    try:
        yield
    finally:
        lock.release()


def staging_folder(wheelhouse: Path, run: str) -> Path:
    """Return where a run's containers write, on the wheelhouse's own file system so that the last move is atomic."""
    return wheelhouse / ".tfdock" / "staging" / run


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
    """Return the runs that are over but did not clean up: killed, or their machine went down.

    Raises ProfileError (`state-not-private`) where others can write to the journal; OSError.
    """
    return [one for one in _over(state) if isinstance(one, RunEntry)]


def strange(state: Path) -> list[StrangePath]:
    """Return what lies in the journal and is no entry of this user's runs. Raises as `leftovers`."""
    return [one for one in _over(state) if isinstance(one, StrangePath)]


def _over(state: Path) -> list[RunEntry | StrangePath]:
    with _scan_lock(state):
        folders = sorted((state / "runs").iterdir())
        return [found for folder in folders if (found := _abandoned(folder)) is not None]


def _refusal(path: Path) -> str:
    """Why a folder is not used: it is a link or another user's. Empty where it is a folder of this user."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    return "it belongs to another user" if found.st_uid != os.geteuid() else ""


def _lives(folder: Path) -> bool:
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    lock.release()
    return False


def _abandoned(folder: Path) -> RunEntry | StrangePath | None:
    try:
        why = _refusal(folder)
    except FileNotFoundError:  # a run has ended meanwhile
        return None
    if not (why or _RUN.fullmatch(folder.name)):
        why = "its name is not a run id"
    if why:
        return StrangePath(folder, why)
    if _lives(folder):
        return None
    file = folder / "run.json"
    if os.path.lexists(file) and not _is_own_file(file):
        return StrangePath(file, "it is not a file of this user")
    entry = RunEntry.read(folder)
    if entry is None:
        remove_folder(folder)
        return None
    return entry if entry.run == folder.name else StrangePath(file, "it names another run")


def _is_own_file(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _scan_lock(state: Path) -> filelock.BaseFileLock:
    """Held while entries are made or looked through, so that nobody takes a half made one for abandoned."""
    make_private(state)
    make_private(state / "runs")
    _check_private(state)
    return filelock.FileLock(state / "runs.lock")


def _check_private(state: Path) -> None:
    """Raise ProfileError where another user could write an entry, which decides what this user removes."""
    for folder in (state, state / "runs"):
        found = folder.stat()
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not others and found.st_uid == os.geteuid():
            continue
        who, fix = "can be written to by other users", f"run `chmod go-w {folder}`"
        if found.st_uid != os.geteuid():
            who, fix = "belongs to another user", "set TFDOCK_STATE_DIR to a folder of your own"
        raise ProfileError(
            Problem(
                code="state-not-private",
                message=f"the state folder {folder} {who}",
                why="the journal in it says what is removed after a run was killed",
                fix=fix,
            )
        )


def living(state: Path) -> set[str]:
    """The runs that are not over."""
    with _scan_lock(state):
        return {one.name for one in (state / "runs").iterdir() if _RUN.fullmatch(one.name) and _is_alive(one)}


def _is_alive(folder: Path) -> bool:
    try:
        return not _refusal(folder) and _lives(folder)
    except FileNotFoundError:
        return False


def clean(state: Path, entry: RunEntry, engine: Engine, *, keep_output: bool = False) -> None:
    """Remove what this process's own run leaves: containers, the output base (or not), staging folder, entry."""
    _clean_engine(state, entry, engine)
    if not keep_output:
        remove_folder(Path(entry.output))
    remove_folder(Path(entry.staging))
    _forget(state, entry)


def clean_left(settings: Settings, entry: RunEntry, engine: Engine) -> list[StrangePath]:
    """Remove what another process's run left: its containers, the folders that the settings imply, and its entry.

    Return the folders that stay: the entry names them and the settings do not, or they are not folders of this user.
    The entry stays with them. Raises OSError and TfdockError.
    """
    state = settings.state_dir
    _clean_engine(state, entry, engine)
    left = []
    for folder in _implied(settings, entry):
        if os.path.lexists(folder):
            if why := _refusal(folder):
                left.append(StrangePath(folder, why))
            else:
                remove_folder(folder)
    noted = {Path(name) for name in (entry.output, entry.staging) if name} - {one.path for one in left}
    left += [StrangePath(path, "the settings do not name it") for path in sorted(noted) if os.path.lexists(path)]
    if not left:
        _forget(state, entry)
    return left


def _implied(settings: Settings, entry: RunEntry) -> Iterator[Path]:
    """Return the folders that a run has with these settings, and the folder of a bundle: its name has the run id."""
    yield CacheFolder(settings.cache_dir.absolute()).output(entry.run)
    for root in (settings.wheelhouse, settings.state_dir / ANALYSIS):
        yield staging_folder(root.absolute(), entry.run)
    staging = Path(entry.staging)
    if staging.is_absolute() and re.fullmatch(rf"\..+\.{re.escape(entry.run)}", staging.name, re.DOTALL):
        yield staging


def _clean_engine(state: Path, entry: RunEntry, engine: Engine) -> None:
    for container in engine.containers(RUN_LABEL, entry.run):
        if container.labels.get(RUN_LABEL) == entry.run:
            engine.remove(container.id)
    _clean_step(engine, (RunEntry.read(folder_of(state, entry.run)) or entry).step)
    for volume in engine.volumes(RUN_LABEL, entry.run):
        engine.remove_volume(volume)


def _forget(state: Path, entry: RunEntry) -> None:
    with _scan_lock(state):  # whoever looks whether the run lives makes its lock file anew
        remove_folder(folder_of(state, entry.run))


def _clean_step(engine: Engine, container: str) -> None:
    """Remove the step of an image that an engine left behind as it died; one that runs is not that."""
    step = engine.state(container) if _CONTAINER.fullmatch(container) else None
    if step and not step.running and IMAGE_LABEL in step.labels and RUN_LABEL not in step.labels:
        engine.remove(step.id)
