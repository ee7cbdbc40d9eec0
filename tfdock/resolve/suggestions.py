"""Suggestions after a refusal: changes of the profile that were tried, and are accepted.

Nothing here is written by hand for a problem: every field in play has moves, taken from the rows, the nearest first;
a move, then two moves together, then a new release with everything else left to it. What resolves is a way out. Where
more is wrong than that mends, faults are mended one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from tfdock.errors import Problem, Suggestion
from tfdock.profile.profile import Profile
from tfdock.resolve.moves import MOST, Moves
from tfdock.resolve.profile_changes import (
    Attempt,
    Change,
    accepted,
    asked_version,
    changed,
    component_titles,
    describe_change,
    is_set,
)
from tfdock.resolve.resolution import Resolution, Resolver

_TRIALS = 3000
"""How many changes are tried at most."""
_FAULTS = 8
"""How many faults are mended one after the other at most."""
Tried = tuple[Change, Resolution]
"""A change that is accepted, and what the profile resolves to with it."""


def suggestions(profile: Profile, problems: Sequence[Problem], resolver: Resolver) -> list[Suggestion]:
    """Return the nearest changes of a refused profile that are accepted, each of other fields; empty if none is."""
    allowed, knowledge, attempt = profile.allow_untested, resolver.knowledge, resolver.attempt
    strict = profile.model_copy(update={"allow_untested": False})
    moves = Moves(strict, problems, knowledge, may_allow=not allowed)
    found = _nearest(moves, moves.all(), attempt)
    if allowed and len(found) < MOST:
        # Nearly every release takes nearly every version then: another release says nothing.
        moves = Moves(profile, problems, knowledge, may_allow=False)
        found = _nearest(moves, moves.within_the_release(), attempt, found)
    found = found or _mended(moves, resolver)
    if not found:
        return _without_devices(moves, attempt) if moves.wants_devices else []
    in_play = {path for move, _ in found for path in move}
    # What works without a word of warning comes first; allowing the untested last, however little it changes.
    ordered = sorted(found, key=lambda item: ("allow_untested" in item[0], bool(item[1].warnings)))
    return [_suggestion(moves, move, resolution, in_play) for move, resolution in ordered]


def _nearest(moves: Moves, changes: Iterator[Change], attempt: Attempt, known: Sequence[Tried] = ()) -> list[Tried]:
    """Return changes that are accepted, the nearest of each set of fields, after those that are known."""
    nearest = list(known)
    untried = (move for move in islice(changes, _TRIALS) if not _is_outdone(move, nearest))
    for move, resolution in accepted(moves.profile, untried, attempt):
        if moves.wants_devices and not resolution.targets:
            continue
        least, resolution = _least(moves.profile, move, resolution, attempt)
        alike = [item for item in nearest if set(item[0]) == set(least)]
        if any(dict(seen) == dict(least) or resolution.warnings for seen, _ in alike):
            continue
        nearest[:] = [item for item in nearest if item not in alike or not item[1].warnings]
        nearest.append((least, resolution))
        if len(nearest) > MOST:
            break
    return nearest


def _is_outdone(move: Change, nearest: Sequence[Tried]) -> bool:
    """Whether a change of fewer fields does it without a warning.

    Several GPUs may be meant by one name; of any other field the nearest value is enough.
    """
    return any(set(seen) <= set(move) and set(move) != {"gpus"} for seen, other in nearest if not other.warnings)


def _mended(moves: Moves, resolver: Resolver) -> list[Tried]:
    """One change that mends fault after fault, each by the nearest move after which it is gone."""
    profile, done = moves.profile, dict[str, object]()
    problems = moves.problems
    for _ in range(_FAULTS):
        step = Moves(profile, problems, moves.knowledge, may_allow=False)
        before = {(problem.code, problem.field) for problem in problems}
        for move in step.single():
            after = resolver.examine(changed(profile, move))
            left = {(problem.code, problem.field) for problem in after}
            if left < before or (before - left and not left & before):
                break
        else:
            return []
        done |= move
        profile, problems = changed(profile, move), after
        resolution = None if after else resolver.attempt(profile)
        if resolution is not None and (resolution.targets or not moves.wants_devices):
            return [_least(moves.profile, done, resolution, resolver.attempt)]
    return []


def _without_devices(moves: Moves, attempt: Attempt) -> list[Suggestion]:
    """Return the last way there is: to build for the CPU."""
    for move, resolution in accepted(moves.profile, moves.without_devices(), attempt):
        suggestion = _suggestion(moves, move, resolution, set())
        return [replace(suggestion, text=f"build for the CPU alone: {suggestion.text}")]
    return []


def _least(profile: Profile, move: Change, resolution: Resolution, attempt: Attempt) -> Tried:
    """The move without those of its changes that it does not need."""
    for path in list(move):
        less = {name: value for name, value in move.items() if name != path}
        without = attempt(changed(profile, less)) if less else None
        if without is not None and without.targets == resolution.targets:
            move, resolution = less, without
    return move, resolution


# --- words ----------------------------------------------------------------------------------------------------------


def _suggestion(moves: Moves, move: Change, resolution: Resolution, in_play: set[str]) -> Suggestion:
    change = {path: _explicit(path, value, resolution) for path, value in move.items()}
    always = {"tensorflow", "tensorflow.release", "gpus", *moves.components}
    others = sorted((in_play | always) - set(move), key=_keep_order)
    keep = tuple(text for path in others if is_set(moves.profile, path) and (text := _kept(moves, path)))
    text = describe_change(change, moves.profile)
    text = f"keep {', '.join(keep)}: {text}" if keep else text
    text += "".join(f" ({warning.message})" for warning in resolution.warnings)
    return Suggestion(text=text, change=change, keep=keep, untested="allow_untested" in change)


def _keep_order(path: str) -> tuple[bool, str]:
    """The release first."""
    return not path.startswith("tensorflow"), path


def _explicit(path: str, value: object, resolution: Resolution) -> object:
    """What is left to the release, said in full: a version that one reads helps more than one that is removed."""
    if value is not None:
        return value
    name = path.rpartition(".")[2]
    return resolution.python if path == "python" else resolution.components.get(name)


def _kept(moves: Moves, path: str) -> str:
    profile, name = moves.profile, path.rpartition(".")[2]
    if path.partition(".")[0] == "tensorflow":
        return f"TensorFlow {profile.source.release}"
    if name in moves.components:
        return f"{component_titles(moves.knowledge).get(name, name)} {asked_version(profile, name)}"
    if path == "python":
        return f"Python {profile.python}"
    if path == "gpus":
        return ", ".join(profile.gpus) if isinstance(profile.gpus, list) else "this machine's GPUs"
    return f"`{path}`"
