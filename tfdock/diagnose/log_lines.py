"""Cut a log of any kind into blocks of whole lines, and restore lines as their programs printed them. Pure.

A log may be packed (gzip), in UTF-16 or broken UTF-8, or coloured. It may have progress lines that overwrite each
other (CR), prefixes of builders and CI systems, and lines of any length. The memory that is used is bounded.
"""

from __future__ import annotations

import codecs
import html
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import stringzilla

BLOCK = 1 << 20  #: Bytes of a block.
#: Bytes that are read and unpacked at once. For each larger piece, the system would allocate new memory pages.
PIECE = 1 << 16
NEAR = 1000  #: The most bytes of a line that are used before and after a match: lines may be very long.
_WORD = 300  #: The most bytes of a partial word that is dropped where a line is cut.
AFTER = 2  #: The number of lines that are shown after a line.
_LONGEST = 512  #: Bytes of the longest text that is searched for.
# An escape sequence may be cut at the end of a piece, so this many bytes are held back.
_ESCAPE_LENGTH = 256

# Colour sequences, which are the most frequent and are tried first; cursor sequences; commands for a terminal or CI
# system (OSC, APC) within a line; single escapes.
_ESCAPE = re.compile(
    rb"\x1b(?:\[[\d;]{0,64}m|\[[0-?]{0,64}[ -/]{0,8}[@-~]|[\]_P^X][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|"
    rb"[ -/]{0,4}[0-Z\\^-~])"
)
# Byte order marks (BOM) of Unicode. Windows PowerShell writes UTF-16 with `>`.
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_GZIP = b"\x1f\x8b"
_HEAD = 1 << 13  #: How many bytes at the beginning are checked to see whether the data is text.
_PACKED = (
    (re.compile(rb"PK(?:\x03\x04|\x05\x06)"), "a zip archive", "unzip"),
    (re.compile(rb"\xfd7zXZ\x00"), "packed with xz", "xz -d"),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "packed with bzip2", "bzip2 -d"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "packed with zstd", "zstd -d"),
)
_ODD = re.compile("[\x00-\x06\x0e-\x1a\x1c-\x1f\ufffd]")  #: Characters that never occur in text or terminal output.

_DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d\d)[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
#: Before a line in JSON, in engines' files and Kaggle's.
_IN_JSON = re.compile(r'\{"log":"|[\[,]?\{"stream_name":"\w{6}","time":[\d.]{1,20},"data":"')
_LEVEL = "(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_PREFIX = re.compile(
    "|".join(
        [
            r"\ufeff",
            rf"{_DATE}(?: \d\d[OE][+ ]?| (?:stdout|stderr) [FP])? ",  # GitHub, GitLab, containers' runtimes
            r"\[\d\d:\d\d:\d\d\][WEi]?:\s{1,4}(?:\[Step \d+/\d+\] )?|\[Step \d+/\d+\] ",  # TeamCity
            # Jenkins, `ts`, kernels, Celery, Gunicorn
            rf"\[(?:{_DATE}(?: [+-]\d{{4}}|: {_LEVEL}/[\w-]{{1,40}})?|{_CLOCK}|[+ ]{{0,12}}\d+(?:\.\d+)?s?)\]:? ?",
            rf"\(?{_CLOCK}\)?:? {{1,12}}(?=\S)",  # Bazel's --show_timestamps, Jenkins
            r"#\d+ (?:\d+\.\d+ {1,40})?(?=\S)",  # BuildKit
            r"(?<=\s)\d{1,7} {4}(?=\S)",  # Spack, in the lines around an error
            r"\d{1,5}\.\d{1,3} (?=[A-Za-z/])",  # BuildKit, when it repeats the failed step
            r"\d{1,8} (?=(?:INFO|WARNING|ERROR): )",  # PyInstaller
            r"(?:=> ?)+(?:#|=> )?",
            r"(?=[\d+]*[A-Za-z_])[\w.@/-]{1,80}\s{0,40}\| ",  # Compose, foreman
            r"[^\t\n]{1,100}\t[^\t\n]{1,100}\t(?=\d{4}-\d\d-\d\dT)",  # `gh run view --log`
            # syslog, `ts`
            rf"[A-Z][a-z]{{2}} [ \d]\d {_CLOCK} (?:[\w.-]{{1,80}} (?![Ee]rror:)[\w./-]{{1,60}}(?:\[\d+\])?: )?",
            r"[IWEF]\d{4} [\d:.]{12,15}\] |\[(?:\w{3} \w{3} +\d+|pid|remote|client) [\w.: ]{1,60}\] ",  # Prow, Apache
            r"\[[^\]\n]{1,80}\] {1,4}\| |\+[A-Za-z][\w-]{0,60} \| ",  # act, Earthly
            r"\[[a-z][\w./-]{0,120}(?::\w{1,20}){0,3}\] {1,4}",  # Drone, kubectl, other tools with several sources
            # Python's logging: its default, Airflow, EasyBuild, Home Assistant, loguru
            rf"{_LEVEL}:(?!tensorflow\b)[A-Za-z_][\w.-]{{0,60}}:(?=\S)",
            rf"(?:\{{[\w.-]{{1,80}}:\d{{1,6}}\}} |- [\w.-]{{1,60}} - )?{_LEVEL} - ",
            rf"(?<=[\dZ] )(?:[\w-]{{1,60}}\.py:\d{{1,6}} )?{_LEVEL} {{1,4}}(?!\d)"
            r"(?:\([\w-]{1,40}\) )?(?:\[[\w.]{1,100}\] )?",
            rf"\| {_LEVEL} {{1,5}}\| [\w.:<>-]{{1,120}} - ",
            rf"\[[DIWEC] (?:{_DATE}|{_CLOCK}) \w{{1,40}}\] |\[\w{{3,40}}App\] {_LEVEL} \| ",  # Jupyter
            r"\((?:raylet|(?:[\w.:]{1,80} )?pid=\d{1,8})(?:, ip=[\d.]{7,15})?\) ",  # Ray
            r"(?:\[\d{1,4}(?:,\d)?\]<std(?:err|out)>|stderr|stdout|STDERR|STDOUT|remote): {0,12}(?=\S)",  # MPI
            r"(?:npm|(?:node-pre-)?gyp) (?:ERR!|error) (?:stack )?(?=\S)",  # Node.js
            r"(?:INFO|WARN|ERRO|FATA|DEBU)\[\d{4}\] |\d{1,3}\|[\w.-]{1,60}\s{0,20}\| ",  # Go's logrus, pm2
            r"(?:app|heroku)\[[\w.-]{1,40}\]: |(?:python|pip|conda|bazel)[\w.]{0,10} : ",  # Heroku, PowerShell
            r"Caused by: |Exception in thread \"[^\"\n]{1,60}\" |Error in [\w.:]{1,60}\(.{0,200}\) ?: ",  # Java, R
            r"[│├╰×][─▶>]{0,2} {1,4}(?=\S)|== (?=\d{4}-)|\* (?=[A-Za-z])",  # uv, Julia, EasyBuild, Portage
            r"\d{1,7}[:\t](?=[A-Za-z/ ])",  # `grep -n`, `cat -n`
            r"Step #\d{1,4}(?: - \"[^\"\n]{1,80}\")?: |\[Container\] ",  # Cloud Build, CodeBuild
            _IN_JSON.pattern,
            # Android's logcat and Android Studio
            r"(?:(?:\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} {1,4})?\d{1,7}-\d{1,7}/\S{1,80} )?"
            r"[VDIWEFA]/[\w.:-]{3,60} {0,40}(?:\( {0,8}\d{1,7}\))?: ",
            r"\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} {1,8}\d{1,7} {1,8}\d{1,7} [VDIWEFA] [\w.:-]{1,60} {0,40}: ",
            r"\d{1,7}-\d{1,7} {1,8}\S{1,60} {1,40}\S{1,80} {1,40}[VDIWEFA] {1,4}",
            # Jobs of Vertex AI
            r"(?:ERROR|INFO|WARNING|CRITICAL)\s{1,4}\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}"
            r"\s{1,8}[\w-]{1,60}\s{1,40}(?=\S)",
            r"Exception: (?=\w{1,40}Error: )",  # Azure Functions
            r"[a-z][\w.+-]{2,60}> (?=\S)|(?<=\s{3})> (?=\S)",  # Nix, also when it repeats the failed lines
            r">> \d+ {2,8}|\[(?:ERROR|error|stderr)\] +",  # Spack, Maven and others
            r"##\[(?:error|warning|group|debug|section|command)\]|::(?:error|warning|notice)[^:\n]{0,200}::",
            r"E\s{2,7}(?=\S)",  # pytest
            r"C/C\+\+: (?:\w{1,40}\|[\w-]{1,20} :)?",  # Gradle, before the output of CMake
            r"(?<!\s) ?\| (?=[^\s|^~+][^|]*$)",  # BitBake; neither tables, nor a compiler's excerpts with more blanks
            r"\*\*(?=[A-Za-z])|`(?=[^`\n]{8,2000}`$)",  # Markdown, around a line that was pasted
            r"\d{1,4}>\s{0,8}(?=\S)",  # MSBuild
            r"\s{1,200}",
        ]
    )
)
# Prefixes nest: a line of BuildKit may be part of a line of a CI service.
_PREFIXES = 8
# The command of a step and the calls of a traceback, below a line that announces an error. NEXT begins a line.
_CALLS = re.compile(
    (
        rb"(?:NEXT[ \t]+\(?cd [^\n]*(?:NEXT[ \t]+[^\n]*){0,400}(?:NEXT(?:# |Execution platform: )[^\n]*){0,3})?"
        rb"(?:(?:\n[^\n]*Traceback \(most recent call last\):)?"
        rb'NEXT[ \t]*File "[^\n]*(?:NEXT[ \t]+[^\n]*){0,400})?'
    ).replace(b"NEXT", rb"\n(?:#\d+ [\d.]+ )?")
)
_SUFFIX = re.compile(r'(?:\\r)?(?:\\n)?"(?:,"stream":"std(?:out|err)","time":"[^"]{1,40}")?\}\]?$')


class NotText(ValueError):
    """The data is not text. `kind` is the actual format; `program` is the command that unpacks it, or empty."""

    def __init__(self, kind: str, program: str = "") -> None:
        super().__init__(kind)
        self.kind, self.program = kind, program


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of a log without escape sequences. `line` is the number of the first line, from 1.

    Only matches from `since` on and before `until` belong to this block. The rest is context from other blocks.
    """

    data: bytes
    line: int
    since: int
    until: int

    def around(self, place: int) -> tuple[int, int]:
        """Return the begin and end of the part of a line around a place. A single CR also ends a line.

        A part of a longer line is cut between words, because half a secret would not be recognized.
        """
        data, low, high = self.data, max(place - NEAR, 0), min(place + NEAR, len(self.data))
        first = max(low - 1, 0)
        # Use the last line end before the place: progress output overwrites itself with CR within one line.
        begin = max(data.rfind(b"\n", first, place), data.rfind(b"\r", first, place)) + 1
        ends = (data.find(b"\n", place, high + 1), data.find(b"\r", place, high + 1))
        # Drop a word only if the line was cut: otherwise every line would lose its first word.
        word = data.find(b" ", low, low + _WORD) + 1 if low else 0
        last = data.rfind(b" ", high - _WORD, high) if high < len(data) else -1
        return begin or word or low, min((end for end in ends if end >= 0), default=last if last >= 0 else high)

    def text(self, begin: int, end: int) -> str:
        """Return a line as its program printed it."""
        return bare(self.data[begin:end].decode("utf-8", "replace"))

    def is_source(self, begin: int) -> bool:
        """Return whether the line that begins here is source code that a traceback shows below the file's name."""
        above = self.data[max(begin - NEAR, 0) : max(begin - 1, 0)].rpartition(b"\n")[2]
        indent = above.find(b'File "')
        # A prefix, such as a time, may stand before the name and before the code.
        start = begin + (indent if above[:indent].strip() else 0)
        return indent >= 0 and b'", line ' in above and self.data[start : begin + indent + 1].isspace()

    def shown(self, place: int, after: int = AFTER) -> tuple[str, ...]:
        """Return the line at a place and the next lines, without calls, a step's command, and empty lines."""
        begin, end = self.around(place)
        lines = [self.text(begin, end)]
        end = calls.end() if (calls := _CALLS.match(self.data, end)) else end
        for _ in range(after):
            at = self.data.find(b"\n", end, end + NEAR)
            if at < 0 or at + 1 >= len(self.data):
                break
            begin, end = self.around(at + 1)
            lines.append(self.text(begin, end))
        return tuple(filter(None, lines))


def bare(line: str) -> str:
    """Return a line without the prefixes of builders and CI systems, and without indentation."""
    begin, mark = 0, ""
    for _ in range(_PREFIXES):
        match = _PREFIX.match(line, begin)
        # Keep a line that is only a prefix: the program may have printed it.
        if not match or match.end() == len(line):
            break
        begin, mark = match.end(), match[0]
    text = line[begin:].removesuffix(mark) if mark in ("**", "`") else line[begin:]
    if _IN_JSON.match(line):
        text = _SUFFIX.sub("", text).replace('\\"', '"')
    return text.rstrip()


class Log:
    """Cuts the bytes of a log into blocks; each block, except the last, also has lines of the next block."""

    def __init__(self) -> None:
        self._held = bytearray()  # plain bytes for the next block; those before `_since` were in the last block
        self._since = 0
        self._raw = b""  # possibly the beginning of an escape sequence
        self._line = 1

    def feed(self, data: bytes) -> Iterator[Block]:
        """Take some bytes and yield the blocks that are now complete."""
        data = self._raw + data
        at = data.rfind(b"\x1b", max(len(data) - _ESCAPE_LENGTH, 0))
        self._raw, data = (data[at:], data[:at]) if at >= 0 else (b"", data)
        self._held += _plain(data)
        if len(self._held) < BLOCK:
            return
        held, at = bytes(self._held), 0
        while len(held) - at >= BLOCK:
            # Twice the size of a block: the lines after the block are context for excerpts.
            block, keep = self._cut(held[at : at + 2 * BLOCK])
            at += keep
            yield block
        del self._held[:at]

    def close(self) -> Iterator[Block]:
        """Yield the last block at the end of the log."""
        self._held += _plain(self._raw)
        self._raw = b""
        if self._held:
            yield Block(bytes(self._held), self._line, self._since, len(self._held))

    @property
    def lines(self) -> int:
        """The number of lines; known when the log is closed."""
        unended = bool(self._held) and not self._held.endswith(b"\n")
        return self._line - 1 + self._held.count(b"\n") + unended

    def _cut(self, data: bytes) -> tuple[Block, int]:
        """Return the next block, and the number of its bytes that the following block does not repeat."""
        until = len(data)
        # The lines that an excerpt shows after a line must be in the same block.
        for _ in range(AFTER + 2):
            until = data.rfind(b"\n", self._since, until)
            if until < 0:
                break
        if until < 0:  # The line is longer than a block: the next block repeats its end.
            # No searched text may be split by the end of a block.
            until = len(data) - NEAR - _LONGEST
            keep = until - NEAR
        else:
            until = keep = until + 1
        block = Block(data, self._line, self._since, until)
        # `bytes.count` takes eight times as long, a tenth of the whole search.
        self._line += stringzilla.count(data, b"\n", 0, keep)
        self._since = until - keep
        return block, keep


def _plain(data: bytes) -> bytes:
    return _ESCAPE.sub(b"", data) if b"\x1b" in data else data


#: The largest allowed compression ratio, and the size from which it is checked. Logs have a ratio of 10 to
#: 50; gzip can reach a thousand.
_DENSEST, _ANY_DENSITY = 250, 16 << 20


def unpacked(chunks: Iterable[bytes], tell: Callable[[str], object]) -> Iterator[bytes]:
    """Yield a log as UTF-8, unpacked if it is packed; raises NotText before the first piece if it is not a log.

    `tell` is called with the reason if the rest of a packed log cannot be read.
    """
    head, rest = _head(iter(chunks))
    if head.startswith(_GZIP):
        head, rest = _head(_gunzip(rest, tell))
        if head.startswith(_GZIP):
            raise NotText("data that is packed more than once", "gunzip")
    # The unpacked data may be UTF-16.
    if coding := _UTF16.get(head[:2]) or _unmarked_utf16(head):
        decoder = codecs.getincrementaldecoder(coding)("replace")
        yield from (decoder.decode(chunk).encode("utf-8", "replace") for chunk in rest)
    else:
        _check_text(head)
        yield from rest


def _head(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the beginning of the data, and all the data."""
    head = b""
    while len(head) < _HEAD and (chunk := next(chunks, b"")):
        head += chunk
    return head[:_HEAD], chain([head], chunks)


def _unmarked_utf16(head: bytes) -> str:
    """Return the encoding of UTF-16 without a BOM, else empty: in Latin text, only every second byte is zero."""
    first, second, half = head[::2].count(0), head[1::2].count(0), len(head) // 2
    mostly, hardly = half * 4 // 5, half // 20
    if first <= hardly and second > mostly:
        return "utf-16-le"
    return "utf-16-be" if second <= hardly and first > mostly else ""


def _check_text(head: bytes) -> None:
    """Raise NotText for data that begins like another format. The files in a tar archive are text.

    A few odd bytes are allowed: a crashed machine leaves zeros in logs, and programs may print any bytes.
    """
    for magic, kind, program in _PACKED:
        if magic.match(head):
            raise NotText(kind, program)
    text = re.sub("\0+", "\0", head.strip(b"\0").decode("utf-8", "replace"))
    is_tar = head.startswith(b"ustar", 257)  # POSIX ustar: the magic of a member's header
    if "\0" in text and not is_tar and len(_ODD.findall(text)) > len(text) // 10:
        raise NotText("binary data")


def _gunzip(chunks: Iterable[bytes], tell: Callable[[str], object]) -> Iterator[bytes]:
    """Yield the contents of all members of gzip data, at most a piece at a time."""
    # zlib's manual: 16 is added to the window's 15 bits to read a gzip header.
    member, size, total = zlib.decompressobj(wbits=31), 0, 0
    for chunk in chunks:
        left, size = chunk, size + len(chunk)
        while left:
            if member.eof:
                # RFC 1952, 2.2: a file may have several members, one after the other.
                if not left.startswith(_GZIP[: len(left)]):
                    return  # Padding.
                member = zlib.decompressobj(wbits=31)
            try:
                # In pieces: a few kilobytes may unpack to gigabytes.
                data = member.decompress(left, PIECE)
            except zlib.error as error:
                tell(f"its gzip data is broken: {error}")
                return
            total += len(data)
            if total > max(_ANY_DENSITY, _DENSEST * size):
                tell(f"its gzip data unpacks to over {_DENSEST} times its size; no log does")
                return
            if data:
                yield data
            left = member.unused_data if member.eof else member.unconsumed_tail
    if not member.eof:
        tell("its gzip data ends too early")


_WIDTHS = range(60, 251)  #: Usual widths of terminals in columns.
_FOLD = 80  #: The columns at which mails and pages fold lines.
#: A tag of a page or a fence of Markdown; or, as the group, an entity.
_MARKUP = re.compile(
    rb"</?(?:pre|code|br|p|div|span|details)\b[^<>\n]{0,200}>|```|(&(?:quot|apos|lt|gt|amp|nbsp|#0?39|#x27);)"
)


def unwrapped(log: bytes) -> bytes:
    """Return a pasted log as it was printed: without quote marks and a page's markup, and with wrapped lines joined.

    An empty line replaces each continuation line, so that line numbers do not change. Empty if nothing was changed.
    """
    text = _MARKUP.sub(lambda markup: html.unescape((markup[1] or b"").decode()).encode(), log)
    lines = text.replace("\u00a0".encode(), b" ").split(b"\n")
    said = [line for line in lines if line.strip()]
    # A single quoted line may quote another log. If all lines are quoted, a post or mail quotes this log.
    quoted = len(said) > 1 and all(line.startswith(b">") for line in said)
    lines = [line[1:].removeprefix(b" ") for line in lines] if quoted else lines
    edge = max(map(len, lines))
    # CMake wraps linker messages at spaces, and adds an empty line after each line.
    filled = any(line.endswith(b"undefined reference to") for line in lines)
    cut = not filled and edge in _WIDTHS and sum(len(line) == edge for line in lines) > 1
    # A mail or a page folds longer lines at spaces, so few lines are longer.
    fold = _FOLD if sum(len(line) > _FOLD for line in lines) * 8 <= len(lines) else 0
    whole: list[bytes] = []
    start = 0  # of the line that continues
    for before, line in pairwise([b"", *lines]):
        folded = b" " in before and len(before) <= fold < len(before) + 1 + len(line.split(b" ", 1)[0])
        if (line.strip() and before.strip()) if filled else len(before) == edge if cut else folded:
            whole[start] += line if cut else b" " + line.lstrip()
            whole.append(b"")
        else:
            start = len(whole)
            whole.append(line)
    text = b"\n".join(whole)
    return text if text != log else b""
