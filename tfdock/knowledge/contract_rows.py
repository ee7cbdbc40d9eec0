"""Rows about what a build is told: variables and flags of releases, options of Bazel, and what is harmless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tfdock.knowledge.rows import Expression, ReleaseRange, Row, Template, check_placeholders


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

    `configs` are the Bazel configurations of releases that switch it on.
    """

    KEY = ("feature",)

    feature: str
    machine: str = "x86_64"
    configs: tuple[str, ...] = ()
