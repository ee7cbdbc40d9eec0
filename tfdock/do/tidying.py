"""What runs that were killed left on this machine, and removing it: `tfdock doctor --fix`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfdock.do import journal
from tfdock.do.engine import Engine
from tfdock.do.settings import Settings
from tfdock.do.workspace import Wheelhouse
from tfdock.errors import Locked, TfdockError
from tfdock.model import BuildId

_HALF_WRITTEN = re.compile(r"\..+\.[0-9]+-[0-9]+")
"""What `write_atomically` writes before it renames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that is left of a run: what it is for people, and the journal's entry or the file."""

    what: str
    entry: journal.RunEntry | None = None
    path: Path | None = None


def found(settings: Settings) -> list[Found]:
    """What is left of runs that are over; raises OSError where the journal cannot be looked at.

    A file half written counts only where nobody holds the build that it belongs to.
    """
    runs = [Found(what=entry.run, entry=entry) for entry in journal.leftovers(settings.state_dir)]
    house = Wheelhouse(settings.wheelhouse.absolute())
    return [*runs, *(Found(what=f"half written {path}", path=path) for path in _half_written(house))]


def removed(one: Found, settings: Settings, engine: Engine, engine_id: str) -> str:
    """Remove it; the reason where that cannot be done now, else nothing."""
    try:
        if one.entry is not None:
            if one.entry.engine not in ("", engine_id):
                return "its containers are on another engine"
            journal.clean(settings.state_dir, one.entry, engine)
        elif one.path is not None:
            one.path.unlink(missing_ok=True)
    except (TfdockError, OSError) as error:
        return str(error)
    return ""


def _half_written(house: Wheelhouse) -> Iterator[Path]:
    for folder in sorted(house.root.glob(".tfdock/tf*/*/")):
        files = [path for path in folder.glob(".*") if _HALF_WRITTEN.fullmatch(path.name) and path.is_file()]
        if not files:
            continue
        with suppress(Locked), house.locked(BuildId(folder.parent.name), patience=0):
            yield from files
    files = [path for path in house.root.glob(".tf*") if _HALF_WRITTEN.fullmatch(path.name) and path.is_file()]
    if files:
        with house.changing():
            yield from (path for path in files if path.exists())
