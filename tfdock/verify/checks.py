"""Check a wheel without running it: compare facts from its bytes with the profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

from tfdock.gpu.opened_libraries import built_with, own_libraries
from tfdock.gpu.verdict import code_of
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import DISK_CACHE, OUTPUT, REPOSITORY_CACHE, SOURCE, STAGING
from tfdock.types import NATIVE, Version
from tfdock.wheel.facts import Library, WheelError, target_order
from tfdock.wheel.identity import canonical_name, local_part, normal_version, runs_on_python, same_version
from tfdock.wheel.inspection import Inspection

if TYPE_CHECKING:
    from tfdock.resolve.resolution import Resolution

Status = Literal["passed", "failed", "skipped"]

MIB = 1 << 20
_NO_PROFILE = "no profile to compare with"
#: The profile's field for the targets of custom accelerators. tfdock does not read their code.
_UNREAD_FIELD = "targets"
_MOST = 4  #: The maximum of listed findings of one kind. The others are only counted.


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a wheel. Its texts are short."""

    name: str  #: The name of the check.
    status: Status  #: The result of the check.
    expected: str = ""  #: The expected value; may be empty.
    found: str = ""  #: The actual value; may be empty.
    reason: str = ""  #: The reason for the status; empty for most passed checks.

    @property
    def account(self) -> str:
        """The expected and the actual value, and the reason, as far as known."""
        expected = f"expected {self.expected}" if self.expected else ""
        found = f"found {self.found}" if self.found else ""
        return "; ".join(part for part in (expected, found, self.reason) if part)


def passed(checks: Iterable[Check]) -> bool:
    """Return whether no check has failed."""
    return not any(check.status == "failed" for check in checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manylinux:
    """The systems on which a wheel's libraries can run, by auditwheel's policies.

    `fits` is the most compatible platform tag that the libraries satisfy: `manylinux_2_17_x86_64`, or `linux_x86_64`
    if no other tag fits. `obstacles` maps each tag in the wheel's name that does not fit to the reasons.
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
    """Check a wheel against a resolved profile. Without a profile, the checks that need it are skipped.

    The GPU code must include the requested code; with `strict` it must be equal to the requested code. `options` are
    the compiler's options (`compiler_options`), None if they are unknown. `manylinux` is the wheel's manylinux tag,
    or the reason why it is unknown.
    """
    return (
        _integrity(inspection),
        _name(inspection, resolution),
        _version(inspection, resolution),
        _python(inspection, resolution),
        _gpu_code(knowledge, inspection, resolution, strict=strict),
        *(_component(row, name, inspection, resolution) for name, row in _accelerators(knowledge).items()),
        _cpu_baseline(knowledge, resolution, options),
        _manylinux(inspection, manylinux),
        _size(knowledge, inspection),
        _build_paths(knowledge, inspection),
    )


def unsound_checks(knowledge: KnowledgeBase, error: WheelError) -> tuple[Check, ...]:
    """Return the checks of an invalid wheel: the first check has failed, the others are skipped."""
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
    """Return the names of the static checks, in order. Each component of an accelerator's row has its own check."""
    before = ("file-integrity", "name", "version", "python", "gpu-code")
    return (*before, *_accelerators(knowledge), "cpu-baseline", "manylinux", "size", "build-paths")


def build_traces() -> tuple[bytes, ...]:
    """Return the folders that no file of a wheel should name: tfdock's folders in the build, and Bazel's."""
    caches = {path.rpartition("/")[0] for path in (REPOSITORY_CACHE, DISK_CACHE)}
    # Bazel's output root is `_bazel_` with the user's name.
    return tuple(folder.encode() for folder in (SOURCE, OUTPUT, STAGING, *sorted(caches), "/_bazel_"))


def _check(name: str, ok: bool, expected: str, found: str, otherwise: str, note: str = "") -> Check:
    """Return a check's result. `otherwise` is the reason if it failed, `note` the reason if it passed."""
    if ok:
        return Check(name=name, status="passed", expected=expected, found=found, reason=note)
    return Check(name=name, status="failed", expected=expected, found=found, reason=otherwise)


def _skipped(name: str, reason: str, *, expected: str = "", found: str = "") -> Check:
    return Check(name=name, status="skipped", expected=expected, found=found, reason=reason)


def _shorten_list(findings: Sequence[str], between: str = "; ") -> str:
    """Return the first findings, and the number of the others."""
    more = len(findings) - _MOST
    return between.join([*findings[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def _list_files(paths: Iterable[str]) -> str:
    return _shorten_list([f"`{path}`" for path in paths], ", ")


# --- the file and its name ------------------------------------------------------------------------------------------


def _integrity(inspection: Inspection) -> Check:
    """Check that RECORD lists the files, WHEEL agrees with the name, and every library could be read."""
    problems = [inspection.wheel.tag_problem] if inspection.wheel.tag_problem else []
    problems += [f"`{row.path}`: {row.message} [{row.code}]" for row in inspection.wheel.record_problems]
    problems += [f"`{library.path}`: {text}" for library in inspection.libraries for text in library.problems]
    return _check(
        "file-integrity",
        not problems,
        "every file matches RECORD and WHEEL, every library is readable",
        f"{inspection.wheel.members} files, {len(inspection.libraries)} libraries",
        _shorten_list(problems),
    )


def _name(inspection: Inspection, resolution: Resolution | None) -> Check:
    found = inspection.wheel.name
    if resolution is None:
        return _skipped("name", _NO_PROFILE, found=found)
    expected = canonical_name(resolution.wheel_name)
    return _check("name", found == expected, expected, found, "pip would install it as another project")


def _version(inspection: Inspection, resolution: Resolution | None) -> Check:
    """Check the release's version, and the local part that distinguishes the wheel from the official wheel.

    For a source that is not the release's own tag, only the local part is known before the build.
    """
    found = inspection.wheel.version
    if resolution is None:
        return _skipped("version", _NO_PROFILE, found=found)
    local = f"+{resolution.local_version}" if resolution.local_version else ""
    # The release's own tag has the release's version. The version of any other source is known only after the build:
    # a fork's branch, for example, goes on to later patch releases.
    if resolution.source.official and resolution.source.location == resolution.release.repository:
        expected = normal_version(f"{resolution.version}{local}")
        reason = (
            "it is another release"
            if local_part(found) == local_part(expected)
            else "not the profile's local version"
        )
        return _check("version", same_version(found, expected), expected, found, reason)
    local_version = local_part(f"0{local}")
    expected = f"any version +{local_version}" if local_version else "any version without a local part"
    note = "the source is not the release's own tag, so it may have another version"
    return _check(
        "version", local_part(found) == local_version, expected, found, "not the profile's local version", note
    )


def _python(inspection: Inspection, resolution: Resolution | None) -> Check:
    wheel = inspection.wheel
    found = f"{wheel.python_tag}-{wheel.abi_tag}"
    if resolution is None:
        return _skipped("python", _NO_PROFILE, found=found)
    ok = runs_on_python(wheel.python_tag, wheel.abi_tag, resolution.python)
    return _check("python", ok, f"CPython {resolution.python}", found, "this Python rejects wheels with these tags")


# --- GPU code -------------------------------------------------------------------------------------------------------


def _gpu_code(
    knowledge: KnowledgeBase, inspection: Inspection, resolution: Resolution | None, *, strict: bool
) -> Check:
    """Compare each library with the profile. A union of all libraries would hide which library lacks a target."""
    holding = [library for library in own_libraries(knowledge, inspection.libraries) if _held_targets(library)]
    found = _union(holding)
    if resolution is None:
        return _skipped("gpu-code", _NO_PROFILE, found=found)
    if not resolution.targets:
        # Bundled libraries count here: no library in a CPU wheel should have GPU code.
        return _no_gpu_code([library for library in inspection.libraries if _held_targets(library)])
    expected = _format_targets(chain(*_asked_code(resolution)))
    # Skipped, not passed: tfdock has not read this code.
    if resolution.accelerator.target_field == _UNREAD_FIELD:
        reason = f"tfdock cannot read the code of {resolution.accelerator.accelerator}"
        return _skipped("gpu-code", reason, expected=expected, found=found)
    findings = _differences(holding, resolution, strict=strict)
    findings = findings if holding else ["none of TensorFlow's own libraries has GPU code"]
    return _check(
        "gpu-code", not findings, expected if strict else f"at least {expected}", found, _shorten_list(findings)
    )


def _no_gpu_code(holding: Sequence[Library]) -> Check:
    reason = _shorten_list([f"`{library.path}`: {_format_targets(_held_targets(library))}" for library in holding])
    return _check("gpu-code", not holding, "none", _union(holding), reason)


def _union(libraries: Iterable[Library]) -> str:
    return _format_targets(target for library in libraries for target in _held_targets(library))


def _asked_code(resolution: Resolution) -> tuple[Sequence[str], Sequence[str]]:
    """Return the machine code and the PTX of the targets. `compute_86` stands for both; AMD targets have no PTX."""
    return code_of(resolution.targets) if resolution.accelerator.capabilities else (resolution.targets, ())


def _held_targets(library: Library) -> frozenset[str]:
    """Return the targets of a library's kernels. Stub containers do not count: they have no kernels."""
    containers = [container for container in library.loadable.containers if not container.stub]
    return frozenset(
        target for container in containers for target in (*container.sass, *container.ptx, *container.amdgpu)
    )


def _differences(holding: Sequence[Library], resolution: Resolution, *, strict: bool) -> list[str]:
    """Return a phrase for each difference between libraries and profile, and for incomplete containers."""
    machine_code, ptx = map(frozenset, _asked_code(resolution))
    asked = machine_code | ptx
    groups: dict[str, list[str]] = {}
    for library in holding:
        held = _held_targets(library)
        missing, extra = asked - held, held - asked if strict else frozenset()
        words = [f"no {_format_targets(missing)}"] if missing else []
        words += (
            [f"but {_format_targets(extra)}" if missing else f"{_format_targets(extra)} besides"] if extra else []
        )
        # A target that the whole library lacks is reported above. PTX is not compared here: the device linker makes
        # NCCL's containers, which have none.
        lacking = _incomplete(library, machine_code & held)
        for phrase in ([", ".join(words)] if words else []) + lacking:
            groups.setdefault(phrase, []).append(library.path)
    return [f"{_list_files(paths)}: {phrase}" for phrase, paths in groups.items()]


def _incomplete(library: Library, asked: frozenset[str]) -> list[str]:
    """Return a phrase for each target that only some of a library's containers have."""
    counts: dict[str, int] = {}
    for container in library.loadable.containers:
        lacking = asked - {*container.sass, *container.amdgpu}
        if lacking and not container.stub:
            counts[_format_targets(lacking)] = counts.get(_format_targets(lacking), 0) + container.count
    return [f"no {lacking} in {count} of the containers" for lacking, count in counts.items()]


def _format_targets(targets: Iterable[str]) -> str:
    """Return targets as text: machine code before PTX, each by number; `none` for no targets."""

    def order(target: str) -> tuple[object, ...]:
        return (target.startswith("compute_"), target_order(target))

    return ", ".join(sorted(set(targets), key=order)) or "none"


# --- toolkit and libraries ------------------------------------------------------------------------------------------


def _accelerators(knowledge: KnowledgeBase) -> dict[str, Accelerator]:
    """Return each component's accelerator. The first counts if several share a component: it gets only one check."""
    accelerators: dict[str, Accelerator] = {}
    for accelerator in knowledge.accelerators.values():
        for component in accelerator.components:
            accelerators.setdefault(component, accelerator)
    return accelerators


def _component(
    accelerator: Accelerator, component: str, inspection: Inspection, resolution: Resolution | None
) -> Check:
    """Compare a component's version in `build_info` with the profile."""
    title = accelerator.title_of(component)
    found = built_with(inspection, component)
    if resolution is None:
        return _skipped(component, _NO_PROFILE, found=found)
    expected = resolution.components.get(component, "")
    if not expected:
        if not found:
            return _skipped(component, f"neither the profile nor the wheel has {title}")
        return _check(component, False, "none", found, f"its build_info names a {title}, the profile names none")
    if found:
        reason = f"its build_info names another {title}"
        less = len(Version(found).parts) < len(Version(expected).parts)
        note = f"the wheel states only {found}" if less else ""
        return _check(component, _versions_agree(expected, found), expected, found, reason, note)
    if inspection.build_info is None:
        return _skipped(component, "the wheel has no build_info", expected=expected)
    # Some releases do not list the versions: a missing entry is no proof of another build.
    if inspection.build_info.get(f"is_{accelerator.accelerator}_build", True) is False:
        return _check(component, False, expected, "none", f"its build_info states a build without {title}")
    return _skipped(component, f"its build_info does not state the version of {title}", expected=expected)


def _versions_agree(expected: str, found: str) -> bool:
    """Return whether two versions agree in the numbers that both state: 12.5.1 and 12.5, 9.3.0 and 9."""
    asked, reported = Version(expected), Version(found)
    return bool(reported.parts) and (asked.matches(reported) or reported.matches(asked))


# --- CPU code -------------------------------------------------------------------------------------------------------


def compiler_options(
    knowledge: KnowledgeBase, environment: Mapping[str, str], bazel_flags: Sequence[str]
) -> tuple[str, ...]:
    """Return the C++ compiler's options of a build, from the environment and flags of its plan or record.

    A `--config` stands for the options of the CPU features whose rows name this `--config`. Options for the build's
    own tools (`--host_copt`) are left out.
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
            # Bazel's form is `+regex,-regex@option,option`. A regex may hold `@`.
            options += value.rpartition("@")[2].split(",")
    return tuple(options)


def _cpu_baseline(knowledge: KnowledgeBase, resolution: Resolution | None, options: Sequence[str] | None) -> Check:
    """Check for which CPUs the wheel was compiled, if the options are known. No file of a wheel names the options."""
    if options is None:
        return _skipped("cpu-baseline", "neither the wheel nor a record states its CPU features")
    found = _cpus(knowledge, options)
    if resolution is None:
        return _skipped("cpu-baseline", _NO_PROFILE, found=found)
    asked = compiler_options(knowledge, resolution.environment, resolution.flags)
    expected = _cpus(knowledge, asked)
    return _check("cpu-baseline", found == expected, expected, found, "it was compiled with other options")


def _cpus(knowledge: KnowledgeBase, options: Sequence[str]) -> str:
    """Return the options that add instruction sets, else `portable`; for `native`, a text that names the CPU."""
    # Check this before the features: `native` means all features of the machine.
    native = sorted({match.group() for option in options if (match := NATIVE.search(option))})
    if native:
        return f"the CPU of the build machine (`{' '.join(native)}`)"
    features = {f"-m{row.feature}" for row in knowledge.cpu_features.values()}
    # `-march=x86-64` adds nothing: every such machine has these instructions. The kernel spells it `x86_64`.
    baselines = {f"-march={row.machine.replace('_', '-')}" for row in knowledge.images}
    # Match families of options too: compilers support new instruction sets before the rows list them.
    telling = re.compile(r"-m(arch=|cpu=|amx|apx|avx|sse)")
    marked = {option for option in options if option in features or telling.match(option)}
    return " ".join(sorted(marked - baselines)) or "portable"


# --- where it can go ------------------------------------------------------------------------------------------------


def _manylinux(inspection: Inspection, fact: Manylinux | str) -> Check:
    tag = inspection.wheel.platform_tag
    if isinstance(fact, str):
        return _skipped("manylinux", fact, expected=tag)
    # A wheel's name may have several platform tags, and must satisfy every one.
    findings = [f"{name}: {_shorten_list(obstacles)}" for name, obstacles in fact.obstacles.items()]
    plain = all(name.startswith("linux_") for name in tag.split("."))
    note = "the tag only fits systems like the build system" if plain else ""
    return _check("manylinux", not findings, tag, fact.fits, _shorten_list(findings), note)


def _size(knowledge: KnowledgeBase, inspection: Inspection) -> Check:
    """Compare the size with the limits of usual package indexes. A wheel above all limits fails."""
    size, limits = inspection.wheel.size, sorted(knowledge.size_limits, key=lambda row: row.mib)
    exceeded = [f"{row.limit} ({row.mib} MiB)" for row in limits if size > row.mib * MIB]
    if not limits:
        return _skipped("size", "no size limits are known", found=_mib(size))
    found = _mib(size) + (f", more than {'; '.join(exceeded)}" if exceeded else "")
    expected = f"at most {limits[-1].mib} MiB ({limits[-1].limit})"
    return _check("size", len(exceeded) < len(limits), expected, found, "it is too large for all of these services")


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def _build_paths(knowledge: KnowledgeBase, inspection: Inspection) -> Check:
    """Check that no file names a folder of the build, and that no library searches a folder fixed by the build."""
    findings = [f"`{trace}` stands in {_list_files(files)}" for trace, files in inspection.traces.items() if files]
    # CUDA and ROCm have the same folder on every machine, so a path into this folder is valid on other machines too.
    installed = [row.installed for row in knowledge.accelerators.values() if row.installed]
    groups: dict[str, list[str]] = {}
    for library in inspection.libraries:
        for entry in _fixed_places(library, lambda path: any(re.fullmatch(pattern, path) for pattern in installed)):
            groups.setdefault(entry, []).append(library.path)
    findings += [f"{entry} of {_list_files(paths)}" for entry, paths in groups.items()]
    return _check("build-paths", not findings, "none", str(len(findings) or "none"), _shorten_list(findings))


def _fixed_places(library: Library, allowed: Callable[[str], bool]) -> list[str]:
    """Return the search entries of a library that name a fixed folder, which other machines may lack."""
    paths = {"RUNPATH": library.runpath, "RPATH": library.rpath}
    entries = [(kind, path) for kind, entries_of_kind in paths.items() for path in entries_of_kind]
    fixed = [f"{kind} `{path}`" for kind, path in entries if not _relative(path) and not allowed(path)]
    # ld.so(8): a name with a slash is taken as a path, and is not searched for.
    return fixed + [f"DT_NEEDED `{name}`" for name in library.needed if "/" in name]


def _relative(path: str) -> bool:
    """Return whether a search path starts at the library itself. An empty path means the current folder."""
    return re.match(r"\$(ORIGIN|\{ORIGIN\})(/|\Z)", path) is not None
