"""What is printed for people: never wider than the terminal, nothing torn apart that is to be typed."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import sys
import tty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock import events
from tfdock.cli import console
from tfdock.cli.terminal_progress import TerminalProgress
from tfdock.errors import Problem, Suggestion
from tfdock.events import Event
from tfdock.types import BuildId

from ..command_line import too_wide

RED, END = "\x1b[31m", "\x1b[0m"
PROSE = st.text(alphabet="abcdefgh `/-.é漢 \n", max_size=300)


@pytest.fixture
def style(monkeypatch: pytest.MonkeyPatch) -> console.Style:
    monkeypatch.setenv("NO_COLOR", "1")
    return console.Style(sys.stderr)


# --- how wide -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "expected"),
    [("132", 132), ("40", 40), ("3", 20)] + [(text, None) for text in ("0", "", "wide", "-5", "٤٢", "²", "9" * 5000)],
)
def test_what_columns_says_counts_and_without_it_a_pipe_has_no_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str, expected: int | None
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    console.tell("word " * 100 + "end")
    console.show_problems([Problem(code="a-b", message="word " * 100, why="why " * 100, fixes="fix " * 100)])
    lines = capsys.readouterr().err.splitlines()
    if expected is None:
        assert len(lines) == 4
    else:
        assert max(map(len, lines)) <= expected


def test_a_terminal_is_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl
    import struct
    import termios

    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 57, 0, 0))
        with os.fdopen(theirs, "w") as stream:
            assert console.width(stream) == 57
            monkeypatch.setenv("COLUMNS", "44")
            assert console.width(stream) == 44, "what the user says wins"
            monkeypatch.setenv("COLUMNS", "wide")
            assert console.width(stream) == 57
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
            assert console.width(stream) == 80, "a terminal that does not say"
    finally:
        os.close(ours)


def test_colours_take_no_room_and_wide_characters_take_two() -> None:
    assert console.columns_of(f"{RED}error{END}:") == 6
    assert console.columns_of("漢字") == 4
    assert console.columns_of("e\N{COMBINING ACUTE ACCENT}") == 1


def test_a_result_is_one_line_for_programs_and_fits_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"profile.yaml: {'x' * 30}"
    monkeypatch.delenv("COLUMNS", raising=False)
    console.result(f"{line} {'y' * 60}")
    assert capsys.readouterr().out == f"{line} {'y' * 60}\n"
    monkeypatch.setenv("COLUMNS", "40")
    console.result(line)
    assert capsys.readouterr().out == f"profile.yaml:\n  {'x' * 30}\n"


# --- wrapping -----------------------------------------------------------------------------------------------------


@given(PROSE, st.integers(20, 120), st.sampled_from(["", "  ", " " * 9]))
def test_only_a_code_span_is_wider_than_a_line_and_no_character_is_lost(text: str, columns: int, indent: str) -> None:
    lines = console.wrapped(text, columns, indent)
    assert too_wide(lines, columns) == []
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(PROSE, st.integers(20, 120))
def test_what_fits_stays_as_it_is(text: str, columns: int) -> None:
    if all(console.columns_of(line) <= columns for line in text.split("\n")):
        assert "\n".join(console.wrapped(text, columns)) == text


def test_words_paths_flags_and_code_spans_stay_whole() -> None:
    whole = ["/usr/lib/llvm-18/bin/clang", "--repo_env=HERMETIC_CUDA_VERSION=12.5.1", '`cuda: "12.5.1"  # and so on`']
    lines = console.wrapped(f"one {whole[0]} two {whole[1]} three {whole[2]}, and four", 42)
    assert len(lines) > 3
    for word in whole:
        assert any(word in line for line in lines), lines


def test_a_word_wider_than_a_line_is_broken_but_no_code_span_for_it_must_be_pasted_whole() -> None:
    assert console.wrapped("x" * 50, 20, "  ") == ["x" * 18, "  " + "x" * 18, "  " + "x" * 14]
    command = "`pip install tensorflow numpy`,"
    assert console.wrapped(f"first run {command} then go on", 20, "") == ["first run", command, "then go on"]


def test_continued_lines_are_indented_below_what_the_line_begins_with() -> None:
    lines = console.wrapped("  why: one two three four five", 20, "     ")
    assert lines == ["  why: one two three", "       four five"]


def test_line_breaks_of_the_text_stay() -> None:
    assert console.wrapped("one\n  log: two", 30) == ["one", "  log: two"]
    assert console.wrapped("", 30) == [""]


# --- problems -----------------------------------------------------------------------------------------------------

PROBLEM = Problem(
    code="target-not-in-toolkit",
    message="CUDA 11.0 cannot compile for sm_86",
    why="`gpus[0]` (rtx3080) wants it; without this refusal: `nvcc fatal   : Unsupported gpu architecture`",
    fixes=(
        "build it elsewhere",
        'keep CUDA 11.0: `tensorflow: "2.5.3"`',
    ),
    ways=(
        Suggestion(
            text='keep TensorFlow 2.4: `cuda: "11.1"` and `allow_untested: true`',
            change={},
            question="try a build that is not known to work",
        ),
        Suggestion(text='keep CUDA 11.0: `tensorflow: "2.5.3"`', change={}),
    ),
    file="profiles/x.yaml",
    line=6,
    column=8,
)


def test_a_problem_says_what_then_why_then_the_ways_out(style: console.Style) -> None:
    lines = list(console.problem_lines([PROBLEM], style, 120))
    assert lines == [
        "profiles/x.yaml:6:8: error: CUDA 11.0 cannot compile for sm_86 [target-not-in-toolkit]",
        "  why: `gpus[0]` (rtx3080) wants it; without this refusal: `nvcc fatal   : Unsupported gpu architecture`",
        "  fix: build it elsewhere",
        '  fix: keep CUDA 11.0: `tensorflow: "2.5.3"`',
        '  or try a build that is not known to work? keep TensorFlow 2.4: `cuda: "11.1"` and `allow_untested: true`',
    ]


def test_without_ways_the_problem_has_its_own_fix(style: console.Style) -> None:
    problem = Problem(code="disk-full", message="no room\n  log: /tmp/log", fixes="make room", severity="warning")
    assert list(console.problem_lines([problem], style, 80)) == [
        "warning: no room [disk-full]",
        "  log: /tmp/log",
        "  fix: make room",
    ]
    assert list(console.problem_lines([Problem(code="a-b", message="c")], style, 80)) == ["error: c [a-b]"]


def test_ways_out_of_several_problems_at_once_are_told_once_below_them(style: console.Style) -> None:
    other = Problem(
        code="library-target", message="cuDNN 8.0 has no code for it", fixes=PROBLEM.fixes, ways=PROBLEM.ways
    )
    lonely = Problem(code="config-unknown", message="no such config", fixes="remove it")
    lines = list(console.problem_lines([PROBLEM, other, lonely], style, 120))
    fixes = [line for line in lines if line.startswith("  fix:")]
    assert len(fixes) == 3
    assert lines.index(fixes[0]) > next(index for index, line in enumerate(lines) if "[library-target]" in line)
    assert lines[-1] == "  fix: remove it"


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100])
def test_a_problem_fits_the_terminal(style: console.Style, columns: int) -> None:
    lines = list(console.problem_lines([PROBLEM], style, columns))
    assert too_wide(lines, columns) == []
    if columns >= 60:
        assert any("`nvcc fatal   : Unsupported gpu architecture`" in line for line in lines)


def test_text_of_others_cannot_steer_the_terminal(style: console.Style) -> None:
    problem = Problem(code="a-b", message="one\x1b[2Jtwo", why="\x07bell", fixes="three\x9b")
    assert "\x1b" not in "".join(console.problem_lines([problem], style, 80))
    assert "\x07" not in "".join(console.problem_lines([problem], style, 80))


# --- the live display ---------------------------------------------------------------------------------------------


def _shown(columns: int, monkeypatch: pytest.MonkeyPatch, *events_: Event, said: str = "", result: str = "") -> str:
    """What a terminal of that width gets, in which a build shows its progress."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        progress = TerminalProgress(stream)
        try:
            for event in events_:
                progress(event)
            if said:
                console.say(said)
            if result:
                console.say(result, stream=sys.stdout)
        finally:
            progress.close()
        monkeypatch.undo()
    seen = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while data := os.read(ours, 1 << 16):
            seen += data
    os.close(ours)
    return seen.decode()


def test_what_is_to_be_pasted_is_not_broken_by_the_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"  install  pip install '/home/me/{'wheels of mine/' * 6}tensorflow.whl'"
    assert f"{command}\n" in _shown(40, monkeypatch, said=command)


def test_a_result_goes_where_it_was_sent_while_the_display_is_live(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "x.lock" not in _shown(40, monkeypatch, result="x.lock")
    assert capsys.readouterr().out == "x.lock\n"


def test_a_log_cannot_steer_the_terminal_it_is_shown_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started = events.PhaseStarted(build_id=BuildId("tf9"), phase="compile", expected=None)
    shown = _shown(40, monkeypatch, started, events.Line(text="one\x1b[2Jtwo\tthree"), said="x")
    assert "one�[2Jtwo" in shown
    assert "\x1b[2J" not in shown


# --- tables -------------------------------------------------------------------------------------------------------


def test_the_last_column_is_continued_under_itself() -> None:
    rows = [("2.18", "one two three four five six seven"), ("2.9", "eight")]
    assert console.table(rows, columns=30) == [
        "  2.18  one two three four",
        "        five six seven",
        "  2.9   eight",
    ]


def test_the_last_column_goes_below_where_there_is_no_room_beside() -> None:
    rows = [("source", "https://example.org/x.git", "the tag may move"), ("xla", "true", "as asked")]
    assert console.table(rows, columns=45) == [
        "  source  https://example.org/x.git",
        "      the tag may move",
        "  xla     true",
        "      as asked",
    ]


def test_a_word_goes_below_rather_than_to_be_broken() -> None:
    rows = [("COMPILER_PATH", "/usr/lib/llvm-18/bin/clang"), ("XLA", "1")]
    assert console.table(rows, columns=38) == [
        "  COMPILER_PATH",
        "      /usr/lib/llvm-18/bin/clang",
        "  XLA            1",
    ]


def test_a_row_in_a_pipe_is_one_line_however_long_and_fits_where_columns_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("rtx5080", "16 GiB", "x " * 60 + "end"), ("b", "", "")]
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    lines = console.table(rows)
    assert lines == [f"  rtx5080  16 GiB  {'x ' * 60}end", "  b"]
    told = [part for line in lines for part in console.wrapped(line, console.width(sys.stdout))]
    assert told == lines, "nor by whoever prints them"
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, console.table(rows))) <= 60


def test_cells_are_filled_up_by_what_is_seen() -> None:
    rows = [(f"{RED}a{END}", "one"), ("bbb", "two")]
    assert console.table(rows, columns=80) == [f"  {RED}a{END}    one", "  bbb  two"]


CELL = st.text(alphabet="abc /-.", max_size=60).map(str.strip)


ROWS = st.integers(1, 4).flatmap(lambda count: st.lists(st.tuples(*[CELL] * count), max_size=6))


@given(ROWS, st.integers(20, 120))
def test_no_table_is_wider_than_it_may_be(rows: list[tuple[str, ...]], columns: int) -> None:
    lines = console.table(rows, columns=columns)
    assert max(map(len, lines), default=0) <= columns
    assert "".join("".join(lines).split()) == "".join("".join(row) for row in rows).replace(" ", "")


@pytest.mark.usefixtures("style")
def test_in_a_pipe_a_long_reading_is_told_now_and_then_with_how_much_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([0.0, 1.0, 11.0, 12.0, 22.5])
    monkeypatch.setattr("tfdock.cli.console.time.monotonic", lambda: next(times))
    stream = io.StringIO()
    with console.ReadProgress(stream, "a\x1b[31m.whl", "received") as reading:
        reading(1_000_000)
        reading(1_000_000)
        reading.total = 8_000_000
        reading(1_000_000)
        reading(1_000_000)
    assert stream.getvalue() == "2.0 MB received: a�[31m.whl\n4.0 MB of 8.0 MB received: a�[31m.whl\n"


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.001, "1 min"), (0.5, "30 min"), (0.995, "1 h"), (47, "47 h"), (48, "2 days"), (119.6, "5 days")],
)
def test_estimates_are_told_in_figures_that_people_use(hours: float, text: str) -> None:
    assert console.rough_duration(hours * 3600) == text
