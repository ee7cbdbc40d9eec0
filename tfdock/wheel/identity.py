"""Parse a wheel's name by the packaging standards, and write a constraints file that pins the wheel. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version


def canonical_name(name: str) -> str:
    """Return a name in the form that an index and pip compare: `tensorflow-cpu` for `tensorflow_cpu`."""
    return canonicalize_name(name)


def file_name(name: str) -> str:
    """Return a project's name in the form of wheel file names: `tensorflow_cpu` for `Tensorflow-CPU`."""
    return canonical_name(name).replace("-", "_")


def normal_version(text: str) -> str:
    """Return `2.18.0rc1+cuda12.5.sm86` for `2.18.0-RC1+CUDA12.5-sm86`; an invalid version unchanged."""
    try:
        return str(Version(text))
    except InvalidVersion:
        return text


def same_version(version: str, other: str) -> bool:
    """Return whether two texts mean the same version, with the same local part. 2.18 and 2.18.0 mean the same."""
    try:
        return Version(version) == Version(other)
    except InvalidVersion:
        return version == other


def local_part(version: str) -> str:
    """Return the local part of a version: `cuda12.5.sm86` for `2.18.0+cuda12.5.sm86`; empty without a local part."""
    return normal_version(version).partition("+")[2]


def runs_on_python(python_tag: str, abi_tag: str, python: str) -> bool:
    """Return whether a CPython of this minor version (`3.11`) installs a wheel with these tags.

    A free-threaded CPython does not count.
    """
    # Imported on use: most commands know a wheel's name only.
    from packaging.tags import compatible_tags, cpython_tags, parse_tag

    major, minor = (int(part) for part in python.split("."))
    number = f"{major}{minor}"
    # Up to 3.7 the ABI's name has the Python's configuration: m for its allocator, u for wide characters.
    abis = [f"cp{number}", f"cp{number}m", f"cp{number}mu"]
    supported = {
        # Only interpreter and ABI are compared, so the platform is `any` on both sides.
        *cpython_tags((major, minor), abis=abis, platforms=["any"]),
        *compatible_tags((major, minor), interpreter=f"cp{number}", platforms=["any"]),
    }
    return not supported.isdisjoint(parse_tag(f"{python_tag}-{abi_tag}-any"))


def constraints(build_id: str, files: Iterable[str]) -> str:
    """Return a constraints file that limits pip to the wheels of a build, given by file name.

    Raises packaging's InvalidWheelFilename for an invalid name.
    """
    # The local version belongs in the pin: `==2.18.0` alone matches any local version (PEP 440).
    pins = [f"{name}=={version}" for name, version in (parse_wheel_filename(file)[:2] for file in files)]
    about = f"# tfdock {build_id}: with `pip install -c` and this file, pip does not replace the wheel beside it."
    return "".join(f"{line}\n" for line in (about, *pins))
