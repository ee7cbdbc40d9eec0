"""Real compilers and official wheels, and a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import bed, missing
from official import store

from .browser import BROWSERS, Browser
from .workshop import Workshop


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    """Where files are made by real tools, once a machine."""
    return Workshop(store() / "made")


@pytest.fixture(scope="session")
def tensorflow_source() -> Path:
    """TensorFlow 2.14.1's tree, which the test bed fetches."""
    return Path(bed("tensorflow-source"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        missing("no Chromium: `ci/setup test` installs one on Debian")
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()
