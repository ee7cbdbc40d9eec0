"""What is read from Bazel's event file and output lines."""

from __future__ import annotations

import json

import pytest

from tfdock.bazel.build_events import Figures, read_events
from tfdock.bazel.output import (
    compiler_errors,
    first_error,
    is_error,
    progress,
    speaks_of_full_disk,
    speaks_of_network,
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[12 / 345] Compiling tensorflow/core/framework/op.cc; 3s local", (12, 345)),
        ("[1,234 / 25,678] 8 actions running", (1234, 25678)),
        ("[0 / 1] [Prepa] BazelWorkspaceStatusAction", (0, 1)),
        ("INFO: [12 / 345] not at the start", None),
        ("[12 of 345]", None),
        ("[, / ,] Compiling", None),
        ("[² / ³] Compiling", None),
        (f"[{'9' * 4000} / 1] Compiling", None),
        ("", None),
    ],
)
def test_progress_is_read_from_bazels_own_lines_only(line: str, expected: tuple[int, int] | None) -> None:
    assert progress(line) == expected


def metrics(**runners: int) -> str:
    count = [{"name": name.replace("_", " "), "count": value} for name, value in runners.items()]
    return json.dumps({"id": {"buildMetrics": {}}, "buildMetrics": {"actionSummary": {"runnerCount": count}}})


def said(stderr: str) -> str:
    return json.dumps({"id": {"progress": {}}, "progress": {"stderr": stderr}})


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(
            [metrics(total=13, disk_cache_hit=3, internal=2, local=7, worker=1)],
            Figures(hits=3, executed=8),
            id="metrics",
        ),
        pytest.param(
            [metrics(total=9, remote_cache_hit=4, disk_cache_hit=5)],
            Figures(hits=9, executed=0),
            id="all from caches",
        ),
        pytest.param(
            [said("INFO: 13 processes: 3 disk cache hit, 10 local.\n")], Figures(hits=3, executed=10), id="0.26"
        ),
        pytest.param([said("INFO: 1 process: 1 processwrapper-sandbox.")], Figures(executed=1), id="one process"),
        pytest.param(
            [said("INFO: 13,000 processes: 1,500 remote cache hit, 2 internal, 11,498 local.")],
            Figures(hits=1500, executed=11498),
            id="thousands",
        ),
        pytest.param([said("INFO: 0 processes.")], None, id="no processes"),
        pytest.param([said(f"INFO: 9 processes: ² local, , local, {'9' * 5000} local.")], None, id="no numbers"),
        pytest.param([said("INFO: 2 processes: 2 local.\r\n")], Figures(executed=2), id="a carriage return"),
        pytest.param(
            [said("INFO: 5 processes: 5 local.\n"), metrics(local=6)], Figures(executed=6), id="metrics win"
        ),
        pytest.param(
            [said("INFO: 5 processes: 5 local.\n"), said("INFO: 7 processes: 7 local.\n")],
            Figures(executed=7),
            id="the last line counts",
        ),
        pytest.param([], None, id="no events"),
        pytest.param(['{"progress": {"stderr": "', metrics(local=1)], Figures(executed=1), id="a torn line"),
        pytest.param(["[]", "5", '"x"', "null", "{}"], None, id="other JSON"),
    ],
)
def test_figures_come_from_metrics_or_from_the_summary_line(events: list[str], expected: Figures | None) -> None:
    assert read_events(events).figures == expected


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: /tf/tensorflow/BUILD:1:1: Couldn't build file",
        "FATAL: corrupt installation",
        "FAILED: Build did NOT complete successfully",
        "tensorflow/core/op.cc:3:10: fatal error: x.h: No such file or directory",
        "x.cu(12): error: expected a ';'",
        "tfdock: the tag has moved",
        "gcc: fatal error: Killed signal terminated program cc1plus",
        "ModuleNotFoundError: No module named 'numpy'",
        "bash: line 3:    71 Segmentation fault      (core dumped) bazel build //x",
    ],
)
def test_lines_that_report_an_error_are_found(line: str) -> None:
    assert is_error(line)


@pytest.mark.parametrize(
    "line",
    [
        "INFO: Analyzed target //tensorflow/tools/pip_package:wheel",
        "WARNING: Download from https://mirror.example failed: GET returned 404 Not Found",
        "Compiling tensorflow/core/platform/error_payloads.cc",
        "note: no errors: 0",
        "./configure: line 9: lsb_release: command not found",
        "",
    ],
)
def test_other_lines_are_not_taken_for_errors(line: str) -> None:
    assert not is_error(line)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["INFO: x", "ERROR: no such target", "ERROR: failed"], "ERROR: no such target", id="the first"),
        pytest.param(
            ["ERROR: An error occurred during the fetch of repository 'm':", "   Traceback (most recent call last):",
             "Error in download: java.io.IOException: GET returned 404", "ERROR: Error fetching repository: Trace"],
            "ERROR: An error occurred during the fetch of repository 'm': Error in download: java.io.IOException: "
            "GET returned 404",
            id="one that is only announced",
        ),
        pytest.param(["ERROR: nothing follows:"], "ERROR: nothing follows:", id="nothing follows"),
        pytest.param([f"ERROR: {'x' * 999}the end"], f"ERROR: {'x' * 293} … {'x' * 290}the end", id="a long one"),
        pytest.param(["INFO: fine", ""], "", id="none"),
    ],
)  # fmt: skip
def test_the_first_error_is_one_that_says_what_it_is(lines: list[str], expected: str) -> None:
    assert first_error(lines) == expected


COMPILER_ERRORS = [
    "tensorflow/core/kernels/add_op.cc:24:20: error: expected primary-expression before 'return'",
    "tensorflow/core/op.cc:3:10: fatal error: absl/x.h: No such file or directory",
    'external/com_google_absl/absl/x.h:9: error: #error "too old"',
    "bazel-out/k8-opt/bin/tensorflow/x.pb.h:17:2: error: #error This file was generated by a newer version of protoc",
    'tensorflow/core/kernels/add_op_gpu.cu.cc(12): error: identifier "__ushort_as_bfloat16" is undefined',
    "x.cu(12): error #20012-D: a function is undefined",
    'x.cu(12): catastrophic error: cannot open source file "a.h"',
    "/tmp/ccX1.s:12: Error: no such instruction: `vpdpbusd %ymm1'",
    "x.cc:4:1: internal compiler error: in cp_lexer_new_main, at cp/parser.c:651",
    "clang: error: unknown argument: '-fno-canonical-system-headers'",
    "clang-16: error: unsupported option '--cuda-gpu-arch=sm_120'",
    "/opt/rocm/llvm/bin/clang++: error: no such file or directory: 'x.o'",
    "x86_64-linux-gnu-gcc-11: error: unrecognized command-line option '-mavx512vnnx'",
    "cc1plus: error: unrecognized command line option '-Wno-x' [-Werror]",
    "fatal error: error in backend: Cannot select: intrinsic %llvm.amdgcn.x",
    "LLVM ERROR: Cannot select: 0x55",
    "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
    "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
    "ptxas /tmp/x.ptx, line 9; fatal   : Unsupported .version 8.7; current version is '8.5'",
    "nvlink error   : Undefined reference to '_Z3foov' in 'x.o'",
    "nvlink fatal   : Input file 'x.o' newer than toolkit (128 vs 125)",
    "/usr/bin/ld: cannot find -lcudart: No such file or directory",
    "/usr/bin/ld: bazel-out/k8-opt/bin/x.o: in function `main': x.cc:(.text+0x5): undefined reference to `foo()'",
    "x.cc:(.text._ZN3fooEv+0x5): undefined reference to `tensorflow::bar(int)'",
    "bazel-out/k8-opt/bin/_objs/a.pic.o: multiple definition of `kFoo'",
    "/usr/bin/ld: a.o: relocation R_X86_64_32 against `.rodata' can not be used when making a shared object",
    "x.cc:(.text+0x1): relocation truncated to fit: R_X86_64_PC32 against symbol `foo'",
    "ld.lld: error: undefined symbol: cudnnCreate",
]


@pytest.mark.parametrize("line", COMPILER_ERRORS)
def test_errors_of_compilers_and_linkers_are_found_as_they_are(line: str) -> None:
    assert compiler_errors(["[1 / 2] Compiling x.cc", line, "1 error generated."]) == (line,)
    assert is_error(line)


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: /tf/tensorflow/BUILD:7:11: Compiling x.cc failed: (Exit 1): gcc failed: error executing command",
        "ERROR: /tf/tensorflow/BUILD:1:1: error loading package 'x'",
        "tensorflow/core/error_codes.cc:12:3: warning: unused variable 'error' [-Wunused]",
        "x.cc:3:1: note: error: is a word here",
        'x.cu(12): warning #177-D: variable "error" was declared but never referenced',
        "collect2: error: ld returned 1 exit status",
        "clang: error: linker command failed with exit code 1 (use -v to see invocation)",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "ptxas fatal   : Ptx assembly aborted due to errors",
        "ptxas info    : Compiling entry function for 'sm_120'",
        "/usr/bin/ld: skipping incompatible /usr/lib32/libz.so when searching for -lz",
        "/usr/bin/ld: warning: libx.so, needed by y.so, not found",
        "Error in download: java.io.IOException: GET returned 404",
        "ModuleNotFoundError: No module named 'numpy'",
        "12:30:45: error: it is a time",
        "Compiling tensorflow/core/platform/error_payloads.cc",
        '2 errors detected in the compilation of "x.cu".',
        "",
    ],
)
def test_lines_that_merely_contain_the_word_error_are_no_errors_of_a_compiler(line: str) -> None:
    assert compiler_errors([line]) == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/tf/out/1/execroot/org_tensorflow/tensorflow/a.cc:1:2: error: x", "tensorflow/a.cc:1:2: error: x"),
        ("/tf/tensorflow/tensorflow/a.cc:1:2: error: x", "tensorflow/a.cc:1:2: error: x"),
        ("./tensorflow/a.h(7): error: x in ./tensorflow/b.h", "tensorflow/a.h(7): error: x in tensorflow/b.h"),
        ("/proc/self/cwd/external/a.h:7:1: error: x", "external/a.h:7:1: error: x"),
        ("/usr/include/c++/11/string:7:1: error: x", "/usr/include/c++/11/string:7:1: error: x"),
        (f"a.cc:1:2: error: {'x' * 999}", f"a.cc:1:2: error: {'x' * 282}…"),
    ],
)  # fmt: skip
def test_a_compiler_error_is_short_and_names_the_file_in_the_tree(line: str, expected: str) -> None:
    assert compiler_errors([line]) == (expected,)


def test_the_first_three_compiler_errors_count_each_once() -> None:
    lines = [f"a.cc:{number}:1: error: x" for number in (1, 1, 2, 3, 4)]
    assert compiler_errors(lines) == ("a.cc:1:1: error: x", "a.cc:2:1: error: x", "a.cc:3:1: error: x")


@pytest.mark.parametrize(
    ("line", "network", "full"),
    [
        ("java.net.UnknownHostException: storage.googleapis.com", True, False),
        ("Error downloading [https://x/y.zip]: connect timed out", True, False),
        ("Error downloading [https://x/y.zip]: GET returned 503 Service Unavailable", True, False),
        ("curl: (6) Could not resolve host: github.com", True, False),
        ("connect: Network is unreachable", True, False),
        ("No space left on device", False, True),
        ("java.io.IOException: write failed: ENOSPC", False, True),
        ("INFO: Build completed successfully, 503 total actions", False, False),
        ("GET returned 200 OK", False, False),
        ("Compiling connection.cc", False, False),
    ],
)
def test_a_failed_download_and_a_full_disk_are_recognised(line: str, network: bool, full: bool) -> None:
    lines = ["INFO: fine", line]
    assert (speaks_of_network(lines), speaks_of_full_disk(lines)) == (network, full)
