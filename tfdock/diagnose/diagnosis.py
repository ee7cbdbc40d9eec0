"""Turn the sightings in a log into an ordered list of causes, as text, with tested profile changes. Pure.

The first failure that stopped something is the root cause. Failures that the build survived, and failures caused by
others, come after the root cause. With a profile, a finding names the profile's own values, and offers changes that
`tfdock check` accepts. If log and profile disagree, the finding reports this and offers no change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from operator import itemgetter
from typing import Any

from tfdock.bazel.output import compiler_errors
from tfdock.diagnose import skew
from tfdock.diagnose.log_search import GoodEnd, LogSightings, Sighting, SuspectLine
from tfdock.diagnose.skew import ObservedParts, Skew
from tfdock.errors import Suggestion, clean, quoted_with
from tfdock.knowledge.failure_rows import ErrorKind, Failure, comparable
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan import profile_fixes
from tfdock.plan.profile_fixes import Context
from tfdock.types import Version

# Tools report one failure in several lines, the details some lines below.
CONFIDENCES = ("high", "medium", "low")  #: Of findings, the surest first.
_NEAR = 30  #: If two rows match the same failure within this number of lines, the more exact row is kept.
_STOPPED = ("ERROR: ", "FATAL: ", "FAILED: ")  #: The start of Bazel's message about the error that stopped it.
# Errors that do not follow from a GPU that is missing or fails, as many a RuntimeError does.
_PYTHON_ERROR = re.compile(
    r"(?:Attribute|ModuleNotFound|Import|Name|Type|Value|Key|Syntax|Indentation|FileNotFound|UnicodeDecode)Error: "
)
_LONGEST = 300  #: The most characters of a value from the log that a sentence shows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause that a log shows."""

    id: str  #: The id of the known failure.
    stage: str  #: The stage of a build, or of a program's start, in which the failure happens.
    confidence: str  #: `high`, `medium` or `low`.
    line: int  #: The line of the log, from 1.
    excerpt: str  #: The lines of the log that show the failure.
    cause: str  #: Why the failure happened.
    fix: str  #: What to do.
    source: str  #: The source of the knowledge row.
    count: int  #: How often the failure is in the log.
    values: Mapping[str, str]  #: The values that were read from the lines, by name.
    asked: str = ""  #: The related part of the profile; empty without a profile.
    misfit: str = ""  #: How the log and the profile disagree (`changes` is then empty); empty if they agree.
    changes: tuple[Suggestion, ...] = ()  #: Changes of the profile that may help.


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What went wrong, the most probable cause first. `warnings` are harmless; `lines` counts the lines of the log.

    `suspects` are lines that look like errors. `first` is a text about the first suspect; beside findings it is about
    the error that ended a program which survived all findings. `others` are about files without a finding. `success`
    is set if the log ends with a success, and no error follows.
    """

    lines: int
    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()
    suspects: tuple[SuspectLine, ...] = ()
    first: str = ""
    others: tuple[SuspectLine, ...] = ()
    success: GoodEnd | None = None

    @property
    def failed(self) -> bool:
        """Whether the log shows a failure: a known one, or lines that look like errors without a later success."""
        return bool(self.findings) or (bool(self.suspects) and self.success is None)

    @property
    def findings_json(self) -> list[dict[str, Any]]:
        """The findings for a JSON document."""
        return [finding_json(finding) for finding in self.findings]


def diagnosis(seen: LogSightings, knowledge: KnowledgeBase, context: Context | None = None) -> Diagnosis:
    """Return the causes that a log shows, in order, as text."""
    nothing = Context(knowledge=knowledge)
    context = context or nothing
    if not (seen.suspects or seen.success):
        clear = [kind for kind in knowledge.error_kinds if not kind.vague]
        seen = replace(seen, suspects=tuple(one for one in seen.end if skew.next_step([one.text], clear)))
    # Do this before failures are chosen: a grave warning becomes a failure.
    sightings = _with_grave_failures(seen, knowledge.failures, profile_fixes.accelerator(context))
    parts = {*seen.versions}
    able = (one for one in sightings if {*one.row.only_with} <= parts and parts.isdisjoint(one.row.never_with))
    failures = [one for one in able if one.row.is_failure]
    specific = _most_specific(failures)
    noise = [one for one in sightings if one.row.harmless]
    # A line that a harmless row matches only looks like an error.
    errors = (suspect for suspect in seen.suspects if not any(one.row.fires(suspect.text) for one in noise))
    seen = replace(seen, suspects=tuple(errors))
    here = skew.observed_parts(seen, context)
    skews = _beside_failures(skew.skews(seen, knowledge, here), specific)
    # An added or removed name is more exact than a row for a whole class of lines.
    told = {one.error.line for one in skews}
    specific = [one for one in specific if not (one.row.unsure and one.line in told)]
    ranked = [((one.survivable, one.row.cascade, one.line), _finding(one, seen, here, context)) for one in specific]
    ranked += [((False, False, one.error.line), _skew_finding(one, here, context)) for one in skews]
    ranked.sort(key=itemgetter(0))
    findings = tuple(_with_other_way(finding, seen, here) for _, finding in ranked)
    return Diagnosis(
        lines=seen.lines,
        findings=findings,
        # Harmless lines need no change of the profile, so they get no context.
        warnings=tuple(_finding(sighting, seen, here, nothing) for sighting in noise),
        suspects=seen.suspects,
        first=_stop(seen, () if skews else specific, here, knowledge)
        if findings
        else _first(seen, here, knowledge.error_kinds),
        others=_others(seen, findings),
        success=None if findings else seen.success,
    )


def _beside_failures(skews: Sequence[Skew], failures: Sequence[Sighting]) -> Sequence[Skew]:
    """Return the version skews that no failure explains better, and a guess only if nothing else is found."""
    known = {one.line for one in failures if not one.row.unsure}
    left = [one for one in skews if one.error.line not in known]
    # One guess, about the first error, is enough.
    return [one for one in left if one.confidence != "low"] or left[: 0 if failures else 1]


def _others(seen: LogSightings, findings: Sequence[Finding]) -> tuple[SuspectLine, ...]:
    """Return the first error of each file without a finding; `--keep_going` allows several."""
    known = {skew.file(finding.excerpt) for finding in findings} | {""}
    first: dict[str, SuspectLine] = {}
    for suspect in seen.suspects if findings else ():
        if compiler_errors([suspect.text]):
            first.setdefault(skew.file(suspect.text), suspect)
    return tuple(suspect for name, suspect in first.items() if name not in known)


def _first(seen: LogSightings, here: ObservedParts, kinds: Sequence[ErrorKind]) -> str:
    """Return the origin of the first error, its version skew, and the next step for an error of this kind.

    Lines that only announce an error or follow from one are used only if there are no others.
    """
    own = [one for one in seen.suspects if not skew.only_announces(one.text)]
    first = next(iter(own or seen.suspects), None)
    if first is None:
        return ""
    # An earlier line of Bazel may name the place that the error itself lacks.
    before = (one for one in reversed(seen.suspects) if one.line < first.line)
    place = next(filter(None, map(skew.place, (first, *before))), "")
    told = f"The first error is in line {first.line}" + (f", and belongs to {place}." if place else ".")
    if below := next(filter(None, map(skew.said_below, seen.suspects)), "") if not own else "":
        told = f"{told} Below it, the tool that failed says: `{below[:_LONGEST]}`."
        first = SuspectLine(first.line, below, (first.text,) if first.text.endswith(":") else ())
    left_out = _left_out(first.line, first.text, seen, here)
    # A line that ends with a colon only introduces the lines below.
    said = (*first.below, first.text) if first.text.endswith(":") else (first.text, *first.below)
    step = _in_words_of_system(skew.next_step(said, kinds), here)
    return " ".join(filter(None, (told, here.outside(), step, left_out)))


def _stop(seen: LogSightings, failures: Sequence[Sighting], here: ObservedParts, knowledge: KnowledgeBase) -> str:
    """Return a Python error of no known cause that ended a program, if the program survived all known failures."""
    survived = max((one.line for one in failures), default=inf)
    errors = (one for one in seen.suspects if one.line > survived and _PYTHON_ERROR.match(one.text))
    ended = next(errors, None)
    if ended is None or not all(one.survivable for one in failures):
        return ""
    told = f"The program survived what is listed below, and stopped in line {ended.line}: `{ended.text[:_LONGEST]}`."
    step = _in_words_of_system(skew.next_step((ended.text, *ended.below), knowledge.error_kinds), here)
    return f"{told} {step}".strip()


def _skew_finding(one: Skew, here: ObservedParts, context: Context) -> Finding:
    fix, wanted = skew.fix(one, here)
    own = one.problem.ways if one.problem else ()
    table, row = ("came_and_went", one.name) if one.name else ("log_parts", one.part)
    return Finding(
        id=one.id,
        stage="compile",
        confidence=one.confidence,
        line=one.error.line,
        excerpt="\n".join((one.error.text, *one.error.below)),
        cause=skew.cause(one, here),
        fix=fix,
        source=context.knowledge.cited(table, row),
        count=1,
        values={"part": one.part.part, "version": one.version, "name": one.name.name if one.name else ""},
        asked=profile_fixes.asked(one.part, context),
        changes=own or profile_fixes.changes(one.part, {"wanted": wanted}, context),
    )


def _left_out(line: int, text: str, seen: LogSightings, here: ObservedParts) -> str:
    """Return how to leave out the optional parts that an error, or Bazel's last message up to it, is about."""
    before = (one.text for one in reversed(seen.suspects) if one.line <= line and one.text.startswith(_STOPPED))
    # The command below names folders of many parts.
    said = comparable(f"{next(before, '').partition('executing command')[0]}\n{text}")
    return " ".join(part.leave_out for part in here.parts.values() if part.leave_out and part.is_about(said))


def _with_other_way(finding: Finding, seen: LogSightings, here: ObservedParts) -> Finding:
    """Return a finding whose fix is for the system that wrote the log, and ends with another way."""
    fix, error = finding.fix, finding.excerpt.partition("\n")[0]
    # An error at run time does not come from the part that was being built.
    if finding.stage != "runtime":
        fix = f"{fix} {_left_out(finding.line, error, seen, here)}".strip()
    return replace(finding, fix=_in_words_of_system(fix, here))


def _in_words_of_system(text: str, here: ObservedParts) -> str:
    """Return a text whose commands name programs of the system that wrote the log, in the quotes of its shell."""
    system = next((part for name, part in here.parts.items() if part.phrases and name in here.there), None)
    for debian, own in system.phrases.items() if system else ():
        text = text.replace(debian, own)
    return quoted_with(text, system.quote) if system else text


def _with_grave_failures(seen: LogSightings, rows: Mapping[str, Failure], accelerator: str) -> Sequence[Sighting]:
    """Return sightings, with warnings turned into the failure that they belong to.

    A warning counts as its failure if the log has that failure too, or if the profile uses its accelerator; without a
    profile, if the log shows such an accelerator.
    """
    by_rule: dict[tuple[str, str], Sighting] = {}
    failed = {sighting.row.id for sighting in seen.sightings}
    for sighting in seen.sightings:
        row, grave = sighting.row, sighting.row.grave
        there = accelerator or (grave and grave.beside in seen.versions and grave.accelerator)
        if grave and (grave.row in failed or grave.accelerator == there):
            row = rows[grave.row]
        kind = row.id, sighting.values.get(row.each, "")
        first = by_rule.get(kind)
        by_rule[kind] = first.joined(sighting) if first else replace(sighting, row=row)
    return tuple(by_rule.values())


def _most_specific(sightings: Sequence[Sighting]) -> Sequence[Sighting]:
    """Return the sightings without those for which a nearby sighting is more exact."""
    left = []
    for one in sightings:
        # Sightings that are reported one by one may be close together: only one on the same line replaces another.
        near = 0 if one.row.each else _NEAR
        if not any(one.row.id in other.row.instead_of and abs(other.line - one.line) <= near for other in sightings):
            left.append(one)
    # Do this last, so that a sure row that is itself replaced does not remove the row that replaces it.
    sure = {one.line for one in left if not one.row.unsure}
    left = [one for one in left if not (one.row.unsure and one.line in sure)]
    # A cascade says nothing new beside a failure of its own stage, whose message may come some lines later.
    first = {one.row.stage: one.line for one in reversed(left) if not (one.row.cascade or one.survivable)}
    return [one for one in left if not one.row.cascade or first.get(one.row.stage, inf) > one.line + _NEAR]


def _finding(sighting: Sighting, seen: LogSightings, here: ObservedParts, context: Context) -> Finding:
    knowledge, row = context.knowledge, sighting.row
    newest = {part: made[-1] for part in row.tells if (made := here.made_with(part))}
    # Shortened only for sentences: the changes of the profile below need the whole values.
    values = {**row.values, **newest, **{name: text[:_LONGEST] for name, text in sighting.values.items()}}
    told = here.outside() if row.unsure else here.made_of(row.tells)
    read = sighting.values.items()
    known = [(one, groups) for one in knowledge.meanings if (groups := one.found(read)) is not None]
    # A later row of the table is more exact than an earlier one.
    fixes = [(one.fix, groups) for one, groups in reversed(known) if one.fix and not row.keeps_fix]
    better, groups = next(iter(fixes), ("", {}))
    variant = next((one for one in row.variants if here.show(one.beside)), None)
    cause = (variant and variant.cause) or row.cause
    own = (variant and variant.fix) or better or ("bazel" not in seen.versions and row.installed) or row.fix
    # A survived failure counts less if another error stopped the build later.
    stopped = any(suspect.line > sighting.line and suspect.text.startswith(_STOPPED) for suspect in seen.suspects)
    doubts = sighting.survivable + row.cascade + row.unsure + (sighting.survivable and stopped)
    mismatch = _profile_mismatch(row, sighting.values, context)
    # With another profile, its changes are no fix.
    profile = Context(knowledge=knowledge) if mismatch else context
    return Finding(
        id=row.id,
        stage=row.stage,
        confidence=CONFIDENCES[min(doubts, 2)],
        line=sighting.line,
        excerpt="\n".join(sighting.excerpt),
        cause=" ".join(filter(None, (cause.format(**values), *(one.means for one, _ in known), told))),
        fix=own.format(**{"python": "3.N", **values, **groups}),
        source=knowledge.cited("failures", row),
        count=sighting.count,
        values=dict(sighting.values),
        asked=profile_fixes.asked(row, context),
        misfit=mismatch,
        changes=profile_fixes.changes(row, {**row.values, **sighting.values}, profile),
    )


def _profile_mismatch(row: Failure, values: Mapping[str, str], context: Context) -> str:
    """Return a sentence on the first mismatch of log and profile in a row's `fits`; empty if both agree.

    `values` come only from the log: a default for a missing value proves nothing.
    """
    for name, subject in row.fits.items():
        text = values.get(name, "")
        if subject == "targets":
            targets, number = profile_fixes.targets(context), profile_fixes.number(text)
            fits = not targets or not number or number in map(profile_fixes.number, targets)
            asked, logged = ", ".join(targets), text
        else:
            title, version = profile_fixes.title(subject, context.knowledge), profile_fixes.version(subject, context)
            mine, other = Version(version), Version(text)
            # One version may be less exact than the other: 12 and 12.5 do not contradict each other.
            fits = not mine.parts or not other.parts or mine.matches(other) or other.matches(mine)
            asked, logged = f"{title} {mine}", f"{title} {other}"
        if not fits:
            return f"your profile asks {asked}, but the log is about {logged}: that build had other settings"
    return ""


# --- documents ------------------------------------------------------------------------------------------------------


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding for a JSON document, without the control characters of the log."""
    return asdict(finding) | {
        "excerpt": clean(finding.excerpt),
        "cause": clean(finding.cause),
        "fix": clean(finding.fix),
        "values": {name: clean(text) for name, text in finding.values.items()},
    }


def diagnose_document(diagnoses: Mapping[str, Diagnosis], *, with_warnings: bool) -> dict[str, Any]:
    """Return the content of `tfdock.diagnose/1` for the diagnoses of logs, by the logs' names.

    First comes the first finding of each log, then the second finding of each, and so on.
    """
    logs = diagnoses.items()
    ranked = [(rank, name, cause) for name, log in logs for rank, cause in enumerate(log.findings)]
    document: dict[str, Any] = {
        # Sorting is stable: within a rank, the logs stay in the order of the arguments.
        "findings": [finding_json(one) | {"file": name} for _, name, one in sorted(ranked, key=itemgetter(0))],
        "logs": [
            {"file": name, "lines": log.lines, "success": asdict(log.success) if log.success else None}
            for name, log in logs
        ],
        "suspects": [
            {"file": name, "line": suspect.line, "text": clean(suspect.text)}
            for name, log in logs
            # Suspicious lines are guesses, for a log without a known cause.
            for suspect in (log.suspects if not log.findings else ())
        ],
    }
    if with_warnings:
        document["warnings"] = [finding_json(one) | {"file": name} for name, log in logs for one in log.warnings]
    return document
