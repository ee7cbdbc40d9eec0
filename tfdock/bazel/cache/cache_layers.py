"""A cache in a registry as one manifest: its layers are packs with their tables of contents, by toolchain. Pure.

The layers stand in pairs, table and pack, the toolchains in the order of their keys. The configuration says how many
pairs each toolchain has, and when each pack was last of use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdock.bazel.cache import packs
from tfdock.oci.manifest import Descriptor, MalformedManifest, Manifest, canonical, parsed

SCHEMA = "tfdock.cache/1"
ARTIFACT_TYPE = "application/vnd.tfdock.cache.v1"
CONFIG_TYPE = "application/vnd.tfdock.cache.config.v1+json"
MOST_CONFIG = 1 << 20
"""Bytes of a configuration."""

_KEY = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{16})?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A pack as the manifest has it; `seen` is the last push of its shelf by somebody who had half of it."""

    contents: Descriptor
    layer: Descriptor
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The packs of a toolchain, oldest first. `pushes` counts its changes, `moment` is when it last had one."""

    packs: tuple[Pack, ...] = ()
    pushes: int = 0
    moment: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A cache in a registry: toolchain key -> its shelf. `pushes` counts the changes of all, and is their clock."""

    shelves: Mapping[str, Shelf] = field(default_factory=dict)
    pushes: int = 0

    def encoded(self) -> tuple[bytes, bytes]:
        """Its configuration and its manifest."""
        rows = {
            key: {"pushes": shelf.pushes, "moment": shelf.moment, "seen": [pack.seen for pack in shelf.packs]}
            for key, shelf in self.shelves.items()
        }
        config = canonical({"schema": SCHEMA, "pushes": self.pushes, "toolchains": rows})
        layers = [
            layer
            for _, shelf in sorted(self.shelves.items())
            for pack in shelf.packs
            for layer in (pack.contents, pack.layer)
        ]
        manifest = Manifest(
            config=Descriptor.of(CONFIG_TYPE, config), layers=tuple(layers), artifact_type=ARTIFACT_TYPE
        )
        return config, manifest.encoded()

    @classmethod
    def read(cls, manifest: Manifest, config: bytes) -> Layers:
        """A cache from its manifest and configuration; raises Malformed."""
        node = parsed(config)
        rows = node.get("toolchains") if isinstance(node, dict) and node.get("schema") == SCHEMA else None
        if not isinstance(rows, dict):
            raise MalformedManifest(f"its configuration is not `{SCHEMA}`")
        layers = list(manifest.layers)
        shelves = {key: _shelf(key, rows[key], layers) for key in sorted(rows)}
        if layers:
            raise MalformedManifest("it has more layers than its configuration speaks of")
        return cls(shelves=shelves, pushes=_count(node, "pushes"))


def is_cache(manifest: Manifest) -> bool:
    """Whether a manifest says that it is a cache, and not an image."""
    return manifest.config.media_type == CONFIG_TYPE


def _shelf(key: str, row: object, layers: list[Descriptor]) -> Shelf:
    """The shelf of a toolchain, whose layers are taken off the list; its key names a folder, and is nothing else."""
    if not _KEY.match(key):
        raise MalformedManifest("a toolchain has no key")
    seen = row.get("seen") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(seen, list) or not all(type(count) is int for count in seen):
        raise MalformedManifest(f"its configuration does not describe the toolchain {key}")
    if len(layers) < 2 * len(seen):
        raise MalformedManifest("it has fewer layers than its configuration speaks of")
    mine = layers[: 2 * len(seen)]
    del layers[: 2 * len(seen)]
    found = tuple(
        Pack(contents=contents, layer=layer, seen=one)
        for contents, layer, one in zip(mine[::2], mine[1::2], seen, strict=True)
    )
    for pack in found:
        if (pack.contents.media_type, pack.layer.media_type) != (packs.CONTENTS_TYPE, packs.PACK_TYPE):
            raise MalformedManifest("its layers are no packs with their tables of contents")
    return Shelf(packs=found, pushes=_count(row, "pushes"), moment=_count(row, "moment"))


def _count(node: Mapping[str, object], name: str) -> int:
    found = node.get(name)
    if type(found) is not int or found < 0:
        raise MalformedManifest(f"its configuration has no `{name}`")
    return found
