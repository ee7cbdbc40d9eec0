"""Shared libraries of every shape: for other machines, without sections, with padding, with code for no target."""

from __future__ import annotations

import itertools
import struct

import pytest

from tfdock.wheel.facts import Library
from tfdock.wheel.library import LibraryScan

from .. import elf_files as elf


def read(data: bytes, *lengths: int) -> Library:
    """The library in blocks of those lengths, in turn."""
    scan = LibraryScan("lib.so", len(data))
    while (found := scan.library()) is None:
        blocks, at = itertools.cycle(lengths or (1 << 20,)), 0
        while at < len(data):
            length = next(blocks)
            scan.feed(data[at : at + length])
            at += length
    return found


@pytest.mark.parametrize(
    ("kind", "order", "number", "expected"),
    [(1, 1, 3, "i686"), (1, 1, 40, "armv7l"), (2, 2, 22, "s390x"), (1, 1, 9999, "machine-9999")],
)
def test_a_library_for_another_kind_of_machine_is_named_and_no_damage(
    kind: int, order: int, number: int, expected: str
) -> None:
    data = struct.pack("<4sBBB9x", b"\x7fELF", kind, order, 1) + b"\0\3"
    data += struct.pack(">H" if order == 2 else "<H", number) + bytes(80)
    found = read(data)
    assert (found.machine, found.problems) == (expected, ())


def test_without_sections_only_gpu_code_is_missed() -> None:
    plain = elf.library((".rodata", b"nothing"))
    stripped = plain[:40] + bytes(8) + plain[48:58] + bytes(6) + plain[64:]
    assert read(stripped).problems == ()
    code = elf.library((".nv_fatbin", elf.container(elf.Image(kind=2, number=80))))
    stripped = code[:40] + bytes(8) + code[48:58] + bytes(6) + code[64:]
    assert "no section headers" in read(stripped).problems[0]


def test_what_the_linker_puts_between_containers_is_no_damage() -> None:
    one = elf.container(elf.Image(kind=2, number=80))
    found = read(elf.library((".nv_fatbin", one + bytes(-len(one) % 256) + one + bytes(8))))
    assert found.problems == ()
    assert [(image.target, image.count) for image in found.loadable.images] == [("sm_80", 2)]


def test_more_than_that_is_told() -> None:
    one = elf.container(elf.Image(kind=2, number=80))
    found = read(elf.library((".nv_fatbin", one + b"x" * 256 + one)))
    assert "are not a container" in found.problems[0]
    assert [(image.target, image.count) for image in found.loadable.images] == [("sm_80", 2)]


def test_code_for_no_gfx_target_is_counted_and_not_passed_over() -> None:
    bundle = elf.bundle({"host-x86_64-unknown-linux--": b"", "hipv4-spirv64-amd-amdhsa--amdgcnspirv": b"spirv"}, 16)
    found = read(elf.library((".hip_fatbin", elf.hip_section(bundle))))
    assert [(image.kind, image.target) for image in found.loadable.images] == [
        ("unknown", "hipv4-spirv64-amd-amdhsa--amdgcnspirv")
    ]


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "compressed"])
@pytest.mark.parametrize("name", ["gfx90a\x1b[2J", "gfx90a:\n", "gfx90a\N{BELL SYMBOL}", "gfx 90a"])
def test_a_target_that_is_no_plain_text_is_damage(name: str, packed: bool) -> None:
    bundle = elf.bundle({f"hipv4-amdgcn-amd-amdhsa--{name}": b"code"}, 16)
    found = read(elf.library((".hip_fatbin", elf.hip_section(elf.compressed(bundle, 3) if packed else bundle))))
    assert "an entry's name is not valid text" in found.problems[0]
    assert found.problems[0].isprintable()
    assert found.loadable.images == ()
