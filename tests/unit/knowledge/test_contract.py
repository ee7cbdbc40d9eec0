"""The environment of every release against what its configure.py and Bazel rules were seen to read and ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tfdock.knowledge.release_rows import Release, applies
from tfdock.knowledge.rows import in_range

from ..contracts import CHANNELS, RELEASES, Build, builds, each_build, given, written
from ..desk import Desk

OBSERVED = yaml.safe_load((Path(__file__).parents[1] / "data/contract" / "environment.yaml").read_text())


def observed(release: Release, build: Build, channel: str) -> list[dict[str, Any]]:
    """The observations that are of such a build."""
    return [
        row
        for row in OBSERVED["rows"]
        if row.get("channel", "environment") == channel
        and in_range(release.release, row["releases"])
        and build.among(row.get("builds"))
    ]


@each_build()
def test_no_release_gets_a_variable_that_it_does_not_read(release: Release, build: Build) -> None:
    its = written(release.release, build)
    names = given(its.environment, its.flags)
    for channel in CHANNELS:
        assert names[channel] <= {row["variable"] for row in observed(release, build, channel)}


@each_build()
def test_every_release_gets_what_it_would_ask_for_or_take_a_wrong_default_for(release: Release, build: Build) -> None:
    its = written(release.release, build)
    names = given(its.environment, its.flags)
    for channel in CHANNELS:
        wanted = {row["variable"]: row["without"] for row in observed(release, build, channel) if "without" in row}
        assert not {name: without for name, without in wanted.items() if name not in names[channel]}


@each_build()
def test_a_question_that_no_value_answers_is_left_to_its_default(release: Release, build: Build) -> None:
    left = {
        row["variable"]
        for row in OBSERVED["unanswered"]
        if in_range(release.release, row["releases"]) and build.among(row["builds"])
    }
    assert not left & set(written(release.release, build).environment)


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize(
    ("wants", "kind"),
    [
        ("host_compiler: gcc\nallow_untested: true\n", Build(accelerator="cpu", host_compiler="gcc")),
        (
            "compute_capabilities: [compute_61]\ncompiler: nvcc\nhost_compiler: gcc\nallow_untested: true\n",
            Build(accelerator="cuda", host_compiler="gcc", gpu_compiler="nvcc"),
        ),
    ],
    ids=["cpu", "cuda"],
)
def test_a_plan_holds_the_contract_and_nothing_else(desk: Desk, release: Release, wants: str, kind: Build) -> None:
    # From 2.17 on XNNPACK wants gcc 12, which TensorFlow's own images do not have.
    allowed, flag = "allow_failing: a patch mends it\n", "--define=xnn_enable_avx512fp16=false"
    text = f'schema: 1\ntensorflow: "{release.patches[0]}"\n{allowed}{wants}bazel: {{flags: ["{flag}"]}}\n'
    plan = desk.plan(text)
    by_hand = written(release.release, kind)
    assert given(dict(plan.environment), plan.bazel_flags) == given(by_hand.environment, (*by_hand.flags, flag))


# --- the observations themselves ------------------------------------------------------------------------------------


def test_every_observation_is_of_known_releases_and_builds_and_says_from_where() -> None:
    for row in (*OBSERVED["rows"], *OBSERVED["unanswered"]):
        sources = row["source"] if isinstance(row["source"], list) else [row["source"]]
        assert set(sources) <= set(OBSERVED["sources"]), row
        assert row.get("channel", "environment") in CHANNELS
        assert any(
            in_range(release.release, row["releases"]) and build.among(row.get("builds"))
            for release in RELEASES.values()
            for build in builds(release)
        ), row


# --- a release that is like another ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "holds"),
    [
        ("2.18", True),
        ("2.18..", True),
        ("2.3..2.18", True),
        ("9.9", True),
        ("9.9..", True),
        ("9.7..9.9", True),
        ("9.9..9.10", True),
        ("2.21..", False),
        ("2.19..2.20", False),
        ("9.8..", False),
        ("9.10..", False),
    ],
)
def test_a_release_like_another_has_its_rows_and_those_that_name_its_own_number(span: str, holds: bool) -> None:
    release = RELEASES["2.18"].model_copy(update={"release": "9.9", "like": "2.18"})
    assert applies(release, span) is holds


# --- configs --------------------------------------------------------------------------------------------------------


@each_build()
def test_every_config_that_is_given_exists_in_the_release(release: Release, build: Build) -> None:
    given_configs = {
        flag.removeprefix("--config=")
        for flag in written(release.release, build).flags
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
        ("v1", "1.15..2.13"),
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
