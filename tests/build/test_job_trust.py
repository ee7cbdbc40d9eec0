"""What the jobs of rendered pipelines see: their scripts run in a shell, beside programs that note each call.

A job that builds what a stranger wrote must have no login that may write, and share no folder with other jobs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfdock.ci import pipeline
from tfdock.ci.pipeline import INSTALL, Service
from tfdock.knowledge import loader
from tfdock.matrix import matrix_file as matrices

from .github import SHELL
from .github import Job as GitHubJob

BARE: dict[str, Any] = {
    "schema": 1,
    "profile": {"tensorflow": "2.18.0"},
    "axes": {"python": ["3.11", "3.12"]},
    "ci": {"install": INSTALL},
}
CI = BARE["ci"] | {"registry": "ghcr.io/me/wheels", "cache": "ghcr.io/me/cache"}
MATRICES: dict[str, dict[str, Any]] = {
    "bare": BARE,
    "full": BARE | {"ci": CI},
    "own-machines": BARE | {"runner": ["self-hosted", "linux", "gpu"], "ci": CI},
    "two-registries": BARE | {"ci": CI | {"registry": "registry.example:5000/w"}},
    "wheels-only": BARE | {"ci": BARE["ci"] | {"registry": "registry.example/me/wheels"}},
}


def rendered(service: Service, name: str = "full") -> list[Any]:
    """The files of a pipeline, as YAML has them."""
    files = pipeline.files(
        service,
        matrices.read(json.dumps(MATRICES[name]), "matrix.yaml"),
        path="matrix.yaml",
        command="tfdock ci render",
        cells=2,
        templates=loader.templates("ci/templates"),
        actions=loader.knowledge().ci_actions,
    )
    return [yaml.safe_load(text) for text in files.values()]


def jobs(document: Any) -> Iterator[tuple[str, Any]]:
    """The jobs of a workflow that run on a machine."""
    yield from ((name, job) for name, job in document["jobs"].items() if "uses" not in job)


#: Every variable and secret that a project may have set.
LOGINS = {
    f"TFDOCK_{registry}{rights}_{kind}": f"{registry}{rights}-{kind}".lower()
    for registry in ("REGISTRY", "CACHE")
    for rights in ("", "_READ")
    for kind in ("USER", "TOKEN")
}
WRITING = ("registry-token", "cache-token")
FOLDERS = ("TFDOCK_CACHE_DIR", "TFDOCK_STATE_DIR", "TFDOCK_WHEELHOUSE", "DOCKER_CONFIG")
# A first line cannot name a path with spaces. To Python the second one is a text.
START = f"#!/bin/sh\n'''exec' '{sys.executable}' -SE \"$0\" \"$@\"\n' '''\n"
RECORDER = """
import json, os, pathlib, sys
program, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
login = pathlib.Path(os.environ.get("DOCKER_CONFIG", "/nowhere"), "config.json")
if program == "docker":
    login.write_text(login.read_text() if login.exists() else "")
    login.open("a").write(sys.stdin.read() + "\\n")
if program == "python3" and words[1:2] == ["venv"]:
    pathlib.Path(words[2], "bin").mkdir(parents=True)
    pathlib.Path(words[2], "bin/activate").write_text("")
if program == "git" and words[:2] == ["worktree", "add"]:
    pathlib.Path(words[-2]).mkdir(parents=True)
if program == "tfdock":
    seen = {"words": words, "environment": dict(os.environ), "logins": login.read_text() if login.exists() else ""}
    with open(RECORD, "a") as file:
        file.write(json.dumps(seen) + "\\n")
    if words[0] == "build":
        house = pathlib.Path(os.environ["TFDOCK_WHEELHOUSE"])
        house.mkdir(parents=True, exist_ok=True)
        house.joinpath("a.whl").write_text("")
"""


@dataclass(frozen=True)
class Call:
    """A command of tfdock's that a job gave: its words, its environment, the tokens of its logins."""

    words: list[str]
    environment: dict[str, str]
    logins: str

    @property
    def name(self) -> str:
        return " ".join(self.words[: 2 if self.words[0] in ("cache", "image", "ci") else 1])


@dataclass(frozen=True)
class Machine:
    """A runner that stays, in a folder, with programs that write down who called them."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("tfdock", "docker", "git", "python3", "pip", "df"):
            self.program(name, f"{START}RECORD = {str(self.folder / 'record')!r}{RECORDER}")
        (self.folder / "checkout").mkdir(exist_ok=True)

    def program(self, name: str, text: str) -> None:
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(self.folder / "home")}

    @property
    def calls(self) -> list[Call]:
        """What was called since this was asked last."""
        record = self.folder / "record"
        calls = [Call(**json.loads(line)) for line in record.read_text().splitlines()] if record.exists() else []
        record.unlink(missing_ok=True)
        return calls

    def github(self, document: Any, job: str) -> list[Call]:
        temporary = self.folder / f"temporary-{job}"
        temporary.mkdir()
        contexts = {
            "github.token": "token-of-the-job",
            "runner.temp": str(temporary),
            "inputs.job": "a+1",
            **{f"{kind}.{name}": value for name, value in LOGINS.items() for kind in ("secrets", "vars")},
        }
        for step in document["jobs"][job]["steps"]:
            step |= self._artifact(step)
        steps = GitHubJob(
            workflow=document,
            name=job,
            workspace=self.folder / "checkout",
            temporary=temporary,
            environment=self.environment,
            contexts=contexts,
        ).run()
        assert steps[-1].code == 0, steps[-1].log
        return self.calls

    def _artifact(self, step: dict[str, Any]) -> dict[str, str]:
        """What GitHub's actions for artifacts do, as a script."""
        action, values = step.get("uses", ""), step.get("with", {})
        if "upload-artifact" in action:
            kept, path = f"'{self.folder}/artifacts/{values['name']}'", values["path"]
            return {
                "run": f"mkdir -p {kept}\nif [ -d '{path}' ]; then cp -r '{path}/.' {kept}; "
                f"elif [ -e '{path}' ]; then cp '{path}' {kept}; fi"
            }
        if "download-artifact" in action:
            kept, path = f"'{self.folder}/artifacts/{values['pattern']}'", values["path"]
            return {"run": f"mkdir -p '{path}'\ncp -r {kept}/. '{path}'"}
        return {}

    def gitlab(self, document: Any, job: str, **variables: str) -> list[Call]:
        project = self.folder / "checkout"
        environment = {
            **self.environment,
            **document["variables"],
            **LOGINS,
            "CI_PROJECT_DIR": str(project),
            **variables,
        }
        done = shell(project, "\n".join(document[job]["script"]), environment)
        assert done.returncode == 0, done.stderr
        return self.calls


def shell(folder: Path, script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A script as GitLab runs it."""
    command = [*SHELL, "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def own_folders(call: Call, folder: Path) -> None:
    """Everything that a command keeps lies in the folder of its job."""
    for name in FOLDERS:
        assert Path(call.environment[name]).parent == folder, call.words


@pytest.mark.parametrize("name", MATRICES)
def test_jobs_of_a_pull_request_get_no_secret_and_keep_all_in_the_runner_s_temporary_folder(
    machine: Machine, name: str
) -> None:
    (*_, document) = rendered("github", name)
    assert list(document[True]) == ["pull_request"]  # YAML takes the word `on` for a boolean
    assert "secrets." not in json.dumps(document)
    for job, about in jobs(document):
        assert about["permissions"] == {"contents": "read", "packages": "read"}
        calls = machine.github(document, job)
        assert len(calls) > 2
        for call in calls:
            own_folders(call, machine.folder / f"temporary-{job}/tfdock")
            assert "push" not in call.words
            assert call.environment["TFDOCK_REMOTE_UPLOAD"] == "false"
            assert set(call.logins.split()) <= {"token-of-the-job"}


def test_on_github_the_job_that_builds_sees_no_login_that_may_write(machine: Machine) -> None:
    (*_, document, _) = rendered("github", "two-registries")
    calls = {call.name: call for call in machine.github(document, "build")}
    assert calls["build"].logins.split() == ["registry_read-token", "token-of-the-job"]
    assert not any(token in f"{call.environment} {call.logins}" for call in calls.values() for token in WRITING)
    # On a machine that stays, trusted jobs go on from the machine's own cache.
    assert "TFDOCK_CACHE_DIR" not in calls["build"].environment

    calls = {call.name: call for call in machine.github(document, "publish")}
    own = machine.folder / "temporary-publish/tfdock"
    assert list(calls)[-3:] == ["cache pull", "cache push", "image push"]
    assert calls["image push"].words[2:] == [str(own / "wheelhouse/a.whl"), "registry.example:5000/w"]
    for call in calls.values():
        own_folders(call, own)
    assert calls["cache push"].logins.split() == ["registry-token", "token-of-the-job"]


def test_only_plain_files_go_from_a_cache_to_the_job_that_pushes_it(machine: Machine) -> None:
    """A build writes the cache: links and devices in it say nothing to the job that may push."""
    (*_, document, _) = rendered("github")
    disk = machine.folder / "home/.cache/tfdock/disk/0123456789abcdef"
    (disk / "cas/aa").mkdir(parents=True)
    (disk / "cas/aa/old").write_text("the registry has it")
    os.utime(disk / "cas/aa/old", (0, 0))
    (disk / "cas/aa/new\nline").write_text("compiled")
    (disk / "cas/ab").symlink_to("/etc")
    (disk / "cas/aa/secret").symlink_to("/etc/passwd")
    os.mkfifo(disk / "cas/aa/pipe")
    about = disk.parent / f"{disk.name}.about/use.json"
    about.parent.mkdir()
    about.write_text("{}")
    os.utime(about, (0, 0))
    for name in ("cas/aa/new\nline", "cas/aa"):
        os.utime(disk / name, (2**31, 2**31))
    machine.github(document, "build")
    machine.github(document, "publish")
    there = machine.folder / "temporary-publish/tfdock/cache"
    found = {str(path.relative_to(there)) for path in there.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert found == {f"disk/{disk.name}/cas/aa/new\nline", f"disk/{disk.name}.about/use.json"}


PROTECTED = {"CI_COMMIT_BRANCH": "main", "CI_COMMIT_REF_PROTECTED": "true"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"CI_COMMIT_BRANCH": "topic", "CI_COMMIT_REF_PROTECTED": "false"},
        # A merge request's pipeline may be protected, but is none of a branch.
        {"CI_COMMIT_REF_PROTECTED": "true"},
    ],
)
def test_on_gitlab_a_job_of_a_merge_request_has_folders_of_its_own_and_pushes_nothing(
    machine: Machine, variables: dict[str, str]
) -> None:
    plan, build = rendered("gitlab", "two-registries")
    project = machine.folder / "checkout"
    own = machine.folder / "checkout.tfdock"
    # What an earlier job, or a commit, may have put there.
    (machine.folder / "theirs").mkdir()
    for link in (own, project / "tfdock-ci"):
        link.symlink_to(machine.folder / "theirs")
    for document, job in ((plan, "plan"), (build, ".build")):
        calls = machine.gitlab(document, job, **variables)
        assert len(calls) > 1
        for call in calls:
            own_folders(call, own)
            assert "push" not in call.words
            assert call.environment["TFDOCK_REMOTE_UPLOAD"] == "false"
            assert not any(token in f"{call.environment} {call.logins}" for token in WRITING)
        assert not own.exists()
    assert (project / "tfdock-ci/wheelhouse/a.whl").is_file()
    assert list((machine.folder / "theirs").iterdir()) == []


def test_on_gitlab_the_login_that_may_write_comes_when_the_build_is_over(machine: Machine) -> None:
    _, document = rendered("gitlab", "two-registries")
    calls = machine.gitlab(document, ".build", **PROTECTED)
    names = [call.name for call in calls]
    assert names[-3:] == ["build", "cache push", "image push"]
    for call in calls[1:]:  # the first says which version was installed
        pushes = call.name.endswith("push")
        assert call.logins.split() == [f"{one}{'' if pushes else '_read'}-token" for one in ("registry", "cache")]
        assert not any(token in str(call.environment) for token in WRITING)
        assert "TFDOCK_CACHE_DIR" not in call.environment
    assert calls[0].name == "--version"
    assert calls[0].logins == ""
    assert not (machine.folder / "checkout.tfdock").exists()


@pytest.mark.parametrize(
    ("failing", "before", "after"), [("", 0, 0), ("", 8, 8), ("cache", 0, 7), ("cache", 8, 7), ("image", 8, 7)]
)
def test_on_gitlab_what_cannot_be_pushed_keeps_nothing_else_from_being(
    machine: Machine, failing: str, before: int, after: int
) -> None:
    _, document = rendered("gitlab")
    *_, push, _, end = document[".build"]["script"]
    machine.program("tfdock", f'#!/bin/sh\necho "$1" "$2" >>pushed; [ "$1" != "{failing}" ] || exit 7\n')
    project = machine.folder / "checkout"
    (project / "tfdock-ci/wheelhouse").mkdir(parents=True)
    (project / "tfdock-ci/wheelhouse/a.whl").write_text("")
    script = f"trusted=true\nDOCKER_CONFIG=docker\nstatus={before}\n{push}\n{end}\n"
    variables = {"TFDOCK_REGISTRY": "r", "TFDOCK_WHEELHOUSE": "tfdock-ci/wheelhouse"}
    done = shell(project, script, machine.environment | variables)
    assert (done.returncode, (project / "pushed").read_text()) == (after, "cache push\nimage push\n")
