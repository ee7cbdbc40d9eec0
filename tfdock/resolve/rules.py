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
from tfdock.knowledge.fits import (
    can_express_target,
    has_code_for,
    is_listed,
    is_made_for,
    libraries,
    needs_ptx,
    overrides,
    reaches,
    reports,
)
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import LibraryRow, Toolkit
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

    `compiler` compiles GPU code; `compiler_version` is set if the compiler is not the toolkit's own; `compiler_asked`
    is whether the profile names it. `served` are the GPUs (field, row) that a given list of targets must serve.
    `own_source`: the source is not the release's own, and may be patched.
    """

    knowledge: KnowledgeBase
    release: Release
    accelerator: Accelerator
    components: Mapping[str, str]
    asked: Mapping[str, str]
    fields: Mapping[str, str]
    targets: Sequence[RequestedBuild]
    compiler: str = ""
    compiler_version: str = ""
    compiler_asked: bool = False
    xla: bool = True
    served: Sequence[tuple[str, Gpu]] = ()
    own_source: bool = False

    @property
    def toolkit_version(self) -> str:
        """The version of the accelerator's toolkit; empty without a toolkit."""
        return self.components.get(self.accelerator.toolkit or "", "")

    @property
    def toolkit(self) -> Toolkit | None:
        """The toolkit's row, if it is known."""
        return self.knowledge.toolkit(self.accelerator.toolkit or "", self.toolkit_version)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets, as in a profile's list: sorted, without repetition."""
        return sorted_targets(wanted.target for wanted in self.targets)

    def with_versions(self, versions: Mapping[str, str]) -> Combination:
        """Return the combination with these versions of components."""
        return replace(self, components={**self.components, **versions})

    def title(self, component: str) -> str:
        """Return a component's name as people write it."""
        return self.accelerator.titles.get(component, component)

    def place(self, component: str) -> str:
        """Return the field of the profile that sets, or would set, a component's version."""
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
        path = combination.place(name if name in combination.asked else combination.accelerator.toolkit or name)
        message = f"{title} {value} was added to the source of {release} at about the time of the release"
        why = "no such build is known"
    # A minor version stands for its patch releases.
    elif known and not support.closed and not any(same_minor(value, version) for version in known):
        message = f"{release} is not known to work with {title} {value}"
        why = f"upstream names {', '.join(sorted(known, key=Version))}"
    else:
        return
    yield RuleFinding(code=code, path=path, message=message, why=why, weight=weight, part=name)


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
        yield RuleFinding(
            code="version-unknown",
            path=combination.place(name),
            message=f"{combination.title(name)} {version} {'is not known' if newer else 'was never published'}",
            why=f"published are {', '.join(known)}",
            weight="doubt" if newer else "error",
        )


def _rows_of(combination: Combination, name: str, version: str) -> Sequence[Toolkit | LibraryRow]:
    """Return the rows of a component's version: the toolkit's row, or those of a library."""
    if name == combination.accelerator.toolkit:
        return [combination.toolkit] if combination.toolkit else []
    return libraries(combination.knowledge, name, version)


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
    yield RuleFinding(
        code="toolkit-unknown",
        path=combination.place(name),
        message=f"{combination.title(name)} {combination.toolkit_version} {wrong}",
        why=f"known are {', '.join(known)}" if known else "",
        weight="error" if between else "doubt",
        part=name,
    )


# --- target x release -----------------------------------------------------------------------------------------------


def release_can_express_targets(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the release accepts the targets."""
    release, accelerator = combination.release, combination.accelerator
    for wanted in combination.targets:
        # Up to 2.2 a capability is `x.y`, which means SASS and PTX.
        if needs_ptx(release, accelerator, wanted.target):
            message = f"TensorFlow {release.release} cannot compile SASS alone"
            why = (
                "the release accepts capabilities only as `x.y`, which means SASS and PTX; "
                f"{wanted.who} asks for `{wanted.target}`, which is SASS"
            )
            yield RuleFinding(code="capability-needs-ptx", path=wanted.path, message=message, why=why)
        elif not can_express_target(release, accelerator, wanted.target):
            unsure = bool(re.fullmatch(release.capability_doubt or "", wanted.target))
            knows, weight = ("is not known to accept", "doubt") if unsure else ("does not accept", "error")
            message = f"TensorFlow {release.release} {knows} the capability `{wanted.target}`"
            why = f"{wanted.who} asks for it; the release's pattern is `{release.capability_pattern}`"
            yield RuleFinding(code="capability-syntax", path=wanted.path, message=message, why=why, weight=weight)


def release_uses_the_target(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the release uses such GPUs at run time at all."""
    allowed = combination.release.runtime_targets.get(combination.accelerator.accelerator, ())
    for wanted in combination.targets:
        gpu = dotted(wanted.target)
        if not is_listed(combination.release, combination.accelerator, gpu):
            unsure = gpu in combination.release.runtime_doubt.get(combination.accelerator.accelerator, ())
            uses = "is not known to use" if unsure else "does not use"
            yield RuleFinding(
                code="runtime-target",
                path=wanted.path,
                message=f"TensorFlow {combination.release.release} {uses} {gpu} at run time",
                why=sentences(
                    f"{wanted.who} asks for it; the release uses only {', '.join(allowed)}",
                    *reports(combination.knowledge, combination.accelerator.accelerator, gpu),
                    "" if unsure else combination.symptom("runtime-target", wanted.target),
                ),
                fix=tuple(_as_others_do(combination, gpu, allowed)),
                weight="doubt" if unsure else "error",
            )
    message = "TensorFlow {release} uses no GPU below {floor}"
    yield from _floors(combination, "release-floor", combination.release.floor, message)
    if combination.xla:
        yield from _floors(combination, "xla-floor", combination.release.xla_floor, f"XLA of {message}")


def _as_others_do(combination: Combination, gpu: str, allowed: Sequence[str]) -> Iterator[str]:
    """Yield fixes for a target that the release does not use: settings by which users run other code there."""
    for row in overrides(combination.knowledge, combination.accelerator, gpu):
        if row.runs_as in allowed:
            field = combination.accelerator.target_field
            yield f"users report: build with `{field}: [{row.runs_as}]`, and run the wheel with `{row.setting}`"


def _floors(combination: Combination, code: str, floors: Mapping[str, str], message: str) -> Iterator[RuleFinding]:
    floor = floors.get(combination.accelerator.accelerator)
    for wanted in combination.targets:
        gpu = dotted(wanted.target)
        if not reaches(combination.accelerator, gpu, floors):
            yield RuleFinding(
                code=code,
                path=wanted.path,
                message=message.format(release=combination.release.release, floor=floor),
                why=sentences(f"{wanted.who} wants {gpu}", combination.symptom(code, wanted.target)),
                # A custom source may lower the floor: a patch of three lines is enough.
                weight="doubt" if combination.own_source else "error",
            )


# --- target x toolkit, target x compiler ----------------------------------------------------------------------------


def toolkit_compiles(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the toolkit knows the targets by their exact names."""
    row = combination.toolkit
    # nvcc lists its targets. The ROCm rows have AMD's list, but its compiler supports more targets.
    lacks = "does not support" if combination.accelerator.capabilities else "is not known to support"
    for wanted in combination.targets if row else ():
        if row and target_number(wanted.target) not in row.targets:
            name = combination.accelerator.toolkit or ""
            yield RuleFinding(
                code="target-not-in-toolkit",
                path=wanted.path,
                message=f"{combination.title(name)} {row.version} {lacks} {wanted.target}",
                why=sentences(
                    f"{wanted.who} wants it; {combination.component_text(name)} supports {', '.join(row.targets)}",
                    prevented(combination.symptom("target-not-in-toolkit", wanted.target)),
                ),
            )


def compiler_emits(combination: Combination) -> Iterator[RuleFinding]:
    """Check that a compiler from outside the toolkit knows the targets."""
    row = combination.knowledge.compilers.get((combination.compiler, combination.compiler_version))
    missing = [wanted for wanted in combination.targets if row and target_number(wanted.target) not in row.targets]
    for wanted in missing:
        yield RuleFinding(
            code="compiler-cannot-emit",
            path="compiler" if combination.compiler_asked else wanted.path,
            message=f"{combination.compiler} {combination.compiler_version} cannot emit {wanted.target}",
            why=sentences(
                f"{wanted.who} wants it", prevented(combination.symptom("compiler-cannot-emit", wanted.target))
            ),
        )
    # A compiler with rows here has its own versions; nvcc has the version of its toolkit.
    own = any(name == combination.compiler for name, _ in combination.knowledge.compilers)
    unsure = not missing and (row is None or row.unverified)
    if own and combination.compiler_version and combination.targets and unsure:
        yield RuleFinding(
            code="compiler-untested",
            path="compiler",
            message=f"{combination.compiler} {combination.compiler_version} "
            "is not known to have compiled GPU code of TensorFlow",
            why=str(row.unverified) if row else "its targets are not known",
            weight="doubt",
            part="compiler",
        )


def compiler_reads_release(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the toolkit's own compiler is known to be able to compile the release's sources."""
    oldest = combination.release.gpu_compilers_min.get(combination.compiler)
    name = combination.accelerator.toolkit or ""
    if oldest and combination.toolkit_version and Version(combination.toolkit_version) < Version(oldest):
        yield RuleFinding(
            code="compiler-untested",
            path=combination.place(name) if name in combination.asked else "compiler",
            message=f"{combination.compiler} of {combination.title(name)} {combination.toolkit_version} "
            f"is not known to compile TensorFlow {combination.release.release}",
            why=sentences(
                f"the first one known to compile it is that of {combination.title(name)} {oldest}",
                prevented(combination.symptom("compiler-untested")),
            ),
            weight="doubt",
            part=name,
        )


def compiler_reads_toolkit(combination: Combination) -> Iterator[RuleFinding]:
    """Check that a compiler from outside the toolkit can read its headers, and the toolkit the compiler's PTX."""
    row = combination.knowledge.compilers.get((combination.compiler, combination.compiler_version))
    name, toolkit = combination.accelerator.toolkit or "", combination.toolkit
    path = combination.place(name) if name in combination.asked else "compiler"
    newest = row.toolkit_max if row else None
    # `toolkit_max` is a minor version, so patch releases of it count as known.
    if newest and combination.toolkit_version and Version(combination.toolkit_version).minor > Version(newest):
        yield RuleFinding(
            code="compiler-toolkit",
            path=path,
            message=f"{combination.compiler} {combination.compiler_version} cannot read the headers of "
            f"{combination.component_text(name)}",
            why=sentences(
                f"the newest headers that it can read are those of {combination.title(name)} {newest}",
                prevented(combination.symptom("compiler-toolkit")),
            ),
        )
    accepted = combination.release.support(name).accepted
    hidden = combination.compiler in combination.release.toolkit_hidden_from and any(
        Version(version).matches(Version(combination.toolkit_version)) for version in accepted
    )
    if hidden and row and row.ptx and toolkit and toolkit.ptx and Version(row.ptx) > Version(toolkit.ptx):
        yield RuleFinding(
            code="compiler-toolkit",
            path=path,
            message=f"{combination.title(name)} {combination.toolkit_version} cannot read the PTX that "
            f"{combination.compiler} {combination.compiler_version} writes",
            why=f"TensorFlow {combination.release.release} does not tell {combination.compiler} the toolkit's "
            f"version, so {combination.compiler} writes PTX {row.ptx}; {combination.title(name)} {toolkit.version} "
            f"can read PTX only up to {toolkit.ptx}",
            weight="doubt",
            part=name,
        )


# --- libraries ------------------------------------------------------------------------------------------------------


def libraries_fit(combination: Combination) -> Iterator[RuleFinding]:
    """Check that libraries of GPU code are made for the toolkit, and have code for the GPUs."""
    for name, version in combination.components.items():
        rows = libraries(combination.knowledge, name, version)
        toolkit = combination.toolkit_version
        made = [row for row in rows if not toolkit or is_made_for(row, toolkit)]
        if rows and not made:
            yield _made_for_others(combination, name, version, rows)
        # An incomplete version (`7`) may be any 7.x, so one matching version is enough.
        readings = [[*_library_target(combination, name, version, row)] for row in made or rows]
        # All versions lack code, so any of them shows what is missing.
        if readings and all(readings):
            yield from readings[-1]


def _made_for_others(combination: Combination, name: str, version: str, rows: Sequence[LibraryRow]) -> RuleFinding:
    toolkit = combination.accelerator.toolkit or ""
    others = dict.fromkeys(other for row in rows for other in row.toolkits)
    return RuleFinding(
        code="library-toolkit",
        path=combination.place(name if name in combination.asked else toolkit),
        message=f"{combination.title(name)} {version} is not made for "
        f"{combination.title(toolkit)} {combination.toolkit_version}",
        why=f"it is made for {combination.title(toolkit)} {', '.join(sorted(others, key=Version))}",
    )


def _library_target(combination: Combination, name: str, version: str, row: LibraryRow) -> Iterator[RuleFinding]:
    # The wheel is for the GPUs beside a list, or else for the targets.
    gpus = [(path, gpu.target, f"`{path}` ({gpu.gpu})") for path, gpu in combination.served]
    devices = gpus or [(wanted.path, dotted(wanted.target), wanted.who) for wanted in combination.targets]
    official = not gpus and all(wanted.official for wanted in combination.targets)
    for path, target, who in devices:
        if not has_code_for(row, combination.accelerator, target):
            below = row.lowest is not None and Version(target) < Version(row.lowest)
            limit = f"nothing below {row.lowest}" if below else f"nothing above {row.highest}"
            yield RuleFinding(
                code="library-target",
                path=combination.place(name) if name in combination.asked else path,
                message=f"{combination.title(name)} {version} has no code for {target}",
                why=f"{who} wants it; {combination.component_text(name)} has {limit}",
                # The other GPUs of an official list still work. Above its range, the library's own PTX may run.
                weight="warning" if official else "error" if below else "doubt",
            )


# --- GPUs beside a list ---------------------------------------------------------------------------------------------


def gpus_are_served(combination: Combination) -> Iterator[RuleFinding]:
    """Check that the GPUs named beside a list of targets run the compiled code."""
    targets = combination.target_names
    for path, gpu in combination.served:
        verdict = judge(combination.knowledge, combination.accelerator, gpu.target, targets)
        if verdict.runs == "no":
            message = f"{gpu.gpu} ({gpu.target}) cannot run the compiled code: {', '.join(targets)}"
            why = sentences(verdict.reason, prevented(combination.symptom("gpu-not-served", gpu.target)))
            yield RuleFinding(code="gpu-not-served", path=path, message=message, why=why)
        elif not verdict.starts_at_once:
            yield RuleFinding(
                code="gpu-jit",
                path=path,
                message=f"the wheel has no machine code for {gpu.gpu} ({gpu.target}): at its first start the driver "
                "compiles for half an hour or longer",
                why=verdict.reason,
                weight="warning",
            )


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
