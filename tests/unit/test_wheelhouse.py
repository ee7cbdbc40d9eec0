"""`tfdock wheelhouse list`, `index` and `prune`, and publishing beside them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import tfdock.talk.cli  # noqa: F401 - it makes the application whole
from tfdock.decide.holdings import Rules, Stock, choose, told_by_build_info, told_by_record
from tfdock.do.wheelhouse import coverage, pruning
from tfdock.do.wheelhouse.index import WheelIndex
from tfdock.do.workspace import PULLED, Wheelhouse
from tfdock.errors import Locked, WheelRefused
from tfdock.talk.app import app

from . import houses, small_wheels
from .test_simple_index import contents, named

DAY = 86400.0
NOW = 1.8e9


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return houses.house(tmp_path / "house")


def run(house: Wheelhouse, *words: str) -> Result:
    environment = {"COLUMNS": "400", "NO_COLOR": "1", "TFDOCK_STATE_DIR": str(house.root.parent / "state")}
    return CliRunner().invoke(app, ["wheelhouse", *words, "--wheelhouse", str(house.root)], env=environment)


def document(house: Wheelhouse, *words: str) -> dict[str, Any]:
    result = run(house, *words, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


# --- list ---------------------------------------------------------------------------------------------------------


def test_a_list_says_of_each_wheel_what_its_record_knows(house: Wheelhouse) -> None:
    path = houses.publish(house, finished=time.time() - 3 * DAY)
    found = document(house, "list")
    assert found["schema"] == "tfdock.wheelhouse-list/1"
    (row,) = found["wheels"]
    finished = row.pop("finished")
    assert finished.endswith("+00:00")
    assert len(row.pop("sha256")) == len(row.pop("fingerprint")) == 64
    assert row == {
        "file": path.name,
        "size": path.stat().st_size,
        "name": "tensorflow",
        "version": "2.18.0+cuda12.5.sm86",
        "tags": "py3-none-any",
        "tensorflow": "2.18.0",
        "python": "3.11",
        "accelerator": "cuda",
        "toolkit": "12.5.1",
        "gpu_code": ["sm_86"],
        "verified": "tried",
        "origin": "built",
        "pulled_from": None,
        "build_id": houses.build_id(),
        "problem": None,
    }
    head, line = run(house, "list").stdout.splitlines()[1:]
    assert head.split() == ["TensorFlow", "Python", "for", "GPU", "code", "verified", "size", "made", "from", "wheel"]
    assert "2.18.0      3.11    cuda 12.5.1  sm_86     yes       1.2 kB" in line
    assert "3 days ago  here  tensorflow-2.18.0+cuda12.5.sm86-py3-none-any.whl" in line


INFO = b"""build_info = {
    'cuda_version': '12.5.1', 'is_cuda_build': True, 'is_rocm_build': False, 'is_tensorrt_build': True,
    'cuda_compute_capabilities': ['sm_60', 'compute_90'],
}
"""


def test_wheels_from_elsewhere_and_unsound_ones_are_listed_too(house: Wheelhouse) -> None:
    data = small_wheels.wheel_of({"tensorflow/python/platform/build_info.py": INFO})
    (house.root / small_wheels.NAME).write_bytes(data)
    (house.root / "cut-1.0-py3-none-any.whl").write_bytes(b"PK\3\4")
    path = houses.publish(house)
    path.write_bytes(b"other bytes")
    found = {row["file"]: row for row in document(house, "list")["wheels"]}
    foreign = found[small_wheels.NAME]
    assert (foreign["origin"], foreign["verified"], foreign["problem"]) == ("foreign", "no", None)
    assert (foreign["accelerator"], foreign["toolkit"]) == ("cuda", "12.5.1")
    assert foreign["gpu_code"] == ["sm_60", "compute_90"]
    assert found["cut-1.0-py3-none-any.whl"]["problem"]
    assert found[path.name]["origin"] == "foreign"
    assert found[path.name]["problem"]
    assert "elsewhere" in run(house, "list").stdout


def test_of_two_builds_of_one_name_the_record_that_fits_the_bytes_is_told(house: Wheelhouse) -> None:
    houses.publish(house, salt="one", finished=NOW)
    houses.publish(house, salt="two", finished=NOW - 9 * DAY)
    expected = {
        one["fingerprint"]: one["wheels"][0]["sha256"] for one in house.records() if one["finished"] < "2027-01-12"
    }
    for _ in range(2):
        (row,) = document(house, "list")["wheels"]
        assert {row["fingerprint"]: row["sha256"]} == expected
        WheelIndex(house).update()  # now the hash is known from there


def test_a_pulled_wheel_says_where_from(house: Wheelhouse) -> None:
    houses.publish(house)
    (file,) = house.record_files()
    (file.parent / PULLED).write_text(json.dumps({"reference": "registry.example/wheels:1", "digest": "sha256:0"}))
    (row,) = document(house, "list")["wheels"]
    assert (row["origin"], row["pulled_from"]) == ("pulled", "registry.example/wheels:1")
    assert "registry.example/wheels:1" in run(house, "list").stdout


SPOILT = '{"wheels": [{"file": ["x"], "sha256": "x", "size": 1}]}'


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"wheels": 3}', '{"wheels": [{}]}', '{"wheels": [3]}', "not json", SPOILT]
)
def test_a_spoilt_record_is_none(house: Wheelhouse, text: str) -> None:
    houses.publish(house)
    (file,) = house.record_files()
    file.write_text(text)
    (row,) = document(house, "list")["wheels"]
    assert row["origin"] == "foreign"


@pytest.mark.parametrize("plan", [None, [], {"choices": 3}, {"choices": [3]}, {"choices": [{"field": []}]}])
def test_what_a_record_says_may_be_anything(plan: Any) -> None:
    assert (
        told_by_record({"plan": plan, "verification": {"checks": [1], "gpu_code": 3}, "finished": 3}).python is None
    )


@pytest.mark.parametrize(
    ("info", "accelerator"),
    [
        ({"is_cuda_build": True}, "cuda"),
        ({"is_cuda_build": False, "is_rocm_build": True}, "rocm"),
        ({"is_cuda_build": False}, "cpu"),
        ({"anything": 1}, None),
    ],
)
def test_a_wheel_says_what_it_was_built_for(info: dict[str, object], accelerator: str | None) -> None:
    assert told_by_build_info(info, ["cuda", "rocm"]).accelerator == accelerator


# --- index --------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_index_and_tells_what_is_left_out(house: Wheelhouse) -> None:
    houses.publish(house)
    (house.root / "cut-1.0-py3-none-any.whl").write_bytes(b"PK\3\4")
    result = run(house, "index")
    assert (result.exit_code, result.stdout) == (0, f"{house.root}/simple\n")
    assert "cut-1.0-py3-none-any.whl" in result.stderr
    assert "[wheel-not-a-zip]" in result.stderr
    assert "1 wheel, 1 new, 0 gone, 1 left out" in result.stderr
    assert document(house, "index")["wheels"] == [path.name for path in house.root.glob("tensorflow*.whl")]


def test_the_page_asks_each_wheel_once_and_is_the_same_every_time(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    (house.root / small_wheels.NAME).write_bytes(small_wheels.wheel_of({}))
    assert str(house.root / "index.html") in run(house, "index", "--html").stdout.splitlines()
    page = (house.root / "index.html").read_text()
    assert "TensorFlow 2.18.0" in page
    assert "<script" not in page
    monkeypatch.setattr(coverage, "inspected", lambda *_, **__: pytest.fail("asked again"))
    assert run(house, "index", "--html").exit_code == 0
    assert (house.root / "index.html").read_text() == page


def test_somebody_elses_page_is_not_replaced(house: Wheelhouse) -> None:
    (house.root / "index.html").write_text("mine")
    result = run(house, "index", "--html")
    assert result.exit_code == 2
    assert "[file-error]" in result.stderr
    assert (house.root / "index.html").read_text() == "mine"


# --- which may go -------------------------------------------------------------------------------------------------


def stock(file: str, finished: float, *, size: int = 10, build: str = "a", busy: bool = False) -> Stock:
    return Stock(file=file, size=size, build_id=build, fingerprint=file, finished=finished, busy=busy)


MANY = [stock("a1", 1), stock("a2", 2), stock("a3", 3), stock("b1", 1.5, build="b"), stock("busy", 0, busy=True)]


@pytest.mark.parametrize(
    ("rules", "gone"),
    [
        (Rules(), []),
        (Rules(before=2), ["a1", "b1"]),
        (Rules(keep=1), ["a1", "a2"]),
        (Rules(keep=1, before=2), ["a1"]),
        (Rules(keep=2, before=9), ["a1"]),
        (Rules(max_size=30), ["a1", "b1"]),
        (Rules(max_size=0), ["a1", "b1", "a2", "a3"]),
        (Rules(max_size=0, keep=1), ["a1", "a2"]),
        (Rules(max_size=45, before=1.2), ["a1"]),
    ],
)
def test_rules_choose_the_oldest_and_spare_the_newest_of_each_build_id(rules: Rules, gone: list[str]) -> None:
    chosen = choose(MANY, rules)
    assert [one.file for one in chosen.gone] == gone
    assert chosen.left == 50 - 10 * len(gone)
    assert chosen.reached is (rules.max_size is None or chosen.left <= rules.max_size)


def test_wheels_from_elsewhere_count_and_stay() -> None:
    chosen = choose(MANY, Rules(max_size=100), others=1000)
    assert [one.file for one in chosen.gone] == ["a1", "b1", "a2", "a3"]
    assert (chosen.left, chosen.reached) == (1010, False)


@given(
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 99), st.sampled_from("ab"), st.booleans()), max_size=9),
    st.builds(Rules, before=st.none() | st.floats(0, 9), max_size=st.none() | st.integers(0, 300),
              keep=st.none() | st.integers(1, 3)),
)  # fmt: skip
def test_whatever_the_rules_what_is_busy_or_kept_stays(rows: list[Any], rules: Rules) -> None:
    every = [
        stock(f"{number}", when, size=size, build=build, busy=busy)
        for number, (when, size, build, busy) in enumerate(rows)
    ]
    chosen = choose(every, rules)
    gone = set(chosen.gone)
    assert not any(one.busy for one in gone)
    assert chosen.left == sum(one.size for one in every if one not in gone)
    for build in "ab":
        own = [one for one in every if one.build_id == build]
        assert len(own) - len(gone & set(own)) >= min(rules.keep or 0, len(own))
    if not chosen.reached:
        free = [one for one in every if not one.busy and one not in gone and one.size]
        assert all(sum(other.build_id == one.build_id for other in every if other not in gone) for one in free)
        assert rules.keep or not free


# --- prune --------------------------------------------------------------------------------------------------------


def prune(house: Wheelhouse, rules: Rules | None = None, **words: bool) -> pruning.Pruned:
    return pruning.prune(house, house.root.parent / "state", rules or Rules(), **words)


@pytest.fixture
def three(house: Wheelhouse) -> dict[str, Path]:
    """Three builds, with an index; and a wheel from elsewhere."""
    found = {
        gpu: houses.publish(house, f"2.18.0+cuda12.5.{gpu}", name=houses.build_id(gpu), finished=NOW - age * DAY)
        for gpu, age in (("sm80", 30), ("sm86", 20), ("sm89", 10))
    }
    file, data = houses.wheel("other", "1.0")
    found["foreign"] = house.root / file
    found["foreign"].write_bytes(data)
    WheelIndex(house).update()
    return found


def test_a_dry_run_tells_the_same_and_removes_nothing(house: Wheelhouse, three: dict[str, Path]) -> None:
    before = contents(house)
    rules = Rules(before=NOW - 15 * DAY)
    told = prune(house, rules, dry_run=True)
    assert contents(house) == before
    done = prune(house, rules)
    assert (done.wheels, done.left, done.size) == (told.wheels, told.left, told.size)
    assert [one.file for one in done.wheels] == [three["sm80"].name, three["sm86"].name]
    assert set(named(house)) == {three["sm89"].name, three["foreign"].name}
    assert [path.name for path in house.root.glob("*.constraints.txt")] == [
        f"{houses.build_id('sm89')}.constraints.txt"
    ]
    assert not list((house.root / ".tfdock" / "staging").iterdir())
    assert prune(house, rules).wheels == ()


def test_wheels_from_elsewhere_and_changed_ones_are_left_alone(house: Wheelhouse, three: dict[str, Path]) -> None:
    data = bytearray(three["sm80"].read_bytes())
    data[-1] ^= 1  # as large as before
    three["sm80"].write_bytes(data)
    done = prune(house, Rules(max_size=0))
    assert {one.file for one in done.wheels} == {three["sm86"].name, three["sm89"].name}
    assert not done.reached
    assert three["sm80"].read_bytes() == data
    assert three["foreign"].exists()


def test_nothing_of_a_build_id_that_a_run_holds_is_touched(house: Wheelhouse, three: dict[str, Path]) -> None:
    with house.locked(houses.build_id("sm80")):
        done = prune(house, Rules(max_size=0), failed=True)
        assert done.busy == (houses.build_id("sm80"),)
        assert three["sm80"].exists()
    assert set(named(house)) == {three["sm80"].name, three["foreign"].name}


def test_what_changes_between_choosing_and_removing_stays(
    house: Wheelhouse, three: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = pruning._chosen

    def then_built_again(*words: Any) -> Any:
        found = chosen(*words)
        houses.publish(house, "2.18.0+cuda12.5.sm80", name=houses.build_id("sm80"), salt="again", finished=NOW)
        return found

    monkeypatch.setattr(pruning, "_chosen", then_built_again)
    done = prune(house, Rules(before=NOW - 25 * DAY))
    assert (done.wheels, three["sm80"].exists()) == ((), True)
    assert three["sm80"].name in named(house)
    assert house.constraints(houses.build_id("sm80")).exists()


def test_a_run_that_begins_meanwhile_keeps_its_wheel(
    house: Wheelhouse, three: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Iterator[None]] = []
    free = pruning._is_free

    def then_begun(house: Wheelhouse, build_id: Any) -> bool:
        found = free(house, build_id)
        if build_id == houses.build_id("sm80"):
            lock = filelock.FileLock(house.root / ".tfdock" / build_id / "lock")
            lock.acquire()
            begun.append(lock)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(pruning, "_is_free", then_begun)
    done = prune(house, Rules(max_size=0))
    assert done.busy == (houses.build_id("sm80"),)
    assert three["sm80"].name in named(house)


@contextmanager
def at(moment: float, path: Path) -> Iterator[None]:
    yield
    for one in (*path.rglob("*"), path):
        os.utime(one, (moment, moment))


def test_what_failed_builds_left_goes_when_asked_for(house: Wheelhouse) -> None:
    path = houses.publish(house)
    own = house.record_files()[0].parent
    (own / "20261101-000001-bbbbbb.log").write_text("a try that failed")
    (own / "refused").mkdir()
    (own / "refused" / "x.whl").write_bytes(b"x" * 1000)
    other = house.root / ".tfdock" / houses.build_id("sm90") / "0123456789ab"
    other.mkdir(parents=True)
    (other / "20261101-000002-cccccc.log").write_text("failed")
    gone = houses.publish(house, "2.18.0+cuda12.5.sm89", name=houses.build_id("sm89"))
    gone.unlink()
    assert prune(house).leftovers == ()
    done = prune(house, failed=True)
    record = house.record_folder(houses.build_id("sm89"), "x").parent
    assert {(one.path.parent.name, one.what) for one in done.leftovers} == {
        (own.name, "of a build that did not end well"),
        (own.name, "refused wheel"),
        (houses.build_id("sm90"), "logs"),
        (houses.build_id("sm89"), "record and logs of a build without wheel"),
    }
    assert not other.exists()
    assert not list(record.glob("*/"))
    assert sorted(one.name for one in own.iterdir()) == ["20261101-000000-aaaaaa.log", "record.json"]
    assert house.finished(houses.build_id(), json.loads((own / "record.json").read_text())["fingerprint"])
    assert path.exists()
    assert prune(house, failed=True).leftovers == ()


def test_what_is_young_stays_by_age_and_what_a_new_run_wrote_to_stays(house: Wheelhouse) -> None:
    folder = house.root / ".tfdock" / houses.build_id() / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "20261101-000002-cccccc.log").write_text("failed")
    assert prune(house, Rules(before=time.time() - DAY), failed=True).leftovers == ()
    with at(NOW - 900 * DAY, folder):
        pass
    assert len(prune(house, Rules(before=time.time() - DAY), failed=True, dry_run=True).leftovers) == 1
    assert len(prune(house, Rules(before=time.time() - DAY), failed=True).leftovers) == 1


def test_what_killed_runs_left_goes(house: Wheelhouse) -> None:
    path = houses.publish(house)
    WheelIndex(house).update()
    staging = house.root / ".tfdock" / "staging"
    for name in ("old", "new"):
        (staging / name / "raw").mkdir(parents=True)
    with at(time.time() - 2 * DAY, staging / "old"):
        pass
    (house.root / ".index.html.123-456").write_text("half")
    (house.root / "simple" / ".index.html.123-456").write_text("half")
    (house.root / "gone-1.0-py3-none-any.whl.metadata").write_text("left")
    before = named(house)
    done = prune(house)
    assert {one.path.relative_to(house.root).as_posix() for one in done.leftovers} == {
        ".tfdock/staging/old",
        ".index.html.123-456",
        "simple/.index.html.123-456",
        "gone-1.0-py3-none-any.whl.metadata",
    }
    assert [one.name for one in staging.iterdir()] == ["new"]
    assert named(house) == before
    assert path.exists()


def test_the_command_says_what_went_and_warns_where_that_is_too_little(
    house: Wheelhouse, three: dict[str, Path]
) -> None:
    result = run(house, "prune", "--keep-latest", "1", "--max-size", "1K", "--dry-run")
    assert (result.exit_code, result.stdout.splitlines()[-1][:12]) == (0, "would remove")
    assert "[wheelhouse-size-not-reached]" in result.stderr
    found = document(house, "prune", "--older-than", "1d")
    assert found["schema"] == "tfdock.wheelhouse-prune/1"
    assert {row["file"] for row in found["wheels"]} <= {path.name for path in three.values()}
    bad = run(house, "prune", "--older-than", "soon")
    assert (bad.exit_code, "[limit-unreadable]" in bad.stderr) == (2, True)


# --- publishing ---------------------------------------------------------------------------------------------------


def test_a_name_that_belongs_to_another_build_is_not_taken_and_nothing_changes(house: Wheelhouse) -> None:
    houses.publish(house)
    WheelIndex(house).update()
    before = contents(house), len(house.record_files())
    with pytest.raises(WheelRefused, match="belongs to"):
        houses.publish(house, salt="other bytes", name=houses.build_id("sm90"))
    assert (contents(house), len(house.record_files())) == before
    houses.publish(house, salt="other bytes")
    assert len(named(house)) == 1


def test_a_held_build_id_is_told_after_a_moment(house: Wheelhouse) -> None:
    began = time.monotonic()
    with house.locked(houses.build_id()), pytest.raises(Locked), house.locked(houses.build_id()):
        pass
    assert time.monotonic() - began < 10
