"""What a log shows of known failures: one search for all of their texts at once, then a look at those lines. Pure.

Expressions see lines that have their literal, `NEAR` bytes around it at most, and in one block no more of them than
`_PATIENCE` and as many again: no log takes long, whatever is in it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import ahocorasick_rs

from tfdock.bazel import output
from tfdock.diagnose.log_lines import NEAR, Block, Log

_PATIENCE, _IMPATIENCE, _BORED = 2000, 100, 50_000
"""Places that are looked at in a block, of its beginning and again of its end, each literal its share; how few they
are once so many were looked at in all."""
_ENOUGH = 100
"""Times that a failure is looked for in a log; what comes after says nothing more."""
_SUSPECTS = 5
"""Lines that look like errors which are kept, the first ones and the last ones."""
_SUSPICIOUS = (
    "ERROR:", "error:", "Error:", "FATAL:", "FAILED", "Killed", "Exception:", "Segmentation fault",
    "ommand not found",
)  # fmt: skip
_NO_PROGRAM = re.compile(r": [Cc]ommand not found$")
"""A shell finds no program. Many scripts go on without it, so that it is worth a look and no report of an error."""


class SearchPattern(Protocol):
    """A text of a tool's, and whether the tool goes on after it."""

    @property
    def has(self) -> str: ...
    @property
    def survivable(self) -> bool: ...


class SearchRule(Protocol):
    """What is known of a failure."""

    @property
    def id(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def patterns(self) -> Sequence[SearchPattern]: ...
    @property
    def facts(self) -> Sequence[SearchPattern]: ...
    @property
    def passes(self) -> Sequence[str]: ...
    @property
    def spoils(self) -> Sequence[str]: ...
    @property
    def is_failure(self) -> bool: ...
    def reads(self, place: int, line: str) -> Mapping[str, str] | None:
        """What a line gives for a pattern, or after those for a fact; None where it does not match."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A rule that a log bears out: where first, in how many lines at least, and what it gives for its names.

    `survivable`: everything seen of it lets the tool go on.
    """

    rule: str
    line: int
    excerpt: tuple[str, ...]
    values: Mapping[str, str]
    survivable: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class Suspect:
    """A line that looks like an error."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a log shows: failures and noise in the order of their lines, and lines that look like errors.

    `mended` are failures after which it went on well.
    """

    lines: int
    sightings: tuple[Sighting, ...]
    mended: tuple[Sighting, ...] = ()
    suspects: tuple[Suspect, ...] = ()


@dataclass
class _Epoch:
    """What was seen since something ended well."""

    sightings: dict[str, Sighting] = field(default_factory=dict)
    spoilt: Sequence[str] = ()
    suspects: list[Suspect] = field(default_factory=list)
    last: deque[Suspect] = field(default_factory=lambda: deque(maxlen=_SUSPECTS))


class Diagnostician:
    """Reads a log, block after block, against all rules; one for each log."""

    def __init__(self, rules: Sequence[SearchRule]) -> None:
        uses: dict[str, list[tuple[SearchRule, int]]] = {literal: [] for literal in _SUSPICIOUS}
        for rule in rules:
            for place, pattern in enumerate((*rule.patterns, *rule.facts)):
                uses.setdefault(pattern.has, []).append((rule, place))
        self._uses = list(uses.values())
        self._rules = {rule.id: rule for rule in rules}
        self._search = ahocorasick_rs.BytesAhoCorasick(
            [literal.encode() for literal in uses], implementation=ahocorasick_rs.Implementation.DFA
        )
        self._log = Log()
        self._now = _Epoch()
        self._mended: dict[str, Sighting] = {}
        self._values: dict[str, dict[str, str]] = {}
        self._looks = 0
        self._lines: dict[str, int] = {}  # where each rule was seen last

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        for block in self._log.feed(data):
            self._look(block)

    def close(self) -> Seen:
        """The log has ended."""
        for block in self._log.close():
            self._look(block)
        now = self._now
        last = [one for one in now.last if one not in now.suspects]
        return Seen(
            lines=self._log.lines,
            sightings=tuple(sorted(map(self._complete, now.sightings.values()), key=lambda one: one.line)),
            mended=tuple(sorted(map(self._complete, self._mended.values()), key=lambda one: one.line)),
            suspects=(*now.suspects, *last),
        )

    def _complete(self, sighting: Sighting) -> Sighting:
        return replace(sighting, values={**self._values.get(sighting.rule, {}), **sighting.values})

    def _look(self, block: Block) -> None:
        counted, line = 0, block.line
        begin = end = 0
        for literal, place in self._candidates(block):
            if place >= end or end - begin >= NEAR:  # of a long line, each place has its own part
                begin, end = block.around(place)
                text = block.text(begin, end)
            if literal < len(_SUSPICIOUS):
                line, counted = line + block.data.count(b"\n", counted, place), place
                self._suspect(line, text)
            for rule, pattern in self._uses[literal]:
                values = self._read(rule, pattern, text)
                if values is not None:
                    line, counted = line + block.data.count(b"\n", counted, place), place
                    self._found(rule, pattern, line, block.shown(place), values)

    def _candidates(self, block: Block) -> Iterator[tuple[int, int]]:
        """(literal, place) of what is worth a look, in order: of one literal not too many."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for literal, start, _ in self._search.find_matches_as_indexes(block.data, overlapping=True):
            places[literal].append(start)
        found = []
        share = max(1, (_PATIENCE if self._looks < _BORED else _IMPATIENCE) // max(1, len(places)))
        for literal, seen in places.items():
            starts = seen[bisect_left(seen, block.since) : bisect_left(seen, block.until)]
            most = 4 * _SUSPECTS if literal < len(_SUSPICIOUS) else share
            few = starts if len(starts) <= 2 * most else [*starts[:most], *starts[-most:]]
            found += [(start, literal) for start in few]
        self._looks += len(found)
        found.sort()
        return ((literal, start) for start, literal in found)

    def _read(self, rule: SearchRule, place: int, text: str) -> Mapping[str, str] | None:
        if place >= len(rule.patterns):
            self._learn(rule, rule.reads(place, text) or {})
            return None
        known = self._now.sightings.get(rule.id)
        if known and known.count >= _ENOUGH:
            return None
        return rule.reads(place, text)

    def _learn(self, rule: SearchRule, values: Mapping[str, str]) -> None:
        """A fact: the last one before a failure, else the first one after it."""
        known = self._values.setdefault(rule.id, {})
        for name, text in values.items():
            if rule.id not in self._now.sightings or name not in known:
                known[name] = text

    def _found(
        self, rule: SearchRule, place: int, line: int, excerpt: tuple[str, ...], values: Mapping[str, str]
    ) -> None:
        if rule.passes:
            self._passed(rule)
            return
        if rule.spoils:
            self._now.spoilt = rule.spoils
            return
        known = self._now.sightings.get(rule.id)
        survivable = rule.patterns[place].survivable
        again, self._lines[rule.id] = self._lines.get(rule.id) == line, line  # of a line, however much of it is meant
        if known is None:
            self._now.sightings[rule.id] = Sighting(rule.id, line, excerpt, values, survivable)
        else:
            self._now.sightings[rule.id] = replace(
                known,
                count=known.count + (not again),
                survivable=known.survivable and survivable,
                values={**values, **known.values},
            )

    def _passed(self, passing: SearchRule) -> None:
        """Something ended well: failures before it were no reason to stop."""
        kept, well = {}, set(passing.passes).difference(self._now.spoilt)
        for name, sighting in self._now.sightings.items():
            rule = self._rules[name]
            over = sighting.survivable or rule.stage in well
            if rule.is_failure and over:
                self._mended[name] = sighting
            else:
                kept[name] = sighting
        self._now = _Epoch(sightings=kept)

    def _suspect(self, line: int, text: str) -> None:
        if not (output.is_error(text) or _NO_PROGRAM.search(text)):
            return
        suspect = Suspect(line, text)
        if len(self._now.suspects) < _SUSPECTS:
            if suspect not in self._now.suspects:
                self._now.suspects.append(suspect)
        else:
            self._now.last.append(suspect)
