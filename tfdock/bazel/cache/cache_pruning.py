"""Choose the entries of Bazel's disk caches to remove: the least recently used ones. Pure: no I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tfdock.errors import ProfileError
from tfdock.profile import units
from tfdock.profile.yaml_nodes import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAction:
    """An entry of the action cache, with the `blobs` that it needs. `size` is in bytes, `used` in Unix seconds."""

    size: int
    used: float
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContents:
    """One disk cache: actions by key, and sizes of blobs by digest."""

    toolchain: str
    actions: Mapping[str, CachedAction]
    blobs: Mapping[str, int]

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(action.size for action in self.actions.values()) + sum(self.blobs.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """The entries to remove from one disk cache."""

    toolchain: str
    actions: frozenset[str]
    blobs: frozenset[str]
    size: int


@dataclass
class _Decision:
    """A disk cache while its entries are chosen."""

    contents: CacheContents
    keep: dict[str, CachedAction] = field(init=False)
    users: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.keep = dict(self.contents.actions)
        # `set`: two equal outputs of an action have the same digest, and count as one user of the blob.
        self.users = Counter(blob for action in self.keep.values() for blob in set(action.blobs))

    @property
    def size(self) -> int:
        """Bytes of the remaining actions and of the blobs that they need."""
        needed = sum(size for blob, size in self.contents.blobs.items() if self.users[blob])
        return needed + sum(action.size for action in self.keep.values())

    def drop(self, key: str) -> int:
        """Remove an action; return the bytes that this frees."""
        action = self.keep.pop(key)
        size = action.size
        for blob in set(action.blobs):
            # A blob is removed with the last action that needs it.
            self.users[blob] -= 1
            size += 0 if self.users[blob] else self.contents.blobs.get(blob, 0)
        return size

    def result(self) -> PrunePlan:
        actions = frozenset(self.contents.actions.keys() - self.keep.keys())
        # A blob without an action can never be a hit. Interrupted builds leave such blobs, and so does pruning.
        blobs = frozenset(blob for blob in self.contents.blobs if not self.users[blob])
        size = sum(self.contents.actions[key].size for key in actions)
        return PrunePlan(
            toolchain=self.contents.toolchain,
            actions=actions,
            blobs=blobs,
            size=size + sum(self.contents.blobs[blob] for blob in blobs),
        )


def prune(
    disks: Iterable[CacheContents], *, others: int = 0, max_size: int | None = None, before: float | None = None
) -> tuple[tuple[PrunePlan, ...], int]:
    """Choose the entries to remove. Also return the bytes that remain. `others` are bytes that always remain.

    Actions that were last used before the time `before` are removed. To reach `max_size`, the least recently used
    actions are removed first, each with the blobs that no other action needs.
    """
    decisions = [_Decision(contents) for contents in disks]
    # Sort by time, toolchain and key: a dry run and the real run choose the same entries.
    candidates = sorted(
        (
            (action.used, decision.contents.toolchain, key, decision)
            for decision in decisions
            for key, action in decision.contents.actions.items()
        ),
        key=lambda candidate: candidate[:3],
    )
    left = others + sum(decision.size for decision in decisions)
    for used, _, key, decision in candidates:
        if (before is None or used >= before) and (max_size is None or left <= max_size):
            break
        left -= decision.drop(key)
    return tuple(decision.result() for decision in decisions), left


# --- what people type -----------------------------------------------------------------------------------------------


def read_size(text: str) -> int:
    """Return the bytes of a size such as `20GiB` or `20G` (both binary); raise ProfileError if it is invalid."""
    _check(text, units.MEMORY, "20GiB")
    return units.parse_bytes(text)


def read_age(text: str) -> int:
    """Return the seconds of an age such as `30d`, `12h` or `2w`; raise ProfileError if it is invalid."""
    _check(text, units.AGE, "30d")
    return units.parse_age(text)


def _check(text: str, expression: str, example: str) -> None:
    # `re.ASCII`: otherwise `\d` takes the digits of every script.
    if not re.fullmatch(expression, text, re.ASCII):
        raise ProfileError.of("limit-unreadable", f"`{shown(text)}` is no limit", f"write it like `{example}`")
