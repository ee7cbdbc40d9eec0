"""Decide which scripts try a wheel, their arguments, and the meaning of their results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdock.errors import clean
from tfdock.gpu.opened_libraries import (
    accelerator_of,
    built_with,
    for_release,
    opened_libraries,
    own_libraries,
    package_of,
    release_of,
)
from tfdock.gpu.verdict import runs
from tfdock.knowledge.fits import toolkit_floor
from tfdock.knowledge.image_rows import RuntimeRow
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.wheel_rows import Probe, RuntimeLibrary
from tfdock.types import Capability, ImageRef, Version
from tfdock.verify.checks import Check, Status
from tfdock.wheel.facts import merged
from tfdock.wheel.identity import normal_version, runs_on_python
from tfdock.wheel.inspection import Inspection

#: The checks that run the wheel, in order. The wheel's own code reports the results, and may report false ones.
RUN = (
    "install", "dependencies", "import", "build-info", "op", "gradient", "xla", "libraries", "gpu-devices",
    "gpu-first-op", "gpu-native", "gpu-driver",
)  # fmt: skip

GPU = tuple(name for name in RUN if name.startswith("gpu-"))  #: The checks of `RUN` that need a GPU.

# `pip install` and `pip check`, which need no script.
_BY_PIP = ("install", "dependencies")
_NEEDS = {
    "dependencies": ("install",),
    "import": ("install",),
    "libraries": ("install",),
    # Its script asks the driver by ctypes, and does not import TensorFlow.
    "gpu-driver": ("install",),
    "gpu-first-op": ("gpu-devices",),
    "gpu-native": ("gpu-devices",),
}
_PIP_SECONDS = 1800
_NO_BUILD_INFO = "the wheel has no `build_info.py` that could be read without running it"
_MOST = 1000  #: The most characters of a script's findings that are shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """One check: run by a script below `dockerfiles/verify/`, or by pip if `script` is None."""

    check: str
    needs: tuple[str, ...]
    script: str | None
    seconds: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The plan of a trial. `facts` are the input of the scripts; `skipped` maps skipped checks to the reason.

    `limits` (`protobuf<3.21`) restricted the wheel's requirements when these were fetched.
    """

    tasks: tuple[TrialTask, ...]
    skipped: Mapping[str, str]
    facts: Mapping[str, object]
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The report of a script in the wheel's own process. `expected` and `found` may be any JSON value."""

    outcome: Status
    expected: object
    found: object
    reason: str


def plan_trial(
    knowledge: KnowledgeBase,
    inspection: Inspection,
    *,
    xla: bool | None,
    without_gpu: str,
    limits: Sequence[str] = (),
) -> Trial:
    """Return the checks to run, and why the others are skipped.

    `xla` is the profile's value, None without a profile. `without_gpu` says why containers here have no GPU; empty if
    they have a GPU.
    """
    accelerator = accelerator_of(knowledge, inspection)
    without_gpu = without_gpu if accelerator else _no_gpu_reason(inspection)
    skipped: dict[str, str] = {}
    tasks = []
    for check in RUN:
        probe = None if check in _BY_PIP else _probe(knowledge, inspection, accelerator, check)
        reason = _skip_reason(check, probe, xla=xla, without_gpu=without_gpu)
        if reason:
            skipped[check] = reason
        else:
            tasks.append(_task(check, probe))
    opened = opened_libraries(knowledge, inspection, with_driver=not without_gpu)
    facts = {"xla": xla, "linked": list(linked_libraries(inspection)), "opened": [row.library for row in opened]}
    return Trial(tasks=tuple(tasks), skipped=skipped, facts=facts, limits=tuple(limits))


def answered_by_wheel(checks: Iterable[Check]) -> tuple[str, ...]:
    """Return the names of the checks that the wheel's own code answered. A hostile wheel can pass them."""
    return tuple(check.name for check in checks if check.name in RUN and check.status != "skipped")


def skip_all(reason: str) -> tuple[Check, ...]:
    """Return all checks of `RUN` as skipped, for one reason."""
    return tuple(Check(name=name, status="skipped", reason=reason) for name in RUN)


def _no_gpu_reason(inspection: Inspection) -> str:
    has_build_info = inspection.build_info is not None
    return "the wheel is for the CPU" if has_build_info else f"{_NO_BUILD_INFO}: it is unknown whether it is for GPUs"


def _skip_reason(check: str, probe: Probe | None, *, xla: bool | None, without_gpu: str) -> str:
    """Return why a check is skipped; empty for a check that is run."""
    if check == "xla" and xla is False:
        return "the profile has `xla: false`"
    if check in GPU and without_gpu:
        return without_gpu
    if probe is None and check not in _BY_PIP:
        return "tfdock does not know how to make this check"
    return (probe.absent or "") if probe else ""


def _probe(
    knowledge: KnowledgeBase, inspection: Inspection, accelerator: Accelerator | None, check: str
) -> Probe | None:
    """Return the first row of this check that applies to the wheel; None if no row does."""
    name = accelerator.accelerator if accelerator else ""
    minor = release_of(inspection)
    rows = (row for row in knowledge.probes if row.check == check and for_release(knowledge, minor, row.releases))
    return next((row for row in rows if not row.accelerators or name in row.accelerators), None)


def _task(check: str, probe: Probe | None) -> TrialTask:
    return TrialTask(
        check=check,
        # Every check that `_NEEDS` does not name uses TensorFlow.
        needs=() if check == "install" else _NEEDS.get(check, ("import",)),
        script=probe.script if probe else None,
        seconds=probe.seconds if probe else _PIP_SECONDS,
        environment=probe.environment if probe else {},
    )


# --- facts of the wheel ---------------------------------------------------------------------------------------------


def linked_libraries(inspection: Inspection) -> tuple[str, ...]:
    """Return the names of libraries that the wheel links and does not contain, sorted."""
    # Libraries refer to a library by its SONAME, which can differ from the name of its file.
    own = {library.path.rpartition("/")[2] for library in inspection.libraries} | {
        library.soname for library in inspection.libraries
    }
    return tuple(sorted({name for library in inspection.libraries for name in library.needed} - own))


def limits_of(knowledge: KnowledgeBase, inspection: Inspection) -> tuple[str, ...]:
    """Return pip constraints for packages whose newest version breaks the wheel, which states no limit."""
    return limits_for(knowledge, release_of(inspection))


def limits_for(knowledge: KnowledgeBase, minor: str) -> tuple[str, ...]:
    """Return the same constraints for the wheels of a minor release, `2.18`."""
    rows = (row for row in knowledge.requirement_limits if for_release(knowledge, minor, row.releases))
    return tuple(f"{row.package}{row.limit}" for row in rows if row.limit)


def linked_to_accelerator(knowledge: KnowledgeBase, inspection: Inspection) -> tuple[str, ...]:
    """Return the accelerator's libraries that the wheel links. If one is missing, TensorFlow cannot be imported."""
    accelerator = accelerator_of(knowledge, inspection)
    name = accelerator.accelerator if accelerator else ""
    stems = {_stem(row.library) for row in knowledge.runtime_libraries if row.accelerator == name}
    return tuple(library for library in linked_libraries(inspection) if _stem(library) in stems)


def is_known_runtime(knowledge: KnowledgeBase, image: ImageRef) -> bool:
    """Return whether the knowledge base lists this image for trials of wheels."""
    return any(ImageRef.parse(row.image) == image for row in knowledge.runtimes.values())


def clean_runtime(knowledge: KnowledgeBase, wheels: Sequence[Inspection]) -> RuntimeRow | None:
    """Return the known image whose Python all these wheels support; None if there is none."""
    tags = [(one.wheel.python_tag, one.wheel.abi_tag) for one in wheels]
    rows = [row for python, row in knowledge.runtimes.items() if all(runs_on_python(*tag, python) for tag in tags)]
    # If several Pythons fit, take the newest, which most people have.
    return rows[-1] if rows else None


def _stem(library: str) -> str:
    return library.partition(".so")[0]


# --- what results mean ----------------------------------------------------------------------------------------------


def judge_results(
    knowledge: KnowledgeBase, inspection: Inspection, plan: Trial, results: Mapping[str, Result], unfinished: str
) -> tuple[Check, ...]:
    """Return the checks, in order. `unfinished` says how the container ended: the reason of a missing result.

    The first check without a result counts as failed: the wheel's code was running when the container ended.
    """
    checks = []
    missing = False
    for name in RUN:
        if name in plan.skipped:
            checks.append(Check(name=name, status="skipped", reason=plan.skipped[name]))
        elif name in results:
            case = _Case(knowledge=knowledge, inspection=inspection, plan=plan, results=results, name=name)
            checks.append(_judge_check(case))
        else:
            status: Status = "skipped" if missing else "failed"
            reason = "the container had ended before" if missing else f"no result: {unfinished}"
            checks.append(Check(name=name, status=status, reason=reason))
            missing = True
    return tuple(checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The input of the function that judges one check."""

    knowledge: KnowledgeBase
    inspection: Inspection
    plan: Trial
    results: Mapping[str, Result]
    name: str

    @property
    def result(self) -> Result:
        """The result of the check."""
        return self.results[self.name]

    def ended(self, status: Status, expected: object, found: object, reason: str) -> Check:
        return Check(
            name=self.name,
            status=status,
            expected=_plain_text(expected),
            found=_plain_text(found),
            reason=_plain_text(reason),
        )

    def check(self, ok: bool, expected: object, found: object, reason: str = "") -> Check:
        return self.ended("passed" if ok else "failed", expected, found, reason)

    def skipped(self, found: object, reason: str) -> Check:
        return self.ended("skipped", "", found, reason)


def _judge_check(case: _Case) -> Check:
    result, judge = case.result, _JUDGES.get(case.name)
    reads = result.outcome == "passed" or (case.name in _READS_FAILURES and result.outcome == "failed")
    if judge is None or not reads:
        return case.ended(result.outcome, result.expected, result.found, result.reason)
    try:
        return judge(case)
    # The wheel's own code reported the result, which may have any shape.
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return case.check(False, result.expected, result.found, "its script reported invalid results")


def _plain_text(value: object) -> str:
    """Return a result as short text, without control characters for a terminal."""
    text = value if isinstance(value, str) else "" if value in ([], {}, None) else str(value)
    # A control sequence could rewrite the lines of other checks.
    shown = clean(text, keep="", instead=" ")
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}…"


def _install(case: _Case) -> Check:
    """Report the limits too: other installations of the wheel need the same limits."""
    limits = case.plan.limits
    found = f"{_plain_text(case.result.found)}; held to {' '.join(limits)}" if limits else case.result.found
    return case.check(True, case.result.expected, found)


def _import(case: _Case) -> Check:
    """Compare the package's version with the version in the metadata, which may add `+cuda12.5.sm86` or `.post1`."""
    found: Any = case.result.found
    version, git = str(found["version"]), str(found["git"])
    expected, reported = normal_version(case.inspection.metadata.version), normal_version(version)
    # Three numbers at least: `2.1` would match every 2.1.x.
    ok = expected == reported or (reported.count(".") > 1 and expected.startswith((f"{reported}.", f"{reported}+")))
    return case.check(ok, expected, f"{version} ({git})", "" if ok else "the package states another version")


def _build_info(case: _Case) -> Check:
    """Compare the answer of TensorFlow's build-info function with the wheel's `build_info.py`."""
    found: Any = dict(case.result.found)  # type: ignore[call-overload]
    if case.inspection.build_info is None:
        return case.skipped(_format_entries(found), _NO_BUILD_INFO)
    expected = dict(case.inspection.build_info)
    # Only the differences are shown: a wheel can have any number of entries.
    names = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    differ = ", ".join(f"`{name}`" for name in names)
    reason = f"its values at run time differ from its file: {differ}" if names else ""
    of = names or expected
    return case.check(
        not names,
        _format_entries({name: expected.get(name) for name in of}),
        _format_entries({n: found.get(n) for n in of}),
        reason,
    )


def _format_entries(entries: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted(entries.items()))


def _libraries(case: _Case) -> Check:
    """List missing libraries and their packages. Libraries for GPUs count only in a container with a GPU."""
    found: Any = case.result.found
    there = {name: bool(entry["there"]) for name, entry in found.items()}
    linked = [name for name in linked_libraries(case.inspection) if not there.get(name)]
    rows = opened_libraries(case.knowledge, case.inspection, with_driver=_with_gpu(case.plan))
    opened = [row for row in rows if not there.get(row.library)]
    # Without a GPU, TensorFlow only warns that these libraries are missing, and works.
    needed = [row for row in opened if row.use is None] if _with_gpu(case.plan) else []
    offered = [row for row in opened if row not in needed]
    count = sum(there.values())
    count_text = f"{count} of {len(there)}" if len(there) > count else f"all {count}"
    for_gpu = _name_packages(case, offered)
    count_text += f"; missing here, but only needed with a GPU: {for_gpu}" if for_gpu else ""
    missing = "; ".join(
        [*(f"`{name}`: {found[name]['where'] if name in found else 'not searched'}" for name in linked)]
        + ([_name_packages(case, needed)] if needed else [])
    )
    return case.check(
        not missing, "every library that it needs", count_text, f"missing: {missing}" if missing else ""
    )


def _with_gpu(plan: Trial) -> bool:
    return any(task.check in GPU for task in plan.tasks)


def _name_packages(case: _Case, rows: Sequence[RuntimeLibrary]) -> str:
    """Return `libcudart.so.12 (nvidia-cuda-runtime-cu12)` for each; for an optional library also its use."""
    words = []
    for row in rows:
        notes = list(filter(None, [package_of(case.knowledge, case.inspection, row)]))
        notes += [f"for {row.use}"] if row.use else []
        words.append(f"{row.library} ({', '.join(notes)})" if notes else row.library)
    return ", ".join(words)


# --- on a GPU -------------------------------------------------------------------------------------------------------


def _gpus(result: Result) -> list[tuple[str, str]]:
    """Return the name and capability of each GPU that TensorFlow uses."""
    gpus: Any = result.found
    return [(str(gpu["name"]), str(gpu["capability"])) for gpu in gpus]


def _gpu_devices(case: _Case) -> Check:
    gpus = _gpus(case.result)
    words = [f"{name} ({capability})" if capability else name for name, capability in gpus]
    return case.check(bool(gpus), "a GPU that TensorFlow uses", ", ".join(words))


def _gpu_first_op(case: _Case) -> Check:
    found: Any = case.result.found
    return case.check(True, "a result from the GPU, with an empty cache", f"after {float(found['seconds']):.1f} s")


def _gpu_native(case: _Case) -> Check:
    """Without JIT only machine code runs. The check is skipped if the wheel has no machine code for the GPU."""
    wants = "a result from the GPU without the driver's compiler"
    if case.result.outcome == "passed":
        return case.check(True, wants, "machine code")
    (_, capability), *_ = _gpus(case.results["gpu-devices"])  # the script uses the first GPU
    code = merged(library.loadable for library in own_libraries(case.knowledge, case.inspection.libraries))
    # PTX needs the driver's compiler, which this check switches off.
    if capability and not runs(Capability.of_gpu(capability), code.sass, code.ptx).starts_at_once:
        return case.skipped(case.result.found, f"the wheel has no machine code for {capability}")
    return case.check(False, wants, case.result.found, case.result.reason)


def _gpu_driver(case: _Case) -> Check:
    """Compare the driver with the oldest driver that runs the toolkit's code."""
    found: Any = dict(case.result.found)  # type: ignore[call-overload]
    driver = str(found.pop("driver"))
    accelerator = accelerator_of(case.knowledge, case.inspection)
    toolkit = accelerator.toolkit if accelerator else ""
    version = Version(built_with(case.inspection, toolkit))
    floor = toolkit_floor(case.knowledge, toolkit, version) if version.parts else None
    ok = bool(driver) and (floor is None or Version(driver) >= floor)
    found_text = ", ".join([f"driver {driver}", *(f"{name} {value}" for name, value in sorted(found.items()))])
    return case.check(
        ok, f"driver {floor} or newer" if floor else "a driver", found_text, "" if ok else "the driver is too old"
    )


_JUDGES: Mapping[str, Callable[[_Case], Check]] = {
    "install": _install,
    "import": _import,
    "build-info": _build_info,
    "libraries": _libraries,
    "gpu-devices": _gpu_devices,
    "gpu-first-op": _gpu_first_op,
    "gpu-native": _gpu_native,
    "gpu-driver": _gpu_driver,
}
_READS_FAILURES = ("gpu-native",)  #: Checks whose failed results are judged too.


def read_results(tasks: Iterable[TrialTask], documents: Iterable[object]) -> dict[str, Result]:
    """Return the results among the JSON documents that a container printed. Other documents are left out."""
    names = [task.check for task in tasks]  # not a set: what is reported need not be hashable
    results: dict[str, Result] = {}
    for entry in documents:
        document: Any = entry if isinstance(entry, dict) else {}
        outcome = document.get("outcome")
        if document.get("check") in names and outcome in ("passed", "failed", "skipped"):
            results[document["check"]] = Result(
                outcome=outcome,
                expected=document.get("expected"),
                found=document.get("found"),
                reason=_plain_text(document.get("reason")),
            )
    return results
