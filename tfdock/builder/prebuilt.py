"""Before a build: the same build out of a registry, where one has it. A registry that is down is a warning."""

from __future__ import annotations

from dataclasses import replace

from tfdock import events
from tfdock.builder.session import BuildSession
from tfdock.errors import NetworkError, Problem, TimeLimit, VerificationFailed
from tfdock.host.supervise import until_stopped
from tfdock.images import lookup
from tfdock.images.image_pull import ImagePull, PulledImage
from tfdock.images.lookup import StoredImage
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.lock_file import LockFile

_PHASE = "pull"


def pulled(session: BuildSession, plan: BuildPlan, lock: LockFile | None) -> PulledImage | None:
    """The very build of a plan, in the wheelhouse, whose build id is held; None where no registry has it.

    Raises VerificationFailed for an image that is damaged or not what it says: whoever put it there wants it to be
    taken for this build, and hours of compiling would hide that.
    """
    refused = lookup.native_refusal(plan)
    if refused:
        problem = refused.problems[0]
        session.tell(f"no registry is asked: {problem.message}")
        return None
    asking = _Asking(session, plan)
    return until_stopped(lambda: asking.first(lock), session.stop, asking.tick)


class _Asking:
    """Asks one registry after another, in a thread of its own."""

    def __init__(self, session: BuildSession, plan: BuildPlan) -> None:
        self._session, self._plan = session, plan
        self._limit = session.limit_from_now(plan)

    def tick(self, silent: float) -> None:
        """Time passes."""
        self._session.listen(events.Tick(silent=silent))

    def first(self, lock: LockFile | None) -> PulledImage | None:
        """What the first registry has that has it whole."""
        asked = lookup.ImageLookup(repositories=self._session.settings.repositories, check=self._check)
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
        session, build_id = self._session, self._plan.build_id
        session.listen(events.PhaseStarted(build_id=build_id, phase=_PHASE))
        started, ok = session.clock(), False
        try:
            taking = ImagePull(session.wheelhouse, self._check, self._say)
            found = taking.pull_build(image, image.builds[0])
            ok = True
        finally:
            seconds = round(session.clock() - started, 3)
            session.listen(events.PhaseEnded(build_id=build_id, phase=_PHASE, seconds=seconds, ok=ok))
        return found

    def _say(self, text: str) -> None:
        self._session.tell(text)

    def _down(self, error: NetworkError) -> None:
        self._say(f"{error.problems[0].message}; the build goes on without it")

    def _check(self) -> None:
        """Raise where the build is to end."""
        self._session.stop.check()
        limit = self._limit
        if limit and self._session.clock() > limit.deadline:
            message = f"the time limit of {limit.seconds} s was reached in phase {_PHASE}; what has arrived is kept"
            fix = "run the same command again to go on"
            raise TimeLimit(Problem(code="time-limit", message=message, fix=fix))


def _or_build(problem: Problem) -> Problem:
    """With the way around the registry."""
    return replace(problem, fixes=(*problem.fixes, "build it here, without registries: `tfdock build --no-pull`"))
