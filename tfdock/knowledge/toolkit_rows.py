"""Rows about toolkits, their drivers and libraries, and the compilers beside them. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfdock.knowledge.rows import AcceleratorTable, Dotted, ReleaseRange, Row, RowPart, can_read, template_with
from tfdock.types import Capability


class Toolkit(Row):
    """A minor version of an accelerator's toolkit (CUDA 12.5, ROCm 6.2) and the targets it compiles for.

    `host_compilers_max` is the newest major version of each C++ compiler that its own compiler drives.
    """

    KEY = ("toolkit", "version")

    toolkit: str
    version: str
    patches: tuple[str, ...] = ()
    targets: tuple[str, ...]
    ptx: str | None = None
    host_compilers_max: dict[str, int] = Field(default_factory=dict)
    driver_linux: str | None = None
    driver_windows: str | None = None

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the targets that should be the number of a capability but are not."""
        families = [row for row in known.accelerators.values() if row.capabilities and row.toolkit == self.toolkit]
        wrong = [target for target in self.targets if families and not can_read(Capability.parse, f"sm_{target}")]
        return ("targets", f"`{wrong[0]}` is not the number of a compute capability (`86`)") if wrong else None


class Driver(Row):
    """The oldest driver that runs what a toolkit compiled: `version` is a major version, whose minor versions share
    it (`12`). `windows` is the one WSL2 shows; `unless` says where an older one will do all the same."""

    KEY = ("toolkit", "version")

    toolkit: str
    version: str
    linux: str
    windows: str | None = None
    unless: str | None = None


class LibraryRow(Row):
    """A range of versions of a component that is a library of GPU code (cuDNN): what it runs on, and with.

    `since` and `until` are inclusive, by their written parts (`9.10` holds for 9.10.2). `lowest` and `highest` are
    the GPUs it has code for; `toolkits` the toolkit versions, by prefix, it is made for; `patches` its full versions.
    """

    # One version of cuDNN comes in packages for several toolkits, with code for different GPUs.
    KEY = ("component", "since", "toolkits")

    component: str
    since: str
    until: str | None = None
    toolkits: tuple[str, ...] = ()
    lowest: Dotted | None = None
    highest: Dotted | None = None
    patches: tuple[str, ...] = ()


class Redistributable(Row):
    """The download of a closed-source component version: the address and the sha256 of the list of its archives."""

    KEY = ("component", "version")

    component: str
    version: str
    url: str
    sha256: str


class Compiler(Row):
    """A compiler that can compile GPU code itself: its targets and its newest PTX ISA."""

    KEY = ("compiler", "version")

    compiler: str
    version: str
    targets: tuple[str, ...]
    ptx: str | None = None
    toolkit_max: str | None = None


class PackagedCompiler(Row):
    """A C++ compiler as Debian and Ubuntu package it, from version `since` on up to its next row.

    `path` is where it stands, and `package` what brings it, with `{major}` and `{minor}` of its version. `symptoms`
    maps the code of a refusal to what would be seen without it.
    """

    KEY = ("compiler", "since")

    compiler: str
    since: str
    path: Annotated[str, template_with("major", "minor")]
    package: Annotated[str, template_with("major", "minor")] = ""
    symptoms: dict[str, str] = Field(default_factory=dict)


class RuntimeToolkit(Row):
    """The programs of a toolkit that releases call at run time, as Python packages have them.

    `packages` are lines for pip by the toolkit's major version. `package` holds a whole toolkit: it has the toolkit's
    version, and an extra for each part. `published` are its minor versions. `extras` are wanted beside
    the extras of the libraries, by major version. The folder that the packages make has the file `marker` in it;
    releases find it in the folders `searched` beside their own package, and else where `setting` says (`{folder}`).
    """

    KEY = ("accelerator", "releases")

    accelerator: str
    releases: ReleaseRange
    packages: dict[str, tuple[str, ...]]
    package: str
    published: tuple[str, ...]
    extras: dict[str, tuple[str, ...]]
    marker: str
    searched: tuple[str, ...] = ()
    setting: dict[str, Annotated[str, template_with("folder")]] = Field(default_factory=dict)


class AssemblerDefect(RowPart):
    """Versions of an assembler that compile, and not as they should: `limit` says what.

    They go from `since` to before `below`, or before `below_toolkit` where only the toolkit's version is known, and
    it is about GPUs from `lowest` on.
    """

    since: str
    below: str
    below_toolkit: str
    lowest: Dotted
    limit: str


class RuntimeCompiler(Row):
    """How releases compile kernels at run time (XLA), by the assembler of the toolkit that they find.

    `targets` are the names it asks that for, where they are not the GPUs' own numbers (`9.0` -> `90a`). Toolkits
    below `toolkit_min` and the assembler's versions `refused` it does not take; `failing` says what it does then, and
    where the toolkit does not know the name. `limited_by_build`: the toolkit that a release was compiled with must
    know the name as well. `bitcode` is a file of the toolkit without which it compiles nothing.
    """

    KEY = ("compiler", "accelerator", "releases")

    compiler: str
    accelerator: str
    releases: ReleaseRange
    targets: dict[Dotted, str] = Field(default_factory=dict)
    limited_by_build: bool = False
    bitcode: str = ""
    toolkit_min: str | None = None
    # A version with a known defect may lie between versions that work.
    refused: tuple[str, ...] = ()
    failing: str
    doubts: tuple[AssemblerDefect, ...] = ()
