"""One run of a build: what every phase of it works with, and what it accumulates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfdock import events
from tfdock.builder.session import BuildRequest, BuildSession
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec, Engine
from tfdock.errors import EngineError, Interrupted, NetworkError, Problem, TfdockError
from tfdock.plan.build_plan import DISK_CACHE, DOWNLOADS, GIVEN, REPOSITORY_CACHE, SOURCE, STAGING, BuildPlan, Phase
from tfdock.plan.estimate import PhaseEstimate
from tfdock.plan.lock_file import Pin
from tfdock.run.phase_errors import Failures
from tfdock.run.phases import Steps
from tfdock.run.results import RunFolders, make_sources
from tfdock.types import ExpectedFiles, Mount

if TYPE_CHECKING:
    from tfdock.bazel.cache.cache_folder import DiskCache
    from tfdock.bazel.remote.remote_session import EndpointWatch

_T = TypeVar("_T")


@dataclass
class Run:
    """One plan on its way to a wheel. `plan` is that of the request, within what the machine has."""

    session: BuildSession
    request: BuildRequest
    plan: BuildPlan
    steps: Steps
    folders: RunFolders
    log: Path
    locks: ExitStack
    """What the run holds of the cache until it ends."""
    expected: PhaseEstimate | None = None

    seconds: dict[str, float] = field(default_factory=dict)
    attempts: int = 1
    compiled_with: list[dict[str, Any]] = field(default_factory=list)
    """The limits of each attempt to compile, and how it ended."""
    image: str = ""
    overlay: str = ""
    """The volume that shows the domain's disk cache over the one of `release`; empty where there is none."""
    installed: tuple[Pin, ...] = ()
    """What the image holds, by its own account."""
    toolchain: str = ""
    toolchain_file: bytes = b""
    cache_was_empty: bool = False
    remote: Mapping[str, object] | None = None
    """What went over to a remote cache and executor."""
    base_digest: str | None = None
    source_ref: str | None = None
    source_found: str = ""

    @property
    def name(self) -> str:
        """The run's id."""
        return self.steps.run

    @property
    def disk(self) -> DiskCache:
        """The disk cache of its toolchain and its trust domain."""
        return self.session.cache.disk(self.plan.trust.cache_key(self.toolchain))

    @property
    def engine(self) -> Engine:
        """The engine that builds."""
        return self.session.engine

    def tell(self, text: str) -> None:
        """A line for whoever watches."""
        self.session.tell(text)

    def title(self, phase: str) -> str:
        """What the log says where a step of a phase begins."""
        return f"{phase} of {self.plan.build_id}"

    def timed(self, phase: str, do: Callable[[], _T]) -> _T:
        """One phase: announced, measured, and its errors completed with phase, log and next command."""
        session, build_id = self.session, self.plan.build_id
        session.stop.check()
        self.steps.forget()
        known = self.expected.seconds.get(phase) if self.expected else None
        after = self.expected.after(phase) if self.expected else 0.0
        session.listen(events.PhaseStarted(build_id=build_id, phase=phase, expected=known, after=after))
        started = session.clock()
        ok = False
        try:
            self.steps.check(phase)
            result = do()
            ok = True
        except (TfdockError, OSError) as error:
            # The engine's own Interrupted does not know whether it was SIGINT or SIGTERM.
            cause = session.stop.interruption if isinstance(error, Interrupted) else None
            if isinstance(error, EngineError | NetworkError | OSError):
                self.steps.note(error)
            raise self.failures(phase).completed(cause or error) from None
        finally:
            self.seconds[phase] = round(session.clock() - started, 3)
            session.listen(events.PhaseEnded(build_id=build_id, phase=phase, seconds=self.seconds[phase], ok=ok))
        return result

    def failures(self, phase: str, plan: BuildPlan | None = None) -> Failures:
        """What tells of a phase that failed; `plan` has the limits, where they are not the run's."""
        return Failures(
            phase=phase,
            resources=(plan or self.plan).resources,
            cost=self.plan.resolution.release.cost,
            log=self.log,
            tail=tuple(self.steps.tail),
            errors=tuple(self.steps.errors),
            folders=self.session.folders,
        )

    # --- containers ---------------------------------------------------------------------------------------------

    def container_spec(self, phase: Phase, plan: BuildPlan | None = None) -> ContainerSpec:
        """The container of a phase, with its folders made and filled in."""
        plan = plan or self.plan
        cache, folders = self.session.cache, self.folders
        places = {
            "{cache}/repository": os.path.realpath(self.request.repository or cache.repository),
            "{cache}/disk": os.path.realpath(cache.root / "disk"),
            "{output}": folders.output.make().mount_source,
            "{staging}": folders.staging.make().mount_source,
            "{results}": str(folders.results),
            "{remote}": str(folders.own / "remote"),
            "{toolchain}": self.toolchain,
        }
        mounts = tuple(self._own(_filled(mount, places)) for mount in phase.mounts)
        make_sources(mounts)
        if self.overlay:
            mounts = tuple(self._overlaid(one) if one.target == DISK_CACHE else one for one in mounts)
        network = self.session.settings.network if phase.network and not self.request.inputs else "none"
        return ContainerSpec(
            name=f"tfdock-{self.name}-{phase.name}",
            image=self.image,
            command=tuple(word.replace("{toolchain}", self.toolchain) for word in phase.command),
            environment={**plan.container_environment, **plan.environment, "TFDOCK_RUN": self.name},
            mounts=mounts,
            labels={RUN_LABEL: self.name, **plan.labels},
            user=f"{os.getuid()}:{os.getgid()}",
            workdir=SOURCE,
            network=network,
            memory=plan.resources.memory,
            cpus=float(plan.resources.cpus),
            pids=plan.resources.pids,
        )

    def beside(
        self, name: str, command: tuple[str, ...], *leaves: ExpectedFiles, given: Path | None = None
    ) -> ContainerSpec:
        """Return the container of another command in the place of Bazel's compile phase. It has no disk cache.

        It leaves the results `leaves`, and reads the folder `given` of the host.
        """
        spec = self.container_spec(self.plan.phases[1])
        mounts = [one for one in spec.mounts if one.target not in (DISK_CACHE, STAGING)]
        mounts += [replace(one, results=leaves) for one in spec.mounts if leaves and one.target == STAGING]
        mounts += [Mount(source=str(given), target=GIVEN, read_only=True, given=True)] if given else []
        return replace(spec, name=f"{spec.name}-{name}", command=command, mounts=tuple(mounts))

    def carry_out(self, phase: Phase, plan: BuildPlan | None = None) -> None:
        """Run a phase in its container to the end; return only if it ended well."""
        with self._linked(phase) as link:
            self.contain(self.container_spec(phase, plan), phase.name, self.title(phase.name), tap=link, plan=plan)

    def contain(
        self,
        spec: ContainerSpec,
        phase: str,
        title: str,
        *,
        tap: EndpointWatch | None = None,
        plan: BuildPlan | None = None,
    ) -> None:
        """Run a container to its end, and remove it; raises what tells of its failure."""
        try:
            state, memory = self.steps.container(spec, phase, title, tap=tap)
        except EngineError as error:
            spec = self.without_overlay(spec, error)
            state, memory = self.steps.container(spec, phase, title, tap=tap)
        if state.exit_code != 0 or memory:
            raise self.failures(phase, plan).of_container(state.exit_code, memory=memory)
        self.engine.remove(state.id)

    def stands_alone(self, why: str) -> None:
        """Tell that the build cannot read the cache of `release`, and what that costs."""
        message = f"the disk cache {self.disk.key} cannot be laid over the one of `release`"
        fix = "to share the cache on purpose, build with `--trust`: later builds then ship what this source writes"
        what = "this domain compiles everything once itself"
        self.tell(str(Problem(code="disk-cache-alone", message=f"{message} ({why}): {what}", fix=fix)))

    def _overlaid(self, mount: Mount) -> Mount:
        return replace(mount, source=self.overlay, kind="volume")

    def without_overlay(self, spec: ContainerSpec, error: EngineError) -> ContainerSpec:
        """Return the container with the domain's own disk cache alone, where the engine refused the overlay.

        Raises the error where something else is the cause.
        """
        if not self.overlay or error.problems[0].code != "volume-mount-refused":
            raise error
        self.overlay = ""
        self.stands_alone(error.problems[0].message)
        folder = os.path.realpath(self.disk.folder)
        mounts = (
            replace(one, source=folder, kind="bind") if one.target == DISK_CACHE else one for one in spec.mounts
        )
        return replace(spec, mounts=tuple(mounts))

    def _own(self, mount: Mount) -> Mount:
        """Return the mount; a repository cache of the run's own goes to an engine elsewhere, and comes back."""
        repository = self.request.repository
        if mount.target != REPOSITORY_CACHE or not (repository or self.request.inputs):
            return mount
        mount = replace(mount, volume="", given=True)
        if repository is None or self.session.engine_info.local:
            return mount
        back = came_back(repository)
        source = os.path.realpath(back if back.is_dir() else repository)
        return replace(mount, source=source, results=() if mount.read_only else (DOWNLOADS,), kept=str(back))

    @contextmanager
    def _linked(self, phase: Phase) -> Iterator[EndpointWatch | None]:
        """The way out to a remote cache and executor, while the phase that has no network runs."""
        if phase.network or not self.plan.remote.endpoints:
            yield None
            return
        from tfdock.bazel.remote import remote_session as remote

        folder = self.folders.own / "remote"
        with remote.linked(self.plan.remote, self.session.settings, folder, self.session.listen) as link:
            try:
                yield link
            finally:
                self.remote = link.facts


def came_back(repository: Path) -> Path:
    """Return the folder in which a repository cache comes back from an engine elsewhere."""
    return repository.with_name(f"{repository.name}-back")


def _filled(mount: Mount, places: Mapping[str, str]) -> Mount:
    def filled(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    return replace(mount, source=filled(mount.source), kept=filled(mount.kept), volume=filled(mount.volume))
