"""Profile x knowledge -> `Resolution`: every value of a build, each with who chose it and why.

Nothing here knows a version, a vendor or a release: it matches the profile against rows. What cannot work, or what
nobody is known to have tested, is refused with all reasons at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tfdock.decide.contract import Contract, MissingFact, applies, version_facts
from tfdock.decide.devices import find_gpu, gpu_key, sorted_targets, target_number
from tfdock.decide.naming import Names
from tfdock.errors import Incompatible, Problem
from tfdock.model import BuildId, Capability, Choice, ImageRef, Source, Version
from tfdock.read.knowledge import Accelerator, Gpu, Image, KnowledgeBase, Release, Support
from tfdock.read.profile import Debug, HostCompiler, Profile
from tfdock.read.yamldoc import Node

# Where Debian and Ubuntu put the compiler of one version.
_HOST_COMPILERS = {"gcc": "/usr/bin/gcc-{version}", "clang": "/usr/lib/llvm-{version}/bin/clang"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """What the command line read from disk: the tree hash of `path`, and the patches' bytes by name."""

    tree: str | None = None
    patches: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Everything that is decided about a build before it is planned."""

    version: Version
    release: Release
    python: str
    accelerator: Accelerator
    components: Mapping[str, str]
    targets: tuple[str, ...]
    gpu_compiler: str
    host_compiler: str
    xla: bool
    optimize: tuple[str, ...]
    debug: Debug | None
    base: ImageRef
    image: Image
    paths: Mapping[str, str]
    bazel: str
    source: Source
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    startup: tuple[str, ...]
    package: tuple[str, ...]
    wheel_name: str
    local_version: str | None
    build_id: BuildId
    choices: tuple[Choice, ...]
    untested: tuple[Problem, ...]


def resolve(
    profile: Profile,
    document: Node,
    knowledge: KnowledgeBase,
    *,
    file: str,
    local: LocalSource | None = None,
    local_gpus: Sequence[str] = (),
    machine: str = "x86_64",
) -> Resolution:
    """Decide everything; raises Incompatible with every problem found.

    `document` gives each problem its line. `local_gpus` are the names of this machine's GPUs, for `gpus: local`.
    """
    resolver = _Resolver(profile, document, knowledge, file, local or LocalSource(), local_gpus, machine)
    return resolver.resolution()


class _Resolver:
    """One resolution in the making: each step reads earlier ones and adds choices or problems."""

    def __init__(
        self,
        profile: Profile,
        document: Node,
        knowledge: KnowledgeBase,
        file: str,
        local: LocalSource,
        local_gpus: Sequence[str],
        machine: str,
    ) -> None:
        self.profile = profile
        self.document = document
        self.knowledge = knowledge
        self.file = file
        self.local = local
        self.local_gpus = local_gpus
        self.machine = machine
        self.choices: list[Choice] = []
        self.problems: list[Problem] = []
        self.untested: list[Problem] = []

    # --- saying so ----------------------------------------

    def choose(self, name: str, value: object, source: str, reason: str) -> None:
        self.choices.append(Choice(field=name, value=str(value), source=source, reason=reason))

    def refuse(self, code: str, path: str, message: str, fix: str) -> None:
        self.problems.append(self._problem(code, path, message, fix))

    def doubt(self, code: str, path: str, message: str, fix: str) -> None:
        """Untested is refused as well, unless the profile says that it is meant."""
        problem = self._problem(code, path, message, f"{fix}, or say `allow_untested: true` to try it")
        (self.untested if self.profile.allow_untested else self.problems).append(problem)

    def _problem(self, code: str, path: str, message: str, fix: str) -> Problem:
        node = self.document.at(
            tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path))
        )
        return Problem(
            code=code,
            message=message,
            fix=fix,
            file=node.file or self.file,
            line=node.line,
            column=node.column,
            field=path,
        )

    def stop_if_refused(self) -> None:
        if self.problems:
            raise Incompatible(*sorted(self.problems, key=lambda item: (item.line or 0, item.column or 0)))

    # --- the whole ----------------------------------------

    def resolution(self) -> Resolution:
        release, version = self._release()
        python = self._python(release)
        accelerator = self._accelerator()
        self.stop_if_refused()
        components = self._components(release, accelerator)
        targets = self._targets(release, accelerator, components)
        self.stop_if_refused()
        gpu_compiler = self._gpu_compiler(release, accelerator, targets)
        host_compiler = self._host_compiler(release)
        image = self._image(release, accelerator, python, components)
        self.stop_if_refused()
        assert image is not None
        base = self._base(image, python, version, components)
        bazel = self._bazel(release)
        source = self._source(release, version)
        wheel_name = self._wheel_name()
        xla = self._xla()
        optimize = self._optimize()
        debug = self.profile.debugging
        self.choose(
            "debug", debug.mode if debug else "off", *_asked_or_default(debug is not None, "optimised, no symbols")
        )
        paths = self._paths(image, version, python, components)
        facts = self._facts(
            release, version, python, accelerator, components, targets, gpu_compiler, host_compiler, paths, optimize
        )
        names = Names(
            version=version,
            python=python,
            accelerator=accelerator.accelerator,
            toolkit=accelerator.toolkit,
            components=tuple(components.items()),
            targets=targets,
            compiler=gpu_compiler if gpu_compiler != release.gpu_compiler else "",
            cpu=self.profile.optimize if isinstance(self.profile.optimize, str) else tuple(self.profile.optimize),
            debug=debug is not None,
            xla=xla,
            source=source,
            machine=self.machine,
        )
        local_version = self._local_version(names)
        contract = Contract(self.knowledge, release, facts)
        try:
            environment, flags, package = contract.environment(), self._flags(contract), contract.package()
        except MissingFact as missing:
            self.refuse(
                "knowledge-placeholder",
                "tensorflow",
                f"the knowledge row `{missing.row}` asks for {missing.fact}, which this build does not have",
                "add the path or component to the image's or release's row, or a `when:` to this one",
            )
        self.stop_if_refused()
        return Resolution(
            version=version,
            release=release,
            python=python,
            accelerator=accelerator,
            components=components,
            targets=targets,
            gpu_compiler=gpu_compiler,
            host_compiler=host_compiler,
            xla=xla,
            optimize=optimize,
            debug=debug,
            base=base,
            image=image,
            paths=paths,
            bazel=bazel,
            source=source,
            environment=environment,
            flags=flags,
            startup=tuple(self.profile.bazel.startup),
            package=package,
            wheel_name=wheel_name,
            local_version=local_version,
            build_id=names.build_id,
            choices=tuple(self.choices),
            untested=tuple(self.untested),
        )

    # --- release and Python ----------------------------------------

    def _release(self) -> tuple[Release, Version]:
        source = self.profile.source
        asked = Version(source.release)
        path = "tensorflow.release" if "release" in self.document.at(("tensorflow",)).entries else "tensorflow"
        release = self.knowledge.releases.get(str(asked.minor))
        if release is None:
            known = sorted(self.knowledge.releases, key=Version)
            near = difflib.get_close_matches(str(asked.minor), known, n=1) or known[-1:]
            self.refuse(
                "release-unknown",
                path,
                f"TensorFlow {asked} is not known; known releases: {known[0]} to {known[-1]}",
                f"use a known release such as `{near[0]}`, or add a row to a folder given by `--knowledge`",
            )
            self.stop_if_refused()
        assert release is not None
        official = not (source.git or source.archive or source.path or source.ref)
        if len(asked.parts) < 3 and release.patches:
            version = Version(release.patches[-1])
            self.choose(
                "tensorflow", version, f"releases.yaml {release.release}", "newest patch release of the minor"
            )
            return release, version
        if official and release.patches and str(asked) not in release.patches:
            self.refuse(
                "release-unknown",
                path,
                f"TensorFlow {asked} was never released; {release.release} has {', '.join(release.patches)}",
                f'use one of them, or name the source: `tensorflow: {{release: "{release.patches[-1]}", ref: …}}`',
            )
        self.choose("tensorflow", asked, "profile", "as asked")
        return release, asked

    def _python(self, release: Release) -> str:
        asked = self.profile.python
        if asked is None:
            newest = max(release.pythons, key=Version)
            self.choose(
                "python", newest, f"releases.yaml {release.release}", "newest Python the release is built for"
            )
            return newest
        if asked not in release.pythons:
            self.doubt(
                "python-unsupported",
                "python",
                f"TensorFlow {release.release} is not built for Python {asked}, but for {', '.join(release.pythons)}",
                f'use `python: "{max(release.pythons, key=Version)}"`',
            )
        self.choose("python", asked, "profile", "as asked")
        return asked

    # --- accelerator, its components and targets ----------------------------------------

    def _asked_components(self) -> dict[str, str]:
        fields = {name: getattr(self.profile, name, None) for name in ("cuda", "cudnn", "rocm")}
        return {**{name: value for name, value in fields.items() if value}, **self.profile.components}

    def _accelerator(self) -> Accelerator:
        known = self.knowledge.accelerators
        evidence = dict(self._accelerator_evidence())
        asked = self.profile.accelerator
        if asked is not None and asked not in known:
            near = difflib.get_close_matches(asked, known, n=1)
            self.refuse(
                "accelerator-unknown",
                "accelerator",
                f"the accelerator `{asked}` is not known",
                f"did you mean `{near[0]}`?" if near else f"known: {', '.join(sorted(known))}",
            )
            self.stop_if_refused()
        self._refuse_unknown_devices(known.get(asked or ""))
        names = {asked} if asked else set(evidence.values())
        for path, name in evidence.items():
            if asked and name != asked:
                self.refuse(
                    "accelerator-conflict",
                    path,
                    f"`{path}` speaks of {name}, but `accelerator:` says {asked}",
                    f"remove `{path}`, or write `accelerator: {name}`",
                )
        if len(names) > 1:
            self.refuse(
                "accelerator-conflict",
                next(iter(evidence)),
                f"the profile mixes accelerators: {', '.join(f'{path} ({name})' for path, name in evidence.items())}",
                "one wheel serves one accelerator: make two profiles",
            )
        name = next(iter(sorted(names)), "cpu")
        where = "profile" if asked or evidence else "default"
        reason = (
            "as asked" if asked else f"`{next(iter(evidence))}` asks for it" if evidence else "no GPU is asked for"
        )
        self.choose("accelerator", name, where, reason)
        return known[name]

    def _refuse_unknown_devices(self, asked: Accelerator | None) -> None:
        """What no accelerator is known for must not pass for a build without one."""
        if self.profile.gpus == "local" and not self.local_gpus:
            self.refuse(
                "gpu-local-none",
                "gpus",
                "`gpus: local` found no GPU on this machine",
                "name them: `gpus: [rtx3080]` (`nvidia-smi` or `rocminfo` must work for `local`)",
            )
        for path, name in self._asked_gpus():
            if self._gpu(name) is None:
                near = difflib.get_close_matches(gpu_key(name), self.knowledge.gpus, n=3, cutoff=0.5)
                self.refuse(
                    "gpu-unknown",
                    path,
                    f"the GPU `{name}` is not known",
                    (f"did you mean {' or '.join(f'`{one}`' for one in near)}? " if near else "")
                    + "Otherwise give its capability: `compute_capabilities: [sm_86]`",
                )
        rows = [asked] if asked else self.knowledge.accelerators.values()
        patterns = [row.target_pattern for row in rows if row.target_pattern]
        for path, target in self._asked_targets():
            if not any(re.fullmatch(pattern, target) for pattern in patterns):
                self.refuse(
                    "target-syntax",
                    path,
                    f"`{target}` is not a target of {asked.accelerator if asked else 'any accelerator'}",
                    f"targets look like {' or '.join(patterns)}"
                    if patterns
                    else f"remove `{path.partition('[')[0]}`",
                )

    def _accelerator_evidence(self) -> Iterable[tuple[str, str]]:
        """(field, accelerator) for each field of the profile that implies one."""
        accelerators = self.knowledge.accelerators.values()
        for name in self._asked_components():
            for row in accelerators:
                if name in row.components:
                    yield (name if hasattr(self.profile, name) else f"components.{name}"), row.accelerator
        for path, target in self._asked_targets():
            for row in accelerators:
                if row.target_pattern and re.fullmatch(row.target_pattern, target):
                    yield path, row.accelerator
        for path, name in self._asked_gpus():
            gpu = self._gpu(name)
            if gpu is not None:
                yield path, gpu.accelerator

    def _asked_targets(self) -> list[tuple[str, str]]:
        for name in ("compute_capabilities", "amdgpu_targets", "targets"):
            values = getattr(self.profile, name)
            if values is not None:
                return [(f"{name}[{index}]", value) for index, value in enumerate(values)]
        return []

    def _asked_gpus(self) -> list[tuple[str, str]]:
        gpus = self.profile.gpus
        if gpus == "local":
            return [("gpus", name) for name in self.local_gpus]
        return [(f"gpus[{index}]", name) for index, name in enumerate(gpus or [])]

    def _gpu(self, name: str) -> Gpu | None:
        return find_gpu(self.knowledge, name)

    def _components(self, release: Release, accelerator: Accelerator) -> dict[str, str]:
        asked = self._asked_components()
        for name in asked:
            if name not in accelerator.components:
                self.refuse(
                    "component-unused",
                    name if hasattr(self.profile, name) else f"components.{name}",
                    f"`{name}` means nothing to a {accelerator.accelerator} build",
                    f"remove it; {accelerator.accelerator} takes {', '.join(accelerator.components) or 'none'}",
                )
        if accelerator.components and not any(name in release.components for name in accelerator.components):
            self.doubt(
                "accelerator-untested",
                "accelerator",
                f"nothing is known of TensorFlow {release.release} with {accelerator.accelerator}",
                "take a release that is known to work with it",
            )
        return {
            name: self._component(release, accelerator, name, asked.get(name))
            for name in accelerator.components
            if name in asked or name in release.components
        }

    def _component(self, release: Release, accelerator: Accelerator, name: str, asked: str | None) -> str:
        support = release.components.get(name, Support())
        row = f"releases.yaml {release.release}"
        if asked is None:
            if support.tested is None:
                self.refuse(
                    "component-missing",
                    name,
                    f"no {name} version is known to be tested with TensorFlow {release.release}",
                    f"say which: `{name}: …`" + _either(support.accepted),
                )
                return ""
            value = self._full_version(accelerator, name, support.tested, support)
            self.choose(name, value, row, "the version the release was tested with")
            return value
        value = self._full_version(accelerator, name, asked, support)
        known = {*support.accepted, *support.uncertain, *((support.tested,) if support.tested else ())}
        if support.closed and value not in known:
            near = [version for version in support.accepted if Version(version).matches(Version(asked))]
            self.refuse(
                "component-not-accepted",
                name,
                f"TensorFlow {release.release} downloads {name} itself and takes exact versions only; "
                f"{asked} is not among {', '.join(support.accepted)}",
                f'use `{name}: "{support.tested if support.tested in near or not near else near[-1]}"`',
            )
        elif support.closed and value in support.uncertain:
            self.doubt(
                "component-untested",
                name,
                f"{name} {value} was added to TensorFlow {release.release} about when it was cut",
                f'use `{name}: "{support.tested}"`',
            )
        elif known and not support.closed and not any(_same_minor(value, version) for version in known):
            self.doubt(
                "component-untested",
                name,
                f"{name} {value} with TensorFlow {release.release} is untested; tested: {support.tested}",
                f'use `{name}: "{support.tested}"`',
            )
        reason = "as asked" if value == asked else f"newest known version of {asked}"
        self.choose(name, value, "profile", reason)
        return value

    def _full_version(self, accelerator: Accelerator, name: str, asked: str, support: Support) -> str:
        """An exact version for `12.2`: closed lists are exact already, a toolkit's row knows its patch releases."""
        if support.closed or name != accelerator.toolkit or len(Version(asked).parts) > 2:
            return asked
        if len(Version(asked).parts) < 2:
            known = (*support.accepted, support.tested or asked)
            asked = next((one for one in reversed(known) if Version(one).matches(Version(asked))), asked)
        toolkit = self.knowledge.toolkits.get((accelerator.toolkit, str(Version(asked).minor)))
        return toolkit.patches[-1] if toolkit and toolkit.patches else asked

    def _targets(self, release: Release, accelerator: Accelerator, components: Mapping[str, str]) -> tuple[str, ...]:
        if accelerator.target_pattern is None:
            return ()
        wanted = [*self._asked_targets(), *self._targets_of_gpus(release, accelerator)]
        if not wanted:
            return self._official_targets(release, accelerator, components)
        for path, target in wanted:
            self._check_capability(release, accelerator, path, target)
            self._check_toolkit(release, accelerator, components, path, target)
        self.stop_if_refused()
        targets = sorted_targets(target for _, target in wanted)
        self.choose("targets", ", ".join(targets), "profile", self._target_reason(wanted))
        return targets

    def _official_targets(
        self, release: Release, accelerator: Accelerator, components: Mapping[str, str]
    ) -> tuple[str, ...]:
        official = release.official_targets.get(accelerator.accelerator, ())
        if not official:
            self.refuse(
                "targets-missing",
                "accelerator",
                f"it is not known for which GPUs TensorFlow {release.release} is officially built",
                f"say for which: `gpus: [{self._example_gpu(accelerator, components)}]`",
            )
        for target in official:
            self._check_toolkit(release, accelerator, components, accelerator.toolkit or "", target)
        row = f"releases.yaml {release.release}"
        self.choose("targets", ", ".join(official), row, "the official wheel's list")
        return official

    def _example_gpu(self, accelerator: Accelerator, components: Mapping[str, str]) -> str:
        toolkit = accelerator.toolkit or ""
        row = self.knowledge.toolkits.get((toolkit, str(Version(components.get(toolkit, "")).minor)))
        able = row.targets if row else ()
        gpus = (gpu for gpu in self.knowledge.gpus.values() if gpu.accelerator == accelerator.accelerator)
        return next((gpu.gpu for gpu in gpus if gpu.target.replace(".", "") in able), "…")

    def _target_reason(self, wanted: Sequence[tuple[str, str]]) -> str:
        if self.profile.gpus is None:
            return "as asked"
        names = self.local_gpus if self.profile.gpus == "local" else self.profile.gpus
        return f"what {', '.join(names)} run{'s' if len(wanted) == 1 else ''} natively"

    def _targets_of_gpus(self, release: Release, accelerator: Accelerator) -> list[tuple[str, str]]:
        found = []
        for path, name in self._asked_gpus():
            gpu = self._gpu(name)
            if gpu is None or gpu.accelerator != accelerator.accelerator:
                continue  # said as gpu-unknown or accelerator-conflict
            if not accelerator.capabilities:
                found.append((path, gpu.target))
                continue
            capability = Capability.of_gpu(gpu.target)
            # Before 2.3 a release knows only `x.y`, which means SASS and PTX: nothing narrower can be asked of it.
            ptx = release.capability_format == "dotted"
            found.append((path, str(Capability(capability.major, capability.minor, ptx=ptx))))
        return found

    def _check_capability(self, release: Release, accelerator: Accelerator, path: str, target: str) -> None:
        """Whether the release can be told of the target."""
        if accelerator.capabilities and release.capability_format == "dotted" and not Capability.parse(target).ptx:
            self.refuse(
                "capability-needs-ptx",
                path,
                f"TensorFlow {release.release} takes capabilities only as `x.y`, which means SASS and PTX",
                f"write `{str(target).replace('sm_', 'compute_')}`",
            )
        elif not self._takes(release, accelerator, target):
            self.doubt(
                "capability-syntax",
                path,
                f"TensorFlow {release.release} is not known to take the capability `{target}`",
                f"take a release that knows it{self._releases_taking(release, accelerator, target)}",
            )

    def _check_toolkit(
        self, release: Release, accelerator: Accelerator, components: Mapping[str, str], path: str, target: str
    ) -> None:
        """Whether the toolkit can compile for the target."""
        toolkit = accelerator.toolkit and components.get(accelerator.toolkit)
        row = toolkit and self.knowledge.toolkits.get((accelerator.toolkit or "", str(Version(toolkit).minor)))
        said = any(problem.field == accelerator.toolkit for problem in (*self.problems, *self.untested))
        if toolkit and not row and not said:
            self.doubt(
                "toolkit-unknown",
                accelerator.toolkit or "",
                f"{accelerator.toolkit} {toolkit} is not known",
                "use a known version",
            )
        elif row and target_number(target) not in row.targets:
            self._refuse_target(release, accelerator, path, target, str(toolkit))

    def _refuse_target(
        self, release: Release, accelerator: Accelerator, path: str, target: str, toolkit: str
    ) -> None:
        name = accelerator.toolkit or ""
        able = {
            row.version
            for row in self.knowledge.toolkits.values()
            if row.toolkit == name and target_number(target) in row.targets
        }
        ways = []
        here = _able_versions(release, name, able)
        if here:
            newer = [version for version in here if version > Version(toolkit)]
            ways.append(f'`{name}: "{newer[0] if newer else here[-1]}"` compiles it')
        else:
            ways += self._release_with(release, accelerator, target, able)
        ways.append("compile for another GPU")
        self.refuse(
            "target-not-in-toolkit", path, f"{name} {toolkit} cannot compile for `{target}`", ", or ".join(ways)
        )

    def _release_with(
        self, release: Release, accelerator: Accelerator, target: str, able: Collection[str]
    ) -> list[str]:
        """The nearest release, newer ones first, that knows the target and takes a toolkit that compiles it."""
        rows = sorted(self.knowledge.releases.values(), key=lambda row: Version(row.release))
        place = rows.index(release)
        for row in (*rows[place + 1 :], *reversed(rows[:place])):
            versions = _able_versions(row, accelerator.toolkit or "", able)
            if versions and self._takes(row, accelerator, target):
                newest = row.patches[-1] if row.patches else row.release
                return [f'`tensorflow: "{newest}"` takes {accelerator.toolkit} {versions[0]}']
        return []

    def _takes(self, release: Release, accelerator: Accelerator, target: str) -> bool:
        """Whether the release is known to be able to be told of the target."""
        if not accelerator.capabilities:
            return True
        pattern, dotted = release.capability_pattern, release.capability_format == "dotted"
        if dotted and Capability.parse(target).suffix:
            return False  # `x.y` has no place for a letter
        return pattern is None or bool(re.fullmatch(pattern, self._written(release, target)))

    def _releases_taking(self, release: Release, accelerator: Accelerator, target: str) -> str:
        able = [
            Version(row.release)
            for row in self.knowledge.releases.values()
            if row.capability_pattern and self._takes(row, accelerator, target)
        ]
        newer = [version for version in able if version > Version(release.release)]
        return f", {min(newer)} or newer" if newer else f", such as {max(able)}" if able else ""

    @staticmethod
    def _written(release: Release, target: str) -> str:
        return Capability.parse(target).dotted if release.capability_format == "dotted" else target

    # --- compilers ----------------------------------------

    def _gpu_compiler(self, release: Release, accelerator: Accelerator, targets: Sequence[str]) -> str:
        asked = self.profile.compiler
        if release.gpu_compiler is None or not accelerator.capabilities:
            if asked is not None:
                self.refuse(
                    "compiler-unused",
                    "compiler",
                    f"`compiler` says who compiles GPU code: a {accelerator.accelerator} build leaves no choice",
                    "remove it; `host_compiler` says who compiles C++",
                )
            return ""
        default = release.gpu_compiler
        cannot = self._cannot_compile(default, release, targets)
        if asked is None and not cannot:
            self.choose("compiler", default, f"releases.yaml {release.release}", "the release's own GPU compiler")
            return default
        if asked is None:
            self.choose("compiler", "nvcc", "compilers.yaml", cannot)
            return "nvcc"
        reason = self._cannot_compile(asked, release, targets)
        if reason:
            self.refuse("compiler-cannot-emit", "compiler", reason, "use `compiler: nvcc`")
        self.choose("compiler", asked, "profile", "as asked")
        return asked

    def _cannot_compile(self, compiler: str, release: Release, targets: Sequence[str]) -> str:
        row = self.knowledge.compilers.get((compiler, release.clang or ""))
        missing = [target for target in targets if row and target_number(target) not in row.targets]
        return f"{compiler} {release.clang} cannot emit {', '.join(missing)}" if missing else ""

    def _host_compiler(self, release: Release) -> str:
        asked = self.profile.host_compiler
        if asked is not None:
            name = asked if isinstance(asked, str) else asked.name
            self.choose("host_compiler", name, "profile", "as asked")
            return name
        name = "clang" if release.clang else "gcc"
        self.choose("host_compiler", name, f"releases.yaml {release.release}", "what the release is built with")
        return name

    # --- base image, Bazel, source ----------------------------------------

    def _image(
        self, release: Release, accelerator: Accelerator, python: str, components: Mapping[str, str]
    ) -> Image | None:
        for row in self._images(release, accelerator, components):
            if not row.pythons or python in row.pythons:
                return row
        self.refuse(
            "image-unknown",
            "base",
            f"no base image is known for TensorFlow {release.release}, Python {python}, {accelerator.accelerator}"
            + "".join(f", {name} {value}" for name, value in components.items()),
            self._pythons_with_image(release, accelerator, components)
            or "use a toolkit version that has one, or add a row to `images.yaml` in a `--knowledge` folder",
        )
        return None

    def _images(self, release: Release, accelerator: Accelerator, components: Mapping[str, str]) -> Iterable[Image]:
        """The rows that fit, whatever the Python."""
        return (
            row
            for row in self.knowledge.images
            if applies(release, row.releases)
            and (not row.accelerators or accelerator.accelerator in row.accelerators)
            and all(Version(components.get(name, "")).matches(Version(want)) for name, want in row.components.items())
        )

    def _pythons_with_image(self, release: Release, accelerator: Accelerator, components: Mapping[str, str]) -> str:
        able = {python for row in self._images(release, accelerator, components) for python in row.pythons}
        return f"use one of these Pythons: {', '.join(sorted(able, key=Version))}" if able else ""

    def _base(self, image: Image, python: str, version: Version, components: Mapping[str, str]) -> ImageRef:
        if self.profile.base:
            self.choose("base", self.profile.base, "profile", "as asked")
            return ImageRef.parse(self.profile.base)
        facts = version_facts({"python": python, "version": str(version), **components})
        reference = ImageRef.parse(image.image.format_map(facts))
        doubt = "; nobody has checked that it exists" if image.unverified else ""
        self.choose("base", reference, "images.yaml", f"the known image for this release and Python{doubt}")
        return reference

    def _paths(self, image: Image, version: Version, python: str, components: Mapping[str, str]) -> dict[str, str]:
        """Where the tools stand in the base image."""
        facts = version_facts({"python": python, "version": str(version), **components})
        paths = {name: path.format_map(facts) for name, path in image.paths.items()}
        host = self.profile.host_compiler
        if not isinstance(host, HostCompiler) or not (host.path or host.version):
            return paths
        return paths | {host.name: host.path or _HOST_COMPILERS[host.name].format(version=host.version)}

    def _bazel(self, release: Release) -> str:
        asked = self.profile.bazel.version
        if asked:
            self.choose("bazel", asked, "profile", "as asked")
            return asked
        self.choose("bazel", release.bazel, f"releases.yaml {release.release}", "the version the release pins")
        return release.bazel

    def _source(self, release: Release, version: Version) -> Source:
        asked = self.profile.source
        patches = dict(self.local.patches)
        if asked.archive:
            self.choose("source", asked.archive, "profile", "archive, pinned by its sha256")
            return Source(kind="archive", location=asked.archive, sha256=asked.sha256, patches=patches)
        if asked.path:
            self.choose("source", asked.path, "profile", "local checkout, identified by the hash of its tree")
            return Source(kind="path", location=asked.path, sha256=self.local.tree, patches=patches)
        tag = release.tag.format_map({"version": str(version)})
        refs = (asked.ref or tag, *asked.fallback)
        location = asked.git or release.repository
        commit = release.commits.get(str(version)) if refs == (tag,) and not asked.git else None
        self.choose(
            "source",
            f"{location} {' then '.join(refs)}",
            "profile" if asked.git or asked.ref or asked.fallback else f"releases.yaml {release.release}",
            f"commit {commit[:12]}" if commit else "the tag may move: only a commit is a fixed source",
        )
        return Source(
            kind="git",
            location=location,
            refs=refs,
            commit=commit,
            patches=patches,
            official=not asked.git and refs == (tag,),
        )

    # --- the contract ----------------------------------------

    def _xla(self) -> bool:
        asked = "xla" in self.profile.model_fields_set
        self.choose("xla", str(self.profile.xla).lower(), *_asked_or_default(asked, "TensorFlow's own default"))
        return self.profile.xla

    def _wheel_name(self) -> str:
        asked = self.profile.wheel.name
        self.choose(
            "wheel.name", asked or "tensorflow", *_asked_or_default(bool(asked), "what `pip install` asks for")
        )
        return asked or "tensorflow"

    def _optimize(self) -> tuple[str, ...]:
        optimize = self.profile.optimize
        if optimize == "portable":
            self.choose("optimize", "portable", "default", "runs on every x86-64 CPU the release supports")
            return ()
        flags = ("-march=native",) if optimize == "native" else tuple(f"-m{name}" for name in optimize)
        self.choose("optimize", " ".join(flags), "profile", "as asked")
        return flags

    def _facts(
        self,
        release: Release,
        version: Version,
        python: str,
        accelerator: Accelerator,
        components: Mapping[str, str],
        targets: Sequence[str],
        gpu_compiler: str,
        host_compiler: str,
        paths: Mapping[str, str],
        optimize: Sequence[str],
    ) -> dict[str, str]:
        """What conditions (`when:`) and placeholders of the contract's rows may speak of."""
        facts = {
            **version_facts({"python": python, "version": str(version), **components}),
            "release": release.release,
            "accelerator": accelerator.accelerator,
            "gpu_compiler": gpu_compiler,
            "host_compiler": host_compiler,
            "xla": str(self.profile.xla).lower(),
            "xla_digit": str(int(self.profile.xla)),
            "optimize": self.profile.optimize if isinstance(self.profile.optimize, str) else "custom",
            "optimize_flags": " ".join(optimize),
            "debug": str(self.profile.debugging is not None).lower(),
            "wheel_name": self.profile.wheel.name or "tensorflow",
            "targets": ",".join(targets),
            "amdgpu_targets": ",".join(targets),
            "output": "/tf/staging/raw",
        }
        if accelerator.capabilities:
            facts["capabilities"] = ",".join(self._written(release, target) for target in targets)
        return facts | {f"{name}_path": path for name, path in paths.items()}

    def _flags(self, contract: Contract) -> tuple[str, ...]:
        """The contract's flags, then the profile's own: the later of two flags wins."""
        bazel, debug = self.profile.bazel, self.profile.debugging
        flags = [*contract.flags()]
        if debug:
            flags += [f"--compilation_mode={debug.mode}"]
            flags += ["--strip=never", "--copt=-g"] if debug.symbols else []
            flags += [f"--per_file_copt={rule.files}@{','.join(rule.copts)}" for rule in debug.per_file]
        flags += [f"--config={name}" for name in bazel.configs]
        flags += [f"--copt={option}" for option in bazel.copts]
        # As they stand: `-Xclang a -Xclang b` is four options.
        return (*flags, *bazel.flags)

    def _local_version(self, names: Names) -> str | None:
        asked = self.profile.wheel.local_version
        local = asked or names.local_version
        source, reason = _asked_or_default(asked is not None, "tells the wheel from the official one")
        self.choose("wheel.local_version", local or "none", source, reason)
        return local


# --- pure helpers ----------------------------------------


def _same_minor(one: str, other: str) -> bool:
    length = min(2, len(Version(one).parts), len(Version(other).parts))
    return Version(one).parts[:length] == Version(other).parts[:length]


def _asked_or_default(asked: bool, reason: str) -> tuple[str, str]:
    """Source and reason of a choice that the profile may leave open."""
    return ("profile", "as asked") if asked else ("default", reason)


def _able_versions(release: Release, toolkit: str, able: Collection[str]) -> list[Version]:
    """The versions of a toolkit that a release takes and that are (by their minor version) among those able."""
    support = release.components.get(toolkit, Support())
    taken = sorted({Version(one) for one in (*support.accepted, *((support.tested,) if support.tested else ()))})
    return [version for version in taken if str(version.minor) in able]


def _either(versions: Sequence[str]) -> str:
    return f" ({', '.join(versions)})" if versions else ""
