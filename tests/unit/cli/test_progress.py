"""How builds are shown: one with its last lines, several with a row or a prefix each, and the time that is left."""

from __future__ import annotations

import io

import pytest

from tfdock import events
from tfdock.cli import console
from tfdock.cli.progress import PlainProgress, RunningPhase, Tally, short_names
from tfdock.cli.terminal_progress import TerminalProgress
from tfdock.types import BuildId

ONE, OTHER = BuildId("tf9-one"), BuildId("tf9-other")


class Screen(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that it is; a test moves it."""
    now = [1000.0]
    monkeypatch.setattr("tfdock.cli.progress.time.monotonic", lambda: now[0])
    return now


def started(build: BuildId, phase: str = "compile", **fields: float) -> events.PhaseStarted:
    return events.PhaseStarted(build_id=build, phase=phase, **fields)


def test_the_time_left_counts_the_phases_that_follow(clock: list[float]) -> None:
    going = RunningPhase()
    assert going.left == ""
    going.take(started(ONE, expected=600.0, after=60.0))
    clock[0] += 100
    assert going.left == "about 9:20 left"
    going.take(events.Progress(done=500, total=1000))
    assert (going.count, going.left) == ("[500 / 1,000]", "about 2:40 left")
    going.take(events.PhaseEnded(build_id=ONE, phase="compile", seconds=1, ok=True))
    assert going.left == ""


def test_a_total_that_grows_with_the_count_is_no_end_that_is_known(clock: list[float]) -> None:
    going = RunningPhase()
    going.take(started(ONE, expected=3600.0))
    for done in range(30, 2000, 30):  # as Bazel 0.24 counts: never far ahead
        clock[0] += 30
        going.take(events.Progress(done=done, total=done + 4))
        assert done == 30 or going.count == f"[{done:,} / ?]"
    assert going.left == "about 27:00 left", "as an earlier build took"
    for done in range(2000, 2100, 5):  # slower files take as long as all before
        clock[0] += 60
        going.take(events.Progress(done=done, total=done + 4))
        assert going.count == f"[{done:,} / ?]"
    for done in range(2100, 4300, 30):  # and as it counts once it has found all
        clock[0] += 30
        going.take(events.Progress(done=done, total=4344))
    assert going.count == "[4,290 / 4,344]"


def test_a_count_that_stands_still_counts_down_then_names_its_action_without_an_estimate(clock: list[float]) -> None:
    going = RunningPhase()
    going.take(started(ONE))
    clock[0] += 60
    going.take(events.Progress(done=24, total=32))
    assert going.left == "about 20 s left"
    for seconds, left in ((5, "about 15 s left"), (5, "about 10 s left"), (11, ""), (8, "")):
        clock[0] += seconds
        # Bazel repeats its count while nothing ends.
        going.take(events.Progress(done=24, total=32))
        going.take(events.Line(text="[24 / 32] Linking tensorflow/libtensorflow.so; 29s local"))
        assert going.left == left
    clock[0] += 200
    assert going.left == "for 3:49: Linking tensorflow/libtensorflow.so"
    assert going.seconds_left is None
    going.take(events.Progress(done=28, total=32))
    assert going.left == "about 41 s left"


def test_what_bazel_says_of_its_start_and_end_does_not_fill_the_last_lines() -> None:
    going = RunningPhase()
    for text in (
        "INFO: Reading rc options for 'build' from /tf/tensorflow/.bazelrc:",
        "  Inherited 'common' options: --isatty=0",
        "  'build' options: --define framework_shared_object=true",
        "INFO: Options provided by the client:",
        "INFO: Found applicable config definition build:cuda in file /tf/tensorflow/.bazelrc: --@local_config_cuda",
        "WARNING: The following configs were expanded more than once: [cuda]. For repeatable flags, repeats are",
        "INFO: Reading 'startup' options from /etc/bazel/bazelrc: --install_base=/usr/share/bazel-debian",
        "INFO: Analyzed target //tensorflow/tools/pip_package:wheel",
        "bash: exit 3",
        "Target //tensorflow/tools/pip_package:wheel failed to build",
        "Use --verbose_failures to see the command lines of failed build steps.",
        "INFO: Elapsed time: 3.260s, Critical Path: 0.11s",
        "INFO: 3 processes: 3 internal.",
        "FAILED: Build did NOT complete successfully",
        "INFO: Build Event Protocol files produced successfully.",
    ):
        going.take(events.Line(text=text))
    assert list(going.lines) == ["INFO: Analyzed target //tensorflow/tools/pip_package:wheel", "bash: exit 3"]


def test_of_an_action_that_goes_on_only_the_newest_line_is_shown() -> None:
    going = RunningPhase()
    for text in (
        "[1 / 9] Compiling a.cc; 1s local",
        "[1 / 9] Compiling a.cc; 3s local",
        "[2 / 9] Compiling b.cc; 1s local",
        "a.cc: warning: unused",
        "[2 / 9] Compiling b.cc; 4s local",
        "[3 / 9] Compiling b.cc; 9s local",
    ):
        going.take(events.Line(text=text))
    assert list(going.lines) == [
        "[1 / 9] Compiling a.cc; 3s local",
        "[2 / 9] Compiling b.cc; 1s local",
        "a.cc: warning: unused",
        "[3 / 9] Compiling b.cc; 9s local",
    ]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["tf2-py3.11-sm86-x86_64"], ["tf2-py3.11-sm86-x86_64"]),
        (["tf2-py3.11-sm86-x86_64", "tf2-py3.11-sm89-x86_64"], ["sm86", "sm89"]),
        (["tf2-py3.11-sm86-x86_64", "tf2-py3.12-sm89-x86_64"], ["py3.11-sm86", "py3.12-sm89"]),
        (["tf2-py3.11-cpu-x86_64", "tf2-py3.11-cuda12-sm86-x86_64"], ["cpu-x86_64", "cuda12-sm86-x86_64"]),
        (["tf2-a", "tf2"], ["a", "tf2"]),
    ],
)
def test_of_several_builds_the_part_of_the_name_that_differs_is_shown(names: list[str], short: list[str]) -> None:
    assert list(short_names(names).values()) == short


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_on_a_terminal_a_row_has_room_for_ctrl_c_and_a_build_is_named_once(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    build = BuildId(f"tf99.18.0.src13962b33-py3.11-cuda13.0.0-cudnn9.12.0-sm86-x86_64{'-x' * 20}")
    screen = Screen()
    shown = TerminalProgress(screen)
    try:
        shown(started(build, "image"))
        shown(events.PhaseEnded(build_id=build, phase="image", seconds=0.3, ok=True))
        shown(started(build))
        shown(events.Line(text="x" * 300))
        rows = [str(row) for row in shown._drawn().renderables]
        assert max(map(len, rows)) == columns - 3
    finally:
        shown.close()
    assert screen.getvalue().count(build) == 1


def test_in_a_pipe_each_line_of_several_builds_says_whose_it_is(clock: list[float]) -> None:
    stream = io.StringIO()
    several = PlainProgress(stream)
    one, other = several.of(ONE), several.of(OTHER)
    one(started(ONE))
    other(started(OTHER, "image"))
    one(events.Notice(text="something"))
    other(events.PhaseEnded(build_id=OTHER, phase="image", seconds=2.5, ok=False))
    clock[0] += 60
    one(events.Progress(done=3, total=18))
    one(events.Tick(silent=0))
    other(events.Tick(silent=0))
    assert stream.getvalue().splitlines() == [
        "tf9-one: compile …",
        "tf9-other: image …",
        "tf9-one: note: something",
        "tf9-other: image failed in 2.5 s",
        "tf9-one: compile 1:00, [3 / 18], about 5:00 left",
    ]


def test_on_a_terminal_each_of_several_builds_has_one_row() -> None:
    shown = TerminalProgress(Screen())
    try:
        one, other = shown.of(ONE), shown.of(OTHER)
        one(started(ONE))
        one(events.Progress(done=3, total=18))
        one(events.Line(text="first"))
        one(events.Line(text="[3 / 18] Compiling x.cc; 4s local"))
        other(started(OTHER, "fetch"))
        rows = [str(row) for row in shown._drawn().renderables]
        assert [row.split() for row in rows] == [
            ["●", "compile", "0.0", "s", "one", "[3", "/", "18]", "Compiling", "x.cc"],
            ["●", "fetch", "0.0", "s", "other"],
        ]
        other(events.Tick(silent=0.0, waits_for="another build of this command"))
        assert str(shown._drawn().renderables[1]).split(maxsplit=4)[::4] == [
            "○",
            "other  waits for another build of this command",
        ]
        one(started(ONE, "fetch"))
        assert str(shown._drawn().renderables[1]).endswith("waits for one"), "the only one that fetches"
        other(events.Line(text="Step 1"))
        assert str(shown._drawn().renderables[1]).split()[::5] == ["●", "Step"], "it works again"
        one(events.PhaseEnded(build_id=ONE, phase="fetch", seconds=1, ok=True))
        assert len(shown._drawn().renderables) == 1
    finally:
        shown.close()


def test_on_a_terminal_the_last_lines_of_a_phase_stay_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    shown = TerminalProgress(screen)
    try:
        for phase, line in (("fetch", "a download"), ("compile", f"a command {'x' * 60}")):
            shown(started(ONE, phase))
            shown(events.Line(text=line))
            shown(events.PhaseEnded(build_id=ONE, phase=phase, seconds=1, ok=phase == "fetch"))
    finally:
        shown.close()
    _, stays = screen.getvalue().split("✗")
    assert f"  a command {'x' * 24}…" in stays


def test_details_are_the_lines_of_each_build(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    several = PlainProgress(stream)
    several.of(ONE)(events.Line(text="gcc -c one.cc"))
    assert stream.getvalue() == ""
    monkeypatch.setattr(console, "verbosity", 1)
    several.of(ONE)(events.Line(text="gcc -c one.cc"))
    several(events.Line(text="gcc -c two.cc"))
    assert stream.getvalue() == "tf9-one: gcc -c one.cc\ngcc -c two.cc\n"


def test_in_a_pipe_a_line_says_how_far_a_matrix_is(clock: list[float]) -> None:
    stream = io.StringIO()
    several = PlainProgress(stream)
    several.expect({ONE: 600.0, OTHER: 300.0, "tf9-third": 300.0}, 2)
    one = several.of(ONE)
    one(started(ONE, expected=600.0))
    clock[0] += 100
    several.over(OTHER, "up-to-date")
    several.of("tf9-third")
    several.over("tf9-third", "failed")
    one(events.PhaseEnded(build_id=ONE, phase="compile", seconds=100, ok=True))
    several.over(ONE, "built")
    assert stream.getvalue().splitlines() == [
        "tf9-one: compile …",
        "1 of 3 done: 1 up-to-date; about 8:20 left",
        "2 of 3 done: 1 up-to-date, 1 failed; about 8:20 left",
        "tf9-one: compile done in 1:40",
        "3 of 3 done: 1 up-to-date, 1 failed, 1 built",
    ]


@pytest.mark.usefixtures("clock")
def test_an_estimate_for_all_is_shared_out_and_wants_one_for_each() -> None:
    running = RunningPhase()
    running.take(started(ONE, expected=600.0))
    assert Tally({OTHER: 100.0, "tf9-third": 200.0}, 1).summary({ONE: running}).endswith("; about 15:00 left")
    # Two at a time; but nothing is faster than what takes longest.
    assert Tally({OTHER: 500.0, "tf9-third": 500.0}, 2).summary({ONE: running}).endswith("; about 13:20 left")
    assert Tally({OTHER: 100.0}, 2).summary({ONE: running}).endswith("; about 10:00 left")
    assert Tally({OTHER: None}, 2).summary({ONE: running}) == "0 of 1 done"


@pytest.mark.usefixtures("clock")
def test_on_a_terminal_a_matrix_is_a_table_no_longer_than_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "14")
    monkeypatch.setenv("COLUMNS", "100")
    shown = TerminalProgress(Screen())

    def rows() -> list[str]:
        return [" ".join(str(row).split()) for row in shown._drawn().renderables]

    try:
        shown.expect({ONE: 60.0, OTHER: None, **{f"tf9-{number}": 60.0 for number in range(20)}}, 2)
        one = shown.of(ONE)
        one(started(ONE, expected=60.0))
        assert rows() == [
            "● compile 0.0 s one about 1:00 left",
            "○ waiting other",
            *(f"○ waiting 1:00 {number}" for number in range(4)),
            "and 16 more",
            "0 of 22 done",
        ]
        shown.of(OTHER)(started(OTHER, "image"))
        one(events.PhaseEnded(build_id=ONE, phase="compile", seconds=1, ok=True))
        shown.over(ONE, "built")
        assert rows()[0] == "● image 0.0 s other"
        assert rows()[-1] == "1 of 22 done: 1 built"
    finally:
        shown.close()
