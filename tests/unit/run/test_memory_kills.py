"""Who was killed for memory: told apart by what compilers, linkers, shells and Bazel really print."""

from __future__ import annotations

import pytest

from tfdock.errors import EngineLost, OutOfMemory
from tfdock.knowledge.release_rows import Cost
from tfdock.plan.resources import GIB, BuildResources
from tfdock.run.log_text import COMPILER, HEAP, LINKER, SERVER, find_memory_kill
from tfdock.run.phase_errors import PhaseErrors

COST = Cost(memory_per_job_mib=2560, memory_per_link_mib=3072, disk_gib=60)
GCC = "gcc: fatal error: Killed signal terminated program cc1plus"
LD = "collect2: error: ld terminated with signal 9 [Killed]"
BAZEL = (
    "Server terminated abruptly (error code: 14, error message: 'Socket closed', log file: '/tf/output/x/jvm.out')"
)
JAVA = "java.lang.OutOfMemoryError: Java heap space"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (GCC, COMPILER),
        ("gcc: internal compiler error: Killed (program cc1plus)", COMPILER),
        ("g++: internal compiler error: Killed signal terminated program cc1plus", COMPILER),
        ("clang: error: unable to execute command: Killed", COMPILER),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", COMPILER),
        ("/bin/bash: line 1:  4711 Killed                  /usr/bin/gcc @x.params", COMPILER),
        (LD, LINKER),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", LINKER),
        (BAZEL, SERVER),
        (JAVA, HEAP),
        ("ERROR: Bazel ran out of memory. Consider increasing the heap size with --host_jvm_args=-Xmx", HEAP),
    ],
)
def test_what_was_killed_is_known_by_its_words(line: str, what: str) -> None:
    found = find_memory_kill(["[1 / 2] Compiling x.cc", line, "compilation terminated."])
    assert found is not None
    assert (found.program, found.line) == (what, line.strip())


@pytest.mark.parametrize(
    "line",
    [
        "x.cc:1:1: error: 'Killed' was not declared in this scope",
        "Killed_in_action.cc:5: warning: unused",
        "ERROR: //x:y failed (Exit 1): gcc failed",
        "ld returned 1 exit status",
    ],
)
def test_other_failures_are_not_taken_for_it(line: str) -> None:
    assert find_memory_kill([line]) is None


def test_a_server_that_died_says_more_than_the_compiler_it_took_along() -> None:
    found = find_memory_kill([GCC, BAZEL])
    assert found is not None
    assert found.program == SERVER


# --- the error ----------------------------------------------------------------------------------------------------


def failures(*tail: str, jobs: int = 4, memory: int = 8 * GIB) -> PhaseErrors:
    limits = BuildResources(jobs=jobs, cpus=4, memory=memory, pids=1, disk=1, time_limit=None, heap=GIB)
    return PhaseErrors(phase="compile", resources=limits, cost=COST, log=None, tail=tail, errors=(), folders={})


def error(status: int, *tail: str, memory: bool = False) -> OutOfMemory:
    found = failures(*tail).container_error(status, memory=memory)
    assert isinstance(found, OutOfMemory)
    assert (found.exit_code, found.problems[0].code) == (8, "out-of-memory")
    return found


@pytest.mark.parametrize(
    ("status", "tail", "memory", "begins", "of_bazel"),
    [
        pytest.param(1, (), True, "the kernel killed a process of phase compile because", False, id="event"),
        pytest.param(137, (), True, "the kernel killed the container of phase compile because", False, id="137"),
        pytest.param(1, (GCC,), True, "the kernel killed a compiler of phase compile because", False, id="gcc"),
        pytest.param(1, (LD,), True, "the kernel killed the linker of phase compile because", False, id="ld"),
        pytest.param(37, (BAZEL,), True, "the kernel killed Bazel's server of phase compile", False, id="server"),
        pytest.param(
            37, (BAZEL,), False, "Bazel's server of phase compile was killed because the memory", False,
            id="the machine ran out, and no event tells",
        ),
        pytest.param(33, (), False, "Bazel's own Java heap of 1.0 GiB was too small", True, id="33"),
        pytest.param(37, (JAVA,), False, "Bazel's own Java heap of 1.0 GiB was too small", True, id="its words"),
    ],
)  # fmt: skip
def test_each_way_to_run_out_of_memory_has_words_of_its_own(
    status: int, tail: tuple[str, ...], memory: bool, begins: str, of_bazel: bool
) -> None:
    found = error(status, *tail, memory=memory)
    assert found.problems[0].message.startswith(begins)
    assert "4 jobs in 8.0 GiB" in found.problems[0].message
    assert all(line.rpartition("error: ")[2][:100] in found.problems[0].message for line in tail)
    assert "error:" not in found.problems[0].message, "there is one error, and this is it"
    assert "jobs: 2" in found.problems[0].fix
    assert found.of_bazel is of_bazel


@pytest.mark.parametrize(
    ("memory", "wanted"), [(1.6, "4 GiB"), (4, "6 GiB"), (16, "24 GiB")], ids=["too little", "enough", "plenty"]
)
def test_with_one_job_already_it_takes_more_memory_and_says_how_much(memory: float, wanted: str) -> None:
    (problem,) = failures(GCC, jobs=1, memory=int(memory * GIB)).container_error(1, memory=True).problems
    assert problem.fix is not None
    assert problem.fix.startswith(f"give the build {wanted} of memory or more: it runs only one job already; then ")
    assert "jobs:" not in problem.fix


@pytest.mark.parametrize("status", [8, 130, 137, 143])
def test_a_container_that_was_stopped_without_any_sign_of_memory_was_stopped_by_somebody(status: int) -> None:
    assert isinstance(failures().container_error(status, memory=False), EngineLost)
