"""What runs that were killed left on this machine, and removing it: `tfdock doctor --fix`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdock.engine.protocol import Engine
from tfdock.errors import TfdockError
from tfdock.host.settings import Settings
from tfdock.run import journal
from tfdock.wheelhouse.orphans import Orphan, find_half_written, remove_half_written
from tfdock.wheelhouse.store import Wheelhouse

_AGAIN = "run `tfdock doctor --fix` again when that is mended"


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledRun:
    """Something that is left of a run: what it is for people, and the journal's entry or the file."""

    what: str
    entry: journal.RunEntry | None = None
    half: Orphan | None = None
    strange: journal.StrangePath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRemoved:
    """Why something could not be removed now, and what somebody can do."""

    why: str
    fix: str = _AGAIN


def found(settings: Settings) -> list[KilledRun]:
    """What is left of runs that are over, and what lies in the journal and is no run's.

    A file half written counts only where nobody holds the build that it belongs to. Raises OSError where journal or
    wheelhouse cannot be looked at, and ProfileError (`state-not-private`) where others can write to the journal.
    """
    runs = [KilledRun(what=entry.run, entry=entry) for entry in journal.killed_runs(settings.state_dir)]
    others = [KilledRun(what=str(one.path), strange=one) for one in journal.strange_paths(settings.state_dir)]
    halves = find_half_written(_house(settings))
    return [*runs, *others, *(KilledRun(what=f"half written {one.path}", half=one) for one in halves)]


def removed(one: KilledRun, settings: Settings, engine: Engine, engine_id: str) -> NotRemoved | None:
    """Remove it; why not, where that cannot be done now."""
    try:
        if one.entry is not None:
            if one.entry.engine not in ("", engine_id):
                return _of_another_engine(one.entry, settings)
            if left := journal.clean_killed_run(settings, one.entry, engine):
                return _elsewhere(one.entry, left)
        elif one.strange is not None:
            return NotRemoved(why=one.strange.why, fix=_look([one.strange.path]))
        elif one.half is not None:
            remove_half_written(_house(settings), one.half)
    except TfdockError as error:
        return NotRemoved(why="; ".join(problem.message for problem in error.problems))
    except OSError as error:
        return NotRemoved(why=str(error))
    return None


def _elsewhere(entry: journal.RunEntry, left: Sequence[journal.StrangePath]) -> NotRemoved:
    """Say which folders of a run stay, and the command that removes them, where there is one."""
    places = {}
    for path in (one.path for one in left):
        if path.parts[-3:] == (".tfdock", "staging", entry.run):
            places["--wheelhouse"] = path.parents[2]
        elif path.parts[-2:] == ("output", entry.run):
            places["--cache-dir"] = path.parents[1]
    why = "; ".join(f"{one.path} is left alone: {one.why}" for one in left)
    options = "".join(f" {option} {shlex.quote(str(place))}" for option, place in places.items())
    command = f"if the run was yours, run `tfdock doctor --fix{options}`; " if places else ""
    return NotRemoved(why=why, fix=command + _look([one.path for one in left]))


def _look(paths: Sequence[Path]) -> str:
    return f"look at {', '.join(map(str, paths))}, and remove it yourself"


def _of_another_engine(entry: journal.RunEntry, settings: Settings) -> NotRemoved:
    return NotRemoved(
        why="its containers are on another engine",
        fix=f"run `tfdock doctor --fix` with that engine (`DOCKER_HOST`); if it is gone for good, remove "
        f"{entry.output}, {entry.staging} and {journal.entry_folder(settings.state_dir, entry.run)}",
    )


def _house(settings: Settings) -> Wheelhouse:
    return Wheelhouse(settings.wheelhouse.absolute())
