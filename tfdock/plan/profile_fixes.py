"""Find changes of a profile after its build failed, and describe the profile's choices.

A change comes from the failure's row. It is offered only if `tfdock check` accepts the changed profile, and if the
build would differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from tfdock.errors import Problem, Suggestion, joined
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.resources import GIB, MIB, BuildResources, more_memory
from tfdock.profile.profile import Profile
from tfdock.resolve.profile_changes import (
    Attempt,
    Change,
    accepted,
    by_distance,
    changed,
    describe_change,
    gpu_targets,
    known_versions,
    mentioned_accelerators,
)
from tfdock.resolve.resolution import Resolution
from tfdock.types import Version

if TYPE_CHECKING:
    from tfdock.knowledge.failure_rows import Remedied

_MOST = 3  #: The most changes that are offered.
_TRIED = 12  #: The most versions of a component that are tried, the nearest first.
_NUMBER = re.compile(r"(?:sm|compute|lto)_(\d+[a-z]?)|(gfx\w+)|(\d+\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The profile that was built, if it is known.

    `resolution` is None if the profile is refused because of `problems`; `ways` are the fixes for this refusal.
    `attempt` resolves a changed profile, and returns None if it is refused. Without `attempt` no change is offered.
    """

    knowledge: KnowledgeBase
    profile: Profile | None = None
    resolution: Resolution | None = None
    resources: BuildResources | None = None
    attempt: Attempt | None = None
    problems: tuple[Problem, ...] = ()
    ways: tuple[Suggestion, ...] = ()


# --- the profile's choices ------------------------------------------------------------------------------------------


def asked(row: Remedied, context: Context) -> str:
    """Return the profile's choices that matter for a failure: `your profile asks for sm_120 and CUDA 12.5.1`."""
    words = [word for subject in row.asks if (word := _word(subject, context))]
    return f"your profile asks for {joined(words)}" if words else ""


def _word(subject: str, context: Context) -> str:
    if subject == "resources":
        if not (limits := context.resources):
            return ""
        return f"{limits.jobs} job{'s' if limits.jobs != 1 else ''} in {limits.memory / MIB / 1024:.1f} GiB"
    if value := version(subject, context):
        return f"{title(subject, context.knowledge)} {value}"
    if context.resolution:
        return _decided(context.resolution).get(subject, "")
    return _written(context.profile, context.knowledge).get(subject, "") if context.profile else ""


def _decided(resolution: Resolution) -> dict[str, str]:
    compiler = f"{resolution.gpu_compiler} {resolution.gpu_compiler_version}".rstrip()
    return {
        "targets": ", ".join(resolution.targets),
        "release": f"TensorFlow {resolution.version}",
        "python": f"Python {resolution.python}",
        "bazel": f"Bazel {resolution.bazel}",
        "gpu_compiler": f"{compiler} for GPU code" if compiler else "",
        "host_compiler": f"{resolution.host_compiler} for C++",
        "base": f"the image {resolution.base}",
        "runtime": f"the image {resolution.runtime} to try the wheel" if resolution.runtime else "",
        "optimize": f"`optimize: {' '.join(resolution.optimize) or 'portable'}`",
        "debug": "debug information" if resolution.debug else "",
        "xla": "XLA" if resolution.xla else "no XLA",
    }


def _written(profile: Profile, knowledge: KnowledgeBase) -> dict[str, str]:
    """Return the texts of `_decided` for a refused profile, from the profile's own fields."""
    own = {name: gpu_targets([name], knowledge) for name in profile.named_gpus}
    gpus = [f"{target[0]} ({name})" if target else name for name, target in own.items()]
    return {
        "release": f"TensorFlow {profile.source.release}",
        "targets": ", ".join(profile.listed_targets or gpus),
        "gpu_compiler": f"{profile.compiler} for GPU code" if profile.compiler else "",
    }


# --- facts of the build ---------------------------------------------------------------------------------------------


def targets(context: Context) -> tuple[str, ...]:
    """Return the targets of the build; empty if the profile names none or the targets are not known."""
    if context.resolution:
        return context.resolution.targets
    if context.profile is None:
        return ()
    return tuple(context.profile.listed_targets or gpu_targets(context.profile.named_gpus, context.knowledge))


def version(component: str, context: Context) -> str:
    """Return the version of a component; empty if there is none, or the refused profile does not name it."""
    if context.resolution:
        return context.resolution.components.get(component, "")
    return context.profile.asked_version(component) if context.profile else ""


def title(component: str, knowledge: KnowledgeBase) -> str:
    """Return a component's name as people write it."""
    return knowledge.titles.get(component, component.capitalize())


def accelerator(context: Context) -> str:
    """Return the name of the accelerator; empty if it is not known."""
    if context.resolution:
        return context.resolution.accelerator.accelerator
    if (profile := context.profile) is None:
        return ""
    mentioned = mentioned_accelerators(profile, context.knowledge)
    return profile.accelerator or next((row.accelerator for row in mentioned), "")


def number(target: str) -> str:
    """Return `120` for `sm_120`, `compute_120` and `12.0`."""
    match = _NUMBER.search(target)
    return next((digits.replace(".", "") for digits in match.groups() if digits), "") if match else ""


# --- changes --------------------------------------------------------------------------------------------------------


def changes(row: Remedied, values: Mapping[str, str], context: Context) -> tuple[Suggestion, ...]:
    """Return the row's accepted changes of the profile; no two change the same fields."""
    if context.profile is None or context.attempt is None:
        return ()
    # The unchanged profile is refused, so the fixes for the refusal come first.
    if context.resolution is None:
        return context.ways if row.changes else ()
    suggestions: dict[frozenset[str], Suggestion] = {}
    for template in row.changes:
        moves = _moves(template, values, context, context.profile)
        # The nearest change of the same fields is enough.
        other_fields = takewhile(lambda move: frozenset(move) not in suggestions, moves)
        for change, resolution in accepted(context.profile, other_fields, context.attempt):
            resources = changed(context.profile, change).resources
            if resources != context.profile.resources or not _is_same_build(resolution, context.resolution):
                text = describe_change(change, context.profile)
                suggestions[frozenset(change)] = Suggestion(text=text, change=change)
                break
        if len(suggestions) == _MOST:
            break
    return tuple(suggestions.values())


def _is_same_build(after: Resolution, before: Resolution) -> bool:
    """Return whether two resolutions differ at most in fields that explain the build."""
    explained = replace(before, choices=after.choices, untested=after.untested, warnings=after.warnings)
    return after == replace(explained, runtime_asked=after.runtime_asked)


def _memory_for_one_job(context: Context) -> int:
    """Return the bytes to try for one job, if a build failed with one job already; else 0."""
    # With more than one job, try fewer jobs first.
    if context.resolution is None or context.resources is None or context.resources.jobs > 1:
        return 0
    return more_memory(context.resources, context.resolution.release.cost)


def _moves(
    template: Mapping[str, object], values: Mapping[str, str], context: Context, profile: Profile
) -> Iterator[Change]:
    """Yield the changes that a template of a row may mean, the nearest first."""
    for path, wanted in template.items():  # a template has one field
        if isinstance(wanted, Mapping):
            (verb, text), *_ = wanted.items()
            yield from _changes_of_verb(path, verb, str(text).format(**values), context, profile)
        elif wanted is None:
            yield from [{path: None}] if profile.is_set(path) or path in profile.components else []
        else:
            # Without a field in the profile, the build may already have had the wanted compiler.
            compiler = context.resolution.gpu_compiler if path == "compiler" and context.resolution else None
            if wanted not in (compiler, _current_value(profile, path)):
                yield {path: wanted}


def _changes_of_verb(path: str, verb: str, text: str, context: Context, profile: Profile) -> Iterator[Change]:
    if verb == "half":
        jobs = context.resources.jobs if context.resources else 0
        yield from [{path: jobs // 2}] if jobs > 1 else []
        # `auto` already takes all memory of the machine.
        if (memory := _memory_for_one_job(context)) and profile.resources.memory != "auto":
            yield {"resources.memory": f"{memory // GIB}GiB"}
    elif path == "targets":
        yield from _without_target(text, context, profile)
    elif verb in ("with", "without"):
        listed = list(_current_value(profile, path) or ())  # type: ignore[call-overload]
        # A row names a configuration `NAME`; in a list of flags it is `--config=NAME`.
        rest = [option for option in listed if text not in (option, option.removeprefix("--config="))]
        if (len(rest) == len(listed)) is (verb == "with"):
            yield {path: [*rest, text] if verb == "with" else rest or None}
    else:
        versions = _versions(path, text if verb == "nearest" else "", context, profile)
        for_target = text if verb == "for" else ""
        yield from ({path: version} for version in versions if not for_target or _has(path, version, text, context))


def _without_target(text: str, context: Context, profile: Profile) -> Iterator[Change]:
    """Yield changes to the list of targets without one target: with the GPUs kept, then without the GPUs."""
    if context.resolution is None or not (gone := number(text)):
        return
    field = context.resolution.accelerator.target_field
    rest = [target for target in context.resolution.targets if number(target) != gone]
    if rest and len(rest) < len(context.resolution.targets):
        yield {field: rest}
        # A GPU beside the list may need the removed target, so also try the change without the GPUs.
        if profile.gpus:
            yield {field: rest, "gpus": None}


def _has(toolkit: str, version: str, target: str, context: Context) -> bool:
    """Return whether a toolkit version compiles for a target of the build."""
    wanted, row = number(target), context.knowledge.toolkit(toolkit, version)
    # If the build does not have the target, another toolkit does not help.
    return bool(row and wanted in row.targets and wanted in map(number, targets(context)))


def _versions(name: str, near: str, context: Context, profile: Profile) -> Sequence[str]:
    """Return other versions of a component, or of Python, that the release takes or the rows know."""
    release = context.knowledge.release_of(profile.source.release)
    is_listed = release is not None and name in (*release.components, "python")
    known = known_versions(context.knowledge, release, name) if is_listed else set()
    now = profile.asked_version(name)
    return by_distance(known - {now}, near if Version(near).parts else now)[:_TRIED]


def _current_value(profile: Profile, path: str) -> object:
    value: object = profile
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
