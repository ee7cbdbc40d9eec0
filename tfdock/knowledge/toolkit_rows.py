"""Rows about toolkits, their drivers and libraries, and the compilers beside them. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfdock.knowledge.rows import AcceleratorTable, Dotted, ReleaseRange, Row, RowPart, can_read, template_with
from tfdock.types import Capability, Version


class Toolkit(Row):
    """A minor version of an accelerator's toolkit (CUDA 12.5, ROCm 6.2) and the targets it compiles for.

    `host_compilers_max` is the newest major version of each C++ compiler that the toolkit's compiler supports.
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
        """Return the field and the mistake if targets are not numbers of compute capabilities."""
        families = [row for row in known.accelerators.values() if row.capabilities and row.toolkit == self.toolkit]
        wrong = [target for target in self.targets if families and not can_read(Capability.parse, f"sm_{target}")]
        return ("targets", f"`{wrong[0]}` is not the number of a compute capability (`86`)") if wrong else None


class Driver(Row):
    """The oldest driver that runs code of a toolkit.

    `version` is a major version of the toolkit, whose minor versions share the driver (`12`). `windows` is the driver
    for Windows, which WSL2 shows; `unless` says where an older driver is enough.
    """

    KEY = ("toolkit", "version")

    toolkit: str
    version: str
    linux: str
    windows: str | None = None
    unless: str | None = None


class LibraryRow(Row):
    """A range of versions of a component that is a library of GPU code (cuDNN), with its GPUs and toolkits.

    `since` and `until` are inclusive, by their written parts (`9.10` holds for 9.10.2). `lowest` and `highest` are
    the first and last GPU that it has code for; `toolkits` are prefixes of the toolkit versions that it is made for;
    `patches` are its full versions.
    """

    # One version of cuDNN has packages for several toolkits, with code for different GPUs.
    KEY = ("component", "since", "toolkits")

    component: str
    since: str
    until: str | None = None
    toolkits: tuple[str, ...] = ()
    lowest: Dotted | None = None
    highest: Dotted | None = None
    patches: tuple[str, ...] = ()


class Redistributable(Row):
    """The list of a closed-source component's archives, for one version: the list's address and sha256."""

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
    """A C++ compiler as Debian and Ubuntu package it, for versions from `since` up to the compiler's next row.

    `path` is its path, and `package` the package that contains it, with `{major}` and `{minor}` of its version.
    `symptoms` maps the code of a refusal to the failure that would happen without it.
    """

    KEY = ("compiler", "since")

    compiler: str
    since: str
    path: Annotated[str, template_with("major", "minor")]
    package: Annotated[str, template_with("major", "minor")] = ""
    symptoms: dict[str, str] = Field(default_factory=dict)

    def with_version(self, text: str, version: str) -> str:
        """Return `path` or `package` with the numbers of a version."""
        major, minor, *_ = (*Version(version).parts, 0)
        return text.format_map({"major": major, "minor": minor})


class RuntimeToolkit(Row):
    """The programs of a toolkit that releases call at run time, as Python packages.

    `packages` are lines for pip, by the toolkit's major version. `package` is a package for the whole toolkit: it has
    the toolkit's version, and an extra for each part. `published` are its minor versions. By major version, `extras`
    are needed in addition to the libraries' extras. The packages make a folder that contains the file `marker`.
    Releases search for it in the folders `searched` beside their own package, or at the place that `setting` names
    (`{folder}`).
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
    """Versions of an assembler that produce wrong code: `limit` describes the fault.

    The versions go from `since` to before `below` (or before `below_toolkit`, if only the toolkit's version is
    known). The fault affects GPUs from `lowest` on.
    """

    since: str
    below: str
    below_toolkit: str
    lowest: Dotted
    limit: str


class RuntimeCompiler(Row):
    """How releases compile kernels at run time (XLA), with the assembler of the toolkit that they find.

    `targets` are the names that XLA passes to the assembler, if they are not the GPUs' own numbers (`9.0` -> `90a`).
    `failing` says what XLA does with a toolkit that does not know the name. `limited_by_build`: the toolkit that
    compiled the release must know the name too. `bitcode` is a file of the toolkit that XLA needs to compile.
    """

    KEY = ("compiler", "accelerator", "releases")

    compiler: str
    accelerator: str
    releases: ReleaseRange
    targets: dict[Dotted, str] = Field(default_factory=dict)
    limited_by_build: bool = False
    bitcode: str = ""
    failing: str
    doubts: tuple[AssemblerDefect, ...] = ()
