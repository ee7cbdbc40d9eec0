"""Run several builds at once. Each thread runs one build, and the builds share the machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.resources import BuildResources, MachineShare, next_share, share
from tfdock.types import BuildId, Machine

_T = TypeVar("_T")
_LOOK = 0.2  #: Seconds after which the main thread wakes up. Only the main thread gets signals.


@dataclass
class Ledger:
    """The shares of the machine. `count` builds run at once. `unserved` are the builds without a share."""

    count: int
    unserved: set[BuildId]
    _taken: dict[BuildId, MachineShare] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allot(self, plan: BuildPlan, machine: Machine) -> BuildResources:
        """Return a build's share. A later call may return a larger share, if builds ended and no build waits."""
        with self._lock:
            own = self._taken.pop(plan.build_id, None)
            self.unserved.discard(plan.build_id)
            shares = list(self._taken.values())
            # Share the rest with the builds that may still start beside this one. The last build gets the whole rest.
            part = next_share(machine, shares, min(self.count - len(shares), len(self.unserved) + 1))
            self._taken[plan.build_id] = part if own is None or part.memory >= own.memory else own
            return share(plan.requested, plan.resolution.release.cost, machine, self._taken[plan.build_id])

    def end(self, plan: BuildPlan) -> None:
        """Free the share of a build that ended."""
        with self._lock:
            self.unserved.discard(plan.build_id)
            self._taken.pop(plan.build_id, None)


def build_side_by_side(plans: Sequence[BuildPlan], ledger: Ledger, build: Callable[[int], _T]) -> list[_T]:
    """Call `build` with the index of each plan, `ledger.count` calls at once. Return the results in order.

    `build` returns a build's result, and raises only because of a bug. The first such error is raised at the end.
    """
    places: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(len(plans)):
        places.put(place)
    results: dict[int, _T] = {}
    mistakes: list[BaseException] = []

    def work() -> None:
        while True:
            try:
                place = places.get_nowait()
            except queue.Empty:
                return
            try:
                results[place] = build(place)
            # An error that ends a thread would vanish with it, and the build would have no result.
            except BaseException as mistake:
                mistakes.append(mistake)
            finally:
                ledger.end(plans[place])

    # Daemons: the third Ctrl-C ends the program, whatever these threads wait for.
    threads = [threading.Thread(target=work, name=f"tfdock-build-{n}", daemon=True) for n in range(ledger.count)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(_LOOK)
    if mistakes:
        raise mistakes[0]
    return [results[place] for place in range(len(plans))]
