"""The environment of a trial: where it runs, which wheel it gets, and why it cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tfdock import events
from tfdock.bazel.cache.cache_folder import CacheFolder
from tfdock.engine.engine_host import engine_data
from tfdock.engine.protocol import Engine, EngineInfo
from tfdock.errors import (
    Fix,
    Problem,
    ProfileError,
    TfdockError,
)
from tfdock.host.files import file_error, make_folder
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop
from tfdock.resolve.resolution import Resolution
from tfdock.run import journal
from tfdock.run.disk_space import Room
from tfdock.run.phases import Steps, ready
from tfdock.run.results import RunFolders
from tfdock.types import BuildId

MIB, GIB = 1 << 20, 1 << 30

MEMORY = 8 * GIB
"""More than importing and compiling takes; a machine with less gives what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What a wheel shall be. Without a profile there is no `resolution`; `options` are the compiler's, if known.

    `run` is empty, or says why nothing is tried. `dependencies` is a folder of wheels to use as it is.
    """

    resolution: Resolution | None = None
    strict: bool = True
    options: Sequence[str] | None = None
    run: str = ""
    dependencies: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where a run takes its steps: `folder` is its own, removed when it ends. `memory` in bytes."""

    steps: Steps
    info: EngineInfo
    settings: Settings
    folder: Path
    memory: int = MEMORY
    given: Mapping[str, str] | None = None
    """Images that a bundle has for this run: their ids, by what they are asked for as. Then nothing is fetched."""
    bundle: str = ""
    """The bundle's identity."""

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.steps.engine


class Impossible(Exception):
    """Why nothing can be tried."""

    def __init__(self, error: TfdockError) -> None:
        self.error = error
        super().__init__(str(error))


def impossible(code: str, message: str, fix: Fix) -> Impossible:
    return Impossible(ProfileError(Problem(code=code, message=message, fix=fix)))


def unfit(reason: str) -> Impossible:
    return impossible(
        "runtime-unfit",
        f"the runtime image cannot run the checks: {reason}",
        "name an image that has the wheel's Python with pip: `runtime: …` in the profile",
    )


@contextmanager
def bench_for(
    engine: Engine,
    settings: Settings,
    listen: events.Listener,
    stop: Stop,
    log: Path,
    wheel: str,
    phase: str = "verify",
) -> Iterator[Bench]:
    """A bench for a wheel that no build has just made: known to the journal while it lives, cleaned up at its end.

    `phase` is what watchers are told.
    """
    info = engine.info()
    ready(engine, info, settings, listen)
    name = journal.new_run_id()
    cache = CacheFolder.opened(settings.cache_dir)
    folder = cache.output(name)
    entry = journal.RunEntry(
        run=name, build_id=wheel, staging=str(folder / "staging"), output=str(folder), engine=info.id
    )
    make_folder(log.parent)
    with cache.in_use(), journal.running(settings.state_dir, entry), log.open("wb", buffering=0) as file:
        folders = RunFolders.made(folder, folder / "staging")
        disks = {"the cache": settings.cache_dir.absolute(), "the engine's data": engine_data(info)}
        room = Room(places={what: path for what, path in disks.items() if path})
        steps = Steps(engine=engine, run=name, log=file, listen=listen, stop=stop, local=info.local, room=room)
        began, ok = steps.clock(), False
        listen(events.PhaseStarted(build_id=BuildId(wheel), phase=phase))
        try:
            yield Bench(steps=steps, info=info, settings=settings, folder=folders.own)
            ok = True
        except OSError as error:
            raise file_error(error, {"the cache": settings.cache_dir.absolute()}) from error
        finally:
            seconds = steps.clock() - began
            listen(events.PhaseEnded(build_id=BuildId(wheel), phase=phase, seconds=seconds, ok=ok))
            # The first error is the one to tell; what cannot be cleaned now, the journal keeps for later.
            with suppress(TfdockError, OSError):
                journal.clean(settings.state_dir, entry, engine)
