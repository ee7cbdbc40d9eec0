"""Make the files of a CI pipeline for the wheels of a matrix: plan, build, and plan again for stopped builds. Pure.

Templates have the layout, this module makes the decisions. Values of the matrix reach a file as one kind of YAML
scalar that neither YAML nor the service evaluates. Shell steps read the values from their environment. No file lists
the wheels to build: the plan of each run lists them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from tfdock.ci.pinned import unpinned
from tfdock.errors import Fix, Problem
from tfdock.knowledge.program_rows import CiAction
from tfdock.matrix.matrix_file import Ci, Matrix
from tfdock.matrix.shards import GITHUB_JOBS, Job
from tfdock.plan.render import from_template
from tfdock.profile.units import parse_seconds
from tfdock.types import ImageRef

Service = Literal["github", "gitlab"]
State = Literal["fresh", "missing", "stale", "edited", "another", "foreign"]

# Less than GitHub's limit of six hours, so that time is left to save the results.
TIME_LIMIT = "5h15m"  #: How long a job builds by default.
INSTALL = "pip install --require-hashes -r ci/requirements.txt"  #: A pinned installation, as an example in messages.
#: Minutes of a job besides its build: installing tfdock, pulling and pushing the cache, saving the wheels.
_MARGIN = 40
_HOSTED_MINUTES = 360  #: Minutes after which GitHub ends a job on GitHub's machines.
# GitHub documents five days for jobs on machines of your own.
_OWN_MINUTES = 5 * 24 * 60  #: Minutes after which GitHub ends any job.
# GitLab's keyword `retry` takes 0, 1 or 2.
_GITLAB_RETRIES = 2  #: The most times that GitLab restarts a job.
_GITHUB_REGISTRY = "ghcr.io"  #: The registry that a GitHub job may use with the job's own token.
_SELF_HOSTED = "self-hosted"
_SEAL = "# sha256 of the lines below: "
_ORIGIN = re.compile(r"# Rendered by tfdock from (.*)\. Do not edit it")


def files(
    service: Service,
    matrix: Matrix,
    *,
    path: str,
    command: str,
    cells: int,
    knowledge: str = "",
    templates: Mapping[str, str],
    actions: Mapping[str, CiAction],
) -> dict[str, str]:
    """Return path -> text of a pipeline's files in the repository; the same arguments give the same texts.

    `path` is the path of the matrix in the repository, `command` the command that renders it. `cells` is the maximum
    number of wheels. `knowledge` is the value of TFDOCK_KNOWLEDGE in jobs. `refusal` is the reason why the pipeline
    cannot be used; `warnings` are hints about the pipeline.
    """
    ci, name = matrix.ci, _name(path)
    # GitHub allows 256 jobs in one matrix, so a larger round has several jobs, each with its own matrix.
    parts = max(ceil(_most_jobs(matrix, cells) / GITHUB_JOBS), 1)
    rounds = _rounds(ci, parts)
    values: dict[str, object] = {
        # Use the commit: the owner of an action can move its tags. The comment is for people and update tools.
        "actions": {action: f"{action}@{row.commit} # {row.version}" for action, row in actions.items()},
        "branches": ci.branches,
        "build_file": f".gitlab/{name}-build.yml",
        "cache": ci.cache or "",
        "changed_since": "",
        "command": command,
        "install": ci.install or "",
        "knowledge": knowledge,
        "job_file": f".github/workflows/{name}-build.yml",
        "logins": list(_logins(ci)),
        "matrix": path,
        "minutes": _minutes(ci),
        "name": name,
        "plan_file": f".github/workflows/{name}-plan.yml",
        "only_round": _round(1, parts, last=True),
        "registry": ci.registry or "",
        # A retry continues from the pushed cache; without a cache it would start from the beginning.
        "retries": min(ci.continuations, _GITLAB_RETRIES) if ci.cache else 0,
        "rounds": rounds,
        "runner": list(matrix.runner),
        "schedule": ci.schedule or "",
        "shards": str(ci.jobs or ""),
        "time_limit": ci.time_limit or TIME_LIMIT,
        "trusted": " || ".join(f"github.ref == 'refs/heads/{branch}'" for branch in ci.branches),
    }
    filters = (("scalar", _SCALARS[service]), ("comment", _comment), ("expression", _expression))
    return {
        target.format(name=name): _with_seal(from_template(templates, template, values, filters).decode())
        for target, template in _FILES[service].items()
    }


def _most_jobs(matrix: Matrix, cells: int) -> int:
    """Return the largest number of jobs in a round. Each kind of machine has at least one job."""
    return min(cells, max(matrix.ci.jobs, len(_runners(matrix)))) if matrix.ci.jobs else cells


def _runners(matrix: Matrix) -> set[tuple[str, ...]]:
    return {matrix.runner, *(rule.runner for rule in matrix.overrides if rule.runner is not None)}


def _rounds(ci: Ci, parts: int) -> list[dict[str, Any]]:
    """Return the rounds of planning and building, with the names and conditions of their jobs.

    Without a cache there is one round: a second round would start from the beginning.
    """
    count = ci.continuations + 1 if ci.cache else 1
    return [_round(number, parts, last=number == count) for number in range(1, count + 1)]


def _round(number: int, parts: int, *, last: bool) -> dict[str, Any]:
    plan, builds = _of_round("plan", number), _builds(number, parts)
    before = _builds(number - 1, parts) if number > 1 else []
    return {
        "number": number,
        "last": last,
        "plan": plan,
        "title": "Plan" if number == 1 else f"Plan, round {number}",
        "needs": before,
        "cut": " || ".join(f"needs.{build}.outputs.cut == 'true'" for build in before),
        "builds": [_build(build, plan, part) for part, build in enumerate(builds)],
    }


def _build(name: str, plan: str, part: int) -> dict[str, str]:
    matrix = f"fromJSON(needs.{plan}.outputs.plan)[{part}]"
    # The condition is evaluated before the matrix: GitHub refuses an empty matrix.
    wanted = f"!cancelled() && needs.{plan}.result == 'success' && {matrix}.include[0] != null"
    return {"id": name, "matrix": matrix, "wanted": wanted}


def _of_round(job: str, number: int) -> str:
    return job if number == 1 else f"{job}-{number}"


def _builds(number: int, parts: int) -> list[str]:
    build = _of_round("build", number)
    return [build] if parts == 1 else [f"{build}-part-{part}" for part in range(1, parts + 1)]


_FILES: Mapping[Service, Mapping[str, str]] = {
    "github": {
        ".github/workflows/{name}.yml": "github.yml.j2",
        ".github/workflows/{name}-plan.yml": "github-plan.yml.j2",
        ".github/workflows/{name}-build.yml": "github-build.yml.j2",
        ".github/workflows/{name}-pull-request.yml": "github-pull-request.yml.j2",
    },
    "gitlab": {".gitlab/{name}.yml": "gitlab.yml.j2", ".gitlab/{name}-build.yml": "gitlab-build.yml.j2"},
}


def _name(path: str) -> str:
    """Return the name of a pipeline: `wheels` for `matrix.yaml`, and `wheels-NAME` for a matrix of another name."""
    stem = path.rpartition("/")[2].rpartition(".")[0] or path
    # The name becomes part of file names and job groups, so only plain letters and digits are kept.
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:60]
    return "wheels" if slug in ("matrix", "") else f"wheels-{slug}"


def _minutes(ci: Ci) -> int:
    """Return the time limit of a job in minutes: the build, and the steps around it."""
    return ceil(parse_seconds(ci.time_limit or TIME_LIMIT) / 60) + _MARGIN


def refusal(service: Service, matrix: Matrix) -> Problem | None:
    """Return why a pipeline of this matrix cannot be used, or None."""
    if matrix.ci.install is None:
        return Problem(
            "ci-install-missing",
            "the matrix does not say how a job installs tfdock",
            f"write into the matrix, below `ci:`: `install: {INSTALL}`",
            why="a default would name a package on an index, and the owner of that name can run code in every job",
            file=matrix.file,
            field="ci.install",
        )
    return _not_pinned(matrix) or (_too_long(matrix) if service == "github" else None)


def _too_long(matrix: Matrix) -> Problem | None:
    """Return a problem if GitHub ends a job of the matrix before the job has saved its results."""
    most, why = _OWN_MINUTES, "every job ends"
    fixes = [f"write `time_limit: {TIME_LIMIT}`, and as many `continuations` as needed"]
    # Checking one job on a hosted machine is enough: the time limit is the same for all jobs.
    if not all(_SELF_HOSTED in runner for runner in _runners(matrix)):
        most, why = _HOSTED_MINUTES, "jobs on GitHub's machines end"
        fixes.append(f"name your own machine with `runner:` and the label `{_SELF_HOSTED}`")
    if _minutes(matrix.ci) <= most:
        return None
    return _problem(
        matrix,
        "time_limit",
        "ci-time-limit",
        f"GitHub ends a job that builds for {matrix.ci.time_limit} before the job can save its results",
        fixes,
        why=f"{why} after {most} minutes, and {_MARGIN} of them are needed for the steps before and after the build",
    )


def _problem(matrix: Matrix, key: str, code: str, message: str, fix: Fix, **more: str) -> Problem:
    """Return a problem of a key below `ci:`, with its place."""
    field = f"ci.{key}"
    return matrix.document.at_field(field).problem(matrix.file, code, message, fix, field=field, **more)


def _not_pinned(matrix: Matrix) -> Problem | None:
    name = unpinned(matrix.ci.install or "")
    if not name:
        return None
    return _problem(
        matrix,
        "install",
        "ci-install-unpinned",
        f"the command that installs tfdock does not pin `{name}`",
        f"`install: {INSTALL}`; `uv pip compile --generate-hashes` or pip-compile writes this file",
        why="the publisher of that name can run code in every job, also in the job that pushes wheels",
    )


def warnings(service: Service, matrix: Matrix, longest: float, impossible: int = 0) -> tuple[Problem, ...]:
    """Return the warnings about a pipeline; `longest` are the expected seconds of its slowest wheel.

    `impossible` is the number of cells that cannot be built.
    """
    return (*_impossible(matrix, impossible), *_own_machines(service, matrix), *_without_cache(matrix, longest))


def _impossible(matrix: Matrix, cells: int) -> Iterator[Problem]:
    if cells:
        message = f"the pipeline makes no wheel for {cells} cell{'s' * (cells != 1)} that cannot be built"
        fix = "`tfdock matrix` gives the reasons; change or exclude the cells"
        yield Problem("matrix-impossible", message, fix, severity="warning", file=matrix.file)


def _without_cache(matrix: Matrix, longest: float) -> Iterator[Problem]:
    limit = matrix.ci.time_limit or TIME_LIMIT
    if matrix.ci.cache or longest <= parse_seconds(limit):
        return
    yield Problem(
        "ci-no-cache",
        f"a wheel takes about {longest / 3600:.0f} hours on a machine like this one, and a job builds for {limit}",
        "name a registry for Bazel's cache below `ci:`, such as `cache: ghcr.io/me/tfdock-cache`",
        severity="warning",
        why="without a cache, no job can resume the work of another job, so such a wheel is never finished",
        file=matrix.file,
    )


def _own_machines(service: Service, matrix: Matrix) -> tuple[Problem, ...]:
    """Return a warning if jobs run on the user's machines: on GitLab's shell runners, or GitHub's with the label."""
    # Any GitLab runner may be the user's own machine: its tags do not show this.
    if service == "github" and not any(_SELF_HOSTED in runner for runner in _runners(matrix)):
        return ()
    warning = Problem(
        "ci-own-machine",
        f"jobs of {_TITLES[service]} run on your own machines, which may still exist after a job",
        "use different runners for pull requests and protected branches, and delete each runner after its job",
        severity="warning",
        why="a pull request can change the commands of its jobs on these machines, and later jobs find its leftovers",
        file=matrix.file,
    )
    return (warning,)


_TITLES: Mapping[Service, str] = {"github": "GitHub", "gitlab": "GitLab"}


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A registry that a job logs in to. If `own` is set, the token of the CI service works. If not, the names of the
    variable (user) and of the secret (token) begin with `secret`.
    """

    host: str
    own: bool
    secret: str

    def variable(self, rights: str) -> str:
        """Return the beginning of the names of the variable and the secret. `rights` is `read` or `write`."""
        return f"{self.secret}_READ" if rights == "read" else self.secret


def _logins(ci: Ci) -> Iterator[RegistryLogin]:
    hosts: dict[str, str] = {}
    for name, secret in ((ci.registry, "TFDOCK_REGISTRY"), (ci.cache, "TFDOCK_CACHE")):
        if name:
            # Registry and cache may share a host, and a host has one login: the first name wins.
            hosts.setdefault(ImageRef.parse(name).registry, secret)
    yield from (RegistryLogin(host, host == _GITHUB_REGISTRY, secret) for host, secret in hosts.items())


# --- values in files ------------------------------------------------------------------------------------------------


def _scalar(value: object) -> str:
    """Return a text or a list of texts as JSON on one line, which is also YAML.

    Characters beyond U+FFFF are the exception: JSON escapes each as a pair, which YAML does not combine.
    """
    # YAML reads a JSON string as a double-quoted scalar, also with escapes that JSON lacks: `\U0001f600`.
    return re.sub(r"[^ -~]", _escape_unprintable, json.dumps(value, ensure_ascii=False))


def _escape_unprintable(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else f"\\U{ord(match[0]):08x}"


def _github_scalar(value: object) -> str:
    """Return a value that GitHub does not evaluate."""
    # The only expression left yields the text `${{`. Its result is not evaluated again.
    return _scalar(value).replace("${{", "${{ '${{' }}")


def _gitlab_scalar(value: object) -> str:
    """Return a value with each dollar sign escaped for GitLab."""
    # GitLab replaces variables in values; `$$` stands for one dollar sign.
    return _scalar(value).replace("$", "$$")


_SCALARS: Mapping[Service, Callable[[object], str]] = {"github": _github_scalar, "gitlab": _gitlab_scalar}


def _expression(text: str) -> str:
    """Return a GitHub expression. Templates write the text; its only values are branches, which have no quotes."""
    return f"${{{{ {text} }}}}"


def _comment(text: str) -> str:
    """Return text for a comment of one line."""
    # A line break would end the comment, and the rest would be YAML.
    return text if text.isprintable() else ascii(text)


def shell_word(text: str) -> str:
    """Quote a word of a command line. The result is one line, whatever the word contains."""
    # `shlex.quote` keeps line breaks, and the command must fit on the one line of the comment.
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escape, text))}'"


def _escape(character: str) -> str:
    """Return a character, escaped for use between `$'` and `'`."""
    if character.isprintable() and character not in "\\'":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


# --- jobs of a child pipeline ---------------------------------------------------------------------------------------


def gitlab_jobs(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the jobs of a round for a child pipeline of GitLab, by name. The rendered file explains the jobs. They
    are not a `parallel: matrix:`, because its job names contain all values. GitLab refuses names with more than 255
    characters, and a build id may have 128.
    """
    return {job.name: _gitlab_job(job) for job in jobs}


def _gitlab_job(job: Job) -> dict[str, Any]:
    variables = {"TFDOCK_JOB": job.name, "TFDOCK_CELLS": job.cells}
    return {"extends": ".build", "tags": list(job.loads[0].runner), "variables": variables}


# --- files that are there -------------------------------------------------------------------------------------------


def _with_seal(text: str) -> str:
    """Return the file with a hash in its head, which distinguishes an old file from an edited one."""
    head, _, body = text.partition("\n\n")
    return f"{head}\n{_SEAL}{_hash(body)}\n\n{body}"


def _hash(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def state(current: str | None, rendered: str) -> State:
    """Compare a file with its rendered text. A `stale` file was rendered from an earlier state of the matrix. An
    `edited` file was changed after it was rendered. An `another` file belongs to another matrix with the same name. A
    `foreign` file was never rendered.
    """
    if current is None:
        return "missing"
    if current == rendered:
        return "fresh"
    head, _, body = current.partition("\n\n")
    seal = head.rpartition("\n")[2]
    # In this order: only a file with a seal can be `edited`, and only an unedited file can be outdated.
    if not seal.startswith(_SEAL):
        return "foreign"
    if seal != f"{_SEAL}{_hash(body)}":
        return "edited"
    return "another" if origin(current) != origin(rendered) else "stale"


def origin(text: str) -> str:
    """Return the matrix that a rendered file says it was rendered from."""
    match = _ORIGIN.match(text)
    return match[1] if match else ""


def difference(current: str, rendered: str, path: str) -> str:
    """Return the changes that rendering would make to a file, as a unified diff."""
    lines = difflib.unified_diff(
        current.splitlines(), rendered.splitlines(), f"{path} (there)", f"{path} (rendered)", lineterm=""
    )
    return "\n".join(lines)
