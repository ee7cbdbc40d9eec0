"""What this machine lacks, gathered and told: `tfdock doctor`, and the checks before a build starts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine

from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.builder import doctor
from tfdock.cli.commands import doctor as command
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec, ImageInfo
from tfdock.errors import (
    DiskFull,
    EngineUnavailable,
    ExitCode,
    Incompatible,
    OutOfMemory,
    Problem,
    TfdockError,
)
from tfdock.host.settings import Settings
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.preflight import PreflightCheck
from tfdock.run import journal
from tfdock.run.journal import RunEntry
from tfdock.types import BuildId, Host, LocalGpu, Machine, WritableFolder
from tfdock.wheelhouse.store import Wheelhouse

from .. import command_line
from ..desk import GIB, Desk

RUN = "20261121-104600-3fa9c1"
RTX3080 = LocalGpu(name="NVIDIA GeForce RTX 3080", accelerator="cuda", target="8.6")
PROFILE = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ncuda: "12.5.1"\ncompute_capabilities: [sm_86]\n'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(wheelhouse=tmp_path / "wheels", cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")


@pytest.fixture
def plan(desk: Desk) -> BuildPlan:
    return desk.plan(PROFILE)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what this machine is; until then one with room for everything, and without a GPU."""
    sizes = {"free": 500 * GIB, "memory": 64 * GIB}

    def look(what: str, path: Path, **more: Any) -> WritableFolder:
        more.pop("executes", None)
        return WritableFolder(what=what, path=str(path), free=sizes["free"], filesystem="1", **more)

    def become(host: Host | None = None, **changes: int) -> None:
        sizes.update(changes)
        monkeypatch.setattr(doctor, "local_host", lambda: host or Host())
        monkeypatch.setattr(doctor, "place", look)
        here = Machine(cpus=8, memory=sizes["memory"])
        monkeypatch.setattr(doctor, "local_machine", lambda: here)
        monkeypatch.setattr(doctor, "engine_machine", lambda _: here)

    become()
    return become


def engine(**changes: Any) -> FakeEngine:
    fake = FakeEngine()
    fake.engine_info = replace(fake.engine_info, **changes)
    return fake


def gone() -> FakeEngine:
    fake = FakeEngine()
    fake.fail_next(
        "info", EngineUnavailable(Problem(code="engine-unavailable", message="nobody there", fixes="start it"))
    )
    return fake


def checks(
    settings: Settings, fake: FakeEngine, *plans: tuple[str, BuildPlan], desk: Desk | None = None
) -> list[PreflightCheck]:
    return list(doctor.examine(settings, fake, plans, desk.knowledge if desk else None))


def of(found: list[PreflightCheck], name: str) -> PreflightCheck:
    (check,) = [check for check in found if check.name == name]
    return check


# --- the machine ----------------------------------------------------------------------------------------------------


def test_without_an_engine_memory_and_disk_are_judged_all_the_same(settings: Settings) -> None:
    found = checks(settings, gone())
    assert (found[0].name, found[0].status, found[0].exit_code) == ("engine", "failed", ExitCode.ENGINE)
    assert (found[0].code, found[0].fix) == ("engine-unavailable", "start it")
    assert (of(found, "memory").status, of(found, "disk").status) == ("ok", "ok")


def test_an_engine_on_another_machine_is_named_with_its_place(settings: Settings) -> None:
    where = "tcp://builder:2376 (from DOCKER_HOST)"
    check = of(checks(settings, engine(local=False, address=where)), "engine")
    assert check.status == "ok"
    assert f"at {where}, on another machine" in check.found


def test_a_folder_of_no_use_fails_whatever_is_free_there(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    settings.wheelhouse.write_text("in the way")
    check = of(checks(settings, engine()), "folder")
    assert (check.status, check.code, check.exit_code) == ("failed", "folder-not-writable", ExitCode.BUILD_FAILED)
    assert str(settings.wheelhouse) in check.found


def test_the_engines_images_count_where_its_folder_is_this_machines(settings: Settings, tmp_path: Path) -> None:
    def places(root: str, **more: bool) -> dict[str, float]:
        found = doctor.build_places(settings, engine(data_root=root, **more).engine_info)
        return {place.what: place.share for place in found}

    here = places(str(tmp_path))
    assert "the engine's images" in here
    assert sum(here.values()) == pytest.approx(1)
    without = set(here) - {"the engine's images"}
    assert set(places(str(tmp_path / "none"))) == set(places("")) == without
    assert set(places(str(tmp_path), local=False)) == without - {"the cache"}, "its caches are there"


@pytest.mark.parametrize(
    ("runtimes", "program", "code"),
    [("nvidia", None, ""), ("runc", "nvidia-ctk", ""), ("runc", None, "gpu-runtime-missing")],
)
def test_gpus_want_a_container_runtime(
    settings: Settings, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, runtimes: str,
    program: str | None, code: str,
) -> None:  # fmt: skip
    machine(Host(gpus=(RTX3080,), drivers={"cuda": "550.54.14"}))
    monkeypatch.setattr(shutil, "which", lambda name: name if name == program else None)
    found = checks(settings, engine(runtimes=(runtimes,)))
    assert of(found, "gpu runtime").code == code
    assert "RTX 3080 (8.6), driver 550.54.14" in of(found, "gpu").found


def test_a_driver_that_is_out_of_order_is_told(settings: Settings, machine: Callable[..., None]) -> None:
    machine(Host(troubles={"cuda": "nvidia-smi: Failed to initialize NVML"}, wsl=True))
    found = checks(settings, engine())
    assert (of(found, "driver").code, of(found, "wsl").status) == ("driver-broken", "ok")
    assert "gpu" not in {check.name for check in found}


def test_without_an_engine_nobody_knows_what_containers_are_left(settings: Settings) -> None:
    check = of(checks(settings, gone()), "leftovers")
    assert (check.status, check.code) == ("skipped", "")
    assert "without an engine, containers cannot be checked" in check.found


def fixed(settings: Settings, fake: FakeEngine) -> list[PreflightCheck]:
    """What is told of leftovers where they are to be removed."""
    return [one for one in doctor.examine(settings, fake, fix=True) if one.name == "leftovers"]


def test_where_nothing_is_left_a_fix_says_so(settings: Settings) -> None:
    assert of(checks(settings, engine()), "leftovers").found == "none"
    (check,) = fixed(settings, engine())
    assert (check.status, check.found) == ("ok", "none: there was nothing to remove")


def abandoned(settings: Settings, tmp_path: Path, **changes: str) -> RunEntry:
    """The entry of a run that was killed, with its folders; nothing is left of it while it lives."""
    staging, output = Wheelhouse(settings.wheelhouse).staging(RUN), CacheFolder(settings.cache_dir).run_folder(RUN)
    for folder in (staging, output):
        folder.mkdir(parents=True)
    entry = RunEntry(run=RUN, build_id="x", staging=str(staging), output=str(output), **changes)
    kept = tmp_path / "kept"
    with journal.running(settings.state_dir, entry):
        assert of(checks(settings, engine()), "leftovers").status == "ok"
        shutil.copytree(settings.state_dir / "runs" / RUN, kept)
    shutil.copytree(kept, settings.state_dir / "runs" / RUN, dirs_exist_ok=True)
    return entry


def test_what_killed_runs_left_is_removed_where_that_is_asked_for(settings: Settings, tmp_path: Path) -> None:
    entry = abandoned(settings, tmp_path)
    fake = engine()
    label = {RUN_LABEL: RUN}
    fake.images["x"] = ImageInfo(id="x")
    fake.create(ContainerSpec(name="left", image="x", command=("true",), labels=label))
    fake.create(ContainerSpec(name="another's", image="x", command=("true",), labels={RUN_LABEL: "run2"}))
    half = settings.wheelhouse / ".tfdock/tf1/abc/.record.json.12-13"
    held = settings.wheelhouse / ".tfdock/tf2/abc/.record.json.12-13"
    other = half.with_name(".mine")
    for path in (half, held, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with Wheelhouse(settings.wheelhouse).locked(BuildId("tf2")):
        check = of(checks(settings, fake), "leftovers")
        found = (check.status, check.code, check.found)
        assert found == ("warning", "run-left-behind", f"{RUN}, half written {half}")
        assert "tfdock doctor --fix" in check.fix
        told = [one.found for one in fixed(settings, fake)]
    assert told == [f"{RUN} was removed", f"half written {half} was removed"]
    assert [one.name for one in fake.containers(RUN_LABEL)] == ["another's"]
    assert not any(Path(path).exists() for path in (entry.staging, entry.output, half))
    assert held.exists(), "somebody is at it"
    assert other.exists()
    assert of(checks(settings, fake), "leftovers").found == f"half written {held}", "now nobody is at it"


def test_what_cannot_be_removed_now_says_why(settings: Settings, tmp_path: Path) -> None:
    abandoned(settings, tmp_path, engine="another")
    (check,) = fixed(settings, engine())
    assert (check.status, check.found) == (
        "warning",
        f"{RUN} is still there: the run's containers are on another engine",
    )
    (check,) = fixed(settings, gone())
    assert "once the engine answers" in check.fix
    assert journal.killed_runs(settings.state_dir) != []


def test_a_journal_that_cannot_be_read_fails_and_stops_nothing_else(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    settings.state_dir.write_text("in the way")
    found = checks(settings, engine())
    assert "the journal of runs" in of(found, "folder").found
    assert "leftovers" not in {check.name for check in found}


def test_a_journal_that_others_can_write_to_fails_and_nothing_is_removed(settings: Settings, tmp_path: Path) -> None:
    entry = abandoned(settings, tmp_path)
    (settings.state_dir / "runs").chmod(0o770)
    (check,) = fixed(settings, engine())
    assert (check.status, check.code, check.exit_code) == ("failed", "state-not-private", 2)
    assert f"chmod go-w {settings.state_dir / 'runs'}" in check.fix
    assert Path(entry.staging).exists()


def test_a_profile_is_compared_with_the_machine(
    settings: Settings, machine: Callable[..., None], plan: BuildPlan, desk: Desk
) -> None:
    machine(Host(gpus=(RTX3080,), drivers={"cuda": "470.256.02"}), memory=2 * GIB)
    found = checks(settings, engine(), ("x.yaml", plan), desk=desk)
    assert (of(found, "driver").status, of(found, "driver").profile) == ("warning", "x.yaml")
    assert of(found, "memory").code == "machine-memory-too-small"


# --- before a build -------------------------------------------------------------------------------------------------


def stopped(plan: BuildPlan, desk: Desk, settings: Settings, fake: FakeEngine) -> TfdockError:
    with pytest.raises(TfdockError) as caught:
        doctor.before_build(plan, desk.knowledge, settings, fake, fake.engine_info)
    return caught.value


@pytest.mark.parametrize(("sizes", "error"), [({"memory": 2 * GIB}, OutOfMemory), ({"free": 20 * GIB}, DiskFull)])
def test_too_little_memory_or_disk_stops_a_build(
    settings: Settings, machine: Callable[..., None], plan: BuildPlan, desk: Desk, sizes: dict[str, int],
    error: type[TfdockError],
) -> None:  # fmt: skip
    machine(**sizes)
    found = stopped(plan, desk, settings, engine())
    assert (type(found), found.exit_code) == (error, ExitCode.RESOURCES)
    assert found.problems[0].fix


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"api_version": "1.39"}, ["engine-too-old"]),
        ({"remaps_users": True}, ["engine-network-impossible"]),
        ({"rootless": True, "owner": os.getuid() + 1}, ["engine-of-another-user"]),
    ],
)
@pytest.mark.parametrize("memory", [64, 2])
def test_an_engine_that_refuses_what_a_build_needs_stops_it_before_all_else(
    settings: Settings, machine: Callable[..., None], plan: BuildPlan, desk: Desk, changes: dict[str, Any],
    codes: list[str], memory: int,
) -> None:  # fmt: skip
    machine(memory=memory * GIB)
    hosts = replace(settings, network="host" if "remaps_users" in changes else settings.network)
    found = stopped(plan, desk, hosts, engine(**changes))
    assert found.exit_code == ExitCode.ENGINE
    short = [] if memory > 2 else ["machine-memory-too-small"]
    assert [problem.code for problem in found.problems] == [*codes, *short]


def test_limits_that_the_engine_drops_are_told_before_a_build(
    settings: Settings, plan: BuildPlan, desk: Desk
) -> None:
    dropping = engine(rootless=True, owner=os.getuid(), limits_memory=False, limits_cpus=False)
    warnings = doctor.before_build(plan, desk.knowledge, settings, dropping, dropping.engine_info)
    (check,) = [check for check in warnings if check.name == "engine limits"]
    assert (check.code, check.status) == ("engine-limits-missing", "warning")
    assert "memory and CPU time" in check.found


def test_the_mode_of_the_engine_is_named(settings: Settings) -> None:
    check = of(checks(settings, engine(rootless=True, selinux=True)), "engine mode")
    assert check.status == "ok"
    assert "rootless" in check.found
    assert "label=disable" in check.found


def test_an_old_driver_stops_only_a_build_for_this_machine(
    settings: Settings, machine: Callable[..., None], plan: BuildPlan, desk: Desk
) -> None:
    machine(Host(gpus=(RTX3080,), drivers={"cuda": "470.256.02"}))
    (notice,) = doctor.before_build(plan, desk.knowledge, settings, engine(), engine().engine_info)
    assert notice.code == "driver-too-old"
    found = stopped(replace(plan, for_this_machine=True), desk, settings, engine())
    assert isinstance(found, Incompatible)
    assert found.exit_code == ExitCode.INCOMPATIBLE


def test_an_image_that_is_there_takes_no_more_room(
    settings: Settings, machine: Callable[..., None], plan: BuildPlan, desk: Desk, tmp_path: Path
) -> None:
    # Too little for 60 GiB with the image's third, enough without.
    machine(free=35 * GIB)
    fake = engine(data_root=str(tmp_path))
    assert stopped(plan, desk, settings, fake).problems[0].code == "disk-too-small"
    fake.images[plan.image_name] = ImageInfo(id="sha256:" + "1" * 64, tags=(plan.image_name,))
    assert [check.code for check in doctor.before_build(plan, desk.knowledge, settings, fake, fake.engine_info)] == [
        "disk-short"
    ]


def test_an_image_alone_needs_room_where_the_engine_keeps_images_and_nowhere_else(
    settings: Settings, machine: Callable[..., None], plan: BuildPlan, tmp_path: Path
) -> None:
    machine(free=2 * GIB)
    fake = engine(data_root=str(tmp_path))
    with pytest.raises(DiskFull) as caught:
        doctor.before_image(plan, settings, fake, fake.engine_info)
    assert caught.value.problems[0].code == "disk-too-small"
    assert doctor.before_image(plan, settings, engine(), engine().engine_info) == []
    fake.images[plan.image_name] = ImageInfo(id="sha256:" + "1" * 64, tags=(plan.image_name,))
    assert doctor.before_image(plan, settings, fake, fake.engine_info) == []


def test_a_build_for_the_cpu_asks_no_driver(settings: Settings, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Host:
        raise AssertionError

    monkeypatch.setattr(doctor, "local_host", never)
    cpu = desk.plan('schema: 1\ntensorflow: "2.18.0"\n')
    assert doctor.before_build(cpu, desk.knowledge, settings, engine(), engine().engine_info) == []


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command with an engine in memory, where the settings say."""
    for name in ("wheelhouse", "cache_dir", "state_dir"):
        monkeypatch.setenv(f"TFDOCK_{name.upper()}", str(getattr(settings, name)))

    def called(*words: str, fake: FakeEngine | None = None, columns: int = 80) -> Any:
        monkeypatch.setattr(command, "local_engine", lambda: fake or engine())
        return command_line.run("doctor", *words, COLUMNS=str(columns))

    return called


def test_the_answer_comes_first(run: Callable[..., Any], machine: Callable[..., None]) -> None:
    assert run().stdout.startswith("yes: ")
    assert run(fake=gone()).stdout.startswith("no: ")
    machine(memory=4 * GIB)
    short = run()
    assert (short.exit_code, short.stdout.splitlines()[0].endswith("see the warning")) == (0, True)


def written(folder: Path, text: str) -> str:
    """The path of a profile with that text."""
    (folder / "x.yaml").write_text(text)
    return str(folder / "x.yaml")


@pytest.mark.parametrize("columns", [30, 60, 100])
def test_no_line_is_wider_than_the_terminal(
    run: Callable[..., Any], machine: Callable[..., None], tmp_path: Path, columns: int
) -> None:
    machine(Host(gpus=(RTX3080,), drivers={"cuda": "470.256.02"}), memory=2 * GIB, free=GIB)
    result = run(written(tmp_path, PROFILE), columns=columns)
    assert result.exit_code == ExitCode.RESOURCES
    assert command_line.too_wide(result.stdout.splitlines(), columns) == []
    assert "fix:" in result.stdout


def test_the_document_has_every_check(run: Callable[..., Any], machine: Callable[..., None], tmp_path: Path) -> None:
    machine(Host(gpus=(RTX3080,), drivers={"cuda": "470.256.02"}))
    profile = written(tmp_path, PROFILE)
    document = json.loads(run(profile, "--json").stdout)
    assert list(document) == ["schema", "ok", "checks"]
    assert (document["schema"], document["ok"]) == ("tfdock.doctor/1", True)
    (driver,) = [check for check in document["checks"] if check["name"] == "driver"]
    assert (driver["status"], driver["code"], driver["profile"]) == ("warning", "driver-too-old", profile)


def test_what_is_left_is_removed_though_a_profile_that_nobody_has_tested_is_refused_unless_it_is_allowed(
    run: Callable[..., Any], settings: Settings, tmp_path: Path
) -> None:
    abandoned(settings, tmp_path)
    profile = written(tmp_path, 'schema: 1\ntensorflow: "2.18.0"\nbazel: {version: "5.3.0"}\n')
    result = run(profile, "--fix", columns=200)
    assert result.exit_code == ExitCode.INCOMPATIBLE
    assert f"{RUN} was removed" in result.stdout
    assert journal.killed_runs(settings.state_dir) == []
    assert run(profile, "--allow-untested").stdout.startswith("yes:")


def test_several_profiles_are_told_apart(run: Callable[..., Any]) -> None:
    result = run("rtx3080", "cpu-native")
    assert "rtx3080: memory" in result.stdout
    assert "cpu-native: memory" in result.stdout
    assert result.stdout.count("engine: ") == 1


def test_the_answer_names_the_profiles_that_cannot_be_built(run: Callable[..., Any], tmp_path: Path) -> None:
    greedy = tmp_path / "greedy.yaml"
    greedy.write_text(f"{PROFILE}resources: {{disk: 4T}}\n")
    answer = run("cpu-native", str(greedy), columns=300).stdout.splitlines()[0]
    assert answer.startswith(f"no: {greedy} cannot")
    assert "cpu-native" in run("cpu-native", str(greedy), fake=gone(), columns=300).stdout.splitlines()[0]


@pytest.mark.slow
def test_a_profile_that_is_refused_is_a_failed_check_told_once_below_the_answer(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    profile = written(tmp_path, PROFILE.replace("sm_86", "sm_20"))
    result = run(profile, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["ok"]) == (ExitCode.INCOMPATIBLE, False)
    assert {check["name"] for check in document["checks"]} == {"profile"}
    told = run(profile, columns=300)
    assert told.stdout == f"no: {profile} is refused\n"
    found = [check["found"] for check in document["checks"]]
    assert [told.output.count(f": {message} [") for message in found] == [1] * len(found)
    assert [told.output.count(f"failed   profile: {message}") for message in found] == [0] * len(found)
