"""Wheels: what is read from them, what is refused, and that normalising gives one wheel for all equal ones."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib.metadata
import io
import os
import stat
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdock.wheel.facts import FIXES, WheelError
from tfdock.wheel.wheel import WheelFacts, core_metadata, normalize, read_wheel
from tfdock.wheel.zip_archive import ZipWriter, deflate_backend

FILENAME = "demo_pkg-1.0-cp311-cp311-linux_x86_64.whl"
INFO = "demo_pkg-1.0.dist-info"
SCRIPT = "demo_pkg-1.0.data/scripts/demo"
METADATA = """\
Metadata-Version: 2.1
Name: demo-pkg
Version: 1.0
Requires-Python: >=3.9
Requires-Dist: numpy<2,>=1.26
Requires-Dist: nccl; extra == "gpu"

Version: 1.0 is what the body says, and the body stays.
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: tests (1)
Root-Is-Purelib: false
Tag: cp311-cp311-linux_x86_64
"""
EARLY = (1980, 1, 1, 0, 0, 0)


# --- builders: valid by default, breakable by argument ---------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class File:
    """A member to pack; `record=False` leaves it out of RECORD."""

    name: str
    data: bytes = b""
    mode: int = 0o644
    kind: int = stat.S_IFREG
    time: tuple[int, int, int, int, int, int] = (2024, 2, 29, 13, 37, 11)
    method: int = zipfile.ZIP_DEFLATED
    level: int | None = 6
    system: int = 3
    extra: bytes = b""
    comment: bytes = b""
    record: bool = True


CONTENTS = (
    File(name="demo_pkg/__init__.py", data=b"answer = 42\n"),
    File(name="demo_pkg/empty.py"),
    File(name="demo_pkg/libdemo.so", data=bytes(range(256)) * 40, mode=0o755),
    File(name="demo_pkg/naïve, or not.txt", data="ü\n".encode()),
    File(name=SCRIPT, data=b"#!python\nimport demo_pkg\nprint(demo_pkg.answer)\n", mode=0o755),
)


def row(name: str, data: bytes, algorithm: str = "sha256") -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).decode().rstrip("=")
    return [name, f"{algorithm}={digest}", str(len(data))]


def documents(
    *, metadata: str | None = METADATA, tags: str | None = WHEEL, info: str = INFO, newline: str = "\n"
) -> list[File]:
    texts = {"METADATA": metadata, "WHEEL": tags}
    given = {name: text.replace("\n", newline) for name, text in texts.items() if text is not None}
    return [File(name=f"{info}/{name}", data=text.encode()) for name, text in given.items()]


def record_of(files: Iterable[File], info: str = INFO) -> list[list[str]]:
    rows = [row(file.name, file.data) for file in files if file.record and not file.name.endswith("/")]
    return [*rows, [f"{info}/RECORD", "", ""]]


def record_file(rows: Iterable[Sequence[str]], info: str = INFO, newline: str = "\n") -> File:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=newline).writerows(rows)
    return File(name=f"{info}/RECORD", data=text.getvalue().encode())


def pack(files: Iterable[File], *, comment: bytes = b"", target: BinaryIO | None = None, junk: bytes = b"") -> bytes:
    """Zip the files; `junk` goes between the first two members."""
    buffer = target or io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore", UserWarning)  # of duplicate names
        for file in files:
            info = zipfile.ZipInfo(file.name, file.time)
            info.external_attr = (file.kind | file.mode) << 16
            info.create_system, info.extra, info.comment = file.system, file.extra, file.comment
            archive.writestr(info, file.data, file.method, file.level)
            if junk and archive.fp:
                archive.fp.write(junk)
                archive.start_dir = archive.fp.tell()
                junk = b""
        archive.comment = comment
    return buffer.getvalue() if isinstance(buffer, io.BytesIO) else b""


def make_wheel(
    *more: File,
    contents: Sequence[File] = CONTENTS,
    metadata: str | None = METADATA,
    tags: str | None = WHEEL,
    info: str = INFO,
    record: Callable[[list[list[str]]], Iterable[Sequence[str]]] | None = lambda rows: rows,
    comment: bytes = b"",
    junk: bytes = b"",
) -> bytes:
    """A sound wheel named FILENAME, unless an argument says otherwise; `record` may change RECORD's rows."""
    files = [*contents, *more, *documents(metadata=metadata, tags=tags, info=info)]
    if record is not None:
        files.append(record_file(record(record_of(files, info)), info))
    return pack(files, comment=comment, junk=junk)


def patch(
    data: bytes, name: str, *, local: dict[int, bytes] | None = None, central: dict[int, bytes] | None = None
) -> bytes:
    """Overwrite bytes of a member's local header and directory entry; keys are offsets inside them."""
    out = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start = archive.getinfo(name).header_offset
        entry = data.rindex(name.encode(), archive.start_dir) - 46
    for base, changes in ((start, local or {}), (entry, central or {})):
        for at, new in changes.items():
            out[base + at : base + at + len(new)] = new
    return bytes(out)


def read(data: bytes, filename: str = FILENAME) -> WheelFacts:
    return read_wheel(io.BytesIO(data), filename)


def normal(data: bytes, filename: str = FILENAME, **changes: Any) -> tuple[str, bytes]:
    target = io.BytesIO(b"rubbish from an earlier attempt" * 10_000)
    renamed = normalize(io.BytesIO(data), filename, target, **changes)
    return renamed, target.getvalue()


def opened(data: bytes) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(data))


# --- reading ---------------------------------------------------------------------------------------------


def test_a_sound_wheel_is_described_by_its_facts() -> None:
    data = make_wheel()
    assert read(data) == WheelFacts(
        name="demo-pkg", version="1.0", build="", python_tag="cp311", abi_tag="cp311", platform_tag="linux_x86_64",
        size=len(data), sha256=hashlib.sha256(data).hexdigest(), members=8, record_ok=True, record_problems=(),
    )  # fmt: skip


def test_compressed_tags_and_a_build_tag_agree_with_one_tag_line_per_combination() -> None:
    tags = WHEEL.replace("Tag:", "Build: 3\nTag:") + "Tag: cp311-cp311-manylinux_2_17_x86_64\n"
    facts = read(make_wheel(tags=tags), "demo_pkg-1.0-3-cp311-cp311-manylinux_2_17_x86_64.linux_x86_64.whl")
    assert (facts.build, facts.platform_tag) == ("3", "manylinux_2_17_x86_64.linux_x86_64")


def test_metadata_is_read_without_judging_it() -> None:
    found, _ = core_metadata(io.BytesIO(make_wheel()), FILENAME)
    assert (found.name, found.version, found.requires_python) == ("demo-pkg", "1.0", ">=3.9")
    assert found.requires_dist == ("numpy<2,>=1.26", 'nccl; extra == "gpu"')


def test_what_stands_behind_the_headers_of_a_document_is_not_parsed() -> None:
    body = f"Content-Type: message/rfc822\nVersion: {'1' * 5000}\n"
    head = METADATA.partition("\n\n")[0]
    facts = read(make_wheel(metadata=f"{head}\n\n{body}", tags=f"{WHEEL}\n\n{body}"))
    assert (facts.version, facts.record_ok) == ("1.0", True)


def test_stronger_hashes_in_record_are_checked_too() -> None:
    assert read(
        make_wheel(record=lambda rows: [row(f.name, f.data, "sha512") for f in CONTENTS] + rows[5:])
    ).record_ok


def test_archive_comments_folders_and_zip64_members_are_no_reason_to_refuse() -> None:
    buffer = io.BytesIO(make_wheel(File(name="demo_pkg/", kind=stat.S_IFDIR, mode=0o755), comment=b"hello"))
    assert read(buffer.getvalue()).members == 8
    files = [*CONTENTS, *documents()]
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        for file in [*files, record_file(record_of(files))]:
            with archive.open(file.name, "w", force_zip64=True) as member:
                member.write(file.data)
    assert read(buffer.getvalue()).record_ok


def zip64_ended(data: bytes, *, count: int = 0, length: int = 44, disks: int = 1, short: int = 0xFFFF) -> bytes:
    """Give a wheel the end records of a large archive; `count` is added to the number of members."""
    members, size, start = struct.unpack("<HII", data[-12:-2])
    members += count
    end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", length, 45, 45, 0, 0, members, members, size, start)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(data) - 22, disks)
    last = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, short, short, 0xFFFF_FFFF, 0xFFFF_FFFF, 0)
    return data[:-22] + end + locator + last


def test_the_end_records_of_a_large_archive_are_understood() -> None:
    assert read(zip64_ended(make_wheel())).record_ok


class Pipe(io.RawIOBase):
    """A target that cannot seek, which makes `zipfile` write data descriptors."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self.written += piece
        return len(piece)


def piped(files: Iterable[File]) -> bytes:
    pipe = Pipe()
    pack(files, target=pipe)  # type: ignore[arg-type]
    return bytes(pipe.written)


def test_a_wheel_written_to_a_pipe_is_read_and_normalised_like_any_other() -> None:
    files = [*CONTENTS, *documents()]
    data = piped([*files, record_file(record_of(files))])
    assert opened(data).getinfo(SCRIPT).flag_bits & 8
    assert read(data).record_ok
    assert normal(data) == normal(make_wheel())


# --- refusing --------------------------------------------------------------------------------------------

CODE = "demo_pkg/__init__.py"
STORED = File(name="demo_pkg/stored.bin", data=b"stored bytes", method=zipfile.ZIP_STORED)


def with_path(name: str) -> bytes:
    return make_wheel(File(name=name, data=b"x"))


def with_record(data: bytes) -> bytes:
    return make_wheel(File(name=f"{INFO}/RECORD", data=data), record=None)


def declaring(*sizes: int) -> bytes:
    data = make_wheel()
    for file, size in zip(CONTENTS, sizes, strict=False):
        data = patch(data, file.name, central={24: struct.pack("<I", size)}) if file.name.isascii() else data
    return data


def broken_deflate() -> bytes:
    data = make_wheel()
    with opened(data) as archive:
        at = archive.getinfo(CODE).header_offset + 30 + len(CODE)
    return data[:at] + b"\xff" + data[at + 1 :]


def with_file(name: str = "x", **more: Any) -> bytes:
    return make_wheel(File(name=name, **more))


def with_headers(name: str = CODE, **headers: dict[int, bytes]) -> bytes:
    return patch(make_wheel(STORED), name, **headers)


def with_end(**lies: int) -> bytes:
    return zip64_ended(make_wheel(), **lies)


# By code: what is refused with it.
REFUSED_BY: dict[str, dict[str, Callable[[], bytes]]] = {
    "wheel-not-a-zip": {
        "nothing": lambda: b"",
        "a web page": lambda: b"<html>not found</html>",
        "cut short": lambda: make_wheel()[:-30],
        "cut in the end record": lambda: make_wheel()[:-4],
        "only the start": lambda: make_wheel()[:200],
        "zip64 end record damaged": lambda: with_end(length=45),
        "zip64 archive divided": lambda: with_end(disks=2),
        "a member missing": lambda: with_end(count=1),
    },
    "wheel-trailing-data": {"trailing data": lambda: make_wheel() + b"more"},
    "wheel-leading-data": {"leading data": lambda: b"#!/bin/sh\n" + make_wheel()},
    "wheel-hidden-data": {
        "data between members": lambda: make_wheel(junk=b"payload"),
        "a member uncounted": lambda: with_end(count=-1),
    },
    "wheel-duplicate-member": {
        "same name twice": lambda: make_wheel(CONTENTS[0]),
        "file and folder": lambda: with_path(f"{CODE}/x"),
    },
    "wheel-unsafe-path": {
        "absolute path": lambda: with_path("/etc/passwd"),
        "parent path": lambda: with_path("demo_pkg/../../x"),
        "backslash": lambda: with_path("demo_pkg\\x"),
        "drive": lambda: with_path("C:/x"),
        "empty path part": lambda: with_path("demo_pkg//x"),
        "dot path part": lambda: with_path("./x"),
        "line end in a path": lambda: with_path("demo_pkg/x\ny"),
        "text direction in a path": lambda: with_path("demo_pkg/\u202egpj.so"),
        "path in an unknown encoding": lambda: with_headers(central={46: b"\xe9"}, local={30: b"\xe9"}),
    },
    "wheel-special-file": {
        "symbolic link": lambda: with_file("demo_pkg/link", data=b"/etc", kind=stat.S_IFLNK),
        "device": lambda: with_file("demo_pkg/dev", kind=stat.S_IFCHR),
        "folder as file": lambda: with_file("demo_pkg/dir", kind=stat.S_IFDIR),
        "folder with contents": lambda: with_file("demo_pkg/dir/", kind=stat.S_IFDIR, data=b"x"),
    },
    "wheel-encrypted": {"encrypted": lambda: with_headers(central={8: b"\1"}, local={6: b"\1"})},
    "wheel-bad-compression": {
        "bzip2": lambda: with_file(data=b"x", method=zipfile.ZIP_BZIP2),
        "lzma": lambda: with_file(data=b"x", method=zipfile.ZIP_LZMA),
    },
    "wheel-header-mismatch": {
        "other local name": lambda: with_headers(local={30: b"evil"}),
        "other local size": lambda: with_headers(local={22: b"\1\0\0\0"}),
        "other local method": lambda: with_headers(local={8: b"\0"}),
        "no local header": lambda: with_headers(local={0: b"XX"}),
        "second name in an extra field": lambda: with_file(extra=struct.pack("<HHB", 0x7075, 1, 1)),
        "extra field cut short": lambda: with_file(extra=struct.pack("<HHB", 0x5455, 9, 1)),
        "stored with two sizes": lambda: with_headers(STORED.name, central={24: b"\xff"}),
        "end records disagree": lambda: with_end(short=1),
    },
    "wheel-overlapping-members": {
        "two members at one place": lambda: with_headers("demo_pkg/empty.py", central={42: bytes(4)}),
    },
    "wheel-bomb": {"bomb": lambda: declaring(0x9000_0000)},
    "wheel-too-large": {
        "too many members": lambda: with_end(count=200_000),
        "16 GiB": lambda: declaring(*[0xFFFF_FFFE] * 5),
    },
    "wheel-corrupt-member": {
        "CRC": lambda: make_wheel(STORED).replace(b"stored bytes", b"stored bits!"),
        "deflate stream": broken_deflate,
    },
    "wheel-missing-dist-info": {
        "no dist-info": lambda: pack(CONTENTS[:2]),
        "empty archive": lambda: pack([]),
        "two dist-infos": lambda: with_file("other-1.0.dist-info/RECORD"),
    },
    "wheel-missing-record": {"no RECORD": lambda: make_wheel(record=None)},
    "wheel-missing-metadata": {
        "no METADATA": lambda: make_wheel(metadata=None),
        "no WHEEL": lambda: make_wheel(tags=None),
    },
    "wheel-bad-metadata": {
        "no version": lambda: make_wheel(metadata="Name: demo-pkg\n"),
        "two versions": lambda: make_wheel(metadata=f"Version: 1.0\n{METADATA}"),
        "a long version": lambda: make_wheel(metadata=METADATA.replace("1.0", "1" * 5000)),
        "parameters of a media type": lambda: make_wheel(metadata=f"Content-Type: x/y; a={';' * 900}\n{METADATA}"),
        "a long head": lambda: make_wheel(metadata=f"Requires-Dist: {'a' * 131_000}\n{METADATA}"),
        "a long version required": lambda: make_wheel(metadata=f"Requires-Dist: a>={'1' * 5000}\n{METADATA}"),
        "no tags": lambda: make_wheel(tags="Wheel-Version: 1.0\n"),
        "bad tag": lambda: make_wheel(tags=f"{WHEEL}Tag: linux\n"),
        "wheel format from the future": lambda: make_wheel(tags=WHEEL.replace("n: 1", "n: 2")),
        "RECORD is no CSV": lambda: with_record(b'"x'),
        "RECORD is no UTF-8": lambda: with_record(b"\xff,,"),
    },
    "wheel-name-mismatch": {
        "METADATA's name": lambda: make_wheel(metadata=METADATA.replace("demo-pkg", "other")),
        "dist-info's name": lambda: make_wheel(info="other-1.0.dist-info"),
        "foreign data folder": lambda: with_path("other-1.0.data/scripts/x"),
    },
    "wheel-version-mismatch": {
        "METADATA's version": lambda: make_wheel(metadata=METADATA.replace("1.0", "1.1")),
        "dist-info's version": lambda: make_wheel(contents=CONTENTS[:4], info="demo_pkg-2.dist-info"),
    },
    "wheel-tag-mismatch": {
        "platform tag": lambda: make_wheel(tags=WHEEL.replace("linux_", "manylinux2014_")),
        "one tag more": lambda: make_wheel(tags=f"{WHEEL}Tag: cp312-cp312-linux_x86_64\n"),
        "build tag": lambda: make_wheel(tags=f"Build: 7\n{WHEEL}"),
    },
}
REFUSED = [pytest.param(make, code, id=name) for code, some in REFUSED_BY.items() for name, make in some.items()]


@pytest.mark.parametrize(("build", "code"), REFUSED)
def test_what_is_not_a_sound_wheel_is_refused_with_its_own_code(build: Callable[[], bytes], code: str) -> None:
    data = build()
    with pytest.raises(WheelError) as raised:
        read(data)
    assert (raised.value.code, raised.value.fix) == (code, FIXES[code])
    assert raised.value.message.endswith(".")
    with pytest.raises(WheelError) as again:
        normal(data)
    assert again.value.code == code


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "The file is empty"),
        (b"\x1f\x8b\x08\0", "packed with gzip"),
        (b"schema: 1\ntensorflow: x\n", "begins with the text `schema: 1`"),
        (b"\x7fELF\2\1\1", "begins with the bytes 7f 45 4c 46 02 01 01;"),
        (make_wheel()[:-30], "it is cut off"),
    ],
)
def test_what_is_no_zip_archive_is_told_by_what_it_seems_to_be(data: bytes, told: str) -> None:
    with pytest.raises(WheelError, match=told):
        read(data)


@pytest.mark.parametrize(
    "filename",
    ["demo.zip", "demo_pkg-1.0.whl", "demo_pkg-one-cp311-cp311-linux_x86_64.whl", f"wheelhouse/{FILENAME}", ""],
)
def test_a_file_name_that_is_not_a_wheels_is_refused(filename: str) -> None:
    with pytest.raises(WheelError) as raised:
        read(make_wheel(), filename)
    assert raised.value.code == "wheel-bad-name"


@pytest.mark.parametrize("build", ["", "1-"])
def test_a_wheel_with_a_variant_label_is_read_like_any_other(build: str) -> None:
    name = FILENAME.replace("-cp311-", f"-{build}cp311-", 1)
    facts = read(make_wheel(), name.replace(".whl", "-sm86.whl"))
    assert (facts.python_tag, facts.abi_tag, facts.platform_tag) == ("cp311", "cp311", "linux_x86_64")
    for label in ("SM86", "sm+86", "sm-86"):
        with pytest.raises(WheelError, match="not the name of a wheel"):
            read(make_wheel(), name.replace(".whl", f"-{label}.whl"))


def test_a_wheel_that_unpacks_beyond_the_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdock.wheel.zip_archive.MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(WheelError) as raised:
        read(make_wheel())
    assert raised.value.code == "wheel-too-large"
    assert raised.value.message.endswith("the limit is 10000.")


def test_every_code_is_reachable() -> None:
    assert REFUSED_BY.keys() | {"wheel-bad-name", "wheel-bad-rewrite", "wheel-record-mismatch"} == set(FIXES)


def test_a_member_that_inflates_beyond_its_declared_size_is_refused() -> None:
    short = struct.pack("<I", 5)
    data = patch(make_wheel(), CONTENTS[2].name, central={24: short}, local={22: short})
    with pytest.raises(WheelError) as raised:
        read(data)
    assert raised.value.code == "wheel-corrupt-member"


def test_of_several_damaged_members_the_first_of_the_archive_is_named() -> None:
    """Each is large enough for a thread of its own, and the second one is read first."""
    files = [
        File(name=f"demo_pkg/{name}", data=byte * size, method=zipfile.ZIP_STORED)
        for name, byte, size in (("early", b"\1", 9 << 20), ("later", b"\2", 10 << 20))
    ]
    data = make_wheel(*files, contents=[])
    for file in files:
        at = data.index(file.data)
        data = data[:at] + b"X" + data[at + 1 :]
    with pytest.raises(WheelError, match="`demo_pkg/early` has a size or CRC that differs"):
        read(data)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_damaged_bytes_raise_nothing_but_wheel_errors(data: st.DataObject) -> None:
    sound = bytearray(make_wheel())
    for _ in range(data.draw(st.integers(1, 4))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(sound[: data.draw(st.none() | st.integers(0, len(sound)))])
    for attempt in (read, normal):
        with contextlib.suppress(WheelError):
            attempt(damaged)


# --- RECORD ----------------------------------------------------------------------------------------------


def changed(index: int, *cells: str | None) -> Callable[[list[list[str]]], list[list[str]]]:
    """Change cells of one RECORD row; None keeps a cell."""

    def change(rows: list[list[str]]) -> list[list[str]]:
        new = [old if cell is None else cell for old, cell in zip(rows[index], cells, strict=False)]
        return [*rows[:index], new, *rows[index + 1 :]]

    return change


WRONG_RECORDS = [
    pytest.param(lambda rows: rows[1:], CODE, "record-not-listed", id="not listed"),
    pytest.param(lambda rows: rows[:-1], f"{INFO}/RECORD", "record-not-listed", id="RECORD not listed"),
    pytest.param(lambda rows: [*rows, row("gone.py", b"")], "gone.py", "record-no-such-file", id="no such file"),
    pytest.param(lambda rows: [rows[0], *rows], CODE, "record-duplicate-line", id="listed twice"),
    pytest.param(lambda rows: [*rows, ["x", "y"]], "x", "record-bad-line", id="line with two fields"),
    pytest.param(changed(0, None, row("", b"else")[1]), CODE, "record-bad-line", id="line that lost its size"),
    pytest.param(changed(0, None, row("", b"else")[1], None), CODE, "record-wrong-hash", id="wrong hash"),
    pytest.param(changed(0, None, "", None), CODE, "record-no-hash", id="no hash"),
    pytest.param(changed(0, None, "md5=x", None), CODE, "record-weak-hash", id="weak hash"),
    pytest.param(changed(0, None, None, "11"), CODE, "record-wrong-size", id="wrong size"),
    pytest.param(changed(0, None, None, ""), CODE, "record-wrong-size", id="no size"),
    pytest.param(changed(-1, None, "sha256=x", None), f"{INFO}/RECORD", "record-own-hash", id="hash of itself"),
]


@pytest.mark.parametrize(("record", "path", "code"), WRONG_RECORDS)
def test_a_wrong_record_is_reported_and_never_blessed_by_normalising(
    record: Callable[[list[list[str]]], list[list[str]]], path: str, code: str
) -> None:
    data = make_wheel(record=record)
    facts = read(data)
    assert not facts.record_ok
    assert (path, code) in [(problem.path, problem.code) for problem in facts.record_problems]
    with pytest.raises(WheelError) as raised:
        normal(data)
    assert raised.value.code == "wheel-record-mismatch"


def test_all_record_problems_are_reported_together_and_in_order() -> None:
    problems = read(make_wheel(record=lambda rows: [*rows[2:], row("gone.py", b"")])).record_problems
    assert [(problem.path, problem.code) for problem in problems] == [
        (CODE, "record-not-listed"), ("demo_pkg/empty.py", "record-not-listed"), ("gone.py", "record-no-such-file"),
    ]  # fmt: skip
    assert problems[0].message == f"`{CODE}` is not listed."


def test_record_signatures_need_no_listing_and_are_dropped_by_normalising() -> None:
    signed = make_wheel(File(name=f"{INFO}/RECORD.jws", data=b"{}", record=False))
    assert read(signed).record_ok
    assert normal(signed) == normal(make_wheel())


# --- normalising -----------------------------------------------------------------------------------------


@st.composite
def packings(draw: st.DrawFn) -> bytes:
    """The same wheel, packed in any order, with any times, modes, levels, folders, extra fields and comments."""
    files = [*CONTENTS, *documents()]
    rows = draw(st.permutations(record_of(files)))
    files.append(record_file(rows, newline=draw(st.sampled_from(["\n", "\r\n"]))))
    folders = draw(st.sets(st.sampled_from(["demo_pkg/", f"{INFO}/", "demo_pkg-1.0.data/"])))
    files += [File(name=name, kind=stat.S_IFDIR, mode=0o755) for name in sorted(folders)]
    packed = [draw(varied(file)) for file in draw(st.permutations(files))]
    comments = st.binary(max_size=9).filter(lambda comment: b"PK\5\6" not in comment)  # with that one it is refused
    return piped(packed) if draw(st.booleans()) else pack(packed, comment=draw(comments))


def varied(file: File) -> st.SearchStrategy[File]:
    modes = (0o755, 0o775, 0o700, 0o500, 0o744) if file.mode & 0o111 else (0o644, 0o664, 0o600, 0o444, 0)
    return st.builds(
        replace,
        st.just(file),
        mode=st.sampled_from(modes),
        kind=st.sampled_from([file.kind, 0]),
        time=st.tuples(*(st.integers(*ends) for ends in ((1980, 2107), (1, 12), (1, 28), (0, 23), (0, 59), (0, 59)))),
        method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
        level=st.integers(0, 9),
        system=st.sampled_from([0, 3]),
        extra=st.sampled_from([b"", struct.pack("<HHBI", 0x5455, 5, 1, 1_700_000_000)]),
        comment=st.sampled_from([b"", b"a comment"]),
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(packings())
def test_wheels_that_differ_only_in_packing_become_the_same_bytes(data: bytes) -> None:
    assert read(data).record_ok
    assert normal(data) == normal(make_wheel())


@pytest.mark.slow
@settings(max_examples=40)
@given(
    packings(),
    st.integers(-(10**12), 10**12),
    st.sampled_from([None, "1.0", "1.0+cuda12.5.sm86", "0.9", "2!1.0.dev3"]),
)
def test_normalising_again_changes_nothing(data: bytes, epoch: int, version: str | None) -> None:
    filename, once = normal(data, epoch=epoch, version=version)
    assert normal(once, filename, epoch=epoch) == (filename, once)
    assert normal(once, filename, epoch=epoch, version=version) == (filename, once)
    assert read(once, filename).record_ok


@settings(max_examples=25)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}\.py", fullmatch=True), st.binary(), max_size=6))
def test_normalising_keeps_every_byte_of_the_contents(contents: dict[str, bytes]) -> None:
    data = make_wheel(contents=[File(name=name, data=value) for name, value in contents.items()])
    _, result = normal(data)
    with opened(result) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in contents} == contents


def test_members_are_sorted_with_dist_info_last_and_record_last_of_all() -> None:
    _, result = normal(make_wheel(File(name="zoo.py"), File(name=f"{INFO}/top_level.txt", data=b"demo_pkg\n")))
    documents = (f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "top_level.txt", "RECORD"))
    assert opened(result).namelist() == [*sorted(file.name for file in CONTENTS), "zoo.py", *documents]


def test_headers_carry_nothing_of_the_machine_that_packed() -> None:
    _, result = normal(make_wheel(comment=b"built by me"))
    archive = opened(result)
    assert archive.comment == b""
    for info in archive.infolist():
        assert info.date_time == EARLY
        assert (info.create_system, info.extra, info.comment, info.flag_bits & 8) == (3, b"", b"", 0)
        executable = info.filename in (SCRIPT, "demo_pkg/libdemo.so")
        assert info.external_attr >> 16 == stat.S_IFREG | (0o755 if executable else 0o644)
        assert info.compress_type == (zipfile.ZIP_DEFLATED if info.file_size else zipfile.ZIP_STORED)


def test_contents_are_deflated_at_level_six_whatever_the_block_borders() -> None:
    contents = zlib.compress(bytes(range(256)) * 30_000, 0) + os.urandom(5000)
    _, result = normal(make_wheel(File(name="demo_pkg/big.bin", data=contents, level=1)))
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    expected = deflater.compress(contents) + deflater.flush()
    assert opened(result).getinfo("demo_pkg/big.bin").compress_size == len(expected)
    assert expected in result


def test_record_is_sorted_quoted_and_ends_its_lines_in_lf() -> None:
    _, result = normal(make_wheel())
    files = sorted([*CONTENTS, *documents()], key=lambda file: file.name.encode())
    assert opened(result).read(f"{INFO}/RECORD") == record_file(record_of(files)).data


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        pytest.param(0, EARLY, id="1970"),
        pytest.param(-5, EARLY, id="before 1970"),
        pytest.param(315532799, EARLY, id="a second before zip's first"),
        pytest.param(315532801, EARLY, id="odd"),
        pytest.param(315532802, (1980, 1, 1, 0, 0, 2), id="even"),
        pytest.param(1709213831, (2024, 2, 29, 13, 37, 10), id="odd, today"),
        pytest.param(4354819199, (2107, 12, 31, 23, 59, 58), id="zip's last second"),
        pytest.param(4354819200, (2107, 12, 31, 23, 59, 58), id="beyond zip's last"),
        pytest.param(10**18, (2107, 12, 31, 23, 59, 58), id="beyond any calendar"),
    ],
)
def test_the_epoch_is_kept_inside_zips_calendar(epoch: int, expected: tuple[int, ...]) -> None:
    _, result = normal(make_wheel(), epoch=epoch)
    assert {info.date_time for info in opened(result).infolist()} == {expected}


def test_a_new_version_reaches_file_name_folders_and_metadata_and_nothing_else() -> None:
    filename, result = normal(make_wheel(), version="1.0+CUDA12.5-sm86")
    assert filename == "demo_pkg-1.0+cuda12.5.sm86-cp311-cp311-linux_x86_64.whl"
    archive = opened(result)
    info = "demo_pkg-1.0+cuda12.5.sm86.dist-info"
    assert "demo_pkg-1.0+cuda12.5.sm86.data/scripts/demo" in archive.namelist()
    expected = METADATA.replace("\nVersion: 1.0\n", "\nVersion: 1.0+cuda12.5.sm86\n", 1)
    assert archive.read(f"{info}/METADATA").decode() == expected
    assert archive.read(f"{info}/WHEEL").decode() == WHEEL
    assert read(result, filename).version == "1.0+cuda12.5.sm86"


def test_another_platform_stands_in_the_name_and_in_each_tag_once() -> None:
    name, data = normal(make_wheel(), platform="manylinux_2_28_x86_64")
    assert name == "demo_pkg-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    facts = read(data, name)
    assert (facts.platform_tag, facts.record_ok) == ("manylinux_2_28_x86_64", True)
    several = "demo_pkg-1.0-cp311-cp311.none-linux_x86_64.any.whl"
    tags = WHEEL.replace(
        "Tag: cp311-cp311-linux_x86_64\n",
        "".join(
            f"Tag: cp311-{abi}-{platform}\n" for abi in ("cp311", "none") for platform in ("linux_x86_64", "any")
        ),
    )
    name, data = normal(make_wheel(tags=tags), several, platform="manylinux_2_28_x86_64")
    written = opened(data).read("demo_pkg-1.0.dist-info/WHEEL").decode()
    assert [line for line in written.splitlines() if line.startswith("Tag")] == [
        "Tag: cp311-cp311-manylinux_2_28_x86_64", "Tag: cp311-none-manylinux_2_28_x86_64",
    ]  # fmt: skip
    assert read(data, name).record_ok


def test_rewriting_keeps_windows_line_ends() -> None:
    files = [*CONTENTS, *documents(newline="\r\n")]
    data = pack([*files, record_file(record_of(files))])
    filename, result = normal(data, version="3")
    archive = opened(result)
    assert b"\r\nVersion: 3\r\nRequires-Python" in archive.read("demo_pkg-3.dist-info/METADATA")
    assert read(result, filename).record_ok


@pytest.mark.parametrize(
    "version", [pytest.param("one", id="no version"), pytest.param("1.0\nEvil: yes", id="version with a line end")]
)
def test_a_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(WheelError) as raised:
        normal(make_wheel(), version=version)
    assert raised.value.code == "wheel-bad-rewrite"


@pytest.mark.slow
def test_a_wheel_with_more_members_than_a_plain_zip_can_count_is_written_with_zip64(tmp_path: Path) -> None:
    with (tmp_path / "many.zip").open("w+b") as target:
        writer = ZipWriter(target, 0)
        for number in range(0x10001):
            writer.add_bytes(f"{number:05}", b"")
        writer.finish()
        with zipfile.ZipFile(target) as archive:
            assert len(archive.namelist()) == 0x10001


# --- the whole -------------------------------------------------------------------------------------------


def test_the_deflate_backend_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(zlib, "ZLIBNG_VERSION", raising=False)
    assert deflate_backend() == f"zlib {zlib.ZLIB_RUNTIME_VERSION}"
    monkeypatch.setattr(zlib, "ZLIBNG_VERSION", "2.2.5", raising=False)
    assert deflate_backend() == "zlib-ng 2.2.5"


@pytest.mark.slow
def test_pip_installs_a_normalised_wheel_under_its_new_version(tmp_path: Path) -> None:
    source = "demo_pkg-1.0-py3-none-any.whl"
    data = make_wheel(tags=WHEEL.replace("cp311-cp311-linux_x86_64", "py3-none-any"))
    filename, result = normal(data, source, version="1.0+cuda12.5.sm86")
    (tmp_path / filename).write_bytes(result)
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    options = ["--disable-pip-version-check", "--find-links", str(tmp_path), "--target", str(target)]
    subprocess.run([*command, *options, "demo-pkg==1.0+cuda12.5.sm86"], check=True, capture_output=True, text=True)
    (found,) = importlib.metadata.distributions(path=[str(target)])
    assert (found.metadata["Name"], found.version) == ("demo-pkg", "1.0+cuda12.5.sm86")
    script = target / "bin" / "demo"
    assert script.stat().st_mode & 0o111
    environment = {**os.environ, "PYTHONPATH": str(target)}
    ran = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True, env=environment)
    assert ran.stdout == "42\n"


@pytest.mark.slow
def test_a_large_member_is_never_held_in_memory(tmp_path: Path) -> None:
    noise, hasher, others = os.urandom(8 << 20), hashlib.sha256(), documents()
    with zipfile.ZipFile(tmp_path / FILENAME, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("demo_pkg/libdemo.so", "w") as member:
            for piece in [bytes(1 << 20)] * 300 + [noise]:
                hasher.update(piece)
                member.write(piece)
        digest = base64.urlsafe_b64encode(hasher.digest()).decode().rstrip("=")
        large = ["demo_pkg/libdemo.so", f"sha256={digest}", str(308 << 20)]
        for file in [*others, record_file([large, *record_of(others)])]:
            archive.writestr(file.name, file.data)
    tracemalloc.start()
    try:
        with (tmp_path / FILENAME).open("rb") as source, (tmp_path / "out").open("w+b") as target:
            assert read_wheel(source, FILENAME).record_ok
            normalize(source, FILENAME, target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
