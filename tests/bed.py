"""The test bed, for tests that need a part of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BED = Path(__file__).parents[1] / "ci/bed/bed"


def bed(*words: str) -> str:
    """Ask the test bed; what it prints, which for a part is where it lies, fetched if need be.

    Within a bed (TFDOCK_BED is set) what it cannot do is a failure: a skip would hide it. Elsewhere it is a skip.
    """
    done = subprocess.run([BED, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        told = f"the test bed cannot `{' '.join(words)}`: {' '.join(done.stderr.strip().splitlines()[-1:])}"
        pytest.fail(told) if os.environ.get("TFDOCK_BED") else pytest.skip(told)
    return done.stdout.strip()
