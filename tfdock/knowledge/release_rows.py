"""Rows about releases: what a release is built with, which versions it takes, and what a build costs."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from tfdock.knowledge.rows import (
    AcceleratorTable,
    Dotted,
    Expression,
    ReleaseRange,
    Row,
    RowPart,
    Template,
    template_with,
)


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
        if self.tested and self.accepted and not any(_holds(one, self.tested) for one in self.accepted):
            raise ValueError(f"tested {self.tested} is none of accepted ({', '.join(self.accepted)})")
        return self


class WheelRow(RowPart):
    """How the release makes a wheel: a Bazel target that is the wheel, or a script to run after the build.

    `folder` is where the target leaves it, relative to the source; `command` the script's words, with `{output}`
    for the folder to write to.
    """

    target: str
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

    def amiss(self, known: AcceleratorTable) -> tuple[str, str] | None:
        """Targets that a profile could not name."""
        for field in ("official_targets", "default_targets", "runtime_targets", "runtime_doubt"):
            for name, targets in getattr(self, field).items():
                row = known.accelerators.get(name)
                if row and (wrong := [target for target in targets if not row.lists(target)]):
                    return field, f"`{wrong[0]}` does not look like a target of {name}, as profiles list them"
        return None


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
    return version == prefix or version.startswith(f"{prefix}.")
