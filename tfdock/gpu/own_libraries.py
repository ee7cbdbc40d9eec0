"""Which libraries of a wheel are TensorFlow's own, and which it only carries along. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.wheel_rows import WheelLibrary
from tfdock.wheel.facts import Library


def own_libraries(knowledge: KnowledgeBase, libraries: Iterable[Library]) -> tuple[Library, ...]:
    """Return TensorFlow's own libraries, without those that are only carried along."""
    return tuple(library for library in libraries if is_own(knowledge, library.path))


def is_own(knowledge: KnowledgeBase, path: str) -> bool:
    """Return whether a library of a wheel, by its path in it, is TensorFlow's own."""
    row, _ = row_of(knowledge, path)
    # Builds of one's own have libraries that no row knows. They count as TensorFlow's.
    return row is None or row.own


def row_of(knowledge: KnowledgeBase, path: str) -> tuple[WheelLibrary | None, str]:
    """Return the row that tells of a library, and which choice the library belongs to, if it is one of several."""
    matches = ((row, re.fullmatch(row.paths, path)) for row in knowledge.wheel_libraries)
    row, match = next(((row, match) for row, match in matches if match), (None, None))
    return row, match.groupdict().get("choice", "") if match else ""
