"""What all builds of one command share, and what is asked of each: frozen values that a whole build reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tfdock import events
from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.engine_host import engine_data
from tfdock.engine.protocol import Engine, EngineInfo
from tfdock.host.files import gib
from tfdock.host.settings import Settings
from tfdock.host.supervise import Limit, Stop
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.build_plan import BuildPlan, with_resources
from tfdock.plan.prepare import PreparedBuild
from tfdock.plan.resources import BuildResources, size
from tfdock.run.journal import new_run_id
from tfdock.types import Machine
from tfdock.wheelhouse.store import Wheelhouse

if TYPE_CHECKING:
    from tfdock.run.phases import PhaseRunner


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


class BundledInputs(Protocol):
    """What an offline bundle has for one build. Images can be asked for once they were provided."""

    def provide(self, runner: PhaseRunner, settings: Settings) -> None:
        """Load the images, and put downloads and wheels where a build looks for them."""

    @property
    def image(self) -> str:
        """The id of the image that builds."""

    @property
    def image_name(self) -> str:
        """The name of that image, for people."""

    @property
    def base_digest(self) -> str | None:
        """The digest of the image's base."""

    @property
    def source_ref(self) -> str | None:
        """The ref of the source that the image holds."""

    @property
    def images(self) -> Mapping[str, str]:
        """The ids of runtime images, by the names that a profile has for them."""

    @property
    def identity(self) -> str:
        """The sha256 of the bundle's images."""

    def external(self) -> Iterator[bytes] | None:
        """Return the archive of what repository rules fetched past Bazel's cache, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What one run is asked to do, with a planned profile; all of it is settled before the run begins."""

    prepared: PreparedBuild
    run: str = field(default_factory=new_run_id)
    """The run's id, by which its caller finds the log."""
    force: bool = False
    """Build even what is up to date, from an image that is built again."""
    inputs: BundledInputs | None = None
    """What a bundle has for it: then nothing comes from a network."""
    repository: Path | None = None
    """A repository cache of its own, instead of the one that all builds share."""
    fresh: str = ""
    """A word: an image that is there is built again, its source fetched anew, once for all runs with that word."""


def alone(plan: BuildPlan, machine: Machine) -> BuildResources:
    """Return what a build gets that has a machine for itself."""
    return size(plan.asked, plan.resolution.release.cost, machine)


@dataclass(frozen=True, kw_only=True)
class BuildSession:
    """What a whole command shares: one engine, one knowledge base, one listener. `clock` is monotonic seconds.

    `connect` is called when the engine is first needed: what is up to date needs neither it nor its SDK.
    """

    connect: Callable[[], Engine]
    settings: Settings
    knowledge: KnowledgeBase
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

    @cached_property
    def engine(self) -> Engine:
        """The engine that builds."""
        return self.connect()

    @cached_property
    def engine_info(self) -> EngineInfo:
        """What the engine says of itself and of its machine."""
        return self.engine.info()

    @property
    def wheelhouse(self) -> Wheelhouse:
        """Where finished wheels go."""
        return Wheelhouse(self.settings.wheelhouse.absolute())

    @cached_property
    def cache(self) -> CacheFolder:
        """Where the caches lie; raises ProfileError (`cache-foreign`) for a folder that is somebody else's."""
        return CacheFolder.opened(self.settings.cache_dir)

    @property
    def folders(self) -> dict[str, Path]:
        """What may run full, for people."""
        return {"the cache": self.settings.cache_dir.absolute(), "the wheelhouse": self.wheelhouse.root}

    @property
    def disks(self) -> dict[str, Path]:
        """Where a build writes: these folders, and where an engine keeps its data that this user can look at."""
        root = engine_data(self.engine_info)
        return self.folders | ({"the engine's data": root} if root else {})

    def tell(self, text: str) -> None:
        """Tell whoever listens."""
        self.listen(events.Notice(text=text))

    def log_path(self, request: BuildRequest) -> Path:
        """Return where the log of a run lies, if the run got as far as to write one.

        There is one log a run: another try, or a shell, leaves the log of the wheel that is here alone.
        """
        plan = request.prepared.plan
        return self.wheelhouse.record_folder(plan.build_id, plan.fingerprint) / f"{request.run}.log"

    def machine(self, plan: BuildPlan) -> Machine:
        """Return what builds a plan: the engine's machine, as far as it is not more than the plan was made for."""
        here, there = plan.machine, self.engine_info
        if not there.local:
            return Machine(cpus=there.cpus, memory=there.memory)
        return Machine(cpus=min(here.cpus, there.cpus), memory=min(here.memory, there.memory), swap=here.swap)

    def fitted(self, plan: BuildPlan) -> BuildPlan:
        """Return the plan within what its machine has, or its share of that."""
        machine = self.machine(plan)
        resources = self.allotted(plan, machine)
        if resources == plan.resources:
            return plan
        if self.at_once == 1:
            has = f"{machine.cpus} cores and {gib(machine.memory)}, less than this machine"
            self.tell(f"the engine has {has}: {resources.jobs} jobs")
        return with_resources(plan, resources, self.knowledge)

    def limit_from_now(self, plan: BuildPlan) -> Limit | None:
        """Return when what begins now for a plan has to end: the command's own limit goes before the profile's."""
        asked = plan.resources.time_limit
        return self.limit or (Limit(asked, self.clock() + asked) if asked else None)

    def up_to_date(self, prepared: PreparedBuild) -> BuildResult | None:
        """Return the finished build of that very plan, by that very lock, if there is one; ask no engine."""
        record, lock = self.wheelhouse.complete_record_for(prepared.plan), prepared.lock
        by_lock = record is not None and (lock is None or record.get("lock") == lock.sha256)
        return self.result(prepared.plan, "up-to-date", record) if record and by_lock else None

    def result(self, plan: BuildPlan, status: str, record: Mapping[str, Any], origin: str = "") -> BuildResult:
        """Return the result of a build whose record is in the wheelhouse."""
        folder = self.wheelhouse.record_folder(plan.build_id, plan.fingerprint)
        return BuildResult(
            status=status,
            record=record,
            record_path=folder / "record.json",
            log_path=folder / record["log"],
            wheels=tuple(self.wheelhouse.root / wheel["file"] for wheel in record["wheels"]),
            origin=origin,
        )
