"""Free disk while a build runs: looked at whenever it ticks, so that the build is stopped before anything is full."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.errors import DiskFull, Problem
from tfdock.host.hardware import nearest
from tfdock.host.untrusted_folders import folder_size
from tfdock.plan.resources import least_free

_GIB = 1 << 30
_TOLD = 4
"""How many of the largest folders of a cache are named."""


@dataclass
class DiskSpace:
    """The disks that a build writes to, by what lies there. `usage` gives total, used and free bytes of a path."""

    places: Mapping[str, Path]
    usage: Callable[[Path], tuple[int, int, int]] = field(default=lambda path: shutil.disk_usage(nearest(path)))
    short: str | None = None
    """Which of the places is nearly full, once one is."""

    def is_short(self) -> bool:
        """Whether one of them has less left than is safe. Once it is so, it stays so."""
        if self.short is None:
            self.short = next((name for name, path in self.places.items() if self._nearly_full(path)), None)
        return self.short is not None

    def _nearly_full(self, path: Path) -> bool:
        total, free = self._looked_at(path) or (0, 0)  # what cannot be looked at is no reason to stop
        return free < least_free(total)

    def _looked_at(self, path: Path) -> tuple[int, int] | None:
        """Total and free bytes; None where nobody can tell."""
        try:
            total, _, free = self.usage(path)
        except OSError:
            return None
        return total, free

    def _left(self, path: Path) -> str:
        seen = self._looked_at(path)
        if seen is None:
            return "nothing left that can be looked at"
        total, free = seen
        return f"{_size(free)} of {_size(total)} left, of which {_size(least_free(total))} shall stay free"

    def error(self, phase: str, came: str, kept: str) -> DiskFull:
        """Why the build was stopped: what is left of every disk, what takes room in the cache, and what to delete.

        `came` says how far the build had come, `kept` what is left of its work.
        """
        assert self.short is not None
        path = self.places[self.short]
        return DiskFull(
            Problem(
                code="disk-full",
                message=f"phase {phase} was stopped{came}, before the disk of {self.short} ({path}) was full: "
                f"{self._left(path)}; {kept}",
                why=self._what_is_there(),
                fix="delete what is not needed: `tfdock cache prune` in the cache, `docker system prune` in the "
                "engine; then run the same command again, it goes on from the cache",
            )
        )

    def _what_is_there(self) -> str:
        told = [f"{name} ({path}) has {self._left(path)}" for name, path in self.places.items()]
        cache = self.places.get("the cache")
        parts = sorted(folder_sizes(cache).items(), key=lambda part: -part[1]) if cache else []
        taken = ", ".join(f"{name} {_size(size)}" for name, size in parts[:_TOLD] if size)
        return "; ".join([*told, *([f"in the cache: {taken}"] if taken else [])])


def folder_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of the files in each folder in there, by its name; what vanishes meanwhile counts nothing."""
    return {one.name: folder_size(one) for one in sorted(folder.glob("*/"))}


def _size(count: int) -> str:
    """Bytes for people, of small disks too."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / (1 << 20):.1f} MiB"
