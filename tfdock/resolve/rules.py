"""The rules against impossible combinations. Each rule is a function from a combination to findings.

The same rules choose defaults (the first candidate without a finding) and refuse requests. They compare values with
rows; no rule contains a version or a vendor.

`accelerator.devices_of` runs them. `Notes.find` weighs each finding, `Notes.stop_if_refused` raises the refusal, and
`resolve.resolve_or_suggest` adds the suggestions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfdock.gpu.devices import dotted, judge, sorted_targets, target_number
from tfdock.knowledge import fits
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import Compiler, LibraryRow, Toolkit
from tfdock.profile.profile import Profile
from tfdock.resolve.question import RuleFinding, prevented, sentences
from tfdock.types import Version, same_minor


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedBuild:
    """A target to compile for, and its origin: the field of the profile, and the GPU in it, if any."""

    target: str
    path: str
    gpu: Gpu | None = None
    official: bool = False

    @property
    def who(self) -> str:
        """For sentences: the official wheel's list, `gpus[0]` (rtx3080), `compute_capabilities[1]`."""
        if self.official:
            return "the official wheel's list"
        return f"`{self.path}` ({self.gpu.gpu})" if self.gpu else f"`{self.path}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """The values that must fit together. `asked` are the components that the profile names, with the versions as
    written; `fields` maps a component to its field in the profile.

    `compiler` compiles GPU code; `compiler_version` is set if the compiler is not the toolkit's own. `served` are the
    GPUs (field, row) that a given list of targets must serve.
    """

    profile: Profile
    knowledge: KnowledgeBase
    release: Release
    accelerator: Accelerator
    components: Mapping[str, str]
    asked: Mapping[str, str]
    fields: Mapping[str, str]
    targets: Sequence[RequestedBuild]
    compiler: str = ""
    compiler_version: str = ""
    served: Sequence[tuple[str, Gpu]] = ()

    @property
    def toolkit_version(self) -> str:
        """The version of the accelerator's toolkit; empty without a toolkit."""
        return self.components.get(self.accelerator.toolkit, "")

    @property
    def toolkit(self) -> Toolkit | None:
        """The toolkit's row, if it is known."""
        return self.knowledge.toolkit(self.accelerator.toolkit, self.toolkit_version)

    @property
    def compiler_row(self) -> Compiler | None:
        """The row of a compiler from outside the toolkit, if it is known."""
        return self.knowledge.compilers.get((self.compiler, self.compiler_version))

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets, as in a profile's list: sorted, without repetition."""
        return sorted_targets(wanted.target for wanted in self.targets)

    def is_separate(self, compiler: str) -> bool:
        """Return whether a compiler of GPU code has its own versions; nvcc has the version of its toolkit."""
        return any(name == compiler for name, _ in self.knowledge.compilers)

    def with_versions(self, versions: Mapping[str, str]) -> Combination:
        """Return the combination with these versions of components."""
        return replace(self, components={**self.components, **versions})

    def title(self, component: str) -> str:
        """Return a component's name as people write it."""
        return self.accelerator.title_of(component)

    def place(self, component: str, otherwise: str = "") -> str:
        """Return the profile's field for a component's version; `otherwise`, if given, for one that it leaves out."""
        if otherwise and component not in self.asked:
            return otherwise
        return self.fields.get(component, component)

    def component_text(self, component: str) -> str:
        """Return a component with its version: `` `cuda: "11.0"` `` as the profile has it, or `CUDA 12.5.1`."""
        if component in self.asked:
            return f'`{self.place(component)}: "{self.asked[component]}"`'
        return f"{self.title(component)} {self.components.get(component, '')}".strip()

    def symptom(self, code: str, target: str = "") -> str:
        """Return the failure that would happen without the refusal; empty if no symptom is known."""
        text = self.accelerator.symptoms.get(code, "")
        return text.format_map({"target": target, "number": target_number(target)}) if text else ""


Rule = Callable[[Combination], Iterator[RuleFinding]]


# --- release x component --------------------------------------------------------------------------------------------


def component_is_accepted(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the release accepts the requested versions, and the versions that follow from these."""
    # Check only this family: components of other families are refused elsewhere as unused.
    for name in combination.accelerator.components:
        asked, support = combination.asked.get(name), combination.release.support(name)
        value = combination.components.get(name, asked or "")
        if asked or value in support.uncertain:
            yield from _acceptance(combination, name, asked or value, value)


def _acceptance(combination: Combination, name: str, asked: str, value: str) -> Iterator[RuleFinding]:
    support, path = combination.release.support(name), combination.place(name)
    title, release, known = combination.title(name), f"TensorFlow {combination.release.release}", support.known
    code, weight = "component-untested", "doubt"
    if value in support.disputed:
        code, weight = "component-disputed", "warning"
        message = f"sources disagree about whether {release} supports {title} {value}"
        why = f"it was tested with {support.tested}"
    elif support.closed and value not in {*known, *support.uncertain}:
        code, weight = "component-not-accepted", "error"
        message = f"{release} accepts only the {title} versions in its list, and {asked} is not in the list"
        why = f"the release downloads {title} itself, from its own list: {', '.join(support.accepted)}"
    elif support.closed and value in support.uncertain:
        # A component that was not requested follows the toolkit.
        path = combination.place(name, combination.place(combination.accelerator.toolkit))
        message = f"{title} {value} was added to the source of {release} at about the time of the release"
        why = "no such build is known"
    # A minor version stands for its patch releases.
    elif known and not support.closed and not any(same_minor(value, version) for version in known):
        message = f"{release} is not known to work with {title} {value}"
        why = f"upstream names {', '.join(sorted(known, key=Version))}"
    else:
        return
    yield RuleFinding(code, path, message, why, weight=weight, part=name)


def patches_exist(combination: Combination) -> Iterator[RuleFinding]:
    """Check that full versions exist, that is, were published."""
    for name in combination.asked:
        version, support = combination.components.get(name, ""), combination.release.support(name)
        # A closed list has its own finding.
        if not version or support.closed:
            continue
        known = [patch for row in _rows_of(combination, name, version) for patch in row.patches]
        if not known or any(Version(patch).matches(Version(version)) for patch in known):
            continue
        # A version above all rows may have been released since. Any other unknown version was never published.
        rows: list[Toolkit | LibraryRow] = [*combination.knowledge.toolkits_of(name)]
        rows += (row for row in combination.knowledge.libraries if row.component == name)
        newer = Version(version) > max(Version(patch) for row in rows for patch in row.patches)
        wrong, weight = ("is not known", "doubt") if newer else ("was never published", "error")
        message, why = f"{combination.title(name)} {version} {wrong}", f"published are {', '.join(known)}"
        yield RuleFinding("version-unknown", combination.place(name), message, why, weight=weight)


def _rows_of(combination: Combination, name: str, version: str) -> Sequence[Toolkit | LibraryRow]:
    """Return the rows of a component's version: the toolkit's row, or those of a library."""
    if name == combination.accelerator.toolkit:
        return [combination.toolkit] if combination.toolkit else []
    return fits.libraries(combination.knowledge, name, version)


def toolkit_is_known(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the toolkit's version is known, so targets can be compared with it."""
    name = combination.accelerator.toolkit
    if not name or combination.toolkit or not combination.toolkit_version:
        return
    known = [row.version for row in combination.knowledge.toolkits_of(name)]
    # A newer version may have been released, and an older one may be missing. Between known versions there is no
    # other version.
    between = bool(known) and Version(known[0]) < Version(combination.toolkit_version).minor < Version(known[-1])
    asked = combination.asked.get(name)
    findings = _acceptance(combination, name, asked, combination.toolkit_version) if asked else ()
    weights = {finding.weight for finding in findings}
    # `component_is_accepted` has already reported this problem.
    if "error" in weights or (weights and not between):
        return
    partial = [version for version in known if Version(version).matches(Version(combination.toolkit_version))]
    wrong = "has no minor version" if partial else "does not exist" if between else "is not known"
    message = f"{combination.title(name)} {combination.toolkit_version} {wrong}"
    why, weight = f"known are {', '.join(known)}" if known else "", "error" if between else "doubt"
    yield RuleFinding("toolkit-unknown", combination.place(name), message, why, weight=weight, part=name)


# --- target x release -----------------------------------------------------------------------------------------------


def release_can_express_targets(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the release accepts the targets."""
    release, accelerator = combination.release, combination.accelerator
    for wanted in combination.targets:
        # Up to 2.2 a capability is `x.y`, which means SASS and PTX.
        if fits.needs_ptx(release, accelerator, wanted.target):
            message = f"TensorFlow {release.release} cannot compile SASS alone"
            why = (
                "the release accepts capabilities only as `x.y`, which means SASS and PTX; "
                f"{wanted.who} asks for `{wanted.target}`, which is SASS"
            )
            yield RuleFinding("capability-needs-ptx", wanted.path, message, why)
        elif not fits.can_express_target(release, accelerator, wanted.target):
            unsure = bool(re.fullmatch(release.capability_doubt or "", wanted.target))
            knows, weight = ("is not known to accept", "doubt") if unsure else ("does not accept", "error")
            message = f"TensorFlow {release.release} {knows} the capability `{wanted.target}`"
            why = f"{wanted.who} asks for it; the release's pattern is `{release.capability_pattern}`"
            yield RuleFinding("capability-syntax", wanted.path, message, why, weight=weight)


def release_uses_the_target(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the release uses such GPUs at run time at all."""
    release, family = combination.release, combination.accelerator.accelerator
    allowed = release.runtime_targets.get(family, ())
    for wanted in combination.targets:
        gpu = dotted(wanted.target)
        if not fits.is_listed(release, combination.accelerator, gpu):
            unsure = gpu in release.runtime_doubt.get(family, ())
            uses, weight = ("is not known to use", "doubt") if unsure else ("does not use", "error")
            why = sentences(
                f"{wanted.who} asks for it; the release uses only {', '.join(allowed)}",
                *fits.reports(combination.knowledge, family, gpu),
                "" if unsure else combination.symptom("runtime-target", wanted.target),
            )
            message = f"TensorFlow {release.release} {uses} {gpu} at run time"
            fix = tuple(_as_others_do(combination, gpu, allowed))
            yield RuleFinding("runtime-target", wanted.path, message, why, fix, weight)
    message = "TensorFlow {release} uses no GPU below {floor}"
    yield from _floors(combination, "release-floor", release.floor, message)
    if combination.profile.xla:
        yield from _floors(combination, "xla-floor", release.xla_floor, f"XLA of {message}")


def _as_others_do(combination: Combination, gpu: str, allowed: Sequence[str]) -> Iterator[str]:
    """Yield fixes for a target that the release does not use: settings by which users run other code there."""
    for row in fits.overrides(combination.knowledge, combination.accelerator, gpu):
        if row.runs_as in allowed:
            field = combination.accelerator.target_field
            yield f"users report: build with `{field}: [{row.runs_as}]`, and run the wheel with `{row.setting}`"


def _floors(combination: Combination, code: str, floors: Mapping[str, str], message: str) -> Iterator[RuleFinding]:
    floor = floors.get(combination.accelerator.accelerator)
    told = message.format(release=combination.release.release, floor=floor)
    # A custom source may lower the floor: a patch of three lines is enough.
    weight = "doubt" if combination.profile.source.is_own else "error"
    for wanted in combination.targets:
        gpu = dotted(wanted.target)
        if not fits.reaches(combination.accelerator, gpu, floors):
            why = sentences(f"{wanted.who} wants {gpu}", combination.symptom(code, wanted.target))
            yield RuleFinding(code, wanted.path, told, why, weight=weight)


# --- target x toolkit, target x compiler ----------------------------------------------------------------------------


def toolkit_compiles(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the toolkit knows the targets by their exact names."""
    row, name, code = combination.toolkit, combination.accelerator.toolkit, "target-not-in-toolkit"
    # nvcc lists its targets. The ROCm rows have AMD's list, but its compiler supports more targets.
    lacks = "does not support" if combination.accelerator.capabilities else "is not known to support"
    for wanted in combination.targets:
        if row and target_number(wanted.target) not in row.targets:
            message = f"{combination.title(name)} {row.version} {lacks} {wanted.target}"
            why = f"{wanted.who} wants it; {combination.component_text(name)} supports {', '.join(row.targets)}"
            why = sentences(why, prevented(combination.symptom(code, wanted.target)))
            yield RuleFinding(code, wanted.path, message, why)


def compiler_emits(combination: Combination) -> Iterator[RuleFinding]:
    """Check that a compiler from outside the toolkit knows the targets."""
    row, compiler = combination.compiler_row, f"{combination.compiler} {combination.compiler_version}"
    missing = [wanted for wanted in combination.targets if row and target_number(wanted.target) not in row.targets]
    for wanted in missing:
        code, path = "compiler-cannot-emit", "compiler" if combination.profile.compiler else wanted.path
        why = sentences(f"{wanted.who} wants it", prevented(combination.symptom(code, wanted.target)))
        yield RuleFinding(code, path, f"{compiler} cannot emit {wanted.target}", why)
    unsure = not missing and (row is None or row.unverified)
    own = combination.is_separate(combination.compiler)
    if own and combination.compiler_version and combination.targets and unsure:
        message = f"{compiler} is not known to have compiled GPU code of TensorFlow"
        why = str(row.unverified) if row else "its targets are not known"
        yield RuleFinding("compiler-untested", "compiler", message, why, weight="doubt", part="compiler")


def compiler_reads_release(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the toolkit's own compiler is known to be able to compile the release's sources."""
    oldest = combination.release.gpu_compilers_min.get(combination.compiler)
    name, version = combination.accelerator.toolkit, combination.toolkit_version
    if oldest and version and Version(version) < Version(oldest):
        code, title, release = "compiler-untested", combination.title(name), combination.release.release
        message = f"{combination.compiler} of {title} {version} is not known to compile TensorFlow {release}"
        why = f"the first one known to compile it is that of {title} {oldest}"
        why = sentences(why, prevented(combination.symptom(code)))
        yield RuleFinding(code, combination.place(name, "compiler"), message, why, weight="doubt", part=name)


def compiler_reads_toolkit(combination: Combination) -> Iterator[RuleFinding]:
    """Check that a compiler from outside the toolkit can read its headers, and the toolkit the compiler's PTX."""
    name, version, toolkit = combination.accelerator.toolkit, combination.toolkit_version, combination.toolkit
    row, compiler = combination.compiler_row, f"{combination.compiler} {combination.compiler_version}"
    code, path, title = "compiler-toolkit", combination.place(name, "compiler"), combination.title(name)
    newest = row.toolkit_max if row else None
    # `toolkit_max` is a minor version, so patch releases of it count as known.
    if newest and version and Version(version).minor > Version(newest):
        message = f"{compiler} cannot read the headers of {combination.component_text(name)}"
        why = f"the newest headers that it can read are those of {title} {newest}"
        yield RuleFinding(code, path, message, sentences(why, prevented(combination.symptom(code))))
    release = combination.release
    matching = (text for text in release.support(name).accepted if Version(text).matches(Version(version)))
    hidden = combination.compiler in release.toolkit_hidden_from and any(matching)
    if hidden and row and row.ptx and toolkit and toolkit.ptx and Version(row.ptx) > Version(toolkit.ptx):
        message = f"{title} {version} cannot read the PTX that {compiler} writes"
        why = (
            f"TensorFlow {release.release} does not tell {combination.compiler} the toolkit's version, so "
            f"{combination.compiler} writes PTX {row.ptx}; {title} {toolkit.version} can read PTX only up to "
            f"{toolkit.ptx}"
        )
        yield RuleFinding(code, path, message, why, weight="doubt", part=name)


# --- libraries ------------------------------------------------------------------------------------------------------


def libraries_fit(combination: Combination) -> Iterator[RuleFinding]:
    """Check that libraries of GPU code are made for the toolkit, and have code for the GPUs."""
    for name, version in combination.components.items():
        rows = fits.libraries(combination.knowledge, name, version)
        toolkit = combination.toolkit_version
        made = [row for row in rows if not toolkit or fits.is_made_for(row, toolkit)]
        if rows and not made:
            others = dict.fromkeys(other for row in rows for other in row.toolkits)
            title, path = combination.accelerator.title, combination.place(combination.accelerator.toolkit)
            message = f"{combination.title(name)} {version} is not made for {title} {toolkit}"
            why = f"it is made for {title} {', '.join(sorted(others, key=Version))}"
            yield RuleFinding("library-toolkit", combination.place(name, path), message, why)
        # An incomplete version (`7`) may be any 7.x, so one matching version is enough.
        readings = [[*_library_target(combination, name, version, row)] for row in made or rows]
        # All versions lack code, so any of them shows what is missing.
        if readings and all(readings):
            yield from readings[-1]


def _library_target(combination: Combination, name: str, version: str, row: LibraryRow) -> Iterator[RuleFinding]:
    # The wheel is for the GPUs beside a list, or else for the targets.
    gpus = [(path, gpu.target, f"`{path}` ({gpu.gpu})") for path, gpu in combination.served]
    devices = gpus or [(wanted.path, dotted(wanted.target), wanted.who) for wanted in combination.targets]
    official = not gpus and all(wanted.official for wanted in combination.targets)
    for path, target, who in devices:
        if not fits.has_code_for(row, combination.accelerator, target):
            below = row.lowest is not None and Version(target) < Version(row.lowest)
            limit = f"nothing below {row.lowest}" if below else f"nothing above {row.highest}"
            message = f"{combination.title(name)} {version} has no code for {target}"
            why = f"{who} wants it; {combination.component_text(name)} has {limit}"
            # The other GPUs of an official list still work. Above its range, the library's own PTX may run.
            weight = "warning" if official else "error" if below else "doubt"
            yield RuleFinding("library-target", combination.place(name, path), message, why, weight=weight)


# --- GPUs beside a list ---------------------------------------------------------------------------------------------


def gpus_are_served(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the GPUs named beside a list of targets run the compiled code."""
    targets = combination.target_names
    for path, gpu in combination.served:
        verdict = judge(combination.knowledge, combination.accelerator, gpu.target, targets)
        if verdict.runs == "no":
            message = f"{gpu.gpu} ({gpu.target}) cannot run the compiled code: {', '.join(targets)}"
            why = sentences(verdict.reason, prevented(combination.symptom("gpu-not-served", gpu.target)))
            yield RuleFinding("gpu-not-served", path, message, why)
        elif not verdict.starts_at_once:
            message = f"the wheel has no machine code for {gpu.gpu} ({gpu.target}): at its first start the driver "
            message += "compiles for half an hour or longer"
            yield RuleFinding("gpu-jit", path, message, verdict.reason, weight="warning")


#: Rules that choose the toolkit and the compiler.
DEVICE_RULES: tuple[Rule, ...] = (toolkit_compiles, compiler_emits, compiler_reads_toolkit, compiler_reads_release)
LIBRARY_RULES: tuple[Rule, ...] = (libraries_fit,)  #: Rules that choose the other components.
#: All rules, in the order of their messages.
RULES: tuple[Rule, ...] = (
    component_is_accepted,
    toolkit_is_known,
    patches_exist,
    release_can_express_targets,
    release_uses_the_target,
    *DEVICE_RULES,
    *LIBRARY_RULES,
    gpus_are_served,
)
