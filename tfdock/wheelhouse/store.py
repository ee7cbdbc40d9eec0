"""The wheelhouse folder: its layout, its locks, and which records and wheels are in it.

wheelhouse/
  tensorflow-2.18.0+cuda12.5.sm86-cp311-cp311-linux_x86_64.whl
  <build id>.constraints.txt                                    for `pip install -c`: keeps that wheel installed
  .tfdock/<build id>/<fingerprint 12>/{record.json, <run id>.log}
                                          and what the record names under `kept`; <run id>.run.json of a run that has
                                          not ended well (builder/run_document); pulled.json where it was not built
                                          here, and pull-*.part while a pull is under way or broke off
  .tfdock/staging/<run id>/                                     what a container may write to
  simple/, <wheel>.metadata, .tfdock/{index.json, coverage/}    the index, where one was asked for (index.py)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from tfdock.errors import Locked, Problem, WheelRefused
from tfdock.host.files import file_sha256
from tfdock.plan.trust_domain import recorded, replaces, stands_for
from tfdock.run.journal import staging_folder
from tfdock.types import BuildId
from tfdock.wheelhouse.build_record import MOST

if TYPE_CHECKING:
    from tfdock.plan.build_plan import BuildPlan

PULLED = "pulled.json"
"""Beside the record of a build that came from a registry: from which, as which image."""
_PATIENCE = 1.0
"""Seconds that a run waits for a build id: who prunes the wheelhouse has it for a moment, another run for hours."""
_FIELDS = {"build_id": str, "fingerprint": str, "log": str, "wheels": list, "seconds": dict, "attempts": int}
"""What every record has, and nobody who reads one asks for again."""
_KEPT = re.compile(r"[0-9A-Za-z-]+\.(?:profile|inputs|spawns)\.gz")
"""Files of ours: a record cannot name any other, whoever wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A wheel in the wheelhouse: file name, sha256 (64 hexadecimal digits), size in bytes."""

    file: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A folder of wheels, shared by any number of runs."""

    root: Path

    @property
    def _private(self) -> Path:
        return self.root / ".tfdock"

    def record_folder(self, build_id: BuildId, fingerprint: str) -> Path:
        """Where the record and the log of a build lie."""
        return self._private / build_id / fingerprint[:12]

    def constraints(self, build_id: BuildId) -> Path:
        """The file that holds pip to the wheels of a build, whatever else it installs."""
        return self.root / f"{build_id}.constraints.txt"

    def staging(self, run: str) -> Path:
        """Where a run's containers write, on the wheelhouse's own file system so that the last move is atomic."""
        return staging_folder(self.root, run)

    @contextmanager
    def locked(self, build_id: BuildId, patience: float = _PATIENCE) -> Iterator[None]:
        """Hold a build id; raises Locked when another run has it. The kernel frees it if we die."""
        folder = self._private / build_id
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / "lock")
        try:
            lock.acquire(timeout=patience)
        except filelock.Timeout as error:
            raise Locked(
                Problem(
                    code="build-locked",
                    message=f"another run is building or pulling {build_id} into {self.root}",
                    fix="wait for it to end, or give another `--wheelhouse`",
                )
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold what others see of the wheelhouse: who adds, replaces or removes a wheel does it alone, and briefly.

        Who holds a build id may take this; who holds this waits for no build id.
        """
        self._private.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self._private / "lock"):
            yield

    def finished(self, build_id: BuildId, fingerprint: str) -> dict[str, Any] | None:
        """The record of that very build if its wheels are all here, byte for byte; None otherwise."""
        record = record_of(self.record_folder(build_id, fingerprint) / "record.json")
        if record is None or record.get("fingerprint") != fingerprint:
            return None
        for wheel in record["wheels"]:
            path = self.root / wheel["file"]
            if not path.is_file() or path.stat().st_size != wheel["size"] or file_sha256(path) != wheel["sha256"]:
                return None
        return record

    def finished_for(self, plan: BuildPlan) -> dict[str, Any] | None:
        """Return the record of a plan's build, if its wheels are here and its domain may stand for the plan's."""
        record = self.finished(plan.build_id, plan.fingerprint)
        return record if record and self.stands_for(record, plan.trust.name) else None

    def stands_for(self, record: Mapping[str, Any], domain: str) -> bool:
        """Return whether a build here may stand for one of the same fingerprint in a trust domain."""
        return stands_for(record, domain, pulled=self.pulled_from(record) is not None)

    def has(self, build_id: BuildId, fingerprint: str, domain: str) -> bool:
        """Whether that very build is here, by its record and its wheels' sizes; `finished_for` reads the wheels."""
        record = record_of(self.record_folder(build_id, fingerprint) / "record.json")
        if record is None or record.get("fingerprint") != fingerprint or not self.stands_for(record, domain):
            return False
        files = [(self.root / wheel["file"], wheel["size"]) for wheel in record["wheels"]]
        return all(path.is_file() and path.stat().st_size == size for path, size in files)

    def record_files(self, build_id: BuildId | None = None) -> list[Path]:
        """The files of all records, or of those of a build id."""
        return sorted(self._private.glob(f"{build_id or '*'}/*/record.json"))

    def pulled_from(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Where a build came from that was not built here: `reference` and `digest` of an image; None if it was."""
        folder = self.record_folder(BuildId(str(record.get("build_id"))), str(record.get("fingerprint")))
        return _read_json(folder / PULLED)

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record of the wheelhouse."""
        for file in self.record_files():
            record = record_of(file)
            if record is not None:
                yield record

    def check_free(self, build_id: BuildId, wheel: WheelFile, domain: str) -> None:
        """Refuse to replace a wheel of that name that is not from this build id, or is of another trust domain."""
        self._check_domain(build_id, domain)
        path = self.root / wheel.file
        if not path.exists():
            return
        found = file_sha256(path)
        rows = [
            (record["build_id"], recorded(record), one["sha256"])
            for record in self.records()
            for one in record["wheels"]
            if one["file"] == wheel.file
        ]
        owners = {owner for owner, _, sha256 in rows if sha256 == found}
        replaceable = all(replaces(domain, of) for _, of, sha256 in rows if sha256 == found)
        if found == wheel.sha256 or (build_id in owners and replaceable):
            return
        if rows and not owners:
            raise changed_wheel(path)
        whose = f"belongs to {', '.join(sorted(owners))}" if owners else "was not built here"
        raise WheelRefused(
            Problem(
                code="wheel-name-taken",
                message=f"{path} {whose}, and holds other bytes",
                fix="move it away, use another `--wheelhouse`, or give the profile a `wheel: {local_version: …}`",
            )
        )

    def _check_domain(self, build_id: BuildId, domain: str) -> None:
        """Refuse a build id whose wheel is here, of another trust domain: it names the constraints and tags too."""
        for file in self.record_files(build_id):
            record = record_of(file)
            if record is None or not record["wheels"] or replaces(domain, recorded(record)):
                continue
            if self.finished(build_id, record["fingerprint"]):
                raise WheelRefused(
                    Problem(
                        code="wheel-name-taken",
                        message=f"{self.root / record['wheels'][0]['file']} has the build id {build_id} too, and is "
                        f"of the trust domain {recorded(record)}, not {domain}",
                        why="a build of another source, base image or option would take its name and its tags",
                        fix=(
                            "use another `--wheelhouse`",
                            "move that wheel away, if nobody needs it",
                            "build with `--trust`, if you trust this build as much as a release",
                        ),
                    )
                )

    def check_early(self, build_id: BuildId, fingerprint: str, domain: str) -> None:
        """Refuse before hours of work what `check_free` would after them: another domain's id, a changed wheel."""
        self._check_domain(build_id, domain)
        record = record_of(self.record_folder(build_id, fingerprint) / "record.json")
        for wheel in record["wheels"] if record else ():
            own = WheelFile(file=wheel["file"], sha256=wheel["sha256"], size=wheel["size"])
            self.check_free(build_id, own, domain)


def changed_wheel(path: Path, fix: str = "remove it, and run the same command again") -> WheelRefused:
    """The refusal of a wheel whose bytes no record of it knows."""
    return WheelRefused(
        Problem(
            code="wheel-changed",
            message=f"{path} is not the wheel that its record speaks of: it was damaged, or changed, since",
            fix=fix,
        )
    )


def kept_files(record: Mapping[str, Any]) -> dict[str, str]:
    """The files beside a record that it names, by what they are."""
    kept = record.get("kept")
    named = kept.items() if isinstance(kept, Mapping) else ()
    return {str(what): name for what, name in named if isinstance(name, str) and _KEPT.fullmatch(name)}


def record_of(path: Path) -> dict[str, Any] | None:
    """A record that says what it built; None where there is none, or one that was damaged or is somebody else's."""
    record = _read_json(path) or {}
    whole = all(isinstance(record.get(name), kind) for name, kind in _FIELDS.items())
    return record if whole and all(_is_wheel(wheel) for wheel in record["wheels"]) else None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            text = file.read(MOST + 1)
        data = json.loads(text) if len(text) <= MOST else None
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _is_wheel(node: object) -> bool:
    return (
        isinstance(node, dict)
        and all(isinstance(node.get(name), kind) for name, kind in {"file": str, "sha256": str, "size": int}.items())
        and Path(node["file"]).name == node["file"]
    )
