"""What a build tells of itself, with real Bazels: hits, mnemonics, the slowest, and why it was not warm.

One tree is built again and again with one change at a time, and each build is compared with the one before it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tfdock.builder.build_summary import load_profile
from tfdock.host.settings import load
from tfdock.types import ImageRef

from .conftest import Finished, Workshop
from .harness import (
    KNOWLEDGE,
    UNTRIED,
    Json,
    Tfdock,
    before,
    contents,
    copy_cache,
    copy_tree,
    replaced,
    write_profile,
)

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

SOURCE = "tensorflow/core/kernels/relu_op.cc"
OPTION = {"copts": ["-DMINIATURE_OPTION=1"]}


@dataclass(frozen=True, slots=True)
class Built:
    """A build's record, where it lies, and what was printed."""

    record: Json
    path: Path
    printed: str

    @property
    def bazel(self) -> Json:
        bazel: Json = self.record["bazel"]
        return bazel

    @property
    def executed(self) -> dict[str, int]:
        """How many actions of each kind."""
        executed: dict[str, int] = self.bazel["executed_by_mnemonic"]
        return executed

    @property
    def why(self) -> Json:
        why: Json = self.bazel["why"]
        return why


class History:
    """Builds of one miniature, one after another, in a wheelhouse and with a cache of its own."""

    def __init__(self, command: Tfdock, tree: Path) -> None:
        self.tfdock, self.tree = command, tree

    @classmethod
    def without_past(cls, workshop: Workshop, road: str = "hermetic") -> History:
        command = workshop.tfdock()
        command = replace(command, cache=command.home / "cache")
        copy_cache(workshop.cache, command.cache, ["repository"])
        return cls(command, workshop.tree(road))

    def build(self, tree: Path | None = None, **fields: Any) -> Built:
        """Build it, though it may be built already: its wheel is taken away."""
        for wheel in self.tfdock.wheelhouse.glob("*.whl"):
            wheel.unlink()
        fields = {"verify": UNTRIED} | fields
        profile = write_profile(self.tfdock.home / "profile.yaml", tree or self.tree, **fields)
        outcome = self.tfdock.run("build", profile, code=0)
        printed = re.search(r"^  record +(.+)$", outcome.stderr, re.MULTILINE)
        assert printed
        path = Path(printed[1])
        return Built(json.loads(path.read_bytes()), path, outcome.stderr)

    @property
    def wheel(self) -> Path:
        """The one that was built last."""
        (wheel,) = self.tfdock.wheelhouse.glob("*.whl")
        return wheel


def code_of(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel; without those that say what it is called, and by whom and of what it was built."""
    return {name: data for name, data in contents(wheel).items() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def begun(finished: Finished, workshop: Workshop) -> Finished:
    return finished.copy(workshop)


@pytest.fixture(scope="module")
def history(begun: Finished, workshop: Workshop) -> Iterator[History]:
    """What follows the cold build."""
    made = History(begun.tfdock, workshop.tree())
    yield made
    assert made.tfdock.leftovers == []


@pytest.fixture(scope="module")
def cold(begun: Finished) -> Built:
    return Built(json.loads(begun.record.read_bytes()), begun.record, begun.outcome.stderr)


@pytest.fixture(scope="module")
def option(history: History, cold: Built) -> Built:
    """The same with an option for the compiler."""
    assert cold
    return history.build(bazel=OPTION)


def test_a_cold_build_says_what_was_executed_and_what_took_long(cold: Built) -> None:
    bazel = cold.bazel
    assert (bazel["hits"], bazel["executed"], bazel["sources"]) == (0, 18, {})
    assert sum(cold.executed.values()) == 18
    assert (cold.executed["CudaCompile"], cold.executed["TfWheel"]) == (3, 1)
    assert bazel["slowest"][0]["how"] == "executed"
    assert bazel["slowest"][0]["seconds"] > 0.2
    assert bazel["critical_path"]["actions"][-1]["name"].startswith("Packing tensorflow_miniature-")
    assert bazel["wall_seconds"] > bazel["critical_path"]["seconds"] > 0
    assert cold.why["sentences"] == ["this wheelhouse has no earlier build to compare with"]


def test_what_is_kept_lies_beside_the_record_and_nothing_else_stays(cold: Built) -> None:
    folder, run = cold.path.parent, Path(cold.record["log"]).stem
    kept = [f"{run}.{what}.gz" for what in ("inputs", "profile")]
    assert sorted(path.name for path in folder.glob(f"{run}.*")) == sorted([*kept, f"{run}.log"])
    assert sum(one.how == "executed" for one in load_profile(folder / f"{run}.profile.gz").actions) == 18


def test_a_changed_source_file_is_named(history: History, cold: Built) -> None:
    edits = {SOURCE: before("int miniature_edited() { return 7; }\n")}
    edited = history.build(copy_tree(history.tree, history.tfdock.home / "edited", edits))
    assert edited.record["build_id"] != cold.record["build_id"]
    assert edited.why["since"]["build_id"] == cold.record["build_id"], "the next of kin"
    assert f"source: {SOURCE} changed" in edited.why["sentences"]
    assert edited.executed["CppCompile"] == 1
    assert "CudaCompile" not in edited.executed


def test_a_changed_compiler_option_is_named(cold: Built, option: Built) -> None:
    assert option.record["build_id"] == cold.record["build_id"]
    assert option.why["sentences"][0] == "`--copt=-DMINIATURE_OPTION=1` was added"
    assert "CudaCompile" not in option.executed, "it reaches no CUDA file"
    assert option.executed["CppCompile"] > 5


def test_the_end_of_a_build_is_three_lines_and_the_report_tells_the_same(history: History, option: Built) -> None:
    lines = [line.strip() for line in option.printed.splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith("built  tf99.18.0"))
    assert re.match(r"actions  \d+ from the disk cache, \d+ executed: \d+ CppCompile", lines[start + 1])
    assert lines[start + 2].startswith("longest  critical path ")
    assert lines[start + 3].startswith("why      `--copt=-DMINIATURE_OPTION=1` was added")
    page = history.tfdock.home / "page.html"
    report = history.tfdock.run("report", option.path, "-o", page, code=0)
    assert "`--copt=-DMINIATURE_OPTION=1` was added" in report.stdout
    assert "CppCompile" in report.stdout
    assert "Packing tensorflow_miniature-" in page.read_text("utf-8")


def test_another_environment_variable_is_named(history: History, option: Built) -> None:
    built = history.build(bazel={**OPTION, "flags": ["--action_env=MINIATURE_VARIABLE=1"]})
    assert built.why["since"]["finished"] == option.record["finished"]
    assert built.why["sentences"][0] == "`--action_env=MINIATURE_VARIABLE=1` was added"
    assert built.bazel["executed"] == 18, "it enters every key"


def test_a_warm_build_needs_no_reason_and_an_emptied_cache_is_one(history: History, cold: Built) -> None:
    warm = history.build()
    assert (warm.bazel["hits"], warm.bazel["executed"], warm.bazel["sources"]) == (18, 0, {"disk": 18})
    assert (warm.executed, warm.why["sentences"]) == ({}, [])
    assert not re.search(r"^  why ", warm.printed, re.MULTILINE)
    for run in (cold, warm):
        assert run.record["wheels"] == cold.record["wheels"]
    shutil.rmtree(history.tfdock.cache / "disk")
    again = history.build()
    assert again.bazel["executed"] == 18
    assert again.why["differences"] == []
    (sentence,) = again.why["sentences"]
    assert sentence.startswith("no compared part differs from the last build")
    assert "the disk cache was empty" in sentence


# --- the legacy road ------------------------------------------------------------------------------------------------


def test_on_the_legacy_road_another_capability_enters_the_keys_of_what_it_changes(workshop: Workshop) -> None:
    """What configure's --action_env line would cost: 18 of 18 actions. Only rules that make repositories read it."""
    history = History.without_past(workshop, "legacy")
    release = {"release": "99.15.0", "path": str(history.tree)}
    first = history.build(tensorflow=release)
    assert (first.bazel["hits"], first.bazel["executed"]) == (0, 18)
    assert sum(first.executed.values()) == 18, "0.26.1 has a profile too"
    both: Json = {"tensorflow": release, "compute_capabilities": ["sm_80", "sm_86"]}
    second = history.build(**both)
    assert (second.bazel["hits"], second.bazel["executed"]) == (12, 6)
    from_cache = code_of(history.wheel)
    # The line that configure wrote, put back.
    with (history.tree / ".bazelrc").open("a") as file:
        file.write('build --action_env TF_CUDA_COMPUTE_CAPABILITIES="sm_80,sm_86"\n')
    as_configured = history.build(**both)
    assert (as_configured.bazel["hits"], as_configured.bazel["executed"]) == (0, 18)
    assert code_of(history.wheel) == from_cache
    assert history.tfdock.leftovers == []


# --- another Python -------------------------------------------------------------------------------------------------

ANOTHER_PYTHON = """\
FROM {base}
# Python 3.11 that takes itself for 3.12, with headers that say so: Debian has one Python only.
RUN mkdir -p /opt/python3.12 && cp -rL /usr/include/python3.11 /opt/python3.12/include && \\
  sed -i 's/#define PY_MINOR_VERSION.*/#define PY_MINOR_VERSION 12/' /opt/python3.12/include/patchlevel.h && \\
  printf '%s\\n' 'import collections, sys, sysconfig' \\
    'Info = collections.namedtuple("version_info", "major minor micro releaselevel serial")' \\
    'sys.version_info = Info(3, 12, 0, "final", 0)' \\
    'words = sysconfig.get_config_vars()' \\
    'words.update(py_version_nodot="312", SOABI=words["SOABI"].replace("311", "312"))' \\
    'paths = sysconfig.get_paths' \\
    'sysconfig.get_paths = lambda *a, **b: paths(*a, **b) | {{"include": "/opt/python3.12/include"}}' \\
    >/opt/python3.12/sitecustomize.py && \\
  printf '%s\\n' '#!/bin/bash' \\
    'PYTHONPATH=/opt/python3.12 exec -a /usr/local/bin/python3.12 /usr/bin/python3.11 "$@"' \\
    >/usr/local/bin/python3.12 && chmod +x /usr/local/bin/python3.12
"""


@pytest.fixture
def two_pythons(workshop: Workshop) -> Iterator[str]:
    """A base image with Python 3.11 and what passes for 3.12."""
    base = load({}, os.environ).mirrored(ImageRef.parse("tensorflow/build:99.18-python3.11"))
    name = f"localhost/two-pythons:{os.getpid()}"
    workshop.build_image(name, ANOTHER_PYTHON.format(base=base), network_mode="none")
    yield name
    workshop.sdk.remove_image(name)


def test_another_python_compiles_again_only_what_is_made_from_its_headers(
    workshop: Workshop, two_pythons: str
) -> None:
    history = History.without_past(workshop)
    # As in TensorFlow's later releases Bazel brings the Python, and the image's own one does not count.
    hermetic = replaced('pythons: ["3.11"]', 'pythons: ["3.11", "3.12"]\n    pythons_closed: true')
    knowledge = copy_tree(KNOWLEDGE, history.tfdock.home / "knowledge", {"releases.yaml": hermetic})
    history.tfdock = history.tfdock.with_variables(TFDOCK_KNOWLEDGE=str(knowledge))
    common: dict[str, Any] = {
        "base": two_pythons,
        "compute_capabilities": None,
        "accelerator": "cpu",
        "allow_untested": True,
    }
    one = history.build(**common, python="3.11")
    other = history.build(**common, python="3.12")
    assert one.record["toolchain_key"] == other.record["toolchain_key"]
    assert one.record["wheels"][0]["file"].endswith("-cp311-cp311-linux_x86_64.whl")
    assert other.record["wheels"][0]["file"].endswith("-cp312-cp312-linux_x86_64.whl")
    assert one.executed["CppCompile"] > 5
    assert other.executed["CppCompile"] == 1
    executed = [one["name"] for one in other.bazel["slowest"] if one["how"] == "executed"]
    assert "Compiling tensorflow/python/client/pywrap_tensorflow.cc" in executed
    assert set(other.executed) <= {"CppCompile", "CppLink", "Genrule", "TfWheel"}
    assert other.executed.get("CppLink", 0) <= 1, "the module, if it has become another"
    assert history.tfdock.leftovers == []
