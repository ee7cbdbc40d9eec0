"""Check who can write to a folder. Content that another user could have written is not trusted."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

_ROOT = 0


def other_writers(path: Path, *, reachable: bool = True) -> str:
    """Return who else can write to a folder, in words; "" where only this user and root can. Raises OSError.

    Where `reachable` is false, others cannot come so far, and the mode of the folder does not count. Of a link, the
    link and the folder that it leads to both count.
    """
    trusted, link, found = (_ROOT, os.geteuid()), path.lstat(), path.stat()
    if link.st_uid not in trusted or found.st_uid not in trusted:
        return "belongs to another user"
    others = stat.S_IWOTH | (0 if _is_own_group(found.st_gid) else stat.S_IWGRP)
    counts = reachable or stat.S_ISLNK(link.st_mode)
    return "can be written to by other users" if counts and found.st_mode & others else ""


def _is_own_group(gid: int) -> bool:
    """Return whether a group is this user's alone. Where each user has one, the usual umask leaves it all rights."""
    with suppress(KeyError):  # in a container nobody may know the user
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        return (gid, group.gr_name) == (user.pw_gid, user.pw_name) and {*group.gr_mem} <= {user.pw_name}
    return False
