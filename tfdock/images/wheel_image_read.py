"""A wheel image as a stranger hands it over, judged before a byte of it is used. Pure.

Nothing is extracted. What stands around a wheel in its layer follows from its name and size, so it is compared, not
interpreted. Of the papers every member is looked at by name and kind, in memory; they must be put together, byte for
byte, as tfdock would have done it. Manifest, labels, SHA256SUMS and records must say the same of every wheel; whether
its bytes do, who keeps them finds out. The image's own index and constraints are not used, and not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfdock.images.wheel_image import (
    ARTIFACT_TYPE,
    CONFIG_TYPE,
    MOST_WHEELS,
    SUMS,
    common_platform,
)
from tfdock.images.wheel_labels import OWN
from tfdock.images.wheel_layer import LAYER_TYPE, WHEELS, FoundWheel, frame
from tfdock.oci.manifest import INDEX, MANIFEST, Descriptor, MalformedManifest, Manifest, parsed
from tfdock.oci.plain_tar import archive, members
from tfdock.wheelhouse.build_record import BUILD_ID, WHEEL, read_record

MOST_CONFIG = 1 << 20
"""Bytes of a configuration."""
LARGEST_WHEEL = 8 << 30
"""Bytes; TensorFlow's largest have 0.6 GB."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SUM_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBuild:
    """A build of an image: who it is, its record, and its wheels."""

    build_id: str
    fingerprint: str
    record: Mapping[str, Any]
    wheels: tuple[FoundWheel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """What manifest and configuration say of an image, in agreement. `platform` is `linux/amd64`."""

    platform: str
    labels: Mapping[str, str]
    wheels: tuple[FoundWheel, ...]
    papers: Descriptor
    """The layer with all that is no wheel."""


def is_wheel_image(manifest: Manifest) -> bool:
    """Whether a manifest says that it is an image of wheels, and nothing else."""
    return manifest.artifact_type == ARTIFACT_TYPE


def says_wheels(data: bytes) -> bool:
    """The same of the bytes of a manifest, or of an index; whatever else it is, it is not that."""
    try:
        node = parsed(data)
    except MalformedManifest:
        return False
    return isinstance(node, dict) and node.get("artifactType") == ARTIFACT_TYPE


# --- indexes --------------------------------------------------------------------------------------------------------


def platforms(data: bytes) -> dict[str, Descriptor]:
    """What an index has: `linux/amd64` -> the manifest of that platform; raises Malformed."""
    node = parsed(data)
    rows = node.get("manifests") if isinstance(node, dict) else None
    if not isinstance(rows, list) or node.get("schemaVersion") != 2 or node.get("mediaType", INDEX) != INDEX:
        raise MalformedManifest("it is no index of images")
    found: dict[str, Descriptor] = {}
    for row in rows:
        descriptor = Descriptor.read(row)
        said = row.get("platform")
        platform = _platform(said) if isinstance(said, dict) else ""
        if descriptor.media_type != MANIFEST or not platform:
            raise MalformedManifest("it lists something else than images of platforms")
        if platform in found:
            raise MalformedManifest(f"it has two images for {platform}")
        found[platform] = descriptor
    return found


def _platform(node: Mapping[str, Any]) -> str:
    """`linux/arm/v7`; empty where it does not say."""
    words = [node.get("os"), node.get("architecture"), *([node["variant"]] if "variant" in node else [])]
    told = all(isinstance(word, str) and re.fullmatch(r"[a-z0-9_]{1,32}", word) for word in words)
    return "/".join(words) if told else ""


def machine_platform(machine: str) -> str:
    """The platform of a machine, by its kernel's word: `x86_64` is `linux/amd64`; empty where none is known."""
    try:
        return str(common_platform([f"x-0-py3-none-linux_{machine}.whl"]))  # as wheels' names say it
    except ValueError:
        return ""


# --- manifest and configuration -------------------------------------------------------------------------------------


def labelled(manifest: Manifest, config: bytes) -> Labelled:
    """What an image says of itself; raises Malformed where its parts disagree, or it is not as tfdock writes one."""
    node = parsed(config)
    if not isinstance(node, dict) or manifest.config.media_type != CONFIG_TYPE:
        raise MalformedManifest("its configuration is not that of an image")
    packed = [layer.media_type for layer in manifest.layers if layer.media_type != LAYER_TYPE]
    if packed:
        raise MalformedManifest(f"a layer is `{packed[0]}`, but tfdock writes plain tar, and unpacks nothing")
    labels = _labels(node, manifest)
    rows = _wheel_rows(labels)
    if len(manifest.layers) != len(rows) + 1:
        raise MalformedManifest(
            f"it names {len(rows)} wheels, and has {len(manifest.layers)} layers for them and the papers"
        )
    _check_layers(node, manifest)
    wheels = tuple(_found_wheel(row, layer) for row, layer in zip(rows, manifest.layers, strict=False))
    platform = _platform(node)
    if platform != _platform_of(wheels):
        raise MalformedManifest(f"it says that it is for `{platform}`, but its wheels are not")
    return Labelled(platform=platform, labels=labels, wheels=wheels, papers=manifest.layers[-1])


def _platform_of(wheels: Iterable[FoundWheel]) -> str:
    try:
        return str(common_platform(wheel.file for wheel in wheels))
    except ValueError as error:
        raise MalformedManifest(str(error)) from error


def _labels(node: Mapping[str, Any], manifest: Manifest) -> dict[str, str]:
    """The labels of ours, which stand in the configuration and, the same, in the manifest."""
    inner = node.get("config")
    found = inner.get("Labels") if isinstance(inner, dict) else None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise MalformedManifest("its configuration has no labels")
    ours, theirs = (
        {name: value for name, value in each.items() if name.startswith(f"{OWN}.")}
        for each in (found, manifest.annotations)
    )
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise MalformedManifest(f"label and annotation `{name[:60]!a}` say different things")
        if not ours[name].isascii():
            raise MalformedManifest(f"label `{name[:60]!a}` has letters that tfdock does not write there")
    return ours


def _wheel_rows(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = parsed(labels.get(f"{OWN}.wheels", "").encode())
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_WHEELS:
        raise MalformedManifest("its labels list no wheels")
    for row in rows:
        file, sha256, size = (row.get(key) if isinstance(row, dict) else None for key in ("file", "sha256", "size"))
        if not isinstance(file, str) or not WHEEL.fullmatch(file):
            raise MalformedManifest(f"`{str(file)[:80]!a}` is no name of a wheel")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise MalformedManifest(f"the label of {file} has no sha256")
        if type(size) is not int or not 0 < size <= LARGEST_WHEEL:
            raise MalformedManifest(f"the label of {file} has no size that a wheel can have")
    files = [row["file"] for row in rows]
    if len(set(files)) < len(files):
        raise MalformedManifest("it lists two wheels of one name")
    return rows


def _check_layers(node: Mapping[str, Any], manifest: Manifest) -> None:
    rootfs = node.get("rootfs")
    diffs = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    # A layer that is not packed is its own content.
    if diffs != [layer.digest for layer in manifest.layers]:
        raise MalformedManifest("its configuration speaks of other layers than its manifest")
    if len({layer.digest for layer in manifest.layers}) < len(manifest.layers):
        raise MalformedManifest("a layer stands in it twice")


def _found_wheel(row: Mapping[str, Any], layer: Descriptor) -> FoundWheel:
    wheel = FoundWheel(file=row["file"], sha256=row["sha256"], size=row["size"], layer=layer)
    size = wheel.size + sum(map(len, frame(wheel.file, wheel.size)))
    if layer.size != size:
        raise MalformedManifest(
            f"the layer of {wheel.file} has {layer.size} bytes, but with that wheel it would have {size}"
        )
    return wheel


# --- papers ---------------------------------------------------------------------------------------------------------


def builds(image: Labelled, layer: bytes) -> tuple[FoundBuild, ...]:
    """The builds of an image, by its papers; raises Malformed where anything disagrees."""
    files = dict(members(layer, lambda path: _FOLDER.fullmatch(path) is not None))
    wheels = {wheel.file: wheel for wheel in image.wheels}
    _check_names(files, wheels)
    if archive(files) != layer:
        raise MalformedManifest("its papers are not put together as tfdock does it")
    if _sums(files.get(SUMS)) != {wheel.file: wheel.sha256 for wheel in image.wheels}:
        raise MalformedManifest("SHA256SUMS and the labels do not name the same wheels with the same sums")
    records = {path.split("/")[1]: data for path, data in files.items() if path.endswith("/record.json")}
    found = tuple(_build(build_id, read_record(data), wheels) for build_id, data in sorted(records.items()))
    if {wheel.file for build in found for wheel in build.wheels} != set(wheels):
        raise MalformedManifest("its records do not name all of its wheels")
    _check_labels(image.labels, found)
    return found


def _build(build_id: str, record: Mapping[str, Any], wheels: Mapping[str, FoundWheel]) -> FoundBuild:
    if record["build_id"] != build_id:
        raise MalformedManifest(f"the record of {build_id} is that of {record['build_id']}")
    for row in record["wheels"]:
        wheel = wheels.get(row["file"])
        if wheel is None or (wheel.sha256, wheel.size) != (row["sha256"], row["size"]):
            raise MalformedManifest(f"the record speaks of another {row['file']} than the labels")
    own = tuple(wheels[row["file"]] for row in record["wheels"])
    return FoundBuild(build_id=build_id, fingerprint=record["fingerprint"], record=record, wheels=own)


def _check_labels(labels: Mapping[str, str], found: Iterable[FoundBuild]) -> None:
    """Build ids and fingerprints, which stand in labels one after another with spaces between them."""
    pairs = [(build.build_id, build.fingerprint) for build in found]
    said = [labels.get(f"{OWN}.{name}", "").split() for name in ("build-id", "fingerprint")]
    if not pairs or len(said[0]) != len(said[1]) or sorted(zip(*said, strict=True)) != sorted(pairs):
        raise MalformedManifest("its labels name other builds than its records")


def _sums(data: bytes | None) -> dict[str, str]:
    """File -> sha256, by the lines of SHA256SUMS."""
    if data is None:
        raise MalformedManifest(f"it has no {SUMS}")
    lines = [_SUM_LINE.fullmatch(line) for line in data.decode("utf-8", "replace").splitlines()]
    found = {match[2]: match[1] for match in lines if match}
    if len(found) < len(lines):
        raise MalformedManifest("SHA256SUMS has lines that are no sums, or a name twice")
    return found


def _check_names(files: Mapping[str, bytes], wheels: Iterable[str]) -> None:
    known = {f"{WHEELS}/{wheel}.metadata" for wheel in wheels} | {SUMS, "simple/index.html"}
    for path in files:
        if path not in known and not any(pattern.fullmatch(path) for pattern in _DOCUMENTS):
            raise MalformedManifest(f"it holds `{path[:100]!a}`, which tfdock does not put there")


_DOCUMENTS = (
    re.compile(rf"meta/{BUILD_ID.pattern}/record\.json"),
    re.compile(rf"wheels/{BUILD_ID.pattern}\.constraints\.txt"),
    re.compile(r"simple/[a-z0-9][a-z0-9-]{0,100}/index\.html"),
)
"""What may stand among the papers besides the sums, the index and the wheels' metadata."""
_FOLDER = re.compile(rf"wheels|simple(?:/[a-z0-9][a-z0-9-]{{0,100}})?|meta(?:/{BUILD_ID.pattern})?")
