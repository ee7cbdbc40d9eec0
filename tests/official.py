"""Official wheels from PyPI, downloaded once a machine into the test bed's store, which all clones share.

The bed need not be up.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from filelock import FileLock
from waits import FETCH, run_within

# pip does not derive older platforms from a newer one.
_PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010", "linux")
_UNREACHABLE = r"connection broken by|Could not fetch URL|HTTP error 5\d\d|Temporary failure|Network is unreachable"


class UnreachableError(Exception):
    """PyPI cannot be reached."""


def store() -> Path:
    """The folder of the test bed that all clones on this machine share."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    default = "/var/cache/tfdock-bed" if os.geteuid() == 0 else cache / "tfdock-bed-store"
    return Path(os.environ.get("TFDOCK_BED_STORE") or default)


def official_wheel(requirement: str, python: str = "3.11") -> Path:
    """The wheel that pip takes for a requirement; another process that asks for the same waits."""
    folder = store() / "wheels" / f"{requirement}-py{python}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=FETCH):
        return _whole_wheel(folder) or _downloaded(folder, requirement, python)


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
        done = run_within(FETCH, [*command, *options, requirement])
        if done.returncode:
            if broken := re.search(rf".*({_UNREACHABLE}).*", done.stderr):
                raise UnreachableError(broken[0])
            raise RuntimeError(f"pip cannot download {requirement}: {done.stderr.strip()[-2000:]}")
        (wheel,) = part.glob("*.whl")
        (part / "SHA256SUMS").write_text(f"{_sha256(wheel)}  {wheel.name}\n", "utf-8")
        part.rename(folder)
    return folder / wheel.name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
