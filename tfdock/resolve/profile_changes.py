"""Apply changes to a profile, select the accepted changes, and describe them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tfdock.gpu.devices import find_gpu
from tfdock.knowledge.fits import exact_target
from tfdock.knowledge.release_rows import Release, Support
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile.profile import Profile
from tfdock.resolve.resolution import Resolution
from tfdock.types import Version

#: Field of the profile -> its new value; None removes the field. A dotted name (`bazel.version`) is a field in a map.
Change = Mapping[str, object]
Attempt = Callable[[Profile], Resolution | None]  #: Resolves a changed profile; None if it is refused.
#: Text that needs no quotes in YAML.
_PLAIN = re.compile(r"(?!(?i:true|false|yes|no|on|off|null|none|y|n)$)(?:[A-Za-z_/-][\w./:=+@-]*|[1-9]\d*[A-Za-z]+)")


def accepted(profile: Profile, changes: Iterable[Change], attempt: Attempt) -> Iterator[tuple[Change, Resolution]]:
    """Yield, in order, each change with which the profile is accepted, and the resolution of the changed profile."""
    for change in changes:
        resolution = attempt(changed(profile, change))
        if resolution is not None:
            yield change, resolution


def changed(profile: Profile, change: Change) -> Profile:
    """Return the profile after a change; a field whose new value is None is removed."""
    update: dict[str, Any] = {}
    for path, value in change.items():
        field, _, inner = path.partition(".")
        # A change may set several fields of one map, so start from the result of the previous field.
        model = update.get(field, getattr(profile, field))
        # Removing a field means setting its default.
        default = type(profile).model_fields[field].get_default(call_default_factory=True)
        if not inner:
            update[field] = default if value is None else value
        elif isinstance(model, dict):
            others = {name: held for name, held in model.items() if name != inner}
            update[field] = others if value is None else {**others, inner: value}
        else:
            fallback = type(model).model_fields[inner].get_default(call_default_factory=True)
            update[field] = model.model_copy(update={inner: fallback if value is None else value})
    return profile.model_copy(update=update)


def mentioned_accelerators(profile: Profile, knowledge: KnowledgeBase) -> list[Accelerator]:
    """Return the accelerators that a profile names, or that its GPUs, lists and components imply."""
    gpus = (find_gpu(knowledge, name) for name in profile.named_gpus)
    spoken = {gpu.accelerator for gpu in gpus if gpu} | {profile.accelerator}
    for row in knowledge.accelerators.values():
        names = (*row.components, *([row.target_field] if row.target_pattern else []))
        if any(profile.is_set(name) or profile.is_set(f"components.{name}") for name in names):
            spoken.add(row.accelerator)
    return [row for row in knowledge.accelerators.values() if row.accelerator in spoken]


def gpu_targets(names: Iterable[str], knowledge: KnowledgeBase) -> list[str]:
    """Return the exact target of each known GPU among names."""
    gpus = [gpu for name in names if (gpu := find_gpu(knowledge, name))]
    return [exact_target(knowledge.accelerators[gpu.accelerator], gpu.target) for gpu in gpus]


# --- versions of components -----------------------------------------------------------------------------------------


def known_versions(knowledge: KnowledgeBase, release: Release | None, component: str) -> set[str]:
    """Return the versions of a component, or of Python, that a release accepts; all if the release has no list."""
    if component == "python":
        return {*release.pythons} if release else set()
    support = release.support(component) if release else Support()
    known = support.known
    if not support.closed:
        known |= {row.version for row in knowledge.toolkits_of(component)}
    return known


def by_distance(versions: Iterable[str], asked: str | None, first: str | None = None) -> list[str]:
    """Return the versions sorted by distance to `asked`, newer before older; `first` comes before all others.

    11.4 is nearest to 11.4.2.
    """
    known = sorted(set(versions), key=Version)
    wanted = Version(asked) if asked else None
    not_below = [one for one in known if wanted and (Version(one) >= wanted or wanted.matches(Version(one)))]
    at = known.index(not_below[0]) if not_below else len(known)
    order = sorted(range(len(known)), key=lambda index: (known[index] != first, abs(index - at), index < at))
    return [known[index] for index in order]


# --- words ----------------------------------------------------------------------------------------------------------


def describe_change(change: Change, profile: Profile) -> str:
    """Return a change as text: `cuda: "12.8.0"` and `python: "3.11"`, and remove `base`.

    A map is written with all its fields in the profile, so replacing the map loses nothing.
    """
    values, maps = as_yaml(change, profile)
    given = [path for path, value in values.items() if value is not None]
    written = {(field := path.partition(".")[0]): maps.get(field, values[path]) for path in given}
    lines = [f"`{field}: {value}`" for field, value in written.items()]
    gone = " and ".join(f"`{path}`" for path, value in change.items() if value is None)
    return ", and ".join([*([" and ".join(lines)] if lines else []), *([f"remove {gone}"] if gone else [])])


def as_yaml(change: Change, profile: Profile) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return the values of a change in YAML (None removes a field), and the maps that it sets only in part."""
    after = changed(profile, change)
    maps = {path.partition(".")[0] for path in change if "." in path}
    whole = {field: _complete_map(field, change, after) for field in maps}
    return (
        {path: None if value is None else yaml_text(value) for path, value in change.items()},
        {field: yaml_text(value) if value else None for field, value in whole.items()},
    )


def _complete_map(field: str, change: Change, after: Profile) -> Mapping[str, object]:
    """Return a map of the changed profile, its new entries last."""
    model = getattr(after, field)
    # `exclude_unset`: defaults that the user did not write are not part of the replaced value.
    values = model if isinstance(model, dict) else model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    inner = {name: change.get(f"{field}.{name}", value) for name, value in values.items()}
    # Python's sort is stable, so the other entries stay in order.
    order = sorted(inner, key=lambda name: f"{field}.{name}" in change)
    return {name: inner[name] for name in order if inner[name] is not None}


def yaml_text(value: object) -> str:
    """Return a value as written in a profile: numbers bare, versions in quotes, lists and maps in brackets."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {yaml_text(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(yaml_text, value))}]"
    # `True` is `true` in YAML.
    if isinstance(value, bool | int | float):
        return str(value).lower()
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
