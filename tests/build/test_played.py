"""The Bazel that is played back, beside the real one: the same words, actions, wheel, and ends of builds."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from played.record import record

from .conftest import EditedTree
from .harness import CPU, PLAYED, Json, Outcome, Tfdock, contents
from .test_build import DEMO_WHEELS, LIBRARY
from .test_failures import SLOW_COMPILE, compiling, slow_fetch

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

Build = Callable[[Tfdock, Path], Outcome]


def words(text: str) -> list[str]:
    """What is printed, but for progress, numbers and names of a run. Bazel may say its last line once more."""
    lines = (
        re.sub(r"\d+", "N", line)
        for line in text.splitlines()
        if line and not re.match(r"\[|Loading|Analyzing|INFO: (Invocation|Deleting)", line)
    )
    return list(dict.fromkeys(lines))


def test_what_was_recorded_is_what_the_real_bazel_prints_executes_and_builds(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    record(tmp_path / "work", made)
    for phase in ("fetch", "compile"):
        assert words((made / f"{phase}.txt").read_text()) == words((PLAYED / f"{phase}.txt").read_text())
    new, old = ((folder / "actions.txt").read_text().splitlines() for folder in (made, PLAYED))
    assert sorted(new) == sorted(old)
    assert new[-1] == old[-1]
    (new_wheel,), (old_wheel,) = (list(folder.glob("*.whl")) for folder in (made, PLAYED))
    assert new_wheel.name == old_wheel.name
    (known,) = DEMO_WHEELS
    if known.encode() in contents(new_wheel)[LIBRARY]:  # Debian's newer compiler may write other code
        assert contents(new_wheel) == contents(old_wheel)


def interrupted(tfdock: Tfdock, profile: Path) -> Outcome:
    running = compiling(tfdock, profile)
    return running.end_by(signal.SIGINT)


@pytest.mark.parametrize(
    ("edits", "build"),
    [
        pytest.param({}, Tfdock.build, id="well"),
        pytest.param(SLOW_COMPILE, interrupted, id="interrupted"),
        pytest.param(slow_fetch("127.0.0.1:1"), Tfdock.build, id="nobody answers"),
    ],
)
def test_a_build_ends_alike(
    tfdock: Tfdock, played: EditedTree, edited: EditedTree, edits: Json, build: Build
) -> None:
    outcomes = [build(tfdock, profile) for profile in (played(edits), edited(edits, **CPU))]
    ends = [
        (one.code, one.build["status"], [problem["code"] for problem in one.build["problems"]]) for one in outcomes
    ]
    assert ends[0] == ends[1]
    assert [cause["id"] for cause in outcomes[0].build["diagnosis"]] == [
        cause["id"] for cause in outcomes[1].build["diagnosis"]
    ]


def test_a_second_build_takes_all_from_the_cache(tfdock: Tfdock, played: EditedTree, edited: EditedTree) -> None:
    figures = []
    for profile in (played({}), edited({}, **CPU)):
        assert tfdock.build(profile).code == 0
        again = tfdock.build("--force", profile, code=0)
        figures.append(
            (again.build["cache"]["executed"], again.build["cache"]["hits"], again.build["cache"]["sources"])
        )
    assert figures[0] == figures[1]
