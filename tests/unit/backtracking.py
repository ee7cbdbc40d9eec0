"""Prove how much a search by an expression of `re` can cost, whatever the text. Nothing is run, no time is taken.

`re` tries one way to match after another, and each way that fails costs work. The ways are paths through an automaton
whose states are the characters of the expression (Glushkov's automaton). Two things make them many (Weber and Seidl,
"On the degree of ambiguity of finite automata", 1991):

- A loop that reads one text in two ways. Each round doubles the ways: `(a|aa)*`.
- Two loops that share a text, where the first leads to the second by that text as well. A text of n characters is
  divided between them in n ways: `a*a*`. A search is such a loop, too: it begins anywhere.

What is not known is taken for the worst: `{2,80}` repeats from once on, `$` and `\\b` hold everywhere, nothing is
known to follow a look-around, and a group is repeated by whatever it may read.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Mapping
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # the parser that `re` itself uses
from typing import Any, NamedTuple

_KINDS = string.printable + "é٣×\xa0"  #: Characters of all kinds that classes tell apart.
_CHARACTERS = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN}
_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
_BEGIN = {_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING}

Loop = frozenset[int]  #: States that lead to each other.


class ExponentialError(ValueError):
    """A loop of an expression reads one text in two ways."""


def most_ways(expression: str | re.Pattern[str], length: int) -> int:
    """Return in how many ways, at most, a failing search reaches one character of a text of this length.

    The work is at most this number times the length of the text times the length of the expression.
    """
    compiled = re.compile(expression)
    parsed = _parser.parse(compiled.pattern, compiled.flags)
    return max(_Automaton(parsed, length, at_begin=at_begin).most_ways() for at_begin in (True, False))


class _Part(NamedTuple):
    """The states that a part of an expression begins and ends with, each as often as there are ways to it.

    `empty` counts the ways to match nothing; `sure` tells that those have no condition. A last state is sure if the
    part has no condition behind it.
    """

    empty: int = 1
    first: tuple[int, ...] = ()
    last: tuple[tuple[int, bool], ...] = ()
    sure: bool = True


class _Automaton:
    def __init__(self, parsed: Any, length: int, *, at_begin: bool) -> None:
        self._parser_state, self._length = parsed.state, length
        self._flags, self._groups = parsed.state.flags, dict[int, Any]()
        self._at_begin = at_begin or bool(self._flags & re.MULTILINE)
        self._alphabet = sorted({*_KINDS, *parsed.state.str})
        self._reads: list[int] = []  # of each state, the characters as bits
        self._next: list[list[int]] = []
        self._limits: list[int] = []  # the most characters that the outermost loop around a state reads
        whole = self._sequence(parsed)
        starts = whole.first
        if not at_begin:
            starts = self._state((1 << len(self._alphabet)) - 1).first
            self._next[starts[0]] = [*starts, *whole.first]
            self._limits[starts[0]] = length
        # Where a match is sure, the search ends: no failing way leads there.
        live = _closure(starts, self._next.__getitem__) - {state for state, sure in whole.last if sure}
        self._next = [[to for to in states if to in live] for states in self._next]
        self._reached = {state: _closure(self._next[state], self._next.__getitem__) for state in live}

    def _state(self, reads: int) -> _Part:
        self._reads.append(reads)
        self._next.append([])
        self._limits.append(1)
        return _Part(0, (len(self._reads) - 1,), ((len(self._reads) - 1, True),))

    def _sequence(self, nodes: Iterable[Any]) -> _Part:
        whole = _Part()
        for kind, value in nodes:
            part = self._part(kind, value)
            self._join(whole, part)
            whole = _Part(
                whole.empty * part.empty,
                whole.first + part.first * whole.empty,
                part.last + tuple((state, sure and part.sure) for state, sure in whole.last) * part.empty,
                whole.sure and part.sure,
            )
        return whole

    def _join(self, before: _Part, behind: _Part) -> None:
        for state, _ in before.last:
            self._next[state] += behind.first

    def _part(self, kind: Any, value: Any) -> _Part:
        if kind in _CHARACTERS:
            # Which characters a class means is left to `re`.
            node = _parser.SubPattern(self._parser_state, [(kind, value)])
            matches = _compiler.compile(node, self._flags).fullmatch
            return self._state(sum(1 << place for place, one in enumerate(self._alphabet) if matches(one)))
        if kind in _REPEATS:
            return self._repeat(*value)
        if kind is _constants.BRANCH:
            parts = [self._sequence(nodes) for nodes in value[1]]
            return _Part(
                sum(part.empty for part in parts),
                sum((part.first for part in parts), ()),
                sum((part.last for part in parts), ()),
                all(part.sure for part in parts),
            )
        if kind is _constants.SUBPATTERN:
            return self._group(*value)
        if kind is _constants.GROUPREF:
            return self._sequence(self._groups[value])
        if kind is _constants.AT:
            return _Part(int(self._at_begin or value not in _BEGIN), sure=False)
        if kind in (_constants.ASSERT, _constants.ASSERT_NOT):
            # What is read ahead leads nowhere. What is read backwards has one length, and so one way.
            ahead = self._sequence(value[1]) if value[0] > 0 else _Part()
            return _Part(first=ahead.first, sure=False)
        raise NotImplementedError(f"{kind} in an expression")

    def _group(self, number: int | None, on: int, off: int, body: Any) -> _Part:
        flags, self._flags = self._flags, (self._flags | on) & ~off
        part = self._sequence(body)
        self._flags = flags
        if number:
            self._groups[number] = body
        return part

    def _repeat(self, least: int, most: int, body: Any) -> _Part:
        begin = len(self._limits)
        part = self._sequence(body)
        if most > 1:
            if part.empty:
                raise ExponentialError("a loop may read nothing")
            self._join(part, part)
            limit = min(body.getwidth()[1] * most, self._length)
            self._limits[begin:] = [limit] * (len(self._limits) - begin)
        return part._replace(empty=part.empty or int(not least))

    def most_ways(self) -> int:
        loops = {
            frozenset(other for other in reached if state in self._reached[other])
            for state, reached in self._reached.items()
            if state in reached
        }
        for loop in loops:
            self._check_has_one_way(loop)
        behind = {
            one: {two: self._share(one, two) for two in loops - {one} if two & self._reached[min(one)]}
            for one in loops
        }
        return max((self._ways([loop], behind) for loop in loops), default=1)

    def _ways(self, sharing: list[Loop], behind: Mapping[Loop, Mapping[Loop, bool]]) -> int:
        """Return the most ways through these loops, of which each shares a text with the next, and what is behind."""
        # The characters that all others read tell how many are left for the one that reads the most.
        ways = math.prod(sorted(self._limits[min(loop)] for loop in sharing)[:-1])
        further = (
            self._ways([*sharing, loop], behind) if share else ways * self._ways([loop], behind)
            for loop, share in behind[sharing[-1]].items()
        )
        return max(further, default=ways)

    def _check_has_one_way(self, loop: Loop) -> None:
        inside = {state: [to for to in self._next[state] if to in loop] for state in loop}
        if any(len(states) > len(set(states)) for states in inside.values()):
            raise ExponentialError("a loop leads to one character in two ways")

        def following(pair: tuple[int, int]) -> list[tuple[int, int]]:
            return [(a, b) for a in inside[pair[0]] for b in inside[pair[1]] if self._reads[a] & self._reads[b]]

        apart = {(a, b) for a, b in _closure([(state, state) for state in loop], following) if a != b}
        if any(a == b for a, b in _closure(apart, following)):
            raise ExponentialError("a loop reads one text in two ways")

    def _share(self, one: Loop, two: Loop) -> bool:
        """Return whether some text leads round in both loops, and from one to the other."""

        def following(place: tuple[int, int, int]) -> list[tuple[int, int, int]]:
            return [
                (a, b, c)
                for a in one.intersection(self._next[place[0]])
                for c in two.intersection(self._next[place[2]])
                if (both := self._reads[a] & self._reads[c])
                for b in self._next[place[1]]
                if both & self._reads[b]
            ]

        return any((a, c, c) in _closure([(a, a, c)], following) for a in one for c in two)


def _closure(begin: Iterable[Any], following: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """Return what is reached from these, themselves included."""
    seen = set(begin)
    todo = list(seen)
    while todo:
        new = set(following(todo.pop())) - seen
        seen |= new
        todo += new
    return seen
