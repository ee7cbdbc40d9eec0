"""A row of a wheel's coverage, as pages show it: how the GPUs of one target run the wheel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from tfdock.gpu.coverage import WORDS
from tfdock.gpu.verdict import Runs

NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run code. The letter distinguishes it where colours do not."""

    kind: str
    letter: str
    legend: str


WAYS = {
    "native": Way("native", "N", "natively: machine code for exactly this GPU"),
    "native-same-major": Way("native-same-major", "M", "natively: machine code of the same major version"),
    "ptx-jit": Way("ptx-jit", "J", "by JIT: the driver compiles PTX at the first start"),
    "no": Way("no", "–", "not"),
    "unknown": Way("unknown", "?", NOT_JUDGED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow:
    """How the GPUs of one target run a wheel, as far as a document says it."""

    target: str
    name: str = ""
    architecture: str = ""
    accelerator: str = ""
    embedded: bool = False
    runs: Runs | None = None
    reason: str = ""
    limits: tuple[str, ...] = ()

    @classmethod
    def from_document(cls, row: Mapping[str, Any]) -> CoverageRow:
        """Return a row of a document; what is no way to run counts as not judged."""
        known = next((way for way in get_args(Runs) if way == row.get("runs")), None)
        texts = ("target", "name", "architecture", "accelerator", "reason")
        return cls(
            **{key: str(row.get(key) or "") for key in texts},
            embedded=bool(row.get("embedded")),
            runs=known,
            limits=tuple(map(str, row.get("limits") or ())),
        )

    @property
    def way(self) -> Way:
        """Return how its GPUs run the wheel."""
        return WAYS[self.runs or "unknown"]

    @property
    def words(self) -> str:
        """Return the same in words, for a table."""
        return WORDS[self.runs] if self.runs else NOT_JUDGED

    @property
    def title(self) -> str:
        """Return all that is known of it."""
        names = ", ".join(name for name in (self.name, self.architecture) if name and name != self.target)
        verdict = f"{self.target} ({names}): {self.words}" if names else f"{self.target}: {self.words}"
        return "; ".join(filter(None, (verdict, self.reason, *(f"limit: {limit}" for limit in self.limits))))


def limits_of(rows: Iterable[CoverageRow]) -> list[dict[str, str]]:
    """Return each limit once, with the targets that have it; the limits of most targets first.

    Limits that differ in nothing but the target they name are one.
    """
    limits: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for limit in row.limits:
            # Not within a longer number: `18.0` does not contain the version `8.0`.
            own = rf"(?<![\w.]){re.escape(row.target)}(?![\w.])"
            limits.setdefault(re.sub(own, "it", limit), []).append((row.target, limit))
    return [
        {"targets": ", ".join(target for target, _ in own), "text": text if len(own) > 1 else own[0][1]}
        for text, own in sorted(limits.items(), key=lambda limit: -len(limit[1]))
    ]
