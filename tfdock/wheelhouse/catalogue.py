"""List the wheels of a wheelhouse, each with its build record, or with its own metadata if it has no record."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
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
from tfdock.wheelhouse.build_record import WheelClaims, claims_of_build_info, claims_of_record
from tfdock.wheelhouse.index import Signature, WheelIndex, signature
from tfdock.wheelhouse.store import Wheelhouse, load_record


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A record that names a wheel, with the wheel's hash and size."""

    build_id: BuildId
    record: Mapping[str, Any]
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWheel:
    """A wheel in the wheelhouse.

    `changed` is the modification time of the file, in seconds since 1970. `build_id` and `fingerprint` belong to the
    build that made the wheel. Both are None if tfdock did not build the wheel, or if its bytes differ from the
    published wheel. `problem` says what is wrong; empty if nothing is.
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
    build_id: BuildId | None = None
    fingerprint: str | None = None
    pulled_from: str | None = None
    problem: str = ""

    @property
    def finished(self) -> float:
        """The build time from the record; without a record, the time of the file."""
        return self.changed if self.claims.finished is None else self.claims.finished


def unreadable_records(house: Wheelhouse) -> list[Problem]:
    """Return warnings of records that cannot be read. Their wheels count as wheels from elsewhere."""
    return [
        Problem(
            "record-unreadable",
            f"{file} is not a readable record: it was damaged, or a later version wrote it",
            "build or pull the wheel again; until then it counts as a wheel that tfdock did not build",
            severity="warning",
        )
        for file in house.record_files()
        # Another process may prune the wheelhouse meanwhile.
        if load_record(file) is None and file.status()
    ]


def list_wheels(house: Wheelhouse, accelerators: Callable[[], Iterable[str]]) -> list[StoredWheel]:
    """Return every wheel of the wheelhouse, by name. `accelerators` is called for wheels without a record.

    A wheel belongs to the record with its name and size. The wheel is hashed only if several records match.
    """
    by_file: dict[str, list[_Candidate]] = defaultdict(list)
    for file in house.record_files():
        # Take the build id from the folder: its lock must be held.
        build_id, record = BuildId(file.parent.parent.name), load_record(file) or {}
        for wheel in record.get("wheels", ()):
            candidate = _Candidate(build_id=build_id, record=record, sha256=wheel["sha256"], size=wheel["size"])
            by_file[wheel["file"]].append(candidate)
    # The index has the hash of each wheel that has not changed since the index was written.
    hashes = WheelIndex(house).hashes()
    wheels = []
    for path, status in house.wheels():
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
    candidates: list[_Candidate],
    accelerators: Callable[[], Iterable[str]],
) -> StoredWheel:
    is_link = stat.S_ISLNK(status.st_mode)
    if is_link:
        candidates, sha256 = [], None
    matching = [candidate for candidate in candidates if candidate.size == status.st_size]
    # Only this step reads the bytes: hashing half a gigabyte takes seconds.
    if sha256 is None and len({candidate.sha256 for candidate in matching}) > 1:
        sha256 = path.sha256()
    if sha256 is not None:
        matching = [candidate for candidate in matching if candidate.sha256 == sha256]
    # The newest build with exactly these bytes.
    newest = max(matching, key=lambda candidate: str(candidate.record.get("finished")), default=None)
    name, version, tags = _parse_name(path.name)
    if newest:
        claims, problem = claims_of_record(newest.record), ""
    elif is_link:
        claims, problem = WheelClaims(), "it is a link; links are not followed"
    else:
        claims, problem = _foreign_claims(path, accelerators)
    if candidates and not newest:
        problem = problem or "its bytes differ from the wheel that a build published under this name"
    pulled = house.pulled_from(newest.record) if newest else None
    reference = (pulled or {}).get("reference")
    return StoredWheel(
        path=path.path,
        size=status.st_size,
        changed=status.st_mtime,
        signature=signature(status),
        name=name,
        version=version,
        tags=tags,
        claims=claims,
        sha256=newest.sha256 if newest else sha256,
        build_id=newest.build_id if newest else None,
        fingerprint=newest.record["fingerprint"] if newest else None,
        pulled_from=reference if isinstance(reference, str) else None,
        problem=problem,
    )


def _parse_name(file: str) -> tuple[str, str, str]:
    """Return the name, version and tags in a wheel's file name; for an invalid one only the file name."""
    label = variant_label(file)
    plain = file.removesuffix(f"-{label}.whl") + ".whl" if label else file
    try:
        name, version, _, _ = parse_wheel_filename(plain)
    except InvalidWheelFilename:
        return file, "", ""
    # The last three parts: a build number may stand before the tags.
    return canonicalize_name(name), str(version), "-".join(plain.removesuffix(".whl").split("-")[-3:])


def _foreign_claims(path: UntrustedPath, accelerators: Callable[[], Iterable[str]]) -> tuple[WheelClaims, str]:
    """Return the claims in a wheel itself, and a problem. Only its zip directory and one file are read."""
    try:
        with path.open() as file:
            info = build_info_of(open_archive(file))
    except WheelError as error:
        return WheelClaims(), error.message
    # The caller leaves out a removed wheel. Any other error is shown with the wheel.
    except FileNotFoundError:
        raise
    except OSError as error:
        return WheelClaims(), f"it cannot be read: {error.strerror}"
    return (claims_of_build_info(info, accelerators()) if info else WheelClaims()), ""
