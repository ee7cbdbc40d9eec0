"""`tfdock inspect`: what it prints, what it exits with, and what it says of files that are no wheels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tfdock.cli.commands import inspect
from tfdock.host import hardware

from .. import command_line
from .. import elf_files as elf
from ..backtracking import most_ways
from ..small_wheels import NAME, wheel_of
from ..steps import steps

BUILD_INFO = (
    b"build_info = {'cuda_version': '12.5.1', 'cuda_compute_capabilities': ['sm_86'], 'is_cuda_build': True}\n"
)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(wheel_of({"tensorflow/python/platform/build_info.py": BUILD_INFO}))
    return path


run = partial(command_line.run, "inspect")
document = partial(command_line.document, schema="tfdock.inspect/1")


def test_a_sound_wheel_is_described(wheel: Path) -> None:
    result = run(wheel)
    assert result.exit_code == 0
    assert result.stdout.startswith("tensorflow 2.18.0  cp311-cp311-linux_x86_64\n")
    assert "cuda_version 12.5.1" in result.stdout
    assert "[and-cuda]  nvidia-cudnn-cu12==9.3.0.75" in result.stdout
    assert "every file matches RECORD" in result.stdout
    assert "contain no GPU code" in result.stdout
    assert result.stderr == ""


def test_what_is_always_required_is_printed_beside_the_extras(wheel: Path) -> None:
    lines = [line.split() for line in run(wheel).stdout.splitlines()]
    assert ["requires", "numpy<2.1"] in lines


def test_a_wheel_for_windows_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(wheel_of({"tensorflow/_op.pyd": b"MZ\x90\0\3"}))
    assert "libraries for Windows, which cannot be read: tensorflow/_op.pyd" in run(path).stdout
    assert "has libraries for Windows, which tfdock does not read" in run(path, "--gpu", "k80").stdout
    assert document(run(path, "--json"))["unread"] == {"tensorflow/_op.pyd": "Windows"}


def test_libraries_with_debug_information_are_named(tmp_path: Path) -> None:
    path = tmp_path / NAME
    files = {"tensorflow/libfull.so": elf.library((".debug_info", b"debug")), "tensorflow/libbare.so": elf.library()}
    path.write_bytes(wheel_of(files))
    (line,) = (line for line in run(path).stdout.splitlines() if "symbols" in line)
    assert line.split(maxsplit=1)[1] == "debug information in tensorflow/libfull.so"


def test_programs_get_the_keys_they_rely_on(wheel: Path) -> None:
    found = document(run(wheel, "--json"))
    assert found["ok"] is True
    assert (found["name"], found["version"]) == ("tensorflow", "2.18.0")
    assert (found["python_tag"], found["abi_tag"], found["platform_tag"]) == ("cp311", "cp311", "linux_x86_64")
    assert {key: found["gpu_code"][key] for key in ("sass", "ptx", "amdgpu")} == {"sass": [], "ptx": [], "amdgpu": []}
    assert found["libraries"] == []
    assert found["build_info"]["cuda_compute_capabilities"] == ["sm_86"]
    assert found["record"] == {"ok": True, "problems": []}
    assert "gpu" not in found


def test_one_gpu_stands_under_gpu_and_several_in_a_list(wheel: Path) -> None:
    one = document(run(wheel, "--json", "--gpu", "rtx3080"))
    assert one["gpu"]["name"] == "rtx3080"
    assert one["gpu"]["runs"] == "no"
    assert one["gpus"] == [one["gpu"]]
    several = document(run(wheel, "--json", "--gpu", "rtx3080,gfx90a", "--gpu", "9.0"))
    assert "gpu" not in several
    assert [gpu.get("compute_capability", gpu.get("gfx")) for gpu in several["gpus"]] == ["8.6", "gfx90a", "9.0"]


def test_an_answer_for_people_says_why(wheel: Path) -> None:
    result = run(wheel, "--gpu", "rtx3080")
    assert result.exit_code == 0, "a wheel is sound whatever the GPU"
    first, second, *_ = result.stdout.splitlines()
    assert first == "GeForce RTX 3080 (8.6): tensorflow 2.18.0 does not run on it."
    assert second.startswith("  why: ")


def test_a_wrong_record_is_told_file_by_file_and_is_status_4(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(wheel_of({"tensorflow/a.py": b"a = 1\n"}, record="tensorflow/a.py,sha256=AAAA,6\n"))
    result = run(path)
    assert result.exit_code == 4
    assert "error: `tensorflow/a.py` has sha256=" in result.stdout
    found = document(run(path, "--json"))
    assert found["ok"] is False
    assert "record-wrong-hash" in {problem["code"] for problem in found["record"]["problems"]}


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
def test_a_file_that_is_no_wheel_is_refused_with_its_name(tmp_path: Path, as_json: list[str]) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"PK\3\4 and no more")
    result = run(path, *as_json)
    assert result.exit_code == 4
    assert f"{path}: error: The file begins like a zip archive but has no" in result.stderr
    if as_json:
        assert document(result)["problems"][0]["code"] == "wheel-not-a-zip"


def test_what_a_wheel_says_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / NAME
    red = "\x1b[31mred"
    path.write_bytes(wheel_of({}, record=f"{red}.py,sha256=AAAA,6\n", requires=f'numpy; extra == "{red}"'))
    result = run(path)
    assert result.exit_code == 4
    assert "[31mred.py` is listed but not in the wheel" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert document(run(path, "--json"))["record"]["problems"]


def test_an_extra_is_listed_with_what_it_installs_however_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(wheel_of({}, requires="b>=1; os_name == 'posix' and (extra=='more' or extra  ==  \"and-cuda\")"))
    extras = document(run(path, "--json"))["extras"]
    assert extras == {"and-cuda": ["nvidia-cudnn-cu12==9.3.0.75", "b>=1"], "more": ["b>=1"]}


@pytest.mark.slow
def test_many_extras_and_an_endless_marker_take_steps_in_proportion(tmp_path: Path) -> None:
    path = tmp_path / NAME

    def inspected(count: int) -> int:
        extras = "\n".join(f"Provides-Extra: e{number}" for number in range(count))
        path.write_bytes(wheel_of({}, requires=f"p; {'extra == ' * 10 * count}\n{extras}"))
        return steps(lambda: found.append(len(document(run(path, "--json"))["extras"])))

    found: list[int] = []
    assert inspected(800) < 2.1 * inspected(400)
    assert found == [802, 802, 402, 402]
    assert most_ways(inspect._EXTRA, 10**6) == 1


def test_a_file_that_is_not_there_and_a_folder_are_usage_errors(tmp_path: Path) -> None:
    result = run(tmp_path / "no.whl")
    assert (result.exit_code, "[wheel-not-found]" in result.stderr) == (2, True)
    (tmp_path / NAME).write_bytes(b"")
    result = run(tmp_path)
    assert result.exit_code == 2
    assert NAME in result.stderr, "what it holds is offered"


def test_a_misspelt_gpu_is_told_before_the_wheel_is_read(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"")
    result = run(path, "--gpu", "rtx3081")
    assert result.exit_code == 2
    assert "[gpu-unknown]" in result.stderr


def test_local_without_a_gpu_says_how_to_name_one(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "local_gpus", tuple)
    result = run(wheel, "--gpu", "local")
    assert result.exit_code == 2
    assert "[gpu-local-none]" in result.stderr
