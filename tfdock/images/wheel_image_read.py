"""Check a wheel image from an untrusted place, before any byte of the image is used. Pure: no I/O.

Nothing is extracted. The bytes around a wheel in its layer follow from the wheel's name and size, so they are
compared, not interpreted. The layer with the other files (`papers`) is read in memory. Name and kind of every member
are checked, and the layer must have the bytes that tfdock would write. Manifest, labels, SHA256SUMS and records must
agree on every wheel. The code that stores a wheel also checks its bytes. The image's own index and constraints are
neither used nor checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from tfdock.host.foreign_json import Malformed, Sha256, parse
from tfdock.images.wheel_image import (
    ARTIFACT_TYPE,
    CONFIG_TYPE,
    MOST_WHEELS,
    SUMS,
    common_platform,
)
from tfdock.images.wheel_labels import OWN
from tfdock.images.wheel_layer import LAYER_TYPE, PACKED_TYPES, WHEELS, FoundWheel, frame
from tfdock.oci.manifest import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    INDEX,
    MANIFEST,
    Descriptor,
    Manifest,
    is_digest,
)
from tfdock.oci.plain_tar import archive, members
from tfdock.types import Digest
from tfdock.wheelhouse.build_record import BUILD_ID, WheelName, read_record

MOST_CONFIG = 1 << 20  #: Bytes of a configuration.
LARGEST_WHEEL = 8 << 30  #: The most bytes of a wheel. TensorFlow's largest wheels have 0.6 GB.
_CONFIG_TYPES = (CONFIG_TYPE, "application/vnd.docker.container.image.v1+json")
_LAYER_TYPES = (LAYER_TYPE, "application/vnd.docker.image.rootfs.diff.tar", *PACKED_TYPES)
_SUM_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBuild:
    """A build in an image: its id and fingerprint, its record, and its wheels."""

    build_id: str
    fingerprint: str
    record: Mapping[str, Any]
    wheels: tuple[FoundWheel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """The facts about an image in its manifest and configuration, after a check that the two agree.

    `platform`: for example `linux/amd64`.
    """

    platform: str
    labels: Mapping[str, str]
    wheels: tuple[FoundWheel, ...]
    papers: Descriptor  #: The blob that is the layer with everything except the wheels.
    papers_content: str  #: The digest of the layer's content. A packed blob has another digest.


def is_wheel_image(manifest: Manifest) -> bool:
    """Return whether a manifest declares an image of wheels. Check nothing else."""
    return manifest.artifact_type == ARTIFACT_TYPE


def is_reencoded(config: bytes) -> bool:
    """Return whether a configuration has the labels of wheels. Use this if another tool wrote the manifest.

    `docker push` and `skopeo copy --format v2s2` write Docker's manifests, without an artifact type or annotations.
    """
    with suppress(Malformed):
        return f"{OWN}.wheels" in (_config_labels(parse(dict[str, Any], config)) or ())
    return False


def _config_labels(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the labels in a configuration, whose values may be anything; None if it has none."""
    config = node.get("config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    return labels if isinstance(labels, dict) else None


def says_wheels(data: bytes) -> bool:
    """Return whether the bytes of a manifest, or of an index, declare an image of wheels."""
    with suppress(Malformed):
        return bool(parse(dict[str, Any], data).get("artifactType") == ARTIFACT_TYPE)
    return False


# --- indexes --------------------------------------------------------------------------------------------------------


def platforms(data: bytes) -> dict[str, Descriptor]:
    """Return the manifest of each platform (`linux/amd64`) in an index; raise Malformed if the index is invalid."""
    node = parse(dict[str, Any], data)
    rows = node.get("manifests")
    # The OCI image specification lets an index leave out its own media type.
    kind = node.get("mediaType", INDEX)
    if not isinstance(rows, list) or node.get("schemaVersion") != 2 or kind not in (INDEX, DOCKER_LIST):
        raise Malformed("not an index of images")
    manifests: dict[str, Descriptor] = {}
    for row in rows:
        descriptor = Descriptor.read(row)
        row_platform = row.get("platform")
        platform = _platform(row_platform) if isinstance(row_platform, dict) else ""
        if descriptor.media_type not in (MANIFEST, DOCKER_MANIFEST) or not platform:
            raise Malformed("the index lists an entry that is not the image of a platform")
        if platform in manifests:
            raise Malformed(f"the index has two images for {platform}")
        manifests[platform] = descriptor
    return manifests


def _platform(node: Mapping[str, Any]) -> str:
    """Return a platform, such as `linux/arm/v7`; empty if the document does not name one."""
    parts = [node.get("os"), node.get("architecture"), *([node["variant"]] if "variant" in node else [])]
    # The values appear in messages and options, so they are limited to short plain text.
    is_valid = all(isinstance(word, str) and re.fullmatch(r"[a-z0-9_]{1,32}", word) for word in parts)
    return "/".join(parts) if is_valid else ""


def machine_platform(machine: str) -> str:
    """Return the platform for the kernel's name of a machine: `linux/amd64` for `x86_64`; empty if unknown."""
    try:
        return str(common_platform([f"x-0-py3-none-linux_{machine}.whl"]))  # as wheels' names say it
    except ValueError:
        return ""


# --- manifest and configuration -------------------------------------------------------------------------------------


def read_labels(manifest: Manifest, config: bytes) -> Labelled:
    """Return the facts that an image states about itself.

    Raises Malformed if parts of the image disagree, or differ from what tfdock writes.
    """
    node = parse(dict[str, Any], config)
    # Another tool's manifest has Docker's media types and packed layers. Ours has neither.
    own = is_wheel_image(manifest)
    configs, layers = ((CONFIG_TYPE,), (LAYER_TYPE,)) if own else (_CONFIG_TYPES, _LAYER_TYPES)
    if manifest.config.media_type not in configs:
        raise Malformed("the configuration is not that of an image")
    other = [layer.media_type for layer in manifest.layers if layer.media_type not in layers]
    if other:
        raise Malformed(f"a layer has the media type `{other[0]}`, not {' or '.join(f'`{name}`' for name in layers)}")
    labels = _labels(node, manifest)
    rows = _wheel_rows(labels)
    if len(manifest.layers) != len(rows) + 1:
        raise Malformed(
            f"the image names {len(rows)} wheels, but has {len(manifest.layers)} layers for wheels and records"
        )
    contents = _contents(node, manifest)
    # The last layer, with the papers, has no row.
    wheels = tuple(
        _wheel_of(row, layer, content) for row, layer, content in zip(rows, manifest.layers, contents, strict=False)
    )
    platform = _platform(node)
    if platform != _platform_of(wheels):
        raise Malformed(f"the image declares the platform `{platform}`, but its wheels do not")
    papers = manifest.layers[-1]
    return Labelled(platform=platform, labels=labels, wheels=wheels, papers=papers, papers_content=contents[-1])


def _platform_of(wheels: Iterable[FoundWheel]) -> str:
    try:
        return str(common_platform(wheel.file for wheel in wheels))
    except ValueError as error:
        raise Malformed(str(error)) from error


def _labels(node: Mapping[str, Any], manifest: Manifest) -> dict[str, str]:
    """Return our labels. They are in the configuration, and also in a manifest written by tfdock."""
    config_labels = _config_labels(node)
    if config_labels is None or not all(isinstance(value, str) for value in config_labels.values()):
        raise Malformed("the configuration has no labels")
    ours, theirs = (
        {name: value for name, value in each.items() if name.startswith(f"{OWN}.")}
        for each in (config_labels, manifest.annotations if is_wheel_image(manifest) else config_labels)
    )
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise Malformed(f"label and annotation `{name[:60]!a}` have different values")
        if not ours[name].isascii():
            raise Malformed(f"label `{name[:60]!a}` has characters outside ASCII, which tfdock does not write")
    return ours


_Size = Annotated[int, lambda size: 0 < size <= LARGEST_WHEEL]
# The name becomes a path in the wheelhouse.
_Wheel = TypedDict("_Wheel", {"file": WheelName, "sha256": Sha256, "size": _Size})
_Wheels = Annotated[list[_Wheel], lambda rows: 0 < len(rows) <= MOST_WHEELS]


def _wheel_rows(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    # Without the label the text is empty, and refused like any other text that is not JSON.
    rows: list[dict[str, Any]] = parse(_Wheels, labels.get(f"{OWN}.wheels", ""))
    files = [row["file"] for row in rows]
    if len(set(files)) < len(files):
        raise Malformed("the labels list two wheels with the same name")
    return rows


def _contents(node: Mapping[str, Any], manifest: Manifest) -> list[str]:
    """Return the digest of each layer's content."""
    rootfs = node.get("rootfs")
    diffs = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diffs, list) or len(diffs) != len(manifest.layers) or not all(map(is_digest, diffs)):
        raise Malformed("the configuration and the manifest name different layers")
    # A layer that is not packed is its own content.
    plain = [layer.digest for layer in manifest.layers if layer.media_type not in PACKED_TYPES]
    if not set(plain) <= {diff for diff, layer in zip(diffs, manifest.layers, strict=True) if diff == layer.digest}:
        raise Malformed("the configuration and the manifest name different layers")
    if len({layer.digest for layer in manifest.layers}) < len(manifest.layers) or len(set(diffs)) < len(diffs):
        raise Malformed("the manifest lists a layer twice")
    return diffs


def _wheel_of(row: Mapping[str, Any], layer: Descriptor, content: str) -> FoundWheel:
    size = row["size"] + sum(map(len, frame(row["file"], row["size"])))
    packed = layer if layer.media_type in PACKED_TYPES else None
    if packed:
        layer = Descriptor(media_type=LAYER_TYPE, digest=Digest(content), size=size)
    # Check before the download: a layer of another size must have other contents.
    if layer.size != size:
        raise Malformed(f"the layer of {row['file']} has {layer.size} bytes instead of {size}")
    return FoundWheel(file=row["file"], sha256=row["sha256"], size=row["size"], layer=layer, packed=packed)


# --- papers ---------------------------------------------------------------------------------------------------------


def builds(image: Labelled, layer: bytes) -> tuple[FoundBuild, ...]:
    """Return the builds of an image, from the layer with the records; raise Malformed if anything disagrees."""
    files = dict(members(layer, lambda path: _FOLDER.fullmatch(path) is not None))
    wheels = {wheel.file: wheel for wheel in image.wheels}
    _check_names(files, wheels)
    # Equal bytes leave no room for anything that two readers of tars understand differently.
    if archive(files) != layer:
        raise Malformed("the layer with the records differs from what tfdock writes")
    if _sums(files.get(SUMS)) != {wheel.file: wheel.sha256 for wheel in image.wheels}:
        raise Malformed("SHA256SUMS and the labels disagree about the wheels or their sums")
    # `_check_names` has checked that the second part is a build id.
    records = {path.split("/")[1]: data for path, data in files.items() if path.endswith("/record.json")}
    builds_read = tuple(_build(build_id, read_record(data), wheels) for build_id, data in sorted(records.items()))
    # A wheel that no record names would come without build id, fingerprint and trust domain.
    if {wheel.file for build in builds_read for wheel in build.wheels} != set(wheels):
        raise Malformed("the records do not name all wheels of the image")
    _check_labels(image.labels, builds_read)
    return builds_read


def _build(build_id: str, record: Mapping[str, Any], wheels: Mapping[str, FoundWheel]) -> FoundBuild:
    if record["build_id"] != build_id:
        raise Malformed(f"the record in the folder {build_id} is for {record['build_id']}")
    for row in record["wheels"]:
        wheel = wheels.get(row["file"])
        if wheel is None or (wheel.sha256, wheel.size) != (row["sha256"], row["size"]):
            raise Malformed(f"the record and the labels disagree about {row['file']}")
    own = tuple(wheels[row["file"]] for row in record["wheels"])
    return FoundBuild(build_id=build_id, fingerprint=record["fingerprint"], record=record, wheels=own)


def _check_labels(labels: Mapping[str, str], builds: Iterable[FoundBuild]) -> None:
    """Compare build ids and fingerprints; labels hold them one after another with spaces between them."""
    pairs = [(build.build_id, build.fingerprint) for build in builds]
    listed = [labels.get(f"{OWN}.{name}", "").split() for name in ("build-id", "fingerprint")]
    if not pairs or len(listed[0]) != len(listed[1]) or sorted(zip(*listed, strict=True)) != sorted(pairs):
        raise Malformed("the labels name other builds than the records")


def _sums(data: bytes | None) -> dict[str, str]:
    """Return file -> sha256, by the lines of SHA256SUMS."""
    if data is None:
        raise Malformed(f"the image has no {SUMS}")
    # Bytes that are not UTF-8 give an invalid wheel name, which is refused.
    lines = [_SUM_LINE.fullmatch(line) for line in data.decode("utf-8", "replace").splitlines()]
    sums = {match[2]: match[1] for match in lines if match}
    # Comparing the count finds invalid lines and repeated names.
    if len(sums) < len(lines):
        raise Malformed("SHA256SUMS has invalid lines, or the same name twice")
    return sums


def _check_names(files: Mapping[str, bytes], wheels: Iterable[str]) -> None:
    known = {f"{WHEELS}/{wheel}.metadata" for wheel in wheels} | {SUMS, "simple/index.html"}
    for path in files:
        if path not in known and not any(pattern.fullmatch(path) for pattern in _DOCUMENTS):
            raise Malformed(f"the image has `{path[:100]!a}`, which tfdock does not write")


#: Allowed names in the layer `papers`, besides the sums, the index and the wheels' metadata.
_DOCUMENTS = (
    re.compile(rf"meta/{BUILD_ID.pattern}/record\.json"),
    re.compile(rf"wheels/{BUILD_ID.pattern}\.constraints\.txt"),
    re.compile(r"simple/[a-z0-9][a-z0-9-]{0,100}/index\.html"),
)
_FOLDER = re.compile(rf"wheels|simple(?:/[a-z0-9][a-z0-9-]{{0,100}})?|meta(?:/{BUILD_ID.pattern})?")
