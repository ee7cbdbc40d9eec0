"""A failure and a profile that are not of one build: what the log says against what the profile asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfdock.plan import profile_fixes
from tfdock.types import Version

if TYPE_CHECKING:
    from tfdock.knowledge.failure_rows import Failure, Relation
    from tfdock.knowledge.toolkit_rows import Toolkit
    from tfdock.plan.profile_fixes import Context


def misfit(row: Failure, values: Mapping[str, str], context: Context) -> str:
    """One sentence on the first of a row's `fits` that the log and the profile break; empty where both agree.

    `values` are the log's own: what stands in for one that it does not say proves nothing.
    """
    for name, relations in row.fits.items():
        for relation, subject in relations.items() if values.get(name) else ():
            if told := _broken(relation, name, values[name], subject, context):
                return f"{told}, or that build had another profile"
    return ""


def _broken(relation: Relation, name: str, text: str, subject: str, context: Context) -> str:
    match relation:
        case "among":
            return _other_targets(text, context)
        case "is":
            return _other_version(text, subject, context)
        case "unknown_to":
            return _known(text, subject, context)
        case "newest_for":
            return _other_limit(name, text, subject, context)


def _other_targets(text: str, context: Context) -> str:
    asked, number = profile_fixes.targets(context), profile_fixes.number(text)
    if not asked or not number or any(profile_fixes.number(target) == number for target in asked):
        return ""
    return f"your profile asks {', '.join(asked)}, and the log is about {text}: something else lists it"


def _other_version(text: str, subject: str, context: Context) -> str:
    asked, said = Version(profile_fixes.version(subject, context)), Version(text)
    if not asked.parts or not said.parts or asked.matches(said) or said.matches(asked):
        return ""
    title = profile_fixes.title(subject, context)
    return f"your profile asks {title} {asked}, and the log is about {title} {said}: something else set it"


def _known(text: str, subject: str, context: Context) -> str:
    row = _toolkit(subject, context)
    if row is None or profile_fixes.number(text) not in row.targets:
        return ""
    title = profile_fixes.title(subject, context)
    return (
        f"{title} {profile_fixes.version(subject, context)} of your profile knows {text}: the compiler of another "
        f"{title} ran (look at `PATH`)"
    )


def _other_limit(name: str, text: str, subject: str, context: Context) -> str:
    row, said = _toolkit(subject, context), Version(text).parts
    newest = row.host_compilers_max.get(name) if row else None
    if newest is None or not said or newest == said[0]:
        return ""
    title = profile_fixes.title(subject, context)
    return (
        f"{title} {profile_fixes.version(subject, context)} of your profile takes {name} {newest}, and that of the "
        f"log {name} {text} at most: it is another {title} (look at `PATH`)"
    )


def _toolkit(name: str, context: Context) -> Toolkit | None:
    return context.knowledge.toolkits.get((name, str(Version(profile_fixes.version(name, context)).minor)))
