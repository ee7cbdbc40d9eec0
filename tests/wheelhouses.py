"""Made-up wheels, and wheelhouses: wheels that hold nothing but bytes, with records as builds write them."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_PIECE = 1 << 20
_MOMENT = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A build that was never made: its id and fingerprint, its wheel, its record."""

    build_id: str
    fingerprint: str
    wheel: Path
    record: Path

    @property
    def sha256(self) -> str:
        with self.wheel.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def made(
    root: Path,
    *,
    release: str = "2.18.0",
    local: str = "cuda12.5.sm86",
    words: str = "cuda12.5.1-cudnn9.3.0-sm86",
    machine: str = "x86_64",
    size: int = 100_000,
    seed: str = "",
    fingerprint: str = "",
    finished: str = "2026-01-02T03:04:05+00:00",
    status: str = "passed",
    domain: str = "release",
) -> Made:
    """Put a wheel of some `size` bytes, which do not shrink, and its record into a wheelhouse. Equal arguments make
    equal files; `seed` makes them others."""
    build_id = f"tf{release}-py3.11-{words}-{machine}"
    fingerprint = fingerprint or hashlib.sha256(f"{build_id} {seed}".encode()).hexdigest()
    root.mkdir(parents=True, exist_ok=True)
    wheel = _wheel(root, f"{release}+{local}" if local else release, machine, size, seed or build_id)
    with wheel.open("rb") as file:
        found = {"file": wheel.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    record = root / ".tfdock" / build_id / fingerprint[:12] / "record.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    document = _record(build_id, fingerprint, release) | {"finished": finished}
    document["wheels"] = [found | {"size": wheel.stat().st_size}]
    document["plan"]["trust"] = {"domain": domain, "reasons": [], "shared": False}
    document["verification"]["checks"][0]["status"] = status
    record.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    (record.parent / document["log"]).write_text("a build\n")
    return Made(build_id=build_id, fingerprint=fingerprint, wheel=wheel, record=record)


def _wheel(root: Path, version: str, machine: str, size: int, seed: str) -> Path:
    path = root / f"tensorflow-{version}-cp311-cp311-linux_{machine}.whl"
    info = f"tensorflow-{version}.dist-info"
    documents = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\nLicense: Apache 2.0\n"
        "Requires-Python: >=3.9\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_{machine}\n",
    }
    digest = hashlib.sha256()
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open(zipfile.ZipInfo("tensorflow/bytes", _MOMENT), "w") as member:
            for piece in _bytes(size, seed):
                digest.update(piece)
                member.write(piece)
        rows = [_row("tensorflow/bytes", digest.digest(), size)]
        for name, text in documents.items():
            archive.writestr(zipfile.ZipInfo(name, _MOMENT), text)
            rows.append(_row(name, hashlib.sha256(text.encode()).digest(), len(text)))
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", _MOMENT), "".join([*rows, f"{info}/RECORD,,\n"]))
    return path


def with_record(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a wheel with a right RECORD, whatever RECORD was among them."""
    info = next(name.partition("/")[0] for name in files if ".dist-info/" in name)
    record = f"{info}/RECORD"
    others = {name: data for name, data in files.items() if name != record}
    rows = [_row(name, hashlib.sha256(data).digest(), len(data)) for name, data in others.items()]
    return others | {record: "".join([*rows, f"{record},,\n"]).encode()}


def write_wheel(target: Path | IO[bytes], files: Mapping[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> None:
    """Write a wheel. Equal files make equal bytes."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name, _MOMENT)
            member.external_attr = 0o600 << 16
            archive.writestr(member, data, packing)


def _row(name: str, digest: bytes, size: int) -> str:
    return f"{name},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{size}\n"


def _bytes(size: int, seed: str) -> Iterator[bytes]:
    source = random.Random(seed)
    while size:
        piece = source.randbytes(min(_PIECE, size))
        size -= len(piece)
        yield piece


def _record(build_id: str, fingerprint: str, release: str) -> dict[str, Any]:
    source = {"kind": "git", "location": "https://github.com/tensorflow/tensorflow", "refs": [f"v{release}"]}
    return {
        "schema": "tfdock.record/1",
        "build_id": build_id,
        "fingerprint": fingerprint,
        "tfdock": "0.1.0",
        "log": "20260102-030405-abcdef.log",
        "plan": {
            "environment": {},
            "bazel_flags": [],
            "image": {"base": "tensorflow/build:2.18-python3.11", "source": source},
            "choices": [{"field": "tensorflow", "value": release}, {"field": "python", "value": "3.11"}],
        },
        "toolchain_key": "0123456789abcdef",
        "base_digest": None,
        "source": {"ref": f"v{release}", "found": "6550e4bd80223cdb8be6c3afd1f81e86a4d433c3"},
        "lock": None,
        "seconds": {"compile": 1.0},
        "attempts": 1,
        "resources": None,
        "machine": {"cpus": 2, "memory": 1 << 34},
        "estimate": None,
        "untested": [],
        "verification": {
            "checks": [{"name": "file-integrity", "status": "passed"}],
            "gpu_code": {"sass": ["sm_86"], "ptx": [], "amdgpu": []},
            "runtime": None,
        },
        "started": "2026-01-02T03:00:00+00:00",
        "bazel": None,
        "kept": None,
    }
