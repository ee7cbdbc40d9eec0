"""Read what Bazel and its compilers print, line by line: progress and errors. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Only numbers that `int` accepts, since any program may print such lines; no pattern needs quadratic time.
_COUNT = r"[0-9][0-9,]{0,17}"
_PROGRESS = re.compile(rf"\[({_COUNT}) / ({_COUNT})\]")
_CEREMONY = re.compile(
    r"INFO: (?:Found applicable config definition|Reading |Options provided by the client|Elapsed time: |"
    r"Build Event Protocol files)|\s{1,8}(?:Inherited )?'[a-z-]{1,40}' options: |WARNING: The following configs were "
    r"|FAILED: Build did NOT complete|Use --verbose_failures to see|Target \S{1,400} failed to build"
)
_PROCESSES = re.compile(rf"INFO: {_COUNT} process(?:es)?: (.*)")
_PART = re.compile(rf"({_COUNT}) (.+)")
# The words of Java, Bazel (`GET returned`), curl, git, the C library and apt (`resolving`).
_NETWORK = re.compile(
    r"UnknownHostException|Unknown host|Connection refused|Connection reset|[Cc]onnect(?:ion)? timed out|"
    r"Network is unreachable|No route to host|GET returned (?:4|5)\d\d|Could not resolve host|"
    r"Temporary failure (?:in name resolution|resolving)"
)
_DOWNLOAD = re.compile(r"Error downloading \[([^\]\s,]{1,1000})[^\]]{0,5000}\] to /")
_WANTED = re.compile(r"Checksum was [0-9a-f]{64} but wanted ([0-9a-f]{64})")
_NO_SPACE = re.compile(r"No space left on device|ENOSPC")
_LONG = 600
# One `\w` before `Error`: `\w+` would restart at each letter and take 37 ms instead of 0.15 ms for a line of 4096.
_ERROR = re.compile(
    r"\A(?:ERROR\b|FATAL\b|FAILED\b|Error: |Exception: |Error in |tfdock: |(?:nvcc|nvlink|ptxas) (?:fatal|error)\b|"
    r"CMake Error\b|No package '|#error |Undefined symbols for |\S{0,20}make(?:\[\d+\])?: \*\*\* No rule |"
    # The list of errors of Visual Studio, in the language of the system.
    r"(?:[Ee]rror|错误|錯誤|エラー|오류|Fehler|Erreur|Errore|Erro|Ошибка)\s+(?:C|LNK) ?[0-9]{4}\s)|"
    r"\b(?:fatal )?error (?:C|LNK|MSB)[0-9]{4} ?:(?: |\Z)|\AFAIL: //|"
    r"\.so[\d.]*: undefined symbol: |\berror:|Killed\b|Segmentation fault\b|\w(?:Error|Exception): |"
    r"\bF(?:0000)? (?:\S{1,40} +\d+ )?[\w./\\:-]{1,200}\.(?:cc|h):\d+\] "  # TensorFlow stops itself
)
# A place in a file, as compilers name it: `a.cc:3:10`, `a.cu(3)`, and as linkers do: `a.cc:(.text+0x1)`.
_PLACE = r"(?![0-9]{1,4}:)[^\s:(]{1,400}(?::[0-9]{1,7}(?::[0-9]{1,7})?|\([0-9][0-9,]{0,14}\)|:\(\.[^\s)]{1,200}\))"
_COMPILER_ERROR = re.compile(
    # gcc, clang and hipcc; nvcc (`error #20:`); MSVC (`error C2664:`); the assembler (`Error:`); an unfound header.
    rf"(?:{_PLACE} ?|[A-Za-z]:(?:[^:(]|\(x86\)){{1,400}}\([0-9][0-9,]{{0,14}}\) ?|[^\s:]{{1,400}} ): "
    r"(?:fatal |catastrophic |internal compiler )?[eE]rror(?: #[0-9]{1,6}(?:-D)?| (?:C|LNK)[0-9]{4})? ?:(?: |\Z)"
    # ptxas, nvlink, fatbinary and nvcc themselves. Leave out lines that only report another error in the list.
    r"|(?:nvcc|ptxas|nvlink|fatbinary|cudafe\+\+)(?: [^\s;]{1,400}, line [0-9]{1,7};)? {1,4}(?:error|fatal) {0,4}: "
    r"(?!'[^']{1,80}' died|Ptx assembly aborted)"
    # Drivers: an unknown option, a missing file.
    r"|(?:[^\s:]{0,200}/)?(?:[a-z0-9_]{1,40}-){0,4}(?:gcc|g\+\+|cc1|cc1plus|clang|clang\+\+|hipcc)(?:-[0-9.]{1,9})?: "
    r"(?:fatal )?error: (?!linker command failed|unable to execute command)"
    r"|LLVM ERROR: |fatal error: error in backend: "
    # ld, gold and lld.
    r"|(?:[^\s:]{0,200}/)?(?:ld(?:\.bfd|\.gold|\.lld)?|lld|mold): (?:error: |fatal: |cannot find |final link failed)"
    r"|(?:\S{0,200}/ld(?:\.bfd|\.gold)?: )?\S{1,400}: (?:in function `[^']{1,900}': \S{0,400}: )?"
    r"(?:undefined reference to |multiple definition of |relocation (?:R_\S{1,80} against|truncated to fit))"
)
_COMPILER_ERRORS, _COMPILER_LINE = 3, 300
# Prefixes of paths in the source tree: Bazel's execution root, the source folder, and `.`.
_BEFORE_TREE = re.compile(
    r"(?<![^\s`'\"(])(?:/\S{0,400}/execroot/[^\s/]{1,100}/|/proc/self/cwd/|/tf/tensorflow/|\./)"
)


def progress(line: str) -> tuple[int, int] | None:
    """Return (done, total) from a progress line `[1,234 / 5,678] Compiling …`; None for other lines."""
    match = _PROGRESS.match(line)
    return (_number(match[1]), _number(match[2])) if match else None


def action(line: str) -> str:
    """Return the action in a progress line: `Compiling x.cc` for `[1 / 2] Compiling x.cc; 3s local`."""
    match = _PROGRESS.match(line)
    return line[match.end() :].partition("; ")[0].strip() if match else ""


def is_ceremony(line: str) -> bool:
    """Return whether a line is only about Bazel's start or end."""
    return (_CEREMONY.match(line) or _PROCESSES.match(line)) is not None


def processes(text: str) -> dict[str, int]:
    """Return the actions by runner, from the last line like `INFO: 13 processes: 3 disk cache hit, 10 local.`"""
    counts: dict[str, int] = {}
    for match in _PROCESSES.finditer(text):
        counts = dict(_summary(match[1])) or counts
    return counts


def _summary(text: str) -> Iterator[tuple[str, int]]:
    """Yield (name, count) from `3 disk cache hit, 10 local.`"""
    for part in text.rstrip().removesuffix(".").split(", "):
        if match := _PART.fullmatch(part):
            yield match[2], _number(match[1])


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def is_error(line: str) -> bool:
    """Return whether a line of a build log looks like an error."""
    return _ERROR.search(line) is not None or _COMPILER_ERROR.match(line) is not None


def first_error(lines: Iterable[str]) -> str:
    """Return the first report of an error among lines, at most 600 characters; empty if there is none.

    Bazel announces some errors, such as errors of a repository rule, in a line that ends with a colon. Then the next
    line is added.
    """
    errors = [line.strip() for line in lines if is_error(line)]
    ends = next((place for place, line in enumerate(errors, 1) if not line.endswith(":")), len(errors))
    text = " ".join(errors[:ends])
    # Keep both ends: an error begins with its place, and often ends with the reason.
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]} … {text[-_LONG // 2 + 3 :]}"


def compiler_errors(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the first three different errors of compilers, assemblers and linkers among lines.

    Each has at most 300 characters, and names files by their path in the source tree: `a/b.cc:3:10: error: …`.
    Bazel's own messages about a failed action are left out.
    """
    found: dict[str, None] = {}
    for line in lines:
        if _COMPILER_ERROR.match(line):
            short = _BEFORE_TREE.sub("", line.rstrip()[: 3 * _COMPILER_LINE])
            found[short if len(short) <= _COMPILER_LINE else f"{short[: _COMPILER_LINE - 1]}…"] = None
            if len(found) == _COMPILER_ERRORS:
                break
    return tuple(found)


def failed_download(lines: Iterable[str]) -> tuple[str, str] | None:
    """Return the first address of the first failed download, and the expected checksum; None without one.

    Bazel prints the expected checksum only if the file had another checksum. If not, this text is empty.
    """
    for line in lines:
        if match := _DOWNLOAD.search(line):
            wanted = _WANTED.search(line)
            return match[1], wanted[1] if wanted else ""
    return None


def speaks_of_network(lines: Iterable[str]) -> bool:
    """Return whether the output reports a failed download."""
    return any(_NETWORK.search(line) for line in lines)


def speaks_of_full_disk(lines: Iterable[str]) -> bool:
    """Return whether the output reports a full disk."""
    return any(_NO_SPACE.search(line) for line in lines)
