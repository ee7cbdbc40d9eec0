"""Carrying out a plan: image, fetch, compile, seal, verify. What is visible at the end is whole, or is not there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from tfdock import __version__
from tfdock.decide import lock as locks
from tfdock.decide.estimate import Expectation, expectation, weight
from tfdock.decide.lock import LockFile, Pin
from tfdock.decide.plan import (
    EXTERNAL,
    REPOSITORY_CACHE,
    BuildPlan,
    Phase,
    as_json,
    described_toolchain,
    toolchain_key,
    unpacking,
    with_resources,
)
from tfdock.decide.sizing import Resources, after_memory, size
from tfdock.do import events, journal
from tfdock.do.cache import CacheFolder, DiskCache
from tfdock.do.cache import use as cache_use
from tfdock.do.engine import BASE_LABEL, RUN_LABEL, Cancel, ContainerSpec, Engine, EngineInfo, ImageBuild, ImageInfo
from tfdock.do.failures import Failures, file_error, gib, make_folder
from tfdock.do.locking import held
from tfdock.do.machine import engine_data
from tfdock.do.room import Room
from tfdock.do.settings import Settings
from tfdock.do.source import context_archive, listing_hash, tree_listing
from tfdock.do.steps import Steps, announced, ready
from tfdock.do.watch import Limit, Stop
from tfdock.do.workspace import RECORD_SCHEMA, WheelFile, Wheelhouse, remove_folder, write_atomically
from tfdock.errors import (
    BuildFailed,
    Incompatible,
    Interrupted,
    NetworkError,
    OutOfMemory,
    Problem,
    TfdockError,
)
from tfdock.model import Machine, Mount

if TYPE_CHECKING:
    from tfdock.do.happened import Account
    from tfdock.do.offline import Given
    from tfdock.do.remote import Link
    from tfdock.do.verify import Verification
    from tfdock.read.knowledge import KnowledgeBase

_OF_THE_SOURCE = {"source-unreachable", "image-step-failed", "download-failed", "fetch-failed"}
"""Codes of failures that another source ref may not have."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """A wheel that is in the wheelhouse, and how it came there. `status` is `built` or `up-to-date`."""

    status: str
    record: Mapping[str, Any]
    record_path: Path
    log_path: Path
    wheels: tuple[Path, ...]


def alone(plan: BuildPlan, machine: Machine) -> Resources:
    """What a build gets that has a machine for itself."""
    return size(plan.asked, plan.resolution.release.cost, machine)


@dataclass
class Run:
    """What one run accumulates."""

    steps: Steps
    staging: Path
    output: Path
    locks: ExitStack
    """What the run holds of the cache until it ends."""
    seconds: dict[str, float] = field(default_factory=dict)
    attempts: int = 1
    expected: Expectation | None = None
    compiled_with: list[dict[str, Any]] = field(default_factory=list)
    """The limits of each attempt to compile, and how it ended."""
    image: str = ""
    toolchain: str = ""
    toolchain_file: bytes = b""
    tree: Path | None = None
    cache_was_empty: bool = False
    remote: Mapping[str, object] | None = None
    """What went over to a remote cache and executor."""
    base_digest: str | None = None
    source_ref: str | None = None
    source_found: str = ""
    lock: LockFile | None = None
    given: Given | None = None
    """What a bundle has for it: then nothing comes from a network."""
    repository: Path | None = None
    """A repository cache of its own, instead of the one that all builds share."""
    installed: tuple[Pin, ...] = ()
    """What the image holds, by its own account."""

    @property
    def name(self) -> str:
        """The run's id."""
        return self.steps.run


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
    allotted: Callable[[BuildPlan, Machine], Resources] = alone
    """How much of the engine's machine a build gets; asked when it starts, and again before it compiles."""
    at_once: int = 1
    """How many builds share the machine, this one included."""
    limit: Limit | None = None
    """When all has to end, whatever the profiles say."""
    log: Path | None = None
    """The log of the last build, once it has one."""

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
    def _knowledge(self) -> KnowledgeBase:
        from tfdock.do import assets

        return assets.knowledge(self.settings.knowledge, self.settings.cache_dir)

    # --- the whole --------------------------------------------------------------------------------------------

    def up_to_date(self, plan: BuildPlan, lock: LockFile | None = None) -> BuildResult | None:
        """The finished build of that very plan, by that very lock, if it is in the wheelhouse; asks no engine."""
        record = self.wheelhouse.finished(plan.build_id, plan.fingerprint)
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
            return done or self._build(plan, tree, fresh=force, lock=lock, given=given)

    def _build(
        self, plan: BuildPlan, tree: Path | None, *, fresh: bool, lock: LockFile | None, given: Given | None
    ) -> BuildResult:
        plan = self._fitted(plan)
        self._preflight(plan)
        self._ask_remote(plan)
        with self._run(plan) as run:
            run.lock, run.tree, run.given = lock, tree, given
            run.expected = expectation(plan, self.wheelhouse.records(), self._knowledge)
            self._image_and_fetch(plan, run, tree, fresh=fresh)
            self._timed(plan, run, "compile", lambda: self._in_cache(plan, run))
            sealed = self._timed(plan, run, "seal", lambda: self._sealed(plan, run))
            record = self._timed(plan, run, "verify", lambda: self._published(plan, run, sealed))
        return self._result(plan, "built", record)

    def shell(self, plan: BuildPlan, tree: Path | None, command: tuple[str, ...], ready: Callable[[], None]) -> int:
        """Open the image that builds the plan on this terminal; returns the command's exit status.

        The container sees what the compile phase sees, and the network. `ready` is called before it takes the
        terminal.
        """
        with self._own_files(), self._run(plan) as run:
            self._timed(plan, run, "image", lambda: self._image(plan, run, tree, fresh=False))
            spec = self.container_spec(plan, plan.phases[1], run)
            container = run.steps.carrier.create(
                replace(spec, command=command, network=self.settings.network, terminal=True)
            )
            ready()
            return self.engine.attach(container)

    def pins(self, plan: BuildPlan, tree: Path | None) -> tuple[Pin, ...]:
        """Build a plan's image, no further, and return what it holds: Bazel, packages, Python requirements, tools."""
        make_folder(self.wheelhouse.root)
        with self._own_files():
            self._room_for_image(plan)
            with self._run(plan) as run:
                self._timed(plan, run, "image", lambda: self._image(plan, run, tree, fresh=False))
                return run.installed

    def fetch(
        self,
        plan: BuildPlan,
        tree: Path | None,
        then: Callable[[BuildPlan, Run], _T],
        *,
        lock: LockFile | None = None,
        repository: Path | None = None,
    ) -> _T:
        """Have a plan's image and all that its build downloads, and compile nothing; returns what `then` does.

        `then` is a phase of its own, `pack`, with the run's containers and folders still there. With a `repository`
        everything is downloaded into that cache.
        """
        make_folder(self.wheelhouse.root)
        with self._own_files(), self.wheelhouse.locked(plan.build_id):
            plan = self._fitted(plan)
            self._room_for_image(plan)
            with self._run(plan) as run:
                run.lock, run.tree, run.repository = lock, tree, repository
                self._image_and_fetch(plan, run, tree, fresh=False)
                return self._timed(plan, run, "pack", lambda: then(plan, run))

    @contextmanager
    def _own_files(self) -> Iterator[None]:
        """Tell what goes wrong with files of ours; in a phase it has become a TfdockError already."""
        try:
            yield
        except OSError as error:
            raise file_error(error, self._folders) from error

    @contextmanager
    def _run(self, plan: BuildPlan) -> Iterator[Run]:
        """A run: known to the journal while it lives, cleaned up when it ends, well or not."""
        ready(self.engine, self.engine_info, self.settings.state_dir, self.listen)
        name = journal.new_run_id()
        output, staging = self.cache.output(name), self.wheelhouse.staging(name)
        entry = journal.RunEntry(
            run=name,
            build_id=plan.build_id,
            staging=str(staging),
            output=str(output),
            engine=self.engine_info.id,
        )
        # One log a run: another try, or a shell, leaves the log of the wheel that is here alone.
        log_path = self.wheelhouse.record_folder(plan.build_id, plan.fingerprint) / f"{name}.log"
        make_folder(log_path.parent)
        # Unbuffered: a disk that runs full shall be noticed in the phase that fills it, not when the log is closed.
        with (
            ExitStack() as locks,
            journal.running(self.settings.state_dir, entry),
            log_path.open("wb", buffering=0) as log,
        ):
            self.log = log_path
            try:
                locks.enter_context(self.cache.in_use(waiting=self._waiting("the cache")))
                yield Run(steps=self._steps(plan, name, log), staging=staging, output=output, locks=locks)
            except BaseException as error:
                kept = self._keeps(error, output)
                # The first error is the one to tell; what cannot be cleaned now, the journal keeps for later.
                with suppress(TfdockError, OSError):
                    journal.clean(self.settings.state_dir, entry, self.engine, keep_output=kept)
                if kept:
                    told = f"the output base is kept in {output}; `tfdock cache prune` removes it"
                    self.listen(events.Notice(text=told))
                raise
            self._clean(entry)

    def _keeps(self, error: BaseException, output: Path) -> bool:
        """Whether what a build left in its output base is for somebody to look at."""
        failed = isinstance(error, TfdockError) and not isinstance(error, Interrupted)
        return self.settings.keep_output == "failed" and failed and (output / "base").is_dir()

    def _waiting(self, what: str) -> Callable[[str], None]:
        """Tells once for whom a run waits, and hears when it is to stop."""
        told: set[str] = set()

        def waiting(who: str) -> None:
            self.stop.check()
            if who not in told:
                told.add(who)
                self.listen(events.Notice(text=f"waiting for {who}, which has {what} for itself"))

        return waiting

    def _steps(self, plan: BuildPlan, name: str, log: BinaryIO) -> Steps:
        asked = plan.resources.time_limit
        limit = self.limit or (Limit(asked, self.clock() + asked) if asked else None)
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

    def _fitted(self, plan: BuildPlan) -> BuildPlan:
        """The plan within what its machine has, or its share of that."""
        machine = self.machine(plan)
        resources = self.allotted(plan, machine)
        if resources == plan.resources:
            return plan
        if self.at_once == 1:
            has = f"{machine.cpus} cores and {gib(machine.memory)}, less than this machine"
            self.listen(events.Notice(text=f"the engine has {has}: {resources.jobs} jobs"))
        return with_resources(plan, resources, self._knowledge)

    def _preflight(self, plan: BuildPlan) -> None:
        """Refuse before hours of work what cannot end well on this machine, and say what else is amiss."""
        # Here, not above: what is up to date is told without knowledge of drivers.
        from tfdock.do import doctor

        for check in doctor.before_build(plan, self._knowledge, self.settings, self.engine, self.engine_info):
            self.listen(events.Notice(text=str(check.problem)))

    def _room_for_image(self, plan: BuildPlan) -> None:
        """The same where nothing but the image is made."""
        from tfdock.do import doctor

        for check in doctor.before_image(plan, self.settings, self.engine, self.engine_info):
            self.listen(events.Notice(text=str(check.problem)))

    def _ask_remote(self, plan: BuildPlan) -> None:
        """See that the remote cache and executor can be used, before hours of work."""
        if not plan.remote.endpoints:
            return
        from tfdock.do import remote

        if not self.engine_info.local:
            raise remote.far(plan.remote)
        remote.check(plan.remote, self.settings)

    # --- image and fetch ----------------------------------------------------------------------------------------

    def _image_and_fetch(self, plan: BuildPlan, run: Run, tree: Path | None, *, fresh: bool) -> None:
        """Build the image and fetch for the first source ref that can be had, configured and analysed."""
        refs = (run.given.build.source_ref,) if run.given else plan.source_refs
        for number, ref in enumerate(refs, start=1):
            run.source_ref, run.attempts = ref, number
            try:
                self._timed(plan, run, "image", lambda: self._image(plan, run, tree, fresh=fresh))
                self._timed(plan, run, "fetch", lambda: self._fetched(plan, run))
                return
            except (BuildFailed, NetworkError) as error:
                if number == len(refs) or error.problems[0].code not in _OF_THE_SOURCE:
                    raise
                said = error.problems[0].message.partition("\n")[0]
                self.listen(events.Notice(text=f"source {ref} does not work ({said}); trying {refs[number]}"))

    def _fetched(self, plan: BuildPlan, run: Run) -> None:
        """Fetch, one build after the other: Bazels that fill one repository cache get in each other's way."""
        waiting = run.steps.waiting("fetch", "fetches into the same cache")
        lock = self.cache.root / "locks" / "repository"
        with held(lock, "the repository cache", alone=True, waiting=waiting):
            if run.given:
                self._external(plan, run, run.given)
            self._container(plan, run, plan.phases[0])

    def _external(self, plan: BuildPlan, run: Run, given: Given) -> None:
        """Put what repository rules fetched past Bazel's cache where they put it: a container unpacks it."""
        archive = given.external()
        if archive is None:
            return
        make_folder(run.staging)
        file = run.staging / EXTERNAL
        with file.open("wb") as sink:
            for chunk in archive:
                sink.write(chunk)
        spec = self.container_spec(plan, plan.phases[1], run)
        spec = replace(spec, name=f"{spec.name}-unpack", command=unpacking())
        state, memory = run.steps.container(spec, "fetch", "what repository rules fetched")
        if state.exit_code != 0 or memory:
            raise self._failures(plan, run, "fetch").of_container(state.exit_code, memory=memory)
        self.engine.remove(state.id)
        file.unlink()

    def _image(self, plan: BuildPlan, run: Run, tree: Path | None, *, fresh: bool) -> None:
        """Have the image. Who builds on the same base waits: layers that both need are made once."""
        base = hashlib.sha256(str(plan.resolution.base).encode()).hexdigest()[:16]
        lock = self.settings.state_dir.absolute() / "locks" / f"image-{base}"
        waiting = run.steps.waiting("image", f"builds an image on {plan.resolution.base} too")
        with held(lock, "the image", alone=True, waiting=waiting):
            self._image_here(plan, run, tree, fresh=fresh)

    def _image_here(self, plan: BuildPlan, run: Run, tree: Path | None, *, fresh: bool) -> None:
        name = self._image_given(run, run.given) if run.given else self._image_made(plan, run, tree, fresh=fresh)
        self._read_image(plan, run, name)
        problem = locks.moved(run.lock.lock.of(*locks.INSTALLED), run.installed, run.lock.path) if run.lock else None
        if problem:
            raise Incompatible(problem)

    def _image_given(self, run: Run, given: Given) -> str:
        """The image out of a bundle, with all else that the bundle has; its name."""
        given.supply.provide(run.steps, self.settings)
        run.image, run.base_digest = given.image(self.engine), given.build.base_digest
        return given.build.image.name

    def _image_made(self, plan: BuildPlan, run: Run, tree: Path | None, *, fresh: bool) -> str:
        """The image built, unless it is there; its name."""
        base = self._base(plan, run)
        # The name is for people. What is looked into and what compiles is the id: another run may move the name.
        name = plan.image_name if run.attempts == 1 else f"{plan.image_name}-{run.attempts}"
        built = self.engine.image(name)
        if fresh or built is None or built.labels.get(BASE_LABEL) != base.id:
            arguments = {"BASE_IMAGE": base.id}
            arguments |= {"SOURCE_REF": run.source_ref} if run.source_ref else {}
            arguments |= {"SOURCE_FRESH": run.name} if fresh and plan.resolution.source.kind != "path" else {}
            request = ImageBuild(
                context=lambda: context_archive(plan.context, tree),
                build_args=arguments,
                network=self.settings.network,
                memory=plan.resources.memory,
            )
            run.image = self._image_built(plan, run, request)
            self.engine.tag(run.image, name)
        else:
            run.image = built.id
        return name

    def _base(self, plan: BuildPlan, run: Run) -> ImageInfo:
        """The base image, pulled if it is not here."""
        base = self.settings.mirrored(plan.resolution.base)
        info = run.steps.image(str(base), "image", _title(plan, "image"))
        run.base_digest = base.digest or next((digest.rpartition("@")[2] for digest in info.digests), None)
        return info

    def _image_built(self, plan: BuildPlan, run: Run, request: ImageBuild) -> str:
        """Build the image; its id."""
        cancel = Cancel()
        stopper = run.steps.stopper(gently=cancel.set, by_force=lambda: run.steps.give_up("image"))
        try:
            return run.steps.watch(
                _title(plan, "image"), lambda output: self.engine.build(request, output, cancel), stopper
            )
        except Interrupted:  # the engine's own, which knows only that it was told to stop
            if stopper.late:
                run.steps.give_up("image")
            raise

    def _read_image(self, plan: BuildPlan, run: Run, image: str) -> None:
        """The toolchain's identity and all else that the image wrote down; the container is never started."""
        container = self.engine.create(
            ContainerSpec(
                name=f"tfdock-{run.name}-look", image=run.image, command=("true",), labels={RUN_LABEL: run.name}
            )
        )
        try:
            toolchain = self.engine.read_file(container, "/opt/tfdock/toolchain")
            found = self.engine.read_file(container, "/opt/tfdock/source")
            pins = self.engine.read_file(container, "/opt/tfdock/pins")
            name = locks.requirements_file(plan.resolution.python)
            requirements = self.engine.read_file(container, f"/tf/tensorflow/{name}")
        finally:
            self.engine.remove(container)
        if toolchain is None:
            raise BuildFailed(
                Problem(
                    code="image-incomplete",
                    message=f"the image {image} holds no /opt/tfdock/toolchain",
                    fix="remove the image and build again",
                )
            )
        run.toolchain, run.toolchain_file = toolchain_key(toolchain), toolchain
        self._take_disk_cache(plan, run)
        run.source_found = (found or b"").decode("ascii", "replace").strip()
        run.installed = locks.installed(toolchain, pins or b"", {name: requirements} if requirements else {})

    # --- containers ---------------------------------------------------------------------------------------------

    def _take_disk_cache(self, plan: BuildPlan, run: Run) -> None:
        """Hold the toolchain's disk cache with others, until the run ends, so that nobody takes things out of it."""
        disk = self.cache.disk(run.toolchain)
        run.locks.enter_context(disk.held(alone=False, waiting=self._waiting(f"the disk cache {disk.key}")))
        disk.describe({**described_toolchain(run.toolchain_file), "base": str(plan.resolution.base)})

    def _in_cache(self, plan: BuildPlan, run: Run) -> None:
        """Compile, and note what of the disk cache that used, where it lies on this machine."""
        if not self.engine_info.local:
            self._compiled(plan, run)
            return
        with cache_use.watched(DiskCache(self.cache.root, run.toolchain), plan.build_id, run.name) as watch:
            if not watch.seen:
                self.listen(events.Notice(text=f"{self.cache.root} keeps no times of access: {cache_use.UNSEEN}"))
            self._compiled(plan, run)
            watch.ok = True

    def container_spec(self, plan: BuildPlan, phase: Phase, run: Run) -> ContainerSpec:
        """The container of a phase, with its folders made and filled in."""
        folders = {
            **({"{cache}/repository": str(run.repository)} if run.repository else {}),
            "{cache}": str(self.cache.root),
            "{output}": str(run.output),
            "{staging}": str(run.staging),
            "{toolchain}": run.toolchain,
        }
        mounts = tuple(_filled(mount, folders) for mount in phase.mounts)
        if run.repository or run.given:  # what is here, and not what an engine elsewhere has
            mounts = tuple(_own(one) if one.target == REPOSITORY_CACHE else one for one in mounts)
        for mount in mounts:
            make_folder(Path(mount.source))
        return ContainerSpec(
            name=f"tfdock-{run.name}-{phase.name}",
            image=run.image,
            command=tuple(word.replace("{toolchain}", run.toolchain) for word in phase.command),
            environment={**plan.container_environment, **plan.environment, "TFDOCK_RUN": run.name},
            mounts=mounts,
            labels={RUN_LABEL: run.name, **plan.labels},
            user=f"{os.getuid()}:{os.getgid()}",
            workdir="/tf/tensorflow",
            network=self.settings.network if phase.network and not run.given else "none",
            memory=plan.resources.memory,
            cpus=float(plan.resources.cpus),
            pids=plan.resources.pids,
        )

    def _compiled(self, plan: BuildPlan, run: Run) -> None:
        """Compile; once more, with half the jobs and from the cache, if something was killed for memory."""
        from tfdock.do import happened

        plan = self._fitted(plan)
        disk = self.cache.disk(run.toolchain).folder
        run.cache_was_empty = self.engine_info.local and happened.is_empty(disk)
        try:
            self._attempt(plan, run)
        except OutOfMemory as error:
            less = after_memory(plan.resources, of_bazel=error.of_bazel)
            if less is None:
                raise
            told = f"{error.problems[0].message}; compiling again with {less.jobs}, from the cache"
            self.listen(events.Notice(text=told))
            remove_folder(run.staging)
            run.steps.forget()
            self._attempt(with_resources(plan, less, self._knowledge), run)

    def _attempt(self, plan: BuildPlan, run: Run) -> None:
        limits = plan.resources
        tried: dict[str, Any] = {"jobs": limits.jobs, "cpus": limits.cpus, "memory": limits.memory}
        run.compiled_with.append(tried | {"heap": limits.heap, "ended": "well"})
        try:
            self._container(plan, run, plan.phases[1])
        except OutOfMemory as error:
            run.compiled_with[-1]["ended"] = error.problems[0].message
            raise

    def _container(self, plan: BuildPlan, run: Run, phase: Phase) -> None:
        """Run one phase to its end; return only if it ended well."""
        with self._linked(plan, run, phase) as link:
            spec = self.container_spec(plan, phase, run)
            state, memory = run.steps.container(spec, phase.name, _title(plan, phase.name), tap=link)
        if state.exit_code != 0 or memory:
            raise self._failures(plan, run, phase.name).of_container(state.exit_code, memory=memory)
        self.engine.remove(state.id)

    @contextmanager
    def _linked(self, plan: BuildPlan, run: Run, phase: Phase) -> Iterator[Link | None]:
        """The way out to a remote cache and executor, while the phase that has no network runs."""
        if phase.network or not plan.remote.endpoints:
            yield None
            return
        from tfdock.do import remote

        with remote.linked(plan.remote, self.settings, run.output, self.listen) as link:
            try:
                yield link
            finally:
                run.remote = link.facts

    def _timed(self, plan: BuildPlan, run: Run, phase: str, do: Callable[[], _T]) -> _T:
        """One phase: announced, measured, and its errors completed with phase, log and next command."""
        self.stop.check()
        run.steps.forget()
        known = run.expected.seconds.get(phase) if run.expected else None
        after = run.expected.after(phase) if run.expected else 0.0
        self.listen(events.PhaseStarted(build_id=plan.build_id, phase=phase, expected=known, after=after))
        started = self.clock()
        ok = False
        try:
            run.steps.check(phase)
            result = do()
            ok = True
        except (TfdockError, OSError) as error:
            # The engine's own Interrupted does not know whether it was SIGINT or SIGTERM.
            cause = self.stop.interruption if isinstance(error, Interrupted) else None
            raise self._failures(plan, run, phase).completed(cause or error) from None
        finally:
            run.seconds[phase] = round(self.clock() - started, 3)
            self.listen(events.PhaseEnded(build_id=plan.build_id, phase=phase, seconds=run.seconds[phase], ok=ok))
        return result

    def _failures(self, plan: BuildPlan, run: Run, phase: str) -> Failures:
        return Failures(
            phase=phase,
            resources=plan.resources,
            log=self.log,
            tail=tuple(run.steps.tail),
            errors=tuple(run.steps.errors),
            folders=self._folders,
        )

    @property
    def _folders(self) -> dict[str, Path]:
        """What may run full, for people."""
        return {"the cache": self.settings.cache_dir.absolute(), "the wheelhouse": self.wheelhouse.root}

    @property
    def _disks(self) -> dict[str, Path]:
        """Where a build writes: these folders, and where an engine keeps its data that this user can look at."""
        root = engine_data(self.engine_info)
        return self._folders | ({"the engine's data": root} if root else {})

    # --- seal ---------------------------------------------------------------------------------------------------

    def _sealed(self, plan: BuildPlan, run: Run) -> Mapping[Path, WheelFile]:
        """From what the container left to wheels that could be published, still in the staging folder."""
        # Here, not above: what is up to date is told without the modules that know wheels.
        from tfdock.do import seal

        stopper = run.steps.stopper(gently=lambda: run.steps.give_up("seal"))
        sealed = run.steps.watch(
            _title(plan, "seal"),
            lambda _: seal.sealed_wheels(plan, run.staging, run.name),
            stopper,
            on_engine=False,
        )
        for wheel in sealed.values():
            self.wheelhouse.check_free(plan.build_id, wheel)
        return sealed

    # --- verify -------------------------------------------------------------------------------------------------

    def _published(self, plan: BuildPlan, run: Run, sealed: Mapping[Path, WheelFile]) -> dict[str, Any]:
        """Verify the wheels and make them visible. A stop is obeyed until they are."""
        from tfdock.do import verify
        from tfdock.do.verify.bench import MEMORY, Bench

        began = self.clock()
        bench = Bench(
            steps=run.steps,
            info=self.engine_info,
            settings=self.settings,
            folder=run.output / "verify",
            memory=min(MEMORY, plan.resources.memory),
            given=run.given.images if run.given else None,
        )
        found = [verify.verified_build(bench, self._knowledge, plan, path) for path in sealed]
        run.seconds["verify"] = round(self.clock() - began, 3)
        verification = verify.combined(found)
        if not all(one.ok for one in found):
            raise verify.refusal(found, self._kept(plan, sealed, verification))
        for one in found:
            self._tell_what_was_not_run(one)
        record = self._record(plan, run, sealed, verification)
        account = self._account(plan, run, record)
        record |= {"bazel": account.bazel, "kept": dict(account.kept)}
        self.stop.check()
        self.wheelhouse.publish(plan.build_id, record, sealed, account.files)
        return record

    def _account(self, plan: BuildPlan, run: Run, record: Mapping[str, Any]) -> Account:
        """What happened in the build; an execution log takes its time to be read."""
        from tfdock.do import happened

        assert self.log is not None
        traces = happened.Traces(
            run=run.name,
            staging=run.staging,
            log=self.log,
            compiling=announced(_title(plan, "compile")),
            toolchain=run.toolchain_file,
            context=plan.context.files,
            files=_listing(plan, run.tree),
            cache_was_empty=run.cache_was_empty,
        )
        stopper = run.steps.stopper(gently=lambda: run.steps.give_up("verify"))
        return run.steps.watch(
            _title(plan, "account"),
            lambda _: happened.account(record, traces, self.wheelhouse),
            stopper,
            on_engine=False,
        )

    def _tell_what_was_not_run(self, found: Verification) -> None:
        for problem in found.impossible.problems if found.impossible else ():
            self.listen(events.Notice(text=f"the wheel was not tried in a container: {problem.message}"))

    def _kept(
        self, plan: BuildPlan, sealed: Mapping[Path, WheelFile], verification: Mapping[str, object]
    ) -> tuple[Path, ...]:
        """Keep wheels that were refused, with what was found: hours of work are for somebody to look at."""
        folder = self.wheelhouse.record_folder(plan.build_id, plan.fingerprint) / "refused"
        remove_folder(folder)
        folder.mkdir(parents=True)
        text = json.dumps(verification, indent=1, sort_keys=True)
        write_atomically(folder / "verification.json", text.encode() + b"\n")
        return tuple(path.rename(folder / wheel.file) for path, wheel in sealed.items())

    def _record(
        self,
        plan: BuildPlan,
        run: Run,
        sealed: Mapping[Path, WheelFile],
        verification: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The build record: no secret, no path of this machine."""
        from tfdock.do import seal

        info = self.engine_info
        return {
            "schema": RECORD_SCHEMA,
            "build_id": plan.build_id,
            "fingerprint": plan.fingerprint,
            "tfdock": __version__,
            "log": f"{run.name}.log",
            "wheels": [asdict(wheel) for wheel in sealed.values()],
            "plan": _without_places(plan),
            "toolchain_key": run.toolchain,
            "toolchain": described_toolchain(run.toolchain_file),
            "base_digest": run.base_digest,
            "source": {"ref": run.source_ref, "found": run.source_found},
            "lock": run.lock.sha256 if run.lock else None,
            "seconds": dict(run.seconds),
            "attempts": run.attempts + len(run.compiled_with) - 1,
            "resources": run.compiled_with,
            "at_once": self.at_once,
            "estimate": _estimated(plan, run, self._knowledge),
            "remote": run.remote,
            "machine": {"cpus": info.cpus, "memory": info.memory},
            "engine": {"name": info.name, "version": info.version, "local": info.local},
            "untested": [problem.message for problem in plan.resolution.untested],
            "deflate": seal.deflate_backend(),
            "verification": verification,
            "started": _utc(run.steps.started),
            "finished": _utc(time.time()),
        }


def _title(plan: BuildPlan, phase: str) -> str:
    """What the log says where a step of a phase begins."""
    return f"{phase} of {plan.build_id}"


def _estimated(plan: BuildPlan, run: Run, knowledge: KnowledgeBase) -> dict[str, Any]:
    """What the build was expected to take when it began, and how much there was to compile beside a CPU build."""
    known = run.expected
    return {
        "seconds": dict(known.seconds) if known else None,
        "source": known.source if known else None,
        "weight": round(weight(plan, knowledge), 3),
    }


_USER = re.compile(r"(?<=://)[^/@\s]*@")
"""User and password in a web address."""


def _without_places(plan: BuildPlan) -> Any:
    """The plan as JSON, without where a local checkout lies on this machine, and without anybody's password."""
    source = plan.resolution.source
    local = json.dumps(source.location)[1:-1] if source.kind == "path" else None
    text = json.dumps(as_json(plan))
    return json.loads(_USER.sub("", text.replace(f'"{local}"', '"local checkout"') if local else text))


def _own(mount: Mount) -> Mount:
    """A repository cache that goes to the container and comes back."""
    return replace(mount, volume="", given=True, results=("content_addressable/sha256/*/*",))


def _filled(mount: Mount, folders: Mapping[str, str]) -> Mount:
    source = mount.source
    for name, value in folders.items():
        source = source.replace(name, value)
    return replace(mount, source=source, volume=mount.volume.replace("{toolchain}", folders["{toolchain}"]))


def _listing(plan: BuildPlan, tree: Path | None) -> dict[str, str] | None:
    """The files of a local checkout, if they are still those that were built."""
    listing = tree_listing(tree) if tree else None
    return listing if listing and listing_hash(listing) == plan.resolution.source.sha256 else None


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
