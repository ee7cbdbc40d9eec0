"""Watch free disk space while a build runs, and stop the build before a disk is full."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdock.errors import DiskFull
from tfdock.host.files import ways_to_make_room
from tfdock.host.hardware import nearest
from tfdock.host.untrusted_folders import folder_size
from tfdock.plan.resources import least_free

_GIB = 1 << 30
_MOST_NAMED = 4  #: Number of the largest folders of a cache that an error names.


@dataclass
class DiskSpace:
    """The disks that a build writes to, by the names of its folders.

    `usage` returns total, used and free bytes of a path. After a disk was nearly full, `is_short` stays true.
    """

    places: Mapping[str, Path]
    # The folder may not exist yet: the nearest one above it is on the same disk.
    usage: Callable[[Path], tuple[int, int, int]] = field(default=lambda path: shutil.disk_usage(nearest(path)))
    short: str | None = None  #: The name of the folder whose disk is nearly full; None while all have space.

    def is_short(self) -> bool:
        """Return whether a disk has less space than is safe. After the first True, the result is always True."""
        # A stopped build frees space. The reason for the end of the command must not change.
        if self.short is None:
            self.short = next((name for name, path in self.places.items() if self._nearly_full(path)), None)
        return self.short is not None

    def _nearly_full(self, path: Path) -> bool:
        total, free = self._total_and_free(path) or (0, 0)  # a disk that cannot be read is no reason to stop
        return free < least_free(total)

    def _total_and_free(self, path: Path) -> tuple[int, int] | None:
        """Return total and free bytes; None if they cannot be read."""
        try:
            total, _, free = self.usage(path)
        except OSError:
            return None
        return total, free

    def _describe_free(self, path: Path) -> str:
        seen = self._total_and_free(path)
        if seen is None:
            return "no measurable free space"
        total, free = seen
        least = _format_size(least_free(total))
        return f"{_format_size(free)} of {_format_size(total)} left, but {least} must stay free"

    def error(self, phase: str, progress: str, kept: str) -> DiskFull:
        """Return the error of a stopped build: free space of every disk, large folders of the cache, what to delete.

        `progress` is the state of the build, `kept` names the work that is kept.
        """
        assert self.short is not None
        path = self.places[self.short]
        return DiskFull.of(
            "disk-full",
            f"phase {phase} was stopped{progress}, before the disk of {self.short} ({path}) was full: "
            f"{self._describe_free(path)}; {kept}",
            f"free space on that disk: {ways_to_make_room(self.short, self.places)}; then run the same command "
            "again, it resumes from the cache",
            why=self._describe_use(),
        )

    def _describe_use(self) -> str:
        parts_text = [f"{name} ({path}) has {self._describe_free(path)}" for name, path in self.places.items()]
        cache = self.places.get("the cache")
        parts = sorted(folder_sizes(cache).items(), key=lambda part: -part[1]) if cache else []
        taken = ", ".join(f"{name} {_format_size(size)}" for name, size in parts[:_MOST_NAMED] if size)
        return "; ".join([*parts_text, *([f"in the cache: {taken}"] if taken else [])])


def folder_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each subfolder, by name. Files that vanish meanwhile are not counted."""
    return {part.name: folder_size(part) for part in sorted(folder.glob("*/"))}


def _format_size(count: int) -> str:
    """Return a size as text, in MiB for small disks."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / (1 << 20):.1f} MiB"
