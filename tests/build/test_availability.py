"""`check --online`: whether what a build downloads is there. The registry is the bed's, the servers are our own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tfdock.host.settings import Settings, load
from tfdock.offline import availability
from tfdock.offline.availability import Availability
from tfdock.plan.lock_file import Lock, Pin
from tfdock.plan.prepare import Preparer
from tfdock.types import Machine

from .conftest import Workshop
from .harness import (
    KNOWLEDGE,
    archive_knowledge,
    closed_port,
    file_server,
    git,
    git_server,
    new_repository,
    write_profile,
)

pytestmark = pytest.mark.engine

BASE = "tensorflow/build:99.18-python3.11"


@dataclass(frozen=True)
class Servers:
    """What a build downloads, on servers of this machine."""

    git: str
    commit: str
    url: str
    web: Path
    folder: Path

    @property
    def rows(self) -> Path:
        """Where a test may write rows of archives that have left their own addresses."""
        return self.folder / "rows"

    def settings(self, *allowed: str) -> Settings:
        variables = {"TFDOCK_REGISTRY_MIRROR": os.environ["TFDOCK_REGISTRY_MIRROR"]}
        folders = [str(folder) for folder in (KNOWLEDGE, self.rows) if folder.is_dir()]
        variables |= {"TFDOCK_KNOWLEDGE": os.pathsep.join(folders), "TFDOCK_ALLOW_ENDPOINTS": ",".join(allowed)}
        return load({}, variables | {"HOME": str(self.folder)})

    def ask(self, *allowed: str, lock: Lock | None = None, **fields: object) -> dict[str, Availability]:
        settings = self.settings(*(allowed or (self.git,)))
        source = {"release": "99.18.0", "git": f"{self.git}/tree", "ref": "v1"}
        path = write_profile(self.folder / "profile.yaml", None, **{"tensorflow": source, **fields})
        preparer = Preparer(settings, Machine(cpus=2, memory=16 << 30))
        resolution = preparer.resolve(str(path)).resolution
        (rows,) = availability.ask([(resolution, lock)], preparer.knowledge, settings)
        return {row.kind: row for row in rows}


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    repository, web = new_repository(tmp_path / "repositories/tree"), tmp_path / "web"
    git(repository, "tag", "v1")
    commit = git(repository, "rev-parse", "v1")
    program = web / "4.2.3/release/bazel-4.2.3-linux-x86_64"
    program.parent.mkdir(parents=True)
    program.write_text("bazel")
    with git_server(repository.parent) as address, file_server(web) as url:
        monkeypatch.setattr("tfdock.plan.render._BAZELISK", url)
        yield Servers(git=address, commit=commit, url=url, web=program, folder=tmp_path)


def statuses(rows: dict[str, Availability]) -> dict[str, str]:
    return {kind: row.status for kind, row in rows.items()}


def test_what_is_there_is_told_with_its_digest_and_its_commit(servers: Servers) -> None:
    rows = servers.ask()
    assert statuses(rows) == {"base": "there", "source": "there", "bazel": "there"}
    assert rows["base"].found.startswith("sha256:")
    assert rows["source"].found == servers.commit
    assert {int(row.exit_code) for row in rows.values()} == {0}


def test_what_a_lock_has_otherwise_has_changed(servers: Servers) -> None:
    pins = (
        Pin(kind="base", name=BASE, value="sha256:" + "0" * 64, origin="registry"),
        Pin(kind="source", name="v1", value="0" * 40, origin="git"),
    )
    lock = Lock(profile="p", build_id="b", fingerprint="f", knowledge="k", choices={}, pins=pins)
    rows = servers.ask(lock=lock)
    assert statuses(rows) == {"base": "changed", "source": "changed", "bazel": "there"}
    assert int(rows["source"].exit_code) == 3
    assert rows["source"].problem.code == "download-changed"
    assert servers.commit in rows["source"].problem.message


def test_what_no_server_has_any_more_is_gone(servers: Servers) -> None:
    servers.web.unlink()
    source = {"release": "99.18.0", "git": f"{servers.git}/tree", "ref": "v2"}
    rows = servers.ask(tensorflow=source, base="tensorflow/build:absent")
    assert statuses(rows) == {"base": "gone", "source": "gone", "bazel": "gone"}
    assert {int(row.exit_code) for row in rows.values()} == {3}
    assert {row.problem.code for row in rows.values()} == {"download-gone"}


@pytest.mark.parametrize(
    ("names", "status", "code"),
    [
        (("/gone.tgz", "/x.tgz"), "there", 0),
        (("/gone.tgz", "/lost.tgz"), "gone", 3),
        (("/gone.tgz", None), "unreachable", 7),
    ],
    ids=["one has it", "none has it", "one is not reached"],
)
def test_an_archive_that_left_its_address_is_sought_at_all_others(
    servers: Servers, names: tuple[str | None, ...], status: str, code: int
) -> None:
    servers.web.parents[2].joinpath("x.tgz").write_text("x")
    urls = [f"{servers.url}{name}" if name else f"http://{closed_port()}/x.tgz" for name in names]
    archive_knowledge(servers.rows, "x 1.0 (@x)", "a" * 64, *urls)
    row = servers.ask()["archive"]
    assert (row.name, row.status, int(row.exit_code)) == ("x 1.0 (@x)", status, code)
    assert urls[-1] in row.found


def test_a_server_that_does_not_answer_says_nothing_about_what_it_has(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = closed_port()
    monkeypatch.setattr("tfdock.plan.render._BAZELISK", f"http://{nowhere}")
    monkeypatch.setenv("TFDOCK_REGISTRY_MIRROR", f"docker.io={nowhere}")
    source = {"release": "99.18.0", "git": f"git://{nowhere}/tree", "ref": "v1"}
    rows = servers.ask(f"git://{nowhere}", tensorflow=source)
    assert statuses(rows) == {"base": "unreachable", "source": "unreachable", "bazel": "unreachable"}
    assert {int(row.exit_code) for row in rows.values()} == {7}


def test_a_server_that_only_a_profile_names_is_not_asked(servers: Servers) -> None:
    rows = servers.ask("https://other.example", base="registry.example/x:1")
    assert statuses(rows) == {"base": "not-asked", "source": "not-asked", "bazel": "there"}
    assert servers.git in rows["source"].found


def test_the_command_prints_a_line_for_each_download_and_ends_with_7_where_none_answers(
    workshop: Workshop, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "profile.yaml", workshop.tree())
    # Bazel's own server is beyond a proxy that is not there; the registry is on this machine.
    command = workshop.tfdock().with_variables(https_proxy=f"http://{closed_port()}", no_proxy="127.0.0.1")
    outcome = command.run("check", "--online", profile, code=7)
    assert "  there        base     tensorflow/build:99.18-python3.11  sha256:" in outcome.stdout
    assert "[download-unreachable]" in outcome.stderr
    asked = command.run("check", "--online", "--json", profile).document["profiles"][0]["online"]
    assert [(row["kind"], row["status"]) for row in asked] == [("base", "there"), ("bazel", "unreachable")]
    assert command.run("check", profile).code == 0
