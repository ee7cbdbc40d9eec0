"""Wheel images for tests: pushed as `image push` does, and forged, by hand, as a stranger might."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from wheelhouses import Made

from tfdock.images.image_push import Push
from tfdock.images.image_tags import shipment
from tfdock.images.selection import WheelSelection
from tfdock.images.wheel_image import ARTIFACT_TYPE, CONFIG_TYPE, SUMS
from tfdock.images.wheel_layer import LAYER_TYPE, frame
from tfdock.oci import manifest as oci
from tfdock.oci.manifest import Descriptor
from tfdock.oci.plain_tar import archive
from tfdock.oci.repository import Repository
from tfdock.wheelhouse.store import Wheelhouse


def repository(where: str) -> Repository:
    """The repository of a name such as `127.0.0.1:5000/me/wheels`."""
    registry, _, name = where.partition("/")
    return Repository(registry, name)


def no_plan(name: str) -> NoReturn:
    """Stands in where nothing is named by a profile."""
    raise AssertionError(f"{name} was taken for a profile")


def push(
    where: str,
    made: Made,
    *,
    together: str | None = None,
    others: tuple[Made, ...] = (),
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = float,
) -> dict[str, str]:
    """Push made-up builds of one wheelhouse; the digest of every tag."""
    house = Wheelhouse(made.record.parents[3])
    with WheelSelection(house, no_plan, lambda: None) as choosing:
        shipped = shipment(choosing.builds([one.build_id for one in (made, *others)]), together=together)
        pushed = Push(repository(where), choosing.stream, say, lambda: None, clock).push(shipped)
    return dict(pushed.tags)


# --- forged ---------------------------------------------------------------------------------------------------------


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", size: int | None = None
) -> bytes:
    """A member of a tar, of any kind."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mtime, info.mode = kind, link, 315532800, 0o644
    info.size = len(data) if size is None else size
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)


END = bytes(1024)


@dataclass
class Forged:
    """An image of one made-up build, every part of which can be another before it is pushed.

    Labels, sums, record and layers are made for the wheel when they are not given.
    """

    made: Made
    wheel: bytes = b""
    record: dict[str, Any] = field(default_factory=dict)
    papers: dict[str, bytes] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    artifact_type: str = ARTIFACT_TYPE
    layer_type: str = LAYER_TYPE
    config: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] | None = None
    #: What becomes of the two layers.
    layers: Callable[[bytes, bytes], list[bytes]] = lambda wheel, papers: [wheel, papers]

    def __post_init__(self) -> None:
        self.wheel = self.wheel or self.made.wheel.read_bytes()
        self.record = self.record or json.loads(self.made.record.read_bytes())
        name, sum_ = self.made.wheel.name, self.made.sha256
        self.labels = self.labels or {
            "io.tfdock.build-id": self.made.build_id,
            "io.tfdock.fingerprint": self.made.fingerprint,
            "io.tfdock.wheels": json.dumps([{"file": name, "sha256": sum_, "size": len(self.wheel)}]),
        }
        self.papers = self.papers or {
            SUMS: f"{sum_}  {name}\n".encode(),
            f"meta/{self.made.build_id}/record.json": json.dumps(self.record).encode(),
            "simple/index.html": b"<!DOCTYPE html>",
        }

    def claims(self, **changes: object) -> Forged:
        """Let labels, sums and record agree upon other things of the wheel."""
        row = {"file": self.made.wheel.name, "sha256": self.made.sha256, "size": len(self.wheel)} | changes
        self.record["wheels"] = [row]
        self.labels["io.tfdock.wheels"] = json.dumps([row])
        self.papers[SUMS] = f"{row['sha256']}  {row['file']}\n".encode()
        self.papers[f"meta/{self.made.build_id}/record.json"] = json.dumps(self.record).encode()
        return self

    def manifest(self) -> tuple[bytes, dict[str, bytes]]:
        """The manifest, and the blobs that it names, by digest."""
        head, tail = frame(self.made.wheel.name, len(self.wheel))
        layers = self.layers(head + self.wheel + tail, archive(self.papers))
        found = [Descriptor.of(self.layer_type, layer) for layer in layers]
        config = {
            "os": "linux",
            "architecture": "amd64",
            "config": {"Labels": self.labels, "Cmd": ["/wheels"]},
            "rootfs": {"type": "layers", "diff_ids": [one.digest for one in found]},
        } | self.config
        data = oci.canonical_json(config)
        annotations = self.labels if self.annotations is None else self.annotations
        document = {
            "schemaVersion": 2,
            "mediaType": oci.MANIFEST,
            "artifactType": self.artifact_type,
            "config": Descriptor.of(CONFIG_TYPE, data).document(),
            "layers": [one.document() for one in found],
            "annotations": annotations,
        }
        blobs: dict[str, bytes] = {one.digest: layer for one, layer in zip(found, layers, strict=True)}
        return oci.canonical_json(document), {**blobs, oci.digest(data): data}

    def push(self, where: str, tag: str) -> str:
        """Push it, whatever it is; its digest."""
        manifest, blobs = self.manifest()
        return put(where, tag, manifest, blobs)


def put(where: str, tag: str, manifest: bytes, blobs: Mapping[str, bytes]) -> str:
    """Push a manifest with its blobs."""
    target = repository(where)
    for data in blobs.values():
        target.upload(Descriptor.of("application/octet-stream", data), io.BytesIO(data))
    media_type = json.loads(manifest)["mediaType"]
    return target.put_manifest(tag, media_type, manifest)


_written: set[Path] | None = None  #: While somebody watches: where this process has written.


def _hear(event: str, words: tuple[Any, ...]) -> None:
    """An audit hook: Python tells of each file that is opened, made or moved, whoever does it and wherever."""
    if _written is None:
        return
    if event == "open" and isinstance(words[0], str | bytes) and words[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        # The event does not say in which folder. One file of ours opens files so, and calls the folder `at`.
        _written.add(_place(words[0], sys._getframe(1).f_locals.get("at", -1)))
    elif event in ("os.mkdir", "os.symlink", "os.link", "os.rename"):
        _written.add(_place(words[0] if event == "os.mkdir" else words[1], words[-1]))


def _place(path: str | bytes, folder: int) -> Path:
    above = Path.cwd() if folder == -1 else Path(f"/proc/self/fd/{folder}").readlink()
    return above / os.fsdecode(path)


sys.addaudithook(_hear)


@contextlib.contextmanager
def written() -> Iterator[set[Path]]:
    """Every place where this process writes meanwhile."""
    global _written
    found: set[Path] = set()
    _written = found
    try:
        yield found
    finally:
        _written = None


def files_below(folder: Path) -> dict[str, str]:
    """Every file below a folder, by path: the sha256 of its bytes; links by where they lead."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
