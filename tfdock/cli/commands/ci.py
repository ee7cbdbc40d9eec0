"""The `ci render` and `ci check` commands: write a matrix's pipeline, or compare it with the files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from tfdock.ci import pipeline_files
from tfdock.ci.pipeline import Service
from tfdock.ci.pipeline_files import Pipeline
from tfdock.cli import ci_log, console
from tfdock.cli.app import AsJson, app, command, print_json
from tfdock.cli.commands.matrix import MATRIX
from tfdock.errors import ExitCode, Problem, ProfileError
from tfdock.host.settings import Settings

group = typer.Typer(name="ci", no_args_is_help=True)
app.add_typer(group)


File_ = Annotated[
    Path,
    typer.Argument(
        help="The file of the matrix. The default is profiles/matrix.yaml.", metavar="FILE", show_default=False
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="The folder of the repository. The default is this folder.",
        metavar="DIR",
        show_default=False,
    ),
]


@group.command(epilog="Example: `tfdock ci render github`, in the folder of a repository. Prints the files' paths.")
@command("tfdock.ci-render/1", "allow_paths")
def render(
    settings: Settings,
    service: Annotated[Service, typer.Argument(help="`github` or `gitlab`.")],
    file: File_ = MATRIX,
    output: Output = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite edited files, and files that tfdock did not write.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The pipeline plans and builds the wheels, and continues builds that a time limit stopped."""
    setting = pipeline_files.not_carried(settings, file)
    # Check this before the cells are planned: without the knowledge folder they may be refused.
    console.show_problems([setting] if setting else [])
    (pipeline,) = pipeline_files.render([service], file, output, settings)
    written = list(pipeline_files.write(pipeline, force=force))
    console.show_problems(pipeline.warnings)
    if as_json:
        rows = [{"path": str(rendered.path), "written": changed} for rendered, changed in written]
        warnings = [*([setting] if setting else []), *pipeline.warnings]
        document = {"service": service, "files": rows, "warnings": warnings}
        print_json("tfdock.ci-render/1", True, document)
        return
    for rendered, changed in written:
        console.say(str(rendered.path), stream=sys.stdout)
        if not changed:
            console.say(f"{console.clean(str(rendered.path))}: as it was")


@group.command(epilog="Example: `tfdock ci check`, as a step of CI. Exit status: 4 if a pipeline is out of date.")
@command("tfdock.ci-check/1", "allow_paths")
def check(settings: Settings, file: File_ = MATRIX, output: Output = Path(), as_json: AsJson = False) -> None:
    """Compare the rendered pipelines with the matrix, and print the differences."""
    candidates = pipeline_files.render(get_args(Service), file, output, settings)
    pipelines = [pipeline for pipeline in candidates if pipeline.is_rendered]
    if not pipelines:
        raise ProfileError(_not_rendered(file, candidates))
    problems = [problem for pipeline in pipelines for problem in pipeline.problems]
    # Both services may have the same warning.
    warnings = list(dict.fromkeys(warning for pipeline in pipelines for warning in pipeline.warnings))
    console.show_problems([*problems, *warnings])
    if as_json:
        document = {"problems": problems, "warnings": warnings, "files": _rows(pipelines)}
        print_json("tfdock.ci-check/1", not problems, document)
    else:
        _show(pipelines, ok=not problems)
    raise typer.Exit(ExitCode.VERIFICATION if problems else ExitCode.OK)


def _show(pipelines: list[Pipeline], *, ok: bool) -> None:
    """Print the differences of the files, or the names of the files if there is no difference."""
    files = [rendered for pipeline in pipelines for rendered in pipeline.files]
    for rendered in files:
        if rendered.state != "fresh":
            console.say(ci_log.here().harmless(console.clean(rendered.difference)), stream=sys.stdout)
    if ok:
        console.say(f"up to date: {', '.join(console.clean(str(rendered.path)) for rendered in files)}")


def _rows(pipelines: list[Pipeline]) -> list[dict[str, Any]]:
    return [
        {"service": pipeline.service, "path": str(file.path), "state": file.state, "difference": file.difference}
        for pipeline in pipelines
        for file in pipeline.files
    ]


def _not_rendered(file: Path, candidates: list[Pipeline]) -> Problem:
    places = " or ".join(str(pipeline.files[0].path) for pipeline in candidates)
    return Problem(
        "ci-not-rendered",
        f"this matrix has no rendered pipeline: there is no {places}",
        "`tfdock ci render github`, or `gitlab`",
        file=str(file),
    )
