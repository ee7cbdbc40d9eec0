"""A matrix as it was at a commit: its cells' fingerprints then. The work tree and the index are not touched."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tfdock.do import matrix
from tfdock.do.prepare import Preparer
from tfdock.do.settings import Settings
from tfdock.errors import Problem, ProfileError
from tfdock.model import Machine
from tfdock.read import yamldoc

_TIMEOUT = 300.0
"""Seconds for one question to git, which writes all files of a commit."""
_OTHERS = re.compile("GIT_(?!CONFIG_)")


def fingerprints_at(
    revision: str,
    file: Path,
    settings: Settings,
    machine: Machine,
    *,
    allow_untested: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Mapping[str, str]:
    """The fingerprint of each cell, by build id, as a commit had the matrix, its profiles, patches, checkouts and
    folders of knowledge: whatever of it lies in the repository. A matrix that was not there has none. `check` is
    called for each cell and raises to stop.

    Raises ProfileError: `matrix-revision` where there is no such commit, and `matrix-then` where the matrix was
    malformed.
    """
    # Of a link it is the link that has its folder, and its base beside it.
    folder = file.parent.resolve()
    top = Path(_git(file, folder, "rev-parse", "--show-toplevel"))
    commit = _git(file, folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="tfdock-matrix-") as name:
        then = Path(name).resolve() / "tree"
        index = {"GIT_INDEX_FILE": f"{name}/index"}
        # Not `git archive`, which leaves out what is marked `export-ignore`.
        _git(file, top, "read-tree", commit, **index)
        _git(file, top, "checkout-index", "--all", "--quiet", f"--prefix={then}/", **index)
        former = then / folder.relative_to(top) / file.name
        if not former.is_file():
            return {}
        knowledge = tuple(one for folder in settings.knowledge for one in _then(folder, top, then))
        try:
            preparer = Preparer(replace(settings, knowledge=knowledge), machine, allow_untested=allow_untested)
            found = matrix.cells(former, preparer, check=check)
        except ProfileError as error:
            raise _malformed(revision, f"{then}/", error.problems[0], file) from error
    return {cell.name: cell.fingerprint or "" for cell in found.wanted}


def _then(folder: Path, top: Path, then: Path) -> Iterator[Path]:
    """A folder as it was: nothing, if it lies in the repository and was not there."""
    inside = folder.resolve()
    former = then / inside.relative_to(top) if inside.is_relative_to(top) else folder
    if former.is_dir():
        yield former


def _git(file: Path, folder: Path, *words: str, **variables: str) -> str:
    # Hooks run with variables that name another repository, or its index. Those of its configuration say whose
    # repositories are trusted, in a container of a CI service.
    inherited = {name: value for name, value in os.environ.items() if not _OTHERS.match(name)}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=inherited | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        # The first line says what; what may follow is advice, too long for a message.
        why = error.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise _refused(file, re.sub("^(fatal|error): ", "", why)) from error
    except subprocess.TimeoutExpired as error:
        raise _refused(file, f"git did not end in {_TIMEOUT:.0f} s") from error
    except OSError as error:
        raise _refused(file, f"git cannot be run: {error.strerror}") from error
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def _refused(file: Path, why: str) -> ProfileError:
    return ProfileError(
        Problem(
            code="matrix-revision",
            message=f"what the matrix was cannot be told: {yamldoc.shown(why)}",
            fix="name a commit that is there, such as `HEAD~1`; a shallow clone has no older ones: "
            "`git fetch --deepen=100`, in CI `fetch-depth: 0`",
            file=str(file),
        )
    )


def _malformed(revision: str, prefix: str, problem: Problem, file: Path) -> ProfileError:
    what = f"{problem.where}: {problem.message}".replace(prefix, "")
    return ProfileError(
        Problem(
            code="matrix-then",
            message=f"at `{yamldoc.shown(revision)}` the matrix was malformed: {what}",
            why="so every cell of it counts as changed",
            severity="warning",
            file=str(file),
        )
    )
