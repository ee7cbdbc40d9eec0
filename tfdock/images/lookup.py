"""Which image has a build: the repositories of the settings, asked for the fingerprint of a plan."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tfdock.errors import Incompatible, NetworkError, Problem
from tfdock.images.stored_image import StoredImage, stored
from tfdock.images.wheel_image_read import FoundBuild, machine_platform
from tfdock.images.wheel_tags import fingerprint_tag
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.lock_file import LockFile
from tfdock.plan.trust_domain import stands_for
from tfdock.resolve.tools import NATIVE
from tfdock.types import ImageRef


def here() -> str:
    """The platform of this machine, as images name it."""
    return machine_platform(platform.machine())


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLookup:
    """Looks for the very build of a plan, in one repository after another.

    `check` is called now and then and raises to stop.
    """

    repositories: tuple[ImageRef, ...]
    check: Callable[[], None]
    others: list[ImageRef] = field(default_factory=list)
    """Images of other builds of the same build id, as they are met."""

    def images(
        self, plan: BuildPlan, lock: LockFile | None, failed: Callable[[NetworkError], object]
    ) -> Iterator[StoredImage]:
        """The images that hold it, as they are found; what could not be asked is told to `failed`.

        Raises VerificationFailed for an image that is not what it says.
        """
        for repository in self.repositories:
            try:
                found = self._in(repository, plan)
            except NetworkError as error:
                failed(error)
                continue
            if found and (lock is None or found.builds[0].record.get("lock") == lock.sha256):
                yield found

    def _in(self, repository: ImageRef, plan: BuildPlan) -> StoredImage | None:
        tags = (fingerprint_tag(plan.fingerprint), plan.build_id)
        # That of the wheel, not of this machine: the engine may be another one.
        where = machine_platform(plan.build_id.rpartition("-")[2])
        for tag in tags:
            found = stored(repository.tagged(tag), where, self.check)
            if found and len(found.builds) == 1 and _is_of(plan, found.builds[0]):
                return found
            if found:  # by another base or other flags, or of a trust domain that may not stand for the plan's
                self.others.append(found.image)
        return None


def _is_of(plan: BuildPlan, build: FoundBuild) -> bool:
    return build.fingerprint == plan.fingerprint and stands_for(build.record, plan.trust.name, pulled=True)


def refusal(plan: BuildPlan) -> Incompatible | None:
    """Why no registry is asked for a plan; None where it may be."""
    resolution = plan.resolution
    if not any(NATIVE.search(option) for option in (*resolution.flags, *resolution.optimize)):
        return None
    return Incompatible(
        Problem(
            code="native-pulled",
            message=f"{plan.build_id} is for the CPU of the machine that builds it",
            why="what another machine has built may not run on this one",
            fix="build it here, or name the instruction sets: `optimize: [avx2, fma]`",
            field="optimize",
        )
    )
