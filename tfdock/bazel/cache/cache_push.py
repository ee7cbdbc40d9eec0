"""Sending Bazel's disk caches: what is here, the packs made of what a registry lacks, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfdock.bazel.cache import action_cache, push_plan
from tfdock.bazel.cache import maintenance as cache_care
from tfdock.bazel.cache.action_cache import EMPTY
from tfdock.bazel.cache.cache_folder import DiskCache
from tfdock.bazel.cache.packs import LARGEST, PackEntry, PackEntryChanged
from tfdock.bazel.cache.push_plan import PushedAction
from tfdock.bazel.cache.registry_cache import Layers, OutgoingPack, Pack, Shelf, StoredCache

_READ = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedCache:
    """What became of a toolchain's cache in a push.

    `entries` of `size` bytes were sent, in `packs` of `sent` bytes; `there` were in the registry before. `incomplete`
    actions were left out, because something that they need is not here, and `native` ones, because another machine
    could take them for its own and not run what they compiled. `gone` packs were replaced.
    """

    toolchain: str
    entries: int = 0
    size: int = 0
    packs: int = 0
    sent: int = 0
    there: int = 0
    incomplete: int = 0
    native: int = 0
    gone: int = 0


@dataclass
class Inventory:
    """A disk cache as it is: complete actions, blobs by sha256, and where each entry lies."""

    disk: DiskCache
    actions: list[PushedAction] = field(default_factory=list)
    blobs: dict[str, PackEntry] = field(default_factory=dict)
    incomplete: int = 0
    native: int = 0

    def drop(self, entry: PackEntry) -> None:
        """Forget an entry that is not what it should be, and the actions that need it."""
        if not entry.is_action:
            self.blobs.pop(entry.sha256, None)
        left = [action for action in self.actions if action.entry != entry]
        self.actions = list(push_plan.complete(left, self.blobs))
        self.incomplete += len(left) - len(self.actions) + (1 if entry.is_action else 0)

    def read(self, entry: PackEntry) -> Iterator[bytes]:
        """The bytes of an entry, here or in the cache below; raises Changed where it has gone."""
        for disk in filter(None, (self.disk, self.disk.release)):
            with suppress(FileNotFoundError), disk.open(entry.name) as file:
                while piece := file.read(_READ):
                    yield piece
                return
        raise PackEntryChanged(entry)


def inventory(disk: DiskCache) -> Inventory:
    """Look through a disk cache; reads every action, and no blob but the few that name others."""
    listing = cache_care.listing(disk)
    found = Inventory(disk)
    # What its actions take from the cache below goes along: who pulls may not have it.
    for digest, entry in (listing.below | listing.blobs).items():
        lies_in = disk if digest in listing.blobs else disk.release
        if entry.size > LARGEST or (lies_in and lies_in.is_hollow(entry)):
            continue  # no compiler made it, and reading it would take days
        found.blobs[digest] = PackEntry(entry.name, entry.size, digest)
    for key, entry in listing.actions.items():
        if listing.is_native(key):
            found.native += 1
            continue
        with suppress(action_cache.MalformedEntry, FileNotFoundError, KeyError):
            data = disk.message(entry.name)
            # Newer Bazels know the empty blob without a file; older ones may look for it.
            found.actions.append(
                PushedAction(
                    entry=PackEntry(entry.name, len(data), hashlib.sha256(data).hexdigest()),
                    blobs=(*listing.needs(key), EMPTY),
                )
            )
    found.actions = list(push_plan.complete(found.actions, found.blobs))
    found.incomplete = len(listing.actions) - len(found.actions) - found.native
    return found


@dataclass
class CachePush:
    """One push: what is here, the packs that were sent, and what came of it."""

    stored: StoredCache
    say: Say
    stage: Path
    inventories: list[Inventory]
    sent: dict[str, list[Pack]] = field(default_factory=dict)
    told: dict[str, PushedCache] = field(default_factory=dict)

    def prepared(self, layers: Layers) -> dict[str, tuple[Pack, ...]]:
        """The packs that each toolchain shall have, where those are others; all that are new have been sent."""
        found = {}
        for inventory in self.inventories:
            packs = self._prepared(inventory, layers.shelves.get(inventory.disk.key, Shelf()))
            if packs is not None:
                found[inventory.disk.key] = packs
        return found

    def _prepared(self, inventory: Inventory, shelf: Shelf) -> tuple[Pack, ...] | None:
        while True:
            key = inventory.disk.key
            # What this push has sent already is as good as there, if it is still of use.
            spare = self.sent.get(key, []) if self._plan(inventory, shelf).sends else []
            plan = self._plan(inventory, replace(shelf, packs=(*shelf.packs, *spare)))
            told = self.told.setdefault(key, PushedCache(toolchain=key, there=plan.there))
            gone = max(told.gone, plan.gone)
            self.told[key] = replace(told, incomplete=inventory.incomplete, native=inventory.native, gone=gone)
            if not plan.sends and not spare:
                return None
            try:
                return (*plan.kept, *self._send(inventory, plan.bundles))
            except PackEntryChanged as changed:
                inventory.drop(changed.entry)

    def _plan(self, inventory: Inventory, shelf: Shelf) -> push_plan.Plan:
        contents = {pack.contents.digest: self.stored.contents(pack) for pack in shelf.packs}
        return push_plan.plan(shelf, contents, inventory.actions, inventory.blobs)

    def _send(self, inventory: Inventory, bundles: tuple[tuple[PackEntry, ...], ...]) -> list[Pack]:
        """Send new packs: each while the next one is made. What was sent counts, even where a later one fails."""
        key = inventory.disk.key
        sending: list[Future[Pack]] = []
        with ThreadPoolExecutor(1, "tfdock-push") as sender:
            for number, bundle in enumerate(bundles, start=1):
                size = sum(entry.size for entry in bundle)
                self.say(f"{key}: pack {number} of {len(bundles)}, {len(bundle)} entries, {megabytes(size)}")
                parcel = self.stored.packed(key, bundle, inventory.read, self.stage)
                try:
                    for earlier in sending[-1:]:  # no more than two of them on the disk
                        earlier.result()
                except BaseException:
                    parcel.file.close()
                    raise
                sending.append(sender.submit(self._sent, parcel))
        return [pack.result() for pack in sending]

    def _sent(self, parcel: OutgoingPack) -> Pack:
        pack, sent = self.stored.send(parcel)
        key = parcel.contents.toolchain
        self.sent.setdefault(key, []).append(pack)
        told = self.told[key]
        self.told[key] = replace(
            told,
            entries=told.entries + len(parcel.contents.entries),
            size=told.size + parcel.contents.size,
            packs=told.packs + 1,
            sent=told.sent + sent,
        )
        return pack

    def results(self) -> list[PushedCache]:
        return list(self.told.values())


def megabytes(size: int) -> str:
    """For people."""
    return f"{size / 1e6:.1f} MB"
