"""Limits of a wheel on a GPU that its main GPU code does not show: single kernels, XLA, toolkit, libraries, drivers.

Each limit is one sentence. The sentences about drivers say which driver a wheel needs, whether the GPU has such a
driver, and whether this machine has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tfdock.gpu.devices import (
    architecture_of,
    gpu_driver,
    is_embedded,
    judge_containers,
    machine_of,
    needs_open_modules,
)
from tfdock.gpu.gpu_facts import GpuFacts
from tfdock.gpu.opened_libraries import unsearched_limit
from tfdock.gpu.verdict import CodePart, CombinedVerdict, Verdict
from tfdock.knowledge.fits import has_code_for, is_used, libraries, own_driver, reaches, toolkit_floor, toolkit_of_ptx
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import LibraryRow, RuntimeCompiler, Toolkit
from tfdock.types import Capability, Host, Version
from tfdock.wheel.facts import Containers, GpuCode, isa_order, merged
from tfdock.wheel.requirements import RequiredPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Floor:
    """The oldest driver for the thing that `why` names. `soft`: with an older driver, the rest still works."""

    version: Version
    why: str
    soft: bool = False
    unless: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a wheel on a GPU. `host` is the GPU's machine, if it is known.

    `combined` is the verdict on the wheel's kernels; it has no `parts` without kernels for such GPUs.
    """

    knowledge: KnowledgeBase
    gpu: Gpu
    facts: GpuFacts
    combined: CombinedVerdict
    host: Host

    @cached_property
    def _accelerator(self) -> Accelerator:
        return self.knowledge.accelerators[self.gpu.accelerator]

    @property
    def _brought(self) -> RequiredPackage | None:
        """The requirement with which pip installs the toolkit, if it does."""
        return self.facts.brought.get(self._accelerator.toolkit)

    @property
    def _version(self) -> str:
        """The version of the toolkit in use; may be empty."""
        return self.facts.version_of(self._accelerator.toolkit)

    # --- why not --------------------------------------------------------------------------------------------------

    def machine(self) -> str:
        """Return why the wheel is not for the machine that holds the GPU; empty if it is."""
        wheel, here = self.facts.machine, self.host.architecture
        beside = machine_of(self.knowledge, self.gpu)
        # Jetson boards and GH200 have ARM CPUs: an x86-64 wheel with their code is of no use.
        if wheel and beside and beside != wheel:
            return f"it is for {wheel} machines; this GPU's machine is {beside}"
        return f"it is for {wheel} machines; this machine is {here}" if wheel and here and here != wheel else ""

    def ignored(self) -> str:
        """Return why TensorFlow ignores such GPUs although the wheel has code for them; empty if not known."""
        release, target = self.facts.release, self.gpu.target
        row = next((row for row in self.facts.companions if target in row.ignores), None)
        if row:
            return f"TensorFlow in this wheel ignores {target}: {row.limit}"
        if release and not self._in_doubt() and not is_used(release, self._accelerator, target):
            return f"TensorFlow {release.release} ignores GPUs of {target}, even with code for them"
        # TensorFlow hides GPUs below the lowest capability it was compiled for, even where they could run.
        listed = self.facts.listed if self._accelerator.capabilities else ()
        oldest = min((Capability.of_gpu(Capability.parse(one).dotted) for one in listed), default=None)
        if oldest and Capability.of_gpu(target) < oldest:
            return f"TensorFlow ignores GPUs below {oldest.dotted}, the lowest target of this build"
        return ""

    # --- limits ---------------------------------------------------------------------------------------------------

    def of(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the limits of a wheel that runs, and the pip requirements that remove some of these limits."""
        names = (name for name in self._accelerator.components if name != self._accelerator.toolkit)
        libraries = [self._library(name) for name in names]
        limits = (
            *self._unread(),
            *self.failing_kernels(),
            *self._late_kernels(),
            *self._run_time(),
            *(limit for limit, _ in libraries if limit),
            *self._weaker(),
            *([unsearched_limit(self.facts.unsearched)] if self.facts.unsearched else []),
        )
        return limits, tuple(pin for _, pin in libraries if pin)

    def _unread(self) -> Iterator[str]:
        """Yield the unknown facts that may matter."""
        if self.facts.release is None and self.facts.version:
            yield f"it is not known which GPUs TensorFlow {self.facts.version} ignores"
        if self._in_doubt():
            yield f"it is not known whether TensorFlow {self.facts.version} uses {self.gpu.target} at all"
        for library in self.facts.own:
            strange = sum(image.count for image in library.loadable.images if image.kind == "unknown")
            if strange:
                yield f"{library.path} has {strange} images of an unknown kind"
            if library.problems:
                yield f"{library.path} is damaged, and may have more code than could be read"

    def _in_doubt(self) -> bool:
        """Return whether it is neither known that the release uses such GPUs nor that it does not."""
        release, name = self.facts.release, self._accelerator.accelerator
        if release is None:
            return False
        fork = self.knowledge.fork(release, name)
        # A GPU in doubt may well work. A fork's wheel may be older than this target in the fork's list.
        return self.gpu.target in (*release.runtime_doubt.get(name, ()), *(fork.targets if fork else ()))

    # --- kernels ----------------------------------------------------------------------------------------------------

    @cached_property
    def _generated(self) -> tuple[tuple[Containers, Verdict], ...]:
        """The kernels that MLIR generated, and how the GPU runs them."""
        held = merged(library.embedded for library in self.facts.own if library.embedded)
        judged = ((one, judge_containers(self.knowledge, self.gpu, one)) for one in held.containers)
        # A stub has no kernel that could fail.
        return tuple((container, how) for container, how in judged if how and not container.stub)

    def failing_kernels(self) -> Iterator[str]:
        """Yield the kernels generated by MLIR that the GPU cannot run.

        These kernels are compiled for another list of targets, and TensorFlow loads each kernel at its first use.
        """
        for held, container_verdict in self._generated:
            if container_verdict.runs == "no":
                # The driver selects an image by its PTX. Only the text of the PTX shows that it is for another GPU.
                specific = [image for image in map(Capability.parse, held.ptx) if image.suffix]
                told = "".join(f"{image} is for {_whom(image)} alone, and " for image in specific)
                symptom = self._symptom("ptx-not-served" if specific else "kernel-not-served")
                none = f"none of their machine code runs on {self.gpu.target}"
                yield f"{_generated_by_mlir(held)} fail{symptom}: {told}{none}"

    def _late_kernels(self) -> Iterator[str]:
        for held, container_verdict in self._generated:
            # If all kernels are compiled at the first start, the verdict already reports this.
            if container_verdict.runs == "ptx-jit" and self.combined.verdict.starts_at_once:
                kernels = _generated_by_mlir(held)
                yield f"{kernels} have no machine code for it: the driver compiles each at its first use"

    def _symptom(self, name: str) -> str:
        """Return ` with …`: the error that a user sees, from the accelerator's row."""
        text = self._accelerator.symptoms.get(name, "")
        return f" with {text}" if text else ""

    def _weaker(self) -> Iterator[str]:
        """Yield the containers that run worse than the combined verdict says."""
        weaker, how = self.combined.weaker, self._symptom("kernel-not-served")
        # NCCL, whose code the device linker made: one GPU works, several together do not.
        if apart := [part for part in weaker if part.linked]:
            told = (row.limit for row in self.facts.companions if row.carries == "wheel" and row.limit)
            code = "code from the device linker (NCCL in TensorFlow: several GPUs together)"
            yield f"{next(told, f'{code} has no PTX, and fails{how}')}{self._where(apart)}"
        worse = {
            "no": ("nothing", f"those kernels fail{how}"),
            "ptx-jit": ("no machine code", "the driver compiles their kernels at the first start"),
        }
        for runs, (have, consequence) in worse.items():
            if parts := [part for part in weaker if part.verdict.runs == runs and not part.linked]:
                on = f"{self.gpu.target}: {consequence}{self._where(parts)}"
                yield f"some containers of its kernels have {have} that runs on {on}"

    def _where(self, parts: Sequence[CodePart]) -> str:
        """Return ` (1 of 279 containers of tensorflow/libtensorflow_cc.so.2)` if the containers were counted."""
        if not self.facts.measured:
            return ""
        paths = dict.fromkeys(part.path for part in parts)
        every = self.combined.parts
        counts = (f"{_count(parts, path)} of {_count(every, path)} containers of {path}" for path in paths)
        return f" ({', '.join(counts)})"

    # --- toolkit and XLA --------------------------------------------------------------------------------------------

    def _toolkit(self) -> Toolkit | None:
        """Return the toolkit's row; if pip may install newer versions, the row of the newest version."""
        name, brought = self._accelerator.toolkit, self._brought
        if brought is None or brought.exact:
            return self.knowledge.toolkit(name, self._version)
        below = [row for row in self.knowledge.toolkits_of(name) if _is_below(row.version, brought)]
        return below[-1] if below else None

    def _run_time(self) -> Iterator[str]:
        """Yield that XLA ignores the GPU, or that the toolkit, on which XLA relies, does not compile for it."""
        release, row = self.facts.release, self._toolkit()
        if self.facts.xla and release and not reaches(self._accelerator, self.gpu.target, release.xla_floor):
            yield f"XLA ignores this GPU: it uses no GPU below {release.xla_floor[self._accelerator.accelerator]}"
        if row is None or not self._accelerator.capabilities:
            return
        number = Capability.of_gpu(self.gpu.target).number
        name = f"{self._accelerator.title} {row.version}"
        origin = "comes with the wheel" if self._brought else "the wheel is made with"
        compiler = self.facts.runtime_compiler if self.facts.xla else None
        asked = compiler.targets.get(self.gpu.target, number) if compiler else number
        # XLA compiles at run time with the installed toolkit, so the toolkit's age matters too.
        if number not in row.targets:
            # If the toolkit is not too old, it has dropped the GPU: CUDA 13 compiles for nothing below 7.5.
            newer = all(int(target.rstrip("af")) < int(number) for target in row.targets)
            how = "is older than this GPU" if newer else "does not compile for it"
            then = f"{compiler.compiler} {compiler.failing}; its" if compiler else "its"
            yield f"{name}, which {origin}, {how}: {then} libraries may fail"
        elif compiler and asked not in row.targets:
            yield f"{compiler.compiler} {compiler.failing}: {name}, which {origin}, does not know sm_{asked}"
        elif compiler and (built := self._too_old_build(compiler, asked)):
            yield (
                f"{compiler.compiler} {compiler.failing}: the wheel was compiled with {built}, which does not know "
                f"sm_{asked}, and {compiler.compiler} supports no newer one with any toolkit"
            )
        elif compiler:
            yield from self._doubts(compiler)

    def _too_old_build(self, compiler: RuntimeCompiler, asked: str) -> str:
        """Return the toolkit that compiled the wheel, if it limits run time and does not know the name `asked`."""
        version = self.facts.built.get(self._accelerator.toolkit, "")
        row = self.knowledge.toolkit(self._accelerator.toolkit, version)
        is_limit = compiler.limited_by_build and row is not None and asked not in row.targets
        return f"{self._accelerator.title} {version}" if is_limit else ""

    def _doubts(self, compiler: RuntimeCompiler) -> Iterator[str]:
        if self._brought and not self._brought.exact:
            return  # pip installs the newest version, which has no such doubts
        for doubt in compiler.doubts:
            # pip knows the assembler's own version; a wheel names only the toolkit's version.
            below = Version(doubt.below if self._brought else doubt.below_toolkit)
            reached = Capability.of_gpu(self.gpu.target) >= Capability.of_gpu(doubt.lowest)
            if reached and Version(doubt.since) <= Version(self._version) < below:
                yield doubt.limit

    # --- libraries --------------------------------------------------------------------------------------------------

    def _library(self, component: str) -> tuple[str, str]:
        """Return (limit, pin): a library lacks code for the GPU, and which version has it; each may be empty."""
        brought, title = self.facts.brought.get(component), self._accelerator.title_of(component)
        version = self.facts.version_of(component)
        if not self._accelerator.capabilities or not (version or brought):
            return "", ""
        rows = [row for row in self.knowledge.libraries if row.component == component and self._made_for(row)]
        if brought and not brought.exact:
            return self._newest_of(rows, title, brought)
        held = libraries(self.knowledge, component, version)
        serving = [row for row in held if self._serves(row)]
        if serving:
            return "" if brought else self._some_of(held, serving, title, version), ""
        return self._too_old(rows, title, version) if held else "", ""

    def _too_old(self, rows: Sequence[LibraryRow], title: str, version: str) -> str:
        # TensorFlow takes any newer minor version of the major version it was built with.
        built, serving = Version(version), (Version(row.since) for row in rows if self._serves(row))
        newer = min((since for since in serving if since > built and since.parts[0] == built.parts[0]), default=None)
        way = f"; {title} {newer} or newer has it" if newer else ""
        return f"{title} {version}, which the wheel uses, has no code for {self.gpu.target}{way}"

    def _some_of(self, held: Sequence[LibraryRow], serving: Sequence[LibraryRow], title: str, version: str) -> str:
        """Return the limit of a wheel that names only a major version (`9`); empty if every 9.x has code."""
        every, able = (sorted({Version(row.since) for row in rows}) for rows in (held, serving))
        # A range can have two ends: cuDNN 9 has code for Blackwell from 9.7 on, and for Volta before 9.11.
        later = [since for since in every if since > able[-1]]
        words = [f"{able[0]} or newer"] if able[0] != every[0] else []
        words += [f"older than {later[0]}"] if later else []
        wanted = f"must be {' and '.join(words)}, to have code for {self.gpu.target}"
        return f"the {title} {version} that is installed {wanted}" if words else ""

    def _newest_of(self, rows: Sequence[LibraryRow], title: str, brought: RequiredPackage) -> tuple[str, str]:
        """Return the limit if pip installs the newest library, which has dropped the GPU, and pin an older one."""
        below = (row for row in rows if _is_below(row.since, brought))
        order = sorted(below, key=lambda row: Version(row.since))
        if not order or any(self._serves(row) for row in order if row.since == order[-1].since):
            return "", ""
        # A pin below what the wheel itself requires could not be installed. `until: 9.10` includes all its patches.
        ends = [(row, Version(f"{row.until or row.since}.999999")) for row in order if self._serves(row)]
        fitting = [row for row, end in ends if Version(brought.oldest) < end]
        later = [row.since for row in order if fitting and Version(row.since) > Version(fitting[-1].since)]
        pin = f"{brought.package}<{later[0]}" if later else ""
        way = f"; install `{pin}` with it" if pin else ""
        return f"pip takes the newest {title}, which has no code for {self.gpu.target}{way}", pin

    def _made_for(self, row: LibraryRow) -> bool:
        # Packages are built for a major version, and work with all its minor versions.
        major = Version(self._version).parts[:1]
        return not row.toolkits or any(Version(toolkit).parts[:1] == major for toolkit in row.toolkits)

    def _serves(self, row: LibraryRow) -> bool:
        return has_code_for(row, self._accelerator, self.gpu.target)

    # --- drivers --------------------------------------------------------------------------------------------------

    def driver(self) -> str:
        """Return why no driver runs the wheel, or why this machine's driver does not; empty if there is no reason."""
        for floor in self._floors:
            # Kepler ends with driver 470, and CUDA 12 needs 525: no driver runs both.
            if self._last_driver and not floor.soft and floor.version.parts[0] > int(self._last_driver):
                last = f"{self._last_driver} was the last driver for this GPU"
                return f"{floor.why} needs driver {floor.version}, and {last}"
        here, least = self._here(), self._least
        if not here or not least or here >= least.version:
            return ""
        # `unless` names the systems on which an older driver also runs the wheel.
        unless = f" ({least.unless})" if least.unless else ""
        mine = f"this machine's driver {here}{self._of_windows()}"
        return f"{mine} is too old: {least.why} needs {least.version} or newer{unless}"

    def of_driver(self) -> Iterator[str]:
        """Yield sentences on the oldest driver that runs everything, and the last driver for the GPU."""
        here = self._here()
        if trouble := self.host.troubles.get(self.gpu.accelerator):
            yield f"this machine's driver does not answer: {trouble}"
        # Soft: each generated kernel is loaded at its first use, so the rest still works.
        for floor in self._floors:
            if floor.soft and here and here < floor.version:
                symptom = self._symptom("ptx-too-new")
                yield f"this machine's driver {here} is too old for {floor.why}: they fail{symptom}"
        if self._least is None:
            return
        least = self._least.version
        above = (floor for floor in self._floors if floor.version > least)
        higher = dict.fromkeys(f"; {floor.version} or newer for {floor.why}" for floor in above)
        is_open = needs_open_modules(self.knowledge, self.gpu.accelerator, self.gpu.target, self.gpu.gpu)
        end = " with the open kernel modules" if is_open and not self.host.wsl else ""
        end += f", and {self._last_driver} is the last driver that knows this GPU" if self._last_driver else ""
        mine = f"; this machine has {here}" if here else ""
        yield f"driver {least}{self._of_windows()} or newer{end}{''.join(higher)}{mine}"

    @property
    def _last_driver(self) -> str | None:
        """The branch of the last drivers that know the GPU, such as `470`."""
        family = architecture_of(self.knowledge, self.gpu.accelerator, self.gpu.target)
        return family.driver_max if family else None

    @cached_property
    def _floors(self) -> tuple[_Floor, ...]:
        """The oldest drivers for the wheel's code on the GPU; none without such code."""
        # NVIDIA's tables do not hold for embedded GPUs: their driver comes with the board's system.
        if not self.combined.parts or is_embedded(self.knowledge, self.gpu.accelerator, self.gpu.target):
            return ()
        own, kernels = self.facts.own, self.combined.verdict
        oldest = gpu_driver(self.knowledge, self.gpu.accelerator, self.gpu.target, self.gpu.gpu, wsl=self.host.wsl)
        floors = [self._of_toolkit(), _Floor(version=oldest, why=f"a GPU of {self.gpu.target}") if oldest else None]
        if kernels.runs == "ptx-jit":
            floors.append(self._of_ptx(kernels.by, [library.loadable for library in own], "its kernels"))
        for _, how in self._generated:
            if how.runs == "ptx-jit":
                codes = [library.embedded for library in own if library.embedded]
                floors.append(self._of_ptx(how.by, codes, "the kernels that MLIR generated", soft=True))
        return tuple(floor for floor in floors if floor)

    @property
    def _least(self) -> _Floor | None:
        """The floor below which nothing of the wheel runs; None if it is not known."""
        return max((floor for floor in self._floors if not floor.soft), key=lambda one: one.version, default=None)

    def _of_toolkit(self) -> _Floor | None:
        """Return the driver that the toolkit's own runtime needs."""
        name, version = self._accelerator.toolkit, Version(self._version)
        floor = toolkit_floor(self.knowledge, name, version, wsl=self.host.wsl)
        if floor is None:
            return None
        row = self.knowledge.drivers.get((name, str(version.parts[0])))
        # `unless`: on data-centre GPUs the cuda-compat packages run a newer toolkit with an older driver.
        made = f"{self._accelerator.title} {version}, which the wheel is made with,"
        return _Floor(version=floor, why=made, unless=(row.unless if row else None) or "")

    def _of_ptx(self, by: str, codes: Sequence[GpuCode], whose: str, *, soft: bool = False) -> _Floor | None:
        """Return the first driver that supports the PTX: the driver of the first toolkit with this PTX.

        PTX of unknown version counts as PTX of the wheel's toolkit.
        """
        images = (image for code in codes for image in code.images if image.kind == "ptx" and image.target == by)
        # The newest PTX decides, because the driver must know all PTX of the code.
        isa = max((image.isa for image in images), key=isa_order, default="")
        name = self._accelerator.toolkit
        own = self.knowledge.toolkit(name, self._version)
        # A driver takes PTX up to the ISA of the toolkit that it came with.
        row = toolkit_of_ptx(self.knowledge, name, Version(isa)) if isa else own
        floor = own_driver(row, wsl=self.host.wsl) if row else None
        text = f"PTX {isa}" if isa else "the PTX"
        return _Floor(version=floor, why=f"{text} of {whose}", soft=soft) if floor else None

    def _of_windows(self) -> str:
        return " of Windows" if self.host.wsl else ""

    def _here(self) -> Version | None:
        text = self.host.drivers.get(self.gpu.accelerator)
        return Version(text) if text else None


def _generated_by_mlir(held: Containers) -> str:
    return f"{held.count} kernel{'s' * (held.count > 1)} that MLIR generated (Add, Mul, Cast and their like)"


def _whom(image: Capability) -> str:
    return f"the family of {image.dotted}" if image.suffix == "f" else image.dotted


def _is_below(version: str, brought: RequiredPackage) -> bool:
    """Return whether a version is below the first one that a requirement excludes."""
    return not brought.before or Version(version) < Version(brought.before)


def _count(parts: Iterable[CodePart], path: str) -> int:
    return sum(part.held.count for part in parts if part.path == path)
