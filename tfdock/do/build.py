"""Carrying out a plan: image, fetch, compile, seal, verify. What is visible at the end is whole, or is not there."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from tfdock import __version__
from tfdock.decide import lock as locks
from tfdock.decide.lock import LockFile, Pin
from tfdock.decide.plan import BuildPlan, Phase, as_json, toolchain_key
from tfdock.do import events, journal
from tfdock.do.engine import BASE_LABEL, RUN_LABEL, Cancel, ContainerSpec, Engine, EngineInfo, ImageBuild, ImageInfo
from tfdock.do.failures import Failures, file_error, make_folder
from tfdock.do.settings import Settings
from tfdock.do.source import context_archive
from tfdock.do.steps import Steps, ready
from tfdock.do.watch import Stop, Stopper
from tfdock.do.workspace import RECORD_SCHEMA, WheelFile, Wheelhouse, remove_folder, write_atomically
from tfdock.errors import (
    BuildFailed,
    Incompatible,
    Interrupted,
    NetworkError,
    Problem,
    TfdockError,
)
from tfdock.inspect import bazel
from tfdock.model import Mount

if TYPE_CHECKING:
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


@dataclass
class _Run:
    """What one run accumulates."""

    steps: Steps
    staging: Path
    output: Path
    seconds: dict[str, float] = field(default_factory=dict)
    attempts: int = 1
    image: str = ""
    toolchain: str = ""
    base_digest: str | None = None
    source_ref: str | None = None
    source_found: str = ""
    lock: LockFile | None = None
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
        ready(self.engine, self.engine_info, self.settings.state_dir, self.listen)
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
                yield _Run(steps=self._steps(plan, name, log), staging=staging, output=output)
            except BaseException:
                # The first error is the one to tell; what cannot be cleaned now, the journal keeps for later.
                with suppress(TfdockError, OSError):
                    journal.clean(self.settings.state_dir, entry, self.engine)
                raise
            self._clean(entry)

    def _steps(self, plan: BuildPlan, name: str, log: BinaryIO) -> Steps:
        limit = plan.resources.time_limit
        return Steps(
            engine=self.engine,
            run=name,
            log=log,
            listen=self.listen,
            stop=self.stop,
            clock=self.clock,
            deadline=self.clock() + limit if limit else None,
            limit=limit,
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
        """The base image, pulled if it is not here."""
        base = self.settings.mirrored(plan.resolution.base)
        info = run.steps.image(str(base), "image", _title(plan, "image"))
        run.base_digest = base.digest or next((digest.rpartition("@")[2] for digest in info.digests), None)
        return info

    def _image_built(self, plan: BuildPlan, run: _Run, request: ImageBuild) -> str:
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
            "{output}": str(run.output),
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
        spec = self.container_spec(plan, phase, run)
        state, memory = run.steps.container(spec, phase.name, _title(plan, phase.name))
        if state.exit_code != 0 or memory:
            raise self._failures(plan, run, phase.name).of_container(state.exit_code, memory=memory)
        self.engine.remove(state.id)

    def _timed(self, plan: BuildPlan, run: _Run, phase: str, do: Callable[[], _T]) -> _T:
        """One phase: announced, measured, and its errors completed with phase, log and next command."""
        self.stop.check()
        run.steps.forget()
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
            tail=tuple(run.steps.tail),
            errors=tuple(run.steps.errors),
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

    def _sealed(self, plan: BuildPlan, run: _Run) -> Mapping[Path, WheelFile]:
        """From what the container left to wheels that could be published, still in the staging folder."""
        # Here, not above: what is up to date is told without the modules that know wheels.
        from tfdock.do import seal

        stopper = Stopper(self.stop, gently=self.stop.check, clock=self.clock)
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

    def _published(self, plan: BuildPlan, run: _Run, sealed: Mapping[Path, WheelFile]) -> dict[str, Any]:
        """Verify the wheels and make them visible. A stop is obeyed until they are."""
        from tfdock.do import verify

        began = self.clock()
        bench = verify.Bench(
            steps=run.steps,
            info=self.engine_info,
            settings=self.settings,
            folder=run.output / "verify",
            memory=min(verify.MEMORY, plan.resources.memory),
        )
        found = [verify.verified_build(bench, self._knowledge, plan, path) for path in sealed]
        run.seconds["verify"] = round(self.clock() - began, 3)
        verification = verify.combined(found)
        if not all(one.ok for one in found):
            raise verify.refusal(found, self._kept(plan, sealed, verification))
        for one in found:
            self._tell_what_was_not_run(one)
        record = self._record(plan, run, sealed, verification)
        self.stop.check()
        self.wheelhouse.publish(plan.build_id, record, sealed)
        return record

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
        run: _Run,
        sealed: Mapping[Path, WheelFile],
        verification: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The build record: no secret, no path of this machine."""
        from tfdock.do import seal

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
            "deflate": seal.deflate_backend(),
            "verification": verification,
            "started": _utc(run.steps.started),
            "finished": _utc(time.time()),
        }


def _title(plan: BuildPlan, phase: str) -> str:
    """What the log says where a step of a phase begins."""
    return f"{phase} of {plan.build_id}"


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
