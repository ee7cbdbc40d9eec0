"""Which run a report is about, and all that is known of it: its papers or its record, its log, its profile."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdock.builder.build_summary import plain_file
from tfdock.builder.run_document import SUFFIX, document_of, failed_runs, papers_of, written
from tfdock.errors import Problem, ProfileError, TfdockError
from tfdock.host.project_files import MOST_TEXT, Project
from tfdock.wheelhouse import build_record
from tfdock.wheelhouse.store import Wheelhouse

if TYPE_CHECKING:
    from tfdock.plan.prepare import Prepared, Preparer

_RECORD = "record.json"
_MOST_RUNS = 200
"""Runs that failed, the newest first, among which those of a profile are looked for."""
_NO_LOGS = (".yaml", ".yml", ".json")
_NOBODYS = "the log is not of a build in this wheelhouse: what was planned is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a report is about. Anything may be missing; `notes` say what, and why.

    `file` is the profile's, None where it is not what was built any more.
    """

    name: str
    log: Path | None = None
    papers: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | None = None
    plan: object = None
    problems: tuple[Problem, ...] = ()
    file: str | None = None
    notes: tuple[str, ...] = ()


def subject_of(name: str | None, profile: str | None, house: Wheelhouse, state: Path, preparer: Preparer) -> Subject:
    """What `name` names: a record, a log, a folder of them, a build id or a profile; the newest run that failed
    where it is None. `profile` is what was built, where the rest does not say it.

    Raises ProfileError: `no-failed-run`, or `nothing-to-report` for what is none of these.
    """
    found = _found(name, house, state, preparer)
    if profile and found.profile is None:
        return _with_profile(found, preparer, profile)
    if profile:
        return replace(found, notes=(*found.notes, "the profile is the one that was kept, not that of `--profile`"))
    return found


def _found(name: str | None, house: Wheelhouse, state: Path, preparer: Preparer) -> Subject:
    if name is None:
        newest = next(iter(failed_runs(house, state)), None)
        if newest is None:
            raise _nothing_failed(house)
        return _of_papers(newest)
    path = Path(name)
    if path.is_dir():
        return _of_folder(path, name, house)
    if path.is_file() and path.name.endswith(SUFFIX):
        return _of_papers(path)
    if path.is_file() and (record := document_of(path.resolve(), (build_record.SCHEMA,))):
        return _of_record(record, path)
    if path.is_file() and path.suffix not in _NO_LOGS:
        return _of_log(path)
    if papers := failed_runs(house, state, name):
        return _of_papers(papers[0])
    if records := [one for one in house.record_files() if one.parent.parent.name == name]:
        newest = max(records, key=lambda one: one.stat().st_mtime)
        if record := document_of(newest, (build_record.SCHEMA,)):
            return _of_record(record, newest)
    return _of_profile(name, house, state, preparer)


def _of_papers(path: Path) -> Subject:
    """A run that did not end well."""
    document = document_of(path) or {}
    log = path.with_name(f"{path.name.removesuffix(SUFFIX)}.log")
    recorded = document_of(path.with_name(_RECORD), (build_record.SCHEMA,))
    notes = [] if document else [f"{path.name} cannot be read: the profile and the plan are not in it"]
    if recorded:
        notes.append("record.json is of another run of this build, which ended well")
    if document and not any(name in document for name in ("problems", "error")):
        notes.append("the run did not say why it ended: it was killed, or its machine went down")
    said = document.get("profile")
    return Subject(
        name=path.name.removesuffix(SUFFIX),
        log=log,
        papers=document or None,
        record=recorded,
        profile=said if isinstance(said, dict) and said.get("text") else None,
        plan=document.get("plan"),
        file=_same_file(said),
        notes=tuple(notes),
    )


def _same_file(said: object) -> str | None:
    """The profile that was built, if it is there and still says what it said."""
    path, text = (said.get("path"), said.get("text")) if isinstance(said, dict) else (None, None)
    if not (isinstance(path, str) and isinstance(text, str)):
        return None
    with suppress(OSError, ValueError, RuntimeError), plain_file(Path(path).resolve()) as file:
        data = text.encode()  # no more is read than it had: the papers may be anybody's
        return path if file and file.read(len(data) + 1) == data else None
    return None


def _of_record(record: Mapping[str, Any], path: Path) -> Subject:
    named = record.get("log")
    log = path.parent / Path(named).name if isinstance(named, str) else None
    there = log is not None and log.is_file()
    notes = ["the record is of a build that ended well"]
    if not there:
        notes.append("its log is not here")
    name = str(record.get("build_id", "record"))
    return Subject(name=name, log=log if there else None, record=record, plan=record.get("plan"), notes=tuple(notes))


def _of_folder(folder: Path, name: str, house: Wheelhouse) -> Subject:
    """A folder of a build: the newest run that failed there, else its record."""
    papers = sorted(folder.glob(f"*{SUFFIX}"), reverse=True)
    if papers:
        return _of_papers(papers[0])
    record = document_of(folder / _RECORD, (build_record.SCHEMA,))
    if record is None:
        raise _nothing(name, house)
    return _of_record(record, folder / _RECORD)


def _of_log(path: Path) -> Subject:
    """A log: a run's, if its papers or its record lie beside it, else anybody's."""
    papers = papers_of(path)
    if papers.is_file() and not path.is_symlink():
        return _of_papers(papers)
    record = document_of(path.with_name(_RECORD), (build_record.SCHEMA,))
    if record and record.get("log") == path.name:
        return _of_record(record, path.with_name(_RECORD))
    return Subject(name=path.name.partition(".")[0], log=path.resolve(), notes=(_NOBODYS,))


def _of_profile(name: str, house: Wheelhouse, state: Path, preparer: Preparer) -> Subject:
    """The newest run of a profile that failed; without one, what it says and what is planned or refused now."""
    try:
        planned = _planned(name, preparer)
    except ProfileError as error:
        if error.problems[0].code == "profile-not-found":
            raise _nothing(name, house) from error
        raise
    now = planned.subject
    newest = next((path for path in failed_runs(house, state)[:_MOST_RUNS] if _is_of(path, planned)), None)
    if newest is None:
        return replace(now, notes=(*now.notes, f"no run of it has failed in {house.root}: there is no log"))
    then = _of_papers(newest)
    told = [*then.notes, *(one for one in now.notes if planned.build_id == "")]
    if then.papers and then.papers.get("fingerprint") != planned.fingerprint:
        told.append("the profile, the knowledge or the lock has changed since: the plan is that of the run")
    return replace(
        then,
        file=then.file if then.profile else now.file,
        problems=now.problems,
        profile=then.profile or now.profile,
        plan=then.plan or now.plan,
        notes=tuple(told),
    )


def _is_of(path: Path, planned: _Planned) -> bool:
    """Whether a run was of a profile: of its build id, or of its file, whatever that said then."""
    document = document_of(path) or {}
    said = document.get("profile")
    file = said.get("path") if isinstance(said, dict) else None
    is_file = file == str(Path(planned.subject.file or "").absolute())
    return is_file or bool(planned.build_id and document.get("build_id") == planned.build_id)


def _with_profile(found: Subject, preparer: Preparer, name: str) -> Subject:
    """A subject with what a profile says now, planned anew where nobody has kept the plan."""
    planned = _planned(name, preparer)
    now, notes = planned.subject, list(found.notes)
    then = (found.papers or found.record or {}).get("fingerprint")
    if found.plan is None:
        notes = [*(one for one in notes if one != _NOBODYS), "the plan was made for this report"]
    if then and then != planned.fingerprint:
        notes.append("the profile as it is now has another fingerprint than what was built")
    return replace(
        found,
        profile=now.profile,
        plan=found.plan or now.plan,
        problems=now.problems,
        file=now.file,
        notes=tuple(dict.fromkeys((*notes, *now.notes))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A profile as it is now. `build_id` and `fingerprint` are empty where it is refused."""

    subject: Subject
    build_id: str = ""
    fingerprint: str = ""


def _planned(name: str, preparer: Preparer) -> _Planned:
    from tfdock.builder.seal_phase import without_places
    from tfdock.plan.prepare import find_profile

    file = str(find_profile(name))
    try:
        prepared: Prepared = preparer.prepare(name)
    except TfdockError as error:
        note = "the profile is refused as it is now"
        stem = Path(file).stem
        subject = Subject(
            name=stem, problems=error.problems, file=file, profile=_written(file, preparer), notes=(note,)
        )
        return _Planned(subject=subject)
    plan = prepared.plan
    subject = Subject(name=plan.build_id, file=file, profile=written(prepared), plan=without_places(plan))
    return _Planned(subject=subject, build_id=plan.build_id, fingerprint=plan.fingerprint)


def _written(file: str, preparer: Preparer) -> dict[str, Any]:
    text, path = "", Path(file)
    with suppress(OSError, ProfileError):
        text = Project.of(path, preparer.allowed).read(path, MOST_TEXT).decode("utf-8", "replace")
    return {"file": Path(file).name, "text": text, "extends": {}, "lock": None}


def _nothing_failed(house: Wheelhouse) -> ProfileError:
    return ProfileError(
        Problem(
            code="no-failed-run",
            message=f"no run has failed in {house.root}",
            why="a run that ends well leaves a record, and nothing else to report",
            fix="name the `--wheelhouse` of the build; or a log, a record, a build id or a profile",
        )
    )


def _nothing(name: str, house: Wheelhouse) -> ProfileError:
    known = sorted({path.parent.parent.name for path in (house.root / ".tfdock").glob("tf*/*/*")})
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean `{near[0]}`? Otherwise " if near else ""
    return ProfileError(
        Problem(
            code="nothing-to-report",
            message=f"`{name}` is no record, log or profile, and no build id of {house.root}",
            fix=f"{guess}give a file or a build id, or nothing for the newest run that failed",
        )
    )
