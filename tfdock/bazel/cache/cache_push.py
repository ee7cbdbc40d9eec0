"""Push Bazel's disk caches: list the entries, pack those that a registry lacks, and report the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfdock.bazel.cache import action_cache, maintenance, push_plan
from tfdock.bazel.cache.action_cache import EMPTY
from tfdock.bazel.cache.cache_folder import DiskCache
from tfdock.bazel.cache.packs import LARGEST, PackEntry, PackEntryChanged
from tfdock.bazel.cache.push_plan import PushedAction
from tfdock.bazel.cache.registry_cache import Layers, OutgoingPack, Pack, Shelf, StoredCache

_READ = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedCache:
    """The entries that a push sent from the cache of one toolchain."""

    toolchain: str  #: The disk cache.
    entries: int = 0  #: Entries that were sent.
    size: int = 0  #: Bytes of these entries.
    packs: int = 0  #: The number of packs with the sent entries.
    sent: int = 0  #: Bytes of these packs.
    there: int = 0  #: Entries that the registry had before.
    incomplete: int = 0  #: Actions that were left out, because one of their blobs is missing on this machine.
    native: int = 0  #: Actions that were left out, because only this machine can run the compiled code.
    gone: int = 0  #: Packs that were replaced.


@dataclass
class Inventory:
    """The entries of a disk cache: complete actions, and blobs by sha256."""

    disk: DiskCache
    actions: list[PushedAction] = field(default_factory=list)
    blobs: dict[str, PackEntry] = field(default_factory=dict)
    incomplete: int = 0
    native: int = 0

    def drop(self, entry: PackEntry) -> None:
        """Forget an entry whose file changed, and the actions that need it."""
        if not entry.is_action:
            self.blobs.pop(entry.sha256, None)
        # Leave out every action that needs the blob: a pull would otherwise get a broken entry.
        remaining = [action for action in self.actions if action.entry != entry]
        self.actions = list(push_plan.complete(remaining, self.blobs))
        self.incomplete += len(remaining) - len(self.actions) + (1 if entry.is_action else 0)

    def read(self, entry: PackEntry) -> Iterator[bytes]:
        """Yield the bytes of an entry, from this cache or the cache below; raise PackEntryChanged if it is gone."""
        for disk in filter(None, (self.disk, self.disk.release)):
            with suppress(FileNotFoundError), disk.open(entry.name) as file:
                while piece := file.read(_READ):
                    yield piece
                return
        raise PackEntryChanged(entry)


def inventory(disk: DiskCache) -> Inventory:
    """Return the inventory of a disk cache. Read every action, but only the blobs that name other blobs."""
    listing = maintenance.listing(disk)
    result = Inventory(disk)
    # Also push the blobs that its actions use from the lower cache: the pulling machine may lack them.
    for digest, entry in (listing.below | listing.blobs).items():
        owner = disk if digest in listing.blobs else disk.release
        if entry.size > LARGEST or (owner and owner.is_hollow(entry)):
            continue  # no compiler made it, and reading it would take days
        result.blobs[digest] = PackEntry(entry.name, entry.size, digest)
    for key, entry in listing.actions.items():
        if listing.is_native(key):
            result.native += 1
            continue
        # KeyError: the listing has no result of an action that could not be read.
        with suppress(action_cache.MalformedEntry, FileNotFoundError, KeyError):
            data = disk.message(entry.name)
            # Newer Bazels know the empty blob without a file; older ones may look for it.
            result.actions.append(
                PushedAction(
                    # Describe these bytes, not the listing's entry: a build may have written the action again.
                    entry=PackEntry(entry.name, len(data), hashlib.sha256(data).hexdigest()),
                    blobs=(*listing.needs(key), EMPTY),
                )
            )
    result.actions = list(push_plan.complete(result.actions, result.blobs))
    result.incomplete = len(listing.actions) - len(result.actions) - result.native
    return result


@dataclass
class CachePush:
    """One push: the entries of this machine, the packs that were sent, and the result for each toolchain."""

    stored: StoredCache
    say: Say
    stage: Path
    inventories: list[Inventory]
    sent: dict[str, list[Pack]] = field(default_factory=dict)
    outcomes: dict[str, PushedCache] = field(default_factory=dict)

    def prepare(self, layers: Layers) -> dict[str, tuple[Pack, ...]]:
        """Return the new list of packs for each toolchain that changed. All new packs were sent before."""
        packs_by_key = {}
        for inventory in self.inventories:
            packs = self._prepare(inventory, layers.shelves.get(inventory.disk.key, Shelf()))
            if packs is not None:
                packs_by_key[inventory.disk.key] = packs
        return packs_by_key

    def _prepare(self, inventory: Inventory, shelf: Shelf) -> tuple[Pack, ...] | None:
        # A file that changes while it is packed is left out, and the other files are planned again.
        while True:
            key = inventory.disk.key
            # Blobs that this push has already sent count as present in the registry, if they are still needed.
            spare = self.sent.get(key, []) if self._plan(inventory, shelf).bundles else []
            plan = self._plan(inventory, replace(shelf, packs=(*shelf.packs, *spare)))
            outcome = self.outcomes.setdefault(key, PushedCache(toolchain=key, there=plan.there))
            gone = max(outcome.gone, plan.gone)
            self.outcomes[key] = replace(outcome, incomplete=inventory.incomplete, native=inventory.native, gone=gone)
            if not plan.bundles and not spare:
                return None
            try:
                return (*plan.kept, *self._send(inventory, plan.bundles))
            except PackEntryChanged as changed:
                inventory.drop(changed.entry)

    def _plan(self, inventory: Inventory, shelf: Shelf) -> push_plan.Plan:
        contents = {pack.contents.digest: self.stored.contents(pack) for pack in shelf.packs}
        return push_plan.plan(shelf, contents, inventory.actions, inventory.blobs)

    def _send(self, inventory: Inventory, bundles: tuple[tuple[PackEntry, ...], ...]) -> list[Pack]:
        """Send new packs; each is sent while the next one is made.

        A pack that was sent counts, even if a later pack fails.
        """
        key = inventory.disk.key
        transfers: list[Future[Pack]] = []
        with ThreadPoolExecutor(1, "tfdock-push") as sender:
            for number, bundle in enumerate(bundles, start=1):
                size = sum(entry.size for entry in bundle)
                self.say(f"{key}: pack {number} of {len(bundles)}, {len(bundle)} entries, {format_megabytes(size)}")
                parcel = self.stored.pack(key, bundle, inventory.read, self.stage)
                try:
                    for earlier in transfers[-1:]:  # at most two packs are on the disk
                        earlier.result()
                # Ctrl-C counts too: the unnamed file uses disk space until it is closed.
                except BaseException:
                    parcel.file.close()
                    raise
                transfers.append(sender.submit(self._send_pack, parcel))
        # This raises the first error of the transfers that the loop has not waited for.
        return [pack.result() for pack in transfers]

    def _send_pack(self, parcel: OutgoingPack) -> Pack:
        pack, sent = self.stored.send(parcel)
        key = parcel.contents.toolchain
        self.sent.setdefault(key, []).append(pack)
        outcome = self.outcomes[key]
        self.outcomes[key] = replace(
            outcome,
            entries=outcome.entries + len(parcel.contents.entries),
            size=outcome.size + parcel.contents.size,
            packs=outcome.packs + 1,
            sent=outcome.sent + sent,
        )
        return pack

    def results(self) -> list[PushedCache]:
        return list(self.outcomes.values())


def format_megabytes(size: int) -> str:
    """Return a size in megabytes for people."""
    return f"{size / 1e6:.1f} MB"
