"""What a run keeps beside its log until it has ended well: what it was to build, out of what, and how it failed.

    <wheelhouse>/.tfdock/<build id>/<fingerprint 12>/<run id>.run.json

It is written when the run begins, so that it is there however the run ends. The record of a build takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tfdock import __version__
from tfdock.builder.build_summary import plain_file
from tfdock.errors import TfdockError, as_document
from tfdock.host.files import write_atomically
from tfdock.plan.prepare import PreparedBuild, lock_path, lock_text
from tfdock.run import journal
from tfdock.wheelhouse.build_record import BUILD_ID, DEEPEST, is_shallow
from tfdock.wheelhouse.store import Wheelhouse

SCHEMA = "tfdock.run/1"
SUFFIX = ".run.json"
MOST = 16 << 20
"""Bytes of a document that is read."""


class RunDocumentWriter:
    """The papers of one run, by its log. That they cannot be kept never makes a build fail, nor hides why it did."""

    def __init__(self, log: Path) -> None:
        self.path = papers_of(log)
        self._document: dict[str, Any] = {}

    def begin(self, **what: object) -> None:
        """Keep what the run is about to do."""
        self._document = {"schema": SCHEMA, "tfdock": __version__, "run": self.path.name.removesuffix(SUFFIX), **what}
        self._write(started=_now())

    def failed(self, error: BaseException) -> None:
        """Keep how it ended."""
        problems = [as_document(problem) for problem in error.problems] if isinstance(error, TfdockError) else []
        what = {"problems": problems} if problems else {"error": f"{type(error).__name__}: {error}"}
        self._write(ended=_now(), **what)

    def over(self) -> None:
        """It has ended well."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _write(self, **more: object) -> None:
        self._document |= more
        with suppress(OSError):
            write_atomically(self.path, json.dumps(self._document, indent=1, default=str).encode() + b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def papers_of(log: Path) -> Path:
    """Where the papers of the run with that log lie."""
    return log.with_name(f"{log.name.removesuffix('.log')}{SUFFIX}")


def written(prepared: PreparedBuild) -> dict[str, Any]:
    """What a profile said when it was planned, with those it extends, and its lock if that can be read."""
    profile = Path(prepared.file)
    # The path is for reading it again, as the context of a diagnosis; it goes nowhere.
    found: dict[str, Any] = {
        "file": profile.name,
        "path": str(profile.absolute()),
        "text": prepared.written.text,
        "extends": dict(prepared.written.extended),
        "lock": None,
    }
    with suppress(TfdockError, OSError):
        path = Path(prepared.lock.path) if prepared.lock else lock_path(prepared.file)
        found["lock"] = {"file": path.name, "text": lock_text(path), "used": prepared.lock is not None}
    return found


def failed_runs(house: Wheelhouse, state: Path, build_id: str | None = None) -> list[Path]:
    """The papers of runs that did not end well, of a build id or of all, the newest first; none that still runs."""
    if build_id is not None and not BUILD_ID.fullmatch(build_id):
        return []
    living: set[str] = set()
    with suppress(OSError):
        living = journal.living_runs(state)
    own = house.root / ".tfdock"
    found = own.glob(f"{build_id or '*'}/*/*{SUFFIX}")
    over = [path for path in found if path.name.removesuffix(SUFFIX) not in living and not path.is_symlink()]
    return sorted(over, key=lambda path: path.name, reverse=True)


def document_of(path: Path, schemas: Collection[str] = (SCHEMA,)) -> dict[str, Any] | None:
    """A JSON document of ours, of a schema of these; None where there is none that is whole."""
    with plain_file(path) as file:
        data = file.read(MOST + 1) if file else b""
    try:
        document = json.loads(data) if len(data) <= MOST else None
    except (ValueError, RecursionError):
        return None
    ours = isinstance(document, dict) and document.get("schema") in schemas
    return document if ours and is_shallow(document, DEEPEST) else None
