"""A wheel that has nothing to do with TensorFlow, and GPU code of more kinds than any of its wheels.

bitsandbytes carries a library for each of seven CUDA releases, with relocatable code, uncompressed or in zstd, and
one for each of six ROCm releases, whose bundles are compressed in versions 2 and 3.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from waits import FETCH

from tfdock.gpu.compatibility import serve
from tfdock.gpu.gpu_facts import brought_by, facts_of_wheel
from tfdock.knowledge import loader
from tfdock.verify.checks import Manylinux
from tfdock.verify.manylinux import audit
from tfdock.wheel.facts import GpuCode, Library
from tfdock.wheel.inspection import Inspection, inspect_wheel

from .test_official_wheels import counted, unpack
from .workshop import OfficialWheels, Workshop, cuda, cuobjdumped, section, told

pytestmark = pytest.mark.limit(FETCH)

REQUIREMENT = "bitsandbytes==0.50.2"


@pytest.fixture(scope="module")
def wheel(official_wheels: OfficialWheels) -> Path:
    return official_wheels(REQUIREMENT)


@pytest.fixture(scope="module")
def found(wheel: Path) -> Inspection:
    with wheel.open("rb") as file:
        return inspect_wheel(file, wheel.name)


@pytest.fixture(scope="module")
def folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its libraries, unpacked: 130 MB."""
    folder = tmp_path_factory.mktemp("bitsandbytes")
    unpack(wheel, folder)
    return folder


def of(found: Inspection, name: str) -> dict[str, Library]:
    """The libraries whose name has that in it, by what follows."""
    pattern = re.compile(rf"libbitsandbytes_{name}(\d+)\.so")
    return {match[1]: one for one in found.libraries if (match := pattern.search(one.path))}


def test_it_is_sound_and_all_its_libraries_are_read(found: Inspection) -> None:
    assert found.wheel.record_ok
    assert (found.wheel.name, found.build_info) == ("bitsandbytes", None)
    assert [one.path for one in found.libraries if one.problems] == []
    assert set(of(found, "cuda")) == {"118", "121", "124", "126", "128", "130", "132"}
    assert set(of(found, "rocm")) == {"64", "70", "71", "714", "715", "72"}
    others = {one.path: one.loadable for one in found.libraries if not re.search(r"cuda|rocm", one.path)}
    assert set(others.values()) == {GpuCode()}


@pytest.mark.parametrize(
    ("gpu", "runs", "choices"),
    [
        ("rtx5090", "native", "in those for cuda128, cuda130, cuda132"),
        ("v100", "native", "in those for cuda118, cuda121, cuda124, cuda126, cuda128"),
        ("gtx1080", "native-same-major", "in those for cuda118, cuda121, cuda124, cuda126"),
        ("k80", "no", "none of these has code for this GPU"),
        ("rx5700", "native", "in those for rocm714, rocm715"),
    ],
)
def test_a_gpu_runs_it_by_the_best_of_its_libraries(found: Inspection, gpu: str, runs: str, choices: str) -> None:
    base = loader.knowledge()
    answer = serve(base, base.gpus[gpu], facts_of_wheel(base, found))
    assert (answer.runs, answer.reason.endswith(choices)) == (runs, True), answer.reason


def test_an_add_on_has_its_libraries_from_the_tensorflow_that_it_requires(official_wheels: OfficialWheels) -> None:
    base, wheel = loader.knowledge(), official_wheels("tensorflow-text==2.21.1")
    with wheel.open("rb") as file:
        found = inspect_wheel(file, wheel.name)
    brought = brought_by(base, found)
    assert brought == {"libtensorflow_framework.so.2": "tensorflow<2.22,>=2.21.0"}
    assert audit(found, brought) == Manylinux(fits="manylinux_2_27_x86_64", obstacles={})
    answer = serve(base, base.gpus["rtx5090"], facts_of_wheel(base, found))
    assert answer.unjudged == "has no GPU code of its own, and runs beside tensorflow<2.22,>=2.21.0"


def test_cuda_code_is_what_cuobjdump_lists(found: Inspection, folder: Path) -> None:
    for release, library in of(found, "cuda").items():
        # Those of 13.2 and 13.5 end at "Invalid ELF" in what CUDA 12.1 made, that of 12.4 reads it.
        program = cuda("12.4" if release == "121" else "13.0") / "bin" / "cuobjdump"
        alone = told(program, "-lelf", "-lptx", folder / library.path)
        assert counted(library.loadable) == cuobjdumped(alone), release
        everything = told(program, "-lelf", "-lptx", "-all", folder / library.path)
        assert counted(library.loadable, library.relocatable) == cuobjdumped(everything), release
        packings = {packing for one in library.loadable.images for packing in one.packing}
        assert packings == ({"zstd"} if release in ("130", "132") else {"raw"})


def test_amd_code_is_what_the_offload_bundler_lists(found: Inspection, folder: Path, workshop: Workshop) -> None:
    sources: dict[str, str | bytes] = {}
    for release, library in of(found, "rocm").items():
        for at, bundle in enumerate(bundles(folder / library.path)):
            sources[f"{release}-{at}"] = bundle
    lines = [f'echo {name}; "$BUNDLER_22" -list -type=o -input={name}' for name in sources]
    listing = workshop.make("{\n" + "\n".join(lines) + "\n} > listing", sources, "listing") / "listing"
    for release, library in of(found, "rocm").items():
        expected, containers = Counter[str](), Counter[frozenset[str]]()
        for targets in listed(listing.read_text("utf-8"), release):
            expected.update(targets)
            containers[frozenset(targets)] += 1
        assert counted(library.loadable) == expected, release
        assert {frozenset(one.amdgpu): one.count for one in library.loadable.containers} == containers, release
        assert {one.packing for one in library.loadable.images} == {("zstd",)}


def listed(text: str, release: str) -> Iterator[list[str]]:
    """The targets of each bundle of a library."""
    for part in re.split(r"^(?=\d+-\d+$)", text, flags=re.M):
        if part.startswith(f"{release}-"):
            yield re.findall(r"^hipv4-amdgcn-amd-amdhsa--(\S+)$", part, re.M)


def bundles(path: Path) -> Iterator[bytes]:
    """The compressed bundles of a library, by the sizes they give themselves."""
    offset, size = section(path, ".hip_fatbin")
    data = path.read_bytes()[offset : offset + size]
    at = 0
    while at < size:
        magic, version, length = struct.unpack_from("<4sH2xI", data, at)
        assert (magic, version in (2, 3)) == (b"CCOB", True)
        yield data[at : at + length]
        at += length + -length % 4096
