"""The libraries of a wheel: TensorFlow's own, the libraries that it opens to find GPUs, and their folders.

Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tfdock.knowledge.release_rows import applies
from tfdock.knowledge.rows import Accelerator, in_range
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.wheel_rows import RuntimeLibrary, WheelLibrary
from tfdock.types import Version
from tfdock.wheel.facts import Library
from tfdock.wheel.identity import normal_version
from tfdock.wheel.requirements import wanted

if TYPE_CHECKING:
    from tfdock.wheel.inspection import Inspection

_DRIVER = "driver"  #: The component of the libraries that come with the driver: no image contains these libraries.
#: The library that searches for GPUs, in releases that have it.
_OPENER = re.compile(r"tensorflow(_core)?/libtensorflow_framework\.so[.\d]*")


def own_libraries(knowledge: KnowledgeBase, libraries: Iterable[Library]) -> tuple[Library, ...]:
    """Return TensorFlow's own libraries, without bundled third-party ones."""
    return tuple(library for library in libraries if is_own(knowledge, library.path))


def is_own(knowledge: KnowledgeBase, path: str) -> bool:
    """Return whether a library of a wheel, by its path in it, is TensorFlow's own."""
    row, _ = row_of(knowledge, path)
    # Custom builds may have libraries without a row. They count as TensorFlow's.
    return row is None or row.own


def row_of(knowledge: KnowledgeBase, path: str) -> tuple[WheelLibrary | None, str]:
    """Return the row of a library, and the choice that the library belongs to, if there are choices."""
    matches = ((row, re.fullmatch(row.paths, path)) for row in knowledge.wheel_libraries)
    row, match = next(((row, match) for row, match in matches if match), (None, None))
    return row, match.groupdict().get("choice", "") if match else ""


def release_of(inspection: Inspection) -> str:
    """Return the minor release, `2.18`; 0.0 for a wheel without a version."""
    parts = (*Version(normal_version(inspection.metadata.version)).parts, 0, 0)
    # Rows are for minor releases.
    return f"{parts[0]}.{parts[1]}"


def for_release(knowledge: KnowledgeBase, minor: str, span: str) -> bool:
    """Return whether a range of releases includes a minor release; the release need not be known."""
    release = knowledge.releases.get(minor)
    return applies(release, span) if release else in_range(minor, span)


def accelerator_of(knowledge: KnowledgeBase, inspection: Inspection) -> Accelerator | None:
    """Return the family of GPUs that the wheel says it was built for; None for the CPU."""
    info = inspection.build_info or {}
    rows = (row for row in knowledge.accelerators.values() if row.components)
    return next((row for row in rows if info.get(f"is_{row.accelerator}_build") is True), None)


def built_with(inspection: Inspection, component: str) -> str:
    """Return a component's version from `build_info`, or else from the headers; empty without both.

    Up to TensorFlow 2.2, `build_info` names this entry differently; from 2.22 on, the entry is missing.
    """
    info = inspection.build_info or {}
    named = info.get(f"{component}_version", info.get(f"{component}_version_number", ""))
    return str(named or inspection.header_versions.get(component, ""))


def opened_libraries(
    knowledge: KnowledgeBase, inspection: Inspection, *, with_driver: bool = True
) -> tuple[RuntimeLibrary, ...]:
    """Return the libraries that the wheel opens when it looks for GPUs: for each name, the row of its versions."""
    accelerator, built = accelerator_of(knowledge, inspection), partial(built_with, inspection)
    rows = opened_by(knowledge, accelerator, release_of(inspection), built) if accelerator else ()
    # The engine puts the driver's libraries into a container together with the GPU.
    return tuple(row for row in rows if with_driver or row.component != _DRIVER)


def opened_by(
    knowledge: KnowledgeBase, accelerator: Accelerator, minor: str, built: Callable[[str], str]
) -> tuple[RuntimeLibrary, ...]:
    """Return the libraries that a minor release opens; `built` returns a component's version, or "" if unknown."""
    rows: dict[str, RuntimeLibrary] = {}
    for row in knowledge.runtime_libraries:
        if row.accelerator != accelerator.accelerator or not for_release(knowledge, minor, row.releases):
            continue
        alike = not row.version or Version(built(row.component)).matches(Version(row.version))
        other = rows.get(row.name)
        # `12.5` is more exact than `12`.
        closer = other is None or len(Version(row.version).parts) > len(Version(other.version).parts)
        if closer and (alike or row.component == _DRIVER):
            rows[row.name] = row
    return tuple(rows.values())


def package_of(knowledge: KnowledgeBase, inspection: Inspection, row: RuntimeLibrary) -> str:
    """Return the PyPI package that contains a library; empty if no package is known."""
    accelerator = accelerator_of(knowledge, inspection)
    toolkit = built_with(inspection, accelerator.toolkit) if accelerator else ""
    return (row.package or "").format_map({"major": toolkit.partition(".")[0]})


def searched_folders(inspection: Inspection, row: RuntimeLibrary) -> set[str]:
    """Return the folders in which a wheel looks for a library, relative to site-packages.

    The loader uses the DT_RUNPATH of the file that opens the library. Libraries that a GPU can work without are
    opened by other files.
    """
    openers = [library for library in inspection.libraries if row.use is None and _OPENER.fullmatch(library.path)]
    return {
        posixpath.normpath(f"{posixpath.dirname(library.path)}/{match[1]}")
        for library in openers or inspection.libraries
        # ld.so(8): a DT_RPATH counts in a file without a DT_RUNPATH.
        for entry in library.runpath or library.rpath
        if (match := re.fullmatch(r"\$(?:ORIGIN|\{ORIGIN\})(.*)", entry))
    }


def unsearched_folders(knowledge: KnowledgeBase, inspection: Inspection) -> tuple[str, ...]:
    """Return folders (`nvidia/cusolver/lib`) that pip fills with the wheel's libraries but the wheel does not search.

    TensorFlow sees no GPU without the libraries in these folders. The folders are computed from the wheel's
    requirements and DT_RUNPATH.
    """
    if not inspection.libraries:  # none could be read
        return ()
    metadata = inspection.metadata
    brought = {one.package for one in wanted(metadata.requires_dist, metadata.provides_extra)}
    opened = opened_libraries(knowledge, inspection)
    rows = (row for row in opened if package_of(knowledge, inspection, row) in brought)
    unsearched = (row.folder for row in rows if row.folder and row.folder not in searched_folders(inspection, row))
    return tuple(dict.fromkeys(unsearched))


def unsearched_limit(folders: Sequence[str]) -> str:
    """Return what to do if a wheel does not search folders that pip fills, such as `nvidia/cusolver/lib`."""
    modules = (folder.removesuffix("/lib").replace("/", ".") for folder in folders)
    path = ":".join(f"$(python -c 'import {module} as m; print(*m.__path__)')/lib" for module in modules)
    export = f'export LD_LIBRARY_PATH="{path}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"'
    return (
        f"even with the libraries of its extra, TensorFlow sees no GPU until you run `{export}`: "
        f"the wheel does not search {' and '.join(folders)}"
    )
