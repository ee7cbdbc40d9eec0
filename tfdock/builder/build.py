"""Build a plan: image, fetch, compile, seal, verify. The complete wheel appears at the end, or nothing appears."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from tfdock import events
from tfdock.builder import doctor, run_document
from tfdock.builder.bazel_phases import compile_wheel, fetch_downloads
from tfdock.builder.build_run import BuildRun, ImageResult, phase_container
from tfdock.builder.image_phase import make_image
from tfdock.builder.run_document import RunDocumentWriter
from tfdock.builder.seal_phase import publish_wheels, seal_wheels, shareable_plan, verify_wheels
from tfdock.builder.session import BuildRequest, BuildResult, BuildSession
from tfdock.engine.engine_machine import GpuAccess, gpu_access
from tfdock.errors import BuildFailed, EngineError, Interrupted, NetworkError, Problem, TfdockError
from tfdock.host.files import file_error, make_folder
from tfdock.host.supervise import watched
from tfdock.host.untrusted_folders import remove_folder
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.estimate import PhaseEstimate, expectation
from tfdock.plan.lock_file import Pin
from tfdock.plan.preflight import PreflightCheck
from tfdock.run import journal
from tfdock.run.containers import copy_in
from tfdock.run.disk_space import DiskSpace
from tfdock.run.results import RunFolders
from tfdock.run.supervisor import Supervisor, clean_up_killed_runs
from tfdock.types import Mount

_T = TypeVar("_T")
#: Codes of failures that may not occur with another source ref.
_OF_THE_SOURCE = {"source-unreachable", "image-step-failed", "download-failed", "fetch-failed"}

WHEEL = "/tf/wheel"  #: The folder of the finished wheel in the container of `tfdock shell --debug`.


def build(session: BuildSession, request: BuildRequest, listen: events.Listener) -> BuildResult:
    """Build a plan, unless it is up to date. Inputs from a bundle are used as they are.

    With a lock, an image is refused if its contents differ from the lock. Raises a TfdockError whose problems name
    the phase, the log and what to do next.
    """
    plan, house = request.prepared.plan, session.wheelhouse
    if not house.root.exists() and not (session.pulls and session.settings.registries):
        session.engine.info()  # without an engine, fail before any folder is created
    # Do this first: the build's lock is in the wheelhouse, and an unusable folder gets its own message here.
    make_folder(house.root)
    with _file_errors(session), house.locked(plan.build_id):
        # Check under the lock: the previous holder may have made this very wheel.
        if done := _found_or_pulled(session, request, listen):
            return done
        # Only if a build is needed: refuse now what the wheelhouse would refuse after the build.
        house.check_early(plan.build_id, plan.fingerprint, plan.trust.name)
        plan = session.fitted(plan, listen)
        engine, info = session.engine, session.engine_info
        _tell_checks(doctor.before_build(plan, session.knowledge, session.settings, engine, info), listen)
        _check_remote(session, plan)
        expected = expectation(plan.resolution, plan.resources, plan.machine, house.records(), session.knowledge)
        with _run(session, request, plan, listen, expected) as run:
            for number, source_ref in enumerate(_source_refs(run), start=1):
                try:
                    image = make_image(run, source_ref, number, compiles=True)
                    fetch_downloads(run, image)
                    compiled = compile_wheel(run, image)
                    break
                except (BuildFailed, NetworkError) as error:
                    _leave_source(run, number, error)
            wheels = seal_wheels(run)
            with run.phase("verify"):
                verification = verify_wheels(run, image, wheels)
                record = publish_wheels(run, image, compiled, wheels, verification)
            for folders in run.resumable:
                with suppress(OSError):  # `tfdock cache prune` removes what stays
                    remove_folder(folders.own)
        return session.result(plan, "built", record)


def _found_or_pulled(session: BuildSession, request: BuildRequest, listen: events.Listener) -> BuildResult | None:
    """Return the finished build of a plan from the wheelhouse, else from a registry. No engine is contacted."""
    # A forced build uses no finished wheel, and a build from a bundle uses no network.
    done = None if request.force else session.up_to_date(request.prepared)
    if done or request.force or request.inputs or not (session.pulls and session.settings.registries):
        return done
    # Imported here: a build without registries does not need the image module.
    from tfdock.builder import prebuilt

    plan = request.prepared.plan
    pulled = prebuilt.pull(session, plan, request.prepared.lock, listen)
    return session.result(plan, "pulled", pulled.build.record, pulled.origin) if pulled else None


def shell(
    session: BuildSession,
    request: BuildRequest,
    listen: events.Listener,
    command: tuple[str, ...],
    ready: Callable[[], None],
    *,
    gpu: bool = False,
    debug: bool = False,
) -> int:
    """Open the image that builds the plan on this terminal; return the command's exit status.

    The container has the compile phase's mounts, and the network. `ready` is called before the terminal is attached.
    With `gpu` the container has the GPUs. With `debug` it may use ptrace, and has the finished wheel in `/tf/wheel`.
    Raises EngineError (`gpu-runtime-missing`) if the engine cannot give containers these GPUs.
    """
    access = _gpus_of(session, request.prepared.plan) if gpu else GpuAccess()
    with _file_errors(session), _run(session, request, request.prepared.plan, listen) as run:
        # The container of the compile phase, but with a network: a person who looks around may fetch something.
        spec = phase_container(run, make_image(run), run.plan.compile, network=True)
        spec = replace(
            spec,
            command=command,
            mounts=(*spec.mounts, *(_finished_wheel(run) if debug else ())),
            gpus=access.gpus,
            devices=access.devices,
            groups=access.groups,
            debugger=debug,
            terminal=True,
        )
        ready()
        return session.engine.attach(session.engine.create(copy_in(run.supervisor, spec)))


def _gpus_of(session: BuildSession, plan: BuildPlan) -> GpuAccess:
    """Return how a container of the plan gets GPUs. Called before anything starts."""
    accelerator = plan.resolution.accelerator
    has_gpus = accelerator.engine_runtime or accelerator.device_files
    access = gpu_access(accelerator if has_gpus else None, session.engine_info)
    if access.missing:
        fix = (
            "`tfdock doctor` shows how to install GPU support"
            if has_gpus
            else "leave `--gpu` out, or name a profile for a GPU"
        )
        raise EngineError.of("gpu-runtime-missing", access.missing, fix)
    return access


def _finished_wheel(run: BuildRun) -> Iterator[Mount]:
    """Yield the mount of the plan's finished wheel, as a copy that the container cannot change."""
    done = run.session.up_to_date(run.request.prepared)
    if done is None:
        run.tell("the wheelhouse has no wheel of this profile: `tfdock build` makes one")
        return
    folder = run.folders.own / "wheel"
    make_folder(folder)
    for wheel in done.wheels:
        shutil.copyfile(wheel, folder / wheel.name)
        run.tell(f"the wheel is in {WHEEL}: `python3 -m pip install --user {WHEEL}/{wheel.name}` installs it")
    yield Mount(source=str(folder), target=WHEEL, read_only=True, given=True)


def pins(session: BuildSession, request: BuildRequest, listen: events.Listener) -> tuple[Pin, ...]:
    """Build only a plan's image; return its contents: Bazel, packages, Python requirements, tools."""
    make_folder(session.wheelhouse.root)
    with _file_errors(session):
        plan = request.prepared.plan
        # Check only disk space for the image: nothing is compiled, so memory and GPU drivers do not matter.
        _tell_checks(doctor.before_image(plan, session.settings, session.engine, session.engine_info), listen)
        with _run(session, request, plan, listen) as run:
            return make_image(run).installed


def fetch(
    session: BuildSession, request: BuildRequest, listen: events.Listener, then: Callable[[BuildRun, ImageResult], _T]
) -> _T:
    """Build a plan's image, and let Bazel download and analyse everything, but compile nothing.

    Return the result of `then`, the phase `pack`. During `then`, the run's containers and folders still exist.
    """
    make_folder(session.wheelhouse.root)
    with _file_errors(session), session.wheelhouse.locked(request.prepared.plan.build_id):
        plan = session.fitted(request.prepared.plan, listen)
        _tell_checks(doctor.before_image(plan, session.settings, session.engine, session.engine_info), listen)
        with _run(session, request, plan, listen) as run:
            for number, source_ref in enumerate(_source_refs(run), start=1):
                try:
                    image = make_image(run, source_ref, number)
                    fetch_downloads(run, image)
                    break
                except (BuildFailed, NetworkError) as error:
                    _leave_source(run, number, error)
            with run.phase("pack"):
                return then(run, image)


def _source_refs(run: BuildRun) -> tuple[str | None, ...]:
    """Return the source refs to try, in order. A bundle has one."""
    return (run.request.inputs.source_ref,) if run.request.inputs else run.plan.source_refs


def _leave_source(run: BuildRun, number: int, error: TfdockError) -> None:
    """Skip the `number`-th source ref if the next ref may avoid its failure; otherwise raise the error."""
    refs, code = _source_refs(run), error.problems[0].code
    compiles_not = code == "compile-failed" and run.plan.resolution.source.leaves_failed_compile
    if number == len(refs) or not (compiles_not or code in _OF_THE_SOURCE):
        raise error
    does = "does not compile" if compiles_not else "does not work"
    reason = error.problems[0].message.partition("\n")[0]
    run.tell(f"source {refs[number - 1]} {does} ({reason}); trying {refs[number]}")
    # The results of this ref do not count for the next ref.
    run.folders.container_results.remove()


# --- a run ----------------------------------------------------------------------------------------------------------


@contextmanager
def _file_errors(session: BuildSession) -> Iterator[None]:
    """Raise errors of our own files as TfdockError. Phases do this themselves."""
    try:
        yield
    except OSError as error:
        raise file_error(error, session.folders) from error


@contextmanager
def _run(
    session: BuildSession,
    request: BuildRequest,
    plan: BuildPlan,
    listen: events.Listener,
    expected: PhaseEstimate | None = None,
) -> Iterator[BuildRun]:
    """Yield a run. The journal lists the run until it ends; then the run is cleaned up, also after a failure."""
    settings, engine, info = session.settings, session.engine, session.engine_info
    # Clean up first: a container of a killed run may still write to this run's caches.
    clean_up_killed_runs(engine, info, settings, listen)
    name = request.run
    own, staged = session.cache.run_folder(name), session.wheelhouse.staging(name)
    entry = journal.RunEntry(run=name, build_id=plan.build_id, staging=str(staged), output=str(own), engine=info.id)
    log_path = session.log_path(request)
    log_path.parent.make()
    # Private to the owner: other users must not reach files of the containers.
    session.wheelhouse.make_staged()
    # Unbuffered: a full disk is noticed in the phase that fills it, not when the log is closed.
    with ExitStack() as locks, journal.running(settings.state_dir, entry), log_path.create() as log:
        document, folders = _begin_run_document(session, request, plan), RunFolders.create(own, staged)
        try:
            supervisor = Supervisor(
                engine=engine,
                run_id=name,
                local=info.local,
                log=log,
                listen=listen,
                stop=session.stop,
                clock=session.clock,
                limit=session.limit_of(plan),
                disk_space=DiskSpace(places=session.disks),
            )
            started = time.time()
            if plan.trust.shared:
                message = f"this build writes to the cache of the domain `release`: {'; '.join(plan.trust.reasons)}"
                listen(events.Notice(text=str(Problem("trust-shared", message))))
            # Hold the lock until the run ends, so that nobody empties the cache while its containers use it.
            locks.enter_context(session.cache.in_use(waiting=supervisor.waiting("image", "uses the cache alone")))
            run = BuildRun(
                session=session,
                request=request,
                plan=plan,
                supervisor=supervisor,
                folders=folders,
                log=log_path.path,
                locks=locks,
                started=started,
                expected=expected,
            )
            _tell_proxies(run)
            yield run
        # BaseException: the third Ctrl-C is a KeyboardInterrupt, and its run must be cleaned up too.
        except BaseException as error:
            # Write this before the cleanup, which may fail too: the document says why the run ended.
            document.failed(error)
            kept = _keeps_output(session, error, folders)
            # Report the first error; the journal lists everything that could not be cleaned up. Skip the cleanup on
            # an engine that does not answer: it would take minutes.
            if not isinstance(error, EngineError) or engine.ping():
                with suppress(TfdockError, OSError):
                    journal.clean_own_run(settings.state_dir, entry, engine, keep_output=kept)
            if kept:
                text = f"the output base is kept in {own}; `tfdock cache prune` removes it"
                listen(events.Notice(text=text))
            raise
        document.succeeded()
        try:
            journal.clean_own_run(settings.state_dir, entry, engine)
        # The run still counts as successful.
        except (TfdockError, OSError) as error:
            listen(events.Notice(text=f"could not clean up after run {name}: {error}; a later run will try again"))


def _tell_proxies(run: BuildRun) -> None:
    """Report which proxies the steps with a network do not get, and who can read a proxy's login."""
    if run.request.inputs:  # a build from a bundle has no network
        return
    settings, proxies = run.session.settings, run.proxies
    if proxies.unreachable:
        problem = Problem(
            "proxy-on-loopback",
            f"{_names(proxies.unreachable)}: the proxy is on this machine's loopback, which containers in "
            f"the network `{settings.network or 'bridge'}` cannot reach: image build and fetch run without this "
            "proxy",
            "set `TFDOCK_NETWORK=host`, or give the proxy an address that containers can reach",
            severity="warning",
        )
        run.tell(str(problem))
    if proxies.with_login and not run.plan.trust.is_release:
        problem = Problem(
            "proxy-login-readable",
            f"{_names(proxies.with_login)}: the base image's programs and the source's Bazel rules can read "
            f"the proxy's login; {'; '.join(run.plan.trust.reasons)}",
            "if you do not trust the source or the image, use a proxy without a login",
            severity="warning",
        )
        run.tell(str(problem))


def _names(variables: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in variables)


def _begin_run_document(session: BuildSession, request: BuildRequest, plan: BuildPlan) -> RunDocumentWriter:
    """Begin the document that `tfdock report --bundle` reads after a failed run."""
    info = session.engine_info
    return RunDocumentWriter(
        session.log_path(request),
        build_id=plan.build_id,
        fingerprint=plan.fingerprint,
        knowledge=session.knowledge.version,
        profile=run_document.profile_document(request.prepared),
        plan=shareable_plan(plan),
        machine={"cpus": info.cpus, "memory": info.memory},
        engine={"name": info.name, "version": info.version, "local": info.local},
        at_once=session.at_once,
    )


def _keeps_output(session: BuildSession, error: BaseException, folders: RunFolders) -> bool:
    """Return whether the output base of a failed build is kept for the user."""
    failed = isinstance(error, TfdockError) and not isinstance(error, Interrupted)
    return session.settings.keep_output == "failed" and failed and folders.bazel_output.has_folder("base")


# --- before ---------------------------------------------------------------------------------------------------------


def _tell_checks(warnings: Iterable[PreflightCheck], listen: events.Listener) -> None:
    for check in warnings:
        listen(events.Notice(text=str(check.problem)))


def _check_remote(session: BuildSession, plan: BuildPlan) -> None:
    """Check, before hours of work, that the remote cache and executor can be used."""
    if not plan.remote.endpoints:
        return
    from tfdock.bazel.remote import remote_session

    # No socket connects a container on another machine to the relay in this process.
    if not session.engine_info.local:
        raise remote_session.engine_far_error(plan.remote)
    check = remote_session.check
    watched(lambda _: check(plan.remote, session.settings), lambda _: None, lambda _: session.stop.check(), None)
