"""A profile names only what belongs to its project: payloads by field, links, races, and what settings allow."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from typer.testing import Result
from waits import over_and_over

from tfdock.builder import locking
from tfdock.builder.run_document import profile_document
from tfdock.errors import Incompatible, Problem, ProfileError
from tfdock.host.project_files import MOST_PATCH, Project, lock_text
from tfdock.host.settings import Settings
from tfdock.knowledge import loader
from tfdock.matrix import planned_matrix
from tfdock.plan.local_source import context_archive, tree_hash
from tfdock.plan.prepare import Preparer
from tfdock.plan.render import BuildContext
from tfdock.types import Machine

from .. import command_line
from ..desk import problem_of

PATCH = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
BASE = 'schema: 1\ntensorflow: "2.18.0"\npython: "3.11"\naccelerator: cpu\n'
CANARY = "CANARY-4711"
GIB = 1 << 30
MACHINE = Machine(cpus=8, memory=32 * GIB)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and beside it a home folder with secrets, a checkout, a patch and a profile."""
    home = tmp_path / "home"
    for name in (".ssh/id_rsa", ".docker/config.json", ".kube.yaml"):
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{CANARY}: secret\n")
    (home / "fix.patch").write_bytes(PATCH)
    (home / "base.yaml").write_text(f"{BASE}{CANARY}: x\n")
    (home / "tensorflow").mkdir()
    (home / "tensorflow/configure").write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("TFDOCK_ALLOW_PATHS", raising=False)
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    (root / ".git/config").write_text("[core]\n")
    (root / ".git/base.yaml").write_text(BASE)
    (root / ".git/x.patch").write_bytes(PATCH)
    (root / "profiles").mkdir()
    (root / "patches").mkdir()
    (root / "patches/fix.patch").write_bytes(PATCH)
    (root / "base.yaml").write_text(BASE)
    (root / "tensorflow").mkdir()
    (root / "tensorflow/configure").write_text("")
    return root


QUOTED, RELEASE = 'tensorflow: "2.18.0"', 'tensorflow: {release: "2.18.0"'


def profile_with(name: str, value: str) -> str:
    if name == "extends":
        return f'schema: 1\nextends: "{value}"\n'
    named = f'["{value}"]' if name == "patches" else f'"{value}"'
    return BASE.replace(QUOTED, f"{RELEASE}, {name}: {named}}}")


def read(file: Path, *allowed: Path) -> object:
    return Preparer(Settings(allow_paths=allowed), MACHINE).read(str(file))


def refused(file: Path, *allowed: Path) -> Problem:
    with pytest.raises(ProfileError) as caught:
        read(file, *allowed)
    (problem,) = caught.value.problems
    assert CANARY not in str(caught.value)
    return problem


def put(project: Path, name: str, value: str, at: str = "profiles/x.yaml") -> Path:
    (project / at).write_text(profile_with(name, value))
    return project / at


def outside(file: Path, *allowed: Path) -> Problem:
    """It is refused as it leads out of its project."""
    problem = refused(file, *allowed)
    assert problem.code == "path-outside"
    return problem


IN_HOME = {"extends": "base.yaml", "patches": "fix.patch", "path": "tensorflow"}


#: Ways out of a project: links that it has, and what the profile names then.
OUTSIDE: dict[str, tuple[dict[str, str], str]] = {
    "absolute": ({}, "{home}/{name}"),
    "upwards": ({}, "../../home/{name}"),
    "through a link": ({"innocent": "{home}/{name}"}, "../innocent"),
    "through a relative link": ({"profiles/innocent": "../../home/{name}"}, "innocent"),
    "through a linked folder": ({"folder": "{home}"}, "../folder/{name}"),
    "through a chain of links": ({"one": "two", "two": "three/home", "three": ".."}, "../one/{name}"),
    "through a process": ({}, "/proc/self/root{home}/{name}"),
}


def way_out(project: Path, way: str, name: str) -> str:
    """Make the links of a way to a file in the home folder; return what the profile names."""
    links, value = OUTSIDE[way]
    home = project.parent / "home"
    for link, target in links.items():
        (project / link).symlink_to(target.format(home=home, name=name))
    return value.format(home=home, name=name)


@pytest.mark.parametrize("way", OUTSIDE)
@pytest.mark.parametrize("name", IN_HOME)
def test_what_lies_outside_the_repository_is_refused_with_its_place_and_the_flag(
    project: Path, name: str, way: str
) -> None:
    file = put(project, name, way_out(project, way, IN_HOME[name]))
    problem = outside(file)
    assert (problem.file, problem.line) == (str(file), 2)
    assert problem.column
    assert f"{project.parent}/home/{IN_HOME[name]}" in problem.message
    assert "--allow-path" in problem.fix
    assert "allow_paths" in problem.fix
    if name != "extends":
        read(file, project.parent / "home")


@pytest.mark.parametrize("name", IN_HOME)
def test_a_path_outside_is_refused_whether_it_is_there_or_not(project: Path, name: str) -> None:
    there, gone = (
        outside(put(project, name, way_out(project, "upwards", file))) for file in (IN_HOME[name], "nothing")
    )
    assert gone.message.replace("nothing", IN_HOME[name]) == there.message


@pytest.mark.parametrize("target", ["../home/.ssh/id_rsa", "../home/nothing", "/proc/self/environ", "/proc/nothing"])
def test_a_lock_that_leads_outside_is_refused_whether_its_target_is_there_or_not(project: Path, target: str) -> None:
    (project / "x.lock").symlink_to(target)
    with pytest.raises(ProfileError, match=r"\[path-outside\]"):
        locking.read_lock(project / "x.lock")


def test_a_lock_that_is_not_there_is_missing(project: Path) -> None:
    (project / "link.lock").symlink_to("x.lock")
    for name in ("x.lock", "link.lock"):
        with pytest.raises(Incompatible, match=r"\[lock-missing\]"):
            locking.read_lock(project / name)


@pytest.mark.parametrize("target", ["home/fix.patch", "home/nothing"])
def test_a_configure_that_leads_outside_is_none_whether_its_target_is_there_or_not(
    project: Path, target: str
) -> None:
    (project / "tensorflow/configure").unlink()
    (project / "tensorflow/configure").symlink_to(project.parent / target)
    assert refused(put(project, "path", "../tensorflow")).code == "source-missing"


@pytest.mark.parametrize("allowed", [(), (Path("/"),)])
@pytest.mark.parametrize("path", [".", "..", "../home"])
def test_a_checkout_that_holds_the_home_folder_is_refused(
    project: Path, path: str, allowed: tuple[Path, ...]
) -> None:
    home = project.parent / "home"
    for folder in (home, home.parent):
        (folder / "configure").write_text("")
    problem = outside(put(home, "path", path, "x.yaml"), *allowed)
    assert path != "." or "contains your home folder" in problem.message
    read(put(home, "path", "tensorflow", "x.yaml"), *allowed)


def test_a_single_file_may_be_allowed(project: Path) -> None:
    read(put(project, "patches", "../../home/fix.patch"), project.parent / "home/fix.patch")
    assert refused(put(project, "patches", ".."), project).code == "file-not-plain"


def test_a_folder_that_is_allowed_opens_no_other_and_no_sibling_with_its_name_in_front(project: Path) -> None:
    for allowed in ("home/tensorflow", "hom"):
        outside(put(project, "patches", "../../home/fix.patch"), project.parent / allowed)


@pytest.mark.parametrize(
    "target", ["/proc/self/environ", "/proc/self/mem", "/dev/zero", "/dev/null", "/sys/kernel/notes"]
)
@pytest.mark.parametrize("name", IN_HOME)
@pytest.mark.parametrize("linked", [False, True])
def test_files_of_the_kernel_are_never_read_whatever_settings_allow(
    project: Path, name: str, target: str, linked: bool
) -> None:
    if linked:
        (project / "link").symlink_to(target)
    assert "kernel" in outside(put(project, name, "../link" if linked else target), Path("/")).message


@pytest.mark.parametrize(
    ("name", "value"), [("extends", "../.git/base.yaml"), ("patches", "../.git/x.patch"), ("path", "../.git")]
)
def test_gits_own_folder_is_not_read(project: Path, name: str, value: str) -> None:
    (project / ".git/configure").write_text("")
    outside(put(project, name, value))


def a_socket(path: Path) -> None:
    # By a short way: a socket's address ends at 107 characters.
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def a_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4096 * GIB)  # more than any machine reads


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def a_huge_text(path: Path) -> None:
    path.write_text(f"{CANARY}: x\n" * 1_000_000)


ODD: dict[Callable[[Path], None], str] = {
    os.mkfifo: "file-not-plain", a_socket: "file-not-plain", Path.mkdir: "file-not-plain", a_loop: "file-not-plain",
    a_sparse_file: "file-too-large", a_huge_text: "file-too-large",
}  # fmt: skip


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("name", ["extends", "patches"])
def test_only_a_plain_file_of_some_megabytes_is_read(project: Path, name: str, make: Callable[[Path], None]) -> None:
    make(project / "profiles/odd")
    if name == "patches" and make is a_huge_text:
        (project / "profiles/odd").write_bytes(PATCH + b"x" * MOST_PATCH)
    problem = refused(put(project, name, "odd"))
    assert (problem.code, problem.line) == (ODD[make], 2)


@pytest.mark.parametrize(
    "content",
    [b"", b"root:x:0:0:root:/root:/bin/bash\n", b"-----BEGIN OPENSSH PRIVATE KEY-----\n", b"--- a\n+++ b\n"],
)
def test_what_is_no_patch_is_not_sent_along(project: Path, content: bytes) -> None:
    (project / "profiles/x.patch").write_bytes(content)
    assert refused(put(project, "patches", "x.patch")).code == "patch-malformed"


@pytest.mark.parametrize(
    "content",
    [
        PATCH,
        PATCH.replace(b"\n", b"\r\n"),
        b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n",
        b"From 0123 Mon Sep 17 00:00:00 2001\nFrom: Me <x@example.org>\nSubject: [PATCH] x\n\n---\n x | 2 +-\n\n"
        b"diff --git a/x b/x\n" + PATCH,
    ],
)
def test_what_git_takes_for_a_patch_is_one(project: Path, content: bytes) -> None:
    (project / "profiles/x.patch").write_bytes(content)
    read(put(project, "patches", "x.patch"))


# --- what belongs to a project --------------------------------------------------------------------------------------


def test_files_of_the_repository_may_be_named_from_any_folder_of_it_and_through_links_within(project: Path) -> None:
    (project / "profiles/link.patch").symlink_to("../patches/fix.patch")
    inside = {
        "patches": ["../patches/fix.patch", "link.patch"],
        "path": ["../tensorflow"],
        "extends": ["../base.yaml"],
    }
    for name, values in inside.items():
        for value in values:
            read(put(project, name, value))


IN_PATCHES = "../patches/fix.patch"


def test_without_a_repository_the_profiles_own_folder_is_the_project(project: Path) -> None:
    (project / ".git").rename(project / "git")
    outside(put(project, "patches", IN_PATCHES))
    (project / "profiles/deeper").mkdir()
    (project / "profiles/deeper/fix.patch").write_bytes(PATCH)
    read(put(project, "patches", "deeper/fix.patch"))


def test_a_worktree_whose_git_is_a_file_is_a_repository_and_the_nearest_one_counts(project: Path) -> None:
    (project / ".git").rename(project.parent / "git")
    (project / ".git").write_text(f"gitdir: {project.parent}/git\n")
    read(put(project, "patches", IN_PATCHES))
    (project / "profiles/.git").write_text("")
    outside(put(project, "patches", IN_PATCHES))


def test_a_repository_of_the_whole_home_folder_gives_no_profile_its_secrets_unless_they_are_allowed(
    project: Path,
) -> None:
    home = project.parent / "home"
    (home / ".git").mkdir()
    (home / "profiles").mkdir()
    (home / ".ssh/fix.patch").write_bytes(PATCH)
    outside(put(home, "patches", "../fix.patch"))
    outside(put(home, "patches", ".ssh/fix.patch", "x.yaml"))
    read(home / "x.yaml", home / ".ssh")
    outside(put(home, "extends", ".kube.yaml", "x.yaml"))
    read(put(home, "patches", "fix.patch", "x.yaml"))


def test_a_repository_that_another_user_put_into_a_shared_folder_does_not_count(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    shared = project.parent
    shared.chmod(0o1777)
    (shared / ".git").mkdir()
    (project / ".git").rename(project / "git")
    outside(put(project, "patches", IN_PATCHES))
    shared.chmod(0o755)
    read(put(project, "patches", IN_PATCHES))


def test_a_profile_that_is_a_link_out_of_its_repository_is_refused(project: Path) -> None:
    (project / "profiles/x.yaml").symlink_to(project.parent / "home/.kube.yaml")
    outside(project / "profiles/x.yaml")
    (project / "link.yaml").symlink_to("base.yaml")
    read(project / "link.yaml")


def test_each_profile_of_a_chain_names_the_next_relative_to_itself_and_none_leaves(project: Path) -> None:
    (project / "a/b").mkdir(parents=True)
    (project / "profiles/x.yaml").write_text("schema: 1\nextends: ../a/one.yaml\n")
    (project / "a/one.yaml").write_text("schema: 1\nextends: b/two.yaml\n")
    (project / "a/b/two.yaml").write_text("schema: 1\nextends: ../../base.yaml\n")
    read(project / "profiles/x.yaml")
    (project / "a/b/two.yaml").write_text("schema: 1\n\nextends: ../../innocent.yaml\n")
    (project / "innocent.yaml").symlink_to(project.parent / "home/base.yaml")
    problem = outside(project / "profiles/x.yaml")
    assert (problem.file, problem.line) == (str(project / "profiles/../a/b/two.yaml"), 3)


def test_a_chain_without_end_is_left_after_some_profiles(project: Path) -> None:
    for number in range(100):
        (project / f"profiles/{number}.yaml").write_text(f"schema: 1\nextends: {number + 1}.yaml\n")
    assert refused(project / "profiles/0.yaml").code == "profile-extends-cycle"


def test_shipped_profiles_extend_each_other(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    for file in loader.profile_files():
        Preparer(Settings(), MACHINE).read(file.stem)


MATRIX = 'schema: 1\nbase: {base}\naxes: {{python: ["3.11"]}}\n'


@pytest.mark.parametrize("way", OUTSIDE)
def test_the_base_of_a_matrix_and_what_that_extends_belong_to_the_matrixs_project(project: Path, way: str) -> None:
    file = project / "profiles/m.yaml"
    base = way_out(project, way, "base.yaml")
    (project / "profiles/base.yaml").write_text(f"schema: 1\nextends: {base}\n")
    for named in (base, "base.yaml"):
        file.write_text(MATRIX.format(base=named))
        problem = problem_of(lambda: planned_matrix.read(file))
        assert problem.code == "path-outside"
        assert named != base or (problem.file, problem.line) == (str(file), 2)


def test_the_patches_of_a_cell_belong_to_the_matrixs_project(project: Path) -> None:
    file = project / "profiles/m.yaml"
    (project / "profiles/x.patch").symlink_to(project.parent / "home/fix.patch")
    profile = f"profile: {{{RELEASE}, patches: [x.patch]}}}}\n"
    file.write_text(MATRIX.format(base="../base.yaml").replace("axes:", f"{profile}axes:"))
    with pytest.raises(ProfileError, match=r"\[path-outside\]"):
        planned_matrix.cells(file, Preparer(Settings(), MACHINE))
    allowed = Preparer(Settings(allow_paths=(project.parent / "home",)), MACHINE)
    assert planned_matrix.cells(file, allowed).wanted


@pytest.mark.parametrize("make", [os.mkfifo, a_sparse_file, Path.mkdir])
def test_a_lock_is_read_as_carefully_as_its_profile(project: Path, make: Callable[[Path], None]) -> None:
    make(project / "x.lock")
    with pytest.raises(ProfileError):
        lock_text(project / "x.lock")
    (project / "y.lock").symlink_to(project.parent / "home/.docker/config.json")
    with pytest.raises(ProfileError) as caught:
        lock_text(project / "y.lock")
    assert CANARY not in str(caught.value)


def test_a_run_keeps_the_text_that_was_planned_and_no_lock_from_elsewhere(project: Path) -> None:
    file = put(project, "extends", "../base.yaml")
    prepared, text = Preparer(Settings(), MACHINE).prepare(str(file)), file.read_text()
    file.unlink()
    for path in (file, file.with_suffix(".lock")):
        path.symlink_to(project.parent / "home/.docker/config.json")
    kept = profile_document(prepared)
    assert (kept["text"], kept["extends"], kept["lock"]) == (text, {"../base.yaml": BASE}, None)


# --- races ----------------------------------------------------------------------------------------------------------


def swapped(path: Path, other: Path) -> AbstractContextManager[None]:
    """Swap what lies at a path for a link to another file, over and over."""
    aside, link = path.with_name("aside"), path.with_name("link")
    link.symlink_to(other)

    def swap() -> None:
        path.rename(aside)
        link.rename(path)
        path.rename(link)
        aside.rename(path)

    return over_and_over(swap)


@pytest.mark.slow
@pytest.mark.parametrize("component", ["fix.patch", "folder"])
def test_a_file_that_becomes_a_link_between_check_and_opening_is_never_read_through_it(
    project: Path, component: str
) -> None:
    folder = project / "folder"
    folder.mkdir()
    (folder / "fix.patch").write_bytes(PATCH)
    home = project.parent / "home"
    path, other = (folder / component, home / component) if component == "fix.patch" else (folder, home)
    asked, found = Project.of(project / "base.yaml"), set()
    with swapped(path, other):
        for _ in range(1000):
            with suppress(ProfileError, OSError):
                found.add(asked.read(folder / "fix.patch", MOST_PATCH))
    assert found == {PATCH}


def test_a_checkout_whose_folder_becomes_a_link_is_not_left(project: Path) -> None:
    tree = project / "tensorflow"
    (tree / "sub").mkdir()
    (tree / "sub/id_rsa").write_text("mine\n")
    secrets = project.parent / "home/.ssh"
    with swapped(tree / "sub", secrets):
        for _ in range(100):
            with suppress(ProfileError, OSError):
                assert CANARY.encode() not in b"".join(context_archive(BuildContext(files={}), tree))


# --- checkouts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [os.mkfifo, a_socket, a_sparse_file])
def test_a_checkout_with_what_is_no_plain_file_is_one_clear_error(
    project: Path, make: Callable[[Path], None]
) -> None:
    make(project / "tensorflow/odd")
    problem = refused(put(project, "path", "../tensorflow"))
    assert (problem.code, problem.field, problem.line) == (ODD[make], "tensorflow.path", 2)
    assert "odd" in problem.message


def test_links_of_a_checkout_stay_links(project: Path) -> None:
    tree = project / "tensorflow"
    (tree / "out").symlink_to(project.parent / "home")
    (tree / "secret").symlink_to(project.parent / "home/.ssh/id_rsa")
    (tree / "pipe").symlink_to("/dev/zero")
    assert tree_hash(tree)
    assert CANARY.encode() not in b"".join(context_archive(BuildContext(files={}), tree))


# --- the commands ---------------------------------------------------------------------------------------------------


def run(*words: str | Path, code: int = 0, **variables: str) -> Result:
    result = command_line.run(*words, COLUMNS="1000", **variables)
    assert result.exit_code == code, result.output
    assert CANARY not in result.output
    return result


def test_each_command_refuses_a_path_outside_and_takes_the_flag_and_the_setting(project: Path) -> None:
    file = put(project, "patches", "../../home/fix.patch")
    home = str(project.parent / "home")
    for words in (("check", file), ("plan", file), ("render", file, "-o", project / "out")):
        assert f"{file}:2:" in run(*words, code=2).stderr
    assert not (project / "out").exists()
    run("check", file, "--allow-path", home)
    run("check", file, "--allow-path", "/usr", "--allow-path", home)
    run("check", file, TFDOCK_ALLOW_PATHS=f"/usr{os.pathsep}{home}")
    run("check", file, "--allow-path", "/usr", code=2)
    run("render", file, "-o", project / "out", TFDOCK_ALLOW_PATHS=home)


def test_a_link_in_a_repository_brings_no_key_into_a_context(project: Path) -> None:
    (project / "profiles/fix.patch").symlink_to(project.parent / "home/.ssh/id_rsa")
    file = put(project, "patches", "fix.patch")
    run("render", file, "-o", project / "out", code=2)
    run("check", file, code=2)


def test_a_context_has_the_modes_of_its_source_whatever_the_umask(project: Path) -> None:
    (project / "tensorflow/configure").write_text("theirs\n")
    (project / "tensorflow/configure").chmod(0o700)
    (project / "tensorflow/loop").symlink_to("loop")
    umask = os.umask(0o077)
    try:
        run("render", put(project, "path", "../tensorflow"), "-o", project / "context", code=0)
    finally:
        os.umask(umask)
    modes = {path.name: path.stat(follow_symlinks=False).st_mode & 0o777 for path in (project / "context").rglob("*")}
    assert (modes["Dockerfile"], modes["configure"]) == (0o644, 0o755)
    assert (project / "context/source/loop").readlink() == Path("loop")


def test_a_context_is_never_written_through_links_that_a_repository_brings_along(project: Path) -> None:
    home, folder = project.parent / "home", project / "context"
    (project / "tensorflow/authorized_keys").write_text("theirs\n")
    file = put(project, "path", "../tensorflow")
    folder.mkdir()
    (folder / ".tfdock-context").write_text("")
    (folder / "Dockerfile").symlink_to(home / "fix.patch")
    run("render", file, "-o", folder, code=0)
    assert (home / "fix.patch").read_bytes() == PATCH
    assert not (folder / "Dockerfile").is_symlink()
    (folder / ".tfdock-context").write_text("linked/fix.patch\n")
    (folder / "linked").symlink_to(home)
    run("render", file, "-o", folder, code=2)
    (folder / ".tfdock-context").write_text("")
    for path in (folder / "source").iterdir():
        path.unlink()
    (folder / "source").rmdir()
    (folder / "source").symlink_to(home / ".ssh")
    run("render", file, "-o", folder, code=2)
    assert sorted(path.name for path in (home / ".ssh").iterdir()) == ["id_rsa"]
    assert (home / "fix.patch").exists()
    (folder / ".tfdock-context").unlink()
    (folder / ".tfdock-context").symlink_to("/dev/zero")
    run("render", file, "-o", folder, code=2)
