"""Which driver a wheel needs on a GPU, whether there is one, and whether this machine has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfdock.gpu.devices import architecture_of, is_embedded
from tfdock.gpu.evidence import Evidence
from tfdock.gpu.verdict import Verdict
from tfdock.knowledge.fits import own_driver, toolkit_floor, toolkit_of_ptx
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Host, Version
from tfdock.wheel.facts import GpuCode, isa_order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Floor:
    """The oldest driver that `why` needs; without what is `soft` most works all the same."""

    version: Version
    why: str
    soft: bool = False
    unless: str = ""


class Drivers:
    """The drivers for a wheel on a GPU that has code for it.

    `found` is how its kernels run, `generated` how those that MLIR generated do; `host` is the machine the GPU is in,
    where that is known. NVIDIA's tables do not hold for embedded GPUs, whose driver comes with the board's system.
    """

    def __init__(
        self,
        knowledge: KnowledgeBase,
        gpu: Gpu,
        evidence: Evidence,
        found: Verdict,
        generated: Iterable[Verdict],
        host: Host | None,
    ) -> None:
        self._knowledge, self._evidence, self._host = knowledge, evidence, host
        self._accelerator: Accelerator = knowledge.accelerators[gpu.accelerator]
        self._target = gpu.target.partition(":")[0]
        self._family = architecture_of(knowledge, gpu.accelerator, self._target)
        embedded = is_embedded(knowledge, gpu.accelerator, self._target)
        self._floors = () if embedded else tuple(self._all_floors(found, generated))

    def against(self) -> str:
        """Why no driver runs it there, or not the one of this machine; empty if one does."""
        hard = [floor for floor in self._floors if not floor.soft]
        last = self._family and self._family.driver_max
        for floor in hard:
            if last and floor.version.parts[0] > int(last):
                return f"{floor.why} needs driver {floor.version}, and {last} was the last for this GPU"
        here = self._here()
        lacking = max((floor for floor in hard if here and here < floor.version), key=_version, default=None)
        if lacking is None:
            return ""
        unless = f" ({lacking.unless})" if lacking.unless else ""
        mine = f"this machine's driver {here}{self._of_windows()}"
        return f"{mine} is too old: {lacking.why} needs {lacking.version} or newer{unless}"

    def limits(self) -> Iterator[str]:
        """The oldest driver that will do, for everything, and the last that knows the GPU."""
        here = self._here()
        if self._host and self._accelerator.accelerator in self._host.troubles:
            yield f"this machine's driver does not answer: {self._host.troubles[self._accelerator.accelerator]}"
        for floor in self._floors:
            if floor.soft and here and here < floor.version:
                how = self._accelerator.symptoms.get("ptx-too-new")
                seen = f" with {how}" if how else ""
                yield f"this machine's driver {here} is too old for {floor.why}: they fail{seen}"
        if any(not floor.soft for floor in self._floors):
            yield self._told(here)

    def _told(self, here: Version | None) -> str:
        least = max((floor for floor in self._floors if not floor.soft), key=_version).version
        more = {f"; {one.version} or newer for {one.why}": None for one in self._floors if one.version > least}
        last = self._family and self._family.driver_max
        end = f", and {last} is the last that knows this GPU" if last else ""
        mine = f"; this machine has {here}" if here else ""
        return f"driver {least}{self._of_windows()} or newer{end}{''.join(more)}{mine}"

    # --- floors -----------------------------------------------------------------------------------------------------

    def _all_floors(self, found: Verdict, generated: Iterable[Verdict]) -> Iterator[_Floor]:
        own = self._evidence.own
        floors = [self._of_toolkit(), self._of_gpu()]
        if found.runs == "ptx-jit":
            floors.append(self._of_ptx(found.by, [one.loadable for one in own], "its kernels"))
        for one in generated:
            if one.runs == "ptx-jit":
                held = [library.embedded for library in own if library.embedded]
                floors.append(self._of_ptx(one.by, held, "the kernels that MLIR generated", soft=True))
        return (floor for floor in floors if floor)

    def _of_toolkit(self) -> _Floor | None:
        """What the toolkit's own runtime asks for."""
        name = self._accelerator.toolkit or ""
        version = self._evidence.version_of(name)
        floor = toolkit_floor(self._knowledge, name, Version(version), wsl=self._wsl) if version else None
        if floor is None:
            return None
        row = self._knowledge.drivers.get((name, str(Version(version).parts[0])))
        made = f"{self._accelerator.titles.get(name, name)} {version}, which it is made with,"
        return _Floor(version=floor, why=made, unless=(row.unless if row else None) or "")

    def _of_gpu(self) -> _Floor | None:
        least = self._family and self._family.driver_min
        return _Floor(version=Version(least), why=f"a GPU of {self._target}") if least else None

    def _of_ptx(self, by: str, held: Sequence[GpuCode], whose: str, *, soft: bool = False) -> _Floor | None:
        """What the driver compiles needs one that knows the PTX: that of the first toolkit which did.

        Where the PTX is not known, it is taken for the toolkit's own.
        """
        images = (image for one in held for image in one.images if image.kind == "ptx" and image.target == by)
        isa = max((image.isa for image in images), key=isa_order, default="")
        name = self._accelerator.toolkit or ""
        minor = str(Version(self._evidence.version_of(name)).minor)
        own = self._knowledge.toolkits.get((name, minor))
        row = toolkit_of_ptx(self._knowledge, name, Version(isa)) if isa else own
        floor = own_driver(row, wsl=self._wsl) if row else None
        text = f"PTX {isa}" if isa else "the PTX"
        return _Floor(version=floor, why=f"{text} of {whose}", soft=soft) if floor else None

    # --- this machine -----------------------------------------------------------------------------------------------

    @property
    def _wsl(self) -> bool:
        return self._host is not None and self._host.wsl

    def _of_windows(self) -> str:
        return " of Windows" if self._wsl else ""

    def _here(self) -> Version | None:
        text = self._host.drivers.get(self._accelerator.accelerator) if self._host else None
        return Version(text) if text else None


def _version(floor: _Floor) -> Version:
    return floor.version
