"""Wheelhouses with small wheels in them, published as builds publish theirs."""

from __future__ import annotations

import hashlib
import io
import itertools
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wheelhouses import with_record, write_wheel

from tfdock.types import BuildId
from tfdock.wheelhouse import publication
from tfdock.wheelhouse.store import WheelFile, Wheelhouse

_NUMBERS = itertools.count()


def build_id(gpu: str = "sm86") -> BuildId:
    return BuildId(f"tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-{gpu}-x86_64")


def fingerprint_of(name: BuildId, salt: str) -> str:
    return hashlib.sha256(f"{name} {salt}".encode()).hexdigest()


def wheel(
    name: str = "tensorflow",
    version: str = "2.18.0+cuda12.5.sm86",
    *,
    tag: str = "py3-none-any",
    salt: str = "",
    headers: str = "Requires-Python: >=3.9\n",
) -> tuple[str, bytes]:
    """A sound wheel that pip installs: its file name and its bytes, others for another `salt`."""
    stem = f"{name}-{version}"
    files = {
        f"{name}/__init__.py": f"version, salt = {version!r}, {salt!r}\n".encode(),
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{headers}".encode(),
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    target = io.BytesIO()
    write_wheel(target, with_record(files), zipfile.ZIP_STORED)
    return f"{stem}-{tag}.whl", target.getvalue()


def record(
    name: BuildId, fingerprint: str, file: str, data: bytes, finished: float, domain: str = "release"
) -> dict[str, Any]:
    """What `list` and `prune` read of a record."""
    choices = {"tensorflow": "2.18.0", "python": "3.11", "accelerator": "cuda", "cuda": "12.5.1"}
    return {
        "schema": "tfdock.record/1",
        "build_id": name,
        "fingerprint": fingerprint,
        "log": "20261101-000000-aaaaaa.log",
        "seconds": {},
        "attempts": 1,
        "wheels": [{"file": file, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}],
        "plan": {
            "choices": [{"field": field, "value": value} for field, value in choices.items()],
            "trust": {"domain": domain, "reasons": [], "shared": False},
        },
        "verification": {
            "checks": [{"name": name, "status": "passed"} for name in ("file-integrity", "install", "import")],
            "gpu_code": {"sass": ["sm_86"], "ptx": [], "amdgpu": []},
            "runtime": "python:3.11-slim-bookworm",
        },
        "finished": datetime.fromtimestamp(finished, UTC).isoformat(timespec="seconds"),
    }


def publish(
    house: Wheelhouse,
    version: str = "2.18.0+cuda12.5.sm86",
    *,
    name: BuildId | None = None,
    salt: str = "",
    finished: float = 1.7e9,
    project: str = "tensorflow",
    domain: str = "release",
) -> Path:
    """Publish a wheel as a build of that salt does, through staging, with its log; returns where it lies."""
    own = name or build_id()
    file, data = wheel(project, version, salt=salt)
    staging = house.staging(f"run-{next(_NUMBERS)}-{hashlib.sha256(data).hexdigest()[:12]}")
    staging.mkdir(parents=True, exist_ok=True)
    (staging / file).write_bytes(data)
    fingerprint = fingerprint_of(own, salt)
    sealed = {staging / file: WheelFile(file=file, sha256=hashlib.sha256(data).hexdigest(), size=len(data))}
    publication.publish(house, own, record(own, fingerprint, file, data, finished, domain), sealed)
    (house.record_folder(own, fingerprint).path / "20261101-000000-aaaaaa.log").write_bytes(b"log\n")
    staging.rmdir()
    return house.root / file


def record_files(house: Wheelhouse, name: BuildId | None = None) -> list[Path]:
    """The files of all records, or of the records of one build id."""
    return [file.path for file in house.record_files(name)]


def house(folder: Path) -> Wheelhouse:
    """An empty wheelhouse."""
    folder.mkdir(parents=True, exist_ok=True)
    return Wheelhouse(folder)
