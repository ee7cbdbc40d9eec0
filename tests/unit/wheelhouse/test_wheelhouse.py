"""`tfdock wheelhouse list`, `index` and `prune`, and publishing beside them."""

from __future__ import annotations

import errno
import io
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from tfdock.errors import Locked, WheelRefused
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.types import BuildId
from tfdock.wheelhouse import wheelhouse_pruning
from tfdock.wheelhouse.build_record import WheelClaims, claims_of_build_info, claims_of_record
from tfdock.wheelhouse.catalogue import StoredWheel
from tfdock.wheelhouse.index import WheelIndex
from tfdock.wheelhouse.store import PULLED, WheelFile, Wheelhouse
from tfdock.wheelhouse.wheelhouse_pruning import Rules, choose

from .. import command_line, houses, small_wheels
from .test_simple_index import contents, named

DAY = 86400.0
NOW = 1.8e9


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return houses.house(tmp_path / "house")


def run(house: Wheelhouse, *words: str) -> Result:
    state = str(house.root.parent / "state")
    return command_line.run("wheelhouse", *words, "--wheelhouse", house.root, TFDOCK_STATE_DIR=state)


def document(house: Wheelhouse, *words: str) -> dict[str, Any]:
    result = run(house, *words, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


# --- publishing ---------------------------------------------------------------------------------------------------

FOREIGN, OTHER = "f" * 16, "e" * 16  #: Trust domains besides `release`.


def visible(house: Wheelhouse) -> dict[Path, bytes]:
    files = (path for path in house.root.rglob("*") if path.is_file() and "staging" not in path.parts)
    return {path: path.read_bytes() for path in files}


def refused(house: Wheelhouse, **fields: Any) -> str:
    """The message of a wheel that is refused; nothing visible has changed."""
    before = visible(house)
    with pytest.raises(WheelRefused) as caught:
        houses.publish(house, **fields)
    assert visible(house) == before
    (problem,) = caught.value.problems
    assert problem.code == "wheel-name-taken"
    return problem.message


@pytest.mark.parametrize("version", ["2.18.0+cuda12.5.sm86", "2.18.0+mine"])
def test_a_build_of_another_trust_domain_does_not_take_the_build_id_of_a_release(
    house: Wheelhouse, version: str
) -> None:
    own = houses.publish(house, salt="own")
    told = refused(house, domain=OTHER, salt="evil", version=version)
    assert f"belongs to the trust domain release, not {OTHER}" in told
    assert "the trust domain" in refused(house, domain=OTHER, salt="own"), "the same bytes are another's record too"
    houses.publish(house, salt="again")
    own.unlink()
    houses.publish(house, domain=OTHER, salt="evil", version=version)


@pytest.mark.parametrize("domain", ["release", OTHER])
def test_any_build_takes_the_place_of_one_that_is_not_in_release(house: Wheelhouse, domain: str) -> None:
    """Who edits a profile or moves a checkout builds it again."""
    houses.publish(house, domain=FOREIGN, salt="own")
    path = houses.publish(house, domain=domain, salt="new")
    assert path.read_bytes() == houses.wheel(salt="new")[1]


def test_the_same_bytes_under_another_build_id_do_not_make_a_wheel_ones_own(house: Wheelhouse) -> None:
    name = houses.build_id("sm90")
    houses.publish(house, salt="own")
    houses.publish(house, name=name, domain=FOREIGN, salt="own")
    assert f"belongs to {houses.build_id()}" in refused(house, name=name, domain=FOREIGN, salt="evil")


def test_a_record_older_than_trust_domains_is_of_a_release(house: Wheelhouse) -> None:
    houses.publish(house, salt="own")
    (file,) = houses.record_files(house)
    record = json.loads(file.read_bytes())
    del record["plan"]["trust"]
    file.write_text(json.dumps(record))
    assert "trust domain release" in refused(house, domain=FOREIGN, salt="evil")


def test_a_build_stands_for_a_plan_of_its_own_domain_and_one_in_release_for_any(house: Wheelhouse) -> None:
    houses.publish(house, domain=FOREIGN)
    houses.publish(house, name=houses.build_id("sm90"), version="2.18.0+cuda12.5.sm90")
    own, release = (houses.record_files(house, houses.build_id(gpu))[0] for gpu in ("sm86", "sm90"))

    def stands(file: Path, domain: str) -> bool:
        record = json.loads(file.read_bytes())
        return house.has(record["build_id"], record["fingerprint"], domain)

    assert [stands(own, domain) for domain in (FOREIGN, OTHER, "release")] == [True, False, False]
    assert [stands(release, domain) for domain in (FOREIGN, OTHER, "release")] == [True, True, True]
    for file in (own, release):
        (file.parent / PULLED).write_text("{}")
    assert [stands(own, domain) for domain in (FOREIGN, OTHER, "release")] == [True, True, False]
    record = json.loads(release.read_bytes())
    for odd in ("release", ["release"], {"domain": ["release"]}, {}):
        release.write_text(json.dumps(record | {"plan": {"trust": odd}}))
        assert not stands(release, "release")


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


def recorded(
    house: Wheelhouse, tensorflow: str, cuda: str, code: dict[str, list[str]], *, size: int, days: float
) -> str:
    """A wheel of that size, which takes no room on the disk, and its record."""
    major, gpu = cuda.rpartition(".")[0], code["sass"][0].replace("_", "")
    name = BuildId(f"tf{tensorflow}-py3.11-cuda{cuda}-cudnn9.3.0-{gpu}-x86_64")
    file = f"tensorflow-{tensorflow}+cuda{major}.{gpu}-cp311-cp311-linux_x86_64.whl"
    fingerprint = houses.fingerprint_of(name, "")
    record = houses.record(name, fingerprint, file, b"", time.time() - days * DAY)
    record["wheels"][0]["size"] = size
    record["verification"]["gpu_code"] = {"ptx": [], "amdgpu": []} | code
    choices = {"tensorflow": tensorflow, "python": "3.11", "accelerator": "cuda", "cuda": cuda}
    record["plan"]["choices"] = [{"field": field, "value": value} for field, value in choices.items()]
    folder = house.record_folder(name, fingerprint).path
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(record))
    with (house.root / file).open("wb") as wheel:
        wheel.truncate(size)
    return str(folder)


def test_the_list_on_the_page_is_what_is_printed(house: Wheelhouse) -> None:
    recorded(house, "2.17.1", "12.3.2", {"sass": ["sm_80"], "ptx": ["compute_80"]}, size=590_303_112, days=41)
    folder = recorded(house, "2.18.0", "12.5.1", {"sass": ["sm_86"]}, size=404_712_290, days=0)
    origin = {"reference": "ghcr.io/me/wheels:2.18-py3.11-cuda12.5-sm86", "digest": f"sha256:{'0' * 64}"}
    (Path(folder) / PULLED).write_text(json.dumps(origin))
    foreign = house.root / "tensorflow_cpu-2.18.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    with foreign.open("wb") as file:
        holed(file, {"tensorflow/python/platform/build_info.py": INFO_OF_CPU}, 230_070_000)
    os.utime(foreign, (time.time() - 9 * DAY,) * 2)
    result = command_line.run("wheelhouse", "list", "--wheelhouse", house.root, COLUMNS="120")
    printed = result.stdout.replace(str(house.root), "/home/me/wheelhouse")
    page = (Path(__file__).parents[3] / "docs/wheelhouse.md").read_text("utf-8")
    assert f"$ tfdock wheelhouse list\n{printed}```" in page


INFO_OF_CPU = b"build_info = {'is_cuda_build': False, 'is_rocm_build': False, 'is_tensorrt_build': False}\n"


def holed(file: BinaryIO, members: dict[str, bytes], size: int) -> None:
    """A small wheel with a member of so many bytes that takes no room on the disk; nobody reads it."""
    with zipfile.ZipFile(file, "w") as archive, zipfile.ZipFile(io.BytesIO(small_wheels.wheel_of(members))) as small:
        for one in small.infolist():
            archive.writestr(one.filename, small.read(one))
        hole = zipfile.ZipInfo("tensorflow/large.so")
        hole.file_size, hole.compress_size, hole.CRC = size, size, 0
        hole.header_offset = file.tell()
        file.write(hole.FileHeader())
        file.seek(size, os.SEEK_CUR)
        archive.filelist.append(hole)
        archive.NameToInfo[hole.filename] = hole
        archive.start_dir = file.tell()


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


def test_a_link_is_listed_and_not_followed(house: Wheelhouse, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a password")
    link = house.root / "tensorflow-9.9-py3-none-any.whl"
    link.symlink_to(secret)
    (row,) = document(house, "list")["wheels"]
    assert (row["file"], row["origin"]) == (link.name, "foreign")
    assert row["problem"] == "it is a link; links are not followed"
    assert row["size"] == link.lstat().st_size


def test_a_wheel_with_a_variant_label_is_listed_by_its_name_and_tags(house: Wheelhouse) -> None:
    name = small_wheels.NAME.replace(".whl", "-sm86.whl")
    (house.root / name).write_bytes(small_wheels.wheel_of({}))
    (row,) = document(house, "list")["wheels"]
    assert (row["file"], row["version"], row["problem"]) == (name, "2.18.0", None)
    # No installer reads its name on such a page.
    (problem,) = WheelIndex(house).update().left_out
    assert "variant label `sm86`" in problem.message


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
    (file,) = houses.record_files(house)
    (file.parent / PULLED).write_text(json.dumps({"reference": "registry.example/wheels:1", "digest": "sha256:0"}))
    (row,) = document(house, "list")["wheels"]
    assert (row["origin"], row["pulled_from"]) == ("pulled", "registry.example/wheels:1")
    assert "registry.example/wheels:1" in run(house, "list").stdout


WHOLE_WHEEL = {"file": "a.whl", "sha256": "0" * 64, "size": 1}


@pytest.mark.parametrize(
    "damage",
    [
        "[]", "{}", "not json",
        {"wheels": None}, {"wheels": 3}, {"wheels": "tensorflow.whl"}, {"wheels": [{}]}, {"wheels": [3]},
        {"wheels": [{"file": "a.whl"}]}, {"build_id": None}, {"log": 5}, {"seconds": []}, {"attempts": "one"},
        *({"wheels": [WHOLE_WHEEL | {"file": name}]} for name in (["x"], "", ".", "..", "a\0b.whl", "../x.whl")),
    ],
    ids=str,
)  # fmt: skip
def test_a_record_that_does_not_say_what_was_built_is_none(
    house: Wheelhouse, damage: str | dict[str, object]
) -> None:
    path = houses.publish(house)
    (file,) = houses.record_files(house)
    whole = json.loads(file.read_text())
    fingerprint = whole["fingerprint"]
    assert house.complete_record(houses.build_id(), fingerprint) == whole
    file.write_text(damage if isinstance(damage, str) else json.dumps(whole | damage))
    assert list(house.records()) == []
    assert house.complete_record(houses.build_id(), fingerprint) is None
    assert not house.has(houses.build_id(), fingerprint, "release")
    (row,) = document(house, "list")["wheels"]
    assert (row["file"], row["origin"]) == (path.name, "foreign")
    house.check_replaceable(houses.build_id(), WheelFile(**WHOLE_WHEEL), "release")  # type: ignore[arg-type]


def test_the_last_moment_of_all_is_told() -> None:
    assert claims_of_record({"finished": "9999-12-31T23:59:59.999999+00:00"}).finished == 253402300799


@pytest.mark.parametrize("plan", [None, [], {"choices": 3}, {"choices": [3]}, {"choices": [{"field": []}]}])
def test_what_a_record_says_may_be_anything(plan: Any) -> None:
    assert (
        claims_of_record({"plan": plan, "verification": {"checks": [1], "gpu_code": 3}, "finished": 3}).python is None
    )


@pytest.mark.parametrize("finished", ["9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00", "9999-99-99", 3])
def test_a_moment_that_no_calendar_has_is_none(house: Wheelhouse, finished: object) -> None:
    houses.publish(house)
    (file,) = houses.record_files(house)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"finished": finished}))
    (row,) = document(house, "list")["wheels"]
    assert row["finished"][:2] == "20", "the file's own"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system here keeps such a time")
def test_a_wheel_of_a_far_time_is_listed() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        house = Wheelhouse(Path(folder))
        path = houses.publish(house)
        houses.record_files(house)[0].unlink()
        os.utime(path, (300_000_000_000,) * 2)
        (row,) = document(house, "list")["wheels"]
        assert row["finished"] == "9999-12-31T23:59:59+00:00"


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
    assert claims_of_build_info(info, ["cuda", "rocm"]).accelerator == accelerator


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


# --- which may go -------------------------------------------------------------------------------------------------


def stock(file: str, finished: float, *, size: int = 10, build: str | None = "a") -> StoredWheel:
    return StoredWheel(
        path=Path(file), size=size, changed=finished, signature=(0, 0, 0, 0), name="", version="", tags="",
        claims=WheelClaims(), build_id=BuildId(build) if build else None, fingerprint=file if build else None,
    )  # fmt: skip


MANY = [stock("a1", 1), stock("a2", 2), stock("a3", 3), stock("b1", 1.5, build="b"), stock("busy", 0)]


def chosen(
    wheels: Sequence[StoredWheel], rules: Rules, staying: Collection[str] = ("busy",)
) -> tuple[list[str], int]:
    """The names of the wheels that go, and the bytes that are left."""
    gone, left = choose(wheels, rules, staying)
    return [wheel.path.name for wheel in gone], left


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
        (Rules(max_size=45, before=9), ["a1"]),
        (Rules(max_size=0, before=1.2), ["a1"]),
        (Rules(max_size=50, before=9, keep=1), []),
    ],
)
def test_the_oldest_go_that_every_given_rule_lets_go(rules: Rules, gone: list[str]) -> None:
    assert chosen(MANY, rules) == (gone, 50 - 10 * len(gone))


def test_wheels_from_elsewhere_count_and_stay() -> None:
    foreign = stock("foreign", 0, size=1000, build=None)
    assert chosen([*MANY, foreign], Rules(max_size=100)) == (["a1", "b1", "a2", "a3"], 1010)


@given(
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 99), st.sampled_from("ab"), st.booleans()), max_size=9),
    st.builds(Rules, before=st.none() | st.floats(0, 9), max_size=st.none() | st.integers(0, 300),
              keep=st.none() | st.integers(1, 3)),
)  # fmt: skip
def test_whatever_the_rules_what_is_busy_or_kept_stays(rows: list[Any], rules: Rules) -> None:
    every = [stock(f"{number}", when, size=size, build=build) for number, (when, size, build, _) in enumerate(rows)]
    staying = {f"{number}" for number, (_, _, _, busy) in enumerate(rows) if busy}
    gone, left = choose(every, rules, staying)
    assert not any(one.path.name in staying for one in gone)
    assert left == sum(one.size for one in every if one not in gone)
    for build in "ab":
        own = [one for one in every if one.build_id == build]
        assert len([one for one in own if one not in gone]) >= min(rules.keep or 0, len(own))
    assert all(rules.before is None or one.finished < rules.before for one in gone)
    if rules.max_size is not None and gone:
        assert left + gone[-1].size > rules.max_size, "no more than needed"
        spared = rules.keep or rules.before is not None
        assert spared or left <= rules.max_size or all(one in gone or one.path.name in staying for one in every)


# --- prune --------------------------------------------------------------------------------------------------------


def prune(house: Wheelhouse, rules: Rules | None = None, **words: bool) -> wheelhouse_pruning.PrunedWheelhouse:
    return wheelhouse_pruning.prune(house, house.root.parent / "state", rules or Rules(), **words)


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
    assert [one.path.name for one in done.wheels] == [three["sm80"].name, three["sm86"].name]
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
    assert {one.path.name for one in done.wheels} == {three["sm86"].name, three["sm89"].name}
    assert not done.reached
    assert three["sm80"].read_bytes() == data
    assert three["foreign"].exists()


def test_nothing_of_a_build_id_that_a_run_holds_is_touched(house: Wheelhouse, three: dict[str, Path]) -> None:
    with house.locked(houses.build_id("sm80")):
        done = prune(house, Rules(max_size=0))
        assert done.busy == (houses.build_id("sm80"),)
        assert three["sm80"].exists()
    assert set(named(house)) == {three["sm80"].name, three["foreign"].name}


def test_what_changes_between_choosing_and_removing_stays(
    house: Wheelhouse, three: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = wheelhouse_pruning._choose_sound

    def then_built_again(*words: Any) -> Any:
        found = chosen(*words)
        houses.publish(house, "2.18.0+cuda12.5.sm80", name=houses.build_id("sm80"), salt="again", finished=NOW)
        return found

    monkeypatch.setattr(wheelhouse_pruning, "_choose_sound", then_built_again)
    done = prune(house, Rules(before=NOW - 25 * DAY))
    assert (done.wheels, three["sm80"].exists()) == ((), True)
    assert three["sm80"].name in named(house)
    assert house.constraints(houses.build_id("sm80")).path.exists()


def test_a_run_that_begins_meanwhile_keeps_its_wheel(
    house: Wheelhouse, three: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Iterator[None]] = []
    free = wheelhouse_pruning._is_free

    def then_begun(house: Wheelhouse, build_id: Any) -> bool:
        found = free(house, build_id)
        if build_id == houses.build_id("sm80"):
            lock = filelock.FileLock(house.root / ".tfdock" / build_id / "lock")
            lock.acquire()
            begun.append(lock)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(wheelhouse_pruning, "_is_free", then_begun)
    done = prune(house, Rules(max_size=0))
    assert done.busy == (houses.build_id("sm80"),)
    assert three["sm80"].name in named(house)


def test_an_index_that_is_made_meanwhile_names_no_wheel_that_goes(
    house: Wheelhouse, three: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, remove = Wheelhouse.locked, UntrustedPath.remove

    def after_an_update(*words: Any, **options: Any) -> Any:
        WheelIndex(house).update()
        return locked(*words, **options)

    def seen(path: UntrustedPath) -> None:
        assert not path.name.endswith(".whl") or path.name not in named(house)
        remove(path)

    monkeypatch.setattr(Wheelhouse, "locked", after_an_update)
    monkeypatch.setattr(UntrustedPath, "remove", seen)
    assert len(prune(house, Rules(max_size=0)).wheels) == 3
    assert set(named(house)) == {three["foreign"].name}


def leave(path: Path, days: float) -> None:
    """Give a folder and all in it a time so long ago."""
    moment = time.time() - days * DAY
    for one in (*path.rglob("*"), path):
        os.utime(one, (moment, moment))


def test_a_run_killed_while_it_replaces_a_wheel_leaves_none_that_no_record_knows(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = houses.fingerprint_of(houses.build_id(), "")
    monkeypatch.setattr(houses, "fingerprint_of", lambda *_: same)
    houses.publish(house, salt="one")

    def killed(self: Path, target: Path) -> Path:
        if target.suffix == ".whl":
            raise KeyboardInterrupt
        self.rename(target)
        return target

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            houses.publish(house, salt="two")
    assert list(house.root.glob("*.whl")) == []
    assert houses.publish(house, salt="three").exists(), "and nobody is refused for what was left"


KILLED = "20261101-000001-bbbbbb"


def test_what_killed_runs_left_goes(house: Wheelhouse) -> None:
    path = houses.publish(house)
    WheelIndex(house).update()
    staging = house.root / ".tfdock" / "staging"
    for name in (KILLED, f"pruned-{KILLED}", "20261101-000002-cccccc", "thesis"):
        (staging / name / "raw").mkdir(parents=True)
    for name in (KILLED, f"pruned-{KILLED}", "thesis"):
        leave(staging / name, 2)
    link, thesis = staging / "20261101-000003-dddddd", staging / "thesis"
    link.symlink_to(thesis)
    os.utime(link, (NOW - 900 * DAY, NOW - 900 * DAY), follow_symlinks=False)
    (house.root / ".index.html.123-456").write_text("half")
    (house.root / "simple" / ".index.html.123-456").write_text("half")
    (house.root / "gone-1.0-py3-none-any.whl.metadata").write_text("left")
    before = named(house)
    done = prune(house)
    assert {one.path.inside for one in done.leftovers} == {
        f".tfdock/staging/{KILLED}",
        f".tfdock/staging/pruned-{KILLED}",
        f".tfdock/staging/{link.name}",
        ".index.html.123-456",
        "simple/.index.html.123-456",
        "gone-1.0-py3-none-any.whl.metadata",
    }
    assert {one.name for one in staging.iterdir()} == {"20261101-000002-cccccc", "thesis"}
    assert (thesis / "raw").is_dir()
    assert named(house) == before
    assert path.exists()


def test_what_a_pull_left_goes_when_nobody_will_go_on_with_it(house: Wheelhouse) -> None:
    houses.publish(house)
    folders = {"whole": houses.record_files(house)[0].parent}
    for gpu in ("sm89", "sm90"):
        folders[gpu] = house.record_folder(houses.build_id(gpu), "0123456789ab").path
        folders[gpu].mkdir(parents=True)
    for folder in folders.values():
        (folder / "pull-0123456789abcdef.part").write_bytes(b"x" * 1000)
    leave(folders["whole"], 8)
    leave(folders["sm89"], 8)
    with house.locked(houses.build_id("sm89")):
        assert len(prune(house, dry_run=True).leftovers) == 1
    done = prune(house)
    assert (len(done.leftovers), done.size) == (2, 2000)
    assert list(house.root.glob(".tfdock/*/*/pull-*.part")) == [folders["sm90"] / "pull-0123456789abcdef.part"]


def test_staging_of_a_run_that_is_not_known_here_stays_while_that_holds_its_build_id(house: Wheelhouse) -> None:
    run, name = "20261101-000000-aaaaaa", houses.build_id()
    (house.record_folder(name, "0123456789ab").path).mkdir(parents=True)
    (house.record_folder(name, "0123456789ab").path / f"{run}.log").write_text("it compiles, for days")
    house.staging(run).mkdir(parents=True)
    leave(house.staging(run), 2)
    with house.locked(name):
        assert prune(house).leftovers == ()
    assert [one.path.path for one in prune(house).leftovers] == [house.staging(run)]


def test_files_and_links_of_others_stay(house: Wheelhouse, three: dict[str, Path]) -> None:
    own = [house.root / ".backup.2024-11", house.root / "simple" / ".notes.1-2"]
    for path in own:
        path.write_text("mine")
    elsewhere = house.root.parent / three["sm80"].name
    three["sm80"].rename(elsewhere)
    three["sm80"].symlink_to(elsewhere)
    for dry_run in (True, False):
        done = prune(house, Rules(max_size=0), dry_run=dry_run)
        assert {one.path.name for one in done.wheels} == {three["sm86"].name, three["sm89"].name}
        assert done.leftovers == ()
    assert three["sm80"].is_symlink()
    assert all(path.exists() for path in own)


def test_half_written_files_of_ours_go_wherever_they_lie(house: Wheelhouse) -> None:
    names = [
        ".tfdock/.index.json.12-34", f".tfdock/coverage/.{'0' * 64}.json.12-34", f".{houses.wheel()[0]}.metadata.1-2",
        f".{houses.build_id()}.constraints.txt.1-2",
    ]  # fmt: skip
    (house.root / ".tfdock" / "coverage").mkdir(parents=True)
    for name in names:
        (house.root / name).write_text("half")
    assert {one.path.inside for one in prune(house).leftovers} == set(names)
    assert {one.kind for one in prune(house).leftovers} == set()


def test_what_fills_the_disk_can_be_removed_while_it_is_full(
    house: Wheelhouse, three: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = house.staging("x").parent
    (staging / KILLED).mkdir(parents=True)
    leave(staging / KILLED, 2)
    prune(house, dry_run=True)  # so that there is a state folder: on another disk, or of earlier runs

    def while_there_is_room(function: Callable[..., None]) -> Callable[..., None]:
        def called(*words: Any, **options: Any) -> None:
            if three["sm80"].exists() and not words[0].is_folder():
                raise OSError(errno.ENOSPC, "No space left on device")
            function(*words, **options)

        return called

    for way in ("write", "make"):
        monkeypatch.setattr(UntrustedPath, way, while_there_is_room(getattr(UntrustedPath, way)))
    done = prune(house, Rules(before=NOW - 25 * DAY))
    assert ([one.path.name for one in done.wheels], len(done.leftovers)) == ([three["sm80"].name], 1)
    assert set(named(house)) == {path.name for gpu, path in three.items() if gpu != "sm80"}
    assert not list(staging.iterdir())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--max-size", "20"), 2), (("--max-size", "-1G"), 2), (("--max-size", "٢G"), 2), (("--max-size", ""), 2),
        (("--max-size", "1e3G"), 2), (("--max-size", "999999999999999T"), 0), (("--older-than", "-1d"), 2),
        (("--older-than", "1"), 2), (("--older-than", "1y"), 2), (("--older-than", "999999w"), 0),
        (("--keep-latest", "0"), 2), (("--keep-latest", "-1"), 2), (("--keep-latest", "99999999999999999999"), 0),
    ],
)  # fmt: skip
def test_limits_that_are_none_are_refused_and_large_ones_spare_everything(
    house: Wheelhouse, three: dict[str, Path], words: tuple[str, str], code: int
) -> None:
    result = run(house, "prune", *words)
    assert result.exit_code == code, result.output
    assert all(path.exists() for path in three.values())


@pytest.mark.parametrize("words", [("index",), ("prune",)])
def test_a_folder_that_cannot_be_written_to_is_told_as_such(house: Wheelhouse, words: tuple[str, ...]) -> None:
    houses.publish(house)
    lock = house.root / ".tfdock" / "lock"
    lock.unlink()
    lock.mkdir()  # a file without permissions would be root's all the same
    (house.root / ".gone-1.0-py3-none-any.whl.metadata.1-2").write_text("half")
    result = run(house, *words, "--json")
    (problem,) = json.loads(result.stdout)["problems"]
    assert (result.exit_code, problem["code"]) == (1, "file-error")


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


def test_a_name_that_belongs_to_another_build_is_not_taken_and_is_for_its_own(house: Wheelhouse) -> None:
    houses.publish(house)
    WheelIndex(house).update()
    assert "belongs to" in refused(house, salt="other bytes", name=houses.build_id("sm90"))
    houses.publish(house, salt="other bytes")
    assert len(named(house)) == 1


@pytest.mark.slow
def test_a_held_build_id_is_told_while_it_is_held(house: Wheelhouse) -> None:
    with house.locked(houses.build_id()), pytest.raises(Locked), house.locked(houses.build_id()):
        pass


def test_a_record_that_cannot_be_read_is_warned_of(house: Wheelhouse) -> None:
    houses.publish(house)
    (file,) = houses.record_files(house)
    text = file.read_text()
    fingerprint = json.loads(text)["fingerprint"]
    for bad in (text[:200], *(text.replace(fingerprint, name) for name in ("", "../../../x", r"a\u0000", r"\ud800"))):
        file.write_text(bad)
        for command in ("list", "prune"):
            result = run(house, command)
            assert result.exit_code == 0
            assert f"warning: {file} is not a readable record" in result.stderr
    assert document(house, "list")["problems"][0]["code"] == "record-unreadable"


def test_a_folder_without_a_name_is_not_the_current_one(house: Wheelhouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(house.root)
    for name, status in (("", 2), (".", 0)):
        assert command_line.run("wheelhouse", "list", "--wheelhouse", name).exit_code == status
