"""The environment of a trial (folder, engine, settings), its containers, and the errors if it cannot run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tfdock import events
from tfdock.bazel import output
from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.engine_machine import GpuAccess, caller_user, engine_data
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec, ContainerState, Engine, ImageInfo
from tfdock.errors import (
    DiskFull,
    EngineLost,
    NetworkError,
    OutOfMemory,
    ProfileError,
    TfdockError,
)
from tfdock.host import proxies
from tfdock.host.files import file_error, make_folder
from tfdock.host.hardware import free_disk
from tfdock.host.logins import logins
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop
from tfdock.run import containers, journal
from tfdock.run.disk_space import DiskSpace
from tfdock.run.results import ContainerFolder, RunFolders
from tfdock.run.supervisor import OutputTap, Supervisor, clean_up_killed_runs
from tfdock.types import BuildId, EngineInfo, ExpectedFiles, Mount

if TYPE_CHECKING:
    from tfdock.resolve.resolution import Resolution

MIB, GIB = 1 << 20, 1 << 30

MEMORY = 8 * GIB  #: In bytes: more than an import and a compilation need. A smaller machine gives all it has.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What to check. `resolution` is None without a profile; `options` are the compiler's options, None if unknown.

    `run` is empty, or the reason why there is no trial. `dependencies` is a folder of wheels, used without changes.
    `built_in` is the id of the image that compiled the wheel; empty if unknown.
    """

    resolution: Resolution | None = None
    strict: bool = True
    options: Sequence[str] | None = None
    run: str = ""
    dependencies: Path | None = None
    built_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnvironment:
    """Where a trial runs. `folder` is only for this trial, and is removed when it ends. `memory` is in bytes."""

    supervisor: Supervisor
    info: EngineInfo
    settings: Settings
    folder: Path
    memory: int = MEMORY
    #: The ids of a bundle's images, by the references in profiles. With a bundle nothing is fetched.
    given: Mapping[str, str] | None = None
    bundle: str = ""  #: The bundle's identity.

    @property
    def engine(self) -> Engine:
        """The engine that runs the containers."""
        return self.supervisor.engine


def runtime_unfit(reason: str) -> ProfileError:
    """Return the error for an image that cannot run the checks."""
    return ProfileError.of(
        "runtime-unfit",
        f"the runtime image cannot run the checks: {reason}",
        "name an image with the wheel's Python and pip: `runtime: …` in the profile",
    )


@contextmanager
def trial_environment(
    engine: Engine,
    settings: Settings,
    listen: events.Listener,
    stop: Stop,
    log: Path,
    wheel: str,
    phase: str = "verify",
) -> Iterator[TrialEnvironment]:
    """Yield the environment for the trial of a wheel outside a build. The journal lists the trial until its cleanup.

    `phase` is the name of the phase in events.
    """
    info = engine.info()
    clean_up_killed_runs(engine, info, settings, listen)
    name = journal.new_run_id()
    cache = CacheFolder.opened(settings.cache_dir)
    folder = cache.run_folder(name)
    entry = journal.RunEntry(
        run=name, build_id=wheel, staging=str(folder / "staging"), output=str(folder), engine=info.id
    )
    make_folder(log.parent)
    # Unbuffered: a disk that runs full should be noticed in the phase that fills it.
    with cache.in_use(), journal.running(settings.state_dir, entry), log.open("wb", buffering=0) as file:
        folders = RunFolders.create(folder, folder / "staging")
        disks = {"the cache": settings.cache_dir.absolute(), "the engine's data": engine_data(info)}
        disk_space = DiskSpace(places={disk: path for disk, path in disks.items() if path})
        supervisor = Supervisor(
            engine=engine, run_id=name, local=info.local, log=file, listen=listen, stop=stop, disk_space=disk_space
        )
        try:
            with events.announced_phase(listen, supervisor.clock, BuildId(wheel), phase):
                yield TrialEnvironment(supervisor=supervisor, info=info, settings=settings, folder=folders.own)
        except OSError as error:
            raise file_error(error, {"the cache": settings.cache_dir.absolute()}) from error
        finally:
            # Report the first error; the journal lists the leftovers for a later cleanup.
            with suppress(TfdockError, OSError):
                journal.clean_own_run(settings.state_dir, entry, engine)


HERE = "/tfdock"  #: The folder of tfdock's files in the containers.
_PIDS = 16384
_WHEELS = ExpectedFiles(pattern="wheels/*.whl", most=1_000, size=1 << 36)
NO_PROGRAM = 127  #: Exit status of a shell that did not find the program.
_FULL = 32 * MIB
_STOPPED = (137, 143)  #: Exit statuses after SIGKILL and SIGTERM: an engine that stops sends both.
#: The caller's variables with addresses of package indexes. Only one container gets these; no file contains them.
_ADDRESSES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", *proxies.ADDRESSES)
#: Variables that go with the addresses, and are never secret.
_BESIDE = ("PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", *proxies.EXCEPTIONS)
_PIP_MANNERS = {
    # Prefer a somewhat older wheel to a new source archive, which needs a compiler.
    "PIP_PREFER_BINARY": "1",
    # Build a source archive with the build tools that it names, not with tools that the image may have.
    "PIP_USE_PEP517": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # The output goes into a log.
    "PIP_PROGRESS_BAR": "off",
}


class TrialContainers:
    """The containers of a trial, for wheels with these tags of Python and ABI (`cp311`, `cp311`)."""

    _alternatives: tuple[str, ...] = ()  #: Fixes for a machine that cannot fetch anything.
    #: The fix for a container that needs more memory.
    _more_memory = (
        "give the machine more memory; `--no-run`, or `verify: {run: false}` in the profile, skips the trial"
    )

    def __init__(self, environment: TrialEnvironment, python_tag: str, abi_tag: str) -> None:
        self._environment, self._tags = environment, (python_tag, abi_tag)

    def fetch_requirements(
        self, image: ImageInfo, lines: Sequence[str], limits: Sequence[str], *, known: bool
    ) -> Path:
        """Return the folder with the wheels for these requirements.

        `known`: whether the knowledge base names the image; other images get no login. Raises
        NetworkError or ProfileError (`dependencies-unavailable`, `runtime-unfit`) if they cannot be fetched.
        """
        folder = self._requirements_folder(image, lines, limits)
        if not folder.is_dir():
            secrets = {name: logins(os.environ.get(name, "")) for name in _ADDRESSES}
            with_logins = [name for name, found_logins in secrets.items() if found_logins]
            if with_logins and not known:
                raise _login_refused(with_logins)
            hidden = [login for found_logins in secrets.values() for login in found_logins]
            self._fetch(image, lines, limits, folder, hidden)
        # `cache prune` removes folders by the time of their last use.
        os.utime(folder)
        return folder

    def _requirements_folder(self, image: ImageInfo, lines: Sequence[str], limits: Sequence[str]) -> Path:
        """Return the folder of the wheels for these requirements. Trials with a bundle use other folders."""
        environment = self._environment
        return dependencies_folder(environment.settings, image, self._tags[0], lines, limits, of=environment.bundle)

    def _fetch(
        self,
        image: ImageInfo,
        requirements: Sequence[str],
        limits: Sequence[str],
        folder: Path,
        hidden: Sequence[str],
    ) -> None:
        """Fetch the wheels into a folder of the run, then move them to `folder`. Texts in `hidden` are not logged."""
        given, made = self._folder("requirements"), self._container_folder("fetched")
        # The wheels are copied out of the container's folder: a source archive's code may have put any file there.
        kept = self._environment.folder / "fetched-wheels"
        for name, lines in (("requirements.txt", requirements), ("constraints.txt", limits)):
            (given / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
        mounts = [
            read_only_mount(given, "given"),
            Mount(
                source=made.mount_source,
                target=f"{HERE}/made",
                given=True,
                results=(_WHEELS,),
                results_folder=str(kept),
            ),
        ]
        environment = {name: os.environ[name] for name in (*_ADDRESSES, *_BESIDE) if os.environ.get(name)}
        certificates = os.environ.get("PIP_CERT")
        if certificates and Path(certificates).is_file():
            # The variable may hold a path relative to the caller's current folder.
            mounts.append(read_only_mount(Path(certificates).resolve(), "certificates/ca.pem"))
            environment["PIP_CERT"] = f"{HERE}/certificates/ca.pem"
        # `wheel` and not `download`: a source archive is built into a wheel while there is a network.
        # `--no-cache-dir`: the container's home is removed, so a cache would only take space twice.
        words = ["-m", "pip", "wheel", "--no-cache-dir", "--wheel-dir", f"{HERE}/made/wheels"]
        if hidden:
            # Building a source archive would run a stranger's code in the container that has the login.
            words.append("--only-binary=:all:")
        words += [f"--{name}={HERE}/given/{name}s.txt" for name in ("requirement", "constraint")]
        spec = self._spec(
            "dependencies",
            image,
            python_command(self._tags, *words),
            mounts,
            # The image is read-only and /tmp has 512 MB. Libraries for GPUs take gigabytes.
            {**_PIP_MANNERS, "HOME": f"{HERE}/made", "TMPDIR": f"{HERE}/made", **environment},
            network=self._environment.settings.network,
        )
        state = self._run_container(spec, "what the wheel requires", hidden=hidden)
        if state.exit_code:
            self._check_disk_space()
            check_not_stopped(state, "that fetches the wheel's requirements")
            output_lines = [line for line in self._environment.supervisor.output.tail if line.strip()]
            # Otherwise the network would be blamed for an image without pip.
            if state.exit_code == NO_PROGRAM or "No module named pip" in " ".join(output_lines[-1:]):
                raise runtime_unfit(describe_end(state, output_lines))
            errors = [line for line in output_lines if line.startswith("ERROR")] or output_lines
            raise NetworkError.of(
                "dependencies-unavailable",
                f"pip cannot download the wheel's requirements: {' '.join(errors[-2:])[:500]}",
                (
                    "check the network, `network:` in the settings and pip's variables (PIP_INDEX_URL, PIP_CERT)",
                    *self._alternatives,
                ),
            )
        make_folder(folder.parent)
        (kept / "wheels").mkdir(exist_ok=True)  # pip creates no folder if no line applies to this Python
        try:
            (kept / "wheels").rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another run has created it meanwhile
                raise

    def _spec(
        self,
        name: str,
        image: ImageInfo,
        command: tuple[str, ...],
        mounts: Sequence[Mount],
        environment: Mapping[str, str],
        *,
        network: str | None,
        access: GpuAccess | None = None,
    ) -> ContainerSpec:
        access = access or GpuAccess()
        return ContainerSpec(
            name=f"tfdock-{self._environment.supervisor.run_id}-{name}",
            image=image.id,
            command=command,
            environment={"LC_ALL": "C.UTF-8", **environment},
            mounts=tuple(mounts),
            labels={RUN_LABEL: self._environment.supervisor.run_id},
            # Run as the caller, who later removes the container's files.
            user=caller_user(self._environment.info, os.getuid(), os.getgid()),
            workdir="/",
            network=network,
            memory=min(self._environment.memory, self._environment.info.memory),
            pids=_PIDS,
            # `exec`: Docker mounts a tmpfs `noexec` otherwise, and then no library can be loaded from it.
            tmpfs={"/tmp": "rw,exec,mode=1777,size=512m"},
            read_only=True,
            gpus=access.gpus,
            devices=access.devices,
            groups=access.groups,
        )

    def _run_container(
        self, spec: ContainerSpec, title: str, marked: OutputTap | None = None, hidden: Sequence[str] = ()
    ) -> ContainerState:
        """Run a container to its end, and remove it."""
        supervisor = self._environment.supervisor
        # Otherwise the last lines of an earlier container would explain the failure of this one.
        supervisor.output.clear()
        # The container has nothing to save, and Python loses a SIGINT that comes while it starts (9 of 5,000).
        state, memory = containers.run(
            supervisor, spec, "verify", title, tap=marked, hidden=hidden, stop_signal="KILL"
        )
        if memory:
            raise OutOfMemory.of(
                "out-of-memory",
                f"the kernel killed a process because memory ran out: the wheel was tried in "
                f"{(spec.memory or 0) / GIB:.1f} GiB",
                self._more_memory,
            )
        self._environment.engine.remove(state.id)
        return state

    def _check_disk_space(self, reason: str = "") -> None:
        """Raise DiskFull if a full disk made the trial fail. `reason` is a script's text, not in the output."""
        free = free_disk(self._environment.folder)
        # Search the output too: the process that filled the disk may have removed its files by now.
        lines = [*self._environment.supervisor.output.tail, reason]
        if output.speaks_of_full_disk(lines) or (free is not None and free < _FULL):
            raise DiskFull.of(
                "disk-full",
                f"a disk ran full while the wheel was tried; the cache ({self._environment.folder}) has "
                f"{(free or 0) / GIB:.1f} GiB left",
                "free space on that disk: the trial of a wheel takes about four times its size",
            )

    def _folder(self, name: str) -> Path:
        folder = self._environment.folder / name
        make_folder(folder)
        return folder

    def _container_folder(self, name: str) -> ContainerFolder:
        """Return an empty folder that a container can write to."""
        make_folder(self._environment.folder)
        folder = ContainerFolder(self._environment.folder / name)
        # An earlier try of the same run may have left files in it.
        folder.remove()
        return folder.make()


def dependencies_folder(
    settings: Settings,
    image: ImageInfo,
    python_tag: str,
    lines: Sequence[str],
    limits: Sequence[str],
    *,
    of: str = "",
) -> Path:
    """Return the folder of the wheels for these requirements and limits, for the Python of this tag in an image.

    `of` is the bundle that the wheels come from; empty for wheels from a network.
    """
    # The first part is the version of this key. Image and Python decide which wheels pip selects.
    text = "\n".join(["2", image.id, python_tag, *sorted(lines), "", *limits, *([of] if of else [])])
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return settings.cache_dir.absolute() / "dependencies" / key


def pip_requirements(texts: Iterable[str], extras: Sequence[str] = ()) -> list[str]:
    """Return the requirements in a wheel's metadata, with those of `extras`, as lines for pip.

    Raises InvalidRequirement for an invalid requirement, and for an address: a wheel's metadata must not decide where
    packages are fetched from. A variable is refused too: pip would insert its value, which may be a login.
    """
    lines = []
    for text in texts:
        if "$" in text:
            raise InvalidRequirement(f"a variable, which tfdock does not expand: {text[:100]!a}")
        requirement = Requirement(text)
        # PEP 508 lets a requirement name an address.
        if requirement.url:
            raise InvalidRequirement(f"an address, which tfdock does not follow: {requirement.name}")
        if "extra" in str(requirement.marker or ""):
            asked_extras = [
                extra for extra in extras if requirement.marker and requirement.marker.evaluate({"extra": extra})
            ]
            if not asked_extras:
                continue
            requirement.marker = None  # evaluated above: pip would ignore the line, as it gets no extra
        # A name in setup.py and the same name written by setuptools into a wheel can differ in spelling.
        requirement.name = canonicalize_name(requirement.name)
        lines.append(str(requirement))
    return lines


def _login_refused(names: Sequence[str]) -> ProfileError:
    return ProfileError.of(
        "dependencies-unavailable",
        f"{', '.join(names)} may hold a login, which tfdock passes only to runtime images in its tables; this image "
        "comes "
        "from a profile",
        (
            "if you trust the image, name it in `runtimes.yaml` of a `--knowledge` folder",
            "give a folder of wheels: `tfdock verify --dependencies DIR`",
            "skip the trial: `--no-run`",
        ),
    )


def read_only_mount(source: Path, name: str) -> Mount:
    """Return the mount of a file or folder of this machine that a container reads."""
    return Mount(source=str(source), target=f"{HERE}/{name}", read_only=True, given=True)


def check_not_stopped(state: ContainerState, which: str) -> None:
    """Raise EngineLost if SIGKILL or SIGTERM from outside ended a container: the wheel is not the cause."""
    if state.exit_code in _STOPPED:
        raise EngineLost.of(
            "container-killed",
            f"the container {which} was killed from outside, and not because memory ran out",
            "was the engine restarted? Run the same command again",
        )


def describe_end(state: ContainerState, lines: Iterable[str] = ()) -> str:
    """Return how a container ended, with the last line of its output."""
    words = [line for line in lines if line.strip()][-1:]
    return ": ".join([f"the container ended with exit status {state.exit_code}", *(word[:300] for word in words)])


def python_command(tags: tuple[str, str], *words: str) -> tuple[str, ...]:
    """Return a command for the Python of a wheel's tags (`cp311`, `cp311`); for any Python if several fit."""
    python_tag, abi_tag = tags
    number = python_tag.removeprefix("cp")
    own, test = "python", ""
    if number.isdigit() and abi_tag.startswith(python_tag):
        own = f"python{number[0]}.{number[1:]}"
        test = f"import sys; sys.exit(sys.version_info[:2] != ({number[0]}, {number[1:]}))"
    # Images name their Python differently. `exec`, so that signals reach Python and not the shell.
    find = f'for one in {own} python python3; do "$one" -c "{test}" 2> /dev/null && exec "$one" "$@"; done'
    return ("/bin/sh", "-c", f"{find}; echo there is no {own}; exit {NO_PROGRAM}", "python", *words)
