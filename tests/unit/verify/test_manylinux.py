"""The manylinux tag of a wheel by auditwheel's policies: what satisfies which, and what stands in the way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import auditwheel.policy  # type: ignore[import-untyped]
import pytest

from tfdock.verify.checks import Manylinux
from tfdock.verify.manylinux import audit
from tfdock.wheel.facts import Library
from tfdock.wheel.inspection import Inspection

from .test_checks import inspection

MODULE, BUNDLED = "demo/module.so", "demo.libs/libbundled-1.so.2"


def library(
    path: str = MODULE, *needed: str, versions: Mapping[str, tuple[str, ...]] | None = None, **more: Any
) -> Library:
    return Library(
        path=path, size=1, machine=more.pop("machine", "x86_64"), needed=needed, versions=versions or {}, **more
    )


def glibc(*versions: str) -> Library:
    return library(MODULE, "libc.so.6", versions={"libc.so.6": tuple(f"GLIBC_{one}" for one in versions)})


def wheel(*libraries: Library, tag: str = "linux_x86_64") -> Inspection:
    return inspection(libraries=libraries, platform_tag=tag)


def judged(*libraries: Library, tag: str = "linux_x86_64") -> Manylinux:
    fact = audit(wheel(*libraries, tag=tag))
    assert isinstance(fact, Manylinux), fact
    return fact


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("2.2.5", "manylinux_2_5_x86_64"),
        ("2.12", "manylinux_2_12_x86_64"),
        ("2.17", "manylinux_2_17_x86_64"),
        ("2.18", "manylinux_2_24_x86_64"),
        ("2.28", "manylinux_2_28_x86_64"),
        ("2.34", "manylinux_2_34_x86_64"),
        ("2.99", "linux_x86_64"),
    ],
)
def test_the_newest_symbol_decides(version: str, fits: str) -> None:
    assert judged(glibc("2.2.5", version)) == Manylinux(fits=fits, obstacles={})


def test_each_tag_of_the_name_is_held_against_its_own_policy_by_any_of_its_names() -> None:
    tag = "manylinux_2_17_x86_64.manylinux2014_x86_64.manylinux_2_28_x86_64"
    fact = judged(glibc("2.2.5", "2.28", "2.25"), tag=tag)
    assert fact.fits == "manylinux_2_28_x86_64"
    told = (f"`{MODULE}` wants GLIBC_2.28 of libc.so.6", f"`{MODULE}` wants GLIBC_2.25 of libc.so.6")
    assert fact.obstacles == {"manylinux_2_17_x86_64": told, "manylinux2014_x86_64": told}


@pytest.mark.parametrize(
    ("tag", "obstacle"),
    [
        ("manylinux_2_33_x86_64", ()),  # none of that name: that of 2.31, which it includes
        ("manylinux_2_30_x86_64", (f"`{MODULE}` wants GLIBC_2.30 of libc.so.6",)),  # … of 2.28
        ("manylinux_2_99_x86_64", ()),
        ("manylinux_2_3_x86_64", ("auditwheel does not know this tag",)),
        ("manylinux2099_x86_64", ("auditwheel does not know this tag",)),
    ],
)
def test_a_tag_without_a_policy_promises_what_the_next_older_one_does(tag: str, obstacle: tuple[str, ...]) -> None:
    fact = judged(glibc("2.30"), tag=tag)
    assert fact.fits == "manylinux_2_31_x86_64"
    assert fact.obstacles == ({tag: obstacle} if obstacle else {})


def test_versions_of_the_loader_and_of_what_no_policy_speaks_of_do_not_count() -> None:
    versions = {"ld-linux-x86-64.so.2": ("GLIBC_2.99",), "libtensorflow_cc.so.2": ("tensorflow",)}
    assert judged(library(versions=versions)).fits == "manylinux_2_5_x86_64"


def test_a_library_that_is_neither_allowed_nor_in_the_wheel_is_missing_for_every_policy() -> None:
    tag = "manylinux_2_17_x86_64"
    fact = judged(library(MODULE, "libc.so.6", "libamdhip64.so.6", "ld-linux-x86-64.so.2"), tag=tag)
    assert fact.fits == "linux_x86_64"
    assert fact.obstacles == {tag: (f"`{MODULE}` needs libamdhip64.so.6, which is not in the wheel",)}
    assert judged(library(MODULE, "libamdhip64.so.6")).obstacles == {}, "a plain tag promises nothing"


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ({"runpath": ("$ORIGIN/../demo.libs",)}, True),
        ({"rpath": ("/usr/lib", "${ORIGIN}/../demo.libs/.")}, True),
        ({"runpath": ("$ORIGIN",)}, False),
        ({"runpath": ("/demo.libs", "demo.libs", "")}, False),
        ({}, False),
    ],
)
def test_a_bundled_library_is_found_where_the_loader_looks_for_it(paths: dict[str, Any], found: bool) -> None:
    module = library(MODULE, "libbundled-1.so.2", **paths)
    fact = judged(module, library(BUNDLED, "libc.so.6"))
    assert fact.fits == ("manylinux_2_5_x86_64" if found else "linux_x86_64")


def test_what_a_bundled_library_needs_is_looked_for_as_well_where_its_module_looks() -> None:
    module = library(MODULE, "libbundled-1.so.2", runpath=("$ORIGIN/../demo.libs",))
    bundled = library(BUNDLED, "libother.so.1")
    assert judged(module, bundled).fits == "linux_x86_64"
    assert judged(module, bundled, library("demo.libs/libother.so.1", "libm.so.6")).fits == "manylinux_2_5_x86_64"
    assert judged(module, bundled, library("demo.libs/libother.so.1", "libnowhere.so")).fits == "linux_x86_64"


def test_libraries_that_need_each_other_are_looked_through_once() -> None:
    one = library("demo/one.so", "libtwo.so", runpath=("$ORIGIN",))
    two, three = library("demo/libtwo.so", "libthree.so"), library("demo/libthree.so", "libtwo.so")
    assert judged(one, two, three).fits == "manylinux_2_5_x86_64"


def test_many_libraries_with_the_same_obstacle_are_told_in_a_phrase() -> None:
    many = [library(f"demo/{number}.so", "libx.so") for number in range(70)]
    (told,) = judged(*many, tag="manylinux_2_17_x86_64").obstacles["manylinux_2_17_x86_64"]
    assert told == "`demo/0.so` and 69 more: needs libx.so, which is not in the wheel"


@pytest.mark.parametrize(
    ("libraries", "tag", "reason"),
    [
        ((glibc("2.17"),), "any", "do not cover any"),
        ((glibc("2.17"),), "musllinux_1_2_x86_64", "do not cover musllinux_1_2_x86_64"),
        ((glibc("2.17"),), "macosx_11_0_arm64", "do not cover macosx_11_0_arm64"),
        ((glibc("2.17"),), "linux_sparc", "do not cover linux_sparc"),
        ((), "linux_x86_64", "no library for x86_64"),
        ((library(machine="aarch64"),), "linux_x86_64", "no library for x86_64"),
    ],
)
def test_what_cannot_be_judged_has_a_reason(libraries: tuple[Library, ...], tag: str, reason: str) -> None:
    told = audit(wheel(*libraries, tag=tag))
    assert isinstance(told, str)
    assert reason in told


def test_another_machine_has_policies_of_its_own() -> None:
    own = library(MODULE, "libc.so.6", versions={"libc.so.6": ("GLIBC_2.17",)}, machine="aarch64")
    assert judged(own, tag="linux_aarch64").fits == "manylinux_2_17_aarch64"


def test_every_policy_can_be_the_answer() -> None:
    """The policies' own file, read here as data: what wants all that one promises satisfies it, or its equal."""
    text = (Path(auditwheel.policy.__file__).parent / "manylinux-policy.json").read_text()
    promised = {one["name"]: one["symbol_versions"].get("x86_64", {}).get("GLIBC") for one in json.loads(text)}
    for versions in filter(None, promised.values()):
        wanted = library(MODULE, "libc.so.6", versions={"libc.so.6": tuple(f"GLIBC_{one}" for one in versions)})
        equal = [f"{name}_x86_64" for name, others in promised.items() if others == versions]
        assert judged(wanted).fits in equal
