"""Read a matrix and plan each cell: its build id and expected time, or why it cannot be built."""

from __future__ import annotations

import fnmatch
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tfdock.errors import Fix, Incompatible, Problem, ProfileError
from tfdock.host.project_files import Project
from tfdock.matrix import matrix_file as matrices
from tfdock.matrix.cells import CellCombination, cover, expand, idle, misspelt
from tfdock.matrix.matrix_file import Matrix
from tfdock.plan.estimate import expectation
from tfdock.plan.prepare import (
    PreparedBuild,
    Preparer,
    ResolvedProfile,
    WrittenProfile,
    extended_texts,
    named_text,
    placed,
    read_local,
    read_profile_text,
    unreadable,
)
from tfdock.plan.render import toolchain_inputs
from tfdock.plan.trust_domain import RELEASE
from tfdock.profile import profile as profiles
from tfdock.profile.profile import Profile, TensorFlow
from tfdock.profile.yaml_nodes import Node
from tfdock.resolve.question import LocalSource
from tfdock.resolve.resolution import Resolution
from tfdock.types import BuildId
from tfdock.wheel.identity import canonical_name

Status = Literal["missing", "here", "registry", "impossible", "excluded"]

_MOST_TOLD = 20  #: The most problems of a file that are shown: a wrong value is a problem of each cell that has it.
#: Codes of problems with names that are in no row of the knowledge base.
_UNKNOWN_NAMES = ("accelerator-unknown", "gpu-unknown", "optimize-unknown", "release-unknown", "version-unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One wheel of a matrix.

    An excluded cell has neither name nor problems. An impossible cell has no name; its `problems` say why it
    cannot be built. `seconds` is the expected time of its build, None if unknown. `group` names the release and the
    toolchain: cells of one group share image layers and a disk cache. `wheel` has the parts of the wheel's file name.
    `domain` is the trust domain, and `evidence` is the grade of such builds.
    """

    combination: CellCombination
    status: Status
    build_id: BuildId | None = None
    fingerprint: str | None = None
    seconds: float | None = None
    group: str = ""
    wheel: tuple[str, ...] = ()
    domain: str = RELEASE
    problems: tuple[Problem, ...] = ()
    evidence: str = ""
    warnings: tuple[Problem, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the cell sets over the base, by dotted name, as plain data."""
        return {name: node.value for name, node in self.combination.fields.items()}

    @property
    def profile(self) -> dict[str, Any]:
        """The whole profile, as plain data."""
        profile = self.combination.document.value
        assert isinstance(profile, dict)
        return profile

    @property
    def runner(self) -> tuple[str, ...]:
        """The labels of the machine that builds the cell."""
        return self.combination.runner

    @property
    def code(self) -> str | None:
        """The code of `reason`; None for a cell that can be built."""
        code = self.problems[0].code if self.problems else "matrix-excluded"
        return None if self.wanted else code

    @property
    def reason(self) -> str:
        """Why the cell is not built: the reason of the rule that excludes it, or the message of its first problem."""
        rule = self.combination.excluded
        return rule.reason if rule else next((problem.message for problem in self.problems), "")

    @property
    def place(self) -> tuple[str, int, int]:
        """The file, line and column of the value or rule that prevents the build of the cell."""
        rule = self.combination.excluded
        node = rule.place if rule else self.combination.place
        problem = self.problems[0] if self.problems else Problem("", "")
        return (problem.file or node.file, problem.line or node.line, problem.column or node.column)

    @property
    def name(self) -> BuildId:
        """The build id of a cell that is `wanted`."""
        assert self.build_id is not None
        return self.build_id

    @property
    def wanted(self) -> bool:
        """Whether the cell can be built and is not excluded."""
        return self.build_id is not None


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A matrix with all its cells, also excluded and impossible cells, in the order written.

    `warnings` are about the matrix itself. Cells have no plans, which would take gigabytes: `prepared` makes a plan.
    """

    file: str
    matrix: Matrix
    cells: tuple[Cell, ...]
    warnings: tuple[Problem, ...]
    planner: _Planner = field(repr=False)

    @property
    def wanted(self) -> tuple[Cell, ...]:
        """The cells that can be built and are not excluded."""
        return tuple(cell for cell in self.cells if cell.wanted)

    def only(self, patterns: Sequence[str]) -> Cells:
        """Return the cells whose build id matches one of the patterns (`*-py3.11-*`); all cells without patterns."""
        if not patterns:
            return self
        chosen = {name for pattern in patterns for name in self.like(pattern)}
        return replace(self, cells=tuple(cell for cell in self.wanted if cell.name in chosen))

    def like(self, pattern: str) -> Collection[str]:
        """Return the build ids that match a pattern."""
        # Fast path: a job may name thousands of cells, each by its whole name.
        return (pattern,) if pattern in self._names else fnmatch.filter(self._names, pattern)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(cell.name for cell in self.wanted)

    def where(self, keep: Callable[[Cell], bool]) -> Cells:
        """Return the wanted cells for which `keep` is true; impossible and excluded cells are kept."""
        return replace(self, cells=tuple(cell for cell in self.cells if not cell.wanted or keep(cell)))

    def smoke(self) -> Cells:
        """Return a few cells that together have every value of every field; see `cover`."""
        wanted = self.wanted
        # Prefer cells of known cost: a cell of unknown cost may take hours.
        costs = [math.inf if cell.seconds is None else cell.seconds for cell in wanted]
        chosen = {wanted[place].name for place in cover([cell.combination.values for cell in wanted], costs)}
        return self.where(lambda cell: cell.name in chosen)

    def prepared(self, cell: Cell) -> PreparedBuild:
        """Return the plan of a `wanted` cell. The plan is the same each time."""
        return self.planner.preparer.plan_resolved(self.planner.resolved(cell.combination))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMatrix:
    """A matrix as it was read: `text` is its text, `project` decides which files it may use.

    `others` are the texts of its base and of the profiles that the base extends. `base_folder` is the folder of the
    base profile: files that the base names are relative to it.
    """

    matrix: Matrix
    base_folder: Path
    project: Project
    text: str
    others: Mapping[str, str]


def read(file: str | Path, allowed: Iterable[Path] = ()) -> WrittenMatrix:
    """Read a matrix, its base profile and the profiles that the base extends.

    All files must be in the project of the matrix or in an `allowed` folder. Raises ProfileError.
    """
    path = Path(file)
    if not path.is_file():
        message = f"`{file}` is a folder, not a matrix" if path.is_dir() else f"the matrix `{file}` does not exist"
        fix = 'give a file; or write profiles/matrix.yaml: `{schema: 1, base: my.yaml, axes: {python: ["3.11"]}}`'
        raise ProfileError.of("matrix-not-found", message, fix, file=str(file))
    project = Project.of(path, allowed)
    text = read_profile_text(path, project)
    base = matrices.base_of(text, str(path))
    others: dict[str, str] = {}
    target = path
    if base is not None:
        target = path.parent / base.raw
        written = named_text(base, "base", path, project)
        others = {**extended_texts(written, target, project), base.raw: written}
    matrix = matrices.read(text, str(path), others, str(target))
    return WrittenMatrix(matrix=matrix, base_folder=target.parent, project=project, text=text, others=others)


def cells(
    file: str | Path,
    preparer: Preparer,
    records: Iterable[Mapping[str, Any]] = (),
    *,
    check: Callable[[], None] = lambda: None,
) -> Cells:
    """Read, expand and plan a matrix. Wheels are not looked up: each cell that can be built is `missing`.

    Costs are estimated from `records`, the build records (`Wheelhouse.records`). `check` is called for each
    cell and raises to stop. Raises ProfileError if the matrix is malformed, two cells have one build id
    (`build-id-twice`), or their wheels have one file name (`wheel-name-twice`).
    """
    written = read(file, preparer.allowed)
    matrix = written.matrix
    combinations = expand(matrix)
    planner = _Planner(preparer, written, _by_release(records))
    planned: list[Cell] = []
    malformed: list[Problem] = []
    # Continue after a malformed cell, so that all mistakes in a matrix are reported at once.
    for combination in combinations:
        check()
        try:
            planned.append(planner.cell(combination))
        except ProfileError as error:
            malformed += error.problems
    # To find misspelt rules, merge each rule over the valid profile of any cell.
    if planned and not malformed:
        malformed += misspelt(matrix, planned[0].combination)
    # In this order: names can be compared only if all cells could be planned.
    _refuse(malformed)
    _refuse(_name_clashes(planned, matrix))
    _refuse_impossible(planned, matrix)
    warnings = idle(matrix, combinations)
    return Cells(file=matrix.file, matrix=matrix, cells=tuple(planned), warnings=warnings, planner=planner)


def _refuse(problems: Iterable[Problem]) -> None:
    """Raise ProfileError with the first problems, if there are any. A problem of several cells is raised once."""
    distinct = _distinct(problems)
    if distinct:
        raise ProfileError(*distinct)


def _refuse_impossible(cells: Sequence[Cell], matrix: Matrix) -> None:
    """Raise Incompatible with the reasons, if some cells are impossible and no cell can be built."""
    counts = Counter("possible" if cell.wanted else cell.status for cell in cells)
    if counts["possible"] or not counts["impossible"]:
        return
    others = f", {counts['excluded']} excluded" if counts["excluded"] else ""
    message = f"no cell can be built: {counts['impossible']} impossible{others}"
    # Otherwise a pipeline that builds nothing would succeed.
    fix = "correct the matrix as the reasons below say, or name a folder with your own knowledge: `--knowledge DIR`"
    problem = matrix.document.problem(matrix.file, "matrix-impossible", message, fix)
    raise Incompatible(problem, *_distinct(problem for cell in cells for problem in cell.problems))


def _distinct(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first problems, each once."""
    distinct: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        # Compare by place: a wrong value of an axis is wrong in each cell that has it.
        distinct.setdefault((problem.code, problem.where), problem)
    return list(distinct.values())[:_MOST_TOLD]


#: For each path in a source: its field, the path as written, and the folder that the path is relative to.
_SourceKey = tuple[tuple[str, str, Path], ...]


@dataclass
class _Planner:
    """Plans combinations. A source that many combinations share is read once."""

    preparer: Preparer
    written: WrittenMatrix
    records: Mapping[str, Collection[Mapping[str, Any]]]
    sources: dict[_SourceKey, tuple[LocalSource, Path | None]] = field(default_factory=dict)

    def cell(self, combination: CellCombination) -> Cell:
        """Plan a cell; raises ProfileError if its profile is malformed, or has an unknown name."""
        if combination.excluded:
            # Check the profile now: a mistake must not stay hidden until the exclusion is removed.
            profiles.checked(Profile, combination.document, self.written.matrix.file)
            return Cell(combination=combination, status="excluded")
        try:
            resolved = self.resolved(combination)
        except Incompatible as error:
            # An unknown name is a mistake: it is misspelt, or the knowledge base lacks its row.
            unknown = [problem for problem in error.problems if problem.code in _UNKNOWN_NAMES]
            if unknown:
                raise ProfileError(*unknown) from error
            return Cell(combination=combination, status="impossible", problems=error.problems)
        plan = self.preparer.plan_resolved(resolved).plan
        release = plan.build_id.partition("-")[0]
        expected = expectation(
            plan.resolution, plan.resources, plan.machine, self.records.get(release, ()), self.preparer.knowledge
        )
        return Cell(
            combination=combination,
            status="missing",
            build_id=plan.build_id,
            fingerprint=plan.fingerprint,
            seconds=round(expected.total, 1) if expected else None,
            group=f"{release}-{toolchain_inputs(plan.resolution)[:8]}",
            wheel=_file_of(plan.resolution),
            domain=plan.trust.name,
            evidence=plan.resolution.grade.value,
            warnings=(*plan.resolution.untested, *plan.resolution.warnings),
        )

    def resolved(self, combination: CellCombination) -> ResolvedProfile:
        """Resolve a cell. Raises ProfileError, and Incompatible without suggestions."""
        document, file = combination.document, self.written.matrix.file
        profile = profiles.checked(Profile, document, file)
        try:
            local, tree = self._local(profile.source, document)
        except ProfileError as error:
            raise ProfileError(*(placed(problem, document, file) for problem in error.problems)) from error
        written = WrittenProfile(
            file=file,
            text=self.written.text,
            extended=self.written.others,
            profile=profile,
            document=document,
            local=local,
            tree=tree,
        )
        # Suggestions try many changed profiles, which takes too long for each impossible cell.
        return self.preparer.resolve_written(written, suggest=False)

    def _local(self, source: TensorFlow, document: Node) -> tuple[LocalSource, Path | None]:
        """Read a source. A checkout is hashed once for all its cells."""
        file = self.written.matrix.file

        def folder(field: str) -> Path:
            in_matrix = document.at_field(field).file == file
            return Path(file).parent if in_matrix else self.written.base_folder

        paths = {"tensorflow.path": source.path}
        paths |= {f"tensorflow.patches[{place}]": name for place, name in enumerate(source.patches)}
        key = tuple((field, path, folder(field)) for field, path in paths.items() if path is not None)
        if key not in self.sources:
            try:
                self.sources[key] = read_local(source, folder, file, self.written.project)
            except OSError as error:
                raise unreadable(error, file) from error
        return self.sources[key]


def _by_release(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Collection[Mapping[str, Any]]]:
    """Return records by release, the first part of their build ids: only these records help to estimate a build."""
    by_release = defaultdict(list)
    for record in records:
        # Otherwise all records of a large wheelhouse would be searched for each cell.
        by_release[str(record.get("build_id")).partition("-")[0]].append(record)
    return by_release


def _file_of(resolution: Resolution) -> tuple[str, ...]:
    """Return the parts of a wheel's file name. Equal parts mean equal names."""
    # The machine is the last word of a build id.
    machine = resolution.build_id.rpartition("-")[2]
    local = resolution.local_version or ""
    return (canonical_name(resolution.wheel_name), str(resolution.version), local, resolution.python, machine)


# --- two cells of one name ------------------------------------------------------------------------------------------


def _name_clashes(cells: Iterable[Cell], matrix: Matrix) -> Iterator[Problem]:
    """Report each cell that has the build id or the file name of an earlier cell."""
    first: dict[object, Cell] = {}
    for cell in cells:
        # Two cells may have both in common. Report the build id then, because it says more.
        for name in (cell.build_id, cell.wheel) if cell.wanted else ():
            other = first.setdefault(name, cell)
            if other is not cell:
                yield _clash(other, cell, matrix)
                break


def _clash(first: Cell, second: Cell, matrix: Matrix) -> Problem:
    here, node = _difference(first.combination, second.combination)
    both = f"this cell and the cell of line {here.line}, column {here.column}"
    if first.build_id == second.build_id:
        code, message = "build-id-twice", f"two cells make the same wheel, {first.build_id}: {both}"
        why = "the cells differ only in values that a wheel's name does not show: one wheel would overwrite the other"
        fix: Fix = "keep one of them, or exclude one with a reason"
    else:
        code, message = "wheel-name-twice", f"{first.build_id} and {second.build_id} have the same file name: {both}"
        why = "a wheelhouse or an index cannot contain both files"
        fix = ("give one of them `wheel.local_version` under `overrides`", "exclude one with a reason")
    return node.problem(matrix.file, code, message, fix, why=why)


def _difference(first: CellCombination, second: CellCombination) -> tuple[Node, Node]:
    """Return the two values of the first field in which two cells differ, or else the places of the cells."""
    for name, node in second.fields.items():
        before = first.fields.get(name)
        if before is not None and matrices.same(before) != matrices.same(node):
            return before, node
    return first.place, second.place
