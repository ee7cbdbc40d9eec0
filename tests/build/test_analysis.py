"""`matrix --dry-analyse` with a real Bazel: a sound matrix passes, and what upstream has changed is named by cell."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import yaml

from .conftest import Workshop
from .harness import KNOWLEDGE, MINIATURE, Json, Outcome, Tfdock, copy_tree, git_server, replaced

pytestmark = pytest.mark.engine

ARCHIVE = "minimath-1.0.tar.gz"
PACKAGE = "tensorflow/tools/pip_package/BUILD"
TAG = "v99.18.0"


@dataclass
class Files:
    """A server of files, and what was asked of it."""

    folder: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    folder = tmp_path / "served"
    folder.mkdir()
    for name in ("of-the-tag", "of-the-checkout"):
        (folder / name).mkdir()
        shutil.copy(MINIATURE / "downloads" / ARCHIVE, folder / name)
    found = Files(folder)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            found.asked.append(self.path)

    handler = partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()


class Upstream:
    """TensorFlow's repository: a release's tag, whose commit the knowledge has, and a branch."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._git("init", "--quiet", "--initial-branch=main")
        self.commit("first")
        self._git("tag", TAG)
        self.first = self._git("rev-parse", "HEAD")

    def _git(self, *words: str) -> str:
        identity = ["-c", "user.name=Tests", "-c", "user.email=tests@example.org"]
        command = ["git", "-C", str(self.tree), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> None:
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", text)

    def tag(self, commit: str | None) -> None:
        """Move the release's tag, or remove it."""
        self._git("tag", *(["--force", TAG, commit] if commit else ["--delete", TAG]))


@dataclass(frozen=True)
class Site:
    """A matrix of two cells of a release, one of a branch and one of a local checkout, and a machine for it."""

    tfdock: Tfdock
    matrix: Path
    upstream: Upstream
    files: Files
    checkout: Path

    def analyse(self, *words: str) -> Outcome:
        return self.tfdock.run("matrix", self.matrix, "--dry-analyse", "--json", *words)


@pytest.fixture
def site(workshop: Workshop, files: Files, tmp_path: Path) -> Iterator[Site]:
    def from_(name: str) -> dict[str, object]:
        return {"WORKSPACE": replaced("http://127.0.0.1:5552", f"{files.url}/{name}")}

    tree = copy_tree(workshop.tree(), tmp_path / "git/tensorflow", from_("of-the-tag"))  # type: ignore[arg-type]
    checkout = copy_tree(workshop.tree(), tmp_path / "checkout", from_("of-the-checkout"))  # type: ignore[arg-type]
    upstream = Upstream(tree)
    home = workshop.tfdock().home
    command = Tfdock(home=home, cache=home / "cache", engine=workshop.host)
    with git_server(tmp_path / "git") as url:
        knowledge = copy_tree(KNOWLEDGE, tmp_path / "knowledge")
        rows = yaml.safe_load((knowledge / "releases.yaml").read_text())
        (release,) = [row for row in rows["rows"] if row["release"] == "99.18"]
        release |= {"repository": f"{url}/tensorflow", "commits": {"99.18.0": upstream.first}}
        (knowledge / "releases.yaml").write_text(yaml.safe_dump(rows))
        matrix = tmp_path / "matrix.yaml"
        cells: list[Json] = [
            {"tensorflow": "99.18.0"},
            {"tensorflow": "99.18.0", "optimize": ["avx2"]},
            {"tensorflow": {"release": "99.18.0", "git": f"{url}/tensorflow", "ref": "main"}},
            {"tensorflow": {"release": "99.18.0", "path": str(checkout)}},
            {"tensorflow": "99.18.0", "python": "3.12"},
        ]
        profile = {"python": "3.11", "accelerator": "cpu", "wheel": {"name": "tensorflow_miniature"}}
        matrix.write_text(json.dumps({"schema": 1, "profile": profile, "include": cells}, indent=1))
        site = Site(command.with_variables(TFDOCK_KNOWLEDGE=str(knowledge)), matrix, upstream, files, checkout)
        yield site
    assert command.leftovers == []
    assert not list((home / "cache/output").glob("*"))


def statuses(outcome: Outcome) -> list[str]:
    return [cell["status"] for cell in outcome.document["cells"]]


def drift(cell: Json) -> tuple[str, str]:
    """Code and line of a cell that has drifted."""
    (problem,) = cell["problems"]
    assert cell["status"] == "drifted"
    assert cell["log"] in problem["message"]
    assert cell["error"] in problem["message"]
    return problem["code"], cell["error"]


def test_a_sound_matrix_passes_and_each_change_upstream_is_named_for_the_cells_that_it_concerns(site: Site) -> None:
    outcome = site.analyse()
    assert outcome.code == 0, outcome.told
    assert outcome.document["schema"] == "tfdock.matrix-analysis/1"
    assert outcome.document["ok"] is True
    assert statuses(outcome) == ["ok"] * 4
    (impossible,) = outcome.document["excluded"]
    assert impossible["status"] == "impossible"
    release, other, branch, _ = outcome.document["cells"]
    assert release["source"] == {"ref": TAG, "found": site.upstream.first}
    assert branch["source"] == {"ref": "main", "found": site.upstream.first}
    for cell in outcome.document["cells"]:
        assert set(cell["seconds"]) == {"image", "fetch"}
        log = Path(cell["log"]).read_text()
        # Bazel's own figures.
        assert re.findall(r"^INFO: (\d+) process", log, re.MULTILINE) == ["0"]
        assert "Build completed successfully, 0 total actions" in log
        assert "=== tfdock: compile" not in log
    # Cells of one source share its layers and downloads: here three sources, two of them with one archive.
    source_step = re.search(r"source\.sh git .*\n(.*)\n", Path(other["log"]).read_text())
    assert source_step
    assert source_step[1].strip() == "---> Using cache"
    assert sorted(site.files.asked) == [f"/of-the-{name}/{ARCHIVE}" for name in ("checkout", "tag", "tag")]
    assert not site.tfdock.wheelhouse.exists(), "it records nothing there"

    # The tag is another commit, the branch calls its target otherwise: nothing of before stands in the way.
    package = site.upstream.tree / PACKAGE
    package.write_text(package.read_text().replace('name = "wheel"', 'name = "wheels"'))
    site.upstream.commit("another name")
    site.upstream.tag("HEAD")
    changed = site.analyse()
    assert changed.code == 1, changed.told
    assert changed.document["ok"] is False
    *moved, renamed, sound = changed.document["cells"]
    for cell in moved:
        code, line = drift(cell)
        assert code == "pin-moved"
        assert f"{site.upstream.first} was expected: the tag has moved" in line
    assert drift(renamed)[0] == "fetch-failed"
    assert "no such target '//tensorflow/tools/pip_package:wheel'" in drift(renamed)[1]
    assert sound["status"] == "ok"

    # The tag is gone, and the archive is another.
    site.upstream.tag(None)
    (site.files.folder / "of-the-checkout" / ARCHIVE).write_bytes(b"something else")
    names = [cell["build_id"] for cell in changed.document["cells"]]
    table = site.tfdock.run("matrix", site.matrix, "--dry-analyse", "--only", names[0], "--only", names[3])
    assert table.code == 7, table.told
    head, _, tag, archive = table.stdout.splitlines()
    assert head == f"{site.matrix}  2 drifted"
    unreachable = f"tfdock: cannot fetch {TAG} from {release_url(site)}"
    assert re.fullmatch(rf"  {names[0]} +drifted  \[source-unreachable\] {re.escape(unreachable)}", tag)
    assert re.match(
        rf"  {names[3]} +drifted  \[fetch-failed\] ERROR: .*minimath.* Checksum was \w+ but wanted", archive
    )
    assert not site.tfdock.wheelhouse.exists()


def release_url(site: Site) -> str:
    rows = yaml.safe_load((Path(site.tfdock.environment["TFDOCK_KNOWLEDGE"]) / "releases.yaml").read_text())
    (url,) = [row["repository"] for row in rows["rows"] if row["release"] == "99.18"]
    return str(url)
