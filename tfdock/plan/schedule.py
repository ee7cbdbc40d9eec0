"""Several builds side by side within one machine: how many at a time, and how much of it each one gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.resources import BuildResources, least_memory, share, usable
from tfdock.types import Machine

_CORES_A_BUILD = 4
"""With fewer cores a build gains more from each than from company."""
_AT_LEAST = 2
"""At once even on a small machine: while one links or is verified, another has something to compile."""


@dataclass(frozen=True, slots=True)
class MachineShare:
    """A part of a machine: jobs, and bytes of memory."""

    jobs: int
    memory: int


def at_once(plans: Sequence[BuildPlan], machine: Machine, asked: int | None) -> int:
    """How many of the builds run at a time: as many as were asked for or, by default, as are worth it.

    Never more than fit: in each of as many equal shares there is room for Bazel and one job.
    """
    worth = max(machine.cpus // _CORES_A_BUILD, min(_AT_LEAST, machine.cpus))
    count = min(len(plans), asked if asked is not None else worth)
    least = max((least_memory(plan.resolution.release.cost) for plan in plans), default=0)
    while count > 1 and usable(machine.memory) // count < least:
        count -= 1
    return max(count, 1)


def next_share(machine: Machine, taken: Sequence[MachineShare], more: int) -> MachineShare:
    """The part that one of `more` builds gets of what the others, which have theirs, leave free.

    All memory together stays within the machine's, and all jobs within its cores, but that everybody has one.
    """
    jobs = machine.cpus - sum(one.jobs for one in taken)
    memory = usable(machine.memory) - sum(one.memory for one in taken)
    return MachineShare(jobs=max(1, jobs // max(more, 1)), memory=max(memory // max(more, 1), 0))


def within(plan: BuildPlan, machine: Machine, part: MachineShare) -> BuildResources:
    """The limits of a build that has that part of a machine. Cores are the kernel's to share out, by who has work."""
    return share(plan.asked, plan.resolution.release.cost, machine, jobs=part.jobs, memory=part.memory)
