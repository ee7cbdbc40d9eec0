"""One run of a build: what every phase of it works with, and what it accumulates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfdock.decide.estimate import Expectation
from tfdock.decide.lock import LockFile, Pin
from tfdock.decide.plan import REPOSITORY_CACHE, SOURCE, BuildPlan, Phase
from tfdock.do import events
from tfdock.do.engine import RUN_LABEL, ContainerSpec, Engine
from tfdock.do.failures import Failures, make_folder
from tfdock.do.steps import Steps
from tfdock.errors import EngineError, Interrupted, NetworkError, TfdockError
from tfdock.model import Mount

if TYPE_CHECKING:
    from tfdock.do.build import Builder
    from tfdock.do.offline import Given
    from tfdock.do.remote import Link

_T = TypeVar("_T")


@dataclass
class Run:
    """One plan on its way to a wheel. `tree` is the local checkout, if that is the source."""

    builder: Builder
    plan: BuildPlan
    steps: Steps
    staging: Path
    output: Path
    log: Path
    locks: ExitStack
    """What the run holds of the cache until it ends."""
    tree: Path | None = None
    lock: LockFile | None = None
    given: Given | None = None
    """What a bundle has for it: then nothing comes from a network."""
    repository: Path | None = None
    """A repository cache of its own, instead of the one that all builds share."""
    fresh: str = ""
    """A word: an image that is there is built again, its source fetched anew, once for all runs with that word."""
    expected: Expectation | None = None

    seconds: dict[str, float] = field(default_factory=dict)
    attempts: int = 1
    compiled_with: list[dict[str, Any]] = field(default_factory=list)
    """The limits of each attempt to compile, and how it ended."""
    image: str = ""
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
    def engine(self) -> Engine:
        """The engine that builds."""
        return self.builder.engine

    def tell(self, text: str) -> None:
        """A line for whoever watches."""
        self.builder.listen(events.Notice(text=text))

    def title(self, phase: str) -> str:
        """What the log says where a step of a phase begins."""
        return f"{phase} of {self.plan.build_id}"

    def timed(self, phase: str, do: Callable[[], _T]) -> _T:
        """One phase: announced, measured, and its errors completed with phase, log and next command."""
        builder, build_id = self.builder, self.plan.build_id
        builder.stop.check()
        self.steps.forget()
        known = self.expected.seconds.get(phase) if self.expected else None
        after = self.expected.after(phase) if self.expected else 0.0
        builder.listen(events.PhaseStarted(build_id=build_id, phase=phase, expected=known, after=after))
        started = builder.clock()
        ok = False
        try:
            self.steps.check(phase)
            result = do()
            ok = True
        except (TfdockError, OSError) as error:
            # The engine's own Interrupted does not know whether it was SIGINT or SIGTERM.
            cause = builder.stop.interruption if isinstance(error, Interrupted) else None
            if isinstance(error, EngineError | NetworkError | OSError):
                self.steps.note(error)
            raise self.failures(phase).completed(cause or error) from None
        finally:
            self.seconds[phase] = round(builder.clock() - started, 3)
            builder.listen(events.PhaseEnded(build_id=build_id, phase=phase, seconds=self.seconds[phase], ok=ok))
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
            folders=self.builder.folders,
        )

    # --- containers ---------------------------------------------------------------------------------------------

    def container_spec(self, phase: Phase, plan: BuildPlan | None = None) -> ContainerSpec:
        """The container of a phase, with its folders made and filled in."""
        plan = plan or self.plan
        folders = {
            **({"{cache}/repository": str(self.repository)} if self.repository else {}),
            "{cache}": str(self.builder.cache.root),
            "{output}": str(self.output),
            "{staging}": str(self.staging),
            "{toolchain}": self.toolchain,
        }
        mounts = tuple(_filled(mount, folders) for mount in phase.mounts)
        if self.repository or self.given:  # what is here, and not what an engine elsewhere has
            mounts = tuple(_own(one) if one.target == REPOSITORY_CACHE else one for one in mounts)
        for mount in mounts:
            make_folder(Path(mount.source))
        network = self.builder.settings.network if phase.network and not self.given else "none"
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

    def carry_out(self, phase: Phase, plan: BuildPlan | None = None) -> None:
        """Run a phase in its container to the end; return only if it ended well."""
        with self._linked(phase) as link:
            self.contain(self.container_spec(phase, plan), phase.name, self.title(phase.name), tap=link, plan=plan)

    def contain(
        self, spec: ContainerSpec, phase: str, title: str, *, tap: Link | None = None, plan: BuildPlan | None = None
    ) -> None:
        """Run a container to its end, and remove it; raises what tells of its failure."""
        state, memory = self.steps.container(spec, phase, title, tap=tap)
        if state.exit_code != 0 or memory:
            raise self.failures(phase, plan).of_container(state.exit_code, memory=memory)
        self.engine.remove(state.id)

    @contextmanager
    def _linked(self, phase: Phase) -> Iterator[Link | None]:
        """The way out to a remote cache and executor, while the phase that has no network runs."""
        if phase.network or not self.plan.remote.endpoints:
            yield None
            return
        from tfdock.do import remote

        with remote.linked(self.plan.remote, self.builder.settings, self.output, self.builder.listen) as link:
            try:
                yield link
            finally:
                self.remote = link.facts


def _own(mount: Mount) -> Mount:
    """A repository cache that goes to the container and comes back."""
    return replace(mount, volume="", given=True, results=("content_addressable/sha256/*/*",))


def _filled(mount: Mount, folders: Mapping[str, str]) -> Mount:
    source = mount.source
    for name, value in folders.items():
        source = source.replace(name, value)
    return replace(mount, source=source, volume=mount.volume.replace("{toolchain}", folders["{toolchain}"]))
