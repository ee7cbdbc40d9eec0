"""Decide which scripts try a wheel, their arguments, and the meaning of their results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdock.gpu.compatibility import built_with, own_libraries
from tfdock.gpu.verdict import runs
from tfdock.knowledge.contract import applies
from tfdock.knowledge.fits import toolkit_floor
from tfdock.knowledge.rows import Accelerator, in_range
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.wheel_rows import Probe, RuntimeLibrary
from tfdock.types import Capability, ImageRef, Version
from tfdock.verify.checks import Check, Status
from tfdock.wheel.facts import merged
from tfdock.wheel.identity import normal_version
from tfdock.wheel.inspection import Inspection

RUN = (
    "install", "dependencies", "import", "build-info", "op", "gradient", "xla", "libraries", "gpu-devices",
    "gpu-first-op", "gpu-native", "gpu-driver",
)  # fmt: skip
"""The checks that are made by running, in order. Their results are told by the wheel's own code, which may lie."""

GPU = tuple(name for name in RUN if name.startswith("gpu-"))
"""Those of them that want a GPU."""

_BY_PIP = ("install", "dependencies")
_NEEDS = {
    "dependencies": ("install",),
    "import": ("install",),
    "libraries": ("install",),
    "gpu-driver": ("install",),
    "gpu-first-op": ("gpu-devices",),
    "gpu-native": ("gpu-devices",),
}
_PIP_SECONDS = 1800
_DRIVER = "driver"
"""The component of libraries that are the driver's: no image has them."""
_UNTOLD = "the wheel has no `build_info.py` that could be read without running it"
_MOST = 1000
"""Characters of what a script found that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """One check to make: by a script below `dockerfiles/verify/`, or by pip where there is none."""

    check: str
    needs: tuple[str, ...]
    script: str | None
    seconds: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is to be tried of a wheel. `facts` are what scripts are told; `skipped` says why others are not made.

    `limits` (`protobuf<3.21`) are what held what it requires, when that was fetched.
    """

    tasks: tuple[TrialTask, ...]
    skipped: Mapping[str, str]
    facts: Mapping[str, object]
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a script reported. It ran in the wheel's own process: `expected` and `found` may be anything."""

    outcome: Status
    expected: object
    found: object
    reason: str


def trial(
    knowledge: KnowledgeBase,
    inspection: Inspection,
    *,
    xla: bool | None,
    without_gpu: str,
    limits: Sequence[str] = (),
) -> Trial:
    """Decide what to try.

    `xla` is what the profile says, None without one; `without_gpu` why containers here have no GPU, empty if they do.
    """
    accelerator = accelerator_of(knowledge, inspection)
    without_gpu = without_gpu if accelerator else _not_for_gpus(inspection)
    skipped: dict[str, str] = {}
    tasks = []
    for check in RUN:
        probe = None if check in _BY_PIP else _probe(knowledge, inspection, accelerator, check)
        reason = _why_not(check, probe, xla=xla, without_gpu=without_gpu)
        if reason:
            skipped[check] = reason
        else:
            tasks.append(_task(check, probe))
    opened = opened_libraries(knowledge, inspection, with_driver=not without_gpu)
    facts = {"xla": xla, "linked": list(linked_libraries(inspection)), "opened": [row.library for row in opened]}
    return Trial(tasks=tuple(tasks), skipped=skipped, facts=facts, limits=tuple(limits))


def told_by_wheel(checks: Iterable[Check]) -> tuple[str, ...]:
    """Return the names of the checks that the wheel's own code answered. A wheel that lies passes them."""
    return tuple(one.name for one in checks if one.name in RUN and one.status != "skipped")


def none_of_it(reason: str) -> tuple[Check, ...]:
    """All these checks, skipped for one reason."""
    return tuple(Check(name=name, status="skipped", reason=reason) for name in RUN)


def _not_for_gpus(inspection: Inspection) -> str:
    known = inspection.build_info is not None
    return "the wheel is for the CPU" if known else f"{_UNTOLD}: whether it is for GPUs is not known"


def _why_not(check: str, probe: Probe | None, *, xla: bool | None, without_gpu: str) -> str:
    """Why a check is not made; empty where it is."""
    if check == "xla" and xla is False:
        return "the profile says `xla: false`"
    if check in GPU and without_gpu:
        return without_gpu
    if probe is None and check not in _BY_PIP:
        return "nothing is known of how to try it"
    return (probe.absent or "") if probe else ""


def _probe(
    knowledge: KnowledgeBase, inspection: Inspection, accelerator: Accelerator | None, check: str
) -> Probe | None:
    """The first row that holds."""
    name = accelerator.accelerator if accelerator else ""
    rows = (row for row in knowledge.probes if row.check == check and _holds(knowledge, inspection, row.releases))
    return next((row for row in rows if not row.accelerators or name in row.accelerators), None)


def _task(check: str, probe: Probe | None) -> TrialTask:
    return TrialTask(
        check=check,
        needs=() if check == "install" else _NEEDS.get(check, ("import",)),
        script=probe.script if probe else None,
        seconds=probe.seconds if probe else _PIP_SECONDS,
        environment=probe.environment if probe else {},
    )


# --- facts of the wheel ---------------------------------------------------------------------------------------------


def release_of(inspection: Inspection) -> str:
    """The minor release, `2.18`; 0.0 for what has no version."""
    parts = (*Version(normal_version(inspection.metadata.version)).parts, 0, 0)
    return f"{parts[0]}.{parts[1]}"


def _holds(knowledge: KnowledgeBase, inspection: Inspection, span: str) -> bool:
    """Whether a row of that range is one for the wheel's release, known or not."""
    return _for_release(knowledge, release_of(inspection), span)


def _for_release(knowledge: KnowledgeBase, minor: str, span: str) -> bool:
    release = knowledge.releases.get(minor)
    return applies(release, span) if release else in_range(minor, span)


def accelerator_of(knowledge: KnowledgeBase, inspection: Inspection) -> Accelerator | None:
    """The family of GPUs that the wheel was built for, by its own account; None for the CPU."""
    info = inspection.build_info or {}
    rows = (row for row in knowledge.accelerators.values() if row.components)
    return next((row for row in rows if info.get(f"is_{row.accelerator}_build") is True), None)


def linked_libraries(inspection: Inspection) -> tuple[str, ...]:
    """What the wheel's libraries need and the wheel does not bring, sorted."""
    own = {one.path.rpartition("/")[2] for one in inspection.libraries} | {one.soname for one in inspection.libraries}
    return tuple(sorted({name for one in inspection.libraries for name in one.needed} - own))


def opened_libraries(
    knowledge: KnowledgeBase, inspection: Inspection, *, with_driver: bool = True
) -> tuple[RuntimeLibrary, ...]:
    """What the wheel opens when it looks for GPUs: of each name the row for the versions it was built with."""
    accelerator = accelerator_of(knowledge, inspection)
    found: dict[str, RuntimeLibrary] = {}
    for row in knowledge.runtime_libraries:
        if accelerator is None or row.accelerator != accelerator.accelerator:
            continue
        if row.component == _DRIVER and not with_driver:
            continue
        version = Version(built_with(inspection, row.component))
        held = row.component == _DRIVER or not row.version or version.matches(Version(row.version))
        other = found.get(row.name)
        closer = other is None or len(Version(row.version).parts) > len(Version(other.version).parts)
        if held and closer and _holds(knowledge, inspection, row.releases):
            found[row.name] = row
    return tuple(found.values())


def limits_of(knowledge: KnowledgeBase, inspection: Inspection) -> tuple[str, ...]:
    """Constraints for pip: what the wheel requires without a limit, and breaks with today's version of."""
    return limits_for(knowledge, release_of(inspection))


def limits_for(knowledge: KnowledgeBase, minor: str) -> tuple[str, ...]:
    """The same for the wheels of a minor release, `2.18`."""
    rows = (row for row in knowledge.requirement_limits if _for_release(knowledge, minor, row.releases))
    return tuple(f"{row.package}{row.limit}" for row in rows)


def linked_to_accelerator(knowledge: KnowledgeBase, inspection: Inspection) -> tuple[str, ...]:
    """The libraries of its accelerator that the wheel links: where one is missing it cannot even be imported."""
    accelerator = accelerator_of(knowledge, inspection)
    name = accelerator.accelerator if accelerator else ""
    stems = {_stem(row.library) for row in knowledge.runtime_libraries if row.accelerator == name}
    return tuple(one for one in linked_libraries(inspection) if _stem(one) in stems)


def is_known_runtime(knowledge: KnowledgeBase, image: ImageRef) -> bool:
    """Return whether the knowledge names that image as one in which wheels are tried."""
    return any(ImageRef.parse(row.image) == image for row in knowledge.runtimes.values())


def _stem(library: str) -> str:
    return library.partition(".so")[0]


# --- what results mean ----------------------------------------------------------------------------------------------


def judged(
    knowledge: KnowledgeBase, inspection: Inspection, tried: Trial, results: Mapping[str, Result], unfinished: str
) -> tuple[Check, ...]:
    """The checks, in order. `unfinished` says how the container ended, for results that never came.

    The first that is missing has failed: whatever it was, the wheel's own code was running.
    """
    checks = []
    missing = False
    for name in RUN:
        if name in tried.skipped:
            checks.append(Check(name=name, status="skipped", reason=tried.skipped[name]))
        elif name in results:
            checks.append(_judged(knowledge, inspection, tried, results, name))
        else:
            status: Status = "skipped" if missing else "failed"
            reason = "the container had ended before" if missing else f"no result: {unfinished}"
            checks.append(Check(name=name, status=status, reason=reason))
            missing = True
    return tuple(checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """All that a judge may look at."""

    knowledge: KnowledgeBase
    inspection: Inspection
    tried: Trial
    results: Mapping[str, Result]
    result: Result
    name: str

    def check(self, ok: bool, expected: object, found: object, reason: str = "") -> Check:
        status: Status = "passed" if ok else "failed"
        return Check(
            name=self.name, status=status, expected=_text(expected), found=_text(found), reason=_text(reason)
        )

    def skipped(self, found: object, reason: str) -> Check:
        return Check(name=self.name, status="skipped", found=_text(found), reason=reason)


def _judged(
    knowledge: KnowledgeBase, inspection: Inspection, tried: Trial, results: Mapping[str, Result], name: str
) -> Check:
    result = results[name]
    case = _Case(knowledge=knowledge, inspection=inspection, tried=tried, results=results, result=result, name=name)
    judge = _JUDGES.get(name)
    reads = result.outcome == "passed" or (name in _READS_FAILURES and result.outcome == "failed")
    if judge is None or not reads:
        return Check(
            name=name,
            status=result.outcome,
            expected=_text(result.expected),
            found=_text(result.found),
            reason=result.reason,
        )
    try:
        return judge(case)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return case.check(False, result.expected, result.found, "its script reported what makes no sense")


def _text(value: object) -> str:
    """A result for people: short, and without what steers a terminal."""
    text = value if isinstance(value, str) else "" if value in ([], {}, None) else str(value)
    shown = "".join(one if one.isprintable() else " " for one in text)
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}…"


def _install(case: _Case) -> Check:
    """What was held back is told: who installs the wheel elsewhere has to do the same."""
    limits = case.tried.limits
    found = f"{_text(case.result.found)}; held to {' '.join(limits)}" if limits else case.result.found
    return case.check(True, case.result.expected, found)


def _import(case: _Case) -> Check:
    """The version that the package says against its metadata's, which may say more: `+cuda12.5.sm86`, `.post1`."""
    found: Any = case.result.found
    version, git = str(found["version"]), str(found["git"])
    wanted, said = normal_version(case.inspection.metadata.version), normal_version(version)
    ok = wanted == said or (said.count(".") > 1 and wanted.startswith((f"{said}.", f"{said}+")))
    return case.check(ok, wanted, f"{version} ({git})", "" if ok else "the package says another version")


def _build_info(case: _Case) -> Check:
    """What the function says against what the file says."""
    found: Any = dict(case.result.found)  # type: ignore[call-overload]
    if case.inspection.build_info is None:
        return case.skipped(_listed(found), _UNTOLD)
    expected = dict(case.inspection.build_info)
    names = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    differ = ", ".join(f"`{name}`" for name in names)
    reason = f"what it says when run is not what its file says: {differ}" if names else ""
    of = names or expected
    return case.check(
        not names, _listed({name: expected.get(name) for name in of}), _listed({n: found.get(n) for n in of}), reason
    )


def _listed(entries: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted(entries.items()))


def _libraries(case: _Case) -> Check:
    """Those that are missing, with where to have them; those for a GPU are missed where there is one."""
    found: Any = case.result.found
    there = {name: bool(entry["there"]) for name, entry in found.items()}
    linked = [name for name in linked_libraries(case.inspection) if not there.get(name)]
    rows = opened_libraries(case.knowledge, case.inspection, with_driver=_with_gpu(case.tried))
    opened = [row for row in rows if not there.get(row.library)]
    needed = [row for row in opened if row.use is None] if _with_gpu(case.tried) else []
    offered = [row for row in opened if row not in needed]
    count = sum(there.values())
    told = f"{count} of {len(there)}" if len(there) > count else f"all {count}"
    for_gpu = _and_packages(case, offered)
    told += f"; not here, for use with a GPU: {for_gpu}" if for_gpu else ""
    missing = "; ".join(
        [*(f"`{name}`: {found[name]['where'] if name in found else 'not looked for'}" for name in linked)]
        + ([_and_packages(case, needed)] if needed else [])
    )
    return case.check(not missing, "every library that it needs", told, f"missing: {missing}" if missing else "")


def _with_gpu(tried: Trial) -> bool:
    return any(task.check in GPU for task in tried.tasks)


def _and_packages(case: _Case, rows: Sequence[RuntimeLibrary]) -> str:
    """`libcudart.so.12 (nvidia-cuda-runtime-cu12)`, and what each is for where a GPU works without."""
    accelerator = accelerator_of(case.knowledge, case.inspection)
    toolkit = built_with(case.inspection, accelerator.toolkit or "") if accelerator else ""
    major = toolkit.partition(".")[0]
    words = []
    for row in rows:
        notes = [row.package.format_map({"major": major})] if row.package else []
        notes += [f"for {row.use}"] if row.use else []
        words.append(f"{row.library} ({', '.join(notes)})" if notes else row.library)
    return ", ".join(words)


# --- on a GPU -------------------------------------------------------------------------------------------------------


def _gpus(result: Result) -> list[tuple[str, str]]:
    """Name and capability of each GPU that TensorFlow uses."""
    found: Any = result.found
    return [(str(one["name"]), str(one["capability"])) for one in found]


def _gpu_devices(case: _Case) -> Check:
    gpus = _gpus(case.result)
    words = [f"{name} ({capability})" if capability else name for name, capability in gpus]
    return case.check(bool(gpus), "a GPU that TensorFlow uses", ", ".join(words))


def _gpu_first_op(case: _Case) -> Check:
    found: Any = case.result.found
    return case.check(True, "a result of the GPU, nothing compiled before", f"after {float(found['seconds']):.1f} s")


def _gpu_native(case: _Case) -> Check:
    """Without JIT only machine code runs; where the wheel has none for this GPU, nobody expects it to."""
    wants = "a result of the GPU without the driver's compiler"
    if case.result.outcome == "passed":
        return case.check(True, wants, "machine code")
    (_, capability), *_ = _gpus(case.results["gpu-devices"])  # the script runs on the first
    code = merged(library.loadable for library in own_libraries(case.knowledge, case.inspection.libraries))
    if capability and not runs(Capability.of_gpu(capability), code.sass, code.ptx).starts_at_once:
        return case.skipped(case.result.found, f"the wheel has no machine code for {capability}")
    return case.check(False, wants, case.result.found, case.result.reason)


def _gpu_driver(case: _Case) -> Check:
    """The driver against the oldest that the toolkit's code runs with."""
    found: Any = dict(case.result.found)  # type: ignore[call-overload]
    driver = str(found.pop("driver"))
    accelerator = accelerator_of(case.knowledge, case.inspection)
    toolkit = (accelerator.toolkit if accelerator else None) or ""
    version = Version(built_with(case.inspection, toolkit))
    floor = toolkit_floor(case.knowledge, toolkit, version) if version.parts else None
    ok = bool(driver) and (floor is None or Version(driver) >= floor)
    told = ", ".join([f"driver {driver}", *(f"{name} {value}" for name, value in sorted(found.items()))])
    return case.check(ok, f"driver {floor} or newer" if floor else "a driver", told, "" if ok else "it is too old")


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
_READS_FAILURES = ("gpu-native",)
"""Judges that have something to say where a script failed."""


def results_of(tasks: Iterable[TrialTask], documents: Iterable[object]) -> dict[str, Result]:
    """The results among JSON documents that a container printed; what is none of a task is left out."""
    known = [task.check for task in tasks]  # not a set: what is reported need not be hashable
    found: dict[str, Result] = {}
    for one in documents:
        document: Any = one if isinstance(one, dict) else {}
        outcome = document.get("outcome")
        if document.get("check") in known and outcome in ("passed", "failed", "skipped"):
            found[document["check"]] = Result(
                outcome=outcome,
                expected=document.get("expected"),
                found=document.get("found"),
                reason=_text(document.get("reason")),
            )
    return found
