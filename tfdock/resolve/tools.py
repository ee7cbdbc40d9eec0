"""Choose the tools that are not part of the toolkit: the C++ compiler, Bazel, and the profile's options for Bazel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from tfdock.knowledge.contract import holds
from tfdock.knowledge.fits import distribution_of, is_plain, lacks_compiler
from tfdock.knowledge.image_rows import ImageRow
from tfdock.knowledge.release_rows import Flag, Release, Variable, applies
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import PackagedCompiler
from tfdock.profile.profile import HostCompiler
from tfdock.resolve.grades import OF_THE_BASE, Reports, tested_for
from tfdock.resolve.question import Question, RuleFinding, prevented, sentences
from tfdock.resolve.rules import Combination
from tfdock.types import NATIVE, Version, same_minor

# The fields that exchange objects with other machines.
NATIVE_SHARED = "code for this machine's CPU alone would be shared with other machines"
OF_OTHER_CPUS = "another machine would get objects that it may not be able to run"
_ENVIRONMENT_FLAGS = ("--repo_env", "--action_env", "--host_action_env")


def host_compiler_of(question: Question, chosen: Combination) -> HostCompiler:
    """Return the C++ compiler of the profile, or else of the release for this GPU compiler or accelerator."""
    asked, release = question.profile.host_compiler, chosen.release
    # The C++ compiler depends on the compiler of GPU code, or else on the family of devices.
    beside = chosen.compiler or chosen.accelerator.accelerator
    default = release.host_compilers.get(beside)
    packages = (name for name, _ in question.knowledge.host_compilers)
    known = list(dict.fromkeys([*release.compilers, *release.host_compilers.values(), *packages]))
    if asked is None:
        name, known_versions = default or known[0], default or release.compilers
        source = f"releases.yaml {release.release}" if known_versions else "host_compilers.yaml"
        reason = "the release is built with it" if known_versions else "the first known one; the release names none"
        question.notes.choose("host_compiler", name, source, reason)
        return HostCompiler.model_construct(name=name)  # the rows may have names that no profile can write
    name, version = (asked, None) if isinstance(asked, str) else (asked.name, asked.version)
    if name not in known:
        path = "host_compiler" if isinstance(asked, str) else "host_compiler.name"
        message = f"the C++ compiler `{name}` is not known"
        why = f"known: {', '.join(sorted(known))}"
        question.notes.refuse("compiler-unknown", path, message, why=why)
    elif default and name != default:
        message = f"TensorFlow {release.release} is not known to accept {name} beside {beside}"
        why = f"in such builds, C++ code is compiled by {default}"
        question.notes.doubt("host-compiler-untested", "host_compiler", message, why=why, part="host_compiler")
    if version and name in known:
        _check_host_compiler(question, chosen, name, version)
    question.notes.choose("host_compiler", f"{name} {version or ''}".strip(), "profile", "as asked")
    return HostCompiler(name=name) if isinstance(asked, str) else asked


def _check_host_compiler(question: Question, chosen: Combination, name: str, version: str) -> None:
    """Report a compiler that is too new for the toolkit, too old for the release, or untested."""
    release = chosen.release
    tested = tested_for(release, "host_compiler", name)
    broken = next(_compiler_findings(chosen, name, version), None)
    if broken:
        asked = f"`host_compiler` says {name} {version}" if version not in broken.message else ""
        question.notes.find(replace(broken, path="host_compiler", why=sentences(asked, broken.why)))
    # From gcc 5 and clang 5 on, all other numbers of a version are bug fixes.
    elif not any(
        same_minor(version, one) or 5 <= Version(one).parts[0] == Version(version).parts[0] for one in tested
    ):
        uses = [(name, tested_version) for tested_version in tested] or [*release.compilers.items()]
        message = f"TensorFlow {release.release} is not known to be built with {name} {version}"
        why = f"it is built with {' and '.join(map(' '.join, uses))}" if uses else ""
        question.notes.doubt("host-compiler-untested", "host_compiler", message, why=why, part="host_compiler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """Base images for one build: their contents, and reasons why the build is known to fail in them."""

    question: Question
    chosen: Combination
    reports: Reports
    host_compiler: HostCompiler

    def findings(self, image: ImageRow, base: str) -> Iterator[RuleFinding]:
        """Yield why the build is known to fail in a base image: its C library, its C++ compiler, its Python."""
        parts = self.parts(image, base)
        own = self.question.profile.base_image
        whose = f"`base` {base}" if own else f"the image {base}"
        found = [*self._breaking(parts)]
        for finding in found:
            message = f"{whose} has {finding.path} {parts[finding.path]}, and {finding.message}"
            yield replace(finding, path="base", message=message, fix=self._others())
        if own and self.question.profile.provides is None and not found:
            yield from self._lacks(image, base)

    def fails_in(self, image: ImageRow, base: str) -> bool:
        """Return whether the build is known to fail in a base image, or not known to work."""
        return any(finding.weight != "warning" for finding in self.findings(image, base))

    def parts(self, image: ImageRow, base: str) -> dict[str, str]:
        """Return the known versions of a base image's C library and C++ compiler."""
        host, profile = self.host_compiler.name, self.question.profile
        row, exact = distribution_of(self.question.knowledge, base)
        holds = row.holds if row else {}
        parts = {name: version for name, version in holds.items() if name in OF_THE_BASE}
        # A compiler named by version was checked before, and a compiler at a path is not checked.
        if self.host_compiler.version or self.host_compiler.path:
            return parts
        path = image.paths.get(host)
        same = (key.removeprefix(f"{host}-") for key, other in image.paths.items() if other == path and key != host)
        by_row = "" if profile.base_image else next(same, "")
        version = (profile.provides or {}).get(host) or by_row or (holds.get(host, "") if exact else "")
        return parts | ({host: version} if version else {})

    def _lacks(self, image: ImageRow, base: str) -> Iterator[RuleFinding]:
        """Yield what a custom base image lacks and tfdock does not install: the toolkit, its compiler, tools."""
        knowledge, accelerator = self.question.knowledge, self.chosen.accelerator
        release, toolkit = self.chosen.release.release, self.chosen.accelerator.toolkit
        title = self.chosen.title(toolkit)
        needed = toolkit in image.paths and toolkit not in image.archives
        with_compiler = f"name an image with {title} and its compiler, or remove `base`"
        like, exact = distribution_of(knowledge, base)
        # The default `gcc` of the image also has a package for this version.
        gccs = [like.holds.get("gcc", "").partition(".")[0], *like.compilers.get("gcc", ())] if like else []
        own = {f"g++-{version}" for version in gccs}
        named = [name for name in image.packages if re.search(r"-\d+$|^python\d\.", name) and name not in own]
        of = distribution_of(knowledge, image.image)[0]
        why, fix, weight = "", with_compiler, "error"
        if needed and lacks_compiler(accelerator, base):
            message = f"`base` {base} has only the libraries of {title}, not its compiler"
        elif needed and like and like.apt and exact and is_plain(base):
            message = f"`base` {base} is plain {like.distribution} without {title}"
        elif like and not like.apt and (exact or image.packages):
            message = f"`base` {base} is {like.distribution}, but tfdock installs a build's tools with apt"
            fix = "say what the image has: `base: {image: …, provides: {python: …, gcc: …, bazel: …}}`"
        elif like and exact and not image.packages:
            kind = f"{'plain ' if is_plain(base) else ''}{like.distribution}"
            message = f"`base` {base} is {kind}: Bazel and the release's compilers are not in it"
            why = f"the known image for TensorFlow {release} is {image.image}, in which tfdock installs nothing"
            fix = self._others() or "name an image with these tools"
        elif named and like and exact and of and like is not of:
            message = f"{like.distribution} may lack {' and '.join(named)}, which {of.distribution} has"
            why = f"these packages are installed for TensorFlow {release}; if one is missing, the image step fails"
            fix, weight = "", "warning"
        else:
            return
        yield RuleFinding("image-without-tool", "base", message, why, fix, weight)

    def _others(self) -> str:
        """Return the fix: use the newest one or two distributions that fit the release, by images' rows; else ""."""
        question, kind, release = self.question, self.chosen.accelerator.accelerator, self.chosen.release
        known = [row for row in question.knowledge.images if row.packages and row.machine == question.machine]
        images = (row.image for row in known if kind in row.accelerators and applies(release, row.releases))
        rows = {row.distribution: row for image in images if (row := distribution_of(question.knowledge, image)[0])}
        python = question.profile.python
        pythons = {python} if python else {*release.pythons}
        decides = {*OF_THE_BASE, self.host_compiler.name}
        fitting = [
            f"an image of {name}"
            for name, row in rows.items()
            if pythons & {*row.pythons}
            and not any(self._breaking({part: row.holds[part] for part in row.holds if part in decides}))
        ]
        return f"take {' or '.join(sorted(fitting)[-2:])}" if fitting else ""

    def _breaking(self, parts: Mapping[str, str]) -> Iterator[RuleFinding]:
        """Yield a finding for each version that is known to break the release's build; its path is the part."""
        for name, version in parts.items():
            found = _compiler_findings(self.chosen, name, version)
            # One reason for each version is enough.
            yield from islice(chain(found, self.reports.failures_of_base(name, version)), 1)


def _compiler_findings(chosen: Combination, name: str, version: str) -> Iterator[RuleFinding]:
    """Yield that a C++ compiler is too new for the toolkit's own compiler, or too old for the release's C++."""
    release, row = chosen.release, chosen.toolkit
    newest, oldest = row.host_compilers_max.get(name) if row else None, release.host_compilers_min.get(name)
    # Only the toolkit's own compiler limits the version of the host compiler.
    drives = chosen.compiler and not chosen.is_separate(chosen.compiler)
    if row and newest and drives and Version(version).parts[0] > newest:
        code = "host-compiler-too-new"
        message = f"{chosen.title(row.toolkit)} {row.version} accepts no {name} newer than {newest}"
        yield RuleFinding(code, name, message, prevented(chosen.symptom(code)))
    elif oldest and Version(version) < Version(oldest):
        code, package = "host-compiler-too-old", packaged(chosen.knowledge, name, version)
        message = f"TensorFlow {release.release} cannot be compiled by {name} {version}"
        symptom = prevented(package.symptoms.get(code) if package else None)
        why = sentences(f"{name} {oldest} is the first that knows its C++ standard", symptom)
        yield RuleFinding(code, name, message, why)


def packaged(knowledge: KnowledgeBase, name: str, version: str) -> PackagedCompiler | None:
    """Return the row with the Debian and Ubuntu packages of a C++ compiler's version; None without a row."""
    rows = [row for row in knowledge.host_compilers.values() if row.compiler == name]
    older = [row for row in rows if Version(row.since) <= Version(version)]
    # A row applies from `since` on, until the next row of the same compiler.
    return max(older, key=lambda row: Version(row.since), default=None)


def bazel_of(question: Question, release: Release) -> str:
    """Return Bazel's version: the profile's version, else the version that the release pins."""
    asked, path = question.profile.asked_bazel
    if not asked:
        row = f"releases.yaml {release.release}"
        question.notes.choose("bazel", release.bazel, row, "the version the release pins")
        return release.bazel
    notes, lowest, highest = question.notes, release.bazel_min, release.bazel_max
    refuses, pinned = f"./configure of TensorFlow {release.release} refuses Bazel {asked}", release.bazel
    documented = any(Version(tested).matches(Version(asked)) for tested in release.tested_bazel)
    # A documented version is accepted, even if ./configure has other limits.
    if documented and _outside(asked, lowest, highest):
        message = f"{refuses}, although this version is documented as tested"
        notes.refuse("bazel-disputed", path, message, why=f"the release pins {pinned}", weight="warning")
    elif _outside(asked, lowest, highest):
        limits = [f"at least {lowest}"] if lowest else []
        limits += [f"at most {highest}"] if highest else []
        # Another commit's ./configure may have other limits.
        weight = "warning" if question.profile.source.is_own else "error"
        notes.refuse("bazel-out-of-range", path, refuses, why=f"it wants {' and '.join(limits)}", weight=weight)
    # Patch releases of the pinned Bazel are taken without a doubt.
    elif not documented and Version(asked).minor != Version(pinned).minor:
        message = f"TensorFlow {release.release} is not known to be built with Bazel {asked}"
        notes.doubt("bazel-untested", path, message, why=f"it is built with {pinned}", part="bazel")
    notes.choose("bazel", asked, "profile", "as asked")
    return asked


def check_configs(question: Question, chosen: Combination, host_compiler: str) -> None:
    """Refuse configurations that the release lacks, and configurations that contradict the profile's own fields."""
    release = chosen.release
    accelerator = chosen.accelerator.accelerator
    facts = {"accelerator": accelerator, "gpu_compiler": chosen.compiler, "host_compiler": host_compiler}
    if not question.profile.cloud:
        question.notes.choose("cloud", "false", "profile", "as asked")
        switches: list[Flag | Variable] = [*question.knowledge.flags, *question.knowledge.variables]
        if not any("cloud" in row.when and applies(release, row.releases) for row in switches):
            message = f"TensorFlow {release.release} has no switch for cloud file systems"
            question.notes.refuse("config-unknown", "cloud", message, why="the releases before and after it have one")
    for path, name in asked_configs(question):
        rows = [row for row in question.knowledge.configs if re.fullmatch(row.configs, name)]
        useless = next((row for row in rows if applies(release, row.releases) and holds(row.when, facts)), None)
        contradicted = _contradicted(question, name, facts)
        # A release whose row lists no configurations may have any.
        if release.configs and name not in release.configs:
            code, message = "config-unknown", f"TensorFlow {release.release} has no `--config={name}`"
            why = f"Bazel would stop: `Config value '{name}' is not defined in any .rc file`"
        elif useless:
            code, message, why = "config-unusable", f"`--config={name}` is of no use in this build", useless.why
        elif contradicted == "accelerator":
            code, message = "accelerator-conflict", f"`--config={name}` is for another accelerator"
            why = f"this build is for {facts[contradicted]}, and one wheel serves one accelerator"
        elif contradicted:
            code, message = "flag-is-a-choice", f"`--config={name}` is decided by the profile's own fields"
            why = f"the compilers are {', '.join(word for word in (chosen.compiler, host_compiler) if word)}"
        else:
            continue
        question.notes.refuse(code, path, message, why=why)


def asked_configs(question: Question) -> Iterator[tuple[str, str]]:
    """Return (path, name) of each configuration that the profile adds."""
    bazel = question.profile.bazel
    yield from ((f"bazel.configs[{index}]", name) for index, name in enumerate(bazel.configs))
    for index, flag in enumerate(bazel.flags):
        if flag.startswith("--config="):
            yield f"bazel.flags[{index}]", flag.partition("=")[2]


def _contradicted(question: Question, config: str, facts: Mapping[str, str]) -> str:
    """Return the first fact that rules this configuration out in the contract; else "".

    A configuration that is never in the contract is for the accelerators whose pattern it matches.
    """
    owners = [
        row.accelerator
        for row in question.knowledge.accelerators.values()
        if row.config_pattern and re.fullmatch(row.config_pattern, config)
    ]
    whens = [row.when for row in question.knowledge.flags if row.flag == f"--config={config}"]
    whens = whens or [{"accelerator": owner} for owner in owners]

    def agree(*names: str) -> bool:
        return any(holds({name: when[name] for name in names if name in when}, facts) for when in whens)

    return next((name for name in facts if not agree(name)), "") if whens and not agree(*facts) else ""


def check_flags(question: Question, release: Release) -> None:
    """Refuse flags that set a variable of the contract, or the CPU: such flags override the profile's own fields."""
    rows = [row for row in question.knowledge.variables if applies(release, row.releases)]
    ours = {(option, row.variable) for row in rows for option in _ENVIRONMENT_FLAGS}
    ours |= {("--define", row.define) for row in rows if row.define}
    for index, flag in enumerate(question.profile.bazel.flags):
        option, _, rest = flag.partition("=")
        name, equals, _ = rest.partition("=")
        # `--repo_env=NAME` without a value reads the environment, which the contract sets.
        if equals and (option, name) in ours:
            message = f"`{option}={name}` is decided by the profile's own fields"
            why = "the flag would come last and override the field: the build would not match its name and record"
            question.notes.refuse("flag-is-a-choice", f"bazel.flags[{index}]", message, why=why)


def check_native(question: Question) -> None:
    """Refuse code for this machine's CPU unless `optimize` requests it.

    Such code must not be shared with other machines.
    """
    bazel, debug, native = question.profile.bazel, question.profile.debugging, question.profile.optimize == "native"
    rules = debug.per_file if debug else []
    lists = [("bazel.copts", bazel.copts), ("bazel.flags", bazel.flags)]
    lists += [(f"debug.per_file[{index}].copts", rule.copts) for index, rule in enumerate(rules)]
    # `-march=native` may also stand among the options for single files.
    options = [(f"{name}[{index}]", option) for name, listed in lists for index, option in enumerate(listed)]
    for path, option in options:
        if not native and NATIVE.search(option):
            message = f"`{option}` is decided by `optimize`"
            why = "the name of a wheel must state that it is for this machine's CPU"
            fix = "remove the option, or write `optimize: native`"
            question.notes.refuse("flag-is-a-choice", path, message, why=why, fix=fix)
    shared = [f"cache.{name}" for name in ("remote", "executor") if getattr(question.profile.cache, name)]
    if native and shared:
        why = f"`{shared[0]}` is set; {OF_OTHER_CPUS}"
        question.notes.refuse("native-shared", "optimize", NATIVE_SHARED, why=why)


def check_features(question: Question, features: Sequence[str]) -> None:
    """Refuse CPU features that no compiler knows on this kind of machine."""
    known = {row.feature for row in question.knowledge.cpu_features.values() if row.machine == question.machine}
    for index, name in enumerate(features):
        # If there are no rows for this kind of machine, any feature may exist.
        if known and name not in known:
            message, opposite = f"no compiler knows the {question.machine} feature `{name}`", name.removeprefix("no")
            absent = f"a build has no {opposite} by default"
            why = absent if opposite in known else f"the compiler would stop at -m{name}"
            question.notes.refuse("optimize-unknown", f"optimize[{index}]", message, why=why)


def _outside(version: str, lowest: str | None, highest: str | None) -> bool:
    """Return whether a version, perhaps not written in full, lies outside bounds."""
    held = Version(version)
    # `7.4` may be 7.4.1: an incomplete version does not count as lower.
    below = lowest is not None and held < Version(lowest) and not Version(lowest).matches(held)
    return below or (highest is not None and held > Version(highest))
