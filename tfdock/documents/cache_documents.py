"""Documents of Bazel's caches: on this machine, and in a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict

from tfdock.bazel.cache.cache_pull import PulledCache
from tfdock.bazel.cache.cache_push import PushedCache
from tfdock.engine.protocol import ImageInfo


class CachedToolchainJson(TypedDict):
    """The disk cache of one toolchain and trust domain."""

    key: str  #: The name of the disk cache.
    domain: str  #: The trust domain.
    reasons: Sequence[str]  #: Why the domain is not `release`; with `--trust`, why it would not be.
    #: The tools, as readable text: `bazel`, `base` and others; empty if unknown.
    toolchain: Mapping[str, object]
    size: int  #: Bytes.
    actions: int  #: Actions whose results are kept.
    blobs: int  #: Files that these actions need.
    used: str | None  #: When a build last used the cache; null for never.
    builds: Sequence[object]  #: Always empty: the entries that a build uses are no longer recorded.


class OutputBaseJson(TypedDict):
    """A leftover output base of a run."""

    run: str  #: The run.
    size: int  #: Bytes.
    changed: str | None  #: When the output base was last changed.
    in_use: bool  #: Whether the run is still running.


class CacheListDocument(TypedDict):
    """`tfdock cache list`: the contents of the cache."""

    cache: str  #: The folder of the cache.
    size: int  #: Bytes in all.
    parts: Mapping[str, int]  #: The bytes of each part of the cache.
    toolchains: Sequence[CachedToolchainJson]  #: The disk caches.
    outputs: Sequence[OutputBaseJson]  #: The leftover output bases.


class CacheFindingJson(TypedDict):
    """A damaged entry."""

    toolchain: str  #: The disk cache.
    #: `incomplete`: outputs of the action are missing; `foreign`: not a file that Bazel wrote.
    kind: Literal["damaged", "truncated", "unreadable", "incomplete", "foreign"]
    path: str  #: The file.
    text: str  #: What is wrong.
    harms: bool  #: Whether a build could use the entry and get wrong content.


class VerifiedToolchainJson(TypedDict):
    """A disk cache that was read."""

    toolchain: str  #: The disk cache.
    actions: int  #: Actions in it.
    blobs: int  #: Files in it.
    size: int  #: Bytes.
    findings: Sequence[CacheFindingJson]  #: What is wrong.
    removed: int  #: Entries that were removed.


class CacheVerifyDocument(TypedDict):
    """`tfdock cache verify`: the damaged entries of the cache."""

    repaired: bool  #: Whether damaged entries were removed (`--repair`).
    toolchains: Sequence[VerifiedToolchainJson]  #: The disk caches.


class PrunedToolchainJson(TypedDict):
    """The entries removed from a disk cache."""

    key: str  #: The disk cache.
    size: int  #: Bytes removed.
    actions: int  #: Actions removed.
    blobs: int  #: Files removed.
    builds: Sequence[str]  #: Always empty: no entries are reserved for a build.


class PrunedOutputJson(TypedDict):
    """Leftovers of a run that were removed."""

    run: str  #: The run.
    size: int  #: Bytes.


class CachePruneDocument(TypedDict):
    """`tfdock cache prune`: the removed entries, or the entries to remove."""

    dry_run: bool  #: Whether nothing was removed.
    images: Sequence[ImageInfo]  #: Images removed with `--images`.
    size: int  #: Bytes removed, without images.
    left: int  #: Bytes that remain.
    reached: bool  #: Whether the remaining bytes are within `--max-size`.
    toolchains: Sequence[PrunedToolchainJson]  #: The entries removed from disk caches.
    outputs: Sequence[PrunedOutputJson]  #: The removed leftovers of runs.
    downloads: int  #: Bytes of downloads removed.


class CacheCleanDocument(TypedDict):
    """`tfdock cache clean`: the removed folders."""

    toolchain: str | None  #: The toolchain; null for the whole cache.
    size: int  #: Bytes.


class CachePushDocument(TypedDict):
    """`tfdock cache push`: the entries sent to a registry."""

    reference: str  #: The cache's name in the registry.
    digest: str | None  #: The digest of the cache's manifest; null if nothing was pushed.
    toolchains: Sequence[PushedCache]  #: The disk caches.


class CachePullDocument(TypedDict):
    """`tfdock cache pull`: the entries taken from a registry."""

    reference: str  #: The cache's name in the registry.
    toolchains: Sequence[PulledCache]  #: The disk caches.
