"""The pure pipeline in one object, and made-up knowledge to run it on: a profile's text in, any stage out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tfdock.errors import Incompatible, Problem, ProfileError, TfdockError
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.planning import make_plan
from tfdock.plan.render import BuildContext, render
from tfdock.plan.resources import size
from tfdock.profile import profile as profiles
from tfdock.resolve.question import LocalSource
from tfdock.resolve.resolution import Resolution, Resolver
from tfdock.resolve.resolve import resolve_or_suggest
from tfdock.types import Machine

GIB = 1 << 30
MACHINE = Machine(cpus=8, memory=32 * GIB)
FILE = "profiles/x.yaml"


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Every stage for a profile's text; `problems` for one that is refused."""

    knowledge: KnowledgeBase
    templates: Mapping[str, str]

    def resolve(
        self,
        text: str,
        *,
        others: Mapping[str, str] | None = None,
        local: LocalSource | None = None,
        local_gpus: Sequence[str] = (),
        machine: str = "x86_64",
    ) -> Resolution:
        profile, document = profiles.read(text, FILE, others)
        resolver = Resolver(
            document=document,
            knowledge=self.knowledge,
            file=FILE,
            local=local,
            local_gpus=local_gpus,
            machine=machine,
        )
        return resolve_or_suggest(resolver, profile)

    def render(self, text: str, *, local: LocalSource | None = None) -> BuildContext:
        return render(self.resolve(text, local=local), self.templates)

    def plan(
        self,
        text: str,
        *,
        machine: Machine = MACHINE,
        others: Mapping[str, str] | None = None,
        local: LocalSource | None = None,
    ) -> BuildPlan:
        profile, _ = profiles.read(text, FILE, others)
        resolution = self.resolve(text, others=others, local=local)
        resources = size(profile.resources, resolution.release.cost, machine)
        return make_plan(profile, resolution, resources, render(resolution, self.templates), self.knowledge, machine)

    def problems(self, text: str, *, local_gpus: Sequence[str] = ()) -> list[Problem]:
        """What the resolution refuses."""
        return problems_of(lambda: self.resolve(text, local_gpus=local_gpus), Incompatible)


def knowledge_of(tables: Mapping[str, str]) -> KnowledgeBase:
    """Knowledge of these tables, each from a file of its name."""
    return KnowledgeBase({name: [(f"{name}.yaml", text)] for name, text in tables.items()})


def refused(text: str, others: Mapping[str, str] | None = None) -> list[Problem]:
    """What reading a profile refuses."""
    return problems_of(lambda: profiles.read(text, FILE, others))


def problems_of(do: Callable[[], object], kind: type[TfdockError] = ProfileError) -> list[Problem]:
    """The problems with which something is refused."""
    with pytest.raises(kind) as caught:
        do()
    return list(caught.value.problems)


def problem_of(do: Callable[[], object], kind: type[TfdockError] = ProfileError) -> Problem:
    """The only problem with which something is refused."""
    (problem,) = problems_of(do, kind)
    return problem


# Nothing here exists. 9.9 takes exact toolkit versions only, 9.8 any; 1.9 writes capabilities as `x.y`; 9.7 reads
# variables that no image and no build can fill, and is not known to work with any accelerator.
MADE_UP_TABLES = {
    "accelerators": r"""
rows:
  - accelerator: xpu
    toolkit: xpu
    components: [xpu, xdnn]
    target_pattern: "xe[0-9]+"
    template: xpu
    vendor: Acme
    tools: ["{xpu_path}/bin/xcc", "{nowhere_path}/bin/xld"]
    source: x
  - accelerator: cuda
    toolkit: cuda
    components: [cuda, cudnn]
    target_pattern: '(sm|compute)_\d{2,3}[af]?'
    target_field: compute_capabilities
    capabilities: true
    compilers: [nvcc, clang]
    template: cuda
    vendor: NVIDIA
    source: x
  - {accelerator: cpu, source: x}
""",
    "releases": r"""
rows:
  - release: "9.9"
    patches: ["9.9.0", "9.9.1"]
    commits: {"9.9.1": aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}
    pythons: ["3.9", "3.10", "3.11"]
    bazel: "7.4.1"
    gpu_compiler: clang
    compilers: {clang: "30"}
    components:
      xpu: {tested: "5.0", accepted: ["5.0", "5.1"]}
      xdnn: {tested: "2", accepted: ["2"]}
      cuda: {tested: "20.1.0", accepted: ["20.0.1", "20.1.0", "20.1.3"], uncertain: ["20.2.0"], closed: true}
      cudnn: {tested: "9.0.0", accepted: ["9.0.0"], closed: true}
    capability_pattern: '(sm|compute)_\d{2,3}a?'
    official_targets: {cuda: [sm_86, compute_90], xpu: [xe1, xe2]}
    wheel: {target: "//:wheel", folder: bazel-bin/wheels}
    cost: {memory_per_job_mib: 2048, disk_gib: 50}
    source: x
  - release: "9.8"
    patches: ["9.8.0"]
    pythons: ["3.10"]
    bazel: "5.3.0"
    gpu_compiler: clang
    compilers: {clang: "30"}
    components:
      cuda: {tested: "20.0", accepted: ["20.0"]}
      cudnn: {accepted: ["8.8", "8.9"]}
    capability_pattern: '(sm|compute)_\d\d'
    capability_doubt: '(sm|compute)_90a'
    wheel: {target: "//:wheel", folder: bazel-bin/wheels}
    cost: {memory_per_job_mib: 2048, disk_gib: 50}
    source: x
  - release: "9.7"
    pythons: ["3.10"]
    bazel: "5.3.0"
    wheel: {target: "//:script", command: [bazel-bin/script, "{output}", --name, "{wheel_name}"]}
    cost: {memory_per_job_mib: 2048, disk_gib: 50}
    source: x
  - release: "1.9"
    patches: ["1.9.0"]
    pythons: ["3.10"]
    bazel: "0.13.0"
    gpu_compiler: nvcc
    components:
      cuda: {tested: "20.0", accepted: ["20.0"]}
      cudnn: {tested: "6", accepted: ["6"]}
    capability_pattern: '\d\.\d'
    capability_format: dotted
    wheel: {target: "//:script", command: [bazel-bin/script, "{output}"]}
    cost: {memory_per_job_mib: 2048, disk_gib: 50}
    source: x
""",
    "variables": r"""
rows:
  - {variable: PYTHON_BIN_PATH, releases: "1.4..", value: "{python_path}", source: x}
  - {variable: XPU_VERSION, releases: "9.9", value: "{xpu_minor}", when: {accelerator: xpu}, source: x}
  - variable: XPU_TARGETS
    releases: "9.9"
    value: "{targets}"
    channel: repo_env
    when: {accelerator: xpu}
    source: x
  - {variable: CAPABILITIES, releases: "1.4..", value: "{capabilities}", when: {accelerator: cuda}, source: x}
  - {variable: HAUNTED, releases: "9.7", value: "{ghost_path}", when: {xla: "true"}, source: x}
  - {variable: EMPTY, releases: "9.7", value: "{ghost}", when: {xla: "false"}, source: x}
""",
    "flags": r"""
rows:
  - {flag: "--config=opt", releases: "1.4..", source: x}
  - {flag: "--config=xpu", releases: "9.9..", when: {accelerator: xpu}, source: x}
  - {flag: "--config=clang", releases: "1.4..", when: {gpu_compiler: clang}, source: x}
  - {flag: "--config=nvcc", releases: "1.4..", when: {gpu_compiler: nvcc}, source: x}
""",
    "toolkits": r"""
rows:
  - {toolkit: cuda, version: "20.0", patches: ["20.0.0", "20.0.1"], targets: ["35", "86"], source: x}
  - {toolkit: cuda, version: "20.1", patches: ["20.1.0", "20.1.3"], targets: ["86", "90", "90a", "120"], source: x}
  - {toolkit: xpu, version: "5.0", patches: ["5.0.2"], targets: [xe1, xe2], source: x}
  - {toolkit: xpu, version: "5.1", targets: [xe1, xe2, xe10], source: x}
""",
    "compilers": r"""
rows:
  - {compiler: clang, version: "30", targets: ["35", "86", "90"], source: x}
""",
    "host_compilers": r"""
rows:
  - compiler: acc
    since: "1"
    path: "/opt/acc-{major}.{minor}/acc"
    symptoms: {host-compiler-too-old: "`acc: what?`"}
    source: x
  - {compiler: acc, since: "5", path: "/opt/acc-{major}/acc", source: x}
  - {compiler: gcc, since: "3", path: "/usr/bin/gcc-{major}", source: x}
""",
    "gpus": r"""
rows:
  - {gpu: one, accelerator: cuda, target: "8.6", names: ["NVIDIA Zeta One"], source: x}
  - {gpu: twelve, accelerator: cuda, target: "12.0", names: ["NVIDIA Zeta Twelve", "Zeta Twelve Pro"], source: x}
  - {gpu: old, accelerator: cuda, target: "3.5", source: x}
  - {gpu: slab, accelerator: xpu, target: xe2, names: ["Acme Slab (big)"], source: x}
""",
    "images": r"""
rows:
  - image: "registry.example/xpu/build:{version_minor}-python{python}-xpu{xpu_minor}"
    releases: "9.9"
    pythons: ["3.10", "3.11"]
    accelerators: [xpu]
    components: {xpu: "5"}
    template: xbase
    paths: {python: "/usr/bin/python{python}", xpu: "/opt/xpu-{xpu_minor}"}
    packages: [zlib1g-dev, curl]
    source: x
  - image: "build/cuda:{version}-{python}"
    releases: "1.9..9.9"
    pythons: ["3.10", "3.11"]
    accelerators: [cuda]
    template: sig-build
    paths: {python: /usr/bin/python3, cuda: "/usr/local/cuda-{cuda_minor}"}
    source: x
  - image: "build/cpu:{version}"
    releases: "1.9..9.9"
    pythons: ["3.10", "3.11"]
    accelerators: [cpu]
    template: sig-build
    paths: {python: /usr/bin/python3}
    unverified: true
    source: x
  - image: "build/arm:{version}"
    releases: "9.9"
    machine: aarch64
    template: sig-build
    paths: {python: /usr/bin/python3}
    source: x
""",
    "bazel": r"""
rows:
  - {purpose: disk_cache, option: "--disk_cache={path}", since: "0.14", source: x}
  - {purpose: resources, option: "--jobs={jobs}", source: x}
""",
}

MADE_UP_TEMPLATES = {
    "base/xbase.j2": "RUN install {{ packages | package_words }}\n",
    "accelerator/xpu.j2": "# XPU\nRUN test -d {{ paths.xpu | shell_word }}\n",
}
