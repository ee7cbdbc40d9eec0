"""A lock's text and rows, what differs from it, and what an image writes down for it. Who is asked: tests/build."""

from __future__ import annotations

import ast
import base64
import errno
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tfdock.builder import locking
from tfdock.builder.locking import check_names
from tfdock.errors import BuildFailed, DiskFull, Problem
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan import lock_file as locks
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.lock_file import Lock, LockDifference, Pin
from tfdock.plan.prepare import lock_path
from tfdock.resolve.question import LocalSource
from tfdock.resolve.resolution import Resolution

from ..desk import Desk, problem_of

COMMIT = "c" * 40
DIGEST = "sha256:" + "ab" * 32
SHA256 = "sha256:" + "0" * 64
HEAD = 'schema: 1\ntensorflow: {release: "9.9.1", git: "https://example.org/x.git", ref: v1, fallback: [main]}\n'


def pin(kind: str, name: str = "x", value: str = SHA256, origin: str = "here") -> Pin:
    return Pin(kind=kind, name=name, value=value, origin=origin)


LOCK = Lock(
    profile="x.yaml",
    build_id="tf9.9.1-py3.11-cpu-x86_64",
    fingerprint="f" * 64,
    knowledge="0123456789abcdef",
    choices={"xla": "true", "python": "3.11"},
    pins=(
        pin("base", "some/image:1", DIGEST, "registry"),
        pin("source", "v1", COMMIT, "git https://example.org/x.git"),
        pin("bazel", "bazel", f"7.4.1 {SHA256}"),
        pin("package", "libc6:amd64", "2.36-9+deb12u13"),
        pin("requirement", "numpy", f"1.26.4 {SHA256}"),
        pin("toolchain", "/usr/bin/gcc"),
    ),
)


# --- text -----------------------------------------------------------------------------------------------------------


def test_a_lock_read_again_is_the_same_and_any_reader_of_yaml_takes_it() -> None:
    text = locks.to_text(LOCK)
    assert locks.from_text(text, "x.lock") == LOCK
    document = yaml.safe_load(text)
    assert document["schema"] == 1
    assert document["pins"][0] == {"pin": "base", "name": "some/image:1", "value": DIGEST, "from": "registry"}
    assert document["choices"] == {"xla": "true", "python": "3.11"}, "text, not numbers and booleans"


def test_a_row_is_a_line_and_the_order_in_which_pins_were_found_does_not_show() -> None:
    text = locks.to_text(LOCK)
    assert sum(line.startswith("  - {pin: ") for line in text.splitlines()) == len(LOCK.pins)
    assert locks.to_text(replace(LOCK, pins=tuple(reversed(LOCK.pins)))) == text


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1))
def test_whatever_a_pin_is_called_its_row_stays_one_row(name: str) -> None:
    if not name.isprintable():
        return
    lock = replace(LOCK, pins=(pin("toolchain", name, name, name),))
    assert locks.from_text(locks.to_text(lock), "x.lock") == lock


ROW = '  - {pin: package, name: "libc6:amd64", value: "2.36-9+deb12u13", from: "here"}\n'
MALFORMED = {
    "another schema": ("schema: 1", "schema: 2", 3, "schema"),
    "a field that is missing": ('fingerprint: "', 'fingerprints: "', 3, "fingerprint"),
    "a choice that is no text": ('  xla: "true"', "  xla: [true]", 10, "xla"),
    "a row of another shape": ("{pin: package, name", "{pin: package, named", 15, "row"),
    "a kind that nobody knows": ("{pin: package", "{pin: parcel", 15, "parcel"),
    "a base that is no digest": (DIGEST, "latest", 12, "base some/image:1"),
    "a source that is no commit": (COMMIT, "--upload-pack=x", 13, "source v1"),
    "a row that is given twice": (ROW, ROW + ROW, 16, "twice"),
    "a value that is nothing": ('value: "2.36-9+deb12u13"', 'value: ""', 15, "value"),
    "a value of two lines": ('value: "2.36-9+deb12u13"', 'value: "2\\n3"', 15, "value"),
}


@pytest.mark.parametrize(("old", "new", "line", "word"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_lock_is_refused_at_its_line(old: str, new: str, line: int, word: str) -> None:
    text = locks.to_text(LOCK)
    assert old in text
    problem = problem_of(lambda: locks.from_text(text.replace(old, new), "x.lock"))
    assert (problem.code, problem.file, problem.line) == ("lock-malformed", "x.lock", line)
    assert word in problem.message


# --- rows -----------------------------------------------------------------------------------------------------------


def test_the_files_of_an_image_become_rows() -> None:
    toolchain = (
        b"bazel 7.4.1\npackage libc6 2.36 amd64\npackage libc6 2.36 i386\ntool /usr/bin/gcc 1234\nnews to us\n"
    )
    pins = b"bazel abcd\nrequirement numpy 1.26.4 ef01\n"
    assert [(one.kind, one.name, one.value) for one in locks.installed(toolchain, pins, {"list.txt": b"x"})] == [
        ("bazel", "bazel", "7.4.1 sha256:abcd"),
        ("package", "libc6:amd64", "2.36"),
        ("package", "libc6:i386", "2.36"),
        ("requirement", "list.txt", f"sha256:{hashlib.sha256(b'x').hexdigest()}"),
        ("requirement", "numpy", "1.26.4 sha256:ef01"),
        ("toolchain", "/usr/bin/gcc", "sha256:1234"),
    ]


@pytest.mark.parametrize("line", ["package x\x1b[2J 1 amd64", "requirement numpy 1.0\u202e ef01"])
def test_what_no_lock_could_hold_is_refused_where_it_is_read(line: str) -> None:
    problem = problem_of(lambda: locks.installed(b"bazel 7.4.1\n", f"{line}\n".encode(), {}), BuildFailed)
    assert problem.code == "pin-unprintable"
    assert problem.message.isprintable()


def test_the_profile_and_its_files_are_pins_that_nobody_is_asked_for(made_up: Desk) -> None:
    archive = f'{{release: "9.9.1", archive: "https://x.org/a.tgz", sha256: "{"e" * 64}"}}'
    text = f"schema: 1\ntensorflow: {archive}\naccelerator: cpu\nbase: some/image@{DIGEST}\n"
    resolution = made_up.resolve(text, local=LocalSource(patches={"a.patch": b"--- a\n"}))
    rows = {(one.kind, one.name): one.value for one in locks.stated(resolution, made_up.knowledge)}
    assert rows == {
        ("base", f"some/image@{DIGEST}"): DIGEST,
        ("source", "https://x.org/a.tgz"): f"sha256:{'e' * 64}",
        ("source", "a.patch"): f"sha256:{hashlib.sha256(b'--- a' + bytes([10])).hexdigest()}",
    }


def test_what_a_release_downloads_by_exact_version_is_pinned_by_its_own_list(made_up: Desk) -> None:
    row_of = "  - {{component: {0}, version: '{1}', url: 'https://x.org/{0}.json', sha256: {2}, source: x}}\n"
    rows = "rows:\n" + row_of.format("cuda", "20.1.0", "d" * 64) + row_of.format("xpu", "5.0", "d" * 64)
    tables = {**made_up.knowledge._texts, "redistributables": [("redistributables.yaml", rows)]}
    knowledge = KnowledgeBase(tables)
    hermetic = made_up.resolve('schema: 1\ntensorflow: "9.9.1"\ncompute_capabilities: [sm_86]\n')
    (row,) = locks.stated(hermetic, knowledge)
    assert row == pin("redistributable", "cuda 20.1.0", f"sha256:{'d' * 64}", "https://x.org/cuda.json")
    installed = made_up.resolve('schema: 1\ntensorflow: "9.9.1"\ntargets: [xe1]\n')
    assert locks.stated(installed, knowledge) == (), "that one comes with the base image"


# --- planning by a lock ---------------------------------------------------------------------------------------------


@pytest.fixture
def resolution(made_up: Desk) -> Resolution:
    return made_up.resolve(HEAD + "accelerator: cpu\nbase: some/image:1\n")


def test_what_is_pinned_is_asked_for_by_its_digest_and_at_its_commit(resolution: Resolution) -> None:
    fixed = locks.pinned(resolution, LOCK.pins)
    assert str(fixed.base) == f"some/image@{DIGEST}"
    assert (fixed.source.refs, fixed.source.commit) == (("v1",), COMMIT)
    assert fixed.build_id == resolution.build_id
    assert {one.source for one in fixed.choices if one.field in ("base", "source")} == {"lock"}
    assert locks.pinned(resolution, ()) == resolution


def test_a_fallback_that_was_locked_is_the_only_ref(resolution: Resolution) -> None:
    fixed = locks.pinned(resolution, [pin("source", "main", COMMIT)])
    assert (fixed.source.refs, fixed.source.commit) == (("main",), COMMIT)


@pytest.mark.parametrize("kind", ["base", "source", "bazel", "package", "toolchain"])
def test_what_has_no_row_is_not_pinned(resolution: Resolution, kind: str) -> None:
    assert locks.unpinned(LOCK, resolution) is None
    problem = locks.unpinned(replace(LOCK, pins=tuple(one for one in LOCK.pins if one.kind != kind)), resolution)
    assert problem is not None
    assert problem.code == "pin-missing"
    assert kind in problem.message


def test_a_patch_and_another_base_are_not_pinned_by_a_lock_that_knows_others(resolution: Resolution) -> None:
    patched = replace(resolution, source=replace(resolution.source, patches={"a.patch": b""}))
    for changed, word in ((patched, "a.patch"), (replace(resolution, base=replace(resolution.base, tag="2")), ":2")):
        problem = locks.unpinned(LOCK, changed)
        assert problem is not None
        assert word in problem.message


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "lock"), [("a.yaml", "a.lock"), ("a.yml", "a.yml.lock"), ("a.lock", "a.lock.lock"), ("a", "a.lock")]
)
def test_a_lock_is_named_so_that_it_never_replaces_its_profile(tmp_path: Path, profile: str, lock: str) -> None:
    (tmp_path / profile).write_text("x")
    assert lock_path(str(tmp_path / profile)) == tmp_path / lock


@pytest.mark.parametrize("names", [("a.yaml", "a"), ("a.yaml", "a.lock"), ("a.lock", "b.yaml", "a.yaml")])
def test_profiles_of_one_call_that_would_have_one_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in names:
        Path(name).write_text("x")
    problem = problem_of(lambda: check_names(names))
    assert (problem.code, problem.file) == ("lock-name-taken", "a.lock")


def test_a_profile_may_be_named_twice_and_one_that_is_not_there_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "a.yml", "b.yaml"):
        Path(name).write_text("x")
    check_names(["a.yaml", "./a.yaml", "a.yml", "b.yaml", "nowhere.yaml", "rtx3080"])


def test_a_folder_that_is_closed_is_told_before_anything_is_asked_and_a_full_disk_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locking, "write_atomically", full)
    with pytest.raises(DiskFull):
        locking._write(tmp_path / "x.lock", "")
    locking._check_place(tmp_path / "x.lock")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert problem_of(lambda: locking._check_place(tmp_path / "x.lock")).code == "file-error"


def test_the_sum_of_a_lock_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = locks.to_text(LOCK).replace("\n", "\r\n").encode()
    (tmp_path / "x.lock").write_bytes(data)
    found = locking.read_lock(tmp_path / "x.lock")
    assert (found.sha256, found.lock) == (hashlib.sha256(data).hexdigest(), LOCK)


# --- comparing ------------------------------------------------------------------------------------------------------


def test_differences_are_other_values_rows_too_many_and_rows_too_few() -> None:
    before = [pin("package", "a", "1"), pin("package", "b", "1"), pin("package", "c", "1")]
    after = [pin("package", "d", "1"), pin("package", "c", "1", "elsewhere"), pin("package", "b", "2")]
    assert locks.compare(before, after) == (
        LockDifference(pin="package a", locked="1", found=None),
        LockDifference(pin="package b", locked="1", found="2"),
        LockDifference(pin="package d", locked=None, found="1"),
    )


def test_all_that_moved_is_told_at_once_but_not_without_end() -> None:
    problem = locks.moved([pin("package", f"p{number:03}", "1") for number in range(100)], [], "x.lock")
    assert problem is not None
    assert problem.code == "pin-moved"
    assert "100 pins" in problem.message
    assert "p000" in problem.message
    assert "and 80 more" in problem.message
    assert len(problem.message.splitlines()) < 80
    assert locks.moved(LOCK.pins, LOCK.pins, "x.lock") is None


@pytest.fixture
def plan(made_up: Desk) -> BuildPlan:
    return made_up.plan(HEAD + "accelerator: cpu\nbase: some/image:1\n")


def said(problem: Problem | None) -> str:
    return f"{problem.code}: {problem.message}" if problem else ""


def test_a_choice_that_changed_is_named_unless_it_does_not_matter(plan: BuildPlan) -> None:
    lock = locks.make_lock("x.yaml", plan, "k", LOCK.pins)
    assert said(locks.outdated(lock, plan, "x.lock")) == ""
    before = replace(lock, choices={**lock.choices, "xla": "false"})
    assert said(locks.outdated(before, plan, "x.lock")) == "", "the same bytes come of it"
    told = said(locks.outdated(replace(before, fingerprint="0" * 64), plan, "x.lock"))
    assert told.startswith("lock-outdated:")
    assert "`xla` was false, now it is true" in told
    assert "python" not in told


def test_a_checkout_that_was_edited_is_a_pin_that_moved_and_no_other_choice(made_up: Desk) -> None:
    text = 'schema: 1\ntensorflow: {release: "9.9.1", path: ../tf, patches: [a.patch]}\naccelerator: cpu\n'
    before, after = (
        made_up.plan(text, local=LocalSource(tree=digit * 64, patches={"a.patch": digit.encode()})) for digit in "ab"
    )
    pins = locks.stated(before.resolution, made_up.knowledge)
    lock = locks.make_lock("x.yaml", before, "k", pins)
    assert lock.fingerprint != after.fingerprint
    assert lock.build_id != after.build_id
    assert said(locks.outdated(lock, after, "x.lock")) == ""
    told = said(locks.moved(lock.of("source"), locks.stated(after.resolution, made_up.knowledge), "x.lock"))
    assert told.startswith("pin-moved: 2 pins")
    assert "source ../tf" in told
    assert "source a.patch" in told


def test_what_is_neither_a_choice_nor_a_pin_is_seen_by_the_fingerprint(plan: BuildPlan) -> None:
    lock = locks.make_lock("x.yaml", plan, "k", LOCK.pins)
    assert said(locks.altered(lock, plan, "other", "x.lock")) == "", "knowledge that changed nothing"
    other = replace(lock, fingerprint="0" * 64)
    assert said(locks.outdated(other, plan, "x.lock")) == ""
    assert "flags" in said(locks.altered(other, plan, "k", "x.lock"))
    assert "from k to l" in said(locks.altered(other, plan, "l", "x.lock"))


@pytest.mark.parametrize(
    ("bazel", "removed"),
    [
        ("{}", ""),
        ("{copts: ['-mcpu=native']}", ", and remove `--copt=-mcpu=native`"),
        ("{flags: ['--host_copt=-mtune=native']}", ", and remove `--host_copt=-mtune=native`"),
    ],
)
def test_code_for_the_machine_that_builds_is_refused_in_a_lock(made_up: Desk, bazel: str, removed: str) -> None:
    text = HEAD + "accelerator: cpu\n"
    problem = locks.native(made_up.resolve(f"{text}optimize: native\nbazel: {bazel}\n"), "x.yaml")
    assert problem is not None
    assert (problem.code, problem.field) == ("native-in-lock", "optimize")
    assert problem.fix.endswith(f"set `optimize: portable`{removed}")
    for way_out in ("portable", "[avx2]"):
        assert locks.native(made_up.resolve(f"{text}optimize: {way_out}\n"), "x.yaml") is None


# --- what an image writes down --------------------------------------------------------------------------------------

SCRIPT = loader.templates()["scripts/pins.py"]


def distribution(folder: Path, module: bytes, *, name: str = "Some_Thing", extra: str = "") -> Path:
    """A folder with one distribution, as pip installs it."""
    info = folder / "Some_Thing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nName: not this\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(module).digest()).decode().rstrip("=")
    (info / "RECORD").write_text(f"some.py,sha256={digest},1\n{info.name}/RECORD,,\n__pycache__/some.pyc,,\n{extra}")
    return folder


def written(folder: Path, tmp_path: Path, **environment: str) -> list[str]:
    """What the script writes down where Python sees that folder and Bazel is a program of four bytes."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / "bazel").write_bytes(b"real")
    (bin_folder / "bazel").chmod(0o755)
    (tmp_path / "pins.py").write_text(SCRIPT)
    environment |= {"PATH": str(bin_folder), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-S", str(tmp_path / "pins.py"), str(tmp_path / "pins")]
    subprocess.run(command, env=environment, check=True)
    return (tmp_path / "pins").read_text().splitlines()


def test_a_distribution_is_its_files_and_not_how_it_was_installed(tmp_path: Path) -> None:
    info = "Some_Thing-1.0.dist-info"
    by_pip = f"{info}/INSTALLER,sha256=abc,4\n{info}/direct_url.json,sha256=def,9\n"
    one = written(distribution(tmp_path / "one", b"x"), tmp_path)
    assert one[0] == f"bazel {hashlib.sha256(b'real').hexdigest()}"
    assert one[1].startswith("requirement some-thing 1.0 ")
    assert written(distribution(tmp_path / "two", b"x", extra=by_pip), tmp_path) == one
    assert written(distribution(tmp_path / "three", b"y"), tmp_path)[1] != one[1]


def test_a_distribution_without_a_list_of_its_files_is_its_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "debian"
    folder.mkdir()
    (folder / "numpy-1.24.2.egg-info").write_text("Name: numpy\nVersion: 1.24.2\n")
    text = (folder / "numpy-1.24.2.egg-info").read_bytes()
    assert written(folder, tmp_path)[1:] == [f"requirement numpy 1.24.2 {hashlib.sha256(text).hexdigest()}"]


def test_behind_a_wrapper_script_the_program_itself_is_meant_and_of_bazelisk_what_it_downloaded(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bazel-real").write_bytes(b"the program")
    assert written(tmp_path, tmp_path)[0] == f"bazel {hashlib.sha256(b'the program').hexdigest()}"
    downloaded = tmp_path / "bazelisk/downloads/bazelbuild/bazel-7.4.1-linux-x86_64/bin"
    downloaded.mkdir(parents=True)
    (downloaded / "bazel").write_bytes(b"downloaded")
    rows = written(tmp_path, tmp_path, BAZELISK_HOME=str(tmp_path / "bazelisk"))
    assert f"bazel {hashlib.sha256(b'downloaded').hexdigest()}" in rows


def test_the_script_is_written_for_the_oldest_python_that_an_image_may_have() -> None:
    ast.parse(SCRIPT, feature_version=(3, 4))
    assert not any(isinstance(node, ast.JoinedStr | ast.AnnAssign) for node in ast.walk(ast.parse(SCRIPT)))
