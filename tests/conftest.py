"""Options of the whole suite, and the official wheels that its parts share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import soak
from bed import bed
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from official import UnreachableError, official_wheel
from waits import FETCH, run_within

pytest_plugins = ["limits"]

#: (requirement such as `tensorflow==2.18.0`, python="3.11") -> the wheel that pip takes for it.
OfficialWheels = Callable[..., Path]

_TESTS = Path(__file__).parent
_SECOND = os.environ.get("TFDOCK_BED_SECOND")  #: The engine that the bed has for a second process.


# A shell lets its background jobs ignore Ctrl-C, and so does all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is printed is compared: also inside of a CI service, and whatever width readline tells worker processes.
for _variable in ("GITHUB_ACTIONS", "GITLAB_CI", "COLUMNS", "LINES"):
    os.environ.pop(_variable, None)

# A busy machine makes an example slow, and says nothing about the code. The examples are the same each time: a suite
# that fails by chance stops whoever has changed something else. `search` has others each time.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=200, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="K/N", help="the K-th of N parts of the tests")
    parser.addoption("--quick", action="store_true", help="of each test three permutations at most")
    parser.addoption("--golden", action="store_true", help="write the expected renders below tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    """Give each process an engine of its own: what a test counts on it is its own, and two test at once."""
    if config.getoption("hypothesis_profile") != "search":
        # Hypothesis also tries constants out of the modules that are loaded, which the tests before have chosen.
        none = Constants()
        providers._get_local_constants = lambda: none
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0" and _SECOND:
        bed("engine", "second", "up")
        os.environ["DOCKER_HOST"] = _SECOND


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What shares a fixture that takes long stays in one of several processes (`-n 2 --dist loadgroup`)."""
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        group = folder if folder in ("attacks", "engine", "faults") else item.path.stem
        if group in ("test_tensorflow_configure", "test_toolkit_targets"):
            group = "the image of 2.14"  # which is large
        if folder == "faults" and "[real" in item.nodeid:
            group = "faults with the real Bazel"  # another engine than the others have
        if item.get_closest_marker("engine") and not _SECOND:
            group = "the engine"
        item.add_marker(pytest.mark.xdist_group(group))
    soak.mark(config, items)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the thousands of tests, which live to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)  # as the program has it


@pytest.fixture(scope="session")
def refresh_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--golden"))


@pytest.fixture(scope="session")
def official_wheels() -> OfficialWheels:
    """Wheels from PyPI, downloaded once a machine. Skips only where PyPI cannot be reached."""

    @cache
    def wheel(requirement: str, python: str = "3.11") -> Path:
        try:
            return official_wheel(requirement, python)
        except UnreachableError as error:
            pytest.skip(f"PyPI cannot be reached: {error}")

    return wheel


@pytest.fixture(scope="module")
def xprof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python that has xprof."""
    folder = tmp_path_factory.mktemp("xprof")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    run_within(FETCH, [str(folder / "bin/python"), "-m", "pip", "install", "-q", "xprof==2.24.2"]).check_returncode()
    yield folder / "bin/python"
    shutil.rmtree(folder)  # 350 MB
