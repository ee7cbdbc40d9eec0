"""A source that names a dead address: it builds through a row of `source_archives.yaml`, and says how to add one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .conftest import EditedTree, Finished
from .harness import KNOWLEDGE, MINIATURE, UNTRIED, Tfdock, archive_knowledge, file_server
from .test_failures import failed, failed_in

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

SHA256 = "8d52b00df9cdb1d17834f8983cc088697f90dc022608e5f085119d5e2ae3d798"


@pytest.fixture
def downloads() -> Iterator[str]:
    with file_server(MINIATURE / "downloads") as url:
        yield url


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[str]:
    """`host:port` of a server that has nothing: Bazel tries one that is not there for 16 s."""
    folder = tmp_path / "empty"
    folder.mkdir()
    with file_server(folder) as url:
        yield url.removeprefix("http://")


@pytest.fixture
def alone(own: Finished) -> Tfdock:
    """The command with a cache of its own, which has no download yet."""
    shutil.rmtree(own.tfdock.cache / "repository")
    return own.tfdock


def with_row(command: Tfdock, folder: Path, url: str, sha256: str = SHA256) -> Tfdock:
    archive_knowledge(folder, "minimath 1.0 (@minimath)", sha256, url)
    return command.with_variables(TFDOCK_KNOWLEDGE=os.pathsep.join((str(KNOWLEDGE), str(folder))))


def test_a_source_with_a_dead_address_builds_through_the_table_and_only_with_the_right_sum(
    alone: Tfdock, edited: EditedTree, downloads: str, dead: str, tmp_path: Path
) -> None:
    profile = edited({"WORKSPACE": lambda text: text.replace("127.0.0.1:5552", dead)}, verify=UNTRIED)
    problem = failed_in("fetch", alone.build(profile), 7, "source_archives.yaml", "--knowledge")
    assert f"archive: http://{dead}/minimath-1.0.tar.gz, sha256 {SHA256}" in problem["message"]
    assert f'"sha256": "{SHA256}", "archive": "minimath-1.0.tar.gz", "releases": "99.18"' in problem["fix"]

    mirror = tmp_path / "mirror" / dead
    mirror.parent.mkdir()
    mirror.symlink_to(MINIATURE / "downloads")
    with file_server(mirror.parent) as url:
        outcome = replace(alone, cache=alone.home / "other").with_variables(TFDOCK_ARCHIVES=url).run("fetch", profile)
    assert outcome.code == 0, outcome.told

    wrong = with_row(alone, tmp_path / "wrong", f"{downloads}/minimath-1.0.tar.gz", "0" * 64)
    problem = failed(wrong.build(profile), 7, "phase fetch", f"the file there has the sha256 {SHA256}")
    assert problem["code"] == "source-archive-missing"

    right = with_row(alone, tmp_path / "right", f"{downloads}/minimath-1.0.tar.gz")
    outcome = right.build(profile, code=0)
    assert "minimath 1.0 (@minimath) is no longer at its own address" in outcome.stderr
    assert (alone.cache / f"repository/content_addressable/sha256/{SHA256}/file").is_file()
