"""Find and remove leftovers of killed runs on this machine: `tfdock doctor --fix`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdock.engine.protocol import Engine
from tfdock.errors import TfdockError
from tfdock.host.settings import Settings
from tfdock.run import journal
from tfdock.wheelhouse.orphans import Orphan, find_half_written, remove_orphan
from tfdock.wheelhouse.store import Wheelhouse

_AGAIN = "remove the cause, then run `tfdock doctor --fix` again"


Leftover = journal.RunEntry | journal.StrangePath | Orphan


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRemoved:
    """Why a leftover could not be removed, and how to remove it."""

    why: str
    fix: str = _AGAIN


def find_leftovers(settings: Settings) -> list[Leftover]:
    """Return the leftovers of killed runs, half-written files, and paths in the journal that belong to no run.

    A half-written file is removed only if no run holds the lock of its build. Raises OSError if the journal or the
    wheelhouse cannot be read, and ProfileError (`state-not-private`) if others can write to the journal.
    """
    runs, others = journal.killed_runs(settings.state_dir), journal.strange_paths(settings.state_dir)
    return [*runs, *others, *find_half_written(_house(settings))]


def leftover_name(leftover: Leftover) -> str:
    """Return the name of a leftover for people."""
    match leftover:
        case journal.RunEntry():
            return leftover.run
        case journal.StrangePath():
            return str(leftover.path)
        case Orphan():
            return f"half written {leftover.path}"


def remove_leftover(leftover: Leftover, settings: Settings, engine: Engine, engine_id: str) -> NotRemoved | None:
    """Remove a leftover. Return None, or the reason why the leftover was not removed."""
    try:
        match leftover:
            case journal.RunEntry():
                # Only the run's own engine can remove its containers. An entry without an engine may belong to any.
                if leftover.engine not in ("", engine_id):
                    return _on_another_engine(leftover, settings)
                if left := journal.clean_killed_run(settings, leftover, engine):
                    return _elsewhere(leftover, left)
            case journal.StrangePath():
                return NotRemoved(why=leftover.why, fix=_remove_by_hand([leftover.path]))
            case Orphan():
                remove_orphan(_house(settings), leftover)
    except TfdockError as error:
        return NotRemoved(why="; ".join(problem.message for problem in error.problems))
    except OSError as error:
        return NotRemoved(why=str(error))
    return None


def _elsewhere(entry: journal.RunEntry, left: Sequence[journal.StrangePath]) -> NotRemoved:
    """Return the remaining folders of a run, and the command that removes them, if there is one."""
    places = {}
    for path in (stays.path for stays in left):
        # Run folders have a fixed place in the wheelhouse and the cache, so the path shows which option to use.
        if path.parts[-3:] == (".tfdock", "staging", entry.run):
            places["--wheelhouse"] = path.parents[2]
        elif path.parts[-2:] == ("output", entry.run):
            places["--cache-dir"] = path.parents[1]
    why = "; ".join(f"{stays.path} is left alone: {stays.why}" for stays in left)
    # The user pastes the command, and a path from a journal may hold anything.
    options = "".join(f" {option} {shlex.quote(str(place))}" for option, place in places.items())
    command = f"if you started the run, run `tfdock doctor --fix{options}`; " if places else ""
    return NotRemoved(why=why, fix=command + _remove_by_hand([stays.path for stays in left]))


def _remove_by_hand(paths: Sequence[Path]) -> str:
    return f"look at {', '.join(map(str, paths))} and remove what is not needed"


def _on_another_engine(entry: journal.RunEntry, settings: Settings) -> NotRemoved:
    return NotRemoved(
        why="the run's containers are on another engine",
        fix=f"run `tfdock doctor --fix` with that engine (`DOCKER_HOST`); if that engine no longer exists, remove "
        f"{entry.output}, {entry.staging} and {journal.entry_folder(settings.state_dir, entry.run)}",
    )


def _house(settings: Settings) -> Wheelhouse:
    return Wheelhouse(settings.wheelhouse.absolute())
