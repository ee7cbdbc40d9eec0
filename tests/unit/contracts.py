"""Every kind of build of every release, and its contract with facts written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from tfdock.knowledge import loader
from tfdock.knowledge.contract import Contract, version_facts
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.rows import in_range

KNOWLEDGE = loader.knowledge()
RELEASES = KNOWLEDGE.releases
HOSTS, GPU_COMPILERS = ("gcc", "clang"), ("nvcc", "clang")
CHANNELS = ("environment", "repo_env")


@dataclass(frozen=True, kw_only=True)
class Build:
    """A kind of build, as the observations name it: `cpu+gcc`, `cuda/nvcc+clang`."""

    accelerator: str
    host_compiler: str
    gpu_compiler: str = ""

    def __str__(self) -> str:
        return f"{self.accelerator}{'/' * bool(self.gpu_compiler)}{self.gpu_compiler}+{self.host_compiler}"

    def among(self, names: list[str] | None) -> bool:
        """Whether one of the names stands for this build; what a name leaves out is any."""
        own = {str(self), self.accelerator, f"{self.accelerator}+{self.host_compiler}"}
        return names is None or bool({*own, str(self).split("+")[0]} & {*names})


def builds(release: Release) -> Iterator[Build]:
    """Every kind of build of a release, those of AMD GPUs only where there was one."""
    for host in HOSTS:
        yield Build(accelerator="cpu", host_compiler=host)
        for compiler in GPU_COMPILERS:
            yield Build(accelerator="cuda", host_compiler=host, gpu_compiler=compiler)
        if "rocm" in release.components:
            yield Build(accelerator="rocm", host_compiler=host)


Claim = Callable[[Release, Build], None]
Test = Callable[[Release], None]


def each_build(accelerator: str = "", releases: str = "1.4..", compiler: str = "") -> Callable[[Claim], Test]:
    """A claim about a release and a build becomes a test for each release of a range, over its kinds of build: all,
    those of one accelerator, or those of one compiler of GPU code."""
    chosen = [release for name, release in RELEASES.items() if in_range(name, releases)]

    def test_of(claim: Claim) -> Test:
        def test(release: Release) -> None:
            for build in builds(release):
                if accelerator in ("", build.accelerator) and compiler in ("", build.gpu_compiler):
                    try:
                        claim(release, build)
                    except AssertionError as error:
                        error.add_note(f"build: {build}")
                        raise

        test.__name__, test.__doc__, test.__module__ = claim.__name__, claim.__doc__, claim.__module__
        return pytest.mark.parametrize("release", chosen, ids=[one.release for one in chosen])(test)

    return test_of


@dataclass(frozen=True, kw_only=True)
class Written:
    """What the contract writes for a build: variables for the environment, Bazel's flags, and the facts put in."""

    environment: Mapping[str, str]
    flags: tuple[str, ...]
    facts: Mapping[str, str]


@cache
def written(name: str, build: Build) -> Written:
    """The contract of a release with facts written by hand: no missing image or refusal leaves a case out."""
    release = RELEASES[name]
    tested = {component: support.tested or "" for component, support in release.components.items()}
    facts = {
        "accelerator": build.accelerator,
        "host_compiler": build.host_compiler,
        "gpu_compiler": build.gpu_compiler,
        "xla": "true",
        "cloud": "true",
        "sysroot": "none",
        "xla_digit": "1",
        "optimize": "portable",
        "optimize_flags": "",
        "python": release.pythons[-1],
        "capabilities": "6.1,7.0" if release.capability_format == "dotted" else "sm_61,compute_70",
        "amdgpu_targets": "gfx906,gfx90a",
        "wheel_name": "tensorflow",
        **{f"{tool}_path": f"/the/{tool}" for tool in ("python", "clang", "gcc", "cuda", "rocm")},
        **version_facts(tested),
    }
    its = Contract(KNOWLEDGE, release, facts)
    return Written(environment=its.environment(), flags=its.flags(), facts=facts)


def given(environment: Mapping[str, str], flags: Sequence[str]) -> dict[str, set[str]]:
    """Channel -> the variables that go through it."""
    by_flag = {match[1] for flag in flags if (match := re.match(r"--repo_env=(\w+)=", flag))}
    return {"environment": set(environment), "repo_env": by_flag}
