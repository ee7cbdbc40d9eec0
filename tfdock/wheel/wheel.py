"""Read, check and normalise wheels: METADATA, WHEEL, RECORD, and the files that they list.

Pure functions over open binary files: no environment, no clock, no process, no network.

Contents stream in blocks of 1 MiB, in one thread or two. Besides one block for each thread, only the archive's
directory and the wheel's own documents (RECORD, METADATA, WHEEL) are held in memory: some 20 MiB for a TensorFlow
wheel with 20,000 members.

Every given file must be seekable. It is left open, at any position. A file that is not a wheel raises
`WheelError`. All errors of RECORD are collected as `RecordProblem` values.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from email import message_from_string
from email.message import Message
from itertools import chain
from typing import BinaryIO, Protocol

from packaging.metadata import parse_email
from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from tfdock.host.thread_jobs import ThreadJob, run_both
from tfdock.wheel.facts import fail
from tfdock.wheel.zip_archive import (
    EARLIEST_EPOCH,
    Archive,
    ByteSource,
    Member,
    ZipWriter,
    blocks,
    document,
    open_archive,
    pieces,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordProblem:
    """One way in which RECORD and the files of a wheel disagree."""

    path: str  #: The path in the wheel of the file that differs from RECORD.
    code: str  #: The kind of problem.
    message: str  #: What is wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """The facts of a wheel.

    `name` and `version` are normalised (`tensorflow-cpu`, `2.18.0`), `build` is `""` without a build tag,
    and the three tags are as in the file name (`manylinux_2_17_x86_64.manylinux2014_x86_64`). `size` is
    the file's size in bytes; `sha256` is hexadecimal; `members` counts files, not folders. `record_problems` is
    sorted by path; `record_ok` is true if there are none. `tag_problem` is a sentence if WHEEL has other tags than
    the file name, else empty.
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
    tag_problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMetadata:
    """The fields of METADATA that tfdock uses, as written there."""

    name: str
    version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    provides_extra: tuple[str, ...] = ()


class MemberScan(Protocol):
    """Inspects one member while it is read; gets all bytes in order. `again`: whether it needs all bytes again."""

    def feed(self, data: bytes, /) -> object: ...
    def again(self) -> bool: ...


Watch = Callable[[Member], MemberScan]  #: Called for every member, in two threads; each member stays in one thread.


def read_wheel(file: BinaryIO, filename: str) -> WheelFacts:
    """Check a wheel and return its facts.

    `filename` is the wheel's name without a folder. Every member is unpacked once, to check RECORD. Raises
    `WheelError` if it is not a valid wheel with this name.
    """
    return facts_of(open_archive(file), filename)


def facts_of(archive: Archive, filename: str, watch: Watch | None = None, *, renamed: bool = False) -> WheelFacts:
    """Return the facts of an open archive; `watch` inspects all members at the same time.

    `renamed` accepts a file whose tags were changed by renaming, as installers do; `tag_problem` then
    describes the change.
    """
    name = _parse_filename(filename)
    _check_identity(archive, name)
    # Installers use the file's name, but only WHEEL has the builder's own tags.
    tag_problem = _tag_problem(archive, name)
    if tag_problem and not renamed:
        fail("wheel-tag-mismatch", tag_problem)
    file_hash = hashlib.sha256()
    rows, problems = _record_rows(archive)
    problems += _listing_problems(archive, rows)
    reading = _Reading(archive, rows, watch)
    # Threads take whole members, and the file's own hash is one of the jobs: 3.9 s instead of 4.9 s for 615 MB.
    run_both(chain(reading.jobs(), [ThreadJob(archive.source.size, map(file_hash.update, archive.source.blocks()))]))
    problems += reading.problems
    return WheelFacts(
        name=name.canonical,
        version=str(name.parsed_version),
        build=name.build,
        python_tag=name.python,
        abi_tag=name.abi,
        platform_tag=name.platform,
        size=archive.source.size,
        sha256=file_hash.hexdigest(),
        members=len(archive.members),
        record_ok=not problems,
        # Threads and sets find the problems in any order.
        record_problems=tuple(sorted(problems, key=lambda problem: (problem.path, problem.code))),
        tag_problem=tag_problem,
    )


def normalize(
    source: BinaryIO,
    filename: str,
    target: BinaryIO,
    *,
    epoch: int = EARLIEST_EPOCH,
    version: str | None = None,
    platform: str | None = None,
) -> str:
    """Write a wheel to `target` in the normalised form, which is the same for all wheels with the same contents.

    Return the new wheel's file name.

    Members are sorted, with `.dist-info` last and RECORD at the very end. All have the same time, mode 755 or 644, no
    extra fields and no comments. Folders are dropped. RECORD signatures are dropped too, because the new RECORD makes
    them invalid. Only RECORD changes by default. A `version` changes METADATA's Version, the `.dist-info` and `.data`
    folders, and the file name. A `platform` changes the last part of WHEEL's Tag lines and of the file name. WHEEL's
    Tag lines keep their order, because the order is content: packing does not change it.

    `epoch` is in seconds since 1970 UTC, rounded down to an even number and clamped to zip's years 1980 to 2107.
    `target` must be seekable and is overwritten from its start. The bytes also depend on the deflate
    implementation: see `deflate_backend`.

    Raises `WheelError`, also (`wheel-record-mismatch`) when the source's RECORD is wrong: a new RECORD would hide the
    damage that the old one shows. After an error, the contents of `target` are invalid.
    """
    old = _parse_filename(filename)
    new = old if version is None else replace(old, version=_normal_version(version).replace("-", "_"))
    new = new if platform is None else replace(new, platform=platform)
    archive = open_archive(source)
    _check_identity(archive, old)
    if problem := _tag_problem(archive, old):
        fail("wheel-tag-mismatch", problem)
    rows, problems = _record_rows(archive)
    _raise_record_problems([*problems, *_listing_problems(archive, rows)])
    stem = archive.dist_info.removesuffix(".dist-info")
    if version is not None:
        stem = f"{stem.rpartition('-')[0]}-{new.version}"
    documents = {} if version is None else {f"{archive.dist_info}/METADATA": _with_version(archive, version)}
    if platform is not None:
        documents[f"{archive.dist_info}/WHEEL"] = _with_platform(archive, platform)
    target.seek(0)
    writer = ZipWriter(target, epoch)
    written = [
        _copy_member(archive.source, member, path, documents.get(member.name), rows[member.name], writer)
        for member, path in _moves(archive, stem)
    ]
    record = f"{stem}.dist-info/RECORD"
    writer.add_bytes(record, _record_bytes(written, record))
    writer.finish()
    return new.text


def core_metadata(file: BinaryIO, filename: str) -> tuple[WheelMetadata, bytes]:
    """Return the METADATA of a wheel of this name, parsed and as bytes. Raises `WheelError` as `read_wheel` does.

    The other members are not unpacked or compared with RECORD.
    """
    name = _parse_filename(filename)
    archive = open_archive(file)
    _check_identity(archive, name)
    return metadata_of(archive), document(archive, "METADATA")


# --- names ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileName:
    """The parts of a wheel's file name, as written."""

    distribution: str
    version: str
    build: str
    python: str
    abi: str
    platform: str
    variant: str

    @property
    def text(self) -> str:
        tags = (self.python, self.abi, self.platform)
        parts = (self.distribution, self.version, self.build, *tags, self.variant)
        return "-".join(part for part in parts if part) + ".whl"

    @property
    def canonical(self) -> str:
        return canonicalize_name(self.distribution)

    @property
    def parsed_version(self) -> Version:
        # A file name has `_` where a version has `-` (binary distribution format, escaping).
        return Version(self.version.replace("_", "-"))

    @property
    def tags(self) -> frozenset[Tag]:
        return parse_tag(f"{self.python}-{self.abi}-{self.platform}")


# The variant label of PEP 825, as variantlib 0.2.2 reads it.
_LABEL = re.compile(r"[0-9a-z._]+")


def variant_label(filename: str) -> str:
    """Return the variant label after a wheel's tags (PEP 825): `sm86`. Empty for a wheel without a variant."""
    parts = filename.removesuffix(".whl").split("-")
    # A build number begins with a digit (binary distribution format), the tag of a Python never does.
    count = 6 + (len(parts) > 5 and parts[2][:1].isdigit())
    return parts[-1] if len(parts) == count and _LABEL.fullmatch(parts[-1]) else ""


def _parse_filename(filename: str) -> _FileName:
    variant = variant_label(filename)
    plain = filename.removesuffix(f"-{variant}.whl") + ".whl" if variant else filename
    try:
        parse_wheel_filename(plain)
    except InvalidWheelFilename as error:
        fail("wheel-bad-name", f"`{filename}` is not the name of a wheel: {error}.")
    # packaging's parser accepts characters that no wheel's name has.
    if not re.fullmatch(r"[\w.+!-]+", filename, re.ASCII):
        fail(
            "wheel-bad-name",
            f"`{filename}` is not the name of a wheel: it has characters that are not allowed.",
        )
    parts = plain.removesuffix(".whl").split("-")
    distribution, version, *build, python, abi, platform = parts
    return _FileName(
        distribution=distribution,
        version=version,
        build="".join(build),
        python=python,
        abi=abi,
        platform=platform,
        variant=variant,
    )


def _normal_version(version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion:
        fail("wheel-bad-rewrite", f"`{version}` is not a version.")


# --- METADATA and WHEEL -----------------------------------------------------------------------------------


def _check_identity(archive: Archive, name: _FileName) -> None:
    """Raise `WheelError` unless file name, folders and METADATA agree on name and version."""
    stem = archive.dist_info.removesuffix(".dist-info")
    tops = {member.name.partition("/")[0] for member in archive.members if "/" in member.name}
    for folder in sorted(top for top in tops if top.endswith(".data")):
        # Installers differ: some spread any `.data` folder, others only the one with the wheel's name.
        if folder != f"{stem}.data":
            fail("wheel-name-mismatch", f"The folder `{folder}` does not belong to `{archive.dist_info}`.")
    folder_name, _, folder_version = stem.rpartition("-")
    _check_same(name, folder_name, folder_version.replace("_", "-"), f"the folder `{archive.dist_info}`")
    metadata = metadata_of(archive)
    _check_same(name, metadata.name, metadata.version, "METADATA")


_MOST_TAGS = 100  # as written: a hundred parts of tags combine to no more than 40,000 tags


def _tag_problem(archive: Archive, name: _FileName) -> str:
    """Return how WHEEL's tags differ from the file's name; empty if they do not."""
    wheel = _wheel_message(archive)
    # Sets are compared: a name `py2.py3-none-any` stands for two Tag lines.
    if _wheel_tags(wheel) != name.tags:
        tags = ", ".join(sorted(map(str, _wheel_tags(wheel))))
        return f"WHEEL has the tags {tags}, but the file is named `{name.text}`."
    build = wheel.get("Build", "").strip()
    if build and build != name.build:
        return f"WHEEL has the build tag {build}, but the file is named `{name.text}`."
    return ""


def _check_same(name: _FileName, found_name: str, found_version: str, where: str) -> None:
    if canonicalize_name(found_name) != name.canonical:
        fail("wheel-name-mismatch", f"The file is named `{name.text}`, but {where} names `{found_name}`.")
    try:
        same = Version(found_version) == name.parsed_version
    except InvalidVersion:
        same = False
    if not same:
        fail(
            "wheel-version-mismatch",
            f"The file is named `{name.text}`, but {where} has version `{found_version}`.",
        )


def metadata_of(archive: Archive) -> WheelMetadata:
    """Return METADATA of an open archive. Raises `WheelError` if METADATA is missing or invalid."""
    head = _checked_head(archive, "METADATA")
    try:
        raw, unparsed = parse_email(head)
    except Exception as error:
        # Whatever the parsers raise, the wheel is at fault.
        fail("wheel-bad-metadata", f"METADATA does not parse: {error}.")
    for field in ("name", "version"):
        # Of two names or versions, each reader might use another one.
        if field in unparsed:
            fail("wheel-bad-metadata", f"METADATA's {field.title()} is unreadable or given more than once.")
    if "name" not in raw or "version" not in raw:
        fail("wheel-bad-metadata", "METADATA lacks a Name or a Version.")
    return WheelMetadata(
        name=raw["name"],
        version=raw["version"],
        requires_python=raw.get("requires_python"),
        requires_dist=tuple(raw.get("requires_dist", ())),
        provides_extra=tuple(raw.get("provides_extra", ())),
    )


#: Limits of lines and bytes: the time to parse grows with their square. TensorFlow's METADATA has 80 lines, 6 KB.
_MOST_HEADERS, _MOST_HEAD = 5000, 128 << 10
#: Wheels never have such a header. The parser of `email` takes minutes for the parameters of a long header.
_MEDIA = re.compile(rb"^content-", re.IGNORECASE | re.MULTILINE)


#: Python refuses numbers of several thousand digits, and parsers do not expect this error.
_LONG_NUMBER = re.compile(rb"[0-9]{1000}")


def _checked_head(archive: Archive, name: str) -> bytes:
    """Return the header block of a document, not the body: that may be a megabyte of messages within messages."""
    head = _split_head(document(archive, name))[0]
    if head.count(b"\n") > _MOST_HEADERS or len(head) > _MOST_HEAD:
        fail("wheel-bad-metadata", f"{name} has over {_MOST_HEADERS:,} lines or {_MOST_HEAD:,} bytes of headers.")
    if _MEDIA.search(head):
        fail("wheel-bad-metadata", f"{name} has a header `Content-…`, which wheels never have.")
    if _LONG_NUMBER.search(head):
        fail("wheel-bad-metadata", f"{name} has a number of 1,000 digits or more.")
    return head


def _wheel_message(archive: Archive) -> Message:
    try:
        message = message_from_string(_checked_head(archive, "WHEEL").decode())
    except UnicodeDecodeError:
        fail("wheel-bad-metadata", "WHEEL is not UTF-8.")
    major = message.get("Wheel-Version", "").strip().partition(".")[0]
    # Installers must fail on a greater major version and only warn of a minor one (PEP 427).
    if major != "1":
        fail(
            "wheel-bad-metadata",
            f"WHEEL has Wheel-Version `{message.get('Wheel-Version')}`; only 1.x is known.",
        )
    return message


def _wheel_tags(message: Message) -> frozenset[Tag]:
    lines = message.get_all("Tag", [])
    # `py2.py3-none-any` stands for every combination of its parts.
    if len(lines) + sum(line.count(".") for line in lines) > _MOST_TAGS:
        fail("wheel-bad-metadata", f"WHEEL has more than {_MOST_TAGS} tags.")
    try:
        tags = frozenset(tag for line in lines for tag in parse_tag(line.strip()))
    except ValueError:
        fail("wheel-bad-metadata", f"WHEEL has an invalid Tag line: {', '.join(lines)}.")
    if not tags:
        fail("wheel-bad-metadata", "WHEEL has no Tag line.")
    return tags


def _with_version(archive: Archive, version: str) -> bytes:
    """Return METADATA with another version in its header block; nothing else changes, not even the line ends."""
    head, blank, body = _split_head(document(archive, "METADATA"))
    pattern = re.compile(rb"^Version:[^\r\n]*(\r?\n[ \t][^\r\n]*)*", re.MULTILINE | re.IGNORECASE)
    changed, count = pattern.subn(f"Version: {_normal_version(version)}".encode(), head)
    if count != 1:
        fail("wheel-bad-metadata", f"METADATA has {count} Version lines; exactly one is required.")
    return changed + blank + body


def _with_platform(archive: Archive, platform: str) -> bytes:
    """Return WHEEL with another platform in each Tag line, and one line for each Python and ABI."""
    head, blank, body = _split_head(document(archive, "WHEEL"))
    changed = re.sub(
        rb"^(Tag:[^\r\n]*-)[^-\r\n]*", rb"\g<1>" + platform.encode(), head, flags=re.MULTILINE | re.IGNORECASE
    )
    return b"".join(dict.fromkeys(changed.splitlines(keepends=True))) + blank + body


def _split_head(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a document into its header block (with the last line end), the blank line, and the body."""
    # The first blank line ends the headers. The description after it may have lines that look like headers.
    match = re.search(rb"(?<=\n)\r?\n", data)
    if match is None:
        return data, b"", b""
    return data[: match.start()], match.group(), data[match.end() :]


# --- RECORD -----------------------------------------------------------------------------------------------

# PEP 427 asks for sha256 or better. md5, sha1 and sha224 are not permitted.
_STRONG_HASHES = frozenset({"sha256", "sha384", "sha512"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A line of RECORD: `hash` and `size` as written, either may be empty."""

    hash: str
    size: str

    @property
    def algorithm(self) -> str:
        return self.hash.partition("=")[0]


# A TensorFlow wheel has up to 20,000 members, most of them small: a job for each would be too small.
_TOGETHER = 8 << 20  # bytes, unpacked, for one job of a thread


class _Reading:
    """Reads every member and compares it with RECORD; `problems` are the findings."""

    def __init__(self, archive: Archive, rows: Mapping[str, _Row], watch: Watch | None) -> None:
        self.problems: list[RecordProblem] = []
        self._archive, self._rows, self._watch = archive, rows, watch

    def jobs(self) -> Iterator[ThreadJob]:
        """Yield the jobs in the order of the archive: each a large member, or small members together."""
        together, size = list[Member](), 0
        for member in self._archive.members:
            # A large member gets a job for itself, which can start first.
            if together and size + member.size > _TOGETHER:
                yield ThreadJob(size, self._steps(together))
                together, size = [], 0
            together.append(member)
            size += member.size
        yield ThreadJob(size, self._steps(together))

    def _steps(self, members: Iterable[Member]) -> Iterator[None]:
        for member in members:
            row, look = self._rows.get(member.name), self._watch(member) if self._watch else None
            algorithm = row.algorithm if row and row.algorithm in _STRONG_HASHES else ""
            hasher = hashlib.new(algorithm) if algorithm else None
            for piece in pieces(self._archive.source, member):  # also without a hash: reading checks CRC and size
                if hasher:
                    hasher.update(piece)
                if look:
                    look.feed(piece)
                yield
            if row and hasher:
                self.problems += _content_problems(member, row, hasher.digest())
            while look and look.again():
                for piece in pieces(self._archive.source, member):
                    look.feed(piece)
                    yield


def _record_rows(archive: Archive) -> tuple[dict[str, _Row], list[RecordProblem]]:
    """Parse RECORD to rows by path, with findings about the lines themselves."""
    rows: dict[str, _Row] = {}
    problems: list[RecordProblem] = []
    # A RECORD of 16 MiB can hold millions of short lines, each of which would become an object.
    most = 2 * len(archive.members) + 1000
    try:
        for line in _record_lines(document(archive, "RECORD").decode()):
            if len(line) != 3:
                problems.append(_problem(line[0], "record-bad-line", "must have the fields path, hash and size"))
            elif line[0] in rows:
                problems.append(_problem(line[0], "record-duplicate-line", "is listed more than once"))
            else:
                rows[line[0]] = _Row(hash=line[1], size=line[2])
            if len(rows) + len(problems) > most:
                fail("wheel-bad-metadata", f"RECORD has more than {most} lines for {len(archive.members)} files.")
    except (UnicodeDecodeError, csv.Error) as error:
        fail("wheel-bad-metadata", f"RECORD does not parse: {error}.")
    return rows, problems


def _record_lines(text: str) -> Iterator[list[str]]:
    """Return the non-empty lines, each as a list of fields."""
    # `str.splitlines` also breaks at U+2028 and others, where csv does not, and holds all lines at once.
    lines = (match.group() for match in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text))
    # `strict`: otherwise csv silently takes a broken quote as part of a name.
    return filter(None, csv.reader(lines, strict=True))


def _listing_problems(archive: Archive, rows: Mapping[str, _Row]) -> list[RecordProblem]:
    """Return the findings that need no contents: missing or extra files, unusable hashes or sizes."""
    names = {member.name for member in archive.members}
    # RECORD.jws and RECORD.p7s sign RECORD, so RECORD cannot hold their hashes (PEP 427).
    signatures = archive.unhashed - {archive.record}
    problems = [_problem(path, "record-not-listed", "is not listed") for path in names - rows.keys() - signatures]
    problems += [
        _problem(path, "record-no-such-file", "is listed but not in the wheel") for path in rows.keys() - names
    ]
    for member in archive.members:
        if member.name in rows and member.name not in archive.unhashed:
            problems += _row_problems(member, rows[member.name])
    # RECORD cannot contain its own hash: writing the hash would change the file.
    if archive.record in rows and rows[archive.record].hash:
        problems.append(_problem(archive.record, "record-own-hash", "must not be listed with a hash"))
    return problems


def _row_problems(member: Member, row: _Row) -> list[RecordProblem]:
    problems = []
    if not row.hash:
        problems.append(_problem(member.name, "record-no-hash", "is listed without a hash"))
    elif row.algorithm not in _STRONG_HASHES:
        problems.append(_problem(member.name, "record-weak-hash", f"has a {row.algorithm} hash, weaker than sha256"))
    if row.size != str(member.size):
        recorded = f"{row.size} bytes" if row.size else "no size"
        problems.append(
            _problem(member.name, "record-wrong-size", f"has {member.size} bytes; RECORD says {recorded}")
        )
    return problems


def _content_problems(member: Member, row: _Row, digest: bytes) -> list[RecordProblem]:
    actual = f"{row.algorithm}={_urlsafe(digest)}"
    if actual == row.hash:
        return []
    return [_problem(member.name, "record-wrong-hash", f"has {actual}; RECORD says {row.hash}")]


def _problem(path: str, code: str, fault: str) -> RecordProblem:
    return RecordProblem(path=path, code=code, message=f"`{path}` {fault}.")


def _raise_record_problems(problems: Iterable[RecordProblem]) -> None:
    ordered = sorted(problems, key=lambda problem: (problem.path, problem.code))
    if ordered:
        more = f" ({len(ordered) - 1} more)" if len(ordered) > 1 else ""
        fail("wheel-record-mismatch", f"RECORD is wrong: {ordered[0].message}{more}")


def _record_bytes(rows: Iterable[tuple[str, str, int]], record: str) -> bytes:
    """Return RECORD: lines end in LF and are sorted by path; RECORD's own line, without hash and size, is last."""
    # No translation of line ends: the bytes must be the same on every system.
    text = io.StringIO(newline="")
    ordered = sorted(rows, key=lambda row: row[0].encode())
    csv.writer(text, lineterminator="\n").writerows([*ordered, (record, "", "")])
    return text.getvalue().encode()


def _urlsafe(digest: bytes) -> str:
    # RECORD's hashes are in urlsafe base64 without padding (PEP 427).
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


# --- copying ----------------------------------------------------------------------------------------------


def _moves(archive: Archive, stem: str) -> list[tuple[Member, str]]:
    """Return each member to copy and its new path, sorted by the path's bytes, with `.dist-info` last.

    `stem` is the new name of the two folders that are named after the wheel.
    """
    old_stem = archive.dist_info.removesuffix(".dist-info")
    # Installers find both folders by the version, so a new version must rename both.
    folders = {f"{old_stem}{suffix}": f"{stem}{suffix}" for suffix in (".dist-info", ".data")}
    moves = []
    for member in archive.members:
        top, slash, rest = member.name.partition("/")
        if member.name not in archive.unhashed:
            moves.append((member, f"{folders.get(top, top)}{slash}{rest}"))
    # PEP 427 encourages archivers to place the `.dist-info` files physically at the end.
    return sorted(moves, key=lambda move: (move[1].startswith(f"{stem}.dist-info/"), move[1].encode()))


def _copy_member(
    source: ByteSource, member: Member, path: str, document: bytes | None, row: _Row, writer: ZipWriter
) -> tuple[str, str, int]:
    """Copy a member to `path`, or write `document` there instead; return its line in the new RECORD.

    Raises `WheelError` if the old RECORD has another hash.
    """
    hashers = {name: hashlib.new(name) for name in {"sha256", row.algorithm}}

    def contents() -> Iterator[bytes]:
        for block in blocks(source, member):
            for hasher in hashers.values():
                hasher.update(block)
            yield block

    if document is None:
        writer.add(path, member.mode, member.size, contents())
        size = member.size
    else:
        # The replaced contents are still read, to compare them with the old RECORD.
        for _ in contents():
            pass
        writer.add_bytes(path, document, member.mode)
        size = len(document)
    _raise_record_problems(_content_problems(member, row, hashers[row.algorithm].digest()))
    sha256 = hashers["sha256"] if document is None else hashlib.sha256(document)
    return path, f"sha256={_urlsafe(sha256.digest())}", size
