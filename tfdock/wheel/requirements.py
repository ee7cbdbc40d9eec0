"""Parse the Requires-Dist lines of a wheel into packages and the versions that satisfy them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    from packaging.markers import Marker
    from packaging.requirements import Requirement

# The wheel will run in a Linux container. This machine's own values would make the result depend on the machine.
_ENVIRONMENT = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "sys_platform": "linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredPackage:
    """A package that pip installs with the wheel. `package` is its normalised name.

    If `exact`, pip installs version `oldest`. If not, pip installs the newest version, or the newest below `before`
    if that is set; `oldest` may then be empty.
    """

    package: str
    oldest: str
    before: str | None = None
    exact: bool = False


def wanted(
    lines: Iterable[str], extras: Sequence[str] = (), *, python: str = "3.11", machine: str = "x86_64"
) -> tuple[RequiredPackage, ...]:
    """Return the packages of Requires-Dist lines that apply without an extra, or with one of `extras`.

    The markers are evaluated for Linux with this Python and CPU. An invalid line is left out.
    """
    environment = {
        **_ENVIRONMENT,
        # A wheel's tags name no patch release, so patch release 0 stands for all.
        "implementation_version": f"{python}.0",
        "platform_machine": machine,
        "python_full_version": f"{python}.0",
        "python_version": python,
    }
    return tuple(
        _required_package(requirement)
        for requirement in _requirements(lines)
        if requirement.marker is None
        or any(_holds(requirement.marker, environment | {"extra": extra}) for extra in ("", *extras))
    )


def _requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    # Imported here: `check` loads this module, but reads no requirements.
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        try:
            yield Requirement(line)
        # Old wheels have lines that today's parser refuses. The other lines still count.
        except InvalidRequirement:
            continue


def _holds(marker: Marker, environment: dict[str, str]) -> bool:
    try:
        return marker.evaluate(environment)
    except ValueError:  # UndefinedComparison, UndefinedEnvironmentName
        return False


def _required_package(requirement: Requirement) -> RequiredPackage:
    package = canonicalize_name(requirement.name)
    exact = next((text for spec in requirement.specifier if (text := _exact(spec))), "")
    if exact:
        return RequiredPackage(package=package, oldest=exact, exact=True)
    bounds = [_bounds(spec) for spec in requirement.specifier]
    oldest = max((lower for lower, _ in bounds if lower), key=_parts, default="")
    before = min((upper for _, upper in bounds if upper), key=_parts, default=None)
    return RequiredPackage(package=package, oldest=oldest, before=before)


def _exact(spec: Specifier) -> str:
    # `==12.5.*` is a range (PEP 440, version matching), and `===` is compared as text.
    return "" if spec.operator not in ("==", "===") or spec.version.endswith(".*") else _release(spec)


def _bounds(spec: Specifier) -> tuple[str, str]:
    """Return the lowest version of a specifier, and the first version that is too new; empty without a limit."""
    release = _release(spec)
    match spec.operator if release else "":
        case ">=" | ">":
            return release, ""
        case "<":
            return "", release
        case "<=":
            return "", f"{release}.1"  # the first version that is too new: any version after it
        # `~=12.5.1` stands for `>=12.5.1, ==12.5.*` (PEP 440, compatible release).
        case "~=":
            return release, _next(release.rpartition(".")[0])
        case "==":
            return release, _next(release)
    return "", ""


def _release(spec: Specifier) -> str:
    """Return the version's numbers alone; empty for an invalid version."""
    try:
        return ".".join(map(str, Version(spec.version.removesuffix(".*")).release))
    except ValueError:  # InvalidVersion, and thousands of digits
        return ""


def _next(version: str) -> str:
    """Return `12.6` for 12.5: the end of `12.5.*`."""
    *before, last = _parts(version)
    return ".".join(map(str, [*before, last + 1]))


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
