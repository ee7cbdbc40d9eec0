"""Options of the whole suite, and what its parts share: the test bed's folder and the official wheels in it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

OfficialWheels = Callable[..., Path]
"""(requirement such as `tensorflow==2.18.0`, python="3.11") -> the wheel that pip takes for it."""

# pip does not derive older platforms from a newer one.
_PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010", "linux")
_UNREACHABLE = r"connection broken by|Could not fetch URL|HTTP error 5\d\d|Temporary failure|Network is unreachable"


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
def official_wheels(bed_folder: Path) -> OfficialWheels:
    """Wheels from PyPI, downloaded once a machine. Skips only where PyPI cannot be reached."""
    known: dict[tuple[str, str], Path] = {}

    def official_wheel(requirement: str, python: str = "3.11") -> Path:
        key = (requirement, python)
        if key not in known:
            folder = bed_folder / "wheels" / f"{requirement}-py{python}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                known[key] = _whole_wheel(folder) or _downloaded(folder, requirement, python)
        return known[key]

    return official_wheel


def _whole_wheel(folder: Path) -> Path | None:
    """The wheel in a folder, if it is the bytes that were downloaded; else the folder is removed."""
    sums = folder / "SHA256SUMS"
    if sums.exists():
        digest, name = sums.read_text("utf-8").split()
        wheel = folder / name
        if wheel.exists() and _sha256(wheel) == digest:
            return wheel
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _downloaded(folder: Path, requirement: str, python: str) -> Path:
    """Download into a folder beside the wanted one and rename that: an interrupted one leaves nothing half."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        part = Path(temporary) / "part"
        platforms = [option for one in _PLATFORMS for option in ("--platform", f"{one}_x86_64")]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", *platforms]
        options = ["--python-version", python, "--no-cache-dir", "--progress-bar", "off", "--dest", str(part)]
        done = subprocess.run([*command, *options, requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            told = done.stderr.strip()[-2000:]
            if broken := re.search(rf".*({_UNREACHABLE}).*", done.stderr):
                pytest.skip(f"PyPI cannot be reached: {broken[0]}")
            pytest.fail(f"pip cannot download {requirement}: {told}")
        (wheel,) = part.glob("*.whl")
        (part / "SHA256SUMS").write_text(f"{_sha256(wheel)}  {wheel.name}\n", "utf-8")
        part.rename(folder)
    return folder / wheel.name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
