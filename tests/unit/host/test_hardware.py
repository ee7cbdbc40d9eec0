"""What machines say of themselves, as their own tools and files print it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tfdock.host import hardware
from tfdock.types import LocalGpu

MIB, GIB = 1 << 20, 1 << 30
NEW = ("name", "compute_cap", "driver_version", "memory.total")
OLD = ("name", "driver_version", "memory.total")


# --- nvidia-smi: recorded forms of its answers ----------------------------------------------------------------------


def cuda(name: str, target: str | None = None, memory: int | None = None) -> LocalGpu:
    return LocalGpu(name=name, accelerator="cuda", target=target, memory=memory and memory * MIB)


T4 = "NVIDIA T4, passively cooled"
L4 = "NVIDIA L4, 8.9, 550.54.14, 23034 MiB\nWARNING: infoROM is corrupted at gpu 0000:00:03.0\n"


@pytest.mark.parametrize(
    ("text", "fields", "gpus", "driver"),
    [
        pytest.param("RTX 3080, 8.6, 550.54.14, 10240 MiB\nRTX 5090, 12.0, 550.54.14, 32607 MiB\n", NEW,
                     [cuda("RTX 3080", "8.6", 10240), cuda("RTX 5090", "12.0", 32607)], "550.54.14", id="each"),
        pytest.param("Tesla K80, 470.256.02, 11441 MiB\n" * 2, OLD, [cuda("Tesla K80", None, 11441)] * 2,
                     "470.256.02", id="an old driver tells no capability"),
        *(pytest.param(f"NVIDIA GB10, {word}, 580.95.05, {word}\n", NEW, [cuda("NVIDIA GB10")], "580.95.05", id=word)
          for word in ("[N/A]", "[Insufficient Permissions]", "[Unknown Error]", "[Not Supported]")),
        pytest.param("A100, 8.0, [N/A], [N/A]\n", NEW, [cuda("A100", "8.0")], "", id="no driver version"),
        pytest.param(f"{T4}, 7.5, 535.1.2, 15360 MiB\n", NEW, [cuda(T4, "7.5", 15360)], "535.1.2", id="a comma"),
        pytest.param(L4, NEW, [cuda("NVIDIA L4", "8.9", 23034)], "550.54.14", id="a warning after it is no GPU"),
    ],
)  # fmt: skip
def test_each_line_of_nvidia_smi_is_a_gpu(
    text: str, fields: tuple[str, ...], gpus: list[LocalGpu], driver: str
) -> None:
    found = hardware.nvidia_devices(text, fields, ended_well=True)
    assert (list(found.gpus), found.driver, found.trouble) == (gpus, driver, "")


@pytest.mark.parametrize("text", ["", "\n", "\x00\xff, , ,\n", ",,,\n", "a, 8.6, twelve, 1 MiB\n"])
def test_nonsense_is_no_gpu(text: str) -> None:
    assert hardware.nvidia_devices(text, NEW, ended_well=True).gpus == ()


@pytest.mark.parametrize("ended_well", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "NVIDIA driver is installed and running.\n\n",
    ],
)
def test_words_instead_of_gpus_are_told_on_even_where_it_ends_well(text: str, ended_well: bool) -> None:
    found = hardware.nvidia_devices(text, NEW, ended_well=ended_well)
    assert found.gpus == ()
    assert found.trouble.startswith(f"nvidia-smi: {text[:20]}")
    assert "\n" not in found.trouble


def test_a_gpu_that_is_lost_hides_no_other() -> None:
    text = (
        "NVIDIA A40, 8.6, 535.183.01, 46068 MiB\n"
        "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error\n"
    )
    found = hardware.nvidia_devices(text, NEW, ended_well=False)
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA A40"]
    assert "0000:41:00.0" in found.trouble


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n", "550.54.14"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\n", "570.86.15"),
        ("", ""),
    ],
)
def test_the_loaded_module_tells_its_version(line: str, version: str) -> None:
    assert hardware.loaded_driver(f"{line}GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n") == version
    assert hardware.loaded_driver("") == ""


# --- programs that imitate nvidia-smi and rocminfo ------------------------------------------------------------------


def imitate(folder: Path, program: str, script: str) -> None:
    """Put a program of that name in a folder. It imitates: there is no such device here."""
    (folder / program).write_text(f"#!/bin/sh\n{script}\n")
    (folder / program).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is searched for programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hardware, "_WSL_TOOL", str(tmp_path / "not-wsl"))
    monkeypatch.setattr(hardware, "_ROCM_TOOL", str(tmp_path / "not-rocm"))
    monkeypatch.setattr(hardware, "text_of", lambda _: "")
    monkeypatch.setattr(hardware, "local_host", hardware.local_host.__wrapped__)  # which asks each time
    return tmp_path


@pytest.mark.usefixtures("path")
def test_without_their_tools_there_are_no_gpus_and_no_trouble() -> None:
    host = hardware.local_host()
    assert (host.gpus, dict(host.drivers), dict(host.troubles)) == ((), {}, {})


def test_an_older_nvidia_smi_is_asked_again_for_less(path: Path) -> None:
    script = """case "$1" in
        *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
        --query-gpu=name,driver_version,memory.total) echo 'GeForce GTX 1080, 460.32.03, 8119 MiB' ;;
        esac"""
    imitate(path, "nvidia-smi", script)
    host = hardware.local_host()
    assert host.gpus == (cuda("GeForce GTX 1080", memory=8119),)
    assert (host.drivers["cuda"], dict(host.troubles)) == ("460.32.03", {})


def test_the_loaded_module_wins_over_a_library_that_does_not_match_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate(path, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\n"
    monkeypatch.setattr(hardware, "text_of", lambda path: module if "nvidia" in str(path) else "")
    host = hardware.local_host()
    assert (host.drivers["cuda"], host.gpus) == ("535.161.07", ())
    assert "version mismatch" in host.troubles["cuda"]


@pytest.mark.slow
def test_a_tool_that_never_answers_is_asked_once_and_goes_with_all_that_it_started(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_ANSWER_SECONDS", 0.5)
    imitate(path, "nvidia-smi", f"echo $$ >> {path}/asked; /bin/sleep 3600 & wait")
    assert "no answer" in hardware.local_host().troubles["cuda"]
    (group,) = (path / "asked").read_text().split()
    end = time.monotonic() + 60
    while still_run(int(group)) and time.monotonic() < end:
        time.sleep(0.05)
    assert still_run(int(group)) == []


def still_run(group: int) -> list[str]:
    """The processes of a group that are no zombies, by /proc/<pid>/stat (proc(5))."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
            found += [file.parent.name] if int(its_group) == group and state != "Z" else []
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is still running, as is meant
@pytest.mark.parametrize("dies", [True, False])
def test_a_tool_that_never_answers_is_left_even_if_it_does_not_die(
    path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr(hardware, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(hardware, "_DYING_SECONDS", 10 if dies else 0.2)
    killed: list[int] = []
    with monkeypatch.context() as patch:
        if not dies:
            patch.setattr(os, "killpg", lambda group, _: killed.append(group))
        imitate(path, "nvidia-smi", "exec /bin/sleep 60")
        assert "no answer" in hardware.local_host().troubles["cuda"]
    for group in killed:
        os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)


def test_a_tool_that_cannot_be_run_is_told_on(path: Path) -> None:
    (path / "rocminfo").write_bytes(b"\x7fELF for another machine")
    (path / "rocminfo").chmod(0o755)
    assert "cannot be run" in hardware.local_host().troubles["rocm"]


def test_on_wsl_the_tool_of_windows_is_found_beside_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / "wsl").mkdir()
    imitate(path / "wsl", "nvidia-smi", "echo 'NVIDIA GeForce RTX 4090, 8.9, 581.29, 24564 MiB'")
    monkeypatch.setattr(hardware, "_WSL_TOOL", str(path / "wsl" / "nvidia-smi"))
    monkeypatch.setattr(hardware, "text_of", lambda _: "6.6.87.2-microsoft-standard-WSL2\n")
    host = hardware.local_host()
    assert (host.wsl, host.drivers["cuda"]) == (True, "581.29")


@pytest.mark.parametrize(
    ("release", "wsl"),
    [("5.15.153.1-microsoft-standard-WSL2\n", True), ("4.4.0-19041-Microsoft\n", True), ("6.1.0-28-amd64\n", False)],
)
def test_windows_own_linux_is_known_by_its_kernel(release: str, wsl: bool) -> None:
    assert hardware.is_wsl(release) is wsl


ROCMINFO = """\
\x1b[37mROCk module version 6.8.5 is loaded\x1b[0m
=====================
HSA System Attributes
=====================
Runtime Version:         1.14
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD EPYC 7763 64-Core Processor
  Uuid:                    CPU-XX
  Marketing Name:          AMD EPYC 7763 64-Core Processor
  Vendor Name:             CPU
  Device Type:             CPU
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: FINE GRAINED
      Size:                    527950560(0x1f77e2e0) KB
*******
Agent 2
*******
  Name:                    gfx90a
  Uuid:                    GPU-0b1d2f3a4b5c6d7e
  Marketing Name:          AMD Instinct MI210
  Vendor Name:             AMD
  Device Type:             GPU
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    67092480(0x3ffc000) KB
    Pool 2
      Segment:                 GROUP
      Size:                    64(0x40) KB
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-
*******
Agent 3
*******
  Name:                    gfx1036
  Marketing Name:
  Vendor Name:             AMD
  Device Type:             GPU
*** Done ***
"""


def test_rocminfo_tells_gpus_from_processors() -> None:
    found = hardware.rocm_devices(ROCMINFO, ended_well=True)
    assert found.gpus == (
        LocalGpu(name="AMD Instinct MI210", accelerator="rocm", target="gfx90a", memory=67092480 * 1024),
        LocalGpu(name="gfx1036", accelerator="rocm", target="gfx1036"),
    )
    assert found.trouble == ""


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mROCk module is NOT loaded, possibly no GPU devices\x1b[0m\n",
        'Unable to open /dev/kfd read-write: Permission denied\nuser is not member of "render" group\n',
    ],
)
def test_rocminfo_without_a_device_is_told_on(text: str) -> None:
    found = hardware.rocm_devices(text, ended_well=False)
    assert found.gpus == ()
    assert found.trouble.startswith("rocminfo: ")
    assert len(found.trouble) > 30


# --- control groups -------------------------------------------------------------------------------------------------

V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 32 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 32 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 32 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
)


MEMORY = "33 32 0:29 {} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "folders"),
    [
        pytest.param("0::/a/b\n", V2, ["a/b", "a", "."], id="the limits of every group above hold too"),
        pytest.param("7:pids:/p\n5:memory:/m\n4:cpu,cpuacct:/c\n0::/s\n", V1,
                     ["memory/m", "memory", "cpu,cpuacct/c", "cpu,cpuacct"], id="a tree for each controller"),
        # A container of version 1 sees its group as the root of the mount.
        pytest.param("5:memory:/docker/abc\n", MEMORY.format("/docker/abc"), ["memory"], id="own group is the mount"),
        pytest.param("5:memory:/\n", MEMORY.format("/"), ["memory"], id="root"),
        pytest.param("5:memory:/../outside\n", MEMORY.format("/"), ["memory"], id="outside"),
        pytest.param("5:memory:/elsewhere\n", MEMORY.format("/docker/abc"), ["memory"], id="elsewhere"),
        pytest.param("", "", [], id="no groups"),
        pytest.param("0::/x\n", "nonsense\n", [], id="no mounts"),
        pytest.param("nonsense\n", V2, [], id="nonsense"),
    ],
)  # fmt: skip
def test_limits_are_looked_for_in_these_folders(cgroup: str, mounts: str, folders: list[str]) -> None:
    found = hardware.control_groups(cgroup, mounts)
    assert sorted(folder.relative_to("/sys/fs/cgroup").as_posix() for folder in found) == sorted(folders)


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")
    return folder


def test_memory_limits_are_those_that_are_set(tmp_path: Path) -> None:
    inner = group(tmp_path / "a" / "b", memory__max="max", memory__high=str(6 * GIB))
    outer = group(tmp_path / "a", memory__max=str(8 * GIB), memory__high="max")
    old = group(tmp_path / "old", memory__limit_in_bytes=str(4 * GIB), memory__high="junk", memory__max="9" * 5000)
    assert list(hardware.memory_limits([inner, outer, old, tmp_path / "none"])) == [6 * GIB, 8 * GIB, 4 * GIB]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        *(({"cpu__max": text}, [cores]) for text, cores in {
            "200000 100000": 2, "150000 50000": 3, "50000 100000": 1, "0 100000": 1}.items()),
        *(({"cpu__max": text}, []) for text in (
            "max 100000", "", "100000 0", "² 100000", "9" * 5000, "1.5 2 x", "\0\xff")),
        ({"cpu__cfs_quota_us": "400000", "cpu__cfs_period_us": "100000"}, [4]),
        ({"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_a_quota_is_whole_cores_but_one_at_least(tmp_path: Path, files: dict[str, str], cores: list[int]) -> None:
    assert list(hardware.core_limits([group(tmp_path, **files)])) == cores


def test_the_smallest_of_memory_and_limits_counts_and_a_limit_takes_no_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = group(tmp_path / "job", memory__max=str(1 << 20), cpu__max="100000 100000")
    texts = {
        "/proc/self/cgroup": "0::/job\n",
        "/proc/self/mountinfo": f"29 23 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n",
        "/proc/meminfo": "MemTotal:  24 kB\nSwapTotal:       8388604 kB\n",
    }
    read = hardware.text_of
    monkeypatch.setattr(hardware, "text_of", lambda path: texts.get(str(path)) or read(path))
    assert folder.is_dir()
    limited = hardware.local_machine()
    assert (limited.cpus, limited.memory, limited.swap) == (1, 1 << 20, 0)
    texts["/proc/self/cgroup"] = "0::/\n"
    assert hardware.local_machine().swap == 8388604 * 1024


def test_where_no_affinity_is_told_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert hardware.local_machine().cpus >= 1


# --- disk -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_will_be_made_lies_where_its_parents_do(tmp_path: Path) -> None:
    found = hardware.place("the cache", tmp_path / "a" / "b", share=0.5)
    there = hardware.place("the cache", tmp_path, share=0.5)
    assert (found.filesystem, found.trouble) == (there.filesystem, "")
    assert found.free
    assert not (tmp_path / "a").exists()


def test_what_is_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper", tmp_path / "link"):
        found = hardware.place("the wheelhouse", path, share=0.1)
        assert "is not a folder" in found.trouble or "cannot be examined" in found.trouble, path


def test_a_folder_without_permission_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere: the system's answer is imitated.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert f"no permission to write to {tmp_path}" in hardware.place("the cache", tmp_path / "a", share=0.1).trouble


@pytest.mark.parametrize(
    ("flag", "executes", "word"),
    [(os.ST_RDONLY, False, "read-only"), (os.ST_NOEXEC, True, "noexec"), (os.ST_NOEXEC, False, "")],
)
def test_how_a_file_system_is_mounted_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int, executes: bool, word: str
) -> None:
    class Imitated:
        f_bavail, f_frsize, f_flag = 1, 4096, flag

    monkeypatch.setattr(os, "statvfs", lambda _: Imitated)
    found = hardware.place("the cache", tmp_path, share=0.5, executes=executes)
    assert (found.free, word in found.trouble, bool(found.trouble)) == (4096, True, bool(word))


MOUNTS = """\
22 1 0:20 /@ / rw,relatime shared:1 - btrfs /dev/nvme0n1p2 rw,subvol=/@
40 22 0:20 /@home /home rw,relatime shared:2 - btrfs /dev/nvme0n1p2 rw,subvol=/@home
41 22 8:1 / /mnt/big\\040disk rw - ext4 /dev/sda1 rw
42 22 0:50 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "device"),
    [("/home/me/cache", "/dev/nvme0n1p2"), ("/var/lib/docker", "/dev/nvme0n1p2"), ("/mnt/big disk/x", "/dev/sda1"),
     ("/tmp/x", None)],
)  # fmt: skip
def test_subvolumes_of_one_disk_share_it_and_what_lies_on_none_has_none(path: str, device: str | None) -> None:
    assert hardware.mounted_from(MOUNTS, Path(path)) == device
    assert hardware.mounted_from("", Path(path)) is None
