"""A matrix as it was at a commit: its cells' fingerprints then. The work tree and the index are not touched."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
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


def fingerprints_at(
    revision: str, file: Path, settings: Settings, machine: Machine, *, allow_untested: bool = False
) -> Mapping[str, str]:
    """The fingerprint of each cell, by build id, as a commit had the matrix, its profiles, patches, checkouts and
    folders of knowledge: whatever of it lies in the repository. A matrix that was not there has none.

    Raises ProfileError: `matrix-revision` where there is no such commit, and `matrix-then` where the matrix was
    malformed.
    """
    folder = file.resolve().parent
    top = Path(_git(file, folder, "rev-parse", "--show-toplevel"))
    commit = _git(file, folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="tfdock-matrix-") as name:
        then = Path(name).resolve() / "tree"
        index = {"GIT_INDEX_FILE": f"{name}/index"}
        # Not `git archive`, which leaves out what is marked `export-ignore`.
        _git(file, top, "read-tree", commit, **index)
        _git(file, top, "checkout-index", "--all", "--quiet", f"--prefix={then}/", **index)
        former = then / file.resolve().relative_to(top)
        if not former.is_file():
            return {}
        knowledge = tuple(_then(one, top, then) for one in settings.knowledge)
        try:
            preparer = Preparer(replace(settings, knowledge=knowledge), machine, allow_untested=allow_untested)
            found = matrix.cells(former, preparer)
        except ProfileError as error:
            raise _malformed(revision, f"{then}/", error.problems[0], file) from error
    return {cell.name: cell.fingerprint or "" for cell in found.wanted}


def _then(folder: Path, top: Path, then: Path) -> Path:
    """A folder as it was, if it lies in the repository and was there."""
    inside = folder.resolve()
    former = then / inside.relative_to(top) if inside.is_relative_to(top) else folder
    return former if former.is_dir() else folder


def _git(file: Path, folder: Path, *words: str, **variables: str) -> str:
    # Hooks run with variables that name another repository, or its index.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | variables
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        raise _refused(file, why) from error
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
