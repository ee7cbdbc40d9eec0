"""Read, check and normalise wheels.

Pure functions over open binary files: no environment, no clock, no process, no network. The archive is read
and written here rather than with `zipfile` for two reasons: `zipfile` forgives what an attacker needs (it
takes the last of two equal names, trusts the central directory, skips over bytes nobody accounts for), and
the headers it writes differ a little between Python versions, while a normalised wheel must be the same
bytes everywhere.

Contents stream in blocks of 1 MiB. Besides one block, only the archive's directory and the wheel's own
documents (RECORD, METADATA, WHEEL) are held in memory: some 20 MiB for a TensorFlow wheel with 20,000
members.

Every file handed in must be seekable; it is left open, at no particular position. What makes a file not a
wheel raises `WheelError`; what its RECORD gets wrong is collected, all of it, as `RecordProblem` values.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import stat
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email import message_from_string
from email.message import Message
from itertools import pairwise
from typing import BinaryIO, NoReturn, Protocol

from packaging.metadata import RawMetadata, parse_email
from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

__all__ = [
    "FIXES",
    "RecordProblem",
    "WheelError",
    "WheelFacts",
    "WheelMetadata",
    "content_digest",
    "deflate_backend",
    "metadata",
    "normalize",
    "read_wheel",
    "requires_dist",
]

EARLIEST_EPOCH = 315532800  # 1980-01-01T00:00:00Z, where zip's calendar starts
LATEST_EPOCH = 4354819198  # 2107-12-31T23:59:58Z, where it ends; zip counts seconds in twos
DEFLATE_LEVEL = (
    6  # 196 MB of shared libraries: level 1 72 MB, level 6 64 MB, level 9 63 MB in four times the time of 6
)

MAX_MEMBERS = 100_000
MAX_DIRECTORY_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 32 << 20  # RECORD, METADATA and WHEEL are read whole
MAX_UNPACKED_BYTES = 16 << 30
RATIO_FREE_BYTES = 1 << 30  # below this an archive hurts nobody, whatever its ratio
MAX_RATIO = 200  # whole archive; wheels with debug information stay below 20

_BLOCK = 1 << 20
_PACKED_BLOCK = 1 << 16  # small: after each MiB of output zlib copies the input it has not read
_U16 = 0xFFFF
_U32 = 0xFFFF_FFFF

FIXES: Mapping[str, str] = {
    "wheel-bad-compression": "Build the wheel again with stored or deflated members only.",
    "wheel-bad-metadata": "Build the wheel again with a current setuptools or wheel package.",
    "wheel-bad-name": "Name the file NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl, as the build did.",
    "wheel-bad-rewrite": "Give a PEP 440 version, a distribution name, a platform tag such as linux_x86_64.",
    "wheel-bomb": "Do not unpack this file. If it is yours, find out which member is almost all zeros.",
    "wheel-corrupt-member": "Fetch or build the wheel again: its bytes were damaged.",
    "wheel-duplicate-member": "Build the wheel again in an empty folder, so that files are packed once.",
    "wheel-encrypted": "Build the wheel without a password: installers cannot read encrypted members.",
    "wheel-header-mismatch": "Do not install this file: two programs may unpack it differently.",
    "wheel-hidden-data": "Do not install this file; build or fetch the wheel again.",
    "wheel-leading-data": "Remove what stands before the archive, or fetch the wheel again.",
    "wheel-missing-dist-info": "Build the wheel again: it needs exactly one NAME-VERSION.dist-info folder.",
    "wheel-missing-metadata": "Build the wheel again: its .dist-info folder needs WHEEL and METADATA.",
    "wheel-missing-record": "Build the wheel again: its .dist-info folder needs RECORD.",
    "wheel-name-mismatch": "Rename the wheel with `normalize`: it changes folder and METADATA too.",
    "wheel-not-a-zip": "Fetch or build the wheel again: the file is cut short, or it is something else.",
    "wheel-overlapping-members": "Do not unpack this file: its members share bytes, as in a zip bomb.",
    "wheel-record-mismatch": "Find out what changed the wheel after it was built; then build it again.",
    "wheel-special-file": "Build the wheel with regular files: wheels cannot carry links or devices.",
    "wheel-tag-mismatch": "Retag the wheel with `normalize` or `wheel tags`, not by renaming the file.",
    "wheel-too-large": "Strip debug information; if the file is not yours, do not unpack it.",
    "wheel-trailing-data": "Remove what follows the archive, or fetch the wheel again.",
    "wheel-unsafe-path": "Do not install this file. If it is yours, pack members under plain relative paths.",
    "wheel-version-mismatch": "Change the version with `normalize`: it changes folder and METADATA too.",
}
"""Every code a `WheelError` can have, with what to do about it."""


class WheelError(Exception):
    """A file that cannot be taken as a wheel.

    `code` is a stable kebab-case word (a key of `FIXES`), `message` one sentence naming the member and the
    values that disagree, `fix` one sentence saying what to do.
    """

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordProblem:
    """One way in which RECORD and the files of a wheel disagree; `path` is the file in question."""

    path: str
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """What a wheel is.

    `name` and `version` are normalised (`tensorflow-cpu`, `2.18.0`), `build` is `""` without a build tag,
    and the three tags stand as in the file name (`manylinux_2_17_x86_64.manylinux2014_x86_64`). `size` is
    the file's, in bytes; `sha256` is hexadecimal; `members` counts files, not folders. `record_problems` is
    sorted by path, and `record_ok` says that it is empty.
    """

    name: str
    version: str
    build: str
    python_tag: str
    abi_tag: str
    platform_tag: str
    size: int
    sha256: str
    members: int
    record_ok: bool
    record_problems: tuple[RecordProblem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMetadata:
    """The fields of METADATA that tfdock uses, as written there."""

    name: str
    version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]


def read_wheel(file: BinaryIO, filename: str) -> WheelFacts:
    """Check a wheel and say what it is.

    `filename` is the wheel's name without a folder. The whole file is read twice, once for its own hash and
    once unpacked for RECORD. Raises `WheelError` when the file is not a sound wheel of that name.
    """
    name = _parse_filename(filename)
    archive = _open(file)
    _check_identity(archive, name)
    problems = _record_problems(archive)
    size, sha256 = _file_hash(file)
    return WheelFacts(
        name=name.canonical,
        version=str(name.parsed_version),
        build=name.build,
        python_tag=name.python,
        abi_tag=name.abi,
        platform_tag=name.platform,
        size=size,
        sha256=sha256,
        members=len(archive.members),
        record_ok=not problems,
        record_problems=problems,
    )


def normalize(
    source: BinaryIO,
    filename: str,
    target: BinaryIO,
    *,
    epoch: int = EARLIEST_EPOCH,
    version: str | None = None,
    name: str | None = None,
    platform_tag: str | None = None,
) -> str:
    """Write to `target` the one wheel that stands for all wheels with the same contents; return its file
    name.

    Members are sorted, `.dist-info` last and RECORD last of all; they have one time, mode 755 or 644, no
    extra fields and no comments; folders are dropped, and so are the RECORD signatures, which the new
    RECORD makes invalid. Contents stay as they are, but for RECORD and what `version`, `name` and
    `platform_tag` ask to be rewritten: METADATA's Version and Name, WHEEL's Tag lines, the `.dist-info` and
    `.data` folders, the file name. WHEEL's Tag lines otherwise keep their order: that is content, and
    nothing that varies between two packings changes it.

    `epoch` is in seconds since 1970 UTC, rounded down to even and clamped to zip's years 1980 to 2107.
    `target` must be seekable and is overwritten from its start. The bytes also depend on the deflate
    implementation: see `deflate_backend`.

    Raises `WheelError`, also (`wheel-record-mismatch`) when the source's RECORD is wrong: a new RECORD
    would bless whatever damage the old one shows. After an error `target` holds rubbish.
    """
    old = _parse_filename(filename)
    new = _renamed(old, version=version, name=name, platform_tag=platform_tag)
    archive = _open(source)
    _check_identity(archive, old)
    rows, problems = _record_rows(archive)
    _raise_record_problems([*problems, *_listing_problems(archive, rows)])
    folders = _Folders.between(archive.dist_info, new, version=version, name=name)
    documents = _rewritten_documents(archive, old, new, name=name, version=version)
    target.seek(0)
    writer = _Writer(target, epoch)
    entries = [
        _copy_member(source, member, path, documents.get(member.name), rows, writer)
        for member, path in _moves(archive, folders)
    ]
    writer.add_bytes(f"{folders.dist_info}/RECORD", _record_bytes(entries, folders.dist_info))
    writer.finish()
    return new.text


def content_digest(file: BinaryIO) -> str:
    """Return the sha256, hexadecimal, of what a wheel holds, whatever its packing.

    It covers every file's name, whether it is executable, and the hash of its unpacked bytes. RECORD and
    its signatures are left out, since RECORD repeats those facts in an order of its own: so a wheel and its
    normalised form are equal, also when another deflate implementation packed them. Raises `WheelError` for
    an unsound archive.
    """
    archive = _open(file)
    skipped = archive.unhashed
    total = hashlib.sha256(b"tfdock.wheel-content/1\n")
    for member in sorted(archive.members, key=lambda member: member.name.encode()):
        if member.name not in skipped:
            digest = _digest_member(file, member, "sha256").hex()
            total.update(f"{member.mode:o} {digest} {member.name}\n".encode())
    return total.hexdigest()


def metadata(file: BinaryIO) -> WheelMetadata:
    """Read METADATA. Raises `WheelError` for an unsound archive and for METADATA missing or not parsing."""
    return _read_metadata(_open(file))


def requires_dist(file: BinaryIO) -> tuple[str, ...]:
    """Return METADATA's Requires-Dist lines, as they stand. Raises `WheelError` as `metadata` does."""
    return metadata(file).requires_dist


def deflate_backend() -> str:
    """Name the deflate implementation, such as `zlib 1.2.13` or `zlib-ng 2.2.5`.

    It belongs in a build's record: two implementations pack the same contents to different bytes.
    """
    zlib_ng: str | None = getattr(zlib, "ZLIBNG_VERSION", None)
    return f"zlib-ng {zlib_ng}" if zlib_ng else f"zlib {zlib.ZLIB_RUNTIME_VERSION}"


# --- names ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileName:
    """A wheel's file name in its parts, as written there."""

    distribution: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    @property
    def text(self) -> str:
        parts = (self.distribution, self.version, self.build, self.python, self.abi, self.platform)
        return "-".join(part for part in parts if part) + ".whl"

    @property
    def canonical(self) -> str:
        return canonicalize_name(self.distribution)

    @property
    def parsed_version(self) -> Version:
        return Version(self.version.replace("_", "-"))

    @property
    def tags(self) -> frozenset[Tag]:
        return parse_tag(f"{self.python}-{self.abi}-{self.platform}")


def _parse_filename(filename: str) -> _FileName:
    try:
        parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        _fail("wheel-bad-name", f"`{filename}` is not the name of a wheel: {error}.")
    if not re.fullmatch(r"[\w.+!-]+", filename, re.ASCII):
        _fail(
            "wheel-bad-name",
            f"`{filename}` is not the name of a wheel: it has characters no wheel's name has.",
        )
    parts = filename.removesuffix(".whl").split("-")
    distribution, version, *build, python, abi, platform = parts
    return _FileName(
        distribution=distribution,
        version=version,
        build="".join(build),
        python=python,
        abi=abi,
        platform=platform,
    )


def _renamed(old: _FileName, *, version: str | None, name: str | None, platform_tag: str | None) -> _FileName:
    """Return the new file name, escaped as the wheel specification asks: `-` becomes `_`, `+` stays."""
    new = old
    if name is not None:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
            _fail("wheel-bad-rewrite", f"`{name}` is not a distribution name.")
        new = replace(new, distribution=canonicalize_name(name).replace("-", "_"))
    if version is not None:
        new = replace(new, version=_normal_version(version).replace("-", "_"))
    if platform_tag is not None:
        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", platform_tag):
            _fail("wheel-bad-rewrite", f"`{platform_tag}` is not a platform tag.")
        new = replace(new, platform=platform_tag)
    return new


def _normal_version(version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion:
        _fail("wheel-bad-rewrite", f"`{version}` is not a version.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folders:
    """Where the two folders named after the wheel move. Names are those of top-level folders."""

    old_stem: str
    new_stem: str

    @classmethod
    def between(cls, dist_info: str, new: _FileName, *, version: str | None, name: str | None) -> _Folders:
        old_stem = dist_info.removesuffix(".dist-info")
        old_name, _, old_version = old_stem.rpartition("-")
        new_name = old_name if name is None else new.distribution
        new_version = old_version if version is None else new.version
        return cls(old_stem=old_stem, new_stem=f"{new_name}-{new_version}")

    @property
    def dist_info(self) -> str:
        return f"{self.new_stem}.dist-info"

    def moved(self, path: str) -> str:
        top, slash, rest = path.partition("/")
        for suffix in (".dist-info", ".data"):
            if top == self.old_stem + suffix:
                return f"{self.new_stem}{suffix}{slash}{rest}"
        return path


# --- METADATA and WHEEL -----------------------------------------------------------------------------------


def _check_identity(archive: _Archive, name: _FileName) -> None:
    """Raise `WheelError` unless file name, folders, METADATA and WHEEL agree on name, version and tags."""
    for folder in _named_folders(archive):
        stem = folder.rpartition(".")[0]
        folder_name, _, folder_version = stem.rpartition("-")
        _check_same(name, folder_name, folder_version.replace("_", "-"), f"the folder `{folder}`")
    found = _read_metadata(archive)
    _check_same(name, found.name, found.version, "METADATA")
    wheel = _wheel_message(archive)
    if _wheel_tags(wheel) != name.tags:
        found_tags = ", ".join(sorted(map(str, _wheel_tags(wheel))))
        _fail("wheel-tag-mismatch", f"WHEEL has the tags {found_tags}, but the file is named `{name.text}`.")
    build = wheel.get("Build", "").strip()
    if build and build != name.build:
        _fail("wheel-tag-mismatch", f"WHEEL has the build tag {build}, but the file is named `{name.text}`.")


def _named_folders(archive: _Archive) -> list[str]:
    tops = {member.name.partition("/")[0] for member in archive.members if "/" in member.name}
    stem = archive.dist_info.removesuffix(".dist-info")
    data_folders = sorted(top for top in tops if top.endswith(".data"))
    for folder in data_folders:
        if folder != f"{stem}.data":
            _fail("wheel-name-mismatch", f"The folder `{folder}` does not belong to `{archive.dist_info}`.")
    return [archive.dist_info, *data_folders]


def _check_same(name: _FileName, found_name: str, found_version: str, where: str) -> None:
    if canonicalize_name(found_name) != name.canonical:
        _fail("wheel-name-mismatch", f"The file is named `{name.text}`, but {where} names `{found_name}`.")
    try:
        same = Version(found_version) == name.parsed_version
    except InvalidVersion:
        same = False
    if not same:
        _fail(
            "wheel-version-mismatch",
            f"The file is named `{name.text}`, but {where} has version `{found_version}`.",
        )


def _read_metadata(archive: _Archive) -> WheelMetadata:
    raw, unparsed = _parse_metadata(_document(archive, "METADATA"))
    for field in ("name", "version"):
        if field in unparsed:
            _fail("wheel-bad-metadata", f"METADATA's {field.title()} is unreadable or given more than once.")
    if "name" not in raw or "version" not in raw:
        _fail("wheel-bad-metadata", "METADATA lacks a Name or a Version.")
    return WheelMetadata(
        name=raw["name"],
        version=raw["version"],
        requires_python=raw.get("requires_python"),
        requires_dist=tuple(raw.get("requires_dist", ())),
    )


def _parse_metadata(data: bytes) -> tuple[RawMetadata, dict[str, list[str]]]:
    try:
        return parse_email(data)
    except (ValueError, LookupError) as error:
        _fail("wheel-bad-metadata", f"METADATA does not parse: {error}.")


def _wheel_message(archive: _Archive) -> Message:
    try:
        message = message_from_string(_document(archive, "WHEEL").decode())
    except UnicodeDecodeError:
        _fail("wheel-bad-metadata", "WHEEL is not UTF-8.")
    major = message.get("Wheel-Version", "").strip().partition(".")[0]
    if major != "1":
        _fail(
            "wheel-bad-metadata",
            f"WHEEL has Wheel-Version `{message.get('Wheel-Version')}`; only 1.x is known.",
        )
    return message


def _wheel_tags(message: Message) -> frozenset[Tag]:
    lines = message.get_all("Tag", [])
    try:
        tags = frozenset(tag for line in lines for tag in parse_tag(line.strip()))
    except ValueError:
        _fail("wheel-bad-metadata", f"WHEEL has a Tag line that is not a tag: {', '.join(lines)}.")
    if not tags:
        _fail("wheel-bad-metadata", "WHEEL has no Tag line.")
    return tags


def _rewritten_documents(
    archive: _Archive, old: _FileName, new: _FileName, *, name: str | None, version: str | None
) -> dict[str, bytes]:
    """Return the new contents, by old member name, of the documents that change."""
    documents: dict[str, bytes] = {}
    if name is not None or version is not None:
        data = _document(archive, "METADATA")
        if name is not None:
            data = _with_header(data, "Name", name)
        if version is not None:
            data = _with_header(data, "Version", _normal_version(version))
        documents[f"{archive.dist_info}/METADATA"] = data
    if new.platform != old.platform:
        documents[f"{archive.dist_info}/WHEEL"] = _with_platform(_document(archive, "WHEEL"), new.platform)
    return documents


def _with_header(data: bytes, field: str, value: str) -> bytes:
    """Replace a field's value in the header block; nothing else changes, line ends included."""
    head, blank, body = _split_head(data)
    pattern = re.compile(rb"^%b:[^\r\n]*(\r?\n[ \t][^\r\n]*)*" % field.encode(), re.MULTILINE | re.IGNORECASE)
    changed, count = pattern.subn(lambda _: f"{field}: {value}".encode(), head)
    if count != 1:
        _fail("wheel-bad-metadata", f"METADATA has {count} {field} lines where one is needed.")
    return changed + blank + body


def _with_platform(data: bytes, platform: str) -> bytes:
    """Replace the Tag lines of WHEEL: each pair of Python and ABI, in order, with each new platform."""
    head, blank, body = _split_head(data)
    lines = head.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if _is_tag_line(line))
    end = b"\r\n" if lines[first].endswith(b"\r\n") else b"\n"
    old = [line.decode().partition(":")[2].strip() for line in lines if _is_tag_line(line)]
    pairs = dict.fromkeys(tag.rpartition("-")[0] for tag in old)
    tags = [f"Tag: {pair}-{one}".encode() + end for pair in pairs for one in platform.split(".")]
    others = [line for line in lines[first:] if not _is_tag_line(line)]
    return b"".join([*lines[:first], *tags, *others]) + blank + body


def _is_tag_line(line: bytes) -> bool:
    return line.lower().startswith(b"tag:")


def _split_head(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a document into its header block, with its last line end, the blank line, and the body."""
    match = re.search(rb"(?<=\n)\r?\n", data)
    if match is None:
        return data, b"", b""
    return data[: match.start()], match.group(), data[match.end() :]


# --- RECORD -----------------------------------------------------------------------------------------------

_STRONG_HASHES = frozenset({"sha256", "sha384", "sha512"})


class _Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A line of RECORD: `hash` and `size` as written, either may be empty."""

    hash: str
    size: str

    @property
    def algorithm(self) -> str:
        return self.hash.partition("=")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What the new RECORD says of a file: its path, sha256 (raw bytes) and size in bytes."""

    path: str
    sha256: bytes
    size: int


def _record_problems(archive: _Archive) -> tuple[RecordProblem, ...]:
    """Read every member and compare it with RECORD; return all findings, sorted by path."""
    rows, problems = _record_rows(archive)
    problems += _listing_problems(archive, rows)
    for member in archive.members:
        row = rows.get(member.name)
        algorithm = row.algorithm if row and row.algorithm in _STRONG_HASHES else None
        digest = _digest_member(archive.file, member, algorithm)  # without a hash too: it checks CRC and size
        if row and algorithm:
            problems += _content_problems(member, row, digest)
    return tuple(sorted(problems, key=lambda problem: (problem.path, problem.code)))


def _record_rows(archive: _Archive) -> tuple[dict[str, _Row], list[RecordProblem]]:
    """Parse RECORD to rows by path, with findings about the lines themselves."""
    rows: dict[str, _Row] = {}
    problems: list[RecordProblem] = []
    try:
        text = _document(archive, "RECORD").decode()
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        _fail("wheel-bad-metadata", f"RECORD does not parse: {error}.")
    for line in lines:
        if len(line) != 3:
            problems.append(_problem(line[0], "record-bad-line", "has not the three fields path, hash and size"))
        elif line[0] in rows:
            problems.append(_problem(line[0], "record-duplicate-line", "is listed more than once"))
        else:
            rows[line[0]] = _Row(hash=line[1], size=line[2])
    return rows, problems


def _listing_problems(archive: _Archive, rows: Mapping[str, _Row]) -> list[RecordProblem]:
    """Return the findings that need no contents: files missing or left over, hashes or sizes unusable."""
    names = {member.name for member in archive.members}
    signatures = archive.unhashed - {archive.record}
    problems = [_problem(path, "record-not-listed", "is not listed") for path in names - rows.keys() - signatures]
    problems += [
        _problem(path, "record-no-such-file", "is listed but not in the wheel") for path in rows.keys() - names
    ]
    for member in archive.members:
        if member.name in rows and member.name not in archive.unhashed:
            problems += _row_problems(member, rows[member.name])
    if archive.record in rows and rows[archive.record].hash:
        problems.append(_problem(archive.record, "record-own-hash", "is listed with a hash, which cannot be right"))
    return problems


def _row_problems(member: _Member, row: _Row) -> list[RecordProblem]:
    problems = []
    if not row.hash:
        problems.append(_problem(member.name, "record-no-hash", "is listed without a hash"))
    elif row.algorithm not in _STRONG_HASHES:
        problems.append(_problem(member.name, "record-weak-hash", f"has a {row.algorithm} hash; sha256 is the least"))
    if row.size != str(member.size):
        found = f"{row.size} bytes" if row.size else "no size"
        problems.append(_problem(member.name, "record-wrong-size", f"has {member.size} bytes; RECORD says {found}"))
    return problems


def _content_problems(member: _Member, row: _Row, digest: bytes) -> list[RecordProblem]:
    found = f"{row.algorithm}={_urlsafe(digest)}"
    if found == row.hash:
        return []
    return [_problem(member.name, "record-wrong-hash", f"has {found}; RECORD says {row.hash}")]


def _problem(path: str, code: str, what: str) -> RecordProblem:
    return RecordProblem(path=path, code=code, message=f"`{path}` {what}.")


def _raise_record_problems(problems: Iterable[RecordProblem]) -> None:
    found = sorted(problems, key=lambda problem: (problem.path, problem.code))
    if found:
        more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
        _fail("wheel-record-mismatch", f"RECORD is wrong: {found[0].message}{more}")


def _record_bytes(entries: Iterable[_Entry], dist_info: str) -> bytes:
    """Return RECORD: lines end in LF and are sorted by path; RECORD's own, without hash and size, is last."""
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    for entry in sorted(entries, key=lambda entry: entry.path.encode()):
        lines.writerow((entry.path, f"sha256={_urlsafe(entry.sha256)}", entry.size))
    lines.writerow((f"{dist_info}/RECORD", "", ""))
    return text.getvalue().encode()


def _urlsafe(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _digest_member(file: BinaryIO, member: _Member, algorithm: str | None) -> bytes:
    """Read a member to its end; return its digest, or `b""` when no algorithm is asked for."""
    hashers = {algorithm: hashlib.new(algorithm)} if algorithm else {}
    for _ in _hashed(_blocks(file, member), hashers.values()):
        pass
    return b"".join(hasher.digest() for hasher in hashers.values())


def _hashed(blocks: Iterable[bytes], hashers: Collection[_Hasher]) -> Iterator[bytes]:
    for block in blocks:
        for hasher in hashers:
            hasher.update(block)
        yield block


def _file_hash(file: BinaryIO) -> tuple[int, str]:
    """Return a whole file's size in bytes and its sha256 in hexadecimal."""
    hasher, size = hashlib.sha256(), 0
    file.seek(0)
    while block := file.read(_BLOCK):
        hasher.update(block)
        size += len(block)
    return size, hasher.hexdigest()


# --- copying ----------------------------------------------------------------------------------------------


def _moves(archive: _Archive, folders: _Folders) -> list[tuple[_Member, str]]:
    """Return each member to copy and its new path, by the bytes of that path, those of `.dist-info` last."""
    kept = [(m, folders.moved(m.name)) for m in archive.members if m.name not in archive.unhashed]
    return sorted(kept, key=lambda pair: (pair[1].startswith(f"{folders.dist_info}/"), pair[1].encode()))


def _copy_member(
    file: BinaryIO,
    member: _Member,
    path: str,
    document: bytes | None,
    rows: Mapping[str, _Row],
    writer: _Writer,
) -> _Entry:
    """Copy a member to `path`, or write `document` there instead. Raises when RECORD has another hash."""
    row = rows[member.name]
    hashers: dict[str, _Hasher] = {name: hashlib.new(name) for name in {"sha256", row.algorithm}}
    blocks = _hashed(_blocks(file, member), hashers.values())
    if document is None:
        writer.add(path, member.mode, member.size, blocks)
    else:
        for _ in blocks:
            pass
        writer.add(path, member.mode, len(document), _slices(document))
    _raise_record_problems(_content_problems(member, row, hashers[row.algorithm].digest()))
    if document is None:
        return _Entry(path=path, sha256=hashers["sha256"].digest(), size=member.size)
    return _Entry(path=path, sha256=hashlib.sha256(document).digest(), size=len(document))


def _slices(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _BLOCK):
        yield data[start : start + _BLOCK]


# --- the archive, read ------------------------------------------------------------------------------------
# Layout and field names follow PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.4.

_END = struct.Struct("<4sHHHHIIH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_END_MAGIC, _END64_LOCATOR_MAGIC, _END64_MAGIC = b"PK\5\6", b"PK\6\7", b"PK\6\6"
_CENTRAL_MAGIC, _LOCAL_MAGIC, _DESCRIPTOR_MAGIC = b"PK\1\2", b"PK\3\4", b"PK\7\10"

_ENCRYPTED_FLAGS = 1 << 0 | 1 << 6 | 1 << 13
_DESCRIPTOR_FLAG = 1 << 3
_PATCH_FLAG = 1 << 5
_UTF8_FLAG = 1 << 11
_COMPARED_FLAGS = _ENCRYPTED_FLAGS | _DESCRIPTOR_FLAG | _PATCH_FLAG | _UTF8_FLAG
_STORED, _DEFLATED = 0, 8
_ZIP64_EXTRA, _UNICODE_PATH_EXTRA = 0x0001, 0x7075


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A member as the central directory has it; sizes and offsets in bytes.

    `header` is where its local header starts and `data` where its packed bytes do (0 until the header was
    read); `unix_mode` is the 16 bits of st_mode, 0 when the packer gave none.
    """

    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    header: int
    data: int
    unix_mode: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")

    @property
    def mode(self) -> int:
        """0o755 if anybody may execute it, else 0o644."""
        return 0o755 if self.unix_mode & 0o111 else 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """A sound archive with one `.dist-info` folder: `members` are its files, folders left out."""

    file: BinaryIO
    members: tuple[_Member, ...]
    dist_info: str

    @property
    def record(self) -> str:
        return f"{self.dist_info}/RECORD"

    @property
    def unhashed(self) -> frozenset[str]:
        """The paths RECORD has no hash for: itself and its signatures."""
        return frozenset({self.record, f"{self.record}.jws", f"{self.record}.p7s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directory:
    """Where the central directory lies, in bytes, and how many entries it has."""

    start: int
    size: int
    count: int


def _open(file: BinaryIO) -> _Archive:
    """Read an archive's directory and local headers; check all that can be checked without unpacking."""
    size = file.seek(0, io.SEEK_END)
    directory = _find_directory(file, size)
    members = _central_members(file, directory)
    for member in members:
        _check_member(member)
    _check_names(members)
    _check_sizes(members, size)
    files = tuple(member for member in _located(file, members, directory) if not member.is_folder)
    return _Archive(file=file, members=files, dist_info=_dist_info(files))


def _document(archive: _Archive, name: str) -> bytes:
    """Return a file of `.dist-info` whole. Raises `WheelError` when it is missing or too large."""
    path = f"{archive.dist_info}/{name}"
    member = next((member for member in archive.members if member.name == path), None)
    if member is None:
        code = "wheel-missing-record" if name == "RECORD" else "wheel-missing-metadata"
        _fail(code, f"`{path}` is not in the wheel.")
    if member.size > MAX_DOCUMENT_BYTES:
        _fail("wheel-too-large", f"`{path}` has {member.size} bytes; {MAX_DOCUMENT_BYTES} is the most.")
    return b"".join(_blocks(archive.file, member))


def _dist_info(members: Iterable[_Member]) -> str:
    tops = {member.name.partition("/")[0] for member in members if "/" in member.name}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        names = f" ({', '.join(found)})" if found else ""
        _fail("wheel-missing-dist-info", f"The wheel has {len(found)} .dist-info folders{names}; it needs one.")
    return found[0]


def _find_directory(file: BinaryIO, size: int) -> _Directory:
    """Find the central directory from the records at the end of the archive, of `size` bytes."""
    tail_start = max(size - _U16 - _END.size, 0)
    tail = _read_at(file, tail_start, size - tail_start)
    at = tail.rfind(_END_MAGIC)
    if at < 0 or at + _END.size > len(tail):
        _fail("wheel-not-a-zip", "The file has no zip end record.")
    _, disk, first_disk, count_here, count, length, start, comment = _END.unpack_from(tail, at)
    extra = len(tail) - at - _END.size - comment
    if extra > 0:
        _fail("wheel-trailing-data", f"{extra} bytes follow the archive.")
    if extra < 0 or disk != first_disk or disk not in (0, _U16) or count_here != count:
        _fail("wheel-not-a-zip", "The zip end record is damaged or belongs to a divided archive.")
    directory = _Directory(start=start, size=length, count=count)
    directory, end = _zip64_directory(file, tail_start + at, directory)
    _check_directory(directory, end)
    return directory


def _zip64_directory(file: BinaryIO, end: int, short: _Directory) -> tuple[_Directory, int]:
    """Return the directory, by zip64's values if the archive has them, and where the end records start."""
    at = end - _END64_LOCATOR.size
    raw = _read_at(file, at, _END64_LOCATOR.size) if at >= 0 else b""
    if not raw.startswith(_END64_LOCATOR_MAGIC):
        return short, end
    _, disk, record_at, disks = _END64_LOCATOR.unpack(raw)
    if disk or disks > 1 or record_at + _END64.size > at:
        _fail("wheel-not-a-zip", "The zip64 end record is damaged or belongs to a divided archive.")
    magic, length, _, _, _, _, _, count, size, start = _END64.unpack(_read_at(file, record_at, _END64.size))
    if magic != _END64_MAGIC or record_at + 12 + length != at:
        _fail("wheel-not-a-zip", "The zip64 end record is damaged.")
    pairs = ((short.count, count, _U16), (short.size, size, _U32), (short.start, start, _U32))
    if any(narrow not in (wide, limit) for narrow, wide, limit in pairs):
        _fail("wheel-header-mismatch", "The two zip end records disagree.")
    return _Directory(start=start, size=size, count=count), record_at


def _check_directory(directory: _Directory, end: int) -> None:
    if directory.count > MAX_MEMBERS or directory.size > MAX_DIRECTORY_BYTES:
        _fail("wheel-too-large", f"The archive has {directory.count} members; {MAX_MEMBERS} is the most.")
    shift = end - directory.start - directory.size
    if shift > 0:
        _fail("wheel-leading-data", f"{shift} bytes stand before the archive, or between its parts.")
    if shift < 0:
        _fail("wheel-not-a-zip", "The zip directory reaches beyond its end record.")


def _central_members(file: BinaryIO, directory: _Directory) -> list[_Member]:
    raw = _read_at(file, directory.start, directory.size)
    members: list[_Member] = []
    at = 0
    for _ in range(directory.count):
        if len(raw) - at < _CENTRAL.size or raw[at : at + 4] != _CENTRAL_MAGIC:
            _fail("wheel-not-a-zip", f"The zip directory breaks off after {len(members)} members.")
        member, at = _central_member(raw, at)
        members.append(member)
    if at != len(raw):
        _fail("wheel-hidden-data", f"The zip directory has {len(raw) - at} bytes after its last member.")
    return members


def _central_member(raw: bytes, at: int) -> tuple[_Member, int]:
    """Return the member whose directory entry starts at `at`, and where the entry ends."""
    fields = _CENTRAL.unpack_from(raw, at)
    flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
    name_length, extra_length, comment_length, disk = fields[10:14]
    attributes, header = fields[15:]
    at += _CENTRAL.size
    name = _decode_name(raw[at : at + name_length], flags)
    extras = _extras(raw[at + name_length : at + name_length + extra_length], name)
    size, packed, header = _widen((size, packed, header), extras, name)
    if disk not in (0, _U16):
        _fail("wheel-not-a-zip", f"`{name}` lies in another part of a divided archive.")
    member = _Member(
        name=name,
        flags=flags,
        method=method,
        crc=crc,
        packed=packed,
        size=size,
        header=header,
        data=0,
        unix_mode=attributes >> 16,
    )
    return member, at + name_length + extra_length + comment_length


def _decode_name(raw: bytes, flags: int) -> str:
    try:
        return raw.decode("utf-8" if flags & _UTF8_FLAG else "ascii")
    except UnicodeDecodeError:
        _fail("wheel-unsafe-path", f"The member name {raw!r} is neither ASCII nor marked as UTF-8.")


def _extras(raw: bytes, name: str) -> dict[int, bytes]:
    """Return a header's extra fields by their number. Fewer than four bytes at the end are padding."""
    extras: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(raw):
        number, length = struct.unpack_from("<HH", raw, at)
        at += 4 + length
        if at > len(raw) or number in extras or number == _UNICODE_PATH_EXTRA:
            _fail(
                "wheel-header-mismatch",
                f"`{name}` has extra fields that are cut short, repeated or a second name.",
            )
        extras[number] = raw[at - length : at]
    return extras


def _widen(values: tuple[int, ...], extras: Mapping[int, bytes], name: str) -> list[int]:
    """Replace each 32-bit value that is all ones with the next value of the zip64 field."""
    wide = extras.get(_ZIP64_EXTRA)
    if wide is None:
        return list(values)
    result, at = [], 0
    for value in values:
        if value == _U32:
            if at + 8 > len(wide):
                _fail("wheel-header-mismatch", f"`{name}` has a zip64 field that is too short.")
            (value,) = struct.unpack_from("<Q", wide, at)
            at += 8
        result.append(value)
    return result


def _check_member(member: _Member) -> None:
    name = member.name
    if member.flags & _ENCRYPTED_FLAGS:
        _fail("wheel-encrypted", f"`{name}` is encrypted.")
    if member.method not in (_STORED, _DEFLATED) or member.flags & _PATCH_FLAG:
        _fail(
            "wheel-bad-compression",
            f"`{name}` is packed with method {member.method}; only 0 and 8 are allowed.",
        )
    parts = name.removesuffix("/").split("/")
    if not name.isprintable() or "\\" in name or re.match(r"[A-Za-z]:", name) or {"", ".", ".."} & set(parts):
        _fail("wheel-unsafe-path", f"The member name {name!r} is not a plain relative path.")
    kind = stat.S_IFMT(member.unix_mode)
    if kind not in (0, stat.S_IFDIR if member.is_folder else stat.S_IFREG):
        _fail("wheel-special-file", f"`{name}` has mode {member.unix_mode:o}, which is not a regular file's.")
    if member.is_folder and member.size:
        _fail("wheel-special-file", f"`{name}` is a folder with {member.size} bytes of contents.")
    if member.method == _STORED and member.packed != member.size:
        _fail(
            "wheel-header-mismatch",
            f"`{name}` is stored with two sizes, {member.packed} and {member.size} bytes.",
        )


def _check_names(members: Iterable[_Member]) -> None:
    """Check that no two members have the same name and that none is both a file and a folder."""
    seen: set[str] = set()
    for member in members:
        name = member.name.removesuffix("/")
        if name in seen:
            _fail("wheel-duplicate-member", f"`{name}` is in the wheel more than once.")
        seen.add(name)
    files = {member.name for member in members if not member.is_folder}
    for name in sorted(seen):
        parts = name.split("/")
        for depth in range(1, len(parts)):
            if (parent := "/".join(parts[:depth])) in files:
                _fail("wheel-duplicate-member", f"`{parent}` is both a file and the folder of `{name}`.")


def _check_sizes(members: Iterable[_Member], archive_size: int) -> None:
    total = sum(member.size for member in members)
    if total > MAX_UNPACKED_BYTES:
        _fail("wheel-too-large", f"The wheel unpacks to {total} bytes; {MAX_UNPACKED_BYTES} is the most.")
    if total > RATIO_FREE_BYTES and total > MAX_RATIO * archive_size:
        _fail(
            "wheel-bomb",
            f"The wheel unpacks from {archive_size} to {total} bytes, more than {MAX_RATIO} times.",
        )


def _located(file: BinaryIO, members: Iterable[_Member], directory: _Directory) -> list[_Member]:
    """Return the members in file order with `data` set. Raises unless they fill the archive without gaps."""
    ordered = sorted(members, key=lambda member: member.header)
    starts = [member.header for member in ordered] + [directory.start]
    if starts[0] != 0:
        _fail("wheel-leading-data", f"{starts[0]} bytes stand before the first member.")
    located = []
    for member, (_, next_start) in zip(ordered, pairwise(starts), strict=True):
        member = replace(member, data=_check_local_header(file, member))
        _check_gap(file, member, next_start - member.data - member.packed)
        located.append(member)
    return located


def _check_local_header(file: BinaryIO, member: _Member) -> int:
    """Compare a member's local header with its directory entry; return where its packed bytes start."""
    raw = _read_at(file, member.header, _LOCAL.size)
    header: tuple[bytes, int, int, int, int, int, int, int, int, int, int] = _LOCAL.unpack(raw)
    magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length = header
    if magic != _LOCAL_MAGIC:
        _fail("wheel-header-mismatch", f"`{member.name}` has no local header where the directory says.")
    rest = _read_at(file, member.header + _LOCAL.size, name_length + extra_length)
    size, packed = _widen((size, packed), _extras(rest[name_length:], member.name), member.name)
    if rest[:name_length] != member.name.encode():
        _fail(
            "wheel-header-mismatch",
            f"`{member.name}` has another name in its local header: {rest[:name_length]!r}.",
        )
    expected: tuple[int, ...] = (member.crc, member.packed, member.size)
    if flags & _DESCRIPTOR_FLAG:  # the values follow the contents; those here may be left at zero
        expected = tuple(right if found else 0 for right, found in zip(expected, (crc, packed, size), strict=True))
    same_flags = flags & _COMPARED_FLAGS == member.flags & _COMPARED_FLAGS
    if not same_flags or method != member.method or (crc, packed, size) != expected:
        _fail(
            "wheel-header-mismatch",
            f"`{member.name}` has other sizes, CRC, method or flags in its local header.",
        )
    return member.header + _LOCAL.size + name_length + extra_length


def _check_gap(file: BinaryIO, member: _Member, gap: int) -> None:
    """Check the `gap` bytes between a member's contents and what comes next: nothing, or its data
    descriptor."""
    if gap < 0:
        _fail("wheel-overlapping-members", f"`{member.name}` reaches into the member or the directory after it.")
    if not member.flags & _DESCRIPTOR_FLAG:
        if gap:
            _fail("wheel-hidden-data", f"{gap} bytes after `{member.name}` belong to no member.")
        return
    forms = [struct.pack("<IQQ", member.crc, member.packed, member.size)]
    if max(member.packed, member.size) <= _U32:
        forms.append(struct.pack("<III", member.crc, member.packed, member.size))
    forms += [_DESCRIPTOR_MAGIC + form for form in forms]
    if gap > 24 or _read_at(file, member.data + member.packed, gap) not in forms:
        _fail("wheel-hidden-data", f"{gap} bytes after `{member.name}` are not its data descriptor.")


def _blocks(file: BinaryIO, member: _Member) -> Iterator[bytes]:
    """Yield a member's contents in blocks of 1 MiB, the last one shorter.

    The blocks depend on the contents only, never on how they were packed, so that packing them again cannot
    either. Raises `WheelError` when size, CRC or deflate stream are not as the directory says: never more
    bytes than declared are yielded, but what was yielded is known to be right only at the end.
    """
    crc, size, block = 0, 0, bytearray()
    pieces = _raw_pieces(file, member) if member.method == _STORED else _inflated_pieces(file, member)
    for piece in pieces:
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        if size > member.size:
            _fail("wheel-corrupt-member", f"`{member.name}` unpacks to more than its {member.size} bytes.")
        block += piece
        while len(block) >= _BLOCK:
            yield bytes(block[:_BLOCK])
            del block[:_BLOCK]
    if size != member.size or crc != member.crc:
        _fail("wheel-corrupt-member", f"`{member.name}` has another size or CRC than the directory says.")
    if block:
        yield bytes(block)


def _raw_pieces(file: BinaryIO, member: _Member) -> Iterator[bytes]:
    end = member.data + member.packed
    for start in range(member.data, end, _PACKED_BLOCK):
        yield _read_at(file, start, min(_PACKED_BLOCK, end - start))


def _inflated_pieces(file: BinaryIO, member: _Member) -> Iterator[bytes]:
    """Yield a deflated member unpacked, at most 1 MiB at a time."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for raw in _raw_pieces(file, member):
            while raw and not inflater.eof:
                yield inflater.decompress(raw, _BLOCK)
                raw = inflater.unconsumed_tail
            if raw:
                _fail("wheel-corrupt-member", f"`{member.name}` has bytes after its deflate stream.")
        yield inflater.flush()
        if inflater.unused_data:
            _fail("wheel-corrupt-member", f"`{member.name}` has bytes after its deflate stream.")
    except zlib.error as error:
        _fail("wheel-corrupt-member", f"`{member.name}` does not unpack: {error}.")
    if not inflater.eof:
        _fail("wheel-corrupt-member", f"`{member.name}` has a deflate stream that breaks off.")


def _read_at(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    data = file.read(length)
    if len(data) != length:
        _fail("wheel-not-a-zip", f"The file ends at byte {start + len(data)}, inside a part of the archive.")
    return data


def _fail(code: str, message: str) -> NoReturn:
    raise WheelError(code, message, FIXES[code])


# --- the archive, written ---------------------------------------------------------------------------------


class _Writer:
    """Writes an archive whose bytes follow from the members added, their order and one time.

    Empty members are stored and all others deflated: a rule by the size alone can be kept before anything
    is packed, while "stored if deflate does not help" would need each such member twice, to save 0.03% of
    it. For the same reason a member gets zip64's field by its unpacked size: from 7/8 of 4 GiB on, where
    packing could pass 4 GiB.
    """

    def __init__(self, target: BinaryIO, epoch: int) -> None:
        self._target = target
        self._time, self._date = _dos_time(epoch)
        self._central: list[bytes] = []

    def add_bytes(self, path: str, data: bytes) -> None:
        self.add(path, 0o644, len(data), _slices(data))

    def add(self, path: str, mode: int, size: int, blocks: Iterable[bytes]) -> None:
        """Add a file of `size` bytes, which `blocks` must yield; its header is filled in afterwards."""
        start = self._target.tell()
        wide = size + size // 8 >= _U32
        self._target.write(self._local_header(path, 0, 0, size, wide))
        crc, packed = self._pack(size, blocks)
        end = self._target.tell()
        self._target.seek(start)
        self._target.write(self._local_header(path, crc, packed, size, wide))
        self._target.seek(end)
        self._central.append(self._central_header(path, mode, crc, packed, size, start, wide))

    def finish(self) -> None:
        """Write the directory and the end records, and cut off what the target held beyond them."""
        start = self._target.tell()
        for header in self._central:
            self._target.write(header)
        end = self._target.tell()
        count, size = len(self._central), end - start
        if count >= _U16 or size >= _U32 or start >= _U32:
            needs, made = 45, 3 << 8 | 45
            self._target.write(_END64.pack(_END64_MAGIC, 44, made, needs, 0, 0, count, count, size, start))
            self._target.write(_END64_LOCATOR.pack(_END64_LOCATOR_MAGIC, 0, end, 1))
        short = min(count, _U16)
        self._target.write(_END.pack(_END_MAGIC, 0, 0, short, short, min(size, _U32), min(start, _U32), 0))
        self._target.truncate()

    def _pack(self, size: int, blocks: Iterable[bytes]) -> tuple[int, int]:
        """Write the contents; return their CRC and packed size in bytes."""
        deflater = zlib.compressobj(DEFLATE_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        crc, packed = 0, 0
        for block in blocks:
            crc = zlib.crc32(block, crc)
            packed += self._target.write(deflater.compress(block))
        if size:
            packed += self._target.write(deflater.flush())
        return crc, packed

    def _local_header(self, path: str, crc: int, packed: int, size: int, wide: bool) -> bytes:
        name = path.encode()
        extra = struct.pack("<HHQQ", _ZIP64_EXTRA, 16, size, packed) if wide else b""
        sizes = (_U32, _U32) if wide else (packed, size)
        common = self._common(path, crc, sizes, wide)
        return _LOCAL.pack(_LOCAL_MAGIC, *common, len(name), len(extra)) + name + extra

    def _central_header(
        self, path: str, mode: int, crc: int, packed: int, size: int, start: int, wide: bool
    ) -> bytes:
        name = path.encode()
        far = start >= _U32
        values = ([size, packed] if wide else []) + ([start] if far else [])
        extra = struct.pack(f"<HH{len(values)}Q", _ZIP64_EXTRA, 8 * len(values), *values) if values else b""
        sizes = (_U32, _U32) if wide else (packed, size)
        common = self._common(path, crc, sizes, wide or far)
        made = 3 << 8 | common[0]  # 3: Unix, so that the mode is read
        attributes = (stat.S_IFREG | mode) << 16
        lengths = (len(name), len(extra), 0)
        return (
            _CENTRAL.pack(_CENTRAL_MAGIC, made, *common, *lengths, 0, 0, attributes, min(start, _U32)) + name + extra
        )

    def _common(self, path: str, crc: int, sizes: tuple[int, int], zip64: bool) -> tuple[int, ...]:
        """Return the fields that both headers have, from "version needed" to `sizes` (packed, unpacked)."""
        flags = 0 if path.isascii() else _UTF8_FLAG
        method = _DEFLATED if sizes[1] else _STORED
        return (45 if zip64 else 20, flags, method, self._time, self._date, crc, *sizes)


def _dos_time(epoch: int) -> tuple[int, int]:
    """Return zip's time and date fields for seconds since 1970 UTC, clamped to the years zip can tell."""
    moment = datetime.fromtimestamp(min(max(epoch, EARLIEST_EPOCH), LATEST_EPOCH), UTC)
    time = moment.hour << 11 | moment.minute << 5 | moment.second // 2
    return time, (moment.year - 1980) << 9 | moment.month << 5 | moment.day
