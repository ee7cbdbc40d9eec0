"""Several builds side by side on one machine: how many at a time, and which part each build gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.resources import BuildResources, least_memory, share, usable
from tfdock.types import Machine

_CORES_A_BUILD = 4  #: With fewer cores a build gains more from each than from company.
_AT_LEAST = 2  #: At once even on a small machine: while one links or is verified, another has something to compile.


@dataclass(frozen=True, slots=True)
class MachineShare:
    """A part of a machine: jobs, and bytes of memory."""

    jobs: int
    memory: int


def at_once(plans: Sequence[BuildPlan], machine: Machine, asked: int | None) -> int:
    """Return how many of the builds run at a time: as many as requested or, by default, as is worthwhile.

    Never more than fit: each of as many equal shares has room for Bazel and one job.
    """
    # Below four cores a build gains more from each core than from a second build.
    worth = max(machine.cpus // _CORES_A_BUILD, min(_AT_LEAST, machine.cpus))
    count = min(len(plans), asked if asked is not None else worth)
    least = max((least_memory(plan.resolution.release.cost) for plan in plans), default=0)
    # Too little memory for each means fewer at a time.
    while count > 1 and usable(machine.memory) // count < least:
        count -= 1
    return max(count, 1)


def next_share(machine: Machine, running: Sequence[MachineShare], more: int) -> MachineShare:
    """Return the part of the machine's free resources that one of `more` builds gets.

    All memory together stays within the machine's. So do all jobs within its cores, except that every build has one.
    """
    jobs = machine.cpus - sum(part.jobs for part in running)
    memory = usable(machine.memory) - sum(part.memory for part in running)
    # A build without a job would never end. The kernel shares out a core that two builds use.
    return MachineShare(jobs=max(1, jobs // max(more, 1)), memory=max(memory // max(more, 1), 0))


def within(plan: BuildPlan, machine: Machine, part: MachineShare) -> BuildResources:
    """Return the limits of a build with that part of a machine. The kernel shares out the cores by load."""
    return share(plan.asked, plan.resolution.release.cost, machine, jobs=part.jobs, memory=part.memory)
