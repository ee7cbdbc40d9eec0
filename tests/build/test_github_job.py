"""The scripts of a rendered GitHub workflow, run for real: a plan, a job that builds a wheel, and one that fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Finished, Workshop
from .github import Job, Step
from .harness import KNOWLEDGE, Tfdock, after_first_line, copy_tree
from .runner import Command, commands

#: The name of a profile that somebody else has given.
BASE = "base,%0A::error::x ##[error]y|`<b>.yaml"
TOOLS = Path(sys.executable).parent
SHARED = "Make room"  #: The engine is everybody's here: nobody's images are removed.
INSTALL = "Install tfdock"


@dataclass(kw_only=True)
class Repository:
    """A repository with a matrix and its rendered workflow, and jobs that ran there."""

    folder: Path
    temporary: Path
    tfdock: Tfdock

    @property
    def environment(self) -> dict[str, str]:
        """What a machine has, and not the tests' own folders: those are the workflow's."""
        own = ("TFDOCK_KNOWLEDGE", "TFDOCK_WHEELHOUSE")
        return {name: value for name, value in self.tfdock.environment.items() if name not in own}

    def job(self, name: str, *, installed: bool = True, **contexts: str) -> list[Step]:
        """Run a job's scripts. Where tfdock is `installed`, the job does not install it: one that does is enough."""
        file = f"wheels-{name}.yml"
        workflow = yaml.safe_load((self.folder / ".github/workflows" / file).read_text())
        return Job(
            workflow=workflow,
            name=name,
            workspace=self.folder,
            temporary=self.temporary / "-".join((name, *contexts.values()))[:60],
            environment=self.environment | ({"PATH": f"{TOOLS}:{self.environment['PATH']}"} if installed else {}),
            contexts={name.replace("_", "."): value for name, value in contexts.items()},
            skipped=(SHARED, INSTALL) if installed else (SHARED,),
        ).run()


@pytest.fixture(scope="module")
def repository(workshop: Workshop, finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("repository")
    profiles = folder / "profiles"
    profiles.mkdir()
    (profiles / BASE).write_text(finished.profile.read_text())
    broken = copy_tree(
        workshop.tree(), folder / "broken", {"configure": after_first_line("echo 'tfdock: no compiler'; exit 3")}
    )
    program = TOOLS / "tfdock"
    install = f"ln -s '{program}' $VIRTUAL_ENV/bin/tfdock"
    (profiles / "matrix.yaml").write_text(
        "schema: 1\n"
        f"base: {json.dumps(BASE)}\n"
        "profile: {verify.run: false}\n"  # other tests try wheels
        "axes:\n"
        "  compute_capabilities: [[sm_86], [sm_30]]\n"
        f"include: [{{tensorflow.path: {json.dumps(str(broken))}}}]\n"
        f"ci: {{install: {json.dumps(install)}, knowledge: [knowledge]}}\n"
    )
    shutil.copytree(KNOWLEDGE, profiles / "knowledge")
    command = workshop.tfdock()
    render = [str(program), "ci", "render", "github", "profiles/matrix.yaml"]
    subprocess.run(render, cwd=folder, env=command.environment, check=True, capture_output=True)
    return Repository(folder=folder, temporary=tmp_path_factory.mktemp("runner"), tfdock=command)


@pytest.fixture(scope="module")
def planned(repository: Repository) -> list[Step]:
    return repository.job("plan", installed=False)


def jobs(steps: list[Step]) -> list[dict[str, Any]]:
    """The jobs of a plan, as `fromJSON` gives them to the next job."""
    (part,) = json.loads(steps[-1].outputs["plan"])
    found: list[dict[str, Any]] = part["include"]
    return found


@pytest.mark.engine
def test_the_plan_is_an_output_that_parses_and_names_what_can_be_built(planned: list[Step]) -> None:
    assert [step.code for step in planned] == [0] * len(planned), planned[-1].log
    assert planned[-1].name == "Plan"
    assert [len(one["cells"].split()) for one in jobs(planned)] == [1, 1]
    assert all(one["runner"] == ["ubuntu-24.04"] for one in jobs(planned))
    assert [one["cells"] in planned[-1].summary for one in jobs(planned)] == [True, True]


@pytest.mark.engine
def test_a_job_builds_its_cell_and_says_so(repository: Repository, planned: list[Step]) -> None:
    job = jobs(planned)[0]
    steps = repository.job("build", inputs_job=job["job"], inputs_cells=job["cells"])
    build = steps[-1]
    assert (build.name, build.code) == ("Build", 0), build.log
    assert build.outputs["wheels"] == "true"
    assert (build.outputs["ok"], build.outputs["exit-code"]) == ("true", "0")
    assert commands(build.log) == [Command("group", job["cells"]), Command("endgroup", "")]
    assert re.findall(r"^\| (\w+) \| (\S+) \|", build.summary, re.MULTILINE)[1:] == [("built", job["cells"])]
    assert len(build.summary.encode()) < 900_000
    (wheel,) = (repository.folder / "tfdock-ci/wheels.txt").read_text().splitlines()
    assert Path(wheel).is_file()
    assert Path(wheel).parent.parent.name == "tfdock"
    assert Path(wheel).parent.is_relative_to(repository.temporary)


@pytest.mark.engine
def test_a_job_that_fails_says_why_in_one_annotation(repository: Repository, planned: list[Step]) -> None:
    job = jobs(planned)[1]
    build = repository.job("build", inputs_job=job["job"], inputs_cells=job["cells"])[-1]
    assert (build.name, build.code) == ("Build", 1), build.log
    assert (build.outputs["ok"], build.outputs["exit-code"]) == ("false", "1")
    *group, error = commands(build.log)
    assert [one.name for one in group] == ["group", "endgroup"]
    assert (error.name, error.properties["title"]) == ("error", "image-step-failed")
    assert "no compiler" in error.data
    assert re.findall(r"^\| (\w+) \| (\S+) \|", build.summary, re.MULTILINE)[1:] == [("failed", job["cells"])]
    report = json.loads((repository.folder / "tfdock-ci/report/report.json").read_text())
    assert report["counts"] == {"failed": 1}


@pytest.mark.engine
def test_a_mistake_in_a_profile_of_a_hostile_name_is_annotated_where_it_is(repository: Repository) -> None:
    base = repository.folder / "profiles" / BASE
    text = base.read_text()
    base.write_text(
        text.replace('"python": "3.11"', '"python": 3.10').replace('"schema": 1', '"schema": 1, "cdua": 1')
    )
    try:
        plan = repository.job("plan", attempt="again")[-1]
    finally:
        base.write_text(text)
    assert plan.code == 2, plan.log
    assert plan.outputs == {}
    found = commands(plan.log)
    assert {(one.name, one.properties["title"]) for one in found} == {
        ("error", "version-not-text"),
        ("error", "profile-unknown-key"),
    }
    for one in found:
        assert one.properties["file"] == f"profiles/{BASE}"
        line = base.read_text().splitlines()[int(one.properties["line"]) - 1]
        assert "python" in line or "schema" in line


@pytest.mark.engine
def test_a_plan_with_a_release_that_nothing_knows_is_red(repository: Repository) -> None:
    base = repository.folder / "profiles" / BASE
    text = base.read_text()
    base.write_text(text.replace("99.18.0", "99.81.0"))
    try:
        plan = repository.job("plan", attempt="misspelt")[-1]
    finally:
        base.write_text(text)
    assert (plan.name, plan.code, plan.outputs) == ("Plan", 2, {}), plan.log
    assert {one.properties["title"] for one in commands(plan.log)} == {"release-unknown"}
