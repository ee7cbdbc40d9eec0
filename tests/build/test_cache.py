"""The cache under builds: who holds it, and what becomes of it when it is looked after."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_engine import FakeRun
from refusals import refusal

from tfdock.bazel.cache.cache_folder import TAG, CacheFolder, DiskCache
from tfdock.bazel.cache.maintenance import listing
from tfdock.builder import bazel_phases
from tfdock.engine.protocol import ContainerSpec
from tfdock.errors import BuildFailed, Interrupted, Locked, ProfileError
from tfdock.events import Notice
from tfdock.plan.build_plan import toolchain_key

from .conftest import Finished, Workshop
from .harness import UNTRIED, Json, Outcome, record_of, write_profile
from .test_orchestration import Desk, leaving, mounts, wheel

# --- on an engine in memory -----------------------------------------------------------------------------------------

KEY = toolchain_key(b"bazel 4.2.3\n")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def disk_of(desk: Desk) -> DiskCache:
    return CacheFolder.opened(desk.settings.cache_dir).disk(KEY)


def told(desk: Desk) -> str:
    return "\n".join(event.text for event in desk.heard if isinstance(event, Notice))


def test_a_build_marks_its_cache_and_notes_which_toolchain_it_is_and_its_build_id(desk: Desk) -> None:
    record = desk.build().record
    disk = disk_of(desk)
    assert (desk.settings.cache_dir / TAG).is_file()
    assert disk.description()["bazel"] == "4.2.3"
    assert disk.description()["base"] == str(desk.plan.resolution.base)
    assert disk.last_build(desk.plan.build_id) is not None
    assert record["toolchain_key"] == KEY
    assert record["toolchain"]["cachebusters"] == []


def test_a_build_that_shares_the_cache_of_release_says_so(desk: Desk) -> None:
    desk.build()
    assert "[trust-shared]" in told(desk)
    assert disk_of(desk).description()["trust"]["reasons"] == list(desk.plan.trust.reasons) != []


def test_where_no_overlay_can_be_mounted_a_domain_has_its_own_cache_alone_and_says_what_that_costs(
    desk: Desk,
) -> None:
    desk.plan = desk.planned(trusted=False)
    seen = []

    def effect(spec: ContainerSpec) -> None:
        seen.append(mounts(spec)["/tf/cache/disk"])
        leaving(wheel())(spec)

    desk.engine.phases["compile"] = FakeRun(effect=effect)
    record = desk.build().record
    own = CacheFolder.opened(desk.settings.cache_dir).disk(desk.plan.trust.cache_key(KEY))
    assert seen == [own.folder]
    assert told(desk).count("[disk-cache-alone]") == 1
    assert record["plan"]["trust"]["domain"] == own.domain
    assert own.description()["trust"]["domain"] == own.domain
    assert desk.engine.volume_labels == {}, "the last run of a domain removes its volume"


def test_a_fetch_that_leaves_other_bytes_than_a_name_says_is_told_and_the_entry_is_gone(desk: Desk) -> None:
    name = f"content_addressable/sha256/{'ab' * 32}/file"

    def fetch(spec: ContainerSpec) -> None:
        assert "/tf/cache/disk" not in mounts(spec)
        file = mounts(spec)["/tf/cache/repository"] / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"other bytes")

    desk.engine.phases["fetch"] = FakeRun(effect=fetch)
    desk.build()
    assert f"removed {name}" in told(desk)
    assert "[repository-cache-changed]" in told(desk)
    assert not (CacheFolder.opened(desk.settings.cache_dir).repository / name).exists()


def test_what_a_fetch_left_is_checked_by_the_next_build_where_tfdock_was_killed_before_it_looked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> list[str]:
        raise Killed

    name = f"content_addressable/sha256/{'ab' * 32}/file"

    def fetch(spec: ContainerSpec) -> None:
        file = mounts(spec)["/tf/cache/repository"] / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"other bytes")

    desk.engine.phases["fetch"] = FakeRun(effect=fetch)
    with monkeypatch.context() as patch:
        patch.setattr(bazel_phases, "remove_changed_downloads", killed)
        with pytest.raises(Killed):
            desk.build()
    left = CacheFolder.opened(desk.settings.cache_dir).repository / name
    assert left.exists()
    desk.engine.phases["fetch"] = FakeRun()
    desk.build()
    assert not left.exists()
    assert told(desk).count("[repository-cache-changed]") == 1
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"what was looked at is not looked at again")
    time.sleep(0.05)  # the kernel stamps files by ticks
    desk.build(force=True)
    assert left.exists()


def test_nobody_takes_things_out_of_a_cache_while_a_container_uses_it(desk: Desk) -> None:
    refused = []

    def compile_(spec: ContainerSpec) -> None:
        cache = CacheFolder.opened(desk.settings.cache_dir)
        for lock in (cache.in_use(alone=True), cache.disk(KEY).held(alone=True)):
            with contextlib.suppress(Locked), lock:
                return
            refused.append(lock)
        leaving(wheel())(spec)

    desk.engine.phases["compile"] = FakeRun(effect=compile_)
    desk.build()
    assert len(refused) == 2
    cache = CacheFolder.opened(desk.settings.cache_dir)
    with cache.in_use(alone=True), cache.disk(KEY).held(alone=True):
        pass


@pytest.mark.parametrize("part", ["folder", "disk"])
def test_a_build_waits_for_who_has_the_cache_alone_says_so_and_can_be_stopped(desk: Desk, part: str) -> None:
    cache = CacheFolder.opened(desk.settings.cache_dir)
    lock = cache.in_use(alone=True) if part == "folder" else cache.disk(KEY).held(alone=True)
    with lock:
        timer = threading.Timer(0.5, lambda: setattr(desk.stop, "requests", 1))
        timer.start()
        with pytest.raises(Interrupted):
            desk.build()
    assert "waiting for another build of this command" in told(desk)
    desk.stop.requests = 0
    assert desk.build().status == "built"


def test_a_folder_of_somebody_elses_is_refused_before_anything_is_built(desk: Desk) -> None:
    desk.settings.cache_dir.mkdir(exist_ok=True)
    (desk.settings.cache_dir / "thesis").touch()
    with refusal(ProfileError, "cache-foreign"):
        desk.build()
    assert desk.engine.called("build") == []


def failing(spec: ContainerSpec) -> None:
    (mounts(spec)["/tf/output"] / "base").mkdir()


@pytest.mark.parametrize("policy", ["never", "failed"])
def test_the_output_base_of_a_build_that_failed_is_kept_where_that_is_asked_for(desk: Desk, policy: str) -> None:
    desk.settings = replace(desk.settings, keep_output=policy)
    desk.engine.phases["compile"] = FakeRun(effect=failing, exit_code=1)
    with pytest.raises(BuildFailed):
        desk.build()
    kept = list(desk.settings.cache_dir.glob("output/*/output/base"))
    assert len(kept) == (policy == "failed")
    assert all(str(path.parent.parent) in told(desk) for path in kept)
    assert not list(desk.settings.state_dir.glob("runs/*"))


def test_a_build_that_was_stopped_keeps_nothing(desk: Desk) -> None:
    desk.settings = replace(desk.settings, keep_output="failed")

    def stopped(spec: ContainerSpec) -> None:
        failing(spec)
        desk.stop.requests = 1

    desk.engine.phases["compile"] = FakeRun(effect=stopped, exit_code=8)
    with pytest.raises(Interrupted):
        desk.build()
    assert not list(desk.settings.cache_dir.glob("output/*"))


# --- real Bazel -----------------------------------------------------------------------------------------------------

real = pytest.mark.engine


class Warm:
    """The cold build with a wheelhouse and a cache of its own, and what the cache holds afterwards."""

    def __init__(self, workshop: Workshop, finished: Finished) -> None:
        self.workshop = workshop
        copy = finished.copy(workshop)
        self.command, self.first, self.wheel = copy.tfdock, finished.outcome.build, copy.wheel
        self.profile = write_profile(copy.profile, workshop.tree(), verify=UNTRIED)

    def legacy(self) -> tuple[Path, Json]:
        """The profile of a build on the legacy road, and what became of it."""
        source = {"release": "99.15.0", "path": str(self.workshop.tree("legacy"))}
        profile = write_profile(self.command.home / "legacy.yaml", tensorflow=source, verify=UNTRIED)
        return profile, self.again(profile)

    def again(self, profile: Path | None = None) -> Json:
        """The same build in new containers."""
        return self.command.build("--force", profile or self.profile, code=0).build

    def cache(self, *words: str, code: int | None = 0) -> Outcome:
        return self.command.run("cache", words[0], "--json", *words[1:], code=code)

    def disk(self, build: Json) -> DiskCache:
        record = record_of(build)
        return CacheFolder.opened(self.command.cache).disk(record["toolchain_key"])

    def an_object(self, build: Json) -> Path:
        """The largest output of a build's actions. It is the only build with its toolchain."""
        listed = listing(self.disk(build))
        outputs = {output.hash for result in listed.results.values() for output in result.files}
        blobs = [entry for digest, entry in listed.blobs.items() if digest in outputs]
        return listed.disk.folder / max(blobs, key=lambda entry: entry.size).name


def taken(build: Json) -> tuple[int, int]:
    """How many actions came from the cache, and how many were executed."""
    return build["cache"]["hits"], build["cache"]["executed"]


def sums(build: Json) -> list[str]:
    return [wheel["sha256"] for wheel in build["wheels"]]


@pytest.fixture(scope="module")
def warm(workshop: Workshop, finished: Finished) -> Iterator[Warm]:
    warm = Warm(workshop, finished)
    yield warm
    assert warm.command.leftovers == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """A second build, and what was said to somebody who wanted to prune while it ran."""

    build: Json
    process: int
    pruned: Outcome
    old_file: int  #: The inode of the wheel before it.


@pytest.fixture(scope="module")
def second(warm: Warm) -> Second:
    old_file = warm.wheel.stat().st_ino
    running = warm.command.start("build", "--json", "--force", warm.profile)
    running.wait_for("compile")
    pruned = warm.command.run("cache", "prune", "--max-size", "1MiB")
    build = running.finish(code=0).build
    return Second(build=build, process=running.process.pid, pruned=pruned, old_file=old_file)


@real
def test_a_second_build_in_a_fresh_container_executes_nothing(warm: Warm, second: Second) -> None:
    for build in (second.build, warm.again()):
        assert build["status"] == "built"
        assert taken(build) == (18, 0)
        document = warm.cache("list").document
        (row,) = (row for row in document["toolchains"] if row["key"] == warm.disk(build).key)
        assert row["actions"] == 18
        assert row["toolchain"]["bazel"] == "4.2.3"
        assert sums(build) == sums(warm.first)
    assert warm.wheel.stat().st_ino != second.old_file


@real
def test_pruning_is_refused_while_a_build_runs(second: Second) -> None:
    assert second.pruned.code == 9, second.pruned.told
    assert f"process {second.process} (" in second.pruned.stderr
    assert "[cache-locked]" in second.pruned.stderr


@real
@pytest.mark.parametrize("road", ["hermetic", "legacy"])
def test_an_output_that_is_gone_is_made_again(warm: Warm, road: str) -> None:
    profile, before = (warm.profile, warm.first) if road == "hermetic" else warm.legacy()
    warm.an_object(before).unlink()
    rows = warm.cache("verify", code=None).document["toolchains"]
    (row,) = (row for row in rows if row["toolchain"] == warm.disk(before).key)
    assert [finding["kind"] for finding in row["findings"]] == ["incomplete"]
    build = warm.again(profile)
    assert build["cache"]["executed"] == 1
    assert sums(build) == sums(before)


@real
def test_a_poisoned_entry_is_found_and_repaired_and_the_next_build_is_well(warm: Warm) -> None:
    poisoned = warm.an_object(warm.first)
    data = bytearray(poisoned.read_bytes())
    data[len(data) // 2] ^= 1
    poisoned.write_bytes(data)
    found = warm.cache("verify", code=4)
    (row,) = (row for row in found.document["toolchains"] if row["findings"])
    assert [finding["kind"] for finding in row["findings"]] == ["damaged", "incomplete"]
    assert row["findings"][0]["path"] == str(poisoned)
    assert warm.cache("verify", "--repair").document["repaired"]
    warm.cache("verify")
    build = warm.again()
    assert build["cache"]["executed"] == 1
    assert sums(build) == sums(warm.first)


@real
def test_what_a_size_took_is_made_again(warm: Warm) -> None:
    pruned = warm.cache("prune", "--max-size", "1MiB").document
    (row,) = (row for row in pruned["toolchains"] if row["key"] == warm.disk(warm.first).key)
    assert row["actions"] > 0
    warm.cache("verify")
    build = warm.again()
    assert build["cache"]["executed"] == row["actions"]
    assert sums(build) == sums(warm.first)


@real
def test_a_rebuilt_base_with_the_same_content_shares_all_whatever_its_cachebuster_is(
    warm: Warm, tmp_path: Path
) -> None:
    def build(name: str, value: str) -> tuple[Json, Outcome]:
        steps = (
            f'echo "build --action_env=DOCKER_CACHEBUSTER={value}" >> /etc/bazel.bazelrc',
            f'echo "build --host_action_env=DOCKER_HOST_CACHEBUSTER={value}" >> /etc/bazel.bazelrc',
        )
        with warm.workshop.base_image(name, "99.18-python3.11", *steps) as base:
            profile = write_profile(tmp_path / f"{name}.yaml", warm.workshop.tree(), base=base, verify=UNTRIED)
            outcome = warm.command.build(profile, code=0)
        return record_of(outcome.build), outcome

    plain = record_of(warm.first)
    first, told_first = build("first", secrets.token_hex(9))
    second, told_second = build("second", secrets.token_hex(9))
    names = ["DOCKER_CACHEBUSTER"]
    assert set(names) <= set(first["toolchain"]["cachebusters"])
    assert "gives every action DOCKER_CACHEBUSTER, another in each image" in Path(told_first.build["log"]).read_text()
    assert first["toolchain_key"] != plain["toolchain_key"]
    assert told_first.build["cache"]["hits"] == 0, "another toolchain shares nothing"
    assert second["toolchain_key"] == first["toolchain_key"]
    assert taken(told_second.build) == (18, 0)
    assert sums(told_second.build) == sums(told_first.build)
