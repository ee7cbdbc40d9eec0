"""Find the manylinux tag that a wheel's libraries satisfy, by auditwheel's policies.

auditwheel itself unpacks the wheel and reads every library, and the libraries of the machine that it runs on. This
module compares auditwheel's tables with the facts of `tfdock.wheel`. Four checks of auditwheel are left out, because
they need the symbols of each library: private symbols of zlib and glibc that a policy forbids; `PyFPE_jbuf`; the
narrow Unicode of Python 2; a GNU property note that requires more than the machine's baseline instruction sets. A
library that is not in the wheel counts as missing, even if this machine has it (auditwheel would read it from the
machine). Wheels for musl are not judged.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from auditwheel.architecture import Architecture  # type: ignore[import-untyped]
from auditwheel.libc import Libc  # type: ignore[import-untyped]
from auditwheel.policy import WheelPolicies  # type: ignore[import-untyped]

from tfdock.verify.checks import Manylinux
from tfdock.wheel.facts import Library
from tfdock.wheel.inspection import Inspection

_LOADER = re.compile(r"ld-linux|ld64\.so\.[12]\Z")  #: Names of the dynamic loader, which every system has.
_NUMBERED = re.compile(r"manylinux_(\d+)_(\d+)_")


def audit(inspection: Inspection, brought: Collection[str] = ()) -> Manylinux | str:
    """Return the tag that a wheel's libraries satisfy, or the reason why there is no answer.

    `brought` are the names of libraries in other wheels that this wheel requires.
    """
    tags = inspection.wheel.platform_tag.split(".")
    machine = next(
        (architecture.value for architecture in Architecture if tags[0].endswith(f"_{architecture.value}")), None
    )
    if machine is None or not tags[0].startswith(("manylinux", "linux_")):
        return f"auditwheel's policies for glibc do not cover {inspection.wheel.platform_tag}"
    # Libraries for other machines are data: the loader never opens them.
    libraries = [library for library in inspection.libraries if library.machine == machine]
    if not libraries:
        return f"the wheel has no library for {machine}"
    policies = list(WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine)))
    obstacles = {policy.name: _obstacles(policy, libraries, brought) for policy in policies}
    # In reverse order: the policy with the oldest glibc fits the most systems.
    fits = next(policy.name for policy in reversed(policies) if not obstacles[policy.name])
    named = {tag: _promised_policy(tag, policies) for tag in tags}
    unmet = {tag: obstacles[policy.name] for tag, policy in named.items() if policy and obstacles[policy.name]}
    unknown = {tag: ("auditwheel does not know this tag",) for tag, policy in named.items() if policy is None}
    return Manylinux(fits=fits, obstacles=unmet | unknown)


def _promised_policy(tag: str, policies: Iterable[Any]) -> Any | None:
    """Return a tag's own policy, else the policy of the newest glibc not newer than the tag's glibc (PEP 600).

    `policies` begin with the policy that promises nothing, then go from the newest glibc to the oldest.
    """
    match = _NUMBERED.match(tag)
    for policy in policies:
        own = _NUMBERED.match(policy.name)
        not_newer = match and own and _numbers(own) <= _numbers(match)
        # The first match is the newest allowed glibc, because the policies go from new to old.
        if tag == policy.name or tag in policy.aliases or not_newer:
            return policy
    return None


def _numbers(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])


def _obstacles(policy: Any, libraries: Iterable[Library], brought: Collection[str]) -> tuple[str, ...]:
    """Return a phrase for each symbol version, then each library, that the wheel needs and the policy lacks."""
    if not policy.whitelist:
        return ()  # a plain `linux_…` tag promises nothing: nothing can be missing
    symbol_versions: Mapping[str, frozenset[str]] = policy.symbol_versions
    symbols: dict[str, list[str]] = {}
    for library in libraries:
        for needed, versions in library.versions.items():
            # auditwheel leaves out the loader's versions too.
            for version in () if _LOADER.match(needed) else versions:
                name, _, number = version.partition("_")
                # A policy limits only the libraries whose versions it lists.
                if name in symbol_versions and number not in symbol_versions[name]:
                    symbols.setdefault(f"wants {version} of {needed}", []).append(library.path)
    missing: dict[str, list[str]] = {}
    for path, needed in _outside(libraries, policy.whitelist | {*brought}):
        missing.setdefault(f"needs {needed}, which is not in the wheel", []).append(path)
    return tuple(_format_obstacle(want, sorted(set(paths))) for want, paths in [*symbols.items(), *missing.items()])


def _format_obstacle(want: str, paths: list[str]) -> str:
    return f"`{paths[0]}` {want}" if len(paths) == 1 else f"`{paths[0]}` and {len(paths) - 1} more: {want}"


def _outside(libraries: Iterable[Library], allowed: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (library, needed library) for each need that the policy does not allow and the loader does not find.

    The loader's search begins at libraries that no other library of the wheel needs: Python loads these itself.
    """
    by_path = {library.path: library for library in libraries}
    by_name = {name for library in by_path.values() for name in library.needed}
    for root in by_path.values():
        if posixpath.basename(root.path) not in by_name:
            yield from _outside_of(root, by_path, allowed)


def _outside_of(root: Library, by_path: Mapping[str, Library], allowed: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the same for a library and all that it needs. These search the RPATH and RUNPATH of that library too."""
    seen: set[str] = set()
    todo = [root]
    while todo:
        library = todo.pop()
        for needed in library.needed:
            # Libraries can need each other in a circle.
            if needed in seen or needed in allowed or _LOADER.match(needed):
                continue
            seen.add(needed)
            # ld.so(8): RPATH before RUNPATH.
            folders = [*_folders(root.path, root.rpath), *_folders(library.path, library.rpath)]
            folders += [*_folders(library.path, library.runpath), *_folders(root.path, root.runpath)]
            provider = next((path for folder in folders if (path := posixpath.join(folder, needed)) in by_path), None)
            if provider is None:
                yield library.path, needed
            else:
                todo.append(by_path[provider])


@lru_cache(maxsize=10_000)  # called for each policy and each library that is needed
def _folders(path: str, entries: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of the wheel that the RPATH or RUNPATH of a library names."""
    here = posixpath.dirname(path)
    named = [match for entry in entries if (match := re.match(r"\$(?:ORIGIN|\{ORIGIN\})(?:/(.*)|\Z)", entry))]
    return tuple(posixpath.normpath(posixpath.join(here, match[1] or "")) for match in named)
