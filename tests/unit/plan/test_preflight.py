"""A machine against a build: which driver it needs, which GPUs run it, whether memory and disk suffice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfdock.errors import ExitCode
from tfdock.knowledge.fits import toolkit_floor
from tfdock.plan import preflight
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.preflight import FAILED, OK, SKIPPED, WARNING, PreflightCheck
from tfdock.types import EngineInfo, Host, LocalGpu, Machine, Version, WritableFolder

from ..desk import GIB, MADE_UP_TABLES, Desk, knowledge_of

MIB = 1 << 20
HEAD = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\ncuda: "12.5.1"\n'
CPU = 'schema: 1\ntensorflow: "2.18.0"\n'
MACHINE = Machine(cpus=8, memory=64 * GIB)
ROOM = (WritableFolder(what="the cache", path="/c", share=1, free=900 * GIB, filesystem="1", option="--cache-dir"),)
RTX3080 = LocalGpu(name="NVIDIA GeForce RTX 3080", accelerator="cuda", target="8.6")
H100 = LocalGpu(name="NVIDIA H100 PCIe", accelerator="cuda", target="9.0")
RTX5090 = LocalGpu(name="NVIDIA GeForce RTX 5090", accelerator="cuda", target="12.0")
LAPTOP = LocalGpu(name="NVIDIA GeForce RTX 5080 Laptop GPU", accelerator="cuda", target="12.0")
ORIN = LocalGpu(name="Orin (nvgpu)", accelerator="cuda", target="8.7")
K80 = LocalGpu(name="Tesla K80", accelerator="cuda", target="3.7")


def host(driver: str | None = None, *gpus: LocalGpu, **more: Any) -> Host:
    return Host(gpus=gpus, drivers={"cuda": driver} if driver else {}, **more)


def capabilities(*names: str) -> str:
    return f"{HEAD}compute_capabilities: [{', '.join(names)}]\n"


def findings(desk: Desk, text: str, machine_host: Host | None, **more: Any) -> dict[str, PreflightCheck]:
    """The checks of a machine with room enough, by name."""
    plan = replace(desk.plan(text), for_this_machine=more.pop("for_this_machine", False))
    facts = {"machine": MACHINE, "places": ROOM, **more}
    return {
        check.name: check for check in preflight.machine_findings(plan, desk.knowledge, host=machine_host, **facts)
    }


# --- which driver ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toolkit", "linux", "windows"),
    [
        ("13.0.2", "580.65.06", "580"), ("12.5.1", "525.60.13", "527.41"), ("12.0.0", "525.60.13", "527.41"),
        ("11.2.2", "450.80.02", "452.39"), ("10.1.243", "418.39", "418.96"), ("9.0.176", "384.81", "385.54"),
        ("8.0", "375.26", "376.51"), ("99.1", None, None), ("", None, None),
    ],
)  # fmt: skip
def test_minor_versions_share_a_driver_from_the_major_on_that_promises_it(
    desk: Desk, toolkit: str, linux: str | None, windows: str | None
) -> None:
    found = [toolkit_floor(desk.knowledge, "cuda", Version(toolkit), wsl=wsl) for wsl in (False, True)]
    assert [version and str(version) for version in found] == [linux, windows]


def floors(desk: Desk, text: str, *gpus: LocalGpu, wsl: bool = False) -> dict[str, str]:
    """Code -> the driver that is needed."""
    found = preflight.driver_floors(desk.resolve(text), desk.knowledge, gpus, wsl=wsl)
    return {floor.code: str(floor.version) for floor in found}


def test_machine_code_needs_no_more_than_the_toolkit_does(desk: Desk) -> None:
    found = floors(desk, capabilities("sm_86"))
    assert found == {"driver-too-old": "525.60.13", "driver-too-old-for-gpu": "455.23.04"}


@pytest.mark.parametrize(
    ("compiler", "driver"),
    [
        ("compiler: nvcc\nallow_untested: true\n", "555"),  # PTX 8.5, as new as CUDA 12.5
        ("compiler: clang\n", "545"),  # clang 18 writes PTX 8.3, whatever the toolkit could do
    ],
)
def test_ptx_needs_the_driver_that_came_with_it(desk: Desk, compiler: str, driver: str) -> None:
    found = floors(desk, capabilities("sm_80", "compute_90") + compiler)
    assert found["driver-too-old-for-ptx"].partition(".")[0] == driver


def test_ptx_needs_nothing_where_every_gpu_has_machine_code(desk: Desk) -> None:
    text = capabilities("sm_80", "compute_90")
    assert "driver-too-old-for-ptx" not in floors(desk, text, RTX3080, H100)
    assert "driver-too-old-for-ptx" in floors(desk, text, RTX3080, RTX5090)
    assert "driver-too-old-for-ptx" in floors(desk, text, replace(RTX3080, target=None))


def test_a_gpu_has_a_driver_of_its_own(desk: Desk) -> None:
    for gpu, driver in ((RTX5090, "570.86.16"), (LAPTOP, "570.133.07"), (H100, "520.56.06")):
        assert floors(desk, capabilities("compute_90"), gpu)["driver-too-old-for-gpu"] == driver
    check = findings(desk, capabilities("compute_90"), host("560.1", LAPTOP))["driver"]
    assert check.needed.endswith(
        "the first driver that knows NVIDIA GeForce RTX 5080 Laptop GPU, with the open kernel modules"
    )
    # Windows numbers the releases of a branch otherwise.
    assert "570" in findings(desk, capabilities("compute_90"), host("560.1", LAPTOP, wsl=True))["driver"].needed


def test_without_a_gpu_here_those_count_that_it_is_built_for(desk: Desk) -> None:
    new = HEAD.replace("2.18.0", "2.20.0").replace("12.5.1", "12.8.1").replace("3.11", "3.12")
    only = f"{new}compute_capabilities: [sm_120]\n"
    assert floors(desk, only) == {"driver-too-old": "525.60.13", "driver-too-old-for-gpu": "570.86.16"}
    check = findings(desk, only, host())["driver"]
    assert (check.status, check.needed) == (
        SKIPPED,
        "driver 570.86.16 or newer, which is the first driver that knows GPUs of 12.0",
    )
    # One that it may run on needs less.
    older = floors(desk, f"{new}compute_capabilities: [sm_86, sm_120]\n")
    assert older == {"driver-too-old": "525.60.13", "driver-too-old-for-gpu": "455.23.04"}


@pytest.mark.parametrize(
    ("there", "status"),
    [
        # 526.98 is above Linux' floor of 525.60.13 and below that of Windows, 527.41.
        pytest.param(host("526.98", RTX3080, wsl=True), WARNING, id="on WSL the Windows driver is compared"),
        pytest.param(host("526.98", RTX3080), OK, id="on Linux its own"),
        pytest.param(host("1000.1", RTX3080), OK, id="compared as numbers"),
        pytest.param(host("525.60.9", RTX3080), WARNING, id="to the last number"),
        pytest.param(host("35.4.1", ORIN), SKIPPED, id="boards have drivers of their own"),
        pytest.param(host(), SKIPPED, id="no driver here"),
    ],
)
def test_the_driver_here_is_compared_with_the_one_that_is_needed(desk: Desk, there: Host, status: str) -> None:
    check = findings(desk, capabilities("sm_86"), there)["driver"]
    assert check.status == status
    assert there.gpus or "525.60.13" in check.needed


def test_an_old_driver_is_told_with_what_is_needed_and_why_and_stops_a_build_for_this_machine(desk: Desk) -> None:
    old = host("470.256.02", RTX3080)
    check = findings(desk, capabilities("sm_86"), old)["driver"]
    assert (check.code, check.status, check.exit_code) == ("driver-too-old", WARNING, ExitCode.OK)
    assert "470.256.02" in check.found
    assert "525.60.13" in check.needed
    assert "12.5.1" in check.needed
    assert "525.60.13" in check.fix
    check = findings(desk, capabilities("sm_86"), old, for_this_machine=True)["driver"]
    assert (check.status, check.exit_code) == (FAILED, ExitCode.INCOMPATIBLE)
    assert (check.problem.severity, check.problem.code) == ("error", "driver-too-old")


def test_the_fix_names_the_newest_toolkit_of_the_release_that_the_driver_runs(invented: Desk) -> None:
    text = 'schema: 1\ntensorflow: "9.9.0"\ncuda: "20.1.3"\ncompute_capabilities: [sm_86]\n'
    check = findings(invented, text, host("900.5", RTX3080))["driver"]
    assert check.status == WARNING
    assert "20.0.1" in check.fix
    older = findings(invented, text, host("800.0", RTX3080))["driver"]
    assert "20.0.1" not in older.fix


def test_facts_that_were_not_gathered_are_skipped_with_the_reason(desk: Desk) -> None:
    found = findings(desk, capabilities("sm_86"), None, machine=None, places=())
    assert {check.status for check in found.values()} == {SKIPPED}
    assert set(found) == {"driver", "memory", "disk"}
    assert all(check.found and not check.code for check in found.values())


def test_a_build_without_accelerator_asks_for_no_driver(desk: Desk) -> None:
    assert set(findings(desk, CPU, host("100.1", K80))) == {"memory", "disk"}


def test_a_driver_that_answers_with_an_error_is_told(desk: Desk) -> None:
    broken = host("550.54.14", troubles={"cuda": "nvidia-smi: Failed to initialize NVML"})
    plan = desk.plan(capabilities("sm_86"))
    checks = preflight.device_checks(plan.resolution, desk.knowledge, broken, for_this_machine=False)
    assert [(check.code, check.status) for check in checks] == [("driver-broken", WARNING), ("", OK)]


# --- which GPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "gpu", "status", "word"),
    [
        (("sm_86",), RTX3080, OK, "exactly"),
        (("sm_80",), RTX3080, OK, "same major"),
        (("compute_80",), H100, OK, "compiles"),
        (("sm_80",), H100, WARNING, "cannot run"),
        (("sm_80",), ORIN, WARNING, "embedded"),
        (("sm_86",), replace(RTX3080, target=None), SKIPPED, "does not report"),
    ],
)
def test_each_gpu_here_is_told_how_it_runs_what_is_built(
    desk: Desk, targets: tuple[str, ...], gpu: LocalGpu, status: str, word: str
) -> None:
    check = findings(desk, capabilities(*targets), host("580.95.05", gpu))["gpu"]
    assert check.status == status
    assert word in check.found
    assert gpu.name in check.found


def test_a_gpu_that_no_driver_brings_together_with_the_toolkit_is_told(desk: Desk) -> None:
    check = findings(desk, capabilities("sm_60"), host("470.256.02", K80), for_this_machine=True)["gpu"]
    assert (check.code, check.exit_code) == ("driver-gpu-conflict", ExitCode.INCOMPATIBLE)
    assert "470" in check.found
    assert "525.60.13" in check.needed


def test_gpus_alike_are_told_of_once(desk: Desk) -> None:
    resolution = desk.resolve(capabilities("sm_86"))
    both = host("580.1", RTX3080, RTX3080)
    checks = preflight.device_checks(resolution, desk.knowledge, both, for_this_machine=False)
    assert [check.name for check in checks] == ["gpu", "driver"]


def test_another_makers_gpu_does_not_count(desk: Desk) -> None:
    amd = LocalGpu(name="AMD Instinct MI210", accelerator="rocm", target="gfx90a")
    assert "gpu" not in findings(desk, capabilities("sm_86"), host(None, amd))


# --- knowledge that does not exist ----------------------------------------------------------------------------------

DRIVERS = """
rows:
  - {toolkit: xpu, version: "5", linux: "70.1", source: x}
"""
ARCHITECTURES = """
rows:
  - {architecture: First, accelerator: xpu, targets: [xe1], driver_max: "60", source: x}
  - {architecture: Second, accelerator: xpu, targets: [xe2], driver_min: "75", source: x}
"""


@pytest.fixture(scope="module")
def invented(made_up: Desk) -> Desk:
    """The made-up knowledge, and what drivers its accelerator has."""
    tables = {**MADE_UP_TABLES, "drivers": DRIVERS, "architectures": ARCHITECTURES}
    # No row for all of 20: each toolkit has its own driver.
    for version, driver in (("20.0", "900.0"), ("20.1", "901.0")):
        old, new = f'version: "{version}", ', f'version: "{version}", driver_linux: "{driver}", '
        assert old in tables["toolkits"]
        tables["toolkits"] = tables["toolkits"].replace(f"cuda, {old}", f"cuda, {new}")
    return replace(made_up, knowledge=knowledge_of(tables))


def xpu(version: str, target: str, **more: Any) -> Host:
    return Host(
        gpus=(LocalGpu(name="Acme Slab", accelerator="xpu", target=target),), drivers={"xpu": version}, **more
    )


SLAB = 'schema: 1\ntensorflow: "9.9.0"\ntargets: [xe1, xe2]\n'


@pytest.mark.parametrize(
    ("there", "driver", "gpu"),
    [
        (xpu("75.0", "xe2"), OK, OK),
        (xpu("74.9", "xe2"), WARNING, OK),  # enough for the toolkit, not for the GPU
        (xpu("70.0", "xe2"), WARNING, OK),
        (xpu("70.1", "xe1"), OK, WARNING),  # the GPU's drivers end before the toolkit's begin
        (xpu("75.0", "xe3"), OK, WARNING),  # nothing is built for it
    ],
)
def test_an_accelerator_that_is_only_rows_is_judged_by_them(
    invented: Desk, there: Host, driver: str, gpu: str
) -> None:
    found = findings(invented, SLAB, there)
    assert (found["driver"].status, found["gpu"].status) == (driver, gpu)


def test_no_newer_driver_is_advised_for_a_gpu_that_none_knows(invented: Desk) -> None:
    found = findings(invented, SLAB, xpu("60.0", "xe1"))
    assert found["gpu"].code == "driver-gpu-conflict"
    assert "driver" not in found


def test_without_rows_of_drivers_nothing_is_claimed(made_up: Desk) -> None:
    found = findings(made_up, SLAB, xpu("1.0", "xe2"))
    assert (found["driver"].status, found["gpu"].status) == (SKIPPED, OK)


# --- memory ---------------------------------------------------------------------------------------------------------


def memory(desk: Desk, text: str, machine: Machine, planned: Machine | None = None) -> PreflightCheck:
    """The check of a plan made for one machine (by default the same), on another."""
    plan: BuildPlan = desk.plan(text, machine=planned or machine)
    return preflight.memory_check(plan, machine)


OVER = "memory-overcommitted"


@pytest.mark.parametrize(
    ("asked", "machine", "planned", "code"),
    [
        *(pytest.param("", Machine(cpus=64, memory=size * GIB), None, "", id=f"sized for {size} GiB")
          for size in (8, 16, 32, 64)),
        pytest.param("", Machine(cpus=2, memory=2 * GIB, swap=4 * GIB), None, OVER, id="swap carries a single job"),
        pytest.param("", Machine(cpus=16, memory=8 * GIB), Machine(cpus=16, memory=64 * GIB), OVER,
                     id="an engine with less than was planned with"),
        pytest.param("memory: 4GiB, jobs: 8", MACHINE, None, OVER, id="the profile's own limit counts"),
    ],
)  # fmt: skip
def test_the_memory_of_a_machine_is_compared_with_the_plan(
    desk: Desk, asked: str, machine: Machine, planned: Machine | None, code: str
) -> None:
    check = memory(desk, f"{CPU}resources: {{{asked}}}\n", machine, planned)
    assert (check.status, check.code) == (WARNING if code else OK, code)
    assert not machine.swap or "slow" in check.fix


def test_a_machine_for_less_than_one_job_is_refused(desk: Desk) -> None:
    check = memory(desk, CPU, Machine(cpus=2, memory=2 * GIB))
    assert (check.status, check.exit_code) == (FAILED, ExitCode.RESOURCES)
    assert "single job" in check.needed


def test_more_jobs_than_fit_are_warned_of_with_how_many_do(desk: Desk) -> None:
    def checked(jobs: int) -> PreflightCheck:
        return memory(desk, f"{CPU}resources: {{jobs: {jobs}}}\n", Machine(cpus=64, memory=32 * GIB))

    check = checked(64)
    assert (check.status, check.code) == (WARNING, OVER)
    jobs = int(check.fix.partition("jobs: ")[2].partition("}")[0])
    assert (checked(jobs).status, checked(jobs + 1).status) == (OK, WARNING)


@pytest.mark.parametrize(
    ("machine", "status", "code"),
    [
        (Machine(cpus=8, memory=32 * GIB), OK, ""),
        (Machine(cpus=1, memory=8 * GIB), WARNING, "memory-short"),
        (Machine(cpus=1, memory=2 * GIB), FAILED, "machine-memory-too-small"),
        (Machine(cpus=1, memory=2 * GIB, swap=2 * GIB), WARNING, "memory-short"),
    ],
)
def test_a_machine_without_a_plan_is_judged_by_what_builds_usually_want(
    machine: Machine, status: str, code: str
) -> None:
    check = preflight.any_memory_check(machine)
    assert (check.status, check.code) == (status, code)
    assert (check.exit_code == ExitCode.RESOURCES) is (status == FAILED)


# --- disk -----------------------------------------------------------------------------------------------------------


def place(share: float, free: int | None, filesystem: str | None, **more: str) -> WritableFolder:
    return WritableFolder(what="the cache", path="/c", share=share, free=free, filesystem=filesystem, **more)


HALF, UNSEEN = place(0.5, 60 * GIB, "1"), [place(0.5, None, None) for _ in range(2)]


@pytest.mark.parametrize(
    ("needed", "places", "statuses"),
    [
        pytest.param(100, (HALF,), [OK], id="half of it"),
        pytest.param(100, (HALF, replace(HALF, filesystem="2")), [OK, OK], id="two file systems"),
        pytest.param(100, (HALF, HALF), [WARNING], id="one file system for both"),
        pytest.param(200, (HALF, HALF), [FAILED], id="far too small for both"),
        pytest.param(100, (place(0, 1, "1"), place(1, 200 * GIB, "2")), [OK], id="what takes no room has no say"),
        pytest.param(100, (*UNSEEN, place(0.1, GIB * 20, "1")), [SKIPPED, SKIPPED, OK], id="unseen: alone"),
    ],
)
def test_folders_on_one_file_system_must_fit_together(
    needed: int, places: tuple[WritableFolder, ...], statuses: list[str]
) -> None:
    assert [check.status for check in preflight.disk_checks(places, needed * GIB)] == statuses


def test_a_full_disk_is_refused_with_where_and_how_much() -> None:
    places = (
        place(0.6, 5 * GIB, "1", option="--cache-dir"),
        replace(place(0.05, 5 * GIB, "1", option="--wheelhouse"), what="the wheelhouse", path="/w"),
    )
    (check,) = preflight.disk_checks(places, 100 * GIB)
    assert (check.code, check.exit_code) == ("disk-too-small", ExitCode.RESOURCES)
    assert check.found == "5.0 GiB free for the cache (/c) and the wheelhouse (/w)"
    assert check.needed == "about 65.0 GiB"
    assert "`--cache-dir` or `--wheelhouse`" in check.fix


def test_small_amounts_are_told_in_mebibytes() -> None:
    (check,) = preflight.disk_checks([place(1, 3 * MIB, "1")], 100 * MIB)
    assert check.found.startswith("3 MiB free")


@pytest.mark.parametrize(("free", "status"), [(200 * GIB, OK), (40 * GIB, WARNING), (4 * GIB, FAILED)])
def test_a_disk_without_a_plan_is_judged_by_what_builds_usually_want(free: int, status: str) -> None:
    (check,) = preflight.any_disk_checks([place(1, free, "1")])
    assert check.status == status


def test_a_folder_of_no_use_is_told_with_the_option_for_another() -> None:
    bad = place(0.5, GIB, "1", trouble="/c is mounted read-only", option="--cache-dir")
    checks = list(preflight.folder_checks([bad, place(0.5, GIB, "1")]))
    assert [(check.code, check.status) for check in checks] == [("folder-not-writable", FAILED)]
    assert "read-only" in checks[0].found
    assert "--cache-dir" in checks[0].fix


# --- engine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "local", "code"),
    [("1.41", True, ""), ("1.51", True, ""), ("1.40", True, "engine-too-old"), ("1.9", True, "engine-too-old"),
     ("1.51", False, ""), ("1.40", False, "engine-too-old")],
)  # fmt: skip
def test_an_engine_must_be_new_enough_wherever_it_is(api: str, local: bool, code: str) -> None:
    info = EngineInfo(name="docker", version="x", api_version=api, cpus=1, memory=GIB, data_root="", local=local)
    check = preflight.engine_check(info)
    assert (check.code, check.exit_code) == (code, ExitCode.ENGINE if code else ExitCode.OK)


# --- the whole ------------------------------------------------------------------------------------------------------


def test_a_plan_knows_whether_it_is_for_this_machine(desk: Desk) -> None:
    assert not desk.plan(capabilities("sm_86")).for_this_machine


def test_every_check_of_a_profile_names_it(desk: Desk) -> None:
    plan = desk.plan(capabilities("sm_86"))
    checks = preflight.machine_findings(
        plan, desk.knowledge, host=host("470.1", RTX3080), machine=MACHINE, places=ROOM, profile="x.yaml"
    )
    assert {check.profile for check in checks} == {"x.yaml"}
    assert {check.problem.file for check in checks} == {"x.yaml"}
