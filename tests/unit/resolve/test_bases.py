"""What base images are known to hold, and which images are known not to exist."""

from __future__ import annotations

import pytest

from tfdock.errors import Incompatible
from tfdock.knowledge.fits import distribution_of, missing_tag

from ..desk import Desk

OLD = 'schema: 1\ntensorflow: {release: "1.15.5"MORE}\npython: "3.6"\naccelerator: cpu\nbase: "BASE"\n'
NEW = 'schema: 1\ntensorflow: "2.12.0"\naccelerator: cpu\nbase: "BASE"\n'
CUDA = 'schema: 1\ntensorflow: "2.9.3"\npython: "3.8"\ngpus: [gtx1080]\ncompiler: nvcc\nallow_untested: true\n'
NVIDIA = "nvidia/cuda:"


def on(text: str, base: str, more: str = "") -> str:
    return text.replace("BASE", base).replace("MORE", more)


def codes(desk: Desk, text: str) -> set[tuple[str, str | None]]:
    """Code and field of what is refused, and of the untested that is allowed; the base's Python left out."""
    try:
        resolution = desk.resolve(text)
        found = (*resolution.untested, *resolution.warnings)
    except Incompatible as error:
        found = error.problems
    return {(problem.code, problem.field) for problem in found if problem.code.startswith(("known-to-fail", "host-"))}


BROKEN = {("known-to-fail", "base")}
TOO_NEW = {("host-compiler-too-new", "base")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(on(OLD, "ubuntu:20.04"), BROKEN, id="gRPC and glibc 2.30"),
        pytest.param(on(OLD, "mirror.example:5000/library/ubuntu:focal-20230530"), BROKEN, id="a mirror"),
        pytest.param(on(OLD, "me/tf:cuda-ubuntu20.04-gcc7"), BROKEN, id="its C library alone"),
        pytest.param(on(OLD, "me/build:1"), set(), id="nobody knows"),
        pytest.param(on(OLD, "ubuntu:18.04"), set(), id="older"),
        pytest.param(on(OLD, "me/x:focal-focal", ", ref: a") + "allow_untested: true\n", BROKEN, id="changed"),
        pytest.param(on(NEW, "ubuntu:18.04"), BROKEN, id="gcc 7"),
        pytest.param(on(NEW, "ubuntu:18.04") + "host_compiler: {name: gcc, path: /g}\n", set(), id="another gcc"),
        pytest.param(on(NEW, "debian:13"), BROKEN, id="gcc 13"),
        pytest.param(on(NEW, "debian:13") + 'bazel: {copts: ["-includecstdint"]}\n', set(), id="an option"),
        pytest.param(on(NEW, "alpine:3.20"), BROKEN, id="musl"),
        pytest.param(CUDA + 'cuda: "10.2"\ncudnn: "7.6"\nbase: nvidia/cuda:x-ubuntu20.04\n', TOO_NEW, id="nvcc"),
        pytest.param(CUDA.replace("2.9.3", "2.10.1") + 'cuda: "10.2"\nbase: me/x:1\n',
                     {("known-to-fail", "cuda")}, id="nvcc without C++17"),
    ],
)  # fmt: skip
def test_a_base_that_is_known_to_break_the_build_is_refused(
    desk: Desk, text: str, expected: set[tuple[str, str]]
) -> None:
    assert codes(desk, text) == expected


def test_what_fits_instead_is_told(desk: Desk) -> None:
    (problem,) = [problem for problem in desk.problems(on(OLD, "ubuntu:20.04")) if problem.code == "known-to-fail"]
    assert problem.message == (
        "`base` ubuntu:20.04 has glibc 2.31, and TensorFlow 1.15 is known to fail with glibc 2.30 or newer"
    )
    assert "Ubuntu 18.04" in (problem.fix or "")


@pytest.mark.parametrize(
    ("image", "exists"),
    [
        (f"{NVIDIA}8.0.61-cudnn6-devel-ubuntu22.04", False), (f"{NVIDIA}11.2.1-cudnn8-devel-ubuntu20.04", False),
        (f"docker.io/{NVIDIA}11.5.2-devel-ubuntu22.04", False), (f"{NVIDIA}12.5.1-cudnn9-devel-ubuntu22.04", False),
        (f"{NVIDIA}11.2.2-cudnn8-devel-ubuntu20.04", True), (f"{NVIDIA}12.3.2-cudnn9-devel-ubuntu22.04", True),
        (f"{NVIDIA}11.8.0-devel-ubuntu22.04@sha256:{'0' * 64}", True), ("ubuntu:18.04", True), ("ubuntu", True),
    ],
)  # fmt: skip
def test_images_are_known_not_to_exist_by_their_tag(desk: Desk, image: str, exists: bool) -> None:
    assert (missing_tag(desk.knowledge, image) is None) is exists


@pytest.mark.parametrize("cuda", ["8.0", "9.0", "10.2", "11.5.1", "11.6", "11.7"])
@pytest.mark.parametrize("release", ["2.4", "2.8", "2.9", "2.12", "2.13", "2.15", "2.17"])
def test_no_plan_names_an_image_that_does_not_exist(desk: Desk, release: str, cuda: str) -> None:
    text = CUDA.replace('"2.9.3"\npython: "3.8"', f'"{release}"') + f'cuda: "{cuda}"\nhost_compiler: gcc\n'
    try:
        base = str(desk.resolve(text).base)
    except Incompatible:
        return
    assert missing_tag(desk.knowledge, base) is None


def test_a_base_of_ones_own_brings_what_no_row_has_and_its_python(desk: Desk) -> None:
    own = desk.resolve(CUDA + 'cuda: "10.1"\ncudnn: "7.5"\nbase: me/cuda:10\n')
    assert (str(own.base), own.paths["cuda"], own.archives) == ("me/cuda:10", "/usr/local/cuda", ())
    assert desk.resolve(on(NEW, "ubuntu:22.04")).python == "3.10"
    assert distribution_of(desk.knowledge, "python:3.11-bookworm")[0] is desk.knowledge.distributions["Debian 12"]


def test_a_library_that_nobody_names_follows_the_toolkit_that_is_asked_for(desk: Desk) -> None:
    for release, cuda in (("1.14.0", "10.1"), ("1.15.0", "10.2"), ("2.0.0", "10.1")):
        found = desk.resolve(f'schema: 1\ntensorflow: "{release}"\ncuda: "{cuda}"\n')
        assert found.components["cudnn"] == "7.6", (release, cuda)


def test_where_only_an_image_is_missing_one_of_ones_own_is_taken(desk: Desk) -> None:
    asked = 'schema: 1\ntensorflow: "2.3.1"\npython: "3.9"\naccelerator: cpu\nallow_untested: true\n'
    assert any("base: …" in fix for problem in desk.problems(asked) for fix in problem.fixes)
    assert str(desk.resolve(asked + "base: me/x:1\n").base) == "me/x:1"


PLAIN = """schema: 1
tensorflow: "2.16.1"
python: "3.11"
host_compiler: gcc
{more}
base: {base}
"""


@pytest.mark.parametrize(
    ("base", "more", "message"),
    [
        ("debian:12", 'cuda: "12.3"\ncompiler: nvcc', "plain Debian 12 without CUDA"),
        ("docker.io/library/ubuntu:jammy", 'cuda: "12.3"\ncompiler: nvcc', "plain Ubuntu 22.04 without CUDA"),
        (
            "nvidia/cuda:12.3.2-base-ubuntu22.04",
            'cuda: "12.3"\ncompiler: nvcc',
            "has only the libraries of CUDA, not its compiler",
        ),
        (
            "nvidia/cuda:12.3.2-cudnn9-runtime-ubuntu22.04",
            'cuda: "12.3"\ncompiler: nvcc',
            "has only the libraries of",
        ),
        ("debian:12-slim", 'cuda: "12.3"\ncompiler: nvcc', "plain Debian 12 without CUDA"),
        ("ubuntu", 'cuda: "12.3"\ncompiler: nvcc', "plain Ubuntu without CUDA"),
        ("fedora:40", 'cuda: "12.3"\ncompiler: nvcc', "tfdock installs a build's tools with apt"),
        ("fedora:30", "accelerator: cpu", "tfdock installs a build's tools with apt"),
        ("archlinux", "accelerator: cpu", "tfdock installs a build's tools with apt"),
    ],
)
def test_what_a_plain_distribution_lacks_is_told(desk: Desk, base: str, more: str, message: str) -> None:
    assert [message in problem.message for problem in desk.problems(PLAIN.format(base=base, more=more))] == [True]


@pytest.mark.parametrize(
    ("base", "more"),
    [
        ("nvidia/cuda:12.3.2-devel-ubuntu22.04", 'cuda: "12.3"\ncompiler: nvcc'),
        ("ubuntu:22.04-mycuda", 'cuda: "12.3"\ncompiler: nvcc'),
        ("registry.lan/ubuntu:22.04", 'cuda: "12.3"\ncompiler: nvcc'),
        ("me/ubuntu:22.04", 'cuda: "12.3"\ncompiler: nvcc'),
        ("debian:12", "accelerator: cpu"),
    ],
)
def test_a_base_that_may_have_all_is_taken_and_its_own_compiler_too(desk: Desk, base: str, more: str) -> None:
    assert desk.resolve(PLAIN.format(base=base, more=more)).warnings == ()


OWN = 'schema: 1\ntensorflow: "2.11.0"\naccelerator: cpu\nbase: {image: me/tools:1, provides: {TOOLS}}\n'
ALL = 'python: "3.9", gcc: "9.3", bazel: "5.3.0"'


def test_in_a_base_that_provides_all_nothing_is_installed(desk: Desk) -> None:
    own = desk.resolve(OWN.replace("TOOLS", ALL))
    image = own.image
    assert (str(own.base), own.python, own.bazel, image.template) == ("me/tools:1", "3.9", "5.3.0", "own")
    assert own.paths == {"python": "/usr/bin/python3.9", "gcc": "/usr/bin/gcc"}
    assert (image.packages, image.pip, own.archives, own.interpreter) == ((), (), (), None)
    dockerfile = desk.render(OWN.replace("TOOLS", ALL)).files["Dockerfile"].decode()
    assert "apt-get" not in dockerfile
    assert '"gcc=9.3=/usr/bin/gcc -dumpversion"' in dockerfile


@pytest.mark.parametrize(
    ("tools", "more", "message"),
    [
        ('gcc: "9.3"', "", "`provides` names no bazel and no python, and tfdock installs nothing in me/tools:1"),
        (ALL, 'python: "3.8"\n', "`base` me/tools:1 has Python 3.9, not 3.8"),
        (ALL, 'bazel: {version: "5.3.1"}\n', "me/tools:1 provides bazel 5.3.0, not 5.3.1"),
        (ALL.replace("9.3", "7.5"), "",
         "`base` me/tools:1 has gcc 7.5, and TensorFlow 2.11 is known to fail with gcc up to 7"),
    ],
)  # fmt: skip
def test_what_a_base_lacks_that_provides_all_is_named(desk: Desk, tools: str, more: str, message: str) -> None:
    with pytest.raises(Incompatible) as refused:
        desk.resolve(OWN.replace("TOOLS", tools) + more)
    assert message in [problem.message for problem in refused.value.problems]


GCC_8 = """schema: 1
tensorflow: "1.15.0"
python: "3.7"
accelerator: cpu
host_compiler: {name: gcc, version: "8.2"}
allow_untested: true
"""


def test_a_compiler_of_the_distributions_archive_is_installed(desk: Desk) -> None:
    made = desk.resolve(GCC_8)
    assert str(made.base) == "ubuntu:18.04"
    assert (made.paths["gcc"], "g++-8" in made.image.packages) == ("/usr/bin/gcc-8", True)
    assert b"g++-8" in desk.render(GCC_8).files["Dockerfile"]
    own = desk.resolve(GCC_8.replace('"3.7"', '"3.6"') + "base: ubuntu:18.04\n")
    assert (own.paths["gcc"], "g++-8" in own.image.packages) == ("/usr/bin/gcc-8", True)


def test_an_image_whose_versions_are_known_comes_before_one_that_moves(desk: Desk) -> None:
    made = desk.resolve('schema: 1\ntensorflow: "2.15.0"\ngpus: [mi250x]\nrocm: "6.1"\n')
    assert (str(made.base), made.untested) == ("rocm/tensorflow:rocm6.1-py3.10-tf2.15-dev", ())


def test_a_compiler_of_the_tested_major_version_is_not_doubted(desk: Desk) -> None:
    asked = 'accelerator: cpu\nhost_compiler: {name: gcc, version: "9.4"}\n'
    made = desk.resolve(f'schema: 1\ntensorflow: "2.13.1"\npython: "3.8"\n{asked}')
    assert (made.paths["gcc"], made.untested) == ("/usr/bin/gcc-9", ())


@pytest.mark.parametrize(
    ("release", "python", "version", "without", "with_it"),
    [
        pytest.param("2.7.1", "3.7", "9", "ubuntu:18.04", "ubuntu:20.04", id="of another distribution"),
        pytest.param("1.8.0", "2.7", "6.4.0", "ubuntu:16.04", "ubuntu:18.04", id="of a row for such compilers"),
    ],
)
def test_an_image_with_the_compiler_that_is_asked_for_comes_first(
    desk: Desk, release: str, python: str, version: str, without: str, with_it: str
) -> None:
    text = f'schema: 1\ntensorflow: "{release}"\npython: "{python}"\naccelerator: cpu\n'
    assert str(desk.resolve(text).base) == without
    made = desk.resolve(text + f'host_compiler: {{name: gcc, version: "{version}"}}\n')
    assert (str(made.base), made.paths["gcc"]) == (with_it, f"/usr/bin/gcc-{version[0]}")


@pytest.mark.parametrize(
    "more", ["", 'base: {image: "me/x:1", provides: {python: "3.7", gcc: "9.3", bazel: "0.26.1"}}\n']
)
def test_one_that_no_archive_is_known_to_have_is_refused(desk: Desk, more: str) -> None:
    (problem,) = desk.problems(GCC_8.replace("8.2", "9.1") + more) if not more else desk.problems(GCC_8 + more)
    assert problem.code == "image-without-tool"


def test_a_base_image_without_the_releases_compiler_is_offered_the_compiler_that_it_has(desk: Desk) -> None:
    (problem,) = desk.problems('schema: 1\ntensorflow: "2.14.0"\naccelerator: cpu\nbase: ubuntu:20.04\n')
    assert (problem.code, problem.field) == ("image-without-tool", "base")
    assert problem.ways[0].change == {"host_compiler": "gcc"}
    assert problem.message == "your base image has no clang 16"
    assert problem.why.endswith("; Ubuntu 20.04 packages clang 10")


def test_a_compiler_that_only_has_to_be_installed_is_told_without_versions(desk: Desk) -> None:
    (problem,) = desk.problems('schema: 1\ntensorflow: "2.20.0"\naccelerator: cpu\nbase: ubuntu:24.04\n')
    assert (problem.code, problem.message) == ("image-without-tool", "your base image has no clang")
    assert "packages" not in problem.why


@pytest.mark.parametrize(
    ("release", "python", "numpy"),
    [("2.8.0", "3.10", "numpy==1.21.4"), ("2.6.0", "3.8", "numpy==1.19.5"), ("2.9.0", "3.8", "numpy==1.21.4")],
)
def test_in_a_base_without_the_python_it_is_compiled_and_has_the_numpy_of_this_python(
    desk: Desk, release: str, python: str, numpy: str
) -> None:
    text = f'schema: 1\ntensorflow: "{release}"\npython: "{python}"\naccelerator: cpu\nbase: ubuntu:18.04\n'
    image = desk.resolve(text).image
    assert image.interpreter
    assert numpy in image.pip


def test_a_base_with_a_package_for_the_compiler_does_not_lack_it(desk: Desk) -> None:
    gcc = 'host_compiler: {name: gcc, version: "8.3"}\nbase: ubuntu:20.04\n'
    assert desk.resolve(f'schema: 1\ntensorflow: "2.3.0"\npython: "3.7"\naccelerator: cpu\n{gcc}').warnings == ()


def test_a_fork_with_a_newer_python_gets_the_path_and_packages_of_this_python(desk: Desk) -> None:
    source = '{release: "1.15.5", git: "https://github.com/NVIDIA/tensorflow", ref: r1.15.5+nv23.03}'
    base = "nvidia/cuda:11.7.1-cudnn8-devel-ubuntu20.04"
    image = desk.resolve(
        f'schema: 1\ntensorflow: {source}\npython: "3.8"\ncuda: "11.7"\ngpus: [a100]\nbase: {base}\n'
    ).image
    assert image.paths["python"] == "/usr/bin/python3"
    assert "numpy==1.17.4" in image.pip
    assert not [name for name in image.packages if name.startswith(("g++-4", "python-"))]
