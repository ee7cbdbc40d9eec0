"""What is read from Bazel's event file and output lines."""

from __future__ import annotations

import json

import pytest

from tfdock.bazel.build_events import Figures, read_events
from tfdock.bazel.output import first_error, is_error, progress, speaks_of_full_disk, speaks_of_network


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[12 / 345] Compiling tensorflow/core/framework/op.cc; 3s local", (12, 345)),
        ("[1,234 / 25,678] 8 actions running", (1234, 25678)),
        ("[0 / 1] [Prepa] BazelWorkspaceStatusAction", (0, 1)),
        ("INFO: [12 / 345] not at the start", None),
        ("[12 of 345]", None),
        ("[, / ,] Compiling", None),
        ("[² / ³] Compiling", None),
        (f"[{'9' * 4000} / 1] Compiling", None),
        ("", None),
    ],
)
def test_progress_is_read_from_bazels_own_lines_only(line: str, expected: tuple[int, int] | None) -> None:
    assert progress(line) == expected


def metrics(**runners: int) -> str:
    count = [{"name": name.replace("_", " "), "count": value} for name, value in runners.items()]
    return json.dumps({"id": {"buildMetrics": {}}, "buildMetrics": {"actionSummary": {"runnerCount": count}}})


def said(stderr: str) -> str:
    return json.dumps({"id": {"progress": {}}, "progress": {"stderr": stderr}})


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


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: /tf/tensorflow/BUILD:1:1: Couldn't build file",
        "FATAL: corrupt installation",
        "FAILED: Build did NOT complete successfully",
        "tensorflow/core/op.cc:3:10: fatal error: x.h: No such file or directory",
        "x.cu(12): error: expected a ';'",
        "tfdock: the tag has moved",
        "gcc: fatal error: Killed signal terminated program cc1plus",
        "ModuleNotFoundError: No module named 'numpy'",
        "bash: line 3:    71 Segmentation fault      (core dumped) bazel build //x",
    ],
)
def test_lines_that_report_an_error_are_found(line: str) -> None:
    assert is_error(line)


@pytest.mark.parametrize(
    "line",
    [
        "INFO: Analyzed target //tensorflow/tools/pip_package:wheel",
        "WARNING: Download from https://mirror.example failed: GET returned 404 Not Found",
        "Compiling tensorflow/core/platform/error_payloads.cc",
        "note: no errors: 0",
        "./configure: line 9: lsb_release: command not found",
        "",
    ],
)
def test_other_lines_are_not_taken_for_errors(line: str) -> None:
    assert not is_error(line)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["INFO: x", "ERROR: no such target", "ERROR: failed"], "ERROR: no such target", id="the first"),
        pytest.param(
            ["ERROR: An error occurred during the fetch of repository 'm':", "   Traceback (most recent call last):",
             "Error in download: java.io.IOException: GET returned 404", "ERROR: Error fetching repository: Trace"],
            "ERROR: An error occurred during the fetch of repository 'm': Error in download: java.io.IOException: "
            "GET returned 404",
            id="one that is only announced",
        ),
        pytest.param(["ERROR: nothing follows:"], "ERROR: nothing follows:", id="nothing follows"),
        pytest.param([f"ERROR: {'x' * 999}the end"], f"ERROR: {'x' * 293} … {'x' * 290}the end", id="a long one"),
        pytest.param(["INFO: fine", ""], "", id="none"),
    ],
)  # fmt: skip
def test_the_first_error_is_one_that_says_what_it_is(lines: list[str], expected: str) -> None:
    assert first_error(lines) == expected


@pytest.mark.parametrize(
    "line",
    [
        "java.net.UnknownHostException: storage.googleapis.com",
        "Error downloading [https://x/y.zip]: connect timed out",
        "Error downloading [https://x/y.zip]: GET returned 503 Service Unavailable",
        "curl: (6) Could not resolve host: github.com",
        "connect: Network is unreachable",
    ],
)
def test_a_failed_download_is_recognised(line: str) -> None:
    assert speaks_of_network(["INFO: fine", line])


@pytest.mark.parametrize("line", ["No space left on device", "java.io.IOException: write failed: ENOSPC"])
def test_a_full_disk_is_recognised(line: str) -> None:
    assert speaks_of_full_disk(["INFO: fine", line])


def test_ordinary_output_speaks_of_neither() -> None:
    lines = [
        "INFO: Build completed successfully, 503 total actions",
        "GET returned 200 OK",
        "Compiling connection.cc",
    ]
    assert not speaks_of_network(lines)
    assert not speaks_of_full_disk(lines)
