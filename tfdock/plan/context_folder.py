"""Write a build context into a folder, for people who want to read it or build it by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

from tfdock.errors import Problem, ProfileError
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.plan.local_source import tree_files
from tfdock.plan.render import BuildContext

_MARK = ".tfdock-context"
"""Lists what `render` wrote into the folder, so that another one replaces that and nothing else."""
_LARGEST = 64 << 20
"""Bytes of the list. TensorFlow's has 3 MB."""


def write(context: BuildContext, tree: Path | None, folder: Path) -> list[str]:
    """Write the context, replacing an earlier one of ours; returns the paths written, sorted.

    Refuses a folder that is not ours; in one of ours, files that others put there stay.
    """
    _empty(folder)
    # Listed before anything is written: the folder may lie inside the checkout.
    sources = list(tree_files(tree)) if tree else []
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in context.files.items():
        target = _place(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Removed first: writing would go through a link that somebody put there.
        target.unlink(missing_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if context.executable(path) else 0o644)
    written = list(context.files)
    for file in sources:
        assert tree is not None
        path = f"source/{file.relative_to(tree).as_posix()}"
        target = _place(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        # A link of the checkout stays a link: it may lead out of it.
        shutil.copy2(file, target, follow_symlinks=False)
        written.append(path)
    UntrustedPath(folder, _MARK).write("".join(f"{path}\n" for path in sorted(written)).encode(), durable=False)
    return sorted(written)


def _empty(folder: Path) -> None:
    if not folder.exists():
        return
    mark = UntrustedPath(folder, _MARK)
    if not folder.is_dir() or (any(folder.iterdir()) and not mark.is_file()):
        raise _not_our_folder(folder, "exists and was not written by `tfdock render`")
    for path in mark.read(_LARGEST).decode(errors="replace").splitlines() if mark.is_file() else ():
        # The list is a file like any other, and may name paths outside the folder.
        if ".." not in Path(path).parts and not Path(path).is_absolute():
            _place(folder, path).unlink(missing_ok=True)


def _place(folder: Path, path: str) -> Path:
    """Return the path in the folder; raises ProfileError if it leads through a link, which somebody else made."""
    place = folder
    for part in Path(path).parts[:-1]:
        place = place / part
        if place.is_symlink():
            raise _not_our_folder(place, "is a link, and would lead out of the folder")
    return folder / path


def _not_our_folder(path: Path, reason: str) -> ProfileError:
    fix = "give a new folder, or remove this one yourself"
    return ProfileError(Problem(code="output-not-empty", message=f"{path} {reason}", fix=fix, file=str(path)))
