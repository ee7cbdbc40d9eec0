"""Rows about this program's own words and pipelines: codes of problems, actions of CI. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfdock.knowledge.rows import Row


class ErrorCode(Row):
    """A problem's code: what it means, an example, and the ways out. `profile` is a profile that provokes it."""

    KEY = ("code",)

    code: str
    title: str
    cause: str
    ways: tuple[str, ...]
    profile: str | None = None
    example: str | None = None


class CiAction(Row):
    """An action of GitHub's that rendered workflows use, by the commit that was looked at."""

    KEY = ("action",)

    # Narrow, because it is written into workflows.
    action: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9._/-]+$")]
    version: Annotated[str, Field(pattern=r"^v[0-9.]+$")]
    # Tags of an action can be moved to other code, a commit cannot.
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
