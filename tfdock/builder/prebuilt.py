"""Pull a plan's build from a registry that has the build. A registry that does not answer is only a warning."""

from __future__ import annotations

from dataclasses import replace

from tfdock import events
from tfdock.builder.session import BuildSession
from tfdock.errors import NetworkError, Problem, TimeLimit, VerificationFailed
from tfdock.host.supervise import until_stopped
from tfdock.images import lookup
from tfdock.images.image_pull import ImagePull, PulledImage
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.lock_file import LockFile

_PHASE = "pull"


def pull(
    session: BuildSession, plan: BuildPlan, lock: LockFile | None, listen: events.Listener
) -> PulledImage | None:
    """Pull the build of a plan into the wheelhouse; return None if no registry has it. The caller holds the build id.

    Raises VerificationFailed for a damaged or false image with the build's name: a compilation instead of the pull
    would hide this problem.
    """
    refused = lookup.native_refusal(plan)
    if refused:
        listen(events.Notice(text=f"no registry is used: {refused.problems[0].message}"))
        return None
    limit = session.limit_of(plan)

    def check() -> None:
        session.stop.check()
        if limit and limit.is_over(session.clock()):
            message = f"the time limit of {limit.seconds} s was reached in phase {_PHASE}; downloads are kept"
            fix = "run the same command again to continue"
            raise TimeLimit.of("time-limit", message, fix)

    def say(text: str) -> None:
        listen(events.Notice(text=text))

    def skip(error: NetworkError) -> None:
        say(f"{error.problems[0].message}; the build continues without this registry")

    def pull_first() -> PulledImage | None:
        search = lookup.ImageLookup(repositories=session.settings.repositories, check=check)
        for image in search.images(plan, lock, skip):
            try:
                with events.announced_phase(listen, session.clock, plan.build_id, _PHASE):
                    return ImagePull(session.wheelhouse, check, say).pull_build(image, image.builds[0])
            except NetworkError as error:
                skip(error)
        return None

    try:
        # In a thread, so that a registry that never answers does not block Ctrl-C.
        return until_stopped(pull_first, session.stop, lambda silent: listen(events.Tick(silent=silent)))
    except VerificationFailed as error:
        # Damage stops the build; the user may decide to build anyway.
        raise type(error)(*map(_with_way_around, error.problems)) from error


def _with_way_around(problem: Problem) -> Problem:
    """Return the problem with the fix to build without registries."""
    return replace(problem, fixes=(*problem.fixes, "build it without registries: `tfdock build --no-pull`"))
