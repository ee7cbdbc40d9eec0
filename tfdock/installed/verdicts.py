"""Judge an environment: the first cause why TensorFlow does not start or sees no GPU, and other problems.

The checks are in the order in which a program meets the causes: interpreter, packages, files, platform, versions,
build, driver, libraries, GPU code. Each question is a method of `_Verdicts` that yields its checks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version as PackageVersion

from tfdock.errors import ExitCode, joined
from tfdock.gpu.compatibility import serve
from tfdock.gpu.devices import find_gpu, local_words
from tfdock.gpu.gpu_facts import GpuFacts, facts_of_installed
from tfdock.installed.environment import Environment, OpenedLibrary
from tfdock.installed.packages import VERSION_FILES, InstalledTensorflow, InstalledWheel
from tfdock.knowledge.fits import toolkit_floor
from tfdock.knowledge.gpu_rows import Gpu
from tfdock.knowledge.release_rows import Release, applies
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.knowledge.wheel_rows import RequirementLimit
from tfdock.plan.preflight import FAILED, OK, SKIPPED, WARNING, PreflightCheck
from tfdock.types import LocalGpu, Version
from tfdock.wheel.identity import runs_on_python
from tfdock.wheel.requirements import wanted

_PLAIN = re.compile(r"[\w.,<>=!~+\[\]-]*")
_UNSEEN = "memory in use, a hanging GPU, the program's own settings, ops without a GPU kernel"


def judge_environment(
    environment: Environment, knowledge: KnowledgeBase, tried: Iterable[PreflightCheck] = ()
) -> list[PreflightCheck]:
    """Return the checks of an environment in order, then the checks of a trial. The first failed check is the cause.

    Only this check has a fix. Later failures become warnings without a fix: a fix of the cause may fix these failures
    too, or show that they are harmless.
    """
    checks: list[PreflightCheck] = []
    for check in chain(_Verdicts(environment, knowledge).checks(), tried):
        failed_before = any(one.status == FAILED for one in checks)
        checks.append(
            replace(check, status=WARNING, fixes=(), exit_code=ExitCode.OK)
            if failed_before and check.status == FAILED
            else check
        )
    return checks


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """The questions about an environment. A question that does not apply yields no check."""

    its: Environment
    knowledge: KnowledgeBase

    def checks(self) -> Iterator[PreflightCheck]:
        """Yield all checks. If a check of the interpreter or of TensorFlow fails, the others are left out."""
        stops = [*self._interpreter()] or [*self._package()]
        yield from stops
        if any(check.status == FAILED for check in stops):
            return
        yield from self._files()
        yield from self._cpu()
        yield from self._cpp_library()
        yield from self._versions()
        if self.its.accelerator is None:
            yield from self._cpu_build()
            return
        if self.its.accelerator.accelerator != "cuda":
            other = self.its.accelerator.accelerator
            yield skipped_check("gpu", f"only NVIDIA's driver and libraries are checked, not {other}'s")
            return
        driver = [*self._driver()]
        yield from driver
        # Without a GPU, its libraries are not needed.
        if self.its.driver.has_gpu or any(check.status == FAILED for check in driver):
            yield from self._libraries()
            yield from self._cudnn()
            yield from self._gpu_code()
            yield from self._bitcode()
        yield skipped_check("not looked at", _UNSEEN)

    # --- the environment ------------------------------------------------------------------------------------------

    def _interpreter(self) -> Iterator[PreflightCheck]:
        its = self.its.interpreter
        if its.program.suffix == ".exe":
            found = "this is a Windows Python: since 2.11 TensorFlow sees no GPU under Windows"
            fix = "install a Python inside WSL2, and TensorFlow in it"
            yield failed_check("interpreter", "python-unusable", found, fix)
        elif its.trouble:
            found = f"{its.program} does not start as a Python: {its.trouble}"
            alone = f"`{shlex.quote(str(its.program))} -I -S -c pass`"
            fix = f"{alone} shows whether the cause is Python itself, or PYTHONPATH and start-up files"
            yield failed_check("interpreter", "python-unusable", found, fix)
        elif its.bits == 32:
            found = f"this is a 32-bit Python ({its.version}): TensorFlow has no wheel for it"
            yield failed_check("interpreter", "python-unusable", found, "install a 64-bit Python")

    def _package(self) -> Iterator[PreflightCheck]:
        its, tensorflow = self.its.interpreter, self.its.tensorflow
        said = f"{its.program}, Python {its.version}"
        if tensorflow is None:
            yield self._no_tensorflow(said)
            return
        yield ok_check("interpreter", said)
        inside = next((folder for folder in its.path if tensorflow.folder.is_relative_to(folder)), "")
        if not tensorflow.wheels:
            yield self._shadowed(tensorflow, inside)
            return
        if self.its.foreign_kernel:
            file, other = self.its.foreign_kernel
            yield _warned("jupyter", "tensorflow-shadowed", f"notebooks run {other}, not this Python: {file}")
        wheel = tensorflow.wheels[0]
        if wheel.pythons and not any(runs_on_python(tag, "none", its.minor) for tag in wheel.pythons):
            tags = ", ".join(wheel.pythons)
            found = f"{wheel.name} {wheel.version} was installed for {tags}, but this is Python {its.version}"
            yield failed_check("tensorflow", "tensorflow-damaged", found, self._install(wheel))
            return
        yield from self._leaks(inside)

    def _no_tensorflow(self, said: str) -> PreflightCheck:
        its, rows = self.its.interpreter, list(self.knowledge.releases.values())
        served = [row for row in rows if its.minor in row.pythons]
        # musl is the C library of Alpine Linux. TensorFlow has no wheels for musl.
        if "musl" in its.suffix:
            found = f"{said}, uses musl (Alpine): TensorFlow has no wheel for musl"
            return failed_check("tensorflow", "python-unusable", found, "use an image of Debian or Ubuntu")
        if not served:
            newest = max(rows, key=lambda row: Version(row.release))
            found = f"there is no TensorFlow in {said}, and no known release has a wheel for it"
            python = newest.pythons[-1]
            fix = f"`python{python} -m venv tf && tf/bin/pip install tensorflow=={newest.newest}`"
            return failed_check("tensorflow", "python-unusable", found, fix)
        newest = max(served, key=lambda row: Version(row.release))
        found, version = f"there is no TensorFlow in {said}", newest.newest
        if left := self.its.leftovers:
            found += f"; pip was interrupted and left {joined(map(str, left))}"
            told = (re.search(r"-(\d[\w.]*)\.dist-info$", path.name) for path in left)
            version = next((match[1] for match in told if match), version)
        fix = f"`{self._pip} install {self._requirement(version, newest)}`"
        return failed_check("tensorflow", "tensorflow-missing", found, fix)

    def _shadowed(self, tensorflow: InstalledTensorflow, inside: str) -> PreflightCheck:
        if tensorflow.origin and not tensorflow.origin.endswith("/tensorflow/__init__.py"):
            found = f"`import tensorflow` runs {tensorflow.origin}, which is not TensorFlow"
            return failed_check("tensorflow", "tensorflow-shadowed", found, f"rename or move {tensorflow.origin}")
        if not tensorflow.origin:
            found = f"{tensorflow.folder} has no __init__.py: an uninstallation left it, or it is another program's"
            fix = f"`rm -r {shlex.quote(str(tensorflow.folder))}`, then `{self._pip} install tensorflow`"
            return failed_check("tensorflow", "tensorflow-shadowed", found, fix)
        found = f"no record in {inside or 'its folder'} lists {tensorflow.origin}: it is a checkout or a copy"
        return skipped_check("tensorflow", found)

    def _leaks(self, inside: str) -> Iterator[PreflightCheck]:
        """Yield the check that names TensorFlow's folder; warn if this folder is outside the environment."""
        wheel = self.its.wheels[0]
        said = f"{wheel.name} {wheel.version} in {inside}"
        if why := self._outside(Path(inside))[0]:
            yield _warned("tensorflow", "tensorflow-shadowed", f"{said}, {why}")
        else:
            yield ok_check("tensorflow", said)

    def _outside(self, folder: Path) -> tuple[str, str]:
        """Return why a foreign folder is on the path, and the fix; both empty for the environment's own folders."""
        listed = (entry for entry in self.its.variables.get("PYTHONPATH", "").split(":") if entry)
        if entry := next(filter(folder.is_relative_to, listed), ""):
            return "which is on PYTHONPATH, not in this environment", f"take {entry} out of PYTHONPATH"
        if (user := self.its.interpreter.user_site) and folder.is_relative_to(user):
            return "the user's own packages, which every environment sees", "`export PYTHONNOUSERSITE=1`"
        return "", ""

    def _files(self) -> Iterator[PreflightCheck]:
        wheels = self.its.wheels
        if not wheels:
            return
        wheel = wheels[0]
        if len(wheels) > 1:
            names = joined(f"{one.name} {one.version}" for one in wheels)
            whole = [one for one in wheels if one.is_whole]
            lies = f"the files are those of {whole[0].name}" if len(whole) == 1 else "their files are mixed"
            found = f"{names} are installed over each other in one folder: {lies}"
            yield failed_check("files", "tensorflow-damaged", found, self._one_instead(wheels))
        elif wheel.shut:
            folder = shlex.quote(str(self.its.tensorflow.folder)) if self.its.tensorflow else ""
            found = f"this user may not read {wheel.shut} of {wheel.name} {wheel.version}"
            yield failed_check("files", "tensorflow-damaged", found, f"as its owner: `chmod -R a+rX {folder}`")
        elif not wheel.is_whole:
            (missing, first), (changed, other) = wheel.missing, wheel.changed
            said = [f"{missing:,} files are missing ({first})"] if missing else []
            said += [f"{changed:,} libraries have another size than RECORD says ({other})"] if changed else []
            fix = f"`{self._pip} install --force-reinstall --no-deps {_quoted(f'{wheel.name}=={wheel.version}')}`"
            yield failed_check("files", "tensorflow-damaged", f"of {wheel.name} {wheel.version}, {joined(said)}", fix)
        else:
            yield ok_check("files", "all files that its RECORD lists are there, libraries in their sizes")

    def _cpu(self) -> Iterator[PreflightCheck]:
        release, flags = self._release, self.its.cpu_flags
        machine = self.its.interpreter.platform.removeprefix("linux-")
        if release is None or not flags:
            return
        for row in self.knowledge.cpu_features.values():
            used = row.machine == machine and row.is_in_official(release, self.its.version)
            if used and row.feature not in flags:
                found = f"this CPU has no {row.feature}, which official wheels use: `Illegal instruction`"
                fix = "build a wheel for this CPU: a profile with `optimize: native`"
                yield failed_check("cpu", "cpu-lacks-feature", found, fix)

    def _cpp_library(self) -> Iterator[PreflightCheck]:
        library, lacks = self.its.old_stdcxx
        if library:
            found = f"{library} is found first, but lacks {lacks}, which TensorFlow needs"
            folder = str(Path(library).parent)
            leaks = folder in self.its.variables.get("LD_LIBRARY_PATH", "").split(":")
            newer = "install a newer library (`conda install libstdcxx-ng`)"
            fix = f"take {folder} out of LD_LIBRARY_PATH" if leaks else newer
            yield failed_check("libstdc++", "cpp-library-old", found, fix)

    def _versions(self) -> Iterator[PreflightCheck]:
        """Name packages with which the import of this release is known to fail."""
        broken = False
        known, wheels = self.its.versions, self.its.wheels
        rows = [
            row for row in self.knowledge.requirement_limits if self._release and applies(self._release, row.releases)
        ]
        missing = [name for name in self._required() if name not in known]
        if fatal := [name for name in missing if any(row.package == name for row in rows)]:
            said = f"{joined(fatal)}, which {wheels[0].name} requires, {'are' if fatal[1:] else 'is'} not installed"
            again = f"`{self._pip} install {_quoted(f'{wheels[0].name}=={wheels[0].version}')}`"
            yield failed_check("versions", "requirement-breaks", said, again)
        elif missing:
            yield _warned("versions", "requirement-breaks", f"not installed, though required: {joined(missing)}")
        for row in rows:
            version = known.get(row.package, "")
            if row.limit and version and not _matches(version, row.limit):
                broken = True
                yield self._breaks(row, row.limit, version)
        if numpy := self.its.foreign_numpy:
            found = (
                f"NumPy's {numpy} is for another Python than {self.its.interpreter.version}: it cannot be imported"
            )
            again = f"`{self._pip} install --force-reinstall --no-deps {_quoted('numpy==' + known.get('numpy', ''))}`"
            yield failed_check("versions", "requirement-breaks", found, again)
        elif not broken and not missing and self._release:
            named = [f"{name} {known[name]}" for name in VERSION_FILES if name in known]
            yield ok_check("versions", f"none of {joined(named) if named else 'its packages'} is known to break it")

    def _breaks(self, row: RequirementLimit, limit: str, version: str) -> PreflightCheck:
        own, folder = self._own_range(row.package), self.its.folders.get(row.package)
        # pip replaces a package beside TensorFlow in this folder, even outside of the environment.
        alone = folder and self.its.tensorflow and folder != self.its.tensorflow.folder.parent
        why, fix = self._outside(folder) if folder and alone else ("", "")
        wants = own if own and not _matches(version, own) else limit
        return failed_check(
            "versions",
            "requirement-breaks",
            f"{row.package} {version}{why and f' ({why})'} breaks TensorFlow {self.its.version}: `{row.says}`",
            fix or f"`{self._pip} install {_quoted(row.package + wants)}`",
        )

    def _own_range(self, package: str) -> str:
        """Return the versions that METADATA requires, in pip's form; empty if METADATA names none."""
        name = package.replace("-", "[-_.]")
        texts = (re.match(rf"{name}\s*\(?([<>=!~][^;)]*)", text) for text in self.its.wheels[0].requires)
        return next((match[1].replace(" ", "") for match in texts if match), "")

    # --- the GPU --------------------------------------------------------------------------------------------------

    def _cpu_build(self) -> Iterator[PreflightCheck]:
        its, wheels = self.its, self.its.wheels
        name = wheels[0].name if wheels else "this TensorFlow"
        if its.tensorflow and its.tensorflow.build_info is None:
            yield skipped_check("build", "no readable build_info.py states whether it is built for GPUs")
            return
        if not its.driver.has_gpu:
            yield ok_check("gpu", f"{name} is built for the CPU, and there is no NVIDIA GPU here")
            return
        found = f"{name} {its.version} is built for the CPU only: it sees no GPU and prints nothing about it"
        machine = its.interpreter.platform.removeprefix("linux-")
        if machine != "x86_64":
            fix = f"official wheels for {machine} have no CUDA: use NVIDIA's container, or build a wheel"
        elif wheels:
            fix = self._one_instead(wheels)
        else:
            fix = "install a wheel that is built for GPUs"
        yield failed_check("build", "tensorflow-for-cpu", found, fix)

    def _driver(self) -> Iterator[PreflightCheck]:
        """Check the parts of the driver from the lowest up: the first missing part is the cause."""
        its, hidden = self.its.driver, self.its.variables.get("CUDA_VISIBLE_DEVICES")
        if not its.has_gpu:
            yield ok_check("gpu", "no NVIDIA GPU was found: TensorFlow runs on the CPU")
            return
        if hidden is not None and not self._names_a_gpu(hidden.partition(",")[0].strip()):
            found = f"CUDA_VISIBLE_DEVICES={hidden or '(empty)'} hides every GPU"
            yield failed_check("driver", "gpu-hidden", found, "`unset CUDA_VISIBLE_DEVICES`")
        yield from self._wsl() if its.wsl else self._module()

    def _names_a_gpu(self, entry: str) -> bool:
        """Return whether the first entry of a list names a GPU. CUDA stops at the first entry that does not."""
        count = self.its.driver.gpus
        return entry.startswith(("GPU-", "MIG-")) or (entry.isdecimal() and (not count or int(entry) < count))

    def _wsl(self) -> Iterator[PreflightCheck]:
        its, libcuda = self.its.driver, self._library("cuda")
        if not its.paravirtual:
            fix = "in Windows: `wsl --set-version DISTRIBUTION 2`, `wsl --update`, then NVIDIA's driver"
            found = "this WSL system has no /dev/dxg: it is WSL 1, or Windows has no driver"
            yield failed_check("driver", "driver-unusable", found, fix)
        elif libcuda and libcuda.found.path and not str(libcuda.found.path).startswith("/usr/lib/wsl/"):
            found = f"{libcuda.found.path} is found before Windows' own driver in /usr/lib/wsl/lib"
            fix = "`sudo apt purge 'libnvidia-*' 'nvidia-*'`: under WSL2 no driver is installed in Linux"
            yield failed_check("driver", "driver-unusable", found, fix)
        else:
            yield ok_check("driver", "Windows' driver, through /dev/dxg")

    def _module(self) -> Iterator[PreflightCheck]:
        its = self.its.driver
        numbered = {re.sub(r"\d+$", "0", node) for node in its.nodes}
        lost = [node for node in ("/dev/nvidia0", "/dev/nvidia-uvm") if node not in numbered]
        if its.container and not its.gpus:
            found = "this container has no GPU: no /dev/nvidia0 or other device"
            fix = "start it with `docker run --gpus all …`, or `--device nvidia.com/gpu=all`"
            yield failed_check("driver", "container-without-gpu", found, fix)
        elif not its.module:
            free = "; the free driver `nouveau` is" if its.nouveau else ""
            found = f"there is an NVIDIA GPU, but NVIDIA's kernel module is not loaded{free}"
            driver = "install NVIDIA's driver (`sudo ubuntu-drivers install`) and restart"
            fix = f"{driver}; Secure Boot needs a signed module"
            yield failed_check("driver", "driver-unusable", found, fix)
        elif its.shut:
            fix = "add the user to the group of these files (`sudo usermod -aG video $USER`), and log in again"
            yield failed_check("driver", "driver-unusable", f"this user may not use {joined(its.shut)}", fix)
        elif lost:
            error = "CUDA_ERROR_UNKNOWN" if its.gpus else "CUDA_ERROR_NO_DEVICE"
            found = f"there is no {joined(lost)}: CUDA cannot start (`{error}`)"
            yield failed_check("driver", "driver-unusable", found, "`sudo nvidia-modprobe -u -c=0`")
        else:
            yield from self._driver_library()

    def _driver_library(self) -> Iterator[PreflightCheck]:
        its, libcuda = self.its.driver, self._library("cuda")
        path = libcuda.found.path if libcuda else None
        if libcuda and path is None:
            found = f"{libcuda.row.library} was not found, although the kernel module is loaded"
            yield failed_check("driver", "driver-unusable", found, self._driver_libraries)
            return
        if libcuda and libcuda.found.damaged:
            yield failed_check("driver", "driver-unusable", *self._damaged(libcuda))
            return
        own = re.search(r"libcuda\.so\.(\d+\.\d+[\d.]*)$", str(path and path.resolve()))
        if path and "stubs" in path.parts:
            found = f"{path} is found first: it is the toolkit's stub for linking (`CUDA_ERROR_STUB_LIBRARY`)"
            yield failed_check("driver", "driver-unusable", found, f"take {path.parent} out of LD_LIBRARY_PATH")
        elif own and own[1] != its.module:
            found = f"{path} is of driver {own[1]}, but the kernel module is of {its.module}"
            fix = "restart this machine: the driver was updated, but the old module is still loaded"
            if path and "compat" in path.parts:
                fix = f"take {path.parent} out of the search: it belongs to the package cuda-compat"
            yield failed_check("driver", "driver-unusable", found, fix)
        elif floor := self._too_old():
            found = f"the driver {its.module} is too old for a TensorFlow with {floor[0]}, which needs {floor[1]}"
            fix = f"install driver {floor[1]} or newer, or a TensorFlow for an older CUDA"
            yield failed_check("driver", "driver-too-old", found, fix)
        else:
            yield ok_check("driver", f"{its.module}, {its.gpus} GPU(s)")

    def _too_old(self) -> tuple[str, Version] | None:
        """Return the toolkit of the build and its oldest driver, if the installed driver is older; else None."""
        info = self.its.tensorflow.build_info if self.its.tensorflow else None
        version, module = str((info or {}).get("cuda_version", "")), self.its.driver.module
        floor = toolkit_floor(self.knowledge, "cuda", Version(version)) if version else None
        return (f"CUDA {version}", floor) if floor and Version(module) < floor else None

    def _libraries(self) -> Iterator[PreflightCheck]:
        """Name the libraries that TensorFlow opens but does not find: if one is missing, it registers no GPU."""
        needed = [one for one in self.its.opened if one.row.use is None and one.row.name != "cuda"]
        lost = [one for one in needed if one.found.path is None]
        damaged = next((one for one in needed if one.found.damaged), None)
        lacking = [(one, lack) for one in needed for lack in one.found.lacks]
        if not needed:
            yield skipped_check(
                "libraries", f"tfdock does not know the libraries that {self.its.version or 'it'} loads"
            )
        elif damaged:
            yield failed_check("libraries", "gpu-library-missing", *self._damaged(damaged))
        elif lost:
            yield self._lost(lost)
        elif lacking:
            one, (name, by) = lacking[0]
            found = f"{one.found.path} was found, but {name}, which {by} needs, was not found"
            yield failed_check("libraries", "gpu-library-missing", found, self._install_libraries([one]))
        else:
            by = joined(dict.fromkeys(one.found.by for one in needed))
            yield ok_check("libraries", f"all {len(needed)} that TensorFlow loads were found, by {by}")

    def _damaged(self, one: OpenedLibrary) -> tuple[str, str]:
        """Return the cause and the fix for a file that has a library's name but is not a library."""
        path = one.found.path
        found = f"{path} is found first, by {one.found.by}, but is not a library: the search stops there"
        again = f"`{self._pip} install --force-reinstall --no-deps {_quoted(f'{one.owner}=={one.version}')}`"
        return found, again if one.owner else f"remove {path}, or take its folder out of the search"

    def _lost(self, lost: Sequence[OpenedLibrary]) -> PreflightCheck:
        names, them = joined(one.row.library for one in lost), "all of them" if len(lost) > 1 else "it"
        if not all(one.unsearched for one in lost):
            near = sorted({file.name for one in lost for file in one.others if not one.unsearched})
            other = f"; there is {joined(near)}, but of another CUDA or cuDNN" if near else ""
            verb = "were" if len(lost) > 1 else "was"
            found = f"{names} {verb} not found{other}: without {them} TensorFlow sees no GPU"
            return failed_check("libraries", "gpu-library-missing", found, self._install_libraries(lost))
        folders = list(dict.fromkeys(str(one.unsearched[0].parent) for one in lost))
        verb, where = ("lie", "folders that are") if len(lost) > 1 else ("lies", "a folder that is")
        found = f"{names} {verb} in {where} not searched: without {them} TensorFlow sees no GPU"
        search = f'{shlex.quote(":".join(folders))}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"'
        fix = f"`export LD_LIBRARY_PATH={search}`, in the shell that starts the program"
        return failed_check("libraries", "gpu-library-unsearched", found, fix)

    def _install_libraries(self, lost: Sequence[OpenedLibrary]) -> str:
        wheels = self.its.wheels
        if all(one.row.component == "driver" for one in lost):
            return self._driver_libraries
        if installed := [name for one in lost for name in self.its.versions if one.is_brought_by(name)]:
            # The package's files are missing, but pip would count the package as installed.
            again = " ".join(_quoted(f"{name}=={self.its.versions[name]}") for name in dict.fromkeys(installed))
            return f"`{self._pip} install --force-reinstall --no-deps {again}`"
        if wheels and (extra := _toolkit_extra(wheels[0], self.its.opened)):
            return f"`{self._pip} install {_quoted(f'{wheels[0].name}[{extra}]=={wheels[0].version}')}`"
        named = {one.row.component: str(one.row.version) for one in lost if one.row.version}
        parts = joined(f"{component} {version}" for component, version in named.items()) if named else "CUDA"
        return f"install {parts}, as in the build of this wheel, and add their folder to LD_LIBRARY_PATH"

    def _cudnn(self) -> Iterator[PreflightCheck]:
        """Compare the found cuDNN with the one of the build: with an older minor version, an operation fails."""
        one, release = self._library("cudnn"), self._release
        tested = release.components["cudnn"].tested if release and "cudnn" in release.components else None
        if one is None or one.found.path is None or not one.version or not tested:
            return
        if Version(one.version) >= Version(tested).minor or not Version(one.version).matches(
            Version(one.row.version)
        ):
            yield ok_check("cudnn", f"{one.version}, of {one.owner or one.found.path}; built with {tested}")
            return
        found = f"{one.found.path} is cuDNN {one.version}, but the build had {tested}: the first convolution fails"
        least, folder = Version(tested).minor, one.found.path.parent
        fix = f"install cuDNN {least} or newer, or take {folder} out of LD_LIBRARY_PATH"
        if one.owner:
            fix = f"`{self._pip} install {_quoted(f'{one.owner}>={least},<{least.parts[0] + 1}')}`"
        yield failed_check("cudnn", "cudnn-too-old", found, fix)

    def _gpu_code(self) -> Iterator[PreflightCheck]:
        """Judge the wheel's GPU code for the GPUs here, by the wheel's list of targets and by rows.

        A GPU without code is only a warning if the wheel supports another GPU here.
        """
        release, accelerator = self._release, self.its.accelerator
        if release is None or accelerator is None or self.its.tensorflow is None:
            return
        used = {name: self.its.versions[name] for name in self._required(extras=True) if name in self.its.versions}
        facts = facts_of_installed(self.knowledge, release, accelerator, self.its.tensorflow.build_info, used)
        checks = [
            check
            for local in self.its.host.gpus
            if local.accelerator == accelerator.accelerator
            for check in self._code_for(local, facts)
        ]
        served = any(check.status in (OK, SKIPPED) or check.code == "gpu-jit" for check in checks)
        yield from (
            _warned(check.name, "gpu-not-served", check.found) if served and check.status == FAILED else check
            for check in checks
        )

    def _code_for(self, local: LocalGpu, facts: GpuFacts) -> Iterator[PreflightCheck]:
        named = find_gpu(self.knowledge, *local_words(self.knowledge, [local]))
        target = named.target if named else local.target
        if target is None or facts.accelerator is None:
            yield skipped_check("gpu code", f"tfdock does not know the code for {local.name}")
            return
        # The rows do not have this GPU, which may be newer: judge it by its target.
        card = named or Gpu(gpu=local.name, accelerator=local.accelerator, target=target, source=())
        answer = serve(self.knowledge, card, facts)
        said = f"{local.name}: {answer.reason}"
        against = [f"{local.name}: TensorFlow sees it, and {text}" for text in answer.fails]
        if answer.runs == "no":
            against = [said]
        elif answer.runs == "ptx-jit" and self.its.uncompiled:
            against = [f"{said}, but here the driver cannot: {self.its.uncompiled}"]
        if against:
            fix = f"`tfdock advise {named.gpu if named else target}` shows the wheel or build for it"
            yield failed_check("gpu code", "gpu-not-served", against[0], fix)
        elif answer.starts_at_once:
            yield ok_check("gpu code", said)
        else:
            again = f", and again at every start ({self.its.uncached})" if self.its.uncached else ""
            said += f", for half an hour or longer{again}"
            yield from (_warned("gpu code", "gpu-jit", text) for text in (said, *answer.limits))

    def _bitcode(self) -> Iterator[PreflightCheck]:
        if row := self.its.without_bitcode:
            found = f"{row.bitcode} was not found: what {row.compiler} must compile fails, such as some optimizers"
            yield _warned("compiler", "gpu-library-missing", found)

    # --- helpers --------------------------------------------------------------------------------------------------

    def _required(self, *, extras: bool = False) -> list[str]:
        """Return the packages that the wheel requires; with `extras`, also those that its extras require."""
        wheel, its = next(iter(self.its.wheels), None), self.its.interpreter
        if wheel is None:
            return []
        machine, more = its.platform.removeprefix("linux-"), wheel.extras if extras else ()
        return [one.package for one in wanted(wheel.requires, more, python=its.minor, machine=machine)]

    @property
    def _release(self) -> Release | None:
        return self.knowledge.releases.get(self.its.minor)

    @property
    def _pip(self) -> str:
        python = shlex.quote(str(self.its.interpreter.program))
        # Environments that uv makes have no pip.
        return f"{'' if 'pip' in self.its.versions else f'{python} -m ensurepip && '}{python} -m pip"

    @property
    def _driver_libraries(self) -> str:
        if self.its.driver.container:
            return "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return "install the libraries of the driver (`libnvidia-compute-…`, `nvidia-driver-cuda-libs`)"

    def _library(self, name: str) -> OpenedLibrary | None:
        return next((one for one in self.its.opened if one.row.name == name), None)

    def _install(self, wheel: InstalledWheel) -> str:
        return f"`{self._pip} install --force-reinstall {self._requirement(wheel.version, self._release)}`"

    def _one_instead(self, wheels: Sequence[InstalledWheel]) -> str:
        every = " ".join(shlex.quote(one.name) for one in wheels)
        again = self._requirement(wheels[0].version, self._release)
        return f"`{self._pip} uninstall -y {every}`, then `{self._pip} install --no-cache-dir {again}`"

    def _requirement(self, version: str, release: Release | None) -> str:
        """Return pip's requirement for the official build of a version: with CUDA's libraries if there is a GPU."""
        rows = (row for row in self.knowledge.companions if release and row.extra and applies(release, row.releases))
        extra = next((f"[{row.extra}]" for row in rows if self.its.driver.has_gpu), "")
        return _quoted(f"tensorflow{extra}=={version}")


def _toolkit_extra(wheel: InstalledWheel, opened: Iterable[OpenedLibrary]) -> str:
    """Return the wheel's extra that installs packages with the opened libraries; empty if there is none."""
    plain, libraries = {one.package for one in wanted(wheel.requires)}, list(opened)
    for extra in wheel.extras:
        added = {one.package for one in wanted(wheel.requires, [extra])} - plain
        if any(one.is_brought_by(package) for one in libraries for package in added):
            return extra
    return ""


def _matches(version: str, specifier: str) -> bool:
    try:
        return PackageVersion(version) in SpecifierSet(specifier, prereleases=True)
    except ValueError:
        return True  # a version that cannot be compared is not reported


def _quoted(requirement: str) -> str:
    """Return a requirement, quoted for any shell: brackets are special in some, and METADATA may have any text."""
    return f'"{requirement}"' if _PLAIN.fullmatch(requirement) else shlex.quote(requirement)


def ok_check(name: str, found: str) -> PreflightCheck:
    """Return a check that found no problem."""
    return PreflightCheck(name=name, status=OK, found=found)


def skipped_check(name: str, found: str) -> PreflightCheck:
    """Return a check that could not be made, with the reason."""
    return PreflightCheck(name=name, status=SKIPPED, found=found)


def _warned(name: str, code: str, found: str) -> PreflightCheck:
    return PreflightCheck(name=name, status=WARNING, found=found, code=code)


def failed_check(name: str, code: str, found: str, fix: str) -> PreflightCheck:
    """Return a check that fails the command; with an empty `fix`, the check has no fix."""
    fixes = (fix,) if fix else ()
    return PreflightCheck(
        name=name, status=FAILED, found=found, code=code, fixes=fixes, exit_code=ExitCode.VERIFICATION
    )
