"""The input of a resolution (profile, knowledge, machine), and its notes: choices and problems with positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from tfdock.errors import Fix, Incompatible, Problem
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile.profile import Profile
from tfdock.profile.yaml_nodes import Node
from tfdock.types import Choice


class TrialRefused(Exception):
    """A trial resolution ended at its first refusal. The refusal is never shown."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """The finding of a rule: a code, the field that causes it, the problem, the reasons.

    `weight` is `error` (cannot work), `failing` (seen to fail), `doubt` (no known test) or `warning` (works with a
    limit). `fix` is set if no change of the profile solves the problem. `part` is the part in doubt, with which
    somebody may have built (`grades.Reports`).
    """

    code: str
    path: str
    message: str
    why: str = ""
    fix: Fix = ""
    weight: str = "error"
    part: str = ""


def sentences(*parts: str) -> str:
    """Return the non-empty parts of a `why` as one text."""
    return "; ".join(part for part in parts if part)


def prevented(symptom: str | None) -> str:
    """Return the failure that a refusal prevents, for the refusal's `why`; empty if no symptom is known."""
    return f"without this refusal: {symptom}" if symptom else ""


def by_place(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems from the top of the profile to its end."""
    return sorted(problems, key=lambda item: (item.line or 0, item.column or 0))


@dataclass(slots=True, kw_only=True)
class Notes:
    """The choices and problems found so far. A `trial` stops at the first problem.

    `held` collects doubts about parts until `settle` judges the whole combination.
    """

    document: Node
    file: str
    allow_untested: bool
    allow_failing: bool = False
    trial: bool = False
    choices: list[Choice] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    untested: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    held: list[RuleFinding] = field(default_factory=list)

    def choose(self, name: str, value: object, source: str, reason: str) -> None:
        """Record a choice."""
        self.choices.append(Choice(field=name, value=str(value), source=source, reason=reason))

    def choose_asked(self, name: str, value: object, asked: bool, reason: str) -> None:
        """Record a choice of the profile if `asked`, else a default with this reason."""
        self.choose(name, value, "profile" if asked else "default", "as asked" if asked else reason)

    def find(self, finding: RuleFinding) -> None:
        """Record a finding. An untested combination is refused too, unless the profile allows it."""
        if finding.weight == "doubt" and finding.part:
            self.held.append(finding)
            return
        allowed = {"warning": True, "doubt": self.allow_untested, "failing": self.allow_failing}
        refused = not allowed.get(finding.weight, False)
        # A trial only finds out whether there is a problem: stopping here makes suggestions fast enough.
        if refused and self.trial:
            raise TrialRefused
        place = self.problems if refused else self.untested if finding.weight == "doubt" else self.warnings
        node, severity = self.document.at_field(finding.path), "error" if refused else "warning"
        more = {"why": finding.why, "severity": severity, "field": finding.path}
        place.append(node.problem(self.file, finding.code, finding.message, finding.fix, **more))

    def refuse(
        self, code: str, path: str, message: str, *, why: str = "", fix: Fix = "", weight: str = "error"
    ) -> None:
        """Record a combination that cannot work; with another `weight`, one that may."""
        self.find(RuleFinding(code, path, message, why, fix, weight))

    def stop(self, code: str, path: str, message: str, *, why: str = "", fix: Fix = "") -> NoReturn:
        """Record a combination that cannot work, and raise Incompatible: nothing more can be checked."""
        self.refuse(code, path, message, why=why, fix=fix)
        raise self._refusal()

    def doubt(self, code: str, path: str, message: str, *, why: str = "", part: str = "") -> None:
        """Record an untested combination."""
        self.find(RuleFinding(code, path, message, why, weight="doubt", part=part))

    def settle(self, judged: Callable[[RuleFinding], RuleFinding | None] = lambda doubt: doubt) -> None:
        """Record the held doubts after `judged` has judged them; a doubt is dropped if the result is None."""
        held, self.held = self.held, []
        for doubt in held:
            if finding := judged(doubt):
                self.find(replace(finding, part=""))

    def stop_if_refused(self) -> None:
        """If there are problems, raise Incompatible with all of them, in the order of the profile's lines."""
        if self.problems:
            raise self._refusal()

    def _refusal(self) -> Incompatible:
        # No further evidence will come, so the held doubts remain doubts.
        self.settle()
        return Incompatible(*by_place(self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """The files of a profile from disk: the tree hash of `path`, and the patches' bytes by name.

    `folder` is the real path of the checkout.
    """

    tree: str | None = None
    folder: str = ""
    patches: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The input of all steps of a resolution, and their notes.

    `local_gpus` are this machine's GPUs as `local_words` names them, for `gpus: local`; `machine` is the build's CPU.
    """

    profile: Profile
    knowledge: KnowledgeBase
    notes: Notes
    local: LocalSource = LocalSource()
    local_gpus: Sequence[str] = ()
    machine: str = "x86_64"
