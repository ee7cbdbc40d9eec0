"""Which accelerator, which targets, and the toolkit, libraries and compiler that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfdock.gpu.devices import bare_gpu, find_gpu, is_embedded, machine_of, sorted_targets, unknown_gpu
from tfdock.knowledge.fits import own_target
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.release_rows import Release, Support
from tfdock.knowledge.rows import Accelerator
from tfdock.profile.profile import HostCompiler
from tfdock.resolve.question import Question, RuleFinding
from tfdock.resolve.rules import (
    DEVICE_RULES,
    LIBRARY_RULES,
    RULES,
    Combination,
    RequestedBuild,
    Rule,
    release_uses_the_target,
)
from tfdock.types import TARGET_FIELDS, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenDevices:
    """What is compiled for, and with what."""

    accelerator: Accelerator
    components: Mapping[str, str]
    targets: tuple[str, ...]
    compiler: str
    compiler_version: str


# --- the accelerator ------------------------------------------------------------------------------------------------


def accelerator_of(question: Question) -> Accelerator | None:
    """The accelerator that the profile names or implies; None if that was refused."""
    profile, known, notes = question.profile, question.knowledge.accelerators, question.notes
    asked, before = profile.accelerator, len(notes.problems)
    if asked is not None and asked not in known:
        notes.refuse(
            "accelerator-unknown",
            "accelerator",
            f"the accelerator `{asked}` is not known",
            why=f"known: {', '.join(sorted(known))}",
        )
        return None
    if not _devices_are_known(question):
        return None
    evidence = list(dict.fromkeys(_evidence(question)))
    names = {asked} if asked else {name for _, name in evidence}
    for path, name in evidence:
        if asked and name != asked:
            notes.refuse("accelerator-conflict", path, f"`{path}` speaks of {name}, but `accelerator:` says {asked}")
    if len(names) > 1:
        said = ", ".join(f"`{path}` ({name})" for path, name in evidence)
        notes.refuse(
            "accelerator-conflict",
            evidence[0][0],
            f"the profile mixes accelerators: {said}",
            why="one wheel serves one accelerator: make two profiles",
        )
    if len(notes.problems) > before:
        return None
    name = next(iter(sorted(names)), "cpu")
    reason = f"`{evidence[0][0]}` asks for it" if evidence else "no GPU is asked for"
    notes.choose("accelerator", name, "profile" if asked or evidence else "default", "as asked" if asked else reason)
    return known[name]


def _devices_are_known(question: Question) -> bool:
    """What no accelerator is known for must not pass for a build without one."""
    notes, before = question.notes, len(question.notes.problems)
    if question.profile.for_this_machine and not question.local_gpus:
        notes.refuse(
            "gpu-local-none",
            "gpus",
            "`gpus: local` found no GPU on this machine",
            why="`nvidia-smi` or `rocminfo` must work here",
            fix="name them: `gpus: [rtx3080]`",
        )
    for path, name, row in asked_gpus(question):
        if row is None:
            problem = unknown_gpu(question.knowledge, name)
            notes.refuse(problem.code, path, problem.message, fix=problem.fixes)
    for field, path, target in _asked_targets(question):
        rows = [row for row in question.knowledge.accelerators.values() if row.target_pattern]
        owners = [row for row in rows if row.target_field == field]
        if any(row.matches(target) for row in owners):
            continue
        others = [row for row in rows if row.matches(target)]
        patterns = " or ".join(f"`{row.target_pattern}`" for row in owners or rows)
        notes.refuse(
            "target-field" if others else "target-syntax",
            path,
            f"`{target}` is not a target of `{field}`",
            why=f"it belongs in `{others[0].target_field}`" if others else f"targets look like {patterns or 'none'}",
        )
    return len(notes.problems) == before


def _evidence(question: Question) -> Iterable[tuple[str, str]]:
    """(field, accelerator) for each field of the profile that implies one."""
    rows = question.knowledge.accelerators.values()
    fields = component_fields(question)
    for name in asked_components(question):
        for row in rows:
            if name in row.components:
                yield fields[name], row.accelerator
    for field, path, target in _asked_targets(question):
        for row in rows:
            if row.target_field == field and row.matches(target):
                yield path, row.accelerator
    yield from ((path, gpu.accelerator) for path, _, gpu in asked_gpus(question) if gpu)


# --- what the profile says ------------------------------------------------------------------------------------------


def component_fields(question: Question) -> dict[str, str]:
    """Every component that the profile names or that an accelerator has -> the field that says its version."""
    names = {name for row in question.knowledge.accelerators.values() for name in row.components}
    fields = {
        name: name if hasattr(question.profile, name) else f"components.{name}"
        for name in (*sorted(names), *question.profile.components)
    }
    return fields | {name: f"components.{name}" for name in question.profile.components}


def asked_components(question: Question) -> dict[str, str]:
    """Component -> version, as written in the profile."""
    profile = question.profile
    fields = {name: getattr(profile, name, None) for name in component_fields(question)}
    return {**{name: value for name, value in fields.items() if value}, **profile.components}


def _asked_targets(question: Question) -> Iterator[tuple[str, str, str]]:
    """(field, path, target) of each target that the profile lists."""
    for name in TARGET_FIELDS:
        for index, value in enumerate(getattr(question.profile, name) or ()):
            yield name, f"{name}[{index}]", value


def asked_gpus(question: Question) -> list[tuple[str, str, Gpu | None]]:
    """(path, name, row) of each GPU that the profile names, this machine's among them; no row where it is unknown."""
    knowledge, gpus = question.knowledge, question.profile.gpus
    places = [("gpus", gpus)] if gpus == "local" else [(f"gpus[{n}]", name) for n, name in enumerate(gpus or ())]
    found: list[tuple[str, str, Gpu | None]] = []
    for path, name in places:
        if name == "local":
            # Of those whose names are newer than the rows the target is told.
            local = ((one, find_gpu(knowledge, one) or bare_gpu(knowledge, one)) for one in question.local_gpus)
            found += [(path, one, row) for one, row in local]
        else:
            found.append((path, name, find_gpu(knowledge, name)))
    return found


# --- targets, toolkit, compiler, libraries --------------------------------------------------------------------------


def devices_of(question: Question, release: Release, accelerator: Accelerator) -> ChosenDevices:
    """Choose targets, components and compiler; write down everything that keeps them from getting along."""
    notes, asked = question.notes, asked_components(question)
    _refuse_unused(question, accelerator, asked)
    if accelerator.components and not any(name in release.components for name in accelerator.components):
        notes.doubt(
            "accelerator-untested",
            next((path for path, _ in _evidence(question)), "accelerator"),
            f"nothing is known of TensorFlow {release.release} with {accelerator.accelerator}",
        )
    gpus = [(path, gpu) for path, _, gpu in asked_gpus(question) if gpu]
    listed = [RequestedBuild(target=target, path=path) for _, path, target in _asked_targets(question)]
    combination = Combination(
        knowledge=question.knowledge,
        release=release,
        accelerator=accelerator,
        components={},
        asked=asked,
        fields=component_fields(question),
        targets=listed or _targets_of(release, accelerator, gpus),
        compiler_asked=bool(question.profile.compiler),
        xla=question.profile.xla,
        served=gpus if listed else (),
    )
    _refuse_other_machines(question, gpus, listed)
    if accelerator.target_pattern and not combination.targets:
        combination = replace(combination, targets=_official(question, combination))
    combination = _with_toolkit(question, combination)
    combination = _as_far_as_it_goes(question, combination)
    combination = _with_libraries(question, combination)
    for rule in RULES:
        for finding in rule(combination):
            notes.find(finding)
    targets = sorted_targets(one.target for one in combination.targets)
    if targets and not combination.targets[0].official:
        notes.choose("targets", ", ".join(targets), "profile", _target_reason(gpus, listed))
    return ChosenDevices(
        accelerator=accelerator,
        components=combination.components,
        targets=targets,
        compiler=combination.compiler,
        compiler_version=combination.compiler_version,
    )


def _refuse_unused(question: Question, accelerator: Accelerator, asked: Mapping[str, str]) -> None:
    for name in asked:
        if name not in accelerator.components:
            takes = ", ".join(accelerator.components) or "none"
            question.notes.refuse(
                "component-unused",
                component_fields(question)[name],
                f"`{name}` means nothing to a {accelerator.accelerator} build",
                why=f"components of {accelerator.accelerator}: {takes}",
            )
    if question.profile.compiler and not accelerator.compilers:
        question.notes.refuse(
            "compiler-unused",
            "compiler",
            f"`compiler` says who compiles GPU code: a {accelerator.accelerator} build leaves no choice",
            why="`host_compiler` says who compiles C++",
        )


def _refuse_other_machines(
    question: Question, gpus: Sequence[tuple[str, Gpu]], listed: Sequence[RequestedBuild]
) -> None:
    """GPUs that are sold with another CPU than the one that is built for; beside others they are but a waste."""
    knowledge, here = question.knowledge, question.machine
    found = [(path, gpu.gpu, gpu, True) for path, gpu in gpus]
    bare = [(one.path, gpu) for one in listed if (gpu := bare_gpu(knowledge, one.target))]
    if not gpus and all(machine_of(knowledge, gpu) not in (None, here) for _, gpu in bare):
        # Of those that are not embedded another may come out, for any machine.
        found += [
            (path, f"a GPU of {gpu.target}", gpu, is_embedded(knowledge, gpu.accelerator, gpu.target))
            for path, gpu in bare
        ]
    for path, what, gpu, certain in found:
        machine = machine_of(knowledge, gpu)
        if machine in (None, here):
            continue
        base = "" if any(row.machine == machine for row in knowledge.images) else ", with a base image of yours"
        question.notes.find(
            RuleFinding(
                code="gpu-other-machine",
                path=path,
                message=f"{what} stands beside a CPU of kind {machine}, and this build is for {here}",
                why="wheels are built for the kind of machine that builds them",
                fix=(f"build it on {machine}{base}", f"name a GPU of {here} machines"),
                weight="error" if certain else "warning",
            )
        )


def _targets_of(release: Release, accelerator: Accelerator, gpus: Sequence[tuple[str, Gpu]]) -> list[RequestedBuild]:
    """One exact target for each GPU."""
    found = []
    for path, gpu in gpus:
        if gpu.accelerator == accelerator.accelerator:  # else it is said as accelerator-conflict
            found.append(RequestedBuild(target=own_target(release, accelerator, gpu.target), path=path, gpu=gpu))
    return found


def _official(question: Question, one: Combination) -> list[RequestedBuild]:
    """The official wheel's list; nothing was asked."""
    official = one.release.official_targets.get(one.accelerator.accelerator, ())
    if not official:
        question.notes.refuse(
            "targets-missing",
            "accelerator",
            f"it is not known for which GPUs TensorFlow {one.release.release} is officially built",
            why=f"neither `gpus` nor `{one.accelerator.target_field}` says it either",
        )
    path = one.place(one.accelerator.toolkit or "") if one.accelerator.toolkit in one.asked else "accelerator"
    return [RequestedBuild(target=target, path=path, official=True) for target in official]


def _as_far_as_it_goes(question: Question, one: Combination) -> Combination:
    """The official list without what this build cannot have: nothing was asked, so nothing has to be refused.

    With XLA on, which an old official wheel was built without, the oldest GPUs of its list are not used.
    """
    if not one.targets or not one.targets[0].official:
        return one
    rules = (*DEVICE_RULES, release_uses_the_target)
    able = [wanted for wanted in one.targets if not _found(replace(one, targets=[wanted]), rules)] or one.targets
    reason = "the official wheel's list" + (
        "" if len(able) == len(one.targets) else ", as far as this build can have it"
    )
    row = f"releases.yaml {one.release.release}"
    question.notes.choose("targets", ", ".join(wanted.target for wanted in able), row, reason)
    return replace(one, targets=able)


def _found(one: Combination, rules: Sequence[Rule]) -> bool:
    return any(True for rule in rules for _ in rule(one))


def _target_reason(gpus: Sequence[tuple[str, Gpu]], listed: Sequence[RequestedBuild]) -> str:
    if listed:
        return "as asked"
    return f"what {', '.join(gpu.gpu for _, gpu in gpus)} run{'s' if len(gpus) == 1 else ''} natively"


def _with_toolkit(question: Question, one: Combination) -> Combination:
    """The toolkit and the compiler: those asked, else the first pair that compiles for the targets."""
    versions = _candidates(one, one.accelerator.toolkit)
    compilers = _compilers(question, one)
    pairs = [
        _with_compiler(question, replace(one, components={**one.components, **version}), compiler)
        for compiler in compilers
        for version in versions
    ]
    chosen = _first_without_finding(pairs, DEVICE_RULES)
    _choose_component(question, chosen, one.accelerator.toolkit)
    _choose_compiler(question, chosen)
    return chosen


def _with_libraries(question: Question, one: Combination) -> Combination:
    for name in one.accelerator.components:
        if name != one.accelerator.toolkit:
            candidates = [
                replace(one, components={**one.components, **version}) for version in _candidates(one, name)
            ]
            one = _first_without_finding(candidates, LIBRARY_RULES)
            _choose_component(question, one, name)
    return one


def _first_without_finding(candidates: Sequence[Combination], rules: Sequence[Rule]) -> Combination:
    """The first candidate that no rule speaks of; else the first, whose findings will be told.

    Of an official list it is enough that a part can be had.
    """
    for one in candidates:
        if not _found(one, rules):
            return one
    for one in candidates:
        if any(wanted.official and not _found(replace(one, targets=[wanted]), rules) for wanted in one.targets):
            return one
    return candidates[0]


def _candidates(one: Combination, name: str | None) -> list[dict[str, str]]:
    """A component's versions in order of preference: the one asked; else the tested one, newer ones, older ones."""
    if not name or not (name in one.asked or name in one.release.components):
        return [{}]
    support = one.release.components.get(name, Support())
    if name in one.asked:
        return [{name: full_version(one, name, one.asked[name])}]
    if support.tested is None:
        return [{}]
    tested = Version(support.tested)
    others = sorted({Version(text) for text in support.accepted} - {tested})
    newer, older = [each for each in others if each > tested], [each for each in others if each < tested]
    return [{name: full_version(one, name, str(each))} for each in (tested, *newer, *reversed(older))]


def full_version(one: Combination, name: str, asked: str) -> str:
    """An exact version for `12.2`: closed lists are exact already, a toolkit's row knows its patch releases."""
    support = one.release.components.get(name, Support())
    if support.closed or name != one.accelerator.toolkit or len(Version(asked).parts) > 2:
        return asked
    if len(Version(asked).parts) < 2:
        known = (*support.accepted, support.tested or asked)
        asked = next((text for text in reversed(known) if Version(text).matches(Version(asked))), asked)
    toolkit = one.knowledge.toolkits.get((name, str(Version(asked).minor)))
    return toolkit.patches[-1] if toolkit and toolkit.patches else asked


def _choose_component(question: Question, one: Combination, name: str | None) -> None:
    notes, release = question.notes, one.release
    known = name in one.asked or name in release.components
    # Without its toolkit nothing is known of a build, whatever is allowed.
    if not name or not (known or name == one.accelerator.toolkit):
        return
    support, value = release.components.get(name, Support()), one.components.get(name, "")
    if name in one.asked:
        asked = one.asked[name]
        reason = "as asked" if value == asked else f"newest known version of {asked}"
        notes.choose(name, value, "profile", reason)
    elif support.tested is None:
        notes.refuse(
            "component-missing",
            one.place(name),
            f"no {one.title(name)} version is known to be tested with TensorFlow {release.release}",
            why=f"known to work: {', '.join(support.accepted)}" if support.accepted else "",
            fix=f"say which: `{one.place(name)}: …`",
        )
    elif value == full_version(one, name, support.tested):
        notes.choose(name, value, f"releases.yaml {release.release}", "the version the release was tested with")
    else:
        tested = replace(one, components={**one.components, name: full_version(one, name, support.tested)})
        why = next((finding.message for rule in (*DEVICE_RULES, *LIBRARY_RULES) for finding in rule(tested)), "")
        reason = f"the nearest to the tested {support.tested}: {why}"
        notes.choose(name, value, f"releases.yaml {release.release}", reason)


def _compilers(question: Question, one: Combination) -> list[str]:
    """Compilers of GPU code in order of preference; one empty name where there is nothing to choose."""
    default = one.release.gpu_compiler
    if default is None or not one.accelerator.compilers:
        return [""]
    if question.profile.compiler:
        return [question.profile.compiler]
    others = [name for name in one.accelerator.compilers if name != default and _is_there(question, one, name)]
    return [default, *others]


def _is_there(question: Question, one: Combination, compiler: str) -> bool:
    """Whether the release has a compiler at hand: the toolkit's own always, another one in a known version."""
    own_version = any(name == compiler for name, _ in question.knowledge.compilers)
    return not own_version or bool(_version_of(question, one.release, compiler))


def _version_of(question: Question, release: Release, compiler: str) -> str:
    """The version of a compiler that is not the toolkit's: the profile's, else the release's."""
    host = question.profile.host_compiler
    if isinstance(host, HostCompiler) and host.name == compiler and (host.version or host.path):
        return str(Version(host.version).parts[0]) if host.version else "of unknown version"
    if any(name == compiler for name, _ in question.knowledge.compilers):
        return release.compilers.get(compiler, "")
    return ""


def _with_compiler(question: Question, one: Combination, compiler: str) -> Combination:
    version = _version_of(question, one.release, compiler) if compiler else ""
    return replace(one, compiler=compiler, compiler_version=version)


def _choose_compiler(question: Question, one: Combination) -> None:
    notes, asked, default = question.notes, question.profile.compiler, one.release.gpu_compiler
    if not one.compiler:
        return
    if asked and asked not in (*one.accelerator.compilers, default):
        notes.refuse(
            "compiler-unknown",
            "compiler",
            f"the GPU compiler `{asked}` is not known",
            why=f"known for {one.accelerator.accelerator}: {', '.join(one.accelerator.compilers)}",
        )
    elif asked and not _is_there(question, one, asked):
        notes.doubt(
            "compiler-unavailable",
            "compiler",
            f"TensorFlow {one.release.release} is not known to have been compiled by {asked}",
            why=f"its GPU code is compiled by {default}",
        )
    if asked:
        notes.choose("compiler", asked, "profile", "as asked")
    elif one.compiler == default:
        notes.choose(
            "compiler", one.compiler, f"releases.yaml {one.release.release}", "the release's own GPU compiler"
        )
    else:
        instead = _with_compiler(question, one, default or "")
        reason = next((finding.message for rule in DEVICE_RULES for finding in rule(instead)), "")
        notes.choose("compiler", one.compiler, "compilers.yaml", reason)
