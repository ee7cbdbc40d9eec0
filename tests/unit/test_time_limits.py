"""No test and no fixture takes longer than its limit: it fails with what it waited for, and the others go on."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from waits import run_within

TESTS = Path(__file__).parents[1]
SHORT = """
import limits
limits.CALL, limits.FIXTURES, limits.GRACE, limits.LATE = 2, 2, 1, 2
pytest_plugins = ["limits"]
"""
SAMPLE = """
import itertools, threading, time
import pytest
from waits import run_within

def endless_sleep():
    time.sleep(3600)

@pytest.fixture(scope="session")
def slow():
    endless_sleep()

@pytest.fixture
def never_gone():
    yield
    endless_sleep()

@pytest.fixture
def cleaned():
    yield
    print("torn down")

@pytest.mark.xdist_group("one")
def test_first(cleaned): pass

@pytest.mark.xdist_group("one")
def test_sleeps(cleaned): endless_sleep()

@pytest.mark.xdist_group("one")
def test_has_a_slow_fixture(cleaned, slow): pass

@pytest.mark.xdist_group("one")
def test_has_a_fixture_that_stays(cleaned, never_gone): pass

@pytest.mark.xdist_group("one")
def test_waits_for_a_lock(cleaned):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

@pytest.mark.xdist_group("one")
def test_never_leaves_c(cleaned): sum(itertools.repeat(0))

@pytest.mark.xdist_group("one")
def test_swallows_all(cleaned):
    while True:
        try:
            endless_sleep()
        except BaseException:
            pass

@pytest.mark.xdist_group("one")
def test_after_all_that(cleaned): pass

@pytest.mark.xdist_group("two")
def test_beside(): pass

@pytest.mark.xdist_group("two")
@pytest.mark.limit(3000)
def test_with_more_time(): time.sleep(3)
"""
DOCKER = """#!/bin/sh
echo "this is docker $*"
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of tests of which some never end."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "conftest.py").write_text(SHORT)
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(TESTS),
        "DOCKER_HOST": "unix:///the/engine.sock",
    }
    command = [sys.executable, "-m", "pytest", "-rA", "-n", "2", "--dist", "loadgroup", str(folder)]
    done = run_within(100, command, cwd=folder, env=environment)
    return done.stdout + done.stderr


def section(said: str, test: str) -> str:
    """What the report says of a failed test."""
    (found,) = re.findall(rf"^_+ (?:ERROR at \w+ of )?{test} _+$(.*?)(?=^[_=]{{9}})", said, re.MULTILINE | re.DOTALL)
    return str(found)


def outcomes(said: str, outcome: str) -> set[str]:
    return set(re.findall(rf"^{outcome} \S*::(\w+)", said, re.MULTILINE))


@pytest.mark.slow
def test_what_never_ends_fails_and_the_rest_passes(said: str) -> None:
    assert outcomes(said, "PASSED") >= {"test_first", "test_after_all_that", "test_beside", "test_with_more_time"}
    assert outcomes(said, "FAILED") == {
        "test_sleeps",
        "test_waits_for_a_lock",
        "test_never_leaves_c",
        "test_swallows_all",
    }
    assert outcomes(said, "ERROR") == {"test_has_a_slow_fixture", "test_has_a_fixture_that_stays"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "place", "told"),
    [
        ("test_sleeps", "test_sleeps", "the test took more than 2 s"),
        ("test_waits_for_a_lock", "test_waits_for_a_lock", "the test took more than 2 s"),
        ("test_has_a_slow_fixture", "slow", "the set-up took more than 2 s"),
        ("test_has_a_fixture_that_stays", "never_gone", "the teardown took more than 2 s"),
    ],
)
def test_the_report_has_the_stacks_and_the_containers(said: str, test: str, place: str, told: str) -> None:
    report = section(said, test)
    assert told in report
    assert re.search(rf'^E +File ".*test_sample.py", line \d+ in {place}$', report, re.MULTILINE)
    assert "this is docker --host unix:///the/engine.sock ps --all" in report


@pytest.mark.slow
def test_what_does_not_stop_is_reported_with_the_containers_and_its_stacks_are_printed(said: str) -> None:
    for test in ("test_never_leaves_c", "test_swallows_all"):
        assert re.search(rf'^  File ".*test_sample.py", line \d+ in {test}$', said, re.MULTILINE)
        assert re.search(rf"worker '\w+' crashed while running '\S*{test}\S*'", said)
    assert said.count("this is docker") >= 6


@pytest.mark.slow
def test_its_fixtures_are_torn_down(said: str) -> None:
    assert "torn down" in section(said, "test_sleeps")
