"""Carrying out a plan: image, fetch, compile, seal, verify. What is visible at the end is whole, or is not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from tfdock import events
from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.builder import compile_phase, image_phase, seal_phase
from tfdock.builder.build_run import Run
from tfdock.engine.engine_host import engine_data
from tfdock.engine.protocol import Engine, EngineInfo
from tfdock.errors import EngineError, Interrupted, Problem, TfdockError
from tfdock.host.files import file_error, gib, make_folder, make_private
from tfdock.host.settings import Settings
from tfdock.host.supervise import Limit, Stop
from tfdock.plan.build_plan import BuildPlan, with_resources
from tfdock.plan.estimate import expectation
from tfdock.plan.lock_file import LockFile, Pin
from tfdock.plan.resources import BuildResources, size
from tfdock.run import journal
from tfdock.run.disk_space import Room
from tfdock.run.phases import Steps, ready
from tfdock.run.results import RunFolders
from tfdock.types import Machine
from tfdock.wheelhouse.store import Wheelhouse

if TYPE_CHECKING:
    from tfdock.builder.run_document import Papers
    from tfdock.knowledge.tables import KnowledgeBase
    from tfdock.offline.bundled_inputs import Given

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """A wheel that is in the wheelhouse, and how it came there. `status` is `built`, `up-to-date` or `pulled`.

    `origin` is the image that a pulled one came from.
    """

    status: str
    record: Mapping[str, Any]
    record_path: Path
    log_path: Path
    wheels: tuple[Path, ...]
    origin: str = ""


def alone(plan: BuildPlan, machine: Machine) -> BuildResources:
    """What a build gets that has a machine for itself."""
    return size(plan.asked, plan.resolution.release.cost, machine)


@dataclass
class Builder:
    """Builds plans on one engine. `listen` hears events; `clock` is monotonic seconds.

    `connect` is called when the engine is first needed: what is up to date needs neither it nor its SDK.
    """

    connect: Callable[[], Engine]
    settings: Settings
    listen: events.Listener
    stop: Stop = field(default_factory=Stop)
    clock: Callable[[], float] = time.monotonic
    allotted: Callable[[BuildPlan, Machine], BuildResources] = alone
    """How much of the engine's machine a build gets; asked when it starts, and again before it compiles."""
    at_once: int = 1
    """How many builds share the machine, this one included."""
    limit: Limit | None = None
    """When all has to end, whatever the profiles say."""
    pulls: bool = True
    """Whether the registries of the settings are asked before anything is built."""
    log: Path | None = None
    """The log of the last build, once it has one."""
    profile: Mapping[str, Any] = field(default_factory=dict)
    """What the profile that is built next says, as text: kept of a run that does not end well."""

    @cached_property
    def engine(self) -> Engine:
        """The engine that builds."""
        return self.connect()

    @cached_property
    def engine_info(self) -> EngineInfo:
        """Who it is."""
        return self.engine.info()

    @property
    def wheelhouse(self) -> Wheelhouse:
        """Where finished wheels go."""
        return Wheelhouse(self.settings.wheelhouse.absolute())

    @cached_property
    def cache(self) -> CacheFolder:
        """Where the caches lie; raises ProfileError (`cache-foreign`) for a folder that is somebody else's."""
        return CacheFolder.opened(self.settings.cache_dir)

    @cached_property
    def knowledge(self) -> KnowledgeBase:
        """What is known of releases, compilers and costs."""
        from tfdock.knowledge import loader

        return loader.knowledge(self.settings.knowledge, self.settings.cache_dir)

    # --- the whole --------------------------------------------------------------------------------------------

    def up_to_date(self, plan: BuildPlan, lock: LockFile | None = None) -> BuildResult | None:
        """The finished build of that very plan, by that very lock, if it is in the wheelhouse; asks no engine."""
        record = self.wheelhouse.finished_for(plan)
        by_lock = record is not None and (lock is None or record.get("lock") == lock.sha256)
        return self._result(plan, "up-to-date", record) if record and by_lock else None

    def build(
        self,
        plan: BuildPlan,
        tree: Path | None,
        *,
        force: bool = False,
        lock: LockFile | None = None,
        given: Given | None = None,
    ) -> BuildResult:
        """Build a plan, or find that it is built. `tree` is the local checkout, if that is the source.

        With a `lock`, by which the plan was made, an image that holds something else is refused. What is `given` by a
        bundle is neither built, nor pulled, nor downloaded.
        Raises a TfdockError whose problems name the phase, the log and what to do next.
        """
        self.log = None
        make_folder(self.wheelhouse.root)
        with self._own_files(), self.wheelhouse.locked(plan.build_id):
            done = None if force else self.up_to_date(plan, lock)
            if done is None and not (force or given):
                done = self._pulled(plan, lock)
            if done is None:
                self.wheelhouse.check_early(plan.build_id, plan.fingerprint, plan.trust.name)
            return done or self._build(plan, tree, fresh=force, lock=lock, given=given)

    def _pulled(self, plan: BuildPlan, lock: LockFile | None) -> BuildResult | None:
        """The very build of a plan, out of the first registry that has it; asks no engine."""
        if not (self.pulls and self.settings.registries):
            return None
        # Here, not above: what is up to date is told without the modules that know images.
        from tfdock.builder import prebuilt

        found = prebuilt.pulled(self, plan, lock)
        return replace(self._result(plan, "pulled", found.build.record), origin=found.origin) if found else None

    def _build(
        self, plan: BuildPlan, tree: Path | None, *, fresh: bool, lock: LockFile | None, given: Given | None
    ) -> BuildResult:
        plan = self.fitted(plan)
        self._preflight(plan)
        self._ask_remote(plan)
        with self._run(plan, tree) as run:
            run.lock, run.given, run.fresh = lock, given, run.name if fresh else ""
            run.expected = expectation(plan, self.wheelhouse.records(), self.knowledge)
            compile_phase.prepared(run)
            run.timed("compile", lambda: compile_phase.in_cache(run))
            sealed = run.timed("seal", lambda: seal_phase.sealed(run))
            record = run.timed("verify", lambda: seal_phase.published(run, sealed))
        return self._result(plan, "built", record)

    def shell(self, plan: BuildPlan, tree: Path | None, command: tuple[str, ...], ready: Callable[[], None]) -> int:
        """Open the image that builds the plan on this terminal; returns the command's exit status.

        The container sees what the compile phase sees, and the network. `ready` is called before it takes the
        terminal.
        """
        with self._own_files(), self._run(plan, tree) as run:
            run.timed("image", lambda: image_phase.have(run))
            spec = run.container_spec(plan.phases[1])
            spec = replace(spec, command=command, network=self.settings.network, terminal=True)
            ready()
            try:
                return self.engine.attach(run.steps.carrier.create(spec))
            except EngineError as error:
                spec = run.without_overlay(spec, error)
                return self.engine.attach(run.steps.carrier.create(spec))

    def pins(self, plan: BuildPlan, tree: Path | None) -> tuple[Pin, ...]:
        """Build a plan's image, no further, and return what it holds: Bazel, packages, Python requirements, tools."""
        make_folder(self.wheelhouse.root)
        with self._own_files():
            self._room_for_image(plan)
            with self._run(plan, tree) as run:
                run.timed("image", lambda: image_phase.have(run))
                return run.installed

    def fetch(
        self,
        plan: BuildPlan,
        tree: Path | None,
        then: Callable[[Run], _T],
        *,
        lock: LockFile | None = None,
        repository: Path | None = None,
    ) -> _T:
        """Have a plan's image and all that its build downloads, and compile nothing; returns what `then` does.

        `then` is a phase of its own, `pack`, with the run's containers and folders still there. With a `repository`
        everything is downloaded into that cache.
        """
        with self.analysed(plan, tree, lock=lock, repository=repository) as run:
            return run.timed("pack", lambda: then(run))

    @contextmanager
    def analysed(
        self,
        plan: BuildPlan,
        tree: Path | None,
        *,
        lock: LockFile | None = None,
        repository: Path | None = None,
        fresh: str = "",
    ) -> Iterator[Run]:
        """A run that has its image, and for which Bazel has downloaded and analysed everything; nothing is compiled.

        With a `repository` everything is downloaded into that cache. With `fresh`, a word, the image is built though
        it may be there, and its source is fetched anew, once for all runs with that word.
        """
        make_folder(self.wheelhouse.root)
        with self._own_files(), self.wheelhouse.locked(plan.build_id):
            plan = self.fitted(plan)
            self._room_for_image(plan)
            with self._run(plan, tree) as run:
                run.lock, run.repository, run.fresh = lock, repository, fresh
                compile_phase.prepared(run)
                yield run

    @contextmanager
    def _own_files(self) -> Iterator[None]:
        """Tell what goes wrong with files of ours; in a phase it has become a TfdockError already."""
        try:
            yield
        except OSError as error:
            raise file_error(error, self.folders) from error

    @contextmanager
    def _run(self, plan: BuildPlan, tree: Path | None) -> Iterator[Run]:
        """A run: known to the journal while it lives, cleaned up when it ends, well or not."""
        ready(self.engine, self.engine_info, self.settings, self.listen)
        name = journal.new_run_id()
        own, staged = self.cache.output(name), self.wheelhouse.staging(name)
        entry = journal.RunEntry(
            run=name,
            build_id=plan.build_id,
            staging=str(staged),
            output=str(own),
            engine=self.engine_info.id,
        )
        # One log a run: another try, or a shell, leaves the log of the wheel that is here alone.
        log_path = self.wheelhouse.record_folder(plan.build_id, plan.fingerprint) / f"{name}.log"
        make_folder(log_path.parent)
        make_private(staged.parent)
        # Unbuffered: a disk that runs full shall be noticed in the phase that fills it, not when the log is closed.
        with (
            ExitStack() as locks,
            journal.running(self.settings.state_dir, entry),
            log_path.open("wb", buffering=0) as log,
        ):
            self.log = log_path
            papers, folders = self._papers(plan, log_path), RunFolders.made(own, staged)
            try:
                steps = self._steps(plan, name, log)
                self._tell_shared(plan)
                locks.enter_context(self.cache.in_use(waiting=steps.waiting("image", "has the cache for itself")))
                yield Run(
                    builder=self,
                    plan=plan,
                    tree=tree,
                    steps=steps,
                    folders=folders,
                    log=log_path,
                    locks=locks,
                )
            except BaseException as error:
                papers.failed(error)
                kept = self._keeps(error, folders)
                # The first error is the one to tell; what cannot be cleaned now, the journal keeps for later. An
                # engine that does not answer is not asked, for minutes, for what it cannot do.
                if not isinstance(error, EngineError) or self.engine.ping():
                    with suppress(TfdockError, OSError):
                        journal.clean(self.settings.state_dir, entry, self.engine, keep_output=kept)
                if kept:
                    told = f"the output base is kept in {own}; `tfdock cache prune` removes it"
                    self.listen(events.Notice(text=told))
                raise
            papers.over()
            self._clean(entry)

    def _tell_shared(self, plan: BuildPlan) -> None:
        """Tell that a build writes to the cache of `release`, though it is not one."""
        if plan.trust.shared:
            message = f"this build writes to the cache of `release`: {'; '.join(plan.trust.reasons)}"
            self.listen(events.Notice(text=str(Problem(code="trust-shared", message=message))))

    def _papers(self, plan: BuildPlan, log: Path) -> Papers:
        """What `tfdock report --bundle` finds of a run that ends badly."""
        # Here, not above: what is up to date is told without them.
        from tfdock.builder.run_document import Papers

        papers, info = Papers(log), self.engine_info
        papers.begin(
            build_id=plan.build_id,
            fingerprint=plan.fingerprint,
            knowledge=self.knowledge.version,
            profile=dict(self.profile),
            plan=seal_phase.without_places(plan),
            machine={"cpus": info.cpus, "memory": info.memory},
            engine={"name": info.name, "version": info.version, "local": info.local},
            at_once=self.at_once,
        )
        return papers

    def _keeps(self, error: BaseException, folders: RunFolders) -> bool:
        """Return whether the output base of a build is kept, for somebody to look at."""
        failed = isinstance(error, TfdockError) and not isinstance(error, Interrupted)
        return self.settings.keep_output == "failed" and failed and folders.output.has_folder("base")

    def _steps(self, plan: BuildPlan, name: str, log: BinaryIO) -> Steps:
        limit = self.limit_from_now(plan)
        return Steps(
            engine=self.engine,
            run=name,
            log=log,
            listen=self.listen,
            stop=self.stop,
            clock=self.clock,
            deadline=limit.deadline if limit else None,
            limit=limit.seconds if limit else None,
            local=self.engine_info.local,
            room=Room(places=self._disks),
        )

    def _clean(self, entry: journal.RunEntry) -> None:
        """Clean up after a run that did what it should: if that fails, its work counts all the same."""
        try:
            journal.clean(self.settings.state_dir, entry, self.engine)
        except (TfdockError, OSError) as error:
            self.listen(events.Notice(text=f"could not clean up after run {entry.run}: {error}; a later run will"))

    def _result(self, plan: BuildPlan, status: str, record: Mapping[str, Any]) -> BuildResult:
        folder = self.wheelhouse.record_folder(plan.build_id, plan.fingerprint)
        return BuildResult(
            status=status,
            record=record,
            record_path=folder / "record.json",
            log_path=folder / record["log"],
            wheels=tuple(self.wheelhouse.root / wheel["file"] for wheel in record["wheels"]),
        )

    # --- before -------------------------------------------------------------------------------------------------

    def machine(self, plan: BuildPlan) -> Machine:
        """What builds a plan: the engine's machine, as far as it is not more than the plan was made for."""
        here, there = plan.machine, self.engine_info
        if not there.local:
            return Machine(cpus=there.cpus, memory=there.memory)
        return Machine(cpus=min(here.cpus, there.cpus), memory=min(here.memory, there.memory), swap=here.swap)

    def fitted(self, plan: BuildPlan) -> BuildPlan:
        """The plan within what its machine has, or its share of that."""
        machine = self.machine(plan)
        resources = self.allotted(plan, machine)
        if resources == plan.resources:
            return plan
        if self.at_once == 1:
            has = f"{machine.cpus} cores and {gib(machine.memory)}, less than this machine"
            self.listen(events.Notice(text=f"the engine has {has}: {resources.jobs} jobs"))
        return with_resources(plan, resources, self.knowledge)

    def limit_from_now(self, plan: BuildPlan) -> Limit | None:
        """When what begins now for a plan has to end: the command's own limit goes before the profile's."""
        asked = plan.resources.time_limit
        return self.limit or (Limit(asked, self.clock() + asked) if asked else None)

    def _preflight(self, plan: BuildPlan) -> None:
        """Refuse before hours of work what cannot end well on this machine, and say what else is amiss."""
        # Here, not above: what is up to date is told without knowledge of drivers.
        from tfdock.builder import doctor

        for check in doctor.before_build(plan, self.knowledge, self.settings, self.engine, self.engine_info):
            self.listen(events.Notice(text=str(check.problem)))

    def _room_for_image(self, plan: BuildPlan) -> None:
        """The same where nothing but the image is made."""
        from tfdock.builder import doctor

        for check in doctor.before_image(plan, self.settings, self.engine, self.engine_info):
            self.listen(events.Notice(text=str(check.problem)))

    def _ask_remote(self, plan: BuildPlan) -> None:
        """See that the remote cache and executor can be used, before hours of work."""
        if not plan.remote.endpoints:
            return
        from tfdock.bazel.remote import remote_session

        if not self.engine_info.local:
            raise remote_session.far(plan.remote)
        remote_session.check(plan.remote, self.settings)

    # --- places -------------------------------------------------------------------------------------------------

    @property
    def folders(self) -> dict[str, Path]:
        """What may run full, for people."""
        return {"the cache": self.settings.cache_dir.absolute(), "the wheelhouse": self.wheelhouse.root}

    @property
    def _disks(self) -> dict[str, Path]:
        """Where a build writes: these folders, and where an engine keeps its data that this user can look at."""
        root = engine_data(self.engine_info)
        return self.folders | ({"the engine's data": root} if root else {})
