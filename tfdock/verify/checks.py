"""The static checks of a wheel: facts from its bytes, held against the profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tfdock.gpu.compatibility import built_with, own_libraries
from tfdock.gpu.verdict import code_of
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import DISK_CACHE, OUTPUT, REPOSITORY_CACHE, SOURCE, STAGING
from tfdock.resolve.resolution import Resolution
from tfdock.resolve.tools import NATIVE
from tfdock.types import Version
from tfdock.wheel.facts import Library, WheelError, target_order
from tfdock.wheel.identity import canonical_name, local_part, normal_version, runs_on_python, same_version
from tfdock.wheel.inspection import Inspection

Status = Literal["passed", "failed", "skipped"]

MIB = 1 << 20
_NO_PROFILE = "no profile says what it should be"
_UNREAD_FIELD = "targets"
"""The profile's list for accelerators of one's own: nothing here reads their code."""
_MOST = 4
"""So many findings of one kind are written out; of the rest, how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a wheel: `expected` and `found` are short texts, `reason` a phrase that says why it ended so.

    One that has passed may have none.
    """

    name: str
    status: Status
    expected: str = ""
    found: str = ""
    reason: str = ""


def passed(checks: Iterable[Check]) -> bool:
    """Whether none has failed."""
    return not any(check.status == "failed" for check in checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manylinux:
    """Which systems a wheel's libraries fit, by auditwheel's policies.

    `fits` is the most compatible platform tag they satisfy: `manylinux_2_17_x86_64`, `linux_x86_64` where there is
    none. `obstacles` maps each tag of the wheel's name that they do not satisfy to what stands in the way.
    """

    fits: str
    obstacles: Mapping[str, tuple[str, ...]]


def static_checks(
    knowledge: KnowledgeBase,
    inspection: Inspection,
    resolution: Resolution | None,
    *,
    strict: bool = True,
    options: Sequence[str] | None = None,
    manylinux: Manylinux | str,
) -> tuple[Check, ...]:
    """Check a wheel against a resolved profile; without one, what needs it is skipped.

    With `strict` the GPU code is exactly what was asked, else at least that. `options` are the compiler's
    (`compiler_options`), None where nobody knows them. `manylinux` may be the reason why there is no such fact.
    """
    return (
        _integrity(inspection),
        _name(inspection, resolution),
        _version(inspection, resolution),
        _python(inspection, resolution),
        _gpu_code(knowledge, inspection, resolution, strict=strict),
        *_components(knowledge, inspection, resolution),
        _cpu_baseline(knowledge, resolution, options),
        _manylinux(inspection, manylinux),
        _size(knowledge, inspection),
        _build_paths(knowledge, inspection),
    )


def unsound(knowledge: KnowledgeBase, error: WheelError) -> tuple[Check, ...]:
    """The checks of a file that is no sound wheel: the first has failed, and nothing is known for the others."""
    first, *others = static_names(knowledge)
    failed = Check(
        name=first,
        status="failed",
        expected="a sound wheel",
        found=f"{error.message} [{error.code}]",
        reason=error.fix,
    )
    return (failed, *(_skipped(name, "the file is not a sound wheel") for name in others))


def static_names(knowledge: KnowledgeBase) -> tuple[str, ...]:
    """The names of the static checks, in order; one for each component that an accelerator's row names."""
    components = [name for row in knowledge.accelerators.values() for name in row.components]
    before = ("file-integrity", "name", "version", "python", "gpu-code")
    return (*before, *dict.fromkeys(components), "cpu-baseline", "manylinux", "size", "build-paths")


def build_traces() -> tuple[bytes, ...]:
    """The folders of a build that no file of its wheel should name: this tool's, and Bazel's own for anybody."""
    caches = {path.rpartition("/")[0] for path in (REPOSITORY_CACHE, DISK_CACHE)}
    return tuple(one.encode() for one in (SOURCE, OUTPUT, STAGING, *sorted(caches), "/_bazel_"))


def _check(name: str, ok: bool, expected: str, found: str, otherwise: str, note: str = "") -> Check:
    """A check's result; `otherwise` is the reason if it has failed, `note` something to say if not."""
    if ok:
        return Check(name=name, status="passed", expected=expected, found=found, reason=note)
    return Check(name=name, status="failed", expected=expected, found=found, reason=otherwise)


def _skipped(name: str, reason: str, *, expected: str = "", found: str = "") -> Check:
    return Check(name=name, status="skipped", expected=expected, found=found, reason=reason)


def _some(findings: Sequence[str], between: str = "; ") -> str:
    """The first findings, and how many more there are."""
    more = len(findings) - _MOST
    return between.join([*findings[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def _files(paths: Iterable[str]) -> str:
    return _some([f"`{path}`" for path in paths], ", ")


# --- the file and its name ------------------------------------------------------------------------------------------


def _integrity(inspection: Inspection) -> Check:
    """RECORD says what is there, WHEEL what the name says, and every library could be read."""
    problems = [inspection.wheel.tag_problem] if inspection.wheel.tag_problem else []
    problems += [f"`{one.path}`: {one.message} [{one.code}]" for one in inspection.wheel.record_problems]
    problems += [f"`{one.path}`: {problem}" for one in inspection.libraries for problem in one.problems]
    return _check(
        "file-integrity",
        not problems,
        "every file as RECORD and WHEEL say, every library readable",
        f"{inspection.wheel.members} files, {len(inspection.libraries)} libraries",
        _some(problems),
    )


def _name(inspection: Inspection, resolution: Resolution | None) -> Check:
    found = inspection.wheel.name
    if resolution is None:
        return _skipped("name", _NO_PROFILE, found=found)
    expected = canonical_name(resolution.wheel_name)
    return _check("name", found == expected, expected, found, "pip would install it as another project")


def _version(inspection: Inspection, resolution: Resolution | None) -> Check:
    """The release's version and the local part that tells the wheel from the official one.

    Of a source that is not the release's own tag only the local part is known before.
    """
    found = inspection.wheel.version
    if resolution is None:
        return _skipped("version", _NO_PROFILE, found=found)
    local = f"+{resolution.local_version}" if resolution.local_version else ""
    if resolution.source.official:
        expected = normal_version(f"{resolution.version}{local}")
        reason = (
            "it is another release"
            if local_part(found) == local_part(expected)
            else "its local version is not the profile's"
        )
        return _check("version", same_version(found, expected), expected, found, reason)
    wanted = local_part(f"0{local}")
    expected = f"any version +{wanted}" if wanted else "any version without a local part"
    note = "the source is not the release's own tag, and may name another version"
    return _check(
        "version", local_part(found) == wanted, expected, found, "its local version is not the profile's", note
    )


def _python(inspection: Inspection, resolution: Resolution | None) -> Check:
    wheel = inspection.wheel
    found = f"{wheel.python_tag}-{wheel.abi_tag}"
    if resolution is None:
        return _skipped("python", _NO_PROFILE, found=found)
    ok = runs_on_python(wheel.python_tag, wheel.abi_tag, resolution.python)
    return _check("python", ok, f"CPython {resolution.python}", found, "that Python takes no wheel of such tags")


# --- GPU code -------------------------------------------------------------------------------------------------------


def _gpu_code(
    knowledge: KnowledgeBase, inspection: Inspection, resolution: Resolution | None, *, strict: bool
) -> Check:
    """What the libraries hold against what the profile asks: each on its own, since a union hides who lacks what."""
    holding = [one for one in own_libraries(knowledge, inspection.libraries) if _held(one)]
    found = _union(holding)
    if resolution is None:
        return _skipped("gpu-code", _NO_PROFILE, found=found)
    if not resolution.targets:
        return _no_gpu_code([one for one in inspection.libraries if _held(one)])
    expected = _listed(_made(resolution))
    if resolution.accelerator.target_field == _UNREAD_FIELD:
        reason = f"nothing here reads the code of {resolution.accelerator.accelerator}"
        return _skipped("gpu-code", reason, expected=expected, found=found)
    findings = _differences(holding, resolution, strict=strict)
    findings = findings if holding else ["no library of TensorFlow's own has any"]
    return _check("gpu-code", not findings, expected if strict else f"at least {expected}", found, _some(findings))


def _no_gpu_code(holding: Sequence[Library]) -> Check:
    reason = _some([f"`{one.path}`: {_listed(_held(one))}" for one in holding])
    return _check("gpu-code", not holding, "none", _union(holding), reason)


def _union(libraries: Iterable[Library]) -> str:
    return _listed(target for one in libraries for target in _held(one))


def _made(resolution: Resolution) -> tuple[str, ...]:
    """The code that a list of targets makes: `compute_86` is SASS and PTX where targets are capabilities."""
    if not resolution.accelerator.capabilities:
        return resolution.targets
    sass, ptx = code_of(resolution.targets)
    return (*sass, *ptx)


def _machine_code(resolution: Resolution) -> tuple[str, ...]:
    """Of that, what a GPU runs as it is. Containers without PTX are usual: NCCL's, which the device linker made."""
    return code_of(resolution.targets)[0] if resolution.accelerator.capabilities else resolution.targets


def _held(library: Library) -> frozenset[str]:
    """The targets of a library's kernels; containers of stubs hold none."""
    real = [one for one in library.loadable.containers if not one.stub]
    return frozenset(target for one in real for target in (*one.sass, *one.ptx, *one.amdgpu))


def _differences(holding: Sequence[Library], resolution: Resolution, *, strict: bool) -> list[str]:
    """A phrase for each way in which libraries differ from what was asked, and for containers that are incomplete."""
    asked, machine_code = frozenset(_made(resolution)), frozenset(_machine_code(resolution))
    groups: dict[str, list[str]] = {}
    for library in holding:
        held = _held(library)
        missing, extra = asked - held, held - asked if strict else frozenset()
        words = [f"no {_listed(missing)}"] if missing else []
        words += [f"but {_listed(extra)}" if missing else f"{_listed(extra)} besides"] if extra else []
        lacking = _incomplete(library, machine_code & held)
        for told in ([", ".join(words)] if words else []) + lacking:
            groups.setdefault(told, []).append(library.path)
    return [f"{_files(paths)}: {told}" for told, paths in groups.items()]


def _incomplete(library: Library, wanted: frozenset[str]) -> list[str]:
    """What some of a library's containers lack, though others hold it."""
    counts: dict[str, int] = {}
    for one in library.loadable.containers:
        lacking = wanted - {*one.sass, *one.amdgpu}
        if lacking and not one.stub:
            counts[_listed(lacking)] = counts.get(_listed(lacking), 0) + one.count
    return [f"no {lacking} in {count} of the containers" for lacking, count in counts.items()]


def _listed(targets: Iterable[str]) -> str:
    """Machine code before PTX, each by number; `none` for nothing."""

    def order(target: str) -> tuple[object, ...]:
        return (target.startswith("compute_"), target_order(target))

    return ", ".join(sorted(set(targets), key=order)) or "none"


# --- toolkit and libraries ------------------------------------------------------------------------------------------


def _components(knowledge: KnowledgeBase, inspection: Inspection, resolution: Resolution | None) -> Iterable[Check]:
    """Each component of each accelerator: the version in `build_info` against the one the profile asks."""
    seen: set[str] = set()
    for accelerator in knowledge.accelerators.values():
        for component in accelerator.components:
            if component not in seen:
                yield _component(accelerator, component, inspection, resolution)
            seen.add(component)


def _component(
    accelerator: Accelerator, component: str, inspection: Inspection, resolution: Resolution | None
) -> Check:
    title = accelerator.titles.get(component, component)
    found = built_with(inspection, component)
    if resolution is None:
        return _skipped(component, _NO_PROFILE, found=found)
    expected = resolution.components.get(component, "")
    if not expected:
        if not found:
            return _skipped(component, f"neither profile nor wheel has {title}")
        return _check(component, False, "none", found, f"its build_info names a {title} that the profile does not")
    if found:
        other = f"its build_info names another {title}"
        return _check(component, _agree(expected, found), expected, found, other, _coarser(expected, found))
    if inspection.build_info is None:
        return _skipped(component, "the wheel has no build_info", expected=expected)
    if inspection.build_info.get(f"is_{accelerator.accelerator}_build", True) is False:
        return _check(component, False, expected, "none", f"its build_info says that it is not built with {title}")
    return _skipped(component, f"its build_info does not say which {title}", expected=expected)


def _agree(expected: str, found: str) -> bool:
    """Whether two versions agree as far as both are written: 12.5.1 and 12.5, 9.3.0 and 9."""
    one, other = Version(expected), Version(found)
    return bool(other.parts) and (one.matches(other) or other.matches(one))


def _coarser(expected: str, found: str) -> str:
    less = len(Version(found).parts) < len(Version(expected).parts)
    return f"the wheel says no more than {found}" if less else ""


# --- CPU code -------------------------------------------------------------------------------------------------------


def compiler_options(
    knowledge: KnowledgeBase, environment: Mapping[str, str], bazel_flags: Sequence[str]
) -> tuple[str, ...]:
    """The C++ compiler's options of a build, from the environment and the flags of its plan, or of its record.

    Options of configurations are those that the rows of CPU features tell of; those for the build's own tools
    (`--host_copt`) are left out.
    """
    carriers = {row.variable for row in knowledge.variables if "{optimize_flags}" in row.value}
    options = [word for name in sorted(carriers) for word in environment.get(name, "").split()]
    for flag in bazel_flags:
        name, _, value = flag.partition("=")
        if name == "--config":
            options += [f"-m{row.feature}" for row in knowledge.cpu_features.values() if value in row.configs]
        elif name in ("--copt", "--conlyopt", "--cxxopt"):
            options.append(value)
        elif name == "--per_file_copt":
            options += value.rpartition("@")[2].split(",")
    return tuple(options)


def _cpu_baseline(knowledge: KnowledgeBase, resolution: Resolution | None, options: Sequence[str] | None) -> Check:
    """Which CPUs the build asked for, as far as its options are known: nothing in a wheel says it."""
    if options is None:
        return _skipped("cpu-baseline", "a wheel does not say for which CPUs it was compiled, and no record does")
    found = _cpus(knowledge, options)
    if resolution is None:
        return _skipped("cpu-baseline", _NO_PROFILE, found=found)
    asked = compiler_options(knowledge, resolution.environment, resolution.flags)
    expected = _cpus(knowledge, asked)
    return _check("cpu-baseline", found == expected, expected, found, "it was compiled with other options")


def _cpus(knowledge: KnowledgeBase, options: Sequence[str]) -> str:
    """`portable`, the instruction sets beyond that, or the one machine's CPU that `native` means."""
    native = sorted({match.group() for option in options if (match := NATIVE.search(option))})
    if native:
        return f"the CPU of the machine that builds (`{' '.join(native)}`)"
    features = {f"-m{row.feature}" for row in knowledge.cpu_features.values()}
    baselines = {f"-march={row.machine.replace('_', '-')}" for row in knowledge.images}
    # Families too: compilers learn of new sets before the rows do.
    telling = re.compile(r"-m(arch=|cpu=|amx|apx|avx|sse)")
    marked = {option for option in options if option in features or telling.match(option)}
    return " ".join(sorted(marked - baselines)) or "portable"


# --- where it can go ------------------------------------------------------------------------------------------------


def _manylinux(inspection: Inspection, fact: Manylinux | str) -> Check:
    tag = inspection.wheel.platform_tag
    if isinstance(fact, str):
        return _skipped("manylinux", fact, expected=tag)
    findings = [f"{one}: {_some(obstacles)}" for one, obstacles in fact.obstacles.items()]
    plain = all(one.startswith("linux_") for one in tag.split("."))
    note = "the tag promises no system but the like of the one that built it" if plain else ""
    return _check("manylinux", not findings, tag, fact.fits, _some(findings), note)


def _size(knowledge: KnowledgeBase, inspection: Inspection) -> Check:
    """Against the limits of the places where wheels usually go; too large for all of them is too large."""
    size, limits = inspection.wheel.size, sorted(knowledge.size_limits, key=lambda row: row.mib)
    exceeded = [f"{row.limit} ({row.mib} MiB)" for row in limits if size > row.mib * MIB]
    if not limits:
        return _skipped("size", "no limits are known", found=_mib(size))
    found = _mib(size) + (f", more than {'; '.join(exceeded)}" if exceeded else "")
    expected = f"at most {limits[-1].mib} MiB ({limits[-1].limit})"
    return _check("size", len(exceeded) < len(limits), expected, found, "it is too large for any of these places")


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def _build_paths(knowledge: KnowledgeBase, inspection: Inspection) -> Check:
    """No file names a folder of the build, and no library is looked for in a folder that only the build had."""
    findings = [f"`{trace}` stands in {_files(files)}" for trace, files in inspection.traces.items() if files]
    installed = [row.installed for row in knowledge.accelerators.values() if row.installed]
    groups: dict[str, list[str]] = {}
    for library in inspection.libraries:
        for entry in _places(library, lambda path: any(re.fullmatch(one, path) for one in installed)):
            groups.setdefault(entry, []).append(library.path)
    findings += [f"{entry} of {_files(paths)}" for entry, paths in groups.items()]
    return _check("build-paths", not findings, "none", str(len(findings) or "none"), _some(findings))


def _places(library: Library, allowed: Callable[[str], bool]) -> list[str]:
    """The entries of a library that lead to one place on one machine: found elsewhere, or not found."""
    paths = {"RUNPATH": library.runpath, "RPATH": library.rpath}
    entries = [(kind, path) for kind, found in paths.items() for path in found]
    fixed = [f"{kind} `{path}`" for kind, path in entries if not _relative(path) and not allowed(path)]
    return fixed + [f"DT_NEEDED `{name}`" for name in library.needed if "/" in name]


def _relative(path: str) -> bool:
    """Whether a search path goes out from the library itself. An empty one means the current folder."""
    return re.match(r"\$(ORIGIN|\{ORIGIN\})(/|\Z)", path) is not None
