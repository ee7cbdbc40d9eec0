"""What is kept of a build, from what a container left in its staging folder; and what is told of it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdock.bazel.build_events import read_events
from tfdock.builder.build_summary import BuildSummary, RunTraces, load_inputs, load_profile, summarize
from tfdock.cli import summary_text
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.plan.local_source import listing_hash, tree_hash, tree_listing
from tfdock.types import BuildId
from tfdock.wheelhouse import publication
from tfdock.wheelhouse.store import WheelFile, Wheelhouse, kept_files

FILES = Path(__file__).parents[1] / "data/bazel"
ID = BuildId("tf9.9.0-py3.11-cpu-x86_64")
COMPILING = "=== tfdock: compile of it ==="
STAGED = {"events": "events.json", "profile": "profile.gz"}

Staged = Callable[..., RunTraces]


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    """Makes what a run leaves: the files of a recorded build, with some left out or replaced."""

    def make(
        recorded: str = "4.2.3-cold", *, run: str = "run-1", without: tuple[str, ...] = (), **fields: Any
    ) -> RunTraces:
        staging = tmp_path / run
        staging.mkdir()
        for kind, name in STAGED.items():
            if kind not in without:
                shutil.copy(FILES / f"{recorded}.{kind}.json", staging / name)
        log = tmp_path / f"{run}.log"
        log.write_text(f"INFO: 7 processes: 7 local.\n{COMPILING}\nINFO: 5 processes: 2 remote cache hit, 3 local.\n")
        made: dict[str, Any] = {
            "run": run,
            "results": staging,
            "log": log,
            "compiling": COMPILING,
            "toolchain": b"bazel 4.2.3\n",
            "context": {"Dockerfile": b"FROM x"},
            "files": {"a.cc": "file\0aa"},
            "cache_was_empty": False,
        }
        return RunTraces(**made | fields)

    return make


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


def record(*flags: str, fingerprint: str = "f" * 64, finished: str = "2026-11-21T22:00:00+00:00") -> dict[str, Any]:
    return {
        "schema": "tfdock.record/1",
        "build_id": ID,
        "fingerprint": fingerprint,
        "finished": finished,
        "toolchain_key": "k",
        "log": "run-1.log",
        "attempts": 1,
        "wheels": [],
        "seconds": {"image": 1.5, "compile": 61.0},
        "plan": {"bazel_flags": list(flags), "image": {"source": {"kind": "path"}}},
    }


def publish(house: Wheelhouse, written: dict[str, Any], told: BuildSummary) -> Path:
    house.record_folder(ID, written["fingerprint"]).path.mkdir(parents=True, exist_ok=True)
    sealed: dict[Path, WheelFile] = {}
    publication.publish(house, ID, written | {"bazel": told.bazel, "kept": dict(told.kept)}, sealed, told.files)
    return house.record_folder(ID, written["fingerprint"]).path


def figures(told: BuildSummary) -> Mapping[str, Any]:
    assert told.bazel is not None
    return told.bazel


# --- the account --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.2.3", "0.26.1"])
def test_the_account_of_a_cold_build(staged: Staged, house: Wheelhouse, version: str) -> None:
    found = figures(summarize(record(), staged(f"{version}-cold"), house))
    assert (found["hits"], found["executed"]) == (0, 5)
    assert found["executed_by_mnemonic"] == {"CppCompile": 3, "CppLink": 1, "Genrule": 1}
    assert found["slowest"][0]["name"] == "Compiling prog.cc"
    assert found["critical_path"]["actions"][-1]["name"] == "Executing genrule //:gen"
    assert found["why"]["sentences"] == ("this wheelhouse has no earlier build to compare with",)
    assert found == json.loads(json.dumps(found)) | {"why": found["why"]}


def test_without_a_profile_no_mnemonic_is_made_up(staged: Staged, house: Wheelhouse) -> None:
    found = summarize(record(), staged(without=("profile",)), house)
    assert figures(found)["executed_by_mnemonic"] is None
    assert figures(found)["slowest"] == []
    assert figures(found)["critical_path"]["seconds"] == 1.05, "the event file has it"
    assert set(found.kept) == {"inputs"}


def test_a_bazel_that_writes_nothing_is_read_by_its_output(staged: Staged, house: Wheelhouse) -> None:
    found = figures(summarize(record(), staged(without=tuple(STAGED)), house))
    assert (found["hits"], found["executed"], found["critical_path"]) == (2, 3, None), "what fetched does not count"


@pytest.mark.parametrize("content", [b"", b"\0BLAZEPROF\x7f\x01", b"\x1f\x8b\x08\0\0", b"{}\n"], ids=repr)
def test_a_profile_that_cannot_be_read_is_not_kept(staged: Staged, house: Wheelhouse, content: bytes) -> None:
    traces = staged()
    (traces.results / "profile.gz").write_bytes(content)
    found = summarize(record(), traces, house)
    assert "profile" not in found.kept
    assert figures(found)["executed"] == 5


def test_a_profile_that_is_cut_off_says_what_it_can(staged: Staged) -> None:
    traces = staged()
    file = traces.results / "profile.gz"
    whole = gzip.compress(file.read_bytes())
    file.write_bytes(whole[: 3 * len(whole) // 4])
    assert 0 < len(load_profile(file).actions) < 7


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_a_container_puts_in_their_place_is_left_alone(staged: Staged, house: Wheelhouse, kind: str) -> None:
    traces = staged()
    for name in STAGED.values():
        file = traces.results / name
        content = file.read_bytes()
        file.unlink()
        if kind == "link":
            (traces.results.parent / name).write_bytes(content)
            file.symlink_to(traces.results.parent / name)
        elif kind == "fifo":
            os.mkfifo(file)
        else:
            file.mkdir()
    found = summarize(record(), traces, house)
    assert figures(found)["executed"] == 3, "that is the log's"
    assert set(found.kept) == {"inputs"}


def test_a_checkout_is_hashed_as_it_is_listed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "a").chmod(0o755)
    listing = tree_listing(tmp_path)
    assert sorted(listing) == ["a", "b"]
    assert listing["a"].startswith("program\0")
    assert listing_hash(listing) == tree_hash(tmp_path)


# --- one build beside another -------------------------------------------------------------------------------------


def test_the_next_build_is_compared_with_what_was_kept(staged: Staged, house: Wheelhouse) -> None:
    publish(house, record(), summarize(record(), staged(), house))
    later = record("--copt=-O3", fingerprint="e" * 64)
    told = figures(summarize(later, staged(run="run-2", files={"a.cc": "file\0bb"}), house))["why"]
    assert told["sentences"] == ("source: a.cc changed", "`--copt=-O3` was added")
    assert told["since"]["finished"] == "2026-11-21T22:00:00+00:00"


def test_a_package_of_another_version_is_named(staged: Staged, house: Wheelhouse) -> None:
    tools = "bazel 4.2.3\npackage g++-12 12.2.0-{} amd64\npackage libc6 2.36-9 amd64\n"
    publish(house, record(), summarize(record(), staged(toolchain=tools.format(14).encode()), house))
    later = summarize(record(), staged(run="run-2", toolchain=tools.format(15).encode()), house)
    assert figures(later)["why"]["sentences"] == ("package g++-12 12.2.0-14 -> 12.2.0-15",)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\x1f\x8b", gzip.compress(b"[]"), gzip.compress(b"{")],
    ids=["missing", "empty", "cut", "a list", "half a map"],  # gzip has the time in it, a name must not
)
def test_what_was_kept_and_is_damaged_is_not_compared(
    staged: Staged, house: Wheelhouse, content: bytes | None
) -> None:
    told = summarize(record(), staged(), house)
    folder = publish(house, record(), told)
    file = folder / told.kept["inputs"]
    file.unlink() if content is None else file.write_bytes(content)
    again = figures(summarize(record(), staged(run="run-2", files={"a.cc": "other"}), house))["why"]
    assert "the files of the checkout" in again["not_compared"]
    assert again["differences"] == ()


def test_a_record_that_is_replaced_takes_its_files_with_it(staged: Staged, house: Wheelhouse) -> None:
    first = summarize(record(), staged(), house)
    folder = publish(house, record(), first)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*first.kept.values(), "record.json"])
    second = summarize(record(), staged(run="run-2", without=("profile",)), house)
    publish(house, record(), second)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*second.kept.values(), "record.json"])
    assert load_inputs(UntrustedPath(folder), {"kept": dict(second.kept)})


def test_a_record_of_an_earlier_version_is_compared_and_takes_its_spawns_with_it(
    staged: Staged, house: Wheelhouse
) -> None:
    first = summarize(record(), staged(), house)
    spawns = "run-1.spawns.gz"
    kept, files = {**first.kept, "spawns": spawns}, {**first.files, spawns: b"any"}
    folder = publish(house, record(), BuildSummary(bazel=first.bazel, kept=kept, files=files))
    assert (folder / spawns).exists()
    second = summarize(record("--copt=-O3"), staged(run="run-2"), house)
    assert figures(second)["why"]["sentences"] == ("`--copt=-O3` was added",)
    publish(house, record("--copt=-O3"), second)
    assert not (folder / spawns).exists()


@pytest.mark.parametrize("name", ["../../x.profile.gz", "/etc/passwd", "record.json", "run.log", 5])
def test_a_record_names_no_other_file(name: object) -> None:
    assert kept_files({"kept": {"profile": name}}) == {}


# --- what is told -------------------------------------------------------------------------------------------------


def test_three_lines_tell_what_happened(staged: Staged, house: Wheelhouse) -> None:
    publish(house, record(), summarize(record(), staged(), house))
    later = record("--copt=-O3", fingerprint="e" * 64)
    told = figures(summarize(later, staged(run="run-2"), house))
    assert list(summary_text.lines(told)) == [
        ("actions", "no action from a cache, 5 executed: 3 CppCompile, 1 CppLink, 1 Genrule"),
        ("longest", "critical path 1.1 s; slowest 0.7 s Compiling prog.cc"),
        ("why", "`--copt=-O3` was added (compared with the build of 2026-11-21 22:00)"),
    ]


def test_a_warm_build_needs_two(staged: Staged, house: Wheelhouse) -> None:
    told = figures(summarize(record(), staged("4.2.3-warm"), house))
    assert list(summary_text.lines(told)) == [
        ("actions", "5 from the disk cache, none executed"),
        ("longest", "critical path 0.1 s; slowest 0.1 s Compiling prog.cc"),
    ]


def test_of_many_reasons_three_are_told() -> None:
    why = {"since": None, "sentences": [f"reason {number}" for number in range(5)]}
    assert summary_text.why({"why": why}) == "reason 0; reason 1; reason 2; and 2 more"


def test_of_many_kinds_those_are_named_that_occur_most() -> None:
    told = {"executed": 41, "executed_by_mnemonic": {"A": 1, "B": 2, "C": 3, "D": 4, "E": 5, "F": 6, "G": 20}}
    assert (
        summary_text.actions(told)
        == "no action from a cache, 41 executed: 20 G, 6 F, 5 E, 4 D, 3 C, 3 of 2 other kinds"
    )


def test_names_cannot_steer_a_terminal() -> None:
    told = {"slowest": [{"seconds": 1.0, "name": "\x1b[2Jx"}], "executed_by_mnemonic": {"\x1b]0;x": 1}}
    assert "\x1b" not in "".join(text for _, text in summary_text.lines(told))


@pytest.mark.slow
def test_events_without_end_take_bounded_memory() -> None:
    def flood() -> Iterator[str]:
        for _ in range(3_000):
            yield json.dumps({"progress": {"stderr": "x" * 100_000}}) + "\n"
        yield json.dumps({"progress": {"stderr": "INFO: 2 processes: 1 disk cache hit, 1 local."}}) + "\n"

    tracemalloc.start()
    found = read_events(flood())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.figures is not None
    assert (found.figures.hits, found.figures.executed) == (1, 1)
    assert peak < 200 << 20
