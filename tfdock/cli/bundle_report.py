"""Write the report bundle of a failure, and list its contents. The user reads it before sending it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import typer

from tfdock.cli import console
from tfdock.cli.app import preparer_for, print_result
from tfdock.errors import as_document
from tfdock.host.files import write_bytes
from tfdock.host.settings import Settings
from tfdock.installed.environment import read_environment
from tfdock.installed.verdicts import judge_environment
from tfdock.report.report_bundle import ReportBundle, bundle
from tfdock.report.reported_run import ReportSubject, subject_of
from tfdock.wheelhouse.store import Wheelhouse


def write_bundle(
    name: str | None,
    profile: str | None,
    python: str | None,
    settings: Settings,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write a report bundle that only the current user can read. Print its contents and its path."""
    preparer = preparer_for(settings)
    house = Wheelhouse(settings.wheelhouse.absolute())
    # An environment needs no failed run: anybody may have built the TensorFlow in it.
    subject = (
        ReportSubject(name="environment")
        if python is not None and name is None and profile is None
        else subject_of(name, profile, house, settings.state_dir, preparer)
    )
    environment = read_environment(python, preparer.knowledge) if python is not None else None
    if environment:
        checks = judge_environment(environment, preparer.knowledge, ())
        folder = environment.interpreter.program.parent
        subject = replace(
            subject,
            installed={"checks": [as_document(check) for check in checks]},
            environment=str(folder.parent if folder.name == "bin" else folder),
        )
    # `-o` must not replace the log, the profile or the interpreter that the report is about.
    interpreter = environment.interpreter.program if environment else None
    if output and any(
        _is_same(output, Path(str(file))) for file in (subject.log, subject.file, name, profile, interpreter) if file
    ):
        raise typer.BadParameter(f"`{console.clean(str(output))}` is the input: name another output file with `-o`")
    packed = bundle(subject, settings, preparer)
    path = output or Path(packed.name)
    if not as_json:  # Show the contents before the file is written.
        for line in _lines(packed):
            console.tell(line)
    # Follow a link only if the user chose the name: in a shared folder, another user may have made the link.
    write_bytes(path, packed.data, mode=0o600, follow=output is not None)
    files = [{"name": name, "size": len(data)} for name, data in packed.files.items()]
    document = {"bundle": str(path), "files": files, "removed": packed.removed, "notes": packed.notes}
    print_result("tfdock.report/1", document, [str(path)], as_json=as_json)


def _is_same(output: Path, file: Path) -> bool:
    # Compare the files, not the paths: two paths may lead to the same file.
    return output.exists() and file.exists() and output.samefile(file)


def _lines(packed: ReportBundle) -> list[str]:
    style = console.Style(sys.stderr)
    rows = [(name, console.size(len(data))) for name, data in packed.files.items()]
    removed = ", ".join(f"{kind} {count}" for kind, count in packed.removed.items()) or "nothing"
    return [
        style.strong("report"),
        *console.table(rows, columns=console.width(sys.stderr)),
        f"{style.strong('taken out')}  {removed}",
        *(f"{style.strong('to know')}  {console.clean(note)}" for note in packed.notes),
        style.warn(
            "nothing was sent. Read the file before you send it: it may contain secrets that are neither in your "
            "variables nor in your logins"
        ),
    ]
