"""Say which causes of slowness a trace shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from tfdock.knowledge.wheel_rows import SlowCause
from tfdock.trace.trace_facts import TraceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCause:
    """A cause that a trace shows."""

    cause: str  #: Its name in the table.
    says: str  #: What was seen, with its figures.
    advice: str  #: What to do about it.
    is_fault: bool  #: Something is done wrong, or in vain; else it is where the time goes.


def causes_of(facts: TraceFacts, rows: Iterable[SlowCause]) -> Iterator[FoundCause]:
    """Yield the causes, in the order of the table: the one that hides the others first."""
    figures = {field.name: getattr(facts, field.name) for field in fields(facts)}
    known = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    texts = {name: _text(name, value) for name, value in figures.items() if isinstance(value, int | float | str)}
    found = set[str]()
    for row in rows:
        enough = all(name in known and known[name] >= least for name, least in row.at_least.items())
        little = all(name in known and known[name] <= most for name, most in row.at_most.items())
        if enough and little and row.unless.isdisjoint(found):
            found.add(row.cause)
            says, advice = row.says.format(**texts), row.advice.format(**texts)
            yield FoundCause(cause=row.cause, says=says, advice=advice, is_fault=row.is_fault)


def _text(name: str, value: float | str) -> str:
    if name.endswith("_share") and not isinstance(value, str):
        return f"{100 * value:.0f} %"
    return f"{value:.0f}" if isinstance(value, float) else str(value)
