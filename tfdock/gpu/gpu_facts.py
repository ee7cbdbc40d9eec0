"""Facts about a wheel's GPU code: from knowledge rows for an official wheel, from the wheel's bytes for any other.

Both become `GpuFacts`, so both get their verdicts in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tfdock.gpu.opened_libraries import accelerator_of, built_with, own_libraries, row_of, unsearched_folders
from tfdock.gpu.verdict import code_of
from tfdock.knowledge.fits import emitted_ptx
from tfdock.knowledge.release_rows import Release, applies
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import RuntimeCompiler
from tfdock.knowledge.wheel_rows import Companion, GeneratedKernels
from tfdock.types import Capability, Version
from tfdock.wheel.facts import Containers, GpuCode, Images, Library
from tfdock.wheel.requirements import RequiredPackage, wanted

if TYPE_CHECKING:
    from tfdock.wheel.inspection import Inspection

OFFICIAL_MACHINE = "x86_64"  #: The CPU architecture that official wheels with GPU code are for.
#: A text that every TensorFlow with XLA contains: the name of the flag for the toolkit's folder.
XLA_TRACE = "xla_gpu_cuda_data_dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The facts about a wheel.

    `accelerator` is the family of its GPU code, None without any. `release` is the release whose rules apply, None
    without a row. `version` is empty if the wheel is not TensorFlow; `machine` is its CPU, empty if unknown. `own`
    are TensorFlow's own libraries with GPU code; for an official wheel, one entry represents all. `listed` are the
    targets that the wheel names.

    `brought` maps a component to the requirement that pip installs; `built` maps it to the version that the wheel was
    built or tested with (`9`, `12.5.1`). `companions` are the rows about such wheels. `unsearched` are folders in
    which pip installs libraries for the wheel, but which the wheel does not search. `measured`: read from the wheel's
    bytes, so counts are exact.

    `choices`: choice (`cuda128`) -> its libraries among `own`; one is loaded. `unjudged`: why no GPU is judged.
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
    unsearched: tuple[str, ...] = ()
    choices: Mapping[str, tuple[Library, ...]] = field(default_factory=dict)
    unjudged: str = ""
    runtime_compiler: RuntimeCompiler | None = None
    xla: bool = True
    measured: bool = False

    def version_of(self, component: str) -> str:
        """Return the version in use: the oldest that pip installs, else the one of the build or test, or ""."""
        brought = self.brought.get(component)
        return (brought.oldest if brought else "") or self.built.get(component, "")


def _choices(knowledge: KnowledgeBase, own: Sequence[Library]) -> dict[str, tuple[Library, ...]]:
    """Return choice -> the libraries that are loaded with it; empty where all are loaded."""
    named = [(library, row_of(knowledge, library.path)[1]) for library in own]
    choices = dict.fromkeys(choice for _, choice in named if choice)
    if len(choices) < 2:
        return {}
    return {one: tuple(library for library, choice in named if choice in ("", one)) for one in choices}


def brought_by(knowledge: KnowledgeBase, inspection: Inspection) -> dict[str, str]:
    """Return library -> its requirement, for the libraries that a wheel needs but does not contain."""
    lines, extras = inspection.metadata.requires_dist, inspection.metadata.provides_extra
    # Packages that are always installed come before packages of an extra.
    packages = [(one.package, line) for some in ((), extras) for line in lines for one in wanted([line], some)]
    brought: dict[str, str] = {}
    for needed in dict.fromkeys(name for library in inspection.libraries for name in library.needed):
        row, _ = row_of(knowledge, needed)
        for package, line in packages:
            if row and row.packages and re.fullmatch(row.packages, package):
                brought.setdefault(needed, line.partition(";")[0].strip())
    return brought


# --- from rows ------------------------------------------------------------------------------------------------------


def facts_of_release(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> GpuFacts:
    """Return the facts of the official wheel of a release."""
    rows = companions(knowledge, release, accelerator)
    targets = release.official_targets.get(accelerator.accelerator, ())
    brought: dict[str, RequiredPackage] = {}
    for row in rows:
        if row.version:
            package, exact = row.package or "", row.before is None
            required = RequiredPackage(package=package, oldest=row.version, before=row.before, exact=exact)
            brought.setdefault(row.component, required)
    return GpuFacts(
        accelerator=accelerator if targets else None,
        release=release,
        version=release.release,
        machine=OFFICIAL_MACHINE,
        own=(_official_library(knowledge, release, accelerator, targets),) if targets else (),
        listed=targets,
        brought=brought,
        built={name: support.tested for name, support in release.components.items() if support.tested},
        companions=rows,
        unsearched=tuple(row.unsearched for row in rows if row.unsearched),
        runtime_compiler=_runtime_compiler(knowledge, release, accelerator),
    )


def facts_of_installed(
    knowledge: KnowledgeBase,
    release: Release,
    accelerator: Accelerator,
    info: Mapping[str, object] | None,
    packages: Mapping[str, str],
) -> GpuFacts:
    """Return the facts of an installed wheel: those of the official wheel, unless build_info lists other targets.

    `packages` maps each required package that is installed to its version.
    """
    facts, listed = facts_of_release(knowledge, release, accelerator), _listed(info, accelerator)
    used = (RequiredPackage(package=name, oldest=version, exact=True) for name, version in packages.items())
    # Folders outside of the search do not matter here: each library is looked for.
    facts = replace(facts, brought=_components(used, accelerator), unsearched=())
    if not listed or listed == facts.listed:
        return facts
    library = _official_library(knowledge, release, accelerator, listed)
    return replace(facts, accelerator=accelerator, own=(replace(library, embedded=None),), listed=listed)


def companions(
    knowledge: KnowledgeBase, release: Release, accelerator: Accelerator, wheel: str = ""
) -> tuple[Companion, ...]:
    """Return the rows of the libraries that come with the official wheel of a release, or with `wheel` (`a==1.0`)."""
    rows = (row for row in knowledge.companions if _is_of(row, release, accelerator))
    return tuple(row for row in rows if not row.wheels or wheel in row.wheels)


#: Stands for all libraries of an official wheel.
_OFFICIAL_LIBRARY = Library(path="", size=0, machine=OFFICIAL_MACHINE, versions={})


def _official_library(
    knowledge: KnowledgeBase, release: Release, accelerator: Accelerator, targets: tuple[str, ...]
) -> Library:
    """Return one library that represents all libraries of the official wheel, with the GPU code in the rows."""
    if not accelerator.capabilities:
        return replace(_OFFICIAL_LIBRARY, loadable=GpuCode(containers=(Containers(amdgpu=targets),)))
    sass, ptx = code_of(targets)
    kernels = Containers(sass=sass, ptx=ptx)
    # The device linker leaves only SASS, so NCCL in the wheel has no PTX.
    rows = companions(knowledge, release, accelerator)
    linked = [Containers(sass=sass) for row in rows if row.carries == "wheel"]
    isa = _official_ptx_isa(knowledge, release, accelerator)
    return replace(
        _OFFICIAL_LIBRARY,
        loadable=GpuCode(images=_ptx_images(ptx, isa), containers=(kernels, *linked)),
        relocatable=GpuCode(containers=tuple(linked)),
        embedded=generated(knowledge, release, accelerator),
    )


def generated(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> GpuCode | None:
    """Return, as GPU code, the kernels that MLIR generated for a release's official wheel; None without a row."""
    row = next((row for row in knowledge.generated_kernels if _is_of(row, release, accelerator)), None)
    if row is None:
        return None
    sass = tuple(target for target in row.targets if not Capability.parse(target).ptx)
    ptx = tuple(target for target in row.targets if Capability.parse(target).ptx)
    container = Containers(sass=sass, ptx=ptx, count=row.count)
    return GpuCode(images=_ptx_images(ptx, row.isa or ""), containers=(container,))


def _is_of(row: Companion | GeneratedKernels | RuntimeCompiler, release: Release, accelerator: Accelerator) -> bool:
    return row.accelerator == accelerator.accelerator and applies(release, row.releases)


def _ptx_images(ptx: Iterable[str], isa: str) -> tuple[Images, ...]:
    return tuple(Images(kind="ptx", target=target, count=1, size=0, packing=(), isa=isa) for target in ptx)


def _official_ptx_isa(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> str:
    """Return the PTX ISA of an official wheel: the toolkit's, or the compiler's own if that is older."""
    compiler, tested = release.gpu_compiler or "", release.support(accelerator.toolkit).tested or ""
    own = release.compilers.get(compiler, "")
    return str(emitted_ptx(knowledge, (accelerator.toolkit, tested), (compiler, own)) or "")


def _runtime_compiler(knowledge: KnowledgeBase, release: Release, accelerator: Accelerator) -> RuntimeCompiler | None:
    return next((row for row in knowledge.runtime_compilers if _is_of(row, release, accelerator)), None)


# --- from a wheel ---------------------------------------------------------------------------------------------------


def facts_of_wheel(knowledge: KnowledgeBase, inspection: Inspection) -> GpuFacts:
    """Return the facts of an inspected wheel."""
    own = own_libraries(knowledge, inspection.libraries)
    # A damaged library may have unreadable code, so it must be reported.
    holding = tuple(library for library in own if _has_code(library) or library.problems)
    projects = {project for row in knowledge.releases.values() for project in row.official_project.values()}
    is_tensorflow = inspection.build_info is not None or inspection.wheel.name in {"tensorflow", *projects}
    version = inspection.wheel.version if is_tensorflow else ""
    release = knowledge.release_of(version)
    accelerator = _accelerator(knowledge, inspection, release, own)
    facts = GpuFacts(
        accelerator=accelerator,
        release=release,
        version=version,
        machine=_machine(inspection, holding or own),
        own=holding,
        choices=_choices(knowledge, holding),
        unjudged=_unjudged(knowledge, inspection, holding, version),
        unsearched=unsearched_folders(knowledge, inspection),
        # If nobody looked for the trace, assume the usual: TensorFlow's wheels have XLA.
        xla=bool(inspection.traces.get(XLA_TRACE, ("not looked for",))),
        measured=True,
    )
    if accelerator is None:
        return facts
    facts = replace(
        facts,
        listed=_listed(inspection.build_info, accelerator),
        brought=_brought(inspection, accelerator),
        built=_built(inspection, accelerator, release),
    )
    if release is None:
        return facts
    rows = companions(knowledge, release, accelerator, f"{inspection.wheel.name}=={version.partition('+')[0]}")
    return replace(
        facts,
        own=_with_generated(knowledge, release, accelerator, facts),
        # The wheel's own requirements replace the rows of packages.
        companions=tuple(row for row in rows if not row.package),
        runtime_compiler=_runtime_compiler(knowledge, release, accelerator),
    )


def _unjudged(knowledge: KnowledgeBase, inspection: Inspection, holding: Sequence[Library], version: str) -> str:
    """Return why no verdict on a wheel is possible; empty if one is. `version` is empty if it is not TensorFlow."""
    if inspection.unread and not inspection.libraries:
        return f"has libraries for {' and '.join(sorted({*inspection.unread.values()}))}, which tfdock does not read"
    if holding or version:
        return ""
    # An add-on such as tensorflow-text: the package that it is linked with has the code for GPUs.
    beside = " and ".join(dict.fromkeys(brought_by(knowledge, inspection).values()))
    return f"has no GPU code of its own{f', and runs beside {beside}' if beside else ''}"


def _has_code(library: Library) -> bool:
    parts = (library.loadable, library.relocatable, library.embedded or GpuCode())
    return any(part.images for part in parts)


def _accelerator(
    knowledge: KnowledgeBase, inspection: Inspection, release: Release | None, own: Iterable[Library]
) -> Accelerator | None:
    """Return the accelerator of the wheel's code: by that code, else by `build_info`, else by the wheel's name."""
    rows = knowledge.accelerators.values()
    targets = {image.target for library in own for image in (*library.loadable.images, *library.relocatable.images)}
    by_code = (row for row in rows if any(row.matches(target.partition(":")[0]) for target in targets))
    by_word = accelerator_of(knowledge, inspection)
    names = release.official_project if release else {}
    by_name = (row for row in rows if names.get(row.accelerator) == inspection.wheel.name)
    return next(by_code, by_word) or next(by_name, None)


def _machine(inspection: Inspection, libraries: Iterable[Library]) -> str:
    """Return the CPU of the libraries, else of the platform tag; empty if the wheel is for any CPU."""
    # The code is more reliable than a tag: a wheel may have been renamed.
    machines = sorted({library.machine for library in libraries})
    if machines:
        return machines[0]
    # `x86_64` has an underscore itself, so the tag cannot be split at the last one.
    match = re.search(r"(?:^|_)(x86_64|aarch64|armv7l|i686|ppc64le|s390x|riscv64)$", inspection.wheel.platform_tag)
    return match[1] if match else ""


def _listed(info: Mapping[str, object] | None, accelerator: Accelerator) -> tuple[str, ...]:
    """Return the capabilities that `build_info` lists (`sm_60`), in its order."""
    if not accelerator.capabilities:
        return ()
    listed = (info or {}).get(f"{accelerator.accelerator}_compute_capabilities")
    # The wheel wrote build_info, so this value may be of any type.
    words = [str(word) for word in listed] if isinstance(listed, list) else []
    return tuple(word for word in words if accelerator.lists(word))


def _with_generated(
    knowledge: KnowledgeBase, release: Release, accelerator: Accelerator, facts: GpuFacts
) -> tuple[Library, ...]:
    """Return the libraries, with the official wheel's generated kernels if nobody looked for such kernels here.

    These kernels count only if this wheel has the official wheel's list of targets.
    """
    own, listed = facts.own, facts.listed
    searched = any(library.embedded is not None for library in own)
    if searched or not own or not listed or listed != release.official_targets.get(accelerator.accelerator):
        return own
    return (*own, replace(_OFFICIAL_LIBRARY, embedded=generated(knowledge, release, accelerator)))


def _brought(inspection: Inspection, accelerator: Accelerator) -> dict[str, RequiredPackage]:
    """Return component -> the requirement with which pip installs it, by the wheel's own requirements."""
    # Requirements depend on the Python version. Tags such as `py3` name no minor version.
    match = re.match(r"cp(\d)(\d+)", inspection.wheel.python_tag)
    python = f"{match[1]}.{match[2]}" if match else "3.11"
    metadata = inspection.metadata
    machine = _machine(inspection, ()) or OFFICIAL_MACHINE
    requirements = wanted(metadata.requires_dist, metadata.provides_extra, python=python, machine=machine)
    return _components(requirements, accelerator)


def _components(requirements: Iterable[RequiredPackage], accelerator: Accelerator) -> dict[str, RequiredPackage]:
    """Return component -> the first requirement that brings it."""
    required: dict[str, RequiredPackage] = {}
    for requirement in requirements:
        for component, pattern in accelerator.packages.items():
            if match := re.fullmatch(pattern, requirement.package):
                # The packages `…-cu12` end with CUDA 12.
                major = match.groupdict().get("major")
                before = requirement.before or (str(int(major) + 1) if major else None)
                required.setdefault(component, replace(requirement, before=before))
    return required


def _built(inspection: Inspection, accelerator: Accelerator, release: Release | None) -> dict[str, str]:
    """Return the versions that `build_info` names, else those that the release was tested with."""
    made = {name: support.tested or "" for name, support in release.components.items()} if release else {}
    versions = {name: built_with(inspection, name) or made.get(name, "") for name in accelerator.components}
    # The wheel's value may be any text, even one that is not a version.
    versions = {name: version for name, version in versions.items() if re.fullmatch(r"\d+(\.\d+)*", version)}
    # Up to TensorFlow 2.2, `build_info` names only the toolkit's major version.
    toolkit, said = accelerator.toolkit, versions.get(accelerator.toolkit)
    whole = said is not None and Version(made.get(toolkit, "")).matches(Version(said))
    return versions | ({toolkit: made[toolkit]} if whole else {})
