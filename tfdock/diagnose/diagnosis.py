"""What a log shows -> what went wrong: causes in order, in words, with changes of the profile that were tried. Pure.

The first thing that stopped something is the root; what a tool survived, and what only follows from others, comes
after it. Where a profile is known, a cause says what of it is meant, and changes of it are offered that are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tfdock.diagnose import profile_mismatch
from tfdock.diagnose.log_search import Seen, Sighting, Suspect
from tfdock.errors import Suggestion
from tfdock.knowledge.failure_rows import Failure
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan import profile_fixes

if TYPE_CHECKING:
    from tfdock.plan.profile_fixes import Context

_NEAR = 30
"""Lines within which a row that says more stands for one that says less of the same failure."""
_STOPPED = ("ERROR: ", "FATAL: ", "FAILED: ")
"""How Bazel begins to say that something stopped it."""
_LONGEST = 300
"""Characters of a value out of a log, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause. `confidence` is `high`, `medium` or `low`; `line` counts from 1, `excerpt` begins with it.

    `asked` says what of the profile has to do with it, and `changes` what may mend it; both are empty without one.
    `misfit` says where the log and that profile disagree: then there are no changes.
    """

    id: str
    stage: str
    confidence: str
    line: int
    excerpt: str
    cause: str
    fix: str
    source: str
    count: int
    values: Mapping[str, str]
    asked: str = ""
    misfit: str = ""
    changes: tuple[Suggestion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What went wrong, the most probable first; `warnings` is noise that means nothing, `lines` those of the log.

    `suspects` are lines that look like errors.
    """

    lines: int
    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()
    suspects: tuple[Suspect, ...] = ()


def diagnosis(seen: Seen, knowledge: KnowledgeBase, context: Context | None = None) -> Diagnosis:
    """What a log shows, in words."""
    rows = knowledge.failures
    sightings = _in_earnest(seen.sightings, rows, profile_fixes.accelerator(context) if context else "")
    failed = [one for one in sightings if rows[one.rule].is_failure]
    ranked = sorted(_telling(failed, rows), key=lambda one: (one.survivable, rows[one.rule].cascade, one.line))
    noise = [one for one in sightings if rows[one.rule].harmless]
    return Diagnosis(
        lines=seen.lines,
        findings=tuple(_finding(one, rows[one.rule], seen, knowledge, context) for one in ranked),
        warnings=tuple(_finding(one, rows[one.rule], seen, knowledge, None) for one in noise),
        suspects=seen.suspects,
    )


def _in_earnest(sightings: Sequence[Sighting], rows: Mapping[str, Failure], accelerator: str) -> Sequence[Sighting]:
    """With what is harmless by itself as the failure that it is of: beside that one, or where a GPU is asked for."""
    found: dict[str, Sighting] = {}
    seen = {one.rule for one in sightings}
    for one in sightings:
        grave = rows[one.rule].grave
        rule = grave.row if grave and (grave.row in seen or grave.accelerator == accelerator) else one.rule
        first = found.get(rule)
        found[rule] = _both(first, one) if first else replace(one, rule=rule)
    return tuple(found.values())


def _both(first: Sighting, other: Sighting) -> Sighting:
    """One sighting of two of one failure; the first of the log says where it is."""
    return replace(
        first,
        count=first.count + other.count,
        survivable=first.survivable and other.survivable,
        values={**other.values, **first.values},
    )


def _telling(sightings: Sequence[Sighting], rows: Mapping[str, Failure]) -> Iterable[Sighting]:
    """Without those of which another says more, about the same place."""
    lines = {one.rule: one.line for one in sightings}
    for one in sightings:
        better = [other for other in lines if one.rule in rows[other].instead_of]
        if not any(abs(lines[other] - one.line) <= _NEAR for other in better):
            yield one


def _finding(
    sighting: Sighting, row: Failure, seen: Seen, knowledge: KnowledgeBase, context: Context | None
) -> Finding:
    values = {**row.values, **{name: text[:_LONGEST] for name, text in sighting.values.items()}}
    misfit = profile_mismatch.misfit(row, sighting.values, context) if context else ""
    profile = None if misfit else context
    changes = profile_fixes.changes(row, {**row.values, **sighting.values}, profile) if profile else ()
    return Finding(
        id=row.id,
        stage=row.stage,
        confidence=_confidence(sighting, row, seen),
        line=sighting.line,
        excerpt="\n".join(sighting.excerpt),
        cause=row.cause.format(**values),
        fix=(profile_fixes.fix(row, profile) if profile else "") or row.fix.format(**values),
        source=knowledge.cited("failures", row),
        count=sighting.count,
        values=dict(sighting.values),
        asked=profile_fixes.asked(row, context) if context else "",
        misfit=misfit,
        changes=changes,
    )


def _confidence(sighting: Sighting, row: Failure, seen: Seen) -> str:
    """Little is to be said for what was survived where something stopped after it, whatever that was."""
    stopped = any(one.line > sighting.line and one.text.startswith(_STOPPED) for one in seen.suspects)
    doubts = sighting.survivable + row.cascade + row.unsure + (sighting.survivable and stopped)
    return ("high", "medium", "low")[min(doubts, 2)]
