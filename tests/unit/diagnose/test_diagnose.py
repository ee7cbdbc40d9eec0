"""`tfdock diagnose`: logs of every form, hostile ones, what is ranked first, a profile beside it, what is printed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_engine import FakeEngine
from typer.testing import Result

from tfdock.cli import ci_log
from tfdock.cli.app import preparer_for, settings_for
from tfdock.cli.diagnosis_text import lines
from tfdock.diagnose import log_search
from tfdock.diagnose.diagnose_logs import diagnose_log, diagnose_run_log, load_context
from tfdock.diagnose.diagnosis import Diagnosis, diagnosis
from tfdock.diagnose.log_lines import BLOCK, NEAR, Block, Log, NotText, bare, unpacked, unwrapped
from tfdock.diagnose.log_search import Diagnostician
from tfdock.errors import NetworkError, Problem
from tfdock.host.supervise import Stop
from tfdock.knowledge import loader
from tfdock.profile.profile import read as read_profile
from tfdock.resolve.profile_changes import describe_change
from tfdock.run.supervisor import Supervisor

from .. import command_line
from ..samples import sample

KNOWLEDGE = loader.knowledge()
ARCH = "nvcc fatal   : Unsupported gpu architecture 'compute_35'"
KILLED = "gcc: internal compiler error: Killed (program cc1plus)"
WELL = "INFO: Build completed successfully, 12 total actions"
HEADER = "a.cc:1:10: fatal error: Python.h: No such file or directory"


def diagnosed(*chunks: str | bytes) -> Diagnosis:
    reader = Diagnostician(KNOWLEDGE)
    for chunk in unpacked((one.encode() if isinstance(one, str) else one for one in chunks), pytest.fail):
        reader.feed(chunk)
    return diagnosis(reader.close(), KNOWLEDGE)


def ids(*chunks: str | bytes) -> list[str]:
    return [one.id for one in diagnosed(*chunks).findings]


def run(*words: str | Path, stdin: bytes | None = None) -> Result:
    return command_line.run("diagnose", *words, stdin=stdin)


def document_of(*words: str | Path, stdin: bytes | None = None) -> Any:
    return json.loads(run(*words, "--json", stdin=stdin).stdout)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "build.log"


# --- forms of logs --------------------------------------------------------------------------------------------------

PREFIXES = (
    "#7 18.90 ", "#12 ", "2024-05-06T07:30:55.1182304Z ", "2024-05-06T07:30:55.118230Z 01O ", "2024-05-06 07:30:55 ",
    "[2024-05-06T07:30:55.118Z] ", "[07:30:55] ", "(07:30:55) ", "07:30:55.118 ", "builder-1  | ", "tf_build_1 | ",
    "wheel\tRun make wheel\t2024-05-06T07:30:55.1182304Z ", "May  6 07:30:55 ci-3 docker[123]: ", "##[error]",
    "2024-05-06T07:30:55.1Z #9 231.4 ", "[   12.345678] ", "    ", "\t", "2024-05-06T07:30:55.118230Z stderr F ",
    "231.4 ", "07:30:55  ", "[07:30:55]W:\t [Step 2/3] ", "  >> 5123    ", "[ERROR] ", 'Step #1 - "wheel": ',
    "Step #0: ", "[Container] 2024/05/06 07:30:55 ", "tensorflow> ", "May 06 07:30:55 ", "E0506 07:30:55.118] ",
    "[CI/wheel]   | ", "         +wheel | ", "[build:L12:3s] ", "[pod/tf-0/main] ", "| ", " | ",
    "2024-05-06 07:30:55,118 - tf - INFO - ", "2024-05-06 07:30:55,118 ERROR ", "ERROR:root:", "stderr: ",
    "[2024-05-06 07:30:55,118] {taskinstance.py:1150} ERROR - ", "[2024-05-06 07:30:55,118: ERROR/MainProcess] ",
    "2024-05-06 07:30:55.118 ERROR (MainThread) [homeassistant.setup] ", "24/05/06 07:30:55 WARN ",
    "2024-05-06 07:30:55.118 | ERROR    | __main__:main:12 - ", "[E 2024-05-06 07:30:55.118 ServerApp] ",
    "[2024-05-06 07:30:55 +0000] [12] [ERROR] ", "(pid=123) ", "(train pid=123, ip=10.0.0.1) ", "[1,0]<stderr>:",
    "npm ERR! ", "npm error node-pre-gyp ERR! stack ", "remote:        ", "INFO[0012] ", "0|app      | ", "  ╰─▶ ",
    " │ │ ", "2024-05-06T07:30:55.118230+00:00 app[web.1]: ", "== 2024-05-06 07:30:55,118 build_log.py:169 ERROR ",
    " * ", "Caused by: ", 'Exception in thread "main" ', "Error in py_run_file_impl(file, local, convert) : ",
    "python.exe : ", "12:", "    12\t", "[IPKernelApp] ERROR | ",
)  # fmt: skip


@pytest.mark.parametrize("line", ["|    52 | #include", "| 16 | #include", "| |   ^~~~", "| a | b |", "| ^~~~"])
def test_what_compilers_and_tables_draw_is_no_prefix(line: str) -> None:
    assert (bare(line), bare(f"    {line[:2]}error: a")) == (line, f"{line[:2]}error: a")


@pytest.mark.parametrize("mark", ["**", "`"])
def test_markdown_around_a_pasted_line_is_no_part_of_it(mark: str) -> None:
    assert bare(f" {mark}Illegal instruction (core dumped){mark}") == "Illegal instruction (core dumped)"


def test_a_line_of_bazel_is_enough_for_a_remedy_of_who_builds() -> None:
    (found,) = diagnosed(
        "ERROR: /s/BUILD:7:1: no such package '@x//': java.io.IOException: Error downloading [https://x/a.gz] to "
        f"/c/a.gz: Checksum was {'a' * 64} but wanted {'b' * 64}\n"
    ).findings
    assert (found.id, "pip" in found.fix) == ("fetch_checksum", False)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("line", [ARCH, KILLED, "ERROR: Config value 'cuda_wheel' is not defined in any .rc file"])
def test_what_builders_and_ci_systems_put_before_a_line_is_no_part_of_it(prefix: str, line: str) -> None:
    assert bare(prefix + line) == line
    (found,) = diagnosed(f"{prefix}one\n{prefix}{line}\n{prefix}three\n").findings
    assert (found.line, found.excerpt) == (2, f"{line}\nthree")


ENGINE = r'{"log":"%s\r\n","stream":"stderr","time":"2024-05-06T07:30:55.118230412Z"}'
KAGGLE = r'[{"stream_name":"stderr","time":1.2,"data":"%s\n"}]'


@pytest.mark.parametrize("form", [ENGINE, KAGGLE])
def test_an_engine_and_kaggle_put_lines_into_json(form: str) -> None:
    assert (bare(form % r"no \"a\""), bare('{"error":"\\"a\\""}')) == ('no "a"', '{"error":"\\"a\\""}')
    (found,) = diagnosed(f"{form % 'one'}\n{form % ARCH}\n").findings
    assert (found.id, found.excerpt) == ("nvcc_unsupported_arch", ARCH)


@pytest.mark.parametrize("quotes", ["''", "‘’", "`'", '""', "��", "â€˜â€™"])
def test_quotes_may_be_of_any_kind_and_broken(quotes: str) -> None:
    begin, end = quotes[: len(quotes) // 2], quotes[len(quotes) // 2 :]
    assert ids(f"a.cc:3:22: error: {begin}uint32_t{end} was not declared in this scope\n") == ["gcc13_cstdint"]
    latin = b"a.cc:3:22: error: \x91uint32_t\x92 was not declared in this scope\n"
    assert ids(latin) == ["gcc13_cstdint"]


TWO = f"one\n{ARCH}\n"
FORMS = {
    "crlf": f"one\r\n{ARCH}\r\nthree\r\n".encode(),
    "colours": f"[1 / 9] a\r[2 / 9] b\n\x1b[0m\x1b[31m\x1b[1mnvcc fatal \x1b[0m  : {ARCH[15:]}\n".encode(),
    "cr": f"[1 / 9] Compiling\n[2 / 9] Compiling a\r{ARCH}\r[3 / 9] Compiling\n".encode(),
    "osc": f"\x1b]0;title\x07one\n\x1b_bk;t=1714980655118\x07{ARCH}\n".encode(),
    "bytes": f"\xfe\x80\x00broken\n{ARCH}\n".encode("latin-1"),
    "gzip": gzip.compress(TWO.encode()),
    "members": gzip.compress(b"one\n") + gzip.compress(f"{ARCH}\n".encode()) + bytes(512),
    "utf-16": TWO.encode("utf-16"),
    "utf-16-be": TWO.encode("utf-16-be").join([b"\xfe\xff", b""]),
    "bom": f"\ufeffone\n{ARCH}".encode(),
    "utf-16-le without its mark": TWO.encode("utf-16-le"),
    "utf-16-be without its mark": TWO.encode("utf-16-be"),
    "zeros before": bytes(9000) + TWO.encode(),
    "zeros in it": f"one{chr(0) * 4000}\n{ARCH}\n".encode(),
}


@pytest.mark.parametrize("log", FORMS.values(), ids=FORMS)
def test_a_log_may_be_coloured_overwritten_packed_or_broken(log: bytes) -> None:
    (found,) = diagnosed(log).findings
    assert (found.id, found.line, found.values) == ("nvcc_unsupported_arch", 2, {"arch": "compute_35"})
    assert diagnosed(*[log[at : at + 1] for at in range(len(log))]) == diagnosed(log)


def test_a_line_is_cut_between_words_and_only_where_it_is_too_long() -> None:
    def around(before: bytes, after: bytes) -> tuple[bytes, bytes]:
        data = before + b"HERE" + after
        begin, end = Block(data, 1, 0, len(data)).around(len(before))
        return data[begin : len(before)], data[len(before) + 4 : end]

    fits = b"abc " * (NEAR // 4)
    assert around(b"x\n" + fits, fits[:-4] + b"\nx") == (fits, fits[:-4])
    assert around(fits, fits[:-4]) == (fits, fits[:-4])
    long = around(b"x" * 50 + b" " + fits[:-40], b" " + fits[:-40] + b"y" * 50)
    assert long == (fits[:-40], b" " + fits[:-41])
    # Where there is no word, there is no half of one.
    assert around(b"x" * 5000, b"y" * 5000) == (b"x" * NEAR, b"y" * (NEAR - 4))


def test_however_a_log_is_cut_the_same_is_found() -> None:
    log = b"".join(f"line {number} of many\n".encode() for number in range(300_000))
    log = log[: 3 * BLOCK // 2] + f"\n{HEADER}\nnext\n\nafter\n".encode() + log + f"{ARCH}".encode()
    whole = diagnosed(log)
    assert [one.id for one in whole.findings] == ["python_h_missing", "nvcc_unsupported_arch"]
    assert whole.findings[0].excerpt == f"{HEADER}\nnext"
    assert whole.findings[0].line == log[: log.index(HEADER.encode())].count(b"\n") + 1
    assert whole.lines == log.count(b"\n") + 1
    for size in (1000, 65_537, BLOCK - 1, 3 * BLOCK + 1):
        assert diagnosed(*[log[at : at + size] for at in range(0, len(log), size)]) == whole


def test_a_packed_log_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "build.log.gz"
    path.write_bytes(gzip.compress(f"{ARCH}\n".encode() + b"x" * 5000)[:-9])
    result = run(path)
    assert result.exit_code == 0
    assert "nvcc_unsupported_arch" in result.stdout
    assert "ends too early: only the text before this error is read" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "bash: line 3:    71 Segmentation fault      (core dumped) ./frob",
        "./build.sh: line 9: frobnicate: command not found",
        "make: frobnicate: Command not found",
    ],
)
def test_a_crash_and_a_program_that_is_missing_are_worth_a_look(line: str) -> None:
    found = diagnosed(b"one\n" + line.encode() + b"\n", b"git-lfs: command not found (optional)\n")
    assert found.findings == ()
    assert [(one.line, one.text) for one in found.suspects] == [(2, line)]


@pytest.mark.parametrize("literal", log_search._SUSPICIOUS)
def test_each_literal_of_suspicious_lines_leads_to_one(literal: str) -> None:
    """Else it costs a look at every line that has it, for nothing."""
    lines = [
        literal, f"x.cc:1:2: {literal} no", f"Module{literal} no", f"bash: frob: c{literal}", f"{literal}065 no",
        f"x.obj :{literal}2019: no", f"a.so: {literal}no", f"{literal}error   : no", f"{literal}: no",
        f"/usr/bin/ld: {literal}no.cc:1] no", f"x.o{literal}R_X against no", f"make: {literal}no",
        f"{literal}fail: no", f"{literal}56) no", f"Fehler {literal} no", f"Fehler {literal}19 no",
        f"Fehler{literal}065 no",
    ]  # fmt: skip
    assert any(diagnosed(f"{line}\n".encode()).suspects for line in lines)


def test_on_windows_commands_have_quotes_that_its_shell_knows() -> None:
    (found,) = diagnosed(b"C:\\Users\\me\\a.py\nAttributeError: _ARRAY_API not found\n").findings
    assert '`python -m pip install "numpy<2"`' in found.fix
    assert '`python -c "import numpy; print(numpy.__file__)"`' in found.fix


def test_what_a_value_means_does_not_replace_the_fix_of_a_row_that_keeps_its_own() -> None:
    line = "AttributeError: partially initialized module 'tensorflow' has no attribute 'Tensor' (most likely due to a"
    (found,) = diagnosed(f"{line} circular import)\n".encode()).findings
    assert found.fix.startswith("Rename your file")
    (found,) = diagnosed(b"AttributeError: module 'tensorflow' has no attribute 'frob'\n").findings
    assert "pip install --upgrade tensorflow" in found.fix


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("RuntimeError: module compiled against API version 0xe but this version of numpy is 0xd", ("0xe", "0xd")),
        (
            "RuntimeError: module was compiled against NumPy C-API version 0x10 (NumPy 1.23) but the running NumPy "
            "has C-API version 0xf. Check the section C-API incompatibility",
            ("0x10", "0xf"),
        ),
        (
            "ValueError: numpy.ndarray size changed, may indicate binary incompatibility. Expected 96 from C header, "
            "got 88 from PyObject",
            ("96", "88"),
        ),
    ],
)
def test_which_numpy_is_the_older_one_is_told(line: str, numbers: tuple[str, str]) -> None:
    (found,) = diagnosed(f"{line}\n".encode()).findings
    assert found.id == "numpy_abi"
    assert "(compiled: {}; installed: {}). The module was compiled for a newer NumPy ".format(*numbers) in found.cause
    assert "pip install -U 'numpy>=1.20,<1.24'" in found.fix
    assert "numpy<2" not in found.fix


def test_a_numpy_outside_of_what_the_release_requires_is_told() -> None:
    log = "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.3.4 as it may crash. To support\n"
    (found,) = diagnosed(f"Using TensorFlow version 2.14.0\n{log}").findings
    assert found.cause.endswith(" TensorFlow 2.14.0 was made with numpy >=1.23.5,<2.")
    assert found.fix.startswith("Run `python -m pip install 'numpy<2'`")
    # A part of unsure cause names what is outside of the release's versions.
    (_, first) = diagnosed("TensorFlow version: 2.4.0\nnumpy==1.24.3\nKeyError: 'x'\n").first.split(". ", 1)
    assert first.startswith("Not a version that TensorFlow 2.4.0 was made with: numpy 1.24.3 (made with ~=1.19.2).")


def test_a_pull_that_failed_before_bazel_completed_stopped_nothing() -> None:
    limit = b"toomanyrequests: You have reached your pull rate limit.\n"
    well = f"{WELL}\n"
    assert [one.id for one in diagnosed(limit).findings] == ["pull_rate_limit"]
    assert diagnosed(limit, well).findings == ()
    assert [one.id for one in diagnosed(well, limit).findings] == ["pull_rate_limit"]


# --- hostile logs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["begin", "middle", "end"])
def test_a_line_of_any_length_is_searched_and_shown_in_part(place: str) -> None:
    long = b"x" * (20 * BLOCK)
    before, after = {"begin": (b"", long), "middle": (long, long), "end": (long, b"")}[place]
    what = b' : PKIX path building failed: and "Server terminated abruptly (error code: 14, x)" '
    found = diagnosed(b"one\n" + before, what, after + b"\nlast\n")
    assert [one.id for one in found.findings] == ["fetch_tls", "bazel_server_abrupt_14"]
    assert {one.line for one in found.findings} == {2}
    assert all(one.count == 1 for one in found.findings)
    assert all(len(one.excerpt) < 3000 for one in found.findings)
    assert found.lines == 3


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_log() -> None:
    reader = Diagnostician(KNOWLEDGE)
    many = f"{ARCH}\n{KILLED}\nERROR: x failed\nerror: {'y' * 500}\n".encode() * 500
    reader.feed(many)
    tracemalloc.start()
    try:
        for _ in range(40):
            reader.feed(many)
        reader.feed(b"z" * 8 * BLOCK)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    seen = reader.close()
    assert [one.row.id for one in seen.sightings] == ["nvcc_unsupported_arch", "cc1plus_killed"]
    assert len(seen.suspects) <= 10


@pytest.mark.parametrize(
    "line",
    sample(
        [
            "libc++" * 500 + ": version",
            "nvcc fatal : " * 200,
            "undefined reference to `" * 100,
            "error: '" * 300 + "' was not declared in this scope",
            "\x1b[" * 1000,
            "\x1b]0;" * 500,
            '"' * 3000 + " is not defined for option",
            "ERROR: " + "no such target '" * 200,
            "E: " * 1000,
            "No such file or directory: " * 100,
        ],
        every=4,
    ),
)
def test_of_a_line_repeated_a_thousand_times_only_some_are_looked_at(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    candidates = Diagnostician._candidates

    def counted(reader: Diagnostician, block: Block) -> Iterator[tuple[int, int]]:
        places = list(candidates(reader, block))
        looked.append(len(places))
        return iter(places)

    monkeypatch.setattr(Diagnostician, "_candidates", counted)
    diagnosed(f"{line}\n".encode() * (4 * BLOCK // len(line)), f"{ARCH}\n")
    suspicious = 8 * log_search._SUSPECTS * len(log_search._SUSPICIOUS)
    assert looked
    assert max(looked) <= 2 * log_search._PATIENCE + suspicious


def test_nothing_of_a_log_reaches_a_terminal_raw(tmp_path: Path) -> None:
    log = tmp_path / "evil\x1b[2J.log"
    evil = "\x1b]0;owned\x07\x1b]52;c;cm0gLXJm\x07\x9b2J\x07\x08\u202e\x1b[\x1b[31m \x1bP+q\x1b\\ \x00"
    log.write_text(f"ERROR: no such target '//{evil}:x': {evil}\nfatal: {evil}\n")
    other = tmp_path / "unknown.log"
    other.write_text(f"ERROR: {evil}\n")
    for result in (run(log), run(other), run(log, "--json"), run(other, "--json")):
        assert result.exit_code == 0, result.output
        assert all(one.isprintable() or one == "\n" for one in result.output)
    assert document_of(log)["findings"][0]["id"] == "target_not_found"


def test_nothing_of_a_log_or_of_its_name_is_a_command_to_a_ci_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ci_log, "here", lambda: ci_log.service_of({"GITHUB_ACTIONS": "true"}))
    Path("::error::x.log").write_text(f"ERROR: ##[add-mask]a\n{ARCH} ##[error]owned\n::stop-commands::x\n")
    Path("::error::y.log").write_text("ERROR: ##[add-mask]a\n")
    for name in ("::error::x.log", "::error::y.log"):
        told = run(name).stdout
        assert "error" in told
        assert not re.search(r"##\[|^\s*::", told, re.MULTILINE), told


# --- what is the cause ----------------------------------------------------------------------------------------------


def test_the_first_that_stopped_something_is_before_what_follows_and_what_was_survived() -> None:
    survived = "W asm_compiler.cc:81] Your CUDA software stack is old. We fallback to the NVIDIA driver"
    docker = "The command '/bin/sh -c bazel build //x' returned a non-zero code: 137"
    found = diagnosed("\n".join([survived, HEADER, KILLED, docker])).findings
    assert [(one.id, one.confidence) for one in found] == [
        ("python_h_missing", "high"), ("cc1plus_killed", "high"), ("docker_build_oom_137", "medium"),
        ("ptxas_too_old_for_gpu", "medium"),
    ]  # fmt: skip


def test_what_was_survived_is_a_guess_where_something_else_stopped_it() -> None:
    git = "fatal: detected dubious ownership in repository at '/src'"
    assert [one.confidence for one in diagnosed(f"{git}\n").findings] == ["medium"]
    found = diagnosed(f"{git}\nERROR: /s/BUILD:1:1: Frobnicating failed: (Exit 1)\n")
    assert [(one.id, one.confidence) for one in found.findings] == [("git_dubious_ownership", "low")]
    assert list(lines(found, "run.log", sys.stderr, brief=True)) == []
    assert any("perhaps" in line for line in lines(found, "run.log", sys.stderr))


def test_what_was_tried_again_and_then_went_well_is_not_the_cause() -> None:
    timeout = "ERROR: java.io.IOException: Error downloading [http://a/z.tar.gz] to /x/z.tar.gz: Read timed out"
    again = f"{timeout}\nINFO: Analyzed target //tensorflow/tools/pip_package:wheel (3 packages loaded).\n{HEADER}\n"
    assert ids(again) == ["python_h_missing"]
    assert ids(f"{timeout}\nINFO: Analyzed target //x\n{WELL}\n") == []
    assert ids(f"{KILLED}\n{WELL}\n{timeout}") == ["fetch_timeout"]


@pytest.mark.parametrize(
    "line",
    [
        f"note: yesterday's build ended with {ARCH}", f"+ echo '{ARCH}'", f"Step 3/9 : RUN echo {ARCH}",
        f"#7 [3/9] RUN echo {ARCH}", f"WARNING: retrying after: {HEADER}", f"the previous run ended with: {KILLED}",
        f"attempt 1 of 3 failed, retrying; it said {HEADER}", 'Expected error: "No space left on device"',
        f"  | {HEADER}", f"# {HEADER}", f"> {ARCH}", f"  137 | #error -- unsupported GNU version! {HEADER}",
        "INFO: From Compiling x: no space left on device: never mind",
        "[       OK ] DiskTest.No space left on device (0 ms)",
        "//tensorflow/core:collect2_ld_terminated_with_signal_9_test PASSED in 0.1s",
        "int Server_terminated_abruptly(int error_code) { return 14; }",
    ],
)  # fmt: skip
def test_a_line_that_only_quotes_or_warns_is_no_failure(line: str) -> None:
    assert ids(f"{line}\n") == []


def test_below_the_name_of_a_file_only_a_deeper_line_is_code() -> None:
    indent = " " * HEADER.index(" ")
    above = f'{indent}File "a.py", line 1\n'
    assert (ids(f"{above}{indent}  {HEADER}\n"), ids(f"{above}{HEADER}\n")) == ([], ["python_h_missing"])


def test_a_failure_that_repeats_is_told_once_with_its_first_line_and_how_often() -> None:
    (found,) = diagnosed(f"one\n{KILLED}\n" * 5).findings
    assert (found.line, found.count) == (2, 5)


def test_a_dead_address_is_told_with_the_sum_that_the_build_looked_up() -> None:
    told = "java.io.IOException: Error downloading [https://gone.example/x.tgz] to /x: GET returned 404 Not Found\n"
    (finding,) = diagnosed(told).findings
    assert "(the source has its sha256 next to the address)" in finding.fix
    (finding,) = diagnosed(told, f"tfdock:   archive: https://gone.example/x.tgz, sha256 {'a' * 64}\n").findings
    assert "The server has no https://gone.example/x.tgz" in finding.cause
    assert f"the same file (sha256 {'a' * 64})." in finding.fix


def test_values_come_from_the_line_or_others_and_have_words_where_the_log_says_nothing() -> None:
    other = "Please downgrade your bazel installation to version 6.1.0 or lower to build TensorFlow!"
    assert "{" not in diagnosed(other).findings[0].cause
    assert "the installed Bazel is outside of this range" in diagnosed(other).findings[0].cause
    assert "7.4.1 is outside of this" in diagnosed(f"You have bazel 7.4.1 installed.\n{other}").findings[0].cause


# --- a profile beside it --------------------------------------------------------------------------------------------


def profile_of(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "tensorflow": "2.18.0", **fields}))
    return path


@pytest.mark.parametrize(
    ("fields", "line", "asked", "change"),
    [
        (
            {"compute_capabilities": ["sm_80", "sm_86"], "cuda": "12.5.1"},
            "clang-16: error: unsupported CUDA gpu architecture: sm_86",
            "sm_80, sm_86, clang 18 for GPU code and CUDA 12.5.1",
            {"compute_capabilities": ["sm_80"]},
        ),
        (
            {"gpus": ["rtx5090"], "cuda": "12.5.1"},
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
            "sm_120 (rtx5090) and CUDA 12.5.1",
            {"tensorflow": "2.20.0", "cuda": "12.8.0"},
        ),
        (
            {"gpus": ["rtx3080"], "bazel": {"configs": ["mkl"]}},
            "ERROR: Config value 'mkl' is not defined in any .rc file",
            "TensorFlow 2.18.0 and Bazel 6.5.0",
            {"bazel.configs": None},
        ),
        ({"accelerator": "cpu", "resources": {"jobs": 4}}, KILLED, "", {"resources.jobs": 2}),
        (
            {"accelerator": "cpu", "resources": {"memory": "3584MiB", "jobs": 1}},
            KILLED,
            "1 job in 3.5 GiB",
            {"resources.memory": "4GiB"},
        ),
        (
            {"accelerator": "cpu"},
            "a.cc:1:2: error: 'memcpy' writing 8 bytes into a region of size 4 [-Werror=stringop-overflow]",
            "",
            {"bazel.copts": ["-Wno-error=stringop-overflow"]},
        ),
    ],
)
def test_a_profile_says_what_it_asks_and_gets_a_change_that_check_accepts(
    tmp_path: Path, log: Path, fields: dict[str, Any], line: str, asked: str, change: dict[str, Any]
) -> None:
    profile = profile_of(tmp_path, **fields)
    log.write_text(f"{line}\n")
    document = document_of(log, "--profile", profile)
    (found,) = document["findings"]
    assert asked in found["asked"]
    assert found["asked"].startswith("your profile asks ")
    changes = [one["change"] for one in found["changes"]]
    assert change in changes
    for one in changes:
        changed = yaml.safe_load(profile.read_text())
        for path, value in one.items():
            field, _, inner = path.partition(".")
            if inner:
                changed[field] = {**(changed.get(field) or {}), inner: value}
                changed[field] = {key: some for key, some in changed[field].items() if some is not None}
            else:
                changed = {**changed, field: value}
        (tmp_path / "changed.yaml").write_text(
            yaml.safe_dump({key: value for key, value in changed.items() if value is not None})
        )
        assert command_line.run("check", tmp_path / "changed.yaml").exit_code == 0, one
    text = run(log, "--profile", profile).stdout
    assert found["asked"][1:] in text
    assert "`tfdock check` accepts it" in text


@pytest.mark.parametrize(
    ("resources", "written"),
    [
        ({"memory": "16GiB", "jobs": 8}, "resources: {memory: 16GiB, jobs: 4}"),
        ({"jobs": 4, "time_limit": "5h30m"}, 'resources: {time_limit: "5h30m", jobs: 2}'),
        ({"memory": "16GiB", "jobs": 1}, "resources: {jobs: 1, memory: 24GiB}"),
    ],
)
def test_what_it_says_can_be_pasted_in_place_of_what_the_profile_says(
    tmp_path: Path, resources: dict[str, Any], written: str
) -> None:
    profile, log = profile_of(tmp_path, accelerator="cpu", resources=resources), tmp_path / "build.log"
    log.write_text(f"{KILLED}\n")
    (found,) = document_of(log, "--profile", profile)["findings"]
    (way,) = found["changes"]
    assert way["text"] == f"`{written}`"
    (pasted,) = re.findall("`([^`]+)`", way["text"])
    lines_before = yaml.safe_dump({"schema": 1, "tensorflow": "2.18.0", "accelerator": "cpu"})
    profile.write_text(f"{lines_before}{pasted}\n")
    context = load_context(str(profile), preparer_for(settings_for()))
    assert context is not None
    assert context.profile is not None
    after = context.profile.resources.model_dump(exclude_unset=True)
    assert after == {**resources, **{path.partition(".")[2]: value for path, value in way["change"].items()}}


def test_what_is_pasted_reads_as_what_is_meant() -> None:
    profile = read_profile(
        'schema: 1\ntensorflow: "2.18.0"\nbazel: {version: "6.5.0", flags: ["--define=a=b c", --x]}\n', "p.yaml"
    )[0]
    change: dict[str, object] = {"bazel.copts": ["-includecstdint", "-DX={1, 2}"], "python": "3.10", "xla": False}
    pasted = re.findall("`([^`]+)`", describe_change(change, profile))
    assert [yaml.safe_load(one) for one in pasted] == [
        {"bazel": {"version": "6.5.0", "flags": ["--define=a=b c", "--x"], "copts": change["bazel.copts"]}},
        {"python": "3.10"},
        {"xla": False},
    ]


@pytest.mark.parametrize("name", ["cuda", "cudnn"])
def test_a_change_that_changes_nothing_is_not_offered(tmp_path: Path, name: str) -> None:
    """Without the field, the release's own version is taken, which is the same."""
    line = "x.cc:12:10: fatal error: cudnn.h: No such file or directory\n"
    tested = {"cuda": "12.5.1", "cudnn": "9.3.0"}
    for version, changes in ((tested[name], []), ("12.4.1" if name == "cuda" else "9.2.1", [{name: None}])):
        log = tmp_path / "build.log"
        log.write_text(line if name == "cudnn" else "Could not find any cuda.h in any subdirectory:\n")
        profile = profile_of(tmp_path, gpus=["rtx3080"], allow_untested=True, **{**tested, name: version})
        (found,) = document_of(log, "--profile", profile)["findings"]
        assert [one["change"] for one in found["changes"]] == changes


AMPERE, BLACKWELL = ({"gpus": [name], "cuda": "12.5.1"} for name in ("rtx3080", "rtx5090"))
CUDA_H = "Could not find any cuda.h matching version '{}' in any subdirectory:"
NVCC = ARCH.replace("35", "86")


@pytest.mark.parametrize(
    ("fields", "line", "misfit"),
    [
        (AMPERE, NVCC, ""),
        (BLACKWELL, NVCC, "your profile asks sm_120, but the log is about compute_86"),
        (BLACKWELL, NVCC.replace("86", "120"), ""),
        (AMPERE, CUDA_H.format("11.2"), "your profile asks CUDA 12.5.1, but the log is about CUDA 11.2"),
        (AMPERE, CUDA_H.format("12.5"), ""),
        ({"accelerator": "cpu"}, NVCC, ""),
    ],
)
def test_a_log_that_cannot_be_of_that_profile_is_told_and_gets_no_change(
    tmp_path: Path, log: Path, fields: dict[str, Any], line: str, misfit: str
) -> None:
    log.write_text(f"{line}\n")
    profile = profile_of(tmp_path, **fields)
    (found,) = document_of(log, "--profile", profile)["findings"]
    told = found["misfit"]
    assert (misfit in told, bool(misfit)) == (True, bool(told))
    if misfit:
        assert found["changes"] == []
        before, _, after = run(log, "--profile", profile).stdout.partition("profile: ")
        assert "Your profile asks" not in before
        assert after.startswith(f"{told[:1].upper()}{told[1:]}.")


CUDART = "W dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot"
IGNORED = "I cudart_stub.cc:29] Ignore above cudart dlerror if you do not have a GPU set up on your machine."


def test_a_failure_with_a_part_beside_that_shows_another_cause_is_left_out() -> None:
    invalid = "[libprotobuf ERROR descriptor_database.cc:560] Invalid file descriptor data passed to "
    invalid += "EncodedDescriptorDatabase::Add()."
    named = "[libprotobuf ERROR descriptor_database.cc:642] File already exists in database: a.proto"
    assert ids(f"{invalid}\n") == ["protobuf_of_two_versions"]
    assert ids(f"{named}\n{invalid}\n") == ["proto_registered_twice"]


@pytest.mark.parametrize(("printed", "found"), [("False", ["built_without_cuda"]), ("True", [])])
def test_a_statement_is_read_with_the_output_below_it(printed: str, found: list[str]) -> None:
    assert ids(f">>> tf.test.is_built_with_cuda()\n{printed}\n") == found


@pytest.mark.slow
def test_a_runtime_library_that_is_missing_is_a_failure_where_a_gpu_is_asked_for(tmp_path: Path, log: Path) -> None:
    log.write_text(f"one\n{CUDART}\n{IGNORED}\n")
    for fields, ids_found in (
        ({"gpus": ["rtx3080"]}, ["libcudart_not_loaded"]),
        ({"gpus": ["rtx5090"], "cuda": "12.5.1"}, ["libcudart_not_loaded"]),  # refused as it stands
        ({"accelerator": "cpu"}, []),
    ):
        words = (log, "--profile", profile_of(tmp_path, **fields))
        document = document_of(*words, "-v")
        assert [one["id"] for one in document["findings"]] == ids_found
        assert len(document["warnings"]) == (not ids_found)
        assert ("cudart_not_here" in run(*words).stdout) is (not ids_found), "nothing else is in the log"
    (found,) = document_of(log, "--profile", profile_of(tmp_path, gpus=["rtx3080"]))["findings"]
    assert (found["line"], found["count"], found["values"]) == (2, 2, {"library": "libcudart.so.11.0"})


def test_a_driver_that_is_missing_is_a_failure_where_a_gpu_is_asked_for(tmp_path: Path, log: Path) -> None:
    log.write_text("2025-01-01 00:00:00.1: E cuda_driver.cc:152] failed call to cuInit: UNKNOWN ERROR (303)\n")
    alone = document_of(log, "-v")
    assert (alone["findings"], alone["suspects"]) == ([], []), "a harmless line is no suspicious one"
    assert [one["id"] for one in alone["warnings"]] == ["libcuda_not_here"]
    kernel = "kernel reported version is: 460.91.3"
    assert ids(f"{log.read_text()}{kernel}\n") == ["nvidia_driver_missing"], "a module of the driver is loaded"
    listed = ">>> tf.config.list_physical_devices('GPU')"
    assert ids(f"{log.read_text()}{listed}\n[]\n") == ["nvidia_driver_missing"], "somebody expects a GPU"
    (found,) = document_of(log, "--profile", profile_of(tmp_path, gpus=["rtx3080"]))["findings"]
    assert (found["id"], found["confidence"]) == ("nvidia_driver_missing", "low"), (
        "the trial of a build without a GPU says it too"
    )
    assert "--gpus all" in found["fix"]


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (f"{KILLED}\n{WELL}\n", ("bazel_completed", 2)),
        (f"{WELL}\nuploading\n", ("bazel_completed", 1)),
        (f"{WELL}\na.c:1: error: no\n", None),
        (f"{WELL}\n{KILLED}\n", None),
        (f"{WELL}\n=== tfdock: wheel of x ===\n", None),
        ("INFO: Analyzed target //a:b (1 packages loaded).\n", None),
        ("nothing\n", None),
    ],
)
def test_a_log_that_ends_well_is_told_so(tmp_path: Path, log: str, end: tuple[str, int] | None) -> None:
    file = tmp_path / "a.log"
    file.write_text(log)
    (read,) = document_of(file)["logs"]
    assert (read["success"] and (read["success"]["id"], read["success"]["line"])) == end
    told = run(file).stdout
    assert (f"{file}:{end[1] if end else 0}: success: Bazel built all" in told) is bool(end)
    assert ("no known failure" in told) is (not end and KILLED not in log)


def test_a_log_that_shows_its_gpu_or_release_is_told_what_is_missing_and_what_the_release_was_made_with() -> None:
    shown = "I gpu_device.cc:1561] Found device 0 with properties:"
    (found,) = diagnosed(f"Using TensorFlow version 2.2.0\n{CUDART}\n{shown}\n").findings
    assert found.id == "libcudart_not_loaded"
    assert found.cause.endswith(" TensorFlow 2.2.0 was made with CUDA 10.1 and cuDNN 7.6.")
    assert not diagnosed(f"{CUDART}\n").findings
    (found,) = diagnosed("ERROR: No matching distribution found for tensorflow==2.5.1\n").findings
    assert found.cause.endswith(" TensorFlow 2.5.1 was made with Python 3.6 to 3.9.")
    # TensorRT's versions stand with the part itself.
    (found,) = diagnosed("TensorFlow version: 2.4.1\na.cc:1:2: error: 'x' is not a member of 'nvinfer1'\n").findings
    assert " TensorFlow 2.4.1 was made with TensorRT 7.1." in found.cause


def test_a_list_of_pip_that_shows_the_python_gets_the_fix_for_this_python() -> None:
    asked = "ERROR: Could not find a version that satisfies the requirement tensorflow==1.15 (from versions: {})\n"
    ends = "ERROR: No matching distribution found for tensorflow==1.15\n"
    (shown,) = diagnosed(asked.format("2.2.0, 2.2.1"), ends).findings
    assert shown.fix.startswith("Make an environment with Python 3.7 ")
    (unknown,) = diagnosed(asked.format("none"), ends).findings
    assert unknown.fix.startswith("Run `python -c ")
    assert "`uv venv --python 3.7`" in unknown.fix


def test_an_error_in_an_optional_part_is_told_how_to_leave_it_out() -> None:
    error = "external/kafka/src/a.c:1:9: error: 'x' undeclared (first use in this function)"
    (found,) = diagnosed(f"{error}\n").findings
    assert (found.id, "`--config=nokafka`" in found.fix) == ("kafka_unfit", True)
    # Bazel's message names the part that compiles another one's header; its command names folders of many parts.
    message = "ERROR: /b/external/kafka/BUILD:8:1: C++ compilation of rule '@kafka//:kafka' failed (Exit 1): {}"
    unknown = 'boringssl/src/base.h:114:2: error: #error "Unknown target CPU"'
    (found,) = diagnosed(f"{message.format('gcc failed')}\n{unknown}\n").findings
    assert found.fix.endswith("`TF_NEED_KAFKA=0` before ./configure).")
    command = "ERROR: /b/BUILD:8:1: Compiling a.cc failed: gcc failed: error executing command gcc -Iexternal/kafka/x"
    (found,) = diagnosed(f"{command}\n{unknown}\n").findings
    assert "Kafka" not in found.fix


def test_the_first_library_that_is_missing_is_the_one_that_is_named() -> None:
    log = (
        f"{CUDART}\n{IGNORED}\n{CUDART.replace('cudart.so.11.0', 'cublas.so.11')}\nCannot dlopen some GPU libraries\n"
    )
    found = diagnosed(log)
    assert [(one.id, one.line, one.count) for one in found.findings] == [("libcudart_not_loaded", 1, 4)]
    assert found.findings[0].values["library"] == "libcudart.so.11.0"
    assert found.warnings == ()


def test_the_error_that_ended_a_program_comes_before_what_the_program_survived() -> None:
    error, survived = "TypeError: frob", f"{CUDART}\nCannot dlopen some GPU libraries"
    told = f"The program survived what is listed below, and stopped in line 3: `{error}`."
    assert " ".join(lines(diagnosed(f"{survived}\n{error}\n"), "x.log", sys.stderr)).startswith(told)
    assert not diagnosed(f"{error}\n{survived}\n").first


# --- a run of ours --------------------------------------------------------------------------------------------------


def test_a_diagnosis_never_hides_the_failure_that_it_is_about(tmp_path: Path) -> None:
    assert diagnose_run_log(None, KNOWLEDGE) is diagnose_run_log(tmp_path / "gone.log", KNOWLEDGE) is None
    assert load_context(str(tmp_path / "gone.yaml"), preparer_for(settings_for())) is None


def test_what_the_log_of_a_run_says_of_steps_that_are_over_is_not_the_cause(log: Path) -> None:
    log.write_text(f"=== tfdock: compile of x ===\n{KILLED}\n=== tfdock: compile of x ===\n{HEADER}\n")
    found = diagnose_run_log(log, KNOWLEDGE)
    assert found is not None
    assert [(one.id, one.line) for one in found.findings] == [("python_h_missing", 4)]


def test_what_no_program_said_is_written_down_by_the_run(log: Path) -> None:
    with log.open("wb") as file:
        supervisor = Supervisor(
            engine=FakeEngine(), run_id="r", local=True, log=file, listen=lambda _: None, stop=Stop()
        )
        message = "127.0.0.1:5551 has no image tensorflow/build:9, or does not show it to you"
        supervisor.log_error(NetworkError(Problem(code="image-not-found", message=message)))
        supervisor.log_error(OSError(28, "No space left on device"))
    assert log.read_text() == f"tfdock: {message}\ntfdock: [Errno 28] No space left on device\n"
    found = diagnose_run_log(log, KNOWLEDGE)
    assert found is not None
    assert [one.id for one in found.findings] == ["manifest_unknown", "bazel_no_space"]


# --- the command ----------------------------------------------------------------------------------------------------


def test_it_prints_table_cause_fix_line_excerpt_and_source(log: Path) -> None:
    log.write_text(f"one\n{HEADER}\n{KILLED}\n")
    told = run(log).stdout.splitlines()
    assert told[0].split() == ["line", "stage", "cause"]
    assert told[1].split() == ["1", "2", "compile", "sure", "python_h_missing"]
    assert f"python_h_missing [compile, sure] {log}:2" in told
    assert f"  | {HEADER}" in told
    assert any(line.startswith("  fix: Install the headers of") for line in told)
    assert any(line.startswith("  source: https://") for line in told)


def test_several_logs_and_standard_input_are_each_told_by_name(log: Path) -> None:
    log.write_text(ARCH)
    result = run(log, "-", stdin=f"{KILLED}\n".encode())
    assert f"{log}:1" in result.stdout
    assert "cc1plus_killed [compile, sure] -:1" in result.stdout
    document = json.loads(run("--json", stdin=gzip.compress(KILLED.encode())).stdout)
    assert [(one["id"], one["file"]) for one in document["findings"]] == [("cc1plus_killed", "-")]


def test_noise_is_explained_when_asked_and_where_a_log_has_nothing_else(log: Path) -> None:
    noise = "I port.cc:153] oneDNN custom operations are on. You may see\n2.18.0\n"
    log.write_text(noise)
    told, how, *rest = run(log).stdout.splitlines()
    assert told == f"{log}: no known failure in 2 lines"
    assert how.startswith("If the build failed nevertheless: `tfdock report --bundle LOG")
    assert (rest[1], "onednn_on" in rest[2]) == ("harmless:", True)
    log.write_text(f"{noise}frob.c:1: error: frobnication\n")
    *_, hint = run(log).stdout.splitlines()
    assert hint == "1 line looks bad but is usually harmless: `-v` says why"
    told = run(log, "-v").stdout
    assert "harmless:" in told
    assert "as a rule" not in told
    assert "onednn_on" in told
    document = document_of(log, "-v")
    assert (document["findings"], [one["id"] for one in document["warnings"]]) == ([], ["onednn_on"])


def test_a_log_without_an_error_says_where_the_cause_stands(log: Path) -> None:
    log.write_text("2024-01-10 00:00:00.1: I a:1] XLA service for CUDA\nSuccessfully opened x\nmake: *** [all]\n")
    _, whole, *_ = run(log).stdout.splitlines()
    assert whole.startswith("tfdock finds no error in these lines. The cause is in the first error of the whole")


def test_where_nothing_is_known_it_says_so_with_suspicious_lines_and_how_to_report_it(log: Path) -> None:
    many = "".join(f"frob.c:{number}: error: frobnication {number}\n" for number in range(10_000))
    log.write_text(f"one\n{many}FAILED: frobnication\n")
    told = run(log).stdout
    assert "no known failure in 10,002 lines" in told
    assert re.search(r"^ *10002 +FAILED: frobnication$", told, re.MULTILINE), "a place, as other tools take it"
    assert "frob.c:0: error: frobnication 0" in told
    assert "FAILED: frobnication" in told
    assert "To report it" in told
    assert len(told.splitlines()) < 20
    document = document_of(log)
    assert document["findings"] == []
    assert document["suspects"][0] == {"file": str(log), "line": 2, "text": "frob.c:0: error: frobnication 0"}


@pytest.mark.parametrize(
    ("name", "said", "fix"),
    [
        ("none.log", "No such file", "check the name"),
        ("folder", "Is a directory", "name the logs in it"),
        ("https://example.org/1/raw", "No such file", "download the log first"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    result = run(name, "--json")
    (problem,) = json.loads(result.stdout)["problems"]
    assert (result.exit_code, problem["code"], problem["file"]) == (2, "file-unreadable", name)
    assert problem["message"].startswith(f"cannot be read: {said}")
    assert problem["fix"].startswith(fix)


def test_the_logs_that_can_be_read_are_told_though_others_cannot(tmp_path: Path) -> None:
    log, gone = tmp_path / "a.log", tmp_path / "none.log"
    log.write_text(ARCH)
    result = run(gone, log, tmp_path)
    assert result.exit_code == 2
    assert f"nvcc_unsupported_arch [compile, sure] {log}:1" in result.stdout
    assert result.stderr.count("[file-unreadable]") == 2
    document = document_of(gone, log)
    assert document["ok"] is False
    assert [one["file"] for one in document["findings"]] == [str(log)]
    assert [one["file"] for one in document["problems"]] == [str(gone)]
    assert "problems" not in document_of(log)


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("build.log", ARCH)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "program"),
    [
        (zipped(), "a zip archive", "unzip"),
        (gzip.compress(zipped()), "a zip archive", "unzip"),
        (lzma.compress(ARCH.encode()), "packed with xz", "xz -d"),
        (bz2.compress(ARCH.encode()), "packed with bzip2", "bzip2 -d"),
        (gzip.compress(gzip.compress(b"x")), "data that is packed more than once", "gunzip"),
        (bytes.fromhex("28b52ffd") + b"\x04\x41" + ARCH.encode(), "packed with zstd", "zstd -d"),
        (Path(sys.executable).read_bytes()[: 1 << 16], "binary data", "give a file with the text"),
    ],
    ids=["zip", "zip in gzip", "xz", "bzip2", "packed twice", "zstd", "program"],
)
def test_what_is_not_text_is_refused_with_what_it_is(tmp_path: Path, data: bytes, kind: str, program: str) -> None:
    path = tmp_path / "build.log"
    path.write_bytes(data)
    for result in (run(path), run(stdin=data)):
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"this is {kind}, not the text of a log [log-not-text]" in result.stderr
        assert program in result.stderr.split("fix: ")[1]
    with pytest.raises(NotText):
        diagnosed(*[data[at : at + 1] for at in range(min(len(data), 9000))])


@pytest.mark.slow
def test_of_a_log_that_is_denser_than_any_the_first_part_is_read() -> None:
    log = f"{ARCH}\n".encode() + (b"x" * 99 + b"\n") * 200_000
    result = run(stdin=gzip.compress(log))
    assert "its gzip data unpacks to over 250 times its size; no log does" in result.stderr
    assert "nvcc_unsupported_arch" in result.stdout


def test_in_an_archive_of_tar_logs_are_read() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        one = tarfile.TarInfo("build.log")
        log = f"one\n{ARCH}\n".encode()
        one.size = len(log)
        archive.addfile(one, io.BytesIO(log))
    assert ids(packed.getvalue()) == ids(gzip.compress(packed.getvalue())) == ["nvcc_unsupported_arch"]


def test_an_empty_log_is_a_log_and_it_says_where_errors_are() -> None:
    assert diagnosed(b"") == Diagnosis(lines=0, findings=())
    assert list(Log().close()) == []
    result = run(stdin=b"")
    assert result.exit_code == 0
    assert "-: the log is empty. Errors go to standard error: add `2>&1` before the pipe" in result.stderr
    assert "2>&1" not in run(stdin=b"one\n").stderr


ABI = (
    "tensorflow.python.framework.errors_impl.NotFoundError: /home/me/lib/python3.7/site-packages/tensorflow_text/"
    "python/metrics/_text_similarity_metric_ops.so: undefined symbol: _ZN10tensorflow8OpKernel11TraceStringEv"
)


@pytest.mark.parametrize("width", [60, 80, 92])
def test_a_log_that_a_terminal_broke_at_its_edge_is_read_whole(width: int) -> None:
    broken = "\n".join(ABI[at : at + width] for at in range(0, len(ABI), width))
    found = diagnose_log(io.BytesIO(f"Traceback:\n{broken}\nend\n".encode()), loader.knowledge(), name="x")
    assert [(one.id, one.line) for one in found.findings] == [("addon_of_other_release", 2)]


def test_a_log_that_a_post_quotes_is_read_as_it_was() -> None:
    log = f"> one\n> {ARCH}\n>\n> three\n".encode()
    found = diagnose_log(io.BytesIO(log), loader.knowledge(), name="x")
    assert [(one.line, one.excerpt) for one in found.findings] == [(2, f"{ARCH}\nthree")]


@pytest.mark.parametrize(
    ("log", "whole"),
    [
        (b"a" * 80 + b"\n" + b"b" * 80 + b"\nc\nd\n", b"a" * 80 + b"b" * 80 + b"c\n\n\nd\n"),
        (b"a" * 80 + b"\nb\nc\n", b""),  # one long line is no edge
        (b"a" * 300 + b"\n" + b"b" * 300 + b"\nc\n", b""),  # no terminal is so wide
        (b"a " * 39 + b"a\nbc d\n", b"a " * 39 + b"a bc d\n\n"),  # a page folds lines at blanks
        (b"> a\n>\n> > b\n\n", b"a\n\n> b\n\n"),
        # What CMake tells again of a linker is broken at blanks, with empty lines between.
        (b" a: undefined reference to\n `b\n c'\n\n d\n", b" a: undefined reference to `b c'\n\n\n\n d\n"),
        (b"a &quot;b&quot; &lt; &#39;\n", b'a "b" < \'\n'),
        ("```bash\n<pre><code class='x'>a\u00a0b</code>\n".encode(), b"bash\na b\n"),
        (b"a&b &copy; &lt std::vector<span<int>> <a> `b`\n", b""),
        (b"> a\nb\n", b""),  # what is quoted in a log is of another
        (b"> a\n", b""),
        (b"", b""),
    ],
)
def test_only_what_was_pasted_is_read_again(log: bytes, whole: bytes) -> None:
    assert unwrapped(log) == whole


def test_the_fix_for_a_value_names_what_stands_in_the_value() -> None:
    wheel = "tensorflow-1.4.0-cp35-cp35m-linux_x86_64.whl"
    (one,) = diagnosed(f"{wheel} is not a supported wheel on this platform.\n").findings
    assert "If `python --version` does not print 3.5, " in one.fix
