"""What a push sends, and which packs go: the rules with their numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest

from tfdock.bazel.cache import push_plan
from tfdock.bazel.cache.action_cache import EMPTY
from tfdock.bazel.cache.packs import (
    CONTENTS_TYPE,
    MOST_CONTENTS,
    PACK_ENTRIES,
    PACK_SIZE,
    PACK_TYPE,
    PackContents,
    PackEntry,
    in_order,
)
from tfdock.bazel.cache.push_plan import (
    MOST_PACKS,
    MOST_TOOLCHAINS,
    SMALL,
    STALE,
    Plan,
    PushedAction,
    complete,
    plan,
    with_packs,
)
from tfdock.bazel.cache.registry_cache import Layers, Pack, Shelf
from tfdock.host.foreign_json import Malformed
from tfdock.oci.manifest import Descriptor, Manifest
from tfdock.types import Digest

KEY = "0123456789abcdef"
KIB = 1 << 10


def blob(name: str, size: int = KIB) -> PackEntry:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return PackEntry(f"cas/{digest[:2]}/{digest}", size, digest)


def act(name: str, *blobs: PackEntry, result: str = "") -> PushedAction:
    digest = hashlib.sha256(name.encode()).hexdigest()
    sha256 = hashlib.sha256(f"result {name} {result}".encode()).hexdigest()
    return PushedAction(
        entry=PackEntry(f"ac/{digest[:2]}/{digest}", 100, sha256), blobs=tuple(one.sha256 for one in blobs)
    )


class Desk:
    """A shelf that pushes change."""

    def __init__(self) -> None:
        self.layers = Layers()
        self.tables: dict[Digest, PackContents] = {}
        self.blobs: dict[str, PackEntry] = {}

    @property
    def shelf(self) -> Shelf:
        return self.layers.shelves.get(KEY, Shelf())

    def action(self, name: str, *sizes: int, result: str = "") -> PushedAction:
        """An action with outputs of these sizes, which are here."""
        blobs = [blob(f"{name} {result} {number}", size) for number, size in enumerate(sizes)]
        self.blobs |= {one.sha256: one for one in blobs}
        return act(name, *blobs, result=result)

    def plan(self, actions: Iterable[PushedAction]) -> Plan:
        return plan(self.shelf, self.tables, actions, self.blobs)

    def push(self, actions: Iterable[PushedAction]) -> Plan:
        found = self.plan(actions)
        if found.bundles:
            packs = (*found.kept, *map(self._pack, found.bundles))
            self.layers = with_packs(self.layers, {KEY: packs})
        return found

    def _pack(self, bundle: tuple[PackEntry, ...]) -> Pack:
        contents = PackContents(toolchain=KEY, entries=bundle)
        table = Descriptor.of(CONTENTS_TYPE, contents.encoded())
        self.tables[table.digest] = contents
        return Pack(contents=table, layer=Descriptor.of(PACK_TYPE, table.digest.encode()), seen=0)

    @property
    def names(self) -> set[str]:
        """What a pull would find."""
        return {entry.name for pack in self.shelf.packs for entry in self.tables[pack.contents.digest].entries}


def names(bundles: Iterable[Iterable[PackEntry]]) -> list[str]:
    return [entry.name for bundle in bundles for entry in bundle]


def test_only_what_is_missing_is_sent_and_the_packs_that_are_there_stay() -> None:
    desk = Desk()
    first, second = desk.action("one", KIB), desk.action("two", KIB, 2 * KIB)
    desk.push([first])
    before = desk.shelf.packs
    found = desk.push([first, second])
    assert [pack.layer for pack in found.kept] == [pack.layer for pack in before]
    assert (found.there, len(names(found.bundles))) == (2, 3)
    assert not desk.push([first, second]).bundles
    assert desk.shelf.pushes == 2, "a push that has nothing to send changes nothing"


def test_a_blob_that_two_actions_need_is_sent_once() -> None:
    desk = Desk()
    shared = blob("shared")
    desk.blobs[shared.sha256] = shared
    sent = names(desk.push([act("one", shared), act("two", shared)]).bundles)
    assert len(sent) == len(set(sent)) == 3


def test_actions_without_all_that_they_need_are_not_complete() -> None:
    here, gone = blob("here"), blob("gone")
    whole, half = act("whole", here), act("half", here, gone)
    empty = act("empty", PackEntry("", 0, EMPTY))
    assert complete([whole, half, empty], {here.sha256: here}) == (whole, empty)


def test_packs_have_a_size_and_an_action_never_stands_before_what_it_needs() -> None:
    desk = Desk()
    actions = [desk.action(str(number), PACK_SIZE // 5, PACK_SIZE // 7) for number in range(20)]
    actions.append(desk.action("huge", 3 * PACK_SIZE))
    bundles = desk.push(actions).bundles
    sizes = [sum(entry.size for entry in bundle) for bundle in bundles]
    assert len(bundles) > 7
    assert sum(size > PACK_SIZE for size in sizes) == 1, "the huge one has a pack of its own"
    place = {entry.name: number for number, bundle in enumerate(bundles) for entry in bundle}
    for action in actions:
        assert all(place[desk.blobs[one].name] <= place[action.entry.name] for one in action.blobs)
    assert all(bundle == in_order(bundle) for bundle in bundles)


def test_packs_have_no_more_entries_than_a_table_may_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_plan, "PACK_ENTRIES", 4)
    desk = Desk()
    bundles = desk.push([desk.action(str(number), 1, 2) for number in range(5)]).bundles
    assert [len(bundle) for bundle in bundles] == [4, 4, 4, 3]


@pytest.mark.slow
def test_the_largest_table_can_be_read() -> None:
    entries = (blob(str(number), number + 1) for number in range(PACK_ENTRIES // 2))
    actions = (act(str(number)).entry for number in range(PACK_ENTRIES // 2))
    contents = PackContents(toolchain=KEY, entries=in_order((*entries, *actions)))
    encoded = contents.encoded()
    assert len(encoded) < MOST_CONTENTS
    assert PackContents.read(encoded) == contents


def test_what_somebody_else_pushed_of_an_action_counts() -> None:
    desk = Desk()
    desk.push([desk.action("one", KIB, result="theirs")])
    ours = desk.action("one", KIB, result="ours")
    sent = names(desk.push([ours, desk.action("two", KIB)]).bundles)
    assert ours.entry.name not in sent


def test_many_small_packs_become_one_and_large_ones_stay() -> None:
    desk = Desk()
    large = desk.action("large", SMALL)
    actions = [large]
    desk.push(actions)
    for number in range(MOST_PACKS - 1):
        actions.append(desk.action(str(number), KIB))
        assert desk.push(actions).gone == 0
    assert len(desk.shelf.packs) == MOST_PACKS
    actions.append(desk.action("one more", KIB))
    assert desk.push(actions).gone == 0, "as many as may be"
    actions.append(desk.action("and one", KIB))
    found = desk.push(actions)
    assert found.gone == MOST_PACKS
    assert len(desk.shelf.packs) == 2
    assert large.entry.name not in names(found.bundles)
    assert desk.names == {entry for one in actions for entry in (one.entry.name, desk.blobs[one.blobs[0]].name)}


def test_small_packs_of_which_something_is_not_here_are_not_rewritten() -> None:
    desk = Desk()
    theirs = [desk.action(f"theirs {number}", KIB) for number in range(MOST_PACKS + 1)]
    packs = [desk._pack(in_order([one.entry, desk.blobs[one.blobs[0]]])) for one in theirs]
    desk.layers = with_packs(desk.layers, {KEY: tuple(packs)})
    ours = desk.action("ours", KIB)
    assert desk.push([ours, *theirs[:3]]).gone == 3
    assert desk.names == names_of(desk, [ours, *theirs])


def names_of(desk: Desk, actions: Iterable[PushedAction]) -> set[str]:
    return {name for one in actions for name in (one.entry.name, *(desk.blobs[blob].name for blob in one.blobs))}


def test_a_pack_that_nobody_has_had_for_long_goes_and_what_is_still_here_of_it_is_sent_anew() -> None:
    desk = Desk()
    kept, dropped = desk.action("kept", KIB), desk.action("dropped", 9 * KIB)
    desk.push([kept, dropped])
    actions = [kept]
    gone = []
    for number in range(STALE + 1):
        actions.append(desk.action(str(number), KIB))
        gone.append(desk.push(actions).gone)
    assert gone == [0] * (STALE - 1) + [1, 0]
    assert dropped.entry.name not in desk.names
    assert desk.names == names_of(desk, actions)


def test_a_pack_that_somebody_still_has_half_of_stays() -> None:
    desk = Desk()
    kept, dropped = desk.action("kept", 10 * KIB), desk.action("dropped", 9 * KIB)
    desk.push([kept, dropped])
    actions = [kept]
    for number in range(STALE + 5):
        actions.append(desk.action(str(number), KIB))
        assert desk.push(actions).gone == 0


def test_where_a_pack_goes_our_result_of_an_action_counts_because_the_others_may_lack_what_it_needs() -> None:
    desk = Desk()
    desk.push([desk.action("old", 9 * KIB)])
    theirs = desk.action("one", KIB, result="theirs")
    desk.push([theirs])
    ours = desk.action("one", KIB, result="ours")
    sent: list[str] = []
    for number in range(STALE + 1):
        found = desk.push([ours, *(desk.action(str(other), KIB) for other in range(number + 1))])
        sent += names(found.bundles) if found.gone else []
    assert ours.entry.name in sent


def test_what_two_have_pushed_at_once_is_kept_once() -> None:
    desk = Desk()
    actions = [desk.action("one", 5 * KIB), desk.action("two", KIB)]
    desk.push(actions)
    twice = (*desk.shelf.packs, desk._pack(in_order([actions[0].entry, desk.blobs[actions[0].blobs[0]]])))
    desk.layers = with_packs(desk.layers, {KEY: twice})
    assert len(desk.shelf.packs) == 2
    found = desk.push([*actions, desk.action("three", KIB)])
    assert found.gone == 1
    assert desk.names >= names_of(desk, actions)


def test_of_too_many_toolchains_the_one_that_has_not_changed_for_longest_goes() -> None:
    desk = Desk()
    bundle = desk.push([desk.action("one", KIB)]).bundles[0]
    layers = Layers()
    keys = [f"{number:016x}" for number in range(MOST_TOOLCHAINS + 1)]
    for key in (*keys[:MOST_TOOLCHAINS], keys[0]):
        layers = with_packs(layers, {key: (desk._pack(bundle),)})
    assert len(layers.shelves) == MOST_TOOLCHAINS
    layers = with_packs(layers, {keys[-1]: (desk._pack(bundle),)})
    assert set(layers.shelves) == {*keys} - {keys[1]}


# --- as a manifest --------------------------------------------------------------------------------------------------


def written() -> tuple[Layers, bytes, bytes]:
    desk = Desk()
    bundle = desk.push([desk.action("one", KIB)]).bundles[0]
    layers = with_packs(desk.layers, {"f" * 16: (desk._pack(bundle), desk._pack(bundle))})
    return layers, *layers.encoded()


def test_a_cache_is_read_as_it_was_written() -> None:
    layers, config, manifest = written()
    assert Layers.read(Manifest.read(manifest), config) == layers
    assert layers.encoded() == (config, manifest)
    assert len(manifest) < 2000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"tfdock.cache/1", b"tfdock.cache/2"),
        (b'"seen":[1]', b'"seen":[1,1]'),
        (b'"seen":[1]', b'"seen":[]'),
        (b'"seen":[1]', b'"seen":["1"]'),
        (b'"seen":[1]', b'"seen":7'),
        (b"0123456789abcdef", b"../../../etc/foo"),
        (b"0123456789abcdef", b"0123456789ABCDEF"),
        (b'"pushes":1', b'"pushes":-1'),
        (b'"moment":1', b'"moment":true'),
        (b'"toolchains":{', b'"toolchains":[{'),
    ],
)
def test_a_configuration_that_tfdock_would_not_write_is_refused(old: bytes, new: bytes) -> None:
    _, config, manifest = written()
    other = config.replace(old, new, 1)
    assert other != config
    with pytest.raises(Malformed):
        Layers.read(Manifest.read(manifest), other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"schemaVersion":2', b'"schemaVersion":1'),
        (b'"layers":[', b'"blobs":['),
        (b'"digest":"sha256:', b'"digest":"sha512:'),
        (b'"digest":"sha256:', b'"digest":"sha256:/../'),
        (b'"size":', b'"size":-'),
        (b'"size":', b'"size":1e'),
        (b'"mediaType":"application/vnd.tfdock.cache.config', b'"mediaType":"\\nSet-Cookie: x'),
        (b'"config":{', b'"config":[{'),
        (b'"layers":[', b'"manifests":[],"layers":['),  # an index to some, a manifest to others (CVE-2021-41190)
        (b"{", b"[" * 5000),
    ],
)
def test_a_manifest_that_is_none_is_refused(old: bytes, new: bytes) -> None:
    _, _, manifest = written()
    other = manifest.replace(old, new, 1)
    assert other != manifest
    with pytest.raises(Malformed):
        Manifest.read(other)


def test_layers_that_are_no_packs_are_refused() -> None:
    _, config, manifest = written()
    other = manifest.replace(PACK_TYPE.encode(), b"application/vnd.oci.image.layer.v1.tar")
    with pytest.raises(Malformed):
        Layers.read(Manifest.read(other), config)
