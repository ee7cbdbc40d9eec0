"""The environment of every release against what its configure.py and Bazel rules were seen to read and ask."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfdock.decide.contract import Contract, version_facts
from tfdock.do import assets
from tfdock.read.knowledge import Release, in_range

from .desk import Desk

OBSERVED = yaml.safe_load((Path(__file__).parent / "contract" / "environment.yaml").read_text())
RELEASES = assets.knowledge().releases
HOSTS, GPU_COMPILERS = ("gcc", "clang"), ("nvcc", "clang")
CHANNELS = ("environment", "repo_env")


@dataclass(frozen=True, kw_only=True)
class Build:
    """A kind of build, as the observations name it: `cpu+gcc`, `cuda/nvcc+clang`."""

    accelerator: str
    host_compiler: str
    gpu_compiler: str = ""

    def __str__(self) -> str:
        return f"{self.accelerator}{'/' * bool(self.gpu_compiler)}{self.gpu_compiler}+{self.host_compiler}"

    def among(self, names: list[str] | None) -> bool:
        """Whether one of the names stands for this build; what a name leaves out is any."""
        own = {str(self), self.accelerator, f"{self.accelerator}+{self.host_compiler}"}
        return names is None or bool({*own, str(self).split("+")[0]} & {*names})


def builds(release: Release) -> Iterator[Build]:
    """Every kind of build of a release, those of AMD GPUs only where there was one."""
    for host in HOSTS:
        yield Build(accelerator="cpu", host_compiler=host)
        for compiler in GPU_COMPILERS:
            yield Build(accelerator="cuda", host_compiler=host, gpu_compiler=compiler)
        if "rocm" in release.components:
            yield Build(accelerator="rocm", host_compiler=host)


CASES = [pytest.param(one, build, id=f"{one.release}-{build}") for one in RELEASES.values() for build in builds(one)]


def contract(desk: Desk, release: Release, build: Build) -> Contract:
    """The contract with facts written by hand, so that no missing image or refusal leaves a case out."""
    tested = {name: support.tested or "" for name, support in release.components.items()}
    paths = {f"{name}_path": f"/the/{name}" for name in ("python", "clang", "gcc", "cuda", "rocm")}
    facts = {
        "accelerator": build.accelerator,
        "host_compiler": build.host_compiler,
        "gpu_compiler": build.gpu_compiler,
        "xla": "true",
        "xla_digit": "1",
        "optimize_flags": "",
        "python": release.pythons[-1],
        "capabilities": "6.1,7.0" if release.capability_format == "dotted" else "sm_61,compute_70",
        "amdgpu_targets": "gfx906,gfx90a",
        "wheel_name": "tensorflow",
    }
    return Contract(desk.knowledge, release, {**facts, **paths, **version_facts(tested)})


def given(environment: Mapping[str, str], flags: tuple[str, ...]) -> dict[str, set[str]]:
    """Channel -> the variables that go through it."""
    by_flag = {match[1] for flag in flags if (match := re.match(r"--repo_env=(\w+)=", flag))}
    return {"environment": set(environment), "repo_env": by_flag}


def observed(release: Release, build: Build, channel: str) -> list[dict[str, Any]]:
    """The observations that are of such a build."""
    return [
        row
        for row in OBSERVED["rows"]
        if row.get("channel", "environment") == channel
        and in_range(release.release, row["releases"])
        and build.among(row.get("builds"))
    ]


@pytest.mark.parametrize(("release", "build"), CASES)
def test_no_release_gets_a_variable_that_it_does_not_read(desk: Desk, release: Release, build: Build) -> None:
    its = contract(desk, release, build)
    names = given(its.environment(), its.flags())
    for channel in CHANNELS:
        assert names[channel] <= {row["variable"] for row in observed(release, build, channel)}


@pytest.mark.parametrize(("release", "build"), CASES)
def test_every_release_gets_what_it_would_ask_for_or_take_a_wrong_default_for(
    desk: Desk, release: Release, build: Build
) -> None:
    its = contract(desk, release, build)
    names = given(its.environment(), its.flags())
    for channel in CHANNELS:
        wanted = {row["variable"]: row["without"] for row in observed(release, build, channel) if "without" in row}
        assert not {name: without for name, without in wanted.items() if name not in names[channel]}


@pytest.mark.parametrize(("release", "build"), CASES)
def test_a_question_that_no_value_answers_is_left_to_its_default(desk: Desk, release: Release, build: Build) -> None:
    left = {
        row["variable"]
        for row in OBSERVED["unanswered"]
        if in_range(release.release, row["releases"]) and build.among(row["builds"])
    }
    assert not left & set(contract(desk, release, build).environment())


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize(
    ("wants", "kind"),
    [
        ("host_compiler: gcc\n", Build(accelerator="cpu", host_compiler="gcc")),
        (
            "compute_capabilities: [compute_61]\ncompiler: nvcc\nhost_compiler: gcc\nallow_untested: true\n",
            Build(accelerator="cuda", host_compiler="gcc", gpu_compiler="nvcc"),
        ),
    ],
    ids=["cpu", "cuda"],
)
def test_a_plan_holds_the_contract_and_nothing_else(desk: Desk, release: Release, wants: str, kind: Build) -> None:
    plan = desk.plan(f'schema: 1\ntensorflow: "{release.patches[0]}"\n{wants}')
    by_hand = contract(desk, release, kind)
    assert given(dict(plan.environment), plan.bazel_flags) == given(by_hand.environment(), by_hand.flags())


# --- the observations themselves ------------------------------------------------------------------------------------


def test_every_observation_is_of_known_releases_and_builds_and_says_from_where() -> None:
    kinds = list(product(RELEASES.values(), ("cpu", "cuda", "rocm")))
    for row in (*OBSERVED["rows"], *OBSERVED["unanswered"]):
        sources = row["source"] if isinstance(row["source"], list) else [row["source"]]
        assert set(sources) <= set(OBSERVED["sources"]), row
        assert row.get("channel", "environment") in CHANNELS
        assert any(
            in_range(release.release, row["releases"]) and build.among(row.get("builds"))
            for release, _ in kinds
            for build in builds(release)
        ), row


# --- configs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("release", "build"), CASES)
def test_every_config_that_is_given_exists_in_the_release(desk: Desk, release: Release, build: Build) -> None:
    given_configs = {
        flag.removeprefix("--config=")
        for flag in contract(desk, release, build).flags()
        if flag.startswith("--config=")
    }
    assert given_configs <= set(release.configs)


@pytest.mark.parametrize(
    ("config", "releases"),
    [
        ("opt", "1.4.."),
        ("cuda", "1.4.."),
        ("cuda_clang", "1.4.."),
        ("mkl", "1.4.."),
        ("xla", "1.4.."),
        ("rocm", "1.12.."),
        ("noaws", "1.13..2.17"),
        ("nonccl", "1.13.."),
        ("numa", "1.14..2.13"),
        ("v1", "2.0..2.13"),
        ("avx2_linux", "2.2..2.13"),
        ("native_arch_linux", "2.2..2.13"),
        ("tensorrt", "1.15..2.17"),
        ("tf_public_cache", "2.15.."),
        ("nvcc_clang", "2.16.."),
        ("cuda_wheel", "2.18.."),
        ("cuda_nvcc", "2.19.."),
        ("clang_local", "2.20.."),
    ],
)
def test_a_config_exists_from_one_release_to_another(config: str, releases: str) -> None:
    has = [name for name, release in RELEASES.items() if config in release.configs]
    assert has == [name for name in RELEASES if in_range(name, releases)]
