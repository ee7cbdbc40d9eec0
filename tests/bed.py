"""The test bed, for tests that need a part of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

BED = Path(__file__).parents[1] / "ci/bed/bed"


def bed(*words: str) -> str:
    """Ask the test bed; what it prints, which for a part is where it lies, fetched if need be."""
    done = subprocess.run([BED, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"the test bed cannot `{' '.join(words)}`: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    return done.stdout.strip()


def missing(told: str) -> NoReturn:
    """A part of the bed is not there: within a bed (TFDOCK_BED is set) a failure, which a skip would hide."""
    if os.environ.get("TFDOCK_BED"):
        pytest.fail(told)
    pytest.skip(told)


VARIANTS = ("docker28", "docker28-containerd", "docker28-userns", "rootless", "podman")
"""Engines that the bed starts beside its own."""


@contextlib.contextmanager
def engine_variant(name: str) -> Iterator[dict[str, str]]:
    """The environment of an engine of the bed; a skip where it cannot start. It ends as it was."""
    folder = Path(os.environ.get("TFDOCK_BED") or tempfile.gettempdir())
    started = folder / f"{name}.started-by-tests"
    # Two processes may test on it: the last one to leave stops it.
    with (folder / f"{name}.users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        if not re.search(rf"^{name} +up", bed("status"), re.MULTILINE):
            started.touch()
        done = subprocess.run([BED, "engine", name, "up"], capture_output=True, text=True, check=False)
        if done.returncode:
            started.unlink(missing_ok=True)
            pytest.skip(f"this machine cannot start {name}: {done.stderr.strip().splitlines()[-1]}")
        try:
            exports = [
                line.removeprefix("export ").partition("=") for line in bed("engine", name, "env").splitlines()
            ]
            yield {variable: value for variable, _, value in exports}
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if started.exists():
                    bed("engine", name, "down")
                    started.unlink()
