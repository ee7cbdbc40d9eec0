"""A profile is decided, or refused with suggestions: changes of it that were tried, and are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tfdock.errors import Incompatible, Problem, Suggestion
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile import profile as profiles
from tfdock.profile.profile import Profile
from tfdock.profile.yaml_nodes import Node
from tfdock.resolve.question import LocalSource
from tfdock.resolve.resolution import Resolution, Resolver
from tfdock.resolve.suggestions import suggestions


def resolve(
    profile: Profile,
    document: Node,
    knowledge: KnowledgeBase,
    *,
    file: str,
    local: LocalSource | None = None,
    local_gpus: Sequence[str] = (),
    machine: str = "x86_64",
    allow_untested: bool = False,
    ways: bool = True,
) -> Resolution:
    """Decide everything, as `Resolver` says; raises Incompatible with every problem found, each with suggestions.

    Without `ways` there are none: finding them takes a hundred times as long as finding what is wrong.
    """
    resolver = Resolver(
        document=document,
        knowledge=knowledge,
        file=file,
        local=local,
        local_gpus=local_gpus,
        machine=machine,
        allow_untested=allow_untested,
    )
    try:
        return resolver.decide(profile)
    except Incompatible as error:
        if not ways:
            raise
        tried = suggestions(profile, error.problems, resolver)
        raise Incompatible(*(_with_ways(problem, tried) for problem in error.problems)) from None


def resolve_text(
    text: str, knowledge: KnowledgeBase, *, file: str = "", machine: str = "x86_64", ways: bool = True
) -> Resolution:
    """Decide a profile that was made up here; raises ProfileError and Incompatible."""
    profile, document = profiles.read(text, file)
    return resolve(profile, document, knowledge, file=file, machine=machine, ways=ways)


def _with_ways(problem: Problem, ways: Sequence[Suggestion]) -> Problem:
    """A problem's own fix, which is for what no change of the profile mends, goes before the ways that were tried."""
    return replace(problem, ways=tuple(ways), fixes=(*problem.fixes, *(way.text for way in ways)))
