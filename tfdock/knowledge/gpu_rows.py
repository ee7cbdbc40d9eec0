"""Rows about GPUs: generations and products. Pure."""

from __future__ import annotations

from pydantic import Field

from tfdock.knowledge.rows import AcceleratorTable, Branch, Row, not_of


class Architecture(Row):
    """A generation of GPUs and its targets (`8.6`). `embedded` targets run their own code only, and only there.

    `driver_min` and `driver_max` are driver branches (`570`); `machine` is the CPU of the embedded ones. `examples`
    are GPUs that people know the targets by (`8.6: rtx3080`).
    """

    KEY = ("architecture",)

    architecture: str
    accelerator: str
    targets: tuple[str, ...]
    embedded: tuple[str, ...] = ()
    examples: dict[str, str] = Field(default_factory=dict)
    machine: str | None = None
    driver_min: Branch | None = None
    driver_max: Branch | None = None

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return an accelerator without a row, or targets that no GPU of it has."""
        row = known.accelerators.get(self.accelerator)
        return not_of(row, "targets", self.targets) or not_of(row, "embedded", self.embedded)


class Gpu(Row):
    """A product. `target` is the compute capability (`8.6`) or gfx target; `names` as the driver prints them.

    `machine` is the CPU beside it, where it is sold with one only (`aarch64`).
    """

    KEY = ("gpu",)

    gpu: str
    accelerator: str
    target: str
    names: tuple[str, ...] = ()
    memory_gib: float | None = None
    machine: str | None = None

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return an accelerator without a row, or a target that no GPU of it has."""
        return not_of(known.accelerators.get(self.accelerator), "target", (self.target,))
