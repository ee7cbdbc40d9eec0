"""Make wheel images: OCI images with finished wheels. The same wheels and records give the same bytes. Pure: no I/O.

Each wheel is a separate layer, an uncompressed tar. The tar's header and end follow from the wheel's name and size
(`frame`); the rest are the wheel's bytes. The last layer (`papers`) has the rest:

    meta/<build id>/record.json                          the record of the build, byte for byte
    simple/index.html, simple/<project>/index.html       an index for pip; its links lead to `../../wheels/`
    wheels/<wheel>.metadata                              the wheel's METADATA, which pip reads before the wheel
    wheels/<build id>.constraints.txt                    limits pip to these wheels
    wheels/SHA256SUMS                                    of the wheels, as `sha256sum --check` reads it

Any engine can pull the image. The image contains no program: `Cmd` is set only because `docker create` requires it.
The manifest digest identifies the image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from packaging.utils import parse_wheel_filename

from tfdock.images.wheel_labels import CREATED, labels
from tfdock.images.wheel_layer import LAYER_TYPE, WHEELS, ImageWheel
from tfdock.oci.manifest import INDEX, MANIFEST, Descriptor, Manifest, canonical_json, digest
from tfdock.oci.plain_tar import archive
from tfdock.types import Digest
from tfdock.wheel.identity import constraints
from tfdock.wheelhouse import simple_index
from tfdock.wheelhouse.simple_index import METADATA_SUFFIX

ARTIFACT_TYPE = "application/vnd.tfdock.wheels.v1"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
META, SIMPLE = "meta", "simple"  #: Further folders in an image, beside the folder of the wheels.
SUMS = f"{WHEELS}/SHA256SUMS"

MOST_WHEELS = 200
MOST_PAPERS = 16 << 20  #: The most bytes (packed or unpacked) of the layer with everything except the wheels.
# PEP 600, PEP 656, and the older names of manylinux; plain `linux` for wheels of one's own.
_PLATFORM = re.compile(r"(?:(?:many|musl)?linux(?:\d+|_\d+_\d+)?)_([a-z0-9_]+)")
# The OCI image specification takes Go's names (GOARCH).
#: The architecture in platform tags -> architecture and variant in images.
_ARCHITECTURES = {
    "x86_64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "armv7l": ("arm", "v7"),
    "i686": ("386", ""),
    "loongarch64": ("loong64", ""),
    "ppc64le": ("ppc64le", ""),
    "riscv64": ("riscv64", ""),
    "s390x": ("s390x", ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelBuild:
    """A finished build in an image: its record, the bytes of the record's file, and its wheels."""

    record: Mapping[str, Any]
    document: bytes
    wheels: tuple[ImageWheel, ...]

    @property
    def build_id(self) -> str:
        """The build id."""
        return str(self.record["build_id"])

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits."""
        return str(self.record["fingerprint"])


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Platform:
    """A platform, as images name it. The system is always Linux. `architecture`: for example `amd64`."""

    architecture: str
    variant: str = ""

    def document(self) -> dict[str, str]:
        """Return the platform in the form of configurations and indexes."""
        return {
            "architecture": self.architecture,
            "os": "linux",
            **({"variant": self.variant} if self.variant else {}),
        }

    def __str__(self) -> str:
        return "/".join(filter(None, ("linux", self.architecture, self.variant)))


def common_platform(files: Iterable[str]) -> Platform:
    """Return the common platform of wheels with these names. Raises ValueError, with a message for people."""
    tags = {tag.platform for file in files for tag in parse_wheel_filename(file)[3]}
    machines = {match[1] if (match := _PLATFORM.fullmatch(tag)) else "" for tag in tags}
    known = {_ARCHITECTURES[machine] for machine in machines if machine in _ARCHITECTURES}
    # Refuse a second platform, even an unknown one: an image is for one platform.
    if len(known) != 1 or not machines <= set(_ARCHITECTURES):
        raise ValueError(f"the platform tags {', '.join(sorted(tags))} do not name exactly one architecture of Linux")
    ((architecture, variant),) = known
    return Platform(architecture=architecture, variant=variant)


# --- papers ---------------------------------------------------------------------------------------------------------


def papers(builds: Sequence[WheelBuild]) -> bytes:
    """Return the last layer of an image of these builds."""
    wheels = sorted_wheels(builds)
    pages = simple_index.pages((wheel.listed for wheel in wheels), wheels=f"../../{WHEELS}/")
    files = {f"{SIMPLE}/{path}": data for path, data in pages.items()}
    for wheel in wheels:
        files[f"{WHEELS}/{wheel.file}{METADATA_SUFFIX}"] = wheel.metadata
    for build in builds:
        files[f"{META}/{build.build_id}/record.json"] = build.document
        pins = constraints(build.build_id, [wheel.file for wheel in build.wheels])
        files[f"{WHEELS}/{build.build_id}.constraints.txt"] = pins.encode()
    # Two spaces: to `sha256sum` the second character is the mode.
    files[SUMS] = "".join(f"{wheel.sha256}  {wheel.file}\n" for wheel in wheels).encode()
    return archive(files)


def sorted_wheels(builds: Iterable[WheelBuild]) -> list[ImageWheel]:
    """Return the wheels of these builds, by name, each once. An image has only one wheel of each name."""
    wheels = {wheel.file: wheel for build in builds for wheel in build.wheels}
    return [wheels[file] for file in sorted(wheels)]


# --- images ---------------------------------------------------------------------------------------------------------


# No slots: `cached_property` keeps its values in `__dict__`.
@dataclass(frozen=True, kw_only=True, eq=False)
class WheelImage:
    """An image of one build, or of several builds for one platform, sorted by build id."""

    builds: tuple[WheelBuild, ...]
    platform: Platform
    media_type: ClassVar = MANIFEST

    @classmethod
    def of(cls, builds: Iterable[WheelBuild]) -> WheelImage:
        """Return the image of these builds. Raises ValueError (with a message) if their platforms differ."""
        ordered = tuple(sorted(builds, key=lambda build: build.build_id))
        files = (wheel.file for build in ordered for wheel in build.wheels)
        return cls(builds=ordered, platform=common_platform(files))

    @cached_property
    def wheels(self) -> tuple[ImageWheel, ...]:
        """The image's wheels, sorted by name. Each wheel is a layer, in this order."""
        return tuple(sorted_wheels(self.builds))

    @cached_property
    def papers(self) -> bytes:
        """The image's last layer."""
        return papers(self.builds)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of the image."""
        return labels([build.record for build in self.builds], self.wheels)

    @cached_property
    def config(self) -> bytes:
        """The image's configuration. An uncompressed layer's digest is that of its contents (`diff_ids`)."""
        names = [*(f"{WHEELS}/{wheel.file}" for wheel in self.wheels), f"{META} {SIMPLE} {SUMS}"]
        document = {
            **self.platform.document(),
            "created": CREATED,
            "config": {"Cmd": [f"/{WHEELS}"], "Labels": self.labels},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in self.layers]},
            "history": [{"created": CREATED, "created_by": f"tfdock image: {name}"} for name in names],
        }
        return canonical_json(document)

    @cached_property
    def layers(self) -> tuple[Descriptor, ...]:
        """The image's layers. The layer with the other files (`papers`) is last."""
        return (*(wheel.layer for wheel in self.wheels), Descriptor.of(LAYER_TYPE, self.papers))

    @cached_property
    def manifest(self) -> bytes:
        """The image's manifest."""
        config = Descriptor.of(CONFIG_TYPE, self.config)
        return Manifest(
            config=config, layers=self.layers, artifact_type=ARTIFACT_TYPE, annotations=self.labels
        ).encoded()

    @property
    def digest(self) -> Digest:
        """The manifest's digest, which identifies the image."""
        return digest(self.manifest)

    @property
    def small_blobs(self) -> tuple[tuple[Descriptor, bytes], ...]:
        """The blobs besides the wheels' layers: the layer `papers` and the configuration."""
        return (self.layers[-1], self.papers), (Descriptor.of(CONFIG_TYPE, self.config), self.config)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageIndex:
    """Images for different platforms under one name, sorted by platform."""

    images: tuple[WheelImage, ...]
    media_type: ClassVar = INDEX

    @cached_property
    def manifest(self) -> bytes:
        """The index itself, with the annotations of an image of all these builds."""
        manifests = [
            Descriptor.of(MANIFEST, image.manifest).document()
            # OCI 1.1: a descriptor can state the kind of its manifest, so that nobody has to fetch the manifest.
            | {"platform": image.platform.document(), "artifactType": ARTIFACT_TYPE}
            for image in self.images
        ]
        document = {"schemaVersion": 2, "mediaType": INDEX, "artifactType": ARTIFACT_TYPE, "manifests": manifests}
        builds = sorted((build for image in self.images for build in image.builds), key=lambda build: build.build_id)
        annotations = labels([build.record for build in builds], sorted_wheels(builds))
        return canonical_json(document | {"annotations": annotations})

    @property
    def digest(self) -> Digest:
        """The digest, which identifies the index."""
        return digest(self.manifest)
