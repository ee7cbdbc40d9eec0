"""The wheelhouse folder: its layout, its locks, and which records and wheels are in it.

wheelhouse/
  tensorflow-2.18.0+cuda12.5.sm86-cp311-cp311-linux_x86_64.whl
  <build id>.constraints.txt                                    for `pip install -c`: keeps the wheel installed
  .tfdock/<build id>/<fingerprint 12>/{record.json, <run id>.log}
                                          and the files that the record names under `kept`; <run id>.run.json of a
                                          failed or unfinished run (builder/run_document); pulled.json if the build
                                          was pulled, and pull-*.part of a running or interrupted pull
  .tfdock/staging/<run id>/                                     the results of a run, before they are published
  simple/, <wheel>.metadata, .tfdock/index.json                 the index, if one was requested (index.py)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tfdock.errors import Locked, WheelRefused
from tfdock.host.files import held
from tfdock.host.untrusted_folders import NotPlain, UntrustedPath
from tfdock.plan.trust_domain import recorded, replaces, stands_for
from tfdock.types import BuildId
from tfdock.wheelhouse.build_record import LARGEST_RECORD, Fingerprint, RecordedBuildId, WheelName

if TYPE_CHECKING:
    from tfdock.plan.build_plan import BuildPlan

PULLED = "pulled.json"  #: File beside the record of a build that came from a registry. It names the registry's image.
#: The document of an unsuccessful run: its schema, its suffix, and the most bytes that are read.
RUN_SCHEMA, RUN_SUFFIX, LARGEST_RUN = "tfdock.run/1", ".run.json", 16 << 20
#: Seconds that a run waits for a build id.
#:
#: A prune command holds the lock for a moment, another run for hours.
_PATIENCE = 1.0
#: Names of kept files. A record, whoever wrote it, cannot name any other file. Earlier versions kept `spawns`.
_KEPT = re.compile(r"[0-9A-Za-z-]+\.(?:profile|inputs|spawns)\.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """The file of a finished wheel."""

    file: str  #: The file's name.
    sha256: str  #: 64 hexadecimal digits.
    size: int  #: Bytes.


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A folder of wheels, shared by any number of runs. The folder may be in a stranger's checkout."""

    root: Path

    def at(self, name: str) -> UntrustedPath:
        """Return the path of a name in the folder."""
        return UntrustedPath(self.root, name)

    @property
    def private(self) -> UntrustedPath:
        """The folder of all files that installers do not read."""
        return self.at(".tfdock")

    def record_folder(self, build_id: BuildId, fingerprint: str) -> UntrustedPath:
        """Return the folder of a build's record and log."""
        # The name is short for people. Readers of the record compare the whole fingerprint.
        return self.private / build_id / fingerprint[:12]

    def constraints(self, build_id: BuildId) -> UntrustedPath:
        """Return the path of the constraints file, which makes pip keep the wheels of a build."""
        return self.at(f"{build_id}.constraints.txt")

    def staging(self, run: str) -> Path:
        """Return the folder of a run's results; its containers write to a folder inside it.

        The folder is on the wheelhouse's own file system, so that the final move is atomic.
        """
        return self.staged.path / run

    @property
    def staged(self) -> UntrustedPath:
        """The folder with the results of all runs; containers write to folders inside it."""
        return self.private / "staging"

    def make_staged(self) -> None:
        """Create the folder of a run's results, private to this user. Raises NotPlain if a link is in its place."""
        self.private.make()
        self.staged.make(private=True)

    @contextmanager
    def locked(self, build_id: BuildId, patience: float = _PATIENCE) -> Iterator[None]:
        """Lock a build id; raise Locked if another run has it. The kernel releases the lock if this process dies."""
        until = time.monotonic() + patience

        def wait(_: str) -> None:
            if time.monotonic() >= until:
                raise Locked.of(
                    "build-locked",
                    f"another run is building or pulling {build_id} into {self.root}",
                    "wait until the other run ends, or give another `--wheelhouse`",
                )

        with held(self.private / build_id / "lock", build_id, alone=True, waiting=wait):
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the visible part of the wheelhouse for a moment: one process at a time adds, replaces or removes
        wheels.

        A process that has locked a build id may take this lock. A process with this lock must not wait for a build
        id.
        """
        # Wait without a limit: a process holds this lock only for a moment.
        with held(self.private / "lock", "the wheelhouse", alone=True, waiting=lambda _: None):
            yield

    def complete_record(self, build_id: BuildId, fingerprint: str) -> dict[str, Any] | None:
        """Return the record of a build if all its wheels are here with the same bytes; otherwise None."""
        # The sizes first: hashing half a gigabyte takes seconds.
        record = self._record_with_sizes(build_id, fingerprint)
        wheels = record["wheels"] if record else ()
        return record if all(self.at(wheel["file"]).sha256() == wheel["sha256"] for wheel in wheels) else None

    def _record_with_sizes(self, build_id: BuildId, fingerprint: str) -> dict[str, Any] | None:
        """Return the record of a build if files with its wheels' names and sizes are here; otherwise None."""
        record = load_record(self.record_folder(build_id, fingerprint) / "record.json")
        if record is None or record["fingerprint"] != fingerprint:
            return None
        found = ((self.at(wheel["file"]), wheel["size"]) for wheel in record["wheels"])
        return record if all(path.is_file() and path.size == size for path, size in found) else None

    def complete_record_for(self, plan: BuildPlan) -> dict[str, Any] | None:
        """Return the record of a plan's build, if its wheels are here and its trust domain is valid for the plan."""
        record = self.complete_record(plan.build_id, plan.fingerprint)
        return record if record and self.stands_for(record, plan.trust.name) else None

    def stands_for(self, record: Mapping[str, Any], domain: str) -> bool:
        """Return whether a build here may be used for a build with the same fingerprint in this trust domain."""
        return stands_for(record, domain, pulled=self.pulled_from(record) is not None)

    def has(self, build_id: BuildId, fingerprint: str, domain: str) -> bool:
        """Return whether a build is in this wheelhouse, by its record and the sizes of its wheels.

        `complete_record_for` reads the wheels too.
        """
        record = self._record_with_sizes(build_id, fingerprint)
        return record is not None and self.stands_for(record, domain)

    def wheels(self) -> Iterator[tuple[UntrustedPath, os.stat_result]]:
        """Yield the names of wheels in the folder, each with its stat result, also if it is no file."""
        for path in self.at("").entries():
            # A file that is being written begins with a dot. A wheel removed meanwhile has no stat result.
            if path.name.endswith(".whl") and not path.name.startswith(".") and (status := path.status()):
                yield path, status

    def record_folders(self, build_id: BuildId | None = None) -> list[UntrustedPath]:
        """Return the folders of all builds, or of one build id; links are left out."""
        # `staging` is in the same folder. Every build id begins with `tf`.
        builds = [self.private / build_id] if build_id else self.private.entries()
        return [
            folder
            for build in builds
            if build.name.startswith("tf")
            for folder in build.entries()
            if folder.is_folder()
        ]

    def record_files(self, build_id: BuildId | None = None) -> list[UntrustedPath]:
        """Return the files of all records, or of the records of one build id."""
        files = (folder / "record.json" for folder in self.record_folders(build_id))
        return [file for file in files if file.status()]

    def pulled_from(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return `reference` and `digest` of the image that a build was pulled from; None if it was built here."""
        folder = self.record_folder(BuildId(str(record.get("build_id"))), str(record.get("fingerprint")))
        pulled: dict[str, Any] | None = (folder / PULLED).load(dict[str, Any], LARGEST_RECORD)
        return pulled

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every record of the wheelhouse."""
        for file in self.record_files():
            record = load_record(file)
            if record is not None:
                yield record

    def check_replaceable(self, build_id: BuildId, wheel: WheelFile, domain: str) -> None:
        """Raise WheelRefused if a file of the wheel's name is from another build id or another trust domain."""
        self._check_domain(build_id, domain)
        path = self.at(wheel.file)
        try:
            sha256 = path.sha256()
        except FileNotFoundError:
            return
        except NotPlain as error:
            raise _name_taken(f"{path} is {error.kind}") from error
        claims = [
            (record["build_id"], recorded(record), entry["sha256"])
            for record in self.records()
            for entry in record["wheels"]
            if entry["file"] == wheel.file
        ]
        owners = {owner for owner, _, row_sha256 in claims if row_sha256 == sha256}
        replaceable = all(
            replaces(domain, row_domain) for _, row_domain, row_sha256 in claims if row_sha256 == sha256
        )
        # The same bytes may be published again by any build.
        if sha256 == wheel.sha256 or (build_id in owners and replaceable):
            return
        # Records name this file with other bytes: the file was changed and must not be replaced.
        if claims and not owners:
            raise changed_wheel_error(path.path)
        ownership = f"belongs to {', '.join(sorted(owners))}" if owners else "was not built here"
        raise _name_taken(f"{path} {ownership}, and has other contents")

    def _check_domain(self, build_id: BuildId, domain: str) -> None:
        """Raise WheelRefused if a wheel of this build id is here and belongs to another trust domain.

        The build id names the constraints and the image tags too.
        """
        for file in self.record_files(build_id):
            record = load_record(file)
            if record is None or not record["wheels"] or replaces(domain, recorded(record)):
                continue
            if self.complete_record(build_id, record["fingerprint"]):
                raise WheelRefused.of(
                    "wheel-name-taken",
                    f"{self.root / record['wheels'][0]['file']} also has the build id {build_id}, but belongs to the "
                    f"trust domain {recorded(record)}, not {domain}",
                    (
                        "use another `--wheelhouse`",
                        "move the other wheel away, if nobody needs it",
                        "build with `--trust`, if you trust this build as much as a release",
                    ),
                    why="a build with another source, base image or option would take this wheel's name and tags",
                )

    def check_early(self, build_id: BuildId, fingerprint: str, domain: str) -> None:
        """Raise WheelRefused if `check_replaceable` would refuse the result: before hours of work."""
        self._check_domain(build_id, domain)
        record = load_record(self.record_folder(build_id, fingerprint) / "record.json")
        for wheel in record["wheels"] if record else ():
            own = WheelFile(file=wheel["file"], sha256=wheel["sha256"], size=wheel["size"])
            self.check_replaceable(build_id, own, domain)


def _name_taken(message: str) -> WheelRefused:
    fix = "move the wheel away, use another `--wheelhouse`, or set `wheel: {local_version: …}` in the profile"
    return WheelRefused.of("wheel-name-taken", message, fix)


def changed_wheel_error(path: Path, fix: str = "remove the wheel, and run the same command again") -> WheelRefused:
    """Return the error for a wheel whose bytes are in no record."""
    return WheelRefused.of(
        "wheel-changed", f"{path} does not match its record: the wheel was damaged or changed", fix
    )


def kept_files(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that a record names, by kind."""
    kept = record.get("kept")
    items = kept.items() if isinstance(kept, Mapping) else ()
    return {str(kind): name for kind, name in items if isinstance(name, str) and _KEPT.fullmatch(name)}


# A stranger may have written the record: its wheel's name must not lead out of the wheelhouse.
_Wheel = TypedDict("_Wheel", {"file": WheelName, "sha256": str, "size": int})


class _Record(TypedDict):
    """Fields that every record has. Readers of a loaded record do not check these again."""

    build_id: RecordedBuildId
    fingerprint: Fingerprint
    log: str
    wheels: list[_Wheel]
    seconds: Mapping[str, Any]
    attempts: int


def load_record(path: UntrustedPath) -> dict[str, Any] | None:
    """Return the record in a file; None if it is missing, damaged, or from another program."""
    record: dict[str, Any] | None = path.load(_Record, LARGEST_RECORD)
    return record
