"""Rows about releases: toolchains, versions and costs; and the variables, flags and Bazel options of their builds.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tfdock.knowledge.rows import (
    AcceleratorTable,
    Dotted,
    Expression,
    ReleaseRange,
    Row,
    RowPart,
    Template,
    check_placeholders,
    in_range,
    template_with,
    text_like,
)

ADDRESS = re.compile(r"https?://[!-~]+\Z")
SAFE_ADDRESS = re.compile(r"(https://|http://(127\.0\.0\.1|localhost)[:/])[!-~]+\Z")
"""HTTPS. On this machine HTTP will do."""


class Support(RowPart):
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
        # An empty `accepted` says nothing about which versions work.
        if self.tested and self.accepted and not any(_holds(version, self.tested) for version in self.accepted):
            raise ValueError(f"tested {self.tested} is none of accepted ({', '.join(self.accepted)})")
        return self


class WheelRow(RowPart):
    """How the release makes a wheel: a Bazel target that is the wheel, or a script to run after the build.

    `folder` is where the target leaves it, relative to the source; `command` the script's words, with `{output}`
    for the folder to write to. `name` is the project's, where a profile gives no other.
    """

    target: str
    name: str = "tensorflow"
    folder: str | None = None
    command: tuple[Template, ...] = ()


class Cost(RowPart):
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
    tag: Annotated[str, template_with("version")] = "v{version}"
    # A tag that was moved is noticed by these.
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

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return targets that a profile could not name."""
        for field in ("official_targets", "default_targets", "runtime_targets", "runtime_doubt"):
            for name, targets in getattr(self, field).items():
                row = known.accelerators.get(name)
                if row and (wrong := [target for target in targets if not row.lists(target)]):
                    return field, f"`{wrong[0]}` does not look like a target of {name}, as profiles list them"
        return None


class SourceArchive(Row):
    """An archive that a release's tree downloads, and that the tree's own addresses no longer give.

    `archive` is its name for people, `original` the tree's address, `sha256` the sum in the tree, `gone` when the
    address died (`2020`, `2020-05`). The fetch phase downloads the archive from `urls`, in this order. Without `urls`
    nobody is known to have it, and the releases are refused.
    """

    KEY = ("sha256",)

    sha256: Annotated[str, text_like(re.compile(r"[0-9a-f]{64}\Z"), "sha256 of 64 hexadecimal digits")]
    archive: str
    releases: ReleaseRange
    original: Annotated[str, text_like(ADDRESS, "web address (`https://…`)")]
    gone: Annotated[str, text_like(re.compile(r"20\d\d(-\d\d){0,2}\Z"), "date (`2020`, `2020-05`, `2020-05-21`)")]
    urls: tuple[Annotated[str, text_like(SAFE_ADDRESS, "web address (`https://…`)")], ...] = ()


class Estimate(Row):
    """A figure that plans are made with: `value` in `unit`, for what its name says.

    The first row of a name that holds for a release and its accelerator is the one to use.
    """

    estimate: str
    value: float
    unit: str
    accelerator: str
    releases: ReleaseRange = "1.4.."


def _holds(prefix: str, version: str) -> bool:
    # With the dot: 12.1 must not accept 12.10.
    return version == prefix or version.startswith(f"{prefix}.")


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
        # A --repo_env is in no action's key from the start.
        if self.repository_rules and self.channel != "environment":
            raise ValueError(f"{self.channel} does not reach actions; repository_rules is for the environment")
        return self


def applies(release: Release, span: str) -> bool:
    """Return whether a row of that range holds for a release.

    One with `like` is in the ranges of that release, and in those that name its own number: of `2.21..` nobody knows
    whether a release 9.9 like 2.18 was meant; of `9.9`, `9.9..` and `9.7..9.9` one does.
    """
    # The ends as text: nobody knows what lies between 2.18 and a release of one's own numbering.
    return release.release in span.split("..") or in_range(release.like or release.release, span)


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
        "fetch": (),
        "archive_mirror": ("path",),
        "events": ("path",),
        "profile": ("path",),
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
        # When the row is read: an unknown placeholder would otherwise end a build with a traceback.
        check_placeholders(self.option, self.PURPOSES[self.purpose])
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


class CpuFeature(Row):
    """An instruction set that `-m<feature>` switches on, on one kind of machine.

    `configs` are the Bazel configurations of releases that switch it on. `official`: releases whose official wheels
    end with `Illegal instruction` on a CPU without it.
    """

    KEY = ("feature",)

    feature: str
    machine: str = "x86_64"
    configs: tuple[str, ...] = ()
    official: ReleaseRange | None = None
