"""`tfdock matrix` against a real registry: what is there is not missing, what is no such image is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wheelhouses import made

from .harness import closed_port
from .registries import Fault, OwnRegistry, Proxy
from .wheel_images import push, repository

TFDOCK = Path(sys.executable).with_name("tfdock")
BASE = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\n'
MATRIX = "schema: 1\nbase: base.yaml\naxes: {gpus: [[rtx3080], [a100], [rtx2080]]}\n"


class Matrix:
    """A matrix of three cells, and a wheelhouse with nothing in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "base.yaml").write_text(BASE)
        self.write(MATRIX)

    def write(self, text: str) -> None:
        (self.folder / "m.yaml").write_text(text)

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        house = ("--wheelhouse", str(self.folder / "wheels"))
        command = (str(TFDOCK), "matrix", str(self.folder / "m.yaml"), *house, *words)
        environment = {**os.environ, "TFDOCK_CACHE_DIR": str(self.folder / "cache"), "TFDOCK_REGISTRIES": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done

    def cells(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run(*words, "--format", "json").stdout)["include"]
        return found

    def jobs(self, *words: str) -> list[str]:
        return [job["cells"] for job in json.loads(self.run(*words, "--format", "github").stdout)["include"]]


@pytest.fixture
def matrix(tmp_path: Path) -> Matrix:
    return Matrix(tmp_path)


def push_cell(matrix: Matrix, cell: dict[str, Any], where: str) -> None:
    """What another machine pushed once it had built that cell."""
    words = cell["build_id"].removeprefix("tf2.18.0-py3.11-").removesuffix("-x86_64")
    push(
        where,
        made(matrix.folder / "there", words=words, local=words.rpartition("-")[2], fingerprint=cell["fingerprint"]),
    )


def test_what_a_registry_has_is_not_missing_and_what_it_has_of_another_build_is(
    matrix: Matrix, before: Proxy
) -> None:
    where = f"{before.address}/me/wheels"
    first, second, third = matrix.cells()
    push_cell(matrix, first, where)
    push_cell(matrix, {**second, "fingerprint": "0" * 64}, where)
    found = matrix.cells("--registry", where)
    assert [cell["status"] for cell in found] == ["registry", "missing", "missing"]
    assert matrix.jobs("--missing", "--registry", where) == [second["build_id"], third["build_id"]]
    matrix.write(f"{MATRIX}ci: {{registry: '{where}'}}\n")
    assert len(matrix.jobs("--missing")) == 3, "no setting allows the registry that the matrix names"
    asked = ("--registry", where)
    assert "1 in a registry" not in matrix.run("--missing", *asked).stdout
    told = matrix.run(*asked).stdout.splitlines()[0]
    assert "m.yaml  2 missing, 1 in a registry; " + expected(found) in told
    matrix.write(f"{MATRIX}profile: {{bazel.copts: [-O3]}}\n")
    assert len(matrix.jobs("--missing", *asked)) == 3, "that is another build"


def expected(cells: list[dict[str, Any]]) -> str:
    seconds = int(sum(cell["seconds"] for cell in cells if cell["status"] == "missing"))
    return f"about {round(seconds / 3600)} h to build one after another"


def test_an_image_that_is_not_what_its_tag_says_counts_for_nothing(matrix: Matrix, registry: OwnRegistry) -> None:
    where = f"{registry.address}/bad/wheels"
    first, other, _ = matrix.cells()
    push_cell(matrix, other, where)
    image = repository(where).manifest(other["build_id"])
    assert image is not None
    repository(where).put_manifest(first["build_id"], image.media_type, image.data)
    found = matrix.cells("--registry", where)
    assert [cell["status"] for cell in found] == ["missing", "registry", "missing"]
    (warning,) = found[0]["warnings"]
    assert f"the tag of `{where}:{first['build_id']}` was moved to another image" in warning


def test_a_registry_that_is_down_is_asked_once_and_decides_nothing(matrix: Matrix, before: Proxy) -> None:
    nobody = f"{closed_port()}/me/wheels"
    done = matrix.run("--registry", nobody)
    assert done.stderr.count("[registry-unreachable]") == 1
    assert "3 missing" in done.stdout
    assert matrix.run("--missing", "--registry", nobody, code=7).stdout == ""
    before.faults.append(Fault("status", "GET .*manifests", status=500, times=1000))
    assert matrix.run("--missing", "--registry", f"{before.address}/me/wheels", code=7).stdout == ""
