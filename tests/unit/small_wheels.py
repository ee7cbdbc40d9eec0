"""Small whole wheels with whatever files a test wants in them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from wheelhouses import with_record, write_wheel

from tfdock.wheel.facts import Containers, GpuCode, Images, Kind, Library, merged
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel import WheelFacts, WheelMetadata

NAME = "tensorflow-2.18.0-cp311-cp311-linux_x86_64.whl"
INFO = "tensorflow-2.18.0.dist-info"
DOCUMENTS = {
    f"{INFO}/METADATA": (
        b"Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.18.0\nProvides-Extra: and-cuda\n"
        b'Requires-Dist: numpy<2.1\nRequires-Dist: nvidia-cudnn-cu12==9.3.0.75; extra == "and-cuda"\n'
    ),
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
}


def wheel_of(files: Mapping[str, bytes], record: str | None = None, requires: str = "") -> bytes:
    """The wheel called `NAME` of these files; `record` stands in for a right RECORD, `requires` is one more line."""
    contents = {**files, **DOCUMENTS}
    if requires:
        contents[f"{INFO}/METADATA"] += f"Provides-Extra: more\nRequires-Dist: {requires}\n".encode()
    file = io.BytesIO()
    own = {} if record is None else {f"{INFO}/RECORD": record.encode()}
    write_wheel(file, with_record(contents) | own)
    return file.getvalue()


def inspection_of(
    version: str,
    libraries: Sequence[Library],
    build_info: Mapping[str, object] | None,
    *,
    name: str = "tensorflow",
    platform: str = "linux_x86_64",
    requires: Sequence[str] = (),
    traces: Mapping[str, tuple[str, ...]] | None = None,
) -> Inspection:
    """What is found in a sound wheel of that version with these libraries.

    `requires` are requirements of the extra `and-cuda`.
    """
    facts = WheelFacts(
        name=name,
        version=version,
        build="",
        python_tag="cp311",
        abi_tag="cp311",
        platform_tag=platform,
        size=1,
        sha256="0" * 64,
        members=1,
        record_ok=True,
        record_problems=(),
    )
    metadata = WheelMetadata(
        name=name,
        version=version,
        requires_python=None,
        requires_dist=tuple(f'{line}; extra == "and-cuda"' for line in requires),
        provides_extra=("and-cuda",),
    )
    return Inspection(
        wheel=facts, metadata=metadata, libraries=tuple(libraries), build_info=build_info, traces=traces or {}
    )


def held(*groups: str, isa: str = "8.3") -> GpuCode:
    """`278: sm_80 compute_90` are 278 containers with SASS for 8.0 and PTX for 9.0; with `stub` none has a kernel."""
    images: list[Images] = []
    containers: list[Containers] = []
    for group in groups:
        count, words = int(group.partition(": ")[0]), group.split()[1:]
        starts: dict[Kind, str] = {"sass": "sm_", "ptx": "compute_", "amdgpu": "gfx", "unknown": "kind-"}
        names = {kind: tuple(one for one in words if one.startswith(start)) for kind, start in starts.items()}
        images += [
            Images(kind=kind, target=one, count=count, size=1, packing=("lz4",), isa=isa if kind == "ptx" else "")
            for kind, targets in names.items()
            for one in targets
        ]
        sass, ptx, amdgpu, _ = names.values()
        containers.append(Containers(sass=sass, ptx=ptx, amdgpu=amdgpu, count=count, stub="stub" in words))
    return merged([GpuCode(images=tuple(images), containers=tuple(containers))])
