"""Read Bazel's JSON trace profile (`--profile`): which action ran when, where, and from which cache. Pure: no I/O.

A Bazel version writes a list, or an object with `traceEvents`. Each line has one event. Both forms are read line by
line, because a profile of TensorFlow is too large for memory. A truncated profile yields its complete events.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tfdock.bazel.build_events import Step, parsed_lines

#: How an action was done: by a process, from a cache, or by Bazel itself, such as writing a file.
How = Literal["executed", "cached", "own"]

_ACTION = "action processing"
_CRITICAL = "critical path component"
_EXECUTIONS = {"local action execution", "remote action execution", "worker execution", "subprocess.run"}
_HITS = {"remote output download", "remote action cache check"}
_PATH_NAME = re.compile(r"action '(.*)'$")
# Bazel merges short events of a thread when a profile grows large.
_MERGED = re.compile(r"merged \d+ events")
_MICRO = 1_000_000
_NAME = 300  #: The most characters of a name. Bazel rules choose the names, and the record stores them.
#: The most kinds of actions, and the most steps of the critical path: the record stores these too.
_MNEMONICS, _STEPS = 200, 300
#: The most events that are read. A container may have written the profile, and the events are kept in memory.
_MOST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedAction:
    """An action. `start` is in seconds after Bazel's start. `lane` is the number of its thread, from 0.

    `mnemonic` is empty if this Bazel does not report it; executed actions always have one.
    """

    name: str
    start: float
    seconds: float
    lane: int
    how: How
    mnemonic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProfile:
    """The contents of a profile: actions sorted by start, critical path, and whether Bazel merged events to save
    space."""

    actions: tuple[TracedAction, ...] = ()
    critical: tuple[Step, ...] = ()
    merged: bool = False

    @property
    def by_mnemonic(self) -> dict[str, int]:
        """Return the number of executed actions of each kind, the largest number first."""
        return dict(
            Counter(action.mnemonic for action in self.actions if action.how == "executed").most_common(_MNEMONICS)
        )

    def slowest(self, most: int) -> tuple[TracedAction, ...]:
        """Return the actions that took longest, without Bazel's own."""
        actions = (action for action in self.actions if action.how != "own")
        return tuple(sorted(actions, key=lambda action: (-action.seconds, action.start, action.name))[:most])


@dataclass(frozen=True, slots=True)
class _Mark:
    """An event within an action."""

    start: int
    kind: str
    name: str


def read_profile(lines: Iterable[str]) -> TraceProfile:
    """Return the first `_MOST` events of a profile; an empty profile if the text is not such a profile."""
    actions: list[tuple[int, int, int, str, str]] = []
    marks: dict[int, list[_Mark]] = {}
    critical: list[Step] = []
    merged = False
    for event in itertools.islice(_events(lines), _MOST):
        kind, name = str(event.get("cat", "")), str(event.get("name", ""))[:_NAME]
        start, took, thread = (_integer(event.get(key)) for key in ("ts", "dur", "tid"))
        if start is None or took is None or took < 0 or thread is None:
            continue
        merged = merged or _MERGED.fullmatch(name) is not None
        if kind == _ACTION:
            actions.append((thread, start, took, name, _mnemonic(event)))
        elif kind in _EXECUTIONS or kind in _HITS:
            marks.setdefault(thread, []).append(_Mark(start, kind, name))
        elif kind == _CRITICAL and len(critical) < _STEPS and (path := _PATH_NAME.match(name)):
            critical.append(Step(name=path[1], seconds=took / _MICRO))
    return TraceProfile(actions=tuple(_actions(actions, marks)), critical=tuple(critical), merged=merged)


def _actions(rows: list[tuple[int, int, int, str, str]], marks: Mapping[int, list[_Mark]]) -> Iterator[TracedAction]:
    """Yield each action with the events of its thread while it ran."""
    lanes: dict[int, int] = {}
    # The file promises no order, and `bisect` needs one.
    asked = {thread: sorted(found, key=lambda mark: mark.start) for thread, found in marks.items()}
    executed = {thread: [mark for mark in found if mark.kind in _EXECUTIONS] for thread, found in asked.items()}
    for thread, start, took, name, mnemonic in sorted(rows, key=lambda row: (row[1], row[0])):
        inner, ran = (_first_within(found.get(thread, ()), start, took) for found in (asked, executed))
        yield TracedAction(
            name=name,
            start=start / _MICRO,
            seconds=took / _MICRO,
            lane=lanes.setdefault(thread, len(lanes)),
            # An executed action also queries the cache first, so a query without execution means a hit.
            how="executed" if ran else "cached" if inner else "own",
            mnemonic=mnemonic or (ran.name if ran else ""),
        )


def _first_within(marks: Sequence[_Mark], start: int, took: int) -> _Mark | None:
    # Look only at the first mark: a container may write a million marks, and a million actions around all marks.
    place = bisect_left(marks, start, key=lambda mark: mark.start)
    return marks[place] if place < len(marks) and marks[place].start <= start + took else None


def _events(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    texts = (line.strip().rstrip(",") for line in lines)
    # The lines around the events open and close their list or object.
    return parsed_lines(text for text in texts if text.startswith("{") and text.endswith("}"))


def _mnemonic(event: Mapping[str, Any]) -> str:
    arguments = event.get("args")
    return str(arguments.get("mnemonic") or "")[:_NAME] if isinstance(arguments, dict) else ""


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None
