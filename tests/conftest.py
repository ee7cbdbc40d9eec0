"""Options of the whole suite, and the official wheels that its parts share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OfficialWheels = Callable[..., Path]
"""(requirement such as `tensorflow==2.18.0`, python="3.11") -> the wheel that pip takes for it."""

_OFFICIAL = Path(__file__).with_name("official.py")
_UNAVAILABLE = 69


# Tests that run inside of a CI service speak to people all the same: what they print is compared.
for _variable in ("GITHUB_ACTIONS", "GITLAB_CI"):
    os.environ.pop(_variable, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the expected renders below tests/golden anew")


@pytest.fixture(scope="session")
def refresh_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--golden"))


@pytest.fixture(scope="session")
def bed_folder() -> Path:
    """The test bed's folder, where downloads outlive the session; the bed need not be up."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TFDOCK_BED") or cache / "tfdock-bed")


@pytest.fixture(scope="session")
def official_wheels() -> OfficialWheels:
    """Wheels from PyPI, downloaded once a machine. Skips only where PyPI cannot be reached."""
    known: dict[tuple[str, str], Path] = {}

    def wheel(requirement: str, python: str = "3.11") -> Path:
        key = (requirement, python)
        if key not in known:
            command = [sys.executable, str(_OFFICIAL), requirement, python]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == _UNAVAILABLE:
                pytest.skip(f"PyPI cannot be reached: {done.stderr}")
            if done.returncode:
                pytest.fail(f"pip cannot download {requirement}: {done.stderr}")
            known[key] = Path(done.stdout.strip())
        return known[key]

    return wheel
