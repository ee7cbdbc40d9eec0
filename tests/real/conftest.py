"""Real compilers and official wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from .workshop import Workshop


@pytest.fixture(scope="session")
def workshop(bed_folder: Path) -> Workshop:
    """Where files are made by real tools, once a machine."""
    return Workshop(bed_folder / "made")
