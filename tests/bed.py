"""The test bed, for tests that need a part of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

import pytest
from waits import FETCH, run_within, wait_until

BED = Path(__file__).parents[1] / "ci/bed/bed"


def bed(*words: str) -> str:
    """Ask the test bed; what it prints, which for a part is where it lies, fetched if need be."""
    done = run_within(FETCH, [BED, *words])
    if done.returncode:
        missing(f"the test bed cannot `{' '.join(words)}`: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    return done.stdout.strip()


def missing(told: str) -> NoReturn:
    """A part of the bed is not there: within a bed (TFDOCK_BED is set) a failure, which a skip would hide."""
    if os.environ.get("TFDOCK_BED"):
        pytest.fail(told)
    pytest.skip(told)


def engine_host() -> str:
    """Where the tests' engine listens."""
    host = os.environ.get("DOCKER_HOST")
    return host or missing("no engine: DOCKER_HOST is not set (`ci/bed/bed run -- …` sets it)")


def needs_root(why: str) -> None:
    """Skip for a user who is not root."""
    if os.geteuid() != 0:
        pytest.skip(f"{why} needs root")


#: Engines that the bed starts beside its own.
VARIANTS = ("docker28", "docker28-containerd", "docker28-userns", "rootless", "podman")


def _locked(users: IO[str]) -> bool:
    """Whether this process is one of the users now."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def engine_variant(name: str) -> Iterator[dict[str, str]]:
    """The environment of an engine of the bed. It ends as it was."""
    folder = Path(os.environ.get("TFDOCK_BED") or tempfile.gettempdir())
    started = folder / f"{name}.started-by-tests"
    # Two processes may test on it: the last one to leave stops it.
    with (folder / f"{name}.users").open("a") as users:
        wait_until(lambda: _locked(users), 120)  # while another process stops it
        if not re.search(rf"^{name} +up", bed("status"), re.MULTILINE):
            started.touch()
        done = run_within(FETCH, [BED, "engine", name, "up"])
        if done.returncode:
            started.unlink(missing_ok=True)
            missing(f"this machine cannot start {name}: {done.stderr.strip().splitlines()[-1]}")
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
