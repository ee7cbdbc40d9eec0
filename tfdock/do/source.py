"""Local sources: a checkout's identity, the patches' bytes, and the context archive sent to the engine."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfdock.decide.plan import EPOCH
from tfdock.decide.question import LocalSource
from tfdock.decide.render import BuildContext
from tfdock.errors import Problem, ProfileError
from tfdock.read.profile import TensorFlow

_CHUNK = 1 << 20
_LEFT_OUT = {".git", "__pycache__", ".tf_configure.bazelrc", "python_bin_path.sh", ".bazelrc.user"}
"""Not part of a local source: history, and what an earlier ./configure or a user left, which would change the build
without standing in the plan."""


def read_local(source: TensorFlow, folder: Path, file: str) -> tuple[LocalSource, Path | None]:
    """Hash the checkout and read the patches a profile names, relative to its folder.

    Returns both, and where the checkout lies. Raises ProfileError for what does not exist.
    """
    tree = None
    if source.path is not None:
        tree = (folder / source.path).resolve()
        if not (tree / "configure").is_file():
            raise _missing(
                file,
                "tensorflow.path",
                f"`{source.path}` holds no TensorFlow source: there is no `configure` in {tree}",
                "give the root of a TensorFlow checkout, relative to the profile",
            )
    patches = {}
    for index, name in enumerate(source.patches):
        path = folder / name
        if not path.is_file():
            raise _missing(
                file,
                f"tensorflow.patches[{index}]",
                f"the patch `{name}` does not exist",
                "the path is relative to the profile",
            )
        patches[name] = path.read_bytes()
    return LocalSource(tree=tree_hash(tree) if tree else None, patches=patches), tree


def _missing(file: str, field: str, message: str, fix: str) -> ProfileError:
    return ProfileError(Problem(code="source-missing", message=message, fix=fix, file=file, field=field))


def tree_files(root: Path) -> Iterator[Path]:
    """The files and links of a checkout that belong to the source, sorted by path."""
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink() and not name.startswith("bazel-")]
        folders[:] = sorted(name for name in folders if _belongs(here / name))
        # bazel-bin and its siblings are links that an earlier build left at the top.
        names = [name for name in (*files, *links) if name not in _LEFT_OUT and not name.startswith("bazel-")]
        yield from (here / name for name in sorted(names))


def _belongs(folder: Path) -> bool:
    """Whether a folder is source: not what is left out, and not a wheelhouse or a rendered context of ours."""
    ours = (folder / ".tfdock").exists() or (folder / ".tfdock-context").exists()
    return folder.name not in _LEFT_OUT and not folder.is_symlink() and not ours


def tree_hash(root: Path) -> str:
    """sha256 over paths, the executable bit and contents: 64 hexadecimal digits."""
    return listing_hash(tree_listing(root))


def listing_hash(listing: Mapping[str, str]) -> str:
    """The hash of a checkout that `tree_listing` listed."""
    total = hashlib.sha256()
    for path, identity in listing.items():
        total.update(f"{path}\0{identity}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def tree_listing(root: Path) -> dict[str, str]:
    """Every file of a checkout, by its path in it, with what identifies it: executable bit and content."""
    return {path.relative_to(root).as_posix(): "\0".join(_identity(path)) for path in sorted(tree_files(root))}


def _identity(path: Path) -> tuple[str, str]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", str(path.readlink())
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ("program" if mode & stat.S_IXUSR else "file"), digest


def context_archive(
    context: BuildContext, tree: Path | None, beside: Mapping[str, Path] | None = None
) -> Iterator[bytes]:
    """The context as a tar stream: sorted, owned by root, with one time, so that equal contexts are equal bytes.

    `beside` are further files, by their paths in it.
    """
    for path, data in context.files.items():
        info = _entry(path, 0o755 if context.executable(path) else 0o644)
        info.size = len(data)
        yield info.tobuf(tarfile.PAX_FORMAT) + data + _padding(len(data))
    for file in sorted(tree_files(tree)) if tree else ():
        assert tree is not None
        yield from _tree_entry(f"source/{file.relative_to(tree).as_posix()}", file)
    for path, file in sorted((beside or {}).items()):
        yield from _tree_entry(path, file)
    yield b"\0" * 1024


def _tree_entry(name: str, file: Path) -> Iterator[bytes]:
    status = file.lstat()
    info = _entry(name, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(file.readlink())
        yield info.tobuf(tarfile.PAX_FORMAT)
        return
    info.size = status.st_size
    yield info.tobuf(tarfile.PAX_FORMAT)
    sent = 0
    with file.open("rb") as stream:
        while chunk := stream.read(min(_CHUNK, info.size - sent)):
            sent += len(chunk)
            yield chunk
    if sent != info.size:
        raise OSError(f"{file} changed while it was read")
    yield _padding(sent)


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = mode, EPOCH
    return info


def _padding(size: int) -> bytes:
    return b"\0" * (-size % 512)
