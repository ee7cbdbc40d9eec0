"""Expand a `Matrix` to its cells: the product of the axes, with exclusions, inclusions and overrides. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tfdock.errors import Problem, ProfileError
from tfdock.matrix.matrix_file import Matrix, Rule, nested, same
from tfdock.profile import profile as profiles
from tfdock.profile.profile import Profile
from tfdock.profile.yaml_nodes import Node

MOST_CELLS = 20_000  #: The most cells of a matrix. Planning a cell takes milliseconds.
#: The most fields that the rules of a matrix may name, and the most comparisons: rules times cells.
_MOST_NAMES, _MOST_COMPARED = 200, 10_000_000
#: The codes of a rule's problems that are the same for every cell.
_MISSPELT = ("profile-unknown-key", "version-not-text")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCombination:
    """One cell of a matrix: a whole profile.

    `fields` are the fields that the cell sets over the base, by dotted name, overrides included. `document` is the
    profile. `place` is the axis value or `include` entry that made the cell. `rules` are all rules that match.
    """

    fields: Mapping[str, Node]
    document: Node
    runner: tuple[str, ...]
    place: Node
    rules: tuple[Rule, ...] = ()

    @property
    def values(self) -> frozenset[str]:
        """The fields with their values, each as one text."""
        return frozenset(f"{name}={same(node)}" for name, node in self.fields.items())

    @property
    def excluded(self) -> Rule | None:
        """The first rule that excludes the cell; None without one."""
        return next((rule for rule in self.rules if rule.reason), None)


def expand(matrix: Matrix) -> tuple[CellCombination, ...]:
    """Return every cell, in the order written: the first axis changes slowest, `include` comes last.

    The result has the excluded cells too. `exclude` applies to combinations of the axes, `overrides` also to included
    cells. Both match the cell's values before any override. Raises ProfileError (`matrix-too-large`).
    """
    # Count before the cells are made: ten axes of ten values are ten billion cells.
    count = (prod(map(len, matrix.axes.values())) if matrix.axes else 0) + len(matrix.include)
    if count > MOST_CELLS:
        node = matrix.document.entries["axes" if matrix.axes else "include"]
        message = f"the matrix has {count} cells; at most {MOST_CELLS} are allowed"
        fix = "remove values from the axes, or split the matrix into several matrices"
        raise ProfileError(node.problem(matrix.file, "matrix-too-large", message, fix))
    rules = (*matrix.exclude, *matrix.overrides)
    names = {name for rule in rules for name in rule.when}
    if len(names) > _MOST_NAMES or len(rules) * count > _MOST_COMPARED:
        message = f"the {len(rules):,} rules name {len(names):,} fields; at most {_MOST_NAMES} are allowed"
        if len(names) <= _MOST_NAMES:
            message = f"{len(rules):,} rules for {count:,} cells are more than can be compared"
        fix = "split the matrix into several matrices"
        raise ProfileError(rules[0].place.problem(matrix.file, "matrix-too-large", message, fix))
    # The user lists included cells one by one, so no exclusion applies to them.
    both, overrides = _Rules(*matrix.exclude, *matrix.overrides), _Rules(*matrix.overrides)
    axes = matrix.document.at(("axes",)).keys
    product = (_cell(matrix, fields, place, both, axes) for fields, place in _product(matrix))
    included = (_cell(matrix, node.entries, node, overrides, node.keys) for node in matrix.include)
    return (*product, *included)


def idle(matrix: Matrix, cells: Iterable[CellCombination]) -> tuple[Problem, ...]:
    """Return a warning for each rule that matches no cell. Usually its value is misspelt."""
    # Compare by identity: two equal rules in two places are two rules.
    used = {id(rule) for cell in cells for rule in cell.rules}
    message, fix = "no cell matches this rule", "correct its values, or remove it"
    return tuple(
        rule.place.problem(matrix.file, "matrix-rule-idle", message, fix, severity="warning")
        for rule in (*matrix.exclude, *matrix.overrides)
        if id(rule) not in used
    )


def misspelt(matrix: Matrix, cell: CellCombination) -> tuple[Problem, ...]:
    """Return the problems that rules would cause in a profile: an unknown name, or a version that is not text.

    The profile of `cell` is valid.
    """
    problems: list[Problem] = []
    for rule in (*matrix.exclude, *matrix.overrides):
        where = rule.place.entries["when"]
        document = profiles.overlaid(cell.document, nested(rule.when, where, where.keys))
        try:
            profiles.checked(Profile, document, matrix.file)
        except ProfileError as error:
            # Ignore other problems: the rule need not match this cell. `idle` reports a rule that matches none.
            problems += [problem for problem in error.problems if problem.code in _MISSPELT]
    return tuple(problems)


def cover(values: Sequence[Collection[str]], costs: Sequence[float]) -> tuple[int, ...]:
    """Return the indexes of a few cells that together have every value, in order. Of equals, take the cheapest.

    Greedy: always take the cell with the most missing values. Then drop each cell whose values the other cells have.
    """
    # A choice never raises another cell's gain, so only the cell with the best known gain is computed again.
    waiting = [(-len(set(own)), costs[place], place) for place, own in enumerate(values)]
    heapq.heapify(waiting)
    lacking = {value for own in values for value in own}
    chosen = []
    while lacking:
        known, cost, place = heapq.heappop(waiting)
        gain = -len(lacking.intersection(values[place]))
        if gain == known:
            chosen.append(place)
            lacking.difference_update(values[place])
        elif gain:
            heapq.heappush(waiting, (gain, cost, place))
    # Cells chosen later may have all values of a cell chosen early.
    counts = Counter(value for place in chosen for value in set(values[place]))
    kept = []
    for place in chosen:
        own = set(values[place])
        if any(counts[value] == 1 for value in own):
            kept.append(place)
        else:
            # A dropped cell no longer counts: another cell may now be the only one with some of these values.
            counts.subtract(own)
    return tuple(sorted(kept))


class _Rules:
    """Matches rules against cells."""

    def __init__(self, *rules: Rule) -> None:
        # Dotted names and JSON texts, because equal YAML values may be written in several ways.
        self._wanted = [
            (rule, {tuple(name.split(".")): same(value) for name, value in rule.when.items()}) for rule in rules
        ]
        self._paths = {path for _, wanted in self._wanted for path in wanted}

    def of(self, document: Node) -> tuple[Rule, ...]:
        """Return the rules whose values are all in the document."""
        # Convert each value to text once for all rules: there may be thousands of rules and of cells.
        values = {path: same(_node_at(document, path)) for path in self._paths}
        return tuple(rule for rule, wanted in self._wanted if wanted.items() <= values.items())


def _product(matrix: Matrix) -> Iterator[tuple[Mapping[str, Node], Node]]:
    """Yield the fields of each combination, and the value of the last axis, which changes fastest."""
    names = tuple(matrix.axes)
    for values in itertools.product(*matrix.axes.values()) if names else ():
        yield dict(zip(names, values, strict=True)), values[-1]


def _cell(
    matrix: Matrix,
    fields: Mapping[str, Node],
    place: Node,
    rules: _Rules,
    keys: Mapping[str, tuple[int, int]],
) -> CellCombination:
    document = profiles.overlaid(matrix.base, nested(fields, place, keys))
    # Match all rules before any override: the order of overrides affects values, but not which rules match.
    matching = rules.of(document)
    runner = matrix.runner
    for rule in matching:
        runner = runner if rule.runner is None else rule.runner
        if rule.sets is not None:
            document = profiles.overlaid(document, nested(rule.sets.entries, rule.sets, rule.sets.keys))
            fields = dict(_remaining({**fields, **rule.sets.entries}, document))
    return CellCombination(fields=fields, document=document, runner=runner, place=place, rules=matching)


def _remaining(fields: Mapping[str, Node], document: Node) -> Iterator[tuple[str, Node]]:
    """Yield the fields that the document still has, with its values: overrides may replace devices or whole maps."""
    for name, node in fields.items():
        current = _node_at(document, tuple(name.split(".")))
        if current is not None:
            yield name, node if current.kind == "map" else current


def _node_at(document: Node, path: tuple[str, ...]) -> Node | None:
    """Return the node at a path; None if there is no such node."""
    node: Node | None = document
    for part in path:
        node = node.entries.get(part) if node else None
    return node
