"""Compute where each bar of a build's timeline is. The template draws the bars.

Horizontal positions are in percent, so that the picture fits every screen. Heights are in pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfdock.bazel.trace_profile import TracedAction, TraceProfile
from tfdock.cli import console

_LANE = 14
_GAP = 2
_TOP = 4
_AXIS = 22
_TICKS = 5
_KINDS = 5  #: How many kinds of executed actions get their own colour.
_MOST = 3000  #: The most bars on a page, because more are slow to show. The shortest are left out.
_LEAST = 0.15  #: The width of the narrowest bar, in percent. A narrower bar would be invisible.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The bar of an action, or of a part of a row: `x` and `width` in percent, `y` in pixels, and a colour's name."""

    x: float
    width: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    """A time on the axis, in percent."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The timeline of the actions.

    `kinds` has the colours and their legends; `note` names actions that are not drawn.
    """

    summary: str
    height: float
    lane: float
    axis: float
    bars: tuple[Bar, ...]
    ticks: tuple[AxisTick, ...]
    kinds: tuple[tuple[str, str], ...]
    note: str


def timeline(profile: TraceProfile) -> Timeline | None:
    """Return the timeline of the build's actions, except Bazel's internal actions; None if no actions are known."""
    actions = [action for action in profile.actions if action.how != "own"]
    if not actions:
        return None
    begin = min(action.start for action in actions)
    # A build may consist of one action that took no time.
    span = max(max(action.start + action.seconds for action in actions) - begin, 0.001)
    longest = sorted(actions, key=lambda action: -action.seconds)[:_MOST]
    drawn = sorted(longest, key=lambda action: (action.lane, action.start))
    # Lanes that only have Bazel's own work are not drawn.
    lanes = {lane: index for index, lane in enumerate(sorted({action.lane for action in drawn}))}
    kinds = colours(Counter(action.mnemonic for action in actions if action.how == "executed"))
    height = _TOP + len(lanes) * (_LANE + _GAP) + _AXIS
    return Timeline(
        summary=_summary(actions, len(lanes), span),
        height=height,
        lane=_LANE,
        axis=height - _AXIS,
        bars=tuple(_bar(action, begin, span, lanes, kinds) for action in drawn),
        ticks=tuple(_ticks(span)),
        kinds=tuple(_legend(actions, kinds)),
        note=f"The {_MOST:,} longest of {len(actions):,} actions are drawn." if len(actions) > _MOST else "",
    )


def shares(parts: Sequence[tuple[str, str, int]]) -> list[Bar]:
    """Return a row of bars. A bar is as wide as its share of the counts. A part is a colour, a title and a count."""
    total, x, bars = sum(count for _, _, count in parts), 0.0, []
    for kind, title, count in parts:
        width = 100 * count / total
        bars.append(Bar(x=round(x, 3), width=round(width, 3), y=1, kind=kind, title=title))
        x += width
    return bars


def colours(executed: Mapping[str, int]) -> dict[str, str]:
    """Return the colour of each kind of executed action. Only the most frequent kinds get their own colour."""
    # Sort equal counts by name, so that the page is the same every time.
    kinds = sorted(executed, key=lambda kind: (-executed[kind], kind))
    return {kind: f"kind-{index}" if index < _KINDS else "kind-other" for index, kind in enumerate(kinds)}


def _bar(action: TracedAction, begin: float, span: float, lanes: Mapping[int, int], kinds: Mapping[str, str]) -> Bar:
    x, width = 100 * (action.start - begin) / span, 100 * action.seconds / span
    how = (
        f"executed{f', {action.mnemonic}' if action.mnemonic else ''}" if action.how == "executed" else "from a cache"
    )
    return Bar(
        x=round(x, 3),
        width=round(min(max(width, _LEAST), 100 - x), 3),
        y=_TOP + lanes[action.lane] * (_LANE + _GAP),
        kind=kinds[action.mnemonic] if action.how == "executed" else "cached",
        title=f"{action.name}: {console.duration(action.seconds)}, {how}",
    )


def _legend(actions: Sequence[TracedAction], kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    own = [kind for kind, colour in kinds.items() if colour != "kind-other"]
    yield from ((kinds[kind], kind or "of unknown kind") for kind in own)
    if len(own) < len(kinds):
        yield "kind-other", "other kinds"
    if any(action.how == "cached" for action in actions):
        yield "cached", "from a cache"


def _ticks(span: float) -> Iterator[AxisTick]:
    """Yield a few round times on the axis."""
    step = next(step for step in _steps() if span / step <= _TICKS)
    for index in range(int(span / step) + 1):
        if 100 * index * step / span < 93:  # leave room for the label
            yield AxisTick(x=round(100 * index * step / span, 3), label=console.duration(index * step))


def _steps() -> Iterator[float]:
    yield from (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
    step = 60.0
    # No upper limit: a build may take days.
    while True:
        yield from (step, 2 * step, 5 * step, 10 * step, 30 * step)
        step *= 60


def _summary(actions: Sequence[TracedAction], lanes: int, span: float) -> str:
    executed = sum(action.how == "executed" for action in actions)
    cached = len(actions) - executed
    return (
        f"{len(actions):,} actions in {console.duration(span)}, at most {lanes} at a time: "
        f"{executed:,} executed, {cached:,} from a cache."
    )
