"""The build context as an archive: the same bytes for the same files, wherever and whenever they were written."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tfdock.errors import ProfileError
from tfdock.plan.local_source import context_archive, tree_hash
from tfdock.plan.render import BuildContext

FILES = {"Dockerfile": b"FROM x\n", "tfdock/phase.sh": b"#!/bin/bash\n", "tfdock/" + "deep/" * 30 + "x": b"y" * 513}


def make_tree(root: Path, *, reverse: bool = False) -> Path:
    files = {"configure": "#!/bin/sh\n", "a/b.cc": "int b;\n", "a/é.h": "", "a-b": "x" * 512}
    for name in sorted(files, reverse=reverse):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[name])
    (root / "configure").chmod(0o700 if reverse else 0o755)
    (root / "a-b").chmod(0o600 if reverse else 0o644)
    (root / "link").symlink_to("a/b.cc")
    (root / "folder").symlink_to("a")
    return root


def archive(context: BuildContext, tree: Path | None = None) -> bytes:
    return b"".join(context_archive(context, tree))


def members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()


def test_two_copies_of_a_tree_make_equal_bytes(tmp_path: Path) -> None:
    one, other = make_tree(tmp_path / "one"), make_tree(tmp_path / "two", reverse=True)
    for path in other.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    context = BuildContext(files=FILES)
    assert archive(context, one) == archive(context, other)
    assert tree_hash(one) == tree_hash(other)


def test_members_are_roots_of_one_moment_and_two_modes(tmp_path: Path) -> None:
    found = members(archive(BuildContext(files=FILES), make_tree(tmp_path)))
    assert {(one.uid, one.gid, one.uname, one.gname, one.mtime) for one in found} == {(0, 0, "", "", 315532800)}
    modes = {one.name: one.mode for one in found if one.isreg()}
    assert modes == {
        "Dockerfile": 0o644,
        "tfdock/phase.sh": 0o755,
        "tfdock/" + "deep/" * 30 + "x": 0o644,
        "source/configure": 0o755,
        "source/a-b": 0o644,
        "source/a/b.cc": 0o644,
        "source/a/é.h": 0o644,
    }
    assert {one.name: one.linkname for one in found if one.issym()} == {"source/link": "a/b.cc", "source/folder": "a"}


def test_every_file_comes_out_as_it_went_in(tmp_path: Path) -> None:
    data = archive(BuildContext(files=FILES), make_tree(tmp_path))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for path, content in FILES.items():
            member = tar.extractfile(path)
            assert member
            assert member.read() == content
        long = tar.extractfile("source/a-b")
        assert long
        assert long.read() == b"x" * 512


def test_a_context_without_a_tree_holds_its_files_only() -> None:
    assert [one.name for one in members(archive(BuildContext(files=FILES)))] == list(FILES)


@pytest.mark.parametrize(
    "name",
    [".git/HEAD", "a/__pycache__/x.pyc", ".tf_configure.bazelrc", ".bazelrc.user", "bazel-bin/x"],
)
def test_what_is_no_source_is_neither_hashed_nor_sent(tmp_path: Path, name: str) -> None:
    tree = make_tree(tmp_path / "tree")
    before = archive(BuildContext(files={}), tree), tree_hash(tree)
    left = tree / name
    if name.startswith("bazel-"):
        (tmp_path / "out").mkdir()
        left.parent.symlink_to(tmp_path / "out")
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("left by an earlier build")
    assert (archive(BuildContext(files={}), tree), tree_hash(tree)) == before


@pytest.mark.parametrize("change", ["content", "name", "executable", "link"])
def test_what_is_source_changes_the_hash_and_the_bytes(tmp_path: Path, change: str) -> None:
    tree = make_tree(tmp_path)
    before = archive(BuildContext(files={}), tree), tree_hash(tree)
    if change == "content":
        (tree / "a/b.cc").write_text("int c;\n")
    elif change == "name":
        (tree / "a/b.cc").rename(tree / "a/c.cc")
    elif change == "executable":
        (tree / "a/b.cc").chmod(0o755)
    else:
        (tree / "link").unlink()
        (tree / "link").symlink_to("a/é.h")
    after = archive(BuildContext(files={}), tree), tree_hash(tree)
    assert after[0] != before[0]
    assert after[1] != before[1]


def test_a_file_that_shrinks_while_it_is_sent_is_an_error_and_no_archive(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    big = tree / "big"
    big.write_bytes(b"x" * (3 << 20))
    stream = context_archive(BuildContext(files={}), tree)
    next(stream)
    next(stream)
    big.write_bytes(b"")
    with pytest.raises(OSError, match="changed while it was read"):
        list(stream)


def test_a_checkout_of_more_folders_in_each_other_than_any_source_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "/".join("a" * 210)).mkdir(parents=True)
    with pytest.raises(ProfileError) as refused:
        tree_hash(tmp_path)
    assert "more than 200 nested folders" in refused.value.problems[0].message
