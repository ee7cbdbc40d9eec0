"""Notes about an accepted profile before its build."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from tfdock.errors import joined
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import pip_install, same_official
from tfdock.types import Version

if TYPE_CHECKING:
    from tfdock.plan.prepare import Preparer, WrittenProfile
    from tfdock.profile.profile import Profile
    from tfdock.resolve.resolution import Resolution


def official_note(base: KnowledgeBase, profile: Profile, resolution: Resolution) -> str:
    """Return the note that an official wheel makes the build unnecessary; empty without such a wheel."""
    same = same_official(base, profile, resolution)
    if not same:
        return ""
    wheel, gpus, limited = same
    beside = f"; {' and '.join(wheel.needs)} must be installed beside it" if wheel.needs else ""
    asked = ["tfdock", "advise", "--gpu", ",".join(gpus), "--tensorflow", wheel.version]
    limits = f"; `{shlex.join(asked)}` prints the limits of this wheel, and its requirements for the GPU"
    runs = f"the official wheel of TensorFlow {wheel.version} runs on {joined(gpus)}"
    return f"no build is needed: {runs}: `{pip_install(wheel)}`{beside}{limits if limited else ''}"


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
