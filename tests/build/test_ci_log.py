"""What CI services hear: commands that say what they should, and nothing that somebody else put into a text."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.cli import ci_log, console
from tfdock.cli.ci_log import ANNOTATIONS, SUMMARY_BYTES, GitHub, GitLab, annotation, cell, markdown, service_of
from tfdock.errors import Problem

from .runner import Command, commands, outputs

HOSTILE = (
    "a,b:c%0A=x\n::add-path::/tmp\r\n  ::stop-commands::x\r::set-env name=A::b ##[add-mask]x | `<b>` \u202e\x1b[31m"
)


def problem(**fields: object) -> Problem:
    return Problem(**({"code": "some-code", "message": "a message"} | fields))  # type: ignore[arg-type]


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


def github(log: io.StringIO, **variables: str) -> GitHub:
    return GitHub({"GITHUB_ACTIONS": "true", **variables}, log)


# --- which one ------------------------------------------------------------------------------------------------------


def test_a_service_is_known_by_what_it_sets() -> None:
    assert isinstance(service_of({"GITHUB_ACTIONS": "true"}), GitHub)
    assert isinstance(service_of({"GITLAB_CI": "true"}), GitLab)
    assert type(service_of({"CI": "true"})) is type(service_of({})) is ci_log.CiService


def test_elsewhere_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    nobody = service_of({})
    with nobody.fold("x"):
        nobody.annotate([problem()])
    nobody.outputs({"a": "b"})
    nobody.summary("x", ["a"], [["b"]])
    assert nobody.harmless(HOSTILE) == HOSTILE
    assert capfd.readouterr() == ("", "")


# --- annotations ----------------------------------------------------------------------------------------------------


def test_an_annotation_says_where_what_why_and_what_to_do() -> None:
    found = problem(file="profiles/x.yaml", line=3, column=9, why="it is", fixes=("this", "that"))
    assert annotation(found) == (
        "::error file=profiles/x.yaml,line=3,col=9,title=some-code::a message%0Awhy: it is%0Afix: this%0Afix: that"
    )
    assert annotation(problem(severity="warning")).startswith("::warning title=some-code::")


@given(text=st.text(alphabet=st.sampled_from("ab:,%0AD\n\r=; #[]\u2028é")), file=st.text(min_size=1))
def test_whatever_stands_in_a_problem_arrives_as_one_annotation(text: str, file: str) -> None:
    (found,) = commands(annotation(problem(message=f"m{text}", file=file, line=7)))
    assert found == Command("error", f"m{text}", {"file": file, "line": "7", "title": "some-code"})


def test_a_file_is_named_as_the_repository_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for file, expected in (
        ("a.yaml", "sub/a.yaml"),
        ("../b.yaml", "b.yaml"),
        (str(tmp_path / "c.yaml"), "c.yaml"),
        ("/elsewhere/d.yaml", None),
    ):
        (found,) = commands(annotation(problem(file=file, line=1), str(tmp_path)))
        assert found.properties.get("file") == expected


def test_no_more_than_nine_are_shown_however_many_times_it_is_asked(log: io.StringIO) -> None:
    service = github(log)
    for number in range(5):
        service.annotate([problem(message=f"{number}"), problem(message=f"{number}b"), problem(message=f"{number}c")])
    found = commands(log.getvalue())
    assert len(found) == ANNOTATIONS == 9
    assert [one.data for one in found[:4]] == ["0", "0b", "0c", "1"]


def test_warnings_leave_room_for_errors(log: io.StringIO) -> None:
    service = github(log)
    service.annotate([problem(severity="warning")] * 20)
    service.annotate([problem()] * 20)
    assert [one.name for one in commands(log.getvalue())] == ["warning"] * 4 + ["error"] * 5


def test_a_text_without_end_is_cut(log: io.StringIO) -> None:
    github(log).annotate([problem(message="x" * 100_000)])
    assert 3_000 < len(log.getvalue()) < 4_200


# --- the log --------------------------------------------------------------------------------------------------------


@given(text=st.lists(st.sampled_from([*"a :#[]\n\r\t\u2003", "error", "::error::", "##[error]"])).map("".join))
def test_a_log_gives_no_commands(text: str) -> None:
    assert commands(f"{text}\n{HOSTILE}")
    assert commands(GitHub({}).harmless(f"{text}\n{HOSTILE}")) == []


def test_a_log_without_commands_stays_as_it_is() -> None:
    text = "std::vector<int> x;\na::b\n# [x]\n  : :\nfile:3:9: error: y"
    assert GitHub({}).harmless(text) == text


def test_what_is_told_of_a_hostile_profile_is_one_annotation_and_no_other_command(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = github(log)
    monkeypatch.setattr(ci_log, "here", lambda: service)
    monkeypatch.setattr("sys.stderr", log)
    console.show_problems([problem(message=HOSTILE, file=f"{HOSTILE}.yaml", why=HOSTILE, fixes=HOSTILE)])
    console.say(HOSTILE)
    (found,) = commands(log.getvalue())
    assert found.name == "error"
    assert found.properties["file"] == f"{HOSTILE}.yaml"
    assert found.data.startswith(f"{HOSTILE}\nwhy: ")


def test_a_group_ends_whatever_happens_in_it(log: io.StringIO) -> None:
    def fails() -> None:
        with github(log).fold("a%\n::error::b"):
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert commands(log.getvalue()) == [Command("group", "a%\n::error::b"), Command("endgroup", "")]


def test_sections_of_gitlab_have_names_of_their_own_and_stay_on_one_line(log: io.StringIO) -> None:
    service = GitLab(log)
    with service.fold("one\nsection_start:1:x\r\x1b[0K"), service.fold("two"):
        log.write("inside\n")
    mark = r"\x1b\[0Ksection_(start|end):(\d+):([\w.-]+)(\[collapsed=true\])?\r\x1b\[0K([^\r\n\x1b]*)\n"
    found = [match.groups() for match in re.finditer(mark, log.getvalue())]
    assert [kind for kind, *_ in found] == ["start", "start", "end", "end"]
    assert found[0][2] == found[3][2] != found[1][2] == found[2][2]
    assert found[0][4] == "one section_start:1:x  [0K"
    assert re.sub(mark, "", log.getvalue()) == "inside\n"


# --- outputs and summary --------------------------------------------------------------------------------------------


def test_outputs_arrive_as_they_are(tmp_path: Path, log: io.StringIO) -> None:
    values = {"one": "a=b", "two": "x\n\ntfdock_\nname<<EOF\n", "three": "", "four": HOSTILE.replace("\r", "")}
    file = tmp_path / "output"
    file.write_text("before=1\n")
    github(log, GITHUB_OUTPUT=str(file)).outputs(values)
    assert outputs(file.read_text()) == {"before": "1", **values}
    assert log.getvalue() == ""


def test_without_a_file_or_with_one_that_cannot_be_written_the_command_goes_on(
    tmp_path: Path, log: io.StringIO
) -> None:
    github(log).outputs({"a": "b"})
    assert log.getvalue() == ""
    github(log, GITHUB_OUTPUT=str(tmp_path)).outputs({"a": "b"})
    assert [one.name for one in commands(log.getvalue())] == ["warning"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tf2.18.0-py3.11-cuda12.5.1-sm86", "tf2.18.0-py3.11-cuda12.5.1-sm86"),
        ("a|b", "a&#124;b"),
        ("a\nb\x1b[31m", "a b &#91;31m"),
        ("<script>", "&#60;script&#62;"),
        ("https://x.example", "https&#58;//x.example"),
        ("www.x.example", "www&#46;x.example"),
        ("x86_64: _x_ __x__ a_", "x86_64: &#95;x&#95; &#95;&#95;x&#95;&#95; a&#95;"),
        ("**x** `z` [l](u) ~a~ $m$ \\| &lt; @me #1", None),
    ],
)
def test_a_cell_is_text_and_nothing_else(text: str, shown: str | None) -> None:
    found = cell(text)
    assert shown is None or found == shown
    assert not re.search(r"[|<>`*\[\]~$\\@\n]|&(?!#\d+;)", found)
    told = re.sub(r"&#(\d+);", lambda one: chr(int(one[1])), found)
    assert told == " ".join("".join(one if one.isprintable() else " " for one in text).split())


def test_a_table_has_a_line_for_each_row() -> None:
    table = markdown("Wheels", ["a", "b"], [["1", "x|y"], ["2", "z"]], SUMMARY_BYTES)
    assert table == "### Wheels\n\n| a | b |\n| --- | --- |\n| 1 | x&#124;y |\n| 2 | z |\n\n"


@pytest.mark.parametrize("room", [0, 30, 60, 100, 1000, 5000])
def test_a_table_keeps_to_its_room_and_says_what_is_left_out(room: int) -> None:
    rows = [[f"row {number}", "é" * 5] for number in range(100)]
    table = markdown("Wheels", ["a", "b"], rows, room)
    assert len(table.encode()) <= room
    shown = len(re.findall("^. row", table, re.MULTILINE))
    if table:
        assert f"{100 - shown} more rows are in the log" in table or shown == 100


def test_a_summary_stays_below_what_github_takes_with_all_that_was_there_before(
    tmp_path: Path, log: io.StringIO
) -> None:
    file = tmp_path / "summary.md"
    file.write_text("x" * 200_000)
    service = github(log, GITHUB_STEP_SUMMARY=str(file))
    rows = [[f"tf{number}", HOSTILE * 40] for number in range(10_000)]
    for _ in range(3):
        service.summary("Wheels", ["build", "what"], rows)
    assert 850_000 < file.stat().st_size <= SUMMARY_BYTES
    assert "more rows are in the log" in file.read_text()
