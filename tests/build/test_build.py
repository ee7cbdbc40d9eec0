"""Builds that end well: the record, the wheel and its GPU code, again without work, and every kind of source."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tfdock.host.settings import load
from tfdock.types import ImageRef, Mount
from tfdock.wheel import wheel as wheels

from .conftest import SECRET, Finished, Workshop
from .harness import (
    CPU,
    MINIATURE,
    PLAYED_BUILD,
    REPOSITORY,
    UNTRIED,
    Json,
    Tfdock,
    after_first_line,
    contents,
    copy_tree,
    file_server,
    git,
    git_server,
    pip_install,
    published,
    record_of,
    write_profile,
)

pytestmark = [pytest.mark.engine, pytest.mark.limit(300), pytest.mark.usefixtures("finished")]

LIBRARY = "tensorflow/libtensorflow_cc.so.2"
#: sha256 of the wheel of profiles/demo.yaml, by the compiler of the test bed's image, which Debian may replace.
DEMO_WHEELS = {"GCC: (Debian 12.2.0-14+deb12u1)": "7f1e77d45cb5610b6031da5c9f790df389f0602366bc7125c54eecdd1d3a0b94"}
USE = """
import json
import tensorflow as tf
product = tf.matmul([[1, 2], [3, 4]], [[5, 6], [7, 8]]).tolist()
print(json.dumps({"version": tf.__version__, "info": tf.sysconfig.get_build_info(), "product": product}))
"""


def wheel_of(build: Json) -> Path:
    (wheel,) = build["wheels"]
    return Path(wheel["path"])


def used(wheel: Path, folder: Path) -> Json:
    """What a program says that imports the wheel, which pip has installed into a folder."""
    pip_install(folder, "--no-index", wheel)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    said = subprocess.run([sys.executable, "-c", USE], env=environment, check=True, capture_output=True, text=True)
    answer: Json = json.loads(said.stdout)
    return answer


def gpu_code(workshop: Workshop, wheel: Path) -> Json:
    """The machine code (`elf`) and PTX of the library in a wheel, as the toolkit's own cuobjdump lists them."""
    folder = workshop.folder / "listed" / wheel.name
    folder.mkdir(parents=True)
    (folder / "library.so").write_bytes(contents(wheel)[LIBRARY])
    base = load({}, os.environ).mirrored(ImageRef.parse("tensorflow/build:99.18-python3.11"))
    script = "cd /listed; for kind in elf ptx; do cuobjdump --list-$kind library.so || true; done"
    mounts = (Mount(source=str(folder), target="/listed", read_only=True),)
    listed = workshop.said(str(base), "sh", "-c", script, mounts=mounts)
    found = re.findall(r"^(ELF|PTX) file .*\.(sm_\w+)\.\w+$", listed, re.MULTILINE)
    return {kind.lower(): {code for name, code in found if name == kind} for kind in ("ELF", "PTX")}


# --- one build ----------------------------------------------------------------------------------------------------


def test_the_result_of_a_build_names_its_wheel_its_record_its_log_and_what_each_phase_took(
    finished: Finished,
) -> None:
    build = finished.outcome.build
    assert finished.outcome.document["schema"] == "tfdock.build/1"
    assert finished.outcome.document["ok"] is True
    assert build["status"] == "built"
    assert build["problems"] == []
    assert set(build["seconds"]) == {"image", "fetch", "compile", "seal", "verify"}
    assert (build["cache"]["hits"], build["cache"]["executed"]) == (0, 18)
    assert build["attempts"] == 1
    (wheel,) = build["wheels"]
    content = Path(wheel["path"]).read_bytes()
    path = str(finished.tfdock.wheelhouse / finished.tfdock.visible[0])
    assert wheel == {
        "path": path,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "install": shlex.join(["pip", "install", path]),
    }
    assert finished.tfdock.visible == published(build)
    log = Path(build["log"]).read_text()
    positions = [log.index(f"=== tfdock: {phase} of {build['build_id']}") for phase in ("image", "fetch", "compile")]
    assert positions == sorted(positions)
    assert "Build completed successfully, 25 total actions" in log


def test_the_record_tells_where_the_wheel_came_from_but_no_secret_and_no_path_of_this_machine(
    finished: Finished,
) -> None:
    build = finished.outcome.build
    record = record_of(build)
    assert record["schema"] == "tfdock.record/1"
    assert record["build_id"] == record["plan"]["build_id"] == build["build_id"]
    (wheel,) = build["wheels"]
    assert record["wheels"] == [{"file": finished.wheel.name, "sha256": wheel["sha256"], "size": wheel["size"]}]
    assert re.fullmatch(r"[0-9a-f]{16}", record["toolchain_key"])
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", record["base_digest"])
    assert record["seconds"] == build["seconds"]
    assert record["bazel"] == build["cache"]
    assert record["engine"]["version"]
    assert record["plan"]["choices"]
    text = Path(build["record"]).read_text()
    for private in (SECRET, "GITHUB_TOKEN", str(finished.tfdock.cache.parent), str(REPOSITORY)):
        assert private not in text
    assert SECRET not in Path(build["log"]).read_text()


def test_the_wheel_is_sound_installs_imports_and_multiplies(finished: Finished, tmp_path: Path) -> None:
    wheel = finished.wheel
    with wheel.open("rb") as file:
        facts = wheels.read_wheel(file, wheel.name)
    assert facts.record_ok, facts.record_problems
    name = r"tensorflow_miniature-99\.18\.0\+cuda13\.0\.sm86\.src[0-9a-f]{8}-cp311-cp311-linux_x86_64\.whl"
    assert re.fullmatch(name, wheel.name)
    answer = used(wheel, tmp_path / "target")
    assert answer["product"] == [[19.0, 22.0], [43.0, 50.0]]
    assert answer["version"] == "99.18.0"
    assert answer["info"]["is_cuda_build"] is True
    assert answer["info"]["cuda_compute_capabilities"] == ["sm_86"]


def test_a_wheel_for_sm_86_carries_machine_code_for_sm_86_and_nothing_else(
    finished: Finished, workshop: Workshop
) -> None:
    assert gpu_code(workshop, finished.wheel) == {"elf": {"sm_86"}, "ptx": set()}


def test_a_second_build_is_up_to_date_and_prints_the_wheel_without_a_container_or_an_engine(
    finished: Finished, workshop: Workshop
) -> None:
    moment = time.time()
    again = finished.tfdock.run("build", finished.profile, code=0)
    assert again.stdout == f"{finished.wheel}\n"
    assert "up-to-date" in again.stderr
    assert [name for name in workshop.created_since(moment) if finished.outcome.build["build_id"] in name] == []
    nowhere = Tfdock(home=finished.tfdock.home, cache=finished.tfdock.cache).build(finished.profile, code=0)
    assert nowhere.build["status"] == "up-to-date"
    assert nowhere.build["wheels"] == finished.outcome.build["wheels"]


def test_the_demo_is_the_wheel_that_was_recorded(workshop: Workshop) -> None:
    demo = workshop.tfdock().build("--allow-path", MINIATURE, REPOSITORY / "profiles/demo.yaml", code=0)
    compilers = re.findall(rb"GCC: \([^)]*\)", contents(wheel_of(demo.build))[LIBRARY])
    (wheel,) = demo.build["wheels"]
    expected = DEMO_WHEELS.get(compilers[0].decode())
    assert wheel["sha256"] == expected, f"of {compilers[0].decode()}; another compiler makes another wheel"


def test_a_wheel_that_was_damaged_is_told_before_anything_is_built_and_one_that_went_is_built_again(
    own: Finished,
) -> None:
    wheel, alone = own.wheel, replace(own.tfdock, engine=Tfdock.engine)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-1] + b"?")
    outcome = alone.build(own.profile)
    assert (outcome.code, [one["code"] for one in outcome.build["problems"]]) == (4, ["wheel-changed"])
    wheel.unlink()
    # No engine: what counts is that it wants to build.
    assert alone.build(own.profile).code == 6
    wheel.write_bytes(whole)
    assert alone.build(own.profile).code == 0


def in_image_of(workshop: Workshop, build: Json, *command: str) -> tuple[int, str]:
    """The exit code and the output of a command in the image of a build, without a network."""
    (image,) = workshop.sdk.images(f"tfdock/{build['build_id'].lower()}", quiet=True)
    container = workshop.sdk.create_container(image, command, network_disabled=True)
    try:
        workshop.sdk.start(container)
        code: int = workshop.sdk.wait(container)["StatusCode"]
        output: bytes = workshop.sdk.logs(container)
    finally:
        workshop.sdk.remove_container(container, force=True)
    return code, output.decode()


def files_of_nobody(workshop: Workshop, build: Json) -> list[str]:
    """What user 65534 has in the image of a build, but for the source."""
    code, found = in_image_of(workshop, build, "find", "/", "-xdev", "-user", "65534", "-not", "-path", "/tf/*")
    assert code == 0
    return found.split()


def bazel_at_the_age_of(workshop: Workshop, build: Json, *, years: int) -> tuple[int, str]:
    """Start the unpacked Bazel of a build's image so many years after the build: its files' dates are set back."""
    script = f"""
    find -L /opt/tfdock/bazel/unpacked -type f |
      while read -r file; do touch -d "@$(($(stat -L -c %Y "$file") - {years} * 31556952))" "$file"; done
    bazel --batch --install_base=/opt/tfdock/bazel/unpacked version
    """
    return in_image_of(workshop, build, "bash", "-c", script)


# --- several builds -----------------------------------------------------------------------------------------------


def test_two_profiles_in_one_call_are_two_wheels_with_what_each_asked_for(
    own: Finished, tfdock: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    tfdock = replace(tfdock, cache=own.tfdock.cache)
    both = ["sm_80", "compute_86"]
    # As releases up to 2.0 do: Bazel unpacks itself, and starts.
    starts_bazel = {"configure": after_first_line("bazel --batch --bazelrc=/dev/null version")}
    old = copy_tree(workshop.tree("legacy"), tmp_path / "legacy", starts_bazel)
    profiles = [
        write_profile(tmp_path / "hermetic.yaml", workshop.tree(), compute_capabilities=both),
        write_profile(
            tmp_path / "legacy.yaml",
            tensorflow={"release": "99.15.0", "path": str(old)},
            compute_capabilities=both,
        ),
    ]
    outcome = tfdock.build(*profiles, code=0)
    hermetic, legacy = outcome.builds
    assert [build["profile"] for build in outcome.builds] == [str(path) for path in profiles]
    assert sorted(name for build in outcome.builds for name in published(build)) == tfdock.visible
    # Only the kernels for the other GPUs and what is made of them: two libraries, TensorFlow's account of its build,
    # the wheel.
    bazel = record_of(hermetic)["bazel"]
    assert (bazel["hits"], bazel["executed"]) == (11, 7)
    assert bazel["executed_by_mnemonic"] == {"CudaCompile": 3, "CppLink": 2, "Genrule": 1, "TfWheel": 1}

    expected = {"elf": {"sm_80", "sm_86"}, "ptx": {"sm_86"}}
    for build in (hermetic, legacy):
        assert gpu_code(workshop, wheel_of(build)) == expected
        answer = used(wheel_of(build), tmp_path / build["build_id"])
        assert answer["product"] == [[19.0, 22.0], [43.0, 50.0]]
        assert answer["info"]["cuda_compute_capabilities"] == both
    assert record_of(legacy)["plan"]["package"][0] == "run"
    assert "Build label: 0.26.1" in Path(legacy["log"]).read_text()
    assert files_of_nobody(workshop, legacy) == []
    code, said = bazel_at_the_age_of(workshop, legacy, years=50)
    assert (code, "Build label: 0.26.1" in said) == (0, True), said
    code, said = bazel_at_the_age_of(workshop, legacy, years=70)
    assert code != 0, "Bazel's own check, which the dates of the image's files keep quiet"
    assert "corrupt installation" in said


def test_a_debug_build_has_symbols(finished: Finished, tfdock: Tfdock, workshop: Workshop, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "debug.yaml", workshop.tree(), **CPU, debug=True)
    outcome = tfdock.build(profile, code=0)
    assert "-cpu-dbg-" in outcome.build["build_id"]
    answer = used(wheel_of(outcome.build), tmp_path / "debug")
    assert answer["info"]["is_cuda_build"] is False
    assert b".debug_info" in contents(wheel_of(outcome.build))["tensorflow/libtensorflow_framework.so.2"]
    assert b".debug_info" not in contents(finished.wheel)["tensorflow/libtensorflow_framework.so.2"]

    refused = tfdock.run("shell", "--trust", "--gpu", profile, "true")
    assert refused.code == 6
    assert "the wheel is for the CPU" in refused.stderr, refused.told


def test_with_symbols_for_one_kernel_only_that_is_compiled_and_gdb_stops_in_it_as_the_docs_say(own: Finished) -> None:
    how_to = (REPOSITORY / "docs/builds.md").read_text().partition("## From a crash to a breakpoint")[2]
    fields, script = (
        re.sub("^   ", "", text, flags=re.MULTILINE)
        for text in re.findall(r"```(?:yaml|bash)\n(.*?)```", how_to, re.DOTALL)
    )
    profile = own.profile.with_name("crash.yaml")
    profile.write_text(fields.replace("mine.yaml", own.profile.name))
    outcome = own.tfdock.build(profile, code=0)
    assert outcome.build["cache"]["executed_by_mnemonic"]["CppCompile"] == 1

    # Nothing of the miniature's is in an index of packages.
    words = f"sha256sum /tf/wheel/*.whl; export PIP_NO_INDEX=1 PIP_NO_DEPS=1\n{script}"
    shell = own.tfdock.run("shell", "--trust", "--debug", profile, "bash", "-c", words, code=0)
    assert outcome.build["wheels"][0]["sha256"] in shell.stdout
    assert "13\t  if (a.cols != b.rows) {" in shell.stdout, shell.told
    assert "a = @" in shell.stdout, shell.told
    assert "{rows = 2, cols = 2, values = std::vector of length 4, capacity 4 = {1, 2, 3, 4}}" in shell.stdout


# --- sources ------------------------------------------------------------------------------------------------------


@pytest.fixture
def archive(workshop: Workshop, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URL and sha256 of the miniature as an archive."""
    folder = tmp_path / "served"
    folder.mkdir()
    with tarfile.open(folder / "source.tar.gz", "w:gz") as tar:
        tar.add(workshop.tree(), "tensorflow-99.18.0")
    with file_server(folder) as url:
        content = (folder / "source.tar.gz").read_bytes()
        yield f"{url}/source.tar.gz", hashlib.sha256(content).hexdigest()


def test_an_archive_with_a_patch_is_built_as_such(
    tfdock: Tfdock, workshop: Workshop, archive: tuple[str, str], tmp_path: Path
) -> None:
    url, sha256 = archive
    module = "tensorflow/python/nn.py"
    old = (workshop.tree() / module).read_text().splitlines(keepends=True)
    patch = difflib.unified_diff(old, ["patched = True\n", *old], f"a/{module}", f"b/{module}")
    (tmp_path / "x.patch").write_text("".join(patch))
    source = {"release": "99.18.0", "archive": url, "sha256": sha256, "patches": ["x.patch"]}
    outcome = tfdock.build(write_profile(tmp_path / "archive.yaml", tensorflow=source, verify=UNTRIED), code=0)
    assert outcome.build["cache"]["executed"] == 1, "only the wheel is packed anew"
    assert contents(wheel_of(outcome.build))[module].startswith(b"patched = True\n")
    assert record_of(outcome.build)["source"]["found"] == sha256
    assert re.search(r"-p[0-9a-f]{8}-x86_64$", outcome.build["build_id"])


def test_an_archive_that_is_not_the_one_that_was_pinned_is_refused(
    tfdock: Tfdock, archive: tuple[str, str], tmp_path: Path
) -> None:
    url, _ = archive
    source = {"release": "99.18.0", "archive": url, "sha256": "0" * 64}
    outcome = tfdock.build(write_profile(tmp_path / "archive.yaml", tensorflow=source), code=3, problem="pin-moved")
    assert "phase image" in outcome.problem["message"]
    assert tfdock.visible == []


def test_a_ref_that_cannot_be_fetched_or_configured_gives_way_to_the_next_and_force_fetches_that_anew(
    tfdock: Tfdock, workshop: Workshop, tmp_path: Path
) -> None:
    repositories = tmp_path / "repositories"
    played = workshop.tree("played")
    tree = copy_tree(played, repositories / "tensorflow", {"configure": after_first_line("exit 5")})

    def commit(file: str, content: bytes) -> str:
        (tree / file).write_bytes(content)
        git(tree, "add", "--all")
        git(tree, "commit", "--message", file)
        return git(tree, "rev-parse", "HEAD")

    git(tree, "init", "--initial-branch=main")
    commit("README", b"configure fails")
    git(tree, "tag", "v99.18.0")
    found = commit("configure", (played / "configure").read_bytes())

    with git_server(repositories) as url:
        source = {"release": "99.18.0", "git": f"{url}/tensorflow", "ref": "gone", "fallback": ["v99.18.0", "main"]}
        profile = write_profile(tmp_path / "git.yaml", None, tensorflow=source, verify=UNTRIED, **PLAYED_BUILD)
        outcome = tfdock.build(profile, code=0)
        assert "source gone does not work" in outcome.stderr
        assert "source v99.18.0 does not work" in outcome.stderr
        assert outcome.build["attempts"] == 3
        assert record_of(outcome.build)["source"] == {"ref": "main", "found": found}

        found = commit("README", b"the branch has moved")
        assert tfdock.build(profile).build["status"] == "up-to-date"
        outcome = tfdock.build("--force", profile, code=0)
        assert record_of(outcome.build)["source"] == {"ref": "main", "found": found}


def test_a_base_without_packages_that_provides_all_builds(tfdock: Tfdock, workshop: Workshop) -> None:
    steps = ("rm -rf /usr/bin/dpkg* /var/lib/dpkg", "ln -s /bin/true /usr/bin/clang")
    tools = {"python": "3.11", "clang": "17", "bazel": "4.2.3"}
    with workshop.base_image("without-packages", "99.18-played", *steps) as image:
        fields = {**PLAYED_BUILD, "base": {"image": image, "provides": tools}, "verify": UNTRIED}
        outcome = tfdock.build(write_profile(tfdock.home / "own.yaml", workshop.tree("played"), **fields))
    assert outcome.code == 0, outcome.stderr
    toolchain = record_of(outcome.build)["toolchain"]
    assert (toolchain["bazel"], toolchain["packages"]) == ("4.2.3", 0)
