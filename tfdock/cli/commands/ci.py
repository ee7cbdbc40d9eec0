"""`ci render` and `ci check`: a matrix's pipeline for GitHub or GitLab, written, and held against its files."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfdock.cli import ci_log, console
from tfdock.cli.app import AllowPath, AsJson, Knowledge, app, command, knowledge_for, print_json, settings_for
from tfdock.cli.commands.matrix import MATRIX
from tfdock.errors import ExitCode, Problem, ProfileError

if TYPE_CHECKING:
    from tfdock.ci.pipeline_files import Pipeline

group = typer.Typer(
    name="ci",
    help="Write a CI pipeline that makes the wheels of a matrix, and see that it is what the matrix asks for.",
    no_args_is_help=True,
)
app.add_typer(group)


class PipelineService(StrEnum):
    """Whose pipeline it is."""

    GITHUB = "github"
    GITLAB = "gitlab"


File_ = Annotated[
    Path, typer.Argument(help="The matrix; profiles/matrix.yaml by default.", metavar="FILE", show_default=False)
]
Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="The repository's folder, if it is not this one.", metavar="DIR", show_default=False
    ),
]


@group.command(epilog="Example: `tfdock ci render github`, in the folder of a repository. Prints the files' paths.")
@command("tfdock.ci-render/1")
def render(
    service: Annotated[PipelineService, typer.Argument(help="`github` or `gitlab`.", show_default=False)],
    file: File_ = MATRIX,
    output: Output = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="Also over files that were edited, or that tfdock has not rendered.")
    ] = False,
    knowledge: Knowledge = None,
    allow_path: AllowPath = None,
    as_json: AsJson = False,
) -> None:
    """Write the pipeline of a matrix: plan, build, build again what a time limit cut, index."""
    from tfdock.ci import pipeline_files

    settings = settings_for(knowledge=knowledge, allow_paths=allow_path)
    pipeline = pipeline_files.rendered(service.value, file, output, knowledge_for(settings), settings.allow_paths)
    written = list(pipeline_files.write(pipeline, force=force))
    console.show_problems(pipeline.warnings)
    if as_json:
        rows = [{"path": str(one.path), "written": changed} for one, changed in written]
        document = {"service": service.value, "files": rows, "warnings": pipeline.warnings}
        print_json("tfdock.ci-render/1", True, document)
        return
    for one, changed in written:
        console.say(str(one.path), stream=sys.stdout)
        if not changed:
            console.say(f"{console.clean(str(one.path))}: as it was")


@group.command(epilog="Example: `tfdock ci check`, as a step of CI. Exit status 4 is for what is not as rendered.")
@command("tfdock.ci-check/1")
def check(
    file: File_ = MATRIX,
    service: Annotated[
        list[PipelineService] | None,
        typer.Option(
            "--service", help="Only this one's; by default those of which a file is there.", show_default=False
        ),
    ] = None,
    output: Output = Path(),
    knowledge: Knowledge = None,
    allow_path: AllowPath = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the rendered pipelines are what the matrix asks for, and in what they differ."""
    from tfdock.ci import pipeline_files

    settings = settings_for(knowledge=knowledge, allow_paths=allow_path)
    base, allowed = knowledge_for(settings), settings.allow_paths
    found = [pipeline_files.rendered(one.value, file, output, base, allowed) for one in service or PipelineService]
    # What is asked for by name must be there, else what was rendered once.
    there = [one for one in found if service or one.there]
    if not there:
        raise ProfileError(_nothing_there(file, found))
    problems = [problem for one in there for problem in one.amiss]
    files = [one for pipeline in there for one in pipeline.files]
    # Of two services each may say the same.
    warnings = list(dict.fromkeys(warning for one in there for warning in one.warnings))
    console.show_problems([*problems, *warnings])
    if as_json:
        document = {"problems": problems, "warnings": warnings, "files": _rows(there)}
        print_json("tfdock.ci-check/1", not problems, document)
    else:
        for one in files:
            if one.state != "fresh":
                console.say(ci_log.here().harmless(console.clean(one.difference)), stream=sys.stdout)
        if not problems:
            console.say(f"as rendered: {', '.join(console.clean(str(one.path)) for one in files)}")
    raise typer.Exit(ExitCode.VERIFICATION if problems else ExitCode.OK)


def _rows(there: list[Pipeline]) -> list[dict[str, Any]]:
    return [
        {"service": one.service, "path": str(file.path), "state": file.state, "difference": file.difference}
        for one in there
        for file in one.files
    ]


def _nothing_there(file: Path, found: list[Pipeline]) -> Problem:
    places = " or ".join(str(one.files[0].path) for one in found)
    return Problem(
        code="ci-not-rendered",
        message=f"no pipeline of this matrix is here: tfdock has rendered no {places}",
        fix="`tfdock ci render github`, or `gitlab`",
        file=str(file),
    )
