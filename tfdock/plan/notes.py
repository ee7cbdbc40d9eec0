"""What somebody should know of a profile before a build that it is accepted for."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from tfdock.errors import joined
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.advice import pip_install, same_official

if TYPE_CHECKING:
    from tfdock.plan.prepare import Preparer, WrittenProfile
    from tfdock.profile.profile import Profile
    from tfdock.resolve.resolution import Resolution


def official_note(base: KnowledgeBase, profile: Profile, resolution: Resolution) -> str:
    """Return the line which says that an official wheel does what a build would do; empty where none does."""
    same = same_official(base, profile, resolution)
    if not same:
        return ""
    wheel = same.wheel
    beside = f"; {' and '.join(wheel.needs)} must be installed beside it" if wheel.needs else ""
    asked = ["tfdock", "advise", "--gpu", ",".join(same.gpus), "--tensorflow", wheel.version]
    more = f"; `{shlex.join(asked)}` says its limits, and what it needs to see the GPU" if same.limited else ""
    runs = f"the official wheel of TensorFlow {wheel.version} runs on {joined(same.gpus)}"
    return f"no build is needed: {runs}: `{pip_install(wheel)}`{beside}{more}"


def python_note(preparer: Preparer, written: WrittenProfile, resolution: Resolution) -> str:
    """Return the line which says that a wheel is for another Python than this one; empty where somebody chose it."""
    here = "{}.{}".format(*sys.version_info)
    chosen = not preparer.chose_python(written.file) or here not in resolution.release.pythons
    if chosen or resolution.python == here:
        return ""
    newest = f"Python {resolution.python}, the newest that TensorFlow {resolution.version} takes"
    return f"the wheel is for {newest}; tfdock itself runs with Python {here}: `--python {here}` builds for that"


def notes_of(preparer: Preparer, written: WrittenProfile, resolution: Resolution) -> tuple[str, ...]:
    """Return what somebody should know before a build: an official wheel does it, or it is for another Python."""
    official = official_note(preparer.knowledge, written.profile, resolution)
    return tuple(filter(None, (official, python_note(preparer, written, resolution))))
