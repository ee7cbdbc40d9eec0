"""The shared values of all builds of one command, and the request of each build. All these objects are frozen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tfdock import events
from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.engine_machine import engine_data
from tfdock.engine.protocol import Engine
from tfdock.host.files import gib
from tfdock.host.settings import Settings
from tfdock.host.supervise import Limit, Stop
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan, with_resources
from tfdock.plan.resources import BuildResources, size
from tfdock.run.journal import new_run_id
from tfdock.types import EngineInfo, Machine
from tfdock.wheelhouse.store import Wheelhouse

if TYPE_CHECKING:
    from tfdock.plan.prepare import PreparedBuild
    from tfdock.run.supervisor import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """A wheel in the wheelhouse, and its origin. `status` is `built`, `up-to-date` or `pulled`.

    `origin` is the image of a pulled wheel.
    """

    status: str
    record: Mapping[str, Any]
    record_path: Path
    log_path: Path
    wheels: tuple[Path, ...]
    origin: str = ""


class BundledInputs(Protocol):
    """The inputs of one build from an offline bundle. The images have ids only after `provide`."""

    def provide(self, supervisor: Supervisor, settings: Settings) -> None:
        """Load the images, and put downloads and wheels into the folders in which a build expects them."""

    @property
    def image(self) -> str:
        """The id of the image that builds."""

    @property
    def image_name(self) -> str:
        """The name of the image that builds, for people."""

    @property
    def base_digest(self) -> str | None:
        """The digest of the base image."""

    @property
    def source_ref(self) -> str | None:
        """The ref of the source in the image."""

    @property
    def images(self) -> Mapping[str, str]:
        """The ids of runtime images, by their names in profiles."""

    @property
    def identity(self) -> str:
        """The sha256 of the bundle's images."""

    def external(self) -> Iterator[bytes] | None:
        """Return the archive of the downloads that are not in Bazel's cache; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """The request of one run, with a planned profile. It does not change during the run."""

    prepared: PreparedBuild
    run: str = field(default_factory=new_run_id)  #: The run's id. The caller finds the log by this id.
    force: bool = False  #: Build even if the wheel is up to date, and build the image again.
    inputs: BundledInputs | None = None  #: The inputs from a bundle. With a bundle, nothing comes from a network.
    repository: Path | None = None  #: A separate repository cache, instead of the shared repository cache.


def whole_machine(plan: BuildPlan, machine: Machine) -> BuildResources:
    """Return the resources of a build that runs alone on the machine."""
    return size(plan.requested, plan.resolution.release.cost, machine)


@dataclass(frozen=True, kw_only=True)
class BuildSession:
    """The shared values of a command: one engine, one knowledge base. `clock` returns monotonic seconds.

    `connect` is called when an engine is first needed: an up-to-date build needs neither the engine nor the SDK.
    """

    connect: Callable[[], Engine]
    settings: Settings
    knowledge: KnowledgeBase
    stop: Stop = field(default_factory=Stop)
    clock: Callable[[], float] = time.monotonic
    #: Returns a build's share of the engine's machine. Called when the build starts, and again before it compiles.
    allotted: Callable[[BuildPlan, Machine], BuildResources] = whole_machine
    at_once: int = 1  #: How many builds share the machine, including this build.
    limit: Limit | None = None  #: The time limit of the whole command. It overrides the limits in the profiles.
    pulls: bool = True  #: Whether the registries of the settings are searched for a build first.

    @cached_property
    def engine(self) -> Engine:
        """The engine that builds."""
        return self.connect()

    @cached_property
    def engine_info(self) -> EngineInfo:
        """The engine's facts about itself and its machine."""
        return self.engine.info()

    @property
    def wheelhouse(self) -> Wheelhouse:
        """The folder of finished wheels."""
        return Wheelhouse(self.settings.wheelhouse.absolute())

    @cached_property
    def cache(self) -> CacheFolder:
        """The folder of the caches. Raises ProfileError (`cache-foreign`) for a folder with other files."""
        return CacheFolder.opened(self.settings.cache_dir)

    @property
    def folders(self) -> dict[str, Path]:
        """The folders to check for a full disk, by their names for people."""
        return {"the cache": self.settings.cache_dir.absolute(), "the wheelhouse": self.wheelhouse.root}

    @property
    def disks(self) -> dict[str, Path]:
        """The folders that a build writes to: cache, wheelhouse, and (if readable) the engine's data folder."""
        root = engine_data(self.engine_info)
        return self.folders | ({"the engine's data": root} if root else {})

    def log_path(self, request: BuildRequest) -> UntrustedPath:
        """Return the path of a run's log. The file exists after the run has begun to write it.

        Each run has its own log, so a retry or a shell does not change the log of the finished wheel.
        """
        plan = request.prepared.plan
        return self.wheelhouse.record_folder(plan.build_id, plan.fingerprint) / f"{request.run}.log"

    def machine(self, plan: BuildPlan) -> Machine:
        """Return the engine's machine, but with no more resources than the machine that the plan was made for."""
        here, there = plan.machine, self.engine_info
        # The plan was made for this machine, and an engine may run on another machine of any size.
        if not there.local:
            return Machine(cpus=there.cpus, memory=there.memory)
        # A local engine may have fewer resources, for example in a virtual machine, and its containers get no more.
        return Machine(cpus=min(here.cpus, there.cpus), memory=min(here.memory, there.memory), swap=here.swap)

    def fitted(self, plan: BuildPlan, listen: events.Listener) -> BuildPlan:
        """Return the plan with the resources of its machine, or of this build's share of the machine."""
        machine = self.machine(plan)
        resources = self.allotted(plan, machine)
        if resources == plan.resources:
            return plan
        # Each of several builds has only a share of the machine, so a smaller share is not reported.
        if self.at_once == 1:
            has = f"{machine.cpus} cores and {gib(machine.memory)}, less than this machine"
            listen(events.Notice(text=f"the engine has {has}: {resources.jobs} jobs"))
        return with_resources(plan, resources, self.knowledge)

    def limit_of(self, plan: BuildPlan) -> Limit | None:
        """Return the time limit of work that begins now. The command's limit overrides the profile's."""
        asked = plan.resources.time_limit
        return self.limit or (Limit(asked, self.clock() + asked) if asked else None)

    def up_to_date(self, prepared: PreparedBuild) -> BuildResult | None:
        """Return the finished build of exactly this plan and lock; None if there is none. No engine is needed."""
        record, lock = self.wheelhouse.complete_record_for(prepared.plan), prepared.lock
        # The same plan may have been built with other pins: only the record of this very lock counts.
        by_lock = record is not None and (lock is None or record.get("lock") == lock.sha256)
        return self.result(prepared.plan, "up-to-date", record) if record and by_lock else None

    def result(self, plan: BuildPlan, status: str, record: Mapping[str, Any], origin: str = "") -> BuildResult:
        """Return the result of a build whose record is in the wheelhouse."""
        folder = self.wheelhouse.record_folder(plan.build_id, plan.fingerprint)
        return BuildResult(
            status=status,
            record=record,
            record_path=(folder / "record.json").path,
            log_path=(folder / record["log"]).path,
            wheels=tuple(self.wheelhouse.root / wheel["file"] for wheel in record["wheels"]),
            origin=origin,
        )
