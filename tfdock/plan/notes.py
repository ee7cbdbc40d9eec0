"""Notes about an accepted profile before its build."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tfdock.resolve.advice import official_note
from tfdock.types import Version

if TYPE_CHECKING:
    from tfdock.plan.prepare import Preparer, WrittenProfile
    from tfdock.resolve.resolution import Resolution


def python_note(preparer: Preparer, written: WrittenProfile, resolution: Resolution) -> str:
    """Return the note that the wheel is not for the Python that runs tfdock; empty if the user chose a Python."""
    here = "{}.{}".format(*sys.version_info)
    chosen = not preparer.chose_python(written.file) or here not in resolution.release.pythons
    if chosen or resolution.python == here:
        return ""
    newest = f"Python {resolution.python}, the newest that TensorFlow {resolution.version} accepts"
    if resolution.python != max(resolution.release.pythons, key=Version):
        newest = f"Python {resolution.python}, the newest for which an image is known"
    return (
        f"the wheel is for {newest}; tfdock itself runs with Python {here}: `--python {here}` builds for that Python"
    )


def notes_of(preparer: Preparer, written: WrittenProfile, resolution: Resolution) -> tuple[str, ...]:
    """Return the notes before a build: an official wheel is enough, or the wheel is for another Python."""
    official = official_note(preparer.knowledge, written.profile, resolution)
    return tuple(filter(None, (official, python_note(preparer, written, resolution))))
