"""Read files that a profile or a matrix names. The files must be in its project, and are opened without a race.

A profile may be untrusted, and the files that it names become part of an image. So a profile may name only files of
its project: the repository of the profile, or (without a repository) the profile's folder. Settings can allow further
folders. First every path is resolved, including links. Then the file is opened component by component, and no
component may be a link. So a link that appears between the check and the opening is refused.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.errors import Fix, ProfileError
from tfdock.host.files import unreadable
from tfdock.host.untrusted_folders import NotPlain, TooLarge, UntrustedPath
from tfdock.profile import yaml_nodes
from tfdock.profile.yaml_nodes import Node

MOST_TEXT = yaml_nodes.MAX_BYTES  #: The most bytes of a profile or a matrix.
MOST_LOCK = 4 << 20
MOST_PATCH = 8 << 20
#: Folders of the kernel. Their files contain secrets of processes, or never end. No setting allows these folders.
_KERNEL = (Path("/proc"), Path("/sys"), Path("/dev"))
_WHY = (
    "named files go into an image, so a profile may name only files of its repository (or, without one, its folder)"
)


@dataclass(frozen=True, slots=True)
class Project:
    """The folder whose files profiles may name, and the further folders that settings allow."""

    root: Path
    allowed: tuple[Path, ...] = ()

    @classmethod
    def of(cls, file: Path, allowed: Iterable[Path] = ()) -> Project:
        """Return the project that the file of a profile or matrix belongs to."""
        # Use the path as written: a linked profile must not select another project by its target.
        folder = Path(os.path.normpath(file.absolute())).parent
        real = Path(os.path.realpath(file.parent))
        root = _repository(folder) or _repository(real) or real
        return cls(Path(os.path.realpath(root)), tuple(Path(os.path.realpath(folder)) for folder in allowed))

    def resolve(self, path: Path, *, name: str | None = None, folder: bool = False) -> tuple[Path, str]:
        """Return the folder that allows a path, and the path in that folder; neither contains a link.

        `name` is the path in the profile; `folder` means that the path should be a folder. Raises ProfileError for a
        path that is neither in the project nor allowed. The error does not reveal whether the path exists.
        """
        label = _shown(name or str(path))
        # The system's functions raise ValueError for NUL.
        if "\0" in str(path):
            raise _outside(f"`{label}` cannot be a path", "remove the control character")
        target = Path(os.path.realpath(path))
        leads = f"`{label}`" if str(target) == label else f"`{label}` leads to {_shown(str(target))}, which"
        if any(target.is_relative_to(kernel) for kernel in _KERNEL):
            raise _outside(f"{leads} is a file of the kernel", "name another file: no setting allows this one")
        permission = _permission(target if folder else target.parent, self.root)
        bases = [base for base in (self.root, *self.allowed) if target.is_relative_to(base)]
        if not bases:
            raise _outside(f"{leads} is outside {_shown(str(self.root))}", permission, why=_WHY)
        if folder and _holds_home(target):  # its hidden files would be sent to the engine
            message = f"{leads} contains your home folder"
            raise _outside(message, "name only the folder of the checkout; no setting allows this folder", why=_WHY)
        if bases[0] == self.root and _holds_home(self.root):
            # Hidden files of a home folder hold keys and logins.
            hidden = any(part.startswith(".") for part in target.relative_to(self.root).parts)
            bases = bases[1:] if hidden else bases
        if not bases:
            raise _outside(f"{leads} is hidden, and the project contains your home folder", permission, why=_WHY)
        base = bases[0]
        parts = target.relative_to(base).parts
        # On some file systems `.GIT` is the same as `.git`. The file `config` in it may contain a login.
        if ".git" in map(str.lower, parts):
            raise _outside(f"{leads} is in git's own folder", "copy the file out of `.git`, and name the copy")
        # The settings may allow a single file.
        return (base, "/".join(parts)) if parts or folder else (base.parent, base.name)

    def read(self, path: Path, most: int, *, name: str | None = None) -> bytes:
        """Return the bytes of a plain file.

        Raises OSError, or ProfileError, for example if the file has more than `most` bytes. FileNotFoundError means
        that the project has no such file.
        """
        base, inside = self.resolve(path, name=name)
        label = _shown(name or str(path))
        try:
            return UntrustedPath(base, inside).read(most)
        except NotPlain as error:
            message = f"`{label}` is {error.kind}, not a plain file"
            raise ProfileError.of("file-not-plain", message, "name a plain file") from error
        except TooLarge as error:
            message = f"`{label}` has more than {most:,} bytes"
            raise ProfileError.of("file-too-large", message, "is this the right file? Name a smaller file") from error

    def text(
        self, path: Path, most: int = MOST_TEXT, *, code: str = "file-unreadable", name: str | None = None
    ) -> str:
        """Return the text of a file, with unchanged line ends; raises ProfileError and FileNotFoundError."""
        try:
            return self.read(path, most, name=name).decode("utf-8")
        # The caller knows which field named the file, and reports the error.
        except FileNotFoundError:
            raise
        except (UnicodeDecodeError, OSError) as error:
            raise unreadable(path, error, code) from None

    def patch(self, path: Path, *, name: str) -> bytes:
        """Return the bytes of a patch. Raises OSError, and ProfileError (also if the file is not a patch)."""
        data = self.read(path, MOST_PATCH, name=name)
        if not _PATCH.search(data):
            message = (
                f"`{_shown(name)}` is not a patch: it has no `diff --git` line, and no `---`, `+++` and `@@` lines"
            )
            raise ProfileError.of("patch-malformed", message, "make the patch with `git diff` or `git format-patch`")
        return data


def read_stdin() -> str:
    """Return the text of the profile on standard input; raises ProfileError."""
    data = sys.stdin.buffer.read(MOST_TEXT + 1)
    if len(data) > MOST_TEXT:
        message, fix = f"standard input has more than {MOST_TEXT:,} bytes", "pipe a profile into the command"
        raise ProfileError.of("file-too-large", message, fix)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(Path("<stdin>"), error, "profile-unreadable") from None


#: Lines of a patch that `git apply` accepts. Patches from `git format-patch` have such lines too.
_PATCH = re.compile(rb"^diff --git \S|^--- [^\n]*\n\+\+\+ [^\n]*\n@@ -\d", re.MULTILINE)


def located(error: ProfileError, file: str, field: str, node: Node | None = None) -> ProfileError:
    """Return the error. If it has no place yet, its place is the value in the profile that names the file."""
    line, column = (node.line, node.column) if node else (None, None)
    return ProfileError(
        *(
            problem if problem.file else replace(problem, file=file, line=line, column=column, field=field)
            for problem in error.problems
        )
    )


def _shown(text: str) -> str:
    """Return a complete path for a message: on one line, without control characters."""
    return text if text.isprintable() else repr(text)[1:-1]


def _outside(message: str, fix: Fix, why: str = "") -> ProfileError:
    return ProfileError.of("path-outside", message, fix, why=why)


def _permission(folder: Path, root: Path) -> tuple[str, ...]:
    """Return the fixes that allow a path outside of the project: the flag and the setting."""
    word = _shown(shlex.quote(str(folder)))
    return (
        f"move the file into {_shown(str(root))}",
        f"if you trust the profile, allow the folder: `--allow-path {word}`, `TFDOCK_ALLOW_PATHS={word}`, "
        f"or `allow_paths: [{_shown(str(folder))}]` in the configuration file",
    )


def _repository(folder: Path) -> Path | None:
    """Return the nearest folder upwards with a `.git`; None if no such folder can be a project.

    A repository of a whole home folder does not count: every secret would belong to it. A repository in a
    world-writable folder such as /tmp does not count either: another user may have made it.
    """
    for root in (folder, *folder.parents):
        # `.git` is a file in a worktree, and a folder in a clone.
        if os.path.lexists(root / ".git"):
            return None if _holds_home(Path(os.path.realpath(root))) or _is_shared(root) else root
    return None


def _holds_home(folder: Path) -> bool:
    home = os.path.expanduser("~")  # noqa: PTH111 - a user without one is no error here
    return home != "~" and Path(os.path.realpath(home)).is_relative_to(folder)


def _is_shared(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)


def lock_text(path: Path) -> str:
    """Return the text of a lock in its profile's project; raises ProfileError and FileNotFoundError."""
    try:
        return Project.of(path).text(path, MOST_LOCK)
    except ProfileError as error:
        raise ProfileError(*(replace(problem, file=str(path)) for problem in error.problems)) from error
