"""Laws of reading libraries: any layout is read back exactly, blocks do not matter, damage raises nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdock.wheel.facts import GpuCode

from .. import elf_files as elf
from ..elf_files import Image
from .test_library import read

# --- layouts --------------------------------------------------------------------------------------------------------

TARGETS = [(number, "") for number in (35, 52, 60, 75, 80, 87, 90, 100, 120, 121)]
TARGETS += [(90, "a"), (100, "a"), (100, "f"), (103, "f"), (120, "a"), (120, "f"), (121, "a")]
HEADS = (64, 72, 80, 88, 96, 112, 120)
PACKINGS: tuple[elf.Packing, ...] = ("raw", "lz4", "zstd")
MAGIC = elf.packed_container(b"")


@st.composite
def image_of(draw: st.DrawFn) -> tuple[Image, bool]:
    """An image, and whether it may hold kernels: PTX always may."""
    kind = draw(st.sampled_from([1, 2, 2]))
    kernels = draw(st.integers(0, 2))
    text = f".version 8.3\n.target sm_80\n{draw(st.text('abc ', max_size=40))}".encode()
    contents = text if kind == 1 else elf.cubin(kernels, draw(st.integers(0, 200)))
    number, letter = draw(st.sampled_from(TARGETS))
    image = Image(
        kind=kind,
        number=number,
        letter=letter,
        packing=draw(st.sampled_from(PACKINGS)),
        contents=contents,
        isa=(draw(st.integers(3, 9)), draw(st.integers(0, 11))),
        head=draw(st.sampled_from(HEADS)),
    )
    return image, kind == 1 or kernels > 0


Container = list[tuple[Image, bool]]
CONTAINERS = st.lists(st.lists(image_of(), max_size=5), min_size=1, max_size=4)
# What stands between sections and looks like code, or like nothing.
DECOYS = st.sampled_from([b"", b"x" * 9, MAGIC, MAGIC[:12], b"\x50\xed\x55\xba" * 5, b"CCOB" * 3, elf.cubin(1)])


def order(target: str) -> tuple[int, str]:
    """By number, then by letter."""
    number = target.partition("_")[2]
    digits = number.rstrip("af")
    return int(digits), number[len(digits) :]


def written(containers: Sequence[Container]) -> bytes:
    return b"".join(elf.container(*(image for image, _ in one)) for one in containers)


def expected_images(containers: Sequence[Container]) -> dict[str, tuple[int, int, set[str], str]]:
    """Target -> how many, how large, how packed, and the newest ISA."""
    found = dict[str, tuple[int, int, set[str], tuple[int, int]]]()
    for image, _ in (pair for one in containers for pair in one):
        count, size, packing, isa = found.get(image.target, (0, 0, set[str](), (0, 0)))
        found[image.target] = (
            count + 1,
            size + len(image.payload),
            packing | {image.packing},
            max(isa, image.isa) if image.kind == 1 else isa,
        )
    return {
        target: (count, size, packing, f"{isa[0]}.{isa[1]}" if target.startswith("compute") else "")
        for target, (count, size, packing, isa) in found.items()
    }


def expected_containers(containers: Sequence[Container]) -> Counter[tuple[object, ...]]:
    """(SASS, PTX, whether a stub) -> how many."""
    found = Counter[tuple[object, ...]]()
    for one in containers:
        sass = {image.target for image, _ in one if image.kind == 2}
        ptx = {image.target for image, _ in one if image.kind == 1}
        stub = bool(one) and not any(kernels for _, kernels in one)
        found[tuple(sorted(sass, key=order)), tuple(sorted(ptx, key=order)), stub] += 1
    return found


def assert_reads(code: GpuCode, containers: Sequence[Container]) -> None:
    images = {one.target: (one.count, one.size, set(one.packing), one.isa) for one in code.images}
    assert images == expected_images(containers)
    for targets in (code.sass, code.ptx):
        assert list(targets) == sorted(targets, key=order)
    assert Counter({(one.sass, one.ptx, one.stub): one.count for one in code.containers}) == (
        expected_containers(containers)
    )
    assert sum(one.size for one in code.containers) == len(written(containers))


@pytest.mark.slow
@settings(max_examples=80)
@given(CONTAINERS, CONTAINERS, st.lists(DECOYS, min_size=3, max_size=3), st.sampled_from([8, 64, 4096]))
def test_any_containers_in_any_layout_are_read_back(
    loadable: list[Container], relocatable: list[Container], decoys: list[bytes], alignment: int
) -> None:
    data = elf.library(
        (".rodata", decoys[0]),
        (".nv_fatbin", written(loadable)),
        (".data", decoys[1]),
        ("__nv_relfatbin", written(relocatable)),
        (".comment", decoys[2]),
        alignment=alignment,
    )
    found = read(data)
    assert found.problems == ()
    assert_reads(found.loadable, loadable)
    assert_reads(found.relocatable, relocatable)


NOISE = st.binary(max_size=100) | DECOYS.map(lambda data: data.replace(MAGIC[:8], b""))


@pytest.mark.slow
@settings(max_examples=80)
@given(st.lists(st.tuples(NOISE, st.lists(image_of(), min_size=1, max_size=4)), min_size=1, max_size=4), NOISE)
def test_containers_among_other_constants_are_embedded(pairs: list[tuple[bytes, Container]], rest: bytes) -> None:
    """Programs that hand code to the driver themselves have it anywhere, aligned to 8 bytes."""
    constants = b""
    for noise, one in pairs:
        constants += noise
        constants += bytes(-len(constants) % 8) + written([one])
    data = elf.library((".rodata", constants + rest), (".nv_fatbin", elf.container(Image(kind=2, number=99))))
    found = read(data)
    assert found.problems == ()
    assert found.loadable.sass == ("sm_99",)
    assert found.embedded is not None
    assert_reads(found.embedded, [one for _, one in pairs])


@pytest.mark.parametrize("behind", [b"", b"\1" + bytes(7), b"\1" + bytes(23)], ids=["bare", "number", "entry"])
def test_code_that_follows_the_bare_magic_of_a_bundle_is_read(behind: bytes) -> None:
    """A program that makes bundles has the magic among its constants."""
    code = elf.container(Image(kind=2, number=80))
    found = read(elf.library((".rodata", b"__CLANG_OFFLOAD_BUNDLE__" + behind + code)))
    assert found.embedded is not None
    assert found.embedded.sass == ("sm_80",)


GFX = ("gfx803", "gfx906:sramecc+:xnack-", "gfx90a", "gfx90a:xnack+", "gfx942", "gfx1030", "gfx1100", "gfx9-generic")
Codes = dict[str, bytes]
CODES = st.dictionaries(st.sampled_from(GFX), st.binary(min_size=1, max_size=300), min_size=1, max_size=4)
FORMS = st.sampled_from(["raw", "zstd1", "zstd2", "zstd3", "zlib1", "zlib2", "zlib3"])


@settings(max_examples=60)
@given(st.lists(st.tuples(CODES, FORMS), min_size=1, max_size=4), DECOYS, st.booleans())
def test_any_bundles_are_read_back(bundles: list[tuple[Codes, str]], decoy: bytes, older: bool) -> None:
    section = elf.hip_section(*(bundled(codes, form, older) for codes, form in bundles))
    found = read(elf.library((".rodata", decoy), (".hip_fatbin", section), (".data", decoy)))
    assert found.problems == ()
    assert_bundles(found.loadable, bundles)


@settings(max_examples=60)
@given(st.lists(st.tuples(NOISE, CODES), min_size=1, max_size=4))
def test_bundles_among_other_constants_are_embedded(pairs: list[tuple[bytes, Codes]]) -> None:
    """There they are aligned to 16 bytes, and not to a page."""
    constants = b""
    for noise, codes in pairs:
        constants += noise
        constants += bytes(-len(constants) % 16) + bundled(codes, "raw", older=True)
    found = read(elf.library((".rodata", constants + b"the end")))
    assert (found.problems, found.loadable) == ((), GpuCode())
    assert found.embedded is not None
    assert_bundles(found.embedded, [(codes, "raw") for _, codes in pairs])


def bundled(codes: Codes, form: str, older: bool) -> bytes:
    kind, host = ("hip", "host-x86_64-unknown-linux") if older else ("hipv4", "host-x86_64-unknown-linux--")
    entries = {host: b"", **{f"{kind}-amdgcn-amd-amdhsa--{gfx}": code for gfx, code in codes.items()}}
    plain = elf.bundle(entries, 16)
    return plain if form == "raw" else elf.compressed(plain, int(form[4]), int(form[:4] == "zstd"))


def assert_bundles(code: GpuCode, bundles: Sequence[tuple[Codes, str]]) -> None:
    counts, sizes = Counter[str](), Counter[str]()
    packings: dict[str, set[str]] = {}
    for codes, form in bundles:
        counts.update(codes.keys())
        sizes.update({gfx: len(data) for gfx, data in codes.items()})
        for gfx in codes:
            packings.setdefault(gfx, set()).add(form[:4])
    assert {one.target: one.count for one in code.images} == counts
    assert {one.target: one.size for one in code.images} == sizes
    assert {one.target: set(one.packing) for one in code.images} == packings
    held = Counter[frozenset[str]]()
    for one in code.containers:
        held[frozenset(one.amdgpu)] += one.count
    assert held == Counter(frozenset(codes) for codes, _ in bundles)


# --- two libraries with everything ----------------------------------------------------------------------------------

NAMES = b"\0libc.so.6\0libcuda.so.1\0libstdc++.so.6\0libit.so\0$ORIGIN/../lib:$ORIGIN\0"
NAMES += b"GLIBC_2.17\0GLIBC_2.9\0GLIBCXX_3.4.21\0"


def at(name: bytes) -> int:
    return NAMES.index(b"\0" + name + b"\0") + 1


def needing(*sections: tuple[str, bytes]) -> bytes:
    """A library with those sections, needs, versions and debug information."""
    versions = elf.version_needs(
        (at(b"libc.so.6"), [at(b"GLIBC_2.9"), at(b"GLIBC_2.17")]),
        (at(b"libstdc++.so.6"), [at(b"GLIBCXX_3.4.21")]),
    )
    return elf.library(
        (".dynstr", NAMES),
        (".gnu.version_r", versions),
        *sections,
        (".debug_info", b"debug"),
        dynamic=[
            (elf.NEEDED, at(b"libc.so.6")),
            (elf.NEEDED, at(b"libcuda.so.1")),
            (elf.SONAME, at(b"libit.so")),
            (elf.RUNPATH, at(b"$ORIGIN/../lib:$ORIGIN")),
            (elf.STRTAB, ".dynstr"),
            (elf.STRSZ, len(NAMES)),
            (elf.VERNEED, ".gnu.version_r"),
            (elf.VERNEEDNUM, 2),
        ],
        alignment=4096 if sections[0][0] == ".hip_fatbin" else 8,
    )


KERNELS, PTX = elf.cubin(1, 40), b".version 8.3\n.target sm_90\n"
CUDA = needing(
    (
        ".nv_fatbin",
        elf.container(
            Image(kind=2, number=80, contents=KERNELS),
            Image(kind=2, number=90, letter="a", packing="lz4", contents=KERNELS, head=72),
            Image(kind=1, number=90, packing="zstd", contents=PTX, head=88),
        )
        + elf.container(Image(kind=2, number=80, packing="zstd", contents=elf.cubin(0))),
    ),
    ("__nv_relfatbin", elf.container(Image(kind=1, number=80, packing="lz4", contents=PTX))),
)
BUNDLE = elf.bundle({"host-x86_64-unknown-linux--": b"", "hipv4-amdgcn-amd-amdhsa--gfx90a": b"code"}, 64)
HIP = needing((".hip_fatbin", elf.hip_section(BUNDLE, elf.compressed(BUNDLE, 1), elf.compressed(BUNDLE, 3, 0))))
BOTH = st.sampled_from([CUDA, HIP])


@pytest.mark.parametrize("data", [CUDA, HIP], ids=["CUDA", "HIP"])
def test_all_that_it_needs_is_read(data: bytes) -> None:
    found = read(data)
    assert found.problems == ()
    assert (found.machine, found.soname, found.needed) == ("x86_64", "libit.so", ("libc.so.6", "libcuda.so.1"))
    assert (found.runpath, found.rpath) == (("$ORIGIN/../lib", "$ORIGIN"), ())
    assert found.versions == {"libc.so.6": ("GLIBC_2.9", "GLIBC_2.17"), "libstdc++.so.6": ("GLIBCXX_3.4.21",)}
    assert (found.glibc, found.libstdcxx, found.debug_info) == ("2.17", "3.4.21", True)


def test_its_code_is_read() -> None:
    code = read(CUDA).loadable
    assert (code.sass, code.ptx) == (("sm_80", "sm_90a"), ("compute_90",))
    assert [one.count for one in code.containers if one.stub] == [1]
    assert read(CUDA).relocatable.ptx == ("compute_80",)
    (held,) = read(HIP).loadable.containers
    assert (held.amdgpu, held.count) == (("gfx90a",), 3)


# --- blocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("data", [CUDA, HIP], ids=["CUDA", "HIP"])
def test_blocks_of_any_size_give_the_same_library(data: bytes, size: int) -> None:
    assert read(data, size) == read(data, len(data))


@settings(max_examples=50)
@given(BOTH, st.lists(st.integers(20, 5000), min_size=1, max_size=8))
def test_blocks_of_changing_size_give_the_same_library(data: bytes, lengths: list[int]) -> None:
    assert read(data, *lengths) == read(data)


# --- damage ---------------------------------------------------------------------------------------------------------

NUMBERS = [0, 1, 7, 8, 63, 64, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """Bits flipped, numbers overwritten, bytes lost or repeated, the end cut off."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        place = draw(st.integers(0, len(data) - 1) | st.integers(0, min(200, len(data) - 1)))
        how = draw(st.sampled_from(["flip", "number", "lose", "repeat", "cut"]))
        if how == "flip":
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "number":
            width = draw(st.sampled_from([2, 4, 8]))
            data[place : place + width] = draw(st.sampled_from(NUMBERS)).to_bytes(8, "little")[:width]
        elif how == "lose":
            del data[place : place + draw(st.integers(1, 64))]
        elif how == "repeat":
            data[place:place] = data[place : place + draw(st.integers(1, 64))]
        else:
            del data[place:]
    return bytes(data)


BLOCKS = st.sampled_from([33, 64, 1000, 4096])


@pytest.mark.slow
@settings(max_examples=1000)
@given(BOTH.flatmap(damaged), BLOCKS)
def test_damage_raises_nothing_and_is_read_alike_in_any_blocks(data: bytes, size: int) -> None:
    assert read(data, size) == read(data)


def around(data: bytes, mark: bytes, length: int) -> tuple[bytes, int, int]:
    return data, data.index(mark), length


# Where the code lies: damage anywhere hardly ever reaches its readers.
TABLES = {
    "containers": around(CUDA, MAGIC[:8], 1248),
    "bundle": around(HIP, b"__CLANG", 300),
    "compressed bundle": around(HIP, b"CCOB", 200),
}


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.sampled_from(sorted(TABLES)), st.data(), BLOCKS)
def test_damaged_code_raises_nothing(table: str, data: st.DataObject, size: int) -> None:
    sound, start, length = TABLES[table]
    body = data.draw(damaged(sound[start : start + length]))
    whole = sound[:start] + body.ljust(length, b"\0")[:length] + sound[start + length :]
    found = read(whole, size)
    assert found == read(whole)
    assert (found.soname, found.glibc) == ("libit.so", "2.17"), "what lies elsewhere is read all the same"


@settings(max_examples=150)
@given(st.integers(1, len(CUDA)))
def test_a_library_cut_short_says_so(lost: int) -> None:
    """The table of sections is at its end."""
    assert read(CUDA[:-lost]).problems


@settings(max_examples=100)
@given(st.binary(max_size=300), st.sampled_from([b"", b"\x7fELF", CUDA[:64], CUDA[:200]]))
def test_no_bytes_at_all_raise_anything(data: bytes, start: bytes) -> None:
    assert read(start + data).problems
