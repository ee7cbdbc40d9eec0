"""Select the archives that install components the base image lacks."""

from __future__ import annotations

from collections.abc import Mapping

from tfdock.knowledge.image_rows import ArchiveRow, ImageRow
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.types import Version


def archives_of(
    knowledge: KnowledgeBase, image: ImageRow, components: Mapping[str, str]
) -> tuple[ArchiveRow, ...] | None:
    """One archive for each of the image's `archives`, in their order; None where one of them has none that fits."""
    found = []
    for name in image.archives:
        fitting = (row for row in knowledge.archives if row.component == name and _fits(row, components))
        archive = next(fitting, None)
        if archive is None:
            return None
        found.append(archive)
    return tuple(found)


def _fits(row: ArchiveRow, components: Mapping[str, str]) -> bool:
    """Whether the archive is what was asked for, said as exactly or less so, and made for the other components."""
    asked = components.get(row.component)
    return (
        asked is not None
        and Version(row.version).matches(Version(asked))
        and all(Version(components.get(name, "")).matches(Version(want)) for name, want in row.components.items())
    )
