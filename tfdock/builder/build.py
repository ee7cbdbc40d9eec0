"""Carrying out a plan: image, fetch, compile, seal, verify. What is visible at the end is whole, or is not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import BinaryIO, TypeVar

from tfdock.builder import compile_phase, doctor, image_phase, run_document, seal_phase
from tfdock.builder.build_run import BuildContainers, BuildRun
from tfdock.builder.compile_phase import FetchResult
from tfdock.builder.run_document import RunDocumentWriter
from tfdock.builder.session import BuildRequest, BuildResult, BuildSession
from tfdock.errors import EngineError, Interrupted, Problem, TfdockError
from tfdock.host.files import file_error, make_folder, make_private
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.estimate import PhaseEstimate, expectation
from tfdock.plan.lock_file import Pin
from tfdock.run import journal
from tfdock.run.carrier import Carrier
from tfdock.run.disk_space import DiskSpace
from tfdock.run.phases import PhaseRunner, clean_up_killed_runs
from tfdock.run.results import RunFolders

_T = TypeVar("_T")


def build(session: BuildSession, request: BuildRequest) -> BuildResult:
    """Build a plan, or find that it is built. What a bundle has for it is neither built, nor pulled, nor downloaded.

    With a lock, by which the plan was made, an image that holds something else is refused.
    Raises a TfdockError whose problems name the phase, the log and what to do next.
    """
    plan, house = request.prepared.plan, session.wheelhouse
    make_folder(house.root)
    with _own_files(session), house.locked(plan.build_id):
        done = None if request.force else session.up_to_date(request.prepared)
        if done is None and not (request.force or request.inputs):
            done = _pulled(session, request)
        if done is None:
            house.check_early(plan.build_id, plan.fingerprint, plan.trust.name)
        return done or _built(session, request)


def _pulled(session: BuildSession, request: BuildRequest) -> BuildResult | None:
    """Return the very build of a plan, out of the first registry that has it; ask no engine."""
    if not (session.pulls and session.settings.registries):
        return None
    # Here, not above: a build without registries needs no module that knows images.
    from tfdock.builder import prebuilt

    plan = request.prepared.plan
    found = prebuilt.pulled(session, plan, request.prepared.lock)
    return session.result(plan, "pulled", found.build.record, found.origin) if found else None


def _built(session: BuildSession, request: BuildRequest) -> BuildResult:
    plan = session.fitted(request.prepared.plan)
    _preflight(session, plan)
    _ask_remote(session, plan)
    request = replace(request, fresh=request.run if request.force else request.fresh)
    expected = expectation(plan, session.wheelhouse.records(), session.knowledge)
    with _run(session, request, plan, expected) as run:
        fetched = compile_phase.prepare_source(run)
        compiled = compile_phase.compile_wheel(run, fetched)
        sealed = seal_phase.seal_wheels(run, compiled)
        record = seal_phase.publish_wheels(run, sealed)
    return session.result(plan, "built", record)


def shell(session: BuildSession, request: BuildRequest, command: tuple[str, ...], ready: Callable[[], None]) -> int:
    """Open the image that builds the plan on this terminal; return the command's exit status.

    The container sees what the compile phase sees, and the network. `ready` is called before it takes the terminal.
    """
    with _own_files(session), _run(session, request, request.prepared.plan) as run:
        containers = BuildContainers(run, image_phase.make_image(run))
        spec = containers.spec(run.plan.phases[1])
        spec = replace(spec, command=command, network=session.settings.network, terminal=True)
        ready()
        try:
            return session.engine.attach(run.runner.carrier.create(spec))
        except EngineError as error:
            spec = containers.without_overlay(spec, error)
            return session.engine.attach(run.runner.carrier.create(spec))


def pins(session: BuildSession, request: BuildRequest) -> tuple[Pin, ...]:
    """Build a plan's image, no further, and return what it holds: Bazel, packages, Python requirements, tools."""
    make_folder(session.wheelhouse.root)
    with _own_files(session):
        plan = request.prepared.plan
        _room_for_image(session, plan)
        with _run(session, request, plan) as run:
            return image_phase.make_image(run).installed


def fetch(session: BuildSession, request: BuildRequest, then: Callable[[BuildRun, FetchResult], _T]) -> _T:
    """Have a plan's image and all that its build downloads, and compile nothing; return what `then` does.

    `then` is a phase of its own, `pack`, with the run's containers and folders still there.
    """
    with analysed(session, request) as (run, fetched):
        result, _ = run.timed("pack", lambda: then(run, fetched))
        return result


@contextmanager
def analysed(session: BuildSession, request: BuildRequest) -> Iterator[tuple[BuildRun, FetchResult]]:
    """Give a run that has its image, and for which Bazel has downloaded and analysed everything.

    Nothing is compiled.
    """
    make_folder(session.wheelhouse.root)
    with _own_files(session), session.wheelhouse.locked(request.prepared.plan.build_id):
        plan = session.fitted(request.prepared.plan)
        _room_for_image(session, plan)
        with _run(session, request, plan) as run:
            yield run, compile_phase.prepare_source(run)


# --- a run ----------------------------------------------------------------------------------------------------------


@contextmanager
def _own_files(session: BuildSession) -> Iterator[None]:
    """Tell what goes wrong with files of ours; in a phase it has become a TfdockError already."""
    try:
        yield
    except OSError as error:
        raise file_error(error, session.folders) from error


@contextmanager
def _run(
    session: BuildSession, request: BuildRequest, plan: BuildPlan, expected: PhaseEstimate | None = None
) -> Iterator[BuildRun]:
    """Give a run: known to the journal while it lives, cleaned up when it ends, well or not."""
    settings, engine, info = session.settings, session.engine, session.engine_info
    clean_up_killed_runs(engine, info, settings, session.listen)
    name = request.run
    own, staged = session.cache.output(name), session.wheelhouse.staging(name)
    entry = journal.RunEntry(run=name, build_id=plan.build_id, staging=str(staged), output=str(own), engine=info.id)
    log_path = session.log_path(request)
    make_folder(log_path.parent)
    make_private(staged.parent)
    # Unbuffered: a disk that runs full shall be noticed in the phase that fills it, not when the log is closed.
    with ExitStack() as locks, journal.running(settings.state_dir, entry), log_path.open("wb", buffering=0) as log:
        papers, folders = _papers(session, request, plan), RunFolders.create(own, staged)
        try:
            runner, started = _runner(session, plan, name, log), time.time()
            _tell_shared(session, plan)
            locks.enter_context(session.cache.in_use(waiting=runner.waiting("image", "has the cache for itself")))
            yield BuildRun(
                session=session,
                request=request,
                plan=plan,
                runner=runner,
                folders=folders,
                log=log_path,
                locks=locks,
                started=started,
                expected=expected,
            )
        except BaseException as error:
            papers.failed(error)
            kept = _keeps(session, error, folders)
            # The first error is the one to tell; what cannot be cleaned now, the journal keeps for later. An
            # engine that does not answer is not asked, for minutes, for what it cannot do.
            if not isinstance(error, EngineError) or engine.ping():
                with suppress(TfdockError, OSError):
                    journal.clean_own_run(settings.state_dir, entry, engine, keep_output=kept)
            if kept:
                session.tell(f"the output base is kept in {own}; `tfdock cache prune` removes it")
            raise
        papers.over()
        _clean(session, entry)


def _tell_shared(session: BuildSession, plan: BuildPlan) -> None:
    """Tell that a build writes to the cache of `release`, though it is not one."""
    if plan.trust.shared:
        message = f"this build writes to the cache of `release`: {'; '.join(plan.trust.reasons)}"
        session.tell(str(Problem(code="trust-shared", message=message)))


def _papers(session: BuildSession, request: BuildRequest, plan: BuildPlan) -> RunDocumentWriter:
    """Return what `tfdock report --bundle` finds of a run that ends badly."""
    papers, info = RunDocumentWriter(session.log_path(request)), session.engine_info
    papers.begin(
        build_id=plan.build_id,
        fingerprint=plan.fingerprint,
        knowledge=session.knowledge.version,
        profile=run_document.written(request.prepared),
        plan=seal_phase.without_places(plan),
        machine={"cpus": info.cpus, "memory": info.memory},
        engine={"name": info.name, "version": info.version, "local": info.local},
        at_once=session.at_once,
    )
    return papers


def _keeps(session: BuildSession, error: BaseException, folders: RunFolders) -> bool:
    """Return whether the output base of a build is kept, for somebody to look at."""
    failed = isinstance(error, TfdockError) and not isinstance(error, Interrupted)
    return session.settings.keep_output == "failed" and failed and folders.output.has_folder("base")


def _runner(session: BuildSession, plan: BuildPlan, name: str, log: BinaryIO) -> PhaseRunner:
    limit = session.limit_from_now(plan)
    return PhaseRunner(
        carrier=Carrier(session.engine, name, session.engine_info.local),
        log=log,
        listen=session.listen,
        stop=session.stop,
        clock=session.clock,
        deadline=limit.deadline if limit else None,
        limit=limit.seconds if limit else None,
        disk_space=DiskSpace(places=session.disks),
    )


def _clean(session: BuildSession, entry: journal.RunEntry) -> None:
    """Clean up after a run that did what it should: if that fails, its work counts all the same."""
    try:
        journal.clean_own_run(session.settings.state_dir, entry, session.engine)
    except (TfdockError, OSError) as error:
        session.tell(f"could not clean up after run {entry.run}: {error}; a later run will")


# --- before ---------------------------------------------------------------------------------------------------------


def _preflight(session: BuildSession, plan: BuildPlan) -> None:
    """Refuse before hours of work what cannot end well on this machine, and say what else is amiss."""
    for check in doctor.before_build(plan, session.knowledge, session.settings, session.engine, session.engine_info):
        session.tell(str(check.problem))


def _room_for_image(session: BuildSession, plan: BuildPlan) -> None:
    """The same where nothing but the image is made."""
    for check in doctor.before_image(plan, session.settings, session.engine, session.engine_info):
        session.tell(str(check.problem))


def _ask_remote(session: BuildSession, plan: BuildPlan) -> None:
    """See that the remote cache and executor can be used, before hours of work."""
    if not plan.remote.endpoints:
        return
    from tfdock.bazel.remote import remote_session

    if not session.engine_info.local:
        raise remote_session.engine_far_error(plan.remote)
    remote_session.check(plan.remote, session.settings)
