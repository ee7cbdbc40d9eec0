"""What a wheel is called: valid in every case, the same everywhere in it, and kept by pip."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tfdock.errors import WheelRefused
from tfdock.resolve.naming import MAX_NAME, WheelNameParts
from tfdock.types import BuildId, Source
from tfdock.types import Version as Dotted
from tfdock.wheel.identity import (
    canonical_name,
    constraints,
    local_part,
    normal_version,
    runs_on_python,
    same_version,
)
from tfdock.wheel.wheel import core_metadata, normalize, read_wheel
from tfdock.wheelhouse.publication import publish
from tfdock.wheelhouse.store import WheelFile, Wheelhouse

from .test_wheel import File, make_wheel

BUILD = BuildId("tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64")
TAGS = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {tag}\n"


def packed(name: str, version: str, *, requires: str = "", tag: str = "py3-none-any") -> bytes:
    """A sound wheel with a module, a script in its .data folder, and one requirement."""
    stem = f"{name}-{version}"
    files = [
        File(name=f"{name}/__init__.py", data=f"version = {version!r}\n".encode()),
        File(name=f"{stem}.data/scripts/{name}-tool", data=b"#!python\n", mode=0o755),
    ]
    lines = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    lines += f"Requires-Dist: {requires}\n" if requires else ""
    return make_wheel(contents=files, metadata=lines, tags=TAGS.format(tag=tag), info=f"{stem}.dist-info")


# --- local versions -------------------------------------------------------------------------------------------------

capabilities = st.builds(
    "{}_{}{}".format, st.sampled_from(["sm", "compute"]), st.integers(20, 139), st.sampled_from(["", "", "a", "f"])
)
gfx = st.builds(
    "gfx{}{}".format,
    st.sampled_from(["803", "906", "90a", "1030", "1100"]),
    st.sampled_from(["", ":xnack+", ":xnack-", ":sramecc+:xnack-"]),
)
features = st.sampled_from(["avx2", "sse4.1", "avx512vpopcntdq", "amx-tile", "fma", "avx512bitalg", "vpclmulqdq"])
PARTS = WheelNameParts(
    version=Dotted("2.18.0"),
    python="3.11",
    accelerator="rocm",
    toolkit="rocm",
    components=(("rocm", "6.0.0"),),
    targets=("gfx90a:xnack+", "gfx90a:xnack-", "gfx90a:sramecc+:xnack-"),
    compiler="",
    cpu="portable",
    debug=False,
    cloud=True,
    xla=True,
    source=Source(kind="git", location="x", official=True),
    project="",
    machine="x86_64",
)
names = st.builds(
    replace,
    st.just(replace(PARTS, accelerator="cuda")),
    toolkit=st.sampled_from([None, "cuda", "rocm"]),
    components=st.sampled_from([(), (("cuda", "12.5.1"), ("cudnn", "9.3.0")), (("rocm", "6.0"),)]),
    targets=st.lists(capabilities, max_size=20).map(tuple) | st.lists(gfx, max_size=12).map(tuple),
    compiler=st.sampled_from(["", "nvcc", "clang"]),
    cpu=st.sampled_from(["portable", "native"]) | st.lists(features, min_size=1, max_size=9).map(tuple),
    debug=st.booleans(),
    cloud=st.booleans(),
    xla=st.booleans(),
    source=st.builds(
        Source,
        kind=st.just("git"),
        location=st.text(max_size=9),
        patches=st.dictionaries(st.just("a.patch"), st.binary(max_size=9)),
        official=st.booleans(),
    ),
    project=st.sampled_from(["", "my_tensorflow", "long" * 20]),
)


@given(names)
def test_every_local_version_is_one_by_pep_440_and_no_longer_than_a_file_name_bears(made: WheelNameParts) -> None:
    local = made.local_version
    if local is not None:
        assert Version(f"2.18.0+{local}").local
        assert len(local) <= MAX_NAME
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", made.build_id), "it is an image's tag as well"


@given(names, names, st.sampled_from(["targets", "cpu", "compiler", "debug", "xla"]))
def test_what_sets_builds_apart_sets_their_local_versions_apart(
    one: WheelNameParts, another: WheelNameParts, field: str
) -> None:
    changed = getattr(another, field) or getattr(one, field)
    other = replace(one, **{field: changed})
    assert changed == getattr(one, field) or one.local_version != other.local_version


@pytest.mark.slow
@given(names)
def test_a_wheel_bears_its_local_version_wherever_its_version_stands(made: WheelNameParts) -> None:
    version = f"2.18.0+{made.local_version}" if made.local_version else "2.18.0"
    target = io.BytesIO()
    filename = normalize(
        io.BytesIO(packed("tensorflow", "2.18.0")), "tensorflow-2.18.0-py3-none-any.whl", target, version=version
    )
    assert len(filename.encode()) <= 255
    assert parse_wheel_filename(filename)[1] == Version(version)
    assert Version(core_metadata(target, filename)[0].version) == Version(version)
    facts = read_wheel(target, filename)
    assert facts.version == normal_version(version)
    assert facts.record_ok
    with zipfile.ZipFile(target) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
        listed = {line.partition(",")[0] for line in archive.read(record).decode().splitlines()}
        assert listed == set(archive.namelist())
    stem = "-".join(filename.split("-")[:2])
    assert tops == {"tensorflow", f"{stem}.dist-info", f"{stem}.data"}
    pin = constraints(BUILD, [filename]).splitlines()[1]
    assert Requirement(pin).specifier.contains(facts.version)
    assert made.local_version is None or not Requirement(pin).specifier.contains("2.18.0")


def test_features_of_a_target_stay_apart_in_names() -> None:
    assert PARTS.local_version == "rocm6.0.gfx90axnackon.gfx90axnackoff.gfx90asrameccononxnackoff".replace(
        "onon", "on"
    )
    assert PARTS.build_id.endswith("-gfx90axnackon-gfx90axnackoff-gfx90asrameccon" + "xnackoff-x86_64")


# --- as the standards read them -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2.18", "2.18.0", True),
        ("2.18.0-rc1", "2.18.0rc1", True),
        ("2.18.0+cuda12.5.sm86", "2.18.0+CUDA12.5-sm86", True),
        ("2.18.0+cuda12.5.x9.00123456", "2.18.0+cuda12.5.x9.123456", True),
        ("2.18.0+cuda12.5.sm86", "2.18.0", False),
        ("2.18.0", "2.18.1", False),
        ("no version", "no version", True),
        ("no version", "2.18.0", False),
    ],
)
def test_versions_are_compared_as_pip_does(one: str, other: str, same: bool) -> None:
    assert same_version(one, other) is same
    assert same_version(other, one) is same


def test_a_version_has_one_normal_form_and_a_local_part() -> None:
    assert normal_version("2.18.0-RC1+CUDA12.5-sm86") == "2.18.0rc1+cuda12.5.sm86"
    assert normal_version("no version") == "no version"
    assert local_part("2.18.0+CUDA12.5-sm86") == "cuda12.5.sm86"
    assert local_part("2.18.0") == ""
    assert canonical_name("My_TensorFlow.cpu") == "my-tensorflow-cpu"


@pytest.mark.parametrize(
    ("python", "python_tag", "abi_tag", "runs"),
    [
        ("3.11", "cp311", "cp311", True), ("3.11", "cp310", "cp310", False), ("3.11", "cp311", "none", True),
        ("3.11", "cp39", "abi3", True), ("3.11", "cp312", "abi3", False), ("3.11", "py3", "none", True),
        ("3.11", "py2.py3", "none", True), ("3.11", "py2", "none", False), ("3.11", "pp311", "pypy311_pp73", False),
        ("3.13", "cp313", "cp313t", False), ("3.7", "cp37", "cp37m", True), ("2.7", "cp27", "cp27mu", True),
        ("3.1", "cp311", "cp311", False),
    ],
)  # fmt: skip
def test_a_python_takes_the_tags_that_pip_takes(python: str, python_tag: str, abi_tag: str, runs: bool) -> None:
    assert runs_on_python(python_tag, abi_tag, python) is runs


# --- the constraints file -------------------------------------------------------------------------------------------


def sealed(folder: Path, version: str) -> dict[Path, WheelFile]:
    name = f"tensorflow-{version}-cp311-cp311-linux_x86_64.whl"
    path = folder / f"sealed-{version}"
    path.write_bytes(version.encode())
    return {path: WheelFile(file=name, sha256="0" * 64, size=len(version))}


def record_for(wheels: Mapping[Path, WheelFile]) -> dict[str, Any]:
    listed = [{"file": wheel.file, "sha256": wheel.sha256, "size": wheel.size} for wheel in wheels.values()]
    return {"build_id": BUILD, "fingerprint": "f" * 64, "wheels": listed}


def test_constraints_are_published_with_the_wheel_and_replaced_with_it(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path)
    for version in ("2.18.0+cuda12.5.sm86", "2.18.1+cuda12.5.sm86"):
        wheels = sealed(tmp_path, version)
        publish(house, BUILD, record_for(wheels), wheels)
        about, pin = house.constraints(BUILD).path.read_text().splitlines()
        assert about.startswith("#")
        assert BUILD in about
        assert pin == f"tensorflow=={version}"
    assert [path.name for path in tmp_path.glob("*.txt")] == [f"{BUILD}.constraints.txt"]


def test_a_wheel_that_may_not_be_replaced_leaves_the_constraints_as_they_were(tmp_path: Path) -> None:
    house, wheels = Wheelhouse(tmp_path), sealed(tmp_path, "2.18.0+cuda12.5.sm86")
    (wheel,) = wheels.values()
    (tmp_path / wheel.file).write_bytes(b"somebody else's")
    with pytest.raises(WheelRefused):
        publish(house, BUILD, record_for(wheels), wheels)
    assert not house.constraints(BUILD).path.exists()


class Pip:
    """A fresh environment with a wheel of ours, and an index with a newer official wheel and what wants one."""

    def __init__(self, folder: Path) -> None:
        self.index, self.house, self.root = folder / "index", Wheelhouse(folder / "house"), folder / "environment"
        self.index.mkdir()
        venv.create(self.root, symlinks=True)  # without a pip of its own: the one that runs the tests installs
        self._publish()
        for name, version, requires in (
            ("tensorflow", "2.18.0", ""),
            ("tensorflow", "2.19.0", ""),
            ("takes_any", "1.0", "tensorflow>=2.18"),
            ("takes_new", "1.0", "tensorflow>=2.19"),
        ):
            file = self.index / f"{name}-{version}-py3-none-any.whl"
            file.write_bytes(packed(name, version, requires=requires))

    def _publish(self) -> None:
        self.house.root.mkdir()
        staged = self.house.root / "staged"
        with staged.open("w+b") as target:
            name = normalize(
                io.BytesIO(packed("tensorflow", "2.18.0")),
                "tensorflow-2.18.0-py3-none-any.whl",
                target,
                version="2.18.0+cuda12.5.sm86",
            )
        wheels = {staged: WheelFile(file=name, sha256="0" * 64, size=staged.stat().st_size)}
        publish(self.house, BUILD, record_for(wheels), wheels)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        python = self.root / "bin" / "python"
        command = [sys.executable, "-m", "pip", "--python", str(python), *map(str, words)]
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | settings
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def install(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run("install", "--no-index", "--find-links", self.index, *words)

    @property
    def installed(self) -> dict[str, str]:
        listed = json.loads(self.run("list", "--format", "json").stdout)
        return {one["name"].replace("_", "-"): one["version"] for one in listed}


@pytest.fixture
def pip(tmp_path: Path) -> Pip:
    made = Pip(tmp_path)
    result = made.install("--find-links", made.house.root, "tensorflow==2.18.0+cuda12.5.sm86")
    assert result.returncode == 0, result.stderr
    assert made.installed == {"tensorflow": "2.18.0+cuda12.5.sm86"}
    return made


@pytest.mark.slow
@pytest.mark.parametrize("constrained", [False, True])
def test_an_upgrade_of_something_else_replaces_the_wheel_unless_the_constraints_hold_it(
    pip: Pip, constrained: bool
) -> None:
    held = ["-c", str(pip.house.constraints(BUILD).path)] if constrained else []
    result = pip.install(*held, "--upgrade", "--upgrade-strategy", "eager", "takes_any")
    assert result.returncode == 0, result.stderr
    version = "2.18.0+cuda12.5.sm86" if constrained else "2.19.0"
    assert pip.installed == {"tensorflow": version, "takes-any": "1.0"}


@pytest.mark.slow
@pytest.mark.parametrize("constrained", [False, True])
def test_what_wants_a_newer_one_replaces_the_wheel_unless_the_constraints_refuse_it(
    pip: Pip, constrained: bool
) -> None:
    held = ["-c", str(pip.house.constraints(BUILD).path)] if constrained else []
    result = pip.install(*held, "takes_new")
    if constrained:
        assert result.returncode != 0
        assert "tensorflow==2.18.0+cuda12.5.sm86" in result.stdout + result.stderr
        assert pip.installed == {"tensorflow": "2.18.0+cuda12.5.sm86"}
    else:
        assert pip.installed == {"tensorflow": "2.19.0", "takes-new": "1.0"}
