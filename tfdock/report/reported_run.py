"""Find the run that a report is about: its run document or record, its log and its profile."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfdock.builder.run_document import load_document, profile_document, run_document_path
from tfdock.builder.seal_phase import shareable_plan
from tfdock.errors import Problem, ProfileError, TfdockError
from tfdock.host.project_files import MOST_TEXT, Project
from tfdock.host.untrusted_folders import UntrustedPath, open_plain_file
from tfdock.plan.prepare import PreparedBuild, Preparer, find_profile
from tfdock.wheelhouse import build_record
from tfdock.wheelhouse.run_states import failed_runs
from tfdock.wheelhouse.store import RUN_SUFFIX, Wheelhouse

_RECORD = "record.json"
_MOST_RUNS = 200  #: How many of the newest failed runs are searched for a run of a profile.
# Profiles and documents have these endings. They would look like logs without a failure.
_NO_LOGS = (".yaml", ".yml", ".json")
_NOBODYS = "the log belongs to no build in this wheelhouse, so the plan of the build is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSubject:
    """The run or other subject of a report. Any part may be missing; `notes` say which parts, and why.

    `file` is the profile's file, None if it has changed since the build. `fingerprint` belongs to the current
    profile; it is empty if the profile is refused or not known. `installed` is the result of `doctor` for the
    environment in the folder `environment`.
    """

    name: str
    log: UntrustedPath | None = None
    run_document: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | None = None
    plan: object = None
    problems: tuple[Problem, ...] = ()
    file: str | None = None
    fingerprint: str = ""
    installed: object = None
    environment: str = ""
    notes: tuple[str, ...] = ()


def subject_of(
    name: str | None, profile: str | None, house: Wheelhouse, state: Path, preparer: Preparer
) -> ReportSubject:
    """Return the subject that `name` names: a record, a log, the folder of either, a build id or a profile; for None,
    the newest failed run. `profile` is the profile that was built; it is used if no document has a copy.

    Raises ProfileError: `no-failed-run`, or `nothing-to-report` for any other name.
    """
    subject = _find(name, house, state, preparer)
    if profile and subject.profile is None:
        return _add_profile(subject, preparer, profile)
    if profile:
        note = "the profile is the copy beside the log, not the profile of `--profile`"
        return replace(subject, notes=(*subject.notes, note))
    return subject


def _find(name: str | None, house: Wheelhouse, state: Path, preparer: Preparer) -> ReportSubject:
    if name is None:
        if not (runs := failed_runs(house, state)):
            raise _no_failed_run(house)
        return _from_run_document(runs[0])
    # Try an existing file or folder first: it is unambiguous. Other names need a search.
    path = Path(name)
    if path.is_dir():
        return _from_folder(UntrustedPath(path), name, house)
    # Follow a link only in the name that the user typed. Files that belong to a log are beside the log.
    if path.is_file() and (subject := _from_file(UntrustedPath(path.resolve().parent, path.resolve().name))):
        return subject
    if runs := failed_runs(house, state, name):
        return _from_run_document(runs[0])
    if files := [file for file in house.record_files() if file.parent.parent.name == name]:
        newest = max(files, key=_changed)
        if record := _load_record(newest):
            return _from_record(record, newest)
    return _from_profile(name, house, state, preparer)


def _from_file(path: UntrustedPath) -> ReportSubject | None:
    """Return the subject of a named file; None for a profile or any other document."""
    if path.name.endswith(RUN_SUFFIX):
        return _from_run_document(path)
    if record := _load_record(path):
        return _from_record(record, path)
    return None if path.name.endswith(_NO_LOGS) else _from_log(path)


def _changed(file: UntrustedPath) -> float:
    status = file.status()
    return status.st_mtime if status else 0.0


def _load_record(path: UntrustedPath) -> dict[str, Any] | None:
    return load_document(path, (build_record.SCHEMA,))


def _from_run_document(path: UntrustedPath) -> ReportSubject:
    """Return the subject of a failed run."""
    document = load_document(path) or {}
    run = path.name.removesuffix(RUN_SUFFIX)
    record = _load_record(path.parent / _RECORD)
    notes = [] if document else [f"{path.name} cannot be read: this report has neither the profile nor the plan"]
    if record:
        notes.append("record.json belongs to another run of this build, which succeeded")
    if document and not any(name in document for name in ("problems", "error")):
        notes.append("the run did not say why it ended: it was killed, or its machine went down")
    profile = _profile_of(document)
    return ReportSubject(
        name=run,
        log=path.parent / f"{run}.log",
        run_document=document or None,
        record=record,
        profile=profile if profile.get("text") else None,
        plan=document.get("plan"),
        file=_unchanged_file(profile),
        notes=tuple(notes),
    )


def _profile_of(run_document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile stored in a run document; empty if it has none."""
    profile = run_document.get("profile")
    return profile if isinstance(profile, dict) else {}


def _unchanged_file(profile: Mapping[str, Any]) -> str | None:
    """Return the path of the profile that was built if its text is still the same."""
    path, text = profile.get("path"), profile.get("text")
    if not (isinstance(path, str) and isinstance(text, str)):
        return None
    with suppress(OSError, ValueError, RuntimeError), open_plain_file(Path(path).resolve()) as file:
        data = text.encode()  # Limits the read below: the run document may be a stranger's.
        return path if file and file.read(len(data) + 1) == data else None
    return None


def _from_record(record: Mapping[str, Any], path: UntrustedPath) -> ReportSubject:
    name = record.get("log")
    # Use only the last part: the record may be a stranger's, and may name any file.
    log = path.parent / Path(name).name if isinstance(name, str) else None
    log = log if log and log.is_file() else None
    return ReportSubject(
        name=str(record.get("build_id", "record")),
        log=log,
        record=record,
        plan=record.get("plan"),
        notes=("the record is of a successful build", *(() if log else ("its log is not here",))),
    )


def _from_folder(folder: UntrustedPath, name: str, house: Wheelhouse) -> ReportSubject:
    """Return the newest failed run in the folder of a build, or else its record."""
    # Run ids begin with the time, so names are in order of age.
    if runs := [path for path in folder.entries() if path.name.endswith(RUN_SUFFIX)]:
        return _from_run_document(runs[-1])
    if record := _load_record(folder / _RECORD):
        return _from_record(record, folder / _RECORD)
    raise _nothing_to_report(name, house)


def _from_log(path: UntrustedPath) -> ReportSubject:
    """Return the run of a log if its run document or record is beside the log, or else the log alone."""
    run_document = run_document_path(path)
    if run_document.is_file():
        return _from_run_document(run_document)
    record = _load_record(path.parent / _RECORD)
    if record and record.get("log") == path.name:
        return _from_record(record, path.parent / _RECORD)
    return ReportSubject(name=path.name.partition(".")[0], log=path, notes=(_NOBODYS,))


def _from_profile(name: str, house: Wheelhouse, state: Path, preparer: Preparer) -> ReportSubject:
    """Return the newest failed run of a profile; without one, the profile and its plan or its problems."""
    try:
        now = _plan_now(name, preparer)
    except ProfileError as error:
        if error.problems[0].code == "profile-not-found":
            raise _nothing_to_report(name, house) from error
        raise
    newest = next((path for path in failed_runs(house, state)[:_MOST_RUNS] if _is_run_of(path, now)), None)
    if newest is None:
        return replace(now, notes=(*now.notes, f"no failed run of this build in {house.root}: there is no log"))
    then = _from_run_document(newest)
    notes = [*then.notes, *now.notes]
    if then.run_document and then.run_document.get("fingerprint") != now.fingerprint:
        notes.append(
            "the profile, the knowledge or the lock has changed since: the plan in this report is the plan of the run"
        )
    return replace(
        then,
        file=then.file if then.profile else now.file,
        problems=now.problems,
        profile=then.profile or now.profile,
        plan=then.plan or now.plan,
        notes=tuple(notes),
    )


def _is_run_of(path: UntrustedPath, now: ReportSubject) -> bool:
    """Return whether a run belongs to a profile, by its build id or its file; the file may have changed."""
    document = load_document(path) or {}
    is_file = _profile_of(document).get("path") == str(Path(now.file or "").absolute())
    return is_file or bool(now.fingerprint and document.get("build_id") == now.name)


def _add_profile(subject: ReportSubject, preparer: Preparer, name: str) -> ReportSubject:
    """Return a subject with the current profile, and with its plan if no document has a plan."""
    now, notes = _plan_now(name, preparer), list(subject.notes)
    then = (subject.run_document or subject.record or {}).get("fingerprint")
    if subject.plan is None:
        notes = [*(note for note in notes if note != _NOBODYS), "the plan was made for this report"]
    if then and then != now.fingerprint:
        notes.append("the profile has changed since the build: its fingerprint differs")
    return replace(
        subject,
        profile=now.profile,
        plan=subject.plan or now.plan,
        problems=now.problems,
        file=now.file,
        notes=tuple(dict.fromkeys((*notes, *now.notes))),
    )


def _plan_now(name: str, preparer: Preparer) -> ReportSubject:
    """Return the current state of a profile, with its plan or the problems for which it is refused."""
    file = find_profile(name, preparer.knowledge)
    try:
        prepared: PreparedBuild = preparer.prepare(name)
    except TfdockError as error:
        return ReportSubject(
            name=Path(file).stem,
            problems=error.problems,
            file=str(file),
            profile=_refused_profile(Path(file), preparer),
            notes=("the present profile is refused",),
        )
    plan = prepared.plan
    return ReportSubject(
        name=plan.build_id,
        file=str(file),
        fingerprint=plan.fingerprint,
        profile=profile_document(prepared),
        plan=shareable_plan(plan),
    )


def _refused_profile(path: Path, preparer: Preparer) -> dict[str, Any]:
    text = ""
    with suppress(OSError, ProfileError):
        text = Project.of(path, preparer.allowed).read(path, MOST_TEXT).decode("utf-8", "replace")
    return {"file": path.name, "text": text, "extends": {}, "lock": None}


def _no_failed_run(house: Wheelhouse) -> ProfileError:
    return ProfileError.of(
        "no-failed-run",
        f"no failed run in {house.root} has left a log",
        (
            "name the wheelhouse of the build: `--wheelhouse DIR`",
            "name the profile, a log, a record or a build id: `tfdock report --bundle PROFILE`",
        ),
        why="a build that ends before its first phase, such as one without an engine, leaves only an error message",
    )


def _nothing_to_report(name: str, house: Wheelhouse) -> ProfileError:
    known = sorted({folder.parent.name for folder in house.record_folders()})
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean `{near[0]}`? Otherwise " if near else ""
    return ProfileError.of(
        "nothing-to-report",
        f"`{name}` is not a record, log, profile, or build id of {house.root}",
        f"{guess}give a file or a build id, or nothing for the newest run that failed",
    )
