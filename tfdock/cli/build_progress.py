"""Profiles on their way to wheels: planned together, built in turn or side by side, each told when it ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdock.cli import ci_log, console, diagnosis_text, summary_text
from tfdock.cli.app import preparer_for
from tfdock.errors import Incompatible, Interrupted, Problem, ProfileError, TfdockError, VerificationFailed

if TYPE_CHECKING:
    from tfdock.builder.build import Builder, BuildResult
    from tfdock.cli.progress import ProgressDisplay
    from tfdock.diagnose.diagnosis import Diagnosis
    from tfdock.events import Listener
    from tfdock.plan.prepare import Prepared

Result = dict[str, Any]
"""What became of a build: a row of `tfdock.build/1`, and its `exit_code`."""


def prepare_all(
    plan: Callable[[str], Prepared], names: list[str]
) -> tuple[list[Prepared], list[Result], dict[str, int]]:
    """Plan all profiles before anything starts; those refused become results at once.

    With them comes the place of each as it was given, by the name in its result: a file's, or what was refused.
    """
    prepared: list[Prepared] = []
    refused: list[Result] = []
    order: dict[str, int] = {}
    for place, name in enumerate(names):
        order.setdefault(name, place)
        try:
            prepared.append(plan(name))
            order.setdefault(prepared[-1].file, place)
        except TfdockError as error:
            refused.append(failed(name, None, "refused", error))
    ids: dict[str, str] = {}
    for one in prepared:
        other = ids.setdefault(one.plan.build_id, one.file)
        if other != one.file:
            raise ProfileError(
                Problem(
                    code="build-id-twice",
                    message=f"{other} and {one.file} have the same build id, {one.plan.build_id}",
                    fix="build one of them, or one after the other into another `--wheelhouse`",
                    file=one.file,
                )
            )
    return list({one.plan.build_id: one for one in prepared}.values()), refused, order


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """How builds are made: `builder_of` gives a builder that tells a listener, `at_once` is `auto` or a number.

    `expected` has the builds of a matrix, with the seconds that each may take: then there is a table of all.
    """

    builder_of: Callable[[Listener], Builder]
    progress: ProgressDisplay
    at_once: str
    force: bool
    expected: Mapping[str, float | None] | None = None

    def all(self, prepared: Sequence[Prepared]) -> list[Result]:
        """Build them; their results, in that order."""
        if self.at_once == "1" or len(prepared) < 2:
            return self._in_turn(prepared)
        return self._side_by_side(prepared)

    def _in_turn(self, prepared: Sequence[Prepared]) -> list[Result]:
        """Each has the machine, and a part of the log, for itself."""
        self._expect(1)
        builder = self.builder_of(self.progress)
        results = []
        for one in prepared:
            build_id = one.plan.build_id
            builder.listen = self.progress if self.expected is None else self.progress.of(build_id)
            with ci_log.here().fold(build_id):
                result = _build_one(builder, one, force=self.force)
            results.append(self._ended(result))
        return results

    def _side_by_side(self, prepared: Sequence[Prepared]) -> list[Result]:
        from tfdock.builder.parallel import Ledger, side_by_side
        from tfdock.plan.schedule import at_once

        plans = [one.plan for one in prepared]
        machine = plans[0].machine
        with suppress(TfdockError):  # without an engine each build says so itself
            machine = self.builder_of(self.progress).machine(plans[0])
        count = at_once(plans, machine, None if self.at_once == "auto" else int(self.at_once))
        ledger = Ledger(count, {plan.build_id for plan in plans})

        def build_one(place: int) -> Result:
            one = prepared[place]
            hears = self.progress.of(one.plan.build_id)
            builder = replace(self.builder_of(hears), allotted=ledger.allot, at_once=count)
            return self._ended(_build_one(builder, one, force=self.force))

        console.say(f"{len(plans)} builds, {count} at a time")
        self._expect(count)
        return side_by_side(plans, ledger, build_one)

    def _expect(self, count: int) -> None:
        if self.expected is not None:
            self.progress.expect(self.expected, count)

    def _ended(self, result: Result) -> Result:
        with _telling:
            tell_result(result, brief=self.expected is not None)
            self.progress.over(result["build_id"], result["status"])
        return result


def _build_one(builder: Builder, prepared: Prepared, *, force: bool) -> Result:
    builder.log = None
    try:
        builder.stop.check()
        return _built(prepared, _build_result(builder, prepared, force=force))
    except TfdockError as error:
        refused = "refused" if isinstance(error, Incompatible | VerificationFailed) else "failed"
        status = "interrupted" if isinstance(error, Interrupted) else refused
        result = failed(prepared.file, prepared.plan.build_id, status, error, builder.log)
        return result if status == "interrupted" else {**result, "diagnosis": _diagnosis(builder, prepared)}


def _diagnosis(builder: Builder, prepared: Prepared) -> Diagnosis | None:
    """What the log of a build that failed shows; None where it has none."""
    from tfdock.diagnose.diagnose_logs import context_of, of_run
    from tfdock.plan.profile_fixes import Context

    if builder.log is None:
        return None
    known = context_of(prepared.file, preparer_for(builder.settings)) or Context(knowledge=builder.knowledge)
    context = replace(known, resolution=prepared.plan.resolution, resources=prepared.plan.resources)
    return of_run(builder.log, builder.knowledge, context)


def _build_result(builder: Builder, prepared: Prepared, *, force: bool) -> BuildResult:
    """Up to date costs neither an engine nor its SDK."""
    done = None if force else builder.up_to_date(prepared.plan, prepared.lock)
    if done is None:
        from tfdock.builder.run_document import written

        builder.profile = written(prepared)
    return done or builder.build(prepared.plan, prepared.tree, force=force, lock=prepared.lock, given=prepared.given)


def _built(prepared: Prepared, result: BuildResult) -> Result:
    record = result.record
    wheels = zip(result.wheels, record["wheels"], strict=True)
    return {
        "build_id": prepared.plan.build_id,
        "profile": prepared.file,
        "status": result.status,
        "origin": result.origin or None,
        "problems": [],
        "wheels": [{"path": str(path), "sha256": one["sha256"], "size": one["size"]} for path, one in wheels],
        "record": str(result.record_path),
        "log": str(result.log_path) if result.log_path.is_file() else None,  # none came with what was pulled
        "seconds": record["seconds"],
        "cache": record.get("bazel"),
        "attempts": record["attempts"],
        "exit_code": 0,
    }


def failed(file: str, build_id: str | None, status: str, error: TfdockError, log: Path | None = None) -> Result:
    """The result of a build that ended with an error, or of a profile that was refused."""
    return {
        "build_id": build_id,
        "profile": file,
        "status": status,
        "origin": None,
        "problems": list(error.problems),
        "wheels": [],
        "record": None,
        "log": str(log) if log else None,
        "seconds": {},
        "cache": _counted(build_id, log),
        "attempts": 0,
        "exit_code": int(error.exit_code),
    }


def _counted(build_id: str | None, log: Path | None) -> dict[str, int] | None:
    """Bazel's figures of a build that compiled, and ended without a record."""
    from tfdock.builder.build_summary import figures_of

    figures = figures_of(log, build_id) if build_id and log else None
    return asdict(figures) if figures else None


_telling = threading.Lock()
"""What is said of a result is several lines, and several builds may end at once."""


def tell_result(result: Result, *, brief: bool = False) -> None:
    """Say what became of a build; where it is one of many, what was there before is no more than a line."""
    style = console.Style(sys.stderr)
    name = result["build_id"] or result["profile"]
    if result["problems"]:
        console.say(f"{style.bad(result['status'])}  {name}")
        console.show_problems(result["problems"])
        diagnosis_text.show(result.get("diagnosis"), result["log"])
        if result["status"] == "failed" and result["log"] and not diagnosis_text.is_told(result.get("diagnosis")):
            console.say("  to report it: `tfdock report --bundle` packs what an issue needs, and sends nothing")
        return
    total = sum(result["seconds"].values())
    took = f" in {console.duration(total)}" if result["status"] == "built" else ""
    cache = result["cache"]
    actions = f", {cache['hits']} actions from the cache, {cache['executed']} executed" if cache and took else ""
    came = f" from {result['origin']}" if result["origin"] else ""
    console.say(f"{style.good(result['status'])}  {name}{took}{actions}{came}")
    if brief and result["status"] == "up-to-date":
        return
    for title, text in summary_text.lines(cache) if cache and took else ():
        console.tell(f"  {title:<7}  {text}", indent=" " * 9)
    for wheel in result["wheels"]:
        console.say(f"  wheel    {wheel['path']}  {console.size(wheel['size'])}")
        console.say(f"  install  pip install '{wheel['path']}'")
    console.say(f"  record   {result['record']}")
