"""One run of a build: the values that all phases use, and the containers that the phases run.

Each phase gets the results of the earlier phases and returns its own results. Only `BuildRun.seconds` and
`BuildRun.resumable` change during a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfdock import events
from tfdock.bazel.cache.cache_folder import DiskCache
from tfdock.builder.session import BuildRequest, BuildSession
from tfdock.engine.engine_machine import caller_user
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec, Engine
from tfdock.errors import EngineError, Interrupted, NetworkError, TfdockError
from tfdock.host.proxies import Proxies, proxies_for_containers
from tfdock.plan.build_plan import (
    CONTAINER_ENVIRONMENT,
    DISK_CACHE,
    DOWNLOADS,
    GIVEN,
    REPOSITORY_CACHE,
    SOURCE,
    STAGING,
    BuildPlan,
    Phase,
)
from tfdock.plan.estimate import PhaseEstimate
from tfdock.plan.lock_file import Pin
from tfdock.run import containers

# Import this at the start: after hours of compiling, an update may have replaced this program's files.
from tfdock.run.phase_errors import PhaseErrors
from tfdock.run.results import RunFolders, make_sources
from tfdock.run.supervisor import Supervisor
from tfdock.types import ExpectedFiles, Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRun:
    """The run of one plan, up to the wheel. `plan` is the request's plan, with resources that this machine has.

    An attempt with other limits is `replace(run, plan=…)`: only the plan changes.
    """

    session: BuildSession
    request: BuildRequest
    plan: BuildPlan
    supervisor: Supervisor
    folders: RunFolders
    log: Path
    locks: ExitStack  #: The locks on the cache. The run holds them until the run ends.
    started: float  #: When the run began, in seconds since 1970.
    expected: PhaseEstimate | None = None
    #: Seconds of each phase, also of failed phases. If a phase ran twice, the seconds of its last run.
    seconds: dict[str, float] = field(default_factory=dict)
    #: If this Bazel has no disk cache: an output base for each source ref that was tried. They stay until there is a
    #: wheel.
    resumable: list[RunFolders] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The run's id."""
        return self.supervisor.run_id

    @property
    def engine(self) -> Engine:
        """The engine that builds."""
        return self.session.engine

    @property
    def proxies(self) -> Proxies:
        """The caller's proxies. Only image steps and containers that have a network get them."""
        network = self.session.settings.network
        return proxies_for_containers(os.environ, share_loopback=network == "host" and self.session.engine_info.local)

    def disk_cache(self, toolchain: str) -> DiskCache:
        """Return the disk cache for a toolchain key and the plan's trust domain."""
        return self.session.cache.disk(self.plan.trust.cache_key(toolchain))

    def tell(self, text: str) -> None:
        """Send a line of text to the listener."""
        self.supervisor.listen(events.Notice(text=text))

    def title(self, phase: str) -> str:
        """Return the title that the log gives to a phase."""
        return f"{phase} of {self.plan.build_id}"

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Announce a phase, and run the body of the `with` statement as this phase.

        Add the phase's duration to `seconds`. Errors then name the phase, the log and the next command.
        """
        session, build_id, listen = self.session, self.plan.build_id, self.supervisor.listen
        session.stop.check()
        # The errors of an earlier phase must not explain a failure of this one.
        self.supervisor.output.clear()
        expected = self.expected.seconds.get(phase) if self.expected else None
        after = self.expected.after(phase) if self.expected else 0.0
        listen(events.PhaseStarted(build_id=build_id, phase=phase, expected=expected, after=after))
        started = session.clock()
        ok = False
        try:
            self.supervisor.check(phase)
            yield
            ok = True
        except (TfdockError, OSError) as error:
            # The engine's own Interrupted does not know whether it was SIGINT or SIGTERM.
            cause = session.stop.interruption if isinstance(error, Interrupted) else None
            # No program printed these errors: without a line in the log, a later diagnosis would not see them.
            if isinstance(error, EngineError | NetworkError | OSError):
                self.supervisor.log_error(error)
            raise self.phase_errors(phase).complete(cause or error) from None
        finally:
            self.seconds[phase] = seconds = round(session.clock() - started, 3)
            listen(events.PhaseEnded(build_id=build_id, phase=phase, seconds=seconds, ok=ok))

    def phase_errors(self, phase: str) -> PhaseErrors:
        """Return the diagnosis of a phase's failure."""
        return PhaseErrors(
            phase=phase,
            resources=self.plan.resources,
            cost=self.plan.resolution.release.cost,
            log=self.log,
            tail=tuple(self.supervisor.output.tail),
            errors=tuple(self.supervisor.output.errors),
            folders=self.session.folders,
        )


# --- containers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResult:
    """The build image, and the facts that the image states about itself."""

    id: str
    base_digest: str | None
    source_ref: str | None
    source_number: int  #: The position of `source_ref` among the refs that the build tries, from 1.
    source_commit: str  #: The commit in the image; empty if the image does not state it.
    toolchain: str  #: The key of the toolchain. The disk cache has this name.
    toolchain_file: bytes
    installed: tuple[Pin, ...]  #: The contents of the image, according to the image itself.
    #: The volume with the domain's disk cache above the disk cache of `release`; empty if there is no such volume.
    overlay: str = ""
    resumable: RunFolders | None = None  #: If Bazel has no disk cache: the folders with its output base.


def phase_container(run: BuildRun, image: ImageResult, phase: Phase, *, network: bool | None = None) -> ContainerSpec:
    """Create the folders of a phase, and return its container. `network` overrides the phase's network setting."""
    plan, settings = run.plan, run.session.settings
    cache, folders = run.session.cache, run.folders
    places = {
        "{cache}/repository": os.path.realpath(run.request.repository or cache.repository),
        "{cache}/disk": os.path.realpath(cache.root / "disk"),
        "{output}": (image.resumable or folders).bazel_output.make().mount_source,
        "{staging}": folders.container_results.make().mount_source,
        "{results}": str(folders.results),
        "{remote}": str(folders.own / "remote"),
        "{toolchain}": image.toolchain,
    }
    mounts = tuple(_own_repository(run, _fill_in(mount, places)) for mount in phase.mounts)
    # An engine refuses to mount a folder that does not exist.
    make_sources(mounts)
    if image.overlay:
        mounts = tuple(
            replace(mount, source=image.overlay, kind="volume") if mount.target == DISK_CACHE else mount
            for mount in mounts
        )
    # With a bundle, nothing may come from a network, even if there is one.
    online = phase.network and not run.request.inputs if network is None else network
    connected_to = settings.network if online else "none"
    return ContainerSpec(
        name=f"tfdock-{run.name}-{phase.name}",
        image=image.id,
        # The plan cannot have the key, which depends on the image built from the plan.
        command=tuple(word.replace("{toolchain}", image.toolchain) for word in phase.command),
        environment={
            **(run.proxies.variables if connected_to != "none" else {}),
            **CONTAINER_ENVIRONMENT,
            **plan.environment,
            # phase.sh writes the run's name into the marker `done`, so markers of other runs do not count.
            "TFDOCK_RUN": run.name,
        },
        mounts=mounts,
        labels={RUN_LABEL: run.name, "io.tfdock.build-id": plan.build_id},
        # Run as the caller, who could not remove another user's files in mounted folders.
        user=caller_user(run.session.engine_info, os.getuid(), os.getgid()),
        workdir=SOURCE,
        network=connected_to,
        memory=plan.resources.memory,
        cpus=float(plan.resources.cpus),
        pids=plan.resources.pids,
    )


def container_beside(
    run: BuildRun,
    image: ImageResult,
    name: str,
    command: tuple[str, ...],
    *leaves: ExpectedFiles,
    given: Path | None = None,
) -> ContainerSpec:
    """Return the compile phase's container, with another command instead of Bazel, and without a disk cache.

    The container writes the result files `leaves`, and reads the host folder `given`.
    """
    spec = phase_container(run, image, run.plan.compile)
    # The command needs no cached actions. It may run programs of the source, which must not change the cache.
    mounts = [mount for mount in spec.mounts if mount.target not in (DISK_CACHE, STAGING)]
    mounts += [replace(mount, results=leaves) for mount in spec.mounts if leaves and mount.target == STAGING]
    mounts += [Mount(source=str(given), target=GIVEN, read_only=True, given=True)] if given else []
    return replace(spec, name=f"{spec.name}-{name}", command=command, mounts=tuple(mounts))


def run_container(run: BuildRun, spec: ContainerSpec, phase: str, title: str = "") -> Mapping[str, object] | None:
    """Run a container to its end, then remove the container. If it fails, raise the error that explains the failure.

    Return the traffic to and from a remote cache and executor; only the compile phase has such traffic.
    """
    with ExitStack() as relay:
        tap = None
        if phase == "compile" and run.plan.remote.endpoints:
            # Imported here: a plain build has no remote cache.
            from tfdock.bazel.remote import remote_session as remote

            folder = run.folders.own / "remote"
            tap = relay.enter_context(
                remote.open_relay(run.plan.remote, run.session.settings, folder, run.supervisor.listen)
            )
        state, memory = containers.run(
            run.supervisor, spec, phase, title or run.title(phase), tap=tap, hidden=run.proxies.logins
        )
    # A compiler can be killed for memory while the exit code is 0: the program around it went on.
    if state.exit_code != 0 or memory:
        raise run.phase_errors(phase).container_error(state.exit_code, memory=memory)
    run.engine.remove(state.id)
    return tap.facts if tap else None


def _own_repository(run: BuildRun, mount: Mount) -> Mount:
    """Return the mount. A repository cache of this run alone is copied to an engine on another machine, and back."""
    repository = run.request.repository
    if mount.target != REPOSITORY_CACHE or not (repository or run.request.inputs):
        return mount
    mount = replace(mount, volume="", given=True)
    if repository is None or run.session.engine_info.local:
        return mount
    back = returned_repository(repository)
    # A second container continues from the results of the first one.
    source = os.path.realpath(back if back.is_dir() else repository)
    return replace(mount, source=source, results=() if mount.read_only else (DOWNLOADS,), results_folder=str(back))


def returned_repository(repository: Path) -> Path:
    """Return the folder for the repository cache that comes back from an engine on another machine."""
    return repository.with_name(f"{repository.name}-back")


def _fill_in(mount: Mount, places: Mapping[str, str]) -> Mount:
    def fill(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    return replace(
        mount, source=fill(mount.source), results_folder=fill(mount.results_folder), volume=fill(mount.volume)
    )
