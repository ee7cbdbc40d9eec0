"""Write a first profile for given devices: an accepted profile, with a comment for each line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tfdock.errors import Incompatible, ProfileError, joined
from tfdock.gpu.devices import dotted, find_gpu, is_target, sorted_targets, spelled, unknown_gpu
from tfdock.knowledge.fits import exact_target, taken_target
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.release_rows import Release
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile.profile import Profile
from tfdock.resolve.gpu_support import apart, release_named, target_facts
from tfdock.resolve.profile_changes import Change, accepted, changed
from tfdock.resolve.resolution import Resolution, Resolver
from tfdock.resolve.resolve import read_text, resolve_or_suggest, resolve_text
from tfdock.types import Choice, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterDevices:
    """The devices of a profile: rows of GPUs, or targets in the form of a profile, or neither."""

    accelerator: Accelerator
    gpus: tuple[Gpu, ...] = ()
    targets: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """For a sentence: `rtx3080 and h100`."""
        return joined([gpu.gpu for gpu in self.gpus] or self.targets or [self.accelerator.accelerator.upper()])


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedProfile:
    """A profile that `check` accepts, possibly with `allow_untested`.

    `choices` are the reasons for the values in the text; empty if they are not known.
    """

    text: str
    release: Release
    resolution: Resolution
    choices: tuple[Choice, ...] = ()


def devices_of(knowledge: KnowledgeBase, words: Sequence[str]) -> StarterDevices:
    """Return the devices that words name: GPUs, targets, or an accelerator without targets; raises ProfileError."""
    rows: list[Accelerator] = []
    gpus: list[Gpu] = []
    targets: list[str] = []
    for word in words:
        plain = knowledge.accelerators.get(word.lower())
        gpu, target = find_gpu(knowledge, word), _target(knowledge, word)
        if plain is not None and plain.target_pattern is None:
            rows.append(plain)
        elif target is not None:
            rows.append(target[0])
            targets.append(target[1])
        # A word in the form of a target is never the name of a GPU.
        elif gpu is not None and not is_target(knowledge, word):
            rows.append(knowledge.accelerators[gpu.accelerator])
            gpus.append(gpu)
        else:
            raise ProfileError(unknown_gpu(knowledge, word))
    if len({row.accelerator for row in rows}) > 1:
        message = f"{' and '.join(f'`{word}`' for word in words)} need different accelerators"
        fix = "a wheel serves only one accelerator: make two profiles"
        raise ProfileError.of("accelerator-conflict", message, fix)
    if targets:  # a list must have every target, including the targets of the named GPUs
        targets += [exact_target(rows[0], gpu.target) for gpu in gpus]
        gpus = []
    return StarterDevices(accelerator=rows[0], gpus=tuple(dict.fromkeys(gpus)), targets=sorted_targets(targets))


def _target(knowledge: KnowledgeBase, word: str) -> tuple[Accelerator, str] | None:
    """Return a target as a profile lists it, with its accelerator: `8.6` is `sm_86`."""
    for row in knowledge.accelerators.values():
        try:
            target = exact_target(row, word)
        except ValueError:
            target = spelled(word)
        if row.matches(target):
            return row, target
    return None


def starter(
    knowledge: KnowledgeBase,
    devices: StarterDevices,
    *,
    tensorflow: str | None = None,
    python: str | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
    versions: Mapping[str, str] = MappingProxyType({}),
    machine: str = "x86_64",
    describe: Callable[[Change, Profile], str] | None = None,
) -> AcceptedProfile:
    """Return an accepted profile for the requested release, or else for the newest possible release.

    `more` are further fields of the profile, as YAML. A release tested with the `versions` of components comes before
    newer releases that only list them. `describe` writes the suggestions of a refusal.

    Raises ProfileError, or Incompatible with the reasons of the requested or newest release, or with one reason if no
    release supports all devices together.
    """
    if tensorflow:
        release_named(knowledge, tensorflow)
    # First refuse devices that no release supports together: otherwise every release would add its own reasons.
    check_together(knowledge, devices)
    try:
        releases = _releases(knowledge, devices, tensorflow, python)
        releases.sort(key=lambda release: not _tested(knowledge.releases.get(release), versions))
        draft = profile_text({**_fields(knowledge, devices, releases[0], python), **more})
        profile, resolver = read_text(draft, knowledge, machine=machine)
        found = _newest(profile, replace(resolver, describe=describe), devices, releases, versions)
        full = _listed_versions(found.release, versions)
        more = {**more, **{name: json.dumps(version) for name, version in full.items()}}
        # Write out every version: today's choice must not change when knowledge grows.
        others = {name: version for name, version in found.components.items() if name not in more}
        fields = {**_fields(knowledge, devices, str(found.version), found.python, others), **more}
        if not found.xla:
            fields.setdefault("xla", "false")
        comments = _comments(devices, newest=not (tensorflow or versions))
        # Fields that the user asked for have no comment.
        comments = {name: comment for name, comment in comments.items() if name not in more}
        text = profile_text(fields, comments)
        resolution = resolve_text(text, knowledge, machine=machine)
        release = knowledge.releases[resolution.release.release]
        return AcceptedProfile(text=text, release=release, resolution=resolution, choices=found.choices)
    except (ProfileError, Incompatible) as error:
        # The text is not in a file yet, so its line numbers mean nothing.
        problems = (replace(problem, file=None, line=None, column=None) for problem in error.problems)
        raise type(error)(*problems) from None


def check_together(knowledge: KnowledgeBase, devices: StarterDevices) -> None:
    """Refuse devices that no wheel of any release can serve; raises Incompatible."""
    named = [(gpu.gpu, gpu.target) for gpu in devices.gpus]
    listed = [(target, dotted(target)) for target in devices.targets]
    why = apart(knowledge, devices.accelerator, [*named, *listed])
    if not why:
        return
    names = [name for name, _ in (*named, *listed)]
    which, fix = f"no wheel is known for {names[0]}", f"`tfdock advise --gpu {names[0]}` prints the reasons"
    if len(names) > 1:
        each = ", ".join(f"`tfdock init {name} --gpu {name}`" for name in names)
        which, fix = f"no single wheel serves {devices.words}", f"make a profile for each: {each}"
    raise Incompatible.of("target-not-in-toolkit", which, fix, why="; ".join(why))


def _releases(knowledge: KnowledgeBase, devices: StarterDevices, asked: str | None, python: str | None) -> list[str]:
    """Return the requested release; else the releases that support all targets and the Python; else the newest."""
    if asked:
        return [asked]
    taking = {name for name, row in knowledge.releases.items() if python is None or python in row.pythons}
    wanted = {gpu.target for gpu in devices.gpus} | {dotted(target) for target in devices.targets}
    for target in wanted:
        taking &= {support.release for support in target_facts(knowledge, devices.accelerator, target).releases}
    # If no release supports all targets, the newest release provides the reasons.
    return sorted(taking, key=Version, reverse=True) or [max(knowledge.releases, key=Version)]


def _tested(release: Release | None, versions: Mapping[str, str]) -> bool:
    """Return whether upstream tested a release with these versions of components."""
    rows = release.components.items() if release else ()
    return all(Version(row.tested or "").matches(Version(versions[name])) for name, row in rows if name in versions)


def _newest(
    profile: Profile,
    resolver: Resolver,
    devices: StarterDevices,
    releases: Sequence[str],
    versions: Mapping[str, str],
) -> Resolution:
    """Return the resolution of a profile with the first release that takes it; raises Incompatible if none does."""
    knowledge = resolver.knowledge
    # XLA uses no GPU below a floor of the release, which the release itself may still use.
    old = "xla" not in profile.model_fields_set and (devices.gpus or devices.targets)
    choices: list[Change] = [{}, {"xla": False}] if old else [{}]
    drafts: Iterator[Change] = (
        {"tensorflow": release, **xla, **_listed_versions(knowledge.release_of(release), versions)}
        | ({devices.accelerator.target_field: taken_targets(knowledge, devices, release)} if devices.targets else {})
        for release in releases
        for xla in choices
    )
    for draft, found in accepted(profile, drafts, resolver.attempt):
        # Known builds may be for another Python than the chosen one, once this is written out.
        if written := resolver.attempt(changed(profile, {**draft, "python": found.python})):
            return written
    # Only after all releases were refused: the search for fixes is slow.
    return resolve_or_suggest(resolver, profile)


def _listed_versions(release: Release | None, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the full versions in a release's closed lists for parts of versions: the tested one, else the newest."""
    full = {}
    for name, asked in versions.items():
        support = release.components.get(name) if release else None
        known = (support.tested or "", *reversed(support.accepted)) if support and support.closed else ()
        if matching := next((text for text in known if Version(text).matches(Version(asked))), ""):
            full[name] = matching
    return full


def profile_text(fields: Mapping[str, str], comments: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text of a profile with these fields, whose values are YAML, each after its comment."""
    lines = []
    for name, value in fields.items():
        lines += [*(f"# {line}" for line in comments.get(name, "").splitlines()), f"{name}: {value}"]
    return "".join(f"{line}\n" for line in lines)


def _fields(
    knowledge: KnowledgeBase,
    devices: StarterDevices,
    release: str,
    python: str | None,
    versions: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    named = {name: version for name, version in versions.items() if name in Profile.model_fields}
    others = {name: version for name, version in versions.items() if name not in named}
    # In quotes: YAML would read `2.10` as the number 2.1.
    return {
        "schema": "1",
        "tensorflow": json.dumps(release),
        **({"python": json.dumps(python)} if python else {}),
        **device_field(knowledge, devices, release),
        **{name: json.dumps(version) for name, version in named.items()},
        **({"components": json.dumps(others)} if others else {}),
    }


def taken_targets(knowledge: KnowledgeBase, devices: StarterDevices, release: str) -> list[str]:
    """Return the listed targets as a release takes them: `compute_35` for `sm_35` if it cannot make SASS alone."""
    row = knowledge.release_of(release)  # None for a wrong option: the resolution of the profile reports it
    return [taken_target(row, devices.accelerator, target) if row else target for target in devices.targets]


def device_field(knowledge: KnowledgeBase, devices: StarterDevices, release: str) -> dict[str, str]:
    """Return the field of a profile that names the devices, for a release."""
    if devices.gpus:
        return {"gpus": f"[{', '.join(gpu.gpu for gpu in devices.gpus)}]"}
    if devices.targets:
        return {devices.accelerator.target_field: f"[{', '.join(taken_targets(knowledge, devices, release))}]"}
    return {"accelerator": devices.accelerator.accelerator}


def _comments(devices: StarterDevices, *, newest: bool) -> dict[str, str]:
    release = "The newest release that can be built this way" if newest else "The release"
    targets = "Code for these targets only; `compute_86` adds PTX for newer GPUs."
    comments = {
        "schema": f"A TensorFlow wheel for {devices.words}. `tfdock schema` lists all fields.",
        "tensorflow": f"{release}; `tfdock releases` lists all.",
        "python": "The Python the wheel is for.",
        "gpus": "Machine code for exactly these GPUs; `tfdock gpus` knows the names, `local` is this machine's.",
        "xla": "XLA uses no GPU of this age.",
        "accelerator": "For machines without GPU. With one, write `gpus: [rtx3080]` instead.",
        devices.accelerator.target_field: targets
        if devices.accelerator.capabilities
        else "Machine code for these targets only.",
    }
    if devices.accelerator.toolkit:
        comments[devices.accelerator.toolkit] = "A version that the release accepts and these GPUs need."
    return comments
