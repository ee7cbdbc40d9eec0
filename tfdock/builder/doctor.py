"""Check this machine for any build, and for one plan. This module collects facts; `plan/preflight` judges them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tfdock.engine.engine_machine import engine_data, engine_machine, gives_gpus
from tfdock.errors import (
    BuildFailed,
    DiskFull,
    EngineError,
    EngineUnavailable,
    ExitCode,
    Incompatible,
    OutOfMemory,
    ProfileError,
    TfdockError,
    combined_exit_code,
)
from tfdock.host.hardware import local_host, local_machine, place
from tfdock.host.settings import Settings
from tfdock.knowledge.rows import Accelerator
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan import preflight
from tfdock.plan.build_plan import BuildPlan
from tfdock.plan.preflight import FAILED, OK, SKIPPED, WARNING, PreflightCheck
from tfdock.types import EngineInfo, Host, WritableFolder

if TYPE_CHECKING:
    from tfdock.engine.protocol import Engine

# How a build uses the disk: images and layers; output base, disk cache and downloads; staging and wheels. The
# shares come from builds of TensorFlow 2 with CUDA, which left about 40 GB in the second part.
_IMAGE, _CACHE, _WHEELS = 0.35, 0.6, 0.05
_IMAGES = "the engine's images"

_ERRORS: dict[ExitCode, type[TfdockError]] = {
    ExitCode.ENGINE: EngineUnavailable,
    ExitCode.RESOURCES: DiskFull,
    ExitCode.INCOMPATIBLE: Incompatible,
    ExitCode.BUILD_FAILED: BuildFailed,
}


def examine(
    settings: Settings,
    engine: Engine,
    plans: Iterable[tuple[str, BuildPlan]] = (),
    knowledge: KnowledgeBase | None = None,
    *,
    fix: bool = False,
) -> Iterator[PreflightCheck]:
    """Yield the checks of what a build needs, most important first.

    With plans (by file), the checks of each plan follow. With `fix`, the leftovers of killed runs are removed.
    """
    info, answer = _ask_engine(engine)
    yield answer
    yield from _abilities(info, settings)
    machine, host = engine_machine(info) if info else local_machine(), local_host()
    places = build_places(settings, info)
    plans = list(plans)
    if not plans:
        yield preflight.any_memory_check(machine)
        yield from preflight.any_disk_checks(places)
    for file, plan in plans:
        assert knowledge is not None
        yield from preflight.machine_findings(
            plan, knowledge, host=host, machine=machine, places=places, profile=file
        )
    yield from preflight.folder_checks(places)
    yield from _devices(host, info, _accelerators(settings, knowledge), troubles=not plans)
    yield from _leftovers(settings, engine, info, fix=fix)


def before_build(
    plan: BuildPlan, knowledge: KnowledgeBase, settings: Settings, engine: Engine, info: EngineInfo
) -> list[PreflightCheck]:
    """Return the warnings for a build that is about to start. The engine must answer.

    Raises an error if the build could not succeed.
    """
    places = build_places(settings, info)
    if not _images_needed(places, plan, engine):
        # An existing image needs no further space, so the engine's disk is not checked.
        places = [folder for folder in places if folder.what != _IMAGES]
    # Drivers' tools can take seconds: a build for the CPU does not wait for them.
    host = local_host() if plan.resolution.accelerator.toolkit else Host()
    checks = [
        *engine_findings(info, settings),
        *preflight.machine_findings(plan, knowledge, host=host, machine=engine_machine(info), places=places),
    ]
    return _warnings(checks)


def engine_findings(info: EngineInfo, settings: Settings) -> list[PreflightCheck]:
    """Return the checks of an engine: its version and its missing features. The engine must answer."""
    return [preflight.engine_check(info), *_abilities(info, settings)]


def before_image(plan: BuildPlan, settings: Settings, engine: Engine, info: EngineInfo) -> list[PreflightCheck]:
    """Return the warnings about the engine and its disk space before a command that only makes an image."""
    places = [folder for folder in build_places(settings, info) if folder.what == _IMAGES]
    checks = list(_abilities(info, settings))
    if _images_needed(places, plan, engine):
        checks += preflight.disk_checks(places, plan.resources.disk)
    return _warnings(checks)


def _images_needed(places: Sequence[WritableFolder], plan: BuildPlan, engine: Engine) -> bool:
    """Return whether an image must be made; False if the engine's disk space is unknown."""
    return any(folder.what == _IMAGES for folder in places) and engine.image(plan.image_name) is None


def _warnings(checks: Sequence[PreflightCheck]) -> list[PreflightCheck]:
    """Return the warnings. Raise the failed checks as one error."""
    stopping = [check for check in checks if check.status == FAILED]
    if stopping:
        raise _combined_error(stopping)
    return [check for check in checks if check.status == WARNING]


def _combined_error(checks: list[PreflightCheck]) -> TfdockError:
    code = combined_exit_code(check.exit_code for check in checks)
    # The problems that decide the exit code come first: readers act on the first.
    first = sorted(checks, key=lambda check: check.exit_code != code)
    kind = _ERRORS.get(ExitCode(code), EngineError)
    # Memory and disk share an exit code; only the name of the check distinguishes them.
    if kind is DiskFull and first[0].name == "memory":
        kind = OutOfMemory
    return kind(*(check.problem for check in first))


def build_places(settings: Settings, info: EngineInfo | None = None) -> list[WritableFolder]:
    """Return the folders that a build writes to, and the engine's folder if this user can read it."""
    cache, wheels, state = (
        folder.absolute() for folder in (settings.cache_dir, settings.wheelhouse, settings.state_dir)
    )
    # An engine on another machine has its caches on that machine.
    here = place("the cache", cache, share=_CACHE, executes=True, option="--cache-dir")
    places = [
        *([here] if info is None or info.local else []),
        place("the wheelhouse", wheels, share=_WHEELS, option="--wheelhouse"),
        place("the journal of runs", state, share=0, option="TFDOCK_STATE_DIR"),
    ]
    root = engine_data(info) if info else None
    if root:  # the engine writes there, not this user
        places.append(replace(place(_IMAGES, root, share=_IMAGE), trouble=""))
    return places


def _abilities(info: EngineInfo | None, settings: Settings) -> Iterator[PreflightCheck]:
    if info is not None:
        yield from preflight.engine_ability_checks(info, uid=os.getuid(), network=settings.network)


def _ask_engine(engine: Engine) -> tuple[EngineInfo | None, PreflightCheck]:
    try:
        info = engine.info()
    except EngineError as error:
        return None, preflight.failed_by(error.problems[0], "engine", ExitCode.ENGINE)
    return info, preflight.engine_check(info)


def _accelerators(settings: Settings, knowledge: KnowledgeBase | None) -> Iterable[Accelerator]:
    # Imported here: `tfdock check` needs only this module's folders, and so starts faster.
    from tfdock.knowledge import loader

    return (knowledge or loader.knowledge(settings.knowledge, settings.cache_dir)).accelerators.values()


def _devices(
    host: Host, info: EngineInfo | None, families: Iterable[Accelerator], *, troubles: bool
) -> Iterator[PreflightCheck]:
    """Yield checks of the GPUs, and of containers' access to them. A build needs neither."""
    if host.wsl:
        found = "this is WSL2: the GPU uses the driver of Windows, so do not install a driver here"
        yield PreflightCheck(name="wsl", status=OK, found=found)
    if troubles:  # the checks of a plan report them too
        yield from (preflight.trouble_check(host, accelerator) for accelerator in host.troubles)
    if not host.gpus:
        if not host.troubles:
            yield PreflightCheck(name="gpu", status=OK, found="this machine has no GPU; a build needs no GPU")
        return
    names = [f"{gpu.name} ({gpu.target})" if gpu.target else gpu.name for gpu in host.gpus]
    drivers = "".join(f", driver {version}" for version in host.drivers.values())
    yield PreflightCheck(name="gpu", status=OK, found=f"{', '.join(names)}{drivers}")
    here = {gpu.accelerator for gpu in host.gpus}
    for row in families:
        if info is None or not row.engine_runtime or row.accelerator not in here:
            continue
        if gives_gpus(info, row):
            yield PreflightCheck(name="gpu runtime", status=OK, found=f"containers can use {row.engine_runtime} GPUs")
            continue
        # Only a warning: a build compiles without a GPU, and only a trial needs the runtime.
        yield PreflightCheck(
            name="gpu runtime",
            code="gpu-runtime-missing",
            status=WARNING,
            found=f"no container runtime for these GPUs; the engine has {', '.join(info.runtimes) or 'none'}",
            fixes=("install the NVIDIA container toolkit for GPU checks in containers; a build does not need it",),
        )


def _leftovers(settings: Settings, engine: Engine, info: EngineInfo | None, *, fix: bool) -> Iterator[PreflightCheck]:
    # Imported here: `tfdock check` needs only this module's folders, not locks or engines.
    from tfdock.builder import cleanup

    check = partial(PreflightCheck, name="leftovers")
    warning = partial(check, code="run-left-behind", status=WARNING)
    try:
        left = cleanup.find_leftovers(settings)
    # Otherwise an unreadable folder would be reported twice, and would end the other checks.
    except OSError:  # the check of that folder reports it
        return
    except ProfileError as error:
        problem = error.problems[0]
        text = f"{problem.message}: {problem.why}"
        yield check(code=problem.code, status=FAILED, found=text, fixes=problem.fixes, exit_code=ExitCode.USAGE)
        return
    if not left and info is None:
        found = "no leftovers in the folders of this machine; without an engine, containers cannot be checked"
        yield check(status=SKIPPED, found=found)
        return
    if not left:
        yield check(status=OK, found=f"none{': there was nothing to remove' if fix else ''}")
        return
    # Without an engine, nobody knows whether the run's containers still write to its folders.
    if not (fix and info):
        text = ", ".join(map(cleanup.leftover_name, left))
        way = "`tfdock doctor --fix` removes them" + ("" if info else ", once the engine answers")
        yield warning(found=text, fixes=(way,))
        return
    for leftover in left:
        name = cleanup.leftover_name(leftover)
        if kept := cleanup.remove_leftover(leftover, settings, engine, info.id):
            yield warning(found=f"{name} is still there: {kept.why}", fixes=(kept.fix,))
        else:
            yield check(status=OK, found=f"{name} was removed")
