"""A rendered pipeline, really run on this machine by gitlab-ci-local: plan, jobs of a child pipeline."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from bed import bed
from waits import FETCH

from tfdock.images.image_tags import fingerprint_tag

from .conftest import Workshop
from .harness import CPU, KNOWLEDGE, PLAYED_BUILD, Json, Tfdock, git
from .registries import OwnRegistry

pytestmark = [pytest.mark.engine, pytest.mark.limit(FETCH)]

CPUS = ["portable", ["avx2"]]


@pytest.fixture(scope="module")
def gitlab_ci_local() -> str:
    return bed("gitlab-ci-local")


@dataclass(frozen=True, kw_only=True)
class Project:
    """A repository with a matrix of two wheels and its rendered pipeline, on a machine that keeps nothing."""

    folder: Path
    tfdock: Tfdock
    program: str

    def pipeline(self, cache: Path, *, green: bool = True) -> str:
        """Run it on a machine with that cache and nothing else; what it printed. It must end as said."""
        shutil.rmtree(self.folder / ".gitlab-ci-local", ignore_errors=True)
        done = subprocess.run(
            [
                self.program, "--file", ".gitlab/wheels.yml", "--shell-isolation", "--no-color", "--concurrency", "1",
            ],
            cwd=self.folder,
            env=replace(self.tfdock, cache=cache).environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )  # fmt: skip
        assert (done.returncode == 0) is green, done.stdout
        return done.stdout

    def artifacts(self, pattern: str) -> list[Path]:
        """Files that jobs have kept."""
        return sorted((self.folder / ".gitlab-ci-local/artifacts").glob(pattern))

    @property
    def planned(self) -> Json:
        """The jobs of the child pipeline."""
        (file,) = self.artifacts("plan/tfdock-ci/jobs.yml")
        found: Json = json.loads(file.read_text())
        return found

    @property
    def records(self) -> list[Json]:
        """The records of what was built."""
        return [
            json.loads(file.read_text()) for file in self.artifacts("*/tfdock-ci/wheelhouse/.tfdock/*/*/record.json")
        ]


TOKEN = "not-for-anybodys-eyes"


@pytest.fixture(params=["played", "hermetic"])
def project(
    workshop: Workshop, registry: OwnRegistry, gitlab_ci_local: str, request: pytest.FixtureRequest
) -> Project:
    command = workshop.tfdock()
    folder = command.home / "project"
    (folder / "profiles").mkdir(parents=True)
    matrix = {
        "schema": 1,
        "profile": {
            "tensorflow": {"release": "99.18.0", "path": str(workshop.tree(request.param))},
            "python": "3.11",
            **(PLAYED_BUILD if request.param == "played" else CPU),
            "wheel": {"name": "tensorflow_miniature"},
            "verify": {"run": False},  # other tests try wheels
        },
        "axes": {"optimize": CPUS},
        "runner": ["docker", "linux"],
        "ci": {
            "registry": f"{registry.address}/me/wheels",
            "cache": f"{registry.address}/me/cache",
            "install": f'ln -s "{sys.prefix}/bin/tfdock" "$VIRTUAL_ENV/bin/tfdock"',
            "time_limit": "30m",
            "knowledge": ["knowledge"],
        },
    }
    (folder / "profiles/matrix.yaml").write_text(json.dumps(matrix, indent=1))
    shutil.copytree(KNOWLEDGE, folder / "profiles/knowledge")
    render = [sys.executable, "-m", "tfdock", "ci", "render", "gitlab"]
    subprocess.run(render, cwd=folder, env=command.environment, check=True, capture_output=True)
    (folder / ".gitignore").write_text(".gitlab-ci-local*\n")
    # What GitLab sets in jobs of protected branches, and what their owner has set.
    logins = {"USER": "me", "TOKEN": TOKEN, "READ_USER": "me", "READ_TOKEN": TOKEN}
    variables = {f"TFDOCK_REGISTRY_{name}": value for name, value in logins.items()}
    variables["CI_COMMIT_REF_PROTECTED"] = "true"
    (folder / ".gitlab-ci-local-variables.yml").write_text(json.dumps(variables))
    git(folder, "init", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--message", "A matrix")
    return Project(folder=folder, tfdock=command, program=gitlab_ci_local)


def test_a_pipeline_builds_what_is_missing_and_nothing_is_compiled_twice(
    project: Project, workshop: Workshop, registry: OwnRegistry, tmp_path: Path
) -> None:
    first = project.pipeline(workshop.cache)
    names = [job["variables"]["TFDOCK_CELLS"] for job in project.planned.values()]
    for name in names:  # by which the workshop finds the images that it is to remove
        (project.tfdock.wheelhouse / ".tfdock" / name / "image").mkdir(parents=True)
    assert [name.split("-")[-2] for name in names] == ["cpu", "avx2"]
    records = project.records
    assert sorted(record["build_id"] for record in records) == sorted(names)
    pushed = {fingerprint_tag(record["fingerprint"]) for record in records}
    assert pushed <= tags(registry)
    assert TOKEN not in first
    assert "Login Succeeded" in first
    # What stood beside the checkouts while jobs ran: tools, logins.
    assert not list(project.folder.rglob("?*.tfdock"))

    # One wheel is gone, and so is the machine: what its build once compiled comes out of the registry.
    gone = next(record for record in records if record["build_id"] == names[1])
    forget(registry, fingerprint_tag(gone["fingerprint"]))
    project.pipeline(tmp_path / "another-machine")
    (record,) = project.records
    assert record["build_id"] == names[1]
    assert (record["bazel"]["executed"], record["bazel"]["hits"] > 0) == (0, True)
    assert record["wheels"] == gone["wheels"]
    assert pushed <= tags(registry)


def test_a_pipeline_with_a_release_that_nothing_knows_is_red(project: Project, tmp_path: Path) -> None:
    matrix = project.folder / "profiles/matrix.yaml"
    matrix.write_text(matrix.read_text().replace("99.18.0", "99.81.0"))
    log = project.pipeline(tmp_path / "cache", green=False)
    assert "[release-unknown]" in log
    assert not project.artifacts("plan/tfdock-ci/jobs.yml")


TAGS = "docker/registry/v2/repositories/me/wheels/_manifests/tags"


def tags(registry: OwnRegistry) -> set[str]:
    return {tag.name for tag in (registry.folder / TAGS).iterdir()}


def forget(registry: OwnRegistry, tag: str) -> None:
    """Take every tag of an image from the registry."""
    folder = registry.folder / TAGS
    links = {one: (one / "current/link").read_text() for one in folder.iterdir()}
    for one, link in links.items():
        if link == links[folder / tag]:
            shutil.rmtree(one)
