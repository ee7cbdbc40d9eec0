"""Read and write a Bazel cache in a registry: one manifest whose layers are packs and their tables of contents.

The layers are pairs (table, pack), with the toolchains in the order of their keys. The manifest's configuration says
how many pairs each toolchain has, and when each pack was last used. All data is checked before use.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Annotated, BinaryIO, cast

from tfdock.bazel.cache import packs
from tfdock.bazel.cache.packs import CONTENTS_TYPE, PACK_TYPE, PackContents, PackEntry
from tfdock.engine.engine_archives import ChunkReader
from tfdock.host.foreign_json import Malformed, below, matching, parse
from tfdock.oci import manifest as oci
from tfdock.oci.artifact import ArtifactKind, NamedArtifact, from_blob
from tfdock.oci.manifest import Descriptor, Manifest, canonical_json
from tfdock.types import Digest

SCHEMA = "tfdock.cache/1"
ARTIFACT_TYPE = "application/vnd.tfdock.cache.v1"
CONFIG_TYPE = "application/vnd.tfdock.cache.config.v1+json"
MOST_CONFIG = 1 << 20  #: Bytes of a configuration.

# A toolchain's key must be safe as a folder's name.
_Key = Annotated[str, matching(r"[0-9a-f]{16}(-[0-9a-f]{16})?")]
_Count = Annotated[int, below(1 << 53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A pack in the manifest.

    `seen` is the number of the last push to the pack's shelf by a machine that had at least half of the pack's bytes.
    """

    contents: Descriptor
    layer: Descriptor
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The packs of a toolchain, oldest first.

    `pushes` counts the changes of these packs. `moment` is the number of the cache's push that changed them last.
    """

    packs: tuple[Pack, ...] = ()
    pushes: int = 0
    moment: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A cache in a registry: toolchain key -> its shelf.

    `pushes` counts all changes. `moment` of a shelf: the value of `pushes` at its last change.
    """

    shelves: Mapping[str, Shelf] = field(default_factory=dict)
    pushes: int = 0

    def encoded(self) -> tuple[bytes, bytes]:
        """Return the cache's configuration and manifest."""
        rows = {
            key: {"pushes": shelf.pushes, "moment": shelf.moment, "seen": [pack.seen for pack in shelf.packs]}
            for key, shelf in self.shelves.items()
        }
        config = canonical_json({"schema": SCHEMA, "pushes": self.pushes, "toolchains": rows})
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
        """Return a cache from its manifest and configuration; raise Malformed if they are invalid."""
        document: CacheConfiguration = parse(CacheConfiguration, config)
        rows = document.toolchains
        layers = list(manifest.layers)
        # Read in the order of writing: each shelf takes its layers from the front of the list.
        shelves = {key: _shelf(rows[key], layers) for key in sorted(rows)}
        if layers:
            raise Malformed("the cache has more layers than its configuration names")
        return cls(shelves=shelves, pushes=document.pushes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShelf:
    """The packs of a toolchain in a registry."""

    pushes: _Count  #: How often the packs have changed.
    moment: _Count  #: The number of the cache's push that last changed these packs.
    seen: tuple[_Count, ...]  #: For each pack: number of the last push by a machine with half of the pack's bytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfiguration:
    """The configuration of a cache in a registry."""

    schema: Annotated[str, SCHEMA.__eq__]  #: Which document this is.
    pushes: _Count  #: How often the cache has changed.
    toolchains: Mapping[_Key, CacheShelf]  #: Key of a disk cache -> its packs.


def _shelf(row: CacheShelf, layers: list[Descriptor]) -> Shelf:
    """Return the shelf of a toolchain, and remove its layers from the list."""
    if len(layers) < 2 * len(row.seen):
        raise Malformed("the cache has fewer layers than its configuration names")
    own = layers[: 2 * len(row.seen)]
    del layers[: 2 * len(row.seen)]
    packs_found = tuple(
        Pack(contents=contents, layer=layer, seen=push)
        for contents, layer, push in zip(own[::2], own[1::2], row.seen, strict=True)
    )
    for pack in packs_found:
        if (pack.contents.media_type, pack.layer.media_type) != (packs.CONTENTS_TYPE, packs.PACK_TYPE):
            raise Malformed("the layers are not pairs of a table of contents and a pack")
    return Shelf(packs=packs_found, pushes=row.pushes, moment=row.moment)


CACHES = ArtifactKind(
    noun="cache",
    owned="a cache of tfdock's",
    refusal="cannot be used",
    never_written="such a thing",
    malformed_code="cache-layers-malformed",
    malformed_fix="check who may push to this registry, and push the cache again under another name",
    other_code="reference-no-cache",
    other_fix="give the cache a separate name, such as `ghcr.io/me/project/cache:main`",
)
_MOST_ENTRIES = 2_000_000  #: The most entries in all tables together. A build of TensorFlow has several 100,000.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingPack:
    """A pack to send: its contents, its descriptor, its bytes."""

    contents: PackContents
    layer: Descriptor
    file: BinaryIO


@dataclass
class StoredCache(NamedArtifact):
    """A cache under a name in a registry. Every method raises the errors of `Repository`, and VerificationFailed."""

    kind: ArtifactKind = CACHES
    _tables: dict[Digest, PackContents] = field(default_factory=dict)

    def read(self) -> tuple[Layers, Digest] | None:
        """Return the cache that now has the name, and the digest of its manifest; None if the name has no cache."""
        stored = self.manifest()
        if stored is None:
            return None
        with self.well_formed(stored.digest):
            manifest = Manifest.read(stored.data)
            if manifest.config.media_type != CONFIG_TYPE:
                raise self.other_kind(stored.digest)
            config = self.repository.small_blob(manifest.config, MOST_CONFIG)
            return Layers.read(manifest, config), stored.digest

    def contents(self, pack: Pack) -> PackContents:
        """Return the table of contents of a pack."""
        digest = pack.contents.digest
        if digest not in self._tables:
            with self.well_formed(digest):
                table = PackContents.read(self.repository.small_blob(pack.contents, packs.MOST_CONTENTS))
                # All tables are in memory until the end, and a stranger may have written them.
                if sum(len(known.entries) for known in self._tables.values()) + len(table.entries) > _MOST_ENTRIES:
                    raise Malformed(f"the tables of contents list more than {_MOST_ENTRIES} entries")
                self._tables[digest] = table
        return self._tables[digest]

    def entries(self, pack: Pack, toolchain: str) -> Iterator[tuple[PackEntry, bytes, bool]]:
        """Yield the entries of a pack as they arrive: (entry, piece of content, whether the piece is the last).

        The pack is verified only after it has been read to its end.
        """
        contents = self.contents(pack)
        pieces = self.repository.blob(pack.layer)
        with self.well_formed(pack.layer.digest):
            # On another shelf, a pack would serve objects of other compilers.
            if contents.toolchain != toolchain:
                raise Malformed(f"the pack is for the toolchain {contents.toolchain[:40]!a}, not for {toolchain}")
            # Check before the download: the table of contents bounds the pack's size.
            if pack.layer.size > packs.most_packed(contents):
                raise Malformed(f"the pack has {pack.layer.size} bytes, too many for its entries")
            yield from from_blob(pieces, packs.read_entries(contents, BufferedReader(ChunkReader(pieces))))

    def pack(
        self, toolchain: str, entries: tuple[PackEntry, ...], read: Callable[[PackEntry], Iterable[bytes]], near: Path
    ) -> OutgoingPack:
        """Pack entries into a file in the folder `near`. Raises PackEntryChanged if a file changed meanwhile."""
        sha256, size = hashlib.sha256(), 0
        # The file has no name, so a killed push leaves no file. It is on the cache's disk: `/tmp` may be memory.
        file = cast("BinaryIO", tempfile.TemporaryFile(dir=near))  # noqa: SIM115  # closed when it was sent
        try:
            for piece in packs.pack_entries(entries, read):
                self.check()
                sha256.update(piece)
                size += file.write(piece)
        except BaseException:
            file.close()
            raise
        layer = Descriptor(media_type=PACK_TYPE, digest=Digest(f"sha256:{sha256.hexdigest()}"), size=size)
        return OutgoingPack(contents=PackContents(toolchain=toolchain, entries=entries), layer=layer, file=file)

    def send(self, outgoing: OutgoingPack) -> tuple[Pack, int]:
        """Send a pack with its table of contents.

        Return the descriptor for the manifest, and the number of bytes sent.
        """
        table = outgoing.contents.encoded()
        pack = Pack(contents=Descriptor.of(CONTENTS_TYPE, table), layer=outgoing.layer, seen=0)
        with outgoing.file as file:
            sent = self._upload(pack.layer, file)
        # Nothing is visible before the manifest lists both blobs.
        sent += self._upload(pack.contents, table)
        self._tables[pack.contents.digest] = outgoing.contents
        return pack, sent

    def _upload(self, blob: Descriptor, data: BinaryIO | bytes) -> int:
        """Send a blob unless the registry has it; return the number of bytes sent."""
        return blob.size if self.repository.upload(blob, data) else 0

    def publish(self, layers: Layers, before: Digest | None) -> Digest | None:
        """Publish the cache under its name; its packs must be in the registry already.

        Return the manifest's digest; None if another push finished first. The name is checked twice: it must stand
        for `before`, and after publishing for our manifest.
        """
        config, manifest = layers.encoded()
        self._upload(Descriptor.of(CONFIG_TYPE, config), config)
        # A registry replaces a name without any condition, so the name is read before and after.
        now = self.manifest()
        if (now.digest if now else None) != before:
            return None
        digest = self.repository.put_manifest(self.reference, oci.MANIFEST, manifest)
        after = self.manifest()
        return digest if after and after.digest == digest else None
