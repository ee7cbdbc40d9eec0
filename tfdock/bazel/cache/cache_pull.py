"""Pull the missing entries of Bazel's disk caches from a registry. An entry is verified before it is visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from tfdock.bazel.cache import action_cache
from tfdock.bazel.cache.action_cache import EMPTY
from tfdock.bazel.cache.cache_folder import DiskCache, checked_message
from tfdock.bazel.cache.cache_push import Say, format_megabytes
from tfdock.bazel.cache.packs import PackEntry
from tfdock.bazel.cache.registry_cache import Pack, Shelf, StoredCache
from tfdock.host.files import check_space, make_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledCache:
    """The entries that arrived for a toolchain's cache."""

    toolchain: str  #: The disk cache.
    entries: int = 0  #: The number of entries that arrived.
    size: int = 0  #: Bytes of these entries.
    packs: int = 0  #: The number of packs with the arrived entries.
    received: int = 0  #: Bytes of these packs.
    there: int = 0  #: Entries that this machine had before the pull.
    incomplete: int = 0  #: Actions that were left out, because one of their blobs is missing everywhere.


@dataclass
class CachePull:
    """The pull of one toolchain. `here`: the entries on this machine. `waiting`: actions that still lack blobs."""

    stored: StoredCache
    say: Say
    disk: DiskCache
    stage: Path
    here: set[str] = field(default_factory=set)
    blobs: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, Path] = field(default_factory=dict)  #: Actions that have arrived but are not visible yet.

    def restore(self, shelf: Shelf) -> PulledCache:
        """Pull the missing entries of a shelf (the packs of one toolchain), pack by pack."""
        make_folder(self.disk.folder)
        for entry in self.disk.entries():
            if entry.kind in ("action", "blob"):
                self._note(entry.name)
        tables = [self.stored.contents(pack) for pack in shelf.packs]
        sizes = {entry.name: entry.size for table in tables for entry in table.entries}
        before = sizes.keys() & self.here
        result = PulledCache(toolchain=self.disk.key, there=len(before))
        # Check before the first pack: a full disk would also stop builds that use the cache.
        self._check_room(sum(size for name, size in sizes.items() if name not in self.here))
        for number, (pack, table) in enumerate(zip(shelf.packs, tables, strict=True), start=1):
            # Two pushes at the same time can put an entry into two packs.
            missing = {entry.name for entry in table.entries} - self.here - self.waiting.keys()
            if not missing:
                continue
            text = f"pack {number} of {len(shelf.packs)}, {len(missing)} entries, {format_megabytes(pack.layer.size)}"
            self.say(f"{self.disk.key}: {text}")
            self._restore_pack(pack, missing)
            result = replace(result, packs=result.packs + 1, received=result.received + pack.layer.size)
        arrived = (sizes.keys() & self.here) - before
        return replace(
            result,
            entries=len(arrived),
            size=sum(sizes[name] for name in arrived),
            incomplete=len(self.waiting),
        )

    def _check_room(self, needed: int) -> None:
        check_space(
            self.disk.cache,
            needed,
            lambda free: (
                f"the disk of the cache {self.disk.cache} has {format_megabytes(free)} free, but "
                f"the toolchain {self.disk.key} needs {format_megabytes(needed)}"
            ),
            ("free disk space: `tfdock cache prune`", "another folder: `--cache-dir`"),
        )

    def _note(self, name: str) -> None:
        self.here.add(name)
        if not name.startswith("ac"):
            # Both of Bazel's layouts end a name with the hash.
            self.blobs[name[-64:]] = name

    def _restore_pack(self, pack: Pack, missing: set[str]) -> None:
        """Take the missing entries from a pack, and make them visible when the whole pack is verified."""
        # Read the whole pack first: its digest is known only at its end.
        arrived = list(self._staged(pack, missing))
        for entry, file in arrived:
            if entry.is_action:
                self.waiting[entry.name] = file
            else:
                self._reveal(entry.name, file)
        # Write an action last: Bazel must find everything that the action names.
        for name, file in list(self.waiting.items()):
            if self._is_complete(file):
                del self.waiting[name]
                self._reveal(name, file)

    def _staged(self, pack: Pack, missing: set[str]) -> Iterator[tuple[PackEntry, Path]]:
        """Yield the missing entries of a pack, each in a complete file of the stage."""
        with ExitStack() as open_file:
            file: BinaryIO | None = None
            for entry, piece, is_last in self.stored.entries(pack, self.disk.key):
                if entry.name not in missing:
                    continue
                # The table of contents has only names of cache entries, so no path leads out of the stage.
                path = self.stage / entry.name.replace("/", "-")
                file = file or open_file.enter_context(path.open("wb"))
                file.write(piece)
                if is_last:
                    # The caller moves the file into the cache: all of its bytes must be written by then.
                    open_file.close()
                    file = None
                    yield entry, path

    def _reveal(self, name: str, file: Path) -> None:
        with self.disk.opened() as folder:
            # If a build here has stored this action meanwhile, keep that result: it is equally good.
            if name.startswith("ac") and folder.exists(name):
                file.unlink()
            else:
                # A blob that another build has written meanwhile has the same bytes.
                folder.receive(file, name)
        self._note(name)

    def _is_complete(self, file: Path) -> bool:
        """Return whether everything that an action needs is here."""
        try:
            result = action_cache.action_result(checked_message(file.read_bytes()))
            needed = [*result.files, *result.trees]
            if not self._all_here(needed):
                return False
            trees = [self.blobs[tree.hash] for tree in result.trees if tree.hash != EMPTY]
            return self._all_here(file for tree in trees for file in action_cache.tree_files(self.disk.message(tree)))
        # Bazel treats an unusable action as a cache miss. The other actions stay usable.
        except (action_cache.MalformedEntry, FileNotFoundError):
            return False

    def _all_here(self, needed: Iterable[action_cache.Digest]) -> bool:
        return all(digest.hash in self.blobs or digest.hash == EMPTY for digest in needed)
