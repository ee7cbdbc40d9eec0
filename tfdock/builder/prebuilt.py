"""Pull a plan's build from a registry, if one has it. A registry that does not answer is only a warning."""

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


def pull(session: BuildSession, plan: BuildPlan, lock: LockFile | None) -> PulledImage | None:
    """Pull the build of a plan into the wheelhouse; return None if no registry has it. The build id is held.

    Raises VerificationFailed for an image that is damaged or not what it claims. It was pushed under the build's
    name, and hours of compiling would hide that.
    """
    refused = lookup.native_refusal(plan)
    if refused:
        problem = refused.problems[0]
        session.tell(f"no registry is asked: {problem.message}")
        return None
    search = _RegistrySearch(session, plan)
    # In a thread: a registry that never answers must not keep Ctrl-C from being heard.
    return until_stopped(lambda: search.first(lock), session.stop, search.tick)


class _RegistrySearch:
    """Asks one registry after another, in its own thread."""

    def __init__(self, session: BuildSession, plan: BuildPlan) -> None:
        self._session, self._plan = session, plan
        self._limit = session.limit_of(plan)

    def tick(self, silent: float) -> None:
        """Report that time passes."""
        self._session.listen(events.Tick(silent=silent))

    def first(self, lock: LockFile | None) -> PulledImage | None:
        """Return the build from the first registry that has it completely."""
        search = lookup.ImageLookup(repositories=self._session.settings.repositories, check=self._check)
        try:
            for image in search.images(self._plan, lock, self._down):
                try:
                    return self._pull_image(image)
                except NetworkError as error:
                    self._down(error)
        except VerificationFailed as error:
            # Damage stops the build; the user may decide to build anyway.
            raise type(error)(*map(_with_way_around, error.problems)) from error
        return None

    def _pull_image(self, image: StoredImage) -> PulledImage:
        """Pull an image, as its own phase."""
        session, build_id = self._session, self._plan.build_id
        session.listen(events.PhaseStarted(build_id=build_id, phase=_PHASE))
        started, ok = session.clock(), False
        try:
            pull = ImagePull(session.wheelhouse, self._check, self._say)
            pulled_image = pull.pull_build(image, image.builds[0])
            ok = True
        finally:
            seconds = round(session.clock() - started, 3)
            session.listen(events.PhaseEnded(build_id=build_id, phase=_PHASE, seconds=seconds, ok=ok))
        return pulled_image

    def _say(self, text: str) -> None:
        self._session.tell(text)

    def _down(self, error: NetworkError) -> None:
        self._say(f"{error.problems[0].message}; the build goes on without it")

    def _check(self) -> None:
        """Raise if the build must end."""
        self._session.stop.check()
        limit = self._limit
        if limit and limit.is_over(self._session.clock()):
            message = f"the time limit of {limit.seconds} s was reached in phase {_PHASE}; what has arrived is kept"
            fix = "run the same command again to go on"
            raise TimeLimit.of("time-limit", message, fix)


def _with_way_around(problem: Problem) -> Problem:
    """Return the problem with the fix to build without registries."""
    return replace(problem, fixes=(*problem.fixes, "build it here, without registries: `tfdock build --no-pull`"))
