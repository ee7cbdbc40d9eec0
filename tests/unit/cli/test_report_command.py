"""`tfdock report`: which record it takes, what it prints, and the page that it writes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from tfdock.bazel.trace_profile import TracedAction, TraceProfile, read_profile
from tfdock.cli.pages.build_page import build_page
from tfdock.cli.pages.timeline import timeline

from .. import command_line
from .html_pages import Page

ID = "tf9.9.0-py3.11-cpu-x86_64"
FILES = Path(__file__).parents[1] / "data/bazel"
RECORD: dict[str, Any] = {
    "schema": "tfdock.record/1",
    "build_id": ID,
    "fingerprint": "f" * 64,
    "finished": "2026-11-21T22:34:09+00:00",
    "toolchain_key": "e15ed4792ec563ec",
    "log": "run-1.log",
    "wheels": [{"file": "tensorflow-9.9.0-cp311-cp311-linux_x86_64.whl", "sha256": "a" * 64, "size": 1}],
    "seconds": {"image": 1.5, "compile": 61.0},
    "attempts": 2,
    "plan": {"resources": {"jobs": 2, "cpus": 4, "memory": 8_000_000_000}},
    "kept": {"profile": "run-1.profile.gz", "spawns": "run-1.spawns.gz"},
    "verification": {"checks": []},
    "bazel": {
        "hits": 3,
        "executed": 5,
        "sources": {"disk": 3},
        "executed_by_mnemonic": {"CppCompile": 3, "CppLink": 1, "Genrule": 1},
        "critical_path": {"seconds": 1.05, "actions": [{"name": "Compiling prog.cc", "seconds": 0.722}]},
        "slowest": [{"name": "Compiling prog.cc", "mnemonic": "CppCompile", "how": "executed", "seconds": 0.715}],
        "wall_seconds": 6.766,
        "bazel_cpu_seconds": 4.16,
        "output_bytes": 1_500_000,
        "why": {
            "since": {"build_id": ID, "finished": "2026-11-20T10:00:00+00:00"},
            "sentences": ["`--copt=-O3` was added"],
            "not_compared": [],
            "misses": {"CppCompile": {"other arguments": 3}},  # of an earlier version
        },
    },
}


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    folder = tmp_path / "wheelhouse/.tfdock" / ID / ("f" * 12)
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(RECORD))
    shutil.copy(FILES / "4.2.3-cold.profile.json", folder / "run-1.profile.gz")
    return tmp_path / "wheelhouse"


def run(wheelhouse: Path, *words: str | Path) -> Result:
    return command_line.run("report", *words, TFDOCK_WHEELHOUSE=str(wheelhouse))


def keep(wheelhouse: Path, record: dict[str, Any]) -> None:
    """Keep this record in place of the build's own."""
    (wheelhouse / ".tfdock" / ID / ("f" * 12) / "record.json").write_text(json.dumps(record))


# --- the record -----------------------------------------------------------------------------------------------------


def test_a_record_is_taken_by_its_build_id_its_folder_or_its_file(wheelhouse: Path) -> None:
    folder = wheelhouse / ".tfdock" / ID / ("f" * 12)
    said = [run(wheelhouse, name).stdout for name in (ID, folder, folder / "record.json")]
    assert said[0] == said[1] == said[2]
    assert said[0].startswith("build\n")


def test_of_several_builds_of_an_id_the_newest_counts(wheelhouse: Path) -> None:
    folder = wheelhouse / ".tfdock" / ID / ("e" * 12)
    folder.mkdir()
    newer = RECORD | {"finished": "2026-11-22T00:00:00+00:00", "fingerprint": "e" * 64}
    (folder / "record.json").write_text(json.dumps(newer))
    assert "finished   2026-11-22 00:00" in run(wheelhouse, ID).stdout


def test_a_name_that_is_no_record_is_refused_with_what_there_is(wheelhouse: Path, tmp_path: Path) -> None:
    result = run(wheelhouse, ID.replace("9.9.0", "9.9.1"))
    assert result.exit_code == 2
    assert "[record-not-found]" in result.stderr
    assert f"did you mean `{ID}`?" in result.stderr
    far = run(wheelhouse, "x")
    assert f"there are: {ID}." in far.stderr
    empty = run(tmp_path / "nowhere", "x", "--json")
    assert empty.exit_code == 2
    assert json.loads(empty.stdout)["problems"][0]["code"] == "record-not-found"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": "tfdock.check/1"}',
        '{"schema": "tfdock.record/1", "seconds": 5}',
        '{"schema": "tfdock.record/1", "seconds": {"compile": "x"}}',
        '{"schema": "tfdock.record/1", "bazel": {"slowest": [5]}}',
        '{"schema": "tfdock.record/1", "wheels": "x"}',
        '{"schema": "tfdock.record/1", "bazel": {"why": {"since": "x"}}}',
        '{"schema": "tfdock.record/1", "seconds": {"compile": 1e400}}',
        '{"schema": "tfdock.record/1", "bazel": {"slowest": [{"name": "x", "seconds": Infinity}]}}',
        '{"schema": "tfdock.record/1", "bazel": {"critical_path": {"seconds": NaN}}}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_a_file_that_is_no_record_is_refused_and_nothing_is_written(
    wheelhouse: Path, tmp_path: Path, content: str
) -> None:
    (tmp_path / "x.json").write_text(content)
    result = run(wheelhouse, tmp_path / "x.json", "-o", tmp_path / "page.html")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "[record-unreadable]" in result.stderr
    assert not (tmp_path / "page.html").exists()


# --- what it prints -------------------------------------------------------------------------------------------------


def test_the_report_has_all_that_is_known(wheelhouse: Path) -> None:
    said = run(wheelhouse, ID).stdout
    for line in (
        f"  build id   {ID}",
        "  compile  1:01",
        "  from the disk cache        3",
        "  CPU time of Bazel itself   4.2 s",
        "  CppCompile  3",
        "critical path, 1.1 s",
        "  0.7 s  Compiling prog.cc",
        "why actions ran again, compared with the build of 2026-11-20 10:00",
        "  `--copt=-O3` was added",
        "  attempts  2",
    ):
        assert any(re.sub(" +", " ", line) == re.sub(" +", " ", one) for one in said.splitlines()), (line, said)


def test_phases_stand_in_their_order_and_kinds_with_the_most_first(wheelhouse: Path) -> None:
    bazel = RECORD["bazel"] | {"executed_by_mnemonic": {"A": 1, "B": 7}}
    seconds = {"compile": 2.0, "fetch": 1.0, "image": 3.0, "other": 4.0}
    keep(wheelhouse, RECORD | {"seconds": seconds, "bazel": bazel})
    said = [line.split()[0] for line in run(wheelhouse, ID).stdout.splitlines() if line.strip()]
    assert said[said.index("phases") + 1 :][:4] == ["image", "fetch", "compile", "other"]
    assert said[said.index("B") + 1] == "A"


def test_an_older_record_says_less(wheelhouse: Path) -> None:
    always = ("schema", "build_id", "fingerprint", "log", "wheels", "seconds", "attempts")
    keep(wheelhouse, {key: RECORD[key] for key in always})
    result = run(wheelhouse, ID, "-o", wheelhouse / "page.html")
    assert result.exit_code == 0, result.stderr
    assert "critical path" not in result.stdout
    assert "Timeline" not in (wheelhouse / "page.html").read_text()


def test_an_action_of_which_little_is_known_is_told_with_the_rest(wheelhouse: Path, tmp_path: Path) -> None:
    record = RECORD | {"bazel": {"slowest": [{"name": "Compiling", "seconds": 3}], "why": {"since": {}}}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    result = run(wheelhouse, tmp_path, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    assert "Compiling" in (tmp_path / "page.html").read_text()


def test_what_is_not_known_is_not_told_as_none(wheelhouse: Path, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps({"schema": "tfdock.record/1", "build_id": ID}))
    result = run(wheelhouse, tmp_path, "-o", tmp_path / "page.html")
    assert "None" not in result.stdout + (tmp_path / "page.html").read_text()


def test_half_a_character_is_printed_and_drawn(wheelhouse: Path, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(RECORD | {"build_id": "x\ud800"}))
    assert run(wheelhouse, tmp_path, "-o", tmp_path / "page.html").exit_code == 0
    result = run(wheelhouse, tmp_path, "--json")
    assert json.loads(result.stdout)["build_id"] == "x\ud800"


def test_a_record_of_which_nobody_knows_where_it_lies_is_not_found(wheelhouse: Path) -> None:
    keep(wheelhouse, {key: RECORD[key] for key in RECORD if key != "fingerprint"})
    result = run(wheelhouse, ID)
    assert result.exit_code == 2
    assert "[record-not-found]" in result.stderr


def test_a_damaged_record_beside_it_is_passed_over(wheelhouse: Path) -> None:
    (wheelhouse / ".tfdock" / ID / "damaged").mkdir()
    (wheelhouse / ".tfdock" / ID / "damaged" / "record.json").write_text("[" * 100_000)
    assert run(wheelhouse, ID).exit_code == 0


def test_a_page_that_cannot_be_written_leaves_the_one_before_and_loses_nothing(
    wheelhouse: Path, tmp_path: Path
) -> None:
    result = run(wheelhouse, ID, "-o", tmp_path)
    assert (result.exit_code, "[file-error]" in result.stderr) == (2, True)
    assert result.stdout.startswith("build\n")
    nowhere = run(wheelhouse, ID, "-o", tmp_path / "a" / "page.html")
    assert (nowhere.exit_code, "[file-error]" in nowhere.stderr) == (2, True)


def test_programs_get_the_record(wheelhouse: Path) -> None:
    found = command_line.document(run(wheelhouse, ID, "--json"), "tfdock.report/1")
    assert (list(found)[2], found["ok"]) == ("record", True)
    assert found["bazel"] == RECORD["bazel"]
    assert found["seconds"] == RECORD["seconds"]


# --- the page -------------------------------------------------------------------------------------------------------


def page(wheelhouse: Path) -> tuple[Page, str]:
    result = run(wheelhouse, ID, "-o", wheelhouse / "page.html")
    assert result.exit_code == 0, result.stderr
    text = (wheelhouse / "page.html").read_text("utf-8")
    return Page(text), text


def test_the_page_tells_the_same_and_draws_the_profile(wheelhouse: Path) -> None:
    found, text = page(wheelhouse)
    assert found.text("h1") == ID
    titles = [title for _, title in found.elements("h2")]
    assert titles == ["Cache", "Timeline", "Critical path, 1.1 s", "Slowest actions", "Phases", "The build"]
    (chart,) = found.elements("svg", class_="chart")
    assert chart[0]["aria-label"] == "5 actions in 1.0 s, at most 2 at a time: 5 executed, 0 from a cache."
    kinds = sorted(held["data-kind"] for held, _ in found.elements("rect") if "data-kind" in held)
    # The bar of shares, and the timeline.
    assert kinds == sorted(["cached", "kind-0", "kind-1", "kind-2", *["kind-0"] * 3, "kind-1", "kind-2"])
    assert text == build_page(RECORD, read_profile((FILES / "4.2.3-cold.profile.json").read_text().splitlines()))


def test_the_page_loads_nothing_and_runs_nothing(wheelhouse: Path) -> None:
    found, text = page(wheelhouse)
    assert found.elements("script") == []
    assert not re.search(r"https?:|//[a-z]+\.", text.replace("//:gen", ""))
    style = found.elements("style")
    assert len(style) == 1
    digest = re.search(r"style-src '(sha256-[^']+)'", text)
    assert digest
    css = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert css
    assert digest[1] == f"sha256-{base64.b64encode(hashlib.sha256(css[1].encode()).digest()).decode()}"


def test_without_the_profile_there_is_no_timeline(wheelhouse: Path) -> None:
    (wheelhouse / ".tfdock" / ID / ("f" * 12) / "run-1.profile.gz").unlink()
    found, _ = page(wheelhouse)
    assert "Timeline" not in [title for _, title in found.elements("h2")]


TEXT = st.text(max_size=30) | st.sampled_from(["</style><script>x", "\"'><b>", "{{ 1 }}", "\u202e", "a" * 300])


@pytest.mark.slow
@given(name=TEXT, mnemonic=TEXT, sentence=TEXT)
def test_names_are_text_and_nothing_else(name: str, mnemonic: str, sentence: str) -> None:
    def made(name: str, mnemonic: str, sentence: str) -> Page:
        action = TracedAction(name=name, start=0.0, seconds=1.0, lane=0, how="executed", mnemonic=mnemonic)
        one = {"name": name, "mnemonic": mnemonic, "how": "executed", "seconds": 1.0}
        bazel = {
            "executed": 1,
            "executed_by_mnemonic": {mnemonic: 1},
            "slowest": [one],
            "critical_path": {"seconds": 1.0, "actions": [one]},
            "why": {"sentences": [sentence.replace("`", "") or "x"]},
        }
        return Page(build_page({"build_id": name or "x", "bazel": bazel}, TraceProfile(actions=(action,))))

    assert made(name, mnemonic, sentence).tags == made("x", "y", "z").tags


# --- where bars stand ---------------------------------------------------------------------------------------------

SECONDS = st.floats(min_value=0, max_value=1e5, allow_nan=False)


@given(
    st.lists(
        st.tuples(SECONDS, SECONDS, st.integers(0, 9), st.sampled_from(["executed", "cached", "own"])), max_size=20
    )
)
def test_no_bar_and_no_tick_leaves_the_picture(rows: list[tuple[float, float, int, Any]]) -> None:
    actions = tuple(
        TracedAction(name="x", start=at, seconds=took, lane=lane, how=how) for at, took, lane, how in rows
    )
    drawn = timeline(TraceProfile(actions=actions))
    assert (drawn is None) == all(how == "own" for *_, how in rows)
    if drawn:
        assert all(one.x >= 0 and one.x + one.width <= 100.01 and one.width >= 0 for one in drawn.bars)
        assert all(one.y >= 0 and one.y + drawn.lane <= drawn.axis + 0.01 for one in drawn.bars)
        assert 1 <= len(drawn.ticks) <= 6
        assert all(0 <= one.x < 93 for one in drawn.ticks)


def test_a_kind_has_one_colour_in_both_pictures() -> None:
    kinds = ["B", "A", "C", "A"]
    actions = [
        TracedAction(name=kind, start=float(at), seconds=1.0, lane=0, how="executed", mnemonic=kind)
        for at, kind in enumerate(kinds)
    ]
    record = {"bazel": {"executed": 4, "executed_by_mnemonic": {"A": 2, "B": 1, "C": 1}}}
    text = build_page(record, TraceProfile(actions=tuple(actions)))
    legends = re.findall(r'class="(kind-\d)"[^>]*/></svg>(?:\d executed: )?(\w)', text)
    assert len(legends) == 6
    assert {name: kind for kind, name in legends[:3]} == {name: kind for kind, name in legends[3:]}


def test_lanes_of_bazels_own_work_take_no_room() -> None:
    actions = [
        TracedAction(name="x", start=0.0, seconds=1.0, lane=lane, how="executed" if lane == 7 else "own")
        for lane in range(9)
    ]
    drawn = timeline(TraceProfile(actions=tuple(actions)))
    assert drawn is not None
    assert len(drawn.bars) == 1
    assert drawn.axis < 30
