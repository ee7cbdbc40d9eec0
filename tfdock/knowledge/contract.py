"""The contract of a release: variables and flags of the rows that apply to a build, with facts filled in. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdock.knowledge.release_rows import Release, applies
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Version


class MissingFact(Exception):
    """A row needs a fact that the build does not have. `row` names the row, `fact` the fact."""

    def __init__(self, row: str, fact: str) -> None:
        super().__init__(f"{row} asks for {fact}")
        self.row = row
        self.fact = fact


@dataclass(frozen=True, slots=True)
class Contract:
    """The rows of one release that apply to the facts of one build."""

    knowledge: KnowledgeBase
    release: Release
    facts: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """Return the variables that are exported for ./configure and Bazel."""
        return self._variables("environment")

    def of_repositories(self, bazel: str) -> tuple[str, ...]:
        """Return `--repo_env=X` for each --action_env variable that only repository rules read."""
        return tuple(
            option
            for row in self.knowledge.variables
            if row.repository_rules and self._holds(row.releases, row.when)
            for option in bazel_options(self.knowledge, bazel, "repository_variable", {"variable": row.variable})
        )

    def flags(self, configs: Sequence[str] = ()) -> tuple[str, ...]:
        """Return Bazel's flags: the flags of the rows, then `configs`, then each --repo_env.

        A later --repo_env of the same name overrides the value of a config.
        """
        rows = (row.flag for row in self.knowledge.flags if self._holds(row.releases, row.when))
        flags = [self._filled(flag, f"flags.yaml {flag}") for flag in rows]
        repo_env = [f"--repo_env={name}={value}" for name, value in self._variables("repo_env").items()]
        # Name each configuration once: a repeated one expands again, after flags that undo parts of it.
        return (*dict.fromkeys([*flags, *(f"--config={name}" for name in configs)]), *repo_env)

    def package(self) -> tuple[str, ...]:
        """Return the words of the command that makes the wheel, for releases that have such a script."""
        row = f"releases.yaml {self.release.release}"
        return tuple(self._filled(word, row) for word in self.release.wheel.command)

    def _variables(self, channel: str) -> dict[str, str]:
        return {
            row.variable: self._filled(row.value, f"variables.yaml {row.variable}")
            for row in self.knowledge.variables
            if row.channel == channel and self._holds(row.releases, row.when)
        }

    def _holds(self, span: str, when: Mapping[str, str | tuple[str, ...]]) -> bool:
        return applies(self.release, span) and holds(when, self.facts)

    def _filled(self, template: str, row: str) -> str:
        return filled(template, self.facts, row).strip()


def filled(template: str, facts: Mapping[str, str], row: str) -> str:
    """Fill the facts into a row's template. Raises MissingFact, with the name `row`, for an unknown fact."""
    try:
        return template.format_map(facts)
    except KeyError as error:
        # Name the row: it may come from a user's knowledge folder, and a KeyError would not say where to look.
        raise MissingFact(row, str(error)) from error


def bazel_options(
    knowledge: KnowledgeBase, bazel: str, purpose: str, values: Mapping[str, object]
) -> tuple[str, ...]:
    """Return the options of one purpose that this Bazel knows. Empty if this Bazel lacks the feature."""
    version = Version(bazel)
    return tuple(
        row.option.format_map(values)
        for row in knowledge.bazel_options
        if row.purpose == purpose
        and (row.since is None or version >= Version(row.since))
        # Compare the minor version: `until: 6.5` also holds for 6.5.2.
        and (row.until is None or version.minor <= Version(row.until))
    )


def version_facts(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the placeholders for each version: `cuda`, `cuda_minor` and `cuda_major` for CUDA."""
    facts: dict[str, str] = {}
    for name, text in versions.items():
        version = Version(text)
        # A row names the part of a version that matters for it: all, minor, or major.
        facts |= {name: text, f"{name}_minor": str(version.minor), f"{name}_major": str((version.parts or ("",))[0])}
    return facts


def holds(when: Mapping[str, str | tuple[str, ...]], facts: Mapping[str, str]) -> bool:
    """Return whether every fact that a row names has the required value or one of the allowed values."""
    # A fact that the build lacks counts as empty, so a row can ask for its absence.
    return all(
        facts.get(name, "") in ((wanted,) if isinstance(wanted, str) else wanted) for name, wanted in when.items()
    )
