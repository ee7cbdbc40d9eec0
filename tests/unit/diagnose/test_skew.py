"""What came and went: names in errors, versions in logs, and which of them take a finding back or confirm it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tfdock.diagnose.log_lines import NEAR
from tfdock.errors import ProfileError
from tfdock.knowledge.failure_rows import CameAndWent, LogPart
from tfdock.knowledge.tables import KnowledgeBase

from ..backtracking import most_ways
from .test_diagnose import KNOWLEDGE, diagnosed, document_of

GETTID = "external/grpc/log_linux.cc:43:13: error: ambiguating new declaration of 'long int gettid()'"
DIGIT = "frob.cc:8:2: error: 'PyLongObject' has no member named 'ob_digit'"
STATUS = "a.cc:9:1: error: could not convert 'f' from 'std::unique_ptr<A>' to 'absl::StatusOr<B>'"
MUSL = "Signals.inc:47:11: fatal error: execinfo.h: No such file or directory"
OPTION = "ERROR: --experimental_repo_remote_exec :: Unrecognized option: --experimental_repo_remote_exec"
KEYWORD = "a.bzl:8:18: unexpected keyword 'frob' in call to repository_rule(implementation: function)"
SYMBOL = "a.bzl:117:1: file '@bazel_tools//tools/cpp:x.bzl' does not contain symbol 'frobnicate'"


def found(*lines: str) -> list[tuple[str, str]]:
    return [(one.id, one.confidence) for one in diagnosed("\n".join([*lines, ""])).findings]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([GETTID], [("glibc_too_new", "medium")]),
        (["ldd (Ubuntu GLIBC 2.31-0ubuntu9) 2.31", GETTID], [("glibc_too_new", "high")]),
        (["ldd (GNU libc) 2.28", GETTID], []),
        # What is missing is too old, of a name that came.
        (["a.cc:7:3: error: 'gettid' was not declared in this scope"], [("glibc_too_old", "medium")]),
        (["b.o: undefined reference to `gettid'"], [("glibc_too_old", "medium")]),
        ([DIGIT], [("python_too_new", "medium")]),
        (["-I/usr/include/python3.12", DIGIT], [("python_too_new", "high")]),
        # A version that takes the name back leaves what the error is about.
        (["-I/usr/include/python3.9", DIGIT], [("python_unfit", "low")]),
        (["a.cpython-312-x86_64-linux-gnu.so", DIGIT], [("python_too_new", "high")]),
        (["gcc version 7.5.0 (Ubuntu 7.5.0)", STATUS], [("gcc_too_old", "high")]),
        (["gcc version 9.4.0 (Ubuntu 9.4.0)", STATUS], [("gcc_unfit", "low")]),
        (["Build label: 1.1.0", OPTION], [("bazel_too_old", "high")]),
        (
            ["ERROR: /s/BUILD:5:1: Label '@a//b:c/d.bzl' crosses boundary of subpackage '@a//b/c'"],
            [("bazel_too_new", "medium")],
        ),
        ([MUSL], [("musl_unfit", "medium")]),
        (['NAME="Alpine Linux"', MUSL], [("musl_unfit", "high")]),
        # Whole words, and not the file that the error is in.
        (["frob.cc:8:2: error: no member named 'my_ob_digit_' in 'A'"], []),
        (["/usr/include/python3.9/longintrepr.h:47:1: error: expected ';'"], [("python_unfit", "low")]),
        (["a.cc:1:2: warning: 'PyFrameObject' is deprecated", "note: error: of 'ob_digit'"], []),
        # Without a name: the part that the error is about, and the release that the log is of.
        (
            ["You have bazel 0.8.0 installed.", "tensorflow-1.15.5/a", f"ERROR: {SYMBOL}"],
            [("bazel_too_old", "medium")],
        ),
        (["tensorflow-1.15.5/a", f"ERROR: {SYMBOL}"], [("bazel_unfit", "low")]),
        (['k.h(116): error: namespace "Eigen::half_impl" has no member "x"'], [("eigen_unfit", "low")]),
        (
            ["m.cc:253:7: error: 'override' does not name a type"],
            [("gcc_too_old", "medium")],
        ),
        # An address names parts and is about none.
        (["ERROR: a: java.io.IOException: Error downloading [http://x/google/protobuf/a.zip] to /x: b"], []),
        # A name without a bound guesses, and versions know better.
        ([f"ERROR: {KEYWORD}"], [("bazel_too_old", "medium")]),
        (
            ["You have bazel 6.1.0 installed.", "tensorflow-1.15.5/a", f"ERROR: {KEYWORD}"],
            [("bazel_too_new", "medium")],
        ),
    ],
)
def test_an_error_that_names_what_came_or_went_is_of_its_part(lines: list[str], told: list[tuple[str, str]]) -> None:
    assert [one for one in found(*lines) if one[0].endswith(("_too_new", "_too_old", "_unfit"))] == told


def test_what_check_refuses_is_the_first_suspect(tmp_path: Path) -> None:
    log, profile = tmp_path / "a.log", tmp_path / "p.yaml"
    log.write_text("a.cc:51:45: error: 'PyFrobObject' has no member named 'x'\n  PyUnicode_Frobnicate(y)\n")
    profile.write_text(yaml.safe_dump({"schema": 1, "tensorflow": "1.9.0", "python": "3.7", "accelerator": "cpu"}))
    (one,) = document_of(log, "--profile", profile)["findings"]
    assert (one["id"], one["confidence"]) == ("python_too_new", "high")
    assert "`tfdock check` refuses the profile for it: TensorFlow 1.9 is not built for Python 3.7" in one["cause"]
    assert {"python": "3.6"} in [way["change"] for way in one["changes"]]


def test_the_version_to_take_is_that_of_the_release() -> None:
    (one,) = diagnosed(f"/src/tensorflow-2.10.1/x\nPython 3.12.1\n{DIGIT}\n").findings
    assert "Python 3.12 is too new for TensorFlow 2.10.1, which was made with 3.7 to 3.10." in one.cause
    assert one.fix.startswith("Use Python 3.10 ")


def test_an_unknown_error_still_says_what_it_belongs_to_and_what_is_out_of_step() -> None:
    told = diagnosed("/s/tensorflow-2.10.1/a\nPython 3.12.1\nexternal/frob/a.cc:1:2: error: frobnication\n")
    assert told.findings == ()
    assert told.first.startswith(
        "The first error is in line 3, and belongs to `@frob`, the file `external/frob/a.cc`. "
        "Not a version that TensorFlow 2.10.1 was made with: Python 3.12 (made with 3.7 to 3.10)."
    )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ["tensorflow/contrib/lite/a.cc:12:3: error: frobnication", "/usr/include/c++/11/a.h:1:2: note: here"],
            "gcc 11 is too new for TensorFlow up to 1.12, which was made with 4.8 to ",
        ),
        (
            ["tensorflow/workspace2.bzl:3:4: in frob", "external/frob/a.cc:1:2: error: frobnication", "bazel 3.1.0"],
            "Not a version that TensorFlow from 2.5 on was made with: Bazel 3.1.0 ",
        ),
        (
            [
                "I tensorflow/core/platform/cpu_feature_guard.cc:143] Your CPU supports instructions",
                "ImportError: libcudart.so.10.1: cannot open shared object file: No such file or directory",
            ],
            "TensorFlow 2.2 was made with CUDA 10.1 and cuDNN 7.6.",
        ),
        (
            [
                "/s/tensorflow-2.14.0/a",
                "/usr/lib/gcc/x86_64-linux-gnu/13/a",
                "external/frob/a.cc:1:2: error: frobnication",
            ],
            "TensorFlow 2.14.0 with gcc 13 is known to fail. What helped: gcc 12, or ",
        ),
    ],
)
def test_the_lines_of_a_log_tell_its_releases_and_what_failed_with_them(lines: list[str], told: str) -> None:
    found = diagnosed("\n".join(lines) + "\n")
    assert told in (found.findings[0].cause if found.findings else found.first)


@pytest.mark.parametrize(
    "lines",
    [
        # A contradiction: the log is of two releases.
        ["tensorflow/contrib/lite/a.cc:12:3: error: frobnication", "tensorflow/lite/a.cc:1:2: note: here"],
        # A release before the table may have been made with an older Bazel.
        ["tensorflow/contrib/a.cc:1:2: error: frobnication", "bazel 0.1.5"],
        # With gcc 12 this release is known to fail with CUDA only.
        [
            "/s/tensorflow-2.13.0/a",
            "/usr/lib/gcc/x86_64-linux-gnu/12/a",
            "external/frob/a.cc:1:2: error: frobnication",
        ],
        # Somebody built this release with gcc 7, although its wheel was made with 4.8.
        [
            "/s/tensorflow-1.12.0/a",
            "/usr/include/c++/7/a.h:1:2: note: here",
            "external/frob/a.cc:1:2: error: frobnication",
        ],
    ],
)
def test_what_the_lines_of_a_log_do_not_prove_is_not_told(lines: list[str]) -> None:
    found = diagnosed("\n".join(lines) + "\n")
    assert not [
        one
        for one in (found.first, *(one.cause for one in found.findings))
        if "made with: " in one or "known to fail" in one
    ]
    assert not [one for one in found.findings if one.id.endswith(("_too_new", "_too_old"))]


def test_the_last_word_of_a_package_builder_is_not_the_first_error() -> None:
    builder = "==> Error: ProcessError: Command exited with status 1:"
    told = diagnosed(f"{builder}\n5 errors found in build log:\nexternal/frob/a.cc:1:2: error: frobnication\n")
    assert told.first.startswith("The first error is in line 3, and belongs to `@frob`")


#: Errors of which no row knows the cause, most of them out of public threads, below the kind that they are of.
KINDS = """
killed: frob.exe: error: bad_alloc
compiler_crash: fatal error: error in backend: Cannot select: frob
program_crash: bash: line 1: 88 Segmentation fault: 11  bazel-out/host/bin/external/protobuf_archive/js_embed
certificate: frob: certificate has expired
dll: ImportError: DLL load failed: The operating system cannot run %1.
program_missing: FileNotFoundError: [Errno 2] No such file or directory: 'frobcc'
import_name: ImportError: cannot import name 'frob_utils'
pip_path: ERROR: Could not install packages due to an OSError: [Errno 2] No such file or directory: 'C:\\v\\frob.h'
pip_cache: OSError: [Errno 13] Permission denied: '/home/u/.cache/pip/wheels/ab/cd'
not_permitted: OSError: [Errno 1] Operation not permitted: '/tmp/pip-x-uninstall/lib/frob-1.4.1.egg-info'
xcode: xcrun: error: unable to find utility "metal", not a developer tool or in PATH
toolchain: ERROR: no toolchain corresponding to 'local_frob' found for cpu 'frob'
android: ERROR: no such package '@androidndk//': Could not read frob.txt in Android NDK: /home/u/ndk
boundary: ERROR: /s/BUILD:9:1: Label '//a:b/c.py' crosses boundary of subpackage 'a/b'
starlark: ERROR: /c/external/local_config_frob/frob.bzl:10:2: indentation error
gpu_runtime: FrobError: CUDA runtime frobbed on GPU:0
library_missing: LINK : fatal error LNK1104: cannot open file 'frob35.lib'
undefined_reference: pack_op.lo(pack_op.o) : error LNK2019: unresolved external symbol "void ConcatGPU<T>(C *)"
compiler_input: error: no such file or directory: 'v2'
not_position_independent: /usr/bin/ld: a.o: relocation R_X86_64_PC32 against symbol `frob' can not be used
dangling_link: ERROR: /s/BUILD:1:1: Couldn't build file: libfrob.so.2 is a dangling symbolic link
cmake_export: CMake Error: install(EXPORT "frob" ...) requires target "absl_flags" that is not in any export set.
cmake_package: No package 'frob' found. Perhaps you should add the directory to the PKG_CONFIG_PATH variable
cmake: CMake Error at frob/CMakeLists.txt:9 (message):
header_missing: a/interpreter_builder.h:26: error: frob/frob.h: No such file or directory
undefined_at_import: _frob.so: undefined symbol: _ZN4frob6String8allocateEm
repository_rule: ERROR: no such package '@frob//cuda': Traceback (most recent call last):
rule_fail: Error in fail: frob:headers_lib cannot depend on frob:lib
visibility: ERROR: Starlark file @rules_x//:defs.bzl is not visible for loading from package //a.
no_such_name: ==> Error: AttributeError: module 'spack.frob.builtin' has no attribute 'make_jobs'
python: ValueError: frobnication
starlark: ERROR: /s/WORKSPACE:3:1: name 'frob_archive' is not defined
repository_rule: ERROR: An error occurred during the fetch of repository 'local_config_frob':
patch_refused: error: patch failed: third_party/frob.bzl:5
no_repository: ERROR: no such package '@frob//': frob could not be resolved.
builder_yocto: ERROR: Task (/y/frob/tensorflow-lite_2.4.1.bb:do_compile) failed with exit code '1'
builder_nix: For full logs, run 'nix log /nix/store/cd3-frob-deps.tar.gz.drv'.
builder_guix: error: in phase 'build': uncaught exception:
builder_conda: ERROR:OPEN-CE:[OPEN-CE-ERROR]-11 Unable to build recipe: frob-feedstock
std_header: a.h:3:5: error: 'setw' was not declared in this scope
macro: .\\tensorflow/stream_executor/rng.h(66): error C2059: syntax error: '::'
templates: ./core/framework/variant.h(343): error: constexpr constructor calls non-constexpr function "A::A()"
undeclared: a.cc:3:1: error: 'Frob' was not declared in this scope
linker: clang: error: linker command failed with exit code 1 (use -v to see invocation)
gpu_object_missing: ERROR: /s/kernels/BUILD:4094:1: output 'a.cu.pic.o' was not created
network: fatal: unable to access 'https://frob.example/frob.git/': Failed to connect
undeclared: a.cc:404:5: error: 'SHA256' was not declared in this scope
library_not_loaded: frob.errors_impl.InternalError: libfrob.so.3: cannot open shared object file
script_file: cp: cannot stat 'bazel-out/frob/numpy/.doxyfile': No such file or directory
script_after_failed_bazel: unzip:  cannot find or open /w/bazel-bin/a/Frob.zip, /w/bazel-bin/a/Frob.zip.zip
make_library_of_tensorflow: make: *** No rule to make target 'libs/libtensorflow_cc.so', needed by 'bin/frob'.  Stop.
package_without_build: ERROR: /s/BUILD:1:1: no such package '@frob//a': BUILD file not found in directory 'a'
docker_command: docker: Error response from daemon: frobnication.
source_refused: external/frob/a.cc:1:2: error: frobnication
msvc: .\\frob.h(71): error C2338:
msvc_templates: tensorflow/dtensor/frob.cc(812): error C2976: 'llvm::SmallVector': too few template arguments
consequence: The command '/bin/sh -c frob' returned a non-zero code: 3
gpu_library: RuntimeError: CUDA error: CUSOLVER_STATUS_FROBBED
gpu_memory: frob.errors_impl.ResourceExhaustedError: SameWorkerRecvDone unable to allocate output tensor.
lite_delegate: java.lang.IllegalArgumentException: Internal error: Failed to apply delegate: OpenCL library not loaded
tensorflow_error: frob.errors_impl.InvalidArgumentError: Trying to access resource Frob located in device CPU:0
killed: zsh: killed     python frob.py
gpu_library: 2024-01-01 10:00:00.1: E frob/cuda_blas.cc:193] failed for cuBLAS handle: CUBLAS_STATUS_FROB
consequence: FAILED: Build did NOT complete successfully
"""


@pytest.mark.parametrize(("kind", "log"), [one.split(": ", 1) for one in KINDS.strip().split("\n")])
def test_an_unknown_error_of_a_known_kind_has_a_next_step(kind: str, log: str) -> None:
    steps = {one.step: one.kind for one in KNOWLEDGE.error_kinds}
    told = diagnosed(f"{log}\n")
    assert told.findings == ()
    assert [name for step, name in steps.items() if told.first.endswith(step)] == [kind], told.first


def test_a_message_that_looks_like_no_error_counts_at_the_end_of_a_log_without_errors() -> None:
    refused, error = "frob: timed out", "a.cc:1:2: error: frob"
    assert [one.text for one in diagnosed(f"{refused}\n").suspects] == [refused]
    assert [one.text for one in diagnosed(f"{refused}\n{error}\n").suspects] == [error]
    assert diagnosed(f"{refused}\n" + "frob\n" * 30).suspects == diagnosed(f"INFO: {refused}\n").suspects == ()


def test_a_general_row_says_what_a_name_belongs_to() -> None:
    (symbol,) = diagnosed("a.o: undefined reference to `sqlite3_open'\n").findings
    (header,) = diagnosed("a.cc:1:10: fatal error: curand_kernel.h: No such file or directory\n").findings
    assert ("SQLite" in symbol.cause, "TF_CUDA_PATHS" in header.fix) == (True, True)


def test_the_first_error_is_none_that_only_announces_or_follows_from_another() -> None:
    announced = (
        "ERROR: /c/external/zlib/BUILD:5:1: Compiling x failed: (Exit 1): gcc failed: error executing command x"
    )
    follows = "ERROR: /s/kernels/BUILD:1:1: output 'a.o' was not created"
    told = diagnosed(f"{announced}\nerror: no such file or directory: 'v2'\n{follows}\n")
    assert told.first.startswith("The first error is in line 2, and belongs to `@zlib`")


FETCH = """\
ERROR: An error occurred during the fetch of repository 'local_config_frob':
   Traceback (most recent call last):
\tFile "/s/third_party/frob.bzl", line 1369
\t\t_create(<1 more arguments>)
\tFile "/s/third_party/common.bzl", line 208, column 13, in execute
\t\tfail("Cannot find rocm library %s" % name)
"""


@pytest.mark.parametrize("prefix", ["", "#9 12.3 "])
@pytest.mark.parametrize("words", ["Repository command failed\n", "Error in fail: Repository command failed\n", ""])
def test_below_a_traceback_stand_the_words_of_the_rule(words: str, prefix: str) -> None:
    skipped = "ERROR: Skipping '//a:b': no such package '@x//': Traceback (most recent call last):"
    log = f"{FETCH}{words}frob is even\n{skipped}"
    told = diagnosed("".join(f"{prefix}{line}\n" for line in log.split("\n")))
    assert told.findings == ()
    assert "in line 1. Below it, the tool that failed says: `frob is even`. A rule that prepares a" in told.first


COMMAND = """\
  (cd /c/execroot && \\
  exec env - \\
    PATH=/usr/bin \\
  bazel-out/frobcc -c fft2d.c)
# Configuration: 1c0ffee
Execution platform: @local_execution_config_platform//:platform
Traceback (most recent call last):
  File "/c/frobcc", line 3, in <module>
    frob()
"""


@pytest.mark.parametrize(
    "between", ["", "INFO: Elapsed time\n", "(cd /c/execroot && \\\n", COMMAND, "  cd C:/e\n  SET PATH=C:\\msys64\n"]
)
def test_below_a_line_that_only_announces_stand_the_words_of_the_tool(between: str) -> None:
    announced = "ERROR: /c/external/fft2d/BUILD.bazel:26:1: C++ compilation of rule '@fft2d//:fft2d' failed (Exit 1)"
    told = diagnosed(f"{announced}\n{between}frobcc must be run by frob\nTarget //a:b failed to build\n")
    assert told.findings == ()
    assert told.first.endswith("Below it, the tool that failed says: `frobcc must be run by frob`.")
    silent = diagnosed(f"{announced}\n{between}Target //a:b failed to build\n")
    assert "Here Bazel only reports that a step failed." in silent.first


def test_what_the_system_lacks_is_no_misfit_of_packages() -> None:
    """macOS names the symbol in one line and the library that should have it in another."""
    symbol = "ImportError: dlopen(/v/tensorflow/a.so, 2): Symbol not found: ___frob_stret"
    names = "  Referenced from: /v/tensorflow/a.so"
    assert found(symbol, names, "  Expected in: /usr/lib/libSystem.B.dylib") == [("macos_too_old", "high")]
    assert found(symbol, names, "  Expected in: /v/tensorflow/b.so") == [("undefined_symbol_import", "medium")]


def test_a_fix_speaks_of_the_system_that_the_log_is_of_and_to_who_installed() -> None:
    header = "py_func.cc:1:10: fatal error: Python.h: No such file or directory"
    assert "apt-get install" in diagnosed(f"{header}\n").findings[0].fix
    assert "dnf install python3-devel" in diagnosed(f"Rocky Linux release 9.3\n{header}\n").findings[0].fix
    symbol = "ImportError: /v/site-packages/tensorflow/a.so: undefined symbol: foo_bar"
    assert "bazel" not in diagnosed(f"{symbol}\n").findings[0].fix
    build = "INFO: Analyzed target //tensorflow/tools/pip_package:wheel (3 packages loaded)."
    assert "bazel clean" in diagnosed(f"{build}\n{symbol}\n").findings[0].fix


def test_all_errors_of_a_build_that_kept_going_are_told() -> None:
    warned = "external/{0}/a.c:1:2: error: x [-Werror={1}]"
    lines = [
        warned.format("boringssl", "array-bounds"),
        warned.format("boringssl", "unused"),
        "b/c.cc:3:1: error: frob",
    ]
    told = diagnosed("\n".join([*lines, ""]))
    assert [one.values["warning"] for one in told.findings] == ["array-bounds", "unused"]
    assert [one.text for one in told.others] == ["b/c.cc:3:1: error: frob"]


def expressions() -> list[Any]:
    rows = KNOWLEDGE.log_parts.values()
    return [text for row in rows for text in (*row.owns, *(one.line for one in row.shows if one.line))]


def test_no_line_makes_an_expression_of_a_part_search_in_more_ways_than_it_has_characters() -> None:
    assert [text for text in expressions() if most_ways(text, 2 * NEAR) > 2 * NEAR] == []


def test_what_a_part_says_fits_every_version() -> None:
    names: tuple[CameAndWent, ...] = KNOWLEDGE.came_and_went
    parts: dict[str, LogPart] = KNOWLEDGE.log_parts
    assert {name.part for name in names} <= set(parts)
    for name in names:
        assert parts[name.part].too_new, name.part
        assert parts[name.part].too_old, name.part


def test_a_name_of_a_part_without_a_row_is_refused_where_it_stands() -> None:
    row = "rows:\n  - {part: frob, name: frobnicate, means: newer, source: me}\n"
    tables = {"came_and_went": [("own.yaml", row)], "log_parts": [("parts.yaml", "rows: []\n")]}
    with pytest.raises(ProfileError, match="no part `frob` has a row") as refused:
        _ = KnowledgeBase(tables).came_and_went
    assert (refused.value.problems[0].file, refused.value.problems[0].line) == ("own.yaml", 2)
