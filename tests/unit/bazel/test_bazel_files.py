"""What is read from the files that Bazel writes: real ones of 4.2.3 and 0.26.1, cold and warm, and broken ones."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.bazel import build_events, output, trace_profile
from tfdock.bazel.build_events import Figures, Step, read_events, read_output
from tfdock.bazel.trace_profile import read_profile
from tfdock.builder import build_summary

from ..backtracking import most_ways
from ..steps import steps

FILES = Path(__file__).parents[1] / "data/bazel"
VERSIONS = ("4.2.3", "0.26.1")
EXECUTED = {"CppCompile": 3, "CppLink": 1, "Genrule": 1}


def text(name: str) -> str:
    return (FILES / name).read_text("utf-8")


def lines(name: str) -> list[str]:
    return text(name).splitlines(keepends=True)


# --- the build event file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_event_file_of_a_cold_build(version: str) -> None:
    build = read_events(lines(f"{version}-cold.events.json"))
    assert build.figures == Figures(hits=0, executed=5)
    assert build.runners == {"local": 5}
    assert build.sources == {}
    assert build.actions == 7
    assert [one.name for one in build.critical] == ["Compiling prog.cc", "Linking prog", "Executing genrule //:gen"]
    assert build.critical_seconds is not None
    assert build.critical_seconds == pytest.approx(sum(one.seconds for one in build.critical), abs=0.03)
    assert build.output_bytes is None, "neither says it"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_event_file_of_a_warm_build(version: str) -> None:
    build = read_events(lines(f"{version}-warm.events.json"))
    assert build.figures == Figures(hits=5, executed=0)
    assert build.sources == {"disk": 5}, "4.2.3 and 0.26.1 call it a remote cache hit; there was no remote cache"


def test_seconds_are_those_that_the_version_tells() -> None:
    new, old = (read_events(lines(f"{version}-cold.events.json")) for version in VERSIONS)
    assert (new.wall_seconds, new.cpu_seconds) == (6.766, 4.16)
    assert (old.wall_seconds, old.cpu_seconds, old.version) == (4.126, None, "0.26.1")


def event(**fields: object) -> str:
    return json.dumps({"id": {}, **fields})


def metrics(**runners: int) -> str:
    rows = [{"name": name.replace("_", " "), "count": count} for name, count in runners.items()]
    return event(buildMetrics={"actionSummary": {"runnerCount": rows}})


def said(stderr: str) -> str:
    return event(progress={"stderr": stderr})


def parsed(*options: str) -> str:
    return event(optionsParsed={"cmdLine": list(options)})


DISK, REMOTE = "--disk_cache=/tf/cache/disk", "--remote_cache=grpc://127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "hits", "sources"),
    [
        ((DISK,), {"remote_cache_hit": 3}, {"disk": 3}),
        ((REMOTE,), {"remote_cache_hit": 3}, {"remote": 3}),
        ((DISK, "--remote_executor=grpc://127.0.0.1:1"), {"remote_cache_hit": 3}, {"cache": 3}),
        ((DISK, REMOTE), {"remote_cache_hit": 3, "disk_cache_hit": 4}, {"disk": 4, "remote": 3}),
        ((DISK, "--remote_cache="), {"remote_cache_hit": 3}, {"disk": 3}),
        ((), {"remote_cache_hit": 3}, {"cache": 3}),
    ],
)
def test_where_hits_came_from_is_said_where_it_is_known(
    options: tuple[str, ...], hits: dict[str, int], sources: dict[str, int]
) -> None:
    assert read_events([parsed(*options), metrics(**hits, local=1)]).sources == sources


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(
            [metrics(total=13, disk_cache_hit=3, internal=2, local=7, worker=1)],
            Figures(hits=3, executed=8),
            id="metrics",
        ),
        pytest.param(
            [metrics(total=9, remote_cache_hit=4, disk_cache_hit=5)],
            Figures(hits=9, executed=0),
            id="all from caches",
        ),
        pytest.param(
            [said("INFO: 13 processes: 3 disk cache hit, 10 local.\n")], Figures(hits=3, executed=10), id="0.26"
        ),
        pytest.param([said("INFO: 1 process: 1 processwrapper-sandbox.")], Figures(executed=1), id="one process"),
        pytest.param(
            [said("INFO: 13,000 processes: 1,500 remote cache hit, 2 internal, 11,498 local.")],
            Figures(hits=1500, executed=11498),
            id="thousands",
        ),
        pytest.param([said("INFO: 0 processes.")], None, id="no processes"),
        pytest.param([said(f"INFO: 9 processes: ² local, , local, {'9' * 5000} local.")], None, id="no numbers"),
        pytest.param([said("INFO: 2 processes: 2 local.\r\n")], Figures(executed=2), id="a carriage return"),
        pytest.param(
            [said("INFO: 5 processes: 5 local.\n"), metrics(local=6)], Figures(executed=6), id="metrics win"
        ),
        pytest.param(
            [said("INFO: 5 processes: 5 local.\n"), said("INFO: 7 processes: 7 local.\n")],
            Figures(executed=7),
            id="the last line counts",
        ),
        pytest.param([], None, id="no events"),
        pytest.param(['{"progress": {"stderr": "', metrics(local=1)], Figures(executed=1), id="a torn line"),
        pytest.param(["[]", "5", '"x"', "null", "{}"], None, id="other JSON"),
    ],
)
def test_figures_come_from_metrics_or_from_the_summary_line(events: list[str], expected: Figures | None) -> None:
    assert read_events(events).figures == expected


def test_bytes_are_told_where_bazel_counts_them() -> None:
    metrics = {"artifactMetrics": {"outputArtifactsSeen": {"sizeInBytes": "123456789012", "count": 3}}}
    assert read_events([event(buildMetrics=metrics)]).output_bytes == 123456789012


def test_without_an_event_file_the_output_says_what_it_can() -> None:
    printed = [
        "[1 / 2] Compiling\n",
        "INFO: Elapsed time: 4.126s, Critical Path: 0.49s\n",
        "INFO: 5 processes: 5 local.\n",
    ]
    build = read_output(printed)
    assert (build.figures, build.wall_seconds, build.critical_seconds) == (Figures(executed=5), 4.126, 0.49)
    assert build.critical == ()
    assert read_output(["nothing\n"]).figures is None


# --- the profile --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_profile_of_a_cold_build(version: str) -> None:
    profile = read_profile(lines(f"{version}-cold.profile.json"))
    assert profile.by_mnemonic == EXECUTED
    assert [one.name for one in profile.critical] == ["Compiling prog.cc", "Linking prog", "Executing genrule //:gen"]
    slowest = profile.slowest(1)[0]
    assert (slowest.name, slowest.how, slowest.mnemonic) == ("Compiling prog.cc", "executed", "CppCompile")
    own = {one.name for one in profile.actions if one.how == "own"}
    assert own == {"BazelWorkspaceStatusAction stable-status.txt", "Writing file prog-2.params"}
    assert {one.lane for one in profile.actions} == {0, 1}
    assert not profile.merged


@pytest.mark.parametrize("version", VERSIONS)
def test_the_profile_of_a_warm_build(version: str) -> None:
    profile = read_profile(lines(f"{version}-warm.profile.json"))
    assert profile.by_mnemonic == {}
    assert sum(one.how == "cached" for one in profile.actions) == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_actions_of_a_lane_do_not_overlap(version: str) -> None:
    actions = read_profile(lines(f"{version}-cold.profile.json")).actions
    for one, other in itertools.combinations(actions, 2):
        if one.lane == other.lane:
            assert one.start + one.seconds <= other.start + 1e-6


def trace(*events: dict[str, Any]) -> list[str]:
    return ["[\n", *(f"  {json.dumps({'ph': 'X', 'pid': 1, 'tid': 1} | one)},\n" for one in events), "]"]


def test_a_newer_profile_says_the_mnemonic_itself_and_merged_events_are_noticed() -> None:
    action = {
        "cat": "action processing",
        "name": "Compiling a.cc",
        "ts": 5,
        "dur": 9,
        "args": {"mnemonic": "CppCompile"},
    }
    merged = {"cat": "general information", "name": "merged 7 events", "ts": 20, "dur": 3}
    profile = read_profile(trace({"cat": "remote output download", "name": "x", "ts": 6, "dur": 1}, action, merged))
    assert [(one.mnemonic, one.how) for one in profile.actions] == [("CppCompile", "cached")]
    assert profile.merged


# --- broken files -------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[list[str]], object]] = {
    "events": read_events,
    "profile": read_profile,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["id", "progress", "stderr", "buildMetrics", "actionSummary", "runnerCount", "name", "count", "buildToolLogs",
         "log", "contents", "cat", "ts", "dur", "tid", "args", "mnemonic", "optionsParsed", "cmdLine",
         "timingMetrics", "wallTimeInMs"]
    ), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
@given(value=JSON)
def test_json_of_any_shape_raises_nothing(kind: str, value: object) -> None:
    READERS[kind]([json.dumps(value), "\n"])


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_that_was_cut_off_raises_nothing(version: str, kind: str) -> None:
    whole = text(f"{version}-cold.{kind}.json")
    for end in range(0, len(whole), max(1, len(whole) // 60)):
        READERS[kind](whole[:end].splitlines(keepends=True))


@pytest.mark.parametrize("kind", READERS)
def test_what_is_no_json_raises_nothing(kind: str) -> None:
    READERS[kind](
        ["\0\1\2", "[" * 100_000, '{"a":' * 100_000 + "}", "{" + "9" * 5000 + "}", '{"ts": ' + "9" * 5000 + "}"]
    )


def test_no_number_is_larger_or_smaller_than_it_can_be() -> None:
    for count in (-1, 10**400):
        metrics = {
            "actionSummary": {"actionsExecuted": count, "runnerCount": [{"name": "local", "count": count}]},
            "timingMetrics": {"wallTimeInMs": count},
        }
        build = read_events([event(buildMetrics=metrics)])
        assert (build.actions, build.wall_seconds, build.figures) == (None, None, Figures())
    nines = "9" * 400
    text = f"INFO: Elapsed time: {nines}s, Critical Path: {nines}s\n  {nines}s action 'x'\n"
    build = read_events([said(text)])
    assert (build.wall_seconds, build.critical_seconds, build.critical) == (None, None, ())
    action = {"cat": "action processing", "name": "x", "ts": 5}
    assert read_profile(trace(action | {"dur": -1}, action | {"dur": float("inf")})).actions == ()


def test_actions_around_many_events_are_read_in_the_time_that_their_number_takes() -> None:
    def nested(count: int) -> list[str]:
        action = {"cat": "action processing", "name": "x", "ts": 0, "dur": count}
        event = {"cat": "remote action cache check", "name": "y", "dur": 1}
        return trace(*(event | {"ts": at} for at in range(count)), *[action] * count)

    few, many = nested(200), nested(400)
    assert {one.how for one in read_profile(many).actions} == {"cached"}
    assert steps(lambda: read_profile(many)) < 2.5 * steps(lambda: read_profile(few))


def test_a_name_is_cut_before_it_fills_the_record() -> None:
    action = {"cat": "action processing", "name": "x" * 10**6, "ts": 5, "dur": 9, "args": {"mnemonic": "y" * 10**6}}
    (found,) = read_profile(trace(action)).actions
    assert max(len(found.name), len(found.mnemonic)) <= 300


@pytest.mark.parametrize(
    "expression",
    [one for module in (build_events, output) for one in vars(module).values() if isinstance(one, re.Pattern)],
    ids=lambda expression: expression.pattern[:40],
)
def test_no_text_is_searched_in_more_ways_than_its_end_has_characters(expression: re.Pattern[str]) -> None:
    """Without flags: a search for the beginning of a line begins once in each."""
    assert most_ways(expression.pattern, build_events._LONGEST) <= build_events._LONGEST


def test_only_the_end_of_a_text_is_read() -> None:
    summary = "INFO: 3 processes: 1 disk cache hit, 2 linux-sandbox.\n"
    assert read_events([said(" " * 10**6 + summary)]).figures
    assert read_events([said(summary + " " * 10**6)]) == read_events([])


def test_a_step_knows_its_seconds() -> None:
    printed = b"Critical Path: 0.28s\n  0.02s action 'Packing x'\n  0.26s action 'Executing genrule //x:y'"
    log = {"name": "critical path", "contents": base64.b64encode(printed).decode()}
    path = read_events([event(buildToolLogs={"log": [log]})]).critical
    assert path == (Step(name="Executing genrule //x:y", seconds=0.26), Step(name="Packing x", seconds=0.02))


def test_of_what_a_stranger_wrote_only_so_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_profile, "_MOST", 3)
    action = {"cat": "action processing", "name": "x", "ts": 1, "dur": 1, "tid": 1}
    assert len(read_profile([json.dumps(action) + ",\n"] * 10).actions) == 3


def test_what_a_profile_says_takes_little_room_in_a_record() -> None:
    rows = [
        {
            "cat": "action processing",
            "name": f"{n} {'x' * 2000}",
            "ts": n * 10,
            "dur": 5,
            "args": {"mnemonic": f"M{n}"},
        }
        for n in range(2000)
    ]
    ran = [{"cat": "subprocess.run", "name": "x", "ts": n * 10 + 1, "dur": 1} for n in range(2000)]
    path = [{"cat": "critical path component", "name": f"action '{n}'", "ts": n, "dur": 1} for n in range(2000)]
    found = read_profile(trace(*rows, *ran, *path))
    assert len(found.actions) == 2000
    assert (len(found.by_mnemonic), len(found.critical)) == (200, 300)
    counts = [{"name": f"{n} {'x' * 2000}", "count": 1} for n in range(2000)]
    event = json.dumps({"buildMetrics": {"actionSummary": {"runnerCount": counts}}})
    assert len(json.dumps(dict(read_events([event]).runners))) < 20_000


def test_of_a_packed_file_only_so_many_characters_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    action = json.dumps({"cat": "action processing", "name": "x", "ts": 1, "dur": 1, "tid": 1}) + ",\n"
    (tmp_path / "profile.gz").write_bytes(gzip.compress(action.encode() * 10))
    monkeypatch.setattr(build_summary, "_MOST_PROFILE", 3 * len(action))
    assert len(build_summary.load_profile(tmp_path / "profile.gz").actions) == 3
