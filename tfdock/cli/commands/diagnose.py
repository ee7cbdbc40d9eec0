"""The `diagnose` command: find what went wrong in a log. It needs no engine and no network."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from tfdock.cli import ci_log, console
from tfdock.cli.app import AsJson, app, command, knowledge_for, preparer_for, print_json
from tfdock.cli.diagnosis_text import lines
from tfdock.diagnose.diagnose_logs import diagnose_file, diagnose_log
from tfdock.diagnose.diagnosis import Diagnosis, diagnose_document
from tfdock.errors import ExitCode, Problem, TfdockError, combined_exit_code
from tfdock.host.settings import Settings
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.profile_fixes import Context

_STANDARD_INPUT = "-"


@app.command(
    epilog="Examples: `tfdock diagnose build.log`, `docker build . 2>&1 | tfdock diagnose`, "
    "`tfdock diagnose build.log.gz --profile rtx5090`. Exit status: 0 for every finding, unless `--exit-code` is "
    "given; 2 if a log cannot be read."
)
@command("tfdock.diagnose/1", "knowledge", "allow_paths", "allow_endpoints")
def diagnose(
    settings: Settings,
    logs: Annotated[
        list[str] | None,
        typer.Argument(help="Log files, plain or gzip. `-` is standard input, and the default.", metavar="LOG…"),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="The profile that was built: a file, or the name of a shipped profile.",
            metavar="PROFILE",
        ),
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with status 1 if a log shows a failure, known or unknown.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The log may come from a build, or from a program that imports TensorFlow."""
    names = logs or [_STANDARD_INPUT]
    # Waiting for typed input would look like a program that hangs.
    if not logs and sys.stdin.isatty():
        raise typer.BadParameter("name a log, or send one to standard input")
    base, context = knowledge_for(settings), None
    if profile:
        preparer = preparer_for(settings)
        context = preparer.context(preparer.read(profile))
    diagnoses, problems, codes = _read_all(names, base, context)
    if as_json:
        document = diagnose_document(diagnoses, with_warnings=console.verbosity > 0)
        print_json("tfdock.diagnose/1", not problems, document | ({"problems": problems} if problems else {}))
    else:
        _print(diagnoses)
    console.show_problems(problems)
    if exit_code and any(found.failed for found in diagnoses.values()):
        codes.append(ExitCode.BUILD_FAILED)
    raise typer.Exit(combined_exit_code(codes))


def _read_all(
    names: list[str], base: KnowledgeBase, context: Context | None
) -> tuple[dict[str, Diagnosis], list[Problem], list[int]]:
    """Return name -> diagnosis of the logs that can be read, and problems and exit codes of the others."""
    diagnoses: dict[str, Diagnosis] = {}
    problems: list[Problem] = []
    codes: list[int] = []
    # Standard input can be read only once.
    for name in dict.fromkeys(names):
        try:
            diagnoses[name] = _read(name, base, context)
        except TfdockError as error:
            problems += error.problems
            codes.append(error.exit_code)
        else:
            if not diagnoses[name].lines:
                _tell(name, "the log is empty. Errors go to standard error: add `2>&1` before the pipe")
    return diagnoses, problems, codes


def _read(name: str, base: KnowledgeBase, context: Context | None) -> Diagnosis:
    add_note = partial(_tell, name)
    with console.ReadProgress(sys.stderr, name, "read") as reading:
        if name == _STANDARD_INPUT:
            return diagnose_log(sys.stdin.buffer, base, context, name=name, progress=reading, add_note=add_note)
        return diagnose_file(name, base, context, progress=reading, add_note=add_note)


def _tell(name: str, text: str) -> None:
    console.tell(console.clean(f"{name}: {text}"))


def _print(diagnoses: dict[str, Diagnosis]) -> None:
    for index, (name, diagnosis) in enumerate(diagnoses.items()):
        for line in [*([""] if index else []), *lines(diagnosis, name, sys.stdout, warnings=console.verbosity > 0)]:
            console.say(ci_log.here().harmless(line), stream=sys.stdout)  # A log may be a stranger's.
