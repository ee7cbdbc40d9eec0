"""Check the target file of an archive of images or of a bundle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tfdock.errors import ProfileError


def check_target(target: Path, code: str, is_ours: Callable[[BinaryIO], bool]) -> None:
    """Raise ProfileError early for a file that cannot be written, or that is not ours to replace.

    `is_ours` is called with the file that has the name now.
    """
    folder = target.absolute().parent
    # Asked before hours of work. root passes, and learns the rest when it writes.
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why, fix = f"{folder} is no folder that can be written to", "make the folder, or give another"
    elif target.exists() and not _is_replaceable(target, is_ours):
        why, fix = "something else has that name, and is not replaced", "remove it, or give another name"
    else:
        return
    raise ProfileError.of(code, f"{target} cannot be written: {why}", fix)


def _is_replaceable(target: Path, is_ours: Callable[[BinaryIO], bool]) -> bool:
    try:
        with target.open("rb") as file:
            return is_ours(file)
    # What cannot be read is not known to be ours.
    except OSError:
        return False
