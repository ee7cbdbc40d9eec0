"""Verdicts on GPU code: NVIDIA's and AMD's rules as tables, and what holds for any code and any GPU."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.gpu.verdict import CodePart, Runs, Verdict, code_of, combine, parts_of, runs, runs_container, runs_gfx
from tfdock.types import Capability
from tfdock.wheel.facts import Containers, GpuCode, Library

from ..small_wheels import held

EMBEDDED = ("5.3", "6.2", "7.2", "8.7", "10.1", "11.0")
OFFICIAL_2_18 = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
OFFICIAL_2_14 = ("sm_35", "sm_50", "sm_60", "sm_70", "sm_75", "compute_80")

KNOWN = ["3.5", "3.7", "5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9",
         "9.0", "10.0", "10.1", "10.3", "11.0", "12.0", "12.1"]  # fmt: skip


def judged(gpu: str, *code: str) -> str:
    """The verdict on images named as a listing names them; `compute_` is PTX alone here."""
    sass = [one for one in code if one.startswith("sm_")]
    ptx = [one for one in code if one.startswith("compute_")]
    return runs(Capability.of_gpu(gpu), sass, ptx, embedded=EMBEDDED).runs


def official(gpu: str, targets: tuple[str, ...]) -> tuple[str, str]:
    verdict = runs(Capability.of_gpu(gpu), *code_of(targets), embedded=EMBEDDED)
    return verdict.runs, verdict.by


# --- the tables ----------------------------------------


@pytest.mark.parametrize(
    ("image", "gpu", "expected"),
    [
        # SASS runs upwards within its major version.
        ("sm_80", "8.0", "native"),
        ("sm_80", "8.6", "native-same-major"),
        ("sm_80", "8.9", "native-same-major"),
        ("sm_86", "8.0", "no"),
        ("sm_89", "8.6", "no"),
        ("sm_70", "7.5", "native-same-major"),
        ("sm_90", "10.0", "no"),
        ("sm_100", "10.3", "native-same-major"),
        ("sm_100", "12.0", "no"),
        ("sm_120", "12.1", "native-same-major"),
        ("sm_120", "9.0", "no"),
        # A letter narrows code to its own GPU or family.
        ("sm_90a", "9.0", "native"),
        ("sm_90a", "10.0", "no"),
        ("sm_100a", "10.0", "native"),
        ("sm_100a", "10.3", "no"),
        ("sm_120a", "12.1", "no"),
        ("sm_100f", "10.0", "native"),
        ("sm_100f", "10.3", "native-same-major"),
        ("sm_103f", "10.0", "no"),
        ("sm_120f", "12.1", "native-same-major"),
        ("sm_120f", "11.0", "no"),
        ("compute_90a", "9.0", "ptx-jit"),
        ("compute_90a", "10.0", "no"),
        ("compute_90a", "12.0", "no"),
        ("compute_100f", "10.3", "ptx-jit"),
        ("compute_100f", "12.0", "no"),
        ("compute_120f", "12.1", "ptx-jit"),
        # PTX goes forwards to any major version and never back.
        ("compute_90", "12.0", "ptx-jit"),
        ("compute_80", "8.0", "ptx-jit"),
        ("compute_80", "7.5", "no"),
        ("compute_90", "8.9", "no"),
        ("compute_35", "12.1", "ptx-jit"),
        ("compute_100", "9.0", "no"),
        # An embedded GPU runs its own code and PTX.
        ("sm_87", "8.7", "native"),
        ("compute_80", "8.7", "ptx-jit"),
    ],
)
def test_an_image_runs_on_the_gpus_of_nvidias_rules(image: str, gpu: str, expected: str) -> None:
    assert judged(gpu, image) == expected


@pytest.mark.parametrize(
    ("image", "gpu"),
    [("sm_80", "8.7"), ("sm_86", "8.7"), ("sm_87", "8.9"), ("sm_70", "7.2"), ("sm_72", "7.5"), ("sm_60", "6.2"),
     ("sm_100", "10.1"), ("sm_52", "5.3"), ("sm_100f", "10.1")],
)  # fmt: skip
def test_sass_goes_neither_to_an_embedded_gpu_nor_away_from_one(image: str, gpu: str) -> None:
    assert judged(gpu, image) == "no"


@pytest.mark.parametrize(
    ("gpu", "targets", "expected"),
    [
        ("12.0", OFFICIAL_2_18, ("ptx-jit", "compute_90")),
        ("8.6", OFFICIAL_2_18, ("native-same-major", "sm_80")),
        ("8.9", OFFICIAL_2_18, ("native", "sm_89")),
        ("9.0", OFFICIAL_2_18, ("native", "sm_90")),
        ("7.5", OFFICIAL_2_18, ("native-same-major", "sm_70")),
        ("6.1", OFFICIAL_2_18, ("native-same-major", "sm_60")),
        ("3.7", OFFICIAL_2_18, ("no", "")),
        ("8.7", OFFICIAL_2_18, ("no", "")),
        ("11.0", OFFICIAL_2_18, ("ptx-jit", "compute_90")),
        ("9.0", OFFICIAL_2_14, ("ptx-jit", "compute_80")),
        ("8.6", OFFICIAL_2_14, ("native-same-major", "sm_80")),
        ("8.7", OFFICIAL_2_14, ("ptx-jit", "compute_80")),
        ("3.7", OFFICIAL_2_14, ("native-same-major", "sm_35")),
        ("3.0", OFFICIAL_2_14, ("no", "")),
    ],
)
def test_the_official_wheels_are_judged_as_their_users_found(
    gpu: str, targets: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert official(gpu, targets) == expected


def test_the_reason_for_no_says_what_stands_in_the_way() -> None:
    def why(gpu: str, *targets: str) -> str:
        return runs(Capability.of_gpu(gpu), *code_of(targets), embedded=EMBEDDED).reason

    assert "oldest code is for 6.0" in why("3.7", *OFFICIAL_2_18)
    assert "embedded" in why("8.7", "sm_80", "sm_86")
    assert "no PTX" in why("12.0", "sm_80", "sm_90")
    assert why("12.0") == "it has no GPU code"


@pytest.mark.parametrize("image", ["sm_8", "gfx90a", "8.6", "sm_86x"])
def test_what_is_no_image_is_not_judged(image: str) -> None:
    with pytest.raises(ValueError, match="not a compute capability"):
        runs(Capability.of_gpu("8.6"), [image])


def test_a_list_makes_sass_for_all_and_ptx_where_it_says_compute() -> None:
    assert code_of(OFFICIAL_2_18) == (("sm_60", "sm_70", "sm_80", "sm_89", "sm_90"), ("compute_90",))
    assert code_of(["compute_120", "sm_90a", "sm_120"]) == (("sm_90a", "sm_120"), ("compute_120",))
    assert code_of([]) == ((), ())


# --- AMD ----------------------------------------


@pytest.mark.parametrize(
    ("gpu", "code", "expected"),
    [
        ("gfx90a", ["gfx908", "gfx90a"], ("native", "gfx90a")),
        ("gfx1032", ["gfx1030"], ("no", "")),
        ("gfx942", ["gfx940", "gfx90a"], ("no", "")),
        ("gfx1100", ["gfx110", "gfx1101"], ("no", "")),
        ("gfx90a", ["gfx90a:xnack+"], ("native", "gfx90a:xnack+")),
        ("gfx90a", ["gfx90a:xnack+", "gfx90a"], ("native", "gfx90a")),
        ("gfx90a", [], ("no", "")),
    ],
)
def test_amd_code_runs_on_its_own_target_alone(gpu: str, code: list[str], expected: tuple[str, str]) -> None:
    verdict = runs_gfx(gpu, code)
    assert (verdict.runs, verdict.by) == expected


def test_a_feature_that_the_gpu_does_not_name_is_a_condition() -> None:
    assert "where the GPU runs with xnack+" in runs_gfx("gfx90a", ["gfx90a:xnack+"]).reason
    assert "where" not in runs_gfx("gfx90a", ["gfx90a:xnack+", "gfx90a"]).reason


# --- what always holds ----------------------------------------

gpus = st.sampled_from(KNOWN).map(Capability.of_gpu)
numbers = st.sampled_from([one.replace(".", "") for one in KNOWN]).flatmap(
    lambda number: st.sampled_from(["", "a", "f"]).map(lambda letter: number + letter)
)
sass_lists = st.lists(numbers.map("sm_{}".format), max_size=5)
ptx_lists = st.lists(numbers.map("compute_{}".format), max_size=3)


@given(gpus, sass_lists, ptx_lists, sass_lists, ptx_lists)
def test_more_code_never_makes_a_verdict_worse(
    gpu: Capability, sass: list[str], ptx: list[str], more_sass: list[str], more_ptx: list[str]
) -> None:
    before = runs(gpu, sass, ptx, embedded=EMBEDDED)
    after = runs(gpu, [*sass, *more_sass], [*ptx, *more_ptx], embedded=EMBEDDED)
    order = get_args(Runs)
    assert order.index(after.runs) <= order.index(before.runs)


@given(gpus, sass_lists, ptx_lists)
def test_the_order_of_the_listing_does_not_matter(gpu: Capability, sass: list[str], ptx: list[str]) -> None:
    backwards = runs(gpu, sass[::-1], ptx[::-1], embedded=EMBEDDED)
    assert runs(gpu, sass, ptx, embedded=EMBEDDED) == backwards


@given(gpus, sass_lists, ptx_lists)
def test_the_image_named_is_one_of_the_listing_and_alone_gives_the_same_verdict(
    gpu: Capability, sass: list[str], ptx: list[str]
) -> None:
    verdict = runs(gpu, sass, ptx, embedded=EMBEDDED)
    if verdict.runs == "no":
        assert verdict.by == ""
        return
    own = [verdict.by]
    assert verdict.by in (ptx if verdict.runs == "ptx-jit" else sass)
    alone = runs(gpu, own, (), embedded=EMBEDDED) if verdict.starts_at_once else runs(gpu, (), own, embedded=EMBEDDED)
    assert alone == verdict


@given(gpus, sass_lists)
def test_sass_never_crosses_a_major_version(gpu: Capability, sass: list[str]) -> None:
    others = [image for image in sass if Capability.parse(image).major != gpu.major]
    assert runs(gpu, others, embedded=EMBEDDED).runs == "no"


@given(gpus, ptx_lists)
def test_ptx_alone_never_helps_a_gpu_older_than_it(gpu: Capability, ptx: list[str]) -> None:
    newer = [
        one for one in ptx if (Capability.parse(one).major, Capability.parse(one).minor) > (gpu.major, gpu.minor)
    ]
    assert runs(gpu, (), newer, embedded=EMBEDDED).runs == "no"


@given(gpus)
def test_its_own_capability_is_native_on_every_gpu(gpu: Capability) -> None:
    assert runs(gpu, [str(gpu)], embedded=EMBEDDED).runs == "native"


# --- containers together ----------------------------------------


RELOCATABLE = held("116: compute_90")


def as_one(*groups: str, gpu: str = "12.0", relocatable: GpuCode | None = None) -> str:
    """The verdict on a library of such containers."""
    loadable, relocatable = held(*groups), relocatable or GpuCode()
    library = Library(path="a", size=1, machine="x86_64", versions={}, loadable=loadable, relocatable=relocatable)
    found = combine(parts_of(library, lambda held: runs_container(gpu, held, capabilities=True)))
    return found.verdict.runs if found else "nothing"


def test_what_the_device_linker_made_counts_only_where_there_is_nothing_else() -> None:
    assert as_one("2: sm_90 compute_90", "1: sm_90", relocatable=RELOCATABLE) == "ptx-jit"
    assert as_one("2: sm_90 compute_90", "1: sm_90") == "no", "nothing was linked on the device"
    assert as_one("1: sm_90", relocatable=RELOCATABLE) == "no", "all of it was"
    assert as_one("1: sm_120", relocatable=RELOCATABLE) == "native"


def test_containers_without_anything_for_the_family_do_not_count() -> None:
    assert as_one("9: sm_120", "300: gfx90a") == "native"
    assert as_one("300: gfx90a") == "nothing"
    assert as_one("1: sm_120 stub") == "nothing"
    assert as_one("1: sm_120 stub", "1: sm_90") == "no"


LEVELS = get_args(Runs)
counted = st.tuples(st.sampled_from(LEVELS), st.integers(1, 200), st.booleans())


def shared(shares: list[tuple[Runs, int, bool]]) -> list[CodePart]:
    return [
        CodePart(path="a", held=Containers(count=count), verdict=Verdict(runs=runs, by="", reason=""), linked=linked)
        for runs, count, linked in shares
    ]


@given(st.lists(counted, min_size=1, max_size=6))
def test_the_verdict_on_all_is_that_of_some_and_fewer_than_a_tenth_are_worse(
    shares: list[tuple[Runs, int, bool]],
) -> None:
    found = combine(shared(shares))
    assert found
    level = LEVELS.index(found.verdict.runs)
    own = [one for one in shares if not one[2]] or shares
    total = sum(count for _, count, _ in own)
    worse = sum(count for runs, count, _ in own if LEVELS.index(runs) > level)
    at_least = sum(count for runs, count, _ in own if LEVELS.index(runs) >= level)
    assert worse * 10 < total <= at_least * 10
    assert {part.verdict.runs for part in found.weaker} == {one for one, *_ in shares if LEVELS.index(one) > level}


@given(st.lists(counted, min_size=1, max_size=6), st.integers(1, 200))
def test_more_containers_that_run_natively_never_make_it_worse(
    shares: list[tuple[Runs, int, bool]], count: int
) -> None:
    own: list[tuple[Runs, int, bool]] = [one for one in shares if not one[2]] or [("no", 1, False)]
    before, after = combine(shared(own)), combine(shared([*own, ("native", count, False)]))
    assert before
    assert after
    assert LEVELS.index(after.verdict.runs) <= LEVELS.index(before.verdict.runs)
