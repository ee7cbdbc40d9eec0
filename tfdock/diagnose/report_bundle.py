"""What an issue tracker needs of a failure, in one zip: without secrets and names of people. Nothing is sent.

A zip, since every tracker takes it and every desktop opens it, for its user to look through before it goes anywhere.
The same material gives the same bytes: files in order, one time, one mode.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdock import __version__
from tfdock.builder.build_summary import plain_file
from tfdock.diagnose import local_identity
from tfdock.diagnose.diagnose_logs import context_of, diagnosed
from tfdock.diagnose.log_excerpt import Excerpt
from tfdock.diagnose.log_lines import BLOCK, unpacked
from tfdock.diagnose.redaction import Redactor
from tfdock.errors import ProfileError
from tfdock.host.hardware import free_disk, local_gpus

if TYPE_CHECKING:
    from tfdock.diagnose.diagnosis import Diagnosis
    from tfdock.diagnose.reported_run import Subject
    from tfdock.host.settings import Settings
    from tfdock.plan.prepare import Preparer

FOLDER = "tfdock-report"
SCHEMA = "tfdock.report-bundle/1"
_MOMENT = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644
_MOST_CAUSES = 5
_LONGEST_TEXT = 1 << 20
"""Characters of a profile or a lock."""
_VARIABLES = (
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "LANG",
    "LC_ALL",
    "CI",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "SOURCE_DATE_EPOCH",
)

Findings = Callable[["Diagnosis | None"], object]
"""A diagnosis as a document for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBundle:
    """A zip, what is in it (path -> bytes), what is missing and why, and how often what was taken out."""

    data: bytes
    name: str
    files: Mapping[str, bytes]
    notes: tuple[str, ...]
    removed: Mapping[str, int]


@dataclass
class _Gathered:
    """Everything that goes in, before anything is taken out: documents, texts, and the log as it is read."""

    documents: dict[str, object]
    texts: dict[str, str]
    log: Excerpt | None
    notes: list[str]


def bundle(subject: Subject, settings: Settings, preparer: Preparer, findings: Findings) -> ReportBundle:
    """Gather what is known of a failure, take out what is nobody else's business, and pack it."""
    notes = list(subject.notes)
    diagnosis, told = _diagnosis(subject, preparer)
    notes += told
    excerpt = _excerpt(subject, diagnosis, notes)
    gathered = _Gathered(
        documents=_documents(subject, settings, preparer, diagnosis, findings),
        texts=_texts(subject.profile, notes),
        log=excerpt,
        notes=notes,
    )
    said = subject.profile or {}
    redactor = Redactor(local_identity.known(settings, profile=said.get("path")))
    local_identity.learn(redactor)
    files = _redacted(gathered, redactor)
    name = _file_name(redactor.text(subject.name))
    clean = tuple(redactor.text(note) for note in notes)
    removed = dict(sorted(redactor.counts.items()))
    files = {"README.txt": _readme(files, clean, removed).encode(), **files}
    return ReportBundle(data=_zip(files), name=f"{FOLDER}-{name}.zip", files=files, notes=clean, removed=removed)


# --- what is known --------------------------------------------------------------------------------------------------


def _diagnosis(subject: Subject, preparer: Preparer) -> tuple[Diagnosis | None, list[str]]:
    """What the log shows, with the profile as context where it is a file still.

    Raises ProfileError for somebody's log that is not text; that of a run is reported without it.
    """
    context = context_of(subject.file, preparer) if subject.file else None
    notes: list[str] = []
    with plain_file(_log_path(subject)) as log:
        if log is None:
            return None, notes
        name, told = _log_path(subject).name, notes.append
        try:
            found = diagnosed(log, preparer.knowledge, context, name=name, progress=lambda _: None, told=told)
        except ProfileError:
            if subject.papers is None and subject.record is None:
                raise
            return None, ["the log is not text"]
        return found, notes if found.lines else [*notes, "the log is empty"]


def _log_path(subject: Subject) -> Path:
    return subject.log or Path(os.devnull)


def _excerpt(subject: Subject, diagnosis: Diagnosis | None, notes: list[str]) -> Excerpt | None:
    lines = [one.line for one in diagnosis.findings[:_MOST_CAUSES]] if diagnosis else []
    lines = lines or ([one.line for one in diagnosis.suspects[:_MOST_CAUSES]] if diagnosis else [])
    excerpt = Excerpt(lines)
    with plain_file(_log_path(subject)) as log:
        if log is None:
            if subject.log:
                notes.append("the log is not here any more, or is no file")
            return None
        with suppress(ValueError):  # told already
            for block in unpacked(iter(partial(log.read, BLOCK), b"")):
                excerpt.feed(block)
    excerpt.close()
    return excerpt


def _documents(
    subject: Subject, settings: Settings, preparer: Preparer, diagnosis: Diagnosis | None, findings: Findings
) -> dict[str, object]:
    papers = subject.papers or {}
    run = {name: value for name, value in papers.items() if name not in ("plan", "profile")}
    problems = [asdict(replace(one, ways=())) for one in subject.problems]
    found: dict[str, object] = {
        "run.json": run | ({"refused_now": problems} if problems else {}),
        "plan.json": subject.plan,
        "record.json": subject.record,
        "environment.json": _environment(settings, preparer),
        "diagnosis.json": _diagnosed(diagnosis, findings),
    }
    return {name: document for name, document in found.items() if document}


def _diagnosed(diagnosis: Diagnosis | None, findings: Findings) -> object:
    if diagnosis is None:
        return None
    suspects = [{"line": one.line, "text": one.text} for one in diagnosis.suspects]
    return {
        "schema": "tfdock.diagnose/1",
        "ok": True,
        "lines": diagnosis.lines,
        "findings": findings(diagnosis),
        "suspects": [] if diagnosis.findings else suspects,
    }


def _environment(settings: Settings, preparer: Preparer) -> dict[str, object]:
    """What a report is read with: programs, machine, settings, variables that matter; of others not even names."""
    system = platform.uname()
    names = [name for name in os.environ if name.startswith("TFDOCK_") or name in _VARIABLES]
    places = {"cache": settings.cache_dir, "wheelhouse": settings.wheelhouse}
    return {
        "tfdock": __version__,
        "knowledge": preparer.knowledge.version,
        "python": platform.python_version(),
        "system": {"kernel": f"{system.system} {system.release}", "machine": system.machine, "name": _distribution()},
        "machine": {"cpus": preparer.machine.cpus, "memory": preparer.machine.memory, "swap": preparer.machine.swap},
        "gpus": [asdict(one) for one in local_gpus()],
        "free_bytes": {name: free_disk(path.absolute()) for name, path in places.items()},
        "settings": {one.name: _plain(getattr(settings, one.name)) for one in fields(settings)},
        "variables": {name: _without_headers(name) for name in sorted(names)},
    }


def _without_headers(name: str) -> str:
    return "<secret>" if name == "TFDOCK_REMOTE_HEADER" else os.environ[name]


def _plain(value: object) -> object:
    """A setting as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def _distribution() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return ""


def _texts(profile: Mapping[str, Any] | None, notes: list[str]) -> dict[str, str]:
    """The profile with those it extends, the one it begins with last, and its lock: file name -> text."""
    if not profile:
        notes.append("the profile is not known: `--profile` names it")
        return {}
    found = {_name("profile", profile.get("file")): profile.get("text")}
    extends = profile.get("extends")
    for number, (name, text) in enumerate(extends.items() if isinstance(extends, dict) else (), 1):
        found[_name(f"profile/extends-{number}", name)] = text
    lock = profile.get("lock")
    if isinstance(lock, dict):
        found[_name("profile", lock.get("file"))] = lock.get("text")
        if not lock.get("used"):
            notes.append("the lock lies beside the profile; the run did not go by it")
    else:
        notes.append("there is no lock beside the profile")
    return {name: text[:_LONGEST_TEXT] for name, text in found.items() if isinstance(text, str)}


def _name(folder: str, file: object) -> str:
    return f"{folder}/{Path(str(file)).name or 'unnamed'}"


# --- what becomes of it ---------------------------------------------------------------------------------------------


def _redacted(gathered: _Gathered, redactor: Redactor) -> dict[str, bytes]:
    """The files of the bundle. All is looked through before anything is taken out of anything."""
    log = gathered.log.parts() if gathered.log else []
    for text in (*log, *gathered.texts.values(), *gathered.texts, *gathered.notes):
        redactor.learn(text)
    for document in gathered.documents.values():
        redactor.learn_document(document)
    files = {_safe(redactor.text(name)): redactor.text(_harmless(text)) for name, text in gathered.texts.items()}
    for name, document in gathered.documents.items():
        files[name] = json.dumps(redactor.document(document), indent=1, sort_keys=name != "diagnosis.json")
    if gathered.log:
        files["log.txt"] = gathered.log.text(redactor.text)
    return {name: text.encode("utf-8", "replace") for name, text in sorted(files.items())}


def _harmless(text: str) -> str:
    return "".join(one for one in text if one.isprintable() or one in "\t\n\r")


def _safe(name: str) -> str:
    """A path in the archive: no part of it leads anywhere else."""
    parts = (re.sub(r"[^A-Za-z0-9._+@=,-]", "_", part).lstrip(".")[:100] for part in name.split("/"))
    return "/".join(part or "_" for part in parts)


def _file_name(name: str) -> str:
    return _safe(name.replace("/", "_"))


def _readme(files: Mapping[str, bytes], notes: Iterable[str], removed: Mapping[str, int]) -> str:
    return "\n".join([*_readme_lines(files, notes, removed), ""])


def _readme_lines(files: Mapping[str, bytes], notes: Iterable[str], removed: Mapping[str, int]) -> Iterator[str]:
    yield f"A report of `tfdock report --bundle` (tfdock {__version__}, {SCHEMA})."
    yield "Look through it before you send it: what nobody could know to be a secret is still in it."
    yield from (
        "",
        "files",
        *(f"  {name}  {_WHAT.get(name, 'the profile, those that it extends, its lock')}" for name in files),
    )
    took = (f"  {kind}: {count}" for kind, count in removed.items())
    yield from ("", "taken out, and how often", *(took if removed else ["  nothing"]))
    yield from ("", "to know", *(f"  {note}" for note in notes)) if notes else ()


_WHAT = {
    "diagnosis.json": "what `tfdock diagnose` says of the whole log",
    "environment.json": "tfdock, knowledge, machine, settings: as they were when this was made, not when the run was",
    "log.txt": "the lines around those that the diagnosis names, and the end of the log",
    "plan.json": "every value and command of the build",
    "record.json": "the record of a build that ended well",
    "run.json": "how the run ended, with which engine and limits",
}


def _zip(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(f"{FOLDER}/{name}", _MOMENT)
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, _MODE << 16, 3
            archive.writestr(info, data)
    return packed.getvalue()
