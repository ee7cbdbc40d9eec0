"""Rows about releases: toolchains, versions and costs; and the variables, flags and Bazel options of builds.

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
    Versions,
    check_placeholders,
    in_range,
    template_with,
    text_like,
)
from tfdock.types import Version

ADDRESS = re.compile(r"https?://[!-~]+\Z")
#: HTTPS. For this machine, HTTP is enough.
SAFE_ADDRESS = re.compile(r"(https://|http://(127\.0\.0\.1|localhost)[:/])[!-~]+\Z")


class Support(RowPart):
    """The versions of a component (CUDA, cuDNN, ROCm) that a release accepts."""

    tested: str | None = None  #: The version that the release was tested with.
    accepted: tuple[str, ...] = ()  #: The versions that the release accepts.
    uncertain: tuple[str, ...] = ()  #: Versions that the source got at about the time of the release.
    disputed: tuple[str, ...] = ()  #: Versions about which the sources disagree.
    closed: bool = False  #: Whether only versions in `accepted` can work (Bazel's hermetic lists).

    @property
    def known(self) -> set[str]:
        """The accepted versions and the tested one."""
        return {*self.accepted, *([self.tested] if self.tested else [])}

    @model_validator(mode="after")
    def _tested_is_accepted(self) -> Self:
        # An empty `accepted` says nothing about which versions work.
        if self.tested and self.accepted and not any(_holds(version, self.tested) for version in self.accepted):
            raise ValueError(f"tested {self.tested} is none of accepted ({', '.join(self.accepted)})")
        return self


class WheelRow(RowPart):
    """How a release makes its wheel: by a Bazel target that builds the wheel, or by a script after the build."""

    target: str  #: Bazel's target.
    name: str = "tensorflow"  #: The project's name, unless a profile gives another.
    folder: str | None = None  #: The path at which the target leaves the wheel, relative to the source.
    #: The command of the script that makes the wheel, with `{output}` for the folder to write to.
    command: tuple[Template, ...] = ()


class Cost(RowPart):
    """The memory and disk that a build needs, to choose the number of jobs and to refuse early."""

    memory_per_job_mib: int  #: Mebibytes of memory for each job.
    disk_gib: int  #: Gibibytes of disk in all.
    memory_per_link_mib: int = 0  #: Mebibytes of memory for the largest links; 0 if they need no more than a job.


class Release(Row):
    """A minor release of TensorFlow. Targets, wheels and floors are given for each accelerator."""

    KEY = ("release",)

    release: str  #: Such as `2.18`.
    #: The release whose rows apply too, besides rows whose range begins or ends with this release's number.
    like: str | None = None
    patches: tuple[str, ...] = ()  #: The patch releases.
    repository: str = "https://github.com/tensorflow/tensorflow.git"  #: The URL of the source.
    tag: Annotated[str, template_with("version")] = "v{version}"  #: The tag, with `{version}`.
    # A tag that was moved is noticed by these.
    commits: dict[str, str] = Field(default_factory=dict)  #: Patch release to commit.
    pythons: tuple[str, ...]  #: The Pythons that the release can be built for.
    #: Whether no other Python can work, because Bazel downloads the Python and knows only these.
    pythons_closed: bool = False
    bazel: str  #: Bazel's version.
    tested_bazel: tuple[str, ...] = ()  #: Further versions of Bazel that the release was tested with.
    bazel_min: str | None = None  #: The oldest Bazel that ./configure accepts.
    bazel_max: str | None = None  #: The newest Bazel that ./configure accepts.
    gpu_compiler: str | None = None  #: The compiler of GPU code.
    #: GPU compiler or accelerator to the C++ compiler used with it, if this is not the first of `compilers`.
    host_compilers: dict[str, str] = Field(default_factory=dict)
    #: The first compiler versions that know the release's C++ standard.
    host_compilers_min: dict[str, str] = Field(default_factory=dict)
    #: The first toolkit whose compiler can compile the release.
    gpu_compilers_min: dict[str, str] = Field(default_factory=dict)
    #: Compilers that the release does not tell the toolkit's version: they write their newest PTX for any toolkit.
    toolkit_hidden_from: tuple[str, ...] = ()
    #: Compiler to the version with which the release is built upstream.
    compilers: dict[str, str] = Field(default_factory=dict)
    #: Compiler to further documented versions.
    tested_compilers: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    #: Component, such as `cuda`, to the versions that the release accepts.
    components: dict[str, Support] = Field(default_factory=dict)
    #: Library to its version in the official wheel for Linux, or the version that this wheel looks for.
    built_with: dict[str, str] = Field(default_factory=dict)
    #: PyPI package to the versions that the official wheel requires.
    requires: dict[str, Versions] = Field(default_factory=dict)
    capability_pattern: Expression | None = None  #: A regular expression of accepted capabilities.
    #: A regular expression for capabilities that the release may or may not accept: nobody knows.
    capability_doubt: Expression | None = None
    capability_format: str = "named"  #: The form of capabilities for this release.
    #: The oldest glibc on which the official wheels run: as their platform tags say, or their libraries if the tags
    #: are wrong.
    official_glibc: str | None = None
    #: Python to the oldest glibc, if the wheels for this Python need a newer one.
    official_glibc_of: dict[str, str] = Field(default_factory=dict)
    official_targets: dict[str, tuple[str, ...]] = Field(default_factory=dict)  #: The targets of the official wheel.
    #: The official wheel's name, if it is not `tensorflow`.
    official_project: dict[str, str] = Field(default_factory=dict)
    #: Patch release to the wheel's version to install instead, because pip cannot install the extra of its own wheel.
    official_version: dict[str, str] = Field(default_factory=dict)
    #: Python to the last patch release with a wheel for it, if this is not the newest; empty if there is none.
    official_last: dict[str, str] = Field(default_factory=dict)
    #: The GPU targets that ./configure uses if none are given.
    default_targets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    floor: dict[str, Dotted] = Field(default_factory=dict)  #: The oldest GPU that the release uses.
    xla_floor: dict[str, Dotted] = Field(default_factory=dict)  #: The oldest GPU that XLA uses.
    #: All targets that the release uses at run time, even if more were compiled: its allow-list.
    runtime_targets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    #: Targets that the release may or may not use at run time: nobody knows.
    runtime_doubt: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    configs: tuple[str, ...] = ()  #: Names that `--config=` takes.
    wheel: WheelRow  #: How the release makes its wheel.
    cost: Cost  #: What a build needs.

    @property
    def newest(self) -> str:
        """The newest patch release; the minor release itself if no patch release is known."""
        return self.patches[-1] if self.patches else self.release

    def support(self, component: str) -> Support:
        """Return the versions of a component that the release accepts; without versions if none are known."""
        return self.components.get(component, Support())

    def official_patch(self, version: str, python: str) -> str:
        """Return the last patch release up to `version` with an official wheel for a Python; empty without one."""
        last = self.official_last.get(python, version) if python in self.pythons else ""
        return min(last, version, key=Version) if last else ""

    def find_mistake(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Return the field and the mistake if the row has targets that a profile could not name."""
        for field in ("official_targets", "default_targets", "runtime_targets", "runtime_doubt"):
            for name, targets in getattr(self, field).items():
                row = known.accelerators.get(name)
                if row and (wrong := [target for target in targets if not row.lists(target)]):
                    return field, f"`{wrong[0]}` does not look like a target of {name}, as profiles list them"
        return None


class SourceArchive(Row):
    """An archive that a release's source downloads from addresses that no longer work.

    `archive` is a readable name, `original` the address in the source, `sha256` the checksum in the source, `gone`
    the date when the address stopped working (`2020`, `2020-05`). The fetch phase downloads the archive from `urls`,
    in this order. If `urls` is empty, no server is known to have the archive, and the releases are refused.
    """

    KEY = ("sha256",)

    sha256: Annotated[str, text_like(re.compile(r"[0-9a-f]{64}\Z"), "sha256 of 64 hexadecimal digits")]
    archive: str
    releases: ReleaseRange
    original: Annotated[str, text_like(ADDRESS, "web address (`https://…`)")]
    gone: Annotated[str, text_like(re.compile(r"20\d\d(-\d\d){0,2}\Z"), "date (`2020`, `2020-05`, `2020-05-21`)")]
    urls: tuple[Annotated[str, text_like(SAFE_ADDRESS, "web address (`https://…`)")], ...] = ()


class Estimate(Row):
    """A number that planning uses: `value` in `unit`. `estimate` is the name of the number.

    Of several rows with the same name, the first one that applies to the release and its accelerator is used.
    """

    estimate: str
    value: float
    unit: str
    accelerator: str
    releases: ReleaseRange = "1.4.."


def _holds(prefix: str, version: str) -> bool:
    # With the dot, so that 12.1 does not match 12.10.
    return version == prefix or version.startswith(f"{prefix}.")


class Variable(Row):
    """A variable that the release reads. `channel`: `environment` (exported for configure and Bazel) or `repo_env`.

    `when` maps facts (`accelerator`, `gpu_compiler`, `xla`, …) to the value, or values, with which the row applies.
    `define` is the flag that ./configure makes from it for Bazel (`--define=with_xla_support=…`). `repository_rules`:
    only repository rules read the variable and no action does, so --repo_env can replace the --action_env of
    ./configure.
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
        # A `repo_env` variable is never part of an action's key.
        if self.repository_rules and self.channel != "environment":
            raise ValueError(f"{self.channel} does not reach actions; repository_rules needs `environment`")
        return self


def applies(release: Release, span: str) -> bool:
    """Return whether a row with that range applies to a release.

    A release with `like` is in the ranges of that other release, and in ranges that begin or end with its own number.
    So a release 9.9 like 2.18 is in `9.9`, `9.9..` and `9.7..9.9`, but not in `2.21..`, which does not include 2.18.
    """
    # Compare the ends of the range as text: a release with its own numbering has no place between other releases.
    return release.release in span.split("..") or in_range(release.like or release.release, span)


class Flag(Row):
    """A Bazel flag of a release, in the order of the rows: if two flags conflict, Bazel uses the later one."""

    flag: Template
    releases: ReleaseRange
    when: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)


class Config(Row):
    """Bazel configurations that releases define but tfdock's builds cannot use.

    `configs` matches their whole names; `when` works as in `Variable`; `why` says what would happen.
    """

    KEY = ("configs",)

    configs: Expression
    why: str
    releases: ReleaseRange = "1.4.."
    when: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)


class BazelOption(Row):
    """The options of some Bazel versions for one purpose.

    `since` and `until` are Bazel versions. `PURPOSES` are all purposes, each with its placeholders. If a purpose has
    several rows, all their options are used.
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
        # Checked when the row is read: otherwise an unknown placeholder would end a build with a traceback.
        check_placeholders(self.option, self.PURPOSES[self.purpose])
        return self


class Cachebuster(Row):
    """A variable whose random value in a base image keeps that image from sharing a cache with others."""

    KEY = ("variable",)

    variable: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]


class HarmlessOption(Row):
    """Options with which a profile cannot run a program that it chooses.

    `pattern` matches the whole option. `of` is the field of the options. If the pattern of a flag has a group `copt`,
    that group is a compiler option, and is judged as such.
    """

    KEY = ("of", "pattern")

    of: Literal["copt", "flag", "startup", "config", "host_compiler"]
    pattern: Expression


class CpuFeature(Row):
    """An instruction set that `-m<feature>` switches on, on one kind of machine.

    `configs` are the Bazel configurations of releases that switch it on. `official`: releases whose official wheels
    end with `Illegal instruction` on a CPU without the set; `official_patches` are single such versions.
    """

    KEY = ("feature",)

    feature: str
    machine: str = "x86_64"
    configs: tuple[str, ...] = ()
    official: ReleaseRange | None = None
    official_patches: tuple[str, ...] = ()

    def is_in_official(self, release: Release, version: str) -> bool:
        """Return whether the official wheel of a version uses these instructions."""
        return version in self.official_patches or (self.official is not None and applies(release, self.official))
