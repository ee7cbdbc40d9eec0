"""Rendered pipelines: every byte of the example, what the services' own schemas and zizmor say, and hostile names.

`make golden` writes ci/examples anew; the diff is then read line by line.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from typer.testing import CliRunner, Result

import tfdock.cli.main  # noqa: F401 - it makes the application whole
from tfdock.ci import pipeline
from tfdock.ci.pinned import unpinned
from tfdock.ci.pipeline import Service, gitlab_jobs, shell_word
from tfdock.cli.app import app
from tfdock.knowledge import loader
from tfdock.matrix import matrix_file as matrices
from tfdock.matrix.shards import GITHUB_JOBS, CellLoad, Job

from ..desk import Desk

SERVICES: tuple[Service, ...] = get_args(Service)
EXAMPLE = Path(__file__).parents[3] / "ci/examples"
PROGRAMS = Path(sys.executable).parent
LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
INSTALL = {"install": pipeline.INSTALL}
BARE: dict[str, Any] = {
    "schema": 1,
    "profile": {"tensorflow": "2.18.0"},
    "axes": {"python": ["3.11", "3.12"]},
    "ci": INSTALL,
}
CI = INSTALL | {"registry": "ghcr.io/me/wheels", "cache": "ghcr.io/me/cache", "schedule": "17 3 * * 1"}
HOSTILE = [
    "profiles/${{ github.token }}.yaml",
    "profiles/$${{{ secrets.A }}}.yaml",
    "a\"b'c\\d.yaml",
    "$(touch pwned) `touch pwned` $HOME $$.yaml",
    "a: b # c\n  - d\n\njobs: {}\r\t\x1b[31m.yaml",
    "-o --help; exit 0 && true|true.yaml",
    "é漢\u2028字\N{BOM}\N{GRINNING FACE}\x7f\x85.yaml",
    "%{x} {{ 7 * 7 }} {% raw %}.yaml",
]
MATRICES: dict[str, dict[str, Any]] = {
    "bare": BARE,
    "full": BARE | {"ci": CI},
    "own-machines": BARE | {"runner": ["self-hosted", "linux", "gpu"], "ci": CI | {"time_limit": "23h"}},
    "no-rounds": BARE | {"ci": CI | {"continuations": 0, "jobs": 4}},
    "two-registries": BARE
    | {"ci": CI | {"registry": "registry.example:5000/w", "branches": ["main", "release/1.x"]}},
    "wheels-only": BARE | {"ci": INSTALL | {"registry": "registry.example/me/wheels"}},
    "cache-only": BARE | {"ci": INSTALL | {"cache": "registry.example/me/cache", "continuations": 20}},
    "install": BARE | {"ci": CI | {"install": "pip install \"a${{ github.token }}\" 'b' $HOME # c"}},
}


def rendered(
    service: Service, document: dict[str, Any] = MATRICES["full"], path: str = "profiles/matrix.yaml", cells: int = 2
) -> dict[str, str]:
    matrix = matrices.read(json.dumps(document), path)
    return pipeline.files(
        service,
        matrix,
        path=path,
        command=f"tfdock ci render {service} {shell_word(path)}",
        cells=cells,
        templates=loader.templates("ci/templates"),
        actions=loader.knowledge().ci_actions,
    )


def written(folder: Path, files: dict[str, str]) -> list[Path]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return [folder / name for name in files]


def loaded(files: dict[str, str]) -> list[Any]:
    return [yaml.load(text, LOADER) for text in files.values()]


def jobs(document: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    """The jobs of a workflow that run on a machine: name, job, steps."""
    yield from ((name, job, job["steps"]) for name, job in document["jobs"].items() if "uses" not in job)


# --- the example ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_the_example_is_what_its_matrix_asks_for(service: str, refresh_golden: bool) -> None:
    words = ["ci", "render", service, "--force"] if refresh_golden else ["ci", "check"]
    result = subprocess.run(
        [sys.executable, "-m", "tfdock", *words], cwd=EXAMPLE, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_action_stands_with_its_commit_and_its_source() -> None:
    rows = loader.knowledge().ci_actions
    used = {name for text in rendered("github").values() for name in re.findall(r"uses: ([^@\s]+)@", text)}
    assert used == set(rows)
    for text in rendered("github").values():
        for line in re.findall(r"uses: [^.].*", text):
            assert re.fullmatch(r"uses: [\w/-]+@[0-9a-f]{40} # v[0-9.]+", line)


# --- what others say of them ----------------------------------------------------------------------------------------


def cases() -> Iterator[Any]:
    for name, document in MATRICES.items():
        yield pytest.param(document, "profiles/matrix.yaml", 2, id=name)
    yield pytest.param(MATRICES["full"], "profiles/matrix.yaml", 2 * GITHUB_JOBS + 1, id="three-parts")
    for number, path in enumerate(HOSTILE):
        yield pytest.param(MATRICES["full"], path, 2, id=f"hostile-{number}")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """All cases as files, by service: a checker that starts once is fast."""
    found: dict[str, list[Path]] = {service: [] for service in SERVICES}
    for number, case in enumerate(cases()):
        folder = tmp_path_factory.mktemp(f"case-{number}")
        for service in SERVICES:
            found[service] += written(folder, rendered(service, *case.values))
    return found


def said(*words: str | Path) -> str:
    done = subprocess.run([PROGRAMS / words[0], *words[1:]], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


SCHEMAS = {"github": ["vendor.github-workflows"], "gitlab": ["vendor.gitlab-ci", "--data-transform", "gitlab-ci"]}


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_files_are_as_the_service_s_schema_wants_them(everything: dict[str, list[Path]], service: str) -> None:
    assert not said("check-jsonschema", "--builtin-schema", *SCHEMAS[service], *everything[service])


@pytest.mark.slow
def test_the_jobs_of_a_plan_are_as_gitlab_s_schema_wants_them(tmp_path: Path) -> None:
    (_, build) = loaded(rendered("gitlab"))
    jobs = {"none.yml": gitlab_jobs([]), "some.yml": gitlab_jobs([job("a", "gpu"), job("b", "cpu")])}
    files = written(tmp_path, {name: json.dumps(build | some) for name, some in jobs.items()})
    assert not said("check-jsonschema", "--builtin-schema", *SCHEMAS["gitlab"], *files)


@pytest.mark.slow
def test_zizmor_finds_nothing_not_even_when_it_is_pedantic(everything: dict[str, list[Path]]) -> None:
    options = ["--offline", "--no-progress", "--persona", "pedantic"]
    assert not said("zizmor", *options, *everything["github"])


def test_zizmor_would_find_a_value_in_a_script(tmp_path: Path) -> None:
    (_, plan, *_) = rendered("github").values()
    (file,) = written(tmp_path, {"w.yml": plan.replace("tfdock --version", "echo ${{ github.head_ref }}")})
    assert "template-injection" in said("zizmor", "--offline", "--no-progress", file)


@pytest.mark.parametrize(
    "file", sorted(Path(EXAMPLE.parent, "templates/steps").iterdir()), ids=lambda file: file.name
)
def test_a_step_is_plain_shell_without_any_value_in_it(file: Path) -> None:
    assert subprocess.run(["sh", "-n", file], check=False).returncode == 0
    assert not re.search(r"\{[{%#]", file.read_text())


# --- the same, and safe ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_the_same_matrix_gives_the_same_bytes(service: Service) -> None:
    program = (
        "import sys; from tests.unit.ci.test_pipeline import rendered; "
        "print(*rendered(sys.argv[1]).items(), sep='\\n')"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program, service],
            cwd=EXAMPLE.parents[1],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""


def meant(service: Service, value: str) -> str:
    """What a job sees of a value in its environment, by the service's own rules."""
    if service == "gitlab":
        assert not re.sub(r"\$\$", "", value).count("$")
        return value.replace("$$", "$")
    # Expressions: only texts, in which there is nothing to evaluate.
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: re.fullmatch(r"\s*'([^']*)'\s*", found[1])[1], value)  # type: ignore[index]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_name_reaches_a_job_as_it_is_and_nothing_else(service: Service, path: str) -> None:
    plain, hostile = (loaded(rendered(service, path=one)) for one in ("profiles/matrix.yaml", path))
    for document, other in zip(plain, hostile, strict=True):
        names = "env" if service == "github" else "variables"
        if names in document:  # a workflow that only calls others has none
            assert meant(service, other[names].pop("TFDOCK_MATRIX")) == path
            del document[names]["TFDOCK_MATRIX"]
        # What is named after the matrix: files and groups. All else, and every script, is the same.
        name = Path(next(iter(rendered(service, path=path)))).stem
        assert re.fullmatch(r"wheels(-[a-z0-9-]+)?", name)
        assert json.dumps(other).replace(name, "wheels") == json.dumps(document)


@pytest.mark.parametrize("service", SERVICES)
def test_the_command_that_installs_is_a_value_as_well(service: Service) -> None:
    names = "env" if service == "github" else "variables"
    found = [document[names] for document in loaded(rendered(service, MATRICES["install"])) if names in document]
    assert len(found) >= 2
    for values in found:
        assert meant(service, values["TFDOCK_INSTALL"]) == MATRICES["install"]["ci"]["install"]


@pytest.mark.parametrize("path", HOSTILE)
def test_the_command_in_the_head_is_one_line_and_means_the_file(path: str) -> None:
    (text, *_) = rendered("github", path=path).values()
    head = text.partition("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    told = subprocess.run(
        ["bash", "-c", f"printf %s {shell_word(path)}"],
        capture_output=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert told.stdout == path.encode()


def test_no_secret_is_part_of_a_script() -> None:
    for document in loaded(rendered("github", MATRICES["two-registries"])):
        for _, _, steps in jobs(document):
            for step in steps:
                assert "${{" not in step.get("run", "")
                assert "secrets." not in json.dumps(step.get("with", {}))


# --- rights, limits, rounds -----------------------------------------------------------------------------------------


def test_only_the_jobs_that_publish_have_a_right_to_write() -> None:
    for name in MATRICES:
        documents = loaded(rendered("github", MATRICES[name]))
        trusted = documents[0]
        assert all(document["permissions"] == {} for document in documents)
        rights = {job: some["permissions"] for document in documents for job, some, _ in jobs(document)}
        writing = {job: some for job, some in rights.items() if "write" in some.values()}
        attest = {"id-token": "write", "attestations": "write"}
        push = {"publish": {"contents": "read", "packages": "write"}}
        assert writing == {"attest": attest} | (push if {"registry", "cache"} & MATRICES[name]["ci"].keys() else {})
        assert all(some == READING for job, some in rights.items() if job not in writing)
        assert trusted["jobs"]["plan"]["if"].startswith("${{ github.ref == 'refs/heads/main'")


READING = {"contents": "read", "packages": "read"}


@pytest.mark.parametrize("name", MATRICES)
def test_a_job_that_builds_is_over_before_anything_has_a_login_to_write(name: str) -> None:
    *_, called, untrusted = loaded(rendered("github", MATRICES[name]))
    for document in (called, untrusted):
        for job, about, steps in jobs(document):
            if any("tfdock build" in step.get("run", "") for step in steps):
                assert about["permissions"] == READING
                secrets = re.findall(r"secrets\.(\w+)", json.dumps(about))
                assert all(secret.endswith("_READ_TOKEN") for secret in secrets)
            elif "write" in about["permissions"].values():
                assert about["needs"] == "build"
                # What pushes has the packed results, and no word of it builds, renders or tries anything.
                words = re.findall(
                    r"^ *tfdock (\w+ ?\w*)", "\n".join(step.get("run", "") for step in steps), re.MULTILINE
                )
                assert set(words) <= {"cache prune", "cache pull", "cache push", "image push"}, job


def program(folder: Path, text: str, name: str = "tfdock") -> None:
    """A program for the scripts that are run in this folder."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin" / name).chmod(0o755)


def shell(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script as GitHub and GitLab run it."""
    environment = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"} | variables
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_on_gitlab_a_child_has_its_own_variables() -> None:
    (plan, build) = loaded(rendered("gitlab"))
    assert plan["build"]["trigger"]["forward"] == {"yaml_variables": False}
    names = {name for name in plan["variables"] if name.startswith("TFDOCK_")}
    assert names <= set(build["variables"])


# --- the steps of GitHub's jobs -------------------------------------------------------------------------------------


def steps(job: str, name: str) -> list[dict[str, Any]]:
    documents = loaded(rendered("github"))
    return [
        step
        for one in documents[:3]
        for found, _, some in jobs(one)
        for step in some
        if (found, step["name"]) == (job, name)
    ]


@pytest.mark.slow
def test_a_job_that_is_run_again_replaces_what_it_has_kept() -> None:
    """The second attempt is the same run to GitHub, which takes a name once."""
    for name in MATRICES:
        for document in loaded(rendered("github", MATRICES[name]))[2:]:
            kept = [step for *_, steps in jobs(document) for step in steps if "upload" in str(step)]
            assert kept
            assert all(step["with"]["overwrite"] is True for step in kept)


def test_wheels_are_kept_for_a_week_beside_a_registry_and_else_as_long_as_github_keeps_them() -> None:
    for name, days in (("full", 7), ("bare", None)):
        for document in loaded(rendered("github", MATRICES[name]))[2:]:
            (kept,) = [one for one in document["jobs"]["build"]["steps"] if one["name"] == "Keep wheels and records"]
            assert kept["with"].get("retention-days") == days


def test_a_scheduled_run_attests_as_others_do() -> None:
    """Its event has no repository: what that would say is unknown, and not false."""
    (*trusted, called, _) = loaded(rendered("github"))
    assert "github.event." not in json.dumps([*trusted, called])
    assert "github.repository_visibility == 'public'" in called["jobs"]["attest"]["if"]


@pytest.mark.parametrize(
    ("kind", "disk", "removed"),
    [
        ("github-hosted", 0, ["rm", "docker", "install", "mount"]),
        ("github-hosted", 1, ["rm", "docker"]),
        ("self-hosted", 0, []),
    ],
)
def test_only_a_machine_of_github_s_is_cleared(tmp_path: Path, kind: str, disk: int, removed: list[str]) -> None:
    (room,) = steps("build", "Make room")
    program(tmp_path, 'echo "$@" >>asked', "sudo")
    program(tmp_path, f"exit {disk}", "mountpoint")
    program(tmp_path, 'echo tfdock "$@" >>asked; exit 6')
    cache = tmp_path / "temporary/cache"
    done = shell(tmp_path, room["run"], RUNNER_ENVIRONMENT=kind, TFDOCK_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    *asked, own = (tmp_path / "asked").read_text().splitlines()
    assert own == "tfdock cache prune --images"
    assert [words.split()[0] for words in asked] == removed
    if "mount" in removed:
        assert asked[-1] == f"mount --bind /mnt/tfdock {cache}"


def test_a_file_full_of_holes_takes_no_more_room_in_the_packed_cache_than_on_the_disk(tmp_path: Path) -> None:
    (pack,) = steps("build", "Pack the cache")
    (unpack,) = steps("publish", "Push the cache")
    program(tmp_path, "")
    packed, cache, other = tmp_path / "tfdock/cache.tar.gz", tmp_path / "cache", tmp_path / "other"
    packed.parent.mkdir()
    (packed.parent / "pulled").touch()
    os.utime(packed.parent / "pulled", (1, 1))
    (cache / "disk/key/cas").mkdir(parents=True)
    (cache / "disk/key/cas/blob").write_bytes(b"object")
    with (cache / "disk/key/cas/holes").open("wb") as file:
        file.truncate(2 << 30)
    variables = {"RUNNER_TEMP": str(tmp_path), "TFDOCK_CACHE_DIR": str(cache)}
    assert shell(tmp_path, pack["run"], **variables).returncode == 0
    assert packed.stat().st_size < 4096
    (packed.parent / "compiled").mkdir()
    packed.rename(packed.parent / "compiled/cache.tar.gz")
    variables |= {"TFDOCK_CACHE_DIR": str(other), "TFDOCK_CACHE": "x", "TFDOCK_CACHE_TAG": "y"}
    done = shell(tmp_path, unpack["run"], TFDOCK_DOMAINS="", **variables)
    assert done.returncode == 0, done.stderr
    assert (other / "disk/key/cas/blob").read_bytes() == b"object"
    assert sum(path.stat().st_blocks for path in (other / "disk").rglob("*")) < 1024


def test_what_the_job_that_compiled_left_replaces_no_program_of_the_job_that_pushes(tmp_path: Path) -> None:
    folder = tmp_path / "tfdock"
    taken = [
        step["with"]["path"] for name in ("built", "compiled") for step in steps("publish", f"Take what was {name}")
    ]
    assert taken == [f"${{{{ runner.temp }}}}/tfdock/{name}" for name in ("wheelhouse", "compiled")]
    for name in ("compiled", "tools", "cache/locks"):
        (folder / name).mkdir(parents=True)
    (folder / "tools/tfdock").write_text("ours")
    with tarfile.open(folder / "compiled/cache.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("disk/tools")
        link.type, link.linkname = tarfile.SYMTYPE, str(folder / "tools")
        names = ("CACHEDIR.TAG", "locks/runs", "disk/../../../tools/tfdock", "/disk/x/../../y", "disk/tools/tfdock")
        for entry in (tarfile.TarInfo("disk/key/cas/blob"), link, *map(tarfile.TarInfo, names)):
            tar.addfile(entry)
    before = {path for path in folder.rglob("*") if not path.is_relative_to(folder / "cache/disk")}
    (push,) = steps("publish", "Push the cache")
    program(tmp_path, "")
    variables = {"RUNNER_TEMP": str(tmp_path), "TFDOCK_CACHE_DIR": str(folder / "cache")}
    shell(
        tmp_path,
        push["run"],
        **variables,
        **dict.fromkeys(("TFDOCK_DOMAINS", "TFDOCK_CACHE", "TFDOCK_CACHE_TAG"), "x"),
    )
    assert {path for path in folder.rglob("*") if not path.is_relative_to(folder / "cache/disk")} == before
    assert (folder / "tools/tfdock").read_text() == "ours"
    assert (folder / "cache/disk/key/cas/blob").is_file()


@pytest.mark.parametrize(("length", "code"), [(400_000, 0), (600_000, 1)])
def test_a_plan_that_github_would_drop_is_an_error(tmp_path: Path, length: int, code: int) -> None:
    (plan,) = steps("plan", "Plan")
    program(tmp_path, f"head -c {length} /dev/zero | tr '\\0' x")
    variables = dict.fromkeys(("TFDOCK_SHARDS", "TFDOCK_CHANGED_SINCE", "TFDOCK_MATRIX"), "")
    output = tmp_path / "output"
    done = shell(tmp_path, plan["run"], GITHUB_OUTPUT=str(output), **variables)
    assert (done.returncode, output.exists()) == (code, code == 0), done.stderr
    assert ("::error::the plan has" in done.stdout) == bool(code)


@pytest.mark.parametrize("status", [0, 2])
def test_a_pull_request_is_compared_with_the_files_that_it_would_be_merged_into(tmp_path: Path, status: int) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=Me", "-c", "user.email=me@example.com"]
    (tmp_path / "m.yaml").write_text("base")
    for words in (["init", "-q"], ["add", "m.yaml"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "m.yaml").write_text("changed")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "x"], check=True)
    program(tmp_path, f'echo "$@" >>{tmp_path}/asked; cat m.yaml; exit {status}')
    (plan,) = [step for _, _, some in jobs(loaded(rendered("github"))[-1]) for step in some if step["name"] == "Plan"]
    then = tmp_path / "tfdock/base"
    variables = plan["env"] | {"RUNNER_TEMP": str(tmp_path), "TFDOCK_MATRIX": "m.yaml", "TFDOCK_SHARDS": "2"}
    for _ in range(2):  # git still knows the folder of a job before
        done = shell(tmp_path, plan["run"], GITHUB_OUTPUT=str(tmp_path / "output"), **variables)
        assert done.returncode == status, done.stderr
        assert ("every cell counts as changed" in done.stdout) is bool(status)
        assert (tmp_path / "asked").read_text().splitlines() == [
            "matrix --json -- m.yaml",
            f"matrix --shards 2 --changed-since {then}.json --missing --format github -- m.yaml",
        ]
        assert Path(f"{then}.json").read_text() == "base"
        (tmp_path / "asked").unlink()
        shutil.rmtree(then.parent)


def test_the_next_round_is_told_what_is_not_finished(tmp_path: Path) -> None:
    (build,) = steps("build", "Build")
    rows = [{"build_id": name, "exit_code": code} for name, code in (("a", 0), ("b", 1), ("c", 8))]
    program(
        tmp_path,
        f"echo a.whl; mkdir -p tfdock-ci/report; echo '{json.dumps({'cells': rows})}' "
        ">tfdock-ci/report/report.json; exit 8",
    )
    names = ("TFDOCK_MATRIX", "TFDOCK_TIME_LIMIT")
    variables = {**dict.fromkeys(names, "x"), "TFDOCK_CELLS": "a b c", "TFDOCK_JOB": "a+2"}
    output = tmp_path / "output"
    done = shell(tmp_path, build["run"], GITHUB_OUTPUT=str(output), TFDOCK_LAST_ROUND="false", **variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tfdock-ci/cut/a+2").read_text() == "b\nc\n"
    assert output.read_text() == "wheels=true\ncut=true\n"
    assert (
        shell(tmp_path, build["run"], GITHUB_OUTPUT=str(output), TFDOCK_LAST_ROUND="true", **variables).returncode
        == 8
    )


def test_a_workflow_says_each_job_once_and_rounds_call_them() -> None:
    trusted, *called = loaded(rendered("github"))
    assert not list(jobs(trusted))
    assert [(job["uses"], job["with"].get("after")) for job in trusted["jobs"].values()] == [
        (f"./{WORKFLOWS[1 + (number % 2)]}", after) for number, after in enumerate(("", None, "1", None, "2", None))
    ]
    assert [list(document["jobs"]) for document in called] == [
        ["plan"],
        ["build", "publish", "attest"],
        ["plan", "build"],
    ]


def test_rounds_follow_one_another_only_where_there_is_a_cache() -> None:
    def names(name: str, cells: int = 2) -> list[str]:
        return list(loaded(rendered("github", MATRICES[name], cells=cells))[0]["jobs"])

    assert names("full") == ["plan", "build", "plan-2", "build-2", "plan-3", "build-3"]
    assert names("no-rounds") == names("wheels-only") == names("bare") == ["plan", "build"]
    assert len(names("cache-only")) == 2 * 21
    parts = names("wheels-only", GITHUB_JOBS + 1)
    assert parts == ["plan", "build-part-1", "build-part-2"]
    assert names("no-rounds", GITHUB_JOBS + 1) == ["plan", "build"], "four jobs share them"


def test_a_job_has_time_beside_its_build_and_ends_before_github_ends_it() -> None:
    for document in loaded(rendered("github"))[2:]:
        assert document["jobs"]["build"]["timeout-minutes"] == 355


@pytest.mark.parametrize(
    ("service", "runner", "limit", "code"),
    [
        ("gitlab", "ubuntu-24.04", "5h21m", ""),
        ("github", "ubuntu-24.04", "5h21m", "ci-time-limit"),
        ("github", "self-hosted", "119h20m", ""),
        ("github", "self-hosted", "119h21m", "ci-time-limit"),
    ],
)
def test_a_limit_beyond_what_github_allows_its_machines_and_others_is_refused(
    service: Service, runner: str, limit: str, code: str
) -> None:
    document = BARE | {"runner": runner, "ci": CI | {"time_limit": limit}}
    problem = pipeline.refusal(service, matrices.read(json.dumps(document), "m.yaml"))
    assert (problem.code if problem else "") == code


def job(name: str, *runner: str) -> Job:
    return Job(loads=(CellLoad(name=name, seconds=None, group="g", runner=runner),))


def test_gitlab_s_jobs_have_names_that_it_takes_however_many_wheels_each_builds() -> None:
    longest = "a" * 128
    several = Job(
        loads=tuple(CellLoad(name=f"{longest}{one}", seconds=None, group="g", runner=("gpu", "x")) for one in "bc")
    )
    found = gitlab_jobs([job(longest, "cpu"), several])
    rows = ((longest, longest, ["cpu"]), (f"{longest}b+1", f"{longest}b {longest}c", ["gpu", "x"]))
    assert found == {
        name: {"extends": ".build", "tags": tags, "variables": {"TFDOCK_JOB": name, "TFDOCK_CELLS": cells}}
        for name, cells, tags in rows
    }
    # More than 255 characters, and GitLab makes no pipeline.
    assert all(len(name) <= 255 for name in found)
    assert gitlab_jobs([]) == {}


# --- the commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example's matrix, which is the working folder."""
    monkeypatch.setattr(loader, "knowledge", lambda *_: desk.knowledge)
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copytree(EXAMPLE / "profiles", folder / "profiles")
    return folder


def ci(*words: str) -> Result:
    return CliRunner().invoke(app, ["ci", *words])


def codes(result: Result) -> list[str]:
    return re.findall(r"error: .* \[(ci-[a-z-]+)\]", result.stderr)


def edited(file: Path, old: str, new: str) -> str:
    """Change a file by a pattern, and return its text."""
    before = file.read_text()
    file.write_text(text := re.sub(old, new, before))
    assert text != before
    return text


WORKFLOWS = [f".github/workflows/wheels{part}.yml" for part in ("", "-plan", "-build", "-pull-request")]


def test_what_was_rendered_is_fresh_until_the_matrix_changes(repository: Path) -> None:
    first = ci("render", "github")
    assert (first.exit_code, first.stdout.split()) == (0, WORKFLOWS)
    assert ci("check").exit_code == 0
    edited(repository / "profiles/matrix.yaml", "17 3", "18 4")
    stale = ci("check")
    assert (stale.exit_code, codes(stale)) == (4, ["ci-file-stale"])
    assert '-    - cron: "17 3 * * 1"\n+    - cron: "18 4 * * 1"\n' in stale.stdout
    assert ci("render", "github").exit_code == 0
    assert ci("check").exit_code == 0


def test_an_edited_file_is_told_and_not_replaced(repository: Path) -> None:
    ci("render", "github")
    file = repository / WORKFLOWS[1]
    text = edited(file, r"ubuntu-24\.04", "ubuntu-26.04")
    checked = ci("check")
    assert (checked.exit_code, codes(checked)) == (4, ["ci-file-edited"])
    assert '-    runs-on: ["ubuntu-26.04"]\n' in checked.stdout
    refused = ci("render", "github")
    assert (refused.exit_code, codes(refused), file.read_text()) == (2, ["ci-file-edited"], text)
    assert ci("render", "github", "--force").exit_code == 0
    assert ci("check").exit_code == 0


def test_somebody_else_s_file_is_not_replaced_and_nothing_is_half_written(repository: Path) -> None:
    file = repository / WORKFLOWS[1]
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\n")
    refused = ci("render", "github")
    assert (refused.exit_code, codes(refused)) == (2, ["ci-file-foreign"])
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_text() == "name: mine\n"
    assert codes(ci("check")) == ["ci-not-rendered"]


@pytest.mark.parametrize(
    ("service", "name"),
    [("github", f"{name}.yaml") for name in ("more/matrix", "pull-request", "plan")] + [("gitlab", "build.yaml")],
)
def test_another_matrix_s_file_is_not_replaced(repository: Path, service: str, name: str) -> None:
    """Files are called after a matrix's name, and two may have one."""
    ci("render", service)
    before = {path: path.read_text() for path in repository.rglob("*.yml")}
    other = repository / name
    other.parent.mkdir(exist_ok=True)
    shutil.copyfile(repository / "profiles/matrix.yaml", other)
    refused = ci("render", service, name)
    assert refused.exit_code == 2
    assert set(codes(refused)) == {"ci-file-foreign"}
    assert "rendered from another matrix, profiles/matrix.yaml" in refused.stderr
    assert {path: path.read_text() for path in repository.rglob("*.yml")} == before
    assert codes(ci("check", name)) == ["ci-not-rendered"]


def test_a_file_that_is_gone_is_stale(repository: Path) -> None:
    ci("render", "github")
    (repository / WORKFLOWS[1]).unlink()
    assert codes(ci("check")) == ["ci-file-stale"]


def test_a_matrix_must_be_where_jobs_will_look_for_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "sub").mkdir()
    monkeypatch.chdir(repository / "sub")
    refused = ci("render", "github", "../profiles/matrix.yaml")
    assert (refused.exit_code, codes(refused)) == (2, ["ci-matrix-outside"])


def test_a_pipeline_that_was_rendered_from_elsewhere_is_the_repository_s_own(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ci("render", "github").exit_code == 0
    within = [(repository / name).read_text() for name in WORKFLOWS]
    (repository / "sub").mkdir()
    monkeypatch.chdir(repository / "sub")
    words = ("../profiles/matrix.yaml", "-o", "..")
    assert ci("check", *words).exit_code == 0
    assert ci("render", "github", "--force", *words).exit_code == 0
    assert [(repository / name).read_text() for name in WORKFLOWS] == within


def test_a_name_that_is_no_text_is_refused(repository: Path) -> None:
    name = os.fsdecode(b"\xff.yaml")
    shutil.copyfile(repository / "profiles/matrix.yaml", repository / name)
    refused = ci("render", "github", name)
    assert (refused.exit_code, codes(refused)) == (2, ["ci-matrix-name"])


def test_a_limit_that_github_does_not_have_stops_github_alone(repository: Path) -> None:
    matrix = repository / "profiles/matrix.yaml"
    matrix.write_text(matrix.read_text() + "  time_limit: 6h\n")
    refused = ci("render", "github")
    assert (refused.exit_code, codes(refused)) == (2, ["ci-time-limit"])
    assert not (repository / ".github").exists()
    assert ci("render", "gitlab").exit_code == 0
    assert ci("check").exit_code == 0


def test_the_json_document_has_states_and_differences(repository: Path) -> None:
    document = json.loads(ci("render", "gitlab", "--json").stdout)
    assert (document["schema"], document["ok"], len(document["files"])) == ("tfdock.ci-render/1", True, 2)
    file = repository / ".gitlab/wheels.yml"
    file.write_text(file.read_text() + "# mine\n")
    document = json.loads(ci("check", "--json").stdout)
    assert (document["schema"], document["ok"]) == ("tfdock.ci-check/1", False)
    assert [one["state"] for one in document["files"]] == ["edited", "fresh"]
    assert "# mine" in document["files"][0]["difference"]


@pytest.mark.parametrize(("name", "service"), list(itertools.product(HOSTILE[:3] + HOSTILE[5:], SERVICES)))
def test_a_hostile_name_on_disk_is_rendered_and_checked(repository: Path, name: str, service: str) -> None:
    path = repository / name.replace("profiles/", "")
    shutil.copyfile(repository / "profiles/matrix.yaml", path)
    assert ci("render", service, "--", path.name).exit_code == 0
    assert ci("check", "--", path.name).exit_code == 0


LINKED = [".github", ".github/workflows", *WORKFLOWS]


@pytest.mark.parametrize("link", LINKED)
@pytest.mark.parametrize("dangling", [False, True])
def test_no_link_of_the_repository_leads_a_pipeline_out_of_it(repository: Path, link: str, dangling: bool) -> None:
    outside = repository.parent / "outside"
    outside.mkdir()
    if not dangling:
        (outside / "to/workflows").mkdir(parents=True)
    target = outside / "to"
    if link in WORKFLOWS and not dangling:
        target = outside / "secret"
        target.write_text("CANARY-4711\n")
    before = sorted(outside.rglob("*"))
    (repository / link).parent.mkdir(parents=True, exist_ok=True)
    (repository / link).symlink_to(target)
    for words in (("render", "github"), ("render", "github", "--force"), ("check",)):
        refused = ci(*words)
        assert refused.exit_code == 2
        assert re.search(rf"`{re.escape(Path(link).name)}` is a link.*\[file-not-plain\]", refused.stderr)
        assert "CANARY" not in refused.output
    assert sorted(outside.rglob("*")) == before
    assert (repository / link).is_symlink()


def test_a_pipe_or_a_large_file_in_the_place_of_a_workflow_is_refused_at_once(repository: Path) -> None:
    file = repository / WORKFLOWS[1]
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    assert "is a FIFO" in ci("check").stderr
    assert "[file-not-plain]" in ci("render", "github", "--force").stderr
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate(20 << 30)
    assert "[file-too-large]" in ci("check").stderr


def test_the_repository_s_folder_may_be_named_through_a_link(repository: Path) -> None:
    link = repository.parent / f"{repository.name}-link"
    link.symlink_to(repository)
    assert ci("render", "github", str(link / "profiles/matrix.yaml"), "-o", str(link)).exit_code == 0
    assert ci("check").exit_code == 0


def test_the_setting_that_allows_folders_holds_for_pipelines(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = repository.parent / "outside"
    outside.mkdir()
    (outside / "base.yaml").write_text('schema: 1\ntensorflow: "2.18.0"\n')
    file = repository / "profiles/based.yaml"
    file.write_text(
        f'schema: 1\nbase: {outside}/base.yaml\naxes: {{python: ["3.11"]}}\nci: {{install: "{pipeline.INSTALL}"}}\n'
    )
    assert "[path-outside]" in ci("render", "github", str(file)).stderr
    monkeypatch.setenv("TFDOCK_ALLOW_PATHS", str(outside))
    assert ci("render", "github", str(file)).exit_code == 0
    assert ci("check", str(file)).exit_code == 0


# --- what is refused, and what is told ------------------------------------------------------------------------------


@pytest.mark.parametrize("service", SERVICES)
def test_a_pipeline_without_a_command_that_installs_is_refused(repository: Path, service: str) -> None:
    """A default would be a name on an index, and today nobody owns it."""
    matrix = repository / "profiles/matrix.yaml"
    text = matrix.read_text()
    edited(matrix, r"  install: .*\n", "")
    refused = ci("render", service)
    assert (refused.exit_code, codes(refused)) == (2, ["ci-install-missing"])
    assert f"`install: {pipeline.INSTALL}`" in refused.stderr
    assert not (repository / ".github").exists()
    assert not (repository / ".gitlab").exists()
    matrix.write_text(text)
    ci("render", service)
    edited(matrix, r"  install: .*\n", "")
    checked = ci("check")
    assert (checked.exit_code, codes(checked)[0]) == (4, "ci-install-missing")


HASH, COMMIT = "0" * 64, "0" * 40


@pytest.mark.parametrize(
    ("install", "name"),
    [
        (pipeline.INSTALL, ""),
        ("pip install --no-deps ./tfdock && pip install --require-hashes -r more.txt", ""),
        ("pip install .", ""),
        ('pip install "$GITHUB_WORKSPACE/tfdock"', ""),
        ("python3 -m pip install -q ci/tfdock-0.1.0-py3-none-any.whl", ""),
        (f"pip install git+https://git.example/me/tfdock@{COMMIT}", ""),
        (f"pip install 'tfdock @ git+https://git.example/me/tfdock.git@{COMMIT}'", ""),
        (f"uv pip install 'tfdock @ https://files.example/t.whl#sha256={HASH}'  # ours", ""),
        ('ln -s /opt/tfdock "$VIRTUAL_ENV/bin/tfdock"', ""),
        ("echo install", ""),
        ("pip install tfdock", "tfdock"),
        ("pip install tfdock==0.1.0", "tfdock==0.1.0"),
        ("pip3 install --index-url https://index.example/simple tfdock", "tfdock"),
        ("pip install ./tfdock pydantic", "pydantic"),
        ("pip install ./tfdock; exec /usr/bin/pip -q install -U pydantic", "pydantic"),
        ("pip install -r requirements.txt", "requirements.txt"),
        ("pip install git+https://git.example/me/tfdock@main", "git+https://git.example/me/tfdock@main"),
        ("pip install https://files.example/t.tar.gz", "https://files.example/t.tar.gz"),
        ("pipx install tfdock", "tfdock"),
        ("uv tool install tfdock", "tfdock"),
        ("uvx tfdock", "tfdock"),
    ],
)
def test_what_an_installation_does_not_pin_is_named(install: str, name: str) -> None:
    assert unpinned(install) == name


@pytest.mark.parametrize("service", SERVICES)
def test_a_pipeline_that_installs_a_name_without_a_pin_is_refused(repository: Path, service: str) -> None:
    assert ci("render", service).exit_code == 0
    edited(repository / "profiles/matrix.yaml", "install: .*", "install: pip install tfdock==0.1.0")
    for words, code in ((("render", service), 2), (("check",), 4)):
        told = ci(*words)
        assert (told.exit_code, codes(told)[0]) == (code, "ci-install-unpinned")
        assert "matrix.yaml:16:12: error: " in told.stderr
        assert "does not pin `tfdock==0.1.0`" in told.stderr
    assert "tfdock==0.1.0" not in "".join(file.read_text() for file in repository.rglob("*.yml"))


@pytest.mark.usefixtures("repository")
def test_whoever_renders_or_checks_hears_of_machines_that_stay() -> None:
    for words in (("render", "github"), ("check",)):
        assert ci(*words).stderr.count("[ci-own-machine]") == 1
    assert [one["code"] for one in json.loads(ci("check", "--json").stdout)["warnings"]] == ["ci-own-machine"]


# --- cells and knowledge --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"2.20.0"', '"2.99.0"', "release-unknown"),
        ('"2.20.0"', "2.20.0\n  verify: 1", "profile-bad-value"),
        ('["3.11", "3.12"]', '["3.1"]', "matrix-impossible"),
        ("[[rtx3080], [rtx5090]]", "[[rtx3080], [rtx3070]]", "build-id-twice"),
    ],
)
def test_a_matrix_whose_cells_nobody_can_plan_is_neither_rendered_nor_passed(
    repository: Path, old: str, new: str, code: str
) -> None:
    assert ci("render", "github").exit_code == 0
    edited(repository / "profiles/matrix.yaml", re.escape(old), new)
    for words in (("render", "github"), ("check",)):
        refused = ci(*words)
        assert refused.exit_code == (3 if code == "matrix-impossible" else 2)
        assert f"[{code}]" in refused.stderr, refused.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_jobs_have_the_knowledge_that_the_matrix_names_and_no_other(
    repository: Path, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(repository)
    (repository / ".git").mkdir()
    (repository / "rows").mkdir()
    (repository / "rows/gpus.yaml").write_text(GPU_ROW)
    matrix = repository / "profiles/matrix.yaml"
    text = (
        matrix.read_text().replace("[rtx5090]]\n", "[rtx9999]]\n").replace("gpus: [rtx5090]}\n", "gpus: [rtx9999]}\n")
    )
    matrix.write_text(text)
    for name in [name for name in os.environ if name.startswith("TFDOCK_")]:  # a test bed has settings of its own
        monkeypatch.delenv(name)
    monkeypatch.setenv("TFDOCK_KNOWLEDGE", "rows")
    monkeypatch.setenv("TFDOCK_NETWORK", "mine")
    refused = ci("render", service)
    assert refused.exit_code == 2
    assert (
        "does not have these settings of this machine: knowledge, network [ci-setting-not-carried]" in refused.stderr
    )
    assert "[gpu-unknown]" in refused.stderr
    matrix.write_text(text.replace("\nci:\n", "\nci:\n  knowledge: [../rows]\n"))
    monkeypatch.delenv("TFDOCK_NETWORK")
    done = ci("render", service)
    assert (done.exit_code, "[ci-setting-not-carried]" in done.stderr) == (0, False), done.output
    monkeypatch.delenv("TFDOCK_KNOWLEDGE")
    assert ci("check").exit_code == 0
    for path in done.stdout.split():
        names = "env" if service == "github" else "variables"
        document = yaml.load(Path(path).read_text(), LOADER)
        assert document.get(names, {}).get("TFDOCK_KNOWLEDGE", "rows") == "rows"
        assert (names in document) == (Path(path) != Path(WORKFLOWS[0]))


GPU_ROW = """\
checked: "2026-11-21"
sources: {mine: "the card itself"}
rows:
  - {gpu: rtx9999, accelerator: cuda, target: "12.0", names: ["RTX 9999"], memory_gib: 48, source: mine}
"""


def test_knowledge_outside_of_the_repository_is_refused(repository: Path) -> None:
    matrix = repository / "profiles/matrix.yaml"
    text = matrix.read_text()
    for name, code in (("../rows", "path-outside"), ("/etc", "path-outside"), ("a:b", "profile-bad-value")):
        matrix.write_text(text.replace("\nci:\n", f"\nci:\n  knowledge: [{name}]\n"))
        refused = ci("render", "github")
        assert (refused.exit_code, f"[{code}]" in refused.stderr) == (2, True), refused.output
    matrix.write_text(text.replace("\nci:\n", "\nci:\n  knowledge: [rows]\n"))
    for file, leads in (("gpus.yaml", "/proc/version"), ("releases/a.yaml", "/etc/hostname")):
        link = repository / "profiles/rows" / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(leads)
        refused = ci("render", "github")
        assert (refused.exit_code, f"`rows/{file}` leads to {leads}" in refused.stderr) == (2, True), refused.output
        link.unlink()


@pytest.mark.parametrize(
    ("service", "runner", "stays"),
    [("github", "ubuntu-24.04", False), ("github", ["self-hosted", "linux"], True), ("gitlab", "saas-linux", True)],
)
def test_a_machine_that_stays_is_warned_of(service: Service, runner: object, stays: bool) -> None:
    matrix = matrices.read(json.dumps(BARE | {"runner": runner}), "m.yaml")
    assert [one.code for one in pipeline.warnings(service, matrix, 0)] == (["ci-own-machine"] if stays else [])


@pytest.mark.parametrize(
    ("ci", "hours", "warned"),
    [
        ({}, 5, False),
        ({}, 9, True),
        ({"time_limit": "10h"}, 9, False),
        ({"cache": "ghcr.io/me/cache"}, 9, False),
    ],
)
def test_a_wheel_that_no_job_can_finish_is_warned_of(ci: dict[str, str], hours: int, warned: bool) -> None:
    matrix = matrices.read(json.dumps(BARE | {"ci": BARE.get("ci", {}) | ci}), "m.yaml")
    found = [one.code for one in pipeline.warnings("github", matrix, hours * 3600)]
    assert found == (["ci-no-cache"] if warned else [])


def test_cells_without_a_wheel_are_warned_of() -> None:
    matrix = matrices.read(json.dumps(BARE), "m.yaml")
    (found,) = pipeline.warnings("github", matrix, 0, 2)
    assert (found.code, found.severity) == ("matrix-impossible", "warning")
    assert found.message == "the pipeline makes no wheel for 2 cells that cannot be built"
