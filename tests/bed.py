"""The test bed, for tests that need a part of it."""

from __future__ import annotations

import os
import subprocess
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
