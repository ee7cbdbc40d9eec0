"""What is read of an environment: an interpreter that is asked, and packages in folders that are made here."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from tfdock.errors import ProfileError
from tfdock.host.hardware import ask, text_of
from tfdock.installed.interpreter import AskedPython, interpreter_at
from tfdock.installed.loader_search import Loader
from tfdock.installed.packages import (
    distributions,
    find_tensorflow,
    foreign_kernel,
    foreign_numpy,
    leftovers,
    own_versions,
)
from tfdock.installed.tryout import try_tensorflow
from tfdock.knowledge import loader

from ..command_line import run

#: The tag of this Python.
TAG = "cp{}{}".format(*sys.version_info)


def install(site: Path, name: str, version: str, files: dict[str, str], **sizes: int) -> None:
    """Install a distribution as pip does. `sizes` are what RECORD says beside the truth, by the stem of a file."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    rows = [
        f"{path},sha256=x,{sizes.get(Path(path).name.partition('.')[0], len(text))}" for path, text in files.items()
    ]
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]))
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: and-cuda\n"
    )
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {TAG}-{TAG}-linux_x86_64\n")


FILES = {
    "tensorflow/__init__.py": "",
    "tensorflow/libtensorflow_framework.so.2": "no ELF",
    "tensorflow/python/platform/build_info.py": "build_info = {'is_cuda_build': False}\n",
}


def test_the_tensorflow_that_an_import_finds_is_the_one_that_is_looked_at(tmp_path: Path) -> None:
    install(tmp_path / "a", "tensorflow", "2.18.0", FILES)
    install(tmp_path / "b", "tensorflow-cpu", "2.17.0", FILES)
    found = find_tensorflow([str(tmp_path / "none"), str(tmp_path / "b"), str(tmp_path / "a")])
    assert found is not None
    (wheel,) = found.wheels
    assert (wheel.name, wheel.version, wheel.pythons, wheel.extras) == (
        "tensorflow-cpu",
        "2.17.0",
        (TAG,),
        ("and-cuda",),
    )
    assert (found.build_info, wheel.is_whole) == ({"is_cuda_build": False}, True)
    assert found.loader == tmp_path / "b/tensorflow/libtensorflow_framework.so.2"
    assert find_tensorflow([str(tmp_path)]) is None


def test_what_an_interrupted_pip_left_is_found(tmp_path: Path) -> None:
    names = ["~ensorflow", "~-nsorflow_cpu-2.18.0.dist-info", "~umpy", "tensorflow"]
    for name in names:
        (tmp_path / name).mkdir()
    assert {path.name for path in leftovers([str(tmp_path)])} == {*names[:2]}


def test_of_two_in_one_folder_the_one_whose_files_lie_there_comes_first(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow", "2.18.0", FILES, libtensorflow_framework=7)
    install(tmp_path, "tensorflow-cpu", "2.18.0", {**FILES, "tensorflow/gone.so": "x"})
    (tmp_path / "tensorflow/gone.so").unlink()
    found = find_tensorflow([str(tmp_path)])
    assert found is not None
    assert {wheel.name: (wheel.missing[0], wheel.changed) for wheel in found.wheels} == {
        "tensorflow": (0, (1, "tensorflow/libtensorflow_framework.so.2")),
        "tensorflow-cpu": (1, (0, "")),
    }


@pytest.mark.parametrize("name", ["RECORD", "METADATA", "WHEEL"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'a,b\n"x\n,,,,\n', b""], ids=["no UTF-8", "no CSV", "empty"])
def test_what_is_damaged_in_a_dist_info_ends_no_command(tmp_path: Path, name: str, content: bytes) -> None:
    fake = with_module(tmp_path, "").program
    (info,) = (tmp_path / "site").glob("*.dist-info")
    (info / name).write_bytes(content)
    result = run("doctor", "--python", fake, "--json")
    assert result.exit_code in (0, 4)
    assert json.loads(result.stdout)["checks"]


def test_links_in_a_circle_end_no_command(tmp_path: Path) -> None:
    circle, file = tmp_path / "circle", tmp_path / "share/jupyter/kernels/python3/kernel.json"
    circle.symlink_to(circle)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"argv": [f"{circle}/python"]}))
    python = AskedPython(program=tmp_path / "bin/python", prefix=str(tmp_path))
    assert foreign_kernel(python) == (file, f"{circle}/python")


def test_of_a_program_that_prints_without_end_no_more_is_kept_than_an_answer_has(tmp_path: Path) -> None:
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\nexec yes\n")
    endless.chmod(0o755)
    assert interpreter_at(str(endless)).trouble == "more than 16 MiB of output"


_AS_NOBODY = """
import os, sys
from pathlib import Path
from tfdock.installed.loader_search import Loader
from tfdock.installed.packages import find_tensorflow
os.getuid() or os.setuid(65534)  # nothing is closed to root
site = sys.argv[1]
(wheel,) = find_tensorflow([site]).wheels
loader = Loader(site + "/tensorflow/python", "x86_64", cached={})
print(loader.find("libnone.so.1", Path(sys.executable)).path, wheel.shut)
"""


def test_a_folder_that_is_closed_to_this_user_is_neither_an_error_nor_missing_files() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        site, closed = Path(folder), Path(folder, "tensorflow/python")
        site.chmod(0o755)
        install(site, "tensorflow", "2.18.0", FILES)
        closed.chmod(0)
        answer = ask(sys.executable, "-c", _AS_NOBODY, folder, folder=str(Path(__file__).parents[3]))
        closed.chmod(0o755)
    assert answer.text.strip() == "None tensorflow/python/platform/build_info.py"


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow", "2.18.0", FILES)
    file = tmp_path / "tensorflow/python/platform/build_info.py"
    file.unlink()
    os.mkfifo(file)
    found = find_tensorflow([str(tmp_path)])
    assert found is not None
    assert found.build_info is None


def test_a_file_that_is_longer_than_any_text_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, 1 << 40)
    assert text_of(file) == ""


def test_a_report_of_an_environment_has_the_verdict_on_it(tmp_path: Path) -> None:
    fake, packed = with_module(tmp_path, "").program, tmp_path / "report.zip"
    result = run("report", "--bundle", "--python", fake, "-o", packed, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["notes"] == []
    with zipfile.ZipFile(packed) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
        checks = json.loads(archive.read("tfdock-report/installed.json"))["checks"]
    assert names == {"README.txt", "environment.json", "installed.json"}
    assert str(tmp_path) not in json.dumps(checks)
    for output in (fake, tmp_path / "link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(fake)
        result = run("report", "--bundle", "--python", fake, "-o", output)
        assert (result.exit_code, fake.read_text()[:2]) == (2, "#!"), "the interpreter is not replaced"
    alone = run("doctor", "--python", fake, "--json")
    assert [check["name"] for check in checks] == [check["name"] for check in json.loads(alone.stdout)["checks"]]
    result = run("report", "--python", fake)
    assert (result.exit_code, "--bundle" in result.stderr) == (2, True)


def test_versions_are_those_of_the_files_and_not_of_a_leftover(tmp_path: Path) -> None:
    install(
        tmp_path, "numpy", "1.26.4", {"numpy/version.py": '"""x"""\nshort_version = "2.0.2"\nversion = "2.0.2"\n'}
    )
    install(tmp_path, "protobuf", "3.20.3", {"google/protobuf/__init__.py": "__version__ = '3.20.3'\n"})
    assert own_versions([str(tmp_path)]) == {"numpy": ("2.0.2", tmp_path), "protobuf": ("3.20.3", tmp_path)}
    assert distributions([str(tmp_path)])["numpy"][0] == "1.26.4"


def test_a_numpy_for_other_pythons_alone_cannot_be_imported(tmp_path: Path) -> None:
    core, suffix = tmp_path / "numpy/_core", ".cpython-311-x86_64-linux-gnu.so"
    assert foreign_numpy([str(tmp_path)], suffix) is None
    core.mkdir(parents=True)
    other = core / "_multiarray_umath.cpython-310-x86_64-linux-gnu.so"
    other.touch()
    assert foreign_numpy([str(tmp_path)], suffix) == other
    (core / f"_multiarray_umath{suffix}").touch()
    assert foreign_numpy([str(tmp_path)], suffix) is None


@pytest.mark.parametrize(
    ("argv", "other"),
    [
        (["/other/bin/python3", "-m", "ipykernel_launcher"], "/other/bin/python3"),
        (["python", "-m", "ipykernel_launcher"], ""),
        (["{prefix}/bin/python3.11"], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_usual_kernel_of_jupyter_may_run_another_python(
    tmp_path: Path, argv: list[str] | None, other: str
) -> None:
    file = tmp_path / "share/jupyter/kernels/python3/kernel.json"
    file.parent.mkdir(parents=True)
    file.write_text(
        json.dumps({"argv": argv and [one.format(prefix=tmp_path) for one in argv], "language": "python"})
    )
    python = AskedPython(program=tmp_path / "bin/python", prefix=str(tmp_path))
    assert foreign_kernel(python) == ((file, other) if other else None)


def test_an_interpreter_is_named_by_its_file_its_folder_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = interpreter_at(sys.executable)
    assert (asked.minor, asked.trouble) == (f"{sys.version_info[0]}.{sys.version_info[1]}", "")
    assert str(Path(pytest.__file__).parents[1]) in asked.path
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    assert interpreter_at(str(tmp_path)).program == tmp_path / "bin/python"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert interpreter_at("python").program == tmp_path / "bin/python"
    with pytest.raises(ProfileError) as error:
        interpreter_at(str(tmp_path / "nothing"))
    assert error.value.problems[0].code == "python-not-found"


def test_a_python_that_does_not_start_is_the_verdict(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'Fatal Python error: no encodings' >&2\nexit 1\n")
    broken.chmod(0o755)
    result = run("doctor", "--python", broken, "--json")
    (check,) = json.loads(result.stdout)["checks"]
    assert (result.exit_code, check["code"]) == (4, "python-unusable")
    assert "no encodings" in check["found"]
    result = run("doctor", "--python", broken)
    assert result.stdout.startswith(f"no: {broken} does not start")


def test_an_environment_that_works_on_the_cpu_is_sound(tmp_path: Path) -> None:
    fake = with_module(tmp_path, "").program
    install(tmp_path / "site", "tensorflow", "2.18.0", FILES)
    result = run("doctor", "--python", fake, "--json")
    assert result.exit_code == 0
    assert {check["status"] for check in json.loads(result.stdout)["checks"]} <= {"ok", "skipped"}
    result = run("doctor", "--python", fake)
    assert "TensorFlow 2.18.0 of" in result.stdout
    assert "should work, on the CPU" in result.stdout


def test_what_no_record_tells_of_is_not_called_sound(tmp_path: Path) -> None:
    fake = with_module(tmp_path, "").program
    next((tmp_path / "site").glob("*/RECORD")).unlink()
    result = run("doctor", "--python", fake)
    assert (result.exit_code, result.stdout.partition(":")[0]) == (0, "not known")
    assert "without a RECORD" in result.stdout.splitlines()[0]


def with_module(folder: Path, source: str) -> AskedPython:
    """A Python in which `import tensorflow` runs a source."""
    install(folder / "site", "tensorflow", "2.18.0", {"tensorflow/__init__.py": source})
    fake = folder / "python"
    fake.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "site"} exec {sys.executable} "$@"\n')
    fake.chmod(0o755)
    return interpreter_at(str(fake))


NO_GPU = """
__version__ = "2.18.0"
class config:
    list_physical_devices = staticmethod(lambda kind: [])
"""


@pytest.mark.parametrize(
    ("source", "expects", "step", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False, "import", "the process ends with SIGILL"),
        ("raise ImportError('numpy.core.umath failed to import')", False, "import", "exit status 1: "),
        (NO_GPU, True, "devices", "TensorFlow lists no GPU"),
        (NO_GPU, False, "matmul", "exit status 1"),
    ],
)
def test_a_trial_names_the_step_that_failed(tmp_path: Path, source: str, expects: bool, step: str, says: str) -> None:
    checks = list(try_tensorflow(with_module(tmp_path, source), loader.knowledge(), expects_gpu=expects))
    failed = next(check for check in checks if check.status == "failed")
    assert (failed.name, failed.code, failed.exit_code) == (step, "tensorflow-trial", 4)
    assert says in failed.found


def test_python_is_given_alone_and_try_with_it() -> None:
    for words, says in (
        (["rtx3080", "--python", sys.executable], "remove the profiles"),
        (["--try"], "--python .venv"),
    ):
        result = run("doctor", *words, COLUMNS="200")
        assert result.exit_code == 2
        assert says in result.stderr


def test_the_loader_ends_at_what_is_no_library_and_passes_over_those_of_32_bits(tmp_path: Path) -> None:
    python = Path(sys.executable).resolve()
    own = Loader("", machine()).find("libc.so.6", python)
    assert own.path
    assert own.lacks == ()
    (tmp_path / "libc.so.6").write_text("no ELF")
    ended = Loader(str(tmp_path), machine()).find("libc.so.6", python)
    assert (ended.path, ended.damaged) == (tmp_path / "libc.so.6", True)
    (tmp_path / "libc.so.6").write_bytes(b"\x7fELF\1" + bytes(59))
    assert Loader(str(tmp_path), machine()).find("libc.so.6", python).path == own.path
    (tmp_path / "libc.so.6").unlink()
    shutil.copy(own.path, tmp_path)
    first = Loader(f"/none:{tmp_path}", machine()).find("libc.so.6", python)
    assert (first.path, first.by) == (tmp_path / "libc.so.6", "LD_LIBRARY_PATH")
    assert Loader("", machine()).find("libnobody.so.1", python).path is None


def machine() -> str:
    return interpreter_at(sys.executable).platform.removeprefix("linux-")
