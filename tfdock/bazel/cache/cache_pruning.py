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
    """An entry of the action cache. `size` in bytes, `used` in Unix seconds, `blobs` what it needs of the others."""

    size: int
    used: float
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the last build of a build id took from a cache or put there; None where that could not be seen."""

    build_id: str
    used: float
    actions: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContents:
    """One disk cache: actions by key, sizes of blobs by digest, and the configurations that are built with it."""

    toolchain: str
    actions: Mapping[str, CachedAction]
    blobs: Mapping[str, int]
    configurations: tuple[Configuration, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(action.size for action in self.actions.values()) + sum(self.blobs.values())

    def needed(self, but: Collection[str]) -> frozenset[str]:
        """The actions that the last build of some configuration used, those of `but` left out.

        All actions, where it is not known of one what it used.
        """
        stay = [one for one in self.configurations if one.build_id not in but]
        if any(one.actions is None for one in stay):
            return frozenset(self.actions)
        return frozenset().union(*(one.actions or () for one in stay))

    def size_of(self, actions: Iterable[str]) -> int:
        """Bytes of these actions with all that they need, each blob once."""
        present = [self.actions[key] for key in actions if key in self.actions]
        blobs = {blob for action in present for blob in action.blobs}
        return sum(action.size for action in present) + sum(self.blobs.get(blob, 0) for blob in blobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What goes from one disk cache."""

    toolchain: str
    actions: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()
    configurations: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePrunePlan:
    """What goes in all. `left` are the bytes that stay; `reached` is False where they are more than was asked for."""

    disks: tuple[PrunePlan, ...] = ()
    left: int = 0
    reached: bool = True


@dataclass
class _Work:
    """A disk cache while it is decided about."""

    contents: CacheContents
    keep: dict[str, CachedAction] = field(init=False)
    dropped: list[str] = field(default_factory=list)
    users: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.keep = dict(self.contents.actions)
        self.users = Counter(blob for action in self.keep.values() for blob in set(action.blobs))

    def drop(self, key: str) -> int:
        """Let an action go; the bytes that go with it."""
        action = self.keep.pop(key)
        size = action.size
        for blob in set(action.blobs):
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
    """Decide. `others` are bytes that stay in any case; `before`: what was used last before that moment goes.

    Configurations go by age as a whole. For a size, the least recently used actions go first, each with the blobs
    that only it needs, but none that the last build of a remaining configuration used.
    """
    works = [_Work(contents) for contents in disks]
    if before is not None:
        for work in works:
            _drop_old(work, before)
    left = others + sum(_size(work) for work in works)
    if max_size is not None:
        for _, _, key, work in sorted(_candidates(works), key=lambda one: one[:3]):
            if left <= max_size:
                break
            left -= work.drop(key)
    return CachePrunePlan(
        disks=tuple(work.result() for work in works), left=left, reached=max_size is None or left <= max_size
    )


def _drop_old(work: _Work, before: float) -> None:
    work.dropped = [one.build_id for one in work.contents.configurations if one.used < before]
    kept = work.contents.needed(work.dropped)
    for key, action in work.contents.actions.items():
        if key not in kept and action.used < before:
            work.drop(key)


def _size(work: _Work) -> int:
    needed = sum(size for blob, size in work.contents.blobs.items() if work.users[blob])
    return needed + sum(action.size for action in work.keep.values())


def _candidates(works: Iterable[_Work]) -> Iterable[tuple[float, str, str, _Work]]:
    """The actions that may go, with when they were used last."""
    for work in works:
        needed = work.contents.needed(work.dropped)
        for key, action in work.keep.items():
            if key not in needed:
                yield action.used, work.contents.toolchain, key, work


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
    if not re.fullmatch(expression, text, re.ASCII):
        raise ProfileError(
            Problem(code="limit-unreadable", message=f"`{shown(text)}` is no limit", fix=f"write it like `{example}`")
        )
