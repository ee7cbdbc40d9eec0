"""Gather the facts to judge: an environment's interpreter, packages and libraries, and the machine's driver."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfdock.gpu.gpu_facts import facts_of_release
from tfdock.gpu.opened_libraries import opened_by
from tfdock.host.hardware import local_host, nearest, text_of
from tfdock.installed.interpreter import AskedPython, interpreter_at
from tfdock.installed.loader_search import FoundLibrary, Loader, Needs
from tfdock.installed.nvidia_driver import NvidiaDriver, read_driver
from tfdock.installed.packages import (
    InstalledTensorflow,
    InstalledWheel,
    distributions,
    find_tensorflow,
    foreign_kernel,
    foreign_numpy,
    leftovers,
    own_versions,
)
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.toolkit_rows import RuntimeCompiler
from tfdock.knowledge.wheel_rows import RuntimeLibrary
from tfdock.types import Host, Version

VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
_STDCXX = "libstdc++.so.6"
_COMPILER = "libnvidia-ptxjitcompiler.so.1"
#: Folders of a CUDA that pip did not install. The loader searches them if LD_LIBRARY_PATH or ld.so.conf says so.
_TOOLKITS = ("usr/local/cuda*", "usr/lib/cuda*", "opt/cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLibrary:
    """A library that TensorFlow loads by its name: the file that the loader finds, and similar files.

    `owner` is the distribution that installed the found file; `version` is its version. Without an owner, `version`
    comes from file names, or is empty. `unsearched` are files of the same name in folders that are not searched,
    `others` are files of the same library with another number.
    """

    row: RuntimeLibrary
    found: FoundLibrary
    owner: str = ""
    version: str = ""
    unsearched: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()

    def is_brought_by(self, package: str) -> bool:
        """Return whether a PyPI package contains the library, whatever CUDA version the package is for."""
        pattern = re.escape(self.row.package or "").replace(re.escape("{major}"), r"\d+")
        return re.fullmatch(pattern, package) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The facts of an environment. `variables` are the relevant environment variables of this process."""

    interpreter: AskedPython
    tensorflow: InstalledTensorflow | None = None
    accelerator: Accelerator | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    #: The folder of each package of `versions` that an import may find outside of the environment.
    folders: Mapping[str, Path] = field(default_factory=dict)
    foreign_numpy: Path | None = None
    foreign_kernel: tuple[Path, str] | None = None
    leftovers: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    opened: tuple[OpenedLibrary, ...] = ()
    #: The libstdc++ that the loader finds, and the version that it lacks (`GLIBCXX_3.4.30`); empty if it lacks none.
    old_stdcxx: tuple[str, str] = ("", "")
    driver: NvidiaDriver = field(default_factory=NvidiaDriver)
    host: Host = field(default_factory=Host)
    cpu_flags: frozenset[str] = frozenset()
    uncached: str = ""  #: Why the driver does not cache compiled kernels; empty if it does.
    uncompiled: str = ""  #: Why the driver compiles no PTX; empty if it does, or if unknown.
    without_bitcode: RuntimeCompiler | None = None  #: A compiler that needs a missing file of the toolkit.

    @property
    def expects_gpu(self) -> bool:
        """Whether TensorFlow is built for NVIDIA's GPUs and such a GPU is here."""
        return self.accelerator is not None and self.accelerator.accelerator == "cuda" and self.driver.has_gpu

    @property
    def wheels(self) -> tuple[InstalledWheel, ...]:
        """The distributions that installed the TensorFlow, the most complete one first."""
        return self.tensorflow.wheels if self.tensorflow else ()

    @property
    def version(self) -> str:
        """The installed TensorFlow's version; empty if no distribution states it."""
        return self.wheels[0].version if self.wheels else ""

    @property
    def minor(self) -> str:
        """The TensorFlow's minor release, `2.18`; empty if unknown."""
        match = re.match(r"\d+\.\d+", self.version)
        return match[0] if match else ""


def read_environment(text: str, knowledge: KnowledgeBase) -> Environment:
    """Return the environment of an interpreter that a user names. Raises ProfileError if there is none."""
    interpreter = interpreter_at(text)
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    tensorflow = find_tensorflow(interpreter.path) if not interpreter.trouble else None
    packages = distributions(interpreter.path)
    own = own_versions(interpreter.path)
    found = Environment(
        interpreter=interpreter,
        tensorflow=tensorflow,
        accelerator=_accelerator(tensorflow, knowledge) if tensorflow else None,
        versions={name: version for name, (version, _) in (packages | own).items()},
        folders={name: folder for name, (_, folder) in own.items()},
        foreign_numpy=foreign_numpy(interpreter.path, interpreter.suffix),
        foreign_kernel=foreign_kernel(interpreter),
        leftovers=leftovers(interpreter.path),
        variables=variables,
        driver=read_driver(),
        host=local_host() if tensorflow else Host(),  # drivers' tools can take seconds
        cpu_flags=_cpu_flags(),
        uncached=_uncached(),
    )
    return _with_libraries(replace(found, without_bitcode=_without_bitcode(found, knowledge)), packages, knowledge)


def _accelerator(tensorflow: InstalledTensorflow, knowledge: KnowledgeBase) -> Accelerator | None:
    info = tensorflow.build_info or {}
    rows = knowledge.accelerators.values()
    return next((row for row in rows if info.get(f"is_{row.accelerator}_build") is True), None)


def _with_libraries(
    found: Environment, packages: Mapping[str, tuple[str, Path]], knowledge: KnowledgeBase
) -> Environment:
    """Return the environment with the file that the loader finds for each name that TensorFlow opens."""
    tensorflow, platform = found.tensorflow, found.interpreter.platform
    if tensorflow is None or tensorflow.loader is None or not platform.startswith("linux-"):
        return found
    loader = Loader(found.variables.get("LD_LIBRARY_PATH", ""), platform.removeprefix("linux-"))
    info = tensorflow.build_info or {}

    def built(component: str) -> str:
        return str(info.get(f"{component}_version", info.get(f"{component}_version_number", "")))

    rows = opened_by(knowledge, found.accelerator, found.minor, built) if found.accelerator and found.minor else ()
    folders = _folders(found)
    opened = tuple(_opened(row, loader, tensorflow.loader, folders, packages) for row in rows)
    return replace(
        found,
        opened=opened,
        old_stdcxx=_old_stdcxx(loader, tensorflow.loader),
        uncompiled=_uncompiled(loader, next((one.found.path for one in opened if one.row.name == "cuda"), None)),
    )


def _opened(
    row: RuntimeLibrary,
    loader: Loader,
    opener: Path,
    folders: Iterable[Path],
    packages: Mapping[str, tuple[str, Path]],
) -> OpenedLibrary:
    one = OpenedLibrary(row=row, found=loader.find(row.library, opener))
    if one.found.path:
        owner, version = _owner(one.found.path, one, packages)
        return replace(one, owner=owner, version=version)
    stem = row.library.partition(".so")[0]
    files = [file for folder in folders for file in sorted(folder.glob(f"{stem}.so*"))]
    return replace(
        one,
        unsearched=tuple(file for file in files if file.name == row.library),
        others=tuple(file for file in files if file.name != row.library),
    )


def _owner(path: Path, one: OpenedLibrary, packages: Mapping[str, tuple[str, Path]]) -> tuple[str, str]:
    """Return the distribution that contains a file, and its version; else no name, and a version from file names."""
    for name, (version, site) in packages.items():
        if one.is_brought_by(name) and path.is_relative_to(site):
            return name, version
    # `libcudnn.so.8` is a link to `libcudnn.so.8.9.7`, or is in the same folder.
    beside = {file.name for file in path.parent.glob(f"{path.name}.*")} | {path.resolve().name}
    numbers = (match[1] for name in sorted(beside) if (match := re.search(r"\.so\.(\d+\.\d+[\d.]*)$", name)))
    return "", next(numbers, "")


def _folders(found: Environment) -> list[Path]:
    """Return the folders that may hold the accelerator's libraries, whether or not they are searched."""
    named = [Path(folder).glob("nvidia/*/lib") for folder in found.interpreter.path]
    system = [Path("/").glob(f"{place}/{below}") for place in _TOOLKITS for below in ("lib64", "targets/*/lib")]
    return [
        *(folder for folders in (*named, *system) for folder in sorted(folders)),
        Path(found.interpreter.prefix, "lib"),
    ]


def _old_stdcxx(loader: Loader, opener: Path) -> tuple[str, str]:
    """Return the C++ library that is found, and the newest version TensorFlow needs, if the library lacks it."""
    found = loader.find(_STDCXX, opener).path
    wanted = re.findall(rb"GLIBCXX_(\d+(?:\.\d+)+)", (loader.needs(opener) or Needs()).strings)
    if found is None or not wanted:
        return "", ""
    name = f"GLIBCXX_{max((text.decode() for text in wanted), key=lambda text: Version(text).parts)}"
    has = (loader.needs(found) or Needs()).strings
    return (str(found), name) if name.encode() + b"\0" not in has else ("", "")


def _without_bitcode(found: Environment, knowledge: KnowledgeBase) -> RuntimeCompiler | None:
    """Return the release's compiler if it needs a file of a toolkit, and no toolkit here has this file."""
    release, its = knowledge.releases.get(found.minor), found.interpreter
    if release is None or found.accelerator is None or "xla_gpu_cuda_data_dir" in os.environ.get("XLA_FLAGS", ""):
        return None
    row = facts_of_release(knowledge, release, found.accelerator).runtime_compiler
    places = [Path(its.prefix), *(Path(folder, "nvidia/cuda_nvcc") for folder in its.path)]
    places += [folder for pattern in _TOOLKITS for folder in Path("/").glob(pattern)]
    return row if row and row.bitcode and not any((place / row.bitcode).is_file() for place in places) else None


def _uncompiled(loader: Loader, libcuda: Path | None) -> str:
    # CUDA C++ Programming Guide, environment variables; libcuda opens the compiler by this name.
    if os.environ.get("CUDA_DISABLE_PTX_JIT") == "1":
        return "CUDA_DISABLE_PTX_JIT=1"
    # Under WSL2 the compiler is in Windows' folder of drivers.
    if libcuda is None or Path("/dev/dxg").exists() or loader.find(_COMPILER, libcuda).path:
        return ""
    return f"{_COMPILER}, the driver's compiler, was not found"


def _uncached() -> str:
    # CUDA C++ Programming Guide, environment variables.
    if os.environ.get("CUDA_CACHE_DISABLE") == "1":
        return "CUDA_CACHE_DISABLE=1"
    there = nearest(Path(os.environ.get("CUDA_CACHE_PATH") or f"{os.environ.get('HOME', '')}/.nv/ComputeCache"))
    return "" if os.access(there, os.W_OK | os.X_OK) else f"this user cannot write to {there}"


def _cpu_flags() -> frozenset[str]:
    match = re.search(r"^flags\s*:(.*)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    return frozenset(match[1].split() if match else ())
