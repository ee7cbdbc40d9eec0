"""Plan a push: the entries to send, their packs, and the old packs to remove.

A push adds missing entries as new packs. Existing packs stay as they are, so that nothing is sent twice. A pack is
dropped, and its useful entries are sent again in a new pack, if one of these is true:
- in the last 20 changes of its toolchain, no pushing machine had half of the pack's bytes;
- half of its bytes or more are in other packs too;
- there are more than 32 packs, and it holds less than 16 MiB.

The last two apply only if the pushing machine has all entries that are in no other pack. A change is a push that
sends something. Of more than 8 toolchains, the one with the oldest change is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tfdock.bazel.cache.action_cache import EMPTY
from tfdock.bazel.cache.packs import PACK_ENTRIES, PACK_SIZE, PackContents, PackEntry, in_order
from tfdock.bazel.cache.registry_cache import Layers, Pack, Shelf
from tfdock.types import Digest

STALE = 20
MOST_PACKS = 32
SMALL = 16 << 20
MOST_TOOLCHAINS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedAction:
    """An entry of the action cache, and the sha256 of the blobs that it needs."""

    entry: PackEntry
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for a shelf: the packs that stay, the entries of each new pack, and the number of removed packs.

    `there` counts the useful entries that the registry already has.
    """

    kept: tuple[Pack, ...]
    bundles: tuple[tuple[PackEntry, ...], ...] = ()
    gone: int = 0
    there: int = 0


def complete(actions: Iterable[PushedAction], blobs: Mapping[str, PackEntry]) -> tuple[PushedAction, ...]:
    """Return the actions whose blobs all exist. The other actions are useless."""
    return tuple(action for action in actions if all(blob in blobs or blob == EMPTY for blob in action.blobs))


def plan(
    shelf: Shelf,
    contents: Mapping[Digest, PackContents],
    actions: Iterable[PushedAction],
    blobs: Mapping[str, PackEntry],
) -> Plan:
    """Plan the push of a shelf. `contents` maps each table's digest to the table. `actions` are complete."""
    # A repeated push makes the same packs, and the registry already has the sent ones.
    actions = sorted(actions, key=lambda action: action.entry.name)
    wanted = {action.entry.name: action.entry for action in actions}
    wanted |= {blobs[blob].name: blobs[blob] for action in actions for blob in action.blobs if blob in blobs}
    tables = {pack.contents.digest: contents[pack.contents.digest] for pack in shelf.packs}
    known = {entry.name for table in tables.values() for entry in table.entries}
    missing = wanted.keys() - known
    if not missing:
        return Plan(kept=shelf.packs, there=len(wanted))
    kept = _kept(shelf, tables, wanted)
    held = {entry.name: entry.sha256 for pack in kept for entry in tables[pack.contents.digest].entries}
    gone = len(shelf.packs) - len(kept)

    def lacking(entry: PackEntry) -> bool:
        # After a pack is dropped, another machine's result of an action may lack blobs. Then use our result.
        return entry.name not in held or (gone > 0 and held[entry.name] != entry.sha256)

    return Plan(
        kept=kept,
        bundles=tuple(_bundles(actions, blobs, lacking=frozenset(filter(lacking, wanted.values())))),
        gone=gone,
        there=len(wanted) - len(missing),
    )


def _kept(shelf: Shelf, tables: Mapping[Digest, PackContents], wanted: Mapping[str, PackEntry]) -> tuple[Pack, ...]:
    """Return the packs that stay, with `seen` updated."""
    now = shelf.pushes + 1
    kept = []
    for pack in shelf.packs:
        table = tables[pack.contents.digest]
        mine = sum(entry.size for entry in table.entries if entry.name in wanted)
        seen = now if 2 * mine >= table.size else pack.seen
        if now - seen < STALE:
            kept.append(replace(pack, seen=seen))
    copies = Counter(entry.name for pack in kept for entry in tables[pack.contents.digest].entries)
    many = len(kept) > MOST_PACKS
    # Loop over a copy, because the loop removes packs from `kept`.
    for pack in tuple(kept):
        table = tables[pack.contents.digest]
        alone = [entry for entry in table.entries if copies[entry.name] == 1]
        dead = table.size - sum(entry.size for entry in alone)
        if all(entry.name in wanted for entry in alone) and (2 * dead >= table.size or (many and table.size < SMALL)):
            kept.remove(pack)
            # Of two packs with the same entries, one must stay.
            copies.subtract(entry.name for entry in table.entries)
    return tuple(kept)


def _bundles(
    actions: Iterable[PushedAction], blobs: Mapping[str, PackEntry], lacking: frozenset[PackEntry]
) -> Iterable[tuple[PackEntry, ...]]:
    """Yield the missing entries in packs. Each action is in the same pack as its blobs, or in a later one."""
    placed: set[PackEntry] = set()
    bundle: list[PackEntry] = []
    size = 0
    for action in actions:
        needed = [blobs[blob] for blob in dict.fromkeys(action.blobs) if blob in blobs]
        for entry in (*needed, action.entry):
            if entry not in lacking or entry in placed:
                continue
            placed.add(entry)
            # A large entry in its own pack is sent only once, even if the packs of small entries change.
            if entry.size > PACK_SIZE:
                yield (entry,)
                continue
            if size + entry.size > PACK_SIZE or len(bundle) == PACK_ENTRIES:
                yield in_order(bundle)
                bundle, size = [], 0
            bundle.append(entry)
            size += entry.size
    if bundle:
        yield in_order(bundle)


def with_packs(layers: Layers, shelves: Mapping[str, tuple[Pack, ...]]) -> Layers:
    """Return the cache with a new list of packs for some toolchains. New packs in `shelves` still have `seen` 0."""
    moment = layers.pushes + 1
    shelves_by_key = dict(layers.shelves)
    for key, packs in shelves.items():
        pushes = shelves_by_key.get(key, Shelf()).pushes + 1
        dated = tuple(pack if pack.seen else replace(pack, seen=pushes) for pack in packs)
        shelves_by_key[key] = Shelf(packs=dated, pushes=pushes, moment=moment)
    # One push can change several toolchains at the same moment. Then the order of their keys decides.
    youngest = sorted(shelves_by_key, key=lambda key: (-shelves_by_key[key].moment, key))[:MOST_TOOLCHAINS]
    return Layers(shelves={key: shelves_by_key[key] for key in sorted(youngest)}, pushes=moment)
