"""The part of a machine that a build uses, alone or beside other builds: jobs, Bazel's own memory, container limits.

Bazel does not see control groups, and its estimates for a compile or a link are far too low for TensorFlow
(bazelbuild/bazel#17368: 50 MB for a link that took 8 GB). No Bazel version of a TensorFlow release can limit links
separately from compilations, so the number of jobs limits the memory of both.

The resources of a build are computed three times. Planning uses this machine (`Preparer.resolve_written`). The start
and the compile phase use the build's share of the engine's machine (`BuildSession.fitted`). A retry after an
out-of-memory kill uses `after_memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from tfdock.errors import Incompatible, Problem, Suggestion
from tfdock.knowledge.release_rows import Cost
from tfdock.profile.units import parse_bytes, parse_seconds
from tfdock.types import Machine

if TYPE_CHECKING:
    from tfdock.profile.profile import Resources as Requested

MIB = 1 << 20
GIB = 1 << 30
_RESERVE_MEMORY = 1 * GIB  #: Bytes of memory that a build container leaves to the machine.
LEAST_HEAP = 1 * GIB  #: The smallest Java heap of Bazel for a tree of TensorFlow's size.
#: The largest heap below `_MUCH`. By default, Java would take a quarter of the memory and not return it.
_ENOUGH_HEAP = 2 * GIB
#: With more memory than this, a heap for TensorFlow's whole analysis leaves enough for the compilers.
#:
#: tensorflow/tensorflow issue 89272: 823 packages, 58,036 targets, 34,286 actions.
_MUCH, _MUCH_HEAP = 24 * GIB, 4 * GIB
_PIDS = 16384
_CORES_A_BUILD = 4  #: With fewer cores, one build alone is faster than parallel builds.
_AT_LEAST = 2  #: Builds at once even on a small machine: while one links or is verified, another compiles.


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResources:
    """The limits of the container that compiles."""

    jobs: int  #: Jobs of Bazel's.
    cpus: int  #: Cores.
    memory: int  #: Bytes of memory.
    disk: int  #: Bytes of disk that must be free.
    pids: int  #: Processes and threads.
    time_limit: int | None  #: Seconds; null without a limit.
    heap: int = LEAST_HEAP  #: Bytes of Bazel's Java heap.

    @property
    def for_actions(self) -> int:
        """Bytes that remain for compilers and linkers."""
        return max(self.memory - self.heap, 0)


@dataclass(frozen=True, slots=True)
class MachineShare:
    """A part of a machine: jobs, and bytes of memory."""

    jobs: int
    memory: int


def size(requested: Requested, cost: Cost, machine: Machine) -> BuildResources:
    """Return jobs and memory for the machine. TensorFlow's compile jobs need much memory: `nproc` jobs rarely fit.

    Raises Incompatible if the profile requests less memory than Bazel and one job need.
    """
    memory = usable(machine.memory) if requested.memory == "auto" else parse_bytes(requested.memory)
    # `auto` is not refused here: one job may fit with swap, and the check before a build reports this.
    if requested.memory != "auto" and memory < least_memory(cost):
        way = Suggestion(text="`resources: {memory: auto}`", change={"resources.memory": "auto"})
        problem = Problem(
            "memory-too-small",
            f"`resources.memory: {requested.memory}` is less than Bazel and one job need",
            why=f"{LEAST_HEAP // MIB} MiB for Bazel, {cost.memory_per_job_mib} MiB for a job",
            fixes=[f"give at least {least_memory(cost) // MIB}MiB", way.text],
            ways=(way,),
            field="resources.memory",
        )
        raise Incompatible(problem)
    return _sized(requested, cost, cpus=machine.cpus, memory=memory)


def share(requested: Requested, cost: Cost, machine: Machine, part: MachineShare) -> BuildResources:
    """Return the resources for a part of a machine; the part limits the profile's own jobs and memory.

    The kernel divides the cores among the builds by load.
    """
    # `auto` takes the whole share. A number can only make it smaller.
    wanted = parse_bytes(requested.memory) if requested.memory != "auto" else part.memory
    sized = _sized(requested, cost, cpus=machine.cpus, memory=min(wanted, part.memory))
    return replace(sized, jobs=min(sized.jobs, part.jobs))


def at_once(costs: Sequence[Cost], machine: Machine, asked: int | None) -> int:
    """Return how many of the builds run in parallel: the requested number, or the best number by default.

    It is limited so that each build's equal share has enough memory for Bazel and one job.
    """
    worth = max(machine.cpus // _CORES_A_BUILD, min(_AT_LEAST, machine.cpus))
    builds = min(len(costs), asked if asked is not None else worth)
    least = max(map(least_memory, costs), default=0)
    # If the memory is too small for each build, run fewer at a time.
    while builds > 1 and usable(machine.memory) // builds < least:
        builds -= 1
    return max(builds, 1)


def next_share(machine: Machine, running: Sequence[MachineShare], more: int) -> MachineShare:
    """Return the share of the machine's free resources for one of `more` builds.

    The builds together use at most the machine's memory, and at most one job for each core; but every build has at
    least one job.
    """
    jobs = machine.cpus - sum(part.jobs for part in running)
    memory = usable(machine.memory) - sum(part.memory for part in running)
    # A build without a job would never end. The kernel divides a core that two builds use.
    return MachineShare(jobs=max(1, jobs // max(more, 1)), memory=max(memory // max(more, 1), 0))


def usable(memory: int) -> int:
    """Return the part of a machine's memory, in bytes, that its build containers may use."""
    # On a small machine the reserve would leave the build less than half of the memory.
    return max(memory - _RESERVE_MEMORY, memory // 2)


def least_memory(cost: Cost) -> int:
    """Return the fewest bytes of memory in which one job at a time always fits."""
    return LEAST_HEAP + cost.memory_per_job_mib * MIB


def _sized(requested: Requested, cost: Cost, *, cpus: int, memory: int) -> BuildResources:
    cpus = cpus if requested.cpus == "auto" else requested.cpus
    heap = heap_in(memory)
    return BuildResources(
        jobs=jobs_in(memory - heap, cost, cpus) if requested.jobs == "auto" else requested.jobs,
        cpus=cpus,
        memory=memory,
        disk=cost.disk_gib * GIB if requested.disk == "auto" else parse_bytes(requested.disk),
        pids=_PIDS,
        time_limit=parse_seconds(requested.time_limit) if requested.time_limit else None,
        heap=heap,
    )


def heap_in(memory: int) -> int:
    """Return the bytes of Bazel's Java heap in a container with `memory` bytes."""
    enough = _MUCH_HEAP if memory >= _MUCH else _ENOUGH_HEAP
    return min(max(memory // 6, LEAST_HEAP), enough, max(memory // 2, MIB))


def jobs_in(memory: int, cost: Cost, cpus: int) -> int:
    """Return how many jobs fit beside one large link.

    Two such links at once are rare, and at worst cause a retry.
    """
    job = cost.memory_per_job_mib * MIB
    link = max(cost.memory_per_link_mib * MIB, job)
    # A link replaces one job, so the other jobs must fit into the remaining memory.
    return max(1, min(cpus, 1 + (memory - link) // job))


def after_memory(resources: BuildResources, *, of_bazel: bool) -> BuildResources | None:
    """Return the resources for a retry after a process was killed because memory ran out; None if nothing can shrink.

    `of_bazel`: Bazel's own heap was too small.
    """
    # One job that does not fit needs more memory; a retry would be killed again.
    if resources.jobs == 1 and not of_bazel:
        return None
    # More heap leaves less to the compilers, so their jobs halve as well.
    heap = min(2 * resources.heap, resources.memory // 2) if of_bazel else resources.heap
    again = replace(resources, jobs=max(1, resources.jobs // 2), heap=heap)
    return again if again != resources else None


def more_memory(resources: BuildResources, cost: Cost) -> int:
    """Return the memory for a retry, in bytes (whole GiB), if a single job needed too much.

    It is Bazel's heap plus the largest link, or 1.5 times the last limit if that is more.
    """
    link = max(cost.memory_per_link_mib, cost.memory_per_job_mib) * MIB
    wanted = next(size for size in count(GIB, GIB) if size - heap_in(size) >= link)
    return max(wanted, -(-resources.memory * 3 // (2 * GIB)) * GIB if resources.memory >= wanted else 0)


def least_free(total: int) -> int:
    """Return the bytes that must stay free on a disk of this size while a build runs on it.

    This is a fiftieth of the disk, but at least 1 GiB and at most 4 GiB, and never more than a twentieth of the disk.
    A fiftieth alone would be too little on a small disk, and needlessly much on a large disk.
    """
    return min(total // 20, min(max(total // 50, GIB), 4 * GIB))
