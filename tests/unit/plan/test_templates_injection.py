"""No text of a profile becomes an instruction, a shell word or a line of its own, wherever it is put."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tfdock.errors import Incompatible, ProfileError
from tfdock.knowledge import loader
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.render import render
from tfdock.profile.profile import Profile
from tfdock.profile.profile import read as read_profile
from tfdock.resolve.question import LocalSource

from ..desk import Desk
from ..profile.test_profile import records

# Field -> a profile with `…` where the field's value goes, and a value that belongs there.
HEAD = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\nallow_untested: true\n'
SOURCE = 'schema: 1\npython: "3.11"\ntensorflow: {release: "2.18.0", '
SHA256 = "0" * 64
FIELDS = {
    "tensorflow": ("schema: 1\npython: '3.11'\ntensorflow: …\n", "2.18.0"),
    "tensorflow.release": ("schema: 1\npython: '3.11'\ntensorflow: {release: …, ref: main}\n", "2.18.0"),
    "tensorflow.git": (SOURCE + "git: …}\n", "https://example.org/tensorflow.git"),
    "tensorflow.ref": (SOURCE + "ref: …}\n", "main"),
    "tensorflow.fallback": (SOURCE + "ref: main, fallback: […]}\n", "other"),
    "tensorflow.archive": (SOURCE + f"archive: …, sha256: '{SHA256}'}}\n", "https://example.org/tensorflow.zip"),
    "tensorflow.sha256": (SOURCE + "archive: https://example.org/tensorflow.zip, sha256: …}\n", SHA256),
    "tensorflow.path": (SOURCE + "path: …}\n", "../tensorflow"),
    "tensorflow.patches": (SOURCE + "patches: […]}\n", "first.patch"),
    "allow_failing": (HEAD + "allow_failing: …\n", "the base is patched"),
    "python": ('schema: 1\ntensorflow: "2.18.0"\npython: …\n', "3.11"),
    "accelerator": (HEAD + "accelerator: …\n", "cuda"),
    "gpus": (HEAD + "gpus: […]\n", "rtx3080"),
    "compute_capabilities": (HEAD + "compute_capabilities: […]\n", "sm_86"),
    "amdgpu_targets": (HEAD + "amdgpu_targets: […]\n", "gfx90a"),
    "targets": (HEAD + "targets: […]\n", "bead1"),
    "cuda": (HEAD + "cuda: …\n", "12.5.1"),
    "cudnn": (HEAD + "cuda: '12.5.1'\ncudnn: …\n", "9.3.0"),
    "rocm": (HEAD + "amdgpu_targets: [gfx90a]\nrocm: …\n", "6.4"),
    "components": (HEAD + "components: {cuda: …}\n", "12.5.1"),
    "compiler": (HEAD + "accelerator: cuda\ncompiler: …\n", "nvcc"),
    "host_compiler": (HEAD + "host_compiler: …\n", "clang"),
    "host_compiler.name": (HEAD + "host_compiler: {name: …}\n", "clang"),
    "host_compiler.version": (HEAD + "host_compiler: {name: clang, version: …}\n", "18"),
    "host_compiler.path": (HEAD + "host_compiler: {name: gcc, path: …}\n", "/opt/gcc/bin/gcc"),
    "optimize": (HEAD + "optimize: […]\n", "avx2"),
    "debug.mode": (HEAD + "debug: {mode: …}\n", "dbg"),
    "debug.per_file.files": (HEAD + "debug: {per_file: [{files: …, copts: [-g]}]}\n", "x.cc"),
    "debug.per_file.copts": (HEAD + "debug: {per_file: [{files: x.cc, copts: […]}]}\n", "-g"),
    "base": (HEAD + "base: …\n", "example.org/build:1"),
    "base.image": (HEAD + "base: {image: …}\n", "example.org/build:1"),
    "base.provides": (HEAD + "base: {image: a, provides: {clang: …, python: '3.11', bazel: '6.5.0'}}\n", "17"),
    "runtime": (HEAD + "runtime: …\n", "example.org/python:1"),
    "verify.gpu_code": (HEAD + "verify: {gpu_code: …}\n", "strict"),
    "bazel.version": (HEAD + "bazel: {version: …}\n", "7.4.1"),
    "bazel.configs": (HEAD + "bazel: {configs: […]}\n", "mkl"),
    "bazel.copts": (HEAD + "bazel: {copts: […]}\n", "-O3"),
    "bazel.flags": (HEAD + "bazel: {flags: […]}\n", "--define=a"),
    "bazel.startup": (HEAD + "bazel: {startup: […]}\n", "--host_jvm_args=a"),
    "resources.jobs": (HEAD + "resources: {jobs: …}\n", "auto"),
    "resources.memory": (HEAD + "resources: {memory: …}\n", "8GiB"),
    "resources.cpus": (HEAD + "resources: {cpus: …}\n", "auto"),
    "resources.disk": (HEAD + "resources: {disk: …}\n", "8GiB"),
    "resources.time_limit": (HEAD + "resources: {time_limit: …}\n", "5h"),
    "cache.remote": (HEAD + "cache: {remote: …}\n", "https://cache.example:8443"),
    "cache.executor": (HEAD + "cache: {executor: …}\n", "grpc://executor.example:443"),
    "cache.instance": (HEAD + "cache: {executor: 'grpc://executor.example:443', instance: …}\n", "main"),
    "wheel.name": (HEAD + "wheel: {name: …}\n", "tensorflow-me"),
    "wheel.local_version": (HEAD + "wheel: {local_version: …}\n", "mine.1"),
    "wheel.platform": (HEAD + "wheel: {platform: …}\n", "manylinux_2_28"),
}
# These take any printable text (behind a dash or two for flags): all that follows is about them.
FREE = {
    "tensorflow.path", "tensorflow.patches", "host_compiler.path", "debug.per_file.files", "debug.per_file.copts",
    "bazel.copts", "bazel.flags", "bazel.startup", "allow_failing",
}  # fmt: skip

PAYLOADS = {
    "newline": "\nRUN touch /pwn",
    "carriage return": "\rRUN touch /pwn",
    "double quote": '" && touch /pwn #',
    "single quote": "' && touch /pwn #",
    "substitution": "$(touch /pwn)",
    "backticks": "`touch /pwn`",
    "variable": "$HOME${PATH}",
    "trailing backslash": "\\",
    "backslash n": "\\nRUN touch /pwn",
    "NUL": "\0",
    "line separator": "\u2028RUN touch /pwn",
    "next line": "\x85RUN touch /pwn",
    "semicolon": "; touch /pwn",
    "pipe": "| touch /pwn",
    "here document": " <<EOF",
    "comment": " # x",
    "template": "{{ build_id }}{% raw %}",
    "format": "{cuda_path}{x.__class__}",
    "brackets": '"], ["x',
    "end of flags": "--",
    "space": " --config=evil",
    "other letters": "é☃",
    "Arabic digits": "٣",
    "direction": "\u202egnp",
    "terminal": "\x1b[31m",
}


# `targets` is the field of accelerators that only users' knowledge knows.
OVERLAY = {
    "accelerators": 'rows: [{accelerator: abacus, target_pattern: "bead[0-9]", source: x}]',
    "images": (
        'rows: [{image: "a/b", releases: "2.18", accelerators: [abacus], template: sig-build, '
        "paths: {python: /p, clang: /c}, source: x}]"
    ),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """The shipped knowledge, and one accelerator more."""
    folder = tmp_path_factory.mktemp("knowledge")
    for table, text in OVERLAY.items():
        (folder / f"{table}.yaml").write_text(text, "utf-8")
    return Desk(knowledge=loader.knowledge([folder]), templates=loader.templates())


def strings(annotation: Any) -> bool:
    return annotation is str or any(strings(part) for part in get_args(annotation))


def text_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        if strings(info.annotation):
            yield f"{prefix}{name}"
        for inner in records(info.annotation):
            yield from text_fields(inner, f"{prefix}{name}.")


def test_every_text_field_of_the_profile_is_attacked_here() -> None:
    # `extends` names a file that is read, and goes no further; words of a fixed list are attacked as well.
    assert set(text_fields(Profile)) - {"extends"} <= set(FIELDS)


# --- a small parser of Dockerfiles, as the classic builder reads them ---------------------------------------------


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """(keyword, arguments) of each instruction, continuation lines joined, comments left out."""
    found: list[tuple[str, str]] = []
    pending = ""
    for line in re.split(r"\r\n|\n|\r", dockerfile):
        if line.lstrip().startswith("#") or (pending and not line.strip()):
            continue
        joined = pending + line
        if joined.rstrip().endswith("\\"):
            pending = joined.rstrip()[:-1]
            continue
        pending = ""
        if joined.strip():
            keyword, _, rest = joined.strip().partition(" ")
            found.append((keyword.upper(), rest.strip()))
    assert not pending, "the file ends in the middle of an instruction"
    return found


def test_the_parser_knows_comments_and_continued_lines() -> None:
    text = '# x \\\nARG a=b\nRUN one \\\n # in between\n\n && two\nENV x=1 \\\n y=2\n\nrun ["a", "b"]\n'
    assert instructions(text) == [("ARG", "a=b"), ("RUN", "one  && two"), ("ENV", "x=1  y=2"), ("RUN", '["a", "b"]')]


def words(arguments: str) -> list[str]:
    """What an instruction's program is called with."""
    return [str(word) for word in json.loads(arguments)] if arguments.startswith("[") else shlex.split(arguments)


# --- planning with a value ----------------------------------------------------------------------------------------


def planned(desk: Desk, field: str, value: str) -> BuildPlan | None:
    """The plan of the field's profile with that value; None if it is refused."""
    text = FIELDS[field][0].replace("…", '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"')
    try:
        profile, _ = read_profile(text, "x.yaml")
        local = LocalSource(tree="0" * 64, patches=dict.fromkeys(profile.source.patches, b"--- a\n"))
        return desk.plan(text, local=local)
    except (ProfileError, Incompatible):
        return None


def assert_harmless(field: str, benign: BuildPlan, value: str, plan: BuildPlan) -> None:
    good = FIELDS[field][1]
    ours, expected = (instructions(one.context.files["Dockerfile"].decode()) for one in (plan, benign))
    assert [keyword for keyword, _ in ours] == [keyword for keyword, _ in expected]
    for (_, arguments), (_, usual) in zip(ours, expected, strict=True):
        if arguments != usual:
            assert good in usual, "a value may only show where it belongs"
            assert any(value in word for word in words(arguments)), "and only as itself"
    lines, usual_lines = (one.context.files["tfdock/environment"].decode().split("\n") for one in (plan, benign))
    assert [line.partition("=")[0] for line in lines] == [line.partition("=")[0] for line in usual_lines]
    assert all(line.isprintable() for line in lines)
    assert all(re.fullmatch(r"[A-Za-z0-9._/-]+", path) and ".." not in path.split("/") for path in plan.context.files)
    # phase.sh tells the sections of its arguments apart by `--`.
    for phase, usual_phase in zip(plan.phases, benign.phases, strict=True):
        assert phase.command.count("--") == usual_phase.command.count("--")
        assert all(word.isprintable() for word in phase.command)


@pytest.mark.parametrize("field", FIELDS)
def test_the_benign_value_of_a_field_is_planned(desk: Desk, field: str) -> None:
    assert planned(desk, field, FIELDS[field][1])


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_value_is_refused_or_stays_what_it_is(desk: Desk, field: str) -> None:
    good = FIELDS[field][1]
    benign = planned(desk, field, good)
    assert benign
    taken = []
    for payload in PAYLOADS.values():
        for value in (good + payload, payload + good, payload):
            plan = planned(desk, field, value)
            if plan is not None:
                assert_harmless(field, benign, value, plan)
                taken.append(value)
    strange = [value for value in taken if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", value)]
    assert bool(strange) == (field in FREE), strange
    assert not any(letter in value for value in taken for letter in "\n\r\0\u2028\x85\x1b\u202e")


@pytest.mark.slow
@settings(max_examples=60)
@given(
    field=st.sampled_from(sorted(FREE)), hostile=st.text(st.sampled_from("a-=$`'\"\\;|&<>(){}[]#%! ,@:\n\0\u2028é/."))
)
def test_any_text_in_a_free_field_is_refused_or_stays_what_it_is(desk: Desk, field: str, hostile: str) -> None:
    benign = planned(desk, field, FIELDS[field][1])
    assert benign
    value = FIELDS[field][1] + hostile
    plan = planned(desk, field, value)
    if plan is not None:
        assert_harmless(field, benign, value, plan)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_hostile_host_compiler_reaches_the_toolchain_step_as_one_word(desk: Desk, payload: str) -> None:
    value = f"/opt/{payload}"
    plan = planned(desk, "host_compiler.path", value)
    if plan is None:
        assert not value.isprintable()
        return
    (step,) = [
        rest
        for _, rest in instructions(plan.context.files["Dockerfile"].decode())
        if "toolchain.sh" in rest and "[" in rest
    ]
    assert value in json.loads(step)


# --- the second wall: templates refuse what the profile should have refused ---------------------------------------


@pytest.mark.parametrize("value", ["a\nRUN x", "a\0", "a\u2028b", "a\x85b", "a\x1b[1m"], ids=ascii)
@pytest.mark.parametrize(
    "template",
    [
        "ARG X={{ bazel }}",
        "RUN x {{ bazel | shell_word }}",
        "RUN [{{ [bazel] | json_words }}]",
        "X {{ 'a' ~ bazel }}",
    ],
)
def test_a_template_cannot_print_a_control_character(desk: Desk, template: str, value: str) -> None:
    plan = planned(desk, "python", "3.11")
    assert plan
    hostile = {**desk.templates, "Dockerfile.j2": template}
    resolution = plan.resolution
    object.__setattr__(resolution, "bazel", value)
    with pytest.raises(ValueError, match="control character"):
        render(resolution, hostile)
