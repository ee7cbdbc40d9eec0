"""A wheel that is read while it arrives: what is found is what is found afterwards, whatever arrives."""

from __future__ import annotations

import hashlib
import io
import os
import random
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tfdock.images.prefetch import Prefetch
from tfdock.wheel import zip_archive
from tfdock.wheel.facts import WheelError
from tfdock.wheel.wheel import WheelFacts, read_wheel
from tfdock.wheel.zip_archive import ByteSource, Member, members_ahead, open_archive

from ..small_wheels import NAME, wheel_of

FILES = {f"tensorflow/{number}": random.Random(number).randbytes(1 << number) for number in range(0, 18, 2)}
FILES["tensorflow/zeros"] = bytes(3 << 20)
FILES["tensorflow/nothing"] = b""
WHEEL = wheel_of(FILES)
LONG = 10.0  # seconds until a wait is given up: nothing that passes takes as long


@pytest.fixture
def file(tmp_path: Path) -> Iterator[io.FileIO]:
    with (tmp_path / "wheel.part").open("w+b", buffering=0) as file:
        yield file


def read_behind(file: io.FileIO, data: bytes, size: int = 5000) -> tuple[WheelFacts, list[Member]]:
    """Facts of a wheel that arrives in pieces of a size, and the members that were known by then."""
    known: list[Member] = []

    def asked(member: Member) -> bytes | None:
        digest = ahead.sha256(member)
        if digest:
            known.append(member)
        return digest

    with Prefetch(file, len(data)) as ahead:
        for start in range(0, len(data), size):
            file.write(data[start : start + size])
            ahead.arrived(file.tell())
        return read_wheel(file, NAME, asked), known


@pytest.mark.parametrize("size", [1000, 4 << 20], ids=["in pieces", "at once"])
def test_a_wheel_is_known_by_what_was_read_while_it_arrived(
    file: io.FileIO, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, afterwards = (unpacked(monkeypatch, by) for by in ("tfdock.images.prefetch", "tfdock.wheel.wheel"))
    facts, known = read_behind(file, WHEEL, size)
    assert (len(ahead), len(afterwards)) == (len(FILES) + 3, 0)
    assert facts == read_wheel(io.BytesIO(WHEEL), NAME)
    assert facts.record_ok
    assert {member.name for member in known} == set(zipfile.ZipFile(io.BytesIO(WHEEL)).namelist())


def unpacked(monkeypatch: pytest.MonkeyPatch, module: str) -> list[Member]:
    """The members that a module unpacks from now on."""
    found: list[Member] = []

    def pieces(source: ByteSource, member: Member) -> Iterator[bytes]:
        found.append(member)
        return zip_archive.pieces(source, member)

    monkeypatch.setattr(f"{module}.pieces", pieces)
    return found


def test_members_are_read_before_the_wheel_is_whole(file: io.FileIO) -> None:
    first = open_archive(io.BytesIO(WHEEL)).members[0]
    end = first.data + first.packed
    seen = threading.Event()
    with Prefetch(file, len(WHEEL)) as ahead:
        file.write(WHEEL[:end])
        ahead.arrived(end)
        threading.Thread(target=lambda: seen.set() if ahead.sha256(first) else None, daemon=True).start()
        assert seen.wait(LONG)
    assert ahead.sha256(first) == hashlib.sha256(next(iter(FILES.values()))).digest()


def test_who_gives_up_is_not_waited_for(file: io.FileIO) -> None:
    file.write(WHEEL[:2000])
    with Prefetch(file, len(WHEEL)) as ahead:
        ahead.arrived(2000)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
    assert ahead.sha256(open_archive(io.BytesIO(WHEEL)).members[-1]) is None


def test_where_nobody_is_to_read_ahead_nothing_is_known(file: io.FileIO) -> None:
    file.write(WHEEL)
    with Prefetch(file, len(WHEEL), threads=0) as ahead:
        ahead.arrived(len(WHEEL))
        assert ahead.sha256(open_archive(file).members[0]) is None


def test_only_the_very_bytes_that_were_read_are_known_and_only_as_they_were_read(file: io.FileIO) -> None:
    file.write(WHEEL)
    with Prefetch(file, len(WHEEL)) as ahead:
        ahead.arrived(len(WHEEL))
        for member in open_archive(file).members:
            assert ahead.sha256(member)
            for field in ("data", "packed", "method", "size", "crc"):
                assert ahead.sha256(member._replace(**{field: getattr(member, field) + 1})) is None


# --- what arrives is not what the directory lists -------------------------------------------------------------------


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def local(at: int, form: str, value: int) -> Callable[[], bytes]:
    """A wheel whose second member has another value in its local header."""
    header = open_archive(io.BytesIO(WHEEL)).members[1].header
    return lambda: changed(WHEEL, header + at, struct.pack(form, value))


def with_descriptors() -> bytes:
    """The same wheel, written to a pipe: sizes follow the contents."""
    target = io.BytesIO()

    class Pipe(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            return target.write(data)

    with zipfile.ZipFile(io.BytesIO(WHEEL)) as old, zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return target.getvalue()


def hidden() -> bytes:
    """A member that the local headers have and the directory does not."""
    extra = io.BytesIO()
    with zipfile.ZipFile(extra, "w") as one:
        one.writestr("tensorflow/hidden", b"hidden")
    body = extra.getvalue()[: extra.getvalue().index(b"PK\1\2")]
    start = struct.unpack_from("<I", WHEEL, len(WHEEL) - 6)[0]
    moved = WHEEL[:start] + body + WHEEL[start:]
    return changed(moved, len(moved) - 6, struct.pack("<I", start + len(body)))


OTHERS: dict[str, Callable[[], bytes]] = {
    "as it is": lambda: WHEEL,
    "another crc": local(14, "<I", 1),
    "another packed size": local(18, "<I", 100),
    "a packed size beyond the end": local(18, "<I", (1 << 32) - 2),
    "another size": local(22, "<I", 5),
    "a size beyond all bounds": local(22, "<I", (1 << 32) - 2),
    "a method that nobody has": local(8, "<H", 12),
    "stored, not deflated": local(8, "<H", 0),
    "a name beyond the end": local(26, "<H", 0xFFFF),
    "no header": local(0, "<I", 0),
    "descriptors": with_descriptors,
    "hidden": hidden,
    "a byte that flipped": lambda: changed(WHEEL, len(WHEEL) // 2, bytes([WHEEL[len(WHEEL) // 2] ^ 1])),
    "cut short": lambda: WHEEL[:-100],
    "something else": lambda: b"PK\3\4" + os.urandom(5000),
    "a wrong RECORD": lambda: wheel_of(FILES, record="tensorflow/0,sha256=AAAA,1\n"),
    "another hash": lambda: wheel_of(FILES, record=f"tensorflow/2,sha512={'A' * 86},4\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_whatever_arrives_is_judged_as_if_nobody_had_read_ahead(file: io.FileIO, kind: str) -> None:
    data = OTHERS[kind]()

    def judged(read: Callable[[], WheelFacts]) -> object:
        try:
            return read()
        except WheelError as error:
            return error.code, error.message

    plain = judged(partial(read_wheel, io.BytesIO(data), NAME))
    assert judged(lambda: read_behind(file, data)[0]) == plain


def test_more_than_an_archive_may_hold_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ByteSource(io.BytesIO(WHEEL))
    everything = len(list(members_ahead(source)))
    monkeypatch.setattr(zip_archive, "MAX_MEMBERS", 5)
    assert len(list(members_ahead(source))) == 5 < everything
    monkeypatch.setattr(zip_archive, "MAX_MEMBERS", 100)
    monkeypatch.setattr(zip_archive, "RATIO_FREE_BYTES", 1 << 16)
    monkeypatch.setattr(zip_archive, "MAX_RATIO", 1)
    left = list(members_ahead(source))
    assert sum(member.size for member in left) <= len(WHEEL)
    assert len(left) < everything
