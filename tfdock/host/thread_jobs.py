"""Share work between two threads. Unpacking and hashing release Python's global lock, so two threads are faster.

No other module in this package uses threads, except for the lock on shared data.

Pure: no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock

__all__ = ["Lock", "ThreadJob", "run_both"]

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ThreadJob:
    """A job for one thread: its size in bytes, and its steps. The values of the steps are ignored."""

    size: int
    steps: Iterable[object]


def run_both(jobs: Iterable[ThreadJob]) -> None:
    """Do every job, the largest first, two at once. If `jobs` is an iterator, jobs are not kept after they are done.

    Of the failed jobs, the first in the given order decides the error that is raised. Jobs after a failed job do not
    start, or stop after their next step. An interruption stops all jobs in the same way.
    """
    work = _Work(jobs)
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="pair") as pool:
        try:
            running = {pool.submit(work.do), pool.submit(work.do)}
            # Wait with a timeout: a signal received by another thread does not wake the main thread, which must
            # handle it.
            while running:
                done, running = wait(running, _LOOK_SECONDS)
                for one in done:
                    one.result()
        finally:
            work.wanted = 0
    if work.error:
        raise work.error


class _Work:
    """The remaining jobs; only jobs before `wanted` in the given order still matter.

    `error` is the error of the first failed job, in the given order. Other errors are dropped at once, because each
    holds its job's memory.
    """

    def __init__(self, jobs: Iterable[ThreadJob]) -> None:
        # The largest job, begun last, would run alone at the end.
        self._left = deque(sorted(enumerate(jobs), key=lambda job: job[1].size, reverse=True))
        self.wanted = len(self._left)
        self.error: BaseException | None = None
        self._lock = Lock()

    def do(self) -> None:
        """Do one job after another until none is left."""
        while next_job := self._next():
            index, job = next_job
            try:
                for _ in job.steps:
                    # Checked at each step: another thread's failure makes the rest of a large job useless.
                    if index >= self.wanted:
                        break
            except BaseException as error:
                self._failed(index, error)

    def _next(self) -> tuple[int, ThreadJob] | None:
        with self._lock:
            while self._left:
                index, job = self._left.popleft()
                if index < self.wanted:
                    return index, job
        return None

    def _failed(self, index: int, error: BaseException) -> None:
        with self._lock:
            # Of several failures the first in order counts, so that each run reports the same one.
            if index < self.wanted:
                self.wanted, self.error = index, error
