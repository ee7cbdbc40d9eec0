"""Choose the accelerator, the targets, and the toolkit, libraries and compiler that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tfdock.gpu.devices import bare_gpu, find_gpu, is_embedded, machine_of, unknown_gpu
from tfdock.knowledge.fits import own_target
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.rows import Accelerator
from tfdock.profile.profile import HostCompiler
from tfdock.resolve.question import Question
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


def accelerator_of(question: Question) -> Accelerator:
    """Return the accelerator that the profile names or implies.

    Raises Incompatible for a refused accelerator: GPUs, toolkit and image depend on it, so nothing else is checked.
    """
    profile, known, notes = question.profile, question.knowledge.accelerators, question.notes
    asked, before = profile.accelerator, len(notes.problems)
    if asked is not None and asked not in known:
        message = f"the accelerator `{asked}` is not known"
        notes.stop("accelerator-unknown", "accelerator", message, why=f"known: {', '.join(sorted(known))}")
    _check_devices(question)
    if len(notes.problems) > before:
        notes.stop_if_refused()
    # List each field once: several GPUs of this machine come from one field.
    evidence = list(dict.fromkeys(_evidence(question)))
    names = {asked} if asked else {name for _, name in evidence}
    for path, name in evidence:
        if asked and name != asked:
            notes.refuse("accelerator-conflict", path, f"`{path}` is for {name}, but `accelerator:` is {asked}")
    if len(names) > 1:
        listed = ", ".join(f"`{path}` ({name})" for path, name in evidence)
        message = f"the profile mixes accelerators: {listed}"
        why = "a wheel serves only one accelerator: make two profiles"
        notes.refuse("accelerator-conflict", evidence[0][0], message, why=why)
    if len(notes.problems) > before:
        notes.stop_if_refused()
    name = next(iter(names), "cpu")
    reason = f"`{evidence[0][0]}` asks for it" if evidence else "no GPU is requested"
    notes.choose("accelerator", name, "profile" if asked or evidence else "default", "as asked" if asked else reason)
    return known[name]


def _check_devices(question: Question) -> None:
    """Refuse devices without an accelerator: an unknown device must not become a build without GPU."""
    notes = question.notes
    if question.profile.for_this_machine and not question.local_gpus:
        message = "`gpus: local` found no GPU on this machine"
        why = "`nvidia-smi` or `rocminfo` must work here"
        notes.refuse("gpu-local-none", "gpus", message, why=why, fix="name them: `gpus: [rtx3080]`")
    for path, name, row in asked_gpus(question):
        if row is None:
            problem = unknown_gpu(question.knowledge, name)
            notes.refuse(problem.code, path, problem.message, fix=problem.fixes)
    for field, path, target in _asked_targets(question):
        # Leave out families without a pattern for targets: without a pattern, every word would match.
        rows = [row for row in question.knowledge.accelerators.values() if row.target_pattern]
        owners = [row for row in rows if row.target_field == field]
        if any(row.matches(target) for row in owners):
            continue
        others = [row for row in rows if row.matches(target)]
        patterns = " or ".join(f"`{row.target_pattern}`" for row in owners or rows)
        message = f"`{target}` is not a target of `{field}`"
        why = f"it belongs in `{others[0].target_field}`" if others else f"targets look like {patterns or 'none'}"
        notes.refuse("target-field" if others else "target-syntax", path, message, why=why)


def _evidence(question: Question) -> Iterable[tuple[str, str]]:
    """Yield (field, accelerator) for each field of the profile that implies an accelerator."""
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


# --- the profile's values ------------------------------------------------------------------------------------------


def component_fields(question: Question) -> dict[str, str]:
    """Return component -> the profile's field for its version, for all known components and those in the profile."""
    profile, names = question.profile, sorted(question.knowledge.components)
    fields = {name: name if hasattr(profile, name) else f"components.{name}" for name in names}
    return fields | {name: f"components.{name}" for name in profile.components}


def asked_components(question: Question) -> dict[str, str]:
    """Return component -> version, as written in the profile."""
    profile = question.profile
    fields = {name: getattr(profile, name, None) for name in component_fields(question)}
    return {**{name: value for name, value in fields.items() if value}, **profile.components}


def _asked_targets(question: Question) -> Iterator[tuple[str, str, str]]:
    """Return (field, path, target) of each target that the profile lists."""
    for name in TARGET_FIELDS:
        for index, value in enumerate(getattr(question.profile, name) or ()):
            yield name, f"{name}[{index}]", value


def asked_gpus(question: Question) -> list[tuple[str, str, Gpu | None]]:
    """Return (path, name, row) of each GPU of the profile, including this machine's; an unknown GPU has no row."""
    knowledge, gpus = question.knowledge, question.profile.gpus
    places = [("gpus", gpus)] if gpus == "local" else [(f"gpus[{n}]", name) for n, name in enumerate(gpus or ())]
    rows: list[tuple[str, str, Gpu | None]] = []
    for path, name in places:
        if name == "local":
            # A GPU that is newer than the rows is named by its target.
            local = ((word, find_gpu(knowledge, word) or bare_gpu(knowledge, word)) for word in question.local_gpus)
            rows += [(path, word, row) for word, row in local]
        else:
            rows.append((path, name, find_gpu(knowledge, name)))
    return rows


# --- targets, toolkit, compiler, libraries --------------------------------------------------------------------------


def devices_of(question: Question, release: Release, accelerator: Accelerator) -> Combination:
    """Choose targets, components and compiler; note every conflict between them."""
    notes, asked = question.notes, asked_components(question)
    _refuse_unused(question, accelerator, asked)
    # This is only a doubt, because the release's row may not cover this family yet.
    if accelerator.components and not any(name in release.components for name in accelerator.components):
        message = f"TensorFlow {release.release} is not known to work with {accelerator.accelerator}"
        notes.doubt("accelerator-untested", next((path for path, _ in _evidence(question)), "accelerator"), message)
    gpus = [(path, gpu) for path, _, gpu in asked_gpus(question) if gpu]
    listed = [RequestedBuild(target=target, path=path) for _, path, target in _asked_targets(question)]
    combination = Combination(
        profile=question.profile,
        knowledge=question.knowledge,
        release=release,
        accelerator=accelerator,
        components={},
        asked=asked,
        fields=component_fields(question),
        # A list of targets is complete. GPUs beside the list are only checked against it.
        targets=listed
        or [
            RequestedBuild(target=own_target(release, accelerator, gpu.target), path=path, gpu=gpu)
            for path, gpu in gpus
            if gpu.accelerator == accelerator.accelerator  # another family is refused as accelerator-conflict
        ],
        served=gpus if listed else (),
    )
    _refuse_other_machines(question, gpus, listed)
    # This is after the GPUs and before the toolkit, because the targets decide the toolkit.
    if accelerator.target_pattern and not combination.targets:
        combination = replace(combination, targets=_official_targets(question, combination))
    combination = _with_toolkit(question, combination)
    # This is after the toolkit, which may not compile for the whole official list.
    combination = _supported_official_targets(question, combination)
    # Libraries last: which versions exist depends on the toolkit.
    combination = _with_libraries(question, combination)
    for rule in RULES:
        for finding in rule(combination):
            notes.find(finding)
    if combination.targets and not combination.targets[0].official:
        natively = f"what {', '.join(gpu.gpu for _, gpu in gpus)} run{'s' if len(gpus) == 1 else ''} natively"
        notes.choose("targets", ", ".join(combination.target_names), "profile", "as asked" if listed else natively)
    return combination


def _refuse_unused(question: Question, accelerator: Accelerator, asked: Mapping[str, str]) -> None:
    for name in asked:
        # Otherwise the version would be ignored silently.
        if name not in accelerator.components:
            takes = ", ".join(accelerator.components) or "none"
            message = f"a {accelerator.accelerator} build uses no version of `{name}`"
            why = f"it uses versions of {takes}; other parts come with TensorFlow, or are in the base image"
            question.notes.refuse("component-unused", component_fields(question)[name], message, why=why)
    if question.profile.compiler and not accelerator.compilers:
        message = f"`compiler` is the compiler of GPU code: a {accelerator.accelerator} build has no choice"
        question.notes.refuse("compiler-unused", "compiler", message, why="`host_compiler` is the compiler of C++")


def _refuse_other_machines(
    question: Question, gpus: Sequence[tuple[str, Gpu]], listed: Sequence[RequestedBuild]
) -> None:
    """Refuse GPUs that are sold with another kind of CPU; beside other GPUs, only warn about them."""
    knowledge, here = question.knowledge, question.machine
    devices = [(path, gpu.gpu, gpu, True) for path, gpu in gpus]
    bare = [(requested.path, gpu) for requested in listed if (gpu := bare_gpu(knowledge, requested.target))]
    # Refuse only if no named GPU and no listed target fits this kind of machine.
    if not gpus and all(machine_of(knowledge, gpu) not in (None, here) for _, gpu in bare):
        # A GPU that is not embedded may be sold for another kind of machine later.
        devices += [
            (path, f"a GPU of {gpu.target}", gpu, is_embedded(knowledge, gpu.accelerator, gpu.target))
            for path, gpu in bare
        ]
    for path, name, gpu, certain in devices:
        machine = machine_of(knowledge, gpu)
        if machine in (None, here):
            continue
        base = "" if any(row.machine == machine for row in knowledge.images) else ", with your own base image"
        # A user who writes the CUDA version in this field rarely has such a GPU.
        if gpu.target in asked_components(question).values():
            why = f"{gpu.target} is also a version in another field; this field is for a GPU's target (`tfdock gpus`)"
        else:
            why = "a wheel is built for the CPU architecture of the machine that builds it"
        message = f"{name} is sold with a {machine} CPU, but this build is for {here}"
        fix = (f"build it on {machine}{base}", f"name a GPU of {here} machines")
        weight = "error" if certain else "warning"
        question.notes.refuse("gpu-other-machine", path, message, why=why, fix=fix, weight=weight)


def _official_targets(question: Question, combination: Combination) -> list[RequestedBuild]:
    """Return the official wheel's list of targets, for a profile without targets."""
    official = combination.release.official_targets.get(combination.accelerator.accelerator, ())
    if not official:
        message = f"the GPUs of the official TensorFlow {combination.release.release} are not known"
        why = f"and neither `gpus` nor `{combination.accelerator.target_field}` names any"
        question.notes.refuse("targets-missing", "accelerator", message, why=why)
    # The field that asked for the toolkit is at fault, if there is one.
    path = combination.place(combination.accelerator.toolkit, "accelerator")
    return [RequestedBuild(target=target, path=path, official=True) for target in official]


def _supported_official_targets(question: Question, combination: Combination) -> Combination:
    """Return the official list without the targets that this build cannot have: the profile did not request them.

    XLA does not use the oldest GPUs in the list of an old official wheel that was built without XLA.
    """
    if not combination.targets or not combination.targets[0].official:
        return combination
    rules = (*DEVICE_RULES, release_uses_the_target)
    # Check each target separately, so that a failed target does not remove others.
    # If no target remains, return the whole list: its findings give the reasons.
    able = [wanted for wanted in combination.targets if not _finding(replace(combination, targets=[wanted]), rules)]
    able = able or [*combination.targets]
    some = "" if len(able) == len(combination.targets) else ", without targets that this build cannot compile"
    row = f"releases.yaml {combination.release.release}"
    listed = ", ".join(wanted.target for wanted in able)
    question.notes.choose("targets", listed, row, f"the official wheel's list{some}")
    return replace(combination, targets=able)


def _finding(combination: Combination, rules: Sequence[Rule]) -> str:
    """Return the message of the first finding; empty without a finding."""
    return next((finding.message for rule in rules for finding in rule(combination)), "")


def _with_toolkit(question: Question, combination: Combination) -> Combination:
    """Choose toolkit and compiler: the profile's, or else the first pair that compiles for the targets."""
    versions = _candidates(combination, combination.accelerator.toolkit)
    # Use the release's own compiler as long as any version of the toolkit works with it.
    pairs = (
        _with_compiler(combination.with_versions(version), compiler)
        for compiler in _compilers(combination)
        for version in versions
    )
    chosen = _first_without_finding(pairs, DEVICE_RULES)
    _choose_component(question, chosen, combination.accelerator.toolkit)
    _choose_compiler(question, chosen)
    return chosen


def _with_libraries(question: Question, combination: Combination) -> Combination:
    for name in combination.accelerator.components:
        if name != combination.accelerator.toolkit:
            # Versions of other releases and of reports are tried only if none of the release's own works.
            versions = chain(_candidates(combination, name), _beside_toolkit(combination, name))
            combination = _first_without_finding(map(combination.with_versions, versions), LIBRARY_RULES)
            _choose_component(question, combination, name)
    return combination


def _first_without_finding(candidates: Iterable[Combination], rules: Sequence[Rule]) -> Combination:
    """Return the first candidate without a finding; else the first candidate, whose findings will be reported.

    For an official list, it is enough if a part of the list works.
    """
    tried = []
    for combination in candidates:
        if not _finding(combination, rules):
            return combination
        tried.append(combination)
    # No toolkit serves the whole list, so take the first one that serves a part of the list.
    for combination in tried:
        official = (wanted for wanted in combination.targets if wanted.official)
        if any(not _finding(replace(combination, targets=[wanted]), rules) for wanted in official):
            return combination
    return tried[0]


def _candidates(combination: Combination, name: str) -> list[dict[str, str]]:
    """Return a component's versions, best first: the profile's version; else the tested, newer and older versions."""
    support = combination.release.support(name)
    if name in combination.asked:
        return [{name: full_version(combination, name, combination.asked[name])}]
    if support.tested is None:
        # `_choose_component` refuses a component of which no version is tested.
        return [{}]
    tested = Version(support.tested)
    others = sorted({Version(text) for text in support.accepted} - {tested})
    newer, older = [each for each in others if each > tested], [each for each in others if each < tested]
    # Newer before older: if the tested version lacks support for a GPU, a later version mostly has it.
    # A library follows the requested toolkit, even to a version that is reported as untested.
    follows = name != combination.accelerator.toolkit
    last = [Version(text) for text in support.uncertain] if follows else []
    return [{name: full_version(combination, name, str(each))} for each in (tested, *newer, *reversed(older), *last)]


def _beside_toolkit(combination: Combination, name: str) -> Iterator[dict[str, str]]:
    """Yield versions of a library that were used with the chosen toolkit: by releases' tables, then by reports.

    Yield nothing if the profile names the version, or Bazel has a closed list.
    """
    knowledge, toolkit = combination.knowledge, combination.accelerator.toolkit
    own, chosen = combination.release.support(name), combination.toolkit_version
    if name in combination.asked or own.closed or not own.tested or not chosen:
        return
    minor, tested = Version(chosen).minor, Version(own.tested)
    tables = ((row.support(toolkit).tested, row.support(name).tested) for row in knowledge.releases.values())
    sure = (row.components for row in knowledge.evidence.values() if row.outcome == "built" and not row.unverified)
    reports = ((parts.get(toolkit), parts.get(name)) for parts in sure)
    for pairs in (tables, reports):
        exact = {Version(library).minor for of, library in pairs if of and library and Version(of).minor == minor}
        found = sorted(version for version in exact if len(version.parts) > 1)
        newer, older = [each for each in found if each > tested], [each for each in found if each < tested]
        for each in (*newer, *reversed(older)):
            yield {name: full_version(combination, name, str(each))}


def full_version(combination: Combination, name: str, asked: str) -> str:
    """Return the full version for `12.2`, from the patch releases in the toolkit's row; closed lists are exact."""
    support = combination.release.support(name)
    if support.closed or name != combination.accelerator.toolkit or len(Version(asked).parts) > 2:
        return asked
    if len(Version(asked).parts) < 2:
        known = (*support.accepted, support.tested or asked)
        asked = next((text for text in reversed(known) if Version(text).matches(Version(asked))), asked)
    toolkit = combination.knowledge.toolkit(name, asked)
    return toolkit.patches[-1] if toolkit and toolkit.patches else asked


def _choose_component(question: Question, combination: Combination, name: str) -> None:
    notes, release = question.notes, combination.release
    known = name in combination.asked or name in release.components
    # A build without a known toolkit cannot be checked, so `allow_untested` does not help.
    if not name or not (known or name == combination.accelerator.toolkit):
        return
    support, value = release.support(name), combination.components.get(name, "")
    if name in combination.asked:
        asked = combination.asked[name]
        reason = "as asked" if value == asked else f"newest known version of {asked}"
        notes.choose(name, value, "profile", reason)
    elif support.tested is None:
        message = f"no {combination.title(name)} version is known to be tested with TensorFlow {release.release}"
        why = f"the release accepts {', '.join(support.accepted)}" if support.accepted else ""
        path = combination.place(name)
        notes.refuse("component-missing", path, message, why=why, fix=f"say which: `{path}: …`")
    # Compare with the full version, because `tested` may be a minor version.
    elif value == full_version(combination, name, support.tested):
        notes.choose(name, value, f"releases.yaml {release.release}", "the version the release was tested with")
    else:
        tested = combination.with_versions({name: full_version(combination, name, support.tested)})
        # The reason for another version is the support that the tested version lacks.
        why = _finding(tested, (*DEVICE_RULES, *LIBRARY_RULES))
        reason = f"the nearest to the tested version {support.tested}: {why}"
        notes.choose(name, value, f"releases.yaml {release.release}", reason)


def _compilers(combination: Combination) -> list[str]:
    """Return compilers of GPU code in order of preference; one empty name if there is no choice."""
    default, known = combination.release.gpu_compiler, combination.accelerator.compilers
    if default is None or not known:
        return [""]
    if combination.profile.compiler:
        return [combination.profile.compiler]
    names = [default, *(name for name in known if name != default and _is_available(combination, name))]
    # The release has another C++ compiler beside each of them: clang beside clang, gcc beside nvcc.
    return sorted(names, key=lambda name: not _is_beside_host(combination, name))


def _is_beside_host(combination: Combination, compiler: str) -> bool:
    """Return whether the release has the profile's C++ compiler beside this compiler of GPU code."""
    host = combination.profile.host_compiler
    name = host.name if isinstance(host, HostCompiler) else host
    return bool(name) and combination.release.host_compilers.get(compiler) == name


def _is_available(combination: Combination, compiler: str) -> bool:
    """Return whether the release can use a compiler: the toolkit's own, or another one in a known version."""
    return not combination.is_separate(compiler) or bool(_version_of(combination, compiler))


def _version_of(combination: Combination, compiler: str) -> str:
    """Return the version of a compiler that is not the toolkit's: the profile's, else the release's."""
    host = combination.profile.host_compiler
    if isinstance(host, HostCompiler) and host.name == compiler and (host.version or host.path):
        # The profile gives the compiler's path, so its version is unknown and no row applies to it.
        return str(Version(host.version).parts[0]) if host.version else "of unknown version"
    return combination.release.compilers.get(compiler, "") if combination.is_separate(compiler) else ""


def _with_compiler(combination: Combination, compiler: str) -> Combination:
    version = _version_of(combination, compiler)
    return replace(combination, compiler=compiler, compiler_version=version)


def _choose_compiler(question: Question, combination: Combination) -> None:
    notes, asked, default = question.notes, question.profile.compiler, combination.release.gpu_compiler
    if not combination.compiler:
        return
    if asked and asked not in (*combination.accelerator.compilers, default):
        message = f"the GPU compiler `{asked}` is not known"
        why = f"known for {combination.accelerator.accelerator}: {', '.join(combination.accelerator.compilers)}"
        notes.refuse("compiler-unknown", "compiler", message, why=why)
    elif asked and not _is_available(combination, asked):
        message = f"TensorFlow {combination.release.release} is not known to have been compiled by {asked}"
        notes.doubt("compiler-unavailable", "compiler", message, why=f"its GPU code is compiled by {default}")
    if asked:
        notes.choose("compiler", asked, "profile", "as asked")
    elif combination.compiler == default:
        row = f"releases.yaml {combination.release.release}"
        notes.choose("compiler", combination.compiler, row, "the release's own GPU compiler")
    else:
        # The reason for another compiler is the support that the release's own compiler lacks.
        instead = _with_compiler(combination, default or "")
        beside = _is_beside_host(combination, combination.compiler)
        why = "the release has this C++ compiler beside it" if beside else _finding(instead, DEVICE_RULES)
        notes.choose("compiler", combination.compiler, "compilers.yaml", why)
