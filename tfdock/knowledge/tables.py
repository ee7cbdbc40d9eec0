"""Knowledge rows: what is known about releases, toolkits, compilers, GPUs, images and accelerators.

Knowledge is data: YAML tables in `tfdock/knowledge/`, each row with its source, checked when it is loaded. Folders
of further rows (overlays) are merged over the shipped ones. Where the rows of a table have a `KEY`, one with the key
of a shipped row takes its place. Rows of the other tables replace none: images, archives and estimates of an overlay
are looked at first, its variables, flags and options of Bazel come last, where they win. Adding a release, a toolkit,
a GPU or an accelerator is adding rows; no code knows a version number.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tfdock.errors import Problem, ProfileError
from tfdock.profile import yaml_nodes
from tfdock.types import TARGET_FIELDS, Capability, ImageRef, Version

if TYPE_CHECKING:
    from tfdock.knowledge.failure_rows import Failure

_MEMORY = "memory"
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?\Z")
"""A Debian package (policy 5.6.1), with an optional `=version`."""
REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*\Z")
"""A Python requirement pinned to one version (PEP 508)."""
_RANGE = re.compile(r"(?P<first>\d+\.\d+)(?P<open>\.\.(?P<last>\d+\.\d+)?)?\Z")


def placeholders(text: str) -> list[str]:
    """The names in braces. Only plain ones: a row may not reach into objects (`{x.__class__}`)."""
    names = []
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is not None and (not re.fullmatch(r"[a-z][a-z0-9_]*", name) or spec or conversion):
            raise ValueError(f"placeholder {{{name}}} is not a plain name")
        names += [] if name is None else [name]
    return names


def _only(text: str, names: Sequence[str]) -> None:
    if unknown := [name for name in placeholders(text) if name not in names]:
        raise ValueError(f"placeholder {{{unknown[0]}}} is unknown here; known: {', '.join(names) or 'none'}")


def _image_name(text: str) -> None:
    placeholders(text)
    ImageRef.parse(re.sub(r"\{\w+\}", "1", text))


def _expression(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


def _target_field(text: str) -> None:
    if text not in TARGET_FIELDS:
        raise ValueError(f"`{text}` is no list of targets in a profile; those are {', '.join(TARGET_FIELDS)}")


def _read_by(read: Callable[[str], object]) -> AfterValidator:
    """Text that `read` takes; its ValueError says what is wrong with it."""

    def checked(text: str) -> str:
        read(text)
        return text

    return AfterValidator(checked)


def _like(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def read(text: str) -> None:
        if not pattern.match(text):
            raise ValueError(f"{text!r} is not a {what}")

    return _read_by(read)


def _with(*names: str) -> AfterValidator:
    """A template of these placeholders only."""
    return _read_by(lambda text: _only(text, names))


Template = Annotated[str, _read_by(placeholders)]
ImageName = Annotated[str, _read_by(_image_name)]
ReleaseRange = Annotated[str, _like(_RANGE, "release or range (`2.18`, `2.3..2.17`, `2.18..`)")]
Expression = Annotated[str, _read_by(_expression)]
Dotted = Annotated[str, _read_by(Capability.of_gpu)]
Branch = Annotated[str, _like(re.compile(r"[0-9]+\Z"), "driver branch (`570`)")]
Package = Annotated[str, _like(PACKAGE, "package")]
Requirement = Annotated[str, _like(REQUIREMENT, "requirement pinned to one version (`numpy==1.26.4`)")]


def in_range(release: str, span: str) -> bool:
    """Whether minor release `2.18` lies in `2.18`, `2.3..2.20` or `2.18..`."""
    match = _RANGE.match(span)
    assert match, span
    first, wanted = Version(match["first"]), Version(release)
    if not match["open"]:
        return wanted.parts == first.parts
    last = Version(match["last"]) if match["last"] else None
    return first <= wanted and (last is None or wanted <= last)


def _holds(prefix: str, version: str) -> bool:
    return version == prefix or version.startswith(f"{prefix}.")


class _Record(BaseModel):
    # Deferred: a command that reads three tables need not prepare the checks of twenty.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class Row(_Record):
    """What every row carries. `checked` is the day (`2026-11-21`) it was compared with its source: the table's own,
    unless the row says another or is from `memory` alone. `unverified` says what nobody has checked. `KEY` are the
    fields that tell the rows of a table apart."""

    KEY: ClassVar[tuple[str, ...]] = ()

    source: tuple[str, ...] | str
    checked: str = ""
    note: str | None = None
    unverified: bool | str = False

    def amiss(self, knowledge: KnowledgeBase) -> tuple[str, str] | None:  # noqa: ARG002 - few kinds of rows ask it
        """What cannot be right beside the accelerators' rows: the field, and what is wrong with it."""
        return None


class Support(_Record):
    """Which versions of a component (CUDA, cuDNN, ROCm) a release takes.

    `closed`: nothing outside `accepted` can work (Bazel's hermetic lists). `uncertain` versions appeared about
    when the release was cut; about `disputed` ones the sources disagree.
    """

    tested: str | None = None
    accepted: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()
    closed: bool = False

    @model_validator(mode="after")
    def _tested_is_accepted(self) -> Self:
        if self.tested and self.accepted and not any(_holds(one, self.tested) for one in self.accepted):
            raise ValueError(f"tested {self.tested} is none of accepted ({', '.join(self.accepted)})")
        return self


class WheelRow(_Record):
    """How the release makes a wheel: a Bazel target that is the wheel, or a script to run after the build.

    `folder` is where the target leaves it, relative to the source; `command` the script's words, with `{output}`
    for the folder to write to.
    """

    target: str
    folder: str | None = None
    command: tuple[Template, ...] = ()


class Cost(_Record):
    """What a build needs, to size jobs and refuse early. Mebibytes a compile job, gibibytes of disk in all.

    `memory_per_link_mib` is what its largest links take, where that is more than a compile job takes.
    """

    memory_per_job_mib: int
    disk_gib: int
    memory_per_link_mib: int = 0


class Release(Row):
    """A minor release of TensorFlow.

    `like` names the release whose rows it takes; of other ranges it is then in those alone that begin or end with its
    own number (`9.9..`).

    By accelerator: `official_targets` are the official wheel's, `official_project` its name where that is not
    `tensorflow`; `default_targets` are what ./configure takes when nothing is said; `floor` is the oldest GPU the
    release uses (`3.5`), `xla_floor` the oldest that XLA uses; `runtime_targets`, where given, are all the release
    uses at run time, whatever was compiled (its allow-list of AMD targets), `runtime_doubt` those it is neither known
    to use nor not to. `gpu_compilers_min` is the first toolkit whose own compiler (`nvcc`) reads the release.

    `compilers` are what it is really built with, compiler -> version; `tested_compilers` what it is documented with
    besides, as `tested_bazel` is beside `bazel`. `host_compilers` says who compiles C++ beside a GPU compiler or
    accelerator; else the first of `compilers`. `host_compilers_min` are the first versions that know the C++
    standard the release is written in.
    `pythons_closed`: Bazel brings the Python, and knows these only. `capability_pattern` is what the release takes,
    `capability_doubt` what it is not known to take or to refuse.
    `configs` are the names that `--config=` takes, those that ./configure writes among them. `bazel_min` and
    `bazel_max` are the versions ./configure enforces.
    """

    KEY = ("release",)

    release: str
    like: str | None = None
    patches: tuple[str, ...] = ()
    repository: str = "https://github.com/tensorflow/tensorflow.git"
    tag: Annotated[str, _with("version")] = "v{version}"
    commits: dict[str, str] = Field(default_factory=dict)
    pythons: tuple[str, ...]
    pythons_closed: bool = False
    bazel: str
    tested_bazel: tuple[str, ...] = ()
    bazel_min: str | None = None
    bazel_max: str | None = None
    gpu_compiler: str | None = None
    host_compilers: dict[str, str] = Field(default_factory=dict)
    host_compilers_min: dict[str, str] = Field(default_factory=dict)
    gpu_compilers_min: dict[str, str] = Field(default_factory=dict)
    compilers: dict[str, str] = Field(default_factory=dict)
    tested_compilers: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    components: dict[str, Support] = Field(default_factory=dict)
    capability_pattern: Expression | None = None
    capability_doubt: Expression | None = None
    capability_format: str = "named"
    official_targets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    official_project: dict[str, str] = Field(default_factory=dict)
    default_targets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    floor: dict[str, Dotted] = Field(default_factory=dict)
    xla_floor: dict[str, Dotted] = Field(default_factory=dict)
    runtime_targets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    runtime_doubt: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    configs: tuple[str, ...] = ()
    wheel: WheelRow
    cost: Cost

    @property
    def newest(self) -> str:
        """The newest patch release; the minor release itself where none is known."""
        return self.patches[-1] if self.patches else self.release

    def amiss(self, knowledge: KnowledgeBase) -> tuple[str, str] | None:
        """Targets that a profile could not name."""
        for field in ("official_targets", "default_targets", "runtime_targets", "runtime_doubt"):
            for name, targets in getattr(self, field).items():
                row = knowledge.accelerators.get(name)
                if row and (wrong := [target for target in targets if not row.lists(target)]):
                    return field, f"`{wrong[0]}` does not look like a target of {name}, as profiles list them"
        return None


class Variable(Row):
    """A variable the release reads. `channel`: `environment` (exported for configure and Bazel) or `repo_env`.

    `when` maps facts (`accelerator`, `gpu_compiler`, `xla`, …) to the value, or values, for which the row holds.
    `define` is what ./configure makes of it for Bazel (`--define=with_xla_support=…`). `repository_rules`: no action
    reads it, only rules that make repositories, so the --action_env that ./configure writes can be a --repo_env.
    """

    variable: str
    releases: ReleaseRange
    value: Template
    channel: str = "environment"
    define: str | None = None
    repository_rules: bool = False
    when: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_written_by_configure(self) -> Self:
        if self.repository_rules and self.channel != "environment":
            raise ValueError(f"{self.channel} does not reach actions; repository_rules is for the environment")
        return self


class Flag(Row):
    """A Bazel flag of a release, in the order of the rows: where two flags meet, Bazel takes the later one."""

    flag: Template
    releases: ReleaseRange
    when: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)


class Config(Row):
    """Bazel configurations that releases define and this tool's builds cannot use.

    `configs` matches their names as a whole; `when` is as a variable's; `why` says what would happen.
    """

    KEY = ("configs",)

    configs: Expression
    why: str
    releases: ReleaseRange = "1.4.."
    when: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)


class BazelOption(Row):
    """How a Bazel version is told something: `purpose` is what for, `since` and `until` are Bazel versions.

    `PURPOSES` are those there are, each with its placeholders. Several rows of one purpose make several options.
    """

    PURPOSES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "disk_cache": ("path",),
        "repository_cache": ("path",),
        "events": ("path",),
        "profile": ("path",),
        "execution_log": ("path",),
        "resources": ("jobs", "cpus", "memory_mib"),
        "heap": ("heap_mib",),
        "toolchain": ("toolchain",),
        "repository_variable": ("variable",),
        "remote": ("upload",),
        "remote_cache": ("url",),
        "remote_executor": ("url",),
        "remote_grpc_cache": (),
        "remote_instance": ("instance",),
        "remote_jobs": ("jobs",),
        "output": (),
    }

    purpose: str
    option: Template
    since: str | None = None
    until: str | None = None

    @model_validator(mode="after")
    def _is_for_a_purpose(self) -> Self:
        if self.purpose not in self.PURPOSES:
            raise ValueError(f"purpose {self.purpose} is none of {', '.join(self.PURPOSES)}")
        _only(self.option, self.PURPOSES[self.purpose])
        return self


class Cachebuster(Row):
    """A variable whose random value in a base image keeps that image from sharing a cache with others."""

    KEY = ("variable",)

    variable: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]


class HarmlessOption(Row):
    """Options of a profile that run no program of its choice. `pattern` matches the whole option.

    `of` says where they stand. A group `copt` in the pattern of a flag is a compiler option, and judged as one.
    """

    KEY = ("of", "pattern")

    of: Literal["copt", "flag", "startup", "config", "host_compiler"]
    pattern: Expression


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

    def amiss(self, knowledge: KnowledgeBase) -> tuple[str, str] | None:
        """Targets that are not the number of a capability, where they should be."""
        families = [
            row for row in knowledge.accelerators.values() if row.capabilities and row.toolkit == self.toolkit
        ]
        wrong = [target for target in self.targets if families and not _reads(Capability.parse, f"sm_{target}")]
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

    def amiss(self, knowledge: KnowledgeBase) -> tuple[str, str] | None:
        """An accelerator without a row, or targets that no GPU of it has."""
        row = knowledge.accelerators.get(self.accelerator)
        return _not_of(row, "targets", self.targets) or _not_of(row, "embedded", self.embedded)


class LibraryRow(Row):
    """A range of versions of a component that is a library of GPU code (cuDNN): what it runs on, and with.

    `since` and `until` are inclusive, by their written parts (`9.10` holds for 9.10.2). `lowest` and `highest` are
    the GPUs it has code for; `toolkits` the toolkit versions, by prefix, it is made for; `patches` its full versions.
    """

    KEY = ("component", "since", "toolkits")

    component: str
    since: str
    until: str | None = None
    toolkits: tuple[str, ...] = ()
    lowest: Dotted | None = None
    highest: Dotted | None = None
    patches: tuple[str, ...] = ()


class Redistributable(Row):
    """Where a closed component version is downloaded from: the list that names its archives, and its sha256."""

    KEY = ("component", "version")

    component: str
    version: str
    url: str
    sha256: str


class Interpreter(Row):
    """A Python that base images do not carry: its newest patch release, and its source archive."""

    KEY = ("python",)

    python: str
    version: str
    url: str
    sha256: str


class ArchiveRow(Row):
    """A component that base images do not carry, as an archive to download: an image with `archives` is given it.

    It serves a build that asks for `version` or a prefix of it, with other components that match `components`.
    `arguments` are the words for a program that installs itself, with `{prefix}` for where to; without them the
    archive's `include` and `lib` are copied.
    """

    component: str
    version: str
    url: str
    sha256: str
    components: dict[str, str] = Field(default_factory=dict)
    arguments: tuple[Annotated[str, _with("prefix")], ...] = ()


class CpuFeature(Row):
    """An instruction set that `-m<feature>` switches on, on one kind of machine.

    `configs` are the Bazel configurations of releases that switch it on.
    """

    KEY = ("feature",)

    feature: str
    machine: str = "x86_64"
    configs: tuple[str, ...] = ()


class SizeLimit(Row):
    """How large a file may be in a place where wheels go: `mib` mebibytes."""

    KEY = ("limit",)

    limit: str
    mib: Annotated[int, Field(gt=0)]


class RuntimeRow(Row):
    """A clean image with a Python and its pip, in which wheels are tried.

    It serves wheels that link no library of their accelerator's; what these link, it has not.
    """

    KEY = ("python",)

    python: str
    image: ImageName


class Probe(Row):
    """How a wheel of these releases is tried, for one check: by a script below `dockerfiles/verify/`.

    Of several rows for a check and a release that of an overlay is taken, else the first. `seconds` is when it is
    given up. `environment` may hold `{scratch}`, an empty folder of its own. `gpu`: it wants a GPU of one of
    `accelerators`. `absent`, instead of a script, says why there is nothing to try.
    """

    check: str
    releases: ReleaseRange
    script: Annotated[str, _like(re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*\.py\Z"), "script (`tf2/op.py`)")] | None = None
    absent: str | None = None
    seconds: int = 300
    environment: dict[str, Annotated[str, _with("scratch")]] = Field(default_factory=dict)
    gpu: bool = False
    accelerators: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _does_or_says_why_not(self) -> Self:
        if (self.script is None) == (self.absent is None):
            raise ValueError("a row has either a `script` or says why there is none: `absent`")
        return self


class RequirementLimit(Row):
    """A package that wheels of these releases require and break with when it is newer: `limit` (`<3.21`) holds it."""

    KEY = ("package", "releases")

    package: Annotated[str, _like(re.compile(r"[a-z0-9][a-z0-9._-]*\Z"), "package")]
    releases: ReleaseRange
    limit: Annotated[str, _like(re.compile(r"(<|<=|!=)[0-9][0-9A-Za-z.]*\Z"), "limit (`<3.21`)")]


class RuntimeLibrary(Row):
    """A library that TensorFlow opens by its name at run time, and links in old releases.

    It is that of wheels built with `version`, or a more exact one, of a component; of several rows of a `name` the
    most exact counts. `package` is where PyPI has it (`{major}`: of the toolkit); `use` what it is for, where a GPU
    works without it.
    """

    KEY = ("name", "accelerator", "component", "version")

    name: str
    accelerator: str
    component: str
    version: str = ""
    library: str
    releases: ReleaseRange = "1.4.."
    package: Annotated[str, _with("major")] | None = None
    use: str | None = None


class RuntimeToolkit(Row):
    """The programs of a toolkit that releases call at run time, as Python packages have them.

    `packages` are lines for pip by the toolkit's major version. The folder they make has the file `marker` in it;
    releases find it in the folders `searched` beside their own package, and else where `setting` says (`{folder}`).
    """

    KEY = ("accelerator", "releases")

    accelerator: str
    releases: ReleaseRange
    packages: dict[str, tuple[str, ...]]
    marker: str
    searched: tuple[str, ...] = ()
    setting: dict[str, Annotated[str, _with("folder")]] = Field(default_factory=dict)


class Estimate(Row):
    """A figure that plans are made with: `value` in `unit`, for what its name says.

    The first row of a name that holds for a release and its accelerator is the one to use.
    """

    estimate: str
    value: float
    unit: str
    accelerator: str
    releases: ReleaseRange = "1.4.."


class Companion(Row):
    """What comes with a release's official wheel and narrows the GPUs it serves.

    It is a library that pip installs beside it (`package`, by the wheel's `extra`), or one linked into it.

    `version` is exactly what comes; with `before` the oldest that may, where pip takes the newest below `before`.
    `carries: wheel`: it is compiled for the wheel's SASS alone. `pythons`, where given, are all it can be installed
    with. `limit` is what to say, for GPUs from `lowest` to `highest` (`9.0`).

    `wheels`, where given, are those it is about (`tensorflow-rocm==2.14.0.600`), whatever their code; `ignores` are
    the targets of GPUs that they do not use, and then `limit` says why.
    """

    KEY = ("component", "accelerator", "releases", "package", "lowest")

    component: str
    accelerator: str
    releases: ReleaseRange
    extra: str | None = None
    package: str | None = None
    version: str | None = None
    before: str | None = None
    carries: str | None = None
    pythons: tuple[str, ...] = ()
    lowest: Dotted | None = None
    highest: Dotted | None = None
    limit: str | None = None
    wheels: tuple[Requirement, ...] = ()
    ignores: tuple[str, ...] = ()

    def amiss(self, knowledge: KnowledgeBase) -> tuple[str, str] | None:
        """GPUs that are none of its accelerator, and those that are ignored without a word on why."""
        if not self.ignores:
            return None
        if not self.limit:
            return "ignores", "`limit` is to say why"
        return _not_of(knowledge.accelerators.get(self.accelerator), "ignores", self.ignores)


class GeneratedKernels(Row):
    """The kernels that MLIR generates for a release's official wheel, which lie outside of its sections of GPU code.

    `targets` are their images (`sm_60`; `compute_90a` is PTX alone), `isa` that of the PTX; `count` containers.
    """

    KEY = ("accelerator", "releases")

    accelerator: str
    releases: ReleaseRange
    targets: tuple[str, ...]
    isa: str | None = None
    count: int

    def amiss(self, knowledge: KnowledgeBase) -> tuple[str, str] | None:
        """Targets that are none of the accelerator's."""
        row = knowledge.accelerators.get(self.accelerator)
        wrong = [target for target in self.targets if not row or not row.lists(target)]
        return ("targets", f"`{wrong[0]}` is not a target of {self.accelerator}") if wrong else None


class Doubt(_Record):
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
    where the toolkit does not know the name.
    """

    KEY = ("compiler", "accelerator", "releases")

    compiler: str
    accelerator: str
    releases: ReleaseRange
    targets: dict[Dotted, str] = Field(default_factory=dict)
    toolkit_min: str | None = None
    refused: tuple[str, ...] = ()
    failing: str
    doubts: tuple[Doubt, ...] = ()


class WheelLibrary(Row):
    """Which libraries of a wheel are TensorFlow's own: `paths` matches the whole path of a member.

    The first row that matches counts; a library that none matches is its own.
    """

    paths: Expression
    own: bool = False
    what: str


class Code(Row):
    """A problem's code: what it means, an example, and the ways out. `profile` is a profile that provokes it."""

    KEY = ("code",)

    code: str
    title: str
    cause: str
    ways: tuple[str, ...]
    profile: str | None = None
    example: str | None = None


class CiAction(Row):
    """An action of GitHub's that rendered workflows use, by the commit that was looked at."""

    KEY = ("action",)

    action: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9._/-]+$")]
    version: Annotated[str, Field(pattern=r"^v[0-9.]+$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


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

    `path` is where it stands, with `{major}` and `{minor}` of its version. `symptoms` maps the code of a refusal to
    what would be seen without it.
    """

    KEY = ("compiler", "since")

    compiler: str
    since: str
    path: Annotated[str, _with("major", "minor")]
    symptoms: dict[str, str] = Field(default_factory=dict)


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

    def amiss(self, knowledge: KnowledgeBase) -> tuple[str, str] | None:
        """An accelerator without a row, or a target that no GPU of it has."""
        return _not_of(knowledge.accelerators.get(self.accelerator), "target", (self.target,))


class ImageRow(Row):
    """A base image. The first row that fits a release, Python and accelerator is used.

    `template` names `dockerfiles/base/<template>.j2`; `paths` where its tools are (`python`, `clang`, `gcc`,
    `cuda`, `rocm`), its compilers by version as well (`gcc-7`, `clang-17`: any version that agrees as far as both
    are written); `holds` is a component's full version where it is known that the image has that one only;
    `compilers` limits the row to builds that ask for such a version of a host compiler; `packages` are installed on
    top, then `pip` from PyPI without dependencies. `interpreter`: the image has not the Python that is asked for,
    which is compiled from the source archive in `interpreters.yaml`. `archives` are the components that it has not
    either: they come from `archives.yaml`.
    """

    image: ImageName
    releases: ReleaseRange
    pythons: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    components: dict[str, str] = Field(default_factory=dict)
    compilers: dict[str, str] = Field(default_factory=dict)
    template: str
    machine: str = "x86_64"
    interpreter: bool = False
    archives: tuple[str, ...] = ()
    paths: dict[str, Template] = Field(default_factory=dict)
    holds: dict[str, str] = Field(default_factory=dict)
    packages: tuple[Package, ...] = ()
    pip: tuple[Requirement, ...] = ()


class Accelerator(Row):
    """A family of devices: its toolkit, what is chosen with it, and how its targets are written.

    `components` come into the build id in this order; `target_pattern` is a whole-match expression, `target_field`
    the profile's field that lists such targets. `capabilities`: targets are compute capabilities, with SASS and PTX.
    `config_pattern` matches the names of Bazel configurations that turn it on, but for those of the contract.
    `template` names `dockerfiles/accelerator/<template>.j2`. `vendor` is what drivers may put before a GPU's name,
    `tools` the toolkit's programs that compile, below the image's paths.

    Containers see its GPUs where the engine has the runtime `engine_runtime`, or its machine one of the
    `engine_programs` that do the same; or by `device_files`, the first of which is there where such a GPU is.
    `container` are the variables by which an image asks for them.

    `installed` matches the folders that its own packages install it to: a library may look for it there. `packages`
    matches for each component the names of the Python packages that bring it.

    `compilers` can compile its GPU code, beside the release's own; `titles` are the components' names as people write
    them. `symptoms` maps the code of a refusal to what would be seen without it, with `{target}` and `{number}`.
    """

    KEY = ("accelerator",)

    accelerator: str
    toolkit: str | None = None
    components: tuple[str, ...] = ()
    target_pattern: Expression | None = None
    target_field: Annotated[str, _read_by(_target_field)] = "targets"
    capabilities: bool = False
    config_pattern: Expression | None = None
    template: str | None = None
    vendor: str = ""
    tools: tuple[Template, ...] = ()
    engine_runtime: str | None = None
    engine_programs: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()
    container: dict[str, str] = Field(default_factory=dict)
    installed: Expression | None = None
    packages: dict[str, Expression] = Field(default_factory=dict)
    compilers: tuple[str, ...] = ()
    titles: dict[str, str] = Field(default_factory=dict)
    symptoms: dict[str, Annotated[str, _with("target", "number")]] = Field(default_factory=dict)

    def has(self, target: str) -> bool:
        """Whether a GPU's target is one of this family: `8.6`, `gfx90a`."""
        return _reads(Capability.of_gpu, target) if self.capabilities else self.matches(target)

    def lists(self, target: str) -> bool:
        """Whether a profile can list a target for this family: `sm_86`, `gfx90a`."""
        return self.matches(target) and (not self.capabilities or _reads(Capability.parse, target))

    def matches(self, word: str) -> bool:
        """Whether a word is written as profiles list targets of this family; never where it has none."""
        return bool(self.target_pattern and re.fullmatch(self.target_pattern, word))


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _not_of(row: Accelerator | None, field: str, targets: Iterable[str]) -> tuple[str, str] | None:
    """What is wrong with the targets of GPUs of that family; None where nothing is."""
    if row is None or row.target_pattern is None:
        return "accelerator", "no accelerator of this name has a row and targets"
    wrong = [target for target in targets if not row.has(target)]
    like = "8.6" if row.capabilities else row.target_pattern
    return (
        (field, f"`{wrong[0]}` is not the target of a GPU of {row.accelerator}: those look like `{like}`")
        if wrong
        else None
    )


_R = TypeVar("_R", bound=Row)


def plain(text: str, file: str) -> object:
    """A table's text as plain data; raises ProfileError with the place of what is no YAML."""
    return yaml_nodes.parse(text, file).value


class KnowledgeBase:
    """All tables, each read when it is first asked for.

    `texts` maps a table's name to its (file name, YAML text) pairs, the shipped one first, overlays after it.
    `read` is `plain`, or something quicker that gives the same.
    """

    def __init__(
        self, texts: Mapping[str, Sequence[tuple[str, str]]], read: Callable[[str, str], object] = plain
    ) -> None:
        self._texts = texts
        self._plain = read
        self._named: dict[str, dict[str, str]] = {}

    @cached_property
    def releases(self) -> dict[str, Release]:
        """Minor release -> row."""
        return self._keyed("releases", Release)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of the contract, in order."""
        return self._rows("variables", Variable)

    @cached_property
    def flags(self) -> tuple[Flag, ...]:
        """The Bazel flags of the contract, in order; overlay rows come last, so that they win."""
        return self._rows("flags", Flag)

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """Configurations that are of no use here."""
        return tuple(self._keyed("configs", Config).values())

    @cached_property
    def bazel_options(self) -> tuple[BazelOption, ...]:
        """Options of Bazel itself, by purpose and version."""
        return self._rows("bazel", BazelOption)

    @cached_property
    def cachebusters(self) -> tuple[Cachebuster, ...]:
        """Variables that keep images from sharing a cache."""
        return tuple(self._keyed("cachebusters", Cachebuster).values())

    @cached_property
    def harmless_options(self) -> tuple[HarmlessOption, ...]:
        """Options of a profile with which a build may share the trust domain `release`."""
        return tuple(self._keyed("harmless_options", HarmlessOption).values())

    @cached_property
    def toolkits(self) -> dict[tuple[str, str], Toolkit]:
        """(toolkit, minor version) -> row."""
        return self._keyed("toolkits", Toolkit)

    @cached_property
    def compilers(self) -> dict[tuple[str, str], Compiler]:
        """(compiler, version) -> row."""
        return self._keyed("compilers", Compiler)

    @cached_property
    def host_compilers(self) -> dict[tuple[str, str], PackagedCompiler]:
        """(compiler, first version) -> row."""
        return self._keyed("host_compilers", PackagedCompiler)

    @cached_property
    def drivers(self) -> dict[tuple[str, str], Driver]:
        """(toolkit, major version) -> row."""
        return self._keyed("drivers", Driver)

    @cached_property
    def architectures(self) -> tuple[Architecture, ...]:
        """Generations of GPUs."""
        return tuple(self._keyed("architectures", Architecture).values())

    @cached_property
    def libraries(self) -> tuple[LibraryRow, ...]:
        """What versions of libraries run on and with."""
        return tuple(self._keyed("libraries", LibraryRow).values())

    @cached_property
    def redistributables(self) -> dict[tuple[str, str], Redistributable]:
        """(component, version) -> row."""
        return self._keyed("redistributables", Redistributable)

    @cached_property
    def interpreters(self) -> dict[str, Interpreter]:
        """Python minor version -> row."""
        return self._keyed("interpreters", Interpreter)

    @cached_property
    def archives(self) -> tuple[ArchiveRow, ...]:
        """Archives of components, in order of preference: overlay rows first."""
        return self._rows("archives", ArchiveRow, newest_file_first=True)

    @cached_property
    def cpu_features(self) -> dict[str, CpuFeature]:
        """Feature -> row."""
        return self._keyed("cpu_features", CpuFeature)

    @cached_property
    def size_limits(self) -> tuple[SizeLimit, ...]:
        """How large wheels may be, where."""
        return tuple(self._keyed("size_limits", SizeLimit).values())

    @cached_property
    def runtimes(self) -> dict[str, RuntimeRow]:
        """Python minor version -> row."""
        return self._keyed("runtimes", RuntimeRow)

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        """How wheels are tried, overlay rows first."""
        return self._rows("probes", Probe, newest_file_first=True)

    @cached_property
    def requirement_limits(self) -> tuple[RequirementLimit, ...]:
        """What is too new for wheels that require it."""
        return tuple(self._keyed("requirement_limits", RequirementLimit).values())

    @cached_property
    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Libraries that are opened at run time."""
        return tuple(self._keyed("runtime_libraries", RuntimeLibrary).values())

    @cached_property
    def runtime_toolkits(self) -> tuple[RuntimeToolkit, ...]:
        """What releases call of a toolkit at run time."""
        return tuple(self._keyed("runtime_toolkits", RuntimeToolkit).values())

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """Figures for planning, overlay rows first."""
        return self._rows("estimates", Estimate, newest_file_first=True)

    @cached_property
    def companions(self) -> tuple[Companion, ...]:
        """What comes with official wheels."""
        return tuple(self._keyed("companions", Companion).values())

    @cached_property
    def generated_kernels(self) -> tuple[GeneratedKernels, ...]:
        """What MLIR generated for official wheels."""
        return tuple(self._keyed("generated_kernels", GeneratedKernels).values())

    @cached_property
    def runtime_compilers(self) -> tuple[RuntimeCompiler, ...]:
        """How releases compile at run time."""
        return tuple(self._keyed("runtime_compilers", RuntimeCompiler).values())

    @cached_property
    def wheel_libraries(self) -> tuple[WheelLibrary, ...]:
        """Whose the libraries of a wheel are: overlay rows first."""
        return self._rows("wheel_libraries", WheelLibrary, newest_file_first=True)

    @cached_property
    def ci_actions(self) -> dict[str, CiAction]:
        """An action's name -> row."""
        return self._keyed("ci_actions", CiAction)

    @cached_property
    def codes(self) -> dict[str, Code]:
        """A problem's code -> row."""
        return self._keyed("codes", Code)

    @cached_property
    def failures(self) -> dict[str, Failure]:
        """A failure's id -> row."""
        # Here, not above: it is made of rows, and only who reads a log needs it.
        from tfdock.knowledge.failure_rows import Failure

        return self._keyed("failures", Failure)

    @cached_property
    def gpus(self) -> dict[str, Gpu]:
        """Canonical short name -> row."""
        return self._keyed("gpus", Gpu)

    @cached_property
    def images(self) -> tuple[ImageRow, ...]:
        """Base images in order of preference: overlay rows first."""
        return self._rows("images", ImageRow, newest_file_first=True)

    @cached_property
    def accelerators(self) -> dict[str, Accelerator]:
        """Name -> row."""
        return self._keyed("accelerators", Accelerator)

    @cached_property
    def version(self) -> str:
        """A hash of every table's text, whichever folder it came from: 16 hexadecimal digits."""
        total = hashlib.sha256()
        for table in sorted(self._texts):
            for _, text in self._texts[table]:
                total.update(f"{table}\0{text}\0".encode())
        return total.hexdigest()[:16]

    def sources(self, table: str) -> dict[str, str]:
        """What the short names in the `source` of a table's rows stand for."""
        if table not in self._named:
            documents = [self._plain(text, file) for file, text in self._texts.get(table, ())]
            named = [document.get("sources", {}) for document in documents if isinstance(document, dict)]
            self._named[table] = {name: str(text) for one in named for name, text in one.items()}
        return self._named[table]

    def cited(self, table: str, row: Row) -> str:
        """A row's sources, as its table explains their short names."""
        named = self.sources(table)
        names = (row.source,) if isinstance(row.source, str) else row.source
        return "; ".join(named.get(name, name) for name in names)

    def _keyed(self, table: str, kind: type[_R]) -> dict[Any, _R]:
        """By `KEY`, a tuple where that is several fields; of two files the later row, in the place of the earlier."""
        key = attrgetter(*kind.KEY)
        return {key(row): row for row in self._rows(table, kind)}

    def _rows(self, table: str, kind: type[_R], *, newest_file_first: bool = False) -> tuple[_R, ...]:
        files = list(self._texts.get(table, ()))
        if newest_file_first:
            files.reverse()
        return tuple(row for file, text in files for row in self._file_rows(file, text, kind))

    def _file_rows(self, file: str, text: str, kind: type[_R]) -> list[_R]:
        table = _Table(file, text, self._plain(text, file))
        sources = table.sources
        found: list[_R] = []
        seen: dict[tuple[Any, ...], int] = {}
        for index, values in enumerate(table.rows):
            row = _row(table, index, values, kind)
            cited = (row.source,) if isinstance(row.source, str) else row.source
            if sources is not None and (unknown := [one for one in cited if one not in sources]):
                message = f"source `{unknown[0]}` is not explained in `sources:`"
                raise table.wrong_row((index, "source"), message, f"the table's `sources:` has: {', '.join(sources)}")
            if amiss := row.amiss(self):
                raise table.wrong_row((index, amiss[0]), amiss[1], "correct it, or the rows of `accelerators.yaml`")
            key = tuple(getattr(row, field) for field in kind.KEY)
            if key and seen.setdefault(key, index) != index:
                message = f"{_words(key)} has a row already, in line {table.place((seen[key],)).line}"
                fix = "one row says all of it; a row of an overlay replaces the shipped one"
                raise table.wrong_row((index,), message, fix)
            found.append(row)
        return found


def _words(key: Iterable[str | tuple[str, ...] | None]) -> str:
    return " ".join(word if isinstance(word, str) else " ".join(word) for word in key if word)


class _Table:
    """A table's text, and its plain data. Only where something is wrong the text is read for its place."""

    def __init__(self, file: str, text: str, data: object) -> None:
        self._file = file
        self._text = text
        self._data: dict[str, Any] = data if isinstance(data, dict) else {}

    @property
    def rows(self) -> list[Any]:
        rows = self._data.get("rows")
        if isinstance(rows, list):
            return rows
        node = self._document
        raise ProfileError(
            Problem(
                code="knowledge-table",
                message="a knowledge table needs a list `rows:`",
                fix="compare with the shipped table of the same name",
                file=self._file,
                line=node.line,
                column=node.column,
            )
        )

    @property
    def checked(self) -> str:
        return str(self._data.get("checked", ""))

    @property
    def sources(self) -> dict[str, Any] | None:
        """What rows may cite; None where the table does not say."""
        if "sources" not in self._data:
            return None
        sources = self._data["sources"]
        return sources if isinstance(sources, dict) else {}

    def place(self, path: tuple[str | int, ...]) -> yaml_nodes.Node:
        """Where a value of the rows stands."""
        return self._document.at(("rows", *path))

    @cached_property
    def _document(self) -> yaml_nodes.Node:
        return yaml_nodes.parse(self._text, self._file)

    def wrong_row(self, path: tuple[str | int, ...], message: str, fix: str) -> ProfileError:
        return ProfileError(self.problem(path, message, fix))

    def problem(self, path: tuple[str | int, ...], message: str, fix: str) -> Problem:
        place = self.place(path)
        return Problem(
            code="knowledge-row", message=message, fix=fix, file=self._file, line=place.line, column=place.column
        )


def _checked(table: _Table, values: Mapping[str, Any]) -> str:
    """The table's day; no day for what is from memory alone, which was compared with nothing."""
    return "" if values.get("source") in (_MEMORY, [_MEMORY]) else table.checked


def _row(table: _Table, index: int, values: object, kind: type[_R]) -> _R:
    # Strict lists become tuples here because YAML has no tuples and frozen rows want them.
    try:
        complete = {"checked": _checked(table, values), **values} if isinstance(values, dict) else values
        return kind.model_validate(complete, strict=False)
    except ValidationError as error:
        fix = f"a row of this table has: {', '.join(kind.model_fields)}; versions are quoted text"
        raise ProfileError(
            *(table.problem((index, *item["loc"]), _complaint(item), fix) for item in error.errors(include_url=False))
        ) from error


def _complaint(item: ErrorDetails) -> str:
    """What pydantic says; its word for every ValueError says nothing."""
    place = ".".join(str(part) for part in item["loc"]) or "row"
    return f"{place}: {item['msg'].removeprefix('Value error, ')}"
