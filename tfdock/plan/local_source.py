"""Local sources: the files and the identity of a checkout, and the context archive sent to the engine."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tfdock.errors import ProfileError
from tfdock.host.untrusted_folders import UntrustedFolder, kind_of
from tfdock.plan.build_plan import EPOCH
from tfdock.profile.yaml_nodes import shown

if TYPE_CHECKING:
    from tfdock.plan.render import BuildContext

_CHUNK = 1 << 20
_MOST = 1 << 30  #: The most bytes of one file of a checkout.
_DEEPEST = 200  #: The maximum depth of nested folders. TensorFlow's tree has a depth of 15.
#: Names that are left out of a local source: the history, and files of an earlier ./configure or of a user. They
#: would change the build, but the plan does not show them.
_LEFT_OUT = {".git", "__pycache__", ".tf_configure.bazelrc", "python_bin_path.sh", ".bazelrc.user"}


def has_configure(tree: Path) -> bool:
    """Return whether a folder contains a regular file `configure`, not a link."""
    try:
        with UntrustedFolder.opened(tree) as folder:
            return stat.S_ISREG(folder.status("configure").st_mode)
    except OSError:
        return False


def tree_files(root: Path) -> Iterator[Path]:
    """Return the files and links of a checkout that belong to the source, sorted by path."""
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        if len(here.parts) > len(root.parts) + _DEEPEST:
            message = f"the checkout {root} has more than {_DEEPEST} nested folders"
            raise ProfileError.of("file-too-large", message, "give a folder with TensorFlow's source only")
        # `os.walk` counts links to folders among the folders. They belong to the source as links.
        links = [name for name in folders if (here / name).is_symlink() and not name.startswith("bazel-")]
        # Changed in place and sorted: `os.walk` visits the folders that remain in this list, in this order.
        folders[:] = sorted(name for name in folders if _belongs(here / name))
        # bazel-bin and its siblings are links that an earlier build left at the top.
        names = [name for name in (*files, *links) if name not in _LEFT_OUT and not name.startswith("bazel-")]
        yield from (here / name for name in sorted(names))


def _belongs(folder: Path) -> bool:
    """Return whether a folder is source: not a folder to leave out, a wheelhouse, or a rendered context."""
    ours = (folder / ".tfdock").exists() or (folder / ".tfdock-context").exists()
    return folder.name not in _LEFT_OUT and not folder.is_symlink() and not ours


def tree_hash(root: Path) -> str:
    """Return the sha256 of paths, executable bits and contents: 64 hexadecimal digits."""
    return listing_hash(tree_listing(root))


def listing_hash(listing: Mapping[str, str]) -> str:
    """Return the hash of a checkout that `tree_listing` listed."""
    total = hashlib.sha256()
    for path, identity in listing.items():
        # No path contains NUL, so NUL marks the end of a path.
        total.update(f"{path}\0{identity}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def tree_listing(root: Path) -> dict[str, str]:
    """Return path -> identity (executable bit and content) of every file of a checkout.

    Raises ProfileError for anything that is not a file or link.
    """
    return {path.as_posix(): "\0".join(_identity(folder, path)) for folder, path in _held(root, _paths(root))}


def _paths(tree: Path) -> list[Path]:
    """Return the sorted paths of a checkout's files."""
    return [file.relative_to(tree) for file in sorted(tree_files(tree))]


def _held(root: Path, paths: Iterable[Path]) -> Iterator[tuple[UntrustedFolder, Path]]:
    """Yield (folder, path) for each path below `root`; each folder is opened without following a link."""
    with UntrustedFolder.opened(root) as top:
        # The paths are sorted, so each folder is opened once.
        for parent, neighbours in groupby(paths, key=lambda path: path.parent):
            with top.folder("" if parent == Path() else parent.as_posix()) as folder:
                yield from ((folder, path) for path in neighbours)


def _identity(folder: UntrustedFolder, path: Path) -> tuple[str, str]:
    status = folder.status(path.name)
    if stat.S_ISLNK(status.st_mode):
        return "link", folder.link(path.name)
    _check_plain(status, path)
    with folder.open(path.name) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ("program" if status.st_mode & stat.S_IXUSR else "file"), digest


def _check_plain(status: os.stat_result, path: Path) -> None:
    name = f"`{shown(path.as_posix())}` in the checkout"
    if not stat.S_ISREG(status.st_mode):
        message, fix = f"{name} is {kind_of(status)}, not a plain file", "remove it from the checkout"
        raise ProfileError.of("file-not-plain", message, fix)
    if status.st_size > _MOST:
        message = f"{name} has {status.st_size:,} bytes; at most {_MOST:,} are read"
        raise ProfileError.of("file-too-large", message, "remove it from the checkout")


def context_archive(
    context: BuildContext, tree: Path | None, beside: Mapping[str, Path] | None = None
) -> Iterator[bytes]:
    """Yield the context as a tar stream; equal contexts give equal bytes.

    Members are sorted, belong to root, and have equal times. `beside` are more files, by their paths in the archive.
    """
    for path, data in context.files.items():
        info = _entry(path, 0o755 if context.executable(path) else 0o644)
        info.size = len(data)
        yield info.tobuf(tarfile.PAX_FORMAT) + data + _padding(len(data))
    if tree:
        for folder, file in _held(tree, _paths(tree)):
            yield from _tree_entry(f"source/{file.as_posix()}", folder, file.name)
    for path, file in sorted((beside or {}).items()):
        with UntrustedFolder.opened(file.parent) as folder:
            yield from _tree_entry(path, folder, file.name)
    yield b"\0" * 1024


def _tree_entry(name: str, folder: UntrustedFolder, file: str) -> Iterator[bytes]:
    status = folder.status(file)
    # Of a file's mode, git records only this bit.
    info = _entry(name, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, folder.link(file)
        yield info.tobuf(tarfile.PAX_FORMAT)
        return
    info.size = status.st_size
    yield info.tobuf(tarfile.PAX_FORMAT)
    sent = 0
    with folder.open(file) as stream:
        # Send at most as many bytes as the header states: the file may grow meanwhile.
        while chunk := stream.read(min(_CHUNK, info.size - sent)):
            sent += len(chunk)
            yield chunk
    if sent != info.size:
        raise OSError(f"{folder.path / file} changed while it was read")
    yield _padding(sent)


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = mode, EPOCH
    return info


def _padding(size: int) -> bytes:
    return b"\0" * (-size % 512)
