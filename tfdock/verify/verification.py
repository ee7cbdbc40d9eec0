"""Verify a finished wheel: static checks against a profile, then a trial in a container without network.

The container has the runtime image, the wheel, and a folder of the wheels it requires, which another container with a
network has fetched before. The wheel's own code runs there: it can falsify only its own results. The
static checks use nothing from the container: tfdock reads the wheel's file outside of the container.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdock.errors import NetworkError, ProfileError, TfdockError, VerificationFailed, WheelRefused
from tfdock.gpu.opened_libraries import own_libraries, unsearched_folders
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan
from tfdock.types import ImageRef
from tfdock.verify import checks as statics
from tfdock.verify.checks import Check, passed
from tfdock.verify.trial import WheelTrial
from tfdock.verify.trial_container import TrialEnvironment, TrialRequest
from tfdock.verify.trial_plan import clean_runtime, skip_all
from tfdock.wheel.facts import GpuCode, WheelError, merged
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The checks in order, the GPU code of TensorFlow's own libraries, and the image of the trial.

    `impossible` says why a requested trial could not begin, `unsearched` is the result of
    `unsearched_folders`.
    """

    checks: tuple[Check, ...]
    gpu_code: GpuCode = field(default_factory=GpuCode)
    runtime: str | None = None
    impossible: TfdockError | None = None
    unsearched: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no check has failed."""
        return passed(self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that have failed."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def document(self) -> dict[str, Any]:
        """The verification in the form of build records."""
        code = self.gpu_code
        return {
            "checks": [asdict(check) for check in self.checks],
            "gpu_code": {"sass": list(code.sass), "ptx": list(code.ptx), "amdgpu": list(code.amdgpu)},
            "runtime": self.runtime,
        }


def verify_build(
    environment: TrialEnvironment, knowledge: KnowledgeBase, plan: BuildPlan, wheel: Path, image: str
) -> Verification:
    """Check a wheel against the profile of the plan that built it. `image` is the id of the compile image."""
    resolution = plan.resolution
    request = TrialRequest(
        resolution=resolution,
        strict=resolution.verify.gpu_code == "strict",
        options=statics.compiler_options(knowledge, plan.environment, plan.bazel_flags),
        run="" if resolution.verify.run else "the profile says `verify: {run: false}`",
        built_in=image,
    )
    try:
        inspection = inspected(wheel, traces=statics.build_traces())
    except WheelRefused as error:
        return unsound_wheel(knowledge, error)
    return verify_wheel(environment, knowledge, wheel, inspection, request)


def verify_wheel(
    environment: TrialEnvironment | None,
    knowledge: KnowledgeBase,
    wheel: Path,
    inspection: Inspection,
    request: TrialRequest,
) -> Verification:
    """Check a wheel that was inspected for `build_traces`. Nothing is run without an environment, or with a
    reason in `request.run`.

    Raises the engine's errors if the engine is lost, Interrupted, TimeLimit, OutOfMemory and DiskFull. The reason why
    a trial could not begin is in the result instead.
    """
    # Imported here: a build loads this module at its start, and auditwheel's policies take 0.2 s to load.
    from tfdock.verify.manylinux import audit

    static = statics.static_checks(
        knowledge,
        inspection,
        request.resolution,
        strict=request.strict,
        options=request.options,
        manylinux=audit(inspection),
    )
    verification = Verification(
        checks=(*static, *skip_all(request.run)),
        gpu_code=merged(library.loadable for library in own_libraries(knowledge, inspection.libraries)),
        unsearched=unsearched_folders(knowledge, inspection),
    )
    # The static checks need no engine.
    if request.run or environment is None:
        return verification
    clean = clean_runtime(knowledge, [inspection])
    image = ImageRef.parse(clean.image) if clean else None
    if request.resolution and request.resolution.runtime_asked:
        image = request.resolution.runtime
    trial = WheelTrial(environment, knowledge, wheel, inspection, request)
    built_in = trial.built_in()
    name = str(image) if image else None
    verification = replace(verification, runtime=next(iter(built_in.tags), built_in.id) if built_in else name)
    try:
        run_checks = trial.checks(image, built_in)
    # The wheel is not to blame, so its checks are skipped, not failed.
    except (NetworkError, ProfileError) as error:
        run_checks = skip_all(error.problems[0].message)
        verification = replace(verification, impossible=error)
    return replace(verification, checks=(*static, *run_checks))


def unsound_wheel(knowledge: KnowledgeBase, error: WheelRefused) -> Verification:
    """Return the verification of a file that `inspected` refuses. Raises the error if the file could not be read."""
    # Without a WheelError as cause, the file could not be read, and the wheel is not to blame.
    if not isinstance(error.__cause__, WheelError):
        raise error
    checks = statics.unsound_checks(knowledge, error.__cause__)
    return Verification(checks=(*checks, *skip_all("the file is not a sound wheel")))


def refusal(verifications: Sequence[Verification], kept: Sequence[Path]) -> VerificationFailed:
    """Return the error for a build whose wheels failed checks. `kept` are the paths of the wheels."""
    failed = [f"`{check.name}`: {check.account}" for verification in verifications for check in verification.failed]
    return VerificationFailed.of(
        "wheel-refused",
        "the wheel was built, but is refused:\n  " + "\n  ".join(failed),
        f"check it again (`tfdock verify {kept[0]} PROFILE`), correct the profile or the source, and build again",
        why=f"it is not in the wheelhouse; it was kept as {', '.join(str(path) for path in kept)}",
    )


def combined_document(verifications: Sequence[Verification]) -> dict[str, Any]:
    """Return the verification of a build's wheels for its record. Few builds make more than one wheel."""
    documents = [verification.document for verification in verifications]
    first = documents[0]
    return {**first, "checks": [check for document in documents for check in document["checks"]]}
