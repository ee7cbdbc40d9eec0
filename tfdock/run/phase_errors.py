"""What went wrong in a phase, in one error: the phase, the log, the first line that matters, the next command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.bazel import output
from tfdock.errors import (
    BuildFailed,
    DiskFull,
    EngineLost,
    Incompatible,
    NetworkError,
    OutOfMemory,
    Problem,
    TfdockError,
)
from tfdock.host.files import file_error, full_disk, gib
from tfdock.host.hardware import free_disk
from tfdock.knowledge.release_rows import Cost
from tfdock.plan.resources import GIB, BuildResources, more_memory
from tfdock.run.log_text import HEAP, MemoryKill, killed

# Exit statuses of our own scripts (dockerfiles/scripts): above Bazel's, below the shell's.
_OTHER_BAZEL, _MOVED_PIN, _NO_WHEEL, _NO_SOURCE = 64, 65, 66, 68
_BAZEL_OUT_OF_MEMORY = 33
_STOPPED = (8, 130, 137, 143)
"""Bazel was interrupted, or a shell or all of a container got SIGINT, SIGKILL or SIGTERM."""
_KILLED = 137
_FULL = 32 << 20
"""Free bytes below which a disk is taken to be what made a build fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Turns what one phase left into the error to show: its last lines, and those among all that look like errors."""

    phase: str
    resources: BuildResources
    cost: Cost
    log: Path | None
    tail: tuple[str, ...]
    errors: tuple[str, ...]
    folders: Mapping[str, Path]

    def completed(self, error: TfdockError | OSError) -> TfdockError:
        """The error as the user shall see it: what it means in this phase, with the phase and the log."""
        known = self.of_file(error) if isinstance(error, OSError) else error
        if isinstance(known, BuildFailed) and known.problems[0].code == "image-step-failed":
            known = self.of_step(known)
        known.problems = tuple(self._completed(problem) for problem in known.problems)
        return known

    def _completed(self, problem: Problem) -> Problem:
        phase = f"phase {self.phase}"
        message = problem.message if phase in problem.message else f"{phase}: {problem.message}"
        return replace(problem, message=f"{message}\n  log: {self.log}")

    def of_container(self, status: int | None, *, memory: bool) -> TfdockError:
        """The error for a container that did not end well; `memory`: something in it was killed for memory."""
        words = killed((*self.errors, *self.tail))
        of_bazel = status == _BAZEL_OUT_OF_MEMORY or (words is not None and words.what == HEAP)
        if memory or of_bazel or words:
            return self._out_of_memory(status, words, memory=memory, of_bazel=of_bazel)
        if status in _STOPPED:  # whoever asked us to stop is told something else
            how = "killed" if status == _KILLED else f"stopped (exit status {status})"
            return EngineLost(
                Problem(
                    code="container-killed",
                    message=f"the container of phase {self.phase} was {how} from outside, and not for memory",
                    fix="was the engine restarted? Run the same command again: it goes on from the cache",
                )
            )
        # On a full disk a compiler's own words are lost too: Bazel keeps them in a file until the action ends.
        if output.speaks_of_full_disk(self.tail) or self._is_full:
            return self._full_disk()
        if self.phase == "fetch" and output.speaks_of_network(self.tail):
            return NetworkError(
                Problem(
                    code="download-failed",
                    message=f"phase fetch could not download what the build needs{self._first_error}",
                    fix="check the network and proxies, then run the same command again: what arrived is kept",
                )
            )
        what = "the build made no wheel" if status == _NO_WHEEL else f"Bazel failed (exit status {status})"
        return BuildFailed(
            Problem(
                code=f"{self.phase}-failed",
                message=f"{what} in phase {self.phase}{self._first_error}",
                fix="read the log from its first error on; `tfdock shell PROFILE` opens the same image to try things",
            ),
            status=status,
        )

    def _out_of_memory(
        self, status: int | None, words: MemoryKill | None, *, memory: bool, of_bazel: bool
    ) -> OutOfMemory:
        """Who it was: Bazel's heap by itself, or one that the kernel killed, for the container or the machine."""
        jobs, phase = self.resources.jobs, f"phase {self.phase}"
        who = words.what if words else "the container" if status == _KILLED else "a process"
        if of_bazel:
            message = f"{HEAP} of {gib(self.resources.heap)} was too small in {phase} (exit status {status})"
        elif memory:
            message = f"the kernel killed {who} of {phase} for memory"
        else:
            message = f"{who} of {phase} was killed, though not for the container's memory: the machine's ran out"
        said = f", `{words.said[:200]}`" if words else ""
        return OutOfMemory(
            Problem(
                code="out-of-memory",
                message=f"{message}: {jobs} job{'s' if jobs != 1 else ''} in {gib(self.resources.memory)}{said}",
                fix=f"{self._less}; then run the same command again, it goes on from the cache",
            ),
            of_bazel=of_bazel,
        )

    @property
    def _less(self) -> str:
        """What keeps a build within its memory."""
        if (jobs := self.resources.jobs) > 1:
            return f"set `resources: {{jobs: {jobs // 2}}}`, or give more memory"
        return (
            f"give it {more_memory(self.resources, self.cost) // GIB} GiB of memory or more: it has one job already"
        )

    def of_step(self, error: BuildFailed) -> TfdockError:
        """The error for a failed step of the image build, told apart by the exit statuses of our own scripts."""
        problem = error.problems[0]
        message = f"phase image: {problem.message}{self._first_error}"
        if error.status == _MOVED_PIN:
            fix = "pin the commit or sha256 you mean, or remove the pin"
            return Incompatible(Problem(code="pin-moved", message=message, fix=fix))
        if error.status == _NO_SOURCE:
            fix = "check the network, or name another source: `tensorflow: {release: …, git: …}` or `path:`"
            return NetworkError(Problem(code="source-unreachable", message=message, fix=fix))
        if output.speaks_of_full_disk(self.tail):
            return self._full_disk()
        if output.speaks_of_network(self.tail):
            fix = "check the network and proxies, then run the same command again: finished steps are kept"
            return NetworkError(Problem(code="download-failed", message=message, fix=fix))
        fix = "read the log; `tfdock render PROFILE -o context` writes what was built, to try it by hand"
        if error.status == _OTHER_BAZEL:
            fix = "name a base image that has it (`base:`), or the version that is there (`bazel: {version: …}`)"
        return BuildFailed(Problem(code=problem.code, message=message, fix=fix), status=error.status)

    def of_file(self, error: OSError) -> TfdockError:
        """The error for a file of ours that could not be written or read."""
        return file_error(error, self.folders)

    def _full_disk(self) -> DiskFull:
        return full_disk(self.folders)

    @property
    def _is_full(self) -> bool:
        return any(free is not None and free < _FULL for free in map(free_disk, self.folders.values()))

    @property
    def _first_error(self) -> str:
        said = [line for line in self.tail if line.strip()]
        first = output.first_error(self.errors) or (said[-1].strip()[:300] if said else "")
        return f": {first}" if first else ""
