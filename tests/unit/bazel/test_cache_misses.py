"""Why a build was cold: each thing that can differ is named, and nothing is claimed that was not compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tfdock.bazel.cache_misses import Inputs, differences, explain, inputs_of, kept_inputs, last_build

ID = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64"
TOOLCHAIN = (
    "bazel 6.5.0\npackage g++-12 12.2.0-14 amd64\npackage libc6 2.36-9 amd64\ntool /usr/bin/gcc aaaabbbbccccdddd\n"
)
CONTEXT = {"Dockerfile": b"FROM x", "tfdock/environment": b"A=1", "tfdock/phase.sh": b"#"}
FILES = {"BUILD": "file\0aa", "tensorflow/core/a.cc": "file\0bb", "tensorflow/core/b.cc": "file\0cc"}


def record(**changes: object) -> dict[str, Any]:
    plan = {
        "bazel_flags": ["--config=opt", "--copt=-O2"],
        "startup_options": ["--max_idle_secs=15"],
        "environment": {"TF_NEED_CUDA": "1", "TF_ENABLE_XLA": "1"},
        "image": {"base": "tensorflow/build:2.18", "source": {"kind": "path", "location": "local checkout"}},
    }
    return {
        "build_id": ID,
        "finished": "2026-11-21T22:34:09+00:00",
        "toolchain_key": "e15ed4792ec563ec",
        "base_digest": f"sha256:{'ab' * 32}",
        "source": {"ref": None, "found": ""},
        "plan": plan | changes,
    }


def inputs(
    toolchain: str = TOOLCHAIN, context: Mapping[str, bytes] = CONTEXT, files: Mapping[str, str] = FILES
) -> Inputs:
    return inputs_of(record(), kept_inputs(toolchain.encode(), context, files))


BEFORE = inputs()


def texts(after: Inputs, before: Inputs = BEFORE) -> list[str]:
    return [one.text for one in differences(before, after)]


@pytest.mark.parametrize("junk", [5, [], {}, {"a": [1]}, "x", 1.5, True, None])
@pytest.mark.parametrize(
    "key",
    ["plan", "source", "base_digest", "toolchain_key", "bazel_flags", "startup_options", "environment", "image"],
)
def test_a_record_of_any_shape_can_be_compared(key: str, junk: object) -> None:
    damaged = record() | {key: junk}
    damaged["plan"] = damaged["plan"] | {key: junk} if key != "plan" else junk
    for kept in (None, junk, {"schema": "tfdock.inputs/1", "toolchain": junk, "context": junk, "files": junk}):
        for document in ({}, damaged):
            before = inputs_of(document, kept)
            says_toolchain = isinstance(kept, dict) and isinstance(kept.get("toolchain"), list)
            assert (before.toolchain is not None) is says_toolchain
            assert all([*texts(before), *texts(BEFORE, before)])


def test_equal_builds_differ_in_nothing() -> None:
    assert texts(inputs()) == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--config=opt", "--copt=-O2", "--copt=-O3"], ["`--copt=-O3` was added"]),
        (["--config=opt"], ["`--copt=-O2` was removed"]),
        (["--config=opt", "--copt=-O3"], ["`--copt=-O2` -> `--copt=-O3`"]),
        (["--copt=-O2", "--config=opt"], ["the order of the flags changed"]),
        (["--config=opt", "--copt=-O2", "--copt=-O2"], ["`--copt=-O2` was added"]),
        (["--config=opt", "--copt=-O2", "--action_env=X=1"], ["`--action_env=X=1` was added"]),
    ],
)
def test_flags_are_named(flags: list[str], told: list[str]) -> None:
    assert texts(replace(BEFORE, flags=tuple(flags))) == told


def test_a_variable_of_an_option_is_told_with_both_values() -> None:
    before = replace(BEFORE, flags=("--action_env=X=1", "--action_env=Y=1"))
    after = replace(BEFORE, flags=("--action_env=X=2", "--action_env=Y=1"))
    assert texts(after, before) == ["`--action_env=X=1` -> `--action_env=X=2`"]


def test_the_environment_is_told_by_variable_and_its_file_is_not_told_again() -> None:
    after = inputs(context={**CONTEXT, "tfdock/environment": b"A=2"})
    after = replace(after, environment={"TF_NEED_CUDA": "1", "TF_ENABLE_XLA": "0", "NEW": "x"})
    assert texts(after) == [
        "environment variable NEW `x` was added",
        "environment variable TF_ENABLE_XLA `1` -> `0`",
    ]


def test_the_toolchain_is_told_by_package_tool_and_bazel() -> None:
    after = inputs(
        "bazel 6.6.0\npackage g++-12 12.2.0-15 amd64\npackage libc6 2.36-9 arm64\n"
        "tool /usr/bin/gcc 0123456789abcdef\n"
        "package new 1.0 amd64\n"
    )
    assert texts(replace(after, toolchain_key="f000000000000000")) == [
        "Bazel 6.5.0 -> 6.6.0",
        "tool /usr/bin/gcc aaaabbbbcccc… -> 0123456789ab…",
        "package g++-12 12.2.0-14 -> 12.2.0-15",
        "package libc6 2.36-9 amd64 -> 2.36-9 arm64",
        "package new 1.0 was added",
        "toolchain key e15ed4792ec563ec -> f000000000000000: the build uses another disk cache",
    ]


def test_other_files_of_the_image_and_cachebusters_are_told() -> None:
    before, after = inputs(f"{TOOLCHAIN}files aa\n"), inputs(f"{TOOLCHAIN}files bb\ncachebuster X\n")
    assert texts(after, before) == [
        "cachebuster X was added",
        "files of the image that belong to no package changed",
    ]


def test_of_many_packages_three_are_named() -> None:
    lines = "".join(f"package p{number} 2 all\n" for number in range(9))
    assert texts(inputs(TOOLCHAIN + lines))[-2:] == ["package p2 2 was added", "6 more packages differ"]


def test_the_base_image_is_told_by_its_digest() -> None:
    after = replace(BEFORE, base_digest=f"sha256:{'cd' * 32}")
    (only,) = differences(BEFORE, after)
    assert only.text == "base image sha256:abababababab… -> sha256:cdcdcdcdcdcd…"
    assert not only.reaches, "the same toolchain, out of an image that was built anew"
    assert next(differences(BEFORE, replace(after, toolchain_key="f000000000000000"))).reaches
    assert texts(replace(BEFORE, base="other:1"))[0].startswith("base image tensorflow/build:2.18 -> other:1")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tensorflow/core/a.cc": "file\0xx"}, "source: tensorflow/core/a.cc changed"),
        ({"tensorflow/core/a.cc": "program\0bb"}, "source: tensorflow/core/a.cc changed"),
        ({"c": "file\0yy"}, "source: c was added"),
        ({"BUILD": None}, "source: BUILD was removed"),
        (
            {"BUILD": "x", "tensorflow/core/a.cc": "x", "new": "x"},
            "source: BUILD, tensorflow/core/a.cc changed; new was added",
        ),
    ],
)
def test_files_of_a_checkout_are_named(changes: Mapping[str, str | None], told: str) -> None:
    files = {path: identity for path, identity in {**FILES, **changes}.items() if identity is not None}
    assert texts(inputs(files=files)) == [told]


def test_of_many_files_one_is_named() -> None:
    files = {f"tensorflow/{number}.cc": "file\0aa" for number in range(5)}
    before, after = inputs(files=files), inputs(files=dict.fromkeys(files, "file\0bb"))
    assert texts(after, before) == ["source: tensorflow/0.cc and 4 more changed"]


def test_half_a_character_in_a_name_has_a_hash_too() -> None:
    before, after = inputs(files={"a\ud800": "link\0b\ud800"}), inputs(files={"a\ud800": "link\0c\ud800"})
    assert texts(after, before) == ["source: a\ud800 changed"]


def test_a_commit_and_a_patch_are_named() -> None:
    after = inputs(context={**CONTEXT, "tfdock/patches/01.patch": b"x"})
    after = replace(after, source={**after.source, "ref": "v2.18.1", "found": "cd" * 20})
    before = replace(BEFORE, source={**BEFORE.source, "ref": "v2.18.0", "found": "ab" * 20})
    assert texts(after, before) == [
        "source ref v2.18.0 -> v2.18.1",
        f"source {'ab' * 20} -> {'cd' * 20}",
        "patch 01.patch was added",
    ]


def test_what_no_action_is_made_from_is_not_the_reason() -> None:
    after = inputs(context={**CONTEXT, "tfdock/phase.sh": b"other"})
    (only,) = differences(BEFORE, after)
    assert (only.text, only.reaches) == ("context file tfdock/phase.sh changed", False)
    told = explain(after, (record(), BEFORE), executed=3, cache_was_empty=False)
    assert told.sentences[0].startswith("no compared part differs")


# --- why ----------------------------------------------------------------------------------------------------------


def test_a_warm_build_needs_no_reason_and_still_tells_what_differs() -> None:
    after = replace(BEFORE, flags=("--config=opt",))
    told = explain(after, (record(), BEFORE), executed=0, cache_was_empty=False)
    assert told.sentences == ()
    assert len(told.differences) == 1
    assert told.since == {"build_id": ID, "finished": "2026-11-21T22:34:09+00:00"}


def test_a_cold_build_is_told_what_differs() -> None:
    after = replace(BEFORE, flags=("--config=opt",))
    told = explain(after, (record(), BEFORE), executed=9, cache_was_empty=False)
    assert told.sentences == ("`--copt=-O2` was removed",)


@pytest.mark.parametrize(
    ("empty", "said"), [(True, "the disk cache was empty"), (False, "part of the cache was pruned")]
)
def test_where_nothing_differs_that_is_said_with_the_likely_cause(empty: bool, said: str) -> None:
    (sentence,) = explain(inputs(), (record(), BEFORE), executed=9, cache_was_empty=empty).sentences
    assert sentence.startswith("no compared part differs from the last build")
    assert said in sentence


def test_without_an_earlier_build_nothing_is_compared() -> None:
    told = explain(inputs(), None, executed=9, cache_was_empty=True)
    assert told.sentences == ("this wheelhouse has no earlier build to compare with",)
    assert told.since is None
    assert explain(inputs(), None, executed=0, cache_was_empty=False).sentences == ()


def test_what_an_older_record_does_not_say_is_not_claimed() -> None:
    old = inputs_of(record(), None)
    told = explain(inputs("bazel 9\n", {}, {}), (record(), old), executed=9, cache_was_empty=False)
    assert told.differences == ()
    assert told.not_compared == (
        "system packages and tools",
        "the files of the image's context",
        "the files of the checkout",
    )
    parts = "system packages and tools, the files of the image's context and the files of the checkout"
    assert f"({parts} could not be compared)" in told.sentences[0]


# --- which build it is compared with --------------------------------------------------------------------------------

LOCAL = "tf2.18.0.src11111111-py3.11-cpu-x86_64"


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], None),
        ([("tf2.18.0-py3.12-cpu-x86_64", "9")], None),
        ([(LOCAL, "1"), (LOCAL, "2")], (LOCAL, "2")),
        ([(LOCAL, "1"), ("tf2.18.0.src22222222-py3.11-cpu-x86_64", "2")], (LOCAL, "1")),
        ([("tf2.18.0.src22222222-py3.11-cpu-x86_64", "2")], ("tf2.18.0.src22222222-py3.11-cpu-x86_64", "2")),
        ([("tf2.18.0-py3.11-cpu-p0123abcd-x86_64", "2")], ("tf2.18.0-py3.11-cpu-p0123abcd-x86_64", "2")),
        ([("tf2.18.0-py3.11-cpu-dbg-x86_64", "2")], None),
    ],
)
def test_the_last_build_is_of_the_same_id_or_differs_in_its_source_alone(
    others: Sequence[tuple[str, str]], expected: tuple[str, str] | None
) -> None:
    found = last_build([{"build_id": name, "finished": time} for name, time in others], LOCAL)
    assert (found and (found["build_id"], found["finished"])) == expected
