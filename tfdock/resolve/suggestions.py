"""Suggestions after a refusal: changed profiles that are accepted.

A move is one change of one field, with a value from the rows. The nearest moves come first. The search tries single
moves, then two moves together, then another release with its own choice of all other values. Then it repeats all this
with `allow_untested`. No suggestion is written by hand for one problem.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, islice

from tfdock.errors import Problem, Suggestion
from tfdock.gpu.devices import (
    bare_gpu,
    embedded_targets,
    find_gpu,
    is_integrated,
    is_target,
    sorted_targets,
    target_number,
)
from tfdock.gpu.verdict import runs_target
from tfdock.knowledge.fits import exact_target
from tfdock.knowledge.release_rows import Release, Support
from tfdock.knowledge.rows import Accelerator
from tfdock.profile.profile import HostCompiler, Profile
from tfdock.resolve.profile_changes import (
    Change,
    accepted,
    by_distance,
    changed,
    describe_change,
    gpu_targets,
    known_versions,
    mentioned_accelerators,
)
from tfdock.resolve.resolution import Resolution, Resolver
from tfdock.types import TARGET_FIELDS, Capability, Version, same_minor

MOST = 3  #: The most suggestions: one for each set of fields, and one more with `allow_untested`.
_PAIRED = 5  #: The most moves of a field that are combined with each move of another field.
_LEFT_TO_THE_RELEASE = (
    "python", "compiler", "host_compiler", "bazel.version", "bazel.configs", "bazel.flags", "base", "optimize",
)  # fmt: skip


class Moves:
    """The possible changes of a profile, the smallest first."""

    def __init__(self, profile: Profile, problems: Sequence[Problem], resolver: Resolver) -> None:
        self.profile = profile
        self.problems = problems
        self.resolver = resolver
        self.knowledge = knowledge = resolver.knowledge
        self.codes = {problem.code for problem in problems}
        # For a problem at `gpus[1]`, the field at fault is `gpus`.
        self.at_fault = {(problem.field or "").partition("[")[0] for problem in problems}
        # If the toolkit does not know a GPU, the toolkit's field is at fault too.
        if "target-not-in-toolkit" in self.codes:
            self.at_fault |= {row.toolkit for row in self.families}
        self.release = knowledge.release_of(profile.source.release)

    @property
    def wants_devices(self) -> bool:
        """Whether the profile requests GPUs. If it does, a build without GPUs is not suggested."""
        named = self.knowledge.accelerators.get(self.profile.accelerator or "")
        if named:
            return named.target_pattern is not None
        listed = any(self.profile.is_set(name) for name in ("gpus", "accelerator", *TARGET_FIELDS))
        return listed or any(row.target_pattern for row in mentioned_accelerators(self.profile, self.knowledge))

    def is_served(self, resolution: Resolution) -> bool:
        """Return whether a build still runs on the requested devices: the GPUs, and the GPUs of the listed targets.

        If some targets of a list cannot be built, only the others must run. Return False also for a base image with
        another minor version of a component, because the build would stop.
        """
        held = {} if self.profile.base_image else resolution.image.holds
        if not all(same_minor(version, resolution.components.get(name, version)) for name, version in held.items()):
            return False
        lists = () if self.profile.is_set("gpus") else TARGET_FIELDS  # GPUs are more exact than a list beside them
        named = {name: targets for name in lists if (targets := getattr(self.profile, name))}
        sound = [target for name, targets in named.items() for target in self._sound(name, targets)]
        wanted = sound or [target for targets in named.values() for target in targets]
        code = resolution.targets
        return bool(code or not self.wants_devices) and (not code or all(runs_target(one, code) for one in wanted))

    @property
    def families(self) -> list[Accelerator]:
        """The accelerators with targets in the profile; all accelerators if there are none."""
        mentioned = mentioned_accelerators(self.profile, self.knowledge)
        return [row for row in mentioned if row.target_pattern] or [*self.knowledge.accelerators.values()]

    def all(self) -> Iterator[Change]:
        """Yield single moves, then pairs of moves, then moves that let the release choose every version."""
        tables = [list(moves) for moves in self._tables()]
        yield from (move for moves in tables for move in moves)
        releases = list(self._releases())
        # Releases are combined separately below, each with every field.
        nearest = [moves[:_PAIRED] for moves in tables if moves != releases]
        for firsts, seconds in combinations(nearest, 2):
            yield from _pairs(firsts, seconds)
        for moves in tables:
            # Another release's own choice fits this release better than a value near the present one.
            yield from _pairs(sorted(moves[:_PAIRED], key=lambda move: None not in move.values()), releases)
        yield from self._everything_left()

    def allowing_the_untested(self) -> Iterator[Change]:
        """Yield the empty move and all moves that keep the release, each together with `allow_untested`.

        With `allow_untested`, nearly every release accepts nearly every version, so another release would not help.
        """
        kept = (move for move in self.all() if self.profile.release_field not in move)
        yield from ({**move, "allow_untested": True} for move in chain([{}], kept))

    def without_devices(self) -> Iterator[Change]:
        """Yield changes to a CPU build: the release chooses every version, without GPUs and targets."""
        devices = {field: None for field in ("gpus", "accelerator", *TARGET_FIELDS) if getattr(self.profile, field)}
        for move in self._everything_left():
            yield {**move, **devices}

    def _tables(self) -> Iterator[Iterable[Change]]:
        """Yield the moves of each field, the fields at fault first."""
        yield self._gpus()
        yield self._targets()
        for name in self.knowledge.components:
            if getattr(self.profile, name, None) or name in self.at_fault:
                yield self._component(name, name)
        yield from (self._component(name, f"components.{name}") for name in self.profile.components)
        pythons = by_distance(known_versions(self.knowledge, self.release, "python"), self.profile.python)
        yield self._plain("python", [*pythons[:2], None, *pythons[2:]])
        rows = self.knowledge.accelerators.values()
        compilers = list(dict.fromkeys(name for row in rows for name in row.compilers))
        nearest = [*_near(self.profile.compiler, compilers), None, *compilers]
        unset = not self.profile.compiler and self.codes & _FIXED_BY_COMPILERS
        yield ({"compiler": name} for name in compilers) if unset else self._plain("compiler", nearest)
        accelerators, asked = self.knowledge.accelerators, self.profile.accelerator
        conflict = "accelerator" in self.at_fault or "accelerator-conflict" in self.codes
        # Yield other accelerators only if the profile's is at fault: users name the GPU that they have.
        if conflict or asked not in accelerators:
            yield self._plain("accelerator", [None, *_near(asked, accelerators), *accelerators])
        yield self._optimize()
        # Change XLA only if it causes the problem, or is off already.
        floored = "xla-floor" in self.codes or not self.profile.xla
        yield [{"xla": not self.profile.xla}] if floored else []
        for name in ("configs", "copts", "flags"):
            options = getattr(self.profile.bazel, name)
            yield [{f"bazel.{name}": self._sound(f"bazel.{name}", options) or None}] if options else []
        yield [{"bazel.version": None}] if self.profile.bazel.version else []
        host = self.profile.host_compiler
        host = host.name if isinstance(host, HostCompiler) else host
        hosts = sorted({name for name, _ in self.knowledge.host_compilers})
        # The base image may hold another compiler than the release's own.
        lacking = not host and "image-without-tool" in self.codes
        near = [*(() if host in hosts else _near(host, hosts)), None]
        yield ({"host_compiler": name} for name in hosts) if lacking else self._plain("host_compiler", near)
        yield self._plain("base", [None])
        yield [{"edits": None}] if self.profile.edits == "none" else []
        yield self._releases()

    def _plain(self, field: str, values: Iterable[object]) -> Iterator[Change]:
        """Yield values for a field that is set or at fault."""
        now = getattr(self.profile, field)
        default = type(self.profile).model_fields[field].default
        if now == default and field not in self.at_fault:
            return
        for value in values:
            if value != now and not (value is None and now == default):
                yield {field: value}

    def _releases(self) -> Iterator[Change]:
        """Yield other releases, newer before older.

        Yield none for `flag-is-a-choice`: another release would only hide the problem.
        """
        if "flag-is-a-choice" not in self.codes:
            yield from ({self.profile.release_field: version} for version in self._versions())

    def _versions(self) -> list[str]:
        """Return the newest patch of each release, the profile's own release first, then by distance.

        A custom source keeps its release, even if the rows of another release would accept the profile.
        """
        if self.profile.source.is_own and self.release:
            return []
        asked = str(Version(self.profile.source.release).minor)
        return [self.knowledge.releases[name].newest for name in by_distance(self.knowledge.releases, asked)]

    def _component(self, name: str, field: str) -> Iterator[Change]:
        support = self.release.support(name) if self.release else Support()
        asked = self.profile.asked_version(name)
        known = known_versions(self.knowledge, self.release, name)
        nearest = by_distance(known, asked or support.tested, support.tested)
        for version in sorted(nearest, key=lambda version: not self._compiles(name, version)):
            if version != asked:
                yield {field: version}
        if asked:
            yield {field: None}

    def _compiles(self, name: str, version: str) -> bool:
        """Return whether a toolkit version supports all targets of the profile."""
        row = self.knowledge.toolkits.get((name, version))
        wanted = gpu_targets(self.profile.named_gpus, self.knowledge) + self.profile.listed_targets
        return row is None or all(target_number(target) in row.targets for target in wanted)

    def _sound(self, field: str, values: Sequence[str]) -> list[str]:
        """Return the values of a list that are not at fault."""
        return [value for index, value in enumerate(values) if not self._is_at_fault(field, index)]

    def _optimize(self) -> Iterator[Change]:
        asked = self.profile.optimize
        if "native-shared" in self.codes:
            yield {"optimize": None}
        if not isinstance(asked, list):
            return
        known = self.knowledge.cpu_features
        # `noavx` asks for the opposite of `avx`.
        near = {name: [] if name.removeprefix("no") in known else _near(name, known) for name in asked}
        nearest = [name if name in known else next(iter(near[name]), "") for name in asked]
        if all(nearest):
            yield {"optimize": list(dict.fromkeys(nearest))}
        yield {"optimize": [name for name in asked if name in known] or None}

    def _gpus(self) -> Iterator[Change]:
        """Yield targets instead of GPUs; then the list of GPUs without the GPUs at fault; then one family alone."""
        if not isinstance(self.profile.gpus, list):
            return
        rest = self._sound("gpus", self.profile.gpus)
        wrong = len(rest) < len(self.profile.gpus)
        # If targets are among the GPUs, list targets instead; but not for an integrated GPU beside a card.
        bare = [name for name in self.profile.gpus if is_target(self.knowledge, name)]
        if wrong and not all(is_integrated(self.knowledge, name) for name in bare):
            yield from self._targets_instead(self.profile.gpus)
        if wrong and (rest or not self.wants_devices):
            yield {"gpus": rest or None}
        rows = [(name, find_gpu(self.knowledge, name)) for name in self.profile.gpus]
        families = dict.fromkeys(row.accelerator for _, row in rows if row)
        if len(families) > 1:
            for family in families:
                yield {"gpus": [name for name, row in rows if row and row.accelerator == family]}

    def _targets_instead(self, gpus: Sequence[str]) -> Iterator[Change]:
        """Yield a list of targets if some entries of `gpus` are targets."""
        known = [find_gpu(self.knowledge, name) for name in gpus]
        rows = [row or bare_gpu(self.knowledge, name) for name, row in zip(gpus, known, strict=True)]
        families = {row.accelerator for row in rows if row}
        # A list of targets can only be for one family.
        if None not in known or None in rows or len(families) > 1:
            return
        family = self.knowledge.accelerators[families.pop()]
        targets = list(sorted_targets(exact_target(family, row.target) for row in rows if row))
        # The release may accept only one of the two spellings.
        yield from ({"gpus": None, family.target_field: listed} for listed in (targets, *_respelled(targets)))

    def _targets(self) -> Iterator[Change]:
        """Yield lists that the toolkit and the release accept: beside the GPUs, or instead of the present list."""
        listed = {name: targets for name in TARGET_FIELDS if (targets := getattr(self.profile, name)) is not None}
        rows = [row for row in self.knowledge.accelerators.values() if row.target_pattern]
        for name, targets in listed.items():
            # The same list, in the field of its accelerator.
            yield from ({name: None, row.target_field: targets} for row in rows if row.target_field != name)
            yield from ({name: respelled} for respelled in (self._spelled_right(name, targets), *_respelled(targets)))
            rest = self._sound(name, targets)
            if rest and rest != targets:
                yield {name: rest}
            # Without a list, the build uses the targets of the GPUs or of the official wheel.
            yield {name: None}
        if self.release and "targets-missing" in self.codes:
            for row in self.families:
                official = self.release.official_targets.get(row.accelerator)
                if used := official or self.release.runtime_targets.get(row.accelerator):
                    yield {row.target_field: list(used)}
        # Code for an older GPU of the same major version runs as well.
        if self.profile.is_set("gpus") and self.codes & {"target-not-in-toolkit", "compiler-cannot-emit"}:
            yield from ({field: [target]} for field, target in self._known_targets())

    def _spelled_right(self, name: str, targets: Sequence[str]) -> list[str]:
        """Return the list with each target at fault replaced by the nearest known target."""
        known = [target for field, target in self._known_targets() if field == name]
        near = [
            _similar_target(target, known) if self._is_at_fault(name, index) else target
            for index, target in enumerate(targets)
        ]
        return list(dict.fromkeys(near))

    def _is_at_fault(self, name: str, index: int) -> bool:
        return any(problem.field == f"{name}[{index}]" for problem in self.problems)

    def _known_targets(self) -> Iterator[tuple[str, str]]:
        """Yield (field, target) of all targets that any toolkit supports, highest first.

        Capabilities come as SASS, then as SASS and PTX.
        """
        for accelerator in self.families:
            rows = self.knowledge.toolkits_of(accelerator.toolkit)
            numbers = {number for row in rows for number in row.targets}
            if not accelerator.capabilities:
                yield from ((accelerator.target_field, number) for number in sorted(numbers))
                continue
            # A letter (90a, 100f) limits the code to few GPUs, which is no general advice.
            plain = sorted(Capability.parse(f"sm_{number}") for number in numbers if number.isdigit())
            embedded = embedded_targets(self.knowledge, accelerator.accelerator)
            # Code for embedded GPUs runs on no other GPU.
            own = [capability for capability in reversed(plain) if capability.dotted not in embedded]
            yield from ((accelerator.target_field, str(capability)) for capability in own)
            yield from ((accelerator.target_field, f"compute_{capability.number}") for capability in own)

    def _everything_left(self) -> Iterator[Change]:
        """Yield moves that let the release choose every version: the profile's release first, then other releases."""
        names = [path for name in self.knowledge.components for path in (name, f"components.{name}")]
        empty: dict[str, object] = dict.fromkeys(filter(self.profile.is_set, (*names, *_LEFT_TO_THE_RELEASE)))
        # GPUs are enough: they imply the accelerator, and a list beside them may be older than the GPUs.
        lists = {name: None for name in TARGET_FIELDS if self.profile.is_set("gpus") and self.profile.is_set(name)}
        # First keep all device fields of the profile, then fewer and fewer.
        for less in ({}, lists, {**lists, "accelerator": None}):
            yield {**empty, **less, **self._devices_of(self.release)}
            for version in self._versions():
                release = self.knowledge.release_of(version)
                yield {self.profile.release_field: version, **empty, **less, **self._devices_of(release)}

    def _devices_of(self, release: Release | None) -> Change:
        """Return the change that keeps a build a GPU build, if only a toolkit's version requested GPUs."""
        if not self.wants_devices or any(map(self.profile.is_set, ("gpus", *TARGET_FIELDS))) or release is None:
            return {}
        family = self.families[0]
        used = release.runtime_targets.get(family.accelerator)
        # A release without an official list needs a list of targets in the profile.
        if used and not release.official_targets.get(family.accelerator):
            return {family.target_field: list(used)}
        return {} if self.profile.is_set("accelerator") else {"accelerator": family.accelerator}


_FIXED_BY_COMPILERS = {
    "compiler-cannot-emit", "compiler-toolkit", "component-untested", "image-without-tool", "target-not-in-toolkit",
}  # fmt: skip


def _pairs(moves: Iterable[Change], others: Sequence[Change]) -> Iterator[Change]:
    """Yield each move together with each of the others that changes no field of the move."""
    yield from ({**move, **other} for move in moves for other in others if move.keys().isdisjoint(other))


def _respelled(targets: Sequence[str]) -> Iterator[list[str]]:
    """Yield SASS with PTX in place of SASS alone, and the reverse."""
    yield [target.replace("sm_", "compute_") for target in targets]
    yield [target.replace("compute_", "sm_") for target in targets]


def _similar_target(target: str, known: Sequence[str]) -> str:
    """Return a target that runs on an unknown target's GPU, or else the nearest spelling, or else the target."""
    try:
        wanted, others = Capability.parse(target), [Capability.parse(capability) for capability in known]
    except ValueError:
        return next(iter(_near(target.lower(), known)), target)
    alike = [one for one in others if (one.major, one.ptx) == (wanted.major, wanted.ptx)]
    return str(max((one for one in alike if one.minor <= wanted.minor), default=target))


def _near(name: str | None, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5) if name else []


_TRIALS = 3000  #: The most changes that are tried.
Tried = tuple[Change, Resolution]  #: An accepted change, and the resolution of the changed profile.


def suggestions(profile: Profile, problems: Sequence[Problem], resolver: Resolver) -> list[Suggestion]:
    """Return the nearest accepted changes of a refused profile, each with another set of fields; may be empty."""
    allowed, knowledge = profile.allow_untested or resolver.allow_untested, resolver.knowledge
    # Tried without `allow_untested`: advice should rest on known facts.
    strict, resolver = profile.model_copy(update={"allow_untested": False}), replace(resolver, allow_untested=False)
    moves = Moves(strict, problems, resolver)
    # Suggest nothing for an unclear GPU: an accepted profile might be for another GPU than the user has.
    unclear = [name for name in profile.named_gpus if not (find_gpu(knowledge, name) or bare_gpu(knowledge, name))]
    if unclear and moves.wants_devices:
        return []
    tried = _nearest(moves, moves.all())
    tried = _nearest(moves, moves.allowing_the_untested(), tried, most=MOST + 1)
    if allowed:
        tried = [({path: move[path] for path in move if path != "allow_untested"}, found) for move, found in tried]
    # A user who misspelled a GPU has one, so do not suggest a build for the CPU; nor another release without it.
    if not tried and moves.wants_devices and not {"gpu-unknown", "release-unknown"} & moves.codes:
        for move, resolution in accepted(strict, moves.without_devices(), resolver.attempt):
            return [replace(_suggestion(moves, move, resolution, set()), question="build for the CPU alone")]
    in_play = {path for move, _ in tried for path in move}

    def rank(item: Tried) -> tuple[bool, ...]:
        """Return a sort key: changes with `allow_untested` come last, even small ones; they keep the release.

        Changes to another vendor come late: a user who names one vendor's GPU probably has no other vendor's GPU.
        """
        move, resolution = item
        left = any(path.partition(".")[0] == "tensorflow" for path in move)
        untested, other_vendor = "allow_untested" in move, "accelerator" in move
        return untested, other_vendor, left, resolution.grade.value != "built", bool(resolution.warnings)

    return [_suggestion(moves, move, resolution, in_play) for move, resolution in sorted(tried, key=rank)]


def _nearest(moves: Moves, changes: Iterator[Change], known: Sequence[Tried] = (), most: int = MOST) -> list[Tried]:
    """Return accepted changes, the nearest of each set of fields, after the known ones."""
    nearest, attempt = list(known), moves.resolver.attempt
    untried = (move for move in islice(changes, _TRIALS) if not _is_superseded(move, nearest))
    for move, resolution in accepted(moves.profile, untried, attempt):
        if not moves.is_served(resolution):
            continue
        # A pair or a release may change more than was needed.
        least, resolution = _smallest_change(moves, move, resolution)
        # The release may accept its own choice, but not the same value as a request.
        if (said := _explicit(least, resolution)) != least and attempt(changed(moves.profile, said)) is None:
            continue
        alike = [item for item in nearest if set(item[0]) == set(least)]
        if any(dict(seen) == dict(least) or resolution.warnings for seen, _ in alike):
            continue
        # A larger change with as many warnings as a smaller change is no improvement.
        if any(set(seen) < set(least) and len(other.warnings) <= len(resolution.warnings) for seen, other in nearest):
            continue
        nearest[:] = [item for item in nearest if item not in alike or not item[1].warnings]
        nearest.append((least, resolution))
        if len(nearest) == most:
            break
    return nearest


def _is_superseded(move: Change, nearest: Sequence[Tried]) -> bool:
    """Return whether an accepted change of the same or fewer fields has no warning.

    Several lists of GPUs may be meant; of any other field the nearest value is enough.
    """
    return any(set(seen) <= set(move) and set(move) != {"gpus"} for seen, other in nearest if not other.warnings)


def _smallest_change(moves: Moves, move: Change, resolution: Resolution) -> Tried:
    """Return the move without the changes that it does not need."""
    for path in list(move):
        less = {name: value for name, value in move.items() if name != path}
        without = moves.resolver.attempt(changed(moves.profile, less)) if less else None
        # The targets must be the same or the requested ones: otherwise the smaller change would build something else.
        own = path in TARGET_FIELDS and move[path] is None
        if without and moves.is_served(without) and (own or without.targets == resolution.targets):
            move, resolution = less, without
    return move, resolution


# --- words ----------------------------------------------------------------------------------------------------------


def _suggestion(moves: Moves, move: Change, resolution: Resolution, in_play: set[str]) -> Suggestion:
    change = _explicit(move, resolution)
    always = {"tensorflow", "tensorflow.release", "gpus", *moves.knowledge.components}
    # The release comes first.
    others = sorted((in_play | always) - set(move), key=lambda path: (not path.startswith("tensorflow"), path))
    keep = tuple(dict.fromkeys(_keep_text(moves, path) for path in others if moves.profile.is_set(path)))
    text = (moves.resolver.describe or describe_change)(change, moves.profile)
    text = f"keep {', '.join(keep)}: {text}" if keep else text
    text += f" (built {resolution.grade.reason.partition(', ')[0]})" if resolution.grade.value == "built" else ""
    text += "".join(f" ({message})" for message in dict.fromkeys(warning.message for warning in resolution.warnings))
    untested = "allow_untested" in change
    question = "try a build that is not known to work" if untested else ""
    return Suggestion(text=text, change=change, keep=keep, untested=untested, question=question)


def _explicit(move: Change, resolution: Resolution) -> dict[str, object]:
    """Return a change with the release's choices for removed fields: a version is clearer than a removal."""
    # The release may choose a version that is unknown for the image, but a profile must not request it.
    chosen = {
        name: version for name, version in resolution.components.items() if name not in resolution.image.unknown
    }
    chosen |= {"python": resolution.python}
    return {path: chosen.get(path.rpartition(".")[2]) if value is None else value for path, value in move.items()}


def _keep_text(moves: Moves, path: str) -> str:
    profile, name = moves.profile, path.rpartition(".")[2]
    if path.partition(".")[0] == "tensorflow":
        return f"TensorFlow {profile.source.release}"
    if name in moves.knowledge.components:
        return f"{moves.knowledge.titles.get(name, name)} {profile.asked_version(name)}"
    if path == "python":
        return f"Python {profile.python}"
    if path == "gpus":
        return ", ".join(profile.gpus) if isinstance(profile.gpus, list) else "this machine's GPUs"
    return f"`{path}`"
