"""What is known of a wheel that bears on GPUs: an official one from knowledge rows, any other from its own bytes.

Both become the same `Evidence`, so that one judgement holds for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tfdock.gpu.verdict import code_of
from tfdock.knowledge.contract import applies
from tfdock.knowledge.release_rows import Release, Support
from tfdock.knowledge.rows import Accelerator, in_range
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import RuntimeCompiler
from tfdock.knowledge.wheel_rows import Companion, GeneratedKernels
from tfdock.types import Capability, Version
from tfdock.wheel.facts import Containers, GpuCode, Images, Library
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.requirements import RequiredPackage, wanted

OFFICIAL_MACHINE = "x86_64"
"""The kind of machine that official wheels with GPU code are for."""
XLA_TRACE = "xla_gpu_cuda_data_dir"
"""A text that stands in every TensorFlow with XLA: the name of the flag that says where the toolkit lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a wheel.

    `accelerator` is whose code it has, None where it has none; `release` the one whose rules hold for it, None where
    there is no row of it; `version` its own, empty where it is no TensorFlow; `machine` the CPU it is for, empty
    where it does not say. `own` are TensorFlow's own libraries with GPU code: of an official wheel one that stands
    for them all. `listed` are the targets that it says it was built for.

    By component: `brought` is what pip brings, `built` the version that the wheel was built with (`9`, `12.5.1`), or
    tested. `companions` are the rows about wheels like it. `measured`: from its bytes, so that counts can be told.
    """

    accelerator: Accelerator | None
    release: Release | None
    version: str
    machine: str
    own: tuple[Library, ...]
    listed: tuple[str, ...] = ()
    brought: Mapping[str, RequiredPackage] = field(default_factory=dict)
    built: Mapping[str, str] = field(default_factory=dict)
    companions: tuple[Companion, ...] = ()
    runtime_compiler: RuntimeCompiler | None = None
    xla: bool = True
    measured: bool = False

    def version_of(self, component: str) -> str:
        """The version that is used: what pip brings, at least, else what it was built or tested with; or empty."""
        brought = self.brought.get(component)
        return (brought.oldest if brought else "") or self.built.get(component, "")


def own_libraries(knowledge: KnowledgeBase, libraries: Iterable[Library]) -> tuple[Library, ...]:
    """Those that are TensorFlow's own, not carried along."""
    return tuple(one for one in libraries if is_own(knowledge, one.path))


def is_own(knowledge: KnowledgeBase, path: str) -> bool:
    """Whether a library of a wheel, by its path in it, is TensorFlow's own."""
    rows = (row.own for row in knowledge.wheel_libraries if re.fullmatch(row.paths, path))
    return next(rows, True)


# --- from rows ------------------------------------------------------------------------------------------------------


def evidence_of_release(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> Evidence:
    """What is known of the official wheel of a release."""
    rows = tuple(companions(knowledge, release, accelerator))
    targets = release.official_targets.get(accelerator.accelerator, ())
    brought = [(row.component, _comes(row)) for row in rows if row.version]
    return Evidence(
        accelerator=accelerator if targets else None,
        release=release,
        version=release.release,
        machine=OFFICIAL_MACHINE,
        own=tuple(_said(knowledge, release, accelerator, targets, rows)),
        listed=targets,
        brought=dict(reversed(brought)),
        built={name: one.tested for name, one in release.components.items() if one.tested},
        companions=rows,
        runtime_compiler=_runtime_compiler(knowledge, release, accelerator),
    )


def companions(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> Iterator[Companion]:
    """What comes with the official wheel of a release."""
    for row in knowledge.companions:
        if row.accelerator == accelerator.accelerator and applies(release, row.releases) and not row.wheels:
            yield row


def _comes(row: Companion) -> RequiredPackage:
    return RequiredPackage(
        package=row.package or "", oldest=row.version or "", before=row.before, exact=row.before is None
    )


def _said(
    knowledge: KnowledgeBase,
    release: Release,
    accelerator: Accelerator,
    targets: tuple[str, ...],
    rows: tuple[Companion, ...],
) -> Iterator[Library]:
    """One library that holds what the rows say of all of the wheel's."""
    if not targets:
        return
    if not accelerator.capabilities:
        yield _library(GpuCode(containers=(Containers(amdgpu=targets),)))
        return
    sass, ptx = code_of(targets)
    kernels = Containers(sass=sass, ptx=ptx)
    linked = [Containers(sass=sass) for row in rows if row.carries == "wheel"]
    isa = _isa(knowledge, release, accelerator)
    yield _library(
        GpuCode(images=_texts(ptx, isa), containers=(kernels, *linked)),
        relocatable=GpuCode(containers=tuple(linked)),
        embedded=generated(knowledge, release, accelerator),
    )


def _library(loadable: GpuCode, *, relocatable: GpuCode | None = None, embedded: GpuCode | None = None) -> Library:
    return Library(
        path="",
        size=0,
        machine=OFFICIAL_MACHINE,
        versions={},
        loadable=loadable,
        relocatable=relocatable or GpuCode(),
        embedded=embedded,
    )


def generated(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> GpuCode | None:
    """The kernels that MLIR generated for the official wheel of a release, as GPU code; None where no row says it."""
    row = next((row for row in knowledge.generated_kernels if _is_of(row, release, accelerator)), None)
    if row is None:
        return None
    sass = tuple(one for one in row.targets if not Capability.parse(one).ptx)
    ptx = tuple(one for one in row.targets if Capability.parse(one).ptx)
    return GpuCode(images=_texts(ptx, row.isa or ""), containers=(Containers(sass=sass, ptx=ptx, count=row.count),))


def _is_of(row: GeneratedKernels | RuntimeCompiler, release: Release, accelerator: Accelerator) -> bool:
    return row.accelerator == accelerator.accelerator and applies(release, row.releases)


def _texts(ptx: Iterable[str], isa: str) -> tuple[Images, ...]:
    return tuple(Images(kind="ptx", target=one, count=1, size=0, packing=(), isa=isa) for one in ptx)


def _isa(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> str:
    """The PTX ISA of an official wheel: the toolkit's, or the compiler's own where that is older."""
    name = accelerator.toolkit or ""
    tested = release.components.get(name, Support()).tested or ""
    toolkit = knowledge.toolkits.get((name, str(Version(tested).minor)))
    compiler = release.gpu_compiler or ""
    own = knowledge.compilers.get((compiler, release.compilers.get(compiler, "")))
    known = [Version(row.ptx) for row in (toolkit, own) if row and row.ptx]
    return str(min(known)) if toolkit and known else ""


def _runtime_compiler(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> RuntimeCompiler | None:
    return next((row for row in knowledge.runtime_compilers if _is_of(row, release, accelerator)), None)


# --- from a wheel ---------------------------------------------------------------------------------------------------


def evidence_of(knowledge: KnowledgeBase, inspection: Inspection) -> Evidence:
    """What is known of an inspected wheel."""
    own = own_libraries(knowledge, inspection.libraries)
    holding = tuple(one for one in own if _has_code(one) or one.problems)
    release = _release(knowledge, inspection)
    accelerator = _accelerator(knowledge, inspection, release, own)
    listed = _listed(inspection, accelerator)
    return Evidence(
        accelerator=accelerator,
        release=release,
        version=inspection.wheel.version if _is_tensorflow(knowledge, inspection) else "",
        machine=_machine(inspection, holding or own),
        own=_with_generated(knowledge, release, accelerator, listed, holding),
        listed=listed,
        brought=_brought(inspection, accelerator),
        built=_built(inspection, accelerator, release),
        companions=tuple(_about(knowledge, inspection, release, accelerator)) if release and accelerator else (),
        runtime_compiler=_runtime_compiler(knowledge, release, accelerator) if release and accelerator else None,
        xla=bool(inspection.traces.get(XLA_TRACE, ("not looked for",))),
        measured=True,
    )


def _has_code(library: Library) -> bool:
    parts = (library.loadable, library.relocatable, library.embedded or GpuCode())
    return any(part.images for part in parts)


def _is_tensorflow(knowledge: KnowledgeBase, inspection: Inspection) -> bool:
    """Whether a wheel tells of its build as TensorFlow does, or has its name."""
    projects = {project for row in knowledge.releases.values() for project in row.official_project.values()}
    return inspection.build_info is not None or inspection.wheel.name in {"tensorflow", *projects}


def _release(knowledge: KnowledgeBase, inspection: Inspection) -> Release | None:
    """The release whose rules hold: by the version, where it is a TensorFlow at all."""
    if not _is_tensorflow(knowledge, inspection):
        return None
    return knowledge.releases.get(str(Version(inspection.wheel.version).minor))


def _accelerator(
    knowledge: KnowledgeBase, inspection: Inspection, release: Release | None, own: Iterable[Library]
) -> Accelerator | None:
    """Whose code it has: by the code that was found, else by what it says of itself, else by its name."""
    rows = knowledge.accelerators.values()
    targets = {one.target for library in own for one in (*library.loadable.images, *library.relocatable.images)}
    by_code = (row for row in rows if any(row.matches(target.partition(":")[0]) for target in targets))
    info = inspection.build_info or {}
    by_word = (row for row in rows if info.get(f"is_{row.accelerator}_build") is True)
    names = release.official_project if release else {}
    by_name = (row for row in rows if names.get(row.accelerator) == inspection.wheel.name)
    return next((row for found in (by_code, by_word, by_name) for row in found), None)


def _machine(inspection: Inspection, libraries: Iterable[Library]) -> str:
    """The CPU its libraries are for, else that of its platform tag; empty where it is for any."""
    machines = sorted({one.machine for one in libraries})
    if machines:
        return machines[0]
    match = re.search(r"(?:^|_)(x86_64|aarch64|armv7l|i686|ppc64le|s390x|riscv64)$", inspection.wheel.platform_tag)
    return match[1] if match else ""


def _listed(inspection: Inspection, accelerator: Accelerator | None) -> tuple[str, ...]:
    """The capabilities it says it was built for (`sm_60`), in the order it says them."""
    if accelerator is None or not accelerator.capabilities:
        return ()
    said = (inspection.build_info or {}).get(f"{accelerator.accelerator}_compute_capabilities")
    words = [str(word) for word in said] if isinstance(said, list) else []
    return tuple(word for word in words if accelerator.lists(word))


def _with_generated(
    knowledge: KnowledgeBase,
    release: Release | None,
    accelerator: Accelerator | None,
    listed: tuple[str, ...],
    own: tuple[Library, ...],
) -> tuple[Library, ...]:
    """Where nobody looked for generated kernels: those of the official wheel, if this one has its list."""
    if any(one.embedded is not None for one in own) or not (release and accelerator and own):
        return own
    if not listed or listed != release.official_targets.get(accelerator.accelerator):
        return own
    return (*own, _library(GpuCode(), embedded=generated(knowledge, release, accelerator)))


def _brought(inspection: Inspection, accelerator: Accelerator | None) -> dict[str, RequiredPackage]:
    """What pip brings of the components, by the wheel's own requirements."""
    if accelerator is None:
        return {}
    match = re.match(r"cp(\d)(\d+)", inspection.wheel.python_tag)
    python = f"{match[1]}.{match[2]}" if match else "3.11"
    metadata = inspection.metadata
    found: dict[str, RequiredPackage] = {}
    machine = _machine(inspection, ()) or OFFICIAL_MACHINE
    for one in wanted(metadata.requires_dist, metadata.provides_extra, python=python, machine=machine):
        for component, pattern in accelerator.packages.items():
            if re.fullmatch(pattern, one.package):
                found.setdefault(component, one)
    return found


def built_with(inspection: Inspection, component: str) -> str:
    """A component's version by `build_info`, as written there; up to 2.2 the entry had another name."""
    info = inspection.build_info or {}
    return str(info.get(f"{component}_version", info.get(f"{component}_version_number", "")))


def _built(inspection: Inspection, accelerator: Accelerator | None, release: Release | None) -> dict[str, str]:
    """What it says it was built with; where it says nothing, what its release was tested with."""
    found = {}
    for name in accelerator.components if accelerator else ():
        tested = release.components.get(name, Support()).tested if release else None
        version = built_with(inspection, name) or tested
        if version and re.fullmatch(r"\d+(\.\d+)*", version):
            found[name] = version
    return found


def _about(
    knowledge: KnowledgeBase, inspection: Inspection, release: Release, accelerator: Accelerator
) -> Iterator[Companion]:
    """Rows about wheels like this: of its release, and not of what its own requirements say."""
    name = f"{inspection.wheel.name}=={inspection.wheel.version.partition('+')[0]}"
    for row in knowledge.companions:
        if row.accelerator != accelerator.accelerator or row.package or not in_range(release.release, row.releases):
            continue
        if not row.wheels or name in row.wheels:
            yield row
