"""The run document: a run's plan, inputs and failure, stored beside the log until the run succeeds.

    <wheelhouse>/.tfdock/<build id>/<fingerprint 12>/<run id>.run.json

The document is written when the run begins, so it exists even if the run is killed. The build record replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdock import __version__
from tfdock.errors import TfdockError, as_document
from tfdock.host.project_files import lock_text
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.wheelhouse.store import LARGEST_RUN, RUN_SCHEMA, RUN_SUFFIX

if TYPE_CHECKING:
    from tfdock.plan.prepare import PreparedBuild


class RunDocumentWriter:
    """Writes the document of one run, beside its log. A failed write never fails the build or hides its error."""

    def __init__(self, log: UntrustedPath, **entries: object) -> None:
        """Write what the run will do."""
        self._path = run_document_path(log)
        run = self._path.name.removesuffix(RUN_SUFFIX)
        self._document: dict[str, Any] = {"schema": RUN_SCHEMA, "tfdock": __version__, "run": run, **entries}
        self._write(started=_now())

    def failed(self, error: BaseException) -> None:
        """Write how the run failed."""
        problems = [as_document(problem) for problem in error.problems] if isinstance(error, TfdockError) else []
        entries = {"problems": problems} if problems else {"error": f"{type(error).__name__}: {error}"}
        self._write(ended=_now(), **entries)

    def succeeded(self) -> None:
        """Remove the document: the run succeeded."""
        with suppress(OSError):
            self._path.remove()

    def _write(self, **more: object) -> None:
        self._document |= more
        with suppress(OSError):
            self._path.write(json.dumps(self._document, indent=1, default=str).encode() + b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_document_path(log: UntrustedPath) -> UntrustedPath:
    """Return the path of the run document for a log."""
    return log.parent / f"{log.name.removesuffix('.log')}{RUN_SUFFIX}"


def profile_document(prepared: PreparedBuild) -> dict[str, Any]:
    """Return a profile's text at planning time, the profiles that it extends, and its lock (if it is readable)."""
    profile = Path(prepared.file)
    # The path is for a later diagnosis, which reads the profile again. Reports leave it out.
    document: dict[str, Any] = {
        "file": prepared.written.name,
        "path": str(profile.absolute()),
        "text": prepared.written.text,
        "extends": dict(prepared.written.extended),
        "lock": None,
    }
    # A run without a readable lock is reported too, and its profile may be gone by now.
    with suppress(TfdockError, OSError):
        path = Path(prepared.lock.path) if prepared.lock else prepared.written.lock_path
        if path:
            document["lock"] = {"file": path.name, "text": lock_text(path), "used": prepared.lock is not None}
    return document


def load_document(path: UntrustedPath, schemas: Collection[str] = (RUN_SCHEMA,)) -> dict[str, Any] | None:
    """Return a JSON document with one of these schemas; None if the document is missing or damaged."""
    document: dict[str, Any] = path.load(dict[str, Any], LARGEST_RUN) or {}
    return document if document.get("schema") in schemas else None
