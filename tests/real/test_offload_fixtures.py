"""AMD code: bundles made by the clang-offload-bundlers of LLVM 18, 19 and 22, in libraries as HIP makes them.

Compressed, the three write versions 1, 2 and 3.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from waits import FETCH

from tfdock.wheel.facts import GpuCode, Library

from .workshop import Workshop, library

pytestmark = pytest.mark.limit(FETCH)

BUNDLERS = ("18", "19", "22")
ALIGNMENT = 4096
HOST = "host-x86_64-unknown-linux--"


def code_object(flags: int, size: int, seed: int) -> bytes:
    """The head of an AMDGPU code object, and contents of which a half can be compressed."""
    head = struct.pack("<4sBBBBB7xHHIQQQI", b"\x7fELF", 2, 1, 1, 64, 3, 3, 224, 1, 0, 64, 0, flags)
    noise = random.Random(seed).randbytes((size - len(head)) // 2)
    return (head + noise).ljust(size, b"\0")


CODE = {
    "a.co": code_object(0x53F, 6000, 1),
    "b.co": code_object(0x41, 5000, 2),
    "c.co": code_object(0x36, 4096, 3),
    "large.co": code_object(0x30, 1 << 20, 4),  # fills several blocks of zstd, and more than a bundle's head
}
BUNDLES: Mapping[str, Mapping[str, str]] = {
    "two": {"hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+": "a.co", "hipv4-amdgcn-amd-amdhsa--gfx1100": "b.co"},
    "three": {
        "hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-": "a.co",
        "hipv4-amdgcn-amd-amdhsa--gfx1030": "c.co",
        "hipv4-amdgcn-amd-amdhsa--gfx1100": "b.co",
    },
    "large": {"hipv4-amdgcn-amd-amdhsa--gfx908": "large.co"},
    "old": {"hip-amdgcn-amd-amdhsa--gfx906": "c.co"},
}


def bundled(workshop: Workshop, bundler: str) -> Path:
    """The folder with all bundles of a bundler: `two` and, compressed, `two.packed`."""
    lines, names = list[str](), list[str]()
    for name, entries in BUNDLES.items():
        targets = ",".join([HOST, *entries])
        inputs = " ".join(f"-input={one}" for one in ("/dev/null", *entries.values()))
        command = f'"$BUNDLER_{bundler}" -type=o -bundle-align=4096 -targets={targets} {inputs}'
        lines += [f"{command} -output={name}", f"{command} -output={name}.packed -compress"]
        names += [name, f"{name}.packed"]
    return workshop.make("\n".join(lines), CODE, *names)


def hip_library(workshop: Workshop, *bundles: bytes) -> Path:
    """A library with the bundles in `.hip_fatbin`, and the table of them that the runtime walks."""
    sources: dict[str, str | bytes] = {f"bundle{at}": data for at, data in enumerate(bundles)}
    lines = ['.section .hip_fatbin,"a",@progbits']
    for name in sources:
        lines += [".p2align 12", f"{name}:", f'.incbin "{name}"']
    lines += ['.section .hipFatBinSegment,"aw",@progbits', ".p2align 3"]
    lines += [f".long 0x48495046, 1\n.quad {name}, 0" for name in sources]
    sources["code.s"] = "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])
    return workshop.make("gcc -shared code.s -o lib.so", sources, "lib.so") / "lib.so"


def rows(code: GpuCode) -> list[str]:
    return [f"{one.target}: {one.count} {'+'.join(one.packing)}" for one in code.images]


def containers(code: GpuCode) -> list[str]:
    assert not any(one.sass or one.ptx or one.stub for one in code.containers)
    return sorted(f"{one.count}: {' '.join(one.amdgpu)}" for one in code.containers)


def sound(found: Library) -> GpuCode:
    assert (found.problems, found.relocatable) == ((), GpuCode())
    assert all(one.kind == "amdgpu" and not one.isa for one in found.loadable.images)
    return found.loadable


every_bundler = pytest.mark.parametrize("bundler", BUNDLERS)


@every_bundler
def test_the_targets_of_every_bundle_are_told(bundler: str, workshop: Workshop) -> None:
    folder = bundled(workshop, bundler)
    two, three, old = ((folder / name).read_bytes() for name in ("two", "three", "old"))
    found = sound(library(hip_library(workshop, two, three, two, old)))
    assert rows(found) == [
        "gfx906: 1 raw",
        "gfx90a:sramecc+:xnack-: 1 raw",
        "gfx90a:xnack+: 2 raw",
        "gfx1030: 1 raw",
        "gfx1100: 3 raw",
    ]
    assert containers(found) == [
        "1: gfx906",
        "1: gfx90a:sramecc+:xnack- gfx1030 gfx1100",
        "2: gfx90a:xnack+ gfx1100",
    ]
    sizes = {one.target: one.size for one in found.images}
    assert (sizes["gfx1100"], sizes["gfx90a:xnack+"], sizes["gfx906"]) == (3 * 5000, 2 * 6000, 4096)


@every_bundler
def test_compressed_bundles_tell_the_same(bundler: str, workshop: Workshop) -> None:
    folder = bundled(workshop, bundler)
    packed = {name: (folder / f"{name}.packed").read_bytes() for name in BUNDLES}
    # The first two bytes after the magic are the version: 1, 2 or 3.
    assert packed["two"][:8] == b"CCOB" + struct.pack("<HH", BUNDLERS.index(bundler) + 1, 1)
    found = sound(library(hip_library(workshop, packed["two"], packed["large"], packed["three"], packed["old"])))
    assert rows(found) == [
        "gfx906: 1 zstd",
        "gfx908: 1 zstd",
        "gfx90a:sramecc+:xnack-: 1 zstd",
        "gfx90a:xnack+: 1 zstd",
        "gfx1030: 1 zstd",
        "gfx1100: 2 zstd",
    ]
    assert containers(found) == [
        "1: gfx906",
        "1: gfx908",
        "1: gfx90a:sramecc+:xnack- gfx1030 gfx1100",
        "1: gfx90a:xnack+ gfx1100",
    ]


def test_bundlers_of_several_versions_may_have_made_one_library(workshop: Workshop) -> None:
    """The form of version 1 does not say where it ends: what follows must be found all the same."""
    bundles = [(bundled(workshop, one) / name).read_bytes() for one in BUNDLERS for name in ("two.packed", "large")]
    found = sound(library(hip_library(workshop, *bundles)))
    assert rows(found) == ["gfx908: 3 raw", "gfx90a:xnack+: 3 zstd", "gfx1100: 3 zstd"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_bundles_compressed_with_zlib_are_read(version: int, workshop: Workshop) -> None:
    """An LLVM built without zstd writes these; no packaged one is."""
    plain = (bundled(workshop, "22") / "three").read_bytes()
    data = zlib.compress(plain)
    sizes = {
        1: struct.pack("<I", len(plain)),
        2: struct.pack("<II", 24 + len(data), len(plain)),
        3: struct.pack("<QQ", 32 + len(data), len(plain)),
    }
    packed = b"CCOB" + struct.pack("<HH", version, 0) + sizes[version] + bytes(8) + data
    found = sound(library(hip_library(workshop, packed, plain)))
    assert rows(found) == [
        "gfx90a:sramecc+:xnack-: 2 raw+zlib",
        "gfx1030: 2 raw+zlib",
        "gfx1100: 2 raw+zlib",
    ]
    assert containers(found) == ["2: gfx90a:sramecc+:xnack- gfx1030 gfx1100"]


def test_a_bundle_of_a_later_version_is_told_of_and_the_others_are_read(workshop: Workshop) -> None:
    plain = (bundled(workshop, "22") / "two").read_bytes()
    later = b"CCOB" + struct.pack("<HH", 4, 1) + bytes(100)
    found = library(hip_library(workshop, later, plain))
    assert rows(found.loadable) == ["gfx90a:xnack+: 1 raw", "gfx1100: 1 raw"]
    assert len(found.problems) == 1
    assert "version 4" in found.problems[0]
