"""A cache in a registry: manifest, tables of contents, packs. What is read is checked before it is used."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from tfdock.bazel.cache import packs
from tfdock.bazel.cache.cache_layers import CONFIG_TYPE, MOST_CONFIG, Layers, Pack, is_cache
from tfdock.bazel.cache.packs import CONTENTS_TYPE, PACK_TYPE, PackContents, PackEntry
from tfdock.oci import manifest as oci
from tfdock.oci.artifact import ArtifactKind, NamedArtifact, from_blob
from tfdock.oci.manifest import Descriptor, MalformedManifest, Manifest
from tfdock.types import Digest

CACHES = ArtifactKind(
    noun="cache",
    owned="a cache of tfdock's",
    refusal="cannot be used",
    never_written="such a thing",
    malformed_code="cache-layers-malformed",
    malformed_fix="who can push there? Push the cache anew under another name",
    other_code="reference-no-cache",
    other_fix="give the cache a name of its own, such as `ghcr.io/me/project/cache:main`",
)
_MOST_ENTRIES = 2_000_000
"""In all tables together; a build of TensorFlow leaves some hundred thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A pack that is to be sent: what it holds, its descriptor, its bytes."""

    contents: PackContents
    layer: Descriptor
    file: BinaryIO


@dataclass
class StoredCache(NamedArtifact):
    """A cache under a name in a registry. Every method raises what `Repository` does, and VerificationFailed."""

    kind: ArtifactKind = CACHES
    _tables: dict[Digest, PackContents] = field(default_factory=dict)

    def read(self) -> tuple[Layers, Digest] | None:
        """What the registry has under the name now, and the digest of its manifest; None where it has nothing."""
        found = self.manifest()
        if found is None:
            return None
        with self.well_formed(found.digest):
            manifest = Manifest.read(found.data)
            if not is_cache(manifest):
                raise self.other_kind(found.digest)
            config = self.repository.small_blob(manifest.config, MOST_CONFIG)
            return Layers.read(manifest, config), found.digest

    def contents(self, pack: Pack) -> PackContents:
        """What a pack holds."""
        digest = pack.contents.digest
        if digest not in self._tables:
            with self.well_formed(digest):
                table = PackContents.read(self.repository.small_blob(pack.contents, packs.MOST_CONTENTS))
                if sum(len(known.entries) for known in self._tables.values()) + len(table.entries) > _MOST_ENTRIES:
                    raise MalformedManifest(f"it lists more than {_MOST_ENTRIES} entries")
                self._tables[digest] = table
        return self._tables[digest]

    def entries(self, pack: Pack, toolchain: str) -> Iterator[tuple[PackEntry, bytes, bool]]:
        """What is in a pack, as it comes: entry, a piece of it, whether it is the last one of it.

        That the pack is the right one is known only when all has been taken.
        """
        contents = self.contents(pack)
        pieces = self.repository.blob(pack.layer)
        with self.well_formed(pack.layer.digest):
            if contents.toolchain != toolchain:
                raise MalformedManifest(f"it is for the toolchain {contents.toolchain[:40]!a}, not for {toolchain}")
            if pack.layer.size > packs.most_packed(contents):
                raise MalformedManifest(f"it has {pack.layer.size} bytes, too many for what it should hold")
            yield from from_blob(pieces, packs.unpacked(contents, _Pieces(pieces).read))

    def packed(
        self, toolchain: str, entries: tuple[PackEntry, ...], read: Callable[[PackEntry], Iterable[bytes]], near: Path
    ) -> Parcel:
        """Pack entries into a file in the folder `near`; raises `packs.Changed`."""
        sha256, size = hashlib.sha256(), 0
        file = cast("BinaryIO", tempfile.TemporaryFile(dir=near))  # noqa: SIM115  # closed when it was sent
        try:
            for piece in packs.packed(entries, read):
                self.check()
                sha256.update(piece)
                size += file.write(piece)
        except BaseException:
            file.close()
            raise
        layer = Descriptor(media_type=PACK_TYPE, digest=Digest(f"sha256:{sha256.hexdigest()}"), size=size)
        return Parcel(contents=PackContents(toolchain=toolchain, entries=entries), layer=layer, file=file)

    def send(self, parcel: Parcel) -> tuple[Pack, int]:
        """Send a pack with its table of contents; how it stands in a manifest, and the bytes that were sent."""
        table = parcel.contents.encoded()
        pack = Pack(contents=Descriptor.of(CONTENTS_TYPE, table), layer=parcel.layer, seen=0)
        with parcel.file as file:
            sent = self._upload(pack.layer, file)
        sent += self._upload(pack.contents, table)
        self._tables[pack.contents.digest] = parcel.contents
        return pack, sent

    def _upload(self, blob: Descriptor, data: BinaryIO | bytes) -> int:
        """Send a blob unless it is there; return the bytes that were sent."""
        return blob.size if self.repository.upload(blob, data) else 0

    def publish(self, layers: Layers, before: Digest | None) -> Digest | None:
        """Let the name stand for the cache, whose packs are there; the manifest's digest.

        None where somebody else was quicker: the name no longer stands for `before`, or, a moment later, for ours.
        """
        config, manifest = layers.encoded()
        self._upload(Descriptor.of(CONFIG_TYPE, config), config)
        now = self.manifest()
        if (now.digest if now else None) != before:
            return None
        digest = self.repository.put_manifest(self.reference, oci.MANIFEST, manifest)
        after = self.manifest()
        return digest if after and after.digest == digest else None


class _Pieces:
    """Bytes that come as they like, read as one asks for them."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        if not self._rest:
            self._rest = next(self._pieces, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
