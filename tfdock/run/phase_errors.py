"""Make the error of a failed phase: the phase, the log, the first line that matters, the next command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tfdock.bazel import output
from tfdock.errors import (
    BuildFailed,
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
from tfdock.run.log_text import HEAP, MemoryKill, find_memory_kill

# Exit statuses of our own scripts (dockerfiles/scripts): above Bazel's, below the shell's.
_OTHER_BAZEL, _MOVED_PIN, _NO_WHEEL, _NO_SOURCE = 64, 65, 66, 68
# Bazel's exit code 33: it ran out of memory and crashed.
_BAZEL_OUT_OF_MEMORY = 33
#: Exit statuses: Bazel was interrupted, or a shell or all of a container got SIGINT, SIGKILL or SIGTERM.
_STOPPED = (8, 130, 137, 143)
# A shell's status for SIGKILL: 128 + 9.
_KILLED = 137
_FULL = 32 << 20  #: Free bytes below which a full disk counts as the cause of a failure.


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseErrors:
    """Makes the errors of one phase, from the last lines of its output and the lines that look like errors."""

    phase: str
    resources: BuildResources
    cost: Cost
    log: Path | None
    tail: tuple[str, ...]
    errors: tuple[str, ...]
    folders: Mapping[str, Path]

    def complete(self, error: TfdockError | OSError) -> TfdockError:
        """Return the error that the user sees: its meaning in this phase, with the phase and the log."""
        failure = file_error(error, self.folders) if isinstance(error, OSError) else error
        if isinstance(failure, BuildFailed) and failure.problems[0].code == "image-step-failed":
            failure = self.image_step_error(failure)
        failure.problems = tuple(self._complete_problem(problem) for problem in failure.problems)
        return failure

    def _complete_problem(self, problem: Problem) -> Problem:
        phase = f"phase {self.phase}"
        # Some errors name their phase already.
        message = problem.message if phase in problem.message else f"{phase}: {problem.message}"
        return replace(problem, message=f"{message}\n  log: {self.log}")

    def container_error(self, status: int | None, *, memory: bool) -> TfdockError:
        """Return the error for a container that failed.

        `memory`: a process in it was killed because memory ran out.
        """
        kill = find_memory_kill((*self.errors, *self.tail))
        of_bazel = status == _BAZEL_OUT_OF_MEMORY or (kill is not None and kill.program == HEAP)
        # Check memory first: after a kill, the output may look like any other failure.
        if memory or of_bazel or kill:
            return self._out_of_memory(status, kill, memory=memory, of_bazel=of_bazel)
        if status in _STOPPED:  # a stop by the user has another error
            how = "killed" if status == _KILLED else f"stopped (exit status {status})"
            return EngineLost.of(
                "container-killed",
                f"the container of phase {self.phase} was {how} from outside, and not because memory ran out",
                "was the engine restarted? Run the same command again: it resumes from the cache",
            )
        # On a full disk a compiler's messages are lost too: Bazel keeps them in a file until the action ends.
        if output.speaks_of_full_disk(self.tail) or self._is_full:
            return full_disk(self.folders)
        # Only this phase has a network. Elsewhere such words belong to something else.
        if self.phase == "fetch" and output.speaks_of_network(self.tail):
            return NetworkError.of(
                "download-failed",
                f"phase fetch could not download a file that the build needs{self._first_error}",
                "check the network and proxies, then run the same command again: finished downloads are kept",
            )
        outcome = "the build made no wheel" if status == _NO_WHEEL else f"Bazel failed (exit status {status})"
        # Bazel names only the action: `gcc failed: error executing command`.
        compiler_errors = output.compiler_errors(self.errors)
        reason = ": " + "\n  ".join(compiler_errors) if compiler_errors else self._first_error
        return BuildFailed(
            Problem(
                f"{self.phase}-failed",
                f"{outcome} in phase {self.phase}{reason}",
                "read the log from its first error; `tfdock shell PROFILE` opens the same image for experiments",
                compiler_errors=compiler_errors,
            ),
            status=status,
        )

    def _out_of_memory(
        self, status: int | None, kill: MemoryKill | None, *, memory: bool, of_bazel: bool
    ) -> OutOfMemory:
        """Return the error with its cause: Bazel's heap, or a process killed in the container or on the machine."""
        jobs, phase = self.resources.jobs, f"phase {self.phase}"
        who = kill.program if kill else "the container" if status == _KILLED else "a process"
        if of_bazel:
            message = f"{HEAP} of {gib(self.resources.heap)} was too small in {phase} (exit status {status})"
        elif memory:
            message = f"the kernel killed {who} of {phase} because memory ran out"
        else:
            message = f"{who} of {phase} was killed because the memory of the machine, not of the container, ran out"
        quote = f", `{kill.message[:200]}`" if kill else ""
        return OutOfMemory(
            Problem(
                "out-of-memory",
                f"{message}: {jobs} job{'s' if jobs != 1 else ''} in {gib(self.resources.memory)}{quote}",
                f"{self._memory_fix}; then run the same command again, it resumes from the cache",
            ),
            of_bazel=of_bazel,
        )

    @property
    def _memory_fix(self) -> str:
        """The fix that keeps a build within its memory."""
        # Fewer jobs only cost time, so they come before more memory.
        if (jobs := self.resources.jobs) > 1:
            return f"set `resources: {{jobs: {jobs // 2}}}`, or give more memory"
        return (
            f"give the build {more_memory(self.resources, self.cost) // GIB} GiB of memory or more: it runs only "
            "one job already"
        )

    def image_step_error(self, error: BuildFailed) -> TfdockError:
        """Return the error for a failed step of the image build, by the exit status of our own scripts."""
        problem = error.problems[0]
        message = f"phase image: {problem.message}{self._first_error}"
        if error.status == _MOVED_PIN:
            fix = "pin the right commit or sha256, or remove the pin"
            return Incompatible.of("pin-moved", message, fix)
        if error.status == _NO_SOURCE:
            fix = "check the network, or name another source: `tensorflow: {release: …, git: …}` or `path:`"
            return NetworkError.of("source-unreachable", message, fix)
        if output.speaks_of_full_disk(self.tail):
            return full_disk(self.folders)
        if output.speaks_of_network(self.tail):
            fix = "check the network and proxies, then run the same command again: finished steps are kept"
            return NetworkError.of("download-failed", message, fix)
        fix = "read the log; `tfdock render PROFILE -o context` writes the build context, for runs by hand"
        if error.status == _OTHER_BAZEL:
            fix = "name a base image with this version (`base:`), or the installed version (`bazel: {version: …}`)"
        return BuildFailed(Problem(problem.code, message, fix), status=error.status)

    @property
    def _is_full(self) -> bool:
        return any(free is not None and free < _FULL for free in map(free_disk, self.folders.values()))

    @property
    def _first_error(self) -> str:
        lines = [line for line in self.tail if line.strip()]
        first = output.first_error(self.errors) or (lines[-1].strip()[:300] if lines else "")
        return f": {first}" if first else ""
