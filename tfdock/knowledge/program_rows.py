"""Rows about tfdock itself: the codes of its problems, and the GitHub actions of its CI pipelines. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfdock.knowledge.rows import Row, RowPart


class ExplainedCode(RowPart):
    """What a code means."""

    code: str  #: The code.
    title: str  #: In a few words.
    cause: str  #: What it means.
    ways: tuple[str, ...]  #: What can be done.
    profile: str | None = None  #: A profile that causes the problem.
    example: str | None = None  #: The printed text, if no profile causes the problem.


class ErrorCode(ExplainedCode, Row):
    """A problem's code."""

    KEY = ("code",)


class CiAction(Row):
    """A GitHub action that rendered workflows use, at the commit that was examined."""

    KEY = ("action",)

    # Narrow, because it is written into workflows.
    action: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9._/-]+$")]
    version: Annotated[str, Field(pattern=r"^v[0-9.]+$")]
    # Tags of an action can be moved to other code, a commit cannot.
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
