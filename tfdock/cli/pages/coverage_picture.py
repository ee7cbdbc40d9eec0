"""Compute the picture of a wheel's coverage of GPUs: where each mark stands. The template draws the marks.

The axis holds the targets in order, grouped by generation. It is horizontal on wide screens and vertical on narrow
ones. Beside it runs a lane for each kind of code, and the result: how each target runs the wheel. Lengths are in
units of the drawing, one pixel each where there is room.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tfdock.cli import console
from tfdock.cli.pages.coverage_row import WAYS, CoverageRow, Way
from tfdock.gpu.verdict import Verdict, runs, runs_gfx
from tfdock.types import Capability

Shape = Literal["square", "diamond"]

_LEFT = 84.0
"""Room for the lanes' names."""
_COLUMN = 34.0
_GAP = 8.0
"""Between generations."""
_ARROW = 16.0
"""Room for the tips of threads that go on."""
_WIDEST = 34
"""Columns. Of more the letters would become too small: then the picture stands on every screen."""
_TOP = 20.0
_HEAD = 26.0
_LINE = 30.0
_LETTER = 6.7
"""The width of a letter in the widest font that a browser is likely to take."""
_GROUP = 44
"""Letters of a generation's name for which there is room in it."""
_NAME = 20
"""Letters of a GPU's name for which there is room beside the standing picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMark:
    """Code for a target (`own`; `lettered` where it is only for that GPU or its family), or code that reaches it."""

    kind: Literal["own", "lettered", "reached"]
    title: str
    letters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One kind of code along the axis: a mark or None per column, and the threads between them.

    A thread leads from the column of a mark to the last that its code serves, or to None: on to GPUs to come.
    """

    name: str
    shape: Shape
    legend: str
    marks: tuple[CodeMark | None, ...]
    threads: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A target, and its centre on the axis that lies (`x`) and on the one that stands (`y`)."""

    x: float
    y: float
    label: str
    name: str
    row: CoverageRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Neighbours of one generation; `lines` is its name where it stands above them."""

    name: str
    lines: tuple[str, ...]
    x: float
    width: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The picture of one family of targets; the axis ends at `end_x` or `end_y`.

    `letters` are the letters that the legend explains.
    """

    key: str
    axis: str
    summary: str
    end_x: float
    end_y: float
    groups: tuple[Group, ...]
    columns: tuple[Column, ...]
    lanes: tuple[Lane, ...]
    letters: tuple[tuple[str, str], ...]

    @property
    def width(self) -> float:
        """The width of the horizontal picture, with room for the tips of open threads."""
        return self.end_x + _ARROW

    @property
    def height(self) -> float:
        """The height of the vertical picture."""
        return self.end_y + _ARROW

    @property
    def lies(self) -> bool:
        """Whether the picture can be horizontal."""
        return len(self.columns) <= _WIDEST

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways to run that occur in the picture, best first."""
        return tuple(way for way in WAYS.values() if any(column.row.way is way for column in self.columns))

    @property
    def reaches(self) -> bool:
        """Whether code serves a target that it is not made for."""
        return any(lane.threads for lane in self.lanes)

    @property
    def limited(self) -> bool:
        """Whether a target has limits."""
        return any(column.row.limits for column in self.columns)


def pictures(rows: Iterable[CoverageRow], code: Mapping[str, Sequence[str]]) -> Iterator[Picture]:
    """Yield a picture for compute capabilities, and one for each family of other targets.

    `code` are the targets of the wheel's own code: `sass` (`sm_86`), `ptx` (`compute_90`), `amdgpu` (`gfx90a`).
    """
    families: dict[str, dict[str, CoverageRow]] = {}
    for row in rows:
        family = "" if _read(Capability.of_gpu, row.target) else row.accelerator or "other"
        families.setdefault(family, {}).setdefault(row.target, row)
    for number, (family, served) in enumerate(families.items()):
        targets, lanes = _others(served, code) if family else _capabilities(served, code)
        yield _laid_out(f"picture-{number}", "target" if family else "capability", targets, lanes)


# --- what there is ------------------------------------------------------------------------------------------------


_SASS, _PTX = "SASS: machine code for this GPU", "PTX: text that the driver can compile for this GPU"


def _capabilities(
    served: Mapping[str, CoverageRow], code: Mapping[str, Sequence[str]]
) -> tuple[list[CoverageRow], tuple[Lane, ...]]:
    """Return the picture of the targets in the order of their numbers, with all that the wheel has code for."""
    sass, ptx = _images(code.get("sass") or (), "sm_"), _images(code.get("ptx") or (), "compute_")
    asked = [Capability.of_gpu(target) for target in served]
    # Code for a target that nobody asked about has a column too.
    gpus = sorted({*asked, *(Capability(image.major, image.minor) for image in (*sass, *ptx))})
    embedded = {target for target, row in served.items() if row.embedded}
    machine_code, texts = list(map(str, sass)), list(map(str, ptx))
    return [served.get(gpu.dotted) or CoverageRow(target=gpu.dotted) for gpu in gpus], (
        _lane("SASS", _SASS, gpus, sass, lambda gpu: runs(gpu, machine_code, embedded=embedded)),
        _lane("PTX", _PTX, gpus, ptx, lambda gpu: runs(gpu, (), texts, embedded=embedded)),
    )


def _images(targets: Iterable[str], prefix: str) -> list[Capability]:
    """Return those that can be read, in order."""
    images = (_read(Capability.parse, target) for target in targets if target.startswith(prefix))
    return sorted({image for image in images if image})


def _read(read: Callable[[str], Capability], text: str) -> Capability | None:
    try:
        return read(text)
    except ValueError:
        return None


def _lane(
    name: str,
    legend: str,
    gpus: Sequence[Capability],
    images: Sequence[Capability],
    judge: Callable[[Capability], Verdict],
) -> Lane:
    marks, last = [], {}
    for index, gpu in enumerate(gpus):
        own = [image for image in images if (image.major, image.minor) == (gpu.major, gpu.minor)]
        verdict = judge(gpu)
        marks.append(_own(gpu, own) if own else _reached(gpu, verdict))
        if verdict.by and not own:
            last[Capability.parse(verdict.by)] = index
    columns = {(gpu.major, gpu.minor): index for index, gpu in enumerate(gpus)}
    threads: list[tuple[int, int | None]] = [(columns[by.major, by.minor], index) for by, index in last.items()]
    # PTX with a letter is for one GPU or its family, and not for all GPUs to come.
    onward = [columns[image.major, image.minor] for image in images if image.ptx and not image.suffix]
    if onward:
        # The newest alone: GPUs to come take no other.
        threads = [*(thread for thread in threads if thread[0] != onward[-1]), (onward[-1], None)]
    shape: Shape = "square" if name == "SASS" else "diamond"
    return Lane(name=name, shape=shape, legend=legend, marks=tuple(marks), threads=tuple(threads))


def _own(gpu: Capability, images: Sequence[Capability]) -> CodeMark:
    letters = "".join(image.suffix for image in images)
    lettered = all(image.suffix for image in images)
    return CodeMark(
        kind="lettered" if lettered else "own",
        title=f"{gpu.dotted}: the wheel has {' and '.join(map(str, images))}",
        letters=letters if lettered or not letters else f"+{letters}",
    )


def _reached(gpu: Capability, verdict: Verdict) -> CodeMark | None:
    return CodeMark(kind="reached", title=f"{gpu.dotted}: {verdict.by} serves it") if verdict.by else None


def _others(
    served: Mapping[str, CoverageRow], code: Mapping[str, Sequence[str]]
) -> tuple[list[CoverageRow], tuple[Lane, ...]]:
    """Return the picture of the targets in the order of the request. Code for one target runs on no other."""
    objects = code.get("amdgpu") or ()
    marks = tuple(_object(target, runs_gfx(target, objects)) for target in served)
    lane = Lane(name="code", shape="square", legend="machine code for this GPU", marks=marks)
    return list(served.values()), (lane,)


def _object(target: str, verdict: Verdict) -> CodeMark | None:
    if not verdict.by:
        return None
    letters = "±" if ":" in verdict.by else ""
    return CodeMark(kind="own", title=f"{target}: the wheel has {verdict.by}", letters=letters)


# --- where it stands ----------------------------------------------------------------------------------------------


def _laid_out(key: str, axis: str, targets: Sequence[CoverageRow], lanes: Sequence[Lane]) -> Picture:
    columns: list[Column] = []
    groups: list[Group] = []
    x, y = _LEFT, _TOP
    for name, together in itertools.groupby(targets, key=lambda row: row.architecture):
        members = list(together)
        width = _COLUMN * len(members)
        groups.append(Group(name=_cut(name, _GROUP), lines=_lines(name, width + _GAP), x=x, width=width, y=y))
        for index, row in enumerate(members):
            columns.append(
                Column(
                    x=x + _COLUMN * (index + 0.5),
                    y=y + _HEAD + _LINE * (index + 0.5),
                    # A column has room for five letters.
                    label=_cut(row.target.removeprefix("gfx"), 5),
                    name=_cut(row.name, _NAME) if row.name != row.target else "",
                    row=row,
                )
            )
        x, y = x + width + _GAP, y + _HEAD + _LINE * len(members) + _GAP
    return Picture(
        key=key,
        axis=axis,
        summary=_summary(axis, targets),
        end_x=x,
        end_y=y,
        groups=tuple(groups),
        columns=tuple(columns),
        lanes=tuple(lanes),
        letters=tuple(_letters(targets, lanes)),
    )


def _summary(axis: str, targets: Collection[CoverageRow]) -> str:
    """Return how many targets run in which way, in a sentence."""
    counted = Counter(row.way.kind for row in targets)
    akin, natively = counted["native-same-major"], counted["native"] + counted["native-same-major"]
    kind = {"capability": "compute capabilities", "target": "targets"}[axis]
    counts = [
        f"natively on {natively}{f' ({akin} by code of the same major version)' if akin else ''}",
        f"by JIT from PTX on {counted['ptx-jit']}" if counted["ptx-jit"] else "",
        f"not on {counted['no']}" if counted["no"] else "",
        f"and {counted['unknown']} were not judged" if counted["unknown"] else "",
    ]
    return f"Of {len(targets)} known {kind} the wheel runs {', '.join(filter(None, counts))}."


_LETTERS = {
    "a": "for exactly this GPU, with all that only it can do",
    "f": "for the family of this GPU",
    "+": "beside the general code",
    "±": "for one setting of the GPU, such as xnack",
    "e": "embedded (Jetson, Drive): only its own machine code runs there, and that nowhere else",
}


def _letters(targets: Iterable[CoverageRow], lanes: Iterable[Lane]) -> list[tuple[str, str]]:
    """Return the letters that occur, with what they stand for."""
    used = {letter for lane in lanes for mark in lane.marks if mark for letter in mark.letters}
    if any(target.embedded for target in targets):
        used.add("e")
    return [(letter, meaning) for letter, meaning in _LETTERS.items() if letter in used]


def _cut(text: str, letters: int) -> str:
    return text if console.columns_of(text) <= letters else f"{text[: letters - 1]}…"


def _lines(name: str, width: float) -> tuple[str, ...]:
    """Return a name in at most two lines that fit."""
    name, letters = name[:_GROUP], int(width / _LETTER)
    if len(name) <= letters or " " not in name:
        return (_cut(name, letters),)
    words = name.split(" ")
    halves = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words))]
    first, second = min(halves, key=lambda two: max(map(len, two)))
    return _cut(first, letters), _cut(second, letters)
