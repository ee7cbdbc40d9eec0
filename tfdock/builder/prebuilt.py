"""Before a build: the same build out of a registry, where one has it. A registry that is down is a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tfdock import events
from tfdock.errors import NetworkError, Problem, TimeLimit, VerificationFailed, one_of
from tfdock.host.supervise import until_stopped
from tfdock.images import lookup
from tfdock.images.image_pull import PulledImage, Pulling
from tfdock.images.stored_image import StoredImage
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.lock_file import LockFile

if TYPE_CHECKING:
    from tfdock.builder.build import Builder

_PHASE = "pull"


def pulled(builder: Builder, plan: BuildPlan, lock: LockFile | None) -> PulledImage | None:
    """The very build of a plan, in the wheelhouse, whose build id is held; None where no registry has it.

    Raises VerificationFailed for an image that is damaged or not what it says: whoever put it there wants it to be
    taken for this build, and hours of compiling would hide that.
    """
    refused = lookup.refusal(plan)
    if refused:
        problem = refused.problems[0]
        builder.listen(events.Notice(text=f"no registry is asked: {problem.message}"))
        return None
    asking = _Asking(builder, plan)
    return until_stopped(lambda: asking.first(lock), builder.stop, asking.tick)


class _Asking:
    """Asks one registry after another, in a thread of its own."""

    def __init__(self, builder: Builder, plan: BuildPlan) -> None:
        self._builder, self._plan = builder, plan
        self._limit = builder.limit_from_now(plan)

    def tick(self, silent: float) -> None:
        """Time passes."""
        self._builder.listen(events.Tick(silent=silent))

    def first(self, lock: LockFile | None) -> PulledImage | None:
        """What the first registry has that has it whole."""
        asked = lookup.ImageLookup(repositories=self._builder.settings.repositories, check=self._check)
        try:
            for image in asked.images(self._plan, lock, self._down):
                try:
                    return self._taken(image)
                except NetworkError as error:
                    self._down(error)
        except VerificationFailed as error:
            raise type(error)(*map(_or_build, error.problems)) from error
        return None

    def _taken(self, image: StoredImage) -> PulledImage:
        """Take it, as a phase of its own."""
        builder, build_id = self._builder, self._plan.build_id
        builder.listen(events.PhaseStarted(build_id=build_id, phase=_PHASE))
        started, ok = builder.clock(), False
        try:
            taking = Pulling(builder.wheelhouse, self._check, self._say)
            found = taking.taken(image, image.builds[0])
            ok = True
        finally:
            seconds = round(builder.clock() - started, 3)
            builder.listen(events.PhaseEnded(build_id=build_id, phase=_PHASE, seconds=seconds, ok=ok))
        return found

    def _say(self, text: str) -> None:
        self._builder.listen(events.Notice(text=text))

    def _down(self, error: NetworkError) -> None:
        self._say(f"{error.problems[0].message}; the build goes on without it")

    def _check(self) -> None:
        """Raise where the build is to end."""
        self._builder.stop.check()
        limit = self._limit
        if limit and self._builder.clock() > limit.deadline:
            message = f"the time limit of {limit.seconds} s was reached in phase {_PHASE}; what has arrived is kept"
            fix = "run the same command again to go on"
            raise TimeLimit(Problem(code="time-limit", message=message, fix=fix))


def _or_build(problem: Problem) -> Problem:
    """With the way around the registry."""
    fixes = [fix for fix in (*problem.fixes, "build it here, without registries: `tfdock build --no-pull`") if fix]
    return replace(problem, fix=one_of(fixes))
