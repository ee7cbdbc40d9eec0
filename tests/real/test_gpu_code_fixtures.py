"""What is read out of files that real compilers made of known sources for known targets: exact lists.

The compilers are nvcc 11.8, 12.4 and 13.0 and the clang-offload-bundlers of LLVM 18, 19 and 22. Whatever is expected
here follows from the command line of the compiler; that the toolkit's own cuobjdump lists the same is a test as well.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest
from waits import FETCH

from tfdock.wheel.facts import GpuCode, Images, merged
from tfdock.wheel.inspection import inspect_wheel

from .workshop import Workshop, cuda, cuobjdumped, library, listed, section, wheel

pytestmark = pytest.mark.limit(FETCH)

SOURCES = {
    "a.cu": """
__global__ void add(float *x, float y) { x[threadIdx.x] += y; }
void run_add(float *x) { add<<<1, 32>>>(x, 1.0f); }
""",
    "b.cu": """
__device__ int twice(int x) { return 2 * x; }
__global__ void twice_all(int *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
void run_twice(int *x) { twice_all<<<1, 32>>>(x); }
""",
    "variable.cu": "__device__ int counter = 42;\n",
    "host.cc": "int answer() { return 42; }\n",
    # Code that a program hands to the driver itself.
    "constant.s": """
.section .rodata
.ascii "something else"
.p2align 3
.incbin "a.fatbin"
.ascii "CCOB, and the end"
.section .note.GNU-stack,"",@progbits
""",
}


# --- how it is made -------------------------------------------------------------------------------------------------


def nvcc(version: str, asked: str, options: str = "") -> str:
    """The compiler's command line for those targets, one `-gencode` each."""
    pairs = [(one.partition("_")[2], one) for one in asked.split()]
    codes = " ".join(f"-gencode arch=compute_{number},code={one}" for number, one in pairs)
    common = "-ccbin g++ -allow-unsupported-compiler -Wno-deprecated-gpu-targets -Xcompiler -fPIC"
    return f'"$CUDA_{version.replace(".", "_")}/bin/nvcc" {common} {codes} {options}'


def library_of(version: str, asked: str, options: str = "", link: str = "") -> str:
    """Both sources, compiled alike and linked by the host's linker alone."""
    compiler = nvcc(version, asked, options)
    return f"{compiler} -c a.cu -o a.o\n{compiler} -c b.cu -o b.o\ng++ -shared {link} a.o b.o -o lib.so"


def device_linked(version: str, asked: str, options: str = "") -> str:
    """The same with nvcc's device linker in between, as `nvcc -shared` does."""
    compiler = nvcc(version, asked, options)
    link = f"{compiler} -cudart shared -dlink a.o b.o -o link.o"
    return f"{compiler} -c a.cu -o a.o\n{compiler} -c b.cu -o b.o\n{link}\ng++ -shared a.o b.o link.o -o lib.so"


def two_compilers(first: str, second: str) -> str:
    """The sources compiled by two different commands, in one library."""
    return f"{first} -c a.cu -o a.o\n{second} -c b.cu -o b.o\ng++ -shared a.o b.o -o lib.so"


# --- what is told, and expected -------------------------------------------------------------------------------------


def images(code: GpuCode) -> list[str]:
    """`sm_80 sm_90: 2 raw`: targets, how many images each, how packed, and the ISA of PTX."""

    def row(one: Images) -> str:
        return f"{one.count} {'+'.join(one.packing)} {one.isa}".rstrip()

    return [f"{' '.join(one.target for one in ones)}: {key}" for key, ones in groupby(code.images, row)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file and what must be read out of it."""

    script: str
    images: list[str]
    containers: list[str]
    relocatable_images: list[str] = field(default_factory=list)
    relocatable_containers: list[str] = field(default_factory=list)
    embedded_images: list[str] = field(default_factory=list)
    embedded_containers: list[str] = field(default_factory=list)
    makes: str = "lib.so"
    lister: str = "13.0"

    def made(self, workshop: Workshop) -> Path:
        sources = {name: text for name, text in SOURCES.items() if name in self.script}
        return workshop.make(self.script, sources, self.makes) / self.makes


SIZE, SPEED, NONE, ALL = "--compress-mode=size", "--compress-mode=speed", "--no-compress", "-Xfatbin -compress-all"
LETTERS = (
    "sm_75 sm_80 sm_87 sm_90a sm_100a sm_100f sm_103a sm_103f sm_110 sm_120f sm_121a "
    "compute_75 compute_90a compute_100f compute_121a"
)

CUDA_13 = {
    "nvcc's default packs PTX alone": Case(
        script=library_of("13.0", "sm_75 sm_80 sm_86 sm_120 compute_120"),
        images=["sm_75 sm_80 sm_86 sm_120: 2 raw", "compute_120: 2 zstd 9.0"],
        containers=["2: sm_75 sm_80 sm_86 sm_120 compute_120"],
    ),
    "architecture-specific and family-specific targets": Case(
        script=library_of("13.0", LETTERS),
        images=[
            "sm_75 sm_80 sm_87 sm_90a sm_100a sm_100f sm_103a sm_103f sm_110 sm_120f sm_121a: 2 raw",
            "compute_75 compute_90a compute_100f compute_121a: 2 zstd 9.0",
        ],
        containers=[f"2: {LETTERS}"],
    ),
    "one number with every letter": Case(  # nvcc does not take all three in one command
        script=two_compilers(
            nvcc("13.0", "compute_120a sm_120a compute_120 sm_120"), nvcc("13.0", "compute_120f sm_120f")
        ),
        images=["sm_120 sm_120a sm_120f: 1 raw", "compute_120 compute_120a compute_120f: 1 zstd 9.0"],
        containers=["1: sm_120 sm_120a compute_120 compute_120a", "1: sm_120f compute_120f"],
    ),
    "zstd": Case(
        script=library_of("13.0", "sm_80 sm_100f compute_100", SIZE),
        images=["sm_80 sm_100f: 2 zstd", "compute_100: 2 zstd 9.0"],
        containers=["2: sm_80 sm_100f compute_100"],
    ),
    "LZ4 for PTX": Case(
        script=library_of("13.0", "sm_80 compute_80", SPEED),
        images=["sm_80: 2 raw", "compute_80: 2 lz4 9.0"],
        containers=["2: sm_80 compute_80"],
    ),
    "uncompressed": Case(
        script=library_of("13.0", "sm_80 compute_80", NONE),
        images=["sm_80: 2 raw", "compute_80: 2 raw 9.0"],
        containers=["2: sm_80 compute_80"],
    ),
    "the fat binary's own option": Case(
        script=library_of("13.0", "sm_80 compute_80", ALL),
        images=["sm_80: 2 zstd", "compute_80: 2 zstd 9.0"],
        containers=["2: sm_80 compute_80"],
    ),
    "several packings in one library": Case(
        script=two_compilers(nvcc("13.0", "sm_90 compute_90", SIZE), nvcc("13.0", "sm_90 compute_90", SPEED)),
        images=["sm_90: 2 raw+zstd", "compute_90: 2 lz4+zstd 9.0"],
        containers=["2: sm_90 compute_90"],
    ),
    "PTX alone": Case(
        script=library_of("13.0", "compute_75"), images=["compute_75: 2 zstd 9.0"], containers=["2: compute_75"]
    ),
    "SASS alone": Case(script=library_of("13.0", "sm_121a"), images=["sm_121a: 2 raw"], containers=["2: sm_121a"]),
    "an object file": Case(
        script=f"{nvcc('13.0', 'sm_80 compute_90')} -c a.cu -o a.o",
        images=["sm_80: 1 raw", "compute_90: 1 zstd 9.0"],
        containers=["1: sm_80 compute_90"],
        makes="a.o",
    ),
    "sources for different targets": Case(
        script=two_compilers(nvcc("13.0", "sm_80 sm_90 compute_90"), nvcc("13.0", "sm_90")),
        images=["sm_80: 1 raw", "sm_90: 2 raw", "compute_90: 1 zstd 9.0"],
        containers=["1: sm_80 sm_90 compute_90", "1: sm_90"],
    ),
    "compilers of two releases": Case(
        script=two_compilers(nvcc("13.0", "sm_90a compute_90", SIZE), nvcc("12.4", "sm_60 sm_90a compute_90", ALL)),
        images=["sm_60: 1 lz4", "sm_90a: 2 lz4+zstd", "compute_90: 2 lz4+zstd 9.0"],
        containers=["1: sm_60 sm_90a compute_90", "1: sm_90a compute_90"],
    ),
    "a segment that holds both code and constants": Case(
        script=library_of("13.0", "sm_80 compute_80", link="-Wl,-z,noseparate-code"),
        images=["sm_80: 2 raw", "compute_80: 2 zstd 9.0"],
        containers=["2: sm_80 compute_80"],
    ),
    "the gold linker": Case(
        script=library_of("13.0", "sm_80 compute_80", link="-fuse-ld=gold"),
        images=["sm_80: 2 raw", "compute_80: 2 zstd 9.0"],
        containers=["2: sm_80 compute_80"],
    ),
    "debug information": Case(
        script=library_of("13.0", "sm_80 compute_80", options="-g", link="-Wl,--compress-debug-sections=zlib"),
        images=["sm_80: 2 raw", "compute_80: 2 zstd 9.0"],
        containers=["2: sm_80 compute_80"],
    ),
    "stripped": Case(
        script=library_of("13.0", "sm_80 compute_80") + "\nstrip lib.so",
        images=["sm_80: 2 raw", "compute_80: 2 zstd 9.0"],
        containers=["2: sm_80 compute_80"],
    ),
    "a device variable and no kernel": Case(
        script=f"{nvcc('13.0', 'sm_80 sm_90')} -c variable.cu -o a.o\ng++ -shared a.o -o lib.so",
        images=["sm_80 sm_90: 1 raw"],
        containers=["1: sm_80 sm_90 (stub)"],
    ),
    "code among constants": Case(
        script=f"{nvcc('13.0', 'sm_80 sm_100f compute_100f', SIZE)} -fatbin a.cu -o a.fatbin\n"
        f"{nvcc('13.0', 'sm_90')} -c b.cu -o b.o\ngcc -shared constant.s b.o -o lib.so",
        images=["sm_90: 1 raw"],
        containers=["1: sm_90"],
        embedded_images=["sm_80 sm_100f: 1 zstd", "compute_100f: 1 zstd 9.0"],
        embedded_containers=["1: sm_80 sm_100f compute_100f"],
    ),
    "no GPU code": Case(script="g++ -shared -fPIC host.cc -o lib.so", images=[], containers=[]),
}


def device_link_cases(version: str, packed: str, isa: str) -> Iterator[tuple[str, Case]]:
    """The device linker of every release does the same: `packed` is what its fatbinary compresses with."""
    asked, sass, ptx = "sm_80 sm_90 compute_90", "sm_80 sm_90", "compute_90"
    for option, how in (("", "raw"), (ALL, packed)):
        name = f"{version}{', compressed' if option else ''}"
        yield (
            f"a device-link stub, {name}",
            Case(
                script=device_linked(version, asked, option),
                images=[f"{sass}: 3 {how}", f"{ptx}: 2 {packed} {isa}"],
                containers=[f"2: {asked}", f"1: {sass} (stub)"],
                lister=version,
            ),
        )
        yield (
            f"relocatable device code, linked, {name}",
            Case(
                script=device_linked(version, asked, f"{option} -rdc=true"),
                images=[f"{sass}: 1 {how}"],
                containers=[f"1: {sass}"],
                # It is compressed whatever was asked: only the device linker reads it.
                relocatable_images=[f"{sass}: 2 {packed}", f"{ptx}: 2 {packed} {isa}"],
                relocatable_containers=[f"2: {asked}"],
                lister=version,
            ),
        )
    yield (
        f"relocatable device code, not linked, {version}",
        Case(
            script=f"{nvcc(version, asked, '-rdc=true')} -c a.cu -o a.o",
            images=[],
            containers=[],
            relocatable_images=[f"{sass}: 1 {packed}", f"{ptx}: 1 {packed} {isa}"],
            relocatable_containers=[f"1: {asked}"],
            makes="a.o",
            lister=version,
        ),
    )


def older_cases(version: str, asked: str, isa: str) -> Iterator[tuple[str, Case]]:
    """Up to CUDA 12 PTX is packed with LZ4, SASS on demand."""
    sass = " ".join(one for one in asked.split() if one.startswith("sm_"))
    ptx = asked.removeprefix(f"{sass} ")
    for name, option, code, text in (
        ("default", "", "raw", "lz4"),
        ("compressed", ALL, "lz4", "lz4"),
        ("uncompressed", NONE, "raw", "raw"),
    ):
        yield (
            f"{version}, {name}",
            Case(
                script=library_of(version, asked, option),
                images=[f"{sass}: 2 {code}", f"{ptx}: 2 {text} {isa}"],
                containers=[f"2: {asked}"],
                lister=version,
            ),
        )


CASES = {
    **CUDA_13,
    **dict(older_cases("11.8", "sm_35 sm_50 sm_61 sm_86 sm_90 compute_35 compute_90", "7.8")),
    **dict(older_cases("12.4", "sm_50 sm_72 sm_89 sm_90 sm_90a compute_50 compute_90a", "8.4")),
    **dict(device_link_cases("11.8", "lz4", "7.8")),
    **dict(device_link_cases("12.4", "lz4", "8.4")),
    **dict(device_link_cases("13.0", "zstd", "9.0")),
}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_the_lists_are_what_the_compiler_was_asked_for(case: Case, workshop: Workshop) -> None:
    found = library(case.made(workshop))
    assert found.problems == ()
    assert (images(found.loadable), listed(found.loadable)) == (case.images, case.containers)
    assert images(found.relocatable) == case.relocatable_images
    assert listed(found.relocatable) == case.relocatable_containers
    assert found.embedded is not None
    assert (images(found.embedded), listed(found.embedded)) == (case.embedded_images, case.embedded_containers)
    assert (found.machine, found.debug_info) == ("x86_64", "-g" in case.script.split())


# --- against cuobjdump ----------------------------------------------------------------------------------------------


def dumped(path: Path, version: str, *options: str) -> Counter[str]:
    """Target -> how many cubins and PTX files cuobjdump finds."""
    command: list[str | Path] = [cuda(version) / "bin" / "cuobjdump", "-lelf", "-lptx", *options, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "does not contain device code" in done.stderr, done.stderr
    return cuobjdumped(done.stdout)


def counted(*codes: GpuCode) -> Counter[str]:
    """The same of what was read; cuobjdump leaves out the `f` of a cubin, not of PTX."""
    total: Counter[str] = Counter()
    for one in merged(codes).images:
        total[one.target.removesuffix("f") if one.kind == "sass" else one.target] += one.count
    return total


@every_case
def test_cuobjdump_lists_the_same(case: Case, workshop: Workshop) -> None:
    path = case.made(workshop)
    found = library(path)
    if case.makes == "lib.so":  # of an object file it lists relocatable code in any case
        assert counted(found.loadable) == dumped(path, case.lister)
    assert counted(found.loadable, found.relocatable) == dumped(path, case.lister, "-all")


def test_sizes_are_those_of_the_files_that_cuobjdump_extracts(workshop: Workshop, tmp_path: Path) -> None:
    path = CASES["uncompressed"].made(workshop)
    found = library(path)
    command: list[str | Path] = [cuda("13.0") / "bin" / "cuobjdump", "-xelf", "all", "-xptx", "all", path]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    sizes = Counter[str]()
    for one in tmp_path.iterdir():
        size = one.stat().st_size
        sizes["compute_80" if one.suffix == ".ptx" else "sm_80"] += size + -size % 8  # they are padded
    assert {one.target: one.size for one in found.loadable.images} == sizes
    assert sum(one.size for one in found.loadable.containers) == section(path, ".nv_fatbin")[1]


def test_a_wheel_tells_of_every_library_in_it(workshop: Workshop, tmp_path: Path) -> None:
    names = ("SASS alone", "PTX alone", "no GPU code", "relocatable device code, linked, 12.4")
    members = {f"pkg/lib{at}.so": CASES[name].made(workshop) for at, name in enumerate(names)}
    path = wheel(tmp_path, {**members, "pkg/notes.txt": Path(__file__)})
    with path.open("rb") as file:
        found = inspect_wheel(file, path.name)
    assert found.wheel.record_ok
    assert found.libraries == tuple(library(made, name) for name, made in members.items())
    assert images(merged(one.loadable for one in found.libraries)) == [
        "sm_80 sm_90: 1 raw",
        "sm_121a: 2 raw",
        "compute_75: 2 zstd 9.0",
    ]
