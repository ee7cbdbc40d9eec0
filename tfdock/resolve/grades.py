"""Evidence x combination -> what is known of it: built, tested, untested, or known to fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfdock.knowledge.evidence_rows import ReportedBuild
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.resolve.question import RuleFinding, sentences
from tfdock.types import Choice

_NAMED = 3
"""How many reports are named."""


class Reports:
    """The reports on builds with these facts: `release`, `accelerator`, `toolkit`, `machine`, `python`, parts.

    An empty fact is not known. Reports of forks are of another source, and left out. A report that says no tool is of
    the release's own: `tools` are the release's compilers.
    """

    def __init__(self, knowledge: KnowledgeBase, facts: Mapping[str, str], tools: Mapping[str, str]) -> None:
        self._knowledge, self._facts, toolkit = knowledge, facts, facts["toolkit"]
        other = {name for name, own in tools.items() if facts[name].partition(" ")[0] != own}
        rows = [row for row in knowledge.reports_on(facts["release"]) if not row.fork and row.agrees(facts)]
        # A report that says no accelerator or toolkit may be of any.
        told = [
            row
            for row in rows
            if row.accelerator and (not toolkit or toolkit in row.components) and other <= row.parts.keys()
        ]
        self._built = [row for row in told if row.outcome == "built"]
        self._edited = [row for row in told if row.outcome == "built-with-edit"]
        self._failed = [row for row in rows if row.outcome == "fails"]

    def settles(self, doubt: RuleFinding) -> bool:
        """Return whether somebody built the part that is doubted."""
        return any(row.is_exactly(doubt.part, self._facts) for row in self._built)

    def about(self, doubt: RuleFinding) -> str:
        """Return who built the doubted part with an edit, for its `why`; empty if nobody is known to."""
        edited = [row for row in self._edited if row.is_exactly(doubt.part, self._facts)]
        return f"built with an edit by {self._named(edited)}: {'; '.join(edited[0].needs)}" if edited else ""

    def failures(self, places: Mapping[str, str], titles: Mapping[str, str]) -> Iterator[RuleFinding]:
        """Yield what is known to fail. `places` maps a part to the field that asks for it, `titles` to its name."""
        for row in self._failed:
            disputed = self._is_disputed(row)
            parts = [f"{titles.get(name, '')} {self._facts[name]}".strip() for name in row.parts]
            of = f"TensorFlow {self._facts['release']}" + (f" with {' and '.join(parts)}" if parts else "")
            yield RuleFinding(
                code="known-to-fail",
                path=next((places[name] for name in row.parts if name in places), places[""]),
                message=f"{of} {'failed for some and was built by others' if disputed else 'is known to fail'}",
                why=sentences(
                    f"`{row.failed_with}`" if row.failed_with else row.note or "",
                    f"reported in {row.at}",
                    f"what mends it: {'; '.join(row.needs)}",
                    f"built by {self._named(self._built)}" if disputed else "",
                ),
                weight="warning" if disputed else "failing",
            )

    def _is_disputed(self, row: ReportedBuild) -> bool:
        """Return whether somebody built the same parts, and reported no edit."""
        return any(row.parts.keys() <= built.parts.keys() for built in self._built)

    def grade(self, *, untested: bool) -> Choice:
        """Return what is known of the whole combination, for the choices of a plan."""
        if not all(map(self._is_disputed, self._failed)):
            return _choice("known-to-fail", "somebody saw it fail, and it is allowed")
        if untested:
            edited = f"; with an edit by {self._named(self._edited)}" if self._edited else ""
            return _choice("untested", f"nobody here is known to have built it{edited}")
        if self._built:
            return _choice("built", f"by {self._named(self._built)}")
        return _choice("tested", "the release's own tables list it; no report of such a build is known")

    def _named(self, rows: Sequence[ReportedBuild]) -> str:
        dates: dict[str, str] = {}
        for row in rows:
            dates.setdefault(self._knowledge.cited("evidence", row).partition(":")[0], row.date or "")
        named = [f"{name} ({date})" if date else name for name, date in dates.items()]
        return ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")


def _choice(value: str, reason: str) -> Choice:
    return Choice(field="evidence", value=value, source="evidence.yaml", reason=reason)
