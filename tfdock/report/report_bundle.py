"""Pack a failure for an issue tracker into a zip file, without the caller's secrets and names. Nothing is sent.

Every tracker accepts a zip file and every desktop opens it, so the user can look through it before sending it.
The same contents give the same bytes: the files are sorted, and have the same time and mode.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from tfdock import __version__
from tfdock.diagnose.diagnose_logs import diagnose_log, load_context
from tfdock.diagnose.diagnosis import Diagnosis, diagnose_document
from tfdock.diagnose.log_lines import BLOCK, NotText, unpacked
from tfdock.errors import ProfileError, as_document, clean
from tfdock.host.hardware import free_disk, local_gpus
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import open_plain_file
from tfdock.plan.prepare import Preparer
from tfdock.report import local_identity
from tfdock.report.log_excerpt import Excerpt
from tfdock.report.redaction import Redactor
from tfdock.report.reported_fields import FIELDS, keep_fields
from tfdock.report.reported_run import ReportSubject

FOLDER = "tfdock-report"
SCHEMA = "tfdock.report-bundle/1"
# The earliest time of a zip archive (APPNOTE, 4.4.6): the same contents give the same bytes.
_MOMENT = (1980, 1, 1, 0, 0, 0)
# The Unix mode of a regular file. Without it, some programs unpack files that nobody may read.
_MODE = 0o100644
_MOST_CAUSES = 5
_LONGEST_TEXT = 1 << 20  #: The most characters of a profile or a lock in a report.
# Only these variables change how a run behaves. Others are left out, even their names.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBundle:
    """A zip, its files (path -> bytes), notes about missing files, and the number of replacements by kind."""

    data: bytes
    name: str
    files: Mapping[str, bytes]
    notes: tuple[str, ...]
    removed: Mapping[str, int]


def bundle(subject: ReportSubject, settings: Settings, preparer: Preparer) -> ReportBundle:
    """Collect what is known of a failure, replace known secrets and names, and return the packed report.

    Raises ProfileError for a log that is not text and belongs to no run of tfdock.
    """
    notes = list(subject.notes)
    diagnosis, excerpt = _read_log(subject, preparer, notes)
    texts = {} if subject.installed and not subject.profile else _texts(subject.profile, notes)
    documents = _documents(subject, settings, preparer, diagnosis)
    redactor = Redactor(
        local_identity.known_texts(
            settings, profile=(subject.profile or {}).get("path"), installed=subject.environment
        )
    )
    files = _redact_files(documents, texts, excerpt, redactor)
    # The subject's name may be a file name, which a person chose.
    name = _safe_path(redactor.text(subject.name).replace("/", "_"))
    redacted = tuple(redactor.text(note) for note in notes)
    removed = dict(sorted(redactor.counts.items()))
    files = {"README.txt": _readme(files, redacted, removed).encode(), **files}
    return ReportBundle(data=_zip(files), name=f"{FOLDER}-{name}.zip", files=files, notes=redacted, removed=removed)


# --- what is known --------------------------------------------------------------------------------------------------


def _read_log(
    subject: ReportSubject, preparer: Preparer, notes: list[str]
) -> tuple[Diagnosis | None, Excerpt | None]:
    """Return the diagnosis of the log, and its lines for the report; add problems with the log to `notes`."""
    if subject.log is None:
        return None, None
    with open_plain_file(subject.log) as log:
        if log is None:
            notes.append("the log is gone, or is not a file")
            return None, None
        diagnosis = _diagnose(log, subject, preparer, notes)
        # Read the log twice instead of keeping gigabytes. Use one descriptor, because the path may be replaced.
        log.seek(0)
        return diagnosis, _excerpt(log, diagnosis)


def _diagnose(log: BinaryIO, subject: ReportSubject, preparer: Preparer, notes: list[str]) -> Diagnosis | None:
    """Return the diagnosis of a log, with the profile as context if its file is unchanged since the build.

    Raises ProfileError for a stranger's log that is not text. A run of tfdock is then reported without a diagnosis.
    """
    assert subject.log
    context = load_context(subject.file, preparer) if subject.file else None
    try:
        diagnosis = diagnose_log(
            log,
            preparer.knowledge,
            context,
            name=subject.log.name,
            add_note=notes.append,
        )
    except ProfileError:
        if subject.run_document is None and subject.record is None:
            raise
        notes.append("the log is not text")
        return None
    if not diagnosis.lines:
        notes.append("the log is empty")
    return diagnosis


def _excerpt(log: BinaryIO, diagnosis: Diagnosis | None) -> Excerpt:
    causes = (diagnosis.findings or diagnosis.suspects)[:_MOST_CAUSES] if diagnosis else ()
    excerpt = Excerpt(cause.line for cause in causes)
    with suppress(NotText):  # a note already reports this
        for block in unpacked(iter(partial(log.read, BLOCK), b""), lambda _: None):
            excerpt.feed(block)
    excerpt.close()
    return excerpt


def _documents(
    subject: ReportSubject, settings: Settings, preparer: Preparer, diagnosis: Diagnosis | None
) -> dict[str, object]:
    run_document = subject.run_document or {}
    # The plan and the profile are separate files.
    run = {name: value for name, value in run_document.items() if name not in ("plan", "profile")}
    # Leave out suggestions, which are objects of the resolver: the texts of the fixes say the same.
    problems = [as_document(replace(problem, ways=())) for problem in subject.problems]
    documents: dict[str, object] = {
        "run.json": run | ({"refused_now": problems} if problems else {}),
        "plan.json": subject.plan,
        "record.json": subject.record,
        "environment.json": _environment(settings, preparer),
        "installed.json": subject.installed,
    }
    if diagnosis and subject.log:
        document = diagnose_document({subject.log.name: diagnosis}, with_warnings=False)
        documents["diagnosis.json"] = {"schema": "tfdock.diagnose/1", "ok": True, **document}
    return {name: document for name, document in documents.items() if document}


def _environment(settings: Settings, preparer: Preparer) -> dict[str, object]:
    """Return the context of a report: programs, machine, settings and the relevant variables.

    Other variables are left out, even their names.
    """
    system = platform.uname()
    # All `TFDOCK_…` variables are included, because they are settings of the run.
    names = [name for name in os.environ if name.startswith("TFDOCK_") or name in _VARIABLES]
    places = {"cache": settings.cache_dir, "wheelhouse": settings.wheelhouse}
    return {
        "tfdock": __version__,
        "knowledge": preparer.knowledge.version,
        "python": platform.python_version(),
        "system": {"kernel": f"{system.system} {system.release}", "machine": system.machine, "name": _distribution()},
        "machine": asdict(preparer.machine),
        "gpus": [asdict(gpu) for gpu in local_gpus()],
        "free_bytes": {name: free_disk(path.absolute()) for name, path in places.items()},
        "settings": {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)},
        "variables": {name: _shown(name) for name in sorted(names)},
    }


def _shown(variable: str) -> str:
    """Return the value of a variable, or `<secret>` for a secret, however short it is."""
    return "<secret>" if local_identity.is_secret(variable) else os.environ[variable]


def _plain(value: object) -> object:
    """Return a setting as a value of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def _distribution() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return ""


def _texts(profile: Mapping[str, Any] | None, notes: list[str]) -> dict[str, str]:
    """Return file name -> text of the profile, of the profiles it extends (the first base last), and of its lock."""
    if not profile:
        notes.append("the profile is not known: give it with `--profile`")
        return {}
    texts = {_name("profile", profile.get("file")): profile.get("text")}
    extends = profile.get("extends")
    for number, (name, text) in enumerate(extends.items() if isinstance(extends, dict) else (), 1):
        texts[_name(f"profile/extends-{number}", name)] = text
    lock = profile.get("lock")
    if isinstance(lock, dict):
        texts[_name("profile", lock.get("file"))] = lock.get("text")
        if not lock.get("used"):
            notes.append("the lock lies beside the profile; the run did not use it")
    else:
        notes.append("there is no lock beside the profile")
    return {name: text[:_LONGEST_TEXT] for name, text in texts.items() if isinstance(text, str)}


def _name(folder: str, file: object) -> str:
    return f"{folder}/{Path(str(file)).name or 'unnamed'}"


# --- what becomes of it ---------------------------------------------------------------------------------------------


def _redact_files(
    documents: Mapping[str, object], texts: Mapping[str, str], log: Excerpt | None, redactor: Redactor
) -> dict[str, bytes]:
    """Return the files of the bundle, without texts that are known to be secret or personal.

    Fields that this version of tfdock does not write are left out, since their contents are unknown.
    """
    # File names may be personal too: a profile may have the name of a customer.
    files = {
        _safe_path(redactor.text(name)): redactor.text(clean(text, keep="\t\n\r", instead=""))
        for name, text in texts.items()
    }
    for name, document in documents.items():
        kept, left_out = keep_fields(document, FIELDS.get(name))
        redactor.counts += Counter({"unknown field": left_out})
        files[name] = json.dumps(redactor.document(kept), indent=1, sort_keys=name != "diagnosis.json")
    if log:
        files["log.txt"] = log.text(redactor.text)
    return {name: text.encode("utf-8", "replace") for name, text in sorted(files.items())}


def _safe_path(name: str) -> str:
    """Return a path that stays inside the archive."""
    # No dot at the beginning, so neither `..` nor a hidden file.
    parts = (re.sub(r"[^A-Za-z0-9._+@=,-]", "_", part).lstrip(".")[:100] for part in name.split("/"))
    return "/".join(part or "_" for part in parts)


def _readme(files: Iterable[str], notes: Iterable[str], removed: Mapping[str, int]) -> str:
    lines = [
        f"A report of `tfdock report --bundle` (tfdock {__version__}, {SCHEMA}).",
        "Look through it before you send it: a secret that is in none of your variables and logins was not removed.",
        "",
        "files",
        *(f"  {name}  {_CONTENT.get(name, 'the profile, those that it extends, its lock')}" for name in files),
        "",
        "removed, and how often",
        *([f"  {kind}: {count}" for kind, count in removed.items()] or ["  nothing"]),
        *(["", "to know", *(f"  {note}" for note in notes)] if notes else []),
    ]
    return "\n".join([*lines, ""])


_CONTENT = {
    "diagnosis.json": "the result of `tfdock diagnose` for the whole log",
    "environment.json": "tfdock, knowledge, machine, settings: at the time of this report, not of the run",
    "installed.json": "the result of `tfdock doctor --python` for an environment with TensorFlow",
    "log.txt": "the lines near the lines that the diagnosis names, and the end of the log",
    "plan.json": "every value and command of the build",
    "record.json": "the record of a successful build",
    "run.json": "how the run ended, with which engine and limits",
}


def _zip(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(f"{FOLDER}/{name}", _MOMENT)
            # 3 is Unix (APPNOTE, 4.4.2). Otherwise the mode in the upper 16 bits is ignored.
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, _MODE << 16, 3
            archive.writestr(info, data)
    return packed.getvalue()
