"""Publish the wheels of a build: each file appears whole. A record without its wheels does not count as a build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tfdock.host.files import sync_path
from tfdock.plan.trust_domain import recorded
from tfdock.types import BuildId
from tfdock.wheel.identity import constraints
from tfdock.wheelhouse.index import WheelIndex
from tfdock.wheelhouse.store import PULLED, WheelFile, Wheelhouse, kept_files, load_record


def publish(
    house: Wheelhouse,
    build_id: BuildId,
    record: Mapping[str, Any],
    sealed: Mapping[Path, WheelFile],
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Make wheels visible: the record first, then pip's constraints, then each wheel; each file in one atomic move.

    `beside` has the files that the record names under `kept`; for a pulled build, also `PULLED`. If a run is killed
    in between, a record remains without its wheel. Such a build does not count as finished, and is built again.
    """
    for path in sealed:
        # Sync before the wheel is visible: after a power cut, no name may stand for missing bytes.
        sync_path(path)
    pins = constraints(build_id, [wheel.file for wheel in sealed.values()])
    index = WheelIndex(house)
    with house.changing():
        for wheel in sealed.values():
            # Check again with the lock: `check_early` was hours ago.
            house.check_replaceable(build_id, wheel, recorded(record))
        # Before the files change: the index must never name missing bytes.
        index.remove(wheel.file for wheel in sealed.values())
        # The record first: if the run is killed, the build counts as unfinished, and no wheel lacks a record.
        _write_record(house, build_id, record, beside or {})
        house.constraints(build_id).write(pins.encode())
        for path, wheel in sealed.items():
            path.replace(house.root / wheel.file)
        # The new names belong to the folder, so the folder must be synced too.
        sync_path(house.root)
        with suppress(OSError):  # the wheels are still published; `wheelhouse index` adds them
            index.add({wheel.file: wheel.sha256 for wheel in sealed.values()})


def _write_record(
    house: Wheelhouse, build_id: BuildId, record: Mapping[str, Any], beside: Mapping[str, bytes]
) -> None:
    folder = house.record_folder(build_id, record["fingerprint"])
    for name, data in beside.items():
        # Written before the record, which names them.
        (folder / name).write(data)
    replaced = load_record(folder / "record.json") or {}
    text = json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"
    # Remove before the new record gets its name: afterwards no record would list the old bytes.
    with (folder / "record.json").written(text):
        _remove_other_bytes(house, replaced, record)
    # Remove after the record is written: no record may name a missing file.
    for name in (PULLED, *kept_files(replaced).values()):
        if name not in beside and name not in kept_files(record).values():
            (folder / name).remove()


def _remove_other_bytes(house: Wheelhouse, replaced: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Remove wheels whose bytes the new record does not list.

    If they stayed and the run were killed, `check_replaceable` would refuse to replace them.
    """
    sha256s = {wheel["file"]: wheel["sha256"] for wheel in record["wheels"]}
    for wheel in replaced.get("wheels", ()):
        if sha256s.get(wheel["file"], wheel["sha256"]) != wheel["sha256"]:
            house.at(wheel["file"]).remove()
