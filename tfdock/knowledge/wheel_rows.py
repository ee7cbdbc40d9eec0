"""Rows about wheels: the parts that come with them, their trials, and the services that accept them. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, model_validator

from tfdock.knowledge.rows import (
    AcceleratorTable,
    Expression,
    ReleaseRange,
    Requirement,
    Row,
    not_of,
    template_with,
    text_like,
)

# No `..` and no leading slash, because the file must be below `dockerfiles/verify/`.
Script = Annotated[str, text_like(re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*\.py\Z"), "script (`tf2/op.py`)")]


class Companion(Row):
    """A library that comes with a release's official wheel and limits the GPUs that the wheel serves.

    pip installs the library beside the wheel (`package`, for the wheel's `extra`), or it is linked into the wheel.
    `version` is its exact version; with `before`, its oldest possible version, because pip installs the newest below
    `before`. `carries: wheel`: it is compiled only for the wheel's SASS targets. `pythons`, if given, are all Pythons
    that it can be installed with. `wheels`, if given, are the wheels that the row is about
    (`tensorflow-rocm==2.14.0.600`), whatever their code. `ignores` are targets of GPUs that these wheels do not use;
    `limit` says why. `unsearched` is the folder of the package's libraries, if the wheel does not search it.
    """

    KEY = ("component", "accelerator", "releases", "package")

    component: str
    accelerator: str
    releases: ReleaseRange
    extra: str | None = None
    package: str | None = None
    version: str | None = None
    before: str | None = None
    carries: str | None = None
    pythons: tuple[str, ...] = ()
    limit: str | None = None
    unsearched: str | None = None
    wheels: tuple[Requirement, ...] = ()
    ignores: tuple[str, ...] = ()

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if GPUs are of another accelerator, or ignored GPUs have no reason."""
        if not self.ignores:
            return None
        if not self.limit:
            return "ignores", "`limit` must give the reason"
        return not_of(known.accelerators.get(self.accelerator), "ignores", self.ignores)


class GeneratedKernels(Row):
    """The kernels that MLIR generates for a release's official wheel. They are outside the sections of GPU code.

    `targets` are their images (`sm_60`; `compute_90a` is PTX alone), `isa` is the ISA of the PTX, `count` the number
    of containers.
    """

    KEY = ("accelerator", "releases")

    accelerator: str
    releases: ReleaseRange
    targets: tuple[str, ...]
    isa: str | None = None
    count: int

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if a target is not the accelerator's."""
        row = known.accelerators.get(self.accelerator)
        wrong = [target for target in self.targets if not row or not row.lists(target)]
        return ("targets", f"`{wrong[0]}` is not a target of {self.accelerator}") if wrong else None


class RuntimeLibrary(Row):
    """A library that TensorFlow opens by its name at run time, or links in old releases.

    The row is for wheels built with `version` of a component, or with a more exact version. If several rows with one
    `name` match, the most exact row is used. `package` is its package on PyPI (`{major}`: of the toolkit), with the
    library in `folder` below site-packages. `use` is its purpose, if GPUs work without this library. `extra` is the
    extra of the toolkit's own package (`RuntimeToolkit.package`) that contains it, and `published` are the minor
    versions on PyPI, by the toolkit's major version. With `numbered`, the package has the toolkit's version.
    """

    KEY = ("name", "accelerator", "component", "version")

    name: str
    accelerator: str
    component: str
    version: str = ""
    library: str
    releases: ReleaseRange = "1.4.."
    package: Annotated[str, template_with("major")] | None = None
    folder: str | None = None
    extra: str | None = None
    numbered: bool = False
    published: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    use: str | None = None


class WheelLibrary(Row):
    """Which libraries of a wheel are TensorFlow's own: `paths` matches the whole path of a member.

    The first row that matches counts; a library without a matching row is TensorFlow's own. `packages` matches the
    packages of PyPI that contain such libraries. If `paths` has a group `choice`, the wheel loads only the libraries
    of one choice.
    """

    paths: Expression
    own: bool = False
    packages: Expression | None = None
    what: str


class RequirementLimit(Row):
    """A package without which wheels of these releases cannot be imported.

    With a version outside of `limit` (`<3.21`) the import fails too, with the message `says`. Without a limit, no
    version is known to break the wheels. `unstated`: the wheels' METADATA lacks the limit.
    """

    KEY = ("package", "releases")

    package: Annotated[str, text_like(re.compile(r"[a-z0-9][a-z0-9._-]*\Z"), "package")]
    releases: ReleaseRange
    limit: Annotated[str, text_like(re.compile(r"(<|<=|>=|!=)[0-9][0-9A-Za-z.]*\Z"), "limit (`<3.21`)")] | None = None
    unstated: bool = False
    says: str = ""


class Probe(Row):
    """How one check tries a wheel of these releases: with a script from `dockerfiles/verify/`.

    If several rows fit a check and a release, an overlay's row is used, else the first. `seconds` is the time limit.
    `environment` may contain `{scratch}`, an empty folder for this check. `gpu`: the check needs a GPU of one of
    `accelerators`. `absent` replaces the script and says why there is nothing to try.
    """

    check: str
    releases: ReleaseRange
    script: Script | None = None
    absent: str | None = None
    seconds: int = 300
    environment: dict[str, Annotated[str, template_with("scratch")]] = Field(default_factory=dict)
    gpu: bool = False
    accelerators: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _does_or_says_why_not(self) -> Self:
        # A skipped check without a reason would look like a passed check.
        if (self.script is None) == (self.absent is None):
            raise ValueError("a row has either a `script` or says why there is none: `absent`")
        return self


class SizeLimit(Row):
    """The largest file that a service for wheels accepts: `mib` mebibytes."""

    KEY = ("limit",)

    limit: str
    mib: Annotated[int, Field(gt=0)]


class BenchOperation(Row):
    """What `bench` measures: a program of `dockerfiles/bench/worker.py`, and the program's arguments (`sizes`)."""

    KEY = ("operation",)

    suite: str = "operations"
    operation: str
    program: str
    sizes: tuple[Annotated[int, Field(gt=0)], ...]
    once: bool = False  #: Whether only the first call in a process is measured, instead of many calls.


class SlowCause(Row):
    """Why a program is slow. The row applies if the figures of the trace are within `at_least` and `at_most`.

    The row does not apply if a cause in `unless` was found before. `says` and `advice` may contain any figure in
    braces. `is_fault`: the program does something wrong or useless; else the row only says where time is spent.
    """

    KEY = ("cause",)

    cause: str
    at_least: dict[str, float] = Field(default_factory=dict)
    at_most: dict[str, float] = Field(default_factory=dict)
    unless: frozenset[str] = frozenset()
    is_fault: bool = True
    says: str
    advice: str
