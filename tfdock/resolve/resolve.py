"""Resolve a profile, or refuse it with suggestions, which are tested changes of the profile.

Every resolution goes through a `Resolver`. These functions make a `Resolver` from text, and add suggestions to a
refusal.
"""

from __future__ import annotations

from dataclasses import replace

from tfdock.errors import Incompatible
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile import profile as profiles
from tfdock.profile.profile import Profile
from tfdock.resolve.resolution import Resolution, Resolver


def resolve_or_suggest(resolver: Resolver, profile: Profile) -> Resolution:
    """Return the resolution; raises Incompatible with every problem, each with suggestions.

    Finding the suggestions takes a hundred times as long as finding the problems.
    """
    try:
        return resolver.resolve(profile)
    except Incompatible as error:
        # Imported here: an accepted profile does not need the module that searches for changes.
        from tfdock.resolve.suggestions import suggestions

        # The suggestions are for all problems together: each suggestion makes the whole profile acceptable.
        ways = suggestions(profile, error.problems, resolver)
        fixes = [way.text for way in ways if not way.question]
        problems = (replace(one, ways=tuple(ways), fixes=(*one.fixes, *fixes)) for one in error.problems)
        # Raise without the first error as cause: it would print the same problems again.
        raise Incompatible(*problems) from None


def read_text(
    text: str, knowledge: KnowledgeBase, *, file: str = "", machine: str = "x86_64"
) -> tuple[Profile, Resolver]:
    """Return the profile from a text that tfdock wrote, and the profile's resolver; raises ProfileError."""
    profile, document = profiles.read(text, file)
    return profile, Resolver(document=document, knowledge=knowledge, file=file, machine=machine)


def resolve_text(
    text: str, knowledge: KnowledgeBase, *, file: str = "", machine: str = "x86_64", suggest: bool = True
) -> Resolution:
    """Return the resolution of a text; raises ProfileError, or Incompatible, with suggestions if `suggest` is set."""
    profile, resolver = read_text(text, knowledge, file=file, machine=machine)
    return resolve_or_suggest(resolver, profile) if suggest else resolver.resolve(profile)
