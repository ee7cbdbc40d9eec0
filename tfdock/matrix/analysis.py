"""Analyse a matrix: make the image and the downloads of each cell anew, and run `bazel build --nobuild`.

Nothing is compiled, so that changes upstream are found in minutes. The wheelhouse stays as it is.

    <state>/analysis/.tfdock/<build id>/…/<run>.log    what the last analysis of a cell said
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tfdock import events
from tfdock.bazel import output
from tfdock.builder import build
from tfdock.builder.build_run import BuildRun, ImageResult
from tfdock.builder.compile_phase import FetchResult
from tfdock.builder.session import BuildRequest, BuildSession
from tfdock.errors import Interrupted, Problem, TfdockError, TimeLimit, as_document
from tfdock.host.files import make_folder
from tfdock.host.untrusted_folders import remove_folder
from tfdock.matrix.planned_matrix import Cell, Cells
from tfdock.plan.build_plan import BuildPlan
from tfdock.resolve.naming import source_identity
from tfdock.run import journal
from tfdock.wheelhouse.store import Wheelhouse, load_record

Outcome = Literal["ok", "drifted", "failed", "interrupted"]

NAME = journal.ANALYSIS
_MOST = 50
"""Errors of a phase that are kept."""
# A code that is not here is a fault of this machine, such as a full disk: nobody upstream has to be told.
_UPSTREAM = {
    "pin-moved",
    "source-unreachable",
    "image-not-found",
    "image-step-failed",
    "image-incomplete",
    "download-failed",
    "fetch-failed",
}
"""Codes that tell of what others have published: a source, an image, an archive, a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What became of a cell. `error` is the line of Bazel's, or of the image's step, that reports it.

    `drifted` tells of what is no longer as the cell has it, `failed` of this machine. `notes` say what is another
    than in the last build that the wheelhouse knows of. `source` is the `ref` that was taken, and the commit or
    sha256 that it was `found` to be; empty for a local checkout.
    """

    cell: Cell
    outcome: Outcome
    problems: tuple[Problem, ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()
    source: Mapping[str, str | None] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    log: Path | None = None
    exit_code: int = 0


def analysed(cells: Cells, session: BuildSession, ended: Callable[[Analysis], None]) -> tuple[Analysis, ...]:
    """Analyse every wanted cell, even if one fails; `ended` is called with each result.

    Cells of one source share their image's layers and their downloads. Nothing that was there before is used. Raises
    EngineError if there is no engine at the start.
    """
    house = session.wheelhouse
    # Logs lie apart, so that an analysis never replaces the log of a finished wheel.
    own = replace(session.settings, wheelhouse=session.settings.state_dir / NAME)
    lines = _ErrorLines(session.listen)
    analyst = _Analyst(cells, replace(session, settings=own, listen=lines), lines, house)
    by_source: dict[Path, list[Cell]] = {}
    for cell in cells.wanted:
        # Sources first: only one source's downloads are on the disk at a time.
        by_source.setdefault(analyst.repository(cells.prepared(cell).plan), []).append(cell)
    analyses: dict[str, Analysis] = {}
    with analyst.download_folder():
        for repository, sharing in by_source.items():
            for cell in sharing:
                analyses[cell.name] = analyst.of(cell, repository)
                ended(analyses[cell.name])
            remove_folder(repository)  # gigabytes that no other source needs
    return tuple(analyses[cell.name] for cell in cells.wanted)


@dataclass
class _ErrorLines:
    """Pass on the events of a build, and keep the lines of the current phase that report errors."""

    listen: events.Listener
    errors: list[str] = field(default_factory=list)

    def __call__(self, event: events.Event) -> None:
        """Take an event."""
        # The line that is looked for is of the phase that failed.
        if isinstance(event, events.PhaseStarted):
            self.errors.clear()
        elif isinstance(event, events.Line) and len(self.errors) < _MOST and output.is_error(event.text):
            self.errors.append(event.text)
        self.listen(event)


@dataclass
class _Analyst:
    """Analyses cells in one session, whose logs lie apart from the wheelhouse."""

    cells: Cells
    session: BuildSession
    lines: _ErrorLines
    house: Wheelhouse
    run: str = field(default_factory=journal.new_run_id)
    """The name of the analysis: everything is fetched again once for all its cells."""

    @contextmanager
    def download_folder(self) -> Iterator[None]:
        """Make a folder for all downloads. It is removed at the end, or by the next run, through the journal."""
        session, folder = self.session, self._folder
        staging, engine = str(session.wheelhouse.staging(self.run)), session.engine_info.id
        entry = journal.RunEntry(run=self.run, build_id=NAME, staging=staging, output=str(folder), engine=engine)
        with session.cache.in_use(), journal.running(session.settings.state_dir, entry):
            try:
                make_folder(self._folder)
                yield
            finally:
                # The first error is the one to report; what cannot be cleaned now, the journal keeps for later.
                with suppress(TfdockError, OSError):
                    journal.clean_own_run(session.settings.state_dir, entry, session.engine)

    @property
    def _folder(self) -> Path:
        return self.session.cache.output(self.run)

    def repository(self, plan: BuildPlan) -> Path:
        """Return the folder of a source's downloads.

        Bazel knows downloads by their sums: what one source still finds would hide that another source cannot.
        """
        source = plan.resolution.source
        # The patches decide what the rules download, too.
        total = hashlib.sha256(source_identity(source))
        for patch in source.patches.values():
            total.update(hashlib.sha256(patch).digest())
        return self._folder / f"repository-{total.hexdigest()[:16]}"

    def of(self, cell: Cell, repository: Path) -> Analysis:
        """Analyse one cell, with the downloads that earlier cells of its source have made."""
        log: Path | None = None
        self.lines.errors.clear()
        try:
            self.session.stop.check()
            # The same word for all cells: the first one makes the image anew, and the others share its layers.
            request = BuildRequest(prepared=self.cells.prepared(cell), repository=repository, fresh=self.run)
            log = self.session.log_path(request).path
            with build.fetched_build(self.session, request) as (run, fetched):
                analysis = self._success(cell, run, fetched)
        except TfdockError as error:
            log = log if log and log.is_file() else None  # none was begun where another one is at this cell
            analysis = _failure(cell, error, output.first_error(self.lines.errors), log)
        # Analyses repeat on a schedule, and only the last log of a cell is of interest.
        if log:
            _keep_one_log(log)
        return analysis

    def _success(self, cell: Cell, run: BuildRun, fetched: FetchResult) -> Analysis:
        image = fetched.image
        return Analysis(
            cell=cell,
            outcome="ok",
            notes=tuple(self._notes(cell, run, image)),
            source={"ref": image.source_ref, "found": image.source_commit} if image.source_commit else {},
            seconds=dict(fetched.seconds),
            log=run.log,
        )

    def _notes(self, cell: Cell, run: BuildRun, image: ImageResult) -> Iterator[str]:
        refs = run.plan.source_refs
        if image.source_ref != refs[0]:
            yield f"the source {refs[0]} does not work: {image.source_ref} was taken"
        before = self._last_record(cell)
        then = before.get("source")
        # Another ref has another commit by itself, which is no news.
        earlier = then.get("found") if isinstance(then, Mapping) and then.get("ref") == image.source_ref else None
        if earlier and earlier != image.source_commit:
            source = image.source_ref or "the source"
            yield f"{source} is {image.source_commit}, and was {earlier} when the wheel was built"
        if before.get("base_digest") and image.base_digest and before["base_digest"] != image.base_digest:
            base = run.plan.resolution.base
            yield f"{base} is {image.base_digest}, and was {before['base_digest']} when the wheel was built"

    def _last_record(self, cell: Cell) -> Mapping[str, Any]:
        """Return the record of the cell's last build; empty if there was none."""
        records = [record for file in self.house.record_files(cell.name) if (record := load_record(file))]
        # `str`, because a record may be damaged. ISO 8601 times of one zone sort as texts.
        return max(records, key=lambda record: str(record.get("finished")), default={})


def _keep_one_log(log: Path) -> None:
    for path in log.parent.parent.glob("*/*.log"):
        if path != log:
            path.unlink(missing_ok=True)


def analysis_row(analysis: Analysis) -> dict[str, Any]:
    """Return the row of a cell in `tfdock.matrix-analysis/1`."""
    return {
        "build_id": analysis.cell.name,
        "fields": analysis.cell.fields,
        "runner": list(analysis.cell.runner),
        "status": analysis.outcome,
        "problems": [as_document(problem) for problem in analysis.problems],
        "error": analysis.error or None,
        "notes": list(analysis.notes),
        "source": dict(analysis.source) or None,
        "seconds": dict(analysis.seconds),
        "log": str(analysis.log) if analysis.log else None,
    }


def _failure(cell: Cell, error: TfdockError, line: str, log: Path | None) -> Analysis:
    if isinstance(error, Interrupted):
        outcome: Outcome = "interrupted"
    else:
        outcome = "drifted" if error.problems[0].code in _UPSTREAM else "failed"
    problems = error.problems
    if isinstance(error, Interrupted | TimeLimit):
        # Nothing is kept that another analysis could go on from.
        fix = "run it again, with more time or for fewer cells: `--only`, `--smoke`"
        problems = tuple(replace(problem, fixes=(fix,)) for problem in problems)
    return Analysis(
        cell=cell,
        outcome=outcome,
        problems=problems,
        # Bazel's own line names the target or archive. For a fault of this machine it would mislead.
        error=line if outcome == "drifted" else "",
        log=log,
        exit_code=int(error.exit_code),
    )
