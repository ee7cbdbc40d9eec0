"""Read the packages on an interpreter's path: which TensorFlow an import finds, what installed it, is it complete."""

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
#: Files in which packages state their version. (A `.dist-info` folder may be left over from another version.)
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

    `pythons` are the Pythons in the wheel's tags (`cp311`). `missing` are its missing files, `changed` its libraries
    with another size than RECORD states: the number of these files, and the first one.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    pythons: tuple[str, ...]
    missing: tuple[int, str]
    changed: tuple[int, str]
    shut: str = ""  #: The first file that this user may not access; else empty.

    @property
    def is_whole(self) -> bool:
        """Whether all files are as the distribution installed them."""
        return not self.missing[0] and not self.changed[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledTensorflow:
    """The `tensorflow` that an import finds.

    `origin` is the file that the import runs, empty for a folder without `__init__.py`; `folder` holds its
    libraries. `wheels` are the distributions that installed this package there, the most complete one first.
    """

    origin: str
    folder: Path
    wheels: tuple[InstalledWheel, ...]
    build_info: Mapping[str, object] | None
    loader: Path | None  #: The library that opens the GPU's libraries: `libtensorflow_framework.so.2`.


def tensorflow_python(text: str) -> tuple[AskedPython, Path]:
    """Return the Python that `interpreter_at` finds, and its TensorFlow's folder. Raises ProfileError if missing."""
    found = started_python(text)
    tensorflow = find_tensorflow(found.path)
    if tensorflow is None:
        message = f"{found.program} has no TensorFlow"
        raise ProfileError.of(
            "tensorflow-missing", message, f"`{found.program} -m pip install tensorflow`, or install a wheel"
        )
    return found, tensorflow.folder


def find_tensorflow(path: Sequence[str]) -> InstalledTensorflow | None:
    """Return the TensorFlow that an import finds on a sys.path; None if there is none."""
    found = PathFinder.find_spec("tensorflow", list(path))
    if found is None:
        return None
    origin = found.origin if found.has_location and found.origin else ""
    places = [Path(place) for place in found.submodule_search_locations or ()]
    folder = places[0] if places else Path(origin).parent
    # 1.15 to 2.1 have their files in another package, beside `tensorflow`.
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
    """Return the distributions on a sys.path: normalised name -> version and installation folder.

    If two distributions have the same name, the first one counts, as for an import.
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
    """Return the core module of the first NumPy on a sys.path, if none of its core modules is for this Python."""
    modules = ([*Path(folder).glob("numpy/*core/_multiarray_umath*.so")] for folder in path)
    found = next(filter(None, modules), [])
    fits = any(file.name.endswith((suffix, ".abi3.so", "_umath.so")) for file in found)
    return None if fits else next(iter(found), None)


def leftovers(path: Sequence[str]) -> tuple[Path, ...]:
    """Return the leftovers of a TensorFlow from an interrupted pip: `~ensorflow`, `~ensorflow-2.18.0.dist-info`."""
    return tuple(found for folder in path for found in sorted(Path(folder).glob("~*nsorflow*")))


def foreign_kernel(python: AskedPython) -> tuple[Path, str] | None:
    """Return the kernel.json and the Python of an environment's default Jupyter kernel, if it has another Python."""
    file = Path(python.prefix, "share/jupyter/kernels/python3/kernel.json")
    try:
        program = Path(next(iter(parse(_Kernel, text_of(file)).argv), ""))
    except Malformed:
        return None
    # For `python`, Jupyter takes the Python that runs Jupyter itself.
    # Not `Path.resolve`, which raises an error for a loop of links.
    inside = not program.is_absolute() or realpath(program.parent) == realpath(python.program.parent)
    return None if inside else (file, str(program))


def _owners(site: str) -> Iterator[Distribution]:
    """Yield the distributions in a folder whose RECORD lists TensorFlow's package."""
    for one in Distribution.discover(path=[site]):
        name = canonicalize_name(_metadata(one)["Name"] or "")
        record = f"\n{_read(one, 'RECORD')}" if _FAMILY.search(name) else ""
        if any(line in record for line in _OWN):
            yield one


def _read(one: Distribution, name: str) -> str:
    """Return the text of a file in `.dist-info`; empty if the file is missing or damaged."""
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
            # People may edit sources. A library of another size is truncated, or from another build.
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
    """Return the files in RECORD with their sizes; empty if RECORD cannot be read."""
    try:
        # Not `Distribution.files`: from Python 3.12 on, it leaves out missing files.
        rows = [(file, size) for file, _, size in csv.reader(_read(one, "RECORD").splitlines())]
    except (csv.Error, ValueError):  # a line without exactly three fields
        return []
    return rows if all(size.isdecimal() for _, size in rows if size) else []


def _build_info(site: Path) -> Mapping[str, object] | None:
    texts = (text_of(site / path) for path in build_info.PATHS)
    return next((build_info.build_info(text.encode()) for text in texts if text), None)
