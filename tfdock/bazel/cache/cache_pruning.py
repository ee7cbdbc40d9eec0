"""Decide which entries of Bazel's disk caches go, and which stay so that the next build is warm. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tfdock.errors import Problem, ProfileError
from tfdock.profile import units
from tfdock.profile.yaml_nodes import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAction:
    """An entry of the action cache. `size` in bytes, `used` in Unix seconds, `blobs` are the blobs that it needs."""

    size: int
    used: float
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The actions that the last build of a build id took from a cache or put there; None if reads leave no trace."""

    build_id: str
    used: float
    actions: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContents:
    """One disk cache: actions by key, sizes of blobs by digest, and the configurations that use it."""

    toolchain: str
    actions: Mapping[str, CachedAction]
    blobs: Mapping[str, int]
    configurations: tuple[Configuration, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(action.size for action in self.actions.values()) + sum(self.blobs.values())

    def needed(self, excluded: Collection[str]) -> frozenset[str]:
        """Return the actions that the last build of some configuration used, without the `excluded` configurations.

        Returns all actions if it is unknown of one configuration what it used.
        """
        remaining = [configuration for configuration in self.configurations if configuration.build_id not in excluded]
        # Without times of access, every action may be one that the last build used.
        if any(configuration.actions is None for configuration in remaining):
            return frozenset(self.actions)
        return frozenset().union(*(configuration.actions or () for configuration in remaining))

    def size_of(self, actions: Iterable[str]) -> int:
        """Bytes of these actions with all that they need, each blob once."""
        present = [self.actions[key] for key in actions if key in self.actions]
        blobs = {blob for action in present for blob in action.blobs}
        return sum(action.size for action in present) + sum(self.blobs.get(blob, 0) for blob in blobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """The entries that go from one disk cache."""

    toolchain: str
    actions: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()
    configurations: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePrunePlan:
    """The entries that go from all disk caches.

    `left` bytes stay; `reached` is False if they are more than allowed.
    """

    disks: tuple[PrunePlan, ...] = ()
    left: int = 0
    reached: bool = True


@dataclass
class _Decision:
    """A disk cache while its entries are chosen."""

    contents: CacheContents
    keep: dict[str, CachedAction] = field(init=False)
    dropped: list[str] = field(default_factory=list)
    users: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.keep = dict(self.contents.actions)
        # `set`: two equal outputs of an action have the same digest, and are one user of the blob.
        self.users = Counter(blob for action in self.keep.values() for blob in set(action.blobs))

    def drop(self, key: str) -> int:
        """Drop an action; return the bytes that go with it."""
        action = self.keep.pop(key)
        size = action.size
        for blob in set(action.blobs):
            # A blob goes with the last action that needs it.
            self.users[blob] -= 1
            size += 0 if self.users[blob] else self.contents.blobs.get(blob, 0)
        return size

    def result(self) -> PrunePlan:
        actions = frozenset(self.contents.actions.keys() - self.keep.keys())
        # A blob that no action needs can never be a hit: what an interrupted build left, and what went with others.
        blobs = frozenset(blob for blob in self.contents.blobs if not self.users[blob])
        size = sum(self.contents.actions[key].size for key in actions)
        return PrunePlan(
            toolchain=self.contents.toolchain,
            actions=actions,
            blobs=blobs,
            configurations=tuple(self.dropped),
            size=size + sum(self.contents.blobs[blob] for blob in blobs),
        )


def prune(
    disks: Iterable[CacheContents], *, others: int = 0, max_size: int | None = None, before: float | None = None
) -> CachePrunePlan:
    """Choose the entries that go. `others` are bytes that stay in any case; entries last used before `before` go.

    Configurations go by age as a whole. For a size, the least recently used actions go first, each with the blobs
    that only it needs. What the last build of a remaining configuration used stays.
    """
    decisions = [_Decision(contents) for contents in disks]
    if before is not None:
        for decision in decisions:
            _drop_old(decision, before)
    left = others + sum(_size(decision) for decision in decisions)
    if max_size is not None:
        # By time, toolchain and key: a dry run and the real run choose the same entries.
        for _, _, key, decision in sorted(_candidates(decisions), key=lambda candidate: candidate[:3]):
            if left <= max_size:
                break
            left -= decision.drop(key)
    return CachePrunePlan(
        disks=tuple(decision.result() for decision in decisions),
        left=left,
        reached=max_size is None or left <= max_size,
    )


def _drop_old(decision: _Decision, before: float) -> None:
    decision.dropped = [
        configuration.build_id for configuration in decision.contents.configurations if configuration.used < before
    ]
    needed = decision.contents.needed(decision.dropped)
    for key, action in decision.contents.actions.items():
        if key not in needed and action.used < before:
            decision.drop(key)


def _size(decision: _Decision) -> int:
    needed = sum(size for blob, size in decision.contents.blobs.items() if decision.users[blob])
    return needed + sum(action.size for action in decision.keep.values())


def _candidates(decisions: Iterable[_Decision]) -> Iterable[tuple[float, str, str, _Decision]]:
    """Yield the actions that may go, with the time of their last use."""
    for decision in decisions:
        needed = decision.contents.needed(decision.dropped)
        for key, action in decision.keep.items():
            if key not in needed:
                yield action.used, decision.contents.toolchain, key, decision


# --- what people type -----------------------------------------------------------------------------------------------


def read_size(text: str) -> int:
    """`20GiB`, `20G` (all binary) -> bytes; raises ProfileError."""
    _check(text, units.MEMORY, "20GiB")
    return units.parse_bytes(text)


def read_age(text: str) -> int:
    """`30d`, `12h`, `2w` -> seconds; raises ProfileError."""
    _check(text, units.AGE, "30d")
    return units.parse_age(text)


def _check(text: str, expression: str, example: str) -> None:
    # `re.ASCII`: otherwise `\d` takes the digits of every script.
    if not re.fullmatch(expression, text, re.ASCII):
        raise ProfileError(
            Problem(code="limit-unreadable", message=f"`{shown(text)}` is no limit", fix=f"write it like `{example}`")
        )
