"""Copy results out of containers: expected plain files only, into a folder that no container can write to.

Code in a container may leave anything in the folders that it can write to: links, devices, sparse files of many
gigabytes, a million names. So the host mounts a `ContainerFolder`, and copies the results out by this module alone.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from tfdock.engine.engine_archives import ChunkReader
from tfdock.errors import BuildFailed, EngineError
from tfdock.host.files import make_folder
from tfdock.host.untrusted_folders import NotPlain, TooManyNames, UntrustedFolder, has_holes, remove_folder
from tfdock.plan.resources import least_free
from tfdock.types import ExpectedFiles, Mount

_PIECE = 1 << 20
_MOST = 100_000  #: The most names read in a folder, and the most members of an engine's archive.
_LONGEST = 1 << 36  #: The most bytes in a member of an engine's archive.


@dataclass(frozen=True, slots=True)
class ContainerFolder:
    """A folder that containers write to. Only the code here mounts it, collects its results and opens it."""

    _written: Path

    @property
    def mount_source(self) -> str:
        """Return the source of its mounts. The architecture test forbids any other use of this path."""
        return str(self._written)

    def make(self) -> ContainerFolder:
        """Create the folder, private to its owner; return this object."""
        # Mode 0700: no other user may put files among the results.
        self._written.mkdir(0o700, exist_ok=True)
        return self

    def has_folder(self, name: str) -> bool:
        """Return whether the folder contains a folder of this name. A link to a folder does not count."""
        # Follow no link on the way: a container could have replaced the folder by a link.
        with suppress(OSError), UntrustedFolder.opened(self._written) as opened:
            return stat.S_ISDIR(opened.status(name).st_mode)
        return False

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        remove_folder(self._written)


def make_sources(mounts: Iterable[Mount]) -> None:
    """Create the folders to mount, if they do not exist; raises like `make_folder`."""
    for mount in mounts:
        make_folder(Path(mount.source))


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The two folders of a run: `own` is in the cache, `staged` on the file system of the wheelhouse.

    Both have mode 0700 and are mounted nowhere. Containers get only folders inside them. All other contents are used
    only by the host.
    """

    own: Path
    staged: Path

    @classmethod
    def create(cls, own: Path, staged: Path) -> RunFolders:
        """Create both folders, private to their owner; return these folders by their real paths."""
        for folder in (own, staged):
            make_folder(folder.parent)
            folder.mkdir(0o700, exist_ok=True)
        # Use real paths: a mount whose source is reached through a link is refused.
        return cls(own.resolve(), staged.resolve())

    @property
    def bazel_output(self) -> ContainerFolder:
        """Bazel's output base."""
        return ContainerFolder(self.own / "output")

    @property
    def container_results(self) -> ContainerFolder:
        """The folder into which a container writes its results."""
        return ContainerFolder(self.staged / "staging")

    @property
    def results(self) -> Path:
        """The copied results of the last container with results."""
        return self.staged / "results"

    @property
    def sealed(self) -> Path:
        """Wheels that could be published."""
        return self.staged / "sealed"

    def container_folder(self, name: str) -> ContainerFolder:
        """Return another folder for containers, by name."""
        return ContainerFolder(self.own / name)


# --- collecting ---------------------------------------------------------------------------------------------------


def copy_from_folder(folder: Path, expected: Iterable[ExpectedFiles], kept: Path) -> list[str]:
    """Copy the expected files of a folder into the new folder `kept`, of mode 0700.

    Only plain files with printable names are copied. No link is followed on the way to a file. Returns a sentence for
    each optional file that is left out. Raises OSError, and BuildFailed (`container-file-refused`) for any other file
    that is not plain, is too large, or exceeds the number of files.
    """
    with _copies(kept) as copies, UntrustedFolder.opened(folder) as source:
        for rule in expected:
            try:
                for name in _names(source, "", rule.pattern.split("/")):
                    _take_file(source, name, rule, copies)
            # These errors are about folders of the pattern; `_take_file` handles errors of the file itself.
            except TooManyNames as error:
                copies.refuse(rule, rule.pattern, str(error.strerror))
            except NotPlain as error:
                copies.refuse(rule, error.name, f"{error.kind} is there")
    return copies.left_out


def _take_file(source: UntrustedFolder, name: str, rule: ExpectedFiles, copies: _Copies) -> None:
    try:
        # A name from the listing may vanish, and a name without wildcards need not exist.
        with suppress(FileNotFoundError), source.open(name) as file:
            # Read the status of the open file: its name may already stand for another file.
            status = os.fstat(file.fileno())
            if status.st_nlink != 1:
                copies.refuse(rule, name, "it has a second name (a hard link), perhaps in another folder")
            elif status.st_size <= rule.size and has_holes(file.fileno()):
                copies.refuse(rule, name, "it is a sparse file, and its copy would fill the disk")
            else:
                copies.take(rule, name, status.st_size, file)
    except NotPlain as error:
        copies.refuse(rule, name, f"{error.kind} is there")


def _names(source: UntrustedFolder, inside: str, parts: list[str]) -> Iterator[str]:
    """Yield the names that match a pattern. A folder is listed only for a part with wildcards.

    Raises NotPlain with the name of a file in the place of a folder.
    """
    part, *rest = parts
    if not any(letter in part for letter in "*?["):
        names = [part]
    else:
        try:
            with source.folder(inside.rstrip("/")) as listed:
                # Letter case counts here. `fnmatch.fnmatch` ignores it on some systems.
                names = [entry.name for entry in listed.entries(most=_MOST) if fnmatch.fnmatchcase(entry.name, part)]
        except FileNotFoundError:
            return
        except NotPlain as error:
            raise NotPlain(inside.rstrip("/"), error.kind) from error
    for name in names:
        if rest:
            yield from _names(source, f"{inside}{name}/", rest)
        else:
            yield inside + name


def copy_from_archive(archive: Iterable[bytes], expected: Iterable[ExpectedFiles], kept: Path) -> list[str]:
    """Copy the expected files out of an engine's archive of the folder. The archive's names are not used as paths.

    Raises EngineError for an archive that is broken.
    """
    expected = tuple(expected)
    try:
        with (
            _copies(kept) as copies,
            # Read a stream and extract nothing: links and devices of the archive are never made.
            tarfile.open(fileobj=io.BufferedReader(ChunkReader(iter(archive)), _PIECE), mode="r|") as tar,
        ):
            for number, member in enumerate(tar):
                # Check this before anything else: names and sizes were chosen in the container.
                if number >= _MOST or member.size > _LONGEST:
                    raise _refused(member.name, f"the archive has more than {_MOST:,} members, or a huge one")
                _take_member(tar, member, expected, copies)
    except tarfile.TarError as error:
        message = f"the engine's archive of a container's files is broken: {error}"
        fix = "run the same command again; if the error stays, read the engine's log"
        raise EngineError.of("container-file-refused", message, fix) from error
    return copies.left_out


def _take_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, expected: Iterable[ExpectedFiles], copies: _Copies
) -> None:
    name = _name_inside(member.name)
    rule = next((rule for rule in expected if _matches(name, rule.pattern)), None)
    if member.isdir():
        return
    if rule is None:
        # A file in the place of a folder hides the results, so it is refused like a bad result.
        for above in (above for above in expected if _leads_to(name, above.pattern)):
            copies.refuse(above, name, "it is not a folder")
        return
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        copies.refuse(rule, name, "it is not a plain file")
    else:
        copies.take(rule, name, member.size, content)


def _name_inside(name: str) -> str:
    """Return a member's name within the archived folder; empty for a name that leads out of it."""
    # The engine's archive begins with the folder's own name.
    parts = PurePosixPath(name).parts[1:]
    return "" if ".." in parts or name.startswith("/") else "/".join(parts)


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _leads_to(name: str, pattern: str) -> bool:
    """Return whether a name belongs to a folder with files of a pattern."""
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) < len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


@contextmanager
def _copies(folder: Path) -> Iterator[_Copies]:
    """Yield copies in an empty folder of mode 0700. An earlier folder is removed; after an error, this one too."""
    make_folder(folder.parent)
    # What an earlier container left must not be among the copies.
    remove_folder(folder)
    folder.mkdir(0o700)
    try:
        yield _Copies(folder)
    except BaseException:
        remove_folder(folder)
        raise


@dataclass
class _Copies:
    """The copies of one container's results: files and bytes of each pattern, and what was left out."""

    folder: Path
    left_out: list[str] = field(default_factory=list)
    _counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, rule: ExpectedFiles, name: str, size: int, content: IO[bytes]) -> None:
        """Copy a file, unless it exceeds a limit on size or number. Raises OSError if a copy would fill the disk."""
        files, total = self._counts.get(rule.pattern, (0, 0))
        if not name.isprintable():
            self.refuse(rule, name, "its name has a control character")
        elif files == rule.most:
            self.refuse(rule, name, f"there are more than {rule.most:,} such files")
        elif total + size > rule.size:
            self.refuse(rule, name, f"it has {size:,} bytes, but only {rule.size - total:,} are allowed")
        else:
            if size > (disk := shutil.disk_usage(self.folder)).free - least_free(disk.total):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            self._counts[rule.pattern] = files + 1, total + size
            target = self.folder / name
            target.parent.mkdir(0o700, parents=True, exist_ok=True)
            # `x` makes the file and follows no link.
            with open(target, "xb", opener=_open_private) as file:
                _copy(content, file, size)

    def refuse(self, rule: ExpectedFiles, name: str, why: str) -> None:
        """Leave a file out; raises BuildFailed unless it is optional."""
        error = _refused(name, why)
        if not rule.optional:
            raise error
        self.left_out.append(error.problems[0].message)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _copy(source: IO[bytes], target: BinaryIO, size: int) -> None:
    """Copy `size` bytes and no more: a file can grow while it is read."""
    left = size
    with suppress(OSError, AttributeError):  # an archive, or another file system: copied below
        # Copied within the kernel, which may share blocks instead (copy_file_range(2)).
        while left and (done := os.copy_file_range(source.fileno(), target.fileno(), left)):
            left -= done
    while left and (piece := source.read(min(_PIECE, left))):
        target.write(piece)
        left -= len(piece)


def _refused(name: str, why: str) -> BuildFailed:
    return BuildFailed.of(
        "container-file-refused",
        f"a container left `{ascii(name)[1:-1][:200]}`, which is refused: {why}",
        "check the files that the source's build writes there; if the error stays, report it with the log",
        why="tfdock copies only expected, plain files of limited size out of a container",
    )
