"""A limit of time for every test and its fixtures.

What is over its limit fails, with the stacks of all threads and the engine's containers; its fixtures are torn down,
and the next test begins. What does not stop even then, in C code or in its own clean-up, ends its process with the
stacks printed: pytest-xdist reports that test as failed, and goes on in a new process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from time import monotonic  # the module's own may be a test's

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

CALL = 120.0  #: Seconds for a test. `@pytest.mark.limit(seconds)` gives more to one that takes more than half of it.
FIXTURES = 300.0  #: Seconds to set up the fixtures of a test, and to tear them down: engines start there.
GRACE = 30.0  #: Seconds that a test over its limit has to end.
#: Seconds by which a process that does not stop may end later. One watch takes a thread: so it serves many tests.
LATE = 300.0
_DOCKER = 10.0

_stderr: int
_watched = 0.0  #: When the watch ends this process.


def pytest_configure(config: pytest.Config) -> None:
    global _stderr
    config.addinivalue_line("markers", f"limit(seconds): may take longer than the {CALL:g} s of other tests")
    _stderr = os.dup(2)  # while a test runs, that one is captured


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(max(FIXTURES, _limit(item)), "the set-up"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(_limit(item), "the test"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(max(FIXTURES, _limit(item)), "the teardown"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    global _watched
    try:
        return (yield)
    finally:
        if nextitem is None:
            faulthandler.cancel_dump_traceback_later()
            _watched = 0.0


class Once(LoadGroupScheduling):  # type: ignore[misc]
    """pytest-xdist's own gives a test whose process has ended to the next process, and so on until none is left."""

    def remove_node(self, node: WorkerController) -> str | None:
        ended: str | None = None
        for unit in self.assigned_work[node].values():
            for test, done in unit.items():
                if ended is None and not done:
                    ended, unit[test] = test, True
        super().remove_node(node)
        return ended


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    return Once(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """Add to what pytest-xdist says of a test whose process has ended."""
    report.sections.append(("containers", _containers()))


def pytest_enter_pdb() -> None:
    """People may take their time; pytest itself takes back the other half of the limit."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("limit")
    return float(mark.args[0]) if mark else CALL


@contextlib.contextmanager
def _limited(seconds: float, what: str) -> Iterator[None]:
    def over(_number: int, _frame: object) -> None:
        __tracebackhide__ = True
        # No `Exception`: nothing swallows it.
        pytest.fail(f"{what} took more than {seconds:g} s\n\n{_stacks()}\n{_containers()}")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _watch(seconds + GRACE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _watch(seconds: float) -> None:
    """Have this process end unless it is watched again within that time, or up to LATE more."""
    global _watched
    now = monotonic()
    if not now + seconds <= _watched <= now + seconds + LATE:
        _watched = now + seconds + LATE / 4
        faulthandler.dump_traceback_later(_watched - now, exit=True, file=_stderr)


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()


def _containers() -> str:
    """The containers of the engine that the tests have, as a table."""
    host = os.environ.get("DOCKER_HOST")
    if not host:
        return ""
    columns = "table {{.Names}}\t{{.RunningFor}}\t{{.Status}}\t{{.Command}}"
    command = ["docker", "--host", host, "ps", "--all", "--format", columns]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOCKER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the engine does not list its containers: {error}"
    return f"containers of {host}:\n{done.stdout}{done.stderr}"
