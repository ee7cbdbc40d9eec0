"""What is read out of official wheels, against the tools that vendors and distributions give for it.

cuobjdump lists the CUDA code of unpacked libraries, binutils what they need. No such lister comes with Debian for
AMD's code: a second reader, written here from the description of the format, walks that.
"""

from __future__ import annotations

import mmap
import re
import shutil
import struct
import subprocess
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from waits import FETCH

from tfdock.wheel.facts import GpuCode, Library, merged
from tfdock.wheel.inspection import Inspection, inspect_wheel

from .workshop import OfficialWheels, cuda, cuobjdumped, listed, section, told

pytestmark = pytest.mark.limit(FETCH)

CC, FRAMEWORK = "tensorflow/libtensorflow_cc.so.2", "tensorflow/libtensorflow_framework.so.2"
INTERNAL = "tensorflow/python/_pywrap_tensorflow_internal.so"
COMMON = "tensorflow/python/lib_pywrap_tensorflow_common.so"
PROFILER = "tensorflow/python/profiler/internal/_pywrap_profiler_plugin.so"
GPU_SECTIONS = {".nv_fatbin", "__nv_relfatbin", ".hip_fatbin"}


@dataclass(frozen=True, kw_only=True)
class Official:
    """A wheel on PyPI and what is known of it.

    `containers` of each library with loadable GPU code; `embedded` of the one that holds the kernels which MLIR's
    compiler made while TensorFlow was built: they lie among its constants.
    """

    requirement: str
    python: str = "3.11"
    tag: str = "manylinux_2_17_x86_64.manylinux2014_x86_64"
    build_info: dict[str, object]
    gpu_code: str = ""
    isa: str = ""
    containers: dict[str, list[str]] = field(default_factory=dict)
    embedded: dict[str, list[str]] = field(default_factory=dict)
    # Those of 13.2 and 13.5 end at "Invalid ELF" in what CUDA 12.2 made, that of 12.4 reads it.
    lister: str = "13.0"


def built(cuda: str = "", capabilities: str = "", **more: object) -> dict[str, object]:
    """A `build_info`, for CUDA if a version is given."""
    known: dict[str, object] = {"is_cuda_build": bool(cuda), "is_rocm_build": False, "is_tensorrt_build": False}
    if cuda:
        known |= {"cuda_version": cuda, "cuda_compute_capabilities": capabilities.split()}
    return known | more


AMPERE = "sm_50 sm_60 sm_70 sm_75 sm_80"
HOPPER = "sm_60 sm_70 sm_80 sm_89 sm_90"
ROCM = "gfx900 gfx906 gfx908 gfx90a gfx1030 gfx1100"

WHEELS = [
    Official(
        requirement="tensorflow==2.15.1",
        build_info=built(
            "12.2",
            "sm_50 sm_60 sm_70 sm_75 compute_80",
            cudnn_version="8",
            cpu_compiler="/usr/lib/llvm-17/bin/clang",
            is_tensorrt_build=True,
        ),
        gpu_code=f"{AMPERE} compute_80",
        isa="8.1",
        # Without PTX is NCCL, which nvcc linked for the device: 72 MB of kernels, no stub.
        containers={CC: [f"246: {AMPERE} compute_80", f"1: {AMPERE}"], INTERNAL: [f"1: {AMPERE} compute_80"]},
        embedded={CC: ["1149: sm_50 sm_60 sm_70 sm_75 compute_80"]},
        lister="12.4",
    ),
    Official(
        requirement="tensorflow==2.18.0",
        build_info=built(
            "12.5.1",
            "sm_60 sm_70 sm_80 sm_89 compute_90",
            cudnn_version="9",
            cpu_compiler="/usr/lib/llvm-18/bin/clang",
        ),
        gpu_code=f"{HOPPER} compute_90",
        isa="8.3",
        containers={
            CC: [f"278: {HOPPER} compute_90", f"1: {HOPPER}"],
            FRAMEWORK: [f"2: {HOPPER} compute_90", f"1: {HOPPER}"],
            INTERNAL: [f"1: {HOPPER} compute_90"],
        },
        # Their headers say 90 alone; the text of the PTX says sm_90a, which no GPU but Hopper runs.
        embedded={CC: ["1149: sm_60 sm_70 sm_80 sm_89 compute_90a"]},
    ),
    Official(
        requirement="tensorflow==2.21.0",
        python="3.13",
        tag="manylinux_2_27_x86_64",
        build_info=built("12.5.1", "sm_60 sm_70 sm_80 sm_89 compute_90", cudnn_version="9", cpu_compiler="clang"),
        gpu_code=f"{HOPPER} compute_90",
        isa="8.3",
        containers={
            CC: [f"249: {HOPPER} compute_90"],
            FRAMEWORK: [f"40: {HOPPER} compute_90"],
            COMMON: [f"1: {HOPPER} compute_90"],
            PROFILER: [f"40: {HOPPER} compute_90"],
        },
        embedded={CC: ["1149: sm_60 sm_70 sm_80 sm_89 compute_90"]},
    ),
    Official(requirement="tensorflow-cpu==2.18.0", build_info=built()),
    Official(
        requirement="tensorflow-rocm==2.14.0.600",
        tag="manylinux2014_x86_64",
        build_info=built(is_rocm_build=True),
        gpu_code=ROCM,
        containers={CC: [f"241: {ROCM}"], FRAMEWORK: [f"1: {ROCM}"]},
        embedded={CC: [f"1149: {ROCM}"]},
    ),
]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A wheel with what was read out of it, and its libraries unpacked in a folder."""

    official: Official
    inspection: Inspection
    folder: Path

    @property
    def cuda(self) -> list[Library]:
        """The libraries that were said to have CUDA code: that it is those, and none elsewhere, is tested as well."""
        return [one for one in self.inspection.libraries if one.loadable.sass or one.relocatable.images]

    @property
    def amd(self) -> list[Library]:
        return [one for one in self.inspection.libraries if one.loadable.amdgpu]

    def path(self, library: Library) -> Path:
        return self.folder / library.path


@pytest.fixture(scope="module", params=WHEELS, ids=lambda one: one.requirement)
def opened(
    request: pytest.FixtureRequest, official_wheels: OfficialWheels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    official: Official = request.param
    wheel = official_wheels(official.requirement, official.python)
    with wheel.open("rb") as file:
        inspection = inspect_wheel(file, wheel.name)
    folder = tmp_path_factory.mktemp("wheel")
    unpack(wheel, folder)
    yield Opened(official=official, inspection=inspection, folder=folder)
    shutil.rmtree(folder)


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack every ELF file, whatever its name, two at a time."""
    with zipfile.ZipFile(wheel) as archive:
        members = [one for one in archive.infolist() if one.file_size > 64]
        elves = [one for one in members if archive.open(one).read(4) == b"\x7fELF"]
        for one in elves:
            (folder / one.filename).parent.mkdir(parents=True, exist_ok=True)  # two at a time could collide

        def extract(member: zipfile.ZipInfo) -> None:
            with zipfile.ZipFile(wheel) as own:
                own.extract(member, folder)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(extract, sorted(elves, key=lambda one: -one.file_size)))


# --- the wheel ------------------------------------------------------------------------------------------------------


def test_the_wheel_is_sound_and_says_who_it_is(opened: Opened) -> None:
    found = opened.inspection.wheel
    name, _, version = opened.official.requirement.partition("==")
    assert (found.name, found.version, found.platform_tag) == (name, version, opened.official.tag)
    assert (found.record_ok, found.record_problems) == (True, ())
    assert canonicalize_name(opened.inspection.metadata.name) == name
    assert opened.inspection.metadata.version == version


def test_its_account_of_its_build_is_read(opened: Opened) -> None:
    assert opened.inspection.build_info == opened.official.build_info


def test_every_elf_file_is_listed_and_sound(opened: Opened) -> None:
    found = {one.path: one.size for one in opened.inspection.libraries}
    unpacked = [path for path in opened.folder.rglob("*") if path.is_file()]
    assert found == {path.relative_to(opened.folder).as_posix(): path.stat().st_size for path in unpacked}
    assert [one.problems for one in opened.inspection.libraries if one.problems] == []


# --- what libraries need, against binutils --------------------------------------------------------------------------


def test_what_libraries_need_is_what_objdump_says(opened: Opened) -> None:
    for library in opened.inspection.libraries:
        text = told("objdump", "-p", opened.path(library))
        dynamic = re.findall(r"^  (NEEDED|SONAME|RUNPATH|RPATH) +(.*)$", text, re.M)

        def entries(tag: str, dynamic: list[tuple[str, str]] = dynamic) -> list[str]:
            return [value for one, value in dynamic if one == tag]

        assert list(library.needed) == entries("NEEDED"), library.path
        assert [library.soname] == (entries("SONAME") or [""]), library.path
        assert ":".join(library.runpath) == "".join(entries("RUNPATH")), library.path
        assert ":".join(library.rpath) == "".join(entries("RPATH")), library.path
        assert {name: list(versions) for name, versions in library.versions.items()} == wanted(text), library.path
        assert library.executable_stack == bool(re.search(r"STACK off.*\n.*flags rwx", text)), library.path
        assert library.text_relocations == ("  TEXTREL " in text), library.path


def wanted(text: str) -> dict[str, list[str]]:
    """Library -> symbol versions, from the end of what objdump prints."""
    found: dict[str, list[str]] = {}
    _, _, references = text.partition("Version References:\n")
    for line in references.splitlines():
        if match := re.match(r"  required from (.*):", line):
            found[match[1]] = []
        elif line.startswith("    "):
            found[list(found)[-1]].append(line.split()[-1])
    return found


def test_the_floors_are_the_newest_versions_wanted(opened: Opened) -> None:
    """Compared by numbers: 2.17 is newer than 2.9."""

    def floor(prefix: str, library: Library) -> list[int]:
        names = re.findall(rf"\b{prefix}_([\d.]+)", told("objdump", "-p", opened.path(library)))
        return max(([int(part) for part in name.split(".")] for name in names), default=[])

    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.split(".")] if version else []

    for library in opened.inspection.libraries:
        assert numbers(library.glibc) == floor("GLIBC", library), library.path
        assert numbers(library.libstdcxx) == floor("GLIBCXX", library), library.path


def test_the_sections_with_gpu_code_and_debug_information_are_those_that_readelf_lists(opened: Opened) -> None:
    for library in opened.inspection.libraries:
        names = set(re.findall(r"^ +\[ *\d+\] (\S+)", told("readelf", "-SW", opened.path(library)), re.M))
        found = set[str]()
        if library.loadable.images:
            found.add(".hip_fatbin" if library.loadable.amdgpu else ".nv_fatbin")
        if library.relocatable.images:
            found.add("__nv_relfatbin")
        assert found == names & GPU_SECTIONS, library.path
        assert library.debug_info == (".debug_info" in names), library.path


# --- GPU code -------------------------------------------------------------------------------------------------------


def test_the_gpu_code_is_what_its_account_asked_for(opened: Opened) -> None:
    """`sm_80` is SASS, `compute_80` SASS and PTX; of ROCm the account says nothing."""
    code = merged(one.loadable for one in opened.inspection.libraries)
    assert " ".join((*code.sass, *code.ptx, *code.amdgpu)) == opened.official.gpu_code
    info = opened.inspection.build_info or {}
    asked = info.get("cuda_compute_capabilities", [])
    assert isinstance(asked, list)
    numbers = [one.partition("_")[2] for one in asked]
    assert list(code.sass) == [f"sm_{number}" for number in numbers]
    assert list(code.ptx) == [one for one in asked if one.startswith("compute_")]


def test_the_containers_are_known(opened: Opened) -> None:
    """None is a stub: no device linker ran over these libraries but NCCL's."""
    libraries = opened.inspection.libraries
    assert {one.path: listed(one.loadable) for one in libraries if one.loadable.images} == opened.official.containers
    embedded = {one.path: listed(one.embedded) for one in libraries if one.embedded and one.embedded.images}
    assert embedded == opened.official.embedded


def test_cuobjdump_lists_the_same_images_and_as_many(opened: Opened) -> None:
    """Alone it lists what the runtime registers, with `-all` relocatable code too."""
    for library in opened.cuda:
        program = cuda(opened.official.lister) / "bin" / "cuobjdump"
        alone = told(program, "-lelf", "-lptx", opened.path(library))
        assert counted(library.loadable) == cuobjdumped(alone), library.path
        everything = told(program, "-lelf", "-lptx", "-all", opened.path(library))
        assert counted(library.loadable, library.relocatable) == cuobjdumped(everything), library.path


def counted(*codes: GpuCode) -> Counter[str]:
    return Counter({one.target: one.count for one in merged(codes).images})


def test_ptx_is_of_the_isa_and_target_that_its_text_names(opened: Opened, tmp_path: Path) -> None:
    """Extracting the text of the large libraries takes long: it is held against that of the smallest."""
    found = {one.isa for library in opened.cuda for one in library.loadable.images if one.kind == "ptx"}
    assert found == ({opened.official.isa} - {""})
    for smallest in sorted(opened.cuda, key=lambda one: one.size)[:1]:
        assert_ptx(smallest.loadable, opened.path(smallest), opened.official.lister, tmp_path)


def assert_ptx(code: GpuCode, path: Path, lister: str, folder: Path) -> None:
    """The PTX told of is the PTX that cuobjdump extracts: as much, of that target, of that ISA at the most."""
    command: list[str | Path] = [cuda(lister) / "bin" / "cuobjdump", "-xptx", "all", path]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    texts = "\n".join(one.read_text("utf-8") for one in folder.glob("*.ptx"))
    targets = Counter(f"compute_{number}" for number in re.findall(r"^\.target sm_(\w+)", texts, re.M))
    assert {one.target: one.count for one in code.images if one.kind == "ptx"} == targets
    isas = {one.isa for one in code.images if one.kind == "ptx"}
    assert isas == set(re.findall(r"^\.version ([\d.]+)$", texts, re.M))


def test_embedded_cuda_code_is_what_cuobjdump_lists_when_it_is_put_where_it_looks(
    opened: Opened, tmp_path: Path
) -> None:
    """cuobjdump reads sections of GPU code alone: what lies among the constants is copied into one for it."""
    for library in opened.inspection.libraries:
        if library.embedded is None or not library.embedded.sass:
            continue
        path = opened.path(library)
        (tmp_path / "code").write_bytes(containers_in(path, *section(path, ".rodata")))
        subprocess.run(["gcc", "-x", "c", "-c", "/dev/null", "-o", tmp_path / "empty.o"], check=True)
        add = [f"--add-section=.nv_fatbin={tmp_path / 'code'}", "--set-section-flags=.nv_fatbin=alloc,readonly"]
        told("objcopy", *add, tmp_path / "empty.o", tmp_path / "code.o")
        listing = told(
            cuda(opened.official.lister) / "bin" / "cuobjdump", "-lelf", "-lptx", "-all", tmp_path / "code.o"
        )
        # The header of 2.18's PTX leaves out the letter that the text has.
        found = Counter({target.removesuffix("a"): count for target, count in counted(library.embedded).items()})
        assert found == cuobjdumped(listing)
        assert_ptx(library.embedded, tmp_path / "code.o", opened.official.lister, tmp_path)


def containers_in(path: Path, offset: int, size: int) -> bytes:
    """All fat binaries in a part of a file, in a row."""
    magic = struct.pack("<IHH", 0xBA55ED50, 1, 16)
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    found, at = bytearray(), data.find(magic)
    while at >= 0:
        end = at + 16 + struct.unpack_from("<Q", data, at + 8)[0]
        found += data[at:end]
        found += bytes(-len(found) % 8)
        at = data.find(magic, end)
    return bytes(found)


# --- AMD code, walked by a second reader ----------------------------------------------------------------------------

# What `e_flags & 0xff` of a code object says (LLVM's AMDGPU usage, "AMDGPU ELF Header").
MACHINES = {0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x3F: "gfx90a", 0x36: "gfx1030", 0x41: "gfx1100"}


def test_amd_code_objects_are_those_that_lie_there(opened: Opened) -> None:
    for library in opened.amd:
        path = opened.path(library)
        start, size = section(path, ".hip_fatbin")
        registered, among_constants = list[Bundle](), list[Bundle]()
        for at, bundle in amd_bundles(path):
            (registered if start <= at < start + size else among_constants).append(bundle)
        assert len(registered) == section(path, ".hipFatBinSegment")[1] // 24, "the runtime registers each"
        assert_bundles(library.loadable, registered)
        assert_bundles(library.embedded or GpuCode(), among_constants)
        assert library.relocatable == GpuCode()


#: The (target, size in bytes) of each code object. The target is the code object's own, not the bundle's id.
Bundle = list[tuple[str, int]]


def assert_bundles(code: GpuCode, bundles: list[Bundle]) -> None:
    counts, sizes = Counter[str](), Counter[str]()
    for target, size in (pair for bundle in bundles for pair in bundle):
        counts[target] += 1
        sizes[target] += size
    assert sum(one.count for one in code.containers) == len(bundles)
    assert {one.target: (one.count, one.size) for one in code.images} == {
        target: (counts[target], sizes[target]) for target in counts
    }


def amd_bundles(path: Path) -> Iterator[tuple[int, Bundle]]:
    """Every bundle in a file, wherever it lies, and where. The magic is also in LLVM's own code, as a text."""
    magic = b"__CLANG_OFFLOAD_BUNDLE__"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(magic)
        while start >= 0:
            (count,) = struct.unpack_from("<Q", data, start + 24)
            if count < 64:
                yield start, amd_bundle(data, start, count)
            start = data.find(magic, start + 1)


def amd_bundle(data: mmap.mmap, start: int, count: int) -> Bundle:
    at, found = start + 32, Bundle()
    for _ in range(count):
        where, length, name = struct.unpack_from("<QQQ", data, at)
        at += 24 + name
        if length:
            code = data[start + where : start + where + 64]
            assert (code[:4], struct.unpack_from("<H", code, 18)) == (b"\x7fELF", (224,))
            found.append((MACHINES[struct.unpack_from("<I", code, 48)[0] & 0xFF], length))
    return found
