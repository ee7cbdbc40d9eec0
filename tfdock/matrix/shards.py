"""Split cells into jobs of similar cost; cells that share a toolchain stay together. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

# Source: GitHub's documentation of `jobs.<id>.strategy.matrix`.
GITHUB_JOBS = 256  #: The most jobs that GitHub makes from one matrix.
_T = TypeVar("_T")
#: A group is split only if a job takes more than this many times its fair share. Splitting is costly: each part
#: builds its own image and fills its own cache.
_TOLERATED = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLoad:
    """The work of a cell: seconds (None if unknown), the group whose image it shares, the labels of its machine."""

    name: str
    seconds: float | None
    group: str
    runner: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Cells that one machine builds one after another. Cells of one group follow each other."""

    loads: tuple[CellLoad, ...]

    @property
    def name(self) -> str:
        """The build id of the only cell; for several cells, the first build id and the number of the others."""
        return self.loads[0].name + (f"+{len(self.loads) - 1}" if len(self.loads) > 1 else "")

    @property
    def cells(self) -> str:
        """The build ids of its cells, with spaces between them."""
        return " ".join(load.name for load in self.loads)

    @property
    def minutes(self) -> int | None:
        """The expected minutes of the job, rounded up; None if the time of any cell is unknown."""
        known = [load.seconds for load in self.loads if load.seconds is not None]
        return ceil(sum(known) / 60) if len(known) == len(self.loads) else None


def grouped(loads: Iterable[CellLoad]) -> tuple[CellLoad, ...]:
    """Return the same cells in their order, but with the cells of a group one after another."""
    return tuple(load for group in _by(loads, lambda load: load.group) for load in group)


def jobs(loads: Sequence[CellLoad], count: int | None = None) -> tuple[Job, ...]:
    """Return at most `count` jobs, but at least one for each set of labels; without `count`, one for each cell.

    The same cells give the same jobs, in the order of their first cells.
    """
    loads = grouped(loads)
    if count is None or not loads:
        return tuple(Job(loads=(load,)) for load in loads)
    cost = _cost(loads)
    machines = _by(loads, lambda load: load.runner)
    shares = _shares(machines, count, cost)
    shared = [job for some, share in zip(machines, shares, strict=True) for job in _shared_out(some, share, cost)]
    place = {load: number for number, load in enumerate(loads)}
    return tuple(sorted(shared, key=lambda job: place[job.loads[0]]))


def split(items: Sequence[_T], most: int) -> tuple[tuple[_T, ...], ...]:
    """Return the items in order, in parts of at most `most`, the limit of a service."""
    # Without items, return one empty part: the pipeline always reads the first part.
    return tuple(tuple(items[start : start + most]) for start in range(0, len(items), most)) or ((),)


_Cost = Callable[[CellLoad], float]


def _cost(loads: Sequence[CellLoad]) -> _Cost:
    """Return a function for the cost of a cell. An unknown cost counts as the average of the known costs."""
    known = [load.seconds for load in loads if load.seconds]
    usual = sum(known) / len(known) if known else 1.0
    return lambda load: usual if load.seconds is None else load.seconds


def _by(loads: Iterable[CellLoad], key: Callable[[CellLoad], Hashable]) -> list[list[CellLoad]]:
    groups: dict[Hashable, list[CellLoad]] = {}
    for load in loads:
        groups.setdefault(key(load), []).append(load)
    return list(groups.values())


def _shares(machines: Sequence[Sequence[CellLoad]], count: int, cost: _Cost) -> list[int]:
    """Return how many jobs each kind of machine gets. Each further job goes where the jobs have the most work."""
    # A job has one kind of machine, so each kind needs a job.
    shares = [1] * len(machines)
    waiting = [(-_total(some, cost), number) for number, some in enumerate(machines) if len(some) > 1]
    totals = {number: -total for total, number in waiting}
    heapq.heapify(waiting)
    for _ in range(count - len(machines)):
        if not waiting:
            break
        _, number = heapq.heappop(waiting)
        shares[number] += 1
        if shares[number] < len(machines[number]):
            heapq.heappush(waiting, (-totals[number] / shares[number], number))
    return shares


def _shared_out(loads: Sequence[CellLoad], count: int, cost: _Cost) -> list[Job]:
    """Give the costliest piece to the job with the least work. A piece is a group, or a part of a large group."""
    # No job can be shorter than its longest cell.
    fair = max(_total(loads, cost) / count, *map(cost, loads))
    pieces = [part for group in _by(loads, lambda load: load.group) for part in _parts(group, fair, cost)]
    while True:
        shards = _deal(pieces, count, cost)
        totals = [sum(_total(piece, cost) for piece in shard) for shard in shards]
        heaviest = shards[totals.index(max(totals))]
        divisible = [piece for piece in heaviest if len(piece) > 1]
        if not divisible or max(totals) <= _TOLERATED * fair:
            break
        largest = max(divisible, key=lambda piece: _total(piece, cost))
        place = pieces.index(largest)
        pieces[place : place + 1] = _halves(largest, cost)
    order = {load: number for number, load in enumerate(loads)}
    return [
        Job(loads=grouped(sorted((load for piece in shard for load in piece), key=order.__getitem__)))
        for shard in shards
        if shard
    ]


def _total(piece: Iterable[CellLoad], cost: _Cost) -> float:
    return sum(map(cost, piece))


def _parts(group: list[CellLoad], most: float, cost: _Cost) -> list[list[CellLoad]]:
    """Split a group into as few parts as possible, each of about `most` cost. Neighbours stay together."""
    total = _total(group, cost)
    # Subtract a tiny number: rounding errors of floats could otherwise add a part.
    count = max(ceil(total / most - 1e-9), 1) if most else 1
    parts: dict[int, list[CellLoad]] = {}
    before = 0.0
    for load in group:
        middle = before + cost(load) / 2
        part = min(int(middle * count / total), count - 1) if total else 0
        parts.setdefault(part, []).append(load)
        before += cost(load)
    return list(parts.values())


def _halves(piece: list[CellLoad], cost: _Cost) -> list[list[CellLoad]]:
    halves = _parts(piece, _total(piece, cost) / 2, cost)
    # One long cell may leave all cells in one part. Then split off the first cell, so that the caller's loop ends.
    return halves if len(halves) > 1 else [piece[:1], piece[1:]]


def _deal(pieces: Sequence[list[CellLoad]], count: int, cost: _Cost) -> list[list[list[CellLoad]]]:
    shards: list[list[list[CellLoad]]] = [[] for _ in range(count)]
    least = [(0.0, number) for number in range(count)]
    # Longest first: this greedy rule (LPT) is at most a third worse than the best division.
    for piece in sorted(pieces, key=lambda piece: -_total(piece, cost)):
        load, number = heapq.heappop(least)
        shards[number].append(piece)
        heapq.heappush(least, (load + _total(piece, cost), number))
    return shards
