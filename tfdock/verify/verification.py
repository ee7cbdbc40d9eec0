"""Verify a finished wheel: static checks against a profile, then a trial in a container without network.

The container has the runtime image, the wheel, and a folder of the wheels it requires, which another container with a
network has fetched before. What runs in there is the wheel's own code: it can spoil nothing but its own result, and
it can lie about that result. The static checks take nothing from the container: the file is read on this side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdock.errors import (
    Problem,
    TfdockError,
    VerificationFailed,
    WheelRefused,
)
from tfdock.gpu.compatibility import own_libraries
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan
from tfdock.resolve.resolution import Resolution
from tfdock.types import ImageRef
from tfdock.verify import checks as statics
from tfdock.verify.checks import Check, passed
from tfdock.verify.trial import WheelTrial
from tfdock.verify.trial_container import Impossible, TrialEnvironment, TrialRequest
from tfdock.verify.trial_plan import none_of_it
from tfdock.wheel.facts import GpuCode, WheelError, merged
from tfdock.wheel.identity import runs_on_python
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found: the checks in order, the GPU code of TensorFlow's own libraries, and the image it ran in.

    `impossible` is why nothing could be tried in a container, though it was asked for.
    """

    checks: tuple[Check, ...]
    gpu_code: GpuCode = field(default_factory=GpuCode)
    runtime: str | None = None
    impossible: TfdockError | None = None

    @property
    def ok(self) -> bool:
        """Whether no check has failed."""
        return passed(self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """Those that have."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def document(self) -> dict[str, Any]:
        """As records have it."""
        code = self.gpu_code
        return {
            "checks": [asdict(check) for check in self.checks],
            "gpu_code": {"sass": list(code.sass), "ptx": list(code.ptx), "amdgpu": list(code.amdgpu)},
            "runtime": self.runtime,
        }


def verified_build(
    environment: TrialEnvironment, knowledge: KnowledgeBase, plan: BuildPlan, wheel: Path
) -> Verification:
    """Check a wheel that a plan's build has made, by the plan's own profile."""
    resolution = plan.resolution
    wanted = TrialRequest(
        resolution=resolution,
        strict=resolution.verify.gpu_code == "strict",
        options=statics.compiler_options(knowledge, plan.environment, plan.bazel_flags),
        run="" if resolution.verify.run else "the profile says `verify: {run: false}`",
    )
    try:
        inspection = inspected(wheel, traces=statics.build_traces())
    except WheelRefused as error:
        return unsound(knowledge, error)
    return verified(environment, knowledge, wheel, inspection, wanted)


def verified(
    environment: TrialEnvironment | None,
    knowledge: KnowledgeBase,
    wheel: Path,
    inspection: Inspection,
    wanted: TrialRequest,
) -> Verification:
    """Check a wheel that was inspected for `build_traces`. Without an environment nothing is run, for `wanted.run`.

    Raises the engine's errors when it is lost on the way, Interrupted, TimeLimit, and what runs out: OutOfMemory,
    DiskFull. What keeps a run from beginning is in the result instead.
    """
    static = _static_checks(knowledge, inspection, wanted)
    found = Verification(
        checks=(*static, *none_of_it(wanted.run)),
        gpu_code=merged(library.loadable for library in own_libraries(knowledge, inspection.libraries)),
    )
    if wanted.run or environment is None:
        return found
    image = _runtime(knowledge, inspection, wanted.resolution)
    found = replace(found, runtime=str(image) if image else None)
    try:
        tried = WheelTrial(environment, knowledge, wheel, inspection, wanted).checks(image)
    except Impossible as reason:
        tried = none_of_it(reason.error.problems[0].message)
        found = replace(found, impossible=reason.error)
    return replace(found, checks=(*static, *tried))


def unsound(knowledge: KnowledgeBase, error: WheelRefused) -> Verification:
    """What is found of a file that `inspected` refuses."""
    if not isinstance(error.__cause__, WheelError):
        raise error
    checks = statics.unsound(knowledge, error.__cause__)
    return Verification(checks=(*checks, *none_of_it("the file is not a sound wheel")))


def _static_checks(knowledge: KnowledgeBase, inspection: Inspection, wanted: TrialRequest) -> tuple[Check, ...]:
    # Here, not above: it takes a fifth of a second to load what knows the policies.
    from tfdock.verify.manylinux import audit

    return statics.static_checks(
        knowledge,
        inspection,
        wanted.resolution,
        strict=wanted.strict,
        options=wanted.options,
        manylinux=audit(inspection),
    )


def _runtime(knowledge: KnowledgeBase, inspection: Inspection, resolution: Resolution | None) -> ImageRef | None:
    """The profile's image, else the known one with a Python that the wheel is for."""
    if resolution and resolution.runtime_asked:
        return resolution.runtime
    tags = inspection.wheel.python_tag, inspection.wheel.abi_tag
    rows = [row for python, row in knowledge.runtimes.items() if runs_on_python(*tags, python)]
    # The newest: of a wheel for several the one that most people have.
    return ImageRef.parse(rows[-1].image) if rows else None


def refusal(found: Sequence[Verification], kept: Sequence[Path]) -> VerificationFailed:
    """The error for a build whose wheels are not what was asked for, or do not work; they lie where `kept` says."""
    failed = [_told(check) for one in found for check in one.failed]
    return VerificationFailed(
        Problem(
            code="wheel-refused",
            message="the wheel was built, but is refused:\n  " + "\n  ".join(failed),
            why=f"it is not in the wheelhouse; it was kept as {', '.join(str(path) for path in kept)}",
            fix=f"look at it again (`tfdock verify {kept[0]} PROFILE`), correct profile or source, and build anew",
        )
    )


def combined(found: Sequence[Verification]) -> dict[str, Any]:
    """What a record says of the wheels of one build, which is one but for packers of several."""
    documents = [one.document for one in found]
    first = documents[0]
    return {**first, "checks": [check for document in documents for check in document["checks"]]}


def _told(check: Check) -> str:
    """A failed check in one line."""
    parts = [f"expected {check.expected}" if check.expected else "", f"found {check.found}" if check.found else ""]
    return f"`{check.name}`: {'; '.join(part for part in (*parts, check.reason) if part)}"
