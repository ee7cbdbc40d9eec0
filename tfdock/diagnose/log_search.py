"""Find known failures in a log: search for all their literals at once, then match expressions on these lines. Pure.

An expression sees only lines that contain its literal, and at most `NEAR` bytes around the literal. In a block, at
most twice `_PATIENCE` such lines are examined, so that no log takes long.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ahocorasick_rs import BytesAhoCorasick, Implementation

from tfdock.bazel import output
from tfdock.diagnose.log_lines import AFTER, BLOCK, NEAR, Block, Log, bare
from tfdock.knowledge.failure_rows import Failure, comparable, is_said
from tfdock.knowledge.tables import KnowledgeBase

#: Places that are examined at the beginning of a block, and as many at its end, divided among the literals: the
#: usual number, and the number after `_BORED` places of the log.
_PATIENCE, _IMPATIENCE, _BORED = 2000, 30, 50_000
_ENOUGH = 100  #: The most times that a failure is counted in a log. Further matches add no information.
_SUSPECTS = 5  #: Lines that look like errors: the first five and the last five are kept.
#: Versions of parts are searched in this many bytes at the beginning of a log, and of each later block.
_HEAD, _SAMPLE = 4 << 20, 1 << 14
_LAST = 30  #: The last lines, in which a message counts even if it does not look like an error.
_BELOW = 8  #: The most lines below that an expression sees: messages may stand before the output of a statement.
# The last alternative is the level of TensorFlow's own messages.
_CONTINUES = re.compile(r"\[?(?:INFO|DEBUG|WARN)|checking |Successful|(?:[\d :.-]{8,40}: )?I(?:\d{4})? \S")
_NAMED = 20  #: The most errors stored because they have names from `came_and_went`, each with other names.
_SUSPICIOUS = (
    "ERROR:", "error:", "Error:", "FATAL:", "FAILED", "Killed", "Exception:", "Segmentation fault",
    " error C", " error LNK", "error : ", "ommand not found", "undefined reference to", "undefined symbol: ",
    "LNK2001", "LNK2019", "LNK 20", "\tC2", "\tC3", "Error C2", "Error C3",
    "nvcc fatal", "nvcc error", "ptxas fatal", "nvlink ", "LLVM ERROR", "multiple definition of", ": relocation ",
    "Undefined symbols for ", "cannot find -l", "#error ", "CMake Error", "No package '", "Error in ",
    "fatal: ", "E: ", "cp: ", "mv: ", "ln: ", "tar: ", "unzip: ", "patch: ", "curl: (", "gpg: ", "docker: ",
    "returned a non-zero code", "*** No rule to ", "F tensorflow/", "F ./tensorflow/", "F external/", "F0000 00:",
)  # fmt: skip
#: A shell did not find a program, or a program of a script (git, cp) failed. Many scripts continue: such lines are
#: suspicious, but not reported as an error.
_OF_A_SCRIPT = re.compile(
    r": [Cc]ommand not found$|\A(?:fatal|E|(?:cp|mv|ln|tar|unzip|patch|gpg|docker)): (?!warning|Removing)|"
    r"\Acurl: \(\d|returned a non-zero code"
)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A row that matched: its first line, the minimum number of matching lines, and the values of its names.

    `survivable`: the tool continues after every match so far.
    """

    row: Failure
    line: int
    excerpt: tuple[str, ...]
    values: Mapping[str, str]
    survivable: bool
    count: int = 1

    def joined(self, later: Sighting) -> Sighting:
        """Return both sightings as one. For equal names, use the first one's values: the output shows its line."""
        count, survivable = self.count + later.count, self.survivable and later.survivable
        return replace(self, count=count, survivable=survivable, values={**later.values, **self.values})


@dataclass(frozen=True, slots=True)
class SuspectLine:
    """A line that looks like an error, and the lines below. `names` are indexes in `came_and_went`."""

    line: int
    text: str
    below: tuple[str, ...] = ()
    names: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodEnd:
    """The line of a log that reports success."""

    id: str  #: The knowledge row that matches the line.
    line: int  #: The number of the line, from 1.
    cause: str  #: What the line says, in a sentence.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSightings:
    """The findings in a log: failures and noise in the order of their lines, and lines that look like errors.

    `named`: errors with a name that some version of a part added or removed. `versions`: the version of each part in
    the log; empty if the log shows no version of the part. `among`: the range of versions (`>=1.4,<2`) of parts
    whose lines show no more. `success`: the success at the end of the log, if any. `end`: the last lines.
    """

    lines: int
    sightings: tuple[Sighting, ...]
    suspects: tuple[SuspectLine, ...]
    named: tuple[SuspectLine, ...]
    versions: Mapping[str, str]
    among: Mapping[str, str]
    success: GoodEnd | None
    end: tuple[SuspectLine, ...]


@dataclass
class _Epoch:
    """The findings since the last success; `success` is that success if it completes all that was requested."""

    sightings: dict[str, Sighting] = field(default_factory=dict)
    spoilt: Sequence[str] = ()
    suspects: list[SuspectLine] = field(default_factory=list)
    named: dict[tuple[int, ...], SuspectLine] = field(default_factory=dict)
    last: deque[SuspectLine] = field(default_factory=lambda: deque(maxlen=_SUSPECTS))
    success: GoodEnd | None = None


# A few searchers are kept: folders with additional rows change the texts.
@lru_cache(maxsize=12)
def _search_for(texts: tuple[str, ...], *, fast: bool = False) -> BytesAhoCorasick:
    """Return a searcher for all these texts at once. To build it takes longer than to read a small log."""
    # Of all implementations, the DFA takes the most memory and is the fastest.
    return BytesAhoCorasick([text.encode() for text in texts], implementation=Implementation.DFA if fast else None)


class Diagnostician:
    """Searches one log, block by block, for all rules, for versions of parts, and for added and removed names."""

    def __init__(self, knowledge: KnowledgeBase) -> None:
        self._names = knowledge.came_and_went
        # The suspicious texts come first: a number below their count means a suspicious text.
        uses: dict[str, list[tuple[Failure, int]]] = {literal: [] for literal in _SUSPICIOUS}
        for rule in knowledge.failures.values():
            for place, pattern in enumerate((*rule.patterns, *rule.facts)):
                uses.setdefault(pattern.has, []).append((rule, place))
        self._uses = list(uses.values())
        parts = knowledge.log_parts.values()
        shows = [(part, place, pattern) for part in parts for place, pattern in enumerate(part.shows)]
        # A plain pattern tells only that the part is there: then nothing more is to be learnt from it.
        self._shows = [(part, place, not one.among and "(?P<" not in (one.line or "")) for part, place, one in shows]
        self._show_search = _search_for(tuple(one.has for _, _, one in shows))
        self._name_search = _search_for(tuple(name.name for name in self._names))
        self._versions: dict[str, tuple[int, str]] = {}
        self._among: defaultdict[str, set[str]] = defaultdict(set)
        self._told = 0
        self._search = _search_for(tuple(uses), fast=True)
        self._log = Log()
        self._now = _Epoch()
        self._values: dict[str, dict[str, str]] = {}
        self._looks = 0
        self._lines: dict[str, int] = {}  # The line of each rule's last match.

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the log."""
        for block in self._log.feed(data):
            self._look(block)

    def close(self) -> LogSightings:
        """Read the remaining bytes at the end of the log, and return the findings."""
        end = b""
        for block in self._log.close():
            self._look(block)
            end = block.data[-_SAMPLE:]
        now = self._now
        last = [suspect for suspect in now.last if suspect not in now.suspects]
        # With the facts of their rules.
        sightings = (
            replace(sighting, values={**self._values.get(sighting.row.id, {}), **sighting.values})
            for sighting in now.sightings.values()
        )
        return LogSightings(
            lines=self._log.lines,
            sightings=tuple(sorted(sightings, key=lambda sighting: sighting.line)),
            suspects=(*now.suspects, *last),
            named=tuple(now.named.values()),
            versions={part: version for part, (_, version) in self._versions.items()},
            among={part: ",".join(sorted(ranges)) for part, ranges in self._among.items() if ranges},
            # An error after the success cancels it.
            success=None if now.suspects else now.success,
            end=tuple(self._last_lines(end)),
        )

    def _last_lines(self, end: bytes) -> Iterator[SuspectLine]:
        """Yield the last lines of the log that a tool prints on its own, without messages that it continues after."""
        lines = [bare(line[:NEAR]) for line in end.decode("utf-8", "replace").splitlines()][-_LAST:]
        for place, text in enumerate(lines):
            if is_said(comparable(text)) and not _CONTINUES.match(text):
                below = tuple(filter(None, lines[place + 1 : place + 1 + AFTER]))
                yield SuspectLine(self._log.lines - len(lines) + place + 1, text, below)

    def _look(self, block: Block) -> None:
        # The configuration is at the beginning of a log; a sample of the rest is enough.
        until = block.since + (BLOCK if self._told < _HEAD else _SAMPLE)
        self._told += block.until - block.since
        self._learn_versions(block.data[block.since : min(until, block.until)])
        # Count lines from the previous place: counting from the start each time takes quadratic time.
        counted, line = 0, block.line
        begin = end = 0
        for place, literal in self._candidates(block):
            # Neighbouring places share the decoded line.
            if place >= end or end - begin >= NEAR:  # In a long line, each place has its own part.
                begin, end = block.around(place)
                text = block.text(begin, end)
            found = [
                (rule, pattern, values)
                for rule, pattern in self._uses[literal]
                if (values := self._read(rule, pattern, text, block, place)) is not None
                and (rule.patterns[pattern].in_tracebacks or not block.is_source(begin))
            ]
            if literal >= len(_SUSPICIOUS) and not found:
                continue
            line, counted = line + block.data.count(b"\n", counted, place), place
            if literal < len(_SUSPICIOUS):
                self._suspect(line, text, block.shown(place)[1:])
            for rule, pattern, values in found:
                self._record_match(rule, pattern, line, block.shown(place), values)

    def _candidates(self, block: Block) -> list[tuple[int, int]]:
        """Return the (place, literal) pairs to examine, in order, limited to the share of each literal."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        # `overlapping`: one text may contain another, and both may have rules.
        for literal, start, _ in self._search.find_matches_as_indexes(block.data, overlapping=True):
            places[literal].append(start)
        candidates = []
        share = max(1, (_PATIENCE if self._looks < _BORED else _IMPATIENCE) // max(1, len(places)))
        for literal, seen in places.items():
            # Other matches belong to the previous or next block, which also contains them.
            starts = seen[bisect_left(seen, block.since) : bisect_left(seen, block.until)]
            # Suspicious texts such as `error:` are frequent, and only the first and last few are kept.
            most = 4 * _SUSPECTS if literal < len(_SUSPICIOUS) else share
            # Take the first places, because causes come first, and the last ones, because the end shows the final
            # error.
            few = starts if len(starts) <= 2 * most else [*starts[:most], *starts[-most:]]
            candidates += [(start, literal) for start in few]
        self._looks += len(candidates)
        return sorted(candidates)

    def _read(self, rule: Failure, place: int, text: str, block: Block, at: int) -> Mapping[str, str] | None:
        if place >= len(rule.patterns):
            learnt, read = self._values.get(rule.id, {}), rule.reads(place, text) or {}
            # Of each fact, take the last before the rule's failure, or else the first after it.
            self._values[rule.id] = {**learnt, **read, **(learnt if rule.id in self._now.sightings else {})}
            return None
        known = self._now.sightings.get(rule.id)
        if known and known.count >= _ENOUGH:
            return None
        return rule.reads(place, "\n".join(block.shown(at, _BELOW)) if rule.patterns[place].below else text)

    def _learn_versions(self, data: bytes) -> None:
        """Store the version of each part in a log or an error, from the most reliable pattern that matches."""
        tried, block = Counter[int](), Block(data, 0, 0, len(data))
        for index, start, _ in self._show_search.find_matches_as_indexes(data, overlapping=True):
            part, place, plain = self._shows[index]
            known, among = self._versions.get(part.part), part.shows[place].among
            if among in self._among[part.part] or (known and plain):
                continue
            if tried[index] == _ENOUGH or (known and known[1] and known[0] <= place):
                continue
            tried[index] += 1
            version = part.version_in(place, block.text(*block.around(start)))
            if among and version is not None:
                self._among[part.part].add(among)
            elif version or (version is not None and not known):
                self._versions[part.part] = (place, version)

    def _record_match(
        self, rule: Failure, place: int, line: int, excerpt: tuple[str, ...], values: Mapping[str, str]
    ) -> None:
        if rule.passes:
            self._forget_before_success(rule, line)
            return
        if rule.spoils:
            self._now.spoilt = rule.spoils
            return
        kind = self._kind(rule, values)
        sighting = Sighting(rule, line, excerpt, values, rule.patterns[place].survivable)
        if known := self._now.sightings.get(kind):
            again = self._lines[rule.id] == line  # A line counts once.
            sighting = known.joined(replace(sighting, count=0) if again else sighting)
        self._now.sightings[kind], self._lines[rule.id] = sighting, line

    def _kind(self, rule: Failure, values: Mapping[str, str]) -> str:
        """Return the key of a sighting: some rules report each of the first few values as a separate sighting."""
        told = values.get(rule.each, "")
        if not told or rule.id not in self._now.sightings:
            return rule.id
        kinds = [kind for kind, one in self._now.sightings.items() if one.row.id == rule.id]
        same = (kind for kind in kinds if self._now.sightings[kind].values.get(rule.each) == told)
        return next(same, f"{rule.id} {len(kinds)}" if len(kinds) < _SUSPECTS else rule.id)

    def _forget_before_success(self, passing: Failure, line: int) -> None:
        """At a success, forget the earlier failures that did not stop the build."""
        kept, well = {}, set(passing.passes).difference(self._now.spoilt)
        for name, sighting in self._now.sightings.items():
            if not (sighting.row.is_failure and (sighting.survivable or sighting.row.stage in well)):
                kept[name] = sighting
        end = GoodEnd(id=passing.id, line=line, cause=passing.cause) if passing.ends_well else None
        self._now = _Epoch(sightings=kept, success=end)

    def _suspect(self, line: int, text: str, below: tuple[str, ...]) -> None:
        if not (output.is_error(text) or _OF_A_SCRIPT.search(text)):
            return
        self._learn_versions("\n".join((text, *below)).encode())
        suspect, now = SuspectLine(line, text, below, self._named(text, below)), self._now
        if suspect.names and len(now.named) < _NAMED:
            now.named.setdefault(suspect.names, suspect)
        if len(now.suspects) < _SUSPECTS:
            if suspect not in now.suspects:
                now.suspects.append(suspect)
        else:
            now.last.append(suspect)

    def _named(self, text: str, below: tuple[str, ...]) -> tuple[int, ...]:
        """Return the indexes of the names in an error. The line itself must have one of the two texts of a name."""
        error = comparable(text)
        whole = "\n".join((error, *map(comparable, below)))
        found = []
        places = {match[0] for match in self._name_search.find_matches_as_indexes(whole.encode(), overlapping=True)}
        for place in sorted(places):
            name = self._names[place]
            here = name.stands_in(error) or (name.beside and name.beside in error and name.stands_in(whole))
            if here and name.beside in whole:
                found.append(place)
        return tuple(found)
