"""Read what lies on an interpreter's path: which TensorFlow an import finds, who installed it, is it whole."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from importlib.machinery import PathFinder
from importlib.metadata import Distribution
from itertools import product
from os.path import realpath
from pathlib import Path

from packaging.utils import canonicalize_name

from tfdock.errors import ProfileError
from tfdock.host.foreign_json import Line, Malformed, parse
from tfdock.host.hardware import text_of
from tfdock.installed.interpreter import AskedPython, started_python
from tfdock.wheel import build_info

_OWN = ("\ntensorflow/__init__.py,", "\ntensorflow_core/__init__.py,")
_FAMILY = re.compile(r"tensorflow|tf-nightly")
_VERSION = re.compile(r"^(?:short_|__)?version(?:__)?(?::\s*\w+)?\s*=\s*[\"'](\d[\w.]*)[\"']", re.MULTILINE)
#: Files in which packages say their own version: a `.dist-info` folder may be a leftover.
VERSION_FILES: Mapping[str, Sequence[str]] = {
    "numpy": ("numpy/version.py", "numpy/_version.py"),
    "protobuf": ("google/protobuf/__init__.py",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    argv: list[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledWheel:
    """A distribution that installed a `tensorflow`: its name, version, METADATA's requirements and extras.

    `pythons` are the Pythons of its wheel's tags (`cp311`); `missing` and `changed` are files that are not there, and
    libraries of another size than its RECORD says: how many, and the first of them.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    pythons: tuple[str, ...]
    missing: tuple[int, str]
    changed: tuple[int, str]
    shut: str = ""  #: The first file that this user may not look at.

    @property
    def is_whole(self) -> bool:
        """Return whether its files lie there as it installed them."""
        return not self.missing[0] and not self.changed[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledTensorflow:
    """The `tensorflow` that an import finds.

    `origin` is the file that is run, empty for a folder without one; `folder` holds its libraries. `wheels` are those
    that installed files of this name into that place, the whole one first.
    """

    origin: str
    folder: Path
    wheels: tuple[InstalledWheel, ...]
    build_info: Mapping[str, object] | None
    loader: Path | None  #: The library that opens the GPU's libraries: `libtensorflow_framework.so.2`.


def tensorflow_python(text: str) -> tuple[AskedPython, Path]:
    """Return a Python, named as for `interpreter_at`, and its TensorFlow's folder. Raises ProfileError without."""
    found = started_python(text)
    tensorflow = find_tensorflow(found.path)
    if tensorflow is None:
        message = f"{found.program} has no TensorFlow"
        raise ProfileError.of(
            "tensorflow-missing", message, f"`{found.program} -m pip install tensorflow`, or a wheel"
        )
    return found, tensorflow.folder


def find_tensorflow(path: Sequence[str]) -> InstalledTensorflow | None:
    """Return the TensorFlow that an import finds on a sys.path; None without any."""
    found = PathFinder.find_spec("tensorflow", list(path))
    if found is None:
        return None
    origin = found.origin if found.has_location and found.origin else ""
    places = [Path(place) for place in found.submodule_search_locations or ()]
    folder = places[0] if places else Path(origin).parent
    # 1.15 to 2.1 have their files in a package beside it.
    core = folder.parent / "tensorflow_core"
    wheels = [_wheel(one) for one in _owners(str(folder.parent))] if places else []
    return InstalledTensorflow(
        origin=origin,
        folder=folder,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.missing[0] + wheel.changed[0])),
        build_info=_build_info(folder.parent),
        loader=next(
            (library for place in (folder, core) for library in sorted(place.glob("libtensorflow_framework.so*"))),
            None,
        ),
    )


def distributions(path: Sequence[str]) -> dict[str, tuple[str, Path]]:
    """Return the distributions on a sys.path: normalised name -> version and the folder that it is installed in.

    Of two with one name the first counts, as it does for an import.
    """
    found: dict[str, tuple[str, Path]] = {}
    for one in Distribution.discover(path=list(path)):
        head = _metadata(one)
        if name := head["Name"]:
            found.setdefault(canonicalize_name(name), (head["Version"] or "", Path(str(one.locate_file("")))))
    return found


def own_versions(path: Sequence[str]) -> dict[str, tuple[str, Path]]:
    """Return version and folder of the packages in `VERSION_FILES`, read from each package's own version file."""
    found: dict[str, tuple[str, Path]] = {}
    for name, files in VERSION_FILES.items():
        for folder, file in product(map(Path, path), files):
            if name not in found and (match := _VERSION.search(text_of(folder / file))):
                found[name] = match[1], folder
    return found


def foreign_numpy(path: Sequence[str], suffix: str) -> Path | None:
    """Return the core of the first NumPy on a sys.path, if none of its files has a Python's suffix for modules."""
    modules = ([*Path(folder).glob("numpy/*core/_multiarray_umath*.so")] for folder in path)
    found = next(filter(None, modules), [])
    fits = any(file.name.endswith((suffix, ".abi3.so", "_umath.so")) for file in found)
    return None if fits else next(iter(found), None)


def leftovers(path: Sequence[str]) -> tuple[Path, ...]:
    """Return what an interrupted pip left of a TensorFlow: `~ensorflow`, `~ensorflow-2.18.0.dist-info`."""
    return tuple(found for folder in path for found in sorted(Path(folder).glob("~*nsorflow*")))


def foreign_kernel(python: AskedPython) -> tuple[Path, str] | None:
    """Return the kernel.json of Jupyter's usual kernel in an environment, and its Python, if that is another one."""
    file = Path(python.prefix, "share/jupyter/kernels/python3/kernel.json")
    try:
        program = Path(next(iter(parse(_Kernel, text_of(file)).argv), ""))
    except Malformed:
        return None
    # Jupyter takes `python` for the one that it runs with itself.
    # Not `Path.resolve`: it ends with an error at links in a circle.
    inside = not program.is_absolute() or realpath(program.parent) == realpath(python.program.parent)
    return None if inside else (file, str(program))


def _owners(site: str) -> Iterator[Distribution]:
    """Yield the distributions of a folder whose RECORD lists TensorFlow's package."""
    for one in Distribution.discover(path=[site]):
        name = canonicalize_name(_metadata(one)["Name"] or "")
        record = f"\n{_read(one, 'RECORD')}" if _FAMILY.search(name) else ""
        if any(line in record for line in _OWN):
            yield one


def _read(one: Distribution, name: str) -> str:
    """Return a text of a `.dist-info` folder; empty if it is missing or damaged."""
    try:
        return one.read_text(name) or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _metadata(one: Distribution) -> Message:
    return HeaderParser().parsestr(_read(one, "METADATA") or _read(one, "PKG-INFO"))


def _wheel(one: Distribution) -> InstalledWheel:
    head, missing, changed, shut = _metadata(one), [], [], ""
    for file, recorded in _files(one):
        try:
            size = Path(str(one.locate_file(file))).stat().st_size
        except PermissionError:
            shut = shut or file
        except OSError:
            missing.append(file)
        else:
            # People edit sources; a library of another size was cut short, or is another build's.
            if ".so" in Path(file).name and recorded and size != int(recorded):
                changed.append(file)
    tags = re.findall(r"^Tag: (\w+)-", _read(one, "WHEEL"), re.MULTILINE)
    return InstalledWheel(
        name=head["Name"],
        version=head["Version"] or "",
        requires=tuple(head.get_all("Requires-Dist", ())),
        extras=tuple(head.get_all("Provides-Extra", ())),
        pythons=tuple(dict.fromkeys(tags)),
        missing=(len(missing), next(iter(missing), "")),
        changed=(len(changed), next(iter(changed), "")),
        shut=shut,
    )


def _files(one: Distribution) -> list[tuple[str, str]]:
    """Return the files of its RECORD with their sizes; none if RECORD cannot be read."""
    try:
        # Not `Distribution.files`: it leaves out the files that are missing, from Python 3.12 on.
        rows = [(file, size) for file, _, size in csv.reader(_read(one, "RECORD").splitlines())]
    except (csv.Error, ValueError):  # a line of other fields
        return []
    return rows if all(size.isdecimal() for _, size in rows if size) else []


def _build_info(site: Path) -> Mapping[str, object] | None:
    texts = (text_of(site / path) for path in build_info.PATHS)
    return next((build_info.build_info(text.encode()) for text in texts if text), None)
