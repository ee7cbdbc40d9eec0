"""Carrying out a plan: image, fetch, compile, seal. What is visible at the end is whole, or is not there."""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tfdock import __version__
from tfdock.decide import lock as locks
from tfdock.decide.lock import LockFile, Pin
from tfdock.decide.plan import BuildPlan, Phase, as_json, toolchain_key
from tfdock.do import events, journal
from tfdock.do.engine import BASE_LABEL, RUN_LABEL, Cancel, ContainerSpec, Engine, EngineInfo, ImageBuild, ImageInfo
from tfdock.do.failures import Failures, file_error, make_folder
from tfdock.do.settings import Settings
from tfdock.do.source import context_archive
from tfdock.do.watch import Lines, Stop, Stopper, watched
from tfdock.do.workspace import RECORD_SCHEMA, WheelFile, Wheelhouse
from tfdock.errors import (
    BuildFailed,
    EngineError,
    EngineLost,
    Incompatible,
    Interrupted,
    NetworkError,
    Problem,
    TfdockError,
    TimeLimit,
)
from tfdock.inspect import bazel
from tfdock.model import Mount

_TAIL = 200
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


@dataclass
class _Run:
    """What one run accumulates."""

    name: str
    log: BinaryIO
    staging: Path
    began: float
    """A time of the builder's clock."""
    started: float = field(default_factory=time.time)
    seconds: dict[str, float] = field(default_factory=dict)
    attempts: int = 1
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    errors: list[str] = field(default_factory=list)
    image: str = ""
    toolchain: str = ""
    base_digest: str | None = None
    source_ref: str | None = None
    source_found: str = ""
    lock: LockFile | None = None
    installed: tuple[Pin, ...] = ()
    """What the image holds, by its own account."""


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

    # --- the whole --------------------------------------------------------------------------------------------

    def up_to_date(self, plan: BuildPlan, lock: LockFile | None = None) -> BuildResult | None:
        """The finished build of that very plan, by that very lock, if it is in the wheelhouse; asks no engine."""
        record = self.wheelhouse.finished(plan.build_id, plan.fingerprint)
        by_lock = record is not None and (lock is None or record.get("lock") == lock.sha256)
        return self._result(plan, "up-to-date", record) if record and by_lock else None

    def build(
        self, plan: BuildPlan, tree: Path | None, *, force: bool = False, lock: LockFile | None = None
    ) -> BuildResult:
        """Build a plan, or find that it is built. `tree` is the local checkout, if that is the source.

        With a `lock`, by which the plan was made, an image that holds something else is refused.
        Raises a TfdockError whose problems name the phase, the log and what to do next.
        """
        self.log = None
        make_folder(self.wheelhouse.root)
        with self._own_files(), self.wheelhouse.locked(plan.build_id):
            done = None if force else self.up_to_date(plan, lock)
            return done or self._build(plan, tree, fresh=force, lock=lock)

    def _build(self, plan: BuildPlan, tree: Path | None, *, fresh: bool, lock: LockFile | None) -> BuildResult:
        self._preflight(plan)
        with self._run(plan) as run:
            run.lock = lock
            self._image_and_fetch(plan, run, tree, fresh=fresh)
            self._timed(plan, run, "compile", lambda: self._container(plan, run, plan.phases[1]))
            record = self._timed(plan, run, "seal", lambda: self._sealed(plan, run))
        return self._result(plan, "built", record)

    def shell(self, plan: BuildPlan, tree: Path | None, command: tuple[str, ...], ready: Callable[[], None]) -> int:
        """Open the image that builds the plan on this terminal; returns the command's exit status.

        The container sees what the compile phase sees, and the network. `ready` is called before it takes the
        terminal.
        """
        with self._own_files(), self._run(plan) as run:
            self._timed(plan, run, "image", lambda: self._image(plan, run, tree, fresh=False))
            spec = self.container_spec(plan, plan.phases[1], run)
            container = self.engine.create(
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

    @contextmanager
    def _own_files(self) -> Iterator[None]:
        """Tell what goes wrong with files of ours; in a phase it has become a TfdockError already."""
        try:
            yield
        except OSError as error:
            raise file_error(error, self._folders) from error

    @contextmanager
    def _run(self, plan: BuildPlan) -> Iterator[_Run]:
        """A run: known to the journal while it lives, cleaned up when it ends, well or not."""
        self._ready_engine()
        name = journal.new_run_id()
        output, staging = self.settings.cache_dir.absolute() / "output" / name, self.wheelhouse.staging(name)
        entry = journal.RunEntry(run=name, build_id=plan.build_id, staging=str(staging), output=str(output))
        # One log a run: another try, or a shell, leaves the log of the wheel that is here alone.
        log_path = self.wheelhouse.record_folder(plan.build_id, plan.fingerprint) / f"{name}.log"
        make_folder(log_path.parent)
        # Unbuffered: a disk that runs full shall be noticed in the phase that fills it, not when the log is closed.
        with journal.running(self.settings.state_dir, entry), log_path.open("wb", buffering=0) as log:
            self.log = log_path
            try:
                yield _Run(name=name, log=log, staging=staging, began=self.clock())
            except BaseException:
                # The first error is the one to tell; what cannot be cleaned now, the journal keeps for later.
                with suppress(TfdockError, OSError):
                    journal.clean(self.settings.state_dir, entry, self.engine)
                raise
            self._clean(entry)

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

    def _ready_engine(self) -> None:
        """See that the engine can be used, and clean up what runs that were killed left on it."""
        if not self.engine_info.local:
            raise EngineError(
                Problem(
                    code="engine-remote",
                    message="the engine runs on another machine, but a build mounts folders of this one",
                    fix="use an engine on this machine: unset DOCKER_HOST, or run tfdock there",
                )
            )
        for entry in journal.leftovers(self.settings.state_dir):
            journal.clean(self.settings.state_dir, entry, self.engine)
            self.listen(events.Notice(text=f"cleaned up after run {entry.run}, which had not ended well"))

    def _preflight(self, plan: BuildPlan) -> None:
        """Refuse before hours of work what cannot end well on this machine, and say what else is amiss."""
        # Here, not above: what is up to date is told without knowledge of drivers.
        from tfdock.do import assets, doctor

        knowledge = assets.knowledge(self.settings.knowledge, self.settings.cache_dir)
        for check in doctor.before_build(plan, knowledge, self.settings, self.engine, self.engine_info):
            self.listen(events.Notice(text=str(check.problem)))

    def _room_for_image(self, plan: BuildPlan) -> None:
        """The same where nothing but the image is made."""
        from tfdock.do import doctor

        for check in doctor.before_image(plan, self.settings, self.engine, self.engine_info):
            self.listen(events.Notice(text=str(check.problem)))

    # --- image and fetch ----------------------------------------------------------------------------------------

    def _image_and_fetch(self, plan: BuildPlan, run: _Run, tree: Path | None, *, fresh: bool) -> None:
        """Build the image and fetch for the first source ref that can be had, configured and analysed."""
        refs = plan.source_refs
        for number, ref in enumerate(refs, start=1):
            run.source_ref, run.attempts = ref, number
            try:
                self._timed(plan, run, "image", lambda: self._image(plan, run, tree, fresh=fresh))
                self._timed(plan, run, "fetch", lambda: self._container(plan, run, plan.phases[0]))
                return
            except (BuildFailed, NetworkError) as error:
                if number == len(refs) or error.problems[0].code not in _OF_THE_SOURCE:
                    raise
                said = error.problems[0].message.partition("\n")[0]
                self.listen(events.Notice(text=f"source {ref} does not work ({said}); trying {refs[number]}"))

    def _image(self, plan: BuildPlan, run: _Run, tree: Path | None, *, fresh: bool) -> None:
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
            )
            run.image = self._image_built(plan, run, request)
            self.engine.tag(run.image, name)
        else:
            run.image = built.id
        self._read_image(plan, run, name)
        problem = locks.moved(run.lock.lock.of(*locks.INSTALLED), run.installed, run.lock.path) if run.lock else None
        if problem:
            raise Incompatible(problem)

    def _base(self, plan: BuildPlan, run: _Run) -> ImageInfo:
        """The base image, pulled if it is not here. A pull has nothing to stop gently: what has arrived is kept."""
        base = self.settings.mirrored(plan.resolution.base)
        stopper = self._stopper(run, plan, gently=lambda: self._give_up(plan))
        info = self.engine.image(str(base)) or self._watch(
            plan, run, "image", lambda output: self.engine.pull(str(base), output), stopper, self.engine
        )
        run.base_digest = base.digest or next((digest.rpartition("@")[2] for digest in info.digests), None)
        return info

    def _image_built(self, plan: BuildPlan, run: _Run, request: ImageBuild) -> str:
        """Build the image; its id."""
        cancel = Cancel()
        stopper = self._stopper(run, plan, gently=cancel.set, by_force=lambda: self._give_up(plan))
        try:
            return self._watch(
                plan,
                run,
                "image",
                lambda output: self.engine.build(request, output, cancel),
                stopper,
                self.engine,
            )
        except Interrupted:  # the engine's own, which knows only that it was told to stop
            if stopper.late:
                self._give_up(plan)
            raise

    def _give_up(self, plan: BuildPlan) -> None:
        """Raise why the image phase is to end: a request, or else its time is up."""
        self.stop.check()
        raise _too_late("image", plan.resources.time_limit)

    def _read_image(self, plan: BuildPlan, run: _Run, image: str) -> None:
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
        run.toolchain = toolchain_key(run.base_digest, toolchain)
        run.source_found = (found or b"").decode("ascii", "replace").strip()
        run.installed = locks.installed(toolchain, pins or b"", {name: requirements} if requirements else {})

    # --- containers ---------------------------------------------------------------------------------------------

    def container_spec(self, plan: BuildPlan, phase: Phase, run: _Run) -> ContainerSpec:
        """The container of a phase, with its folders made and filled in."""
        folders = {
            "{cache}": str(self.settings.cache_dir.absolute()),
            "{output}": str(self.settings.cache_dir.absolute() / "output" / run.name),
            "{staging}": str(run.staging),
            "{toolchain}": run.toolchain,
        }
        mounts = tuple(_filled(mount, folders) for mount in phase.mounts)
        for mount in mounts:
            make_folder(Path(mount.source))
        return ContainerSpec(
            name=f"tfdock-{run.name}-{phase.name}",
            image=run.image,
            command=phase.command,
            environment={**plan.container_environment, **plan.environment, "TFDOCK_RUN": run.name},
            mounts=mounts,
            labels={RUN_LABEL: run.name, **plan.labels},
            user=f"{os.getuid()}:{os.getgid()}",
            workdir="/tf/tensorflow",
            network=self.settings.network if phase.network else "none",
            memory=plan.resources.memory,
            cpus=float(plan.resources.cpus),
            pids=plan.resources.pids,
        )

    def _container(self, plan: BuildPlan, run: _Run, phase: Phase) -> None:
        """Run one phase to its end; return only if it ended well."""
        container = self.engine.create(self.container_spec(plan, phase, run))
        self.engine.start(container)
        stopper = self._stopper(
            run,
            plan,
            gently=lambda: self.engine.signal(container, "INT"),
            by_force=lambda: self.engine.signal(container, "KILL"),
        )
        state = self._watch(
            plan, run, phase.name, lambda output: self._follow(container, output), stopper, self.engine
        )
        memory = state.oom_killed or self.engine.memory_killed(RUN_LABEL, run.name, run.started)
        if state.exit_code != 0 or memory:
            self.stop.check()
            if stopper.late:
                raise _too_late(phase.name, plan.resources.time_limit)
            raise self._failures(plan, run, phase.name).of_container(state.exit_code, memory=memory)
        self.engine.remove(container)

    def _stopper(
        self, run: _Run, plan: BuildPlan, *, gently: Callable[[], None], by_force: Callable[[], None] = lambda: None
    ) -> Stopper:
        """Stops a step of the run at a request, and when the run's time is up."""
        limit = plan.resources.time_limit
        deadline = run.began + limit if limit else None
        return Stopper(self.stop, gently=gently, by_force=by_force, deadline=deadline, clock=self.clock)

    def _follow(self, container: str, output: Callable[[bytes], None]) -> Any:
        """Hand on a container's output until it has really ended: a stream that ends says nothing (trust nobody)."""
        seen, pause = 0, 0.02
        while True:
            for chunk in self.engine.follow(container, seen):
                seen += len(chunk)
                output(chunk)
            state = self.engine.state(container)
            if state is None:
                raise EngineLost(
                    Problem(
                        code="container-gone",
                        message="the build container was removed while it ran",
                        fix="run the same command again: the cache is kept",
                    )
                )
            if not state.running:
                return state
            # The stream of a container ends a moment before its state does; a broken one is taken up again in time.
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _watch(
        self,
        plan: BuildPlan,
        run: _Run,
        phase: str,
        produce: Callable[[Callable[[bytes], None]], _T],
        stopper: Stopper,
        engine: Engine | None = None,
    ) -> _T:
        """Watch something to its end: its output goes to the log and, line by line, to the listener.

        `engine` is the one that does it: it is asked whether it is still there when nothing is heard of it.
        """
        run.log.write(f"=== tfdock: {phase} of {plan.build_id} ===\n".encode())
        lines = Lines(lambda text: self._line(run, text))

        def output(data: bytes) -> None:
            run.log.write(data)
            lines.feed(data)

        def tick(silent: float) -> None:
            self.listen(events.Tick(silent=silent))
            if stopper.tick():
                self.listen(events.Notice(text="stopping; what is finished stays in the cache. Ctrl-C again kills"))

        try:
            return watched(produce, output, tick, engine, self.clock)
        finally:
            lines.close()

    def _line(self, run: _Run, text: str) -> None:
        run.tail.append(text)
        if bazel.is_error(text) and len(run.errors) < 50:
            run.errors.append(text)
        done = bazel.progress(text)
        if done:
            self.listen(events.Progress(done=done[0], total=done[1]))
        self.listen(events.Line(text=text))

    def _timed(self, plan: BuildPlan, run: _Run, phase: str, do: Callable[[], _T]) -> _T:
        """One phase: announced, measured, and its errors completed with phase, log and next command."""
        self.stop.check()
        run.tail.clear()
        run.errors.clear()
        self.listen(events.PhaseStarted(build_id=plan.build_id, phase=phase, expected=self._expected(plan, phase)))
        started = self.clock()
        ok = False
        try:
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

    def _failures(self, plan: BuildPlan, run: _Run, phase: str) -> Failures:
        return Failures(
            phase=phase,
            resources=plan.resources,
            log=self.log,
            tail=tuple(run.tail),
            errors=tuple(run.errors),
            folders=self._folders,
        )

    @property
    def _folders(self) -> dict[str, Path]:
        """What may run full, for people."""
        return {"the cache": self.settings.cache_dir.absolute(), "the wheelhouse": self.wheelhouse.root}

    def _expected(self, plan: BuildPlan, phase: str) -> float | None:
        """What the phase took the last time, by the newest record of this build id."""
        times = [
            (record.get("finished", ""), record.get("seconds", {}).get(phase))
            for record in self.wheelhouse.records()
            if record.get("build_id") == plan.build_id
        ]
        return max(times)[1] if times else None

    # --- seal ---------------------------------------------------------------------------------------------------

    def _sealed(self, plan: BuildPlan, run: _Run) -> dict[str, Any]:
        """From what the container left to wheels in the wheelhouse. A stop is obeyed until they are moved there."""
        began = self.clock()
        stopper = Stopper(self.stop, gently=self.stop.check, clock=self.clock)
        # Here, not above: what is up to date is told without the modules that know wheels.
        from tfdock.do import seal

        sealed = self._watch(plan, run, "seal", lambda _: seal.sealed_wheels(plan, run.staging, run.name), stopper)
        run.seconds["seal"] = round(self.clock() - began, 3)
        record = self._record(plan, run, sealed, deflate=seal.deflate_backend())
        self.stop.check()
        self.wheelhouse.publish(plan.build_id, record, sealed)
        return record

    def _record(
        self, plan: BuildPlan, run: _Run, sealed: Mapping[Path, WheelFile], *, deflate: str
    ) -> dict[str, Any]:
        """The build record: no secret, no path of this machine."""
        info = self.engine_info
        figures = _figures(run.staging / "events.json")
        return {
            "schema": RECORD_SCHEMA,
            "build_id": plan.build_id,
            "fingerprint": plan.fingerprint,
            "tfdock": __version__,
            "log": f"{run.name}.log",
            "wheels": [asdict(wheel) for wheel in sealed.values()],
            "plan": _without_places(plan),
            "toolchain_key": run.toolchain,
            "base_digest": run.base_digest,
            "source": {"ref": run.source_ref, "found": run.source_found},
            "lock": run.lock.sha256 if run.lock else None,
            "bazel": asdict(figures) if figures else None,
            "seconds": dict(run.seconds),
            "attempts": run.attempts,
            "machine": {"cpus": info.cpus, "memory": info.memory},
            "engine": {"name": info.name, "version": info.version},
            "untested": [problem.message for problem in plan.resolution.untested],
            "deflate": deflate,
            "started": _utc(run.started),
            "finished": _utc(time.time()),
        }


def _too_late(phase: str, limit: int | None) -> TimeLimit:
    return TimeLimit(
        Problem(
            code="time-limit",
            message=f"the time limit of {limit} s was reached in phase {phase}; what is finished stays in the cache",
            fix="run the same command again to go on",
        )
    )


_USER = re.compile(r"(?<=://)[^/@\s]*@")
"""User and password in a web address."""


def _without_places(plan: BuildPlan) -> Any:
    """The plan as JSON, without where a local checkout lies on this machine, and without anybody's password."""
    source = plan.resolution.source
    local = json.dumps(source.location)[1:-1] if source.kind == "path" else None
    text = json.dumps(as_json(plan))
    return json.loads(_USER.sub("", text.replace(f'"{local}"', '"local checkout"') if local else text))


def _filled(mount: Mount, folders: Mapping[str, str]) -> Mount:
    source = mount.source
    for name, value in folders.items():
        source = source.replace(name, value)
    return Mount(source=source, target=mount.target, read_only=mount.read_only, kind=mount.kind)


def _figures(path: Path) -> bazel.Figures | None:
    """Bazel's figures, if this Bazel could write them."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return bazel.figures(lines)
    except FileNotFoundError:
        return None


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
