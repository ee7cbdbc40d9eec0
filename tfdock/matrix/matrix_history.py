"""Read a matrix as it was at a commit: the fingerprints of its cells. The work tree and the index stay untouched."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from tfdock.errors import Incompatible, Problem, ProfileError
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import UntrustedFolder
from tfdock.matrix import planned_matrix
from tfdock.plan.prepare import Preparer
from tfdock.profile import yaml_nodes
from tfdock.types import Machine

_TIMEOUT = 300.0
"""Seconds for one question to git, which reads all files of a commit."""
_OTHERS = re.compile("GIT_(?!CONFIG_)")
_OPTIONS = (
    # A file system monitor is a program that the repository's settings may name.
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "protocol.allow=never",
)
# GIT_NO_LAZY_FETCH: a partial clone would fetch objects that it lacks, from wherever its settings say.
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
"""A repository may be a stranger's, and its own settings name programs. None of them runs.
Git connects to nobody.

The settings of the user and of the system hold: they say whose repositories are trusted."""
# Modes of tree entries in git: a symbolic link, and a submodule's commit.
_LINK, _SUBMODULE = "120000", "160000"
# PATH_MAX of Linux.
_LONGEST_LINK = 4096
_CHUNK = 1 << 20
_MOST_LISTED = 64 << 20
"""Bytes that git lists of a commit. TensorFlow's 35,000 files take 4 MB; a few kilobytes of trees can name 10^9."""
_MOST_WRITTEN = 4 << 30
"""Bytes of a commit's files, which lie packed in the repository."""
# O_EXCL and O_NOFOLLOW: a commit may hold one path twice, and a link where a file belongs.
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def fingerprints_at(
    revision: str,
    file: Path,
    settings: Settings,
    machine: Machine,
    *,
    allow_untested: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Mapping[str, str]:
    """Return the fingerprint of each cell, by build id, as it was at a commit.

    The matrix, its profiles, patches, checkouts and folders of knowledge are those of the commit, as far as they lie
    in the repository. A matrix that was not there has no cells. `check` is called for each cell and raises to stop.

    Raises ProfileError: `matrix-revision` if there is no such commit, `matrix-then` if the matrix was malformed.
    """
    # If the matrix is a link, its base lies beside the link.
    folder = file.parent.resolve()
    top = Path(_git(file, folder, "rev-parse", "--show-toplevel"))
    if not folder.is_relative_to(top):
        raise _refusal(file, f"the matrix is not in the work tree {top}")
    # `--end-of-options`: a revision that begins with a dash is no option. `^{commit}` peels a tag.
    commit = _git(file, folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="tfdock-matrix-") as name:
        then = Path(name).resolve() / "tree"
        _write_out(file, top, commit, then)
        # What the commit has belongs together, as in the repository: see `project_files`.
        (then / ".git").mkdir()
        former = then / folder.relative_to(top) / file.name
        if not os.path.lexists(former):
            # A matrix that did not exist has no cells, so that all of today's are new.
            return {}
        folders = (_former_folder(current, top, then) for current in settings.knowledge)
        # Knowledge that lies in the repository changed with it. A folder that was not there counts as none.
        former_settings = replace(settings, knowledge=tuple(filter(None, folders)))
        try:
            preparer = Preparer(former_settings, machine, allow_untested=allow_untested)
            cells = planned_matrix.cells(former, preparer, check=check)
        except Incompatible:
            # Nothing could be built then, so that all of today's cells are new.
            return {}
        except ProfileError as error:
            # The path of a temporary folder means nothing to people.
            raise _malformed(revision, f"{then}/", error.problems[0], file) from error
    return {cell.name: cell.fingerprint or "" for cell in cells.wanted}


def _former_folder(folder: Path, top: Path, then: Path) -> Path | None:
    """Return a folder as it was; None if it lies in the repository and was not there, or was a link out of it."""
    inside = folder.resolve()
    former = then / inside.relative_to(top) if inside.is_relative_to(top) else folder
    is_there = former.is_dir() and (former == folder or former.resolve().is_relative_to(then))
    return former if is_there else None


def _write_out(file: Path, top: Path, commit: str, then: Path) -> None:
    """Write the files of a commit below a new folder; raises ProfileError.

    Git only reads objects: a checkout would run the programs that the repository names as filters.
    """
    # Not `git archive`, which leaves out what is marked `export-ignore`.
    listing = _git(file, top, "ls-tree", "-r", "-z", "--full-tree", commit)
    entries = [_Entry.of(line) for line in listing.split("\0") if line]
    names = "".join(f"{entry.name}\n" for entry in entries if entry.mode != _SUBMODULE)
    then.mkdir()
    left = _MOST_WRITTEN
    try:
        # One process for all objects: one for each of thousands of files would take minutes. By descriptors and
        # without links: the commit decides the names, and may be a stranger's.
        with tempfile.TemporaryFile() as questions, UntrustedFolder.opened(then) as tree:
            questions.write(names.encode())
            questions.seek(0)
            with _running(file, top, "cat-file", "--batch", stdin=questions) as contents:
                for entry in entries:
                    left -= _write_entry(file, tree, entry, contents, left)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _refusal(file, f"the files of the commit cannot be written: {why}") from error


class _Entry(NamedTuple):
    """A line of `git ls-tree`: what kind of file, the object, and where it belongs."""

    mode: str
    name: str
    path: str

    @classmethod
    def of(cls, line: str) -> _Entry:
        about, _, path = line.partition("\t")
        mode, _, name = about.split(" ")
        return cls(mode, name, path)


def _write_entry(file: Path, tree: UntrustedFolder, entry: _Entry, contents: IO[bytes], most: int) -> int:
    """Write one file, which is the next object; return its bytes.

    Raises OSError, ValueError for a bad path and for more than `most` bytes, ProfileError.
    """
    # In any case of letters: CVE-2014-9390. A `.git` of the commit could hold hooks and settings.
    if ".git" in entry.path.lower().split("/"):
        raise ValueError("a path of the commit is in git's own folder")
    if entry.mode == _SUBMODULE:
        # A submodule is a folder to git, also where its files are not here.
        tree.folder(entry.path, make=True).close()
        return 0
    # `git cat-file --batch` answers `<name> <type> <size>`, or `<name> missing` in a shallow or partial clone.
    name, kind, *size = contents.readline().decode("ascii", "replace").split() or ("", "")
    if (name, kind) != (entry.name, "blob"):
        raise _refusal(file, f"the repository lacks the object {entry.name} of that commit")
    left = total = int(size[0])
    if total > most:
        raise ValueError(f"they have more than {_MOST_WRITTEN >> 30} GiB")
    folder, _, last = entry.path.rpartition("/")
    if last in ("", ".", ".."):
        raise ValueError("a path of the commit is invalid")
    with tree.folder(folder, make=True) as parent:
        if entry.mode == _LINK:
            if left > _LONGEST_LINK:
                raise ValueError("a link of the commit is too long")
            os.symlink(contents.read(left), os.fsencode(last), dir_fd=parent.fileno())
        else:
            # Git keeps one bit of a mode: whether the file can be executed.
            mode = 0o777 if int(entry.mode, 8) & 0o100 else 0o666
            with os.fdopen(os.open(last, _NEW_FILE, mode, dir_fd=parent.fileno()), "wb") as written:
                while left:
                    chunk = contents.read(min(left, _CHUNK))
                    if not chunk:
                        raise ValueError("git ended early")
                    written.write(chunk)
                    left -= len(chunk)
    contents.read(1)  # the line's end
    return total


def _git(file: Path, folder: Path, *words: str) -> str:
    """Return the output of git; raises ProfileError, also for more than anybody's repository has."""
    with _running(file, folder, *words) as output:
        data = output.read(_MOST_LISTED + 1)
        if len(data) > _MOST_LISTED:
            raise _refusal(file, f"git lists more than {_MOST_LISTED >> 20} MiB of names")
    # Paths are bytes to git and to Linux: what is no UTF-8 must come back as the same bytes.
    return data.decode("utf-8", "surrogateescape").rstrip("\n")


@contextmanager
def _running(
    file: Path, folder: Path, *words: str, stdin: int | IO[bytes] = subprocess.DEVNULL
) -> Iterator[IO[bytes]]:
    """Give the output of git while it runs; raises ProfileError if it fails. A caller that leaves early ends git.

    No program runs that the repository's own settings name.
    """
    # Hooks run with variables that name another repository, or its index. Those of its configuration say whose
    # repositories are trusted, in a container of a CI service.
    inherited = {name: value for name, value in os.environ.items() if not _OTHERS.match(name)}
    with tempfile.TemporaryFile() as said, ExitStack() as at_end:
        try:
            git = subprocess.Popen(
                ["git", *(word for option in _OPTIONS for word in ("-c", option)), "-C", str(folder), *words],
                env=inherited | _VARIABLES,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=said,
            )
        except OSError as error:
            raise _refusal(file, f"git cannot be run: {error.strerror}") from error
        assert git.stdout
        late = threading.Timer(_TIMEOUT, git.kill)
        late.start()
        # In this order: the end of its output, a kill, its end.
        for step in (git.wait, git.kill, git.stdout.close, late.cancel):
            at_end.callback(step)
        yield git.stdout
        status = git.wait()
        if not late.is_alive():
            raise _refusal(file, f"git did not end in {_TIMEOUT:.0f} s")
        if status:
            said.seek(0)
            # The first line says what; what may follow is advice, too long for a message.
            why = said.read(_CHUNK).decode("utf-8", "replace").strip().partition("\n")[0]
            # The message has a severity of its own, beside which git's would be a second one.
            raise _refusal(file, re.sub("^(fatal|error): ", "", why))


def _refusal(file: Path, why: str) -> ProfileError:
    return ProfileError(
        Problem(
            code="matrix-revision",
            message=f"what the matrix was cannot be told: {yaml_nodes.shown(why)}",
            fix="name a commit that is there, such as `HEAD~1`; a shallow clone has no older ones: "
            "`git fetch --deepen=100`, in CI `fetch-depth: 0`",
            file=str(file),
        )
    )


def _malformed(revision: str, prefix: str, problem: Problem, file: Path) -> ProfileError:
    text = f"{problem.where}: {problem.message}".replace(prefix, "")
    return ProfileError(
        Problem(
            code="matrix-then",
            message=f"at `{yaml_nodes.shown(revision)}` the matrix was malformed: {text}",
            why="so every cell of it counts as changed",
            severity="warning",
            file=str(file),
        )
    )
