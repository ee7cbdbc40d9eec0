"""Every build that TensorFlow's own documentation calls tested is one that tfdock takes as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfdock.errors import Incompatible
from tfdock.knowledge.evidence_rows import ReportedBuild, tool_and_version
from tfdock.knowledge.fits import archives_of
from tfdock.knowledge.release_rows import Release
from tfdock.types import Version

from ..desk import Desk

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "data/tested_builds.yaml").read_text("utf-8"))
BUILDS = [
    pytest.param(row, python, id=f"{row['release']}-{row['kind']}-py{python}")
    for row in TABLE["rows"]
    for python in row["pythons"]
]


def profile_of(desk: Desk, row: dict[str, Any], python: str) -> str:
    """The documented row as a profile. A release with exact versions only is asked for the one the row begins."""
    release = desk.knowledge.releases[row["release"]]
    lines = [
        "schema: 1",
        f'tensorflow: "{release.patches[-1]}"',
        f'python: "{python}"',
        f"accelerator: {row['kind']}",
    ]
    for name in ("cuda", "cudnn"):
        if name not in row:
            continue
        support = release.components[name]
        version = support.tested if support.closed else row[name]
        assert Version(str(version)).matches(Version(row[name]))
        lines.append(f'{name}: "{version}"')
    if row["kind"] == "cuda" and not release.official_targets.get("cuda"):
        lines.append("gpus: [k80]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("row", "python"), BUILDS)
def test_a_documented_build_is_taken_as_it_is(desk: Desk, row: dict[str, Any], python: str) -> None:
    resolution = desk.resolve(profile_of(desk, row, python))
    assert resolution.untested == ()
    assert resolution.python == python
    assert all(resolution.components[name].startswith(row[name]) for name in ("cuda", "cudnn") if name in row)
    image = resolution.image
    assert not image.interpreter or python in desk.knowledge.interpreters
    archives = archives_of(desk.knowledge, image, resolution.components)
    assert archives is not None, "the image lacks a component, and no archive brings it"
    assert [one.component for one in archives] == list(image.archives)
    assert (
        "cuda" not in row or image.archives or "cuda" in image.paths or resolution.release.components["cuda"].closed
    )


@pytest.mark.parametrize(("row", "python"), BUILDS)
def test_a_documented_build_is_taken_with_the_documented_compiler_and_bazel(
    desk: Desk, row: dict[str, Any], python: str
) -> None:
    name, version = row["compiler"].lower().split()
    tools = f'host_compiler: {{name: {name}, version: "{version}"}}\nbazel: {{version: "{row["bazel"]}"}}\n'
    resolution = desk.resolve(profile_of(desk, row, python) + tools)
    assert resolution.untested == ()
    assert (resolution.host_compiler, resolution.bazel) == (name, row["bazel"])
    assert resolution.python == python
    # What is built with is in the image, and is that compiler: agreed as far as the image's version is written.
    own = [key for key, path in resolution.image.paths.items() if path == resolution.paths[name] and "-" in key]
    assert own
    assert all(Version(version).matches(Version(key.partition("-")[2])) for key in own)


def test_the_table_is_whole() -> None:
    """34 minor releases, each tested on CPU and on GPU."""
    rows = [(row["release"], row["kind"]) for row in TABLE["rows"]]
    assert len(set(rows)) == len(rows) == 2 * 34
    assert all({"pythons", "compiler", "bazel"} <= set(row) for row in TABLE["rows"])
    assert all(("cuda" in row) == ("cudnn" in row) == (row["kind"] == "cuda") for row in TABLE["rows"])


#: Built reports for which no image is known, and why.
WITHOUT_AN_IMAGE = {
    "i45739-2.4.0": "gcc 6 stands in Ubuntu 18.04, whose image for 2.4 has Python 3.6",
    "eb-1.5.0-goolfc-2017b-python-3.6.3": "gcc 6 stands in Ubuntu 18.04, whose C library CUDA 9.0 does not read",
    "ghostplant-1.8-cuda8.0": "no archive of cuDNN 7 for CUDA 8.0",
    "ghostplant-1.10-cuda8.0": "as 1.8",
    "tf53062-2.7-cuda10.2": "no image with CUDA 10.2 has cuDNN 8.2",
    "jsc-2.6.0-cuda11.5": "gcc 11 stands in Ubuntu 22.04, for which NVIDIA's images begin with CUDA 11.7",
    "eb-2.13.0-foss-2023a-cuda-12.1.1": "no image of NVIDIA's has Python 3.11, and none is compiled here",
    "eb-2.7.1-cuda11.4": "gcc 11 stands in Ubuntu 22.04, for which NVIDIA's images begin with CUDA 11.7",
    "eb-2.8.0-foss-2021b-cuda-11.4.1": "as 2.7.1",
    "eb-2.8.4-cuda11.4": "as 2.7.1",
    "nix-2.8.0-cuda11.6": "as 2.7.1",
}


def reported(row: ReportedBuild, release: Release) -> str:
    """A reported build as a profile; a report of another patch is taken as one of the newest."""
    patch = row.tensorflow if row.tensorflow in release.patches else release.newest
    lines = ["schema: 1", f'tensorflow: "{patch}"', f"accelerator: {row.accelerator}"]
    lines += [f'python: "{python}"' for python in row.python[:1]]
    # A closed list takes versions in full only.
    named = {name: version for name, version in row.components.items() if name in ("cuda", "cudnn")}
    lines += [
        f'{name}: "{".".join(version.split(".")[:2])}"'
        for name, version in named.items()
        if ".." not in version and not release.components[name].closed
    ]
    lines += [f"compiler: {row.compiler}"] if row.compiler in ("nvcc", "clang") else []
    tool, version = tool_and_version(row.host_compiler or "")
    if tool and version and ".." not in version:
        lines.append(f'host_compiler: {{name: {tool}, version: "{version}"}}')
    if row.accelerator == "cuda" and not release.official_targets.get("cuda"):
        lines.append("gpus: [p100]")
    return "\n".join(lines) + "\n"


def test_images_are_known_for_the_builds_that_were_reported(desk: Desk) -> None:
    refused = set()
    for row in desk.knowledge.evidence.values():
        sure = row.outcome == "built" and row.machine in (None, "x86_64") and not row.fork
        if not sure or row.accelerator not in ("cuda", "cpu") or re.search(r"\.\.|-", row.tensorflow):
            continue
        release = desk.knowledge.releases[str(Version(row.tensorflow).minor)]
        try:
            desk.resolve(reported(row, release))
        except Incompatible as error:
            if {problem.code for problem in error.problems} & {"image-unknown", "image-without-tool"}:
                refused.add(row.id)
    assert refused == {*WITHOUT_AN_IMAGE}
