"""Profile text -> `Profile`, or every problem at its place with its fix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from tfdock.errors import Problem, ProfileError
from tfdock.profile import profile as profiles
from tfdock.profile.profile import Debug, HostCompiler, PerFile, Profile, TensorFlow

from ..desk import FILE, refused
from ..steps import steps

HEAD = 'schema: 1\ntensorflow: "2.18.0"\n'
SOURCE = 'schema: 1\ntensorflow: {release: "2.18.0", '
SHA256 = "a" * 64


def read(text: str, **others: str) -> Profile:
    return profiles.read(text, FILE, {f"{name}.yaml": other for name, other in others.items()})[0]


# --- every field, good --------------------------------------------------------------------------------------------

GOOD: dict[str, tuple[str, object]] = {
    "schema": (HEAD, 1),
    "tensorflow": (HEAD, "2.18.0"),
    "tensorflow.release": (SOURCE + "}", "2.18.0"),
    "tensorflow.git": (SOURCE + "git: git@github.com:me/tensorflow.git}", "git@github.com:me/tensorflow.git"),
    "tensorflow.ref": (SOURCE + "ref: feature/x-1}", "feature/x-1"),
    "tensorflow.fallback": (SOURCE + "ref: v1, fallback: [main, v2]}", ["main", "v2"]),
    "tensorflow.fallback_on": (SOURCE + "fallback: [main], fallback_on: compile}", "compile"),
    "tensorflow.archive": (SOURCE + f"archive: https://x/y.zip, sha256: {SHA256}}}", "https://x/y.zip"),
    "tensorflow.sha256": (SOURCE + f"archive: https://x/y.zip, sha256: {SHA256}}}", SHA256),
    "tensorflow.path": (SOURCE + "path: ../tensor flow}", "../tensor flow"),
    "tensorflow.patches": (SOURCE + "patches: [a.patch, b/c.patch]}", ["a.patch", "b/c.patch"]),
    "python": (HEAD + 'python: "3.10"', "3.10"),
    "accelerator": (HEAD + "accelerator: rocm", "rocm"),
    "gpus": (HEAD + "gpus: [rtx3080, NVIDIA GeForce RTX 3080 Ti]", ["rtx3080", "NVIDIA GeForce RTX 3080 Ti"]),
    "compute_capabilities": (HEAD + "compute_capabilities: [sm_86, compute_90]", ["sm_86", "compute_90"]),
    "amdgpu_targets": (HEAD + "amdgpu_targets: [gfx90a]", ["gfx90a"]),
    "targets": (HEAD + "targets: [xe2]", ["xe2"]),
    "cuda": (HEAD + 'cuda: "12.5.1"', "12.5.1"),
    "cudnn": (HEAD + 'cudnn: "8.9.7.29"', "8.9.7.29"),
    "rocm": (HEAD + 'rocm: "6.4"', "6.4"),
    "components": (HEAD + 'components: {nccl-x: "2.20"}', {"nccl-x": "2.20"}),
    "compiler": (HEAD + "compiler: nvcc", "nvcc"),
    "host_compiler": (HEAD + "host_compiler: clang", "clang"),
    "host_compiler.name": (HEAD + "host_compiler: {name: gcc}", "gcc"),
    "host_compiler.version": (HEAD + 'host_compiler: {name: gcc, version: "9"}', "9"),
    "host_compiler.path": (HEAD + "host_compiler: {name: gcc, path: /opt/my gcc}", "/opt/my gcc"),
    "xla": (HEAD + "xla: no", False),
    "wheel.platform": (HEAD + "wheel: {platform: manylinux_2_28}", "manylinux_2_28"),
    "cloud": (HEAD + "cloud: false", False),
    "optimize": (HEAD + "optimize: [avx2, sse4.2]", ["avx2", "sse4.2"]),
    "debug": (HEAD + "debug: on", True),
    "debug.mode": (HEAD + "debug: {mode: fastbuild}", "fastbuild"),
    "debug.symbols": (HEAD + "debug: {symbols: false}", False),
    "debug.per_file": (
        HEAD + "debug: {per_file: [{files: x.cc, copts: [-g1]}]}",
        [PerFile(files="x.cc", copts=["-g1"])],
    ),
    "base": (HEAD + "base: host:5000/a/b:1", "host:5000/a/b:1"),
    "base.image": (HEAD + "base: {image: host:5000/a/b:1}", "host:5000/a/b:1"),
    "base.provides": (HEAD + 'base: {image: a, provides: {gcc: "12"}}', {"gcc": "12"}),
    "runtime": (HEAD + "runtime: host:5000/a/b:1", "host:5000/a/b:1"),
    "verify.run": (HEAD + "verify: {run: false}", False),
    "verify.gpu_code": (HEAD + "verify: {gpu_code: relaxed}", "relaxed"),
    "bazel.version": (HEAD + 'bazel: {version: "7.4.1"}', "7.4.1"),
    "bazel.configs": (HEAD + "bazel: {configs: [mkl]}", ["mkl"]),
    "bazel.copts": (HEAD + "bazel: {copts: [-O3]}", ["-O3"]),
    "bazel.flags": (HEAD + "bazel: {flags: [--define=a=b c]}", ["--define=a=b c"]),
    "bazel.startup": (HEAD + "bazel: {startup: [--host_jvm_args=-Xmx2g]}", ["--host_jvm_args=-Xmx2g"]),
    "cache.remote": (HEAD + "cache: {remote: 'https://cache.example:8443/x'}", "https://cache.example:8443/x"),
    "cache.executor": (HEAD + "cache: {executor: 'grpc://10.0.0.1:8980'}", "grpc://10.0.0.1:8980"),
    "cache.instance": (HEAD + "cache: {instance: main/x}", "main/x"),
    "cache.upload": (HEAD + "cache: {upload: false}", False),
    "cache.jobs": (HEAD + "cache: {jobs: 200}", 200),
    "resources.jobs": (HEAD + "resources: {jobs: 4}", 4),
    "resources.memory": (HEAD + "resources: {memory: 24 GB}", "24 GB"),
    "resources.cpus": (HEAD + "resources: {cpus: auto}", "auto"),
    "resources.disk": (HEAD + "resources: {disk: 1.5T}", "1.5T"),
    "resources.time_limit": (HEAD + "resources: {time_limit: 5h30m}", "5h30m"),
    "wheel.name": (HEAD + "wheel: {name: tensorflow-me}", "tensorflow-me"),
    "wheel.local_version": (HEAD + "wheel: {local_version: mine.1}", "mine.1"),
    "allow_untested": (HEAD + "allow_untested: true", True),
    "allow_failing": (HEAD + "allow_failing: the base is patched", "the base is patched"),
    "edits": (HEAD + "edits: none", "none"),
}
ELSEWHERE = {
    "extends",
    "bazel",
    "cache",
    "resources",
    "verify",
    "wheel",
    "debug.per_file.files",
    "debug.per_file.copts",
}


def records(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from records(part)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every field of a profile by its dotted name."""
    for name, info in model.model_fields.items():
        yield f"{prefix}{info.alias or name}"
        for inner in records(info.annotation):
            yield from fields(inner, f"{prefix}{name}.")


def test_the_tables_here_speak_of_every_field() -> None:
    assert {*GOOD, *ELSEWHERE} == set(fields(Profile))
    spoken_of = {re.sub(r"\[\d+\]", "", row[2].split("`")[1]) for row in BAD.values()}
    assert set(fields(Profile)) - spoken_of == set()


@pytest.mark.parametrize("name", GOOD)
def test_a_good_value_is_kept_as_it_is(name: str) -> None:
    text, expected = GOOD[name]
    value: object = read(text)
    for part in name.replace("schema", "schema_").split("."):
        value = getattr(value, part)
    assert value == expected


def test_what_is_left_out_has_a_default() -> None:
    profile = read(HEAD)
    assert profile.xla
    assert profile.optimize == "portable"
    assert profile.debugging is None
    assert not profile.allow_untested
    assert profile.gpus is None
    assert (profile.resources.jobs, profile.resources.memory, profile.resources.time_limit) == ("auto", "auto", None)


def test_null_is_the_same_as_left_out() -> None:
    assert read(HEAD + "python:\ngpus: ~\ncuda: null\n") == read(HEAD)


def test_short_forms_mean_their_long_forms() -> None:
    assert read(HEAD).source == read(SOURCE + "}").source == TensorFlow(release="2.18.0")
    assert read(HEAD + "debug: true").debugging == read(HEAD + "debug: {}").debugging == Debug()
    assert read(HEAD + "host_compiler: {name: gcc}").host_compiler == HostCompiler(name="gcc")


# --- every field, bad ---------------------------------------------------------------------------------------------

BAD = {
    "tensorflow.git": (SOURCE + 'git: "-oProxyCommand=x"}\n', "2:38",
        "`tensorflow.git`: `-oProxyCommand=x` does not look like a git address without password or token "
        "(`https://github.com/tensorflow/tensorflow.git`)",
        'write it like `git: "https://github.com/me/tensorflow.git"`'),
    "tensorflow.git with a password": (SOURCE + 'git: "https://me:secret@example.com/x.git"}\n', "2:38",
        "`tensorflow.git`: `https://…@example.com/x.git` does not look like a git address without password or token "
        "(`https://github.com/tensorflow/tensorflow.git`)",
        'write it like `git: "https://github.com/me/tensorflow.git"`'),
    "a dotted capability": (HEAD + 'compute_capabilities: ["8.6"]\n', "3:24",
        "`compute_capabilities[0]`: `8.6` is not a target",
        "write `sm_86` for SASS, `compute_86` for SASS and PTX"),
    "tensorflow.archive": (SOURCE + f"archive: ftp://x/y.zip, sha256: {SHA256}}}\n", "2:42",
        "`tensorflow.archive`: `ftp://x/y.zip` does not look like a web address without a password",
        'write it like `archive: "https://example.org/tensorflow-2.18.0.tar.gz"`'),
    "tensorflow.sha256": (SOURCE + "archive: https://x/y.zip, sha256: abc}\n", "2:67",
        "`tensorflow.sha256`: `abc` does not look like 64 hexadecimal digits",
        "write the archive's sha256, as `sha256sum` prints it"),
    "sha256 without archive": (SOURCE + f"sha256: {SHA256}}}\n", "2:41",
        "`tensorflow.sha256`: `sha256` belongs to an `archive`", "remove `sha256`, or name the `archive`"),
    "schema": ('tensorflow: "2.18.0"\nschema: 2\n', "2:9", "`schema`: should be 1", "use 1"),
    "extends": (HEAD + "extends: [a.yaml]\n", "3:10", "`extends`: should be text",
        "write it like `extends: base.yaml`"),
    "tensorflow": ("schema: 1\ntensorflow: v2.18\n", "2:13",
        "`tensorflow`: `v2.18` does not look like a version (`2.18.0`)", "did you mean `2.18`?"),
    "tensorflow.release": ("schema: 1\ntensorflow: {release: latest}\n", "2:23",
        "`tensorflow.release`: `latest` does not look like a version (`2.18.0`)",
        'name a release; for a branch, also the release whose rules apply: '
        '`tensorflow: {release: "2.21", ref: master}`'),
    "tensorflow.ref": (SOURCE + "ref: a..b}\n", "2:38",
        "`tensorflow.ref`: `a..b` does not look like a git branch, tag or commit", "write it like `ref: v2.18.0`"),
    "tensorflow.fallback": (SOURCE + "fallback: [main, --x]}\n", "2:50",
        "`tensorflow.fallback[1]`: `--x` does not look like a git branch, tag or commit",
        "write it like `fallback: [master]`"),
    "archive without sha256": (SOURCE + "archive: https://x/y.zip}\n", "2:42",
        "`tensorflow.archive`: `archive` needs its `sha256`", "add `sha256: …`, as `sha256sum` prints it"),
    "two kinds": (SOURCE + "git: https://x/y.git, path: ../tensorflow}\n", "2:61",
        "`tensorflow.path`: `git` and `path` exclude one another", "keep one"),
    "ref of a path": (SOURCE + "path: ../tensorflow, ref: main}\n", "2:59",
        "`tensorflow.ref`: `ref` belongs to a git source", "remove `ref`"),
    "tensorflow.fallback_on": (SOURCE + "fallback_on: compile}\n", "2:46",
        "`tensorflow.fallback_on`: a fallback needs a `ref` to start from", "name one: `fallback: […]`"),
    "fallback of a path": (SOURCE + "path: ../tensorflow, fallback: [main]}\n", "2:64",
        "`tensorflow.fallback`: `fallback` belongs to a git source", "remove `fallback`"),
    "tensorflow.path": (SOURCE + 'path: "a\\nb"}\n', "2:39",
        "`tensorflow.path`: contains a control character or line break", 'write it like `path: "../tensorflow"`'),
    "tensorflow.patches": (SOURCE + "patches: a.patch}\n", "2:42", "`tensorflow.patches`: should be a list",
        "write a list: `[a.patch]`"),
    "python": (HEAD + 'python: "4.0"\n', "3:9", "`python`: `4.0` does not look like a Python version (`3.11`)",
        'write it like `python: "3.11"`'),
    "accelerator": (HEAD + 'accelerator: "g pu"\n', "3:14", "`accelerator`: `g pu` does not look like a plain name",
        "write it like `accelerator: cuda`"),
    "gpus": (HEAD + "gpus: rtx3080\n", "3:7", "`gpus`: should be a list", "write a list: `[rtx3080]`"),
    "gpus[]": (HEAD + 'gpus: [rtx3080, "-x"]\n', "3:17", "`gpus[1]`: `-x` does not look like a GPU's name",
        "write it like `gpus: [rtx3080]`"),
    "empty gpus": (HEAD + "gpus: []\n", "3:7", "`gpus`: the list is empty", "add at least one, or remove the line"),
    "compute_capabilities": (HEAD + "compute_capabilities: [8.6]\n", "3:24",
        "`compute_capabilities[0]` is a number, but must be text",
        "write `sm_86` for SASS, `compute_86` for SASS and PTX"),
    "amdgpu_targets": (HEAD + "amdgpu_targets: [GFX90a]\n", "3:18",
        "`amdgpu_targets[0]`: `GFX90a` does not look like a target such as `sm_86`, `compute_86` or `gfx90a`",
        "did you mean `gfx90a`?"),
    "targets": (HEAD + "targets: [gfx]\n", "3:11",
        "`targets[0]`: `gfx` does not look like a target such as `sm_86`, `compute_86` or `gfx90a`",
        "write it like `targets: [gfx90a]`"),
    "two lists of targets": (HEAD + "targets: [gfx90a]\namdgpu_targets: [gfx90a]\n", "3:10",
        "`targets`: `amdgpu_targets` and `targets` say the same thing", "keep one"),
    "cuda": (HEAD + 'cuda: "12.x"\n', "3:7", "`cuda`: `12.x` does not look like a version (`2.18.0`)",
        'write it like `cuda: "12.5.1"`'),
    "cudnn": (HEAD + "cudnn: [9]\n", "3:8", "`cudnn`: should be text", 'write it like `cudnn: "9.3.0"`'),
    "rocm": (HEAD + 'rocm: ""\n', "3:7", "`rocm`: `` does not look like a version (`2.18.0`)",
        'write it like `rocm: "6.2.0"`'),
    "components": (HEAD + "components: [a]\n", "3:13", "`components`: should be a map of `name: value` lines",
        "write `components: {name: …}`"),
    "components{}": (HEAD + 'components: {nccl: "two"}\n', "3:20",
        "`components.nccl`: `two` does not look like a version (`2.18.0`)",
        'write it like `components: {toolkit: "1.2.3"}`'),
    "components twice": (HEAD + 'cuda: "12.5.1"\ncomponents: {cuda: "12.3.1"}\n', "4:20",
        "`components.cuda`: `cuda` is in the profile already", "keep one"),
    "compiler": (HEAD + "compiler: -nvcc\n", "3:11", "`compiler`: `-nvcc` does not look like a plain name",
        "write it like `compiler: nvcc`"),
    "host_compiler": (HEAD + "host_compiler: g cc\n", "3:16",
        "`host_compiler`: `g cc` does not look like a plain name", "write it like `host_compiler: gcc`"),
    "host_compiler with its version": (HEAD + "host_compiler: g++-9\n", "3:16",
        "`host_compiler`: `g++-9` is a compiler with its version", 'write `{name: gcc, version: "9"}`'),
    "host_compiler.name": (HEAD + "host_compiler: {name: -gcc}\n", "3:23",
        "`host_compiler.name`: `-gcc` does not look like a plain name", "write it like `name: gcc`"),
    "host_compiler.version": (HEAD + "host_compiler: {name: gcc, version: new}\n", "3:37",
        "`host_compiler.version`: `new` does not look like a version (`2.18.0`)", 'write it like `version: "11"`'),
    "host_compiler.path": (HEAD + "host_compiler: {name: gcc, path: 5}\n", "3:34",
        "`host_compiler.path` is a number, but must be text", "write an absolute path (`/usr/bin/gcc-11`)"),
    "xla": (HEAD + "xla: maybe\n", "3:6", "`xla`: should be `true` or `false`", "write `true` or `false`"),
    "wheel.platform": (HEAD + "wheel: {platform: manylinux2014}\n", "3:19",
        "`wheel.platform`: `manylinux2014` does not look like a platform tag without a machine (`manylinux_2_28`)",
        "write it like `platform: manylinux_2_28`"),
    "cloud": (HEAD + "cloud: aws\n", "3:8", "`cloud`: should be `true` or `false`", "write `true` or `false`"),
    "optimize": (HEAD + "optimize: nativ\n", "3:11", "`optimize`: should be `portable` or `native`, or a list",
        "did you mean `native`?"),
    "optimize[]": (HEAD + "optimize: [avx2, -O3]\n", "3:18",
        "`optimize[1]`: `-O3` does not look like a CPU feature such as `avx2`",
        "write it like `optimize: [avx2, fma]`"),
    "empty optimize": (HEAD + "optimize: []\n", "3:11", "`optimize`: the list is empty",
        "add at least one, or remove the line"),
    "debug": (HEAD + 'debug: "yes"\n', "3:8", "`debug`: should be `true` or `false`", "write `true` or `false`"),
    "debug.mode": (HEAD + "debug: {mode: dgb}\n", "3:15", "`debug.mode`: should be `opt`, `dbg` or `fastbuild`",
        "did you mean `dbg`?"),
    "debug.symbols": (HEAD + "debug: {symbols: 1}\n", "3:18", "`debug.symbols`: should be `true` or `false`",
        "write `true` or `false`"),
    "debug.per_file": (HEAD + "debug: {per_file: {files: x, copts: [-g]}}\n", "3:19",
        "`debug.per_file`: should be a list", "write a list: `[a, b]`"),
    "debug.per_file[].files with options": (HEAD + "debug: {per_file: [{files: '.*@-wrapper,sh', copts: [-g]}]}\n",
        "3:28",
        "`debug.per_file[0].files`: `.*@-wrapper,sh` does not look like a list of labels without `@` (`//x.*`)",
        'write it like `files: "+third_party/.*,-//x.*"`'),
    "debug.per_file[].files": (HEAD + 'debug: {per_file: [{files: "a\\tb", copts: [-g]}]}\n', "3:28",
        "`debug.per_file[0].files`: contains a control character or line break",
        'write it like `files: "+third_party/.*,-//x.*"`'),
    "debug.per_file[].copts": (HEAD + "debug:\n  per_file:\n    - {files: x, copts: [g1]}\n", "5:26",
        "`debug.per_file[0].copts[0]`: `g1` does not look like a compiler flag", 'write it like `copts: ["-g"]`'),
    "debug.per_file[] incomplete": (HEAD + "debug: {per_file: [{files: x}]}\n", "3:20",
        "`debug.per_file[0].copts` is missing", "add `copts: …`"),
    "base": (HEAD + 'base: "ubuntu:22.04; id"\n', "3:7", "`base`: not an image reference: 'ubuntu:22.04; id'",
        'write it like `base: "ubuntu:22.04"`'),
    "base.image": (HEAD + "base: {provides: {}}\n", "3:7", "`base.image` is missing", "add `image: …`"),
    "base.provides": (HEAD + "base: {image: a, provides: [gcc]}\n", "3:28",
        "`base.provides`: should be a map of `name: value` lines", "write `provides: {name: …}`"),
    "base with capitals": (HEAD + "base: TensorFlow/build:2.18\n", "3:7",
        "`base`: not an image reference: 'TensorFlow/build:2.18'; only a registry may have capitals",
        'write it like `base: "ubuntu:22.04"`'),
    "bazel": (HEAD + 'bazel: "7.4.1"\n', "3:8", "`bazel`: should be a map of `name: value` lines",
        "write `bazel: {version: …}`"),
    "bazel.version": (HEAD + "bazel: {version: latest}\n", "3:18",
        "`bazel.version`: `latest` does not look like a version (`2.18.0`)", 'write it like `version: "6.5.0"`'),
    "bazel.configs": (HEAD + "bazel: {configs: [--config=x]}\n", "3:19",
        "`bazel.configs[0]`: `--config=x` does not look like a plain name", "write it like `configs: [mkl]`"),
    "bazel.copts": (HEAD + "bazel: {copts: [O3]}\n", "3:17",
        "`bazel.copts[0]`: `O3` does not look like a compiler flag", 'write it like `copts: ["-O3"]`'),
    "bazel.flags": (HEAD + "bazel: {flags: [-c]}\n", "3:17", "`bazel.flags[0]`: `-c` does not look like a Bazel flag",
        'write it like `flags: ["--subcommands"]`'),
    "bazel.startup": (HEAD + "bazel: {startup: [batch]}\n", "3:19",
        "`bazel.startup[0]`: `batch` does not look like a Bazel flag",
        'write it like `startup: ["--host_jvm_args=-Xmx4g"]`'),
    "cache.remote": (HEAD + "cache: {remote: 'http://me:secret@cache.example'}\n", "3:17",
        "`cache.remote`: the address contains a user or a password",
        "remove the part before the `@`; credentials come from TFDOCK_REMOTE_HEADER or a helper"),
    "cache.executor": (HEAD + "cache: {executor: 'http://executor.example'}\n", "3:19",
        "`cache.executor`: `http://executor.example` does not look like the address of a remote executor "
        "(`grpcs://executor.example:443`)",
        'write it like `executor: "grpcs://executor.example:443"`'),
    "cache.instance": (HEAD + "cache: {instance: -x}\n", "3:19",
        "`cache.instance`: `-x` does not look like an instance name (`main`)", "write it like `instance: main`"),
    "cache.upload": (HEAD + "cache: {upload: sometimes}\n", "3:17", "`cache.upload`: should be `true` or `false`",
        "write `true` or `false`"),
    "cache.jobs": (HEAD + "cache: {jobs: 0}\n", "3:15", "`cache.jobs`: should be greater than or equal to 1",
        "write it like `jobs: 200`"),
    "cache": (HEAD + "cache: on\n", "3:8", "`cache`: should be a map of `name: value` lines",
        "write `cache: {remote: …}`"),
    "resources.jobs": (HEAD + "resources: {jobs: 0}\n", "3:19",
        "`resources.jobs`: should be greater than or equal to 1", "write it like `jobs: 8`"),
    "resources.jobs octal": (HEAD + "resources: {jobs: 010}\n", "3:19", "`resources.jobs`: should be a whole number",
        "write it like `jobs: 8`"),
    "resources.memory": (HEAD + "resources: {memory: lots}\n", "3:21",
        "`resources.memory`: `lots` does not look like an amount of memory (`24GiB`)",
        'write it like `memory: "24GiB"`'),
    "resources.cpus": (HEAD + "resources: {cpus: 1.5}\n", "3:19", "`resources.cpus`: should be a whole number",
        "write it like `cpus: 8`"),
    "resources.disk": (HEAD + "resources: {disk: 60 gigs}\n", "3:19",
        "`resources.disk`: `60 gigs` does not look like an amount of memory (`24GiB`)",
        'write it like `disk: "120GiB"`'),
    "no time": (HEAD + "resources: {time_limit: 0h}\n", "3:25",
        "`resources.time_limit`: `0h` does not look like a duration (`5h30m`)",
        'write it like `time_limit: "5h30m"`'),
    "resources.time_limit": (HEAD + 'resources: {time_limit: ""}\n', "3:25",
        "`resources.time_limit`: `` does not look like a duration (`5h30m`)", 'write it like `time_limit: "5h30m"`'),
    "resources": (HEAD + "resources: 4\n", "3:12", "`resources`: should be a map of `name: value` lines",
        "write `resources: {jobs: …}`"),
    "runtime": (HEAD + 'runtime: "-v"\n', "3:10", "`runtime`: not an image reference: '-v'",
        'write it like `runtime: "python:3.11-slim-bookworm"`'),
    "verify": (HEAD + "verify: no\n", "3:9", "`verify`: should be a map of `name: value` lines",
        "write `verify: {run: …}`"),
    "verify.run": (HEAD + "verify: {run: maybe}\n", "3:15", "`verify.run`: should be `true` or `false`",
        "write `true` or `false`"),
    "verify.gpu_code": (HEAD + "verify: {gpu_code: stric}\n", "3:20",
        "`verify.gpu_code`: should be `strict` or `relaxed`", "did you mean `strict`?"),
    "wheel": (HEAD + "wheel: mine\n", "3:8", "`wheel`: should be a map of `name: value` lines",
        "write `wheel: {name: …}`"),
    "wheel.name": (HEAD + "wheel: {name: my wheel}\n", "3:15",
        "`wheel.name`: `my wheel` does not look like a plain name", "write it like `name: my-tensorflow`"),
    "wheel.local_version": (HEAD + "wheel: {local_version: cuda-12}\n", "3:24",
        "`wheel.local_version`: `cuda-12` does not look like a local version (`cuda12.5.sm86`)",
        "write it like `local_version: cuda12.5.sm86`"),
    "allow_untested": (HEAD + "allow_untested: all\n", "3:17", "`allow_untested`: should be `true` or `false`",
        "write `true` or `false`"),
    "allow_failing": (HEAD + "allow_failing: ok\n", "3:16",
        "`allow_failing`: `ok` does not look like a reason as text",
        'write it like `allow_failing: "the base image has a patched CUB"`'),
    "edits": (HEAD + "edits: nothing\n", "3:8", "`edits`: should be `none` or `all`", "use `none` or `all`"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "place", "message", "fix"), BAD.values(), ids=BAD)
def test_a_bad_value_is_refused_at_its_place_with_a_fix(text: str, place: str, message: str, fix: str) -> None:
    (problem,) = refused(text)
    assert problem.where == f"{FILE}:{place}"
    assert (problem.message, problem.fix) == (message, fix)
    assert problem.code == ("profile-missing-key" if "missing" in message else "profile-bad-value")


@pytest.mark.parametrize("record", profiles.Record.__subclasses__(), ids=lambda record: record.__name__)
def test_what_is_shown_to_be_written_is_taken(record: type[BaseModel]) -> None:
    for name, info in record.model_fields.items():
        for example in info.examples or ():
            taken = TypeAdapter(info.rebuild_annotation()).validate_python(example, strict=True)
            assert taken == example, name


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "field", "fix"),
    [
        (HEAD + "pyhton: '3.11'", "3:1", "pyhton", "did you mean `python`?"),
        (HEAD + "Python: '3.11'", "3:1", "Python", "did you mean `python`?"),
        (HEAD + "compute-capabilities: [sm_86]", "3:1", "compute-capabilities",
         "did you mean `compute_capabilities`?"),
        (HEAD + "resources: {job: 4}", "3:13", "resources.job", "did you mean `jobs`?"),
        (HEAD + "resources: {jobs: 2,\n  Memory: 2G}", "4:3", "resources.Memory", "did you mean `memory`?"),
        (SOURCE + "commit: main}", "2:33", "tensorflow.commit",
         "known here: release, git, ref, fallback, fallback_on, archive, sha256, path, patches"),
        (HEAD + "debug: {perfile: []}", "3:9", "debug.perfile", "did you mean `per_file`?"),
        (HEAD + "debug: {per_file: [{files: x, copts: [-g], copt: [-g]}]}", "3:44", "debug.per_file[0].copt",
         "did you mean `copts`?"),
        (HEAD + "wheel: {str: x}", "3:9", "wheel.str", "known here: name, local_version, platform"),
        (HEAD + "wheel: {no: x}", "3:9", "wheel.no", "known here: name, local_version, platform"),
        (HEAD + "host_compiler: {name: gcc, HostCompiler: x}", "3:28", "host_compiler.HostCompiler",
         "known here: name, version, path"),
    ],
    ids=lambda value: value if re.fullmatch(r"[\w.\[\]-]+", value) else "",
)  # fmt: skip
def test_an_unknown_key_is_refused_with_the_likely_spelling(text: str, place: str, field: str, fix: str) -> None:
    (problem,) = refused(text)
    assert (problem.code, problem.where, problem.field) == ("profile-unknown-key", f"{FILE}:{place}", field)
    assert (problem.message, problem.fix) == (f"unknown key `{field}`", fix)


@pytest.mark.parametrize("name", list(fields(Profile)))
def test_a_slip_of_the_finger_in_any_key_is_understood(name: str) -> None:
    *path, key = name.split(".")
    wrong = f"{key[:2]}{key[3:]}" if len(key) > 4 else f"{key}x"
    value = f"{wrong}: 1"
    for part in reversed(path):
        value = f"{part}: [{{{value}, files: x, copts: [-g]}}]" if part == "per_file" else f"{part}: {{{value}}}"
    head = "schema: 1\n" if name.startswith("tensorflow.") else HEAD
    problem = next(problem for problem in refused(f"{head}{value}\n") if problem.code == "profile-unknown-key")
    assert problem.fix == f"did you mean `{key}`?"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("a: 1", ["`schema` is missing", "`tensorflow` is missing"],
         ["add `schema: 1`", 'add `tensorflow: "2.18.0"`']),
        ("schema: 1\ntensorflow: {ref: main}", ["`tensorflow.release` is missing"], ['add `release: "2.18.0"`']),
        (HEAD + "host_compiler: {path: x}", ["`host_compiler.name` is missing"], ["add `name: …`"]),
    ],
)  # fmt: skip
def test_a_missing_key_is_named_with_an_example(text: str, message: list[str], fix: list[str]) -> None:
    missing = [problem for problem in refused(text) if problem.code == "profile-missing-key"]
    assert [problem.message for problem in missing] == message
    assert [problem.fix for problem in missing] == fix


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [("- a", "list", "1:1"), ("x", "text", "1:1"), ("\n 3", "number", "2:2"), ("---\n", "null", "2:1")],
)
def test_a_document_that_is_no_map_is_refused(text: str, kind: str, place: str) -> None:
    (problem,) = refused(text)
    assert (problem.code, problem.where) == ("profile-not-a-map", f"{FILE}:{place}")
    assert problem.message == f"a profile is a map of `name: value` lines, this is a {kind}"


def test_all_problems_are_reported_at_once_from_top_to_bottom() -> None:
    text = """\
schema: 1
tensorflow: 2.20
pyhton: "3.11"
gpus: rtx3080
bazel:
  flags: [--jobs=3, -c, --bazelrc=x]
  version: 7.10
xla: maybe
wheel: {local_version: A, name: "a b"}
"""
    assert [(problem.line, problem.field, problem.code) for problem in refused(text)] == [
        (2, "tensorflow", "version-not-text"),
        (3, "pyhton", "profile-unknown-key"),
        (4, "gpus", "profile-bad-value"),
        (6, "bazel.flags[0]", "profile-bad-value"),
        (6, "bazel.flags[1]", "profile-bad-value"),
        (6, "bazel.flags[2]", "profile-bad-value"),
        (7, "bazel.version", "version-not-text"),
        (8, "xla", "profile-bad-value"),
        (9, "wheel.local_version", "profile-bad-value"),
        (9, "wheel.name", "profile-bad-value"),
    ]


@pytest.mark.slow
def test_of_thousands_of_mistakes_the_first_hundred_are_told_and_the_work_grows_as_the_text_does() -> None:
    def text(count: int) -> str:
        return HEAD + "".join(f"k{number}: 1\n" for number in range(count))

    *told, last = refused(text(2_000))
    assert [problem.field for problem in told] == [f"k{number}" for number in range(100)]
    assert (last.code, last.message) == ("more-problems", "only the first 100 problems are listed")
    assert steps(lambda: problems_of(text(2_000))) < 2.2 * steps(lambda: problems_of(text(1_000)))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gpus: [{}]", "`gpus` has 300 entries; at most 256 are allowed"),
        ("amdgpu_targets: [{}]", "`amdgpu_targets` has 300 entries; at most 256 are allowed"),
        (
            "debug: {{per_file: [{{files: x, copts: [{}]}}]}}",
            "`debug.per_file[0].copts` has 300 entries; at most 256 are",
        ),
        ("components: {{{}}}", "`components` has 300 entries; at most 256 are allowed"),
    ],
)
def test_a_list_that_is_longer_than_anybody_needs_is_refused(line: str, told: str) -> None:
    pair = "c{0}: '1'" if "components" in line else "-x{0}"
    (problem,) = refused(HEAD + line.format(", ".join(pair.format(number) for number in range(300))))
    assert problem.message.startswith(told)


# --- versions written as numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "message", "fix"),
    [
        ("schema: 1\ntensorflow: 2.20\n", "2:13", "`tensorflow` is a number (the number 2.2)", 'tensorflow: "2.20"'),
        ("schema: 1\ntensorflow: {release: 2.10}\n", "2:23", "`tensorflow.release` is a number (the number 2.1)",
         'release: "2.10"'),
        (HEAD + "python: 3.10\n", "3:9", "`python` is a number (the number 3.1)", 'python: "3.10"'),
        (HEAD + "python: 3.11\n", "3:9", "`python` is a number", 'python: "3.11"'),
        (HEAD + "cuda: 12.5\n", "3:7", "`cuda` is a number", 'cuda: "12.5"'),
        (HEAD + "cudnn: 9\n", "3:8", "`cudnn` is a number", 'cudnn: "9"'),
        (HEAD + "rocm: 6.10\n", "3:7", "`rocm` is a number (the number 6.1)", 'rocm: "6.10"'),
        (HEAD + "components: {nccl: 2.20}\n", "3:20", "`components.nccl` is a number (the number 2.2)",
         'nccl: "2.20"'),
        (HEAD + "bazel: {version: 7.10}\n", "3:18", "`bazel.version` is a number (the number 7.1)",
         'version: "7.10"'),
        (HEAD + "host_compiler: {name: gcc, version: 9}\n", "3:37", "`host_compiler.version` is a number",
         'version: "9"'),
    ],
    ids=lambda value: value.split(":")[0] if '"' in value and "schema" not in value else "",
)  # fmt: skip
def test_a_version_written_as_a_number_is_shown_how_to_write_it(
    text: str, place: str, message: str, fix: str
) -> None:
    (problem,) = refused(text)
    assert (problem.code, problem.where) == ("version-not-text", f"{FILE}:{place}")
    assert problem.message == f"{message}, but versions are text"
    assert problem.fix == f"write it in quotes: `{fix}`"
    # And the fix, put where the message points, is one.
    lines = text.splitlines()
    line, column = (int(part) for part in place.split(":"))
    key = fix.partition(": ")[0]
    start = lines[line - 1].rindex(key, 0, column)
    end = re.compile(r"[\d.]+").match(lines[line - 1], column - 1)
    assert end
    lines[line - 1] = f"{lines[line - 1][:start]}{fix}{lines[line - 1][end.end() :]}"
    read("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("gpus: [3080]", "`gpus[0]` is a number, but must be text", '"3080"'),
        ("optimize: [4.20]", "`optimize[0]` is a number (the number 4.2), but must be text", '"4.20"'),
        ("base: 22.10", "`base` is a number (the number 22.1), but must be text", 'base: "22.10"'),
        ("wheel: {name: 2020-01-01}", "`wheel.name` is a date, but must be text", 'name: "2020-01-01"'),
    ],
)
def test_other_text_written_as_a_number_is_not_called_a_version(text: str, message: str, fix: str) -> None:
    (problem,) = refused(HEAD + text)
    assert problem.code == "profile-bad-value"
    assert (problem.message, problem.fix) == (message, f"write it in quotes: `{fix}`")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("targets: [90]", "write a target such as `sm_86`, `compute_86` or `gfx90a`"),
        ("compute_capabilities: [8.6]", "write `sm_86` for SASS, `compute_86` for SASS and PTX"),
        ("resources: {memory: 24}", "write an amount of memory (`24GiB`)"),
        ("resources: {time_limit: 5}", "write a duration (`5h30m`)"),
        ("wheel: {local_version: 12:30}", "write a local version (`cuda12.5.sm86`)"),
    ],
)
def test_a_number_that_quotes_do_not_mend_gets_what_does(text: str, fix: str) -> None:
    assert [problem.fix for problem in refused(HEAD + text)] == [fix]


@pytest.mark.parametrize("text", ["resources: {jobs: 4, cpus: 8}", "debug: {symbols: on}", "xla: yes"])
def test_numbers_and_booleans_are_welcome_where_they_belong(text: str) -> None:
    read(HEAD + text)


# --- flags that are not the user's --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "flag"),
    [
        ("flags", "--disk_cache=/x"), ("flags", "--disk_cache="), ("flags", "--jobs=400"),
        ("flags", "--local_ram_resources=1"), ("flags", "--script_path=/tmp/x"),
        ("flags", "--build_event_json_file=/x"), ("flags", "--symlink_prefix=x-"), ("startup", "--bazelrc=/etc/x"),
        ("startup", "--output_base=/x"), ("startup", "--output_user_root=/x"), ("startup", "--install_base=/x"),
        ("startup", "--nobazelrc"), ("flags", "--experimental_local_disk_cache"),
        ("flags", "--no_experimental_local_disk_cache"), ("flags", "--experimental_local_disk_cache_path=/x"),
        ("flags", "--remote_http_cache=http://127.0.0.1:1"), ("flags", "--remote_rest_cache=http://127.0.0.1:1"),
        ("flags", "--experimental_repository_cache=/x"), ("flags", "--experimental_build_event_json_file=/x"),
        ("startup", "--blazerc=/etc/x"), ("startup", "--master_bazelrc"), ("startup", "--nomaster_blazerc"),
    ],
)  # fmt: skip
def test_flags_that_tfdock_sets_itself_are_refused_wherever_they_stand(option: str, flag: str) -> None:
    (problem,) = refused(HEAD + f"bazel:\n  {option}: [--keep_going, {flag}]")
    name = flag.split("=")[0]
    assert (problem.field, problem.line) == (f"bazel.{option}[1]", 4)
    assert problem.message.startswith(f"`bazel.{option}[1]`: `{name}` is tfdock's own: ")
    assert problem.fix.startswith("remove it; ")


# --- extends ------------------------------------------------------------------------------------------------------

BASE = HEAD + 'python: "3.11"\ngpus: [rtx3080]\nbazel: {configs: [a, b], copts: [-O2]}\nresources: {jobs: 2}\n'


def test_a_profile_has_what_it_extends() -> None:
    assert read("extends: base.yaml\n", base=BASE) == read(BASE).model_copy(update={"extends": "base.yaml"})


def test_maps_merge_and_everything_else_is_replaced() -> None:
    profile = read('extends: base.yaml\npython: "3.12"\nbazel: {configs: [c]}\nresources: {cpus: 4}\n', base=BASE)
    assert profile.python == "3.12"
    assert (profile.bazel.configs, profile.bazel.copts) == (["c"], ["-O2"])
    assert (profile.resources.jobs, profile.resources.cpus) == (2, 4)


def test_a_map_replaces_a_text_and_a_text_a_map() -> None:
    long = "extends: base.yaml\ntensorflow: {release: '2.19.0', ref: main}\n"
    assert read(long, base=BASE).source.ref == "main"
    assert read("extends: base.yaml\ntensorflow: '2.20.0'\n", base=SOURCE + "ref: main}\n").tensorflow == "2.20.0"


@pytest.mark.parametrize("targets", ["compute_capabilities: [sm_90]", "amdgpu_targets: [gfx90a]", "targets: [xe2]"])
def test_one_list_of_targets_replaces_another(targets: str) -> None:
    profile = read(f"extends: base.yaml\n{targets}\n", base=BASE)
    assert profile.gpus is None
    assert getattr(profile, targets.partition(":")[0])


def test_profiles_extend_one_another_in_a_chain() -> None:
    middle = "extends: base.yaml\npython: '3.12'\ngpus: [a100]\n"
    profile = read("extends: middle.yaml\ngpus: [h100]\n", middle=middle, base=BASE)
    assert (profile.python, profile.gpus, profile.resources.jobs) == ("3.12", ["h100"], 2)


def test_a_problem_points_into_the_file_it_stands_in() -> None:
    text = "extends: base.yaml\n\nxla: maybe\nwhat: 1\n"
    base = HEAD + "\n\npython: 3.10\nbazel: {copts: [O3],\n  what: 2}\n"
    assert {(problem.field, problem.where) for problem in refused(text, {"base.yaml": base})} == {
        ("xla", f"{FILE}:3:6"),
        ("what", f"{FILE}:4:1"),
        ("python", "base.yaml:5:9"),
        ("bazel.copts[0]", "base.yaml:6:17"),
        ("bazel.what", "base.yaml:7:3"),
    }


def test_the_extended_file_itself_must_be_yaml() -> None:
    (problem,) = refused("extends: base.yaml\n", {"base.yaml": "a: 1\na: 2\n"})
    assert problem.where == "base.yaml:2:1"


@pytest.mark.parametrize(
    ("others", "place"),
    [
        ({"a.yaml": "extends: a.yaml"}, "a.yaml:1:10"),
        ({"a.yaml": "extends: b.yaml", "b.yaml": "x: 1\nextends: a.yaml"}, "b.yaml:2:10"),
    ],
    ids=["itself", "in a circle"],
)
def test_a_circle_of_profiles_is_refused_where_it_closes(others: dict[str, str], place: str) -> None:
    (problem,) = refused("extends: a.yaml", others)
    assert (problem.code, problem.where, problem.field) == ("profile-extends-cycle", place, "extends")
    assert problem.fix


def chain(length: int) -> dict[str, str]:
    return {f"{number}.yaml": f"extends: {number + 1}.yaml" for number in range(length - 1)} | {
        f"{length - 1}.yaml": HEAD
    }


def test_a_chain_may_be_long_and_not_endless() -> None:
    # One more than of files: options of a command extend the last of them.
    profiles.read("extends: 0.yaml", FILE, chain(profiles.MAX_EXTENDS + 1))
    (problem,) = refused("extends: 0.yaml", chain(profiles.MAX_EXTENDS + 2))
    assert problem.code == "profile-extends-cycle"
    assert problem.message.endswith(f"more than {profiles.MAX_EXTENDS} profiles deep")


def test_a_profile_that_is_not_there_is_named_at_its_place() -> None:
    (problem,) = refused(HEAD + "extends: nowhere.yaml")
    assert (problem.code, problem.where) == ("profile-not-found", f"{FILE}:3:10")


@pytest.mark.parametrize(
    ("text", "name"), [("extends: a.yaml", "a.yaml"), (HEAD, None), ("extends: [a]", None), ("- extends", None)]
)
def test_the_extended_file_is_named_before_the_profile_is_read(text: str, name: str | None) -> None:
    node = profiles.extended_by(text, FILE)
    assert (node.raw if node else None) == name


# --- anything at all ----------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-10**6, 10**6), st.floats(), st.text(max_size=8),
    st.sampled_from(["3.11", "auto", "local", "sm_86", "--x", "-g", "2.18.0", "native"]),
)  # fmt: skip
KEYS = st.sampled_from(sorted({name.rpartition(".")[2] for name in fields(Profile)})) | st.text(max_size=4)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


def yaml_of(value: object) -> str:
    """Flow style, every letter of a text escaped; floats as YAML writes them are plain text, which will do."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"? {yaml_of(key)} : {yaml_of(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(yaml_of, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
    return "~" if value is None else str(value)


def problems_of(text: str) -> tuple[Problem, ...]:
    """None for a profile that is read; any other exception rises."""
    try:
        profiles.read(text, FILE, {})
    except ProfileError as error:
        return error.problems
    return ()


@pytest.mark.slow
@settings(max_examples=150)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_document_is_read_or_refused_at_a_place_and_never_crashes(document: dict[str, object]) -> None:
    text = yaml_of({"schema": 1, "tensorflow": "2.18.0", **document})
    for problem in problems_of(text):
        assert (problem.file, problem.line) == (FILE, 1)
        assert problem.column
        assert f"{problem.message}{problem.fix}".isprintable()
