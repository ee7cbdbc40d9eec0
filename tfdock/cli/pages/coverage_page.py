"""Make the page of a wheelhouse: GPUs by Python for each TensorFlow, in HTML that loads and runs nothing.

The texts of a wheel reach the page as escaped text only.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdock.cli import console
from tfdock.cli.pages.coverage_row import WAYS, CoverageRow, Way, limits_of
from tfdock.cli.pages.html_page import generator, render_page
from tfdock.gpu.coverage import WORDS
from tfdock.types import Version
from tfdock.wheel.identity import runs_on_python
from tfdock.wheelhouse.simple_index import quoted

GENERATOR = generator("wheelhouse index")
"""Stands in every page: what has it may be replaced by the next one."""

_CPYTHON = re.compile("cp([0-9])([0-9]+)")
_BEST_FIRST = list(WORDS)
_NO_WHEEL = Way("none", "", "there is no wheel for that Python")
_CPU = Way("cpu", "✓", "there is a wheel for the CPU alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageCell:
    """How the best wheel for a GPU and a Python runs; `limits` counts its limits, `title` describes them."""

    way: Way
    python: str
    target: str = ""
    limits: int = 0
    title: str = ""


@dataclass(frozen=True, slots=True)
class _Wheel:
    """A wheel of the document, and the Pythons whose columns it stands in."""

    row: Mapping[str, Any]
    pythons: tuple[str, ...]
    coverage: Mapping[tuple[str, str], CoverageRow]


def coverage_page(wheels: Sequence[Mapping[str, Any]]) -> str:
    """Return the page for the wheels of `wheelhouse/coverage_index`, the same text every time."""
    return render_page("wheelhouse.html.j2", _values(wheels))


def _values(wheels: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    pythons = _pythons(wheels)
    shown = [_wheel(row, pythons) for row in wheels]
    sections = sorted({(str(row["tensorflow"]), str(row["machine"])) for row in wheels}, key=_newest_first)
    counted = Counter(row["accelerator"] is not None for row in wheels)
    number = f"{len(wheels)} wheel{'s' * (len(wheels) != 1)}"
    return {
        "generator": GENERATOR,
        "title": "Wheelhouse",
        "counts": f"{number} of TensorFlow, {counted[True]} of them with GPU code.",
        "sections": [_section(version, machine, shown) for version, machine in sections],
        "ways": [*(way for kind, way in WAYS.items() if kind != "unknown"), _CPU, _NO_WHEEL],
        "wheels": [_wheel_row(wheel) for wheel in shown],
    }


def _newest_first(release: tuple[str, str]) -> tuple[object, ...]:
    version, machine = release
    return (tuple(-part for part in Version(version).parts), version, machine)


# --- the matrix -----------------------------------------------------------------------------------------------------


def _pythons(wheels: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the Pythons that the wheels are made for: `3.11` of `cp311`."""
    tags = {tag for row in wheels for tag in str(row["python_tag"]).split(".")}
    matches = filter(None, (_CPYTHON.fullmatch(tag) for tag in tags))
    # As versions: as texts, 3.10 would stand before 3.9.
    return sorted((f"{match[1]}.{match[2]}" for match in matches), key=Version)


def _wheel(row: Mapping[str, Any], pythons: Iterable[str]) -> _Wheel:
    tags = str(row["python_tag"]), str(row["abi_tag"])
    fits = tuple(python for python in pythons if runs_on_python(*tags, python))
    rows = [CoverageRow.from_document(answer) for answer in row["coverage"]]
    # A wheel for any Python has a column of its own where no other wheel names a Python.
    return _Wheel(row, fits or (tags[0],), {(answer.accelerator, answer.target): answer for answer in rows})


def _section(version: str, machine: str, every: Sequence[_Wheel]) -> dict[str, object]:
    wheels = [wheel for wheel in every if (wheel.row["tensorflow"], wheel.row["machine"]) == (version, machine)]
    pythons = list(dict.fromkeys(python for wheel in wheels for python in wheel.pythons))
    pythons.sort(key=lambda python: (Version(python).parts, python))
    rows = {key: row for wheel in wheels for key, row in wheel.coverage.items()}
    groups = [
        {"name": name, "rows": [_row(row, pythons, wheels) for row in members]}
        for name, members in itertools.groupby(rows.values(), key=lambda row: row.architecture)
    ]
    cpu = [_cpu(python, [wheel for wheel in wheels if python in wheel.pythons]) for python in pythons]
    return {
        "title": f"TensorFlow {version}",
        "machine": machine,
        "pythons": pythons,
        "groups": groups,
        "cpu": cpu,
        "key": f"tf{version}-{machine}",
    }


def _row(row: CoverageRow, pythons: Iterable[str], wheels: Sequence[_Wheel]) -> dict[str, object]:
    cells = [_cell(row, python, [wheel for wheel in wheels if python in wheel.pythons]) for python in pythons]
    return {"target": row.target, "name": row.name, "cells": cells}


def _cell(row: CoverageRow, python: str, wheels: Sequence[_Wheel]) -> CoverageCell:
    """Return the cell of the best wheel: the fastest way to run, then the fewest limits, then the first name."""
    key = row.accelerator, row.target
    ranked = sorted(
        (_BEST_FIRST.index(answer.runs), len(answer.limits), str(wheel.row["file"]), answer)
        for wheel in wheels
        if (answer := wheel.coverage.get(key)) and answer.runs
    )
    where = f"{row.target}, Python {python}"
    if not ranked:
        none = WAYS["no"] if wheels else _NO_WHEEL
        reason = "no wheel has code for it" if wheels else "no wheel"
        return CoverageCell(way=none, python=python, target=row.target, title=f"{where}: {reason}")
    _, limits, file, best = ranked[0]
    verdict = f"{where}: {WORDS[best.runs or 'no']} by {file}: {best.reason}"
    title = "; limit: ".join((verdict, *best.limits))
    return CoverageCell(way=WAYS[best.runs or "no"], python=python, target=row.target, limits=limits, title=title)


def _cpu(python: str, wheels: Sequence[_Wheel]) -> CoverageCell:
    files = ", ".join(str(wheel.row["file"]) for wheel in wheels if wheel.row["accelerator"] is None)
    title = f"CPU, Python {python}: {files or 'no wheel without GPU code'}"
    return CoverageCell(way=_CPU if files else _NO_WHEEL, python=python, target="CPU", title=title)


# --- in words -------------------------------------------------------------------------------------------------------


def _wheel_row(wheel: _Wheel) -> dict[str, object]:
    row = wheel.row
    return {
        "file": row["file"],
        "link": quoted(str(row["file"])),
        "size": console.size(int(row["size"])),
        "runs": _runs(wheel.coverage.values()),
        "limits": limits_of(wheel.coverage.values()),
        "nothing": "No GPU that is known runs it." if row["accelerator"] else "For the CPU: it has no GPU code.",
    }


def _runs(rows: Iterable[CoverageRow]) -> list[tuple[Way, str]]:
    """Return the ways in which a wheel runs, best first, with the targets that run it so."""
    targets: dict[str, list[str]] = {kind: [] for kind in WORDS}
    for row in rows:
        targets[row.runs or "no"].append(row.target)
    return [(WAYS[kind], ", ".join(names)) for kind, names in targets.items() if names]
