"""Versions, capabilities and image names."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.types import Capability, ImageRef, Version

DIGEST = "sha256:" + "0123456789abcdef" * 4


# --- versions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [("12.9", "12.10"), ("2.9", "2.18"), ("9", "10"), ("12.5", "12.5.1"), ("12.5", "12.5.0"), ("0.5.4", "0.13")],
)
def test_versions_compare_by_numbers(smaller: str, larger: str) -> None:
    assert Version(smaller) < Version(larger)
    assert Version(larger) > Version(smaller)
    assert Version(smaller) != Version(larger)


def test_a_pre_release_comes_before_its_release_and_behind_the_one_before() -> None:
    expected = ["5.98.9", "5.99.0-dev1", "5.99.0-rc2", "5.99.0-rc10", "5.99.0", "5.99.0.1", "5.99.1-rc1"]
    shuffled = random.Random(0).sample(expected, len(expected))
    assert [str(one) for one in sorted(map(Version, shuffled))] == expected


_VERSIONS = st.from_regex(r"(0?[0-2](\.0?[0-2]){0,2})?(-?(rc|b)[0-2])?", fullmatch=True).map(Version)


@given(_VERSIONS, _VERSIONS)
def test_of_two_versions_one_is_smaller_or_they_are_equal(one: Version, other: Version) -> None:
    assert [one < other, one == other, one > other].count(True) == 1


def test_versions_of_the_same_numbers_are_equal_and_one_in_a_set() -> None:
    assert Version("535.54.03") == Version("535.54.3")
    assert len({Version("535.54.03"), Version("535.54.3")}) == 1


@pytest.mark.parametrize("text", ["3.10", "2.20", "12.5.0", "2.18.0-rc1", "8.9.7.29"])
def test_versions_print_as_they_were_written(text: str) -> None:
    assert str(Version(text)) == text


@pytest.mark.parametrize(
    ("version", "prefix", "does"),
    [
        ("12.5.1", "12.5", True),
        ("12.5.1", "12", True),
        ("12.5.1", "12.5.1", True),
        ("12.5", "12.5.1", False),
        ("12.50", "12.5", False),
        ("", "12", False),
    ],
)
def test_a_version_matches_what_is_less_exact(version: str, prefix: str, does: bool) -> None:
    assert Version(version).matches(Version(prefix)) is does


@pytest.mark.parametrize(
    ("text", "minor"), [("2.18.0", "2.18"), ("12", "12"), ("8.9.7.29", "8.9"), ("2.18.0-rc1", "2.18"), ("main", "")]
)
def test_the_minor_version_is_the_first_two_numbers(text: str, minor: str) -> None:
    assert Version(text).minor == Version(minor)


# --- capabilities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "major", "minor", "suffix", "ptx"),
    [
        ("sm_35", 3, 5, "", False),
        ("sm_86", 8, 6, "", False),
        ("compute_90", 9, 0, "", True),
        ("sm_90a", 9, 0, "a", False),
        ("sm_120", 12, 0, "", False),
        ("compute_121f", 12, 1, "f", True),
    ],
)
def test_capabilities_are_read_and_written_alike(text: str, major: int, minor: int, suffix: str, ptx: bool) -> None:
    capability = Capability.parse(text)
    assert capability == Capability(major, minor, suffix, ptx)
    assert str(capability) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "8.6", "sm86", "sm_8", "sm_8.6", "sm_1200", "SM_86", "sm_86 ", "sm_86\n", "sm_90b", "compute_90aa",
        "gfx90a",
    ],
)  # fmt: skip
def test_what_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a compute capability"):
        Capability.parse(text)


@pytest.mark.parametrize(("dotted", "text"), [("8.6", "sm_86"), ("12.0", "sm_120"), ("3.5", "sm_35")])
def test_a_gpu_is_served_by_native_code(dotted: str, text: str) -> None:
    assert str(Capability.of_gpu(dotted)) == text


@pytest.mark.parametrize("dotted", ["86", "8", "8.60", "gfx90a", "8.6\n", ""])
def test_what_is_no_gpus_capability_is_refused(dotted: str) -> None:
    with pytest.raises(ValueError, match="not a dotted compute capability"):
        Capability.of_gpu(dotted)


def test_capabilities_sort_as_numbers_and_native_code_before_ptx() -> None:
    expected = ["sm_35", "sm_86", "compute_86", "sm_90", "sm_90a", "compute_90a", "sm_100", "sm_120"]
    shuffled = random.Random(0).sample(expected, len(expected))
    assert [str(one) for one in sorted(map(Capability.parse, shuffled))] == expected


# --- images -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("ubuntu", "docker.io", "ubuntu", None, None),
        ("ubuntu:22.04", "docker.io", "ubuntu", "22.04", None),
        ("tensorflow/build:2.18-python3.11", "docker.io", "tensorflow/build", "2.18-python3.11", None),
        ("ghcr.io/a/b/c:x", "ghcr.io", "a/b/c", "x", None),
        ("localhost/a", "localhost", "a", None, None),
        ("host:5000/a/b:1", "host:5000", "a/b", "1", None),
        (f"a/b@{DIGEST}", "docker.io", "a/b", None, DIGEST),
        (f"quay.io/a:1@{DIGEST}", "quay.io", "a", "1", DIGEST),
    ],
)
def test_image_names_are_read_as_docker_reads_them(
    text: str, registry: str, repository: str, tag: str | None, digest: str | None
) -> None:
    image = ImageRef.parse(text)
    assert (image.registry, image.repository, image.tag, image.digest) == (registry, repository, tag, digest)
    assert str(image) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a:",
        "a@sha256:12",
        "a/",
        "/a",
        "a//b",
        "a:b:c",
        "-a",
        "a:-x",
        "a\n",
        "a$b",
        "a;b",
        "a:" + "x" * 129,
    ],
)
def test_what_is_no_image_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an image reference"):
        ImageRef.parse(text)


def test_a_mirror_changes_the_registry_and_nothing_else() -> None:
    image = ImageRef.parse(f"tensorflow/build:2.18@{DIGEST}")
    assert str(image.at("mirror.example:5000")) == f"mirror.example:5000/tensorflow/build:2.18@{DIGEST}"


def test_a_mirror_of_docker_hub_has_its_official_images_below_library() -> None:
    assert str(ImageRef.parse("ubuntu:16.04").at("mirror.example:5000")) == "mirror.example:5000/library/ubuntu:16.04"
    assert str(ImageRef.parse("quay.io/x:1").at("mirror.example:5000")) == "mirror.example:5000/x:1"


@given(st.text(st.sampled_from("aZ09.-_:/@\n $")))
def test_an_image_name_that_is_read_is_written_back_and_safe_in_a_dockerfile(text: str) -> None:
    try:
        image = ImageRef.parse(text)
    except ValueError:
        return
    assert ImageRef.parse(str(image)) == image
    assert not set(str(image)) & set("\n $")
