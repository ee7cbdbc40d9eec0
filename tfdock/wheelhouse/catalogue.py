"""List the wheels of a wheelhouse, each with its build record, or else with its own metadata."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from tfdock.errors import Problem
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.types import BuildId
from tfdock.wheel.facts import WheelError
from tfdock.wheel.inspection import build_info_of
from tfdock.wheel.wheel import variant_label
from tfdock.wheel.zip_archive import open_archive
from tfdock.wheelhouse.index import Signature, WheelIndex, signature
from tfdock.wheelhouse.retention import WheelClaims, claims_of_build_info, claims_of_record
from tfdock.wheelhouse.store import Wheelhouse, load_record


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """The record of a build, and the folder that holds it."""

    record: Mapping[str, Any]
    folder: UntrustedPath

    @property
    def build_id(self) -> BuildId:
        """The build id, by the folder: its lock is the one to hold."""
        return BuildId(self.folder.parent.name)

    @property
    def fingerprint(self) -> str:
        """The build's fingerprint."""
        return str(self.record["fingerprint"])

    @property
    def wheels(self) -> Iterator[tuple[str, str, int]]:
        """The wheels of the build: file, sha256, size."""
        for wheel in self.record["wheels"]:
            yield wheel["file"], wheel["sha256"], wheel["size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWheel:
    """A wheel that lies in the wheelhouse.

    `changed` is its file's time in seconds since 1970. `recorded` is the build that made it. It is None for a wheel
    from elsewhere, and for a wheel whose bytes are not those that a build published. `problem` says what is wrong, if
    anything.
    """

    path: Path
    size: int
    changed: float
    signature: Signature
    name: str
    version: str
    tags: str
    claims: WheelClaims
    sha256: str | None = None
    recorded: StoredRecord | None = None
    pulled_from: str | None = None
    problem: str = ""

    @property
    def finished(self) -> float:
        """When it was made, by its record or else by its file."""
        return self.changed if self.claims.finished is None else self.claims.finished


def records(house: Wheelhouse) -> list[StoredRecord]:
    """Return every record of the wheelhouse that can be read, with its folder."""
    loaded = ((file.parent, load_record(file)) for file in house.record_files())
    return [StoredRecord(record=record, folder=folder) for folder, record in loaded if record is not None]


def unreadable_records(house: Wheelhouse) -> list[Problem]:
    """Return warnings of records that cannot be read. Their wheels count as wheels from elsewhere."""
    return [
        Problem(
            "record-unreadable",
            f"{file} is no record that can be read: it was damaged, or a later version wrote it",
            "build or pull it again; until then its wheel counts as one from elsewhere",
            severity="warning",
        )
        for file in house.record_files()
        # Somebody may prune meanwhile.
        if load_record(file) is None and file.status()
    ]


def list_wheels(house: Wheelhouse, accelerators: Callable[[], Iterable[str]]) -> list[StoredWheel]:
    """Return every wheel of the wheelhouse, by name. `accelerators` is called for wheels without a record.

    A wheel belongs to the record that has its name and size. It is hashed only where several records could be meant.
    """
    by_file: dict[str, list[tuple[str, int, StoredRecord]]] = defaultdict(list)
    for stored in records(house):
        for file, sha256, size in stored.wheels:
            by_file[file].append((sha256, size, stored))
    # The index knows the hash of each wheel that has not changed since.
    hashes = WheelIndex(house).hashes()
    wheels = []
    for path in house.at("").entries():
        status = path.status()
        # A file that is being written begins with a dot. `status` is None where it has gone since.
        if not path.name.endswith(".whl") or path.name.startswith(".") or status is None:
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            with suppress(FileNotFoundError):
                known = hashes.get(path.name), by_file[path.name]
                wheels.append(_stored_wheel(house, path, status, *known, accelerators))
    return wheels


def _stored_wheel(
    house: Wheelhouse,
    path: UntrustedPath,
    status: os.stat_result,
    sha256: str | None,
    candidates: list[tuple[str, int, StoredRecord]],
    accelerators: Callable[[], Iterable[str]],
) -> StoredWheel:
    is_link = stat.S_ISLNK(status.st_mode)
    if is_link:
        candidates, sha256 = [], None
    matching = [candidate for candidate in candidates if candidate[1] == status.st_size]
    # Only here do the bytes decide: hashing half a gigabyte takes seconds.
    if sha256 is None and len({candidate[0] for candidate in matching}) > 1:
        sha256 = path.sha256()
    if sha256 is not None:
        matching = [candidate for candidate in matching if candidate[0] == sha256]
    # The newest of those that made these very bytes.
    newest = max(matching, key=lambda candidate: str(candidate[2].record.get("finished")), default=None)
    name, version, tags = _parse_name(path.name)
    recorded = newest[2] if newest else None
    if recorded:
        claims, problem = claims_of_record(recorded.record), ""
    elif is_link:
        claims, problem = WheelClaims(), "it is a link, and no link is followed"
    else:
        claims, problem = _foreign_claims(path, accelerators)
    if candidates and not recorded:
        problem = problem or "not the bytes that a build published under this name"
    return StoredWheel(
        path=path.path,
        size=status.st_size,
        changed=status.st_mtime,
        signature=signature(status),
        name=name,
        version=version,
        tags=tags,
        claims=claims,
        sha256=newest[0] if newest else sha256,
        recorded=recorded,
        pulled_from=_pull_reference(house.pulled_from(recorded.record)) if recorded else None,
        problem=problem,
    )


def _parse_name(file: str) -> tuple[str, str, str]:
    """Return name, version and tags of a wheel's file name; the file name alone if it is malformed."""
    label = variant_label(file)
    plain = file.removesuffix(f"-{label}.whl") + ".whl" if label else file
    try:
        name, version, _, _ = parse_wheel_filename(plain)
    except InvalidWheelFilename:
        return file, "", ""
    # The last three parts: a build number may stand before the tags.
    return canonicalize_name(name), str(version), "-".join(plain.removesuffix(".whl").split("-")[-3:])


def _foreign_claims(path: UntrustedPath, accelerators: Callable[[], Iterable[str]]) -> tuple[WheelClaims, str]:
    """Return what a wheel says of itself, and a problem. Only its directory and one document are read."""
    try:
        with path.open() as file:
            info = build_info_of(open_archive(file))
    except WheelError as error:
        return WheelClaims(), error.message
    # The caller leaves out a wheel that has gone. Any other error is told beside the wheel.
    except FileNotFoundError:
        raise
    except OSError as error:
        return WheelClaims(), f"it cannot be read: {error.strerror}"
    return (claims_of_build_info(info, accelerators()) if info else WheelClaims()), ""


def _pull_reference(pulled: Mapping[str, Any] | None) -> str | None:
    reference = (pulled or {}).get("reference")
    return reference if isinstance(reference, str) else None
