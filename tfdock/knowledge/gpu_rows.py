"""Rows about GPUs: generations and products. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from tfdock.knowledge.evidence_rows import Span, spans
from tfdock.knowledge.rows import AcceleratorTable, Branch, Driver, ReleaseRange, Row, Template, not_of


def _by_target(drivers: object) -> object:
    """Return one driver as the driver of every target: "" is any."""
    return {"": drivers} if isinstance(drivers, str) else drivers


class Architecture(Row):
    """A generation of GPUs and its targets. `embedded` targets run only their own code, which no other GPU runs.

    `driver_min` is the first driver, or the first driver of each target; `driver_later` maps a newer driver to the
    GPUs that need it; `driver_max` is the last branch (`470`). `open_modules` are targets and GPUs that need the open
    kernel modules. `integrated` are targets of GPUs inside a CPU; such a machine often has a graphics card too.
    `machine` is the CPU beside the embedded GPUs. `examples` are well-known GPUs of the targets (`8.6: rtx3080`),
    `also` other names of the generation.
    """

    KEY = ("architecture",)

    architecture: str
    accelerator: str
    targets: tuple[str, ...]
    also: tuple[str, ...] = ()
    embedded: tuple[str, ...] = ()
    integrated: tuple[str, ...] = ()
    examples: dict[str, str] = Field(default_factory=dict)
    machine: str | None = None
    driver_min: Annotated[dict[str, Driver], BeforeValidator(_by_target)] = Field(default_factory=dict)
    driver_later: dict[Driver, tuple[str, ...]] = Field(default_factory=dict)
    driver_max: Branch | None = None
    open_modules: tuple[str, ...] = ()

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if the accelerator is unknown, or if no GPU of it has a target."""
        row = known.accelerators.get(self.accelerator)
        return not_of(row, "targets", self.targets) or not_of(row, "embedded", self.embedded)


class Gpu(Row):
    """A product. `target` is the compute capability (`8.6`) or gfx target; `names` are the names that drivers print.

    `machine` is the kind of CPU that it is sold with, if there is only one (`aarch64`). `toolkit_max` is the newest
    toolkit of a board's last system, if the target itself has newer toolkits.
    """

    KEY = ("gpu",)

    gpu: str
    accelerator: str
    target: str
    names: tuple[str, ...] = ()
    memory_gib: float | None = None
    machine: str | None = None
    toolkit_max: str | None = None

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if the accelerator is unknown, or if no GPU of it has a target."""
        return not_of(known.accelerators.get(self.accelerator), "target", (self.target,))


class OtherDevice(Row):
    """A device or system, by the `words` with which users name it. Without `linux`, tfdock builds no wheel for it.

    `official` are the releases with official wheels, if any, for Pythons from `python_min` on; `lacking` are patch
    releases without such a wheel; `wheels` gives the CUDA code of these wheels by release. `runs` names the
    accelerators of published builds that run there, besides the CPU; `windows_driver` means that the driver is that
    of Windows. `within` are devices that name the same machine less exactly: a Mac with an M chip is a Mac. `says` is
    a sentence about the wheels, `instead` a sentence about alternatives. `condition` is, by release, what the wheels
    need that not every such device has. `by_release` are facts by release; `{first}` in a sentence is the
    release's first patch version. `least` are the oldest versions of the system for the wheels of releases.
    `by_system` says what a topic is on a system, by its `device`, if the wheel for Python is no answer there. `also`
    are other names for versions of a part: `l4t 32.7.1` is `jetpack 4.6.1`. `quote` is the quote of its shell.
    """

    KEY = ("device",)

    device: str
    words: str
    official: Span | None = None
    python_min: str = "2.7"
    lacking: tuple[str, ...] = ()
    wheels: dict[Span, tuple[str, ...]] = Field(default_factory=dict)
    linux: bool = False
    runs: dict[str, str] = Field(default_factory=dict)
    windows_driver: bool = False
    within: tuple[str, ...] = ()
    condition: dict[Span, str] = Field(default_factory=dict)
    says: str
    instead: str
    by_release: dict[Span, str] = Field(default_factory=dict)
    least: dict[Span, str] = Field(default_factory=dict)
    by_system: dict[str, str] = Field(default_factory=dict)
    also: dict[str, str] = Field(default_factory=dict)
    quote: str = "'"

    def condition_of(self, release: str) -> str:
        """Return what the wheels of a release need that not every such device has; empty if nothing is known."""
        return next((text for span, text in self.condition.items() if spans(span, release)), "")


class PublishedBuild(Row):
    """A published wheel or image of TensorFlow beside the official wheels of the releases.

    `build` names it in a sentence, `get` is the command that installs it. `targets` are the GPUs that it has code
    for, if it is not for all that its release uses. `system` is what it runs on, if not on any Linux; `machines` are
    its CPUs.
    """

    KEY = ("build", "tensorflow")

    build: str
    accelerator: str
    targets: tuple[str, ...] = ()
    tensorflow: str
    pythons: tuple[str, ...]
    components: dict[str, str] = Field(default_factory=dict)
    system: str = ""
    machines: tuple[str, ...] = ("x86_64",)
    get: str

    def is_for(self, system: str, version: str) -> bool:
        """Return whether `build` names the minor version of a board's system: `jetpack`, and `4.6` of `4.6.2`."""
        return f"{system} {'.'.join(version.split('.')[:2])}" in self.build.lower()

    @property
    def parts(self) -> str:
        """For people: `Python 3.6; CUDA 10.2; cuDNN 8.0`."""
        versions = {"Python": ", ".join(self.pythons), **self.components}
        return "; ".join(f"{name} {version}" for name, version in versions.items())

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return an accelerator without a row, or a target that none of its GPUs has."""
        return not_of(known.accelerators.get(self.accelerator), "targets", self.targets)


class TargetReport(Row):
    """A report of users or the vendor about a target without a toolkit's row. This project has not tried it.

    `setting` (`HSA_OVERRIDE_GFX_VERSION=10.3.0`) makes such GPUs run code for `runs_as`; `works` is whether the
    setting helps. `says` is a sentence; for a setting, the GPU or ROCm with which it was tried.
    """

    KEY = ("accelerator", "target", "setting", "works")

    accelerator: str
    target: str
    setting: str = ""
    runs_as: str = ""
    works: bool = True
    says: str

    @property
    def sentence(self) -> str:
        """The report as a sentence, with its grade."""
        doubt = "probably (nobody has checked it): " if self.unverified else ""
        if not self.setting:
            return f"{doubt}{self.says}"
        does = f"makes {self.target} run code for {self.runs_as}" if self.works else f"does harm on {self.target}"
        does = f"works on {self.target}" if self.runs_as == self.target else does
        return f"{doubt}users report that `{self.setting}` {does} ({self.says})"

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if the accelerator is unknown, or if no GPU of it has a target."""
        targets = [target for target in (self.target, self.runs_as) if target]
        return not_of(known.accelerators.get(self.accelerator), "target", targets)


def is_in_repository(address: str, repository: str) -> bool:
    """Return whether an address, in any spelling, is a repository (`https://github.com/a/b`) or a file in it."""
    web = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", address.lower())
    web = re.sub(r"^https?://(?:www\.)?", "https://", web)
    return f"{web.rstrip('/').removesuffix('.git')}/".startswith(f"{repository.lower().removesuffix('.git')}/")


class Fork(Row):
    """The fork of TensorFlow that tfdock builds for an accelerator, and that the tables of releases describe.

    `ref` is its branch for a release (`{release}`: `2.17`). `targets` are the targets that its `releases` use in
    addition to TensorFlow's own targets.
    """

    KEY = ("git", "releases", "accelerator")

    git: str
    ref: Template
    accelerator: str
    releases: ReleaseRange
    targets: tuple[str, ...] = ()

    def has(self, address: str) -> bool:
        """Return whether an address, in any spelling, is the fork's repository or a file in the repository."""
        return is_in_repository(address, self.git)

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if the accelerator is unknown, or if no GPU of it has a target."""
        return not_of(known.accelerators.get(self.accelerator), "targets", self.targets)
