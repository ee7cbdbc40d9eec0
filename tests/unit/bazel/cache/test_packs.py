"""Packs of cache entries: the same bytes every time, and nothing but the entries that their table names."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tfdock.bazel.cache import packs
from tfdock.bazel.cache.packs import PackContents, PackEntry, PackEntryChanged, in_order, pack_entries, read_entries
from tfdock.host.foreign_json import Malformed
from tfdock.oci.manifest import canonical_json
from tfdock.oci.plain_tar import plain_header

KEY = "0123456789abcdef"


def blob(data: bytes) -> tuple[PackEntry, bytes]:
    digest = hashlib.sha256(data).hexdigest()
    return PackEntry(f"cas/{digest[:2]}/{digest}", len(data), digest), data


def action(name: str, data: bytes) -> tuple[PackEntry, bytes]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return PackEntry(f"ac/{digest[:2]}/{digest}", len(data), hashlib.sha256(data).hexdigest()), data


FILES = dict([blob(b""), blob(b"x" * 511), blob(b"y" * 512), blob(bytes(range(256)) * 4000), action("a", b"result")])
CONTENTS = PackContents(toolchain=KEY, entries=in_order(FILES))


def pack_of(files: dict[PackEntry, bytes]) -> bytes:
    return b"".join(pack_entries(in_order(files), lambda entry: [files[entry]]))


def read(contents: PackContents, pack: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry, piece, _ in read_entries(contents, io.BytesIO(pack)):
        found[entry.name] = found.get(entry.name, b"") + piece
    return found


def test_what_was_packed_is_unpacked() -> None:
    assert read(CONTENTS, pack_of(FILES)) == {entry.name: data for entry, data in FILES.items()}
    assert PackContents.read(CONTENTS.encoded()) == CONTENTS


def test_packing_again_on_any_number_of_cores_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = pack_of(FILES)
    for threads in (1, 2, 16):
        monkeypatch.setattr(packs, "_THREADS", threads)
        assert pack_of(dict(reversed(FILES.items()))) == pack
    assert len(pack) <= packs.most_packed(CONTENTS)


def test_a_pack_is_a_tar_that_anybody_can_read() -> None:
    tar = tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(pack_of(FILES)).read()))  # noqa: SIM115
    members = tar.getmembers()
    assert [member.name for member in members] == [entry.name for entry in CONTENTS.entries]
    assert {(one.mtime, one.uid, one.gid, one.mode, one.uname) for one in members} == {(0, 0, 0, 0o644, "")}
    assert members[-1].name.startswith("ac/"), "actions come after what they need"


@pytest.mark.parametrize("data", [b"other", b"resul", b"results"])
def test_a_file_that_has_changed_is_not_packed(data: bytes) -> None:
    entry, _ = action("a", b"result")
    with pytest.raises(PackEntryChanged) as caught:
        b"".join(pack_entries([entry], lambda _: [data]))
    assert caught.value.entry == entry


# --- a stranger's table of contents ---------------------------------------------------------------------------------


def table(*rows: object, toolchain: object = KEY, schema: str = packs.CONTENTS_SCHEMA) -> bytes:
    return zstandard.ZstdCompressor().compress(
        canonical_json({"schema": schema, "toolchain": toolchain, "entries": list(rows)})
    )


H = "ab" + "0" * 62


@pytest.mark.parametrize(
    "row",
    [
        ["../../etc/passwd", 1],
        ["/etc/passwd", 1],
        [f"cas/ab/../{H}", 1],
        [f"cas/00/{H}", 1],  # in the wrong folder
        [f"cas/ab/{H.upper()}", 1],
        [f"cas/ab/{H}\n", 1],
        [f"cas/ab/{H}/x", 1],
        [f"tmp/ab/{H}", 1],
        ["ac", 1],
        ["", 1],
        [7, 1],
        [f"cas/ab/{H}", -1],
        [f"cas/ab/{H}", 1 << 40],
        [f"ac/ab/{H}", (64 << 20) + 1, "1" * 64],  # an action is read into memory
        [f"cas/ab/{H}", 1.5],
        [f"cas/ab/{H}", True],
        [f"cas/ab/{H}", "1"],
        [f"cas/ab/{H}", 0],  # only one blob is empty
        [f"cas/ab/{H}", 1, "0" * 64],  # a blob's name is its sha256
        [f"ac/ab/{H}", 1],  # an action's is not
        [f"ac/ab/{H}", 1, "short"],
        [f"ac/ab/{H}"],
        {"name": f"cas/ab/{H}"},
        None,
    ],
    ids=repr,
)
def test_a_row_that_names_no_cache_entry_is_refused(row: object) -> None:
    with pytest.raises(Malformed):
        PackContents.read(table(row))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zstd",
        table([f"cas/ab/{H}", 1], [f"cas/ab/{H}", 1]),
        table([f"cas/ab/{H}", 1], [f"cas/aa/aa{'0' * 62}", 1]),
        table(toolchain=7),
        table(schema="tfdock.cache.contents/2"),
        zstandard.ZstdCompressor().compress(b"[" * 100_000),
        zstandard.ZstdCompressor(level=19).compress(bytes(packs._MOST_UNPACKED + 1)),
        # A window of 128 MiB.
        zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
        ).compressobj().compress(b"x" * (1 << 20)),
    ],
)  # fmt: skip
def test_a_table_that_tfdock_would_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        PackContents.read(data)


def test_the_names_of_both_layouts_are_names() -> None:
    rows = [[H, 1], [f"cas/ab/{H}", 1], [f"ac/ab/{H}", 1, H], [f"ac_{H}", 1, H]]
    assert len(PackContents.read(table(*rows)).entries) == 4


# --- a stranger's pack ----------------------------------------------------------------------------------------------


def raw() -> bytearray:
    return bytearray(zstandard.ZstdDecompressor().stream_reader(pack_of(FILES)).read())


def squeezed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def edited(change: Callable[[bytearray], object]) -> bytes:
    data = raw()
    change(data)
    return squeezed(bytes(data))


def headed(**fields: object) -> bytes:
    """A pack whose first header says something else."""
    info = tarfile.TarInfo(CONTENTS.entries[0].name)
    info.size = CONTENTS.entries[0].size
    for name, value in fields.items():
        setattr(info, name, value)
    return edited(lambda data: data.__setitem__(slice(512), info.tobuf(tarfile.USTAR_FORMAT)))


@pytest.mark.parametrize(
    "pack",
    [
        b"",
        b"no zstd",
        pack_of(FILES)[:-1],
        pack_of(FILES) + b"x",
        pack_of(FILES) + squeezed(b"a second frame"),
        headed(type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0),
        headed(name="../../etc/cron.d/x"),
        headed(mode=0o4755),
        edited(lambda data: data.extend(bytes(512))),
        edited(lambda data: data.__delitem__(slice(-512, None))),
        pack_of(dict([blob(b"x" * 511)])),
        squeezed(bytes(300 << 20)),
    ],
    ids=["empty", "no-zstd", "cut", "more", "frame", "link", "name", "mode", "longer", "shorter", "other", "bomb"],
)
def test_a_pack_that_is_not_what_its_table_says_is_refused(pack: bytes) -> None:
    with pytest.raises(Malformed):
        read(CONTENTS, pack)


@given(st.integers(min_value=0, max_value=len(raw()) - 1), st.integers(min_value=1, max_value=255))
def test_no_byte_of_a_pack_can_be_another(place: int, other: int) -> None:
    data = raw()
    data[place] ^= other
    with pytest.raises(Malformed):
        read(CONTENTS, squeezed(bytes(data)))


@pytest.mark.slow
def test_a_bomb_is_left_before_it_is_unpacked() -> None:
    bomb = io.BytesIO(squeezed(bytes(3000 << 20)))
    entry, _ = blob(b"small")
    with pytest.raises(Malformed):
        list(read_entries(PackContents(toolchain=KEY, entries=(entry,)), bomb))
    assert bomb.tell() <= 1 << 18


def test_the_pieces_of_an_entry_are_bounded_and_its_last_one_comes_when_it_is_known_to_be_right() -> None:
    entry, data = blob(b"0123456789" * 200_000)
    wrong = PackEntry(entry.name, entry.size, entry.sha256)
    pieces = list(read_entries(PackContents(toolchain=KEY, entries=(wrong,)), io.BytesIO(pack_of({entry: data}))))
    assert max(len(piece) for _, piece, _ in pieces) <= 1 << 18
    assert [last for _, _, last in pieces] == [False] * (len(pieces) - 1) + [True]
    poisoned = raw_pack(entry, b"9" * entry.size)
    seen: list[bool] = []
    with pytest.raises(Malformed, match="does not have the sha256"):
        seen.extend(last for _, _, last in read_entries(PackContents(toolchain=KEY, entries=(entry,)), poisoned))
    assert True not in seen


def raw_pack(entry: PackEntry, data: bytes) -> io.BytesIO:
    """A pack whose entry has other bytes, as `packed` would never write it."""
    header = plain_header(entry.name, entry.size)
    return io.BytesIO(squeezed(header + data + bytes(-len(data) % 512) + bytes(1024)))
