"""Work shared by two threads, which is worth it because unpacking and hashing give up Python's lock.

No other module here knows of threads, but for the lock around what both of them touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock

__all__ = ["Job", "Lock", "run_both"]


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be done by one thread: how much it is, in bytes, and its steps, whose values nobody looks at."""

    size: int
    steps: Iterable[object]


def run_both(jobs: Sequence[Job]) -> None:
    """Do every job, the largest first, two at a time.

    The error that is raised is that of the first job that has one, in the order given, whichever came first. The
    others are then abandoned after their next step.
    """
    abandoned = Event()

    def run(job: Job) -> None:
        for _ in job.steps:
            if abandoned.is_set():
                return

    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="pair") as pool:
        largest_first = sorted(jobs, key=lambda job: job.size, reverse=True)
        futures = {id(job): pool.submit(run, job) for job in largest_first}
        try:
            for job in jobs:
                futures[id(job)].result()
        finally:
            abandoned.set()
            pool.shutdown(wait=False, cancel_futures=True)
