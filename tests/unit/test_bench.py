"""What `make bench` computes and prints of what it has measured; the measuring itself takes an engine and an hour."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tfdock.profile import profile as profiles

FILE = Path(__file__).parent.parent / "bench" / "bench.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The script as a module; afterwards the way to modules is as it was."""
    path, known = list(sys.path), set(sys.modules)
    spec = importlib.util.spec_from_file_location("tfdock_bench", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = path
        for name in {name for name in set(sys.modules) - known if name.partition(".")[0] in ("build", spec.name)}:
            del sys.modules[name]


def test_both_sides_are_measured_as_often_and_begin_in_turn(bench: ModuleType) -> None:
    called: list[str] = []

    def side(name: str) -> float:
        called.append(name)
        return float(len(called))

    row = bench.Row(name="x", aim=1.0, reference_command="y").measure(3, lambda: side("ours"), lambda: side("theirs"))
    assert called == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert (row.ours, row.reference) == ([1, 4, 5], [2, 3, 6])


@pytest.mark.parametrize(("ours", "met"), [([1.0, 1.05, 9.0], True), ([1.0, 1.06, 9.0], False)])
def test_medians_count_and_an_aim_is_met_or_marked(bench: ModuleType, ours: list[float], met: bool) -> None:
    row = bench.Row(name="x", aim=1.05, reference_command="y", ours=ours, reference=[0.5, 1.0, 1.0])
    told = row.as_json()
    assert (told["ours"], told["reference"], told["ratio"]) == (ours[1], 1.0, ours[1])
    assert (told["aim"], told["met"], told["runs"], told["unit"]) == (1.05, met, 3, "s")
    assert told["samples"] == {"ours": ours, "reference": [0.5, 1.0, 1.0]}
    head, line = bench.table([row])
    assert line.endswith("MISSED") is not met
    assert head.split() == ["tfdock", "range", "reference", "range", "ratio", "aim", "runs"]
    assert line.split()[:4] == ["x", f"{ours[1]:.2f}", "s", "1.00–9.00"]


def test_a_row_that_fails_and_a_group_that_fails_stop_no_other(
    bench: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def row(name: str, *command: str) -> Any:
        def side() -> float:
            bench.output(*command)
            return 1.0

        return bench.Row(name=name, aim=1.0, reference_command="y").measure(1, side, lambda: 1.0)

    def first(_: object) -> Iterator[Any]:
        yield row("broken", "sh", "-c", "seq 100 >&2; exit 3")
        yield row("whole", "true")

    def second(_: object) -> Iterator[Any]:
        yield row("before", "true")
        raise ValueError("no wheel")

    groups = {"first": first, "second": second, "third": lambda _: iter([row("after", "true")])}
    rows = list(bench.measured(bench.Bench(tmp_path, quick=True), groups))
    told = capfd.readouterr().err
    assert "bench: broken failed:\n82\n" in told
    assert "\n100\nsh -c 'seq 100 >&2; exit 3' ended with 3\n" in told
    assert "bench: the rest of second failed:\n" in told
    assert "ValueError: no wheel\n" in told
    assert bench.report(rows, False, {}, tmp_path) == 1
    _, *lines = capfd.readouterr().out.splitlines()
    names = [line[:28].strip() for line in lines]
    assert names == ["broken", "whole", "before", "the rest of second", "after"]
    assert [line.endswith("  FAILED") for line in lines] == [True, False, False, True, False]
    written = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [one["name"] for one in written if "error" in one] == ["broken", "the rest of second"]
    assert [one["ratio"] for one in written if "error" not in one] == [1.0] * 3


def test_a_quick_run_says_so_and_leaves_the_figures_of_a_whole_one(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = bench.Row(name="x", aim=1.0, reference_command="y", ours=[1.0], reference=[1.0])
    for quick in (False, True):
        assert bench.report([row], quick, {}, tmp_path) == 0
        assert ("mean nothing" in capsys.readouterr().out.partition("\n")[0]) is quick
    documents = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert {name: one["quick"] for name, one in documents.items()} == {"bench.json": False, "bench-quick.json": True}


def test_a_push_may_send_half_as_much_again_and_a_little_for_each_pack(bench: ModuleType) -> None:
    assert bench.most_sent(1000, 0) == 1500
    assert bench.most_sent(0, 2) == 2 * 65536


def test_the_profiles_that_are_measured_are_profiles(bench: ModuleType, tmp_path: Path) -> None:
    related = list(bench.related_profiles(tmp_path / "related"))
    assert len(related) == 4
    written = list(bench.written_profiles(tmp_path / "many"))
    assert len(written) == 200
    assert len({path.read_text() for path in (*related, *written)}) == 204
    for path in written:
        profiles.read(path.read_text(), str(path), None)
