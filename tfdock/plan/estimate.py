"""Estimate how long a build takes, from records of earlier builds, or else from a published measurement. Pure.

The estimate improves while the build runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.resources import BuildResources
from tfdock.types import Machine

if TYPE_CHECKING:
    from tfdock.resolve.resolution import Resolution

PHASES = ("image", "fetch", "compile", "seal", "verify")
#: Machines with the same number of cores are similar if the smaller memory is at least this fraction of the larger.
_SAME_MEMORY = 0.8
#: The weight of Bazel's pace is the finished fraction times this factor. From one half on, only the pace counts.
_BELIEVED = 2.0
_FIRST = 0.02  #: Bazel's pace is not used below this fraction of the actions: the first actions are small.
_EARLY = 5.0  #: Bazel's pace is also not used in the first seconds of a phase.
_MOST = 1e9  #: A record with a larger number of seconds is damaged.

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEstimate:
    """Expected seconds of each phase, and the source of the estimate as readable text."""

    seconds: Mapping[str, float]
    source: str

    @property
    def total(self) -> float:
        """The seconds of all phases together."""
        return sum(self.seconds.values())

    @property
    def document(self) -> dict[str, object]:
        """The `estimate` of documents."""
        return {"seconds": round(self.total), "source": self.source}

    def after(self, phase: str) -> float:
        """Return the seconds of all phases after this phase."""
        later = PHASES[PHASES.index(phase) + 1 :] if phase in PHASES else ()
        return sum(self.seconds.get(name, 0.0) for name in later)


def expectation(
    resolution: Resolution,
    resources: BuildResources,
    machine: Machine,
    records: Iterable[Record],
    knowledge: KnowledgeBase,
) -> PhaseEstimate | None:
    """Return the probable duration of a build; None without a similar record and without a published measurement.

    The best match is used; of several equally good records, the newest. Prefer records of this build id on a similar
    machine, then of this build id on any machine, then of the same release on a similar machine.
    """
    candidates = [
        (rank, str(record.get("finished")), record)
        for record in records
        for rank in _ranks(resolution, machine, record)
    ]
    # More jobs than cores compile no faster.
    at_once = min(resources.jobs, resources.cpus)
    if not candidates:
        return _by_default(resolution, at_once, knowledge)
    # Sort by rank and time only: records themselves have no order.
    rank, finished, record = max(candidates, key=lambda candidate: candidate[:2])
    figures = {name: _figure(record["seconds"].get(name)) for name in PHASES}
    seconds = {name: value for name, value in figures.items() if value is not None}
    jobs = _jobs(record)
    # The same actions in fewer jobs take longer in proportion.
    factor = jobs / at_once if jobs else 1.0
    if record["build_id"] != resolution.build_id:
        # Another build id of the release may have another number of GPU targets to compile.
        factor *= weight(resolution, knowledge) / (_weight_of(record) or weight(resolution, knowledge))
    seconds["compile"] = seconds.get("compile", 0.0) * factor
    build = "its build" if record["build_id"] == resolution.build_id else f"the build of {record['build_id']}"
    where = "" if rank != _ELSEWHERE else f" on {record['machine']['cpus']} cores"
    scaled = "" if round(factor, 2) == 1 else f", compiling times {factor:.2f}"
    return PhaseEstimate(seconds=seconds, source=f"{build} of {finished[:10]}{where}{scaled}")


_ALIKE, _ELSEWHERE, _HERE = 1, 2, 3


def _ranks(resolution: Resolution, machine: Machine, record: Record) -> Iterator[int]:
    """Yield the rank of a record if it is similar and complete; a higher rank is more similar."""
    where, seconds = record.get("machine"), record.get("seconds")
    if not isinstance(where, Mapping) or not isinstance(seconds, Mapping):
        return
    if not _figure(seconds.get("compile")) or not _figure(where.get("cpus")):
        return
    here = _same_class(machine, where)
    # A build with most results from a cache does not predict a build without a cache.
    bazel = figures if isinstance(figures := record.get("bazel"), Mapping) else {}
    cached = (_figure(bazel.get("hits")) or 0) > (_figure(bazel.get("executed")) or 0)
    if cached and not (here and record.get("build_id") == resolution.build_id):
        return
    if record.get("build_id") == resolution.build_id:
        yield _HERE if here else _ELSEWHERE
    # A build id begins with the release.
    elif here and str(record.get("build_id", "")).partition("-")[0] == resolution.build_id.partition("-")[0]:
        yield _ALIKE


def _same_class(machine: Machine, where: Mapping[str, Any]) -> bool:
    cpus, memory = where.get("cpus"), where.get("memory")
    if cpus != machine.cpus or not isinstance(memory, int):
        return False
    return min(memory, machine.memory) >= _SAME_MEMORY * max(memory, machine.memory)


def _jobs(record: Record) -> float | None:
    """Return the number of jobs that a build was compiled with in the end."""
    limits = record.get("resources")
    # The last limits count: after a kill for memory a build goes on with half the jobs.
    last = limits[-1] if isinstance(limits, list) and limits else None
    return _figure(last.get("jobs")) if isinstance(last, Mapping) else None


def _weight_of(record: Record) -> float | None:
    estimate = record.get("estimate")
    return _figure(estimate.get("weight")) if isinstance(estimate, Mapping) else None


def _figure(value: object) -> float | None:
    """Return a valid figure of a record, otherwise None: a record may be damaged or of another version."""
    # In Python `True` is an int.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None


def weight(resolution: Resolution, knowledge: KnowledgeBase) -> float:
    """Return the amount of code to compile, as a multiple of a build for the CPU: each GPU target adds a part."""
    part = _known(resolution, knowledge, "compile-time-per-sass")
    return 1 + (part or 0) / 100 * len(resolution.targets)


def _by_default(resolution: Resolution, jobs: int, knowledge: KnowledgeBase) -> PhaseEstimate | None:
    hours = _known(resolution, knowledge, "build-core-hours")
    if hours is None:
        return None
    compiling = hours * 3600 * weight(resolution, knowledge) / jobs
    many = f"{jobs} job{'s' * (jobs != 1)}"
    source = f"a published figure ({hours:g} core-hours for a CPU build) and {many}; no similar build recorded here"
    return PhaseEstimate(seconds={"compile": compiling}, source=source)


def _known(resolution: Resolution, knowledge: KnowledgeBase, name: str) -> float | None:
    row = knowledge.estimate(name, resolution.release, resolution.accelerator)
    return row.value if row else None


def remaining(expected: float | None, elapsed: float, done: int, total: int) -> float | None:
    """Return the seconds left of a phase; None if unknown.

    `expected` is the duration of an earlier phase; `done` of `total` are Bazel's actions so far. There are two
    estimates, by `expected` and by Bazel's pace. If both are known, the result is their weighted geometric mean: with
    a warm cache, one of them may be wrong by a factor of a hundred.
    """
    part = min(done / total, 1.0) if total else 0.0
    if part < _FIRST or elapsed < _EARLY:
        return expected - elapsed if expected is not None and expected > elapsed else None
    seconds = elapsed / part
    believed = min(1.0, _BELIEVED * part)
    if expected:
        seconds = float(expected ** (1 - believed) * seconds**believed)
    return seconds * (1 - part)
