"""List the wheels of a wheelhouse, each with its build record, or else with its own metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from tfdock.errors import Problem
from tfdock.host.files import file_sha256
from tfdock.types import BuildId
from tfdock.wheel.facts import WheelError
from tfdock.wheel.inspection import build_info_of
from tfdock.wheel.zip_archive import open_archive
from tfdock.wheelhouse.index import Signature, WheelIndex, signature
from tfdock.wheelhouse.retention import WheelClaims, told_by_build_info, told_by_record
from tfdock.wheelhouse.store import Wheelhouse, record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """The record of a build, and where it lies."""

    record: Mapping[str, Any]
    folder: Path

    @property
    def build_id(self) -> BuildId:
        """The build id, by the folder: that is the one whose lock is held."""
        return BuildId(self.folder.parent.name)

    @property
    def fingerprint(self) -> str:
        """The build's fingerprint."""
        return str(self.record["fingerprint"])

    @property
    def wheels(self) -> Iterator[tuple[str, str, int]]:
        """Its wheels: file, sha256, size."""
        for wheel in self.record["wheels"]:
            yield wheel["file"], wheel["sha256"], wheel["size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWheel:
    """A wheel that lies in the wheelhouse.

    `changed` is its file's time in seconds since 1970. `recorded` is the build that made it: None for a wheel from
    elsewhere, and for one that is no longer what a build published. `problem` says what is wrong, if anything is.
    """

    path: Path
    size: int
    changed: float
    signature: Signature
    name: str
    version: str
    tags: str
    told: WheelClaims
    sha256: str | None = None
    recorded: StoredRecord | None = None
    pulled_from: str | None = None
    problem: str = ""

    @property
    def finished(self) -> float:
        """When it was made: by its record, else by its file."""
        return self.changed if self.told.finished is None else self.told.finished


def records(house: Wheelhouse) -> list[StoredRecord]:
    """Every record of the wheelhouse that can be read, with the folder that it lies in."""
    found = ((file.parent, record_of(file)) for file in house.record_files())
    return [StoredRecord(record=record, folder=folder) for folder, record in found if record is not None]


def unreadable(house: Wheelhouse) -> list[Problem]:
    """Warnings of records that cannot be read: their wheels are taken for somebody else's."""
    return [
        Problem(
            code="record-unreadable",
            severity="warning",
            message=f"{file} is no record that can be read: it was damaged, or a later version wrote it",
            fix="build or pull it again; until then its wheel counts as one from elsewhere",
        )
        for file in house.record_files()
        if record_of(file) is None and file.exists()
    ]


def held(house: Wheelhouse, accelerators: Callable[[], Iterable[str]]) -> list[StoredWheel]:
    """Every wheel of the wheelhouse, by name. `accelerators` are asked for where a wheel has no record.

    A file is taken for what its record says by its name and size; only where that could be several, it is hashed.
    """
    by_file: dict[str, list[tuple[str, int, StoredRecord]]] = defaultdict(list)
    for one in records(house):
        for file, sha256, size in one.wheels:
            by_file[file].append((sha256, size, one))
    hashes = WheelIndex(house).hashes()
    found = []
    for path in sorted(house.root.iterdir()):
        if path.suffix != ".whl" or path.name.startswith(".") or not path.is_file():
            continue
        with suppress(FileNotFoundError):  # it has gone since
            found.append(_held(house, path, hashes.get(path.name), by_file[path.name], accelerators))
    return found


def _held(
    house: Wheelhouse,
    path: Path,
    sha256: str | None,
    candidates: list[tuple[str, int, StoredRecord]],
    accelerators: Callable[[], Iterable[str]],
) -> StoredWheel:
    found = path.stat()
    same = [one for one in candidates if one[1] == found.st_size]
    if sha256 is None and len({one[0] for one in same}) > 1:
        sha256 = file_sha256(path)
    if sha256 is not None:
        same = [one for one in same if one[0] == sha256]
    # The newest of those that made these very bytes.
    newest = max(same, key=lambda one: str(one[2].record.get("finished")), default=None)
    name, version, tags = _named(path.name)
    recorded = newest[2] if newest else None
    told, problem = (told_by_record(recorded.record), "") if recorded else _foreign(path, accelerators)
    if candidates and not recorded:
        problem = problem or "not the bytes that a build published under this name"
    return StoredWheel(
        path=path,
        size=found.st_size,
        changed=found.st_mtime,
        signature=signature(found),
        name=name,
        version=version,
        tags=tags,
        told=told,
        sha256=newest[0] if newest else sha256,
        recorded=recorded,
        pulled_from=_reference(house.pulled_from(recorded.record)) if recorded else None,
        problem=problem,
    )


def _named(file: str) -> tuple[str, str, str]:
    """Name, version and tags by the file's name, as far as it is one."""
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return file, "", ""
    return canonicalize_name(name), str(version), "-".join(file.removesuffix(".whl").split("-")[-3:])


def _foreign(path: Path, accelerators: Callable[[], Iterable[str]]) -> tuple[WheelClaims, str]:
    """What a wheel says of itself; read are its directory and one document."""
    try:
        with path.open("rb") as file:
            info = build_info_of(open_archive(file))
    except WheelError as error:
        return WheelClaims(), error.message
    except FileNotFoundError:
        raise
    except OSError as error:
        return WheelClaims(), f"it cannot be read: {error.strerror}"
    return (told_by_build_info(info, accelerators()) if info else WheelClaims()), ""


def _reference(pulled: Mapping[str, Any] | None) -> str | None:
    reference = (pulled or {}).get("reference")
    return reference if isinstance(reference, str) else None
